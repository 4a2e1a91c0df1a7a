package psych

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"
)

// outputs returns s as an inline payload and as one in blobs.
func outputs(t *testing.T, contentType, s string) (map[string]*Payload, *countingBlobs) {
	t.Helper()
	blobs := &countingBlobs{}
	ref, err := capture(context.Background(), strings.NewReader(s), contentType, 0, blobs, payloadKey)
	if err != nil {
		t.Fatal(err)
	}
	inline := newPayload(contentType, []byte(s))
	return map[string]*Payload{"inline": &inline, "blob": &ref}, blobs
}

func allocatedBytes(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestReadOutputLines(t *testing.T) {
	const text = "one\r\ntwo\n\nf\x00ur\n日本 five\nlast"
	ps, blobs := outputs(t, "text/plain", text)
	for name, p := range ps {
		for _, c := range []struct {
			q    OutputQuery
			want string
			next int64
		}{
			{OutputQuery{}, "one\r\ntwo\n\nf␀ur\n日本 five\nlast", 0},
			{OutputQuery{Limit: 2}, "one\r\ntwo\n", 2},
			{OutputQuery{Offset: 2, Limit: 2}, "\nf␀ur\n", 4},
			{OutputQuery{Offset: 4, Limit: 1}, "日本 five\n", 5},
			{OutputQuery{Offset: 5}, "last", 0},
			{OutputQuery{Offset: 6}, "", 0},
			{OutputQuery{Offset: 1<<63 - 1, Limit: 1<<63 - 1}, "", 0},
			{OutputQuery{Unit: UnitChars, Offset: 3, Limit: 4}, "\r\ntw", 7},
			{OutputQuery{Unit: UnitChars, Offset: 10, Limit: 1}, "f", 11},
			{OutputQuery{Unit: UnitChars, Offset: 11, Limit: 2}, "␀u", 13},
			{OutputQuery{Unit: UnitChars, Offset: 15, Limit: 2}, "日本", 17},
			{OutputQuery{Unit: UnitChars, Offset: 16, Limit: 2}, "本 ", 18},
			{OutputQuery{Unit: UnitChars, Offset: 1000}, "", 0},
		} {
			w, err := readOutput(context.Background(), p, blobs, payloadRun, c.q)
			if err != nil {
				t.Fatal(err)
			}
			unit := c.q.Unit
			if unit == "" {
				unit = UnitLines
			}
			if w.Text != c.want || w.NextOffset != c.next || w.AtEnd != (c.next == 0) || w.Truncated != (c.next > 0) || w.Unit != unit ||
				w.TotalLines != 6 || w.TotalChars != int64(utf8.RuneCountInString(text)) || w.Matches != nil || w.Offset != c.q.Offset {
				t.Errorf("%s %+v: %+v", name, c.q, w)
			}
		}
	}
}

// A reader that cuts lines before it looks never finds what is far inside one.
func TestReadOutputOneLongLine(t *testing.T) {
	line := strings.Repeat("0123456789", 9000)
	far := strings.Repeat("é", 100_000) + "needle" + strings.Repeat("é", 50_000)
	ps, blobs := outputs(t, "text/plain", line)
	for name, p := range ps {
		var got strings.Builder
		for offset := int64(0); ; {
			w, err := readOutput(context.Background(), p, blobs, payloadRun, OutputQuery{Offset: offset, Limit: 1 << 40})
			if err != nil {
				t.Fatal(err)
			}
			if w.Unit != UnitChars || len(w.Text) > 20_000 {
				t.Fatalf("%s: %d characters by %s", name, len(w.Text), w.Unit)
			}
			got.WriteString(w.Text)
			if w.AtEnd {
				break
			}
			if !w.Truncated {
				t.Errorf("%s: not truncated at %d", name, offset)
			}
			offset = w.NextOffset
		}
		if got.String() != line {
			t.Errorf("%s: pages don't give the line", name)
		}
		w, err := readOutput(context.Background(), p, blobs, payloadRun, OutputQuery{Unit: UnitLines})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(w.Text, line[:2000]+"… [line cut") || !strings.Contains(w.Text, "at character 2000,") || !w.Truncated || !w.AtEnd {
			t.Errorf("%s: %+v", name, w)
		}
	}
	ps, blobs = outputs(t, "application/json", far)
	for name, p := range ps {
		w, err := readOutput(context.Background(), p, blobs, payloadRun, OutputQuery{Grep: "needle"})
		if err != nil {
			t.Fatal(err)
		}
		want := "1: [character 99800] …" + strings.Repeat("é", 200) + "needle" + strings.Repeat("é", 200) + "…\n"
		if w.Text != want || *w.Matches != 1 || w.Unit != UnitMatches || !w.AtEnd || w.Truncated {
			t.Errorf("%s: %+v", name, w)
		}
	}
}

func TestReadOutputGrep(t *testing.T) {
	ps, blobs := outputs(t, "text/plain", "foo bar foo\r\nnothing\nbar\x00foo\n")
	long, longBlobs := outputs(t, "application/json", strings.Repeat(strings.Repeat("x", 500)+"hit", 1000))
	for _, name := range []string{"inline", "blob"} {
		for _, c := range []struct {
			q       OutputQuery
			want    string
			matches int64
			next    int64
		}{
			{OutputQuery{Grep: "foo"}, "1: foo bar foo\n3: bar␀foo\n", 3, 0},
			{OutputQuery{Grep: "foo", Limit: 1}, "1: foo bar foo\n", 3, 1},
			{OutputQuery{Grep: "foo", Offset: 1, Limit: 1}, "1: foo bar foo\n", 3, 2},
			{OutputQuery{Grep: "foo", Offset: 2}, "3: bar␀foo\n", 3, 0},
			{OutputQuery{Grep: "foo", Offset: 3}, "", 3, 0},
			{OutputQuery{Grep: "foo$", Unit: UnitChars}, "1: foo bar foo\n3: bar␀foo\n", 2, 0},
			{OutputQuery{Grep: "^n"}, "2: nothing\n", 1, 0},
			{OutputQuery{Grep: "absent"}, "", 0, 0},
			{OutputQuery{Grep: "FOO$", IgnoreCase: true}, "1: foo bar foo\n3: bar␀foo\n", 2, 0},
			{OutputQuery{Grep: "N", IgnoreCase: true, Context: 1}, "1- foo bar foo\n2: nothing\n3- bar␀foo\n", 2, 0},
			{OutputQuery{Grep: "foo", Limit: 1, Context: 1}, "1: foo bar foo\n2- nothing\n", 3, 1},
			{OutputQuery{Grep: "^bar", Context: 10}, "1- foo bar foo\n2- nothing\n3: bar␀foo\n", 1, 0},
			{OutputQuery{Grep: `\x00`}, "3: bar␀foo\n", 1, 0},
			{OutputQuery{Grep: `x*$`}, "1: foo bar foo\n2: nothing\n3: bar␀foo\n", 3, 0},
		} {
			w, err := readOutput(context.Background(), ps[name], blobs, payloadRun, c.q)
			if err != nil {
				t.Fatal(err)
			}
			if w.Text != c.want || *w.Matches != c.matches || w.NextOffset != c.next || w.AtEnd != (c.next == 0) || w.Unit != UnitMatches {
				t.Errorf("%s %+v: %+v", name, c.q, w)
			}
		}
		w, err := readOutput(context.Background(), long[name], longBlobs, payloadRun, OutputQuery{Grep: "hit", Offset: 899, Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("1: [character %d] …%shit%s…\n", 899*503+300, strings.Repeat("x", 200), strings.Repeat("x", 200))
		if w.Text != want || *w.Matches != 1000 || w.NextOffset != 900 {
			t.Errorf("%s: %+v", name, w)
		}
	}
}

// A search that stops says where it goes on, and no total; one that goes on
// there finds the rest.
func TestReadOutputSearchInParts(t *testing.T) {
	defer func(n int64) { searchBytes = n }(searchBytes)
	searchBytes = 1 << 20
	for name, unit := range map[string]string{"lines": strings.Repeat("some é line\n", 5000), "one line": strings.Repeat("some é text ", 5000)} {
		in := strings.Repeat(unit+"the Needle ", 60)
		ps, blobs := outputs(t, "text/plain", in)
		p := ps["blob"]
		for _, limit := range []int64{0, 7} {
			q := OutputQuery{Grep: "Need[l]e", Limit: limit}
			found, parts := 0, map[int64]bool{}
			for {
				blobs.opens, blobs.read = 0, 0
				w, err := readOutput(context.Background(), p, blobs, payloadRun, q)
				if err != nil {
					t.Fatal(err)
				}
				if blobs.opens != 1 || blobs.read > searchBytes+64<<10 {
					t.Fatalf("%s: %d reads of %d bytes", name, blobs.opens, blobs.read)
				}
				if w.Matches != nil || w.TotalChars != p.Chars || w.Truncated == w.AtEnd {
					t.Fatalf("%s: %+v", name, w)
				}
				parts[q.From] = true
				found += strings.Count(w.Text, "Needle")
				head, _, _ := strings.Cut(w.answer(), "\n")
				if strings.Contains(head, `"matches":`) || strings.Contains(head, `"next_offset":`) == w.AtEnd || w.NextFrom > 0 != strings.Contains(head, fmt.Sprintf(`"next_from":%d,`, w.NextFrom)) {
					t.Fatalf("%s: %s for %+v", name, head, w)
				}
				if w.AtEnd {
					break
				}
				q.Offset, q.From = w.NextOffset, w.NextFrom
			}
			if found != 60 || len(parts) < 4 {
				t.Errorf("%s, limit %d: %d matches in %d parts", name, limit, found, len(parts))
			}
		}
		// A total is known where all was searched from the first character on.
		if w, err := readOutput(context.Background(), ps["blob"], blobs, payloadRun, OutputQuery{Grep: "absent", From: p.Chars - 10}); err != nil || !w.AtEnd || w.Matches != nil {
			t.Errorf("%s: %+v, %v", name, w, err)
		}
	}
}

// Of what was let go nothing is read, and the error says why.
func TestReadOutputLetGo(t *testing.T) {
	p, err := keep(context.Background(), strings.NewReader(strings.Repeat("line\n", 100_000)), "text/plain", nil, payloadKey)
	if err != nil {
		t.Fatal(err)
	}
	for _, blobs := range []BlobStore{nil, &countingBlobs{}} {
		for _, q := range []OutputQuery{{}, {Grep: "x"}, {Unit: UnitChars, Offset: 5}} {
			if _, err := readOutput(context.Background(), &p, blobs, payloadRun, q); !errors.Is(err, ErrNoBlobStore) {
				t.Errorf("%+v: %v", q, err)
			}
		}
	}
}

// Characters of several code points come back whole, wherever pages cut them.
func TestReadOutputCombining(t *testing.T) {
	for _, unit := range []string{"e\u0301", "👩\u200d👩\u200d👧\u200d👦", "🇩🇪", "a\u0300\u0316\u0315\u031b", "\u2028x", "👍🏽\r"} {
		in := strings.Repeat(unit, 30_000)
		ps, blobs := outputs(t, "text/plain", in)
		for name, p := range ps {
			var got strings.Builder
			for q := (OutputQuery{Unit: UnitChars, Limit: 4999}); ; q.Offset += 4999 {
				w, err := readOutput(context.Background(), p, blobs, payloadRun, q)
				if err != nil {
					t.Fatal(err)
				}
				if !utf8.ValidString(w.Text) {
					t.Fatalf("%s, %q: the page at %d cuts a character", name, unit, q.Offset)
				}
				got.WriteString(w.Text)
				if w.AtEnd {
					break
				}
			}
			if got.String() != in {
				t.Errorf("%s: pages of %q differ from it", name, unit)
			}
		}
	}
}

func TestReadOutputInvalid(t *testing.T) {
	ps, blobs := outputs(t, "text/plain", "text\n")
	for name, p := range ps {
		for _, q := range []OutputQuery{{Offset: -1}, {Limit: -1}, {Offset: -1 << 63}, {Unit: "bytes"}, {Grep: "("}, {Grep: "a{5000}"}, {Grep: strings.Repeat("a", 2000)}, {Grep: "x", Offset: -1}, {Grep: "(", IgnoreCase: true}, {Grep: "a)(b", IgnoreCase: true},
			{Grep: "x", Context: -1}, {Grep: "x", Context: 11}, {Grep: "x", From: -1}, {From: 1}, {Unit: UnitChars, From: 1}} {
			if _, err := readOutput(context.Background(), p, blobs, payloadRun, q); !errors.Is(err, ErrInvalid) {
				t.Errorf("%s %.60v: %v", name, q, err)
			}
		}
		_, err := readOutput(context.Background(), p, blobs, payloadRun, OutputQuery{Grep: "a(b"})
		if err == nil || !strings.Contains(err.Error(), "missing closing )") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if blobs.opens != 0 {
		t.Errorf("%d reads", blobs.opens)
	}
}

func TestReadOutputBinary(t *testing.T) {
	ps, blobs := outputs(t, "image/png", "\x89PNG needle \xff")
	for name, p := range ps {
		for _, q := range []OutputQuery{{}, {Grep: "needle"}, {Unit: UnitChars, Offset: 3}} {
			w, err := readOutput(context.Background(), p, blobs, payloadRun, q)
			if err != nil {
				t.Fatal(err)
			}
			if !w.Binary || w.Text != "" || w.Matches != nil || w.ContentType != "image/png" || w.Size != 13 || !w.AtEnd {
				t.Errorf("%s %+v: %+v", name, q, w)
			}
			want := fmt.Sprintf(`{"offset":%d,"truncated":false,"content_type":"image/png","size_bytes":13,"binary":true}`, q.Offset) +
				"\n[This output is binary (image/png, 13 bytes). It is neither decoded nor searched.]"
			if got := w.answer(); got != want {
				t.Errorf("%s: answer %s", name, got)
			}
		}
	}
	if blobs.opens != 0 {
		t.Errorf("%d reads", blobs.opens)
	}
}

func TestReadOutputGone(t *testing.T) {
	ps, blobs := outputs(t, "text/plain", strings.Repeat("line\n", 1000))
	p := ps["blob"]
	blobs.m[payloadKey] = blobs.m[payloadKey][:100]
	for _, q := range []OutputQuery{{Offset: 500}, {Unit: UnitChars, Offset: 500}, {Grep: "x"}} {
		if _, err := readOutput(context.Background(), p, blobs, payloadRun, q); !errors.Is(err, errDamaged) {
			t.Errorf("cut, %+v: %v", q, err)
		}
	}
	delete(blobs.m, payloadKey)
	for _, q := range []OutputQuery{{}, {Unit: UnitChars}, {Grep: "x"}} {
		_, err := readOutput(context.Background(), p, blobs, payloadRun, q)
		if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), payloadKey.CallID) {
			t.Errorf("gone, %+v: %v", q, err)
		}
		if _, err := readOutput(context.Background(), p, nil, payloadRun, q); !errors.Is(err, ErrNoBlobStore) {
			t.Errorf("no store, %+v: %v", q, err)
		}
	}
	// A blob that is gone matters only to what must be read.
	if w, err := readOutput(context.Background(), p, blobs, payloadRun, OutputQuery{Offset: 1000}); err != nil || w.Text != "" {
		t.Errorf("past the end: %+v, %v", w, err)
	}
}

// A window in 16 MiB costs one ranged read and little memory, wherever it lies
// and whatever the lines are like.
func TestReadOutputCost(t *testing.T) {
	for _, unit := range []string{"0123456789abcde ", "0123456 89abcde\n"} {
		blobs := &fileBlobs{dir: t.TempDir()}
		p, err := capture(context.Background(), io.LimitReader(&loopReader{s: unit}, 16<<20), "text/plain", 0, blobs, payloadKey)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range []OutputQuery{
			{}, {Unit: UnitChars, Offset: p.Chars / 2}, {Unit: UnitChars, Offset: p.Chars - 1}, {Unit: UnitLines, Offset: p.Lines / 2}, {Unit: UnitLines, Offset: p.Lines - 1},
		} {
			blobs.opens, blobs.read = 0, 0
			var w *OutputWindow
			n := allocatedBytes(func() { w, err = readOutput(context.Background(), &p, blobs, payloadRun, q) })
			if err != nil {
				t.Fatal(err)
			}
			if w.Text == "" || blobs.opens != 1 || blobs.read > 1<<20 || n > 1<<20 {
				t.Errorf("%q %+v: %d reads of %d bytes, %d bytes allocated", unit, q, blobs.opens, blobs.read, n)
			}
		}
		blobs.opens = 0
		n := allocatedBytes(func() {
			_, err = readOutput(context.Background(), &p, blobs, payloadRun, OutputQuery{Grep: "89abcde", Offset: 500_000})
		})
		if err != nil || blobs.opens != 1 || n > 8<<20 {
			t.Errorf("grep: %v, %d reads, %d bytes allocated", err, blobs.opens, n)
		}
	}
}

// loopReader repeats s for ever.
type loopReader struct {
	s  string
	at int
}

func (r *loopReader) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		k := copy(p[n:], r.s[r.at:])
		n += k
		r.at = (r.at + k) % len(r.s)
	}
	return n, nil
}

func TestAnswer(t *testing.T) {
	p := newPayload("text/plain", []byte("a<b>\nc\n"))
	for _, c := range []struct {
		q    OutputQuery
		want string
	}{
		{OutputQuery{}, `{"total_chars":7,"total_lines":2,"offset":0,"truncated":false,"unit":"lines"}` + "\na<b>\nc\n"},
		{OutputQuery{Limit: 1}, `{"total_chars":7,"total_lines":2,"offset":0,"next_offset":1,"truncated":true,"unit":"lines"}` + "\na<b>\n"},
		{OutputQuery{Offset: 9, Unit: UnitChars}, `{"total_chars":7,"total_lines":2,"offset":9,"truncated":false,"unit":"chars"}` + "\n"},
		{OutputQuery{Grep: "z"}, `{"total_chars":7,"total_lines":2,"matches":0,"offset":0,"truncated":false,"unit":"matches"}` + "\n"},
		{OutputQuery{Grep: "A", IgnoreCase: true}, `{"total_chars":7,"total_lines":2,"matches":1,"offset":0,"truncated":false,"unit":"matches"}` + "\n1: a<b>\n"},
		{OutputQuery{Grep: "c", Context: 1}, `{"total_chars":7,"total_lines":2,"matches":1,"offset":0,"truncated":false,"unit":"matches"}` + "\n1- a<b>\n2: c\n"},
		{OutputQuery{Grep: "[ac]", From: 2}, `{"total_chars":7,"total_lines":2,"offset":0,"truncated":false,"unit":"matches"}` + "\n2: c\n"},
		{OutputQuery{Grep: "[ac]", Limit: 1}, `{"total_chars":7,"total_lines":2,"matches":2,"offset":0,"next_offset":1,"truncated":true,"unit":"matches"}` + "\n1: a<b>\n"},
	} {
		w, err := readOutput(context.Background(), &p, nil, payloadRun, c.q)
		if err != nil {
			t.Fatal(err)
		}
		if got := w.answer(); got != c.want {
			t.Errorf("%+v:\n%s, want\n%s", c.q, got, c.want)
		}
	}
}

func TestParseReadArgs(t *testing.T) {
	for args, want := range map[string]OutputQuery{
		`{"handle":"out_c3_1"}`: {},
		` {"handle":"out_c3_1","offset":5,"limit":10,"grep":"a","unit":"lines"} `:   {Offset: 5, Limit: 10, Grep: "a", Unit: "lines"},
		`{"handle":"out_c3_1","offset":null,"limit":null,"grep":null,"unit":null}`:  {},
		`{"handle":"out_c3_1","offset":0,"limit":0,"grep":"","unit":""}`:            {},
		`{"handle":"out_c3_1","offset":20.0,"limit":1e3}`:                           {Offset: 20, Limit: 1000},
		`{"handle":"out_c3_1","offset":9223372036854775807}`:                        {Offset: 1<<63 - 1},
		`"{\"handle\":\"out_c3_1\",\"unit\":\"chars\"}"`:                            {Unit: "chars"},
		`{"handle":"out_c3_1","grep":"a","ignore_case":true,"context":10,"from":7}`: {Grep: "a", IgnoreCase: true, Context: 10, From: 7},
		`{"handle":"out_c3_1","ignore_case":false,"context":0,"from":0}`:            {},
		`{"handle":"out_c3_1","ignore_case":null,"context":null,"from":null}`:       {},
		`{"handle":"out_c3_1","ignore_case":true,"context":2}`:                      {IgnoreCase: true, Context: 2},
		`{"handle":"\u006fut_c3_1"}`:                                                {},
	} {
		handle, q, err := parseReadArgs(json.RawMessage(args))
		if err != nil || handle != "out_c3_1" || q != want {
			t.Errorf("%s: %q, %+v, %v", args, handle, q, err)
		}
	}
	for _, args := range []string{
		``, `x`, `null`, `7`, `[]`, `"out_c3_1"`, `"{\"handle\":7}"`, `{}`, `{"handle":null}`, `{"handle":7}`, `{"handle":["out_c3_1"]}`, `{"handle":""}`, `{"handle":"c3_1"}`, `{"handle":" out_c3_1"}`, `{"handle":"Out_c3_1"}`,
		`{"Handle":"out_c3_1"}`, `{"handle":"out_c3_1","handle":"out_c3_2"}`, `{"handle":"out_c3_1"} {}`, `{"handle":"out_c3_1","pattern":"a"}`,
		`{"handle":"out_c3_1","offset":-1}`, `{"handle":"out_c3_1","limit":-1}`, `{"handle":"out_c3_1","offset":1.5}`, `{"handle":"out_c3_1","offset":1e300}`, `{"handle":"out_c3_1","offset":1e99999}`,
		`{"handle":"out_c3_1","offset":9223372036854775808}`, `{"handle":"out_c3_1","offset":-9223372036854775809}`, `{"handle":"out_c3_1","offset":"5"}`, `{"handle":"out_c3_1","offset":true}`, `{"handle":"out_c3_1","limit":[]}`,
		`{"handle":"out_c3_1","grep":"a","ignore_case":"true"}`, `{"handle":"out_c3_1","ignore_case":1}`, `{"handle":"out_c3_1","grep":"a","context":11}`, `{"handle":"out_c3_1","context":-1}`, `{"handle":"out_c3_1","context":"2"}`,
		`{"handle":"out_c3_1","from":5}`, `{"handle":"out_c3_1","grep":"","from":5}`, `{"handle":"out_c3_1","grep":"a","from":-5}`, `{"handle":"out_c3_1","grep":"a","from":"5"}`,
		`{"handle":"out_c3_1","grep":5}`, `{"handle":"out_c3_1","unit":"bytes"}`, `{"handle":"out_c3_1","unit":{}}`,
		`{"handle":"` + strings.Repeat("x", 100_000) + `"}`, `{"` + strings.Repeat("x", 100_000) + `":1}`,
	} {
		handle, _, err := parseReadArgs(json.RawMessage(args))
		if !errors.Is(err, ErrInvalid) || handle != "" {
			t.Errorf("%.80s: %q, %v", args, handle, err)
		} else if len(err.Error()) > 4000 {
			t.Errorf("%.80s: message of %d bytes", args, len(err.Error()))
		}
	}
	if !json.Valid(readToolOutputDef.Schema) {
		t.Error("the schema is not JSON")
	}
}
