// Command emulators runs a command beside emulators of AWS, since go test runs
// a process a package and each would start its own:
//
//	go run ./internal/emulators -- go test ./...
//
// It installs pinned versions of moto, ministack (both need python3) and
// dynalite (needs npm) into the folder .emulators beside go.mod, starts each
// once on free ports of 127.0.0.1, and runs the command with their endpoints in
// its environment (see [specs]) and PSYCH_TEST_EMULATORS=1. When the command
// ends they end, and it exits with the command's code. An endpoint that is set
// already is kept: an emulator none of whose endpoints is missing isn't started.
//
// Beside them it installs what tests start themselves, and gives the command
// its path: the Runtime Interface Emulator of Lambda, and the reference servers
// of MCP, server-everything and server-filesystem (need npm and node), and the
// AWS SAM CLI with cfn-lint (need python3). With -only NAME,… it installs and
// starts those alone.
//
// With -check it reads what go test -v printed, from a file or standard input,
// and fails if a test skipped that the table of exceptions does not have, or
// another number of times than it says.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/psych-go/psych-go/internal/emulators/endpoint"
)

func main() {
	dir := flag.String("dir", "", "where emulators are installed (default: .emulators beside go.mod)")
	only := flag.String("only", "", "the `names` of those to install and start, with commas between (default: all)")
	check := flag.String("check", "", "check the skips in what go test -v printed into this file (-: standard input)")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: emulators [-dir DIR] [-only NAME,…] -- COMMAND ARG…\n       emulators -check FILE")
		flag.PrintDefaults()
	}
	flag.Parse()
	code, err := 0, error(nil)
	if *only != "" {
		specs, err = choose(specs, *only)
	}
	switch {
	case err != nil:
	case *check != "" && flag.NArg() == 0:
		err = checkSkips(*check)
	case *check == "" && flag.NArg() > 0:
		code, err = run(*dir, flag.Args())
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "emulators: %v\n", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// choose returns those of all whose names stand in a list.
func choose(all []spec, names string) (some []spec, err error) {
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(s spec) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-only %q: there is no %q", names, name)
		}
		some = append(some, all[i])
	}
	return some, nil
}

func checkSkips(file string) error {
	var in io.Reader = os.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	return endpoint.CheckSkips(in)
}

// run runs command beside the emulators and returns its exit code.
func run(dir string, command []string) (_ int, err error) {
	if dir == "" {
		root, err := moduleRoot()
		if err != nil {
			return 0, err
		}
		dir = filepath.Join(root, ".emulators")
	}
	// The command's tests run in folders of their own.
	dir, err = filepath.Abs(dir)
	if err != nil {
		return 0, err
	}
	// Signals end the start of the emulators, and later go to the command.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	type started struct {
		set *set
		err error
	}
	ready := make(chan started, 1)
	go func() {
		s, err := start(ctx, dir, os.LookupEnv)
		ready <- started{s, err}
	}()
	var emulators *set
	select {
	case s := <-ready:
		if s.err != nil {
			return 0, s.err
		}
		emulators = s.set
	case sig := <-signals:
		cancel()
		if s := <-ready; s.set != nil {
			s.set.stop()
		}
		return 0, fmt.Errorf("ended by %v before the emulators ran", sig)
	}
	defer emulators.stop()

	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), emulators.env...)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case sig := <-signals:
			// The command may have ended meanwhile, which is what was asked for.
			_ = cmd.Process.Signal(sig)
		case err := <-done:
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				if code := exit.ExitCode(); code >= 0 {
					return code, emulators.died()
				}
				return 1, fmt.Errorf("%s: %w", command[0], err)
			}
			return 0, errors.Join(err, emulators.died())
		}
	}
}

// moduleRoot is the folder of the go.mod above the working directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("no go.mod in %s nor above it: run it inside the checkout, or give -dir", dir)
		}
	}
}
