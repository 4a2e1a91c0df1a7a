package psych

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/psych-go/psych-go/psych/internal/strictjson"
)

// openingFormat counts the formats of the document below.
const openingFormat = 1

// An openingDoc is what servers add to tools and zone 1, as a document: what a
// Run was opened with is sent until it is opened anew, whatever servers do.
// Runs with the same opening share it.
type openingDoc struct {
	Format    int             `json:"format"`
	Strategy  string          `json:"strategy"`
	Tools     []ToolDef       `json:"tools,omitempty"` // sorted by name
	Eager     []eagerTool     `json:"eager,omitempty"` // those of Tools that are servers' own, sorted by name
	Lines     []string        `json:"lines,omitempty"`
	Refused   []refusedTool   `json:"refused,omitempty"` // that the strategy would have shown, and the provider refuses
	Decisions json.RawMessage `json:"decisions,omitempty"`
}

type eagerTool struct {
	Name string `json:"name"` // on the wire
	ToolRef
}

type refusedTool struct {
	ToolRef
	Reason string `json:"reason"`
}

// eagerTool finds the tool of a server that is shown under a name.
func (o *openingDoc) eagerTool(name string) (ToolRef, bool) {
	i, ok := slices.BinarySearchFunc(o.Eager, name, func(t eagerTool, name string) int { return strings.Compare(t.Name, name) })
	if !ok {
		return ToolRef{}, false
	}
	return o.Eager[i].ToolRef, true
}

// decide makes the opening of what a toolset holds now, beside tools that are
// shown anyway.
func (r *Runtime) decide(ctx context.Context, tenant string, spec *Spec, ts *toolset, limits ModelLimits, others []ToolDef) (*openingDoc, error) {
	name := spec.Disclosure.withDefaults().Strategy
	strategy := r.disclosures[name]
	if strategy == nil {
		return nil, fmt.Errorf("psych: this worker has no disclosure strategy %q: %w", name, ErrInvalid)
	}
	in := ts.input(spec.Disclosure, limits)
	if limits.Tools > 0 {
		in.Limits.Tools = max(1, limits.Tools-len(others))
	}
	var surface *Surface
	err := r.guarded(ctx, "Disclosure", func() (err error) {
		if surface, err = strategy.Open(in); err == nil && surface == nil {
			err = errors.New("it gave neither a Surface nor an error")
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("psych: disclosure strategy %q: %w: %w", name, ErrInvalid, err) // of the same it says the same
	}
	o := &openingDoc{Format: openingFormat, Strategy: name, Decisions: surface.Decisions}
	for _, def := range surface.Tools {
		shown, _, reason := gate(def, limits)
		if reason != "" {
			return nil, fmt.Errorf("psych: disclosure strategy %q shows the tool %.80q, which a provider refuses: %s: %w", name, def.Name, reason, ErrInvalid)
		}
		o.Tools = append(o.Tools, shown)
	}
	room := limits.Tools - len(others) - len(surface.Tools)
	listed, taken := map[string]bool{}, map[string]bool{}
	for _, def := range slices.Concat(others, o.Tools) {
		taken[def.Name] = true
	}
	for _, s := range surface.Listed {
		if ts.server(s) == nil {
			return nil, fmt.Errorf("psych: disclosure strategy %q lists %.80q, which is no connection: %w", name, s, ErrInvalid)
		}
		listed[s] = true
	}
	for _, sv := range ts.servers {
		var names []string
		for _, ref := range surface.Eager {
			if ref.Server == sv.Name {
				if sv.tool(ref.Tool) == nil {
					return nil, fmt.Errorf("psych: disclosure strategy %q shows %.80q of %q, which may not be used: %w", name, ref.Tool, ref.Server, ErrAccessDenied)
				}
				names = append(names, ref.Tool)
			}
		}
		slices.Sort(names)
		names = slices.Compact(names)
		if len(names) == 0 {
			continue
		}
		defs, err := r.catalogs.definitions(ctx, tenant, sv.catalog, names)
		if err != nil {
			return nil, err
		}
		for i := range defs {
			def := defs[i].ToolDef
			def.Name = ToolName(sv.Name, def.Name)
			shown, _, reason := gate(def, limits)
			if reason == "" && limits.Tools > 0 && len(o.Eager) >= room {
				reason = fmt.Sprintf("the provider takes %d tools at most", limits.Tools)
			}
			if reason == "" && taken[shown.Name] { // a server may choose its names so that their hashes are one
				reason = "another tool has its name on the wire, " + shown.Name
			}
			ref := ToolRef{sv.Name, defs[i].Name}
			if reason != "" {
				o.Refused = append(o.Refused, refusedTool{ref, reason})
				listed[sv.Name] = true // it is to be found all the same
				continue
			}
			taken[shown.Name] = true
			o.Eager = append(o.Eager, eagerTool{shown.Name, ref})
			o.Tools = append(o.Tools, shown)
		}
	}
	for _, sv := range ts.servers {
		if listed[sv.Name] {
			o.Lines = append(o.Lines, serverLine(sv.Name, sv.Description))
		}
	}
	slices.SortFunc(o.Eager, func(a, b eagerTool) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(o.Tools, func(a, b ToolDef) int { return strings.Compare(a.Name, b.Name) })
	clear(taken)
	for _, def := range slices.Concat(others, o.Tools) {
		if !legalToolName(def.Name) || taken[def.Name] {
			return nil, fmt.Errorf("psych: disclosure strategy %q shows a tool as %.80q: want a name that ToolName makes, once: %w", name, def.Name, ErrInvalid)
		}
		taken[def.Name] = true
	}
	return o, nil
}

// encode returns the document and its digest.
func (o *openingDoc) encode() (doc []byte, d Digest, err error) {
	if doc, err = json.Marshal(o); err == nil {
		doc, err = strictjson.Canonical(doc)
	}
	if err != nil {
		return nil, Digest{}, fmt.Errorf("psych: encode an opening: %w", err)
	}
	return doc, sha256.Sum256(doc), nil
}

// open stores the opening of what a toolset holds now.
func (r *Runtime) open(ctx context.Context, tenant string, spec *Spec, ts *toolset, limits ModelLimits, others []ToolDef) (Digest, *openingDoc, error) {
	o, err := r.decide(ctx, tenant, spec, ts, limits, others)
	if err != nil {
		return Digest{}, nil, err
	}
	doc, d, err := o.encode()
	if err != nil {
		return Digest{}, nil, err
	}
	r.mu.Lock()
	known, ok := r.opened.get(versionKey{tenant, d})
	r.mu.Unlock()
	if ok {
		return d, known, nil
	}
	if err := repeat(ctx, func() error { return r.store.PutDoc(ctx, tenant, d, doc) }); err != nil {
		return Digest{}, nil, fmt.Errorf("psych: store an opening: %w", err)
	}
	o, err = r.keepOpening(tenant, d, doc) // as another process will read it
	return d, o, err
}

// openingAt reads an opening, once a process.
func (r *Runtime) openingAt(ctx context.Context, tenant string, d Digest) (*openingDoc, error) {
	if d.IsZero() {
		return &openingDoc{}, nil
	}
	r.mu.Lock()
	o, ok := r.opened.get(versionKey{tenant, d})
	r.mu.Unlock()
	if ok {
		return o, nil
	}
	doc, err := r.store.GetDoc(ctx, tenant, d)
	if err != nil {
		return nil, fmt.Errorf("psych: read opening %s: %w", d, err)
	}
	return r.keepOpening(tenant, d, doc)
}

func (r *Runtime) keepOpening(tenant string, d Digest, doc []byte) (*openingDoc, error) {
	o := &openingDoc{}
	if err := json.Unmarshal(doc, o); err != nil {
		return nil, fmt.Errorf("psych: opening %s: %w: %w", d, ErrInvalid, err)
	}
	if o.Format > openingFormat {
		return nil, &UnsupportedError{What: fmt.Sprintf("format %d of an opening", o.Format)}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opened.put(versionKey{tenant, d}, o, int64(len(doc)+keptHead))
	return o, nil
}

// serversBlock is the block of zone 1 that names the servers whose tools are
// not all shown.
func serversBlock(lines []string) string {
	return "Servers with tools that are not all listed. Find one with " + listToolsName + ", read its arguments with " + readToolName +
		", call it with " + callToolName + ":\n" + strings.Join(lines, "\n")
}

// state is what a model call records of a server.
func (s *server) state() ServerState {
	x := ServerState{Server: s.Name, Down: s.down}
	if s.catalog == nil {
		return x
	}
	x.Catalog, x.Tools = s.catalog.version(), len(s.tools)
	if x.Tools < len(s.catalog.entries()) {
		x.Permitted = namesOf(s.tools, func(e **catalogEntry) string { return (*e).Name })
	}
	return x
}

// namesOf tells sets of tools apart.
func namesOf[T any](tools []T, name func(*T) string) Digest {
	names := make([]string, len(tools))
	for i := range tools {
		names[i] = name(&tools[i])
	}
	return digest(names...)
}

// tellServers compares a toolset with what the model was told of servers, and
// returns what to record and what to tell. As an exchange begins it is told of
// every server that can't be reached.
func (d *driver) tellServers(ts *toolset, begins bool) (states []ServerState, news []string) {
	for _, sv := range ts.servers {
		told, known := d.state.servers[sv.Name]
		now := sv.state()
		if !known || told != now {
			states = append(states, now)
		}
		switch {
		case now.Down != "":
			if begins || told.Down != now.Down {
				news = append(news, fmt.Sprintf("Unavailable: %s (%s)", sv.Name, now.Down))
			}
		case !known:
		case told.Down != "":
			news = append(news, "Available: "+sv.Name+" (its tools can be found now)")
		case told != now:
			if changes := d.changes(sv, &told); changes != "" {
				news = append(news, "Changed: "+sv.Name+": "+changes)
			}
		}
	}
	return states, news
}

// changes says what of a server's tools is not as the model was told; "" if
// what is not the same is no tool that may be used, such as for how long a list
// holds.
func (d *driver) changes(sv *server, told *ServerState) string {
	const look = "what may be used of it is not the same; look again with " + listToolsName
	if told.Catalog == sv.catalog.version() {
		return look
	}
	old, err := d.rt.catalogs.past(d.store, d.key.Tenant, told.Catalog)
	if err != nil {
		d.log.WarnContext(d.ctx, "a past catalogue can't be read", "server", sv.Name, "err", err)
		return look
	}
	diff := diffCatalogs(old, sv.catalog)
	usable := func(names []string) (shown []string) {
		for _, name := range names {
			if sv.tool(name) != nil {
				shown = append(shown, name)
			}
		}
		return shown
	}
	var gone []string
	for _, name := range diff.Removed {
		if sv.allows(name) && (sv.permit == nil || sv.permit(sv.Connection, name)) {
			gone = append(gone, name)
		}
	}
	var says []string
	for _, part := range []struct {
		what  string
		names []string
	}{{"new", usable(diff.Added)}, {"gone", gone}, {"changed", usable(diff.Changed)}} {
		if len(part.names) > 0 {
			says = append(says, part.what+" "+someNames(part.names))
		}
	}
	if len(says) > 0 {
		return strings.Join(says, "; ")
	}
	before := told.Permitted
	if before.IsZero() {
		before = namesOf(old.Tools, func(e *catalogEntry) string { return e.Name })
	}
	if before == namesOf(sv.tools, func(e **catalogEntry) string { return (*e).Name }) {
		return ""
	}
	return look
}

// someNames lists the first names, each on one line and bounded, and says how
// many more there are.
func someNames(names []string) string {
	const most = 8
	shown := make([]string, 0, most)
	for _, name := range names[:min(most, len(names))] {
		shown = append(shown, asLine(name, maxToolName))
	}
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(shown, ", "), more)
	}
	return strings.Join(shown, ", ")
}

// reopens reports whether the Run is opened anew, if what servers offer has
// changed, though nothing forces it to: nothing is lost by it.
func (d *driver) reopens() bool {
	s := d.state
	return d.full || !s.exchange.begun && !s.called.IsZero() && d.now().Sub(s.called) > max(keptLong, d.keepsCache())
}

// servers brings the toolset and the opening up to a new turn. Where a server
// that the Spec can't go without is out of reach it closes the exchange.
func (d *driver) servers() (closed bool, err error) {
	s, spec := d.state, &d.version.Spec
	if len(spec.Connections) == 0 {
		d.opened = &openingDoc{}
		return false, nil
	}
	turn := s.nextTurn()
	if d.set == nil || d.setTurn != turn {
		if err := d.resolve(!s.exchange.begun); err != nil {
			return false, err
		}
		d.setTurn = turn
	}
	for _, sv := range d.set.servers {
		if sv.down != "" && !sv.Optional && !sv.barred {
			return true, d.close(StatusFailed, CodeUnreachable, fmt.Sprintf("the server %q is not optional, and there is no catalogue of it: %s", sv.Name, sv.down))
		}
	}
	if s.opening.IsZero() || d.reopens() || encodingID(d.model.Codec()) != s.wire.codec { // another provider refuses other tools
		limits := d.model.Codec().Limits()
		d.openedAt, d.opened, err = d.rt.open(d.store, d.key.Tenant, spec, d.set, limits, surface(d.version, nil))
		if errors.Is(err, ErrInvalid) || errors.Is(err, ErrAccessDenied) {
			return true, d.close(StatusFailed, "disclosure", err.Error())
		}
		return false, err
	}
	d.openedAt = s.opening
	d.opened, err = d.rt.openingAt(d.store, d.key.Tenant, s.opening)
	return false, err
}

// resolve makes the toolset, and keeps lease and inbox in sight while servers
// are asked, whose context ends early for an abort. What has not returned a
// grace after that is left behind, and what it makes is nobody's.
func (d *driver) resolve(begins bool) error {
	ctx, cancel := context.WithCancelCause(d.ctx)
	defer cancel(nil)
	in := make(chan event, 1)
	scope, connections := d.info.Scope, d.version.Spec.Connections
	go func() {
		set, err := d.rt.resolve(ctx, scope, connections, begins)
		in <- event{done: &besideEnd{set, err}}
	}()
	e, err := d.wait(in, nil)
	if err == nil {
		d.set = e.done.set
		return e.done.err
	}
	cancel(err)
	late := time.NewTimer(d.grace())
	defer late.Stop()
	select {
	case <-in:
	case <-late.C:
		d.log.ErrorContext(d.ctx, "left behind: what asks servers does not heed its context")
	}
	return err
}

type besideEnd struct {
	set *toolset
	err error
}
