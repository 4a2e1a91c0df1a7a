package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func problemsOf(t *testing.T, err error) []string {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want an *Error", err)
	}
	var out []string
	for _, p := range e.Problems {
		out = append(out, fmt.Sprintf("%d %s", p.Class, p))
	}
	return out
}

func TestCheckSyntax(t *testing.T) {
	for _, in := range []string{
		"", "  \n", "{", "[", `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `[1,]`, `[1 2]`, `{"a" 1}`, `{a:1}`, `{1:1}`,
		"tru", "truth", "nul", "nan", "01", "-", "1.", ".5", "1e", "1e+", "+1", `"`, `"\`, `"\u12`, `"\u12g4"`, `"\x"`, "\"\n\"",
		`{"a":1}}`, `{"a":1} {"b":2}`, "1 2", "[1]]", "]", "}", ",", "{]", "[}", "\ufeff{}", "'a'", "\x00", "// c\n1",
	} {
		_, err := Scan([]byte(in))
		var e *Error
		if !errors.As(err, &e) || len(e.Problems) != 1 || e.Problems[0].Class != Syntax {
			t.Errorf("Scan(%q): got %v, want one problem of syntax", in, err)
		}
		if _, cerr := Compact([]byte(in)); !errors.As(cerr, &e) {
			t.Errorf("Compact(%q): got %v, want an *Error", in, cerr)
		}
	}
}

func TestCheckFinds(t *testing.T) {
	many := `{"k0":0`
	for i := 1; i < 40; i++ {
		many += fmt.Sprintf(`,"k%d":%d`, i, i)
	}
	for _, c := range []struct {
		in   string
		want []string
	}{
		{`{"a":1,"b":{"a":1},"c":[{"a":1},{"a":2}]}`, nil},
		{` [1, -0.5e10, "é", "\ud83d\ude00", true, false, null, {}, []] `, nil},
		{`{"a":1,"a":2}`, []string{"2 a: the key stands twice in its object"}},
		{`{"limits":{"turns":1,"x":0,"turns":2}}`, []string{"2 limits.turns: the key stands twice in its object"}},
		{`{"a":[0,{"x":1,"\u0078":2}]}`, []string{"2 a[1].x: the key stands twice in its object"}},
		{`{"a b":{"":1,"":2}}`, []string{`2 ["a b"][""]: the key stands twice in its object`}},
		{many + `,"k3":1,"k39":2}`, []string{"2 k3: the key stands twice in its object", "2 k39: the key stands twice in its object"}},
		{`{"a":{"b":1},"b":2,"a":3,"c":{"d":1,"d":1}}`, []string{"2 a: the key stands twice in its object", "2 c.d: the key stands twice in its object"}},
		{`{"a":["x","\ud800"]}`, []string{`3 a[1]: the string holds half of a surrogate pair (\ud800 to \udfff without its other half)`}},
		{`"\udc00\ud800\u0041"`, []string{`3 the string holds half of a surrogate pair (\ud800 to \udfff without its other half)`}},
		{"{\"a\":\"\xff\"}", []string{"4 a: the string is not valid UTF-8"}},
		{"{\"\xff\":1,\"\xfe\":1}", []string{`4 ["�"]: the string is not valid UTF-8`, `2 ["�"]: the key stands twice in its object`, `4 ["�"]: the string is not valid UTF-8`}},
		{`[1e400,1e401,1E-999999999999]`, []string{
			"5 [1]: the number is out of range: want at most 1000 characters and an exponent from -400 to 400",
			"5 [2]: the number is out of range: want at most 1000 characters and an exponent from -400 to 400"}},
		{strings.Repeat("9", 1001), []string{"5 the number is out of range: want at most 1000 characters and an exponent from -400 to 400"}},
	} {
		err := Check([]byte(c.in))
		if c.want == nil {
			if err != nil {
				t.Errorf("Check(%q): %v", c.in, err)
			}
			continue
		}
		got := problemsOf(t, err)
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("Check(%q):\n got %q\nwant %q", c.in, got, c.want)
		}
	}
}

func TestProblemsAreBounded(t *testing.T) {
	err := Check([]byte(`{"a":` + strings.Repeat(`[0,{"`+strings.Repeat("k", 300)+`":1,"z":1,"z":2},`, 300) + "1" + strings.Repeat("]", 300) + "}"))
	var e *Error
	if !errors.As(err, &e) || len(e.Problems) != maxProblems {
		t.Fatalf("got %d problems (%.200v), want %d", len(e.Problems), err, maxProblems)
	}
	for _, p := range e.Problems {
		if len(p.Path) > maxPath+len("…") {
			t.Fatalf("path of %d bytes, want at most %d", len(p.Path), maxPath)
		}
	}
}

func TestDepth(t *testing.T) {
	for _, pair := range []string{"[]", `{}`} {
		inner := string(pair[0])
		if pair == "{}" {
			inner = `{"a":`
		}
		nest := func(n int) []byte {
			return []byte(strings.Repeat(inner, n-1) + pair + strings.Repeat(pair[1:], n-1))
		}
		v, err := Scan(nest(MaxDepth))
		if err != nil || v.Depth != MaxDepth {
			t.Errorf("at MaxDepth: depth %d, %v", v.Depth, err)
		}
		var into any
		if err := Decode(nest(MaxDepth), &into); err != nil {
			t.Errorf("Decode at MaxDepth: %v", err)
		}
		for _, n := range []int{MaxDepth + 1, 100_000, 1_000_000} {
			_, err := Scan(nest(n))
			if got := problemsOf(t, err); len(got) != 1 || got[0] != "1 nested more than 10000 deep" {
				t.Errorf("%d deep: got %q", n, got)
			}
			if got := problemsOf(t, Decode(nest(n), &into)); len(got) != 1 || got[0] != "1 nested more than 10000 deep" {
				t.Errorf("Decode, %d deep: got %q", n, got)
			}
		}
	}
}

func TestCompact(t *testing.T) {
	for in, want := range map[string]string{
		" {\t\"b\" : 1.0 ,\r\n\"a\": [ 1e2 , \"<&>\\u0041\\/ \\\" x\" ] } ": `{"b":1.0,"a":[1e2,"<&>\u0041\/ \" x"]}`,
		`{"z":1,"a":12345678901234567890.10}`:                               `{"z":1,"a":12345678901234567890.10}`,
		"\"a b\"":                                                           "\"a b\"",
		"\"\xff\"":                                                          "\"\xff\"",
		" 1 ":                                                               "1",
	} {
		before := strings.Clone(in)
		data := []byte(in)
		got, err := Compact(data)
		if err != nil || string(got) != want {
			t.Errorf("Compact(%q): got %q, %v, want %q", in, got, err, want)
		}
		if string(data) != before {
			t.Errorf("Compact(%q) changed its input", in)
		}
	}
}

func TestCanonical(t *testing.T) {
	in := " {\"b\\u003c\\/\" : \"\\u0041\\b\\f\\n\\r\\t\\u001f\\\\\\\"\\u2028<\u007f\\ud83d\\ude00\", \"a\":1.0E2}"
	want := "{\"b</\":\"A\\b\\f\\n\\r\\t\\u001f\\\\\\\"\u2028<\u007f😀\",\"a\":1.0E2}"
	got, err := Canonical([]byte(in))
	if err != nil || string(got) != want {
		t.Fatalf("got %q, %v, want %q", got, err, want)
	}
	if again, err := Canonical(got); err != nil || !bytes.Equal(again, got) {
		t.Fatalf("not idempotent: %q, %v", again, err)
	}
	if got := problemsOf(t, errOf(Canonical([]byte(`{"a":1,"a":1}`)))); len(got) != 1 {
		t.Fatalf("got %q, want the duplicate", got)
	}
}

func errOf(_ []byte, err error) error { return err }

func TestRepair(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"a":"x"}`, `{"a":"x"}`},
		{`"\ud83d\ude00"`, `"\ud83d\ude00"`},
		{`"\ud800"`, `"\ufffd"`},
		{`"\uD800\uD800\uDC00\uDC00"`, `"\ufffd\uD800\uDC00\ufffd"`},
		{`{"\udfff":"\ud800x\\ud800"}`, `{"\ufffd":"\ufffdx\\ud800"}`},
		{"\"\xff\xed\xa0\x80é\"", "\"\ufffd\ufffd\ufffd\ufffdé\""},
		{"\xff", "\ufffd"},
		{`text \ud800, not quoted`, `text \ud800, not quoted`},
		{`{"cut": "\ud800`, `{"cut": "\ufffd`},
		{`"\ud8`, `"\ud8`},
		{`"\`, `"\`},
		{"", ""},
	} {
		got, repaired := Repair([]byte(c.in))
		if string(got) != c.want || repaired != (c.in != c.want) {
			t.Errorf("Repair(%q): got %q, %v, want %q", c.in, got, repaired, c.want)
		}
	}
}

type inner struct {
	Turns int8     `json:"turns,omitempty"`
	Max   *float64 `json:"max,omitempty"`
}

type embedded struct {
	Shared string `json:"shared"`
}

type level int

func (l *level) UnmarshalText(b []byte) error {
	if string(b) != "low" {
		return errors.New(`want "low"`)
	}
	*l = 1
	return nil
}

type outer struct {
	embedded
	Name   string            `json:"name"`
	Tools  []string          `json:"tools"`
	Limits inner             `json:"limits"`
	Labels map[string]string `json:"labels"`
	Many   []inner           `json:"many"`
	Level  level             `json:"level"`
	Raw    json.RawMessage   `json:"raw"`
	Any    any               `json:"any"`
	Big    json.Number       `json:"big"`
	U      uint16            `json:"u"`
	OK     bool              `json:"ok"`
	Bytes  []byte            `json:"bytes"`
	Hidden string            `json:"-"`
}

func TestDecode(t *testing.T) {
	var o outer
	err := Decode([]byte(`{"shared":"s","name":"n","tools":["a"],"limits":{"turns":3,"max":null},"labels":{"k":"v"},"many":[{"turns":1}],
		"level":"low","raw":{"x":[1]},"any":{"y":1},"big":123456789012345678901234567890,"u":7,"ok":true,"bytes":"AAE="}`), &o)
	if err != nil {
		t.Fatal(err)
	}
	if o.Shared != "s" || o.Name != "n" || o.Limits.Turns != 3 || o.Many[0].Turns != 1 || o.Level != 1 || string(o.Raw) != `{"x":[1]}` || o.Big != "123456789012345678901234567890" || o.U != 7 || !o.OK || len(o.Bytes) != 2 {
		t.Errorf("got %+v", o)
	}
}

func TestDecodeListsEveryProblem(t *testing.T) {
	o := outer{Name: "kept"}
	err := Decode([]byte(`{"Name":"x","name":7,"tools":["a",1,null],"limits":{"turns":300,"max":"x","truns":1},"labels":{"k v":1},
		"many":[{},{"y":1},3],"level":"high","hidden":1,"Hidden":1,"big":"1x","u":-1,"ok":"yes","bytes":1,"shared":null,"limits":{"turns":1.5}}`), &o)
	got := problemsOf(t, err)
	unknown := ": unknown field: want one of any, big, bytes, labels, level, limits, many, name, ok, raw, shared, tools, u"
	want := []string{
		"2 limits: the key stands twice in its object",
		"6 Hidden" + unknown,
		"6 Name" + unknown,
		"7 bytes: got 1, want a string in base64",
		"6 hidden" + unknown,
		`7 labels["k v"]: got 1, want a string`,
		`7 level: want "low"`,
		"7 limits.turns: got 1.5, want an integer of at most 8 bits",
		"6 many[1].y: unknown field: want one of max, turns",
		"7 many[2]: got 3, want an object",
		"7 name: got 7, want a string",
		"7 ok: got a string, want a boolean",
		"7 shared: got null, want a string",
		"7 tools[1]: got 1, want a string",
		"7 tools[2]: got null, want a string",
		"7 u: got -1, want an integer of at most 16 bits, not negative",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if o.Name != "kept" {
		t.Errorf("the value was changed: %+v", o)
	}
}

func TestDecodeLeavesNoHalf(t *testing.T) {
	o := outer{Name: "kept"}
	err := Decode([]byte(`{"name":"new","bytes":"not base64!"}`), &o)
	if got := problemsOf(t, err); len(got) != 1 || !strings.HasPrefix(got[0], "7 ") {
		t.Errorf("got %q, want one problem of type", got)
	}
	if o.Name != "kept" {
		t.Errorf("the value was changed: %+v", o)
	}
}

// FuzzScan compares with encoding/json, and checks what the editing functions
// promise.
func FuzzScan(f *testing.F) {
	for _, s := range []string{
		`{"a":[1,2.5e3,"x\u0041\ud83d\ude00"],"a":null}`, `"\ud800\udc"`, "[\"\xff\", 1e999]", ` { } `, `[[[[]]]]`, `{"a":1}{`, `"\\"`, `-0`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		v, err := Scan(data)
		if (err == nil) != json.Valid(data) {
			t.Fatalf("Scan: %v, json.Valid: %v", err, json.Valid(data))
		}
		repaired, did := Repair(data)
		if !utf8.Valid(repaired) {
			t.Fatal("Repair left invalid UTF-8")
		}
		if !bytes.Equal(data, before) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			return
		}
		if odd := v.Has(Surrogate, Encoding); len(v.Problems) < maxProblems && odd != did {
			t.Fatalf("Scan finds %v, Repair %v", odd, did)
		}
		if r, err := Scan(repaired); err != nil || r.Has(Surrogate, Encoding) {
			t.Fatalf("repaired to %q: %v, %v", repaired, r.Problems, err)
		}
		var a, b, c any
		if err := json.Unmarshal(data, &a); err != nil {
			return // a number beyond float64
		}
		small, err := Compact(data)
		if err != nil {
			t.Fatal(err)
		}
		var want bytes.Buffer
		if err := json.Compact(&want, data); err != nil || !bytes.Equal(small, want.Bytes()) {
			t.Fatalf("Compact: %q, want %q", small, want.Bytes())
		}
		if err := json.Unmarshal(repaired, &b); err != nil || !reflect.DeepEqual(a, b) {
			t.Fatalf("Repair changed the meaning: %q", repaired)
		}
		if canonical, err := Canonical(data); err == nil {
			if err := json.Unmarshal(canonical, &c); err != nil || !reflect.DeepEqual(a, c) {
				t.Fatalf("Canonical changed the meaning: %q", canonical)
			}
		} else if len(v.Problems) == 0 {
			t.Fatal(err)
		}
	})
}

func BenchmarkScan(b *testing.B) {
	data := []byte(`{"path":"src/main.go","offset":1200,"options":{"follow":true,"depth":3},"names":["a","b","c"]}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := Scan(data); err != nil {
			b.Fatal(err)
		}
	}
}
