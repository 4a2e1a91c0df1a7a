package textwin

import (
	"bytes"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

// Bounds of a pattern. Matching costs at most its program's length a byte.
const (
	maxPattern = 1000 // bytes
	maxProgram = 2500 // instructions
)

// A Pattern is an RE2 expression that is matched against one line at a time,
// without its line feed or the carriage return before it: ^ and $ are the ends
// of a line, and nothing matches across lines.
type Pattern struct {
	re *regexp.Regexp // nil if the pattern is its needle

	// behind is re for a place inside a line, of an input that begins with the
	// character before that place; group 1 is the match. It is nil if no match
	// depends on that character.
	behind *regexp.Regexp

	// Lines to look at are found in many lines at once, by one of these, which
	// may find too many: the longest literal that each match holds, or the
	// pattern kept from crossing lines.
	needle literal
	sieve  *regexp.Regexp
}

// Compile parses expr. An error matches ErrArgument and is fit to be shown to
// whom the pattern came from.
func Compile(expr string) (*Pattern, error) { return compile(expr, syntax.Perl) }

// CompileFold is [Compile] of a pattern that ignores case, of all letters.
func CompileFold(expr string) (*Pattern, error) { return compile(expr, syntax.Perl|syntax.FoldCase) }

func compile(expr string, flags syntax.Flags) (*Pattern, error) {
	if len(expr) > maxPattern {
		return nil, fmt.Errorf("%w: the pattern has %d bytes, over %d: shorten it", ErrArgument, len(expr), maxPattern)
	}
	tree, err := syntax.Parse(expr, flags)
	if err != nil {
		return nil, fmt.Errorf("%w: %w: want RE2 syntax, with a backslash before a literal one of \\.+*?()|[]{}^$", ErrArgument, err)
	}
	if instructions(tree) > maxProgram {
		return nil, fmt.Errorf("%w: the pattern repeats too much: use smaller bounds, or * and +", ErrArgument)
	}
	if flags&syntax.FoldCase != 0 {
		expr = "(?i)" + expr
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrArgument, err)
	}
	if lit, all := re.LiteralPrefix(); all && lit != "" {
		return &Pattern{needle: newLiteral([]byte(lit))}, nil
	}
	p := &Pattern{re: re}
	if looksBehind(tree) {
		p.behind, err = regexp.Compile(`\A(?s:.)(?s:.*?)(` + uncapture(tree).String() + `)`)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrArgument, err)
		}
	}
	if p.needle = newLiteral(needle(tree)); p.needle.b == nil {
		// An expression that can't be rewritten costs time alone: then every
		// line is looked at.
		p.sieve, _ = regexp.Compile(withinLine(tree).String())
	}
	return p, nil
}

// instructions estimates the length of re's program, before it is made.
func instructions(re *syntax.Regexp) int {
	n := 1
	if re.Op == syntax.OpLiteral {
		n = len(re.Rune)
	}
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min+1, re.Max)
	}
	return n
}

// looksBehind reports whether re asks what stands before a place.
func looksBehind(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpBeginLine, syntax.OpBeginText, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return true
	}
	for _, sub := range re.Sub {
		if looksBehind(sub) {
			return true
		}
	}
	return false
}

// uncapture drops the groups of re.
func uncapture(re *syntax.Regexp) *syntax.Regexp {
	for i, sub := range re.Sub {
		re.Sub[i] = uncapture(sub)
	}
	if re.Op == syntax.OpCapture {
		return re.Sub[0]
	}
	return re
}

// needle returns the longest literal that every match of re holds, nil if
// there is none.
func needle(re *syntax.Regexp) []byte {
	var best []byte
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase == 0 {
			return []byte(string(re.Rune))
		}
	case syntax.OpConcat, syntax.OpCapture, syntax.OpPlus:
		for _, sub := range re.Sub {
			if n := needle(sub); len(n) > len(best) {
				best = n
			}
		}
	case syntax.OpRepeat:
		if re.Min > 0 {
			return needle(re.Sub[0])
		}
	}
	return best
}

// withinLine changes re, for many lines at once, so that it matches nothing
// across lines and something in each line that it matched alone. Its matches
// need not be the same.
func withinLine(re *syntax.Regexp) *syntax.Regexp {
	for i, sub := range re.Sub {
		re.Sub[i] = withinLine(sub)
	}
	switch re.Op {
	case syntax.OpCapture:
		return re.Sub[0]
	case syntax.OpLiteral:
		if strings.ContainsRune(string(re.Rune), '\n') {
			return &syntax.Regexp{Op: syntax.OpNoMatch}
		}
	case syntax.OpCharClass:
		var keep []rune
		for i := 0; i < len(re.Rune); i += 2 {
			lo, hi := re.Rune[i], re.Rune[i+1]
			if lo > '\n' || hi < '\n' {
				keep = append(keep, lo, hi)
				continue
			}
			if lo < '\n' {
				keep = append(keep, lo, '\n'-1)
			}
			if hi > '\n' {
				keep = append(keep, '\n'+1, hi)
			}
		}
		if len(keep) == 0 {
			return &syntax.Regexp{Op: syntax.OpNoMatch}
		}
		re.Rune = keep
	case syntax.OpAnyChar:
		re.Op = syntax.OpAnyCharNotNL
	case syntax.OpBeginText:
		re.Op = syntax.OpBeginLine
	case syntax.OpEndText, syntax.OpEndLine:
		return lineEnding
	}
	return re
}

// lineEnding is the end of a line, before or behind a carriage return.
var lineEnding = &syntax.Regexp{Op: syntax.OpConcat, Sub: []*syntax.Regexp{
	{Op: syntax.OpQuest, Sub: []*syntax.Regexp{{Op: syntax.OpLiteral, Rune: []rune{'\r'}}}},
	{Op: syntax.OpEndLine},
}}

// candidate returns a place in a line of b that may have a match, such that no
// line before it has one; -1 if there is none. b begins where a line does.
func (p *Pattern) candidate(b []byte) int {
	if p.needle.b != nil {
		return p.needle.index(b)
	}
	if p.sieve == nil {
		return 0
	}
	if m := p.sieve.FindIndex(b); m != nil {
		return m[0]
	}
	return -1
}

// next returns the first match in b that begins at pos or later, or -1. Where
// b begins inside a line, the caller has pos > 0.
func (p *Pattern) next(b []byte, pos int, lineStart bool) (from, to int) {
	switch {
	case p.re == nil:
		if i := p.needle.index(b[pos:]); i >= 0 {
			return pos + i, pos + i + len(p.needle.b)
		}
	case p.needle.b != nil && p.needle.index(b[pos:]) < 0:
	case p.behind == nil || pos == 0 && lineStart:
		if m := p.re.FindIndex(b[pos:]); m != nil {
			return pos + m[0], pos + m[1]
		}
	default:
		before := back(b, pos, 1)
		if m := p.behind.FindSubmatchIndex(b[before:]); m != nil {
			return before + m[2], before + m[3]
		}
	}
	return -1, -1
}

// A scan goes through the matches of a line, or of a part of one, as
// regexp.FindAll does: without overlaps, and without an empty match right
// behind another one.
type scan struct {
	pos  int // where to look on; behind the end: nowhere
	last int // the end of the last match, -1 before the first
}

// next returns the next match that begins before limit. Without one, no match
// begins between pos and limit.
func (s *scan) next(p *Pattern, b []byte, limit int, lineStart bool) (from, to int, ok bool) {
	for s.pos < limit {
		from, to := p.next(b, s.pos, lineStart)
		if from < 0 || from >= limit {
			return 0, 0, false
		}
		again := from == to && from == s.last
		s.last = to
		s.pos = to
		if from == to {
			_, n := utf8.DecodeRune(b[to:])
			s.pos += max(n, 1)
		}
		if !again {
			return from, to, true
		}
	}
	return 0, 0, false
}

// A literal is searched by its rarest byte.
type literal struct {
	b    []byte
	rare int
}

// common are bytes of texts, the most frequent ones first.
const common = " etaoinsrhldcumfpgwybvk\n0123456789-_.,:;/\"'=()[]{}ETAOINSRHLDCUMFPGWYBVK"

func newLiteral(b []byte) literal {
	l := literal{b: b}
	best := -1
	for i, c := range b {
		rank := bytes.IndexByte([]byte(common), c)
		switch {
		case c >= 0xC0:
			rank = 0 // each letter of a script begins with one of a few
		case c >= 0x80:
			rank = 10
		case rank < 0:
			rank = len(common)
		}
		if rank > best {
			best, l.rare = rank, i
		}
	}
	return l
}

// index is bytes.Index.
func (l *literal) index(b []byte) int {
	i := l.rare
	for misses := 0; i < len(b); misses++ {
		if misses > 8+i/32 { // it is not rare here
			if k := bytes.Index(b[i-l.rare:], l.b); k >= 0 {
				return i - l.rare + k
			}
			return -1
		}
		k := bytes.IndexByte(b[i:], l.b[l.rare])
		if k < 0 {
			return -1
		}
		i += k
		if bytes.HasPrefix(b[i-l.rare:], l.b) {
			return i - l.rare
		}
		i++
	}
	return -1
}
