package lambda_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/psych-go/psych-go/adapters/memory"
	psqs "github.com/psych-go/psych-go/adapters/sqs"
	"github.com/psych-go/psych-go/lambda"
	"github.com/psych-go/psych-go/psych"
)

func TestOpen(t *testing.T) {
	open := func(env map[string]string, register ...func(*psych.Backends)) (*lambda.Ports, error) {
		var b psych.Backends
		for _, r := range register {
			r(&b)
		}
		return lambda.Open(context.Background(), &b, func(name string) string { return env[name] }, nil)
	}
	env := map[string]string{"PSYCH_STORE_URL": "mem://", "PSYCH_BLOB_URL": "mem://", "PSYCH_WAKER_URL": "sqs:http://127.0.0.1:9/000000000000/q", "PSYCH_SECRETS_URL": "none:", "PSYCH_RETENTION_DAYS": "3"}
	p, err := open(env, memory.Register, psqs.Register)
	if err != nil || p.Returner == nil || p.Store == nil {
		t.Fatalf("%+v, %v", p, err)
	}
	info, err := p.Store.GetRun(context.Background(), begin(t, p.Runtime)) // whose wake is lost
	if err != nil || !info.ExpiresAt.Equal(info.CreatedAt.Add(72*time.Hour)) {
		t.Errorf("%+v, %v", info, err)
	}
	// A port that nothing is registered for is not opened.
	if p, err := open(env, memory.Register); err != nil || p.Returner != nil {
		t.Errorf("%+v, %v", p, err)
	}
	for name, value := range map[string]string{
		"PSYCH_STORE_URL": "", "PSYCH_BLOB_URL": "s3://b", "PSYCH_WAKER_URL": "sqs:q", "PSYCH_RETENTION_DAYS": "-1",
	} {
		was := env[name]
		env[name] = value
		if _, err := open(env, memory.Register, psqs.Register); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("%s=%s: %v", name, value, err)
		}
		env[name] = was
	}
	policy := filepath.Join(t.TempDir(), "policy.json")
	env["PSYCH_POLICY_FILE"] = policy
	for text, want := range map[string]error{"": psych.ErrAccessDenied, "{": psych.ErrInvalid, `{"others": {"allow": []}}`: nil} {
		if text != "" {
			if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := open(env, memory.Register, psqs.Register); !errors.Is(err, want) {
			t.Errorf("the policy %q: %v, want %v", text, err, want)
		}
		os.Remove(policy)
	}
	delete(env, "PSYCH_POLICY_FILE")
	env["PSYCH_RETENTION_DAYS"] = "36501"
	if _, err := open(env, memory.Register, psqs.Register); !errors.Is(err, psych.ErrInvalid) {
		t.Errorf("%v", err)
	}
}
