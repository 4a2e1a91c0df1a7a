package script

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/internal/yamljson"
	"github.com/psych-go/psych-go/psych"
)

func TestParse(t *testing.T) {
	const y = `
steps:
  - text: hi
    provider: raw
    stop: tool_use
    usage: {input: 1, cached: 2, output: 3}
    require: [a, b]
    forbid: [c]
    repeat: {until: d}
    calls:
      - {id: x, name: look, arguments: {a: 1}}
      - {name: look, raw_arguments: "{"}
  - {fail: 429, times: 3, retry_after_seconds: 2}
  - {stall: true, times: 1}
`
	n := func(i int64) *int64 { return &i }
	want := &Script{Steps: []Step{
		{
			Provider: new("raw"), Text: new("hi"), Stop: psych.StopToolUse,
			Usage:   &Usage{n(1), n(2), n(3)},
			Require: []string{"a", "b"}, Forbid: []string{"c"}, Repeat: &Repeat{Until: "d"},
			Calls: []Call{{ID: new("x"), Name: "look", Arguments: []byte(`{"a":1}`)}, {Name: "look", RawArguments: new("{")}},
		},
		{Fail: new(429), Times: 3, RetryAfterSeconds: 2},
		{Stall: true, Times: 1},
	}}
	const j = `{"steps":[{"text":"hi","provider":"raw","stop":"tool_use","usage":{"input":1,"cached":2,"output":3},
		"require":["a","b"],"forbid":["c"],"repeat":{"until":"d"},
		"calls":[{"id":"x","name":"look","arguments":{"a":1}},{"name":"look","raw_arguments":"{"}]},
		{"fail":429,"times":3,"retry_after_seconds":2},{"stall":true,"times":1}]}`
	for _, src := range []string{y, j} {
		got, err := Parse([]byte(src))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v", got)
		}
	}
}

func TestParseProblems(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     []string // beginnings of the problems, in order
	}{
		{"a list", `[1]`, []string{": must be an object, not a list"}},
		{"no steps", `{}`, []string{"steps: a script needs"}},
		{"empty steps", `steps: []`, []string{"steps: a script needs"}},
		{"steps no list", `steps: {a: 1}`, []string{"steps: must be a list, not an object"}},
		{"null steps", `{"steps":null}`, []string{"steps: must be a list, not null"}},
		{"unknown at the top", "steps: [text: a]\nname: x", []string{"name: unknown field; known are steps"}},
		{"step no object", `steps: [hi]`, []string{"steps[0]: must be an object, not a string"}},
		{"empty step", `steps: [{}]`, []string{"steps[0]: a step needs"}},
		{"no stall", `steps: [{stall: false}]`, []string{"steps[0]: a step needs"}},
		{"misspelt", `steps: [{txt: a}]`, []string{"steps[0].txt: unknown field; known are calls, fail,"}},
		{"two kinds", `steps: [{text: a, fail: 429}, {text: a, stall: true}, {fail: 500, stall: true}]`,
			[]string{"steps[0]: a step speaks", "steps[1]: a step speaks", "steps[2]: a step speaks"}},
		{"types", `steps: [{text: 5, fail: "x", stall: 1, times: 1.5, retry_after_seconds: [], stop: 1, calls: {}, usage: 1, repeat: x, require: a, forbid: [1]}]`,
			[]string{
				"steps[0].text: must be a string, not the number 5", "steps[0].fail: must be an HTTP status, not a string",
				"steps[0].stall: must be true, not the number 1", "steps[0].times: must be a whole number, not the number 1.5",
				"steps[0].retry_after_seconds: must be a number, not a list", "steps[0].stop: must be a string", "steps[0].calls: must be a list",
				"steps[0].usage: must be an object", "steps[0].repeat: must be an object", "steps[0].require: must be a list, not a string",
				"steps[0].forbid[0]: must be a regular expression, not the number 1",
			}},
		{"null", `steps: [text: null]`, []string{"steps[0].text: must be a string, not null"}},
		{"twice in JSON", `{"steps":[{"text":"a","text":"b"}]}`, []string{"steps[0].text: is there twice"}},
		{"status", `steps: [{fail: 200}, {fail: 600}, {fail: -1}]`, []string{"steps[0].fail: must be a status", "steps[1].fail:", "steps[2].fail:"}},
		{"numbers", `steps: [{fail: 500, times: 0, retry_after_seconds: -1}]`,
			[]string{"steps[0].times: must be at least 1, not 0", "steps[0].retry_after_seconds: must be from 0"}},
		{"stop", `steps: [{text: a, stop: stopp}]`, []string{`steps[0].stop: must be end, tool_use, max_tokens, refusal or context, not "stopp"`}},
		{"usage", `steps: [{text: a, usage: {input: -1, total: 3}}]`,
			[]string{"steps[0].usage.total: unknown field", "steps[0].usage.input: must not be negative"}},
		{"misplaced on text", `steps: [{text: a, times: 2, retry_after_seconds: 1}]`, []string{"steps[0].times: belongs to", "steps[0].retry_after_seconds: belongs to fail"}},
		{"misplaced on fail", `steps: [{fail: 500, stop: end, usage: {}, repeat: {until: a}}]`,
			[]string{"steps[0].usage: belongs", "steps[0].repeat: belongs", "steps[0].stop: belongs"}},
		{"misplaced on stall", `steps: [{stall: true, stop: context, retry_after_seconds: 1}]`, []string{"steps[0].stop: belongs", "steps[0].retry_after_seconds: belongs"}},
		{"patterns", `steps: [{text: a, require: [ok, "("], forbid: ["[", ok, "*"], repeat: {until: ")"}}]`,
			[]string{"steps[0].require[1]: error parsing regexp", "steps[0].forbid[0]: ", "steps[0].forbid[2]: ", "steps[0].repeat.until: "}},
		{"empty until", `steps: [{text: a, repeat: {}}]`, []string{"steps[0].repeat.until: must be a regular"}},
		{"calls", "steps:\n  - text: ok\n" +
			"  - calls: [{name: a}, {arguments: {}}, {name: '', arguments: '${x'}, {name: d, arguments: 1, raw_arguments: ''}]\n" +
			"  - calls: [{id: 7, name: e, argument: {}, arguments: '${x}'}]\n",
			[]string{
				"steps[1].calls[1].name: is missing", "steps[1].calls[2].name: is missing", `steps[1].calls[2].arguments: "${x" has no end`,
				"steps[1].calls[3]: has arguments and raw_arguments", "steps[2].calls[0].id: must be a string, not the number 7",
				"steps[2].calls[0].argument: unknown field; known are arguments, id,", `steps[2].calls[0].arguments: "${x}" has no group`,
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.in))
			var e *Error
			if !errors.As(err, &e) || !errors.Is(err, psych.ErrInvalid) {
				t.Fatalf("error %v, want an *Error", err)
			}
			var got []string
			for _, p := range e.Problems {
				got = append(got, p.Path+": "+p.Message)
				if !strings.Contains(err.Error(), p.Message) {
					t.Errorf("%v does not say %s", err, p.Message)
				}
			}
			if !slices.EqualFunc(got, tt.want, strings.HasPrefix) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for in, want := range map[string]error{
		"":                        yamljson.ErrEmpty,
		"a: 1\na: 2":              yamljson.ErrDuplicateKey,
		"steps: [text: a]\n---\n": yamljson.ErrDocuments,
		`{"steps": [`:             psych.ErrInvalid,
		`{"steps": []} x`:         psych.ErrInvalid,
	} {
		_, err := Parse([]byte(in))
		if !errors.Is(err, want) || !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("%q: %v, want %v", in, err, want)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml")
	for name, text := range map[string]string{good: "steps:\n  - text: hi\n", bad: "steps:\n  - txt: hi\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if s, err := Load(good); err != nil || len(s.Steps) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := Load(bad); !errors.Is(err, psych.ErrInvalid) || !strings.Contains(err.Error(), bad) {
		t.Error(err)
	}
	if _, err := Load(filepath.Join(dir, "none.yaml")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := os.WriteFile(good, make([]byte, yamljson.MaxBytes+100), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(good); !errors.Is(err, yamljson.ErrTooLarge) {
		t.Error(err)
	}
}

// A script in Go is checked as one in a file is.
func TestNewReportsProblems(t *testing.T) {
	for _, s := range []*Script{{}, {Steps: []Step{{}}}, {Steps: []Step{{Text: new("a"), Require: []string{"("}}}}} {
		k := newTalk(t, New(s, nil))
		k.user("hi")
		_, err := k.try()
		refused(t, err)
		var e *Error
		if !errors.As(err, &e) || len(e.Problems) != 1 || !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("%v", err)
		}
	}
	k := newTalk(t, New(&Script{Steps: []Step{{Text: new("hi")}}}, nil))
	k.user("hi")
	if got := said(k.answer()); got != "hi" {
		t.Error(got)
	}
}
