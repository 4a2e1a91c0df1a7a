package psych_test

import (
	"testing"

	"github.com/psych-go/psych-go/psych"
)

// Nothing that a terminal acts on is left, and text stays as it is.
func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"a\tb\nc – 日本 שלום 👩‍💻":            "a\tb\nc – 日本 שלום 👩‍💻",
		"\x1b[31m\x00\r\x7f\u009b":         `\x1b[31m\x00\x0d\x7f\x9b`,
		"gnp.\u202eexe\u2066x\u2069":       `gnp.\u202eexe\u2066x\u2069`,
		"one\u2028two\u2029three":          `one\u2028two\u2029three`,
		"\x9b31m an 8-bit control\xff\xfe": "\ufffd31m an 8-bit control\ufffd",
	} {
		if got := psych.Printable(in); got != want {
			t.Errorf("%q is printed as %q, want %q", in, got, want)
		}
	}
}
