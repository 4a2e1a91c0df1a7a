package psych

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

const mcpURL = "https://mcp.example.com/mcp"

func TestEnvSecrets(t *testing.T) {
	vars := map[string]string{
		"PSYCH_SECRET_github": "ghp_s3cr3t-1",
		"PSYCH_SECRET_A1":     `{"headers": {"X-Key": "s3cr3t-2"}}`,
		"PSYCH_SECRET_A1_URL": "https://mcp.example.com/a  http://127.0.0.1:9000/",
		"PSYCH_SECRET_BAD":    "s3cr3t-3", "PSYCH_SECRET_BAD_URL": "https://u:s3cr3t-4@mcp.example.com/",
		"PSYCH_SECRET_BLANK": "s3cr3t-5", "PSYCH_SECRET_BLANK_URL": " ",
		"PSYCH_SECRET_EMPTY": "",
		"PSYCH_SECRET_":      "s3cr3t-6", "PSYCH_SECRET_a.b": "s3cr3t-7",
		"AWS_SECRET_ACCESS_KEY": "s3cr3t-8", "X_github": "s3cr3t-9",
	}
	e := EnvSecrets(func(name string) string { return vars[name] }, "")
	for _, c := range []struct {
		name, url string
		want      string
		err       error
		says      string
	}{
		{"github", mcpURL, "ghp_s3cr3t-1", nil, ""},
		{"github", "", "ghp_s3cr3t-1", nil, ""},
		{"A1", "https://mcp.example.com/a/mcp", `{"headers": {"X-Key": "s3cr3t-2"}}`, nil, ""},
		{"A1", "http://127.0.0.1:9000/mcp", `{"headers": {"X-Key": "s3cr3t-2"}}`, nil, ""},
		{"A1", "https://mcp.example.com/ab", "", ErrAccessDenied, "PSYCH_SECRET_A1_URL"},
		{"A1", "https://mcp.example.com/a/../b", "", ErrAccessDenied, "PSYCH_SECRET_A1_URL"},
		{"A1", "https://evil.example/a", "", ErrAccessDenied, "PSYCH_SECRET_A1_URL"},
		{"A1", "", "", ErrAccessDenied, "command"},
		{"BAD", "https://mcp.example.com/", "", ErrAccessDenied, "URL 1 in the environment variable PSYCH_SECRET_BAD_URL"},
		{"BLANK", mcpURL, "", ErrAccessDenied, "PSYCH_SECRET_BLANK_URL"},
		{"EMPTY", mcpURL, "", ErrNotFound, "PSYCH_SECRET_EMPTY is not set"},
		{"GITHUB", mcpURL, "", ErrNotFound, "PSYCH_SECRET_GITHUB is not set"},
		{"", mcpURL, "", ErrNotFound, "[A-Za-z0-9_]"},
		{"a.b", mcpURL, "", ErrNotFound, "[A-Za-z0-9_]"},
		{"é", mcpURL, "", ErrNotFound, "[A-Za-z0-9_]"},
		{"A1_URL", mcpURL, "", ErrNotFound, "_URL"}, // no credential, though a variable
		{"A1_url", mcpURL, "", ErrNotFound, "_URL"},
	} {
		s, err := e.Secret(t.Context(), SecretRequest{Scope: Scope{Tenant: "t"}, Name: c.name, URL: c.url})
		if c.err == nil && (err != nil || s.Value != c.want || len(s.Identity) < 16) {
			t.Errorf("%q for %q: %v, %v", c.name, c.url, s, err)
		}
		if c.err != nil && (!errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "s3cr3t") || s != Secret{}) {
			t.Errorf("%q for %q: %v, want %v that says %q", c.name, c.url, err, c.err, c.says)
		}
		if shown := fmt.Sprintf("%v %+v %#v %s", s, s, s, s); strings.Contains(shown, "s3cr3t") {
			t.Errorf("%q shows its value: %s", c.name, shown)
		}
	}
}

// An Identity is of name and value alone: it is the same in another process,
// and another where the value changed.
func TestEnvSecretsIdentity(t *testing.T) {
	vars := map[string]string{"PSYCH_SECRET_A": "one", "PSYCH_SECRET_B": "one", "X_A": "one"}
	getenv := func(name string) string { return vars[name] }
	identity := func(s Secrets, name, stale string) string {
		t.Helper()
		got, err := s.Secret(t.Context(), SecretRequest{Name: name, URL: mcpURL, Stale: stale})
		if err != nil {
			t.Fatal(err)
		}
		return got.Identity
	}
	e := EnvSecrets(getenv, "")
	a := identity(e, "A", "")
	if a != identity(EnvSecrets(getenv, ""), "A", "") || a != identity(EnvSecrets(getenv, "X_"), "A", "") || a != identity(e, "A", a) {
		t.Error("the same credential has two identities")
	}
	// Stored beside catalogues, it must not change from release to release.
	if want := "8704664228eeac590fe618c1de541275"; a != want {
		t.Errorf("the identity is %s, was %s", a, want)
	}
	if b := identity(e, "B", ""); a == b {
		t.Error("two credentials have one identity")
	}
	vars["PSYCH_SECRET_A"] = "two"
	if got := identity(e, "A", a); got == a {
		t.Error("the new value has the identity of the old one")
	}
	vars["PSYCH_SECRET_A"] = ""
	if _, err := e.Secret(t.Context(), SecretRequest{Name: "A", URL: mcpURL}); !errors.Is(err, ErrNotFound) {
		t.Errorf("one that was taken away: %v", err)
	}
}

func TestEnvSecretsURL(t *testing.T) {
	var b Backends
	RegisterEnv(&b, func(name string) string {
		return map[string]string{"PSYCH_SECRET_A": "default", "X_A": "other", "A": "bare"}[name]
	})
	for url, want := range map[string]string{"env://": "default", "env://?prefix=X_": "other", "env:": "default", "ENV://": "default"} {
		s, err := b.Secrets.Open(t.Context(), url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if got, err := s.Secret(t.Context(), SecretRequest{Name: "A", URL: mcpURL}); err != nil || got.Value != want {
			t.Errorf("%s: %q, %v; want %q", url, got.Value, err, want)
		}
	}
	for _, url := range []string{"env://?prefix=", "env://?prefix=1X", "env://?prefix=A-B", "env://?prefix=X_&prefix=Y_", "env://?name=X", "env://X_", "env:X_", "env:///X_", "env://u@", "env://#x", "env://?prefix=%zz"} {
		if _, err := b.Secrets.Open(t.Context(), url); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", url, err)
		}
	}
}

func TestFromEnvSecrets(t *testing.T) {
	var b Backends
	env := map[string]string{"PSYCH_SECRETS_URL": "env://?x=1", "X_A": "v"}
	getenv := func(name string) string { return env[name] }
	RegisterEnv(&b, getenv)
	store := struct{ Store }{}
	if _, err := b.FromEnv(t.Context(), getenv, store, nil); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "PSYCH_SECRETS_URL") {
		t.Errorf("a bad URL: %v", err)
	}
	own := EnvSecrets(getenv, "")
	if r, err := b.FromEnv(t.Context(), getenv, store, &Options{Secrets: own}); err != nil || r.o.Secrets != own {
		t.Errorf("what is set in Options is opened all the same: %v", err)
	}
	env["PSYCH_SECRETS_URL"] = "env://?prefix=X_"
	r, err := b.FromEnv(t.Context(), getenv, store, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.o.Secrets.Secret(t.Context(), SecretRequest{Name: "A", URL: mcpURL}); err != nil || got.Value != "v" {
		t.Errorf("the Runtime's Secrets give %q, %v", got.Value, err)
	}
	delete(env, "PSYCH_SECRETS_URL")
	if r, err := b.FromEnv(t.Context(), getenv, store, nil); err != nil || r.o.Secrets != nil {
		t.Errorf("without the variable there are Secrets: %v", err)
	}
}
