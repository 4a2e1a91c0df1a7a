package s3blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/psych-go/psych-go/psych"
)

// methods are all calls of a Store.
func methods(ctx context.Context, s *Store) map[string]error {
	errs := map[string]error{}
	_, errs["Put"] = s.Put(ctx, testKey, "text/plain", strings.NewReader("x"))
	large := &Store{client: s.client, bucket: s.bucket, prefix: s.prefix, o: s.o, bad: s.bad, part: 10, max: s.max}
	_, errs["Put of parts"] = large.Put(ctx, testKey, "text/plain", strings.NewReader(letters(45)))
	_, _, errs["Open"] = get(ctx, s, testKey, 0, -1)
	_, _, errs["Open of a range"] = get(ctx, s, testKey, 1, 2)
	_, _, errs["Open of nothing"] = get(ctx, s, testKey, 1, 0)
	_, errs["Stat"] = s.Stat(ctx, testKey)
	errs["Delete"] = s.Delete(ctx, testKey)
	errs["DeleteRun"] = s.DeleteRun(ctx, testKey.Run())
	return errs
}

var sentinels = []error{psych.ErrNotFound, psych.ErrConflict, psych.ErrTooLarge, psych.ErrInvalid, psych.ErrAccessDenied, psych.ErrUnavailable, psych.ErrNoBlobStore}

// wantError checks that err matches one sentinel, or none, and says something.
func wantError(t *testing.T, what string, err, is error, says string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v, want an error that says %q", what, err, says)
		return
	}
	for _, sentinel := range sentinels {
		if errors.Is(err, sentinel) != (sentinel == is) {
			t.Errorf("%s: %v\nmatches %q: %v", what, err, sentinel, errors.Is(err, sentinel))
		}
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		status int
		code   string
		is     error
		says   string // of what has a body
		head   string // of a HEAD; "": as says
	}{
		{403, "AccessDenied", nil, "s3:ListBucket, without which a missing object is denied too", ""},
		{403, "InvalidAccessKeyId", nil, "does not know these AWS credentials", "S3 denies access"},
		{403, "SignatureDoesNotMatch", nil, "does not know these AWS credentials", "S3 denies access"},
		{400, "ExpiredToken", nil, "the AWS credentials have expired: renew them", "BadRequest"},
		{400, "AuthorizationHeaderMalformed", nil, "set region=", "BadRequest"},
		{301, "PermanentRedirect", nil, "set region=", "301"},
		{409, "OperationAborted", psych.ErrUnavailable, "OperationAborted", "409"},
		{412, "PreconditionFailed", nil, "PreconditionFailed", "412"},
		{429, "TooManyRequests", psych.ErrUnavailable, "TooManyRequests", "429"},
		{400, "RequestTimeout", psych.ErrUnavailable, "RequestTimeout", "BadRequest"},
		{400, "BadDigest", psych.ErrUnavailable, "BadDigest", "BadRequest"},
		{400, "IncompleteBody", psych.ErrUnavailable, "IncompleteBody", "BadRequest"},
		{400, "InvalidArgument", nil, "InvalidArgument", "BadRequest"},
		{500, "InternalError", psych.ErrUnavailable, "InternalError", "500"},
		{502, "", psych.ErrUnavailable, "502", ""},
		{503, "SlowDown", psych.ErrUnavailable, "SlowDown", "503"},
		{501, "NotImplemented", nil, "NotImplemented", "501"},
	} {
		t.Run(fmt.Sprint(c.status, c.code), func(t *testing.T) {
			f := newFake(t)
			f.before = func(r *call) bool { return r.fail(c.status, c.code) }
			for method, err := range methods(t.Context(), f.store(nil)) {
				is, says := c.is, c.says
				if method == "Stat" || method == "Open of nothing" {
					if c.head != "" {
						says = c.head
					}
					if c.head == "BadRequest" || c.status == 409 {
						is = nil // nothing in the answer says more
					}
				}
				wantError(t, method, err, is, says)
				var op *smithy.OperationError
				if !errors.As(err, &op) {
					t.Errorf("%s: %v does not wrap the SDK's error", method, err)
				}
			}
		})
	}
}

func TestBucketMissing(t *testing.T) {
	f := newFake(t)
	f.buckets = nil
	for method, err := range methods(t.Context(), f.store(nil)) {
		wantError(t, method, err, nil, "bucket bucket does not exist")
	}
}

// Whether the bucket exists is asked once at most, and not where that is known.
func TestStatMissing(t *testing.T) {
	f := newFake(t)
	s := f.store(nil)
	for range 3 {
		_, err := s.Stat(t.Context(), testKey)
		wantError(t, "Stat", err, psych.ErrNotFound, "")
	}
	if n := f.count("HeadBucket"); n != 1 {
		t.Errorf("%d HeadBucket, want 1", n)
	}
	s = f.store(nil)
	put(t, s, testKey, "x")
	f.reset()
	_, err := s.Stat(t.Context(), psych.BlobKey{Tenant: "other", RunID: testKey.RunID, CallID: testKey.CallID})
	wantError(t, "Stat", err, psych.ErrNotFound, "")
	if n := f.count(""); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
	f = newFake(t)
	f.before = func(c *call) bool { return c.op == "HeadBucket" && c.fail(403, "AccessDenied") }
	_, err = f.store(nil).Stat(t.Context(), testKey)
	wantError(t, "Stat with a bucket that may not be looked at", err, psych.ErrNotFound, "")
	f.before = func(c *call) bool { return c.op == "HeadBucket" && c.fail(503, "SlowDown") }
	_, err = f.store(nil).Stat(t.Context(), testKey)
	wantError(t, "Stat with a bucket that can't be looked at", err, psych.ErrUnavailable, "")
}

func TestWrongRegion(t *testing.T) {
	for _, status := range []int{301, 307, 400} {
		f := newFake(t)
		f.before = func(c *call) bool {
			c.w.Header().Set("X-Amz-Bucket-Region", "eu-west-1")
			return c.fail(status, map[int]string{301: "PermanentRedirect", 307: "TemporaryRedirect", 400: "AuthorizationHeaderMalformed"}[status])
		}
		s := f.store(nil)
		errs := methods(t.Context(), s)
		_, errs["Init"] = s.Init(t.Context())
		for method, err := range errs {
			wantError(t, fmt.Sprint(status, " ", method), err, nil, "bucket bucket is in region eu-west-1 and the client in us-east-1: set region=eu-west-1")
		}
	}
}

func TestExpectedOwnerDenied(t *testing.T) {
	f := newFake(t)
	f.before = func(c *call) bool { return c.fail(403, "AccessDenied") }
	for method, err := range methods(t.Context(), f.store(&Options{ExpectedOwner: "111122223333"})) {
		wantError(t, method, err, nil, "when account 111122223333 does not own the bucket")
	}
}

// endpointStore is a Store whose endpoint is another server.
func endpointStore(t *testing.T, endpoint string) *Store {
	f := newFake(t)
	f.url = endpoint
	return f.store(nil)
}

func TestNotS3(t *testing.T) {
	const page = "\n<!DOCTYPE html><html><head><title>Sign in</title></head></html>"
	for name, c := range map[string]struct {
		status            int
		contentType, body string
	}{
		"page":          {200, "text/html; charset=utf-8", page},
		"login":         {302, "text/html", page},
		"forbidden":     {403, "text/html", page},
		"not found":     {404, "text/html", page},
		"JSON":          {200, "application/json", `{"ok":true}`},
		"nothing":       {200, "", ""},
		"no content":    {204, "", ""},
		"untyped page":  {200, "text/plain", page},
		"page of error": {404, "text/plain", "404 page not found"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				if c.contentType != "" {
					w.Header().Set("Content-Type", c.contentType)
				}
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			}))
			defer server.Close()
			for method, err := range methods(t.Context(), endpointStore(t, server.URL)) {
				switch {
				case method == "Delete" && c.status < 300 && c.contentType != "text/html; charset=utf-8":
					continue // S3's answer has nothing that another's lacks
				case c.status >= 300 && (method == "Stat" || method == "Open of nothing"):
					// The answer to a HEAD has nothing but a status.
					if err == nil || errors.Is(err, psych.ErrNotFound) || errors.Is(err, psych.ErrUnavailable) {
						t.Errorf("%s: %v, want an error that is not ErrNotFound", method, err)
					}
					continue
				}
				wantError(t, method, err, nil, "what answers is no S3")
			}
		})
	}
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(502)
		io.WriteString(w, page)
	}))
	defer gateway.Close()
	for method, err := range methods(t.Context(), endpointStore(t, gateway.URL)) {
		wantError(t, "a gateway's page: "+method, err, psych.ErrUnavailable, "502")
	}
}

func TestConnections(t *testing.T) {
	closed := httptest.NewServer(nil)
	closed.Close()
	hangsUp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hangsUp.Close()
	go func() {
		for {
			c, err := hangsUp.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	plain := newFake(t)
	for name, c := range map[string]struct {
		url string
		is  error
	}{
		"refused":  {closed.URL, psych.ErrUnavailable},
		"hung up":  {"http://" + hangsUp.Addr().String(), psych.ErrUnavailable},
		"not TLS":  {"https" + strings.TrimPrefix(plain.url, "http"), nil},
		"unknown":  {newTLSFake(t).url, nil}, // a certificate that the client does not know
		"not http": {"ftp://127.0.0.1", nil},
	} {
		t.Run(name, func(t *testing.T) {
			for method, err := range methods(t.Context(), endpointStore(t, c.url)) {
				wantError(t, method, err, c.is, "")
			}
		})
	}
}

func TestNoCredentials(t *testing.T) {
	metadata := httptest.NewServer(http.NotFoundHandler())
	defer metadata.Close()
	f := newFake(t)
	for name, provider := range map[string]aws.CredentialsProvider{
		"no role on the machine": ec2rolecreds.New(func(o *ec2rolecreds.Options) { o.Client = imds.New(imds.Options{Endpoint: metadata.URL}) }),
		"no service to ask": ec2rolecreds.New(func(o *ec2rolecreds.Options) {
			o.Client = imds.New(imds.Options{ClientEnableState: imds.ClientDisabled})
		}),
	} {
		s := New(f.client(func(o *s3.Options) { o.Credentials = aws.NewCredentialsCache(provider) }), testBucket, "", nil)
		for method, err := range methods(t.Context(), s) {
			wantError(t, name+": "+method, err, nil, "no AWS credentials: set AWS_PROFILE")
		}
	}
}

func TestNewRefuses(t *testing.T) {
	client := newFake(t).client()
	for name, s := range map[string]*Store{
		"client":     New(nil, "bucket", "", nil),
		"bucket":     New(client, "", "", nil),
		"prefix":     New(client, "bucket", "/a", nil),
		"encryption": New(client, "bucket", "", &Options{Encryption: "kms"}),
		"KMS key":    New(client, "bucket", "", &Options{Encryption: "AES256", KMSKey: "k"}),
		"owner":      New(client, "bucket", "", &Options{ExpectedOwner: "12345678901x"}),
	} {
		errs := methods(t.Context(), s)
		_, errs["Init"] = s.Init(t.Context())
		for method, err := range errs {
			wantError(t, name+": "+method, err, psych.ErrInvalid, name)
		}
	}
	for prefix, legal := range map[string]bool{
		"": true, "a": true, "a/b": true, "a/": true, "a_-.!*'()=/B9": true, strings.Repeat("x", 512): true,
		"/": false, "/a": false, "a//b": false, "a//": false, ".": false, "a/..": false, "./a": false, "a b": false, "a%2Fb": false, "é": false, "a\x00": false, strings.Repeat("x", 513): false,
	} {
		if s := New(client, "bucket", prefix, nil); (s.bad == nil) != legal {
			t.Errorf("prefix %.20q: %v", prefix, s.bad)
		}
	}
}
