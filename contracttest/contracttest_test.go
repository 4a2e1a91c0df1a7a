package contracttest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/psych"
)

// The port of these rules is the error that they return.
func rules() []contracttest.Rule[error] {
	check := func(_ context.Context, f *contracttest.Fixture[error]) error { return f.Port }
	return []contracttest.Rule[error]{
		{Name: "One", Promise: "One holds.", Check: check},
		{Name: "Two", Promise: "Two holds.", Needs: contracttest.Contention, Check: check},
		{Name: "Three", Promise: "Three holds.", Check: check},
	}
}

func TestRun(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		what string
		port error
		o    *contracttest.Options
		want string
	}{
		{"nil options", nil, nil, "One Two Three"},
		{"zero options", nil, &contracttest.Options{}, "One Two Three"},
		{"broken port", broken, nil, "One:broken Two:broken Three:broken"},
		{"lacking", broken, &contracttest.Options{Lacks: []contracttest.Need{contracttest.Contention}}, `One:broken Two(the endpoint lacks "contention") Three:broken`},
		{"excepting", broken, &contracttest.Options{Except: map[string]string{"Three": "why", "One": ""}}, "One(excepted: ) Two:broken Three(excepted: why)"},
		{"only", nil, &contracttest.Options{Only: []string{"Three", "One"}}, "One Three"},
		{"unknown names", nil, &contracttest.Options{Only: []string{"One", "Four"}, Except: map[string]string{"Zero": "why"}},
			`Zero:contracttest: Options name the rule "Zero", which the suite does not have Four:contracttest: Options name the rule "Four", which the suite does not have One`},
	} {
		var got []string
		for r := range contracttest.Run(t.Context(), rules(), &contracttest.Fixture[error]{Port: c.port}, c.o) {
			s := r.Rule
			if r.Err != nil {
				s += ":" + r.Err.Error()
			}
			if r.Skipped != "" {
				s += "(" + r.Skipped + ")"
			}
			got = append(got, s)
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s: got %s, want %s", c.what, got, c.want)
		}
	}
}

func TestRunStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for range contracttest.Run(ctx, rules(), &contracttest.Fixture[error]{}, nil) {
		n++
		cancel()
	}
	if n != 1 {
		t.Errorf("%d results after ctx ended with the first, want 1", n)
	}
	for r := range contracttest.Run(t.Context(), rules(), &contracttest.Fixture[error]{}, &contracttest.Options{Only: []string{"unknown", "One"}}) {
		if r.Err == nil {
			t.Errorf("the first result is %v, want the unknown name", r)
		}
		break
	}
}

// Rules run one after the other on one fixture, outside of go test.
func TestRunStoreRules(t *testing.T) {
	f := &contracttest.Fixture[psych.Store]{Port: memory.New(nil)}
	var skipped []string
	n := 0
	for r := range contracttest.Run(t.Context(), contracttest.StoreRules(), f, &contracttest.Options{Lacks: []contracttest.Need{contracttest.Reopening}}) {
		if n++; r.Err != nil {
			t.Errorf("%s: %s: %v", r.Rule, r.Promise, r.Err)
		}
		if r.Skipped != "" {
			skipped = append(skipped, r.Rule)
		}
	}
	if n != len(contracttest.StoreRules()) || !slices.Equal(skipped, []string{"LogReopened", "RunReopened", "DeleteRunReopened", "IndexReopened", "DocReopened", "RefReopened"}) {
		t.Errorf("%d results of %d rules, skipped: %v", n, len(contracttest.StoreRules()), skipped)
	}
	// Nothing is left in the index for a sweep to find.
	keys, _, err := f.Port.Due(t.Context(), time.Now().Add(100*psych.TombstoneLife), "", 100)
	if err != nil || len(keys) != 0 {
		t.Errorf("the rules left %d Runs behind (%v): %v", len(keys), err, keys)
	}
	refs, _, err := f.Port.DueRefs(t.Context(), time.Now().Add(100*psych.TombstoneLife), "", 100)
	if err != nil || len(refs) != 0 {
		t.Errorf("the rules left %d due refs behind (%v): %v", len(refs), err, refs)
	}
}

// A rule that needs what the fixture does not have says so.
func TestReopenMissing(t *testing.T) {
	f := &contracttest.Fixture[psych.Store]{Port: memory.New(nil)}
	for r := range contracttest.Run(t.Context(), contracttest.StoreRules(), f, &contracttest.Options{Only: []string{"LogReopened"}}) {
		if r.Err == nil || !strings.Contains(r.Err.Error(), "no Reopen") {
			t.Errorf("LogReopened without Reopen: %v, want an error that says so", r.Err)
		}
	}
}

func TestRuleNames(t *testing.T) {
	seen := make(map[string]bool)
	for _, r := range contracttest.StoreRules() {
		if seen[r.Name] || r.Name == "" || r.Check == nil || !strings.HasSuffix(r.Promise, ".") {
			t.Errorf("rule %q: want a name of its own, a sentence and a check; the sentence is %q", r.Name, r.Promise)
		}
		seen[r.Name] = true
	}
}

func TestTenantUnique(t *testing.T) {
	var f contracttest.Fixture[error]
	a, b := f.Tenant(), f.Tenant()
	if a == b || psych.CheckTenant(a) != nil {
		t.Errorf("tenants %q and %q: want two legal ones", a, b)
	}
}
