package sqlite_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/adapters/sqlite"
	"github.com/psych-go/psych-go/psych"
)

func TestRegister(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("paths of this test are those of Unix")
	}
	ctx := t.Context()
	var b psych.Backends
	sqlite.Register(&b)

	path := filepath.Join(t.TempDir(), "a b%.db")
	s, err := b.Stores.Open(ctx, "sqlite://"+strings.ReplaceAll(strings.ReplaceAll(path, "%", "%25"), " ", "%20"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("opening the URL touched the file: %v", err)
	}
	key := psych.RunKey{Tenant: "t", RunID: strings.Repeat("0", 32)}
	if _, _, err := s.CreateRun(ctx, psych.RunInfo{Key: key}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the Run is not in the URL's file: %v", err)
	}
	c, ok := psych.As[interface{ Close() error }](s)
	if !ok {
		t.Fatal("the Store can't be closed")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}

	for bad, says := range map[string]string{
		"sqlite://state/psych.db":        `the host "state"`,
		"sqlite://localhost/psych.db":    `the host "localhost"`,
		"sqlite://u@/psych.db":           "want an absolute path",
		"sqlite:psych.db":                "want an absolute path",
		"sqlite:./psych.db":              "want an absolute path",
		"sqlite:":                        "want an absolute path",
		"sqlite://":                      "want an absolute path",
		"sqlite:///":                     "want an absolute path",
		"sqlite:///state/":               "want an absolute path",
		"sqlite:///psych.db#part":        "%23",
		"sqlite:///psych%00.db":          "NUL",
		"sqlite:///psych.db?mode=memory": "takes none",
		"sqlite:///psych.db?a=1;b=2":     "parameters",
	} {
		if _, err := b.Stores.Open(ctx, bad); !errors.Is(err, psych.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want ErrInvalid that says %q", bad, err, says)
		}
	}
}
