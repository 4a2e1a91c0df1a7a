// Package textwin measures text while it streams past, and reads windows of
// it later without reading the rest.
//
// A [Meter] sees every byte once and keeps a few kilobytes: the sizes in bytes,
// characters and lines, a digest, both ends, and a sparse index. With these a
// [Text] finds any window by ranged reads: it starts at the last mark of the
// index before the window, so that what is read depends on the distance of two
// marks and on the size of a page, never on where the window lies or on how
// long its lines are. A search streams through a buffer of fixed size.
//
// A character is a Unicode code point. A line ends with a line feed, which
// belongs to it; what follows the last line feed is a line if it isn't empty.
// All offsets are from 0.
package textwin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// Bounds of what is shown, in characters.
const (
	PageChars = 20000 // of a window, whatever its limit asks for
	LineChars = 2000  // a longer line is cut, and a match in it shown with what is around it
)

// ScanBytes is behind how many bytes a search stops, at the next border of its
// buffer, or of the index where it began in the middle of a text.
const ScanBytes = 256 << 20

// Errors of this package.
var (
	ErrArgument = errors.New("invalid argument")            // a negative offset or limit, an illegal pattern
	ErrChanged  = errors.New("text differs from its facts") // the reader has other bytes than were measured
)

// A Text is valid UTF-8 that was measured, and a way to read ranges of it.
type Text struct {
	Size, Chars, Lines int64
	Index              []byte // of the Meter; without it windows are counted from the start
	Scan               int64  // in place of ScanBytes; at least 512 KiB

	// Open reads length bytes from offset, which lie within Size.
	Open func(ctx context.Context, offset, length int64) (io.ReadCloser, error)

	test *bounds // smaller ones, so that tests reach them
}

// bounds are sizes in characters, and in bytes for skip, buffer, overlap and scan.
type bounds struct {
	page, line    int64
	around, match int64 // of a long line: shown on each side of a match, and of the match itself
	skip          int64 // what a window by lines reads behind its first line at the most
	buffer        int   // of a search; a line that fits is searched whole
	overlap       int   // in longer lines: any match up to this size is found as a whole
	aside         int64 // characters of a line of context
	scan          int64 // bytes behind which a search stops, at least two buffers
}

var standard = bounds{
	page: PageChars, line: LineChars,
	around: 200, match: 1000,
	skip:   utf8.UTFMax*PageChars + 256<<10,
	buffer: 256 << 10, overlap: 32 << 10,
	aside: 400,
	scan:  ScanBytes,
}

func (t *Text) bounds() *bounds {
	if t.test != nil {
		return t.test
	}
	return &standard
}

// A Window is a part of a text.
type Window struct {
	Text []byte
	Next int64 // the offset to go on at, where More is set
	More bool
	Cut  bool // a line, or a match, is not shown to its end

	// Of a search.
	From    int64 // the Search.From to go on with, where More is set
	Matches int64 // occurrences from Search.From to where it ended
	Counted bool  // these are all of the text
}

// check gives a limit its default and bound.
func (t *Text) check(offset, limit int64) (int64, error) {
	if offset < 0 {
		return 0, fmt.Errorf("%w: offset %d is negative", ErrArgument, offset)
	}
	if limit < 0 {
		return 0, fmt.Errorf("%w: limit %d is negative", ErrArgument, limit)
	}
	if limit == 0 || limit > t.bounds().page {
		limit = t.bounds().page
	}
	return limit, nil
}

// ByChars returns limit characters from offset, byte for byte; limit 0, or one
// over [PageChars], is a page. Past the end is empty. It makes one ranged read.
func (t *Text) ByChars(ctx context.Context, offset, limit int64) (*Window, error) {
	limit, err := t.check(offset, limit)
	if err != nil {
		return nil, err
	}
	if offset >= t.Chars {
		return &Window{}, nil
	}
	limit = min(limit, t.Chars-offset)
	marks := t.marks()
	from, to := marks[0], t.Size
	for _, m := range marks {
		if m.chars <= offset {
			from = m
		} else if m.chars >= offset+limit {
			// The last character may go on behind the mark.
			to = min(to, m.at+utf8.UTFMax-1)
			break
		}
	}
	c, err := t.open(ctx, from.at, to)
	if err != nil {
		return nil, err
	}
	defer c.close()
	if _, err := c.chars(nil, offset-from.chars); err != nil {
		return nil, t.short(err)
	}
	out, err := c.chars(make([]byte, 0, min(utf8.UTFMax*limit, t.Size)), limit)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if int64(utf8.RuneCount(out)) != limit {
		return nil, ErrChanged
	}
	return &Window{Text: out, Next: offset + limit, More: offset+limit < t.Chars}, nil
}

// ByLines returns limit lines from offset; limit 0, or one that is more than a
// page holds, is a page. A line over [LineChars] is cut, and in the place of
// its rest stands the offset in characters at which it goes on. Past the end
// is empty. It makes one ranged read, and ends the window early rather than
// reading far through what it doesn't show.
func (t *Text) ByLines(ctx context.Context, offset, limit int64) (*Window, error) {
	limit, err := t.check(offset, limit)
	if err != nil {
		return nil, err
	}
	if offset >= t.Lines {
		return &Window{}, nil
	}
	limit = min(limit, t.Lines-offset)
	b, marks := t.bounds(), t.marks()
	from, to := marks[0], t.Size
	for _, m := range marks {
		switch {
		case m.lines < offset:
			from = m
			continue
		case m.lines >= offset+limit:
			to = min(to, m.at)
		case m.at > 0:
			// The first line begins before this mark.
			to = min(to, m.at+b.skip)
			continue
		default:
			continue
		}
		break
	}
	c, err := t.open(ctx, from.at, to)
	if err != nil {
		return nil, err
	}
	defer c.close()
	at, err := c.skipLines(offset - from.lines) // characters before the cursor
	if err != nil {
		return nil, t.short(err)
	}
	at += from.chars

	w := &Window{}
	line, shown := offset, int64(0)
	for line < offset+limit {
		out, n, end, err := c.line(w.Text, b.line)
		if err != nil {
			return nil, err
		}
		if end == rangeEnd && to < t.Size || end == rangeEnd && n == 0 {
			break // the line isn't here as a whole
		}
		at += n
		switch end {
		case lineFeed:
			n++
			at++
		case lineCut:
			note := cutNote(at) + "\n"
			out = append(out, note...)
			n += int64(utf8.RuneCountInString(note))
		}
		if shown+n > b.page && line > offset {
			break
		}
		w.Text, shown = out, shown+n
		line++
		if end != lineCut {
			continue
		}
		w.Cut = true
		if line == offset+limit {
			break
		}
		n, err = c.skipLines(1)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		at += n
	}
	if line == offset {
		return nil, ErrChanged
	}
	w.Next, w.More = line, line < t.Lines
	return w, nil
}

// cutNote stands in place of the rest of a line, which begins at a character.
func cutNote(at int64) string {
	return fmt.Sprintf("… [line cut: it goes on at character %d, read on there with unit \"chars\"]", at)
}

// short explains a range that ended before the window began.
func (t *Text) short(err error) error {
	if err == io.EOF {
		return ErrChanged
	}
	return err
}

// open reads the range from one offset in bytes to another.
func (t *Text) open(ctx context.Context, from, to int64) (*cursor, error) {
	r, err := t.Open(ctx, from, to-from)
	if err != nil {
		return nil, err
	}
	return &cursor{ctx: ctx, r: r, buf: make([]byte, min(32<<10, to-from)), left: to - from}, nil
}
