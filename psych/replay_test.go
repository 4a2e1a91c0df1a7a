package psych_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/psych"
)

// replay makes each request of a Run again. The error is that of the first that
// is not what the log says.
func replay(rt *psych.Runtime, key psych.RunKey) (calls []*psych.ReplayedCall, err error) {
	for c, failed := range rt.Replay(context.Background(), key, nil) {
		if failed != nil {
			return calls, failed
		}
		calls = append(calls, c)
		switch {
		case c.Call != len(calls):
			return calls, fmt.Errorf("call %d is numbered %d", len(calls), c.Call)
		case c.Err != nil && err == nil:
			err = fmt.Errorf("call %d: %w", c.Call, c.Err)
		case c.Difference != nil && err == nil:
			err = fmt.Errorf("call %d: %v", c.Call, c.Difference)
		}
	}
	return calls, err
}

// sameRequest compares all of two requests.
func sameRequest(a, b *psych.Request) error {
	parts := func(r *psych.Request) []psych.Wire {
		return slices.Concat([]psych.Wire{r.Tools, r.System[0], r.System[1], r.Tail}, r.History)
	}
	was, is := parts(a), parts(b)
	if len(was) != len(is) {
		return fmt.Errorf("%d parts, and %d", len(was), len(is))
	}
	for i := range was {
		if !bytes.Equal(was[i].Bytes, is[i].Bytes) {
			return fmt.Errorf("part %d: %s", i, difference(was[i].Bytes, is[i].Bytes))
		}
		if was[i].Chain != is[i].Chain || was[i].Marker != is[i].Marker || was[i].Chars != is[i].Chars {
			return fmt.Errorf("part %d: %+v, and %+v", i, was[i], is[i])
		}
	}
	if a.Model != b.Model || a.Options != b.Options || a.CacheKey != b.CacheKey || !slices.Equal(a.Breaks, b.Breaks) {
		return fmt.Errorf("%q %+v %s %v, and %q %+v %s %v", a.Model, a.Options, a.CacheKey, a.Breaks, b.Model, b.Options, b.CacheKey, b.Breaks)
	}
	return nil
}

// replays makes each request of each Run of the harness again: whatever a test
// did, it is what the log says, unless the test says that it can't be.
func (h *harness) replays() {
	if h.unreplayable || h.t.Failed() {
		return
	}
	ctx := context.Background()
	rt, err := psych.New(h.tap.Store, &psych.Options{Blobs: h.blobs, Models: h.o.Models})
	if err != nil {
		h.t.Fatal(err)
	}
	for cursor := ""; ; {
		page, next, err := h.tap.Store.ListRuns(ctx, "t", cursor, 100)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, info := range page {
			if _, err := replay(rt, info.Key); err != nil {
				h.t.Errorf("replay of run %s: %v", info.Key, err)
			}
		}
		if cursor = next; cursor == "" {
			return
		}
	}
}

// A damaged Store shows other entries and documents than there are.
type damaged struct {
	psych.Store
	entry func(*psych.Entry)
	doc   func([]byte) ([]byte, error)
}

func (s damaged) Unwrap() psych.Store { return s.Store }

func (s damaged) Read(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
	page, err := s.Store.Read(ctx, key, after, limit)
	if s.entry != nil {
		page.Entries = slices.Clone(page.Entries)
		for i := range page.Entries {
			s.entry(&page.Entries[i])
		}
	}
	return page, err
}

func (s damaged) GetDoc(ctx context.Context, tenant string, d psych.Digest) ([]byte, error) {
	doc, err := s.Store.GetDoc(ctx, tenant, d)
	if err == nil && s.doc != nil {
		return s.doc(doc)
	}
	return doc, err
}

// replayer is a Runtime that knows nothing, on what a Store is turned into.
func (h *harness) replayer(s psych.Store, blobs psych.BlobStore, m psych.Model) *psych.Runtime {
	h.t.Helper()
	rt, err := psych.New(s, &psych.Options{Blobs: blobs, Models: psych.OneModel(m)})
	if err != nil {
		h.t.Fatal(err)
	}
	return rt
}

// named is a Model with another Codec, by its ID and what it makes of tools.
type named struct {
	psych.Model
	id string
}

func (m named) Codec() psych.Codec { return namedCodec{m.Model.Codec(), m.id} }

type namedCodec struct {
	psych.Codec
	id string
}

func (c namedCodec) ID() string { return c.id }

func (c namedCodec) EncodeTools(defs []psych.ToolDef) ([]byte, error) {
	b, err := c.Codec.EncodeTools(defs)
	return append([]byte{' '}, b...), err
}

// A Run whose model changes between exchanges, also to one that differs by
// keeping past tails alone, goes on, and says so; each of its calls is made
// again by the model that it had.
func TestReplayAcrossModels(t *testing.T) {
	for _, cold := range []bool{false, true} {
		t.Run(fmt.Sprint("cold ", cold), func(t *testing.T) {
			h := newHarness(t, threeTurns+"- text: at last\n", echo)
			var model psych.Model = h.model
			resolve := func(context.Context, string) (psych.Model, error) { return model, nil }
			restart := func() {
				h.o.Models = resolve
				rt, err := psych.New(h.tap, &h.o)
				if err != nil {
					t.Fatal(err)
				}
				h.rt = rt
			}
			restart()
			h.unreplayable = true // by one model
			all := []psych.Model{h.model, keeper{h.model}, named{h.model, "other"}}
			key := h.start("go")
			h.drive(key)
			for _, m := range []psych.Model{all[1], all[0], all[2]} {
				model = m
				if cold {
					restart()
				}
				h.send(key, "more")
			}
			rep := h.report(key)
			var breaks []string
			for i, m := range rep.ModelCalls {
				for _, b := range m.Breaks {
					breaks = append(breaks, fmt.Sprint(i+1, " ", b.Cause))
				}
			}
			// From keeping tails to dropping them, and back, the history changes.
			if got := strings.Join(breaks, ", "); rep.Status != psych.StatusCompleted || got != "5 codec_changed, 6 codec_changed, 7 codec_changed" {
				t.Errorf("%s, breaks %s", rep.Status, got)
			}
			ctx := context.Background()
			for c, err := range h.replayer(h.tap.Store, h.blobs, all[0]).Replay(ctx, key, nil) {
				if err != nil {
					t.Fatal(err)
				}
				var lacking *psych.CodecError
				known := c.Call <= 4 || c.Call == 6
				if known != c.Equal() || !known && (!errors.As(c.Err, &lacking) || lacking.Call != c.Call || lacking.Codec != []string{"script/1+tails", "", "other"}[c.Call-5] || !slices.Equal(lacking.Have, []string{"script/1"})) {
					t.Errorf("call %d with one model: %v, %v", c.Call, c.Err, c.Difference)
				}
			}
			rt := h.replayer(h.tap.Store, h.blobs, all[0])
			for c, err := range rt.Replay(ctx, key, &psych.ReplayOptions{Models: all}) {
				if err != nil || !c.Equal() {
					t.Errorf("call %d with all models: %v, %v, %v", c.Call, err, c.Err, c.Difference)
				}
			}
			d, err := rt.Diff(ctx, key, 4, 5, &psych.ReplayOptions{Models: all})
			if err != nil {
				t.Fatal(err)
			}
			if c := d.Changes[0]; c.What != "the encoding" || c.A != "script/1" || c.B != "script/1+tails" || c.Cause != psych.CodecChanged || c.Call != 5 {
				t.Errorf("%+v", c)
			}
			if _, err := rt.Diff(ctx, key, 4, 5, nil); !errors.As(err, new(*psych.CodecError)) {
				t.Errorf("a diff without the model of one side: %v", err)
			}
		})
	}
}

// As another model's the requests of a Run are those that it would have had.
func TestReplayAsAnother(t *testing.T) {
	play := func(wrap func(psych.Model) psych.Model) (*harness, psych.RunKey) {
		h := newHarness(t, threeTurns, echo)
		h.o.Models = psych.OneModel(wrap(h.model))
		rt, err := psych.New(h.tap, &h.o)
		if err != nil {
			t.Fatal(err)
		}
		h.rt = rt
		key := h.start("go")
		h.drive(key)
		h.send(key, "more")
		return h, key
	}
	h, key := play(func(m psych.Model) psych.Model { return m })
	other, _ := play(func(m psych.Model) psych.Model { return keeper{m} })
	want := other.model.Requests()
	n := 0
	for c, err := range h.rt.Replay(context.Background(), key, &psych.ReplayOptions{As: keeper{h.model}}) {
		if err != nil || c.Err != nil || c.Difference != nil {
			t.Fatal(err, c.Err, c.Difference)
		}
		c.Request.CacheKey, c.Request.Tail = want[n].Request.CacheKey, want[n].Request.Tail // of another Run, perhaps a minute later
		if n == 0 {
			if err := sameRequest(&want[n].Request, c.Request); err != nil {
				t.Errorf("request %d: %v", n+1, err)
			}
		}
		if a, b := c.Request, &want[n].Request; len(a.History) != len(b.History) || !slices.Equal(a.Breaks, b.Breaks) {
			t.Errorf("request %d: %d parts with %v, want %d with %v", n+1, len(a.History), a.Breaks, len(b.History), b.Breaks)
		}
		n++
	}
	if n != len(want) {
		t.Errorf("%d requests, want %d", n, len(want))
	}
}

// What is gone is said of the calls that need it, and of no others.
func TestReplayLacks(t *testing.T) {
	ctx := context.Background()
	n := newNetwork()
	conn := n.add("small", remoteTool("look", 40))
	h := newHarness(t, "steps: [{calls: [{name: sized, arguments: {n: 20000}}]}, {text: '"+strings.Repeat("y", 200_000)+"'}, {text: two}]", sized)
	h.withServers(n, conn)
	key := h.start("go")
	h.drive(key)
	h.send(key, "more")
	check := func(rt *psych.Runtime, want error, lacking ...int) {
		t.Helper()
		for c, err := range rt.Replay(ctx, key, nil) {
			switch lacks := slices.Contains(lacking, c.Call); {
			case err != nil:
				t.Fatal(err)
			case lacks && (!errors.Is(c.Err, want) || c.Request != nil), !lacks && !c.Equal():
				t.Errorf("call %d: %v, %v; want %v of the calls %v", c.Call, c.Err, c.Difference, want, lacking)
			}
		}
	}
	// The answer of turn 2 lies in the BlobStore.
	check(h.replayer(h.tap.Store, nil, h.model), psych.ErrNoBlobStore, 3)
	check(h.replayer(h.tap.Store, memory.NewBlobs(nil), h.model), psych.ErrNotFound, 3)
	without := func(part string) psych.Store {
		return damaged{Store: h.tap.Store, doc: func(doc []byte) ([]byte, error) {
			if bytes.Contains(doc, []byte(part)) {
				return nil, psych.ErrNotFound
			}
			return doc, nil
		}}
	}
	check(h.replayer(without(`"strategy"`), h.blobs, h.model), psych.ErrNotFound, 1, 2, 3)
	for c, err := range h.replayer(without(`"instructions"`), h.blobs, h.model).Replay(ctx, key, nil) {
		if c != nil || !errors.Is(err, psych.ErrNotFound) || !strings.Contains(err.Error(), "version") {
			t.Errorf("without the Version: %+v, %v", c, err)
		}
	}
	failed := errors.New("no disk")
	for c, err := range h.replayer(damaged{Store: h.tap.Store, doc: func([]byte) ([]byte, error) { return nil, failed }}, h.blobs, h.model).Replay(ctx, key, nil) {
		if c != nil || !errors.Is(err, failed) {
			t.Errorf("with a Store that fails: %+v, %v", c, err)
		}
	}
	for c, err := range h.rt.Replay(ctx, psych.RunKey{Tenant: "t", RunID: strings.Repeat("0", 32)}, nil) {
		if c != nil || !errors.Is(err, psych.ErrNotFound) {
			t.Errorf("no such Run: %+v, %v", c, err)
		}
	}
	bare, err := psych.New(h.tap.Store, nil)
	if err != nil {
		t.Fatal(err)
	}
	for c, err := range bare.Replay(ctx, key, nil) {
		if c != nil || !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("without any model: %+v, %v", c, err)
		}
	}
	if _, err := bare.Diff(ctx, key, 2, 2, nil); !errors.Is(err, psych.ErrInvalid) {
		t.Errorf("a call and itself: %v", err)
	}
	if _, err := h.rt.Diff(ctx, key, 1, 4, nil); !errors.Is(err, psych.ErrNotFound) || !strings.Contains(err.Error(), "has 3") {
		t.Errorf("a call that is not there: %v", err)
	}
}

// A Run of a newer release's projection or format is refused as such.
func TestReplayOfANewerRelease(t *testing.T) {
	h := newHarness(t, "steps: [{text: done}]")
	key := h.start("go")
	h.drive(key)
	for name, c := range map[string]struct{ old, new, what string }{
		"projection": {`"projection":2`, `"projection":1000`, "projection version 1000"},
		"format":     {`{"a":1,"e":{"turn":1,`, `{"v":99,"a":1,"e":{"turn":1,`, "record version 99"},
	} {
		t.Run(name, func(t *testing.T) {
			hits := 0
			s := damaged{Store: h.tap.Store, entry: func(e *psych.Entry) {
				if bytes.Contains(e.Data, []byte(c.old)) {
					e.Data = bytes.Replace(e.Data, []byte(c.old), []byte(c.new), 1)
					hits++
				}
			}}
			var last error
			for _, err := range h.replayer(s, h.blobs, h.model).Replay(context.Background(), key, nil) {
				last = err
			}
			var newer *psych.UnsupportedError
			if !errors.As(last, &newer) || newer.Run != key || !strings.Contains(newer.What, c.what) {
				t.Errorf("%d times damaged: %v", hits, last)
			}
		})
	}
}

// alteredCodec encodes one part otherwise, under the same ID.
type alteredCodec struct {
	psych.Codec
	tools, zone1, zone2, tail bool
	message                   int // the first that has this many blocks
}

func (c alteredCodec) EncodeTools(defs []psych.ToolDef) ([]byte, error) {
	b, err := c.Codec.EncodeTools(defs)
	if c.tools {
		b = bytes.Replace(b, []byte("Repeats"), []byte("Repeated"), 1)
	}
	return b, err
}

func (c alteredCodec) EncodeSystem(static []string, dynamic string) (zone1, zone2 []byte, err error) {
	zone1, zone2, err = c.Codec.EncodeSystem(static, dynamic)
	if c.zone1 {
		zone1 = append(zone1, ' ')
	}
	if c.zone2 {
		zone2 = append(zone2, ' ')
	}
	return zone1, zone2, err
}

func (c alteredCodec) EncodeMessage(m *psych.Message) ([]byte, int, error) {
	b, marker, err := c.Codec.EncodeMessage(m)
	if len(m.Blocks) == c.message {
		b = append(b, ' ')
	}
	return b, marker, err
}

func (c alteredCodec) EncodeTail(text string) ([]byte, error) {
	b, err := c.Codec.EncodeTail(text)
	if c.tail {
		b = append(b, ' ')
	}
	return b, err
}

// The first difference is found in its zone and part.
func TestReplayFindsDifferences(t *testing.T) {
	h := newHarness(t, threeTurns, echo)
	h.o.Memories = func(context.Context, psych.Scope) (string, error) { return "likes tea", nil }
	h.restart()
	key := h.start("go")
	h.drive(key)
	first := func(rt *psych.Runtime) *psych.ReplayedCall {
		t.Helper()
		for c, err := range rt.Replay(context.Background(), key, nil) {
			if err != nil || c.Err != nil {
				t.Fatal(err, c.Err)
			}
			if c.Difference != nil {
				return c
			}
		}
		t.Fatal("no difference is found")
		return nil
	}
	for name, c := range map[string]struct {
		codec       alteredCodec
		call, zone  int
		first, last int
		made, says  string
	}{
		"tools":    {alteredCodec{tools: true}, 1, 0, 0, 0, `[{"name":"echo","description":"Repeated a text.`, "digest"},
		"zone 1":   {alteredCodec{zone1: true}, 1, 1, 0, 0, `"Be brief." `, "digest"},
		"memories": {alteredCodec{zone2: true}, 1, 2, 0, 0, `"likes tea" `, "digest"},
		"history":  {alteredCodec{message: 2}, 2, 3, 2, 3, `{"role":"assistant"`, "parts 2 to 3 (part 2: the answer of turn 1 … part 3: the results of turn 1): its digest"},
		"tail":     {alteredCodec{tail: true}, 1, 4, 0, 0, "Now: ", "characters were sent"},
	} {
		t.Run(name, func(t *testing.T) {
			c.codec.Codec = h.model.Codec()
			got := first(h.replayer(h.tap.Store, h.blobs, codecModel{h.model, c.codec}))
			d := got.Difference
			if got.Call != c.call || d.Zone != c.zone || d.First != c.first || d.Last != c.last || !strings.Contains(d.Made, c.made) || !strings.Contains(d.String(), c.says) || d.Sent != "" {
				t.Errorf("call %d: %s: %+v", got.Call, d, d)
			}
		})
	}

	// Where the record says that what was sent before was sent again, both sides
	// are known: here results are trimmed that no break tells of.
	h = newHarness(t, "steps: [{calls: [{name: sized, arguments: {n: 9000}}]}, {text: one}, {text: two}]", sized)
	key = h.start("go")
	h.drive(key)
	h.send(key, "more")
	s := damaged{Store: h.tap.Store, entry: func(e *psych.Entry) {
		if e.Kind == psych.KindModelCallStarted {
			e.Data = bytes.Replace(e.Data, []byte(`{"turn":3,`), []byte(`{"trimmed":["out_c1_1"],"turn":3,`), 1)
		}
	}}
	got := first(h.replayer(s, h.blobs, h.model))
	if d := got.Difference; got.Call != 3 || d.Zone != 3 || d.First != 3 || d.Last != 3 || d.Parts != "part 3: the results of turn 1" ||
		!strings.Contains(d.Made, "characters left out") || !strings.Contains(d.Sent, `\nline `) || strings.Contains(d.Sent, "left out") || d.Byte < 900 {
		t.Errorf("call %d: %s: %+v", got.Call, d, d)
	}
	// A part too many, as of a log that another program cut.
	s = damaged{Store: h.tap.Store, entry: func(e *psych.Entry) {
		if e.Kind == psych.KindModelCallStarted {
			e.Data = bytes.Replace(e.Data, []byte(`"messages":5`), []byte(`"messages":6`), 1)
		}
	}}
	got = first(h.replayer(s, h.blobs, h.model))
	if d := got.Difference; got.Call != 3 || d.Zone != 3 || d.Reason != "6 parts were sent, and 5 are made" || d.First != 5 || d.Last != 5 {
		t.Errorf("call %d: %s: %+v", got.Call, d, d)
	}
}

// A diff names each part that changed, and the break that the log has for it.
func TestDiff(t *testing.T) {
	n, clock := newNetwork(), newClock()
	c := n.add("small", remoteTool("look", 40), remoteTool("touch", 40))
	memory := "likes tea"
	h := newHarness(t, "steps: [{calls: [{name: sized, arguments: {n: 20000}}]}, {text: one}, {text: two}, {text: three}]", sized)
	h.o.Now, h.o.LeaseTTL = clock.Now, psych.MaxLease
	h.o.Memories = func(context.Context, psych.Scope) (string, error) { return memory, nil }
	h.withServers(n, c)
	key := h.start("go")
	h.drive(key)
	memory = "hates tea"
	h.send(key, "more")
	n.change("small", false, func(s *testServer) { s.tools = []psych.RemoteTool{remoteTool("look", 60), remoteTool("see", 40)} })
	clock.add(2 * time.Hour)
	h.send(key, "later")

	changes := func(a, b int) string {
		t.Helper()
		d, err := h.rt.Diff(context.Background(), key, a, b, nil)
		if err != nil {
			t.Fatal(err)
		}
		if d.A.Call != a || d.B.Call != b || !d.A.Equal() || !d.B.Equal() {
			t.Errorf("%+v", d)
		}
		var lines []string
		for _, c := range d.Changes {
			lines = append(lines, fmt.Sprintf("%d %s %s %d %s", c.Zone, c.How, c.What, c.Call, c.Cause))
			if (c.How == "added") != (c.A == "") || (c.How == "removed") != (c.B == "") {
				t.Errorf("%+v", c)
			}
			if c.Zone == 2 && (c.A != "likes tea" || c.B != "hates tea") {
				t.Errorf("%+v", c)
			}
		}
		return strings.Join(lines, "\n")
	}
	for _, c := range []struct {
		a, b int
		want string
	}{
		{1, 2, "3 added parts 2 to 3 (part 2: the answer of turn 1 … part 3: the results of turn 1) 0 \n4 removed the trailing message 0 "},
		{2, 3, `2 changed the memories 3 memory_changed
3 changed part 3: the results of turn 1 3 history_trimmed
3 added parts 4 to 5 (part 4: the answer of turn 2 … part 5: message "`},
		{3, 4, `0 changed the tool small__look 4 reopened
0 added the tool small__see 4 reopened
0 removed the tool small__touch 4 reopened
3 added parts 6 to 7 (part 6: the answer of turn 3 … part 7: message "`},
	} {
		if got := changes(c.a, c.b); !strings.HasPrefix(got, c.want) {
			t.Errorf("%d and %d:\n%s\nwant\n%s", c.a, c.b, got, c.want)
		}
	}
	// Over all of it each part is named once, with the call that broke it.
	if got := changes(1, 4); strings.Count(got, "\n") != 5 || !strings.Contains(got, "2 changed the memories 3 memory_changed") || !strings.Contains(got, "0 added the tool small__see 4 reopened") {
		t.Errorf("1 and 4:\n%s", got)
	}
}

// A call costs the same, whether it is the hundredth or the thousandth.
func TestReplayCostIsFlat(t *testing.T) {
	const turns = 1000
	u := newTurner(t, turns)
	u.run()
	for c, err := range u.rt.Replay(context.Background(), u.key, nil) { // so that what is read once is read
		if err != nil || !c.Equal() {
			t.Fatal(err, c.Err, c.Difference)
		}
	}
	const window = 250 // of calls: the log is read by pages, of about as many
	var marks []runtime.MemStats
	calls, began := 0, cpu()
	for c, err := range u.rt.Replay(context.Background(), u.key, nil) {
		if err != nil || !c.Equal() {
			t.Fatal(err, c.Err, c.Difference)
		}
		if calls++; calls%window == 0 {
			marks = append(marks, runtime.MemStats{})
			runtime.ReadMemStats(&marks[len(marks)-1])
		}
	}
	took := cpu() - began
	if calls != turns {
		t.Fatalf("%d calls, want %d", calls, turns)
	}
	early := float64(marks[1].Mallocs-marks[0].Mallocs) / window
	late := float64(marks[3].Mallocs-marks[2].Mallocs) / window
	t.Logf("%d calls, all equal, %.1f ms of CPU; allocations a call: %.1f from the %dth, %.1f from the %dth", calls, float64(took)/1e6, early, window, late, 3*window)
	if late > 1.2*early {
		t.Errorf("%.1f allocations a call from the %dth, and %.1f from the %dth", early, window, late, 3*window)
	}
}
