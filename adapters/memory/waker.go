package memory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/psych-go/psych-go/psych"
)

var _ psych.Waker = (*Waker)(nil)

// WakerOptions of a [Waker]. The zero value works.
type WakerOptions struct {
	// Max bounds the Runs that wait to be driven. 0 is 100,000.
	Max int

	// Logger is told of drives that failed; the sweep finds their Runs. Nil is
	// slog.Default().
	Logger *slog.Logger
}

// A Waker is a [psych.Waker] for drivers in the same process. It is a queue of
// distinct Runs, which [Waker.Serve] drives: a Run that waits already is not
// queued again, one that is being driven is driven once more afterwards, and
// no Run is driven twice at once. It starts no goroutine of its own.
type Waker struct {
	max    int
	logger *slog.Logger
	ready  chan struct{} // holds one token while something may wait

	mu      sync.Mutex
	waiting []psych.RunKey
	queued  map[psych.RunKey]struct{} // of waiting, as a set
	driving map[psych.RunKey]bool     // true: woken meanwhile
}

// NewWaker returns a Waker with nothing to drive. o may be nil.
func NewWaker(o *WakerOptions) *Waker {
	w := &Waker{
		max:     100_000,
		logger:  slog.Default(),
		ready:   make(chan struct{}, 1),
		queued:  make(map[psych.RunKey]struct{}),
		driving: make(map[psych.RunKey]bool),
	}
	if o != nil && o.Max > 0 {
		w.max = o.Max
	}
	if o != nil && o.Logger != nil {
		w.logger = o.Logger
	}
	return w
}

// Wake queues keys. An illegal key makes an error that matches
// [psych.ErrInvalid], one for which there is no room one that matches
// [psych.ErrUnavailable]; the other keys are queued all the same.
func (w *Waker) Wake(ctx context.Context, keys ...psych.RunKey) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memory: wake: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.signal()
	var errs []error
	for _, key := range keys {
		if err := key.Check(); err != nil {
			errs = append(errs, fmt.Errorf("memory: wake %s: %w", key, err))
			continue
		}
		if _, ok := w.driving[key]; ok {
			w.driving[key] = true
			continue
		}
		if _, ok := w.queued[key]; ok {
			continue
		}
		if len(w.waiting) >= w.max {
			errs = append(errs, fmt.Errorf("memory: wake %s: %d Runs wait already: %w", key, len(w.waiting), psych.ErrUnavailable))
			continue
		}
		w.push(key)
	}
	return errors.Join(errs...)
}

// Serve calls drive for each Run that is woken, for n Runs at once, until ctx
// ends; then it waits for the drives that run and returns the cause. What
// still waits is left for the next Serve. An error of drive is logged and the
// Run not driven again until it is woken. n < 1 is [psych.ErrInvalid].
func (w *Waker) Serve(ctx context.Context, n int, drive func(context.Context, psych.RunKey) error) error {
	if n < 1 {
		return fmt.Errorf("memory: serve %d Runs at once: want at least 1: %w", n, psych.ErrInvalid)
	}
	var workers sync.WaitGroup
	for range n {
		workers.Go(func() {
			for {
				key, err := w.next(ctx)
				if err != nil {
					return
				}
				if err := drive(ctx, key); err != nil {
					w.logger.WarnContext(ctx, "drive failed", "tenant", key.Tenant, "run", key.RunID, "error", err)
				}
				w.done(key)
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

// next waits for a Run and marks it as being driven.
func (w *Waker) next(ctx context.Context) (psych.RunKey, error) {
	for {
		if key, ok := w.pop(ctx); ok {
			return key, nil
		}
		select {
		case <-w.ready:
		case <-ctx.Done():
			return psych.RunKey{}, ctx.Err()
		}
	}
}

// pop takes the first Run, unless ctx has ended. It passes the token on if
// there is more to take, so that none is lost with a worker that leaves.
func (w *Waker) pop(ctx context.Context) (psych.RunKey, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.signal()
	if ctx.Err() != nil || len(w.waiting) == 0 {
		return psych.RunKey{}, false
	}
	key := w.waiting[0]
	w.waiting = w.waiting[1:]
	delete(w.queued, key)
	w.driving[key] = false
	return key, true
}

// done ends the drive of key, which goes to the end of the queue if it was
// woken meanwhile.
func (w *Waker) done(key psych.RunKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.signal()
	again := w.driving[key]
	delete(w.driving, key)
	if again {
		w.push(key)
	}
}

func (w *Waker) push(key psych.RunKey) {
	w.waiting = append(w.waiting, key)
	w.queued[key] = struct{}{}
}

// signal leaves the token if something waits.
func (w *Waker) signal() {
	if len(w.waiting) > 0 {
		select {
		case w.ready <- struct{}{}:
		default:
		}
	}
}
