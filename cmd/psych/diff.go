package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/psych"
)

func (p *program) toolsDiffCommand(f *toolsFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "diff [flags] OLD NEW",
		Short: "Says what is new, gone and changed between two versions of a catalogue",
		Long: `Compares two versions of a server's catalogue that the store has, by their digests
(psych tools list and psych records print them), or two files of catalogues, server
by server.

Exit codes: 0 whether or not they differ, 1 it failed, 2 wrong use.`,
		Args: arguments(2, "OLD and NEW, digests or files"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.diffTools(c.Context(), f, args[0], args[1])
		},
	}
}

// A catalogDiff is what psych tools diff --json prints a list of.
type catalogDiff struct {
	Server  string       `json:"server,omitempty"`
	Is      string       `json:"is,omitempty"` // new, or gone
	Old     psych.Digest `json:"old,omitzero"`
	New     psych.Digest `json:"new,omitzero"`
	Added   []string     `json:"added,omitempty"`
	Removed []string     `json:"removed,omitempty"`
	Changed []string     `json:"changed,omitempty"`
}

func (p *program) diffTools(ctx context.Context, f *toolsFlags, before, after string) (err error) {
	if f.mcp != "" || f.spec != "" || len(f.catalogs) > 0 {
		return use("psych tools diff compares two digests of the store, or two files: it takes neither --mcp nor --spec nor --catalogue")
	}
	defer p.close()
	var diffs []catalogDiff
	var d catalogDiff
	oldErr, newErr := d.Old.UnmarshalText([]byte(before)), d.New.UnmarshalText([]byte(after))
	if oldErr == nil && newErr == nil {
		s, err := p.open(ctx, &f.storeFlags, nil, nil)
		if err != nil {
			return err
		}
		if d.Added, d.Removed, d.Changed, err = s.rt.DiffCatalogs(ctx, f.tenant, d.Old, d.New); err != nil {
			if errors.Is(err, psych.ErrNotFound) {
				return use("tenant %s has no catalogue of that version: %w", f.tenant, err)
			}
			return refused(err)
		}
		diffs = append(diffs, d)
	} else {
		for _, path := range []string{before, after} {
			if _, err := os.Stat(path); err != nil {
				return use("OLD and NEW are not both digests of 64 hexadecimal digits, and %.200q is no file: %w", path, err)
			}
		}
		if diffs, err = p.diffFiles(ctx, before, after); err != nil {
			return err
		}
	}
	if f.json {
		return p.printJSON(append([]catalogDiff{}, diffs...))
	}
	n := 0
	for _, d := range diffs {
		name := ""
		if d.Server != "" {
			name = d.Server + " / "
		}
		if d.Is != "" {
			n++
			fmt.Fprintln(p.stdout, clip(fmt.Sprintf("server %s is %s, with %s", d.Server, d.Is, count(len(d.Added)+len(d.Removed), "tool")), 300))
			continue
		}
		for _, part := range []struct {
			what  string
			names []string
		}{{"new", d.Added}, {"gone", d.Removed}, {"changed", d.Changed}} {
			for _, tool := range part.names {
				n++
				fmt.Fprintln(p.stdout, clip(fmt.Sprintf("%-8s %s%s", part.what, name, tool), 300))
			}
		}
	}
	if n == 0 {
		fmt.Fprintln(p.stdout, "the same tools")
	}
	return nil
}

// diffFiles compares two files of catalogues.
func (p *program) diffFiles(ctx context.Context, paths ...string) (diffs []catalogDiff, err error) {
	var of [2]map[string]psych.ServerReport
	store, err := p.backends.Stores.Open(ctx, "mem://")
	if err != nil {
		return nil, err
	}
	p.closeLater(store)
	scope := psych.Scope{Tenant: "diff"}
	var rt *psych.Runtime
	for i, path := range paths {
		files := &catalogFile{tools: map[string][]psych.RemoteTool{}, names: map[string]bool{}}
		if err := files.add(path); err != nil {
			return nil, err
		}
		if rt, err = psych.New(store, &psych.Options{Connector: files}); err != nil {
			return nil, err
		}
		p.closeLater(rt)
		for j := range files.connections {
			if err := rt.Refresh(ctx, scope, &files.connections[j]); err != nil {
				return nil, err
			}
		}
		all, err := rt.Servers(ctx, scope, &psych.Spec{Name: "diff", Connections: files.connections}, psych.ModelLimits{})
		if err != nil {
			return nil, err
		}
		of[i] = map[string]psych.ServerReport{}
		for _, r := range all {
			of[i][r.Server] = r
		}
	}
	names := func(r psych.ServerReport) (all []string) {
		for _, t := range r.Tools {
			all = append(all, t.Name)
		}
		return all
	}
	both := maps.Clone(of[0])
	maps.Copy(both, of[1])
	for _, server := range slices.Sorted(maps.Keys(both)) {
		old, was := of[0][server]
		now, is := of[1][server]
		d := catalogDiff{Server: server, Old: old.Catalog, New: now.Catalog}
		switch {
		case !was:
			d.Is, d.Added = "new", names(now)
		case !is:
			d.Is, d.Removed = "gone", names(old)
		case old.Catalog == now.Catalog:
			continue
		default:
			if d.Added, d.Removed, d.Changed, err = rt.DiffCatalogs(ctx, scope.Tenant, old.Catalog, now.Catalog); err != nil {
				return nil, err
			}
		}
		diffs = append(diffs, d)
	}
	return diffs, nil
}
