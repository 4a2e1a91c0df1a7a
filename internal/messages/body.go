package messages

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

// A Body is the parts of a request, in order, never joined in memory. They are
// shared with the prompt and with each reader.
type Body struct {
	parts [][]byte
	Size  int64 // bytes
	Chars int
}

func (b *Body) add(part []byte, chars int) {
	if len(part) > 0 {
		b.parts = append(b.parts, part)
		b.Size += int64(len(part))
		b.Chars += chars
	}
}

// envelope adds what is in no zone, in ASCII.
func (b *Body) envelope(s []byte) { b.add(s, len(s)) }

// Pieces of the envelope, shared by all bodies.
var (
	toolsField    = []byte(`,"tools":`)
	systemField   = []byte(`,"system":[`)
	messagesField = []byte(`,"messages":[`)
	comma         = []byte(`,`)
	endOfList     = []byte(`]`)
	endOfMessage  = []byte(messageEnd)
	nextMessage   = []byte(messageEnd + `,`)
	userMessage   = []byte(userStart)
	marker5m      = []byte(`,"cache_control":{"type":"ephemeral"}`)
	marker1h      = []byte(`,"cache_control":{"type":"ephemeral","ttl":"1h"}`)
)

// Body lays out the body of a request behind start, members of JSON in ASCII
// or not ("model":"…","stream":true):
//
//	{START,"max_tokens":…,OPTIONS,"tools":[…],"system":[…],"messages":[…]}
//
// At most four markers stand in it: at the end of zone 1 (of the tools where
// there is no text in it), of zone 2, and of the history as of the request
// before and of this one.
func (f *Format) Body(start []byte, r *psych.Request) (*Body, error) {
	head, err := f.head(start, &r.Options)
	if err != nil {
		return nil, err
	}
	b := &Body{parts: make([][]byte, 0, 3*len(r.History)+24)}
	b.add(head, utf8.RuneCount(head))
	if w := &r.Tools; len(w.Bytes) > 0 {
		b.envelope(toolsField)
		if len(r.System[0].Bytes) == 0 {
			b.addMarked(w.Bytes, w.Chars, len(w.Bytes)-len(`}]`), f.markers[0])
		} else {
			b.add(w.Bytes, w.Chars)
		}
	}
	if len(r.System[0].Bytes)+len(r.System[1].Bytes) > 0 {
		b.envelope(systemField)
		for i := range r.System {
			if w := &r.System[i]; len(w.Bytes) > 0 {
				b.addMarked(w.Bytes, w.Chars, len(w.Bytes)-len(`}`), f.markers[0])
			}
		}
		b.envelope(endOfList)
	}
	b.envelope(messagesField)
	f.addMessages(b, r)
	b.envelope(endOfMessage) // ]} ends the body too
	return b, nil
}

// addMarked adds a part with a marker put in at an offset.
func (b *Body) addMarked(part []byte, chars, at int, marker []byte) {
	if len(marker) == 0 {
		b.add(part, chars)
		return
	}
	b.add(part[:at], 0) // its characters are counted with the rest
	b.envelope(marker)
	b.add(part[at:], chars)
}

// addMessages joins parts of one role.
func (f *Format) addMessages(b *Body, r *psych.Request) {
	marked := f.marked(r)
	var open psych.Role // of the message that is not ended yet; "" for none
	add := func(w *psych.Wire, marker int) {
		role, start, end := shape(w.Bytes)
		part, chars := w.Bytes[:len(w.Bytes)-end], w.Chars-end
		switch {
		case role == open:
			b.envelope(comma)
			part, chars, marker = part[start:], chars-start, marker-start
		default:
			if open != "" {
				b.envelope(nextMessage)
			}
			if start == 0 {
				b.envelope(userMessage)
			}
			open = role
		}
		if marker > 0 && marker <= len(part) {
			b.addMarked(part, chars, marker, f.markers[1])
		} else {
			b.add(part, chars)
		}
	}
	for i := range r.History {
		if w := &r.History[i]; len(w.Bytes) > 0 {
			marker := -1
			if i == marked[0] || i == marked[1] {
				marker = w.Marker
			}
			add(w, marker)
		}
	}
	if len(r.Tail.Bytes) > 0 {
		add(&r.Tail, -1)
	}
	if open != "" {
		b.envelope(endOfMessage)
	}
}

// shape returns the role of a part and the lengths of what makes a message of
// its blocks; blocks alone are a user's.
func shape(part []byte) (role psych.Role, start, end int) {
	switch {
	case bytes.HasPrefix(part, []byte(blockStart)):
		return psych.RoleUser, 0, 0
	case bytes.HasPrefix(part, []byte(assistantStart)):
		return psych.RoleAssistant, len(assistantStart), len(messageEnd)
	}
	return psych.RoleUser, len(userStart), len(messageEnd)
}

// marked returns the parts that get a marker, -1 for none: where a break is, or
// the nearest before it that takes one.
func (f *Format) marked(r *psych.Request) [2]int {
	at := [2]int{-1, -1}
	for n, i := range r.Breaks[max(0, len(r.Breaks)-2):] {
		for i = min(i, len(r.History)-1); i >= 0 && (r.History[i].Marker <= 0 || r.History[i].Marker > len(r.History[i].Bytes)); i-- {
		}
		at[n] = i
	}
	return at
}

// head is the envelope up to the tools: the same for every request of a Spec.
func (f *Format) head(start []byte, o *psych.ModelOptions) ([]byte, error) {
	b := append(append(make([]byte, 0, len(start)+256), '{'), start...)
	limit := f.maxTokens(o)
	b = append(b, `,"max_tokens":`...)
	b = strconv.AppendInt(b, int64(limit), 10)
	if t := o.Temperature; t != nil && !math.IsNaN(*t) && !math.IsInf(*t, 0) {
		b = append(b, `,"temperature":`...)
		b = strconv.AppendFloat(b, *t, 'f', -1, 64)
	}
	thinking, effort, err := f.thinking(o.Effort, limit)
	if err != nil {
		return nil, err
	}
	if thinking != "" {
		b = append(b, `,"thinking":{"type":`...)
		b = append(b, thinking...)
		if f.Binds() && thinking == adaptiveType {
			b = append(b, `,"block_binding":{"prefix_mismatch_behavior":"drop_block"}`...)
		}
		b = append(b, '}')
	}
	if effort != "" {
		b = append(b, `,"output_config":{"effort":`...)
		b = appendString(b, effort)
		b = append(b, '}')
	}
	return b, nil
}

func (f *Format) maxTokens(o *psych.ModelOptions) int {
	switch {
	case o.MaxOutputTokens > 0:
		return o.MaxOutputTokens
	case f.o.MaxTokens > 0:
		return f.o.MaxTokens
	case f.rules == claude3:
		return 4096
	}
	return DefaultMaxTokens
}

// BindingBeta is the beta that block_binding belongs to.
const BindingBeta = "thinking-binding-controls-2026-08-01"

// Binds reports whether requests say what happens to reasoning whose prefix
// changed, and so need BindingBeta. A history that is trimmed, or a memory that
// changed, is no reason to refuse a request: the reasoning of before is dropped.
func (f *Format) Binds() bool {
	return f.rules == bound && !f.o.FreeBlocks && (f.o.Thinking == "" || f.o.Thinking == "adaptive")
}

const (
	thinkingNone = "none"
	adaptiveType = `"adaptive"`
	minBudget    = 1024 // the provider's
)

// budgets are what effort means to models that reason within a budget, in
// tokens.
var budgets = map[string]int{"low": 4096, "medium": 8192, "high": 16384, "xhigh": 32768, "max": 32768}

// thinking says what thinking and output_config.effort are, "" for nothing.
//
// Without Options.Thinking: a model to 4.5 reasons when the Spec has an effort,
// within its budget, or half of the output limit where that is less. A later
// one is sent the effort, and told to reason as it sees fit: from 4.6 to 4.8 it
// would not without. One from 5.1 on is told so always, since how it may treat
// reasoning whose prefix changed is said there.
//
// With it, thinking is what it says ("none": nothing), and an effort is sent.
func (f *Format) thinking(effort string, limit int) (thinking, sent string, err error) {
	n, numeric := strconv.Atoi(f.o.Thinking)
	switch {
	case numeric == nil:
		return `"enabled","budget_tokens":` + strconv.Itoa(n), effort, nil
	case f.o.Thinking == thinkingNone:
		return "", effort, nil
	case f.o.Thinking != "":
		return `"` + f.o.Thinking + `"`, effort, nil
	case f.rules == manual && effort != "":
		budget := budgets[effort]
		if budget == 0 {
			return "", "", fmt.Errorf("effort %.80q: want low, medium, high, xhigh or max: %w", effort, psych.ErrInvalid)
		}
		if budget = min(budget, limit/2); budget < minBudget {
			return "", "", nil
		}
		return `"enabled","budget_tokens":` + strconv.Itoa(budget), "", nil
	case f.rules == manual || f.rules == claude3:
		return "", "", nil
	case effort != "" || f.Binds():
		return adaptiveType, effort, nil
	}
	return "", "", nil
}

// Reader returns a reader of the body. It can seek.
func (b *Body) Reader() *BodyReader { return &BodyReader{body: b} }

// A BodyReader reads parts that others read too.
type BodyReader struct {
	body *Body
	part int   // the one that is read
	off  int   // in it
	pos  int64 // in the body
}

func (r *BodyReader) Read(p []byte) (n int, err error) {
	for n < len(p) && r.part < len(r.body.parts) {
		c := copy(p[n:], r.body.parts[r.part][r.off:])
		n += c
		if r.off += c; r.off == len(r.body.parts[r.part]) {
			r.part, r.off = r.part+1, 0
		}
	}
	r.pos += int64(n)
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Seek goes to an offset, at most to the end.
func (r *BodyReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.pos
	case io.SeekEnd:
		offset += r.body.Size
	}
	if offset < 0 || offset > r.body.Size {
		return 0, errors.New("messages: seek outside of the body")
	}
	r.pos, r.part = offset, 0
	for r.part < len(r.body.parts) && offset >= int64(len(r.body.parts[r.part])) {
		offset -= int64(len(r.body.parts[r.part]))
		r.part++
	}
	r.off = int(offset)
	return r.pos, nil
}

// Close does nothing.
func (r *BodyReader) Close() error { return nil }
