// Package lexical finds tools by words. It needs no model, no network and no
// state but the catalogues, and answers the same question always the same.
//
// A [Segment] indexes the tools of one server. It never changes and may be
// shared by any number of searches: when a server's tools change, its Segment
// alone is built anew. [Search] ranks over any set of Segments as if they were
// one index:
//
//   - A tool scores by BM25F: by how rare a word of the query is, by where the
//     tool has it (its name counts most, its description and its server's name
//     less, its arguments and its server's description least), and by how long
//     that text is.
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
// An address or a path in a query stands for its kind alone. What was tried and
// found no more tools: descriptions of arguments, values of enumerations, more
// weight for the first sentence of a description, two words of the query as one,
// known words as beginnings of others, and a stemmer that knows more endings.
package lexical

import (
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// The fields of a tool.
const (
	inName       = iota
	inText       // its description
	inArgs       // names of its arguments
	inServer     // its server's name
	inServerText // its server's description
	fields
)

// maxText is how much of a description is indexed, in bytes.
const maxText = 16 << 10

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

	terms    map[string]int32 // stems, and the words themselves, to the number of their term
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
	b := builders.Get().(*builder)
	defer b.end()
	size := len(groupText)
	for _, t := range tools {
		size += len(t.Name) + len(t.Text) + 16*len(t.Args)
	}
	b.s = &Segment{
		group: group, groupKey: key(group), tools: make([]entry, len(tools)),
		terms: make(map[string]int32, min(size/bytesPerTerm, maxTerms)),
	}
	b.add(ofServer, inServer, group, &b.s.lengths)
	b.add(ofServer, inServerText, clip(groupText, maxText), &b.s.lengths)
	for i, t := range tools {
		e := &b.s.tools[i]
		e.name, e.key = t.Name, key(t.Name)
		b.add(i, inName, t.Name, &e.lengths)
		b.add(i, inText, clip(t.Text, maxText), &e.lengths)
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

// What a map is made for at first: text of so many bytes has a word that it had
// not before, while there are not so many.
const (
	bytesPerTerm = 20
	maxTerms     = 4000
)

// A builder is the memory of a NewSegment, which later ones use again.
type builder struct {
	s             *Segment
	words         []word
	found, sorted []occurrence
	count         int32 // of terms
	next          []int32
	buf           []byte
}

var builders = sync.Pool{New: func() any { return new(builder) }}

func (b *builder) end() {
	clear(b.words)
	b.words, b.found, b.s, b.count = b.words[:0], b.found[:0], nil, 0
	builders.Put(b)
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

// term returns the number of a word's term. The map has the words beside their
// stems: no word has two, since a stem is its own.
func (b *builder) term(w []byte) int32 {
	if t, ok := b.s.terms[string(w)]; ok {
		return t
	}
	text := string(w)
	root := stem(text)
	t, ok := b.s.terms[root]
	if !ok {
		t = b.count
		b.count++
		b.s.terms[root] = t
	}
	if root != text {
		b.s.terms[text] = t
	}
	if utf8.RuneCountInString(text) >= minStart {
		b.words = append(b.words, word{text, letters(text), t})
	}
	return t
}

// build sorts what was found by terms. Tools came in order, and stay so.
func (b *builder) build() *Segment {
	s := b.s
	next := zeroed(b.next, int(b.count)+1)
	for _, o := range b.found {
		next[o.term+1]++
	}
	for i := range b.count {
		next[i+1] += next[i]
	}
	sorted := slices.Grow(b.sorted[:0], len(b.found))[:len(b.found)]
	for _, o := range b.found {
		sorted[next[o.term]] = o
		next[o.term]++
	}
	b.next, b.sorted = next, sorted

	postings := 0
	for i := range sorted {
		if i == 0 || sorted[i].term != sorted[i-1].term || sorted[i].tool != sorted[i-1].tool {
			postings++
		}
	}
	s.starts = make([]int32, 0, int(b.count)+1)
	s.postings = make([]posting, 0, postings)
	for i, o := range sorted {
		first := i == 0 || o.term != sorted[i-1].term
		if first {
			s.starts = append(s.starts, int32(len(s.postings)))
		}
		if first || o.tool != sorted[i-1].tool {
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
	s.starts = append(s.starts, int32(len(s.postings)))
	s.words = slices.Clone(b.words)
	slices.SortFunc(s.words, func(a, b word) int {
		if n := len(a.text) - len(b.text); n != 0 {
			return n
		}
		return strings.Compare(a.text, b.text)
	})
	return s
}

// longer returns the words of at least n bytes.
func (s *Segment) longer(n int) []word {
	at, _ := slices.BinarySearchFunc(s.words, n, func(w word, n int) int { return len(w.text) - n })
	return s.words[at:]
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
