package psych

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/psych-go/psych-go/psych/internal/strictjson"
)

// Bounds of a schema that is compiled: compiling costs more than linearly.
const (
	maxSchemaBytes = 512 << 10
	maxSchemaDepth = 200
	maxSubschemas  = 3000 // of a server's: objects and booleans anywhere in it
	maxFarRefs     = 300  // of a server's: places, where no schema belongs, that it refers to
)

// A schema is what a tool's arguments must match.
type schema struct {
	raw      json.RawMessage   // canonical
	compiled *validator.Schema // nil: arguments are objects, and left unvalidated otherwise
	effort   *effort           // nil: however long it takes
}

const schemaURL = "psych:///schema.json"

// compileSchema makes a schema of raw. It fetches nothing: a $ref that leads
// out of raw is an error. With an error the schema is usable all the same, and
// leaves to others to validate; a code tool is refused instead.
func compileSchema(raw json.RawMessage) (s *schema, err error) {
	s = &schema{raw: raw}
	if err := s.canonicalize(); err != nil {
		return s, err
	}
	doc, err := validator.UnmarshalJSON(bytes.NewReader(s.raw))
	if err != nil {
		return s, err
	}
	c := validator.NewCompiler()
	c.DefaultDraft(validator.Draft2020)
	if s.compiled, err = compile(c, doc); err != nil {
		return s, s.notASchema(err, doc)
	}
	return s, nil
}

// compileTool makes a schema of the one that a server says its tool has.
//
// It is compiled by the rules of the draft that its $schema names, of 4, 6, 7,
// 2019-09 and 2020-12. Without a name of these it is taken for 2020-12, as the
// Model Context Protocol says, and where it is wrong by the rules it goes by,
// for 2020-12 again, with what is left of older drafts and OpenAPI translated
// (see [translation]), and then for older drafts. A format is never asserted,
// as in 2020-12: servers rarely do. A pattern that Go can't compile, with a
// lookahead for example, matches anything.
//
// With an error, which says why no draft fits, the schema is usable all the
// same, and leaves it to the server to validate.
func compileTool(raw json.RawMessage) (s *schema, err error) {
	raw, _ = strictjson.Repair(raw)
	switch string(bytes.TrimSpace(raw)) {
	case "", "null", "true":
		return &schema{raw: json.RawMessage(`{"type":"object"}`)}, nil
	}
	s = &schema{raw: raw}
	if err := s.canonicalize(); err != nil {
		return s, err
	}
	root, err := parseNode(s.raw)
	if err != nil {
		return s, err
	}
	if err := root.bounds(); err != nil {
		return s, err
	}
	declared := root.draft()
	tr := translation{draft: declared}
	translated := root.clone()
	tr.translate(translated)
	if t := translated.get("type"); t != nil && !t.admits("object") {
		return s, errors.New(`its "type" is not "object": arguments are always an object`)
	}

	first := cmp.Or(declared, validator.Draft2020)
	type attempt struct {
		root  *node
		draft *validator.Draft
	}
	attempts := []attempt{{root, first}, {translated, validator.Draft2020}}
	if tr.did(noteNullable) { // which no draft knows, and servers mean
		slices.Reverse(attempts)
	}
	for _, d := range []*validator.Draft{validator.Draft2020, validator.Draft2019, validator.Draft7, validator.Draft6, validator.Draft4} {
		if d != first {
			attempts = append(attempts, attempt{root, d})
		}
	}
	for i, a := range attempts {
		compiled, effort, failed := s.compileAs(a.root, a.draft)
		if failed == nil {
			s.compiled, s.effort = compiled, effort
			return s, nil
		}
		if i == 0 {
			err = failed
		}
	}
	return s, err
}

// canonicalize makes raw canonical, or says why it can't be compiled.
func (s *schema) canonicalize() error {
	v, err := strictjson.Scan(s.raw)
	switch {
	case err != nil:
		return err
	case v.Kind != '{':
		return errors.New("want a JSON object")
	case len(s.raw) > maxSchemaBytes || v.Depth > maxSchemaDepth:
		return fmt.Errorf("it has %d bytes and is nested %d deep: want at most %d and %d", len(s.raw), v.Depth, maxSchemaBytes, maxSchemaDepth)
	}
	canonical, err := strictjson.Canonical(s.raw)
	if err == nil {
		s.raw = canonical
	}
	return err
}

// compileAs compiles a server's schema by the rules of a draft, whatever its
// own $schema is.
func (s *schema) compileAs(root *node, d *validator.Draft) (*validator.Schema, *effort, error) {
	root = root.clone()
	root.drop("$schema")
	if root.anyBelow(unknownPattern) {
		root.relax()
	}
	doc, err := validator.UnmarshalJSON(bytes.NewReader(root.append(nil)))
	if err != nil {
		return nil, nil, err
	}
	if _, err := compile(serverCompiler(d), doc); err != nil {
		return nil, nil, s.notASchema(err, doc)
	}
	// Again, since a vocabulary of ours loosens the library's check of the rules.
	c, e := serverCompiler(d), &effort{}
	c.RegisterVocabulary(&validator.Vocabulary{URL: schemaURL + "#effort", Compile: e.compile})
	c.AssertVocabs()
	compiled, err := compile(c, doc)
	return compiled, e, err
}

// serverCompiler compiles by the rules of a draft, as [compileTool] says.
func serverCompiler(d *validator.Draft) *validator.Compiler {
	c := validator.NewCompiler()
	c.DefaultDraft(d)
	c.UseRegexpEngine(compilePattern)
	for _, name := range assertedFormats {
		c.RegisterFormat(&validator.Format{Name: name, Validate: func(any) error { return nil }})
	}
	return c
}

func compile(c *validator.Compiler, doc any) (compiled *validator.Schema, err error) {
	defer func() {
		if p := recover(); p != nil { // a library's, over a stranger's schema
			compiled, err = nil, fmt.Errorf("can't be compiled: %v", p)
		}
	}()
	c.UseLoader(noLoader{})
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, err
	}
	return c.Compile(schemaURL)
}

// assertedFormats are those that the library asserts in drafts up to 7.
var assertedFormats = []string{"json-pointer", "relative-json-pointer", "uuid", "duration", "period", "ipv4", "ipv6", "hostname", "email",
	"date", "time", "date-time", "uri", "iri", "uri-reference", "iri-reference", "uri-template", "semver"}

// A pattern is a regular expression of a server's.
type pattern struct {
	source   string
	compiled *regexp.Regexp // nil: it can't be compiled
}

// compilePattern never fails: what can't be compiled matches anything.
func compilePattern(source string) (validator.Regexp, error) {
	re, err := regexp.Compile(goPattern(source))
	if err != nil {
		re = nil
	}
	return &pattern{source, re}, nil
}

func (p *pattern) String() string { return p.source }

func (p *pattern) MatchString(s string) bool { return p.compiled == nil || p.compiled.MatchString(s) }

var unicodeEscape = lazily(`(\\\\)|\\u([0-9A-Fa-f]{4})`)

// lazily compiles an expression when it is first asked for: what few processes
// need costs the start of none.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// unknownPattern reports whether n, a schema, has a pattern that Go can't
// compile.
func unknownPattern(n *node) bool {
	patterns := n.get("patternProperties").names()
	if p := n.get("pattern"); p != nil && p.kind == '"' {
		patterns = append(patterns, p.text)
	}
	return slices.ContainsFunc(patterns, func(p string) bool {
		_, err := regexp.Compile(goPattern(p))
		return err != nil
	})
}

// relax takes from n what would refuse arguments because a pattern in it, which
// Go can't compile, is taken to match anything.
func (n *node) relax() {
	for _, k := range []string{"not", "if", "oneOf", "contains"} {
		only := &node{kind: '{', keys: []string{k}, kids: []*node{n.get(k)}}
		if n.get(k) != nil && only.anyBelow(func(m *node) bool { return m.get("$ref") != nil || m.get("$dynamicRef") != nil || unknownPattern(m) }) {
			n.drop(k)
		}
	}
	patterns := n.get("patternProperties")
	for i, k := range patterns.names() {
		if _, err := regexp.Compile(goPattern(k)); err != nil {
			patterns.kids[i] = &node{text: "true"}
		}
	}
	n.subschemas(func(_ string, sub *node) { sub.relax() })
}

// goPattern is an ECMA 262 pattern in Go's syntax, as far as one is the other.
func goPattern(source string) string {
	if !strings.Contains(source, `\u`) {
		return source
	}
	return unicodeEscape().ReplaceAllStringFunc(source, func(m string) string {
		if m == `\\` {
			return m
		}
		return `\x{` + m[2:] + `}`
	})
}

// maxEffort is how many subschemas are tried on one call's arguments. A schema
// of a few lines can ask for more than any machine can do, so that a server
// would hold up whoever validates for it.
const maxEffort = 200_000

// An effort counts the subschemas that were tried.
type effort struct {
	mu   sync.Mutex // held while validating
	left int
}

var errEffort = errors.New("too much effort")

// compile is asked for each subschema that is an object.
func (e *effort) compile(_ *validator.CompilerContext, subschema map[string]any) (validator.SchemaExt, error) {
	length := func(keyword string) int {
		list, _ := subschema[keyword].([]any)
		return len(list)
	}
	// Those that fail early, like each of an anyOf, aren't counted themselves.
	cost := 1 + length("allOf") + length("anyOf") + length("oneOf") + length("prefixItems") + length("items") + length("enum")/64
	return &tried{e, cost}, nil
}

// tried is run when a subschema was tried.
type tried struct {
	of   *effort
	cost int
}

func (t *tried) Validate(*validator.ValidatorContext, any) {
	if t.of.left -= t.cost; t.of.left < 0 {
		panic(errEffort)
	}
}

// notASchema says on one line where doc breaks the rules of JSON Schema.
func (s *schema) notASchema(err error, doc any) error {
	var broken *validator.SchemaValidationError
	var ve *validator.ValidationError
	if !errors.As(err, &broken) || !errors.As(broken.Err, &ve) {
		return err
	}
	var says []string
	for _, v := range s.appendViolations(nil, ve, doc, false) {
		says = append(says, strings.TrimPrefix(v.path+": "+v.message, ": "))
	}
	return errors.New(clipChars(strings.Join(says, "; "), maxViolations))
}

type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, errors.New("a schema is never fetched: put it under $defs")
}

// checkRoot demands what every provider demands of a tool's schema.
func (s *schema) checkRoot() error {
	var root struct {
		Type any `json:"type"`
	}
	if err := json.Unmarshal(s.raw, &root); err != nil {
		return err
	}
	if root.Type != "object" {
		return errors.New(`its "type" is not "object": arguments are always an object`)
	}
	return nil
}

// derive sets the schema of t from the Go type of its arguments.
func (t *Tool) derive(in reflect.Type) {
	t.args = &schema{}
	base := in
	for base.Kind() == reflect.Pointer {
		base = base.Elem()
	}
	if base.Kind() != reflect.Struct && base.Kind() != reflect.Map {
		t.fail("its arguments are %v: want a struct or a map (or NewRawTool)", in)
		return
	}
	types := maps.Clone(typeSchemas)
	addTypeSchemas(types, base, map[reflect.Type]bool{})
	s, err := jsonschema.ForType(base, &jsonschema.ForOptions{TypeSchemas: types})
	if err != nil {
		t.fail("no schema can be derived from %v: %v", in, err)
		return
	}
	raw, err := json.Marshal(s)
	if err != nil {
		t.fail("the schema of %v can't be encoded: %v", in, err)
		return
	}
	t.setSchema(raw)
}

// typeSchemas are the types that encoding/json reads otherwise than their kind
// says.
var typeSchemas = map[reflect.Type]*jsonschema.Schema{
	reflect.TypeFor[json.Number]():     {Type: "number"},
	reflect.TypeFor[json.RawMessage](): {},
	reflect.TypeFor[[]byte]():          {Type: "string", ContentEncoding: "base64"},
	reflect.TypeFor[big.Int]():         {Type: "integer"},
}

// addTypeSchemas adds the types within t that read themselves from a text or,
// without a field to tell of, from any JSON.
func addTypeSchemas(types map[reflect.Type]*jsonschema.Schema, t reflect.Type, seen map[reflect.Type]bool) {
	if seen[t] || types[t] != nil {
		return
	}
	seen[t] = true
	p := reflect.PointerTo(t)
	if t.Kind() != reflect.Pointer && t.Kind() != reflect.Interface {
		isJSON := p.Implements(reflect.TypeFor[json.Unmarshaler]())
		switch {
		case t.PkgPath() == "time" || t.PkgPath() == "log/slog" || t.PkgPath() == "math/big":
			return // known to the library that derives
		case isJSON && !hasField(t):
			types[t] = &jsonschema.Schema{}
			return
		case !isJSON && p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
			types[t] = &jsonschema.Schema{Type: "string"}
			return
		}
	}
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() || f.Anonymous {
				addTypeSchemas(types, f.Type, seen)
			}
		}
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		addTypeSchemas(types, t.Elem(), seen)
	}
}

func hasField(t reflect.Type) bool {
	if t.Kind() != reflect.Struct {
		return false
	}
	for i := range t.NumField() {
		if t.Field(i).IsExported() {
			return true
		}
	}
	return false
}

// prepare returns args as one JSON object that matches the schema. Nothing,
// null and an empty string are {}; a JSON string that holds an object is that
// object; what isn't legal Unicode is repaired. Otherwise the bytes stay. The
// error is an *argumentsError.
func (s *schema) prepare(tool string, args json.RawMessage) (json.RawMessage, error) {
	args, _, err := argumentsObject(args)
	if err != nil {
		return nil, s.refuse(tool, []violation{{message: err.Error()}})
	}
	if s.compiled == nil {
		return args, nil
	}
	dec := json.NewDecoder(bytes.NewReader(args))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		return nil, s.refuse(tool, []violation{{message: err.Error()}})
	}
	if err := s.validate(doc); err != nil {
		return nil, s.refuse(tool, s.violations(err, doc))
	}
	return args, nil
}

func (s *schema) validate(doc any) (err error) {
	if s.effort != nil {
		s.effort.mu.Lock()
		defer s.effort.mu.Unlock()
		s.effort.left = maxEffort
	}
	defer func() {
		switch p := recover(); p {
		case nil:
		case errEffort:
			err = nil // left to the server
		default: // a library's, over a stranger's value
			err = fmt.Errorf("the arguments can't be validated: %v", p)
		}
	}()
	return s.compiled.Validate(doc)
}

// argumentsObject finds the object in what a model sent as arguments.
func argumentsObject(args []byte) (json.RawMessage, strictjson.Value, error) {
	for unwrapped := false; ; {
		args = bytes.Trim(args, " \t\r\n")
		if len(args) == 0 {
			return json.RawMessage("{}"), strictjson.Value{Kind: '{', Depth: 1}, nil
		}
		v, err := strictjson.Scan(args)
		if err == nil && v.Has(strictjson.Surrogate, strictjson.Encoding) {
			args, _ = strictjson.Repair(args)
			v, err = strictjson.Scan(args)
		}
		if err != nil && unwrapped {
			return nil, v, errors.New("got a string, want an object")
		}
		if err != nil {
			return nil, v, err
		}
		switch {
		case v.Kind == '{' && len(v.Problems) > 0:
			return nil, v, &strictjson.Error{Problems: v.Problems}
		case v.Kind == '{':
			return args, v, nil
		case v.Kind == 'n':
			args = nil
		case v.Kind == '"' && !unwrapped:
			var text string
			if err := json.Unmarshal(args, &text); err != nil {
				return nil, v, err
			}
			args, unwrapped = []byte(text), true
		default:
			return nil, v, fmt.Errorf("got %s, want an object", kindName(v.Kind))
		}
	}
}

func kindName(first byte) string {
	switch first {
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	}
	return "a number"
}

// maxWireDepth is how deep arguments may be nested in a request: parsers of
// providers stop at 128 or so, of the whole body, and would refuse each later
// request of the Run.
const maxWireDepth = 100

// wireArguments returns what a model sent as arguments as any provider takes
// it back: the object that prepare finds in it, a string's and a repaired one
// too, else {}. Arguments with a key twice, a number beyond a float64's or
// nested more than 100 deep are {}, since some parser refuses each.
func wireArguments(args []byte) json.RawMessage {
	obj, v, err := argumentsObject(args)
	if err != nil || v.Depth > maxWireDepth {
		return json.RawMessage("{}")
	}
	return obj
}

// decode decodes validated arguments into a pointer to the Go type.
func (s *schema) decode(tool string, args json.RawMessage, in any) error {
	dec := json.NewDecoder(bytes.NewReader(args))
	dec.UseNumber()
	err := dec.Decode(in)
	var te *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &te):
		return s.refuse(tool, []violation{{path: te.Field, message: fmt.Sprintf("got %s, want a value of Go type %v", te.Value, te.Type)}})
	}
	return s.refuse(tool, []violation{{message: err.Error()}})
}

// A violation is one way in which arguments don't match.
type violation struct {
	path    string
	message string
	where   []string // JSON pointers to the parts of the schema that matter
	nested  bool     // says why an alternative of the one before didn't match
}

// An argumentsError refuses the arguments of a call. Its message is for the
// model: what was wrong, then the schema or the part that matters, together at
// most 4,000 characters.
type argumentsError struct{ message string }

func (e *argumentsError) Error() string { return e.message }

// Bounds within an argumentsError, in characters.
const (
	maxViolation  = 400  // of one
	maxViolations = 2400 // of all of them, before "and N more"
)

func (s *schema) refuse(tool string, vs []violation) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Invalid arguments for %s:", clipChars(tool, 100))
	used := 0
	for i, v := range vs {
		line := "\n- "
		if v.nested {
			line = "\n  - "
		}
		if v.path != "" {
			line += clipChars(v.path, 200) + ": "
		}
		line = clipChars(line+v.message, maxViolation)
		if used += utf8.RuneCountInString(line); used > maxViolations {
			fmt.Fprintf(&b, "\n- … and %d more", len(vs)-i)
			break
		}
		b.WriteString(line)
	}
	message := strings.ToValidUTF8(b.String(), "\ufffd")
	return &argumentsError{clipChars(message+s.excerpt(vs, maxModelMessage-utf8.RuneCountInString(message)), maxModelMessage)}
}

// excerpt is the schema if it has at most room characters, else as many as fit
// of the parts that matter, the first of them cut if it must be.
func (s *schema) excerpt(vs []violation, room int) string {
	if len(s.raw) == 0 {
		return ""
	}
	const title = "\nSchema of the arguments: "
	if room -= len(title); utf8.RuneCount(s.raw) <= room {
		return title + string(s.raw)
	}
	var b strings.Builder
	seen := map[string]bool{}
	for _, v := range vs {
		for _, at := range v.where {
			part := s.part(at)
			if seen[at] || part == nil {
				continue
			}
			seen[at] = true
			line := fmt.Sprintf("\nSchema, at #%s: %s", at, part)
			n := utf8.RuneCountInString(line)
			if n > room && b.Len() == 0 {
				return clipChars(line, room)
			}
			if n <= room {
				b.WriteString(line)
				room -= n
			}
		}
	}
	if b.Len() == 0 {
		return clipChars(title+string(s.raw), room)
	}
	return b.String()
}

// part is the subschema at a JSON pointer, nil if there is none.
func (s *schema) part(pointer string) json.RawMessage {
	at := s.raw
	if pointer == "" {
		return at
	}
	for _, tok := range strings.Split(pointer, "/")[1:] {
		tok = strings.NewReplacer("~1", "/", "~0", "~").Replace(tok)
		var object map[string]json.RawMessage
		var array []json.RawMessage
		switch i, err := strconv.Atoi(tok); {
		case json.Unmarshal(at, &object) == nil:
			at = object[tok]
		case err == nil && json.Unmarshal(at, &array) == nil && i >= 0 && i < len(array):
			at = array[i]
		default:
			return nil
		}
		if at == nil {
			return nil
		}
	}
	return at
}

// violations flattens a validation error, in an order that depends on nothing
// but doc.
func (s *schema) violations(err error, doc any) []violation {
	var ve *validator.ValidationError
	if !errors.As(err, &ve) {
		return []violation{{message: err.Error()}}
	}
	return s.appendViolations(nil, ve, doc, false)
}

func (s *schema) appendViolations(vs []violation, e *validator.ValidationError, doc any, nested bool) []violation {
	alternatives := false
	switch e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf:
		alternatives = true
	}
	if alternatives || len(e.Causes) == 0 {
		v := violation{path: instancePath(e.InstanceLocation, doc), nested: nested}
		v.message, v.where = s.explain(e)
		vs = append(vs, v)
	}
	var causes []violation
	for _, c := range sortedCauses(e.Causes) {
		causes = s.appendViolations(causes, c, doc, nested || alternatives)
	}
	return append(vs, causes...)
}

func sortedCauses(causes []*validator.ValidationError) []*validator.ValidationError {
	causes = slices.Clone(causes)
	slices.SortStableFunc(causes, func(a, b *validator.ValidationError) int {
		return cmp.Or(slices.Compare(a.InstanceLocation, b.InstanceLocation), strings.Compare(a.SchemaURL, b.SchemaURL),
			slices.Compare(a.ErrorKind.KeywordPath(), b.ErrorKind.KeywordPath()))
	})
	return causes
}

// instancePath spells the way through doc as the rest of psych does.
func instancePath(tokens []string, doc any) string {
	path := ""
	for _, tok := range tokens {
		switch v := doc.(type) {
		case []any:
			i, err := strconv.Atoi(tok)
			if err != nil || i < 0 || i >= len(v) {
				return strictjson.Key(path, tok)
			}
			path, doc = strictjson.Index(path, i), v[i]
		case map[string]any:
			path, doc = strictjson.Key(path, tok), v[tok]
		default:
			return strictjson.Key(path, tok)
		}
	}
	return path
}

// explain says what a violation is, and where in the schema to look.
func (s *schema) explain(e *validator.ValidationError) (message string, where []string) {
	_, fragment, _ := strings.Cut(e.SchemaURL, "#")
	at, err := url.PathUnescape(fragment)
	if err != nil {
		at = ""
	}
	switch k := e.ErrorKind.(type) {
	case *kind.Type:
		return fmt.Sprintf("got %s, want %s", k.Got, strings.Join(k.Want, " or ")), []string{at}
	case *kind.Required:
		for _, m := range k.Missing {
			where = append(where, at+"/properties/"+pointerToken(m))
		}
		return "missing " + properties(k.Missing), append(where, at)
	case *kind.AdditionalProperties:
		slices.Sort(k.Properties)
		message = "unknown " + properties(k.Properties)
		var known map[string]json.RawMessage
		if json.Unmarshal(s.part(at+"/properties"), &known) == nil && len(known) > 0 {
			message += "; known: " + strings.Join(slices.Sorted(maps.Keys(known)), ", ")
		}
		return message, []string{at}
	case *kind.Enum:
		return "got " + shownJSON(k.Got) + ", want one of " + someOf(k.Want), []string{at}
	case *kind.Const:
		return "got " + shownJSON(k.Got) + ", want " + shownJSON(k.Want), []string{at}
	case *kind.Minimum:
		return "got " + ratText(k.Got) + ", want at least " + ratText(k.Want), []string{at}
	case *kind.Maximum:
		return "got " + ratText(k.Got) + ", want at most " + ratText(k.Want), []string{at}
	case *kind.ExclusiveMinimum:
		return "got " + ratText(k.Got) + ", want more than " + ratText(k.Want), []string{at}
	case *kind.ExclusiveMaximum:
		return "got " + ratText(k.Got) + ", want less than " + ratText(k.Want), []string{at}
	case *kind.MinLength:
		return fmt.Sprintf("has %d characters, want at least %d", k.Got, k.Want), []string{at}
	case *kind.MaxLength:
		return fmt.Sprintf("has %d characters, want at most %d", k.Got, k.Want), []string{at}
	case *kind.MinItems:
		return fmt.Sprintf("has %d items, want at least %d", k.Got, k.Want), []string{at}
	case *kind.MaxItems:
		return fmt.Sprintf("has %d items, want at most %d", k.Got, k.Want), []string{at}
	case *kind.Pattern:
		return "got " + shownJSON(k.Got) + ", want a match of the pattern " + k.Want, []string{at}
	case *kind.Format:
		return "got " + shownJSON(k.Got) + ", want the format " + k.Want, []string{at}
	case *kind.AnyOf:
		return "matches none of the alternatives of anyOf", []string{at}
	case *kind.OneOf:
		if len(k.Subschemas) > 0 {
			return fmt.Sprintf("matches more than one of the alternatives of oneOf: %v", k.Subschemas), []string{at}
		}
		return "matches none of the alternatives of oneOf", []string{at}
	case *kind.Not:
		return "matches what the schema forbids under not", []string{at}
	case *kind.FalseSchema:
		return "is not allowed here", []string{at}
	}
	bare := &validator.ValidationError{SchemaURL: e.SchemaURL, ErrorKind: e.ErrorKind}
	return strings.TrimPrefix(bare.Error(), "at '': "), []string{at}
}

func pointerToken(key string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(key) }

func properties(names []string) string {
	what := "property"
	if len(names) > 1 {
		what = "properties"
	}
	for i, n := range names {
		if i > 0 {
			what += ","
		}
		what += " " + strconv.Quote(clipChars(n, 80))
		if len(what) > maxViolation {
			break
		}
	}
	return what
}

// someOf lists the first values, and says how many there are.
func someOf(values []any) string {
	var b strings.Builder
	for i, v := range values {
		if i > 0 {
			b.WriteString(", ")
		}
		if b.Len() > maxViolation/2 {
			fmt.Fprintf(&b, "… (%d in all)", len(values))
			break
		}
		b.WriteString(shownJSON(v))
	}
	return b.String()
}

// shownJSON is a value as JSON, clipped.
func shownJSON(v any) string {
	if s, ok := v.(string); ok {
		return string(strictjson.AppendString(nil, clipChars(s, 60)))
	}
	b, err := json.Marshal(v)
	if err != nil {
		return "a value"
	}
	return clipChars(string(b), 60)
}

func ratText(r *big.Rat) string {
	if r.IsInt() {
		return clipChars(r.Num().String(), 60)
	}
	f, _ := r.Float64()
	return strconv.FormatFloat(f, 'g', -1, 64)
}
