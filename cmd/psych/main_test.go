package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An invocation of psych, with its result.
type invocation struct {
	code           int
	stdout, stderr string
}

// asPsych names the variable that makes the test program psych itself.
const asPsych = "PSYCH_TEST_AS_PSYCH"

// TestMain gives all tests, and the processes that they start, a state
// directory that is not the user's.
func TestMain(m *testing.M) {
	if os.Getenv(asPsych) != "" {
		main()
	}
	if who := os.Getenv(asServer); who != "" {
		serveTools(who)
	}
	dir, err := os.MkdirTemp("", "psych-state")
	if err == nil {
		err = os.Setenv("XDG_STATE_HOME", dir)
	}
	if err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// getenv is an environment of the tests' state directory and nothing else.
func getenv(name string) string {
	if name == "XDG_STATE_HOME" {
		return os.Getenv(name)
	}
	return ""
}

// psychIn runs psych in the working directory, with an environment of
// NAME=VALUE beside the state directory.
func psychIn(stdin string, env []string, args ...string) invocation {
	var stdout, stderr bytes.Buffer
	getenv := func(name string) string {
		for _, e := range env {
			if v, ok := strings.CutPrefix(e, name+"="); ok {
				return v
			}
		}
		return getenv(name)
	}
	code := run(context.Background(), args, strings.NewReader(stdin), &stdout, &stderr, getenv)
	return invocation{code, stdout.String(), stderr.String()}
}

// workdir makes a fresh working directory with files (name, content, …), and a
// fresh state directory.
func workdir(t *testing.T, files ...string) {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	t.Chdir(t.TempDir())
	for i := 0; i < len(files); i += 2 {
		if err := os.MkdirAll(filepath.Dir(files[i]), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(files[i], []byte(files[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// wantError checks the code and that stderr is one line that says all of says.
func (i invocation) wantError(t *testing.T, code int, says ...string) {
	t.Helper()
	if i.code != code {
		t.Errorf("exit code %d, want %d; stderr:\n%s", i.code, code, i.stderr)
	}
	line, ok := strings.CutPrefix(i.stderr, "psych: ")
	if !ok || strings.Index(line, "\n") != len(line)-1 {
		t.Errorf("stderr is not one line of psych:\n%s", i.stderr)
	}
	if strings.Contains(line, "psych: ") {
		t.Errorf("stderr says psych more than once:\n%s", i.stderr)
	}
	for _, s := range says {
		if !strings.Contains(line, s) {
			t.Errorf("stderr does not say %q:\n%s", s, i.stderr)
		}
	}
}

func (i invocation) wantCompleted(t *testing.T) {
	t.Helper()
	if i.code != exitCompleted || i.stderr != "" {
		t.Fatalf("exit code %d, want 0; stderr:\n%s", i.code, i.stderr)
	}
}

func TestWrongUse(t *testing.T) {
	workdir(t, "spec.yaml", "name: a", "play.yaml", "steps: [{text: Done.}]")
	for _, test := range []struct {
		args, says string
	}{
		{"", "no command: want one of abort, contract, delete, diff, model, output, records, replay, report, resume, run, runs, send, serve, spec, store, sweep, tools, version"},
		{"rnu", `unknown command "rnu"`},
		{"spec", "want one of check"},
		{"spec chekc", `unknown command "chekc"`},
		{"version 1", "want none"},
		{"run spec.yaml", "want SPEC and MESSAGE"},
		{"run spec.yaml a message", "want SPEC and MESSAGE, the message in quotes"},
		{"run --modle script:play.yaml spec.yaml hello", "unknown flag: --modle: psych run --help"},
		{"run --json=perhaps spec.yaml hello", "psych run --help"},
		{"spec check", "want SPEC"},
		{"run --model script:play.yaml absent.yaml hello", "no such file"},
		{"run --model script:play.yaml . hello", "is a directory"},
		{"run spec.yaml hello", "give --model URL, set PSYCH_MODEL"},
		{"run --model script:absent.yaml spec.yaml hello", "no such file"},
		{"run --model script://host/play.yaml spec.yaml hello", `the host "host"`},
		{"run --model gtp:5 spec.yaml hello", `unknown scheme "gtp": want "anthropic:", "bedrock:", "openai:", "script:"`},
		{"run --model gpt-5 spec.yaml hello", `want one that begins with "anthropic:", "bedrock:", "openai:", "script:"`},
		{"run --model script:play.yaml --store dynmo://t spec.yaml hello", `unknown scheme "dynmo": want "`},
		{"run --model script:play.yaml --store mem://?a=b spec.yaml hello", "takes none"},
		{"run --model script:play.yaml --blob s4://b spec.yaml hello", `unknown scheme "s4": want "file:", "mem:", "s3:"`},
		{"run --model script:play.yaml --blob file://dir spec.yaml hello", `the host "dir"`},
		{"run --model script:play.yaml --files absent spec.yaml hello", "--files absent"},
		{"run --model script:play.yaml --tenant= spec.yaml hello", "tenant"},
		{"spec check absent.yaml", "no such file"},
	} {
		t.Run(test.args, func(t *testing.T) {
			got := psychIn("", nil, strings.Fields(test.args)...)
			got.wantError(t, exitUse, test.says)
			if got.stdout != "" {
				t.Errorf("stdout:\n%s", got.stdout)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	got := psychIn("", nil, "version")
	got.wantCompleted(t)
	if !strings.HasPrefix(got.stdout, "psych ") || !strings.Contains(got.stdout, " go1.") {
		t.Errorf("psych version printed %q", got.stdout)
	}
}

func TestSpecCheck(t *testing.T) {
	workdir(t,
		"good.yaml", "name: a\ntools: [read_file]\nlimits: {turns: 3}",
		"good.json", `{"name": "a", "limits": {"turns": 3}}`,
		"unknown.yaml", "name: a\ntools: [read_fiel]",
		"bad.yaml", "nmae: a\ntools: [read_file, read_file]\nlimits: {turns: -1, large_result_tokens: 9, batch_result_tokens: 8}",
		"empty.yaml", "",
		"twice.yaml", "name: a\nname: b",
		"huge.yaml", "name: a\ninstructions: "+strings.Repeat("x", 1<<20),
		"bomb.yaml", "name: a\ntools:\n  - &a [x, x, x, x, x, x, x, x, x]\n"+bomb(),
	)
	for _, test := range []struct {
		args []string
		code int
		out  []string // a line each begins so
	}{
		{[]string{"good.yaml"}, exitCompleted, []string{"good.yaml: valid"}},
		{[]string{"good.json"}, exitCompleted, []string{"good.json: valid"}},
		{[]string{"--files", ".", "good.yaml"}, exitCompleted, []string{"good.yaml: valid"}},
		{[]string{"unknown.yaml"}, exitCompleted, []string{"unknown.yaml: valid"}},
		{[]string{"--files", ".", "unknown.yaml"}, exitFailed, []string{"unknown.yaml: tools[0]: "}},
		{[]string{"bad.yaml"}, exitFailed, []string{"bad.yaml: nmae: ", "bad.yaml: name: ", "bad.yaml: tools[1]: ", "bad.yaml: limits.turns: ", "bad.yaml: limits.large_result_tokens: "}},
		{[]string{"empty.yaml"}, exitFailed, []string{"empty.yaml: the input is empty"}},
		{[]string{"twice.yaml"}, exitFailed, []string{"twice.yaml: line 2: "}},
		{[]string{"huge.yaml"}, exitFailed, []string{"huge.yaml: the file is over 1048576 bytes"}},
		{[]string{"bomb.yaml"}, exitFailed, []string{"bomb.yaml: line "}},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			got := psychIn("", nil, append([]string{"spec", "check"}, test.args...)...)
			if test.code == exitCompleted {
				got.wantCompleted(t)
			} else {
				got.wantError(t, test.code, "mend what is listed")
			}
			lines := strings.Split(strings.TrimSuffix(got.stdout, "\n"), "\n")
			for _, begin := range test.out {
				n := 0
				for _, l := range lines {
					if strings.HasPrefix(l, begin) {
						n++
					}
				}
				if n != 1 {
					t.Errorf("%d lines begin with %q, want one:\n%s", n, begin, got.stdout)
				}
			}
			if len(lines) != len(test.out) {
				t.Errorf("%d lines, want %d:\n%s", len(lines), len(test.out), got.stdout)
			}
		})
	}

	// What psych run says of the same files.
	for _, name := range []string{"bad.yaml", "empty.yaml", "huge.yaml", "bomb.yaml", "unknown.yaml"} {
		psychIn("", []string{"PSYCH_MODEL=script:x"}, "run", name, "hello").wantError(t, exitUse)
	}
}

// bomb is YAML of few bytes whose aliases expand to 9^9 values.
func bomb() string {
	var b strings.Builder
	for c := 'b'; c < 'j'; c++ {
		b.WriteString("  - &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+", ", 9) + "]\n")
	}
	return b.String()
}
