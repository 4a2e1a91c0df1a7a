// Package sqlite keeps everything in one file: a [Store] for a laptop or a
// single server, for any number of processes at once, with nothing to set up.
//
// The file is a SQLite database in WAL mode, with two more beside it while it is
// in use (-wal, -shm). When a writing method returns, what it wrote is synced to
// the disk. Its writes queue up, first among those of one Store, then among
// processes; readers wait for nobody. The three files have mode 0600 and a
// directory that had to be made 0700. What is deleted leaves room in the file
// for what comes, and does not make it smaller.
//
// A process must not open the file by other means while a Store has it open,
// not even to copy it: on Unix, closing any descriptor of a file lets go of all
// locks that the process has on it.
//
// The driver is modernc.org/sqlite, since it is SQLite's own code, translated,
// with SQLite's own locks and shared memory, where github.com/ncruces/go-sqlite3,
// as fast and as quick to build, has written those anew and differently for each
// system.
package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/psych-go/psych-go/psych"
)

var _ psych.Store = (*Store)(nil)

// Options of a [Store]. The zero value works.
type Options struct {
	// LockWait is how long a call waits while others hold the file's lock,
	// before it fails with psych.ErrUnavailable and has had no effect. A write
	// holds it for a millisecond or so. 0 is 10 seconds.
	LockWait time.Duration
}

// A Store is a [psych.Store] in one file. Its index never lags.
//
// Errors match a sentinel of psych, and are the driver's (*sqlite.Error of
// modernc.org/sqlite) where there is one. psych.ErrUnavailable: the file is
// locked, the disk is full or failed. psych.ErrAccessDenied: the file, its
// directory or its filesystem may not be written to. psych.ErrInvalid: the file
// can't be used as it is; of a newer schema, another program's, no database at
// all, damaged (then it also matches [ErrDamaged]), on a network filesystem. A
// log with a hole is a *psych.CorruptionError.
type Store struct {
	path     string
	wait     time.Duration
	schema   []string                 // migrations; a seam, for tests
	remote   func(string) string      // a seam, for tests
	syncDir  func(dir string) error   // a seam, for tests
	lock     chan struct{}            // held by who writes, opens or closes; waiting senders are served in order
	file     atomic.Pointer[openFile] // nil until the first use, and after Close
	isClosed atomic.Bool
}

// New returns a Store in the file at path, which the first writing call or
// [Store.Init] creates with its missing directories; until then it holds
// nothing. A relative path is relative to the directory that is current at the
// first use. New does no IO. o may be nil.
func New(path string, o *Options) *Store {
	s := &Store{path: path, wait: 10 * time.Second, schema: migrations, remote: remoteFilesystem, syncDir: syncDir, lock: make(chan struct{}, 1)}
	if o != nil && o.LockWait > 0 {
		s.wait = o.LockWait
	}
	return s
}

// Close closes the file, and waits for a write that is under way. Methods that
// are called later fail with psych.ErrInvalid and os.ErrClosed.
func (s *Store) Close() error {
	s.lock <- struct{}{}
	defer func() { <-s.lock }()
	s.isClosed.Store(true)
	if f := s.file.Swap(nil); f != nil {
		if err := f.close(); err != nil {
			return fmt.Errorf("sqlite: close %s: %w", s.path, err)
		}
	}
	return nil
}

// Init creates the file, or brings one of an older release up to date; the
// first writing call does as much. Notes say what was done, and whether others
// than its owner may open a file that was there already.
func (s *Store) Init(ctx context.Context) (notes []string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("sqlite: init %s: %w", s.path, err)
	}
	info, statErr := os.Stat(s.path)
	open := s.file.Load()
	err = s.locked(ctx, func(f *openFile) error {
		if f != open {
			notes = f.notes
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("sqlite: init %s: %w", s.path, err)
	}
	if statErr == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		notes = append(notes, fmt.Sprintf("file %s has mode %04o, so others than its owner may open it: chmod 600 it unless that is meant", s.path, info.Mode().Perm()))
	}
	return notes, nil
}

// errNoFile is returned where nothing may create the file.
var errNoFile = errors.New("no such file yet")

// read calls f, which reads as of one moment by one statement. Without a file
// it is psych.ErrNotFound.
func (s *Store) read(ctx context.Context, f func(r *statements) error) error {
	file := s.file.Load()
	if file == nil {
		if err := s.exists(); err != nil {
			return err
		}
		err := s.locked(ctx, func(opened *openFile) error {
			file = opened
			return nil
		})
		if err != nil {
			return err
		}
	}
	timeout := time.NewTimer(s.wait)
	defer timeout.Stop()
	return s.patiently(ctx, timeout.C, func() error { return f(&file.reads) })
}

// exists returns an error that matches psych.ErrNotFound if there is no file.
func (s *Store) exists() error {
	if s.isClosed.Load() {
		return s.errClosed()
	}
	if _, err := os.Stat(s.path); errors.Is(err, fs.ErrNotExist) && s.path != "" {
		return fmt.Errorf("%s: %w: %w", s.path, errNoFile, psych.ErrNotFound)
	}
	return nil
}

// noneYet drops the error of a list that there is no file for.
func noneYet(err error) error {
	if errors.Is(err, errNoFile) {
		return nil
	}
	return err
}

func (s *Store) errClosed() error {
	return fmt.Errorf("the Store of %s: %w: %w", s.path, os.ErrClosed, psych.ErrInvalid)
}

// write calls f in a transaction that has the file's write lock from its start,
// so that what f reads is the newest and stays so, and commits unless f fails.
// The ctx of f does not end: a transaction is short, and one that is cut off as
// it commits would leave its outcome unknown.
func (s *Store) write(ctx context.Context, f func(ctx context.Context, t *statements) error) error {
	return s.locked(ctx, func(file *openFile) error {
		ctx, t := context.WithoutCancel(ctx), &file.writes
		if _, err := t.exec(ctx, "BEGIN IMMEDIATE"); err != nil {
			return err
		}
		err := f(ctx, t)
		if err == nil {
			_, err = t.exec(ctx, "COMMIT")
		}
		if err != nil {
			// It fails where SQLite has rolled back by itself.
			_, _ = t.exec(ctx, "ROLLBACK")
		}
		return err
	})
}

// locked opens the file and calls f as the one writer of this Store. f is called
// again if it finds the file locked: then it must have had no effect.
func (s *Store) locked(ctx context.Context, f func(*openFile) error) error {
	timeout := time.NewTimer(s.wait)
	defer timeout.Stop()
	select {
	case s.lock <- struct{}{}:
	default:
		select {
		case s.lock <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			return fmt.Errorf("%s: %v of waiting for others of this process: %w", s.path, s.wait, psych.ErrUnavailable)
		}
	}
	defer func() { <-s.lock }()
	return s.patiently(ctx, timeout.C, func() error {
		if s.isClosed.Load() {
			return s.errClosed()
		}
		file := s.file.Load()
		if file == nil {
			var err error
			if file, err = s.open(ctx); err != nil {
				return err
			}
			s.file.Store(file)
		}
		return f(file)
	})
}

// The pauses between two looks at a lock that another process holds. They are
// short, since its next write follows within microseconds of the last, and
// random, so that of many who wait each meets the gap in between.
const (
	firstPause = 100 * time.Microsecond
	lastPause  = 5 * time.Millisecond
)

// patiently calls f until it finds the file unlocked. Its error is explained.
func (s *Store) patiently(ctx context.Context, timeout <-chan time.Time, f func() error) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := f()
		if !isLocked(err) {
			return s.explain(err)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return fmt.Errorf("%w: while %s was locked by another process: %w", ctx.Err(), s.path, err)
		case <-timeout:
			return fmt.Errorf("%s has been locked by another process for %v: end what holds it: %w: %w", s.path, s.wait, psych.ErrUnavailable, err)
		}
	}
}

// check is what every method that takes a key does first.
func check(ctx context.Context, key psych.RunKey) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return key.Check()
}

// checkTenant is check for the methods that take a tenant.
func checkTenant(ctx context.Context, tenant string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return psych.CheckTenant(tenant)
}

// wrap names the call that failed.
func wrap(op string, key fmt.Stringer, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("sqlite: %s %s: %w", op, key, err)
}

// micro is t as it is kept.
func micro(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// nullable is t as a column: NULL for the zero time, else microseconds.
func nullable(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}
