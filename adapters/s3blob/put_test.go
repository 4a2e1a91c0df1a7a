package s3blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/psych-go/psych-go/psych"
)

// small is a Store whose parts begin with 10 bytes.
func small(f *fakeS3, o *Options) *Store {
	s := f.store(o)
	s.part = 10
	return s
}

func letters(n int) string { return strings.Repeat("abcdefghijklmnopqrstuvwxyz", n/26+1)[:n] }

// wantKept checks that a failed Put has left what was there, and no upload.
func wantKept(t *testing.T, f *fakeS3, s *Store) {
	t.Helper()
	wantBlob(t, s, testKey, "old")
	if n := f.open(); n > 0 {
		t.Errorf("%d uploads were left", n)
	}
}

func TestPutRequests(t *testing.T) {
	f := newFake(t)
	s := small(f, nil)
	for size, parts := range map[int]int{0: 0, 1: 0, 9: 0, 10: 0, 11: 2, 19: 2, 20: 2, 21: 3, 100: 10} {
		f.reset()
		put(t, s, testKey, letters(size))
		want := []string{"PutObject"}
		if parts > 0 {
			want = slices.Concat([]string{"CreateMultipartUpload"}, slices.Repeat([]string{"UploadPart"}, parts), []string{"CompleteMultipartUpload"})
		}
		if got := f.ops(); !slices.Equal(got, want) {
			t.Errorf("%d bytes: %q, want %q", size, got, want)
		}
		wantBlob(t, s, testKey, letters(size))
		if f.objects[testObject] == nil {
			t.Errorf("%d bytes: not stored as %s", size, testObject)
		}
	}
}

func TestPartSizes(t *testing.T) {
	s := New(nil, "bucket", "", nil)
	var total int64
	for n := int32(1); n <= 10_000; n++ {
		size := s.partSize(n)
		if size < 5<<20 || size > 5<<30 {
			t.Fatalf("part %d has %d bytes: S3 wants 5 MiB to 5 GiB", n, size)
		}
		if total > 0 && s.partSize(n)+s.partSize(max(n-1, 1)) > max(16<<20, total/200) {
			t.Fatalf("behind %d bytes a Put holds parts of %d", total, size)
		}
		total += size
	}
	if total < MaxBytes {
		t.Errorf("10,000 parts have %d bytes, want %d", total, int64(MaxBytes))
	}
}

func TestPutManyParts(t *testing.T) {
	f := newFake(t)
	s := f.store(nil)
	s.part = 1
	put(t, s, testKey, letters(2001))
	wantBlob(t, s, testKey, letters(2001))
	if n := f.count("UploadPart"); n != 1501 {
		t.Errorf("%d parts, want 1,000 of 1 byte, 500 of 2, and one of the last", n)
	}
}

func TestPutTooLarge(t *testing.T) {
	f := newFake(t)
	s := small(f, nil)
	put(t, s, testKey, "old")
	s.max = 35
	if _, err := s.Put(t.Context(), testKey, "", strings.NewReader(letters(36))); !errors.Is(err, psych.ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
	wantKept(t, f, s)
	put(t, s, testKey, letters(35))
}

func TestPutContentTypeTooLong(t *testing.T) {
	f := newFake(t)
	s := f.store(nil)
	for n, want := range map[int]error{255: nil, 256: psych.ErrInvalid} {
		for _, c := range []string{"x", "\xff"} {
			if _, err := s.Put(t.Context(), testKey, strings.Repeat(c, n), strings.NewReader("")); !errors.Is(err, want) {
				t.Errorf("%d bytes: %v, want %v", n, err, want)
			}
		}
	}
	if n := f.count("PutObject"); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
}

// Every request names the owner; those that create an object, the encryption.
func TestOptionsTravel(t *testing.T) {
	f := newFake(t)
	s := small(f, &Options{Encryption: "aws:kms", KMSKey: "arn:aws:kms:eu-west-1:111122223333:key/k", ExpectedOwner: "111122223333"})
	put(t, s, testKey, "x")
	put(t, s, testKey, letters(25))
	wantBlob(t, s, testKey, letters(25))
	if _, err := s.Stat(t.Context(), testKey); err != nil {
		t.Error(err)
	}
	broken := errors.New("broken")
	if _, err := s.Put(t.Context(), testKey, "", io.MultiReader(strings.NewReader(letters(25)), errReader{broken})); !errors.Is(err, broken) {
		t.Error(err)
	}
	if err := s.Delete(t.Context(), testKey); err != nil {
		t.Error(err)
	}
	put(t, s, testKey, "x")
	if err := s.DeleteRun(t.Context(), testKey.Run()); err != nil {
		t.Error(err)
	}
	if _, err := s.Init(t.Context()); err != nil {
		t.Error(err)
	}
	seen := map[string]bool{}
	for _, c := range f.calls {
		seen[c.op] = true
		if got := c.r.Header.Get("X-Amz-Expected-Bucket-Owner"); got != "111122223333" {
			t.Errorf("%s names the owner %q", c.op, got)
		}
		h := c.r.Header
		kms, key := h.Get("X-Amz-Server-Side-Encryption"), h.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id")
		if creates := c.op == "PutObject" || c.op == "CreateMultipartUpload"; creates != (kms == "aws:kms") || creates != (key != "") {
			t.Errorf("%s has the encryption %q with key %q", c.op, kms, key)
		}
	}
	for _, op := range []string{"PutObject", "GetObject", "HeadObject", "DeleteObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "AbortMultipartUpload", "ListObjectsV2", "DeleteObjects", "HeadBucket"} {
		if !seen[op] {
			t.Errorf("%s was not tried", op)
		}
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// A request that fails and then succeeds, with each failure that passes, does
// not fail the Put.
func TestPutRepeatsRequests(t *testing.T) {
	for _, op := range []string{"PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"} {
		for name, fault := range map[string]func(c *call) bool{
			"500":  func(c *call) bool { return c.fail(500, "InternalError") },
			"503":  func(c *call) bool { return c.fail(503, "SlowDown") },
			"lost": func(c *call) bool { c.drop(); return true },
			"200 with an error": func(c *call) bool {
				if op != "CompleteMultipartUpload" {
					return c.fail(502, "")
				}
				return c.fail(200, "InternalError")
			},
		} {
			t.Run(op+" "+name, func(t *testing.T) {
				f := newFake(t)
				s := small(f, nil)
				f.before = func(c *call) bool { return c.op == op && c.number == 0 && fault(c) }
				data := letters(map[bool]int{true: 5, false: 45}[op == "PutObject"])
				put(t, s, testKey, data)
				wantBlob(t, s, testKey, data)
				if n := f.open(); n > 0 {
					t.Errorf("%d uploads were left", n)
				}
			})
		}
	}
}

// The request has its effect and its answer is lost.
func TestPutLostResponses(t *testing.T) {
	for _, op := range []string{"PutObject", "UploadPart", "CompleteMultipartUpload"} {
		t.Run(op, func(t *testing.T) {
			f := newFake(t)
			s := small(f, nil)
			f.after = func(c *call) {
				if c.op == op && c.number == 0 {
					c.drop()
				}
			}
			data := letters(map[bool]int{true: 5, false: 45}[op == "PutObject"])
			put(t, s, testKey, data)
			wantBlob(t, s, testKey, data)
			if n := f.count(op); n < 2 {
				t.Errorf("%s was called %d times: no answer was lost", op, n)
			}
		})
	}
}

// The end of an upload whose answer is lost, and which cannot be shown to be
// ours, is unknown.
func TestPutLostCompleteReplaced(t *testing.T) {
	f := newFake(t)
	s := small(f, nil)
	other := &object{data: []byte("other"), size: 5, header: http.Header{"X-Amz-Meta-Psych-Upload": {"OTHER"}}}
	f.after = func(c *call) {
		if c.op == "CompleteMultipartUpload" {
			f.objects[testObject] = other
			c.drop()
		}
	}
	_, err := s.Put(t.Context(), testKey, "", strings.NewReader(letters(45)))
	if !errors.Is(err, psych.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	if got, _, _ := get(t.Context(), s, testKey, 0, 5); got != "other" {
		t.Errorf("the blob is %q", got)
	}
}

func TestPutAborts(t *testing.T) {
	for name, c := range map[string]struct {
		op     string
		status int
		code   string
		is     error
	}{
		"part refused":            {"UploadPart", 403, "AccessDenied", nil},
		"part fails on and on":    {"UploadPart", 500, "InternalError", psych.ErrUnavailable},
		"part conflicts":          {"UploadPart", 409, "OperationAborted", psych.ErrUnavailable},
		"end refused":             {"CompleteMultipartUpload", 400, "InvalidPart", nil},
		"end fails on and on":     {"CompleteMultipartUpload", 503, "SlowDown", psych.ErrUnavailable},
		"end conflicts":           {"CompleteMultipartUpload", 409, "ConditionalRequestConflict", psych.ErrUnavailable},
		"end precondition":        {"CompleteMultipartUpload", 412, "PreconditionFailed", nil},
		"end has another digest":  {"CompleteMultipartUpload", 400, "BadDigest", psych.ErrUnavailable},
		"end fails with a 200":    {"CompleteMultipartUpload", 200, "InternalError", psych.ErrUnavailable},
		"upload ended by another": {"UploadPart", 404, "NoSuchUpload", psych.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			s := small(f, nil)
			put(t, s, testKey, "old")
			f.before = func(r *call) bool { return r.op == c.op && r.fail(c.status, c.code) }
			_, err := s.Put(t.Context(), testKey, "x/new", strings.NewReader(letters(45)))
			if err == nil || !strings.Contains(err.Error(), c.code) || !strings.Contains(err.Error(), testKey.String()) {
				t.Errorf("got %v, want an error that has %s and the key", err, c.code)
			}
			for _, sentinel := range []error{psych.ErrUnavailable, psych.ErrNotFound, psych.ErrConflict, psych.ErrInvalid, psych.ErrAccessDenied} {
				if errors.Is(err, sentinel) != (sentinel == c.is) {
					t.Errorf("%v: matches %v: %v", err, sentinel, errors.Is(err, sentinel))
				}
			}
			if f.count("AbortMultipartUpload") == 0 {
				t.Error("the upload was not aborted")
			}
			wantKept(t, f, s)
		})
	}
}

func TestPutAbortFails(t *testing.T) {
	f := newFake(t)
	s := small(f, nil)
	f.before = func(c *call) bool {
		return c.op == "UploadPart" && c.fail(400, "InvalidArgument") || c.op == "AbortMultipartUpload" && c.fail(403, "AccessDenied")
	}
	_, err := s.Put(t.Context(), testKey, "", strings.NewReader(letters(45)))
	for _, want := range []string{"InvalidArgument", "AccessDenied", "upload1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error that has %s", err, want)
		}
	}
}

// A context that ends while a part, the end or a single PUT is on its way: the
// upload is aborted all the same.
func TestPutCancelledOnTheWay(t *testing.T) {
	for _, op := range []string{"PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"} {
		t.Run(op, func(t *testing.T) {
			f := newFake(t)
			s := small(f, nil)
			put(t, s, testKey, "old")
			f.reset()
			ctx, cancel := context.WithCancel(t.Context())
			f.before = func(c *call) bool {
				if c.op != op {
					return false
				}
				cancel()
				<-c.r.Context().Done() // the client has hung up
				c.drop()
				return true
			}
			_, err := s.Put(ctx, testKey, "x/new", strings.NewReader(letters(map[bool]int{true: 5, false: 45}[op == "PutObject"])))
			if !errors.Is(err, context.Canceled) || !errors.Is(err, psych.ErrUnavailable) {
				t.Errorf("got %v, want context.Canceled and ErrUnavailable", err)
			}
			wantKept(t, f, s)
		})
	}
}

// A reader that fails, or panics, while a part is on its way.
func TestPutReaderFails(t *testing.T) {
	broken := errors.New("broken")
	f := newFake(t)
	s := small(f, nil)
	put(t, s, testKey, "old")
	for n := range 50 {
		for name, end := range map[string]io.Reader{
			"fails":       errReader{broken},
			"throttled":   errReader{fmt.Errorf("%w: %w", broken, psych.ErrUnavailable)},
			"no progress": errReader{nil},
		} {
			_, err := s.Put(t.Context(), testKey, "", io.MultiReader(strings.NewReader(letters(n)), end))
			if want := map[string]error{"no progress": io.ErrNoProgress}[name]; want == nil && !errors.Is(err, broken) || want != nil && !errors.Is(err, want) {
				t.Errorf("a reader that %s behind %d bytes: %v", name, n, err)
			}
		}
		func() {
			defer func() {
				if p := recover(); p != broken {
					t.Errorf("recovered %v", p)
				}
			}()
			s.Put(t.Context(), testKey, "", io.MultiReader(strings.NewReader(letters(n)), panicReader{broken}))
		}()
	}
	for _, n := range []int{-1, 1 << 20} {
		if _, err := s.Put(t.Context(), testKey, "", countReader(n)); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("it returned %d bytes", n)) {
			t.Errorf("a reader that returns %d: %v", n, err)
		}
	}
	wantKept(t, f, s)
}

// An upload is aborted only when no part is on its way any more: one that
// arrives behind the abort would stay.
func TestPutAbortsLast(t *testing.T) {
	broken := errors.New("broken")
	arrived := make(chan bool)
	f := newFake(t)
	f.before = func(c *call) bool {
		if c.op == "UploadPart" {
			arrived <- true
			<-c.r.Context().Done()
			c.drop()
		}
		return false
	}
	h := &inFlight{}
	s := New(f.client(func(o *s3.Options) { h.HTTPClient, o.HTTPClient = o.HTTPClient, h }), testBucket, "pre", nil)
	s.part = 10
	for _, end := range []io.Reader{errReader{broken}, panicReader{broken}} {
		func() {
			defer func() { recover() }()
			s.Put(t.Context(), testKey, "", io.MultiReader(strings.NewReader(letters(15)), waitReader(arrived), end))
		}()
	}
	if n := f.count("AbortMultipartUpload"); n != 2 {
		t.Errorf("%d uploads were aborted, want 2", n)
	}
	if h.beside.Load() > 0 {
		t.Errorf("%d aborts were sent while a part was on its way", h.beside.Load())
	}
}

// A waitReader ends when something comes.
type waitReader chan bool

func (r waitReader) Read([]byte) (int, error) { <-r; return 0, io.EOF }

// An inFlight counts what is sent beside a part.
type inFlight struct {
	s3.HTTPClient
	parts, beside atomic.Int32
}

func (h *inFlight) Do(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPut {
		h.parts.Add(1)
		defer h.parts.Add(-1)
		defer time.Sleep(20 * time.Millisecond) // what does not wait for it is seen
	} else if h.parts.Load() > 0 {
		h.beside.Add(1)
	}
	return h.HTTPClient.Do(r)
}

type panicReader struct{ v any }

func (r panicReader) Read([]byte) (int, error) { panic(r.v) }

type countReader int

func (r countReader) Read([]byte) (int, error) { return int(r), nil }

// Bytes that are changed on the way are refused by the server, which has the
// checksum.
func TestPutDamagedOnTheWay(t *testing.T) {
	for _, size := range []int{5, 45} {
		f := newFake(t)
		s := small(f, nil)
		put(t, s, testKey, "old")
		f.tamper = true
		_, err := s.Put(t.Context(), testKey, "", strings.NewReader(letters(size)))
		if !errors.Is(err, psych.ErrUnavailable) || !strings.Contains(err.Error(), "XAmzContentSHA256Mismatch") {
			t.Errorf("%d bytes: %v, want ErrUnavailable for what the server found", size, err)
		}
		f.tamper = false
		wantKept(t, f, s)
	}
}

// Parts that the server joins in another way than they were sent.
func TestPutJoinedWrongly(t *testing.T) {
	f := newFake(t)
	s := small(f, nil)
	put(t, s, testKey, "old")
	f.before = func(c *call) bool {
		if c.op == "CompleteMultipartUpload" {
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, u := range f.uploads {
				u.parts[1] = []byte("0123456789")
			}
			c.body = []byte(strings.Replace(string(c.body), etag([]byte(letters(10)))[1:33], etag([]byte("0123456789"))[1:33], 1))
			c.body = []byte(strings.Replace(string(c.body), *crcOf(letters(10)), *crcOf("0123456789"), 1))
		}
		return false
	}
	_, err := s.Put(t.Context(), testKey, "", strings.NewReader(letters(45)))
	if !errors.Is(err, psych.ErrUnavailable) || !strings.Contains(err.Error(), "BadDigest") {
		t.Errorf("got %v, want ErrUnavailable for BadDigest", err)
	}
	wantKept(t, f, s)
}

// A server that stored other bytes than it was sent says so by its checksum.
func TestPutAnsweredWithOtherChecksum(t *testing.T) {
	for op, size := range map[string]int{"PutObject": 5, "UploadPart": 45} {
		f := newFake(t)
		f.before = func(c *call) bool {
			if c.op == op {
				c.w.Header().Set("Etag", `"x"`)
				c.w.Header().Set("X-Amz-Checksum-Crc32", "AAAAAA==")
			}
			return c.op == op
		}
		_, err := small(f, nil).Put(t.Context(), testKey, "", strings.NewReader(letters(size)))
		var foreign *foreignError
		if !errors.As(err, &foreign) || !strings.Contains(err.Error(), `the checksum "AAAAAA=="`) {
			t.Errorf("%s: %v", op, err)
		}
	}
}

// An endpoint that does not know checksums of whole objects gets none.
func TestPutWithoutFullObject(t *testing.T) {
	f := newFake(t)
	s := small(f, nil)
	var sent http.Header
	f.before = func(c *call) bool {
		switch c.op {
		case "CreateMultipartUpload":
			fmt.Fprint(c.w, "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
		case "UploadPart":
			c.w.Header().Set("Etag", `"x"`)
		case "CompleteMultipartUpload":
			sent = c.r.Header
			fmt.Fprint(c.w, "<CompleteMultipartUploadResult><ETag>x</ETag><ChecksumCRC32>AAAAAA==-5</ChecksumCRC32></CompleteMultipartUploadResult>")
		}
		return true
	}
	put(t, s, testKey, letters(45))
	if sent.Get("X-Amz-Checksum-Crc32") != "" || sent.Get("X-Amz-Mp-Object-Size") != "45" {
		t.Errorf("the end of the upload has the headers %v", sent)
	}
}

// TestHeap streams 128 MiB, or 1 GiB with PSYCH_TEST_LARGE=1, and looks at the
// heap all along, the server's own included.
func TestHeap(t *testing.T) {
	const allowed = 48 << 20
	size := int64(128 << 20)
	if os.Getenv("PSYCH_TEST_LARGE") == "1" {
		size = 1 << 30
	}
	f := newFake(t)
	f.discard = true
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	source := &heapReader{left: size}
	info, err := f.store(nil).Put(t.Context(), testKey, "", source)
	if err != nil || info.Size != size {
		t.Fatalf("%+v, %v", info, err)
	}
	if o := f.objects[testObject]; o.size != size {
		t.Errorf("%d bytes arrived", o.size)
	}
	grown := int64(source.peak) - int64(before.HeapAlloc)
	t.Logf("heap at most %.1f MiB over what it was", float64(grown)/(1<<20))
	if grown > allowed {
		t.Errorf("the heap grew by %d bytes, want at most %d", grown, allowed)
	}
}

type heapReader struct {
	left, sinceLook int64
	peak            uint64
}

func (r *heapReader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), r.left, 256<<10)
	for i := range p[:n] {
		p[i] = byte(i)
	}
	r.left -= n
	if r.sinceLook += n; r.sinceLook >= 1<<20 {
		r.sinceLook = 0
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		r.peak = max(r.peak, m.HeapAlloc)
	}
	return int(n), nil
}
