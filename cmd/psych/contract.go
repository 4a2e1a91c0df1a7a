package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/psych"
)

type contractFlags struct {
	store, blob string
	only, lacks []string
}

func (p *program) contractCommand() *cobra.Command {
	var f contractFlags
	c := &cobra.Command{
		Use:   "contract [flags]",
		Short: "Checks that a store or blob store keeps the rules of its port",
		Long: `Runs the contract suite of stores on --store, that of blob stores on --blob, and
prints for each rule whether it passes, or what was promised and what happened.
Rules use tenants of their own, which begin with contract-, and clean up but for
documents and tombstones, so a backend in use is not disturbed. A mem: URL is one
that ends with the process: it lacks reopening and streaming.

Exit codes: 0 every rule passes, 1 one fails, 2 wrong use.`,
		Args: arguments(0, "none"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.contract(c.Context(), &f)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.store, "store", "", "`URL` of a store")
	flags.StringVar(&f.blob, "blob", "", "`URL` of a blob store")
	flags.StringSliceVar(&f.only, "only", nil, "`rules` to check, of all; repeatable, or with commas")
	flags.StringSliceVar(&f.lacks, "lacks", nil, "`properties` that the endpoint lacks, so that rules which need them are skipped: contention, reopening, streaming")
	return c
}

var needs = []contracttest.Need{contracttest.Contention, contracttest.Reopening, contracttest.Streaming}

func (p *program) contract(ctx context.Context, f *contractFlags) error {
	if f.store == "" && f.blob == "" {
		return use("give --store URL, --blob URL, or both")
	}
	var lacks []contracttest.Need
	for _, name := range f.lacks {
		need := contracttest.Need(name)
		if !slices.Contains(needs, need) {
			return use("--lacks %.80q: want one of %v", name, needs)
		}
		lacks = append(lacks, need)
	}
	var known []string
	stores, blobs := contracttest.StoreRules(), contracttest.BlobStoreRules()
	if f.store != "" {
		known = append(known, names(stores)...)
	}
	if f.blob != "" {
		known = append(known, names(blobs)...)
	}
	for _, name := range f.only {
		if !slices.Contains(known, name) {
			return use("--only %.80q: no such rule in what is checked: without --only, psych contract lists them as it goes", name)
		}
	}
	failed := 0
	if f.store != "" {
		n, err := check(ctx, p.stdout, "store", f.store, &p.backends.Stores, stores, f.only, lacks)
		if err != nil {
			return err
		}
		failed += n
	}
	if f.blob != "" {
		n, err := check(ctx, p.stdout, "blob store", f.blob, &p.backends.Blobs, blobs, f.only, lacks)
		if err != nil {
			return err
		}
		failed += n
	}
	if failed > 0 {
		return fmt.Errorf("%d rules failed: what was promised and what happened stands above", failed)
	}
	return nil
}

func names[P any](rules []contracttest.Rule[P]) []string {
	var all []string
	for _, r := range rules {
		all = append(all, r.Name)
	}
	return all
}

// check runs a suite on what a URL names, and returns how many rules failed.
func check[P any](ctx context.Context, w io.Writer, what, url string, mux *psych.Mux[P], rules []contracttest.Rule[P], only []string, lacks []contracttest.Need) (failed int, err error) {
	h := &handles[P]{mux: mux, url: url}
	defer h.close()
	port, err := h.open(ctx)
	if err != nil {
		return 0, use("open the %s: %w", what, err)
	}
	fixture := &contracttest.Fixture[P]{Port: port}
	if scheme, _, _ := strings.Cut(url, ":"); strings.ToLower(scheme) == "mem" {
		lacks = append(slices.Clone(lacks), contracttest.Reopening, contracttest.Streaming)
	}
	if !slices.Contains(lacks, contracttest.Reopening) {
		fixture.Open = h.open
		fixture.Reopen = func(ctx context.Context) (P, error) {
			h.close()
			return h.open(ctx)
		}
	}
	o := &contracttest.Options{Lacks: lacks}
	known := names(rules)
	for _, name := range only {
		if slices.Contains(known, name) {
			o.Only = append(o.Only, name)
		}
	}
	if len(only) > 0 && len(o.Only) == 0 {
		return 0, nil // they are all of the other suite
	}
	width := len(slices.MaxFunc(known, func(a, b string) int { return cmp.Compare(len(a), len(b)) }))
	fmt.Fprintln(w, oneLine(what+" "+url))
	passed, skipped := 0, 0
	for r := range contracttest.Run(ctx, rules, fixture, o) {
		switch {
		case r.Skipped != "":
			skipped++
			fmt.Fprintf(w, "%-*s  skipped: %s\n", width, r.Rule, r.Skipped)
		case r.Err != nil:
			failed++
			fmt.Fprintf(w, "%-*s  FAILED\n    promised: %s\n    %s\n", width, r.Rule, oneLine(r.Promise), strings.ReplaceAll(psych.Printable(r.Err.Error()), "\n", "\n    "))
		default:
			passed++
			fmt.Fprintf(w, "%-*s  pass\n", width, r.Rule)
		}
	}
	fmt.Fprintf(w, "%s: %d passed, %d failed, %d skipped\n", what, passed, failed, skipped)
	if ctx.Err() != nil {
		return failed, errors.New("interrupted: not every rule was checked")
	}
	return failed, nil
}

// handles are what a suite opened.
type handles[P any] struct {
	mux *psych.Mux[P]
	url string
	all []P
}

func (h *handles[P]) open(ctx context.Context) (P, error) {
	port, err := h.mux.Open(ctx, h.url)
	if err == nil {
		h.all = append(h.all, port)
	}
	return port, err
}

func (h *handles[P]) close() {
	for _, port := range h.all {
		if c, ok := any(port).(io.Closer); ok {
			c.Close()
		}
	}
	h.all = nil
}
