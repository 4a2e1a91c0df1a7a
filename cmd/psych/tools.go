package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/adapters/openai"
	"github.com/psych-go/psych-go/psych"
)

// toolsFlags say which servers a workbench is about, and for which model.
type toolsFlags struct {
	storeFlags
	serverFlags
	spec      string
	catalogs  []string
	model     string
	budget    int
	refresh   bool
	json, all bool
}

func (p *program) toolsCommand() *cobra.Command {
	var f toolsFlags
	c := &cobra.Command{
		Use:   "tools [flags]",
		Short: "Looks into servers of tools: what they offer, what it costs a prompt, what a search finds",
		Long: `Reads the tools of the MCP servers in the file of --mcp, in the Spec of --spec or in
the files of --catalogue, and prints what each offers, how many characters its
definitions take, what was changed or withheld so that providers take them, and what
each disclosure strategy adds to every request for it.

The subcommands use what is stored of a server while its time lasts; this one asks
anew. A catalogue is a file of [{"server", "description", "tools": […]}], each tool as
tools/list of MCP gives it: nothing is reached then, and nothing kept.

Exit codes: 0 it went well, 1 a server can't be reached, 2 wrong use.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return use("unknown command %.80q: %s --help lists them", args[0], c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			return p.withTools(c.Context(), &f, func(ctx context.Context, b *workbench) error { return b.overview(ctx) })
		},
	}
	flags := c.PersistentFlags()
	f.serverFlags.add(flags)
	flags.StringVar(&f.spec, "spec", "", "`file` of a Spec, whose connections are meant")
	flags.StringSliceVar(&f.catalogs, "catalogue", nil, "`files` of catalogues, in place of servers; repeatable, or with commas")
	flags.StringVar(&f.model, "model", "", "`URL` of the model whose limits and encoding count (default: those of OpenAI; no model is called)")
	flags.IntVar(&f.budget, "budget", 0, "`characters` that servers may add to a prompt, in place of the Spec's")
	flags.StringVar(&f.store, "store", "", "`URL` of the store that keeps catalogues (default as for psych run)")
	flags.StringVar(&f.tenant, "tenant", "local", "the tenant that the catalogues belong to")
	flags.BoolVar(&f.refresh, "refresh", false, "ask the servers anew, though the time of what is stored lasts")
	flags.BoolVar(&f.json, "json", false, "print JSON")
	flags.BoolVar(&f.all, "all", false, "print every line of what is shortened")
	c.AddCommand(p.toolsListCommand(&f), p.toolsSearchCommand(&f), p.toolsReadCommand(&f), p.toolsCallCommand(&f), p.toolsDiffCommand(&f), p.toolsBenchCommand(&f))
	return c
}

func (p *program) toolsListCommand(f *toolsFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "list [flags] SERVER",
		Short: "Lists the tools of a server",
		Long: `Lists the tools of the server SERVER with the characters of their definitions, and
what was changed or withheld, line for line.`,
		Args: arguments(1, "SERVER"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.withTools(c.Context(), f, func(ctx context.Context, b *workbench) error { return b.list(ctx, args[0]) })
		},
	}
}

func (p *program) toolsSearchCommand(f *toolsFlags) *cobra.Command {
	var q psych.ListQuery
	limit := psych.FoundPage
	c := &cobra.Command{
		Use:   "search [flags] QUERY",
		Short: "Searches tools as list_tools does for a model",
		Long: `Prints the tools that match QUERY, the best first: what a model finds that calls
list_tools with these words.`,
		Args: arguments(1, "QUERY, in quotes"),
		RunE: func(c *cobra.Command, args []string) error {
			q.Query = args[0]
			return p.withTools(c.Context(), f, func(ctx context.Context, b *workbench) error { return b.search(ctx, q, limit) })
		},
	}
	c.Flags().StringVar(&q.Server, "server", "", "search this `server` alone")
	c.Flags().IntVar(&q.Offset, "offset", 0, "how many of the best to leave out")
	c.Flags().IntVar(&limit, "limit", limit, "how many to print at the most")
	return c
}

func (p *program) toolsReadCommand(f *toolsFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "read [flags] SERVER TOOL",
		Short: "Prints the definition of a tool",
		Long: `Prints the definition of a tool as read_tool shows it to a model, but whole where
that is shortened to a page.`,
		Args: arguments(2, "SERVER and TOOL"),
		RunE: func(c *cobra.Command, args []string) error {
			return p.withTools(c.Context(), f, func(ctx context.Context, b *workbench) error {
				return b.read(ctx, psych.ToolRef{Server: args[0], Tool: args[1]})
			})
		},
	}
}

func (p *program) toolsCallCommand(f *toolsFlags) *cobra.Command {
	file := ""
	c := &cobra.Command{
		Use:   "call [flags] SERVER TOOL [JSON]",
		Short: "Calls a tool",
		Long: `Calls a tool with the arguments JSON (-: standard input; nothing: {}), validated as
for a model, and prints its result. Attachments of the result, such as images beside
a text, are named on standard error, and --json prints them.

Exit codes: 0 it answered, 1 it failed, or its server can't be reached, 2 wrong use,
such as an unknown tool or arguments that don't match: it was not called.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return arguments(3, "SERVER, TOOL and its arguments as JSON, in quotes")(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			in := json.RawMessage("{}")
			if len(args) == 3 {
				text, err := p.message(args[2])
				if err != nil {
					return err
				}
				in = json.RawMessage(text)
			}
			if !json.Valid(in) {
				return use("the arguments are no JSON: %.200q", in)
			}
			if file != "" && f.json {
				return use("give either -o or --json")
			}
			return p.withTools(c.Context(), f, func(ctx context.Context, b *workbench) error {
				return b.call(ctx, psych.ToolRef{Server: args[0], Tool: args[1]}, in, file)
			})
		},
	}
	c.Flags().StringVarP(&file, "output", "o", "", "write the result to `FILE` (-: standard output), byte for byte")
	return c
}

// A workbench is servers to look into.
type workbench struct {
	p     *program
	f     *toolsFlags
	s     *session
	spec  *psych.Spec
	scope psych.Scope
	codec psych.Codec
	files *catalogFile      // nil: servers are reached
	notes []string          // of what was read
	down  map[string]string // why a server can't be read anew, in full
}

// withTools opens a workbench for f.
func (p *program) withTools(ctx context.Context, f *toolsFlags, do func(context.Context, *workbench) error) error {
	defer p.close()
	b, err := p.workbench(ctx, f)
	if err != nil {
		return err
	}
	if f.refresh {
		b.refresh(ctx)
	}
	return refused(do(ctx, b))
}

func (p *program) workbench(ctx context.Context, f *toolsFlags) (*workbench, error) {
	p.callNoModel()
	b := &workbench{p: p, f: f, scope: psych.Scope{Tenant: f.tenant}, spec: &psych.Spec{Name: "tools"}, down: map[string]string{}}
	stores := f.storeFlags
	w := &workerFlags{serverFlags: f.serverFlags}
	switch {
	case len(f.catalogs) > 0 && (f.mcp != "" || f.spec != ""):
		return nil, use("give either --catalogue, or --mcp and --spec")
	case len(f.catalogs) > 0:
		b.files = &catalogFile{tools: map[string][]psych.RemoteTool{}, names: map[string]bool{}}
		for _, path := range f.catalogs {
			if err := b.files.add(path); err != nil {
				return nil, err
			}
		}
		b.spec.Connections, b.notes = b.files.connections, b.files.notes
		stores.store, stores.blob, w.connector = "mem://", "mem://", b.files
	case f.mcp == "" && f.spec == "":
		return nil, use("whose tools? Give --mcp FILE, --spec FILE or --catalogue FILE")
	case f.spec != "":
		spec, err := readSpec(f.spec)
		if err != nil {
			return nil, err
		}
		spec.Tools = nil // code tools are not what is asked
		b.spec = spec
	}
	if f.budget != 0 {
		b.spec.Disclosure.Budget = f.budget
	}
	var err error
	if b.s, err = p.open(ctx, &stores, w, nil); err != nil {
		return nil, err
	}
	if err := b.s.servers.join(b.spec); err != nil {
		return nil, err
	}
	if lacks := b.s.servers.lacks(ctx, f.tenant, b.spec); lacks != "" {
		return nil, use("%s", lacks)
	}
	b.codec = openai.New("model", nil).Codec()
	if f.model != "" {
		m, err := p.models(ctx, f.model)
		if err != nil {
			return nil, use("open the model: %w", err)
		}
		b.codec = m.Codec()
	}
	return b, nil
}

// note prints the first notes on what was read.
func (b *workbench) note() {
	if b.f.json {
		return
	}
	const first = 3
	for i, n := range b.notes {
		if i == first && !b.f.all && len(b.notes) > first+1 {
			fmt.Fprintf(b.p.stderr, "psych: and %d more of that kind: --all says which\n", len(b.notes)-i)
			return
		}
		fmt.Fprintln(b.p.stderr, oneLine("psych: "+n))
	}
}

// refresh asks every server anew, some at a time.
func (b *workbench) refresh(ctx context.Context) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	room := make(chan struct{}, 8)
	for i := range b.spec.Connections {
		c := &b.spec.Connections[i]
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			if err := b.s.rt.Refresh(ctx, b.scope, c); err != nil {
				mu.Lock()
				defer mu.Unlock()
				b.down[c.Name] = oneLine(strings.TrimPrefix(message(err), "psych: "))
			}
		})
	}
	wg.Wait()
	for _, name := range slices.Sorted(maps.Keys(b.down)) {
		fmt.Fprintf(b.p.stderr, "psych: %s\n", b.down[name])
	}
}

// only is the Spec with one server, so that no other is reached.
func (b *workbench) only(server string) (*psych.Spec, error) {
	spec := *b.spec
	var names []string
	spec.Connections = slices.DeleteFunc(slices.Clone(spec.Connections), func(c psych.Connection) bool { names = append(names, c.Name); return c.Name != server })
	if len(spec.Connections) == 0 {
		slices.Sort(names)
		return nil, use("there is no server %.80q: want one of %s", server, clip(strings.Join(names, ", "), 500))
	}
	return &spec, nil
}

// report reads what is known of one server.
func (b *workbench) report(ctx context.Context, server string) (*psych.ServerReport, error) {
	spec, err := b.only(server)
	if err != nil {
		return nil, err
	}
	all, err := b.s.rt.Servers(ctx, b.scope, spec, b.codec.Limits())
	if err != nil {
		return nil, err
	}
	if all[0].Down != "" {
		return nil, fmt.Errorf("server %s: %s", server, all[0].Down)
	}
	return &all[0], nil
}

func (b *workbench) list(ctx context.Context, server string) error {
	r, err := b.report(ctx, server)
	if err != nil {
		return err
	}
	if b.f.json {
		return b.p.printJSON(r)
	}
	chars, width := 0, 0
	for _, t := range r.Tools {
		chars += t.Chars
		width = max(width, columns(clip(t.Name, 40)))
	}
	w := b.p.stdout
	fmt.Fprintf(w, "%s: %s with %s characters of definitions\nversion %s\n", r.Server, count(len(r.Tools), "tool"), thousands(chars), r.Catalog)
	if r.Instructions != "" {
		fmt.Fprint(w, wrap("It says of itself: "+clip(r.Instructions, 2000), 0, 2))
	}
	fmt.Fprintln(w)
	for _, t := range r.Tools {
		fmt.Fprintln(w, clip(fmt.Sprintf("%s %7s  %s", pad(clip(t.Name, 40), width), thousands(t.Chars), oneLine(t.Line)), 100))
		say := func(what, why string) {
			if why != "" {
				fmt.Fprintf(w, "%*s%s", width+10, "", wrap(what+": "+clip(why, 300), width+10, width+12))
			}
		}
		if !t.Permitted {
			say("may not be used", "the spec or the policy does not permit it")
		}
		if want := r.Server + "__" + t.Name; t.Wire != want {
			say("shown as", t.Wire)
		}
		say("changed", strings.Join(t.Changed, "; "))
		say("withheld", t.Withheld)
		say("unchecked", t.Unchecked)
	}
	for _, d := range r.Dropped {
		fmt.Fprintln(w, clip(fmt.Sprintf("left out: %q: %s", d.Name, d.Reason), 300))
	}
	return nil
}

func (b *workbench) search(ctx context.Context, q psych.ListQuery, limit int) error {
	spec := b.spec
	if q.Server != "" {
		var err error
		if spec, err = b.only(q.Server); err != nil {
			return err
		}
	}
	found, err := b.s.rt.FindTools(ctx, b.scope, spec, q, limit)
	if err != nil {
		return err
	}
	if b.f.json {
		return b.p.printJSON(found)
	}
	for i, t := range found.Tools {
		fmt.Fprintln(b.p.stdout, clip(fmt.Sprintf("%3d  %s / %s  %s", q.Offset+i+1, t.Server, oneLine(t.Tool), oneLine(t.Line)), 100))
	}
	says := fmt.Sprintf("psych: %s", count(found.Total, "tool matches", "tools match"))
	if n := q.Offset + len(found.Tools); n < found.Total && len(found.Tools) > 0 {
		says += fmt.Sprintf("; go on with --offset %d", n)
	}
	if len(found.Unmatched) > 0 {
		says += "; nothing matches " + clip(strings.Join(found.Unmatched, ", "), 200)
	}
	fmt.Fprintln(b.p.stderr, says)
	return nil
}

func (b *workbench) read(ctx context.Context, ref psych.ToolRef) error {
	spec, err := b.only(ref.Server)
	if err != nil {
		return err
	}
	shown, whole, err := b.s.rt.ReadTool(ctx, b.scope, spec, ref)
	if err != nil {
		return err
	}
	if b.f.json {
		return b.p.printJSON(map[string]any{"server": ref.Server, "tool": ref.Tool, "definition": whole, "shown_chars": utf8.RuneCountInString(shown)})
	}
	if n := utf8.RuneCountInString(whole); shown != whole {
		fmt.Fprintf(b.p.stderr, "psych: of these %s characters read_tool shows a model %s, and the rest by handle\n", thousands(n), thousands(utf8.RuneCountInString(shown)))
	}
	_, err = io.WriteString(b.p.stdout, psych.Printable(strings.TrimRight(whole, "\n"))+"\n")
	return err
}

// A callResult is what psych tools call --json prints.
type callResult struct {
	psych.ToolRef
	ContentType string `json:"content_type,omitempty"`
	IsError     bool   `json:"is_error,omitempty"`
	Bytes       int    `json:"bytes"`
	callBytes
	Attachments []callAttachment `json:"attachments,omitempty"`
}

type callBytes struct {
	Text   string `json:"text,omitempty"`   // or
	Base64 []byte `json:"base64,omitempty"` // of what is no text
}

func bytesOf(data []byte) callBytes {
	if utf8.Valid(data) {
		return callBytes{Text: string(data)}
	}
	return callBytes{Base64: data}
}

type callAttachment struct {
	Name        string `json:"name"`
	ContentType string `json:"content_type,omitempty"`
	Bytes       int64  `json:"bytes"` // that the tool wrote
	Truncated   bool   `json:"truncated,omitempty"`
	callBytes
}

func (b *workbench) call(ctx context.Context, ref psych.ToolRef, args json.RawMessage, file string) error {
	spec, err := b.only(ref.Server)
	if err != nil {
		return err
	}
	if file == "" {
		return b.callInto(ctx, spec, ref, args, nil)
	}
	var failed error // the tool says so: what it said is in the file
	err = b.p.writeFile(file, func(w io.Writer) error {
		err := b.callInto(ctx, spec, ref, args, w)
		if errors.Is(err, errToolFailed) {
			failed, err = err, nil
		}
		return err
	})
	return cmp.Or(err, failed)
}

// errToolFailed is matched where a tool was called and answered that it failed.
var errToolFailed = errors.New("says that it failed")

// callInto prints what a tool answers, or writes it to w.
func (b *workbench) callInto(ctx context.Context, spec *psych.Spec, ref psych.ToolRef, args json.RawMessage, w io.Writer) error {
	res, err := b.s.rt.CallTool(ctx, b.scope, spec, ref, args)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(res.Body)
	if c, ok := res.Body.(io.Closer); ok {
		err = errors.Join(err, c.Close())
	}
	if err != nil {
		return fmt.Errorf("read the result: %w", err)
	}
	attachments := res.Attachments()
	switch {
	case b.f.json:
		r := callResult{ToolRef: ref, ContentType: res.ContentType, IsError: res.IsError, Bytes: len(data), callBytes: bytesOf(data)}
		for _, a := range attachments {
			r.Attachments = append(r.Attachments, callAttachment{a.Name, a.ContentType, a.Observed, int64(len(a.Data)) < a.Observed, bytesOf(a.Data)})
		}
		err = b.p.printJSON(r)
	case w != nil:
		_, err = w.Write(data)
	case !utf8.Valid(data):
		return fmt.Errorf("the tool was called, and its result is binary (%s, %d bytes): -o FILE and --json take one", oneLine(res.ContentType), len(data))
	case len(data) > 0:
		_, err = io.WriteString(b.p.stdout, strings.TrimSuffix(psych.Printable(string(data)), "\n")+"\n")
	}
	if !b.f.json && err == nil {
		for _, a := range attachments {
			fmt.Fprintln(b.p.stderr, clip(fmt.Sprintf("psych: attachment %s (%s, %s bytes): --json prints it", oneLine(a.Name), oneLine(a.ContentType), thousands(int(a.Observed))), 200))
		}
	}
	if err == nil && res.IsError {
		err = fmt.Errorf("%s / %s %w", ref.Server, ref.Tool, errToolFailed)
	}
	return err
}
