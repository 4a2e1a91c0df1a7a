package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/adapters/filetools"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
)

// runJSON runs psych with arguments behind run --json, and returns the report
// beside what the command opened.
func runJSON(t *testing.T, args ...string) (*psych.Report, *program) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	p := newProgram(strings.NewReader(""), &stdout, &stderr, getenv)
	if code := p.run(context.Background(), append([]string{"run", "--json"}, args...)); code != exitCompleted {
		t.Fatalf("exit code %d; stderr:\n%s", code, stderr.String())
	}
	var rep psych.Report
	if err := json.Unmarshal(stdout.Bytes(), &rep); err != nil {
		t.Fatal(err)
	}
	return &rep, p
}

// tourArgs are the arguments of psych in the README's first command.
func tourArgs(t *testing.T) []string {
	t.Helper()
	tour, tests := quickStart(t)
	if tests != "go run ./internal/emulators -- go test ./..." {
		t.Errorf("the README's second command is %q", tests)
	}
	line, ok := strings.CutPrefix(tour, "go run ./cmd/psych ")
	if !ok {
		t.Fatalf("the README's first command is %q", tour)
	}
	var args []string
	for _, word := range regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(line, -1) {
		args = append(args, strings.Trim(word, `"`))
	}
	return args
}

// TestTour runs the README's first command: an agent that works through this
// repository. It holds the report against what the model and the tools counted
// themselves.
func TestTour(t *testing.T) {
	args := tourArgs(t)
	t.Chdir("../..")
	rep, p := runJSON(t, args[1:]...)
	holdAgainstCounts(t, rep, p)

	// What the tour is there to show.
	var elided, offloaded, windows, searches, pages int
	for _, c := range rep.ToolCalls {
		var in struct {
			Handle, Grep string
			Offset       int64
		}
		if err := json.Unmarshal(c.Arguments, &in); err != nil {
			t.Fatal(err)
		}
		switch {
		case c.Outcome != string(psych.Succeeded):
			t.Errorf("%s %s: %s %s", c.ID, c.Name, c.Outcome, c.Code)
		case c.Offloaded && c.Preview != "" && c.ResultHandle == "out_"+c.ID && c.ResultBytes > psych.MaxRecordBytes:
			offloaded++
		case c.Preview != "" && c.ResultHandle == "out_"+c.ID && c.ResultBytes >= 4*6000:
			elided++
		case c.ResultHandle != "" || c.Preview != "":
			t.Errorf("%s %s has handle %q and a preview of %d bytes", c.ID, c.Name, c.ResultHandle, len(c.Preview))
		case c.Name == "read_tool_output" && in.Grep != "":
			searches++
		case c.Name == "read_tool_output" && in.Offset > 0:
			windows++
		case c.Name == "read_file" && in.Offset > 0:
			pages++
		}
	}
	if elided != 1 || offloaded != 1 || windows != 2 || searches != 2 || pages < 2 {
		t.Errorf("%d elided, %d offloaded, %d windows, %d searches, %d further pages: want 1, 1, 2, 2, at least 2", elided, offloaded, windows, searches, pages)
	}
	if len(rep.Exchanges) != 1 || !strings.Contains(rep.Exchanges[0].Answer, "psych/elide.go") {
		t.Errorf("the answer: %+v", rep.Exchanges)
	}
	if r := rep.Totals.CacheHitRate; r == nil || *r < .5 {
		t.Errorf("the cache hit rate is %v: the prefix is not stable", r)
	}
	for _, m := range rep.ModelCalls {
		if len(m.Breaks) > 0 {
			t.Errorf("turn %d has breaks: %v", m.Turn, m.Breaks)
		}
	}

	// As a person sees it.
	got := psychIn("", nil, args...)
	got.wantCompleted(t)
	for _, c := range rep.ToolCalls {
		row := regexp.MustCompile(`(?m)^` + c.ID + ` +` + c.Name + ` +succeeded +\d+ +(inline|blob) *` + regexp.QuoteMeta(c.ResultHandle))
		if !row.MatchString(got.stdout) {
			t.Errorf("the report lacks %s:\n%s", row, got.stdout)
		}
		if c.Preview != "" && !strings.Contains(got.stdout, "\npreview of "+c.ResultHandle+":\n") {
			t.Errorf("the report lacks the preview of %s", c.ResultHandle)
		}
	}
}

// holdAgainstCounts checks that what a report adds up to is what the model and
// the tools counted.
func holdAgainstCounts(t *testing.T, rep *psych.Report, p *program) {
	t.Helper()
	m, err := p.models(context.Background(), rep.ModelCalls[0].Model) // opened once: the one that was driven
	if err != nil {
		t.Fatal(err)
	}
	holdAgainstModel(t, rep, m.(*script.Model).Totals())
	holdAgainstTools(t, rep, p.files.Counts())
}

func holdAgainstModel(t *testing.T, rep *psych.Report, want script.Totals) {
	t.Helper()
	if rep.Totals.CachedTokens == nil || rep.Totals.UnknownCalls != 0 {
		t.Fatalf("totals: %+v", rep.Totals)
	}
	got := script.Totals{
		Requests: len(rep.ModelCalls), Responses: rep.Turns, Calls: len(rep.ToolCalls),
		Input: rep.Totals.PromptTokens, Cached: *rep.Totals.CachedTokens, Output: rep.Totals.CompletionTokens,
	}
	for _, m := range rep.ModelCalls {
		got.Sent += int64(m.Wire.Total())
	}
	if got != want || want.Calls == 0 {
		t.Errorf("the report adds up to %+v, the model counted %+v", got, want)
	}
}

func holdAgainstTools(t *testing.T, rep *psych.Report, want filetools.Counts) {
	t.Helper()
	type count struct{ calls, bytes int64 }
	got := map[string]count{}
	for _, c := range rep.ToolCalls {
		n := got[c.Name]
		got[c.Name] = count{n.calls + 1, n.bytes + c.ResultBytes}
	}
	for name, c := range map[string]filetools.ToolCounts{"read_file": want.ReadFile, "list_files": want.ListFiles, "search_files": want.SearchFiles} {
		if got[name] != (count{c.Calls, c.Bytes}) || c.Calls == 0 {
			t.Errorf("%s: the report adds up to %+v, the tools counted %+v", name, got[name], c)
		}
	}
}

// TestTourSpec guards that the shipped Spec passes the check that the command
// line offers.
func TestTourSpec(t *testing.T) {
	t.Chdir("../..")
	psychIn("", nil, "spec", "check", "--files", ".", "examples/tour/spec.yaml").wantCompleted(t)
}

// TestGoTree works through the source of Go itself, and pages through a file of
// over 500 KB.
func TestGoTree(t *testing.T) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	src := filepath.Join(strings.TrimSpace(string(out)), "src")
	const large = "cmd/compile/internal/ssa/rewritegeneric.go"
	info, err := os.Stat(filepath.Join(src, large))
	if err != nil || info.Size() <= 500_000 {
		t.Fatalf("%s: want a file of over 500 KB: %v", large, err)
	}
	workdir(t, "spec.yaml", filesSpec, "play.yaml", `steps:
  - calls: [{name: list_files, arguments: {pattern: '*.go'}}]
  - calls:
      - name: read_tool_output
        arguments: {handle: '${handle "(out_\w+)"\.\]$}', grep: '^`+large+`\t'}
  - calls: [{name: search_files, arguments: {pattern: '^func \(.*\) (Read|Write)\(', glob: '*.go'}}]
  - calls:
      - name: read_tool_output
        arguments: {handle: '${handle "(out_\w+)"\.\]$}', offset: 100}
  - calls: [{name: read_file, arguments: {path: `+large+`}}]
  - calls:
      - name: read_file
        arguments: {path: `+large+`, offset: '${"next_offset":(\d+)}'}
    repeat: {until: '"truncated":false'}
  - text: Read to the end.
`)
	rep, p := runJSON(t, "--files", src, "spec.yaml", "How long is it?")
	holdAgainstCounts(t, rep, p)

	var paged int64
	pages, elided, offloaded := 0, 0, 0
	for _, c := range rep.ToolCalls {
		switch {
		case c.Outcome != string(psych.Succeeded):
			t.Errorf("%s %s: %s %s", c.ID, c.Name, c.Outcome, c.Code)
		case c.Name == "read_file":
			pages++
			paged += c.ResultBytes
		case c.Offloaded && c.Preview != "":
			offloaded++
		case c.Preview != "":
			elided++
		}
	}
	want := int((info.Size() + psych.PageChars - 1) / psych.PageChars) // the file is ASCII
	if pages != want || paged < info.Size() || paged > info.Size()+int64(pages)*200 {
		t.Errorf("%d pages of %d bytes, want %d of a file of %d, and a header each", pages, paged, want, info.Size())
	}
	if offloaded != 1 || elided != 1 {
		t.Errorf("%d offloaded, %d elided, want one each", offloaded, elided)
	}
}
