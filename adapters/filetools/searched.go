package filetools

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"unicode/utf8"
)

const (
	searchChunk = 256 << 10 // bytes of a file in memory; longer lines are searched in pieces of it
	overlap     = 16 << 10  // bytes that two pieces of a line share
	longLine    = 2000      // characters; of a longer line windows are shown
	windowBytes = 2000      // of a window at most
	around      = 200       // bytes of a window on each side of its match
)

// A searched is a file in the course of a search: buf holds a stretch of it.
type searched struct {
	f     *os.File
	path  string
	shown string      // path as it stands in the answer
	info  fs.FileInfo // when it was opened
	buf   []byte
	n     int  // bytes in buf
	eof   bool // they are the file's last
	lines int  // that matched, so far

	line    int64 // the number of the line that is next, from 1
	counted bool  // it is one of lines

	// While the next line is longer than buf.
	inLine bool
	first  bool // buf has its beginning
	base   int  // where in buf its next piece begins; a window may show what is before

	from, to int // where in buf the window is that is not yet shown; none where they are equal

	mark      int   // a place in buf,
	markChars int64 // and how many characters are before it in the file
}

// check reads the file to see whether it is text (if not, errBinary), and
// leaves it at its beginning. A file that fits in buf is read just once.
func (s *searched) check(ctx context.Context) error {
	if err := s.fill(); err != nil {
		return err
	}
	if s.eof {
		if !utf8.Valid(s.buf[:s.n]) {
			return errBinary
		}
		return nil
	}
	s.n = 0
	for t := (textReader{r: io.NewSectionReader(s.f, 0, 1<<62), buf: s.buf}); ; {
		if _, err := t.next(ctx); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
	}
	_, err := s.f.Seek(0, io.SeekStart)
	return err
}

func (s *searched) fill() error {
	if s.eof {
		return nil
	}
	n, err := io.ReadFull(s.f, s.buf[s.n:])
	s.n += n
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		s.eof, err = true, nil
	}
	return err
}

// chunk searches what fits in buf, and reports whether there is more.
func (s *searched) chunk(m *matcher, b *body) (more bool, err error) {
	if err := s.fill(); err != nil {
		return false, err
	}
	if s.inLine {
		s.searchPiece(m, b)
		return true, nil
	}
	if s.eof {
		s.searchLines(m, b, s.buf[:s.n])
		s.noteChange(b)
		return false, nil
	}
	end := bytes.LastIndexByte(s.buf[:s.n], '\n') + 1
	if end == 0 {
		s.inLine, s.first, s.base = true, true, 0
		return true, nil
	}
	s.searchLines(m, b, s.buf[:end])
	s.drop(end)
	return true, nil
}

// noteChange tells where what was shown may be of two states of the file.
func (s *searched) noteChange(b *body) {
	now, err := s.f.Stat()
	if err != nil || now.Size() != s.info.Size() || !now.ModTime().Equal(s.info.ModTime()) {
		b.note("incomplete", s.path, "it changed while it was searched")
	}
}

// searchLines searches text, the beginning of buf, which is whole lines.
func (s *searched) searchLines(m *matcher, b *body, text []byte) {
	for pos := 0; pos < len(text) && !b.truncated; {
		if len(m.prefix) > 0 {
			i := bytes.Index(text[pos:], m.prefix)
			if i < 0 {
				s.line += int64(bytes.Count(text[pos:], []byte{'\n'}))
				return
			}
			begin := pos + bytes.LastIndexByte(text[pos:pos+i], '\n') + 1
			s.line += int64(bytes.Count(text[pos:begin], []byte{'\n'}))
			pos = begin
		}
		end, next := len(text), len(text)
		if i := bytes.IndexByte(text[pos:], '\n'); i >= 0 {
			end, next = pos+i, pos+i+1
		}
		line := bytes.TrimSuffix(text[pos:end], []byte{'\r'})
		if m.re.Match(line) {
			if len(line) <= longLine || runeStarts(line) <= longLine {
				s.show(b, "", line)
			} else {
				s.showWindows(b, window{pos, pos + len(line), true, true}, spans(m.re, line, pos))
			}
		}
		s.endLine()
		pos = next
	}
}

func (s *searched) endLine() {
	s.line++
	s.counted = false
}

// searchPiece searches a piece of a line that is longer than buf. Two pieces
// overlap; of a match that begins in what they share the later one tells.
func (s *searched) searchPiece(m *matcher, b *body) {
	data := s.buf[:s.n]
	end, next, last := len(data), len(data), s.eof
	if i := bytes.IndexByte(data[s.base:], '\n'); i >= 0 {
		end, next, last = s.base+i, s.base+i+1, true
	}
	if !last {
		end = wholeRunes(data)
	}
	piece := data[s.base:end]
	if last {
		piece = bytes.TrimSuffix(piece, []byte{'\r'})
	}
	found := spans(m.piece(s.first, last), piece, s.base)
	from := end - overlap
	if !last {
		for len(found) > 0 && found[len(found)-1][0] >= from {
			found = found[:len(found)-1]
		}
		if len(found) > 0 {
			from = max(from, found[len(found)-1][1])
		}
	}
	line := window{0, s.base + len(piece), s.first, last}
	s.showWindows(b, line, found)
	if last {
		s.endLine()
		s.inLine, s.base = false, 0
		s.drop(next)
		return
	}
	from = alignDown(data[:end], from)
	left := alignDown(data[:end], max(0, from-around))
	if s.to >= left && s.from < s.to {
		left = min(left, s.from) // the next piece may add to it
	} else {
		s.flush(b, line)
	}
	s.first, s.base = false, from-left
	s.drop(left)
}

// spans is where in buf the matches in text are, which stands there at base.
func spans(re *regexp.Regexp, text []byte, base int) [][]int {
	found := re.FindAllIndex(text, -1)
	for _, f := range found {
		f[0] += base
		f[1] += base
	}
	return found
}

// A window is a stretch of buf that lies in one line, and whether it reaches
// to that line's ends.
type window struct {
	from, to    int
	first, last bool
}

// showWindows shows the surroundings of each match in line, joined where they
// overlap, as long as that is not too long for one window. What one window
// shows no other does. The last window waits while the line goes on.
func (s *searched) showWindows(b *body, line window, found [][]int) {
	data := s.buf[:line.to]
	for _, f := range found {
		from := alignDown(data, max(line.from, f[0]-around))
		to := alignDown(data, min(line.to, f[1]+around, f[0]+windowBytes-around))
		if s.from == s.to || from > s.to || to-s.from > windowBytes {
			s.flush(b, line)
			s.from = max(from, s.to)
		}
		s.to = max(to, s.to)
	}
	if line.last {
		s.flush(b, line)
		s.from, s.to = 0, 0
	}
}

func (s *searched) flush(b *body, line window) {
	if s.from < s.to && !b.truncated {
		text := make([]byte, 0, s.to-s.from+2*len("…"))
		if s.from > line.from || !line.first {
			text = append(text, "…"...)
		}
		text = append(text, s.buf[s.from:s.to]...)
		if s.to < line.to || !line.last {
			text = append(text, "…"...)
		}
		s.show(b, "[offset "+strconv.FormatInt(s.charsBefore(s.from), 10)+"] ", text)
	}
	s.from = s.to
}

// charsBefore is how many characters of the file are before buf[i].
func (s *searched) charsBefore(i int) int64 {
	if i >= s.mark {
		s.markChars += int64(runeStarts(s.buf[s.mark:i]))
	} else {
		s.markChars -= int64(runeStarts(s.buf[i:s.mark]))
	}
	s.mark = i
	return s.markChars
}

// drop lets go of the first k bytes of buf.
func (s *searched) drop(k int) {
	s.charsBefore(k)
	s.mark = 0
	s.from, s.to = max(0, s.from-k), max(0, s.to-k)
	s.n = copy(s.buf, s.buf[k:s.n])
}

// show is one line of the answer.
func (s *searched) show(b *body, where string, text []byte) {
	if !utf8.Valid(text) {
		text = bytes.ToValidUTF8(text, []byte("\uFFFD")) // it changed since it was checked
	}
	start := len(b.out)
	b.out = append(append(b.out, s.shown...), ':')
	b.out = append(strconv.AppendInt(b.out, s.line, 10), ": "...)
	b.out = append(append(append(b.out, where...), text...), '\n')
	if b.keep(start) && !s.counted {
		s.counted = true
		s.lines++
	}
}
