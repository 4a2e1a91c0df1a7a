package memory_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/psych"
)

// A served is a Waker with drivers that note what they drive.
type served struct {
	*memory.Waker
	mu     sync.Mutex
	driven []psych.RunKey
}

func (s *served) drive(_ context.Context, key psych.RunKey) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.driven = append(s.driven, key)
	return nil
}

func (s *served) Take(context.Context) ([]psych.RunKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.driven
	s.driven = nil
	return all, nil
}

func TestWakerContract(t *testing.T) {
	contracttest.TestWaker(t, func(t *testing.T) *contracttest.Fixture[contracttest.Wakes] {
		s := &served{Waker: memory.NewWaker(nil)}
		ctx, cancel := context.WithCancel(t.Context())
		var drivers sync.WaitGroup
		drivers.Go(func() { s.Serve(ctx, 4, s.drive) })
		t.Cleanup(func() {
			cancel()
			drivers.Wait()
		})
		return &contracttest.Fixture[contracttest.Wakes]{Port: s}
	}, nil)
}

func wakeKey(n int) psych.RunKey { return psych.RunKey{Tenant: "t", RunID: fmt.Sprintf("%032x", n)} }

// serve runs Serve until everything waits, and returns what was driven.
func serve(t *testing.T, w *memory.Waker, n int) []psych.RunKey {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	var driven []psych.RunKey
	ended := make(chan error, 1)
	go func() {
		ended <- w.Serve(ctx, n, func(_ context.Context, key psych.RunKey) error {
			mu.Lock()
			defer mu.Unlock()
			driven = append(driven, key)
			return nil
		})
	}()
	synctest.Wait()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Serve returned %v, want context.Canceled", err)
	}
	return driven
}

func TestWakerCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := memory.NewWaker(nil)
		for range 3 {
			if err := w.Wake(t.Context(), wakeKey(1), wakeKey(2), wakeKey(1)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Wake(t.Context()); err != nil {
			t.Errorf("Wake of nothing: %v", err)
		}
		if got, want := serve(t, w, 1), []psych.RunKey{wakeKey(1), wakeKey(2)}; !slices.Equal(got, want) {
			t.Errorf("driven: %v, want each once, in order: %v", got, want)
		}
		// A Run that was driven can be woken again.
		if err := w.Wake(t.Context(), wakeKey(1)); err != nil {
			t.Fatal(err)
		}
		if got := serve(t, w, 4); !slices.Equal(got, []psych.RunKey{wakeKey(1)}) {
			t.Errorf("driven the second time: %v", got)
		}
	})
}

// A wake during a drive may be of what the drive no longer sees.
func TestWakerWokenWhileDriven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := memory.NewWaker(nil)
		ctx, cancel := context.WithCancel(t.Context())
		var drives, at int
		var most atomic.Int32
		proceed := make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			ended <- w.Serve(ctx, 4, func(context.Context, psych.RunKey) error {
				drives++ // no lock: the race detector sees two drives of one Run
				at++
				most.Store(max(most.Load(), int32(at)))
				<-proceed
				at--
				return nil
			})
		}()
		for range 3 {
			if err := w.Wake(ctx, wakeKey(1)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if drives != 1 {
			t.Errorf("%d drives began while the first one ran, want 1", drives)
		}
		proceed <- struct{}{}
		synctest.Wait()
		if drives != 2 {
			t.Errorf("%d drives after the first one ended, want 2: the Run was woken meanwhile", drives)
		}
		proceed <- struct{}{}
		synctest.Wait()
		if drives != 2 || most.Load() != 1 {
			t.Errorf("%d drives, %d at once, want 2, one after the other", drives, most.Load())
		}
		cancel()
		<-ended
	})
}

func TestWakerServesInParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := memory.NewWaker(nil)
		ctx, cancel := context.WithCancel(t.Context())
		var running atomic.Int32
		proceed := make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			ended <- w.Serve(ctx, 3, func(context.Context, psych.RunKey) error {
				running.Add(1)
				<-proceed
				running.Add(-1)
				return nil
			})
		}()
		for i := range 5 {
			if err := w.Wake(ctx, wakeKey(i)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := running.Load(); n != 3 {
			t.Errorf("%d Runs are driven at once, want 3", n)
		}
		cancel()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Errorf("Serve returned (%v) while drives run", err)
		default:
		}
		close(proceed)
		<-ended
		// What still waits is left for the next one.
		if got := serve(t, w, 1); len(got) != 2 {
			t.Errorf("%d Runs were left, want 2", len(got))
		}
	})
}

func TestWakerErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := memory.NewWaker(&memory.WakerOptions{Max: 2, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		bad := psych.RunKey{Tenant: "t", RunID: "bad"}
		err := w.Wake(t.Context(), bad, wakeKey(1), wakeKey(2), wakeKey(3), wakeKey(1))
		if !errors.Is(err, psych.ErrInvalid) || !errors.Is(err, psych.ErrUnavailable) {
			t.Errorf("Wake of an illegal key and of one too many: got error %v, want ErrInvalid and ErrUnavailable", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.Wake(ended, wakeKey(4)); !errors.Is(err, context.Canceled) {
			t.Errorf("Wake with a context that has ended: got error %v", err)
		}
		if err := w.Serve(t.Context(), 0, nil); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("Serve with no worker: got error %v, want ErrInvalid", err)
		}
		if err := w.Serve(ended, 1, func(context.Context, psych.RunKey) error { t.Error("driven"); return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("Serve with a context that has ended: got error %v", err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var driven []psych.RunKey
		done := make(chan error, 1)
		go func() {
			done <- w.Serve(ctx, 1, func(_ context.Context, key psych.RunKey) error {
				driven = append(driven, key)
				return errors.New("no luck")
			})
		}()
		synctest.Wait()
		cancel()
		<-done
		if want := []psych.RunKey{wakeKey(1), wakeKey(2)}; !slices.Equal(driven, want) {
			t.Errorf("driven: %v, want %v: a failed drive stops nothing and is not repeated", driven, want)
		}
		if n := strings.Count(log.String(), "no luck"); n != 2 {
			t.Errorf("%d failures were logged, want 2:\n%s", n, &log)
		}
	})
}

// Many wakers and drivers: each Run is driven after its last wake.
func TestWakerStorm(t *testing.T) {
	w := memory.NewWaker(nil)
	ctx, cancel := context.WithCancel(t.Context())
	const runs, wakes = 20, 200
	var posted, seen [runs]atomic.Int32
	var left atomic.Int32
	left.Store(runs)
	served := make(chan error, 1)
	go func() {
		served <- w.Serve(ctx, 4, func(_ context.Context, key psych.RunKey) error {
			var i int
			if _, err := fmt.Sscanf(key.RunID, "%x", &i); err != nil {
				return err
			}
			if n := posted[i].Load(); n != seen[i].Swap(n) && n == wakes {
				if left.Add(-1) == 0 {
					cancel()
				}
			}
			return nil
		})
	}()
	var g sync.WaitGroup
	for i := range runs {
		g.Go(func() {
			for range wakes {
				posted[i].Add(1)
				if err := w.Wake(t.Context(), wakeKey(i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	g.Wait()
	<-served // the test's own time limit says that a wake was lost
	if n := left.Load(); n != 0 {
		t.Errorf("%d Runs were not driven after their last wake", n)
	}
}
