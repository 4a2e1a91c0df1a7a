package textwin

import (
	"bytes"
	"fmt"
	"slices"
)

// contexts are the lines that a search shows around those with a match.
type contexts struct {
	context int // lines on each side
	after   int // lines to be shown yet, behind the last one that was

	// In the buffer, lines are dealt with up to printed, the begin of line
	// printedLine. Where nothing of the buffer is, lines before it that were
	// not shown are in earlier, ready to be.
	printed     int
	printedLine int64
	earlier     [][]byte
}

// contextRoom bounds the characters of a line of context: its text, its
// number, and the note that it is cut.
func (b *bounds) contextRoom() int64 { return b.aside + 120 }

// contextLine is the line that b begins with as it stands around a match.
func (g *grep) contextLine(b []byte, line, before int64) []byte {
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		b = bytes.TrimSuffix(b[:i], []byte{'\r'})
	}
	out := fmt.Appendf(nil, "%d- ", line+1)
	i, k := nthStart(b, g.aside)
	out = append(out, b[:i]...)
	if i < len(b) {
		out = append(out, cutNote(before+k)...)
	}
	return append(out, '\n')
}

// follow shows the lines of b before to that stand behind a match.
func (g *grep) follow(b []byte, to int) {
	for g.after > 0 && g.printed < to {
		g.print(g.contextLine(b[g.printed:], g.printedLine, g.chars+starts(b[:g.printed])))
		if i := bytes.IndexByte(b[g.printed:], '\n'); i >= 0 {
			g.printed += i + 1
		} else {
			g.printed = len(b)
		}
		g.printedLine++
	}
}

// print shows a line of context, whose room was kept.
func (g *grep) print(line []byte) {
	g.out = append(g.out, line...)
	g.used += starts(line)
	g.after--
	g.earlier = nil
}

// preceding are the lines before the one that begins at at, which are not
// shown yet.
func (g *grep) preceding(at int) [][]byte {
	if g.context == 0 {
		return nil
	}
	if g.long != nil {
		return g.earlier
	}
	return g.before(g.buf, at, g.line)
}

// remember keeps what may stand before a match behind b, all lines of which
// have been dealt with.
func (g *grep) remember(b []byte) {
	if g.context == 0 || g.done() {
		return
	}
	end := g.line
	if len(b) > 0 && b[len(b)-1] != '\n' {
		end++ // the last line of the text
	}
	g.earlier = g.before(b, len(b), end)
}

// before are the last lines of b before at, which is the begin of line line,
// that are not shown.
func (g *grep) before(b []byte, at int, line int64) [][]byte {
	var lines [][]byte
	for len(lines) < g.context && at > g.printed {
		at = bytes.LastIndexByte(b[:at-1], '\n') + 1
		line--
		lines = append(lines, g.contextLine(b[at:], line, g.chars+starts(b[:at])))
	}
	slices.Reverse(lines)
	if g.printed == 0 {
		more := min(len(g.earlier), g.context-len(lines))
		lines = append(slices.Clone(g.earlier[len(g.earlier)-more:]), lines...)
	}
	return lines
}

// endLong deals with a long line as context, once it is known whether a match
// in it is shown.
func (g *grep) endLong(l *longLine) {
	switch {
	case g.context == 0:
	case l.shown:
		g.after, g.earlier = g.context, nil
	case l.head == nil: // searched from its middle on
		g.after, g.earlier = 0, nil
	case g.after > 0:
		g.print(l.head)
	case !g.done():
		g.earlier = append(g.earlier, l.head)
		g.earlier = g.earlier[max(0, len(g.earlier)-g.context):]
	}
}
