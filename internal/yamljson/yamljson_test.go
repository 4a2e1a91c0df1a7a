package yamljson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestConvert(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"map keeps order", "b: 1\na: x\nc: null\n", `{"b":1,"a":"x","c":null}`},
		{"list", "- 1\n- [true, false]\n- {a: b}\n", `[1,[true,false],{"a":"b"}]`},
		{"scalar", "hello", `"hello"`},
		{"empty map", "a: {}\nb: []\nc:\n", `{"a":{},"b":[],"c":null}`},
		{"block text", "a: |\n  one\n  two <b>&\n", `{"a":"one\ntwo <b>&\n"}`},
		{"quoted number is text", `a: "5"`, `{"a":"5"}`},
		{"no and on are text", "no: off", `{"no":"off"}`},
		{"integers keep digits", "a: 9007199254740993\nb: 123456789012345678901234567890\nc: -18446744073709551617",
			`{"a":9007199254740993,"b":123456789012345678901234567890,"c":-18446744073709551617}`},
		{"integers as JSON can't spell", "a: 0x10\nb: 0o17\nc: 1_000\nd: +5\ne: 08", `{"a":16,"b":15,"c":1000,"d":5,"e":8}`},
		{"floats", "a: 1.50\nb: .5\nc: 1e3\nd: 0.1000000000000000055", `{"a":1.50,"b":0.5,"c":1e3,"d":0.1000000000000000055}`},
		{"timestamp is text", "a: 2026-11-29", `{"a":"2026-11-29"}`},
		{"alias", "a: &x {b: 1}\nc: *x\nd: [*x, *x]", `{"a":{"b":1},"c":{"b":1},"d":[{"b":1},{"b":1}]}`},
		{"tagged text", "a: !!str 5", `{"a":"5"}`},
		{"escapes", `a: "\0\e\u2028\x7f"`, `{"a":"\u0000\u001b\u2028` + "\x7f" + `"}`},
		{"byte order mark", "\xef\xbb\xbfa: 1", `{"a":1}`},
		{"comment first", "# hi\n---\na: 1\n", `{"a":1}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Convert([]byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if !json.Valid(got) {
				t.Error("not JSON")
			}
		})
	}
}

func TestJSONPassesUnchanged(t *testing.T) {
	for _, in := range []string{" \n{\"a\" : 1e999, \"a\":\"\\ud800\"}\n", "[1, 2]", "{not json"} {
		got, err := Convert([]byte(in))
		if err != nil || string(got) != in {
			t.Errorf("Convert(%q) = %q, %v", in, got, err)
		}
	}
}

func TestConvertRefuses(t *testing.T) {
	var bomb strings.Builder
	bomb.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&bomb, "a%d: &a%d [", i, i)
		for range 9 {
			fmt.Fprintf(&bomb, "*a%d, ", i-1)
		}
		bomb.WriteString("]\n")
	}
	long := "a: &a " + strings.Repeat("x", MaxBytes/2) + "\nb: [" + strings.Repeat("*a, ", 1000) + "]"

	for _, tt := range []struct {
		name, in string
		want     error
		says     string
	}{
		{"nothing", "", ErrEmpty, ""},
		{"spaces", " \n\t ", ErrEmpty, ""},
		{"comment alone", "# nothing\n", ErrEmpty, ""},
		{"null document", "---\n", ErrEmpty, ""},
		{"too large", strings.Repeat("#", MaxBytes+1), ErrTooLarge, "1048577 bytes"},
		{"too large JSON", "[" + strings.Repeat(" ", MaxBytes), ErrTooLarge, ""},
		{"syntax", "a: [1", ErrSyntax, "line 1"},
		{"invalid UTF-8", "a: \xff", ErrSyntax, ""},
		{"two documents", "a: 1\n---\nb: 2\n", ErrDocuments, "line 2"},
		{"broken second document", "a: 1\n---\nb: [\n", ErrSyntax, ""},
		{"number key", "a: 1\n7: x\n", ErrKey, `line 2: "7"`},
		{"boolean key", "true: x", ErrKey, ""},
		{"null key", "~: x", ErrKey, ""},
		{"complex key", "? [a]\n: x", ErrKey, ""},
		{"merge key", "a: &a {b: 1}\nc: {<<: *a}", ErrKey, "merge"},
		{"duplicate key", "a: 1\nb: 2\na: 3\n", ErrDuplicateKey, `line 3: "a" stands on line 1`},
		{"bomb", bomb.String(), ErrAliases, ""},
		{"long bomb", long, ErrAliases, ""},
		{"own alias", "a: &a [*a]", ErrAliases, ""},
		{"deep", strings.Repeat("- ", maxDepth+2) + "x", ErrDepth, ""},
		{"infinite", "a: .inf", ErrValue, ""},
		{"no number", "a: .nan", ErrValue, ""},
		{"tag", "a: !thing x", ErrValue, "!thing"},
		{"tagged map", "a: !thing {b: 1}", ErrValue, "!thing"},
		{"tagged list", "a: !thing [b]", ErrValue, "!thing"},
		{"binary", "a: !!binary aGk=", ErrValue, "!!binary"},
		{"false number", "a: !!int abc", ErrValue, "abc"},
		{"false boolean", "a: !!bool maybe", ErrValue, "maybe"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Convert([]byte(tt.in))
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %.100q, %v; want %v", got, err, tt.want)
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v: does not say %q", err, tt.says)
			}
			if len(err.Error()) > 400 {
				t.Errorf("a message of %d bytes", len(err.Error()))
			}
		})
	}
}

func FuzzConvert(f *testing.F) {
	for _, s := range []string{"a: 1", "- x\n- &a [b]\n- *a", "0x1F", "? a\n: b", "{", "a: 1e5\nb: .5", "a: &a\n b: *a"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := Convert(in)
		if err != nil || bytes.ContainsAny(bytes.TrimLeft(bytes.TrimPrefix(in, utf8BOM), " \t\r\n")[:1], "{[") {
			return
		}
		if !json.Valid(out) {
			t.Errorf("%q became %q, which is not JSON", in, out)
		}
	})
}
