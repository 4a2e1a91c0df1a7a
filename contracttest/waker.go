package contracttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// Wakes is a [psych.Waker] with the side of its drivers, as the suite needs it.
type Wakes interface {
	psych.Waker

	// Take returns the wakes that have come, as often as they came and in any
	// order, and removes them. Where there is none it returns none: it need not
	// wait for one.
	Take(ctx context.Context) ([]psych.RunKey, error)
}

// WakerRules returns the rules of [psych.Waker]. Of what a Waker may do, which is
// to repeat a wake, to hand it over late and in any order, they accept all but
// that one is lost: here nothing is a reason for it. They take every wake that
// comes, so the backend must be the suite's own.
func WakerRules() []Rule[Wakes] {
	return []Rule[Wakes]{
		wakerRule("WakeDelivers", "Wake makes the Runs of the keys be driven, each by its key as it was given, and no other.", wakeDelivers),
		wakerRule("WakeMany", "Keys may be many: all of them are woken.", wakeMany),
		wakerRule("WakeNone", "Wake of no keys is no error.", wakeNone),
		wakerRule("WakeRepeated", "A key that stands twice in a call is no error, and is woken.", wakeRepeated),
		wakerRule("WakeAgain", "A Run that was woken, and taken to be driven, is woken again by the next Wake.", wakeAgain),
		wakerRule("WakeTenants", "Tenants are told apart, whatever their ids hold.", wakeTenants),
		wakerRule("WakeIllegalKey", "An illegal key is ErrInvalid and is not woken; the others are.", wakeIllegalKey),
		wakerRule("WakeContextEnded", "Wake with a context that has ended fails with its error.", wakeContextEnded),
		wakerRule("WakeKeepsNothing", "Wake keeps nothing of keys, which the caller may change as it returns.", wakeKeepsNothing),
		wakerRule("WakeConcurrent", "Wake may be called concurrently.", wakeConcurrent),
		wakerRule("WakeElsewhere", "What another handle on the backend wakes is driven too.", wakeElsewhere),
	}
}

// TestWaker runs [WakerRules] as subtests. open is called once a rule and cleans
// up with t.Cleanup. o may be nil.
func TestWaker(t *testing.T, open func(t *testing.T) *Fixture[Wakes], o *Options) {
	t.Helper()
	test(t, WakerRules(), open, o)
}

// A wakerCheck is what a rule works with: the port, and what was taken so far.
type wakerCheck struct {
	Wakes
	f       *Fixture[Wakes]
	tenants []string // of the rule: wakes of others are not its own
	taken   map[psych.RunKey]bool
}

func wakerRule(name, promise string, check func(ctx context.Context, w *wakerCheck) error) Rule[Wakes] {
	return Rule[Wakes]{Name: name, Promise: promise, Check: func(ctx context.Context, f *Fixture[Wakes]) error {
		return check(ctx, &wakerCheck{Wakes: f.Port, f: f, tenants: []string{f.Tenant()}, taken: map[psych.RunKey]bool{}})
	}}
}

// keys returns those of n new Runs of the rule's tenant.
func (w *wakerCheck) keys(n int) []psych.RunKey {
	keys := make([]psych.RunKey, n)
	for i := range keys {
		keys[i] = psych.RunKey{Tenant: w.tenants[0], RunID: newRunID()}
	}
	return keys
}

// take takes what has come of the rule's tenants, and reports whether it was
// anything.
func (w *wakerCheck) take(ctx context.Context) (bool, error) {
	keys, err := w.Take(ctx)
	if err != nil {
		return false, fmt.Errorf("method Take: %w", err)
	}
	for _, key := range keys {
		if slices.Contains(w.tenants, key.Tenant) {
			w.taken[key] = true
		}
	}
	return len(keys) > 0, nil
}

// expect takes wakes until all that are wanted have come, and says what has come
// beside them. It forgets all of them.
func (w *wakerCheck) expect(ctx context.Context, want ...psych.RunKey) error {
	missing := func() (left []psych.RunKey) {
		return slices.DeleteFunc(slices.Clone(want), func(key psych.RunKey) bool { return w.taken[key] })
	}
	pause := 5 * time.Millisecond
	for try := 0; ; try++ {
		some, err := w.take(ctx)
		if err != nil {
			return err
		}
		if some {
			try = 0
			continue
		}
		left := missing()
		if len(left) == 0 {
			break
		}
		if try == 12 {
			return fmt.Errorf("%d of %d wakes did not come, that of %q for one; of the rule's tenants came %d others", len(left), len(want), left[0], w.others(want))
		}
		select {
		case <-time.After(pause << try):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if n := w.others(want); n > 0 {
		return fmt.Errorf("%d Runs were woken that nobody asked for", n)
	}
	clear(w.taken)
	return nil
}

func (w *wakerCheck) others(want []psych.RunKey) int {
	n := 0
	for key := range w.taken {
		if !slices.Contains(want, key) {
			n++
		}
	}
	return n
}

// wake wakes keys and expects them.
func (w *wakerCheck) wake(ctx context.Context, keys ...psych.RunKey) error {
	if err := w.Wake(ctx, keys...); err != nil {
		return fmt.Errorf("method Wake of %d keys: %w", len(keys), err)
	}
	return w.expect(ctx, keys...)
}

func wakeDelivers(ctx context.Context, w *wakerCheck) error {
	for _, key := range w.keys(3) {
		if err := w.wake(ctx, key); err != nil {
			return err
		}
	}
	return w.wake(ctx, w.keys(3)...)
}

func wakeMany(ctx context.Context, w *wakerCheck) error { return w.wake(ctx, w.keys(127)...) }

func wakeNone(ctx context.Context, w *wakerCheck) error {
	if err := w.Wake(ctx); err != nil {
		return fmt.Errorf("method Wake: %w", err)
	}
	return w.expect(ctx)
}

func wakeRepeated(ctx context.Context, w *wakerCheck) error {
	keys := w.keys(15)
	return w.wake(ctx, slices.Concat(keys, keys[:1], keys)...)
}

func wakeAgain(ctx context.Context, w *wakerCheck) error {
	keys := w.keys(2)
	for range 3 {
		if err := w.wake(ctx, keys...); err != nil {
			return err
		}
	}
	return nil
}

func wakeTenants(ctx context.Context, w *wakerCheck) error {
	own := w.tenants[0]
	w.tenants = w.tenants[:0]
	id := newRunID()
	var keys []psych.RunKey
	for _, rest := range []string{"", "a", "A", "/a", "a/", "a b", "a\nb", "a\r\tb", "a\x00", "\x00", "\x1b\x7f", `"`, `\`, `\u0041`, "%2F", "..", "&<>", "\u2028", "\uFFFD", "\uFFFE\uFFFF", "é", "e\u0301", "🙂", strings.Repeat("x", 128-len(own))} {
		w.tenants = append(w.tenants, own+rest)
		keys = append(keys, psych.RunKey{Tenant: own + rest, RunID: id})
	}
	return w.wake(ctx, keys...)
}

func wakeIllegalKey(ctx context.Context, w *wakerCheck) error {
	tenant := w.tenants[0]
	for _, bad := range []psych.RunKey{
		{}, {Tenant: tenant}, {RunID: newRunID()}, {Tenant: tenant, RunID: "x"}, {Tenant: tenant, RunID: strings.ToUpper("a" + newRunID()[1:])},
		{Tenant: tenant, RunID: newRunID() + "0"}, {Tenant: tenant + "\xff", RunID: newRunID()}, {Tenant: strings.Repeat("x", 129), RunID: newRunID()},
	} {
		keys := w.keys(12)
		for _, at := range []int{0, 5, len(keys)} {
			if err := w.Wake(ctx, slices.Insert(slices.Clone(keys), at, bad)...); !errors.Is(err, psych.ErrInvalid) {
				return fmt.Errorf("method Wake with the key %q among others: got error %v, want one that matches ErrInvalid", bad, err)
			}
			if err := w.expect(ctx, keys...); err != nil {
				return fmt.Errorf("beside the key %q: %w", bad, err)
			}
		}
	}
	return nil
}

func wakeContextEnded(ctx context.Context, w *wakerCheck) error {
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := w.Wake(cancelled, w.keys(1)...); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("method Wake with a context that was cancelled: got error %v, want one that matches %v", err, context.Canceled)
	}
	late, cancel := context.WithDeadline(ctx, time.Unix(0, 0))
	defer cancel()
	if err := w.Wake(late, w.keys(12)...); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("method Wake with a context whose time was over: got error %v, want one that matches %v", err, context.DeadlineExceeded)
	}
	// The Waker is as before.
	return w.wake(ctx, w.keys(1)...)
}

func wakeKeepsNothing(ctx context.Context, w *wakerCheck) error {
	keys := w.keys(12)
	given := slices.Clone(keys)
	if err := w.Wake(ctx, given...); err != nil {
		return fmt.Errorf("method Wake: %w", err)
	}
	if !slices.Equal(given, keys) {
		return errors.New("method Wake changed the keys that it was given")
	}
	copy(given, w.keys(len(given)))
	return w.expect(ctx, keys...)
}

func wakeConcurrent(ctx context.Context, w *wakerCheck) error {
	keys := w.keys(96)
	var wakers sync.WaitGroup
	errs := make([]error, 8)
	begin := make(chan struct{})
	for i := range errs {
		wakers.Go(func() {
			<-begin
			mine := keys[12*i : 12*i+12]
			errs[i] = errors.Join(w.Wake(ctx, mine[:1]...), w.Wake(ctx, mine[1:]...))
		})
	}
	close(begin)
	wakers.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("method Wake: %w", err)
	}
	return w.expect(ctx, keys...)
}

func wakeElsewhere(ctx context.Context, w *wakerCheck) error {
	other, err := w.f.second(ctx)
	if err != nil {
		return err
	}
	keys := w.keys(12)
	if err := other.Wake(ctx, keys...); err != nil {
		return fmt.Errorf("method Wake by the second handle: %w", err)
	}
	return w.expect(ctx, keys...)
}
