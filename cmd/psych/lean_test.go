package main

import (
	"os/exec"
	"strings"
	"testing"
)

// TestLean guards that a program links no SDK that it does not name.
func TestLean(t *testing.T) {
	deps := func(pkg string) string {
		t.Helper()
		out, err := exec.Command("go", "list", "-deps", pkg).Output()
		if err != nil {
			t.Fatalf("go list -deps %s: %v", pkg, err)
		}
		return string(out)
	}
	lean, all := deps("./testdata/lean"), deps(".")
	for _, sdk := range []string{"github.com/aws/", "modernc.org/", "github.com/openai/", "github.com/anthropics/", "github.com/spf13/", "database/sql\n", "net/http\n"} {
		if strings.Contains(lean, sdk) {
			t.Errorf("a program on memory alone links %s", sdk)
		}
		if !strings.Contains(all, sdk) {
			t.Errorf("psych itself does not link %s: the name is out of date", sdk)
		}
	}
	if !strings.Contains(lean, "github.com/psych-go/psych-go/adapters/memory\n") {
		t.Errorf("deps:\n%s", lean)
	}
}
