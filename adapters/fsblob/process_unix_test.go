//go:build unix

package fsblob

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// childMode and childRoot make the test binary a child that does one thing.
const (
	childMode = "FSBLOB_TEST_CHILD"
	childRoot = "FSBLOB_TEST_ROOT"
)

func TestMain(m *testing.M) {
	root := os.Getenv(childRoot)
	switch os.Getenv(childMode) {
	case "":
		os.Exit(m.Run())
	case "limited":
		os.Exit(limitedChild(root))
	case "killed":
		os.Exit(killedChild(root))
	}
	os.Exit(99)
}

func child(t *testing.T, mode, root string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), childMode+"="+mode, childRoot+"="+root)
	return cmd
}

// A filesystem without space, as far as a test can have one: files of over
// 1 MiB can't be written.
func TestNoSpace(t *testing.T) {
	root := t.TempDir()
	s := New(root, nil)
	put(t, s, testKey, "old")
	if out, err := child(t, "limited", root).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	wantBlob(t, s, testKey, "old")
	fresh := testKey
	fresh.CallID = "c9"
	_, err := s.Stat(t.Context(), fresh)
	wantErr(t, err, psych.ErrNotFound)
	if left := temporaries(t, root); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

func limitedChild(root string) int {
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 20, Max: 1 << 20}); err != nil {
		fmt.Println(err)
		return 1
	}
	s := New(root, nil)
	code := 0
	fresh := testKey
	fresh.CallID = "c9"
	for _, key := range []psych.BlobKey{testKey, fresh} {
		// Past the limit in the bytes, and in the trailer alone.
		for _, size := range []int{3 << 20, 1 << 20} {
			_, err := s.Put(context.Background(), key, "text/new", strings.NewReader(strings.Repeat("x", size)))
			if !errors.Is(err, syscall.EFBIG) || !strings.Contains(err.Error(), key.String()) {
				fmt.Printf("Put of %d bytes to %s: %v, want EFBIG with the key\n", size, key, err)
				code = 1
			}
		}
	}
	return code
}

func TestKilledWriter(t *testing.T) {
	root := t.TempDir()
	s := New(root, nil)
	put(t, s, testKey, "old")
	fresh := testKey
	fresh.RunID = strings.Repeat("f", 32)
	cmd := child(t, "killed", root)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "writing\n" {
		t.Errorf("the child said %q, %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()

	left := temporaries(t, root)
	if len(left) != 2 {
		t.Fatalf("the child left %q, want two temporary files", left)
	}
	for _, path := range left {
		if info, err := os.Stat(path); err != nil || info.Size() < 1<<20 {
			t.Fatalf("the child left %v, %v: it had not begun to write", info, err)
		}
	}
	wantBlob(t, s, testKey, "old")
	_, err = s.Stat(t.Context(), fresh)
	wantErr(t, err, psych.ErrNotFound)
	put(t, s, fresh, "new")
	wantBlob(t, s, fresh, "new")
	if _, err := s.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := temporaries(t, root); len(got) != 2 {
		t.Errorf("Init removed what may be a live writer's: %q left", got)
	}
	for _, path := range left {
		then := time.Now().Add(-25 * time.Hour)
		if err := os.Chtimes(path, then, then); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := temporaries(t, root); len(got) > 0 {
		t.Errorf("Init a day later left %q", got)
	}
	wantBlob(t, s, testKey, "old")
	wantBlob(t, s, fresh, "new")
}

// killedChild is in the middle of two Puts when it says so.
func killedChild(root string) int {
	s := New(root, nil)
	fresh := testKey
	fresh.RunID = strings.Repeat("f", 32)
	stalled := make(chan bool)
	for _, key := range []psych.BlobKey{testKey, fresh} {
		go s.Put(context.Background(), key, "text/new", io.MultiReader(strings.NewReader(strings.Repeat("x", 2<<20)), readFunc(func([]byte) (int, error) {
			stalled <- true
			select {}
		})))
		<-stalled
	}
	fmt.Println("writing")
	time.Sleep(time.Hour)
	return 1
}

// asNobody runs the calling test in a child without privileges, for which
// permissions mean something.
func asNobody(t *testing.T) {
	t.Helper()
	// Neither the directory of the test binary nor t.TempDir may be entered.
	dir, err := os.MkdirTemp("", "fsblob")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	copied := filepath.Join(dir, "test")
	for _, err := range []error{
		os.WriteFile(copied, binary, 0o755), os.Mkdir(filepath.Join(dir, "tmp"), 0o700), os.Chown(filepath.Join(dir, "tmp"), nobody, nobody),
		os.Chmod(dir, 0o755), os.Chmod(copied, 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), copied, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TMPDIR="+filepath.Join(dir, "tmp"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as uid %d: %v\n%s", nobody, err, out)
	}
}

func setUmask(mask int) int { return syscall.Umask(mask) }
