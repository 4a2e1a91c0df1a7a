package psych

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
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

	Own       []ToolDef       `json:"own,omitempty"`       // the strategy's own, sorted by name
	Decisions json.RawMessage `json:"decisions,omitempty"` // what it says of itself
}

// checkUse refuses a Spec and a Scope before anything is asked. It bounds no
// number of connections: a person may look into more of them than a Run has.
func (r *Runtime) checkUse(s Scope, spec *Spec) error {
	if spec == nil || len(spec.Connections) <= maxConnections {
		return errors.Join(s.check(), r.checkSpec(spec))
	}
	errs := []error{s.check()}
	names := map[string]bool{}
	for part := range slices.Chunk(spec.Connections, maxConnections) {
		some := *spec
		some.Connections = part
		errs = append(errs, r.checkSpec(&some))
		for i := range part {
			names[part[i].Name] = true
		}
	}
	if len(names) < len(spec.Connections) {
		errs = append(errs, fmt.Errorf("psych: two connections have one name: %w", ErrInvalid))
	}
	return errors.Join(errs...)
}

// told gives what a model would be told of a call that goes nowhere a sentinel:
// ErrUnavailable for a server that can't be reached, else ErrInvalid.
func told(err error) error {
	if to := (*reachError)(nil); errors.As(err, &to) {
		if to.code == CodeUnreachable {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return err
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
		Chars:     all.tools.Chars + all.static.Chars - base.tools.Chars - base.static.Chars,
		Decisions: doc.Decisions,
	}
	for _, t := range doc.Eager {
		rep.Eager = append(rep.Eager, t.ToolRef)
	}
	for _, def := range doc.Tools {
		if _, ok := doc.eagerTool(def.Name); !ok {
			rep.Own = append(rep.Own, def)
		}
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
// query: at most limit of them, behind q.Offset. A server that the Spec does not
// name is ErrInvalid, one that can't be reached ErrUnavailable.
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
	found, err := r.find(ctx, s, ts, q, limit)
	return found, told(err)
}

// FoundPage is how many tools an answer of list_tools to a query holds.
const FoundPage = foundTools

// ListTools returns what list_tools answers a model, with the errors of
// FindTools.
func (r *Runtime) ListTools(ctx context.Context, s Scope, spec *Spec, q ListQuery) (string, error) {
	if err := r.checkUse(s, spec); err != nil {
		return "", err
	}
	if q.Offset < 0 {
		return "", fmt.Errorf("psych: a list begins at the offset %d: want one from 0: %w", q.Offset, ErrInvalid)
	}
	ts, err := r.resolve(ctx, s, spec.Connections, false)
	if err != nil {
		return "", err
	}
	text, err := r.list(ctx, s, ts, q)
	return text, told(err)
}

// ReadTool returns the definition of a tool as read_tool answers a model, and
// all of it, which is more where shown is cut to a page. A tool that may not be
// used and an unknown one are ErrInvalid, a server that can't be reached is
// ErrUnavailable.
func (r *Runtime) ReadTool(ctx context.Context, s Scope, spec *Spec, ref ToolRef) (shown, whole string, err error) {
	if err := r.checkUse(s, spec); err != nil {
		return "", "", err
	}
	ts, err := r.resolve(ctx, s, spec.Connections, false)
	if err != nil {
		return "", "", err
	}
	sv, e, err := ts.entryOf(ref)
	if err != nil {
		return "", "", told(err)
	}
	defs, err := r.catalogs.definitions(ctx, s.Tenant, sv.catalog, []string{e.Name})
	if err != nil {
		return "", "", err
	}
	whole = toolText(sv.Name, &defs[0])
	if shown = whole; utf8.RuneCountInString(whole) > PageChars {
		shown = shortToolText(sv.Name, &defs[0])
	}
	return shown, whole, nil
}

// CallTool calls a tool of a connection outside of any Run, with the same
// narrowing and validation: a tool that may not be used, an unknown one and
// arguments that don't match are ErrInvalid, a server that can't be reached is
// ErrUnavailable; with both the tool is not called. The caller reads and closes
// the answer's Body.
func (r *Runtime) CallTool(ctx context.Context, s Scope, spec *Spec, ref ToolRef, args json.RawMessage) (*ToolAnswer, error) {
	if err := r.checkUse(s, spec); err != nil {
		return nil, err
	}
	ts, err := r.resolve(ctx, s, spec.Connections, false)
	if err != nil {
		return nil, err
	}
	t, err := r.remote(ctx, s, ts, ref)
	if err != nil {
		return nil, told(err)
	}
	if args, err = t.prepare(args); err != nil {
		return nil, fmt.Errorf("psych: %w: %w", ErrInvalid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(spec.Limits.withDefaults().ToolTimeoutSeconds)*time.Second)
	held := &heldOutputs{room: MaxHeldAttachments}
	res, err := t.invoke(ctx, &Call{ToolCall: ToolCall{ID: "c1_1", Name: t.def.Name, Arguments: args}, Scope: s, IdempotencyKey: r.o.NewID(), Log: r.log, outputs: held})
	if err != nil {
		cancel()
		return nil, told(err)
	}
	if res.Body == nil {
		res.Body = strings.NewReader("")
	}
	res.Body = &endingBody{res.Body, cancel}
	return &ToolAnswer{res, held}, nil
}

// MaxHeldAttachments bounds what a ToolAnswer holds of all its attachments, in
// bytes.
const MaxHeldAttachments = 64 << 20

// A ToolAnswer is what a tool answered outside of a Run.
type ToolAnswer struct {
	*Result
	held *heldOutputs
}

// Attachments returns what the tool attached beside its Result, in the order in
// which it opened them. It is whole once Body was read to its end; what was still
// open then is as far as it got.
func (a *ToolAnswer) Attachments() []HeldAttachment {
	a.held.mu.Lock()
	defer a.held.mu.Unlock()
	list := make([]HeldAttachment, len(a.held.list))
	for i, out := range a.held.list {
		list[i] = out.at
		list[i].Data = bytes.Clone(out.at.Data)
	}
	return list
}

// A HeldAttachment is an attachment of a ToolAnswer.
type HeldAttachment struct {
	Name        string
	ContentType string
	Data        []byte
	Observed    int64 // bytes that the tool wrote: more than Data holds where the rest was let go
}

// heldOutputs keeps the attachments of a call in memory.
type heldOutputs struct {
	mu   sync.Mutex
	room int64
	list []*heldOutput
}

type heldOutput struct {
	s      *heldOutputs
	at     HeldAttachment
	max    int64 // of its own; 0: none
	closed bool
}

func (s *heldOutputs) open(name, contentType string, o AttachOptions) (io.WriteCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) == MaxAttachments {
		return nil, tooManyAttachments(name)
	}
	out := &heldOutput{s: s, at: HeldAttachment{Name: shortName(name), ContentType: contentType}, max: o.MaxBytes}
	s.list = append(s.list, out)
	return out, nil
}

func (out *heldOutput) Write(p []byte) (int, error) {
	out.s.mu.Lock()
	defer out.s.mu.Unlock()
	if out.closed {
		return 0, fmt.Errorf("psych: attachment %q is closed: %w", out.at.Name, io.ErrClosedPipe)
	}
	n := len(p)
	if out.at.Observed == int64(len(out.at.Data)) {
		room := out.s.room
		if out.max > 0 {
			room = min(room, out.max-int64(len(out.at.Data)))
		}
		keep := p[:min(int64(n), room)]
		out.at.Data = append(out.at.Data, keep...)
		out.s.room -= int64(len(keep))
		if len(keep) < n && utf8.Valid(wholeChars(out.at.Data)) {
			out.at.Data = wholeChars(out.at.Data)
		}
	}
	out.at.Observed += int64(n)
	return n, nil
}

func (out *heldOutput) Close() error {
	out.s.mu.Lock()
	defer out.s.mu.Unlock()
	out.closed = true
	return nil
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
