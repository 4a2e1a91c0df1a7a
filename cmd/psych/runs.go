package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/psych"
)

// A runLine is a Run in a list. Programs read its names.
type runLine struct {
	RunID     string       `json:"run_id"`
	Tenant    string       `json:"tenant"`
	Principal string       `json:"principal,omitempty"`
	Spec      string       `json:"spec"` // its name
	Version   psych.Digest `json:"version"`
	Status    string       `json:"status"`
	CreatedAt time.Time    `json:"created_at"`
	ExpiresAt *time.Time   `json:"expires_at"`
	DueAt     *time.Time   `json:"due_at"`
	Worker    string       `json:"worker,omitempty"` // that holds it, or died holding it
	Until     *time.Time   `json:"until"`
}

func (p *program) runsCommand() *cobra.Command {
	var f storeFlags
	var asJSON bool
	var limit int
	c := &cobra.Command{
		Use:   "runs [flags]",
		Short: "Lists Runs, the newest first",
		Args:  arguments(0, "none"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.listRuns(c.Context(), &f, limit, asJSON)
		},
	}
	f.add(c)
	c.Flags().IntVar(&limit, "limit", 50, "`number` of Runs to list at the most (0: all)")
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return c
}

func (p *program) listRuns(ctx context.Context, f *storeFlags, limit int, asJSON bool) error {
	defer p.close()
	s, err := p.open(ctx, f, nil, nil)
	if err != nil {
		return err
	}
	if limit < 0 {
		return use("--limit is %d: want a number from 0", limit)
	}
	lines, more := []runLine{}, false
	names := map[psych.Digest]string{}
	for info, err := range s.runs(ctx) {
		if err != nil {
			return err
		}
		if more = limit > 0 && len(lines) == limit; more {
			break
		}
		if _, ok := names[info.Version]; !ok {
			names[info.Version] = "?"
			if v, err := s.rt.Version(ctx, info.Key.Tenant, info.Version); err == nil {
				names[info.Version] = v.Spec.Name
			}
		}
		lines = append(lines, newRunLine(info, names[info.Version]))
	}
	if asJSON {
		err = p.printJSON(lines)
	} else {
		err = p.printRuns(lines)
	}
	if more {
		fmt.Fprintf(p.stderr, "psych: there are more than %d: --limit 0 lists all\n", limit)
	}
	return err
}

func newRunLine(info psych.RunInfo, name string) runLine {
	at := func(t time.Time) *time.Time {
		if t.IsZero() {
			return nil
		}
		t = t.UTC()
		return &t
	}
	return runLine{
		RunID: info.Key.RunID, Tenant: info.Key.Tenant, Principal: info.Scope.Principal, Spec: name, Version: info.Version, Status: info.Status,
		CreatedAt: info.CreatedAt.UTC(), ExpiresAt: at(info.ExpiresAt), DueAt: at(info.DueAt), Worker: info.Owner, Until: at(info.Until),
	}
}

func (p *program) printRuns(lines []runLine) error {
	t := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "run\tspec\tstatus\tcreated\t")
	for _, l := range lines {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", l.RunID, oneLine(l.Spec), oneLine(l.Status), l.CreatedAt.Local().Format(time.DateTime), l.state(time.Now()))
	}
	return t.Flush()
}

// state says who drives a Run, or who should.
func (l *runLine) state(now time.Time) string {
	switch {
	case l.Worker != "" && l.Until != nil && l.Until.After(now):
		return "driven by " + oneLine(l.Worker)
	case l.Worker != "":
		return "its worker died: psych resume goes on"
	case l.DueAt != nil && !l.DueAt.After(now):
		return "due: psych resume goes on"
	case l.DueAt != nil:
		return "due at " + l.DueAt.Local().Format(time.DateTime)
	}
	return ""
}

func (p *program) deleteCommand() *cobra.Command {
	var f storeFlags
	c := &cobra.Command{
		Use:   "delete [flags] RUN",
		Short: "Deletes a Run with everything that it stored",
		Long: `Deletes the Run with the id RUN, or the one whose id begins so: its log, its inbox
and its blobs. A tombstone stays for 30 days at the least. A worker that drives it
fails at its next write. With a whole id it may be repeated if it failed. A Run that
stored outputs in a blob store is deleted only with that blob store at hand.`,
		Args: arguments(1, "RUN"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.deleteRun(c.Context(), &f, args[0])
		},
	}
	f.add(c)
	return c
}

func (p *program) deleteRun(ctx context.Context, f *storeFlags, id string) error {
	defer p.close()
	s, err := p.open(ctx, f, nil, nil)
	if err != nil {
		return err
	}
	key := psych.RunKey{Tenant: f.tenant, RunID: id}
	if key.Check() != nil {
		info, err := s.resolve(ctx, id)
		if err != nil {
			return err
		}
		key = info.Key
	}
	_, err = s.store.GetRun(ctx, key)
	absent := errors.Is(err, psych.ErrNotFound)
	if err != nil && !absent {
		return fmt.Errorf("look for run %s: %w", key.RunID, refused(err))
	}
	if err := s.reachesBlobs(ctx, key); err != nil {
		return err
	}
	if err := s.rt.Delete(ctx, key); err != nil {
		return err
	}
	says := "deleted"
	if absent {
		says = fmt.Sprintf("tenant %s has no such run (any more): what may be left of it is deleted", oneLine(key.Tenant))
	}
	_, err = fmt.Fprintf(p.stdout, "run %s: %s\n", key.RunID, says)
	return err
}

// reachesBlobs refuses to delete a Run whose blobs the session can't delete:
// without the Run nothing would lead to them.
func (s *session) reachesBlobs(ctx context.Context, key psych.RunKey) error {
	if s.blobs != nil {
		return nil
	}
	for r, err := range s.rt.Records(ctx, key, psych.Pos{}) {
		if errors.Is(err, psych.ErrNotFound) {
			return nil // deleted before; what is left of it goes
		}
		if err != nil {
			return fmt.Errorf("look for blobs of run %s: %w", key.RunID, err)
		}
		if slices.ContainsFunc(payloads(r.Event), func(p *psych.Payload) bool { return p != nil && p.Ref != nil && p.Ref.CallID != "" }) {
			return use("run %s stored outputs in a blob store: give --blob URL", key.RunID)
		}
	}
	return nil
}

// payloads are those of an event that may lie in a blob store; some are nil.
func payloads(e psych.Event) (all []*psych.Payload) {
	attached := func(as []psych.Attachment) {
		for i := range as {
			all = append(all, &as[i].Output)
		}
	}
	switch e := e.(type) {
	case *psych.UserMessage:
		all = append(all, &e.Text)
		attached(e.Attachments)
	case *psych.ModelCallStarted:
		all = append(all, e.Memory)
	case *psych.ModelCallFinished:
		for _, b := range e.Blocks {
			all = append(all, b.Text, b.Provider)
			if b.Call != nil {
				all = append(all, &b.Call.Arguments)
			}
		}
	case *psych.ToolCallFinished:
		all = append(all, &e.Result)
		attached(e.Attachments)
	}
	return all
}
