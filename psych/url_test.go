package psych_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
)

type closingStore struct {
	psych.Store
	closed *int
}

func (s closingStore) Close() error        { *s.closed++; return nil }
func (s closingStore) Unwrap() psych.Store { return s.Store }

func TestFromEnv(t *testing.T) {
	ctx := context.Background()
	var b psych.Backends
	memory.Register(&b)
	script.Register(&b)
	closed := 0
	b.Stores.Handle("closing", func(context.Context, *url.URL) (psych.Store, error) {
		return closingStore{memory.New(nil), &closed}, nil
	})
	env := func(vars ...string) func(string) string {
		return func(name string) string {
			for i := 0; i < len(vars); i += 2 {
				if vars[i] == name {
					return vars[i+1]
				}
			}
			return ""
		}
	}
	for name, c := range map[string]struct {
		vars []string
		want string
	}{
		"no store":             {nil, "PSYCH_STORE_URL is not set"},
		"an unknown scheme":    {[]string{"PSYCH_STORE_URL", "dynamite://t"}, `"closing:", "mem:"`},
		"no URL":               {[]string{"PSYCH_STORE_URL", "table"}, "is no URL"},
		"an unknown param":     {[]string{"PSYCH_STORE_URL", "mem://?x=1"}, `"x"`},
		"a malformed param":    {[]string{"PSYCH_STORE_URL", "mem://?x=%zz"}, "PSYCH_STORE_URL"},
		"a bad blob store":     {[]string{"PSYCH_STORE_URL", "closing://", "PSYCH_BLOB_URL", "s4://b"}, "PSYCH_BLOB_URL"},
		"an unknown waker":     {[]string{"PSYCH_STORE_URL", "closing://", "PSYCH_WAKER_URL", "sqs://q"}, "none is registered"},
		"a semicolon in query": {[]string{"PSYCH_STORE_URL", "mem://?a;b"}, "PSYCH_STORE_URL"},
	} {
		if _, err := b.FromEnv(ctx, env(c.vars...), nil, nil); !errors.Is(err, psych.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error that says %q", name, err, c.want)
		}
	}
	if closed != 2 {
		t.Errorf("%d stores were closed, of 2 that were opened in vain", closed)
	}
	rt, err := b.FromEnv(ctx, env("PSYCH_STORE_URL", "closing://", "PSYCH_BLOB_URL", "mem://", "PSYCH_MODEL", "script:testdata/no-such.yaml"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := rt.Ask(ctx, psych.Scope{Tenant: "t"}, &psych.Spec{Name: "n"}, "hi", nil)
	if err == nil || !strings.Contains(a.Report.Exchanges[0].Reason, "no-such.yaml") {
		t.Errorf("a model that can't be opened: %v", err)
	}
	if err := rt.Close(); err != nil || closed != 3 {
		t.Errorf("Close: %v, %d", err, closed)
	}
}

func TestAs(t *testing.T) {
	type initer = interface{ Close() error }
	n := 0
	wrapped := &tap{Store: closingStore{memory.New(nil), &n}}
	if c, ok := psych.As[initer](wrapped); !ok || c.Close() != nil || n != 1 {
		t.Errorf("an ability behind a wrapper was not found: %v", ok)
	}
	if _, ok := psych.As[psych.Initer](psych.Store(wrapped)); ok {
		t.Error("an ability was found that nobody has")
	}
}
