package psych

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// The meta tools, which a Spec with connections has, whatever its strategy
// shows: they reach every tool that may be used.
const (
	listToolsName = "list_tools"
	readToolName  = "read_tool"
	callToolName  = "call_tool"
)

// metaDefs are their definitions.
var metaDefs = []ToolDef{
	{callToolName, "Calls a tool of a server with its own arguments.", json.RawMessage(`{"type":"object","properties":{"server":{"type":"string"},"tool":{"type":"string"},"arguments":{"type":"object"}},"required":["server","tool","arguments"]}`)},
	{listToolsName, "Lists tools of servers: all of one, or the best matches of a query in one or in all. Without both: the servers.", json.RawMessage(`{"type":"object","properties":{"server":{"type":"string"},"query":{"type":"string","description":"what the tool does"},"offset":{"type":"integer"}}}`)},
	{readToolName, "Shows a tool's description and the schema of its arguments.", json.RawMessage(`{"type":"object","properties":{"server":{"type":"string"},"tool":{"type":"string"}},"required":["server","tool"]}`)},
}

// metaSchemas are what their arguments must match: call_tool takes arguments
// of any type here, since some models send an object as a string.
var metaSchemas = sync.OnceValue(func() map[string]*schema {
	all := map[string]*schema{}
	for name, raw := range map[string]string{
		callToolName:  `{"type":"object","properties":{"server":{"type":"string"},"tool":{"type":"string"},"arguments":{}},"required":["server","tool"],"additionalProperties":false}`,
		listToolsName: `{"type":"object","properties":{"server":{"type":["string","null"]},"query":{"type":["string","null"]},"offset":{"type":["integer","null"],"minimum":0,"maximum":1000000000}},"additionalProperties":false}`,
		readToolName:  `{"type":"object","properties":{"server":{"type":"string"},"tool":{"type":"string"}},"required":["server","tool"],"additionalProperties":false}`,
	} {
		s, err := compileSchema(json.RawMessage(raw))
		if err != nil {
			panic(err) // a constant's
		}
		all[name] = s
	}
	return all
})

// A reach is where a call goes.
type reach struct {
	tool   *Tool
	name   string          // of a server's tool, on the wire; "": the tool is what was asked for
	args   json.RawMessage // those of the call, or what was within them
	remote bool
}

// reach finds what a call of a name with some arguments goes to. The error is
// for the model; its code is that of a *reachError, else unknown_tool.
func (d *driver) reach(name string, args json.RawMessage) (*reach, error) {
	if t := d.tool(name); t != nil {
		return &reach{tool: t, args: args}, nil
	}
	if len(d.version.Spec.Connections) == 0 || d.set == nil {
		return nil, d.unknown(name)
	}
	switch name {
	case callToolName:
		return d.reachCall(args)
	case listToolsName:
		return &reach{tool: d.metaTool(name, d.set, listTools), args: args}, nil
	case readToolName:
		return &reach{tool: d.metaTool(name, d.set, readToolOf), args: args}, nil
	}
	if d.owns(name) {
		return d.reachThrough(name, args)
	}
	ref, ok := d.opened.eagerTool(name)
	if !ok {
		ref, ok = d.set.named(name) // listed, and called as if it were shown
	}
	if !ok {
		return nil, d.unknown(name)
	}
	return d.remote(ref, args)
}

// owns reports whether a name is that of a tool of the strategy's own.
func (d *driver) owns(name string) bool {
	if d.opened == nil || d.tool(name) != nil {
		return false
	}
	_, eager := d.opened.eagerTool(name)
	return !eager && slices.ContainsFunc(d.opened.Tools, func(def ToolDef) bool { return def.Name == name })
}

// A reachError says why a call goes nowhere.
type reachError struct{ code, message string }

func (e *reachError) Error() string { return e.message }

// unknown is what the model is told of a name that means nothing.
func (d *driver) unknown(name string) error {
	shown := surface(d.version, d.opened)
	known := make([]string, 0, len(shown))
	for _, def := range shown {
		if def.Name == name {
			return &reachError{CodeUnknownTool, fmt.Sprintf("The tool %q is not available on this worker.", name)}
		}
		known = append(known, def.Name)
	}
	return &reachError{CodeUnknownTool, unknownToolMessage(name, known)}
}

// reachCall is where call_tool goes.
func (d *driver) reachCall(args json.RawMessage) (*reach, error) {
	args, err := metaSchemas()[callToolName].prepare(callToolName, args)
	if err != nil {
		return nil, err
	}
	var in struct {
		ToolRef
		Arguments json.RawMessage `json:"arguments"`
	}
	if err := json.Unmarshal(args, &in); err != nil {
		return nil, err
	}
	return d.remote(in.ToolRef, in.Arguments)
}

// reachThrough is where a tool of the strategy's own goes.
func (d *driver) reachThrough(name string, args json.RawMessage) (*reach, error) {
	args, _, err := argumentsObject(args)
	if err != nil {
		return nil, &reachError{CodeArguments, fmt.Sprintf("Invalid arguments for %s: %v", name, err)}
	}
	strategy := d.rt.disclosures[d.opened.Strategy]
	if strategy == nil {
		return nil, d.unknown(name)
	}
	var to Route
	err = d.rt.guarded(d.ctx, "Disclosure", func() (err error) {
		to, err = strategy.Route(d.set.input(d.version.Spec.Disclosure, ModelLimits{}), name, args)
		return err
	})
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, &reachError{CodeUnknownTool, clipChars(err.Error(), maxModelMessage)}
	case err != nil:
		return nil, &reachError{CodeArguments, clipChars(err.Error(), maxModelMessage)}
	case to.List != nil:
		q, ts := *to.List, d.set
		return &reach{tool: &Tool{
			def: ToolDef{Name: name}, args: &schema{}, opts: ToolOptions{Idempotent: true, Pages: true},
			run: func(ctx context.Context, c *Call) (*Result, error) { return textOf(d.rt.list(ctx, c.Scope, ts, q)) },
		}, args: args}, nil
	}
	return d.remote(to.ToolRef, to.Arguments)
}

// serverOf finds a server by the name that the model gave.
func (ts *toolset) serverOf(name string) (*server, error) {
	sv := ts.server(name)
	if sv == nil {
		names := make([]string, len(ts.servers))
		for i, s := range ts.servers {
			names[i] = s.Name
		}
		return nil, &reachError{CodeUnknownTool, fmt.Sprintf("There is no server named %q. There are: %s.", clipChars(name, 100), strings.Join(nearest(name, names, 50), ", "))}
	}
	if sv.catalog == nil {
		return nil, &reachError{CodeUnreachable, fmt.Sprintf("%s is unavailable now: %s.", sv.Name, sv.down)}
	}
	return sv, nil
}

// entryOf finds a tool that may be used now, by the names that the model gave.
// A name as it is on the wire, or in a listing, is taken, too.
func (ts *toolset) entryOf(ref ToolRef) (*server, *catalogEntry, error) {
	sv, err := ts.serverOf(ref.Server)
	if err != nil {
		return nil, nil, err
	}
	e := sv.tool(ref.Tool)
	if e == nil {
		if named, ok := ts.named(ref.Tool); ok && named.Server == sv.Name {
			e = sv.tool(named.Tool)
		}
	}
	if e == nil {
		shown := func(e *catalogEntry) bool { return asLine(e.Name, 128) == ref.Tool }
		if i := slices.IndexFunc(sv.tools, shown); i >= 0 && !slices.ContainsFunc(sv.tools[i+1:], shown) {
			e = sv.tools[i] // and no other is shown so
		}
	}
	if e != nil {
		return sv, e, nil
	}
	if len(sv.tools) == 0 {
		return nil, nil, &reachError{CodeUnknownTool, fmt.Sprintf("There is no tool that may be used of %s.", sv.Name)}
	}
	names := make([]string, len(sv.tools))
	for i, e := range sv.tools {
		names[i] = e.Name
	}
	near := nearest(ref.Tool, names, 10)
	for i := range near {
		near[i] = asLine(near[i], 128)
	}
	return nil, nil, &reachError{CodeUnknownTool, clipChars(fmt.Sprintf("%s has no tool named %q that may be used. The nearest of %d: %s. %s finds others.", sv.Name, clipChars(ref.Tool, 100), len(names), strings.Join(near, ", "), listToolsName), maxModelMessage)}
}

// remote is a call of a server's tool.
func (d *driver) remote(ref ToolRef, args json.RawMessage) (*reach, error) {
	t, err := d.rt.remote(d.store, d.info.Scope, d.set, ref)
	if err != nil {
		return nil, err
	}
	return &reach{tool: t, name: t.def.Name, args: args, remote: true}, nil
}

// remote is a tool of a server, as a Tool that calls it.
func (r *Runtime) remote(ctx context.Context, s Scope, ts *toolset, ref ToolRef) (*Tool, error) {
	sv, e, err := ts.entryOf(ref)
	if err != nil {
		return nil, err
	}
	name := ToolName(sv.Name, e.Name)
	defs, err := r.catalogs.definitions(ctx, s.Tenant, sv.catalog, []string{e.Name})
	if err != nil {
		r.log.ErrorContext(ctx, "a tool's definition can't be read", "tenant", s.Tenant, "server", sv.Name, "tool", e.Name, "err", err)
		return nil, &reachError{CodeUnreachable, fmt.Sprintf("The definition of %s can't be read now; try again later.", name)}
	}
	def := &defs[0]
	t := &Tool{def: ToolDef{Name: name}, args: r.schemaOf(e.Def, def), opts: ToolOptions{Idempotent: sv.TrustAnnotations && (e.ReadOnly || e.Idempotent)}}
	t.run = func(ctx context.Context, c *Call) (*Result, error) { return r.call(ctx, s, sv, def, c) }
	return t, nil
}

// schemaOf compiles the schema of a server's tool, once a process. What can't
// be compiled is left to the server.
func (r *Runtime) schemaOf(of Digest, def *RemoteTool) *schema {
	r.mu.Lock()
	s, ok := r.schemas.get(of)
	r.mu.Unlock()
	if ok {
		return s
	}
	s, _ = compileTool(def.Schema)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.schemas.put(of, s, int64(8*len(def.Schema)+keptHead)) // compiled it takes several times its bytes
	return s
}

// call calls a tool of a server, if it may still be used.
func (r *Runtime) call(ctx context.Context, s Scope, sv *server, t *RemoteTool, c *Call) (*Result, error) {
	permit, err := r.permit(ctx, s)
	if err != nil {
		c.Log.ErrorContext(ctx, "policy", "err", err)
		return nil, &reachError{CodeRefused, fmt.Sprintf("Whether %s may be used can't be told now; it was not called.", ToolName(sv.Name, t.Name))}
	}
	if narrow(sv.Connection, permit, sv.catalog, t.Name) == nil {
		return nil, &reachError{CodeRefused, fmt.Sprintf("%s may not be used any more; it was not called.", ToolName(sv.Name, t.Name))}
	}
	var res *Result
	began := false
	err = r.session(ctx, s, sv.Connection, func(session Session, _ catalogKey) (err error) {
		res, err = session.CallTool(ctx, t, c)
		began = !errors.Is(err, ErrSessionLost) && !errors.Is(err, ErrUnauthorized) // of those it certainly had no effect
		return err
	})
	switch {
	case err == nil || ctx.Err() != nil:
		return res, err
	case !began:
		c.Log.WarnContext(ctx, "server", "server", sv.Name, "err", err)
		return nil, &reachError{CodeUnreachable, fmt.Sprintf("%s can't be reached now (%s); the tool was not called.", sv.Name, unreachable(err))}
	}
	return nil, &brokenCall{fmt.Sprintf("%s: %s", sv.Name, clipChars(err.Error(), 300)), err}
}

// A brokenCall is one whose server may have run the tool.
type brokenCall struct {
	message string
	err     error
}

func (e *brokenCall) Error() string { return e.message }
func (e *brokenCall) Unwrap() error { return e.err }

// metaTool makes a meta tool over a toolset, which stays as it is though the
// driver goes on.
func (d *driver) metaTool(name string, ts *toolset, run func(context.Context, *Runtime, *toolset, *Call) (*Result, error)) *Tool {
	return &Tool{
		def: ToolDef{Name: name}, args: metaSchemas()[name], opts: ToolOptions{Idempotent: true, Pages: true},
		run: func(ctx context.Context, c *Call) (*Result, error) { return run(ctx, d.rt, ts, c) },
	}
}

func listTools(ctx context.Context, r *Runtime, ts *toolset, c *Call) (*Result, error) {
	var q ListQuery
	if err := json.Unmarshal(c.Arguments, &q); err != nil {
		return nil, err
	}
	return textOf(r.list(ctx, c.Scope, ts, q))
}

// Bounds of a page of list_tools.
const (
	listedTools = 50
	listedLine  = 120 // characters of a description
	listedChars = 8000
)

func textOf(s string, err error) (*Result, error) {
	if err != nil {
		return nil, err
	}
	return Text(s), nil
}

// list answers list_tools.
func (r *Runtime) list(ctx context.Context, s Scope, ts *toolset, q ListQuery) (string, error) {
	var head string
	var lines []string
	switch {
	case q.Query != "":
		return r.search(ctx, s, ts, q)
	case q.Server == "":
		for _, sv := range ts.servers {
			what := fmt.Sprintf(" (%d tools)", len(sv.tools))
			if sv.catalog == nil {
				what = " (unavailable: " + sv.down + ")"
			}
			lines = append(lines, serverLine(sv.Name, sv.Description)+what)
		}
		head = fmt.Sprintf("%d servers", len(lines))
	default:
		sv, err := ts.serverOf(q.Server)
		if err != nil {
			return "", err
		}
		head = fmt.Sprintf("%s: %d tools", sv.Name, len(sv.tools))
		if sv.catalog.instructions != "" && q.Offset == 0 {
			head += "\nThe server says of itself: " + asLine(sv.catalog.instructions, maxInstructions)
		}
		for _, e := range sv.tools {
			lines = append(lines, toolLine(e.Name, e.Line))
		}
	}
	return page(head, lines[min(q.Offset, len(lines)):], q.Offset, len(lines)), nil
}

// maxInstructions bounds what is shown of a server's instructions.
const maxInstructions = 2000

// toolLine is a line of a listing.
func toolLine(name, line string) string {
	if line == "" {
		return "- " + asLine(name, 128)
	}
	return "- " + asLine(name, 128) + ": " + clipChars(line, listedLine)
}

// page is an answer of as many lines as fit of those that follow offset, of a
// total.
func page(head string, lines []string, offset, total int) string {
	var b strings.Builder
	b.WriteString(head)
	n, chars := 0, utf8.RuneCountInString(head)
	for ; n < min(len(lines), listedTools); n++ {
		if chars += utf8.RuneCountInString(lines[n]) + 1; chars > listedChars && n > 0 {
			break
		}
		b.WriteString("\n" + lines[n])
	}
	switch next := offset + n; {
	case offset >= total && offset > 0:
		fmt.Fprintf(&b, "\nNo more: offset %d is past the end, %d.", offset, total)
	case next < total:
		fmt.Fprintf(&b, "\n%d more: go on with offset %d.", total-next, next)
	}
	return b.String()
}

// readToolOf answers read_tool.
func readToolOf(ctx context.Context, r *Runtime, ts *toolset, c *Call) (*Result, error) {
	var ref ToolRef
	if err := json.Unmarshal(c.Arguments, &ref); err != nil {
		return nil, err
	}
	sv, e, err := ts.entryOf(ref)
	if err != nil {
		return nil, err
	}
	defs, err := r.catalogs.definitions(ctx, c.Run.Tenant, sv.catalog, []string{e.Name})
	if err != nil {
		return nil, err
	}
	text := toolText(sv.Name, &defs[0])
	if utf8.RuneCountInString(text) <= PageChars {
		return Text(text), nil
	}
	w, err := c.Attach("definition", "text/plain", nil)
	if err == nil {
		_, err = io.WriteString(w, text)
		err = errors.Join(err, w.Close())
	}
	if err != nil {
		return nil, err
	}
	return Text(shortToolText(sv.Name, &defs[0])), nil
}

// shortToolText is what a call needs first of a definition that is longer than
// a page: its required arguments, and the names of the others.
func shortToolText(server string, t *RemoteTool) string {
	var root struct {
		Properties map[string]json.RawMessage `json:"properties"`
		Required   []string                   `json:"required"`
	}
	_ = json.Unmarshal(t.Schema, &root) // of one that can't be read, nothing is shown but its begin
	var b strings.Builder
	fmt.Fprintf(&b, "server: %s\ntool: %s\n", server, asLine(t.Name, 128))
	if d := strings.TrimSpace(strings.ToValidUTF8(t.Description, "\ufffd")); d != "" {
		fmt.Fprintf(&b, "description: %s\n", clipChars(d, 2000))
	}
	if len(root.Properties) == 0 {
		fmt.Fprintf(&b, "schema of its arguments, which begins: %s\n", clipChars(string(t.Schema), listedChars/2))
	}
	room := listedChars - utf8.RuneCountInString(b.String())
	names := slices.Sorted(maps.Keys(root.Properties))
	for _, required := range []bool{true, false} {
		var left []string
		for _, name := range names {
			if slices.Contains(root.Required, name) != required {
				continue
			}
			line := fmt.Sprintf("argument %q: %s\n", name, root.Properties[name])
			if required {
				line = "required " + line
			}
			if n := utf8.RuneCountInString(line); n <= room && (required || n < 400) {
				b.WriteString(line)
				room -= n
			} else {
				left = append(left, strconv.Quote(asLine(name, 128)))
			}
		}
		if len(left) > 0 {
			what := "further arguments"
			if required {
				what = "further required arguments"
			}
			line := clipChars(what+": "+strings.Join(left, ", "), max(room, 400)) + "\n"
			b.WriteString(line)
			room -= utf8.RuneCountInString(line)
		}
	}
	b.WriteString("The whole definition is attached; search it for what is missing here.")
	return b.String()
}

// toolText is a definition as the model reads it.
func toolText(server string, t *RemoteTool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "server: %s\ntool: %s\n", server, asLine(t.Name, 128))
	if d := strings.TrimSpace(strings.ToValidUTF8(t.Description, "\ufffd")); d != "" {
		fmt.Fprintf(&b, "description: %s\n", d)
	}
	fmt.Fprintf(&b, "schema of its arguments: %s", t.Schema)
	if len(t.Output) > 0 {
		fmt.Fprintf(&b, "\nschema of its result: %s", t.Output)
	}
	return b.String()
}
