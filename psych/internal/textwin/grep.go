package textwin

import (
	"bytes"
	"context"
	"fmt"
	"unicode/utf8"
)

// Grep shows limit occurrences of p from occurrence offset on, and counts all;
// limit 0, or one that is more than a page holds, is a page. A line is shown
// once for all of its occurrences in the window, behind its number (from 1)
// and ": ". Of a line over [LineChars], what is around each occurrence is
// shown instead, joined where that overlaps, behind the offset in characters
// at which it begins.
//
// The text streams through a buffer of 256 KiB. A line that fits is searched
// whole. In a longer one every occurrence of a pattern that matches no more
// than 32 KiB is found; a longer occurrence may be missed, or found as several.
func (t *Text) Grep(ctx context.Context, p *Pattern, offset, limit int64) (*Window, error) {
	limit, err := t.check(offset, limit)
	if err != nil || t.Size == 0 {
		return &Window{}, err
	}
	r, err := t.Open(ctx, 0, t.Size)
	if err != nil {
		return nil, err
	}
	c := &cursor{ctx: ctx, r: r, left: t.Size}
	defer c.close()
	b := t.bounds()
	g := &grep{
		bounds: b, p: p, offset: offset, limit: limit,
		buf: make([]byte, min(int64(b.buffer), t.Size)),
	}
	for {
		err := g.fill(c)
		if err != nil {
			return nil, err
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
	w := &Window{Text: g.out, Cut: g.cut, Matches: g.matches}
	if next := offset + g.shown; next < g.matches {
		w.Next, w.More = next, true
	}
	return w, nil
}

// A grep is one search.
type grep struct {
	*bounds
	p             *Pattern
	offset, limit int64

	// The buffer holds n bytes from the begin of a line, or a part of long.
	buf   []byte
	n     int
	atEnd bool // the text ends where the bytes do
	long  *longLine

	line    int64 // before the bytes
	chars   int64 // before the bytes
	matches int64

	out   []byte
	used  int64 // characters of out
	shown int64 // matches
	full  bool
	cut   bool
}

// A longLine is one that the buffer can't hold.
type longLine struct {
	scan
	view  view
	begun bool // the buffer no longer holds where it begins
}

// fill reads until the buffer is full or the text ends.
func (g *grep) fill(c *cursor) error {
	for g.n < len(g.buf) && !g.atEnd {
		n, err := c.read(g.buf[g.n:])
		if err != nil {
			return err
		}
		g.n += n
		g.atEnd = c.left == 0
	}
	return nil
}

// drop removes what has been dealt with, and counts it.
func (g *grep) drop(n int) {
	if !g.done() {
		g.chars += starts(g.buf[:n])
	}
	g.n = copy(g.buf, g.buf[n:g.n])
}

// done reports whether nothing more is going to be shown, so that places need
// no longer be known.
func (g *grep) done() bool { return g.full || g.shown == g.limit }

// lines searches the whole lines of the buffer.
func (g *grep) lines() {
	end := g.n
	if !g.atEnd {
		end = bytes.LastIndexByte(g.buf[:g.n], '\n') + 1
	}
	if end == 0 && g.n > 0 {
		g.long = &longLine{scan: scan{last: -1}}
		return
	}
	b := g.buf[:end]
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
		if !g.done() {
			g.line += int64(bytes.Count(b[counted:from], newline))
			before += starts(b[counted:from])
			counted = from
		}
		text := b[from:to]
		if next > to {
			text = bytes.TrimSuffix(text, []byte{'\r'})
		}
		s := scan{last: -1}
		v := view{whole: int64(len(text)) <= g.bounds.line || starts(text) <= g.bounds.line}
		for {
			from, to, ok := s.next(g.p, text, len(text)+1, true)
			if !ok {
				break
			}
			g.match(&v, text, from, to, before, true)
		}
		g.endView(&v)
		at = next
	}
	g.line += int64(bytes.Count(b[counted:], newline))
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
	for {
		from, to, ok := l.next(g.p, b, limit, !l.begun)
		if !ok {
			break
		}
		g.match(&l.view, b, from, to, g.chars, ends)
	}
	if ends {
		g.endView(&l.view)
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
	whole bool // the line is shown whole
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
		if !v.open && !g.show(fmt.Appendf(nil, "%d: ", g.line+1), b, 1) {
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
			if !g.show(nil, b[v.to:right], 2) {
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
		if !g.show(head, b[left:right], 2) {
			return
		}
		*v = view{open: true, to: right, more: right < len(b) || !ends}
	}
	g.shown++
	g.cut = g.cut || end < to && v.to < to
}

// show adds text if it fits with what closes it.
func (g *grep) show(head, text []byte, closing int64) bool {
	n := int64(utf8.RuneCount(head)) + starts(text)
	if g.used+n+closing > g.page {
		g.full = true
		return false
	}
	g.out = append(append(g.out, head...), text...)
	g.used += n
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
