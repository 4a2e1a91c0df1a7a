package bedrock

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/bedrockruntime"
	"github.com/aws/aws-sdk-go-v2/service/bedrockruntime/types"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/internal/messages/messagestest"
	"github.com/psych-go/psych-go/psych"
)

var update = flag.Bool("update", false, "rewrite testdata")

const (
	testSecret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	opus       = "us.anthropic.claude-opus-5-v1:0"
)

// A stub is Bedrock's runtime on a socket of its own.
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
		s.requests = append(s.requests, received{r.Method + " " + r.URL.EscapedPath(), r.Header, r.ContentLength, r.TransferEncoding, body})
		n := min(len(s.requests), len(answers)) - 1
		s.mu.Unlock()
		w.Header().Set("X-Amzn-RequestId", "req-1")
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

func client(endpoint string, c aws.CredentialsProvider) *bedrockruntime.Client {
	return bedrockruntime.New(bedrockruntime.Options{Region: "eu-central-1", BaseEndpoint: &endpoint, Credentials: c})
}

func (s *stub) model(id string, o *Options) *Model {
	return New(client(s.URL, credentials.NewStaticCredentialsProvider("AKIDEXAMPLE", testSecret, "")), id, o)
}

// frame is a message of an event stream.
func frame(payload string, headers ...string) []byte {
	msg := eventstream.Message{Payload: []byte(payload)}
	for i := 0; i < len(headers); i += 2 {
		msg.Headers.Set(headers[i], eventstream.StringValue(headers[i+1]))
	}
	var b bytes.Buffer
	if err := eventstream.NewEncoder().Encode(&b, msg); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// chunk is an event of the model's, as Bedrock frames it.
func chunk(data string) []byte {
	payload, _ := json.Marshal(map[string]any{"bytes": []byte(data), "p": "abcdefgh"}) // can't fail
	return frame(string(payload), ":message-type", "event", ":event-type", "chunk", ":content-type", "application/json")
}

// exception is what Bedrock ends a stream with.
func exception(kind, payload string) []byte {
	return frame(payload, ":message-type", "exception", ":exception-type", kind, ":content-type", "application/json")
}

func frames(all ...[]byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.amazon.eventstream")
		w.Header().Set("X-Amzn-Bedrock-Content-Type", "application/json")
		for _, f := range all {
			if _, err := w.Write(f); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

func chunks(data ...string) [][]byte {
	var all [][]byte
	for _, d := range data {
		all = append(all, chunk(d))
	}
	return all
}

const (
	start = `{"type":"message_start","message":{"id":"msg_bdrk_1","usage":{"input_tokens":25,"cache_read_input_tokens":100,"cache_creation_input_tokens":5,"output_tokens":1}}}`
	begun = `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`
	done  = `{"type":"content_block_stop","index":0}`
	ended = `{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}`
	stop  = `{"type":"message_stop","amazon-bedrock-invocationMetrics":{"inputTokenCount":25}}`
)

func said(s string) string {
	return `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"` + s + `"}}`
}

func answer(text string) http.HandlerFunc {
	return frames(chunks(start, begun, said(text), done, ended, stop)...)
}

func wireOf(b []byte, marker int) psych.Wire {
	return psych.Wire{Bytes: b, Chars: utf8.RuneCount(b), Marker: marker}
}

func aRequest(t *testing.T, m *Model) *psych.Request {
	t.Helper()
	c := m.Codec()
	zone1, zone2, err := c.EncodeSystem([]string{"Be brief. 日本"}, "You like tea.")
	if err != nil {
		t.Fatal(err)
	}
	b, marker, err := c.EncodeMessage(&psych.Message{Role: psych.RoleUser, Blocks: []psych.Block{{Text: "hi"}}})
	if err != nil {
		t.Fatal(err)
	}
	tail, err := c.EncodeTail("Now: 2026-11-29 22:23 UTC, Sunday")
	if err != nil {
		t.Fatal(err)
	}
	return &psych.Request{System: [2]psych.Wire{wireOf(zone1, -1), wireOf(zone2, -1)}, History: []psych.Wire{wireOf(b, marker)}, Breaks: []int{0}, Tail: wireOf(tail, -1)}
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
	for name, id := range map[string]string{"opus-5": opus, "opus-5-5": "arn:aws:bedrock:eu-central-1:123456789012:inference-profile/eu.anthropic.claude-opus-5-5"} {
		t.Run(name, func(t *testing.T) {
			s := newStub(t, answer("hi"))
			m := s.model(id, nil)
			req := aRequest(t, m)
			req.Options = psych.ModelOptions{MaxOutputTokens: 500}
			for i := range 50 { // many parts, over a buffer's size
				b, marker, err := m.Codec().EncodeMessage(&psych.Message{Role: psych.RoleUser, Blocks: []psych.Block{{Text: strings.Repeat(fmt.Sprint(i), 5_000)}}})
				if err != nil {
					t.Fatal(err)
				}
				req.History = append(req.History, wireOf(b, marker))
			}
			r, err := m.Generate(t.Context(), req, nil)
			if err != nil {
				t.Fatal(err)
			}
			g := s.got()[0]
			switch {
			case g.path != "POST /model/"+url.QueryEscape(id)+"/invoke-with-response-stream":
				t.Errorf("asked for %s", g.path)
			case !strings.HasPrefix(g.header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/") || !strings.Contains(g.header.Get("Authorization"), "/eu-central-1/bedrock/aws4_request"):
				t.Errorf("authorization %q", g.header.Get("Authorization"))
			case g.header.Get("Content-Type") != "application/json":
				t.Errorf("headers %v", g.header)
			case g.length != int64(len(g.body)) || len(g.chunked) > 0:
				t.Errorf("length %d and encoding %v, want %d stated", g.length, g.chunked, len(g.body))
			case r.Sent != utf8.RuneCount(g.body):
				t.Errorf("Sent is %d, want %d characters", r.Sent, utf8.RuneCount(g.body))
			}
			x, err := messagestest.Check(g.body)
			if err != nil || x.Model != "" || x.Stream || x.Version != "bedrock-2023-05-31" || x.MaxTokens != 500 || (len(x.Betas) > 0) != (name == "opus-5-5") {
				t.Errorf("%+v, %v", x, err)
			}

			small := aRequest(t, m)
			small.Options.Effort = "high"
			small.CacheKey = strings.Repeat("a", 32) // the provider knows none
			if _, err := m.Generate(t.Context(), small, nil); err != nil {
				t.Fatal(err)
			}
			got := append(s.got()[1].body, '\n')
			path := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("the body is\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// The signature is over the bytes that are sent, which the SDK reads from the
// parts: a service that checks it comes to the same.
func TestSignature(t *testing.T) {
	s := newStub(t, answer("hi"))
	m := s.model(opus, nil)
	req := aRequest(t, m)
	for range 2 {
		if _, err := m.Generate(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range s.got() {
		_, list, _ := strings.Cut(g.header.Get("Authorization"), "SignedHeaders=")
		list, signature, _ := strings.Cut(list, ", Signature=")
		again, err := http.NewRequest(http.MethodPost, s.URL+strings.TrimPrefix(g.path, "POST "), bytes.NewReader(g.body))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range strings.Split(list, ";") {
			if name != "host" && name != "content-length" {
				again.Header[http.CanonicalHeaderKey(name)] = g.header.Values(name)
			}
		}
		at, err := time.Parse("20060102T150405Z", g.header.Get("X-Amz-Date"))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(g.body)
		err = v4.NewSigner().SignHTTP(t.Context(), aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: testSecret}, again, hex.EncodeToString(sum[:]), "bedrock", "eu-central-1", at)
		if _, want, _ := strings.Cut(again.Header.Get("Authorization"), ", Signature="); err != nil || want != signature || want == "" {
			t.Errorf("signed %q, want %q (%v)", g.header.Get("Authorization"), again.Header.Get("Authorization"), err)
		}
	}
}

func TestStream(t *testing.T) {
	s := newStub(t, frames(append(chunks(start, `{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"h\u006d","signature":"a=="}}`,
		`{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}`, `{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"hel"}}`, `{"type":"ping"}`,
		`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"lo"}}`,
		`{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_bdrk_1","name":"f","input":{}}}`, `{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"x\":1}"}}`,
		`{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":15}}`, stop), frame("{}", ":message-type", "event", ":event-type", "novel"))...))
	var told strings.Builder
	events := 0
	r, err := generate(t, s.model(opus, nil), func(d psych.Delta) { told.WriteString(d.Text + d.Arguments); events++ })
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Blocks) != 4 || string(r.Blocks[0].Provider) != `{"type":"thinking","thinking":"h\u006d","signature":"a=="}` || r.Blocks[1].Text != "hello" || r.Blocks[2].Call.ProviderID != "toolu_bdrk_1" ||
		string(r.Blocks[2].Call.Arguments) != `{"x":1}` || r.Stop != psych.StopToolUse {
		t.Errorf("%+v", r)
	}
	if u := r.Usage; *u.Input != 130 || *u.CacheRead != 100 || *u.CacheWrite != 5 || *u.Output != 15 {
		t.Errorf("usage %+v", u)
	}
	if want := `{"type":"anthropic.response","id":"msg_bdrk_1"}`; string(r.Blocks[3].Provider) != want || r.RequestID != "req-1" {
		t.Errorf("for the log there is %s of request %q, want %s", r.Blocks[3].Provider, r.RequestID, want)
	}
	if told.String() != `hello{"x":1}` || events < 10 {
		t.Errorf("told %q in %d pieces: each event is a sign of life", told.String(), events)
	}
}

// drop sends the start of a stream and breaks the connection.
func drop(sent []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.amazon.eventstream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(sent), sent)
		rw.Flush()
	}
}

func TestStreamsThatBreak(t *testing.T) {
	head := bytes.Join(chunks(start, begun, said("x")), nil)
	flipped := chunk(said("y"))
	flipped[len(flipped)-10] ^= 1
	for name, answer := range map[string]http.HandlerFunc{
		"cut":                 drop(head),
		"cut in a frame":      drop(append(bytes.Clone(head), chunk(said("y"))[:20]...)),
		"ends in a frame":     frames(head, chunk(said("y"))[:20]),
		"no stop_reason":      frames(chunks(start, begun, said("x"), done, stop)...),
		"a flipped bit":       frames(head, flipped),
		"nothing":             frames(),
		"no JSON":             frames(chunks(start, "<html>")...),
		"a piece of no block": frames(chunks(start, said("x"))...),
	} {
		t.Run(name, func(t *testing.T) {
			r, err := generate(t, newStub(t, answer).model(opus, nil), nil)
			if r != nil {
				t.Errorf("there is a response: %+v", r)
			}
			modelError(t, err, true)
		})
	}
	// A connection that breaks behind the reason to stop takes nothing away.
	if r, err := generate(t, newStub(t, drop(bytes.Join(chunks(start, begun, said("x"), done, ended), nil))).model(opus, nil), nil); err != nil || r.Blocks[0].Text != "x" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestErrorsInStreams(t *testing.T) {
	for _, c := range []struct {
		frame               []byte
		transient, overflow bool
		status              int
		says                string
	}{
		{exception("throttlingException", `{"message":"Too many requests"}`), true, false, 429, "Too many requests (ThrottlingException) [request req-1]"},
		{exception("modelStreamErrorException", `{"message":"failed","originalStatusCode":500,"originalMessage":"boom"}`), true, false, 424, "failed: boom"},
		{exception("internalServerException", `{"message":"oops"}`), true, false, 500, "oops"},
		{exception("modelTimeoutException", `{"message":"too slow"}`), true, false, 408, "too slow"},
		{exception("serviceUnavailableException", `{"message":"later"}`), true, false, 503, "later"},
		{exception("validationException", `{"message":"messages.0: bad"}`), false, false, 400, "messages.0: bad"},
		{exception("validationException", `{"message":"Input is too long for requested model."}`), false, true, 400, "too long"},
		{exception("novelException", `{"message":"strange"}`), true, false, 0, "strange"},
		{frame("", ":message-type", "error", ":error-code", "InternalError", ":error-message", "broken"), true, false, 0, "broken"},
		{chunk(`{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`), true, false, 529, "Overloaded"},
		{chunk(`{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long"}}`), false, true, 400, "too long"},
	} {
		s := newStub(t, frames(append(chunks(start, begun, said("x")), c.frame)...))
		_, err := generate(t, s.model(opus, nil), nil)
		e := modelError(t, err, c.transient)
		if e.Overflow != c.overflow || e.Status != c.status || !strings.Contains(e.Message, c.says) || e.RequestID != "req-1" || !strings.Contains(e.Message, "req-1") {
			t.Errorf("%q: overflow %v, status %d, %q", c.says, e.Overflow, e.Status, e.Message)
		}
	}
}

func refuse(code int, kind, message string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if kind != "" {
			w.Header().Set("X-Amzn-ErrorType", kind+":http://internal.amazon.com/coral/com.amazon.bedrock/")
		}
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		io.WriteString(w, message)
	}
}

// What is refused for blocks that can be left out says so, as a status, as an
// exception and among the model's events.
func TestRefused(t *testing.T) {
	for says, want := range map[string]psych.BlockKind{
		"messages.1.content.0: Invalid `signature` in `thinking` block": psych.ProviderBlocks,
		"Could not process image": psych.ImageBlocks,
		"messages.0: bad":         "",
	} {
		for _, answer := range []http.HandlerFunc{
			refuse(400, "ValidationException", `{"message":"`+says+`"}`),
			frames(append(chunks(start), exception("validationException", `{"message":"`+says+`"}`))...),
			frames(append(chunks(start), chunk(`{"type":"error","error":{"type":"invalid_request_error","message":"`+says+`"}}`))...),
		} {
			_, err := generate(t, newStub(t, answer).model(opus, nil), nil)
			if e := modelError(t, err, false); e.Refused != want || e.Status != 400 {
				t.Errorf("%s: refused for %q, want %q, status %d", says, e.Refused, want, e.Status)
			}
		}
	}
}

func TestErrors(t *testing.T) {
	js := func(message string) string { return `{"message":"` + message + `"}` }
	for _, c := range []struct {
		name                string
		answer              http.HandlerFunc
		transient, overflow bool
		status              int
		says                string
	}{
		{"throttled", refuse(429, "ThrottlingException", js("Too many tokens, please wait"), "Retry-After", "7"), true, false, 429, "Too many tokens"},
		{"not ready", refuse(429, "ModelNotReadyException", js("not ready")), true, false, 429, "not ready"},
		{"timeout", refuse(408, "ModelTimeoutException", js("slow")), true, false, 408, "slow"},
		{"model failed", refuse(424, "ModelErrorException", `{"message":"failed","originalStatusCode":503,"resourceName":"x"}`), true, false, 424, "failed"},
		{"model refused", refuse(424, "ModelErrorException", `{"message":"failed","originalStatusCode":400}`), false, false, 424, "failed"},
		{"server", refuse(500, "InternalServerException", js("oops")), true, false, 500, "oops"},
		{"unavailable", refuse(503, "ServiceUnavailableException", js("later")), true, false, 503, "later"},
		{"validation", refuse(400, "ValidationException", js("max_tokens: 70000 > 64000")), false, false, 400, "max_tokens: 70000"},
		{"context", refuse(400, "ValidationException", js("Input is too long for requested model.")), false, true, 400, "too long"},
		{"context, in tokens", refuse(400, "ValidationException", js("prompt is too long: 210000 tokens > 200000 maximum")), false, true, 400, "210000"},
		{"quota", refuse(400, "ServiceQuotaExceededException", js("quota")), false, false, 400, "raise the quota"},
		{"not found", refuse(404, "ResourceNotFoundException", js("no such model")), false, false, 404, "check the id of the model and the region"},
		{"no permission", refuse(403, "AccessDeniedException", js("User: arn:aws:iam::1:role/x is not authorized")), false, false, 403, "bedrock:InvokeModelWithResponseStream"},
		{"expired", refuse(403, "ExpiredTokenException", js("expired")), false, false, 403, "credentials are current"},
		{"bad signature", refuse(403, "InvalidSignatureException", js("does not match")), false, false, 403, "credentials are current"},
		{"unknown", refuse(418, "TeapotException", js("short and stout")), false, false, 418, "short and stout"},
		{"unknown, of the server", refuse(502, "", "<html>bad gateway</html>"), true, false, 502, ""},
		{"huge", refuse(500, "InternalServerException", js(strings.Repeat("x", 3<<20))), true, false, 500, strings.Repeat("x", 500) + "…"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStub(t, c.answer)
			_, err := generate(t, s.model(opus, nil), nil)
			e := modelError(t, err, c.transient)
			if e.Status != c.status || e.Overflow != c.overflow || !strings.Contains(e.Message, c.says) || e.RequestID != "req-1" || !strings.Contains(e.Message, "req-1") {
				t.Errorf("status %d, overflow %v, %q; want %q in it", e.Status, e.Overflow, e.Message, c.says)
			}
			if strings.Contains(e.Error(), testSecret) || utf8.RuneCountInString(e.Message) > 1000 {
				t.Errorf("the message is %q", e.Message)
			}
			if want := (c.name == "throttled"); (e.RetryAfter == 7*time.Second) != want {
				t.Errorf("retry after %v", e.RetryAfter)
			}
			if n := len(s.got()); n != 1 {
				t.Errorf("%d requests, want 1", n)
			}
		})
	}
	var denied *types.AccessDeniedException
	_, err := generate(t, newStub(t, refuse(403, "AccessDeniedException", js("no"))).model(opus, nil), nil)
	if !errors.As(err, &denied) {
		t.Errorf("%v is not the SDK's error", err)
	}
}

func TestUnreachable(t *testing.T) {
	s := newStub(t, answer("hi"))
	m := s.model(opus, nil)
	s.Close()
	_, err := generate(t, m, nil)
	modelError(t, err, true)

	tls := httptest.NewUnstartedServer(answer("hi"))
	tls.Config.ErrorLog = log.New(io.Discard, "", 0)
	tls.StartTLS()
	defer tls.Close()
	_, err = generate(t, New(client(tls.URL, credentials.NewStaticCredentialsProvider("AKID", testSecret, "")), opus, nil), nil)
	if e := modelError(t, err, false); !strings.Contains(e.Message, "certificate") {
		t.Errorf("%v does not name the certificate", e)
	}

	// Without credentials nothing is sent, and a person is told.
	s = newStub(t, answer("hi"))
	machine := aws.NewCredentialsCache(ec2rolecreds.New(func(o *ec2rolecreds.Options) {
		o.Client = imds.New(imds.Options{ClientEnableState: imds.ClientDisabled})
	}))
	for _, c := range []aws.CredentialsProvider{credentials.NewStaticCredentialsProvider("", "", ""), machine} {
		_, err = generate(t, New(client(s.URL, c), opus, nil), nil)
		if e := modelError(t, err, false); !strings.Contains(e.Message, "AWS_PROFILE") || len(s.got()) > 0 {
			t.Errorf("without credentials: %v", e)
		}
	}
}

func TestCancel(t *testing.T) {
	for name, begin := range map[string][]byte{"before the answer": nil, "in the stream": bytes.Join(chunks(start, begun, said("x")), nil)} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := newStub(t, func(w http.ResponseWriter, r *http.Request) {
				if begin == nil {
					cancel()
				} else {
					frames(begin)(w, r)
				}
				<-r.Context().Done()
			})
			m := s.model(opus, nil)
			_, err := m.Generate(ctx, aRequest(t, m), func(psych.Delta) { cancel() })
			if err != context.Canceled {
				t.Errorf("the error is %v, want context.Canceled", err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := newStub(t, answer("hi"))
	m := s.model(opus, nil)
	if _, err := m.Generate(ctx, aRequest(t, m), nil); err != context.Canceled || len(s.got()) > 0 {
		t.Errorf("with an ended context: %v, %d requests", err, len(s.got()))
	}
}

func TestNewReportsWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		id string
		o  Options
	}{{"", Options{}}, {opus, Options{CacheTTL: "2h"}}, {opus, Options{Like: "gpt"}}} {
		m := New(client("http://127.0.0.1:1", nil), c.id, &c.o)
		_, err := generate(t, m, nil)
		if e := modelError(t, err, false); !errors.Is(e, psych.ErrInvalid) {
			t.Errorf("%+v: %v", c.o, e)
		}
	}
}

func TestRegister(t *testing.T) {
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "AWS_BEARER_TOKEN_BEDROCK"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	var b psych.Backends
	Register(&b)
	open := func(raw string) (*Model, error) {
		m, err := b.Models.Open(t.Context(), raw)
		if err != nil {
			return nil, err
		}
		return m.(*Model), nil
	}
	// An endpoint on the machine itself needs nothing else.
	s := newStub(t, answer("hi"))
	m, err := open("bedrock:" + opus + "?endpoint=" + url.QueryEscape(s.URL) + "&max_tokens=9&context_tokens=8000&system_cache_ttl=1h")
	if err != nil {
		t.Fatal(err)
	}
	if r, err := generate(t, m, nil); err != nil || r.Blocks[0].Text != "hi" {
		t.Errorf("%+v, %v", r, err)
	}
	if body := s.got()[0].body; !bytes.Contains(body, []byte(`"max_tokens":9,`)) || bytes.Count(body, []byte(`"ttl":"1h"`)) != 2 || m.Codec().Limits().ContextTokens != 8000 {
		t.Errorf("the body is %s", body)
	}
	for raw, region := range map[string]string{
		"bedrock:" + opus + "?region=eu-west-1": "eu-west-1",
		"bedrock:arn:aws:bedrock:us-east-1:1:application-inference-profile/abc?region=us-east-1&like=claude-opus-5-5": "us-east-1",
		"bedrock:m?region=us-east-1&endpoint=https://vpce-1.bedrock-runtime.us-east-1.vpce.amazonaws.com":             "us-east-1",
	} {
		if m, err := open(raw); err != nil || m.client.Options().Region != region {
			t.Errorf("%s: %v", raw, err)
		}
	}
	if m, err := open("bedrock:arn:aws:bedrock:us-east-1:1:application-inference-profile/abc?region=us-east-1"); err != nil || m.id != "arn:aws:bedrock:us-east-1:1:application-inference-profile/abc" {
		t.Errorf("%+v, %v", m, err)
	}
	for _, raw := range []string{
		"bedrock:", "bedrock://m", "bedrock:m#x", "bedrock:m", "bedrock:m?region=", "bedrock:m?novel=1", "bedrock:m?region=x&max_tokens=0", "bedrock:m?region=x&cache_ttl=2h", "bedrock:m?region=x&like=gpt",
		"bedrock:m?region=x&endpoint=h", "bedrock:m?region=x&endpoint=https://evil.test", "bedrock:m?region=x&endpoint=http://bedrock-runtime.us-east-1.amazonaws.com", "bedrock:m?region=x&endpoint=https://amazonaws.com.evil.test",
		"bedrock:m?region=x&secret_access_key=" + testSecret, "bedrock:m?region=x&endpoint=https://u:" + url.QueryEscape(testSecret) + "@h",
	} {
		_, err := open(raw)
		if !errors.Is(err, psych.ErrInvalid) || strings.Contains(err.Error(), testSecret) {
			t.Errorf("%s: %v, want ErrInvalid", raw, err)
		}
	}
	t.Setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "https://gateway.test/a")
	if _, err := open("bedrock:m?region=x&endpoint=https://gateway.test/b"); err != nil {
		t.Errorf("the environment's own endpoint: %v", err)
	}
	if _, err := open("bedrock:m?region=x&endpoint=http://gateway.test/b"); !errors.Is(err, psych.ErrInvalid) {
		t.Errorf("without TLS: %v, want ErrInvalid", err)
	}
}

// A Run, with a tool, through store, log and socket.
func TestRun(t *testing.T) {
	var mu sync.Mutex
	n := 0
	streams := [][]string{
		{start, `{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":"SIGNATURE"}}`, `{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_bdrk_1","name":"double","input":{}}}`,
			`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"n\":21}"}}`, `{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":9}}`, stop},
		{start, begun, said("42"), done, ended, stop},
	}
	s := newStub(t, func(w http.ResponseWriter, r *http.Request) {})
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if _, err := messagestest.Check(body); err != nil {
			t.Errorf("%v\n%s", err, body)
		}
		signature, err := messagestest.Sign(body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		data := streams[min(n, len(streams)-1)]
		n++
		mu.Unlock()
		var all [][]byte
		for _, d := range data {
			all = append(all, chunk(strings.ReplaceAll(d, "SIGNATURE", signature)))
		}
		frames(all...)(w, r)
	})
	type in struct {
		N int `json:"n"`
	}
	double := psych.NewTool("double", "Doubles.", func(_ context.Context, _ *psych.Call, in in) (int, error) { return 2 * in.N, nil }, nil)
	rt, err := psych.New(memory.New(nil), &psych.Options{Blobs: memory.NewBlobs(nil), Models: psych.OneModel(s.model("eu.anthropic.claude-opus-5-5", nil)), Tools: []*psych.Tool{double}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := rt.Ask(t.Context(), psych.Scope{Tenant: "acme"}, &psych.Spec{Name: "x", Instructions: "Double.", Tools: []string{"double"}}, "21?", nil)
	if err != nil || a.Text != "42" || n != 2 {
		t.Errorf("%+v after %d requests, %v", a, n, err)
	}
}
