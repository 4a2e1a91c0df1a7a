// Package exec gives a model the code tool run_command: programs of an
// allowlist, run in one working folder, with a time limit and with output
// limits.
//
// It is no sandbox. A program that runs has all that the process has: its
// user, its files, its network. The allowlist keeps a model from starting other
// programs by itself; it keeps no program from starting them, and interpreters,
// build tools and version control all do. Where that matters, run the worker in
// a container or a virtual machine. Nothing registers the tool but a program
// that asks for it:
//
//	run, err := exec.New("checkout", &exec.Options{Allow: []string{"go", "git"}})
//	if err != nil {
//		return err
//	}
//	tools = append(tools, run)
//
// There is no shell: a command is a program and its arguments. What it writes
// to stdout and stderr, and the files that the call names, are attachments of
// the call, which stream to the BlobStore and never gather in memory. The
// result itself is JSON:
//
//	{"exit_code":1,"stdout_bytes":5730112,"stderr_bytes":0,"files":[{"path":"report.csv","size_bytes":812}]}
//
// An exit code other than 0 is a result like any other. A command that a signal
// ended has signal in place of exit_code; one that took too long has timed_out
// too, with all that it wrote until then; stopped_background says that something
// which the command had started still ran when it had ended. The call fails where nothing ran: a
// program that is not allowed or not there, arguments that the system refuses.
//
// A command runs in a session of its own, without a terminal, and its process
// group ends with the call, whatever in it still runs: SIGTERM, and SIGKILL two
// seconds later. A process that leaves the group, as daemons do, is not
// followed, and when the worker itself is killed nobody ends the group.
package exec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

// ToolName is the name by which a Spec grants the tool.
const ToolName = "run_command"

// Defaults of [Options].
const (
	DefaultTimeout        = 5 * time.Minute
	DefaultMaxOutputBytes = 64 << 20
	DefaultMaxFileBytes   = 64 << 20
	DefaultMaxFiles       = 16
)

// DefaultEnv are the variables that a command sees unless Options.Env says
// otherwise.
var DefaultEnv = []string{"PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "TZ"}

// Options say what may run, and how. At least Allow must be set.
type Options struct {
	// Allow are the programs that may be run: names, which are looked up in
	// PATH ("go"), or absolute paths ("/usr/bin/make"). A call must name one
	// exactly so.
	Allow []string

	// Env are the variables that a command sees: names, whose values are those
	// of this process at the time of the call, or NAME=VALUE. Nil is
	// DefaultEnv; empty is none. PWD is always set.
	Env []string

	// Timeout bounds a command; 0 is DefaultTimeout.
	Timeout time.Duration

	// MaxOutputBytes is what is kept of stdout, and of stderr; more is counted
	// and let go. 0 is DefaultMaxOutputBytes.
	MaxOutputBytes int64

	// MaxFileBytes is what is kept of a file that a call names, and MaxFiles
	// how many it may name, at most 98; 0 is DefaultMaxFileBytes, and
	// DefaultMaxFiles.
	MaxFileBytes int64
	MaxFiles     int

	// Parallel lets commands run beside one another and beside the other tools
	// of a batch. Otherwise they run one after the other, in the order of the
	// calls.
	Parallel bool
}

// A tool is one working folder and what may run there.
type tool struct {
	dir string
	o   Options
}

// New makes the tool for the working folder dir, which need not be there yet.
// It does no IO. An error matches psych.ErrInvalid, or errors.ErrUnsupported on
// systems other than Linux and macOS.
func New(dir string, o *Options) (*psych.Tool, error) {
	if !supported {
		return nil, fmt.Errorf("exec: commands can't be run on %s: want Linux or macOS: %w", runtime.GOOS, errors.ErrUnsupported)
	}
	t := &tool{}
	if o != nil {
		t.o = *o
	}
	if err := t.o.check(); err != nil {
		return nil, fmt.Errorf("exec: %w: %w", err, psych.ErrInvalid)
	}
	var err error
	if t.dir, err = filepath.Abs(dir); err != nil || dir == "" {
		return nil, fmt.Errorf("exec: working folder %q: want a path: %w", dir, errors.Join(psych.ErrInvalid, err))
	}
	schema, err := t.schema()
	if err != nil {
		return nil, fmt.Errorf("exec: %w: %w", err, psych.ErrInvalid)
	}
	def := psych.ToolDef{
		Name: ToolName,
		Description: `Runs a program in the working folder and waits for its end. There is no shell: no pipes, wildcards, variables or redirection. ` +
			`Answers with exit_code (or signal, and timed_out after ` + t.o.Timeout.String() + `); stdout, stderr and the files you ask for follow, each with a handle. ` +
			`What still runs when the program has ended is stopped.`,
		Schema: schema,
	}
	run := psych.NewRawTool(def, t.call, &psych.ToolOptions{
		Sequential: !t.o.Parallel,
		// Behind the command's own time it is stopped and files are taken in.
		Timeout: t.o.Timeout + time.Minute,
	})
	return run, run.Err()
}

// check fills in defaults, and says what is wrong.
func (o *Options) check() error {
	if len(o.Allow) == 0 {
		return errors.New("Options.Allow is empty: name the programs that may be run")
	}
	for _, p := range o.Allow {
		if !filepath.IsAbs(p) && (p == "" || p == "." || p == ".." || strings.ContainsAny(p, `/\`)) || strings.ContainsRune(p, 0) || !utf8.ValidString(p) {
			return fmt.Errorf("Options.Allow holds %q: want the name of a program, or an absolute path", p)
		}
	}
	o.Allow = slices.Compact(slices.Sorted(slices.Values(o.Allow)))
	if o.Env == nil {
		o.Env = DefaultEnv
	}
	for _, v := range o.Env {
		if name, _, _ := strings.Cut(v, "="); name == "" || strings.ContainsRune(v, 0) {
			return fmt.Errorf("Options.Env holds %q: want NAME or NAME=VALUE", v)
		}
	}
	o.Env = slices.Clone(o.Env)
	if o.Timeout < 0 || o.MaxOutputBytes < 0 || o.MaxFileBytes < 0 {
		return fmt.Errorf("Options has a timeout of %v and limits of %d and %d bytes: want none below 0", o.Timeout, o.MaxOutputBytes, o.MaxFileBytes)
	}
	if most := psych.MaxAttachments - 2; o.MaxFiles < 0 || o.MaxFiles > most {
		return fmt.Errorf("Options.MaxFiles is %d: want 0 to %d", o.MaxFiles, most)
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.MaxOutputBytes == 0 {
		o.MaxOutputBytes = DefaultMaxOutputBytes
	}
	if o.MaxFileBytes == 0 {
		o.MaxFileBytes = DefaultMaxFileBytes
	}
	if o.MaxFiles == 0 {
		o.MaxFiles = DefaultMaxFiles
	}
	return nil
}

type input struct {
	Command []string `json:"command"`
	Stdin   string   `json:"stdin"`
	Files   []string `json:"files"`
}

func (t *tool) schema() (json.RawMessage, error) {
	type property map[string]any
	text := property{"type": "string"}
	return encode(property{
		"type": "object",
		"properties": property{
			"command": property{"type": "array", "items": text, "minItems": 1, "description": "The program and its arguments, each an item of its own. The program is one of: " + strings.Join(t.o.Allow, ", ")},
			"stdin":   property{"type": "string", "description": "What the program reads from its standard input. Default: nothing."},
			"files":   property{"type": "array", "items": text, "maxItems": t.o.MaxFiles, "description": "Files to attach to the answer when the program has ended: paths relative to the working folder."},
		},
		"required":             []string{"command"},
		"additionalProperties": false,
	})
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}

// An answer is the result of a call.
type answer struct {
	ExitCode    *int         `json:"exit_code,omitempty"`
	Signal      string       `json:"signal,omitempty"`
	TimedOut    bool         `json:"timed_out,omitempty"`
	Stopped     bool         `json:"stopped_background,omitempty"` // something of the group still ran
	StdoutBytes int64        `json:"stdout_bytes"`
	StderrBytes int64        `json:"stderr_bytes"`
	Files       []fileAnswer `json:"files,omitempty"`
}

func (t *tool) call(ctx context.Context, c *psych.Call) (*psych.Result, error) {
	var in input
	if err := json.Unmarshal(c.Arguments, &in); err != nil {
		return nil, fmt.Errorf("exec: the arguments can't be read: %w", err)
	}
	env := t.env()
	program, err := t.program(in.Command[0], env)
	if err != nil {
		return nil, err
	}
	for _, s := range slices.Concat(in.Command, in.Files) {
		if strings.ContainsRune(s, 0) {
			return nil, fmt.Errorf("exec: %.80q holds a NUL, which no argument and no path can", s)
		}
	}
	root, err := os.OpenRoot(t.dir)
	if err != nil {
		return nil, fmt.Errorf("exec: the working folder can't be opened: %s", why(err))
	}
	defer root.Close()

	var streams [2]*stream
	for i, name := range []string{"stdout", "stderr"} {
		w, err := c.Attach(name, "text/plain", &psych.AttachOptions{MaxBytes: t.o.MaxOutputBytes})
		if err != nil {
			return nil, err
		}
		defer w.Close()
		streams[i] = &stream{w: w}
	}
	end, err := t.run(ctx, &command{path: program, args: in.Command, env: env, stdin: in.Stdin, streams: streams})
	if err != nil {
		return nil, err
	}
	for i, s := range streams {
		if err := errors.Join(s.err, s.w.Close()); err != nil {
			c.Log.WarnContext(ctx, "an output of a command is not kept whole", "output", [...]string{"stdout", "stderr"}[i], "err", err)
		}
	}
	a := answer{
		ExitCode: end.exitCode, Signal: end.signal, TimedOut: end.timedOut, Stopped: end.background,
		StdoutBytes: streams[0].n, StderrBytes: streams[1].n,
	}
	if a.Files, err = t.attachFiles(ctx, c, root, in.Files); err != nil {
		return nil, err
	}
	b, err := encode(a)
	if err != nil {
		return nil, fmt.Errorf("exec: encode the result: %w", err)
	}
	return &psych.Result{ContentType: "application/json", Body: bytes.NewReader(b)}, nil
}

// env is what a command sees, each name once.
func (t *tool) env() []string {
	values := map[string]string{}
	for _, v := range t.o.Env {
		name, value, fixed := strings.Cut(v, "=")
		if !fixed {
			var set bool
			if value, set = os.LookupEnv(name); !set {
				continue
			}
		}
		values[name] = value
	}
	values["PWD"] = t.dir
	env := make([]string, 0, len(values))
	for name, value := range values {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}

// program finds what a call names. A name is looked up in the PATH that the
// command sees, or in that of this process where it sees none, but in absolute
// folders alone: never in the working folder, which the model may write to.
func (t *tool) program(name string, env []string) (string, error) {
	if !slices.Contains(t.o.Allow, name) {
		return "", fmt.Errorf("exec: the program %.80q is not allowed: want one of %s", name, strings.Join(t.o.Allow, ", "))
	}
	if filepath.IsAbs(name) {
		return name, nil
	}
	path := os.Getenv("PATH")
	for _, v := range env {
		if p, ok := strings.CutPrefix(v, "PATH="); ok {
			path = p
		}
	}
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); filepath.IsAbs(dir) && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("exec: the program %q is allowed, but it is not installed: there is none in PATH", name)
}
