package lambda

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-lambda-go/events"

	"github.com/psych-go/psych-go/api"
	"github.com/psych-go/psych-go/psych"
)

// MaxAnswer is what of an answer a function can give, for api.Options: a
// response has 6 MB, in which the body is quoted.
const MaxAnswer = 4 << 20

// answerTime is left of an invocation for its answer.
const answerTime = 500 * time.Millisecond

// APIOptions of [API]. Nil and the zero value work.
type APIOptions struct {
	Logger *slog.Logger // nil: silent
}

// An httpEvent is what of an event of payload format 2.0 is used. Claims are of
// any type, whatever a gateway makes of them.
type httpEvent struct {
	Version         string            `json:"version"`
	RawPath         string            `json:"rawPath"`
	RawQueryString  string            `json:"rawQueryString"`
	Headers         map[string]string `json:"headers"`
	Body            string            `json:"body"`
	IsBase64Encoded bool              `json:"isBase64Encoded"`
	RequestContext  struct {
		RequestID  string `json:"requestId"`
		Stage      string `json:"stage"`
		DomainName string `json:"domainName"`
		Authorizer struct {
			JWT struct {
				Claims map[string]any `json:"claims"`
			} `json:"jwt"`
		} `json:"authorizer"`
		HTTP struct {
			Method   string `json:"method"`
			SourceIP string `json:"sourceIp"`
		} `json:"http"`
	} `json:"requestContext"`
}

// API handles events of an HTTP API, or of a function URL, in payload format
// 2.0, with h: an api.Handler that does not wait and whose MaxAnswer is
// [MaxAnswer]. The claims that a JWT authorizer of the HTTP API verified are
// what api.Claims reads; with a function URL there are none, and h verifies
// tokens itself (api/jwtauth). An event of another kind is an error.
//
// Answers are not streamed: a stream of server-sent events ends with the log,
// and its client comes back.
func API(h http.Handler, o *APIOptions) func(context.Context, json.RawMessage) (events.APIGatewayV2HTTPResponse, error) {
	var log *slog.Logger
	if o != nil {
		log = o.Logger
	}
	return func(ctx context.Context, event json.RawMessage) (events.APIGatewayV2HTTPResponse, error) {
		ctx, cancel := withDeadline(ctx, os.Getenv)
		defer cancel()
		log := logger(ctx, log)
		if d, ok := ctx.Deadline(); ok { // so that there is an answer
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, d.Add(-answerTime))
			defer cancel()
		}
		r, err := request(ctx, event)
		if err != nil {
			log.ErrorContext(ctx, "an event that is no request", "bytes", len(event), "err", err)
			return events.APIGatewayV2HTTPResponse{}, err
		}
		w := &recorder{header: http.Header{}, status: http.StatusOK}
		h.ServeHTTP(w, r)
		return w.response(), nil
	}
}

// request makes a request of an event.
func request(ctx context.Context, event json.RawMessage) (*http.Request, error) {
	var e httpEvent
	if err := json.Unmarshal(event, &e); err != nil {
		return nil, fmt.Errorf("lambda: the event is no JSON object of an HTTP API: %w", psych.ErrInvalid)
	}
	if e.Version != "2.0" || e.RequestContext.HTTP.Method == "" {
		return nil, fmt.Errorf("lambda: the event has the version %.20q: want one of an HTTP API or a function URL, of payload format 2.0: %w", e.Version, psych.ErrInvalid)
	}
	body := []byte(e.Body)
	if e.IsBase64Encoded {
		var err error
		if body, err = base64.StdEncoding.DecodeString(e.Body); err != nil {
			return nil, fmt.Errorf("lambda: the body of the event is no base64: %w", psych.ErrInvalid)
		}
	}
	path := e.RawPath
	if s := e.RequestContext.Stage; s != "" && s != "$default" {
		if rest, ok := strings.CutPrefix(path, "/"+s); ok && (rest == "" || rest[0] == '/') {
			path = rest
		}
	}
	if path == "" {
		path = "/"
	}
	u, err := url.ParseRequestURI(path)
	if err != nil || u.RawQuery != "" || u.Host != "" || u.Scheme != "" { // a gateway may have decoded it
		u = &url.URL{Path: path}
	}
	u.RawQuery = e.RawQueryString
	if claims := e.RequestContext.Authorizer.JWT.Claims; claims != nil {
		ctx = api.WithClaims(ctx, claims)
	}
	r := (&http.Request{
		Method: e.RequestContext.HTTP.Method, URL: u, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Host: e.RequestContext.DomainName,
		RemoteAddr: e.RequestContext.HTTP.SourceIP + ":0",
	}).WithContext(ctx)
	for name, value := range e.Headers { // what stood in several is joined by commas
		r.Header.Set(name, value)
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
	}
	r.Header.Del("Host")
	if r.Header.Get("X-Request-Id") == "" && e.RequestContext.RequestID != "" {
		r.Header.Set("X-Request-Id", e.RequestContext.RequestID)
	}
	return r, nil
}

// A recorder keeps an answer.
type recorder struct {
	header http.Header
	status int
	begun  bool
	body   bytes.Buffer
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	if !w.begun {
		w.begun, w.status = true, status
	}
}

func (w *recorder) Write(p []byte) (int, error) {
	w.begun = true
	return w.body.Write(p)
}

// quoteBytes is up to how many bytes of text stand in a response as they are;
// quoted, they may take several times that.
const quoteBytes = 512 << 10

func (w *recorder) response() events.APIGatewayV2HTTPResponse {
	resp := events.APIGatewayV2HTTPResponse{StatusCode: w.status, Headers: map[string]string{}, Cookies: []string{}}
	for name, values := range w.header {
		resp.Headers[strings.ToLower(name)] = strings.Join(values, ", ")
	}
	if b := w.body.Bytes(); len(b) <= quoteBytes && utf8.Valid(b) {
		resp.Body = string(b)
	} else {
		resp.Body, resp.IsBase64Encoded = base64.StdEncoding.EncodeToString(b), true
	}
	return resp
}
