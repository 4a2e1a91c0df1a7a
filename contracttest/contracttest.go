// Package contracttest holds the suites that every adapter of a port of psych
// passes. A suite is a table of rules, each one sentence of the port's
// documentation and a check of it, so that it runs in go test (TestStore,
// TestBlobStore, TestWaker) and outside it ([Run]).
package contracttest

import (
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"maps"
	"slices"
	"testing"
)

// A Rule is one promise of a port's documentation and its check. Check returns
// nil, or an error that says what was promised and what happened. It isolates
// itself by tenants of its own, never by an empty backend, and may run beside
// other rules and other users of the backend.
type Rule[P any] struct {
	Name    string // method plus condition: "AppendStale"
	Promise string // one sentence
	Needs   Need   // what an endpoint must model for the rule to mean anything; "": nothing
	Check   func(ctx context.Context, f *Fixture[P]) error
}

// A Need is a property that some endpoints lack, emulators for the most part.
type Need string

// Needs of rules.
const (
	Contention Need = "contention" // of concurrent conditional writes exactly one succeeds
	Reopening  Need = "reopening"  // the backend outlives the process: Fixture.Reopen is set
)

// A Fixture is an open port and what a rule may use beside it.
type Fixture[P any] struct {
	Port P

	// Open returns a second, independent handle on the same backend, as another
	// process would have it. The fixture closes it in the end. Nil when there
	// is none: rules then use Port alone.
	Open func(ctx context.Context) (P, error)

	// Reopen closes every handle and opens the backend anew from what is
	// durable. Nil for an adapter whose backend ends with the process; such a
	// one declares that it lacks [Reopening].
	Reopen func(ctx context.Context) (P, error)
}

// Tenant returns a new tenant, unique beyond this process.
func (f *Fixture[P]) Tenant() string { return "contract-" + rand.Text() }

// second returns an independent handle where there is one, else Port.
func (f *Fixture[P]) second(ctx context.Context) (P, error) {
	if f.Open == nil {
		return f.Port, nil
	}
	p, err := f.Open(ctx)
	if err != nil {
		return p, fmt.Errorf("open a second handle: %w", err)
	}
	return p, nil
}

// reopen calls Reopen and makes what it returns the Port.
func (f *Fixture[P]) reopen(ctx context.Context) error {
	if f.Reopen == nil {
		return fmt.Errorf("the fixture has no Reopen: set it, or declare that the adapter lacks %q", Reopening)
	}
	p, err := f.Reopen(ctx)
	if err != nil {
		return fmt.Errorf("reopen: %w", err)
	}
	f.Port = p
	return nil
}

// A Result is the outcome of one Rule.
type Result struct {
	Rule, Promise string
	Skipped       string // the reason; "" if the rule was checked
	Err           error
}

// Options of a run of a suite. The zero value works: every rule is checked.
type Options struct {
	Lacks  []Need            // what this endpoint does not model: rules that need it are skipped
	Except map[string]string // rule name to the reason for which it is skipped; an unknown name is an error
	Only   []string          // if not empty, the rules that are run; an unknown name is an error
}

// Run checks rules on f, one after the other, and yields the result of each. A
// name in o that no rule has makes a Result with an error, before the others.
// It stops when ctx ends. o may be nil.
func Run[P any](ctx context.Context, rules []Rule[P], f *Fixture[P], o *Options) iter.Seq[Result] {
	return func(yield func(Result) bool) {
		for _, name := range unknownNames(rules, o) {
			if !yield(Result{Rule: name, Err: unknownName(name)}) {
				return
			}
		}
		for _, r := range rules {
			if ctx.Err() != nil {
				return
			}
			if !selected(r, o) {
				continue
			}
			res := Result{Rule: r.Name, Promise: r.Promise, Skipped: skipped(r, o)}
			if res.Skipped == "" {
				res.Err = r.Check(ctx, f)
			}
			if !yield(res) {
				return
			}
		}
	}
}

// test runs rules as subtests. open is called once a rule and cleans up with
// t.Cleanup.
func test[P any](t *testing.T, rules []Rule[P], open func(t *testing.T) *Fixture[P], o *Options) {
	t.Helper()
	for _, name := range unknownNames(rules, o) {
		t.Error(unknownName(name))
	}
	for _, r := range rules {
		if !selected(r, o) {
			continue
		}
		t.Run(r.Name, func(t *testing.T) {
			if reason := skipped(r, o); reason != "" {
				t.Skip(reason)
			}
			if err := r.Check(t.Context(), open(t)); err != nil {
				t.Errorf("%s\n%v", r.Promise, err)
			}
		})
	}
}

func unknownName(name string) error {
	return fmt.Errorf("contracttest: Options name the rule %q, which the suite does not have", name)
}

func unknownNames[P any](rules []Rule[P], o *Options) []string {
	if o == nil {
		return nil
	}
	var unknown []string
	for _, name := range slices.Concat(slices.Sorted(maps.Keys(o.Except)), o.Only) {
		if !slices.ContainsFunc(rules, func(r Rule[P]) bool { return r.Name == name }) {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

func selected[P any](r Rule[P], o *Options) bool {
	return o == nil || len(o.Only) == 0 || slices.Contains(o.Only, r.Name)
}

// skipped returns why r is not checked, or "".
func skipped[P any](r Rule[P], o *Options) string {
	if o == nil {
		return ""
	}
	if reason, ok := o.Except[r.Name]; ok {
		return "excepted: " + reason
	}
	if r.Needs != "" && slices.Contains(o.Lacks, r.Needs) {
		return fmt.Sprintf("the endpoint lacks %q", r.Needs)
	}
	return ""
}
