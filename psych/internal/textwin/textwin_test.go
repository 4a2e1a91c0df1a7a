package textwin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func sameFacts(got, want Facts) error {
	idx := got.Index
	got.Index = nil
	if fmt.Sprintf("%v %q %q", got, got.Head, got.Tail) != fmt.Sprintf("%v %q %q", want, want.Head, want.Tail) {
		return fmt.Errorf("facts %+v, want %+v", got, want)
	}
	if want.Binary && idx != nil {
		return errors.New("binary with an index")
	}
	return nil
}

func TestMeter(t *testing.T) {
	for _, s := range []string{
		"", "a", "\n", "a\n", "a\nb", "a\r\nb\r", "\r", "\u2028", "\u0085", "\x00", "é", "\xff", "a\xc3", "\xe2\x82", "\xf0\x9f\x98",
		"\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\x80", "日本\n😀", strings.Repeat("😀", 9000), strings.Repeat("ab\n", 9000) + "é",
	} {
		for _, size := range []int{1, 2, 3, 5, 4096, 1 << 20} {
			m := NewMeter(4)
			for b := []byte(s); len(b) > 0; b = b[min(size, len(b)):] {
				m.Write(b[:min(size, len(b))])
			}
			if err := sameFacts(m.Facts(), naiveFacts([]byte(s), 4)); err != nil {
				t.Errorf("%.40q in writes of %d: %v", s, size, err)
			}
		}
	}
}

func TestMeterProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.OneOf(texts(), rapid.SliceOf(rapid.Byte())).Draw(t, "text")
		b = bytes.Repeat(b, rapid.SampledFrom([]int{1, 1, 1, 50}).Draw(t, "times"))
		keep := rapid.IntRange(0, 30).Draw(t, "keep")
		m := NewMeter(keep)
		for rest := b; len(rest) > 0; {
			n := rapid.IntRange(0, min(len(rest), rapid.SampledFrom([]int{3, 100, 1 << 20}).Draw(t, "most"))).Draw(t, "n")
			m.Write(rest[:n])
			rest = rest[n:]
		}
		if err := sameFacts(m.Facts(), naiveFacts(b, keep)); err != nil {
			t.Fatal(err)
		}
		chars, lines, ok := Measure(b)
		if f := m.Facts(); ok == f.Binary || chars != f.Chars || lines != f.Lines {
			t.Fatalf("Measure %d %d %v, Meter %+v", chars, lines, ok, f)
		}
	})
}

// The index says the truth at each mark, and stays small, however often its
// stride doubled.
func TestIndex(t *testing.T) {
	unit := []byte("é\nab日\n\n" + strings.Repeat("x", 37))
	for _, size := range []int{0, 1, firstStride - 1, firstStride, firstStride + 1, 700_000, maxMarks * firstStride, maxMarks*firstStride + firstStride, 9_000_001} {
		b := bytes.Repeat(unit, size/len(unit)+1)[:size]
		b = b[:whole(b)]
		text, _ := textOf(b)
		marks := text.marks()
		if want := min(len(b), 200*firstStride) / firstStride; len(marks)-1 < want || len(marks)-1 > maxMarks {
			t.Errorf("size %d: %d marks", size, len(marks)-1)
		}
		last := mark{}
		for _, m := range marks {
			between := b[last.at:m.at]
			last = mark{m.at, last.chars + starts(between), last.lines + int64(bytes.Count(between, newline))}
			if m != last {
				t.Fatalf("size %d: mark %+v, want %+v", size, m, last)
			}
		}
		if len(text.Index) > 6<<10 {
			t.Errorf("size %d: index of %d bytes", size, len(text.Index))
		}
	}
	// The largest deltas, as for a petabyte.
	var marks []mark
	stride := int64(1) << 41
	for i := range int64(maxMarks) {
		marks = append(marks, mark{(i + 1) * stride, (i + 1) * (stride/2 - 1), (i + 1) * stride / 2})
	}
	if n := len(appendIndex(nil, stride, marks)); n > 8<<10 {
		t.Errorf("largest index has %d bytes", n)
	}
}

// An index that isn't understood costs time, never a wrong window.
func TestIndexDamaged(t *testing.T) {
	b := bytes.Repeat([]byte("é line\n"), 20_000)
	text, src := textOf(b)
	good := bytes.Clone(text.Index)
	want, _ := text.ByLines(context.Background(), 15_000, 3)
	for _, index := range [][]byte{nil, {2}, {9, 1, 2}, good[:1], good[:len(good)-1], append(bytes.Clone(good), 0), {1, 0, 0}, {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1}} {
		text.Index = index
		src.bytes = 0
		got, err := text.ByLines(context.Background(), 15_000, 3)
		if err != nil {
			t.Fatal(err)
		}
		if err := sameWindow(got, want); err != nil {
			t.Errorf("index %.10x: %v", index, err)
		}
		if src.bytes < 100_000 {
			t.Errorf("index %.10x was used", index)
		}
	}
}

func TestWindowProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := texts().Draw(t, "text")
		b = bytes.Repeat(b, rapid.SampledFrom([]int{1, 1, 20}).Draw(t, "times"))
		text, src := textOf(b)
		src.most = rapid.SampledFrom([]int{0, 1, 7}).Draw(t, "most")
		s := small
		s.skip = 1 << 30
		text.test = &s
		limit := rapid.Int64Range(0, 200).Draw(t, "limit")
		offset := rapid.Int64Range(0, text.Chars+2).Draw(t, "character")
		got, err := text.ByChars(context.Background(), offset, limit)
		if err != nil {
			t.Fatal(err)
		}
		if err := sameWindow(got, naiveChars(b, offset, limit, s.page)); err != nil {
			t.Fatalf("characters from %d: %v", offset, err)
		}
		offset = rapid.Int64Range(0, text.Lines+2).Draw(t, "line")
		if got, err = text.ByLines(context.Background(), offset, limit); err != nil {
			t.Fatal(err)
		}
		if err := sameWindow(got, naiveByLines(b, offset, limit, &s)); err != nil {
			t.Fatalf("lines from %d: %v", offset, err)
		}
		if src.opens > 2 {
			t.Fatalf("%d ranged reads for two windows", src.opens)
		}
	})
}

// Going on at Next shows every line, also where windows end early for what
// they would have to skip.
func TestPagesProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := bytes.Repeat(texts().Draw(t, "text"), rapid.SampledFrom([]int{1, 30}).Draw(t, "times"))
		text, _ := textOf(b)
		text.test = &small
		var lines, chars []byte
		for offset := int64(0); ; {
			w, err := text.ByLines(context.Background(), offset, 0)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, w.Text...)
			if !w.More {
				break
			}
			if w.Next <= offset {
				t.Fatalf("next %d at %d", w.Next, offset)
			}
			offset = w.Next
		}
		s := small
		s.page = 1 << 40
		if want := naiveByLines(b, 0, 0, &s); !bytes.Equal(lines, want.Text) {
			t.Fatalf("pages\n%q, want\n%q", lines, want.Text)
		}
		for offset := int64(0); ; {
			w, err := text.ByChars(context.Background(), offset, 0)
			if err != nil {
				t.Fatal(err)
			}
			chars = append(chars, w.Text...)
			if offset = w.Next; !w.More {
				break
			}
		}
		if !bytes.Equal(chars, b) {
			t.Fatalf("pages\n%q, want\n%q", chars, b)
		}
	})
}

// patterns match at most small.overlap bytes, or are found within the buffer.
var patterns = []string{
	"foo", "a", "é", "日", "😀", "o", ".", "^", "$", "^$", "", `\b`, `\B`, `\bfoo\b`, `^a`, `a$`, `\Aa`, `a\z`, `(?m)^f`, `(?m)o$`, "x*", "a?", "[^a]",
	`\s`, `\W{1,3}`, `(?s).`, `\n`, "a\nb", "\r", "\r$", `(?i)FOO`, "fo|foo", "(f)(o+)", "a{2,5}", "[a-f]{3}", `\x00`, "(foo){1}", "(b b){1,3} b?", "a{1,9}b", `\w{1,20}=\d`, `[^\n]b$`, "(?U)a{1,3}", "é{7}",
}

func TestGrepProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := texts().Draw(t, "text")
		expr := rapid.SampledFrom(patterns).Draw(t, "pattern")
		text, src := textOf(b)
		src.most = rapid.SampledFrom([]int{0, 1, 7}).Draw(t, "most")
		text.test = &small
		p, err := Compile(expr)
		if err != nil {
			t.Fatal(err)
		}
		offset, limit := rapid.Int64Range(0, 30).Draw(t, "offset"), rapid.Int64Range(0, 40).Draw(t, "limit")
		got, err := text.Grep(context.Background(), p, Search{Offset: offset, Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		if err := sameWindow(got, naiveGrep(b, expr, Search{Offset: offset, Limit: limit}, &small)); err != nil {
			t.Fatalf("%q from %d, limit %d: %v", expr, offset, limit, err)
		}
		if n := int64(utf8.RuneCount(got.Text)); n > small.page {
			t.Fatalf("page of %d characters", n)
		}
	})
}

// roomy are bounds in which lines of context fit.
var roomy = bounds{page: 2400, line: 20, around: 3, match: 6, skip: 900, buffer: 256, overlap: 64, aside: 8, scan: 1 << 40}

func TestContextProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := texts().Draw(t, "text")
		expr := rapid.SampledFrom(patterns).Draw(t, "pattern")
		text, _ := textOf(b)
		text.test = &roomy
		p, err := Compile(expr)
		if err != nil {
			t.Fatal(err)
		}
		q := Search{
			Offset:  rapid.Int64Range(0, 10).Draw(t, "offset"),
			Limit:   rapid.SampledFrom([]int64{0, 1, 2, 5}).Draw(t, "limit"),
			Context: rapid.Int64Range(0, 6).Draw(t, "context"),
		}
		got, err := text.Grep(context.Background(), p, q)
		if err != nil {
			t.Fatal(err)
		}
		if err := sameWindow(got, naiveGrep(b, expr, q, &roomy)); err != nil {
			t.Fatalf("%q %+v: %v", expr, q, err)
		}
		if n := int64(utf8.RuneCount(got.Text)); n > roomy.page {
			t.Fatalf("page of %d characters", n)
		}
	})
}

// A page holds a match with all of its context, however long the lines are.
func TestContextFits(t *testing.T) {
	for _, size := range []int{500, LineChars, LineChars + 1, 300_000} {
		line := strings.Repeat("é", size-6)
		b := []byte(strings.Repeat(line+"needle\n", 100))
		text, _ := textOf(b)
		p, _ := Compile("needle")
		w, err := text.Grep(context.Background(), p, Search{Context: MaxContext, Offset: 15})
		if err != nil {
			t.Fatal(err)
		}
		if n := utf8.RuneCount(w.Text); n > PageChars || w.Next <= 15 || w.Matches != 100 {
			t.Fatalf("size %d: page of %d characters, %d matches, next %d", size, n, w.Matches, w.Next)
		}
		lines := naiveLines(w.Text)
		if !strings.HasPrefix(lines[0], "6- ") || !strings.HasPrefix(lines[10], "16: ") || !strings.HasPrefix(lines[len(lines)-1], fmt.Sprintf("%d- ", w.Next+MaxContext)) {
			t.Fatalf("size %d: %.40q", size, lines)
		}
		if want := fmt.Sprintf("6- %s… [line cut: it goes on at character %d, read on", strings.Repeat("é", 400), 5*(size+1)+400); !strings.HasPrefix(lines[0], want) {
			t.Errorf("size %d: %.500q", size, lines[0])
		}
	}
}

// A search that stops goes on where it did, and finds what one that doesn't
// stop finds.
func TestSearchInParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := bytes.Repeat(texts().Draw(t, "text"), rapid.SampledFrom([]int{1, 5, 30, 400}).Draw(t, "times"))
		expr := rapid.SampledFrom(patterns).Draw(t, "pattern")
		if expr == "x*" || expr == "a?" {
			return // where they match nothing right behind a match depends on what is before
		}
		text, src := textOf(b)
		p, err := Compile(expr)
		if err != nil {
			t.Fatal(err)
		}
		part := small
		part.scan = rapid.SampledFrom([]int64{512, 700, 5000}).Draw(t, "scan")
		limit := rapid.SampledFrom([]int64{1, 3}).Draw(t, "limit")
		most := rapid.IntRange(1, 100).Draw(t, "most")
		pages := func(s *bounds, limit int64) (found []string) {
			text.test = s
			for q := (Search{Limit: limit}); len(found) < most; {
				src.bytes = 0
				w, err := text.Grep(context.Background(), p, q)
				if err != nil {
					t.Fatal(err)
				}
				if n := src.bytes; n > s.scan+firstStride+int64(s.buffer) {
					t.Fatalf("%d bytes were read", n)
				}
				if len(w.Text) > 0 {
					found = append(found, string(w.Text))
				}
				if !w.More {
					break
				}
				if w.From < q.From || w.From == q.From && w.Next <= q.Offset {
					t.Fatalf("%+v goes on at %d from %d", q, w.Next, w.From)
				}
				if w.Counted && w.From > 0 {
					t.Fatalf("counted, and goes on from %d", w.From)
				}
				q.Offset, q.From = w.Next, w.From
			}
			return found
		}
		whole := small
		want, got := pages(&whole, 1), pages(&part, 1)
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i] != want[i] {
				t.Fatalf("%q: page %d of %d and %d\n%.200q, want\n%.200q", expr, i, len(got), len(want), got[min(i, len(got)):], want[min(i, len(want)):])
			}
		}
		pages(&part, limit)
		// An offset of matches goes on across the places where a search stops.
		text.test = &part
		offset := rapid.Int64Range(0, 40).Draw(t, "offset")
		for q := (Search{Offset: offset, Limit: 1}); ; {
			w, err := text.Grep(context.Background(), p, q)
			if err != nil {
				t.Fatal(err)
			}
			if len(w.Text) == 0 && w.More {
				q.Offset, q.From = w.Next, w.From
				continue
			}
			text.test = &whole
			one, err := text.Grep(context.Background(), p, Search{Offset: offset, Limit: 1})
			if err != nil {
				t.Fatal(err)
			}
			if string(w.Text) != string(one.Text) {
				t.Fatalf("match %d: %q, want %q", offset, w.Text, one.Text)
			}
			break
		}
	})
}

// From may be any character.
func TestSearchFrom(t *testing.T) {
	unit := "one two\r\nthree é one\n\n" + strings.Repeat("x", 100) + "one\n"
	text, _ := textOf([]byte(strings.Repeat(unit, 300)))
	p, _ := Compile(`\bone\b|x+one`)
	for _, c := range []struct {
		from int64
		want string
	}{
		{0, "1: one two\n"},
		{1, "2: three é one\n"},
		{14, "2: [character 9] three é one\n"}, // the rest of a line is searched as a part of it
		{9, "2: three é one\n"},
		{17, "2: [character 9] three é one\n"},
		{18, "4: " + strings.Repeat("x", 100) + "one\n"},
		{22, "4: " + strings.Repeat("x", 100) + "one\n"},
		{30, "4: [character 22] " + strings.Repeat("x", 100) + "one\n"},
		{123, "5: one two\n"},
		{126 * 150, "601: one two\n"},
		{126*299 + 121, "1200: [character 37696] " + strings.Repeat("x", 100) + "one\n"},
		{126*300 - 1, ""},
		{126 * 300, ""},
		{1<<63 - 1, ""},
	} {
		w, err := text.Grep(context.Background(), p, Search{From: c.from, Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		if string(w.Text) != c.want || w.Counted != (c.from == 0) || w.More && w.From != c.from {
			t.Errorf("from %d: %q, %+v", c.from, w.Text, w)
		}
	}
}

// A pattern of any length is found in a line that fits the buffer.
func TestGrepUnbounded(t *testing.T) {
	b := []byte(strings.Repeat("x", 30) + " foo " + strings.Repeat("y", 90) + "bar\r\nfoobar\nfoo\nbar\n")
	for _, expr := range []string{"foo.*bar", "^.*$", `(?s)foo.*bar\z`, `[^b]*bar`, `\w+`, `.*`, `(.|\n)+`} {
		text, _ := textOf(b)
		text.test = &small
		p, err := Compile(expr)
		if err != nil {
			t.Fatal(err)
		}
		got, err := text.Grep(context.Background(), p, Search{})
		if err != nil {
			t.Fatal(err)
		}
		if err := sameWindow(got, naiveGrep(b, expr, Search{}, &small)); err != nil {
			t.Errorf("%q: %v", expr, err)
		}
	}
}

// Each border of the buffer, at its real size.
func TestGrepAcrossBuffers(t *testing.T) {
	size := 3 * standard.buffer
	for _, expr := range []string{"needle", `\bneedle\b`, `n[e]+dle`} {
		p, err := Compile(expr)
		if err != nil {
			t.Fatal(err)
		}
		for _, border := range []int{standard.buffer - standard.overlap, standard.buffer, 2 * standard.buffer, 2 * (standard.buffer - standard.overlap)} {
			for _, shift := range []int{-7, -6, -3, 0, 1} {
				b := bytes.Repeat([]byte(" "), size)
				copy(b[border+shift:], "needle")
				text, _ := textOf(b)
				w, err := text.Grep(context.Background(), p, Search{})
				if err != nil {
					t.Fatal(err)
				}
				if w.Matches != 1 || !bytes.Contains(w.Text, []byte("needle")) {
					t.Fatalf("%s at %d%+d: %+v", expr, border, shift, w)
				}
				if want := fmt.Sprintf("1: [character %d] …", border+shift-200); !strings.HasPrefix(string(w.Text), want) {
					t.Fatalf("%s at %d%+d: %.60q, want %q", expr, border, shift, w.Text, want)
				}
			}
		}
	}
}

func TestGrepManyInOneLine(t *testing.T) {
	var b bytes.Buffer
	for i := range 2000 {
		fmt.Fprintf(&b, "%s<match %d>", strings.Repeat("é", 1000), i)
	}
	text, _ := textOf(b.Bytes())
	p, _ := Compile(`<match \d+>`)
	w, err := text.Grep(context.Background(), p, Search{Offset: 899, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if w.Matches != 2000 || w.Next != 900 || !w.More || !bytes.Contains(w.Text, []byte("<match 899>")) || bytes.Count(w.Text, []byte("match")) != 1 {
		t.Fatalf("%+v", w)
	}
	// The offset that is shown is one to read on at.
	var at int64
	fmt.Sscanf(string(w.Text), "1: [character %d]", &at)
	c, err := text.ByChars(context.Background(), at, 300)
	if err != nil || !bytes.Contains(c.Text, []byte("<match 899>")) {
		t.Fatalf("at %d: %q, %v", at, c.Text, err)
	}
	seen := 0
	for offset := int64(0); ; {
		w, err := text.Grep(context.Background(), p, Search{Offset: offset})
		if err != nil {
			t.Fatal(err)
		}
		if n := utf8.RuneCount(w.Text); n > PageChars {
			t.Fatalf("page of %d characters", n)
		}
		seen += bytes.Count(w.Text, []byte("<match"))
		if offset = w.Next; !w.More {
			break
		}
	}
	if seen != 2000 {
		t.Errorf("saw %d matches", seen)
	}
}

func TestCompile(t *testing.T) {
	for _, expr := range []string{"(", "a{2000}", "[", `\`, "(?<n", strings.Repeat("a", maxPattern+1), `(?:.{1000}){2}`, strings.Repeat(".{900}", 9), "\xff"} {
		if _, err := Compile(expr); !errors.Is(err, ErrArgument) {
			t.Errorf("%.20q: %v", expr, err)
		} else if len(err.Error()) > 3*maxPattern {
			t.Errorf("%.20q: message of %d bytes", expr, len(err.Error()))
		}
	}
	for _, expr := range []string{".{0,1000}x", "a{1000}", strings.Repeat("a", maxPattern), `(?i)` + strings.Repeat("é", 400)} {
		if _, err := Compile(expr); err != nil {
			t.Errorf("%.20q: %v", expr, err)
		}
	}
	for expr, want := range map[string]string{
		`\bfoo\b`: "foo", `.{0,200}error.{0,200}`: "error", `"id":\s*(\d+)`: `"id":`, `(?i)error`: "", `a|b`: "", `x?yy`: "yy", `(abc)+d`: "abc", `(?:a+bb){2}`: "bb", `(?:abc)*d`: "d",
	} {
		p, err := Compile(expr)
		if err != nil || string(p.needle.b) != want {
			t.Errorf("%q: needle %q, %v, want %q", expr, p.needle.b, err, want)
		}
	}
	for expr, in := range map[string]string{"foo": "FoO", "FOO": "foo", "a|B": "xb", "é": "É", "1": "1", "(?-i)a|b": "B", "k": "\u212A"} {
		p, err := CompileFold(expr)
		if err != nil {
			t.Errorf("%q: %v", expr, err)
			continue
		}
		text, _ := textOf([]byte(in))
		want := int64(1)
		if expr == "(?-i)a|b" {
			want = 0
		}
		if w, err := text.Grep(context.Background(), p, Search{}); err != nil || w.Matches != want {
			t.Errorf("%q in %q: %+v, %v", expr, in, w, err)
		}
	}
	for _, expr := range []string{"a)(b", "(", strings.Repeat("a", maxPattern+1)} {
		if _, err := CompileFold(expr); !errors.Is(err, ErrArgument) {
			t.Errorf("%.20q: %v", expr, err)
		}
	}
	// What has no needle has a sieve.
	for _, expr := range patterns {
		if p, err := Compile(expr); err != nil || p.needle.b == nil && p.sieve == nil {
			t.Errorf("%q: %+v, %v", expr, p, err)
		}
	}
}

func TestLiteral(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := []byte(rapid.StringOfN(rapid.SampledFrom([]rune("abé z\n")), 0, 400, -1).Draw(t, "text"))
		lit := []byte(rapid.StringOfN(rapid.SampledFrom([]rune("abé z")), 1, 4, -1).Draw(t, "literal"))
		l := newLiteral(lit)
		if got, want := l.index(b), bytes.Index(b, lit); got != want {
			t.Fatalf("%q in %q: %d, want %d", lit, b, got, want)
		}
	})
	for lit, want := range map[string]byte{"needle": 'd', "error: x": 'x', "é!": '!', "日本": 0x97} {
		if l := newLiteral([]byte(lit)); l.b[l.rare] != want {
			t.Errorf("%q is searched by %q", lit, l.b[l.rare])
		}
	}
}

func TestArguments(t *testing.T) {
	text, src := textOf([]byte("one\ntwo"))
	p, _ := Compile("o")
	ctx := context.Background()
	for _, q := range []Search{{From: -1}, {Context: -1}, {Context: MaxContext + 1}} {
		if _, err := text.Grep(ctx, p, q); !errors.Is(err, ErrArgument) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	for _, q := range [][2]int64{{-1, 0}, {0, -1}, {-1 << 63, 5}} {
		_, err1 := text.ByChars(ctx, q[0], q[1])
		_, err2 := text.ByLines(ctx, q[0], q[1])
		_, err3 := text.Grep(ctx, p, Search{Offset: q[0], Limit: q[1]})
		for _, err := range []error{err1, err2, err3} {
			if !errors.Is(err, ErrArgument) {
				t.Errorf("%v: %v", q, err)
			}
		}
	}
	if src.opens != 0 {
		t.Errorf("%d reads", src.opens)
	}
	for _, offset := range []int64{7, 8, 1 << 62, 1<<63 - 1} {
		for _, limit := range []int64{0, 1, 1<<63 - 1} {
			w1, err1 := text.ByChars(ctx, offset, limit)
			w2, err2 := text.ByLines(ctx, offset, limit)
			w3, err3 := text.Grep(ctx, p, Search{Offset: offset, Limit: limit})
			if err := errors.Join(err1, err2, err3); err != nil {
				t.Fatal(err)
			}
			for _, w := range []*Window{w1, w2, w3} {
				if len(w.Text) > 0 || w.More {
					t.Errorf("offset %d: %+v", offset, w)
				}
			}
			if w3.Matches != 2 {
				t.Errorf("%d matches", w3.Matches)
			}
		}
	}
	empty, _ := textOf(nil)
	w, err := empty.Grep(ctx, p, Search{})
	if err != nil || w.Matches != 0 {
		t.Errorf("empty: %+v, %v", w, err)
	}
}

// A reader that gives other bytes than were measured is an error, never a
// shorter window.
func TestChanged(t *testing.T) {
	ctx := context.Background()
	b := bytes.Repeat([]byte("0123456789\n"), 30_000)
	p, _ := Compile("no such thing")
	for name, read := range map[string]func(*Text) error{
		"chars": func(x *Text) error { _, err := x.ByChars(ctx, 200_000, 0); return err },
		"lines": func(x *Text) error { _, err := x.ByLines(ctx, 20_000, 0); return err },
		"grep":  func(x *Text) error { _, err := x.Grep(ctx, p, Search{}); return err },
	} {
		text, _ := textOf(b)
		text.Open = func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader("")), nil
		}
		if err := read(text); !errors.Is(err, ErrChanged) {
			t.Errorf("%s, cut: %v", name, err)
		}
		text.Open = func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
			return nil, os.ErrPermission
		}
		if err := read(text); !errors.Is(err, os.ErrPermission) {
			t.Errorf("%s, not opened: %v", name, err)
		}
		text.Open = func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
			return io.NopCloser(stuck{}), nil
		}
		if err := read(text); !errors.Is(err, io.ErrNoProgress) {
			t.Errorf("%s, stuck: %v", name, err)
		}
	}
	text, _ := textOf(b)
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := text.Grep(canceled, p, Search{}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

// big returns 64 MiB, of one line or of short ones.
func big(lines bool) []byte {
	unit := []byte(strings.Repeat("0123456789abcdef", 4))
	if lines {
		unit[20], unit[63] = '\n', '\n'
	}
	return bytes.Repeat(unit, 64<<20/len(unit))
}

// allocated returns the bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestBigText(t *testing.T) {
	ctx := context.Background()
	p, _ := Compile("no such thing")
	for _, lines := range []bool{false, true} {
		text, src := textOf(big(lines))
		check := func(what string, read func() (*Window, error)) {
			t.Helper()
			src.opens, src.bytes = 0, 0
			var w *Window
			var err error
			n := allocated(func() { w, err = read() })
			if err != nil {
				t.Fatal(err)
			}
			if len(w.Text) == 0 || src.opens > 2 || src.bytes > 1<<20 || n > 4<<20 {
				t.Errorf("%s, lines %v: %d bytes of text, %d reads of %d bytes, %d bytes allocated", what, lines, len(w.Text), src.opens, src.bytes, n)
			}
		}
		for _, part := range []int64{0, 1, 2, 3, 4} {
			check("chars", func() (*Window, error) { return text.ByChars(ctx, (text.Chars-1)*part/4, 0) })
			check("lines", func() (*Window, error) { return text.ByLines(ctx, (text.Lines-1)*part/4, 0) })
		}
		if n := allocated(func() { text.Grep(ctx, p, Search{}) }); n > 4<<20 {
			t.Errorf("grep, lines %v: %d bytes allocated", lines, n)
		}
	}
	// Long lines end a window early rather than being read through.
	b := big(false)
	for i := 8 << 20; i < len(b); i += 8 << 20 {
		b[i] = '\n'
	}
	text, src := textOf(b)
	for line := range text.Lines {
		src.opens, src.bytes = 0, 0
		w, err := text.ByLines(ctx, line, 0)
		if err != nil || w.Next != line+1 || !w.Cut || src.opens > 2 || src.bytes > 1<<20 {
			t.Errorf("line %d: %+v, %v, %d reads of %d bytes", line, w, err, src.opens, src.bytes)
		}
	}
}

func TestMeterAllocates(t *testing.T) {
	m, b := NewMeter(4000), big(true)[:32<<10]
	if n := testing.AllocsPerRun(600, func() { m.Write(b) }); n > 0 {
		t.Errorf("%v allocations a Write", n)
	}
}

func FuzzMeter(f *testing.F) {
	f.Add([]byte("a\né\xff"), uint8(1), uint8(2))
	f.Fuzz(func(t *testing.T, b []byte, size, keep uint8) {
		m := NewMeter(int(keep))
		for rest := b; len(rest) > 0; {
			n := min(len(rest), int(size)+1)
			m.Write(rest[:n])
			rest = rest[n:]
		}
		if err := sameFacts(m.Facts(), naiveFacts(b, int(keep))); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzGrep(f *testing.F) {
	f.Add("a$", "a\r\nb a\n", uint8(0), uint8(0))
	f.Fuzz(func(t *testing.T, expr, s string, offset, limit uint8) {
		s = strings.ToValidUTF8(s, "\uFFFD")
		p, err := Compile(expr)
		if err != nil {
			if !errors.Is(err, ErrArgument) {
				t.Fatal(err)
			}
			return
		}
		if len(s) > 2000 || strings.Contains(expr, `\x{`) {
			return
		}
		// Whole lines, since a pattern may match without bound.
		b := small
		b.buffer = 4096
		text, _ := textOf([]byte(s))
		text.test = &b
		got, err := text.Grep(context.Background(), p, Search{Offset: int64(offset), Limit: int64(limit)})
		if err != nil {
			t.Fatal(err)
		}
		if err := sameWindow(got, naiveGrep([]byte(s), expr, Search{Offset: int64(offset), Limit: int64(limit)}, &b)); err != nil {
			t.Fatalf("%q in %q: %v", expr, s, err)
		}
	})
}

func FuzzIndex(f *testing.F) {
	text, _ := textOf(bytes.Repeat([]byte("é line\n"), 2000))
	f.Add(text.Index, int64(9000))
	f.Fuzz(func(t *testing.T, index []byte, offset int64) {
		x := *text
		x.Index = index
		w, err := x.ByChars(context.Background(), offset, 0)
		if err == nil && utf8.RuneCount(w.Text) > PageChars {
			t.Fatalf("%d characters", utf8.RuneCount(w.Text))
		}
		if err != nil && !errors.Is(err, ErrChanged) && !errors.Is(err, ErrArgument) {
			t.Fatal(err)
		}
		w, err = x.ByLines(context.Background(), offset, 0)
		if err == nil && utf8.RuneCount(w.Text) > PageChars {
			t.Fatalf("%d characters", utf8.RuneCount(w.Text))
		}
		if err != nil && !errors.Is(err, ErrChanged) && !errors.Is(err, ErrArgument) {
			t.Fatal(err)
		}
	})
}

func BenchmarkWindow(b *testing.B) {
	for name, lines := range map[string]bool{"one_line": false, "lines": true} {
		text, src := textOf(big(lines))
		for unit, read := range map[string]func() (*Window, error){
			"chars": func() (*Window, error) { return text.ByChars(context.Background(), text.Chars/2, 0) },
			"lines": func() (*Window, error) { return text.ByLines(context.Background(), text.Lines/2, 0) },
		} {
			b.Run(name+"/"+unit, func(b *testing.B) {
				b.ReportAllocs()
				src.opens, src.bytes = 0, 0
				n := 0
				for b.Loop() {
					if _, err := read(); err != nil {
						b.Fatal(err)
					}
					n++
				}
				b.ReportMetric(float64(src.opens)/float64(n), "reads/op")
				b.ReportMetric(float64(src.bytes)/float64(n), "read-B/op")
			})
		}
	}
}

func BenchmarkMeter(b *testing.B) {
	for name, text := range map[string][]byte{"one_line": big(false), "lines": big(true), "cyrillic": bytes.Repeat([]byte("эта строка\n"), 3<<20)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				m := NewMeter(4000)
				for rest := text; len(rest) > 0; {
					n := min(len(rest), 32<<10)
					m.Write(rest[:n])
					rest = rest[n:]
				}
				m.Facts()
			}
		})
	}
}

// BenchmarkGrep reads from a file, as BenchmarkRead does, to compare with it.
func BenchmarkGrep(b *testing.B) {
	for name, lines := range map[string]bool{"one_line": false, "lines": true} {
		text, _ := textOf(big(lines))
		path := file(b, lines)
		text.Open = func(context.Context, int64, int64) (io.ReadCloser, error) { return os.Open(path) }
		for _, expr := range []string{"no such thing", `\bsuch.*thing\b`, `(?i)such thing`, "[xyz]{3}"} {
			b.Run(name+"/"+regexp.QuoteMeta(expr), func(b *testing.B) {
				b.SetBytes(text.Size)
				b.ReportAllocs()
				p, err := Compile(expr)
				if err != nil {
					b.Fatal(err)
				}
				for b.Loop() {
					if w, err := text.Grep(context.Background(), p, Search{}); err != nil || w.Matches != 0 {
						b.Fatal(w, err)
					}
				}
			})
		}
	}
}

func BenchmarkRead(b *testing.B) {
	path, buf := file(b, true), make([]byte, standard.buffer)
	b.SetBytes(64 << 20)
	for b.Loop() {
		f, err := os.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = f.Read(buf)
		}
		f.Close()
	}
}

func file(b *testing.B, lines bool) string {
	path := b.TempDir() + "/text"
	if err := os.WriteFile(path, big(lines), 0o600); err != nil {
		b.Fatal(err)
	}
	return path
}
