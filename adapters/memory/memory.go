// Package memory keeps everything in the process: a [Store], a BlobStore and a
// [Waker] for tests, examples and a single worker on a laptop. Nothing of it
// outlives the process.
package memory

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/psych-go/psych-go/psych"
)

var _ psych.Store = (*Store)(nil)

// Options of a [Store]. The zero value works.
type Options struct {
	// PageBytes bounds what one Read returns, as the pages of a database do: it
	// stops at the first boundary at or past so many bytes. 0 is 1 MiB.
	PageBytes int
}

// A Store is a [psych.Store] in memory. Its index never lags.
type Store struct {
	pageBytes int

	mu      sync.RWMutex
	tenants map[string]*tenant
}

// New returns an empty Store. o may be nil.
func New(o *Options) *Store {
	s := &Store{pageBytes: 1 << 20, tenants: make(map[string]*tenant)}
	if o != nil && o.PageBytes > 0 {
		s.pageBytes = o.PageBytes
	}
	return s
}

type tenant struct {
	runs map[string]*run
	docs map[psych.Digest][]byte
	refs map[string]psych.Ref
}

// A run is what is kept of a Run. Without a header it may have a log all the
// same, since Append does not look at the header.
type run struct {
	live  bool // has a header: info is valid
	info  psych.RunInfo
	token string       // of the Claim of the current epoch; "" when it was given back
	notes []psych.Note // by Time, then ID, then Kind
	log   []batch      // by seq

	tombstone bool
	deletedAt time.Time
	purgeAt   time.Time // when the tombstone is due
}

// A batch is one append. It never changes, so that it is read without the lock.
type batch struct {
	first, last uint64
	bytes       int
	token       string
	entries     []psych.Entry
}

// find returns the run of key, or nil.
func (s *Store) find(key psych.RunKey) *run {
	if t := s.tenants[key.Tenant]; t != nil {
		return t.runs[key.RunID]
	}
	return nil
}

// header returns the run of key if it has a header.
func (s *Store) header(key psych.RunKey) (*run, error) {
	if r := s.find(key); r != nil && r.live {
		return r, nil
	}
	return nil, psych.ErrNotFound
}

func (s *Store) tenant(name string) *tenant {
	t := s.tenants[name]
	if t == nil {
		t = &tenant{runs: make(map[string]*run), docs: make(map[psych.Digest][]byte), refs: make(map[string]psych.Ref)}
		s.tenants[name] = t
	}
	return t
}

// run returns the run of key, made if need be.
func (s *Store) run(key psych.RunKey) *run {
	t := s.tenant(key.Tenant)
	r := t.runs[key.RunID]
	if r == nil {
		r = new(run)
		t.runs[key.RunID] = r
	}
	return r
}

// check is what every method that takes a key does first.
func check(ctx context.Context, key psych.RunKey) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return key.Check()
}

// checkTenant is check for the methods that take a tenant.
func checkTenant(ctx context.Context, tenant string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return psych.CheckTenant(tenant)
}

func wrap(op string, key psych.RunKey, err error) error {
	return fmt.Errorf("memory: %s %s: %w", op, key, err)
}

// micro is t as it is kept.
func micro(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// Append implements [psych.Log].
func (s *Store) Append(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
	err := check(ctx, key)
	if err == nil {
		err = b.Check(after)
	}
	if err != nil {
		return psych.Pos{}, wrap("append", key, err)
	}
	n := newBatch(b)

	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.run(key)
	head := r.head()
	if after.Seq == head {
		r.log = append(r.log, n)
		return psych.Pos{Seq: n.last}, nil
	}
	if i := r.behind(after.Seq); i < len(r.log) && r.log[i].first == after.Seq+1 && r.log[i].token == b.Token {
		return psych.Pos{Seq: r.log[i].last}, nil
	}
	return psych.Pos{}, wrap("append", key, fmt.Errorf("behind seq %d: the head is %d: %w", after.Seq, head, psych.ErrConflict))
}

// newBatch copies b, all of its data into one piece: it lives and dies as one.
func newBatch(b psych.Batch) batch {
	n := batch{
		first:   b.Entries[0].Seq,
		last:    b.Entries[len(b.Entries)-1].Seq,
		token:   b.Token,
		entries: slices.Clone(b.Entries),
	}
	for _, e := range b.Entries {
		n.bytes += len(e.Data)
	}
	data := make([]byte, 0, n.bytes)
	for i, e := range n.entries {
		from := len(data)
		data = append(data, e.Data...)
		n.entries[i].Data = data[from:len(data):len(data)]
		n.entries[i].Time = micro(e.Time)
	}
	return n
}

func (r *run) head() uint64 {
	if len(r.log) == 0 {
		return 0
	}
	return r.log[len(r.log)-1].last
}

// behind returns the index of the first batch with entries behind seq.
func (r *run) behind(seq uint64) int {
	return sort.Search(len(r.log), func(i int) bool { return r.log[i].last > seq })
}

// Read implements [psych.Log].
func (s *Store) Read(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
	err := check(ctx, key)
	if err == nil && limit < 1 {
		err = fmt.Errorf("limit %d: want at least 1: %w", limit, psych.ErrInvalid)
	}
	if err != nil {
		return psych.Page{}, wrap("read", key, err)
	}
	log, err := s.behind(key, after.Seq)
	if err != nil {
		return psych.Page{}, wrap("read", key, err)
	}
	if len(log) == 0 {
		return psych.Page{Next: after}, nil
	}

	skip := 0
	if log[0].first <= after.Seq {
		skip = int(after.Seq - log[0].first + 1)
	}
	batches, entries, bytes := 0, -skip, 0
	for batches < len(log) && (batches == 0 || entries < limit && bytes < s.pageBytes) {
		entries += len(log[batches].entries)
		bytes += log[batches].bytes
		batches++
	}
	page := psych.Page{
		Entries: make([]psych.Entry, 0, entries),
		Next:    psych.Pos{Seq: log[batches-1].last},
		More:    batches < len(log),
	}
	for _, b := range log[:batches] {
		for _, e := range b.entries[skip:] {
			e.Data = slices.Clone(e.Data)
			page.Entries = append(page.Entries, e)
		}
		skip = 0
	}
	return page, nil
}

// behind returns the batches with entries behind seq, as of now.
func (s *Store) behind(key psych.RunKey, seq uint64) ([]batch, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, err := s.header(key)
	if err != nil {
		return nil, err
	}
	return r.log[r.behind(seq):], nil
}

// Head implements [psych.Log].
func (s *Store) Head(ctx context.Context, key psych.RunKey) (psych.Pos, error) {
	if err := check(ctx, key); err != nil {
		return psych.Pos{}, wrap("head", key, err)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, err := s.header(key)
	if err != nil {
		return psych.Pos{}, wrap("head", key, err)
	}
	return psych.Pos{Seq: r.head()}, nil
}

// copyInfo returns info as it is kept and returned: times to the microsecond,
// and no memory shared.
func copyInfo(info psych.RunInfo) psych.RunInfo {
	info.Scope.Labels = maps.Clone(info.Scope.Labels)
	info.CreatedAt = micro(info.CreatedAt)
	info.ExpiresAt = micro(info.ExpiresAt)
	info.Until = micro(info.Until)
	info.DueAt = micro(info.DueAt)
	return info
}

// CreateRun implements [psych.Runs].
func (s *Store) CreateRun(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error) {
	if err := check(ctx, info.Key); err != nil {
		return psych.RunInfo{}, false, wrap("create", info.Key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.run(info.Key)
	switch {
	case r.tombstone:
		return psych.RunInfo{}, false, wrap("create", info.Key, psych.ErrNotFound)
	case !r.live:
		r.live, r.info = true, copyInfo(info)
		return copyInfo(r.info), true, nil
	case r.info.Request != info.Request:
		return psych.RunInfo{}, false, wrap("create", info.Key, fmt.Errorf("it exists for another request: %w", psych.ErrConflict))
	}
	return copyInfo(r.info), false, nil
}

// GetRun implements [psych.Runs].
func (s *Store) GetRun(ctx context.Context, key psych.RunKey) (psych.RunInfo, error) {
	if err := check(ctx, key); err != nil {
		return psych.RunInfo{}, wrap("get", key, err)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, err := s.header(key)
	if err != nil {
		return psych.RunInfo{}, wrap("get", key, err)
	}
	return copyInfo(r.info), nil
}

func compareNotes(a, b psych.Note) int {
	return cmp.Or(a.Time.Compare(b.Time), strings.Compare(a.ID, b.ID), strings.Compare(string(a.Kind), string(b.Kind)))
}

func copyNote(n psych.Note) psych.Note {
	n.Time = micro(n.Time)
	n.Data = slices.Clone(n.Data)
	return n
}

// Post implements [psych.Runs]. A note whose Kind and ID wait already is kept
// as it was first posted.
func (s *Store) Post(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
	err := check(ctx, key)
	if err == nil {
		err = n.Check()
	}
	if err == nil && due.IsZero() {
		err = fmt.Errorf("note %q: due is zero: want a time: %w", n.ID, psych.ErrInvalid)
	}
	if err != nil {
		return wrap("post", key, err)
	}
	n, due = copyNote(n), micro(due)

	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.header(key)
	if err != nil {
		return wrap("post", key, err)
	}
	waits := slices.ContainsFunc(r.notes, func(o psych.Note) bool { return o.ID == n.ID && o.Kind == n.Kind })
	full := !waits && len(r.notes) >= psych.MaxPending
	if !waits && !full {
		i, _ := slices.BinarySearchFunc(r.notes, n, compareNotes)
		r.notes = slices.Insert(r.notes, i, n)
	}
	if r.info.DueAt.IsZero() || due.Before(r.info.DueAt) {
		r.info.DueAt = due
	}
	if full {
		return wrap("post", key, fmt.Errorf("note %q: %d notes wait: %w", n.ID, len(r.notes), psych.ErrInboxFull))
	}
	r.info.Posted++
	return nil
}

// Pending implements [psych.Runs].
func (s *Store) Pending(ctx context.Context, key psych.RunKey) ([]psych.Note, error) {
	if err := check(ctx, key); err != nil {
		return nil, wrap("pending", key, err)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, err := s.header(key)
	if err != nil {
		return nil, wrap("pending", key, err)
	}
	if len(r.notes) == 0 {
		return nil, nil
	}
	notes := make([]psych.Note, len(r.notes))
	for i, n := range r.notes {
		notes[i] = copyNote(n)
	}
	return notes, nil
}

// Settle implements [psych.Runs].
func (s *Store) Settle(ctx context.Context, key psych.RunKey, notes []psych.Note) error {
	if err := check(ctx, key); err != nil {
		return wrap("settle", key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.find(key)
	if r == nil {
		return nil
	}
	for _, n := range notes {
		n.Time = micro(n.Time)
		if i, ok := slices.BinarySearchFunc(r.notes, n, compareNotes); ok {
			r.notes = slices.Delete(r.notes, i, i+1)
		}
	}
	return nil
}

// Claim implements [psych.Runs].
func (s *Store) Claim(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
	err := check(ctx, key)
	if err == nil {
		err = psych.CheckClaim(owner, token, ttl)
	}
	if err != nil {
		return psych.Lease{}, wrap("claim", key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.header(key)
	if err != nil {
		return psych.Lease{}, wrap("claim", key, err)
	}
	h := &r.info
	if r.token != token {
		if h.Owner != "" && h.Until.After(now) {
			return psych.Lease{}, wrap("claim", key, fmt.Errorf("%q holds it until %v: %w", h.Owner, h.Until, psych.ErrLeaseHeld))
		}
		r.token = token
		h.Owner, h.Until = owner, micro(now.Add(ttl))
		h.Epoch++
	}
	return psych.Lease{Key: key, Epoch: h.Epoch, Until: h.Until, Posted: h.Posted, Info: copyInfo(*h)}, nil
}

// free takes the lease from its owner, without a trace of its token.
func (r *run) free() {
	r.info.Owner, r.info.Until, r.token = "", time.Time{}, ""
}

// Renew implements [psych.Runs].
func (s *Store) Renew(ctx context.Context, l psych.Lease, now time.Time, ttl time.Duration) (psych.Lease, error) {
	err := check(ctx, l.Key)
	if err == nil {
		err = psych.CheckTTL(ttl)
	}
	if err != nil {
		return psych.Lease{}, wrap("renew", l.Key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.header(l.Key)
	if err != nil {
		return psych.Lease{}, wrap("renew", l.Key, err)
	}
	h := &r.info
	if h.Epoch != l.Epoch || h.Owner == "" {
		return psych.Lease{}, wrap("renew", l.Key, fmt.Errorf("epoch %d: the current one is %d, held by %q: %w", l.Epoch, h.Epoch, h.Owner, psych.ErrLeaseLost))
	}
	if until := micro(now.Add(ttl)); until.After(h.Until) {
		h.Until = until
	}
	l.Until, l.Posted = h.Until, h.Posted
	l.Info.Scope.Labels = maps.Clone(l.Info.Scope.Labels)
	return l, nil
}

// Release implements [psych.Runs].
func (s *Store) Release(ctx context.Context, l psych.Lease, dueAt time.Time, status string) error {
	if err := check(ctx, l.Key); err != nil {
		return wrap("release", l.Key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.header(l.Key)
	if err != nil {
		return wrap("release", l.Key, err)
	}
	switch h := &r.info; {
	case h.Epoch != l.Epoch:
		return wrap("release", l.Key, fmt.Errorf("epoch %d: the current one is %d: %w", l.Epoch, h.Epoch, psych.ErrLeaseLost))
	case h.Owner == "":
		return nil
	case h.Posted != l.Posted:
		return wrap("release", l.Key, fmt.Errorf("%d posts since the last look: %w", h.Posted-l.Posted, psych.ErrConflict))
	}
	r.free()
	r.info.DueAt, r.info.Status = micro(dueAt), status
	return nil
}

// Defer implements [psych.Runs].
func (s *Store) Defer(ctx context.Context, info psych.RunInfo, now, to time.Time) error {
	err := check(ctx, info.Key)
	if err == nil && !to.After(now) {
		err = fmt.Errorf("to %v: want a time after %v: %w", to, now, psych.ErrInvalid)
	}
	if err != nil {
		return wrap("defer", info.Key, err)
	}
	info = copyInfo(info)
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.header(info.Key)
	if err != nil {
		return wrap("defer", info.Key, err)
	}
	h := &r.info
	if h.Epoch != info.Epoch || h.Owner != info.Owner || !h.Until.Equal(info.Until) || !h.DueAt.Equal(info.DueAt) || h.Posted != info.Posted {
		return wrap("defer", info.Key, fmt.Errorf("the header has changed: %w", psych.ErrConflict))
	}
	expired := h.Owner != "" && !h.Until.After(now)
	if !expired && !passed(h.DueAt, now) {
		return wrap("defer", info.Key, fmt.Errorf("neither due nor with an expired lease at %v: %w", now, psych.ErrConflict))
	}
	if expired {
		r.free()
	}
	h.DueAt = micro(to)
	return nil
}

// passed reports whether t is a time and not after now.
func passed(t, now time.Time) bool { return !t.IsZero() && !t.After(now) }

// DeleteRun implements [psych.Runs].
func (s *Store) DeleteRun(ctx context.Context, key psych.RunKey, now time.Time) error {
	if err := check(ctx, key); err != nil {
		return wrap("delete", key, err)
	}
	now = micro(now)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.run(key)
	if r.tombstone {
		r.log, r.notes = nil, nil
		return nil
	}
	*r = run{tombstone: true, deletedAt: now, purgeAt: now.Add(psych.MaxLease)}
	return nil
}

// PurgeRun implements [psych.Runs]. The last purge removes the tombstone.
func (s *Store) PurgeRun(ctx context.Context, key psych.RunKey, now time.Time) error {
	if err := check(ctx, key); err != nil {
		return wrap("purge", key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.find(key)
	if r == nil || !r.tombstone {
		return nil
	}
	r.log, r.notes = nil, nil
	last := r.deletedAt.Add(psych.TombstoneLife)
	switch {
	case !now.Before(last):
		delete(s.tenants[key.Tenant].runs, key.RunID)
	case !now.Before(r.purgeAt):
		r.purgeAt = last
	}
	return nil
}

// Cursors name the place of the last thing listed, behind a letter for the
// list, so that one list's cursor is not taken for the other's.
const (
	dueCursor  = "d"
	listCursor = "l"
	refCursor  = "r"
)

func badCursor(cursor string) error {
	return fmt.Errorf("cursor %.80q: want one that this list returned: %w", cursor, psych.ErrInvalid)
}

// Due implements [psych.Index].
func (s *Store) Due(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
	from, err := parseDueCursor(cursor)
	if ctx.Err() != nil {
		err = ctx.Err()
	} else if err == nil {
		err = psych.CheckLimit(limit)
	}
	if err != nil {
		return nil, "", fmt.Errorf("memory: due: %w", err)
	}
	var keys []psych.RunKey
	s.mu.RLock()
	for name, t := range s.tenants {
		for id, r := range t.runs {
			if key := (psych.RunKey{Tenant: name, RunID: id}); r.due(now) && (cursor == "" || compareKeys(key, from) > 0) {
				keys = append(keys, key)
			}
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(keys, compareKeys)
	if len(keys) <= limit {
		return keys, "", nil
	}
	keys = slices.Clip(keys[:limit])
	return keys, formatDueCursor(keys[limit-1]), nil
}

func (r *run) due(now time.Time) bool {
	if r.tombstone {
		return passed(r.purgeAt, now)
	}
	return r.live && (passed(r.info.DueAt, now) || r.info.Owner != "" && passed(r.info.Until, now) || passed(r.info.ExpiresAt, now))
}

func compareKeys(a, b psych.RunKey) int {
	return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.RunID, b.RunID))
}

func formatDueCursor(last psych.RunKey) string {
	return dueCursor + last.RunID + base64.RawURLEncoding.EncodeToString([]byte(last.Tenant))
}

func parseDueCursor(cursor string) (psych.RunKey, error) {
	if cursor == "" {
		return psych.RunKey{}, nil
	}
	if s, ok := strings.CutPrefix(cursor, dueCursor); ok && len(s) > 32 {
		if name, err := base64.RawURLEncoding.Strict().DecodeString(s[32:]); err == nil {
			if key := (psych.RunKey{Tenant: string(name), RunID: s[:32]}); key.Check() == nil && formatDueCursor(key) == cursor {
				return key, nil
			}
		}
	}
	return psych.RunKey{}, badCursor(cursor)
}

// ListRuns implements [psych.Index].
func (s *Store) ListRuns(ctx context.Context, tenant, cursor string, limit int) ([]psych.RunInfo, string, error) {
	err := checkTenant(ctx, tenant)
	if err == nil {
		err = psych.CheckLimit(limit)
	}
	var from psych.RunInfo
	if err == nil {
		from, err = parseListCursor(cursor)
	}
	if err != nil {
		return nil, "", fmt.Errorf("memory: list %q: %w", tenant, err)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.tenants[tenant]
	if t == nil {
		return nil, "", nil
	}
	var runs []*psych.RunInfo
	for _, r := range t.runs {
		if r.live && (cursor == "" || compareAge(&r.info, &from) > 0) {
			runs = append(runs, &r.info)
		}
	}
	slices.SortFunc(runs, compareAge)
	next := ""
	if len(runs) > limit {
		runs = runs[:limit]
		next = formatListCursor(runs[limit-1])
	}
	infos := make([]psych.RunInfo, len(runs))
	for i, r := range runs {
		infos[i] = copyInfo(*r)
	}
	return infos, next, nil
}

// compareAge orders a tenant's Runs newest first; the id decides between equals.
func compareAge(a, b *psych.RunInfo) int {
	return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), strings.Compare(a.Key.RunID, b.Key.RunID))
}

func formatListCursor(info *psych.RunInfo) string {
	return listCursor + info.Key.RunID + strconv.FormatInt(info.CreatedAt.UnixMicro(), 10)
}

func parseListCursor(cursor string) (psych.RunInfo, error) {
	if cursor == "" {
		return psych.RunInfo{}, nil
	}
	if s, ok := strings.CutPrefix(cursor, listCursor); ok && len(s) > 32 {
		if micros, err := strconv.ParseInt(s[32:], 10, 64); err == nil {
			// A number has more than one spelling, and ListRuns returns one.
			info := psych.RunInfo{Key: psych.RunKey{RunID: s[:32]}, CreatedAt: time.UnixMicro(micros).UTC()}
			if formatListCursor(&info) == cursor {
				return info, nil
			}
		}
	}
	return psych.RunInfo{}, badCursor(cursor)
}

// PutDoc implements [psych.Docs].
func (s *Store) PutDoc(ctx context.Context, tenant string, d psych.Digest, data []byte) error {
	err := checkTenant(ctx, tenant)
	if sum := psych.Digest(sha256.Sum256(data)); err == nil && sum != d {
		err = fmt.Errorf("the data has digest %s: %w", sum, psych.ErrInvalid)
	}
	if err != nil {
		return fmt.Errorf("memory: put doc %q/%s: %w", tenant, d, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if docs := s.tenant(tenant).docs; docs[d] == nil {
		docs[d] = append([]byte{}, data...) // not nil, even if empty
	}
	return nil
}

// GetDoc implements [psych.Docs].
func (s *Store) GetDoc(ctx context.Context, tenant string, d psych.Digest) ([]byte, error) {
	err := checkTenant(ctx, tenant)
	var doc []byte
	if err == nil {
		s.mu.RLock()
		if t := s.tenants[tenant]; t != nil {
			doc = t.docs[d]
		}
		s.mu.RUnlock()
		if doc == nil {
			err = psych.ErrNotFound
		}
	}
	if err != nil {
		return nil, fmt.Errorf("memory: get doc %q/%s: %w", tenant, d, err)
	}
	return slices.Clone(doc), nil
}
