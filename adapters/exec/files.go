package exec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/psych-go/psych-go/psych"
)

// A fileAnswer says what became of a file that a call names.
type fileAnswer struct {
	Path      string `json:"path"`
	SizeBytes *int64 `json:"size_bytes,omitempty"` // of the file, as it was when the command had ended
	Error     string `json:"error,omitempty"`      // why it is not attached
}

// attachFiles attaches regular files below the root. One that can't be
// attached fails nothing: what the command wrote is to be read all the same.
func (t *tool) attachFiles(ctx context.Context, c *psych.Call, root *os.Root, paths []string) ([]fileAnswer, error) {
	var answers []fileAnswer
	seen := map[string]bool{}
	for _, p := range paths {
		p = path.Clean(filepath.ToSlash(p))
		if seen[p] {
			continue
		}
		seen[p] = true
		a := fileAnswer{Path: p}
		size, err := t.attachFile(ctx, c, root, p)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("exec: the command ended, but not all files were attached: %w", ctx.Err())
		}
		if err != nil {
			a.Error = why(err)
		} else {
			a.SizeBytes = &size
		}
		answers = append(answers, a)
	}
	return answers, nil
}

func (t *tool) attachFile(ctx context.Context, c *psych.Call, root *os.Root, p string) (size int64, err error) {
	f, err := openRegular(root, filepath.FromSlash(p))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	w, err := c.Attach("file:"+p, contentType(p), &psych.AttachOptions{MaxBytes: t.o.MaxFileBytes})
	if err != nil {
		return 0, err
	}
	defer w.Close()
	// A byte too many says that it is cut. A sparse file may have no end that
	// could be reached.
	stored := &writer{w: w}
	n, err := io.Copy(stored, io.LimitReader(ctxReader{ctx, f}, t.o.MaxFileBytes+1))
	if stored.err == nil && err == nil {
		stored.err = w.Close()
	}
	if stored.err != nil {
		c.Log.WarnContext(ctx, "a file of a command can't be stored", "err", stored.err)
		return 0, errNotStored
	}
	return max(n, info.Size()), err
}

// A writer tells its own errors from a reader's.
type writer struct {
	w   io.Writer
	err error
}

func (w *writer) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	if err != nil {
		w.err = err
	}
	return n, err
}

type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (r ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

var (
	errDirectory  = errors.New("it is a directory: name the files")
	errNotRegular = errors.New("it is not a regular file")
	errNotStored  = errors.New("it could not be stored")
)

// openRegular opens a file for reading, and never waits for a fifo's writer. It
// looks before it opens, since opening a device can have an effect, and again
// after, since the file may have been replaced in between.
func openRegular(root *os.Root, name string) (*os.File, error) {
	regular := func(info fs.FileInfo) error {
		switch {
		case info.IsDir():
			return errDirectory
		case !info.Mode().IsRegular():
			return errNotRegular
		}
		return nil
	}
	info, err := root.Stat(name)
	if err == nil {
		err = regular(info)
	}
	if err != nil {
		return nil, err
	}
	f, err := root.OpenFile(name, openFlags, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = regular(info)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// contentType goes by the name alone, so that it does not depend on what the
// system has installed. What it does not know are bytes: they are kept as they
// are, and are text all the same where they are UTF-8.
func contentType(p string) string {
	switch strings.ToLower(path.Ext(p)) {
	case ".txt", ".log", ".out", ".go", ".py", ".js", ".ts", ".c", ".h", ".rs", ".java", ".sh", ".diff", ".patch":
		return "text/plain"
	case ".md":
		return "text/markdown"
	case ".csv":
		return "text/csv"
	case ".tsv":
		return "text/tab-separated-values"
	case ".html", ".htm":
		return "text/html"
	case ".json":
		return "application/json"
	case ".ndjson", ".jsonl":
		return "application/x-ndjson"
	case ".xml":
		return "application/xml"
	case ".yaml", ".yml":
		return "application/yaml"
	case ".png":
		return "image/png"
	case ".jpg", ".jpeg":
		return "image/jpeg"
	case ".gif":
		return "image/gif"
	case ".webp":
		return "image/webp"
	case ".pdf":
		return "application/pdf"
	case ".zip":
		return "application/zip"
	case ".gz":
		return "application/gzip"
	}
	return "application/octet-stream"
}

// why is an error without the paths of this machine.
func why(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "no such file or directory"
	case errors.Is(err, fs.ErrPermission):
		return "permission denied"
	}
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err.Error()
		}
		err = next
	}
}
