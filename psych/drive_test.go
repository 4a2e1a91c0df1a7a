package psych_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psych-go/psych-go/psych"
)

const threeTurns = `
steps:
- calls: [{name: echo, arguments: {text: one}}, {name: echo, arguments: {text: two}}]
- calls: [{name: echo, arguments: {text: three}}]
- calls: [{name: echo, arguments: {text: four}}]
- text: done
- text: done again
- text: and again
`

func TestAppendsAndReadsATurn(t *testing.T) {
	h := newHarness(t, threeTurns, echo)
	key := h.start("go")
	h.drive(key)
	// The start of the exchange, two for each of three turns with tools, one
	// for the answer.
	if got := h.tap.count("Append"); got != 1+2*3+1 {
		t.Errorf("%d appends for 3 turns with tools and an answer, want 8", got)
	}
	h.tap.reset()
	if err := h.rt.Send(context.Background(), key, psych.ClientMessage{ID: "m2", Text: "more"}); err != nil {
		t.Fatal(err)
	}
	h.drive(key)
	if got := h.tap.count("Append"); got != 2 {
		t.Errorf("%d appends for an exchange of one answer, want 2", got)
	}
	for _, m := range []string{"Read", "Head", "GetDoc"} {
		if got := h.tap.count(m); got != 0 {
			t.Errorf("a warm driver called %s %d times, want 0", m, got)
		}
	}
	if got := h.tap.count("Pending"); got != 1 {
		t.Errorf("a warm driver looked into the inbox %d times, want once", got)
	}
}

// countingModel counts what its Codec encodes.
type countingModel struct {
	psych.Model
	messages atomic.Int64
}

type countingCodec struct {
	psych.Codec
	m *countingModel
}

func (m *countingModel) Codec() psych.Codec { return countingCodec{m.Model.Codec(), m} }

func (c countingCodec) EncodeMessage(m *psych.Message) ([]byte, int, error) {
	c.m.messages.Add(1)
	return c.Codec.EncodeMessage(m)
}

// What was sent is sent again: within an exchange and over exchanges, each
// request begins with the one before it, and a message is encoded once.
func TestPrefixIsByteStable(t *testing.T) {
	h := newHarness(t, threeTurns, echo)
	counting := &countingModel{Model: h.model}
	h.o.Models = psych.OneModel(counting)
	rt, err := psych.New(h.tap, &h.o)
	if err != nil {
		t.Fatal(err)
	}
	h.rt = rt
	key := h.start("go")
	h.drive(key)
	if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: "more"}); err != nil {
		t.Fatal(err)
	}
	h.drive(key)
	sent := h.model.Requests()
	if len(sent) != 5 {
		t.Fatalf("%d requests, want 5", len(sent))
	}
	for i := 1; i < len(sent); i++ {
		if !bytes.HasPrefix(sent[i].Prefix(), sent[i-1].Prefix()) {
			t.Errorf("request %d does not begin with request %d:\n%s\n%s", i+1, i, sent[i-1].Prefix(), sent[i].Prefix())
		}
	}
	last := sent[4].Request
	if got := counting.messages.Load(); got != int64(len(last.History)) {
		t.Errorf("%d messages were encoded, for a history of %d", got, len(last.History))
	}
	// The split is what was sent.
	rep := h.report(key)
	for i, m := range rep.ModelCalls {
		s := sent[i]
		chars := func(b []byte) int { return len([]rune(string(b))) }
		want := psych.WireSplit{Tools: chars(s.Zone(0)), System: chars(s.Zone(1)) + chars(s.Zone(2)), Tail: chars(s.Zone(4))}
		for _, w := range s.Request.History {
			want.History += chars(w.Bytes)
		}
		want.Envelope = chars(s.Body()) - want.Total()
		if m.Wire != want {
			t.Errorf("call %d: split %+v, want %+v", i+1, m.Wire, want)
		}
		if len(m.Breaks) > 0 {
			t.Errorf("call %d has breaks %v", i+1, m.Breaks)
		}
	}
	// A cold driver of another process makes the same prefix.
	h.restart()
	if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: "and more"}); err != nil {
		t.Fatal(err)
	}
	h.drive(key)
	sent = h.model.Requests()
	if !bytes.HasPrefix(sent[5].Prefix(), sent[4].Prefix()) {
		t.Errorf("after a restart the prefix is another:\n%s\n%s", sent[4].Prefix(), sent[5].Prefix())
	}
}

// For a provider that binds reasoning to everything before it a trailing message
// stays where it was, in every later request, also of another process.
func TestKeptTails(t *testing.T) {
	h := newHarness(t, threeTurns, echo)
	wrap := func() {
		h.o.Models = psych.OneModel(keeper{h.model})
		rt, err := psych.New(h.tap, &h.o)
		if err != nil {
			t.Fatal(err)
		}
		h.rt = rt
	}
	wrap()
	key := h.start("go")
	h.drive(key)
	for i := range 2 {
		if i == 1 {
			wrap() // another process
		}
		if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: "more"}); err != nil {
			t.Fatal(err)
		}
		h.drive(key)
	}
	sent := h.model.Requests()
	tails := 0
	for i := 1; i < len(sent); i++ {
		before := sent[i-1].Prefix()
		if tail := sent[i-1].Zone(4); len(tail) > 0 {
			before = append(append(bytes.Clone(before), ','), tail...)
			tails++
		}
		if !bytes.HasPrefix(sent[i].Prefix(), before) {
			t.Errorf("request %d does not begin with request %d and its tail", i+1, i)
		}
	}
	if tails < 2 {
		t.Errorf("%d tails were followed by a request, want one an exchange", tails)
	}
	for _, m := range h.report(key).ModelCalls {
		if m.Breaks != nil {
			t.Errorf("turn %d: %+v", m.Turn, m.Breaks)
		}
	}
}

type keeper struct{ psych.Model }

func (k keeper) Codec() psych.Codec { return keeperCodec{k.Model.Codec()} }

type keeperCodec struct{ psych.Codec }

func (keeperCodec) KeepsTails() bool { return true }

var errLost = errors.New("the answer was lost")

// An answer that is lost after the call took effect changes nothing.
func TestLostAnswers(t *testing.T) {
	var want string
	for _, method := range []string{"", "Claim", "Append", "Post", "Release", "Renew", "Settle", "Pending", "GetRun", "CreateRun"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, threeTurns, echo)
				lost := map[int]bool{}
				h.tap.hook(nil, func(m string) error {
					n := h.tap.count(m)
					if m == method && !lost[n] && n%2 == 1 { // each other call, once
						lost[n] = true
						return fmt.Errorf("%w: %w", psych.ErrUnavailable, errLost)
					}
					return nil
				})
				key := h.start("go")
				out, err := h.rt.Drive(context.Background(), key, nil)
				if method == "GetRun" && err != nil { // Drive's first look: its caller tries again
					out, err = h.rt.Drive(context.Background(), key, nil)
				}
				if out != psych.Closed || err != nil {
					t.Fatalf("%v, %v", out, err)
				}
				if method != "" && method != "Renew" && len(lost) == 0 {
					t.Fatalf("no answer of %s was lost", method)
				}
				h.tap.hook(nil, nil)
				got := fmt.Sprint(h.kinds(key))
				if want == "" {
					want = got
				}
				if got != want {
					t.Errorf("the log is another:\n got %s\nwant %s", got, want)
				}
				info, err := h.tap.GetRun(context.Background(), key)
				if err != nil || info.Owner != "" || !info.DueAt.IsZero() || info.Status != psych.StatusCompleted {
					t.Errorf("header %+v, %v", info, err)
				}
			})
		})
	}
}

var errKilled = errors.New("killed")

var writes = []string{"Append", "Post", "Settle", "Claim", "Renew", "Release", "CreateRun"}

// killer lets n writes through and then nothing at all, as if the process had
// died; with lost the last of them took effect, and nobody learned of it.
func killer(h *harness, n int, lost bool) {
	var mu sync.Mutex
	seen, dead := 0, false
	h.tap.hook(func(m string) error {
		mu.Lock()
		defer mu.Unlock()
		if dead {
			return errKilled
		}
		if slices.Contains(writes, m) {
			if seen == n && !lost {
				dead = true
				return errKilled
			}
			seen++
		}
		return nil
	}, func(m string) error {
		mu.Lock()
		defer mu.Unlock()
		if lost && slices.Contains(writes, m) && seen > n {
			dead = true
		}
		if dead {
			return errKilled
		}
		return nil
	})
}

// A worker dies at every write, before and after it; another goes on.
func TestKilledAtEveryWrite(t *testing.T) {
	script := `
steps:
- calls: [{name: unsafe, arguments: {}}, {name: safe, arguments: {}}, {name: unsafe, arguments: {}}]
- calls: [{name: safe, arguments: {}}]
- text: done
`
	kills := 0
	for _, lost := range []bool{false, true} {
		for n := 0; ; n++ {
			finished := false
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				ran := map[string]int{}
				keys := map[string]map[string]bool{}
				note := func(c *psych.Call) {
					mu.Lock()
					defer mu.Unlock()
					ran[c.ID]++
					if keys[c.ID] == nil {
						keys[c.ID] = map[string]bool{}
					}
					keys[c.ID][c.IdempotencyKey] = true
				}
				tool := func(name string, safe bool) *psych.Tool {
					return psych.NewTool(name, "", func(_ context.Context, c *psych.Call, _ struct{}) (string, error) {
						note(c)
						return "ok", nil
					}, &psych.ToolOptions{Idempotent: safe})
				}
				h := newHarness(t, script, tool("unsafe", false), tool("safe", true))
				key := h.start("go")
				killer(h, n, lost)
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
				defer cancel()
				out, err := h.rt.Drive(ctx, key, nil)
				h.tap.hook(nil, nil)
				if finished = err == nil && out == psych.Closed; finished {
					return
				}
				kills++
				h.restart()
				time.Sleep(2 * time.Minute) // the lease ends
				out, err = h.rt.Drive(context.Background(), key, nil)
				if err != nil || (out != psych.Closed && out != psych.Idle) {
					t.Fatalf("write %d, lost %v: %v, %v", n, lost, out, err)
				}
				rep := h.report(key)
				if rep.Status != psych.StatusCompleted || rep.Turns != 3 {
					t.Fatalf("write %d, lost %v: %s after %d turns: %s", n, lost, rep.Status, rep.Turns, fmt.Sprint(h.kinds(key)))
				}
				for _, c := range rep.ToolCalls {
					switch {
					case c.Name == "unsafe" && ran[c.ID] > 1:
						t.Errorf("write %d, lost %v: %s ran %d times", n, lost, c.ID, ran[c.ID])
					case c.Name == "unsafe" && ran[c.ID] == 1 && c.Outcome == "not_started":
						t.Errorf("write %d, lost %v: %s ran, and the log says %s", n, lost, c.ID, c.Outcome)
					case c.Name == "safe" && (ran[c.ID] < 1 || len(keys[c.ID]) != 1 || c.Outcome != "succeeded"):
						t.Errorf("write %d, lost %v: %s ran %d times with the keys %v: %s", n, lost, c.ID, ran[c.ID], slices.Collect(maps.Keys(keys[c.ID])), c.Outcome)
					}
				}
				if info, err := h.tap.GetRun(context.Background(), key); err != nil || info.Owner != "" || !info.DueAt.IsZero() {
					t.Errorf("write %d, lost %v: header %+v, %v", n, lost, info, err)
				}
			})
			if finished {
				break
			}
			if n > 50 {
				t.Fatal("it never finishes")
			}
		}
	}
	if kills < 14 {
		t.Errorf("only %d kill points were tried", kills)
	}
	t.Logf("%d kill points", kills)
}

// A driver that pauses for longer than its lease, before or behind any write,
// wakes up as a zombie: it stops, and nothing is doubled.
func TestPausedPastItsLease(t *testing.T) {
	for _, behind := range []bool{false, true} {
		for n := 1; ; n++ {
			paused := false
			synctest.Test(t, func(t *testing.T) {
				var ran atomic.Int64
				began := time.Now()
				tool := func(first bool) *psych.Tool {
					return psych.NewTool("once", "", func(context.Context, *psych.Call, struct{}) (string, error) {
						ran.Add(1)
						if first && time.Since(began) > time.Minute {
							t.Errorf("write %d, behind %v: the zombie began a tool after its lease was over", n, behind)
						}
						return "ok", nil
					}, nil)
				}
				h := newHarness(t, "steps: [{calls: [{name: once}]}, {text: done}]", tool(true))
				key := h.start("go")
				var first atomic.Bool
				first.Store(true)
				count := 0
				pause := func(m string) error {
					if !first.Load() || !slices.Contains(writes, m) {
						return nil
					}
					if count++; count == n {
						first.Store(false)
						paused = true
						time.Sleep(3 * time.Minute)
					}
					return nil
				}
				if behind {
					h.tap.hook(nil, pause)
				} else {
					h.tap.hook(pause, nil)
				}
				done := make(chan string)
				go func() {
					out, err := h.rt.Drive(context.Background(), key, nil)
					done <- fmt.Sprint(out, err)
				}()
				time.Sleep(2 * time.Minute)
				other := harness{t: t, tap: &tap{Store: h.tap.Store}, blobs: h.blobs, model: h.model, o: h.o, spec: h.spec}
				other.o.Tools = []*psych.Tool{tool(false)}
				other.restart()
				out, err := other.rt.Drive(context.Background(), key, nil)
				zombie := <-done
				if err != nil || out != psych.Closed && out != psych.Idle {
					t.Fatalf("write %d, behind %v: the second driver: %v, %v; the first: %s", n, behind, out, err, zombie)
				}
				if strings.Contains(zombie, string(psych.StaleAttempt)) {
					t.Errorf("write %d, behind %v: the zombie took its own lateness for corruption: %s", n, behind, zombie)
				}
				rep := other.report(key)
				if rep.Status != psych.StatusCompleted || ran.Load() > 1 {
					t.Errorf("write %d, behind %v: %s, the tool ran %d times: %v", n, behind, rep.Status, ran.Load(), other.kinds(key))
				}
			})
			if !paused {
				break
			}
		}
	}
}

// A message that is posted at any point of an exchange is delivered once.
func TestPostedAtEveryPoint(t *testing.T) {
	points := 0
	for n := 1; ; n++ {
		posted := false
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, "steps: [{calls: [{name: echo, arguments: {text: hi}}]}, {text: one}, {text: two}, {text: three}]", echo)
			key := h.start("go")
			client, err := psych.New(h.tap.Store, nil)
			if err != nil {
				t.Fatal(err)
			}
			count := 0
			h.tap.hook(func(string) error {
				if count++; count == n {
					posted = true
					for range 2 { // with one id it is one message
						if err := client.Send(context.Background(), key, psych.ClientMessage{ID: "m2", Text: "also"}); err != nil {
							t.Error(err)
						}
					}
				}
				return nil
			}, nil)
			h.drive(key)
			h.tap.hook(nil, nil)
			if !posted {
				return
			}
			points++
			info, err := h.tap.GetRun(context.Background(), key)
			if err != nil {
				t.Fatal(err)
			}
			if !info.DueAt.IsZero() { // posted behind the last look
				h.drive(key)
			}
			delivered := 0
			for r, err := range h.rt.Records(context.Background(), key, psych.Pos{}) {
				if err != nil {
					t.Fatal(err)
				}
				if m, ok := r.Event.(*psych.UserMessage); ok && m.ID == "m2" {
					delivered++
				}
			}
			rep := h.report(key)
			if delivered != 1 || rep.Waiting != 0 || rep.Status != psych.StatusCompleted {
				t.Errorf("point %d: delivered %d times, %d wait, %s: %v", n, delivered, rep.Waiting, rep.Status, h.kinds(key))
			}
		})
		if !posted {
			break
		}
	}
	if points < 8 {
		t.Errorf("only %d points were tried", points)
	}
}

// askedModel says when it is asked.
type askedModel struct {
	psych.Model
	asked func()
}

func (m askedModel) Generate(ctx context.Context, req *psych.Request, on func(psych.Delta)) (*psych.Response, error) {
	m.asked()
	return m.Model.Generate(ctx, req, on)
}

// A lease counts from the first sending of the claim or renewal that was
// answered at last: where little of it is left, it is renewed before an effect.
func TestLeaseCountsFromTheFirstSending(t *testing.T) {
	for _, slow := range []string{"Claim", "Renew"} {
		t.Run(slow, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, "steps: [{text: done}]")
				renewed := 0
				h.o.Models = psych.OneModel(askedModel{h.model, func() { renewed = h.tap.count("Renew") }})
				rt, err := psych.New(h.tap, &h.o)
				if err != nil {
					t.Fatal(err)
				}
				key := h.start("go")
				h.tap.hook(nil, func(m string) error {
					switch {
					case m == slow && h.tap.count(m) == 1:
						time.Sleep(40 * time.Second)
						if m == "Renew" {
							time.Sleep(12 * time.Second)
						} else {
							return fmt.Errorf("%w: %w", psych.ErrUnavailable, errLost)
						}
					case m == "Append" && slow == "Renew":
						time.Sleep(51 * time.Second) // so that the lease is renewed, which takes 52 s
					case m == "Append":
						time.Sleep(12 * time.Second)
					}
					return nil
				})
				if out, err := rt.Drive(context.Background(), key, nil); err != nil || out != psych.Closed {
					t.Fatal(out, err)
				}
				if want := map[string]int{"Claim": 1, "Renew": 2}[slow]; renewed < want {
					t.Errorf("the lease was renewed %d times before the model was called, want %d at the least", renewed, want)
				}
			})
		})
	}
}

// A renewal before an effect whose answer is lost is tried again while the
// lease lasts.
func TestRenewalBeforeAnEffectIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: [{text: done}]")
		key := h.start("go")
		h.tap.hook(nil, func(m string) error {
			switch {
			case m == "Append" && h.tap.count(m) == 1:
				time.Sleep(51 * time.Second)
			case m == "Renew" && h.tap.count(m) < 4:
				return fmt.Errorf("%w: %w", psych.ErrUnavailable, errLost)
			}
			return nil
		})
		h.drive(key)
		if rep := h.report(key); rep.Status != psych.StatusCompleted || rep.Attempts != 1 {
			t.Errorf("%s after %d attempts", rep.Status, rep.Attempts)
		}
	})
}

// A message that comes during an append so slow that the lease is renewed
// before the effect is not overlooked at the release.
func TestPostedDuringASlowAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: [{text: one}, {text: two}]")
		key := h.start("go")
		h.tap.hook(nil, func(m string) error {
			if m != "Append" {
				return nil
			}
			h.tap.hook(nil, nil)
			err := h.rt.Send(context.Background(), key, psych.ClientMessage{ID: "m2", Text: "also"})
			time.Sleep(55 * time.Second)
			return err
		})
		h.drive(key)
		if rep := h.report(key); rep.Waiting != 0 || len(rep.Exchanges) != 2 {
			t.Errorf("%d messages wait, %+v", rep.Waiting, rep.Exchanges)
		}
	})
}

func TestPostWakes(t *testing.T) {
	h := newHarness(t, "steps: [{text: a}]")
	var woken []psych.RunKey
	h.o.Waker = wakerFunc(func(keys ...psych.RunKey) error { woken = append(woken, keys...); return errors.New("deaf") })
	h.restart()
	key := h.start("go") // a waker that fails loses nothing
	if len(woken) != 1 || woken[0] != key {
		t.Errorf("woken: %v", woken)
	}
	h.drive(key)
}

type wakerFunc func(keys ...psych.RunKey) error

func (f wakerFunc) Wake(_ context.Context, keys ...psych.RunKey) error { return f(keys...) }

func TestAbort(t *testing.T) {
	abort := func(t *testing.T, h *harness, key psych.RunKey, message string) {
		t.Helper()
		for range 2 { // a repetition is one request
			if err := h.rt.Abort(context.Background(), key, psych.AbortRequest{ID: "a1", Message: message, Reason: "enough"}); err != nil {
				t.Error(err)
			}
		}
	}
	slow := psych.NewTool("slow", "", func(ctx context.Context, _ *psych.Call, _ struct{}) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}, nil)
	check := func(t *testing.T, h *harness, key psych.RunKey, want string) {
		t.Helper()
		if got := strings.Join(h.kinds(key)[3:], " "); got != want {
			t.Errorf("log\n got %s\nwant %s", got, want)
		}
		if rep := h.report(key); rep.Exchanges[0].Closed != psych.StatusAborted || rep.Exchanges[0].Reason != "enough" || rep.Waiting != 0 {
			t.Errorf("%+v", rep.Exchanges)
		}
		// The Run stays usable.
		if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: "again"}); err != nil {
			t.Fatal(err)
		}
		h.drive(key)
		if rep := h.report(key); rep.Status != psych.StatusCompleted {
			t.Errorf("the next message: %s, %+v", rep.Status, rep.Exchanges)
		}
	}
	for _, delivered := range []bool{true, false} {
		t.Run(fmt.Sprintf("with the id of a message, delivered: %v", delivered), func(t *testing.T) {
			h := newHarness(t, "steps: [{stall: true}, {text: done}]")
			key := h.start("go")
			ctx := context.Background()
			message := psych.AbortRequest{ID: "m1", Message: "m1", Reason: "enough"}
			if delivered {
				go func() {
					for len(h.kinds(key)) < 4 {
						time.Sleep(time.Millisecond)
					}
					if err := h.rt.Abort(ctx, key, message); err != nil {
						t.Error(err)
					}
				}()
			} else if err := errors.Join(h.rt.Abort(ctx, key, message), h.rt.Abort(ctx, key, message)); err != nil {
				t.Fatal(err)
			}
			h.drive(key)
			rep := h.report(key)
			if len(rep.Exchanges) != 1 || rep.Exchanges[0].Closed != psych.StatusAborted || rep.Waiting != 0 {
				t.Errorf("%+v, %d notes wait", rep.Exchanges, rep.Waiting)
			}
			if got := strings.Join(h.kinds(key), " "); strings.Count(got, "abort_requested") != 1 {
				t.Errorf("log %s; want one abort", got)
			}
		})
	}
	for name, local := range map[string]bool{"here": true, "elsewhere": false} {
		t.Run("during a tool, "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, "steps: [{calls: [{name: echo, arguments: {text: x}}, {name: slow}, {name: slow}]}, {text: done}]", echo, slow)
				h.spec.Limits.Parallel = 2
				h.o.Tools = []*psych.Tool{echo, slow}
				key := h.start("go")
				began := time.Now()
				go func() {
					time.Sleep(5 * time.Second)
					r := h
					if !local {
						r = &harness{t: t, tap: h.tap, o: h.o, model: h.model}
						r.restart()
					}
					abort(t, r, key, "m1")
				}()
				h.drive(key)
				if took := time.Since(began); local && took > 6*time.Second || took > 41*time.Second {
					t.Errorf("the abort took %v", took)
				}
				check(t, h, key, "model_call_started model_call_finished tool_call_started tool_call_started tool_call_finished tool_call_started tool_call_finished tool_call_finished abort_requested exchange_closed")
			})
		})
	}
	t.Run("during a model call", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, "steps: [{stall: true, times: 1}, {text: done}]")
			key := h.start("go")
			go func() { time.Sleep(time.Second); abort(t, h, key, "") }()
			h.drive(key)
			check(t, h, key, "model_call_started model_call_failed abort_requested exchange_closed")
		})
	})
	t.Run("before any attempt", func(t *testing.T) {
		h := newHarness(t, "steps: [{text: done}]")
		key := h.start("go")
		abort(t, h, key, "m1")
		h.drive(key)
		check(t, h, key, "abort_requested exchange_closed")
	})
	t.Run("after the end", func(t *testing.T) {
		h := newHarness(t, "steps: [{text: done}, {text: more}]")
		key := h.start("go")
		h.drive(key)
		abort(t, h, key, "m1")
		if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: "again"}); err != nil {
			t.Fatal(err)
		}
		h.drive(key)
		if rep := h.report(key); rep.Status != psych.StatusCompleted || len(rep.Exchanges) != 2 || rep.Exchanges[0].Closed != psych.StatusCompleted {
			t.Errorf("%+v", rep.Exchanges)
		}
	})
}

func TestTwoDrivers(t *testing.T) {
	h := newHarness(t, threeTurns, echo)
	key := h.start("go")
	var wg sync.WaitGroup
	var closed atomic.Int64
	for range 8 {
		wg.Go(func() {
			rt, err := psych.New(h.tap, &h.o)
			if err != nil {
				t.Error(err)
				return
			}
			out, err := rt.Drive(context.Background(), key, nil)
			if err != nil {
				t.Error(err)
			}
			if out == psych.Closed {
				closed.Add(1)
			}
		})
	}
	wg.Wait()
	if closed.Load() < 1 || len(h.model.Requests()) != 4 {
		t.Errorf("%d drivers closed the exchange, with %d model calls; want 4 calls", closed.Load(), len(h.model.Requests()))
	}
}

func TestRetries(t *testing.T) {
	t.Run("passing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, "steps: [{fail: 429, times: 2, retry_after_seconds: 7}, {fail: 503, times: 2}, {text: done}]")
			key := h.start("go")
			began := time.Now()
			h.drive(key)
			if rep := h.report(key); rep.Status != psych.StatusCompleted || rep.Turns != 1 || len(rep.ModelCalls) != 5 || rep.ModelCalls[4].Try != 4 {
				t.Errorf("%s, %+v", rep.Status, rep.ModelCalls)
			}
			if took := time.Since(began); took != (7+7+4+8)*time.Second {
				t.Errorf("waited %v, want 7 s twice as the provider asked, then 4 s and 8 s", took)
			}
		})
	})
	t.Run("over processes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, "steps: [{fail: 500, times: 9}, {text: done}]")
			key := h.start("go")
			for range 3 { // each attempt is cut in its second wait
				ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
				out, err := h.rt.Drive(ctx, key, &psych.DriveOptions{Margin: time.Second, Floor: time.Millisecond})
				cancel()
				if err != nil || out != psych.Yielded && out != psych.Closed {
					t.Fatal(out, err)
				}
				time.Sleep(time.Minute)
				h.restart()
			}
			h.rt.Drive(context.Background(), key, nil)
			if rep := h.report(key); rep.Status != psych.StatusFailed || len(rep.ModelCalls) != 5 || !strings.Contains(rep.Exchanges[0].Reason, "5 times in a row") {
				t.Errorf("%s, %d calls, %+v: tries are counted from the log", rep.Status, len(rep.ModelCalls), rep.Exchanges)
			}
		})
	})
	t.Run("idle stream", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, "steps: [{stall: true, times: 1}, {text: done}]")
			rep := h.run()
			if rep.Status != psych.StatusCompleted || !strings.Contains(rep.ModelCalls[0].Error, "1m0s") {
				t.Errorf("%s, %+v", rep.Status, rep.ModelCalls)
			}
		})
	})
	t.Run("not transient", func(t *testing.T) {
		h := newHarness(t, "steps: [{fail: 400}, {text: done}]")
		rep := h.run()
		if rep.Status != psych.StatusFailed || len(rep.ModelCalls) != 1 || rep.Exchanges[0].Reason == "" {
			t.Errorf("%s, %+v", rep.Status, rep.Exchanges)
		}
	})
	t.Run("context overflow", func(t *testing.T) {
		h := newHarness(t, "steps: [{fail: 400, stop: context}, {text: done}]")
		if rep := h.run(); rep.Status != psych.StatusExhausted {
			t.Errorf("%s, %+v", rep.Status, rep.Exchanges)
		}
	})
}

func TestStopReasons(t *testing.T) {
	for stop, want := range map[string]string{
		"end": psych.StatusCompleted, "tool_use": psych.StatusCompleted, "max_tokens": psych.StatusExhausted,
		"refusal": psych.StatusFailed, "context": psych.StatusExhausted,
	} {
		t.Run(stop, func(t *testing.T) {
			h := newHarness(t, "steps: [{text: said, stop: "+stop+"}]")
			if rep := h.run(); rep.Status != want || want != psych.StatusCompleted && rep.Exchanges[0].Reason == "" {
				t.Errorf("%s (%s), want %s", rep.Status, rep.Exchanges[0].Reason, want)
			}
		})
	}
	t.Run("calls of a cut answer", func(t *testing.T) {
		ran := false
		tool := psych.NewTool("t", "", func(context.Context, *psych.Call, struct{}) (string, error) { ran = true; return "", nil }, nil)
		h := newHarness(t, "steps: [{calls: [{name: t}], stop: max_tokens}, {text: done, require: ['not run']}]", tool)
		rep := h.run()
		if ran || rep.Status != psych.StatusCompleted || rep.ToolCalls[0].Outcome != "failed" || rep.ToolCalls[0].Code != psych.CodeCut {
			t.Errorf("ran %v, %s, %+v", ran, rep.Status, rep.ToolCalls)
		}
	})
}

func TestLimits(t *testing.T) {
	loop := "steps: [{calls: [{name: echo, arguments: {text: x}}], usage: {input: 60, output: 40}, repeat: {until: never}}]"
	h := newHarness(t, loop, echo)
	h.spec.Limits.Turns = 3
	if rep := h.run(); rep.Status != psych.StatusExhausted || rep.Turns != 3 || rep.Exchanges[0].Code != "turns" {
		t.Errorf("turns: %s after %d turns (%+v)", rep.Status, rep.Turns, rep.Exchanges)
	}
	h = newHarness(t, loop, echo)
	h.spec.Limits.Tokens = 250
	if rep := h.run(); rep.Status != psych.StatusExhausted || rep.Turns != 3 || rep.Exchanges[0].Code != "tokens" {
		t.Errorf("tokens: %s after %d turns (%+v)", rep.Status, rep.Turns, rep.Exchanges)
	}
	h = newHarness(t, strings.Replace(loop, "{input: 60, output: 40}", "{}", 1), echo)
	h.spec.Limits.Tokens = 250
	h.spec.Limits.Turns = 5
	if rep := h.run(); rep.Exchanges[0].Code != "turns" || rep.Totals.UnknownCalls != 5 || rep.Totals.CacheHitRate != nil {
		t.Errorf("unknown usage: %+v, %+v; want turns alone to bound it", rep.Exchanges, rep.Totals)
	}
}

func TestMemories(t *testing.T) {
	h := newHarness(t, "steps: [{calls: [{name: echo, arguments: {text: x}}]}, {text: a, require: [likes tea]}, {text: b, require: [likes tea]}, {text: c, require: [hates tea], forbid: [likes tea]}]", echo)
	memory, asked := "likes tea", 0
	h.o.Memories = func(_ context.Context, s psych.Scope) (string, error) { asked++; return memory, nil }
	h.restart()
	key := h.start("go")
	h.drive(key)
	for i, m := range []string{"likes tea", "hates tea"} {
		memory = m
		if i == 1 {
			h.restart() // a cold driver breaks nothing either
		}
		if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: "next"}); err != nil {
			t.Fatal(err)
		}
		h.drive(key)
	}
	rep := h.report(key)
	if rep.Status != psych.StatusCompleted || asked != 3 {
		t.Errorf("%s, asked %d times: %+v", rep.Status, asked, rep.Exchanges)
	}
	for i, m := range rep.ModelCalls {
		want := "[]"
		if i == 3 {
			want = "[{2 memory_changed}]"
		}
		if got := fmt.Sprint(m.Breaks); got != want {
			t.Errorf("call %d: breaks %s, want %s", i+1, got, want)
		}
	}
	sent := h.model.Requests()
	if !bytes.Equal(sent[3].Zone(1), sent[2].Zone(1)) || bytes.Equal(sent[3].Zone(2), sent[2].Zone(2)) || !bytes.HasPrefix(sent[3].Zone(3), sent[2].Zone(3)) {
		t.Error("a change of memories changes zone 2 alone")
	}
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := psych.NewTool("slow", "", func(ctx context.Context, _ *psych.Call, _ struct{}) (string, error) {
			select {
			case <-time.After(20 * time.Second):
				return "slept", nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}, nil)
		h := newHarness(t, "steps: [{calls: [{name: slow}], repeat: {until: never}}]", slow)
		h.spec.Limits.Turns = 12
		woken := 0
		h.o.Waker = wakerFunc(func(...psych.RunKey) error { woken++; return nil })
		h.restart()
		key := h.start("go")
		attempts := 0
		for out := psych.Yielded; out == psych.Yielded; attempts++ {
			ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
			var err error
			if out, err = h.rt.Drive(ctx, key, nil); err != nil {
				t.Fatal(err)
			}
			if ctx.Err() != nil {
				t.Fatal("it went on past its deadline")
			}
			cancel()
		}
		rep := h.report(key)
		if rep.Status != psych.StatusExhausted || rep.Turns != 12 || attempts != 3 {
			t.Errorf("%s after %d turns in %d attempts", rep.Status, rep.Turns, attempts)
		}
		for _, c := range rep.ToolCalls {
			if c.Outcome != "succeeded" {
				t.Errorf("%s %s: a turn was begun that could not end in time", c.ID, c.Outcome)
			}
		}
		if woken != 1+attempts-1 {
			t.Errorf("woken %d times for %d attempts", woken, attempts)
		}
	})
	t.Run("too little time for any turn", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, "steps: [{text: done}]")
			key := h.start("go")
			for i := range 5 { // the first opens the exchange, three get nowhere
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				out, err := h.rt.Drive(ctx, key, nil)
				cancel()
				if want := []psych.Outcome{psych.Yielded, psych.Closed}[i/4]; out != want || err != nil {
					t.Fatalf("attempt %d: %v, %v; want %v", i+1, out, err, want)
				}
			}
			if rep := h.report(key); rep.Status != psych.StatusFailed || rep.Exchanges[0].Code != "no_progress" || len(rep.ModelCalls) != 0 {
				t.Errorf("%s %+v: handing over is no progress, and does not go on for ever", rep.Status, rep.Exchanges)
			}
		})
	})
}

// A Run that kills its worker each time is closed after a few attempts, and
// what was posted meanwhile is not lost with it.
func TestCrashLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: [{text: fine}]")
		key := h.start("go")
		for range 4 { // the first opens the exchange, three get nowhere
			h.tap.hook(nil, func(m string) error {
				if m == "Append" { // the worker dies of what it is about to do
					h.tap.hook(func(string) error { return errKilled }, nil)
					return errKilled
				}
				return nil
			})
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			if _, err := h.rt.Drive(ctx, key, nil); err == nil {
				t.Fatal("it survived")
			}
			cancel()
			h.tap.hook(nil, nil)
			time.Sleep(2 * time.Minute)
			h.restart()
		}
		if err := h.rt.Send(context.Background(), key, psych.ClientMessage{ID: "m2", Text: "still there?"}); err != nil {
			t.Fatal(err)
		}
		h.drive(key)
		rep := h.report(key)
		if len(rep.Exchanges) != 2 || rep.Exchanges[0].Code != "no_progress" || rep.Exchanges[0].Closed != psych.StatusFailed {
			t.Fatalf("%+v", rep.Exchanges)
		}
		if x := rep.Exchanges[1]; x.Message != "m2" || x.Closed != psych.StatusCompleted || x.Answer != "fine" || rep.Waiting != 0 {
			t.Errorf("the message that waited: %+v", x)
		}
	})
}

// A cancelled context, at every call: an error that is the context's, and a
// Run that another driver finishes.
func TestCancelledAtEveryCall(t *testing.T) {
	for n := 1; ; n++ {
		cancelled := false
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, threeTurns, echo)
			key := h.start("go")
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			count := 0
			h.tap.hook(func(string) error {
				if count++; count == n {
					cancelled = true
					cancel()
				}
				return nil
			}, nil)
			out, err := h.rt.Drive(ctx, key, nil)
			h.tap.hook(nil, nil)
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("call %d: %v, %v", n, out, err)
			}
			if out != psych.Closed {
				time.Sleep(2 * time.Minute)
				if out, err := h.rt.Drive(context.Background(), key, nil); err != nil || out == psych.Held {
					t.Fatalf("call %d, the second driver: %v, %v", n, out, err)
				}
			}
			if rep := h.report(key); rep.Status != psych.StatusCompleted {
				t.Errorf("call %d: %s: %v", n, rep.Status, h.kinds(key))
			}
		})
		if !cancelled {
			break
		}
	}
	h := newHarness(t, threeTurns, echo)
	key := h.start("go")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for name, err := range map[string]error{
		"Drive":   second(h.rt.Drive(ctx, key, nil)),
		"Send":    h.rt.Send(ctx, key, psych.ClientMessage{Text: "x"}),
		"Abort":   h.rt.Abort(ctx, key, psych.AbortRequest{}),
		"Report":  second(h.rt.Report(ctx, key)),
		"Publish": second(h.rt.Publish(ctx, "t", &psych.Spec{Name: "other"})),
		"Output":  second(h.rt.Output(ctx, key, "out_c1_1", psych.OutputQuery{})),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a cancelled context: %v", name, err)
		}
	}
	if got := h.kinds(key); len(got) != 0 {
		t.Errorf("records: %v", got)
	}
}

func second[T any](_ T, err error) error { return err }

func TestObserve(t *testing.T) {
	h := newHarness(t, "steps: [{text: hello there, calls: [{name: echo, arguments: {text: x}}]}, {text: bye}]", echo)
	key := h.start("go")
	var text strings.Builder
	var seqs []uint64
	out, err := h.rt.Drive(context.Background(), key, &psych.DriveOptions{Observe: func(o psych.Observation) {
		switch {
		case o.Delta != nil:
			text.WriteString(o.Delta.Text)
		case o.Record != nil:
			seqs = append(seqs, o.Record.Seq)
		}
	}})
	if err != nil || out != psych.Closed || text.String() != "hello therebye" {
		t.Errorf("%v, %v, %q", out, err, text.String())
	}
	for i, seq := range seqs {
		if seq != uint64(i+1) {
			t.Fatalf("records were seen in the order %v", seqs)
		}
	}
	if len(seqs) != len(h.kinds(key)) {
		t.Errorf("%d records were seen, of %d", len(seqs), len(h.kinds(key)))
	}
}

func TestStartAndSend(t *testing.T) {
	ctx := context.Background()
	h := newHarness(t, "steps: [{text: a}, {text: b}]")
	v, err := h.rt.Publish(ctx, "t", &h.spec)
	if err != nil {
		t.Fatal(err)
	}
	scope := psych.Scope{Tenant: "t", Principal: "p"}
	first, err := h.rt.Start(ctx, scope, v.Hash, psych.ClientMessage{ID: "k", Text: "hi"})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := h.rt.Start(ctx, scope, v.Hash, psych.ClientMessage{ID: "k", Text: "hi"}); err != nil || again != first {
		t.Errorf("repeated: %v, %v; want the same Run", again, err)
	}
	if _, err := h.rt.Start(ctx, scope, v.Hash, psych.ClientMessage{ID: "k", Text: "other"}); !errors.Is(err, psych.ErrConflict) {
		t.Errorf("the same key for another request: %v", err)
	}
	if other, err := h.rt.Start(ctx, psych.Scope{Tenant: "t"}, v.Hash, psych.ClientMessage{ID: "k", Text: "hi"}); err != nil || other == first {
		t.Errorf("another principal: %v, %v; want a Run of its own", other, err)
	}
	if _, err := h.rt.Start(ctx, psych.Scope{Tenant: "u"}, v.Hash, psych.ClientMessage{Text: "hi"}); !errors.Is(err, psych.ErrNotFound) {
		t.Errorf("another tenant's Version: %v", err)
	}
	for name, labels := range map[string]map[string]string{
		"invalid UTF-8": {"a": "\xff"}, "too large": {"a": strings.Repeat("x", psych.MaxLabelBytes)},
	} {
		if _, err := h.rt.Start(ctx, psych.Scope{Tenant: "t", Labels: labels}, v.Hash, psych.ClientMessage{Text: "hi"}); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("labels, %s: %v", name, err)
		}
	}
	missing := psych.RunKey{Tenant: "t", RunID: strings.Repeat("0", 32)}
	for name, c := range map[string]struct{ got, want error }{
		"no message":     {h.rt.Send(ctx, first, psych.ClientMessage{}), psych.ErrInvalid},
		"a long id":      {h.rt.Send(ctx, first, psych.ClientMessage{ID: strings.Repeat("x", 129), Text: "x"}), psych.ErrInvalid},
		"over 1 MiB":     {h.rt.Send(ctx, first, psych.ClientMessage{Text: strings.Repeat("x", 1<<20+1)}), psych.ErrTooLarge},
		"no Run":         {h.rt.Send(ctx, missing, psych.ClientMessage{Text: "x"}), psych.ErrNotFound},
		"no Run, large":  {h.rt.Send(ctx, missing, psych.ClientMessage{Text: strings.Repeat("x", 1<<20)}), psych.ErrNotFound},
		"another tenant": {h.rt.Send(ctx, psych.RunKey{Tenant: "u", RunID: first.RunID}, psych.ClientMessage{Text: "x"}), psych.ErrNotFound},
		"a bare name":    {h.rt.Send(ctx, psych.RunKey{Tenant: "t", RunID: "../x"}, psych.ClientMessage{Text: "x"}), psych.ErrInvalid},
		"drive no Run":   {second(h.rt.Drive(ctx, missing, nil)), psych.ErrNotFound},
		"report no Run":  {second(h.rt.Report(ctx, missing)), psych.ErrNotFound},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	bare, err := psych.New(h.tap, &psych.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := bare.Send(ctx, first, psych.ClientMessage{ID: "big", Text: strings.Repeat("x", 1<<17)}); !errors.Is(err, psych.ErrNoBlobStore) {
		t.Errorf("a large message without a BlobStore: %v", err)
	}
	if notes, err := h.tap.Pending(ctx, first); err != nil || len(notes) != 1 {
		t.Errorf("%d notes wait, %v; want the first alone", len(notes), err)
	}
	// A large message comes whole to the model.
	h.drive(first)
	big := strings.Repeat("ab", 1<<18) + "THE END"
	if err := h.rt.Send(ctx, first, psych.ClientMessage{ID: "big", Text: big}); err != nil {
		t.Fatal(err)
	}
	h.drive(first)
	sent := h.model.Requests()
	if last := sent[len(sent)-1].Zone(3); !bytes.Contains(last, []byte(big)) {
		t.Error("the model was not sent the whole message")
	}
}
