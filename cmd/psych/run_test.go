package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/psych"
)

const (
	plainSpec = "name: a\nmodel: script:play.yaml\n"
	filesSpec = plainSpec + "tools: [list_files, search_files, read_file]\n"
)

func TestRunEnds(t *testing.T) {
	for name, test := range map[string]struct {
		spec, play string
		code       int
		says       []string // of stderr
		shows      string   // on stdout
	}{
		"completed":     {plainSpec, "steps: [{text: It is so.}]", exitCompleted, nil, "It is so.\n"},
		"failed":        {plainSpec, "steps: [{fail: 400}]", exitFailed, []string{"is failed: ", "Bad Request"}, ": failed"},
		"script at end": {plainSpec, "steps: [{calls: [{name: nothing}]}]", exitFailed, []string{"is failed: ", "the script has 1 step"}, "← c1_1 failed (unknown_tool)"},
		"exhausted":     {plainSpec + "limits: {turns: 1}", "steps: [{calls: [{name: nothing}]}, {text: So.}]", exitFailed, []string{"is exhausted: "}, ": exhausted"},
		"refusal":       {plainSpec, "steps: [{text: No., stop: refusal}]", exitFailed, []string{"the model refused"}, "No.\n"},
		"bad handle": {plainSpec, "steps: [{calls: [{name: read_tool_output, arguments: {handle: out_c9_1}}]}, {text: So.}]",
			exitFailed, []string{"is failed: "}, "← c1_1 failed (invalid_deferred_handle)"},
	} {
		t.Run(name, func(t *testing.T) {
			workdir(t, "spec.yaml", test.spec, "play.yaml", test.play)
			got := psychIn("", nil, "run", "spec.yaml", "hello")
			if test.code == exitCompleted {
				got.wantCompleted(t)
			} else {
				got.wantError(t, test.code, test.says...)
			}
			if !strings.Contains(got.stdout, test.shows) || !strings.Contains(got.stdout, "\ntotals: ") {
				t.Errorf("stdout does not show %q and a report:\n%s", test.shows, got.stdout)
			}
		})
	}
}

func TestRunModel(t *testing.T) {
	workdir(t,
		"spec.yaml", "name: a", "with.yaml", "name: a\nmodel: script:spec-s.yaml", "with.json", `{"name": "a", "model": "script:spec-s.yaml"}`,
		"spec-s.yaml", "steps: [{text: of the spec}]", "env.yaml", "steps: [{text: of the environment}]", "flag.yaml", "steps: [{text: of the flag}]",
	)
	env := []string{"PSYCH_MODEL=script:env.yaml"}
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"run", "spec.yaml", "hello"}, "of the environment"},
		{[]string{"run", "with.yaml", "hello"}, "of the spec"},
		{[]string{"run", "with.json", "hello"}, "of the spec"},
		{[]string{"run", "--model", "script:flag.yaml", "spec.yaml", "hello"}, "of the flag"},
		{[]string{"run", "with.yaml", "hello", "--model=script:flag.yaml"}, "of the flag"},
	} {
		got := psychIn("", env, test.args...)
		got.wantCompleted(t)
		if !strings.HasPrefix(got.stdout, test.says+"\n") {
			t.Errorf("%q printed %q", test.args, got.stdout)
		}
	}
}

func TestRunMessage(t *testing.T) {
	workdir(t, "spec.yaml", plainSpec, "play.yaml", "steps: [{text: So., require: ['^(?s).*a question\\nof two lines']}]")
	psychIn("a question\nof two lines", nil, "run", "spec.yaml", "-").wantCompleted(t)
	psychIn("another", nil, "run", "spec.yaml", "a question\nof two lines").wantCompleted(t)
	psychIn("another", nil, "run", "spec.yaml", "-").wantError(t, exitFailed, "a question")
	psychIn("", nil, "run", "spec.yaml", "-").wantError(t, exitUse, "is empty")
	psychIn("", nil, "run", "spec.yaml", "").wantError(t, exitUse, "is empty")
	psychIn(strings.Repeat("x", psych.MaxMessageBytes+1), nil, "run", "spec.yaml", "-").wantError(t, exitUse, "want at most 1048576")
	psychIn("a question\nof two lines"+strings.Repeat("x", psych.MaxMessageBytes-100), nil, "run", "spec.yaml", "-").wantCompleted(t)
}

func TestRunFiles(t *testing.T) {
	workdir(t, "spec.yaml", filesSpec, "data/notes.txt", "one\ntwo\n", "play.yaml", `steps:
  - calls: [{name: list_files}]
  - calls: [{name: read_file, arguments: {path: absent.txt}}]
  - calls: [{name: read_file, arguments: {path: notes.txt}}]
  - {text: Two lines., require: ['one\ntwo']}
`)
	got := psychIn("", nil, "run", "--files", "data", "spec.yaml", "hello")
	got.wantCompleted(t)
	want := regexp.MustCompile(`^→ c1_1 list_files \{\}
← c1_1 succeeded, \d+ bytes
→ c2_1 read_file \{"path":"absent.txt"\}
← c2_1 failed, \d+ bytes: can't read "absent.txt": no such file or directory
→ c3_1 read_file \{"path":"notes.txt"\}
← c3_1 succeeded, \d+ bytes
Two lines.

run [0-9a-f]{32} of tenant local: completed, 4 turns, 1 attempt
`)
	if !want.MatchString(got.stdout) {
		t.Errorf("stdout does not match %s:\n%s", want, got.stdout)
	}

	// Without --files the Spec names tools that are not there.
	psychIn("", nil, "run", "spec.yaml", "hello").wantError(t, exitUse, "tools[0]", "tools[2]", "--files DIR registers list_files")
}

func TestRunBlobURL(t *testing.T) {
	workdir(t, "spec.yaml", filesSpec, "data/big.txt", strings.Repeat("0123456789abcdef\n", 20_000),
		"play.yaml", "steps: [{calls: [{name: search_files, arguments: {pattern: '.'}}]}, {text: So.}]")
	dir, err := filepath.Abs("blobs")
	if err != nil {
		t.Fatal(err)
	}
	url := "file://" + filepath.ToSlash(dir)
	for _, args := range [][]string{{"run", "--blob", url}, {"run"}} {
		env := []string{"PSYCH_BLOB_URL=" + url, "PSYCH_STORE_URL=mem://"}
		if len(args) > 1 {
			env = []string{"PSYCH_BLOB_URL=s4://overruled"}
		}
		got := psychIn("", env, append(args, "--files", "data", "spec.yaml", "hello")...)
		got.wantCompleted(t)
		if !strings.Contains(got.stdout, "kept in the blob store") {
			t.Errorf("nothing was offloaded:\n%s", got.stdout)
		}
	}
	files := 0
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files++
		}
		return err
	})
	if err != nil || files != 2 {
		t.Errorf("%d files in the blob store, want one of each run: %v", files, err)
	}
}

// TestRunJSON guards the names of the report: programs read them.
func TestRunJSON(t *testing.T) {
	workdir(t, "spec.yaml", filesSpec, "data/big.txt", strings.Repeat("<0123456789abcde\n", 3_000),
		"play.yaml", "steps: [{text: Looking., calls: [{name: search_files, arguments: {pattern: '.'}}]}, {text: So., usage: {output: 7}}]")
	got := psychIn("", nil, "run", "--json", "--tenant", "acme", "--files", "data", "spec.yaml", "hello")
	if got.code != exitCompleted {
		t.Fatalf("exit code %d; stderr:\n%s", got.code, got.stderr)
	}
	if !strings.HasPrefix(got.stderr, "Looking.\n→ c1_1 search_files") || !strings.HasSuffix(got.stderr, "So.\n") {
		t.Errorf("stderr does not show what happened:\n%s", got.stderr)
	}
	var rep any
	if err := json.Unmarshal([]byte(got.stdout), &rep); err != nil {
		t.Fatalf("stdout is not JSON: %v\n%s", err, got.stdout)
	}
	at := func(path ...any) any {
		t.Helper()
		v := rep
		for _, p := range path {
			switch p := p.(type) {
			case string:
				m, _ := v.(map[string]any)
				x, ok := m[p]
				if !ok {
					t.Fatalf("no %q of %v in:\n%s", p, path, got.stdout)
				}
				v = x
			case int:
				l, _ := v.([]any)
				if p >= len(l) {
					t.Fatalf("no %d of %v in:\n%s", p, path, got.stdout)
				}
				v = l[p]
			}
		}
		return v
	}
	for _, test := range []struct {
		want any
		path []any
	}{
		{"completed", []any{"status"}},
		{2.0, []any{"turns"}},
		{1.0, []any{"attempts"}},
		{0.0, []any{"waiting"}},
		{"completed", []any{"exchanges", 0, "closed"}},
		{"So.", []any{"exchanges", 0, "answer"}},
		{"script:play.yaml", []any{"model_calls", 0, "model"}},
		{"tool_use", []any{"model_calls", 0, "outcome"}},
		{0.0, []any{"model_calls", 0, "cached_tokens"}},
		{nil, []any{"model_calls", 1, "prompt_tokens"}},
		{nil, []any{"model_calls", 1, "cached_tokens"}},
		{7.0, []any{"model_calls", 1, "completion_tokens"}},
		{"c1_1", []any{"tool_calls", 0, "id"}},
		{"search_files", []any{"tool_calls", 0, "name"}},
		{".", []any{"tool_calls", 0, "arguments", "pattern"}},
		{"succeeded", []any{"tool_calls", 0, "outcome"}},
		{"out_c1_1", []any{"tool_calls", 0, "result_handle"}},
		{false, []any{"tool_calls", 0, "offloaded"}},
		{0.0, []any{"totals", "cached_tokens"}},
		{0.0, []any{"totals", "cache_hit_rate"}},
		{at("model_calls", 0, "wire", "history"), []any{"first_wire", "history"}},
		{at("model_calls", 1, "wire", "envelope"), []any{"last_wire", "envelope"}},
	} {
		if v := at(test.path...); v != test.want {
			t.Errorf("%v is %v, want %v", test.path, v, test.want)
		}
	}
	if n := at("tool_calls", 0, "result_bytes").(float64); n < 3_000*17 {
		t.Errorf("result_bytes is %v, want the size of the whole result", n)
	}
	preview, _ := at("tool_calls", 0, "preview").(string)
	if !strings.Contains(preview, "characters left out …") || !strings.HasPrefix(preview, "big.txt:1: <0123") {
		t.Errorf("preview: %s", preview)
	}
	for _, zone := range []string{"system", "tools", "history", "tail", "envelope"} {
		at("model_calls", 0, "wire", zone)
	}
}

// TestRunPrintable guards that what a model or a file holds never drives the
// terminal.
func TestRunPrintable(t *testing.T) {
	workdir(t, "spec.yaml", filesSpec, "data/evil.txt", strings.Repeat("\x1b]0;owned\a\u009b31m evil\r \x7f\n", 3_000), "play.yaml", `steps:
  - text: "\x1b[2Jcleared"
    calls: [{name: "no\e[31m\nsuch", arguments: {x: "\x1b[1m"}}, {name: read_file, arguments: {path: "\u009b0m"}}, {name: search_files, arguments: {pattern: evil}}]
  - {fail: 400}
`)
	for _, flag := range []string{"--json=false", "--json"} {
		got := psychIn("", nil, "run", flag, "--files", "data", "spec.yaml", "hello")
		if got.code != exitFailed {
			t.Fatalf("exit code %d, want 1; stderr:\n%s", got.code, got.stderr)
		}
		for name, s := range map[string]string{"stdout": got.stdout, "stderr": got.stderr} {
			if strings.ContainsAny(s, "\x1b\a\r\x7f\u009b") {
				t.Errorf("%s holds what drives a terminal: %q", name, s)
			}
		}
		for _, shown := range []string{`\x1b[2Jcleared`, "c1_2", "out_c1_3"} {
			if !strings.Contains(got.stdout+got.stderr, shown) {
				t.Errorf("%q is not shown:\n%s", shown, got.stdout+got.stderr)
			}
		}
	}
}

// TestRunInterrupted guards that Ctrl-C ends the drive, not the process: the
// report comes all the same.
func TestRunInterrupted(t *testing.T) {
	workdir(t, "spec.yaml", filesSpec, "play.yaml", "steps: [{calls: [{name: list_files}]}, {text: first second third}]")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stdout := &cancelOn{seen: "first", cancel: cancel}
	var stderr bytes.Buffer
	code := run(ctx, []string{"run", "--files", ".", "spec.yaml", "hello"}, strings.NewReader(""), stdout, &stderr, getenv)
	if code != exitFailed {
		t.Errorf("exit code %d, want 1", code)
	}
	lines := strings.Split(stderr.String(), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "psych: interrupted: ") || !strings.HasPrefix(lines[1], "psych: interrupted: run ") {
		t.Errorf("stderr:\n%s", stderr.String())
	}
	if !strings.Contains(lines[1], " is open: psych resume ") {
		t.Errorf("it is not said how to go on: %s", lines[1])
	}
	if !strings.Contains(stdout.String(), ": open, 1 turn,") || !strings.Contains(stdout.String(), "  interrupted") {
		t.Errorf("the report does not say how far it came:\n%s", stdout.String())
	}

	// Interrupted before it began: nothing to report.
	stderr.Reset()
	stdout = &cancelOn{}
	code = run(ctx, []string{"run", "--files", ".", "spec.yaml", "hello"}, strings.NewReader(""), stdout, &stderr, getenv)
	if code != exitFailed || stdout.Len() > 0 {
		t.Errorf("exit code %d, want 1; stdout:\n%s", code, stdout.String())
	}
}

// cancelOn cancels once it was written what it waits for.
type cancelOn struct {
	strings.Builder
	seen   string
	cancel context.CancelFunc
}

func (c *cancelOn) WriteString(s string) (int, error) { return c.Write([]byte(s)) }

func (c *cancelOn) Write(p []byte) (int, error) {
	n, err := c.Builder.Write(p)
	if c.seen != "" && strings.Contains(c.String(), c.seen) {
		c.cancel()
	}
	return n, err
}
