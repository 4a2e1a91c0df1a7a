package psych_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/psych-go/psych-go/adapters/openai"
	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/psych"
)

func builtin(t *testing.T, name string) psych.Disclosure {
	t.Helper()
	d, ok := psych.BuiltinDisclosure(name)
	if !ok {
		t.Fatalf("there is no strategy %q", name)
	}
	return d
}

func TestDisclosureContract(t *testing.T) {
	budgeted := []string{"deferred", "auto", "tiered"}
	for _, name := range []string{"eager", "deferred", "facade", "search", "tiered", "auto"} {
		o := &contracttest.Options{}
		if !slices.Contains(budgeted, name) {
			o.Lacks = []contracttest.Need{contracttest.Budgeted}
		}
		t.Run(name, func(t *testing.T) {
			contracttest.TestDisclosure(t, func(t *testing.T) *contracttest.Fixture[psych.Disclosure] {
				return &contracttest.Fixture[psych.Disclosure]{Port: builtin(t, name)}
			}, o)
		})
	}
	if _, ok := psych.BuiltinDisclosure("lazy"); ok {
		t.Error(`there is a strategy "lazy"`)
	}
}

// withGenerated gives a harness servers of some sizes.
func (h *harness) withGenerated(sizes ...int) *network {
	n := newNetwork()
	var cs []psych.Connection
	for _, s := range contracttest.GenerateServers(sizes...) {
		c := n.add(s.Name, s.Tools...)
		c.Description = s.Description
		cs = append(cs, c)
	}
	h.withServers(n, cs...)
	return n
}

// disclosed is what a strategy adds to a request, encoded for a provider.
func (h *harness) disclosed(strategy string, codec psych.Codec) *psych.DisclosureReport {
	h.t.Helper()
	h.spec.Disclosure.Strategy = strategy
	rep, err := h.rt.Disclose(context.Background(), psych.Scope{Tenant: "t"}, &h.spec, codec)
	if err != nil {
		h.t.Fatal(err)
	}
	return rep
}

// What each strategy adds to a request, in characters: for a provider with
// OpenAI's limits, and for one without.
func TestStrategyCharacters(t *testing.T) {
	limited, free := openai.New("m", nil).Codec(), openai.New("m", &openai.Options{Limits: &psych.ModelLimits{}}).Codec()
	for _, c := range []struct {
		what  string
		sizes []int
		most  map[string][2]int // characters for limited and free
	}{
		{"70 servers, 527 tools", contracttest.ManyServers(), map[string][2]int{
			"eager": {200_000, 500_000}, "deferred": {14_000, 14_000}, "facade": {70_000, 130_000}, "search": {62_000, 62_000}, "tiered": {20_000, 20_000}, "auto": {20_000, 20_000},
		}},
		{"1 server, 117 tools", []int{117}, map[string][2]int{
			"eager": {90_000, 110_000}, "deferred": {1_500, 1_500}, "facade": {2_600, 10_000}, "search": {2_000, 2_000}, "tiered": {2_000, 2_000}, "auto": {1_500, 1_500},
		}},
		{"12 servers, 92 tools", []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 25}, map[string][2]int{
			"eager": {60_000, 80_000}, "deferred": {4_000, 4_000}, "facade": {20_000, 25_000}, "search": {12_000, 12_000}, "tiered": {20_000, 20_000}, "auto": {20_000, 20_000},
		}},
	} {
		h := newHarness(t, "steps: [{text: done}]")
		h.withGenerated(c.sizes...)
		for _, strategy := range h.rt.Strategies() {
			var got [2]int
			for i, codec := range []psych.Codec{limited, free} {
				rep := h.disclosed(strategy, codec)
				if got[i] = rep.Chars; rep.Chars > c.most[strategy][i] || rep.Chars < 500 {
					t.Errorf("%s: %s adds %d characters, want 500 to %d", c.what, strategy, rep.Chars, c.most[strategy][i])
				}
			}
			t.Logf("%s: %-8s adds %7d characters; %7d without limits", c.what, strategy, got[0], got[1])
		}
	}
}

// One budget holds for all connections together, with the three meta tools and
// what surrounds the lines.
func TestAutoManyServers(t *testing.T) {
	h := newHarness(t, "steps: [{text: done}]")
	h.withGenerated(contracttest.ManyServers()...)
	rep := h.disclosed("", openai.New("m", nil).Codec())
	if rep.Strategy != "auto" || rep.Chars > 20_000 || rep.Chars < 15_000 || len(rep.Eager) == 0 || rep.Listed == 0 {
		t.Errorf("70 servers add %d characters with %d tools shown and %d lines, want 15,000 to 20,000 that use the budget", rep.Chars, len(rep.Eager), rep.Listed)
	}
}

// What one deferred server adds does not depend on its size; each further one
// adds its name and a line.
func TestDeferredServers(t *testing.T) {
	codec := openai.New("m", nil).Codec()
	long := strings.Repeat("all that somebody may say of a server ", 20)
	measure := func(tools int, names ...string) int {
		n := newNetwork()
		h := newHarness(t, "steps: [{text: done}]")
		var cs []psych.Connection
		for _, name := range names {
			c := n.add(name, remoteTools("tool", tools, 300)...)
			c.Preload, c.Description = no(), long
			cs = append(cs, c)
		}
		h.withServers(n, cs...)
		return h.disclosed("auto", codec).Chars
	}
	one := measure(117, "first")
	if large := measure(3000, "first"); one != large || one >= 1500 {
		t.Errorf("a deferred server of 117 tools adds %d characters, and one of 3,000 %d: want the same, under 1,500", one, large)
	}
	further := strings.Repeat("n", 64)
	if two := measure(1, "first", further); two-one > len(further)+210 {
		t.Errorf("a further server adds %d characters, want at most its name and 210", two-one)
	}
	t.Logf("one %d characters, a further one its name and %d", one, measure(1, "first", further)-one-len(further))
}

// ofTools is a server with some tools whose definitions take some characters
// all together.
func ofTools(name string, tools, chars int) psych.ServerTools {
	s := psych.ServerTools{Server: name, Description: "What " + name + " does."}
	for i := range tools {
		s.Tools = append(s.Tools, psych.ToolSummary{Name: fmt.Sprintf("tool_%04d", i), Line: "Does something.", Chars: chars / tools})
	}
	s.Tools[0].Chars += chars % tools
	return s
}

type decisions struct {
	Chars, Tools int
	Servers      map[string]string
}

func decided(t *testing.T, strategy string, in *psych.DisclosureInput) (d decisions, s *psych.Surface) {
	t.Helper()
	s, err := builtin(t, strategy).Open(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(s.Decisions, &d); err != nil {
		t.Fatal(err)
	}
	return d, s
}

// Each tier gives way to the next at its border.
func TestTierBorders(t *testing.T) {
	wide := psych.DisclosureInput{Budget: 1_000_000, Tools: 1000}
	for _, c := range []struct {
		what   string
		server psych.ServerTools
		limits psych.ModelLimits
		want   string
	}{
		{"definitions of 8,000 characters", ofTools("s", 10, 8000), psych.ModelLimits{}, "eager"},
		{"one character more", ofTools("s", 10, 8001), psych.ModelLimits{}, "facade"},
		{"as many tools as are shown at most", ofTools("s", 40, 8001), psych.ModelLimits{}, "facade"},
		{"one tool more", ofTools("s", 41, 8001), psych.ModelLimits{}, "search"},
		{"small tools, and many", ofTools("s", 100, 8000), psych.ModelLimits{}, "eager"},
	} {
		in := wide
		in.Servers, in.Limits = []psych.ServerTools{c.server}, c.limits
		if d, _ := decided(t, "tiered", &in); d.Servers["s"] != c.want {
			t.Errorf("%s: %s, want %s", c.what, d.Servers["s"], c.want)
		}
	}
	// A facade lists each of its tools, however short the provider's
	// descriptions are.
	in := wide
	in.Servers = []psych.ServerTools{ofTools("s", 40, 9000)}
	border := 0
	for n := 1; n < 2000 && border == 0; n++ {
		in.Limits.ToolDescription = n
		if d, s := decided(t, "tiered", &in); d.Servers["s"] == "facade" {
			border = n
			for _, tool := range in.Servers[0].Tools {
				if !strings.Contains(s.Tools[0].Description, "\n- "+tool.Name) {
					t.Errorf("with descriptions of %d characters the facade leaves %s out", n, tool.Name)
				}
			}
		} else if d.Servers["s"] != "search" {
			t.Errorf("with descriptions of %d characters: %s, want search", n, d.Servers["s"])
		}
	}
	if border < 40*len("\n- tool_0000") {
		t.Errorf("the facade needs descriptions of %d characters", border)
	}
}

// Where the budget is spent a server gets the next smaller shape that fits.
func TestBudgetBorders(t *testing.T) {
	for _, c := range []struct {
		strategy, shape, next string
		server                psych.ServerTools
	}{
		{"auto", "eager", "deferred", ofTools("s", 10, 5000)},
		{"tiered", "eager", "facade", ofTools("s", 10, 5000)},
		{"tiered", "facade", "search", ofTools("s", 40, 9000)},
		{"tiered", "search", "deferred", ofTools("s", 100, 50_000)},
	} {
		in := &psych.DisclosureInput{Budget: 1_000_000, Tools: 1000, Servers: []psych.ServerTools{c.server}}
		d, _ := decided(t, c.strategy, in)
		takes := d
		for _, b := range []struct {
			what          string
			budget, tools int
			limit         int
			want          string
		}{
			{"what it takes", takes.Chars, takes.Tools, 0, c.shape},
			{"a character less", takes.Chars - 1, 1000, 0, c.next},
			{"a provider that takes as many", takes.Chars, 1000, takes.Tools, c.shape},
		} {
			in.Budget, in.Tools, in.Limits.Tools = b.budget, b.tools, b.limit
			if d, _ := decided(t, c.strategy, in); d.Servers["s"] != b.want || d.Chars > max(b.budget, 100) {
				t.Errorf("%s within %s: %s of %d characters, want %s", c.strategy, b.what, d.Servers["s"], d.Chars, b.want)
			}
		}
		in.Budget, in.Limits.Tools = takes.Chars, 0
		if in.Tools = takes.Tools - 1; in.Tools >= 0 {
			if d, _ := decided(t, c.strategy, in); d.Servers["s"] == c.shape {
				t.Errorf("%s with a definition less: still %s", c.strategy, c.shape)
			}
		}
		in.Tools, in.Limits.Tools = 1000, takes.Tools-1
		if d, _ := decided(t, c.strategy, in); in.Limits.Tools > 0 && d.Servers["s"] == c.shape {
			t.Errorf("%s for a provider that takes a definition less: still %s", c.strategy, c.shape)
		}
	}
	// The smallest first, all within one budget.
	in := &psych.DisclosureInput{Budget: 7000, Tools: 40, Servers: []psych.ServerTools{ofTools("a", 8, 6000), ofTools("b", 5, 3000), ofTools("c", 5, 3001)}}
	for strategy, want := range map[string]string{"auto": "deferred eager eager", "tiered": "facade eager eager"} {
		d, _ := decided(t, strategy, in)
		if got := strings.Join([]string{d.Servers["a"], d.Servers["b"], d.Servers["c"]}, " "); got != want || d.Chars > 7000 {
			t.Errorf("%s: %s with %d characters, want %s", strategy, got, d.Chars, want)
		}
	}
}

func TestFacadeDescription(t *testing.T) {
	in := &psych.DisclosureInput{Servers: []psych.ServerTools{ofTools("store", 300, 90_000)}}
	for i := range in.Servers[0].Tools {
		in.Servers[0].Tools[i].Line = strings.Repeat("word ", 40)
	}
	for _, c := range []struct {
		limit, tools int
		want, forbid string
	}{
		{0, 12, "\n- tool_0011: " + strings.Repeat("word ", 39) + "word", "more"},
		{2000, 20, "\n- tool_0019: word", "more"},
		{2000, 100, "\n- tool_0099", "word "},
		{1024, 300, " more, which list_tools finds with server \"store\".", "tool_0299"},
		{0, 300, "\n- tool_0299", "more"},
		{60, 300, "Calls a tool of store", "tool_0000"},
	} {
		one := *in
		one.Servers = []psych.ServerTools{in.Servers[0]}
		one.Servers[0].Tools = in.Servers[0].Tools[:c.tools]
		one.Limits.ToolDescription = c.limit
		s, err := builtin(t, "facade").Open(&one)
		if err != nil {
			t.Fatal(err)
		}
		text := s.Tools[0].Description
		most := c.limit
		if most == 0 {
			most = 8000
		}
		if !strings.Contains(text, c.want) || strings.Contains(text, c.forbid) || utf8.RuneCountInString(text) > most {
			t.Errorf("%d tools within %d characters: %d characters, want %q in it and not %q:\n%s", c.tools, c.limit, utf8.RuneCountInString(text), c.want, c.forbid, text)
		}
		if at := strings.Index(text, " more, which"); at >= 0 {
			var more int
			if _, err := fmt.Sscan(text[strings.LastIndexByte(text[:at], '\n')+1:at], &more); err != nil || more+strings.Count(text, "\n- ") != c.tools {
				t.Errorf("%d tools within %d characters: %d listed and %d more (%v)", c.tools, c.limit, strings.Count(text, "\n- "), more, err)
			}
		}
	}
}

// Own tools never have the name of a server's own; a server that has all of
// theirs is deferred.
func TestOwnToolNames(t *testing.T) {
	server := psych.ServerTools{Server: "s"}
	for i, taken := range []string{"", "call", "call_2", "call_3", "call_4"} {
		if taken != "" {
			server.Tools = append(server.Tools, psych.ToolSummary{Name: taken})
		} else {
			server.Tools = append(server.Tools, psych.ToolSummary{Name: "a"})
		}
		in := &psych.DisclosureInput{Servers: []psych.ServerTools{server}}
		s, err := builtin(t, "search").Open(in)
		if err != nil {
			t.Fatal(err)
		}
		if taken == "call_4" {
			if len(s.Tools) != 0 || !slices.Equal(s.Listed, []string{"s"}) {
				t.Errorf("a server with all names: %+v, want it listed", s)
			}
			continue
		}
		want := "s__call"
		if i > 0 {
			want = fmt.Sprintf("s__call_%d", i+1)
		}
		if s.Tools[0].Name != "s__search" || s.Tools[1].Name != want {
			t.Errorf("with a tool %q: %s and %s, want %s", taken, s.Tools[0].Name, s.Tools[1].Name, want)
		}
	}
}

// A tool is called by its name, by that on the wire, and as a line shows it,
// where that means one tool only.
func TestFacadeRoute(t *testing.T) {
	in := &psych.DisclosureInput{Servers: []psych.ServerTools{{Server: "s", Tools: []psych.ToolSummary{
		{Name: "a b"}, {Name: "a\nb"}, {Name: "get\titem"}, {Name: "read"},
	}}}}
	d := builtin(t, "facade")
	for name, want := range map[string]string{
		"read": "read", "s__read": "read", "get item": "get\titem", "a b": "a b", "a\nb": "a\nb", psych.ToolName("s", "a\nb"): "a\nb",
		"reed": "", "": "", "s__reed": "", "get  item": "",
	} {
		args, err := json.Marshal(map[string]any{"tool": name, "input": map[string]any{}})
		if err != nil {
			t.Fatal(err)
		}
		r, err := d.Route(in, "s__call", args)
		if r.Tool != want || errors.Is(err, psych.ErrNotFound) != (want == "") {
			t.Errorf("%q goes to %q (%v), want %q", name, r.Tool, err, want)
		}
	}
	r, err := d.Route(in, "s__call", json.RawMessage(`"{\"tool\":\"read\",\"input\":{\"a\":1}}"`))
	if err != nil || r.Tool != "read" || string(r.Arguments) != `{"a":1}` {
		t.Errorf("arguments as a string go to %q with %s: %v", r.Tool, r.Arguments, err)
	}
	_, err = d.Route(in, "s__call", json.RawMessage(`{"tool":"reed","input":{}}`))
	if want := `s has no tool named "reed" that may be used. The nearest of 4: read,`; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("an unknown tool: %v, want %q", err, want)
	}
	q, err := builtin(t, "search").Route(in, "s__search", json.RawMessage(`{"query":"get","offset":20}`))
	if err != nil || q.List == nil || *q.List != (psych.ListQuery{Server: "s", Query: "get", Offset: 20}) {
		t.Errorf("search goes to %+v: %v", q, err)
	}
}

// A Run with a facade and a pair that searches: what they call is narrowed,
// validated and recorded as the server's own tool, and a server that grows over
// the border of its tier moves nothing that was sent.
func TestOwnTools(t *testing.T) {
	n, clock := newNetwork(), newClock()
	cs := []psych.Connection{n.add("large", remoteTools("large", 60, 300)...), n.add("medium", remoteTools("medium", 40, 300)...), n.add("small", remoteTools("small", 3, 100)...)}
	h := newHarness(t, `
steps:
- calls: [{name: large__search, arguments: {query: "", offset: 50}}, {name: medium__call, arguments: {tool: medium_0002, input: {text: a}}},
          {name: large__call, arguments: {tool: large_0007, input: '{"text":"b"}'}}, {name: small__small_0001, arguments: {text: c}}]
  require: ['medium__call', '- medium_0039: Does', 'large__search', 'small__small_0002']
  forbid: ['small__call', 'medium__search', 'large_0001', 'Servers with tools']
- calls: [{name: medium__call, arguments: {tool: medium_2, input: {text: a}}}, {name: medium__call, arguments: {tool: medium_0002, input: {word: a}}},
          {name: medium__call, arguments: {name: medium_0002, input: {text: a}}}, {name: medium__call, arguments: {tool: denied, input: {text: a}}}]
  require: ['large: 60 tools\n- large_0050: Does', 'ran medium_0002', 'ran large_0007']
- calls: [{name: later, arguments: {minutes: 2, then: grow}}]
  require: ['medium has no tool named "medium_2" that may be used. The nearest of 40: medium_0002', 'missing property "text"', 'Invalid arguments for medium__call', 'no tool named "denied"']
- calls: [{name: medium__call, arguments: {tool: medium_9999, input: {text: d}}}]
  require: ['Changed: medium: new medium_9999']
- text: done
  require: ['ran medium_9999']
`, later(clock, map[string]func(){"grow": func() {
		n.change("medium", true, func(s *testServer) { s.tools = append(slices.Clone(s.tools), remoteTool("medium_9999", 100)) })
	}}))
	n.change("medium", false, func(s *testServer) { s.tools = append(s.tools, remoteTool("denied", 100)) })
	cs[1].Deny = []string{"denied"}
	h.o.Now, h.o.LeaseTTL = clock.Now, psych.MaxLease
	h.spec.Disclosure = psych.DisclosureSpec{Strategy: "tiered"}
	h.withServers(n, cs...)
	rep := h.run()
	if rep.Status != psych.StatusCompleted {
		t.Fatalf("%s: %+v", rep.Status, rep.Exchanges)
	}
	sent := h.model.Requests()
	for i := 1; i < len(sent); i++ {
		if !bytes.Equal(sent[i].Zone(0), sent[0].Zone(0)) || !bytes.Equal(sent[i].Zone(1), sent[0].Zone(1)) {
			t.Errorf("tools or zone 1 of request %d are others", i+1)
		}
	}
	calls := map[string]string{}
	for _, c := range rep.ToolCalls {
		calls[c.ID] = c.Tool + " " + c.Outcome
	}
	for id, want := range map[string]string{
		"c1_1": " succeeded", "c1_2": "medium__medium_0002 succeeded", "c1_3": "large__large_0007 succeeded",
		"c2_1": " failed", "c2_2": "medium__medium_0002 failed", "c2_3": " failed", "c2_4": " failed", "c4_1": "medium__medium_9999 succeeded",
	} {
		if calls[id] != want {
			t.Errorf("%s: %q, want %q", id, calls[id], want)
		}
	}
	if got := n.server("medium").calls; !slices.Equal(got, []string{`medium_0002{"text":"a"}`, `medium_9999{"text":"d"}`}) {
		t.Errorf("medium was called with %q", got)
	}
}

// A tool of the strategy's own that a call went nowhere through is no tool that
// fails: what goes through it to a tool of the server's goes on.
func TestStreakOfOwnTools(t *testing.T) {
	n := newNetwork()
	c := n.add("medium", remoteTools("medium", 40, 300)...)
	h := newHarness(t, `
steps:
- calls: [{name: medium__call, arguments: {tool: nothing, input: {}}}]
- calls: [{name: medium__call, arguments: {tool: nothing, input: {}}}]
- calls: [{name: medium__call, arguments: {tool: medium_0001, input: {text: a}}}]
- calls: [{name: medium__call, arguments: {tool: nothing, input: {}}}]
- calls: [{name: medium__call, arguments: {tool: medium_0002, input: {text: a}}}]
  forbid: ['Withheld']
- text: done
  forbid: ['Withheld']
`)
	h.spec.Disclosure.Strategy = "facade"
	h.withServers(n, c)
	rep := h.run()
	if rep.Status != psych.StatusCompleted {
		t.Fatalf("%s: %+v", rep.Status, rep.Exchanges)
	}
	for i, want := range []string{" unknown_tool", " unknown_tool", "medium__medium_0001 ", " unknown_tool", "medium__medium_0002 "} {
		if got := rep.ToolCalls[i].Tool + " " + rep.ToolCalls[i].Code; got != want {
			t.Errorf("call %d: %q, want %q", i+1, got, want)
		}
	}
}
