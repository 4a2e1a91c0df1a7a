package psych

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/psych-go/psych-go/psych/internal/strictjson"
)

const (
	draft4 = `"$schema":"http://json-schema.org/draft-04/schema#"`
	draft6 = `"$schema":"http://json-schema.org/draft-06/schema#"`
	draft7 = `"$schema":"http://json-schema.org/draft-07/schema#"`
	draft9 = `"$schema":"https://json-schema.org/draft/2019-09/schema"`
	draft0 = `"$schema":"https://json-schema.org/draft/2020-12/schema"`
)

func TestGateNormalizes(t *testing.T) {
	for _, c := range []struct {
		in, want string
		notes    []string
	}{
		{`{"type":"object","properties":{}}`, `{"type":"object","properties":{}}`, nil},
		// What there is no need to change stays: order, numbers, what nobody knows.
		{"{ \"x-own\": [1.0, 1e2],\n \"properties\": {\"b\":{\"minimum\":1.50},\"a\":{\"enum\":[12345678901234567890]}}, \"type\": \"object\" }",
			`{"x-own":[1.0,1e2],"properties":{"b":{"minimum":1.50},"a":{"enum":[12345678901234567890]}},"type":"object"}`, nil},
		{``, `{"type":"object","properties":{}}`, []string{noteEmpty, noteType, noteProperties}},
		{`null`, `{"type":"object","properties":{}}`, []string{noteEmpty, noteType, noteProperties}},
		{` true `, `{"type":"object","properties":{}}`, []string{noteEmpty, noteType, noteProperties}},
		{`{}`, `{"type":"object","properties":{}}`, []string{noteType, noteProperties}},
		{`{"properties":{"a":true}}`, `{"type":"object","properties":{"a":true}}`, []string{noteType}},
		{`{"type":["object","null"],"properties":{}}`, `{"type":"object","properties":{}}`, []string{noteType}},
		{`{"type":"object","required":["a"]}`, `{"type":"object","required":["a"],"properties":{}}`, []string{noteProperties}},
		{"{\"type\":\"object\",\"properties\":{\"a\":{\"title\":\"\xff\\ud800\"}}}", `{"type":"object","properties":{"a":{"title":"` + "\ufffd\ufffd" + `"}}}`, []string{noteEncoding}},

		// Drafts.
		{`{` + draft0 + `,"type":"object","properties":{}}`, `{"type":"object","properties":{}}`, []string{noteSchema}},
		{`{"type":"object","properties":{"a":{"minimum":0,"exclusiveMinimum":true,"maximum":9.0,"exclusiveMaximum":false}}}`,
			`{"type":"object","properties":{"a":{"exclusiveMinimum":0,"maximum":9.0}}}`, []string{noteExclusive}},
		{`{"type":"object","properties":{"a":{"exclusiveMinimum":true}}}`, `{"type":"object","properties":{"a":{}}}`, []string{noteExclusive}},
		{`{"type":"object","properties":{"a":{"type":"array","items":[{"type":"string"},{}],"additionalItems":false}}}`,
			`{"type":"object","properties":{"a":{"type":"array","prefixItems":[{"type":"string"},{}],"items":false}}}`, []string{noteItems}},
		{`{"type":"object","properties":{"a":{"type":"array","items":[{"type":"string"}]}}}`,
			`{"type":"object","properties":{"a":{"type":"array","prefixItems":[{"type":"string"}],"items":{}}}}`, []string{noteItems, noteArrays}},
		{`{"type":"object","properties":{"a":{"items":[],"additionalItems":{"type":"string"}}}}`, `{"type":"object","properties":{"a":{"items":{"type":"string"}}}}`, []string{noteItems}},
		{`{` + draft7 + `,"type":"object","properties":{},"dependencies":{"a":["b"],"c":{"required":["d"]}}}`,
			`{"type":"object","properties":{},"dependentRequired":{"a":["b"]},"dependentSchemas":{"c":{"required":["d"]}}}`, []string{noteSchema, noteDependency}},
		{`{` + draft7 + `,"type":"object","properties":{},"dependencies":{"c":{"required":["d"]}}}`,
			`{"type":"object","properties":{},"dependentSchemas":{"c":{"required":["d"]}}}`, []string{noteSchema, noteDependency}},
		{`{"type":"object","properties":{},"dependencies":{"a":["b"]}}`, `{"type":"object","properties":{},"dependencies":{"a":["b"]}}`, nil},
		{`{` + draft4 + `,"id":"http://x.org/s","type":"object","properties":{"id":{"id":"#a-b"},"x":{"$ref":"#a-b"}}}`,
			`{"$id":"http://x.org/s","type":"object","properties":{"id":{"$anchor":"a-b"},"x":{"$ref":"#a-b"}}}`, []string{noteID, noteAnchor, noteSchema}},
		{`{` + draft7 + `,"$id":"http://x.org/s#","type":"object","properties":{"a":{"$id":"#/properties/a"}}}`,
			`{"$id":"http://x.org/s#","type":"object","properties":{"a":{}}}`, []string{noteAnchor, noteSchema}},
		{`{` + draft7 + `,"type":"object","properties":{"a":{"$ref":"#/definitions/A","description":"d","minLength":3}},"definitions":{"A":{"$ref":"#/definitions/A"}}}`,
			`{"type":"object","properties":{"a":{"$ref":"#/definitions/A","description":"d"}},"definitions":{"A":{"$ref":"#/definitions/A"}}}`, []string{noteSiblings, noteSchema}},
		{`{"type":"object","properties":{"a":{"$ref":"#/$defs/A","minLength":3}},"$defs":{"A":{}}}`,
			`{"type":"object","properties":{"a":{"$ref":"#/$defs/A","minLength":3}},"$defs":{"A":{}}}`, nil},
		{`{"type":"object","properties":{"a":{"type":"string","nullable":true},"b":{"type":["string","null"],"nullable":true},"c":{"nullable":true},"d":{"type":"string","nullable":false}}}`,
			`{"type":"object","properties":{"a":{"type":["string","null"]},"b":{"type":["string","null"]},"c":{"nullable":true},"d":{"type":"string","nullable":false}}}`, []string{noteNullable}},
		{`{"type":"object","properties":{"nullable":{},"$schema":{},"items":{"default":null},"exclusiveMinimum":{"enum":[true,null]}}}`,
			`{"type":"object","properties":{"nullable":{},"$schema":{},"items":{"default":null},"exclusiveMinimum":{"enum":[true,null]}}}`, nil},
		{`{"type":"object","title":null,"properties":{"a":{"const":null,"enum":null,"default":null,"pattern":null}},"required":null}`,
			`{"type":"object","properties":{"a":{"const":null,"default":null}}}`, []string{noteNulls}},
		{`{"type":"object","properties":[],"required":[]}`, `{"type":"object","properties":{},"required":[]}`, []string{noteArray}},
		{`{"type":"object","properties":{},"required":["b","a","b"]}`, `{"type":"object","properties":{},"required":["b","a"]}`, []string{noteRequired}},

		// The root.
		{`{"$ref":"#/$defs/A","$defs":{"A":{"type":"object","properties":{"b":{"$ref":"#/$defs/B"}}},"B":{"type":"string"}}}`,
			`{"type":"object","properties":{"b":{"$ref":"#/$defs/B"}},"$defs":{"B":{"type":"string"}}}`, []string{noteInlined, noteDefinitions}},
		{`{` + draft7 + `,"$ref":"#/definitions/a~1b","definitions":{"a/b":{"type":"object","properties":{"next":{"$ref":"#/definitions/a~1b"}}}}}`,
			`{"type":"object","properties":{"next":{"$ref":"#/definitions/a~1b"}},"definitions":{"a/b":{"type":"object","properties":{"next":{"$ref":"#/definitions/a~1b"}}}}}`, []string{noteSchema, noteInlined}},
		{`{"$ref":"#/$defs/A","description":"mine","type":"object","$defs":{"A":{"$ref":"#/$defs/B"},"B":{"description":"its","type":["object"],"required":["a"]}}}`,
			`{"required":["a"],"description":"mine","type":"object","properties":{}}`, []string{noteInlined, noteDefinitions, noteProperties}},
		{`{"type":"object","properties":{"a":{}},"required":["a"],"allOf":[{"properties":{"b":{}},"required":["b","a"]}]}`,
			`{"type":"object","properties":{"a":{},"b":{}},"required":["a","b"]}`, []string{noteMerged}},
		{`{"allOf":[{"$ref":"#/$defs/A"},true,{"minProperties":1}],"$defs":{"A":{"properties":{"a":{}},"additionalProperties":false}}}`,
			`{"type":"object","minProperties":1,"properties":{"a":{}},"additionalProperties":false}`, []string{noteMerged, noteInlined, noteDefinitions, noteType}},
		{`{"oneOf":[{"anyOf":[{"type":"object"}]}]}`, `{"type":"object","properties":{}}`, []string{noteMerged, noteProperties}},

		// What is legal, and refused by some.
		{`{"type":"object","properties":{"a":{"anyOf":[{"type":["array","string"]},{"type":"array","prefixItems":[{}]}]}}}`,
			`{"type":"object","properties":{"a":{"anyOf":[{"type":["array","string"],"items":{}},{"type":"array","prefixItems":[{}],"items":{}}]}}}`, []string{noteArrays}},
		{`{"type":"object","properties":{"a":{"type":"string","pattern":"^(?!undefined$)"},"b":{"pattern":"\\p{L}","description":"A letter."},"c":{"pattern":"^[\\u0000-\\u001f]{1,4096}$"}}}`,
			`{"type":"object","properties":{"a":{"type":"string","description":"Must match the regular expression ^(?!undefined$)"},"b":{"description":"A letter. (Must match the regular expression \\p{L})"},"c":{"pattern":"^[\\u0000-\\u001f]{1,4096}$"}}}`, []string{notePatterns}},
		// Recursive, boolean and enormous.
		{`{"type":"object","properties":{"a":{"$ref":"#"},"b":{"$ref":"#/properties/a"},"c":false}}`, `{"type":"object","properties":{"a":{"$ref":"#"},"b":{"$ref":"#/properties/a"},"c":false}}`, nil},
		{`{"type":"object","properties":{"a":{"enum":[` + strings.Repeat(`"x",`, 60_000) + `"y"]}}}`, `{"type":"object","properties":{"a":{"enum":[` + strings.Repeat(`"x",`, 60_000) + `"y"]}}}`, nil},
	} {
		shown, notes, reason := gate(ToolDef{Name: "s__t", Description: "d", Schema: json.RawMessage(c.in)}, ModelLimits{})
		if reason != "" || string(shown.Schema) != c.want || shown.Name != "s__t" || shown.Description != "d" {
			t.Errorf("%.300s\ngot  %.400s, %q\nwant %.400s", c.in, shown.Schema, reason, c.want)
		}
		slices.Sort(notes)
		slices.Sort(c.notes)
		if !slices.Equal(notes, c.notes) {
			t.Errorf("%.300s: notes %q, want %q", c.in, notes, c.notes)
		}
		again, notes, reason := gate(shown, ModelLimits{})
		if string(again.Schema) != string(shown.Schema) || len(notes) > 0 || reason != "" {
			t.Errorf("%.300s: a second time %.300s, %q, %q", c.in, again.Schema, notes, reason)
		}
	}
}

func TestGateRefuses(t *testing.T) {
	openAI := ModelLimits{ToolName: 64, ToolDescription: 1024, PropertyName: `^[a-zA-Z0-9_.-]{1,64}$`}
	for _, c := range []struct {
		def    ToolDef
		limits ModelLimits
		reason string // "": it is shown
	}{
		{ToolDef{Name: strings.Repeat("x", 65)}, openAI, "its name has 65 characters: the provider takes 64"},
		{ToolDef{Name: strings.Repeat("x", 65)}, ModelLimits{}, ""},
		{ToolDef{Description: strings.Repeat("é", 1025)}, openAI, "its description has 1025 characters: the provider takes 1024"},
		{ToolDef{Description: strings.Repeat("é", 1024)}, openAI, ""},
		{ToolDef{Description: strings.Repeat("é", 1025)}, ModelLimits{}, ""},
		{ToolDef{Schema: json.RawMessage(`{"properties":{"a b":{}}}`)}, openAI, `its property "a b"`},
		{ToolDef{Schema: json.RawMessage(`{"allOf":[{"properties":{"$a":{}}}]}`)}, openAI, `its property "$a"`},
		{ToolDef{Schema: json.RawMessage(`{"properties":{"a b":{}}}`)}, ModelLimits{}, ""},
		{ToolDef{Schema: json.RawMessage(`{"properties":{"a":{"properties":{"$b":{}}}}}`)}, openAI, ""}, // only the root's are checked
		{ToolDef{Schema: json.RawMessage(`{}`)}, ModelLimits{PropertyName: "("}, "is no regular expression"},
	} {
		shown, _, reason := gate(c.def, c.limits)
		if c.reason == "" != (reason == "") || !strings.Contains(reason, c.reason) {
			t.Errorf("%.100q: reason %q, want %q", c.def, reason, c.reason)
		}
		if reason != "" && (shown.Name != c.def.Name || shown.Description != c.def.Description || string(shown.Schema) != string(c.def.Schema)) {
			t.Errorf("%.100q was changed: %.100q", c.def, shown)
		}
	}
	for in, want := range map[string]string{
		`{"type":"object"`:                  "not JSON",
		`{"type":"object"} {}`:              "want one JSON value",
		`{"type":"object","type":"object"}`: "type: the key stands twice",
		`[]`:                                "want a JSON object",
		`"object"`:                          "want a JSON object",
		`false`:                             "want a JSON object",
		`{"type":"string"}`:                 `its type is "string"`,
		`{"type":["array","null"]}`:         `its type is ["array","null"]`,
		`{"type":7}`:                        `its type is 7`,
		`{"anyOf":[{"required":["a"]},{"required":[]}]}`: "anyOf at the root",
		`{"oneOf":[false]}`:                          "oneOf at the root",
		`{"type":"object","not":{"required":["a"]}}`: "not at the root",
		`{"type":"object","enum":[{}]}`:              "enum at the root",
		`{"type":"object","const":{}}`:               "const at the root",
		// Merging these would mean something else.
		`{"properties":{"a":{}},"allOf":[{"properties":{"a":{"type":"string"}}}]}`:                                "allOf at the root",
		`{"properties":{"a":{}},"allOf":[{"additionalProperties":false}]}`:                                        "allOf at the root",
		`{"additionalProperties":false,"allOf":[{"properties":{"a":{}}}]}`:                                        "allOf at the root",
		`{"if":{"required":["a"]},"allOf":[{"then":{"required":["b"]}}]}`:                                         "allOf at the root",
		`{"allOf":[{"minProperties":1},{"minProperties":2}]}`:                                                     "allOf at the root",
		`{"allOf":[{"$id":"http://x.org/y","$ref":"#/$defs/A"}]}`:                                                 "allOf at the root",
		`{"$ref":"#/$defs/A","properties":{"a":{}},"$defs":{"A":{"additionalProperties":false}}}`:                 "can't be inlined",
		`{"$ref":"#/$defs/A","$defs":{}}`:                                                                         `$ref "#/$defs/A" at the root does not lead`,
		`{"$ref":"https://x.org/s.json"}`:                                                                         `at the root does not lead to a schema in it`,
		`{"$ref":"#"}`:                                                                                            "at the root does not lead",
		`{"$ref":"#/$defs/A","$defs":{"A":{"$ref":"#/$defs/B"},"B":{"$ref":"#/$defs/A"}}}`:                        "refers to itself",
		`{"allOf":[{"$ref":"#/$defs/A"}],"$defs":{"A":{"allOf":[{"$ref":"#/$defs/A"},{"$ref":"#/$defs/A"}]}}}`:    "refers to itself",
		`{"properties":{"a":{"$ref":"#/$defs/A"}}}`:                                                               `$ref "#/$defs/A" leads nowhere`,
		`{"properties":{"a":{"$ref":"#A"}}}`:                                                                      "leads nowhere",
		`{"properties":{"a":{"$ref":"other.json"}}}`:                                                              `leads out of it`,
		`{"properties":{"a":{"$ref":"http://json-schema.org/draft-07/schema#"}}}`:                                 `leads out of it`,
		`{"properties":{"a":{"$dynamicRef":"x#y"}}}`:                                                              `$dynamicRef "x#y" leads out of it`,
		`{"$defs":{"unused":{"$ref":"#/nowhere"}}}`:                                                               "leads nowhere",
		`{"properties":{"a":{"$id":"http://x.org/a","items":{"$ref":"#/$defs/A"}}},"$defs":{"A":{}}}`:             "leads nowhere",
		`{` + draft9 + `,"properties":{"a":{"$recursiveRef":"#"}}}`:                                               "$recursiveRef",
		`{` + draft7 + `,"properties":{"a":{"type":"array","items":[{}]},"b":{"$ref":"#/properties/a/items/0"}}}`: "leads nowhere",
		`{"properties":{"a":{"type":"any"}}}`:                                                                     "properties.a.type",
		`{"properties":{"a":{"type":"string","required":true}}}`:                                                  "properties.a.required",
		`{"properties":{"type":"object","properties":{"a":{}}}}`:                                                  "properties.type",
		`{"properties":{"a":"string"}}`:                                                                           "properties.a",
		`{"properties":{"a":{"items":[{}],"prefixItems":[{}]}}}`:                                                  "properties.a.items",
		`{"properties":{"a":{"not":{"pattern":"(?=x)"}}}}`:                                                        `the pattern "(?=x)"`,
		`{"patternProperties":{"^(?!x)":{}}}`:                                                                     `the pattern "^(?!x)"`,
		`{"properties":{"a":` + strings.Repeat(`{"not":`, 110) + `{}` + strings.Repeat(`}`, 110) + `}}`:           "nested 113 deep",
		strings.Repeat(`{"not":`, 20_000) + `{}` + strings.Repeat(`}`, 20_000):                                    "nested more than 10000 deep",
		`{"title":"` + strings.Repeat("x", 600<<10) + `"}`:                                                        "bytes",
		`{"properties":{"a":{"anyOf":[` + strings.Repeat(`true,`, 4000) + `true]}}}`:                              "4004 objects and booleans",
		`{"properties":{"x":{"$ref":"#/junk/0"}` + manyOf(400, `,"p%d":{"$ref":"#/junk/%[1]d"}`) + `},"junk":[` + strings.Repeat(`{},`, 400) + `{}]}`: "400 places",
		`{` + manyOf(4000, `"p%d":0,`) + `"type":"object"}`: "members",
	} {
		shown, notes, reason := gate(ToolDef{Name: "t", Schema: json.RawMessage(in)}, ModelLimits{})
		if !strings.HasPrefix(reason, "its schema can't be shown: ") || !strings.Contains(reason, want) || len(notes) > 0 || string(shown.Schema) != in {
			t.Errorf("%.200s: reason %q, notes %q, shown %.200s; want %q", in, reason, notes, shown.Schema, want)
		}
		if len([]rune(reason)) > maxViolation {
			t.Errorf("%.200s: the reason has %d characters", in, len([]rune(reason)))
		}
	}
}

func manyOf(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

func TestGateRepairsDescriptions(t *testing.T) {
	shown, notes, reason := gate(ToolDef{Name: "t", Description: "a\xffb", Schema: json.RawMessage(`{"type":"object","properties":{}}`)}, ModelLimits{})
	if shown.Description != "a\ufffdb" || !slices.Equal(notes, []string{noteEncoding}) || reason != "" {
		t.Errorf("got %q, %q, %q", shown.Description, notes, reason)
	}
}

// schemas draws a schema that is legal in a draft, and often hard to translate.
type schemas struct {
	t     *rapid.T
	draft int
}

func (g *schemas) pick(of ...string) string { return rapid.SampledFrom(of).Draw(g.t, "pick") }
func (g *schemas) chance(of int) bool       { return rapid.IntRange(1, of).Draw(g.t, "chance") == 1 }

func (g *schemas) list(depth, most int) string {
	var out []string
	for range rapid.IntRange(1, most).Draw(g.t, "n") {
		out = append(out, g.schema(depth))
	}
	return "[" + strings.Join(out, ",") + "]"
}

func (g *schemas) properties(depth int) string {
	var out []string
	for _, k := range []string{"a", "b", "c"} {
		if !g.chance(3) {
			out = append(out, fmt.Sprintf("%q:%s", k, g.schema(depth)))
		}
	}
	return "{" + strings.Join(out, ",") + "}"
}

func (g *schemas) schema(depth int) string {
	if g.draft > 4 && g.chance(8) {
		return g.pick("true", "false")
	}
	if depth == 0 {
		return g.pick(`{}`, `{"type":"string"}`, `{"type":["integer","array"]}`, `{"type":"null"}`, `{"enum":[1,"a",null]}`, `{"minimum":1}`, `{"maxLength":1}`, `{"required":["a"]}`)
	}
	return g.object(depth, false)
}

// object draws one that isn't a boolean; at the root, one of which most can be
// shown.
func (g *schemas) object(depth int, root bool) string {
	var m []string
	seen := map[string]bool{}
	add := func(format string, args ...any) {
		for _, kw := range strings.Split(fmt.Sprintf(format, args...), "|") {
			if key, _, _ := strings.Cut(kw, ":"); !seen[key] {
				seen[key] = true
				m = append(m, kw)
			}
		}
	}
	most := 4
	if root {
		most = 2
		add(`"properties":%s`, g.properties(depth-1))
	}
	for range rapid.IntRange(0, most).Draw(g.t, "keywords") {
		keyword := rapid.IntRange(0, 15).Draw(g.t, "keyword")
		if root && (keyword == 0 || keyword == 5 || keyword == 6) {
			continue
		}
		switch keyword {
		case 0:
			add(`"type":%s`, g.pick(`"object"`, `"array"`, `"string"`, `["object","null"]`, `["array","integer"]`))
		case 1:
			add(`"properties":%s`, g.properties(depth-1))
		case 2:
			add(`"additionalProperties":%s`, g.pick("false", "true", g.schema(depth-1)))
		case 3:
			add(`"required":%s`, g.pick(`["a"]`, `["a","b"]`))
		case 4:
			add(`"allOf":%s`, g.list(depth-1, 3))
		case 5:
			add(`%s:%s`, g.pick(`"anyOf"`, `"oneOf"`), g.list(depth-1, 2))
		case 6:
			add(`"not":%s`, g.schema(depth-1))
		case 7:
			add(`"$ref":%s`, g.pick(`"#/definitions/A"`, `"#/definitions/B"`))
		case 8:
			if g.draft == 4 {
				add(`"minimum":1|"exclusiveMinimum":%s`, g.pick("true", "false"))
			} else {
				add(`"exclusiveMinimum":1`)
			}
		case 9:
			if g.draft == 4 {
				add(`"exclusiveMaximum":%s|"maximum":5.0`, g.pick("true", "false"))
			} else {
				add(`"maximum":5.0`)
			}
		case 10:
			if g.draft < 2020 {
				add(`"items":%s`, g.list(depth-1, 2))
			} else {
				add(`"prefixItems":%s`, g.list(depth-1, 2))
			}
		case 11:
			if g.draft < 2020 {
				add(`"additionalItems":%s|"items":%s`, g.pick("false", g.schema(depth-1)), g.pick("{}", g.list(depth-1, 2)))
			} else {
				add(`"items":%s`, g.schema(depth-1))
			}
		case 12:
			if g.draft < 2019 {
				add(`"dependencies":{"a":["b"],"b":%s}`, g.schema(depth-1))
			} else {
				add(`"dependentRequired":{"a":["b"]}`)
			}
		case 13:
			if g.draft >= 7 {
				add(`"if":%s|"then":%s`, g.schema(depth-1), g.schema(depth-1))
			}
		case 14:
			if g.draft >= 2019 {
				add("%s", g.pick(`"unevaluatedProperties":false`, `"unevaluatedItems":false`, `"unevaluatedItems":false|"type":"array"`))
			}
		case 15:
			add(`"patternProperties":{"^[ab]":%s}`, g.schema(depth-1))
		}
	}
	return "{" + strings.Join(m, ",") + "}"
}

// What is shown accepts the same arguments as what the server sent.
func TestGateLosesNothing(t *testing.T) {
	drafts := map[int]string{4: draft4, 6: draft6, 7: draft7, 2019: draft9, 2020: draft0}
	values := []string{`null`, `true`, `0`, `1`, `5`, `6`, `"a"`, `"bb"`, `[]`, `[1]`, `[1,"a"]`, `["a",6,2]`, `[1,1,1]`, `{}`, `{"a":1}`, `{"b":"a","a":[1]}`, `{"c":1}`}
	seen, accepted := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		g := &schemas{t: t, draft: rapid.SampledFrom([]int{4, 6, 7, 2019, 2020}).Draw(t, "draft")}
		raw := fmt.Sprintf(`{%s,"definitions":{"A":%s,"B":%s},%s`, drafts[g.draft], g.schema(1), g.schema(1), g.object(2, true)[1:])
		shown, _, reason := gate(ToolDef{Schema: json.RawMessage(raw)}, ModelLimits{})
		if reason != "" {
			return
		}
		mine, err := compileTool(json.RawMessage(raw))
		if err != nil {
			t.Fatalf("%s is shown as %s, and doesn't compile: %v", raw, shown.Schema, err)
		}
		theirs, err := compileTool(shown.Schema)
		if err != nil {
			t.Fatalf("%s, shown of %s, doesn't compile: %v", shown.Schema, raw, err)
		}
		check := func(args string) {
			_, err1 := mine.prepare("t", json.RawMessage(args))
			_, err2 := theirs.prepare("t", json.RawMessage(args))
			if seen++; err1 == nil {
				accepted++
			}
			if (err1 == nil) != (err2 == nil) {
				t.Fatalf("%s\nshown as %s\nof %s: %v, as shown: %v", raw, shown.Schema, args, err1, err2)
			}
		}
		for _, k := range []string{"a", "b", "c"} {
			for _, v := range values {
				check(fmt.Sprintf(`{%q:%s}`, k, v))
			}
		}
		v := rapid.SampledFrom(values)
		for range 10 {
			check(fmt.Sprintf(`{"a":%s,"b":%s,%q:%s}`, v.Draw(t, "a"), v.Draw(t, "b"), g.pick("c", "d"), v.Draw(t, "c")))
		}
	})
	if accepted < 100 || seen-accepted < 100 {
		t.Errorf("of %d arguments %d were accepted: the test shows little", seen, accepted)
	}
}

// Whatever a server sends, what is shown is an object's schema of draft
// 2020-12 that needs no second look, and arguments can be checked.
func FuzzGate(f *testing.F) {
	for _, s := range []string{
		``, `true`, `{"type":["object","null"]}`, `{"$ref":"#/$defs/A","$defs":{"A":{"allOf":[{"$ref":"#"}]}}}`,
		`{` + draft4 + `,"id":"#a","properties":{"a":{"minimum":1|"exclusiveMinimum":true,"items":[{}],"additionalItems":false,"dependencies":{"a":["b"]}}}}`,
		`{"properties":{"a":{"nullable":true,"type":"array","pattern":"(?!\\p{L})"}},"allOf":[{"required":["a","a"]},true]}`,
		`{"type":["object",""]}`, `{"title":"a","allOf":[{"title":5}]}`, `{"title":"a","$ref":"#/$defs/A","$defs":{"A":{"title":5}}}`, `{"properties":{"a":{"pattern":"("}}}`,
		`{"properties":[],"":null,"patternProperties":{"(":false},"$id":"x#y"}`,
	} {
		f.Add("a\xff", []byte(s), `{"a":[1,null],"b":{"a":"x"}}`)
	}
	f.Fuzz(func(t *testing.T, description string, raw []byte, args string) {
		def := ToolDef{Name: "s__t", Description: description, Schema: raw}
		limits := ModelLimits{ToolName: 64, ToolDescription: 1024, PropertyName: `^[a-zA-Z0-9_.-]{1,64}$`}
		shown, notes, reason := gate(def, limits)
		again, notesAgain, reasonAgain := gate(def, limits)
		if string(again.Schema) != string(shown.Schema) || !slices.Equal(notes, notesAgain) || reason != reasonAgain {
			t.Fatalf("%s: two answers", raw)
		}
		s, err := compileTool(raw)
		_, refused := s.prepare("t", json.RawMessage(args))
		if refused != nil && !asArgumentsError(refused) {
			t.Fatalf("%s: arguments %s: %v", raw, args, refused)
		}
		if reason != "" {
			return
		}
		if err != nil {
			t.Fatalf("%s is shown as %s, and doesn't compile: %v", raw, shown.Schema, err)
		}
		if _, err := compileTool(shown.Schema); err != nil {
			t.Fatalf("%s is shown as %s, which doesn't compile: %v", raw, shown.Schema, err)
		}
		canonical, err := strictjson.Canonical(shown.Schema)
		if err != nil || string(canonical) != string(shown.Schema) {
			t.Fatalf("%s is shown as %s: %v", raw, shown.Schema, err)
		}
		if second, more, why := gate(shown, limits); why != "" || len(more) > 0 || string(second.Schema) != string(shown.Schema) {
			t.Fatalf("%s is shown as %s, and that as %s, %q, %q", raw, shown.Schema, second.Schema, more, why)
		}
	})
}
