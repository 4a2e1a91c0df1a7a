package ssm

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/ssm/types"

	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

const server = "https://mcp.example.com/mcp"

// onEmulators runs f with Secrets of a new prefix on each.
func onEmulators(t *testing.T, f func(t *testing.T, s *Secrets)) {
	for _, e := range endpoint.SSM(t) {
		t.Run(e.Name, func(t *testing.T) {
			t.Setenv("AWS_ACCESS_KEY_ID", "test")
			t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
			var b psych.Backends
			Register(&b)
			s, err := b.Secrets.Open(t.Context(), "ssm:///test-"+rand.Text()+"/psych?region=us-east-1&endpoint="+e.URL)
			if err != nil {
				t.Fatal(err)
			}
			f(t, s.(*Secrets))
		})
	}
}

// put writes a parameter below the prefix, in place of what was there.
func (s *Secrets) put(t *testing.T, name, value string, kind types.ParameterType) {
	t.Helper()
	name = s.prefix + name
	if _, err := s.client.PutParameter(t.Context(), &ssm.PutParameterInput{Name: &name, Value: &value, Type: kind, Overwrite: aws.Bool(true)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // that it may be gone is no matter
		s.client.DeleteParameter(context.Background(), &ssm.DeleteParameterInput{Name: &name})
	})
}

func (s *Secrets) remove(t *testing.T, name string) {
	t.Helper()
	if _, err := s.client.DeleteParameter(t.Context(), &ssm.DeleteParameterInput{Name: aws.String(s.prefix + name)}); err != nil {
		t.Fatal(err)
	}
}

func ask(tenant, name, url string) psych.SecretRequest {
	return psych.SecretRequest{Scope: psych.Scope{Tenant: tenant, Principal: "p"}, Name: name, URL: url}
}

const (
	secure = types.ParameterTypeSecureString
	plain  = types.ParameterTypeString
)

func TestSecrets(t *testing.T) {
	onEmulators(t, func(t *testing.T, s *Secrets) {
		s.put(t, "/tenant/acme/github", "s3cr3t-1", secure)
		s.put(t, "/tenant/acme/bound", `{"headers": {"X-Key": "s3cr3t-2"}}`, secure)
		s.put(t, "/tenant/acme/bound/url", "https://mcp.example.com/a  http://127.0.0.1:9000/", plain)
		s.put(t, "/tenant/a_2Fb/github", "s3cr3t-3", secure)
		s.put(t, "/tenant/a/b/github", "s3cr3t-4", secure) // of nobody
		s.put(t, "/tenant/acme/plain", "s3cr3t-5", plain)
		s.put(t, "/tenant/acme/broken", "s3cr3t-6", secure)
		s.put(t, "/tenant/acme/broken/url", "https://u:s3cr3t-7@mcp.example.com/", plain)
		s.put(t, "/shared/search", "s3cr3t-8", secure)
		s.put(t, "/shared/search/url", "https://search.example.com", secure)
		s.put(t, "/shared/loose", "s3cr3t-9", secure)
		s.put(t, "/shared/github", "s3cr3t-10", secure)
		s.put(t, "/shared/github/url", server, plain)
		for _, c := range []struct {
			tenant, name, url string
			want              string
			err               error
			says              string
		}{
			{"acme", "github", server, "s3cr3t-1", nil, ""},
			{"acme", "github", "", "s3cr3t-1", nil, ""},
			{"acme", "bound", "https://mcp.example.com/a/mcp", `{"headers": {"X-Key": "s3cr3t-2"}}`, nil, ""},
			{"acme", "bound", "https://mcp.example.com/ab", "", psych.ErrAccessDenied, "/tenant/acme/bound/url"},
			{"acme", "bound", "", "", psych.ErrAccessDenied, "command"},
			{"acme", "broken", server, "", psych.ErrAccessDenied, "URL 1 in the parameter"},
			{"acme", "plain", server, "", psych.ErrInvalid, "SecureString"},
			{"a/b", "github", "https://other.example/", "s3cr3t-3", nil, ""},
			// Another tenant has that of all, and nothing else; what is a tenant's own is not combined with it.
			{"other", "github", server, "s3cr3t-10", nil, ""},
			{"other", "github", "https://other.example/", "", psych.ErrAccessDenied, "/shared/github/url"},
			{"other", "bound", server, "", psych.ErrNotFound, "/tenant/other/bound"},
			{"acme", "search", "https://search.example.com/mcp", "s3cr3t-8", nil, ""},
			{"acme", "search", server, "", psych.ErrAccessDenied, "/shared/search/url"},
			{"acme", "search", "", "", psych.ErrAccessDenied, "command"},
			{"acme", "loose", server, "", psych.ErrAccessDenied, "/shared/loose/url"},
			// Names and tenants that would lead elsewhere.
			{"acme", "github/url", server, "", psych.ErrNotFound, "[A-Za-z0-9_.-]"},
			{"other", "../acme/github", server, "", psych.ErrNotFound, "[A-Za-z0-9_.-]"},
			{"acme", "github:1", server, "", psych.ErrNotFound, "[A-Za-z0-9_.-]"},
			{"acme", "", server, "", psych.ErrNotFound, "[A-Za-z0-9_.-]"},
			{"acme", strings.Repeat("x", 129), server, "", psych.ErrNotFound, "[A-Za-z0-9_.-]"},
			{"acme", "url", server, "", psych.ErrNotFound, "/tenant/acme/url"},
			{"../shared", "loose", server, "", psych.ErrAccessDenied, "/shared/loose/url"},
			{"ACME", "bound", server, "", psych.ErrNotFound, "/tenant/ACME/bound"},
			{"a/../acme", "bound", server, "", psych.ErrNotFound, "a_2F.._2Facme"},
			{strings.Repeat("é", 64), strings.Repeat("x", 128), server, "", psych.ErrNotFound, "_C3_A9"},
			{"", "github", server, "", psych.ErrInvalid, "tenant"},
		} {
			got, err := s.Secret(t.Context(), ask(c.tenant, c.name, c.url))
			if c.err == nil && (err != nil || got.Value != c.want || len(got.Identity) < 16) {
				t.Errorf("%q of %.40q for %q: %v, %v", c.name, c.tenant, c.url, got, err)
			}
			if c.err != nil && (!errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "s3cr3t") || got != psych.Secret{}) {
				t.Errorf("%q of %.40q for %q: %v, want %v that says %q", c.name, c.tenant, c.url, err, c.err, c.says)
			}
		}
	})
}

// A credential is kept for its time; one that a server refused is looked up
// anew, and one that is gone is not kept.
func TestRotation(t *testing.T) {
	onEmulators(t, func(t *testing.T, s *Secrets) {
		clock := time.Now()
		s.now = func() time.Time { return clock }
		get := func(want, stale string) psych.Secret {
			t.Helper()
			r := ask("t", "key", server)
			r.Stale = stale
			got, err := s.Secret(t.Context(), r)
			if err != nil || got.Value != want {
				t.Fatalf("%q, %v; want %q", got.Value, err, want)
			}
			return got
		}
		s.put(t, "/tenant/t/key", "one", secure)
		one := get("one", "")
		if again := get("one", one.Identity); again != one {
			t.Error("what did not change has another identity")
		}
		s.put(t, "/tenant/t/key", "two", secure)
		get("one", "")
		two := get("two", one.Identity)
		if two.Identity == one.Identity {
			t.Error("another version has the same identity")
		}
		if get("two", "") != two {
			t.Error("what was looked up anew is not kept")
		}
		// Another process knows it by the same identity.
		if got, err := New(s.client, s.prefix, nil).Secret(t.Context(), ask("t", "key", server)); err != nil || got != two {
			t.Errorf("another process: %v, %v", got, err)
		}
		s.put(t, "/tenant/t/key", "three", secure)
		clock = clock.Add(time.Minute - time.Nanosecond)
		get("two", "")
		clock = clock.Add(time.Nanosecond)
		three := get("three", "")

		// Where it may go is kept with it, and looked up with it.
		s.put(t, "/tenant/t/key/url", "https://other.example/", plain)
		get("three", "")
		clock = clock.Add(time.Hour)
		if _, err := s.Secret(t.Context(), ask("t", "key", server)); !errors.Is(err, psych.ErrAccessDenied) {
			t.Errorf("%v", err)
		}
		s.remove(t, "/tenant/t/key/url")
		s.remove(t, "/tenant/t/key")
		clock = clock.Add(time.Hour)
		for range 2 {
			if _, err := s.Secret(t.Context(), ask("t", "key", server)); !errors.Is(err, psych.ErrNotFound) {
				t.Errorf("what is gone: %v", err)
			}
		}
		s.put(t, "/tenant/t/key", "four", secure) // at once, and of version 1 again
		if four := get("four", ""); four.Identity == one.Identity || four.Identity == three.Identity {
			t.Error("one that was made anew has the identity of the one before")
		}
	})
}

// A store stands for one that counts what is asked, and fails as it is told.
type store struct {
	mu       sync.Mutex
	requests []string
	fail     func(w http.ResponseWriter) bool
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Names          []string
		WithDecryption bool
	}
	data, _ := io.ReadAll(r.Body)
	json.Unmarshal(data, &in)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, fmt.Sprintf("%s %t %d", r.Header.Get("X-Amz-Target"), in.WithDecryption, len(in.Names)))
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	if s.fail != nil && s.fail(w) {
		return
	}
	fmt.Fprintf(w, `{"Parameters":[{"Name":%q,"ARN":"a","Type":"SecureString","Value":"s3cr3t","Version":1,"LastModifiedDate":1.5}],"InvalidParameters":[]}`, in.Names[0])
}

func onStore(t *testing.T, o *Options) (*store, *Secrets) {
	t.Helper()
	st := &store{}
	ts := httptest.NewServer(st)
	t.Cleanup(ts.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	var b psych.Backends
	Register(&b)
	opened, err := b.Secrets.Open(t.Context(), "ssm:///psych?region=us-east-1&endpoint="+ts.URL)
	if err != nil {
		t.Fatal(err)
	}
	return st, New(opened.(*Secrets).client, "/psych", o)
}

// One request is one credential, whoever asks for it in its time.
func TestRequests(t *testing.T) {
	st, s := onStore(t, nil)
	get := func(r psych.SecretRequest) {
		t.Helper()
		if got, err := s.Secret(t.Context(), r); err != nil || got.Value != "s3cr3t" {
			t.Fatal(got, err)
		}
	}
	for _, principal := range []string{"a", "b"} {
		for _, url := range []string{server, "https://other.example/"} {
			r := ask("t", "key", url)
			r.Scope.Principal = principal
			get(r)
		}
	}
	if got, want := strings.Join(st.requests, " "), "AmazonSSM.GetParameters true 4"; got != want {
		t.Errorf("requests %q, want %q", got, want)
	}
	get(ask("u", "key", server))
	if len(st.requests) != 2 {
		t.Errorf("%d requests for the credentials of two tenants", len(st.requests))
	}
	for i := range 2 * maxKept {
		get(ask("t", fmt.Sprint("k", i), server))
	}
	if n := len(s.kept); n > maxKept {
		t.Errorf("%d credentials are kept, want at most %d", n, maxKept)
	}

	st, s = onStore(t, &Options{TTL: -1})
	get(ask("t", "key", server))
	get(ask("t", "key", server))
	if len(st.requests) != 2 {
		t.Errorf("%d requests where nothing is kept", len(st.requests))
	}
}

func TestErrors(t *testing.T) {
	st, s := onStore(t, nil)
	refuse := func(status int, code string) func(w http.ResponseWriter) bool {
		return func(w http.ResponseWriter) bool {
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"__type":%q,"message":"no"}`, code)
			return true
		}
	}
	get := func() error {
		t.Helper()
		got, err := s.Secret(t.Context(), ask("t", "key", server))
		if got != (psych.Secret{}) {
			t.Errorf("%v beside %v", got, err)
		}
		return err
	}
	st.fail = refuse(400, "AccessDeniedException")
	if err := get(); err == nil || errors.Is(err, psych.ErrNotFound) || !strings.Contains(err.Error(), "permit ssm:GetParameters on the parameters below /psych") {
		t.Errorf("%v", err)
	}
	st.fail = refuse(400, "InternalServerError")
	if err := get(); err == nil || errors.Is(err, psych.ErrNotFound) {
		t.Errorf("%v", err)
	}
	st.fail = refuse(503, "ServiceUnavailable")
	if err := get(); !errors.Is(err, psych.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	st.fail = nil
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Secret(ended, ask("t", "key", server)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := New(s.client, "psych", nil).Secret(t.Context(), ask("t", "key", server)); !errors.Is(err, psych.ErrInvalid) {
		t.Errorf("%v", err)
	}
}

func TestURL(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	var b psych.Backends
	Register(&b)
	for good, want := range map[string][3]string{
		"ssm:///psych?region=eu-central-1":                               {"/psych", "eu-central-1", ""},
		"ssm:///prod/psych_1.a-b?region=eu-central-1":                    {"/prod/psych_1.a-b", "eu-central-1", ""},
		"ssm:///psych?endpoint=http://127.0.0.1:4566":                    {"/psych", "us-east-1", "http://127.0.0.1:4566"},
		"ssm:///psych?endpoint=http://localhost:4566&region=eu-west-1":   {"/psych", "eu-west-1", "http://localhost:4566"},
		"ssm:///psych?endpoint=https://ssm.example.com&region=eu-west-1": {"/psych", "eu-west-1", "https://ssm.example.com"},
		"ssm:///a/b/c/d/e/f/g/h?region=eu-west-1":                        {"/a/b/c/d/e/f/g/h", "eu-west-1", ""},
		"ssm:///" + strings.Repeat("x", 299) + "?region=eu-west-1":       {"/" + strings.Repeat("x", 299), "eu-west-1", ""},
	} {
		opened, err := b.Secrets.Open(t.Context(), good)
		if err != nil {
			t.Errorf("%s: %v", good, err)
			continue
		}
		s := opened.(*Secrets)
		if o := s.client.Options(); s.prefix != want[0] || o.Region != want[1] || aws.ToString(o.BaseEndpoint) != want[2] || s.bad != nil {
			t.Errorf("%s: %s, %s, %s, %v", good, s.prefix, o.Region, aws.ToString(o.BaseEndpoint), s.bad)
		}
	}
	for _, bad := range []string{
		"ssm:", "ssm:psych", "ssm://psych", "ssm:///", "ssm:///psych/", "ssm:///a//b?region=x", "ssm:///a%20b?region=x", "ssm:///aws/x?region=x", "ssm:///SSM-x?region=x",
		"ssm:///a/b/c/d/e/f/g/h/i?region=x", "ssm:///" + strings.Repeat("x", 300) + "?region=x", "ssm:///psych", "ssm:///psych?region=", "ssm:///psych?region=x&key=y",
		"ssm:///psych?region=x#f", "ssm://u@/psych?region=x", "ssm:///psych?region=x&endpoint=http://ssm.example.com", "ssm:///psych?region=x&endpoint=https://u:p@ssm.example.com",
		"ssm:///psych?region=x&endpoint=", "ssm:///psych?region=x&endpoint=https://ssm.example.com%3Fx=y",
	} {
		if _, err := b.Secrets.Open(t.Context(), bad); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// No two tenants meet, and none leaves its segment.
func FuzzEscape(f *testing.F) {
	for _, pair := range [][2]string{{"a/b", "a_2Fb"}, {"a", "A"}, {"..", "."}, {"\x00", "_00"}, {"é", "e"}, {"_", "__"}} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := Escape(a), Escape(b)
		if (x == y) != (a == b) {
			t.Errorf("%q and %q are %q and %q", a, b, x, y)
		}
		if a != "" && !isName(x) {
			t.Errorf("%q is %q", a, x)
		}
	})
}
