package s3blob

import (
	"context"
	"fmt"
	"io"

	"github.com/psych-go/psych-go/psych"
)

// A reader hands out exactly the bytes that an answer promised, or fails.
type reader struct {
	ctx   context.Context
	s     *Store
	key   psych.BlobKey
	body  io.ReadCloser
	left  int64
	whole bool // the body ends where left does
	err   error
}

func (r *reader) Read(p []byte) (int, error) {
	switch {
	case r.err != nil:
	case r.left == 0:
		r.err = io.EOF
	case r.ctx.Err() != nil: // what the connection holds already would hide it
		r.err = r.s.fail(r.ctx, "read", r.key, r.ctx.Err())
	}
	if r.err != nil || len(p) == 0 {
		return 0, r.err
	}
	n, err := r.body.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	switch {
	case r.left > 0 && err == io.EOF:
		err = io.ErrUnexpectedEOF
	case r.left == 0 && r.whole:
		err = r.end(err)
	case r.left == 0 && err == io.EOF:
		err = nil
	}
	if err == nil {
		return n, nil
	}
	r.err = r.s.fail(r.ctx, "read", r.key, err)
	if r.left == 0 {
		return 0, r.err // with the last bytes nobody would look at the error
	}
	return n, r.err
}

// end reads the end of the body, where the SDK compares the checksum, before
// the last bytes are handed out: a caller that knows the length reads no
// further.
func (r *reader) end(err error) error {
	var more [1]byte
	for range 100 {
		if err != nil {
			break
		}
		var n int
		if n, err = r.body.Read(more[:]); n > 0 {
			return &foreignError{"more bytes than it announced"}
		}
	}
	switch {
	case err == io.EOF:
		return nil
	case err == nil:
		return io.ErrNoProgress
	case r.ctx.Err() != nil || transient(err):
		return err
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

func (r *reader) Close() error {
	// What closing a connection reports concerns nobody: the bytes are read.
	_ = r.body.Close()
	if r.err == nil {
		r.err = fmt.Errorf("s3blob: read %s: the reader is closed: %w", r.key, psych.ErrInvalid)
	}
	return nil
}
