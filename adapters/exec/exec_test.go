//go:build linux || darwin

package exec_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/psych-go/psych-go/adapters/exec"
	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
)

// A bench runs commands in a folder through a Runtime.
type bench struct {
	t     *testing.T
	dir   string
	o     exec.Options
	rt    *psych.Runtime
	key   psych.RunKey
	model *script.Model
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return &bench{t: t, dir: t.TempDir(), o: exec.Options{Allow: []string{"sh"}}}
}

type arguments struct {
	Command []string `json:"command"`
	Stdin   string   `json:"stdin,omitempty"`
	Files   []string `json:"files,omitempty"`
}

func sh(line string, files ...string) arguments {
	return arguments{Command: []string{"sh", "-c", line}, Files: files}
}

// start starts a Run that makes the calls in one batch.
func (b *bench) start(calls ...arguments) {
	b.t.Helper()
	tool, err := exec.New(b.dir, &b.o)
	if err != nil {
		b.t.Fatal(err)
	}
	type call struct {
		Name      string    `json:"name"`
		Arguments arguments `json:"arguments"`
	}
	var batch []call
	for _, c := range calls {
		batch = append(batch, call{exec.ToolName, c})
	}
	steps, err := json.Marshal(map[string]any{"steps": []any{map[string]any{"calls": batch}, map[string]any{"text": "done"}}})
	if err != nil {
		b.t.Fatal(err)
	}
	s, err := script.Parse(steps)
	if err != nil {
		b.t.Fatal(err)
	}
	b.model = script.New(s, &script.Options{Record: true})
	b.rt, err = psych.New(memory.New(nil), &psych.Options{Models: psych.OneModel(b.model), Blobs: memory.NewBlobs(nil), Tools: []*psych.Tool{tool}})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx := context.Background()
	v, err := b.rt.Publish(ctx, "t", &psych.Spec{Name: "builder", Tools: []string{exec.ToolName}})
	if err != nil {
		b.t.Fatal(err)
	}
	if b.key, err = b.rt.Start(ctx, psych.Scope{Tenant: "t"}, v.Hash, psych.ClientMessage{ID: "m", Text: "go"}); err != nil {
		b.t.Fatal(err)
	}
}

// An end is what came of a call.
type end struct {
	psych.ToolCallReport
	Text     string // the result
	ExitCode *int
	Signal   string
	TimedOut bool
	Stopped  bool
	Stdout   int64
	Stderr   int64
	Files    []struct {
		Path  string
		Size  *int64 `json:"size_bytes"`
		Error string
	}
}

// run runs the calls and reads what came of them.
func (b *bench) run(calls ...arguments) []end {
	b.t.Helper()
	b.start(calls...)
	if out, err := b.rt.Drive(context.Background(), b.key, nil); out != psych.Closed || err != nil {
		b.t.Fatal(out, err)
	}
	return b.ends()
}

// drive drives the Run, and leaves its error in the channel.
func (b *bench) drive(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := b.rt.Drive(ctx, b.key, nil)
		done <- err
	}()
	return done
}

// ends are what came of the calls.
func (b *bench) ends() []end {
	b.t.Helper()
	rep, err := b.rt.Report(context.Background(), b.key)
	if err != nil {
		b.t.Fatal(err)
	}
	ends := make([]end, len(rep.ToolCalls))
	for i, c := range rep.ToolCalls {
		e := end{ToolCallReport: c, Text: b.output("out_" + c.ID)}
		if c.Outcome == string(psych.Succeeded) {
			var a struct {
				ExitCode *int   `json:"exit_code"`
				Signal   string `json:"signal"`
				TimedOut bool   `json:"timed_out"`
				Stopped  bool   `json:"stopped_background"`
				Stdout   *int64 `json:"stdout_bytes"`
				Stderr   *int64 `json:"stderr_bytes"`
				Files    json.RawMessage
			}
			if err := json.Unmarshal([]byte(e.Text), &a); err != nil || a.Stdout == nil || a.Stderr == nil {
				b.t.Fatalf("result %s: %v", e.Text, err)
			}
			e.ExitCode, e.Signal, e.TimedOut, e.Stopped, e.Stdout, e.Stderr = a.ExitCode, a.Signal, a.TimedOut, a.Stopped, *a.Stdout, *a.Stderr
			if a.Files != nil {
				if err := json.Unmarshal(a.Files, &e.Files); err != nil {
					b.t.Fatal(err)
				}
			}
		}
		ends[i] = e
	}
	return ends
}

// output reads an output to its end.
func (b *bench) output(handle string) string {
	b.t.Helper()
	var text strings.Builder
	for q := (psych.OutputQuery{Unit: psych.UnitChars}); ; {
		w, err := b.rt.Output(context.Background(), b.key, handle, q)
		if err != nil {
			b.t.Fatal(err)
		}
		text.WriteString(w.Text)
		if w.AtEnd {
			return text.String()
		}
		q.Offset = w.NextOffset
	}
}

func (e *end) attachment(t *testing.T, name string) psych.AttachmentReport {
	t.Helper()
	for _, a := range e.Attachments {
		if a.Name == name {
			return a
		}
	}
	t.Fatalf("there is no attachment %s among %+v", name, e.Attachments)
	return psych.AttachmentReport{}
}

func (e *end) exit(t *testing.T, want int) {
	t.Helper()
	if e.Outcome != string(psych.Succeeded) || e.ExitCode == nil || *e.ExitCode != want || e.TimedOut || e.Signal != "" {
		t.Errorf("%s, %s; want exit code %d", e.Outcome, e.Text, want)
	}
}

func TestExitCodes(t *testing.T) {
	b := newBench(t)
	e := b.run(sh("echo out; echo err >&2; exit 3"), sh("exit 0"), sh("kill -KILL $$"))
	e[0].exit(t, 3)
	e[1].exit(t, 0)
	if want := `{"exit_code":3,"stdout_bytes":4,"stderr_bytes":4}`; e[0].Text != want {
		t.Errorf("result %s, want %s", e[0].Text, want)
	}
	if e[2].Outcome != string(psych.Succeeded) || e[2].Signal != "killed" || e[2].ExitCode != nil {
		t.Errorf("%s, %s; want a signal", e[2].Outcome, e[2].Text)
	}
	if out, err := b.output("out_c1_1_stdout"), b.output("out_c1_1_stderr"); out != "out\n" || err != "err\n" {
		t.Errorf("stdout %q, stderr %q", out, err)
	}
	// What a failing command says is shown to the model.
	text, err := b.model.Requests()[1].Text()
	if err != nil || !strings.Contains(text, `"exit_code":3`) || !strings.Contains(text, "err\n") {
		t.Errorf("the model was shown %s, %v", text, err)
	}
}

func TestAllowlist(t *testing.T) {
	b := newBench(t)
	must(t, os.WriteFile(filepath.Join(b.dir, "local"), []byte("#!/bin/sh\necho local\n"), 0o755))
	must(t, os.WriteFile(filepath.Join(b.dir, "plain"), []byte("no program"), 0o644))
	plain := filepath.Join(b.dir, "plain")
	t.Chdir(b.dir)
	t.Setenv("PATH", ".:"+os.Getenv("PATH"))
	b.o.Allow = []string{"sh", "local", "surely-not-installed", plain, filepath.Join(b.dir, "gone")}
	for _, c := range []struct {
		program, want string
	}{
		{"rm", "not allowed: want one of"},
		{"/bin/sh", "not allowed"}, // sh is, by that name
		{"./sh", "not allowed"},
		{"../sh", "not allowed"},
		{"SH", "not allowed"},
		{"sh ", "not allowed"},
		{"", "not allowed"},
		{"sh\x00", "not allowed"},
		{"local", "not installed"}, // the model could have written it
		{"surely-not-installed", "not installed"},
		{plain, "permission denied"},
		{filepath.Join(b.dir, "gone"), "no such file"},
	} {
		e := b.run(arguments{Command: []string{c.program, "-c", "echo ran"}})[0]
		if e.Outcome != string(psych.Failed) || !strings.Contains(e.Text, c.want) {
			t.Errorf("%q: %s, %s; want %q", c.program, e.Outcome, e.Text, c.want)
		}
		for _, a := range e.Attachments {
			if a.SizeBytes != 0 {
				t.Errorf("%q: it ran: %+v", c.program, a)
			}
		}
	}
	// Arguments that no command can have.
	for _, c := range []arguments{{}, {Command: []string{"sh", "a\x00b"}}, {Command: []string{"sh"}, Files: []string{"a\x00"}}} {
		if e := b.run(c)[0]; e.Outcome != string(psych.Failed) {
			t.Errorf("%.60v: %s, %s", c, e.Outcome, e.Text)
		}
	}
	tool, err := exec.New(b.dir, &b.o)
	must(t, err)
	long, _ := json.Marshal(arguments{Command: []string{"sh", strings.Repeat("x", 16<<20)}})
	if _, err := tool.Call(t.Context(), &psych.Call{ToolCall: psych.ToolCall{Arguments: long}}); err == nil || !strings.Contains(err.Error(), "can't be started: argument list too long") {
		t.Errorf("16 MiB of arguments: %v", err)
	}
	// An absolute path may be one that is allowed.
	script := filepath.Join(b.dir, "local")
	b.o.Allow = []string{script}
	b.run(arguments{Command: []string{script}})[0].exit(t, 0)
}

func TestEnvironment(t *testing.T) {
	t.Setenv("EXEC_TEST_SECRET", "secret")
	t.Setenv("EXEC_TEST_GIVEN", "given")
	b := newBench(t)
	for _, c := range []struct {
		env  []string
		want string
	}{
		{nil, "secret= given= fixed= home=" + os.Getenv("HOME")},
		{[]string{"PATH", "EXEC_TEST_GIVEN", "EXEC_TEST_ABSENT", "FIXED=a=b"}, "secret= given=given fixed=a=b home="},
		{[]string{}, "secret= given= fixed= home="},
	} {
		b.o.Env = c.env
		e := b.run(sh(`echo "secret=$EXEC_TEST_SECRET given=$EXEC_TEST_GIVEN fixed=$FIXED home=$HOME"; pwd; env`))[0]
		e.exit(t, 0)
		lines := strings.Split(b.output("out_c1_1_stdout"), "\n")
		if lines[0] != c.want || lines[1] != b.dir {
			t.Errorf("%q: %q in %q, want %q in %q", c.env, lines[0], lines[1], c.want, b.dir)
		}
		for _, l := range lines[2:] {
			name, _, _ := strings.Cut(l, "=")
			if allowed := strings.Contains(" "+strings.Join(append([]string{"PWD", "OLDPWD", "_", "SHLVL", "FIXED", ""}, append(c.env, exec.DefaultEnv...)...), " ")+" ", " "+name+" "); !allowed {
				t.Errorf("%q: the command sees %s", c.env, l)
			}
		}
	}
	// A shell sets PWD by itself, other programs are given it.
	b.o.Env, b.o.Allow = nil, []string{"env"}
	b.run(arguments{Command: []string{"env"}})[0].exit(t, 0)
	if got := b.output("out_c1_1_stdout"); !strings.Contains("\n"+got, "\nPWD="+b.dir+"\n") {
		t.Errorf("the command sees\n%s", got)
	}
	b.o.Allow = []string{"sh"}
	// Where PATH is given, a program is looked up there.
	bin := t.TempDir()
	must(t, os.WriteFile(filepath.Join(bin, "sh"), []byte("#!/bin/sh\necho mine\n"), 0o755))
	b.o.Env = []string{"PATH=" + bin}
	b.run(sh("echo other"))[0].exit(t, 0)
	if got := b.output("out_c1_1_stdout"); got != "mine\n" {
		t.Errorf("it ran another program: %q", got)
	}
}

func TestFolder(t *testing.T) {
	b := newBench(t)
	// In the order of the calls, unless they may be parallel.
	e := b.run(sh("mkdir sub; cd sub; echo x > made"), sh("cat sub/made; pwd"))
	e[1].exit(t, 0)
	if got, want := b.output("out_c1_2_stdout"), "x\n"+b.dir+"\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	b.dir = filepath.Join(b.dir, "gone")
	if e := b.run(sh("echo x"))[0]; e.Outcome != string(psych.Failed) || !strings.Contains(e.Text, "the working folder can't be opened: no such file") || strings.Contains(e.Text, b.dir) {
		t.Errorf("%s, %s", e.Outcome, e.Text)
	}
}

func TestStdin(t *testing.T) {
	b := newBench(t)
	big := strings.Repeat("0123456789abcde\n", 20_000)
	e := b.run(
		arguments{Command: []string{"sh", "-c", "cat"}, Stdin: big},
		arguments{Command: []string{"sh", "-c", "head -c 5"}, Stdin: big}, // reads a part alone
		arguments{Command: []string{"sh", "-c", "exit 4"}, Stdin: big},
		sh("cat"), // there is none: it ends at once
	)
	for i, want := range []int{0, 0, 4, 0} {
		e[i].exit(t, want)
	}
	if b.output("out_c1_1_stdout") != big || b.output("out_c1_2_stdout") != "01234" || e[3].Stdout != 0 {
		t.Errorf("%+v", e)
	}
}

func TestOutputLimits(t *testing.T) {
	b := newBench(t)
	b.o.MaxOutputBytes = 1 << 20
	const flood = 300_000_000
	var e []end
	heap := allocated(func() {
		e = b.run(sh(fmt.Sprintf("yes 'all work and no play' | head -c %d; yes err | head -c 2000000 >&2; echo end >&2", flood)))
	})
	e[0].exit(t, 0)
	out, errs := e[0].attachment(t, "stdout"), e[0].attachment(t, "stderr")
	if e[0].Stdout != flood || out.ObservedBytes != flood || out.SizeBytes != 1<<20 || !out.Truncated || !out.Readable {
		t.Errorf("stdout %d, %+v", e[0].Stdout, out)
	}
	if e[0].Stderr != 2_000_004 || errs.ObservedBytes != 2_000_004 || errs.SizeBytes != 1<<20 || !errs.Truncated {
		t.Errorf("stderr %d, %+v", e[0].Stderr, errs)
	}
	if heap > 64<<20 {
		t.Errorf("%d bytes of heap for %d bytes of output", heap, flood)
	}
}

func TestBinaryOutput(t *testing.T) {
	b := newBench(t)
	raw := bytes.Repeat([]byte{0xff, 0xfe, 0, 0x80, 0xc3, '\n'}, 1000)
	must(t, os.WriteFile(filepath.Join(b.dir, "raw"), raw, 0o600))
	e := b.run(sh("cat raw", "raw"))[0]
	e.exit(t, 0)
	for _, name := range []string{"stdout", "file:raw"} {
		if a := e.attachment(t, name); a.Readable || a.SizeBytes != int64(len(raw)) || a.ObservedBytes != int64(len(raw)) {
			t.Errorf("%+v", a)
		}
	}
	if e.attachment(t, "stdout").SHA256 != e.attachment(t, "file:raw").SHA256 {
		t.Error("what passed through stdout was changed")
	}
}

func TestFiles(t *testing.T) {
	b := newBench(t)
	b.o.MaxFileBytes = 100_000
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.WriteFile(outside, []byte("secret"), 0o600))
	must(t, os.Symlink(outside, filepath.Join(b.dir, "leak")))
	must(t, os.Symlink("report.csv", filepath.Join(b.dir, "link")))
	must(t, syscall.Mkfifo(filepath.Join(b.dir, "fifo"), 0o600))
	e := b.run(sh("echo a,b > report.csv; mkdir -p dir/sub; echo deep > dir/sub/x.log; yes | head -c 150000 > big.txt; : > empty; exit 1",
		"report.csv", "./report.csv", "dir/sub/x.log", "big.txt", "empty", "link", "missing", "dir", "", "leak", "../outside", outside, "fifo"))[0]
	e.exit(t, 1)
	var got []string
	for _, f := range e.Files {
		size := int64(-1)
		if f.Size != nil {
			size = *f.Size
		}
		got = append(got, fmt.Sprintf("%s %d %s", strings.Replace(f.Path, filepath.Dir(outside), "/far", 1), size, f.Error))
	}
	want := []string{
		"report.csv 4 ", "dir/sub/x.log 5 ", "big.txt 150000 ", "empty 0 ", "link 4 ",
		"missing -1 no such file or directory", "dir -1 it is a directory: name the files", ". -1 it is a directory: name the files",
		"leak -1 path escapes from parent", "../outside -1 path escapes from parent", "/far/outside -1 path escapes from parent",
		"fifo -1 it is not a regular file",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("files\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
	got = nil
	for _, a := range e.Attachments {
		got = append(got, fmt.Sprintf("%s %s %d %v %s", a.Name, a.ContentType, a.SizeBytes, a.Truncated, strings.TrimPrefix(a.Handle, "out_c1_1_")))
	}
	want = []string{
		"stdout text/plain 0 false stdout", "stderr text/plain 0 false stderr", "file:report.csv text/csv 4 false file-report-csv",
		"file:dir/sub/x.log text/plain 5 false file-dir-sub-x-log", "file:big.txt text/plain 100000 true file-big-txt",
		"file:empty application/octet-stream 0 false file-empty", "file:link application/octet-stream 4 false file-link",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("attachments\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
	if got := b.output("out_c1_1_file-report-csv"); got != "a,b\n" {
		t.Errorf("report.csv is %q", got)
	}
	// Too many are arguments that don't match.
	if e := b.run(sh("exit 0", make([]string, exec.DefaultMaxFiles+1)...))[0]; e.Code != psych.CodeArguments {
		t.Errorf("%s, %s", e.Outcome, e.Text)
	}
}

// A fifo is held open by what runs, so that its end is seen for certain.
type fifo struct {
	t *testing.T
	f *os.File
}

func newFifo(t *testing.T, dir string) *fifo {
	t.Helper()
	path := filepath.Join(dir, "alive")
	must(t, syscall.Mkfifo(path, 0o600))
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return &fifo{t, f}
}

// up waits until something that holds the fifo has said so.
func (f *fifo) up() {
	f.t.Helper()
	b := make([]byte, 3)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		n, err := f.f.Read(b)
		if n > 0 {
			return
		}
		if err != io.EOF && err != nil || time.Now().After(deadline) {
			f.t.Fatalf("nothing came up: %v", err)
		}
	}
}

// gone reports whether nothing holds the fifo. A process that was killed may
// take a moment to end.
func (f *fifo) gone() bool {
	f.t.Helper()
	must(f.t, f.f.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err := io.Copy(io.Discard, f.f)
	return err == nil
}

// However a command forks, ignores signals and holds on, its group ends with
// the call.
func TestGroupEnds(t *testing.T) {
	const (
		child = `(trap "" TERM HUP INT; exec 9>alive; echo up >&9; while :; do sleep 0.05; done) `
		until = ` while ! [ -e seen ]; do sleep 0.01; done; echo parent; exit 5`
		loop  = ` while :; do sleep 0.05; done`
	)
	type started struct {
		b    *bench
		f    *fifo
		done <-chan error
	}
	cases := map[string]struct {
		line     string
		timedOut bool
	}{
		"a child outlives its parent":                     {child + "&" + until, false},
		"a child without outputs outlives its parent":     {child + ">/dev/null 2>&1 &" + until, false},
		"a grandchild outlives both":                      {"(" + child + "& exit 0) &" + until, false},
		"a command ignores SIGTERM":                       {child + `& echo parent; trap "" TERM;` + loop, true},
		"a command ends at SIGTERM, its child ignores it": {child + "& echo parent;" + loop, true},
		"a command handles SIGTERM, and says so":          {child + `& trap "echo parent; exit 7" TERM;` + loop, true},
		"a command floods stderr and ignores SIGTERM":     {child + `& echo parent; trap "" TERM; yes >&2`, true},
		"a command stops itself":                          {child + "& echo parent; kill -STOP $$", true},
	}
	runs := map[string]started{} // all at once: they mostly wait
	for name, c := range cases {
		b := newBench(t)
		b.o.Timeout = time.Minute
		if c.timedOut {
			b.o.Timeout = 3 * time.Second
		}
		b.o.MaxOutputBytes = 100_000
		f := newFifo(t, b.dir)
		b.start(sh(c.line))
		runs[name] = started{b, f, b.drive(context.Background())}
	}
	for _, r := range runs {
		r.f.up()
		must(t, os.WriteFile(filepath.Join(r.b.dir, "seen"), nil, 0o600))
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b, f := runs[name].b, runs[name].f
			must(t, <-runs[name].done)
			if !f.gone() {
				t.Error("something of the group is still there")
			}
			e := b.ends()[0]
			if e.Outcome != string(psych.Succeeded) || e.TimedOut != c.timedOut || e.Stopped == c.timedOut {
				t.Errorf("%s, %s", e.Outcome, e.Text)
			}
			if got := b.output("out_c1_1_stdout"); got != "parent\n" {
				t.Errorf("stdout %q", got)
			}
		})
	}
}

// The last of a pipeline, which outlives the command, may end by itself.
func TestPipelineEnds(t *testing.T) {
	b := newBench(t)
	e := b.run(sh("(echo late) & exit 0"))[0]
	e.exit(t, 0)
	if got := b.output("out_c1_1_stdout"); got != "late\n" || e.Stopped {
		t.Errorf("%q, %s", got, e.Text)
	}
}

// A call that is cancelled ends its group, and what was written is kept.
func TestCancel(t *testing.T) {
	b := newBench(t)
	f := newFifo(t, b.dir)
	b.start(sh(`exec 9>alive; echo begun; echo up >&9; trap "" TERM; while :; do sleep 0.05; done`))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	driven := b.drive(ctx)
	f.up()
	cancel()
	err := <-driven
	if !f.gone() {
		t.Error("the command is still there")
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}

	// Alone, the tool says so.
	b = newBench(t)
	f = newFifo(t, b.dir)
	tool, err := exec.New(b.dir, &b.o)
	must(t, err)
	ctx, cancel = context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error)
	args, _ := json.Marshal(sh(`exec 9>alive; echo up >&9; while :; do sleep 0.05; done`))
	go func() {
		_, err := tool.Call(ctx, &psych.Call{ToolCall: psych.ToolCall{Arguments: args}})
		done <- err
	}()
	f.up()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want it cancelled", err)
	}
	if !f.gone() {
		t.Error("the command is still there")
	}
	if _, err := tool.Call(ctx, &psych.Call{ToolCall: psych.ToolCall{Arguments: args}}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want it cancelled before it begins", err)
	}
}

// An abort of the exchange ends the command.
func TestAbort(t *testing.T) {
	b := newBench(t)
	f := newFifo(t, b.dir)
	b.start(sh(`exec 9>alive; echo begun; echo up >&9; while :; do sleep 0.05; done`))
	done := b.drive(context.Background())
	f.up()
	must(t, b.rt.Abort(context.Background(), b.key, psych.AbortRequest{ID: "a"}))
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !f.gone() {
		t.Error("the command is still there")
	}
}

func TestNew(t *testing.T) {
	for name, o := range map[string]*exec.Options{
		"nothing allowed": nil, "an empty name": {Allow: []string{""}}, "a relative path": {Allow: []string{"bin/go"}}, "dots": {Allow: []string{".."}}, "a NUL": {Allow: []string{"a\x00"}},
		"no name of a variable": {Allow: []string{"go"}, Env: []string{"=x"}}, "a NUL in a variable": {Allow: []string{"go"}, Env: []string{"A=\x00"}},
		"a negative time": {Allow: []string{"go"}, Timeout: -1}, "a negative limit": {Allow: []string{"go"}, MaxOutputBytes: -1}, "a negative limit of files": {Allow: []string{"go"}, MaxFileBytes: -1},
		"too many files": {Allow: []string{"go"}, MaxFiles: psych.MaxAttachments}, "a negative number of files": {Allow: []string{"go"}, MaxFiles: -1},
		"a name that is no text": {Allow: []string{"\xff"}},
	} {
		if tool, err := exec.New("dir", o); !errors.Is(err, psych.ErrInvalid) || tool != nil {
			t.Errorf("%s: %v, %v", name, tool, err)
		}
	}
	if _, err := exec.New("", &exec.Options{Allow: []string{"go"}}); !errors.Is(err, psych.ErrInvalid) {
		t.Errorf("no folder: %v", err)
	}
	o := &exec.Options{Allow: []string{"go", "/usr/bin/make", "git", "go"}}
	tool, err := exec.New("there/is/none", o)
	must(t, err)
	def := tool.Def()
	if def.Name != exec.ToolName || !strings.Contains(string(def.Schema), "/usr/bin/make, git, go") || o.Timeout != 0 || len(o.Allow) != 4 {
		t.Errorf("%+v, options %+v", def, o)
	}
	// The definition is part of every prefix: it must not depend on the order.
	again, err := exec.New("there/is/none", &exec.Options{Allow: []string{"git", "go", "/usr/bin/make"}})
	must(t, err)
	if d := again.Def(); d.Description != def.Description || !bytes.Equal(d.Schema, def.Schema) {
		t.Errorf("%+v, want %+v", d, def)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// allocated are the bytes that f allocates in all.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
