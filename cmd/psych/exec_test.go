//go:build linux || darwin

package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

// process is psych as a process of its own, with the test's state directory and
// an environment of NAME=VALUE beside it.
func process(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self, args...)
	c.Env = append(append(os.Environ(), asPsych+"=1", "PSYCH_STORE_URL=", "PSYCH_BLOB_URL=", "PSYCH_MODEL="), env...)
	return c
}

func TestRunExec(t *testing.T) {
	workdir(t, "spec.yaml", plainSpec+"tools: [run_command]\n", "data/x.txt", "the content\n", "play.yaml", `steps:
  - calls: [{name: run_command, arguments: {command: [cat, x.txt, absent.txt]}}]
  - calls: [{name: read_tool_output, arguments: {handle: out_c1_1_stdout}}]
  - calls: [{name: run_command, arguments: {command: [rm, x.txt]}}]
  - text: So.
`)
	psychIn("", nil, "run", "spec.yaml", "hello").wantError(t, exitUse, "tools[0]")
	psychIn("", nil, "run", "--allow-exec", "../cat", "spec.yaml", "hello").wantError(t, exitUse, "--allow-exec ../cat", "want the name of a program")
	got := psychIn("", nil, "run", "--files", "data", "--allow-exec", "cat", "--allow-exec", "ls", "spec.yaml", "hello")
	got.wantCompleted(t)
	for _, shown := range []string{"  + stdout, 12 bytes\n", "  + stderr, ", "← c3_1 failed", "is not allowed: want one of cat, ls", "out_c1_1_stderr"} {
		if !strings.Contains(got.stdout, shown) {
			t.Errorf("stdout does not show %q:\n%s", shown, got.stdout)
		}
	}
	out := psychIn("", nil, "output", runID(t, got.stdout), "out_c1_1_stdout", "-o", "-")
	out.wantCompleted(t)
	if out.stdout != "the content\n" {
		t.Errorf("the attachment is %q", out.stdout)
	}
}

// TestKilled: the default store.
func TestKilled(t *testing.T) { killed(t) }

// TestKilledOnAWS: the same on DynamoDB and S3.
func TestKilledOnAWS(t *testing.T) {
	dynamo, s3 := endpoint.One(t, endpoint.Dynamo, "ministack"), endpoint.One(t, endpoint.S3, "ministack")
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	name := "psych-" + strings.ToLower(rand.Text())
	store := fmt.Sprintf("dynamo://%s?region=us-east-1&endpoint=%s", name, url.QueryEscape(dynamo.URL))
	blobs := fmt.Sprintf("s3://%s/killed?region=us-east-1&endpoint=%s", name, url.QueryEscape(s3.URL))
	for _, u := range []string{store, blobs} {
		psychIn("", nil, "store", "init", u).wantCompleted(t)
	}
	killed(t, "PSYCH_STORE_URL="+store, "PSYCH_BLOB_URL="+blobs)
}

// killed kills psych run with SIGKILL while a tool runs. Another process waits
// for the dead worker's lease, takes over and completes the Run.
func killed(t *testing.T, env ...string) {
	workdir(t, "spec.yaml", plainSpec+"tools: [run_command, search_files]\n", "data/x.txt", strings.Repeat("0123456789abcdef\n", 20_000), "play.yaml", `steps:
  - calls: [{name: search_files, arguments: {pattern: '.'}}]
  - calls: [{name: run_command, arguments: {command: [sleep, "600"]}}]
  - text: It was cut.
    require: ['(?i)unknown']
`)
	worker := process(t, env, "run", "--lease", "4s", "--files", "data", "--allow-exec", "sleep", "spec.yaml", "hello")
	worker.Stderr = os.Stderr
	stdout, err := worker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	// The call is in the log once it is printed, and then the tool begins.
	id := ""
	for s := bufio.NewScanner(stdout); id == "" && s.Scan(); {
		if strings.HasPrefix(s.Text(), "→ c2_1 run_command ") {
			list := psychIn("", env, "runs")
			list.wantCompleted(t)
			m := regexp.MustCompile(`(?m)^([0-9a-f]{32})  a     open .* driven by `).FindStringSubmatch(list.stdout)
			if m == nil {
				t.Fatalf("psych runs of another process does not show it:\n%s", list.stdout)
			}
			id = m[1]
		}
	}
	if id == "" {
		t.Fatal("psych run ended early")
	}
	for { // until the tool runs
		records := psychIn("", env, "records", id)
		records.wantCompleted(t)
		if strings.Count(records.stdout, `"tool_call_started"`) == 2 {
			break
		}
	}
	if err := worker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	worker.Wait()

	resume := process(t, env, "resume", "--lease", "4s", "--files", "data", "--allow-exec", "sleep", id[:10])
	var out, stderr bytes.Buffer
	resume.Stdout, resume.Stderr = &out, &stderr
	if err := resume.Run(); err != nil {
		t.Fatalf("psych resume: %v\n%s%s", err, out.String(), stderr.String())
	}
	if !regexp.MustCompile(`^psych: worker \S+ holds run ` + id + ` until \d\d:\d\d:\d\d: waiting, and going on then if it is dead\n$`).MatchString(stderr.String()) {
		t.Errorf("psych resume does not say what it waits for:\n%s", stderr.String())
	}
	output := psychIn("", env, "output", id, "out_c1_1", "--offset", "19999", "--limit", "1")
	if output.code != exitCompleted || !strings.Contains(output.stdout, "x.txt:20000: 0123456789abcdef\n") {
		t.Errorf("what the dead worker stored is not readable: %q %q", output.stdout, output.stderr)
	}
	if !strings.Contains(out.String(), "It was cut.\n") || !strings.Contains(out.String(), "run "+id+" of tenant local: completed, 3 turns, 2 attempts\n") || !regexp.MustCompile(`(?m)^c2_1 +run_command +unknown `).MatchString(out.String()) {
		t.Errorf("psych resume printed\n%s", out.String())
	}
}

// TestAliveElsewhere has a worker that renews its lease: psych resume leaves it
// alone, psych send hands it its message, and psych abort ends it.
func TestAliveElsewhere(t *testing.T) {
	workdir(t, "spec.yaml", plainSpec+"tools: [run_command]\n", "play.yaml", `steps:
  - calls: [{name: run_command, arguments: {command: [sleep, "600"]}}]
  - text: So.
`)
	worker := process(t, nil, "run", "--lease", "3s", "--allow-exec", "sleep", "spec.yaml", "hello")
	var out, stderr bytes.Buffer
	worker.Stdout, worker.Stderr = &out, &stderr
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	id := ""
	for id == "" {
		list := psychIn("", nil, "runs")
		if m := regexp.MustCompile(`(?m)^([0-9a-f]{32}) .* driven by `).FindStringSubmatch(list.stdout); m != nil {
			id = m[1]
		}
	}
	got := psychIn("", nil, "resume", "--allow-exec", "sleep", id)
	if got.code != exitFailed || !strings.Contains(got.stderr, ", and it is alive: psych report shows how far it is\n") {
		t.Errorf("psych resume of a Run that is driven: exit code %d\n%s", got.code, got.stderr)
	}
	got = psychIn("", nil, "send", "--allow-exec", "sleep", id, "more")
	if got.code != exitCompleted || !strings.HasSuffix(got.stderr, "psych: another worker drives run "+id+": it takes the message at its next turn\n") {
		t.Errorf("psych send to a Run that is driven: exit code %d\n%s", got.code, got.stderr)
	}
	got = psychIn("", nil, "abort", id)
	got.wantCompleted(t)
	if !strings.Contains(got.stdout, " takes the request soon\n") {
		t.Errorf("psych abort printed %q", got.stdout)
	}
	// The message opens the next exchange in the same worker.
	if err := worker.Wait(); err != nil {
		t.Fatalf("the worker: %v\n%s%s", err, out.String(), stderr.String())
	}
	if !strings.Contains(out.String(), "exchange 1: 1 turn, aborted") || !strings.Contains(out.String(), "exchange 2: 1 turn, completed") {
		t.Errorf("the worker printed\n%s", out.String())
	}
}

// TestBuildLog finds a line of what a build tool says, over 5 MB of it, through
// a preview, a pattern and a window, as docs/example-build-log.md shows it on a
// log that takes minutes to make.
func TestBuildLog(t *testing.T) {
	t.Chdir("../..")
	psychIn("", nil, "spec", "check", "--allow-exec", "go", "examples/build-log/spec.yaml").wantCompleted(t)
	workdir(t, "spec.yaml", plainSpec+"tools: [run_command]\n", "play.yaml", `steps:
  - calls: [{name: run_command, arguments: {command: [go, list, -json, -deps, -test, std]}}]
  - require: ['"exit_code":0', 'characters left out', 'handle "out_c1_1_stdout"']
    calls: [{name: read_tool_output, arguments: {handle: out_c1_1_stdout, grep: '"ImportPath": "net/http",$'}}]
  - calls: [{name: read_tool_output, arguments: {handle: out_c1_1_stdout, offset: '${(?m)^(\d+): }', limit: 4}}]
  - text: It is so.
    require: ['"Name": "http"']
`)
	rep, p := runJSON(t, "--allow-exec", "go", "spec.yaml", "What is the name of net/http?")
	if len(rep.ToolCalls) != 3 || len(rep.ToolCalls[0].Attachments) != 2 {
		t.Fatalf("calls: %+v", rep.ToolCalls)
	}
	log := rep.ToolCalls[0].Attachments[0]
	if log.Name != "stdout" || log.SizeBytes <= 5_000_000 || log.Stored != psych.StoredBlob || log.Preview == "" || !log.Readable || log.Truncated {
		t.Errorf("the log: %+v", log)
	}
	if n := rep.LastWire.Total(); n > 10_000 {
		t.Errorf("the last request has %d characters of a log of %d", n, log.SizeBytes)
	}
	p.close()
	whole := psychIn("", nil, "output", rep.Run.RunID, log.Handle, "-o", "-")
	whole.wantCompleted(t)
	if sum := psych.Digest(sha256.Sum256([]byte(whole.stdout))); sum != log.SHA256 {
		t.Errorf("what was read back has the digest %s, the report says %s", sum, log.SHA256)
	}
}
