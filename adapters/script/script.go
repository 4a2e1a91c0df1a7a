package script

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

// Options of a [Model]; the zero value works.
type Options struct {
	// Limits are what the Model declares as its provider's.
	Limits psych.ModelLimits

	// Record keeps every request for [Model.Requests]. Without it a Model's
	// memory is bounded, however many requests it answers.
	Record bool
}

// A Model plays a [Script]. It is safe for concurrent use, and any number of
// Runs may share it.
type Model struct {
	codec  psych.Codec
	steps  []step
	err    *psych.ModelError // why the script can't be played
	record bool

	mu     sync.Mutex
	marks  *recent[psych.Digest, mark]     // of histories
	heads  *recent[psych.Digest, struct{}] // tools and system blocks that were answered
	fails  *recent[failing, int]
	sent   []Sent
	totals Totals
}

var _ psych.Model = (*Model)(nil)

// remembered bounds what a Model keeps of past requests, in messages: enough
// for some tens of long Runs at once.
const remembered = 1 << 15

// failing identifies a step that fails, or stalls, at the end of a history.
type failing struct {
	history psych.Digest
	step    int
}

// New returns a Model that plays s. A script that was written in Go and has
// problems is reported by each Generate, as Parse would report it.
func New(s *Script, o *Options) *Model {
	if o == nil {
		o = &Options{}
	}
	m := &Model{
		codec:  &codec{limits: o.Limits},
		record: o.Record,
		marks:  newRecent[psych.Digest, mark](remembered),
		heads:  newRecent[psych.Digest, struct{}](remembered),
		fails:  newRecent[failing, int](remembered),
	}
	var d problems
	for i := range s.Steps {
		m.steps = append(m.steps, d.compile(index("steps", i), &s.Steps[i], true))
	}
	if len(s.Steps) == 0 {
		d.add("steps", "a script needs at least one step")
	}
	if len(d.all) > 0 {
		err := &Error{Problems: d.all}
		m.err = &psych.ModelError{Message: err.Error(), Err: err}
	}
	return m
}

// Codec returns the encoding script/1, which keeps every byte readable: JSON
// for tools, system blocks and messages.
func (m *Model) Codec() psych.Codec { return m.codec }

// Generate plays the step that req asks for. Besides the failures that the
// script has, it fails, never as transient, when the script has no step left,
// when what a step requires is missing or what it forbids is there, and when a
// substitution finds nothing; the message says what was there instead.
func (m *Model) Generate(ctx context.Context, req *psych.Request, on func(psych.Delta)) (*psych.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if m.err != nil {
		return nil, m.err
	}
	pos, err := m.locate(req)
	if err != nil {
		return nil, refusal("%v", err)
	}
	n, try, err := m.choose(req, pos)
	if err != nil {
		return nil, err
	}
	s := &m.steps[n]
	if err := s.check(n, req); err != nil {
		return nil, err
	}
	switch {
	case s.Fail != nil:
		return nil, s.failure(try, max(s.Times, 1))
	case s.Stall:
		<-ctx.Done()
		return nil, ctx.Err()
	}

	resp, err := s.speak(n, pos.said+1, req.History)
	if err != nil {
		return nil, err
	}
	if err := stream(ctx, resp.Blocks, on); err != nil {
		return nil, err
	}
	m.account(s, req, pos, resp)
	return resp, nil
}

// choose returns the step to play, passing over those that have failed as
// often as they were to, and which failure in a row this one is.
func (m *Model) choose(req *psych.Request, pos mark) (n, try int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.totals.Requests++
	for n = pos.step; n < len(m.steps) && !m.steps[n].speaks; n++ {
		s := &m.steps[n]
		if s.Stall && s.Times == 0 {
			break
		}
		key := failing{historyKey(req), n}
		if tries, _ := m.fails.get(key); tries < max(s.Times, 1) {
			try = tries + 1
			m.fails.put(key, try)
			break
		}
	}
	if m.record {
		m.remember(req, n)
	}
	if n == len(m.steps) {
		return 0, 0, refusal("the script has %s and the request, with %s of the assistant, asks for step %d",
			count(n, "step"), count(pos.said, "message"), n+1)
	}
	return n, try, nil
}

func count(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return strconv.Itoa(n) + " " + of + "s"
}

// refusal is a failure that no repetition mends.
func refusal(format string, args ...any) *psych.ModelError {
	return &psych.ModelError{Message: "script: " + fmt.Sprintf(format, args...)}
}

// speak makes the response of the step; said is the number of this answer.
func (s *step) speak(n, said int, history []psych.Wire) (*psych.Response, error) {
	r := &psych.Response{Stop: s.Stop, Blocks: make([]psych.Block, 0, 2+len(s.Calls))}
	if s.Provider != nil {
		r.Blocks = append(r.Blocks, psych.Block{Provider: []byte(*s.Provider)})
	}
	if s.Text != nil {
		r.Blocks = append(r.Blocks, psych.Block{Text: *s.Text})
	}
	var (
		last       string
		have, read bool
	)
	for i := range s.Calls {
		c := &s.Calls[i]
		call := &psych.ToolCall{Name: c.Name}
		if c.ID != nil {
			call.ProviderID = *c.ID
		} else {
			var buf [48]byte
			id := strconv.AppendInt(append(buf[:0], "call_"...), int64(said), 10)
			call.ProviderID = string(strconv.AppendInt(append(id, '_'), int64(i+1), 10))
		}
		if c.RawArguments != nil {
			call.Arguments = []byte(*c.RawArguments)
		} else {
			var err error
			if s.arguments[i].asks() && !read {
				if last, have, err = lastResult(history); err != nil {
					return nil, refusal("%v", err)
				}
				read = true
			}
			if call.Arguments, err = s.arguments[i].fill(last, have); err != nil {
				return nil, refusal("step %d: arguments of call %d (%s): %v", n+1, i+1, clip(c.Name, 80), err)
			}
		}
		r.Blocks = append(r.Blocks, psych.Block{Call: call})
	}
	if r.Stop == "" {
		r.Stop = psych.StopEnd
		if len(s.Calls) > 0 {
			r.Stop = psych.StopToolUse
		}
	}
	return r, nil
}

// pieces is how many deltas a text or the arguments of a call come in.
const pieces = 3

// stream tells on of each block as a provider would, a few pieces each.
func stream(ctx context.Context, blocks []psych.Block, on func(psych.Delta)) error {
	if on == nil {
		return ctx.Err()
	}
	call := 0
	for i := range blocks {
		b := &blocks[i]
		switch {
		case b.Call != nil:
			call++
			if err := ctx.Err(); err != nil {
				return err
			}
			on(psych.Delta{Call: call, Name: b.Call.Name})
			if err := split(ctx, string(b.Call.Arguments), func(s string) { on(psych.Delta{Call: call, Arguments: s}) }); err != nil {
				return err
			}
		case b.Provider == nil:
			if err := split(ctx, b.Text, func(s string) { on(psych.Delta{Text: s}) }); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// split cuts s into pieces between runes.
func split(ctx context.Context, s string, each func(string)) error {
	size := max(1, (len(s)+pieces-1)/pieces)
	for s != "" {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(size, len(s))
		for n < len(s) && !utf8.RuneStart(s[n]) {
			n++
		}
		each(s[:n])
		s = s[n:]
	}
	return nil
}
