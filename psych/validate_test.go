package psych

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// Arguments are checked by the rules of the draft that a server's schema is
// written in, declared or not.
func TestServerSchemasOfAllDrafts(t *testing.T) {
	for _, c := range []struct {
		name, schema string
		good, bad    []string
	}{
		{"draft 4", `{` + draft4 + `,"id":"http://x.org/s","type":"object","properties":{"a":{"minimum":1,"exclusiveMinimum":true},"b":{"$ref":"#/definitions/B"}},"definitions":{"B":{"type":"string"}}}`,
			[]string{`{"a":2,"b":"x"}`, `{}`}, []string{`{"a":1}`, `{"b":1}`}},
		{"draft 6", `{` + draft6 + `,"properties":{"a":{"const":1},"b":{"contains":{"type":"string"}}}}`, []string{`{"a":1,"b":[1,"x"]}`}, []string{`{"a":2}`, `{"b":[1]}`}},
		{"draft 7", `{` + draft7 + `,"properties":{"a":{"items":[{"type":"string"}],"additionalItems":false}},"dependencies":{"b":["c"]},"if":{"required":["d"]},"then":{"required":["e"]}}`,
			[]string{`{"a":["x"]}`, `{"b":1,"c":1}`, `{"d":1,"e":1}`}, []string{`{"a":[1]}`, `{"a":["x",1]}`, `{"b":1}`, `{"d":1}`}},
		{"draft 7, of an https URL", `{"$schema":"https://json-schema.org/draft-07/schema","dependencies":{"b":["c"]}}`, []string{`{}`}, []string{`{"b":1}`}},
		{"draft 7, beside a $ref", `{` + draft7 + `,"properties":{"a":{"$ref":"#/definitions/A","maxLength":1}},"definitions":{"A":{"type":"string"}}}`, []string{`{"a":"xx"}`}, []string{`{"a":1}`}},
		{"draft 2019-09", `{` + draft9 + `,"properties":{"a":{"items":[{"type":"string"}]},"b":{"$recursiveRef":"#"}},"dependentRequired":{"c":["d"]},"unevaluatedProperties":false}`,
			[]string{`{"a":["x"]}`, `{"b":{"a":["x"]}}`}, []string{`{"a":[1]}`, `{"b":{"a":[1]}}`, `{"c":1}`, `{"z":1}`}},
		{"draft 2020-12", `{` + draft0 + `,"properties":{"a":{"prefixItems":[{"type":"string"}],"items":false},"b":{"$ref":"#/$defs/B","maxLength":1}},"$defs":{"B":{"type":"string"}}}`,
			[]string{`{"a":["x"],"b":"x"}`}, []string{`{"a":["x",1]}`, `{"b":"xx"}`}},
		{"none: 2020-12", `{"properties":{"a":{"prefixItems":[{"type":"string"}]},"b":{"$ref":"#/$defs/B","maxLength":1}},"$defs":{"B":{"type":"string"}},"dependencies":{"c":["d"]}}`,
			[]string{`{"a":["x"]}`, `{"c":1,"d":1}`}, []string{`{"a":[1]}`, `{"b":"xx"}`, `{"c":1}`}},
		{"none, but draft 4", `{"properties":{"a":{"minimum":1,"exclusiveMinimum":true,"maximum":5,"exclusiveMaximum":false}}}`, []string{`{"a":5}`}, []string{`{"a":1}`, `{"a":6}`}},
		{"none, but draft 7", `{"properties":{"a":{"items":[{"type":"string"}],"additionalItems":{"type":"null"}}}}`, []string{`{"a":["x",null]}`}, []string{`{"a":["x",1]}`, `{"a":[1]}`}},
		{"the wrong one", `{` + draft0 + `,"properties":{"a":{"minimum":1,"exclusiveMinimum":true,"items":[{"type":"string"}]}}}`, []string{`{"a":2}`}, []string{`{"a":1}`, `{"a":[1]}`}},
		{"of an unknown name", `{"$schema":"http://json-schema.org/draft-03/schema#","properties":{"a":{"type":"string"}}}`, []string{`{"a":"x"}`}, []string{`{"a":1}`}},
		{"of a name that is none", `{"$schema":7,"properties":{"a":{"type":"string"}}}`, []string{`{"a":"x"}`}, []string{`{"a":1}`}},
		{"OpenAPI", `{"properties":{"a":{"type":"string","nullable":true},"b":{"type":"string"}}}`, []string{`{"a":null}`, `{"a":"x"}`}, []string{`{"a":1}`, `{"b":null}`}},
		{"nulls, and arrays for objects", `{"type":"object","properties":{"a":{"type":"string","enum":null,"items":null}},"required":null,"$defs":[]}`, []string{`{"a":"x"}`}, []string{`{"a":1}`}},
		{"formats", `{` + draft7 + `,"properties":{"a":{"type":"string","format":"date-time"},"b":{"format":"regex"},"c":{"format":"own"},"d":{"format":"email"}}}`,
			[]string{`{"a":"tomorrow","b":"(","c":1,"d":"nobody"}`}, []string{`{"a":1}`}},
		{"patterns", `{"properties":{"a":{"type":"string","pattern":"^(?!x)"},"b":{"pattern":"^[\\u0061-\\u0063\\/]+$"},"c":{"pattern":"\\\\u0061"}}}`,
			[]string{`{"a":"x"}`, `{"b":"abc/"}`, `{"c":"\\u0061"}`}, []string{`{"a":1}`, `{"b":"d"}`, `{"c":"a"}`}},
		{"patterns of names", `{"patternProperties":{"^(?!x)":{"type":"string"},"^y":{"type":"string"}},"additionalProperties":false}`, []string{`{"x":1}`, `{"z":1,"y":"s"}`}, []string{`{"y":1}`}},
		{"patterns that must not match", `{"properties":{"a":{"not":{"pattern":"(?=x)"}},"b":{"oneOf":[{"pattern":"(?=x)"},{"$ref":"#/$defs/y"}]},"c":{"if":{"pattern":"(?=x)"},"then":false,"else":{"type":"string"}},"d":{"not":{"$ref":"#/$defs/x"}},"e":{"not":{"type":"string"}}},"$defs":{"x":{"pattern":"(?=x)"},"y":{"pattern":"^y"}}}`,
			[]string{`{"a":"y","b":"y","c":"y","d":"y","e":1}`}, []string{`{"e":"x"}`}},
		{"no type at all", `{}`, []string{`{}`, `{"a":1}`}, nil},
		{"recursive", `{"type":["object","null"],"properties":{"a":{"$ref":"#"},"n":{"type":"integer"}}}`, []string{`{"a":{"a":null}}`}, []string{`{"a":{"a":{"n":"x"}}}`}},
		{"the metaschema", `{"properties":{"schema":{"$ref":"http://json-schema.org/draft-07/schema#"}}}`, []string{`{"schema":{"type":"string"}}`}, []string{`{"schema":{"type":"strung"}}`}},
		{"not UTF-8", "{\"description\":\"\xff\",\"properties\":{\"a\":{\"type\":\"string\"}}}", []string{`{"a":"x"}`}, []string{`{"a":1}`}},
		{"an enormous enum", `{"properties":{"a":{"enum":[` + manyOf(20_000, `"v%d",`) + `""]}}}`, []string{`{"a":"v19999"}`}, []string{`{"a":"v20000"}`}},
		{"nothing", ``, []string{`{"a":1}`}, nil},
		{"null", `null`, []string{`{"a":1}`}, nil},
		{"true", ` true`, []string{`{"a":1}`}, nil},
	} {
		s, err := compileTool(json.RawMessage(c.schema))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, args := range c.good {
			if got, err := s.prepare("t", json.RawMessage(args)); err != nil || string(got) != args {
				t.Errorf("%s: %s: got %s, %v", c.name, args, got, err)
			}
		}
		for _, args := range append(c.bad, `[]`, `{"a":1,"a":1}`) {
			if _, err := s.prepare("t", json.RawMessage(args)); !asArgumentsError(err) {
				t.Errorf("%s: %s: got %v, want an *argumentsError", c.name, args, err)
			}
		}
	}
}

// What no draft makes sense of is the server's to validate: arguments are
// objects with each key once, and otherwise as the model sent them.
func TestMalformedServerSchemasAreLeftToTheServer(t *testing.T) {
	for schema, want := range map[string]string{
		`{"type":"object"`:                       "not JSON",
		`[]`:                                     "want a JSON object",
		`false`:                                  "want a JSON object",
		`{"type":"string"}`:                      `its "type" is not "object"`,
		`{"type":"object","type":"object"}`:      "type: the key stands twice",
		`{"properties":{"a":{"type":"strung"}}}`: `properties.a.type: got "strung"`,
		`{` + draft9 + `,"properties":{"a":{"type":"strung"}}}`:                            `properties.a.type: got "strung"`,
		`{"properties":{"type":"object","properties":{"a":{}}}}`:                           "properties.type: got string, want boolean or object",
		`{"properties":{"a":{"$ref":"https://x.org/s.json"}}}`:                             "never fetched",
		`{"properties":{"a":{"$ref":"#/$defs/A"}}}`:                                        "$defs",
		`{"properties":{"a":{"multipleOf":0}}}`:                                            "properties.a.multipleOf",
		strings.Repeat(`{"not":`, 300) + `{}` + strings.Repeat(`}`, 300):                   "nested 301 deep",
		`{"title":"` + strings.Repeat("x", 600<<10) + `"}`:                                 "bytes",
		`{"anyOf":[` + strings.Repeat(`true,`, 4000) + `true]}`:                            "objects and booleans",
		`{"properties":{"a":{"anyOf":[` + strings.Repeat(`{"type":7},`, 2000) + `true]}}}`: "properties.a.anyOf[0].type",
	} {
		s, err := compileTool(json.RawMessage(schema))
		if err == nil || !strings.Contains(err.Error(), want) || utf8.RuneCountInString(err.Error()) > maxViolations+100 {
			t.Errorf("%.100s: got %.500v, want %q", schema, err, want)
		}
		if got, err := s.prepare("t", json.RawMessage(`{"a":1.0}`)); err != nil || string(got) != `{"a":1.0}` {
			t.Errorf("%.100s: got %s, %v", schema, got, err)
		}
		if _, err := s.prepare("t", json.RawMessage(`{"a":1,"a":2}`)); !asArgumentsError(err) || utf8.RuneCountInString(err.Error()) > maxModelMessage {
			t.Errorf("%.100s: got %.500v, want an *argumentsError", schema, err)
		}
	}
}

// The model is shown the server's own schema, not what psych made of it.
func TestServerSchemaInMessages(t *testing.T) {
	const raw = `{"properties":{"a":{"minimum":1.0,"exclusiveMinimum":true,"nullable":true,"type":"integer"}}}`
	s, err := compileTool(json.RawMessage(raw))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.prepare("server__tool", json.RawMessage(`{"a":1}`))
	const want = "Invalid arguments for server__tool:\n- a: got 1, want more than 1\nSchema of the arguments: " + raw
	if !asArgumentsError(err) || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// A schema of a few lines, whose check of a few bytes would take centuries, is
// given up and left to the server; what is small beside it is not.
func TestEffortOfServerSchemasIsBounded(t *testing.T) {
	const deep = 60
	doubling := `{"$defs":{` + manyOf(deep, `"a%d":{"anyOf":[{"$ref":"#/$defs/b%[1]d"},{"$ref":"#/$defs/b%[1]d"}]},`)
	for i := range deep {
		doubling += fmt.Sprintf(`"b%d":{"$ref":"#/$defs/a%d"},`, i, i+1)
	}
	doubling += fmt.Sprintf(`"a%d":{"type":"string"}},"properties":{"x":{"$ref":"#/$defs/a0"},"y":{"type":"string"}}}`, deep)
	s, err := compileTool(json.RawMessage(doubling))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.prepare("t", json.RawMessage(`{"x":1}`)); err != nil || s.effort.left >= 0 {
		t.Errorf("got %v with %d of the effort left, want it used up", err, s.effort.left)
	}
	if _, err := s.prepare("t", json.RawMessage(`{"y":1}`)); !asArgumentsError(err) {
		t.Errorf("after that: got %v, want an *argumentsError", err)
	}

	s, err = compileTool(json.RawMessage(`{"properties":{"rows":{"items":{"properties":{"n":{"type":"integer"},"s":{"type":"string"}},"required":["n"]}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	rows := `{"rows":[` + strings.Repeat(`{"n":1,"s":"x"},`, 20_000) + `%s]}` // 300 KB
	if _, err := s.prepare("t", json.RawMessage(fmt.Sprintf(rows, `{"n":2}`))); err != nil {
		t.Error(err)
	}
	_, err = s.prepare("t", json.RawMessage(fmt.Sprintf(rows, `{}`)))
	if !asArgumentsError(err) || !strings.Contains(err.Error(), `rows[20000]: missing property "n"`) {
		t.Errorf("got %.300v, want the last row's fault", err)
	}
}

func TestServerSchemasAreUsedConcurrently(t *testing.T) {
	s, err := compileTool(json.RawMessage(`{"properties":{"a":{"type":"string"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if _, err := s.prepare("t", json.RawMessage(`{"a":"x"}`)); err != nil {
					t.Error(err)
				}
				if _, err := s.prepare("t", json.RawMessage(`{"a":1}`)); !asArgumentsError(err) {
					t.Errorf("got %v, want an *argumentsError", err)
				}
			}
		})
	}
	wg.Wait()
}

// A code tool's schema is held to the rules: what is let pass for a server is
// its author's mistake.
func TestSchemasOfCodeToolsAreStrict(t *testing.T) {
	for schema, want := range map[string]string{
		`{"type":"object","properties":{"a":{"pattern":"^(?!x)"}}}`:                          "want the format regex",
		`{"type":"object","properties":{"a":{"minimum":1,"exclusiveMinimum":true}}}`:         "exclusiveMinimum",
		`{"type":"object","properties":{"a":{"items":[{"type":"string"}]}}}`:                 "items",
		`{"$schema":"https://x.org/own","type":"object"}`:                                    "never fetched",
		`{"type":"object","properties":{"a":{"$ref":"#/$defs/A"}},"$defs":{"A":{"type":1}}}`: "type",
	} {
		tool := NewRawTool(ToolDef{Name: "t", Schema: json.RawMessage(schema)}, func(_ context.Context, _ *Call) (*Result, error) { return nil, nil }, nil)
		if err := tool.Err(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want ErrInvalid with %q", schema, err, want)
		}
	}
}
