package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"github.com/psych-go/psych-go/psych"
)

// A table is one whose columns but the first and the last are numbers.
type table struct {
	w    io.Writer
	rows [][]string
}

func newTable(w io.Writer, head ...string) *table { return &table{w, [][]string{head}} }

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) end() {
	widths := make([]int, len(t.rows[0]))
	for _, r := range t.rows {
		for i, c := range r {
			widths[i] = max(widths[i], columns(c))
		}
	}
	for _, r := range t.rows {
		var b strings.Builder
		for i, c := range r {
			pad := strings.Repeat(" ", widths[i]-columns(c))
			switch {
			case i == 0:
				b.WriteString(c + pad)
			case i == len(r)-1:
				b.WriteString("  " + c)
			default:
				b.WriteString("  " + pad + c)
			}
		}
		fmt.Fprintln(t.w, strings.TrimRight(b.String(), " "))
	}
}

func has(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// count is a number of things, by the words for one and, where that is not with
// an s, for more.
func count(n int, one string, more ...string) string {
	switch {
	case n == 1:
		return "1 " + one
	case len(more) > 0:
		return thousands(n) + " " + more[0]
	}
	return thousands(n) + " " + one + "s"
}

// thousands is n with a comma between each three digits.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// wide are the characters that take two columns of a terminal, by and large.
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{{Lo: 0x1100, Hi: 0x115f, Stride: 1}, {Lo: 0x2e80, Hi: 0xa4cf, Stride: 1}, {Lo: 0xac00, Hi: 0xd7a3, Stride: 1}, {Lo: 0xf900, Hi: 0xfaff, Stride: 1}, {Lo: 0xfe30, Hi: 0xfe6f, Stride: 1}, {Lo: 0xff00, Hi: 0xff60, Stride: 1}, {Lo: 0xffe0, Hi: 0xffe6, Stride: 1}},
	R32: []unicode.Range32{{Lo: 0x1f300, Hi: 0x1faff, Stride: 1}, {Lo: 0x20000, Hi: 0x3fffd, Stride: 1}},
}

// columns is how many columns of a terminal s takes.
func columns(s string) (n int) {
	for _, r := range s {
		n += 1 + has(unicode.Is(wide, r))
	}
	return n
}

// clip is s on one line that can't drive a terminal, in at most n columns.
func clip(s string, n int) string {
	s = strings.TrimRight(strings.NewReplacer("\n", " ", "\t", " ").Replace(psych.Printable(s)), " ")
	if columns(s) <= n {
		return s
	}
	n-- // for the …
	for i, r := range s {
		if n -= 1 + has(unicode.Is(wide, r)); n < 0 {
			return s[:i] + "…"
		}
	}
	return s
}

// pad fills s up with spaces to n columns.
func pad(s string, n int) string { return s + strings.Repeat(" ", max(n-columns(s), 0)) }

// wrap breaks s at spaces into lines within 100 columns. The first begins at a
// column, the others are indented.
func wrap(s string, at, indent int) string {
	var b strings.Builder
	line := at
	for i, word := range strings.Fields(s) {
		w := columns(word)
		switch {
		case i == 0:
		case line+1+w > 100:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			line = indent
		default:
			b.WriteByte(' ')
			line++
		}
		b.WriteString(word)
		line += w
	}
	return b.String() + "\n"
}
