package script

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/psych-go/psych-go/psych"
)

func TestSteps(t *testing.T) {
	k := newTalk(t, play(t, `
steps:
  - text: I look.
    provider: "{\"sig\" : 1}"
    calls:
      - {name: look, arguments: {b: 1, a: <x>}}
      - {name: look}
  - calls: [{name: look, id: "", raw_arguments: '{"a":1,"a":'}, {name: look, id: same}, {name: look, id: same}]
    stop: max_tokens
  - text: ""
  - calls: []
  - text: Done.
    stop: refusal
    usage: {input: 10, output: 0}
  - text: bye
    usage: {}
`, nil))
	k.user("hi")

	r := k.answer()
	if got, want := said(r), `<{"sig" : 1}> I look. look{"b":1,"a":"<x>"} look{}`; got != want || r.Stop != psych.StopToolUse {
		t.Errorf("got %s (%s), want %s", got, r.Stop, want)
	}
	if a, b := r.Blocks[2].Call.ProviderID, r.Blocks[3].Call.ProviderID; a != "call_1_1" || b != "call_1_2" {
		t.Errorf("ids %q, %q", a, b)
	}
	k.results("one", "two")

	r = k.answer()
	if got, want := said(r), `look{"a":1,"a": look{} look{}`; got != want || r.Stop != psych.StopMaxTokens {
		t.Errorf("got %s (%s), want %s", got, r.Stop, want)
	}
	if a, b := r.Blocks[0].Call.ProviderID, r.Blocks[1].Call.ProviderID; a != "" || b != "same" {
		t.Errorf("ids %q, %q", a, b)
	}
	k.results("x", "y", "z")

	if r = k.answer(); len(r.Blocks) != 1 || r.Blocks[0].Text != "" || r.Stop != psych.StopEnd {
		t.Errorf("an empty text came as %+v", r)
	}
	k.user("more")
	if r = k.answer(); len(r.Blocks) != 0 || r.Stop != psych.StopEnd {
		t.Errorf("nothing came as %+v", r)
	}
	k.user("more")
	if r = k.answer(); said(r) != "Done." || r.Stop != psych.StopRefusal || *r.Usage.Input != 10 || r.Usage.CacheRead != nil || *r.Usage.Output != 0 {
		t.Errorf("got %+v", r)
	}
	k.user("more")
	if r = k.answer(); r.Usage != (psych.Usage{}) {
		t.Errorf("usage %+v, want it unknown", r.Usage)
	}
	k.user("more")
	_, err := k.try()
	if got := refused(t, err); !strings.Contains(got, "the script has 6 steps and the request, with 6 messages of the assistant, asks for step 7") {
		t.Error(got)
	}
}

const paging = `
steps:
  - calls: [{name: read, arguments: {offset: 0}}]
  - calls: [{name: read, arguments: {offset: '${"next":(\d+)}'}}]
    repeat: {until: '"more":false'}
  - {fail: 429, times: 2, retry_after_seconds: 1.5}
  - text: All read.
`

func page(i, last int) string {
	return fmt.Sprintf(`{"next":%d,"more":%t}`, i*10, i < last)
}

func TestRepeat(t *testing.T) {
	for _, last := range []int{2, 3, 40} {
		k := newTalk(t, play(t, paging, nil))
		k.user("read")
		for i := 1; i <= last; i++ {
			want := fmt.Sprintf(`read{"offset":%d}`, (i-1)*10)
			if got := said(k.answer()); got != want {
				t.Fatalf("page %d of %d: got %s, want %s", i, last, got, want)
			}
			k.results("beside", page(i, last))
		}
		for range 2 {
			if _, err := k.try(); !status(err, 429) {
				t.Fatalf("after %d pages: %v", last, err)
			}
		}
		if got := said(k.answer()); got != "All read." {
			t.Fatalf("after %d pages: %s", last, got)
		}
	}
}

func status(err error, want int) bool {
	var e *psych.ModelError
	return errors.As(err, &e) && e.Status == want
}

// A loop is played at least once, whatever the result before it says.
func TestRepeatIsPlayedOnce(t *testing.T) {
	k := newTalk(t, play(t, paging, nil))
	k.user("read")
	k.answer()
	k.results(page(1, 1))
	if got := said(k.answer()); got != `read{"offset":10}` {
		t.Errorf("got %s", got)
	}
}

// Without a result the loop goes on, and a new user message does not end it.
func TestRepeatAcrossExchanges(t *testing.T) {
	k := newTalk(t, play(t, "steps:\n  - {text: again, repeat: {until: stop}}\n  - text: over\n", nil))
	for range 3 {
		k.user("stop")
		if got := said(k.answer()); got != "again" {
			t.Fatalf("got %s", got)
		}
	}
}

// At each request of a long Run, a Model that never saw it plays what the one
// that saw all of it plays.
func TestFreshModelResumes(t *testing.T) {
	warm := play(t, paging, nil)
	k := newTalk(t, warm)
	k.user("read")
	for i := 1; i <= 30; i++ {
		fresh, err := k.on(play(t, paging, nil)).try()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := said(k.answer()), said(fresh); got != want {
			t.Fatalf("turn %d: warm says %s, fresh says %s", i, got, want)
		}
		k.results(page(i, 30))
	}
	for range 2 {
		if _, err := k.try(); !status(err, 429) {
			t.Fatal(err)
		}
	}
	if got := said(k.answer()); got != "All read." {
		t.Error(got)
	}
	// The failures left no message, so a fresh Model has them before the next
	// step, not before one that was played.
	k.user("more")
	_, err := k.on(play(t, paging, nil)).try()
	if got := refused(t, err); !strings.Contains(got, "asks for step 5") {
		t.Error(got)
	}
}

func TestFail(t *testing.T) {
	for _, tt := range []struct {
		step string
		want psych.ModelError
	}{
		{"fail: 429", psych.ModelError{Status: 429, Transient: true}},
		{"fail: 408", psych.ModelError{Status: 408, Transient: true}},
		{"fail: 500", psych.ModelError{Status: 500, Transient: true}},
		{"fail: 529", psych.ModelError{Status: 529, Transient: true}},
		{"fail: 0", psych.ModelError{Transient: true}},
		{"fail: 400", psych.ModelError{Status: 400}},
		{"fail: 401", psych.ModelError{Status: 401}},
		{"fail: 400\n    stop: context", psych.ModelError{Status: 400, Overflow: true}},
		{"fail: 503\n    retry_after_seconds: 1.5", psych.ModelError{Status: 503, Transient: true, RetryAfter: 1500 * time.Millisecond}},
	} {
		k := newTalk(t, play(t, "steps:\n  - "+tt.step+"\n  - text: ok", nil))
		k.user("hi")
		_, err := k.try()
		var e *psych.ModelError
		if !errors.As(err, &e) {
			t.Fatalf("%s: %v", tt.step, err)
		}
		if e.Message == "" {
			t.Errorf("%s: no message", tt.step)
		}
		got := *e
		got.Message = ""
		if got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.step, got, tt.want)
		}
		if got := said(k.answer()); got != "ok" {
			t.Errorf("%s: then %s", tt.step, got)
		}
	}
}

// Failures are counted for each history, and one behind another has its own
// count.
func TestFailTimes(t *testing.T) {
	m := play(t, "steps:\n  - {fail: 429, times: 2}\n  - {fail: 500}\n  - text: ok", nil)
	a, b := newTalk(t, m), newTalk(t, m)
	a.user("a")
	b.user("b")
	for i, want := range []int{429, 429, 500} {
		for _, k := range []*talk{a, b} {
			if _, err := k.try(); !status(err, want) {
				t.Fatalf("try %d: %v, want %d", i+1, err, want)
			}
		}
	}
	if got := said(a.answer()) + said(b.answer()); got != "okok" {
		t.Error(got)
	}

	// The same without chains, as a careless caller has it.
	c := newTalk(t, m)
	c.user("c")
	c.req.History[0].Chain = psych.Digest{}
	for _, want := range []int{429, 429, 500} {
		if _, err := c.try(); !status(err, want) {
			t.Fatalf("%v, want %d", err, want)
		}
	}
	if r, err := c.try(); err != nil || said(r) != "ok" {
		t.Errorf("%v, %v", r, err)
	}
}

func TestStall(t *testing.T) {
	k := newTalk(t, play(t, "steps:\n  - {stall: true, times: 1}\n  - stall: true\n  - text: never", nil))
	k.user("hi")
	for i := range 3 {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() {
			_, err := k.m.Generate(ctx, &k.req, func(psych.Delta) { t.Error("a stalling step spoke") })
			done <- err
		}()
		select {
		case err := <-done:
			t.Fatalf("call %d came back: %v", i+1, err)
		case <-time.After(5 * time.Millisecond):
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("call %d: %v", i+1, err)
		}
	}

	k = newTalk(t, play(t, "steps:\n  - {stall: true, times: 2}\n  - text: at last", nil))
	k.user("hi")
	for range 2 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		if _, err := k.m.Generate(ctx, &k.req, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
	}
	if got := said(k.answer()); got != "at last" {
		t.Error(got)
	}
}

func TestCanceled(t *testing.T) {
	k := newTalk(t, play(t, "steps: [{fail: 500}, {text: hello there}]", nil))
	k.user("hi")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := k.m.Generate(ctx, &k.req, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := k.try(); !status(err, 500) {
		t.Errorf("%v: a canceled call was counted as a failure", err)
	}
	ctx, cancel = context.WithCancel(context.Background())
	defer cancel()
	n := 0
	_, err := k.m.Generate(ctx, &k.req, func(psych.Delta) { n++; cancel() })
	if !errors.Is(err, context.Canceled) || n != 1 {
		t.Errorf("%d deltas, %v", n, err)
	}
}

func TestDeltas(t *testing.T) {
	k := newTalk(t, play(t, `
steps:
  - provider: thinking
    text: "Äpfel und Birnen, 日本語"
    calls: [{name: a, arguments: {x: "ü", y: 12345}}, {name: b, raw_arguments: ""}]
`, nil))
	k.user("hi")
	var (
		text   string
		pieces int
		names  = map[int]string{}
		args   = map[int]string{}
	)
	r, err := k.m.Generate(context.Background(), &k.req, func(d psych.Delta) {
		text += d.Text
		if d.Text != "" {
			pieces++
		}
		if d.Call > 0 {
			if d.Name == "" && names[d.Call] == "" {
				t.Error("arguments before the name")
			}
			names[d.Call] += d.Name
			args[d.Call] += d.Arguments
		}
		if strings.ContainsRune(d.Text+d.Arguments, '\uFFFD') || strings.ToValidUTF8(d.Text+d.Arguments, "") != d.Text+d.Arguments {
			t.Errorf("%+v: cut in a rune", d)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if text != r.Blocks[1].Text || pieces < 2 {
		t.Errorf("%q in %d pieces", text, pieces)
	}
	for i, b := range r.Blocks[2:] {
		if names[i+1] != b.Call.Name || args[i+1] != string(b.Call.Arguments) {
			t.Errorf("call %d: %q %q", i+1, names[i+1], args[i+1])
		}
	}
}

func TestSubstitutionFindsNothing(t *testing.T) {
	const src = `steps: [{calls: [{name: look, arguments: {at: '${at=(\d+)}'}}]}]`
	k := newTalk(t, play(t, src, nil))
	k.user("at=7")
	_, err := k.try()
	if got := refused(t, err); !strings.Contains(got, `step 1: arguments of call 1 (look): ${at=(\d+)}: there is no result yet`) {
		t.Error(got)
	}
	k.results("nothing of the kind" + strings.Repeat(".", 5000) + "end")
	_, err = k.try()
	got := refused(t, err)
	if !strings.Contains(got, `finds nothing in the last result: "nothing of the kind`) || !strings.Contains(got, `end"`) || len(got) > 700 {
		t.Error(got)
	}
}

// A Model says so when it is handed what another encoding wrote.
func TestForeignEncoding(t *testing.T) {
	k := newTalk(t, play(t, "steps: [text: hi]", nil))
	k.req.History = []psych.Wire{wire(psych.Digest{}, []byte(`{"content":"x","role":"user"}`), -1)}
	_, err := k.try()
	if got := refused(t, err); !strings.Contains(got, "message 1 of the request is not in the encoding script/1") {
		t.Error(got)
	}
}

// Runs in step and out of step share one Model.
func TestConcurrentRuns(t *testing.T) {
	m := play(t, paging, &Options{Record: true})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			k := newTalk(t, m)
			k.user(fmt.Sprint("run ", g))
			pages := 3 + g*5
			for i := 1; i <= pages; i++ {
				r, err := k.try()
				if err != nil {
					t.Error(err)
					return
				}
				if want := fmt.Sprintf(`read{"offset":%d}`, (i-1)*10); said(r) != want {
					t.Errorf("run %d: %s, want %s", g, said(r), want)
				}
				k.answer()
				k.results(page(i, pages))
			}
			for range 2 {
				if _, err := k.try(); !status(err, 429) {
					t.Errorf("run %d: %v", g, err)
				}
			}
			if got := said(k.answer()); got != "All read." {
				t.Errorf("run %d: %s", g, got)
			}
		})
	}
	wg.Wait()
	if got, want := len(m.Requests()), m.Totals().Requests; got != want {
		t.Errorf("%d requests recorded, %d counted", got, want)
	}
}

func TestRecentForgets(t *testing.T) {
	r := newRecent[int, int](10)
	for i := range 1000 {
		r.put(i, i)
		if _, ok := r.get(0); !ok {
			t.Fatalf("forgot 0, which is asked for each time, at %d", i)
		}
		if n := len(r.young) + len(r.old); n > 20 {
			t.Fatalf("holds %d entries", n)
		}
	}
	if _, ok := r.get(900); ok {
		t.Error("still knows 900")
	}
	if v, ok := r.get(998); !ok || v != 998 {
		t.Error("forgot 998")
	}
}

// A turn costs what is new in it.
func TestAllocationsDontGrow(t *testing.T) {
	at := func(turns int) float64 {
		k := newTalk(t, play(t, paging, nil))
		k.user("read")
		for i := 1; i <= turns; i++ {
			k.answer()
			k.results(page(i, 1<<30))
		}
		return testing.AllocsPerRun(50, func() {
			if _, err := k.try(); err != nil {
				t.Fatal(err)
			}
		})
	}
	// One or two of either are the runtime's own.
	if few, many := at(5), at(1000); many > few+5 {
		t.Errorf("%v allocations a call after 1000 turns, %v after 5", many, few)
	}
}

func BenchmarkGenerate(b *testing.B) {
	for _, turns := range []int{10, 1000} {
		b.Run(fmt.Sprint(turns, "turns"), func(b *testing.B) {
			k := newTalk(b, play(b, paging, nil))
			k.user("read")
			for i := 1; i < turns; i++ {
				k.answer()
				k.results(page(i, 1<<30) + strings.Repeat("x", 280))
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := k.try(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A whole conversation in a fresh process: the walk over its history.
func BenchmarkResume(b *testing.B) {
	k := newTalk(b, play(b, paging, nil))
	k.user("read")
	for i := 1; i < 1000; i++ {
		k.answer()
		k.results(page(i, 1<<30) + strings.Repeat("x", 280))
	}
	s, err := Parse([]byte(paging))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := k.on(New(s, nil)).try(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeMessage(b *testing.B) {
	c := New(&Script{}, nil).Codec()
	for _, m := range []*psych.Message{
		{Role: psych.RoleUser, Blocks: []psych.Block{{Text: strings.Repeat("Hello, world. ", 20)}}},
		{Role: psych.RoleAssistant, Blocks: []psych.Block{{Text: "I look."}, {Call: &psych.ToolCall{ID: "call_1_1", Name: "read", Arguments: []byte(`{"offset":10,"limit":100}`)}}}},
		{Role: psych.RoleTool, Blocks: []psych.Block{{Result: &psych.ToolOutput{CallID: "call_1_1", Text: strings.Repeat("a line of text\n", 20)}}}},
	} {
		b.Run(string(m.Role), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := c.EncodeMessage(m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
