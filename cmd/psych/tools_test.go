package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/psych"
)

var update = flag.Bool("update", false, "rewrite testdata/tools/*.golden")

// golden holds what was printed against a file. Digests are those of formats
// that other tests pin.
func golden(t *testing.T, name, got string) {
	t.Helper()
	got = regexp.MustCompile(`\b[0-9a-f]{64}\b`).ReplaceAllString(got, "DIGEST")
	got = regexp.MustCompile(`(?m)\b[0-9a-f]{8}$`).ReplaceAllString(got, "DIGEST")
	path := filepath.Join(toolsData, name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("not as in %s (go test ./cmd/psych -run Tools -update rewrites it):\n%s", path, got)
	}
}

const toolsData = "testdata/tools"

// The workbench over a file of catalogues: what it prints is readable in a
// terminal of 100 columns, and drives none, though the file is hostile.
func TestToolsOfCatalogue(t *testing.T) {
	catalogue := filepath.Join(toolsData, "catalogue.json")
	for _, test := range []struct {
		name string
		args []string
	}{
		{"overview", nil},
		{"overview_all", []string{"--all"}},
		{"overview_budget", []string{"--budget", "1900"}},
		{"list", []string{"list", "workshop"}},
		{"list_hostile", []string{"list", "Garden_Pond"}},
		{"search", []string{"search", "water for the garden"}},
		{"search_server", []string{"search", "--server", "workshop", "--limit", "1", "order screws or find a tool"}},
		{"search_offset", []string{"search", "--offset", "1", "--limit", "1", "order screws or find a tool"}},
		{"search_nothing", []string{"search", "zeppelin"}},
		{"read", []string{"read", "Garden_Pond", "water plants"}},
		{"bench", []string{"bench", "--queries", filepath.Join(toolsData, "queries.json")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := psychIn("", nil, append([]string{"tools", "--catalogue", catalogue}, test.args...)...)
			if got.code != exitCompleted {
				t.Fatalf("exit code %d:\n%s", got.code, got.stderr)
			}
			golden(t, test.name, got.stdout+"--\n"+got.stderr)
			for _, line := range strings.Split(got.stdout, "\n") {
				if columns(line) > 100 {
					t.Errorf("a line of %d columns: %s", columns(line), line)
				}
			}
			if i := strings.IndexFunc(got.stdout+got.stderr, func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f }); i >= 0 {
				t.Errorf("a control character is printed:\n%q", got.stdout)
			}
		})
	}
	if got := psychIn("", nil, "tools", "diff", catalogue, filepath.Join(toolsData, "later.json")); got.code != exitCompleted {
		t.Errorf("psych tools diff: exit code %d:\n%s", got.code, got.stderr)
	} else {
		golden(t, "diff", got.stdout)
	}
	if got := psychIn("", nil, "tools", "diff", catalogue, catalogue); got.stdout != "the same tools\n" {
		t.Errorf("psych tools diff of a file with itself printed\n%s", got.stdout)
	}
	// Two files are one list of servers; names that come again are told apart.
	got := psychIn("", nil, "tools", "search", "--json", "--catalogue", catalogue+","+catalogue, "rake")
	var found psych.FoundTools
	if err := json.Unmarshal([]byte(got.stdout), &found); err != nil || found.Total != 2 || found.Tools[0].Server != "Garden_Pond" || found.Tools[1].Server != "Garden_Pond_3" {
		t.Errorf("of two files: %v\n%s%s", err, got.stdout, got.stderr)
	}
}

// What --json prints is what people are shown, and more.
func TestToolsJSON(t *testing.T) {
	in := func(into any, args ...string) {
		t.Helper()
		got := psychIn("", nil, append([]string{"tools", "--json", "--catalogue", filepath.Join(toolsData, "catalogue.json")}, args...)...)
		got.wantCompleted(t)
		if err := json.Unmarshal([]byte(got.stdout), into); err != nil {
			t.Fatalf("%v: %s", err, got.stdout)
		}
	}
	var o toolsOverview
	in(&o)
	if len(o.Servers) != 4 || o.Tools != 10 || o.Strategy != "auto" || o.Limits.Tools != 128 || len(o.Notes) != 3 {
		t.Errorf("the overview: %+v", o)
	}
	var names []string
	for _, d := range o.Disclosure {
		names = append(names, d.Strategy)
		if d.Chars < 1000 || d.Listed == 0 {
			t.Errorf("strategy %s: %+v", d.Strategy, d)
		}
	}
	if !slices.IsSorted(names) || !slices.Contains(names, "auto") || !slices.Contains(names, "deferred") || !slices.Contains(names, "eager") {
		t.Errorf("strategies: %v", names)
	}
	var s psych.ServerReport
	in(&s, "list", "workshop")
	i := slices.IndexFunc(s.Tools, func(x psych.ToolReport) bool { return x.Name == "count_parts" })
	if i < 0 || !strings.Contains(s.Tools[i].Withheld, "1024") || s.Tools[i].Wire != "workshop__count_parts" || len(s.Dropped) != 1 || s.Catalog.IsZero() {
		t.Errorf("a server: %+v", s)
	}
	var b benchResult
	in(&b, "bench", "--queries", filepath.Join(toolsData, "queries.json"))
	if b.Tasks != 3 || b.Steps != 5 || b.Gold != 5 || b.Recall["1"] != 0.8 || b.Recall["10"] != 0.8 || b.MRR != 0.8 || !slices.Equal(b.Absent, []string{"bake_bread"}) || b.Missed != nil {
		t.Errorf("the bench: %+v", b)
	}
	for _, w := range b.Ways {
		// One page and one definition, where it is not shown; one name is nowhere.
		turns := map[string]float64{"deferred": 3, "search": 3, "facade": 2}[w.Strategy]
		if w.Missed != 1 || turns > 0 && (w.Turns != turns || w.Shown > 0) || turns == 0 && (w.Turns >= 3 || w.Shown == 0) || w.Sent < float64(w.Chars)*w.Turns {
			t.Errorf("a way: %+v", w)
		}
	}
	var read map[string]any
	in(&read, "read", "workshop", "find_tool")
	if !strings.Contains(fmt.Sprint(read["definition"]), "Says in which drawer") {
		t.Errorf("a definition: %v", read)
	}
	var diffs []catalogDiff
	if got := psychIn("", nil, "tools", "diff", "--json", filepath.Join(toolsData, "catalogue.json"), filepath.Join(toolsData, "catalogue.json")); got.stdout != "[]\n" {
		t.Errorf("psych tools diff --json of a file with itself printed %q", got.stdout)
	}
	got := psychIn("", nil, "tools", "diff", "--json", filepath.Join(toolsData, "catalogue.json"), filepath.Join(toolsData, "later.json"))
	if err := json.Unmarshal([]byte(got.stdout), &diffs); err != nil || len(diffs) != 3 || diffs[2].Server != "workshop" || !slices.Equal(diffs[2].Added, []string{"sharpen"}) || !slices.Equal(diffs[2].Removed, []string{"set_torque"}) || !slices.Equal(diffs[2].Changed, []string{"order_screws"}) {
		t.Errorf("psych tools diff --json: %v\n%s", err, got.stdout)
	}
}

func TestToolsWrongUse(t *testing.T) {
	workdir(t,
		"c.json", `[{"server": "a", "tools": [{"name": "go", "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}]}]`,
		"list.json", `{"a": 1}`, "broken.json", `[`, "tasks.json", `[{"question": "x"}]`, "none.json", `[]`, "spec.yaml", "name: a\ndisclosure: {strategy: nosuch}",
		"play.yaml", "steps: [{text: So.}]")
	for _, test := range []struct {
		args []string
		says string
	}{
		{nil, "--mcp FILE, --spec FILE or --catalogue FILE"},
		{[]string{"lsit"}, `unknown command "lsit"`},
		{[]string{"--catalogue", "c.json", "--spec", "spec.yaml"}, "either --catalogue"},
		{[]string{"--catalogue", "absent.json"}, "no such file"},
		{[]string{"--catalogue", "list.json"}, `want a list of {"server"`},
		{[]string{"--catalogue", "broken.json"}, "unexpected end"},
		{[]string{"--spec", "absent.yaml"}, "no such file"},
		{[]string{"--spec", "spec.yaml"}, "disclosure.strategy"},
		{[]string{"--mcp", "absent.json"}, "no such file"},
		{[]string{"--catalogue", "c.json", "--policy", "absent.json"}, "--policy"},
		{[]string{"--catalogue", "c.json", "--policy", "list.json"}, "--policy"},
		{[]string{"--catalogue", "c.json", "--model", "gtp:5"}, `unknown scheme "gtp"`},
		{[]string{"--catalogue", "c.json", "--budget", "-1"}, "disclosure.budget"},
		{[]string{"--catalogue", "c.json", "list"}, "want SERVER"},
		{[]string{"--catalogue", "c.json", "list", "b"}, `no server "b": want one of a`},
		{[]string{"--catalogue", "c.json", "search", "--server", "b", "x"}, `no server "b"`},
		{[]string{"--catalogue", "c.json", "search", ""}, "wants a query"},
		{[]string{"--catalogue", "c.json", "search", "--limit", "0", "x"}, "limit 0"},
		{[]string{"--catalogue", "c.json", "search", "--offset", "-1", "x"}, "from 0"},
		{[]string{"--catalogue", "c.json", "read", "a", "goo"}, `no tool named "goo" that may be used. The nearest of 1: go`},
		{[]string{"--catalogue", "c.json", "call", "a"}, "want SERVER, TOOL"},
		{[]string{"--catalogue", "c.json", "call", "a", "goo"}, `The nearest of 1: go`},
		{[]string{"--catalogue", "c.json", "call", "a", "go", "{"}, "are no JSON"},
		{[]string{"--catalogue", "c.json", "call", "a", "go"}, `missing property`},
		{[]string{"--catalogue", "c.json", "bench"}, "give --queries FILE"},
		{[]string{"--catalogue", "c.json", "bench", "--queries", "list.json"}, `want a list of {"question"`},
		{[]string{"--catalogue", "c.json", "bench", "--queries", "tasks.json"}, "task 1 has no gold tool"},
		{[]string{"--catalogue", "c.json", "bench", "--queries", "none.json"}, "has no tasks"},
		{[]string{"diff", "c.json"}, "want OLD and NEW"},
		{[]string{"diff", "c.json", "absent.json"}, `"absent.json" is no file`},
		{[]string{"diff", "--catalogue", "c.json", "c.json", "c.json"}, "takes neither"},
		{[]string{"diff", strings.Repeat("0", 64), strings.Repeat("1", 64)}, "has no catalogue of that version"},
	} {
		got := psychIn("", nil, append([]string{"tools"}, test.args...)...)
		got.wantError(t, exitUse, test.says)
		if got.stdout != "" {
			t.Errorf("%q: stdout:\n%s", test.args, got.stdout)
		}
	}
	psychIn("", nil, "tools", "--catalogue", "c.json", "call", "a", "go", `{"n": 1}`).wantError(t, exitFailed, "has no server that could be called")
	if exists(t, filepath.Join(os.Getenv("XDG_STATE_HOME"), "psych", "psych.db")) {
		// Only a diff by digest looked into the store.
		if got := psychIn("", nil, "runs"); strings.Count(got.stdout, "\n") != 1 {
			t.Errorf("files of catalogues left something in the store:\n%s", got.stdout)
		}
	}
}

// A policy narrows what the workbench shows, as it narrows a Run.
func TestToolsPolicy(t *testing.T) {
	workdir(t, "policy.json", `{"tenants": {"local": {"allow": ["a/get_*"]}}}`,
		"c.json", `[{"server": "a", "tools": [{"name": "get_it"}, {"name": "drop_it"}]}]`)
	args := []string{"tools", "--policy", "policy.json", "--catalogue", "c.json"}
	got := psychIn("", nil, args...)
	got.wantCompleted(t)
	if !strings.Contains(got.stdout, "1 server, 1 tool with ") || !strings.Contains(got.stdout, "1 of 2") {
		t.Errorf("the overview:\n%s", got.stdout)
	}
	got = psychIn("", nil, append(args, "list", "a")...)
	got.wantCompleted(t)
	if !strings.Contains(got.stdout, "may not be used: the spec or the policy does not permit it") {
		t.Errorf("the list:\n%s", got.stdout)
	}
	psychIn("", nil, append(args, "call", "a", "drop_it")...).wantError(t, exitUse, `no tool named "drop_it" that may be used`)
	got = psychIn("", nil, append(args, "search", "drop it")...)
	if strings.Contains(got.stdout, "drop_it") {
		t.Errorf("a search finds what may not be used:\n%s", got.stdout)
	}
}

// A catalogue may have more servers than a Spec has connections: the workbench
// is over all of them, and search goes through all.
func TestToolsOfManyServers(t *testing.T) {
	var b strings.Builder
	for i := range 230 {
		fmt.Fprintf(&b, `, {"server": "s%d", "tools": [{"name": "turn_wheel_%d", "description": "Turns the wheel of mill %d."}]}`, i, i, i)
	}
	workdir(t, "many.json", "["+b.String()[1:]+"]", "tasks.json", `[{"question": "turn wheel 229", "gold": ["turn_wheel_229"]}]`)
	got := psychIn("", nil, "tools", "--catalogue", "many.json")
	got.wantCompleted(t)
	if !strings.HasPrefix(got.stdout, "230 servers, 230 tools with ") || strings.Count(got.stdout, "\n") > 40 || !strings.Contains(got.stdout, "218 smaller (--all)") {
		t.Errorf("the overview:\n%s", got.stdout)
	}
	got = psychIn("", nil, "tools", "--catalogue", "many.json", "search", "--limit", "1", "turn_wheel_229")
	if !strings.HasPrefix(got.stdout, "  1  s229 / turn_wheel_229  ") {
		t.Errorf("search: %s%s", got.stdout, got.stderr)
	}
	var r benchResult
	got = psychIn("", nil, "tools", "--json", "--catalogue", "many.json", "bench", "--queries", "tasks.json")
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || r.Servers != 230 || r.Recall["1"] != 1 || r.MRR != 1 {
		t.Errorf("bench: %v\n%s%s", err, got.stdout, got.stderr)
	}
}

// TestLimitsWithoutKey guards that a model which is not called wants no key, and
// that one which is does.
func TestLimitsWithoutKey(t *testing.T) {
	files, err := filepath.Abs("testdata/tools/catalogue.json")
	if err != nil {
		t.Fatal(err)
	}
	workdir(t, "spec.yaml", "name: a\ninstructions: b\n")
	for _, url := range []string{"openai:gpt-5", "openai:gpt-5?api=responses", "anthropic:claude-opus-5-5"} {
		if got := psychIn("", nil, "tools", "--catalogue", files, "--model", url); got.code != exitCompleted {
			t.Errorf("psych tools --model %s: exit code %d\n%s", url, got.code, got.stderr)
		}
		psychIn("", nil, "run", "--model", url, "spec.yaml", "hello").wantError(t, exitUse, "open the model: ", "_API_KEY")
	}
}
