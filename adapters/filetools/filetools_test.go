package filetools

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

// tree writes files (by slash-separated name) into a new directory and opens
// it. A name that ends in a slash is a directory.
func tree(t testing.TB, files map[string]string, o *Options) (*Tools, string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, filepath.FromSlash(name))
		if strings.HasSuffix(name, "/") {
			must(t, os.MkdirAll(p, 0o755))
			continue
		}
		must(t, os.MkdirAll(filepath.Dir(p), 0o755))
		must(t, os.WriteFile(p, []byte(text), 0o644))
	}
	tools, err := Open(dir, o)
	must(t, err)
	t.Cleanup(func() { tools.Close() })
	return tools, dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// text is the whole of an answer, which must not be a failure.
func text(t testing.TB, r *psych.Result, err error) string {
	t.Helper()
	s, failed := all(t, r, err)
	if failed {
		t.Fatalf("failed: %s", s)
	}
	return s
}

// fails checks that an answer is a failure that says want and nothing of dir.
func fails(t testing.TB, r *psych.Result, err error, want, dir string) {
	t.Helper()
	s, failed := all(t, r, err)
	if !failed || !strings.Contains(s, want) {
		t.Errorf("got (failure %t) %q, want a failure with %q", failed, s, want)
	}
	if strings.Contains(s, dir) {
		t.Errorf("the failure says where the root is: %q", s)
	}
	if n := utf8.RuneCountInString(s); n > 500 {
		t.Errorf("the failure has %d characters, and would be cut at 500", n)
	}
}

func all(t testing.TB, r *psych.Result, err error) (string, bool) {
	t.Helper()
	must(t, err)
	b, err := io.ReadAll(r.Body)
	must(t, err)
	must(t, r.Body.(io.Closer).Close())
	if !utf8.Valid(b) {
		t.Errorf("the answer is not UTF-8: %q", b)
	}
	return string(b), r.IsError
}

// split takes an answer of read_file apart.
func split(t testing.TB, answer string) (h readHeader, text string) {
	t.Helper()
	line, text, ok := strings.Cut(answer, "\n")
	if !ok {
		t.Fatalf("no first line in %.200q", answer)
	}
	if err := json.Unmarshal([]byte(line), &h); err != nil {
		t.Fatalf("first line %q: %v", line, err)
	}
	return h, text
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "none"), nil); !errors.Is(err, psych.ErrInvalid) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that isn't there: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	if _, err := Open(filepath.Join(dir, "file"), nil); !errors.Is(err, psych.ErrInvalid) {
		t.Errorf("a file: %v", err)
	}
	if _, err := Open(dir, &Options{MaxBytes: -1}); !errors.Is(err, psych.ErrInvalid) {
		t.Errorf("a negative limit: %v", err)
	}
	tools, err := Open(dir, nil)
	must(t, err)
	must(t, tools.Close())
	r, err := tools.readFile(t.Context(), readInput{Path: "file"})
	fails(t, r, err, "the root has been closed", dir)
	r, err = tools.listFiles(t.Context(), listInput{})
	fails(t, r, err, "the root has been closed", dir)
}

func TestNothingLeavesTheRoot(t *testing.T) {
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("top secret"), 0o644))
	tools, dir := tree(t, map[string]string{"in/side": "fine", "d/": ""}, nil)
	rel, err := filepath.Rel(dir, outside)
	must(t, err)
	for name, target := range map[string]string{
		"abs-file": filepath.Join(outside, "secret"),
		"abs-dir":  outside,
		"rel-file": filepath.Join(rel, "secret"),
		"rel-dir":  rel,
		"d/up":     "../..",
		"self-abs": dir,
	} {
		must(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	ctx := t.Context()
	for _, p := range []string{
		"..", "../", "../" + filepath.Base(outside) + "/secret", "in/../../x", "d/../../x", "./../x", `"../x"`,
		"abs-file", "abs-dir/secret", "rel-file", "rel-dir/secret", "d/up/x", "self-abs/in/side",
	} {
		r, err := tools.readFile(ctx, readInput{Path: p})
		fails(t, r, err, "it leads outside of the root", dir)
		r, err = tools.listFiles(ctx, listInput{Path: p})
		fails(t, r, err, "it leads outside of the root", dir)
		r, err = tools.searchFiles(ctx, searchInput{Pattern: "secret", Path: p})
		fails(t, r, err, "it leads outside of the root", dir)
	}
	for _, p := range []string{filepath.ToSlash(outside) + "/secret", "/etc/passwd", "/"} {
		r, err := tools.readFile(ctx, readInput{Path: p})
		fails(t, r, err, "paths are relative to the root", dir)
		r, err = tools.listFiles(ctx, listInput{Path: p})
		fails(t, r, err, "paths are relative to the root", dir)
	}
	r, err := tools.readFile(ctx, readInput{Path: "in/side\x00"})
	fails(t, r, err, "NUL", dir)

	r, err = tools.searchFiles(ctx, searchInput{Pattern: "secret|fine"})
	if got, want := text(t, r, err), "in/side:1: fine\n[1 matching lines in 1 files, 1 files searched]\n"; got != want {
		t.Errorf("search found %q, want %q", got, want)
	}
	r, err = tools.listFiles(ctx, listInput{})
	got := text(t, r, err)
	if want := "abs-dir\t-\tsymlink\nabs-file\t-\tsymlink\nd/\t-\tdir\nd/up\t-\tsymlink\nin/\t-\tdir\nin/side\t4\tfile\nrel-dir\t-\tsymlink\nrel-file\t-\tsymlink\nself-abs\t-\tsymlink\n[9 listed, files of 4 bytes]\n"; got != want {
		t.Errorf("list:\n%swant\n%s", got, want)
	}
}

func TestLinksInsideTheRoot(t *testing.T) {
	tools, dir := tree(t, map[string]string{"real/file": "hello\n"}, nil)
	must(t, os.Symlink("real", filepath.Join(dir, "link")))
	must(t, os.Symlink("..", filepath.Join(dir, "real", "loop")))
	must(t, os.Symlink("round", filepath.Join(dir, "round")))
	ctx := t.Context()

	r, err := tools.readFile(ctx, readInput{Path: "link/file"})
	if _, got := split(t, text(t, r, err)); got != "hello\n" {
		t.Errorf("through a link: %q", got)
	}
	r, err = tools.listFiles(ctx, listInput{Path: "link"})
	if got, want := text(t, r, err), "link/file\t6\tfile\nlink/loop\t-\tsymlink\n[2 listed, files of 6 bytes]\n"; got != want {
		t.Errorf("list from a link: %q, want %q", got, want)
	}
	r, err = tools.searchFiles(ctx, searchInput{Pattern: "hello"})
	if got, want := text(t, r, err), "real/file:1: hello\n[1 matching lines in 1 files, 1 files searched]\n"; got != want {
		t.Errorf("search with a loop: %q, want %q", got, want)
	}
	r, err = tools.readFile(ctx, readInput{Path: "round"})
	fails(t, r, err, "too many levels of symbolic links", dir)
}

func TestHostileNames(t *testing.T) {
	names := map[string]string{
		"a\nb":            `"a\nb"`,
		"esc\x1b[2J":      `"esc\x1b[2J"`,
		"bad\xff":         `"bad\xff"`,
		"[truncated]":     `"[truncated]"`,
		`"q"`:             `"\"q\""`,
		"x:1: y":          `"x:1: y"`,
		"\u202etxt.exe":   `"\u202etxt.exe"`,
		"plain é 日本 .txt": "plain é 日本 .txt",
	}
	files := map[string]string{}
	for n := range names {
		files["dir\t/"+n] = "found\n"
	}
	tools, _ := tree(t, files, nil)
	ctx := t.Context()
	r, err := tools.listFiles(ctx, listInput{})
	lines := strings.Split(text(t, r, err), "\n")
	if len(lines) != len(names)+3 {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
	if lines[0] != `"dir\t/"`+"\t-\tdir" {
		t.Errorf("the directory is shown as %q", lines[0])
	}
	for _, l := range lines[1 : len(lines)-2] {
		shown, _, _ := strings.Cut(l, "\t")
		r, err := tools.readFile(ctx, readInput{Path: shown})
		if _, got := split(t, text(t, r, err)); got != "found\n" {
			t.Errorf("%s, as it was listed, reads as %q", shown, got)
		}
	}
	for n, want := range names {
		if got := showPath(n); got != want {
			t.Errorf("showPath(%q) = %s, want %s", n, got, want)
		}
	}
	r, err = tools.searchFiles(ctx, searchInput{Pattern: "found"})
	for l := range strings.Lines(text(t, r, err)) {
		if !strings.HasPrefix(l, `"dir\t/`) && !strings.HasPrefix(l, "[8 matching lines in 8 files") || strings.Contains(l, "\x1b") {
			t.Errorf("search shows %q", l)
		}
	}
}

func TestCancelled(t *testing.T) {
	tools, _ := tree(t, map[string]string{"a": "x\n", "b": "x\n", "c": "x\n"}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	list, err := tools.listFiles(ctx, listInput{})
	must(t, err)
	search, err := tools.searchFiles(ctx, searchInput{Pattern: "x"})
	must(t, err)
	for _, r := range []*psych.Result{list, search} {
		if n, err := r.Body.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Fatalf("first byte: %d, %v", n, err)
		}
	}
	cancel()
	for _, r := range []*psych.Result{list, search} {
		b, err := io.ReadAll(r.Body)
		if !errors.Is(err, context.Canceled) || strings.Contains(string(b), "c") {
			t.Errorf("a body whose context ended: %q, %v", b, err)
		}
		if n, err := r.Body.Read(make([]byte, 1)); n != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("and again: %d, %v", n, err)
		}
	}
	if _, err := tools.readFile(ctx, readInput{Path: "a"}); !errors.Is(err, context.Canceled) {
		t.Errorf("read_file: %v", err)
	}
	if _, err := tools.listFiles(ctx, listInput{}); !errors.Is(err, context.Canceled) {
		t.Errorf("list_files: %v", err)
	}
	if _, err := tools.searchFiles(ctx, searchInput{Pattern: "x"}); !errors.Is(err, context.Canceled) {
		t.Errorf("search_files: %v", err)
	}
}

func TestCounts(t *testing.T) {
	tools, _ := tree(t, map[string]string{"a": "aé\n"}, nil)
	ctx := t.Context()
	var want Counts
	count := func(c *ToolCounts, r *psych.Result, err error) {
		s, failed := all(t, r, err)
		c.Calls++
		if failed {
			c.Failures++
		}
		c.Bytes += int64(len(s))
		c.Chars += int64(utf8.RuneCountInString(s))
	}
	r, err := tools.readFile(ctx, readInput{Path: "a"})
	count(&want.ReadFile, r, err)
	r, err = tools.readFile(ctx, readInput{Path: "ü"})
	count(&want.ReadFile, r, err)
	r, err = tools.listFiles(ctx, listInput{})
	count(&want.ListFiles, r, err)
	r, err = tools.searchFiles(ctx, searchInput{Pattern: "é"})
	count(&want.SearchFiles, r, err)
	if got := tools.Counts(); got != want || got.ReadFile.Failures != 1 || got.ReadFile.Bytes == got.ReadFile.Chars {
		t.Errorf("counts %+v, want %+v", got, want)
	}
	if got := tools.Counts().Total(); got.Calls != 4 || got.Bytes != want.ReadFile.Bytes+want.ListFiles.Bytes+want.SearchFiles.Bytes {
		t.Errorf("total %+v of %+v", got, want)
	}
}

func TestClosedBody(t *testing.T) {
	tools, _ := tree(t, map[string]string{"a": "x\n", "b": "x\n"}, nil)
	r, err := tools.searchFiles(t.Context(), searchInput{Pattern: "x"})
	must(t, err)
	_, err = r.Body.Read(make([]byte, 1))
	must(t, err)
	must(t, r.Body.(io.Closer).Close())
	if b, err := io.ReadAll(r.Body); len(b) > 0 || !errors.Is(err, fs.ErrClosed) {
		t.Errorf("after Close: %q, %v", b, err)
	}
}
