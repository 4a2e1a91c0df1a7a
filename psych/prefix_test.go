package psych_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
	"pgregory.net/rapid"
)

// firstEntries is a Store whose logs end behind n entries.
type firstEntries struct {
	psych.Store
	n uint64
}

func (s firstEntries) Unwrap() psych.Store { return s.Store }

func (s firstEntries) Read(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
	page, err := s.Store.Read(ctx, key, after, limit)
	for i, e := range page.Entries {
		if e.Seq > s.n {
			page.Entries, page.More, page.Next = page.Entries[:i], false, psych.Pos{Seq: s.n}
			break
		}
	}
	return page, err
}

// prefixesFold folds every prefix of a log, and makes its requests again.
func prefixesFold(s psych.Store, blobs psych.BlobStore, key psych.RunKey) error {
	ctx := context.Background()
	head, err := s.Head(ctx, key)
	if err != nil {
		return err
	}
	for n := range head.Seq + 1 {
		rt, err := psych.New(firstEntries{s, n}, &psych.Options{Blobs: blobs, Models: psych.OneModel(&oneAnswer{})})
		if err != nil {
			return err
		}
		var seq uint64
		for r, err := range rt.Records(ctx, key, psych.Pos{}) {
			if err != nil {
				return fmt.Errorf("behind record %d of the first %d: %w", seq, n, err)
			}
			seq = r.Seq
		}
		if seq != n {
			return fmt.Errorf("%d records, of the first %d", seq, n)
		}
		rep, err := rt.Report(ctx, key)
		if err != nil {
			return fmt.Errorf("the first %d records of %d: %w", n, head.Seq, err)
		}
		if calls, err := replay(rt, key); err != nil || len(calls) != len(rep.ModelCalls) {
			return fmt.Errorf("the first %d records of %d: replay makes %d calls of %d: %w", n, head.Seq, len(calls), len(rep.ModelCalls), err)
		}
	}
	return nil
}

// A plan is a Run as clients, workers, tools and a model may make it.
type plan struct {
	steps    []script.Step
	limits   psych.Limits
	blobs    bool
	segments []segment
}

// A segment is one Drive, and what happens before and meanwhile.
type segment struct {
	worker int           // of two, which take turns
	memory string        // what Memories says from now on
	before note          // posted before
	during note          // posted, or done, at a call of the store
	at     int           // which
	kill   int           // the worker dies at a write; negative: it does not
	lost   bool          // behind the write, not before it
	time   time.Duration // that the worker has; zero: no limit
}

type note int

const (
	noNote note = iota
	aMessage
	aLargeMessage
	anAbort
	aCancel // of the worker's context
)

func drawPlan(t *rapid.T) *plan {
	weighted := func(name string, n ...int) int { return rapid.SampledFrom(n).Draw(t, name) }
	p := &plan{blobs: weighted("blobs", 0, 1, 1, 1) == 1}
	p.limits = rapid.SampledFrom([]psych.Limits{
		{},
		{LargeResultTokens: 100, BatchResultTokens: 300, PreviewChars: 100},
		{HistoryResultTokens: 50, HistoryMinSavingTokens: 10, PreviewChars: 100, Parallel: 1},
		{ContextTokens: 3000, PreviewChars: 100, Parallel: 2, Turns: 4},
	}).Draw(t, "limits")
	handles := []string{"out_c1_1", "out_c1_1", "out_c1_2", "out_c2_1", "out_c1_1_a", "out_c9_9"}
	for range weighted("steps", 1, 2, 4, 6) {
		var s script.Step
		switch weighted("step", 0, 0, 0, 0, 0, 0, 1, 2, 3, 4) {
		case 0:
			for range weighted("calls", 1, 1, 2, 3, 5) {
				var c script.Call
				switch weighted("call", 0, 0, 0, 0, 1, 2) {
				case 0:
					c.Name = rapid.SampledFrom([]string{"safe", "unsafe"}).Draw(t, "tool")
					c.Arguments, _ = json.Marshal(made{
						N:      weighted("size", 0, 5, 300, 900, 900, 3000, 30_000, 140_000),
						Fail:   weighted("fail", 0, 0, 0, 0, 1) == 1,
						Ms:     weighted("ms", 0, 0, 0, 700, 9000, 70_000),
						Attach: rapid.SampledFrom([][]int{nil, nil, nil, {100}, {900, 10}, {5000, 140_000}}).Draw(t, "attachments"),
					})
				case 1:
					c.Name = "read_tool_output"
					c.Arguments, _ = json.Marshal(map[string]any{"handle": rapid.SampledFrom(handles).Draw(t, "handle"), "limit": 20})
				default:
					c = rapid.SampledFrom([]script.Call{{Name: "nothing"}, {Name: "safe", Arguments: json.RawMessage(`{"n":"many"}`)}, {Name: "unsafe", RawArguments: ptrTo("{")}}).Draw(t, "odd call")
				}
				s.Calls = append(s.Calls, c)
			}
			if weighted("cut", 0, 0, 0, 0, 0, 0, 1) == 1 {
				s.Stop = psych.StopMaxTokens
			}
		case 1:
			s.Text = ptrTo("said")
		case 2:
			s.Fail, s.Times = ptrTo(rapid.SampledFrom([]int{429, 500, 0}).Draw(t, "status")), weighted("times", 1, 2, 5)
		case 3:
			s.Fail, s.Stop = ptrTo(400), psych.StopContext
		case 4:
			s.Stall, s.Times = true, 1
		}
		p.steps = append(p.steps, s)
	}
	for range 30 { // enough for every message
		p.steps = append(p.steps, script.Step{Text: ptrTo("answered")})
	}
	for range weighted("segments", 1, 2, 3, 5) {
		p.segments = append(p.segments, segment{
			worker: weighted("worker", 0, 1),
			memory: rapid.SampledFrom([]string{"", "", "new", "known"}).Draw(t, "memory"),
			before: rapid.SampledFrom([]note{noNote, aMessage, aMessage, aLargeMessage, anAbort}).Draw(t, "before"),
			during: rapid.SampledFrom([]note{noNote, noNote, aMessage, anAbort, aCancel}).Draw(t, "during"),
			at:     weighted("at", 3, 5, 7, 9, 11, 14, 20),
			kill:   weighted("kill", -1, -1, 0, 1, 2, 3, 4, 5, 6, 8, 10),
			lost:   weighted("lost", 0, 1) == 1,
			time:   time.Duration(weighted("time", 0, 0, 0, 25, 90)) * time.Second,
		})
	}
	return p
}

func ptrTo[T any](v T) *T { return &v }

// made is what a tool of a plan makes.
type made struct {
	N      int   `json:"n"`
	Fail   bool  `json:"fail,omitempty"`
	Ms     int   `json:"ms,omitempty"`
	Attach []int `json:"attach,omitempty"`
}

func maker(name string, safe bool) *psych.Tool {
	text := func(n int) string { return strings.Repeat("0123456789012345678\n", n/20+1)[:n] }
	return psych.NewTool(name, "Makes a text.", func(ctx context.Context, c *psych.Call, in made) (string, error) {
		for i, n := range in.Attach {
			w, err := c.Attach(string(rune('a'+i)), "text/plain", nil)
			if err != nil {
				return "", err
			}
			if _, err := w.Write([]byte(text(n))); err != nil {
				return "", err
			}
			if i == 0 {
				w.Close() // another is left open: that is closed for it
			}
		}
		select {
		case <-time.After(time.Duration(in.Ms) * time.Millisecond):
		case <-ctx.Done():
			return "", ctx.Err()
		}
		if in.Fail {
			return "", errors.New("it failed: " + text(in.N))
		}
		return text(in.N), nil
	}, &psych.ToolOptions{Idempotent: safe})
}

// A world is where a plan is carried out.
type world struct {
	plan  *plan
	tap   *tap
	model *script.Model
	o     psych.Options
	key   psych.RunKey
	posts int

	cancel context.CancelFunc // of the Drive that is on its way

	mu     sync.Mutex
	memory string
}

func (w *world) worker() *psych.Runtime {
	rt, err := psych.New(w.tap, &w.o)
	if err != nil {
		panic(err) // the options are the test's own
	}
	return rt
}

func (w *world) post(client *psych.Runtime, n note) error {
	ctx := context.Background()
	w.posts++
	id := fmt.Sprint("note ", w.posts)
	switch n {
	case aLargeMessage:
		m := psych.ClientMessage{ID: id, Text: "large", Attachments: []psych.MessageAttachment{{Name: "a", ContentType: "text/plain", Data: []byte("small")}, {Name: "b", ContentType: "image/png", Data: []byte{0xff}}}}
		if w.o.Blobs != nil {
			m.Text = strings.Repeat("large ", 25_000)
		}
		return client.Send(ctx, w.key, m)
	case aMessage:
		return client.Send(ctx, w.key, psych.ClientMessage{ID: id, Text: "message of " + id})
	case anAbort:
		return client.Abort(ctx, w.key, psych.AbortRequest{ID: id, Reason: "enough"})
	case aCancel:
		w.cancel()
	}
	return nil
}

// meanwhile posts a note at a call of the store, and kills the worker at a
// write, before it or behind it. What it returns says whether that happened.
func (w *world) meanwhile(s *segment, client *psych.Runtime) (killed func() bool) {
	var mu sync.Mutex
	calls, seen, dead := 0, 0, false
	var posted error
	w.tap.hook(func(method string) error {
		mu.Lock()
		defer mu.Unlock()
		if dead {
			return errKilled
		}
		if calls++; calls == s.at {
			posted = w.post(client, s.during)
		}
		if posted != nil {
			return posted
		}
		if s.kill >= 0 && slices.Contains(writes, method) {
			if seen == s.kill && !s.lost {
				dead = true
				return errKilled
			}
			seen++
		}
		return nil
	}, func(method string) error {
		mu.Lock()
		defer mu.Unlock()
		if s.kill >= 0 && s.lost && seen > s.kill {
			dead = true
		}
		if dead {
			return errKilled
		}
		return nil
	})
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		return dead
	}
}

// expected reports whether a Drive may end so whose worker lives: a handle that
// is none closes the exchange with an error.
func expected(out psych.Outcome, err error) bool {
	return err == nil || out == psych.Closed && errors.Is(err, psych.ErrAccessDenied)
}

// carryOut makes a log, and checks what holds of each.
func (p *plan) carryOut(t *testing.T) error {
	ctx := context.Background()
	w := &world{plan: p, tap: &tap{Store: memory.New(nil)}}
	s := &script.Script{Steps: p.steps}
	w.model = script.New(s, &script.Options{Record: true})
	w.o = psych.Options{
		Models: psych.OneModel(w.model), Tools: []*psych.Tool{maker("safe", true), maker("unsafe", false)},
		Memories: func(context.Context, psych.Scope) (string, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.memory, nil
		},
	}
	if p.blobs {
		w.o.Blobs = memory.NewBlobs(nil)
	}
	client, err := psych.New(w.tap.Store, &w.o)
	if err != nil {
		return err
	}
	spec := psych.Spec{Name: "agent", Instructions: "Be brief.", Tools: []string{"safe", "unsafe"}, Limits: p.limits}
	v, err := client.Publish(ctx, "t", &spec)
	if err != nil {
		return err
	}
	if w.key, err = client.Start(ctx, psych.Scope{Tenant: "t"}, v.Hash, psych.ClientMessage{ID: "first", Text: "go"}); err != nil {
		return err
	}
	workers := []*psych.Runtime{w.worker(), w.worker()}
	for i := range p.segments {
		s := &p.segments[i]
		w.mu.Lock()
		w.memory = s.memory
		w.mu.Unlock()
		if err := w.post(client, s.before); err != nil {
			return err
		}
		own, cancel := context.WithCancel(ctx)
		if s.time > 0 {
			own, cancel = context.WithTimeout(ctx, s.time)
		}
		w.cancel = cancel
		killed := w.meanwhile(s, client)
		out, err := workers[s.worker].Drive(own, w.key, nil)
		cancel()
		w.tap.hook(nil, nil)
		switch {
		case killed():
			workers[s.worker] = w.worker()
			time.Sleep(2 * time.Minute) // the lease ends
		case !expected(out, err) && !(s.during == aCancel && errors.Is(err, context.Canceled)):
			return fmt.Errorf("drive %d: %v, %w", i+1, out, err)
		}
	}
	for i := 0; ; i++ {
		out, err := workers[0].Drive(ctx, w.key, nil)
		if !expected(out, err) || i == 50 {
			return fmt.Errorf("the drive to the end: %v, %w", out, err)
		}
		if out == psych.Idle {
			break
		}
		time.Sleep(time.Minute)
	}
	if err := prefixesFold(w.tap.Store, w.o.Blobs, w.key); err != nil {
		return err
	}

	// A worker that folded the log as it grew, piece by piece, and one that
	// reads it now, an append at a time, send the same.
	frozen := freeze(t, w.tap.Store, w.key, nil)
	before := len(w.model.Requests())
	how, err := w.last(workers[0])
	if err != nil {
		return fmt.Errorf("a warm worker: %w", err)
	}
	warm := w.model.Requests()[before:]
	store, _ := frozen.thaw(t, len(frozen.entries), &memory.Options{PageBytes: 1})
	w.tap = &tap{Store: store}
	w.model = script.New(s, &script.Options{Record: true})
	w.o.Models = psych.OneModel(w.model)
	again, err := w.last(w.worker())
	if err != nil {
		return fmt.Errorf("a cold worker: %w", err)
	}
	cold := w.model.Requests()
	how.Spend, again.Spend = psych.Spend{}, psych.Spend{} // of two models, each with a cache of its own
	if how != again || len(warm) != len(cold) {
		return fmt.Errorf("%d requests of a warm worker, %+v; %d of a cold one, %+v", len(warm), how, len(cold), again)
	}
	for i := range warm {
		if a, b := warm[i].Prefix(), cold[i].Prefix(); string(a) != string(b) {
			return fmt.Errorf("request %d of a warm and of a cold worker: %s", i+1, difference(a, b))
		}
	}
	return nil
}

// last sends one more message, and says how its exchange ended.
func (w *world) last(rt *psych.Runtime) (psych.ExchangeReport, error) {
	ctx := context.Background()
	none := psych.ExchangeReport{}
	if err := rt.Send(ctx, w.key, psych.ClientMessage{ID: "last", Text: "one more"}); err != nil {
		return none, err
	}
	if out, err := rt.Drive(ctx, w.key, nil); out != psych.Closed || !expected(out, err) {
		return none, fmt.Errorf("%v, %w", out, err)
	}
	rep, err := rt.Report(ctx, w.key)
	if err != nil {
		return none, err
	}
	return rep.Exchanges[len(rep.Exchanges)-1], nil
}

// Whatever clients, tools, models and dying workers do, the log is legal: each
// prefix of it folds, and it folds to the same in one go and in pieces.
func TestLogsAreLegal(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := drawPlan(rt)
		var err error
		synctest.Test(t, func(t *testing.T) { err = p.carryOut(t) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// A worker whose knowledge of a Run is from before another one trimmed it sends
// what that one sent.
func TestAnotherWorkerTrims(t *testing.T) {
	h := newHarness(t, "steps: [{calls: [{name: sized, arguments: {n: 20000}}]}, {text: one}, {text: two}, {text: three}]", sized)
	key := h.start("go")
	h.drive(key)
	first := h.rt
	h.restart()
	h.send(key, "another worker trims")
	h.rt = first
	h.send(key, "the first goes on")
	if rep := h.report(key); rep.Status != psych.StatusCompleted || rep.Exchanges[2].Answer != "three" {
		t.Errorf("%s %+v", rep.Status, rep.Exchanges)
	}
	sent := h.model.Requests()
	if before, now := sent[2].Prefix(), sent[3].Prefix(); !bytes.HasPrefix(now, before) {
		t.Errorf("the first worker left the prefix: %s", difference(now, before))
	}
}

// A call that is cut off while it writes an attachment leaves no goroutine.
func TestAbortedWhileItAttaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, once, attacher(func(ctx context.Context, c *psych.Call) (*psych.Result, error) {
			w, err := c.Attach("log", "text/plain", nil)
			if err == nil {
				_, err = w.Write([]byte("so far"))
			}
			if err != nil {
				return nil, err
			}
			<-ctx.Done()
			return nil, ctx.Err() // and never closed
		}))
		key := h.start("go")
		go func() {
			time.Sleep(time.Second)
			if err := h.rt.Abort(context.Background(), key, psych.AbortRequest{}); err != nil {
				t.Error(err)
			}
		}()
		h.drive(key)
		if rep := h.report(key); rep.Status != psych.StatusAborted || rep.ToolCalls[0].Outcome != "unknown" {
			t.Errorf("%s %+v", rep.Status, rep.ToolCalls)
		}
	})
}
