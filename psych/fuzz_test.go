package psych

import (
	"bytes"
	"context"
	"errors"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// oneOutput is a state with one call, c1_1, that has a result and an attachment
// in slot stdout.
func oneOutput(result string) *state {
	s := newState(testRun, Limits{})
	c := &call{id: "c1_1", turn: 1, done: &ToolCallFinished{Call: "c1_1", Outcome: Succeeded, Result: newPayload("text/plain", []byte(result))}}
	c.done.Attachments = []Attachment{{Name: "stdout", Slot: "stdout", Output: newPayload("text/plain", []byte("out"))}}
	s.batches = []*batch{{turn: 1, calls: []*call{c}}}
	return s
}

// A handle reaches what was emitted under it and nothing else, whatever a model
// makes up.
func FuzzHandle(f *testing.F) {
	for _, s := range []string{`{"handle":"out_c1_1"}`, `{"handle":"out_c1_1_stdout","offset":3,"grep":"a"}`, `"{\"handle\":\"out_c1_1\"}"`, `{"handle":null}`, `{"handle":"out_c1_1_"}`, `{"handle":"out_c1_1/../x","limit":1e9}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, args []byte) {
		handle, _, err := parseReadArgs(args)
		if err != nil {
			if !errors.Is(err, ErrInvalid) || !utf8.ValidString(err.Error()) && utf8.Valid(args) || utf8.RuneCountInString(err.Error()) > 4000 {
				t.Fatalf("%q: %v", args, err)
			}
			return
		}
		if !strings.HasPrefix(handle, outputPrefix) {
			t.Fatalf("%q is taken for a handle", handle)
		}
		c, p := oneOutput("x").output(handle)
		if found := handle == "out_c1_1" || handle == "out_c1_1_stdout"; found != (c != nil) || found != (p != nil) {
			t.Fatalf("handle %q finds %v, %v", handle, c, p)
		}
	})
}

var legalName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// A name is legal on the wire, whatever a model made up, and a legal one is as
// it was; a slot is legal in a handle and in a blob's key, and no other's.
func FuzzName(f *testing.F) {
	for _, s := range [][2]string{{"", "a"}, {"read file", "read_file"}, {"a\x00b", "日本"}, {strings.Repeat("x", 65), strings.Repeat("é", 60)}, {"file:report.csv", "File:Report.CSV"}, {"İ", "\xff"}, {"result", "args"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		var taken slots
		seen := map[string]bool{"result": true, "args": true} // segments of a call's own
		for _, name := range []string{a, b, a, b} {
			wire := wireName(name)
			if !legalName.MatchString(wire) || legalName.MatchString(name) && wire != name || wireName(wire) != wire {
				t.Fatalf("name %q is %q on the wire", name, wire)
			}
			if toolNameProblem(name) == "" && wire != name {
				t.Fatalf("name %q is a tool's, and %q on the wire", name, wire)
			}
			slot := taken.of(name)
			if seen[slot] {
				t.Fatalf("slot %q of %q is taken", slot, name)
			}
			seen[slot] = true
			if err := (BlobKey{testRun.Tenant, testRun.RunID, "c1_1." + slot + ".1"}).Check(); err != nil {
				t.Fatalf("slot %q of %q: %v", slot, name, err)
			}
			if handle, _, err := parseReadArgs([]byte(`{"handle":"` + outputPrefix + "c1_1_" + slot + `"}`)); err != nil || handle != outputPrefix+"c1_1_"+slot {
				t.Fatalf("slot %q of %q in a handle: %q, %v", slot, name, handle, err)
			}
		}
		if a != b && !legalName.MatchString(a) && wireName(a) == wireName(b) {
			t.Fatalf("%q and %q are both %q", a, b, wireName(a))
		}
	})
}

// A position that is read is written the same way again: no two texts are one.
func FuzzPos(f *testing.F) {
	for _, s := range []string{"0", "17", "17.bTE3", "017", "+1", "1.", "1.!", "18446744073709551616"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePos(s)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if p.String() != s {
			t.Fatalf("%q is read as %+v and written as %q", s, p, p)
		}
	})
}

// A note that can't be decoded is an error that says so, and one that can is
// encoded the same again.
func FuzzNote(f *testing.F) {
	for _, e := range []Event{
		&UserMessage{Text: newPayload("text/plain", []byte("hello")), Attachments: []Attachment{{Name: "a", Slot: "a", Output: newPayload("text/csv", []byte("1,2"))}}},
		&AbortRequested{Message: "m1", Reason: "enough"},
	} {
		data, err := encodeNote(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(e.Kind()), data)
	}
	f.Fuzz(func(t *testing.T, kind string, data []byte) {
		e, err := decodeNote(testRun, Note{ID: "n", Kind: Kind(kind), Data: data})
		if err != nil {
			var corrupt *CorruptionError
			var unsupported *UnsupportedError
			if !errors.As(err, &corrupt) && !errors.As(err, &unsupported) {
				t.Fatalf("%q: %v", data, err)
			}
			return
		}
		if _, ok := e.(*Unknown); ok {
			return
		}
		again, err := encodeNote(e)
		if err != nil {
			t.Fatal(err)
		}
		back, err := decodeNote(testRun, Note{ID: "n", Kind: Kind(kind), Data: again})
		if err != nil {
			t.Fatalf("%q: %v", again, err)
		}
		if twice, err := encodeNote(back); err != nil || !bytes.Equal(twice, again) {
			t.Fatalf("encoded again: %q, %v; want %q", twice, err, again)
		}
	})
}

// A URL is refused or opened by the opener of its scheme, with what it says; a
// path is absolute and has no NUL.
func FuzzURL(f *testing.F) {
	for _, s := range []string{"file:///var/lib/psych", "file://host/x", "file:relative", "FILE:///x?a=1", "file:///x?a=1&a=2", "file:///x?%zz", "file:///a%00b", "file:///x#y", "mem:", "nothing", "file:///%2e%2e/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var m Mux[string]
		m.Handle("file", func(_ context.Context, u *url.URL) (string, error) {
			if params, err := Params(u, "a", "b"); err == nil {
				for name := range params {
					if name != "a" && name != "b" {
						t.Fatalf("%q has the parameter %q", s, name)
					}
				}
			} else if !errors.Is(err, ErrInvalid) {
				t.Fatalf("%q: %v", s, err)
			}
			return FilePath(u)
		})
		path, err := m.Open(context.Background(), s)
		switch {
		case err != nil && !errors.Is(err, ErrInvalid):
			t.Fatalf("%q: %v", s, err)
		case err == nil && (!strings.HasPrefix(path, "/") || strings.Contains(path, "\x00")):
			t.Fatalf("%q is the path %q", s, path)
		case err == nil && !strings.HasPrefix(strings.ToLower(s), "file:/"):
			t.Fatalf("%q was opened as a file", s)
		}
	})
}

// A preview is whole characters from both ends of what it is a preview of, and
// says how many are left out.
func FuzzPreview(f *testing.F) {
	f.Add("", 100)
	f.Add(strings.Repeat("é\n", 300), 100)
	f.Add(strings.Repeat("a", 500)+"\x00"+strings.Repeat("🙂", 500), 117)
	f.Fuzz(func(t *testing.T, text string, n int) {
		text = strings.ToValidUTF8(text, "\uFFFD")
		n = max(minPreviewChars, min(n, MaxPreviewChars))
		s := oneOutput(text)
		s.limits.PreviewChars = n
		c := s.call("c1_1")
		c.makeParts()
		x := &c.parts[0]
		if s.asPreview(x) == 0 {
			return // shown whole
		}
		got := string(s.appendPreview(nil, x))
		chars := []rune(strings.ReplaceAll(text, "\x00", "␀"))
		head, tail := string(chars[:n]), string(chars[len(chars)-n:])
		if !utf8.ValidString(got) || !strings.HasPrefix(got, head+"\n… ") || !strings.Contains(got, " characters left out …\n"+tail+"\n[text/plain, ") || !strings.HasSuffix(got, `handle "out_c1_1".]`) {
			t.Fatalf("the preview of %q with %d characters is %q", text, n, got)
		}
	})
}
