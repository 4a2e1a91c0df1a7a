package psych

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// A facade shows one tool a server, which calls any of its tools by name; its
// description lists them.
type facade struct{}

func (facade) Open(in *DisclosureInput) (*Surface, error) { return openAs(in, inFacade) }

func (facade) Route(in *DisclosureInput, tool string, args json.RawMessage) (Route, error) {
	return routeOwn(in, tool, args)
}

// A searchPair shows two tools a server: one finds its tools, one calls them.
type searchPair struct{}

func (searchPair) Open(in *DisclosureInput) (*Surface, error) { return openAs(in, inSearch) }

func (searchPair) Route(in *DisclosureInput, tool string, args json.RawMessage) (Route, error) {
	return routeOwn(in, tool, args)
}

// The tiers: up to which size a server's definitions are shown, and up to which
// its tools are listed in a facade. Larger ones are searched.
const (
	// What a look at a larger server costs: list_tools answers with pages of up
	// to so many characters. It is also half of the default budget, so that no
	// server takes all of that.
	tierEagerChars = listedChars

	// Names among which a model chooses well by their first lines: as many as
	// the definitions that are shown by default. Their lines take some 4,000
	// characters, where the pair that searches takes 600, and costs a turn more
	// to find a tool.
	tierFacadeTools = defaultDisclosureTools
)

// tiered chooses a shape for each server by its size, the smallest first, within
// the budget: the first of eager, facade and search that it is not too large
// for and that still fits; deferred if none does.
type tiered struct{}

func (tiered) Open(in *DisclosureInput) (*Surface, error) {
	p := newPlan(in, in.budget())
	bySize := slices.Clone(p.open)
	slices.SortStableFunc(bySize, func(a, b int) int {
		return cmp.Compare(p.in.Servers[a].definitions(), p.in.Servers[b].definitions())
	})
	for _, i := range bySize {
		for _, as := range p.in.Servers[i].tiers(in.Limits) {
			if p.take(i, as) {
				break
			}
		}
	}
	return p.surface()
}

func (tiered) Route(in *DisclosureInput, tool string, args json.RawMessage) (Route, error) {
	return routeOwn(in, tool, args)
}

// definitions is how many characters the definitions of all tools take, those
// too that can't be shown.
func (s *ServerTools) definitions() (chars int) {
	for i := range s.Tools {
		chars += s.Tools[i].Chars
	}
	return chars
}

// tiers lists the shapes that a server is not too large for.
func (s *ServerTools) tiers(limits ModelLimits) []shape {
	as := []shape{inEager, inFacade, inSearch}
	if s.definitions() > tierEagerChars || s.weigh(inEager).tools == 0 {
		as = as[1:]
	}
	if len(s.Tools) > tierFacadeTools || s.indexed(limits) < len(s.Tools) {
		as = slices.DeleteFunc(as, func(as shape) bool { return as == inFacade })
	}
	return as
}

// Names of the strategies' own tools, as if they were the server's.
const (
	ownCall   = "call"
	ownSearch = "search"

	// ownNames is how many names are tried, call, call_2 and so on, until one
	// is no tool's. A server that has them all is deferred.
	ownNames = 4
)

// nthName is the nth of the names that are tried.
func nthName(name string, n int) string {
	if n == 0 {
		return name
	}
	return fmt.Sprintf("%s_%d", name, n+1)
}

// freeName makes a name for an own tool which none of the server's has.
func (s *ServerTools) freeName(name string) (wire string, ok bool) {
	for n := range ownNames {
		name := nthName(name, n)
		if !slices.ContainsFunc(s.Tools, func(t ToolSummary) bool { return t.Name == name }) {
			return ToolName(s.Server, name), true
		}
	}
	return "", false
}

// What is shown of their arguments.
var (
	callSchema   = json.RawMessage(`{"type":"object","properties":{"tool":{"type":"string"},"input":{"type":"object","description":"the tool's arguments"}},"required":["tool","input"]}`)
	searchSchema = json.RawMessage(`{"type":"object","properties":{"query":{"type":"string","description":"what the tool does"},"offset":{"type":"integer"}},"required":["query"]}`)
)

// ownSchemas are what their arguments must match: call takes input of any type
// here, since some models send an object as a string.
var ownSchemas = sync.OnceValue(func() map[string]*schema {
	all := map[string]*schema{}
	for name, raw := range map[string]string{
		ownCall:   `{"type":"object","properties":{"tool":{"type":"string"},"input":{}},"required":["tool"],"additionalProperties":false}`,
		ownSearch: `{"type":"object","properties":{"query":{"type":["string","null"]},"offset":{"type":["integer","null"],"minimum":0,"maximum":1000000000}},"additionalProperties":false}`,
	} {
		s, err := compileSchema(json.RawMessage(raw))
		if err != nil {
			panic(err) // a constant's
		}
		all[name] = s
	}
	return all
})

// maxIndexChars bounds the description of an own tool where the provider does
// not: a page of list_tools.
const maxIndexChars = listedChars

// descriptionRoom is how many characters a description may have.
func descriptionRoom(limits ModelLimits) int {
	if limits.ToolDescription > 0 {
		return min(limits.ToolDescription, maxIndexChars)
	}
	return maxIndexChars
}

// own makes the tools of a shape for a server: none where there is no name for
// them.
func (s *ServerTools) own(as shape, limits ModelLimits) []ToolDef {
	if as != inFacade && as != inSearch {
		return nil
	}
	room := descriptionRoom(limits)
	call, ok := s.freeName(ownCall)
	if !ok {
		return nil
	}
	if as == inFacade {
		text, _ := s.facadeText(room)
		return []ToolDef{{call, text, callSchema}}
	}
	search, ok := s.freeName(ownSearch)
	if !ok {
		return nil
	}
	return []ToolDef{
		{search, clipChars("Searches the tools of "+s.named()+". Go on with offset.", room), searchSchema},
		{call, clipChars("Calls a tool of "+s.Server+" that "+search+" found. "+readToolName+" shows its arguments.", room), callSchema},
	}
}

// named is the server with what it is.
func (s *ServerTools) named() string {
	if d := asLine(s.Description, maxServerLine); d != "" {
		return s.Server + " (" + d + ")"
	}
	return s.Server
}

// indexed says how many tools the description of a facade lists.
func (s *ServerTools) indexed(limits ModelLimits) int {
	_, n := s.facadeText(descriptionRoom(limits))
	return n
}

// facadeText is the description of a facade, in at most room characters, and
// how many tools it lists. Before names are left out lines become shorter.
func (s *ServerTools) facadeText(room int) (text string, listed int) {
	head := "Calls a tool of " + s.named() + ". " + readToolName + " shows its arguments. Tools:"
	left := room - utf8.RuneCountInString(head)
	for _, width := range []int{maxServerLine, 150, 100, 75, 50, 35, 25, 0} {
		if text, n := s.index(width, left); n == len(s.Tools) {
			return head + text, n
		}
	}
	rest := func(n int) string {
		return fmt.Sprintf("\n%d more, which %s finds with server %q.", n, listToolsName, s.Server)
	}
	text, n := s.index(0, left-len(rest(len(s.Tools))))
	return clipChars(head+text+rest(len(s.Tools)-n), room), n
}

// index is a line for each of the first n tools, as many as have room, with at
// most width characters of what each does.
func (s *ServerTools) index(width, room int) (text string, n int) {
	var b strings.Builder
	for i := range s.Tools {
		t := &s.Tools[i]
		line := "\n- " + asLine(t.Name, maxRemoteName)
		if width > 0 && t.Line != "" {
			line += ": " + asLine(t.Line, width)
		}
		if room -= utf8.RuneCountInString(line); room < 0 {
			return b.String(), i
		}
		b.WriteString(line)
	}
	return b.String(), len(s.Tools)
}

// A routeError says to the model why a call of an own tool goes nowhere.
type routeError struct {
	message string
	kind    error
}

func (e *routeError) Error() string { return e.message }
func (e *routeError) Unwrap() error { return e.kind }

// routeOwn says where a call of an own tool goes. It goes by the name alone,
// whatever shape the server would have now: it was opened with that name.
func routeOwn(in *DisclosureInput, name string, args json.RawMessage) (Route, error) {
	server, own := in.owner(name)
	if server == nil {
		return noRoute(name)
	}
	args, err := ownSchemas()[own].prepare(name, args)
	if err != nil {
		return Route{}, &routeError{err.Error(), ErrInvalid}
	}
	if own == ownSearch {
		q := &ListQuery{}
		if err := json.Unmarshal(args, q); err != nil {
			return Route{}, &routeError{err.Error(), ErrInvalid}
		}
		q.Server = server.Server
		return Route{List: q}, nil
	}
	var to struct {
		Tool  string          `json:"tool"`
		Input json.RawMessage `json:"input"`
	}
	if err := json.Unmarshal(args, &to); err != nil {
		return Route{}, &routeError{err.Error(), ErrInvalid}
	}
	tool, err := server.find(to.Tool)
	if err != nil {
		return Route{}, err
	}
	return Route{ToolRef: ToolRef{server.Server, tool}, Arguments: to.Input}, nil
}

// owner finds the server that has an own tool, and which of them it is.
func (in *DisclosureInput) owner(wire string) (server *ServerTools, own string) {
	for i := range in.Servers {
		server := &in.Servers[i]
		for _, own := range []string{ownCall, ownSearch} {
			for n := range ownNames {
				if ToolName(server.Server, nthName(own, n)) == wire {
					return server, own
				}
			}
		}
	}
	return nil, ""
}

// find finds a tool by the name that the model gave: the server's own, that on
// the wire, or as a line shows it.
func (s *ServerTools) find(name string) (string, error) {
	var found []string
	for i := range s.Tools {
		switch t := s.Tools[i].Name; {
		case t == name:
			return t, nil
		case ToolName(s.Server, t) == name || asLine(t, maxRemoteName) == name:
			found = append(found, t)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	names := make([]string, len(s.Tools))
	for i := range s.Tools {
		names[i] = s.Tools[i].Name
	}
	return "", &routeError{noSuchTool(s.Server, name, names), ErrNotFound}
}

// noSuchTool is what the model is told that named a tool of a server which is
// not among those that it may use, in at most 4,000 characters.
func noSuchTool(server, tool string, known []string) string {
	if len(known) == 0 {
		return fmt.Sprintf("There is no tool that may be used of %s.", server)
	}
	near := nearest(tool, known, 10)
	for i := range near {
		near[i] = asLine(near[i], maxRemoteName)
	}
	return clipChars(fmt.Sprintf("%s has no tool named %q that may be used. The nearest of %d: %s. %s with server %q finds others.", server, asLine(tool, 100), len(known), strings.Join(near, ", "), listToolsName, server), maxModelMessage)
}
