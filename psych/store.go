package psych

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// A RunKey addresses a Run. The tenant is part of every address.
type RunKey struct {
	Tenant string `json:"tenant"`
	RunID  string `json:"run_id"`
}

func (k RunKey) String() string { return fmt.Sprintf("%q/%q", k.Tenant, k.RunID) }

// Check returns an error matching ErrInvalid unless k is a legal key: a tenant
// as [CheckTenant] has it and 32 lower-case hexadecimal digits as RunID.
// Adapters call it first.
func (k RunKey) Check() error {
	if err := CheckTenant(k.Tenant); err != nil {
		return err
	}
	ok := len(k.RunID) == 32
	for i := 0; ok && i < len(k.RunID); i++ {
		c := k.RunID[i]
		ok = c >= '0' && c <= '9' || c >= 'a' && c <= 'f'
	}
	if !ok {
		return fmt.Errorf("psych: run id %.80q: want 32 hexadecimal digits: %w", k.RunID, ErrInvalid)
	}
	return nil
}

// CheckTenant returns an error matching ErrInvalid unless tenant is 1 to 128
// bytes of valid UTF-8; so for a principal that is not empty and for the id of
// a message. Any character is legal, NUL and separators included: adapters
// escape.
func CheckTenant(tenant string) error { return checkID("tenant", tenant) }

func checkID(what, id string) error {
	switch {
	case id == "":
		return fmt.Errorf("psych: %s is empty: want 1 to 128 bytes of UTF-8: %w", what, ErrInvalid)
	case len(id) > 128:
		return fmt.Errorf("psych: %s %.40q… has %d bytes: want 1 to 128: %w", what, id, len(id), ErrInvalid)
	case !utf8.ValidString(id):
		return fmt.Errorf("psych: %s %q is not valid UTF-8: %w", what, id, ErrInvalid)
	}
	return nil
}

// A Pos is a boundary between two appends of one log, as that log returned it.
// The zero Pos is the start. Seq is the last record before it; Mark belongs to
// the adapter and makes a Pos proof that Seq is a boundary, so that an adapter
// need keep no state. A Pos with a Seq alone is legal for Read, which then
// finds the place itself.
type Pos struct {
	Seq  uint64
	Mark string
}

// String encodes p for a cursor or a Last-Event-ID; [ParsePos] reads it.
func (p Pos) String() string {
	s := strconv.FormatUint(p.Seq, 10)
	if p.Mark != "" {
		s += "." + base64.RawURLEncoding.EncodeToString([]byte(p.Mark))
	}
	return s
}

// ParsePos reads what [Pos.String] wrote; anything else is ErrInvalid.
func ParsePos(s string) (Pos, error) {
	num, mark, marked := strings.Cut(s, ".")
	seq, err := strconv.ParseUint(num, 10, 64)
	if err == nil && strconv.FormatUint(seq, 10) == num {
		var m []byte
		if m, err = base64.RawURLEncoding.Strict().DecodeString(mark); err == nil && marked == (len(m) > 0) {
			// Decoding passes over line ends, and String writes none.
			if p := (Pos{seq, string(m)}); p.String() == s {
				return p, nil
			}
		}
	}
	return Pos{}, fmt.Errorf("psych: position %.80q: want one that Psych returned: %w", s, ErrInvalid)
}

// Bounds that psych keeps above every adapter alike, so that behaviour does
// not vary by store. They are chosen against DynamoDB's item cap of 409,600
// bytes (405,000 on moto), before any compression.
const (
	MaxRecordBytes  = 128 << 10 // of an encoded record; payloads leave for the BlobStore, largest first, until it fits
	MaxAppendBytes  = 380 << 10 // of a Batch: len(Data) + 64 an entry; psych splits what is more
	MaxNoteBytes    = 120 << 10 // of an encoded note; a larger message leaves for the BlobStore
	MaxMessageBytes = 1 << 20   // of a user message
	MaxPending      = 100       // notes that wait in one inbox
)

// MaxLease bounds the ttl of a Claim or Renew; a longer one is ErrInvalid.
const MaxLease = 15 * time.Minute

// CheckTTL returns an error matching ErrInvalid if a lease is asked for longer
// than MaxLease. Adapters call it first in Claim and Renew.
func CheckTTL(ttl time.Duration) error {
	if ttl > MaxLease {
		return fmt.Errorf("psych: lease of %v: want at most %v: %w", ttl, MaxLease, ErrInvalid)
	}
	return nil
}

// CheckClaim is CheckTTL for Claim, and returns an error matching ErrInvalid
// unless owner and token have 1 to 128 bytes.
func CheckClaim(owner, token string, ttl time.Duration) error {
	if owner == "" || len(owner) > 128 || token == "" || len(token) > 128 {
		return fmt.Errorf("psych: owner of %d bytes, token of %d: want 1 to 128: %w", len(owner), len(token), ErrInvalid)
	}
	return CheckTTL(ttl)
}

// CheckLimit returns an error matching ErrInvalid if a list is asked for less
// than one thing.
func CheckLimit(limit int) error {
	if limit < 1 {
		return fmt.Errorf("psych: limit %d: want at least 1: %w", limit, ErrInvalid)
	}
	return nil
}

// TombstoneLife is how long a tombstone stands at the least.
const TombstoneLife = 30 * 24 * time.Hour

// An Entry is an encoded record. Adapters store the fields and never look
// into Data. Data that a port method returns is the caller's.
type Entry struct {
	Seq  uint64
	Kind Kind
	Time time.Time // kept to the microsecond
	Data []byte
}

// A Batch is the entries of one append, gapless from after.Seq+1. Token is
// random and unique to the intent: a caller that repeats an Append whose
// outcome is unknown repeats Token.
type Batch struct {
	Token   string
	Entries []Entry
}

// Check returns an error matching ErrInvalid unless b is a legal append behind
// after (a token of 1 to 64 bytes, entries gapless from after.Seq+1, at least
// one), and one matching ErrTooLarge if it is over MaxAppendBytes. Adapters
// call it first.
func (b Batch) Check(after Pos) error {
	if b.Token == "" || len(b.Token) > 64 {
		return fmt.Errorf("psych: append token of %d bytes: want 1 to 64: %w", len(b.Token), ErrInvalid)
	}
	if len(b.Entries) == 0 {
		return fmt.Errorf("psych: append without entries: %w", ErrInvalid)
	}
	size := 0
	for i, e := range b.Entries {
		if e.Seq != after.Seq+1+uint64(i) {
			return fmt.Errorf("psych: append behind seq %d: entry %d has seq %d: want %d: %w", after.Seq, i, e.Seq, after.Seq+1+uint64(i), ErrInvalid)
		}
		size += len(e.Data) + entryOverhead
	}
	if size > MaxAppendBytes {
		return fmt.Errorf("psych: append of %d bytes: want at most %d: %w", size, MaxAppendBytes, ErrTooLarge)
	}
	return nil
}

const entryOverhead = 64

// A Log is the append-only log of each Run. Only the driver that holds the
// Run's lease writes to it. contracttest.StoreRules checks it.
type Log interface {
	// Append writes b behind the boundary after: all of it or nothing.
	//
	// If the head is not after, it returns an error matching ErrConflict and
	// writes nothing, unless the append just behind after has b's Token, when
	// it succeeds and returns that boundary, however much was appended since.
	// Of N concurrent calls with one after and different tokens, one wins.
	// Append does not look at the header: the lease is psych's matter, and it
	// writes under a tombstone too, where nobody reads. An after without a
	// Mark, other than zero, is checked by one consistent read first. It keeps
	// nothing of b's memory.
	Append(ctx context.Context, key RunKey, after Pos, b Batch) (Pos, error)

	// Read returns entries behind after, in order, consistent with every
	// acknowledged Append. An after inside an append begins with its rest. It
	// stops at the first boundary at or past limit entries (limit < 1 is
	// ErrInvalid), or earlier at another boundary, but never before the first.
	// Next is where to go on; More is false when Next was the head. Behind the
	// head it returns an empty page with Next equal to after, never an error;
	// ErrNotFound without a header, or under a tombstone.
	Read(ctx context.Context, key RunKey, after Pos, limit int) (Page, error)

	// Head returns the last boundary, the zero Pos for an empty log.
	// ErrNotFound as for Read.
	Head(ctx context.Context, key RunKey) (Pos, error)
}

// A Page is a part of a log.
type Page struct {
	Entries []Entry
	Next    Pos
	More    bool
}

// RunInfo is a Run's header. The log alone is the truth about its state;
// Status is a copy for lists and may lag. Times are kept to the microsecond.
type RunInfo struct {
	Key         RunKey
	Scope       Scope
	Version     Digest
	Incarnation string // random; what is cached of a Run, or sent with its id, holds for this one alone
	Request     Digest // of what CreateRun was asked for, to tell a repetition from a reuse of the key
	CreatedAt   time.Time
	ExpiresAt   time.Time // retention: the sweep deletes the Run past it; zero: never
	Status      string
	Epoch       int64     // grows with each Claim; a record's Attempt
	Owner       string    // "" when nobody holds the lease
	Until       time.Time // when the lease expires
	DueAt       time.Time // when the Run wants attention; zero: nothing is due
	Posted      int64     // grows with each Post
}

// A Note is what a client posts: a message, a decision, an abort.
type Note struct {
	ID   string // the client's: one id is one note of its kind, however often it is posted
	Kind Kind   // user_message or abort_requested; of another kind it is another note
	Time time.Time
	Data []byte // adapters never decode it
}

// Check returns an error matching ErrInvalid unless n has a legal id and a kind
// of 1 to 64 bytes of a to z and _, and one matching ErrTooLarge if Data is over
// MaxNoteBytes. Adapters call it first.
func (n Note) Check() error {
	if err := checkID("note id", n.ID); err != nil {
		return err
	}
	if n.Kind == "" || len(n.Kind) > 64 || strings.Trim(string(n.Kind), "abcdefghijklmnopqrstuvwxyz_") != "" {
		return fmt.Errorf("psych: note %q has the kind %.80q: want 1 to 64 bytes of a to z and _: %w", n.ID, string(n.Kind), ErrInvalid)
	}
	if len(n.Data) > MaxNoteBytes {
		return fmt.Errorf("psych: note %q has %d bytes: want at most %d: %w", n.ID, len(n.Data), MaxNoteBytes, ErrTooLarge)
	}
	return nil
}

// A Lease is held by the owner of a Run's current epoch.
type Lease struct {
	Key    RunKey
	Epoch  int64
	Until  time.Time
	Posted int64   // as of the Claim or Renew; a change says that a client posted
	Info   RunInfo // the header as of the Claim
}

// Runs keeps the header and the inbox of each Run. Time is always an argument,
// never read in an adapter. contracttest.StoreRules checks it.
type Runs interface {
	// CreateRun writes the header, in one conditional write. If one exists for
	// the same Request it is returned unchanged with created false; for
	// another Request, ErrConflict. Under a tombstone, ErrNotFound.
	CreateRun(ctx context.Context, info RunInfo) (_ RunInfo, created bool, _ error)

	// GetRun reads the header, consistently. ErrNotFound if there is none.
	GetRun(ctx context.Context, key RunKey) (RunInfo, error)

	// Post looks at the header (ErrNotFound if there is none, and nothing is
	// put), puts a note into the inbox, then increments Posted and moves DueAt
	// to due if it is later or zero, whoever holds the lease; a zero due is
	// ErrInvalid. When it returns,
	// the note is durable and the Run is due. If it fails in between, the note
	// may be there or not; the caller posts it again. When MaxPending notes
	// wait it returns ErrInboxFull (concurrent posts may pass the bound by
	// their number), except for a note whose Kind and ID wait already; the Run
	// is made due all the same, so that a full inbox is always emptied.
	Post(ctx context.Context, key RunKey, n Note, due time.Time) error

	// Pending returns the notes that wait, in order of Time, then ID, then
	// Kind, consistent with every Post that returned. A note posted twice may
	// be there twice. ErrNotFound without a header.
	Pending(ctx context.Context, key RunKey) ([]Note, error)

	// Settle removes notes, found by Time, ID and Kind. Notes that are not
	// there are no error.
	Settle(ctx context.Context, key RunKey, notes []Note) error

	// Claim takes the lease if it is free or expired at now (Until is not
	// after now), and increments Epoch; it leaves DueAt alone. Of N concurrent
	// claimers one wins, the others get ErrLeaseHeld. A Claim repeated with
	// the token of the current epoch is that claim: Until is from its first
	// sending. Owner and token are 1 to 128 bytes.
	Claim(ctx context.Context, key RunKey, owner, token string, now time.Time, ttl time.Duration) (Lease, error)

	// Renew extends a lease to now+ttl, never to an earlier time, and returns
	// it with the current Posted. ErrLeaseLost if the epoch is past, or the
	// lease was released. A lease that expired and that nobody took is renewed.
	Renew(ctx context.Context, l Lease, now time.Time, ttl time.Duration) (Lease, error)

	// Release gives the lease back and sets DueAt (zero: nothing is due) and
	// Status. ErrConflict, with the lease kept, if Posted is not l.Posted: l
	// must be the Lease of the Claim or Renew before the last Pending, and the
	// way on is Renew, then Pending, then Release. ErrLeaseLost if the epoch is
	// past. Releasing a released epoch again writes nothing and succeeds, even
	// if Posted has grown; after a Release of unknown outcome only that Release
	// or a Renew is tried.
	Release(ctx context.Context, l Lease, dueAt time.Time, status string) error

	// Defer sets the DueAt of a Run that is due, or whose lease has expired, to
	// a later time (one that is not after now is ErrInvalid), if the header's Epoch, Owner, Until, DueAt and Posted are
	// still as info says; ErrConflict otherwise. It frees an expired lease.
	// The sweep calls it before it wakes a Run.
	Defer(ctx context.Context, info RunInfo, now, to time.Time) error

	// DeleteRun leaves a tombstone in place of the header, also of one that was
	// never there, for at least TombstoneLife, and removes log and inbox. Under
	// it every method but Append, Settle, DeleteRun and PurgeRun answers
	// ErrNotFound. The tombstone stays in Due, for PurgeRun, which is due
	// MaxLease later. Deleting again keeps the tombstone's time.
	DeleteRun(ctx context.Context, key RunKey, now time.Time) error

	// PurgeRun acts only on a tombstone: it removes what late writers left of
	// log and inbox, keeps the tombstone's time, and moves its due time from
	// MaxLease after the deletion to the last purge, at TombstoneLife, which
	// alone lets the tombstone expire. The sweep calls it, after
	// BlobStore.DeleteRun, for a due Run whose header is not found.
	PurgeRun(ctx context.Context, key RunKey, now time.Time) error
}

// An Index lists Runs and refs. It may lag behind them: a caller believes a
// header. contracttest.StoreRules checks it.
type Index interface {
	// Due lists Runs whose DueAt, lease expiry or retention is not after now,
	// in no order, across tenants, at most limit a call. Go on with next until
	// it is "". A limit under 1, and a cursor that Due did not return, are
	// ErrInvalid; so for DueRefs and ListRuns.
	Due(ctx context.Context, now time.Time, cursor string, limit int) (keys []RunKey, next string, err error)

	// DueRefs lists refs whose After is not after now, across tenants, as Due
	// lists Runs. A caller believes the ref.
	DueRefs(ctx context.Context, now time.Time, cursor string, limit int) (refs []RefKey, next string, err error)

	// ListRuns lists a tenant's Runs by CreatedAt, newest first.
	ListRuns(ctx context.Context, tenant, cursor string, limit int) (runs []RunInfo, next string, err error)
}

// Docs keeps immutable documents of a tenant by content: Versions, tool
// definitions. A document may be larger than one item of the backend.
// contracttest.StoreRules checks it.
type Docs interface {
	// PutDoc stores data under its SHA-256, which the caller has computed; a
	// d that is not that of data is ErrInvalid. It is idempotent.
	PutDoc(ctx context.Context, tenant string, d Digest, data []byte) error

	// GetDoc returns the document, or ErrNotFound.
	GetDoc(ctx context.Context, tenant string, d Digest) ([]byte, error)
}

// MaxRefName bounds the name of a ref, in bytes.
const MaxRefName = 512

// A RefKey addresses a Ref.
type RefKey struct{ Tenant, Name string }

func (k RefKey) String() string { return fmt.Sprintf("%q/%q", k.Tenant, k.Name) }

// Check returns an error matching ErrInvalid unless k is a legal key: a tenant
// as [CheckTenant] has it and a Name of 1 to MaxRefName bytes of valid UTF-8,
// in which any character is legal. Adapters call it first.
func (k RefKey) Check() error {
	if err := CheckTenant(k.Tenant); err != nil {
		return err
	}
	switch {
	case k.Name == "" || len(k.Name) > MaxRefName:
		return fmt.Errorf("psych: ref name of %d bytes: want 1 to %d: %w", len(k.Name), MaxRefName, ErrInvalid)
	case !utf8.ValidString(k.Name):
		return fmt.Errorf("psych: ref name %q is not valid UTF-8: %w", k.Name, ErrInvalid)
	}
	return nil
}

// A Ref points at a document.
type Ref struct {
	Doc   Digest
	Seq   int64     // 1 as it is created, one more with each swap
	After time.Time // when the sweep should look at it again, kept to the microsecond; zero: never
}

// Equal reports whether r and o are one ref: times are compared as instants, to
// the microsecond.
func (r Ref) Equal(o Ref) bool {
	return r.Doc == o.Doc && r.Seq == o.Seq && r.After.IsZero() == o.After.IsZero() &&
		r.After.Truncate(time.Microsecond).Equal(o.After.Truncate(time.Microsecond))
}

// CheckSwap returns an error matching ErrInvalid unless r may take the place of
// old: old is the zero Ref or has a Seq from 1, and r.Seq is one more.
// Adapters call it first.
func (r Ref) CheckSwap(old Ref) error {
	switch {
	case old.Seq < 0 || old.Seq == 0 && !old.Equal(Ref{}):
		return fmt.Errorf("psych: swap of a ref with seq %d: want the zero Ref, or a seq from 1: %w", old.Seq, ErrInvalid)
	case r.Seq != old.Seq+1:
		return fmt.Errorf("psych: swap of a ref with seq %d for one with seq %d: want seq %d: %w", old.Seq, r.Seq, old.Seq+1, ErrInvalid)
	}
	return nil
}

// Refs keeps small named pointers of a tenant that change by compare-and-swap,
// such as that to the current manifest of a catalogue. A ref is never removed.
// contracttest.StoreRules checks it.
type Refs interface {
	// GetRefs reads refs of one tenant, by name, each consistent with every
	// acknowledged SwapRef, in few requests; not all as of one moment. The
	// answer holds those that exist and no others, however many are asked for
	// and whatever a batch of the backend left unprocessed. A name may be
	// asked for twice; no names, no refs.
	GetRefs(ctx context.Context, tenant string, names []string) (map[string]Ref, error)

	// SwapRef puts next in place of old, in one conditional write. An old that
	// is the zero Ref says that there is none yet. next.Seq is old.Seq+1, so
	// that no ref is ever the same again; otherwise ErrInvalid.
	//
	// If the ref is not old, in any field, it returns ErrConflict and changes
	// nothing, unless the ref is next, when it succeeds: so a swap whose answer
	// was lost is repeated. Once it has been swapped again, the repetition is
	// ErrConflict, and GetRefs tells more. Of N concurrent swaps of one old for
	// different refs one wins.
	SwapRef(ctx context.Context, tenant, name string, old, next Ref) error
}

// A Store is all of them. Its methods may be called concurrently, and look at
// ctx before they act. What needs less takes less: a report takes a Log and
// Docs.
type Store interface {
	Log
	Runs
	Index
	Docs
	Refs
}

// An Initer creates what a URL needs, a table, a bucket or a file, and says
// what the backend refused and can do without: an optional ability of a Store
// or BlobStore, found with [As]. Calling it again changes nothing.
type Initer interface {
	Init(ctx context.Context) (notes []string, err error)
}

// As finds an optional ability T in a port p or in what p wraps, along methods
// Unwrap() Store, Unwrap() BlobStore and Unwrap() Model, as
// http.ResponseController does.
func As[T any](p any) (T, bool) {
	for p != nil {
		if t, ok := p.(T); ok {
			return t, true
		}
		switch w := p.(type) {
		case interface{ Unwrap() Store }:
			p = w.Unwrap()
		case interface{ Unwrap() BlobStore }:
			p = w.Unwrap()
		case interface{ Unwrap() Model }:
			p = w.Unwrap()
		default:
			p = nil
		}
	}
	var zero T
	return zero, false
}
