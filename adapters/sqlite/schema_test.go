package sqlite

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/psych-go/psych-go/psych"
)

// raw opens path as another program would.
func raw(t *testing.T, path string) *sql.Conn {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); db.Close() })
	return c
}

func rawExec(t *testing.T, c *sql.Conn, text string) {
	t.Helper()
	if _, err := c.ExecContext(t.Context(), text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// refused ends the test unless every kind of call on the file is refused with
// target, in words that hold says, and leaves the file as it is.
func refused(t *testing.T, path, says string, targets ...error) {
	t.Helper()
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(t, path, nil)
	for what, call := range map[string]func(ctx context.Context) error{
		"Init":   func(ctx context.Context) error { _, err := s.Init(ctx); return err },
		"GetRun": func(ctx context.Context) error { _, err := s.GetRun(ctx, testKey); return err },
		"Append": func(ctx context.Context) error {
			_, err := s.Append(ctx, testKey, psych.Pos{}, batch(0, "token", "x"))
			return err
		},
	} {
		err := call(t.Context())
		wantErr(t, what, err, targets...)
		if err != nil && (!strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), path)) {
			t.Errorf("%s: %v: want it to say %q and name the file", what, err, says)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("what was refused has changed (%v)", err)
	}
}

func TestNewerSchema(t *testing.T) {
	s := newRun(t)
	path := s.path
	execSQL(t, s, fmt.Sprintf("PRAGMA user_version = %d", len(migrations)+1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	refused(t, path, fmt.Sprintf("schema version %d, of a newer release", len(migrations)+1), psych.ErrInvalid)
}

func TestOlderSchema(t *testing.T) {
	ctx := t.Context()
	s := newRun(t)
	appendTo(t, s, 2, 1)
	path := s.path
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	next := append(slices.Clone(migrations), "ALTER TABLE runs ADD COLUMN color TEXT NOT NULL DEFAULT 'blue'", "CREATE INDEX colors ON runs (color)")

	// Of many who come at once one migrates, and all go on.
	stores := make([]*Store, 8)
	migrated := make([][]string, len(stores))
	errs := make([]error, len(stores))
	var g sync.WaitGroup
	for i := range stores {
		stores[i] = newStore(t, path, nil)
		stores[i].schema = next
		g.Go(func() { migrated[i], errs[i] = stores[i].Init(ctx) })
	}
	g.Wait()
	n := 0
	for i, notes := range migrated {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if len(notes) > 0 {
			n++
			if want := fmt.Sprintf("schema version %d to %d", len(migrations), len(next)); !strings.Contains(notes[0], want) {
				t.Errorf("Init says %q, want %q", notes, want)
			}
		}
	}
	if n != 1 {
		t.Errorf("%d of %d Stores say that they migrated the file, want 1", n, len(stores))
	}
	if got := log(t, stores[0]); !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Errorf("after the migration the log is %q", got)
	}
	var color string
	if err := stores[1].read(ctx, func(r *statements) error { return r.one(ctx, []any{&color}, "SELECT color FROM runs") }); err != nil || color != "blue" {
		t.Errorf("the new column holds %q, %v", color, err)
	}
	for _, s := range stores {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, path, "of a newer release", psych.ErrInvalid)
}

// before calls f once, before text is prepared.
type before struct {
	*sql.Conn
	text string
	f    func()
}

func (b *before) PrepareContext(ctx context.Context, text string) (*sql.Stmt, error) {
	if text == b.text && b.f != nil {
		b.f()
		b.f = nil
	}
	return b.Conn.PrepareContext(ctx, text)
}

// Who finds an old schema, and another migrates it before he has the lock, does
// not do so again.
func TestMigratedMeanwhile(t *testing.T) {
	ctx := t.Context()
	s := newRun(t)
	s.schema = append(slices.Clone(migrations), "ALTER TABLE runs ADD COLUMN color TEXT NOT NULL DEFAULT 'blue'")
	other := newStore(t, s.path, nil)
	other.schema = s.schema
	c := &before{Conn: raw(t, s.path), text: "BEGIN IMMEDIATE", f: func() {
		if _, err := other.Init(ctx); err != nil {
			t.Error(err)
		}
	}}
	from, err := s.migrate(ctx, &statements{on: c})
	if err != nil || from != len(s.schema) || c.f != nil {
		t.Errorf("from version %d, %v (hooked: %v); want %d, which the other had made", from, err, c.f == nil, len(s.schema))
	}
}

// A migration that fails leaves the file as it was, for the release before.
func TestFailedMigration(t *testing.T) {
	s := newRun(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	newer := newStore(t, s.path, nil)
	newer.schema = append(slices.Clone(migrations), "CREATE TABLE more (a); CREATE TABLE runs (a)")
	if _, err := newer.Init(t.Context()); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Fatalf("Init: %v, want the error of the migration", err)
	}
	if _, err := newStore(t, s.path, nil).GetRun(t.Context(), testKey); err != nil {
		t.Errorf("after a migration that failed: %v", err)
	}
}

// Of many who create a file at once all go on.
func TestCreatedAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "psych.db")
	stores := make([]*Store, 8)
	errs := make([]error, len(stores))
	var g sync.WaitGroup
	for i := range stores {
		stores[i] = newStore(t, path, nil)
		g.Go(func() {
			_, errs[i] = stores[i].Append(t.Context(), psych.RunKey{Tenant: fmt.Sprint(i), RunID: testKey.RunID}, psych.Pos{}, batch(0, "token", "x"))
		})
	}
	g.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	noise := make([]byte, 100_000)
	rand.Read(noise)
	refused(t, write("noise", noise), "no SQLite database", psych.ErrInvalid)
	refused(t, write("notes.txt", []byte(strings.Repeat("Dear diary, ", 100))), "no SQLite database", psych.ErrInvalid)

	other := filepath.Join(dir, "other.db")
	c := raw(t, other)
	rawExec(t, c, "CREATE TABLE bookmarks (url)")
	c.Close()
	refused(t, other, "database of another program", psych.ErrInvalid)

	versioned := filepath.Join(dir, "versioned.db")
	c = raw(t, versioned)
	rawExec(t, c, "PRAGMA user_version = 1")
	c.Close()
	refused(t, versioned, "database of another program", psych.ErrInvalid)

	// An empty file, as one who was killed in creating it leaves it, is no more
	// than a name.
	s := newStore(t, write("empty", nil), nil)
	createRun(t, s)
}

func TestDamagedFile(t *testing.T) {
	s := newRun(t)
	for range 3 {
		info := psych.RunInfo{Key: testKey, CreatedAt: testNow}
		for i := range 100 {
			info.Key.RunID = fmt.Sprintf("%032x", i)
			if _, _, err := s.CreateRun(t.Context(), info); err != nil {
				t.Fatal(err)
			}
		}
	}
	appendTo(t, s, 1)
	path := s.path
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	// All behind the page with the schema is noise.
	damaged := slices.Clone(whole)
	rand.Read(damaged[4096:])
	for i := 4096; i < len(damaged); i += 4096 {
		damaged[i] = 0xee // a type of page that there is not
	}
	path = filepath.Join(t.TempDir(), "damaged.db")
	if err := os.WriteFile(path, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	d := newStore(t, path, nil)
	_, err = d.GetRun(t.Context(), testKey)
	wantErr(t, "GetRun of a damaged file", err, ErrDamaged, psych.ErrInvalid)
	_, err = d.Append(t.Context(), testKey, psych.Pos{Seq: 1}, batch(1, "t", "x"))
	wantErr(t, "Append to a damaged file", err, ErrDamaged, psych.ErrInvalid)
	if err != nil && !strings.Contains(err.Error(), path) {
		t.Errorf("%v does not name the file", err)
	}

	// The schema is noise too.
	copy(damaged[100:4096], bytes.Repeat([]byte{0xee}, 4096))
	path = filepath.Join(t.TempDir(), "schema.db")
	if err := os.WriteFile(path, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, path, "damaged", ErrDamaged, psych.ErrInvalid)

	// Half of it is gone.
	path = filepath.Join(t.TempDir(), "half.db")
	if err := os.WriteFile(path, whole[:len(whole)/2/4096*4096], 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, path, "damaged", ErrDamaged, psych.ErrInvalid)
}

// A header that is no header is damage, not another Run.
func TestDamagedHeader(t *testing.T) {
	s := newRun(t)
	execSQL(t, s, "UPDATE runs SET scope = '{'")
	_, err := s.GetRun(t.Context(), testKey)
	wantErr(t, "GetRun of a damaged header", err, ErrDamaged, psych.ErrInvalid)
}

func TestBadPlaces(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, path := range map[string]string{
		"no name":                  "",
		"a NUL":                    "psych\x00.db",
		"a directory":              dir,
		"a file as directory":      filepath.Join(file, "psych.db"),
		"a file above a directory": filepath.Join(file, "new", "psych.db"),
		"a name that is too long":  filepath.Join(dir, strings.Repeat("x", 300)),
	} {
		s := newStore(t, path, nil)
		_, err := s.Init(t.Context())
		wantErr(t, "Init with "+what, err, psych.ErrInvalid)
		_, err = s.GetRun(t.Context(), testKey)
		wantErr(t, "GetRun with "+what, err, psych.ErrInvalid)
	}
}

// What the operating system says before SQLite does, of filesystems that a test
// does not have.
func TestExplainOS(t *testing.T) {
	for errno, want := range map[syscall.Errno]error{
		syscall.EROFS: psych.ErrAccessDenied, syscall.EACCES: psych.ErrAccessDenied, syscall.EPERM: psych.ErrAccessDenied,
		syscall.ENOSPC: psych.ErrUnavailable, syscall.EIO: psych.ErrUnavailable, syscall.EMFILE: psych.ErrUnavailable,
		syscall.ELOOP: psych.ErrInvalid,
	} {
		wantErr(t, errno.Error(), explainOS(&os.PathError{Op: "mkdir", Path: "/state", Err: errno}), want, errno)
	}
}

func TestNetworkFilesystem(t *testing.T) {
	dir := t.TempDir()
	if got := remoteFilesystem(dir); got != "" {
		t.Skipf("the test's own directory is on %s", got)
	}
	path := filepath.Join(dir, "new", "psych.db")
	s := newStore(t, path, nil)
	s.remote = func(got string) string {
		if got != filepath.Dir(path) {
			t.Errorf("asked about %s, want the file's directory", got)
		}
		return "NFS"
	}
	_, err := s.Init(t.Context())
	wantErr(t, "Init on a network filesystem", err, psych.ErrInvalid)
	if err == nil || !strings.Contains(err.Error(), "network filesystem (NFS)") {
		t.Errorf("Init on a network filesystem: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file was made all the same: %v", err)
	}
	local := newStore(t, path, nil)
	createRun(t, local)
	if err := local.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = s.GetRun(t.Context(), testKey)
	wantErr(t, "GetRun on a network filesystem", err, psych.ErrInvalid)
}
