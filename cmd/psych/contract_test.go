package main

import (
	"bytes"
	"context"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/psych"
)

func TestContract(t *testing.T) {
	workdir(t)
	dir, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	got := psychIn("", nil, "contract", "--store", "mem://", "--blob", fileURL("file", filepath.Join(dir, "blobs")))
	got.wantCompleted(t)
	passed := regexp.MustCompile(`(?m)^\w+ +pass$`).FindAllString(got.stdout, -1)
	skipped := regexp.MustCompile(`(?m)^(\w+) +skipped: the endpoint lacks "reopening"$`).FindAllStringSubmatch(got.stdout, -1)
	var wantSkipped int
	for _, r := range contracttest.StoreRules() {
		if r.Needs == contracttest.Reopening {
			wantSkipped++
		}
	}
	if all := len(contracttest.StoreRules()) + len(contracttest.BlobStoreRules()); len(passed)+len(skipped) != all || len(skipped) != wantSkipped || wantSkipped == 0 {
		t.Errorf("%d passed, %d skipped of %d:\n%s", len(passed), len(skipped), all, got.stdout)
	}

	// A store in a file is opened again and reopened.
	got = psychIn("", nil, "contract", "--store", fileURL("sqlite", filepath.Join(dir, "a.db")), "--only", "AppendStale,"+skipped[0][1])
	got.wantCompleted(t)
	if !strings.HasSuffix(got.stdout, "store: 2 passed, 0 failed, 0 skipped\n") {
		t.Errorf("psych contract --only printed\n%s", got.stdout)
	}
	got = psychIn("", nil, "contract", "--store", fileURL("sqlite", filepath.Join(dir, "a.db")), "--only", skipped[0][1], "--lacks", "reopening")
	got.wantCompleted(t)
	if !strings.HasSuffix(got.stdout, "store: 0 passed, 0 failed, 1 skipped\n") {
		t.Errorf("psych contract --lacks printed\n%s", got.stdout)
	}

	for _, test := range []struct{ args, says string }{
		{"", "give --store URL"},
		{"--store mem:// --only Nothing", `--only "Nothing"`},
		{"--store mem:// --only OpenPastEnd", `--only "OpenPastEnd"`}, // of blob stores
		{"--store mem:// --lacks speed", `--lacks "speed"`},
		{"--store s3://bucket", `unknown scheme "s3"`},
	} {
		psychIn("", nil, append([]string{"contract"}, strings.Fields(test.args)...)...).wantError(t, exitUse, test.says)
	}
}

// A forgetful store answers that a log is empty.
type forgetful struct{ psych.Store }

func (forgetful) Head(context.Context, psych.RunKey) (psych.Pos, error) { return psych.Pos{}, nil }

func TestContractBroken(t *testing.T) {
	var stdout, stderr bytes.Buffer
	p := newProgram(nil, &stdout, &stderr, getenv)
	p.backends.Stores.Handle("forgetful", func(context.Context, *url.URL) (psych.Store, error) {
		return forgetful{memory.New(nil)}, nil
	})
	code := p.run(t.Context(), []string{"contract", "--store", "forgetful://", "--lacks", "reopening"})
	invocation{code, stdout.String(), stderr.String()}.wantError(t, exitFailed, "rules failed")
	failed := regexp.MustCompile(`(?m)^\w+ +FAILED\n    promised: .+\n    .+$`).FindAllString(stdout.String(), -1)
	if len(failed) == 0 || !strings.Contains(stdout.String(), "  pass\n") {
		t.Errorf("stdout:\n%s", stdout.String())
	}
}

func TestStoreInit(t *testing.T) {
	workdir(t)
	dir, err := filepath.Abs("new")
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range []string{fileURL("sqlite", filepath.Join(dir, "a.db")), fileURL("file", filepath.Join(dir, "blobs"))} {
		for range 2 {
			got := psychIn("", nil, "store", "init", u)
			got.wantCompleted(t)
			if !strings.HasSuffix(got.stdout, u+": ready\n") {
				t.Errorf("psych store init %s printed\n%s", u, got.stdout)
			}
		}
	}
	if !exists(t, filepath.Join(dir, "a.db")) || !exists(t, filepath.Join(dir, "blobs")) {
		t.Error("psych store init created nothing")
	}
	if got := psychIn("", nil, "store", "init", "mem://"); got.code != exitCompleted || got.stdout != "mem://: needs nothing\n" {
		t.Errorf("psych store init mem:// printed %q and %q", got.stdout, got.stderr)
	}
	psychIn("", nil, "store", "init", "nosuch://x").wantError(t, exitUse, `"nosuch://x" is no URL of a store or blob store: want one that begins with dynamo:, file:, mem:, s3:, sqlite:`)
	psychIn("", nil, "store", "init").wantError(t, exitUse, "want URL")
}
