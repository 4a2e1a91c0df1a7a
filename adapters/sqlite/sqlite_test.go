package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/psych"
)

func TestStoreContract(t *testing.T) {
	contracttest.TestStore(t, func(t *testing.T) *contracttest.Fixture[psych.Store] {
		path := filepath.Join(t.TempDir(), "new", "psych.db")
		var opened []*Store
		open := func(context.Context) (psych.Store, error) {
			s := New(path, nil)
			opened = append(opened, s)
			return s, nil
		}
		closeAll := func() {
			for _, s := range opened {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
			opened = nil
		}
		t.Cleanup(closeAll)
		port, _ := open(t.Context())
		return &contracttest.Fixture[psych.Store]{Port: port, Open: open, Reopen: func(ctx context.Context) (psych.Store, error) {
			closeAll()
			return open(ctx)
		}}
	}, nil)
}

var (
	testKey = psych.RunKey{Tenant: "acme", RunID: "0123456789abcdef0123456789abcdef"}
	testNow = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
)

// newStore returns a Store on path that ends with the test.
func newStore(t testing.TB, path string, o *Options) *Store {
	s := New(path, o)
	t.Cleanup(func() { s.Close() })
	return s
}

// newRun returns a Store on a new file, with a Run.
func newRun(t testing.TB) *Store {
	t.Helper()
	s := newStore(t, filepath.Join(t.TempDir(), "psych.db"), nil)
	createRun(t, s)
	return s
}

func createRun(t testing.TB, s *Store) {
	t.Helper()
	if _, _, err := s.CreateRun(t.Context(), psych.RunInfo{Key: testKey, Scope: psych.Scope{Tenant: testKey.Tenant}, CreatedAt: testNow}); err != nil {
		t.Fatal(err)
	}
}

// batch makes an append of entries behind seq.
func batch(seq uint64, token string, data ...string) psych.Batch {
	b := psych.Batch{Token: token}
	for i, d := range data {
		b.Entries = append(b.Entries, psych.Entry{Seq: seq + 1 + uint64(i), Kind: psych.KindUserMessage, Time: testNow, Data: []byte(d)})
	}
	return b
}

// appendTo appends batches of entries that hold their seqs.
func appendTo(t testing.TB, s *Store, sizes ...int) {
	t.Helper()
	var pos psych.Pos
	for _, n := range sizes {
		var data []string
		for i := range n {
			data = append(data, fmt.Sprint(pos.Seq+uint64(i)+1))
		}
		var err error
		if pos, err = s.Append(t.Context(), testKey, pos, batch(pos.Seq, fmt.Sprint("token ", pos.Seq), data...)); err != nil {
			t.Fatal(err)
		}
	}
}

// log returns the data of all entries.
func log(t testing.TB, s *Store) (data []string) {
	t.Helper()
	for pos, more := (psych.Pos{}), true; more; {
		page, err := s.Read(t.Context(), testKey, pos, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Entries {
			data = append(data, string(e.Data))
		}
		pos, more = page.Next, page.More
	}
	return data
}

// execSQL runs statements on the connection of s that writes.
func execSQL(t testing.TB, s *Store, text string, args ...any) {
	t.Helper()
	if err := s.locked(t.Context(), func(f *openFile) error {
		_, err := f.writes.exec(t.Context(), text, args...)
		return err
	}); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func wantErr(t *testing.T, what string, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("%s: got error %v, want one that matches %q", what, err, target)
		}
	}
}

func TestFilesAndModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes are those of Unix")
	}
	base := t.TempDir()
	path := filepath.Join(base, "new", "state", "psych.db")
	s := newStore(t, path, nil)
	synced := map[string]int{}
	s.syncDir = func(dir string) error { synced[dir]++; return syncDir(dir) }
	if left, _ := os.ReadDir(base); len(left) != 0 {
		t.Fatalf("New did IO: %v", left)
	}
	createRun(t, s)
	var names []string
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
		} else {
			names = append(names, d.Name())
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %04o, want %04o", path, got, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"psych.db", "psych.db-shm", "psych.db-wal"}; !slices.Equal(names, want) {
		t.Errorf("files %q, want %q", names, want)
	}
	for _, dir := range []string{base, filepath.Join(base, "new"), filepath.Join(base, "new", "state")} {
		if synced[dir] != 1 {
			t.Errorf("%s, which got a new entry, was synced %d times, want once", dir, synced[dir])
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("after the last Close there are %v, %v; want the file alone", left, err)
	}
}

// A path is a path, whatever it looks like in a URI.
func TestStrangePaths(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a b?mode=memory&x=%41#frag", "é%2F.db", ":memory:", "file:x"} {
		if runtime.GOOS == "windows" && strings.ContainsAny(name, "?:") {
			continue
		}
		path := filepath.Join(dir, name)
		s := newStore(t, path, nil)
		createRun(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() == 0 {
			t.Errorf("%q: %v, %v; want a file with the Run", name, info, err)
		}
	}
	t.Chdir(dir)
	s := newStore(t, "relative.db", nil)
	createRun(t, s)
	t.Chdir(t.TempDir())
	// Connections that are opened later are to the same file.
	var held []func()
	err := s.locked(t.Context(), func(f *openFile) error {
		for range readers {
			c, err := f.pool.Conn(t.Context())
			if err != nil {
				return err
			}
			held = append(held, func() { c.Close() })
		}
		return nil
	})
	for _, release := range held {
		release()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.GetRun(t.Context(), testKey); err != nil {
		t.Error(err)
	}
}

// Reading does not make a file of a path that was mistyped.
func TestNoFile(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "missing", "psych.db")
	s := newStore(t, path, nil)
	_, err := s.GetRun(ctx, testKey)
	wantErr(t, "GetRun", err, psych.ErrNotFound)
	if !strings.Contains(err.Error(), path) {
		t.Errorf("%v does not name the file", err)
	}
	_, err = s.Read(ctx, testKey, psych.Pos{}, 1)
	wantErr(t, "Read", err, psych.ErrNotFound)
	_, err = s.Head(ctx, testKey)
	wantErr(t, "Head", err, psych.ErrNotFound)
	_, err = s.Pending(ctx, testKey)
	wantErr(t, "Pending", err, psych.ErrNotFound)
	_, err = s.GetDoc(ctx, "t", psych.Digest{})
	wantErr(t, "GetDoc", err, psych.ErrNotFound)
	if runs, next, err := s.ListRuns(ctx, "t", "", 1); len(runs) != 0 || next != "" || err != nil {
		t.Errorf("ListRuns: %v, %q, %v", runs, next, err)
	}
	if keys, next, err := s.Due(ctx, testNow, "", 1); len(keys) != 0 || next != "" || err != nil {
		t.Errorf("Due: %v, %q, %v", keys, next, err)
	}
	if keys, next, err := s.DueRefs(ctx, testNow, "", 1); len(keys) != 0 || next != "" || err != nil {
		t.Errorf("DueRefs: %v, %q, %v", keys, next, err)
	}
	if refs, err := s.GetRefs(ctx, "t", []string{"a"}); len(refs) != 0 || err != nil {
		t.Errorf("GetRefs: %v, %v", refs, err)
	}
	if _, err := os.Stat(filepath.Dir(path)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading made the directory: %v", err)
	}
	createRun(t, s)
	if _, err := s.GetRun(ctx, testKey); err != nil {
		t.Error(err)
	}
}

func TestInit(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes are those of Unix")
	}
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "state", "psych.db")
	says := func(want string) {
		t.Helper()
		s := newStore(t, path, nil)
		notes, err := s.Init(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := s.Init(ctx); err != nil || slices.ContainsFunc(again, func(n string) bool { return strings.Contains(n, "created") }) {
			t.Errorf("Init again: %q, %v", again, err)
		}
		if got := strings.Join(notes, "\n"); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("Init says %q, want %q", got, want)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	says("created file " + path)
	says("")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	says("mode 0644")
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	_, err := New(path, nil).Init(canceled)
	wantErr(t, "Init with a context that has ended", err, context.Canceled)
}

func TestClosed(t *testing.T) {
	s := newRun(t)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.GetRun(t.Context(), testKey)
	wantErr(t, "GetRun of a closed Store", err, psych.ErrInvalid, os.ErrClosed)
	_, err = s.Append(t.Context(), testKey, psych.Pos{}, batch(0, "token", "x"))
	wantErr(t, "Append to a closed Store", err, psych.ErrInvalid, os.ErrClosed)
	if err := New(s.path, nil).Close(); err != nil {
		t.Errorf("Close of a Store that was never used: %v", err)
	}
}

// What keeps a write durable and the file safe holds on each connection that
// the pool may hand out, not on the first alone.
func TestPragmasOnEveryConnection(t *testing.T) {
	s := newRun(t)
	if err := s.locked(t.Context(), func(f *openFile) error {
		for range readers {
			c, err := f.pool.Conn(t.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			checkPragmas(t, &statements{on: c})
		}
		checkPragmas(t, &f.writes)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func checkPragmas(t *testing.T, c *statements) {
	t.Helper()
	for name, want := range map[string]string{
		"synchronous": "2", "fullfsync": "1", "checkpoint_fullfsync": "1", "journal_mode": "wal",
		"journal_size_limit": "67108864", "trusted_schema": "0",
	} {
		var got string
		if err := c.one(t.Context(), []any{&got}, "PRAGMA "+name); err != nil || got != want {
			t.Errorf("PRAGMA %s is %q (%v), want %q", name, got, err, want)
		}
	}
}

// No statement reads more than it needs, however many Runs there are.
func TestQueryPlans(t *testing.T) {
	ctx := t.Context()
	s := newRun(t)
	for _, r := range contracttest.StoreRules() {
		// Together they use every statement.
		if slices.Contains([]string{"Concurrency", "DuePaging", "DeferDue", "DeleteRunForever", "PurgeRunLast", "SettleNamed", "AppendRepeatedToken", "SwapRefStale", "DueRefsPaging", "HeadLast", "ListRunsPaging"}, r.Name) {
			if err := r.Check(ctx, &contracttest.Fixture[psych.Store]{Port: s}); err != nil {
				t.Fatal(err)
			}
		}
	}
	explained := 0
	if err := s.locked(ctx, func(f *openFile) error {
		for _, sts := range []*statements{&f.reads, &f.writes} {
			sts.prepared.Range(func(text, _ any) bool {
				query := text.(string)
				if strings.HasPrefix(query, "PRAGMA") || strings.Contains(query, "sqlite_schema") || strings.Contains(query, "CREATE") || !strings.Contains(query, " ") || strings.HasPrefix(query, "BEGIN") {
					return true
				}
				explained++
				rows, err := f.writer.QueryContext(ctx, "EXPLAIN QUERY PLAN "+query, make([]any, 20)...)
				if err != nil {
					t.Fatalf("%s: %v", query, err)
				}
				defer rows.Close()
				for rows.Next() {
					var a, b, c int
					var plan string
					if err := rows.Scan(&a, &b, &c, &plan); err != nil {
						t.Fatal(err)
					}
					if strings.Contains(plan, "TEMP B-TREE") || strings.HasPrefix(plan, "SCAN") && plan != "SCAN CONSTANT ROW" {
						t.Errorf("%s\n%s", query, plan)
					}
				}
				return true
			})
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if explained < 20 {
		t.Errorf("%d statements were explained: want all of them", explained)
	}
}
