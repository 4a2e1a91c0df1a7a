package psych

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych/internal/strictjson"
)

// A Scope says whom a call is for. Psych interprets Tenant and Principal only.
type Scope struct {
	Tenant    string            `json:"tenant"`
	Principal string            `json:"principal,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// MaxLabelBytes bounds the keys and values of a Scope's labels together.
const MaxLabelBytes = 4 << 10

// check returns an error matching ErrInvalid unless tenant and principal are
// legal, and the labels valid UTF-8 within their bound.
func (s Scope) check() error {
	if err := CheckTenant(s.Tenant); err != nil {
		return err
	}
	if s.Principal != "" {
		if err := checkID("principal", s.Principal); err != nil {
			return err
		}
	}
	size := 0
	for k, v := range s.Labels {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return fmt.Errorf("psych: label %.80q: %.80q is not valid UTF-8: %w", k, v, ErrInvalid)
		}
		size += len(k) + len(v)
	}
	if size > MaxLabelBytes {
		return fmt.Errorf("psych: the labels take %d bytes: want at most %d: %w", size, MaxLabelBytes, ErrInvalid)
	}
	return nil
}

// A Spec describes an agent. It is data, never code.
type Spec struct {
	Name         string         `json:"name"`                   // 1 to 128 bytes of UTF-8 without control characters
	Instructions string         `json:"instructions,omitempty"` // at most MaxInstructionsBytes
	Model        string         `json:"model,omitempty"`        // what Options.Models resolves; "" is the deployment's own
	ModelOptions ModelOptions   `json:"model_options,omitzero"`
	Tools        []string       `json:"tools,omitempty"` // code tools, by name
	Connections  []Connection   `json:"connections,omitempty"`
	Skills       []Skill        `json:"skills,omitempty"`
	Disclosure   DisclosureSpec `json:"disclosure,omitzero"`
	Limits       Limits         `json:"limits,omitzero"`
}

// Limits are the budgets of a Spec, part of its hash. Zero means the default,
// which stands behind each field, and stays absent in the hash. Results are
// measured in estimated tokens, a quarter of their characters.
type Limits struct {
	LargeResultTokens int `json:"large_result_tokens,omitempty"` // from which a result is elided; 6000, at most BatchResultTokens
	BatchResultTokens int `json:"batch_result_tokens,omitempty"` // what one turn's results may be together; 12000
	PreviewChars      int `json:"preview_chars,omitempty"`       // of a preview, from each end; 1000, from 100 to 4000

	// As an exchange opens, results of the exchanges before it that take over
	// HistoryResultTokens are trimmed to their previews, if that saves over
	// HistoryMinSavingTokens in all; 1000 and 4000.
	HistoryResultTokens    int `json:"history_result_tokens,omitempty"`
	HistoryMinSavingTokens int `json:"history_min_saving_tokens,omitempty"`

	// HistoryMarginPercent is by how much more what that saves in later turns
	// must be worth than what it costs in the provider's cache now; 50, at most
	// 10000. What later turns there will be is not known: as many as the Run
	// has had are assumed.
	HistoryMarginPercent int `json:"history_margin_percent,omitempty"`

	// ContextTokens is what a request may take, estimated; over it, and where
	// the provider says that its window is full, all results of earlier turns
	// are trimmed once. The provider's, if it is known.
	ContextTokens int `json:"context_tokens,omitempty"`

	// What an exchange may spend, and under Run all of the Run's. It is looked
	// at before each model call, so that the last one may go over it, and closes
	// the exchange as exhausted; its code is the limit's name. What a provider
	// does not report, or no price is known of, counts as nothing: there Turns
	// alone bounds an exchange. No limits but for Turns.
	Turns          int     `json:"turns,omitempty"`           // model calls; 100
	Tokens         int64   `json:"tokens,omitempty"`          // prompt and completion tokens
	UncachedTokens int64   `json:"uncached_tokens,omitempty"` // prompt tokens that were not read from the provider's cache
	OutputTokens   int64   `json:"output_tokens,omitempty"`   // completion tokens
	CostUSD        float64 `json:"cost_usd,omitempty"`        // US dollars, by Options.Prices; at most 1000000
	Run            Budget  `json:"run,omitzero"`

	ToolTimeoutSeconds int `json:"tool_timeout_seconds,omitempty"` // of a tool without a Timeout of its own; 60, at most 86400
	Parallel           int `json:"parallel,omitempty"`             // tools that run at once; 8

	// OutputsRequired fails a call, with blob_store_required, whose attachments
	// would be let go for lack of a BlobStore.
	OutputsRequired bool `json:"outputs_required,omitempty"`
}

// A Budget is what a Run may spend. Zero is no limit.
type Budget struct {
	Tokens         int64   `json:"tokens,omitempty"`
	UncachedTokens int64   `json:"uncached_tokens,omitempty"`
	OutputTokens   int64   `json:"output_tokens,omitempty"`
	CostUSD        float64 `json:"cost_usd,omitempty"`
}

// exchange is the Budget of an exchange.
func (l *Limits) exchange() Budget {
	return Budget{l.Tokens, l.UncachedTokens, l.OutputTokens, l.CostUSD}
}

// ModelOptions are the settings of a model call that a Spec may fix.
type ModelOptions struct {
	MaxOutputTokens int      `json:"max_output_tokens,omitempty"`
	Temperature     *float64 `json:"temperature,omitempty"`
	Effort          string   `json:"effort,omitempty"`
}

// Bounds of a Spec. Instructions are sent with each model call, and cached by
// the provider at best; 256 KiB are some 65,000 tokens of them.
const (
	MaxSpecBytes         = 1 << 20   // of a Spec as JSON
	MaxInstructionsBytes = 256 << 10 // of Spec.Instructions
	MaxIndexBytes        = 256 << 10 // of the lines of zone 1 for all skills and connections
	MaxDefinitionsBytes  = 1 << 20   // of the definitions of the code tools that a Spec names, as JSON

	maxToolTimeoutSeconds = 24 * 60 * 60
	minPreviewChars       = 100
	maxMarginPercent      = 10_000
	maxCostUSD            = 1_000_000
)

// A projection is the rules of views, and the defaults of limits, that a Run is
// admitted with and keeps: what it was shown never changes its form with a
// release. New rules are a new version; those of old ones stay.
type projection struct {
	defaults Limits
	leftOut  string // the line of a preview that says how many characters are left out
}

var projections = map[int]projection{
	1: { // without a margin: trimmed as soon as it saves the minimum
		defaults: Limits{
			LargeResultTokens: 6000, BatchResultTokens: 12000, PreviewChars: 1000,
			HistoryResultTokens: 1000, HistoryMinSavingTokens: 4000,
			Turns: 100, ToolTimeoutSeconds: 60, Parallel: 8,
		},
		leftOut: "\n… %d characters left out …\n",
	},
	2: {
		defaults: Limits{
			LargeResultTokens: 6000, BatchResultTokens: 12000, PreviewChars: 1000,
			HistoryResultTokens: 1000, HistoryMinSavingTokens: 4000, HistoryMarginPercent: 50,
			Turns: 100, ToolTimeoutSeconds: 60, Parallel: 8,
		},
		leftOut: "\n… %d characters left out …\n",
	},
}

// projectionVersion is the version that new Runs are admitted with.
var projectionVersion = 2

// withDefaults fills in what is absent, as of the current projection.
func (l Limits) withDefaults() Limits { return l.under(projections[projectionVersion]) }

func (l Limits) under(p projection) Limits {
	def := func(n *int, d int) {
		if *n == 0 {
			*n = d
		}
	}
	def(&l.LargeResultTokens, p.defaults.LargeResultTokens)
	def(&l.BatchResultTokens, p.defaults.BatchResultTokens)
	def(&l.PreviewChars, p.defaults.PreviewChars)
	def(&l.HistoryResultTokens, p.defaults.HistoryResultTokens)
	def(&l.HistoryMinSavingTokens, p.defaults.HistoryMinSavingTokens)
	def(&l.HistoryMarginPercent, p.defaults.HistoryMarginPercent)
	def(&l.Turns, p.defaults.Turns)
	def(&l.ToolTimeoutSeconds, p.defaults.ToolTimeoutSeconds)
	def(&l.Parallel, p.defaults.Parallel)
	return l
}

// ParseSpec decodes a Spec from JSON of at most MaxSpecBytes, strictly: a
// field that is unknown or stands twice, null or a wrong type is an error.
// The error is a *[SpecError] that lists every problem with its path; then it
// lists what [Spec.Check] finds, too. A Spec that decodes is not checked.
func ParseSpec(data []byte) (*Spec, error) {
	bad := func(format string, args ...any) (*Spec, error) {
		return nil, &SpecError{[]Problem{{"", fmt.Sprintf(format, args...)}}}
	}
	if len(data) > MaxSpecBytes {
		return bad("the spec has %d bytes: want at most %d", len(data), MaxSpecBytes)
	}
	if len(strings.TrimSpace(string(data))) == 0 {
		return bad(`the spec is empty: want a JSON object with a name at least, like {"name": "helper"}`)
	}
	var s Spec
	err := strictjson.Decode(data, &s)
	if err == nil {
		return &s, nil
	}
	var strict *strictjson.Error
	if !errors.As(err, &strict) {
		return bad("%v", err)
	}
	var found problems
	paths := map[string]bool{}
	for _, p := range strict.Problems {
		if p.Class == strictjson.Syntax || p.Class == strictjson.Depth || p.Path == "" && p.Class == strictjson.Type {
			return bad("%s", p.Message)
		}
		found.add(p.Path, "%s", p.Message)
		paths[p.Path] = true
	}
	// What could be decoded is checked all the same, so that one error says all.
	var lax Spec
	_ = json.Unmarshal(data, &lax)
	for _, p := range lax.problems() {
		if !paths[p.Path] {
			found = append(found, p)
		}
	}
	return nil, specError(found)
}

// Check returns a *[SpecError] with every violation that can be found without
// knowing a Runtime's options, or nil. Publish checks what depends on those.
func (s *Spec) Check() error { return specError(s.problems()) }

// checkSpec is Check given what this Runtime has.
func (r *Runtime) checkSpec(s *Spec) error {
	ps := s.problems()
	if s == nil {
		return specError(ps)
	}
	tools := r.tools
	if name := s.Disclosure.Strategy; name != "" && r.disclosures[name] == nil {
		ps.add("disclosure.strategy", "is %.80q: want %s", name, strings.Join(slices.Sorted(maps.Keys(r.disclosures)), ", "))
	}
	for i, c := range s.Connections {
		if len(c.Command) > 0 && !r.o.AllowCommands {
			ps.add(fmt.Sprintf("connections[%d].command", i), "this program starts no commands for a Spec: want a url")
		}
	}
	seen := map[string]bool{}
	var defs []ToolDef
	for i, name := range s.Tools {
		if seen[name] || toolNameProblem(name) != "" {
			continue
		}
		seen[name] = true
		switch t := tools[name]; {
		case t == nil:
			ps.add(strictjson.Index("tools", i), "tool %q is not registered: %s", name, registered(tools))
		case t.err != nil:
			ps.add(strictjson.Index("tools", i), "tool %q can't be used: %v", name, t.err)
		default:
			defs = append(defs, t.def)
		}
	}
	if size := canonicalSize(defs); size > MaxDefinitionsBytes {
		ps.add("tools", "the definitions of its %d tools have %d bytes as JSON: want at most %d", len(defs), size, MaxDefinitionsBytes)
	}
	return specError(ps)
}

func specError(ps problems) error {
	if len(ps) == 0 {
		return nil
	}
	return &SpecError{ps}
}

func registered(tools map[string]*Tool) string {
	const most = 50
	names := slices.Sorted(maps.Keys(tools))
	switch {
	case len(names) == 0:
		return "no tool is"
	case len(names) > most:
		return fmt.Sprintf("registered are %s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return "registered are " + strings.Join(names, ", ")
}

type problems []Problem

func (ps *problems) add(path, format string, args ...any) {
	*ps = append(*ps, Problem{path, fmt.Sprintf(format, args...)})
}

func (s *Spec) problems() (ps problems) {
	if s == nil {
		ps.add("", "the spec is nil")
		return ps
	}
	switch {
	case s.Name == "":
		ps.add("name", "is empty: want 1 to 128 bytes")
	default:
		ps.label("name", s.Name, 128)
	}
	switch {
	case len(s.Instructions) > MaxInstructionsBytes:
		ps.add("instructions", "has %d bytes: want at most %d", len(s.Instructions), MaxInstructionsBytes)
	case !utf8.ValidString(s.Instructions):
		ps.add("instructions", "is not valid UTF-8")
	}
	ps.label("model", s.Model, 1024)
	ps.notNegative("model_options.max_output_tokens", int64(s.ModelOptions.MaxOutputTokens))
	if t := s.ModelOptions.Temperature; t != nil && !(*t >= 0 && *t <= math.MaxFloat64) {
		ps.add("model_options.temperature", "is %v: want a number from 0", *t)
	}
	ps.label("model_options.effort", s.ModelOptions.Effort, 128)
	first := map[string]int{}
	for i, name := range s.Tools {
		path := strictjson.Index("tools", i)
		if p := toolNameProblem(name); p != "" {
			ps.add(path, "%s", p)
		}
		if at, ok := first[name]; ok {
			ps.add(path, "tool %.80q stands twice, in tools[%d] too", name, at)
			continue
		}
		first[name] = i
	}
	ps.connections(s.Connections)
	ps.skills(s.Skills)
	ps.label("disclosure.strategy", s.Disclosure.Strategy, 64)
	ps.notNegative("disclosure.budget", int64(s.Disclosure.Budget))
	ps.notNegative("disclosure.tools", int64(s.Disclosure.Tools))
	ps.limits(s.Limits)
	if len(ps) > 0 {
		return ps
	}
	// It is bounded as a whole where no part is too large.
	if size := s.indexBytes(); size > MaxIndexBytes {
		ps.add("", "the lines of its %d skills and %d connections have %d bytes, which each request may hold: want at most %d", len(s.Skills), len(s.Connections), size, MaxIndexBytes)
	}
	if size := canonicalSize(s); size > MaxSpecBytes {
		ps.add("", "the spec has %d bytes as JSON: want at most %d", size, MaxSpecBytes)
	}
	return ps
}

// indexBytes is what skills and connections take in zone 1, where all of these
// are listed.
func (s *Spec) indexBytes() (n int) {
	if len(s.Skills) > 0 {
		n = len(skillIndex(s.Skills))
	}
	for i := range s.Connections {
		n += len(serverLine(s.Connections[i].Name, s.Connections[i].Description)) + len("\n")
	}
	return n
}

// canonicalSize is the bytes of v in the document of a Version; 0 if it can't be
// encoded, which encodeVersion refuses.
func canonicalSize(v any) int {
	data, err := json.Marshal(v)
	if err == nil {
		data, err = strictjson.Canonical(data)
	}
	if err != nil {
		return 0
	}
	return len(data)
}

func (ps *problems) limits(l Limits) {
	ps.notNegative("limits.large_result_tokens", int64(l.LargeResultTokens))
	ps.notNegative("limits.batch_result_tokens", int64(l.BatchResultTokens))
	ps.notNegative("limits.history_result_tokens", int64(l.HistoryResultTokens))
	ps.notNegative("limits.history_min_saving_tokens", int64(l.HistoryMinSavingTokens))
	ps.notNegative("limits.context_tokens", int64(l.ContextTokens))
	ps.notNegative("limits.turns", int64(l.Turns))
	ps.budget("limits", l.exchange())
	ps.budget("limits.run", l.Run)
	ps.notNegative("limits.parallel", int64(l.Parallel))
	if n := l.PreviewChars; n != 0 && (n < minPreviewChars || n > MaxPreviewChars) {
		ps.add("limits.preview_chars", "is %d: want %d to %d", n, minPreviewChars, MaxPreviewChars)
	}
	if n := l.ToolTimeoutSeconds; n < 0 || n > maxToolTimeoutSeconds {
		ps.add("limits.tool_timeout_seconds", "is %d: want 1 to %d, or 0 for the default", n, maxToolTimeoutSeconds)
	}
	if n := l.HistoryMarginPercent; n < 0 || n > maxMarginPercent {
		ps.add("limits.history_margin_percent", "is %d: want 1 to %d, or 0 for the default", n, maxMarginPercent)
	}
	if l.LargeResultTokens < 0 || l.BatchResultTokens < 0 {
		return
	}
	d := l.withDefaults()
	if d.LargeResultTokens > d.BatchResultTokens {
		said := func(given int) string {
			if given == 0 {
				return " (the default)"
			}
			return ""
		}
		ps.add("limits.large_result_tokens", "is %d%s, over batch_result_tokens, which is %d%s: want a result's budget at most the batch's",
			d.LargeResultTokens, said(l.LargeResultTokens), d.BatchResultTokens, said(l.BatchResultTokens))
	}
}

func (ps *problems) budget(path string, b Budget) {
	ps.notNegative(path+".tokens", b.Tokens)
	ps.notNegative(path+".uncached_tokens", b.UncachedTokens)
	ps.notNegative(path+".output_tokens", b.OutputTokens)
	if x := b.CostUSD; !(x >= 0 && x <= maxCostUSD) || x > 0 && picosOf(x) == 0 {
		ps.add(path+".cost_usd", "is %v: want US dollars up to %d, or 0 for no limit", x, maxCostUSD)
	}
}

func (ps *problems) notNegative(path string, n int64) {
	if n < 0 {
		ps.add(path, "is %d: want a positive number, or 0 for the default", n)
	}
}

// label checks a short text that may be empty.
func (ps *problems) label(path, s string, most int) {
	switch {
	case len(s) > most:
		ps.add(path, "has %d bytes: want at most %d", len(s), most)
	case !utf8.ValidString(s):
		ps.add(path, "%q is not valid UTF-8", s)
	case strings.ContainsFunc(s, unicode.IsControl):
		ps.add(path, "%q holds a control character", s)
	}
}

// A Digest is a SHA-256. In JSON it is 64 hexadecimal digits.
type Digest [sha256.Size]byte

func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// IsZero reports whether d was never set.
func (d Digest) IsZero() bool { return d == Digest{} }

// MarshalText encodes d as hexadecimal digits.
func (d Digest) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, d[:]), nil }

// UnmarshalText decodes 64 hexadecimal digits.
func (d *Digest) UnmarshalText(b []byte) error {
	if len(b) != 2*len(d) {
		return fmt.Errorf("psych: digest %.80q: want %d hexadecimal digits: %w", b, 2*len(d), ErrInvalid)
	}
	if _, err := hex.Decode(d[:], b); err != nil {
		return fmt.Errorf("psych: digest %.80q: %w: %w", b, ErrInvalid, err)
	}
	return nil
}

// A Version is an immutable publication of a Spec together with the
// definitions of the code tools that it names, as the publisher had them.
type Version struct {
	Hash      Digest
	Spec      Spec
	CodeTools []ToolDef // sorted by name
}

// versionFormat counts the formats of the document below.
const versionFormat = 1

// A versionDoc is a Version as a document; its bytes are hashed. A field that
// is added must be absent when empty, so that what was published keeps its
// hash.
type versionDoc struct {
	Format    int       `json:"format"`
	Spec      Spec      `json:"spec"`
	CodeTools []ToolDef `json:"code_tools,omitempty"`
}

// encodeVersion returns the document of a Version and its hash. Equal Specs
// with equal tools, in any order, give equal bytes: fields stand in one order,
// what is absent stays absent, strings have one spelling, whatever the release
// of Go. Schemas keep their key order and are compact. The Spec is legal.
func encodeVersion(s *Spec, tools []ToolDef) (doc []byte, hash Digest, err error) {
	d := versionDoc{Format: versionFormat, Spec: *s, CodeTools: slices.Clone(tools)}
	slices.SortFunc(d.CodeTools, func(a, b ToolDef) int { return strings.Compare(a.Name, b.Name) })
	doc, err = json.Marshal(d)
	if err == nil {
		doc, err = strictjson.Canonical(doc)
	}
	if err != nil {
		return nil, Digest{}, fmt.Errorf("psych: encode spec %.128q: %w: %w", s.Name, ErrInvalid, err)
	}
	return doc, sha256.Sum256(doc), nil
}

// decodeVersion decodes what encodeVersion made. What a newer release added
// can't be left out safely: it is an *UnsupportedError, without a Run. Any
// other fault matches ErrInvalid.
func decodeVersion(doc []byte) (*Version, error) {
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(doc, &head); err == nil && head.Format > versionFormat {
		return nil, &UnsupportedError{What: fmt.Sprintf("format %d of a version", head.Format)}
	}
	var d versionDoc
	err := strictjson.Decode(doc, &d)
	var strict *strictjson.Error
	if errors.As(err, &strict) {
		for _, p := range strict.Problems {
			if p.Class == strictjson.Unknown {
				return nil, &UnsupportedError{What: "field " + p.Path + " of a version"}
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("psych: version document: %w: %w", ErrInvalid, err)
	}
	return &Version{Hash: sha256.Sum256(doc), Spec: d.Spec, CodeTools: d.CodeTools}, nil
}
