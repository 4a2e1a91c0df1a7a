package anthropic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/psych-go/psych-go/internal/messages"
	"github.com/psych-go/psych-go/internal/messages/messagestest"
	"github.com/psych-go/psych-go/psych"
)

var update = flag.Bool("update", false, "rewrite testdata")

const testKey = "sk-ant-test-0123456789abcdefghij"

// A stub is a server of the Messages API on a socket of its own.
type stub struct {
	*httptest.Server
	mu       sync.Mutex
	requests []received
}

type received struct {
	path    string
	header  http.Header
	length  int64
	chunked []string
	body    []byte
}

// newStub answers the n-th request with the n-th of answers, the last one again.
func newStub(t *testing.T, answers ...http.HandlerFunc) *stub {
	t.Helper()
	s := &stub{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read the body: %v", err)
		}
		s.mu.Lock()
		s.requests = append(s.requests, received{r.Method + " " + r.URL.Path, r.Header, r.ContentLength, r.TransferEncoding, body})
		n := min(len(s.requests), len(answers)) - 1
		s.mu.Unlock()
		w.Header().Set("Request-Id", "req_011")
		answers[n](w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *stub) got() []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

func (s *stub) model(name string, o *Options) *Model {
	own := Options{}
	if o != nil {
		own = *o
	}
	own.BaseURL = s.URL
	return New(name, &own)
}

// events answers with a stream of these data, each sent by itself.
func events(data ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, d := range data {
			var e struct{ Type string }
			_ = json.Unmarshal([]byte(d), &e) // some are no JSON on purpose
			fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e.Type, d)
			w.(http.Flusher).Flush()
		}
	}
}

func status(code int, header map[string]string, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for k, v := range header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(code)
		io.WriteString(w, body)
	}
}

const (
	start = `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"usage":{"input_tokens":25,"output_tokens":1}}}`
	ping  = `{"type":"ping"}`
	begun = `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`
	done  = `{"type":"content_block_stop","index":0}`
	ended = `{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}`
	stop  = `{"type":"message_stop"}`
)

func said(s string) string {
	return `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"` + s + `"}}`
}

func answer(text string) []string { return []string{start, begun, ping, said(text), done, ended, stop} }

func wireOf(b []byte, marker int) psych.Wire {
	return psych.Wire{Bytes: b, Chars: utf8.RuneCount(b), Marker: marker}
}

func aRequest(t *testing.T, m *Model) *psych.Request {
	t.Helper()
	c := m.Codec()
	tools, err := c.EncodeTools([]psych.ToolDef{{Name: "look", Description: "Looks. 日本", Schema: json.RawMessage(`{"type":"object","properties":{"x":{"const":1.0}}}`)}})
	if err != nil {
		t.Fatal(err)
	}
	zone1, zone2, err := c.EncodeSystem([]string{"Be brief. 日本"}, "You like tea.")
	if err != nil {
		t.Fatal(err)
	}
	r := &psych.Request{Tools: wireOf(tools, -1), System: [2]psych.Wire{wireOf(zone1, -1), wireOf(zone2, -1)}, Breaks: []int{0, 2}}
	for _, msg := range []*psych.Message{
		{Role: psych.RoleUser, Blocks: []psych.Block{{Text: "hi"}}},
		{Role: psych.RoleAssistant, Blocks: []psych.Block{{Provider: json.RawMessage(`{"type":"thinking","thinking":"h\u006d","signature":"a=="}`)}, {Call: &psych.ToolCall{ID: "toolu_1", Name: "look", Arguments: json.RawMessage(`{"x": 1.0}`)}}}},
		{Role: psych.RoleTool, Blocks: []psych.Block{{Result: &psych.ToolOutput{CallID: "toolu_1", Text: "nothing there"}}}},
	} {
		b, marker, err := c.EncodeMessage(msg)
		if err != nil {
			t.Fatal(err)
		}
		r.History = append(r.History, wireOf(b, marker))
	}
	tail, err := c.EncodeTail("[Context from the system, not from the user]\nNow: 2026-11-29 22:23 UTC, Sunday")
	if err != nil {
		t.Fatal(err)
	}
	r.Tail = wireOf(tail, -1)
	return r
}

func generate(t *testing.T, m *Model, on func(psych.Delta)) (*psych.Response, error) {
	t.Helper()
	return m.Generate(t.Context(), aRequest(t, m), on)
}

// modelError wants a *psych.ModelError that is transient or not.
func modelError(t *testing.T, err error, transient bool) *psych.ModelError {
	t.Helper()
	var e *psych.ModelError
	if !errors.As(err, &e) {
		t.Fatalf("the error is %v, want a *psych.ModelError", err)
	}
	if e.Transient != transient {
		t.Errorf("transient is %v, want %v: %v", e.Transient, transient, e)
	}
	return e
}

func TestRequestAsSent(t *testing.T) {
	for _, name := range []string{"claude-opus-5", "claude-opus-5-5"} {
		t.Run(name, func(t *testing.T) {
			// What a machine has in its environment reaches no request.
			for _, v := range []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"} {
				t.Setenv(v, "of-the-environment")
			}
			t.Setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Own: of-the-environment")
			s := newStub(t, events(answer("hi")...))
			m := s.model(name, &Options{APIKey: testKey})
			req := aRequest(t, m)
			req.CacheKey = strings.Repeat("a", 32) // the provider knows none
			r, err := m.Generate(t.Context(), req, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := s.got()
			if len(got) != 1 {
				t.Fatalf("%d requests, want 1", len(got))
			}
			g := got[0]
			beta := ""
			if name == "claude-opus-5-5" {
				beta = messages.BindingBeta
			}
			switch {
			case g.path != "POST /v1/messages":
				t.Errorf("asked for %s", g.path)
			case g.header.Get("X-Api-Key") != testKey || g.header.Get("Authorization") != "" || g.header.Get("X-Own") != "":
				t.Errorf("headers %v", g.header)
			case g.header.Get("Anthropic-Version") != "2023-06-01" || g.header.Get("Content-Type") != "application/json" || g.header.Get("Anthropic-Beta") != beta:
				t.Errorf("headers %v", g.header)
			case g.length != int64(len(g.body)) || len(g.chunked) > 0:
				t.Errorf("length %d and encoding %v, want %d stated", g.length, g.chunked, len(g.body))
			}
			if n := utf8.RuneCount(g.body); r.Sent != n {
				t.Errorf("Sent is %d, want %d characters", r.Sent, n)
			}
			if x, err := messagestest.Check(g.body); err != nil || !x.Stream || x.Model != name {
				t.Errorf("%+v, %v", x, err)
			}
			path := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(path, append(g.body, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(append(g.body, '\n'), want) {
				t.Errorf("the body is\n%s\nwant\n%s", g.body, want)
			}

			if _, err := generate(t, s.model(name, nil), nil); err != nil {
				t.Fatal(err)
			}
			if h := s.got()[1].header; h.Get("X-Api-Key") != "" || h.Get("Authorization") != "" {
				t.Errorf("without a key the headers are %v", h)
			}
		})
	}
}

// A body of many megabytes reaches the server whole.
func TestLargeBody(t *testing.T) {
	s := newStub(t, events(answer("hi")...))
	m := s.model("m", nil)
	req := aRequest(t, m)
	for i := range 500 {
		b, marker, err := m.Codec().EncodeMessage(&psych.Message{Role: psych.RoleUser, Blocks: []psych.Block{{Text: strings.Repeat(fmt.Sprint(i), 10_000)}}})
		if err != nil {
			t.Fatal(err)
		}
		req.History = append(req.History, wireOf(b, marker))
	}
	r, err := m.Generate(t.Context(), req, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.got()[0].body; utf8.RuneCount(got) != r.Sent || !json.Valid(got) {
		t.Errorf("%d bytes came, want %d characters", len(got), r.Sent)
	}
}

func TestStream(t *testing.T) {
	s := newStub(t, events(answer("hello")...))
	var told strings.Builder
	r, err := generate(t, s.model("m", nil), func(d psych.Delta) { told.WriteString(d.Text) })
	if err != nil {
		t.Fatal(err)
	}
	if r.Blocks[0].Text != "hello" || told.String() != "hello" || r.Stop != psych.StopEnd || *r.Usage.Input != 25 || *r.Usage.Output != 15 {
		t.Errorf("%+v, told %q", r, told.String())
	}
	if want := `{"type":"anthropic.response","id":"msg_1"}`; string(r.Blocks[1].Provider) != want || r.RequestID != "req_011" {
		t.Errorf("for the log there is %s of request %q, want %s", r.Blocks[1].Provider, r.RequestID, want)
	}
}

// drop sends the start of a stream and breaks the connection.
func drop(start string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(start), start)
		rw.Flush()
	}
}

func sse(data ...string) string {
	var b strings.Builder
	for _, d := range data {
		b.WriteString("data: " + d + "\n\n")
	}
	return b.String()
}

func TestStreamsThatBreak(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"cut":                  drop(sse(start, begun, said("x"))),
		"cut in an event":      drop(sse(start, begun) + "data: {\"type\":"),
		"cut at the start":     drop(": hello\n\n"),
		"cut before the end":   drop(sse(start, begun, said("x"), done)),
		"no stop_reason":       events(start, begun, said("x"), done, stop),
		"only reasoning begun": events(start, `{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}`),
		"nothing":              events(),
		"pings alone":          events(ping, ping),
		"no JSON":              events(start, "<html>"),
		"no stream type":       status(200, map[string]string{"Content-Type": "text/plain"}, "hello"),
	} {
		t.Run(name, func(t *testing.T) {
			r, err := generate(t, newStub(t, answer).model("m", nil), nil)
			if r != nil {
				t.Errorf("there is a response: %+v", r)
			}
			e := modelError(t, err, true)
			if strings.HasPrefix(name, "cut") && !errors.Is(e, io.ErrUnexpectedEOF) {
				t.Errorf("%v is no io.ErrUnexpectedEOF", e)
			}
		})
	}
	// A connection that breaks behind the reason to stop takes nothing away.
	if r, err := generate(t, newStub(t, drop(sse(start, begun, said("x"), done, ended))).model("m", nil), nil); err != nil || r.Blocks[0].Text != "x" {
		t.Errorf("%+v, %v", r, err)
	}
}

func errorEvent(kind, message string) string {
	return `{"type":"error","error":{"type":"` + kind + `","message":"` + message + `"},"request_id":"req_body"}`
}

func TestErrorsInStreams(t *testing.T) {
	for _, c := range []struct {
		error               string
		transient, overflow bool
		status              int
		says                string
	}{
		{errorEvent("overloaded_error", "Overloaded"), true, false, 529, "Overloaded (overloaded_error) [request req_011]"},
		{errorEvent("api_error", "Internal server error"), true, false, 500, "Internal"},
		{errorEvent("rate_limit_error", "slow down"), true, false, 429, "slow down"},
		{errorEvent("timeout_error", "too slow"), true, false, 504, "too slow"},
		{errorEvent("invalid_request_error", "no"), false, false, 400, "no"},
		{errorEvent("invalid_request_error", "prompt is too long: 2 tokens"), false, true, 400, "too long"},
		{errorEvent("authentication_error", "bad key "+testKey), false, false, 401, "[redacted]"},
		{errorEvent("novel_error", "strange"), true, false, 0, "strange"},
		{`{"error":"out of memory"}`, true, false, 0, "out of memory"},
		{`{"type":"error","error":{}}`, true, false, 0, "error"},
	} {
		s := newStub(t, events(start, begun, said("x"), c.error, ended, stop))
		_, err := generate(t, s.model("m", &Options{APIKey: testKey}), nil)
		e := modelError(t, err, c.transient)
		if e.Overflow != c.overflow || e.Status != c.status || e.RequestID != "req_011" || !strings.Contains(e.Message, c.says) || strings.Contains(e.Message, testKey[:20]) {
			t.Errorf("%s: overflow %v, status %d, %q", c.error, e.Overflow, e.Status, e.Message)
		}
	}
}

func TestStatuses(t *testing.T) {
	js := map[string]string{"Content-Type": "application/json"}
	for _, c := range []struct {
		name                string
		code                int
		body                string
		transient, overflow bool
		says                string
	}{
		{"bad request", 400, errorEvent("invalid_request_error", "messages.0: bad"), false, false, "messages.0: bad (invalid_request_error) [request req_011]"},
		{"unauthorized", 401, errorEvent("authentication_error", "invalid x-api-key "+testKey), false, false, "ANTHROPIC_API_KEY"},
		{"billing", 402, errorEvent("billing_error", "pay"), false, false, "pay"},
		{"forbidden", 403, errorEvent("permission_error", "not yours"), false, false, "check the key"},
		{"not found", 404, errorEvent("not_found_error", "model: m"), false, false, "check the name of the model"},
		{"timeout", 408, ``, true, false, "Request Timeout"},
		{"too large", 413, errorEvent("request_too_large", "Request exceeds the maximum size"), false, true, "maximum size"},
		{"too many", 429, errorEvent("rate_limit_error", "slow down"), true, false, "slow down"},
		{"server", 500, errorEvent("api_error", "boom"), true, false, "boom"},
		{"not implemented", 501, `no`, false, false, "no"},
		{"bad gateway", 502, "<!DOCTYPE html><html><head><title>502 Bad\n Gateway</title></head>" + strings.Repeat("<p>long</p>", 10_000), true, false, "a web page: 502 Bad Gateway"},
		{"overloaded", 529, errorEvent("overloaded_error", "Overloaded"), true, false, "Overloaded"},
		{"overloaded, silent", 529, ``, true, false, "overloaded"},
		{"context", 400, errorEvent("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"), false, true, "210000"},
		{"huge", 500, strings.Repeat("x", 3<<20), true, false, strings.Repeat("x", 500) + "…"},
		{"redirect", 304, ``, false, false, "Not Modified"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStub(t, status(c.code, js, c.body))
			_, err := generate(t, s.model("m", &Options{APIKey: testKey}), nil)
			e := modelError(t, err, c.transient)
			if e.Status != c.code || e.RequestID != "req_011" || e.Overflow != c.overflow || !strings.Contains(e.Message, c.says) {
				t.Errorf("status %d, overflow %v, %q; want %q in it", e.Status, e.Overflow, e.Message, c.says)
			}
			if n := utf8.RuneCountInString(e.Message); n > 800 {
				t.Errorf("the message has %d characters", n)
			}
			if shown := e.Error(); strings.Contains(shown, testKey[:15]) || strings.Contains(shown, "ghij") {
				t.Errorf("the key shows: %s", shown)
			}
			if n := len(s.got()); n != 1 {
				t.Errorf("%d requests, want 1", n)
			}
		})
	}
	keyless := newStub(t, status(401, js, errorEvent("authentication_error", "x-api-key header is required")))
	_, err := generate(t, keyless.model("m", nil), nil)
	if e := modelError(t, err, false); !strings.Contains(e.Message, "none was sent") {
		t.Errorf("%v does not say that there was no key", e)
	}
	for _, c := range []struct {
		code int
		says string
		want bool
	}{{529, "false", false}, {400, "true", true}, {429, "maybe", true}} {
		s := newStub(t, status(c.code, map[string]string{"X-Should-Retry": c.says, "Retry-After": "7"}, "{}"))
		_, err := generate(t, s.model("m", nil), nil)
		if e := modelError(t, err, c.want); e.RetryAfter != 7*time.Second {
			t.Errorf("retry after %v, want 7s", e.RetryAfter)
		}
	}
}

// A server that thinks sends pings, or comments, for minutes: each is told, so
// that nobody takes the stream for idle.
// What is refused for blocks that can be left out says so, as a status and in a
// stream.
func TestRefused(t *testing.T) {
	for says, want := range map[string]psych.BlockKind{
		"messages.1.content.0: Invalid `signature` in `thinking` block": psych.ProviderBlocks,
		"Could not process image": psych.ImageBlocks,
		"messages.0: bad":         "",
	} {
		failure := errorEvent("invalid_request_error", says)
		for _, answer := range []http.HandlerFunc{status(400, map[string]string{"Content-Type": "application/json"}, failure), events(start, begun, failure)} {
			_, err := generate(t, newStub(t, answer).model("m", nil), nil)
			if e := modelError(t, err, false); e.Refused != want || e.Status != 400 {
				t.Errorf("%s: refused for %q, want %q, status %d", says, e.Refused, want, e.Status)
			}
		}
	}
}

func TestKeepAlive(t *testing.T) {
	told := make(chan psych.Delta)
	s := newStub(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, sent := range []string{": thinking\n\n", sse(start), sse(ping)} {
			io.WriteString(w, sent)
			w.(http.Flusher).Flush()
			select {
			case d := <-told:
				if d != (psych.Delta{}) {
					t.Errorf("told %+v, want nothing", d)
				}
			case <-r.Context().Done():
				t.Errorf("nothing was told of %q", sent)
			}
		}
		io.WriteString(w, sse(begun, said("x"), ended, stop))
	})
	m := s.model("m", nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a failure, not a hang
	defer cancel()
	text, quiet := "", 0
	if _, err := m.Generate(ctx, aRequest(t, m), func(d psych.Delta) {
		text += d.Text
		if quiet++; quiet <= 3 {
			select {
			case told <- d:
			case <-ctx.Done():
			}
		}
	}); err != nil || text != "x" {
		t.Errorf("told %q, %v", text, err)
	}
}

// Of an error body without end as much is read as is shown.
func TestEndlessErrorBody(t *testing.T) {
	s := newStub(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		for r.Context().Err() == nil {
			io.WriteString(w, strings.Repeat("down ", 1000))
		}
	})
	m := s.model("m", nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a failure, not a hang
	defer cancel()
	_, err := m.Generate(ctx, aRequest(t, m), nil)
	if e := modelError(t, err, true); e.Status != http.StatusBadGateway {
		t.Errorf("status %d, want 502", e.Status)
	}
}

func TestNoStream(t *testing.T) {
	for _, c := range []struct {
		media, body, says string
		transient         bool
	}{
		{"application/json", `{"type":"message","content":[{"type":"text","text":"hi"}]}`, "does not support streaming", false},
		{"application/json", errorEvent("overloaded_error", "Overloaded"), "Overloaded", true},
		{"text/html; charset=utf-8", "<html><title>Sign in</title></html>", "Sign in", false},
	} {
		s := newStub(t, status(200, map[string]string{"Content-Type": c.media}, c.body))
		_, err := generate(t, s.model("m", nil), nil)
		if e := modelError(t, err, c.transient); !strings.Contains(e.Message, c.says) {
			t.Errorf("%s: %q, want %q in it", c.body, e.Message, c.says)
		}
	}
}

func TestUnreachable(t *testing.T) {
	s := newStub(t, events())
	m := s.model("m", &Options{APIKey: testKey})
	s.Close()
	_, err := generate(t, m, nil)
	modelError(t, err, true)

	tls := httptest.NewUnstartedServer(events(answer("hi")...))
	tls.Config.ErrorLog = log.New(io.Discard, "", 0)
	tls.StartTLS()
	defer tls.Close()
	_, err = generate(t, New("m", &Options{BaseURL: tls.URL, APIKey: testKey}), nil)
	if e := modelError(t, err, false); !strings.Contains(e.Message, "certificate") {
		t.Errorf("%v does not name the certificate", e)
	}
	if _, err = generate(t, New("m", &Options{BaseURL: tls.URL, HTTPClient: tls.Client()}), nil); err != nil {
		t.Error(err)
	}
}

// A key must not follow a redirect to another server.
func TestRedirectKeepsTheKey(t *testing.T) {
	other := newStub(t, events(answer("hi")...))
	s := newStub(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+"/v1/messages", http.StatusTemporaryRedirect)
	})
	_, err := generate(t, s.model("m", &Options{APIKey: testKey}), nil)
	if e := modelError(t, err, false); e.Status != http.StatusTemporaryRedirect {
		t.Errorf("the redirect was followed: %v", e)
	}
	if n := len(other.got()); n != 0 {
		t.Errorf("the other server got %d requests", n)
	}
}

func TestCancel(t *testing.T) {
	for name, begin := range map[string]string{"before the answer": "", "in the stream": sse(start, begun, said("x"))} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := newStub(t, func(w http.ResponseWriter, r *http.Request) {
				if begin == "" {
					cancel()
				} else {
					w.Header().Set("Content-Type", "text/event-stream")
					io.WriteString(w, begin)
					w.(http.Flusher).Flush()
				}
				<-r.Context().Done()
			})
			m := s.model("m", nil)
			_, err := m.Generate(ctx, aRequest(t, m), func(psych.Delta) { cancel() })
			if err != context.Canceled {
				t.Errorf("the error is %v, want context.Canceled", err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := newStub(t, events())
	m := s.model("m", nil)
	if _, err := m.Generate(ctx, aRequest(t, m), nil); err != context.Canceled || len(s.got()) > 0 {
		t.Errorf("with an ended context: %v, %d requests", err, len(s.got()))
	}
}

func TestNewReportsWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
	}{
		{"", Options{}}, {"m", Options{BaseURL: "ftp://x"}}, {"m", Options{BaseURL: "http://"}}, {"m", Options{BaseURL: "://"}}, {"m", Options{BaseURL: "http://u:" + testKey + "@h"}},
		{"m", Options{BaseURL: "http://h?key=" + testKey}}, {"m", Options{BaseURL: "h/v1"}}, {"m", Options{CacheTTL: "2h"}}, {"m", Options{Thinking: "hard"}},
	} {
		m := New(c.name, &c.o)
		_, err := generate(t, m, nil)
		e := modelError(t, err, false)
		if !errors.Is(e, psych.ErrInvalid) || strings.Contains(e.Error(), testKey) {
			t.Errorf("%+v: %v", c.o, e)
		}
	}
	s := newStub(t, events(answer("hi")...))
	m := s.model("claude-haiku-4-5", nil)
	req := aRequest(t, m)
	req.Options.Effort = "huge"
	_, err := m.Generate(t.Context(), req, nil)
	if e := modelError(t, err, false); !errors.Is(e, psych.ErrInvalid) || len(s.got()) > 0 {
		t.Errorf("an effort that is none: %v", e)
	}
}

func TestRegister(t *testing.T) {
	env := map[string]string{"ANTHROPIC_API_KEY": testKey + "\n"}
	var b psych.Backends
	Register(&b, func(name string) string { return env[name] })
	open := func(raw string) (*Model, error) {
		m, err := b.Models.Open(t.Context(), raw)
		if err != nil {
			return nil, err
		}
		return m.(*Model), nil
	}
	for raw, want := range map[string]struct{ name, base, key string }{
		"anthropic:claude-opus-5-5":                            {"claude-opus-5-5", DefaultBaseURL, testKey},
		"anthropic:kimi-k3?base_url=http://127.0.0.1:11434":    {"kimi-k3", "http://127.0.0.1:11434", ""},
		"anthropic:a/b%20c?base_url=https%3A%2F%2Fevil.test":   {"a/b c", "https://evil.test", ""},
		"anthropic:m?base_url=https://API.anthropic.com:443/x": {"m", "https://API.anthropic.com:443/x", testKey},
		"anthropic:m?base_url=http://api.anthropic.com":        {"m", "http://api.anthropic.com", ""},
	} {
		m, err := open(raw)
		if err != nil || m.name != want.name || m.base != want.base || m.key != want.key {
			t.Errorf("%s: %+v, %v", raw, m, err)
		}
	}
	m, err := open("anthropic:alias?like=claude-haiku-4-5&max_tokens=8000&context_tokens=9000&cache_ttl=5m&system_cache_ttl=1h&thinking=2000&block_binding=false")
	if err != nil {
		t.Fatal(err)
	}
	if l := m.Codec().Limits(); l.ContextTokens != 9000 || l.ToolName != 64 || len(l.Images) == 0 {
		t.Errorf("limits %+v", l)
	}
	body, err := m.format.Body(m.start, aRequest(t, m))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(body.Reader())
	if err != nil || !bytes.HasPrefix(raw, []byte(`{"model":"alias","stream":true,"max_tokens":8000,"thinking":{"type":"enabled","budget_tokens":2000},"tools"`)) || bytes.Count(raw, []byte(`"ttl":"1h"`)) != 2 {
		t.Errorf("the body is %s, %v", raw, err)
	}
	for _, raw := range []string{
		"anthropic:", "anthropic://m", "anthropic:m#x", "anthropic:m?novel=1", "anthropic:m?max_tokens=0", "anthropic:m?context_tokens=x", "anthropic:m?block_binding=maybe",
		"anthropic:m?cache_ttl=2h", "anthropic:m?cache_ttl=1h&system_cache_ttl=5m", "anthropic:m?thinking=hard", "anthropic:m?like=gpt", "anthropic:m?base_url=h", "anthropic:m?base_url=", "anthropic:m?like=a&like=b", "anthropic:m?base_url=%zz",
		"anthropic:m?api_key=" + testKey, "anthropic:m?x-api-key=" + testKey + "&novel=1", "anthropic:m?base_url=http://" + testKey + "@h&novel=1", "anthropic:m?base_url=http://h?api_key=" + testKey,
	} {
		_, err := open(raw)
		if !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", raw, err)
			continue
		}
		if strings.Contains(err.Error(), testKey) || !strings.HasPrefix(err.Error(), "anthropic: ") {
			t.Errorf("%s: %v", raw, err)
		}
	}
	env["ANTHROPIC_API_KEY"] = ""
	if _, err := open("anthropic:m"); !errors.Is(err, psych.ErrInvalid) || !strings.Contains(err.Error(), "ANTHROPIC_API_KEY") {
		t.Errorf("without a key: %v", err)
	}
	env["ANTHROPIC_BASE_URL"], env["ANTHROPIC_API_KEY"] = "http://gateway.test/a", "k-12345678"
	for raw, key := range map[string]string{"anthropic:m": "k-12345678", "anthropic:m?base_url=http://gateway.test/b": "k-12345678", "anthropic:m?base_url=https://gateway.test/a": "", "anthropic:m?base_url=http://gateway.test:81/a": ""} {
		if m, err := open(raw); err != nil || m.key != key {
			t.Errorf("%s: key %q, %v; want %q", raw, m.key, err, key)
		}
	}
}

// One Model serves many Runs at once.
func TestConcurrent(t *testing.T) {
	s := newStub(t, events(answer("hi")...))
	m := s.model("m", nil)
	req := aRequest(t, m)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if r, err := m.Generate(t.Context(), req, nil); err != nil || r.Blocks[0].Text != "hi" {
				t.Errorf("%v, %v", r, err)
			}
		})
	}
	wg.Wait()
	for _, g := range s.got() {
		if !bytes.Equal(g.body, s.got()[0].body) {
			t.Fatal("two bodies of one request differ")
		}
	}
}
