package openai

import (
	"bytes"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/openai/openai-go/v3/option"

	"github.com/psych-go/psych-go/psych"
)

// A body is the parts of a request, in order, never joined in memory. They are
// shared with the prompt and with each reader.
type body struct {
	parts [][]byte
	size  int64
	chars int
}

func (b *body) add(part []byte, chars int) {
	if len(part) > 0 {
		b.parts = append(b.parts, part)
		b.size += int64(len(part))
		b.chars += chars
	}
}

// trim takes the last n bytes off, in ASCII, which one add brought.
func (b *body) trim(n int) {
	last := &b.parts[len(b.parts)-1]
	*last = (*last)[:len(*last)-n]
	b.size -= int64(n)
	b.chars -= n
}

// envelope adds what is in no zone, in ASCII.
func (b *body) envelope(s []byte) { b.add(s, len(s)) }

// Pieces of the envelope, shared by all bodies.
var (
	toolsField    = []byte(`,"tools":`)
	messagesField = []byte(`,"messages":[`)
	inputField    = []byte(`,"input":[`)
	comma         = []byte(`,`)
	endOfString   = []byte(stringEnd)
	endOfParts    = []byte(partsEnd)
	endOfBody     = []byte(`]}`)
	breakpoint    = []byte(`,"prompt_cache_breakpoint":{"mode":"explicit"}`)
	blank         = []byte(blankLine)
	userMessage   = []byte(userStart)
	quote         = []byte(`"`)
	emptyContent  = []byte(`""}`)
)

// join lays out the body of a request:
//
//	{"model":…,OPTIONS,"stream":true,…,"tools":[…],"messages":[SYSTEM,HISTORY]}
//
// with "input" for "messages" in the Responses API.
func (m *Model) join(r *psych.Request) *body {
	b := &body{parts: make([][]byte, 0, 2*len(r.History)+24)}
	head := m.head(r)
	b.add(head, utf8.RuneCount(head))
	if len(r.Tools.Bytes) > 0 {
		b.envelope(toolsField)
		b.add(r.Tools.Bytes, r.Tools.Chars)
	}
	if m.codec.responses {
		b.envelope(inputField)
	} else {
		b.envelope(messagesField)
	}
	first := true
	if len(r.System[0].Bytes)+len(r.System[1].Bytes) > 0 {
		for i := range r.System {
			m.addSystem(b, &r.System[i])
		}
		if m.codec.parts {
			b.envelope(endOfParts)
		} else {
			b.envelope(endOfString)
		}
		first = false
	}
	marked := m.marked(r)
	var last []byte // the part before
	for i := range r.History {
		w := &r.History[i]
		if len(w.Bytes) == 0 {
			continue
		}
		skip := 0
		if endsUser(last) && bytes.HasPrefix(w.Bytes, userMessage) {
			if skip = b.reopen(last, w.Bytes); skip == len(w.Bytes) {
				continue
			}
		} else if !first {
			b.envelope(comma)
		}
		first = false
		at := skip
		if i == marked[0] || i == marked[1] {
			at = w.Marker
			b.add(w.Bytes[skip:at], 0)
			b.envelope(breakpoint)
		}
		b.add(w.Bytes[at:], w.Chars-skip) // with the characters before the marker
		last = w.Bytes
	}
	if len(r.Tail.Bytes) > 0 {
		m.addTail(b, last, &r.Tail, first)
	}
	b.envelope(endOfBody)
	return b
}

// reopen takes the end off a user's message, last, for the content of another
// one to go on there: many servers refuse two of a role in a row. It returns
// how much of next is left out, all of it if it says nothing.
func (b *body) reopen(last, next []byte) int {
	skip := len(userMessage)
	content := next[skip:]
	switch {
	case bytes.Equal(content, emptyContent):
		return len(next)
	case content[0] == '"' && bytes.HasSuffix(last, []byte(emptyEnd)):
		b.trim(len(endOfString))
		skip++
	case content[0] == '"':
		b.trim(len(endOfString))
		b.envelope(blank)
		skip++
	case bytes.HasSuffix(last, []byte(emptyEnd)): // of lists, the one without parts
		b.trim(len(emptyContent))
	default:
		b.trim(len(endOfParts))
		b.envelope(comma)
		skip++
	}
	return skip
}

// addTail puts the trailing message into the end of the last part, or behind
// it as a user's message.
func (m *Model) addTail(b *body, last []byte, tail *psych.Wire, alone bool) {
	switch {
	case !joinable(last):
		if !alone {
			b.envelope(comma)
		}
		b.envelope(userMessage)
		b.envelope(quote)
		b.add(tail.Bytes, tail.Chars)
		b.envelope(endOfString)
	case bytes.HasSuffix(last, endOfParts):
		b.trim(len(endOfParts))
		b.envelope(comma)
		b.envelope([]byte(m.codec.text))
		b.add(tail.Bytes, tail.Chars)
		b.envelope([]byte(textEnd + partsEnd))
	default:
		b.trim(len(endOfString))
		if !bytes.HasSuffix(last, []byte(emptyEnd)) {
			b.envelope(blank)
		}
		b.add(tail.Bytes, tail.Chars)
		b.envelope(endOfString)
	}
}

// head is the envelope up to the tools: the same for every request of a Run.
func (m *Model) head(r *psych.Request) []byte {
	o := &r.Options
	b := append(make([]byte, 0, 256), `{"model":`...)
	b = appendString(b, m.name)
	if o.MaxOutputTokens > 0 {
		switch {
		case m.codec.responses:
			b = append(b, `,"max_output_tokens":`...)
		case m.o.LegacyMaxTokens:
			b = append(b, `,"max_tokens":`...)
		default:
			b = append(b, `,"max_completion_tokens":`...)
		}
		b = strconv.AppendInt(b, int64(o.MaxOutputTokens), 10)
	}
	if t := o.Temperature; t != nil && !math.IsNaN(*t) && !math.IsInf(*t, 0) {
		b = append(b, `,"temperature":`...)
		b = strconv.AppendFloat(b, *t, 'f', -1, 64)
	}
	switch {
	case m.codec.responses:
		b = appendReasoning(b, o.Effort, m.o.ReasoningSummary)
	case o.Effort != "":
		b = append(b, `,"reasoning_effort":`...)
		b = appendString(b, o.Effort)
	}
	key := m.o.CacheKey
	if key == "" && (m.codec.responses || isOpenAI(m.base)) { // other servers of Chat Completions may refuse it
		key = r.CacheKey
	}
	if key != "" {
		b = append(b, `,"prompt_cache_key":`...)
		b = appendString(b, key)
	}
	b = m.appendCacheOptions(b)
	if !m.codec.responses {
		return append(b, `,"stream":true,"stream_options":{"include_usage":true}`...)
	}
	b = append(b, `,"stream":true,"store":false`...)
	if !m.o.DropReasoning {
		b = append(b, `,"include":["reasoning.encrypted_content"]`...)
	}
	return b
}

func (m *Model) appendCacheOptions(b []byte) []byte {
	ttl := m.o.CacheTTL
	if slices.Contains(longestTTLs, ttl) {
		b = append(b, `,"prompt_cache_retention":`...)
		b = appendString(b, ttl)
		ttl = ""
	}
	switch {
	case m.o.CacheBreakpoints && ttl != "":
		b = append(b, `,"prompt_cache_options":{"mode":"explicit","ttl":`...)
	case m.o.CacheBreakpoints:
		return append(b, `,"prompt_cache_options":{"mode":"explicit"}`...)
	case ttl != "":
		b = append(b, `,"prompt_cache_options":{"ttl":`...)
	default:
		return b
	}
	return append(appendString(b, ttl), '}')
}

func appendReasoning(b []byte, effort, summary string) []byte {
	if effort == "" && summary == "" {
		return b
	}
	b = append(b, `,"reasoning":{`...)
	if effort != "" {
		b = append(b, `"effort":`...)
		b = appendString(b, effort)
	}
	if effort != "" && summary != "" {
		b = append(b, ',')
	}
	if summary != "" {
		b = append(b, `"summary":`...)
		b = appendString(b, summary)
	}
	return append(b, '}')
}

// addSystem adds a zone of the system message, its end marked.
func (m *Model) addSystem(b *body, w *psych.Wire) {
	if !m.o.CacheBreakpoints || len(w.Bytes) == 0 {
		b.add(w.Bytes, w.Chars)
		return
	}
	end := len(w.Bytes) - 1 // the last part's }
	b.add(w.Bytes[:end], w.Chars-1)
	b.envelope(breakpoint)
	b.add(w.Bytes[end:], 1)
}

// marked returns the messages that get a marker, -1 for none: where a break is,
// or the nearest before it that can have one.
func (m *Model) marked(r *psych.Request) [2]int {
	at := [2]int{-1, -1}
	if !m.o.CacheBreakpoints {
		return at
	}
	n := 0
	for _, i := range r.Breaks[max(0, len(r.Breaks)-2):] {
		for i = min(i, len(r.History)-1); i >= 0 && (r.History[i].Marker < 0 || r.History[i].Marker > len(r.History[i].Bytes)); i-- {
		}
		at[n] = i
		n++
	}
	return at
}

// open returns a reader of the body.
func (b *body) open() io.ReadCloser { return &bodyReader{parts: b.parts} }

// stateLength is a middleware: the SDK leaves the length of a reader unknown,
// which would be sent in chunks, and some servers take no such request.
func (b *body) stateLength(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
	req.ContentLength = b.size
	// Lets the transport try another connection when a kept one turns out to be
	// closed before anything was sent.
	req.GetBody = func() (io.ReadCloser, error) { return b.open(), nil }
	return next(req)
}

// A bodyReader reads parts that others read too.
type bodyReader struct {
	parts [][]byte
	off   int // in the first of parts
}

func (r *bodyReader) Read(p []byte) (n int, err error) {
	for n < len(p) && len(r.parts) > 0 {
		c := copy(p[n:], r.parts[0][r.off:])
		n += c
		if r.off += c; r.off == len(r.parts[0]) {
			r.parts, r.off = r.parts[1:], 0
		}
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (r *bodyReader) Close() error { return nil }
