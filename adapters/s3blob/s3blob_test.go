package s3blob

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

func TestBlobStoreContract(t *testing.T) {
	for _, e := range endpoint.S3(t) {
		t.Run(e.Name, func(t *testing.T) {
			t.Setenv("AWS_ACCESS_KEY_ID", "test")
			t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
			open := func(t *testing.T) *Store {
				return openURL(t, "s3://psych-contract/a/b?region=eu-west-1&endpoint="+url.QueryEscape(e.URL))
			}
			if notes, err := open(t).Init(t.Context()); err != nil {
				t.Fatal(notes, err)
			}
			var rules []string
			for _, r := range contracttest.BlobStoreRules() {
				rules = append(rules, r.Name)
			}
			contracttest.TestBlobStore(t, fixture(open), &contracttest.Options{Except: endpoint.Except(e.Name, rules...)})
		})
	}
}

// The suite over plain http and https on a server in this process, whose memory
// the rule on streaming would measure: TestHeap does that instead.
func TestBlobStoreContractLocal(t *testing.T) {
	var rules []string
	for _, r := range contracttest.BlobStoreRules() {
		if r.Needs != contracttest.Streaming {
			rules = append(rules, r.Name)
		}
	}
	for name, f := range map[string]*fakeS3{"http": newFake(t), "https": newTLSFake(t)} {
		t.Run(name, func(t *testing.T) {
			open := func(*testing.T) *Store { return f.store(nil) }
			contracttest.TestBlobStore(t, fixture(open), &contracttest.Options{Only: rules})
			if n := f.open(); n > 0 {
				t.Errorf("%d uploads were left", n)
			}
		})
	}
}

func fixture(open func(t *testing.T) *Store) func(t *testing.T) *contracttest.Fixture[psych.BlobStore] {
	return func(t *testing.T) *contracttest.Fixture[psych.BlobStore] {
		handle := func(context.Context) (psych.BlobStore, error) { return open(t), nil }
		return &contracttest.Fixture[psych.BlobStore]{Port: open(t), Open: handle, Reopen: handle}
	}
}

func openURL(t *testing.T, rawURL string) *Store {
	t.Helper()
	var b psych.Backends
	Register(&b)
	s, err := b.Blobs.Open(t.Context(), rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return s.(*Store)
}

// A bucket that Init creates has what Init can set, and Init may be repeated.
func TestInitOnEmulators(t *testing.T) {
	for _, e := range endpoint.S3(t) {
		t.Run(e.Name, func(t *testing.T) {
			t.Setenv("AWS_ACCESS_KEY_ID", "test")
			t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
			bucket := "psych-init-" + strings.ToLower(rand.Text())
			s := openURL(t, "s3://"+bucket+"/x?region=eu-west-1&endpoint="+url.QueryEscape(e.URL))
			t.Cleanup(func() { // behind the end of t.Context
				if _, err := s.client.DeleteBucket(context.Background(), &s3.DeleteBucketInput{Bucket: &bucket}); err != nil {
					t.Error(err)
				}
			})
			if _, err := s.Stat(t.Context(), testKey); err == nil || !strings.Contains(err.Error(), "bucket "+bucket+" does not exist") {
				t.Errorf("Stat without the bucket: %v", err)
			}
			notes, err := s.Init(t.Context())
			want := "created bucket " + bucket + " in region eu-west-1; blocked public access; set a lifecycle rule that ends incomplete uploads after 7 days"
			if got := strings.Join(notes, "; "); err != nil || got != want {
				t.Errorf("Init: %q, %v, want %q", got, err, want)
			}
			if notes, err := s.Init(t.Context()); err != nil || len(notes) > 0 {
				t.Errorf("Init again: %q, %v, want nothing to say", notes, err)
			}
		})
	}
}
