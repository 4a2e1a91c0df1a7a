// Package mcp reaches MCP servers for psych, through the official Go SDK: by
// streamable HTTP, and as commands that speak MCP on their standard streams,
// where the program allows those: Options.AllowCommands, both here and in psych.
//
//	connector := mcp.New(nil)
//	runtime, err := psych.New(store, &psych.Options{Connector: connector, …})
//
// Protocol versions 2024-11-05 to 2026-07-28 are spoken. The old transport of
// HTTP with server-sent events, which streamable HTTP replaced, is not.
// Sampling, elicitation and roots are not offered: a server that asks for them
// gets an error, and a call that fails meanwhile says so.
//
// # Results
//
// What a tool answers is taken from the bytes of the message. Text is the
// result; of several blocks of text, one below the other. Structured content is
// the result where there is some, compact, with its numbers and the order of its
// keys as they came; text that says something else is then the attachment
// "text". Where it is but an object of one field around the text, or around the
// blocks, those are the result. Images and audio are attachments of their bytes, embedded resources
// are attachments named by their URI, all links together are the attachment
// "resource-links" of their JSON, and a block of an unknown kind is an
// attachment of its JSON, as is one whose base64 is broken. What is past the
// number of attachments that a call may have is together one of JSON, "blocks".
//
// A message of more than [Options].MaxMessageBytes fails its call, and no
// other.
//
// # Credentials
//
// A Secret's headers, or its bearer token, go with every request to the origin
// of the connection's URL and to no other; a redirect to another origin is
// refused. Headers that are the protocol's own (Accept, Content-Type, those of
// Mcp-) are never taken from a Secret. A command gets the Secret's env beside a
// few harmless variables ([CommandEnv]), and nothing else of this process; in
// its arguments ${NAME} stands for the variable NAME of that env, if there is
// one, so that a Spec need not hold the value. A Secret of the wrong form for its
// connection, or with "headers" or "env" that are no objects of strings, is
// psych.ErrInvalid. Errors hold no value of a Secret that has four bytes or
// more, but what a tool returns is never changed: a tool that shows its
// environment shows the Secret.
//
// # Calls
//
// The idempotency key is in the request's _meta as [MetaIdempotencyKey], and a
// token there asks for progress. When a call's context ends the server is sent
// notifications/cancelled; the call waits up to a second for that to be on its
// way.
//
// A server that says nothing during a call of ten seconds or more, until the
// call's context ends, is sent a ping before the next one. If that is not
// answered within five seconds the session is lost (psych.ErrSessionLost, and
// nothing else was sent): who closes it ends a command with its process group.
// Over HTTP that is so for sessions that the server gave an id.
//
// What is said on a session while the process is frozen is not heard.
// Connections that were idle for ten seconds, frozen time included, are not used
// again; a stream of notifications that broke is opened again a few times.
package mcp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/psych-go/psych-go/psych"
)

// Defaults of [Options].
const (
	DefaultConnectTimeout  = time.Minute
	DefaultMaxMessageBytes = 64 << 20
)

// MetaIdempotencyKey is where a tool's server finds psych.Call.IdempotencyKey
// in a request's _meta.
const MetaIdempotencyKey = "psych/idempotency-key"

const (
	cancelWait  = time.Second            // of a call whose context ended, for the server to be told
	closeWait   = 3 * time.Second        // of Close, for a server to be told
	silentWait  = 10 * time.Second       // that a call hears nothing before it ends by its context, for a ping to be due
	pingWait    = 5 * time.Second        // for a server to answer that
	changeWait  = 100 * time.Millisecond // in which changes of a list are one
	maxAnswers  = 16                     // requests of a server that are refused at a time; more are dropped
	maxReason   = 2000                   // bytes of what a server says that go into an error
	headerProto = "2026-07-28"           // the first version whose headers come from the tool's schema
)

// Options of [New]. Nil and the zero value work.
type Options struct {
	// HTTPClient is what reaches URLs: its Transport is used, and nothing else
	// of it, since cookies and timeouts would be shared by all sessions. Nil is a
	// transport of its own, over HTTP/1.1.
	HTTPClient *http.Client

	// AllowCommands lets connections start programs of this machine. Otherwise
	// one with a command is psych.ErrAccessDenied.
	AllowCommands bool

	// ConnectTimeout bounds the opening of a session; 0 is
	// DefaultConnectTimeout.
	ConnectTimeout time.Duration

	// MaxMessageBytes bounds a message of a server; 0 is
	// DefaultMaxMessageBytes. A message takes up to six times its size in
	// memory while it is taken in.
	MaxMessageBytes int64
}

// A Connector opens sessions with MCP servers.
type Connector struct {
	o            Options
	base         http.RoundTripper
	silent, ping time.Duration // silentWait and pingWait
}

var _ psych.Connector = (*Connector)(nil)

// New makes a Connector. It does no IO.
func New(o *Options) *Connector {
	c := &Connector{silent: silentWait, ping: pingWait}
	if o != nil {
		c.o = *o
	}
	if c.o.ConnectTimeout <= 0 {
		c.o.ConnectTimeout = DefaultConnectTimeout
	}
	if c.o.MaxMessageBytes <= 0 {
		c.o.MaxMessageBytes = DefaultMaxMessageBytes
	}
	switch {
	case c.o.HTTPClient != nil && c.o.HTTPClient.Transport != nil:
		c.base = c.o.HTTPClient.Transport
	case c.o.HTTPClient != nil:
		c.base = http.DefaultTransport
	default:
		// One stream a connection: on HTTP/2 all requests of a session would
		// share a connection that is never idle, and may be dead after a freeze.
		protocols := &http.Protocols{}
		protocols.SetHTTP1(true)
		dialer := &net.Dialer{
			Timeout:         10 * time.Second,
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
		}
		c.base = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           dialer.DialContext,
			Protocols:             protocols,
			TLSHandshakeTimeout:   10 * time.Second,
			ExpectContinueTimeout: time.Second,
			MaxIdleConnsPerHost:   8,
			IdleConnTimeout:       10 * time.Second,
		}
	}
	return c
}

// Connect implements psych.Connector.
func (c *Connector) Connect(ctx context.Context, conn *psych.Connection, o psych.ConnectOptions) (psych.Session, error) {
	op := fmt.Sprintf("mcp: connect %s", conn.Name)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	cred, err := parseCredential(o.Secret)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	s := &session{
		name: conn.Name, limit: c.o.MaxMessageBytes, log: o.Log, listChanged: o.ListChanged, hidden: cred.values,
		silent: c.silent, ping: c.ping, probing: make(chan struct{}, 1),
		calls: map[jsonrpc.ID]*exchange{}, progress: map[int64]*exchange{}, primed: map[string][sha256.Size]byte{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.life, s.end = context.WithCancel(context.Background())
	own, cancel := context.WithTimeout(ctx, c.o.ConnectTimeout)
	defer cancel()
	ex := &exchange{through: true}
	own = context.WithValue(own, exchangeKey{}, ex)
	switch {
	case conn.URL != "" && len(conn.Command) == 0:
		err = s.dial(own, c.base, conn.URL, cred)
	case conn.URL != "" || len(conn.Command) == 0 || conn.Command[0] == "":
		err = fmt.Errorf("want a url or a command: %w", psych.ErrInvalid)
	case !c.o.AllowCommands:
		err = fmt.Errorf("this program starts no commands: %w", psych.ErrAccessDenied)
	default:
		err = s.start(own, conn.Command, cred)
	}
	if err == nil {
		r := s.client.InitializeResult()
		s.log.DebugContext(ctx, "mcp: session open", "protocol", r.ProtocolVersion)
		return s, nil
	}
	s.end()
	switch {
	case ctx.Err() != nil:
		return nil, s.fault(op, &fault{ctx.Err().Error() + s.told(), []error{ctx.Err()}}, nil)
	case own.Err() != nil:
		return nil, s.fault(op, &fault{fmt.Sprintf("no session within %v%s", c.o.ConnectTimeout, s.told()), []error{psych.ErrUnavailable, own.Err()}}, nil)
	}
	s.mu.Lock()
	known := ex.err
	s.mu.Unlock()
	f := s.fault(op, err, known)
	f.is = slices.DeleteFunc(slices.Clone(f.is), func(err error) bool { return err == psych.ErrSessionLost }) // there was none
	return nil, f
}

// dial opens a session over HTTP.
func (s *session) dial(ctx context.Context, base http.RoundTripper, rawURL string, cred *credential) error {
	u, err := url.Parse(rawURL)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("its URL can't be used: want http:// or https:// and a host: %w", psych.ErrInvalid)
	case u.User != nil:
		return fmt.Errorf("its URL names a user: credentials are kept by Secrets: %w", psych.ErrInvalid)
	case len(cred.env) > 0 && len(cred.headers) == 0:
		return fmt.Errorf(`its credential is the env of a command: want a token, or {"headers": {…}}: %w`, psych.ErrInvalid)
	}
	u.Fragment = ""
	w := &wire{s: s, base: base, endpoint: u, cred: cred}
	s.http = true
	transport := &sdk.StreamableClientTransport{
		Endpoint:     u.String(),
		HTTPClient:   &http.Client{Transport: w, CheckRedirect: w.redirect},
		MaxRetries:   3,
		MaxEventSize: -1, // wire bounds them, without breaking the session
	}
	s.client, err = newClient().Connect(ctx, transport, nil)
	return err
}

// start opens a session with a command.
//
// The handshake of the versions before 2026-07-28 comes first, since a number
// of servers end when they are sent anything else, and those that are newer
// know it. One that refuses it is started again and asked the new way.
func (s *session) start(ctx context.Context, command []string, cred *credential) error {
	if o := cred.headers; len(o) > 0 && len(cred.env) == 0 {
		return fmt.Errorf(`its credential is for HTTP: a command wants {"env": {…}}: %w`, psych.ErrInvalid)
	}
	var err error
	for _, version := range []string{"2025-11-25", ""} {
		p, startErr := startProcess(s, command, cred.env)
		if startErr != nil {
			return startErr
		}
		s.proc.Store(p)
		s.client, err = newClient().Connect(ctx, p, &sdk.ClientSessionOptions{ProtocolVersion: version})
		if err == nil {
			return nil
		}
		p.kill()
		var answered *jsonrpc.Error
		if !errors.As(err, &answered) {
			break
		}
	}
	return err
}

func newClient() *sdk.Client {
	client := sdk.NewClient(&sdk.Implementation{Name: "psych", Version: version()}, &sdk.ClientOptions{
		Capabilities:   &sdk.ClientCapabilities{},
		MultiRoundTrip: &sdk.MultiRoundTripOptions{Disabled: true},
		// What it is told was taken from the wire before; that it is there asks
		// a server of the new protocol for the notification.
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) {},
	})
	client.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			if method == "ping" {
				return next(ctx, method, req)
			}
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: method + " is not offered by this client"}
		}
	})
	return client
}

// version is that of this module in the program.
func version() string {
	const path = "github.com/psych-go/psych-go"
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, m := range append(info.Deps, &info.Main) {
			if m.Path == path && m.Version != "" {
				return m.Version
			}
		}
	}
	return "(devel)"
}

// A session is one open connection. The SDK speaks the protocol; what comes
// from the server passes inbound first, as messages whose results are still
// bytes.
type session struct {
	name        string
	client      *sdk.ClientSession
	http        bool
	proc        atomic.Pointer[process] // nil over HTTP
	limit       int64
	log         *slog.Logger
	listChanged func()
	hidden      []string               // see hide
	id          atomic.Pointer[string] // that the server gave the session

	life      context.Context // ends with Close
	end       context.CancelFunc
	closeOnce sync.Once
	changing  atomic.Bool
	answering atomic.Int32
	tokens    atomic.Int64
	heard     atomic.Int64 // notifications of progress that were a call's

	silent, ping time.Duration
	received     atomic.Int64  // messages of the server
	suspected    atomic.Int64  // 1 + received, as a call ended that heard nothing; 0: none did
	probing      chan struct{} // holds one while a ping is out
	wedged       atomic.Bool   // it was not answered

	mu       sync.Mutex
	calls    map[jsonrpc.ID]*exchange // that wait for an answer
	progress map[int64]*exchange

	priming sync.Mutex
	primed  map[string][sha256.Size]byte // schemas that the SDK was told
}

var _ psych.Session = (*session)(nil)

// An exchange is one request and its answer. It is in the context of all that
// the SDK does for it; its fields are of the session's mu once that is so.
type exchange struct {
	through     bool            // the SDK takes the answer itself
	local       json.RawMessage // the answer, of a request that never leaves
	emptyCursor bool
	progress    func()
	stub        json.RawMessage // what the SDK gets for the result
	told        chan struct{}   // closed when the server was sent a cancellation

	id       jsonrpc.ID
	answered bool
	raw      json.RawMessage // the result
	err      error           // what the wire knows of it
	asked    string          // what the server asked for meanwhile, that is not offered
	resumes  int             // of its stream, since that brought anything
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	ex, _ := ctx.Value(exchangeKey{}).(*exchange)
	return ex
}

// register says under which id the exchange of ctx is sent.
func (s *session) register(ctx context.Context, id jsonrpc.ID) {
	if ex := exchangeOf(ctx); ex != nil && ex.local == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		ex.id, ex.err = id, nil
		s.calls[id] = ex
	}
}

// advanced says that the stream of a call brought something.
func (s *session) advanced(id jsonrpc.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ex := s.calls[id]; ex != nil {
		ex.resumes = 0
	}
}

// cancelled says that the server was told that the exchange of ctx is over.
func (s *session) cancelled(ctx context.Context) {
	if ex := exchangeOf(ctx); ex != nil && ex.told != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		select {
		case <-ex.told:
		default:
			close(ex.told)
		}
	}
}

// inbound takes from a message what is the session's, and returns what the SDK
// is to see of it, if anything. Notifications end here, so that they are
// nowhere queued.
func (s *session) inbound(msg jsonrpc.Message) jsonrpc.Message {
	s.received.Add(1)
	switch m := msg.(type) {
	case *jsonrpc.Response:
		s.mu.Lock()
		defer s.mu.Unlock()
		ex := s.calls[m.ID]
		if ex == nil {
			return m
		}
		delete(s.calls, m.ID)
		if m.Error != nil || ex.through {
			return m
		}
		ex.answered, ex.raw = true, m.Result
		return &jsonrpc.Response{ID: m.ID, Result: ex.stub}
	case *jsonrpc.Request:
		if m.IsCall() {
			if m.Method != "ping" {
				s.log.Warn("mcp: the server asks for what is not offered", "method", clip(m.Method, 80))
				s.mu.Lock()
				for _, ex := range s.calls {
					if ex.asked == "" {
						ex.asked = clip(m.Method, 80)
					}
				}
				s.mu.Unlock()
			}
			if s.answering.Add(1) > maxAnswers {
				s.answering.Add(-1)
				return nil
			}
			return m
		}
		switch m.Method {
		case "notifications/progress":
			var p struct {
				Token json.Number `json:"progressToken"`
			}
			if json.Unmarshal(m.Params, &p) != nil {
				return nil
			}
			if token, err := p.Token.Int64(); err == nil {
				s.mu.Lock()
				ex := s.progress[token]
				s.mu.Unlock()
				if ex != nil {
					s.heard.Add(1)
					ex.progress()
				}
			}
		case "notifications/tools/list_changed":
			s.changed()
		}
	}
	return nil
}

// changed tells of a changed list, of many changes in a row once.
func (s *session) changed() {
	if s.listChanged == nil || !s.changing.CompareAndSwap(false, true) {
		return
	}
	time.AfterFunc(changeWait, func() {
		s.changing.Store(false)
		if s.life.Err() == nil {
			s.listChanged()
		}
	})
}

// refuse ends the request of that id with an error, and returns the answer that
// the SDK gets for it.
func (s *session) refuse(id jsonrpc.ID, err error) *jsonrpc.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ex := s.calls[id]; ex != nil {
		delete(s.calls, id)
		ex.err = err
	}
	return &jsonrpc.Response{ID: id, Error: &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}}
}

// do sends a request through the SDK.
func (s *session) do(ctx context.Context, op string, ex *exchange, send func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.life.Err() != nil {
		return s.fault(op, &fault{"the session is closed", []error{psych.ErrSessionLost}}, nil)
	}
	if err := s.probe(ctx, op); err != nil {
		return err
	}
	began, received := time.Now(), s.received.Load()
	own, cancel := context.WithCancel(context.WithValue(ctx, exchangeKey{}, ex))
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	err := send(own)
	s.mu.Lock()
	if s.calls[ex.id] == ex {
		delete(s.calls, ex.id)
	}
	known := ex.err
	s.mu.Unlock()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		select {
		case <-ex.told:
		case <-time.After(cancelWait):
		}
		if s.received.Load() == received && time.Since(began) >= s.silent && (!s.http || s.id.Load() != nil) {
			s.suspected.Store(1 + received)
		}
		return ctx.Err()
	case s.life.Err() != nil:
		return s.fault(op, &fault{"the session was closed before the answer", []error{psych.ErrUnavailable}}, nil)
	}
	return s.fault(op, err, known)
}

// probe sends a ping where the server said nothing since a call that it left
// unanswered. A session whose ping isn't answered is lost.
func (s *session) probe(ctx context.Context, op string) error {
	silent := func() bool { return s.suspected.Load() == 1+s.received.Load() }
	if !silent() {
		return nil
	}
	select {
	case s.probing <- struct{}{}:
		defer func() { <-s.probing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if !s.wedged.Load() {
		if !silent() {
			return nil
		}
		ex := &exchange{through: true}
		own, cancel := context.WithTimeout(context.WithValue(ctx, exchangeKey{}, ex), s.ping)
		defer cancel()
		defer context.AfterFunc(s.life, cancel)()
		_ = s.client.Ping(own, nil) // that it answers with an error is an answer
		s.mu.Lock()
		if s.calls[ex.id] == ex {
			delete(s.calls, ex.id)
		}
		s.mu.Unlock()
		switch {
		case !silent() || own.Err() == nil: // what broke the request otherwise is the next one's to say
			s.suspected.Store(0)
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
		s.wedged.Store(true)
		s.log.Warn("mcp: the server answers nothing: the session is lost")
	}
	return s.fault(op, &fault{fmt.Sprintf("the server left a call unanswered, and then a ping for %v", s.ping), []error{psych.ErrSessionLost}}, nil)
}

// Instructions implements psych.Session.
func (s *session) Instructions() string { return s.client.InitializeResult().Instructions }

// emptyCursor stands for "" until the request is encoded: the SDK leaves an
// empty cursor out.
const emptyCursor = "psych:empty-cursor:c1b0c5d1a5d64f0e"

// withCursor is an encoded request with its empty cursor put in.
func (ex *exchange) withCursor(data []byte) []byte {
	if ex == nil || !ex.emptyCursor {
		return data
	}
	return bytes.Replace(data, []byte(`"cursor":"`+emptyCursor+`"`), []byte(`"cursor":""`), 1)
}

// ListTools implements psych.Session.
func (s *session) ListTools(ctx context.Context, cursor *string) (psych.ToolPage, error) {
	op := fmt.Sprintf("mcp: %s: list tools", s.name)
	ex := &exchange{stub: json.RawMessage(`{"tools":[]}`), told: make(chan struct{})}
	var params sdk.ListToolsParams
	if cursor != nil {
		if params.Cursor = *cursor; params.Cursor == "" {
			params.Cursor, ex.emptyCursor = emptyCursor, true
		}
	}
	err := s.do(ctx, op, ex, func(ctx context.Context) error {
		_, err := s.client.ListTools(ctx, &params)
		return err
	})
	if err != nil {
		var answered *jsonrpc.Error
		caps := s.client.InitializeResult().Capabilities
		if errors.As(err, &answered) && answered.Code == jsonrpc.CodeMethodNotFound && cursor == nil && (caps == nil || caps.Tools == nil) {
			return psych.ToolPage{}, nil // a server of resources or prompts alone
		}
		return psych.ToolPage{}, err
	}
	s.mu.Lock()
	raw := ex.raw
	s.mu.Unlock()
	page, err := toolPage(raw)
	if err != nil {
		return psych.ToolPage{}, fmt.Errorf("%s: %w", op, err)
	}
	return page, nil
}

// CallTool implements psych.Session.
func (s *session) CallTool(ctx context.Context, t *psych.RemoteTool, c *psych.Call) (*psych.Result, error) {
	op := fmt.Sprintf("mcp: %s: call %.80q", s.name, t.Name)
	args := bytes.TrimSpace(c.Arguments)
	if len(args) == 0 {
		args = []byte("{}")
	}
	if !json.Valid(args) {
		return nil, fmt.Errorf("%s: the arguments are no JSON: %w", op, psych.ErrInvalid)
	}
	s.prime(ctx, t)
	token := s.tokens.Add(1)
	ex := &exchange{progress: c.Progress, stub: json.RawMessage(`{"content":[]}`), told: make(chan struct{})}
	s.mu.Lock()
	s.progress[token] = ex
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.progress, token)
		s.mu.Unlock()
	}()
	meta := sdk.Meta{"progressToken": token}
	if c.IdempotencyKey != "" {
		meta[MetaIdempotencyKey] = c.IdempotencyKey
	}
	err := s.do(ctx, op, ex, func(ctx context.Context) error {
		_, err := s.client.CallTool(ctx, &sdk.CallToolParams{Meta: meta, Name: t.Name, Arguments: json.RawMessage(args)})
		return err
	})
	s.mu.Lock()
	raw, asked := ex.raw, ex.asked
	s.mu.Unlock()
	if err != nil {
		var answered *jsonrpc.Error
		var large *tooLarge
		switch {
		case errors.As(err, &large):
			return failure(asked, fmt.Sprintf("The tool ran, but its answer has more than %d bytes and was not taken. Ask it for less.", s.limit)), nil
		case errors.As(err, &answered):
			return failure(asked, clip(s.hide(fmt.Sprintf("The server answered with error %d: %s", answered.Code, answered.Message)), maxReason)), nil
		case asked != "" && ctx.Err() == nil:
			return nil, fmt.Errorf("%w (the server asked for %s, which is not offered)", err, asked)
		}
		return nil, err
	}
	res, err := toolResult(c, raw, asked)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return res, nil
}

// prime tells the SDK a tool's schema where the protocol makes headers of it.
// The SDK knows tools from its own listings alone, so it is given one that
// never leaves the process.
func (s *session) prime(ctx context.Context, t *psych.RemoteTool) {
	if !s.http || s.client.InitializeResult().ProtocolVersion < headerProto || !bytes.Contains(t.Schema, []byte("x-mcp-header")) {
		return
	}
	sum := sha256.Sum256(t.Schema)
	s.priming.Lock()
	defer s.priming.Unlock()
	if s.primed[t.Name] == sum {
		return
	}
	list, err := json.Marshal(map[string]any{"tools": []any{map[string]any{"name": t.Name, "inputSchema": t.Schema}}})
	if err != nil {
		return // a schema that is no JSON has no headers
	}
	ctx = context.WithValue(ctx, exchangeKey{}, &exchange{local: list})
	if _, err := s.client.ListTools(ctx, &sdk.ListToolsParams{Cursor: "psych:local:" + t.Name}); err == nil {
		s.primed[t.Name] = sum
	}
}

// Close ends the session: calls that run fail, the server is told, and a
// command is stopped with all that it started. It takes a few seconds at most.
func (s *session) Close() error {
	s.closeOnce.Do(func() {
		s.end()
		wait := closeWait
		if s.wedged.Load() { // it is no use to tell it
			wait = closeWait / 3
			if p := s.proc.Load(); p != nil {
				p.kill()
			}
		}
		closed := make(chan struct{})
		go func() {
			_ = s.client.Close() // whatever the server says of it, the session is over
			close(closed)
		}()
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-closed:
		case <-timer.C:
		}
		if p := s.proc.Load(); p != nil {
			p.kill()
			<-closed
		}
		s.log.Debug("mcp: session closed", "calls", s.tokens.Load(), "progress", s.heard.Load())
	})
	return nil
}

// A fault is an error whose text is fit to be shown, over errors whose own text
// need not be.
type fault struct {
	text string
	is   []error
}

func (f *fault) Error() string   { return f.text }
func (f *fault) Unwrap() []error { return f.is }

// tooLarge says that a message is over the limit.
type tooLarge struct{ limit int64 }

func (e *tooLarge) Error() string {
	return fmt.Sprintf("the server sent a message of more than %d bytes", e.limit)
}

// fault makes the error of an operation, from what the SDK said and, if it
// knows better, the wire.
func (s *session) fault(op string, err, known error) *fault {
	if known != nil {
		err = known
	}
	f := &fault{}
	var own *fault
	var answered *jsonrpc.Error
	var large *tooLarge
	switch {
	case errors.As(err, &own):
		f.text, f.is = own.text, own.is
	case errors.As(err, &large):
		f.text, f.is = large.Error(), []error{large}
	case errors.As(err, &answered):
		f.text, f.is = fmt.Sprintf("the server answered with error %d: %s", answered.Code, answered.Message), []error{answered}
	case errors.Is(err, sdk.ErrConnectionClosed):
		f.text, f.is = "the session broke before the request was sent"+s.told(), []error{psych.ErrSessionLost, sdk.ErrConnectionClosed}
	case isOurs(err):
		f.text, f.is = err.Error(), []error{err}
	default:
		f.text, f.is = plain(err)+s.told(), []error{psych.ErrUnavailable}
	}
	f.text = op + ": " + clip(s.hide(f.text), maxReason) // in this order: half a secret is one too
	return f
}

// isOurs reports whether err was made here, before anything was sent.
func isOurs(err error) bool {
	return errors.Is(err, psych.ErrInvalid) || errors.Is(err, psych.ErrAccessDenied) || errors.Is(err, psych.ErrNotFound) || errors.Is(err, errors.ErrUnsupported)
}

// plain is the text of an error without the URL that net/http puts before it.
func plain(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err.Error()
	}
	return err.Error()
}

// told is what a command said of its end.
func (s *session) told() string {
	if p := s.proc.Load(); p != nil {
		return p.epitaph()
	}
	return ""
}
