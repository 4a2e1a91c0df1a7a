package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sync"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/adapters/filetools"
	"github.com/psych-go/psych-go/psych"
)

type runFlags struct {
	model, files, store, blob, tenant string
	json                              bool
}

func (p *program) runCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run [flags] SPEC MESSAGE",
		Short: "Runs a Spec with a message, and reports what happened",
		Long: `Publishes the Spec in the file SPEC (YAML or JSON), starts a Run with MESSAGE
(-: standard input), drives it to its end, and prints what happens and a report.

Exit codes: 0 completed, 1 failed, aborted, exhausted or interrupted, 2 wrong use.`,
		Args: arguments(2, "SPEC and MESSAGE, the message in quotes"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.runSpec(c.Context(), &f, args[0], args[1])
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.model, "model", "", "`URL` of the model, in place of the Spec's (without either: $PSYCH_MODEL)")
	flags.StringVar(&f.files, "files", "", "`directory` whose files the tools list_files, read_file and search_files may read")
	flags.StringVar(&f.store, "store", "", "`URL` of the store (default $PSYCH_STORE_URL, else mem://)")
	flags.StringVar(&f.blob, "blob", "", "`URL` of the blob store (default $PSYCH_BLOB_URL, else mem://)")
	flags.StringVar(&f.tenant, "tenant", "local", "the tenant that the Run belongs to")
	flags.BoolVar(&f.json, "json", false, "print the report as JSON to stdout, and what happens to stderr")
	return c
}

func (p *program) runSpec(ctx context.Context, f *runFlags, path, message string) error {
	spec, err := readSpec(path)
	if err != nil {
		return err
	}
	if f.model != "" {
		spec.Model = f.model
	}
	if message == "-" {
		b, err := io.ReadAll(io.LimitReader(p.stdin, psych.MaxMessageBytes+1))
		if err != nil {
			return use("read the message from standard input: %w", err)
		}
		message = string(b)
	}
	defer p.close()
	rt, err := p.open(ctx, f)
	if err != nil {
		return err
	}
	if _, err := p.model(ctx, spec.Model); err != nil {
		return err
	}
	v, err := rt.Publish(ctx, f.tenant, spec)
	if err != nil {
		return refused(err)
	}
	key, err := rt.Start(ctx, psych.Scope{Tenant: f.tenant}, v.Hash, psych.ClientMessage{Text: message})
	if err != nil {
		return refused(err)
	}

	events := p.stdout
	if f.json {
		events = p.stderr
	}
	driveErr := p.drive(ctx, rt, key, events)
	rep, err := rt.Report(context.WithoutCancel(ctx), key)
	if err != nil {
		return errors.Join(driveErr, err)
	}
	if err := p.print(rep, f.json); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	return ended(rep, driveErr)
}

// refused makes an error wrong use if it says that what was given is refused.
func refused(err error) error {
	var spec *psych.SpecError
	if errors.As(err, &spec) || errors.Is(err, psych.ErrInvalid) || errors.Is(err, psych.ErrTooLarge) || errors.Is(err, psych.ErrNoBlobStore) {
		return &useError{err}
	}
	return err
}

// drive drives the Run to the end of its exchange, or until ctx ends.
func (p *program) drive(ctx context.Context, rt *psych.Runtime, key psych.RunKey, events io.Writer) error {
	told := make(chan struct{})
	untold := context.AfterFunc(ctx, func() {
		defer close(told)
		fmt.Fprintln(p.stderr, "psych: interrupted: stopping cleanly; interrupt again to end at once")
	})
	defer func() {
		if !untold() {
			<-told
		}
	}()
	w := &watcher{w: events}
	defer w.line()
	for {
		outcome, err := rt.Drive(ctx, key, &psych.DriveOptions{Observe: w.observe})
		switch {
		case outcome == psych.Held:
			return fmt.Errorf("another worker drives run %s: wait for it: %w", key, cmp.Or(err, psych.ErrLeaseHeld))
		case err != nil || outcome != psych.Yielded:
			return err
		}
	}
}

func (p *program) print(rep *psych.Report, asJSON bool) error {
	if !asJSON {
		if _, err := fmt.Fprintln(p.stdout); err != nil {
			return err
		}
		return rep.WriteText(p.stdout)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(rep); err != nil {
		return err
	}
	_, err := p.stdout.Write(controls.ReplaceAllFunc(b.Bytes(), func(c []byte) []byte {
		r, _ := utf8.DecodeRune(c)
		return fmt.Appendf(nil, `\u%04x`, r)
	}))
	return err
}

// controls are what drives a terminal and encoding/json does not escape.
var controls = regexp.MustCompile(`[\x{7f}-\x{9f}]`)

// ended is nil for a completed Run, and else says why it is not.
func ended(rep *psych.Report, err error) error {
	switch {
	case rep.Status == psych.StatusCompleted && err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted: run %s is %s; the report says how far it came", rep.Run.RunID, rep.Status)
	case err != nil && rep.Status != psych.StatusFailed:
		return err
	}
	reason := "the report says how far it came"
	if n := len(rep.Exchanges); n > 0 {
		reason = cmp.Or(rep.Exchanges[n-1].Reason, reason)
	}
	return fmt.Errorf("run %s is %s: %s", rep.Run.RunID, rep.Status, reason)
}

// opened is what a command opened by URL or path, each once.
type opened struct {
	mu     sync.Mutex
	models map[string]psych.Model
	files  *filetools.Tools
}

// open makes a Runtime as the flags and the environment have it.
func (p *program) open(ctx context.Context, f *runFlags) (*psych.Runtime, error) {
	store, err := p.backends.Stores.Open(ctx, cmp.Or(f.store, p.getenv("PSYCH_STORE_URL"), "mem://"))
	if err != nil {
		return nil, use("open the store: %w", err)
	}
	blobs, err := p.backends.Blobs.Open(ctx, cmp.Or(f.blob, p.getenv("PSYCH_BLOB_URL"), "mem://"))
	if err != nil {
		return nil, use("open the blob store: %w", err)
	}
	tools, err := p.tools(f.files)
	if err != nil {
		return nil, err
	}
	return psych.New(store, &psych.Options{Blobs: blobs, Models: p.model, Tools: tools})
}

func (p *program) tools(dir string) ([]*psych.Tool, error) {
	if dir == "" {
		return nil, nil
	}
	files, err := filetools.Open(dir, nil)
	if err != nil {
		return nil, use("--files %s: %w", dir, err)
	}
	p.files = files
	return files.List(), nil
}

// model opens a model by URL. An empty one is that of the environment.
func (p *program) model(ctx context.Context, url string) (psych.Model, error) {
	if url = cmp.Or(url, p.getenv("PSYCH_MODEL")); url == "" {
		return nil, use("the spec names no model: give --model URL, set PSYCH_MODEL, or name one in the spec")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.models[url]; m != nil {
		return m, nil
	}
	m, err := p.backends.Models.Open(ctx, url)
	if err != nil {
		return nil, use("open the model: %w", err)
	}
	if p.models == nil {
		p.models = map[string]psych.Model{}
	}
	p.models[url] = m
	return m, nil
}

func (o *opened) close() {
	if o.files != nil {
		o.files.Close()
	}
}
