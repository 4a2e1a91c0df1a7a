package psych

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
)

func specProblems(t *testing.T, err error) []string {
	t.Helper()
	var e *SpecError
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a *SpecError", err)
	}
	var out []string
	for _, p := range e.Problems {
		if p.Path == "" {
			out = append(out, p.Message)
		} else {
			out = append(out, p.Path+": "+p.Message)
		}
	}
	return out
}

func TestParseSpec(t *testing.T) {
	s, err := ParseSpec([]byte(`{"name":"n","instructions":"i","model":"m","model_options":{"temperature":0,"max_output_tokens":9},"tools":["a","b"],"limits":{"turns":3}}`))
	if err != nil {
		t.Fatal(err)
	}
	zero := 0.0
	want := &Spec{Name: "n", Instructions: "i", Model: "m", ModelOptions: ModelOptions{MaxOutputTokens: 9, Temperature: &zero}, Tools: []string{"a", "b"}, Limits: Limits{Turns: 3}}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("got %+v, want %+v", s, want)
	}
}

func TestParseSpecRefuses(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string
	}{
		{"", []string{`the spec is empty: want a JSON object with a name at least, like {"name": "helper"}`}},
		{" \n\t", []string{`the spec is empty: want a JSON object with a name at least, like {"name": "helper"}`}},
		{"name: x", []string{`not JSON: 'a' at byte 1: want null`}},
		{`{"name":"x"} {}`, []string{"more behind the end of the value, at byte 13: want one JSON value"}},
		{"[]", []string{"got an array, want an object"}},
		{"null", []string{"got null, want an object"}},
		{`"x"`, []string{"got a string, want an object"}},
		{strings.Repeat("[", 100_000), []string{"nested more than 10000 deep"}},
		{`{"name":"x","instructions":"` + strings.Repeat("x", MaxSpecBytes) + `"}`, []string{"the spec has 1048606 bytes: want at most 1048576"}},
		{`{"name":"x","limits":{"turns":1,"turns":2}}`, []string{"limits.turns: the key stands twice in its object"}},
		{`{"name":"x","limits":{"turn":1}}`, []string{"limits.turn: unknown field: want one of batch_result_tokens, context_tokens, cost_usd, history_margin_percent, history_min_saving_tokens, history_result_tokens, large_result_tokens, output_tokens, outputs_required, parallel, preview_chars, run, tokens, tool_timeout_seconds, turns, uncached_tokens"}},
		{`{"name":"x","instructions":"\ud800"}`, []string{`instructions: the string holds half of a surrogate pair (\ud800 to \udfff without its other half)`}},
		// What is wrong with the rest is in the same error.
		{`{"Name":"x","tools":["a","a","",7],"limits":{"turns":-1,"parallel":"8","preview_chars":99}}`, []string{
			"Name: unknown field: want one of connections, disclosure, instructions, limits, model, model_options, name, skills, tools",
			"limits.parallel: got a string, want an integer of at most 64 bits",
			"tools[3]: got 7, want a string",
			`tools[1]: tool "a" stands twice, in tools[0] too`,
			"tools[2]: the tool name is empty: want 1 to 64 of [A-Za-z0-9_-]",
			"limits.turns: is -1: want a positive number, or 0 for the default",
			"limits.preview_chars: is 99: want 100 to 4000",
		}},
	} {
		s, err := ParseSpec([]byte(c.in))
		if s != nil {
			t.Errorf("%.60q: got a spec too", c.in)
		}
		if got := specProblems(t, err); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%.60q:\n got %q\nwant %q", c.in, got, c.want)
		}
	}
}

func TestSpecCheckListsEveryViolation(t *testing.T) {
	nan := math.NaN()
	s := &Spec{
		Name:         "",
		Instructions: "\xff",
		Model:        "a\x00b",
		ModelOptions: ModelOptions{MaxOutputTokens: -1, Temperature: &nan, Effort: "\n"},
		Tools:        []string{"ok", "read_tool_output", "a__b", "sp ace", "", "ok", strings.Repeat("x", 65), "list_tools", "read_tool", "call_tool", "load_skill", "delegate"},
		Limits:       Limits{LargeResultTokens: -1, BatchResultTokens: -2, PreviewChars: 4001, Turns: -3, Tokens: -4, ToolTimeoutSeconds: -5, Parallel: -6},
	}
	reserved := " is reserved: read_tool_output, list_tools, read_tool, call_tool, load_skill, delegate are Psych's own"
	want := []string{
		"name: is empty: want 1 to 128 bytes",
		"instructions: is not valid UTF-8",
		`model: "a\x00b" holds a control character`,
		"model_options.max_output_tokens: is -1: want a positive number, or 0 for the default",
		"model_options.temperature: is NaN: want a number from 0",
		`model_options.effort: "\n" holds a control character`,
		`tools[1]: tool name "read_tool_output"` + reserved,
		`tools[2]: tool name "a__b": __ is kept for the tools of servers`,
		`tools[3]: tool name "sp ace": want 1 to 64 of [A-Za-z0-9_-]`,
		"tools[4]: the tool name is empty: want 1 to 64 of [A-Za-z0-9_-]",
		`tools[5]: tool "ok" stands twice, in tools[0] too`,
		fmt.Sprintf("tools[6]: tool name %q: want 1 to 64 of [A-Za-z0-9_-]", strings.Repeat("x", 65)),
		`tools[7]: tool name "list_tools"` + reserved,
		`tools[8]: tool name "read_tool"` + reserved,
		`tools[9]: tool name "call_tool"` + reserved,
		`tools[10]: tool name "load_skill"` + reserved,
		`tools[11]: tool name "delegate"` + reserved,
		"limits.large_result_tokens: is -1: want a positive number, or 0 for the default",
		"limits.batch_result_tokens: is -2: want a positive number, or 0 for the default",
		"limits.turns: is -3: want a positive number, or 0 for the default",
		"limits.tokens: is -4: want a positive number, or 0 for the default",
		"limits.parallel: is -6: want a positive number, or 0 for the default",
		"limits.preview_chars: is 4001: want 100 to 4000",
		"limits.tool_timeout_seconds: is -5: want 1 to 86400, or 0 for the default",
	}
	if got := specProblems(t, s.Check()); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	all := specProblems(t, (&Runtime{tools: map[string]*Tool{"other": {}, "another": {}}}).checkSpec(s))
	if want := append(want, `tools[0]: tool "ok" is not registered: registered are another, other`); !reflect.DeepEqual(all, want) {
		t.Errorf("got  %q\nwant %q", all, want)
	}
}

func TestSpecCheckBounds(t *testing.T) {
	minus, one, inf := -0.5, 1.0, math.Inf(1)
	for _, c := range []struct {
		path string // "": legal
		spec Spec
	}{
		{"", Spec{Name: "n"}},
		{"", Spec{Name: strings.Repeat("é", 64)}},
		{"name", Spec{Name: strings.Repeat("é", 65)}},
		{"name", Spec{Name: "a\tb"}},
		{"name", Spec{Name: "a\u0085b"}},
		{"name", Spec{Name: "\xff"}},
		{"", Spec{Name: "n", Instructions: strings.Repeat("x", MaxInstructionsBytes)}},
		{"instructions", Spec{Name: "n", Instructions: strings.Repeat("x", MaxInstructionsBytes+1)}},
		{"model", Spec{Name: "n", Model: strings.Repeat("x", 1025)}},
		{"", Spec{Name: "n", ModelOptions: ModelOptions{Temperature: &one}}},
		{"model_options.temperature", Spec{Name: "n", ModelOptions: ModelOptions{Temperature: &minus}}},
		{"model_options.temperature", Spec{Name: "n", ModelOptions: ModelOptions{Temperature: &inf}}},
		{"", Spec{Name: "n", Limits: Limits{PreviewChars: 100}}},
		{"", Spec{Name: "n", Limits: Limits{PreviewChars: MaxPreviewChars}}},
		{"limits.preview_chars", Spec{Name: "n", Limits: Limits{PreviewChars: -1}}},
		{"limits.tool_timeout_seconds", Spec{Name: "n", Limits: Limits{ToolTimeoutSeconds: 86401}}},
		{"", Spec{Name: "n", Limits: Limits{LargeResultTokens: 12000}}},
		{"limits.large_result_tokens", Spec{Name: "n", Limits: Limits{LargeResultTokens: 12001}}},
		{"limits.large_result_tokens", Spec{Name: "n", Limits: Limits{BatchResultTokens: 5999}}},
		{"", Spec{Name: "n", Limits: Limits{LargeResultTokens: 20000, BatchResultTokens: 20000}}},
		{"", Spec{Name: "n", Tools: []string{strings.Repeat("x", 64), "A-b_c9"}}},
	} {
		err := c.spec.Check()
		if c.path == "" {
			if err != nil {
				t.Errorf("%.80v: %v", c.spec, err)
			}
			continue
		}
		if got := specProblems(t, err); len(got) != 1 || !strings.HasPrefix(got[0], c.path+": ") {
			t.Errorf("%.80v: got %.300q, want one problem at %s", c.spec, got, c.path)
		}
	}
	var none *Spec
	if got := specProblems(t, (&Runtime{}).checkSpec(none)); !reflect.DeepEqual(got, []string{"the spec is nil"}) {
		t.Errorf("got %q", got)
	}
	if err := (&Runtime{tools: map[string]*Tool{"a": {}}}).checkSpec(&Spec{Name: "n", Tools: []string{"a"}}); err != nil {
		t.Error(err)
	}
	broken := NewRawTool(ToolDef{Name: "a", Schema: json.RawMessage(`[]`)}, echo, nil)
	if got := specProblems(t, (&Runtime{tools: map[string]*Tool{"a": broken}}).checkSpec(&Spec{Name: "n", Tools: []string{"a"}})); len(got) != 1 || !strings.HasPrefix(got[0], `tools[0]: tool "a" can't be used: `) {
		t.Errorf("got %q", got)
	}
}

func TestLimitsWithDefaults(t *testing.T) {
	want := Limits{LargeResultTokens: 6000, BatchResultTokens: 12000, PreviewChars: 1000, HistoryResultTokens: 1000, HistoryMinSavingTokens: 4000, HistoryMarginPercent: 50, Turns: 100, ToolTimeoutSeconds: 60, Parallel: 8}
	if got := (Limits{}).withDefaults(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	set := Limits{1, 2, 300, 4, 5, 6, 7, 8, 9, 10, 11, 12.5, Budget{13, 14, 15, 16.5}, 17, 18, true}
	if got := set.withDefaults(); got != set {
		t.Errorf("got %+v, want %+v", got, set)
	}
}

func goldenSpec() (*Spec, []ToolDef) {
	temperature := 0.25
	return &Spec{
			Name:         "helper <&> \u2028 é",
			Instructions: "Line one.\n\tLine \"two\".\b\x7f",
			Model:        "openai:x",
			ModelOptions: ModelOptions{MaxOutputTokens: 100, Temperature: &temperature, Effort: "low"},
			Tools:        []string{"write", "add"},
			Limits:       Limits{LargeResultTokens: 1, BatchResultTokens: 2, PreviewChars: 100, Turns: 3, Tokens: 4, ToolTimeoutSeconds: 5, Parallel: 6},
		}, []ToolDef{
			{Name: "write", Description: "Writes <it>.", Schema: json.RawMessage(` { "type" : "object", "b": 1.0, "a": [1e2, "\u003c"] } `)},
			{Name: "add", Schema: json.RawMessage(`{"type":"object"}`)},
		}
}

// A Version's hash is its address in every store: what was published must be
// found again by each later release, and by each release of Go.
func TestVersionGolden(t *testing.T) {
	spec, tools := goldenSpec()
	doc, hash, err := encodeVersion(spec, tools)
	if err != nil {
		t.Fatal(err)
	}
	want := "{\"format\":1,\"spec\":{\"name\":\"helper <&> \u2028 é\",\"instructions\":\"Line one.\\n\\tLine \\\"two\\\".\\b\x7f\"," +
		`"model":"openai:x","model_options":{"max_output_tokens":100,"temperature":0.25,"effort":"low"},"tools":["write","add"],` +
		`"limits":{"large_result_tokens":1,"batch_result_tokens":2,"preview_chars":100,"turns":3,"tokens":4,"tool_timeout_seconds":5,"parallel":6}},` +
		`"code_tools":[{"name":"add","description":"","schema":{"type":"object"}},` +
		`{"name":"write","description":"Writes <it>.","schema":{"type":"object","b":1.0,"a":[1e2,"<"]}}]}`
	if string(doc) != want {
		t.Errorf("got  %s\nwant %s", doc, want)
	}
	if got := hash.String(); got != "54b56a23e5e078a73f126b1695c43739e2444b8838530057cca0ef1009716158" {
		t.Errorf("got hash %s", got)
	}
	doc, hash, err = encodeVersion(&Spec{Name: "n"}, nil)
	if err != nil || string(doc) != `{"format":1,"spec":{"name":"n"}}` || hash.String() != "a9603a0c31766cc5d8b56fe08199e09d8e15885825e124c740df906cdc2a353c" {
		t.Errorf("got %s, %s, %v", doc, hash, err)
	}
}

func TestVersionRoundTrip(t *testing.T) {
	spec, tools := goldenSpec()
	doc, hash, err := encodeVersion(spec, tools)
	if err != nil {
		t.Fatal(err)
	}
	v, err := decodeVersion(doc)
	if err != nil {
		t.Fatal(err)
	}
	if v.Hash != hash || !reflect.DeepEqual(&v.Spec, spec) || len(v.CodeTools) != 2 || v.CodeTools[0].Name != "add" {
		t.Errorf("got %+v", v)
	}
	again, hash2, err := encodeVersion(&v.Spec, v.CodeTools)
	if err != nil || !bytes.Equal(again, doc) || hash2 != hash {
		t.Errorf("encoded again: %s, %v", again, err)
	}
	if tools[0].Name != "write" {
		t.Error("the caller's slice was sorted")
	}
}

func TestEveryLimitIsInTheHash(t *testing.T) {
	seen := map[Digest]string{}
	hash := func(what string, s Spec) {
		_, h, err := encodeVersion(&s, nil)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[h]; ok {
			t.Errorf("%s has the hash of %s", what, other)
		}
		seen[h] = what
	}
	hash("none", Spec{Name: "n"})
	each := func(what string, of func(*Spec) reflect.Value, typ reflect.Type) {
		for i := range typ.NumField() {
			s := Spec{Name: "n"}
			switch f := of(&s).Field(i); {
			case f.CanInt():
				f.SetInt(7)
			case f.CanFloat():
				f.SetFloat(0.1)
			case f.Kind() == reflect.Bool:
				f.SetBool(true)
			default:
				continue // Run has fields of its own
			}
			hash(what+typ.Field(i).Name, s)
		}
	}
	each("", func(s *Spec) reflect.Value { return reflect.ValueOf(&s.Limits).Elem() }, reflect.TypeFor[Limits]())
	each("Run.", func(s *Spec) reflect.Value { return reflect.ValueOf(&s.Limits.Run).Elem() }, reflect.TypeFor[Budget]())
	// A default that is spelled out is another Spec: it stays when defaults change.
	hash("turns 100", Spec{Name: "n", Limits: Limits{Turns: 100}})
}

func TestDecodeVersionRefuses(t *testing.T) {
	for _, in := range []string{"", "{}{}", "[]", `{"format":"x"}`, `{"format":1,"format":1,"spec":{"name":"n"}}`} {
		if _, err := decodeVersion([]byte(in)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: got %v, want ErrInvalid", in, err)
		}
	}
	for _, in := range []string{`{"format":2}`, `{"format":1,"spec":{"name":"n","wishes":[]}}`, `{"format":1,"spec":{"name":"n"},"skills":[]}`} {
		var u *UnsupportedError
		if _, err := decodeVersion([]byte(in)); !errors.As(err, &u) {
			t.Errorf("%q: got %v, want an *UnsupportedError", in, err)
		}
	}
	if _, _, err := encodeVersion(&Spec{Name: "n"}, []ToolDef{{Name: "a", Schema: json.RawMessage(`{`)}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

func TestDigestText(t *testing.T) {
	d := Digest{1, 0xab}
	b, err := d.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	var got Digest
	if err := got.UnmarshalText(b); err != nil || got != d || got.IsZero() {
		t.Errorf("got %v, %v", got, err)
	}
	for _, in := range []string{"", "ab", strings.Repeat("g", 64), strings.Repeat("a", 66)} {
		if err := got.UnmarshalText([]byte(in)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: got %v, want ErrInvalid", in, err)
		}
	}
}

// What no part of a Spec is too large for is bounded as a whole.
func TestSpecBytes(t *testing.T) {
	skills := func(n, description, body int) (list []Skill) {
		for i := range n {
			list = append(list, Skill{Name: fmt.Sprintf("s%05d", i), Description: strings.Repeat("d", description), Body: strings.Repeat("<", body)})
		}
		return list
	}
	room := MaxIndexBytes - len(skillIndex(nil))
	const line = len("\n- s00000: ")
	for name, c := range map[string]struct {
		spec Spec
		want string // in the error; "": none
	}{
		"an index of the largest size": {Spec{Name: "n", Skills: skills(room/128, 128-line, 1)}, ""},
		"an index that is larger":      {Spec{Name: "n", Skills: skills(room/128+1, 128-line, 1)}, "the lines of its 2048 skills and 0 connections have 2622"},
		"an index of both": {Spec{Name: "n", Skills: skills(room/128, 128-line, 1), Connections: []Connection{{Name: "c", URL: "https://c.example", Description: strings.Repeat("d", 200)}}},
			"the lines of its 2047 skills and 1 connections have 262"},
		"a spec of the largest size": {Spec{Name: "n", Skills: skills(52, 100, 20_000)}, ""},
		"a spec that is larger":      {Spec{Name: "n", Skills: skills(53, 100, 20_000)}, "bytes as JSON: want at most 1048576"},
	} {
		err := c.spec.Check()
		var bad *SpecError
		if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &bad) || len(bad.Problems) != 1 || !strings.Contains(bad.Problems[0].Message, c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// What a Runtime keeps of documents and schemas is bounded in bytes, and what was
// used last stays.
func TestKeptBytes(t *testing.T) {
	r, err := New(struct{ Store }{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const large, n = 4 << 20, 40
	for i := range n {
		doc, err := json.Marshal(openingDoc{Format: openingFormat, Lines: []string{strings.Repeat("x", large)}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.keepOpening("t", Digest{byte(i)}, doc); err != nil {
			t.Fatal(err)
		}
		r.schemaOf(Digest{byte(i)}, &RemoteTool{ToolDef: ToolDef{Schema: json.RawMessage(`{"type":"object","description":"` + strings.Repeat("d", large/8) + `"}`)}})
	}
	if got := len(r.opened.items); got == 0 || got*large > keptBytes {
		t.Errorf("%d openings of %d bytes are kept", got, large)
	}
	if got := len(r.schemas.items); got == 0 || got*large > keptBytes {
		t.Errorf("%d schemas that take %d bytes are kept", got, large)
	}
	if _, ok := r.opened.get(versionKey{"t", Digest{n - 1}}); !ok {
		t.Error("the last opening is not kept")
	}
}
