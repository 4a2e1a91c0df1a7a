package textwin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// A source counts the ranged reads of a text and the bytes that they gave.
type source struct {
	b            []byte
	opens, bytes int64
	most         int // of one Read; 0: all
}

func (s *source) Open(_ context.Context, offset, length int64) (io.ReadCloser, error) {
	if offset < 0 || length < 0 || offset+length > int64(len(s.b)) {
		return nil, fmt.Errorf("range %d+%d of %d bytes", offset, length, len(s.b))
	}
	s.opens++
	return &sourceReader{s, s.b[offset : offset+length]}, nil
}

type sourceReader struct {
	s *source
	b []byte
}

func (r *sourceReader) Read(p []byte) (int, error) {
	if len(r.b) == 0 {
		return 0, io.EOF
	}
	if r.s.most > 0 && len(p) > r.s.most {
		p = p[:r.s.most]
	}
	n := copy(p, r.b)
	r.b = r.b[n:]
	r.s.bytes += int64(n)
	return n, nil
}

func (r *sourceReader) Close() error { return nil }

// textOf measures b and makes a Text that counts its reads.
func textOf(b []byte) (*Text, *source) {
	m := NewMeter(0)
	m.Write(b)
	f := m.Facts()
	s := &source{b: b}
	return &Text{Size: f.Size, Chars: f.Chars, Lines: f.Lines, Index: f.Index, Open: s.Open}, s
}

// small are bounds that short texts reach.
var small = bounds{page: 160, line: 20, around: 3, match: 6, skip: 900, buffer: 256, overlap: 64, aside: 8, scan: 1 << 40}

func naiveLines(b []byte) []string {
	lines := strings.SplitAfter(string(b), "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

func naiveFacts(b []byte, keep int) Facts {
	f := Facts{Size: int64(len(b)), SHA256: sha256.Sum256(b), Binary: !utf8.Valid(b)}
	if f.Binary || len(b) == 0 {
		return f
	}
	r := []rune(string(b))
	f.Chars, f.Lines = int64(len(r)), int64(len(naiveLines(b)))
	f.Head, f.Tail = []byte(string(r[:min(keep, len(r))])), []byte(string(r[max(0, len(r)-keep):]))
	return f
}

func naiveChars(b []byte, offset, limit, page int64) *Window {
	r := []rune(string(b))
	n := int64(len(r))
	if offset >= n {
		return &Window{}
	}
	if limit == 0 || limit > page {
		limit = page
	}
	to := min(n, offset+limit)
	return &Window{Text: []byte(string(r[offset:to])), Next: to, More: to < n}
}

// naiveByLines doesn't end a window early for what it would have to skip.
func naiveByLines(b []byte, offset, limit int64, s *bounds) *Window {
	lines := naiveLines(b)
	n := int64(len(lines))
	if offset >= n {
		return &Window{}
	}
	if limit == 0 || limit > s.page {
		limit = s.page
	}
	w, used, at := &Window{}, int64(0), int64(0)
	for i, l := range lines {
		start := at
		at += int64(utf8.RuneCountInString(l))
		if int64(i) < offset {
			continue
		}
		cut := false
		if r := []rune(strings.TrimSuffix(l, "\n")); int64(len(r)) > s.line {
			l = string(r[:s.line]) + fmt.Sprintf("… [line cut: it goes on at character %d, read on there with unit \"chars\"]\n", start+s.line)
			cut = true
		}
		k := int64(utf8.RuneCountInString(l))
		if int64(i) == offset+limit || used > 0 && used+k > s.page {
			break
		}
		used += k
		w.Text = append(w.Text, l...)
		w.Cut = w.Cut || cut
		w.Next, w.More = int64(i)+1, int64(i)+1 < n
	}
	return w
}

// naiveGrep never stops, and begins at the first character.
func naiveGrep(b []byte, expr string, q Search, s *bounds) *Window {
	offset, limit := q.Offset, q.Limit
	if limit == 0 || limit > s.page {
		limit = s.page
	}
	re := regexp.MustCompile(expr)
	w := &Window{Counted: true}
	used, shown, start, full := int64(0), int64(0), int64(0), false
	lines := naiveLines(b)
	trim := func(l string) []rune {
		t := strings.TrimSuffix(l, "\n")
		if t != l {
			t = strings.TrimSuffix(t, "\r")
		}
		return []rune(t)
	}
	var starts []int64
	aside := func(i int) string {
		r := trim(lines[i])
		l := fmt.Sprintf("%d- ", i+1)
		if int64(len(r)) > s.aside {
			return l + string(r[:s.aside]) + fmt.Sprintf("… [line cut: it goes on at character %d, read on there with unit \"chars\"]\n", starts[i]+s.aside)
		}
		return l + string(r) + "\n"
	}
	printed, after := 0, int64(0)
	follow := func(to int) {
		for ; after > 0 && printed < to; after-- {
			l := aside(printed)
			w.Text = append(w.Text, l...)
			used += int64(utf8.RuneCountInString(l))
			printed++
		}
	}
	for i, l := range lines {
		before := start
		starts = append(starts, start)
		start += int64(utf8.RuneCountInString(l))
		r := trim(l)
		t := string(r)
		follow(i)
		pre := "" // the context before the line
		for k := max(printed, i-int(q.Context)); k < i; k++ {
			pre += aside(k)
		}
		piece, from, to := "", -1, 0 // what is shown of the line, in characters
		shownBefore := shown
		render := func(from, to int) string {
			p := fmt.Sprintf("%d: ", i+1)
			if int64(len(r)) > s.line {
				p += fmt.Sprintf("[character %d] ", before+int64(from))
				if from > 0 {
					p += "…"
				}
			}
			p += string(r[from:to])
			if to < len(r) {
				p += "…"
			}
			return p + "\n"
		}
		// What closes a part of a line is reckoned with two characters.
		fits := func(from, to int) bool {
			p := pre + render(from, to)
			n := int64(utf8.RuneCountInString(p))
			if int64(len(r)) > s.line && to == len(r) {
				n++
			}
			return used+n+q.Context*s.contextRoom() <= s.page
		}
		flush := func() {
			if piece != "" {
				piece, pre = pre+piece, ""
			}
			w.Text = append(w.Text, piece...)
			used += int64(utf8.RuneCountInString(piece))
			piece = ""
		}
		for _, m := range re.FindAllStringIndex(t, -1) {
			n := w.Matches
			w.Matches++
			if n < offset || shown == limit || full {
				continue
			}
			a, e := utf8.RuneCountInString(t[:m[0]]), utf8.RuneCountInString(t[:m[1]])
			if int64(len(r)) <= s.line {
				if piece == "" && !fits(0, len(r)) {
					full = true
					continue
				}
				piece = render(0, len(r))
				shown++
				continue
			}
			left, right := max(0, a-int(s.around)), min(len(r), min(e, a+int(s.match))+int(s.around))
			if piece != "" && left <= to {
				right = max(right, to)
			} else {
				flush()
				from = left
			}
			if right > to || piece == "" {
				if !fits(from, right) {
					full = true
					continue
				}
			}
			to = right
			piece = render(from, to)
			w.Cut = w.Cut || a+int(s.match) < e && to < e
			shown++
		}
		flush()
		if shown > shownBefore {
			printed, after = i+1, q.Context
		}
	}
	follow(len(lines))
	if next := offset + shown; next < w.Matches {
		w.Next, w.More = next, true
	}
	return w
}

// texts draws texts of short and long lines.
func texts() *rapid.Generator[[]byte] {
	word := rapid.SampledFrom([]string{
		"a", "b", "ab", "foo", "fo", " ", "  ", "\n", "\n", "\r\n", "\r", "é", "日本", "😀", "\x00", "\u2028", "_", "x=1;", ".",
		strings.Repeat("a", 70), strings.Repeat("b ", 150), strings.Repeat("é", 40),
	})
	return rapid.Custom(func(t *rapid.T) []byte {
		return []byte(strings.Join(rapid.SliceOfN(word, 0, 120).Draw(t, "words"), ""))
	})
}

func sameWindow(got, want *Window) error {
	if !bytes.Equal(got.Text, want.Text) {
		return fmt.Errorf("text\n%q, want\n%q", got.Text, want.Text)
	}
	g, w := *got, *want
	g.Text, w.Text = nil, nil
	if fmt.Sprintf("%+v", g) != fmt.Sprintf("%+v", w) {
		return fmt.Errorf("window %+v, want %+v, with text\n%q", g, w, got.Text)
	}
	return nil
}
