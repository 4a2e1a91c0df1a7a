package filetools

import (
	"errors"
	"path"
	"regexp"
	"strings"
)

// A glob matches slash-separated paths; nil matches all.
type glob struct {
	re       *regexp.Regexp
	baseOnly bool
}

func (g *glob) match(rel string) bool {
	if g == nil {
		return true
	}
	if g.baseOnly {
		rel = path.Base(rel)
	}
	return g.re.MatchString(rel)
}

// compileGlob understands *, ?, [a-z], [!a-z], {a,b}, a backslash before what
// stands for itself, and ** as a whole segment for any number of directories.
// A pattern without a slash is for base names.
func compileGlob(pattern string) (*glob, error) {
	if pattern == "" {
		return nil, nil
	}
	g := &glob{baseOnly: !strings.Contains(pattern, "/")}
	p := []rune(strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(pattern, "./"), "/"), "/"))
	var re strings.Builder
	re.WriteString(`(?s)\A(?:`)
	depth := 0
	for i := 0; i < len(p); i++ {
		switch c := p[i]; c {
		case '*':
			from := i
			for i+1 < len(p) && p[i+1] == '*' {
				i++
			}
			whole := i > from && (from == 0 || p[from-1] == '/')
			switch {
			case whole && i+1 == len(p):
				re.WriteString(`.*`)
			case whole && p[i+1] == '/':
				re.WriteString(`(?:.*/)?`)
				i++
			default:
				re.WriteString(`[^/]*`)
			}
		case '?':
			re.WriteString(`[^/]`)
		case '[':
			n, err := writeClass(&re, p[i+1:])
			if err != nil {
				return nil, err
			}
			i += n
		case '{':
			depth++
			re.WriteString(`(?:`)
		case '}':
			if depth--; depth < 0 {
				return nil, errors.New("a } has no {")
			}
			re.WriteString(`)`)
		case ',':
			if depth > 0 {
				re.WriteString(`|`)
			} else {
				re.WriteString(`,`)
			}
		case '\\':
			if i++; i == len(p) {
				return nil, errors.New(`a \ stands at its end`)
			}
			re.WriteString(regexp.QuoteMeta(string(p[i])))
		default:
			re.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	if depth > 0 {
		return nil, errors.New("a { has no }")
	}
	re.WriteString(`)\z`)
	var err error
	if g.re, err = regexp.Compile(re.String()); err != nil {
		return nil, errors.New("a range in [] is the wrong way round, or it is too long")
	}
	return g, nil
}

// writeClass writes the class whose inside p begins with, and returns how much
// of p it is, the ] included.
func writeClass(re *strings.Builder, p []rune) (int, error) {
	i := 0
	re.WriteByte('[')
	if i < len(p) && (p[i] == '!' || p[i] == '^') {
		re.WriteString(`^/`)
		i++
	}
	for first := i; i < len(p); i++ {
		switch c := p[i]; {
		case c == ']' && i > first:
			re.WriteByte(']')
			return i + 1, nil
		case c == '\\' && i+1 < len(p):
			i++
			writeClassRune(re, p[i])
		case c == '-':
			re.WriteByte('-')
		default:
			writeClassRune(re, c)
		}
	}
	return 0, errors.New("a [ has no ]")
}

func writeClassRune(re *strings.Builder, c rune) {
	if strings.ContainsRune(`\[]^-`, c) {
		re.WriteByte('\\')
	}
	re.WriteRune(c)
}
