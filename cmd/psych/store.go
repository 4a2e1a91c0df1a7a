package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/psych"
)

func (p *program) storeCommand() *cobra.Command {
	c := &cobra.Command{Use: "store", Short: "Prepares stores and blob stores"}
	group(c)
	c.AddCommand(&cobra.Command{
		Use:   "init URL",
		Short: "Creates what a store or blob store needs",
		Long: `Creates what the store or blob store at URL needs: a table with its indexes, a
bucket, a directory or a file; and says what was done and what the backend
refused and can do without. Calling it again changes nothing.`,
		Args: arguments(1, "URL of a store or blob store"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.initStore(c.Context(), args[0])
		},
	})
	return c
}

func (p *program) initStore(ctx context.Context, url string) error {
	scheme, _, _ := strings.Cut(url, ":")
	scheme = strings.ToLower(scheme)
	stores, blobs := p.backends.Stores.Schemes(), p.backends.Blobs.Schemes()
	var port any
	var err error
	switch {
	case slices.Contains(blobs, scheme):
		port, err = p.backends.Blobs.Open(ctx, url)
	case slices.Contains(stores, scheme):
		port, err = p.backends.Stores.Open(ctx, url)
	default:
		schemes := slices.Concat(stores, blobs)
		slices.Sort(schemes)
		return use("%.80q is no URL of a store or blob store: want one that begins with %s:", url, strings.Join(slices.Compact(schemes), ":, "))
	}
	if err != nil {
		return use("open the store: %w", err)
	}
	if c, ok := port.(io.Closer); ok {
		defer c.Close()
	}
	i, ok := psych.As[psych.Initer](port)
	if !ok {
		_, err := fmt.Fprintln(p.stdout, oneLine(url+": needs nothing"))
		return err
	}
	notes, err := i.Init(ctx)
	for _, n := range notes {
		fmt.Fprintln(p.stdout, oneLine(url+": "+n))
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(p.stdout, oneLine(url+": ready"))
	return err
}
