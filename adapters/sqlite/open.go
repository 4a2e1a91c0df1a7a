package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"modernc.org/sqlite"

	"github.com/psych-go/psych-go/psych"
)

// readers bounds the connections that read at once.
const readers = 4

// An openFile is the file with its connections: one that writes, and a pool of
// those that read.
type openFile struct {
	pool   *sql.DB
	writer *sql.Conn
	reads  statements
	writes statements
	notes  []string // what opening it did
}

func (f *openFile) close() error {
	return errors.Join(f.reads.close(), f.writes.close(), f.writer.Close(), f.pool.Close())
}

// pragmas are those of each connection, so that whichever of them writes does so
// durably.
var pragmas = []string{
	"synchronous(full)",
	"fullfsync(on)", // where fsync does not reach the disk: on macOS
	"checkpoint_fullfsync(on)",
	"journal_size_limit(67108864)",
	"trusted_schema(off)",
}

// open opens the file, created and migrated if need be.
func (s *Store) open(ctx context.Context) (_ *openFile, err error) {
	path, err := absolute(s.path)
	if err != nil {
		return nil, err
	}
	created, err := s.place(path)
	if err != nil {
		return nil, err
	}
	connector, err := sqlite.NewConnector(dsn(path))
	if err != nil {
		return nil, err
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(readers + 1)
	pool.SetMaxIdleConns(readers + 1)
	writer, err := pool.Conn(ctx)
	if err != nil {
		pool.Close()
		return nil, err
	}
	f := &openFile{pool: pool, writer: writer}
	f.reads.on, f.writes.on = pool, writer
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	from, err := s.migrate(ctx, &f.writes)
	if err != nil {
		return nil, err
	}
	if err := useWAL(ctx, &f.writes); err != nil {
		return nil, err
	}
	switch {
	case created || from == 0:
		f.notes = []string{"created file " + path}
	case from < len(s.schema):
		f.notes = []string{fmt.Sprintf("brought file %s from schema version %d to %d", path, from, len(s.schema))}
	}
	return f, nil
}

// dsn names the file and what each connection to it begins with.
func dsn(path string) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // C:/psych.db
	}
	// Only create makes the file, with its mode.
	params := url.Values{"mode": {"rw"}, "_error_rc": {"1"}, "_pragma": pragmas}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: params.Encode()}).String()
}

// absolute returns the path of the file, if it is one.
func absolute(path string) (string, error) {
	if path == "" || strings.ContainsRune(path, 0) {
		return "", fmt.Errorf("%q is no path of a file: %w", path, psych.ErrInvalid)
	}
	return filepath.Abs(path)
}

// place makes sure that there is a file that SQLite may open, on a filesystem
// that it can use.
func (s *Store) place(path string) (created bool, err error) {
	info, err := os.Stat(path)
	switch missing := errors.Is(err, fs.ErrNotExist); {
	case err != nil && !missing:
		return false, explainOS(err)
	case missing:
		if err := s.makeDir(filepath.Dir(path)); err != nil {
			return false, explainOS(err)
		}
	case !info.Mode().IsRegular():
		return false, fmt.Errorf("%s is no regular file, but %v: %w", path, info.Mode().Type(), psych.ErrInvalid)
	}
	if kind := s.remote(filepath.Dir(path)); kind != "" {
		return false, fmt.Errorf("%s is on a network filesystem (%s), where processes on two machines would damage it: put it on a local disk: %w", path, kind, psych.ErrInvalid)
	}
	if info != nil {
		return false, nil
	}
	if created, err = createFile(path); err == nil && created {
		err = s.syncDir(filepath.Dir(path))
	}
	return created, explainOS(err)
}

// creating keeps Stores of this process from opening a file whose descriptor is
// about to be closed here, which would let go of their locks.
var creating sync.Mutex

func createFile(path string) (created bool, err error) {
	creating.Lock()
	defer creating.Unlock()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, f.Close()
}

// makeDir makes dir and its missing parents, and syncs the directories that get
// a new entry.
func (s *Store) makeDir(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(dir)
	if err := s.makeDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return s.syncDir(parent)
}

func syncDir(dir string) error {
	if runtime.GOOS == "windows" { // directories can't be synced there
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	// Filesystems that have no such operation keep directories by other means.
	if err := f.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOTSUP) {
		return err
	}
	return nil
}
