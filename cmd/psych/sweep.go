package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/psych"
)

// A list is a Waker that notes what it is asked for.
type list []psych.RunKey

func (l *list) Wake(_ context.Context, keys ...psych.RunKey) error {
	*l = append(*l, keys...)
	return nil
}

func (p *program) sweepCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "sweep [flags]",
		Short: "Drives every Run that is due, and deletes what is past its retention",
		Long: `Goes once over what is due in the store, of every tenant: drives, one after the
other, Runs with messages that nobody took and Runs whose worker died, deletes
those whose retention has passed, purges what is left of deleted ones, and reads
catalogues of servers anew whose time is over. A Run whose model or tools this
process does not have is left alone and named.

Exit codes: 0 all of it went well, whatever its Runs ended as, 1 something did
not, 2 wrong use.`,
		Args: arguments(0, "none"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.sweep(c.Context(), &f)
		},
	}
	f.storeFlags.add(c)
	f.workerFlags.add(c)
	c.Flags().Lookup("tenant").Hidden = true // it sweeps them all
	return c
}

func (p *program) sweep(ctx context.Context, f *runFlags) error {
	defer p.close()
	var due list
	f.publishesNone = true
	s, err := p.open(ctx, &f.storeFlags, &f.workerFlags, &due)
	if err != nil {
		return err
	}
	_, _, err = s.rt.Sweep(ctx, "")
	left, err := needFlags(err)
	driven, bad := 0, 0
	for _, key := range due {
		if ctx.Err() != nil {
			break
		}
		status, err := p.sweepRun(ctx, s, key)
		if err != nil {
			bad++
			fmt.Fprintln(p.stderr, oneLine(message(fmt.Errorf("run %s of tenant %s: %w", key.RunID, key.Tenant, err))))
			continue
		}
		driven++
		fmt.Fprintln(p.stdout, oneLine(fmt.Sprintf("run %s of tenant %s: %s", key.RunID, key.Tenant, status)))
	}
	fmt.Fprintf(p.stdout, "swept: %d due, %d driven", len(due), driven)
	if left > 0 {
		fmt.Fprintf(p.stdout, "; %d catalogues of servers were left as they are: give --mcp, or --allow-commands and PSYCH_SECRETS_URL", left)
	}
	fmt.Fprintln(p.stdout)
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted: what was not driven is due again in two minutes")
	case err != nil:
		return err
	case bad > 0:
		return fmt.Errorf("%d runs could not be driven here: what is wrong stands above", bad)
	}
	return nil
}

// needFlags takes out of what a sweep returned, and counts, the errors of
// servers that are not for this process.
func needFlags(err error) (n int, rest error) {
	all, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return 0, err
	}
	var others []error
	for _, e := range all.Unwrap() {
		if flag := (*needsFlag)(nil); errors.As(e, &flag) {
			n++
		} else {
			others = append(others, e)
		}
	}
	return n, errors.Join(others...)
}

// sweepRun drives a Run and returns what it is then.
func (p *program) sweepRun(ctx context.Context, s *session, key psych.RunKey) (string, error) {
	info, err := s.store.GetRun(ctx, key)
	if err != nil {
		return "", err
	}
	if err := p.ready(ctx, s, info); err != nil {
		return "", err
	}
	for outcome := psych.Yielded; outcome == psych.Yielded; {
		if outcome, err = s.rt.Drive(ctx, key, nil); outcome == psych.Held {
			return "driven by another worker", nil
		}
		if err != nil {
			return "", err
		}
	}
	info, err = s.store.GetRun(ctx, key)
	return info.Status, err
}
