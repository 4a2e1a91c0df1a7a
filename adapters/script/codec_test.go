package script

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

var update = flag.Bool("update", false, "rewrite testdata")

var odd = "quote \" back \\ slash / <b>&amp; nul \x00 esc \x1b[31m del \x7f tab\t nl\n cr\r ls\u2028 日本 ☃ 🂡 bad \xff\xc3( cut \xe2\x98"

func messages() []*psych.Message {
	call := func(id, name, args string) psych.Block {
		return psych.Block{Call: &psych.ToolCall{ID: id, Name: name, Arguments: json.RawMessage(args)}}
	}
	result := func(id, text string, failed bool) psych.Block {
		return psych.Block{Result: &psych.ToolOutput{CallID: id, Text: text, IsError: failed}}
	}
	return []*psych.Message{
		{Role: psych.RoleUser, Blocks: []psych.Block{{Text: "hi"}}},
		{Role: psych.RoleUser, Blocks: []psych.Block{{Text: odd}}},
		{Role: psych.RoleUser, Blocks: []psych.Block{{Text: "one"}, {Text: "two"}}},
		{Role: psych.RoleUser},
		{Role: psych.RoleAssistant, Blocks: []psych.Block{{Text: "I look."}, call("c1_1", "look", `{"b": 1.0, "a": [1e400, 9007199254740993]}`), call("c1_2", "look", `{}`)}},
		{Role: psych.RoleAssistant, Blocks: []psych.Block{{Provider: json.RawMessage("{ \"sig\" :\n\"a\\u0062\" }")}, {Provider: json.RawMessage("\xff\x00not json")}, {Provider: json.RawMessage{}}}},
		{Role: psych.RoleAssistant},
		{Role: psych.RoleTool, Blocks: []psych.Block{result("c1_1", odd, false), result("c1_2", "no such file", true), result("c1_3", "", false)}},
		{Role: psych.RoleTool},
	}
}

// The encoding is recorded in logs by its ID: bytes that change need a new one.
func TestCodecGolden(t *testing.T) {
	c := New(&Script{}, nil).Codec()
	var out bytes.Buffer
	line := func(b []byte, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
		out.WriteByte('\n')
	}
	out.WriteString(c.ID() + "\n")
	line(c.EncodeTools([]psych.ToolDef{
		{Name: "b", Description: odd, Schema: json.RawMessage(`{ "type":"object", "x": 1.0, "<":"\u003c" }`)},
		{Name: "a"},
	}))
	z1, z2, err := c.EncodeSystem([]string{odd, "two"}, odd)
	line(z1, err)
	line(z2, err)
	for _, m := range messages() {
		b, _, err := c.EncodeMessage(m)
		line(b, err)
	}
	line(c.EncodeTail(odd))

	golden := filepath.Join("testdata", "codec.golden")
	if *update {
		if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), want) {
		t.Errorf("got\n%s\nwant\n%s", out.Bytes(), want)
	}
}

func TestMessagesComeBack(t *testing.T) {
	c := New(&Script{}, nil).Codec()
	for i, m := range messages() {
		b, marker, err := c.EncodeMessage(m)
		if err != nil {
			t.Fatal(err)
		}
		if marker != len(b)-1 || b[marker] != '}' {
			t.Errorf("message %d: marker at %d of %d", i, marker, len(b))
		}
		again, _, err := c.EncodeMessage(m)
		if err != nil || !bytes.Equal(b, again) {
			t.Errorf("message %d: not the same twice", i)
		}
		if !json.Valid(b) || !utf8.Valid(b) {
			t.Errorf("message %d: not JSON: %s", i, b)
		}
		if role, ok := roleOf(b); !ok || role != m.Role {
			t.Errorf("message %d: looks like %s", i, role)
		}
		d, err := decodeMessage(b)
		if err != nil {
			t.Fatal(err)
		}
		if d.Role != string(m.Role) {
			t.Errorf("message %d: role %s", i, d.Role)
		}
		for j, block := range m.Blocks {
			var got, want any
			switch {
			case block.Call != nil:
				got, want = string(d.Blocks[j].Call.Arguments), string(block.Call.Arguments)
			case block.Provider != nil:
				want = string(block.Provider)
				if p := d.Blocks[j].Provider; p != nil {
					got = *p
				} else {
					got = string(d.Blocks[j].ProviderBase64)
				}
			case block.Result != nil:
				r := block.Result
				got, want = d.Results[j], result{r.CallID, standard(r.Text), r.IsError}
			default:
				continue // texts are compared together, below
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("message %d, block %d: %q, want %q", i, j, got, want)
			}
		}
		text, err := d.text()
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range m.Blocks {
			if !strings.Contains(text, standard(block.Text)) {
				t.Errorf("message %d: no %q in %q", i, block.Text, text)
			}
		}
	}
}

// standard is s after encoding/json wrote and read it.
func standard(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	var out string
	if err := json.Unmarshal(b, &out); err != nil {
		panic(err)
	}
	return out
}

func TestCodecSorts(t *testing.T) {
	c := New(&Script{}, nil).Codec()
	defs := []psych.ToolDef{{Name: "b"}, {Name: "a"}}
	got, err := c.EncodeTools(defs)
	if err != nil {
		t.Fatal(err)
	}
	want, err := c.EncodeTools([]psych.ToolDef{{Name: "a"}, {Name: "b"}})
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s, %s, %v", got, want, err)
	}
	if defs[0].Name != "b" {
		t.Error("sorted the caller's list")
	}
}

func TestCodecEmpty(t *testing.T) {
	c := New(&Script{}, nil).Codec()
	if b, err := c.EncodeTools(nil); b != nil || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if a, b, err := c.EncodeSystem(nil, ""); a != nil || b != nil || err != nil {
		t.Errorf("%q, %q, %v", a, b, err)
	}
	if b, err := c.EncodeTail(""); b != nil || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}

func TestCodecRefuses(t *testing.T) {
	c := New(&Script{}, nil).Codec()
	text := psych.Block{Text: "x"}
	callOf := func(args string) psych.Block {
		return psych.Block{Call: &psych.ToolCall{Name: "x", Arguments: []byte(args)}}
	}
	res := psych.Block{Result: &psych.ToolOutput{}}
	for name, m := range map[string]*psych.Message{
		"no role":                 {},
		"call of a user":          {Role: psych.RoleUser, Blocks: []psych.Block{callOf("{}")}},
		"result of the assistant": {Role: psych.RoleAssistant, Blocks: []psych.Block{res}},
		"text of a tool":          {Role: psych.RoleTool, Blocks: []psych.Block{text}},
		"broken arguments":        {Role: psych.RoleAssistant, Blocks: []psych.Block{callOf(`{"a":`)}},
		"no arguments":            {Role: psych.RoleAssistant, Blocks: []psych.Block{callOf("")}},
	} {
		if b, marker, err := c.EncodeMessage(m); !errors.Is(err, psych.ErrInvalid) || b != nil || marker != -1 {
			t.Errorf("%s: %q, %d, %v", name, b, marker, err)
		}
	}
	if _, err := c.EncodeTools([]psych.ToolDef{{Name: "x", Schema: []byte("{")}}); !errors.Is(err, psych.ErrInvalid) {
		t.Error(err)
	}
}

func TestLimits(t *testing.T) {
	want := psych.ModelLimits{Tools: 3, ContextTokens: 1000}
	if got := New(&Script{}, &Options{Limits: want}).Codec().Limits(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

func FuzzString(f *testing.F) {
	f.Add(odd)
	f.Add("")
	f.Add("\xed\xa0\x80")
	f.Fuzz(func(t *testing.T, s string) {
		b := appendString(nil, s)
		var got string
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		if got != standard(s) || !utf8.Valid(b) {
			t.Errorf("%q came back as %q", s, got)
		}
	})
}
