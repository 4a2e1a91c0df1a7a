package psych

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Policy narrows what a tenant may use of the servers that its Specs name.
// Its methods may be called concurrently.
type Policy interface {
	// Filter is asked as each turn begins, and again before each call. The
	// function that it returns is pure, and is used for that moment alone. An
	// error is not taken for a permission. It returns when ctx ends; a second
	// later it is left behind, and what it returns is dropped.
	Filter(ctx context.Context, s Scope) (Permit, error)
}

// A Permit reports whether a tool of a connection may be used, and for the tool
// "" whether the server may be connected to, and sent its credential, at all.
// Names of connections are the Spec's own: a Permit that must know the server
// looks at the URL.
type Permit func(c *Connection, tool string) bool

// allows reports whether the Spec grants a tool.
func (c *Connection) allows(tool string) bool {
	matches := func(p string) bool { return matchPattern(p, tool) }
	return (len(c.Allow) == 0 || slices.ContainsFunc(c.Allow, matches)) && !slices.ContainsFunc(c.Deny, matches)
}

// narrow finds a tool of a connection, if it may be used: what the server
// offers, the Spec grants and the tenant's Policy permits. Listing and calling
// both ask it, and nothing else decides.
func narrow(c *Connection, permit Permit, offered *catalog, tool string) *catalogEntry {
	if offered == nil || !c.allows(tool) || permit != nil && (!permit(c, "") || !permit(c, tool)) {
		return nil
	}
	return offered.find(tool)
}

// permit asks the Policy.
func (r *Runtime) permit(ctx context.Context, s Scope) (Permit, error) {
	if r.o.Policy == nil {
		return nil, nil
	}
	p, err := heeding(ctx, r, "Policy", func() (Permit, error) { return r.o.Policy.Filter(ctx, s) }, nil)
	if err != nil {
		return nil, fmt.Errorf("psych: the policy of tenant %q: %w", s.Tenant, err)
	}
	if p == nil {
		return nil, fmt.Errorf("psych: the policy of tenant %q gave neither a Permit nor an error: %w", s.Tenant, ErrAccessDenied)
	}
	return func(c *Connection, tool string) (ok bool) {
		err := r.guarded(ctx, "Permit", func() error {
			ok = p(c, tool)
			return nil
		})
		return ok && err == nil
	}, nil
}

// A toolset is what a Scope may use of the connections of a Spec, as of one
// moment.
type toolset struct {
	servers []*server // sorted by name

	once sync.Once
	wire map[string]ToolRef // made once
}

// A server is a connection as it was resolved.
type server struct {
	*Connection
	key     catalogKey
	catalog *catalog        // nil: none is stored
	tools   []*catalogEntry // that may be used, sorted by name
	down    string          // why there are none; "" if there is a catalogue
	barred  bool            // by the Policy: it is not out of reach
	permit  Permit          // as of then; nil permits all
}

// server finds a server by the name of its connection.
func (ts *toolset) server(name string) *server {
	i, ok := slices.BinarySearchFunc(ts.servers, name, func(s *server, name string) int { return strings.Compare(s.Name, name) })
	if !ok {
		return nil
	}
	return ts.servers[i]
}

func (s *server) tool(name string) *catalogEntry {
	i, ok := slices.BinarySearchFunc(s.tools, name, func(e *catalogEntry, name string) int { return strings.Compare(e.Name, name) })
	if !ok {
		return nil
	}
	return s.tools[i]
}

// named finds the tool that has a name on the wire.
func (ts *toolset) named(wire string) (ToolRef, bool) {
	ts.once.Do(func() {
		ts.wire = map[string]ToolRef{}
		for _, s := range ts.servers {
			for _, e := range s.tools {
				wire, ref := ToolName(s.Name, e.Name), ToolRef{s.Name, e.Name}
				if _, taken := ts.wire[wire]; taken {
					ref = ToolRef{} // a name of two tools means neither
				}
				ts.wire[wire] = ref
			}
		}
	})
	ref := ts.wire[wire]
	return ref, ref != ToolRef{}
}

// input is what a strategy is asked with.
func (ts *toolset) input(d DisclosureSpec, limits ModelLimits) *DisclosureInput {
	d = d.withDefaults()
	in := &DisclosureInput{Budget: d.Budget, Tools: d.Tools, Limits: limits, Servers: make([]ServerTools, len(ts.servers))}
	for i, s := range ts.servers {
		tools := make([]ToolSummary, len(s.tools))
		for j, e := range s.tools {
			tools[j] = ToolSummary{Name: e.Name, Line: e.Line, Chars: e.Chars, Withheld: e.Withheld}
		}
		in.Servers[i] = ServerTools{Server: s.Name, Description: s.Description, Preload: s.Preload, Inject: s.Inject, Tools: tools}
	}
	return in
}

// resolve finds what may be used now: from the stored catalogues, and from the
// servers where there is none, where one said that its list changed, and, as an
// exchange begins, where the time of a catalogue is over.
func (r *Runtime) resolve(ctx context.Context, s Scope, connections []Connection, begins bool) (*toolset, error) {
	permit, err := r.permit(ctx, s)
	if err != nil {
		return nil, err
	}
	ts := &toolset{servers: make([]*server, len(connections))}
	for i := range connections {
		ts.servers[i] = &server{Connection: &connections[i], permit: permit}
	}
	slices.SortFunc(ts.servers, func(a, b *server) int { return strings.Compare(a.Name, b.Name) })
	var keys []catalogKey
	for _, sv := range ts.servers {
		if permit != nil && !permit(sv.Connection, "") {
			sv.down, sv.barred = unreachable(ErrAccessDenied), true
			continue
		}
		secret, err := r.secret(ctx, s, sv.Connection, "")
		if err != nil && !sv.Optional && !certain(err) {
			return nil, err // of a moment: the Run is driven again
		}
		if err != nil {
			if sv.down = "its credential can't be read"; errors.Is(err, ErrNotFound) {
				sv.down = "it has no credential yet"
			} else if errors.Is(err, ErrAccessDenied) {
				sv.down = "its credential may not be used for it"
			}
			r.log.WarnContext(ctx, "credential", "tenant", s.Tenant, "server", sv.Name, "err", err)
			continue
		}
		sv.key = newCatalogKey(s, sv.Connection, secret.Identity)
		keys = append(keys, sv.key)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	stored, err := r.catalogs.load(ctx, keys)
	if err != nil {
		return nil, err
	}
	var asked []*server
	for _, sv := range ts.servers {
		if sv.down != "" {
			continue
		}
		sv.catalog = stored[sv.key]
		if sv.catalog != nil && !r.catalogs.heard(sv.key) && !(begins && r.catalogs.stale(sv.key)) {
			continue
		}
		if why, ok := r.failed(sv.key); ok && !begins {
			if sv.catalog == nil {
				sv.down = why
			}
			continue
		}
		asked = append(asked, sv)
	}
	err = inParallel(ctx, len(asked), func(ctx context.Context, i int) error {
		sv := asked[i]
		c, key, err := r.refresh(ctx, s, sv.Connection, false)
		switch {
		case err == nil:
			sv.catalog, sv.key = c, key
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errNewerFormat) && !sv.Optional: // a worker of that release can go on
			return &UnsupportedError{What: fmt.Sprintf("the catalogue of %q: %v", sv.Name, errNewerFormat)}
		default:
			if sv.catalog == nil {
				sv.down = unreachable(err)
			}
			r.log.WarnContext(ctx, "catalogue", "tenant", s.Tenant, "server", sv.Name, "err", err)
			r.fail(sv.key, sv.down)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, sv := range ts.servers {
		if sv.catalog == nil {
			continue
		}
		entries := sv.catalog.entries()
		for i := range entries {
			if e := narrow(sv.Connection, permit, sv.catalog, entries[i].Name); e != nil {
				sv.tools = append(sv.tools, e)
			}
		}
	}
	return ts, nil
}

// refreshTime bounds a refresh of a catalogue, as does half of the time that is
// left: a server that hangs must not use up all of it, or nothing that can be
// done without the server would ever be.
const refreshTime = 30 * time.Second

// refresh reads a server's catalogue anew; with force past every cache, else
// not within the floor between two refreshes.
func (r *Runtime) refresh(ctx context.Context, s Scope, c *Connection, force bool) (stored *catalog, key catalogKey, err error) {
	limit := refreshTime
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(end)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	permit, err := r.permit(ctx, s)
	if err == nil && permit != nil && !permit(c, "") {
		err = fmt.Errorf("psych: connection %q: the policy does not permit it: %w", c.Name, ErrAccessDenied)
	}
	if err != nil {
		return nil, catalogKey{}, err
	}
	err = r.session(ctx, s, c, func(session Session, of catalogKey) (err error) {
		key = of
		stored, err = r.catalogs.sync(ctx, key, s, c, heededSession{session, r}, force)
		return err
	})
	return stored, key, err
}

// Refresh reads the catalogue of a connection's server anew, past every cache,
// and stores it for whoever shares it.
func (r *Runtime) Refresh(ctx context.Context, s Scope, c *Connection) error {
	var ps problems
	ps.connection("connection", c)
	if err := errors.Join(s.check(), specError(ps)); err != nil {
		return err
	}
	_, _, err := r.refresh(ctx, s, c, true)
	if err != nil {
		return fmt.Errorf("psych: refresh the catalogue of %q: %w", c.Name, err)
	}
	return nil
}

// unreachable says to the model, in a few words, why a server can't be reached.
func unreachable(err error) string {
	switch {
	case errors.Is(err, ErrUnauthorized):
		return "it refused the credential"
	case errors.Is(err, ErrAccessDenied):
		return "it may not be used here"
	case errors.Is(err, ErrNotFound):
		return "nothing here can reach it, or it has no credential yet"
	case errors.Is(err, context.DeadlineExceeded):
		return "it did not answer in time"
	}
	return "it can't be reached"
}

// retryServer is how long a server that could not be reached is left alone
// within an exchange.
const retryServer = 30 * time.Second

// A serverFailure is why a server could not be reached, and when.
type serverFailure struct {
	why string
	at  time.Time
}

// failed returns why a server could not be reached a short while ago.
func (r *Runtime) failed(key catalogKey) (why string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, ok := r.failures[key]
	if ok && time.Since(f.at) > retryServer {
		delete(r.failures, key)
		return "", false
	}
	return f.why, ok
}

func (r *Runtime) fail(key catalogKey, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.failures) >= maxCachedKinds {
		clear(r.failures)
	}
	r.failures[key] = serverFailure{why, time.Now().Round(0)}
}
