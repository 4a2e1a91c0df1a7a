package psych_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/psych"
)

// waits is a tool that takes so long, or until its context ends.
func waits(name string, d time.Duration, runs *atomic.Int64, o *psych.ToolOptions) *psych.Tool {
	return psych.NewTool(name, "", func(ctx context.Context, _ *psych.Call, _ struct{}) (string, error) {
		runs.Add(1)
		select {
		case <-time.After(d):
			return "done", nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}, o)
}

// News goes with every try of its turn, and counts as told once the model has
// answered: on a warm worker and on a cold one.
func TestNewsOnARetry(t *testing.T) {
	script := `
steps:
- calls: [{name: bad}]
- calls: [{name: bad}]
- calls: [{name: bad}]
- {fail: 503, times: 2}
- calls: [{name: echo, arguments: {text: hi}}]
  require: ['Withheld: bad']
- text: done
  forbid: ['Withheld: bad']
`
	bad := psych.NewTool("bad", "", func(context.Context, *psych.Call, struct{}) (string, error) { return "", errors.New("nope") }, nil)
	for _, cold := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, script, bad, echo)
			key := h.start("go")
			if cold {
				ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
				out, err := h.rt.Drive(ctx, key, &psych.DriveOptions{Margin: 10 * time.Millisecond, Floor: time.Millisecond})
				cancel()
				if out != psych.Yielded || err != nil {
					t.Fatal(out, err)
				}
				h.restart()
			}
			h.drive(key)
			if rep := h.report(key); rep.Status != psych.StatusCompleted {
				t.Errorf("cold %v: %s %+v", cold, rep.Status, rep.Exchanges)
			}
		})
	}
}

// A request that is too long even when it is trimmed leaves nothing behind: a
// worker that did not see it makes the same prefix.
func TestTrimmedInVain(t *testing.T) {
	many := strings.Repeat("{name: echo, arguments: {text: 'abc ', times: 900}}, ", 5)
	h := newHarness(t, `
steps:
- calls: [`+strings.TrimSuffix(many, ", ")+`]
- calls: [{name: echo, arguments: {text: 'abc ', times: 5900}}]
- text: second
- text: third
- text: fourth
`, echo)
	h.spec.Limits.ContextTokens, h.spec.Limits.PreviewChars = 6800, 100
	key := h.start("go")
	h.drive(key)
	if rep := h.report(key); rep.Status != psych.StatusExhausted {
		t.Fatalf("%s %+v: want a context that is full", rep.Status, rep.Exchanges)
	}
	for i := range 3 {
		if i > 0 {
			h.restart()
		}
		h.send(key, "next")
		if rep := h.report(key); rep.Status != psych.StatusCompleted {
			t.Fatalf("message %d: %s %+v", i+2, rep.Status, rep.Exchanges)
		}
	}
}

// An inbox that can't be read for a moment ends neither a model call nor a tool.
func TestInboxFailsMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		h := newHarness(t, "steps: [{calls: [{name: slow}]}, {text: done}, {text: more}]", waits("slow", 50*time.Second, &runs, nil))
		h.o.Models = psych.OneModel(slowModel{h.model, 50 * time.Second})
		rt, err := psych.New(h.tap, &h.o)
		if err != nil {
			t.Fatal(err)
		}
		h.rt = rt
		key := h.start("go")
		var failed atomic.Int64
		h.tap.hook(func(method string) error {
			if method == "Pending" && h.tap.count("Append") > 0 && failed.Add(1) <= 12 {
				return fmt.Errorf("throttled: %w", psych.ErrUnavailable)
			}
			return nil
		}, nil)
		for _, at := range []time.Duration{time.Second, 60 * time.Second} { // in the model call, and in the tool
			go func() {
				time.Sleep(at)
				if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: "more"}); err != nil {
					t.Error(err)
				}
			}()
		}
		h.drive(key)
		rep := h.report(key)
		if rep.Status != psych.StatusCompleted || rep.Attempts != 1 || runs.Load() != 1 || rep.ToolCalls[0].Outcome != "succeeded" || rep.Waiting != 0 {
			t.Errorf("%s after %d attempts, %+v, %+v", rep.Status, rep.Attempts, rep.ToolCalls, rep.Exchanges)
		}
		if failed.Load() < 12 {
			t.Errorf("the inbox failed %d times, want 12", failed.Load())
		}
	})
}

type slowModel struct {
	psych.Model
	d time.Duration
}

func (m slowModel) Generate(ctx context.Context, r *psych.Request, on func(psych.Delta)) (*psych.Response, error) {
	time.Sleep(m.d)
	return m.Model.Generate(ctx, r, on)
}

// What the log refers to is gone: attempts that fail for it are counted, the
// exchange closes, the next message works, and the report shows the rest.
func TestBlobsGoneBehindTheLog(t *testing.T) {
	ctx := context.Background()
	h := newHarness(t, "steps: [{text: '"+strings.Repeat("y", 200_000)+"'}, {text: done}]")
	h.unreplayable = true
	v, err := h.rt.Publish(ctx, "t", &h.spec)
	if err != nil {
		t.Fatal(err)
	}
	key, err := h.rt.Start(ctx, psych.Scope{Tenant: "t"}, v.Hash, psych.ClientMessage{ID: "m1", Text: strings.Repeat("x", 300_000)})
	if err != nil {
		t.Fatal(err)
	}
	h.drive(key)
	if err := h.blobs.DeleteRun(ctx, key); err != nil {
		t.Fatal(err)
	}
	if rep := h.report(key); rep.Status != psych.StatusCompleted || !strings.Contains(rep.Exchanges[0].Answer, "can't be read") {
		t.Errorf("report: %s, answer %.80q", rep.Status, rep.Exchanges[0].Answer)
	}
	if err := h.rt.Send(ctx, key, psych.ClientMessage{ID: "m2", Text: "more"}); err != nil {
		t.Fatal(err)
	}
	closed := false
	for range 6 {
		h.restart()
		out, err := h.rt.Drive(ctx, key, nil)
		if closed = out == psych.Closed; closed {
			break
		}
		if err == nil || errors.Is(err, psych.ErrNotFound) { // which would say that the Run is gone
			t.Fatalf("%v, %v", out, err)
		}
	}
	if rep := h.report(key); !closed || rep.Exchanges[1].Code != "no_progress" {
		t.Errorf("closed %v: %+v", closed, rep.Exchanges[1:])
	}
}

// A tool that does not heed its context does not take its siblings' results
// with it, nor the lease. By the real clock, since what counts is who of the
// two waits longer.
func TestDeafToolStrandsNothing(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	deaf := psych.NewTool("deaf", "", func(context.Context, *psych.Call, struct{}) (string, error) { <-stop; return "", nil }, nil)
	h := newHarness(t, "steps: [{calls: [{name: echo, arguments: {text: quick}}, {name: deaf}]}, {text: done}]", echo, deaf)
	key := h.start("go")
	ctx, cancel := context.WithTimeout(context.Background(), 2300*time.Millisecond)
	defer cancel()
	out, err := h.rt.Drive(ctx, key, &psych.DriveOptions{Margin: 2 * time.Second, Floor: time.Millisecond})
	if out != psych.Yielded || err != nil {
		t.Errorf("%v, %v", out, err)
	}
	if info, err := h.tap.GetRun(context.Background(), key); err != nil || info.Owner != "" || info.DueAt.IsZero() {
		t.Errorf("header %+v, %v", info, err)
	}
	if rep := h.report(key); rep.ToolCalls[0].Outcome != "succeeded" {
		t.Errorf("%+v", rep.ToolCalls)
	}
}

// An abort that waits as an attempt begins comes before calls that could be run
// again.
func TestAbortBeforeARerun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		h := newHarness(t, "steps: [{calls: [{name: slow}]}, {text: done}]", waits("slow", 50*time.Second, &runs, &psych.ToolOptions{Idempotent: true}))
		key := h.start("go")
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if out, err := h.rt.Drive(ctx, key, &psych.DriveOptions{Floor: time.Millisecond}); out != psych.Yielded || err != nil {
			t.Fatal(out, err)
		}
		if err := h.rt.Abort(context.Background(), key, psych.AbortRequest{Reason: "enough"}); err != nil {
			t.Fatal(err)
		}
		h.drive(key)
		if rep := h.report(key); rep.Status != psych.StatusAborted || runs.Load() != 1 || rep.Exchanges[0].Reason != "enough" {
			t.Errorf("%s, the tool ran %d times: %+v", rep.Status, runs.Load(), rep.Exchanges)
		}
	})
}

// A log goes on from wherever it ends, also within an append of today: it may
// have been two.
func TestGoesOnFromEveryRecord(t *testing.T) {
	ctx := context.Background()
	entered := make(chan struct{}, 1)
	slow := psych.NewTool("slow", "", func(ctx context.Context, _ *psych.Call, _ struct{}) (string, error) {
		select {
		case entered <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return "", ctx.Err()
	}, &psych.ToolOptions{Timeout: 100 * time.Millisecond})
	h := newHarness(t, "steps: [{calls: [{name: echo, arguments: {text: x}}, {name: slow}]}, {text: done}, {text: more}, {text: yet more}, {text: enough}]", echo, slow)
	key := h.start("go")
	go func() {
		<-entered
		if err := h.rt.Abort(ctx, key, psych.AbortRequest{ID: "a", Reason: "enough"}); err != nil {
			t.Error(err)
		}
	}()
	h.drive(key)
	page, err := h.tap.Read(ctx, key, psych.Pos{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	info, err := h.tap.GetRun(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := h.tap.Store.GetDoc(ctx, "t", info.Version)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= len(page.Entries); n++ {
		s := memory.New(nil)
		if err := s.PutDoc(ctx, "t", info.Version, doc); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.CreateRun(ctx, info); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Append(ctx, key, psych.Pos{}, psych.Batch{Token: "x", Entries: page.Entries[:n]}); err != nil {
			t.Fatal(err)
		}
		other := &harness{t: t, tap: &tap{Store: s}, o: h.o, model: h.model, blobs: h.blobs, spec: h.spec}
		other.restart()
		other.send(key, "go on")
		if rep := other.report(key); rep.Status != psych.StatusCompleted || rep.Waiting != 0 {
			t.Errorf("from record %d, %s: %s %+v", n, page.Entries[n-1].Kind, rep.Status, rep.Exchanges)
		}
	}
}

// flakyBlobs fails once.
type flakyBlobs struct {
	psych.BlobStore
	failed bool
}

func (f *flakyBlobs) Put(ctx context.Context, key psych.BlobKey, ct string, r io.Reader) (psych.BlobInfo, error) {
	if !f.failed {
		f.failed = true
		return psych.BlobInfo{}, fmt.Errorf("503: %w", psych.ErrUnavailable)
	}
	return f.BlobStore.Put(ctx, key, ct, r)
}

// An answer that is too large for its record is not thrown away for one failure
// of the BlobStore.
func TestLargeAnswerIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: [{text: '"+strings.Repeat("y", 200_000)+"'}]")
		h.o.Blobs = &flakyBlobs{BlobStore: h.blobs}
		h.restart()
		rep := h.run()
		if rep.Status != psych.StatusCompleted || rep.Attempts != 1 || len(h.model.Requests()) != 1 {
			t.Errorf("%s after %d attempts and %d model calls", rep.Status, rep.Attempts, len(h.model.Requests()))
		}
	})
}

// A clock that is set back does not make a lease longer.
func TestClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var skew atomic.Int64
		var h *harness
		var key psych.RunKey
		first := psych.NewTool("first", "", func(context.Context, *psych.Call, struct{}) (string, error) {
			skew.Store(int64(-5 * time.Minute))
			return "x", nil
		}, nil)
		var runs atomic.Int64
		last := psych.NewTool("last", "", func(context.Context, *psych.Call, struct{}) (string, error) {
			info, err := h.tap.GetRun(context.Background(), key)
			if err != nil || time.Now().After(info.Until) {
				t.Errorf("an effect started %v after the end of the lease, %v", time.Since(info.Until), err)
			}
			return "x", nil
		}, nil)
		h = newHarness(t, "steps: [{calls: [{name: first}]}, {calls: [{name: slow}]}, {calls: [{name: slow}]}, {calls: [{name: last}]}, {text: a}]",
			first, last, waits("slow", 50*time.Second, &runs, nil))
		h.o.Now = func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }
		h.restart()
		key = h.start("go")
		if _, err := h.rt.Drive(context.Background(), key, nil); !errors.Is(err, psych.ErrLeaseLost) {
			t.Errorf("%v, want the lease to be lost", err)
		}
	})
}

// hungBlobs never come to an end of some Puts.
type hungBlobs struct {
	psych.BlobStore
	hung chan struct{}
}

func (b hungBlobs) Put(ctx context.Context, key psych.BlobKey, ct string, r io.Reader) (psych.BlobInfo, error) {
	if strings.Contains(key.CallID, "log") {
		<-b.hung
		return psych.BlobInfo{}, errors.New("hung")
	}
	return b.BlobStore.Put(ctx, key, ct, r)
}

// A BlobStore that hangs does not hold up a call for longer than its time. By
// the real clock: a writer that waits holds a lock.
func TestHungAttachment(t *testing.T) {
	tool := psych.NewRawTool(psych.ToolDef{Name: "make"}, func(ctx context.Context, c *psych.Call) (*psych.Result, error) {
		w, err := c.Attach("log", "text/plain", nil)
		if err != nil {
			return nil, err
		}
		io.WriteString(w, strings.Repeat("x", 300_000))
		return psych.Text("ok"), nil
	}, &psych.ToolOptions{Timeout: 100 * time.Millisecond})
	h := newHarness(t, "steps: [{calls: [{name: make}]}, {text: done}]", tool)
	hung := make(chan struct{})
	defer close(hung)
	h.o.Blobs = hungBlobs{h.blobs, hung}
	h.restart()
	key := h.start("go")
	if out, err := h.rt.Drive(context.Background(), key, &psych.DriveOptions{Margin: 100 * time.Millisecond}); out != psych.Closed || err != nil {
		t.Fatal(out, err)
	}
	if rep := h.report(key); rep.Status != psych.StatusCompleted || rep.ToolCalls[0].Outcome == "succeeded" {
		t.Errorf("%s, %+v", rep.Status, rep.ToolCalls)
	}
}
