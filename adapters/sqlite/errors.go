package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/psych-go/psych-go/psych"
)

// ErrDamaged is matched by the error of a method that met bytes in the file
// which SQLite never wrote. What it can still read, .recover of the sqlite3
// command line writes into a new file.
var ErrDamaged = errors.New("sqlite: the file is damaged")

// code returns SQLite's primary result code, or 0 for another error.
func code(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// isLocked reports whether err says that another connection holds a lock, so
// that the transaction has not begun.
func isLocked(err error) bool {
	c := code(err)
	return c == sqlite3.SQLITE_BUSY || c == sqlite3.SQLITE_PROTOCOL
}

// explain says what an error of SQLite means, by a sentinel of psych and in
// words. Whatever promises that the call had no effect comes before a commit.
func (s *Store) explain(err error) error {
	says := func(what string, target error) error { return fmt.Errorf("%s %s: %w: %w", s.path, what, target, err) }
	switch code(err) {
	case sqlite3.SQLITE_FULL:
		return says("has no space left: free some on its disk", psych.ErrUnavailable)
	case sqlite3.SQLITE_IOERR:
		return says("can't be read or written now, as when its disk or quota is full", psych.ErrUnavailable)
	case sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT:
		return says("could not be used", psych.ErrUnavailable)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return says("may not be written to: look at the permissions and the mount of file and directory", psych.ErrAccessDenied)
	case sqlite3.SQLITE_CANTOPEN:
		// SQLite does not say why.
		f, probe := os.Open(os.DevNull)
		if probe != nil {
			return says("can't be opened", fmt.Errorf("%w: %w", psych.ErrUnavailable, probe))
		}
		f.Close()
		return says("can't be opened: look at the permissions of file and directory", psych.ErrAccessDenied)
	case sqlite3.SQLITE_NOTADB:
		return says("is no SQLite database: name another file", psych.ErrInvalid)
	case sqlite3.SQLITE_CORRUPT:
		return says("holds what SQLite never wrote: restore it from a copy", fmt.Errorf("%w: %w", ErrDamaged, psych.ErrInvalid))
	case sqlite3.SQLITE_TOOBIG:
		return says("can't hold a value of this size", psych.ErrTooLarge)
	}
	return err
}

// explainOS is explain for what the operating system says of the file or its
// directory before SQLite sees them. Its errors name the path.
func explainOS(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %w", psych.ErrAccessDenied, err)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP):
		return fmt.Errorf("%w: %w", psych.ErrInvalid, err)
	}
	return fmt.Errorf("%w: %w", psych.ErrUnavailable, err)
}
