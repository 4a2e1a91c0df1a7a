package filetools

import (
	"context"
	"errors"
	"fmt"

	"github.com/psych-go/psych-go/psych"
)

// searchFiles answers with the matching lines of a tree. An error is ctx's;
// every other one is a failure of the tool.
//
// Lines end with LF or CR LF and are matched without. In a line of more than
// searchChunk bytes a match of up to overlap bytes is found whole.
func (t *Tools) searchFiles(ctx context.Context, in searchInput) (*psych.Result, error) {
	c := &t.search
	c.calls.Add(1)
	if in.Pattern == "" {
		return failure(c, "pattern is empty: give a regular expression in RE2 syntax"), nil
	}
	m, err := newMatcher(in.Pattern)
	if err != nil {
		return failure(c, "pattern %s is no regular expression in RE2 syntax: %s", named(in.Pattern), patternProblem(err)), nil
	}
	g, err := compileGlob(in.Glob)
	if err != nil {
		return failure(c, "glob %s is no glob: %v", named(in.Glob), err), nil
	}
	w, failed, err := t.begin(ctx, c, "search_files", in.Path)
	if w == nil {
		return failed, err
	}
	if e := w.pending; e != nil && !e.info.Mode().IsRegular() {
		return failure(c, "can't search %s: it is neither a directory nor a regular file but a %s", named(in.Path), kind(e.info.Mode())), nil
	}
	return answer(c, &body{ctx: ctx, what: "search_files", limit: t.maxBytes, src: &search{t: t, w: w, m: m, glob: g}}), nil
}

// A search is a walk with at most one file open.
type search struct {
	t    *Tools
	w    *walker
	m    *matcher
	glob *glob
	buf  []byte
	cur  *searched // nil between two files

	lines, hits, files, binary, skipped int
}

func (s *search) next(ctx context.Context, b *body) bool {
	if s.cur != nil {
		more, err := s.cur.chunk(s.m, b)
		if err != nil {
			s.skip(b, s.cur.path, err)
		}
		if err != nil || !more {
			s.close()
		}
		return true
	}
	e, ok := s.w.next(ctx)
	switch {
	case !ok:
		return false
	case e.err != nil:
		s.skip(b, e.path, e.err)
	case e.info.Mode().IsRegular() && s.glob.match(e.rel):
		switch err := s.open(ctx, e.path); {
		case err == nil:
			s.files++
		case errors.Is(err, errBinary):
			s.binary++
		default:
			s.skip(b, e.path, err)
		}
	}
	return true
}

// open begins a file, once it is known to be text to its end.
func (s *search) open(ctx context.Context, path string) error {
	f, info, err := s.t.openRegular(path)
	if err != nil {
		return err
	}
	if s.buf == nil {
		s.buf = make([]byte, searchChunk)
	}
	c := &searched{f: f, path: path, shown: showPath(path), info: info, buf: s.buf, line: 1}
	if err := c.check(ctx); err != nil {
		f.Close()
		return err
	}
	s.cur = c
	return nil
}

func (s *search) skip(b *body, path string, err error) {
	if b.note("skipped", path, s.t.why(err)) {
		s.skipped++
	}
}

func (s *search) close() {
	if s.cur != nil {
		s.cur.f.Close()
		s.lines += s.cur.lines
		if s.cur.lines > 0 {
			s.hits++
		}
		s.cur = nil
	}
}

func (s *search) summary() string {
	r := fmt.Sprintf("%d matching lines in %d files, %d files searched", s.lines, s.hits, s.files)
	if s.binary > 0 {
		r += fmt.Sprintf(", %d binary files not", s.binary)
	}
	if s.skipped > 0 {
		r += fmt.Sprintf(", %d skipped", s.skipped)
	}
	return r
}
