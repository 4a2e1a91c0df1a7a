package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/psych"
)

type runFlags struct {
	storeFlags
	workerFlags
	model string
	json  bool
}

func (p *program) runCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run [flags] SPEC MESSAGE",
		Short: "Runs a Spec with a message, and reports what happened",
		Long: `Publishes the Spec in the file SPEC (YAML or JSON), starts a Run with MESSAGE
(-: standard input), drives it to its end, and prints what happens and a report.
A Run that is interrupted or killed goes on with psych resume.

Exit codes: 0 completed, 1 failed, aborted, exhausted or interrupted, 2 wrong use.`,
		Args: arguments(2, "SPEC and MESSAGE, the message in quotes"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.runSpec(c.Context(), &f, args[0], args[1])
		},
	}
	flags := c.Flags()
	f.storeFlags.add(c)
	f.workerFlags.add(c)
	flags.StringVar(&f.model, "model", "", "`URL` of the model, in place of the Spec's (without either: $PSYCH_MODEL)")
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
	text, err := p.message(message)
	if err != nil {
		return err
	}
	defer p.close()
	s, err := p.open(ctx, &f.storeFlags, &f.workerFlags, nil)
	if err != nil {
		return err
	}
	if _, err := p.model(ctx, spec.Model); err != nil {
		return err
	}
	v, err := s.rt.Publish(ctx, f.tenant, spec)
	if err != nil {
		return refused(err)
	}
	key, err := s.rt.Start(ctx, psych.Scope{Tenant: f.tenant}, v.Hash, psych.ClientMessage{Text: text})
	if err != nil {
		return refused(err)
	}
	return p.finish(ctx, s, key, f.json)
}

// message is the text of an argument, of which - is standard input.
func (p *program) message(arg string) (string, error) {
	if arg != "-" {
		return arg, nil
	}
	b, err := io.ReadAll(io.LimitReader(p.stdin, psych.MaxMessageBytes+1))
	if err != nil {
		return "", use("read the message from standard input: %w", err)
	}
	return string(b), nil
}
