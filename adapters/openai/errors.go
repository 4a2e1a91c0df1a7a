package openai

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/psych-go/psych-go/psych"
)

// maxMessage bounds what a server says within an error, in characters.
const maxMessage = 500

// failure makes a ModelError that says of which model and server.
func (m *Model) failure(message string, err error) *psych.ModelError {
	return &psych.ModelError{Message: fmt.Sprintf("openai: %s: %s", m, redact(message, m.key)), Err: err}
}

// unreachable is a request that got no answer. A certificate that does not
// hold will not hold in a second either.
func (m *Model) unreachable(err error) *psych.ModelError {
	e := m.failure("the server can't be reached: "+readable(err.Error()), err)
	var certificate *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	e.Transient = !errors.As(err, &certificate) && !errors.As(err, &authority) && !errors.As(err, &host)
	return e
}

// cut is a stream that broke.
func (m *Model) cut(err error) *psych.ModelError {
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	e := m.failure("its stream was cut: "+readable(err.Error()), err)
	e.Transient = true
	return e
}

// garbled is a chunk that can't be understood, or one too many.
func (m *Model) garbled(err error) *psych.ModelError {
	if errors.Is(err, errTooMuch) {
		return m.failure("its answer is no answer: "+err.Error(), err)
	}
	e := m.failure("its stream holds what is no chunk of an answer: "+readable(err.Error()), err)
	e.Transient = true
	return e
}

// noStream is an answer of status 200 that is no event stream.
func (m *Model) noStream(media string, body []byte) *psych.ModelError {
	said := parseError(body)
	if said.found {
		return m.refusedInStream(body)
	}
	if media == "text/html" {
		return m.failure("it answered with a web page, not with a stream: is the base URL right? "+said.message, nil)
	}
	return m.failure("it answered with one JSON document, not with a stream: it does not support streaming", nil)
}

// refused classifies an answer by status, header and body.
func (m *Model) refused(status int, h http.Header, body []byte, err error) *psych.ModelError {
	said := parseError(body)
	text := said.String()
	if text == "" {
		text = http.StatusText(status)
	}
	switch {
	case status == http.StatusUnauthorized && m.key == "":
		text += ": it wants a key and none was sent: set OPENAI_API_KEY, and OPENAI_BASE_URL to this server, which alone is sent it"
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		text += ": check the key (OPENAI_API_KEY) and what it may use"
	case status == http.StatusNotFound && m.o.Responses:
		text += ": check the name of the model and the base URL, and whether this server has the Responses API (without api=responses it is asked for Chat Completions)"
	case status == http.StatusNotFound:
		text += ": check the name of the model and the base URL"
	case m.o.Responses && unencrypted().MatchString(said.message):
		text += ": the model does not reason: open it with drop_reasoning=true"
	}
	if id := requestID(h); id != "" {
		text += ", request " + id
	}
	e := m.failure(text, err)
	e.Status = status
	e.Overflow = said.overflow(status)
	e.Refused = said.refused(status)
	e.Transient = transientStatus(status) && !e.Overflow && !said.exhausted()
	switch {
	case e.Overflow || said.exhausted():
	case h.Get("X-Should-Retry") == "true":
		e.Transient = true
	case h.Get("X-Should-Retry") == "false":
		e.Transient = false
	}
	e.RetryAfter = retryAfter(h, time.Now())
	return e
}

// refusedInStream classifies an error that came with status 200. It is worth
// repeating unless it says that the request was bad.
func (m *Model) refusedInStream(sent json.RawMessage) *psych.ModelError {
	said := parseError(sent)
	text := said.String()
	if text == "" {
		text = "no reason was given"
	}
	e := m.failure("it sent an error instead of an answer: "+text, nil)
	if n, err := strconv.Atoi(said.code); err == nil && n >= 400 && n < 600 {
		e.Status = n
	}
	status := e.Status
	if status == 0 {
		status = http.StatusBadRequest
	}
	e.Overflow = said.overflow(status)
	e.Refused = said.refused(status)
	switch {
	case e.Overflow, said.exhausted():
	case e.Status != 0:
		e.Transient = transientStatus(e.Status)
	default:
		e.Transient = !strings.Contains(said.kind, "invalid") && !strings.Contains(said.kind, "authentication") &&
			!strings.Contains(said.kind, "permission") && !strings.Contains(said.kind, "not_found") && !lasting().MatchString(said.code)
	}
	return e
}

// lasting are codes of failures that repeating does not cure: OpenAI's of
// prompts and images, and of its policies.
var lasting = lazily(`^invalid|image|_policy|mismatch|not_found|not_supported`)

// unencrypted is how OpenAI refuses to be asked for reasoning that can be sent
// back.
var unencrypted = lazily(`(?i)encrypted content is not supported`)

// requestID is the server's own name of a request, for a log or a person,
// whatever it sends.
func requestID(h http.Header) string {
	id := h.Get("X-Request-Id")
	return readable(id[:min(len(id), 200)])
}

func transientStatus(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500 && status != http.StatusNotImplemented
}

// maxRetryAfter keeps a wrong header from putting a Run to sleep for good.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads Retry-After-Ms and Retry-After, a number or a date; 0 for
// none. A date counts from the server's own.
func retryAfter(h http.Header, now time.Time) time.Duration {
	for _, unit := range []struct {
		name string
		of   time.Duration
	}{{"Retry-After-Ms", time.Millisecond}, {"Retry-After", time.Second}} {
		v := strings.TrimSpace(h.Get(unit.name))
		if n, err := strconv.ParseFloat(v, 64); err == nil && !math.IsNaN(n) {
			return time.Duration(min(max(n, 0), float64(maxRetryAfter/unit.of)) * float64(unit.of))
		}
		at, err := http.ParseTime(v)
		if err != nil {
			continue
		}
		if date, err := http.ParseTime(h.Get("Date")); err == nil {
			now = date
		}
		return min(max(at.Sub(now), 0), maxRetryAfter)
	}
	return 0
}

// said is what a server says of an error.
type said struct {
	message, kind, code string
	found               bool // there was an error in it at all
}

func (s said) String() string {
	switch {
	case s.message == "":
		return strings.TrimSpace(s.kind + " " + s.code)
	case s.code != "" && !strings.Contains(s.message, s.code):
		return s.message + " (" + s.code + ")"
	}
	return s.message
}

// overflows are how servers say that the context is too long, where the code
// does not: OpenAI, vLLM, llama.cpp, Ollama and gateways to other providers.
var overflows = lazily(`(?i)maximum context length|context[ _](length|window|size)|exceeds? the (available|maximum) context|prompt is too long|input is too long|too many (input )?tokens|input token count`)

// overflow reports whether the context is too long. A body that a proxy finds
// too large is that too: less of it may pass.
func (s said) overflow(status int) bool {
	switch status {
	case http.StatusRequestEntityTooLarge:
		return true
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusInternalServerError:
		return s.code == "context_length_exceeded" || s.kind == "exceed_context_size_error" || overflows().MatchString(s.message)
	}
	return false
}

// How servers refuse a request for reasoning that is not as they made it, or
// that they look up in vain, and for images, where the code does not say it:
// OpenAI, vLLM, llama.cpp and gateways.
var (
	sealedItems = lazily(`(?i)encrypted content\b.*\b(could not|cannot|can't) be (verified|decrypted|parsed)|\bof type 'reasoning' was provided without|\bitem with id 'rs_`)
	imageParts  = lazily(`(?i)\b(invalid|unsupported|not support|support|valid|could not|cannot|can't|failed to|unable to|at most \d+)\b.{0,80}\bimage(\(?s\)?|_url)?\b|\bimage(s|_url)?\b.{0,80}\b(invalid|unsupported|not supported|too (large|small|many)|could not|cannot|can't|failed|must)\b`)

	// What is said of a tool, whose name may be anything.
	ofTools = lazily(`(?i)\bfor function '|'tools\[\d`)
)

// refused says for blocks of which kind a request was refused, that could be
// made without them; "" for none.
func (s said) refused(status int) psych.BlockKind {
	switch status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusInternalServerError:
	default:
		return ""
	}
	switch {
	case s.overflow(status):
		return ""
	case s.code == "invalid_encrypted_content" || sealedItems().MatchString(s.message):
		return psych.ProviderBlocks
	case strings.Contains(s.code, "image") || imageParts().MatchString(s.message) && !ofTools().MatchString(s.message):
		return psych.ImageBlocks
	}
	return ""
}

// exhausted reports whether an account must be paid for first.
func (s said) exhausted() bool {
	return s.code == "insufficient_quota" || s.kind == "insufficient_quota" || s.code == "billing_hard_limit_reached"
}

var (
	htmlTitle = lazily(`(?is)<(?:title|h1)[^>]*>(.*?)</`)
	htmlTag   = lazily(`(?s)<[^>]*>`)
)

// parseError finds what a person may read in the body of an error: JSON in the
// shapes of OpenAI, vLLM, Ollama, FastAPI and Google, a web page, or text.
func parseError(body []byte) said {
	text := strings.TrimSpace(string(body))
	switch {
	case text == "" || text == "null":
		return said{}
	case text[0] == '[':
		var list []json.RawMessage
		if json.Unmarshal(body, &list) == nil && len(list) > 0 {
			return parseError(list[0])
		}
	case text[0] == '"':
		var s string
		if json.Unmarshal(body, &s) == nil {
			return said{message: readable(s), found: true}
		}
	case text[0] == '{':
		var o map[string]json.RawMessage
		if json.Unmarshal(body, &o) != nil {
			break
		}
		if e, ok := o["error"]; ok && !absent(e) {
			s := parseError(e)
			s.found = true
			return s
		}
		s := said{kind: scalar(o["type"]), code: scalar(o["code"])}
		for _, key := range []string{"message", "detail", "error_description"} {
			if v := o[key]; s.message == "" && !absent(v) {
				s.message = readable(scalar(v))
			}
		}
		s.found = s.message != ""
		return s
	}
	lower := strings.ToLower(text)
	if strings.HasPrefix(lower, "<!doctype") || strings.Contains(lower, "<html") || strings.Contains(lower, "<body") {
		if t := htmlTitle().FindStringSubmatch(text); t != nil {
			text = t[1]
		}
		text = "a web page: " + html.UnescapeString(htmlTag().ReplaceAllString(text, " "))
	}
	return said{message: readable(text)}
}

// scalar is a JSON value as text.
func scalar(raw json.RawMessage) string {
	var s string
	if absent(raw) || json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

// readable is s on one line, without what no terminal should be sent, clipped.
func readable(s string) string {
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}), " ")
	n := 0
	for i := range s {
		if n++; n > maxMessage {
			return s[:i] + "…"
		}
	}
	return s
}

// redacted stands for what may be a part of a key.
const redacted = "[redacted]"

// redact takes the key out of what a server said, and what it made of it: each
// word that shares 8 characters with it, or that is masked with asterisks.
func redact(s, key string) string {
	const shared = 8
	words := strings.Split(s, " ")
	for i, w := range words {
		hidden := strings.Contains(w, "***") || len(key) >= 4 && strings.Contains(w, key)
		for j := 0; !hidden && j+shared <= len(key); j++ {
			hidden = strings.Contains(w, key[j:j+shared])
		}
		if hidden {
			words[i] = redacted
		}
	}
	return strings.Join(words, " ")
}

// lazily compiles an expression when it is first asked for: what few processes
// need costs the start of none.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
