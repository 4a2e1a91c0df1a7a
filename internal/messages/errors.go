package messages

import (
	"encoding/json"
	"html"
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

// A Said is what a server says of an error.
type Said struct {
	Message   string
	Type      string // invalid_request_error, overloaded_error, …
	RequestID string
	Found     bool // there was an error in it at all
}

func (s Said) String() string {
	text := s.Message
	switch {
	case text == "":
		text = s.Type
	case s.Type != "" && !strings.Contains(text, s.Type):
		text += " (" + s.Type + ")"
	}
	return text
}

// statuses are those that the provider answers with errors of a type; in a
// stream the status is 200 already.
var statuses = map[string]int{
	"invalid_request_error": 400,
	"authentication_error":  401,
	"billing_error":         402,
	"permission_error":      403,
	"not_found_error":       404,
	"request_too_large":     413,
	"rate_limit_error":      429,
	"api_error":             500,
	"timeout_error":         504,
	"overloaded_error":      529,
}

// Status is that of the type, 0 for one that is not known.
func (s Said) Status() int { return statuses[s.Type] }

// overflows are how the context is said to be too long: by the API, by Bedrock,
// and by gateways to either.
var overflows = lazily(`(?i)prompt is too long|input is too long|input length and .?max_tokens.? exceed|exceeds? (the )?(maximum )?context|context (limit|length|window)|too many (input )?tokens`)

// Overflow reports whether the context is too long. A body that is too large is
// that too: less of it may pass.
func (s Said) Overflow(status int) bool {
	switch status {
	case http.StatusRequestEntityTooLarge:
		return true
	case 0, http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusInternalServerError:
		return s.Type == "request_too_large" || overflows().MatchString(s.Message)
	}
	return false
}

// How a request is refused for blocks that are not as the model made them, or
// not for this request, and for images and documents.
var (
	boundBlocks = lazily("(?i)invalid .?(signature|data|encrypted_content).? in .?\\w+.? block|\\.(redacted_)?thinking\\.(signature|data)\\b|thinking.? blocks? .*(cannot|can't|must not) be modified|thinking.? block.*\\bbound to\\b")
	imageBlocks = lazily("(?i)could not process .*(image|pdf|document)|\\bpdf (specified|pages)\\b|\\b(image|document)\\.source\\b|\\bimages? .*(exceeds?|media type|not supported)\\b|\\b(too many|not support|unsupported) .*(image|document|pdf)")
)

// Refused says for blocks of which kind a request was refused, that could be
// made without them; "" for none.
func (s Said) Refused(status int) psych.BlockKind {
	switch status {
	case 0, http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusFailedDependency:
	default:
		return ""
	}
	switch {
	case s.Overflow(status):
		return ""
	case boundBlocks().MatchString(s.Message):
		return psych.ProviderBlocks
	case imageBlocks().MatchString(s.Message) && !strings.HasPrefix(s.Message, "tools."): // a tool may be called anything
		return psych.ImageBlocks
	}
	return ""
}

// TransientStatus reports whether what failed with a status may work in a while.
func TransientStatus(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500 && status != http.StatusNotImplemented
}

// maxRetryAfter keeps a wrong header from putting a Run to sleep for good.
const maxRetryAfter = 24 * time.Hour

// RetryAfter reads Retry-After-Ms and Retry-After, a number or a date; 0 for
// none. A date counts from the server's own.
func RetryAfter(h http.Header, now time.Time) time.Duration {
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

var (
	htmlTitle = lazily(`(?is)<(?:title|h1)[^>]*>(.*?)</`)
	htmlTag   = lazily(`(?s)<[^>]*>`)
)

// ParseError finds what a person may read in the body of an error, or the data
// of an error event: JSON in the shapes of the API and of gateways, a web page,
// or text.
func ParseError(body []byte) Said {
	text := strings.TrimSpace(string(body))
	var o map[string]json.RawMessage
	switch {
	case text == "" || text == "null":
		return Said{}
	case text[0] == '"':
		var s string
		if json.Unmarshal(body, &s) == nil {
			return Said{Message: Readable(s), Found: true}
		}
	case text[0] == '{' && json.Unmarshal(body, &o) == nil:
		s := Said{Type: scalar(o["type"])}
		if e := o["error"]; !absent(e) {
			s = ParseError(e)
			s.Found = true
		} else {
			for _, key := range []string{"message", "Message", "detail"} {
				if v := o[key]; s.Message == "" && !absent(v) {
					s.Message = Readable(scalar(v))
				}
			}
			s.Found = s.Message != ""
		}
		if id := scalar(o["request_id"]); id != "" {
			s.RequestID = id
		}
		return s
	}
	lower := strings.ToLower(text)
	if strings.HasPrefix(lower, "<!doctype") || strings.Contains(lower, "<html") || strings.Contains(lower, "<body") {
		if t := htmlTitle().FindStringSubmatch(text); t != nil {
			text = t[1]
		}
		text = "a web page: " + html.UnescapeString(htmlTag().ReplaceAllString(text, " "))
	}
	return Said{Message: Readable(text)}
}

// scalar is a JSON value as text.
func scalar(raw json.RawMessage) string {
	var s string
	if absent(raw) || json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

// Readable is s on one line, without what no terminal should be sent, clipped.
func Readable(s string) string {
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

// Redact takes a secret out of what a server said, and what it made of it: each
// word that shares 8 characters with it, or that is masked with asterisks.
func Redact(s, secret string) string {
	const shared = 8
	words := strings.Split(s, " ")
	for i, w := range words {
		hidden := strings.Contains(w, "***") || len(secret) >= 4 && strings.Contains(w, secret)
		for j := 0; !hidden && j+shared <= len(secret); j++ {
			hidden = strings.Contains(w, secret[j:j+shared])
		}
		if hidden {
			words[i] = "[redacted]"
		}
	}
	return strings.Join(words, " ")
}

// lazily compiles an expression when it is first asked for: what few processes
// need costs the start of none.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
