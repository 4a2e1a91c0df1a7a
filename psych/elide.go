package psych

import (
	"bytes"
	"fmt"
	"slices"
	"unicode/utf8"
)

// maxFailureChars is what the model sees of a tool's own failure.
const maxFailureChars = 500

// A view is what the model sees of one result.
type view struct {
	head, tail []byte // all of it if tail is nil
	note       string // between them, or behind head
	guide      string // behind tail
}

func (v view) append(b []byte) []byte {
	b = append(b, v.head...)
	b = append(b, v.note...)
	b = append(b, v.tail...)
	return append(b, v.guide...)
}

func (v view) tokens() int {
	return estimate(utf8.RuneCount(v.head) + utf8.RuneCount(v.tail) + utf8.RuneCountInString(v.note) + utf8.RuneCountInString(v.guide))
}

// estimate is the estimated tokens of so many characters. It never falls as
// bytes are appended, and is never used for metering.
func estimate(chars int) int { return (chars + 3) / 4 }

// elide decides, once, which results of a whole batch the model sees as
// previews. It is a function of the records alone. An offloaded result always
// is; under the per-result threshold together, nothing else is; otherwise each
// at or over it, and then the largest, ties in the order of the calls, until
// what the model sees is under the threshold of a batch.
func (s *state) elide(b *batch) {
	total := 0
	var candidates []*call
	for _, c := range b.calls {
		small := s.preview(c)
		c.elided = c.done.Result.Ref != nil && small != nil
		if c.elided {
			c.shown = small.tokens()
		} else {
			c.shown = s.inFull(c)
			if small != nil && small.tokens() < c.shown {
				candidates = append(candidates, c)
			}
		}
		total += c.shown
	}
	if total < s.limits.LargeResultTokens {
		return
	}
	slices.SortStableFunc(candidates, func(x, y *call) int { return y.shown - x.shown })
	for _, c := range candidates {
		if c.shown < s.limits.LargeResultTokens && total < s.limits.BatchResultTokens {
			break
		}
		c.elided = true
		total -= c.shown
		c.shown = s.preview(c).tokens()
		total += c.shown
	}
}

// inFull is the estimated tokens of a result that is not elided.
func (s *state) inFull(c *call) int {
	p := &c.done.Result
	if c.done.Outcome == Succeeded && !p.Binary {
		return p.tokens()
	}
	return s.view(c).tokens()
}

// preview is the short view of a result, or nil if there is none: of failures,
// of pages of readers, of binary results, and where head and tail would
// show everything.
func (s *state) preview(c *call) *view {
	p := &c.done.Result
	n := s.limits.PreviewChars
	if c.done.Outcome != Succeeded || p.Binary || c.done.Page || p.Chars <= int64(2*n) {
		return nil
	}
	head, tail := p.Inline, p.Inline
	if p.Ref != nil {
		head, tail = p.Ref.Head, p.Ref.Tail
	}
	return &view{
		head:  showNULs(firstChars(head, n)),
		note:  fmt.Sprintf("\n… %d characters left out …\n", p.Chars-int64(2*n)),
		tail:  showNULs(lastChars(tail, n)),
		guide: fmt.Sprintf("\n[%s, %d characters, %d lines. Read it with %s, handle %q.]", p.ContentType, p.Chars, p.Lines, readToolOutputDef.Name, handleOf(c.id)),
	}
}

// view is what the model sees of a result, now and in every later request.
// It needs no read: what is not elided is inline.
func (s *state) view(c *call) view {
	p := &c.done.Result
	switch {
	case c.elided:
		return *s.preview(c)
	case p.Binary:
		return view{note: fmt.Sprintf("[%s, %d bytes, binary. It can't be shown as text; handle %q.]", p.ContentType, p.Size, handleOf(c.id))}
	case c.done.Outcome == Failed && !byPsych(c.done.Code):
		body := p.Inline
		if p.Ref != nil {
			body = p.Ref.Head
		}
		return view{head: showNULs(firstChars(body, maxFailureChars))}
	default:
		body := p.Inline
		if p.Ref != nil {
			body = p.Ref.Head // of a result so short that its head is all of it
		}
		return view{head: showNULs(body)}
	}
}

// byPsych reports whether the text of a failure is psych's own, which is
// bounded where it is made.
func byPsych(code string) bool {
	return code == CodeArguments || code == CodeUnknownTool || code == CodeNoBlobStore
}

func firstChars(b []byte, n int) []byte {
	if len(b) <= n {
		return b
	}
	i := 0
	for ; n > 0 && i < len(b); n-- {
		_, size := utf8.DecodeRune(b[i:])
		i += size
	}
	return b[:i:i]
}

func lastChars(b []byte, n int) []byte {
	if len(b) <= n {
		return b
	}
	i := len(b)
	for ; n > 0 && i > 0; n-- {
		_, size := utf8.DecodeLastRune(b[:i])
		i -= size
	}
	return b[i:]
}

// text is the whole view as one string.
func (v view) text() string {
	if v.tail == nil && v.note == "" && v.guide == "" {
		return string(v.head)
	}
	var b bytes.Buffer
	b.Grow(len(v.head) + len(v.tail) + len(v.note) + len(v.guide))
	return string(v.append(b.AvailableBuffer()))
}
