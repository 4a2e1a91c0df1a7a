package anthropic

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/anthropics/anthropic-sdk-go/packages/ssestream"

	"github.com/psych-go/psych-go/internal/messages"
	"github.com/psych-go/psych-go/psych"
)

// DefaultBaseURL is Anthropic's own.
const DefaultBaseURL = "https://api.anthropic.com"

// Options of a [Model]. The zero value calls Anthropic without a key.
type Options struct {
	// BaseURL is what v1/messages is appended to: http or https, without user,
	// query and fragment. "" is DefaultBaseURL.
	BaseURL string

	// APIKey is sent as x-api-key; "" sends none. It is in no error.
	APIKey string

	// HTTPClient sends the requests, and follows no redirect; nil is
	// http.DefaultClient. A Timeout of it bounds the whole stream.
	HTTPClient *http.Client

	// Limits are what the Model declares of its server; nil is those of
	// Anthropic: names of 64 characters, property names of 64 of A-Z, a-z, 0-9,
	// _, . and -, images and PDFs of 5 MiB as base64.
	Limits *psych.ModelLimits

	// MaxTokens is max_tokens where a Spec has no max_output_tokens; 0 is 32,000
	// (4,096 for Claude 3).
	MaxTokens int

	// CacheTTL is how long the provider keeps what the markers of a request end:
	// "5m" (or ""), "1h", or "none" for no markers. SystemCacheTTL is that of
	// zones 1 and 2; "" is CacheTTL. A longer one can't stand behind a shorter.
	CacheTTL       string
	SystemCacheTTL string

	// Thinking, when not "", is what thinking is: "adaptive", "between_tools",
	// "disabled", "none" for not sending it, or a budget in tokens, such as
	// "8000".
	Thinking string

	// Like is the model whose rules for reasoning hold, where the name does not
	// tell: "claude-opus-5-5" behind a gateway's alias.
	Like string

	// FreeBlocks leaves out what is to happen to reasoning whose prefix changed,
	// for servers that don't know it. Anthropic may refuse requests then.
	FreeBlocks bool
}

// A Model calls one model of one server. It is safe for concurrent use.
type Model struct {
	name   string
	base   string
	key    string
	format *messages.Format
	start  []byte // of each body
	client anthropic.Client
	err    *psych.ModelError // why it can't be called
}

var _ psych.Model = (*Model)(nil)

// New returns a Model that asks for name. It does no IO and reads no
// environment. What of name and options can't be used is reported by each
// Generate, in an error matching psych.ErrInvalid.
func New(name string, o *Options) *Model {
	if o == nil {
		o = &Options{}
	}
	m, err := build(name, o)
	if err != nil {
		err = fmt.Errorf("anthropic: %w", err)
		m.err = &psych.ModelError{Message: err.Error(), Err: err}
	}
	return m
}

// build makes a Model that has a Codec even where it can't be called.
func build(name string, o *Options) (*Model, error) {
	m := &Model{name: name, base: o.BaseURL, key: o.APIKey}
	if m.base == "" {
		m.base = DefaultBaseURL
	}
	var err error
	if m.format, err = messages.New(o.common(name)); err != nil {
		m.format, _ = messages.New(messages.Options{Model: name})
		return m, err
	}
	if err := checkBaseURL(m.base); err != nil {
		return m, err
	}
	if name == "" {
		return m, fmt.Errorf("the model has no name: %w", psych.ErrInvalid)
	}
	m.start = append(psych.AppendEscaped([]byte(`"model":"`), name), `","stream":true`...)
	client := o.HTTPClient
	if client == nil {
		client = http.DefaultClient
	}
	own := *client
	// The key's header is not one that net/http keeps from another server.
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	opts := []option.RequestOption{
		option.WithoutEnvironmentDefaults(),
		option.WithBaseURL(m.base),
		option.WithHTTPClient(&own),
		option.WithMaxRetries(0),
		option.WithMiddleware(boundErrorBody),
	}
	if m.key != "" {
		opts = append(opts, option.WithAPIKey(m.key))
	}
	if m.format.Binds() {
		opts = append(opts, option.WithHeader("anthropic-beta", messages.BindingBeta))
	}
	m.client = anthropic.NewClient(opts...)
	return m, nil
}

// common are the options of the format.
func (o *Options) common(name string) messages.Options {
	return messages.Options{
		Model: name, Like: o.Like, CacheTTL: o.CacheTTL, SystemCacheTTL: o.SystemCacheTTL, Thinking: o.Thinking,
		MaxTokens: o.MaxTokens, FreeBlocks: o.FreeBlocks, Limits: o.Limits,
	}
}

// checkBaseURL names neither the user nor the password of a URL that has them.
func checkBaseURL(raw string) error {
	const want = "want http:// or https://, a host and a path, such as " + DefaultBaseURL
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return fmt.Errorf("the base URL can't be parsed: %s: %w", want, psych.ErrInvalid)
	case u.User != nil:
		return fmt.Errorf("the base URL of host %q holds a user: a key never stands in a URL: %w", u.Host, psych.ErrInvalid)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return fmt.Errorf("base URL %.200q: %s: %w", raw, want, psych.ErrInvalid)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return fmt.Errorf("the base URL of host %q has a query or a fragment: %s: %w", u.Host, want, psych.ErrInvalid)
	}
	return nil
}

// String names the model and its server.
func (m *Model) String() string { return m.name + " at " + m.base }

// Codec returns the encoding of the Messages API.
func (m *Model) Codec() psych.Codec { return m.format.Codec() }

// maxErrorBody bounds what is read of an answer that is not a stream, in bytes.
const maxErrorBody = 64 << 10

// boundErrorBody keeps the SDK from reading an error body of any size.
func boundErrorBody(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
	res, err := next(req)
	if err == nil && res.StatusCode >= 400 {
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(res.Body, maxErrorBody), res.Body}
	}
	return res, err
}

// Generate makes one request and reads its stream. Request.Model is not looked
// at: a Model has a name of its own.
//
// An empty Delta says that the stream is open and holds no piece yet.
//
// A *psych.ModelError is transient for a connection that fails, a stream that
// is cut, the statuses 408, 409, 425, 429 and from 500 on except 501 (529 is
// overloaded), unless the server says otherwise (x-should-retry), and for the
// errors of a stream that stand for these. An answer whose stop_reason came is
// whole, whether message_stop follows or not. Answers and errors have the id of
// the request. CacheKey is not sent: the provider's cache goes by the prefix
// alone.
func (m *Model) Generate(ctx context.Context, req *psych.Request, on func(psych.Delta)) (*psych.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if m.err != nil {
		return nil, m.err
	}
	body, err := m.format.Body(m.start, req)
	if err != nil {
		return nil, m.failure(err.Error(), "", err)
	}
	var raw *http.Response
	err = m.client.Post(ctx, "v1/messages", nil, &raw,
		option.WithRequestBody("application/json", body.Reader()),
		option.WithMiddleware(stateLength(body)))
	if raw != nil {
		defer raw.Body.Close()
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && (raw == nil || raw.StatusCode < 400):
		return nil, m.unreachable(err)
	case raw == nil:
		return nil, m.failure("the SDK returned no answer", "", nil)
	case err != nil || raw.StatusCode >= 300:
		said, _ := io.ReadAll(io.LimitReader(raw.Body, maxErrorBody)) // what is there says more than the error of reading it
		return nil, m.refused(raw.StatusCode, raw.Header, said, err)
	}
	resp, err := m.read(raw, on)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	resp.Sent = body.Chars
	return resp, nil
}

// stateLength is a middleware: the SDK leaves the length of a reader unknown,
// which would be sent in chunks, and some servers take no such request.
func stateLength(b *messages.Body) option.Middleware {
	return func(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		req.ContentLength = b.Size
		// Lets the transport try another connection when a kept one turns out to be
		// closed before anything was sent.
		req.GetBody = func() (io.ReadCloser, error) { return b.Reader(), nil }
		return next(req)
	}
}

// read assembles the stream of an answer.
func (m *Model) read(res *http.Response, on func(psych.Delta)) (*psych.Response, error) {
	id := m.requestID(res.Header)
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")) // what can't be parsed is "": try the stream
	if media == "application/json" || media == "text/html" {
		body, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
		if err != nil {
			return nil, m.cut(id, err)
		}
		return nil, m.noStream(id, media, body)
	}
	if on != nil {
		live := &liveBody{ReadCloser: res.Body, on: on}
		res.Body, on = live, live.tell
	}
	events := ssestream.NewDecoder(res)
	defer events.Close()
	a := messages.NewAssembler(on)
	for events.Next() {
		data := bytes.TrimSpace(events.Event().Data)
		if len(data) == 0 {
			continue
		}
		sent, err := a.Add(data)
		if sent != nil {
			return nil, m.refusedInStream(id, sent)
		}
		if err != nil {
			return nil, m.garbled(id, err)
		}
	}
	if err := events.Err(); err != nil && !a.Whole() {
		return nil, m.cut(id, err)
	}
	if !a.Whole() {
		return nil, m.unfinished(id, a.Begun())
	}
	return a.Response(id), nil
}

// A liveBody tells of a stream that holds no piece of an answer for a while, as
// of comments that keep it open, by an empty Delta: it is slow, not idle.
type liveBody struct {
	io.ReadCloser
	on    func(psych.Delta)
	quiet bool // bytes came, and nothing was told since
}

func (b *liveBody) Read(p []byte) (int, error) {
	if b.quiet {
		b.tell(psych.Delta{})
	}
	n, err := b.ReadCloser.Read(p)
	b.quiet = n > 0
	return n, err
}

func (b *liveBody) tell(d psych.Delta) {
	b.quiet = false
	b.on(d)
}

// sameOrigin reports whether two base URLs are of one server.
func sameOrigin(a, b string) bool {
	ua, err := url.Parse(a)
	if err != nil {
		return false
	}
	ub, err := url.Parse(b)
	if err != nil {
		return false
	}
	port := func(u *url.URL) string {
		switch p := u.Port(); {
		case p != "":
			return p
		case strings.EqualFold(u.Scheme, "https"):
			return "443"
		}
		return "80"
	}
	return strings.EqualFold(ua.Scheme, ub.Scheme) && strings.EqualFold(ua.Hostname(), ub.Hostname()) && port(ua) == port(ub)
}
