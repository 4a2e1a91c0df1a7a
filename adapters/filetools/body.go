package filetools

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"strconv"
)

// A source produces an answer line by line.
type source interface {
	// next appends lines to b by way of b.keep, and reports whether there may
	// be more.
	next(ctx context.Context, b *body) bool

	// summary is what the last line says, without brackets.
	summary() string

	// close lets go of open files.
	close()
}

// A body is an answer that is made while it is read, so that none of it is
// kept and nothing runs once its reader stops. It ends with ctx's error when
// ctx does.
type body struct {
	ctx       context.Context
	what      string // the tool's name
	src       source
	limit     int64
	out       []byte // made and not yet read
	read      int    // of out
	sent      int64  // bytes that were read before out
	truncated bool
	err       error // what follows out; nil while there is more to make
}

func (b *body) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if b.read == len(b.out) {
		if b.err == nil {
			b.fill(len(p))
		}
		if b.read == len(b.out) {
			return 0, b.err
		}
	}
	n := copy(p, b.out[b.read:])
	b.read += n
	return n, nil
}

// fill makes n bytes or what there is.
func (b *body) fill(n int) {
	b.sent += int64(len(b.out))
	b.out, b.read = b.out[:0], 0
	for b.err == nil && len(b.out) < n {
		more := b.src.next(b.ctx, b)
		if err := b.ctx.Err(); err != nil {
			b.out = b.out[:0]
			b.end(fmt.Errorf("filetools: %s: %w", b.what, err))
		} else if !more || b.truncated {
			b.end(io.EOF)
			format := "[%s]\n"
			if b.truncated {
				format = "[truncated, there is more than " + strconv.FormatInt(b.limit, 10) + " bytes: %s; narrow it down by path or pattern]\n"
			}
			b.out = fmt.Appendf(b.out, format, b.src.summary())
		}
	}
}

func (b *body) end(err error) {
	if b.err == nil {
		b.err = err
		b.src.close()
	}
}

// Close lets go of what is open; an answer that was not read to its end can't
// be read on.
func (b *body) Close() error {
	if b.err == nil {
		b.out, b.read = nil, 0
		b.end(fmt.Errorf("filetools: %s: %w", b.what, fs.ErrClosed))
	}
	return nil
}

// keep makes what was appended to b.out since start part of the answer, or
// takes it back where the answer is full.
func (b *body) keep(start int) bool {
	if b.sent+int64(len(b.out)) > b.limit {
		b.out, b.truncated = b.out[:start], true
	}
	return !b.truncated
}

// note tells of a file, in a line that no file's content can look like.
func (b *body) note(what, path, why string) bool {
	start := len(b.out)
	b.out = fmt.Appendf(b.out, "[%s %s: %s]\n", what, showPath(path), why)
	return b.keep(start)
}
