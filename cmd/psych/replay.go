package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/psych"
)

// replayFlags say which Run is read, and whose encodings are at hand.
type replayFlags struct {
	storeFlags
	models []string
	json   bool
}

func (f *replayFlags) add(c *cobra.Command) {
	f.storeFlags.add(c)
	c.Flags().StringArrayVar(&f.models, "model", nil, "`URL` of a model that the Run had, beside that of its spec; repeatable. It is not called")
	c.Flags().BoolVar(&f.json, "json", false, "print it as JSON")
}

// options opens the models, for their encodings alone.
func (p *program) replayOptions(ctx context.Context, f *replayFlags) (*psych.ReplayOptions, error) {
	o := &psych.ReplayOptions{}
	for _, url := range f.models {
		m, err := p.backends.Models.Open(ctx, url)
		if err != nil {
			return nil, use("--model: %w", err)
		}
		o.Models = append(o.Models, m)
	}
	return o, nil
}

func (p *program) replayCommand() *cobra.Command {
	var f replayFlags
	c := &cobra.Command{
		Use:   "replay [flags] RUN",
		Short: "Makes the requests of a Run again, and compares them with its log",
		Long: `Makes each request of the Run with the id RUN, or the one whose id begins so, again
from its log, its version and stored documents alone, compares the digests of every
zone with those in the log, and prints the first difference. No model is called and
no server asked, and nothing is written.

Exit codes: 0 all are equal, 1 not all are, or can be made, 2 wrong use.`,
		Args: arguments(1, "RUN"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.replay(c.Context(), &f, args[0])
		},
	}
	f.add(c)
	return c
}

// A replayResult is how a replay went. Programs read its names.
type replayResult struct {
	Run     psych.RunKey   `json:"run"`
	Calls   []replayedCall `json:"calls"`
	Equal   int            `json:"equal"`
	Differ  int            `json:"differ"`
	Lacking int            `json:"lacking"` // that can't be made again
}

type replayedCall struct {
	*psych.ReplayedCall
	Equal bool   `json:"equal"`
	Error string `json:"error,omitempty"`
}

func (p *program) replay(ctx context.Context, f *replayFlags, id string) error {
	defer p.close()
	p.callNoModel()
	s, err := p.open(ctx, &f.storeFlags, nil, nil)
	if err != nil {
		return err
	}
	info, err := s.resolve(ctx, id)
	if err != nil {
		return err
	}
	o, err := p.replayOptions(ctx, f)
	if err != nil {
		return err
	}
	r := replayResult{Run: info.Key, Calls: []replayedCall{}}
	for c, err := range s.rt.Replay(ctx, info.Key, o) {
		if err != nil {
			return refused(err)
		}
		c.Request = nil // a Run may have thousands
		line := replayedCall{ReplayedCall: c, Equal: c.Equal()}
		switch {
		case c.Err != nil:
			r.Lacking++
			line.Error = message(c.Err)
		case c.Difference != nil:
			r.Differ++
		default:
			r.Equal++
		}
		r.Calls = append(r.Calls, line)
	}
	if f.json {
		err = p.printJSON(&r)
	} else {
		err = p.printReplay(&r)
	}
	if err != nil {
		return err
	}
	if n := r.Differ + r.Lacking; n > 0 {
		return fmt.Errorf("run %s: of %d requests %d are not what the log says, and %d can't be made again", r.Run.RunID, len(r.Calls), r.Differ, r.Lacking)
	}
	return nil
}

func (p *program) printReplay(r *replayResult) error {
	var b strings.Builder
	fmt.Fprintf(&b, "run %s of tenant %s: model calls %d, equal %d\n", r.Run.RunID, oneLine(r.Run.Tenant), len(r.Calls), r.Equal)
	told, differs := "", false
	for i := range r.Calls {
		c := &r.Calls[i]
		switch {
		case c.Err != nil && c.Error != told: // the same holds for many
			told = c.Error
			fmt.Fprintf(&b, "%s can't be made again: %s\n", callName(c.ReplayedCall), oneLine(c.Error))
		case c.Difference != nil && !differs:
			differs = true
			fmt.Fprintf(&b, "%s differs: %s\n", callName(c.ReplayedCall), oneLine(c.Difference.String()))
			if c.Difference.Sent != "" {
				fmt.Fprintf(&b, "  sent  %s\n", oneLine(c.Difference.Sent))
			}
			if c.Difference.Made != "" {
				fmt.Fprintf(&b, "  made  %s\n", oneLine(c.Difference.Made))
			}
			if c.Difference.Sent == "" {
				b.WriteString("  what was sent is known by its digest alone\n")
			}
			if r.Differ > 1 {
				fmt.Fprintf(&b, "  requests behind it that differ too: %d\n", r.Differ-1)
			}
		}
	}
	_, err := io.WriteString(p.stdout, b.String())
	return err
}

// callName is how a person finds a call in a report.
func callName(c *psych.ReplayedCall) string {
	s := fmt.Sprintf("call %d (turn %d", c.Call, c.Turn)
	if c.Try > 0 {
		s += fmt.Sprintf(" try %d", c.Try+1)
	}
	return s + ")"
}

func (p *program) diffCommand() *cobra.Command {
	var f replayFlags
	c := &cobra.Command{
		Use:   "diff [flags] RUN A B",
		Short: "Shows what changed between two requests of a Run, and why",
		Long: `Makes the requests of the model calls A and B of a Run again, as psych replay does,
and prints which parts changed, with the text around it, and the cause that the log
has for it. Calls are numbered from 1 as psych report lists them, each try counted.`,
		Args: arguments(3, "RUN, A and B"),
		RunE: func(c *cobra.Command, args []string) error {
			var calls [2]int
			for i, arg := range args[1:] {
				n, err := strconv.Atoi(arg)
				if err != nil || n < 1 {
					return use("%.80q is no model call: want its number, from 1", arg)
				}
				calls[i] = n
			}
			return p.diff(c.Context(), &f, args[0], calls[0], calls[1])
		},
	}
	f.add(c)
	return c
}

func (p *program) diff(ctx context.Context, f *replayFlags, id string, a, b int) error {
	defer p.close()
	p.callNoModel()
	s, err := p.open(ctx, &f.storeFlags, nil, nil)
	if err != nil {
		return err
	}
	info, err := s.resolve(ctx, id)
	if err != nil {
		return err
	}
	o, err := p.replayOptions(ctx, f)
	if err != nil {
		return err
	}
	d, err := s.rt.Diff(ctx, info.Key, a, b, o)
	if err != nil {
		return refused(err)
	}
	if f.json {
		return p.printJSON(d)
	}
	return p.printDiff(d)
}

func (p *program) printDiff(d *psych.RequestDiff) error {
	var b strings.Builder
	fmt.Fprintf(&b, "from %s to %s: changes %d\n", callName(d.A), callName(d.B), len(d.Changes))
	for _, c := range []*psych.ReplayedCall{d.A, d.B} {
		if c.Difference != nil {
			fmt.Fprintf(&b, "%s is not what the log says: %s\n", callName(c), oneLine(c.Difference.String()))
		}
	}
	for _, c := range d.Changes {
		fmt.Fprintf(&b, "zone %d: %s: %s", c.Zone, c.How, oneLine(c.What))
		if c.Cause != "" {
			fmt.Fprintf(&b, " (%s, call %d)", c.Cause, c.Call)
		}
		b.WriteString("\n")
		if c.A != "" {
			fmt.Fprintf(&b, "  - %s\n", oneLine(c.A))
		}
		if c.B != "" {
			fmt.Fprintf(&b, "  + %s\n", oneLine(c.B))
		}
	}
	_, err := io.WriteString(p.stdout, b.String())
	return err
}
