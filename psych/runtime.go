package psych

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych/internal/lexical"
)

// Defaults of an engine.
const (
	defaultLease   = 60 * time.Second
	postGrace      = 30 * time.Second // how long a wake may take before the sweep looks
	defaultMargin  = 5 * time.Second
	defaultFloor   = 15 * time.Second
	defaultCache   = 64 << 20
	maxCachedKinds = 256       // credentials, failures of servers, and models, that are kept
	keptBytes      = 64 << 20  // about, of Versions, of openings, of schemas of servers' tools, each, that are kept
	keptIndex      = 256 << 20 // about, of the indexes of servers' tools
	keptHead       = 1 << 10   // of each, beside its bytes
)

// Options of a Runtime. The zero value works, without what is left out.
type Options struct {
	// Retention of Runs, from their creation; zero: for ever.
	Retention time.Duration
	// Blobs keeps what is too large for a record. Without it a large result is
	// the failure blob_store_required.
	Blobs BlobStore
	// Models finds the Model that a Spec names. Without it no Run can be driven.
	Models ModelResolver
	// DefaultModel is the name by which the log, reports and Prices know what
	// Models finds for a Spec that names no model; Models must find it by that
	// name, too.
	DefaultModel string
	// Prices are what models cost. Nil: DefaultPrices.
	Prices *Prices
	// Tools are the code tools that a Spec may name.
	Tools []*Tool
	// Connector opens the connections of Specs. Without it none can be reached.
	Connector Connector
	// Policy narrows what tenants may use of servers. Without it what a Spec
	// grants is permitted.
	Policy Policy
	// Secrets resolves the credentials of connections. Without it none that
	// needs one can be reached.
	Secrets Secrets
	// AllowCommands lets Specs name connections by command, which this program
	// then starts: for a laptop, where Specs are the user's own. The Connector
	// has to allow them, too.
	AllowCommands bool
	// Ranker orders what list_tools finds for a query. Without it the lexical
	// search does.
	Ranker Ranker
	// Disclosures are strategies beside the built-in ones, by name.
	Disclosures map[string]Disclosure
	// Waker is told of Runs that became due; without it they are driven when
	// somebody calls Drive.
	Waker Waker
	// Memories gives the dynamic tail of the system prompt for a Scope, at most
	// MaxMemoryBytes of text. It is asked once as an exchange opens; what it
	// answered is recorded when it differs from what was recorded last.
	Memories func(ctx context.Context, s Scope) (string, error)

	Logger     *slog.Logger     // nil: silent. Ids and sizes, never payloads
	Now        func() time.Time // nil: time.Now
	NewID      func() string    // nil: 32 random hexadecimal digits; a legal RunID
	Owner      string           // nil: host, process and random
	LeaseTTL   time.Duration    // zero: 60 s; at most MaxLease
	CacheBytes int64            // of warm Runs, the least recently driven leave first; zero: 64 MiB, negative: none
}

// MaxMemoryBytes bounds what Options.Memories answers.
const MaxMemoryBytes = 64 << 10

// A Runtime starts, drives and reads Runs. Its methods may be called
// concurrently. It starts no goroutine that outlives a call, but for what a port,
// a tool or a model does after its context has ended.
type Runtime struct {
	store Store
	o     Options
	log   *slog.Logger
	tools map[string]*Tool
	warm  warmCache

	disclosures map[string]Disclosure
	catalogs    *catalogs
	pool        pool
	secrets     secretCache

	closers []io.Closer // of what FromEnv opened

	mu       sync.Mutex
	versions lru[versionKey, *Version]
	openings lru[openingKey, *opening]
	opened   lru[versionKey, *openingDoc]      // by tenant and digest
	schemas  lru[Digest, *schema]              // of tools of servers, by definition
	segments lru[segmentKey, *lexical.Segment] // of the index of tools
	failures map[catalogKey]serverFailure
	driving  map[RunKey]chan struct{} // nudged when an abort is posted in this process
}

type versionKey struct {
	tenant string
	hash   Digest
}

type openingKey struct {
	hash, opened Digest
	codec        string
}

// New makes a Runtime on s. It does no IO. Every problem of the options is in
// the error.
func New(s Store, o *Options) (*Runtime, error) {
	r := &Runtime{
		store: s, tools: map[string]*Tool{}, failures: map[catalogKey]serverFailure{}, driving: map[RunKey]chan struct{}{},
	}
	if o != nil {
		r.o = *o
	}
	var errs []error
	if s == nil {
		errs = append(errs, fmt.Errorf("psych: New wants a Store: %w", ErrInvalid))
	}
	if r.o.LeaseTTL < 0 || r.o.LeaseTTL > MaxLease {
		errs = append(errs, fmt.Errorf("psych: LeaseTTL is %v: want at most %v: %w", r.o.LeaseTTL, MaxLease, ErrInvalid))
	}
	if r.o.Retention < 0 {
		errs = append(errs, fmt.Errorf("psych: Retention is %v: want zero or more: %w", r.o.Retention, ErrInvalid))
	}
	for i, t := range r.o.Tools {
		switch {
		case t == nil:
			errs = append(errs, fmt.Errorf("psych: tool %d is nil: %w", i, ErrInvalid))
		case t.err != nil:
			errs = append(errs, t.err)
		case r.tools[t.def.Name] != nil:
			errs = append(errs, fmt.Errorf("psych: two tools are named %q: %w", t.def.Name, ErrInvalid))
		default:
			r.tools[t.def.Name] = t
		}
	}
	r.disclosures = maps.Clone(builtinDisclosures)
	for _, name := range slices.Sorted(maps.Keys(r.o.Disclosures)) {
		switch {
		case r.o.Disclosures[name] == nil:
			errs = append(errs, fmt.Errorf("psych: disclosure %q is nil: %w", name, ErrInvalid))
		case name == "" || builtinDisclosures[name] != nil:
			errs = append(errs, fmt.Errorf("psych: disclosure %q: the name is taken by a built-in one: %w", name, ErrInvalid))
		default:
			r.disclosures[name] = r.o.Disclosures[name]
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if r.log = r.o.Logger; r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.o.Now == nil {
		r.o.Now = time.Now
	}
	if r.o.NewID == nil {
		r.o.NewID = randomID
	}
	if r.o.LeaseTTL == 0 {
		r.o.LeaseTTL = defaultLease
	}
	if r.o.Owner == "" {
		host, _ := os.Hostname()
		r.o.Owner = fmt.Sprintf("%.60s:%d:%.8s", strings.ToValidUTF8(host, "?"), os.Getpid(), randomID())
	}
	if r.o.CacheBytes == 0 {
		r.o.CacheBytes = defaultCache
	}
	r.warm.limit = r.o.CacheBytes
	r.versions.limit, r.openings.limit, r.opened.limit, r.schemas.limit, r.segments.limit = keptBytes, keptBytes, keptBytes, keptBytes, keptIndex
	r.catalogs = newCatalogs(s, r.now, r.log)
	return r, nil
}

// Close closes the sessions with servers, and what FromEnv opened. Stores,
// BlobStores and models that were given belong to the caller.
func (r *Runtime) Close() error {
	errs := []error{r.pool.close()}
	for i := len(r.closers) - 1; i >= 0; i-- {
		errs = append(errs, r.closers[i].Close())
	}
	r.closers = nil
	return errors.Join(errs...)
}

func randomID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func (r *Runtime) now() time.Time { return microseconds(r.o.Now()) }

// Publish checks a Spec and stores it for a tenant, with the definitions of the
// code tools that it names. The same Spec with the same tools is the same
// Version. A Spec that breaks rules is a *SpecError which names all of them.
func (r *Runtime) Publish(ctx context.Context, tenant string, s *Spec) (*Version, error) {
	if err := CheckTenant(tenant); err != nil {
		return nil, err
	}
	if err := r.checkSpec(s); err != nil {
		return nil, err
	}
	defs := make([]ToolDef, len(s.Tools))
	for i, name := range s.Tools {
		defs[i] = r.tools[name].def
	}
	doc, hash, err := encodeVersion(s, defs)
	if err != nil {
		return nil, err
	}
	if err := r.store.PutDoc(ctx, tenant, hash, doc); err != nil {
		return nil, fmt.Errorf("psych: publish version %s: %w", hash, err)
	}
	return r.version(ctx, tenant, hash)
}

// Version reads what was published for a tenant under a hash; ErrNotFound if
// nothing was. It is shared: nobody changes it.
func (r *Runtime) Version(ctx context.Context, tenant string, hash Digest) (*Version, error) {
	if err := CheckTenant(tenant); err != nil {
		return nil, err
	}
	return r.version(ctx, tenant, hash)
}

// version reads a Version, once a process.
func (r *Runtime) version(ctx context.Context, tenant string, hash Digest) (*Version, error) {
	key := versionKey{tenant, hash}
	r.mu.Lock()
	v, ok := r.versions.get(key)
	r.mu.Unlock()
	if ok {
		return v, nil
	}
	v, size, err := readVersion(ctx, r.store, tenant, hash)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.versions.put(key, v, int64(size+keptHead))
	return v, nil
}

// readVersion returns a Version and the bytes of its document.
func readVersion(ctx context.Context, docs Docs, tenant string, hash Digest) (*Version, int, error) {
	doc, err := docs.GetDoc(ctx, tenant, hash)
	if err != nil {
		return nil, 0, fmt.Errorf("psych: read version %s: %w", hash, err)
	}
	v, err := decodeVersion(doc)
	return v, len(doc), err
}

// opening encodes the tools and zone 1 of a Version and of what servers added
// to it, once a process and Codec.
func (r *Runtime) opening(c Codec, v *Version, at Digest, doc *openingDoc) (*opening, error) {
	key := openingKey{v.Hash, at, c.ID()}
	r.mu.Lock()
	o, ok := r.openings.get(key)
	r.mu.Unlock()
	if ok {
		return o, nil
	}
	o, err := newOpening(c, v, doc)
	if err != nil {
		return nil, err
	}
	o.at = at
	r.mu.Lock()
	defer r.mu.Unlock()
	size := len(o.tools.Bytes) + len(o.static.Bytes) + keptHead
	for _, b := range o.blocks {
		size += len(b)
	}
	r.openings.put(key, o, int64(size))
	return o, nil
}

// A ClientMessage is what a client says to a Run, and the client's id for it: a
// repeated Send with the same id is one message. For Start the Run's id is
// derived from it, with tenant and principal. Empty: a random one.
type ClientMessage struct {
	ID          string
	Text        string
	Attachments []MessageAttachment // shown to the model behind the text, whole
}

// A MessageAttachment is a text, or other bytes, that a client sends along.
// With the message it takes at most MaxMessageBytes.
type MessageAttachment struct {
	Name        string // 1 to 256 characters
	ContentType string
	Data        []byte
}

// size is the bytes of a message.
func (m *ClientMessage) size() int {
	n := len(m.Text)
	for i := range m.Attachments {
		n += len(m.Attachments[i].Data) + len(m.Attachments[i].Name) + len(m.Attachments[i].ContentType)
	}
	return n
}

// digest tells two messages apart.
func (m *ClientMessage) digest(more ...string) Digest {
	parts := append(more, m.Text)
	for _, a := range m.Attachments {
		parts = append(parts, a.Name, a.ContentType, string(a.Data))
	}
	return digest(parts...)
}

// Start creates a Run with a Version, posts its first message and wakes it. It
// is idempotent by tenant, principal and the message's id: repeated it returns
// the same Run; with another Version or text, ErrConflict.
func (r *Runtime) Start(ctx context.Context, s Scope, version Digest, m ClientMessage) (RunKey, error) {
	if err := s.check(); err != nil {
		return RunKey{}, err
	}
	if m.ID == "" {
		m.ID = r.o.NewID()
	}
	if err := r.checkMessage(m); err != nil {
		return RunKey{}, err
	}
	if _, err := r.version(ctx, s.Tenant, version); err != nil {
		return RunKey{}, err
	}
	now := r.now()
	info := RunInfo{
		Key:         RunKey{s.Tenant, digest("run", s.Tenant, s.Principal, m.ID).String()[:32]},
		Scope:       s,
		Version:     version,
		Incarnation: r.o.NewID(),
		Request:     m.digest("request", version.String()),
		CreatedAt:   now,
		Status:      StatusOpen,
	}
	if r.o.Retention > 0 {
		info.ExpiresAt = now.Add(r.o.Retention)
	}
	err := repeat(ctx, func() error {
		_, _, err := r.store.CreateRun(ctx, info)
		return err
	})
	if err != nil {
		return RunKey{}, fmt.Errorf("psych: start run %s: %w", info.Key, err)
	}
	return info.Key, r.Send(ctx, info.Key, m)
}

// digest is a SHA-256 over parts, each with its length, so that no two lists of
// parts meet.
func digest(parts ...string) (d Digest) {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	h.Sum(d[:0])
	return d
}

// checkMessage refuses a message before anything is written.
func (r *Runtime) checkMessage(m ClientMessage) error {
	if err := checkID("message id", m.ID); err != nil {
		return err
	}
	if m.Text == "" && len(m.Attachments) == 0 {
		return fmt.Errorf("psych: message %q is empty: want a text, or attachments: %w", m.ID, ErrInvalid)
	}
	if len(m.Attachments) > MaxAttachments {
		return fmt.Errorf("psych: message %q has %d attachments: want at most %d: %w", m.ID, len(m.Attachments), MaxAttachments, ErrInvalid)
	}
	heads := 0
	for i, a := range m.Attachments {
		if heads += len(a.Name) + len(a.ContentType); heads > maxNoteHeads {
			return fmt.Errorf("psych: message %q: the names and types of its attachments take over %d bytes: %w", m.ID, maxNoteHeads, ErrTooLarge)
		}
		if n := utf8.RuneCountInString(a.Name); n < 1 || n > 256 || !utf8.ValidString(a.Name) {
			return fmt.Errorf("psych: message %q: name of attachment %d is %.40q: want 1 to 256 characters of UTF-8: %w", m.ID, i+1, a.Name, ErrInvalid)
		}
	}
	switch n := m.size(); {
	case n > MaxMessageBytes:
		return fmt.Errorf("psych: message %q has %d bytes: want at most %d: %w", m.ID, n, MaxMessageBytes, ErrTooLarge)
	case n > maxNoteText && r.o.Blobs == nil:
		return fmt.Errorf("psych: message %q has %d bytes, and over %d a BlobStore must keep it: set Options.Blobs: %w", m.ID, n, maxNoteText, ErrNoBlobStore)
	}
	return nil
}

// maxNoteText is what of a message surely stays in its note, beside the heads of
// a hundred attachments with their names and types.
const (
	maxNoteText  = MaxNoteBytes - maxNoteHeads - MaxAttachments*400
	maxNoteHeads = 16 << 10
)

// Send posts a message to a Run and wakes it. It is idempotent by the message's
// id: if it fails, call it again.
func (r *Runtime) Send(ctx context.Context, key RunKey, m ClientMessage) error {
	if m.ID == "" {
		m.ID = r.o.NewID()
	}
	if err := errors.Join(key.Check(), r.checkMessage(m)); err != nil {
		return err
	}
	e := &UserMessage{ID: m.ID, Text: newPayload("text/plain", []byte(m.Text))}
	var taken slots
	for _, a := range m.Attachments {
		e.Attachments = append(e.Attachments, Attachment{Name: a.Name, Slot: taken.of(a.Name), Output: newPayload(a.ContentType, a.Data)})
	}
	if err := r.fitNote(ctx, key, e, m.digest(m.ID).String()[:32]); err != nil {
		return fmt.Errorf("psych: send to run %s: %w", key, err)
	}
	return r.post(ctx, key, m.ID, e)
}

// fitNote moves the largest payloads of a message to the BlobStore until its
// note fits. Nothing is written for a Run that is not there.
func (r *Runtime) fitNote(ctx context.Context, key RunKey, e *UserMessage, name string) error {
	looked := false
	for {
		size, at := 0, 0
		payloads := e.payloads()
		for i, p := range payloads {
			size += len(p.Inline)
			if len(p.Inline) > len(payloads[at].Inline) {
				at = i
			}
		}
		if size <= maxNoteText || payloads[at].Ref != nil {
			return nil
		}
		if !looked {
			if _, err := r.store.GetRun(ctx, key); err != nil {
				return err
			}
			looked = true
		}
		segment := "m." + name
		if at > 0 {
			segment += "." + strconv.Itoa(at)
		}
		p, err := capture(ctx, bytes.NewReader(payloads[at].Inline), payloads[at].ContentType, 0, r.o.Blobs, BlobKey{key.Tenant, key.RunID, segment})
		if err != nil {
			return err
		}
		p.Ref.Head, p.Ref.Tail, p.Ref.Index = nil, nil, nil // it is read whole
		*payloads[at] = p
	}
}

func (r *Runtime) post(ctx context.Context, key RunKey, id string, e Event) error {
	data, err := encodeNote(e)
	if err != nil {
		return err
	}
	now := r.now()
	n := Note{ID: id, Kind: e.Kind(), Time: now, Data: data}
	err = repeat(ctx, func() error { return r.store.Post(ctx, key, n, now.Add(postGrace)) })
	if err != nil && !errors.Is(err, ErrInboxFull) {
		return fmt.Errorf("psych: post to run %s: %w", key, err)
	}
	if r.o.Waker != nil {
		if werr := r.o.Waker.Wake(ctx, key); werr != nil {
			// The note is durable and the Run is due: the sweep wakes it.
			r.log.WarnContext(ctx, "wake failed", "run", key.RunID, "tenant", key.Tenant, "err", werr)
		}
	}
	if err != nil {
		return fmt.Errorf("psych: post to run %s: %w", key, err)
	}
	return nil
}

// repeat calls f again while its outcome is unknown, a few times.
func repeat(ctx context.Context, f func() error) error {
	wait := 50 * time.Millisecond
	for try := 1; ; try++ {
		err := f()
		if err == nil || certain(err) || try == 5 || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
		wait *= 2
	}
}

// certain reports whether err says that the call had no effect, so that
// repeating it would change nothing.
func certain(err error) bool {
	for _, e := range []error{ErrNotFound, ErrConflict, ErrLeaseHeld, ErrLeaseLost, ErrTooLarge, ErrInboxFull, ErrInvalid, ErrAccessDenied, ErrNoBlobStore} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// An AbortRequest names the exchange to end by the id of the message that
// opened it (empty: the one that is open when the request is taken) and has an
// id of its own, so that a repetition is one request (empty: a random one). It
// may be that of a message: ids of aborts and of messages are apart.
type AbortRequest struct{ ID, Message, Reason string }

// Abort asks that an exchange end. A driver elsewhere learns of it at its next
// renewal, one in this process at once, and cancels the contexts of model and
// tools. It has no effect on an exchange that has ended, and, with Message
// set, none on a later one.
func (r *Runtime) Abort(ctx context.Context, key RunKey, a AbortRequest) error {
	if a.ID == "" {
		a.ID = r.o.NewID()
	}
	if err := errors.Join(key.Check(), checkID("abort id", a.ID)); err != nil {
		return err
	}
	if a.Message != "" {
		if err := checkID("message id", a.Message); err != nil {
			return err
		}
	}
	reason := strings.ToValidUTF8(a.Reason, "\uFFFD")
	e := &AbortRequested{ID: a.ID, Message: a.Message, Reason: string(firstChars([]byte(reason), 1000))}
	err := r.post(ctx, key, a.ID, e)
	if err == nil {
		r.nudge(key)
	}
	return err
}

// nudge makes a driver of this process look into its inbox.
func (r *Runtime) nudge(key RunKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ch := r.driving[key]; ch != nil {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// An Answer is what closed an exchange.
type Answer struct {
	Run    RunKey
	Closed string // completed, exhausted, aborted
	Text   string // of the last answer of the model; "" when there was none
	Report *Report
}

// Ask publishes the Spec, starts a Run, drives it in this process and returns
// the answer. An exchange that failed is an *ExchangeError, beside an Answer
// with the report.
func (r *Runtime) Ask(ctx context.Context, s Scope, spec *Spec, text string, o *DriveOptions) (*Answer, error) {
	v, err := r.Publish(ctx, s.Tenant, spec)
	if err != nil {
		return nil, err
	}
	key, err := r.Start(ctx, s, v.Hash, ClientMessage{Text: text})
	if err != nil {
		return nil, err
	}
	for outcome := Yielded; outcome == Yielded; {
		if outcome, err = r.Drive(ctx, key, o); err != nil && outcome != Closed {
			return nil, err
		}
		if outcome == Held {
			return nil, fmt.Errorf("psych: run %s: another worker drives it: %w", key, ErrLeaseHeld)
		}
	}
	rep, reportErr := r.Report(ctx, key)
	if reportErr != nil {
		return nil, errors.Join(err, reportErr)
	}
	a := &Answer{Run: key, Closed: rep.Status, Report: rep}
	if n := len(rep.Exchanges); n > 0 {
		last := rep.Exchanges[n-1]
		a.Text = last.Answer
		if rep.Status == StatusFailed && err == nil {
			err = &ExchangeError{Run: key, Status: rep.Status, Code: last.Code, Reason: last.Reason}
		}
	}
	return a, err
}

// Records iterates over a Run's log behind after, to the head as it is when it
// gets there.
func (r *Runtime) Records(ctx context.Context, key RunKey, after Pos) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		for page, err := range pages(ctx, r.store, key, after) {
			if err != nil {
				yield(nil, err)
				return
			}
			for _, e := range page.Entries {
				rec, err := decodeEntry(key, e)
				if !yield(rec, err) || err != nil {
					return
				}
			}
		}
	}
}

// pageEntries is how many entries are asked for at once.
const pageEntries = 1000

// pages reads a log to its head.
func pages(ctx context.Context, log Log, key RunKey, after Pos) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		for more := true; more; {
			page, err := log.Read(ctx, key, after, pageEntries)
			if err != nil {
				yield(Page{}, fmt.Errorf("psych: read run %s behind seq %d: %w", key, after.Seq, err))
				return
			}
			if !yield(page, nil) {
				return
			}
			more = page.More && page.Next != after
			after = page.Next
		}
	}
}

// Output reads a stored output by a handle of this Run. A handle that the Run
// never emitted is ErrNotFound.
func (r *Runtime) Output(ctx context.Context, key RunKey, handle string, q OutputQuery) (*OutputWindow, error) {
	s, _, err := foldLog(ctx, r.store, r.store, key)
	if err != nil {
		return nil, err
	}
	c, p := s.output(handle)
	if c == nil {
		return nil, fmt.Errorf("psych: run %s has no output %.80q: %w", key, handle, ErrNotFound)
	}
	return readOutput(ctx, p, r.o.Blobs, key, q)
}

// foldLog reads and folds a whole log.
func foldLog(ctx context.Context, log Log, docs Docs, key RunKey, each ...func(*state, *Record)) (*state, Pos, error) {
	s := newState(key, Limits{})
	var pos Pos
	for page, err := range pages(ctx, log, key, Pos{}) {
		if err != nil {
			return nil, Pos{}, err
		}
		if err := foldPage(ctx, s, docs, page, each...); err != nil {
			return nil, Pos{}, err
		}
		pos = page.Next
	}
	return s, pos, nil
}

// foldPage folds the entries of a page, and takes the limits from the Version
// that the Run was admitted with.
func foldPage(ctx context.Context, s *state, docs Docs, page Page, each ...func(*state, *Record)) error {
	for _, e := range page.Entries {
		rec, err := decodeEntry(s.run, e)
		if err != nil {
			return err
		}
		if err := s.apply(rec); err != nil {
			return err
		}
		if a, ok := rec.Event.(*RunAdmitted); ok {
			rules, ok := projections[a.Projection]
			if !ok {
				return &UnsupportedError{Run: s.run, Seq: rec.Seq, What: fmt.Sprintf("projection version %d", a.Projection)}
			}
			v, _, err := readVersion(ctx, docs, s.run.Tenant, a.Version)
			if err != nil {
				return err
			}
			s.rules, s.limits = rules, v.Spec.Limits.under(rules)
		}
		for _, f := range each {
			f(s, rec)
		}
	}
	return nil
}
