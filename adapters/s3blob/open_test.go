package s3blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/psych"
)

// A window in the middle of a large blob costs one GET, and no more bytes than
// it has.
func TestOpenWindow(t *testing.T) {
	const size, offset, length = 64 << 20, 32<<20 + 7, 100_000
	f := newFake(t)
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i / 1000)
	}
	f.objects[testObject] = &object{data: data, size: size}
	got, info, err := get(t.Context(), f.store(nil), testKey, offset, length)
	if err != nil || got != string(data[offset:offset+length]) || info.Size != size {
		t.Errorf("%d bytes, %+v, %v", len(got), info, err)
	}
	if ops := f.ops(); !slices.Equal(ops, []string{"GetObject"}) {
		t.Errorf("requests %q", ops)
	}
	if r := f.calls[0].r.Header.Get("Range"); r != fmt.Sprintf("bytes=%d-%d", offset, offset+length-1) {
		t.Errorf("Range %q", r)
	}
}

func TestOpenRequests(t *testing.T) {
	f := newFake(t)
	s := f.store(nil)
	empty := testKey
	empty.CallID = "empty"
	put(t, s, testKey, "0123456789")
	put(t, s, empty, "")
	for _, c := range []struct {
		key            psych.BlobKey
		offset, length int64
		want           string
		ops            []string
	}{
		{testKey, 0, -1, "0123456789", []string{"GetObject"}},
		{testKey, 0, 100, "0123456789", []string{"GetObject"}},
		{testKey, 4, -1, "456789", []string{"GetObject"}},
		{testKey, 4, 0, "", []string{"HeadObject"}},
		{testKey, 10, 5, "", []string{"GetObject", "HeadObject"}},
		{testKey, 10, 0, "", []string{"HeadObject"}},
		{testKey, 1 << 62, 1 << 62, "", []string{"GetObject", "HeadObject"}},
		{empty, 0, -1, "", []string{"GetObject"}},
		{empty, 0, 5, "", []string{"GetObject", "HeadObject"}},
	} {
		f.reset()
		got, info, err := get(t.Context(), s, c.key, c.offset, c.length)
		if err != nil || got != c.want || info.ContentType != "text/plain" {
			t.Errorf("%s from %d, %d bytes: %q, %+v, %v, want %q", c.key, c.offset, c.length, got, info, err, c.want)
		}
		if ops := f.ops(); !slices.Equal(ops, c.ops) {
			t.Errorf("%s from %d, %d bytes: %q, want %q", c.key, c.offset, c.length, ops, c.ops)
		}
	}
}

// Between the GET that is past the end and the HEAD, a longer blob comes.
func TestOpenGrows(t *testing.T) {
	f := newFake(t)
	s := f.store(nil)
	put(t, s, testKey, "short")
	f.before = func(c *call) bool {
		if c.op == "HeadObject" {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.objects[testObject] = &object{data: []byte("longer than before"), size: 18}
		}
		return false
	}
	if got, info, err := get(t.Context(), s, testKey, 7, 4); err != nil || got != "than" || info.Size != 18 {
		t.Errorf("got %q, %+v, %v", got, info, err)
	}
	f.before = func(c *call) bool { return c.op == "GetObject" && c.fail(416, "InvalidRange") }
	if _, _, err := get(t.Context(), s, testKey, 7, 4); !errors.Is(err, psych.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
}

// answer sends a body of an object by hand.
func (c *call) answer(status int, body string, header ...string) bool {
	h := c.w.Header()
	h.Set("Etag", `"x"`)
	h.Set("Content-Length", fmt.Sprint(len(body)))
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	c.w.WriteHeader(status)
	io.WriteString(c.w, body)
	return true
}

func TestOpenTruncated(t *testing.T) {
	f := newFake(t)
	s := f.store(nil)
	f.before = func(c *call) bool {
		status, header := 200, []string{"Content-Length", "10"}
		if c.r.Header.Get("Range") != "" {
			status, header = 206, append(header, "Content-Range", "bytes 5-14/100")
		}
		c.answer(status, "012345", header...)
		c.w.(http.Flusher).Flush()
		c.drop()
		return true
	}
	for _, r := range [][2]int64{{0, -1}, {5, 10}} {
		got, _, err := get(t.Context(), s, testKey, r[0], r[1])
		if err == nil {
			t.Errorf("read %q without an error", got)
		}
		body, _, err := s.Open(t.Context(), testKey, r[0], r[1])
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(body)
		if string(b) != "012345" || !errors.Is(err, psych.ErrUnavailable) {
			t.Errorf("read %q, %v, want what came and ErrUnavailable", b, err)
		}
		if _, again := body.Read(make([]byte, 1)); again != err {
			t.Errorf("the next Read: %v, want the same error", again)
		}
		body.Close()
	}
}

// The bytes of a whole blob that differ from their checksum are never handed
// out whole, also to a caller that knows how many there are.
func TestOpenDamaged(t *testing.T) {
	f := newFake(t)
	s := f.store(nil)
	put(t, s, testKey, letters(100_000))
	damaged := []byte(letters(100_000))
	damaged[50_000] ^= 1
	f.objects[testObject].data = damaged
	r, _, err := s.Open(t.Context(), testKey, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.ReadFull(r, make([]byte, 100_000)); !errors.Is(err, ErrDamaged) || errors.Is(err, psych.ErrUnavailable) {
		t.Errorf("read %d bytes, %v, want ErrDamaged", n, err)
	}
	r.Close()
}

func TestOpenForeignAnswers(t *testing.T) {
	f := newFake(t)
	s := f.store(nil)
	for name, c := range map[string]struct {
		offset, length int64
		answer         func(c *call) bool
		want           string // of the blob; "": a foreign answer
	}{
		"all where some was asked for":   {0, 3, func(c *call) bool { return c.answer(200, "0123456789") }, "012"},
		"all where a middle was":         {2, 3, func(c *call) bool { return c.answer(200, "0123456789") }, ""},
		"another range":                  {2, 3, func(c *call) bool { return c.answer(206, "345", "Content-Range", "bytes 3-5/10") }, ""},
		"more than was asked for":        {2, 3, func(c *call) bool { return c.answer(206, "2345", "Content-Range", "bytes 2-5/10") }, ""},
		"a range past its end":           {2, 3, func(c *call) bool { return c.answer(206, "234", "Content-Range", "bytes 2-4/4") }, ""},
		"a length that is not the range": {2, 3, func(c *call) bool { return c.answer(206, "23", "Content-Range", "bytes 2-4/10") }, ""},
		"a range of an unknown whole":    {2, 3, func(c *call) bool { return c.answer(206, "234", "Content-Range", "bytes 2-4/*") }, ""},
		"a checksum of the whole object": {2, 3, func(c *call) bool {
			return c.answer(206, "234", "Content-Range", "bytes 2-4/10", "X-Amz-Checksum-Crc32", "AAAAAA==")
		}, "234"},
		"no ETag":                         {0, -1, func(c *call) bool { return c.answer(200, "0123456789", "Etag", "") }, ""},
		"JSON":                            {0, -1, func(c *call) bool { fmt.Fprint(c.w, `{"ok":true}`); return true }, ""},
		"a blob of HTML is a blob":        {0, -1, func(c *call) bool { return c.answer(200, "<html>", "Content-Type", "text/html") }, "<html>"},
		"a composite checksum is ignored": {0, -1, func(c *call) bool { return c.answer(200, "012", "X-Amz-Checksum-Crc32", "AAAAAA==-2") }, "012"},
	} {
		t.Run(name, func(t *testing.T) {
			f.reset()
			f.before = c.answer
			got, _, err := get(t.Context(), s, testKey, c.offset, c.length)
			var foreign *foreignError
			if c.want != "" && (err != nil || got != c.want) || c.want == "" && !errors.As(err, &foreign) {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestReaderCancelled(t *testing.T) {
	f := newFake(t)
	s := f.store(nil)
	put(t, s, testKey, strings.Repeat("x", 4<<20))
	for _, offset := range []int64{0, 1} {
		ctx, cancel := context.WithCancel(t.Context())
		r, _, err := s.Open(ctx, testKey, offset, -1)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err := io.ReadAll(r); !errors.Is(err, context.Canceled) || errors.Is(err, ErrDamaged) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		r.Close()
		if _, err := r.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("a read behind Close: %v", err)
		}
	}
}

func TestDeleteRunPages(t *testing.T) {
	f := newFake(t)
	s := f.store(nil)
	run := testKey.Run()
	other := psych.RunKey{Tenant: "acme", RunID: strings.Repeat("f", 32)}
	for i := range 2500 {
		f.objects[s.key(psych.BlobKey{Tenant: run.Tenant, RunID: run.RunID, CallID: fmt.Sprint("c", i)})] = &object{}
	}
	f.objects[s.key(psych.BlobKey{Tenant: other.Tenant, RunID: other.RunID, CallID: "c1"})] = &object{}
	if err := s.DeleteRun(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	want := []string{"ListObjectsV2", "DeleteObjects", "ListObjectsV2", "DeleteObjects", "ListObjectsV2", "DeleteObjects"}
	if ops := f.ops(); !slices.Equal(ops, want) || len(f.objects) != 1 {
		t.Errorf("requests %q, %d objects are left, want %q and 1", ops, len(f.objects), want)
	}
}

func TestDeleteRunErrors(t *testing.T) {
	result := func(c *call, errs ...string) bool {
		if c.op != "DeleteObjects" {
			return false
		}
		fmt.Fprint(c.w, "<DeleteResult>")
		for _, code := range errs {
			fmt.Fprintf(c.w, "<Error><Key>k%s</Key><Code>%s</Code><Message>why</Message></Error>", code, code)
		}
		fmt.Fprint(c.w, "</DeleteResult>")
		return true
	}
	listed := func(c *call, keys ...string) bool {
		if c.op != "ListObjectsV2" {
			return false
		}
		fmt.Fprint(c.w, "<ListBucketResult><Name>bucket</Name><IsTruncated>true</IsTruncated>")
		for _, k := range keys {
			fmt.Fprintf(c.w, "<Contents><Key>%s</Key></Contents>", k)
		}
		fmt.Fprint(c.w, "</ListBucketResult>")
		return true
	}
	for name, c := range map[string]struct {
		before func(c *call) bool
		is     error
		says   string // "": no error
	}{
		"denied":                 {func(c *call) bool { return result(c, "AccessDenied") }, nil, `1 of 1 objects were not deleted, the first being "kAccessDenied": api error AccessDenied: why`},
		"throttled":              {func(c *call) bool { return result(c, "SlowDown", "InternalError") }, psych.ErrUnavailable, "2 of 1 objects"},
		"gone":                   {func(c *call) bool { return result(c, "NoSuchKey") }, nil, ""},
		"list denied":            {func(c *call) bool { return c.op == "ListObjectsV2" && c.fail(403, "AccessDenied") }, nil, "s3:ListBucket"},
		"list fails":             {func(c *call) bool { return c.op == "ListObjectsV2" && c.fail(503, "SlowDown") }, psych.ErrUnavailable, "SlowDown"},
		"bucket gone":            {func(c *call) bool { return c.op == "ListObjectsV2" && c.fail(404, "NoSuchBucket") }, nil, "bucket bucket does not exist"},
		"list of other keys":     {func(c *call) bool { return listed(c, "pre/acme/other/c1") }, nil, "what answers is no S3"},
		"list that goes back":    {func(c *call) bool { return listed(c, testObject+"2", testObject) }, nil, "what answers is no S3"},
		"list that never ends":   {func(c *call) bool { return listed(c, testObject) || result(c) }, nil, "what answers is no S3"},
		"truncated without keys": {func(c *call) bool { return listed(c) }, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			s := f.store(nil)
			put(t, s, testKey, "x")
			f.before = c.before
			err := s.DeleteRun(t.Context(), testKey.Run())
			if (err == nil) != (c.says == "") || err != nil && (!strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), testKey.Run().String())) {
				t.Errorf("got %v, want an error that says %q", err, c.says)
			}
			if errors.Is(err, psych.ErrUnavailable) != (c.is != nil) || errors.Is(err, psych.ErrNotFound) {
				t.Errorf("%v matches other sentinels than %v", err, c.is)
			}
		})
	}
}

// A context that ends between pages stops the deletion.
func TestDeleteRunCancelled(t *testing.T) {
	f := newFake(t)
	s := f.store(nil)
	for i := range 1500 {
		f.objects[fmt.Sprintf("%sc%d", s.run(testKey.Run()), i)] = &object{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.after = func(c *call) {
		if c.op == "DeleteObjects" {
			cancel()
		}
	}
	if err := s.DeleteRun(ctx, testKey.Run()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if len(f.objects) != 500 || f.count("DeleteObjects") != 1 {
		t.Errorf("%d objects are left behind %d deletions", len(f.objects), f.count("DeleteObjects"))
	}
}
