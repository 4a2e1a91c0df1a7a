package lexical

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"
)

// How the ranking weighs. Each number is a round one from a range in which it
// matters little: any closer choice fits the queries that it was made with, and
// not the next ones.
const (
	saturation = 1.5 // k1 of BM25F: how soon more of the same word adds nothing
	byLength   = 0.4 // its b: how much the length of a field counts

	bySynonym  = 0.6 // of a match by another word than the query's
	byStart    = 0.5
	byTypo     = 0.8
	byTwoTypos = 0.5
	byPart     = 0.5 // of a part of an identifier that matches as a whole, too

	byQuery  = 0.4 // share of a score that only a match of the whole query gets
	byName   = 0.5 // what a name adds that matches as a whole
	byServer = 0.3 // what the best tool of a server adds to each of them
	byRepeat = 0.5 // what each tool of the same name before it leaves of a score
)

var fieldWeights = [fields]float64{inName: 3, inText: 1, inArgs: 0.5, inServer: 1, inServerText: 0.5}

// Options are the bounds of a Search.
type Options struct {
	Offset int // hits that are skipped
	Limit  int // most hits that are returned; 0: all

	// Permit says which tools there are; nil: all. The others have no influence
	// on anything that Search returns.
	Permit func(segment, tool int) bool
}

// A Result is a part of a ranking.
type Result struct {
	Hits      []Hit
	Total     int      // tools that match, of which Hits are a part
	Unmatched []string // words of the query, folded, that match nothing
}

// A Hit is a tool that matches, by its place among the segments and among the
// tools of its Segment.
type Hit struct {
	Segment, Tool int
	Score         int  // in thousandths; of use within one Result
	Named         bool // its name is the query, or the query holds it
}

// Search ranks the tools that match a query, the best first. It doesn't matter
// in which order segments and tools come, and it may be called concurrently.
//
// Of a query the first 4 KiB and the first 64 different words are searched.
func Search(segments []*Segment, query string, o Options) Result {
	s := searches.Get().(*search)
	defer s.end()
	return s.search(segments, query, o)
}

func (s *search) search(segments []*Segment, query string, o Options) Result {
	s.begin(segments, o.Permit)
	query = clip(strings.TrimSpace(query), maxQuery)
	s.parse(query)
	for i := range s.clauses {
		s.score(&s.clauses[i])
	}
	s.nameRanks(query)
	s.collect()

	r := Result{Total: len(s.heap)}
	for _, c := range s.clauses {
		if !c.matched {
			r.Unmatched = append(r.Unmatched, c.word)
		}
	}
	r.Hits = s.list(max(o.Offset, 0), o.Limit)
	return r
}

// A search is the memory of one, which later ones use again. What is by tool
// has the tools of all segments in a row.
type search struct {
	segments []*Segment
	base     []int  // by segment: its first tool; and the number of all
	open     []bool // by tool: it is permitted
	live     []int  // by segment: tools that are permitted
	all      int    // of these
	average  [fields]float64

	buf          []byte
	tokens       []token
	clauses      []clause
	variants     []variant
	guesses      []guess
	runes, other []rune
	mentions     []string
	refs         []ref

	scores   []float64 // by tool
	matched  []float64 // by tool: of possible
	possible float64
	named    []float64 // by tool: terms of its name that matched
	ranks    []rank    // by tool
	clause   []float64 // by tool: its score for the clause at hand
	inClause []float64 // by tool: its name's

	heap     []candidate    // of each segment in a row
	spans    []span         // those of heap that have candidates left
	repeats  map[string]int // by key of a name: tools that were listed
	listed   []int          // by segment: tools that were listed
	compared int            // candidates, two at a time
}

// ref is where the postings of a term are.
type ref struct{ segment, from, to int32 }

// rank orders tools before their scores do.
type rank uint8

const (
	unnamed   rank = iota
	mentioned      // the query holds the tool's name
	sameWords      // it is the name but for case and how its words are put together
	sameName       // it is the name
)

var searches = sync.Pool{New: func() any { return &search{repeats: map[string]int{}} }}

// end forgets what the caller owns.
func (s *search) end() {
	clear(s.repeats)
	s.segments = nil
	searches.Put(s)
}

func zeroed[T any](s []T, n int) []T {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}

func (s *search) begin(segments []*Segment, permit func(segment, tool int) bool) {
	s.segments = segments
	s.base = append(s.base[:0], 0)
	for _, seg := range segments {
		s.base = append(s.base, s.base[len(s.base)-1]+len(seg.tools))
	}
	n := s.base[len(segments)]
	s.open = zeroed(s.open, n)
	s.scores, s.matched, s.named = zeroed(s.scores, n), zeroed(s.matched, n), zeroed(s.named, n)
	s.clause, s.inClause = zeroed(s.clause, n), zeroed(s.inClause, n)
	s.ranks = zeroed(s.ranks, n)
	s.live, s.listed = zeroed(s.live, len(segments)), zeroed(s.listed, len(segments))
	s.clauses, s.variants = s.clauses[:0], s.variants[:0]
	s.heap, s.spans = s.heap[:0], s.spans[:0]
	s.possible, s.all, s.compared = 0, 0, 0

	var sums [fields]int
	for i, seg := range segments {
		open := s.open[s.base[i]:s.base[i+1]]
		for t := range open {
			if permit != nil && !permit(i, t) {
				continue
			}
			open[t] = true
			s.live[i]++
			if permit != nil {
				for f, n := range seg.tools[t].lengths {
					sums[f] += int(n)
				}
			}
		}
		s.all += s.live[i]
		for f := range fields {
			if permit == nil {
				sums[f] += seg.sums[f]
			}
			sums[f] += int(seg.lengths[f]) * s.live[i]
		}
	}
	for f, n := range sums {
		s.average[f] = float64(max(n, 1)) / float64(max(s.all, 1))
	}
}

// count returns how many tools have a term, a server that has it itself at
// least one. It sets refs to its postings.
func (s *search) count(term string) (n int, refs []ref) {
	s.refs = s.refs[:0]
	for i, seg := range s.segments {
		if s.live[i] == 0 {
			continue
		}
		if t, ok := seg.terms[term]; ok {
			if k := s.countTerm(i, t); k > 0 {
				n += k
				s.refs = append(s.refs, ref{int32(i), seg.starts[t], seg.starts[t+1]})
			}
		}
	}
	return n, s.refs
}

func (s *search) countTerm(segment int, term int32) (n int) {
	seg := s.segments[segment]
	postings := seg.postings[seg.starts[term]:seg.starts[term+1]]
	server := 0
	if postings[0].tool == ofServer {
		server = min(1, s.live[segment])
		postings = postings[1:]
	}
	if s.live[segment] == len(seg.tools) {
		return max(len(postings), server)
	}
	for _, p := range postings {
		if s.open[s.base[segment]+int(p.tool)] {
			n++
		}
	}
	return max(n, server)
}

// rarity is the inverse document frequency of a term that n tools have.
func (s *search) rarity(n int) float64 {
	return math.Log(1 + (float64(s.all-n)+0.5)/(float64(n)+0.5))
}

// score adds to the tools what they have of a clause: by the variant that each
// has the most of.
func (s *search) score(c *clause) {
	most, rarest := 0.0, math.Inf(1)
	for i, v := range s.variants[c.from:c.to] {
		n, refs := s.count(v.term)
		if n == 0 {
			continue
		}
		// Another word is no better a match than the query's own one.
		if i == 0 {
			rarest = s.rarity(n)
		}
		worth := min(s.rarity(n), rarest) * v.weight * c.weight
		most = max(most, worth)
		for _, r := range refs {
			s.scoreTerm(r, worth, v.weight)
		}
	}
	c.matched = most > 0
	s.possible += most
	for t, x := range s.clause {
		if x > 0 {
			s.scores[t] += x
			s.matched[t] += most
			s.named[t] += s.inClause[t]
		}
	}
	clear(s.clause)
	clear(s.inClause)
}

func (s *search) scoreTerm(r ref, worth, weight float64) {
	seg := s.segments[r.segment]
	base := s.base[r.segment]
	postings := seg.postings[r.from:r.to]
	server := 0.0
	if postings[0].tool == ofServer {
		server = s.frequency(&postings[0].count, &seg.lengths)
		x := worth * saturated(server)
		for t := base; t < base+len(seg.tools); t++ {
			if s.open[t] {
				s.clause[t] = max(s.clause[t], x)
			}
		}
		postings = postings[1:]
	}
	for i := range postings {
		p := &postings[i]
		t := base + int(p.tool)
		if !s.open[t] {
			continue
		}
		x := worth * saturated(server+s.frequency(&p.count, &seg.tools[p.tool].lengths))
		s.clause[t] = max(s.clause[t], x)
		if p.count[inName] > 0 {
			s.inClause[t] = max(s.inClause[t], weight)
		}
	}
}

// frequency is how often a term occurs, by the weights and lengths of fields.
func (s *search) frequency(count *[fields]uint8, lengths *[fields]uint16) (sum float64) {
	for f, n := range count {
		if n > 0 {
			sum += fieldWeights[f] * float64(n) / (1 - byLength + byLength*float64(lengths[f])/s.average[f])
		}
	}
	return sum
}

func saturated(frequency float64) float64 {
	return frequency * (saturation + 1) / (frequency + saturation)
}

// nameRanks finds the tools that the query names.
func (s *search) nameRanks(query string) {
	words := key(query)
	s.mentions = s.mentions[:0]
	for f := range strings.FieldsFuncSeq(query, func(c rune) bool { return c <= ' ' || strings.ContainsRune(",;:()[]{}<>\"'`", c) }) {
		parts := 0
		s.buf = split(f, s.buf, func(_ []byte, k kind) {
			if k == whole || k == part {
				parts++
			}
		})
		// One word is a word, and no mention of the tool of that name.
		if parts > 1 && len(s.mentions) < maxWords {
			s.mentions = append(s.mentions, key(f))
		}
	}
	for i, seg := range s.segments {
		for j := range seg.tools {
			if t := s.base[i] + j; s.open[t] {
				s.ranks[t] = s.nameRank(seg, &seg.tools[j], query, words)
			}
		}
	}
}

func (s *search) nameRank(seg *Segment, e *entry, query, words string) rank {
	switch {
	case e.name == query && query != "":
		return sameName
	case len(query) == len(seg.group)+2+len(e.name) && strings.HasPrefix(query, seg.group) &&
		query[len(seg.group):len(seg.group)+2] == "__" && strings.HasSuffix(query, e.name):
		return sameName
	case e.key == "":
		return unnamed
	case names(words, seg, e):
		return sameWords
	}
	for _, m := range s.mentions {
		if names(m, seg, e) {
			return mentioned
		}
	}
	return unnamed
}

// names reports whether words is the key of a tool's name, with or without its
// server's before it.
func names(words string, seg *Segment, e *entry) bool {
	switch len(words) - len(e.key) {
	case 0:
		return words == e.key
	case len(seg.groupKey):
		return strings.HasPrefix(words, seg.groupKey) && strings.HasSuffix(words, e.key)
	}
	return false
}

// A candidate is a tool that matches. Those of a name that was listed, and
// those of a server that was listed, come behind others with the same score.
type candidate struct {
	segment, tool int
	rank          rank
	full, score   int // the score, and what repeats leave of it
	repeats       int // as they were when the score was made
}

// A span is the candidates of one segment, which are a heap.
type span struct{ from, to int }

// collect makes a heap of the tools that match for each segment, and a heap of
// these: that a tool is listed moves its segment as a whole, and no other.
func (s *search) collect() {
	for i, seg := range s.segments {
		best := 0.0
		for t := s.base[i]; t < s.base[i+1]; t++ {
			best = max(best, s.scores[t])
		}
		from := len(s.heap)
		for j, e := range seg.tools {
			t := s.base[i] + j
			if s.scores[t] == 0 && s.ranks[t] == unnamed {
				continue
			}
			x := 0.0
			if s.scores[t] > 0 {
				x = s.scores[t] + byServer*best
				x *= 1 - byQuery + byQuery*s.matched[t]/s.possible
				if e.terms > 0 {
					x *= 1 + byName*min(1, s.named[t]/float64(e.terms))
				}
			}
			// Whole, so that last bits, which differ between processors, decide nothing.
			score := int(math.Round(1000 * x))
			s.heap = append(s.heap, candidate{segment: i, tool: j, rank: s.ranks[t], full: score, score: score})
		}
		if to := len(s.heap); from < to {
			s.spans = append(s.spans, span{from, to})
			order(s.heap[from:to], s.before)
		}
	}
	order(s.spans, s.spanBefore)
}

// list takes the best from the heaps.
func (s *search) list(offset, limit int) []Hit {
	n := len(s.heap) - min(offset, len(s.heap))
	if limit > 0 {
		n = min(n, limit)
	}
	if n == 0 {
		return nil
	}
	hits := make([]Hit, 0, n)
	for len(hits) < n {
		first := &s.spans[0]
		own := s.heap[first.from:first.to]
		c := &own[0]
		key := s.segments[c.segment].tools[c.tool].key
		if repeats := s.repeats[key]; c.repeats != repeats {
			c.repeats = repeats
			if c.rank == unnamed {
				c.score = int(math.Round(float64(c.full) * math.Pow(byRepeat, float64(repeats))))
			}
			sink(own, 0, s.before)
			sink(s.spans, 0, s.spanBefore)
			continue
		}
		if offset > 0 {
			offset--
		} else {
			hits = append(hits, Hit{c.segment, c.tool, c.score, c.rank != unnamed})
		}
		s.repeats[key]++
		s.listed[c.segment]++
		*c = own[len(own)-1]
		first.to--
		if own = own[:len(own)-1]; len(own) > 0 {
			sink(own, 0, s.before)
		} else {
			*first = s.spans[len(s.spans)-1]
			s.spans = s.spans[:len(s.spans)-1]
		}
		sink(s.spans, 0, s.spanBefore)
	}
	return hits
}

// order makes a heap.
func order[T any](heap []T, before func(a, b *T) bool) {
	for i := len(heap)/2 - 1; i >= 0; i-- {
		sink(heap, i, before)
	}
}

// sink restores the heap where what is at i may be too high.
func sink[T any](heap []T, i int, before func(a, b *T) bool) {
	for {
		child := 2*i + 1
		if child >= len(heap) {
			return
		}
		if child+1 < len(heap) && before(&heap[child+1], &heap[child]) {
			child++
		}
		if !before(&heap[child], &heap[i]) {
			return
		}
		heap[i], heap[child] = heap[child], heap[i]
		i = child
	}
}

func (s *search) spanBefore(a, b *span) bool { return s.before(&s.heap[a.from], &s.heap[b.from]) }

func (s *search) before(a, b *candidate) bool {
	s.compared++
	if a.rank != b.rank {
		return a.rank > b.rank
	}
	if a.score != b.score {
		return a.score > b.score
	}
	if x, y := s.listed[a.segment], s.listed[b.segment]; x != y {
		return x < y
	}
	x, y := s.segments[a.segment], s.segments[b.segment]
	return cmp.Or(
		strings.Compare(x.group, y.group),
		strings.Compare(x.tools[a.tool].name, y.tools[b.tool].name),
		cmp.Compare(a.segment, b.segment),
		cmp.Compare(a.tool, b.tool),
	) < 0
}
