package script

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/psych-go/psych-go/psych"
)

// A script file is refused with what is wrong in it, or can be played: nothing
// in a file makes Parse or New panic.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"steps: [{text: done}]",
		`{"steps":[{"calls":[{"name":"a","arguments":{"x":"${id=(\\d+)}"}}],"stop":"tool_use"},{"text":"b","usage":{"input":1,"cached":2,"output":3}}]}`,
		"steps:\n- fail: 429\n  times: 2\n- stall: true\n  times: 1\n- text: x\n  require: ['a+']\n  forbid: [b]\n",
		"steps:\n- calls: [{name: look, arguments: {}}]\n  repeat: {until: 'end$'}\n- text: end\n",
		"steps: [{text: a, text: b}]", "steps: []", "{", "&a [*a]", "steps: [{require: ['(']}]",
	} {
		f.Add([]byte(s))
	}
	missions, err := filepath.Glob("../../psych/testdata/missions/*.yaml")
	if err != nil || len(missions) == 0 {
		f.Fatalf("no missions: %v", err)
	}
	for _, name := range missions {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse(data)
		if err != nil {
			if !errors.Is(err, psych.ErrInvalid) {
				t.Fatalf("%q: %v does not match ErrInvalid", data, err)
			}
			return
		}
		if m := New(s, nil); m.err != nil {
			t.Fatalf("%q is a script, and can't be played: %v", data, m.err)
		}
	})
}
