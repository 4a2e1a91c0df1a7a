package filetools

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
	"pgregory.net/rapid"
)

func TestReadPages(t *testing.T) {
	const emoji = "👩‍🚀" // three runes, 11 bytes
	for name, content := range map[string]string{
		"empty":        "",
		"one":          "x",
		"exactly":      strings.Repeat("a", psych.PageChars),
		"one more":     strings.Repeat("a", psych.PageChars+1),
		"emoji":        strings.Repeat(emoji, 20_000),
		"shifted":      "x" + strings.Repeat("日本語é\n", 30_000),
		"crlf":         strings.Repeat("line\r\n", 10_000),
		"long line":    strings.Repeat("0123456789", 50_000),
		"nul":          strings.Repeat("a\x00b\n", 10_000),
		"chunk border": strings.Repeat("a", readChunk-1) + strings.Repeat("😀", 10),
		"replacement":  strings.Repeat("\uFFFD\n", 100),
	} {
		t.Run(name, func(t *testing.T) {
			tools, _ := tree(t, map[string]string{"f": content}, nil)
			var got strings.Builder
			var offset int64
			chars := int64(utf8.RuneCountInString(content))
			lines := int64(strings.Count(content, "\n"))
			if content != "" && !strings.HasSuffix(content, "\n") {
				lines++
			}
			for calls := 0; ; calls++ {
				r, err := tools.readFile(t.Context(), readInput{Path: "f", Offset: offset})
				h, page := split(t, text(t, r, err))
				if *h.TotalChars != chars || *h.TotalLines != lines || h.Offset != offset || h.Unit != "chars" {
					t.Fatalf("header %+v, want %d characters in %d lines from %d", h, chars, lines, offset)
				}
				n := utf8.RuneCountInString(page)
				if n > psych.PageChars || h.Truncated != (offset+int64(n) < chars) || h.Truncated != (h.NextOffset != 0) {
					t.Fatalf("page of %d characters at %d with %+v", n, offset, h)
				}
				got.WriteString(page)
				if !h.Truncated {
					if want := max(0, int(chars-1)/psych.PageChars); calls != want {
						t.Errorf("%d further calls, want %d", calls, want)
					}
					break
				}
				if h.NextOffset != offset+psych.PageChars {
					t.Fatalf("next_offset %d after %d", h.NextOffset, offset)
				}
				offset = h.NextOffset
			}
			if got.String() != content {
				t.Errorf("the pages joined differ from the file")
			}
		})
	}
}

func TestReadWindow(t *testing.T) {
	tools, dir := tree(t, map[string]string{"f": "a😀b😀c"}, nil)
	for _, c := range []struct {
		offset, limit int64
		want          string
		next          int64
	}{
		{0, 1, "a", 1},
		{1, 1, "😀", 2},
		{1, 2, "😀b", 3},
		{3, 0, "😀c", 0},
		{4, 1, "c", 0},
		{5, 1, "", 0},
		{6, 9, "", 0},
		{1 << 62, 1 << 62, "", 0},
		{0, 1 << 62, "a😀b😀c", 0},
	} {
		r, err := tools.readFile(t.Context(), readInput{Path: "f", Offset: c.offset, Limit: c.limit})
		h, got := split(t, text(t, r, err))
		if got != c.want || h.NextOffset != c.next || h.Truncated != (c.next > 0) || h.Offset != c.offset || *h.TotalChars != 5 {
			t.Errorf("%d characters from %d: %q %+v, want %q and next %d", c.limit, c.offset, got, h, c.want, c.next)
		}
	}
	r, err := tools.readFile(t.Context(), readInput{Path: "f", Offset: -1})
	fails(t, r, err, "offset is -1", dir)
	r, err = tools.readFile(t.Context(), readInput{Path: "f", Limit: -5})
	fails(t, r, err, "limit is -5", dir)
}

func TestReadHeaderIsStable(t *testing.T) {
	tools, _ := tree(t, map[string]string{"f": "ab\ncd", "b": "\x89PNG\r\n\x1a\n\xff"}, nil)
	r, err := tools.readFile(t.Context(), readInput{Path: "f", Limit: 4})
	if got, want := text(t, r, err), `{"total_chars":5,"total_lines":2,"offset":0,"next_offset":4,"truncated":true,"unit":"chars"}`+"\nab\nc"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	r, err = tools.readFile(t.Context(), readInput{Path: "b"})
	if got, want := text(t, r, err), `{"offset":0,"truncated":false,"unit":"bytes","binary":true,"bytes":9,"type":"image/png"}`+"\n[binary, 9 bytes, image/png: not shown]\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReadBinary(t *testing.T) {
	for name, content := range map[string]string{
		"at once":       "\xff\xfe",
		"at the end":    strings.Repeat("text\n", 100_000) + "\xff",
		"cut rune":      "abc\xf0\x9f\x98",
		"cut in chunk":  strings.Repeat("a", readChunk-2) + "\xf0\x9f" + "a",
		"surrogate":     "a\xed\xa0\x80b",
		"only the tail": strings.Repeat("a", readChunk) + "\x80",
	} {
		tools, _ := tree(t, map[string]string{"f": content}, nil)
		r, err := tools.readFile(t.Context(), readInput{Path: "f", Limit: 3})
		h, got := split(t, text(t, r, err))
		if !h.Binary || h.Bytes != int64(len(content)) || h.TotalChars != nil || !strings.HasPrefix(got, "[binary, ") || strings.Contains(got, "abc") {
			t.Errorf("%s: %+v %q", name, h, got)
		}
	}
}

func TestReadWhatIsNoFile(t *testing.T) {
	tools, dir := tree(t, map[string]string{"d/f": ""}, nil)
	for p, want := range map[string]string{
		"":                        "it is a directory",
		"d":                       "it is a directory",
		"none":                    "no such file",
		"d/none":                  "no such file",
		"d/f/x":                   "not a directory",
		strings.Repeat("é", 5000): "file name too long",
	} {
		r, err := tools.readFile(t.Context(), readInput{Path: p})
		fails(t, r, err, want, dir)
	}
	r, err := tools.listFiles(t.Context(), listInput{Path: "none"})
	fails(t, r, err, "no such file", dir)
	r, err = tools.searchFiles(t.Context(), searchInput{Pattern: "x", Path: "none"})
	fails(t, r, err, "no such file", dir)
}

// A file's size must cost neither memory nor, as it is sparse, disk.
func TestReadHugeFileInLittleMemory(t *testing.T) {
	const size = 300 << 20
	tools, dir := tree(t, nil, nil)
	f, err := os.Create(filepath.Join(dir, "huge"))
	must(t, err)
	must(t, f.Truncate(size))
	_, err = f.WriteAt([]byte("the end\n"), size)
	must(t, err)
	must(t, f.Close())

	got := allocated(t, func() {
		r, err := tools.readFile(t.Context(), readInput{Path: "huge", Offset: size})
		if h, got := split(t, text(t, r, err)); got != "the end\n" || *h.TotalChars != size+8 {
			t.Fatalf("%q %+v", got, h)
		}
	})
	if got >= 1<<20 {
		t.Errorf("%d bytes allocated, want under 1 MiB", got)
	}
}

// allocated is how many bytes f allocates.
func allocated(t *testing.T, f func()) uint64 {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// readPage agrees with slicing the runes of the whole, however the reads fall.
func TestReadPageProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringOf(rapid.SampledFrom([]rune("ab\n\r\x00é日😀"))).Draw(t, "text")
		offset := rapid.Int64Range(0, 40).Draw(t, "offset")
		limit := rapid.Int64Range(1, 40).Draw(t, "limit")
		buf := make([]byte, rapid.IntRange(utf8.UTFMax, 40).Draw(t, "buffer"))
		p, err := readPage(t.Context(), iotest.HalfReader(strings.NewReader(s)), offset, limit, buf)
		if err != nil {
			t.Fatal(err)
		}
		runes := []rune(s)
		from := min(int(offset), len(runes))
		want := string(runes[from:min(from+int(limit), len(runes))])
		if string(p.text) != want || p.chars != int64(len(runes)) || p.taken != int64(utf8.RuneCountInString(want)) {
			t.Fatalf("%q, %d of %d characters; want %q of %d", p.text, p.taken, p.chars, want, len(runes))
		}
	})
}

func FuzzText(f *testing.F) {
	f.Add([]byte("a😀b日本語\n"), 3)
	f.Add([]byte("\xf0\x9f\x98"), 1)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		p, err := readPage(t.Context(), iotest.OneByteReader(bytes.NewReader(b)), 0, 10, make([]byte, 8))
		if (err == nil) != utf8.Valid(b) {
			t.Fatalf("%q: %v", b, err)
		}
		if err != nil {
			return
		}
		count := utf8.RuneCount(b)
		if p.chars != int64(count) || runeStarts(b) != count {
			t.Fatalf("%q: %d and %d characters, want %d", b, p.chars, runeStarts(b), count)
		}
		if n >= 0 && n <= count {
			if got, want := runeIndex(b, n), len(string([]rune(string(b))[:n])); got != want {
				t.Fatalf("character %d of %q begins at %d, want %d", n, b, got, want)
			}
		}
	})
}

// A page at the end of a large file: the whole of it is counted each time.
func BenchmarkReadFileAtEnd(b *testing.B) {
	for name, line := range map[string]string{
		"ascii":  "the quick brown fox jumps over the lazy dog\n",
		"utf8":   "der schnelle Fuchs springt über träge Hünde\n",
		"dense":  "速い茶色の狐が怠け者の犬を飛び越える\n",
		"sparse": "",
	} {
		b.Run(name, func(b *testing.B) {
			const size = 64 << 20
			tools, dir := tree(b, nil, nil)
			content := []byte(strings.Repeat(line, size/max(1, len(line))))
			p := filepath.Join(dir, "f")
			must(b, os.WriteFile(p, content, 0o644))
			chars := int64(utf8.RuneCount(content))
			if line == "" {
				must(b, os.Truncate(p, size))
				chars = size
			}
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				r, err := tools.readFile(b.Context(), readInput{Path: "f", Offset: chars - psych.PageChars})
				if h, _ := split(b, text(b, r, err)); *h.TotalChars != chars || h.Truncated {
					b.Fatalf("%+v, want %d characters", h, chars)
				}
			}
		})
	}
}
