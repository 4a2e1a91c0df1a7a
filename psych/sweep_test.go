package psych_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/psych"
)

// sweep goes over everything that is due and returns whom it woke.
func (h *harness) sweep() []psych.RunKey {
	h.t.Helper()
	var mu sync.Mutex
	var woken []psych.RunKey
	o := h.o
	o.Waker = wakerFunc(func(keys ...psych.RunKey) error {
		mu.Lock()
		defer mu.Unlock()
		woken = append(woken, keys...)
		return nil
	})
	rt, err := psych.New(h.tap, &o)
	if err != nil {
		h.t.Fatal(err)
	}
	n, next, err := rt.Sweep(context.Background(), "")
	if err != nil || next != "" || n != len(woken) {
		h.t.Fatalf("sweep: %d woken of %d, %q, %v", n, len(woken), next, err)
	}
	return woken
}

func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: [{text: a}]")
		key := h.start("go") // whose wake is lost
		if woken := h.sweep(); len(woken) != 0 {
			t.Errorf("woken within the grace of a post: %v", woken)
		}
		time.Sleep(31 * time.Second)
		if woken := h.sweep(); fmt.Sprint(woken) != fmt.Sprint([]psych.RunKey{key}) {
			t.Errorf("woken: %v", woken)
		}
		if woken := h.sweep(); len(woken) != 0 {
			t.Errorf("a backlog multiplies: %v", woken)
		}
		time.Sleep(2 * time.Minute) // that wake was lost too
		if woken := h.sweep(); len(woken) != 1 {
			t.Errorf("woken: %v", woken)
		}
		// A worker that died is found when its lease is over.
		killer(h, 2, true) // after its claim and first append
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		h.rt.Drive(ctx, key, nil)
		cancel()
		h.tap.hook(nil, nil)
		if woken := h.sweep(); len(woken) != 0 {
			t.Errorf("woken under a lease: %v", woken)
		}
		time.Sleep(61 * time.Second)
		if woken := h.sweep(); len(woken) != 1 {
			t.Errorf("not woken after the lease: %v", woken)
		}
		h.restart()
		h.drive(key)
		time.Sleep(time.Hour)
		if woken := h.sweep(); len(woken) != 0 {
			t.Errorf("a finished Run was woken: %v", woken)
		}
	})
}

func TestSweepWithoutWaker(t *testing.T) {
	h := newHarness(t, "steps: [{text: a}]")
	if _, _, err := h.rt.Sweep(context.Background(), ""); !errors.Is(err, psych.ErrInvalid) {
		t.Errorf("%v", err)
	}
}

func TestRetentionAndDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		h := newHarness(t, "steps: [{calls: [{name: sized, arguments: {n: 200000}}]}, {text: a}]", sized)
		h.o.Retention = 24 * time.Hour
		h.restart()
		key := h.start("go")
		h.drive(key)
		blob := psych.BlobKey{Tenant: "t", RunID: key.RunID, CallID: "c1_1.result.1"}
		if _, err := h.blobs.Stat(ctx, blob); err != nil {
			t.Fatal(err)
		}
		time.Sleep(25 * time.Hour)
		h.sweep()
		if _, err := h.blobs.Stat(ctx, blob); !errors.Is(err, psych.ErrNotFound) {
			t.Errorf("the blob: %v", err)
		}
		for name, err := range map[string]error{
			"report": second(h.rt.Report(ctx, key)),
			"drive":  second(h.rt.Drive(ctx, key, nil)),
			"send":   h.rt.Send(ctx, key, psych.ClientMessage{Text: "x"}),
			"output": second(h.rt.Output(ctx, key, "out_c1_1", psych.OutputQuery{})),
		} {
			if !errors.Is(err, psych.ErrNotFound) {
				t.Errorf("%s of a deleted Run: %v", name, err)
			}
		}
		v, err := h.rt.Publish(ctx, "t", &h.spec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.rt.Start(ctx, psych.Scope{Tenant: "t"}, v.Hash, psych.ClientMessage{ID: "m1", Text: "go"}); !errors.Is(err, psych.ErrNotFound) {
			t.Errorf("created again: %v", err)
		}
		if err := h.rt.Delete(ctx, key); err != nil {
			t.Errorf("deleted again: %v", err)
		}
		// What a late worker wrote is purged after the longest lease.
		if _, err := h.blobs.Put(ctx, blob, "text/plain", strings.NewReader("late")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(psych.MaxLease + time.Second)
		h.sweep()
		if _, err := h.blobs.Stat(ctx, blob); !errors.Is(err, psych.ErrNotFound) {
			t.Errorf("the late blob: %v", err)
		}
		if err := h.rt.Delete(ctx, psych.RunKey{Tenant: "t", RunID: strings.Repeat("a", 32)}); err != nil {
			t.Errorf("deleting a Run that never was: %v", err)
		}
	})
}

// A Run that is deleted while it is driven stops being driven, and leaves
// nothing that anybody can read.
func TestDeletedWhileDriven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nap := (&sleeper{}).tool("nap", nil)
		h := newHarness(t, "steps: [{calls: [{name: nap, arguments: {ms: 1000}}]}, {text: a}]", nap)
		key := h.start("go")
		go func() {
			time.Sleep(500 * time.Millisecond)
			if err := h.rt.Delete(context.Background(), key); err != nil {
				t.Error(err)
			}
		}()
		if out, err := h.rt.Drive(context.Background(), key, nil); err == nil {
			t.Errorf("driving went on: %v", out)
		}
		if _, err := h.rt.Report(context.Background(), key); !errors.Is(err, psych.ErrNotFound) {
			t.Errorf("report: %v", err)
		}
	})
}

// The in-process Waker drives what is posted.
func TestMemoryWakerDrives(t *testing.T) {
	h := newHarness(t, "steps: [{text: a}]")
	w := memory.NewWaker(nil)
	h.o.Waker = w
	h.restart()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	driven := make(chan psych.Outcome, 10)
	go func() {
		done <- w.Serve(ctx, 2, func(ctx context.Context, key psych.RunKey) error {
			out, err := h.rt.Drive(ctx, key, nil)
			driven <- out
			return err
		})
	}()
	key := h.start("go")
	if out := <-driven; out != psych.Closed {
		t.Errorf("driven: %v", out)
	}
	cancel()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if rep := h.report(key); rep.Status != psych.StatusCompleted {
		t.Errorf("%s", rep.Status)
	}
}
