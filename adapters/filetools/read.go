package filetools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"

	"github.com/psych-go/psych-go/psych"
)

// readChunk is how much of a file is looked at at once: it stays in a
// processor's cache while it is validated, counted and cut.
const readChunk = 128 << 10

// A readHeader is the first line of an answer of read_file. Bytes and Type
// stand in place of the totals where the file is binary.
type readHeader struct {
	TotalChars *int64 `json:"total_chars,omitempty"`
	TotalLines *int64 `json:"total_lines,omitempty"`
	Offset     int64  `json:"offset"`
	NextOffset int64  `json:"next_offset,omitempty"`
	Truncated  bool   `json:"truncated"`
	Unit       string `json:"unit"`
	Binary     bool   `json:"binary,omitempty"`
	Bytes      int64  `json:"bytes,omitempty"`
	Type       string `json:"type,omitempty"`
}

// readFile answers with a page of a file. An error is ctx's; every other one
// is a failure of the tool.
func (t *Tools) readFile(ctx context.Context, in readInput) (*psych.Result, error) {
	c := &t.read
	c.calls.Add(1)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("filetools: read_file: %w", err)
	}
	switch {
	case in.Offset < 0:
		return failure(c, "offset is %d: want a character from 0", in.Offset), nil
	case in.Limit < 0:
		return failure(c, "limit is %d: want a number of characters, at most %d", in.Limit, psych.PageChars), nil
	case in.Limit == 0 || in.Limit > psych.PageChars:
		in.Limit = psych.PageChars
	}
	name, problem := cleanPath(in.Path)
	if problem != "" {
		return failure(c, "can't read %s: %s", named(in.Path), problem), nil
	}
	f, info, err := t.openRegular(name)
	switch {
	case errors.Is(err, errNotRegular) && info.IsDir():
		return failure(c, "can't read %s: it is a directory; list_files shows what it holds", named(in.Path)), nil
	case errors.Is(err, errNotRegular):
		return failure(c, "can't read %s: it is no regular file but a %s", named(in.Path), kind(info.Mode())), nil
	case err != nil:
		return failure(c, "can't read %s: %s", named(in.Path), t.why(err)), nil
	}
	defer f.Close()

	// One byte more than the file has, so that one read finds its end.
	buf := make([]byte, min(max(info.Size()+1, 4<<10), readChunk))
	p, err := readPage(ctx, f, in.Offset, in.Limit, buf)
	switch {
	case err == nil:
		return answer(c, p.body()), nil
	case errors.Is(err, errBinary):
		return answer(c, binaryBody(f, info)), nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("filetools: read_file: %w", ctx.Err())
	}
	return failure(c, "can't read %s: %s", named(in.Path), t.why(err)), nil
}

// A page is a window of a text, and the size of all of it.
type page struct {
	offset, chars, lines int64
	taken                int64 // characters of text
	text                 []byte
}

// readPage reads r to its end, in buf, and keeps limit characters from offset.
func readPage(ctx context.Context, r io.Reader, offset, limit int64, buf []byte) (*page, error) {
	p := &page{offset: offset}
	t := textReader{r: r, buf: buf}
	newline := true
	for {
		b, err := t.next(ctx)
		if err == io.EOF {
			if !newline {
				p.lines++ // the last line has no end
			}
			return p, nil
		}
		if err != nil {
			return nil, err
		}
		n := int64(runeStarts(b))
		if p.taken < limit && p.chars+n > offset {
			skip := max(0, offset-p.chars)
			want := min(limit-p.taken, n-skip)
			part := b[runeIndex(b, int(skip)):]
			p.text = append(p.text, part[:runeIndex(part, int(want))]...)
			p.taken += want
		}
		p.chars += n
		p.lines += int64(bytes.Count(b, []byte{'\n'}))
		newline = b[len(b)-1] == '\n'
	}
}

func (p *page) body() io.Reader {
	h := readHeader{TotalChars: &p.chars, TotalLines: &p.lines, Offset: p.offset, Unit: "chars"}
	if next := p.offset + p.taken; p.taken > 0 && next < p.chars {
		h.NextOffset, h.Truncated = next, true
	}
	return h.before(p.text)
}

func (h *readHeader) before(text []byte) io.Reader {
	line, err := json.Marshal(h)
	if err != nil {
		panic(err) // numbers and plain strings always encode
	}
	return io.MultiReader(bytes.NewReader(append(line, '\n')), bytes.NewReader(text))
}

// binaryBody says that a file is binary, and what it seems to be.
func binaryBody(f io.ReaderAt, info fs.FileInfo) io.Reader {
	var head [512]byte
	n, _ := f.ReadAt(head[:], 0) // what can't be read only leaves the type open
	h := readHeader{Unit: "bytes", Binary: true, Bytes: info.Size(), Type: "application/octet-stream"}
	if n > 0 {
		h.Type = http.DetectContentType(head[:n])
	}
	return h.before(fmt.Appendf(nil, "[binary, %d bytes, %s: not shown]\n", h.Bytes, h.Type))
}
