package filetools

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestSearch(t *testing.T) {
	tools, dir := tree(t, map[string]string{
		"a.go":      "package a\nfunc F() {}\n",
		"b.txt":     "no func\r\nfunc at the end\r\n\r\nlast func",
		"bin":       "func\xff\n",
		"late bin":  strings.Repeat("func\n", searchChunk) + "\xff",
		"empty":     "",
		"nul":       "func\x00\x1b[0m\n",
		"sub/c.go":  "\n\n\tfunc (t *T) M()\n",
		"sub/d.txt": "FUNC\n",
	}, nil)
	for _, c := range []struct{ pattern, path, glob, want string }{
		{"func", "", "", "a.go:2: func F() {}\nb.txt:1: no func\nb.txt:2: func at the end\nb.txt:4: last func\nnul:1: func\x00\x1b[0m\nsub/c.go:3: \tfunc (t *T) M()\n[6 matching lines in 4 files, 6 files searched, 2 binary files not]\n"},
		{"^func", "", "", "a.go:2: func F() {}\nb.txt:2: func at the end\nnul:1: func\x00\x1b[0m\n[3 matching lines in 3 files, 6 files searched, 2 binary files not]\n"},
		{"(func|end)$", "b.txt", "", "b.txt:1: no func\nb.txt:2: func at the end\nb.txt:4: last func\n[3 matching lines in 1 files, 1 files searched]\n"},
		{"^$", "b.txt", "", "b.txt:3: \n[1 matching lines in 1 files, 1 files searched]\n"},
		{"(?i)^FUNC", "sub", "", "sub/d.txt:1: FUNC\n[1 matching lines in 1 files, 2 files searched]\n"},
		{"func", "", "*.go", "a.go:2: func F() {}\nsub/c.go:3: \tfunc (t *T) M()\n[2 matching lines in 2 files, 2 files searched]\n"},
		{"func", "sub", "*.go", "sub/c.go:3: \tfunc (t *T) M()\n[1 matching lines in 1 files, 1 files searched]\n"},
		{"func", "a.go", "*.txt", "[0 matching lines in 0 files, 0 files searched]\n"},
		{"nothing", "", "", "[0 matching lines in 0 files, 6 files searched, 2 binary files not]\n"},
		{"a\nfunc", "", "", "[0 matching lines in 0 files, 6 files searched, 2 binary files not]\n"},
		{"func", "bin", "", "[0 matching lines in 0 files, 0 files searched, 1 binary files not]\n"},
	} {
		r, err := tools.searchFiles(t.Context(), searchInput{Pattern: c.pattern, Path: c.path, Glob: c.glob})
		if got := text(t, r, err); got != c.want {
			t.Errorf("%q in %q, %q:\n%swant\n%s", c.pattern, c.path, c.glob, got, c.want)
		}
	}
	for p, want := range map[string]string{
		"":                                 "pattern is empty",
		"(":                                "missing closing )",
		"a**":                              "invalid nested repetition",
		"(?<=x)y":                          "RE2",
		"a{2000}":                          "invalid repeat count",
		`\xff` + strings.Repeat("(", 5000): "RE2",
	} {
		r, err := tools.searchFiles(t.Context(), searchInput{Pattern: p})
		fails(t, r, err, want, dir)
	}
}

// hits are the lines of an answer, without the last.
func hits(answer string) []string {
	lines := strings.Split(strings.TrimSuffix(answer, "\n"), "\n")
	return lines[:len(lines)-1]
}

var hitRE = regexp.MustCompile(`^f:(\d+): \[offset (\d+)\] (…?)(.*?)(…?)$`)

// checkWindows checks that every hit is a window of content at the offset and
// line that it names, and returns the windows.
func checkWindows(t *testing.T, content, answer string) []string {
	t.Helper()
	var windows []string
	for _, l := range hits(answer) {
		m := hitRE.FindStringSubmatch(l)
		if m == nil {
			t.Fatalf("no window: %.300q", l)
		}
		line, _ := strconv.Atoi(m[1])
		offset, _ := strconv.Atoi(m[2])
		at := runeIndex([]byte(content), offset)
		if !strings.HasPrefix(content[at:], m[4]) {
			t.Fatalf("%.200q isn't what stands at character %d", m[4], offset)
		}
		if got := strings.Count(content[:at], "\n") + 1; got != line {
			t.Fatalf("line %d, want %d: %.300q", line, got, l)
		}
		begins, ends := at == 0 || content[at-1] == '\n', strings.HasPrefix(content[at+len(m[4]):], "\n")
		if begins == (m[3] != "") || ends == (m[5] != "") {
			t.Fatalf("ellipses of %.300q: begins %t, ends %t", l, begins, ends)
		}
		if len(m[4]) > windowBytes {
			t.Fatalf("a window of %d bytes", len(m[4]))
		}
		windows = append(windows, m[4])
	}
	return windows
}

func TestSearchLongLines(t *testing.T) {
	const filler = "überlang, 日本 "
	line := func(n int, at ...int) string {
		b := []byte(strings.Repeat(filler, n/len(filler)))
		for i, a := range at {
			a = alignDown(b, min(a, len(b)))
			b = append(b[:a], append(fmt.Appendf(nil, "<needle %d>", i+1), b[a:]...)...)
		}
		return string(b)
	}
	for name, c := range map[string]struct {
		line    string
		windows int // for "<needle \d+>"
	}{
		"in the middle":        {line(9_000, 5_000), 1},
		"two joined":           {line(9_000, 5_000, 5_300), 1},
		"two apart":            {line(9_000, 1_000, 5_300), 2},
		"at both ends":         {line(9_000, 0, 9_011), 2},
		"far":                  {line(3<<20, 2<<20), 1},
		"pieces":               {line(1<<20, 100, searchChunk-5, searchChunk-overlap-5, 700_000), 4},
		"at the overlap":       {line(1<<20, searchChunk-overlap-1, searchChunk-overlap+12), 1},
		"at the last byte":     {line(1<<20, 1<<20), 1},
		"just over one buffer": {line(searchChunk+100, searchChunk-3), 1},
	} {
		t.Run(name, func(t *testing.T) {
			content := "short\n" + c.line + "\nafter <needle 99>\n" + c.line + "\n"
			tools, _ := tree(t, map[string]string{"f": content}, nil)
			r, err := tools.searchFiles(t.Context(), searchInput{Pattern: `<needle \d+>`})
			got := text(t, r, err)
			var long []string
			for _, h := range hits(got) {
				if h != "f:3: after <needle 99>" {
					long = append(long, h)
				}
			}
			if len(long) != len(hits(got))-1 {
				t.Fatalf("the short line is not among the %d hits", len(hits(got)))
			}
			windows := checkWindows(t, content, strings.Join(append(long, "["), "\n"))
			if len(windows) != 2*c.windows {
				t.Errorf("%d windows, want %d: %.400q", len(windows), 2*c.windows, windows)
			}
			for needle := range strings.FieldsSeq(strings.ReplaceAll(strings.Join(regexp.MustCompile(`<needle \d+>`).FindAllString(c.line, -1), "\n"), "needle ", "needle_")) {
				needle = strings.ReplaceAll(needle, "_", " ")
				if n := strings.Count(got, needle); n < 2 {
					t.Errorf("%s is shown %d times, want twice", needle, n)
				}
			}
			if !strings.Contains(got, "[3 matching lines in 1 files, 1 files searched]") {
				t.Errorf("summary: %q", got[strings.LastIndexByte(got[:len(got)-1], '\n')+1:])
			}
		})
	}
}

// ^ and $ are the ends of a line, not those of the pieces that it is read in.
func TestSearchAnchorsInLongLines(t *testing.T) {
	content := "b" + strings.Repeat("a", 2*searchChunk) + "c\r\nx\n"
	for pattern, want := range map[string]int{
		`^.`: 1, `.$`: 1, `^a`: 0, `a$`: 0, `(?m)^a`: 0, `(?m)a$`: 0, `\Aba`: 1, `ac\z`: 1, `^b.*c$`: 0, `^x$`: 0, `\bb`: 1, `c\b`: 1,
	} {
		tools, _ := tree(t, map[string]string{"f": content}, nil)
		r, err := tools.searchFiles(t.Context(), searchInput{Pattern: pattern})
		n := 0
		for _, h := range hits(text(t, r, err)) {
			if strings.HasPrefix(h, "f:1: ") {
				n++
			}
		}
		if n != want {
			t.Errorf("%s: %d windows, want %d", pattern, n, want)
		}
	}
}

// The nine-hundredth match of a line is shown, and nothing twice.
func TestSearchManyMatchesInALine(t *testing.T) {
	var b strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&b, `{"id":%d,"name":"é"},`, i)
	}
	content := b.String() + "\n"
	tools, _ := tree(t, map[string]string{"f": content}, nil)
	r, err := tools.searchFiles(t.Context(), searchInput{Pattern: `"id"`})
	windows := checkWindows(t, content, text(t, r, err))
	if got := strings.Join(windows, ""); !strings.HasPrefix(got, content[:1000]) || utf8.RuneCountInString(got) < utf8.RuneCountInString(content)-1 || len(got) > len(content)+10*around {
		t.Errorf("%d windows of %d bytes in all, of a line of %d", len(windows), len(got), len(content))
	}
}

func TestSearchLinesAcrossChunks(t *testing.T) {
	var b strings.Builder
	var want []string
	for i := 1; b.Len() < 3*searchChunk; i++ {
		l := fmt.Sprintf("line %d %s", i, strings.Repeat("é", i%97))
		b.WriteString(l + "\n")
		if i%7 == 0 {
			want = append(want, fmt.Sprintf("f:%d: %s", i, l))
		}
	}
	tools, _ := tree(t, map[string]string{"f": b.String()}, nil)
	var alt []string // numbers that are multiples of 7, as a pattern without and with a literal prefix
	for i := 7; i <= len(want)*7; i += 7 {
		alt = append(alt, strconv.Itoa(i))
	}
	for _, prefix := range []string{"^line ", "[l]ine "} {
		r, err := tools.searchFiles(t.Context(), searchInput{Pattern: prefix + "(" + strings.Join(alt, "|") + ") "})
		got := hits(text(t, r, err))
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s: %d hits, want %d", prefix, len(got), len(want))
		}
	}
}

func TestSearchTruncated(t *testing.T) {
	files := map[string]string{}
	for i := range 10 {
		files[fmt.Sprintf("f%d", i)] = strings.Repeat("match\n", 10)
	}
	files["f99"] = "match\n"
	tools, _ := tree(t, files, &Options{MaxBytes: 500})
	r, err := tools.searchFiles(t.Context(), searchInput{Pattern: "match"})
	got := text(t, r, err)
	last := "[truncated, there is more than 500 bytes: 41 matching lines in 5 files, 5 files searched; narrow it down by path or pattern]\n"
	if !strings.HasSuffix(got, "f4:1: match\n"+last) || strings.Count(got, "match\n") != 41 || len(got)-len(last) > 500 {
		t.Errorf("got %q", got)
	}
	tools, _ = tree(t, map[string]string{"f": strings.Repeat(strings.Repeat("x", 999)+"\n", 17<<10)}, nil)
	r, err = tools.searchFiles(t.Context(), searchInput{Pattern: "x"})
	got = text(t, r, err)
	if body := strings.LastIndexByte(got[:len(got)-1], '\n') + 1; body > DefaultMaxBytes || body < DefaultMaxBytes-1100 || !strings.HasPrefix(got[body:], "[truncated, there is more than 16777216 bytes: ") {
		t.Errorf("%d bytes, then %q", body, got[body:])
	}
}

func TestSearchVanishing(t *testing.T) {
	tools, dir := tree(t, map[string]string{"a": "x\n", "b": "x\n", "big": strings.Repeat("x\n", searchChunk), "e": "x\n"}, &Options{MaxBytes: 64 << 20})
	r, err := tools.searchFiles(t.Context(), searchInput{Pattern: "x"})
	must(t, err)
	buf := make([]byte, 1)
	_, err = r.Body.Read(buf)
	must(t, err)
	must(t, os.Remove(filepath.Join(dir, "b")))
	got := string(buf)
	for !strings.Contains(got, "big:1:") {
		n, err := r.Body.Read(buf)
		must(t, err)
		got += string(buf[:n])
	}
	must(t, os.WriteFile(filepath.Join(dir, "big"), []byte("x\n\xff\n"), 0o644))
	must(t, os.Chtimes(filepath.Join(dir, "big"), time.Time{}, time.Now().Add(time.Hour)))
	got += text(t, r, nil)
	for _, want := range []string{
		"a:1: x\n[skipped b: no such file or directory]\nbig:1: x\n",
		"[incomplete big: it changed while it was searched]\ne:1: x\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q isn't in %.100q … %q", want, got, got[max(0, len(got)-200):])
		}
	}
	if !strings.HasSuffix(got, "4 files searched, 1 skipped]\n") && !strings.HasSuffix(got, "3 files searched, 1 skipped]\n") {
		t.Errorf("summary %q", got[max(0, len(got)-200):])
	}
}

// The answer is made as it is read: a search of much keeps little.
func TestSearchInLittleMemory(t *testing.T) {
	tools, dir := tree(t, nil, nil)
	f, err := os.Create(filepath.Join(dir, "huge"))
	must(t, err)
	must(t, f.Truncate(100<<20)) // one line of NULs
	_, err = f.WriteAt([]byte("needle\n"), 100<<20)
	must(t, err)
	must(t, f.Close())
	got := allocated(t, func() {
		r, err := tools.searchFiles(t.Context(), searchInput{Pattern: "needle"})
		if got := text(t, r, err); !strings.HasPrefix(got, "huge:1: [offset 104857400] …\x00") {
			t.Fatalf("%.100q", got)
		}
	})
	if got >= 1<<20 {
		t.Errorf("%d bytes allocated, want under 1 MiB", got)
	}
}

func BenchmarkSearch(b *testing.B) {
	files := map[string]string{}
	text10k := strings.Repeat("\tfor i := range things { total += things[i].size() }\n", 200)
	for i := range 1000 {
		files[fmt.Sprintf("d%d/f%d.go", i%10, i)] = text10k + "func needle() {}\n"
	}
	tools, _ := tree(b, files, nil)
	for _, pattern := range []string{"func needle", "(?i)NEEDLE", `\w+\(\) \{\}$`} {
		b.Run(pattern, func(b *testing.B) {
			b.SetBytes(int64(1000 * len(text10k)))
			b.ReportAllocs()
			for b.Loop() {
				r, err := tools.searchFiles(b.Context(), searchInput{Pattern: pattern})
				if got := text(b, r, err); !strings.HasSuffix(got, "[1000 matching lines in 1000 files, 1000 files searched]\n") {
					b.Fatalf("%.200q", got)
				}
			}
		})
	}
}
