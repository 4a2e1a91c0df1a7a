// Package filetools gives a model the files under one directory: the code
// tools read_file, list_files and search_files.
//
// Nothing outside of the directory is reached: every path is resolved by an
// [os.Root], so that neither "..", an absolute path nor a symbolic link leaves
// it, also while somebody changes the tree. Answers name files relative to the
// directory and never say where it lies.
//
//	files, err := filetools.Open("testdata", nil)
//	if err != nil {
//		return err
//	}
//	defer files.Close()
//	tools = append(tools, files.List()...)
//
// read_file answers with one page of at most [psych.PageChars] characters, so that
// its answers are never too large for a context. list_files and search_files
// answer with all that they find, up to [Options].MaxBytes: shortening what the
// model sees of that, and keeping the rest for it to read, is psych's part.
//
// What is text is decided by one rule: a file that is valid UTF-8 from its
// first byte to its last, NULs included. Everything else is binary, is said to
// be, and is neither shown nor searched.
//
// A path that holds what a line or a terminal could misread (control
// characters, invalid UTF-8, a colon) is shown quoted as a Go string literal,
// and every tool takes it in that form too. In a listing or a search result
// only lines of psych's own begin with "[".
package filetools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/psych-go/psych-go/psych"
)

// DefaultMaxBytes is what list_files and search_files return before they say
// "truncated".
const DefaultMaxBytes = 16 << 20

// Options change what the tools do; the zero value is the default.
type Options struct {
	// MaxBytes bounds an answer of list_files and of search_files, not
	// counting its last line; 0 is DefaultMaxBytes.
	MaxBytes int64
}

// Tools are the tools over one directory. Its methods, and the tools, may be
// called concurrently.
type Tools struct {
	root     *os.Root
	escapes  error // what os.Root says of a path that leaves it; it exports no name for that
	maxBytes int64
	read     counter
	list     counter
	search   counter
}

// Open opens the directory dir, which the tools then keep to though it be
// renamed. The error matches [psych.ErrInvalid] if dir is not a directory that
// can be opened, and fs.ErrNotExist where that is why. The caller calls Close.
func Open(dir string, o *Options) (*Tools, error) {
	if o == nil {
		o = &Options{}
	}
	if o.MaxBytes < 0 {
		return nil, fmt.Errorf("filetools: Options.MaxBytes is %d: want a number of bytes, or 0 for %d: %w", o.MaxBytes, DefaultMaxBytes, psych.ErrInvalid)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("filetools: open root: %w: %w", psych.ErrInvalid, err)
	}
	t := &Tools{root: root, maxBytes: o.MaxBytes}
	if t.maxBytes == 0 {
		t.maxBytes = DefaultMaxBytes
	}
	if _, err := root.Lstat(".."); err != nil {
		t.escapes = innermost(err)
	}
	return t, nil
}

// Close closes the directory. Calls that come later fail, as tool failures.
func (t *Tools) Close() error { return t.root.Close() }

type readInput struct {
	Path   string `json:"path" jsonschema:"the file, relative to the root, with forward slashes"`
	Offset int64  `json:"offset,omitempty" jsonschema:"the character to begin at, from 0; default 0"`
	Limit  int64  `json:"limit,omitempty" jsonschema:"how many characters to return, at most 20000, which is the default"`
}

type listInput struct {
	Path    string `json:"path,omitempty" jsonschema:"the directory to list, relative to the root; default the root itself"`
	Pattern string `json:"pattern,omitempty" jsonschema:"a glob that listed paths match, for example *.go or src/**/*.{ts,tsx}; without a slash it is matched against names at any depth, else against the path below the listed directory; default everything"`
}

type searchInput struct {
	Pattern string `json:"pattern" jsonschema:"a regular expression in RE2 syntax, matched against each line; (?i) ignores case"`
	Path    string `json:"path,omitempty" jsonschema:"the directory or file to search, relative to the root; default the root itself"`
	Glob    string `json:"glob,omitempty" jsonschema:"a glob that the searched files match, as the pattern of list_files; default every file"`
}

// List returns the three tools: list_files, read_file and search_files, all
// declared safe to run again.
func (t *Tools) List() []*psych.Tool {
	o := &psych.ToolOptions{Idempotent: true}
	pages := &psych.ToolOptions{Idempotent: true, Pages: true}
	return []*psych.Tool{
		psych.NewTool("list_files", "Lists a directory with everything below it, a line each: path, size in bytes, kind, separated by tabs. Symbolic links are listed and not followed.",
			func(ctx context.Context, _ *psych.Call, in listInput) (*psych.Result, error) {
				return t.listFiles(ctx, in)
			}, o),
		psych.NewTool("read_file", "Reads a text file by characters. The answer is one line of JSON, then the text. Where next_offset is given the file goes on: call again with it as offset.",
			func(ctx context.Context, _ *psych.Call, in readInput) (*psych.Result, error) {
				return t.readFile(ctx, in)
			}, pages),
		psych.NewTool("search_files", "Searches the lines of all text files below a directory with a regular expression (RE2). Each match is a line: path, line number, text. Of a long line a window around the match is shown, with its offset for read_file. Binary files are skipped and symbolic links not followed.",
			func(ctx context.Context, _ *psych.Call, in searchInput) (*psych.Result, error) {
				return t.searchFiles(ctx, in)
			}, o),
	}
}

// answer is a result whose bytes are counted as they are read.
func answer(c *counter, body io.Reader) *psych.Result {
	return &psych.Result{ContentType: "text/plain", Body: &countedReader{body, c}}
}

// failure is a tool's own failure, short enough never to be cut.
func failure(c *counter, format string, args ...any) *psych.Result {
	c.failures.Add(1)
	r := answer(c, strings.NewReader(fmt.Sprintf(format, args...)))
	r.IsError = true
	return r
}

// why says what went wrong with a path, without the path: errors of package os
// may hold the root's own.
func (t *Tools) why(err error) string {
	switch {
	case t.escapes != nil && errors.Is(err, t.escapes):
		return "it leads outside of the root"
	case errors.Is(err, fs.ErrNotExist):
		return "no such file or directory"
	case errors.Is(err, fs.ErrPermission):
		return "permission denied"
	case errors.Is(err, fs.ErrClosed):
		return "the root has been closed"
	}
	return innermost(err).Error()
}

func innermost(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}
