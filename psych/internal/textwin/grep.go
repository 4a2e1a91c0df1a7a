package textwin

import (
	"bytes"
	"context"
	"fmt"
	"unicode/utf8"
)

// MaxContext bounds Search.Context.
const MaxContext = 10

// A Search says which occurrences of a pattern are shown, and with what.
type Search struct {
	// Offset and Limit count occurrences from From on. Limit 0, or one that is
	// more than a page holds, is a page.
	Offset, Limit int64

	// From is the character at which the search begins.
	From int64

	// Context is how many lines are shown before and behind each line with an
	// occurrence, up to MaxContext.
	Context int64
}

// Grep shows occurrences of p. A line is shown once for all of its occurrences
// in the window, behind its number (from 1) and ": ". Of a line over
// [LineChars], what is around each occurrence is shown instead, joined where
// that overlaps, behind the offset in characters at which it begins. Lines of
// context stand behind their number and "- ", cut at 400 characters.
//
// The text streams through a buffer of 256 KiB. A line that fits is searched
// whole. In a longer one every occurrence of a pattern that matches no more
// than 32 KiB is found; a longer occurrence may be missed, or found as several.
//
// A search stops after [ScanBytes], or little more, and after a quarter of that
// where the pattern has no literal to look for (case that is ignored has none):
// where occurrences were found
// that are not shown it goes on among them, at Next and the same From; else at
// the Next and From of the window, which are a function of the text and q.
// Where it stops in the middle of a line that the buffer can't hold, it goes
// on there, and nothing else is different. Context does not reach over such a
// place.
func (t *Text) Grep(ctx context.Context, p *Pattern, q Search) (*Window, error) {
	limit, err := t.check(q.Offset, q.Limit)
	if err != nil {
		return nil, err
	}
	if q.From < 0 {
		return nil, fmt.Errorf("%w: a search from character %d", ErrArgument, q.From)
	}
	if q.Context < 0 || q.Context > MaxContext {
		return nil, fmt.Errorf("%w: %d lines of context: want 0 to %d", ErrArgument, q.Context, MaxContext)
	}
	if q.From >= t.Chars {
		return &Window{Counted: q.From == 0}, nil
	}
	b := t.bounds()
	scan := b.scan
	if t.Scan > 0 {
		scan = t.Scan
	}
	if p.needle.b == nil {
		scan /= 4 // each byte goes through the expression
	}
	scan = max(scan, 2*int64(b.buffer))
	marks := t.marks()
	start, to := marks[0], t.Size
	for _, m := range marks {
		// The text before From is shown with an occurrence there.
		if m.chars <= q.From-b.around-1 {
			start = m
		}
		if m.chars >= q.From {
			to = min(to, m.at+scan)
			break
		}
	}
	r, err := t.Open(ctx, start.at, to-start.at)
	if err != nil {
		return nil, err
	}
	c := &cursor{ctx: ctx, r: r, left: to - start.at}
	defer c.close()
	g := &grep{
		bounds: b, p: p, offset: q.Offset, limit: limit,
		contexts: contexts{context: int(q.Context)},
		buf:      make([]byte, min(int64(b.buffer), to-start.at)),
		last:     to == t.Size,
		line:     start.lines, chars: start.chars,
	}
	if err := g.seek(c, q.From-start.chars); err != nil {
		return nil, err
	}
	stopped := false
	for {
		if err := g.fill(c); err != nil {
			return nil, err
		}
		// What is left then is for the search that goes on: it may be a part of
		// a line.
		if stopped = c.left == 0 && !g.last && g.n < len(g.buf); stopped {
			break
		}
		if g.long == nil {
			g.lines()
		}
		if g.long != nil {
			g.part()
		}
		if g.atEnd && g.n == 0 {
			break
		}
	}
	from := g.chars
	if g.long != nil {
		g.endView(&g.long.view)
		from += starts(g.buf[:g.long.pos])
	}
	w := &Window{Text: g.out, Cut: g.cut, Matches: g.matches, Counted: q.From == 0 && !stopped}
	if next := q.Offset + g.shown; next < g.matches {
		w.Next, w.From, w.More = next, q.From, true
	} else if stopped {
		w.Next, w.From, w.More = max(0, q.Offset-g.matches), from, true
	}
	return w, nil
}

// A grep is one search.
type grep struct {
	*bounds
	p             *Pattern
	offset, limit int64
	last          bool // the range ends where the text does

	// The buffer holds n bytes from the begin of a line, or a part of long.
	buf   []byte
	n     int
	atEnd bool // the text ends where the bytes do
	long  *longLine

	line    int64 // before the bytes
	chars   int64 // before the bytes
	matches int64

	contexts

	out   []byte
	used  int64 // characters of out
	shown int64 // matches
	full  bool
	cut   bool
}

// A longLine is one that the buffer can't hold, or that is searched from its
// middle on.
type longLine struct {
	scan
	view  view
	begun bool   // the buffer no longer holds where it begins
	head  []byte // the line as context
	shown bool   // an occurrence in it is
}

// fill reads until the buffer is full or the range ends.
func (g *grep) fill(c *cursor) error {
	for g.n < len(g.buf) && c.left > 0 {
		n, err := c.read(g.buf[g.n:])
		if err != nil {
			return err
		}
		g.n += n
	}
	g.atEnd = c.left == 0 && g.last
	return nil
}

// seek goes to the n-th character from here, counted from 0.
func (g *grep) seek(c *cursor, n int64) error {
	if n == 0 && g.chars == 0 {
		return nil
	}
	pass := func(i int) {
		g.line += int64(bytes.Count(g.buf[:i], newline))
		k := starts(g.buf[:i])
		g.chars += k
		n -= k
		g.n = copy(g.buf, g.buf[i:g.n])
	}
	for {
		if err := g.fill(c); err != nil {
			return err
		}
		at, _ := nthStart(g.buf[:g.n], n)
		if at == g.n {
			if c.left == 0 {
				return ErrChanged
			}
			pass(back(g.buf, g.n, g.around+1))
			continue
		}
		if at == 0 || g.buf[at-1] == '\n' {
			pass(at)
			return nil
		}
		from := max(bytes.LastIndexByte(g.buf[:at], '\n')+1, back(g.buf, at, g.around+1))
		pass(from)
		g.long = &longLine{scan: scan{pos: at - from, last: -1}, begun: true}
		return nil
	}
}

// drop removes what has been dealt with, and counts it.
func (g *grep) drop(n int) {
	if !g.idle() || !g.last {
		g.chars += starts(g.buf[:n])
	}
	g.n = copy(g.buf, g.buf[n:g.n])
}

// done reports whether no further match is going to be shown.
func (g *grep) done() bool { return g.full || g.shown == g.limit }

// idle reports whether nothing more is going to be shown, so that places need
// no longer be known.
func (g *grep) idle() bool {
	return g.done() && g.after == 0 && (g.context == 0 || g.long == nil)
}

// lines searches the whole lines of the buffer.
func (g *grep) lines() {
	end := g.n
	if !g.atEnd {
		end = bytes.LastIndexByte(g.buf[:g.n], '\n') + 1
	}
	if end == 0 && g.n > 0 {
		g.long = &longLine{scan: scan{last: -1}}
		if g.context > 0 && !g.idle() {
			g.long.head = g.contextLine(g.buf[:whole(g.buf[:g.n])], g.line, g.chars)
		}
		return
	}
	b := g.buf[:end]
	g.printed, g.printedLine = 0, g.line
	at := 0       // the begin of a line, up to which lines are searched
	counted := at // up to which they are counted
	before := g.chars
	for at < end {
		i := g.p.candidate(b[at:])
		if i < 0 || at+i == end && b[end-1] == '\n' {
			break // what follows the last line feed is no line
		}
		from := at + bytes.LastIndexByte(b[at:at+i], '\n') + 1
		to, next := end, end
		if k := bytes.IndexByte(b[at+i:], '\n'); k >= 0 {
			to, next = at+i+k, at+i+k+1
		}
		if !g.idle() {
			g.line += int64(bytes.Count(b[counted:from], newline))
			before += starts(b[counted:from])
			counted = from
		}
		g.follow(b, from)
		text := b[from:to]
		if next > to {
			text = bytes.TrimSuffix(text, []byte{'\r'})
		}
		s := scan{last: -1}
		v := view{at: from, whole: int64(len(text)) <= g.bounds.line || starts(text) <= g.bounds.line}
		shown := g.shown
		for {
			from, to, ok := s.next(g.p, text, len(text)+1, true)
			if !ok {
				break
			}
			g.match(&v, text, from, to, before, true)
		}
		g.endView(&v)
		if g.shown > shown {
			g.printed, g.printedLine, g.after = next, g.line+1, g.context
		}
		at = next
	}
	g.follow(b, end)
	g.line += int64(bytes.Count(b[counted:], newline))
	g.remember(b)
	g.drop(end)
}

// part searches what the buffer holds of a long line.
func (g *grep) part() {
	l := g.long
	b, ends := g.buf[:g.n], g.atEnd
	drop := g.n
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		b, ends, drop = bytes.TrimSuffix(b[:i], []byte{'\r'}), true, i+1
	}
	limit := len(b) + 1
	if !ends {
		// What begins behind limit may end behind the buffer.
		b = b[:whole(b)]
		limit = max(l.pos, len(b)-g.overlap)
		for limit < len(b) && !utf8.RuneStart(b[limit]) {
			limit--
		}
	}
	shown := g.shown
	for {
		from, to, ok := l.next(g.p, b, limit, !l.begun)
		if !ok {
			break
		}
		g.match(&l.view, b, from, to, g.chars, ends)
	}
	l.shown = l.shown || g.shown > shown
	if ends {
		g.endView(&l.view)
		g.endLong(l)
		g.long = nil
		g.drop(drop)
		g.line++
		return
	}
	l.pos = max(l.pos, limit)
	// What is before the next match may be shown with it, and the pattern may
	// look at one character of it.
	drop = back(b, l.pos, g.around+1)
	g.drop(drop)
	l.pos -= drop
	l.last -= drop
	l.view.to -= drop
	l.begun = l.begun || drop > 0
}

// A view is what has been shown of a line.
type view struct {
	at    int  // where the line begins in the buffer; 0 in a part of a long one
	whole bool // the line is shown whole
	begun bool // something was shown
	open  bool // something is shown, up to
	to    int
	more  bool // the line goes on there
}

// match counts an occurrence in b, and shows it if it is in the window. b is a
// line or a part of one, with before characters before it; ends says that the
// line ends where b does.
func (g *grep) match(v *view, b []byte, from, to int, before int64, ends bool) {
	n := g.matches
	g.matches++
	if n < g.offset || g.done() {
		return
	}
	if v.whole {
		if !v.open && !g.show(v, fmt.Appendf(nil, "%d: ", g.line+1), b, 1) {
			return
		}
		v.open = true
		g.shown++
		return
	}
	end := to
	if i, _ := nthStart(b[from:to], g.bounds.match); from+i < to {
		end = from + i
	}
	i, _ := nthStart(b[end:], g.around)
	right := end + i
	left := back(b, from, g.around)
	if v.open && left <= v.to {
		if right > v.to {
			if !g.show(v, nil, b[v.to:right], 2) {
				return
			}
			v.to, v.more = right, right < len(b) || !ends
		}
	} else {
		g.endView(v)
		head := fmt.Appendf(nil, "%d: [character %d] ", g.line+1, before+starts(b[:left]))
		if left > 0 {
			head = append(head, "…"...)
		}
		if !g.show(v, head, b[left:right], 2) {
			return
		}
		v.open, v.to, v.more = true, right, right < len(b) || !ends
	}
	g.shown++
	g.cut = g.cut || end < to && v.to < to
}

// show adds text, behind the context of the line if it is the first of it, if
// it fits with what closes it and with the context behind it.
func (g *grep) show(v *view, head, text []byte, closing int64) bool {
	var context [][]byte
	if !v.begun {
		context = g.preceding(v.at)
	}
	n := int64(utf8.RuneCount(head)) + starts(text)
	for _, line := range context {
		n += starts(line)
	}
	if g.used+n+closing+int64(g.context)*g.contextRoom() > g.page {
		g.full = true
		return false
	}
	for _, line := range context {
		g.out = append(g.out, line...)
	}
	g.out = append(append(g.out, head...), text...)
	g.used += n
	v.begun = true
	return true
}

// endView ends what is shown of a line.
func (g *grep) endView(v *view) {
	if !v.open {
		return
	}
	if v.more {
		g.out = append(g.out, "…"...)
		g.used++
	}
	g.out = append(g.out, '\n')
	g.used++
	v.open = false
}
