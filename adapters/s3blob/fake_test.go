package s3blob

import (
	"bytes"
	"cmp"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"encoding/xml"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/psych-go/psych-go/psych"
)

const testBucket = "bucket"

// A fakeS3 is as much of S3 as a Store uses, strict about what S3 is strict
// about, with hooks for what goes wrong.
type fakeS3 struct {
	// before sees each request once its body is read; true: it has answered.
	before func(c *call) bool
	// after is called when the request has had its effect, before the answer.
	after func(c *call)

	discard bool // keep no bytes of parts
	tamper  bool // change a byte of each body on its way

	mu      sync.Mutex
	buckets map[string]bool
	objects map[string]*object
	uploads map[string]*fakeUpload
	calls   []*call
	nextID  int
	url     string
	server  *httptest.Server
}

type object struct {
	data        []byte
	size        int64 // of data, where it is kept
	header      http.Header
	crc         uint32
	contentType string
}

type fakeUpload struct {
	object
	key   string
	parts map[int][]byte
	sizes map[int]int64
}

// A call is one request: its operation, and how many of that came before it.
type call struct {
	f      *fakeS3
	op     string
	number int
	w      http.ResponseWriter
	r      *http.Request
	body   []byte
}

// fail answers like S3.
func (c *call) fail(status int, code string) bool {
	c.w.Header().Set("Content-Type", "application/xml")
	c.w.Header().Set("X-Amz-Request-Id", "1")
	c.w.WriteHeader(status)
	if c.r.Method != http.MethodHead {
		fmt.Fprintf(c.w, "<Error><Code>%s</Code><Message>as the test wants it</Message></Error>", code)
	}
	return true
}

// drop closes the connection without an answer.
func (c *call) drop() { panic(http.ErrAbortHandler) }

func newFake(t *testing.T) *fakeS3    { return startFake(t, httptest.NewServer) }
func newTLSFake(t *testing.T) *fakeS3 { return startFake(t, httptest.NewTLSServer) }

func startFake(t *testing.T, start func(http.Handler) *httptest.Server) *fakeS3 {
	f := &fakeS3{buckets: map[string]bool{testBucket: true}, objects: map[string]*object{}, uploads: map[string]*fakeUpload{}}
	f.server = start(f)
	f.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(f.server.Close)
	f.url = f.server.URL
	return f
}

// client retries without waiting.
func (f *fakeS3) client(options ...func(*s3.Options)) *s3.Client {
	return s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: &f.url, UsePathStyle: true,
		HTTPClient: awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
			t.TLSClientConfig = f.server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
		}),
		Credentials: credentials.NewStaticCredentialsProvider("id", "secret", ""),
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) {
			o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
		}),
	}, options...)
}

func (f *fakeS3) store(o *Options) *Store { return New(f.client(), testBucket, "pre", o) }

// count returns how many requests of an operation there were; "" counts all.
func (f *fakeS3) count(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.calls {
		if op == "" || c.op == op {
			n++
		}
	}
	return n
}

func (f *fakeS3) ops() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ops []string
	for _, c := range f.calls {
		ops = append(ops, c.op)
	}
	return ops
}

func (f *fakeS3) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls, f.before, f.after = nil, nil, nil
}

// open is how many uploads were begun and neither ended nor aborted.
func (f *fakeS3) open() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.uploads)
}

func operation(r *http.Request, key string) string {
	q := r.URL.Query()
	switch m := r.Method; {
	case key == "" && m == http.MethodHead:
		return "HeadBucket"
	case key == "" && m == http.MethodPost && q.Has("delete"):
		return "DeleteObjects"
	case key == "" && m == http.MethodGet && q.Get("list-type") == "2":
		return "ListObjectsV2"
	case key == "":
		for _, config := range []string{"publicAccessBlock", "lifecycle", "versioning"} {
			if q.Has(config) {
				return m + " " + config
			}
		}
		return m + " bucket"
	case m == http.MethodPost && q.Has("uploads"):
		return "CreateMultipartUpload"
	case m == http.MethodPut && q.Has("uploadId"):
		return "UploadPart"
	case m == http.MethodPost && q.Has("uploadId"):
		return "CompleteMultipartUpload"
	case m == http.MethodDelete && q.Has("uploadId"):
		return "AbortMultipartUpload"
	default:
		return map[string]string{http.MethodPut: "PutObject", http.MethodGet: "GetObject", http.MethodHead: "HeadObject", http.MethodDelete: "DeleteObject"}[m]
	}
}

func (f *fakeS3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	c := &call{f: f, op: operation(r, key), w: w, r: r}
	f.mu.Lock()
	for _, other := range f.calls {
		if other.op == c.op {
			c.number++
		}
	}
	f.calls = append(f.calls, c)
	before, after := f.before, f.after
	f.mu.Unlock()

	sha, sum := sha256.New(), crc32.NewIEEE()
	var kept bytes.Buffer
	to := io.MultiWriter(sha, sum)
	if !f.discard || c.op != "UploadPart" {
		to = io.MultiWriter(sha, sum, &kept)
	}
	if f.tamper {
		sha.Write([]byte("x"))
	}
	size, err := io.Copy(to, r.Body)
	if err != nil {
		c.drop()
	}
	c.body = kept.Bytes()
	if before != nil && before(c) {
		return
	}
	w.Header().Set("X-Amz-Request-Id", "1")
	// Never a body in chunks, which an unseekable one would become.
	if got := r.Header.Get("X-Amz-Content-Sha256"); got != hex.EncodeToString(sha.Sum(nil)) && (r.TLS == nil || got != "UNSIGNED-PAYLOAD") {
		c.fail(http.StatusBadRequest, "XAmzContentSHA256Mismatch")
		return
	}
	want := r.Header.Get("X-Amz-Checksum-Crc32")
	if data := c.op == "PutObject" || c.op == "UploadPart"; data && want == "" || want != "" && c.op != "CompleteMultipartUpload" && want != *crc(sum.Sum32()) {
		c.fail(http.StatusBadRequest, "BadDigest")
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.buckets[bucket] && c.op != "PUT bucket" {
		c.fail(http.StatusNotFound, "NoSuchBucket")
		return
	}
	f.serve(c, bucket, key, size, sum.Sum32(), func() {
		if after != nil {
			after(c)
		}
	})
}

func (f *fakeS3) serve(c *call, bucket, key string, size int64, sum uint32, done func()) {
	w, r := c.w, c.r
	o := f.objects[key]
	switch c.op {
	case "PutObject":
		f.objects[key] = &object{data: c.body, size: size, header: r.Header, crc: sum, contentType: r.Header.Get("Content-Type")}
		done()
		w.Header().Set("Etag", etag(c.body))
		w.Header().Set("X-Amz-Checksum-Crc32", *crc(sum))
	case "GetObject", "HeadObject":
		if o == nil {
			c.fail(http.StatusNotFound, "NoSuchKey")
			return
		}
		done()
		f.mu.Unlock() // a client may read slowly, and o never changes
		defer f.mu.Lock()
		o.serve(c)
	case "DeleteObject":
		delete(f.objects, key)
		done()
		w.WriteHeader(http.StatusNoContent)
	case "CreateMultipartUpload":
		if r.Header.Get("X-Amz-Checksum-Algorithm") != "CRC32" || r.Header.Get("X-Amz-Checksum-Type") != "FULL_OBJECT" {
			c.fail(http.StatusBadRequest, "InvalidRequest")
			return
		}
		f.nextID++
		id := fmt.Sprint("upload", f.nextID)
		f.uploads[id] = &fakeUpload{object: object{header: r.Header, contentType: r.Header.Get("Content-Type")}, key: key, parts: map[int][]byte{}, sizes: map[int]int64{}}
		done()
		w.Header().Set("X-Amz-Checksum-Type", "FULL_OBJECT")
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>", id)
	case "UploadPart":
		u := f.uploads[r.URL.Query().Get("uploadId")]
		if u == nil {
			c.fail(http.StatusNotFound, "NoSuchUpload")
			return
		}
		n, _ := strconv.Atoi(r.URL.Query().Get("partNumber"))
		u.parts[n], u.sizes[n] = c.body, size
		if f.discard {
			u.crc = combine(u.crc, sum, size)
		}
		done()
		w.Header().Set("Etag", etag(c.body))
		w.Header().Set("X-Amz-Checksum-Crc32", *crc(sum))
	case "CompleteMultipartUpload":
		f.complete(c, key, done)
	case "AbortMultipartUpload":
		id := r.URL.Query().Get("uploadId")
		if f.uploads[id] == nil {
			c.fail(http.StatusNotFound, "NoSuchUpload")
			return
		}
		delete(f.uploads, id)
		done()
		w.WriteHeader(http.StatusNoContent)
	case "ListObjectsV2":
		f.list(c, bucket)
	case "DeleteObjects":
		var in struct {
			Object []struct{ Key string }
			Quiet  bool
		}
		if err := xml.Unmarshal(c.body, &in); err != nil || !in.Quiet || len(in.Object) > 1000 {
			c.fail(http.StatusBadRequest, "MalformedXML")
			return
		}
		for _, o := range in.Object {
			delete(f.objects, o.Key)
		}
		done()
		fmt.Fprint(w, "<DeleteResult></DeleteResult>")
	case "PUT bucket":
		f.buckets[bucket] = true
	case "GET publicAccessBlock":
		c.fail(http.StatusNotFound, "NoSuchPublicAccessBlockConfiguration")
	case "GET lifecycle":
		c.fail(http.StatusNotFound, "NoSuchLifecycleConfiguration")
	case "GET versioning":
		fmt.Fprint(w, "<VersioningConfiguration></VersioningConfiguration>")
	case "HeadBucket", "PUT publicAccessBlock", "PUT lifecycle":
	default:
		c.fail(http.StatusNotImplemented, "NotImplemented")
	}
}

func etag(b []byte) string { return fmt.Sprintf(`"%x"`, md5.Sum(b)) }

func (o *object) serve(c *call) {
	h := c.w.Header()
	h.Set("Etag", etag(o.data))
	h.Set("Content-Type", o.contentType)
	for k, v := range o.header {
		if strings.HasPrefix(k, "X-Amz-Meta-") {
			h[k] = v
		}
	}
	from, to := int64(0), o.size-1
	status := http.StatusOK
	if spec, ok := strings.CutPrefix(c.r.Header.Get("Range"), "bytes="); ok {
		a, b, _ := strings.Cut(spec, "-")
		from, _ = strconv.ParseInt(a, 10, 64)
		if b != "" {
			end, _ := strconv.ParseInt(b, 10, 64)
			to = min(to, end)
		}
		if from >= o.size {
			c.fail(http.StatusRequestedRangeNotSatisfiable, "InvalidRange")
			return
		}
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, o.size))
		status = http.StatusPartialContent
	} else if c.r.Header.Get("X-Amz-Checksum-Mode") == "ENABLED" {
		h.Set("X-Amz-Checksum-Crc32", *crc(o.crc))
		h.Set("X-Amz-Checksum-Type", "FULL_OBJECT")
	}
	h.Set("Content-Length", strconv.FormatInt(to-from+1, 10))
	c.w.WriteHeader(status)
	if c.r.Method == http.MethodGet {
		c.w.Write(o.data[from : to+1])
	}
}

func (f *fakeS3) complete(c *call, key string, done func()) {
	id := c.r.URL.Query().Get("uploadId")
	u := f.uploads[id]
	if u == nil || u.key != key {
		c.fail(http.StatusNotFound, "NoSuchUpload")
		return
	}
	var in struct {
		Part []struct {
			ETag          string
			PartNumber    int
			ChecksumCRC32 string
		}
	}
	if err := xml.Unmarshal(c.body, &in); err != nil || len(in.Part) == 0 || len(in.Part) > 10_000 {
		c.fail(http.StatusBadRequest, "MalformedXML")
		return
	}
	o := u.object
	for i, p := range in.Part {
		data, ok := u.parts[p.PartNumber]
		if !ok || p.PartNumber != i+1 || p.ETag != etag(data) || !f.discard && p.ChecksumCRC32 != *crc(crc32.ChecksumIEEE(data)) {
			c.fail(http.StatusBadRequest, "InvalidPart")
			return
		}
		o.data = append(o.data, data...)
		o.size += u.sizes[p.PartNumber]
	}
	if !f.discard {
		o.crc = crc32.ChecksumIEEE(o.data)
	}
	if h := c.r.Header; h.Get("X-Amz-Checksum-Crc32") != *crc(o.crc) || h.Get("X-Amz-Checksum-Type") != "FULL_OBJECT" || h.Get("X-Amz-Mp-Object-Size") != fmt.Sprint(o.size) {
		c.fail(http.StatusBadRequest, "BadDigest")
		return
	}
	f.objects[key] = &o
	delete(f.uploads, id)
	done()
	fmt.Fprintf(c.w, `<CompleteMultipartUploadResult><ETag>"x-%d"</ETag><ChecksumCRC32>%s</ChecksumCRC32></CompleteMultipartUploadResult>`, len(in.Part), *crc(o.crc))
}

func (f *fakeS3) list(c *call, bucket string) {
	q := c.r.URL.Query()
	page := 1000
	var keys []string
	for _, k := range slices.Sorted(maps.Keys(f.objects)) {
		if strings.HasPrefix(k, q.Get("prefix")) && k > q.Get("start-after") {
			keys = append(keys, k)
		}
	}
	fmt.Fprintf(c.w, "<ListBucketResult><Name>%s</Name><IsTruncated>%v</IsTruncated>", bucket, len(keys) > page)
	for _, k := range keys[:min(len(keys), page)] {
		fmt.Fprintf(c.w, "<Contents><Key>%s</Key></Contents>", k)
	}
	fmt.Fprint(c.w, "</ListBucketResult>")
}

func crcOf(data string) *string { return crc(crc32.ChecksumIEEE([]byte(data))) }

// combine returns the CRC-32 of a followed by size bytes with the CRC-32 b.
func combine(a, b uint32, size int64) uint32 {
	zeros := make([]byte, 64<<10)
	// A CRC is linear: that of a and zeros, without the zeros' own, is a's part.
	x, y := a, uint32(0)
	for left := size; left > 0; left -= int64(len(zeros)) {
		z := zeros[:min(left, int64(len(zeros)))]
		x, y = crc32.Update(x, crc32.IEEETable, z), crc32.Update(y, crc32.IEEETable, z)
	}
	return x ^ y ^ b
}

var testKey = psych.BlobKey{Tenant: "acme", RunID: strings.Repeat("0123456789abcdef", 2), CallID: "c1_1.result.1"}

const testObject = "pre/acme/0123456789abcdef0123456789abcdef/c1_1.result.1"

func put(t *testing.T, s *Store, key psych.BlobKey, data string) {
	t.Helper()
	if _, err := s.Put(t.Context(), key, "text/plain", strings.NewReader(data)); err != nil {
		t.Fatal(err)
	}
}

func get(ctx context.Context, s *Store, key psych.BlobKey, offset, length int64) (string, psych.BlobInfo, error) {
	r, info, err := s.Open(ctx, key, offset, length)
	if err != nil {
		return "", info, err
	}
	b, err := io.ReadAll(r)
	return string(b), info, cmp.Or(err, r.Close())
}

func wantBlob(t *testing.T, s *Store, key psych.BlobKey, want string) {
	t.Helper()
	got, info, err := get(t.Context(), s, key, 0, -1)
	if err != nil || got != want || info.Size != int64(len(want)) {
		t.Errorf("got %d bytes (%.20q), %+v, %v, want %d bytes (%.20q)", len(got), got, info, err, len(want), want)
	}
}

func writePEM(t *testing.T, path string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
