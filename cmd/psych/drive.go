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
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

// finish drives a Run, prints what happens and then the report, and returns an
// error unless it is completed.
func (p *program) finish(ctx context.Context, s *session, key psych.RunKey, asJSON bool) error {
	events := p.stdout
	if asJSON {
		events = p.stderr
	}
	driveErr := p.drive(ctx, s, key, events)
	if errors.Is(driveErr, errAlive) {
		return driveErr
	}
	rep, err := s.rt.Report(context.WithoutCancel(ctx), key)
	if err != nil {
		return errors.Join(driveErr, err)
	}
	if !asJSON {
		fmt.Fprintln(p.stdout)
	}
	if err := p.print(rep, asJSON); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	return ended(rep, driveErr)
}

// drive drives the Run to the end of its exchange, or until ctx ends. If a
// worker that died still holds it, it waits for the end of the lease.
func (p *program) drive(ctx context.Context, s *session, key psych.RunKey, events io.Writer) error {
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
		outcome, err := s.rt.Drive(ctx, key, &psych.DriveOptions{Observe: w.observe})
		switch {
		case outcome == psych.Held && (err == nil || errors.Is(err, psych.ErrLeaseHeld)):
			if err := p.await(ctx, s, key); err != nil {
				return err
			}
		case err != nil || outcome != psych.Yielded:
			return err
		}
	}
}

// errAlive is matched when another worker drives the Run, and goes on.
var errAlive = errors.New("it is alive")

// lookEvery is how often await looks whether a lease is still held. A local
// file is read, or a quarter of a read unit is paid for.
const lookEvery = time.Second

// await returns when nobody holds the Run. A worker that renews its lease
// meanwhile is alive: an error matching errAlive.
func (p *program) await(ctx context.Context, s *session, key psych.RunKey) error {
	var first psych.RunInfo
	for {
		info, err := s.store.GetRun(ctx, key)
		if err != nil {
			return fmt.Errorf("look at the lease of run %s: %w", key.RunID, err)
		}
		left := time.Until(info.Until)
		switch {
		case info.Owner == "" || left <= 0:
			return nil
		case first.Owner == "":
			first = info
			fmt.Fprintf(p.stderr, "psych: worker %s holds run %s until %s: waiting, and going on then if it is dead\n",
				oneLine(info.Owner), key.RunID, info.Until.Local().Format(time.TimeOnly))
		case info.Epoch != first.Epoch || !info.Until.Equal(first.Until):
			return fmt.Errorf("worker %s drives run %s, and %w: psych report shows how far it is", oneLine(info.Owner), key.RunID, errAlive)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(left, lookEvery)):
		}
	}
}

// ready returns an error unless this worker has what a Run's Version needs: a
// Run must not suffer for flags that were forgotten.
func (p *program) ready(ctx context.Context, s *session, info psych.RunInfo) error {
	v, err := s.rt.Version(ctx, info.Key.Tenant, info.Version)
	if err != nil {
		return err
	}
	var lacks []string
	for _, name := range v.Spec.Tools {
		if !slices.Contains(s.tools, name) {
			lacks = append(lacks, name)
		}
	}
	if len(lacks) > 0 {
		return use("run %s uses the tools %s: give --files and --allow-exec as it was begun with", info.Key.RunID, strings.Join(lacks, ", "))
	}
	if lacks := s.servers.lacks(ctx, info.Key.Tenant, &v.Spec); lacks != "" {
		return use("run %s: %s", info.Key.RunID, lacks)
	}
	_, err = p.model(ctx, v.Spec.Model)
	return err
}

func (p *program) print(rep *psych.Report, asJSON bool) error {
	if !asJSON {
		return rep.WriteText(p.stdout)
	}
	return p.printJSON(rep)
}

func (p *program) printJSON(v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := p.stdout.Write(escapeControls(b.Bytes()))
	return err
}

// escapeControls escapes in JSON what drives a terminal and encoding/json does
// not escape.
func escapeControls(b []byte) []byte {
	return controls.ReplaceAllFunc(b, func(c []byte) []byte {
		r, _ := utf8.DecodeRune(c)
		return fmt.Appendf(nil, `\u%04x`, r)
	})
}

var controls = regexp.MustCompile(`[\x{7f}-\x{9f}]`)

// ended is nil for a completed Run, and else says why it is not.
func ended(rep *psych.Report, err error) error {
	switch {
	case rep.Status == psych.StatusCompleted && err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		if rep.Status == psych.StatusOpen {
			return fmt.Errorf("interrupted: run %s is open: psych resume %s goes on, with the flags that it was begun with", rep.Run.RunID, rep.Run.RunID)
		}
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
