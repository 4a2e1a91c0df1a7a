package psych

import (
	"cmp"
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// catalogs reads catalogues, keeps those used last in memory, and writes them.
// A catalogue is a manifest over documents of definitions, in Docs, under one
// Ref, whose After is when the listing began, plus the time for which it holds
// and a jitter: so that ref and manifest tell when it began.
type catalogs struct {
	store interface {
		Docs
		Refs
	}
	now func() time.Time
	log *slog.Logger

	mu      sync.Mutex
	known   lru[catalogKey, *knownCatalog]
	damaged map[docKey]bool // documents that manifests name and that are gone

	manifests docCache[storedCatalog]
	documents docCache[map[string]RemoteTool]
}

// A knownCatalog is what this process knows of one.
type knownCatalog struct {
	ref    Ref
	start  time.Time // when the listing began that ref tells of
	until  time.Time // when the time of the catalogue is over
	usable bool      // there is a ref, and its manifest can be used

	begun   time.Time // when a listing last began in this process
	changed bool      // the server said so, and no listing has begun since
	syncs   int       // how many have begun
	running *catalogSync
}

// A storedCatalog is a manifest that was read: err says why it can't be used.
type storedCatalog struct {
	*catalog
	err error
}

type catalogSync struct {
	number  int
	done    chan struct{}
	listed  bool
	ended   bool // its caller's context ended
	catalog *catalog
	err     error
}

func newCatalogs(store interface {
	Docs
	Refs
}, now func() time.Time, log *slog.Logger) *catalogs {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cs := &catalogs{store: store, now: now, log: log, damaged: map[docKey]bool{}}
	cs.known.limit = maxKnownCatalogs
	cs.manifests.kept.limit, cs.documents.kept.limit = catalogCache, catalogCache
	return cs
}

// entry finds or adds what is known of key; mu is held.
func (cs *catalogs) entry(key catalogKey) *knownCatalog {
	k, ok := cs.known.get(key)
	if !ok {
		k = &knownCatalog{}
		cs.known.put(key, k, 1)
	}
	return k
}

// fresh reports whether there is no need to look into the store.
func (k *knownCatalog) fresh(now time.Time) bool {
	return k.usable && now.Before(k.until) && !k.start.After(now.Add(catalogSkew))
}

// floored reports whether the last listing began too short a time ago for
// another one.
func (k *knownCatalog) floored(now time.Time) bool {
	for _, t := range []time.Time{k.begun, k.start} {
		if age := now.Sub(t); age > -catalogSkew && age < catalogFloor {
			return true
		}
	}
	return false
}

// stale reports whether a catalogue is to be refreshed: its time is over, its
// server said that it changed, or none that can be used was loaded; but not
// where one is stored and a listing began within the floor.
func (cs *catalogs) stale(key catalogKey) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	k, ok := cs.known.get(key)
	now := cs.now()
	return !ok || !k.usable || (k.changed || !k.fresh(now)) && !k.floored(now)
}

// changed notes that the server of a catalogue said that its list changed.
func (cs *catalogs) changed(key catalogKey) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.entry(key).changed = true
}

// heard reports whether the server said that its list changed, and it may be
// listed again.
func (cs *catalogs) heard(key catalogKey) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	k, ok := cs.known.get(key)
	return ok && k.changed && !k.floored(cs.now())
}

// load returns the catalogues of one tenant that are stored and can be used.
// Those that this process knows and whose time is not over cost no read; for
// the others there is one request for refs in all, and one for each manifest
// that the process does not have.
func (cs *catalogs) load(ctx context.Context, keys []catalogKey) (map[catalogKey]*catalog, error) {
	for _, key := range keys {
		if key.tenant != keys[0].tenant {
			return nil, fmt.Errorf("psych: load catalogues of tenants %q and %q at once: %w", keys[0].tenant, key.tenant, ErrInvalid)
		}
	}
	refs := make(map[catalogKey]Ref, len(keys))
	var ask []catalogKey
	var names []string
	now := cs.now()
	cs.mu.Lock()
	for _, key := range keys {
		if k, ok := cs.known.get(key); ok && k.fresh(now) {
			refs[key] = k.ref
		} else if !slices.Contains(ask, key) {
			ask, names = append(ask, key), append(names, key.ref)
		}
	}
	cs.mu.Unlock()
	if len(ask) > 0 {
		got, err := cs.store.GetRefs(ctx, ask[0].tenant, names)
		if err != nil {
			return nil, fmt.Errorf("psych: load catalogues of tenant %q: %w", ask[0].tenant, err)
		}
		for _, key := range ask {
			if ref, ok := got[key.ref]; ok {
				refs[key] = ref
			}
		}
	}
	wanted := make([]catalogKey, 0, len(refs))
	for key := range refs {
		wanted = append(wanted, key)
	}
	found := make([]*catalog, len(wanted))
	err := inParallel(ctx, len(wanted), func(ctx context.Context, i int) (err error) {
		found[i], err = cs.read(ctx, wanted[i], refs[wanted[i]])
		if errors.Is(err, errNewerFormat) || errors.Is(err, errNoCatalog) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	loaded := make(map[catalogKey]*catalog, len(wanted))
	for i, key := range wanted {
		if found[i] != nil {
			loaded[key] = found[i]
		}
	}
	return loaded, nil
}

// read returns the catalogue that a ref of now tells of, and notes it. The
// error of a manifest that can't be used matches errNewerFormat or
// errNoCatalog.
func (cs *catalogs) read(ctx context.Context, key catalogKey, ref Ref) (*catalog, error) {
	c, err := cs.past(ctx, key.tenant, ref.Doc)
	if errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("%w: %w", errNoCatalog, err)
	}
	if err == nil || errors.Is(err, errNewerFormat) || errors.Is(err, errNoCatalog) {
		if cs.adopt(key, ref, c) && err != nil {
			cs.log.WarnContext(ctx, "a catalogue can't be used", "tenant", key.tenant, "ref", key.ref, "err", err)
		}
	}
	return c, err
}

// adopt notes what ref tells, unless a later one is known, and reports whether
// that was news. A nil c can't be used.
func (cs *catalogs) adopt(key catalogKey, ref Ref, c *catalog) (news bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	k := cs.entry(key)
	if ref.Seq < k.ref.Seq {
		return false
	}
	news = !ref.Equal(k.ref)
	k.ref, k.start, k.usable = ref, listingStart(key, ref, c), c != nil
	if k.until = ref.After; k.usable && c.failing != nil {
		// The sweep may wait long; a Run asks the server before.
		if at := c.failing.Failed.Add(c.ttl() / 2); at.Before(k.until) {
			k.until = at
		}
	}
	return news
}

// past returns the catalogue of a manifest; ErrNotFound if there is none.
func (cs *catalogs) past(ctx context.Context, tenant string, version Digest) (*catalog, error) {
	s, err := cs.manifests.get(ctx, docKey{tenant, version}, func() (storedCatalog, int64, error) {
		data, err := cs.store.GetDoc(ctx, tenant, version)
		if err != nil {
			return storedCatalog{}, 0, err
		}
		if f := decodeFailing(data); f != nil {
			c, err := cs.past(ctx, tenant, f.Catalog)
			switch {
			case err == nil && c.failing != nil:
				return storedCatalog{nil, errNoCatalog}, int64(len(data)), nil
			case errors.Is(err, errNewerFormat), errors.Is(err, errNoCatalog):
				return storedCatalog{nil, err}, int64(len(data)), nil
			case err != nil:
				return storedCatalog{}, 0, err
			}
			c = c.without()
			is := *c
			is.failing = f
			return storedCatalog{&is, nil}, int64(len(data)), nil
		}
		c, err := decodeCatalog(version, data)
		return storedCatalog{c, err}, int64(2 * len(data)), nil
	})
	if err = cmp.Or(err, s.err); err != nil {
		return nil, fmt.Errorf("psych: read catalogue %s of tenant %q: %w", version, tenant, err)
	}
	return s.catalog, nil
}

// definitions reads tools of a catalogue, in the order of names, and of its
// documents only those that hold them; ErrNotFound for a name that it lacks.
// Schemas are shared: nobody changes them.
func (cs *catalogs) definitions(ctx context.Context, tenant string, c *catalog, names []string) ([]RemoteTool, error) {
	var docs []int
	for _, name := range names {
		e := c.find(name)
		if e == nil {
			return nil, fmt.Errorf("psych: catalogue %s of tenant %q has no tool %.200q: %w", c.digest, tenant, name, ErrNotFound)
		}
		docs = append(docs, e.Doc)
	}
	slices.Sort(docs)
	docs = slices.Compact(docs)
	held := make([]map[string]RemoteTool, len(docs))
	err := inParallel(ctx, len(docs), func(ctx context.Context, i int) (err error) {
		held[i], err = cs.document(ctx, docKey{tenant, c.Documents[docs[i]]})
		return err
	})
	if err != nil {
		return nil, err
	}
	tools := make([]RemoteTool, len(names))
	for n, name := range names {
		i, _ := slices.BinarySearch(docs, c.find(name).Doc)
		t, ok := held[i][name]
		if !ok {
			return nil, fmt.Errorf("psych: definitions %s of tenant %q lack the tool %.200q: %w", c.Documents[docs[i]], tenant, name, errNoCatalog)
		}
		tools[n] = t
	}
	return tools, nil
}

// document reads a document of definitions.
func (cs *catalogs) document(ctx context.Context, key docKey) (map[string]RemoteTool, error) {
	tools, err := cs.documents.get(ctx, key, func() (map[string]RemoteTool, int64, error) {
		data, err := cs.store.GetDoc(ctx, key.tenant, key.digest)
		if err == nil {
			err = checkCatalogFormat(data)
		}
		if err != nil {
			return nil, 0, err
		}
		var doc struct {
			Tools []RemoteTool `json:"tools"`
		}
		if err := json.Unmarshal(data, &doc); err != nil {
			return nil, 0, fmt.Errorf("%w: %w", errNoCatalog, err)
		}
		tools := make(map[string]RemoteTool, len(doc.Tools))
		for _, t := range doc.Tools {
			tools[t.Name] = t
		}
		return tools, int64(2 * len(data)), nil
	})
	if errors.Is(err, ErrNotFound) {
		// The next refresh writes it again, though it be of equal content.
		cs.mu.Lock()
		cs.damaged[key] = true
		cs.mu.Unlock()
	}
	if err != nil {
		return nil, fmt.Errorf("psych: read definitions %s of tenant %q: %w", key.digest, key.tenant, err)
	}
	return tools, nil
}

// sync refreshes a catalogue from its server: it lists all pages, stores what
// is new, and swaps the ref. Of concurrent refreshes, here or elsewhere, the
// listing that began later wins, whole; all return the winner. One of equal
// content moves only the time of checking. If sync fails, what was stored
// stays.
//
// Where a catalogue is stored and a listing began less than the floor ago, it
// returns what is stored, unless forced. Concurrent calls in one process are
// one, but for a forced one: its listing begins after the call.
func (cs *catalogs) sync(ctx context.Context, key catalogKey, s Scope, c *Connection, session Session, force bool) (*catalog, error) {
	if s.Tenant != key.tenant {
		return nil, fmt.Errorf("psych: refresh a catalogue of tenant %q for one of tenant %q: %w", key.tenant, s.Tenant, ErrInvalid)
	}
	cs.mu.Lock()
	k := cs.entry(key)
	for since := k.syncs; k.running != nil; {
		run := k.running
		cs.mu.Unlock()
		select {
		case <-run.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if !run.ended && (!force || run.listed && run.number > since) {
			return run.catalog, run.err
		}
		cs.mu.Lock()
	}
	k.syncs++
	run := &catalogSync{number: k.syncs, done: make(chan struct{}), err: errUnfinished}
	k.running = run
	cs.mu.Unlock()
	defer func() {
		run.ended = run.err != nil && ctx.Err() != nil
		cs.mu.Lock()
		k.running = nil
		cs.mu.Unlock()
		close(run.done)
	}()
	run.catalog, run.listed, run.err = cs.refresh(ctx, key, k, s, c, session, force)
	if run.err != nil {
		run.err = fmt.Errorf("psych: refresh the catalogue of %q: %w", c.Name, run.err)
	}
	return run.catalog, run.err
}

func (cs *catalogs) refresh(ctx context.Context, key catalogKey, k *knownCatalog, s Scope, c *Connection, session Session, force bool) (_ *catalog, listed bool, err error) {
	ref, stored, err := cs.current(ctx, key)
	if err != nil {
		return nil, false, err
	}
	cs.mu.Lock()
	if stored != nil && !force && k.floored(cs.now()) {
		cs.mu.Unlock()
		return stored, false, nil
	}
	changed := k.changed
	cs.mu.Unlock()
	defer func() {
		if err != nil && changed { // nobody has seen that change
			cs.changed(key)
		}
	}()
	var start time.Time
	var l *serverList
	for try := 1; ; try++ {
		start = microseconds(cs.now())
		cs.mu.Lock()
		// It begins after what is known, though clocks differ or stand still.
		for _, t := range []time.Time{listingStart(key, ref, stored), k.begun} {
			if !t.Before(start) && t.Sub(start) < catalogSkew {
				start = t.Add(time.Microsecond)
			}
		}
		k.begun, k.changed = start, false
		cs.mu.Unlock()
		if l, err = readList(ctx, session); err != nil {
			return nil, false, err
		}
		cs.mu.Lock()
		settled := !k.changed
		cs.mu.Unlock()
		if settled || try == maxListings {
			break
		}
		changed = true
	}
	seen, docs, err := newCatalog(s, c, l)
	if err != nil {
		return nil, false, err
	}
	won, err := cs.swap(ctx, key, ref, stored, start, seen, docs)
	return won, true, err
}

// current reads ref and manifest. What can't be used is nil, and may be
// overwritten; the error is that of the store, or errNewerFormat.
func (cs *catalogs) current(ctx context.Context, key catalogKey) (Ref, *catalog, error) {
	refs, err := cs.store.GetRefs(ctx, key.tenant, []string{key.ref})
	if err != nil {
		return Ref{}, nil, err
	}
	ref, ok := refs[key.ref]
	if !ok {
		return Ref{}, nil, nil
	}
	c, err := cs.read(ctx, key, ref)
	if errors.Is(err, errNoCatalog) {
		err = nil
	}
	return ref, c, err
}

// swap stores what a listing saw that began at start, unless a later one is
// stored. ref and stored are what was read last.
func (cs *catalogs) swap(ctx context.Context, key catalogKey, ref Ref, stored *catalog, start time.Time, seen *catalog, docs map[Digest][]byte) (*catalog, error) {
	written := false
	for {
		is := listingStart(key, ref, stored)
		if stored != nil && !start.After(is) && !is.After(cs.now().Add(catalogSkew)) {
			return stored, nil
		}
		next := seen
		if stored != nil && stored.same(seen) {
			next = stored.without()
		}
		if next == seen && !written || next != seen {
			if err := cs.write(ctx, key.tenant, stored, next, docs); err != nil {
				return nil, err
			}
			written = written || next == seen
		}
		to := Ref{Doc: next.digest, Seq: ref.Seq + 1, After: start.Add(next.ttl() + jitter(key, next.ttl()))}
		err := repeat(ctx, func() error { return cs.store.SwapRef(ctx, key.tenant, key.ref, ref, to) })
		switch {
		case err == nil:
			cs.adopt(key, to, next)
			if next == seen {
				d := diffCatalogs(stored, seen)
				cs.log.InfoContext(ctx, "catalogue", "tenant", key.tenant, "ref", key.ref, "tools", len(seen.Tools),
					"added", len(d.Added), "removed", len(d.Removed), "changed", len(d.Changed), "dropped", len(seen.Dropped))
			}
			return next, nil
		case !errors.Is(err, ErrConflict):
			return nil, err
		}
		if ref, stored, err = cs.current(ctx, key); err != nil {
			return nil, err
		}
	}
}

// write stores the documents of next and then its manifest, all but those that
// stored tells to be there.
func (cs *catalogs) write(ctx context.Context, tenant string, stored, next *catalog, docs map[Digest][]byte) error {
	there := map[Digest]bool{}
	if stored != nil {
		for _, d := range stored.Documents {
			there[d] = true
		}
	}
	var missing []Digest
	cs.mu.Lock()
	for _, d := range next.Documents {
		if !there[d] || cs.damaged[docKey{tenant, d}] {
			missing = append(missing, d)
		}
	}
	cs.mu.Unlock()
	put := func(ctx context.Context, d Digest) error {
		return repeat(ctx, func() error { return cs.store.PutDoc(ctx, tenant, d, docs[d]) })
	}
	if err := inParallel(ctx, len(missing), func(ctx context.Context, i int) error { return put(ctx, missing[i]) }); err != nil {
		return err
	}
	cs.mu.Lock()
	for _, d := range missing {
		delete(cs.damaged, docKey{tenant, d})
	}
	cs.mu.Unlock()
	if stored != nil && next.digest == stored.digest {
		return nil
	}
	if err := put(ctx, next.digest); err != nil {
		return err
	}
	cs.manifests.put(docKey{tenant, next.digest}, storedCatalog{next, nil}, int64(2*len(docs[next.digest])))
	return nil
}

// listingStart is when the listing began that ref tells of; zero if that is
// unknown.
func listingStart(key catalogKey, ref Ref, c *catalog) time.Time {
	switch {
	case c != nil && c.failing != nil:
		return c.failing.Listed
	case c == nil || ref.After.IsZero():
		return time.Time{}
	}
	return ref.After.Add(-c.ttl() - jitter(key, c.ttl()))
}

// jitter is up to a tenth of ttl, always the same for one catalogue.
func jitter(key catalogKey, ttl time.Duration) time.Duration {
	sum := sha256.Sum256([]byte(key.ref))
	return (ttl / 10 >> 16 * time.Duration(binary.BigEndian.Uint16(sum[:]))).Truncate(time.Microsecond)
}

// A dueCatalog is what the sweep opens a session with.
type dueCatalog struct {
	key        catalogKey
	connection Connection // its name and address
	scope      Scope      // of whoever listed
}

// due reads what a ref that is due tells; nil if that is no catalogue, or one
// that is not due. One that can't be used is no longer due: who connects to
// its server writes it anew. The sweep then syncs it; if it can't, postpone; if
// the key of the session is another one, since the credential is, retire.
func (cs *catalogs) due(ctx context.Context, ref RefKey) (*dueCatalog, error) {
	if !strings.HasPrefix(ref.Name, catalogPrefix) {
		return nil, nil
	}
	key := catalogKey{ref.Tenant, ref.Name}
	is, c, err := cs.current(ctx, key)
	switch {
	case errors.Is(err, errNewerFormat):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("psych: read the catalogue %s: %w", ref, err)
	case is.After.IsZero() || is.After.After(cs.now()):
		return nil, nil
	case c == nil:
		return nil, cs.move(ctx, key, nil)
	}
	a := &c.Connection
	d := &dueCatalog{key: key, scope: c.Scope, connection: Connection{
		Name: a.Name, URL: a.URL, Command: slices.Clone(a.Command), Credential: a.Credential, PerPrincipal: a.PerPrincipal,
	}}
	d.scope.Tenant = key.tenant
	return d, nil
}

// postpone lets a catalogue that is due, and could not be refreshed, be due
// again: see retryAfter. So long as it is not, a listing that is under way still
// wins. It reports whether it is due no more, until it is refreshed.
func (cs *catalogs) postpone(ctx context.Context, key catalogKey) (ends bool, err error) {
	err = cs.move(ctx, key, func(ref Ref, c *catalog) (*sweepFailures, time.Time) {
		if c == nil {
			ends = true
			return nil, time.Time{}
		}
		f := &sweepFailures{Catalog: c.digest, Failures: c.failures() + 1, Listed: listingStart(key, ref, c).UTC(), Failed: microseconds(cs.now()).UTC()}
		wait := retryAfter(key, c.ttl(), f.Failures)
		if ends = wait == 0; ends {
			return f, time.Time{}
		}
		return f, f.Failed.Add(wait)
	})
	return ends, err
}

// retire lets a catalogue that is due never be so again, until it is refreshed.
func (cs *catalogs) retire(ctx context.Context, key catalogKey) error {
	return cs.move(ctx, key, nil)
}

// move changes the After of a catalogue that is due, and what is known of its
// failures, unless somebody else changes the ref meanwhile. A nil when is never.
func (cs *catalogs) move(ctx context.Context, key catalogKey, when func(Ref, *catalog) (*sweepFailures, time.Time)) error {
	ref, c, err := cs.current(ctx, key)
	if err == nil && ref.Seq > 0 && !ref.After.IsZero() && !ref.After.After(cs.now()) {
		to := Ref{Doc: ref.Doc, Seq: ref.Seq + 1}
		if when != nil {
			var f *sweepFailures
			if f, to.After = when(ref, c); f != nil {
				is := *c
				is.failing, c = f, &is
				to.Doc, err = cs.putFailing(ctx, key.tenant, f)
			}
		}
		if err != nil {
			return fmt.Errorf("psych: move the time of catalogue %q of tenant %q: %w", key.ref, key.tenant, err)
		}
		if err = repeat(ctx, func() error { return cs.store.SwapRef(ctx, key.tenant, key.ref, ref, to) }); err == nil {
			cs.adopt(key, to, c)
		}
	}
	if err != nil && !errors.Is(err, ErrConflict) && !errors.Is(err, errNewerFormat) {
		return fmt.Errorf("psych: move the time of catalogue %q of tenant %q: %w", key.ref, key.tenant, err)
	}
	return nil
}

// putFailing stores what is known of the failures of a catalogue.
func (cs *catalogs) putFailing(ctx context.Context, tenant string, f *sweepFailures) (d Digest, err error) {
	data, err := json.Marshal(sweepFailuresDoc{catalogFormat, f})
	if err != nil {
		return d, err
	}
	d = sha256.Sum256(data)
	return d, repeat(ctx, func() error { return cs.store.PutDoc(ctx, tenant, d, data) })
}

// decodeFailing returns nil for what is another document.
func decodeFailing(data []byte) *sweepFailures {
	var doc sweepFailuresDoc
	if len(data) > 1000 || json.Unmarshal(data, &doc) != nil || doc.Format != catalogFormat || doc.Failing == nil || doc.Failing.Failures < 1 {
		return nil
	}
	return doc.Failing
}

// inParallel calls f for each of n, a few at once, and ends with the first
// error.
func inParallel(ctx context.Context, n int, f func(context.Context, int) error) error {
	if n == 1 {
		return f(ctx, 0)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	slots := make(chan struct{}, catalogParallel)
	for i := range n {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := f(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

type docKey struct {
	tenant string
	digest Digest
}

// A docCache keeps what was decoded of documents, and reads each once however
// many ask for it.
type docCache[V any] struct {
	mu    sync.Mutex
	kept  lru[docKey, V]
	reads map[docKey]*docRead[V]
}

type docRead[V any] struct {
	done  chan struct{}
	ended bool // its caller's context ended
	v     V
	err   error
}

// get returns what read returns, with its size in bytes. read is called by one
// of those who ask at once, within its own time.
func (c *docCache[V]) get(ctx context.Context, key docKey, read func() (V, int64, error)) (V, error) {
	for {
		c.mu.Lock()
		if v, ok := c.kept.get(key); ok {
			c.mu.Unlock()
			return v, nil
		}
		r := c.reads[key]
		if r == nil {
			r = &docRead[V]{done: make(chan struct{}), err: errUnfinished}
			if c.reads == nil {
				c.reads = map[docKey]*docRead[V]{}
			}
			c.reads[key] = r
			c.mu.Unlock()
			return c.read(ctx, key, r, read)
		}
		c.mu.Unlock()
		select {
		case <-r.done:
		case <-ctx.Done():
			return *new(V), ctx.Err()
		}
		if !r.ended {
			return r.v, r.err
		}
	}
}

func (c *docCache[V]) read(ctx context.Context, key docKey, r *docRead[V], read func() (V, int64, error)) (V, error) {
	var size int64
	defer func() {
		r.ended = r.err != nil && ctx.Err() != nil
		c.mu.Lock()
		delete(c.reads, key)
		if r.err == nil {
			c.kept.put(key, r.v, size)
		}
		c.mu.Unlock()
		close(r.done)
	}()
	r.v, size, r.err = read()
	return r.v, r.err
}

func (c *docCache[V]) put(key docKey, v V, size int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept.put(key, v, size)
}

// An lru keeps what was used last, within a sum of sizes, and the last one
// whatever its size.
type lru[K comparable, V any] struct {
	limit, size int64
	order       list.List // of lruItem, the latest first
	items       map[K]*list.Element
}

type lruItem[K comparable, V any] struct {
	key  K
	v    V
	size int64
}

func (l *lru[K, V]) get(key K) (v V, ok bool) {
	el := l.items[key]
	if el == nil {
		return v, false
	}
	l.order.MoveToFront(el)
	return el.Value.(lruItem[K, V]).v, true
}

func (l *lru[K, V]) put(key K, v V, size int64) {
	if el := l.items[key]; el != nil {
		l.remove(el)
	}
	if l.items == nil {
		l.items = map[K]*list.Element{}
	}
	l.items[key] = l.order.PushFront(lruItem[K, V]{key, v, size})
	for l.size += size; l.size > l.limit && l.order.Len() > 1; {
		l.remove(l.order.Back())
	}
}

func (l *lru[K, V]) remove(el *list.Element) {
	it := l.order.Remove(el).(lruItem[K, V])
	delete(l.items, it.key)
	l.size -= it.size
}
