package fsblob_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/adapters/fsblob"
	"github.com/psych-go/psych-go/psych"
)

func TestRegister(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("paths of this test are those of Unix")
	}
	ctx := context.Background()
	var b psych.Backends
	fsblob.Register(&b)

	root := filepath.Join(t.TempDir(), "a b%")
	s, err := b.Blobs.Open(ctx, "file://"+strings.ReplaceAll(strings.ReplaceAll(root, "%", "%25"), " ", "%20"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("opening the URL touched the directory: %v", err)
	}
	key := psych.BlobKey{Tenant: "t", RunID: strings.Repeat("0", 32), CallID: "c1_1.result.1"}
	if _, err := s.Put(ctx, key, "text/plain", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(root); err != nil {
		t.Errorf("the blob is not below the URL's directory: %v", err)
	}

	for bad, says := range map[string]string{
		"file://blobs/dir":        `the host "blobs"`,
		"file://localhost/dir":    `the host "localhost"`,
		"file://u@/dir":           "want an absolute path",
		"file:blobs":              "want an absolute path",
		"file:./blobs":            "want an absolute path",
		"file://":                 "want an absolute path",
		"file:///dir#part":        "%23",
		"file:///d%00r":           "NUL",
		"file:///dir?sync=no":     "takes none",
		"file:///dir?a=1;b=2":     "parameters",
		"file:///dir?create=true": "takes none",
	} {
		if _, err := b.Blobs.Open(ctx, bad); !errors.Is(err, psych.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want ErrInvalid that says %q", bad, err, says)
		}
	}
}
