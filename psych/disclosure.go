package psych

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Disclosure is a strategy that decides which of the permitted tools of
// servers the model is shown, and how. Both methods are pure functions of their
// arguments, and deterministic. contracttest.DisclosureRules checks it.
//
// Whatever the strategy shows, the model has list_tools, read_tool and
// call_tool, which reach every permitted tool.
type Disclosure interface {
	// Open decides what a Run is opened with. It is asked once, before the
	// first turn, and again where the Run is opened anew; what it returned
	// stays as it is in between.
	Open(in *DisclosureInput) (*Surface, error)

	// Route says where a call of one of the Surface's own Tools goes, with
	// what is permitted now. An error is told to the model.
	Route(in *DisclosureInput, tool string, args json.RawMessage) (Route, error)
}

// DisclosureInput is all that a strategy may know.
type DisclosureInput struct {
	Servers []ServerTools // sorted by name
	Budget  int           // of characters, of all that servers add to the prompt
	Tools   int           // most definitions that are shown
	Limits  ModelLimits   // of the provider
}

// ServerTools is a connection as it is permitted now.
type ServerTools struct {
	Server, Description string
	Preload             *bool
	Inject              []string
	Tools               []ToolSummary // sorted by name; none where the server can't be reached yet
}

// A ToolSummary is what is known of a tool without reading its definition.
type ToolSummary struct {
	Name     string // the server's own
	Line     string // of its description, on one line of at most 200 characters; may be empty
	Chars    int    // of its definition, as it is shown
	Withheld string // why its definition can't be shown; "" if it can
}

// A Surface is what a Run is opened with. Order means nothing.
type Surface struct {
	Eager  []ToolRef // tools that are shown by their definitions
	Listed []string  // servers that have a line in zone 1, since some of their tools aren't shown
	Tools  []ToolDef // further tools, the strategy's own, with names that ToolName makes of a server

	// Decisions are kept with the opening, for a person to read.
	Decisions json.RawMessage
}

// A ToolRef names a tool of a server.
type ToolRef struct {
	Server string `json:"server"`
	Tool   string `json:"tool"`
}

// A Route is where a call goes: to a tool of a server, or, with List, to a
// listing that psych makes.
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
	Offset int    `json:"offset,omitempty"`
}

// DisclosureSpec picks a strategy by name. It is part of a Spec's hash, since
// it changes what the model is shown.
type DisclosureSpec struct {
	Strategy string `json:"strategy,omitempty"` // "" is auto
	Budget   int    `json:"budget,omitempty"`   // of characters that servers add to the prompt, all together; 16000
	Tools    int    `json:"tools,omitempty"`    // most definitions that are shown; 40
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
	"auto":     auto{},
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
// more follow: what strangers wrote stays one line of data.
func asLine(s string, n int) string {
	return clipChars(strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "\ufffd"), breaksLine), " "), n)
}

// breaksLine reports what can't stand within a line: spaces, controls, and the
// characters that change the direction or hide.
func breaksLine(r rune) bool {
	return unicode.IsSpace(r) || unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) && r != '\u200d'
}

// shown adds to s the tools of a server whose definitions can be shown, and its
// line if those are not all, since the others are to be found too.
func (s *Surface) shown(server *ServerTools, wanted func(*ToolSummary) bool) {
	all := len(server.Tools) > 0
	for i := range server.Tools {
		t := &server.Tools[i]
		if wanted(t) && t.Withheld == "" {
			s.Eager = append(s.Eager, ToolRef{server.Server, t.Name})
		} else {
			all = false
		}
	}
	if !all {
		s.Listed = append(s.Listed, server.Server)
	}
}

func every(*ToolSummary) bool { return true }

// injected wants the tools that a connection names.
func (s *ServerTools) injected(t *ToolSummary) bool { return slices.Contains(s.Inject, t.Name) }

// noRoute answers for strategies without tools of their own.
func noRoute(tool string) (Route, error) {
	return Route{}, fmt.Errorf("psych: %.80q is no tool of this strategy: %w", tool, ErrNotFound)
}

// eager shows the definition of each tool, but of connections that are not to
// be preloaded.
type eager struct{}

func (eager) Open(in *DisclosureInput) (*Surface, error) {
	s := &Surface{}
	for i := range in.Servers {
		server := &in.Servers[i]
		if server.Preload != nil && !*server.Preload {
			s.shown(server, server.injected)
		} else {
			s.shown(server, every)
		}
	}
	return s, nil
}

func (eager) Route(_ *DisclosureInput, tool string, _ json.RawMessage) (Route, error) {
	return noRoute(tool)
}

// deferred shows a line for each server, but for connections to be preloaded.
type deferred struct{}

func (deferred) Open(in *DisclosureInput) (*Surface, error) {
	s := &Surface{}
	for i := range in.Servers {
		server := &in.Servers[i]
		if server.Preload != nil && *server.Preload {
			s.shown(server, every)
		} else {
			s.shown(server, server.injected)
		}
	}
	return s, nil
}

func (deferred) Route(_ *DisclosureInput, tool string, _ json.RawMessage) (Route, error) {
	return noRoute(tool)
}

// auto shows what fits: all of the smallest servers, as many as the budget
// holds beside the lines of the others.
type auto struct{}

func (auto) Open(in *DisclosureInput) (*Surface, error) {
	type candidate struct {
		at, chars, tools int
	}
	chars, tools := in.Budget, in.Tools
	if in.Limits.Tools > 0 {
		tools = min(tools, in.Limits.Tools)
	}
	var open []candidate
	whole := map[int]bool{}
	for i := range in.Servers {
		server := &in.Servers[i]
		all, some := weigh(server, every), weigh(server, server.injected)
		switch line := utf8.RuneCountInString(serverLine(server.Server, server.Description)) + 1; {
		case server.Preload != nil && *server.Preload:
			whole[i] = true
			chars, tools = chars-all.chars, tools-all.tools
		case server.Preload != nil || all.tools == 0:
			chars, tools = chars-some.chars-line, tools-some.tools
		default:
			chars, tools = chars-some.chars-line, tools-some.tools
			if all.tools == len(server.Tools) { // else its line stays anyway
				all.chars -= line
			}
			open = append(open, candidate{i, all.chars - some.chars, all.tools - some.tools})
		}
	}
	slices.SortStableFunc(open, func(a, b candidate) int { return cmp.Compare(a.chars, b.chars) })
	for _, c := range open {
		if c.chars > chars || c.tools > tools {
			break
		}
		whole[c.at] = true
		chars, tools = chars-c.chars, tools-c.tools
	}
	s := &Surface{}
	for i := range in.Servers {
		if whole[i] {
			s.shown(&in.Servers[i], every)
		} else {
			s.shown(&in.Servers[i], in.Servers[i].injected)
		}
	}
	return s, nil
}

func (auto) Route(_ *DisclosureInput, tool string, _ json.RawMessage) (Route, error) {
	return noRoute(tool)
}

// A weight is what showing tools costs.
type weight struct{ chars, tools int }

func weigh(s *ServerTools, wanted func(*ToolSummary) bool) (w weight) {
	for i := range s.Tools {
		if t := &s.Tools[i]; t.Withheld == "" && wanted(t) {
			w.chars += t.Chars
			w.tools++
		}
	}
	return w
}
