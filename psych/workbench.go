package psych

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// A ServerReport says what a Scope may use of one connection, for a person.
type ServerReport struct {
	Server       string        `json:"server"`
	Down         string        `json:"down,omitempty"`   // why there is no catalogue
	Catalog      Digest        `json:"catalog,omitzero"` // version of the catalogue
	Instructions string        `json:"instructions,omitempty"`
	Tools        []ToolReport  `json:"tools"`             // all that the server offers, sorted by name
	Dropped      []DroppedTool `json:"dropped,omitempty"` // what could not be taken into the catalogue
}

// A ToolReport is a tool of a server.
type ToolReport struct {
	Name      string   `json:"name"`
	Wire      string   `json:"wire"` // as a model is shown it
	Line      string   `json:"line,omitempty"`
	Chars     int      `json:"chars"`               // of its definition, as it is shown
	Permitted bool     `json:"permitted"`           // by the Spec and the Policy
	Changed   []string `json:"changed,omitempty"`   // what was normalised so that providers take it
	Withheld  string   `json:"withheld,omitempty"`  // why its definition can't be shown; it is reached by the meta tools
	Unchecked string   `json:"unchecked,omitempty"` // why its arguments are left to the server to validate
}

// A DroppedTool is one that a server listed and that no catalogue can hold.
type DroppedTool struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// A DisclosureReport is what a strategy adds to each request of a Run.
type DisclosureReport struct {
	Strategy string    `json:"strategy"`
	Eager    []ToolRef `json:"eager"`  // tools that are shown by their definitions
	Listed   int       `json:"listed"` // lines in the system prompt
	Tools    int       `json:"tools"`  // definitions, those of the meta tools and the strategy's own too
	Chars    int       `json:"chars"`  // of all of it, as encoded for the model
}

// check refuses a Spec and a Scope before anything is asked.
func (r *Runtime) checkUse(s Scope, spec *Spec) error {
	return errors.Join(s.check(), r.checkSpec(spec))
}

// Servers reads what a Scope may use of the connections of a Spec, and how each
// tool would be shown to a model with these limits. Catalogues that are stored
// and whose time is not over are believed; other servers are asked.
func (r *Runtime) Servers(ctx context.Context, s Scope, spec *Spec, limits ModelLimits) ([]ServerReport, error) {
	if err := r.checkUse(s, spec); err != nil {
		return nil, err
	}
	ts, err := r.resolve(ctx, s, spec.Connections, true)
	if err != nil {
		return nil, err
	}
	reports := make([]ServerReport, len(ts.servers))
	for i, sv := range ts.servers {
		rep := &reports[i]
		*rep = ServerReport{Server: sv.Name, Down: sv.down, Tools: []ToolReport{}}
		if sv.catalog == nil {
			continue
		}
		rep.Catalog, rep.Instructions, rep.Dropped = sv.catalog.version(), sv.catalog.instructions, sv.catalog.Dropped
		entries := sv.catalog.entries()
		names := make([]string, len(entries))
		for j := range entries {
			names[j] = entries[j].Name
		}
		defs, err := r.catalogs.definitions(ctx, s.Tenant, sv.catalog, names)
		if err != nil {
			return nil, err
		}
		for j := range defs {
			e := &entries[j]
			t := ToolReport{Name: e.Name, Wire: ToolName(sv.Name, e.Name), Line: e.Line, Permitted: sv.tool(e.Name) != nil}
			def := defs[j].ToolDef
			def.Name = t.Wire
			var shown ToolDef
			shown, t.Changed, t.Withheld = gate(def, limits)
			t.Chars = defChars(&shown)
			if _, err := compileTool(defs[j].Schema); err != nil {
				t.Unchecked = err.Error()
			}
			rep.Tools = append(rep.Tools, t)
		}
	}
	return reports, nil
}

// Disclose measures what the strategy of a Spec adds to each request for a
// Codec.
func (r *Runtime) Disclose(ctx context.Context, s Scope, spec *Spec, c Codec) (*DisclosureReport, error) {
	if err := r.checkUse(s, spec); err != nil {
		return nil, err
	}
	ts, err := r.resolve(ctx, s, spec.Connections, false)
	if err != nil {
		return nil, err
	}
	with, without := &Version{Spec: *spec}, &Version{Spec: *spec}
	without.Spec.Connections = nil
	doc, err := r.decide(ctx, s.Tenant, spec, ts, c.Limits(), surface(with, nil))
	if err != nil {
		return nil, err
	}
	all, err := newOpening(c, with, doc)
	if err != nil {
		return nil, err
	}
	base, err := newOpening(c, without, &openingDoc{})
	if err != nil {
		return nil, err
	}
	rep := &DisclosureReport{
		Strategy: doc.Strategy, Eager: []ToolRef{}, Listed: len(doc.Lines), Tools: len(surface(with, doc)) - len(surface(without, nil)),
		Chars: all.tools.Chars + all.static.Chars - base.tools.Chars - base.static.Chars,
	}
	for _, t := range doc.Eager {
		rep.Eager = append(rep.Eager, t.ToolRef)
	}
	return rep, nil
}

// Strategies lists the disclosure strategies that a Spec may name.
func (r *Runtime) Strategies() []string {
	names := make([]string, 0, len(r.disclosures))
	for name := range r.disclosures {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// FindTools searches the tools that may be used, as list_tools does with a
// query: at most limit of them, behind q.Offset.
func (r *Runtime) FindTools(ctx context.Context, s Scope, spec *Spec, q ListQuery, limit int) (*FoundTools, error) {
	if err := errors.Join(r.checkUse(s, spec), CheckLimit(limit)); err != nil {
		return nil, err
	}
	if q.Query == "" || q.Offset < 0 {
		return nil, fmt.Errorf("psych: a search wants a query, and an offset from 0: %w", ErrInvalid)
	}
	ts, err := r.resolve(ctx, s, spec.Connections, false)
	if err != nil {
		return nil, err
	}
	return r.find(ctx, s, ts, q, limit)
}

// CallTool calls a tool of a connection outside of any Run, with the same
// narrowing and validation: a tool that may not be used, an unknown one and
// arguments that don't match are ErrInvalid, and the server is not called. The
// caller reads and closes the Result's Body; what the tool attaches beside it is
// let go.
func (r *Runtime) CallTool(ctx context.Context, s Scope, spec *Spec, ref ToolRef, args json.RawMessage) (*Result, error) {
	if err := r.checkUse(s, spec); err != nil {
		return nil, err
	}
	ts, err := r.resolve(ctx, s, spec.Connections, false)
	if err != nil {
		return nil, err
	}
	t, err := r.remote(ctx, s, ts, ref)
	if err == nil {
		args, err = t.prepare(args)
	}
	if err != nil {
		return nil, fmt.Errorf("psych: %w: %w", ErrInvalid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(spec.Limits.withDefaults().ToolTimeoutSeconds)*time.Second)
	res, err := t.invoke(ctx, &Call{ToolCall: ToolCall{ID: "c1_1", Name: t.def.Name, Arguments: args}, Scope: s, IdempotencyKey: r.o.NewID()})
	if err != nil {
		cancel()
		return nil, err
	}
	if res.Body == nil {
		res.Body = strings.NewReader("")
	}
	res.Body = &endingBody{res.Body, cancel}
	return res, nil
}

// An endingBody ends the context of its call when it is closed.
type endingBody struct {
	io.Reader
	end func()
}

func (b *endingBody) Close() (err error) {
	if c, ok := b.Reader.(io.Closer); ok {
		err = c.Close()
	}
	b.end()
	return err
}

// DiffCatalogs compares two versions of a tenant's catalogues.
func (r *Runtime) DiffCatalogs(ctx context.Context, tenant string, old, new Digest) (added, removed, changed []string, err error) {
	if err := CheckTenant(tenant); err != nil {
		return nil, nil, nil, err
	}
	var both [2]*catalog
	for i, d := range []Digest{old, new} {
		if both[i], err = r.catalogs.past(ctx, tenant, d); err != nil {
			return nil, nil, nil, err
		}
	}
	diff := diffCatalogs(both[0], both[1])
	return diff.Added, diff.Removed, diff.Changed, nil
}
