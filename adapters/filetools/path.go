package filetools

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"
)

// cleanPath is the path that a model means, relative to the root with forward
// slashes ("." for the root), or what is wrong with it. It takes the quoted
// form of showPath too. It keeps nothing inside of the root: os.Root does; it
// only tells apart what can be told.
func cleanPath(p string) (clean, problem string) {
	if len(p) >= 2 && p[0] == '"' && p[len(p)-1] == '"' {
		if u, err := strconv.Unquote(p); err == nil {
			p = u
		}
	}
	switch {
	case strings.ContainsRune(p, 0):
		return "", "a path holds no NUL"
	case path.IsAbs(p) || filepath.IsAbs(filepath.FromSlash(p)):
		return "", `paths are relative to the root: give it without what leads to the root, or as "."`
	}
	clean = path.Clean(p)
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return "", "it leads outside of the root"
	}
	return clean, ""
}

// showPath is p as it stands in an answer: itself, or quoted where a line or a
// terminal could misread it.
func showPath(p string) string {
	plain := p != "" && p[0] != '"' && p[0] != '['
	for i := 0; plain && i < len(p); {
		r, n := utf8.DecodeRuneInString(p[i:])
		plain = strconv.IsPrint(r) && r != ':' && (r != utf8.RuneError || n > 1)
		i += n
	}
	if plain {
		return p
	}
	return strconv.Quote(p)
}

// named is a path in a message, cut where it is long.
func named(p string) string {
	const most = 160
	q := strconv.Quote(p)
	if len(q) <= most {
		return q
	}
	return q[:alignDown(q, most)] + "…"
}

// kind is what a file is, in one word.
func kind(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "file"
	case m.IsDir():
		return "dir"
	case m&fs.ModeSymlink != 0:
		return "symlink"
	case m&fs.ModeNamedPipe != 0:
		return "fifo"
	case m&fs.ModeSocket != 0:
		return "socket"
	case m&fs.ModeDevice != 0:
		return "device"
	}
	return "other"
}

var errNotRegular = errors.New("it is not a regular file")

// openRegular opens a file for reading, never waiting for a fifo's writer. It
// looks before it opens, since opening a device can have an effect, and again
// after, since the file may have been replaced in between.
func (t *Tools) openRegular(p string) (*os.File, fs.FileInfo, error) {
	name := filepath.FromSlash(p)
	info, err := t.root.Stat(name)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, info, errNotRegular
	}
	f, err := t.root.OpenFile(name, openFlags, 0)
	if err != nil {
		return nil, nil, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = errNotRegular
	}
	if err != nil {
		f.Close()
		return nil, info, err
	}
	return f, info, nil
}
