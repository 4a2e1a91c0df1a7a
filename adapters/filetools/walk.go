package filetools

import (
	"context"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// An entry is a file that a walk came to; where err is set, one that it had to
// leave out.
type entry struct {
	path, rel string // from the root, and from the start of the walk
	info      fs.FileInfo
	err       error
}

// A walker goes through a tree depth first, names in byte order, a directory
// before what it holds. It holds no file open between two steps, and follows
// no symbolic link but the one that it may start from.
type walker struct {
	t       *Tools
	start   string
	pending *entry
	stack   []level
}

type level struct {
	dir   string
	names []string // still to come
}

// walk begins at a directory or a file; the error is for why.
func (t *Tools) walk(ctx context.Context, start string) (*walker, error) {
	w := &walker{t: t, start: start}
	info, err := t.root.Stat(filepath.FromSlash(start))
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return w, w.enter(ctx, start)
	}
	w.pending = &entry{path: start, rel: start[strings.LastIndexByte(start, '/')+1:], info: info}
	return w, nil
}

// next returns the next entry, false at the end. It stops early when ctx has
// ended: the caller looks at ctx.
func (w *walker) next(ctx context.Context) (entry, bool) {
	if e := w.pending; e != nil {
		w.pending = nil
		return *e, true
	}
	for len(w.stack) > 0 {
		top := &w.stack[len(w.stack)-1]
		if len(top.names) == 0 {
			w.stack = w.stack[:len(w.stack)-1]
			continue
		}
		e := entry{path: top.names[0]}
		top.names = top.names[1:]
		if top.dir != "." {
			e.path = top.dir + "/" + e.path
		}
		e.rel = e.path
		if w.start != "." {
			e.rel = strings.TrimPrefix(e.path, w.start+"/")
		}
		// Asking the root, as what a directory says of its entries may be out
		// of date or come by way of a path that leaves it.
		e.info, e.err = w.t.root.Lstat(filepath.FromSlash(e.path))
		if e.err == nil && e.info.IsDir() {
			if err := w.enter(ctx, e.path); err != nil {
				w.pending = &entry{path: e.path, rel: e.rel, err: err}
			}
		}
		return e, true
	}
	return entry{}, false
}

func (w *walker) enter(ctx context.Context, dir string) error {
	f, err := w.t.root.OpenFile(filepath.FromSlash(dir), openFlags, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var names []string
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		some, err := f.Readdirnames(4096)
		names = append(names, some...)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	slices.Sort(names)
	w.stack = append(w.stack, level{dir, names})
	return nil
}
