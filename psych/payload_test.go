package psych

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"unicode/utf16"
	"unicode/utf8"

	"pgregory.net/rapid"
)

var (
	payloadRun = RunKey{"t", strings.Repeat("0a", 16)}
	payloadKey = BlobKey{"t", strings.Repeat("0a", 16), "c3_1.result.2"}
)

// countingBlobs is a BlobStore in memory that counts what is asked of it.
type countingBlobs struct {
	mu         sync.Mutex
	m          map[BlobKey][]byte
	puts       int
	opens      int
	read       int64 // bytes that readers gave
	failPut    error
	shortPut   bool // Put doesn't read to the end
	lie        int64
	ignoreRead bool // Put hides the reader's error
}

func (s *countingBlobs) Put(_ context.Context, key BlobKey, contentType string, r io.Reader) (BlobInfo, error) {
	if err := key.Check(); err != nil {
		return BlobInfo{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.puts++
	if s.failPut != nil {
		return BlobInfo{}, s.failPut
	}
	if s.shortPut {
		r = io.LimitReader(r, 10)
	}
	b, err := io.ReadAll(r)
	if err != nil && s.ignoreRead {
		return BlobInfo{}, errors.New("upload failed")
	}
	if err != nil {
		return BlobInfo{}, fmt.Errorf("put: %w", err)
	}
	if s.m == nil {
		s.m = map[BlobKey][]byte{}
	}
	s.m[key] = b
	return BlobInfo{int64(len(b)) + s.lie, contentType}, nil
}

func (s *countingBlobs) Open(_ context.Context, key BlobKey, offset, length int64) (io.ReadCloser, BlobInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.m[key]
	if !ok {
		return nil, BlobInfo{}, fmt.Errorf("open %s: %w", key, ErrNotFound)
	}
	if offset < 0 {
		return nil, BlobInfo{}, ErrInvalid
	}
	s.opens++
	info := BlobInfo{Size: int64(len(b))}
	b = b[min(offset, int64(len(b))):]
	if length >= 0 {
		b = b[:min(length, int64(len(b)))]
	}
	return io.NopCloser(countRead{bytes.NewReader(b), &s.read}), info, nil
}

func (s *countingBlobs) Stat(ctx context.Context, key BlobKey) (BlobInfo, error) {
	r, info, err := s.Open(ctx, key, 0, 0)
	if err == nil {
		r.Close()
	}
	return info, err
}

func (s *countingBlobs) Delete(_ context.Context, key BlobKey) error {
	delete(s.m, key)
	return nil
}

func (s *countingBlobs) DeleteRun(context.Context, RunKey) error {
	s.m = nil
	return nil
}

type countRead struct {
	r io.Reader
	n *int64
}

func (c countRead) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	*c.n += int64(n)
	return n, err
}

// fileBlobs is a BlobStore in a directory, for what must not lie in memory.
type fileBlobs struct {
	countingBlobs
	dir string
}

func (s *fileBlobs) path(key BlobKey) string { return filepath.Join(s.dir, key.CallID) }

func (s *fileBlobs) Put(_ context.Context, key BlobKey, contentType string, r io.Reader) (BlobInfo, error) {
	f, err := os.Create(s.path(key))
	if err != nil {
		return BlobInfo{}, err
	}
	defer f.Close()
	n, err := io.Copy(f, r)
	return BlobInfo{n, contentType}, err
}

func (s *fileBlobs) Open(_ context.Context, key BlobKey, offset, length int64) (io.ReadCloser, BlobInfo, error) {
	f, err := os.Open(s.path(key))
	if err != nil {
		return nil, BlobInfo{}, err
	}
	s.opens++
	return struct {
		io.Reader
		io.Closer
	}{countRead{io.NewSectionReader(f, offset, length), &s.read}, f}, BlobInfo{}, nil
}

func TestNewPayload(t *testing.T) {
	const text, json, bin = "text/plain; charset=utf-8", "application/problem+json", "image/png"
	fffd := "\uFFFD"
	for _, c := range []struct {
		name, contentType, in, out string
		binary                     bool
		lines                      int64
	}{
		{"empty", text, "", "", false, 0},
		{"text", text, "a\nb", "a\nb", false, 2},
		{"CRLF", text, "a\r\nb\r\n", "a\r\nb\r\n", false, 2},
		{"NUL", text, "a\x00b", "a\x00b", false, 1},
		{"invalid byte", text, "caf\xe9\n", "caf" + fffd + "\n", false, 1},
		{"cut character", json, `"日` + "\xe6\x97", `"日` + fffd, false, 1},
		{"begin of a character", text, "ok \xe2\x82A ok", "ok " + fffd + "A ok", false, 1},
		{"lone surrogate", json, "\"\xed\xa0\xbd\"", `"` + fffd + `"`, false, 1},
		{"lone surrogate alone", text, "\xed\xb8\x80", fffd, false, 1},
		{"two surrogates", text, "\xed\xa0\xbd\xed\xb8\x80", fffd + fffd, false, 1},
		{"overlong", text, "some \xc0\x80 text", "some " + fffd + fffd + " text", false, 1},
		{"not text", text, "\xff\xfe\xfd\x00", "\xff\xfe\xfd\x00", true, 0},
		{"UTF-16", text, "\xff\xfeh\x00e\x00l\x00l\x00o\x00", "\xff\xfeh\x00e\x00l\x00l\x00o\x00", true, 0},
		{"another charset", text, "\xf2\xe5\xea\xf1\xf2 one", "\xf2\xe5\xea\xf1\xf2 one", true, 0},
		{"bytes", bin, "\x89PNG\xff", "\x89PNG\xff", true, 0},
		{"bytes that are text", "application/octet-stream", "plain\n", "plain\n", false, 1},
		{"terminal escape", text, "\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m", false, 1},
	} {
		p := newPayload(c.contentType, []byte(c.in))
		chars := int64(utf8.RuneCountInString(c.out))
		if c.binary {
			chars = 0
		}
		if string(p.Inline) != c.out || p.Binary != c.binary || p.Size != int64(len(c.out)) || p.Chars != chars || p.Lines != c.lines || p.Ref != nil || p.ContentType != c.contentType {
			t.Errorf("%s: %+v", c.name, p)
		}
		if estimate(int(p.Chars)) != int(chars+3)/4 {
			t.Errorf("%s: %d tokens", c.name, estimate(int(p.Chars)))
		}
	}
	for in, want := range map[string]string{"": "application/octet-stream", " text/csv ": "text/csv", "a\nb": "application/octet-stream", "té/x": "application/octet-stream", strings.Repeat("a", 201): "application/octet-stream"} {
		if got := newPayload(in, nil).ContentType; got != want {
			t.Errorf("type %q: %q, want %q", in, got, want)
		}
	}
	for contentType, want := range map[string]bool{
		"text/html": true, "TEXT/Plain": true, "application/json": true, "application/vnd.x+json; a=b": true, "image/svg+xml": true, "application/x-ndjson": true, "application/yaml": true,
		"image/png": false, "application/octet-stream": false, "application/zip": false, "json": false, "audio/json": false,
	} {
		if isText(contentType) != want {
			t.Errorf("isText(%q) is %v", contentType, !want)
		}
	}
}

func TestCaptureRoom(t *testing.T) {
	ctx := context.Background()
	for _, room := range []int{0, 1, 100, 70_000} {
		for _, size := range []int{0, room - 1, room, room + 1, room + 200_000} {
			if size < 0 {
				continue
			}
			blobs := &countingBlobs{}
			in := strings.Repeat("é\n", size/3+1)[:size]
			in = strings.ToValidUTF8(in, "x")
			p, err := capture(ctx, strings.NewReader(in), "text/plain", room, blobs, payloadKey)
			if err != nil {
				t.Fatal(err)
			}
			want := newPayload("text/plain", []byte(in))
			if len(in) > room {
				if p.Inline != nil || p.Ref == nil || blobs.puts != 1 || string(blobs.m[payloadKey]) != in || p.Ref.CallID != payloadKey.CallID || p.Ref.SHA256 != sha256.Sum256([]byte(in)) {
					t.Fatalf("room %d, size %d: %+v, %d puts", room, size, p, blobs.puts)
				}
				r := []rune(in)
				if string(p.Ref.Head) != string(r[:min(len(r), MaxPreviewChars)]) || string(p.Ref.Tail) != string(r[max(0, len(r)-MaxPreviewChars):]) || len(p.Ref.Index) > 6<<10 {
					t.Errorf("room %d, size %d: wrong ends, or an index of %d bytes", room, size, len(p.Ref.Index))
				}
			} else if string(p.Inline) != in || p.Ref != nil || blobs.puts != 0 {
				t.Fatalf("room %d, size %d: %+v, %d puts", room, size, p, blobs.puts)
			}
			if p.Size != want.Size || p.Chars != want.Chars || p.Lines != want.Lines || p.Binary {
				t.Errorf("room %d, size %d: %+v, want %+v", room, size, p, want)
			}
			back, err := p.load(ctx, blobs, payloadRun)
			if err != nil || string(back) != in {
				t.Errorf("room %d, size %d: load: %v", room, size, err)
			}
		}
	}
	// What grows over the room by being repaired leaves too.
	blobs := &countingBlobs{}
	p, err := capture(ctx, strings.NewReader("twenty characters \xff."), "text/plain", 20, blobs, payloadKey)
	if err != nil || p.Ref == nil || string(blobs.m[payloadKey]) != "twenty characters \uFFFD." || p.Size != 22 {
		t.Errorf("%+v, %v", p, err)
	}
}

// Whatever a tool returns is kept byte for byte, is text where it is UTF-8, and
// comes back by the reader, inline and from a blob.
func TestStrangePayloads(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	for i := range 20_000 {
		fmt.Fprintln(z, i, i*i)
	}
	z.Close()
	wide := func(order binary.AppendByteOrder, s string) string {
		var b []byte
		for _, u := range utf16.Encode([]rune("\ufeff" + s)) {
			b = order.AppendUint16(b, u)
		}
		return string(b)
	}
	const text, js = "text/plain; charset=utf-8", "application/json"
	for _, c := range []struct {
		name, contentType, in string
		binary                bool
		lines                 int64
	}{
		{"no final newline", text, strings.Repeat("line\n", 3000) + "last", false, 3001},
		{"CRLF", text, strings.Repeat("line\r\n", 3000), false, 3000},
		{"lone CR", text, strings.Repeat("line\r", 3000), false, 1},
		{"U+2028 and U+0085", text, strings.Repeat("line\u2028\u0085", 3000), false, 1},
		{"UTF-8 with a byte-order mark", text, "\ufeff" + strings.Repeat("é\n", 3000), false, 3000},
		{"UTF-16, little end first", text, wide(binary.LittleEndian, strings.Repeat("wide line\n", 3000)), true, 0},
		{"UTF-16, big end first", text, wide(binary.BigEndian, strings.Repeat("wide line\n", 3000)), true, 0},
		{"nested 100,000 deep", js, strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000), false, 1},
		{"duplicate keys", js, `{"a":1,"a":2,"b":"` + strings.Repeat("x", 10_000) + `"}`, false, 1},
		{"integers over 2^53", js, `[` + strings.Repeat("9007199254740993,", 1000) + `18446744073709551617]`, false, 1},
		{"a number of a million digits", js, strings.Repeat("7", 1_000_000), false, 1},
		{"several values in a row", js, strings.Repeat(`{"a": 1} {"a": 2}[] null `, 1000), false, 1},
		{"NDJSON", "application/x-ndjson", strings.Repeat("{\"a\": 1.10}\n", 3000), false, 3000},
		{"not JSON at all", js, strings.Repeat("<html>\n", 3000), false, 3000},
		{"gzip", "application/gzip", zipped.String(), true, 0},
		{"gzip that is called text", text, zipped.String(), true, 0},
		{"NULs", text, strings.Repeat("\x00", 20_000), false, 1},
	} {
		ps, blobs := outputs(t, c.contentType, c.in)
		for where, p := range ps {
			if p.Binary != c.binary || p.Lines != c.lines || p.Size != int64(len(c.in)) || p.ContentType != c.contentType {
				t.Errorf("%s, %s: binary %v, %d lines, %d bytes of %d, %s", c.name, where, p.Binary, p.Lines, p.Size, len(c.in), p.ContentType)
			}
			if b, err := p.load(context.Background(), blobs, payloadRun); err != nil || string(b) != c.in {
				t.Errorf("%s, %s: it came back changed, %v", c.name, where, err)
			}
			for _, unit := range []string{UnitChars, UnitLines} {
				var got strings.Builder
				for q := (OutputQuery{Unit: unit}); ; {
					w, err := readOutput(context.Background(), p, blobs, payloadRun, q)
					if err != nil || w.Binary != c.binary {
						t.Fatalf("%s, %s: %+v, %v", c.name, where, w, err)
					}
					got.WriteString(w.Text)
					if q.Offset = w.NextOffset; w.AtEnd {
						break
					}
				}
				want := strings.ReplaceAll(c.in, "\x00", "␀")
				if c.binary {
					want = ""
				}
				if unit == UnitLines && c.lines == 1 { // over 2,000 characters
					want = string([]rune(want)[:2000])
					if s, _, _ := strings.Cut(got.String(), "… [line cut"); s != want {
						t.Errorf("%s, %s: cut to %d bytes, want %d", c.name, where, len(s), len(want))
					}
				} else if got.String() != want {
					t.Errorf("%s, %s, by %s: the pages have %d bytes, want %d", c.name, where, unit, got.Len(), len(want))
				}
			}
		}
	}
}

// A value that a tool hands over as JSON keeps its numbers and keys too.
func TestStrangeValues(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"duplicate keys":               {`{"a": 1, "a": 2}`, `{"a":1,"a":2}`},
		"integers over 2^53":           {"[9007199254740993, 1.0e5]", "[9007199254740993,1.0e5]"},
		"a number of a million digits": {strings.Repeat("7", 1_000_000), strings.Repeat("7", 1_000_000)},
		"several values in a row":      {"1 2", ""},
	} {
		r, err := resultOf(json.RawMessage(c.in))
		if c.want == "" {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if b, err := io.ReadAll(r.Body); err != nil || string(b) != c.want {
			t.Errorf("%s: %.100s, %v", name, b, err)
		}
	}
}

// However a text is cut into reads, and wherever it goes, it is repaired alike.
func TestCaptureProperties(t *testing.T) {
	piece := rapid.SampledFrom([]string{"a", "text", "é", "日", "😀", "\n", "\x00", "\xff", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xed\xa0", "\xed\xa0\x80", "\x80", "\xed", strings.Repeat("line\n", 20), strings.Repeat("é", 15_000), strings.Repeat("日\xff0123456789", 5000)})
	rapid.Check(t, func(t *rapid.T) {
		in := strings.Join(rapid.SliceOfN(piece, 0, 30).Draw(t, "in"), "")
		contentType := rapid.SampledFrom([]string{"text/plain", "image/png"}).Draw(t, "type")
		var r io.Reader = strings.NewReader(in)
		switch rapid.IntRange(0, 3).Draw(t, "reads") {
		case 0:
			r = iotest.HalfReader(r)
		case 1:
			r = iotest.DataErrReader(r)
		case 2:
			r = &stepReader{r: r, n: rapid.IntRange(1, 9).Draw(t, "n")}
		}
		blobs := &countingBlobs{}
		room := rapid.SampledFrom([]int{0, 10, 1000, 1 << 20}).Draw(t, "room")
		got, err := capture(context.Background(), r, contentType, room, blobs, payloadKey)
		if err != nil {
			t.Fatal(err)
		}
		b, err := got.load(context.Background(), blobs, payloadRun)
		if err != nil {
			t.Fatal(err)
		}
		want := newPayload(contentType, []byte(in))
		if !bytes.Equal(b, want.Inline) {
			t.Fatalf("captured %.200q, want %.200q", b, want.Inline)
		}
		if contentType == "image/png" && string(b) != in {
			t.Fatalf("%q became %q", in, b)
		}
		if utf8.ValidString(in) && string(b) != in {
			t.Fatalf("valid %q became %q", in, b)
		}
		got.Inline, got.Ref, want.Inline = nil, nil, nil
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, want %+v", got, want)
		}
	})
}

// stepReader gives n bytes at a time, and now and then none.
type stepReader struct {
	r     io.Reader
	n     int
	calls int
}

func (s *stepReader) Read(p []byte) (int, error) {
	if s.calls++; s.calls%3 == 0 {
		return 0, nil
	}
	return s.r.Read(p[:min(s.n, len(p))])
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

func TestCaptureFails(t *testing.T) {
	broken := errors.New("broken pipe")
	full := errors.New("no space left")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	long := strings.Repeat("0123456789", 20_000)
	reader := func(before int, then readFunc) io.Reader {
		return io.MultiReader(strings.NewReader(long[:before]), then)
	}
	for _, c := range []struct {
		name string
		r    io.Reader
		set  func(*countingBlobs)
		want error
		body bool // it is the reader's
	}{
		{"no progress", reader(0, func([]byte) (int, error) { return 0, nil }), nil, io.ErrNoProgress, true},
		{"no progress late", reader(100_000, func([]byte) (int, error) { return 0, nil }), nil, io.ErrNoProgress, true},
		{"failure", reader(5, func([]byte) (int, error) { return 0, broken }), nil, broken, true},
		{"failure late", reader(100_000, func([]byte) (int, error) { return 0, broken }), nil, broken, true},
		{"failure hidden by Put", reader(100_000, func([]byte) (int, error) { return 0, broken }), func(s *countingBlobs) { s.ignoreRead = true }, broken, true},
		{"unexpected EOF", reader(100_000, func([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }), nil, io.ErrUnexpectedEOF, true},
		{"panic", reader(5, func([]byte) (int, error) { panic(broken) }), nil, nil, true},
		{"panic late", reader(100_000, func([]byte) (int, error) { panic(broken) }), nil, nil, true},
		{"nonsense", reader(0, func(p []byte) (int, error) { return len(p) + 1, nil }), nil, nil, true},
		{"negative", reader(100_000, func([]byte) (int, error) { return -1, nil }), nil, nil, true},
		{"store", strings.NewReader(long), func(s *countingBlobs) { s.failPut = full }, full, false},
		{"store reads a part", strings.NewReader(long), func(s *countingBlobs) { s.shortPut = true }, errDamaged, false},
		{"store has another size", strings.NewReader(long), func(s *countingBlobs) { s.lie = 1 }, errDamaged, false},
	} {
		for _, contentType := range []string{"text/plain", "image/png"} {
			if s, ok := c.r.(io.Seeker); ok {
				s.Seek(0, io.SeekStart)
			}
			blobs := &countingBlobs{}
			if c.set != nil {
				c.set(blobs)
			}
			p, err := capture(ctx, c.r, contentType, 50_000, blobs, payloadKey)
			var body *bodyError
			if err == nil || c.want != nil && !errors.Is(err, c.want) || errors.As(err, &body) != c.body {
				t.Errorf("%s, %s: %v", c.name, contentType, err)
			}
			if !reflect.DeepEqual(p, Payload{}) {
				t.Errorf("%s: left %+v", c.name, p)
			}
			if !c.body {
				continue
			}
			if len(blobs.m) > 0 {
				t.Errorf("%s: a blob was left", c.name)
			}
			break // the reader is used up
		}
	}
}

func TestCaptureCanceled(t *testing.T) {
	for _, after := range []int{0, 3, 20} {
		ctx, cancel := context.WithCancel(context.Background())
		reads := 0
		// It doesn't heed the context.
		r := readFunc(func(p []byte) (int, error) {
			if reads++; reads > after {
				cancel()
			}
			return copy(p, strings.Repeat("x", 10_000)), nil
		})
		blobs := &countingBlobs{}
		_, err := capture(ctx, r, "text/plain", 50_000, blobs, payloadKey)
		var body *bodyError
		if !errors.Is(err, context.Canceled) || errors.As(err, &body) || reads != after+1 || len(blobs.m) > 0 {
			t.Errorf("after %d: %v, %d reads", after, err, reads)
		}
	}
	// It blocks until the context ends.
	blocked, stop := context.WithCancel(context.Background())
	begun := make(chan bool, 1)
	go func() { <-begun; stop() }()
	_, blockErr := capture(blocked, readFunc(func([]byte) (int, error) { begun <- true; <-blocked.Done(); return 0, blocked.Err() }), "", 10, nil, payloadKey)
	if !errors.Is(blockErr, context.Canceled) || errors.As(blockErr, new(*bodyError)) {
		t.Error(blockErr)
	}
	// It fails since the context ended: that is no failure of its own.
	ctx, cancel := context.WithCancel(context.Background())
	_, err := capture(ctx, readFunc(func([]byte) (int, error) { cancel(); return 0, io.ErrClosedPipe }), "", 10, nil, payloadKey)
	var body *bodyError
	if !errors.Is(err, context.Canceled) || !errors.Is(err, io.ErrClosedPipe) || errors.As(err, &body) {
		t.Error(err)
	}
}

func TestCaptureWithoutBlobStore(t *testing.T) {
	var n int64
	r := countRead{strings.NewReader(strings.Repeat("x", 1<<20)), &n}
	p, err := capture(context.Background(), r, "text/plain", 1000, nil, payloadKey)
	if !errors.Is(err, ErrNoBlobStore) || !reflect.DeepEqual(p, Payload{}) {
		t.Errorf("%+v, %v", p, err)
	}
	if n != 1001 {
		t.Errorf("%d bytes were read", n)
	}
	if p, err := capture(context.Background(), strings.NewReader("small"), "text/plain", 5, nil, payloadKey); err != nil || string(p.Inline) != "small" {
		t.Errorf("%+v, %v", p, err)
	}
}

// The room bounds what a capture holds, however much passes.
func TestCaptureMemory(t *testing.T) {
	blobs := &fileBlobs{dir: t.TempDir()}
	n := allocatedBytes(func() {
		r := io.LimitReader(readFunc(func(p []byte) (int, error) {
			for i := range p {
				p[i] = 'a' + byte(i)%16
			}
			return len(p), nil
		}), 64<<20)
		if p, err := capture(context.Background(), r, "text/plain", 128<<10, blobs, payloadKey); err != nil || p.Size != 64<<20 {
			t.Error(p.Size, err)
		}
	})
	if n > 4<<20 {
		t.Errorf("%d bytes allocated", n)
	}
}

func TestPayloadLoad(t *testing.T) {
	ctx := context.Background()
	blobs := &countingBlobs{}
	in := strings.Repeat("some text\n", 100)
	p, err := capture(ctx, strings.NewReader(in), "text/plain", 10, blobs, payloadKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]string{"changed": strings.Replace(in, "some", "Some", 1), "cut": in[:500], "emptied": ""} {
		blobs.m[payloadKey] = []byte(b)
		if _, err := p.load(ctx, blobs, payloadRun); !errors.Is(err, errDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	delete(blobs.m, payloadKey)
	if _, err := p.load(ctx, blobs, payloadRun); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), payloadKey.CallID) {
		t.Errorf("gone: %v", err)
	}
	if _, err := p.load(ctx, nil, payloadRun); !errors.Is(err, ErrNoBlobStore) {
		t.Errorf("no store: %v", err)
	}
}

func TestPayloadOpen(t *testing.T) {
	ctx := context.Background()
	const in = "0123456789"
	blobs := &countingBlobs{}
	ref, err := capture(ctx, strings.NewReader(in), "text/plain", 0, blobs, payloadKey)
	if err != nil {
		t.Fatal(err)
	}
	inline := newPayload("text/plain", []byte(in))
	for name, p := range map[string]*Payload{"inline": &inline, "blob": &ref} {
		for _, c := range []struct {
			offset, length int64
			want           string
		}{{0, -1, in}, {0, 3, "012"}, {8, 5, "89"}, {10, 1, ""}, {1 << 62, 1 << 62, ""}, {3, 0, ""}, {3, 1<<63 - 1, "3456789"}} {
			r, err := p.open(ctx, blobs, payloadRun, c.offset, c.length)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(r); err != nil || string(b) != c.want {
				t.Errorf("%s %d+%d: %q, %v", name, c.offset, c.length, b, err)
			}
			r.Close()
		}
		if _, err := p.open(ctx, blobs, payloadRun, -1, 5); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: negative: %v", name, err)
		}
	}
}

func TestShowNULs(t *testing.T) {
	for in, want := range map[string]string{"": "", "abc": "abc", "\x00": "␀", "a\x00\x00é": "a␀␀é"} {
		b := []byte(in)
		got := showNULs(b)
		if string(got) != want {
			t.Errorf("%q: %q", in, got)
		}
		if in == want && len(b) > 0 && &got[0] != &b[0] {
			t.Errorf("%q was copied", in)
		}
	}
}

func FuzzRepair(f *testing.F) {
	f.Add([]byte("a\xed\xa0\x80\xe2\x82b\xff"), 3)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		whole := repair(b)
		if !utf8.Valid(whole) {
			t.Fatalf("%q is not valid", whole)
		}
		if utf8.Valid(b) && !bytes.Equal(b, whole) {
			t.Fatalf("%q became %q", b, whole)
		}
		// Cut in two anywhere, with what is pending held back.
		n = max(0, min(n, len(b)))
		n -= pending(b[:n])
		if got := append(bytes.Clone(repair(b[:n])), repair(b[n:])...); !bytes.Equal(got, whole) {
			t.Fatalf("%q cut at %d: %q, want %q", b, n, got, whole)
		}
	})
}
