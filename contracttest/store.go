package contracttest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// StoreRules returns the rules of [psych.Store]. They run beside other users
// of the backend, a sweep included: whatever they make due is due an hour from
// now and later, and each rule leaves nothing but documents behind, and refs
// that are never due.
func StoreRules() []Rule[psych.Store] {
	return slices.Concat(storeRules(), logRules(), runsRules(), inboxRules(), leaseRules(), tombstoneRules(), indexRules(), docsRules(), refsRules())
}

// TestStore runs [StoreRules] as subtests. open is called once a rule and
// cleans up with t.Cleanup. o may be nil.
func TestStore(t *testing.T, open func(t *testing.T) *Fixture[psych.Store], o *Options) {
	t.Helper()
	test(t, StoreRules(), open, o)
}

// storeRule makes a Rule of a body that ends at the first broken promise, by a
// panic that does not leave the rule.
func storeRule(name, promise string, body func(w *world)) Rule[psych.Store] {
	return Rule[psych.Store]{Name: name, Promise: promise, Check: func(ctx context.Context, f *Fixture[psych.Store]) (err error) {
		w := &world{
			ctx:     ctx,
			f:       f,
			Store:   f.Port,
			tenant:  f.Tenant(),
			now:     time.Now().UTC().Truncate(time.Second).Add(time.Hour),
			cleanup: make(map[psych.RunKey]bool),
			refKeys: make(map[psych.RefKey]bool),
		}
		defer w.clean()
		defer func() {
			switch r := recover().(type) {
			case nil:
			case broken:
				err = r.error
			default:
				panic(r)
			}
		}()
		body(w)
		return nil
	}}
}

func needs(n Need, r Rule[psych.Store]) Rule[psych.Store] {
	r.Needs = n
	return r
}

// broken carries the error of a rule up to its Check.
type broken struct{ error }

// A world is what one rule acts in. Its methods end the rule when what they do
// fails; they are for the rule's own goroutine alone.
type world struct {
	psych.Store
	ctx     context.Context
	f       *Fixture[psych.Store]
	tenant  string
	now     time.Time // an hour from now, to the second
	other   psych.Store
	cleanup map[psych.RunKey]bool
	refKeys map[psych.RefKey]bool
}

// clean removes what the rule left, whether it held or not.
func (w *world) clean() {
	ctx := context.WithoutCancel(w.ctx)
	for key := range w.cleanup {
		// Best effort: a store that breaks a rule may break here as well.
		_ = w.f.Port.DeleteRun(ctx, key, w.now)
		_ = w.f.Port.PurgeRun(ctx, key, w.now.Add(psych.MaxLease))
		_ = w.f.Port.PurgeRun(ctx, key, w.now.Add(2*psych.TombstoneLife))
	}
	for key := range w.refKeys {
		refs, _ := w.f.Port.GetRefs(ctx, key.Tenant, []string{key.Name})
		if old, ok := refs[key.Name]; ok && !old.After.IsZero() {
			_ = w.f.Port.SwapRef(ctx, key.Tenant, key.Name, old, psych.Ref{Doc: old.Doc, Seq: old.Seq + 1})
		}
	}
}

func (w *world) fail(format string, args ...any) { panic(broken{fmt.Errorf(format, args...)}) }

// check ends the rule unless ok.
func (w *world) check(ok bool, format string, args ...any) {
	if !ok {
		w.fail(format, args...)
	}
}

// ok ends the rule if err is one.
func (w *world) ok(err error, what string, args ...any) {
	if err != nil {
		w.fail("%s: %w", fmt.Sprintf(what, args...), err)
	}
}

// is ends the rule unless err matches target.
func (w *world) is(err, target error, what string, args ...any) {
	if !errors.Is(err, target) {
		w.fail("%s: got error %v, want one that matches %q", fmt.Sprintf(what, args...), err, target)
	}
}

// second returns an independent handle on the backend, if there is one.
func (w *world) second() psych.Store {
	if w.other == nil {
		s, err := w.f.second(w.ctx)
		w.ok(err, "second handle")
		w.other = s
	}
	return w.other
}

// reopen goes on with what is durable.
func (w *world) reopen() {
	w.ok(w.f.reopen(w.ctx), "reopen")
	w.Store, w.other = w.f.Port, nil
}

// eventually polls an index, which may lag, a bounded number of times.
func (w *world) eventually(what string, ok func() bool) {
	pause := 5 * time.Millisecond
	for range 12 {
		if ok() {
			return
		}
		select {
		case <-time.After(pause):
		case <-w.ctx.Done():
			w.fail("%s: %w", what, w.ctx.Err())
		}
		pause *= 2
	}
	w.fail("%s: not even after many tries", what)
}

// key returns the key of a Run that is not there, in the rule's tenant.
func (w *world) key() psych.RunKey { return w.keyIn(w.tenant) }

func (w *world) keyIn(tenant string) psych.RunKey {
	return w.keep(psych.RunKey{Tenant: tenant, RunID: hex.EncodeToString(random(16))})
}

// keep marks key for removal at the end.
func (w *world) keep(key psych.RunKey) psych.RunKey {
	w.cleanup[key] = true
	return key
}

// header returns a header as the engine would create it: open, with nothing due.
func (w *world) header(key psych.RunKey) psych.RunInfo {
	return psych.RunInfo{
		Key:         key,
		Scope:       psych.Scope{Tenant: key.Tenant, Principal: "p", Labels: map[string]string{"team": "blue"}},
		Version:     psych.Digest(random(32)),
		Incarnation: rand.Text(),
		Request:     psych.Digest(random(32)),
		CreatedAt:   w.now,
		Status:      psych.StatusOpen,
	}
}

func (w *world) create(info psych.RunInfo) psych.RunInfo {
	got, created, err := w.CreateRun(w.ctx, info)
	w.ok(err, "CreateRun %s", info.Key)
	w.check(created, "CreateRun %s: created is false for a new Run", info.Key)
	return got
}

// run creates a Run with nothing due.
func (w *world) run() psych.RunKey { return w.create(w.header(w.key())).Key }

func (w *world) get(key psych.RunKey) psych.RunInfo {
	info, err := w.GetRun(w.ctx, key)
	w.ok(err, "GetRun %s", key)
	return info
}

// unchanged ends the rule unless the header of before is as it was.
func (w *world) unchanged(before psych.RunInfo, what string) {
	if d := infoDiff(w.get(before.Key), before); d != "" {
		w.fail("%s: the header changed: %s", what, d)
	}
}

// infoDiff names the first field in which two headers differ, or "".
func infoDiff(got, want psych.RunInfo) string {
	differs := func(field string, got, want any) string { return fmt.Sprintf("%s is %v, want %v", field, got, want) }
	switch {
	case got.Key != want.Key:
		return differs("Key", got.Key, want.Key)
	case got.Scope.Tenant != want.Scope.Tenant || got.Scope.Principal != want.Scope.Principal || !maps.Equal(got.Scope.Labels, want.Scope.Labels):
		return differs("Scope", got.Scope, want.Scope)
	case got.Version != want.Version:
		return differs("Version", got.Version, want.Version)
	case got.Incarnation != want.Incarnation:
		return differs("Incarnation", got.Incarnation, want.Incarnation)
	case got.Request != want.Request:
		return differs("Request", got.Request, want.Request)
	case !got.CreatedAt.Equal(want.CreatedAt):
		return differs("CreatedAt", got.CreatedAt, want.CreatedAt)
	case !got.ExpiresAt.Equal(want.ExpiresAt):
		return differs("ExpiresAt", got.ExpiresAt, want.ExpiresAt)
	case got.Status != want.Status:
		return differs("Status", got.Status, want.Status)
	case got.Epoch != want.Epoch:
		return differs("Epoch", got.Epoch, want.Epoch)
	case got.Owner != want.Owner:
		return differs("Owner", got.Owner, want.Owner)
	case want.Owner != "" && !got.Until.Equal(want.Until):
		return differs("Until", got.Until, want.Until)
	case !got.DueAt.Equal(want.DueAt):
		return differs("DueAt", got.DueAt, want.DueAt)
	case got.Posted != want.Posted:
		return differs("Posted", got.Posted, want.Posted)
	}
	return ""
}

// batch makes an append of entries behind seq, with a token of its own.
func (w *world) batch(seq uint64, data ...[]byte) psych.Batch {
	b := psych.Batch{Token: rand.Text()}
	for i, d := range data {
		b.Entries = append(b.Entries, psych.Entry{
			Seq:  seq + 1 + uint64(i),
			Kind: psych.KindUserMessage,
			Time: w.now.Add(time.Duration(seq+uint64(i)) * time.Microsecond),
			Data: d,
		})
	}
	return b
}

// small makes an append of n entries with little, distinct data.
func (w *world) small(seq uint64, n int) psych.Batch {
	data := make([][]byte, n)
	for i := range data {
		data[i] = strconv.AppendUint([]byte("record "), seq+1+uint64(i), 10)
	}
	return w.batch(seq, data...)
}

func (w *world) append(key psych.RunKey, after psych.Pos, b psych.Batch) psych.Pos {
	pos, err := w.Append(w.ctx, key, after, b)
	w.ok(err, "Append behind seq %d", after.Seq)
	last := b.Entries[len(b.Entries)-1].Seq
	w.check(pos.Seq == last, "Append behind seq %d returned seq %d, want that of its last entry, %d", after.Seq, pos.Seq, last)
	return pos
}

// log appends batches of the given sizes to an empty log, and returns what was
// appended and the boundary behind each append; the first is the zero Pos.
func (w *world) log(key psych.RunKey, sizes ...int) ([]psych.Entry, []psych.Pos) {
	var all []psych.Entry
	bounds := []psych.Pos{{}}
	for i, n := range sizes {
		b := w.small(bounds[i].Seq, n)
		bounds = append(bounds, w.append(key, bounds[i], b))
		all = append(all, b.Entries...)
	}
	return all, bounds
}

func (w *world) read(key psych.RunKey, after psych.Pos, limit int) psych.Page {
	page, err := w.Read(w.ctx, key, after, limit)
	w.ok(err, "Read behind seq %d, limit %d", after.Seq, limit)
	return page
}

// readAll follows pages to the head, and holds each page to what every page
// promises.
func (w *world) readAll(key psych.RunKey, after psych.Pos, limit int) []psych.Entry {
	var all []psych.Entry
	for {
		page := w.read(key, after, limit)
		seq := after.Seq
		for _, e := range page.Entries {
			seq++
			w.check(e.Seq == seq, "Read behind seq %d: got seq %d where %d follows", after.Seq, e.Seq, seq)
		}
		w.check(page.Next.Seq == seq, "Read behind seq %d: Next is seq %d, want that of the last entry, %d", after.Seq, page.Next.Seq, seq)
		all = append(all, page.Entries...)
		if !page.More {
			return all
		}
		w.check(len(page.Entries) > 0, "Read behind seq %d: an empty page says that there is more", after.Seq)
		after = page.Next
	}
}

// holds ends the rule unless the log of key is want.
func (w *world) holds(key psych.RunKey, want []psych.Entry, what string) {
	if d := entriesDiff(w.readAll(key, psych.Pos{}, 1000), want); d != "" {
		w.fail("%s: the log is not what was appended: %s", what, d)
	}
}

// entriesDiff names the first difference, or is "".
func entriesDiff(got, want []psych.Entry) string {
	for i := range min(len(got), len(want)) {
		g, e := got[i], want[i]
		switch {
		case g.Seq != e.Seq:
			return fmt.Sprintf("entry %d has seq %d, want %d", i, g.Seq, e.Seq)
		case g.Kind != e.Kind:
			return fmt.Sprintf("seq %d has kind %q, want %q", e.Seq, g.Kind, e.Kind)
		case !g.Time.Equal(e.Time):
			return fmt.Sprintf("seq %d has time %v, want %v", e.Seq, g.Time, e.Time)
		case !bytes.Equal(g.Data, e.Data):
			return fmt.Sprintf("seq %d has data %.60q (%d bytes), want %.60q (%d bytes)", e.Seq, g.Data, len(g.Data), e.Data, len(e.Data))
		}
	}
	if len(got) != len(want) {
		return fmt.Sprintf("%d entries, want %d", len(got), len(want))
	}
	return ""
}

func (w *world) note(id string, t time.Time) psych.Note {
	return psych.Note{ID: id, Kind: psych.KindUserMessage, Time: t, Data: []byte("note " + id)}
}

func (w *world) post(key psych.RunKey, n psych.Note, due time.Time) {
	w.ok(w.Post(w.ctx, key, n, due), "Post %q", n.ID)
}

func (w *world) pending(key psych.RunKey) []psych.Note {
	notes, err := w.Pending(w.ctx, key)
	w.ok(err, "Pending")
	return notes
}

// waits ends the rule unless exactly the notes of want wait, in that order.
func (w *world) waits(key psych.RunKey, what string, want ...psych.Note) {
	got := w.pending(key)
	w.check(len(got) == len(want), "%s: %d notes wait, want %d", what, len(got), len(want))
	for i, g := range got {
		n := want[i]
		w.check(g.ID == n.ID && g.Kind == n.Kind && g.Time.Equal(n.Time) && bytes.Equal(g.Data, n.Data),
			"%s: note %d is %q of kind %q at %v with %d bytes, want %q of kind %q at %v with %d bytes",
			what, i, g.ID, g.Kind, g.Time, len(g.Data), n.ID, n.Kind, n.Time, len(n.Data))
	}
}

func (w *world) claim(key psych.RunKey, now time.Time, ttl time.Duration) psych.Lease {
	l, err := w.Claim(w.ctx, key, "owner", rand.Text(), now, ttl)
	w.ok(err, "Claim")
	return l
}

func (w *world) release(l psych.Lease, due time.Time) {
	w.ok(w.Release(w.ctx, l, due, psych.StatusCompleted), "Release")
}

func (w *world) renew(l psych.Lease, now time.Time, ttl time.Duration) psych.Lease {
	r, err := w.Renew(w.ctx, l, now, ttl)
	w.ok(err, "Renew")
	return r
}

func (w *world) delete(key psych.RunKey, now time.Time) {
	w.ok(w.DeleteRun(w.ctx, key, now), "DeleteRun")
}

func (w *world) purge(key psych.RunKey, now time.Time) {
	w.ok(w.PurgeRun(w.ctx, key, now), "PurgeRun")
}

// due lists by pages what is due, and returns how often each of keys is there.
func (w *world) due(now time.Time, limit int, keys ...psych.RunKey) []int {
	counts := make([]int, len(keys))
	seen := make(map[string]bool)
	for cursor := ""; ; {
		page, next, err := w.Due(w.ctx, now, cursor, limit)
		w.ok(err, "Due")
		w.check(len(page) <= limit, "Due: %d keys, more than the limit %d", len(page), limit)
		for i, key := range keys {
			for _, k := range page {
				if k == key {
					counts[i]++
				}
			}
		}
		if next == "" {
			return counts
		}
		w.check(!seen[next], "Due: the cursor %.80q came twice: the list does not advance", next)
		seen[next] = true
		cursor = next
	}
}

func (w *world) isDue(now time.Time, key psych.RunKey) bool { return w.due(now, 500, key)[0] > 0 }

// list lists a tenant's Runs by pages.
func (w *world) list(tenant string, limit int) []psych.RunInfo {
	var all []psych.RunInfo
	seen := make(map[string]bool)
	for cursor := ""; ; {
		page, next, err := w.ListRuns(w.ctx, tenant, cursor, limit)
		w.ok(err, "ListRuns")
		w.check(len(page) <= limit, "ListRuns: %d Runs, more than the limit %d", len(page), limit)
		all = append(all, page...)
		if next == "" {
			return all
		}
		w.check(!seen[next], "ListRuns: the cursor %.80q came twice: the list does not advance", next)
		seen[next] = true
		cursor = next
	}
}

// contend calls f n times at once, on two handles where there are two,
// and returns what each call returned.
func contend[T any](w *world, n int, f func(s psych.Store, i int) (T, error)) ([]T, []error) {
	handles := []psych.Store{w.Store, w.second()}
	results, errs := make([]T, n), make([]error, n)
	start := make(chan struct{})
	var g sync.WaitGroup
	for i := range n {
		g.Go(func() {
			<-start
			results[i], errs[i] = f(handles[i%2], i)
		})
	}
	close(start)
	g.Wait()
	return results, errs
}

// winner ends the rule unless one call succeeded and the others failed with
// target, and returns which.
func (w *world) winner(errs []error, target error, what string) int {
	win := -1
	for i, err := range errs {
		if err != nil {
			w.is(err, target, "%s: one that did not win", what)
			continue
		}
		w.check(win < 0, "%s: two of %d concurrent calls won", what, len(errs))
		win = i
	}
	w.check(win >= 0, "%s: none of %d concurrent calls won", what, len(errs))
	return win
}

// contenders is how many callers meet in a rule of contention.
const contenders = 16

// random returns n random bytes, which no adapter can compress.
func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

// allBytes holds every byte value.
func allBytes() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}
