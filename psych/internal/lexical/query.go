package lexical

import (
	"cmp"
	_ "embed"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Bounds of a query.
const (
	maxQuery    = 4 << 10 // bytes; what follows isn't searched
	maxWords    = 64      // different ones
	maxGuesses  = 8       // words that an unknown word may stand for
	maxTypoWord = 32      // characters of a word that is compared for typos
	minStart    = 4       // characters of a word that others may begin with
	minTypo     = 5       // characters of a word that may hold a typo
	minTwoTypos = 9
)

// Words that tell nothing of what a tool does. They are searched where a query
// has no others.
const idleWords = `
a an the and or of is are be was were been being it its this that these those
there i me my we us our you your he him his she her they them their do does did
have has had can could will would should may might must please which who what
how when where why so than then if as in on at for to from with by into about
`

var idle = sync.OnceValue(func() map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(idleWords) {
		m[w] = true
	}
	return m
})

//go:embed synonyms.txt
var synonymsFile string

// synonyms returns by stem the stems of words that say about the same.
var synonyms = sync.OnceValue(func() map[string][]string {
	m := map[string][]string{}
	for line := range strings.Lines(synonymsFile) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		group := strings.Fields(line)
		for i := range group {
			group[i] = stem(group[i])
		}
		for _, a := range group {
			for _, b := range group {
				if a != b && !slices.Contains(m[a], b) {
					m[a] = append(m[a], b)
				}
			}
		}
	}
	return m
})

// A clause is a word of the query, with what it may match.
type clause struct {
	word     string
	weight   float64
	from, to int // of search.variants; the first is the word itself
	matched  bool
}

type variant struct {
	term   string
	weight float64
}

type token struct {
	text string
	kind kind
}

// parse makes clauses of the query.
func (s *search) parse(query string) {
	s.tokens = s.tokens[:0]
	add := func(w []byte, k kind) { s.tokens = append(s.tokens, token{string(w), k}) }
	for f := range strings.FieldsSeq(query) {
		s.buf = split(object(f), s.buf, add)
	}
	onlyIdle := !slices.ContainsFunc(s.tokens, func(t token) bool { return !idle()[t.text] })

	joins := false // the identifier whose parts these are matches as a whole
	for _, t := range s.tokens {
		if t.kind == single || idle()[t.text] && !onlyIdle {
			continue
		}
		term := stem(t.text)
		n, _ := s.count(term)
		if t.kind == joined {
			joins = n > 0
			if !joins {
				continue
			}
		}
		if len(s.clauses) == maxWords || slices.ContainsFunc(s.clauses, func(c clause) bool { return s.variants[c.from].term == term }) {
			continue
		}
		c := clause{word: t.text, weight: 1, from: len(s.variants)}
		if t.kind == part && joins {
			c.weight = byPart
		}
		s.variants = append(s.variants, variant{term, 1})
		others := synonyms()[term]
		for _, o := range others {
			s.variants = append(s.variants, variant{o, bySynonym})
		}
		if n == 0 {
			s.guess(t.text, len(others) == 0)
		}
		c.to = len(s.variants)
		s.clauses = append(s.clauses, c)
	}
}

// object returns the words for a field of a query that holds an address or a
// path. What these point at says nothing of the tool, but their kind does.
func object(field string) string {
	f := strings.Trim(field, "\"'`()<>[]{},;:!?.")
	switch {
	case strings.Contains(f, "://"), strings.HasPrefix(f, "www."):
		return "url"
	case strings.HasPrefix(f, "~/"),
		strings.HasPrefix(field, "./"), strings.HasPrefix(field, "../"),
		len(f) > 2 && f[1] == ':' && (f[2] == '\\' || f[2] == '/') && ascii[f[0]&0x7f] != outside,
		len(f) > 1 && f[0] == '/' && strings.ContainsAny(f[1:], "/."):
		if dot := strings.LastIndexByte(f, '.'); dot > strings.LastIndexAny(f, `/\`) {
			return "file path " + f[dot+1:]
		}
		return "file path"
	}
	return field
}

// A guess is a word that an unknown one may stand for.
type guess struct {
	text     string
	distance int // in typos; 0: it begins with the unknown one
}

// guess adds variants for a word that no tool has: words that begin with it, or
// else, where it may be one, those from which the fewest typos lead to it.
func (s *search) guess(w string, typos bool) {
	n := utf8.RuneCountInString(w)
	if n < minStart {
		return
	}
	s.guesses = s.guesses[:0]
	for i, seg := range s.segments {
		for _, o := range seg.longer(len(w) + 1) {
			if strings.HasPrefix(o.text, w) {
				s.consider(i, o, 0)
			}
		}
	}
	if len(s.guesses) == 0 && typos && minTypo <= n && n <= maxTypoWord {
		s.guessTypos(w, n)
	}
	for _, g := range s.guesses {
		if g.distance == s.guesses[0].distance {
			s.variants = append(s.variants, variant{stem(g.text), [...]float64{byStart, byTypo, byTwoTypos}[g.distance]})
		}
	}
}

func (s *search) guessTypos(w string, n int) {
	most, slack := 1, 1 // in typos, in bytes
	if n >= minTwoTypos {
		most, slack = 2, 2
	}
	if len(w) > n {
		slack *= utf8.UTFMax
	}
	set := letters(w)
	s.runes = appendRunes(s.runes[:0], w)
	for i, seg := range s.segments {
		for _, o := range seg.longer(len(w) - slack) {
			if len(o.text) > len(w)+slack {
				break
			}
			if bits.OnesCount32(o.letters^set) > 2*most {
				continue
			}
			if s.other = appendRunes(s.other[:0], o.text); len(s.other) > maxTypoWord {
				continue
			}
			if d := distance(s.runes, s.other, most); d <= most {
				s.consider(i, o, d)
			}
		}
	}
}

// consider adds a word of a segment to the guesses, if a tool that may be found
// has it, and keeps the best of them.
func (s *search) consider(segment int, o word, distance int) {
	g := guess{o.text, distance}
	at, found := slices.BinarySearchFunc(s.guesses, g, func(a, b guess) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(len(a.text), len(b.text)), strings.Compare(a.text, b.text))
	})
	if found || at == maxGuesses || !s.has(segment, o.term) {
		return
	}
	if len(s.guesses) == maxGuesses {
		s.guesses = s.guesses[:maxGuesses-1]
	}
	s.guesses = slices.Insert(s.guesses, at, g)
}

func appendRunes(to []rune, s string) []rune {
	for _, c := range s {
		to = append(to, c)
	}
	return to
}

// has reports whether a tool that may be found, or its server, has a term.
func (s *search) has(segment int, term int32) bool {
	return s.live[segment] > 0 && s.countTerm(segment, term) > 0
}
