package psych

import (
	"bytes"
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
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych/internal/strictjson"
)

// Bounds of catalogues.
const (
	catalogFloor = time.Minute      // between two refreshes of one
	catalogTTL   = 15 * time.Minute // where the server says nothing
	maxTTL       = 24 * time.Hour
	catalogSkew  = 5 * time.Minute // a listing that began later than that from now was dated by a wrong clock

	maxListPages        = 10_000
	maxListTools        = 65_536
	maxListBytes        = 64 << 20 // of definitions
	maxListings         = 3        // in one refresh, of a list that changes meanwhile
	catalogInstructions = 2_000    // characters
	maxRemoteName       = 128      // bytes
	maxRemoteTool       = 1 << 20  // bytes of a definition
	catalogSchemaDepth  = 1_000
	catalogLine         = 200 // characters
	maxDropped          = 100
	maxKnownCatalogs    = 10_000

	documentBytes    = 64 << 10 // of a document of several definitions
	documentMinBytes = 16 << 10 // before one may end earlier
	catalogCache     = 64 << 20 // bytes of manifests, and again of definitions
	catalogParallel  = 8        // requests of one load or refresh at once
)

// catalogPrefix begins the names of refs that point at catalogues.
const catalogPrefix = "catalog/"

var (
	errBadList     = errors.New("the server's list of tools can't be used")
	errNewerFormat = errors.New("it was written by a newer release: upgrade this worker")
	errNoCatalog   = errors.New("it is no catalogue that a release of Psych wrote")
	errUnfinished  = errors.New("whoever did it panicked")
)

// A catalogKey addresses a catalogue: those share one who see the same tools,
// whatever their Specs call the server.
type catalogKey struct{ tenant, ref string }

func newCatalogKey(s Scope, c *Connection, identity string) catalogKey {
	parts := []string{"shared", ""}
	if c.PerPrincipal {
		parts = []string{"principal", s.Principal}
	}
	parts = append(parts, c.URL, c.Credential, identity)
	return catalogKey{s.Tenant, catalogPrefix + digest(append(parts, c.Command...)...).String()}
}

// A catalogEntry is what a manifest says of a tool.
type catalogEntry struct {
	Name             string `json:"name"`
	Title            string `json:"title,omitempty"`
	Line             string `json:"line,omitempty"`              // of the description: see firstLine
	Chars            int    `json:"chars"`                       // of the definition as it is shown, some 40 for what surrounds it included
	DescriptionChars int    `json:"description_chars,omitempty"` // of all of it
	ReadOnly         bool   `json:"read_only,omitempty"`
	Idempotent       bool   `json:"idempotent,omitempty"`
	Def              Digest `json:"def"`                // of the definition's bytes
	Withheld         string `json:"withheld,omitempty"` // why the definition can't be shown
	Doc              int    `json:"doc"`                // which of the documents holds the definition
}

// A droppedTool is something of a listing that was not taken.
type droppedTool struct {
	Name   string `json:"name,omitempty"`
	Reason string `json:"reason"`
}

// catalogFormat counts the formats of manifests and of their documents.
const catalogFormat = 1

// A manifest is a catalogue as a document. Its bytes are a function of the
// listing, of the connection's address and of who listed: pages and order of
// the listing leave no trace. A field that is added must be absent when empty.
type manifest struct {
	Format     int `json:"format"`
	Connection struct {
		Name         string   `json:"name"`
		URL          string   `json:"url,omitempty"`
		Command      []string `json:"command,omitempty"`
		Credential   string   `json:"credential,omitempty"`
		PerPrincipal bool     `json:"per_principal,omitempty"`
	} `json:"connection"`
	Scope        Scope          `json:"scope"`
	Instructions string         `json:"instructions,omitempty"`
	TTLSeconds   int            `json:"ttl_seconds"`
	Documents    []Digest       `json:"documents,omitempty"`
	Tools        []catalogEntry `json:"tools,omitempty"` // sorted by name
	Dropped      []droppedTool  `json:"dropped,omitempty"`
}

// A catalog is a manifest as it was read. It is shared: nobody changes it.
type catalog struct {
	manifest
	digest       Digest
	instructions string
}

func (c *catalog) version() Digest { return c.digest }

func (c *catalog) entries() []catalogEntry { return c.Tools }

func (c *catalog) find(name string) *catalogEntry {
	i, ok := slices.BinarySearchFunc(c.Tools, name, func(e catalogEntry, name string) int { return strings.Compare(e.Name, name) })
	if !ok {
		return nil
	}
	return &c.Tools[i]
}

func (c *catalog) ttl() time.Duration { return time.Duration(c.TTLSeconds) * time.Second }

// same reports whether two catalogues say the same, whoever listed and whatever
// the connection is called.
func (c *catalog) same(o *catalog) bool {
	return c.Instructions == o.Instructions && c.TTLSeconds == o.TTLSeconds && slices.Equal(c.Documents, o.Documents) &&
		slices.Equal(c.Tools, o.Tools) && slices.Equal(c.Dropped, o.Dropped)
}

// decodeCatalog returns an error that matches errNewerFormat or errNoCatalog.
func decodeCatalog(d Digest, data []byte) (*catalog, error) {
	if err := checkCatalogFormat(data); err != nil {
		return nil, err
	}
	c := &catalog{digest: d}
	if err := json.Unmarshal(data, &c.manifest); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoCatalog, err)
	}
	c.instructions = c.Instructions
	if c.TTLSeconds < 1 || c.TTLSeconds > 1<<25 { // a year
		return nil, fmt.Errorf("%w: ttl_seconds is %d", errNoCatalog, c.TTLSeconds)
	}
	for i, t := range c.Tools {
		if i > 0 && c.Tools[i-1].Name >= t.Name {
			return nil, fmt.Errorf("%w: tool %q stands behind %q", errNoCatalog, t.Name, c.Tools[i-1].Name)
		}
		if t.Doc < 0 || t.Doc >= len(c.Documents) {
			return nil, fmt.Errorf("%w: tool %q is in document %d of %d", errNoCatalog, t.Name, t.Doc, len(c.Documents))
		}
	}
	return c, nil
}

func checkCatalogFormat(data []byte) error {
	var head struct {
		Format int `json:"format"`
	}
	switch err := json.Unmarshal(data, &head); {
	case err != nil:
		return fmt.Errorf("%w: %w", errNoCatalog, err)
	case head.Format > catalogFormat:
		return fmt.Errorf("%w (format %d)", errNewerFormat, head.Format)
	case head.Format < 1:
		return fmt.Errorf("%w: format %d", errNoCatalog, head.Format)
	}
	return nil
}

// A catalogDiff holds names of tools, sorted.
type catalogDiff struct{ Added, Removed, Changed []string }

// diffCatalogs says what became of old; nil is a catalogue without tools.
func diffCatalogs(old, new *catalog) (d catalogDiff) {
	var a, b []catalogEntry
	if old != nil {
		a = old.Tools
	}
	if new != nil {
		b = new.Tools
	}
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Name < b[0].Name:
			d.Removed = append(d.Removed, a[0].Name)
			a = a[1:]
		case len(a) == 0 || b[0].Name < a[0].Name:
			d.Added = append(d.Added, b[0].Name)
			b = b[1:]
		default:
			if a[0].Def != b[0].Def {
				d.Changed = append(d.Changed, a[0].Name)
			}
			a, b = a[1:], b[1:]
		}
	}
	return d
}

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
	return k.usable && now.Before(k.ref.After) && !k.start.After(now.Add(catalogSkew))
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
	return news
}

// past returns the catalogue of a manifest; ErrNotFound if there is none.
func (cs *catalogs) past(ctx context.Context, tenant string, version Digest) (*catalog, error) {
	s, err := cs.manifests.get(ctx, docKey{tenant, version}, func() (storedCatalog, int64, error) {
		data, err := cs.store.GetDoc(ctx, tenant, version)
		if err != nil {
			return storedCatalog{}, 0, err
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
			next = stored
		}
		if next == seen && !written || next == stored {
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
	if next == stored {
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
	if c == nil || ref.After.IsZero() {
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
		return nil, cs.move(ctx, key, func(*catalog) time.Time { return time.Time{} })
	}
	a := &c.Connection
	d := &dueCatalog{key: key, scope: c.Scope, connection: Connection{
		Name: a.Name, URL: a.URL, Command: slices.Clone(a.Command), Credential: a.Credential, PerPrincipal: a.PerPrincipal,
	}}
	d.scope.Tenant = key.tenant
	return d, nil
}

// postpone lets a catalogue that is due, and could not be refreshed, be due
// again after half its time.
func (cs *catalogs) postpone(ctx context.Context, key catalogKey) error {
	// Less than all of it: the ref then tells of a listing that began half the
	// time ago, so that one which is under way still wins.
	return cs.move(ctx, key, func(c *catalog) time.Time {
		if c == nil {
			return time.Time{}
		}
		return microseconds(cs.now()).Add(c.ttl() / 2)
	})
}

// retire lets a catalogue that is due never be so again, until it is refreshed.
func (cs *catalogs) retire(ctx context.Context, key catalogKey) error {
	return cs.move(ctx, key, func(*catalog) time.Time { return time.Time{} })
}

// move changes the After of a catalogue that is due, unless somebody else
// changes the ref meanwhile.
func (cs *catalogs) move(ctx context.Context, key catalogKey, after func(*catalog) time.Time) error {
	ref, c, err := cs.current(ctx, key)
	if err == nil && ref.Seq > 0 && !ref.After.IsZero() && !ref.After.After(cs.now()) {
		to := Ref{Doc: ref.Doc, Seq: ref.Seq + 1, After: after(c)}
		if err = repeat(ctx, func() error { return cs.store.SwapRef(ctx, key.tenant, key.ref, ref, to) }); err == nil {
			cs.adopt(key, to, c)
		}
	}
	if err != nil && !errors.Is(err, ErrConflict) && !errors.Is(err, errNewerFormat) {
		return fmt.Errorf("psych: move the time of catalogue %q of tenant %q: %w", key.ref, key.tenant, err)
	}
	return nil
}

// A serverList is all that a server said, in its order.
type serverList struct {
	tools        []RemoteTool
	instructions string
	ttl          time.Duration // for how long it holds, within bounds
}

// readList reads all pages. Its own errors match errBadList.
func readList(ctx context.Context, session Session) (*serverList, error) {
	l := &serverList{instructions: session.Instructions(), ttl: catalogTTL}
	var hint *time.Duration
	var cursor *string
	seen := map[Digest]bool{}
	size := 0
	for page := 1; ; page++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		p, err := session.ListTools(ctx, cursor)
		if err != nil {
			return nil, fmt.Errorf("page %d of the list of tools: %w", page, err)
		}
		for _, t := range p.Tools {
			size += len(t.Name) + len(t.Title) + len(t.Description) + len(t.Schema) + len(t.Output)
		}
		l.tools = append(l.tools, p.Tools...)
		// The shortest one, since it may be told with each page.
		if p.TTL != nil && (hint == nil || *p.TTL < *hint) {
			hint = p.TTL
		}
		switch {
		case len(l.tools) > maxListTools:
			return nil, fmt.Errorf("it has over %d tools: %w", maxListTools, errBadList)
		case size > maxListBytes:
			return nil, fmt.Errorf("its definitions take over %d bytes: %w", maxListBytes, errBadList)
		case p.Next == nil:
			if hint != nil {
				l.ttl = min(max(hint.Truncate(time.Second), catalogFloor), maxTTL)
			}
			return l, nil
		case page == maxListPages:
			return nil, fmt.Errorf("it goes on after %d pages: %w", page, errBadList)
		}
		next := digest(*p.Next)
		if seen[next] {
			return nil, fmt.Errorf("page %d goes on with the cursor %.80q, which a page before it gave: %w", page, *p.Next, errBadList)
		}
		seen[next] = true
		cursor = p.Next
	}
}

// newCatalog makes a catalogue of a listing, with its documents and manifest.
// A tool that is broken does not break the others: it is dropped, or its
// definition is withheld.
func newCatalog(s Scope, c *Connection, l *serverList) (*catalog, map[Digest][]byte, error) {
	m := manifest{Format: catalogFormat, Scope: s, TTLSeconds: int(l.ttl / time.Second)}
	m.Connection.Name, m.Connection.URL, m.Connection.Command = c.Name, c.URL, c.Command
	m.Connection.Credential, m.Connection.PerPrincipal = c.Credential, c.PerPrincipal
	m.Instructions = clipChars(strings.ToValidUTF8(l.instructions, "\ufffd"), catalogInstructions)
	var dropped []droppedTool
	drop := func(name, format string, args ...any) {
		name = clipChars(strings.ToValidUTF8(name, "\ufffd"), maxRemoteName)
		dropped = append(dropped, droppedTool{name, fmt.Sprintf(format, args...)})
	}
	type taken struct {
		catalogEntry
		def []byte
	}
	var tools []taken
	names := make(map[string]bool, len(l.tools))
	for _, t := range l.tools {
		switch {
		case t.Name == "":
			drop("", "its name is empty")
			continue
		case !utf8.ValidString(t.Name):
			drop(t.Name, "its name is not valid UTF-8")
			continue
		case len(t.Name) > maxRemoteName:
			drop(t.Name, "its name has %d bytes: want at most %d", len(t.Name), maxRemoteName)
			continue
		case names[t.Name]:
			drop(t.Name, "it is listed again: the first one counts")
			continue
		}
		names[t.Name] = true
		withheld, output := cleanTool(&t)
		if output != "" {
			drop(t.Name, "its output schema is left out: %s", output)
		}
		if n := t.bytes(); n > maxRemoteTool {
			drop(t.Name, "its name and description take %d bytes: want at most %d", n, maxRemoteTool)
			continue
		}
		def := appendDefinition(nil, &t)
		shown, reason := shownDef(t.ToolDef)
		if withheld == "" {
			withheld = reason
		}
		tools = append(tools, taken{catalogEntry{
			Name: t.Name, Title: asLine(t.Title, catalogLine), Line: firstLine(t.Description),
			Chars:            len(t.Name) + utf8.RuneCountInString(shown.Description) + utf8.RuneCount(shown.Schema) + 40,
			DescriptionChars: utf8.RuneCountInString(t.Description),
			ReadOnly:         t.ReadOnly, Idempotent: t.Idempotent,
			Def: sha256.Sum256(def), Withheld: withheld,
		}, def})
	}
	slices.SortFunc(tools, func(a, b taken) int { return strings.Compare(a.Name, b.Name) })
	m.Dropped = sortDropped(dropped)

	docs := map[Digest][]byte{}
	const head, tail = `{"format":1,"tools":[`, `]}`
	var doc []byte
	first := 0
	end := func(next int) {
		doc = append(doc, tail...)
		d := Digest(sha256.Sum256(doc))
		docs[d] = doc
		for i := first; i < next; i++ {
			tools[i].Doc = len(m.Documents)
		}
		m.Documents = append(m.Documents, d)
		doc, first = nil, next
	}
	for i, t := range tools {
		if doc != nil && len(doc)+len(",")+len(t.def)+len(tail) > documentBytes {
			end(i)
		}
		if doc == nil {
			doc = append(make([]byte, 0, documentBytes), head...)
		} else {
			doc = append(doc, ',')
		}
		doc = append(doc, t.def...)
		// Where documents end is decided by names, so that a tool which changes
		// moves few of the ends behind it.
		sum := sha256.Sum256([]byte(t.Name))
		ends := uint64(binary.BigEndian.Uint32(sum[:]))*documentMinBytes < uint64(len(t.def))<<32
		if i == len(tools)-1 || len(doc) >= documentBytes || ends && len(doc) >= documentMinBytes {
			end(i + 1)
		}
	}
	for _, t := range tools {
		m.Tools = append(m.Tools, t.catalogEntry)
	}

	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(&m); err != nil {
		return nil, nil, fmt.Errorf("encode the manifest: %w", err)
	}
	data := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	d := Digest(sha256.Sum256(data))
	docs[d] = data
	return &catalog{manifest: m, digest: d, instructions: m.Instructions}, docs, nil
}

// shownDef is a definition as providers are told it, or why they can't be.
func shownDef(def ToolDef) (shown ToolDef, withheld string) { return def, "" }

func (t *RemoteTool) bytes() int {
	return len(t.Name) + len(t.Title) + len(t.Description) + len(t.Schema) + len(t.Output)
}

// anySchema stands for a schema that is missing or can't be kept.
var anySchema = json.RawMessage(`{"type":"object"}`)

// cleanTool makes of t what can be stored: texts valid UTF-8, schemas compact.
// It says why a schema was replaced by one that takes any object, and why an
// output schema was left out.
func cleanTool(t *RemoteTool) (withheld, output string) {
	t.Title = strings.ToValidUTF8(t.Title, "\ufffd")
	t.Description = strings.ToValidUTF8(t.Description, "\ufffd")
	if len(t.Output) > 0 {
		t.Output, output = cleanSchema(t.Output)
	}
	if len(t.Schema) == 0 {
		t.Schema = anySchema
	} else if t.Schema, withheld = cleanSchema(t.Schema); withheld != "" {
		t.Schema, withheld = anySchema, "its schema can't be used: "+withheld
	}
	if n := t.bytes(); n > maxRemoteTool && len(t.Output) > 0 {
		t.Output, output = nil, fmt.Sprintf("the definition takes %d bytes with it: want at most %d", n, maxRemoteTool)
	}
	if n := t.bytes(); n > maxRemoteTool {
		t.Schema, withheld = anySchema, fmt.Sprintf("its schema can't be used: the definition takes %d bytes with it: want at most %d", n, maxRemoteTool)
	}
	return withheld, output
}

// cleanSchema returns raw without insignificant whitespace, or says what is
// wrong with it.
func cleanSchema(raw json.RawMessage) (_ json.RawMessage, problem string) {
	if !utf8.Valid(raw) {
		raw, _ = strictjson.Repair(raw)
	}
	v, err := strictjson.Scan(raw)
	switch {
	case err != nil:
		return nil, clipChars(asLine("it is not JSON: "+err.Error(), 300), 300)
	case v.Depth > catalogSchemaDepth:
		return nil, fmt.Sprintf("it is nested %d deep: want at most %d", v.Depth, catalogSchemaDepth)
	}
	if raw, err = strictjson.Compact(raw); err != nil {
		return nil, clipChars(asLine("it is not JSON: "+err.Error(), 300), 300)
	}
	return raw, ""
}

// appendDefinition encodes what json decodes into a RemoteTool, with the
// schemas' own bytes; unlike encoding/json's, the result is the same in each
// release of Go.
func appendDefinition(b []byte, t *RemoteTool) []byte {
	b = strictjson.AppendString(append(b, `{"name":`...), t.Name)
	b = strictjson.AppendString(append(b, `,"description":`...), t.Description)
	b = append(append(b, `,"schema":`...), t.Schema...)
	if t.Title != "" {
		b = strictjson.AppendString(append(b, `,"title":`...), t.Title)
	}
	if len(t.Output) > 0 {
		b = append(append(b, `,"output":`...), t.Output...)
	}
	if t.ReadOnly {
		b = append(b, `,"read_only":true`...)
	}
	if t.Idempotent {
		b = append(b, `,"idempotent":true`...)
	}
	return append(b, '}')
}

// firstLine is the first paragraph of a description on one line: all of it, or
// the sentences of it that fit, or as much as fits, with … at the end.
func firstLine(description string) string {
	text := strings.TrimSpace(description)
	for rest := text; ; {
		i := strings.IndexByte(rest, '\n')
		if i < 0 {
			break
		}
		rest = rest[i+1:]
		if line, _, _ := strings.Cut(rest, "\n"); strings.TrimSpace(line) == "" {
			text = text[:len(text)-len(rest)]
			break
		}
	}
	const longest = 8 * catalogLine // enough, and bounds the work
	line := asLine(clipChars(text, longest), longest)
	if utf8.RuneCountInString(line) <= catalogLine {
		return line
	}
	cut := clipChars(line, catalogLine)
	for end := len(cut) - len("…"); end >= catalogLine/3; end-- {
		// A space behind a point ends a sentence, but not in "e.g. this".
		if strings.IndexByte(".!?", line[end-1]) >= 0 && line[end] == ' ' && line[end-3] != '.' {
			return line[:end]
		}
	}
	return cut
}

// sortDropped sorts by name, each thing once, the first maxDropped.
func sortDropped(all []droppedTool) []droppedTool {
	slices.SortFunc(all, func(a, b droppedTool) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return strings.Compare(a.Reason, b.Reason)
	})
	all = slices.Compact(all)
	if more := len(all) - maxDropped; more > 0 {
		all = append(all[:maxDropped:maxDropped], droppedTool{Reason: fmt.Sprintf("%d more are left out", more)})
	}
	return all
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
