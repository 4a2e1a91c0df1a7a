// Command psych runs agents from the command line.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/adapters/anthropic"
	"github.com/psych-go/psych-go/adapters/bedrock"
	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/adapters/fsblob"
	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/openai"
	"github.com/psych-go/psych-go/adapters/s3blob"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/adapters/sqlite"
	"github.com/psych-go/psych-go/adapters/ssm"
	"github.com/psych-go/psych-go/psych"
)

// Exit codes.
const (
	exitCompleted = 0
	exitFailed    = 1 // a Run failed, was aborted, exhausted or interrupted; a Spec is invalid
	exitUse       = 2 // wrong use: nothing was begun
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv))
}

// run is the whole program, but for its process. It returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) int {
	return newProgram(stdin, stdout, stderr, getenv).run(ctx, args)
}

// A program is one invocation: its surroundings, and what a command opened.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	backends       psych.Backends

	opened
}

func newProgram(stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) *program {
	p := &program{stdin: stdin, stdout: stdout, stderr: &lockedWriter{w: stderr}, getenv: getenv}
	memory.Register(&p.backends)
	dynamo.Register(&p.backends)
	fsblob.Register(&p.backends)
	s3blob.Register(&p.backends)
	sqlite.Register(&p.backends)
	script.Register(&p.backends)
	openai.Register(&p.backends, getenv)
	anthropic.Register(&p.backends, getenv)
	bedrock.Register(&p.backends)
	ssm.Register(&p.backends)
	psych.RegisterEnv(&p.backends, getenv)
	p.models = p.backends.Resolver(getenv("PSYCH_MODEL"))
	return p
}

func (p *program) run(ctx context.Context, args []string) int {
	root := p.command()
	root.SetArgs(args)
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitCompleted
	}
	fmt.Fprintln(p.stderr, oneLine(message(err)))
	if use := (*useError)(nil); errors.As(err, &use) {
		return exitUse
	}
	return exitFailed
}

// message is what a person is told of an error. The sentinels are for programs:
// what is wrong stands beside them.
func message(err error) string {
	s := strings.ReplaceAll("psych: "+err.Error(), ": "+psych.ErrInvalid.Error(), "")
	return strings.ReplaceAll(s, ": psych: ", ": ")
}

func (p *program) command() *cobra.Command {
	root := &cobra.Command{
		Use:               "psych",
		Short:             "Runs LLM agents whose tools return more than fits into a prompt",
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return use("%w: %s --help lists the flags", err, c.CommandPath())
	})
	group(root)
	root.AddCommand(p.runCommand(), p.resumeCommand(), p.sendCommand(), p.abortCommand(), p.deleteCommand(), p.sweepCommand(), p.serveCommand(),
		p.toolsCommand(), p.runsCommand(), p.reportCommand(), p.recordsCommand(), p.outputCommand(),
		p.specCommand(), p.modelCommand(), p.storeCommand(), p.contractCommand())
	root.AddCommand(p.replayCommand(), p.diffCommand())
	root.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "Prints which version this is",
		Args:  arguments(0, "none"),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(p.stdout, "psych", version())
			return err
		},
	})
	return root
}

// group makes c a command that only holds others.
func group(c *cobra.Command) {
	c.RunE = func(c *cobra.Command, args []string) error {
		var names []string
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				names = append(names, sub.Name())
			}
		}
		what := "no command"
		if len(args) > 0 {
			what = fmt.Sprintf("unknown command %.80q", args[0])
		}
		return use("%s: want one of %s; %s --help says more", what, strings.Join(names, ", "), c.CommandPath())
	}
	c.Args = cobra.ArbitraryArgs
}

// arguments demands n positional arguments, and names them if they are not so
// many.
func arguments(n int, names string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return use("%s got %s: want %s", c.CommandPath(), count(len(args), "argument"), names)
	}
}

// A useError is wrong use: nothing was begun.
type useError struct{ err error }

func (e *useError) Error() string { return e.err.Error() }
func (e *useError) Unwrap() error { return e.err }

func use(format string, args ...any) error { return &useError{fmt.Errorf(format, args...)} }

// oneLine is s in one line that can't drive a terminal.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(psych.Printable(s), func(r rune) bool { return r == '\n' || r == '\t' }), " ")
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && !strings.Contains(v, s.Value[:min(12, len(s.Value))]) {
			v += " " + s.Value
		}
	}
	return v + " " + info.GoVersion
}

// A lockedWriter is for writers in several goroutines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
