package contracttest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/psych"
)

// A wakes is a sound waker, before whose methods a fake puts others.
type wakes struct {
	mu      sync.Mutex
	waiting []psych.RunKey

	wake func(ctx context.Context, keys ...psych.RunKey) error
	take func(ctx context.Context) ([]psych.RunKey, error)
	open func() contracttest.Wakes
}

func (w *wakes) Wake(ctx context.Context, keys ...psych.RunKey) error {
	if w.wake != nil {
		return w.wake(ctx, keys...)
	}
	return w.sound(ctx, keys...)
}

func (w *wakes) sound(ctx context.Context, keys ...psych.RunKey) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for _, key := range keys {
		if err := key.Check(); err != nil {
			errs = append(errs, err)
		} else {
			w.waiting = append(w.waiting, key)
		}
	}
	return errors.Join(errs...)
}

func (w *wakes) Take(ctx context.Context) ([]psych.RunKey, error) {
	if w.take != nil {
		return w.take(ctx)
	}
	return w.all(), nil
}

func (w *wakes) all() []psych.RunKey {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.waiting
	w.waiting = nil
	return all
}

// A waker may repeat, delay and reorder wakes; its backend may have another
// handle.
func TestWakerRulesPass(t *testing.T) {
	for name, may := range map[string]func(w *wakes){
		"sound":  func(*wakes) {},
		"handle": func(w *wakes) { w.open = func() contracttest.Wakes { return w } },
		"repeats": func(w *wakes) {
			w.take = func(context.Context) ([]psych.RunKey, error) { all := w.all(); return slices.Concat(all, all), nil }
		},
		"one at a time, the last one first, late": func(w *wakes) {
			asked := 0
			w.take = func(context.Context) ([]psych.RunKey, error) {
				w.mu.Lock()
				defer w.mu.Unlock()
				if asked++; asked%4 != 0 || len(w.waiting) == 0 {
					return nil, nil
				}
				last := w.waiting[len(w.waiting)-1:]
				w.waiting = w.waiting[:len(w.waiting)-1]
				return last, nil
			}
		},
		"others use it": func(w *wakes) {
			w.take = func(context.Context) ([]psych.RunKey, error) {
				all := w.all()
				if len(all) > 0 {
					all = append(all, psych.RunKey{Tenant: "other", RunID: strings.Repeat("0", 32)})
				}
				return all, nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, r := range contracttest.WakerRules() {
				synctest.Test(t, func(t *testing.T) {
					if err := r.Check(t.Context(), wakerFixture(may)); err != nil {
						t.Errorf("%s: %v", r.Name, err)
					}
				})
			}
		})
	}
}

func wakerFixture(change func(w *wakes)) *contracttest.Fixture[contracttest.Wakes] {
	w := &wakes{}
	change(w)
	f := &contracttest.Fixture[contracttest.Wakes]{Port: w}
	if w.open != nil {
		f.Open = func(context.Context) (contracttest.Wakes, error) { return w.open(), nil }
	}
	return f
}

// Each rule must catch the wakers that break it.
func TestWakerRulesCatch(t *testing.T) {
	fakes := make(map[string][]wakerFake)
	for _, f := range wakerFakes() {
		fakes[f.rule] = append(fakes[f.rule], f)
	}
	for _, r := range contracttest.WakerRules() {
		if len(fakes[r.Name]) == 0 {
			t.Errorf("rule %s has no fake that it must catch", r.Name)
		}
		for _, f := range fakes[r.Name] {
			t.Run(r.Name+"/"+f.what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					if r.Check(t.Context(), wakerFixture(f.breaks)) == nil {
						t.Errorf("%s was not caught: %s", f.what, r.Promise)
					}
				})
			})
		}
		delete(fakes, r.Name)
	}
	for name := range fakes {
		t.Errorf("there are fakes for %s, which is no rule", name)
	}
}

// A wakerFake breaks a waker so that rule must catch it.
type wakerFake struct {
	rule, what string
	breaks     func(w *wakes)
}

// given makes Wake wake what f makes of keys.
func given(f func(keys []psych.RunKey) []psych.RunKey) func(w *wakes) {
	return func(w *wakes) {
		w.wake = func(ctx context.Context, keys ...psych.RunKey) error { return w.sound(ctx, f(keys)...) }
	}
}

// tenanted makes Wake wake Runs of the tenants that f makes of theirs.
func tenanted(f func(tenant string) string) func(w *wakes) {
	return given(func(keys []psych.RunKey) []psych.RunKey {
		keys = slices.Clone(keys)
		for i := range keys {
			if keys[i].Check() == nil {
				keys[i].Tenant = f(keys[i].Tenant)
			}
		}
		return keys
	})
}

func wakerFakes() []wakerFake {
	dropped := func(of string) func(string) string {
		return func(tenant string) string { return strings.ReplaceAll(tenant, of, "") }
	}
	return []wakerFake{
		{"WakeDelivers", "loses every wake", given(func([]psych.RunKey) []psych.RunKey { return nil })},
		{"WakeDelivers", "loses the last of several", given(func(keys []psych.RunKey) []psych.RunKey { return keys[:max(1, len(keys)-1)] })},
		{"WakeDelivers", "wakes another Run", given(func(keys []psych.RunKey) []psych.RunKey {
			keys = slices.Clone(keys)
			for i := range keys {
				keys[i].RunID = strings.Repeat("0", 32)
			}
			return keys
		})},
		{"WakeDelivers", "wakes another Run too", given(func(keys []psych.RunKey) []psych.RunKey {
			return append(slices.Clone(keys), psych.RunKey{Tenant: keys[0].Tenant, RunID: strings.Repeat("0", 32)})
		})},
		{"WakeDelivers", "fails", func(w *wakes) {
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				return errors.Join(w.sound(ctx, keys...), errors.New("no"))
			}
		}},
		{"WakeDelivers", "can't be taken from", func(w *wakes) {
			w.take = func(context.Context) ([]psych.RunKey, error) { return nil, errors.New("no") }
		}},
		{"WakeMany", "wakes the first ten", given(func(keys []psych.RunKey) []psych.RunKey { return keys[:min(10, len(keys))] })},
		{"WakeMany", "wakes whole batches", given(func(keys []psych.RunKey) []psych.RunKey { return keys[:len(keys)/10*10] })},
		{"WakeMany", "refuses many", func(w *wakes) {
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				if len(keys) > 100 {
					return psych.ErrTooLarge
				}
				return w.sound(ctx, keys...)
			}
		}},
		{"WakeNone", "refuses an empty batch", func(w *wakes) {
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				if len(keys) == 0 {
					return psych.ErrInvalid
				}
				return w.sound(ctx, keys...)
			}
		}},
		{"WakeRepeated", "refuses keys that are not distinct", func(w *wakes) {
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				seen := map[psych.RunKey]bool{}
				for _, key := range keys {
					if seen[key] {
						return psych.ErrInvalid
					}
					seen[key] = true
				}
				return w.sound(ctx, keys...)
			}
		}},
		{"WakeRepeated", "drops keys that stand twice", given(func(keys []psych.RunKey) []psych.RunKey {
			n := map[psych.RunKey]int{}
			for _, key := range keys {
				n[key]++
			}
			return slices.DeleteFunc(slices.Clone(keys), func(key psych.RunKey) bool { return n[key] > 1 })
		})},
		{"WakeAgain", "takes a second wake for the first", func(w *wakes) {
			seen := map[psych.RunKey]bool{}
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				keys = slices.DeleteFunc(slices.Clone(keys), func(key psych.RunKey) bool { return seen[key] })
				for _, key := range keys {
					seen[key] = true
				}
				return w.sound(ctx, keys...)
			}
		}},
		{"WakeAgain", "takes a third wake for the second", func(w *wakes) {
			seen := map[psych.RunKey]int{}
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				keys = slices.DeleteFunc(slices.Clone(keys), func(key psych.RunKey) bool { seen[key]++; return seen[key] > 2 })
				return w.sound(ctx, keys...)
			}
		}},
		{"WakeTenants", "drops NULs", tenanted(dropped("\x00"))},
		{"WakeTenants", "drops control characters", tenanted(dropped("\x1b"))},
		{"WakeTenants", "replaces what a message may not hold", tenanted(func(tenant string) string { return strings.ReplaceAll(tenant, "\uFFFF", "\uFFFD") })},
		{"WakeTenants", "lowers letters", tenanted(strings.ToLower)},
		{"WakeTenants", "trims spaces", tenanted(func(tenant string) string { return strings.ReplaceAll(tenant, "\n", " ") })},
		{"WakeTenants", "composes accents", tenanted(func(tenant string) string { return strings.ReplaceAll(tenant, "e\u0301", "é") })},
		{"WakeTenants", "unescapes", tenanted(func(tenant string) string { return strings.ReplaceAll(tenant, `\u0041`, "A") })},
		{"WakeTenants", "cuts long ones", tenanted(func(tenant string) string { return tenant[:min(127, len(tenant))] })},
		{"WakeTenants", "keys by Run alone", func(w *wakes) {
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				seen := map[string]bool{}
				keys = slices.DeleteFunc(slices.Clone(keys), func(key psych.RunKey) bool { was := seen[key.RunID]; seen[key.RunID] = true; return was })
				return w.sound(ctx, keys...)
			}
		}},
		{"WakeIllegalKey", "is silent about it", func(w *wakes) {
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error { w.sound(ctx, keys...); return nil }
		}},
		{"WakeIllegalKey", "says something else", func(w *wakes) {
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				if err := w.sound(ctx, keys...); err != nil {
					return fmt.Errorf("bad request: %v", err)
				}
				return nil
			}
		}},
		{"WakeIllegalKey", "stops at it", func(w *wakes) {
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				for _, key := range keys {
					if err := w.sound(ctx, key); err != nil {
						return err
					}
				}
				return nil
			}
		}},
		{"WakeIllegalKey", "refuses the whole", func(w *wakes) {
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				for _, key := range keys {
					if err := key.Check(); err != nil {
						return err
					}
				}
				return w.sound(ctx, keys...)
			}
		}},
		{"WakeIllegalKey", "wakes it too", func(w *wakes) {
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				err := w.sound(ctx, keys...)
				w.mu.Lock()
				defer w.mu.Unlock()
				w.waiting = append(w.waiting, keys...)
				return err
			}
		}},
		{"WakeIllegalKey", "looks at the Run's id alone", func(w *wakes) {
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				keys = slices.Clone(keys)
				for i := range keys {
					if psych.CheckTenant(keys[i].Tenant) != nil {
						keys[i].Tenant = "t"
					}
				}
				return w.sound(ctx, keys...)
			}
		}},
		{"WakeContextEnded", "does not look at it", func(w *wakes) {
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				return w.sound(context.WithoutCancel(ctx), keys...)
			}
		}},
		{"WakeContextEnded", "says something else", func(w *wakes) {
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				if ctx.Err() != nil {
					return psych.ErrUnavailable
				}
				return w.sound(ctx, keys...)
			}
		}},
		{"WakeContextEnded", "always says that it was cancelled", func(w *wakes) {
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				if ctx.Err() != nil {
					return context.Canceled
				}
				return w.sound(ctx, keys...)
			}
		}},
		{"WakeContextEnded", "is broken afterwards", func(w *wakes) {
			ended := false
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				if ended = ended || ctx.Err() != nil; ended {
					return context.Cause(ctx)
				}
				return w.sound(ctx, keys...)
			}
		}},
		{"WakeKeepsNothing", "keeps the slice", func(w *wakes) {
			var kept [][]psych.RunKey
			w.wake = func(_ context.Context, keys ...psych.RunKey) error { kept = append(kept, keys); return nil }
			w.take = func(context.Context) ([]psych.RunKey, error) {
				all := slices.Concat(kept...)
				kept = nil
				return all, nil
			}
		}},
		{"WakeKeepsNothing", "sorts what it was given", func(w *wakes) {
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				slices.SortFunc(keys, func(a, b psych.RunKey) int { return strings.Compare(a.RunID, b.RunID) })
				return w.sound(ctx, keys...)
			}
		}},
		{"WakeConcurrent", "drops what comes while it works", func(w *wakes) {
			var busy sync.Mutex
			w.wake = func(ctx context.Context, keys ...psych.RunKey) error {
				if !busy.TryLock() {
					return nil
				}
				defer busy.Unlock()
				synctest.Wait() // until the others stand still
				return w.sound(ctx, keys...)
			}
		}},
		{"WakeElsewhere", "keeps its wakes to itself", func(w *wakes) { w.open = func() contracttest.Wakes { return &wakes{} } }},
	}
}
