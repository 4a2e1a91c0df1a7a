package script

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestTemplates(t *testing.T) {
	const last = `n=42 f=-1.50e3 z=007 t=true nul=null s="a \"b" big=12345678901234567890 w=( 7 ) e= x{3} é=ü`
	for _, tt := range []struct{ name, in, want string }{
		{"nothing", `{"a": 1.0, "b":[1e400, "<x>", "\u00e9"]}`, `{"a":1.0,"b":[1e400,"<x>","\u00e9"]}`},
		{"number", `{"a":"${n=(\\d+)}"}`, `{"a":42}`},
		{"float", `{"a":"${f=(\\S+)}"}`, `{"a":-1.50e3}`},
		{"large", `{"a":"${big=(\\d+)}"}`, `{"a":12345678901234567890}`},
		{"leading zero is text", `{"a":"${z=(\\d+)}"}`, `{"a":"007"}`},
		{"true", `{"a":"${ t=(\\w+)}"}`, `{"a":true}`},
		{"null", `{"a":"${nul=(\\w+)}"}`, `{"a":null}`},
		{"space around a number is text", `{"a":"${w=\\((.*?)\\)}"}`, `{"a":" 7 "}`},
		{"empty is text", `{"a":"${e=(\\d*)}"}`, `{"a":""}`},
		{"text is escaped", `{"a":"${s=(\".*b\")}"}`, `{"a":"\"a \\\"b\""}`},
		{"among text a number is text", `{"a":"at ${n=(\\d+)}"}`, `{"a":"at 42"}`},
		{"several", `{"a":"${n=(\\d+)}-${t=(\\w+)}"}`, `{"a":"42-true"}`},
		{"two alone are text", `{"a":"${n=(\\d)}${n=\\d(\\d)}"}`, `{"a":"42"}`},
		{"nested", `{"a":[{"b":"${n=(\\d+)}"},"${t=(\\w+)}"]}`, `{"a":[{"b":42},true]}`},
		{"top", `"${n=(\\d+)}"`, `42`},
		{"first group", `{"a":"${(n)=(\\d+)}"}`, `{"a":"n"}`},
		{"braces in balance", `{"a":"${n=(\\d{2})}"}`, `{"a":42}`},
		{"escaped brace", `{"a":"${x\\{(\\d)\\}}"}`, `{"a":3}`},
		{"escaped brace alone", `{"a":"${x\\{(\\d)}"}`, `{"a":3}`},
		{"a key is a key", `{"${n=(\\d+)}":1}`, `{"${n=(\\d+)}":1}`},
		{"escaped dollar", `{"a":"$${n} and $5 {x}"}`, `{"a":"${n} and $5 {x}"}`},
		{"not ASCII", `{"ä":"é${é=(\\S+)}"}`, `{"ä":"éü"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tpl, err := newTemplate(json.RawMessage(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				got, err := tpl.fill(last, true)
				if err != nil {
					t.Fatal(err)
				}
				if string(got) != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
				got[0] = 'X' // the caller's to change
			}
		})
	}
}

func TestTemplateErrors(t *testing.T) {
	for in, want := range map[string]string{
		`{"a":`:                         "not JSON",
		`{"a":"${(x"}`:                  "has no end",
		`{"a":"${(}"}`:                  "missing closing )",
		`{"a":"${x}"}`:                  "has no group",
		`{"a":1,"a":2}`:                 `key "a" is there twice`,
		`{"b":[{"c":{},"d":1,"d":[]}]}`: `key "d" is there twice`,
	} {
		if _, err := newTemplate(json.RawMessage(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", in, err, want)
		}
	}
	if _, err := newTemplate(json.RawMessage(`[{"a":1},{"a":"a"},["a","a"],{"b":{"a":1},"a":"b"}]`)); err != nil {
		t.Error(err)
	}
}
