package filetools

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestListPattern(t *testing.T) {
	tools, dir := tree(t, map[string]string{
		"a.go": "", "b.txt": "1", "src/a.go": "22", "src/deep/x.ts": "", "src/deep/y.tsx": "", "src/deep/z.go": "", ".git/config": "", "empty/": "",
	}, nil)
	for _, c := range []struct{ path, pattern, want string }{
		{"", "", ".git/ .git/config a.go b.txt empty/ src/ src/a.go src/deep/ src/deep/x.ts src/deep/y.tsx src/deep/z.go"},
		{"", "*.go", "a.go src/a.go src/deep/z.go"},
		{"", "**/*.go", "a.go src/a.go src/deep/z.go"},
		{"", "/*.go", "a.go"},
		{"", "./*.go", "a.go"},
		{"", "src/*", "src/a.go src/deep/"},
		{"", "src/**", "src/a.go src/deep/ src/deep/x.ts src/deep/y.tsx src/deep/z.go"},
		{"", "src/**/*.{ts,tsx}", "src/deep/x.ts src/deep/y.tsx"},
		{"", "[!a-y].go", "src/deep/z.go"},
		{"", "?.go", "a.go src/a.go src/deep/z.go"},
		{"", ".git/**", ".git/config"},
		{"", "empty/", "empty/"},
		{"src", "*.go", "src/a.go src/deep/z.go"},
		{"src", "deep/*.go", "src/deep/z.go"},
		{"src/", "./deep/*.go", "src/deep/z.go"},
		{"src/deep/../a.go", "", "src/a.go"},
		{"empty", "", ""},
		{"", "none", ""},
	} {
		r, err := tools.listFiles(t.Context(), listInput{Path: c.path, Pattern: c.pattern})
		var got []string
		for l := range strings.Lines(text(t, r, err)) {
			if !strings.HasPrefix(l, "[") {
				name, _, _ := strings.Cut(l, "\t")
				got = append(got, name)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("path %q, pattern %q: %s\nwant %s", c.path, c.pattern, got, c.want)
		}
	}
	for _, p := range []string{"[a", "{a,b", "a}", `a\`, "[z-a]", "x/[", "[!"} {
		r, err := tools.listFiles(t.Context(), listInput{Pattern: p})
		fails(t, r, err, "is no glob", dir)
		r, err = tools.searchFiles(t.Context(), searchInput{Pattern: "x", Glob: p})
		fails(t, r, err, "is no glob", dir)
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		glob, path string
		want       bool
	}{
		{"a.c", "abc", false},
		{`\*`, "*", true},
		{`\*`, "x", false},
		{"[]a]", "]", true},
		{"[a^]", "^", true},
		{"[^a]", "b", true},
		{"[^a]", "a", false},
		{`[\]]`, "]", true},
		{"a[!b]c/x", "a/c/x", false},
		{"[a-c-]", "-", true},
		{"a,b", "a,b", true},
		{"{a,{b,c}}d", "cd", true},
		{"a/**/b", "a/b", true},
		{"a/**/b", "a/x/y/b", true},
		{"a/**/b", "ab", false},
		{"a**/b", "ax/b", true},
		{"a**/b", "ax/y/b", false},
		{"**", "a/b", true},
		{"**/", "a", true},
		{"*", "new\nline", true},
		{"é?", "é日", true},
		{"?", "\xff", true},
		{"*.GO", "a.go", false},
		{"+(a)$", "+(a)$", true},
	} {
		g, err := compileGlob(c.glob)
		must(t, err)
		if got := g.match(c.path); got != c.want {
			t.Errorf("%q matches %q: %t", c.glob, c.path, got)
		}
	}
}

func FuzzGlob(f *testing.F) {
	f.Add("src/**/*.{ts,tsx}", "src/a.ts")
	f.Add("[!a-z]?", "0x")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		g, err := compileGlob(pattern)
		if err == nil {
			g.match(path)
		}
	})
}

func TestListTruncated(t *testing.T) {
	files := map[string]string{}
	for i := range 100 {
		files[fmt.Sprintf("file%02d", i)] = "x"
	}
	line := int64(len("file00\t1\tfile\n"))
	for _, c := range []struct {
		limit int64
		lines int
		last  string
	}{
		{100 * line, 100, "[100 listed, files of 100 bytes]\n"},
		{100*line - 1, 99, fmt.Sprintf("[truncated, there is more than %d bytes: 99 listed, files of 99 bytes; narrow it down by path or pattern]\n", 100*line-1)},
		{line - 1, 0, fmt.Sprintf("[truncated, there is more than %d bytes: 0 listed, files of 0 bytes; narrow it down by path or pattern]\n", line-1)},
	} {
		tools, _ := tree(t, files, &Options{MaxBytes: c.limit})
		r, err := tools.listFiles(t.Context(), listInput{})
		got := text(t, r, err)
		if n := strings.Count(got, "\tfile\n"); n != c.lines || !strings.HasSuffix(got, c.last) || int64(len(got)-len(c.last)) > c.limit {
			t.Errorf("limit %d: %d files, %q", c.limit, n, got[max(0, len(got)-200):])
		}
	}
}

// What goes away while an answer is read is left out with a note.
func TestListVanishing(t *testing.T) {
	tools, dir := tree(t, map[string]string{"a": "", "b": "", "c/d": "", "e": ""}, nil)
	r, err := tools.listFiles(t.Context(), listInput{})
	must(t, err)
	first := make([]byte, 1)
	_, err = r.Body.Read(first)
	must(t, err)
	must(t, os.Remove(filepath.Join(dir, "b")))
	must(t, os.RemoveAll(filepath.Join(dir, "c")))
	got := string(first) + text(t, r, err)
	if want := "a\t0\tfile\n[skipped b: no such file or directory]\n[skipped c: no such file or directory]\ne\t0\tfile\n[2 listed, files of 0 bytes, 2 skipped]\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
