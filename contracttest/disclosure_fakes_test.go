package contracttest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/psych"
)

// A oneDoor is a third party's strategy: one tool calls those of all servers
// that a connection does not ask to show. It stands on a built-in one, and names
// no servers in the prompt: the model lists them.
type oneDoor struct{ psych.Disclosure }

func newOneDoor() psych.Disclosure { return oneDoor{builtin("deferred")} }

var oneDoorSchema = json.RawMessage(`{"type":"object","properties":{"server":{"type":"string"},"tool":{"type":"string"},"arguments":{"type":"object"}},"required":["server","tool"]}`)

func (d oneDoor) Open(in *psych.DisclosureInput) (*psych.Surface, error) {
	s, err := d.Disclosure.Open(in)
	if err != nil || len(s.Listed) == 0 {
		return s, err
	}
	name, ok := doorName(in, s)
	if !ok {
		return s, nil
	}
	s.Listed = nil
	s.Tools = []psych.ToolDef{{Name: name, Description: "Calls a tool of any server. list_tools names them, read_tool shows arguments.", Schema: oneDoorSchema}}
	return s, nil
}

func (d oneDoor) Route(in *psych.DisclosureInput, tool string, args json.RawMessage) (psych.Route, error) {
	if !slices.ContainsFunc(doorNames, func(name string) bool { return len(in.Servers) > 0 && tool == psych.ToolName(firstServer(in), name) }) {
		return d.Disclosure.Route(in, tool, args)
	}
	var to struct {
		Server, Tool string
		Arguments    json.RawMessage
	}
	dec := json.NewDecoder(bytes.NewReader(args))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&to); err != nil {
		return psych.Route{}, fmt.Errorf("%s takes server, tool and arguments: %w: %w", tool, psych.ErrInvalid, err)
	}
	var servers, tools []string
	for _, s := range in.Servers {
		servers = append(servers, s.Server)
		if s.Server != to.Server {
			continue
		}
		for _, t := range s.Tools {
			if tools = append(tools, t.Name); t.Name == to.Tool {
				return psych.Route{ToolRef: psych.ToolRef{Server: s.Server, Tool: t.Name}, Arguments: to.Arguments}, nil
			}
		}
		slices.Sort(tools)
		return psych.Route{}, fmt.Errorf("%s has no tool %q, but %q: %w", s.Server, to.Tool, tools, psych.ErrNotFound)
	}
	slices.Sort(servers)
	return psych.Route{}, fmt.Errorf("there is no server %q, but %q: %w", to.Server, servers, psych.ErrNotFound)
}

// doorNames are tried until one is no tool's that is shown.
var doorNames = []string{"any", "any_tool"}

func doorName(in *psych.DisclosureInput, s *psych.Surface) (string, bool) {
	for _, name := range doorNames {
		if !slices.Contains(s.Eager, psych.ToolRef{Server: firstServer(in), Tool: name}) {
			return psych.ToolName(firstServer(in), name), true
		}
	}
	return "", false
}

func firstServer(in *psych.DisclosureInput) string {
	return slices.MinFunc(in.Servers, func(a, b psych.ServerTools) int { return strings.Compare(a.Server, b.Server) }).Server
}

func builtin(name string) psych.Disclosure {
	d, ok := psych.BuiltinDisclosure(name)
	if !ok {
		panic("there is no strategy " + name)
	}
	return d
}

func TestThirdPartyDisclosure(t *testing.T) {
	contracttest.TestDisclosure(t, func(*testing.T) *contracttest.Fixture[psych.Disclosure] {
		return &contracttest.Fixture[psych.Disclosure]{Port: newOneDoor()}
	}, &contracttest.Options{Lacks: []contracttest.Need{contracttest.Budgeted}})
}

// Each rule must catch the strategies that break it, for the right reason.
func TestDisclosureRulesCatch(t *testing.T) {
	fakes := make(map[string][]disclosureFake)
	for _, f := range disclosureFakes() {
		fakes[f.rule] = append(fakes[f.rule], f)
	}
	for _, r := range contracttest.DisclosureRules() {
		if len(fakes[r.Name]) == 0 {
			t.Errorf("rule %s has no fake that it must catch", r.Name)
		}
		for _, f := range fakes[r.Name] {
			t.Run(r.Name+"/"+f.what, func(t *testing.T) {
				d := &disclosureFaults{Disclosure: newOneDoor()}
				if f.of != "" {
					d.Disclosure = builtin(f.of)
				}
				if err := r.Check(t.Context(), &contracttest.Fixture[psych.Disclosure]{Port: d}); err != nil {
					t.Fatalf("%s is not sound before it is broken: %v", f.of, err)
				}
				f.breaks(d)
				err := r.Check(t.Context(), &contracttest.Fixture[psych.Disclosure]{Port: d})
				if err == nil {
					t.Errorf("a strategy that %s was not caught: %s", f.what, r.Promise)
				} else if !strings.Contains(err.Error(), f.says) {
					t.Errorf("a strategy that %s was caught, but not for that:\n%v\nwant %q", f.what, err, f.says)
				}
			})
		}
		delete(fakes, r.Name)
	}
	for name := range fakes {
		t.Errorf("there are fakes for %s, which is no rule", name)
	}
}

// A disclosureFake breaks a sound strategy (a built-in one, or oneDoor) so that
// rule must catch it, with an error that says what went wrong.
type disclosureFake struct {
	rule, of, what, says string
	breaks               func(d *disclosureFaults)
}

// A disclosureFaults is a sound strategy whose methods a fake puts others
// before; they call the embedded one.
type disclosureFaults struct {
	psych.Disclosure
	open  func(in *psych.DisclosureInput) (*psych.Surface, error)
	route func(in *psych.DisclosureInput, tool string, args json.RawMessage) (psych.Route, error)
}

func (d *disclosureFaults) Open(in *psych.DisclosureInput) (*psych.Surface, error) {
	if d.open != nil {
		return d.open(in)
	}
	return d.Disclosure.Open(in)
}

func (d *disclosureFaults) Route(in *psych.DisclosureInput, tool string, args json.RawMessage) (psych.Route, error) {
	if d.route != nil {
		return d.route(in, tool, args)
	}
	return d.Disclosure.Route(in, tool, args)
}

// shows changes what Open returns.
func (d *disclosureFaults) shows(change func(in *psych.DisclosureInput, s *psych.Surface)) {
	d.open = func(in *psych.DisclosureInput) (*psych.Surface, error) {
		s, err := d.Disclosure.Open(in)
		if err == nil {
			change(in, s)
		}
		return s, err
	}
}

// owns changes the own tools that Open returns.
func (d *disclosureFaults) owns(change func(in *psych.DisclosureInput, def *psych.ToolDef)) {
	d.shows(func(in *psych.DisclosureInput, s *psych.Surface) {
		for i := range s.Tools {
			change(in, &s.Tools[i])
		}
	})
}

// sees changes what Open is told.
func (d *disclosureFaults) sees(change func(in *psych.DisclosureInput)) {
	d.open = func(in *psych.DisclosureInput) (*psych.Surface, error) {
		own := copied(in)
		change(own)
		return d.Disclosure.Open(own)
	}
}

// goes changes what Route returns.
func (d *disclosureFaults) goes(change func(in *psych.DisclosureInput, tool string, args json.RawMessage, r psych.Route, err error) (psych.Route, error)) {
	d.route = func(in *psych.DisclosureInput, tool string, args json.RawMessage) (psych.Route, error) {
		r, err := d.Disclosure.Route(in, tool, args)
		return change(in, tool, args, r, err)
	}
}

// fails changes the errors of Route.
func (d *disclosureFaults) fails(change func(in *psych.DisclosureInput, args json.RawMessage, err error) error) {
	d.goes(func(in *psych.DisclosureInput, _ string, args json.RawMessage, r psych.Route, err error) (psych.Route, error) {
		if err != nil {
			err = change(in, args, err)
		}
		return r, err
	})
}

func copied(in *psych.DisclosureInput) *psych.DisclosureInput {
	own := *in
	own.Servers = slices.Clone(in.Servers)
	for i := range own.Servers {
		own.Servers[i].Tools = slices.Clone(own.Servers[i].Tools)
	}
	return &own
}

// toolOf is what a call names.
func toolOf(args json.RawMessage) string {
	var to struct{ Tool string }
	_ = json.Unmarshal(args, &to) // a fake: what it can't read has no name
	return to.Tool
}

func disclosureFakes() []disclosureFake {
	return slices.Concat(openFakes(), pureFakes(), ownFakes(), routeFakes())
}

func openFakes() []disclosureFake {
	return []disclosureFake{
		{"OpenReaches", "deferred", "forgets a server", "is not shown, its server not listed", func(d *disclosureFaults) {
			d.shows(func(_ *psych.DisclosureInput, s *psych.Surface) { s.Listed = s.Listed[min(1, len(s.Listed)):] })
		}},
		{"OpenReaches", "eager", "does not list what it could not show", "is not shown, its server not listed", func(d *disclosureFaults) {
			d.shows(func(_ *psych.DisclosureInput, s *psych.Surface) { s.Listed = nil })
		}},
		{"OpenReaches", "facade", "has no room for the last tools", "no tool of the strategy's own serves it", func(d *disclosureFaults) {
			d.shows(func(_ *psych.DisclosureInput, s *psych.Surface) { s.Tools = s.Tools[:min(len(s.Tools), 12)] })
		}},
		{"OpenReaches", "facade", "calls what it lists alone", "there is no such tool", func(d *disclosureFaults) {
			d.goes(func(in *psych.DisclosureInput, _ string, _ json.RawMessage, r psych.Route, err error) (psych.Route, error) {
				if i := slices.IndexFunc(in.Servers, func(s psych.ServerTools) bool { return s.Server == r.Server }); i >= 0 {
					if s := in.Servers[i]; r.Tool == s.Tools[len(s.Tools)-1].Name && len(s.Tools) > 20 {
						return psych.Route{}, errors.New("there is no such tool")
					}
				}
				return r, err
			})
		}},
		{"OpenReaches", "facade", "folds the case of names", "GETITEM", func(d *disclosureFaults) {
			d.goes(func(in *psych.DisclosureInput, _ string, _ json.RawMessage, r psych.Route, err error) (psych.Route, error) {
				for _, s := range in.Servers {
					if i := slices.IndexFunc(s.Tools, func(t psych.ToolSummary) bool { return strings.EqualFold(t.Name, r.Tool) }); s.Server == r.Server && i >= 0 {
						r.Tool = s.Tools[i].Name
					}
				}
				return r, err
			})
		}},
		{"OpenUnreachable", "eager", "shows nothing of a server without tools", "could not be reached at first", func(d *disclosureFaults) {
			d.shows(func(in *psych.DisclosureInput, s *psych.Surface) {
				s.Listed = slices.DeleteFunc(s.Listed, func(name string) bool {
					return slices.ContainsFunc(in.Servers, func(s psych.ServerTools) bool { return s.Server == name && len(s.Tools) == 0 })
				})
			})
		}},
		{"OpenHuge", "facade", "does not cut its index", "has a definition of", func(d *disclosureFaults) {
			d.owns(func(in *psych.DisclosureInput, def *psych.ToolDef) {
				for _, t := range in.Servers[0].Tools {
					def.Description += "\n- " + t.Name
				}
			})
		}},
		{"OpenHuge", "facade", "gives up on large servers", "is not shown, its server not listed", func(d *disclosureFaults) {
			d.shows(func(in *psych.DisclosureInput, s *psych.Surface) {
				if len(in.Servers[0].Tools) > 5000 {
					s.Tools = nil
				}
			})
		}},
		{"OpenEager", "eager", "shows what there is not", "which is not permitted", func(d *disclosureFaults) {
			d.shows(func(in *psych.DisclosureInput, s *psych.Surface) {
				for _, server := range in.Servers {
					for _, name := range server.Inject {
						s.Eager = append(s.Eager, psych.ToolRef{Server: server.Server, Tool: name})
					}
				}
			})
		}},
		{"OpenEager", "eager", "mixes up servers", "which is not permitted", func(d *disclosureFaults) {
			d.shows(func(in *psych.DisclosureInput, s *psych.Surface) {
				for i := range s.Eager {
					s.Eager[i].Server = in.Servers[0].Server
				}
			})
		}},
		{"OpenListed", "deferred", "lists what there is not", "which is no connection", func(d *disclosureFaults) {
			d.shows(func(_ *psych.DisclosureInput, s *psych.Surface) { s.Listed = append(s.Listed, "others") })
		}},
		{"OpenWithheld", "eager", "shows all the same", `shown is true, want false`, func(d *disclosureFaults) {
			d.sees(func(in *psych.DisclosureInput) {
				for i := range in.Servers {
					for j := range in.Servers[i].Tools {
						in.Servers[i].Tools[j].Withheld = ""
					}
				}
			})
		}},
		{"OpenPreload", "auto", "shows what fits", "preload true", func(d *disclosureFaults) {
			d.sees(func(in *psych.DisclosureInput) {
				for i := range in.Servers {
					in.Servers[i].Preload = nil
				}
			})
		}},
		{"OpenNoPreload", "eager", "shows all", "preload false", func(d *disclosureFaults) {
			d.sees(func(in *psych.DisclosureInput) {
				for i := range in.Servers {
					in.Servers[i].Preload = nil
				}
			})
		}},
		{"OpenNoPreload", "auto", "shows what fits", "preload false", func(d *disclosureFaults) {
			d.sees(func(in *psych.DisclosureInput) {
				for i := range in.Servers {
					in.Servers[i].Preload = nil
				}
			})
		}},
		{"OpenInject", "deferred", "knows no injection", "shown is false, want true", func(d *disclosureFaults) {
			d.sees(func(in *psych.DisclosureInput) {
				for i := range in.Servers {
					in.Servers[i].Inject = nil
				}
			})
		}},
		{"OpenInject", "auto", "injects what fits", "shown is false, want true", func(d *disclosureFaults) {
			d.sees(func(in *psych.DisclosureInput) {
				for i := range in.Servers {
					in.Servers[i].Inject = slices.DeleteFunc(slices.Clone(in.Servers[i].Inject), func(name string) bool {
						return slices.ContainsFunc(in.Servers[i].Tools, func(t psych.ToolSummary) bool { return t.Name == name && t.Chars > in.Budget })
					})
				}
			})
		}},
		{"OpenBudget", "auto", "has a budget for each server", "of which", func(d *disclosureFaults) {
			d.open = func(in *psych.DisclosureInput) (*psych.Surface, error) {
				all := &psych.Surface{}
				for i := range in.Servers {
					one := *in
					one.Servers = in.Servers[i : i+1]
					s, err := d.Disclosure.Open(&one)
					if err != nil {
						return nil, err
					}
					all.Eager, all.Listed = append(all.Eager, s.Eager...), append(all.Listed, s.Listed...)
				}
				return all, nil
			}
		}},
		{"OpenBudget", "auto", "forgets the lines", "of which", func(d *disclosureFaults) {
			d.sees(func(in *psych.DisclosureInput) {
				for i := range in.Servers {
					in.Servers[i].Description = ""
				}
			})
		}},
		{"OpenTools", "auto", "counts characters alone", "definitions, of which", func(d *disclosureFaults) {
			d.sees(func(in *psych.DisclosureInput) { in.Tools = 1000 })
		}},
		{"OpenTools", "tiered", "does not count its own", "definitions, of which", func(d *disclosureFaults) {
			d.sees(func(in *psych.DisclosureInput) { in.Tools += 3 })
		}},
	}
}

// busy reports whether another call is under way.
type busy struct{ calls atomic.Int32 }

func (b *busy) beside() bool {
	defer b.calls.Add(-1)
	n := b.calls.Add(1)
	time.Sleep(time.Millisecond)
	return n > 1
}

func pureFakes() []disclosureFake {
	return []disclosureFake{
		{"OpenOrder", "auto", "decides by the first server", "in another order the Surface is another", func(d *disclosureFaults) {
			d.shows(func(in *psych.DisclosureInput, s *psych.Surface) {
				if len(in.Servers) > 0 {
					s.Decisions, _ = json.Marshal(in.Servers[0].Server)
				}
			})
		}},
		{"OpenOrder", "auto", "counts what is injected", "in another order the Surface is another", func(d *disclosureFaults) {
			d.shows(func(in *psych.DisclosureInput, s *psych.Surface) {
				for _, server := range in.Servers {
					if len(server.Inject) > 1 {
						s.Decisions, _ = json.Marshal(len(server.Inject))
					}
				}
			})
		}},
		{"OpenOrder", "facade", "lists tools as they come", "in another order the Surface is another", func(d *disclosureFaults) {
			d.owns(func(in *psych.DisclosureInput, def *psych.ToolDef) {
				for _, s := range in.Servers {
					if len(s.Tools) > 0 && def.Name == psych.ToolName(s.Server, "call") {
						def.Description = s.Tools[0].Name
					}
				}
			})
		}},
		{"OpenPure", "deferred", "counts its calls", "asked again the Surface is another", func(d *disclosureFaults) {
			n := 0
			d.shows(func(_ *psych.DisclosureInput, s *psych.Surface) { n++; s.Decisions, _ = json.Marshal(n) })
		}},
		{"OpenPure", "deferred", "sorts its input", "the input was changed by Open", func(d *disclosureFaults) {
			d.shows(func(in *psych.DisclosureInput, _ *psych.Surface) { slices.Reverse(in.Servers) })
		}},
		{"OpenPure", "deferred", "marks its input", "the input was changed by Open", func(d *disclosureFaults) {
			d.shows(func(in *psych.DisclosureInput, _ *psych.Surface) {
				for i := range in.Servers {
					for j := range in.Servers[i].Tools {
						in.Servers[i].Tools[j].Line = ""
					}
				}
			})
		}},
		{"OpenPure", "facade", "returns what it keeps", "asked again the Surface is another", func(d *disclosureFaults) {
			kept := map[string]*psych.Surface{}
			d.open = func(in *psych.DisclosureInput) (*psych.Surface, error) {
				k := fmt.Sprint(len(in.Servers), in.Limits)
				if kept[k] != nil {
					return kept[k], nil
				}
				s, err := d.Disclosure.Open(in)
				kept[k] = s
				return s, err
			}
		}},
		{"OpenConcurrent", "deferred", "is made for one caller", "beside other calls the Surface is another", func(d *disclosureFaults) {
			var b busy
			d.shows(func(_ *psych.DisclosureInput, s *psych.Surface) {
				if b.beside() {
					s.Listed = nil
				}
			})
		}},
		{"OpenDecisions", "auto", "decides in prose", "the decisions are", func(d *disclosureFaults) {
			d.shows(func(_ *psych.DisclosureInput, s *psych.Surface) { s.Decisions = json.RawMessage("what fits") })
		}},
		{"OpenDecisions", "auto", "decides nothing, and not nil", "the decisions are", func(d *disclosureFaults) {
			d.shows(func(_ *psych.DisclosureInput, s *psych.Surface) { s.Decisions = json.RawMessage{} })
		}},
	}
}

func ownFakes() []disclosureFake {
	return []disclosureFake{
		{"OwnNames", "facade", "has names that are not legal", "want a name of 1 to 64", func(d *disclosureFaults) {
			d.owns(func(_ *psych.DisclosureInput, def *psych.ToolDef) { def.Name = strings.Replace(def.Name, "__", ".", 1) })
		}},
		{"OwnNames", "facade", "has long names", "want a name of 1 to 64", func(d *disclosureFaults) {
			d.owns(func(_ *psych.DisclosureInput, def *psych.ToolDef) { def.Name += strings.Repeat("g", 60) })
		}},
		{"OwnNames", "facade", "has names of no server", "want a name that ToolName makes", func(d *disclosureFaults) {
			d.owns(func(_ *psych.DisclosureInput, def *psych.ToolDef) {
				def.Name = "my_" + def.Name[:min(len(def.Name), 30)]
			})
		}},
		{"OwnNamesApart", "facade", "has one name whatever a server's tools are", "has the name of tool", func(d *disclosureFaults) {
			d.owns(func(in *psych.DisclosureInput, def *psych.ToolDef) {
				for _, s := range in.Servers {
					if def.Name == psych.ToolName(s.Server, "call_2") || def.Name == psych.ToolName(s.Server, "call_3") {
						def.Name = psych.ToolName(s.Server, "call")
					}
				}
			})
		}},
		{"OwnNamesApart", "search", "shows a tool twice", "has the name of another own tool", func(d *disclosureFaults) {
			d.shows(func(_ *psych.DisclosureInput, s *psych.Surface) { s.Tools = slices.Concat(s.Tools, s.Tools) })
		}},
		{"OwnDescriptions", "facade", "knows no limits", "has a description of", func(d *disclosureFaults) {
			d.sees(func(in *psych.DisclosureInput) { in.Limits.ToolDescription = 0 })
		}},
		{"OwnDescriptions", "search", "says nothing", "has a description of 0", func(d *disclosureFaults) {
			d.owns(func(_ *psych.DisclosureInput, def *psych.ToolDef) { def.Description = "" })
		}},
		{"OwnSchemas", "facade", "takes an array", "is no object", func(d *disclosureFaults) {
			d.owns(func(_ *psych.DisclosureInput, def *psych.ToolDef) { def.Schema = json.RawMessage(`[]`) })
		}},
		{"OwnSchemas", "facade", "takes a string", `that of "string", want an object`, func(d *disclosureFaults) {
			d.owns(func(_ *psych.DisclosureInput, def *psych.ToolDef) { def.Schema = json.RawMessage(`{"type":"string"}`) })
		}},
		{"OwnSchemas", "facade", "has a choice at the root", "root anyOf", func(d *disclosureFaults) {
			d.owns(func(_ *psych.DisclosureInput, def *psych.ToolDef) {
				def.Schema = json.RawMessage(`{"type":"object","anyOf":[{"required":["tool"]}]}`)
			})
		}},
		{"OwnSchemas", "facade", "has odd properties", "takes no property", func(d *disclosureFaults) {
			d.owns(func(_ *psych.DisclosureInput, def *psych.ToolDef) {
				def.Schema = json.RawMessage(`{"type":"object","properties":{"the tool":{"type":"string"}}}`)
			})
		}},
		{"OwnNumber", "facade", "has a tool for each server", "own tools, want at most", func(d *disclosureFaults) {
			d.sees(func(in *psych.DisclosureInput) { in.Limits.Tools = 0 })
		}},
		{"OwnData", "facade", "shows descriptions as they are", "its description: ", func(d *disclosureFaults) {
			d.owns(func(in *psych.DisclosureInput, def *psych.ToolDef) {
				def.Description = strings.ToValidUTF8(in.Servers[0].Description, "?")
			})
		}},
		{"OwnData", "facade", "shows bytes that are not text", "is not UTF-8", func(d *disclosureFaults) {
			d.owns(func(in *psych.DisclosureInput, def *psych.ToolDef) { def.Description = in.Servers[0].Description })
		}},
		{"OwnData", "facade", "shows names as they are", "its description: ", func(d *disclosureFaults) {
			d.owns(func(in *psych.DisclosureInput, def *psych.ToolDef) {
				for _, t := range in.Servers[0].Tools {
					def.Description += "\n" + t.Name
				}
			})
		}},
		{"OwnData", "facade", "says what it was told", "of a tool that there isn't", func(d *disclosureFaults) {
			d.fails(func(_ *psych.DisclosureInput, args json.RawMessage, _ error) error {
				return fmt.Errorf("there is no %s: %w", toolOf(args), psych.ErrNotFound)
			})
		}},
	}
}

func routeFakes() []disclosureFake {
	return []disclosureFake{
		{"RoutePermitted", "facade", "leaves it to the server", "which is not permitted", func(d *disclosureFaults) {
			d.goes(func(in *psych.DisclosureInput, _ string, args json.RawMessage, r psych.Route, err error) (psych.Route, error) {
				if errors.Is(err, psych.ErrNotFound) && toolOf(args) != "" {
					return psych.Route{ToolRef: psych.ToolRef{Server: in.Servers[0].Server, Tool: toolOf(args)}}, nil
				}
				return r, err
			})
		}},
		{"RoutePermitted", "search", "lists what it is asked for", "which is no connection", func(d *disclosureFaults) {
			d.goes(func(_ *psych.DisclosureInput, _ string, _ json.RawMessage, r psych.Route, err error) (psych.Route, error) {
				if r.List != nil {
					r.List.Server = r.List.Query
				}
				return r, err
			})
		}},
		{"RoutePermitted", "search", "lists from anywhere", "it lists from -1", func(d *disclosureFaults) {
			d.goes(func(in *psych.DisclosureInput, _ string, args json.RawMessage, r psych.Route, err error) (psych.Route, error) {
				if bytes.Contains(args, []byte(`"offset":-1`)) {
					return psych.Route{List: &psych.ListQuery{Offset: -1}}, nil
				}
				return r, err
			})
		}},
		{"RoutePermitted", "facade", "panics at null", "panicked", func(d *disclosureFaults) {
			d.goes(func(_ *psych.DisclosureInput, _ string, args json.RawMessage, r psych.Route, err error) (psych.Route, error) {
				var to struct{ Tool *string }
				if json.Unmarshal(args, &to) == nil {
					_ = *to.Tool
				}
				return r, err
			})
		}},
		{"RouteNow", "facade", "remembers the opening", "which is permitted now", func(d *disclosureFaults) {
			opened := map[int]*psych.DisclosureInput{}
			d.open = func(in *psych.DisclosureInput) (*psych.Surface, error) {
				opened[len(in.Servers)] = copied(in)
				return d.Disclosure.Open(in)
			}
			d.route = func(in *psych.DisclosureInput, tool string, args json.RawMessage) (psych.Route, error) {
				return d.Disclosure.Route(opened[len(in.Servers)], tool, args)
			}
		}},
		{"RouteNow", "tiered", "forgets a tool of a server that grew", "which is permitted now", func(d *disclosureFaults) {
			d.goes(func(in *psych.DisclosureInput, _ string, _ json.RawMessage, r psych.Route, err error) (psych.Route, error) {
				if slices.ContainsFunc(in.Servers, func(s psych.ServerTools) bool { return s.Server == r.Server && len(s.Tools) > 120 }) {
					return psych.Route{}, fmt.Errorf("it is a pair now: %w", psych.ErrNotFound)
				}
				return r, err
			})
		}},
		{"RouteUnknownTool", "facade", "says nothing of what there is", "want it to name", func(d *disclosureFaults) {
			d.fails(func(*psych.DisclosureInput, json.RawMessage, error) error { return psych.ErrNotFound })
		}},
		{"RouteUnknownTool", "facade", "says something else", "want one that matches", func(d *disclosureFaults) {
			d.fails(func(_ *psych.DisclosureInput, _ json.RawMessage, err error) error { return errors.New(err.Error()) })
		}},
		{"RouteUnknownTool", "facade", "takes the nearest", "got error <nil>", func(d *disclosureFaults) {
			d.goes(func(in *psych.DisclosureInput, _ string, args json.RawMessage, r psych.Route, err error) (psych.Route, error) {
				for _, s := range in.Servers {
					for _, t := range s.Tools {
						if toolOf(args) == t.Name+"_x" {
							return psych.Route{ToolRef: psych.ToolRef{Server: s.Server, Tool: t.Name}}, nil
						}
					}
				}
				return r, err
			})
		}},
		{"RouteUnknownTool", "", "does not name servers", "want it to name", func(d *disclosureFaults) {
			d.fails(func(_ *psych.DisclosureInput, _ json.RawMessage, err error) error {
				if strings.HasPrefix(err.Error(), "there is no server") {
					return fmt.Errorf("there is no such server: %w", psych.ErrNotFound)
				}
				return err
			})
		}},
		{"RouteUnknownName", "facade", "takes any name", "got error <nil>", func(d *disclosureFaults) {
			d.goes(func(in *psych.DisclosureInput, _ string, _ json.RawMessage, r psych.Route, err error) (psych.Route, error) {
				if errors.Is(err, psych.ErrNotFound) {
					return psych.Route{List: &psych.ListQuery{}}, nil
				}
				return r, err
			})
		}},
		{"RouteUnknownName", "eager", "says something else", "want one that matches", func(d *disclosureFaults) {
			d.fails(func(*psych.DisclosureInput, json.RawMessage, error) error { return psych.ErrInvalid })
		}},
		{"RouteArguments", "facade", "decodes numbers", "passes on", func(d *disclosureFaults) {
			d.goes(func(_ *psych.DisclosureInput, _ string, _ json.RawMessage, r psych.Route, err error) (psych.Route, error) {
				var v any
				if json.Unmarshal(r.Arguments, &v) == nil {
					r.Arguments, _ = json.Marshal(v)
				}
				return r, err
			})
		}},
		{"RouteArguments", "facade", "wants an object", "want an object", func(d *disclosureFaults) {
			d.goes(func(_ *psych.DisclosureInput, _ string, _ json.RawMessage, r psych.Route, err error) (psych.Route, error) {
				if bytes.HasPrefix(r.Arguments, []byte(`"`)) {
					return psych.Route{}, fmt.Errorf("want an object: %w", psych.ErrInvalid)
				}
				return r, err
			})
		}},
		{"RouteArguments", "", "loses them", "passes on", func(d *disclosureFaults) {
			d.goes(func(_ *psych.DisclosureInput, _ string, _ json.RawMessage, r psych.Route, err error) (psych.Route, error) {
				r.Arguments = nil
				return r, err
			})
		}},
		{"RouteUnknownArguments", "search", "does not mind", "got error <nil>", func(d *disclosureFaults) {
			d.route = func(in *psych.DisclosureInput, tool string, args json.RawMessage) (psych.Route, error) {
				return d.Disclosure.Route(in, tool, bytes.Replace(args, []byte(`,"surprise":1`), nil, 1))
			}
		}},
		{"RouteUnknownArguments", "search", "says something else", "want one that matches", func(d *disclosureFaults) {
			d.fails(func(_ *psych.DisclosureInput, _ json.RawMessage, err error) error { return errors.New(err.Error()) })
		}},
		{"RouteWrongArguments", "search", "does not mind", "got error <nil>", func(d *disclosureFaults) {
			d.goes(func(in *psych.DisclosureInput, _ string, _ json.RawMessage, r psych.Route, err error) (psych.Route, error) {
				if errors.Is(err, psych.ErrInvalid) {
					return psych.Route{List: &psych.ListQuery{}}, nil
				}
				return r, err
			})
		}},
		{"RouteWrongArguments", "", "says something else", "want one that matches", func(d *disclosureFaults) {
			d.fails(func(_ *psych.DisclosureInput, _ json.RawMessage, err error) error { return psych.ErrNotFound })
		}},
		{"RouteOrder", "facade", "names what comes first", "in another order", func(d *disclosureFaults) {
			d.fails(func(in *psych.DisclosureInput, _ json.RawMessage, err error) error {
				return fmt.Errorf("%s is first: %w", in.Servers[0].Server, err)
			})
		}},
		{"RoutePure", "facade", "counts its calls", "called again", func(d *disclosureFaults) {
			n := 0
			d.fails(func(_ *psych.DisclosureInput, _ json.RawMessage, err error) error {
				n++
				return fmt.Errorf("failure %d: %w", n, err)
			})
		}},
		{"RoutePure", "facade", "uses the arguments up", "changed its arguments", func(d *disclosureFaults) {
			d.goes(func(_ *psych.DisclosureInput, _ string, args json.RawMessage, r psych.Route, err error) (psych.Route, error) {
				r.Arguments = bytes.Clone(r.Arguments)
				clear(args)
				return r, err
			})
		}},
		{"RoutePure", "facade", "sorts its input", "changed the input", func(d *disclosureFaults) {
			d.goes(func(in *psych.DisclosureInput, _ string, _ json.RawMessage, r psych.Route, err error) (psych.Route, error) {
				slices.Reverse(in.Servers)
				for i := range in.Servers {
					slices.Reverse(in.Servers[i].Tools)
				}
				return r, err
			})
		}},
		{"RouteConcurrent", "facade", "is made for one caller", "beside other calls", func(d *disclosureFaults) {
			var b busy
			d.goes(func(_ *psych.DisclosureInput, _ string, _ json.RawMessage, r psych.Route, err error) (psych.Route, error) {
				if b.beside() {
					return psych.Route{}, errors.New("busy")
				}
				return r, err
			})
		}},
		{"RouteConcurrent", "facade", "keeps the last call", "beside other calls", func(d *disclosureFaults) {
			var mu sync.Mutex
			var last psych.Route
			d.goes(func(_ *psych.DisclosureInput, _ string, _ json.RawMessage, r psych.Route, err error) (psych.Route, error) {
				mu.Lock()
				last = r
				mu.Unlock()
				time.Sleep(time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				return last, err
			})
		}},
	}
}
