package psych

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func echo(_ context.Context, c *Call) (*Result, error) { return Text(string(c.Arguments)), nil }

func raw(schema string) *Tool {
	return NewRawTool(ToolDef{Name: "t", Description: "d", Schema: json.RawMessage(schema)}, echo, nil)
}

func asArgumentsError(err error) bool {
	var e *argumentsError
	return errors.As(err, &e)
}

func called(t *testing.T, tool *Tool, args string) (text, contentType string, err error) {
	t.Helper()
	r, err := tool.Call(t.Context(), &Call{ToolCall: ToolCall{Arguments: json.RawMessage(args)}})
	if err != nil {
		if r != nil {
			t.Errorf("a Result beside %v", err)
		}
		return "", "", err
	}
	if r.Body == nil {
		return "", r.ContentType, nil
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b), r.ContentType, nil
}

type addIn struct {
	A      int64           `json:"a" jsonschema:"first summand"`
	B      json.Number     `json:"b"`
	Note   string          `json:"note,omitempty"`
	Tags   []string        `json:"tags,omitempty"`
	Raw    json.RawMessage `json:"raw,omitempty"`
	Any    any             `json:"any,omitempty"`
	Bytes  []byte          `json:"bytes,omitempty"`
	Addr   *netip.Addr     `json:"addr,omitempty"`
	At     time.Time       `json:"at,omitzero"`
	Nested struct {
		X bool `json:"x,omitempty"`
	} `json:"nested,omitzero"`
}

func TestNewToolDerivesSchema(t *testing.T) {
	tool := NewTool("add", "Adds.", func(context.Context, *Call, addIn) (string, error) { return "", nil }, nil)
	if err := tool.Err(); err != nil {
		t.Fatal(err)
	}
	want := `{"type":"object","properties":{"a":{"type":"integer","description":"first summand"},"b":{"type":"number"},"note":{"type":"string"},` +
		`"tags":{"type":["null","array"],"items":{"type":"string"}},"raw":true,"any":true,"bytes":{"type":"string","contentEncoding":"base64"},` +
		`"addr":{"type":["null","string"]},"at":{"type":"string"},"nested":{"type":"object","properties":{"x":{"type":"boolean"}},"additionalProperties":false}},` +
		`"required":["a","b"],"additionalProperties":false}`
	d := tool.Def()
	if d.Name != "add" || d.Description != "Adds." || string(d.Schema) != want {
		t.Errorf("got  %s\nwant %s", d.Schema, want)
	}
	d.Schema[0] = 'x'
	if tool.Def().Schema[0] != '{' {
		t.Error("Def shares its Schema")
	}
}

// anyJSON reads itself, and has no field to derive a schema from.
type anyJSON struct{ raw string }

func (a *anyJSON) UnmarshalJSON(b []byte) error { a.raw = string(b); return nil }

// checked reads itself, in the shape of its fields.
type checked struct {
	X int `json:"x"`
}

func (c *checked) UnmarshalJSON(b []byte) error {
	type plain checked
	return json.Unmarshal(b, (*plain)(c))
}

// Types that read themselves get a schema that accepts what they read.
func TestNewToolOwnTypes(t *testing.T) {
	type in struct {
		Any  anyJSON    `json:"any"`
		List []checked  `json:"list"`
		Addr netip.Addr `json:"addr"`
		Big  *big.Int   `json:"big"`
	}
	var got in
	tool := NewTool("t", "", func(_ context.Context, _ *Call, in in) (string, error) { got = in; return "", nil }, nil)
	if _, _, err := called(t, tool, `{"any":[1],"list":[{"x":2}],"addr":"::1","big":123456789012345678901234567890}`); err != nil {
		t.Fatal(err)
	}
	if got.Any.raw != "[1]" || got.List[0].X != 2 || got.Addr.String() != "::1" || got.Big.String() != "123456789012345678901234567890" {
		t.Errorf("got %+v", got)
	}
	for _, args := range []string{
		`{"any":1,"list":[{"x":"y"}],"addr":"::1","big":1}`,
		`{"any":1,"list":[],"addr":1,"big":1}`,
		`{"any":1,"list":[],"addr":"::1","big":"1"}`,
	} {
		if _, _, err := called(t, tool, args); !asArgumentsError(err) {
			t.Errorf("%s: got %v, want an *argumentsError", args, err)
		}
	}
}

func TestNumbersSurvive(t *testing.T) {
	var got addIn
	tool := NewTool("add", "", func(_ context.Context, c *Call, in addIn) (string, error) {
		got = in
		return string(c.Arguments), nil
	}, nil)
	args := `{"a":9007199254740993,"b":12345678901234567890.123456789,"any":[9007199254740995],"raw":{"z":1.0,"a":1e2},"bytes":"AAE=","addr":"::1"}`
	text, contentType, err := called(t, tool, args)
	if err != nil {
		t.Fatal(err)
	}
	if text != args || contentType != "text/plain" {
		t.Errorf("got %s, %s", contentType, text)
	}
	if got.A != 9007199254740993 || got.B != "12345678901234567890.123456789" || string(got.Raw) != `{"z":1.0,"a":1e2}` || len(got.Bytes) != 2 || got.Addr.String() != "::1" {
		t.Errorf("got %+v", got)
	}
	if !reflect.DeepEqual(got.Any, []any{json.Number("9007199254740995")}) {
		t.Errorf("got %#v", got.Any)
	}
}

func resultTool[Out any](f func() (Out, error)) *Tool {
	return NewTool("t", "", func(context.Context, *Call, struct{}) (Out, error) { return f() }, nil)
}

func TestResults(t *testing.T) {
	boom := errors.New("boom")
	body := &closer{}
	for name, c := range map[string]struct {
		tool              *Tool
		text, contentType string
		err               error
	}{
		"string":       {resultTool(func() (string, error) { return "<a>\x00\xff", nil }), "<a>\x00\xff", "text/plain", nil},
		"bytes":        {resultTool(func() ([]byte, error) { return []byte{0, 255}, nil }), "\x00\xff", "application/octet-stream", nil},
		"result":       {resultTool(func() (*Result, error) { return &Result{ContentType: "image/png", Body: strings.NewReader("x")}, nil }), "x", "image/png", nil},
		"result value": {resultTool(func() (Result, error) { return *Text("x"), nil }), "x", "text/plain", nil},
		"nil result":   {resultTool(func() (*Result, error) { return nil, nil }), "", "text/plain", nil},
		"int":          {resultTool(func() (int, error) { return 7, nil }), "7", "application/json", nil},
		"struct":       {resultTool(func() (any, error) { return struct{ A, B string }{"<&>", "b"}, nil }), `{"A":"<&>","B":"b"}`, "application/json", nil},
		"any string":   {resultTool(func() (any, error) { return "x", nil }), "x", "text/plain", nil},
		"nil":          {resultTool(func() (any, error) { return nil, nil }), "null", "application/json", nil},
		"raw message":  {resultTool(func() (json.RawMessage, error) { return json.RawMessage(` {"z": 1.0, "a": "<"} `), nil }), `{"z":1.0,"a":"<"}`, "application/json", nil},
		"raw in map": {resultTool(func() (map[string]json.RawMessage, error) {
			return map[string]json.RawMessage{"r": json.RawMessage(`{"z": 1.0}`)}, nil
		}), `{"r":{"z":1.0}}`, "application/json", nil},
		"no raw message": {resultTool(func() (json.RawMessage, error) { return nil, nil }), "", "text/plain", nil},
		"error":          {resultTool(func() (string, error) { return "x", boom }), "", "", boom},
		"error, result":  {resultTool(func() (*Result, error) { return &Result{Body: body}, boom }), "", "", boom},
	} {
		text, contentType, err := called(t, c.tool, "{}")
		if text != c.text || contentType != c.contentType || !errors.Is(err, c.err) {
			t.Errorf("%s: got %q, %s, %v, want %q, %s, %v", name, text, contentType, err, c.text, c.contentType, c.err)
		}
	}
	if !body.closed {
		t.Error("the body beside an error was not closed")
	}
	for _, tool := range []*Tool{
		resultTool(func() (json.RawMessage, error) { return json.RawMessage(`{`), nil }),
		resultTool(func() (any, error) { return make(chan int), nil }),
	} {
		if _, _, err := called(t, tool, ""); err == nil || !strings.Contains(err.Error(), "result") {
			t.Errorf("got %v, want an error about the result", err)
		}
	}
}

type closer struct {
	io.Reader
	closed bool
}

func (c *closer) Close() error { c.closed = true; return nil }

type cyclic struct {
	Next *cyclic `json:"next,omitempty"`
}

func TestToolErr(t *testing.T) {
	in := func(context.Context, *Call, struct{}) (string, error) { return "", nil }
	for want, tool := range map[string]*Tool{
		"the tool name is empty":                                   NewTool("", "", in, nil),
		`tool name "a b": want 1 to 64`:                            NewTool("a b", "", in, nil),
		`tool name "é": want 1 to 64`:                              NewTool("é", "", in, nil),
		"__ is kept":                                               NewTool("a__b", "", in, nil),
		"want 1 to 64 of [A-Za-z0-9_-]":                            NewTool(strings.Repeat("a", 65), "", in, nil),
		`"read_tool_output" is reserved`:                           NewTool("read_tool_output", "", in, nil),
		`"delegate" is reserved`:                                   NewRawTool(ToolDef{Name: "delegate"}, echo, nil),
		"its description is not valid UTF-8":                       NewTool("a", "\xff", in, nil),
		"its function is nil":                                      NewTool[struct{}, string]("a", "", nil, nil),
		"its timeout is -1ns":                                      NewTool("a", "", in, &ToolOptions{Timeout: -1}),
		"its arguments are string: want a struct":                  NewTool("a", "", func(context.Context, *Call, string) (string, error) { return "", nil }, nil),
		"its arguments are interface {}":                           NewTool("a", "", func(context.Context, *Call, any) (string, error) { return "", nil }, nil),
		"its schema can't be used: its \"type\" is":                NewTool("a", "", func(context.Context, *Call, time.Time) (string, error) { return "", nil }, nil),
		"no schema can be derived from psych.cyclic":               NewTool("a", "", func(context.Context, *Call, cyclic) (string, error) { return "", nil }, nil),
		"no schema can be derived from struct":                     NewTool("a", "", func(context.Context, *Call, struct{ C chan int }) (string, error) { return "", nil }, nil),
		"its result chan int can't be encoded":                     NewTool("a", "", func(context.Context, *Call, struct{}) (chan int, error) { return nil, nil }, nil),
		"its result *strings.Reader can't be":                      NewTool("a", "", func(context.Context, *Call, struct{}) (*strings.Reader, error) { return nil, nil }, nil),
		"want a JSON object":                                       raw(`[]`),
		"not JSON: it ends too early":                              raw(`{"type":"object"`),
		"type: the key stands twice in its object":                 raw(`{"type":"object","type":"object"}`),
		"its \"type\" is not \"object\"":                           raw(`{}`),
		`type: got "objekt", want one of "array", "boolean", `:     raw(`{"type":"objekt"}`),
		"a schema is never fetched":                                raw(`{"type":"object","properties":{"a":{"$ref":"https://example.com/a.json"}}}`),
		"put it under $defs":                                       raw(`{"type":"object","properties":{"a":{"$ref":"other.json"}}}`),
		"file:///etc/passwd":                                       raw(`{"type":"object","$ref":"file:///etc/passwd"}`),
		"example.com/meta":                                         raw(`{"$schema":"https://example.com/meta","type":"object"}`),
		"/$defs/none":                                              raw(`{"type":"object","$ref":"#/$defs/none"}`),
		"nested more than 10000 deep":                              raw(`{"type":"object","x":` + strings.Repeat("[", 30000) + strings.Repeat("]", 30000) + "}"),
		`properties.a.pattern: got "(?=x)", want the format regex`: raw(`{"type":"object","properties":{"a":{"pattern":"(?=x)"}}}`),
		"want at most 524288 and 200":                              raw(`{"type":"object","description":"` + strings.Repeat("x", maxSchemaBytes) + `"}`),
	} {
		err := tool.Err()
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want ErrInvalid with %q", err, want)
		}
		if _, _, cerr := called(t, tool, "{}"); !errors.Is(cerr, ErrInvalid) {
			t.Errorf("Call: got %v, want ErrInvalid", cerr)
		}
	}
	for _, tool := range []*Tool{
		NewTool("a", "", func(context.Context, *Call, *addIn) (int, error) { return 0, nil }, nil),
		NewTool("a", "", func(context.Context, *Call, map[string]int) (int, error) { return 0, nil }, nil),
		NewRawTool(ToolDef{Name: "a"}, echo, nil),
		raw(`{"type":"object","properties":{"a":{"$ref":"#/$defs/a"}},"$defs":{"a":{"type":"object","properties":{"a":{"$ref":"#/$defs/a"}}}}}`),
		raw(`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object"}`),
	} {
		if err := tool.Err(); err != nil {
			t.Error(err)
		}
		if d := tool.Def(); !strings.HasPrefix(string(d.Schema), `{`) || !strings.Contains(string(d.Schema), `"type":"object"`) {
			t.Errorf("got schema %s", d.Schema)
		}
	}
	two := NewTool("a b", "\xff", in, nil).Err()
	if !strings.Contains(two.Error(), "tool name") || !strings.Contains(two.Error(), "description") {
		t.Errorf("got %v, want both reasons", two)
	}
}

func TestOptionsAreCopied(t *testing.T) {
	o := &ToolOptions{Sequential: true, Timeout: time.Second}
	tool := NewRawTool(ToolDef{Name: "a"}, echo, o)
	o.Sequential = false
	if want := (ToolOptions{Sequential: true, Timeout: time.Second}); tool.opts != want {
		t.Errorf("got %+v, want %+v", tool.opts, want)
	}
}

func TestPrepare(t *testing.T) {
	tool := raw(`{"type":"object","properties":{"n":{"type":"integer","minimum":0},"s":{"type":"string"},"o":{"type":"object"}},"additionalProperties":false}`)
	for _, c := range []struct{ in, want string }{
		{"", "{}"}, {" \n", "{}"}, {"null", "{}"}, {" null ", "{}"}, {"{}", "{}"}, {`""`, "{}"}, {`"null"`, "{}"}, {`" "`, "{}"},
		{` {"n": 1.0} `, `{"n": 1.0}`},
		{`"{\"n\":1}"`, `{"n":1}`},
		{`{"s":"\ud800"}`, `{"s":"\ufffd"}`},
		{`"{\"s\":\"\\udc00\"}"`, `{"s":"\ufffd"}`},
		{"{\"s\":\"\xff\"}", "{\"s\":\"\ufffd\"}"},
		{`{"s":"\ud83d\ude00"}`, `{"s":"\ud83d\ude00"}`},
		{`{"n":123456789012345678901234567890}`, `{"n":123456789012345678901234567890}`},
	} {
		got, err := tool.prepare(json.RawMessage(c.in))
		if err != nil || string(got) != c.want {
			t.Errorf("%q: got %s, %v, want %s", c.in, got, err, c.want)
		}
	}
	for _, c := range []struct{ in, want string }{
		{"{", "not JSON: it ends too early, at byte 1"},
		{"x", "not JSON: 'x' at byte 0: want a value"},
		{"[]", "got an array, want an object"},
		{"7", "got a number, want an object"},
		{"true", "got a boolean, want an object"},
		{`"x"`, "got a string, want an object"},
		{`"[]"`, "got an array, want an object"},
		{`"\"{}\""`, "got a string, want an object"},
		{`{"n":1,"n":2}`, "n: the key stands twice in its object"},
		{`"{\"n\":1,\"n\":2}"`, "n: the key stands twice in its object"},
		{`{"o":{"a":1,"\u0061":2}}`, "o.a: the key stands twice in its object"},
		{`{} {}`, "more behind the end of the value, at byte 3: want one JSON value"},
		{`{"n":1e9999999}`, "n: the number is out of range"},
		{strings.Repeat(`{"o":`, 100_000), "nested more than 10000 deep"},
		{`{"n":"x"}`, "n: got string, want integer"},
		{`{"n":-1}`, "n: got -1, want at least 0"},
		{`{"m":1,"k":2}`, `unknown properties "k", "m"; known: n, o, s`},
	} {
		_, err := tool.prepare(json.RawMessage(c.in))
		if !asArgumentsError(err) {
			t.Errorf("%.60q: got %v, want an *argumentsError", c.in, err)
			continue
		}
		want := "Invalid arguments for t:\n- " + c.want
		if !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.60q: got %q, want %q", c.in, err, want)
		}
		if !strings.HasSuffix(err.Error(), "\nSchema of the arguments: "+string(tool.def.Schema)) {
			t.Errorf("%.60q: got %q, want the schema at its end", c.in, err)
		}
	}
}

// Every violation is told, with its path, in one order.
func TestViolations(t *testing.T) {
	tool := raw(`{"type":"object","required":["need","other"],"properties":{
		"list":{"type":"array","maxItems":2,"items":{"type":"object","properties":{"x":{"type":"integer"}}}},
		"e":{"enum":["a","b"]},"c":{"const":1},"s":{"minLength":3,"pattern":"^z"},"l":{"maxLength":1},
		"n":{"maximum":5,"exclusiveMinimum":1.5},"m":{"exclusiveMaximum":5,"multipleOf":2},"f":{"items":false},"i":{"minItems":1,"uniqueItems":true},
		"u":{"anyOf":[{"type":"string"},{"type":"object","required":["k"]}]},"o":{"oneOf":[{"type":"integer"},{"type":"number"}]},"no":{"not":{"type":"string"}},
		"a b":{"type":"null"}}}`)
	args := `{"list":[{"x":1},{"x":"y"},{"x":null}],"e":"q","c":2,"s":"ab","l":"ab","n":1,"m":7,"f":[1],"i":[1,1],"u":{},"o":1,"no":"s","a b":1}`
	_, err := tool.prepare(json.RawMessage(args))
	if !asArgumentsError(err) {
		t.Fatalf("got %v", err)
	}
	got, _, _ := strings.Cut(err.Error(), "\nSchema")
	want := `Invalid arguments for t:
- missing properties "need", "other"
- ["a b"]: got number, want null
- c: got 2, want 1
- e: got "q", want one of "a", "b"
- f[0]: is not allowed here
- i: items at 0 and 1 are equal
- l: has 2 characters, want at most 1
- list: has 3 items, want at most 2
- list[1].x: got string, want integer
- list[2].x: got null, want integer
- m: got 7, want less than 5
- m: multipleOf: got 7, want 2
- n: got 1, want more than 1.5
- no: matches what the schema forbids under not
- o: matches more than one of the alternatives of oneOf: [0 1]
- s: has 2 characters, want at least 3
- s: got "ab", want a match of the pattern ^z
- u: matches none of the alternatives of anyOf
  - u: got object, want string
  - u: missing property "k"`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for range 20 {
		if _, again := tool.prepare(json.RawMessage(args)); again.Error() != err.Error() {
			t.Fatalf("another order: %s", again)
		}
	}
}

func TestArgumentsErrorIsBounded(t *testing.T) {
	var values []string
	for i := range 5000 {
		values = append(values, fmt.Sprintf("\"välue-%d\"", i))
	}
	enum := `{"type":"object","properties":{"small":{"type":"integer","description":"a count"},"e":{"enum":[` + strings.Join(values, ",") + `]}},"additionalProperties":{"type":"integer"}}`
	many := "{"
	for i := range 2000 {
		many += fmt.Sprintf(`"k%d":"x",`, i)
	}
	long := strings.Repeat("é", 10_000)
	for _, c := range []struct{ schema, args, first, has string }{
		{enum, `{"e":"nope"}`, `- e: got "nope", want one of "välue-0", "välue-1", `, "… (5000 in all)\nSchema, at #/properties/e: {\"enum\":[\"välue-0\","},
		{enum, `{"small":"x"}`, "- small: got string, want integer", "\nSchema, at #/properties/small: {\"type\":\"integer\",\"description\":\"a count\"}"},
		{enum, many[:len(many)-1] + "}", "- k0: got string, want integer", " more\nSchema, at #/additionalProperties: {\"type\":\"integer\"}"},
		{`{"type":"object","properties":{"p":{"pattern":"^z"}}}`, `{"p":"` + long + `"}`, `- p: got "` + long[:118] + `…", want a match of the pattern ^z`, ""},
		{`{"type":"object","additionalProperties":false}`, `{"` + long + `":1}`, `- unknown property "éé`, ""},
		{`{"type":"object","required":["need"],"properties":{"need":{"type":"string","description":"needed"},"y":{"description":"` + long + `"}}}`, `{}`, `- missing property "need"`, "\nSchema, at #/properties/need: {\"type\":\"string\",\"description\":\"needed\"}"},
		{`{"type":"object","properties":{"a/b~c":{"type":"string"},"y":{"description":"` + long + `"}}}`, `{"a/b~c":1}`, `- ["a/b~c"]: got number, want string`, "\nSchema, at #/properties/a~1b~0c: {\"type\":\"string\"}"},
	} {
		tool := raw(c.schema)
		if tool.err != nil {
			t.Error(tool.err)
			continue
		}
		_, err := tool.prepare(json.RawMessage(c.args))
		if !asArgumentsError(err) {
			t.Errorf("%.60s: got %v", c.args, err)
			continue
		}
		msg := err.Error()
		if n := utf8.RuneCountInString(msg); n > 4000 || !utf8.ValidString(msg) {
			t.Errorf("%.60s: %d characters, want at most 4000 and valid UTF-8", c.args, n)
		}
		if !strings.HasPrefix(msg, "Invalid arguments for t:\n"+c.first) || !strings.Contains(msg, c.has) {
			t.Errorf("%.60s: got %.3000q, want %q first and %q", c.args, msg, c.first, c.has)
		}
	}
}

// What came from elsewhere and can't be compiled validates nothing; it is
// still an object with each key once.
func TestUncompilableSchemaIsLeftUnvalidated(t *testing.T) {
	s, err := compileSchema(json.RawMessage(`{"type":"object","properties":{"a":{"$ref":"https://example.com/x"}}}`))
	if err == nil {
		t.Fatal("compiled")
	}
	if got, err := s.prepare("t", json.RawMessage(`{"a":1}`)); err != nil || string(got) != `{"a":1}` {
		t.Errorf("got %s, %v", got, err)
	}
	if _, err := s.prepare("t", json.RawMessage(`{"a":1,"a":2}`)); !asArgumentsError(err) {
		t.Errorf("got %v, want an *argumentsError", err)
	}
}

func TestDecodeFailureIsAnArgumentsError(t *testing.T) {
	tool := NewTool("t", "", func(context.Context, *Call, addIn) (string, error) { t.Error("ran"); return "", nil }, nil)
	for args, want := range map[string]string{
		`{"a":123456789012345678901234567890,"b":1}`: "- a: got number 123456789012345678901234567890, want a value of Go type int64",
		`{"a":1,"b":1,"addr":"nowhere"}`:             `- ParseAddr("nowhere")`,
		`{"a":1,"b":1,"A":2}`:                        `- unknown property "A"; known: a, `,
	} {
		_, _, err := called(t, tool, args)
		if !asArgumentsError(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
}

func TestPanics(t *testing.T) {
	for want, v := range map[string]any{
		"the tool panicked: boom":                           "boom",
		"the tool panicked: wrapped":                        errors.New("wrapped"),
		"the tool panicked: 7":                              7,
		"the tool panicked: panic called with nil argument": nil,
	} {
		for _, tool := range []*Tool{
			NewTool("t", "", func(context.Context, *Call, struct{}) (string, error) { panic(v) }, nil),
			NewRawTool(ToolDef{Name: "t"}, func(context.Context, *Call) (*Result, error) { panic(v) }, nil),
		} {
			_, _, err := called(t, tool, "{}")
			var p *panicError
			if !errors.As(err, &p) || err.Error() != want || !strings.Contains(string(p.stack), "TestPanics") {
				t.Errorf("got %v, want %q with a stack", err, want)
			}
		}
	}
	var m map[string]int
	_, _, err := called(t, resultTool(func() (int, error) { m["x"] = 1; return 0, nil }), "{}")
	var p *panicError
	if !errors.As(err, &p) || err.Error() != "the tool panicked: assignment to entry in nil map" {
		t.Errorf("got %v", err)
	}
}

func TestCall(t *testing.T) {
	var got *Call
	tool := NewRawTool(ToolDef{Name: "t"}, func(_ context.Context, c *Call) (*Result, error) { got = c; return nil, nil }, nil)
	r, err := tool.Call(t.Context(), nil)
	if err != nil || r == nil || got.Name != "t" || got.Log == nil || string(got.Arguments) != "{}" {
		t.Errorf("got %+v, %+v, %v", r, got, err)
	}
	mine := &Call{IdempotencyKey: "k"}
	if _, err := tool.Call(t.Context(), mine); err != nil || got.IdempotencyKey != "k" {
		t.Errorf("got %+v, %v", got, err)
	}
	if mine.Log != nil || mine.Arguments != nil || mine.Name != "" {
		t.Errorf("the caller's Call was changed: %+v", mine)
	}
	spoil := NewRawTool(ToolDef{Name: "t"}, func(_ context.Context, c *Call) (*Result, error) {
		clear(c.Arguments)
		return nil, nil
	}, nil)
	args := json.RawMessage(`{"a":1}`)
	if _, err := spoil.Call(t.Context(), &Call{ToolCall: ToolCall{Arguments: args}}); err != nil || string(args) != `{"a":1}` {
		t.Errorf("the caller's arguments are %s, %v", args, err)
	}
	got = nil
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tool.Call(ctx, nil); !errors.Is(err, context.Canceled) || got != nil {
		t.Errorf("got %v, ran %v, want context.Canceled and no run", err, got != nil)
	}
}

func TestWireName(t *testing.T) {
	long := strings.Repeat("a", 65)
	for in, want := range map[string]string{
		"add":                   "add",
		"server__tool":          "server__tool",
		strings.Repeat("a", 64): strings.Repeat("a", 64),
		"":                      "_e3b0c442",
		"a b":                   "a_b_c8687a08",
		"é\xff\x00":             "",
		long:                    "",
	} {
		got := wireName(in)
		if want != "" && got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
		if !legalToolName(got) || wireName(got) != got {
			t.Errorf("%q: %q is not legal", in, got)
		}
	}
	if got := wireName("é\xff\x00"); !strings.HasPrefix(got, "____") {
		t.Errorf("got %q, want a _ for each character", got)
	}
	if wireName("a b") == wireName("a.b") || wireName(long) == wireName(long+"a") {
		t.Error("two names are one on the wire")
	}
}

func TestWireArguments(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"b":1.0, "a":"\u0041"}`, `{"b":1.0, "a":"\u0041"}`},
		{`{"a":"\ud800","b":"\ud83d\ude00"}`, `{"a":"\ufffd","b":"\ud83d\ude00"}`},
		{"{\"a\":\"\xff\"}", "{\"a\":\"\ufffd\"}"},
		{`"{\"a\":1}"`, `{"a":1}`},
		{"", "{}"}, {"null", "{}"}, {"[1]", "{}"}, {"7", "{}"}, {`"x"`, "{}"}, {`{"a":`, "{}"}, {`{"a":1} x`, "{}"}, {"\xff", "{}"},
		{`{"a":1,"a":2}`, "{}"},
		{`{"a":1e999}`, "{}"},
		{strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100), strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100)},
		{strings.Repeat(`{"a":`, 101) + "1" + strings.Repeat("}", 101), "{}"},
		{strings.Repeat(`{"a":`, 100_000), "{}"},
	} {
		got := wireArguments([]byte(c.in))
		if string(got) != c.want || !json.Valid(got) {
			t.Errorf("%.60q: got %.60s, want %.60s", c.in, got, c.want)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"read_file", "list_files", "search_files", "write_file", "add", "sub", "get_user", "http_request"}
	for name, want := range map[string]string{
		"readFile": "read_file", "file_read": "read_file", "functions.read_file": "read_file", "lst_files": "list_files",
		"grep_files": "list_files", "ad": "add", "GetUsers": "get_user", "user": "get_user", "requestHTTP": "http_request",
	} {
		got := nearest(name, known, 3)
		if len(got) != 3 || got[0] != want {
			t.Errorf("%s: got %q, want %s first", name, got, want)
		}
		reversed := slices.Clone(known)
		slices.Reverse(reversed)
		if again := nearest(name, reversed, 3); !slices.Equal(got, again) {
			t.Errorf("%s: %q, in another order %q", name, got, again)
		}
	}
	if got := nearest("x", known[:2], 5); len(got) != 2 {
		t.Errorf("got %q", got)
	}
	if got := nearest(strings.Repeat("x", 1<<20), known, 1); len(got) != 1 {
		t.Errorf("got %q", got)
	}
}

func TestUnknownToolMessage(t *testing.T) {
	if got, want := unknownToolMessage("ad", []string{"sub", "add"}), `There is no tool named "ad". There are: add, sub.`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := unknownToolMessage("ad", nil), `There is no tool named "ad": there are no tools at all. Answer without one.`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	var known []string
	for i := range 1000 {
		known = append(known, fmt.Sprintf("%s_%03d", strings.Repeat("x", 60), i))
	}
	known = append(known, "add")
	got := unknownToolMessage("ad\x1b\xff"+strings.Repeat("\x00", 10000), known)
	if n := utf8.RuneCountInString(got); n > 4000 || !utf8.ValidString(got) || strings.ContainsAny(got, "\x00\x1b") {
		t.Errorf("got %d characters: %q", n, got)
	}
	if got := unknownToolMessage("addd", known); !strings.HasPrefix(got, `There is no tool named "addd". The nearest of 1001: add, `) {
		t.Errorf("got %q", got)
	}
}

func BenchmarkPrepare(b *testing.B) {
	tool := NewTool("read_file", "", func(context.Context, *Call, struct {
		Path   string `json:"path"`
		Offset int    `json:"offset,omitempty"`
		Limit  int    `json:"limit,omitempty"`
	}) (string, error) {
		return "", nil
	}, nil)
	args := json.RawMessage(`{"path":"src/main.go","offset":1200,"limit":20000}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tool.prepare(args); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNewTool(b *testing.B) {
	for b.Loop() {
		if t := NewTool("add", "", func(context.Context, *Call, addIn) (string, error) { return "", nil }, nil); t.err != nil {
			b.Fatal(t.err)
		}
	}
}
