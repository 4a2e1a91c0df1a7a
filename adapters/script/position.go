package script

import (
	"crypto/sha256"
	"fmt"

	"github.com/psych-go/psych-go/psych"
)

// A mark is what a prefix of a history comes to. It is a function of that
// prefix, so that it can be kept by the prefix's chained digest, and a request
// costs what is new in it; cached alone is of this process.
type mark struct {
	step   int  // to play next, or to play again
	again  bool // step is a loop that was played; whether it goes on is open
	said   int  // messages of the assistant
	chars  int  // of the messages so far
	cached bool // an answered request began like this
}

// locate returns the mark of req's history, with its last loop decided.
func (m *Model) locate(req *psych.Request) (mark, error) {
	h := req.History
	at, i := m.known(h)
	if i < len(h) {
		news := make([]mark, 0, len(h)-i)
		for j := i; j < len(h); j++ {
			var err error
			if at, err = m.after(at, h[:j+1]); err != nil {
				return mark{}, err
			}
			news = append(news, at)
		}
		m.keep(h[i:], news)
	}
	return m.settle(at, h)
}

// known returns the mark of the longest known prefix of h, and its length.
func (m *Model) known(h []psych.Wire) (mark, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := len(h); i > 0; i-- {
		if at, ok := m.marks.get(h[i-1].Chain); ok {
			at.cached = false
			return at, i
		}
	}
	return mark{}, 0
}

func (m *Model) keep(h []psych.Wire, news []mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, at := range news {
		if h[i].Chain.IsZero() { // of a caller that doesn't chain
			continue
		}
		if _, ok := m.marks.get(h[i].Chain); !ok { // another request may have been quicker
			m.marks.put(h[i].Chain, at)
		}
	}
}

// after is the mark of h, given that of h without its last message.
func (m *Model) after(at mark, h []psych.Wire) (mark, error) {
	last := len(h) - 1
	at.chars += h[last].Chars
	switch role, ok := roleOf(h[last].Bytes); {
	case !ok:
		return mark{}, fmt.Errorf("message %d of the request is not in the encoding %s", last+1, codecID)
	case role != psych.RoleAssistant:
		return at, nil
	}
	at, err := m.settle(at, h[:last])
	if err != nil {
		return mark{}, err
	}
	for at.step < len(m.steps) && !m.steps[at.step].speaks {
		at.step++ // it failed, so it left no message
	}
	at.said++
	if at.step < len(m.steps) {
		if m.steps[at.step].until != nil {
			at.again = true
		} else {
			at.step++
		}
	}
	return at, nil
}

// settle leaves the loop that at is in if its condition holds at the end of h.
func (m *Model) settle(at mark, h []psych.Wire) (mark, error) {
	if !at.again {
		return at, nil
	}
	last, have, err := lastResult(h)
	if err != nil {
		return mark{}, err
	}
	if have && m.steps[at.step].until.MatchString(last) {
		at.step++
		at.again = false
	}
	return at, nil
}

// lastResult returns the text of the last result in h.
func lastResult(h []psych.Wire) (text string, ok bool, err error) {
	for i := len(h) - 1; i >= 0; i-- {
		if role, _ := roleOf(h[i].Bytes); role != psych.RoleTool {
			continue
		}
		m, err := decodeMessage(h[i].Bytes)
		if err != nil {
			return "", false, fmt.Errorf("message %d of the request: %w", i+1, err)
		}
		if n := len(m.Results); n > 0 {
			return m.Results[n-1].Text, true, nil
		}
	}
	return "", false, nil
}

// historyKey identifies the history of req, for a caller that doesn't chain
// too.
func historyKey(req *psych.Request) psych.Digest {
	key := req.System[1].Chain
	if n := len(req.History); n > 0 {
		key = req.History[n-1].Chain
	}
	if !key.IsZero() {
		return key
	}
	sum := sha256.New()
	for _, w := range req.History {
		sum.Write(w.Bytes)
	}
	sum.Sum(key[:0])
	return key
}
