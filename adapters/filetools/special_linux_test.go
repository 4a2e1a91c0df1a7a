package filetools

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// Opening a fifo would wait for a writer that never comes.
func TestSpecialFiles(t *testing.T) {
	tools, dir := tree(t, map[string]string{"file": "x\n"}, nil)
	must(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	must(t, os.Symlink("fifo", filepath.Join(dir, "link")))
	t.Chdir(dir) // a socket's path has a short limit
	l, err := net.Listen("unix", "sock")
	must(t, err)
	defer l.Close()
	ctx := t.Context()
	for p, kind := range map[string]string{"fifo": "a fifo", "link": "a fifo", "sock": "a socket"} {
		r, err := tools.readFile(ctx, readInput{Path: p})
		fails(t, r, err, "it is no regular file but "+kind, dir)
		r, err = tools.searchFiles(ctx, searchInput{Pattern: "x", Path: p})
		fails(t, r, err, kind, dir)
	}
	r, err := tools.searchFiles(ctx, searchInput{Pattern: "x"})
	if got, want := text(t, r, err), "file:1: x\n[1 matching lines in 1 files, 1 files searched]\n"; got != want {
		t.Errorf("search: %q, want %q", got, want)
	}
	r, err = tools.listFiles(ctx, listInput{})
	if got, want := text(t, r, err), "fifo\t-\tfifo\nfile\t2\tfile\nlink\t-\tsymlink\nsock\t-\tsocket\n[4 listed, files of 2 bytes]\n"; got != want {
		t.Errorf("list: %q, want %q", got, want)
	}

	// Even one that takes a file's place between the look and the opening.
	f, err := tools.root.OpenFile("fifo", openFlags, 0)
	must(t, err)
	must(t, f.Close())

	null, err := Open("/dev", nil)
	must(t, err)
	defer null.Close()
	r, err = null.readFile(ctx, readInput{Path: "null"})
	fails(t, r, err, "it is no regular file but a device", "/dev")
}

func TestUnreadable(t *testing.T) {
	tools, dir := tree(t, map[string]string{"a": "x\n", "b": "x\n", "c/d": "x\n", "e": "x\n"}, nil)
	must(t, os.Chmod(filepath.Join(dir, "b"), 0))
	must(t, os.Chmod(filepath.Join(dir, "c"), 0))
	defer os.Chmod(filepath.Join(dir, "c"), 0o755)
	asNobody(t)
	ctx := t.Context()
	for _, p := range []string{"b", "c/d"} {
		r, err := tools.readFile(ctx, readInput{Path: p})
		fails(t, r, err, "permission denied", dir)
	}
	r, err := tools.listFiles(ctx, listInput{Path: "c"})
	fails(t, r, err, "permission denied", dir)
	r, err = tools.listFiles(ctx, listInput{})
	if got, want := text(t, r, err), "a\t2\tfile\nb\t2\tfile\nc/\t-\tdir\n[skipped c: permission denied]\ne\t2\tfile\n[4 listed, files of 6 bytes, 1 skipped]\n"; got != want {
		t.Errorf("list: %q, want %q", got, want)
	}
	r, err = tools.searchFiles(ctx, searchInput{Pattern: "x"})
	if got, want := text(t, r, err), "a:1: x\n[skipped b: permission denied]\n[skipped c: permission denied]\ne:1: x\n[2 matching lines in 2 files, 2 files searched, 2 skipped]\n"; got != want {
		t.Errorf("search: %q, want %q", got, want)
	}
}

// asNobody gives up root's right to read everything, for this thread's use of
// files until the test ends. The thread is locked to the test and not used
// again.
func asNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	runtime.LockOSThread()
	const nobody = 65534
	syscall.RawSyscall(syscall.SYS_SETFSUID, nobody, 0, 0)
	if now, _, _ := syscall.RawSyscall(syscall.SYS_SETFSUID, ^uintptr(0), 0, 0); now != nobody {
		t.Fatalf("setfsuid: the thread still acts as %d", now)
	}
	t.Cleanup(func() { syscall.RawSyscall(syscall.SYS_SETFSUID, 0, 0, 0) })
}

// A name with a terminal's escapes is quoted in failures too.
func TestFailureQuotes(t *testing.T) {
	tools, dir := tree(t, nil, nil)
	r, err := tools.readFile(t.Context(), readInput{Path: "x\x1b[2J\n" + strings.Repeat("y", 300)})
	s, failed := all(t, r, err)
	if !failed || strings.ContainsAny(s, "\x1b\n") || !strings.Contains(s, `"x\x1b[2J\n`) || strings.Contains(s, dir) {
		t.Errorf("got %q", s)
	}
}
