package psych_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// The shortest interleavings in which a protocol without one of the rules of
// this one loses, doubles or forgets something, as a search over a model of it
// found them. Each is played against the engine, and named after the reading
// of the rules, or the rule left out, that it would punish.
func TestTraces(t *testing.T) {
	for _, tr := range traces {
		t.Run(tr.name, func(t *testing.T) { synctest.Test(t, tr.play) })
	}
}

type trace struct {
	name string
	play func(t *testing.T)
}

// worker is another process on the same store, which knows nothing.
func (h *harness) worker() *harness {
	w := &harness{t: h.t, tap: &tap{Store: h.tap.Store}, blobs: h.blobs, model: h.model, o: h.o, spec: h.spec}
	w.restart()
	return w
}

// A hold is a worker that stands still at a call of the store.
type hold struct{ reached, free chan struct{} }

// hold makes the worker stand still at the nth call of a method from now on:
// before the store hears of it, or behind it. Once passed it is no more.
func (h *harness) hold(where, method string, nth int) *hold {
	l := &hold{make(chan struct{}), make(chan struct{})}
	var n atomic.Int64
	stop := func(m string) error {
		if m == method && n.Add(1) == int64(nth) {
			close(l.reached)
			<-l.free
		}
		return nil
	}
	if where == "before" {
		h.tap.hook(stop, nil)
	} else {
		h.tap.hook(nil, stop)
	}
	return l
}

func (l *hold) wait(t *testing.T) {
	t.Helper()
	select {
	case <-l.reached:
	case <-time.After(time.Hour):
		t.Fatal("the worker never got there")
	}
}

func (l *hold) release() { close(l.free) }

// A drive is a Drive under way.
type driveEnd struct {
	out psych.Outcome
	err error
}

func (h *harness) goDrive(key psych.RunKey) <-chan driveEnd {
	ch := make(chan driveEnd, 1)
	go func() {
		out, err := h.rt.Drive(context.Background(), key, nil)
		ch <- driveEnd{out, err}
	}()
	return ch
}

// stopped is the end of a worker that another took over from.
func stopped(t *testing.T, ch <-chan driveEnd) {
	t.Helper()
	e := <-ch
	if e.out != psych.Held || !errors.Is(e.err, psych.ErrLeaseLost) && !errors.Is(e.err, psych.ErrConflict) {
		t.Errorf("the worker that lost its lease: %v, %v", e.out, e.err)
	}
}

func closed(t *testing.T, ch <-chan driveEnd) {
	t.Helper()
	if e := <-ch; e.out != psych.Closed || e.err != nil {
		t.Errorf("drive: %v, %v; want closed", e.out, e.err)
	}
}

func (h *harness) post(key psych.RunKey, id string) {
	h.t.Helper()
	if err := h.rt.Send(context.Background(), key, psych.ClientMessage{ID: id, Text: id}); err != nil {
		h.t.Error(err)
	}
}

// again posts what was delivered long ago, as a client does that never learned
// of it: the Run is due, and there is nothing to do in it.
func (h *harness) again(key psych.RunKey) {
	h.t.Helper()
	if err := h.rt.Send(context.Background(), key, psych.ClientMessage{ID: "m1", Text: "go"}); err != nil {
		h.t.Error(err)
	}
}

func (h *harness) header(key psych.RunKey) psych.RunInfo {
	h.t.Helper()
	info, err := h.tap.Store.GetRun(context.Background(), key)
	if err != nil {
		h.t.Error(err)
	}
	return info
}

// rests checks that a Run is at rest: each of the messages was delivered once
// and in this order, every exchange is closed, nobody holds a lease, nothing is
// due, and nothing waits.
func (h *harness) rests(key psych.RunKey, messages ...string) {
	h.t.Helper()
	var got []string
	for r, err := range h.rt.Records(context.Background(), key, psych.Pos{}) {
		if err != nil {
			h.t.Fatal(err)
		}
		if m, ok := r.Event.(*psych.UserMessage); ok {
			got = append(got, m.ID)
		}
	}
	if !slices.Equal(got, messages) {
		h.t.Errorf("delivered: %v, want %v", got, messages)
	}
	rep := h.report(key)
	for _, x := range rep.Exchanges {
		if x.Closed == "" {
			h.t.Errorf("the exchange of %s is open", x.Message)
		}
	}
	if info := h.header(key); info.Owner != "" || !info.DueAt.IsZero() || rep.Waiting != 0 {
		h.t.Errorf("not at rest: %+v, %d notes wait", info, rep.Waiting)
	}
}

// asks makes the worker count its model calls.
func (h *harness) asks() *atomic.Int64 {
	var n atomic.Int64
	h.o.Models = psych.OneModel(askedModel{h.model, func() { n.Add(1) }})
	rt, err := psych.New(h.tap, &h.o)
	if err != nil {
		h.t.Fatal(err)
	}
	h.rt = rt
	return &n
}

// counted is a tool that counts how often it ran.
func counted(name string, ran *atomic.Int64, o *psych.ToolOptions) *psych.Tool {
	return psych.NewTool(name, "", func(context.Context, *psych.Call, struct{}) (string, error) {
		ran.Add(1)
		return "ok", nil
	}, o)
}

// A lateStore answers nothing to the nth call of a method; the call arrives
// all the same, a while later.
type lateStore struct {
	psych.Store
	method string
	nth    int64
	after  time.Duration
	n      atomic.Int64
	flying sync.WaitGroup
}

func (s *lateStore) Unwrap() psych.Store { return s.Store }

func (s *lateStore) late(method string, f func()) error {
	if method != s.method || s.n.Add(1) != s.nth {
		return nil
	}
	s.flying.Go(func() {
		time.Sleep(s.after)
		f()
	})
	return fmt.Errorf("%w: %w", psych.ErrUnavailable, errLost)
}

func (s *lateStore) Append(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
	if err := s.late("Append", func() { s.Store.Append(context.WithoutCancel(ctx), key, after, b) }); err != nil {
		return psych.Pos{}, err
	}
	return s.Store.Append(ctx, key, after, b)
}

func (s *lateStore) Renew(ctx context.Context, l psych.Lease, now time.Time, ttl time.Duration) (psych.Lease, error) {
	if err := s.late("Renew", func() { s.Store.Renew(context.WithoutCancel(ctx), l, now, ttl) }); err != nil {
		return psych.Lease{}, err
	}
	return s.Store.Renew(ctx, l, now, ttl)
}

func (s *lateStore) Release(ctx context.Context, l psych.Lease, due time.Time, status string) error {
	if err := s.late("Release", func() { s.Store.Release(context.WithoutCancel(ctx), l, due, status) }); err != nil {
		return err
	}
	return s.Store.Release(ctx, l, due, status)
}

// late puts a lateStore between this worker and the store.
func (h *harness) late(method string, nth int64, after time.Duration) *lateStore {
	s := &lateStore{Store: h.tap.Store, method: method, nth: nth, after: after}
	h.tap.Store = s
	return s
}

const answers = "steps: [{text: one}, {text: two}, {text: three}, {text: four}]"

const oneTool = "steps: [{calls: [{name: tool}]}, {text: done}, {text: more}]"

// finish drives a Run as a sweep would have it, when every lease is over.
func (h *harness) finish(key psych.RunKey) {
	h.t.Helper()
	time.Sleep(2 * time.Minute)
	w := h.worker()
	if out, err := w.rt.Drive(context.Background(), key, nil); err != nil || out != psych.Closed && out != psych.Idle {
		h.t.Errorf("drive: %v, %v", out, err)
	}
}

// idle plays a claimer that finds nothing to do while its predecessor, whose
// lease is over, delivers a message that comes just then.
func idle(warm bool, where, method string, sees bool) func(*testing.T) {
	return func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		d0, d1 := h.worker(), h.worker()
		if warm {
			d1.drive(key)
		} else {
			h.drive(key)
		}
		h.again(key)
		first := d0.hold("before", "Pending", 1)
		end0 := d0.goDrive(key)
		first.wait(t)
		time.Sleep(61 * time.Second)
		if sees {
			h.post(key, "m2")
		}
		second := d1.hold(where, method, 1)
		end1 := d1.goDrive(key)
		second.wait(t)
		if !sees {
			h.post(key, "m2")
		}
		first.release()
		stopped(t, end0)
		second.release()
		closed(t, end1)
		h.rests(key, "m1", "m2")
	}
}

var traces = []trace{
	{"idle/no-append", idle(false, "before", "Append", false)},
	{"idle/no-append+log-then-inbox", idle(false, "behind", "Read", false)},
	{"idle/no-append+getrun", idle(false, "behind", "Claim", false)},
	{"idle/no-append+reread", idle(false, "behind", "Pending", false)},
	{"idle/warm+no-append", idle(true, "before", "Append", false)},
	{"mut/no-dedupe-after-conflict", idle(false, "before", "Append", true)},
	{"mut/no-dedupe-after-conflict, warm", idle(true, "before", "Append", true)},

	{"read/first-conflict-retries-always", func(t *testing.T) {
		for _, at := range []string{"Read", "Pending", "Append"} {
			h := newHarness(t, answers)
			key := h.start("go")
			d0 := h.worker()
			asked := d0.asks()
			l := d0.hold("before", at, 1)
			end := d0.goDrive(key)
			l.wait(t)
			time.Sleep(61 * time.Second)
			h.drive(key)
			l.release()
			stopped(t, end)
			for r, err := range h.rt.Records(context.Background(), key, psych.Pos{}) {
				if err != nil || r.Attempt != 2 {
					t.Errorf("held before %s: attempt %d wrote behind a newer one, %v", at, r.Attempt, err)
				}
			}
			if asked.Load() != 0 {
				t.Errorf("held before %s: the predecessor called the model", at)
			}
			h.rests(key, "m1")
		}
	}},
	{"read/claim-counts-repetition", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		d0 := h.worker()
		asked := d0.asks()
		reached, free := make(chan struct{}), make(chan struct{})
		d0.tap.hook(nil, func(m string) error {
			switch {
			case m == "Claim" && d0.tap.count(m) == 1:
				time.Sleep(55 * time.Second)
				return fmt.Errorf("%w: %w", psych.ErrUnavailable, errLost)
			case m == "Append" && d0.tap.count(m) == 1:
				close(reached)
				<-free
			}
			return nil
		})
		end := d0.goDrive(key)
		<-reached
		time.Sleep(6 * time.Second) // 61 s behind the first sending of the claim, 6 s behind the last
		h.drive(key)
		close(free)
		stopped(t, end)
		if asked.Load() != 0 {
			t.Error("the model was called under a lease that was over")
		}
		h.rests(key, "m1")
	}},
	{"read/renew-shortens", func(t *testing.T) {
		nap := (&sleeper{}).tool("nap", nil)
		h := newHarness(t, "steps: [{calls: [{name: nap, arguments: {ms: 100000}}]}, {text: done}]", nap)
		h.spec.Limits.ToolTimeoutSeconds = 300
		key := h.start("go")
		d0 := h.worker()
		s := d0.late("Renew", 1, 45*time.Second) // sent after 20 s, arrives behind the one after 60 s
		end := d0.goDrive(key)
		var until time.Time
		for range 95 {
			time.Sleep(time.Second)
			info := h.header(key)
			if info.Until.Before(until) {
				t.Errorf("a renewal that came late took the lease back from %v to %v", until, info.Until)
			}
			until = info.Until
			if out, err := h.rt.Drive(context.Background(), key, nil); out != psych.Held || err != nil {
				t.Fatalf("another worker: %v, %v; want held", out, err)
			}
		}
		closed(t, end)
		s.flying.Wait()
		h.rests(key, "m1")
	}},
	{"read/release-latest-posted", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		l := h.hold("before", "Release", 1)
		end := h.goDrive(key)
		l.wait(t)
		h.post(key, "m2")
		l.release()
		closed(t, end)
		h.rests(key, "m1", "m2")
	}},
	{"read/inbox-then-renew", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		looks := 0
		h.tap.hook(func(m string) error {
			if m == "Release" && h.tap.count(m) == 1 {
				h.post(key, "m2")
			}
			return nil
		}, func(m string) error {
			if m == "Pending" {
				if looks++; looks == 2 {
					h.post(key, "m3")
				}
			}
			return nil
		})
		h.drive(key)
		h.rests(key, "m1", "m2", "m3")
	}},
	{"mut/release-no-condition", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		l := h.hold("behind", "Pending", 1)
		end := h.goDrive(key)
		l.wait(t)
		h.post(key, "m2")
		l.release()
		closed(t, end)
		h.rests(key, "m1", "m2")
	}},
	{"read/release-again-writes", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		h.tap.hook(nil, func(m string) error {
			if m == "Release" && h.tap.count(m) == 1 {
				h.post(key, "m2")
				return fmt.Errorf("%w: %w", psych.ErrUnavailable, errLost)
			}
			return nil
		})
		h.drive(key)
		if h.header(key).DueAt.IsZero() {
			t.Error("a repeated release took away that a message is due")
		}
		h.drive(key)
		h.rests(key, "m1", "m2")
	}},
	{"read/release-conflict-getrun", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		d0, d1 := h.worker(), h.worker()
		asked := d0.asks()
		var l *hold
		var end <-chan driveEnd
		d0.tap.hook(nil, func(m string) error {
			if m == "Release" && d0.tap.count(m) == 1 {
				h.post(key, "m2")
				l = d1.hold("behind", "Append", 1)
				end = d1.goDrive(key)
				l.wait(t)
				return fmt.Errorf("%w: %w", psych.ErrUnavailable, errLost)
			}
			return nil
		})
		stopped(t, d0.goDrive(key))
		if info := h.header(key); info.Epoch != 2 || info.Owner == "" {
			t.Errorf("the old owner's release touched the lease of the new one: %+v", info)
		}
		l.release()
		closed(t, end)
		if asked.Load() != 1 {
			t.Errorf("the old owner called the model %d times, want once", asked.Load())
		}
		h.rests(key, "m1", "m2")
	}},
	{"read/defer-strict", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		h.drive(key)
		// A worker claims a Run with nothing due, and dies.
		if _, err := h.tap.Claim(context.Background(), key, "w", "token", time.Now(), time.Minute); err != nil {
			t.Fatal(err)
		}
		time.Sleep(61 * time.Second)
		if woken := h.sweep(); len(woken) != 1 {
			t.Errorf("woken: %v", woken)
		}
		if out, err := h.rt.Drive(context.Background(), key, nil); err != nil {
			t.Errorf("%v, %v", out, err)
		}
		h.rests(key, "m1")
		time.Sleep(time.Hour)
		if woken := h.sweep(); len(woken) != 0 {
			t.Errorf("a Run at rest was woken: %v", woken)
		}
	}},
	{"read/claim-clears-due", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		due := h.header(key).DueAt
		if _, err := h.tap.Claim(context.Background(), key, "w", "token", time.Now(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if got := h.header(key).DueAt; !got.Equal(due) {
			t.Errorf("a claim moved what is due from %v to %v", due, got)
		}
		time.Sleep(61 * time.Second)
		if woken := h.sweep(); len(woken) != 1 {
			t.Errorf("woken: %v", woken)
		}
		h.drive(key)
		h.rests(key, "m1")
	}},
	{"read2/handover-drive-skips-not-due", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		if due := h.header(key).DueAt; !due.After(time.Now()) {
			t.Fatalf("due %v: want a time to come", due)
		}
		h.drive(key) // a wake drives a Run that is due later
		h.rests(key, "m1")
	}},
	{"read/inbox-full-no-due", func(t *testing.T) {
		ctx := context.Background()
		h := newHarness(t, answers)
		key := h.start("go")
		h.drive(key)
		want := []string{"m1"}
		for i := range psych.MaxPending {
			want = append(want, fmt.Sprintf("n%03d", i))
			h.post(key, want[i+1])
			time.Sleep(time.Millisecond)
		}
		// The headers of these posts never came: nothing is due.
		l, err := h.tap.Store.Claim(ctx, key, "w", "token", time.Now(), time.Minute)
		if err == nil {
			err = h.tap.Store.Release(ctx, l, time.Time{}, psych.StatusCompleted)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := h.rt.Send(ctx, key, psych.ClientMessage{ID: "last", Text: "x"}); !errors.Is(err, psych.ErrInboxFull) {
			t.Errorf("a post to a full inbox: %v", err)
		}
		if h.header(key).DueAt.IsZero() {
			t.Fatal("a full inbox that nobody will ever empty")
		}
		h.drive(key)
		h.post(key, "last")
		h.drive(key)
		h.rests(key, append(want, "last")...)
	}},
	{"read/abort-without-id", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		for _, m := range []string{"", "m2"} {
			if m != "" {
				h.post(key, m)
			}
			time.Sleep(time.Millisecond) // notes of one moment are in the order of their ids
			if err := h.rt.Abort(context.Background(), key, psych.AbortRequest{ID: "a1"}); err != nil {
				t.Fatal(err)
			}
			h.drive(key)
		}
		x := h.report(key).Exchanges
		if len(x) != 2 || x[0].Closed != psych.StatusAborted || x[1].Closed != psych.StatusCompleted {
			t.Errorf("one abort, posted twice: %+v", x)
		}
		h.rests(key, "m1", "m2")
	}},
	{"mut/append-no-token", func(t *testing.T) { unknownAppends(t, 0, true) }},
	{"mut/new-token-after-unknown", func(t *testing.T) {
		unknownAppends(t, time.Millisecond, false) // before its repetition
		unknownAppends(t, 10*time.Second, false)   // behind it
	}},
	{"mut/conflict-is-success", func(t *testing.T) {
		var ran atomic.Int64
		h := newHarness(t, oneTool, counted("tool", &ran, nil))
		key := h.start("go")
		d0, d1 := h.worker(), h.worker()
		l := d0.hold("before", "Append", 2) // what the model said, with the start of the tool
		var seen []uint64
		end := make(chan driveEnd, 1)
		go func() {
			out, err := d0.rt.Drive(context.Background(), key, &psych.DriveOptions{Observe: func(o psych.Observation) {
				if o.Record != nil {
					seen = append(seen, o.Record.Seq)
				}
			}})
			end <- driveEnd{out, err}
		}()
		l.wait(t)
		time.Sleep(61 * time.Second)
		d1.drive(key)
		l.release()
		stopped(t, end)
		for r, err := range h.rt.Records(context.Background(), key, psych.Pos{}) {
			if err != nil {
				t.Fatal(err)
			}
			if r.Attempt == 1 != slices.Contains(seen, r.Seq) {
				t.Errorf("record %d of attempt %d: what the first attempt showed as durable is %v", r.Seq, r.Attempt, seen)
			}
		}
		if ran.Load() != 1 {
			t.Errorf("the tool ran %d times", ran.Load())
		}
		h.rests(key, "m1")
	}},
	{"mut/rerun-unsafe", func(t *testing.T) { died(t, nil, 1, psych.UnknownEnd) }},
	{"mut2/par/settles-nothing", func(t *testing.T) { died(t, &psych.ToolOptions{Sequential: true}, 1, psych.UnknownEnd) }},
	{"mut2/par/key-of-epoch", func(t *testing.T) {
		died(t, &psych.ToolOptions{Idempotent: true}, 2, psych.Succeeded)
	}},
	{"mut/effect-before-append-known", func(t *testing.T) {
		var ran atomic.Int64
		h := newHarness(t, oneTool, counted("tool", &ran, nil))
		key := h.start("go")
		tries := 0
		h.tap.hook(func(m string) error {
			if n := h.tap.count(m); m == "Append" && n > 1 && tries < 6 { // the second append, and its repetitions
				tries++
				if ran.Load() != 0 {
					t.Error("the tool ran before the append that announces it was known to be there")
				}
				return fmt.Errorf("%w: %w", psych.ErrUnavailable, errLost)
			}
			return nil
		}, nil)
		h.drive(key)
		if tries != 6 || ran.Load() != 1 {
			t.Errorf("%d tries, the tool ran %d times", tries, ran.Load())
		}
		h.rests(key, "m1")
	}},
	{"mut/no-lease-check", func(t *testing.T) {
		for _, at := range []int{1, 2} { // before the model, before the tool
			var ran atomic.Int64
			h := newHarness(t, oneTool, counted("tool", &ran, nil))
			key := h.start("go")
			d0, d1 := h.worker(), h.worker()
			asked := d0.asks()
			l := d0.hold("behind", "Append", at)
			end := d0.goDrive(key)
			l.wait(t)
			time.Sleep(61 * time.Second)
			d1.drive(key)
			before, calls := ran.Load(), asked.Load()
			l.release()
			stopped(t, end)
			if ran.Load() != before || asked.Load() != calls {
				t.Errorf("append %d: an effect began without a lease", at)
			}
			if c := d1.report(key).ToolCalls; len(c) != 1 || at == 2 && (c[0].Outcome != string(psych.UnknownEnd) || ran.Load() != 0) {
				t.Errorf("append %d: %+v, ran %d times", at, c, ran.Load())
			}
			h.rests(key, "m1")
		}
	}},
	{"mut/no-dedupe", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		h.tap.hook(func(m string) error {
			if m == "Settle" {
				return fmt.Errorf("%w: %w", psych.ErrUnavailable, errLost)
			}
			return nil
		}, nil)
		h.drive(key)
		h.post(key, "m2")
		h.worker().drive(key)
		h.rests(key, "m1", "m2")
	}},
	{"mut/settle-before-append", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		d0 := h.worker()
		l := d0.hold("before", "Append", 1)
		end := d0.goDrive(key)
		l.wait(t)
		notes, err := h.tap.Pending(context.Background(), key)
		if err != nil || len(notes) != 1 {
			t.Errorf("%d notes wait before the log has them, %v", len(notes), err)
		}
		time.Sleep(61 * time.Second)
		h.drive(key)
		l.release()
		stopped(t, end)
		h.rests(key, "m1")
	}},
	{"mut/post-sets-no-due", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go") // whose wake is lost
		time.Sleep(31 * time.Second)
		if woken := h.sweep(); len(woken) != 1 {
			t.Errorf("woken: %v", woken)
		}
		h.drive(key)
		h.rests(key, "m1")
	}},
	{"mut/blob-key-of-call", func(t *testing.T) {
		ctx := context.Background()
		var ran atomic.Int64
		tool := psych.NewTool("tool", "", func(context.Context, *psych.Call, struct{}) (string, error) {
			n := ran.Add(1)
			if n == 1 {
				time.Sleep(100 * time.Second)
			}
			return strings.Repeat(fmt.Sprint(n), 200_000), nil
		}, &psych.ToolOptions{Idempotent: true, Timeout: 5 * time.Minute})
		h := newHarness(t, oneTool, tool)
		key := h.start("go")
		d0 := h.worker()
		l := d0.hold("before", "Renew", 1) // it freezes, but for its tool
		end := d0.goDrive(key)
		time.Sleep(61 * time.Second)
		h.drive(key)
		if ran.Load() != 2 {
			t.Fatalf("the tool ran %d times", ran.Load())
		}
		time.Sleep(time.Minute) // the predecessor's tool ends, and its result is stored
		l.release()
		stopped(t, end)
		for segment, want := range map[string]byte{"c1_1.result.1": '1', "c1_1.result.2": '2'} {
			r, _, err := h.blobs.Open(ctx, psych.BlobKey{Tenant: key.Tenant, RunID: key.RunID, CallID: segment}, 0, 1)
			if err != nil {
				t.Fatal(err)
			}
			var b [1]byte
			if _, err := r.Read(b[:]); b[0] != want {
				t.Errorf("blob %s begins with %q, %v", segment, b, err)
			}
			r.Close()
		}
		if w, err := h.rt.Output(ctx, key, "out_c1_1", psych.OutputQuery{}); err != nil || w.Text[0] != '2' {
			t.Errorf("a past owner's bytes stand where the log means its own: %v", err)
		}
		h.rests(key, "m1")
	}},
	{"mut/index-believed", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		h.tap.Store = staleIndex{h.tap.Store, key} // which says at any time that it is due
		h.restart()
		d0 := h.worker()
		if woken := h.sweep(); len(woken) != 0 {
			t.Errorf("woken before it was due: %v", woken)
		}
		l := d0.hold("behind", "Append", 1)
		end := d0.goDrive(key)
		l.wait(t)
		time.Sleep(40 * time.Second) // due, and driven
		if woken := h.sweep(); len(woken) != 0 {
			t.Errorf("woken while it is driven: %v", woken)
		}
		l.release()
		closed(t, end)
		time.Sleep(time.Hour)
		if woken := h.sweep(); len(woken) != 0 {
			t.Errorf("woken at rest: %v", woken)
		}
		h.rests(key, "m1")
	}},

	{"mut2/par/old-settlements-after-conflict", func(t *testing.T) { overtaken(t, 3, string(psych.Succeeded)) }},
	{"mut2/par/old-plan-after-conflict", func(t *testing.T) { overtaken(t, 2, string(psych.UnknownEnd)) }},
	{"mut2/par/merge-into-unknown", func(t *testing.T) {
		nap := (&sleeper{}).tool("nap", nil)
		h := newHarness(t, "steps: [{calls: [{name: nap, arguments: {ms: 100}}, {name: nap, arguments: {ms: 1500}}]}, {text: done}]", nap)
		key := h.start("go")
		seen := &batches{Store: h.tap.Store, sizes: map[string]int{}, fail: func(n int) bool { return n >= 3 && n < 9 }}
		h.tap.Store = seen
		h.drive(key)
		if seen.changed {
			t.Error("something else was tried while the outcome of an append was unknown")
		}
		if seen.n < 9 {
			t.Errorf("%d appends, want the failures among them", seen.n)
		}
		h.rests(key, "m1")
	}},
	{"mut2/par/next-start-in-first-part", func(t *testing.T) {
		h := newHarness(t, "steps: [{calls: [{name: sized, arguments: {n: 120000}}, {name: sized, arguments: {n: 120000}}, {name: sized, arguments: {n: 120000}}, {name: sized, arguments: {n: 120000}}, {name: sized, arguments: {n: 120000}}]}, {text: done}]", sized)
		key := h.start("go")
		for n := 3; n < 5; n++ { // a worker dies between the parts
			d := h.worker()
			l := d.hold("behind", "Append", n)
			d.goDrive(key)
			select {
			case <-l.reached:
				d.tap.hook(func(string) error { return errKilled }, func(string) error { return errKilled })
				l.release()
			case <-time.After(time.Minute):
			}
			for i, k := range h.kinds(key) {
				if k == "model_call_started" && i > 4 && strings.Count(strings.Join(h.kinds(key)[:i], " "), "tool_call_finished") != 5 {
					t.Errorf("the next model call is announced before the results are there: %v", h.kinds(key))
				}
			}
			time.Sleep(10 * time.Minute)
		}
		h.finish(key)
		h.rests(key, "m1")
	}},
	{"mut2/par/order-of-ending", func(t *testing.T) {
		nap := (&sleeper{}).tool("nap", nil)
		h := newHarness(t, "steps: [{calls: [{name: nap, arguments: {ms: 900}}, {name: echo, arguments: {text: quick}}]}, {text: done}]", nap, echo)
		key := h.start("go")
		h.drive(key)
		sent := h.model.Requests()
		history := sent[len(sent)-1].Zone(3)
		first, second := bytes.LastIndex(history, []byte("call_1_1")), bytes.LastIndex(history, []byte("call_1_2"))
		if first < 0 || second < first {
			t.Errorf("results are not in the order of the calls: %s", history)
		}
	}},
	{"mut2/par/sequential-ignored", func(t *testing.T) {
		var mu sync.Mutex
		running, beside := 0, false
		tool := func(name string, o *psych.ToolOptions) *psych.Tool {
			return psych.NewTool(name, "", func(context.Context, *psych.Call, struct{}) (string, error) {
				mu.Lock()
				running++
				beside = beside || running > 1 && (name == "alone" || o != nil)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				defer mu.Unlock()
				beside = beside || running > 1 && name == "alone"
				running--
				return "ok", nil
			}, o)
		}
		h := newHarness(t, "steps: [{calls: [{name: any}, {name: alone}, {name: any}, {name: any}]}, {text: done}]", tool("any", nil), tool("alone", &psych.ToolOptions{Sequential: true}))
		key := h.start("go")
		h.drive(key)
		if beside {
			t.Error("a sequential tool ran beside a sibling")
		}
		h.rests(key, "m1")
	}},
	{"read2/floor-delivers-nothing", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if out, err := h.rt.Drive(ctx, key, nil); out != psych.Yielded || err != nil {
			t.Fatal(out, err)
		}
		if x := h.report(key).Exchanges; len(x) != 1 || x[0].Message != "m1" {
			t.Errorf("an attempt without time for a turn delivers what waits: %+v", x)
		}
		h.drive(key)
		h.rests(key, "m1")
	}},
	{"mut2/handover/release-with-nothing-due", func(t *testing.T) {
		h := newHarness(t, answers)
		var due time.Time
		key := h.start("go")
		h.o.Waker = wakerFunc(func(...psych.RunKey) error { due = h.header(key).DueAt; return nil })
		h.restart()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if out, err := h.rt.Drive(ctx, key, nil); out != psych.Yielded || err != nil {
			t.Fatal(out, err)
		}
		if due.IsZero() || due.After(time.Now()) {
			t.Errorf("handed over and woken with due %v", due)
		}
		h.drive(key)
		h.rests(key, "m1")
	}},
	{"mut2/handover/late-release-of-old-epoch", func(t *testing.T) {
		nap := (&sleeper{}).tool("nap", nil)
		h := newHarness(t, "steps: [{calls: [{name: nap, arguments: {ms: 5000}}]}, {text: done}]", nap)
		key := h.start("go")
		d0, d1 := h.worker(), h.worker()
		s := d0.late("Release", 1, 3*time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // too short for a turn
		defer cancel()
		if out, err := d0.rt.Drive(ctx, key, nil); out != psych.Yielded || err != nil {
			t.Fatal(out, err)
		}
		end := d1.goDrive(key)
		time.Sleep(time.Second)
		was := h.header(key)
		s.flying.Wait()
		if is := h.header(key); is.Owner == "" || is.Epoch != 2 || is.Owner != was.Owner {
			t.Errorf("a late release of the old epoch touched the lease: %+v, was %+v", is, was)
		}
		closed(t, end)
		h.rests(key, "m1")
	}},

	{"read/delete-leftovers", func(t *testing.T) {
		for _, at := range []int{1, 2, 3} {
			h := newHarness(t, "steps: [{calls: [{name: sized, arguments: {n: 200000}}]}, {text: done}]", sized)
			key := h.start("go")
			d0 := h.worker()
			l := d0.hold("before", "Append", at)
			end := d0.goDrive(key)
			l.wait(t)
			if err := h.rt.Delete(context.Background(), key); err != nil {
				t.Fatal(err)
			}
			l.release()
			if e := <-end; !errors.Is(e.err, psych.ErrNotFound) && !errors.Is(e.err, psych.ErrConflict) {
				t.Errorf("append %d: driving a deleted Run: %v, %v", at, e.out, e.err)
			}
			gone(t, h, key)
			h.bury(key)
		}
	}},
	{"read/delete-blind-inbox-first", func(t *testing.T) {
		var ran atomic.Int64
		h := newHarness(t, oneTool, counted("tool", &ran, nil))
		key := h.start("go")
		d0, d1 := h.worker(), h.worker()
		l := d0.hold("behind", "Append", 2)
		end0 := d0.goDrive(key)
		l.wait(t)
		h.again(key)
		time.Sleep(61 * time.Second)
		k := d1.hold("before", "Read", 1)
		end1 := d1.goDrive(key)
		k.wait(t)
		if err := h.rt.Delete(context.Background(), key); err != nil {
			t.Fatal(err)
		}
		k.release()
		l.release()
		for _, end := range []<-chan driveEnd{end0, end1} {
			if e := <-end; !errors.Is(e.err, psych.ErrNotFound) {
				t.Errorf("driving a deleted Run: %v, %v", e.out, e.err)
			}
		}
		if ran.Load() != 0 {
			t.Errorf("the tool of a deleted Run ran %d times", ran.Load())
		}
		h.bury(key)
	}},
	{"read/delete-blind-recreated-note", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		asked := h.asks()
		l := h.hold("behind", "Pending", 1)
		end := h.goDrive(key)
		l.wait(t)
		if err := h.worker().rt.Delete(context.Background(), key); err != nil {
			t.Fatal(err)
		}
		time.Sleep(55 * time.Second) // so that the lease is looked at before the effect
		l.release()
		if e := <-end; !errors.Is(e.err, psych.ErrNotFound) || asked.Load() != 0 {
			t.Errorf("%v, %v, the model was called %d times", e.out, e.err, asked.Load())
		}
		h.bury(key)
	}},
	{"read/delete-absent-no-tomb", func(t *testing.T) {
		h, other := newHarness(t, answers), newHarness(t, answers)
		key := other.start("go")
		if err := h.rt.Delete(context.Background(), key); err != nil {
			t.Fatal(err)
		}
		startsNothing(t, h) // a creation that was under way
		gone(t, h, key)
		h.bury(key)
	}},
	{"mut2/del/create-over-tombstone", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		if err := h.rt.Delete(context.Background(), key); err != nil {
			t.Fatal(err)
		}
		startsNothing(t, h)
		gone(t, h, key)
	}},
	{"mut2/del/append-revives", func(t *testing.T) {
		ctx := context.Background()
		h := newHarness(t, answers)
		key := h.start("go")
		if err := h.rt.Delete(ctx, key); err != nil {
			t.Fatal(err)
		}
		if _, err := h.tap.Append(ctx, key, psych.Pos{}, psych.Batch{Token: "x", Entries: []psych.Entry{{Seq: 1, Kind: psych.KindAttemptStarted, Data: []byte("{}")}}}); err != nil {
			t.Errorf("append under a tombstone: %v", err)
		}
		gone(t, h, key)
		startsNothing(t, h)
		h.bury(key)
	}},
	{"read2/del-repetition-restarts-the-time", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		began := time.Now()
		for range 4 {
			if err := h.rt.Delete(context.Background(), key); err != nil {
				t.Fatal(err)
			}
			time.Sleep(9 * 24 * time.Hour)
			h.sweep()
		}
		if time.Since(began) < psych.TombstoneLife {
			t.Fatal("too early")
		}
		h.start("go") // the id is free again
	}},
	{"read2/del-sweep-blobs-last", func(t *testing.T) {
		ctx := context.Background()
		h := newHarness(t, answers)
		key := h.start("go")
		if err := h.rt.Delete(ctx, key); err != nil {
			t.Fatal(err)
		}
		late := psych.BlobKey{Tenant: key.Tenant, RunID: key.RunID, CallID: "c1_1.result.1"}
		if _, err := h.blobs.Put(ctx, late, "text/plain", strings.NewReader("late")); err != nil {
			t.Fatal(err)
		}
		o := h.o
		o.Blobs = deafBlobs{h.blobs}
		o.Waker = wakerFunc(func(...psych.RunKey) error { return nil })
		rt, err := psych.New(h.tap, &o)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(psych.TombstoneLife + time.Hour)
		if _, _, err := rt.Sweep(ctx, ""); !errors.Is(err, psych.ErrUnavailable) {
			t.Errorf("a sweep whose BlobStore is away: %v", err)
		}
		startsNothing(t, h) // the tombstone stands until the blobs are gone
		h.sweep()
		if _, err := h.blobs.Stat(ctx, late); !errors.Is(err, psych.ErrNotFound) {
			t.Errorf("the late blob: %v", err)
		}
		h.start("go")
	}},
	{"read2/del-lagging-index", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		if err := h.rt.Delete(context.Background(), key); err != nil {
			t.Fatal(err)
		}
		time.Sleep(psych.TombstoneLife + time.Hour)
		h.sweep()
		h.tap.Store = staleIndex{h.tap.Store, key}
		h.restart()
		h.sweep() // the index says that the tombstone is due
		h.start("go")
		h.drive(key)
		h.rests(key, "m1")
	}},
	{"read2/del-post-without-look", func(t *testing.T) {
		h := newHarness(t, answers)
		key := h.start("go")
		if err := h.rt.Delete(context.Background(), key); err != nil {
			t.Fatal(err)
		}
		if err := h.rt.Send(context.Background(), key, psych.ClientMessage{ID: "m2", Text: "late"}); !errors.Is(err, psych.ErrNotFound) {
			t.Errorf("a post to a deleted Run: %v", err)
		}
		h.bury(key)
	}},
	{"mut2/del/renew-blind", func(t *testing.T) {
		nap := (&sleeper{}).tool("nap", nil)
		h := newHarness(t, "steps: [{calls: [{name: nap, arguments: {ms: 50000}}]}, {text: done}]", nap)
		key := h.start("go")
		d0 := h.worker()
		asked := d0.asks()
		end := d0.goDrive(key)
		time.Sleep(5 * time.Second)
		if err := h.rt.Delete(context.Background(), key); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if e := <-end; !errors.Is(e.err, psych.ErrNotFound) || asked.Load() != 1 {
			t.Errorf("%v, %v; the model was called %d times", e.out, e.err, asked.Load())
		}
	}},
}

// unknownAppends plays each append of a Run with an outcome that nobody
// learns: it commits and the answer is lost, or it arrives later.
func unknownAppends(t *testing.T, after time.Duration, lost bool) {
	var want string
	for nth := int64(0); nth <= 6; nth++ {
		var ran atomic.Int64
		h := newHarness(t, oneTool, counted("tool", &ran, nil))
		key := h.start("go")
		d := h.worker()
		var s *lateStore
		if lost {
			d.tap.hook(nil, func(m string) error {
				if m == "Append" && int64(d.tap.count(m)) == nth {
					return fmt.Errorf("%w: %w", psych.ErrUnavailable, errLost)
				}
				return nil
			})
		} else {
			s = d.late("Append", nth, after)
		}
		d.drive(key)
		if s != nil {
			s.flying.Wait()
		}
		got := fmt.Sprint(h.kinds(key))
		if want == "" {
			want = got
		}
		if got != want || ran.Load() != 1 {
			t.Errorf("append %d: the tool ran %d times, and the log is\n%s\nwant\n%s", nth, ran.Load(), got, want)
		}
		h.rests(key, "m1")
	}
}

// died plays a worker that dies when the tool has run and its result is not
// in the log.
func died(t *testing.T, o *psych.ToolOptions, times int64, outcome psych.ToolOutcome) {
	var ran atomic.Int64
	var mu sync.Mutex
	keys := map[string]bool{}
	tool := psych.NewTool("tool", "", func(_ context.Context, c *psych.Call, _ struct{}) (string, error) {
		ran.Add(1)
		mu.Lock()
		defer mu.Unlock()
		keys[c.IdempotencyKey] = true
		return "ok", nil
	}, o)
	h := newHarness(t, oneTool, tool)
	key := h.start("go")
	d0 := h.worker()
	l := d0.hold("before", "Append", 3)
	end := d0.goDrive(key)
	l.wait(t)
	d0.tap.hook(func(string) error { return errKilled }, nil)
	time.Sleep(2 * time.Minute)
	h.drive(key)
	c := h.report(key).ToolCalls
	if ran.Load() != times || len(keys) != 1 || len(c) != 1 || c[0].Outcome != string(outcome) {
		t.Errorf("the tool ran %d times with %d keys: %+v; want %d, one key, %s", ran.Load(), len(keys), c, times, outcome)
	}
	l.release()
	if e := <-end; e.err == nil {
		t.Errorf("the dead worker: %v", e.out)
	}
	h.rests(key, "m1")
}

// overtaken plays a claimer that has made its settlements when an append of
// its predecessor arrives.
func overtaken(t *testing.T, nth int, outcome string) {
	var ran atomic.Int64
	h := newHarness(t, oneTool, counted("tool", &ran, nil))
	key := h.start("go")
	d0, d1 := h.worker(), h.worker()
	first := d0.hold("before", "Append", nth)
	end0 := d0.goDrive(key)
	first.wait(t)
	time.Sleep(61 * time.Second)
	second := d1.hold("before", "Append", 1)
	end1 := d1.goDrive(key)
	second.wait(t)
	first.release()
	stopped(t, end0)
	second.release()
	closed(t, end1)
	if c := h.report(key).ToolCalls; len(c) != 1 || c[0].Outcome != outcome || ran.Load() > 1 {
		t.Errorf("%+v, ran %d times; want %s", c, ran.Load(), outcome)
	}
	h.rests(key, "m1")
}

// batches counts appends, and notes whether one of unknown outcome was followed
// by another one.
type batches struct {
	psych.Store
	n       int
	fail    func(n int) bool
	unknown string
	sizes   map[string]int
	changed bool
}

func (s *batches) Append(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
	s.n++
	size, again := s.sizes[b.Token]
	s.changed = s.changed || s.unknown != "" && s.unknown != b.Token || again && size != len(b.Entries)
	s.sizes[b.Token] = len(b.Entries)
	s.unknown = ""
	if s.fail(s.n) {
		s.unknown = b.Token
		return psych.Pos{}, fmt.Errorf("%w: %w", psych.ErrUnavailable, errLost)
	}
	return s.Store.Append(ctx, key, after, b)
}

// deafBlobs can't remove what a Run has.
type deafBlobs struct{ psych.BlobStore }

func (deafBlobs) DeleteRun(context.Context, psych.RunKey) error { return psych.ErrUnavailable }

// A staleIndex says that a Run is due, whatever is true.
type staleIndex struct {
	psych.Store
	key psych.RunKey
}

func (s staleIndex) Due(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
	keys, next, err := s.Store.Due(ctx, now, cursor, limit)
	return append(keys, s.key), next, err
}

// gone checks that nobody can tell a deleted Run from one that never was.
func gone(t *testing.T, h *harness, key psych.RunKey) {
	t.Helper()
	ctx := context.Background()
	for name, err := range map[string]error{
		"GetRun":  second(h.tap.Store.GetRun(ctx, key)),
		"Read":    second(h.tap.Store.Read(ctx, key, psych.Pos{}, 10)),
		"Head":    second(h.tap.Store.Head(ctx, key)),
		"Pending": second(h.tap.Store.Pending(ctx, key)),
		"Report":  second(h.rt.Report(ctx, key)),
		"Drive":   second(h.rt.Drive(ctx, key, nil)),
	} {
		if !errors.Is(err, psych.ErrNotFound) {
			t.Errorf("%s of a deleted Run: %v", name, err)
		}
	}
}

// startsNothing checks that the Run of start is not created.
func startsNothing(t *testing.T, h *harness) {
	t.Helper()
	ctx := context.Background()
	v, err := h.rt.Publish(ctx, "t", &h.spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.rt.Start(ctx, psych.Scope{Tenant: "t"}, v.Hash, psych.ClientMessage{ID: "m1", Text: "go"}); !errors.Is(err, psych.ErrNotFound) {
		t.Errorf("a Run began under its tombstone: %v", err)
	}
}

// bury lets the time of a tombstone pass, with the sweeps that belong to it.
// What has the id then finds nothing of the Run before it.
func (h *harness) bury(key psych.RunKey) {
	h.t.Helper()
	ctx := context.Background()
	time.Sleep(psych.MaxLease + time.Second)
	h.sweep()
	time.Sleep(psych.TombstoneLife)
	h.sweep()
	if keys, _, err := h.tap.Store.Due(ctx, time.Now().Add(100*24*time.Hour), "", 10); err != nil || len(keys) != 0 {
		h.t.Errorf("due for ever: %v, %v", keys, err)
	}
	again := h.start("go")
	page, err := h.tap.Store.Read(ctx, key, psych.Pos{}, 10)
	notes, perr := h.tap.Store.Pending(ctx, key)
	if again != key || err != nil || perr != nil || len(page.Entries) != 0 || len(notes) != 1 {
		h.t.Errorf("%v holds %d records and %d notes of the Run before it, %v, %v", again, len(page.Entries), len(notes)-1, err, perr)
	}
	for _, segment := range []string{"c1_1.result.1", "c1_1.result.2"} {
		if _, err := h.blobs.Stat(ctx, psych.BlobKey{Tenant: key.Tenant, RunID: key.RunID, CallID: segment}); !errors.Is(err, psych.ErrNotFound) {
			h.t.Errorf("blob %s: %v", segment, err)
		}
	}
}

// A promise whose test is gone is a wish.
func TestDocumentedTestsExist(t *testing.T) {
	var src strings.Builder
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		src.Write(b)
	}
	found := 0
	for _, doc := range []string{"../docs/durability.md", "../SECURITY.md"} {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile("`Test[^`]*`").FindAllString(string(text), -1) {
			found++
			name, part, _ := strings.Cut(strings.Trim(name, "`"), "/")
			name, open := strings.CutSuffix(name, "…")
			if !strings.Contains(src.String(), "\nfunc "+name+"(") && !(open && strings.Contains(src.String(), "\nfunc "+name)) {
				t.Errorf("%s names %s, which is no test", doc, name)
			}
			if part != "" && !slices.ContainsFunc(traces, func(tr trace) bool { return strings.HasPrefix(tr.name, part) }) {
				t.Errorf("%s names the trace %s, which there is not", doc, part)
			}
		}
	}
	if found < 40 {
		t.Errorf("only %d tests are named", found)
	}
}
