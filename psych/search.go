package psych

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/psych-go/psych-go/psych/internal/lexical"
)

// A Ranker orders tools for a query: by meaning, say, in place of the lexical
// search or on top of it. Its methods may be called concurrently.
type Ranker interface {
	// Rank returns indexes of tools, the best first, each at most once; those
	// that it leaves out don't match. Tools are all that may be used, those
	// first that the lexical search finds, in its order. If it fails, that
	// order holds.
	Rank(ctx context.Context, s Scope, query string, tools []RankedTool) ([]int, error)
}

// A RankedTool is a tool as a Ranker is asked for it.
type RankedTool struct {
	ToolRef
	Title, Line string // Line is of the description, on one line of at most 200 characters
	Definition  Digest // of the server's definition: what was computed of one holds for it
	Matches     bool   // the lexical search finds it
}

// foundTools is how many tools an answer of a search holds.
const foundTools = 20

// FoundTools are those that a search finds, the best first.
type FoundTools struct {
	Total     int         `json:"total"` // of tools that match, of which Tools are a part
	Tools     []FoundTool `json:"tools"`
	Unmatched []string    `json:"unmatched,omitempty"` // words of the query that match nothing
}

// A FoundTool is a tool that may be used.
type FoundTool struct {
	ToolRef
	Line string `json:"line,omitempty"` // of its description, on one line of at most 200 characters
}

// find searches the tools of a toolset.
func (r *Runtime) find(ctx context.Context, s Scope, ts *toolset, q ListQuery, limit int) (*FoundTools, error) {
	servers := ts.servers
	if q.Server != "" {
		sv, err := ts.serverOf(q.Server)
		if err != nil {
			return nil, err
		}
		servers = []*server{sv}
	}
	servers = slices.DeleteFunc(slices.Clone(servers), func(sv *server) bool { return len(sv.tools) == 0 })
	segments := make([]*lexical.Segment, len(servers))
	err := inParallel(ctx, len(servers), func(ctx context.Context, i int) (err error) {
		segments[i], err = r.segment(ctx, servers[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	o := lexical.Options{Offset: q.Offset, Limit: limit, Permit: func(segment, tool int) bool {
		return servers[segment].tool(servers[segment].catalog.entries()[tool].Name) != nil
	}}
	if r.o.Ranker != nil {
		o.Offset, o.Limit = 0, 0
	}
	res := lexical.Search(segments, q.Query, o)
	type hit struct {
		sv *server
		e  *catalogEntry
	}
	hits := make([]hit, len(res.Hits))
	for i, h := range res.Hits {
		sv := servers[h.Segment]
		hits[i] = hit{sv, &sv.catalog.entries()[h.Tool]}
	}
	if r.o.Ranker != nil {
		matches := len(hits)
		seen := map[*catalogEntry]bool{}
		for _, h := range hits {
			seen[h.e] = true
		}
		for _, sv := range servers {
			for _, e := range sv.tools {
				if !seen[e] {
					hits = append(hits, hit{sv, e})
				}
			}
		}
		tools := make([]RankedTool, len(hits))
		for i, h := range hits {
			tools[i] = RankedTool{ToolRef: ToolRef{h.sv.Name, h.e.Name}, Title: h.e.Title, Line: h.e.Line, Definition: h.e.Def, Matches: i < matches}
		}
		var order []int
		err := r.guarded(ctx, "Ranker", func() (err error) {
			order, err = r.o.Ranker.Rank(ctx, s, q.Query, tools)
			return err
		})
		if err == nil {
			err = checkOrder(order, len(tools))
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			r.log.WarnContext(ctx, "the ranker failed", "tenant", s.Tenant, "err", err)
			hits = hits[:matches]
		} else {
			ranked := make([]hit, len(order))
			for i, at := range order {
				ranked[i] = hits[at]
			}
			hits, res.Unmatched = ranked, nil
		}
		res.Total = len(hits)
		hits = hits[min(q.Offset, len(hits)):]
		hits = hits[:min(limit, len(hits))]
	}
	found := &FoundTools{Total: res.Total, Tools: make([]FoundTool, len(hits)), Unmatched: res.Unmatched}
	for i, h := range hits {
		found.Tools[i] = FoundTool{ToolRef{h.sv.Name, h.e.Name}, h.e.Line}
	}
	return found, nil
}

// search answers list_tools with a query.
func (r *Runtime) search(ctx context.Context, s Scope, ts *toolset, q ListQuery) (string, error) {
	found, err := r.find(ctx, s, ts, q, foundTools)
	if err != nil {
		return "", err
	}
	lines := make([]string, len(found.Tools))
	for i, t := range found.Tools {
		if lines[i] = toolLine(t.Tool, t.Line); q.Server == "" {
			lines[i] = "- " + t.Server + " / " + lines[i][len("- "):]
		}
	}
	head := fmt.Sprintf("%d tools match", found.Total)
	switch {
	case found.Total == 1:
		head = "1 tool matches"
	case found.Total == 0:
		head = "No tool matches. Try other words, or list a server's tools without a query"
	}
	if q.Server == "" && found.Total > 0 {
		head += ", as server / tool"
	}
	if len(found.Unmatched) > 0 && found.Total > 0 {
		words := make([]string, len(found.Unmatched))
		for i, w := range found.Unmatched {
			words[i] = asLine(w, 40)
		}
		head += ". Nothing matches: " + clipChars(strings.Join(words, ", "), 300)
	}
	return page(head, lines, q.Offset, found.Total), nil
}

func checkOrder(order []int, n int) error {
	seen := make([]bool, n)
	for _, at := range order {
		if at < 0 || at >= n || seen[at] {
			return fmt.Errorf("psych: a Ranker returned the index %d of %d tools, or one twice: %w", at, n, ErrInvalid)
		}
		seen[at] = true
	}
	return nil
}

// A segmentKey says what a segment of the index was made of.
type segmentKey struct {
	tenant, server, description string
	catalog                     Digest
}

// segment indexes a server's catalogue, once a version and process.
func (r *Runtime) segment(ctx context.Context, sv *server) (*lexical.Segment, error) {
	key := segmentKey{sv.key.tenant, sv.Name, sv.Description, sv.catalog.version()}
	r.mu.Lock()
	seg, ok := r.segments.get(key)
	r.mu.Unlock()
	if ok {
		return seg, nil
	}
	entries := sv.catalog.entries()
	names := make([]string, len(entries))
	for i := range entries {
		names[i] = entries[i].Name
	}
	defs, err := r.catalogs.definitions(ctx, key.tenant, sv.catalog, names)
	if err != nil {
		return nil, err
	}
	tools, size := make([]lexical.Tool, len(defs)), keptHead
	for i := range defs {
		tools[i] = searched(&defs[i])
		size += 4*(len(tools[i].Name)+len(tools[i].Text)) + 200 // its words, where they stand
		for _, arg := range tools[i].Args {
			size += 4 * len(arg)
		}
	}
	seg = lexical.NewSegment(sv.Name, sv.Description, tools)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.segments.put(key, seg, int64(size))
	return seg, nil
}

// searched is what is indexed of a tool.
func searched(t *RemoteTool) lexical.Tool {
	var schema struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	_ = json.Unmarshal(t.Schema, &schema) // of one that can't be read, no argument is found
	return lexical.Tool{Name: t.Name, Text: strings.TrimSpace(t.Title + "\n" + t.Description), Args: slices.Sorted(maps.Keys(schema.Properties))}
}
