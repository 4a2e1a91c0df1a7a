package psych

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Disclosure is a strategy that decides which of the permitted tools of
// servers the model is shown, and how. Both methods are pure functions of their
// arguments, and deterministic; they may be called concurrently, and the order
// of servers, tools and injected names changes nothing.
// contracttest.DisclosureRules checks it.
//
// Whatever the strategy shows, the model has list_tools, read_tool and
// call_tool, which reach every permitted tool. What servers and people wrote
// (names, descriptions) stays data: in a definition of the strategy's own it
// stands on one line, without controls.
type Disclosure interface {
	// Open decides what a Run is opened with. It is asked once, before the
	// first turn, and again where the Run is opened anew; what it returned
	// stays as it is in between.
	Open(in *DisclosureInput) (*Surface, error)

	// Route says where a call of one of the Surface's own Tools goes, with
	// what is permitted now, which may be more or less than what the Run was
	// opened with. args is a JSON object, and may hold any. What they hold for
	// the tool of a server is passed on as it is, also where it is a string
	// that holds an object.
	//
	// An error is told to the model. It matches ErrNotFound where a name means
	// nothing (now), and names the nearest that exist; and ErrInvalid for
	// arguments that the tool does not take, those too that its schema does
	// not name.
	Route(in *DisclosureInput, tool string, args json.RawMessage) (Route, error)
}

// DisclosureInput is all that a strategy may know.
type DisclosureInput struct {
	Servers []ServerTools // sorted by name, each once
	Budget  int           // of characters, of all that servers add to the prompt
	Tools   int           // most definitions that are shown
	Limits  ModelLimits   // of the provider; for Open alone
}

// ServerTools is a connection as it is permitted now.
type ServerTools struct {
	Server, Description string
	Preload             *bool         // true: show each definition; false: none but of Inject; nil: as the strategy decides
	Inject              []string      // tools that are shown all the same; those that there are not mean nothing
	Tools               []ToolSummary // sorted by name, each once; none where the server can't be reached yet
}

// A ToolSummary is what is known of a tool without reading its definition.
type ToolSummary struct {
	Name     string // the server's own
	Line     string // of its description, on one line of at most 200 characters; may be empty
	Chars    int    // of its definition, as it is shown
	Withheld string // why its definition can't be shown; "" if it can
}

// A Surface is what a Run is opened with. Order means nothing. Each permitted
// tool is to be found: it is among Eager, its server among Listed, or one of
// Tools goes to it. So is a server without tools yet.
//
// What Preload and Inject ask for is shown whatever it takes. A strategy that
// keeps the budget adds nothing to that, and to a line for each server, which
// takes all together over Budget characters or Tools definitions. A definition
// takes the characters of name, description and schema, and 40.
type Surface struct {
	Eager  []ToolRef // tools that are shown by their definitions
	Listed []string  // servers that have a line in zone 1, since some of their tools aren't shown

	// Tools are further ones, the strategy's own: each with a name that
	// ToolName makes of a server, and that no tool of Eager has; with the schema of
	// an object; with a description within the provider's limits and, however
	// many tools it stands for, within PageChars; no more than the provider
	// takes.
	Tools []ToolDef

	// Decisions are kept with the opening, for a person to read. JSON, or nil.
	Decisions json.RawMessage
}

// A ToolRef names a tool of a server.
type ToolRef struct {
	Server string `json:"server"`
	Tool   string `json:"tool"`
}

// A Route is where a call goes: to a permitted tool of a server, or, with List,
// to a listing that psych makes.
type Route struct {
	ToolRef
	Arguments json.RawMessage
	List      *ListQuery
}

// A ListQuery asks for a listing of permitted tools: those of one server, or of
// all; in the order of their names, or, with a query, the best matches first.
type ListQuery struct {
	Server string `json:"server,omitempty"`
	Query  string `json:"query,omitempty"`
	Offset int    `json:"offset,omitempty"` // 0 or more
}

// DisclosureSpec picks a strategy by name. It is part of a Spec's hash, since
// it changes what the model is shown.
type DisclosureSpec struct {
	Strategy string `json:"strategy,omitempty"` // eager, deferred, facade, search, tiered, auto or one of Options.Disclosures; "" is auto
	Budget   int    `json:"budget,omitempty"`   // for auto and tiered: of characters that servers add to the prompt, all together; 16000
	Tools    int    `json:"tools,omitempty"`    // for auto and tiered: most definitions that are shown; 40
}

// Defaults of a DisclosureSpec. What 70 servers of 527 tools add, one line
// each, is some 11,300 characters; what is left of the budget goes to the
// definitions of the smallest.
const (
	defaultDisclosure      = "auto"
	defaultDisclosureChars = 16000
	defaultDisclosureTools = 40
)

// withDefaults fills in what is absent.
func (d DisclosureSpec) withDefaults() DisclosureSpec {
	if d.Strategy == "" {
		d.Strategy = defaultDisclosure
	}
	if d.Budget == 0 {
		d.Budget = defaultDisclosureChars
	}
	if d.Tools == 0 {
		d.Tools = defaultDisclosureTools
	}
	return d
}

// builtinDisclosures are the strategies that a Spec may always name.
var builtinDisclosures = map[string]Disclosure{
	"eager":    eager{},
	"deferred": deferred{},
	"facade":   facade{},
	"search":   searchPair{},
	"tiered":   tiered{},
	"auto":     auto{},
}

// BuiltinDisclosure returns the strategy that every Spec may name so, for one
// that goes beyond it.
func BuiltinDisclosure(name string) (Disclosure, bool) {
	d, ok := builtinDisclosures[name]
	return d, ok
}

// maxServerLine bounds what a line of zone 1 shows of a server's description,
// in characters.
const maxServerLine = 200

// serverLine is the line of zone 1 for a server whose tools are not all shown.
// It holds nothing that changes with the server's catalogue.
func serverLine(server, description string) string {
	if d := asLine(description, maxServerLine); d != "" {
		return "- " + server + ": " + d
	}
	return "- " + server
}

// asLine is the first n characters of s on one line, the last of them … where
// more follow: what strangers wrote stays one line of data. It reads no more of
// s than that takes.
func asLine(s string, n int) string {
	var b strings.Builder
	gap, bad := false, false
	for i, chars := 0, 0; i < len(s) && chars <= n; {
		r, size := utf8.DecodeRuneInString(s[i:])
		i += size
		again := bad
		if bad = r == utf8.RuneError && size == 1; bad && again {
			continue // one mark for bytes in a row that are no text
		}
		if breaksLine(r) {
			gap = b.Len() > 0
			continue
		}
		if gap {
			b.WriteByte(' ')
			chars++
		}
		b.WriteRune(r)
		chars++
		gap = false
	}
	return clipChars(b.String(), n)
}

// breaksLine reports what can't stand within a line: spaces, controls, and the
// characters that change the direction or hide.
func breaksLine(r rune) bool {
	if r < utf8.RuneSelf {
		return r <= ' ' || r == 0x7f
	}
	return unicode.IsSpace(r) || unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) && r != '\u200d'
}

// A shape is how the tools of a server are shown that are not injected.
type shape string

const (
	inEager    shape = "eager"    // by their definitions
	inDeferred shape = "deferred" // not: a line of zone 1 names the server
	inFacade   shape = "facade"   // by a line each, in the description of one tool
	inSearch   shape = "search"   // not: of a pair of tools one searches them
)

// A weight is what showing tools costs.
type weight struct{ chars, tools int }

var noBound = weight{math.MaxInt, math.MaxInt}

// A plan is a Surface in the making: a shape for each server, within a bound of
// what they take all together.
type plan struct {
	in     *DisclosureInput
	shapes []shape
	open   []int // servers whose shape is the strategy's to decide
	used   weight
	bound  weight
}

// newPlan pins what connections say of themselves; all else is deferred.
func newPlan(in *DisclosureInput, bound weight) *plan {
	in = in.sorted()
	p := &plan{in: in, shapes: make([]shape, len(in.Servers)), bound: bound}
	for i := range in.Servers {
		server := &in.Servers[i]
		p.shapes[i] = inDeferred
		switch {
		case server.Preload != nil && *server.Preload:
			p.shapes[i] = inEager
		case server.Preload == nil && len(server.Tools) > 0:
			p.open = append(p.open, i)
		}
		w, _ := p.weigh(i, p.shapes[i])
		p.used.chars, p.used.tools = p.used.chars+w.chars, p.used.tools+w.tools
	}
	return p
}

// budget is the bound that a Spec sets.
func (in *DisclosureInput) budget() weight {
	w := weight{in.Budget, in.Tools}
	if in.Limits.Tools > 0 {
		w.tools = min(w.tools, in.Limits.Tools)
	}
	return w
}

// take gives a server a shape, if that is within the bound.
func (p *plan) take(i int, as shape) bool {
	was, _ := p.weigh(i, p.shapes[i])
	is, ok := p.weigh(i, as)
	chars, tools := p.used.chars-was.chars+is.chars, p.used.tools-was.tools+is.tools
	if !ok || chars > p.bound.chars || tools > p.bound.tools {
		return false
	}
	p.shapes[i], p.used = as, weight{chars, tools}
	return true
}

// weigh says what a server takes in a shape, and whether it can have it.
func (p *plan) weigh(i int, as shape) (w weight, ok bool) {
	server := &p.in.Servers[i]
	w = server.weigh(as)
	if w.tools == len(server.Tools) && w.tools > 0 {
		return w, true
	}
	own := server.own(as, p.in.Limits)
	for _, def := range own {
		w.chars, w.tools = w.chars+defChars(&def), w.tools+1
	}
	if len(own) == 0 {
		w.chars += utf8.RuneCountInString(serverLine(server.Server, server.Description)) + 1
	}
	return w, len(own) > 0 || as == inEager || as == inDeferred
}

// surface is what was planned.
func (p *plan) surface() (*Surface, error) {
	s := &Surface{}
	shapes := make(map[string]shape, len(p.shapes))
	for i, as := range p.shapes {
		server := &p.in.Servers[i]
		shapes[server.Server] = as
		shown := 0
		for j := range server.Tools {
			if t := &server.Tools[j]; server.shows(t, as) {
				s.Eager = append(s.Eager, ToolRef{server.Server, t.Name})
				shown++
			}
		}
		if shown == len(server.Tools) && shown > 0 {
			continue
		}
		if own := server.own(as, p.in.Limits); len(own) > 0 {
			s.Tools = append(s.Tools, own...)
		} else {
			s.Listed = append(s.Listed, server.Server)
		}
	}
	var err error
	s.Decisions, err = json.Marshal(struct {
		Chars   int              `json:"chars"`
		Tools   int              `json:"tools"`
		Servers map[string]shape `json:"servers,omitempty"`
	}{p.used.chars, p.used.tools, shapes})
	return s, err
}

// sorted returns in with its names in order, each once, and leaves in alone.
func (in *DisclosureInput) sorted() *DisclosureInput {
	servers := inOrder(in.Servers, func(s *ServerTools) string { return s.Server })
	for i := range servers {
		tools := inOrder(servers[i].Tools, func(t *ToolSummary) string { return t.Name })
		if len(tools) == 0 || &tools[0] == &servers[i].Tools[0] {
			continue
		}
		if &servers[0] == &in.Servers[0] {
			servers = slices.Clone(servers)
		}
		servers[i].Tools = tools
	}
	out := *in
	out.Servers = servers
	return &out
}

// inOrder returns all, sorted by name and each once: all itself if it is that.
func inOrder[T any](all []T, name func(*T) string) []T {
	compare := func(a, b T) int { return strings.Compare(name(&a), name(&b)) }
	strictly := func(a, b T) int { return cmp.Or(compare(a, b), 1) }
	if slices.IsSortedFunc(all, strictly) {
		return all
	}
	all = slices.Clone(all)
	slices.SortStableFunc(all, compare)
	return slices.CompactFunc(all, func(a, b T) bool { return name(&a) == name(&b) })
}

// shows reports whether a tool is shown by its definition.
func (s *ServerTools) shows(t *ToolSummary, as shape) bool {
	return t.Withheld == "" && (as == inEager || slices.Contains(s.Inject, t.Name))
}

// weigh says what the definitions take that are shown.
func (s *ServerTools) weigh(as shape) (w weight) {
	for i := range s.Tools {
		if t := &s.Tools[i]; s.shows(t, as) {
			w.chars, w.tools = w.chars+t.Chars, w.tools+1
		}
	}
	return w
}

// openAs opens with one shape for all servers, as far as the provider takes so
// many tools: those after them, in the order of their names, are deferred.
func openAs(in *DisclosureInput, as shape) (*Surface, error) {
	p := newPlan(in, noBound)
	if as != inEager && in.Limits.Tools > 0 {
		p.bound.tools = in.Limits.Tools
	}
	for _, i := range p.open {
		p.take(i, as)
	}
	return p.surface()
}

// noRoute answers for strategies without tools of their own.
func noRoute(tool string) (Route, error) {
	return Route{}, &routeError{fmt.Sprintf("There is no tool named %q.", asLine(tool, 100)), ErrNotFound}
}

// eager shows the definition of each tool.
type eager struct{}

func (eager) Open(in *DisclosureInput) (*Surface, error) { return openAs(in, inEager) }

func (eager) Route(_ *DisclosureInput, tool string, _ json.RawMessage) (Route, error) {
	return noRoute(tool)
}

// deferred shows a line for each server.
type deferred struct{}

func (deferred) Open(in *DisclosureInput) (*Surface, error) { return newPlan(in, noBound).surface() }

func (deferred) Route(_ *DisclosureInput, tool string, _ json.RawMessage) (Route, error) {
	return noRoute(tool)
}

// auto shows what fits: all of the smallest servers, as many as the budget
// holds beside the lines of the others.
type auto struct{}

func (auto) Open(in *DisclosureInput) (*Surface, error) {
	p := newPlan(in, in.budget())
	for _, i := range p.bySize() {
		if !p.take(i, inEager) {
			break
		}
	}
	return p.surface()
}

func (auto) Route(_ *DisclosureInput, tool string, _ json.RawMessage) (Route, error) {
	return noRoute(tool)
}

// bySize lists the open servers of which something can be shown, those first
// that grow the least by it.
func (p *plan) bySize() []int {
	grows := map[int]int{}
	sized := slices.DeleteFunc(slices.Clone(p.open), func(i int) bool {
		was, _ := p.weigh(i, p.shapes[i])
		is, _ := p.weigh(i, inEager)
		grows[i] = is.chars - was.chars
		return p.in.Servers[i].weigh(inEager).tools == 0
	})
	slices.SortStableFunc(sized, func(a, b int) int { return cmp.Compare(grows[a], grows[b]) })
	return sized
}
