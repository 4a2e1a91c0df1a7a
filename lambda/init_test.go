package lambda_test

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psych-go/psych-go/internal/emulators/endpoint"
)

// What functions may allocate as their packages are initialized, before main: a
// measure of a cold start that does not depend on the machine. What counts most
// is the garbage collector, which runs for the first time at 4 MiB of heap.
//
// A package of this module compiles no expression and builds no large table
// there. One of an SDK that does so is worth a look at an older version: the
// schemas of service/ssm from v1.80.0 on are 1.4 MB.
const (
	ownBytes   = 24 << 10
	otherBytes = 2 << 20
)

var initBytes = map[string]int{"api": 3_600_000, "turn": 4_600_000, "sweep": 3_900_000, "deadletter": 3_400_000}

var initLine = regexp.MustCompile(`(?m)^init (\S+) @.* ms clock, (\d+) bytes, (\d+) allocs$`)

// initReport is what the emulator says of a start.
var initReport = regexp.MustCompile(`INIT REPORT\(durationMs: ([0-9.]+)\)`)

// A start of each function, as it is deployed, beside that of a function that
// does nothing. Times are told, and what is allocated is held to its bounds.
func TestInit(t *testing.T) {
	rie := endpoint.Runtime(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	for name, value := range map[string]string{
		"PSYCH_STORE_URL":       "dynamo://runs",
		"PSYCH_BLOB_URL":        "s3://bucket/runs",
		"PSYCH_WAKER_URL":       "sqs:https://sqs.eu-central-1.amazonaws.com/123456789012/wakes",
		"PSYCH_SECRETS_URL":     "ssm:///psych",
		"PSYCH_MODEL":           "openai:model",
		"OPENAI_API_KEY":        "test",
		"AWS_REGION":            "eu-central-1",
		"AWS_ACCESS_KEY_ID":     "test",
		"AWS_SECRET_ACCESS_KEY": "test",
		"AWS_CA_BUNDLE":         "", // which Lambda sets nowhere, and which takes milliseconds a client to read
	} {
		t.Setenv(name, value)
	}
	os.Unsetenv("AWS_CA_BUNDLE") // until the test ends
	dir := t.TempDir()
	names := append(slices.Sorted(maps.Keys(initBytes)), "hello")
	for _, name := range names {
		from := "./" + name
		if name == "hello" {
			from = "./testdata/hello"
		}
		build := exec.CommandContext(ctx, "go", "build", "-tags", "lambda.norpc", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, name, "bootstrap"), from)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}

	for name, bound := range initBytes {
		trace := exec.CommandContext(ctx, filepath.Join(dir, name, "bootstrap"))
		trace.Env = append(os.Environ(), "GODEBUG=inittrace=1", "AWS_LAMBDA_RUNTIME_API=127.0.0.1:1") // where nothing is, so that it ends
		out, _ := trace.CombinedOutput()
		total, packages := 0, 0
		for _, m := range initLine.FindAllSubmatch(out, -1) {
			n, err := strconv.Atoi(string(m[2]))
			if err != nil {
				t.Fatal(err)
			}
			total += n
			packages++
			limit := otherBytes
			if strings.HasPrefix(string(m[1]), "github.com/psych-go/") {
				limit = ownBytes
			}
			if n > limit {
				t.Errorf("%s: %s allocates %d bytes before main, want at most %d", name, m[1], n, limit)
			}
		}
		t.Logf("%s allocates %d KB in %d packages before main", name, total/1000, packages)
		if packages < 50 || total > bound {
			t.Errorf("%s allocates %d bytes in %d packages before main, want at most %d", name, total, packages, bound)
		}
	}

	times := map[string][]float64{}
	for range 20 {
		for _, name := range names {
			var log bytes.Buffer
			addr := address(t)
			cmd := exec.CommandContext(ctx, rie, "--runtime-interface-emulator-address", addr, "--runtime-api-address", address(t), filepath.Join(dir, name, "bootstrap"))
			cmd.Stdout, cmd.Stderr = &log, &log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// It starts with the first invocation, whatever comes of that.
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, await(t, addr), strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			cmd.Process.Kill()
			cmd.Wait() // until all is in log
			m := initReport.FindSubmatch(log.Bytes())
			if m == nil {
				t.Fatalf("%s: the emulator tells of no start:\n%s", name, log.String())
			}
			ms, err := strconv.ParseFloat(string(m[1]), 64)
			if err != nil {
				t.Fatal(err)
			}
			times[name] = append(times[name], ms)
		}
	}
	median := func(name string) float64 { return slices.Sorted(slices.Values(times[name]))[10] }
	for _, name := range names {
		t.Logf("%s starts in %.1f ms, %.1f times hello", name, median(name), median(name)/median("hello"))
	}
}
