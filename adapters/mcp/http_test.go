//go:build unix

package mcp_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/psych-go/psych-go/adapters/mcp"
	"github.com/psych-go/psych-go/psych"
)

// A rawServer speaks MCP of 2025-06-18 over HTTP as far as it is asked to;
// what it says to the rest is a test's.
type rawServer struct {
	*httptest.Server
	init    string // the result of initialize
	session string // "": none
	handle  func(w http.ResponseWriter, r *http.Request, m message)
	get     http.HandlerFunc // nil: none

	mu   sync.Mutex
	seen []message // all but the handshake
}

type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Error  json.RawMessage `json:"error"`
	header http.Header
}

func (m message) answer(result string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

func (m message) said(text string) string {
	b, _ := json.Marshal(text)
	return m.answer(`{"content":[{"type":"text","text":` + string(b) + `}]}`)
}

func writeJSON(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, body)
}

func writeEvents(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range events {
		_, _ = io.WriteString(w, e+"\n\n")
	}
	_ = http.NewResponseController(w).Flush()
}

func newRawServer(t *testing.T, handle func(w http.ResponseWriter, r *http.Request, m message)) *rawServer {
	t.Helper()
	s := &rawServer{handle: handle, session: "session-id-1", init: `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"0"}}`}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

func (s *rawServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		if r.Method == http.MethodGet && s.get != nil {
			s.get(w, r)
			return
		}
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	var m message
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	m.header = r.Header
	switch {
	case m.Method == "server/discover":
		w.WriteHeader(http.StatusBadRequest)
		return
	case m.Method == "initialize":
		if s.session != "" {
			w.Header().Set("Mcp-Session-Id", s.session)
		}
		writeJSON(w, m.answer(s.init))
		return
	case m.Method == "notifications/initialized":
		w.WriteHeader(http.StatusAccepted)
		return
	}
	s.mu.Lock()
	s.seen = append(s.seen, m)
	s.mu.Unlock()
	if len(m.ID) == 0 || m.Method == "" {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	s.handle(w, r, m)
}

// saw are the messages of a method.
func (s *rawServer) saw(method string) (list []message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.seen {
		if m.Method == method {
			list = append(list, m)
		}
	}
	return list
}

func (s *rawServer) connect(t *testing.T, secret string, mo *mcp.Options) psych.Session {
	t.Helper()
	return connect(t, &psych.Connection{URL: s.URL + "/mcp?key=in-the-query"}, psych.ConnectOptions{Secret: secret}, mo)
}

func TestRawBytes(t *testing.T) {
	const result = `{"z":1234567890123456789,"a":1.0,"html":"<&>\u2028","e":1e400}`
	for name, write := range map[string]func(http.ResponseWriter, message){
		"json": func(w http.ResponseWriter, m message) { writeJSON(w, m.answer(`{"structuredContent": `+result+`}`)) },
		"events": func(w http.ResponseWriter, m message) {
			writeEvents(w, ": hello", "event: message\nid: 1\ndata: "+m.answer(`{"structuredContent": `+result+`}`))
		},
		"lines": func(w http.ResponseWriter, m message) {
			body := m.answer("{\n\"structuredContent\": " + result + "}")
			writeEvents(w, "data: "+strings.ReplaceAll(body, "\n", "\r\ndata: "))
		},
		"batch": func(w http.ResponseWriter, m message) {
			writeJSON(w, `[{"jsonrpc":"2.0","method":"notifications/message","params":{}},`+m.answer(`{"structuredContent": `+result+`}`)+`]`)
		},
		"no end": func(w http.ResponseWriter, m message) {
			writeEvents(w)
			_, _ = io.WriteString(w, "data: "+m.answer(`{"structuredContent": `+result+`}`))
		},
	} {
		s := newRawServer(t, func(w http.ResponseWriter, _ *http.Request, m message) { write(w, m) })
		session := s.connect(t, "", nil)
		if got, failed, err := call(t.Context(), session, "x", `{"n":1234567890123456789,"b":"<&>","a":[]}`); got != result || failed || err != nil {
			t.Errorf("%s: %q, %v, %v", name, got, failed, err)
		}
		p := string(s.saw("tools/call")[0].Params)
		if !strings.Contains(p, `"arguments":{"n":1234567890123456789,"b":"<&>","a":[]}`) || !strings.Contains(p, `"psych/idempotency-key":"key-1"`) {
			t.Errorf("%s: the server got %s", name, p)
		}
	}
}

func TestListTools(t *testing.T) {
	s := newRawServer(t, nil)
	s.handle = func(w http.ResponseWriter, _ *http.Request, m message) {
		var p struct{ Cursor *string }
		_ = json.Unmarshal(m.Params, &p)
		switch {
		case p.Cursor == nil:
			writeJSON(w, m.answer(`{"tools":[{"name":"a","title":"A","description":"d","inputSchema": {"b":1, "a":12345678901234567890},"outputSchema":true,"annotations":{"readOnlyHint":true,"idempotentHint":"yes"}},
				null, {"name":7}, {"name":"bare"}, "x", {"name":"b","annotations":{"title":"B","idempotentHint":true},"description":["no"],"inputSchema":null}],"nextCursor":"","ttlMs":1500.5}`))
		case *p.Cursor == "":
			writeJSON(w, m.answer(`{"tools":[],"nextCursor":"2","ttlMs":-1}`))
		case *p.Cursor == "2":
			writeJSON(w, m.answer(`{"tools":[],"nextCursor":null,"ttlMs":1e300}`))
		case *p.Cursor == "no list":
			writeJSON(w, m.answer(`{"tools":{}}`))
		case *p.Cursor == "no cursor":
			writeJSON(w, m.answer(`{"tools":[],"nextCursor":5}`))
		default:
			writeJSON(w, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"bad cursor"}}`, m.ID))
		}
	}
	session := s.connect(t, "", nil)
	page, err := session.ListTools(t.Context(), nil)
	must(t, err)
	if len(page.Tools) != 6 || page.Next == nil || *page.Next != "" || page.TTL == nil || *page.TTL != 1500500*time.Microsecond {
		t.Fatalf("%+v", page)
	}
	a, b := page.Tools[0], page.Tools[5]
	if a.Name != "a" || a.Title != "A" || a.Description != "d" || string(a.Schema) != `{"b":1, "a":12345678901234567890}` || string(a.Output) != "true" || !a.ReadOnly || a.Idempotent {
		t.Errorf("%+v", a)
	}
	if b.Name != "b" || b.Title != "B" || b.Description != "" || b.Schema != nil || b.ReadOnly || !b.Idempotent {
		t.Errorf("%+v", b)
	}
	for i, want := range []string{"", "", "bare", ""} {
		if got := page.Tools[1+i].Name; got != want {
			t.Errorf("tool %d is %q, want %q", 1+i, got, want)
		}
	}
	page, err = session.ListTools(t.Context(), page.Next)
	must(t, err)
	if page.Next == nil || *page.Next != "2" || page.TTL != nil {
		t.Errorf("%+v", page)
	}
	page, err = session.ListTools(t.Context(), page.Next)
	must(t, err)
	if page.Next != nil || page.TTL == nil || *page.TTL <= 0 {
		t.Errorf("%+v", page)
	}
	for _, cursor := range []string{"no list", "no cursor", "other"} {
		if _, err := session.ListTools(t.Context(), &cursor); err == nil || errors.Is(err, psych.ErrSessionLost) {
			t.Errorf("%s: %v", cursor, err)
		}
	}
}

func TestServerWithoutTools(t *testing.T) {
	s := newRawServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		writeJSON(w, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, m.ID))
	})
	s.init = strings.Replace(s.init, `"tools":{}`, "", 1)
	page, err := s.connect(t, "", nil).ListTools(t.Context(), nil)
	if err != nil || len(page.Tools) != 0 || page.Next != nil {
		t.Errorf("%+v, %v", page, err)
	}
}

// What a server answers to a call, and what becomes of it. None of it ends the
// session.
func TestAnswers(t *testing.T) {
	t.Parallel()
	status := func(code int, contentType, body string) func(http.ResponseWriter, *http.Request, message) {
		return func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(code)
			_, _ = io.WriteString(w, strings.ReplaceAll(body, "@", string(m.ID)))
		}
	}
	large := strings.Repeat("x", 200_000)
	for name, c := range map[string]struct {
		handle func(http.ResponseWriter, *http.Request, message)
		is     error  // of the error; nil: the call has a failure
		text   string // of either
	}{
		"401":                {status(401, "text/plain", "who?"), psych.ErrUnauthorized, "status 401 Unauthorized: who?"},
		"403":                {status(403, "text/html", "<p>"), psych.ErrUnauthorized, "status 403 Forbidden"},
		"404":                {status(404, "text/plain", "session not found"), psych.ErrSessionLost, "status 404"},
		"404 of Python":      {status(404, "application/json", `{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Session not found"}}`), psych.ErrSessionLost, "Session not found"},
		"400 of examples":    {status(400, "application/json", `{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"},"id":null}`), psych.ErrSessionLost, "No valid session ID"},
		"429":                {status(429, "text/plain", "slow down"), psych.ErrUnavailable, "slow down"},
		"500":                {status(500, "application/json", `{"error":{"message":"oops in session-id-1 of Bearer tell-nobody"}}`), psych.ErrUnavailable, "oops in [session] of [secret]"},
		"503":                {status(503, "", ""), psych.ErrUnavailable, "status 503 Service Unavailable"},
		"400":                {status(400, "text/plain", "bad"), nil, "status 400 Bad Request: bad"},
		"304":                {status(304, "text/plain", ""), nil, "status 304"},
		"400 with an answer": {status(400, "application/json", `{"jsonrpc":"2.0","id":@,"error":{"code":-32602,"message":"no such tool"}}`), nil, "The server answered with error -32602: no such tool"},
		"200 with an error":  {status(200, "application/json", `{"jsonrpc":"2.0","id":@,"error":{"code":-32603,"message":"broken"}}`), nil, "The server answered with error -32603: broken"},
		"a page":             {status(200, "text/html", "<html>"), psych.ErrUnavailable, "is that the URL of an MCP server?"},
		"nothing":            {status(202, "", ""), psych.ErrUnavailable, "status 202"},
		"no JSON":            {status(200, "application/json", "what?"), psych.ErrUnavailable, "can't be decoded"},
		"empty":              {status(200, "application/json", ""), psych.ErrUnavailable, "can't be decoded"},
		"deep":               {status(200, "application/json", `{"jsonrpc":"2.0","id":@,"result":{"structuredContent":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+`}}`), psych.ErrUnavailable, "can't be decoded"},
		"another's":          {status(200, "application/json", `{"jsonrpc":"2.0","id":12345,"result":{}}`), psych.ErrUnavailable, "not one to the request"},
		"a number":           {status(200, "application/json", `{"jsonrpc":"2.0","id":@,"result":7}`), nil, "no result of a tool"},
		"large":              {status(200, "application/json", `{"jsonrpc":"2.0","id":@,"result":{"content":[{"type":"text","text":"`+large+`"}]}}`), nil, "more than 100000 bytes"},
		"large event":        {status(200, "text/event-stream", `data: {"jsonrpc":"2.0","id":@,"result":{"content":[{"type":"text","text":"`+large+"\"}]}}\n\n"), nil, "more than 100000 bytes"},
		"large lines":        {status(200, "text/event-stream", strings.Repeat("data: "+large[:1000]+"\n", 200)+"\n"), nil, "more than 100000 bytes"},
		"event that is none": {status(200, "text/event-stream", "data: {]\n\n"), psych.ErrUnavailable, "can't be decoded"},
		"stream without":     {status(200, "text/event-stream", ": nothing\n\nevent: other\ndata: {}\n\n"), psych.ErrUnavailable, "terminated without response"},
		"elsewhere": {func(w http.ResponseWriter, r *http.Request, _ message) {
			http.Redirect(w, r, "http://other.test/mcp?x=y", http.StatusTemporaryRedirect)
		}, psych.ErrAccessDenied, "redirects to another origin, http://other.test"},
		"as another": {func(w http.ResponseWriter, r *http.Request, _ message) {
			http.Redirect(w, r, "/other", http.StatusFound)
		}, nil, "becomes a GET"},
		"round and round": {func(w http.ResponseWriter, r *http.Request, _ message) {
			http.Redirect(w, r, "/mcp", http.StatusPermanentRedirect)
		}, nil, "more than 5 times"},
		"drops it": {func(w http.ResponseWriter, _ *http.Request, _ message) {
			c, _, _ := http.NewResponseController(w).Hijack()
			c.Close()
		}, psych.ErrUnavailable, "the connection broke: EOF"},
		"drops it in the end": {func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Length", "1000")
			writeJSON(w, m.answer("{}"))
		}, psych.ErrUnavailable, "broke before the answer was whole"},
	} {
		t.Run(name, func(t *testing.T) {
			var well atomic.Bool
			s := newRawServer(t, func(w http.ResponseWriter, r *http.Request, m message) {
				if well.Load() {
					writeJSON(w, m.said("well"))
					return
				}
				c.handle(w, r, m)
			})
			session := s.connect(t, "tell-nobody", &mcp.Options{MaxMessageBytes: 100_000})
			got, failed, err := call(t.Context(), session, "x", "{}")
			switch {
			case c.is != nil && (!errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text)):
				t.Errorf("%v\nwant %v with %q", err, c.is, c.text)
			case c.is == nil && err != nil && !strings.Contains(err.Error(), c.text), c.is == nil && err == nil && (!failed || !strings.Contains(got, c.text)):
				t.Errorf("%q, %v, %v\nwant %q", got, failed, err, c.text)
			case err != nil && (strings.Contains(err.Error(), "tell-nobody") || strings.Contains(err.Error(), "in-the-query")):
				t.Errorf("a secret in %v", err)
			case c.is != psych.ErrSessionLost && errors.Is(err, psych.ErrSessionLost):
				t.Errorf("it may have had an effect: %v", err)
			}
			well.Store(true)
			if got, _, err := call(t.Context(), session, "x", "{}"); got != "well" || err != nil {
				t.Errorf("after that: %q, %v", got, err)
			}
		})
	}
}

// A hundred megabytes are read past, and not gathered.
func TestHugeAnswer(t *testing.T) {
	chunk := strings.Repeat("x", 1<<20)
	for _, contentType := range []string{"application/json", "text/event-stream"} {
		s := newRawServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
			w.Header().Set("Content-Type", contentType)
			if contentType != "application/json" {
				_, _ = io.WriteString(w, "data: ")
			}
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{"content":[{"type":"text","text":"`)
			for range 100 {
				if _, err := io.WriteString(w, chunk); err != nil {
					return
				}
			}
			_, _ = io.WriteString(w, "\"}]}}\n\n")
		})
		session := s.connect(t, "", &mcp.Options{MaxMessageBytes: 4 << 20})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, failed, err := call(t.Context(), session, "x", "{}")
		runtime.ReadMemStats(&after)
		if !failed || err != nil || got != "The tool ran, but its answer has more than 4194304 bytes and was not taken. Ask it for less." {
			t.Errorf("%s: %q, %v, %v", contentType, got, failed, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 90<<20 {
			t.Errorf("%s: %d bytes were allocated", contentType, n)
		}
	}
}

func TestConnectFails(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	for name, c := range map[string]struct {
		url  string
		h    http.HandlerFunc
		is   error
		text string
	}{
		"nobody":       {url: gone.URL + "/?q=in-the-query", is: psych.ErrUnavailable, text: "can't be reached"},
		"unauthorized": {h: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, is: psych.ErrUnauthorized, text: "401"},
		"no server":    {h: http.NotFound, text: "is that the URL of an MCP server"},
		"hangs":        {h: func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); <-r.Context().Done() }, is: psych.ErrUnavailable, text: "no session within 200ms"},
		"future": {h: func(w http.ResponseWriter, r *http.Request) {
			var m message
			_ = json.NewDecoder(r.Body).Decode(&m)
			writeJSON(w, m.answer(`{"protocolVersion":"2099-01-01","capabilities":{}}`))
		}, is: psych.ErrUnavailable, text: "2099-01-01"},
		"other scheme": {url: "ftp://x", is: psych.ErrInvalid, text: "http"},
		"user":         {url: "https://a:in-the-query@x.test", is: psych.ErrInvalid, text: "user"},
		"nothing":      {url: "none", is: psych.ErrInvalid, text: "http"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.h != nil {
				hs := httptest.NewServer(c.h)
				defer hs.Close()
				c.url = hs.URL + "/mcp?key=in-the-query"
			}
			_, err := tryConnect(t, &psych.Connection{URL: c.url}, psych.ConnectOptions{Secret: "tell-nobody"}, &mcp.Options{ConnectTimeout: 200 * time.Millisecond})
			if err == nil || errors.Is(err, psych.ErrSessionLost) || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "in-the-query") {
				t.Errorf("%v", err)
			}
		})
	}
	if _, err := tryConnect(t, &psych.Connection{}, psych.ConnectOptions{}, nil); !errors.Is(err, psych.ErrInvalid) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := mcp.New(nil).Connect(ctx, &psych.Connection{URL: "http://x.test"}, psych.ConnectOptions{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A server that has gone away can't have run anything.
func TestServerGone(t *testing.T) {
	s := newRawServer(t, func(w http.ResponseWriter, _ *http.Request, m message) { writeJSON(w, m.said("well")) })
	session := s.connect(t, "", nil)
	s.CloseClientConnections()
	s.Close()
	_, _, err := call(t.Context(), session, "x", "{}")
	if err != nil && !errors.Is(err, psych.ErrSessionLost) { // a connection that was there went away as it was used
		_, _, err = call(t.Context(), session, "x", "{}")
	}
	if !errors.Is(err, psych.ErrSessionLost) || !errors.Is(err, psych.ErrUnavailable) {
		t.Error(err)
	}
}

func TestCancelled(t *testing.T) {
	s := newRawServer(t, func(w http.ResponseWriter, r *http.Request, m message) {
		if strings.Contains(string(m.Params), "late") {
			writeEvents(w, ": wait")
		}
		<-r.Context().Done()
		writeEvents(w, "data: "+m.said("late"))
	})
	session := s.connect(t, "", nil)
	for i, name := range []string{"late", "silent"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, _, err := call(ctx, session, name, "{}"); err != context.DeadlineExceeded {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		told := s.saw("notifications/cancelled") // before the call returned
		if len(told) != i+1 || !strings.Contains(string(told[i].Params), `"requestId":`+string(s.saw("tools/call")[i].ID)) {
			t.Errorf("%s: the server was told %v", name, told)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := call(ctx, session, "x", "{}"); err != context.Canceled {
		t.Error(err)
	}
	if n := len(s.saw("tools/call")); n != 2 {
		t.Errorf("%d calls", n)
	}
}

func TestCredentials(t *testing.T) {
	for secret, want := range map[string]http.Header{
		"plain":          {"Authorization": {"Bearer plain"}},
		`{"token":"x"}`:  {"Authorization": {`Bearer {"token":"x"}`}},
		"":               {"Authorization": nil},
		`{"headers":{}}`: {"Authorization": nil},
		`{"headers":{"x-api-key":"k1234","Accept":"text/html","Host":"evil.test","Mcp-Session-Id":"mine"},"env":{"A":"b"}}`: {"X-Api-Key": {"k1234"}, "Accept": {"application/json, text/event-stream"}, "Authorization": nil, "Mcp-Session-Id": {"session-id-1"}},
	} {
		s := newRawServer(t, func(w http.ResponseWriter, r *http.Request, m message) {
			if r.URL.Path == "/mcp" {
				http.Redirect(w, r, "/here", http.StatusTemporaryRedirect) // the same origin
				return
			}
			if r.Host == "evil.test" {
				t.Error("the credential chose the host")
			}
			writeJSON(w, m.said(r.URL.Path))
		})
		if got, _, err := call(t.Context(), s.connect(t, secret, nil), "x", "{}"); got != "/here" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		for _, m := range s.saw("tools/call") {
			for name, values := range want {
				if got := m.header[name]; fmt.Sprint(got) != fmt.Sprint(values) {
					t.Errorf("%s: %s is %q, want %q", secret, name, got, values)
				}
			}
		}
	}
}

// A session that a server gives up in the middle is resumed where it says how.
func TestResume(t *testing.T) {
	for name, c := range map[string]struct {
		get  func(http.ResponseWriter, *http.Request, message)
		want string // of the result; "": an error
	}{
		"resumed": {func(w http.ResponseWriter, r *http.Request, m message) {
			writeEvents(w, "id: 2\ndata: "+m.said("resumed at "+r.Header.Get("Last-Event-Id")+" as "+r.Header.Get("Authorization")))
		}, "resumed at 1 as Bearer tell-nobody"},
		"refused": {func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(http.StatusMethodNotAllowed) }, ""},
		"broken": {func(w http.ResponseWriter, _ *http.Request, _ message) {
			c, _, _ := http.NewResponseController(w).Hijack()
			c.Close()
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Pointer[message]
			s := newRawServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
				if strings.Contains(string(m.Params), "well") {
					writeJSON(w, m.said("well"))
					return
				}
				asked.Store(&m)
				writeEvents(w, "id: 1\nretry: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}")
				_, _ = io.WriteString(w, `data: {"jsonrpc"`) // cut off
			})
			s.get = func(w http.ResponseWriter, r *http.Request) {
				if m := asked.Load(); m != nil && r.Header.Get("Last-Event-Id") != "" {
					c.get(w, r, *m)
					return
				}
				w.WriteHeader(http.StatusMethodNotAllowed)
			}
			session := s.connect(t, "tell-nobody", nil)
			got, _, err := call(t.Context(), session, "x", "{}")
			if got != c.want || (err != nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), "can't be resumed") {
				t.Errorf("%q, %v", got, err)
			}
			if got, _, err := call(t.Context(), session, "well", "{}"); got != "well" || err != nil {
				t.Errorf("after that: %q, %v", got, err)
			}
		})
	}
}

// The stream of notifications neither holds up nor ends a session, whatever
// becomes of it.
func TestNotificationStream(t *testing.T) {
	t.Parallel()
	for name, get := range map[string]http.HandlerFunc{
		"hangs": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"500":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		"401":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) },
		"page":  func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"ends":  func(w http.ResponseWriter, _ *http.Request) { writeEvents(w, ": bye") },
		"junk": func(w http.ResponseWriter, r *http.Request) {
			writeEvents(w, "data: {{{{", "data: "+strings.Repeat("x", 200_000))
			<-r.Context().Done()
		},
		"breaks": func(w http.ResponseWriter, _ *http.Request) {
			c, _, _ := http.NewResponseController(w).Hijack()
			c.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newRawServer(t, func(w http.ResponseWriter, _ *http.Request, m message) { writeJSON(w, m.said("well")) })
			began := make(chan bool, 100)
			s.get = func(w http.ResponseWriter, r *http.Request) {
				began <- true
				get(w, r)
			}
			session := s.connect(t, "", &mcp.Options{MaxMessageBytes: 100_000})
			<-began
			for range 10 {
				if got, _, err := call(t.Context(), session, "x", "{}"); got != "well" || err != nil {
					t.Fatalf("%q, %v", got, err)
				}
			}
			must(t, session.Close())
		})
	}
}

// A list that changes while a stream is broken is seen once it is back, and the
// stream goes on where it ended.
func TestNotificationStreamReopens(t *testing.T) {
	t.Parallel()
	changed := make(chan bool, 100)
	var opened atomic.Int32
	s := newRawServer(t, func(w http.ResponseWriter, _ *http.Request, m message) { writeJSON(w, m.said("well")) })
	s.get = func(w http.ResponseWriter, r *http.Request) {
		switch opened.Add(1) {
		case 1:
			writeEvents(w, "id: 7\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}")
		case 2:
			if got := r.Header.Get("Last-Event-Id"); got != "7" {
				t.Errorf("it goes on at %q", got)
			}
			writeEvents(w, `data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			<-r.Context().Done()
		}
	}
	session := connect(t, &psych.Connection{URL: s.URL}, psych.ConnectOptions{ListChanged: func() { changed <- true }}, nil)
	<-changed
	must(t, session.Close())
}

func TestInsists(t *testing.T) {
	s := newRawServer(t, nil)
	s.handle = func(w http.ResponseWriter, _ *http.Request, m message) {
		writeEvents(w, `data: {"jsonrpc":"2.0","id":"e1","method":"elicitation/create","params":{"message":"who?"}}`,
			`data: {"jsonrpc":"2.0","id":"e2","method":"roots/list"}`, `data: {"jsonrpc":"2.0","id":"e3","method":"ping"}`)
		for len(s.saw("")) < 3 {
			time.Sleep(time.Millisecond)
		}
		if strings.Contains(string(m.Params), "drop") {
			return
		}
		writeEvents(w, "data: "+m.answer(`{"isError":true,"content":[{"type":"text","text":"no"}]}`))
	}
	session := s.connect(t, "", nil)
	got, failed, err := call(t.Context(), session, "x", "{}")
	if must(t, err); !failed || got != "The server asked for elicitation/create, which is not offered here. no" {
		t.Errorf("%q", got)
	}
	refused := 0
	for _, m := range s.saw("") {
		switch string(m.ID) {
		case `"e1"`, `"e2"`:
			if refused++; !strings.Contains(string(m.Error), "-32601") {
				t.Errorf("%s: %s", m.ID, m.Error)
			}
		case `"e3"`:
			if m.Error != nil {
				t.Errorf("a ping is answered with %s", m.Error)
			}
		}
	}
	if refused != 2 {
		t.Errorf("%d were refused", refused)
	}
	if _, _, err := call(t.Context(), session, "drop", "{}"); err == nil || !strings.Contains(err.Error(), "asked for elicitation/create") {
		t.Error(err)
	}
}

func TestInputRequired(t *testing.T) {
	s := newRawServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		writeJSON(w, m.answer(`{"resultType":"input_required","inputRequests":{"b":{"method":"sampling/createMessage"},"a":{"method":"elicitation/create"}},"requestState":"x"}`))
	})
	got, failed, err := call(t.Context(), s.connect(t, "", nil), "x", "{}")
	if must(t, err); !failed || !strings.HasPrefix(got, "The server asked for elicitation/create and sampling/createMessage, which is not offered here.") {
		t.Errorf("%q", got)
	}
	if n := len(s.saw("tools/call")); n != 1 {
		t.Errorf("it was called %d times", n)
	}
}

// Requests of a server are refused a few at a time; the others are dropped.
func TestRequestStorm(t *testing.T) {
	s := newRawServer(t, nil)
	s.handle = func(w http.ResponseWriter, _ *http.Request, m message) {
		for i := range 3000 {
			writeEvents(w, fmt.Sprintf(`data: {"jsonrpc":"2.0","id":"s%d","method":"sampling/createMessage","params":{}}`, i))
		}
		writeEvents(w, "data: "+m.said("over"))
	}
	if got, _, err := call(t.Context(), s.connect(t, "", nil), "x", "{}"); got != "over" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// Nothing that a session does or suffers is logged with what is secret.
func TestLog(t *testing.T) {
	var log bytes.Buffer
	s := newRawServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		writeEvents(w, `data: {"jsonrpc":"2.0","id":1,"method":"roots/list","params":{"x":"tell-nobody"}}`, "data: "+m.said("payload"))
	})
	s.get = func(w http.ResponseWriter, _ *http.Request) { writeEvents(w, "data: {{{{ tell-nobody payload") }
	session := connect(t, &psych.Connection{URL: s.URL + "?key=in-the-query"}, psych.ConnectOptions{Secret: "tell-nobody", Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}, nil)
	_, _, err := call(t.Context(), session, "x", `{"a":"payload"}`)
	must(t, err)
	must(t, session.Close())
	for _, secret := range []string{"tell-nobody", "payload", "in-the-query", "session-id-1"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("%q in the log:\n%s", secret, &log)
		}
	}
	if log.Len() == 0 {
		t.Error("nothing is logged")
	}
}

func TestResults(t *testing.T) {
	png := []byte("\x89PNG\r\n\x1a\n\x00\xff")
	b64 := base64.StdEncoding.EncodeToString(png)
	type out = []output
	const jsonType = "application/json"
	for name, c := range map[string]struct {
		result string
		failed bool
		want   out
	}{
		"nothing":         {`{}`, false, out{{"", "text/plain", ""}}},
		"null":            {`{"content":null,"structuredContent":null,"isError":null}`, false, out{{"", "text/plain", ""}}},
		"text":            {`{"content":[{"type":"text","text":" a\n"}]}`, false, out{{"", "text/plain", " a\n"}}},
		"texts":           {`{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`, false, out{{"", "text/plain", "a\nb"}}},
		"structured":      {`{"structuredContent":{ "b":1234567890123456789, "a":1.0 }}`, false, out{{"", jsonType, `{"b":1234567890123456789,"a":1.0}`}}},
		"an array":        {`{"structuredContent":[1]}`, false, out{{"", jsonType, `[1]`}}},
		"same":            {`{"content":[{"type":"text","text":"{\n \"a\": 1, \"b\": [1.0] }"}],"structuredContent":{"b":[1],"a":1}}`, false, out{{"", jsonType, `{"b":[1],"a":1}`}}},
		"not the same":    {`{"content":[{"type":"text","text":"{\"a\":1234567890123456788}"}],"structuredContent":{"a":1234567890123456789}}`, false, out{{"", jsonType, `{"a":1234567890123456789}`}, {"text", "text/plain", `{"a":1234567890123456788}`}}},
		"explained":       {`{"content":[{"type":"text","text":"It is 5."}],"structuredContent":{"a":5}}`, false, out{{"", jsonType, `{"a":5}`}, {"text", "text/plain", "It is 5."}}},
		"wrapped text":    {`{"content":[{"type":"text","text":"hi"}],"structuredContent":{"result":"hi"}}`, false, out{{"", "text/plain", "hi"}}},
		"wrapped image":   {`{"content":[{"type":"image","data":"` + b64 + `","mimeType":"image/png"}],"structuredContent":{"content":[{"mimeType":"image/png","type":"image","data":"` + b64 + `"}]}}`, false, out{{"", "text/plain", ""}, {"image", "image/png", string(png)}}},
		"wrapped failure": {`{"isError":true,"content":[{"type":"text","text":"no"}],"structuredContent":{"error":"no"}}`, true, out{{"", "text/plain", "no"}}},
		"not wrapped":     {`{"content":[{"type":"text","text":"hi"}],"structuredContent":{"result":"ho"}}`, false, out{{"", jsonType, `{"result":"ho"}`}, {"text", "text/plain", "hi"}}},
		"empty list":      {`{"content":[],"structuredContent":{"items":[]}}`, false, out{{"", jsonType, `{"items":[]}`}}},

		"wrapped value":   {`{"content":[{"type":"text","text":"5"}],"structuredContent":{"result":5}}`, false, out{{"", jsonType, `{"result":5}`}}},
		"wrapped list":    {`{"content":[{"type":"text","text":"a"},{"type":"text","text":"{\"b\": 1}"}],"structuredContent":{"result":["a",{"b":1}]}}`, false, out{{"", jsonType, `{"result":["a",{"b":1}]}`}}},
		"wrapped other":   {`{"content":[{"type":"text","text":"a"}],"structuredContent":{"result":["a","b"]}}`, false, out{{"", jsonType, `{"result":["a","b"]}`}, {"text", "text/plain", "a"}}},
		"failure":         {`{"isError":true,"content":[{"type":"text","text":"no"}]}`, true, out{{"", "text/plain", "no"}}},
		"failure in JSON": {`{"isError":true,"structuredContent":{ "code":7 }}`, true, out{{"", "text/plain", `{"code":7}`}}},
		"failure in both": {`{"isError":true,"content":[{"type":"text","text":"no"}],"structuredContent":{"code":7}}`, true, out{{"", "text/plain", "no"}, {"structured", jsonType, `{"code":7}`}}},
		"failure of none": {`{"isError":true,"content":[{"type":"image","data":"` + b64 + `","mimeType":"image/png"}]}`, true, out{{"", "text/plain", "The tool failed and did not say why."}, {"image", "image/png", string(png)}}},
		"media": {`{"content":[{"type":"text","text":"see"},{"type":"image","data":"` + b64 + `","mimeType":"image/png"},{"type":"audio","data":"` + strings.TrimRight(b64, "=") + `","mimeType":"no type"}]}`, false,
			out{{"", "text/plain", "see"}, {"image", "image/png", string(png)}, {"audio", "application/octet-stream", string(png)}}},
		"broken base64": {`{"content":[{"type":"image","data":"%%%","mimeType":"image/png"},{"type":"image"}]}`, false,
			out{{"", "text/plain", ""}, {"image", jsonType, `{"type":"image","data":"%%%","mimeType":"image/png"}`}, {"image", jsonType, `{"type":"image"}`}}},
		"resources": {`{"content":[{"type":"resource","resource":{"uri":"file:///a.md","mimeType":"text/markdown","text":"# A"}},{"type":"resource","resource":{"uri":"x:b","blob":"` + b64 + `"}},{"type":"resource","resource":{}},{"type":"resource"},{"type":"resource","resource":{"uri":"data:x","text":"t"}}]}`, false,
			out{{"", "text/plain", ""}, {"file:///a.md", "text/markdown", "# A"}, {"x:b", "application/octet-stream", string(png)}, {"resource", jsonType, `{"type":"resource","resource":{}}`}, {"resource", jsonType, `{"type":"resource"}`}, {"resource", "text/plain", "t"}}},
		"links": {`{"content":[{"type":"resource_link","uri":"file:///a"},{"type":"text","text":"two"},{"type":"resource_link", "uri":"file:///b"}]}`, false,
			out{{"", "text/plain", "two"}, {"resource-links", jsonType, `[{"type":"resource_link","uri":"file:///a"},{"type":"resource_link","uri":"file:///b"}]`}}},
		"unknown": {`{"content":[{"type":"hologram","n":1234567890123456789},"x",{"type":"text","text":5},{}]}`, false,
			out{{"", "text/plain", ""}, {"hologram", jsonType, `{"type":"hologram","n":1234567890123456789}`}, {"block", jsonType, `"x"`}, {"text", jsonType, `{"type":"text","text":5}`}, {"block", jsonType, `{}`}}},
		"no list": {`{"content":{"type":"text","text":"a"}}`, false, out{{"", "text/plain", ""}, {"content", jsonType, `{"type":"text","text":"a"}`}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newRawServer(t, func(w http.ResponseWriter, _ *http.Request, m message) { writeJSON(w, m.answer(c.result)) })
			got, failed := inRun(t, s.connect(t, "", nil), &psych.RemoteTool{ToolDef: psych.ToolDef{Name: "x"}}, "{}")
			if failed != c.failed || fmt.Sprintf("%q", got) != fmt.Sprintf("%q", c.want) {
				t.Errorf("%v, %q\nwant %v, %q", failed, got, c.failed, c.want)
			}
		})
	}
}

// More blocks than a call may have attachments are all there.
func TestManyBlocks(t *testing.T) {
	var blocks []string
	for i := range 300 {
		blocks = append(blocks, fmt.Sprintf(`{"type":"image","data":"%s","mimeType":"image/png"}`, base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "picture %d", i))))
	}
	s := newRawServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		writeJSON(w, m.answer(`{"structuredContent":{"a":1},"content":[{"type":"text","text":"t"},{"type":"resource_link","uri":"x:y"},`+strings.Join(blocks, ",")+`]}`))
	})
	got, failed := inRun(t, s.connect(t, "", nil), &psych.RemoteTool{ToolDef: psych.ToolDef{Name: "x"}}, "{}")
	if failed || len(got) != 100 || got[1].name != "text" || got[2].name != "resource-links" {
		t.Fatalf("%v, %d outputs", failed, len(got))
	}
	for i, o := range got[3:99] {
		if want := fmt.Sprintf("picture %d", i); o.text != want || o.name != "image" {
			t.Fatalf("output %d is %q", i, o)
		}
	}
	if last := got[99]; last.name != "blocks" || last.text != "["+strings.Join(blocks[96:], ",")+"]" {
		t.Errorf("the last is %.200q", last)
	}
}

// Nothing runs on behind a session that is closed.
func TestNothingRunsOn(t *testing.T) {
	s := newRawServer(t, func(w http.ResponseWriter, r *http.Request, m message) {
		if strings.Contains(string(m.Params), "never") {
			<-r.Context().Done()
		}
		writeEvents(w, "data: "+m.said("well"))
	})
	s.get = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	client := &http.Client{Transport: &http.Transport{}}
	use := func(session psych.Session, err error) {
		must(t, err)
		for _, name := range []string{"args", "never"} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			_, _, _ = call(ctx, session, name, "{}")
			cancel()
		}
		must(t, session.Close())
	}
	before := runtime.NumGoroutine()
	for range 5 {
		use(tryConnect(t, &psych.Connection{URL: s.URL}, psych.ConnectOptions{}, &mcp.Options{HTTPClient: client}))
		use(tryCommand(t, "raw", nil, psych.ConnectOptions{}, nil))
	}
	s.CloseClientConnections()
	client.CloseIdleConnections()
	after := 0
	for range 500 {
		if after = runtime.NumGoroutine(); after <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	stacks := make([]byte, 1<<20)
	t.Errorf("%d goroutines, %d before:\n%s", after, before, stacks[:runtime.Stack(stacks, true)])
}

// Over HTTP a session with an id that answers nothing is lost, too, and one
// without an id, which may be any server behind that URL, is not.
func TestWedgedSession(t *testing.T) {
	for _, id := range []string{"session-id-1", ""} {
		s := newRawServer(t, func(w http.ResponseWriter, r *http.Request, m message) {
			if strings.Contains(string(m.Params), `"well"`) {
				writeJSON(w, m.said("well"))
				return
			}
			<-r.Context().Done()
		})
		s.session = id
		connector := mcp.New(nil)
		connector.SetWaits(0, 100*time.Millisecond)
		session, err := connector.Connect(t.Context(), &psych.Connection{Name: "raw", URL: s.URL}, psych.ConnectOptions{})
		must(t, err)
		defer session.Close()
		call := func(tool string) error {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				if tool == "hangs" {
					for len(s.saw("tools/call")) == 0 && ctx.Err() == nil {
						time.Sleep(time.Millisecond)
					}
					cancel()
				}
			}()
			_, err := session.CallTool(ctx, &psych.RemoteTool{ToolDef: psych.ToolDef{Name: tool}}, &psych.Call{})
			return err
		}
		if err := call("hangs"); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		for range 2 {
			if err := call("well"); id != "" && !errors.Is(err, psych.ErrSessionLost) || id == "" && err != nil {
				t.Errorf("session %q: %v", id, err)
			}
		}
		want := 0
		if id != "" {
			want = 1
		}
		if got := len(s.saw("ping")); got != want {
			t.Errorf("session %q: %d pings, want %d", id, got, want)
		}
	}
}
