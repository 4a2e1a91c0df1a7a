package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/internal/cachesim"
	"github.com/psych-go/psych-go/psych"
)

func (p *program) reportCommand() *cobra.Command {
	var f storeFlags
	var asJSON bool
	var providers []string
	c := &cobra.Command{
		Use:   "report [flags] RUN",
		Short: "Reports what happened in a Run, and what it cost",
		Long: `Prints the report of the Run with the id RUN, or the one whose id begins so, as
its log has it now. It needs no model, and disturbs no worker. With --simulate it
estimates what a provider's prompt cache would have made of the requests.`,
		Args: arguments(1, "RUN"),
		RunE: func(c *cobra.Command, args []string) error {
			if len(providers) > 0 {
				return p.reportSimulated(c.Context(), &f, args[0], providers, asJSON)
			}
			return p.report(c.Context(), &f, args[0], asJSON)
		},
	}
	f.add(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	c.Flags().StringArrayVar(&providers, "simulate", nil, "estimate cached tokens by the rules of `PROVIDER`: "+cachesim.Names()+"; repeatable")
	return c
}

func (p *program) report(ctx context.Context, f *storeFlags, id string, asJSON bool) error {
	defer p.close()
	s, err := p.open(ctx, f, nil, nil)
	if err != nil {
		return err
	}
	info, err := s.resolve(ctx, id)
	if err != nil {
		return err
	}
	rep, err := s.rt.Report(ctx, info.Key)
	if err != nil {
		return err
	}
	return p.print(rep, asJSON)
}

func (p *program) recordsCommand() *cobra.Command {
	var f storeFlags
	var after string
	c := &cobra.Command{
		Use:   "records [flags] RUN",
		Short: "Prints the records of a Run's log, a line of JSON each",
		Long: `Prints the records of the log of the Run with the id RUN, or the one whose id
begins so, a line of JSON each. What is large lies in the blob store, and psych
output reads it.`,
		Args: arguments(1, "RUN"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.records(c.Context(), &f, args[0], after)
		},
	}
	f.add(c)
	c.Flags().StringVar(&after, "after", "0", "print those behind this `position`: a seq, or a position that Psych returned")
	return c
}

func (p *program) records(ctx context.Context, f *storeFlags, id, after string) error {
	pos, err := psych.ParsePos(after)
	if err != nil {
		return use("--after %.80q: want a seq, or a position that Psych returned", after)
	}
	defer p.close()
	s, err := p.open(ctx, f, nil, nil)
	if err != nil {
		return err
	}
	info, err := s.resolve(ctx, id)
	if err != nil {
		return err
	}
	for rec, err := range s.rt.Records(ctx, info.Key, pos) {
		if err != nil {
			return refused(err)
		}
		line, err := rec.MarshalJSON()
		if err != nil {
			return err
		}
		if _, err := p.stdout.Write(append(escapeControls(line), '\n')); err != nil {
			return err
		}
	}
	return nil
}

type outputFlags struct {
	storeFlags
	psych.OutputQuery
	file string
}

func (p *program) outputCommand() *cobra.Command {
	var f outputFlags
	c := &cobra.Command{
		Use:   "output [flags] RUN HANDLE",
		Short: "Reads a stored output of a Run, whole or in windows",
		Long: `Prints a window of the output with the handle HANDLE (out_c4_1, as the report has
it) of the Run with the id RUN, or the one whose id begins so: what the model is
shown for the same arguments. Control characters are shown, not sent to the
terminal. With -o FILE and no window it writes all of it, as it was stored.`,
		Args: arguments(2, "RUN and HANDLE"),
		RunE: func(c *cobra.Command, args []string) error {
			whole := f.file != ""
			for _, name := range []string{"offset", "limit", "grep", "ignore-case", "context", "from", "unit"} {
				whole = whole && !c.Flags().Changed(name)
			}
			for _, name := range []string{"ignore-case", "context", "from"} {
				if c.Flags().Changed(name) && f.Grep == "" {
					return use("--%s is for a search: give --grep too", name)
				}
			}
			return p.output(c.Context(), &f, args[0], args[1], whole)
		},
	}
	flags := c.Flags()
	f.storeFlags.add(c)
	flags.Int64Var(&f.Offset, "offset", 0, "where to begin, from 0: in the unit, or in matches with --grep")
	flags.Int64Var(&f.Limit, "limit", 0, "how many at the most (0: a page of 20,000 characters)")
	flags.StringVar(&f.Grep, "grep", "", "an RE2 regular `expression`, matched within lines")
	flags.BoolVar(&f.IgnoreCase, "ignore-case", false, "for --grep")
	flags.Int64Var(&f.Context, "context", 0, "for --grep: `lines` to show before and behind each match, at most 10")
	flags.Int64Var(&f.From, "from", 0, "for --grep: the `character` at which a search goes on")
	flags.StringVar(&f.Unit, "unit", "", "lines or chars (default: lines, or chars if the output is one long line)")
	flags.StringVarP(&f.file, "output", "o", "", "write to `FILE` (-: standard output), byte for byte")
	return c
}

func (p *program) output(ctx context.Context, f *outputFlags, id, handle string, whole bool) error {
	defer p.close()
	s, err := p.open(ctx, &f.storeFlags, nil, nil)
	if err != nil {
		return err
	}
	info, err := s.resolve(ctx, id)
	if err != nil {
		return err
	}
	if whole {
		return p.writeFile(f.file, func(w io.Writer) error { return s.copyOutput(ctx, info.Key, handle, w) })
	}
	win, err := s.rt.Output(ctx, info.Key, handle, f.OutputQuery)
	if errors.Is(err, psych.ErrNotFound) {
		return noOutput(info.Key, handle)
	}
	if err != nil {
		return refused(err)
	}
	if win.Binary {
		return use("output %s is binary (%s, %d bytes): give -o FILE, and no window", handle, oneLine(win.ContentType), win.Size)
	}
	if f.file != "" {
		err = p.writeFile(f.file, func(w io.Writer) error { _, err := io.WriteString(w, win.Text); return err })
	} else {
		text := psych.Printable(win.Text)
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		_, err = io.WriteString(p.stdout, text)
	}
	fmt.Fprintf(p.stderr, "psych: %s\n", describe(win))
	return err
}

func noOutput(key psych.RunKey, handle string) error {
	return use("run %s has no output %.80q: psych report %s --json lists the handles; out_CALL is that of every call", key.RunID, handle, key.RunID)
}

// describe says what of an output a window shows, and how to go on.
func describe(w *psych.OutputWindow) string {
	s := fmt.Sprintf("of %d lines, %d characters", w.TotalLines, w.TotalChars)
	switch {
	case w.Matches != nil:
		s += fmt.Sprintf(", %d matches", *w.Matches)
	case w.Unit == psych.UnitMatches:
		s += ", matches not counted to the end"
	}
	s += fmt.Sprintf(", from %s %d", w.Unit, w.Offset)
	if w.AtEnd {
		return s + " to the end"
	}
	s += fmt.Sprintf("; go on with --offset %d", w.NextOffset)
	if w.NextFrom > 0 {
		s += fmt.Sprintf(" --from %d", w.NextFrom)
	}
	return s
}

// writeFile calls f with the file of a flag -o. A file that was there is
// replaced once f has written all, and stays as it is if f fails.
func (p *program) writeFile(name string, f func(io.Writer) error) error {
	if name == "-" {
		return f(p.stdout)
	}
	there, err := os.OpenFile(name, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		file, err := os.Create(name)
		if err != nil {
			return use("-o: %w", err)
		}
		if err = errors.Join(f(file), file.Close()); err != nil {
			os.Remove(name) // a part must not be taken for the whole
		}
		return err
	}
	if err != nil {
		return use("-o: %w", err)
	}
	info, err := there.Stat()
	if err != nil || !info.Mode().IsRegular() { // a device, a pipe: it can't be replaced
		return errors.Join(err, f(there), there.Close())
	}
	there.Close()
	if name, err = filepath.EvalSymlinks(name); err != nil {
		return use("-o: %w", err)
	}
	part, err := os.CreateTemp(filepath.Dir(name), ".psych-*")
	if err != nil {
		return use("-o: %w", err)
	}
	defer os.Remove(part.Name())
	if err := errors.Join(f(part), part.Chmod(info.Mode().Perm()), part.Close()); err != nil {
		return err
	}
	return os.Rename(part.Name(), name)
}

// copyOutput writes a whole output as it was stored, and checks it against the
// digest in its record.
func (s *session) copyOutput(ctx context.Context, key psych.RunKey, handle string, w io.Writer) error {
	out, err := s.find(ctx, key, handle)
	if err != nil {
		return err
	}
	switch {
	case out.Stored() == psych.StoredPreview:
		return use("only a preview of output %s was kept, since there was no blob store: psych report shows it", handle)
	case out.Ref == nil:
		_, err := w.Write(out.Inline)
		return err
	case s.blobs == nil:
		return use("output %s lies in a blob store: give --blob URL, as the run was begun with", handle)
	}
	r, _, err := s.blobs.Open(ctx, psych.BlobKey{Tenant: key.Tenant, RunID: key.RunID, CallID: out.Ref.CallID}, 0, -1)
	if err != nil {
		return fmt.Errorf("read output %s: %w", handle, err)
	}
	defer r.Close()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, sum), r)
	if err != nil {
		return fmt.Errorf("read output %s: %w", handle, err)
	}
	if n != out.Size || psych.Digest(sum.Sum(nil)) != out.Ref.SHA256 {
		return fmt.Errorf("output %s was changed behind its record: it has %d bytes, and other ones than the %d that the log names", handle, n, out.Size)
	}
	return nil
}

// find reads the log for the output with a handle.
func (s *session) find(ctx context.Context, key psych.RunKey, handle string) (*psych.Payload, error) {
	for rec, err := range s.rt.Records(ctx, key, psych.Pos{}) {
		if err != nil {
			return nil, err
		}
		e, ok := rec.Event.(*psych.ToolCallFinished)
		if !ok {
			continue
		}
		if handle == "out_"+e.Call {
			return &e.Result, nil
		}
		for i := range e.Attachments {
			if a := &e.Attachments[i]; handle == "out_"+e.Call+"_"+a.Slot {
				return &a.Output, nil
			}
		}
	}
	return nil, noOutput(key, handle)
}
