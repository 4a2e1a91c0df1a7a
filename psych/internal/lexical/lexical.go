// Package lexical finds tools by words. It needs no model, no network and no
// state but the catalogues, and answers the same question always the same.
//
// A [Segment] indexes the tools of one server. It never changes and may be
// shared by any number of searches: when a server's tools change, its Segment
// alone is built anew. [Search] ranks over any set of Segments as if they were
// one index:
//
//   - A tool scores by BM25F: by how rare a word of the query is, by where the
//     tool has it (in its name; the first sentence of its description, or its
//     server's name; the rest of its description, its arguments, or its
//     server's description), and by how long that text is.
//   - Words are compared without case, diacritics and endings. Identifiers are
//     split where people see words in them. Text of scripts that put no spaces
//     between words is compared by pairs of characters.
//   - A word finds its synonyms too, for less. One that no tool has finds the
//     words that it begins, else those that a typo may have made it of.
//   - A tool gains by how much of the query and how much of its own name
//     matched, and by the best tool of its server. It loses by each tool of the
//     same name that stands before it, since that one tells more.
//   - A tool whose name is the query stands first, whatever else matches, and
//     then one whose name the query holds.
//
// # What was tried
//
// Descriptions of arguments, values of enumerations, names of two words written
// as one, words that begin with a known word of the query, and a stemmer that
// knows more endings found no tool that wasn't found without them.
package lexical

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// The fields of a tool.
const (
	inName       = iota
	inLead       // the first sentence of its description
	inText       // the rest of it
	inArgs       // names of its arguments
	inServer     // its server's name
	inServerText // its server's description
	fields
)

// Bounds of what is indexed, in bytes.
const (
	maxLead = 400 // of a first sentence
	maxText = 16 << 10
)

// A Tool is what is indexed of a tool.
type Tool struct {
	Name string
	Text string   // its description, of which the first 16 KiB count
	Args []string // names of its arguments
}

// A Segment is the index of one server's tools. It is immutable.
type Segment struct {
	group, groupKey string
	tools           []entry
	lengths         [fields]uint16 // of the server's own fields
	sums            [fields]int    // of all tools' lengths

	terms    map[string]int32 // stems, to their number
	starts   []int32          // of each term's postings, and after them the end of the last
	postings []posting        // of each term: the server's if it has any, then the tools' in order

	words []word // by length, then by bytes
}

type entry struct {
	name, key string
	terms     int // different ones in the name
	lengths   [fields]uint16
}

// A posting says how often a tool has a term in each field. The postings of a
// server hold for all of its tools.
type posting struct {
	tool  int32
	count [fields]uint8
}

const ofServer = -1

// A word is one as it was written; unknown ones are compared with it.
type word struct {
	text    string
	letters uint32
	term    int32
}

// NewSegment returns the index of the tools of a server: group is its name,
// which sets tools of one name apart, and groupText describes it.
func NewSegment(group, groupText string, tools []Tool) *Segment {
	b := builder{
		s:     &Segment{group: group, groupKey: key(group), tools: make([]entry, len(tools)), terms: map[string]int32{}},
		known: map[string]int32{},
	}
	b.add(ofServer, inServer, group, &b.s.lengths)
	b.add(ofServer, inServerText, clip(groupText, maxText), &b.s.lengths)
	for i, t := range tools {
		e := &b.s.tools[i]
		e.name, e.key = t.Name, key(t.Name)
		b.add(i, inName, t.Name, &e.lengths)
		lead, rest := firstSentence(clip(t.Text, maxText))
		b.add(i, inLead, lead, &e.lengths)
		b.add(i, inText, rest, &e.lengths)
		for _, a := range t.Args {
			b.add(i, inArgs, a, &e.lengths)
		}
		for f, n := range e.lengths {
			b.s.sums[f] += int(n)
		}
	}
	return b.build()
}

// Group returns the name of the Segment's server.
func (s *Segment) Group() string { return s.group }

// Len returns the number of the Segment's tools.
func (s *Segment) Len() int { return len(s.tools) }

// Name returns the name of a tool, counted as NewSegment got them.
func (s *Segment) Name(tool int) string { return s.tools[tool].name }

type builder struct {
	s     *Segment
	known map[string]int32 // words, to the number of their terms
	found []occurrence
	buf   []byte
}

type occurrence struct {
	term, tool int32
	field      uint8
	counts     bool // towards the length
}

func (b *builder) add(tool, field int, text string, lengths *[fields]uint16) {
	b.buf = split(text, b.buf, func(w []byte, k kind) {
		o := occurrence{b.term(w), int32(tool), uint8(field), k == whole || k == part}
		b.found = append(b.found, o)
		if o.counts && lengths[field] < ^uint16(0) {
			lengths[field]++
		}
	})
}

func (b *builder) term(w []byte) int32 {
	if t, ok := b.known[string(w)]; ok {
		return t
	}
	text := string(w)
	root := stem(text)
	t, ok := b.s.terms[root]
	if !ok {
		t = int32(len(b.s.terms))
		b.s.terms[root] = t
	}
	b.known[text] = t
	if utf8.RuneCountInString(text) >= minStart {
		b.s.words = append(b.s.words, word{text, letters(text), t})
	}
	return t
}

// build sorts what was found by terms. Tools came in order, and stay so.
func (b *builder) build() *Segment {
	s := b.s
	next := make([]int32, len(s.terms)+1)
	for _, o := range b.found {
		next[o.term+1]++
	}
	for i := range len(s.terms) {
		next[i+1] += next[i]
	}
	ends := slices.Clone(next[1:])
	sorted := make([]occurrence, len(b.found))
	for _, o := range b.found {
		sorted[next[o.term]] = o
		next[o.term]++
	}

	s.starts = make([]int32, len(s.terms)+1)
	s.postings = make([]posting, 0, len(sorted))
	from := int32(0)
	for term, end := range ends {
		start := len(s.postings)
		s.starts[term] = int32(start)
		for _, o := range sorted[from:end] {
			if n := len(s.postings); n == start || s.postings[n-1].tool != o.tool {
				s.postings = append(s.postings, posting{tool: o.tool})
			}
			p := &s.postings[len(s.postings)-1]
			if o.field == inName && o.counts && p.count[inName] == 0 {
				s.tools[o.tool].terms++
			}
			if p.count[o.field] < ^uint8(0) {
				p.count[o.field]++
			}
		}
		from = end
	}
	s.starts[len(s.terms)] = int32(len(s.postings))
	s.postings = slices.Clip(s.postings)
	slices.SortFunc(s.words, func(a, b word) int {
		if n := len(a.text) - len(b.text); n != 0 {
			return n
		}
		return strings.Compare(a.text, b.text)
	})
	return s
}

// find returns where the postings of a term are.
func (s *Segment) find(term string) (from, to int32) {
	t, ok := s.terms[term]
	if !ok {
		return 0, 0
	}
	return s.starts[t], s.starts[t+1]
}

// longer returns the words of at least n bytes.
func (s *Segment) longer(n int) []word {
	at, _ := slices.BinarySearchFunc(s.words, n, func(w word, n int) int { return len(w.text) - n })
	return s.words[at:]
}

// firstSentence splits a description behind what says most of it.
func firstSentence(s string) (lead, rest string) {
	s = strings.TrimSpace(s)
	for i, c := range s {
		switch {
		case i >= maxLead, c == '\n', c == '。':
			return s[:i], s[i:]
		case c == '.' && i+1 < len(s) && (s[i+1] == ' ' || s[i+1] == '\n' || s[i+1] == '\r'):
			return s[:i], s[i:]
		}
	}
	return s, ""
}

// clip cuts s to n bytes, and not within a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
