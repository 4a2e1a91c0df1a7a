package api_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/api"
	"github.com/psych-go/psych-go/psych"
)

func TestBadBodies(t *testing.T) {
	s := newService(t, talk, nil)
	version := s.publish()
	run := s.start(version, "hi")
	messages := "/v1/runs/" + run + "/messages"
	for _, c := range []struct {
		name   string
		status int
		code   string
		path   string
		body   string
		header string
	}{
		{"empty", 400, "invalid", messages, " ", ""},
		{"none", 415, "unsupported_media_type", messages, "", ""},
		{"10 MB", 413, "body_too_large", messages, `{"text":"` + strings.Repeat("x", 10<<20) + `"}`, ""},
		{"over a message", 413, "too_large", messages, `{"text":"` + strings.Repeat("x", 1<<20+1) + `"}`, ""},
		{"no JSON", 400, "invalid", messages, `text=hi`, ""},
		{"no object", 400, "invalid", messages, `["text"]`, ""},
		{"cut", 400, "invalid", messages, `{"text":"hi"`, ""},
		{"two", 400, "invalid", messages, `{"text":"hi"}{}`, ""},
		{"deep", 400, "invalid", messages, `{"text":` + strings.Repeat("[", 100_000), ""},
		{"deep objects", 400, "invalid", "/v1/runs", strings.Repeat(`{"version":`, 100_000), ""},
		{"deep spec", 422, "invalid_spec", "/v1/versions", strings.Repeat(`{"name":`, 100_000), ""},
		{"gzip", 415, "unsupported_encoding", messages, "\x1f\x8b\x08", "Content-Encoding: gzip"},
		{"form", 415, "unsupported_media_type", messages, "text=hi", "Content-Type: application/x-www-form-urlencoded"},
		{"other charset", 415, "unsupported_media_type", messages, `{"text":"hi"}`, "Content-Type: application/json; charset=latin1"},
		{"no type", 415, "unsupported_media_type", messages, `{"text":"hi"}`, "Content-Type"},
		{"invalid UTF-8", 400, "invalid", messages, "{\"text\":\"\xff\"}", ""},
		{"tenant", 400, "invalid", messages, `{"text":"hi","tenant":"u"}`, ""},
		{"principal", 400, "invalid", messages, `{"text":"hi","principal":"u"}`, ""},
		{"tenant of a run", 400, "invalid", "/v1/runs", `{"tenant":"u","version":"` + version + `","message":{"text":"hi"}}`, ""},
		{"tenant in a message", 400, "invalid", "/v1/runs", `{"version":"` + version + `","message":{"text":"hi","tenant":"u"}}`, ""},
		{"tenant of a spec", 422, "invalid_spec", "/v1/versions", `{"name":"a","tenant":"u"}`, ""},
		{"tenant of an abort", 400, "invalid", "/v1/runs/" + run + "/abort", `{"tenant":"u"}`, ""},
		{"unknown", 400, "invalid", messages, `{"text":"hi","txt":1}`, ""},
		{"another case", 400, "invalid", messages, `{"Text":"hi"}`, ""},
		{"letters that fold", 400, "invalid", "/v1/runs", `{"verſion":"` + version + `","message":{"text":"hi"}}`, ""},
		{"twice, folded", 400, "invalid", "/v1/runs", `{"version":"` + version + `","message":{"text":"hi"},"meſſage":{"text":"ho"}}`, ""},
		{"twice", 400, "invalid", messages, `{"text":"hi","text":"ho"}`, ""},
		{"another type", 400, "invalid", messages, `{"text":1}`, ""},
		{"no text", 400, "invalid", messages, `{}`, ""},
		{"long id", 400, "invalid", messages, `{"id":"` + strings.Repeat("i", 129) + `","text":"hi"}`, ""},
		{"two ids", 400, "invalid", messages, `{"id":"a","text":"hi"}`, "Idempotency-Key: b"},
		{"an attachment of nothing", 400, "invalid", messages, `{"attachments":[{"name":"a"}]}`, ""},
		{"an attachment of both", 400, "invalid", messages, `{"attachments":[{"name":"a","text":"","base64":""}]}`, ""},
		{"an attachment without a name", 400, "invalid", messages, `{"attachments":[{"text":"x"}]}`, ""},
		{"no base64", 400, "invalid", messages, `{"attachments":[{"name":"a","base64":"!"}]}`, ""},
		{"numbers for base64", 400, "invalid", messages, `{"attachments":[{"name":"a","base64":[1,2,3]}]}`, ""},
		{"101 attachments", 400, "invalid", messages, `{"attachments":[` + strings.TrimSuffix(strings.Repeat(`{"name":"a","text":"x"},`, 101), ",") + `]}`, ""},
		{"no version", 400, "invalid", "/v1/runs", `{"message":{"text":"hi"}}`, ""},
		{"short version", 400, "invalid", "/v1/runs", `{"version":"ab","message":{"text":"hi"}}`, ""},
		{"absent version", 404, "not_found", "/v1/runs", `{"version":"` + strings.Repeat("a", 64) + `","message":{"text":"hi"}}`, ""},
		{"a spec of an unknown tool", 422, "invalid_spec", "/v1/versions", `{"name":"a","tools":["rm"]}`, ""},
		{"an empty spec", 422, "invalid_spec", "/v1/versions", `{}`, ""},
		{"a key with a comma", 400, "invalid", messages, `{"text":"hi"}`, "Idempotency-Key: a,b"},
		{"a key without an end", 400, "invalid", messages, `{"text":"hi"}`, `Idempotency-Key: "a`},
		{"a key with more behind it", 400, "invalid", messages, `{"text":"hi"}`, `Idempotency-Key: "a"b`},
		{"an empty key", 400, "invalid", messages, `{"text":"hi"}`, `Idempotency-Key: ""`},
		{"a long key", 400, "invalid", messages, `{"text":"hi"}`, "Idempotency-Key: " + strings.Repeat("k", 129)},
	} {
		t.Run(c.name, func(t *testing.T) {
			of := *s
			of.t = t
			headers := []string{}
			if c.header != "" {
				headers = append(headers, c.header)
			}
			of.want(c.status, c.code, "POST", c.path, c.body, headers...)
		})
	}
	for levels, says := range map[int]string{99: "something else is wanted", 100: "nests over 100 deep"} {
		got := s.want(400, "invalid", "POST", messages, `{"text":`+strings.Repeat("[", levels)+strings.Repeat("]", levels)+`}`)
		if !strings.Contains(got.text("detail"), says) {
			t.Errorf("an object around %d lists: %s", levels, got.body)
		}
	}
	if rep := s.want(200, "", "GET", "/v1/runs/"+run+"/report", ""); rep.fields["waiting"] != 1.0 {
		t.Errorf("a bad body left something: %s", rep.body)
	}
	if got := s.want(200, "", "GET", "/v1/runs", ""); len(got.fields["runs"].([]any)) != 1 {
		t.Errorf("a bad body made a Run: %s", got.body)
	}
}

func TestBadPaths(t *testing.T) {
	s := newService(t, talk, nil)
	run := s.start(s.publish(), "hi")
	for _, id := range []string{"x", strings.ToUpper(run[:31]) + "A", run + "0", run[:31], "..%2F" + run, run + "%2F..", "%00", "%2e%2e", "a%2Fb", strings.Repeat("a", 4096), "%22" + run + "%22", "é"} {
		s.want(400, "invalid", "GET", "/v1/runs/"+id, "")
		s.want(400, "invalid", "GET", "/v1/runs/"+id+"/records", "")
	}
	for _, path := range []string{"/", "/v1", "/v1/runs/", "/v2/runs", "/v1/runs/" + run + "/", "/v1/runs/" + run + "/nope", "/health"} {
		s.want(404, "no_such_path", "GET", path, "")
	}
	for path, allow := range map[string]string{"/v1/runs": "POST, GET", "/v1/runs/" + run: "GET, DELETE", "/v1/versions": "POST"} {
		if got := s.want(405, "method_not_allowed", "PATCH", path, ""); got.header.Get("Allow") != allow {
			t.Errorf("%s allows %q, want %q", path, got.header.Get("Allow"), allow)
		}
	}
	for _, q := range []string{"limit=0", "limit=101", "limit=-1", "limit=x", "limit=1&limit=2", "cursor=x", "tenant=u", "limit=%zz", "a;b"} {
		s.want(400, "invalid", "GET", "/v1/runs?"+q, "")
	}
	for _, q := range []string{"wait=-1", "wait=3601", "limit=1001", "deltas=1", "deltas="} {
		s.want(400, "invalid", "GET", "/v1/runs/"+run+"/records?"+q, "")
	}
	for _, q := range []string{"offset=-1", "unit=words", "context=11&grep=a", "from=1", "ignore_case=yes", "offset=9223372036854775808"} {
		got := s.call("GET", "/v1/runs/"+run+"/outputs/out_c1_1?"+q, "")
		if got.status != 400 && got.status != 404 {
			t.Errorf("%s: %d", q, got.status)
		}
	}
	for _, v := range []string{"x", strings.Repeat("g", 64), strings.Repeat("a", 63)} {
		s.want(400, "invalid", "GET", "/v1/versions/"+v, "")
	}
}

// A header in another case is that header, and one that stands twice is refused
// where it may stand once.
func TestHeaders(t *testing.T) {
	s := newService(t, talk, nil)
	version := s.publish()
	body := `{"version":"` + version + `","message":{"text":"hi"}}`
	request := func(set func(http.Header)) reply {
		r, err := http.NewRequest("POST", s.url+"/v1/runs", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Authorization": {"Bearer t/p"}, "Content-Type": {"application/json"}}
		set(r.Header)
		return s.do(r)
	}
	first := request(func(h http.Header) { h["IDEMPOTENCY-key"] = []string{"k"} })
	again := request(func(h http.Header) { h["idempotency-KEY"] = []string{"k"} })
	if first.status != 201 || again.text("run_id") != first.text("run_id") {
		t.Errorf("%d %s, %d %s", first.status, first.body, again.status, again.body)
	}
	for name, code := range map[string]string{"Idempotency-Key": "invalid", "Authorization": "unauthenticated", "Content-Type": "unsupported_media_type"} {
		got := request(func(h http.Header) {
			h.Add(name, "a")
			h.Add(name, "b")
		})
		if got.code() != code {
			t.Errorf("%s twice: %d %s", name, got.status, got.code())
		}
	}
	if got := request(func(h http.Header) { h.Del("Authorization") }); got.status != 401 || got.header.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("%d %s", got.status, got.header)
	}
	if got := request(func(h http.Header) { h.Set("X-Request-Id", "mine") }); got.header.Get("X-Request-Id") != "mine" {
		t.Errorf("%s", got.header)
	}
	if got := request(func(h http.Header) { h.Set("X-Request-Id", strings.Repeat("i", 128)) }); len(got.header.Get("X-Request-Id")) != 128 {
		t.Errorf("%s", got.header)
	}
	if got := request(func(h http.Header) { h.Set("X-Request-Id", strings.Repeat("i", 129)) }); len(got.header.Get("X-Request-Id")) != 32 {
		t.Errorf("%s", got.header)
	}
	for _, who := range []string{"Bearer /p", "Bearer " + strings.Repeat("t", 129) + "/p"} { // of an authenticator that does not look
		if got := request(func(h http.Header) { h.Set("Authorization", who) }); got.status != 401 || got.code() != "unauthenticated" {
			t.Errorf("%.20s: %d %s", who, got.status, got.body)
		}
	}
	if got := request(func(h http.Header) { h.Set("X-Request-Id", "two words"); h.Del("Authorization") }); got.header.Get("X-Request-Id") != got.text("instance") || len(got.text("instance")) != 32 {
		t.Errorf("%s %s", got.header, got.body)
	}
}

// The hundred-and-first note that waits is refused, and says when to come back.
func TestFullInbox(t *testing.T) {
	s := newService(t, talk, nil)
	run := s.start(s.publish(), "hi")
	for i := range psych.MaxPending - 1 {
		s.want(202, "", "POST", "/v1/runs/"+run+"/messages", fmt.Sprintf(`{"id":"m%d","text":"x"}`, i))
	}
	if got := s.want(429, "inbox_full", "POST", "/v1/runs/"+run+"/messages", `{"text":"x"}`); got.header.Get("Retry-After") == "" {
		t.Errorf("%s", got.header)
	}
	s.want(202, "", "POST", "/v1/runs/"+run+"/messages", `{"id":"m7","text":"x"}`)
	s.want(429, "inbox_full", "POST", "/v1/runs/"+run+"/abort", "")
}

// failing answers GetRun with an error, and panics for one Run.
// An answer of which a part was sent ends the connection: a problem behind it
// would look like its end.
func TestHalfAnAnswer(t *testing.T) {
	s := newService(t, talk, nil)
	w := &broken{httptest.NewRecorder()}
	defer func() {
		if v := recover(); v != http.ErrAbortHandler || w.Body.Len() != 1 {
			t.Errorf("it ended with %v after %q", v, w.Body)
		}
	}()
	r := httptest.NewRequest("GET", "/v1/runs", nil)
	r.Header.Set("Authorization", "Bearer t/p")
	s.h.ServeHTTP(w, r)
}

// broken panics where an answer has begun, and takes what comes then.
type broken struct{ *httptest.ResponseRecorder }

func (w *broken) Write(p []byte) (int, error) {
	if w.Body.Len() > 0 {
		return w.ResponseRecorder.Write(p)
	}
	w.ResponseRecorder.Write(p[:1])
	panic("half of an answer")
}

type failing struct {
	psych.Store
	err error
}

func (f *failing) GetRun(ctx context.Context, key psych.RunKey) (psych.RunInfo, error) {
	if f.err == errPanic {
		panic("a driver of a database")
	}
	return psych.RunInfo{}, fmt.Errorf("store: secret address: %w", f.err)
}

var errPanic = errors.New("panic")

// Each error of psych stands in the table once, and makes the answer that it
// says; what is wrong inside is not told.
func TestErrorsOfPsych(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../psych/errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		for i := 0; ok && i < len(v.Names); i++ {
			if strings.HasPrefix(v.Names[i].Name, "Err") {
				text := v.Values[i].(*ast.CallExpr).Args[0].(*ast.BasicLit).Value
				declared = append(declared, strings.Trim(text, `"`))
			}
		}
		return true
	})
	var tabled []string
	codes := map[string]bool{}
	f := &failing{Store: memory.New(nil)}
	s := newServiceOn(t, f, talk, nil)
	path := "/v1/runs/" + strings.Repeat("0", 32)
	api.Classes(func(err error, status int, code string) {
		if codes[code] {
			t.Errorf("the code %s stands for two errors", code)
		}
		codes[code] = true
		if strings.HasPrefix(err.Error(), "psych: ") {
			tabled = append(tabled, err.Error())
		}
		f.err = err
		r, rerr := http.NewRequest("GET", s.url+path, nil)
		if rerr != nil {
			t.Fatal(rerr)
		}
		r.Header.Set("Authorization", "Bearer t/p")
		resp, rerr := http.DefaultClient.Do(r) // which answers a Run has is not the point here
		if rerr != nil {
			t.Fatal(rerr)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != status || !strings.Contains(string(body), `"code":"`+code+`"`) {
			t.Errorf("%v: %d %s, want %d %s", err, resp.StatusCode, body, status, code)
		}
		if status >= 500 && strings.Contains(string(body), "secret") {
			t.Errorf("%v tells what is inside: %s", err, body)
		}
	})
	slices.Sort(declared)
	slices.Sort(tabled)
	if len(declared) < 10 || !slices.Equal(declared, tabled) {
		t.Errorf("psych has the errors\n%s\nthe table has\n%s", strings.Join(declared, "\n"), strings.Join(tabled, "\n"))
	}
	for err, code := range map[error]string{
		errors.New("a table is gone"): "internal",
		errPanic:                      "internal",
		&psych.CorruptionError{Reason: psych.UndecodableRecord, Seq: 3}:      "corrupt_log",
		&psych.CorruptionError{Reason: psych.InvalidDeferredHandle, Seq: 3}:  "corrupt_log",
		&psych.UnsupportedError{What: "a kind"}:                              "newer_release",
		fmt.Errorf("%w: %w", psych.ErrUnavailable, context.DeadlineExceeded): "timeout",
	} {
		f.err = err
		r, rerr := http.NewRequest("GET", s.url+path, nil)
		if rerr != nil {
			t.Fatal(rerr)
		}
		r.Header.Set("Authorization", "Bearer t/p")
		resp, rerr := http.DefaultClient.Do(r)
		if rerr != nil {
			t.Fatal(rerr)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode < 500 || !strings.Contains(string(body), `"code":"`+code+`"`) || strings.Contains(string(body), "secret") || strings.Contains(string(body), "database") {
			t.Errorf("%v: %d %s, want %s", err, resp.StatusCode, body, code)
		}
	}
}

// On one's own machine: from there alone, and not for other people's pages.
func TestLoopback(t *testing.T) {
	store := memory.New(nil)
	rt, err := psych.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	h, err := api.New(rt, store, api.Loopback(psych.Scope{Tenant: "local"}), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, remote, host, origin, site string
		status                           int
	}{
		{"curl", "127.0.0.1:1", "127.0.0.1:8080", "", "", 201},
		{"by name", "127.0.0.1:1", "localhost:8080", "", "", 201},
		{"IPv6", "[::1]:1", "[::1]:8080", "", "", 201},
		{"without a port", "[::1]:1", "[::1]", "", "", 201},
		{"its own page", "127.0.0.1:1", "localhost:8080", "http://localhost:8080", "same-origin", 201},
		{"another machine", "192.0.2.1:1", "127.0.0.1:8080", "", "", 403},
		{"a name that points here", "127.0.0.1:1", "evil.example:8080", "", "", 403},
		{"another page", "127.0.0.1:1", "localhost:8080", "http://evil.example", "cross-site", 403},
		{"an old browser's", "127.0.0.1:1", "localhost:8080", "http://evil.example", "", 403},
		{"no address", "@", "localhost", "", "", 403},
	} {
		r := httptest.NewRequest("POST", "/v1/versions", strings.NewReader(`{"name":"a"}`))
		r.RemoteAddr, r.Host = c.remote, c.host
		r.Header.Set("Content-Type", "application/json")
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		if c.site != "" {
			r.Header.Set("Sec-Fetch-Site", c.site)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.status {
			t.Errorf("%s: %d %s, want %d", c.name, w.Code, w.Body, c.status)
		}
	}
}

func TestClaims(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	c := api.Claims{Issuer: "https://issuer", Audience: "psych", Now: func() time.Time { return now }}
	with := func(change map[string]any) map[string]any {
		claims := map[string]any{"tenant": "t", "sub": "p", "iss": "https://issuer", "aud": "psych", "exp": "1700000001"}
		for k, v := range change {
			if claims[k] = v; v == nil {
				delete(claims, k)
			}
		}
		return claims
	}
	for _, good := range []map[string]any{
		{},
		{"exp": float64(1_700_000_001)},
		{"exp": nil},
		{"aud": []any{"other", "psych"}},
		{"aud": "[other psych]"},
		{"aud": "[other, psych]"},
		{"extra": []any{1}},
	} {
		if s, err := c.Scope(with(good)); err != nil || s.Tenant != "t" || s.Principal != "p" {
			t.Errorf("%v: %+v, %v", good, s, err)
		}
	}
	for _, bad := range []map[string]any{
		{"tenant": nil}, {"tenant": ""}, {"tenant": []any{"t"}}, {"tenant": "[t]"}, {"tenant": "[t u]"}, {"tenant": 1.0}, {"tenant": strings.Repeat("t", 129)}, {"tenant": "\xff"},
		{"sub": nil}, {"sub": ""}, {"sub": []any{"p"}}, {"sub": "[p]"},
		{"exp": "1700000000"}, {"exp": 1.0}, {"exp": "soon"}, {"exp": "NaN"}, {"exp": []any{}},
		{"iss": "https://other"}, {"iss": nil},
		{"aud": "other"}, {"aud": nil}, {"aud": []any{"other"}}, {"aud": "[other]"}, {"aud": []any{}},
	} {
		if s, err := c.Scope(with(bad)); !errors.Is(err, api.ErrUnauthenticated) || s.Tenant != "" {
			t.Errorf("%v: %+v, %v", bad, s, err)
		}
	}
	named := api.Claims{Tenant: "custom:org", Principal: "email"}
	if s, err := named.Scope(map[string]any{"custom:org": "o", "email": "e@x", "tenant": "u", "sub": "v"}); err != nil || s.Tenant != "o" || s.Principal != "e@x" {
		t.Errorf("%+v, %v", s, err)
	}
	// What a client sends is no claim.
	r := httptest.NewRequest("GET", "/v1/runs", nil)
	r.Header.Set("Authorization", "Bearer e30.e30.")
	if _, err := c.Authenticate(r); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("%v", err)
	}
	if s, err := c.Authenticate(r.WithContext(api.WithClaims(r.Context(), with(nil)))); err != nil || s.Tenant != "t" {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestNew(t *testing.T) {
	store := memory.New(nil)
	rt, err := psych.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range []func() (*api.Handler, error){
		func() (*api.Handler, error) { return api.New(nil, store, bearer{}, nil) },
		func() (*api.Handler, error) { return api.New(rt, nil, bearer{}, nil) },
		func() (*api.Handler, error) { return api.New(rt, store, nil, nil) },
		func() (*api.Handler, error) { return api.New(rt, store, bearer{}, &api.Options{MaxBody: -1}) },
	} {
		if _, err := f(); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// A client that leaves in the middle of a body leaves nothing.
func TestHalfABody(t *testing.T) {
	s := newService(t, talk, nil)
	run := s.start(s.publish(), "hi")
	u, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "POST /v1/runs/%s/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t/p\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"text\":", run)
	c.(*net.TCPConn).CloseWrite()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err == nil {
		resp.Body.Close()
		if resp.StatusCode != 400 {
			t.Errorf("%s", resp.Status)
		}
	}
	c.Close()
	if rep := s.want(200, "", "GET", "/v1/runs/"+run+"/report", ""); rep.fields["waiting"] != 1.0 {
		t.Errorf("%s", rep.body)
	}
}
