package psych

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A countedStore is a Store as one process sees it: it counts requests, and
// hook, if there is one, comes before each and may fail it.
type countedStore struct {
	Store
	gets, puts, refs, swaps atomic.Int32
	docs, atOnce            atomic.Int32
	hook                    func(method string) error
	read                    func()      // once, between a GetRefs and its answer
	lost                    func() bool // the answer of a SwapRef is
}

func (s *countedStore) before(method string) error {
	if s.hook != nil {
		return s.hook(method)
	}
	return nil
}

func (s *countedStore) GetDoc(ctx context.Context, tenant string, d Digest) ([]byte, error) {
	s.gets.Add(1)
	n := s.docs.Add(1)
	defer s.docs.Add(-1)
	for m := s.atOnce.Load(); n > m && !s.atOnce.CompareAndSwap(m, n); m = s.atOnce.Load() {
	}
	if err := s.before("GetDoc"); err != nil {
		return nil, err
	}
	return s.Store.GetDoc(ctx, tenant, d)
}

func (s *countedStore) PutDoc(ctx context.Context, tenant string, d Digest, data []byte) error {
	s.puts.Add(1)
	if err := s.before("PutDoc"); err != nil {
		return err
	}
	return s.Store.PutDoc(ctx, tenant, d, data)
}

func (s *countedStore) GetRefs(ctx context.Context, tenant string, names []string) (map[string]Ref, error) {
	s.refs.Add(1)
	if err := s.before("GetRefs"); err != nil {
		return nil, err
	}
	refs, err := s.Store.GetRefs(ctx, tenant, names)
	if f := s.read; f != nil {
		s.read = nil
		f()
	}
	return refs, err
}

func (s *countedStore) SwapRef(ctx context.Context, tenant, name string, old, next Ref) error {
	s.swaps.Add(1)
	if err := s.before("SwapRef"); err != nil {
		return err
	}
	err := s.Store.SwapRef(ctx, tenant, name, old, next)
	if err == nil && s.lost != nil && s.lost() {
		return fmt.Errorf("the answer was lost: %w", ErrUnavailable)
	}
	return err
}

// counts returns GetRefs, GetDoc, PutDoc and SwapRef since it was last asked.
func (s *countedStore) counts() [4]int32 {
	return [4]int32{s.refs.Swap(0), s.gets.Swap(0), s.puts.Swap(0), s.swaps.Swap(0)}
}

// A catalogClock is what processes of one world read.
type catalogClock struct{ at atomic.Int64 }

func (c *catalogClock) now() time.Time          { return time.UnixMicro(c.at.Load()).UTC() }
func (c *catalogClock) advance(d time.Duration) { c.at.Add(d.Microseconds()) }

// A catalogWorld is a tenant of a store, a clock, and processes.
type catalogWorld struct {
	*testing.T
	store  Store
	tenant string
	clock  *catalogClock
	conn   *Connection
	scope  Scope
	key    catalogKey
}

// A catalogProcess has a memory of its own.
type catalogProcess struct {
	*catalogs
	w     *catalogWorld
	store *countedStore
}

func (w *catalogWorld) process() *catalogProcess {
	s := &countedStore{Store: w.store}
	return &catalogProcess{newCatalogs(s, w.clock.now, slog.New(slog.DiscardHandler)), w, s}
}

// refresh syncs without force, and must succeed.
func (p *catalogProcess) refresh(session Session) *catalog {
	p.w.Helper()
	c, err := p.sync(context.Background(), p.w.key, p.w.scope, p.w.conn, session, false)
	if err != nil {
		p.w.Fatal(err)
	}
	return c
}

// stored loads what is stored, as a new process does.
func (w *catalogWorld) stored() *catalog {
	w.Helper()
	got, err := w.process().load(context.Background(), []catalogKey{w.key})
	if err != nil {
		w.Fatal(err)
	}
	return got[w.key]
}

func (w *catalogWorld) ref() Ref {
	w.Helper()
	refs, err := w.store.GetRefs(context.Background(), w.tenant, []string{w.key.ref})
	if err != nil {
		w.Fatal(err)
	}
	return refs[w.key.ref]
}

// is fails unless c holds these tools.
func (w *catalogWorld) is(c *catalog, when string, names ...string) {
	w.Helper()
	var got []string
	if c != nil {
		for _, e := range c.entries() {
			got = append(got, e.Name)
		}
	}
	if !slices.Equal(got, names) {
		w.Fatalf("%s there are the tools %q, want %q", when, got, names)
	}
}

func (w *catalogWorld) put(doc string) Digest {
	w.Helper()
	d := Digest(sha256.Sum256([]byte(doc)))
	if err := w.store.PutDoc(context.Background(), w.tenant, d, []byte(doc)); err != nil {
		w.Fatal(err)
	}
	return d
}

func (w *catalogWorld) swapRef(name string, next Ref) {
	w.Helper()
	refs, err := w.store.GetRefs(context.Background(), w.tenant, []string{name})
	if err == nil {
		next.Seq = refs[name].Seq + 1
		err = w.store.SwapRef(context.Background(), w.tenant, name, refs[name], next)
	}
	if err != nil {
		w.Fatal(err)
	}
}

func named(names ...string) *listSession {
	var tools []RemoteTool
	for _, n := range names {
		tools = append(tools, remoteTool(n, "Is "+n+"."))
	}
	return listed(tools...)
}

// CatalogSuite checks catalogues over the Docs and Refs of a store. Tests of it
// are of tenants of their own.
func CatalogSuite(t *testing.T, open func(t *testing.T) Store, rounds int) {
	store := open(t)
	for _, rule := range catalogRules {
		t.Run(rule.name, func(t *testing.T) {
			w := &catalogWorld{T: t, store: store, tenant: rule.name, clock: &catalogClock{}}
			w.clock.at.Store(time.Date(2026, 11, 30, 12, 0, 0, 123456789, time.UTC).UnixMicro())
			w.conn = &Connection{Name: "github", URL: "https://example.com/mcp", Credential: "token"}
			w.scope = Scope{Tenant: w.tenant, Principal: "ann", Labels: map[string]string{"team": "a"}}
			w.key = newCatalogKey(w.scope, w.conn, "identity")
			rule.check(w)
		})
	}
	t.Run("ConcurrentRefreshes", func(t *testing.T) { concurrentRefreshes(t, store, rounds) })
}

var ctx0 = context.Background()

var catalogRules = []struct {
	name  string
	check func(w *catalogWorld)
}{
	{"WhatIsListedIsStored", func(w *catalogWorld) {
		in := remoteTool("b", "Is b.")
		in.Title, in.Output, in.ReadOnly = "B", json.RawMessage(`{"const":1.0}`), true
		huge := remoteTool("huge", strings.Repeat("x", 900<<10))
		s := listed(in, huge, remoteTool("a", "Is a."))
		s.says = "Be careful."
		p := w.process()
		got := p.refresh(s)
		c := w.stored()
		w.is(c, "in another process", "a", "b", "huge")
		if c.version() != got.version() || c.instructions != "Be careful." || w.ref().Doc != c.version() {
			w.Errorf("version %s was stored, %s is read, with instructions %q", got.version(), c.version(), c.instructions)
		}
		for _, p := range []*catalogProcess{p, w.process()} {
			defs, err := p.definitions(ctx0, w.tenant, c, []string{"huge", "b"})
			if err != nil || !reflect.DeepEqual(defs, []RemoteTool{huge, in}) {
				w.Errorf("definitions are not those that were listed: %v", err)
			}
			if n := p.store.gets.Swap(0); n > 2 {
				w.Errorf("two definitions took %d reads", n)
			}
			if _, err := p.definitions(ctx0, w.tenant, c, []string{"b", "huge"}); err != nil || p.store.gets.Load() != 0 {
				w.Errorf("definitions are not kept: %d reads, %v", p.store.gets.Load(), err)
			}
		}
		if _, err := p.definitions(ctx0, w.tenant, c, []string{"a", "c"}); !errors.Is(err, ErrNotFound) {
			w.Errorf("the definition of a tool that there is not: %v", err)
		}
		if other, err := w.process().load(ctx0, []catalogKey{{"another", w.key.ref}}); err != nil || len(other) != 0 {
			w.Errorf("another tenant has it: %v, %v", other, err)
		}
		if _, err := w.process().past(ctx0, "another", c.version()); !errors.Is(err, ErrNotFound) {
			w.Errorf("another tenant reads the manifest: %v", err)
		}
		if _, err := w.process().definitions(ctx0, "another", c, []string{"a"}); !errors.Is(err, ErrNotFound) {
			w.Errorf("another tenant reads definitions: %v", err)
		}
		if _, err := w.process().load(ctx0, []catalogKey{w.key, {"another", w.key.ref}}); !errors.Is(err, ErrInvalid) {
			w.Errorf("two tenants in one load: %v", err)
		}
		if _, err := p.sync(ctx0, w.key, Scope{Tenant: "another"}, w.conn, s, true); !errors.Is(err, ErrInvalid) {
			w.Errorf("a refresh of one tenant for another: %v", err)
		}
	}},

	{"EqualContentMovesOnlyTheTime", func(w *catalogWorld) {
		tools := manyTools(300)
		first := w.process()
		c := first.refresh(listed(tools...))
		before := w.ref()
		if want := w.clock.now().Add(catalogTTL + jitter(w.key, catalogTTL)); !before.After.Equal(want) || before.Seq != 1 {
			w.Errorf("the ref is %+v, want it due at %v", before, want)
		}
		w.clock.advance(2 * time.Minute)
		// Seen by somebody else, of a Spec with another name for it.
		w.scope = Scope{Tenant: w.tenant, Principal: "bob"}
		w.conn = &Connection{Name: "gh", URL: w.conn.URL, Credential: w.conn.Credential}
		slices.Reverse(tools)
		p := w.process()
		now := p.refresh(&listSession{page: paged(tools, 7)})
		after := w.ref()
		want := Ref{Doc: before.Doc, Seq: 2, After: before.After.Add(2 * time.Minute)}
		if !after.Equal(want) || now.version() != c.version() {
			w.Errorf("the ref is %+v, want %+v", after, want)
		}
		if got := p.store.counts(); got != [4]int32{1, 1, 0, 1} {
			w.Errorf("it took %v requests (GetRefs, GetDoc, PutDoc, SwapRef)", got)
		}
		// The time for which it holds is content.
		w.clock.advance(2 * time.Minute)
		hour := time.Hour
		now = p.refresh(&listSession{page: func(context.Context, *string) (ToolPage, error) { return ToolPage{Tools: tools, TTL: &hour}, nil }})
		if at, want := w.ref().After, w.clock.now().Add(hour+jitter(w.key, hour)); now.version() == c.version() || !at.Equal(want) {
			w.Errorf("with a TTL of an hour it is due at %v, want %v", at, want)
		}
		if got := p.store.counts(); got != [4]int32{1, 0, 1, 1} {
			w.Errorf("another TTL took %v requests (GetRefs, GetDoc, PutDoc, SwapRef)", got)
		}
		if d := diffCatalogs(c, now); !reflect.DeepEqual(d, catalogDiff{}) {
			w.Errorf("the difference is %+v", d)
		}
	}},

	{"RemovedIsNotDeleted", func(w *catalogWorld) {
		p := w.process()
		old := p.refresh(named("a", "b", "c"))
		w.clock.advance(time.Hour)
		changed := remoteTool("c", "Is another c.")
		now := p.refresh(listed(remoteTool("b", "Is b."), changed, remoteTool("d", "Is d.")))
		w.is(w.stored(), "now", "b", "c", "d")
		fresh := w.process()
		past, err := fresh.past(ctx0, w.tenant, old.version())
		if err != nil {
			w.Fatal(err)
		}
		w.is(past, "in the past version", "a", "b", "c")
		defs, err := fresh.definitions(ctx0, w.tenant, past, []string{"c", "a"})
		if err != nil || defs[0].Description != "Is c." || defs[1].Description != "Is a." {
			w.Errorf("past definitions are %+v: %v", defs, err)
		}
		want := catalogDiff{Added: []string{"d"}, Removed: []string{"a"}, Changed: []string{"c"}}
		if d := diffCatalogs(past, now); !reflect.DeepEqual(d, want) {
			w.Errorf("the difference is %+v, want %+v", d, want)
		}
		if _, err := fresh.past(ctx0, w.tenant, Digest{1}); !errors.Is(err, ErrNotFound) {
			w.Errorf("a version that never was: %v", err)
		}
		if _, err := fresh.past(ctx0, w.tenant, old.Documents[0]); !errors.Is(err, errNoCatalog) {
			w.Errorf("definitions taken for a manifest: %v", err)
		}
	}},

	{"ToNothingAndBack", func(w *catalogWorld) {
		p := w.process()
		for _, names := range [][]string{nil, {"a"}, nil, {"a"}} {
			p.refresh(named(names...))
			w.is(w.stored(), "now", names...)
			w.clock.advance(time.Hour)
		}
	}},

	{"ReadsAreCounted", func(w *catalogWorld) {
		const servers = 70
		var keys []catalogKey
		tools := manyTools(3000)
		for i := range servers + 1 {
			conn := &Connection{Name: fmt.Sprint("s", i), URL: fmt.Sprint("https://example.com/", i)}
			key := newCatalogKey(w.scope, conn, "")
			keys = append(keys, key)
			if i < servers {
				if _, err := w.process().sync(ctx0, key, w.scope, conn, listed(tools[i*10:][:10]...), false); err != nil {
					w.Fatal(err)
				}
			}
		}
		p := w.process()
		load := func(when string, keys []catalogKey, want int, refs, docs int32) {
			w.Helper()
			got, err := p.load(ctx0, keys)
			if err != nil || len(got) != want {
				w.Fatalf("%s: %d catalogues, %v", when, len(got), err)
			}
			if n := p.store.counts(); n != [4]int32{refs, docs, 0, 0} {
				w.Errorf("%s it took %v requests, want %d GetRefs and %d GetDoc", when, n, refs, docs)
			}
		}
		load("cold", keys, servers, 1, servers)
		if n := p.store.atOnce.Load(); n > catalogParallel {
			w.Errorf("%d reads at once", n)
		}
		load("warm, with one that is not stored", keys, servers, 1, 0)
		load("warm", keys[:servers], servers, 0, 0)
		load("warm, asked twice", append(keys[:servers:servers], keys[0]), servers, 0, 0)
		load("of none", nil, 0, 0, 0)
		w.clock.advance(catalogTTL * 12 / 10)
		load("past the TTL", keys[:servers], servers, 1, 0)
		load("past the TTL, still", keys[:servers], servers, 1, 0)

		// 3,000 tools of one server, and of ten.
		conn := &Connection{URL: "https://example.com/large"}
		large := newCatalogKey(w.scope, conn, "")
		if _, err := p.sync(ctx0, large, w.scope, conn, listed(tools...), false); err != nil {
			w.Fatal(err)
		}
		ten := []catalogKey{}
		for i := range 10 {
			conn := &Connection{URL: fmt.Sprint("https://example.com/ten/", i)}
			ten = append(ten, newCatalogKey(w.scope, conn, ""))
			if _, err := p.sync(ctx0, ten[i], w.scope, conn, listed(tools[i*300:][:300]...), false); err != nil {
				w.Fatal(err)
			}
		}
		p = w.process()
		load("cold, 3,000 tools of one server", []catalogKey{large}, 1, 1, 1)
		load("cold, 3,000 tools of ten servers", ten, 10, 1, 10)
	}},

	{"OneChangeOfManyWritesLittle", func(w *catalogWorld) {
		tools := manyTools(3000)
		p := w.process()
		c := p.refresh(listed(tools...))
		if got := p.store.counts(); got[2] != int32(len(c.Documents)+1) || got[3] != 1 {
			w.Errorf("a first refresh took %v requests", got)
		}
		w.clock.advance(time.Hour)
		tools[1234].Description = "Does something else now."
		p = w.process()
		p.refresh(listed(tools...))
		got := p.store.counts()
		if got[2] > 4 || got[0] != 1 || got[1] != 1 || got[3] != 1 {
			w.Errorf("one change of 3,000 tools took %v requests (GetRefs, GetDoc, PutDoc, SwapRef)", got)
		}
	}},

	{"Floor", func(w *catalogWorld) {
		p := w.process()
		if !p.stale(w.key) {
			w.Error("a catalogue that nobody has loaded is not stale")
		}
		// Where nothing is stored there is no floor.
		broken := &listSession{page: func(context.Context, *string) (ToolPage, error) { return ToolPage{}, ErrSessionLost }}
		if _, err := p.sync(ctx0, w.key, w.scope, w.conn, broken, false); !errors.Is(err, ErrSessionLost) {
			w.Fatalf("the server's failure is %v", err)
		}
		p.refresh(named("a"))
		if p.stale(w.key) {
			w.Error("it is stale at once")
		}
		w.clock.advance(catalogFloor - time.Microsecond)
		p.changed(w.key)
		if p.stale(w.key) || p.heard(w.key) {
			w.Error("a change is told of within the floor")
		}
		w.is(p.refresh(named("b")), "within the floor", "a")
		other := w.process()
		w.is(other.refresh(named("b")), "within the floor of the ref", "a")
		forced, err := other.sync(ctx0, w.key, w.scope, w.conn, named("c"), true)
		if err != nil {
			w.Fatal(err)
		}
		w.is(forced, "by force", "c")
		w.clock.advance(3 * time.Microsecond) // as many as there were listings at one moment
		// The first process does not know of that yet, and its own floor is past.
		if !p.stale(w.key) || !p.heard(w.key) {
			w.Error("past the floor a change is not told of")
		}
		w.is(p.refresh(named("b")), "within the floor of another process", "c")
		w.clock.advance(catalogFloor)
		w.is(p.refresh(named("b")), "past the floor", "b")
		if p.heard(w.key) || p.stale(w.key) {
			w.Error("a change is told of though it has been seen")
		}
		w.clock.advance(catalogTTL)
		if p.stale(w.key) {
			w.Error("the jitter is not waited for")
		}
		w.clock.advance(catalogTTL / 10)
		if !p.stale(w.key) {
			w.Error("it is not stale past its time")
		}
		// A refresh that failed counts for the floor, and for it alone.
		if _, err := p.sync(ctx0, w.key, w.scope, w.conn, broken, false); !errors.Is(err, ErrSessionLost) {
			w.Fatal(err)
		}
		w.is(p.refresh(named("d")), "after a refresh that failed", "b")
		if p.stale(w.key) {
			w.Error("within the floor of a refresh that failed it is stale")
		}
		w.clock.advance(catalogFloor)
		if !p.stale(w.key) {
			w.Error("past the floor of a refresh that failed it is not stale")
		}
	}},

	{"FailureLeavesWhatIsStored", func(w *catalogWorld) {
		p := w.process()
		p.refresh(named("a"))
		before := w.ref()
		w.clock.advance(time.Hour)
		p.changed(w.key)
		boom := errors.New("boom")
		half := &listSession{page: func(_ context.Context, cursor *string) (ToolPage, error) {
			if cursor != nil {
				return ToolPage{}, boom
			}
			next := "x"
			return ToolPage{Tools: []RemoteTool{remoteTool("b", "")}, Next: &next}, nil
		}}
		if _, err := p.sync(ctx0, w.key, w.scope, w.conn, half, false); !errors.Is(err, boom) || !strings.Contains(err.Error(), `"github"`) {
			w.Errorf("got %v", err)
		}
		for _, method := range []string{"PutDoc", "SwapRef"} {
			p.store.hook = func(m string) error {
				if m == method {
					return fmt.Errorf("%w: %w", ErrInvalid, boom) // certain, so that it isn't repeated
				}
				return nil
			}
			if _, err := p.sync(ctx0, w.key, w.scope, w.conn, named("b"), true); !errors.Is(err, boom) {
				w.Errorf("got %v", err)
			}
		}
		p.store.hook = nil
		if !w.ref().Equal(before) {
			w.Errorf("the ref is %+v, it was %+v", w.ref(), before)
		}
		w.is(w.stored(), "after failures", "a")
		w.clock.advance(catalogFloor + time.Second)
		if !p.heard(w.key) {
			w.Error("a change that nobody has seen is forgotten")
		}
		ctx, cancel := context.WithCancel(ctx0)
		cancel()
		if _, err := p.sync(ctx, w.key, w.scope, w.conn, named("b"), true); !errors.Is(err, context.Canceled) {
			w.Errorf("without time: %v", err)
		}
		if _, err := p.load(ctx, []catalogKey{w.key}); !errors.Is(err, context.Canceled) {
			w.Errorf("load without time: %v", err)
		}
		p = w.process()
		p.store.hook = func(m string) error { return boom }
		if _, err := p.load(ctx0, []catalogKey{w.key}); !errors.Is(err, boom) {
			w.Errorf("load from a store that fails: %v", err)
		}
		p.store.hook = func(m string) error {
			if m == "GetDoc" {
				return boom
			}
			return nil
		}
		if _, err := p.load(ctx0, []catalogKey{w.key}); !errors.Is(err, boom) {
			w.Errorf("load from a store that reads no documents: %v", err)
		}
	}},

	{"LaterStartWins", func(w *catalogWorld) {
		early, late := w.process(), w.process()
		// The early one lists a, and has not stored it when the late one has
		// listed and stored b.
		s := named("a")
		inner := s.page
		s.page = func(ctx context.Context, c *string) (ToolPage, error) {
			w.clock.advance(time.Second)
			late.refresh(named("b"))
			w.clock.advance(time.Second)
			return inner(ctx, c)
		}
		w.is(early.refresh(s), "to the early one", "b")
		w.is(w.stored(), "in the end", "b")
		if seq := w.ref().Seq; seq != 1 {
			w.Errorf("the ref was swapped %d times", seq)
		}
		// Whoever knows of a later time does not go back to an earlier one, also
		// where content is equal.
		w.clock.advance(time.Hour)
		s.page = func(ctx context.Context, c *string) (ToolPage, error) {
			w.clock.advance(time.Second)
			late.refresh(named("a"))
			return inner(ctx, c)
		}
		at := w.clock.now().Add(time.Second)
		w.is(early.refresh(s), "to the early one", "a")
		if got, want := w.ref().After, at.Add(catalogTTL+jitter(w.key, catalogTTL)); !got.Equal(want) {
			w.Errorf("it is due at %v, want %v", got, want)
		}
		// And the other way about: the early one stores, the late one finds it
		// there when it swaps.
		w.clock.advance(time.Hour)
		inner = named("late").page
		s.page = func(ctx context.Context, c *string) (ToolPage, error) {
			late := w.clock.now()
			w.clock.at.Store(late.Add(-time.Second).UnixMicro())
			if _, err := early.sync(ctx0, w.key, w.scope, w.conn, named("early"), false); err != nil {
				w.Fatal(err)
			}
			w.clock.at.Store(late.UnixMicro())
			return inner(ctx, c)
		}
		w.is(w.process().refresh(s), "to the late one", "late")
		w.is(w.stored(), "in the end", "late")
	}},

	{"LoadBesideSync", func(w *catalogWorld) {
		p := w.process()
		p.refresh(named("a"))
		w.clock.advance(time.Hour)
		p.store.read = func() { p.refresh(named("b")) }
		got, err := p.load(ctx0, []catalogKey{w.key}) // read before the refresh, answered after it
		if err != nil {
			w.Fatal(err)
		}
		w.is(got[w.key], "as it was read", "a")
		p.store.counts()
		got, err = p.load(ctx0, []catalogKey{w.key})
		if n := p.store.counts(); err != nil || n != [4]int32{} {
			w.Fatalf("it took %v requests: %v", n, err)
		}
		w.is(got[w.key], "as it is known", "b")
	}},

	{"WrongClock", func(w *catalogWorld) {
		p := w.process()
		ahead := w.process()
		ahead.now = func() time.Time { return w.clock.now().Add(48 * time.Hour) }
		ahead.refresh(named("a"))
		got, err := p.load(ctx0, []catalogKey{w.key})
		if err != nil {
			w.Fatal(err)
		}
		w.is(got[w.key], "from two days ahead", "a")
		if !p.stale(w.key) {
			w.Error("a time two days ahead is believed")
		}
		w.is(p.refresh(named("b")), "now", "b")
		w.is(w.stored(), "now", "b")
		// A clock that was put back does not hold refreshes up either.
		p = w.process()
		p.refresh(named("b"))
		w.clock.advance(-48 * time.Hour)
		p.changed(w.key)
		if !p.heard(w.key) {
			w.Error("nothing is heard after the clock was put back")
		}
		w.is(p.refresh(named("c")), "after the clock was put back", "c")
	}},

	{"LostAnswer", func(w *catalogWorld) {
		p := w.process()
		n := 0
		p.store.lost = func() bool { n++; return n%2 == 1 }
		w.is(p.refresh(named("a")), "after a lost answer", "a")
		if seq := w.ref().Seq; seq != 1 {
			w.Errorf("the ref was swapped %d times", seq)
		}
		// Another one's swap comes between the lost answer and the repetition.
		w.clock.advance(time.Hour)
		other := w.process()
		n = 0
		p.store.lost = func() bool {
			if n++; n > 1 {
				return false
			}
			w.clock.advance(time.Second)
			if _, err := other.sync(ctx0, w.key, w.scope, w.conn, named("c"), true); err != nil {
				w.Fatal(err)
			}
			return true
		}
		w.is(p.refresh(named("b")), "after another's swap", "c")
		w.is(w.stored(), "in the end", "c")
	}},

	{"ListChangesMeanwhile", func(w *catalogWorld) {
		p := w.process()
		listings := 0
		s := &listSession{page: func(context.Context, *string) (ToolPage, error) {
			if listings++; listings == 1 {
				p.changed(w.key)
			}
			w.clock.advance(time.Second)
			return ToolPage{Tools: []RemoteTool{remoteTool(fmt.Sprint("v", listings), "")}}, nil
		}}
		at := w.clock.now().Add(time.Second)
		w.is(p.refresh(s), "after a change in mid-listing", "v2")
		if got, want := w.ref().After, at.Add(catalogTTL+jitter(w.key, catalogTTL)); !got.Equal(want) {
			w.Errorf("it is due at %v, counted from the second listing that is %v", got, want)
		}
		if w.clock.advance(catalogFloor); p.heard(w.key) {
			w.Error("a change that was seen is told of")
		}
		// A storm is bounded, and its last change is seen later.
		listings = 0
		s.page = func(context.Context, *string) (ToolPage, error) {
			listings++
			for range 1000 {
				p.changed(w.key)
			}
			return ToolPage{Tools: []RemoteTool{remoteTool(fmt.Sprint("w", listings), "")}}, nil
		}
		w.is(p.refresh(s), "in a storm", "w3")
		if p.heard(w.key) {
			w.Error("within the floor the storm is heard")
		}
		if w.clock.advance(catalogFloor + time.Second); !p.heard(w.key) || !p.stale(w.key) {
			w.Error("the last change of the storm is lost")
		}
	}},

	{"BrokenManifests", func(w *catalogWorld) {
		good := w.process().refresh(named("a"))
		conn := func(i int) *Connection {
			return &Connection{Name: "broken", URL: fmt.Sprint("https://example.com/", i)}
		}
		var keys []catalogKey
		far := w.clock.now().Add(time.Hour)
		for i, d := range []Digest{
			{1, 2, 3}, // a document that is not there
			w.put("not JSON"), w.put(`{"format":1,"ttl_seconds":60,"tools":[{"name":"a","doc":7}]}`),
			w.put(`{"format":99,"ttl_seconds":"new"}`),
		} {
			key := newCatalogKey(w.scope, conn(i), "")
			w.swapRef(key.ref, Ref{Doc: d, After: far})
			keys = append(keys, key)
		}
		p := w.process()
		for range 2 {
			got, err := p.load(ctx0, append(keys, w.key))
			if err != nil || len(got) != 1 || got[w.key].version() != good.version() {
				w.Fatalf("beside broken ones there are %v: %v", got, err)
			}
		}
		for i, key := range keys {
			if !p.stale(key) {
				w.Errorf("broken catalogue %d is not stale", i)
			}
			c, err := p.sync(ctx0, key, w.scope, conn(i), named("b"), i%2 == 0)
			if i == 3 {
				if !errors.Is(err, errNewerFormat) {
					w.Errorf("a refresh of one that a newer release wrote: %v", err)
				}
				continue
			}
			if err != nil {
				w.Fatal(err)
			}
			w.is(c, "after a refresh", "b")
		}
		got, err := w.process().load(ctx0, keys)
		if err != nil || len(got) != 3 {
			w.Errorf("after refreshes there are %v: %v", got, err)
		}
	}},

	{"DocumentThatIsGone", func(w *catalogWorld) {
		// A manifest is there, and its document is not.
		l, err := readList(ctx0, named("a"))
		if err != nil {
			w.Fatal(err)
		}
		c, docs, err := newCatalog(w.scope, w.conn, l)
		if err != nil {
			w.Fatal(err)
		}
		w.swapRef(w.key.ref, Ref{Doc: w.put(string(docs[c.digest])), After: w.clock.now()})
		w.clock.advance(time.Hour)
		p := w.process()
		if _, err := p.definitions(ctx0, w.tenant, c, []string{"a"}); !errors.Is(err, ErrNotFound) {
			w.Fatalf("got %v", err)
		}
		if now := p.refresh(named("a")); now.version() != c.version() {
			w.Error("the catalogue is another one")
		}
		if defs, err := w.process().definitions(ctx0, w.tenant, c, []string{"a"}); err != nil || defs[0].Description != "Is a." {
			w.Errorf("after a refresh: %v", err)
		}
		// Written by a newer release.
		newer := *c
		newer.manifest.Documents = []Digest{w.put(`{"format":2,"tools":{}}`)}
		if _, err := p.definitions(ctx0, w.tenant, &newer, []string{"a"}); !errors.Is(err, errNewerFormat) {
			w.Errorf("got %v", err)
		}
		newer.manifest.Documents = []Digest{w.put(`{"format":1,"tools":[{"name":"b"}]}`)}
		if _, err := p.definitions(ctx0, w.tenant, &newer, []string{"a"}); !errors.Is(err, errNoCatalog) {
			w.Errorf("got %v", err)
		}
	}},

	{"ConcurrentSyncsAreOne", func(w *catalogWorld) {
		p := w.process()
		p.refresh(named("old"))
		w.clock.advance(time.Hour)
		var listings atomic.Int32
		begun, goOn := make(chan int32), make(chan bool)
		s := &listSession{page: func(ctx context.Context, _ *string) (ToolPage, error) {
			n := listings.Add(1)
			begun <- n
			select {
			case <-goOn:
			case <-ctx.Done():
				return ToolPage{}, ctx.Err()
			}
			return ToolPage{Tools: []RemoteTool{remoteTool(fmt.Sprint("v", n), "")}}, nil
		}}
		answers := make(chan string, 100)
		sync := func(ctx context.Context, force bool) {
			c, err := p.sync(ctx, w.key, w.scope, w.conn, s, force)
			if err != nil {
				answers <- err.Error()
				return
			}
			answers <- c.Tools[0].Name
		}
		waits := func(when string, n int, want string) {
			w.Helper()
			for range n {
				if got := <-answers; got != want {
					w.Errorf("%s: got %q, want %q", when, got, want)
				}
			}
		}
		go sync(ctx0, false)
		<-begun
		for range 20 {
			go sync(ctx0, false) // join, now or, within the floor, later
		}
		goOn <- true
		waits("without force", 21, "v1")
		if n := listings.Load(); n != 1 {
			w.Errorf("%d listings", n)
		}

		// A forced one does not take an answer that began before it.
		w.clock.advance(time.Hour)
		go sync(ctx0, false)
		<-begun
		go sync(ctx0, true)
		goOn <- true
		waits("the first", 1, "v2")
		<-begun
		goOn <- true
		waits("by force", 1, "v3")

		// Nor does anybody wait beyond their time, or fail with another's.
		w.clock.advance(time.Hour)
		ctx, cancel := context.WithCancel(ctx0)
		go sync(ctx, false)
		<-begun
		go sync(ctx0, false)
		late, stop := context.WithCancel(ctx0)
		stop()
		if _, err := p.sync(late, w.key, w.scope, w.conn, s, true); !errors.Is(err, context.Canceled) {
			w.Errorf("who has no time got %v", err)
		}
		cancel()
		// Whoever waited takes over: within the floor, of what is stored.
		got := []string{<-answers, <-answers}
		slices.Sort(got)
		if !strings.Contains(got[0], "context canceled") || got[1] != "v3" {
			w.Errorf("got %q", got)
		}
	}},

	{"ForcedTakesOver", func(w *catalogWorld) {
		p := w.process()
		begun, goOn := make(chan bool), make(chan bool)
		blocked := &listSession{page: func(ctx context.Context, _ *string) (ToolPage, error) {
			begun <- true
			select {
			case <-goOn:
				panic("the connector's fault")
			case <-ctx.Done():
				return ToolPage{}, ctx.Err()
			}
		}}
		ctx, cancel := context.WithCancel(ctx0)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := p.sync(ctx, w.key, w.scope, w.conn, blocked, false); !errors.Is(err, context.Canceled) {
				w.Errorf("who ran out of time got %v", err)
			}
		})
		<-begun
		for _, force := range []bool{true, false} {
			wg.Go(func() {
				c, err := p.sync(ctx0, w.key, w.scope, w.conn, named("a"), force)
				if err != nil || c.find("a") == nil {
					w.Errorf("who waited got %v", err)
				}
			})
		}
		cancel()
		wg.Wait()
		// A panic leaves nobody waiting.
		w.clock.advance(time.Hour)
		wg.Go(func() {
			defer func() {
				if recover() == nil {
					w.Error("the panic is swallowed")
				}
			}()
			p.sync(ctx0, w.key, w.scope, w.conn, blocked, true)
		})
		<-begun
		goOn <- true
		wg.Wait()
		if _, err := p.sync(ctx0, w.key, w.scope, w.conn, named("a"), true); err != nil {
			w.Error(err)
		}
	}},

	{"Sweep", func(w *catalogWorld) {
		w.conn = &Connection{Name: "local", Command: []string{"prog", "--flag"}, Credential: "c", PerPrincipal: true, Allow: []string{"a"}}
		w.key = newCatalogKey(w.scope, w.conn, "identity")
		p := w.process()
		p.refresh(named("a"))
		refKey := RefKey{w.tenant, w.key.ref}
		due := func(p *catalogProcess) *dueCatalog {
			w.Helper()
			d, err := p.due(ctx0, refKey)
			if err != nil {
				w.Fatal(err)
			}
			return d
		}
		isListed := func() bool {
			w.Helper()
			for cursor := ""; ; {
				keys, next, err := w.store.DueRefs(ctx0, w.clock.now(), cursor, 100)
				if err != nil {
					w.Fatal(err)
				}
				if slices.Contains(keys, refKey) {
					return true
				}
				if cursor = next; cursor == "" {
					return false
				}
			}
		}
		if isListed() || due(p) != nil {
			w.Error("it is due at once")
		}
		w.clock.advance(catalogTTL * 11 / 10)
		if !isListed() {
			w.Error("it is not listed as due")
		}
		q := w.process()
		d := due(q)
		want := Connection{Name: "local", Command: []string{"prog", "--flag"}, Credential: "c", PerPrincipal: true}
		if d == nil || d.key != w.key || !reflect.DeepEqual(d.connection, want) || !reflect.DeepEqual(d.scope, w.scope) {
			w.Fatalf("due is %+v", d)
		}
		if newCatalogKey(d.scope, &d.connection, "identity") != w.key {
			w.Error("what is due has another key")
		}
		if n := q.store.counts(); n != [4]int32{1, 1, 0, 0} {
			w.Errorf("due took %v requests", n)
		}
		if _, err := q.sync(ctx0, d.key, d.scope, &d.connection, named("a"), false); err != nil {
			w.Fatal(err)
		}
		if isListed() || due(q) != nil || q.stale(w.key) {
			w.Error("it is due after it was refreshed")
		}

		// A server that can't be reached is left alone for a while; a listing
		// that is under way still wins.
		w.clock.advance(catalogTTL * 11 / 10)
		version := w.stored().version()
		if ends, err := q.postpone(ctx0, w.key); err != nil || ends {
			w.Fatal(ends, err)
		}
		if isListed() || due(q) != nil || w.stored().version() != version {
			w.Error("it is due though it was postponed")
		}
		late := w.process()
		late.now = func() time.Time { return w.clock.now().Add(-5 * time.Minute) }
		if _, err := late.sync(ctx0, w.key, w.scope, w.conn, named("b"), true); err != nil {
			w.Fatal(err)
		}
		w.is(w.stored(), "from a listing that was under way", "b")
		w.clock.advance(catalogTTL)
		if d := due(q); d == nil {
			w.Error("what was postponed is never due")
		}
		// Postponing what is not due changes nothing.
		q.refresh(named("b"))
		before := w.ref()
		postpone := func(ctx context.Context, key catalogKey) error {
			_, err := q.postpone(ctx, key)
			return err
		}
		for _, f := range []func(context.Context, catalogKey) error{postpone, q.retire} {
			if err := f(ctx0, w.key); err != nil || !w.ref().Equal(before) {
				w.Errorf("it moved to %+v: %v", w.ref(), err)
			}
		}

		w.clock.advance(time.Hour)
		if err := q.retire(ctx0, w.key); err != nil {
			w.Fatal(err)
		}
		w.clock.advance(1000 * time.Hour)
		if isListed() || due(q) != nil {
			w.Error("it is due though it was retired")
		}
		w.is(w.stored(), "retired", "b")
		if !q.stale(w.key) {
			w.Error("retired, it is not stale")
		}
		w.is(q.refresh(named("c")), "after it was retired", "c")
		if w.clock.advance(time.Hour); due(q) == nil {
			w.Error("it is never due again")
		}

		// The waits behind failures grow, whoever sweeps, and end; a refresh
		// begins anew.
		version = w.stored().version()
		var waits []time.Duration
		for ends := false; !ends; {
			if len(waits) > 100 {
				w.Fatal("it never ends")
			}
			sweeper := w.process()
			var err error
			if ends, err = sweeper.postpone(ctx0, w.key); err != nil {
				w.Fatal(err)
			}
			if w.stored().version() != version {
				w.Error("its version is another one, since it could not be read")
			}
			if w.clock.advance(catalogTTL/2 + time.Second); !w.process().stale(w.key) {
				w.Errorf("after %d failures a Run does not ask the server", len(waits)+1)
			}
			if wait := w.ref().After.Sub(w.clock.now()) + catalogTTL/2 + time.Second; !ends {
				waits = append(waits, wait)
				w.clock.advance(wait)
				if due(w.process()) == nil {
					w.Error("it is not due when its wait is over")
				}
			}
		}
		if n := len(waits); n != maxSweepFailures-1 || waits[0] < catalogTTL/2 || waits[n-1] < maxSweepWait || waits[n-1] > maxSweepWait*11/10 {
			w.Errorf("it waits for %v", waits)
		}
		for i, wait := range waits[1:] {
			if wait < waits[i] || wait > waits[i]*21/10 {
				w.Errorf("it waits for %v and then %v", waits[i], wait)
			}
		}
		w.clock.advance(1000 * time.Hour)
		if isListed() || due(q) != nil {
			w.Error("it is due though the sweep gave it up")
		}
		w.is(w.process().refresh(named("c")), "after the sweep gave it up", "c")
		if c := w.stored(); c.failing != nil || c.version() != version {
			w.Errorf("read anew it is version %s of failures %+v", c.version(), c.failing)
		}
		w.clock.advance(time.Hour)
		if _, err := q.postpone(ctx0, w.key); err != nil || w.stored().failing.Failures != 1 {
			w.Errorf("the first failure is counted as %+v, %v", w.stored().failing, err)
		}

		// Refs of others and broken ones.
		past := w.clock.now().Add(-time.Hour)
		w.swapRef("other", Ref{Doc: w.ref().Doc, After: past})
		if d, err := q.due(ctx0, RefKey{w.tenant, "other"}); d != nil || err != nil {
			w.Errorf("a ref that is no catalogue: %v, %v", d, err)
		}
		if d, err := q.due(ctx0, RefKey{w.tenant, catalogPrefix + "none"}); d != nil || err != nil {
			w.Errorf("a ref that is not there: %v, %v", d, err)
		}
		for i, c := range []struct {
			doc   string
			after time.Time
		}{{"broken", time.Time{}}, {`{"format":2}`, past}} {
			name := catalogPrefix + fmt.Sprint(i)
			w.swapRef(name, Ref{Doc: w.put(c.doc), After: past})
			if d, err := q.due(ctx0, RefKey{w.tenant, name}); d != nil || err != nil {
				w.Errorf("%s: %v, %v", c.doc, d, err)
			}
			refs, err := w.store.GetRefs(ctx0, w.tenant, []string{name})
			if err != nil || !refs[name].After.Equal(c.after) {
				w.Errorf("%s is due at %v, want %v: %v", c.doc, refs[name].After, c.after, err)
			}
		}
		q.store.hook = func(string) error { return ErrUnavailable }
		if _, err := q.due(ctx0, refKey); !errors.Is(err, ErrUnavailable) {
			w.Errorf("of a store that fails: %v", err)
		}
	}},
}

// Of 16 processes that refresh one catalogue at once the one whose listing
// began last wins, whole, whichever way their swaps meet.
func concurrentRefreshes(t *testing.T, store Store, rounds int) {
	const processes = 16
	scope := Scope{Tenant: "concurrent"}
	conn := &Connection{Name: "x", URL: "https://example.com"}
	base := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	contended := 0
	for round := range rounds {
		key := newCatalogKey(scope, conn, fmt.Sprint(round))
		answers := make([]*catalog, processes)
		begin := make(chan bool)
		var wg sync.WaitGroup
		var swaps atomic.Int32
		var listing sync.WaitGroup
		listing.Add(processes)
		for i := range processes {
			// Each has seen other tools: a_i and some that several saw.
			s := named(fmt.Sprint("a", i), fmt.Sprint("b", i/2), fmt.Sprint("c", i%4))
			page, lists := s.page, sync.OnceFunc(listing.Done)
			s.page = func(ctx context.Context, c *string) (ToolPage, error) {
				lists() // all of them, before one stores
				listing.Wait()
				return page(ctx, c)
			}
			at := base.Add(time.Duration(i*7%processes) * time.Millisecond)
			p := &countedStore{Store: store}
			if (round+i)%40 == 0 {
				var once atomic.Bool
				p.lost = func() bool { return once.CompareAndSwap(false, true) }
			}
			cs := newCatalogs(p, func() time.Time { return at }, nil)
			wg.Go(func() {
				<-begin
				defer lists()
				c, err := cs.sync(ctx0, key, scope, conn, s, true)
				if err != nil {
					t.Errorf("round %d: %v", round, err)
				}
				answers[i] = c
				swaps.Add(p.swaps.Load())
			})
		}
		close(begin)
		wg.Wait()
		if t.Failed() {
			return
		}
		if int(swaps.Load()) > processes {
			contended++
		}
		last := 0 // whose listing began last
		for i := range processes {
			if i*7%processes == processes-1 {
				last = i
			}
		}
		reader := newCatalogs(store, func() time.Time { return base }, nil)
		got, err := reader.load(ctx0, []catalogKey{key})
		if err != nil {
			t.Fatal(err)
		}
		c := got[key]
		want := []string{fmt.Sprint("a", last), fmt.Sprint("b", last/2), fmt.Sprint("c", last%4)}
		if c == nil || len(c.Tools) != 3 || c.version() != answers[last].version() {
			t.Fatalf("round %d: %+v is stored", round, c)
		}
		defs, err := reader.definitions(ctx0, scope.Tenant, c, want)
		if err != nil || defs[0].Description != "Is "+want[0]+"." {
			t.Fatalf("round %d: %v", round, err)
		}
		began := func(i int) int { return i * 7 % processes }
		for i, a := range answers {
			j := -1
			for n := range processes {
				if a.find(fmt.Sprint("a", n)) != nil {
					j = n
				}
			}
			if j < 0 || began(j) < began(i) {
				t.Fatalf("round %d: process %d was answered with what process %d saw before", round, i, j)
			}
		}
	}
	t.Logf("%d rounds, %d of them contended", rounds, contended)
}
