// Package fsblob keeps payloads in a directory: a psych.BlobStore for a laptop,
// a single server or a shared filesystem.
//
// A blob is one file, ROOT/TENANT/RUN/CALL, that holds the bytes as they came
// and behind them a short trailer with their number and content type, so that
// one rename publishes both and a file that was cut is recognized. The names
// are made by a reversible escape that yields lower-case ASCII alone: no tenant
// leaves or meets another's directory, also where a filesystem ignores case or
// normalizes Unicode, and every name fits into 255 bytes. Files have mode 0600,
// directories 0700. Symbolic links below the root are never followed; the root
// itself may be one.
//
// A writer fills a temporary file in the directory of its Run, syncs it, renames
// it, and syncs the directories up to the root. What a killed writer leaves is
// visible to no method of psych.BlobStore; [Store.Init] and [Store.DeleteRun]
// remove it once it is old enough.
package fsblob

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/psych-go/psych-go/psych"
)

const (
	bufferBytes = 64 << 10 // what a Put holds of its reader
	createTries = 100      // of a Put whose directory concurrent DeleteRuns keep removing
)

// ErrDamaged is matched by the error of Open, Stat and reads when what lies in
// a blob's place is not what Put wrote: not a regular file, cut, or changed.
var ErrDamaged = errors.New("fsblob: not a blob as it was written")

// Options of a Store. The zero value works.
type Options struct {
	// LeftoverAge is how long nothing must have been written to a temporary
	// file before it counts as a killed writer's, and is removed; a live writer
	// whose reader stalls for longer fails with psych.ErrUnavailable. Zero: 24
	// hours.
	LeftoverAge time.Duration
}

// A Store is a psych.BlobStore on a directory. Any number of Stores, in any
// number of processes, may share one.
//
// Errors match a sentinel of psych where one fits, and the operating system's
// error. A full disk or quota, or too many open files, is psych.ErrUnavailable:
// repeating later helps. Missing permission, a read-only filesystem or a file
// in a directory's place match no sentinel, and need a person.
type Store struct {
	root string
	age  time.Duration
	sync func(*os.File) error // a seam, for tests

	mu   sync.Mutex
	made bool // the root was there, or was created and synced
}

var _ psych.BlobStore = (*Store)(nil)

// New returns a Store on the directory root, which the first Put or Init
// creates with its missing parents. Until then it holds nothing. New does no IO.
func New(root string, o *Options) *Store {
	s := &Store{root: root, age: 24 * time.Hour, sync: (*os.File).Sync}
	if o != nil && o.LeftoverAge > 0 {
		s.age = o.LeftoverAge
	}
	return s
}

// Put implements psych.BlobStore. It holds 64 KiB of r at a time, and looks at
// ctx before each read and before the bytes become visible. If syncing a
// directory fails behind that, the new bytes are visible and may not be
// durable: the error matches none of psych's that promise no effect.
func (s *Store) Put(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
	if err := begin(ctx, key.Check()); err != nil {
		return psych.BlobInfo{}, fmt.Errorf("fsblob: put: %w", err)
	}
	root, err := s.createRoot()
	if err != nil {
		return psych.BlobInfo{}, writeError("put", key, err)
	}
	defer root.Close()
	p := placeOf(key.Run())
	blob := p.blob(key.CallID)
	f, tmp, err := createBeside(ctx, root, p, blob)
	if err != nil {
		return psych.BlobInfo{}, writeError("put", key, err)
	}
	renamed := false
	defer func() { // also when r panics
		f.Close()
		if !renamed {
			root.Remove(tmp)
			p.prune(root)
		}
	}()

	size, err := fill(ctx, f, r)
	if err != nil {
		return psych.BlobInfo{}, writeError("put", key, err)
	}
	info := psych.BlobInfo{Size: size, ContentType: contentType}
	if _, err := f.Write(trailer(info)); err != nil {
		return psych.BlobInfo{}, writeError("put", key, err)
	}
	if err := s.sync(f); err != nil {
		return psych.BlobInfo{}, writeError("put", key, err)
	}
	// Some filesystems report a full disk only here.
	if err := f.Close(); err != nil {
		return psych.BlobInfo{}, writeError("put", key, err)
	}
	if err := ctx.Err(); err != nil {
		return psych.BlobInfo{}, writeError("put", key, err)
	}
	if err := root.Rename(tmp, blob); err != nil {
		return psych.BlobInfo{}, writeError("put", key, err)
	}
	renamed = true
	if err := s.syncUp(root, p); err != nil {
		return psych.BlobInfo{}, writeError("put", key, err)
	}
	return info, nil
}

// Open implements psych.BlobStore. The reader reads from the open file, which
// a replacement or deletion does not change, and loads nothing ahead. A file
// that was cut since is ErrDamaged, never a short read.
func (s *Store) Open(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
	if offset < 0 {
		return nil, psych.BlobInfo{}, fmt.Errorf("fsblob: open %s: offset %d is negative: %w", key, offset, psych.ErrInvalid)
	}
	f, info, err := s.find(ctx, "open", key)
	if err != nil {
		return nil, psych.BlobInfo{}, err
	}
	rest := max(info.Size-offset, 0)
	if length >= 0 {
		rest = min(rest, length)
	}
	return &section{f: f, key: key, at: offset, rest: rest}, info, nil
}

// Stat implements psych.BlobStore.
func (s *Store) Stat(ctx context.Context, key psych.BlobKey) (psych.BlobInfo, error) {
	f, info, err := s.find(ctx, "stat", key)
	if err != nil {
		return psych.BlobInfo{}, err
	}
	f.Close()
	return info, nil
}

// Delete implements psych.BlobStore. When it returns, the deletion is durable.
func (s *Store) Delete(ctx context.Context, key psych.BlobKey) error {
	if err := begin(ctx, key.Check()); err != nil {
		return fmt.Errorf("fsblob: delete: %w", err)
	}
	err := s.in(key.Run(), func(root *os.Root, p place) error {
		if err := root.Remove(p.blob(key.CallID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return s.syncUp(root, p)
	})
	if err != nil {
		return writeError("delete", key, err)
	}
	return nil
}

// DeleteRun implements psych.BlobStore. When it returns, the deletion is
// durable. It also removes temporary files of the Run that are older than
// Options.LeftoverAge; a younger one, which a writer may be filling now, stays
// for a later DeleteRun or Init. If it fails or ctx ends, a part may be gone.
func (s *Store) DeleteRun(ctx context.Context, run psych.RunKey) error {
	if err := begin(ctx, run.Check()); err != nil {
		return fmt.Errorf("fsblob: delete run: %w", err)
	}
	err := s.in(run, func(root *os.Root, p place) error {
		names, err := readNames(root, p.run)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			path := filepath.Join(p.run, name)
			if isTemporary(name) {
				_, err = s.removeLeftover(root, path)
			} else {
				err = root.RemoveAll(path)
			}
			if err != nil {
				return err
			}
		}
		p.prune(root)
		return s.syncUp(root, p)
	})
	if err != nil {
		return writeError("delete run", run, err)
	}
	return nil
}

// Init creates the root and removes what killed writers left, Options.LeftoverAge
// or longer ago, in all of it. That lists every directory of every Run; a
// program need not call it at each start. Notes say what was done, and whether
// others than its owner may enter a root that was there already.
func (s *Store) Init(ctx context.Context) (notes []string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("fsblob: init %s: %w", s.root, err)
	}
	_, err = os.Stat(s.root)
	if errors.Is(err, fs.ErrNotExist) {
		notes = append(notes, "created directory "+s.root)
	}
	root, err := s.createRoot()
	if err != nil {
		return nil, initError(s.root, err)
	}
	defer root.Close()
	if info, err := root.Stat("."); err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		notes = append(notes, fmt.Sprintf("directory %s has mode %04o, so others than its owner may enter it: chmod 700 it unless that is meant", s.root, info.Mode().Perm()))
	}
	n, err := s.sweep(ctx, root)
	if n > 0 {
		notes = append(notes, fmt.Sprintf("removed %d temporary files of writers that were killed", n))
	}
	if err != nil {
		return notes, initError(s.root, err)
	}
	return notes, nil
}

// sweep returns how many leftovers it removed.
func (s *Store) sweep(ctx context.Context, root *os.Root) (n int, err error) {
	tenants, err := readNames(root, ".")
	if err != nil {
		return 0, err
	}
	for _, tenant := range tenants {
		if _, ok := parseTenant(tenant); !ok {
			continue
		}
		runs, err := readNames(root, tenant)
		if err != nil {
			return n, err
		}
		for _, run := range runs {
			if err := ctx.Err(); err != nil {
				return n, err
			}
			p := place{tenant: tenant, run: filepath.Join(tenant, run)}
			names, err := readNames(root, p.run)
			if err != nil {
				return n, err
			}
			before := n
			for _, name := range names {
				if !isTemporary(name) {
					continue
				}
				removed, err := s.removeLeftover(root, filepath.Join(p.run, name))
				if err != nil {
					return n, err
				}
				if removed {
					n++
				}
			}
			if n > before {
				p.prune(root)
			}
		}
	}
	return n, nil
}

func (s *Store) removeLeftover(root *os.Root, path string) (removed bool, err error) {
	info, err := root.Lstat(path)
	if err == nil && time.Since(info.ModTime()) > s.age {
		err = root.Remove(path)
		removed = err == nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return removed, err
}

// find opens the file of a blob. Its errors are complete.
func (s *Store) find(ctx context.Context, op string, key psych.BlobKey) (*os.File, psych.BlobInfo, error) {
	if err := begin(ctx, key.Check()); err != nil {
		return nil, psych.BlobInfo{}, fmt.Errorf("fsblob: %s: %w", op, err)
	}
	f, info, err := s.openBlob(key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("fsblob: %s %s: %w: %w", op, key, psych.ErrNotFound, err)
	case transient(err):
		err = fmt.Errorf("fsblob: %s %s: %w: %w", op, key, psych.ErrUnavailable, err)
	case err != nil:
		err = fmt.Errorf("fsblob: %s %s: %w", op, key, err)
	}
	return f, info, err
}

func (s *Store) openBlob(key psych.BlobKey) (*os.File, psych.BlobInfo, error) {
	root, err := s.openRoot()
	if err != nil {
		return nil, psych.BlobInfo{}, err
	}
	defer root.Close()
	p := placeOf(key.Run())
	if err := p.check(root); err != nil {
		return nil, psych.BlobInfo{}, err
	}
	blob := p.blob(key.CallID)
	// Before it is opened: opening a pipe would wait for its other end.
	if err := checkRegular(root, blob); err != nil {
		return nil, psych.BlobInfo{}, err
	}
	f, err := root.Open(blob)
	if err != nil {
		return nil, psych.BlobInfo{}, err
	}
	info, err := readTrailer(f)
	if err != nil {
		f.Close()
		return nil, psych.BlobInfo{}, err
	}
	return f, info, nil
}

// in calls f with the directory of a run, and does nothing if there is none.
func (s *Store) in(run psych.RunKey, f func(*os.Root, place) error) error {
	root, err := s.openRoot()
	if err == nil {
		defer root.Close()
		p := placeOf(run)
		if err = p.check(root); err == nil {
			err = f(root, p)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (s *Store) openRoot() (*os.Root, error) {
	if s.root == "" {
		return nil, fmt.Errorf("the root has no name: give New a directory: %w", psych.ErrInvalid)
	}
	root, err := os.OpenRoot(s.root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		if info, statErr := os.Stat(s.root); statErr == nil && !info.IsDir() {
			return nil, notDir(s.root, info)
		}
	}
	return root, err
}

// createRoot opens the root and creates it if it is missing.
func (s *Store) createRoot() (*os.Root, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	root, err := s.openRoot()
	if s.made && err == nil || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return root, err
	}
	if err == nil { // another process may have created it just now
		err = s.syncDir(filepath.Dir(filepath.Clean(s.root)))
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			root.Close()
			return nil, err
		}
		s.made = true
		return root, nil
	}
	var entered []string // the directories that get a new entry
	for dir := filepath.Clean(s.root); ; {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		parent := filepath.Dir(dir)
		entered = append(entered, parent)
		if parent == dir {
			break
		}
		dir = parent
	}
	if err := os.MkdirAll(s.root, 0o700); err != nil {
		return nil, err
	}
	for _, dir := range entered {
		if err := s.syncDir(dir); err != nil {
			return nil, err
		}
	}
	s.made = true
	return s.openRoot()
}

// createBeside creates a temporary file beside blob, with the directories that
// are missing. A DeleteRun that removes them in between makes it begin again.
func createBeside(ctx context.Context, root *os.Root, p place, blob string) (_ *os.File, tmp string, err error) {
	for range createTries {
		if err := ctx.Err(); err != nil {
			return nil, "", err
		}
		tmp = filepath.Join(p.run, temporaryPrefix+rand.Text())
		var f *os.File
		if f, err = create(root, p, blob, tmp); err == nil {
			return f, tmp, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, "", err
		}
	}
	return nil, "", fmt.Errorf("its directory was removed %d times meanwhile: %w", createTries, err)
}

func create(root *os.Root, p place, blob, tmp string) (*os.File, error) {
	for _, dir := range []string{p.tenant, p.run} {
		if err := root.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if err := checkDir(root, dir); err != nil {
			return nil, err
		}
	}
	if err := checkRegular(root, blob); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// fill copies r to f until EOF. It fills its buffer before it writes, so that a
// reader of small pieces does not cost a write for each.
func fill(ctx context.Context, f *os.File, r io.Reader) (size int64, err error) {
	buf := make([]byte, bufferBytes)
	empty := 0
	for n := 0; ; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		m, err := r.Read(buf[n:])
		if m < 0 || m > len(buf)-n {
			return 0, &readerError{fmt.Errorf("it returned %d bytes for a buffer of %d", m, len(buf)-n)}
		}
		n += m
		if err != nil && err != io.EOF {
			return 0, &readerError{err}
		}
		if n == len(buf) || err == io.EOF {
			if _, err := f.Write(buf[:n]); err != nil {
				return 0, err
			}
			size += int64(n)
			n = 0
		}
		if err == io.EOF {
			return size, nil
		}
		if empty++; m > 0 {
			empty = 0
		} else if empty == 100 {
			return 0, &readerError{io.ErrNoProgress}
		}
	}
}

// A readerError is a Put's reader's, which says nothing about the filesystem.
type readerError struct{ err error }

func (e *readerError) Error() string { return "read the payload: " + e.err.Error() }
func (e *readerError) Unwrap() error { return e.err }

// syncUp makes what happened in the directory of a run durable: the directory
// and those above it, whose entries may be as new. One that a concurrent
// DeleteRun has removed needs no sync.
func (s *Store) syncUp(root *os.Root, p place) error {
	for _, dir := range []string{p.run, p.tenant, "."} {
		f, err := root.Open(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := s.syncOpenDir(f); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return s.syncOpenDir(f)
}

// syncOpenDir syncs and closes f.
func (s *Store) syncOpenDir(f *os.File) error {
	defer f.Close()
	if runtime.GOOS == "windows" { // directories can't be synced there
		return nil
	}
	err := s.sync(f)
	// Filesystems that have no such operation keep directories by other means.
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		return nil
	}
	return err
}

// begin returns invalid or, if that is nil, why ctx has ended.
func begin(ctx context.Context, invalid error) error {
	if invalid != nil {
		return invalid
	}
	return ctx.Err()
}

func writeError(op string, key fmt.Stringer, err error) error {
	var r *readerError
	// A file that is missing while it is written was removed by another process.
	if !errors.As(err, &r) && (transient(err) || errors.Is(err, fs.ErrNotExist)) {
		return fmt.Errorf("fsblob: %s %s: %w: %w", op, key, psych.ErrUnavailable, err)
	}
	return fmt.Errorf("fsblob: %s %s: %w", op, key, err)
}

func initError(root string, err error) error {
	if transient(err) {
		return fmt.Errorf("fsblob: init %s: %w: %w", root, psych.ErrUnavailable, err)
	}
	return fmt.Errorf("fsblob: init %s: %w", root, err)
}

// transient reports whether the same call may succeed later with nobody having
// changed a permission or moved a file.
func transient(err error) bool {
	for _, e := range []error{
		syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM,
		syscall.EAGAIN, syscall.EINTR, syscall.EBUSY, syscall.ETIMEDOUT, syscall.ESTALE,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
