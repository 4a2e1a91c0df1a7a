package psych_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// Fail returns within its context's deadline, and gives the Run back before; of
// one that is cancelled within five seconds, and within the deadline.
func TestFailInTime(t *testing.T) {
	for name, c := range map[string]struct{ deadline, cancelled, within time.Duration }{
		"a deadline":                         {20 * time.Second, 0, 20 * time.Second},
		"a short deadline":                   {4 * time.Second, 0, 4 * time.Second},
		"cancelled":                          {0, 3 * time.Second, 8 * time.Second},
		"cancelled a moment before the end":  {20 * time.Second, 14 * time.Second, 19 * time.Second},
		"cancelled after what is left of it": {20 * time.Second, 18 * time.Second, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, "steps: [{text: fine}]")
				key := h.start("go")
				sent := time.Now()
				time.Sleep(time.Hour)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if c.deadline > 0 {
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				if c.cancelled > 0 {
					defer time.AfterFunc(c.cancelled, cancel).Stop()
				}
				began := time.Now()
				hang := &hangingStore{Store: h.tap}
				rt, err := psych.New(hang, &h.o)
				if err != nil {
					t.Fatal(err)
				}
				err = rt.Fail(ctx, key, sent, "it crashed 5 times")
				if took := time.Since(began); err == nil || took > c.within {
					t.Errorf("%v after %v, want an error within %v", err, took, c.within)
				}
				if hang.looks < 2 || hang.released == 0 {
					t.Errorf("it looked %d times, and tried %d times to give the Run back", hang.looks, hang.released)
				}
			})
		})
	}
}

// A hangingStore answers neither the second Pending, which is that behind the
// Claim, nor a Release before its context ends.
type hangingStore struct {
	psych.Store
	looks, released int
}

func (s *hangingStore) Pending(ctx context.Context, key psych.RunKey) ([]psych.Note, error) {
	if s.looks++; s.looks == 1 {
		return s.Store.Pending(ctx, key)
	}
	<-ctx.Done()
	return nil, fmt.Errorf("it hangs: %w: %w", psych.ErrUnavailable, ctx.Err())
}

func (s *hangingStore) Release(ctx context.Context, _ psych.Lease, _ time.Time, _ string) error {
	if ctx.Err() == nil {
		s.released++
	}
	<-ctx.Done()
	return fmt.Errorf("it hangs: %w: %w", psych.ErrUnavailable, ctx.Err())
}

// fail fails a Run, and says which Runs were woken.
func (h *harness) fail(key psych.RunKey, sent time.Time) (woken int, err error) {
	h.t.Helper()
	o := h.o
	o.Waker = wakerFunc(func(keys ...psych.RunKey) error { woken += len(keys); return nil })
	rt, err := psych.New(h.tap, &o)
	if err != nil {
		h.t.Fatal(err)
	}
	err = rt.Fail(context.Background(), key, sent, "it crashed 5 times")
	return woken, err
}

// died drives a Run until the worker dies behind its nth write from now on, and
// lets its lease pass.
func (h *harness) died(key psych.RunKey, n int) {
	h.t.Helper()
	killer(h, n, true)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	h.rt.Drive(ctx, key, nil)
	cancel()
	h.tap.hook(nil, nil)
	time.Sleep(2 * time.Minute)
	h.restart()
}

// A wake that nobody could deliver: the message that it was for is delivered
// and answered with a failure, and the next one works.
func TestFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: [{text: fine}]")
		key := h.start("go")
		sent := time.Now()
		time.Sleep(time.Hour)
		if woken, err := h.fail(key, sent); err != nil || woken != 0 {
			t.Fatalf("woken %d, %v", woken, err)
		}
		h.rests(key, "m1")
		rep := h.report(key)
		x := rep.Exchanges[0]
		if rep.Status != psych.StatusFailed || x.Closed != psych.StatusFailed || x.Code != "not_driven" || x.Reason != "it crashed 5 times" || len(rep.ModelCalls) != 0 {
			t.Errorf("%+v", rep)
		}
		if info := h.header(key); info.Status != psych.StatusFailed {
			t.Errorf("%+v", info)
		}
		// Again it writes nothing.
		h.tap.reset()
		if woken, err := h.fail(key, sent); err != nil || woken != 0 || h.tap.count("Claim") != 0 || h.tap.count("Append") != 0 {
			t.Errorf("again: woken %d, %v, %d claims", woken, err, h.tap.count("Claim"))
		}
		h.send(key, "still there?")
		if rep := h.report(key); rep.Status != psych.StatusCompleted || len(rep.Exchanges) != 2 {
			t.Errorf("%+v", rep.Exchanges)
		}
	})
}

// What was posted behind the wake is left, and driven as any other.
func TestFailLeavesWhatCameLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: [{text: fine}, {text: too}]")
		key := h.start("go")
		sent := time.Now() // a note of that very moment waited then
		time.Sleep(time.Second)
		h.post(key, "m2")
		time.Sleep(time.Hour)
		woken, err := h.fail(key, sent)
		if err != nil || woken != 1 {
			t.Fatalf("woken %d, %v", woken, err)
		}
		rep := h.report(key)
		if len(rep.Exchanges) != 1 || rep.Exchanges[0].Message != "m1" || rep.Exchanges[0].Closed != psych.StatusFailed || rep.Waiting != 1 {
			t.Errorf("%+v", rep)
		}
		if info := h.header(key); info.Owner != "" || info.DueAt.IsZero() || info.DueAt.After(time.Now()) {
			t.Errorf("not due now: %+v", info)
		}
		h.drive(key)
		h.rests(key, "m1", "m2")
		if rep := h.report(key); rep.Exchanges[1].Closed != psych.StatusCompleted {
			t.Errorf("%+v", rep.Exchanges)
		}
		// The wake of the second came through: failing it is too late.
		if woken, err := h.fail(key, sent.Add(time.Second)); err != nil || woken != 0 || h.report(key).Attempts != 2 {
			t.Errorf("woken %d, %v", woken, err)
		}
	})
}

// Every way in which there was progress since the wake: nothing is changed, not
// even an attempt counted. What lies before it, and what is no progress, does
// not save the exchange.
func TestFailAfterProgress(t *testing.T) {
	const yaml = "steps: [{calls: [{name: echo, arguments: {text: hi}}]}, {calls: [{name: echo, arguments: {text: ho}}]}, {text: done}]"
	seen := map[psych.Kind]bool{}
	for n := 1; ; n++ { // writes that the worker makes before it dies
		over := false
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, yaml, slowEcho)
			key := h.start("go")
			h.died(key, n)
			var records []*psych.Record
			for r, err := range h.rt.Records(context.Background(), key, psych.Pos{}) {
				if err != nil {
					t.Fatal(err)
				}
				records = append(records, r)
			}
			if len(records) > 0 && records[len(records)-1].Event.Kind() == psych.KindExchangeClosed {
				over = true
				return
			}
			// One wake for each record: sent just before it was written, and with it.
			for i := len(records) - 1; i >= 0; i-- {
				later := slices.ContainsFunc(records, func(r *psych.Record) bool {
					e, result := r.Event.(*psych.ToolCallFinished)
					kind := r.Event.Kind()
					return r.Time.After(records[i].Time.Add(-time.Microsecond)) &&
						(kind == psych.KindUserMessage || kind == psych.KindModelCallFinished || result && e.Outcome == psych.Succeeded)
				})
				if !later {
					continue
				}
				seen[records[i].Event.Kind()] = true
				before := h.header(key)
				if woken, err := h.fail(key, records[i].Time.Add(-time.Microsecond)); err != nil || woken != 0 {
					t.Errorf("write %d, a wake before record %d: woken %d, %v", n, i+1, woken, err)
				}
				if after := h.header(key); fmt.Sprint(after) != fmt.Sprint(before) || len(h.kinds(key)) != len(records) {
					t.Errorf("write %d, a wake before record %d: the Run was changed: %v", n, i+1, h.kinds(key))
				}
			}
			if _, err := h.fail(key, time.Now()); err != nil {
				t.Fatal(err)
			}
			h.rests(key, "m1")
			if rep := h.report(key); rep.Status != psych.StatusFailed {
				t.Errorf("write %d: %s: %v", n, rep.Status, h.kinds(key))
			}
		})
		if over {
			break
		}
	}
	for _, kind := range []psych.Kind{psych.KindUserMessage, psych.KindModelCallFinished, psych.KindToolCallFinished} {
		if !seen[kind] {
			t.Errorf("no wake was sent before a %s", kind)
		}
	}
}

// slowEcho takes a second, so that what is written has times of its own.
var slowEcho = psych.NewTool("echo", "", func(ctx context.Context, _ *psych.Call, in struct {
	Text string `json:"text"`
}) (string, error) {
	time.Sleep(time.Second)
	return in.Text, nil
}, nil)

// Attempts that got nowhere since the wake are no progress: that is what it is
// in the dead-letter queue for.
func TestFailAfterFruitlessAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: [{text: so}]")
		key := h.start("go")
		h.died(key, 1) // with the message delivered
		sent := time.Now()
		time.Sleep(time.Second)
		h.died(key, 1)
		h.died(key, 1)
		rep := h.report(key)
		if rep.Attempts != 3 || rep.Turns != 0 || rep.Status != psych.StatusOpen {
			t.Fatalf("%+v", rep)
		}
		if woken, err := h.fail(key, sent); err != nil || woken != 0 {
			t.Fatal(woken, err)
		}
		h.rests(key, "m1")
		if rep := h.report(key); rep.Exchanges[0].Code != "not_driven" {
			t.Errorf("%+v", rep.Exchanges)
		}
	})
}

// What the attempts before it left open is settled: nothing is run again, not
// even what is safe to.
func TestFailSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		h := newHarness(t, "steps: [{calls: [{name: slow}, {name: safe}, {name: slow}]}, {text: so}]",
			waits("slow", time.Hour, &runs, &psych.ToolOptions{Sequential: true}), waits("safe", time.Hour, &runs, &psych.ToolOptions{Idempotent: true}))
		h.spec.Limits.ToolTimeoutSeconds = 7200
		key := h.start("go")
		killer(h, 5, true) // a little into the first tool
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		h.rt.Drive(ctx, key, nil)
		cancel()
		h.tap.hook(nil, nil)
		time.Sleep(5 * time.Minute)
		h.restart()
		ran := runs.Load()
		if _, err := h.fail(key, time.Now()); err != nil {
			t.Fatal(err)
		}
		h.rests(key, "m1")
		var outcomes []string
		for _, c := range h.report(key).ToolCalls {
			outcomes = append(outcomes, c.Outcome)
		}
		if fmt.Sprint(outcomes) != "[unknown not_started not_started]" || runs.Load() != ran {
			t.Errorf("%v, the tools ran %d times, then %d", outcomes, ran, runs.Load())
		}
		h.send(key, "and now?")
		if rep := h.report(key); rep.Status != psych.StatusCompleted {
			t.Errorf("%+v", rep.Exchanges)
		}
	})
}

// An abort that waited ends the exchange as aborted, and a message behind it
// has an exchange of its own that fails.
func TestFailDeliversAborts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: [{calls: [{name: echo, arguments: {text: hi}}]}, {text: so}]", slowEcho)
		key := h.start("go")
		h.died(key, 3)
		if err := h.rt.Abort(context.Background(), key, psych.AbortRequest{ID: "a", Reason: "enough"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		h.post(key, "m2")
		if _, err := h.fail(key, time.Now()); err != nil {
			t.Fatal(err)
		}
		h.rests(key, "m1", "m2")
		rep := h.report(key)
		if len(rep.Exchanges) != 2 || rep.Exchanges[0].Closed != psych.StatusAborted || rep.Exchanges[0].Reason != "enough" || rep.Exchanges[1].Closed != psych.StatusFailed {
			t.Errorf("%+v", rep.Exchanges)
		}
	})
}

// A Run that somebody drives, that rests, or that is not there.
func TestFailRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: [{calls: [{name: echo, arguments: {text: hi}}]}, {text: so}]", slowEcho)
		key := h.start("go")
		w := h.worker()
		hold := w.hold("before", "Append", 1)
		done := w.goDrive(key)
		hold.wait(t)
		if woken, err := h.fail(key, time.Now()); !errors.Is(err, psych.ErrLeaseHeld) || woken != 0 {
			t.Errorf("a Run that is driven: %v", err)
		}
		hold.release()
		closed(t, done)
		h.tap.reset()
		if _, err := h.fail(key, time.Now()); err != nil || h.tap.count("Claim") != 0 {
			t.Errorf("a Run at rest: %v, %d claims", err, h.tap.count("Claim"))
		}
		if _, err := h.fail(psych.RunKey{Tenant: "u", RunID: key.RunID}, time.Now()); !errors.Is(err, psych.ErrNotFound) {
			t.Errorf("another tenant's: %v", err)
		}
		if _, err := h.fail(psych.RunKey{Tenant: "t", RunID: "x"}, time.Now()); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("no key: %v", err)
		}
		if err := h.rt.Delete(context.Background(), key); err != nil {
			t.Fatal(err)
		}
		if _, err := h.fail(key, time.Now()); !errors.Is(err, psych.ErrNotFound) {
			t.Errorf("a deleted Run: %v", err)
		}
	})
}

// The worker that died lets go of the Run with nothing open, and could not say
// so: Fail gives it back with nothing due.
func TestFailWithNothingLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: [{text: so}]")
		key := h.start("go")
		h.tap.hook(func(m string) error {
			if m == "Release" {
				return errKilled
			}
			return nil
		}, nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		h.rt.Drive(ctx, key, nil)
		cancel()
		h.tap.hook(nil, nil)
		time.Sleep(2 * time.Minute)
		if info := h.header(key); info.Owner == "" {
			t.Fatalf("%+v", info)
		}
		if woken, err := h.fail(key, time.Now()); err != nil || woken != 0 {
			t.Errorf("woken %d, %v", woken, err)
		}
		h.rests(key, "m1")
		if rep := h.report(key); rep.Status != psych.StatusCompleted || len(rep.Exchanges) != 1 {
			t.Errorf("%+v", rep)
		}
	})
}

// A worker that was taken for dead writes last: what Fail made from a log that
// had not ended is made anew, and what was progress then counts.
func TestFailBehindAZombie(t *testing.T) {
	for _, nth := range []int{1, 2, 3} { // that the zombie hangs in
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, "steps: [{calls: [{name: echo, arguments: {text: hi}}]}, {text: so}]", slowEcho)
			key := h.start("go")
			zombie := h.worker()
			stuck := zombie.hold("before", "Append", nth)
			done := zombie.goDrive(key)
			stuck.wait(t)
			time.Sleep(2 * time.Minute)
			sent := time.Now()
			failer := h.worker()
			fence := failer.hold("before", "Append", 1)
			failed := make(chan error, 1)
			go func() {
				failed <- failer.rt.Fail(context.Background(), key, sent, "it crashed")
			}()
			fence.wait(t)
			stuck.release()
			synctest.Wait()
			time.Sleep(time.Minute) // the zombie has written, and has seen that its lease is lost
			fence.release()
			if err := <-failed; err != nil {
				t.Fatalf("append %d: %v", nth, err)
			}
			stopped(t, done)
			h.rests(key, "m1")
			rep := h.report(key)
			if rep.Status != psych.StatusFailed || rep.Exchanges[0].Code != "not_driven" {
				t.Errorf("append %d: %+v: %v", nth, rep.Exchanges, h.kinds(key))
			}
		})
	}
}

// The zombie's last write was progress since the wake: Fail, which has claimed
// the Run already, leaves the exchange open and gives the Run back to be driven.
func TestFailBehindProgressOfAZombie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: [{text: so}]")
		key := h.start("go")
		sent := time.Now()
		time.Sleep(time.Second)
		zombie := h.worker()
		stuck := zombie.hold("before", "Append", 1) // which delivers the message
		done := zombie.goDrive(key)
		stuck.wait(t)
		time.Sleep(2 * time.Minute)
		failer := h.worker()
		fence := failer.hold("before", "Append", 1)
		failed := make(chan error, 1)
		go func() { failed <- failer.rt.Fail(context.Background(), key, sent, "it crashed") }()
		fence.wait(t)
		stuck.release()
		synctest.Wait()
		time.Sleep(time.Minute)
		fence.release()
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
		stopped(t, done)
		if info := h.header(key); info.Owner != "" || info.DueAt.IsZero() || info.DueAt.After(time.Now()) || info.Status != psych.StatusOpen {
			t.Errorf("not due now: %+v", info)
		}
		h.drive(key)
		h.rests(key, "m1")
		if rep := h.report(key); rep.Status != psych.StatusCompleted {
			t.Errorf("%+v: %v", rep.Exchanges, h.kinds(key))
		}
	})
}

// A worker that died between an abort and the close that belongs to it, as they
// may stand in two appends: the exchange is aborted, not failed.
func TestFailBetweenAbortAndClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: [{text: so}]")
		key := h.start("go")
		h.died(key, 1)
		ctx := context.Background()
		pos, err := h.tap.Store.Head(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		abort := psych.Entry{Seq: pos.Seq + 1, Kind: psych.KindAbortRequested, Time: time.Now(), Data: []byte(`{"a":1,"e":{"id":"a","reason":"enough"}}` + "\n")}
		if _, err := h.tap.Store.Append(ctx, key, pos, psych.Batch{Token: "x", Entries: []psych.Entry{abort}}); err != nil {
			t.Fatal(err)
		}
		h.post(key, "m2")
		if _, err := h.fail(key, time.Now()); err != nil {
			t.Fatal(err)
		}
		h.rests(key, "m1", "m2")
		rep := h.report(key)
		if len(rep.Exchanges) != 2 || rep.Exchanges[0].Closed != psych.StatusAborted || rep.Exchanges[1].Closed != psych.StatusFailed {
			t.Errorf("%+v", rep.Exchanges)
		}
	})
}

// Fail dies at every write, before and behind it; failing again, or driving,
// goes on. No message is lost, and none delivered twice.
func TestFailKilledAtEveryWrite(t *testing.T) {
	kills := 0
	for _, drive := range []bool{false, true} {
		for _, lost := range []bool{false, true} {
			for n := 0; ; n++ {
				done := false
				synctest.Test(t, func(t *testing.T) {
					h := newHarness(t, "steps: [{calls: [{name: echo, arguments: {text: hi}}]}, {text: so}, {text: and so}, {text: and then}]", slowEcho)
					key := h.start("go")
					h.died(key, 3)
					h.post(key, "m2")
					sent := time.Now()
					time.Sleep(time.Second)
					h.post(key, "m3")
					killer(h, n, lost)
					ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
					err := h.rt.Fail(ctx, key, sent, "it crashed")
					cancel()
					if h.tap.hook(nil, nil); err == nil {
						done = true
					} else {
						kills++
					}
					time.Sleep(20 * time.Minute)
					h.restart()
					if !drive {
						if _, err := h.fail(key, sent); err != nil {
							t.Fatalf("write %d, lost %v: failing again: %v", n, lost, err)
						}
					}
					for range 3 {
						if h.header(key).DueAt.IsZero() && h.header(key).Owner == "" {
							break
						}
						h.drive(key)
					}
					h.rests(key, "m1", "m2", "m3")
					if rep := h.report(key); rep.Exchanges[len(rep.Exchanges)-1].Closed != psych.StatusCompleted {
						t.Errorf("write %d, lost %v: the message that came later: %+v", n, lost, rep.Exchanges)
					}
				})
				if done {
					break
				}
			}
		}
	}
	if kills < 12 {
		t.Errorf("it died %d times: too few to prove anything", kills)
	}
}

// A client posts at every call that Fail makes: nothing is missed.
func TestFailPostedAtEveryPoint(t *testing.T) {
	points := 0
	for _, behind := range []bool{false, true} {
		for n := 1; ; n++ {
			posted := false
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, "steps: [{text: so}, {text: and so}]")
				key := h.start("go")
				sent := time.Now()
				time.Sleep(time.Second)
				client, err := psych.New(h.tap.Store, nil)
				if err != nil {
					t.Fatal(err)
				}
				var mu sync.Mutex
				count := 0
				at := func(string) error {
					mu.Lock()
					count++
					now := count == n
					mu.Unlock()
					if now {
						posted = true
						if err := client.Send(context.Background(), key, psych.ClientMessage{ID: "m2", Text: "also"}); err != nil {
							t.Error(err)
						}
					}
					return nil
				}
				if behind {
					h.tap.hook(nil, at)
				} else {
					h.tap.hook(at, nil)
				}
				woken, err := h.fail(key, sent)
				if h.tap.hook(nil, nil); err != nil {
					t.Fatalf("point %d: %v", n, err)
				}
				if !posted {
					return
				}
				points++
				info := h.header(key)
				if info.Owner != "" || info.DueAt.IsZero() {
					t.Errorf("point %d, behind %v: the message is not due: %+v", n, behind, info)
				}
				if woken == 0 && !info.DueAt.After(time.Now()) {
					t.Errorf("point %d, behind %v: due, and not woken", n, behind)
				}
				h.drive(key)
				h.rests(key, "m1", "m2")
				if rep := h.report(key); len(rep.Exchanges) != 2 || rep.Exchanges[0].Closed != psych.StatusFailed || rep.Exchanges[1].Closed != psych.StatusCompleted {
					t.Errorf("point %d, behind %v: %+v", n, behind, rep.Exchanges)
				}
			})
			if !posted {
				break
			}
		}
	}
	if points < 14 {
		t.Errorf("%d points were tried", points)
	}
}

// A log that can't be folded is not written to, and does not come back.
func TestFailOfADamagedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: [{text: so}]")
		h.unreplayable = true
		key := h.start("go")
		ctx := context.Background()
		if _, err := h.tap.Store.Append(ctx, key, psych.Pos{}, psych.Batch{Token: "x", Entries: []psych.Entry{{Seq: 1, Kind: "user_message", Time: time.Now(), Data: []byte("nothing that was ever written")}}}); err != nil {
			t.Fatal(err)
		}
		var corrupt *psych.CorruptionError
		if _, err := h.fail(key, time.Now()); !errors.As(err, &corrupt) {
			t.Errorf("%v", err)
		}
		if pos, err := h.tap.Store.Head(ctx, key); err != nil || pos.Seq != 1 {
			t.Errorf("%v, %v", pos, err)
		}
	})
}

// A reason of any length and any bytes is kept as far as it is for a person.
func TestFailReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: [{text: so}]")
		key := h.start("go")
		if err := h.rt.Fail(context.Background(), key, time.Now(), "\xff"+strings.Repeat("é", 100_000)); err != nil {
			t.Fatal(err)
		}
		if r := h.report(key).Exchanges[0].Reason; r != "\uFFFD"+strings.Repeat("é", 999) {
			t.Errorf("%.40q… of %d bytes", r, len(r))
		}
	})
}
