package psych_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// sleeper is a tool that takes as long as it is asked to, and notes when each
// call ran.
type sleeper struct {
	mu      sync.Mutex
	running int
	most    int
	ran     []string
}

func (s *sleeper) tool(name string, o *psych.ToolOptions) *psych.Tool {
	return psych.NewTool(name, "", func(ctx context.Context, c *psych.Call, in struct {
		Ms int `json:"ms"`
	}) (string, error) {
		s.mu.Lock()
		s.running++
		s.most = max(s.most, s.running)
		s.ran = append(s.ran, c.ID)
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			s.running--
			s.mu.Unlock()
		}()
		select {
		case <-time.After(time.Duration(in.Ms) * time.Millisecond):
			return "slept", nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}, o)
}

func calls(name string, ms ...int) string {
	var b strings.Builder
	b.WriteString("steps: [{calls: [")
	for i, n := range ms {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "{name: %s, arguments: {ms: %d}}", name, n)
	}
	return b.String() + "]}, {text: done}]"
}

// Calls that begin or end late add one append a window.
func TestFlushWindows(t *testing.T) {
	for _, c := range []struct {
		name     string
		ms       []int
		parallel int
		appends  int // of the turn with tools
		most     int
	}{
		{"all within one window", []int{1, 100, 499}, 8, 2, 3},
		{"one ends late", []int{1, 900}, 8, 3, 2},
		{"two end late, in one window", []int{1, 900, 1300}, 8, 3, 3},
		{"ends in three windows", []int{1, 900, 1800}, 8, 4, 3},
		{"more calls than slots", []int{1, 1, 1, 1}, 2, 3, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &sleeper{}
				h := newHarness(t, calls("nap", c.ms...), s.tool("nap", nil))
				h.spec.Limits.Parallel = c.parallel
				rep := h.run()
				if got := h.tap.count("Append") - 2; got != c.appends {
					t.Errorf("%d appends, want %d", got, c.appends)
				}
				if rep.Status != psych.StatusCompleted || s.most != c.most {
					t.Errorf("%s, %d at once; want %d", rep.Status, s.most, c.most)
				}
			})
		})
	}
}

func TestSequential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sleeper{}
		h := newHarness(t, `
steps:
- calls: [{name: nap, arguments: {ms: 50}}, {name: solo, arguments: {ms: 100}}, {name: solo, arguments: {ms: 100}}, {name: nap, arguments: {ms: 50}}]
- text: done
`, s.tool("nap", nil), s.tool("solo", &psych.ToolOptions{Sequential: true}))
		rep := h.run()
		if rep.Status != psych.StatusCompleted || s.most != 1 || strings.Join(s.ran, " ") != "c1_1 c1_2 c1_3 c1_4" {
			t.Errorf("%s, %d at once, in the order %v", rep.Status, s.most, s.ran)
		}
	})
}

func TestToolTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sleeper{}
		release := make(chan struct{})
		deaf := psych.NewTool("deaf", "", func(context.Context, *psych.Call, struct{}) (string, error) { <-release; return "", nil }, &psych.ToolOptions{Timeout: time.Second})
		h := newHarness(t, `
steps:
- calls: [{name: nap, arguments: {ms: 5000}}, {name: safe, arguments: {ms: 5000}}, {name: deaf, arguments: {}}]
- text: done
  require: ['stopped after 2s.*outcome is unknown', 'stopped after 1s.*safe to ask', 'stopped after 1s.*outcome is unknown']
`, s.tool("nap", nil), s.tool("safe", &psych.ToolOptions{Idempotent: true, Timeout: time.Second}), deaf)
		h.spec.Limits.ToolTimeoutSeconds = 2
		rep := h.run()
		close(release)
		var got []string
		for _, c := range rep.ToolCalls {
			got = append(got, c.Outcome+" "+c.Code)
		}
		if want := "unknown timeout, failed timeout, unknown timeout"; rep.Status != psych.StatusCompleted || strings.Join(got, ", ") != want {
			t.Errorf("%s, %v, want %s (%+v)", rep.Status, got, want, rep.Exchanges)
		}
	})
}

type badReader struct{ panics bool }

func (r badReader) Read([]byte) (int, error) {
	if r.panics {
		panic("reading")
	}
	return 0, errors.New("the disk is gone")
}

// A tool that misbehaves is a failure that the model is told of; its siblings
// and the Run go on.
func TestToolFailures(t *testing.T) {
	raw := func(name string, f func(*psych.Call) (*psych.Result, error)) *psych.Tool {
		return psych.NewRawTool(psych.ToolDef{Name: name}, func(_ context.Context, c *psych.Call) (*psych.Result, error) { return f(c) }, nil)
	}
	h := newHarness(t, `
steps:
- calls: [{name: boom}, {name: errs}, {name: nil}, {name: bad_body}, {name: panic_body}, {name: goexit}, {name: own}, {name: fine}, {name: fin}]
- text: done
  require: ['kaboom', 'no such customer', 'the disk is gone', 'panic: reading', 'ended its goroutine', 'quota used up', 'no tool named .*fin.*There are: fine']
  forbid: ['"t"/', 'goroutine \d+', 'batch_test.go']
`,
		raw("boom", func(*psych.Call) (*psych.Result, error) { panic("kaboom") }),
		raw("errs", func(*psych.Call) (*psych.Result, error) { return nil, errors.New("no such customer") }),
		raw("nil", func(*psych.Call) (*psych.Result, error) { return nil, nil }),
		raw("bad_body", func(*psych.Call) (*psych.Result, error) { return &psych.Result{Body: badReader{}}, nil }),
		raw("panic_body", func(*psych.Call) (*psych.Result, error) { return &psych.Result{Body: badReader{panics: true}}, nil }),
		raw("goexit", func(*psych.Call) (*psych.Result, error) { runtime.Goexit(); return nil, nil }),
		raw("own", func(*psych.Call) (*psych.Result, error) {
			return &psych.Result{ContentType: "text/plain", Body: strings.NewReader("quota used up" + strings.Repeat("!", 600)), IsError: true}, nil
		}),
		raw("fine", func(*psych.Call) (*psych.Result, error) { return psych.Text("fine"), nil }),
	)
	rep := h.run()
	var got []string
	for _, c := range rep.ToolCalls {
		got = append(got, c.Name+" "+c.Outcome+" "+c.Code)
	}
	want := "boom failed panic, errs failed , nil succeeded , bad_body failed , panic_body failed , goexit failed panic, own failed , fine succeeded , fin failed unknown_tool"
	if strings.Join(got, ", ") != want || rep.Status != psych.StatusCompleted {
		t.Errorf("%s (%+v)\n got %s\nwant %s", rep.Status, rep.Exchanges, strings.Join(got, ", "), want)
	}
	if rep.ToolCalls[6].ResultBytes != 613 {
		t.Errorf("the log holds %d bytes of a failure of 613", rep.ToolCalls[6].ResultBytes)
	}
	body := string(h.model.Requests()[1].Zone(3))
	if !strings.Contains(body, "quota used up"+strings.Repeat("!", 487)+`"`) {
		t.Error("a failure is not cut to 500 characters")
	}
}

// Whatever call ids and arguments a model sends, every call is answered, in
// order, on a legal wire.
func TestStrangeCalls(t *testing.T) {
	h := newHarness(t, `
steps:
- calls:
  - {name: echo, id: "", arguments: {text: a}}
  - {name: echo, id: same, arguments: {text: b}}
  - {name: echo, id: same, arguments: {text: c}}
  - {name: echo, id: "../x y", arguments: {text: d}}
  - {name: echo, id: c1_1, arguments: {text: e}}
  - {name: echo, raw_arguments: 'not json'}
  - {name: echo, raw_arguments: '{"text":"f"} {"text":"g"}'}
  - {name: echo, raw_arguments: '{"text":"h","text":"i"}'}
  - {name: echo, raw_arguments: '"{\"text\":\"unwrapped\"}"'}
  - {name: echo, raw_arguments: '[1]'}
  - {name: echo, raw_arguments: ''}
  - {name: echo, raw_arguments: '{"text":"lone \ud800 surrogate"}'}
  - {name: echo, arguments: {text: 7}}
  - {name: "ec ho\u0000", arguments: {}}
- text: done
`, echo)
	key := h.start("go")
	h.drive(key)
	rep := h.report(key)
	if rep.Status != psych.StatusCompleted {
		t.Fatalf("%s: %+v", rep.Status, rep.Exchanges)
	}
	wantOutcome := strings.Fields("succeeded succeeded succeeded succeeded succeeded failed failed failed succeeded failed failed succeeded failed failed")
	for i, c := range rep.ToolCalls {
		if c.Outcome != wantOutcome[i] || c.ID != fmt.Sprintf("c1_%d", i+1) {
			t.Errorf("call %d: %s %s %s, want %s", i+1, c.ID, c.Outcome, c.Code, wantOutcome[i])
		}
		if c.Outcome == "failed" && i < 13 && c.Code != psych.CodeArguments {
			t.Errorf("call %d failed with code %q", i+1, c.Code)
		}
	}
	var wire []json.RawMessage
	if err := json.Unmarshal([]byte("["+string(h.model.Requests()[1].Zone(3))+"]"), &wire); err != nil {
		t.Fatalf("the wire is no JSON: %v", err)
	}
	var said struct {
		Blocks []struct {
			Call struct {
				ID, Name  string
				Arguments map[string]any
			}
		}
	}
	var results struct{ Results []struct{ ID, Text string } }
	if err := errors.Join(json.Unmarshal(wire[1], &said), json.Unmarshal(wire[2], &results)); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, b := range said.Blocks {
		if b.Call.ID != results.Results[i].ID || seen[b.Call.ID] || b.Call.ID == "" || strings.ContainsAny(b.Call.ID, "./ ") {
			t.Errorf("call %d has the id %q, its answer %q", i+1, b.Call.ID, results.Results[i].ID)
		}
		if b.Call.Arguments == nil || strings.ContainsAny(b.Call.Name, " \x00") {
			t.Errorf("call %d: name %q, arguments %v", i+1, b.Call.Name, b.Call.Arguments)
		}
		seen[b.Call.ID] = true
	}
	if got := results.Results[8].Text; got != "unwrapped" {
		t.Errorf("arguments in a string: %q", got)
	}
	if got := results.Results[11].Text; got != "lone \ufffd surrogate" {
		t.Errorf("a lone surrogate: %q", got)
	}
	if got := results.Results[7].Text; !strings.Contains(got, "text") || len(got) > 4000 {
		t.Errorf("a key twice: %q", got)
	}
}

// Results hold what tools return, byte for byte, or visibly repaired.
func TestResultContents(t *testing.T) {
	text := func(s string) *psych.Tool {
		return psych.NewRawTool(psych.ToolDef{Name: "get"}, func(context.Context, *psych.Call) (*psych.Result, error) { return psych.Text(s), nil }, nil)
	}
	for _, c := range []struct {
		name, result, shown string
	}{
		{"empty", "", ""},
		{"NUL", "a\x00b", "a␀b"},
		{"a terminal escape", "\x1b[31mred", "\x1b[31mred"},
		{"invalid UTF-8", "caf\xe9 is good and long enough to be text", "caf\ufffd is good and long enough to be text"},
		{"a lone surrogate in UTF-8", "x\xed\xa0\x80y and more text around it, as there is", "x\ufffdy and more text around it, as there is"},
		{"emoji", "👩‍👩‍👧‍👦", "👩‍👩‍👧‍👦"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t, "steps: [{calls: [{name: get}]}, {text: done}]", text(c.result))
			if rep := h.run(); rep.Status != psych.StatusCompleted {
				t.Fatalf("%s: %+v", rep.Status, rep.Exchanges)
			}
			h.restart()
			var results struct{ Results []struct{ Text string } }
			hist := h.model.Requests()[1].Request.History
			if err := json.Unmarshal(hist[len(hist)-1].Bytes, &results); err != nil {
				t.Fatal(err)
			}
			if got := results.Results[0].Text; got != c.shown {
				t.Errorf("the model was shown %q, want %q", got, c.shown)
			}
		})
	}
	t.Run("binary", func(t *testing.T) {
		png := psych.NewRawTool(psych.ToolDef{Name: "get"}, func(context.Context, *psych.Call) (*psych.Result, error) {
			return &psych.Result{ContentType: "image/png", Body: strings.NewReader("\x89PNG\x00\xff")}, nil
		}, nil)
		h := newHarness(t, "steps: [{calls: [{name: get}]}, {calls: [{name: read_tool_output, arguments: {handle: out_c1_1}}], require: ['image/png, 6 bytes, binary']}, {text: done, require: ['\"binary\":true']}]", png)
		if rep := h.run(); rep.Status != psych.StatusCompleted {
			t.Fatalf("%s: %+v", rep.Status, rep.Exchanges)
		}
	})
	t.Run("structured", func(t *testing.T) {
		tool := psych.NewTool("get", "", func(context.Context, *psych.Call, struct{}) (any, error) {
			return json.RawMessage(`{ "b" : 1234567890123456789, "a": "<&>" }`), nil
		}, nil)
		h := newHarness(t, "steps: [{calls: [{name: get}]}, {text: done}]", tool)
		key := h.start("go")
		h.drive(key)
		w, err := h.rt.Output(context.Background(), key, "out_c1_1", psych.OutputQuery{})
		if err != nil || w.Text != `{"b":1234567890123456789,"a":"<&>"}` {
			t.Errorf("%+v, %v", w, err)
		}
	})
}

type tornBlobs struct {
	psych.BlobStore
	puts int
}

func (b *tornBlobs) Put(ctx context.Context, key psych.BlobKey, ct string, r io.Reader) (psych.BlobInfo, error) {
	if b.puts++; b.puts == 1 {
		io.CopyN(io.Discard, r, 1000)
		return psych.BlobInfo{}, psych.ErrUnavailable
	}
	return b.BlobStore.Put(ctx, key, ct, r)
}

// A BlobStore that fails for a moment loses no result that can be read again.
func TestBlobStoreFailsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: [{calls: [{name: echo, arguments: {text: 'abcdefghij', times: 50000}}]}, {text: done}]", echo)
		torn := &tornBlobs{BlobStore: h.blobs}
		h.o.Blobs = torn
		h.restart()
		rep := h.run()
		if c := rep.ToolCalls[0]; c.Outcome != "succeeded" || c.ResultBytes != 500_000 || !c.Offloaded || torn.puts != 2 {
			t.Errorf("%+v after %d puts", c, torn.puts)
		}
	})
}

// A tool that fails the same way three turns in a row is withheld for the
// exchange, and the model is told; other failures, and one success between
// them, keep it.
func TestFailureStreak(t *testing.T) {
	var mu sync.Mutex
	var ran []string
	flaky := psych.NewTool("flaky", "", func(_ context.Context, _ *psych.Call, in struct {
		How string `json:"how"`
	}) (string, error) {
		mu.Lock()
		ran = append(ran, in.How)
		mu.Unlock()
		if in.How == "" {
			return "fine", nil
		}
		return "", errors.New(in.How)
	}, nil)
	h := newHarness(t, `
steps:
- calls: [{name: flaky, arguments: {how: down}}, {name: flaky, arguments: {how: down}}]
- calls: [{name: flaky, arguments: {how: down}}]
- calls: [{name: flaky, arguments: {how: ""}}]
- calls: [{name: flaky, arguments: {how: down}}]
- calls: [{name: flaky, arguments: {how: other}}]
- calls: [{name: flaky, arguments: {how: down}}]
- calls: [{name: flaky, arguments: {how: down}}]
- calls: [{name: flaky, arguments: {how: down}}]
  forbid: ['Withheld: flaky']
- calls: [{name: flaky, arguments: {how: ""}}]
  require: ['Withheld: flaky \(it failed the same way 3 times in a row\)']
- text: without it
  require: ["withheld until the user's next message"]
  forbid: ['Withheld: flaky']
- calls: [{name: flaky, arguments: {how: ""}}]
- text: with it
`, flaky)
	key := h.start("go")
	h.drive(key)
	rep := h.report(key)
	if rep.Status != psych.StatusCompleted {
		t.Fatalf("%s %+v", rep.Status, rep.Exchanges)
	}
	if c := rep.ToolCalls[len(rep.ToolCalls)-1]; c.Code != psych.CodeWithheld || len(ran) != 9 {
		t.Errorf("%+v; ran %q", c, ran)
	}
	sent := h.model.Requests()
	for i := 1; i < len(sent); i++ {
		if !strings.HasPrefix(string(sent[i].Prefix()), string(sent[i-1].Prefix())) {
			t.Errorf("request %d does not begin with the one before it", i+1)
		}
	}
	h.restart()
	h.send(key, "again")
	if rep := h.report(key); rep.Status != psych.StatusCompleted || len(ran) != 10 {
		t.Errorf("the next exchange: %s, ran %q", rep.Status, ran)
	}
}
