package script

import (
	"encoding/json"
	"slices"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

// Sent is a request as it was received. Its bytes are shared with the caller
// that sent it and are not to be changed.
type Sent struct {
	Step    int // index of the step that it asked for; one past the last: none was left
	Request psych.Request
}

// Zone returns the bytes of a zone of the prompt: 0 the tools, 1 and 2 the
// system blocks, 3 the messages, joined by commas, 4 the trailing message.
func (s *Sent) Zone(n int) []byte {
	r := &s.Request
	switch n {
	case 0:
		return slices.Clone(r.Tools.Bytes)
	case 1, 2:
		return slices.Clone(r.System[n-1].Bytes)
	case 3:
		return appendHistory(nil, r.History)
	default:
		return slices.Clone(r.Tail.Bytes)
	}
}

// Prefix returns the body up to the end of the history: what the next
// request's body begins with, as long as no zone was changed.
func (s *Sent) Prefix() []byte { return appendPrefix(nil, &s.Request) }

// Body returns the whole body, whose characters Response.Sent counts: JSON,
// with the zones in their order.
func (s *Sent) Body() []byte {
	b := appendPrefix(nil, &s.Request)
	if t := s.Request.Tail.Bytes; len(t) > 0 {
		if len(s.Request.History) > 0 {
			b = append(b, ',')
		}
		b = append(b, t...)
	}
	return append(b, bodyEnd...)
}

// Text returns the request as patterns of require and forbid see it.
func (s *Sent) Text() (string, error) {
	t, err := readRequest(&s.Request)
	if err != nil {
		return "", err
	}
	return t.text, nil
}

// Requests returns what was received so far, in order of arrival; nothing
// unless Options.Record was set.
func (m *Model) Requests() []Sent {
	m.mu.Lock()
	defer m.mu.Unlock()
	sent := slices.Clone(m.sent)
	for i := range sent { // the room behind a list is that of later requests
		sent[i].Request.History = slices.Clip(sent[i].Request.History)
	}
	return sent
}

// remember keeps req. Histories grow by appending, so a request that goes on
// where the one before it ended shares its list: 1,000 turns would otherwise
// keep half a million entries.
func (m *Model) remember(req *psych.Request, step int) {
	r := *req
	r.Breaks = slices.Clone(req.Breaks)
	r.History = nil
	if n := len(m.sent); n > 0 {
		if last := m.sent[n-1].Request.History; extends(req.History, last) {
			r.History = append(last, req.History[len(last):]...)
		}
	}
	if r.History == nil {
		r.History = slices.Clone(req.History)
	}
	m.sent = append(m.sent, Sent{Step: step, Request: r})
}

func extends(h, by []psych.Wire) bool {
	n := len(by)
	return n > 0 && n <= len(h) && !by[n-1].Chain.IsZero() && by[n-1].Chain == h[n-1].Chain
}

// The body:
//
//	{"model":…,"options":…,"tools":[…],"system":[…],"messages":[…]}
const (
	bodyTools    = `,"tools":`
	noTools      = `[]`
	bodySystem   = `,"system":[`
	bodyMessages = `],"messages":[`
	bodyEnd      = `]}`
)

func appendHead(b []byte, r *psych.Request) []byte {
	b = append(b, `{"model":`...)
	b = appendString(b, r.Model)
	b = append(b, `,"options":`...)
	if r.Options == (psych.ModelOptions{}) {
		return append(b, "{}"...)
	}
	options, err := json.Marshal(r.Options)
	if err != nil { // a temperature that is no number
		return append(b, "null"...)
	}
	return append(b, options...)
}

func appendPrefix(b []byte, r *psych.Request) []byte {
	b = appendHead(b, r)
	b = append(b, bodyTools...)
	if len(r.Tools.Bytes) > 0 {
		b = append(b, r.Tools.Bytes...)
	} else {
		b = append(b, noTools...)
	}
	b = append(b, bodySystem...)
	b = append(b, r.System[0].Bytes...)
	if len(r.System[0].Bytes) > 0 && len(r.System[1].Bytes) > 0 {
		b = append(b, ',')
	}
	b = append(b, r.System[1].Bytes...)
	b = append(b, bodyMessages...)
	return appendHistory(b, r.History)
}

func appendHistory(b []byte, h []psych.Wire) []byte {
	for i, w := range h {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, w.Bytes...)
	}
	return b
}

// sentChars counts the characters of the body without joining it; history is
// what its messages have.
func sentChars(r *psych.Request, history int) int {
	var buf [256]byte
	n := utf8.RuneCount(appendHead(buf[:0], r)) + len(bodyTools) + len(bodySystem) + len(bodyMessages) + len(bodyEnd)
	n += r.Tools.Chars + r.System[0].Chars + r.System[1].Chars + history + r.Tail.Chars
	if len(r.Tools.Bytes) == 0 {
		n += len(noTools)
	}
	if len(r.System[0].Bytes) > 0 && len(r.System[1].Bytes) > 0 {
		n++
	}
	messages := len(r.History)
	if len(r.Tail.Bytes) > 0 {
		messages++
	}
	return n + max(messages-1, 0)
}
