package textwin

import (
	"bytes"
	"context"
	"fmt"
	"io"
)

// A cursor goes through a range. Its methods return io.EOF at the range's end,
// and an error matching ErrChanged if the reader ends before it.
type cursor struct {
	ctx  context.Context
	r    io.ReadCloser
	buf  []byte
	b    []byte // read and not consumed
	left int64  // not read
}

func (c *cursor) close() { c.r.Close() }

// fill makes b non-empty.
func (c *cursor) fill() error {
	if len(c.b) > 0 {
		return nil
	}
	n, err := c.read(c.buf)
	c.b = c.buf[:n]
	return err
}

// read reads once into p. It returns an error only without bytes.
func (c *cursor) read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > c.left {
		p = p[:c.left]
	}
	for range 100 {
		if err := c.ctx.Err(); err != nil {
			return 0, err
		}
		n, err := c.r.Read(p)
		if n > 0 {
			c.left -= int64(n)
			return n, nil
		}
		if err == io.EOF {
			return 0, fmt.Errorf("%w: %d bytes are missing", ErrChanged, c.left)
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, io.ErrNoProgress
}

// chars appends what stands before the n-th character from here, counted from
// 0, to dst, unless that is nil. The rest of a character that began before the
// range does not count.
func (c *cursor) chars(dst []byte, n int64) ([]byte, error) {
	for {
		if err := c.fill(); err != nil {
			return dst, err
		}
		i, k := nthStart(c.b, n)
		if dst != nil {
			dst = append(dst, c.b[:i]...)
		}
		found := i < len(c.b)
		c.b = c.b[i:]
		if found {
			return dst, nil
		}
		n -= k
	}
}

// skipLines goes past n line feeds and returns the number of characters that
// began there.
func (c *cursor) skipLines(n int64) (chars int64, err error) {
	for n > 0 {
		if err := c.fill(); err != nil {
			return chars, err
		}
		i := len(c.b)
		if k := int64(bytes.Count(c.b, newline)); k < n {
			n -= k
		} else {
			for i = 0; n > 0; n-- {
				i += bytes.IndexByte(c.b[i:], '\n') + 1
			}
		}
		chars += starts(c.b[:i])
		c.b = c.b[i:]
	}
	return chars, nil
}

type lineEnd int

const (
	lineFeed lineEnd = iota // appended too
	lineCut                 // there are more than max characters
	rangeEnd
)

// line appends at most max characters of a line, and its line feed.
func (c *cursor) line(dst []byte, max int64) (out []byte, chars int64, end lineEnd, err error) {
	for {
		if err := c.fill(); err == io.EOF {
			return dst, chars, rangeEnd, nil
		} else if err != nil {
			return dst, chars, 0, err
		}
		b := c.b
		feed := bytes.IndexByte(b, '\n')
		if feed >= 0 {
			b = b[:feed]
		}
		i, k := nthStart(b, max-chars)
		dst = append(dst, b[:i]...)
		c.b = c.b[i:]
		chars += k
		switch {
		case i < len(b):
			return dst, chars, lineCut, nil
		case feed >= 0:
			c.b = c.b[1:]
			return append(dst, '\n'), chars, lineFeed, nil
		}
	}
}
