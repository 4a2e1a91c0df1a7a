package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/internal/yamljson"
	"github.com/psych-go/psych-go/psych"
)

func (p *program) specCommand() *cobra.Command {
	c := &cobra.Command{Use: "spec", Short: "Works on Spec files"}
	group(c)
	var w workerFlags
	check := &cobra.Command{
		Use:   "check [flags] SPEC",
		Short: "Lists every problem of a Spec, a line each, with its path",
		Long: `Lists every problem of the Spec in the file SPEC (YAML or JSON), a line each,
with its path. Whether the tools that it names exist only the program knows that
registers them: with --files or --allow-exec, that is psych itself.

Exit codes: 0 valid, 1 invalid, 2 wrong use.`,
		Args: arguments(1, "SPEC"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.checkSpec(c.Context(), &w, args[0])
		},
	}
	check.Flags().StringVar(&w.files, "files", "", "`directory` as for psych run: also check that the tools exist")
	check.Flags().StringArrayVar(&w.commands, "allow-exec", nil, "`command` as for psych run: also check that the tools exist")
	c.AddCommand(check)
	return c
}

func (p *program) checkSpec(ctx context.Context, w *workerFlags, path string) error {
	spec, err := readSpec(path)
	if err == nil && w.files == "" && w.commands == nil {
		err = spec.Check()
	} else if err == nil {
		defer p.close()
		w.allowCommands = true // whether they may run is not what is asked
		s, openErr := p.open(ctx, &storeFlags{store: "mem://", blob: "mem://", tenant: "check"}, w, nil)
		if openErr != nil {
			return openErr
		}
		_, err = s.rt.Publish(ctx, s.tenant, spec)
	}
	var invalid *psych.SpecError
	if errors.As(err, &invalid) {
		for _, x := range invalid.Problems {
			where := path
			if x.Path != "" {
				where += ": " + x.Path
			}
			fmt.Fprintln(p.stdout, oneLine(where+": "+x.Message))
		}
		return fmt.Errorf("%s is no valid spec: mend what is listed (problems: %d)", path, len(invalid.Problems))
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(p.stdout, oneLine(path+": valid"))
	return err
}

// readSpec reads a Spec from a file of YAML or JSON. What is wrong with its
// content is a *psych.SpecError.
func readSpec(path string) (*psych.Spec, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, use("read the spec: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, yamljson.MaxBytes+1))
	if err != nil {
		return nil, use("read the spec: %w", err)
	}
	var spec *psych.Spec
	if len(data) > yamljson.MaxBytes {
		err = problem("the file is over %d bytes", yamljson.MaxBytes)
	} else if data, err = yamljson.Convert(data); err != nil {
		err = problem("%s", strings.TrimPrefix(err.Error(), "yamljson: "))
	} else {
		spec, err = psych.ParseSpec(data)
	}
	if err != nil {
		return nil, refused(fmt.Errorf("spec %s: %w", path, err))
	}
	return spec, nil
}

func problem(format string, args ...any) error {
	return &psych.SpecError{Problems: []psych.Problem{{Message: fmt.Sprintf(format, args...)}}}
}
