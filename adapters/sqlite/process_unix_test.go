//go:build unix

package sqlite

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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// childMode, childFile and childName make the test binary a child that does one
// thing.
const (
	childMode = "SQLITE_TEST_CHILD"
	childFile = "SQLITE_TEST_FILE"
	childName = "SQLITE_TEST_NAME"
)

func TestMain(m *testing.M) {
	mode := os.Getenv(childMode)
	if mode == "" {
		os.Exit(m.Run())
	}
	f := map[string]func(*Store) error{"worker": workerChild, "killed": killedChild, "limited": limitedChild, "handles": handlesChild}[mode]
	s := New(os.Getenv(childFile), nil)
	err := f(s)
	if closeErr := s.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func child(t *testing.T, mode, path, name string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), childMode+"="+mode, childFile+"="+path, childName+"="+name)
	return cmd
}

const (
	processes = 4
	each      = 25 // of a process's appends, claims and posts; all posts together fill the inbox
)

// Several processes append to one log, claim one lease and post to one inbox:
// nothing is lost, doubled or torn, and nobody fails.
func TestProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "psych.db")
	var cmds []*exec.Cmd
	var stderr [processes]strings.Builder
	var starts []io.WriteCloser
	for i := range processes {
		cmd := child(t, "worker", path, fmt.Sprint(i))
		cmd.Stderr = &stderr[i]
		start, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds, starts = append(cmds, cmd), append(starts, start)
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
			t.Fatalf("process %d said %q, %v\n%s", i, line, err, &stderr[i])
		}
	}
	for _, start := range starts {
		start.Close()
	}
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Errorf("process %d: %v\n%s", i, err, &stderr[i])
		}
	}
	if t.Failed() {
		return
	}

	s := newStore(t, path, nil)
	next := make([]int, processes)
	for i, data := range log(t, s) {
		var p, m int
		if _, err := fmt.Sscan(data, &p, &m); err != nil || m != next[p] {
			t.Fatalf("entry %d is %q, where append %d of that process follows (%v)", i+1, data, next[p], err)
		}
		next[p]++
	}
	if want := slices.Repeat([]int{each}, processes); !slices.Equal(next, want) {
		t.Errorf("of the processes' appends there are %v, want %v", next, want)
	}
	info, err := s.GetRun(t.Context(), testKey)
	if err != nil || info.Epoch != processes*each || info.Posted != processes*each || info.Owner != "" {
		t.Errorf("the header has epoch %d, Posted %d, owner %q, %v; want %d of each and none", info.Epoch, info.Posted, info.Owner, err, processes*each)
	}
	notes, err := s.Pending(t.Context(), testKey)
	if err != nil || len(notes) != processes*each {
		t.Errorf("%d notes wait, %v; want %d", len(notes), err, processes*each)
	}
	var check string
	if err := s.read(t.Context(), func(r *statements) error {
		return r.one(t.Context(), []any{&check}, "PRAGMA integrity_check")
	}); err != nil || check != "ok" {
		t.Errorf("integrity_check: %q, %v", check, err)
	}
}

// workerChild creates the Run that the others create too, and does its part.
func workerChild(s *Store) error {
	ctx, name := context.Background(), os.Getenv(childName)
	fmt.Println("ready")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	if _, _, err := s.CreateRun(ctx, psych.RunInfo{Key: testKey, CreatedAt: testNow}); err != nil {
		return err
	}
	for i := range each {
		for won := false; !won; {
			head, err := s.Head(ctx, testKey)
			if err != nil {
				return err
			}
			_, err = s.Append(ctx, testKey, head, batch(head.Seq, fmt.Sprint(name, " ", i), fmt.Sprint(name, " ", i)))
			if err != nil && !errors.Is(err, psych.ErrConflict) {
				return err
			}
			won = err == nil
		}
		var l psych.Lease
		for won := false; !won; {
			var err error
			l, err = s.Claim(ctx, testKey, name, fmt.Sprint(name, " ", i), testNow, time.Minute)
			if err != nil && !errors.Is(err, psych.ErrLeaseHeld) {
				return err
			}
			won = err == nil
		}
		n := psych.Note{ID: fmt.Sprint(name, ".", i), Kind: psych.KindUserMessage, Time: testNow}
		if err := s.Post(ctx, testKey, n, testNow); err != nil {
			return err
		}
		for released := false; !released; {
			l, err := s.Renew(ctx, l, testNow, time.Minute)
			if err != nil {
				return err
			}
			err = s.Release(ctx, l, testNow, psych.StatusOpen)
			if err != nil && !errors.Is(err, psych.ErrConflict) { // another process has posted
				return err
			}
			released = err == nil
		}
	}
	return nil
}

// What was acknowledged is there when its process is killed, whole, and nothing
// keeps the next one from going on.
func TestKilledWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "psych.db")
	for round := range 5 {
		cmd := child(t, "killed", path, fmt.Sprint(round))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		acknowledged := 0
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if acknowledged, err = strconv.Atoi(lines.Text()); err != nil {
				t.Fatal(err)
			}
			if acknowledged >= 40*(round+1) {
				cmd.Process.Kill() // what it has said until then is still read
			}
		}
		cmd.Wait()
		if acknowledged < 40*(round+1) {
			t.Fatalf("the child acknowledged seq %d and ended", acknowledged)
		}
		s := newStore(t, path, nil)
		got := log(t, s)
		if len(got) < acknowledged || len(got)%2 != 0 {
			t.Fatalf("seq %d was acknowledged, and the log has %d entries, by twos", acknowledged, len(got))
		}
		for i, data := range got {
			if data != fmt.Sprint(i+1) {
				t.Fatalf("seq %d holds %q", i+1, data)
			}
		}
		// It stays open, as a survivor would have it.
	}
}

func killedChild(s *Store) error {
	ctx := context.Background()
	if _, _, err := s.CreateRun(ctx, psych.RunInfo{Key: testKey, CreatedAt: testNow}); err != nil {
		return err
	}
	pos, err := s.Head(ctx, testKey)
	for err == nil {
		pos, err = s.Append(ctx, testKey, pos, batch(pos.Seq, fmt.Sprint("token ", pos.Seq), fmt.Sprint(pos.Seq+1), fmt.Sprint(pos.Seq+2)))
		fmt.Println(pos.Seq)
	}
	return err
}

// A disk without space, as far as a test can have one: no file may grow past
// 1 MiB.
func TestNoSpace(t *testing.T) {
	s := newRun(t)
	path := s.path
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := child(t, "limited", path, "").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	acknowledged, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil || acknowledged == 0 {
		t.Fatalf("the child said %q", out)
	}
	s = newStore(t, path, nil)
	if got := log(t, s); len(got) != acknowledged {
		t.Errorf("%d appends were acknowledged, and there are %d", acknowledged, len(got))
	}
	seq := uint64(acknowledged)
	if _, err := s.Append(t.Context(), testKey, psych.Pos{Seq: seq}, batch(seq, "token", "x")); err != nil {
		t.Errorf("Append once there is space: %v", err)
	}
}

func limitedChild(s *Store) error {
	ctx := context.Background()
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 20, Max: 1 << 20}); err != nil {
		return err
	}
	var pos psych.Pos
	var err error
	for err == nil {
		var next psych.Pos
		if next, err = s.Append(ctx, testKey, pos, batch(pos.Seq, fmt.Sprint("token ", pos.Seq), strings.Repeat("x", 50_000))); err == nil {
			pos = next
		}
	}
	if !errors.Is(err, psych.ErrUnavailable) || !strings.Contains(err.Error(), "quota is full") {
		return fmt.Errorf("Append without space: %w, want ErrUnavailable that says so", err)
	}
	page, err := s.Read(ctx, testKey, psych.Pos{}, 1000)
	if err != nil {
		return fmt.Errorf("Read without space: %w", err)
	}
	if head, err := s.Head(ctx, testKey); err != nil || head != pos || len(page.Entries) == 0 {
		return fmt.Errorf("without space the head is %v, %w; want %v", head, err, pos)
	}
	fmt.Println(pos.Seq)
	return nil
}

// A process with too many open files can go on when it has closed some.
func TestTooManyOpenFiles(t *testing.T) {
	s := newRun(t)
	if out, err := child(t, "handles", s.path, "").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func handlesChild(s *Store) error {
	ctx := context.Background()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 40, Max: 40}); err != nil {
		return err
	}
	var held []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		held = append(held, f)
	}
	if _, err := s.GetRun(ctx, testKey); !errors.Is(err, psych.ErrUnavailable) || !errors.Is(err, syscall.EMFILE) {
		return fmt.Errorf("GetRun: %w, want ErrUnavailable and EMFILE", err)
	}
	for _, f := range held {
		f.Close()
	}
	_, err := s.GetRun(ctx, testKey)
	return err
}

func TestPermissions(t *testing.T) {
	if os.Getuid() == 0 {
		asNobody(t)
		return
	}
	ctx := t.Context()
	// make returns the path of a file with a Run in a directory of its own.
	make := func(fileMode, dirMode os.FileMode) string {
		dir := t.TempDir()
		s := New(filepath.Join(dir, "psych.db"), nil)
		createRun(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{os.Chmod(s.path, fileMode), os.Chmod(dir, dirMode)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { os.Chmod(dir, 0o700) })
		return s.path
	}

	s := newStore(t, make(0o400, 0o700), nil)
	_, err := s.Append(ctx, testKey, psych.Pos{}, batch(0, "token", "x"))
	wantErr(t, "Append to a read-only file", err, psych.ErrAccessDenied)
	if err == nil || !strings.Contains(err.Error(), "may not be written to") || !strings.Contains(err.Error(), s.path) {
		t.Errorf("Append to a read-only file: %v: want it to say so, with the file", err)
	}
	if _, err := s.GetRun(ctx, testKey); err != nil {
		t.Errorf("GetRun of a read-only file: %v", err)
	}

	s = newStore(t, make(0, 0o700), nil)
	_, err = s.GetRun(ctx, testKey)
	wantErr(t, "GetRun of a file that may not be read", err, psych.ErrAccessDenied)

	s = newStore(t, make(0o600, 0o500), nil)
	_, err = s.Append(ctx, testKey, psych.Pos{}, batch(0, "token", "x"))
	wantErr(t, "Append in a read-only directory", err, psych.ErrAccessDenied)

	s = newStore(t, make(0o600, 0), nil)
	_, err = s.GetRun(ctx, testKey)
	wantErr(t, "GetRun in a directory that may not be entered", err, psych.ErrAccessDenied)

	path := make(0o600, 0o500)
	for _, missing := range []string{"other.db", filepath.Join("new", "psych.db")} {
		_, err = newStore(t, filepath.Join(filepath.Dir(path), missing), nil).Init(ctx)
		wantErr(t, "Init of "+missing+" in a read-only directory", err, psych.ErrAccessDenied, os.ErrPermission)
	}
}

// asNobody runs the calling test in a child without privileges, for which
// permissions mean something.
func asNobody(t *testing.T) {
	t.Helper()
	// Neither the directory of the test binary nor t.TempDir may be entered.
	dir, err := os.MkdirTemp("", "sqlite")
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
	copied, tmp := filepath.Join(dir, "test"), filepath.Join(dir, "tmp")
	for _, err := range []error{
		os.WriteFile(copied, binary, 0o755), os.Mkdir(tmp, 0o700), os.Chown(tmp, nobody, nobody), os.Chmod(dir, 0o755), os.Chmod(copied, 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), copied, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as uid %d: %v\n%s", nobody, err, out)
	}
}
