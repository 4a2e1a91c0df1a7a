package psych

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych/internal/strictjson"
)

// Bounds of catalogues.
const (
	catalogFloor = time.Minute      // between two refreshes of one
	catalogTTL   = 15 * time.Minute // where the server says nothing
	maxTTL       = 24 * time.Hour
	catalogSkew  = 5 * time.Minute // a listing that began later than that from now was dated by a wrong clock

	maxListPages        = 10_000
	maxListTools        = 65_536
	maxListBytes        = 64 << 20 // of definitions
	maxListings         = 3        // in one refresh, of a list that changes meanwhile
	catalogInstructions = 2_000    // characters
	maxRemoteName       = 128      // bytes
	maxRemoteTool       = 1 << 20  // bytes of a definition
	catalogSchemaDepth  = 1_000
	catalogLine         = 200 // characters
	maxDropped          = 100
	maxKnownCatalogs    = 10_000

	documentBytes    = 64 << 10 // of a document of several definitions
	documentMinBytes = 16 << 10 // before one may end earlier
	catalogCache     = 64 << 20 // bytes of manifests, and again of definitions
	catalogParallel  = 8        // requests of one load or refresh at once
)

// catalogPrefix begins the names of refs that point at catalogues.
const catalogPrefix = "catalog/"

var (
	errBadList     = errors.New("the server's list of tools can't be used")
	errNewerFormat = errors.New("it was written by a newer release: upgrade this worker")
	errNoCatalog   = errors.New("it is no catalogue that a release of Psych wrote")
	errUnfinished  = errors.New("whoever did it panicked")
)

// A catalogKey addresses a catalogue: those share one who see the same tools,
// whatever their Specs call the server.
type catalogKey struct{ tenant, ref string }

func newCatalogKey(s Scope, c *Connection, identity string) catalogKey {
	parts := []string{"shared", ""}
	if c.PerPrincipal {
		parts = []string{"principal", s.Principal}
	}
	parts = append(parts, c.URL, c.Credential, identity)
	return catalogKey{s.Tenant, catalogPrefix + digest(append(parts, c.Command...)...).String()}
}

// A catalogEntry is what a manifest says of a tool.
type catalogEntry struct {
	Name             string `json:"name"`
	Title            string `json:"title,omitempty"`
	Line             string `json:"line,omitempty"`              // of the description: see firstLine
	Chars            int    `json:"chars"`                       // of the definition as it is shown, some 40 for what surrounds it included
	DescriptionChars int    `json:"description_chars,omitempty"` // of all of it
	ReadOnly         bool   `json:"read_only,omitempty"`
	Idempotent       bool   `json:"idempotent,omitempty"`
	Def              Digest `json:"def"`                // of the definition's bytes
	Withheld         string `json:"withheld,omitempty"` // why the definition can't be shown
	Doc              int    `json:"doc"`                // which of the documents holds the definition
}

// catalogFormat counts the formats of manifests and of their documents.
const catalogFormat = 1

// A manifest is a catalogue as a document. Its bytes are a function of the
// listing, of the connection's address and of who listed: pages and order of
// the listing leave no trace. A field that is added must be absent when empty.
type manifest struct {
	Format     int `json:"format"`
	Connection struct {
		Name         string   `json:"name"`
		URL          string   `json:"url,omitempty"`
		Command      []string `json:"command,omitempty"`
		Credential   string   `json:"credential,omitempty"`
		PerPrincipal bool     `json:"per_principal,omitempty"`
	} `json:"connection"`
	Scope        Scope          `json:"scope"`
	Instructions string         `json:"instructions,omitempty"`
	TTLSeconds   int            `json:"ttl_seconds"`
	Documents    []Digest       `json:"documents,omitempty"`
	Tools        []catalogEntry `json:"tools,omitempty"` // sorted by name
	Dropped      []DroppedTool  `json:"dropped,omitempty"`
}

// A catalog is a manifest as it was read. It is shared: nobody changes it.
type catalog struct {
	manifest
	digest       Digest
	instructions string
	failing      *sweepFailures // since it was listed; nil: the sweep did not fail to read it anew
}

// A sweepFailuresDoc stands between a ref and its manifest while the sweep fails to
// read a catalogue anew, so that all who sweep wait longer each time, and end.
type sweepFailuresDoc struct {
	Format  int            `json:"format"`
	Failing *sweepFailures `json:"failing"`
}

type sweepFailures struct {
	Catalog  Digest    `json:"catalog"`  // the manifest
	Failures int       `json:"failures"` // in a row
	Listed   time.Time `json:"listed"`   // when the listing began that the manifest tells of; zero: unknown
	Failed   time.Time `json:"failed"`   // when the last failure was
}

// without is the catalogue of its manifest alone.
func (c *catalog) without() *catalog {
	if c == nil || c.failing == nil {
		return c
	}
	plain := *c
	plain.failing = nil
	return &plain
}

// failures is how often the sweep failed to read it anew.
func (c *catalog) failures() int {
	if c.failing == nil {
		return 0
	}
	return c.failing.Failures
}

// The sweep asks a server that can't be reached, or whose credential is gone,
// again after half the time of its catalogue, twice that the next time and so
// on, at most after a day, and after the last of so many failures in a row not
// any more. Then only a Run that uses the server does.
const (
	maxSweepFailures = 12
	maxSweepWait     = 24 * time.Hour
)

// retryAfter is how long after failures in a row the sweep tries again; zero:
// never.
func retryAfter(key catalogKey, ttl time.Duration, failures int) time.Duration {
	if failures >= maxSweepFailures {
		return 0
	}
	wait := min(ttl/2<<min(failures-1, maxSweepFailures), maxSweepWait)
	return wait + jitter(key, wait)
}

func (c *catalog) version() Digest { return c.digest }

func (c *catalog) entries() []catalogEntry { return c.Tools }

func (c *catalog) find(name string) *catalogEntry {
	i, ok := slices.BinarySearchFunc(c.Tools, name, func(e catalogEntry, name string) int { return strings.Compare(e.Name, name) })
	if !ok {
		return nil
	}
	return &c.Tools[i]
}

func (c *catalog) ttl() time.Duration { return time.Duration(c.TTLSeconds) * time.Second }

// same reports whether two catalogues say the same, whoever listed and whatever
// the connection is called.
func (c *catalog) same(o *catalog) bool {
	return c.Instructions == o.Instructions && c.TTLSeconds == o.TTLSeconds && slices.Equal(c.Documents, o.Documents) &&
		slices.Equal(c.Tools, o.Tools) && slices.Equal(c.Dropped, o.Dropped)
}

// decodeCatalog returns an error that matches errNewerFormat or errNoCatalog.
func decodeCatalog(d Digest, data []byte) (*catalog, error) {
	if err := checkCatalogFormat(data); err != nil {
		return nil, err
	}
	c := &catalog{digest: d}
	if err := json.Unmarshal(data, &c.manifest); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoCatalog, err)
	}
	c.instructions = c.Instructions
	if c.TTLSeconds < 1 || c.TTLSeconds > 1<<25 { // a year
		return nil, fmt.Errorf("%w: ttl_seconds is %d", errNoCatalog, c.TTLSeconds)
	}
	for i, t := range c.Tools {
		if i > 0 && c.Tools[i-1].Name >= t.Name {
			return nil, fmt.Errorf("%w: tool %q stands behind %q", errNoCatalog, t.Name, c.Tools[i-1].Name)
		}
		if t.Doc < 0 || t.Doc >= len(c.Documents) {
			return nil, fmt.Errorf("%w: tool %q is in document %d of %d", errNoCatalog, t.Name, t.Doc, len(c.Documents))
		}
	}
	return c, nil
}

func checkCatalogFormat(data []byte) error {
	var head struct {
		Format int `json:"format"`
	}
	switch err := json.Unmarshal(data, &head); {
	case err != nil:
		return fmt.Errorf("%w: %w", errNoCatalog, err)
	case head.Format > catalogFormat:
		return fmt.Errorf("%w (format %d)", errNewerFormat, head.Format)
	case head.Format < 1:
		return fmt.Errorf("%w: format %d", errNoCatalog, head.Format)
	}
	return nil
}

// A catalogDiff holds names of tools, sorted.
type catalogDiff struct{ Added, Removed, Changed []string }

// diffCatalogs says what became of old; nil is a catalogue without tools.
func diffCatalogs(old, new *catalog) (d catalogDiff) {
	var a, b []catalogEntry
	if old != nil {
		a = old.Tools
	}
	if new != nil {
		b = new.Tools
	}
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Name < b[0].Name:
			d.Removed = append(d.Removed, a[0].Name)
			a = a[1:]
		case len(a) == 0 || b[0].Name < a[0].Name:
			d.Added = append(d.Added, b[0].Name)
			b = b[1:]
		default:
			if a[0].Def != b[0].Def {
				d.Changed = append(d.Changed, a[0].Name)
			}
			a, b = a[1:], b[1:]
		}
	}
	return d
}

// A serverList is all that a server said, in its order.
type serverList struct {
	tools        []RemoteTool
	instructions string
	ttl          time.Duration // for how long it holds, within bounds
}

// readList reads all pages. Its own errors match errBadList.
func readList(ctx context.Context, session Session) (*serverList, error) {
	l := &serverList{instructions: session.Instructions(), ttl: catalogTTL}
	var hint *time.Duration
	var cursor *string
	seen := map[Digest]bool{}
	size := 0
	for page := 1; ; page++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		p, err := session.ListTools(ctx, cursor)
		if err != nil {
			return nil, fmt.Errorf("page %d of the list of tools: %w", page, err)
		}
		for _, t := range p.Tools {
			size += len(t.Name) + len(t.Title) + len(t.Description) + len(t.Schema) + len(t.Output)
		}
		l.tools = append(l.tools, p.Tools...)
		// The shortest one, since it may be told with each page.
		if p.TTL != nil && (hint == nil || *p.TTL < *hint) {
			hint = p.TTL
		}
		switch {
		case len(l.tools) > maxListTools:
			return nil, fmt.Errorf("it has over %d tools: %w", maxListTools, errBadList)
		case size > maxListBytes:
			return nil, fmt.Errorf("its definitions take over %d bytes: %w", maxListBytes, errBadList)
		case p.Next == nil:
			if hint != nil {
				l.ttl = min(max(hint.Truncate(time.Second), catalogFloor), maxTTL)
			}
			return l, nil
		case page == maxListPages:
			return nil, fmt.Errorf("it goes on after %d pages: %w", page, errBadList)
		}
		next := digest(*p.Next)
		if seen[next] {
			return nil, fmt.Errorf("page %d goes on with the cursor %.80q, which a page before it gave: %w", page, *p.Next, errBadList)
		}
		seen[next] = true
		cursor = p.Next
	}
}

// newCatalog makes a catalogue of a listing, with its documents and manifest.
// A tool that is broken does not break the others: it is dropped, or its
// definition is withheld.
func newCatalog(s Scope, c *Connection, l *serverList) (*catalog, map[Digest][]byte, error) {
	m := manifest{Format: catalogFormat, Scope: s, TTLSeconds: int(l.ttl / time.Second)}
	m.Connection.Name, m.Connection.URL, m.Connection.Command = c.Name, c.URL, c.Command
	m.Connection.Credential, m.Connection.PerPrincipal = c.Credential, c.PerPrincipal
	m.Instructions = clipChars(strings.ToValidUTF8(l.instructions, "\ufffd"), catalogInstructions)
	var dropped []DroppedTool
	drop := func(name, format string, args ...any) {
		name = clipChars(strings.ToValidUTF8(name, "\ufffd"), maxRemoteName)
		dropped = append(dropped, DroppedTool{name, fmt.Sprintf(format, args...)})
	}
	type taken struct {
		catalogEntry
		def []byte
	}
	var tools []taken
	names := make(map[string]bool, len(l.tools))
	for _, t := range l.tools {
		switch {
		case t.Name == "":
			drop("", "its name is empty")
			continue
		case !utf8.ValidString(t.Name):
			drop(t.Name, "its name is not valid UTF-8")
			continue
		case len(t.Name) > maxRemoteName:
			drop(t.Name, "its name has %d bytes: want at most %d", len(t.Name), maxRemoteName)
			continue
		case names[t.Name]:
			drop(t.Name, "it is listed again: the first one counts")
			continue
		}
		names[t.Name] = true
		withheld, output := cleanTool(&t)
		if output != "" {
			drop(t.Name, "its output schema is left out: %s", output)
		}
		if n := t.bytes(); n > maxRemoteTool {
			drop(t.Name, "its name and description take %d bytes: want at most %d", n, maxRemoteTool)
			continue
		}
		def := appendDefinition(nil, &t)
		shown, _, reason := gate(t.ToolDef, ModelLimits{})
		if withheld == "" {
			withheld = reason
		}
		tools = append(tools, taken{catalogEntry{
			Name: t.Name, Title: asLine(t.Title, catalogLine), Line: firstLine(t.Description),
			Chars:            defChars(&shown),
			DescriptionChars: utf8.RuneCountInString(t.Description),
			ReadOnly:         t.ReadOnly, Idempotent: t.Idempotent,
			Def: sha256.Sum256(def), Withheld: withheld,
		}, def})
	}
	slices.SortFunc(tools, func(a, b taken) int { return strings.Compare(a.Name, b.Name) })
	m.Dropped = sortDropped(dropped)

	docs := map[Digest][]byte{}
	const head, tail = `{"format":1,"tools":[`, `]}`
	var doc []byte
	first := 0
	end := func(next int) {
		doc = append(doc, tail...)
		d := Digest(sha256.Sum256(doc))
		docs[d] = doc
		for i := first; i < next; i++ {
			tools[i].Doc = len(m.Documents)
		}
		m.Documents = append(m.Documents, d)
		doc, first = nil, next
	}
	for i, t := range tools {
		if doc != nil && len(doc)+len(",")+len(t.def)+len(tail) > documentBytes {
			end(i)
		}
		if doc == nil {
			doc = append(make([]byte, 0, documentBytes), head...)
		} else {
			doc = append(doc, ',')
		}
		doc = append(doc, t.def...)
		// Where documents end is decided by names, so that a tool which changes
		// moves few of the ends behind it.
		sum := sha256.Sum256([]byte(t.Name))
		ends := uint64(binary.BigEndian.Uint32(sum[:]))*documentMinBytes < uint64(len(t.def))<<32
		if i == len(tools)-1 || len(doc) >= documentBytes || ends && len(doc) >= documentMinBytes {
			end(i + 1)
		}
	}
	for _, t := range tools {
		m.Tools = append(m.Tools, t.catalogEntry)
	}

	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(&m); err != nil {
		return nil, nil, fmt.Errorf("encode the manifest: %w", err)
	}
	data := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	d := Digest(sha256.Sum256(data))
	docs[d] = data
	return &catalog{manifest: m, digest: d, instructions: m.Instructions}, docs, nil
}

func (t *RemoteTool) bytes() int {
	return len(t.Name) + len(t.Title) + len(t.Description) + len(t.Schema) + len(t.Output)
}

// anySchema stands for a schema that is missing or can't be kept.
var anySchema = json.RawMessage(`{"type":"object"}`)

// cleanTool makes of t what can be stored: texts valid UTF-8, schemas compact.
// It says why a schema was replaced by one that takes any object, and why an
// output schema was left out.
func cleanTool(t *RemoteTool) (withheld, output string) {
	t.Title = strings.ToValidUTF8(t.Title, "\ufffd")
	t.Description = strings.ToValidUTF8(t.Description, "\ufffd")
	if len(t.Output) > 0 {
		t.Output, output = cleanSchema(t.Output)
	}
	if len(t.Schema) == 0 {
		t.Schema = anySchema
	} else if t.Schema, withheld = cleanSchema(t.Schema); withheld != "" {
		t.Schema, withheld = anySchema, "its schema can't be used: "+withheld
	}
	if n := t.bytes(); n > maxRemoteTool && len(t.Output) > 0 {
		t.Output, output = nil, fmt.Sprintf("the definition takes %d bytes with it: want at most %d", n, maxRemoteTool)
	}
	if n := t.bytes(); n > maxRemoteTool {
		t.Schema, withheld = anySchema, fmt.Sprintf("its schema can't be used: the definition takes %d bytes with it: want at most %d", n, maxRemoteTool)
	}
	return withheld, output
}

// cleanSchema returns raw without insignificant whitespace, or says what is
// wrong with it.
func cleanSchema(raw json.RawMessage) (_ json.RawMessage, problem string) {
	if !utf8.Valid(raw) {
		raw, _ = strictjson.Repair(raw)
	}
	v, err := strictjson.Scan(raw)
	switch {
	case err != nil:
		return nil, clipChars(asLine("it is not JSON: "+err.Error(), 300), 300)
	case v.Depth > catalogSchemaDepth:
		return nil, fmt.Sprintf("it is nested %d deep: want at most %d", v.Depth, catalogSchemaDepth)
	}
	if raw, err = strictjson.Compact(raw); err != nil {
		return nil, clipChars(asLine("it is not JSON: "+err.Error(), 300), 300)
	}
	return raw, ""
}

// appendDefinition encodes what json decodes into a RemoteTool, with the
// schemas' own bytes; unlike encoding/json's, the result is the same in each
// release of Go.
func appendDefinition(b []byte, t *RemoteTool) []byte {
	b = strictjson.AppendString(append(b, `{"name":`...), t.Name)
	b = strictjson.AppendString(append(b, `,"description":`...), t.Description)
	b = append(append(b, `,"schema":`...), t.Schema...)
	if t.Title != "" {
		b = strictjson.AppendString(append(b, `,"title":`...), t.Title)
	}
	if len(t.Output) > 0 {
		b = append(append(b, `,"output":`...), t.Output...)
	}
	if t.ReadOnly {
		b = append(b, `,"read_only":true`...)
	}
	if t.Idempotent {
		b = append(b, `,"idempotent":true`...)
	}
	return append(b, '}')
}

// firstLine is the first paragraph of a description on one line: all of it, or
// the sentences of it that fit, or as much as fits, with … at the end.
func firstLine(description string) string {
	text := strings.TrimSpace(description)
	for rest := text; ; {
		i := strings.IndexByte(rest, '\n')
		if i < 0 {
			break
		}
		rest = rest[i+1:]
		if line, _, _ := strings.Cut(rest, "\n"); strings.TrimSpace(line) == "" {
			text = text[:len(text)-len(rest)]
			break
		}
	}
	const longest = 3 * catalogLine // enough, and bounds the work
	line := asLine(clipChars(text, longest), longest)
	if utf8.RuneCountInString(line) <= catalogLine {
		return line
	}
	cut := clipChars(line, catalogLine)
	for end := len(cut) - len("…"); end >= catalogLine/3; end-- {
		// A space behind a point ends a sentence, but not in "e.g. this".
		if strings.IndexByte(".!?", line[end-1]) >= 0 && line[end] == ' ' && line[end-3] != '.' {
			return line[:end]
		}
	}
	return cut
}

// sortDropped sorts by name, each thing once, the first maxDropped.
func sortDropped(all []DroppedTool) []DroppedTool {
	slices.SortFunc(all, func(a, b DroppedTool) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return strings.Compare(a.Reason, b.Reason)
	})
	all = slices.Compact(all)
	if more := len(all) - maxDropped; more > 0 {
		all = append(all[:maxDropped:maxDropped], DroppedTool{Reason: fmt.Sprintf("%d more are left out", more)})
	}
	return all
}

// defChars is about what a definition takes of a request, in characters: some 40
// surround name, description and schema.
func defChars(d *ToolDef) int {
	return len(d.Name) + utf8.RuneCountInString(d.Description) + utf8.RuneCount(d.Schema) + 40
}
