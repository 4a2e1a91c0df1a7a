package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/psych-go/psych-go/adapters/sqlite"
	"github.com/psych-go/psych-go/psych"
)

// runID is the id in what psych run printed.
func runID(t *testing.T, stdout string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^run ([0-9a-f]{32}) of tenant `).FindStringSubmatch(stdout)
	if m == nil {
		t.Fatalf("no run id in:\n%s", stdout)
	}
	return m[1]
}

// Two commands, as from two terminals, with no set-up: what one did the other
// reads.
func TestAnotherTerminal(t *testing.T) {
	workdir(t, "spec.yaml", filesSpec, "data/big.txt", strings.Repeat("0123456789abcdef\n", 20_000)+"a \x1b[31mneedle\n",
		"play.yaml", `steps:
  - calls: [{name: search_files, arguments: {pattern: '.'}}, {name: list_files}]
  - text: So.
  - text: And so.
  - calls: [{name: list_files}]
  - text: At last.
`)
	list := psychIn("", nil, "runs")
	list.wantCompleted(t)
	if strings.Count(list.stdout, "\n") != 1 || exists(t, filepath.Join(os.Getenv("XDG_STATE_HOME"), "psych")) {
		t.Errorf("psych runs before the first Run printed this, or left something behind:\n%s", list.stdout)
	}

	ran := psychIn("", nil, "run", "--files", "data", "spec.yaml", "hello")
	ran.wantCompleted(t)
	id := runID(t, ran.stdout)
	_, want, _ := strings.Cut(ran.stdout, "\n\n")

	// psych report, by id and by its beginning.
	for _, name := range []string{id, id[:7]} {
		got := psychIn("", nil, "report", name)
		got.wantCompleted(t)
		if got.stdout != want {
			t.Errorf("psych report %s printed\n%s\nwant what psych run ended with:\n%s", name, got.stdout, want)
		}
	}
	var rep psych.Report
	asJSON := psychIn("", nil, "report", "--json", id)
	asJSON.wantCompleted(t)
	if err := json.Unmarshal([]byte(asJSON.stdout), &rep); err != nil || rep.Run.RunID != id || rep.Turns != 2 {
		t.Errorf("psych report --json: %v, %+v", err, rep.Run)
	}

	// psych runs.
	other := psychIn("", nil, "run", "--files", "data", "spec.yaml", "again")
	other.wantCompleted(t)
	list = psychIn("", nil, "runs")
	list.wantCompleted(t)
	lines := strings.Split(strings.TrimSuffix(list.stdout, "\n"), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "run ") || !strings.HasPrefix(lines[1], runID(t, other.stdout)) || !regexp.MustCompile(`^`+id+`  a     completed  \d{4}-`).MatchString(lines[2]) {
		t.Errorf("psych runs printed\n%s", list.stdout)
	}
	var runs []runLine
	asJSON = psychIn("", nil, "runs", "--json", "--limit", "1")
	if err := json.Unmarshal([]byte(asJSON.stdout), &runs); err != nil || len(runs) != 1 || runs[0].RunID != runID(t, other.stdout) || runs[0].Spec != "a" || runs[0].DueAt != nil || !strings.Contains(asJSON.stderr, "more than 1") {
		t.Errorf("psych runs --json --limit 1: %v\n%s%s", err, asJSON.stdout, asJSON.stderr)
	}
	if got := psychIn("", nil, "runs", "--tenant", "other"); strings.Count(got.stdout, "\n") != 1 || got.code != exitCompleted {
		t.Errorf("another tenant's list:\n%s", got.stdout)
	}

	// psych records, from the start and behind a position.
	records := func(args ...string) (kinds []string) {
		t.Helper()
		got := psychIn("", nil, append([]string{"records"}, args...)...)
		got.wantCompleted(t)
		for s := bufio.NewScanner(strings.NewReader(got.stdout)); s.Scan(); {
			var r struct {
				Seq  int
				Kind string
			}
			if err := json.Unmarshal(s.Bytes(), &r); err != nil {
				t.Fatalf("%v: %s", err, s.Bytes())
			}
			kinds = append(kinds, fmt.Sprint(r.Seq, " ", r.Kind))
		}
		return kinds
	}
	all := records(id)
	if len(all) < 8 || all[0] != "1 attempt_started" || !strings.HasSuffix(all[len(all)-1], " exchange_closed") {
		t.Errorf("psych records: %v", all)
	}
	if got := records(id, "--after", "5"); strings.Join(got, ",") != strings.Join(all[5:], ",") {
		t.Errorf("psych records --after 5: %v, want %v", got, all[5:])
	}
	if got := records(id, "--after", fmt.Sprint(len(all))); got != nil {
		t.Errorf("behind the last: %v", got)
	}

	// psych send goes on with the conversation, in this process.
	sent := psychIn("", nil, "send", "--files", "data", id, "and then?")
	sent.wantCompleted(t)
	if !strings.HasPrefix(sent.stdout, "And so.\n") || !strings.Contains(sent.stdout, "exchange 2: 1 turn, completed") {
		t.Errorf("psych send printed\n%s", sent.stdout)
	}
	// --no-drive leaves it to others, and an id is one message.
	for range 2 {
		posted := psychIn("more", nil, "send", "--no-drive", "--id", "m", id[:12], "-")
		posted.wantCompleted(t)
		if posted.stdout != "" {
			t.Errorf("psych send --no-drive printed\n%s", posted.stdout)
		}
	}
	if got := psychIn("", nil, "report", id); !strings.Contains(got.stdout, ": completed, 3 turns, 2 attempts, 1 note waiting\n") {
		t.Errorf("the report does not show the message that waits:\n%s", got.stdout)
	}
	if got := psychIn("", nil, "resume", id); got.code != exitUse {
		t.Errorf("a resume without the tools: exit code %d", got.code)
	} else {
		got.wantError(t, exitUse, "list_files, search_files, read_file", "--files")
	}
	resumed := psychIn("", nil, "resume", "--files", "data", id)
	resumed.wantCompleted(t)
	if !strings.HasPrefix(resumed.stdout, "→ c4_1 list_files") || !strings.Contains(resumed.stdout, "At last.\n") {
		t.Errorf("psych resume printed\n%s", resumed.stdout)
	}
	// Nothing is left to do: the report alone.
	again := psychIn("", nil, "resume", "--files", "data", id)
	again.wantCompleted(t)
	if !strings.HasPrefix(again.stdout, "\nrun "+id) {
		t.Errorf("a second resume printed\n%s", again.stdout)
	}

	// psych delete.
	gone := psychIn("", nil, "delete", id[:8])
	gone.wantCompleted(t)
	if gone.stdout != "run "+id+": deleted\n" {
		t.Errorf("psych delete printed %q", gone.stdout)
	}
	gone = psychIn("", nil, "delete", id)
	gone.wantCompleted(t)
	if !strings.Contains(gone.stdout, "tenant local has no such run") {
		t.Errorf("psych delete of what is not there printed %q", gone.stdout)
	}
	for _, args := range [][]string{{"report"}, {"records"}, {"resume"}, {"abort"}} {
		psychIn("", nil, append(args, id)...).wantError(t, exitUse, "has no run")
	}
	psychIn("", nil, "delete", id[:8]).wantError(t, exitUse, "has no run")
	if names, err := filepath.Glob(filepath.Join(os.Getenv("XDG_STATE_HOME"), "psych", "psych.db-blobs", "*", id)); err != nil || len(names) > 0 {
		t.Errorf("blobs of the deleted Run are left: %v %v", names, err)
	}
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Stat(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err == nil
}

func TestOutput(t *testing.T) {
	big := strings.Repeat("0123456789abcdef\n", 20_000) + "a \x1b[31mneedle\n"
	workdir(t, "spec.yaml", filesSpec, "data/big.txt", big, "play.yaml",
		"steps: [{calls: [{name: search_files, arguments: {pattern: '.'}}, {name: list_files}]}, {text: So.}]")
	ran := psychIn("", nil, "run", "--files", "data", "spec.yaml", "hello")
	ran.wantCompleted(t)
	id := runID(t, ran.stdout)
	whole := strings.Builder{}
	for i, l := range strings.Split(strings.TrimSuffix(big, "\n"), "\n") {
		fmt.Fprintf(&whole, "big.txt:%d: %s\n", i+1, l)
	}

	for _, test := range []struct {
		args        []string
		out, stderr string
	}{
		{[]string{"out_c1_1", "--limit", "2"}, "big.txt:1: 0123456789abcdef\nbig.txt:2: 0123456789abcdef\n", "from lines 0; go on with --offset 2\n"},
		{[]string{"out_c1_1", "--offset", "20000"}, "big.txt:20001: a \\x1b[31mneedle\n", "from lines 20000 to the end\n"},
		{[]string{"out_c1_1", "--grep", "NEEDLE", "--ignore-case", "--context", "1"}, "20000- big.txt:20000: 0123456789abcdef\n20001: big.txt:20001: a \\x1b[31mneedle\n", ", 1 matches, from matches 0 to the end\n"},
		{[]string{"out_c1_1", "--unit", "chars", "--offset", "4", "--limit", "3"}, "txt\n", "from chars 4; go on with --offset 7\n"},
		{[]string{"out_c1_1", "--grep", "absent"}, "", ", 0 matches, from matches 0 to the end\n"},
		{[]string{"out_c1_2"}, "big.txt\t340", " to the end\n"},
	} {
		got := psychIn("", nil, append([]string{"output", id}, test.args...)...)
		if got.code != exitCompleted || !strings.HasPrefix(got.stdout, test.out) || test.out == "" && got.stdout != "" || !strings.HasPrefix(got.stderr, "psych: of ") || !strings.HasSuffix(got.stderr, test.stderr) {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", test.args, got.code, got.stdout, got.stderr)
		}
	}

	// Whole, byte for byte, from the blob store and from the record.
	psychIn("", nil, "output", "-o", "out.txt", id, "out_c1_1").wantCompleted(t)
	if b, err := os.ReadFile("out.txt"); err != nil || !strings.HasPrefix(string(b), whole.String()) || !regexp.MustCompile(`(?m)^c1_1 .* `+fmt.Sprint(len(b))+` +blob `).MatchString(ran.stdout) {
		t.Errorf("-o wrote %d bytes, want those of the report, of which %d are known: %v", len(b), whole.Len(), err)
	}
	inline := psychIn("", nil, "output", id, "out_c1_2", "-o", "-")
	inline.wantCompleted(t)
	if !strings.Contains(inline.stdout, "big.txt\t3400") {
		t.Errorf("an inline output: %q", inline.stdout)
	}
	// A window goes into a file as it was stored.
	if got := psychIn("", nil, "output", id, "out_c1_1", "--grep", "needle", "-o", "out.txt"); got.code != exitCompleted {
		t.Errorf("a window into a file: %s", got.stderr)
	} else if b, err := os.ReadFile("out.txt"); err != nil || string(b) != "20001: big.txt:20001: a \x1b[31mneedle\n" {
		t.Errorf("a window into a file: %q, %v", b, err)
	}

	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{id, "out_c9_9"}, `has no output "out_c9_9"`},
		{[]string{id, "out_c9_9", "-o", "x"}, `has no output "out_c9_9"`},
		{[]string{id, "out_c1_1", "--grep", "("}, "grep: "},
		{[]string{id, "out_c1_1", "--unit", "words"}, "unit"},
		{[]string{id, "out_c1_1", "--context", "11", "--grep", "a"}, "0 to 10"},
		{[]string{id, "out_c1_1", "--offset", "-1"}, "from 0"},
		{[]string{id, "out_c1_1", "--context", "1"}, "--context is for a search: give --grep"},
		{[]string{id, "out_c1_1", "--ignore-case"}, "--ignore-case is for a search"},
		{[]string{id, "out_c1_1", "--from", "4"}, "--from is for a search"},
		{[]string{id, "out_c1_1", "-o", "absent/x"}, "no such file"},
		{[]string{"zz", "out_c1_1"}, "32 hexadecimal digits"},
		{[]string{"", "out_c1_1"}, "32 hexadecimal digits"},
		{[]string{strings.Repeat("0", 32), "out_c1_1"}, "has no run"},
		{[]string{id, "out_c1_1", "--tenant", "other"}, "has no run"},
	} {
		psychIn("", nil, append([]string{"output"}, test.args...)...).wantError(t, exitUse, test.says)
	}
	if exists(t, "x") {
		t.Error("an output that is not there left a file")
	}
	// A file that was there is replaced by all of an output, or not at all, and
	// what it is stays: its mode, and a link to it.
	mine := func(want string) {
		t.Helper()
		b, err := os.ReadFile("mine.txt")
		info, statErr := os.Stat("mine.txt")
		if err != nil || statErr != nil || string(b) != want || info.Mode().Perm() != 0o640 {
			t.Errorf("mine.txt has %d bytes, %v, %v", len(b), err, info)
		}
		if left, err := filepath.Glob(".psych-*"); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
	if err := errors.Join(os.WriteFile("mine.txt", []byte("precious"), 0o640), os.Chmod("mine.txt", 0o640), os.Symlink("mine.txt", "link.txt")); err != nil {
		t.Fatal(err)
	}
	psychIn("", nil, "output", id, "out_c9_9", "-o", "mine.txt").wantError(t, exitUse, "has no output")
	mine("precious")
	if got := psychIn("", nil, "output", id, "out_c1_1", "-o", "link.txt", "--limit", "1"); got.code != exitCompleted {
		t.Errorf("a window over a file: %s", got.stderr)
	}
	mine("big.txt:1: 0123456789abcdef\n")
	if info, err := os.Lstat("link.txt"); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is replaced: %v, %v", info, err)
	}

	// Bytes that were changed behind the record are not passed on as good.
	blobs, err := filepath.Glob(filepath.Join(os.Getenv("XDG_STATE_HOME"), "psych", "psych.db-blobs", "*", "*", "*"))
	if err != nil || len(blobs) != 1 {
		t.Fatalf("blobs: %v, %v", blobs, err)
	}
	b, err := os.ReadFile(blobs[0])
	if err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if err := os.WriteFile(blobs[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	psychIn("", nil, "output", "-o", "bad.txt", id, "out_c1_1").wantError(t, exitFailed, "changed behind its record")
	if exists(t, "bad.txt") {
		t.Error("a damaged output was left in the file")
	}
	psychIn("", nil, "output", "-o", "mine.txt", id, "out_c1_1").wantError(t, exitFailed, "changed behind its record")
	mine("big.txt:1: 0123456789abcdef\n")
}

// The default store is the user's alone.
func TestStateDirectory(t *testing.T) {
	workdir(t, "spec.yaml", plainSpec, "play.yaml", "steps: [{text: So.}]")
	psychIn("", nil, "run", "spec.yaml", "hello").wantCompleted(t)
	for path, mode := range map[string]os.FileMode{"psych": 0o700, "psych/psych.db": 0o600} {
		info, err := os.Stat(filepath.Join(os.Getenv("XDG_STATE_HOME"), path))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, mode %v, want %v", path, err, info.Mode(), mode)
		}
	}
	abs, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ goos, env, want string }{
		{"linux", "XDG_STATE_HOME=" + abs + " HOME=/h", abs + "/psych"},
		{"linux", "XDG_STATE_HOME=relative HOME=/h", "/h/.local/state/psych"},
		{"freebsd", "HOME=/h", "/h/.local/state/psych"},
		{"darwin", "HOME=/h", "/h/Library/Application Support/psych"},
		{"windows", "LocalAppData=/l HOME=/h", "/l/psych"},
		{"linux", "", ""},
		{"windows", "HOME=/h", ""},
	} {
		env := strings.Fields(test.env)
		got, err := stateDir(test.goos, func(name string) string {
			for _, e := range env {
				if v, ok := strings.CutPrefix(e, name+"="); ok {
					return v
				}
			}
			return ""
		})
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s with %s: %q, %v, want %q", test.goos, test.env, got, err, test.want)
		}
	}
	psychIn("", []string{"XDG_STATE_HOME=", "HOME="}, "runs").wantError(t, exitUse, "set XDG_STATE_HOME or HOME", "--store")

	// A file elsewhere, with its blobs beside it.
	p := newProgram(nil, nil, nil, getenv)
	for store, want := range map[string]string{
		"mem://": "mem://", "sqlite:///a/b%20c.db": "file:///a/b%20c.db-blobs", "dynamo://runs?region=eu-west-1": "",
	} {
		if _, blob, err := p.urls(&storeFlags{store: store}); blob != want || err != nil {
			t.Errorf("blobs of %s: %q, %v, want %q", store, blob, err, want)
		}
	}
}

func TestAbort(t *testing.T) {
	workdir(t, "spec.yaml", plainSpec, "play.yaml", "steps: [{text: So.}, {text: And so.}]")
	ran := psychIn("", nil, "run", "spec.yaml", "hello")
	id := runID(t, ran.stdout)
	psychIn("", nil, "send", "--no-drive", "--id", "m2", id, "go on").wantCompleted(t)
	got := psychIn("", nil, "abort", "--message", "m2", "--reason", "no \x1b[1mneed", id[:9])
	got.wantCompleted(t)
	if got.stdout != "run "+id+": abort requested; no worker drives it: psych resume or psych sweep takes the request\n" {
		t.Errorf("psych abort printed %q", got.stdout)
	}
	resumed := psychIn("", nil, "resume", id)
	resumed.wantError(t, exitFailed, "run "+id+" is aborted: ", "need")
	if strings.Contains(resumed.stdout+resumed.stderr, "\x1b") || strings.Contains(resumed.stdout, "And so.") {
		t.Errorf("psych resume printed %q and %q", resumed.stdout, resumed.stderr)
	}
}

func TestSweep(t *testing.T) {
	workdir(t, "spec.yaml", plainSpec, "files.yaml", filesSpec, "play.yaml", "steps: [{text: So.}, {text: And so.}]")
	ids := map[string]string{}
	for _, tenant := range []string{"a", "b"} {
		ran := psychIn("", nil, "run", "--tenant", tenant, "spec.yaml", "hello")
		ran.wantCompleted(t)
		ids[tenant] = runID(t, ran.stdout)
		psychIn("", nil, "send", "--tenant", tenant, "--no-drive", ids[tenant], "more").wantCompleted(t)
	}
	ran := psychIn("", nil, "run", "--files", ".", "files.yaml", "hello")
	psychIn("", nil, "send", "--no-drive", runID(t, ran.stdout), "more").wantCompleted(t)

	// What was posted just now is due after the grace of its wake.
	if got := psychIn("", nil, "sweep"); got.code != exitCompleted || got.stdout != "swept: 0 due, 0 driven\n" {
		t.Errorf("psych sweep: exit code %d, %q, %q", got.code, got.stdout, got.stderr)
	}
	makeDue(t)
	got := psychIn("", nil, "sweep")
	if got.code != exitFailed || !strings.Contains(got.stderr, runID(t, ran.stdout)+" of tenant local: ") || !strings.Contains(got.stderr, "give --files") || !strings.HasSuffix(got.stderr, "psych: 1 runs could not be driven here: what is wrong stands above\n") {
		t.Errorf("exit code %d, stderr:\n%s", got.code, got.stderr)
	}
	for tenant, id := range ids {
		if !strings.Contains(got.stdout, "run "+id+" of tenant "+tenant+": completed\n") {
			t.Errorf("tenant %s was not swept:\n%s", tenant, got.stdout)
		}
		if rep := psychIn("", nil, "report", "--tenant", tenant, id); !strings.Contains(rep.stdout, "exchange 2: 1 turn, completed") {
			t.Errorf("tenant %s:\n%s", tenant, rep.stdout)
		}
	}
	if !strings.HasSuffix(got.stdout, "swept: 3 due, 2 driven\n") {
		t.Errorf("stdout:\n%s", got.stdout)
	}
}

// makeDue makes every Run of the default store due a while ago.
func makeDue(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	store := sqlite.New(filepath.Join(os.Getenv("XDG_STATE_HOME"), "psych", "psych.db"), nil)
	defer store.Close()
	for _, tenant := range []string{"a", "b", "local"} {
		runs, _, err := store.ListRuns(ctx, tenant, "", 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range runs {
			now := time.Now()
			l, err := store.Claim(ctx, info.Key, "test", "test", now, time.Minute)
			if err == nil {
				err = store.Release(ctx, l, now.Add(-time.Minute), info.Status)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}
