package script_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
)

func TestRegister(t *testing.T) {
	ctx := context.Background()
	var b psych.Backends
	script.Register(&b)
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"play.yaml", "a b%.yaml", "bad.yaml"} {
		text := "steps: [{text: Done.}]"
		if name == "bad.yaml" {
			text = "steps: [{txt: Done.}]"
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	abs := filepath.ToSlash(dir)
	if !strings.HasPrefix(abs, "/") {
		abs = "/" + abs
	}
	for _, good := range []string{"script:play.yaml", "script:./play.yaml", "SCRIPT:play.yaml", "script:a%20b%25.yaml", "script:a b%25.yaml", "script://" + abs + "/play.yaml", "script:" + abs + "/play.yaml"} {
		m, err := b.Models.Open(ctx, good)
		if err != nil {
			t.Errorf("%s: %v", good, err)
			continue
		}
		if id := m.Codec().ID(); id != "script/1" {
			t.Errorf("%s: the codec is %s", good, id)
		}
	}

	for bad, says := range map[string]string{
		"script:":                 "names no file",
		"script://":               "names no file",
		"script://host/play.yaml": `the host "host"`,
		"script:play.yaml?a=b":    "takes none",
		"script:play.yaml#x":      "%23",
		"script:a%zz":             "%25",
		"script:a%00":             "names no file",
		"script:bad.yaml":         "steps[0].txt",
	} {
		if _, err := b.Models.Open(ctx, bad); !errors.Is(err, psych.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want ErrInvalid that says %q", bad, err, says)
		}
	}
	if _, err := b.Models.Open(ctx, "script:absent.yaml"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v, want fs.ErrNotExist", err)
	}
}
