package fsblob

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/psych"
)

func TestBlobStoreContract(t *testing.T) {
	contracttest.TestBlobStore(t, func(t *testing.T) *contracttest.Fixture[psych.BlobStore] {
		root := filepath.Join(t.TempDir(), "a", "root")
		open := func(context.Context) (psych.BlobStore, error) { return New(root, nil), nil }
		return &contracttest.Fixture[psych.BlobStore]{Port: New(root, nil), Open: open, Reopen: open}
	}, nil)
}

var (
	testRun = psych.RunKey{Tenant: "acme", RunID: "0123456789abcdef0123456789abcdef"}
	testKey = psych.BlobKey{Tenant: testRun.Tenant, RunID: testRun.RunID, CallID: "c1_1.result.1"}
)

func put(t *testing.T, s *Store, key psych.BlobKey, data string) {
	t.Helper()
	if _, err := s.Put(t.Context(), key, "text/plain", strings.NewReader(data)); err != nil {
		t.Fatal(err)
	}
}

func wantBlob(t *testing.T, s *Store, key psych.BlobKey, want string) {
	t.Helper()
	r, info, err := s.Open(t.Context(), key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := io.ReadAll(r)
	if err != nil || string(got) != want || info != (psych.BlobInfo{Size: int64(len(want)), ContentType: "text/plain"}) {
		t.Fatalf("%s holds %d bytes, %+v, %v; want %d bytes", key, len(got), info, err, len(want))
	}
}

func wantErr(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("got error %v, want one matching %v", err, target)
		}
	}
}

// files lists all below root, without directories.
func files(t *testing.T, root string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			path, err = filepath.Rel(root, path)
			names = append(names, filepath.ToSlash(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func temporaries(t *testing.T, root string) (paths []string) {
	t.Helper()
	for _, name := range files(t, root) {
		if isTemporary(filepath.Base(name)) {
			paths = append(paths, filepath.Join(root, name))
		}
	}
	return paths
}

func TestLayoutAndModes(t *testing.T) {
	old := setUmask(0)
	t.Cleanup(func() { setUmask(old) })
	base := t.TempDir()
	root := filepath.Join(base, "new", "root")
	s := New(root, nil)
	if _, err := os.Lstat(filepath.Join(base, "new")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("New did IO: %v", err)
	}
	if _, err := s.Stat(t.Context(), testKey); !errors.Is(err, psych.ErrNotFound) {
		t.Fatalf("Stat without a root: %v", err)
	}
	if err := s.DeleteRun(t.Context(), testRun); err != nil {
		t.Fatalf("DeleteRun without a root: %v", err)
	}
	put(t, s, testKey, "bytes as they came")
	if got, want := files(t, base), []string{"new/root/t-acme/0123456789abcdef0123456789abcdef/b-c1_1.result.1"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	err := filepath.WalkDir(filepath.Join(base, "new"), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		}
		if got := info.Mode().Perm(); got != want && runtime.GOOS != "windows" {
			t.Errorf("%s has mode %04o, want %04o", path, got, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, "t-acme", testRun.RunID, "b-c1_1.result.1"))
	if err != nil || !bytes.HasPrefix(data, []byte("bytes as they came")) {
		t.Errorf("the file holds %q, %v", data, err)
	}
	// A Run that is gone leaves nothing but the root.
	if err := s.DeleteRun(t.Context(), testRun); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
		t.Errorf("after DeleteRun the root holds %v, %v", left, err)
	}
}

// What is synced, and when, is what makes Put durable; no test without a power
// cut can see it but by counting.
func TestPutSyncs(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, "one", "two")
	s := New(root, nil)
	var synced []string
	s.sync = func(f *os.File) error {
		name, err := filepath.Rel(base, f.Name())
		if err != nil {
			return err
		}
		if name = filepath.ToSlash(name); isTemporary(filepath.Base(name)) {
			name = "temporary"
			if info, err := f.Stat(); err != nil || info.Size() <= int64(len("data")) {
				t.Errorf("the file was synced before it was whole: %v, %v", info, err)
			}
			if _, err := New(root, nil).Stat(t.Context(), testKey); !errors.Is(err, psych.ErrNotFound) {
				t.Errorf("the blob was visible before it was synced: %v", err)
			}
		}
		synced = append(synced, strings.TrimSuffix(name, "/."))
		return f.Sync()
	}
	put(t, s, testKey, "data")
	above := []string{"one/two/t-acme/" + testRun.RunID, "one/two/t-acme", "one/two"}
	want := slices.Concat([]string{"one", "."}, []string{"temporary"}, above)
	if !slices.Equal(synced, want) {
		t.Errorf("Put synced\n%q, want\n%q", synced, want)
	}
	if err := s.Delete(t.Context(), testKey); err != nil {
		t.Fatal(err)
	}
	synced = nil
	put(t, s, testKey, "data")
	if want := slices.Concat([]string{"temporary"}, above); !slices.Equal(synced, want) {
		t.Errorf("a second Put synced\n%q, want\n%q", synced, want)
	}
	synced = nil
	if err := s.Delete(t.Context(), testKey); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(synced, above) {
		t.Errorf("Delete synced %q, want %q", synced, above)
	}
	synced = nil
	if err := s.DeleteRun(t.Context(), testRun); err != nil {
		t.Fatal(err)
	}
	if want := []string{"one/two"}; !slices.Equal(synced, want) {
		t.Errorf("DeleteRun synced %q, want %q", synced, want)
	}
}

func TestSyncFails(t *testing.T) {
	root := t.TempDir()
	s := New(root, nil)
	put(t, s, testKey, "old")
	s.sync = func(*os.File) error { return syscall.EIO }
	_, err := s.Put(t.Context(), testKey, "text/new", strings.NewReader("new"))
	wantErr(t, err, syscall.EIO)
	s.sync = (*os.File).Sync
	wantBlob(t, s, testKey, "old")
	if left := temporaries(t, root); len(left) > 0 {
		t.Errorf("left %q", left)
	}
	// Past the rename the outcome is unknown, and the error must not say else.
	s.sync = func(f *os.File) error {
		if isTemporary(filepath.Base(f.Name())) {
			return nil
		}
		return syscall.EIO
	}
	_, err = s.Put(t.Context(), testKey, "text/plain", strings.NewReader("new"))
	wantErr(t, err, syscall.EIO)
	for _, sure := range []error{psych.ErrNotFound, psych.ErrConflict, psych.ErrInvalid, psych.ErrTooLarge} {
		if errors.Is(err, sure) {
			t.Errorf("%v matches %v, which promises no effect", err, sure)
		}
	}
	s.sync = func(f *os.File) error {
		if isTemporary(filepath.Base(f.Name())) {
			return nil
		}
		return syscall.EINVAL // a filesystem that can't sync directories
	}
	if _, err = s.Put(t.Context(), testKey, "text/plain", strings.NewReader("newer")); err != nil {
		t.Error(err)
	}
	wantBlob(t, s, testKey, "newer")
}

func TestErrorsThatPass(t *testing.T) {
	for _, e := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE} {
		root := t.TempDir()
		s := New(root, nil)
		put(t, s, testKey, "old")
		s.sync = func(*os.File) error { return &fs.PathError{Op: "sync", Path: "x", Err: e} }
		_, err := s.Put(t.Context(), testKey, "text/new", strings.NewReader("new"))
		wantErr(t, err, psych.ErrUnavailable, e)
		wantBlob(t, New(root, nil), testKey, "old")
		// The same from the reader says nothing about this filesystem.
		_, err = New(root, nil).Put(t.Context(), testKey, "text/new", iotest.ErrReader(e))
		wantErr(t, err, e)
		if errors.Is(err, psych.ErrUnavailable) {
			t.Errorf("a reader's %v became %v", e, err)
		}
	}
}

func TestReaderMisbehaves(t *testing.T) {
	root := t.TempDir()
	s := New(root, nil)
	put(t, s, testKey, "old")
	_, err := s.Put(t.Context(), testKey, "", readFunc(func(p []byte) (int, error) { return len(p) + 1, nil }))
	if err == nil || !strings.Contains(err.Error(), "buffer") {
		t.Errorf("a reader that returns too much: %v", err)
	}
	_, err = s.Put(t.Context(), testKey, "", readFunc(func([]byte) (int, error) { return 0, nil }))
	wantErr(t, err, io.ErrNoProgress)
	func() {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic was lost")
			}
		}()
		s.Put(t.Context(), testKey, "", readFunc(func([]byte) (int, error) { panic("boom") }))
	}()
	wantBlob(t, s, testKey, "old")
	other := testKey
	other.Tenant = "other"
	_, err = s.Put(t.Context(), other, "", iotest.ErrReader(io.ErrUnexpectedEOF))
	wantErr(t, err, io.ErrUnexpectedEOF)
	if left, err := os.ReadDir(root); err != nil || len(left) != 1 {
		t.Errorf("the root holds %v, %v, want the tenant with a blob alone", left, err)
	}
	if left := temporaries(t, root); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// allMethods calls each method for testKey.
func allMethods(t *testing.T, s *Store) map[string]error {
	t.Helper()
	errs := make(map[string]error)
	_, errs["Put"] = s.Put(t.Context(), testKey, "", strings.NewReader("x"))
	_, errs["Stat"] = s.Stat(t.Context(), testKey)
	_, _, errs["Open"] = s.Open(t.Context(), testKey, 0, -1)
	errs["Delete"] = s.Delete(t.Context(), testKey)
	errs["DeleteRun"] = s.DeleteRun(t.Context(), testRun)
	return errs
}

func TestFileInDirectorysPlace(t *testing.T) {
	for _, at := range []string{".", "t-acme", "t-acme/" + testRun.RunID} {
		path := filepath.Join(t.TempDir(), "root")
		s := New(path, nil)
		path = filepath.Join(path, at)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		for method, err := range allMethods(t, s) {
			if !errors.Is(err, syscall.ENOTDIR) || errors.Is(err, psych.ErrNotFound) || !strings.Contains(err.Error(), filepath.Base(path)) {
				t.Errorf("%s with a file at %s: %v, want one that names it and matches ENOTDIR alone", method, at, err)
			}
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != "precious" {
			t.Errorf("the file at %s holds %q, %v", at, data, err)
		}
	}
	s := New(filepath.Join(t.TempDir(), "root"), nil)
	if err := os.WriteFile(s.root, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := s.Init(t.Context())
	wantErr(t, err, syscall.ENOTDIR)
	for method, err := range allMethods(t, New("", nil)) {
		if !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("%s without a root: %v, want ErrInvalid", method, err)
		}
	}
}

func TestNotABlob(t *testing.T) {
	s := New(t.TempDir(), nil)
	put(t, s, testKey, strings.Repeat("x", 1000))
	path := filepath.Join(s.root, files(t, s.root)[0])
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flipped := func(at int) []byte {
		b := slices.Clone(good)
		b[at] ^= 1
		return b
	}
	for what, data := range map[string][]byte{
		"empty": {}, "short": good[:10], "cut by a byte": good[:len(good)-1], "cut": good[:700], "longer": append(slices.Clone(good), 0),
		"without its begin": good[1:], "another size": flipped(len(good) - fixedEnd + 7), "a huge size": flipped(len(good) - fixedEnd),
		"another type": flipped(1000), "a huge type": flipped(len(good) - fixedEnd + 8), "another checksum": flipped(len(good) - len(magic) - 1),
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Stat(t.Context(), testKey); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) {
			t.Errorf("Stat of a file that is %s: %v, want ErrDamaged with its path", what, err)
		}
	}
	put(t, s, testKey, "repaired")
	wantBlob(t, s, testKey, "repaired")

	// A file that is cut while it is read must not look like a whole one.
	r, _, err := s.Open(t.Context(), testKey, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := os.Truncate(path, 3); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if string(got) != "rep" {
		t.Errorf("read %q", got)
	}
	wantErr(t, err, ErrDamaged)

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(path, "precious"), 0o700); err != nil {
		t.Fatal(err)
	}
	for method, err := range map[string]error{
		"Stat": func() error { _, err := s.Stat(t.Context(), testKey); return err }(),
		"Put": func() error {
			_, err := s.Put(t.Context(), testKey, "", iotest.ErrReader(errors.New("it read before it looked")))
			return err
		}(),
	} {
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("%s with a directory in the blob's place: %v, want ErrDamaged", method, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(path, "precious")); err != nil {
		t.Error(err)
	}
}

func TestSymlinks(t *testing.T) {
	base := t.TempDir()
	outside := filepath.Join(base, "outside")
	other := New(outside, nil)
	put(t, other, testKey, "precious")
	foreign := testKey
	foreign.Tenant = "other"
	run := filepath.Join(outside, "t-acme", testRun.RunID)
	blob := filepath.Join(run, "b-"+testKey.CallID)
	root := filepath.Join(base, "root")
	for _, link := range []struct {
		at, to string
		want   error
	}{
		{"t-acme", filepath.Join(outside, "t-acme"), syscall.ENOTDIR},
		{"t-acme/" + testRun.RunID, run, syscall.ENOTDIR},
		{"t-acme/" + testRun.RunID + "/b-" + testKey.CallID, blob, ErrDamaged},
		// and without leaving the root, to another tenant's
		{"t-acme", "t-other", syscall.ENOTDIR},
		{"t-acme/" + testRun.RunID, "../t-other/" + testRun.RunID, syscall.ENOTDIR},
		{"t-acme/" + testRun.RunID + "/b-" + testKey.CallID, "../../t-other/" + testRun.RunID + "/b-" + testKey.CallID, ErrDamaged},
	} {
		if err := os.RemoveAll(root); err != nil {
			t.Fatal(err)
		}
		s := New(root, nil)
		put(t, s, foreign, "foreign")
		at := filepath.Join(root, link.at)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(link.to, at); err != nil {
			t.Skipf("no symbolic links here: %v", err)
		}
		if _, err := s.Init(t.Context()); err != nil {
			t.Errorf("Init with a link at %s: %v", link.at, err)
		}
		for method, err := range allMethods(t, s) {
			// The last two may remove a link in a blob's place, but not follow it.
			if link.want == ErrDamaged && (method == "Delete" || method == "DeleteRun") {
				if err != nil {
					t.Errorf("%s with a link at %s: %v", method, link.at, err)
				}
			} else if !errors.Is(err, link.want) {
				t.Errorf("%s with a link from %s to %s: %v, want %v", method, link.at, link.to, err, link.want)
			}
		}
		wantBlob(t, other, testKey, "precious")
		wantBlob(t, s, foreign, "foreign")
	}
	// The root itself may be a link.
	link := filepath.Join(base, "link")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	wantBlob(t, New(link, nil), testKey, "precious")
}

func TestPermissions(t *testing.T) {
	if os.Geteuid() == 0 {
		asNobody(t)
		return
	}
	root := filepath.Join(t.TempDir(), "root")
	s := New(root, nil)
	put(t, s, testKey, "old")
	run := filepath.Join(root, "t-acme", testRun.RunID)
	chmod := func(path string, mode fs.FileMode) {
		t.Helper()
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, fs.ErrPermission) || errors.Is(err, psych.ErrNotFound) || errors.Is(err, psych.ErrAccessDenied) {
			t.Errorf("%s: %v, want the system's error, which is no sentinel of psych", what, err)
		}
	}
	chmod(run, 0o500)
	_, err := s.Put(t.Context(), testKey, "", strings.NewReader("new"))
	refused("Put into a directory that is read-only", err)
	refused("Delete", s.Delete(t.Context(), testKey))
	refused("DeleteRun", s.DeleteRun(t.Context(), testRun))
	wantBlob(t, s, testKey, "old")
	chmod(run, 0)
	_, err = s.Stat(t.Context(), testKey)
	refused("Stat in a directory that can't be entered", err)
	chmod(run, 0o700)
	wantBlob(t, s, testKey, "old")
	chmod(root, 0o500)
	other := testKey
	other.Tenant = "other"
	_, err = s.Put(t.Context(), other, "", strings.NewReader("new"))
	refused("Put of a new tenant", err)
	_, err = New(filepath.Join(root, "below"), nil).Init(t.Context())
	refused("Init", err)
	chmod(root, 0o700)
}

func TestInit(t *testing.T) {
	root := filepath.Join(t.TempDir(), "a", "b")
	s := New(root, nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Init(ended)
	wantErr(t, err, context.Canceled)
	notes, err := s.Init(t.Context())
	if err != nil || len(notes) != 1 || !strings.Contains(notes[0], root) {
		t.Errorf("Init that creates the root: %q, %v", notes, err)
	}
	if notes, err = s.Init(t.Context()); err != nil || len(notes) > 0 {
		t.Errorf("Init again: %q, %v", notes, err)
	}
	if runtime.GOOS != "windows" {
		if err := os.Chmod(root, 0o755); err != nil {
			t.Fatal(err)
		}
		if notes, err = s.Init(t.Context()); err != nil || len(notes) != 1 || !strings.Contains(notes[0], "0755") {
			t.Errorf("Init of a root that is open to others: %q, %v", notes, err)
		}
	}
}

// A root that is removed under a running Store is made again.
func TestRootRemoved(t *testing.T) {
	s := New(filepath.Join(t.TempDir(), "root"), nil)
	put(t, s, testKey, "old")
	if err := os.RemoveAll(s.root); err != nil {
		t.Fatal(err)
	}
	_, err := s.Stat(t.Context(), testKey)
	wantErr(t, err, psych.ErrNotFound)
	put(t, s, testKey, "new")
	wantBlob(t, s, testKey, "new")
}

func TestLeftovers(t *testing.T) {
	root := t.TempDir()
	s := New(root, nil)
	put(t, s, testKey, "old")
	run := filepath.Join(root, "t-acme", testRun.RunID)
	empty := filepath.Join(root, "t-empty", testRun.RunID)
	strange := filepath.Join(root, "T-strange", testRun.RunID)
	age := func(path string, hours int) string {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("part"), 0o600); err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-time.Duration(hours) * time.Hour)
		if err := os.Chtimes(path, then, then); err != nil {
			t.Fatal(err)
		}
		return path
	}
	there := func(path string) bool { _, err := os.Lstat(path); return err == nil }

	stale, fresh := age(filepath.Join(run, ".tmp-a"), 25), age(filepath.Join(run, ".tmp-b"), 23)
	alone, foreign := age(filepath.Join(empty, ".tmp-a"), 25), age(filepath.Join(strange, ".tmp-a"), 25)
	old := filepath.Join(run, "b-"+testKey.CallID)
	if then := time.Now().Add(-1000 * time.Hour); os.Chtimes(old, then, then) != nil {
		t.Fatal("Chtimes")
	}
	notes, err := s.Init(t.Context())
	if err != nil || !slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, "removed 2 ") }) {
		t.Errorf("Init: %q, %v", notes, err)
	}
	if there(stale) || there(alone) || !there(fresh) || !there(foreign) {
		t.Errorf("Init kept or removed the wrong ones: %q", files(t, root))
	}
	if there(filepath.Dir(filepath.Dir(alone))) {
		t.Error("Init left the directories of a leftover")
	}
	wantBlob(t, s, testKey, "old")

	age(stale, 25)
	if err := s.DeleteRun(t.Context(), testRun); err != nil {
		t.Fatal(err)
	}
	if there(stale) || !there(fresh) || there(old) {
		t.Errorf("DeleteRun kept or removed the wrong ones: %q", files(t, root))
	}
	if err := New(root, &Options{LeftoverAge: 22 * time.Hour}).DeleteRun(t.Context(), testRun); err != nil {
		t.Fatal(err)
	}
	if there(fresh) || there(filepath.Dir(run)) {
		t.Error("a DeleteRun with a shorter LeftoverAge left something")
	}
}

// A Put during which its Run is deleted, by another process, stores all the
// same: DeleteRun leaves its temporary file and so its directory.
func TestDeleteRunDuringPut(t *testing.T) {
	root := t.TempDir()
	s := New(root, nil)
	put(t, s, testKey, "old")
	deleted := false
	_, err := s.Put(t.Context(), testKey, "text/plain", io.MultiReader(strings.NewReader("ne"), readFunc(func([]byte) (int, error) {
		if !deleted {
			deleted = true
			if err := New(root, nil).DeleteRun(t.Context(), testRun); err != nil {
				t.Error(err)
			}
			if _, err := s.Stat(t.Context(), testKey); !errors.Is(err, psych.ErrNotFound) {
				t.Errorf("after DeleteRun: %v", err)
			}
		}
		return 0, io.EOF
	}), strings.NewReader("w")))
	if err != nil {
		t.Fatal(err)
	}
	wantBlob(t, s, testKey, "new")
}

// A window into a large file costs nothing of its size.
func TestRangedReadAllocates(t *testing.T) {
	const size = 64 << 20
	s := New(t.TempDir(), nil)
	sum := sha256.New()
	source := io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), size), sum)
	put := bytesAllocated(func() {
		if info, err := s.Put(t.Context(), testKey, "x/y", source); err != nil || info.Size != size {
			t.Fatal(info, err)
		}
	})
	if put > 1<<20 {
		t.Errorf("Put of %d bytes allocated %d, want at most 1 MiB", size, put)
	}
	window := make([]byte, 64<<10)
	got := bytesAllocated(func() {
		for i := range int64(16) {
			r, _, err := s.Open(t.Context(), testKey, i*(size/16), int64(len(window)))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(r, window); err != nil {
				t.Fatal(err)
			}
			r.Close()
		}
	})
	if got > 1<<20 {
		t.Errorf("16 windows into a file of %d bytes allocated %d, want at most 1 MiB", size, got)
	}
	r, _, err := s.Open(t.Context(), testKey, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	again := sha256.New()
	if n, err := io.Copy(again, r); err != nil || n != size || !bytes.Equal(again.Sum(nil), sum.Sum(nil)) {
		t.Errorf("read back %d bytes, %v, or other ones", n, err)
	}
}

func bytesAllocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func BenchmarkOpenWindow(b *testing.B) {
	const size = 64 << 20
	s := New(b.TempDir(), nil)
	if _, err := s.Put(b.Context(), testKey, "x/y", io.LimitReader(rand.NewChaCha8([32]byte{1}), size)); err != nil {
		b.Fatal(err)
	}
	window := make([]byte, 64<<10)
	b.ReportAllocs()
	for b.Loop() {
		r, _, err := s.Open(b.Context(), testKey, size/2, int64(len(window)))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(r, window); err != nil {
			b.Fatal(err)
		}
		r.Close()
	}
}

func ExampleStore() {
	dir, err := os.MkdirTemp("", "blobs")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	s := New(filepath.Join(dir, "blobs"), nil)
	key := psych.BlobKey{Tenant: "acme", RunID: "0123456789abcdef0123456789abcdef", CallID: "c1_1.result.1"}
	info, err := s.Put(ctx, key, "text/plain", strings.NewReader("what the tool returned"))
	fmt.Println(info, err)
	r, _, err := s.Open(ctx, key, 9, 4)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer r.Close()
	part, err := io.ReadAll(r)
	fmt.Printf("%s %v\n", part, err)
	// Output:
	// {22 text/plain} <nil>
	// tool <nil>
}
