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
		Use:   "run [flags] [SPEC] MESSAGE",
		Short: "Runs a Spec with a message, and reports what happened",
		Long: `Publishes the Spec in the file SPEC (YAML or JSON), starts a Run with MESSAGE
(-: standard input), drives it to its end, and prints what happens and a report.
A Run that is interrupted or killed goes on with psych resume.

With --mcp FILE the Run has the servers of that file, beside those of the Spec;
then SPEC may be left out, and the tools of --files and --allow-exec are granted
too.

Exit codes: 0 completed, 1 failed, aborted, exhausted or interrupted, 2 wrong use.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 1 && f.mcp != "" {
				return nil
			}
			return arguments(2, "SPEC and MESSAGE, the message in quotes")(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				args = append([]string{""}, args...)
			}
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
	spec := &psych.Spec{Name: "mcp", Instructions: "Do what you are asked with the tools that you have."}
	if path != "" {
		var err error
		if spec, err = readSpec(path); err != nil {
			return err
		}
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
	if path == "" {
		spec.Tools = s.tools
	}
	if err := s.servers.join(spec); err != nil {
		return err
	}
	if lacks := s.servers.lacks(ctx, f.tenant, spec); lacks != "" {
		return use("%s", lacks)
	}
	if _, err := p.model(ctx, spec.Model); err != nil {
		return err
	}
	v, err := s.publish(ctx, spec)
	if err != nil {
		return err
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
