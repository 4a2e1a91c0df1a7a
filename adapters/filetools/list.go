package filetools

import (
	"context"
	"fmt"
	"strconv"

	"github.com/psych-go/psych-go/psych"
)

// listFiles answers with a directory's tree. An error is ctx's; every other
// one is a failure of the tool.
func (t *Tools) listFiles(ctx context.Context, in listInput) (*psych.Result, error) {
	c := &t.list
	c.calls.Add(1)
	g, err := compileGlob(in.Pattern)
	if err != nil {
		return failure(c, "pattern %s is no glob: %v", named(in.Pattern), err), nil
	}
	w, failed, err := t.begin(ctx, c, "list_files", in.Path)
	if w == nil {
		return failed, err
	}
	return answer(c, &body{ctx: ctx, what: "list_files", limit: t.maxBytes, src: &listing{t: t, w: w, glob: g}}), nil
}

// begin starts a walk, or says why there is none.
func (t *Tools) begin(ctx context.Context, c *counter, what, path string) (*walker, *psych.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("filetools: %s: %w", what, err)
	}
	start, problem := cleanPath(path)
	if problem == "" {
		w, err := t.walk(ctx, start)
		if err == nil {
			return w, nil, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, nil, fmt.Errorf("filetools: %s: %w", what, err)
		}
		problem = t.why(err)
	}
	verb := "list"
	if what == "search_files" {
		verb = "search"
	}
	return nil, failure(c, "can't %s %s: %s", verb, named(path), problem), nil
}

type listing struct {
	t    *Tools
	w    *walker
	glob *glob

	shown, skipped int
	bytes          int64
}

func (l *listing) next(ctx context.Context, b *body) bool {
	e, ok := l.w.next(ctx)
	switch {
	case !ok:
		return false
	case e.err != nil:
		if b.note("skipped", e.path, l.t.why(e.err)) {
			l.skipped++
		}
		return true
	case !l.glob.match(e.rel):
		return true
	}
	start := len(b.out)
	name, size := e.path, "-"
	if e.info.IsDir() {
		name += "/"
	}
	if e.info.Mode().IsRegular() {
		size = strconv.FormatInt(e.info.Size(), 10)
	}
	b.out = append(b.out, showPath(name)...)
	b.out = append(append(b.out, '\t'), size...)
	b.out = append(append(b.out, '\t'), kind(e.info.Mode())...)
	b.out = append(b.out, '\n')
	if b.keep(start) {
		l.shown++
		if e.info.Mode().IsRegular() {
			l.bytes += e.info.Size()
		}
	}
	return true
}

func (l *listing) summary() string {
	s := fmt.Sprintf("%d listed, files of %d bytes", l.shown, l.bytes)
	if l.skipped > 0 {
		s += fmt.Sprintf(", %d skipped", l.skipped)
	}
	return s
}

func (l *listing) close() {}
