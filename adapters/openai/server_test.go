package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/psych-go/psych-go/psych"
)

const testKey = "sk-test-0123456789abcdefghij"

// A stub is a Chat Completions server on a socket of its own.
type stub struct {
	*httptest.Server
	mu       sync.Mutex
	requests []received
}

type received struct {
	path, auth, retry string
	length            int64
	chunked           []string
	body              []byte
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
		s.requests = append(s.requests, received{r.Method + " " + r.URL.Path, r.Header.Get("Authorization"), r.Header.Get("X-Stainless-Retry-Count"), r.ContentLength, r.TransferEncoding, body})
		n := min(len(s.requests), len(answers)) - 1
		s.mu.Unlock()
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

func (s *stub) model(o *Options) *Model {
	own := Options{}
	if o != nil {
		own = *o
	}
	own.BaseURL = s.URL + "/v1"
	return New("m", &own)
}

// events answers with a stream of these data, each sent by itself.
func events(data ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, d := range data {
			fmt.Fprintf(w, "data: %s\n\n", d)
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

// delta is a chunk with one choice.
func delta(d string) string { return `{"id":"x","choices":[{"index":0,"delta":` + d + `}]}` }

func finish(reason string) string {
	return `{"choices":[{"index":0,"delta":{},"finish_reason":"` + reason + `"}]}`
}

func aRequest(t *testing.T, m *Model) *psych.Request {
	t.Helper()
	b := &builder{t: t, c: m.Codec()}
	b.tools(goldenTools...)
	b.system("", "Be brief. 日本")
	b.say(psych.RoleUser, psych.Block{Text: "hi"})
	b.tail(tailText)
	return &b.req
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

func blocks(t *testing.T, r *psych.Response) string {
	t.Helper()
	var b strings.Builder
	for _, x := range r.Blocks {
		switch {
		case x.Call != nil:
			fmt.Fprintf(&b, "call %s %s %s|", x.Call.ProviderID, x.Call.Name, x.Call.Arguments)
		case x.Provider != nil:
			fmt.Fprintf(&b, "kept %s|", x.Provider)
		default:
			fmt.Fprintf(&b, "text %s|", x.Text)
		}
	}
	return strings.TrimSuffix(b.String(), "|")
}

func TestRequestAsSent(t *testing.T) {
	s := newStub(t, events(delta(`{"content":"hi"}`), finish("stop"), "[DONE]"))
	m := s.model(&Options{APIKey: testKey})
	req := aRequest(t, m)
	r, err := m.Generate(t.Context(), req, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := s.got()
	if len(got) != 1 {
		t.Fatalf("%d requests, want 1", len(got))
	}
	want := bodyOf(t, m, req)
	switch g := got[0]; {
	case g.path != "POST /v1/chat/completions":
		t.Errorf("asked for %s", g.path)
	case g.auth != "Bearer "+testKey:
		t.Errorf("authorization %q", g.auth)
	case !bytes.Equal(g.body, want):
		t.Errorf("the body is\n%s\nwant\n%s", g.body, want)
	case g.length != int64(len(want)) || len(g.chunked) > 0:
		t.Errorf("length %d and encoding %v, want %d stated", g.length, g.chunked, len(want))
	}
	if n := len([]rune(string(want))); r.Sent != n {
		t.Errorf("Sent is %d, want %d characters", r.Sent, n)
	}
	var body struct {
		Stream  bool `json:"stream"`
		Options struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	if err := json.Unmarshal(got[0].body, &body); err != nil || !body.Stream || !body.Options.Usage {
		t.Errorf("stream options %+v, %v", body, err)
	}
	if strings.Count(string(got[0].body), `"stream"`) != 1 {
		t.Error("stream stands in the body more than once")
	}

	keyless := s.model(nil)
	if _, err := generate(t, keyless, nil); err != nil {
		t.Fatal(err)
	}
	if a := s.got()[1].auth; a != "" {
		t.Errorf("without a key the authorization is %q", a)
	}
}

// A body of many megabytes reaches the server whole.
func TestLargeBody(t *testing.T) {
	s := newStub(t, events(finish("stop")))
	m := s.model(nil)
	b := &builder{t: t, c: m.Codec()}
	for i := range 500 {
		b.say(psych.RoleUser, psych.Block{Text: strings.Repeat(fmt.Sprint(i), 10_000)})
	}
	if _, err := m.Generate(t.Context(), &b.req, nil); err != nil {
		t.Fatal(err)
	}
	if want := bodyOf(t, m, &b.req); !bytes.Equal(s.got()[0].body, want) {
		t.Errorf("%d bytes came, want the %d that were sent", len(s.got()[0].body), len(want))
	}
}

func TestStreams(t *testing.T) {
	thousand := []string{delta(`{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]}`)}
	for range 1000 {
		thousand = append(thousand, delta(`{"tool_calls":[{"index":0,"function":{"arguments":"1"}}]}`))
	}
	for _, c := range []struct {
		name   string
		events []string
		want   string
		stop   psych.StopReason
	}{
		{"text", []string{delta(`{"role":"assistant","content":""}`), delta(`{"content":"he"}`), delta(`{"content":"llo é\ud83c"}`), delta(`{"content":"\udca1"}`), finish("stop"), "[DONE]"}, "text hello é🂡", psych.StopEnd},
		{"no DONE", []string{delta(`{"content":"x"}`), finish("stop")}, "text x", psych.StopEnd},
		{"finish with the last piece", []string{`{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}`, "[DONE]"}, "text x", psych.StopEnd},
		{"nothing", []string{finish("stop"), "[DONE]"}, "", psych.StopEnd},
		{"content in parts", []string{delta(`{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"image"}]}`), finish("stop")}, "text ab", psych.StopEnd},
		{"cut at the limit", []string{delta(`{"content":"x"}`), finish("length")}, "text x", psych.StopMaxTokens},
		{"refusal", []string{delta(`{"refusal":"I can"}`), delta(`{"refusal":"not."}`), finish("stop")}, "text I cannot.", psych.StopRefusal},
		{"refusal after a call", []string{delta(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]}`), delta(`{"refusal":"No."}`), finish("stop")}, "text No.|call a f {}", psych.StopRefusal},
		{"content filter", []string{delta(`{"content":"x"}`), finish("content_filter")}, "text x", psych.StopRefusal},
		{"unknown reason", []string{delta(`{"content":"x"}`), finish("novel")}, "text x", "novel"},
		{"other choices", []string{`{"choices":[{"index":1,"delta":{"content":"no"},"finish_reason":"length"}]}`, `{"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}`}, "text x", psych.StopEnd},
		{"only reasoning", []string{delta(`{"reasoning_content":"hm"}`), finish("stop")}, `kept {"type":"openai.chat","message":{"reasoning_content":"hm"}}`, psych.StopEnd},
		{"calls in pieces, interleaved", []string{
			delta(`{"content":null,"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]}`),
			delta(`{"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"g","arguments":"{\"y\""}}]}`),
			delta(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"x\":"}},{"index":1,"function":{"arguments":":2}"}}]}`),
			delta(`{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}`), finish("tool_calls"), "[DONE]",
		}, `call a f {"x":1}|call b g {"y":2}`, psych.StopToolUse},
		{"a thousand pieces", append(thousand, finish("tool_calls")), "call a f " + strings.Repeat("1", 1000), psych.StopToolUse},
		{"stop for calls", []string{delta(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]}`), finish("stop")}, "call a f {}", psych.StopToolUse},
		{"one index for all", []string{delta(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]}`), delta(`{"tool_calls":[{"index":0,"id":"b","function":{"name":"f","arguments":"{\"x\""}}]}`), delta(`{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}`), finish("tool_calls")}, `call a f {}|call b f {"x":1}`, psych.StopToolUse},
		{"no index", []string{delta(`{"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}},{"id":"b","function":{"name":"g","arguments":"{"}}]}`), delta(`{"tool_calls":[{"function":{"arguments":"}"}}]}`), finish("tool_calls")}, "call a f {}|call b g {}", psych.StopToolUse},
		{"no index and no ids", []string{delta(`{"tool_calls":[{"function":{"name":"f","arguments":"{}"}},{"function":{"name":"f","arguments":"{}"}}]}`), finish("tool_calls")}, "call  f {}|call  f {}", psych.StopToolUse},
		{"name and id with each piece", []string{delta(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}]}`), delta(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"}"}}]}`), finish("tool_calls")}, "call a f {}", psych.StopToolUse},
		{"name in pieces", []string{delta(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"lo"}}]}`), delta(`{"tool_calls":[{"index":0,"function":{"name":"ok","arguments":"{}"}}]}`), finish("tool_calls")}, "call a look {}", psych.StopToolUse},
		{"arguments as an object", []string{delta(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":{"x": 1.0}}}]}`), finish("tool_calls")}, `call a f {"x": 1.0}`, psych.StopToolUse},
		{"arguments that are not JSON", []string{delta(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":"}}]}`), finish("length")}, `call a f {"x":`, psych.StopMaxTokens},
		{"no arguments", []string{delta(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"f"}}]}`), finish("tool_calls")}, "call a f ", psych.StopToolUse},
		{"unknown events and comments", []string{`{"novel":1}`, `{"choices":[],"error":null}`, delta(`{"content":"x"}`) + "\n\n: ping\n\nevent: novel\ndata: {\"a\":1}", finish("stop")}, "text x", psych.StopEnd},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStub(t, events(c.events...))
			var text, args strings.Builder
			names := map[int]string{}
			r, err := generate(t, s.model(nil), func(d psych.Delta) {
				text.WriteString(d.Text)
				args.WriteString(d.Arguments)
				if d.Name != "" {
					names[d.Call] += d.Name
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := blocks(t, r); got != c.want || r.Stop != c.stop {
				t.Errorf("got %q, %q; want %q, %q", got, r.Stop, c.want, c.stop)
			}
			var said, called int
			for _, b := range r.Blocks {
				said += len(strings.Trim(b.Text, "🂡"))
				if b.Call != nil {
					called++
					if names[called] != b.Call.Name {
						t.Errorf("the pieces of call %d name %q, the call %q", called, names[called], b.Call.Name)
					}
					args := strings.Count(args.String(), "1")
					if c.name == "a thousand pieces" && args != 1000 {
						t.Errorf("%d pieces of arguments were told", args)
					}
				}
			}
			if got := len(strings.Trim(text.String(), "🂡\uFFFD")); got != said {
				t.Errorf("pieces of %d bytes of text were told, want %d", got, said)
			}
		})
	}
}

func TestReasoningDeltas(t *testing.T) {
	s := newStub(t, events(delta(`{"reasoning":"a","reasoning_content":"a"}`), delta(`{"reasoning":"b"}`), delta(`{"content":"x"}`), finish("stop")))
	var told strings.Builder
	r, err := generate(t, s.model(nil), func(d psych.Delta) { told.WriteString(d.Reasoning) })
	if err != nil {
		t.Fatal(err)
	}
	if told.String() != "ab" {
		t.Errorf("told %q, want ab", told.String())
	}
	const want = `kept {"type":"openai.chat","message":{"reasoning":"ab","reasoning_content":"a"}}|text x`
	if got := blocks(t, r); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestUsage(t *testing.T) {
	n := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		usage string
		want  psych.Usage
	}{
		{``, psych.Usage{}},
		{`null`, psych.Usage{}},
		{`{"prompt_tokens":10,"completion_tokens":2}`, psych.Usage{Input: n(10), Output: n(2)}},
		{`{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":null}`, psych.Usage{Input: n(10), Output: n(2)}},
		{`{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"audio_tokens":0}}`, psych.Usage{Input: n(10), Output: n(2)}},
		{`{"prompt_tokens":10,"completion_tokens":0,"prompt_tokens_details":{"cached_tokens":0}}`, psych.Usage{Input: n(10), Output: n(0), CacheRead: n(0)}},
		{`{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8,"cache_write_tokens":2}}`, psych.Usage{Input: n(10), Output: n(2), CacheRead: n(8), CacheWrite: n(2)}},
		{`{"prompt_tokens":10,"completion_tokens":2,"prompt_cache_hit_tokens":7}`, psych.Usage{Input: n(10), Output: n(2), CacheRead: n(7)}},
		{`{"prompt_tokens":-1,"completion_tokens":"2","prompt_tokens_details":[]}`, psych.Usage{}},
		{`{"prompt_tokens":10.0,"completion_tokens":2.5,"prompt_tokens_details":{"cached_tokens":11}}`, psych.Usage{Input: n(10)}},
		{`[]`, psych.Usage{}},
	} {
		data := []string{delta(`{"content":"x"}`), finish("stop")}
		if c.usage != "" {
			data = append(data, `{"choices":[],"usage":`+c.usage+`}`)
		}
		s := newStub(t, events(append(data, "[DONE]")...))
		r, err := generate(t, s.model(nil), nil)
		if err != nil {
			t.Fatalf("%s: %v", c.usage, err)
		}
		got, _ := json.Marshal(r.Usage)
		if want, _ := json.Marshal(c.want); !bytes.Equal(got, want) {
			t.Errorf("%s is %s, want %s", c.usage, got, want)
		}
	}
}

// Of usage that is told twice the last holds, though it be less: it is that of
// the whole answer.
func TestUsageThatDecreases(t *testing.T) {
	s := newStub(t, events(delta(`{"content":"x"}`), `{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":9}}`, finish("stop"), `{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":5}}`, "[DONE]"))
	r, err := generate(t, s.model(nil), nil)
	if err != nil || r.Usage.Input == nil || *r.Usage.Input != 10 || r.Usage.Output == nil || *r.Usage.Output != 5 {
		t.Errorf("%+v, %v", r, err)
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

func TestStreamsThatBreak(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"cut":               drop("data: " + delta(`{"content":"x"}`) + "\n\n"),
		"cut in an event":   drop("data: " + delta(`{"content":"x"}`) + "\n\ndata: {\"choices\":[{"),
		"cut at the start":  drop(": hello\n\n"),
		"cut before usage":  drop("data: " + finish("stop") + "\n\n"),
		"no finish_reason":  events(delta(`{"content":"x"}`)),
		"DONE too early":    events(delta(`{"content":"x"}`), "[DONE]", finish("stop")),
		"nothing":           events(),
		"no JSON":           events(delta(`{"content":"x"}`), "<html>"),
		"of another shape":  events(`{"choices":{}}`),
		"delta is a string": events(delta(`"x"`)),
		"calls are one":     events(delta(`{"tool_calls":{}}`)),
		"no stream type":    status(200, map[string]string{"Content-Type": "text/plain"}, "hello"),
	} {
		t.Run(name, func(t *testing.T) {
			r, err := generate(t, newStub(t, answer).model(nil), nil)
			if r != nil {
				t.Errorf("there is a response: %s", blocks(t, r))
			}
			e := modelError(t, err, true)
			if strings.HasPrefix(name, "cut") && !errors.Is(e, io.ErrUnexpectedEOF) {
				t.Errorf("%v is no io.ErrUnexpectedEOF", e)
			}
		})
	}
}

func TestErrorsInStreams(t *testing.T) {
	for _, c := range []struct {
		error               string
		transient, overflow bool
		status              int
		says                string
	}{
		{`{"message":"The server had an error","type":"server_error"}`, true, false, 0, "had an error"},
		{`{"message":"Overloaded","code":502}`, true, false, 502, "Overloaded (502)"},
		{`{"message":"slow down","type":"tokens","code":"rate_limit_exceeded"}`, true, false, 0, "slow down"},
		{`{"message":"no","type":"invalid_request_error"}`, false, false, 0, "no"},
		{`{"message":"Bad key","code":401}`, false, false, 401, "Bad key"},
		{`{"message":"too long","code":"context_length_exceeded"}`, false, true, 0, "too long"},
		{`{"message":"pay","code":"insufficient_quota"}`, false, false, 0, "pay"},
		{`"out of memory"`, true, false, 0, "out of memory"},
		{`{}`, true, false, 0, "no reason"},
	} {
		for _, at := range []string{`{"error":` + c.error + `}`, `{"choices":[{"index":0,"delta":{},"finish_reason":"error","error":` + c.error + `}]}`} {
			s := newStub(t, events(delta(`{"content":"x"}`), at, "[DONE]"))
			_, err := generate(t, s.model(nil), nil)
			e := modelError(t, err, c.transient)
			if e.Overflow != c.overflow || e.Status != c.status || !strings.Contains(e.Message, c.says) {
				t.Errorf("%s: overflow %v, status %d, %q", at, e.Overflow, e.Status, e.Message)
			}
		}
	}
	s := newStub(t, events(delta(`{"content":"x"}`), finish("error")))
	_, err := generate(t, s.model(nil), nil)
	modelError(t, err, true)
}

func TestStatuses(t *testing.T) {
	js := map[string]string{"Content-Type": "application/json"}
	overflow := func(says string) string { return `{"error":{"message":"` + says + `","type":"invalid_request_error"}}` }
	for _, c := range []struct {
		name                string
		code                int
		body                string
		transient, overflow bool
		says                string
	}{
		{"bad request", 400, `{"error":{"message":"Invalid 'tools'","type":"invalid_request_error","code":"bad_tools"}}`, false, false, "Invalid 'tools' (bad_tools)"},
		{"unauthorized", 401, `{"error":{"message":"Incorrect API key provided: ` + testKey + `.","code":"invalid_api_key"}}`, false, false, "OPENAI_API_KEY"},
		{"masked key", 401, `{"error":{"message":"Incorrect API key provided: sk-test*****ghij."}}`, false, false, "[redacted]"},
		{"part of the key", 403, `{"error":{"message":"project 0123456789 of key=\"` + testKey + `\" may not"}}`, false, false, "[redacted]"},
		{"not found", 404, `{"error":"model 'm' not found"}`, false, false, "model 'm' not found: check the name"},
		{"timeout", 408, ``, true, false, "Request Timeout"},
		{"conflict", 409, `{"message":"lock"}`, true, false, "lock"},
		{"too many", 429, `{"error":{"message":"slow down"}}`, true, false, "slow down"},
		{"quota", 429, `{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}`, false, false, "quota"},
		{"server", 500, `{"detail":"boom"}`, true, false, "boom"},
		{"not implemented", 501, `no`, false, false, "no"},
		{"bad gateway", 502, "<!DOCTYPE html><html><head><title>502 Bad\n Gateway &amp; more</title></head><body>" + strings.Repeat("<p>long</p>", 10_000), true, false, "a web page: 502 Bad Gateway & more"},
		{"untitled page", 503, "<html><body>" + strings.Repeat("down ", 1000), true, false, "a web page: down down"},
		{"overloaded", 529, `{"error":{"message":"Overloaded"}}`, true, false, "Overloaded"},
		{"validation", 422, `{"detail":[{"loc":["body"],"msg":"extra"}]}`, false, false, `"msg":"extra"`},
		{"in a list", 400, `[{"error":{"code":400,"message":"Name a function"}}]`, false, false, "Name a function (400)"},
		{"not JSON", 500, "{\x00\x1b[31m bad \xff", true, false, "{ [31m bad \uFFFD"},
		{"huge", 500, strings.Repeat("x", 3<<20), true, false, strings.Repeat("x", 500) + "…"},
		{"context: code", 400, `{"error":{"message":"This is long","code":"context_length_exceeded"}}`, false, true, "This is long"},
		{"context: OpenAI", 400, overflow("This model's maximum context length is 8192 tokens."), false, true, "8192"},
		{"context: llama.cpp", 400, `{"error":{"code":400,"message":"request (9000 tokens) exceeds the available context size","type":"exceed_context_size_error"}}`, false, true, "9000"},
		{"context: gateway", 400, overflow("prompt is too long: 210000 tokens > 200000 maximum"), false, true, "210000"},
		{"context: google", 400, `[{"error":{"message":"The input token count (1) exceeds the maximum number of tokens allowed"}}]`, false, true, "token count"},
		{"too large", 413, "<html><h1>413 Request Entity Too Large</h1></html>", false, true, "413 Request"},
		{"redirect", 304, ``, false, false, "Not Modified"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStub(t, status(c.code, js, c.body))
			_, err := generate(t, s.model(&Options{APIKey: testKey}), nil)
			e := modelError(t, err, c.transient)
			if e.Status != c.code || e.Overflow != c.overflow || !strings.Contains(e.Message, c.says) {
				t.Errorf("status %d, overflow %v, %q; want %q in it", e.Status, e.Overflow, e.Message, c.says)
			}
			if n := len([]rune(e.Message)); n > 800 {
				t.Errorf("the message has %d characters", n)
			}
			for _, shown := range []string{e.Message, fmt.Sprintf("%v %+v %s", e.Err, e.Err, e)} {
				if strings.Contains(shown, testKey[:15]) || strings.Contains(shown, "ghij") || strings.Contains(shown, "0123456789") {
					t.Errorf("the key shows: %s", shown)
				}
			}
			if n := len(s.got()); n != 1 {
				t.Errorf("%d requests, want 1", n)
			}
		})
	}
}

// An answer without end is given up, and not asked for again.
func TestAnswersAreBounded(t *testing.T) {
	a := newAssembler(nil)
	a.bytes = maxAnswer - 100
	if _, err := a.add([]byte(delta(`{"content":"` + strings.Repeat("x", 100) + `"}`))); !errors.Is(err, errTooMuch) {
		t.Errorf("over the limit: %v, want %v", err, errTooMuch)
	}
	var calls []string
	for i := range maxCalls + 1 {
		calls = append(calls, delta(fmt.Sprintf(`{"tool_calls":[{"index":%d,"id":"%d","function":{"name":"f"}}]}`, i, i)))
	}
	_, err := generate(t, newStub(t, events(calls...)).model(nil), nil)
	if e := modelError(t, err, false); !errors.Is(e, errTooMuch) {
		t.Errorf("the error is %v, want %v", e, errTooMuch)
	}
}

// A server that thinks sends comments, or chunks without content, for minutes:
// each is told, so that nobody takes the stream for idle.
func TestKeepAlive(t *testing.T) {
	told := make(chan psych.Delta)
	s := newStub(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, sent := range []string{": thinking\n\n", "data: " + delta(`{"role":"assistant","content":""}`) + "\n\n"} {
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
		events(delta(`{"content":"x"}`), finish("stop"), "[DONE]")(w, r)
	})
	m := s.model(nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a failure, not a hang
	defer cancel()
	text := ""
	if _, err := m.Generate(ctx, aRequest(t, m), func(d psych.Delta) {
		if text += d.Text; text == "" {
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
	m := s.model(nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // a failure, not a hang
	defer cancel()
	_, err := m.Generate(ctx, aRequest(t, m), nil)
	if e := modelError(t, err, true); e.Status != http.StatusBadGateway {
		t.Errorf("status %d, want 502", e.Status)
	}
}

// An error inside a stream that says which status it stands for is no refusal,
// and no full context, where that status is none, whatever else it mentions.
func TestRefusedInStreamByStatus(t *testing.T) {
	for _, says := range []string{"at most 5 images a minute", "could not load the image processor", "too many tokens"} {
		for _, code := range []int{429, 503} {
			_, err := generate(t, newStub(t, typed(fmt.Sprintf(`{"error":{"code":%d,"message":%q}}`, code, says))).model(nil), nil)
			if e := modelError(t, err, true); e.Refused != "" || e.Overflow || e.Status != code {
				t.Errorf("%d, %s: refused for %q, overflow %v, status %d", code, says, e.Refused, e.Overflow, e.Status)
			}
		}
	}
}

// What is refused for blocks that can be left out is told from all else, as a
// status and in a stream, by both APIs.
func TestRefused(t *testing.T) {
	js := map[string]string{"Content-Type": "application/json"}
	for _, c := range []struct {
		code    int
		error   string
		refused psych.BlockKind
	}{
		{400, `{"message":"The encrypted content gAAA...c90= could not be verified.","type":"invalid_request_error","param":null,"code":"invalid_encrypted_content"}`, psych.ProviderBlocks},
		{400, `{"message":"The encrypted content gAAA...wXBV could not be verified.","type":"invalid_request_error","param":null,"code":null}`, psych.ProviderBlocks},
		{400, `{"message":"The encrypted content for item rs_0a18 could not be verified. Reason: Encrypted content could not be decrypted or parsed.","type":"invalid_request_error"}`, psych.ProviderBlocks},
		{400, `{"message":"Item 'rs_1' of type 'reasoning' was provided without its required following item.","type":"invalid_request_error"}`, psych.ProviderBlocks},
		{404, `{"message":"Item with id 'rs_1' not found. Items are not persisted when ` + "`store`" + ` is set to false.","type":"invalid_request_error"}`, psych.ProviderBlocks},
		{400, `{"message":"The image data you provided does not represent a valid image. Please check your input and try again.","type":"invalid_request_error","code":"invalid_image"}`, psych.ImageBlocks},
		{400, `{"message":"it is none","code":"image_parse_error"}`, psych.ImageBlocks},
		{400, `{"message":"You uploaded an unsupported image. Please make sure your image is valid."}`, psych.ImageBlocks},
		{400, `{"message":"At most 0 image(s) may be provided in one prompt."}`, psych.ImageBlocks},
		{400, `{"message":"Invalid type for 'messages[0].content[1].image_url'."}`, psych.ImageBlocks},
		{404, `{"message":"No endpoints found that support image input"}`, psych.ImageBlocks},
		{422, `{"message":"image input is not supported by this model"}`, psych.ImageBlocks},
		{400, `{"message":"Encrypted content is not supported with this model.","param":"include"}`, ""},
		{400, `{"message":"Your input exceeds the context window, with an invalid image","code":"context_length_exceeded"}`, ""},
		{400, `{"message":"Invalid schema for function 'image_maker'"}`, ""},
		{400, `{"message":"Invalid schema for function 'make-image': In context=(), 'x' is not valid"}`, ""},
		{400, `{"message":"Invalid value for 'tools[3].function.description': an image","param":"tools[3].function.description"}`, ""},
		{400, `{"message":"Invalid 'tools'","code":"bad_tools"}`, ""},
		{401, `{"message":"an invalid image key"}`, ""},
		{429, `{"message":"The encrypted content could not be verified"}`, ""},
	} {
		for _, api := range []bool{false, true} {
			s := newStub(t, status(c.code, js, `{"error":`+c.error+`}`))
			m := s.model(nil)
			if api {
				m = s.responses(nil)
			}
			_, err := generate(t, m, nil)
			if e := modelError(t, err, c.code == 429); e.Refused != c.refused {
				t.Errorf("%s: refused for %q, want %q", c.error, e.Refused, c.refused)
			}
			if c.code != 400 {
				continue
			}
			if s = newStub(t, typed(created, `{"type":"response.failed","response":{"status":"failed","error":`+c.error+`}}`)); !api {
				s = newStub(t, typed(`{"error":`+c.error+`}`))
			}
			if m = s.model(nil); api {
				m = s.responses(nil)
			}
			_, err = generate(t, m, nil)
			var e *psych.ModelError
			if !errors.As(err, &e) || e.Refused != c.refused {
				t.Errorf("%s in a stream: %v, want it refused for %q", c.error, err, c.refused)
			}
		}
	}
}

func TestRetryAfter(t *testing.T) {
	date := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		header map[string]string
		want   time.Duration
	}{
		{map[string]string{"Retry-After": "7"}, 7 * time.Second},
		{map[string]string{"Retry-After": "0.5"}, 500 * time.Millisecond},
		{map[string]string{"Retry-After-Ms": "1500", "Retry-After": "9"}, 1500 * time.Millisecond},
		{map[string]string{"Date": date.Format(http.TimeFormat), "Retry-After": date.Add(90 * time.Second).Format(http.TimeFormat)}, 90 * time.Second},
		{map[string]string{"Date": date.Format(http.TimeFormat), "Retry-After": date.Add(-time.Hour).Format(http.TimeFormat)}, 0},
		{map[string]string{"Retry-After": "-3"}, 0},
		{map[string]string{"Retry-After": "1e300"}, maxRetryAfter},
		{map[string]string{"Retry-After": "Inf"}, maxRetryAfter},
		{map[string]string{"Retry-After": "NaN"}, 0},
		{map[string]string{"Retry-After": "soon"}, 0},
		{nil, 0},
	} {
		s := newStub(t, status(429, c.header, `{"error":{"message":"slow down"}}`))
		_, err := generate(t, s.model(nil), nil)
		if e := modelError(t, err, true); e.RetryAfter != c.want {
			t.Errorf("%v: %v, want %v", c.header, e.RetryAfter, c.want)
		}
	}
	now := time.Now().UTC().Truncate(time.Second)
	if d := retryAfter(http.Header{"Retry-After": {now.Add(time.Minute).Format(http.TimeFormat)}}, now); d != time.Minute {
		t.Errorf("a date without the server's own is %v away, want 1m", d)
	}
}

func TestShouldRetryHeader(t *testing.T) {
	for _, c := range []struct {
		code int
		says string
		want bool
	}{{500, "false", false}, {400, "true", true}, {429, "maybe", true}} {
		s := newStub(t, status(c.code, map[string]string{"X-Should-Retry": c.says}, "{}"))
		_, err := generate(t, s.model(nil), nil)
		modelError(t, err, c.want)
	}
}

func TestNoStream(t *testing.T) {
	for _, c := range []struct {
		media, body, says string
		transient         bool
	}{
		{"application/json", `{"id":"x","choices":[{"message":{"content":"hi"}}]}`, "does not support streaming", false},
		{"application/json", `{"error":{"message":"model is loading","type":"server_error"}}`, "model is loading", true},
		{"text/html; charset=utf-8", "<html><title>Sign in</title></html>", "Sign in", false},
	} {
		s := newStub(t, status(200, map[string]string{"Content-Type": c.media}, c.body))
		_, err := generate(t, s.model(nil), nil)
		if e := modelError(t, err, c.transient); !strings.Contains(e.Message, c.says) {
			t.Errorf("%s: %q, want %q in it", c.body, e.Message, c.says)
		}
	}
}

func TestUnreachable(t *testing.T) {
	s := newStub(t, events())
	m := s.model(&Options{APIKey: testKey})
	s.Close()
	_, err := generate(t, m, nil)
	modelError(t, err, true)

	tls := httptest.NewTLSServer(events())
	defer tls.Close()
	tls.Config.ErrorLog = nil
	_, err = generate(t, New("m", &Options{BaseURL: tls.URL, APIKey: testKey}), nil)
	if e := modelError(t, err, false); !strings.Contains(e.Message, "certificate") {
		t.Errorf("%v does not name the certificate", e)
	}
	if _, err = generate(t, New("m", &Options{BaseURL: tls.URL, HTTPClient: tls.Client()}), nil); err == nil {
		t.Error("an empty stream is an answer")
	} else {
		modelError(t, err, true)
	}
}

// A key must not follow a redirect to another server.
func TestRedirectKeepsTheKey(t *testing.T) {
	other := newStub(t, events(finish("stop")))
	s := newStub(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+"/v1/chat/completions", http.StatusTemporaryRedirect)
	})
	if _, err := generate(t, s.model(&Options{APIKey: testKey}), nil); err == nil {
		t.Error("the redirect was followed")
	}
	if n := len(other.got()); n != 0 {
		t.Errorf("the other server got %d requests", n)
	}
}

func TestCancel(t *testing.T) {
	for name, start := range map[string]string{"before the answer": "", "in the stream": "data: " + delta(`{"content":"x"}`) + "\n\n"} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := newStub(t, func(w http.ResponseWriter, r *http.Request) {
				if start == "" {
					cancel()
				} else {
					w.Header().Set("Content-Type", "text/event-stream")
					io.WriteString(w, start)
					w.(http.Flusher).Flush()
				}
				<-r.Context().Done()
			})
			m := s.model(nil)
			_, err := m.Generate(ctx, aRequest(t, m), func(psych.Delta) { cancel() })
			if err != context.Canceled {
				t.Errorf("the error is %v, want context.Canceled", err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := newStub(t, events())
	m := s.model(nil)
	if _, err := m.Generate(ctx, aRequest(t, m), nil); err != context.Canceled || len(s.got()) > 0 {
		t.Errorf("with an ended context: %v, %d requests", err, len(s.got()))
	}
}

func TestNewReportsWhatIsWrong(t *testing.T) {
	for _, c := range []struct{ name, base string }{
		{"", ""}, {"m", "ftp://x"}, {"m", "http://"}, {"m", "://"}, {"m", "http://u:" + testKey + "@h/v1"}, {"m", "http://h/v1?key=" + testKey}, {"m", "h/v1"},
	} {
		m := New(c.name, &Options{BaseURL: c.base})
		_, err := generate(t, m, nil)
		e := modelError(t, err, false)
		if !errors.Is(e, psych.ErrInvalid) || strings.Contains(e.Error(), testKey) {
			t.Errorf("%s: %v", c.base, e)
		}
	}
}

func TestRegister(t *testing.T) {
	env := map[string]string{"OPENAI_API_KEY": testKey + "\n", "OPENAI_ORG_ID": "org"}
	var b psych.Backends
	Register(&b, func(name string) string { return env[name] })
	open := func(raw string) (*Model, error) {
		m, err := b.Models.Open(t.Context(), raw)
		if err != nil {
			return nil, err
		}
		return m.(*Model), nil
	}
	for raw, want := range map[string]struct {
		name, base, key string
		limits          psych.ModelLimits
		o               Options
	}{
		"openai:gpt-5":               {"gpt-5", DefaultBaseURL, testKey, openAILimits, Options{}},
		"openai:gpt-5?api=chat":      {"gpt-5", DefaultBaseURL, testKey, openAILimits, Options{}},
		"openai:gpt-5?api=responses": {"gpt-5", DefaultBaseURL, testKey, openAILimits, Options{Responses: true}},
		"openai:gpt-5?images=false":  {"gpt-5", DefaultBaseURL, testKey, openAILimits, Options{}},
		"openai:gpt-5?api=responses&reasoning_summary=auto&images=true&context_tokens=9": {"gpt-5", DefaultBaseURL, testKey,
			psych.ModelLimits{Tools: 128, ToolName: 64, ToolDescription: 1024, ContextTokens: 9, Images: imageTypes, ImageBytes: imageBytes}, Options{Responses: true, ReasoningSummary: "auto", Images: true}},
		"openai:llama3:8b?base_url=http://127.0.0.1:11434/v1":    {"llama3:8b", "http://127.0.0.1:11434/v1", "", openAILimits, Options{}},
		"openai:meta/llama%20x?base_url=https%3A%2F%2Fevil.test": {"meta/llama x", "https://evil.test", "", openAILimits, Options{}},
		"openai:m?base_url=https://API.openai.com:443/v2&context_tokens=8000&drop_reasoning=true&legacy_max_tokens=1&prompt_cache_key=k&cache_breakpoints=false": {
			"m", "https://API.openai.com:443/v2", testKey, psych.ModelLimits{Tools: 128, ToolName: 64, ToolDescription: 1024, ContextTokens: 8000}, Options{DropReasoning: true, LegacyMaxTokens: true, CacheKey: "k", NoCacheBreakpoints: true}},
		"openai:gpt-5.6?cache_ttl=12h":                                  {"gpt-5.6", DefaultBaseURL, testKey, openAILimits, Options{CacheBreakpoints: true, CacheTTL: "12h"}},
		"openai:gpt-5.6?cache_breakpoints=false":                        {"gpt-5.6", DefaultBaseURL, testKey, openAILimits, Options{NoCacheBreakpoints: true}},
		"openai:gpt-5.6?base_url=https://x.test":                        {"gpt-5.6", "https://x.test", "", openAILimits, Options{}},
		"openai:gpt-5.6?base_url=https://x.test&cache_breakpoints=true": {"gpt-5.6", "https://x.test", "", openAILimits, Options{CacheBreakpoints: true}},
	} {
		m, err := open(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if m.name != want.name || m.base != want.base || m.key != want.key || !reflect.DeepEqual(m.Codec().Limits(), want.limits) ||
			m.o.DropReasoning != want.o.DropReasoning || m.o.LegacyMaxTokens != want.o.LegacyMaxTokens || m.o.CacheKey != want.o.CacheKey || m.o.CacheBreakpoints != want.o.CacheBreakpoints || m.o.NoCacheBreakpoints != want.o.NoCacheBreakpoints || m.o.CacheTTL != want.o.CacheTTL ||
			m.o.Responses != want.o.Responses || m.o.Images != want.o.Images || m.o.ReasoningSummary != want.o.ReasoningSummary {
			t.Errorf("%s is %+v", raw, m)
		}
	}
	for _, raw := range []string{
		"openai:", "openai://m", "openai:///m", "openai:m#x", "openai:m?novel=1", "openai:m?legacy_max_tokens=yes", "openai:m?context_tokens=0", "openai:m?context_tokens=x",
		"openai:m?api=", "openai:m?api=completions", "openai:m?images=yes", "openai:m?reasoning_summary=auto", "openai:m?api=responses&legacy_max_tokens=true",
		"openai:m?base_url=h", "openai:m?cache_ttl=1h", "openai:m?cache_breakpoints=perhaps", "openai:m?base_url=", "openai:m?prompt_cache_key=a&prompt_cache_key=b", "openai:m?base_url=%zz",
		"openai:m?api_key=" + testKey, "openai:m?api-key=" + testKey + "&novel=1", "openai:m?base_url=http://" + testKey + "@h/v1&novel=1", "openai:m?base_url=http://h/v1?api_key=" + testKey,
	} {
		_, err := open(raw)
		if !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", raw, err)
			continue
		}
		if strings.Contains(err.Error(), testKey) && strings.Contains(raw, testKey) {
			t.Errorf("the key shows: %v", err)
		}
	}
	env["OPENAI_API_KEY"] = ""
	if _, err := open("openai:gpt-5"); !errors.Is(err, psych.ErrInvalid) || !strings.Contains(err.Error(), "OPENAI_API_KEY") {
		t.Errorf("without a key: %v", err)
	}
	env["OPENAI_BASE_URL"], env["OPENAI_API_KEY"] = "http://gateway.test/a", "k-12345678"
	for raw, key := range map[string]string{"openai:m": "k-12345678", "openai:m?base_url=http://gateway.test/b": "k-12345678", "openai:m?base_url=https://gateway.test/a": "", "openai:m?base_url=http://gateway.test:81/a": ""} {
		if m, err := open(raw); err != nil || m.key != key {
			t.Errorf("%s: key %q, %v; want %q", raw, m.key, err, key)
		}
	}
}

// One Model serves many Runs at once.
func TestConcurrent(t *testing.T) {
	s := newStub(t, events(delta(`{"content":"hi"}`), finish("stop"), "[DONE]"))
	m := s.model(nil)
	req := aRequest(t, m)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if r, err := m.Generate(t.Context(), req, nil); err != nil || blocks(t, r) != "text hi" {
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

// The assembler takes any bytes without a panic, tells what it returns, and
// what it keeps can be sent again.
func FuzzAssemble(f *testing.F) {
	f.Add([]byte(delta(`{"content":"x","reasoning":"\ud83c"}`) + "\n" + delta(`{"reasoning":"\udca1","a":{"b":[1,{"index":0,"t":"x"}]}}`) + "\n" + finish("stop")))
	f.Add([]byte(delta(`{"tool_calls":[{"index":0,"id":"a","z":1,"function":{"name":"f","arguments":"{","q":{}}},{"index":"x"}]}`) + "\n" + delta(`{"tool_calls":[{},{"id":"b","function":{"name":"f","arguments":{}}}]}`) + "\n" + finish("tool_calls")))
	f.Add([]byte(`{"usage":{"prompt_tokens":1e400}}` + "\n" + `{"error":[]}`))
	f.Add([]byte(delta(`{"a":[{"index":0,"type":"t","s":"1"}],"content":[{"text":[{"text":"x"}]}]}`) + "\n" + delta(`{"a":[{"index":0,"type":"t","s":"2"}],"a":{"x":null}}`) + "\n" + finish("length")))
	f.Fuzz(func(t *testing.T, data []byte) {
		var text, args int
		a := newAssembler(func(d psych.Delta) { text += len(d.Text); args += len(d.Arguments) })
		for line := range bytes.SplitSeq(data, []byte("\n")) {
			if sent, err := a.add(line); sent != nil || err != nil {
				return
			}
		}
		r := a.response()
		m := &psych.Message{Role: psych.RoleAssistant}
		for _, b := range r.Blocks {
			if b.Provider != nil && !json.Valid(b.Provider) {
				t.Fatalf("what is kept is not JSON: %s", b.Provider)
			}
			if b.Call != nil {
				b.Call.ID = "1"
			}
			m.Blocks = append(m.Blocks, b)
		}
		raw, _, err := New("m", nil).Codec().EncodeMessage(m)
		if err != nil {
			t.Fatal(err)
		}
		if len(raw) > 0 && !json.Valid(raw) {
			t.Fatalf("sent back it is not JSON: %s", raw)
		}
		if (text == 0) != (len(a.text) == 0 && len(a.refusal) == 0) {
			t.Fatalf("%d bytes of text were told of %q and %q", text, a.text, a.refusal)
		}
	})
}
