package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/psych"
)

func (p *program) resumeCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "resume [flags] RUN",
		Short: "Drives a Run on that was interrupted or killed",
		Long: `Drives the Run with the id RUN, or the one whose id begins so, to its end, and
prints what happens and a report. If a worker that died still holds the Run, it
says until when, waits, and then takes over. Give --files, --allow-exec and --mcp
as the Run was begun with; script: models and files are relative to the working
directory.

Exit codes: 0 completed, 1 failed, aborted, exhausted, interrupted or driven by
another worker that is alive, 2 wrong use.`,
		Args: arguments(1, "RUN"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.resume(c.Context(), &f, args[0])
		},
	}
	f.storeFlags.add(c)
	f.workerFlags.add(c)
	c.Flags().BoolVar(&f.json, "json", false, "print the report as JSON to stdout, and what happens to stderr")
	return c
}

func (p *program) resume(ctx context.Context, f *runFlags, id string) error {
	defer p.close()
	s, err := p.open(ctx, &f.storeFlags, &f.workerFlags, nil)
	if err != nil {
		return err
	}
	info, err := s.resolve(ctx, id)
	if err != nil {
		return err
	}
	if err := p.ready(ctx, s, info); err != nil {
		return err
	}
	return p.finish(ctx, s, info.Key, f.json)
}

func (p *program) sendCommand() *cobra.Command {
	var f runFlags
	var messageID string
	var noDrive bool
	c := &cobra.Command{
		Use:   "send [flags] RUN MESSAGE",
		Short: "Sends a message to a Run, and drives it",
		Long: `Posts MESSAGE (-: standard input) to the Run with the id RUN, or the one whose id
begins so, then drives it as psych resume does. A message to a Run that another
worker drives is taken by that worker, at its next turn. With --no-drive the
message is posted and no more: psych resume, psych sweep or a worker of yours
takes it.

Exit codes: 0 completed, or taken by another worker, or posted with --no-drive,
1 failed, aborted, exhausted or interrupted, 2 wrong use.`,
		Args: arguments(2, "RUN and MESSAGE, the message in quotes"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.send(c.Context(), &f, args[0], psych.ClientMessage{ID: messageID, Text: args[1]}, noDrive)
		},
	}
	flags := c.Flags()
	f.storeFlags.add(c)
	f.workerFlags.add(c)
	flags.StringVar(&messageID, "id", "", "`id` of the message: repeated, it is one message (default: a random one)")
	flags.BoolVar(&noDrive, "no-drive", false, "post the message, and do not drive the Run")
	flags.BoolVar(&f.json, "json", false, "print the report as JSON to stdout, and what happens to stderr")
	return c
}

func (p *program) send(ctx context.Context, f *runFlags, id string, m psych.ClientMessage, noDrive bool) (err error) {
	if m.Text, err = p.message(m.Text); err != nil {
		return err
	}
	defer p.close()
	s, err := p.open(ctx, &f.storeFlags, &f.workerFlags, nil)
	if err != nil {
		return err
	}
	info, err := s.resolve(ctx, id)
	if err != nil {
		return err
	}
	if !noDrive {
		if err := p.ready(ctx, s, info); err != nil {
			return err
		}
	}
	if err := s.rt.Send(ctx, info.Key, m); err != nil {
		return refused(err)
	}
	if noDrive {
		return nil
	}
	if err := p.finish(ctx, s, info.Key, f.json); !errors.Is(err, errAlive) {
		return err
	}
	fmt.Fprintf(p.stderr, "psych: another worker drives run %s: it takes the message at its next turn\n", info.Key.RunID)
	return nil
}

func (p *program) abortCommand() *cobra.Command {
	var f storeFlags
	var a psych.AbortRequest
	c := &cobra.Command{
		Use:   "abort [flags] RUN",
		Short: "Asks that the open exchange of a Run end",
		Long: `Asks that an exchange of the Run with the id RUN, or the one whose id begins so,
end. A worker that drives the Run takes the request within a third of its lease
(20 seconds), and cancels what runs; where none does, psych resume or psych sweep
takes it. What the exchange did stays in the log, and the next message works.`,
		Args: arguments(1, "RUN"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.abort(c.Context(), &f, args[0], a)
		},
	}
	flags := c.Flags()
	f.add(c)
	flags.StringVar(&a.Message, "message", "", "`id` of the message that opened the exchange (default: the exchange that is open when the request is taken)")
	flags.StringVar(&a.Reason, "reason", "", "`text` that the log and the report keep")
	return c
}

func (p *program) abort(ctx context.Context, f *storeFlags, id string, a psych.AbortRequest) error {
	defer p.close()
	s, err := p.open(ctx, f, nil, nil)
	if err != nil {
		return err
	}
	info, err := s.resolve(ctx, id)
	if err != nil {
		return err
	}
	if err := s.rt.Abort(ctx, info.Key, a); err != nil {
		return refused(err)
	}
	what := "no worker drives it: psych resume or psych sweep takes the request"
	if info.Owner != "" && info.Until.After(time.Now()) {
		what = "worker " + oneLine(info.Owner) + " takes the request soon"
	}
	_, err = fmt.Fprintf(p.stdout, "run %s: abort requested; %s\n", info.Key.RunID, what)
	return err
}
