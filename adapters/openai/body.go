package openai

import (
	"bytes"
	"io"
	"math"
	"net/http"
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

// envelope adds what is in no zone, in ASCII.
func (b *body) envelope(s []byte) { b.add(s, len(s)) }

// Pieces of the envelope, shared by all bodies.
var (
	toolsField    = []byte(`,"tools":`)
	messagesField = []byte(`,"messages":[`)
	comma         = []byte(`,`)
	endOfString   = []byte(stringEnd)
	endOfParts    = []byte(partsEnd)
	endOfBody     = []byte(`]}`)
	breakpoint    = []byte(`,"prompt_cache_breakpoint":{"mode":"explicit"}`)
	blank         = []byte(blankLine)
	tailPart      = []byte(`,` + textStart)
	tailPartEnd   = []byte(textEnd)
	tailMessage   = []byte(userStart + `"`)
)

// join lays out the body of a request:
//
//	{"model":…,OPTIONS,"stream":true,…,"tools":[…],"messages":[SYSTEM,HISTORY]}
func (m *Model) join(r *psych.Request) *body {
	b := &body{parts: make([][]byte, 0, 2*len(r.History)+24)}
	head := m.head(&r.Options)
	b.add(head, utf8.RuneCount(head))
	if len(r.Tools.Bytes) > 0 {
		b.envelope(toolsField)
		b.add(r.Tools.Bytes, r.Tools.Chars)
	}
	b.envelope(messagesField)
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
	last := len(r.History) - 1
	for last >= 0 && len(r.History[last].Bytes) == 0 {
		last--
	}
	tailed := len(r.Tail.Bytes) == 0
	for i := range r.History {
		w := &r.History[i]
		if len(w.Bytes) == 0 {
			continue
		}
		if !first {
			b.envelope(comma)
		}
		first = false
		bytes, chars := w.Bytes, w.Chars
		if i == marked[0] || i == marked[1] {
			b.add(bytes[:w.Marker], 0)
			b.envelope(breakpoint)
			bytes = bytes[w.Marker:] // its characters are counted with the rest
		}
		if i == last && !tailed && joinable(w.Bytes) {
			b.addTailed(bytes, chars, w.Bytes, &r.Tail)
			tailed = true
			continue
		}
		b.add(bytes, chars)
	}
	if !tailed {
		if !first {
			b.envelope(comma)
		}
		b.envelope(tailMessage)
		b.add(r.Tail.Bytes, r.Tail.Chars)
		b.envelope(endOfString)
	}
	b.envelope(endOfBody)
	return b
}

// head is the envelope up to the tools: the same for every request of a Spec.
func (m *Model) head(o *psych.ModelOptions) []byte {
	b := append(make([]byte, 0, 256), `{"model":`...)
	b = appendString(b, m.name)
	if o.MaxOutputTokens > 0 {
		if m.o.LegacyMaxTokens {
			b = append(b, `,"max_tokens":`...)
		} else {
			b = append(b, `,"max_completion_tokens":`...)
		}
		b = strconv.AppendInt(b, int64(o.MaxOutputTokens), 10)
	}
	if t := o.Temperature; t != nil && !math.IsNaN(*t) && !math.IsInf(*t, 0) {
		b = append(b, `,"temperature":`...)
		b = strconv.AppendFloat(b, *t, 'f', -1, 64)
	}
	if o.Effort != "" {
		b = append(b, `,"reasoning_effort":`...)
		b = appendString(b, o.Effort)
	}
	if m.o.CacheKey != "" {
		b = append(b, `,"prompt_cache_key":`...)
		b = appendString(b, m.o.CacheKey)
	}
	if m.o.CacheBreakpoints {
		b = append(b, `,"prompt_cache_options":{"mode":"explicit"}`...)
	}
	return append(b, `,"stream":true,"stream_options":{"include_usage":true}`...)
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

// joinable reports whether a text may be put into the end of a message.
func joinable(message []byte) bool {
	return !bytes.HasPrefix(message, []byte(assistantStart)) &&
		(bytes.HasSuffix(message, endOfParts) || bytes.HasSuffix(message, endOfString))
}

// addTailed adds what is left of the last message with the trailing message as
// its last text.
func (b *body) addTailed(rest []byte, chars int, message []byte, tail *psych.Wire) {
	const end = len(partsEnd)
	b.add(rest[:len(rest)-end], chars-end)
	switch {
	case bytes.HasSuffix(message, endOfParts):
		b.envelope(tailPart)
		b.add(tail.Bytes, tail.Chars)
		b.envelope(tailPartEnd)
	case bytes.HasSuffix(message, []byte(emptyEnd)):
		b.add(tail.Bytes, tail.Chars)
	default:
		b.envelope(blank)
		b.add(tail.Bytes, tail.Chars)
	}
	b.add(rest[len(rest)-end:], end)
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
