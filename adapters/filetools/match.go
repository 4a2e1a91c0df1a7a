package filetools

import (
	"errors"
	"regexp"
	"regexp/syntax"
)

// A matcher is a pattern for lines, and for pieces of lines.
type matcher struct {
	re     *regexp.Regexp
	prefix []byte // stands in every match
	pieces map[[2]bool]*regexp.Regexp
}

func newMatcher(pattern string) (*matcher, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	prefix, _ := re.LiteralPrefix()
	return &matcher{re: re, prefix: []byte(prefix), pieces: map[[2]bool]*regexp.Regexp{}}, nil
}

// piece is the pattern for a piece of a line: where that isn't the first or
// the last, ^ or $ can't match at its ends.
func (m *matcher) piece(first, last bool) *regexp.Regexp {
	if first && last {
		return m.re
	}
	ends := [2]bool{first, last}
	re := m.pieces[ends]
	if re == nil {
		tree, err := syntax.Parse(m.re.String(), syntax.Perl)
		if err == nil {
			forbid(tree, !first, !last)
			re, err = regexp.Compile(tree.String())
		}
		if err != nil {
			re = m.re // can't be: it compiled, and this only takes something away
		}
		m.pieces[ends] = re
	}
	return re
}

func forbid(t *syntax.Regexp, begin, end bool) {
	switch t.Op {
	case syntax.OpBeginLine, syntax.OpBeginText:
		if begin {
			t.Op = syntax.OpNoMatch
		}
	case syntax.OpEndLine, syntax.OpEndText:
		if end {
			t.Op = syntax.OpNoMatch
		}
	}
	for _, sub := range t.Sub {
		forbid(sub, begin, end)
	}
}

// patternProblem says what is wrong with a pattern, in a few words.
func patternProblem(err error) string {
	var e *syntax.Error
	if errors.As(err, &e) {
		return string(e.Code) + " at " + named(e.Expr)
	}
	return err.Error()
}
