package psych

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	validator "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/psych-go/psych-go/psych/internal/strictjson"
)

// maxShownDepth is how deep a schema may be nested in a request, whose parser
// stops at 128 or so, of the whole body.
const maxShownDepth = 100

// What gate and translation note of what they changed.
const (
	noteEmpty       = "no schema: any object"
	noteEncoding    = "invalid text replaced by U+FFFD"
	noteSchema      = "$schema dropped"
	noteNulls       = "keywords that are null dropped"
	noteArray       = "[] where an object belongs as {}"
	noteExclusive   = "exclusiveMinimum and exclusiveMaximum as numbers"
	noteItems       = "items of a tuple as prefixItems"
	noteDependency  = "dependencies as dependentRequired and dependentSchemas"
	noteID          = "id as $id"
	noteAnchor      = "$id of a fragment as $anchor"
	noteNullable    = "nullable as type null"
	noteSiblings    = "keywords beside $ref, which have no effect, dropped"
	noteRequired    = "names that required holds twice dropped"
	noteType        = "type object at the root"
	noteProperties  = "properties at the root"
	noteInlined     = "$ref at the root inlined"
	noteMerged      = "allOf, anyOf or oneOf at the root merged"
	noteArrays      = "items for each array"
	notePatterns    = "patterns that a provider can't compile told in the description"
	noteDefinitions = "definition that nothing refers to dropped"
)

// gate makes the definition of a server's tool acceptable to providers, where
// nothing is lost by it: notes say what was changed. Where something would be,
// reason says why the definition can't be shown, and shown is def as it is; the
// tool stays callable by call_tool. def.Name is the name on the wire.
//
// The schema that is shown is one of draft 2020-12 with an object at its root;
// what calls are validated by is the server's own ([compileTool]). Key order
// and the spelling of numbers stay.
//
// The rules are what providers were seen to refuse a whole request for, for
// the sake of one tool:
//
//   - OpenAI: a root that has not "type": "object" or has anyOf, oneOf, allOf,
//     enum, const or not ("schema must have type 'object' and not have …");
//     a root without properties ("object schema missing properties"); an array
//     without items, at any depth ("array schema missing items"); a pattern
//     with a lookaround ("regex lookaround is not supported") or one that
//     Python's re can't compile ("… is not a 'regex'"), in a key of
//     patternProperties too; whatever is against the metaschema ("… is not
//     valid under any of the given schemas"); a $ref that leads nowhere; a
//     description of over 1,024 and a name of over 64 characters.
//   - Anthropic, and Claude on Bedrock: anyOf, oneOf or allOf at the root
//     ("input_schema does not support …"); what is not draft 2020-12 ("It must
//     match JSON Schema draft 2020-12"); names of properties of the root, and
//     of it alone, outside of ^[a-zA-Z0-9_.-]{1,64}$ ("Property keys should
//     match pattern …").
//   - Bedrock's Converse: a root whose type is not object, names outside of
//     [a-zA-Z0-9_-]{1,64}.
//
// Lengths and names of properties are those of limits.
func gate(def ToolDef, limits ModelLimits) (shown ToolDef, notes []string, reason string) {
	shown = def
	if !utf8.ValidString(def.Description) {
		shown.Description = strings.ToValidUTF8(def.Description, "\ufffd")
		notes = append(notes, noteEncoding)
	}
	if n := utf8.RuneCountInString(def.Name); limits.ToolName > 0 && n > limits.ToolName {
		return def, nil, fmt.Sprintf("its name has %d characters: the provider takes %d", n, limits.ToolName)
	}
	if n := utf8.RuneCountInString(shown.Description); limits.ToolDescription > 0 && n > limits.ToolDescription {
		return def, nil, fmt.Sprintf("its description has %d characters: the provider takes %d", n, limits.ToolDescription)
	}
	root, changed, err := gateSchema(def.Schema)
	if err == nil {
		err = root.check(limits)
	}
	// What these dropped may have been against the metaschema.
	if dropped := []string{noteMerged, noteInlined, noteType, notePatterns}; err == nil &&
		slices.ContainsFunc(changed, func(n string) bool { return slices.Contains(dropped, n) }) {
		_, err = compileTool(def.Schema)
	}
	if err != nil {
		return def, nil, clipChars("its schema can't be shown: "+strings.ToValidUTF8(err.Error(), "\ufffd"), maxViolation)
	}
	for _, n := range changed {
		if !slices.Contains(notes, n) {
			notes = append(notes, n)
		}
	}
	shown.Schema = root.append(nil)
	return shown, notes, ""
}

// gateSchema returns raw as a schema of draft 2020-12 with an object at its
// root.
func gateSchema(raw json.RawMessage) (*node, []string, error) {
	var tr translation
	raw, repaired := strictjson.Repair(raw)
	if repaired {
		tr.note(noteEncoding)
	}
	switch string(bytes.TrimSpace(raw)) {
	case "", "null", "true":
		tr.note(noteEmpty)
		raw = json.RawMessage(`{}`)
	}
	s := schema{raw: raw}
	if err := s.canonicalize(); err != nil {
		return nil, nil, err
	}
	if v, err := strictjson.Scan(s.raw); err != nil || v.Depth > maxShownDepth {
		return nil, nil, fmt.Errorf("it is nested %d deep: want at most %d", v.Depth, maxShownDepth)
	}
	root, err := parseNode(s.raw)
	if err != nil {
		return nil, nil, err
	}
	if err := root.bounds(); err != nil {
		return nil, nil, err
	}
	tr.draft = root.draft()
	if tr.draft == validator.Draft2019 && bytes.Contains(s.raw, []byte(`"$recursiveRef"`)) {
		return nil, nil, errors.New("$recursiveRef, which draft 2020-12 lacks")
	}
	tr.translate(root)
	if err := tr.flatten(root); err != nil {
		return nil, nil, err
	}
	tr.portable(root)
	return root, tr.notes, nil
}

// check says what a provider would refuse of a schema that is draft 2020-12.
func (n *node) check(limits ModelLimits) error {
	for _, k := range []string{"anyOf", "oneOf", "allOf", "not", "enum", "const"} {
		if n.get(k) != nil {
			return fmt.Errorf("%s at the root, which providers refuse", k)
		}
	}
	if limits.PropertyName != "" {
		legal, err := regexp.Compile(limits.PropertyName)
		if err != nil {
			return fmt.Errorf("the provider's rule for names of properties is no regular expression: %w", err)
		}
		for _, k := range n.get("properties").names() {
			if !legal.MatchString(k) {
				return fmt.Errorf("its property %q: the provider takes names that match %s", clipChars(k, 80), limits.PropertyName)
			}
		}
	}
	anchors := map[string]bool{}
	n.anyBelow(func(m *node) bool {
		for _, k := range []string{"$anchor", "$dynamicAnchor"} {
			if a := m.get(k); a != nil && a.kind == '"' {
				anchors[a.text] = true
			}
		}
		return false
	})
	if err := n.checkBelow(n, anchors); err != nil {
		return err
	}
	s := schema{raw: n.append(nil)}
	if len(s.raw) > maxSchemaBytes {
		return fmt.Errorf("it has %d bytes: want at most %d", len(s.raw), maxSchemaBytes)
	}
	doc, err := validator.UnmarshalJSON(bytes.NewReader(s.raw))
	if err != nil {
		return err
	}
	_, err = compile(serverCompiler(validator.Draft2020), doc)
	var broken *validator.SchemaValidationError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &broken) && broken.URL == schemaURL+"#":
		return s.notASchema(err, doc)
	}
	// Which of several faults the library meets first is up to the order of a map.
	return errors.New("what its references lead to is not draft 2020-12")
}

// checkBelow finds a reference that leads out of the schema, or nowhere, and a
// pattern that an engine of a provider's doesn't take. base is what pointers
// within n start from.
func (n *node) checkBelow(base *node, anchors map[string]bool) (err error) {
	if n.get("$id") != nil && n != base {
		base = n
	}
	for _, k := range []string{"$ref", "$dynamicRef"} {
		ref := n.get(k)
		if ref == nil || ref.kind != '"' {
			continue
		}
		fragment, local := strings.CutPrefix(ref.text, "#")
		switch {
		case !local:
			return fmt.Errorf("%s %q leads out of it, and nothing is fetched", k, clipChars(ref.text, 100))
		case (fragment == "" || fragment[0] == '/') && base.at(fragment) == nil, fragment != "" && fragment[0] != '/' && !anchors[fragment]:
			return fmt.Errorf("%s %q leads nowhere", k, clipChars(ref.text, 100))
		}
	}
	patterns := n.get("patternProperties").names()
	if p := n.get("pattern"); p != nil && p.kind == '"' {
		patterns = append(patterns, p.text)
	}
	for _, p := range patterns {
		if !portablePattern(p) {
			return fmt.Errorf("the pattern %q, which providers can't compile", clipChars(p, 100))
		}
	}
	n.subschemas(func(_ string, sub *node) {
		if err == nil {
			err = sub.checkBelow(base, anchors)
		}
	})
	return err
}

// A translation makes a schema of any draft one of 2020-12.
type translation struct {
	draft *validator.Draft // as the schema declares it; nil: it declares none that is known
	notes []string         // in the order in which they first applied
}

func (tr *translation) note(n string) {
	if !tr.did(n) {
		tr.notes = append(tr.notes, n)
	}
}

func (tr *translation) did(n string) bool { return slices.Contains(tr.notes, n) }

// upTo7 reports whether the schema declares itself one of draft 4, 6 or 7.
func (tr *translation) upTo7() bool {
	return tr.draft == validator.Draft4 || tr.draft == validator.Draft6 || tr.draft == validator.Draft7
}

// assertions are the keywords that have an effect on what is valid.
var assertions = []string{
	"$id", "id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor",
	"type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength", "minLength", "pattern",
	"maxItems", "minItems", "uniqueItems", "maxContains", "minContains", "maxProperties", "minProperties", "required", "dependentRequired",
	"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies", "prefixItems", "items", "additionalItems", "contains",
	"properties", "patternProperties", "additionalProperties", "propertyNames", "unevaluatedItems", "unevaluatedProperties", "nullable", "format",
}

// noNull are further keywords whose value is never null.
var noNull = []string{"$schema", "$ref", "$defs", "definitions", "$comment", "title", "description", "examples", "readOnly", "writeOnly", "deprecated",
	"contentEncoding", "contentMediaType", "contentSchema"}

// mapKeywords are those whose value is an object with a schema, or names, for
// each name.
var mapKeywords = []string{"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependentRequired", "dependencies"}

// translate changes n and all below it. What is illegal in 2020-12 and means
// something in an older draft is translated whatever n declares; what is legal
// and means something else, only where it does.
func (tr *translation) translate(n *node) {
	if n.kind != '{' {
		return
	}
	n.subschemas(func(_ string, sub *node) { tr.translate(sub) })

	for i := len(n.keys) - 1; i >= 0; i-- {
		switch k, v := n.keys[i], n.kids[i]; {
		// Serializers of typed languages write null for what isn't set.
		case v.kind == 'n' && k != "const" && k != "type" && (slices.Contains(assertions, k) || slices.Contains(noNull, k)):
			n.drop(k)
			tr.note(noteNulls)
		// PHP has one type for both.
		case v.kind == '[' && len(v.kids) == 0 && slices.Contains(mapKeywords, k):
			v.kind = '{'
			tr.note(noteArray)
		}
	}
	if n.drop("$schema") {
		tr.note(noteSchema)
	}
	if ref := n.get("$ref"); ref != nil && ref.kind == '"' && tr.upTo7() {
		for _, k := range assertions {
			if n.drop(k) {
				tr.note(noteSiblings)
			}
		}
		return
	}
	tr.exclusive(n, "exclusiveMinimum", "minimum")
	tr.exclusive(n, "exclusiveMaximum", "maximum")
	tr.tuple(n)
	if tr.upTo7() {
		tr.dependencies(n)
	}
	tr.ids(n)
	if v := n.get("nullable"); v.is("true") && n.get("type").addNull() {
		n.drop("nullable")
		tr.note(noteNullable)
	}
	if r := n.get("required"); r != nil && r.kind == '[' && r.unique() {
		tr.note(noteRequired)
	}
}

// exclusive translates the boolean of draft 4.
func (tr *translation) exclusive(n *node, exclusive, bound string) {
	switch v, b := n.get(exclusive), n.get(bound); {
	case v.is("true") && b != nil:
		n.set(exclusive, b)
		n.drop(bound)
	case v.is("true"), v.is("false"):
		n.drop(exclusive)
	default:
		return
	}
	tr.note(noteExclusive)
}

// tuple translates items of drafts up to 2019-09, where it is an array.
func (tr *translation) tuple(n *node) {
	items := n.get("items")
	if items == nil || items.kind != '[' || n.get("prefixItems") != nil {
		return
	}
	n.rename("items", "prefixItems")
	if len(items.kids) == 0 {
		n.drop("prefixItems")
	}
	n.rename("additionalItems", "items")
	tr.note(noteItems)
}

// dependencies translates the one keyword that later drafts made two of.
func (tr *translation) dependencies(n *node) {
	deps := n.get("dependencies")
	if deps == nil || deps.kind != '{' || n.get("dependentRequired") != nil || n.get("dependentSchemas") != nil {
		return
	}
	required, schemas := &node{kind: '{'}, &node{kind: '{'}
	for i, k := range deps.keys {
		switch d := deps.kids[i]; d.kind {
		case '[':
			required.set(k, d)
		case '"': // of draft 3
			required.set(k, &node{kind: '[', kids: []*node{d}})
		default:
			schemas.set(k, d)
		}
	}
	n.rename("dependencies", "dependentRequired")
	n.set("dependentRequired", required)
	if len(schemas.keys) > 0 {
		n.set("dependentSchemas", schemas)
	}
	if len(required.keys) == 0 {
		n.drop("dependentRequired")
	}
	tr.note(noteDependency)
}

var anchorName = lazily(`^[A-Za-z_][-A-Za-z0-9._]*$`)

// ids translates names of schemas of drafts up to 7.
func (tr *translation) ids(n *node) {
	if id := n.get("id"); tr.draft == validator.Draft4 && id != nil && id.kind == '"' && n.get("$id") == nil {
		n.rename("id", "$id")
		tr.note(noteID)
	}
	id := n.get("$id")
	if id == nil || id.kind != '"' {
		return
	}
	before, fragment, _ := strings.Cut(id.text, "#")
	if fragment == "" {
		return
	}
	if before == "" {
		n.drop("$id")
	} else {
		n.set("$id", textNode(before))
	}
	// Another fragment, like a JSON pointer, names what is where it is anyway.
	if anchorName().MatchString(fragment) && n.get("$anchor") == nil {
		n.set("$anchor", textNode(fragment))
	}
	tr.note(noteAnchor)
}

// flatten makes the root of a translated schema a plain object.
func (tr *translation) flatten(root *node) error {
	if root.kind != '{' {
		return errors.New("it is false: it takes no arguments at all")
	}
	// Each round takes one thing off the root; a chain of $refs may be endless.
	for range 100 {
		if ref := root.get("$ref"); ref != nil && ref.kind == '"' {
			if err := tr.inline(root, ref.text); err != nil {
				return err
			}
			continue
		}
		if !tr.mergeOne(root) {
			return tr.object(root)
		}
	}
	return errors.New("its root refers to itself, or is put together of too many parts")
}

// inline puts what the root's $ref leads to in its place.
func (tr *translation) inline(root *node, ref string) error {
	fragment, local := strings.CutPrefix(ref, "#")
	target := (*node)(nil)
	if local && strings.HasPrefix(fragment, "/") {
		target = root.at(fragment)
	}
	if target == nil || target.kind != '{' {
		return fmt.Errorf("$ref %q at the root does not lead to a schema in it", clipChars(ref, 100))
	}
	target = target.clone() // which refers to itself, maybe
	if !root.merge("$ref", target) {
		return fmt.Errorf("$ref %q at the root can't be inlined beside the other keywords", clipChars(ref, 100))
	}
	tr.note(noteInlined)
	if tr.forget(root, fragment) {
		tr.note(noteDefinitions)
	}
	return nil
}

// forget drops a definition that nothing refers to.
func (tr *translation) forget(root *node, pointer string) bool {
	container, name, ok := strings.Cut(strings.TrimPrefix(pointer, "/"), "/")
	defs := root.get(container)
	if !ok || container != "$defs" && container != "definitions" || strings.Contains(name, "/") || defs == nil || defs.kind != '{' {
		return false
	}
	name, ok = unescapePointer(name)
	if !ok || defs.get(name) == nil {
		return false
	}
	if root.anyBelow(func(n *node) bool {
		for _, k := range []string{"$ref", "$dynamicRef"} {
			// A name of another kind than a pointer may be of anything.
			if ref := n.get(k); ref != nil && ref.kind == '"' && (!strings.HasPrefix(ref.text, "#/") || strings.Contains(ref.text+pointer, "%") ||
				strings.HasPrefix(ref.text+"/", "#"+pointer+"/")) {
				return true
			}
		}
		return false
	}) {
		return false
	}
	defs.drop(name)
	if len(defs.keys) == 0 {
		root.drop(container)
	}
	return true
}

// mergeOne merges into the root what it must match anyway: a member of allOf,
// or the only one of anyOf or oneOf.
func (tr *translation) mergeOne(root *node) bool {
	for _, k := range []string{"allOf", "anyOf", "oneOf"} {
		list := root.get(k)
		if list == nil || list.kind != '[' || len(list.kids) == 0 || k != "allOf" && len(list.kids) > 1 {
			continue
		}
		trial := root.clone()
		list = trial.get(k)
		part := list.kids[0]
		list.kids = list.kids[1:]
		if part.is("true") {
			part = &node{kind: '{'}
		}
		at := ""
		if len(list.kids) == 0 {
			at = k
		}
		if part.kind != '{' || !trial.merge(at, part) {
			continue
		}
		*root = *trial
		tr.note(noteMerged)
		return true
	}
	return false
}

// object gives the root the type and the properties that providers ask for.
func (tr *translation) object(root *node) error {
	switch t := root.get("type"); {
	case t == nil:
		root.prepend("type", textNode("object"))
		tr.note(noteType)
	case !t.admits("object"):
		return fmt.Errorf("its type is %s: arguments are always an object", clipChars(string(t.append(nil)), 100))
	case t.kind == '[':
		root.set("type", textNode("object"))
		tr.note(noteType)
	}
	if root.get("properties") == nil {
		root.set("properties", &node{kind: '{'})
		tr.note(noteProperties)
	}
	return nil
}

// portable spells what is legal, and refused by some provider, so that all
// take it.
func (tr *translation) portable(root *node) {
	// Items that are allowed to be anything count as evaluated.
	items := !bytes.Contains(root.append(nil), []byte(`"unevaluatedItems"`))
	var visit func(n *node, loosen bool)
	visit = func(n *node, loosen bool) {
		if n.kind != '{' {
			return
		}
		if t := n.get("type"); t != nil && t.admits("array") && n.get("items") == nil && items {
			n.set("items", &node{kind: '{'})
			tr.note(noteArrays)
		}
		if p := n.get("pattern"); loosen && p != nil && p.kind == '"' && !portablePattern(p.text) {
			told := "Must match the regular expression " + p.text
			if d := n.get("description"); d != nil && d.kind == '"' && d.text != "" {
				told = d.text + " (" + told + ")"
			}
			n.drop("pattern")
			n.set("description", textNode(told))
			tr.note(notePatterns)
		}
		n.subschemas(func(in string, sub *node) {
			// There, more that matches is less that is valid.
			visit(sub, loosen && in != "not" && in != "if" && in != "oneOf")
		})
	}
	visit(root, true)
}

var (
	repeatCount = lazily(`\{([0-9]*)(,?)([0-9]*)\}`)
	inlineFlags = lazily(`\(\?[a-zA-Z]*-?[a-zA-Z]*[:)]`)
)

// portablePattern reports whether both engines that providers were seen to
// compile patterns with take one: Python's re, and one that like Go's has no
// lookaround.
func portablePattern(p string) bool {
	for i := 0; i+1 < len(p); i++ {
		if p[i] != '\\' {
			continue
		}
		i++
		if c := p[i]; (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z') && !strings.ContainsRune("AbBdDsSwWafnrtvxu", rune(c)) {
			return false
		} else if c == 'x' && strings.HasPrefix(p[i+1:], "{") {
			return false
		}
	}
	if strings.Contains(p, "(?<") || strings.Contains(p, "(?P<") || len(inlineFlags().FindAllString(strings.ReplaceAll(p, "(?:", "("), -1)) > 0 {
		return false
	}
	// Go has a limit on counts of its own.
	p = repeatCount().ReplaceAllStringFunc(goPattern(p), func(m string) string {
		parts := repeatCount().FindStringSubmatch(m)
		for _, i := range []int{1, 3} {
			if n, err := strconv.Atoi(parts[i]); parts[i] != "" && (err != nil || n > 1000) {
				parts[i] = "1000"
			}
		}
		return "{" + parts[1] + parts[2] + parts[3] + "}"
	})
	_, err := regexp.Compile(p)
	return err == nil
}

// A node is a JSON value whose keys keep their order and whose numbers keep
// their spelling.
type node struct {
	kind byte   // one of { [ " n, 0 for another scalar
	text string // of a string: what it says; of another scalar: as it is spelt
	keys []string
	kids []*node
}

func textNode(s string) *node { return &node{kind: '"', text: s} }

// parseNode reads canonical JSON that isn't nested deeper than maxSchemaDepth.
func parseNode(raw []byte) (*node, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	return readNode(dec)
}

func readNode(dec *json.Decoder) (*node, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch v := tok.(type) {
	case string:
		return textNode(v), nil
	case json.Number:
		return &node{text: v.String()}, nil
	case bool:
		return &node{text: strconv.FormatBool(v)}, nil
	case json.Delim:
		n := &node{kind: byte(v)}
		for dec.More() {
			if n.kind == '{' {
				key, err := dec.Token()
				if err != nil {
					return nil, err
				}
				n.keys = append(n.keys, key.(string))
			}
			kid, err := readNode(dec)
			if err != nil {
				return nil, err
			}
			n.kids = append(n.kids, kid)
		}
		_, err = dec.Token()
		return n, err
	}
	return &node{kind: 'n', text: "null"}, nil
}

// append appends n as canonical JSON.
func (n *node) append(b []byte) []byte {
	switch n.kind {
	case '{', '[':
		b = append(b, n.kind)
		for i, kid := range n.kids {
			if i > 0 {
				b = append(b, ',')
			}
			if n.kind == '{' {
				b = append(strictjson.AppendString(b, n.keys[i]), ':')
			}
			b = kid.append(b)
		}
		return append(b, n.kind+2) // '}' and ']' stand two behind '{' and '['
	case '"':
		return strictjson.AppendString(b, n.text)
	}
	return append(b, n.text...)
}

func (n *node) clone() *node {
	c := &node{kind: n.kind, text: n.text, keys: slices.Clone(n.keys), kids: slices.Clone(n.kids)}
	for i, kid := range c.kids {
		c.kids[i] = kid.clone()
	}
	return c
}

// names are the keys of an object, none of anything else.
func (n *node) names() []string {
	if n == nil {
		return nil
	}
	return slices.Clone(n.keys)
}

// get is the member of an object, nil if there is none.
func (n *node) get(key string) *node {
	if n == nil {
		return nil
	}
	if i := slices.Index(n.keys, key); i >= 0 {
		return n.kids[i]
	}
	return nil
}

// set puts a member in the place that it has, or at the end.
func (n *node) set(key string, v *node) {
	if i := slices.Index(n.keys, key); i >= 0 {
		n.kids[i] = v
		return
	}
	n.keys, n.kids = append(n.keys, key), append(n.kids, v)
}

func (n *node) prepend(key string, v *node) {
	n.keys, n.kids = slices.Insert(n.keys, 0, key), slices.Insert(n.kids, 0, v)
}

func (n *node) drop(key string) bool {
	i := slices.Index(n.keys, key)
	if i < 0 {
		return false
	}
	n.keys, n.kids = slices.Delete(n.keys, i, i+1), slices.Delete(n.kids, i, i+1)
	return true
}

// rename renames a member in its place, where there is one.
func (n *node) rename(from, to string) {
	if i := slices.Index(n.keys, from); i >= 0 {
		n.keys[i] = to
	}
}

// is reports whether n is that scalar other than a string.
func (n *node) is(scalar string) bool { return n != nil && n.kind == 0 && n.text == scalar }

func (n *node) equal(m *node) bool { return bytes.Equal(n.append(nil), m.append(nil)) }

// admits reports whether n, of the keyword type, names t.
func (n *node) admits(t string) bool {
	if n.kind == '[' {
		return slices.ContainsFunc(n.kids, func(k *node) bool { return k.kind == '"' && k.text == t })
	}
	return n.kind == '"' && n.text == t
}

// addNull makes n, of the keyword type, name null. It reports whether it does.
func (n *node) addNull() bool {
	switch {
	case n == nil:
		return false
	case n.kind == '"' && n.text != "null":
		*n = node{kind: '[', kids: []*node{textNode(n.text), textNode("null")}}
	case n.kind == '[' && !n.admits("null"):
		n.kids = append(n.kids, textNode("null"))
	}
	return n.admits("null")
}

// unique drops the elements of an array that are there already.
func (n *node) unique() (dropped bool) {
	seen := map[string]bool{}
	n.kids = slices.DeleteFunc(n.kids, func(k *node) bool {
		s := string(k.append(nil))
		twice := seen[s]
		seen[s] = true
		dropped = dropped || twice
		return twice
	})
	return dropped
}

// at is what a JSON pointer leads to, nil if that is nothing.
func (n *node) at(pointer string) *node {
	if pointer == "" {
		return n
	}
	for _, tok := range strings.Split(pointer, "/")[1:] {
		tok, ok := unescapePointer(tok)
		if !ok {
			return nil
		}
		switch {
		case n == nil:
			return nil
		case n.kind == '[':
			i, err := strconv.Atoi(tok)
			if err != nil || i < 0 || i >= len(n.kids) {
				return nil
			}
			n = n.kids[i]
		default:
			n = n.get(tok)
		}
	}
	return n
}

// unescapePointer decodes a token of a JSON pointer in a URL's fragment.
func unescapePointer(tok string) (string, bool) {
	tok, err := url.PathUnescape(tok)
	return strings.NewReplacer("~1", "/", "~0", "~").Replace(tok), err == nil
}

// subschemas calls f for each schema that n, a schema of any draft, holds
// directly, with the keyword that it stands under. f may change the schema, but
// not what n holds.
func (n *node) subschemas(f func(in string, sub *node)) {
	if n.kind != '{' {
		return
	}
	for i, k := range n.keys {
		kid := n.kids[i]
		switch k {
		case "additionalProperties", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else",
			"unevaluatedProperties", "unevaluatedItems", "contentSchema":
			f(k, kid)
		case "items":
			if kid.kind != '[' {
				f(k, kid)
				continue
			}
			fallthrough
		case "allOf", "anyOf", "oneOf", "prefixItems":
			if kid.kind == '[' {
				for _, sub := range kid.kids {
					f(k, sub)
				}
			}
		case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies":
			if kid.kind == '{' {
				for _, sub := range kid.kids {
					if sub.kind != '[' { // of dependencies: names
						f(k, sub)
					}
				}
			}
		}
	}
}

// bounds says why n is too much to compile, which costs up to the square of
// what is counted here.
func (n *node) bounds() error {
	size := 0
	var measure func(*node)
	measure = func(m *node) {
		if m.kind == '{' || m.is("true") || m.is("false") {
			size++
		}
		for _, kid := range m.kids {
			measure(kid)
		}
		size = max(size, len(m.keys))
	}
	if measure(n); size > maxSubschemas {
		return fmt.Errorf("it has %d objects and booleans, or members of one: want at most %d", size, maxSubschemas)
	}
	var refs []string
	near := map[*node]bool{}
	n.anyBelow(func(m *node) bool {
		near[m] = true
		for _, k := range []string{"$ref", "$dynamicRef", "$recursiveRef"} {
			if ref := m.get(k); ref != nil && ref.kind == '"' {
				refs = append(refs, ref.text)
			}
		}
		return false
	})
	far := map[string]bool{}
	for _, ref := range refs {
		if !near[n.at(strings.TrimPrefix(ref, "#"))] {
			far[ref] = true
		}
	}
	if len(far) > maxFarRefs {
		return fmt.Errorf("it refers to %d places where no schema belongs: want at most %d", len(far), maxFarRefs)
	}
	return nil
}

// draft is the one that n declares, nil if it is none that is known.
func (n *node) draft() *validator.Draft {
	s := n.get("$schema")
	if s == nil || s.kind != '"' {
		return nil
	}
	name := strings.TrimRight(strings.TrimSpace(s.text), "#/")
	name = strings.TrimPrefix(strings.TrimPrefix(name, "http://"), "https://")
	switch strings.TrimPrefix(name, "json-schema.org/") {
	case "draft-04/schema":
		return validator.Draft4
	case "draft-06/schema":
		return validator.Draft6
	case "draft-07/schema":
		return validator.Draft7
	case "draft/2019-09/schema":
		return validator.Draft2019
	case "draft/2020-12/schema", "schema":
		return validator.Draft2020
	}
	return nil
}

// anyBelow reports whether f holds for n or a schema in it.
func (n *node) anyBelow(f func(*node) bool) bool {
	found := f(n)
	n.subschemas(func(_ string, sub *node) { found = found || sub.anyBelow(f) })
	return found
}

// merge puts the members of part, which n must match too, in the place of n's
// own member at ("": at the end). It reports whether that means the same; if
// not, n is spoilt.
func (n *node) merge(at string, part *node) bool {
	own := func(keys ...string) bool {
		return slices.ContainsFunc(keys, func(k string) bool { return k != at && n.get(k) != nil })
	}
	its := func(keys ...string) bool {
		return slices.ContainsFunc(keys, func(k string) bool { return part.get(k) != nil })
	}
	// What these mean depends on what stands beside them, or on where they are.
	closed := []string{"additionalProperties", "unevaluatedProperties"}
	open := []string{"properties", "patternProperties"}
	cond := []string{"if", "then", "else"}
	switch {
	case own(closed...) && its(append(open, closed...)...),
		its(closed...) && own(append(open, closed...)...),
		own(cond...) && its(cond...),
		its("$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef"):
		return false
	}
	i := len(n.keys)
	if at != "" {
		i = slices.Index(n.keys, at)
		n.drop(at)
	}
	for j, k := range part.keys {
		theirs := part.kids[j]
		mine := n.get(k)
		switch {
		case mine == nil:
			n.keys, n.kids = slices.Insert(n.keys, i, k), slices.Insert(n.kids, i, theirs)
			i++
		case mine.equal(theirs):
		case k == "type" && mine.admits("object") && theirs.admits("object"):
			n.set(k, textNode("object")) // as arguments are
		case k == "required" && mine.kind == '[' && theirs.kind == '[':
			mine.kids = append(mine.kids, theirs.kids...)
			mine.unique()
		case k == "allOf" && mine.kind == '[' && theirs.kind == '[':
			mine.kids = append(mine.kids, theirs.kids...)
		case (slices.Contains(open, k) || k == "$defs" || k == "definitions") && mine.kind == '{' && theirs.kind == '{':
			for l, name := range theirs.keys {
				if has := mine.get(name); has != nil && !has.equal(theirs.kids[l]) {
					return false
				}
				mine.set(name, theirs.kids[l])
			}
		case slices.Contains([]string{"title", "description", "default", "examples", "$comment", "readOnly", "writeOnly", "deprecated"}, k):
			// The one that is nearer to the tool says more of it.
		default:
			return false
		}
	}
	return true
}
