package script

import (
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

// Totals are what a Model has counted since it was made: what a report over
// all its Runs must add up to. Unknown usage counts as none.
type Totals struct {
	Requests  int   // that reached the script, failed ones too
	Responses int   // that came back
	Calls     int   // tool calls asked for
	Sent      int64 // characters of the bodies that were answered
	Input     int64 // tokens, cached ones too
	Cached    int64
	Output    int64
}

// Totals returns what the Model has counted so far.
func (m *Model) Totals() Totals {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.totals
}

// account fills Usage and Sent of resp and remembers the request's prefixes as
// cached, as a provider does when it has answered.
func (m *Model) account(s *step, req *psych.Request, pos mark, resp *psych.Response) {
	resp.Sent = sentChars(req, pos.chars)

	m.mu.Lock()
	defer m.mu.Unlock()
	cached := m.cache(req)
	if u := s.Usage; u != nil {
		resp.Usage = psych.Usage{Input: clone(u.Input), CacheRead: clone(u.Cached), Output: clone(u.Output)}
	} else {
		out := 0
		for i := range resp.Blocks {
			b := &resp.Blocks[i]
			out += utf8.RuneCountInString(b.Text) + utf8.RuneCount(b.Provider)
			if b.Call != nil {
				out += utf8.RuneCountInString(b.Call.Name) + utf8.RuneCount(b.Call.Arguments)
			}
		}
		n := [3]int64{tokens(resp.Sent), tokens(cached), tokens(out)}
		resp.Usage = psych.Usage{Input: &n[0], CacheRead: &n[1], Output: &n[2]}
	}

	m.totals.Responses++
	m.totals.Calls += len(s.Calls)
	m.totals.Sent += int64(resp.Sent)
	m.totals.Input += value0(resp.Usage.Input)
	m.totals.Cached += value0(resp.Usage.CacheRead)
	m.totals.Output += value0(resp.Usage.Output)
}

func clone(n *int64) *int64 {
	if n == nil {
		return nil
	}
	return new(*n)
}

func value0(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// tokens estimates the tokens of so many characters.
func tokens(chars int) int64 { return int64(chars+3) / 4 }

// cache returns the characters of the longest prefix of req that an earlier
// request had, and remembers the prefixes of this one.
func (m *Model) cache(req *psych.Request) int {
	head := [3]*psych.Wire{&req.Tools, &req.System[0], &req.System[1]}
	base := 0
	for _, w := range head {
		base += w.Chars
	}

	chars := 0
	h := req.History
	i := len(h)
	for ; i > 0; i-- {
		if at, ok := m.marks.get(h[i-1].Chain); ok && at.cached {
			chars = base + at.chars
			break
		}
	}
	for _, w := range h[i:] {
		if at, ok := m.marks.get(w.Chain); ok {
			at.cached = true
			m.marks.put(w.Chain, at)
		}
	}
	if i > 0 {
		return chars // what is in front of a cached message is cached
	}

	// Looked up before any is put: where a zone is empty, its chain may be that
	// of the one before it.
	sum := 0
	for _, w := range head {
		sum += w.Chars
		if _, ok := m.heads.get(w.Chain); ok {
			chars = sum
		}
	}
	for _, w := range head {
		if !w.Chain.IsZero() {
			m.heads.put(w.Chain, struct{}{})
		}
	}
	return chars
}
