package psych

import (
	"context"
	"fmt"
	"slices"
	"unicode/utf8"
)

// maxFailureChars is what the model sees of a tool's own failure.
const maxFailureChars = 500

// A part is one text of a call's answer: its result, or an attachment. What
// the model sees of it follows from the records alone, and changes at most
// twice: once it is trimmed, it is never touched again.
type part struct {
	call    *call
	at      *Attachment // nil: the result
	p       *Payload
	elided  bool // set once, when the batch is whole
	trimmed bool // set by the model call that said so
	shown   int  // estimated tokens of what the model sees
}

// makeParts lists the texts of a call that has its result.
func (c *call) makeParts() {
	c.parts = make([]part, 1, 1+len(c.done.Attachments))
	c.parts[0] = part{call: c, p: &c.done.Result}
	for i := range c.done.Attachments {
		a := &c.done.Attachments[i]
		c.parts = append(c.parts, part{call: c, at: a, p: &a.Output})
	}
}

func (x *part) handle() string {
	if x.at == nil {
		return outputPrefix + x.call.id
	}
	return outputPrefix + x.call.id + "_" + x.at.Slot
}

// estimate is the estimated tokens of so many characters. It never falls as
// bytes are appended, and is never used for metering.
func estimate(chars int) int { return (chars + 3) / 4 }

// elide decides, once, which parts of a whole batch the model sees as previews.
// What lies in the BlobStore always is; under the per-result threshold
// together, nothing else is; otherwise each part at or over it, and then the
// largest, ties in the order of the calls, until what the model sees is under
// the threshold of a batch. It looks at sizes alone, never at the bytes.
func (s *state) elide(b *batch) {
	total := 0
	var candidates []*part
	for _, c := range b.calls {
		c.makeParts()
		for i := range c.parts {
			x := &c.parts[i]
			x.shown = s.inFull(x)
			switch small := s.asPreview(x); {
			case small == 0:
			case x.p.letGo() || x.p.Ref != nil && small < x.shown:
				x.elided, x.shown = true, small
			case small < x.shown && !(c.done.Page && x.at == nil):
				candidates = append(candidates, x)
			}
			total += x.shown
		}
	}
	if total >= s.limits.LargeResultTokens {
		slices.SortStableFunc(candidates, func(x, y *part) int { return y.shown - x.shown })
		for _, x := range candidates {
			if x.shown < s.limits.LargeResultTokens && total < s.limits.BatchResultTokens {
				break
			}
			x.elided = true
			total -= x.shown
			x.shown = s.asPreview(x)
			total += x.shown
		}
	}
	for _, c := range b.calls {
		for i := range c.parts {
			if x := &c.parts[i]; x.shown > s.limits.HistoryResultTokens {
				s.large = append(s.large, x)
			}
		}
	}
}

// inFull is the estimated tokens of a part that is not elided.
func (s *state) inFull(x *part) int {
	head := utf8.RuneCount(s.appendHeader(nil, x))
	switch done := x.call.done; {
	case x.at != nil && done.Outcome != Succeeded:
		return estimate(head)
	case x.p.Binary:
		return estimate(head + utf8.RuneCount(appendBinary(nil, x)))
	case done.Outcome == Failed && !byPsych(done.Code):
		return estimate(head + min(int(x.p.Chars), maxFailureChars))
	}
	return estimate(head + int(x.p.Chars))
}

// asPreview is the estimated tokens of a part's preview, or 0 where it has
// none: a failure, what is binary, and where head and tail would show
// everything.
func (s *state) asPreview(x *part) int {
	head, tail := s.ends(x)
	if x.call.done.Outcome != Succeeded || x.p.Binary || x.p.Chars <= int64(head+tail) {
		return 0
	}
	around := s.appendGuide(s.appendLeftOut(s.appendHeader(nil, x), x), x)
	return estimate(head + tail + utf8.RuneCount(around))
}

// ends is how many characters a preview shows from each end. Of what was let
// go, there may be less than the Spec asks for.
func (s *state) ends(x *part) (head, tail int) {
	n := s.limits.PreviewChars
	if x.p.letGo() {
		return min(n, utf8.RuneCount(x.p.Ref.Head)), min(n, utf8.RuneCount(x.p.Ref.Tail))
	}
	return n, n
}

// appendAnswer appends what the model sees of a call: one text of all its
// parts, for which s.fetch has been called. Parts in trims are shown as if they
// were trimmed.
func (s *state) appendAnswer(b []byte, c *call, trims map[*part]bool) []byte {
	for i := range c.parts {
		x := &c.parts[i]
		b = s.appendHeader(b, x)
		switch done := c.done; {
		case x.at != nil && done.Outcome != Succeeded: // its handle is listed
		case x.trimmed || trims[x]:
			b = s.appendTrimmed(b, x)
		case x.elided:
			b = s.appendPreview(b, x)
		case x.p.Binary:
			b = appendBinary(b, x)
		case done.Outcome == Failed && !byPsych(done.Code):
			b = append(b, showNULs(firstChars(x.p.begin(), maxFailureChars))...)
		default:
			b = append(b, showNULs(x.p.begin())...)
		}
	}
	return b
}

// appendHeader appends the line that stands before an attachment.
func (s *state) appendHeader(b []byte, x *part) []byte {
	a := x.at
	if a == nil {
		return b
	}
	b = fmt.Appendf(b, "\n\n[attachment %q, %s, %d bytes, handle %q", a.Name, x.p.ContentType, x.p.Size, x.handle())
	if a.Truncated {
		b = append(b, ", cut"...)
		if a.Observed > 0 {
			b = fmt.Appendf(b, ": %d bytes were written", a.Observed)
		}
	}
	if x.p.letGo() {
		b = append(b, ", of which a preview alone was kept"...)
	}
	return append(b, "]\n"...)
}

func appendBinary(b []byte, x *part) []byte {
	return fmt.Appendf(b, "[%s, %d bytes, binary. It can't be shown as text; handle %q.]", x.p.ContentType, x.p.Size, x.handle())
}

func (s *state) appendPreview(b []byte, x *part) []byte {
	head, tail := x.p.Inline, x.p.Inline
	if x.p.Ref != nil {
		head, tail = x.p.Ref.Head, x.p.Ref.Tail
	}
	h, t := s.ends(x)
	b = s.appendLeftOut(append(b, showNULs(firstChars(head, h))...), x)
	return s.appendGuide(append(b, showNULs(lastChars(tail, t))...), x)
}

func (s *state) appendLeftOut(b []byte, x *part) []byte {
	head, tail := s.ends(x)
	return fmt.Appendf(b, s.rules.leftOut, x.p.Chars-int64(head+tail))
}

func (s *state) appendGuide(b []byte, x *part) []byte {
	b = fmt.Appendf(b, "\n[%s, %d characters, %d lines. ", x.p.ContentType, x.p.Chars, x.p.Lines)
	if x.p.letGo() {
		return append(b, "No more than this was kept.]"...)
	}
	return fmt.Appendf(b, "Read it with %s, handle %q.]", readToolOutputDef.Name, x.handle())
}

// appendTrimmed is what is left of a part of an earlier exchange: its preview,
// or for a page of a stored output what to read it again with.
func (s *state) appendTrimmed(b []byte, x *part) []byte {
	if name := x.call.asked.Name; name == readToolOutputDef.Name {
		args := wireArguments(x.call.asked.Arguments.Inline)
		if handle, q, err := parseReadArgs(args); len(args) > 500 && err == nil {
			args = fmt.Appendf(nil, `{"handle":%q,"offset":%d}`, handle, q.Offset)
		}
		return fmt.Appendf(b, "[The answer of %s was here. Read it again with %s]", name, args)
	}
	return s.appendPreview(b, x)
}

// fetch reads what is shown of parts that lie in the BlobStore and is not in
// the record: a preview's ends, or all of an attachment that is so short that
// a preview would show it whole.
func (s *state) fetch(ctx context.Context, c *call, blobs BlobStore) error {
	for i := range c.parts {
		x := &c.parts[i]
		if x.p.Ref == nil || x.p.letGo() || len(x.p.Ref.Head) > 0 || x.p.Binary || x.at != nil && c.done.Outcome != Succeeded {
			continue
		}
		limit := x.p.Size
		if x.elided || c.done.Outcome == Failed && !byPsych(c.done.Code) { // else all of it is shown
			limit = int64(max(s.limits.PreviewChars, maxFailureChars) * utf8.UTFMax)
		}
		head, err := x.p.read(ctx, blobs, s.run, 0, limit)
		if err != nil {
			return err
		}
		tail := head
		if limit < x.p.Size {
			if tail, err = x.p.read(ctx, blobs, s.run, x.p.Size-limit, limit); err != nil {
				return err
			}
		}
		x.p.Ref.Head, x.p.Ref.Tail = head, tail
	}
	return nil
}

// saving is by how many estimated tokens trimming makes a part smaller. The
// text of a skill is never trimmed.
func (s *state) saving(x *part) int {
	small := s.asPreview(x)
	switch {
	case x.trimmed || x.elided || x.call.done.Outcome != Succeeded || x.call.asked.Name == loadSkillName:
		return 0
	case x.call.asked.Name == readToolOutputDef.Name:
		small = estimate(utf8.RuneCount(s.appendTrimmed(nil, x)))
	case small == 0:
		return 0
	}
	return max(0, x.shown-small)
}

// trimHistory chooses what is trimmed as an exchange opens: parts of the
// exchanges before it that exceed the threshold of history, if that saves more
// than a minimum in all, and pays.
func (d *driver) trimHistory() []*part {
	s := d.state
	var trims []*part // in the order of the history
	saved := 0
	for _, x := range s.large {
		if x.call.turn <= s.turn && x.call.exchange < s.exchanges {
			if n := s.saving(x); n > 0 {
				trims = append(trims, x)
				saved += n
			}
		}
	}
	switch {
	case saved <= s.limits.HistoryMinSavingTokens:
		return nil
	case s.limits.HistoryMarginPercent == 0:
		return trims
	}
	return s.thatPay(trims, d.prompt, d.cacheState())
}

// thatPay are those of trims that lie behind the one point of the history from
// which trimming saves most, or none if it does not pay by the margin from
// any. What was sent from there on, b characters, would be read from the cache,
// at the price of reading; with n less it is written again, once, at that of
// writing; and then each later turn reads n less. So it costs
// write * (b - n) - read * b now, and saves turns * read * n. The later turns
// are assumed to be as many as the Run has had. Where the provider has nothing
// of the history any more, everything is written again in any case.
func (s *state) thatPay(trims []*part, p *prompt, c cacheState) []*part {
	if c.cold {
		return trims
	}
	best, most := len(trims), int64(0)
	b, n, saved := int64(0), int64(0), 0
	item := len(s.history)
	for i := len(trims) - 1; i >= 0; {
		at := s.batches[trims[i].call.turn-1].item
		for item > at { // what lies behind
			if item--; p.at[item] < s.wire.messages {
				b += s.chars(item, p)
			}
		}
		first, small := i, 0
		for ; first >= 0 && s.batches[trims[first].call.turn-1].item == at; first-- {
			small += s.saving(trims[first])
		}
		shown := 0
		for _, x := range s.history[at].results.calls {
			for j := range x.parts {
				shown += x.parts[j].shown
			}
		}
		i, saved = first, saved+small
		n += s.chars(at, p) * int64(small) / int64(shown) // as it stands on the wire
		if saved <= s.limits.HistoryMinSavingTokens {
			continue
		}
		cost, saves := c.write*(b-n)-c.read*b, c.turns*c.read*n
		if saves*100 >= cost*int64(100+s.limits.HistoryMarginPercent) && saves-cost > most {
			best, most = first+1, saves-cost
		}
	}
	return trims[best:]
}

// chars is how many characters a message of the history takes on the wire
// without the images in it, which no estimate of text fits.
func (s *state) chars(item int, p *prompt) int64 {
	wire, text := int64(p.history[p.at[item]].Chars), int64(0)
	switch it := &s.history[item]; {
	case it.user != nil:
		text = it.user.Text.Chars
		for i := range it.user.Attachments {
			text += it.user.Attachments[i].Output.Chars
		}
	case it.said != nil:
		return wire
	default:
		for _, x := range it.results.calls {
			for j := range x.parts {
				text += 4 * int64(x.parts[j].shown)
			}
		}
	}
	const envelope = 4000
	return min(wire, 2*text+envelope)
}

// trimContext chooses what is trimmed since the context is full: all of the
// turns before the last.
func (s *state) trimContext() []*part {
	var trims []*part
	for _, b := range s.batches {
		if b == nil || b.turn == s.lastBatchTurn() {
			continue
		}
		for _, c := range b.calls {
			for i := range c.parts {
				if x := &c.parts[i]; s.saving(x) > 0 {
					trims = append(trims, x)
				}
			}
		}
	}
	return trims
}

// lastBatchTurn is the turn whose results the next model call answers to, or 0
// if it answers to a message.
func (s *state) lastBatchTurn() int {
	if n := len(s.history); n > 0 && s.history[n-1].said == nil && s.history[n-1].results != nil {
		return s.history[n-1].results.turn
	}
	return 0
}

// byPsych reports whether the text of a failure is psych's own, which is
// bounded where it is made.
func byPsych(code string) bool {
	switch code {
	case CodeArguments, CodeUnknownTool, CodeNoBlobStore, CodeRefused, CodeUnreachable:
		return true
	}
	return false
}

// begin is p's first bytes, as far as they are at hand: of what was let go, all,
// if its ends hold all.
func (p *Payload) begin() []byte {
	if p.Ref == nil {
		return p.Inline
	}
	head, tail := p.Ref.Head, p.Ref.Tail
	if rest := int(p.Chars) - utf8.RuneCount(head); p.letGo() && rest > 0 && rest <= utf8.RuneCount(tail) {
		return slices.Concat(head, lastChars(tail, rest))
	}
	return head
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
