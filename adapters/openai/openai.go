package openai

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"

	"github.com/psych-go/psych-go/psych"
)

// DefaultBaseURL is OpenAI's own.
const DefaultBaseURL = "https://api.openai.com/v1"

// Options of a [Model]. The zero value calls OpenAI without a key.
type Options struct {
	// BaseURL is what chat/completions, or responses, is appended to: http or
	// https, without user, query and fragment. "" is DefaultBaseURL.
	BaseURL string

	// APIKey is sent as a bearer token; "" sends none. It is in no error.
	APIKey string

	Organization string // OpenAI-Organization; "" sends none
	Project      string // OpenAI-Project; "" sends none

	// HTTPClient sends the requests; nil is http.DefaultClient. A Timeout of it
	// bounds the whole stream.
	HTTPClient *http.Client

	// Limits are what the Model declares of its server; nil is those of OpenAI:
	// 128 tools, names of 64 characters, descriptions of 1,024.
	Limits *psych.ModelLimits

	// Responses calls the Responses API instead of Chat Completions, which more
	// servers know.
	Responses bool

	// Images says that the model takes images: in the Limits, png, jpeg, gif and
	// webp of at most 5 MiB each, unless Limits names others. Without, the model
	// is told of images in text.
	Images bool

	// LegacyMaxTokens sends the output limit as max_tokens, for servers that
	// don't know max_completion_tokens. The Responses API has neither.
	LegacyMaxTokens bool

	// DropReasoning leaves reasoning out of what is sent back, for servers that
	// refuse it: reasoning_content, reasoning and reasoning_details, or the
	// reasoning items of the Responses API, which then are not asked for in a
	// form that can be sent back; OpenAI's models that don't reason refuse to be
	// asked. The log keeps what came.
	DropReasoning bool

	// ReasoningSummary is sent as reasoning.summary (auto, concise, detailed) to
	// the Responses API: what a model thinks is shown in summary. "" sends none.
	ReasoningSummary string

	// CacheKey is sent as prompt_cache_key; "" sends one of each Run to the
	// Responses API and to OpenAI, and none to the Chat Completions of other
	// servers, which may refuse it.
	CacheKey string

	// CacheBreakpoints marks the ends of zones with prompt_cache_breakpoint and
	// sets prompt_cache_options.mode to explicit. OpenAI documents both for gpt-5.6
	// and later models, where they are sent to OpenAI without being asked for,
	// unless NoCacheBreakpoints is set; other servers may refuse them. The name of
	// a fine-tuned model does not tell.
	CacheBreakpoints   bool
	NoCacheBreakpoints bool

	// CacheTTL is how long the provider keeps what it caches; "" leaves it to the
	// provider. "30m" and "12h" are sent as prompt_cache_options.ttl, the least
	// time, for gpt-5.6 and later; "in_memory" and "24h" as prompt_cache_retention,
	// the longest, for models before.
	CacheTTL string
}

// Values of Options.CacheTTL.
var (
	leastTTLs   = []string{"30m", "12h"}
	longestTTLs = []string{"in_memory", "24h"}
)

// A Model calls one model of one server. It is safe for concurrent use.
type Model struct {
	name  string
	base  string
	key   string
	o     Options
	codec *codec
	chat  openai.ChatCompletionService
	resp  responses.ResponseService
	err   *psych.ModelError // why it can't be called
}

// versioned finds the version of the models that OpenAI names gpt-VERSION.
var versioned = lazily(`^gpt-(\d{1,3})(?:\.(\d{1,3}))?(?:-|$)`)

// takesBreakpoints reports whether OpenAI's documentation says that a model takes
// prompt_cache_options: "supported for gpt-5.6 and later models".
func takesBreakpoints(name string) bool {
	v := versioned().FindStringSubmatch(name)
	if v == nil {
		return false
	}
	major, _ := strconv.Atoi(v[1]) // digits
	minor, _ := strconv.Atoi(v[2]) // "" is 0
	return major > 5 || major == 5 && minor >= 6
}

// isOpenAI reports whether a base URL is OpenAI's own, of any region.
func isOpenAI(base string) bool {
	u, err := url.Parse(base)
	if err != nil || !strings.EqualFold(u.Scheme, "https") {
		return false
	}
	host := strings.ToLower(u.Hostname())
	return host == "api.openai.com" || strings.HasSuffix(host, ".api.openai.com")
}

var (
	_ psych.Model       = (*Model)(nil)
	_ psych.CacheKeeper = (*Model)(nil)
)

// New returns a Model that asks for name. It does no IO and reads no
// environment. A base URL or name that can't be used is reported by each
// Generate, in an error matching psych.ErrInvalid.
func New(name string, o *Options) *Model {
	m := &Model{name: name}
	if o != nil {
		m.o = *o
	}
	m.base, m.key = m.o.BaseURL, m.o.APIKey
	if m.base == "" {
		m.base = DefaultBaseURL
	}
	if isOpenAI(m.base) && takesBreakpoints(name) {
		m.o.CacheBreakpoints = true
	}
	if m.o.NoCacheBreakpoints {
		m.o.CacheBreakpoints = false
	}
	m.codec = newCodec(&m.o)
	err := checkBaseURL(m.base)
	if err == nil && m.o.CacheTTL != "" && !slices.Contains(leastTTLs, m.o.CacheTTL) && !slices.Contains(longestTTLs, m.o.CacheTTL) {
		err = fmt.Errorf("openai: cache TTL %.80q: want 30m or 12h, or in_memory or 24h for models before gpt-5.6: %w", m.o.CacheTTL, psych.ErrInvalid)
	}
	if err == nil && name == "" {
		err = fmt.Errorf("openai: the model has no name: %w", psych.ErrInvalid)
	}
	if err != nil {
		m.err = &psych.ModelError{Message: err.Error(), Err: err}
		return m
	}
	client := m.o.HTTPClient
	if client == nil {
		client = http.DefaultClient
	}
	opts := []option.RequestOption{
		option.WithBaseURL(m.base),
		option.WithHTTPClient(client),
		option.WithMaxRetries(0),
		option.WithMiddleware(boundErrorBody),
	}
	if m.key != "" {
		opts = append(opts, option.WithAPIKey(m.key))
	}
	if m.o.Organization != "" {
		opts = append(opts, option.WithOrganization(m.o.Organization))
	}
	if m.o.Project != "" {
		opts = append(opts, option.WithProject(m.o.Project))
	}
	if m.o.Responses {
		m.resp = responses.NewResponseService(opts...)
	} else {
		m.chat = openai.NewChatCompletionService(opts...)
	}
	return m
}

// openAILimits are OpenAI's: "a max of 128 functions", names "with a maximum
// length of 64" in its reference; its older models answer 400 to a longer
// description.
var openAILimits = psych.ModelLimits{Tools: 128, ToolName: 64, ToolDescription: 1024}

// What a model takes that takes images. OpenAI names these types, and bounds
// the whole request, at hundreds of megabytes; each later request carries an
// image again, and other servers and the proxies before them take less.
var imageTypes = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}

const imageBytes = 5 << 20

// checkBaseURL names neither the user nor the password of a URL that has them.
func checkBaseURL(raw string) error {
	const want = "want http:// or https://, a host and a path, such as " + DefaultBaseURL
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return fmt.Errorf("openai: the base URL can't be parsed: %s: %w", want, psych.ErrInvalid)
	case u.User != nil:
		return fmt.Errorf("openai: the base URL of host %q holds a user: a key never stands in a URL: %w", u.Host, psych.ErrInvalid)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return fmt.Errorf("openai: base URL %.200q: %s: %w", raw, want, psych.ErrInvalid)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return fmt.Errorf("openai: the base URL of host %q has a query or a fragment: %s: %w", u.Host, want, psych.ErrInvalid)
	}
	return nil
}

// String names the model and its server.
func (m *Model) String() string { return m.name + " at " + m.base }

// KeepsCache is the time that Options.CacheTTL asks for, else the 30 minutes that
// OpenAI documents where there are breakpoints, else 0, which is not known.
func (m *Model) KeepsCache() time.Duration {
	ttl, err := time.ParseDuration(m.o.CacheTTL) // "" and "in_memory" are none
	if err != nil && m.o.CacheBreakpoints {
		ttl = 30 * time.Minute
	}
	return ttl
}

// Codec returns the encoding that the options ask for.
func (m *Model) Codec() psych.Codec { return m.codec }

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
// is cut, the statuses 408, 409, 425, 429 and from 500 on except 501, unless
// the server says otherwise (x-should-retry, an exhausted quota). An answer
// whose finish_reason came is whole, whether usage and [DONE] follow or not; of
// the Responses API, one whose response.completed or response.incomplete came.
func (m *Model) Generate(ctx context.Context, req *psych.Request, on func(psych.Delta)) (*psych.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if m.err != nil {
		return nil, m.err
	}
	b := m.join(req)
	var raw *http.Response
	opts := []option.RequestOption{
		option.WithRequestBody("application/json", b.open()),
		option.WithMiddleware(b.stateLength),
		option.WithResponseBodyInto(&raw),
	}
	var err error
	if m.o.Responses {
		_, err = m.resp.New(ctx, responses.ResponseNewParams{}, opts...)
	} else {
		_, err = m.chat.New(ctx, openai.ChatCompletionNewParams{}, opts...)
	}
	if raw != nil {
		defer raw.Body.Close()
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && (raw == nil || raw.StatusCode < 400):
		return nil, m.unreachable(err)
	case raw == nil:
		return nil, m.failure("the SDK returned no answer", nil)
	case err != nil || raw.StatusCode >= 300:
		body, _ := io.ReadAll(io.LimitReader(raw.Body, maxErrorBody)) // what is there says more than the error of reading it
		e := m.refused(raw.StatusCode, raw.Header, body, err)
		e.RequestID = requestID(raw.Header)
		return nil, e
	}
	resp, err := m.read(raw, on)
	var failed *psych.ModelError
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.As(err, &failed):
		failed.RequestID = requestID(raw.Header)
		return nil, failed
	case err != nil:
		return nil, err
	}
	resp.Sent, resp.RequestID = b.chars, requestID(raw.Header)
	return resp, nil
}

// read assembles the stream of an answer.
func (m *Model) read(res *http.Response, on func(psych.Delta)) (*psych.Response, error) {
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")) // what can't be parsed is "": try the stream
	if media == "application/json" || media == "text/html" {
		body, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
		if err != nil {
			return nil, m.cut(err)
		}
		return nil, m.noStream(media, body)
	}
	if on != nil {
		live := &liveBody{ReadCloser: res.Body, on: on}
		res.Body, on = live, live.tell
	}
	events := ssestream.NewDecoder(res)
	defer events.Close()
	var a assembling = newAssembler(on)
	if m.o.Responses {
		a = newResponsesAssembler(on)
	}
	for events.Next() {
		data := bytes.TrimSpace(events.Event().Data)
		if len(data) == 0 {
			continue
		}
		if bytes.HasPrefix(data, []byte("[DONE]")) {
			return m.assembled(a)
		}
		sent, err := a.add(data)
		if sent != nil {
			return nil, m.refusedInStream(sent)
		}
		if err != nil {
			return nil, m.garbled(err)
		}
		if a.ended() {
			return m.assembled(a)
		}
	}
	if err := events.Err(); err != nil {
		return nil, m.cut(err)
	}
	return m.assembled(a)
}

// A liveBody tells of a stream that holds no piece of an answer for a while, as
// of comments that keep it open and of chunks without content, by an empty
// Delta: it is slow, not idle.
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

func (m *Model) assembled(a assembling) (*psych.Response, error) {
	if what := a.missing(); what != "" {
		e := m.failure(what, io.ErrUnexpectedEOF)
		e.Transient = true
		return nil, e
	}
	return a.response(), nil
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
