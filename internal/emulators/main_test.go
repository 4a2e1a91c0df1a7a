//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A stub emulator needs nothing to be installed, and must not be: python3 -c is
// enough.
func stub(t *testing.T, code string) (root string) {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Fatal("the emulators need python3, and so do their tests")
	}
	old := specs
	t.Cleanup(func() { specs = old })
	specs = []spec{{
		name: "stub", version: "1", env: []string{"PSYCH_TEST_STUB_A", "PSYCH_TEST_STUB_B"}, npm: []string{"stub@1"},
		command: func(dir string, port int) ([]string, []string) {
			return []string{"python3", "-c", untilEOF + code, fmt.Sprint(port)}, []string{"STUB=1"}
		},
	}}
	root = t.TempDir()
	dir := filepath.Join(root, "stub-1")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "installed"), []byte(specs[0].contents()), 0o644)); err != nil {
		t.Fatal(err)
	}
	return root
}

const stubServer = `
import http.server, tempfile
tempfile.mkdtemp()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
`

func TestRunPassesEndpointsAndExitCode(t *testing.T) {
	root := stub(t, stubServer)
	t.Setenv("PSYCH_TEST_STUB_B", "http://kept")
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	out := filepath.Join(t.TempDir(), "out")
	code, err := run(root, []string{"sh", "-c", `echo "$PSYCH_TEST_STUB_A $PSYCH_TEST_STUB_B $PSYCH_TEST_EMULATORS" > "$0"; exit 7`, out})
	if code != 7 || err != nil {
		t.Fatalf("exit code %d, %v; want 7", code, err)
	}
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(got))
	if len(f) != 3 || !strings.HasPrefix(f[0], "http://127.0.0.1:") || f[1] != "http://kept" || f[2] != "1" {
		t.Fatalf("the command saw %q, want an endpoint, the one that was set, and 1", got)
	}
	if resp, err := http.Get(f[0]); err == nil {
		resp.Body.Close()
		t.Error("the emulator answers after the command has ended")
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

func TestChoose(t *testing.T) {
	some, err := choose(specs, "sam,ministack")
	if err != nil || len(some) != 2 || some[0].name != "sam" || some[1].name != "ministack" {
		t.Errorf("got %v, %v", some, err)
	}
	if _, err := choose(specs, "sam,"); err == nil {
		t.Error("an empty name was taken")
	}
}

func TestRunKeepsWhatIsSet(t *testing.T) {
	root := stub(t, "sys.exit('it must not be started')")
	t.Setenv("PSYCH_TEST_STUB_A", "http://kept")
	t.Setenv("PSYCH_TEST_STUB_B", "http://kept")
	if code, err := run(root, []string{"true"}); code != 0 || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}
}

// What has no command is installed and not started, and its path holds in
// whatever folder the command runs.
func TestRunPassesPaths(t *testing.T) {
	root := stub(t, "")
	specs[0].env, specs[0].file, specs[0].command = []string{"PSYCH_TEST_STUB_A"}, "bin/stub.js", nil
	t.Chdir(filepath.Dir(root))
	out := filepath.Join(t.TempDir(), "out")
	if code, err := run(filepath.Base(root), []string{"sh", "-c", `printf %s "$PSYCH_TEST_STUB_A" > "$0"`, out}); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v", code, err)
	}
	got, err := os.ReadFile(out)
	if want := filepath.Join(root, "stub-1", "bin", "stub.js"); err != nil || string(got) != want {
		t.Errorf("the command saw %q, %v; want %q", got, err, want)
	}
}

func TestStartSaysWhyItFailed(t *testing.T) {
	root := stub(t, "sys.exit('no such thing')")
	_, err := start(t.Context(), root, os.LookupEnv)
	if err == nil || !strings.Contains(err.Error(), "start stub: it ended") || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("got %v, want what the emulator printed", err)
	}
}

func TestDied(t *testing.T) {
	root := stub(t, `
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            print("it dies", flush=True)
            os._exit(3)
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), H).serve_forever()
`)
	s, err := start(t.Context(), root, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	if err := s.died(); err != nil {
		t.Errorf("it lives, but: %v", err)
	}
	if resp, err := http.Get(s.procs[0].url + "/die"); err == nil {
		resp.Body.Close()
	}
	<-s.procs[0].done
	if err := s.died(); err == nil || !strings.Contains(err.Error(), "stub ended before the command") || !strings.Contains(err.Error(), "it dies") {
		t.Errorf("got %v, want what ended and what it printed", err)
	}
}

func TestStartCanceled(t *testing.T) {
	root := stub(t, "import time; time.sleep(600)")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := start(ctx, root, os.LookupEnv); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the error of the context", err)
	}
}

func TestInstall(t *testing.T) {
	root := t.TempDir()
	bin := t.TempDir()
	// An npm that fails once, and leaves half an installation.
	script := `#!/bin/sh
[ "$1" = install ] && [ "$2" = --prefix ] || exit 9
echo "$*" >> "` + bin + `/calls"
touch "$3/half"
[ -e "` + bin + `/ok" ] || { touch "` + bin + `/ok"; echo no space >&2; exit 1; }
[ "$(ls "$3")" = half ] || exit 8
`
	if err := os.WriteFile(filepath.Join(bin, "npm"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	s := &spec{name: "x", version: "1", npm: []string{"x@1"}}
	if _, err := s.install(t.Context(), root); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Fatalf("got %v, want what npm printed", err)
	}
	for range 3 { // the first of them installs, over what was left
		dir, err := s.install(t.Context(), root)
		if err != nil || dir != filepath.Join(root, "x-1") {
			t.Fatalf("%q, %v", dir, err)
		}
	}
	s.npm = []string{"x@1", "y@1"} // other packages: it is installed anew
	if _, err := s.install(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	calls, err := os.ReadFile(filepath.Join(bin, "calls"))
	if n := strings.Count(string(calls), "\n"); err != nil || n != 3 {
		t.Errorf("npm was called %d times, %v; want 3:\n%s", n, err, calls)
	}
}

func TestLock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := lock(ctx, file); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a second lock: %v, want it to wait", err)
	}
	unlock()
	unlock, err = lock(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
