package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/adapters/openai"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
)

func (p *program) modelCommand() *cobra.Command {
	c := &cobra.Command{Use: "model", Short: "Works on models"}
	group(c)
	var timeout time.Duration
	check := &cobra.Command{
		Use:   "check URL",
		Short: "Makes one small request to a model, and says what came of it",
		Long: `Makes one small request with a tool to the model at URL (openai:NAME,
anthropic:NAME, bedrock:ID), and says whether the server answers, streams, calls
the tool and reports what it used. The key comes from the environment, as for
psych run.

Exit codes: 0 a Run will work, 1 it will not, 2 wrong use.`,
		Args: arguments(1, "URL of a model"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.checkModel(c.Context(), args[0], timeout)
		},
	}
	check.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait for the answer")
	c.AddCommand(check)
	return c
}

func (p *program) checkModel(ctx context.Context, url string, timeout time.Duration) error {
	if timeout <= 0 {
		return use("--timeout is %v: want a time over 0, such as 30s", timeout)
	}
	model, err := p.backends.Models.Open(ctx, url)
	if err != nil {
		return use("open the model: %w", err)
	}
	if _, ok := psych.As[*script.Model](model); ok {
		return use("%s: models of this kind can't be checked; it opens", url)
	}
	timed, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var findings []openai.Finding
	if own, ok := psych.As[interface {
		Check(context.Context) ([]openai.Finding, error)
	}](model); ok {
		findings, err = own.Check(timed)
	} else {
		findings, err = askModel(timed, model)
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fmt.Errorf("%s does not answer within %v", url, timeout)
	}
	if err != nil {
		return err
	}
	problems := 0
	for _, f := range findings {
		fmt.Fprintln(p.stdout, oneLine(f.String()))
		if f.Level == openai.Problem {
			problems++
		}
	}
	if problems > 0 {
		return fmt.Errorf("%s: problems: %d", url, problems)
	}
	return nil
}
