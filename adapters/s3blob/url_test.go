package s3blob

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"

	"github.com/psych-go/psych-go/psych"
)

// cleanEnv hides the configuration of whoever runs the tests.
func cleanEnv(t *testing.T) {
	t.Helper()
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "")
			os.Unsetenv(name)
		}
	}
	none := filepath.Join(t.TempDir(), "none")
	t.Setenv("AWS_CONFIG_FILE", none)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", none)
}

func TestRegister(t *testing.T) {
	cleanEnv(t)
	for rawURL, want := range map[string]struct {
		bucket, prefix, region, endpoint string
		pathStyle                        bool
		o                                Options
	}{
		"s3://bucket?region=eu-west-1":                                             {"bucket", "", "eu-west-1", "", false, Options{}},
		"s3://bucket/?region=eu-west-1":                                            {"bucket", "", "eu-west-1", "", false, Options{}},
		"s3://my.bucket-1/a/b/?region=eu-west-1":                                   {"my.bucket-1", "a/b/", "eu-west-1", "", false, Options{}},
		"s3://bucket/a?endpoint=http://127.0.0.1:9000":                             {"bucket", "a/", "us-east-1", "http://127.0.0.1:9000", true, Options{}},
		"s3://bucket?endpoint=https%3A%2F%2Fs3.example%2F&path_style=false":        {"bucket", "", "us-east-1", "https://s3.example/", false, Options{}},
		"s3://bucket?endpoint=http://localhost:1&path_style=true&region=x-1":       {"bucket", "", "x-1", "http://localhost:1", true, Options{}},
		"s3://bucket?region=us-west-2&endpoint=https://s3.us-west-2.amazonaws.com": {"bucket", "", "us-west-2", "https://s3.us-west-2.amazonaws.com", false, Options{}},
		"s3://bucket?region=eu-west-1&sse=AES256&expected_owner=111122223333":      {"bucket", "", "eu-west-1", "", false, Options{Encryption: "AES256", ExpectedOwner: "111122223333"}},
		"s3://bucket?region=eu-west-1&sse=aws:kms&kms_key=arn:aws:kms:eu-west-1:111122223333:key/a-b": {"bucket", "", "eu-west-1", "", false,
			Options{Encryption: "aws:kms", KMSKey: "arn:aws:kms:eu-west-1:111122223333:key/a-b"}},
	} {
		s := openURL(t, rawURL)
		o := s.client.Options()
		checksums := aws.RequestChecksumCalculationWhenSupported
		if want.endpoint != "" && !strings.Contains(want.endpoint, "amazonaws") {
			checksums = aws.RequestChecksumCalculationWhenRequired
		}
		if s.bucket != want.bucket || s.prefix != want.prefix || s.o != want.o || s.bad != nil || o.Region != want.region ||
			aws.ToString(o.BaseEndpoint) != want.endpoint || o.UsePathStyle != want.pathStyle || o.RequestChecksumCalculation != checksums {
			t.Errorf("%s: %s, %+v, %v, region %q, endpoint %q, path style %v, checksums %v", rawURL, s, s.o, s.bad, o.Region, aws.ToString(o.BaseEndpoint), o.UsePathStyle, o.RequestChecksumCalculation)
		}
		if _, ok := o.HTTPClient.(*awshttp.BuildableClient); !ok {
			t.Errorf("%s: the HTTP client is a %T", rawURL, o.HTTPClient)
		}
	}
}

func TestRegisterRefuses(t *testing.T) {
	cleanEnv(t)
	var b psych.Backends
	Register(&b)
	for bad, says := range map[string]string{
		"s3://bucket":                     "no region",
		"s3://":                           "bucket",
		"s3:bucket":                       "BUCKET/PREFIX",
		"s3:///prefix":                    "bucket",
		"s3://ab":                         "bucket",
		"s3://Bucket?region=eu-west-1":    "bucket",
		"s3://my_bucket":                  "bucket",
		"s3://bucket:80":                  "",
		"s3://a..b":                       "bucket",
		"s3://-ab":                        "bucket",
		"s3://" + strings.Repeat("a", 64): "bucket",
		"s3://id:secret@bucket":           "credentials",
		"s3://bucket/a#b":                 "BUCKET/PREFIX",
		"s3://bucket//a":                  "prefix",
		"s3://bucket/a//b":                "prefix",
		"s3://bucket/../b":                "prefix",
		"s3://bucket/a%2Fb%00":            "prefix",
		"s3://bucket/" + strings.Repeat("x", 2048):                 "at most 512",
		"s3://bucket?regoin=eu-west-1":                             "region, endpoint, path_style, sse, kms_key, expected_owner",
		"s3://bucket?region=eu-west-1&region=eu-west-1":            "twice",
		"s3://bucket?region=":                                      "empty",
		"s3://bucket?region=EU WEST":                               "region",
		"s3://bucket?region=eu-west-1;x":                           "parameters",
		"s3://bucket?endpoint=localhost:9000":                      "http://HOST",
		"s3://bucket?endpoint=ftp://localhost":                     "http://HOST",
		"s3://bucket?endpoint=http://":                             "http://HOST",
		"s3://bucket?endpoint=http://a:b@localhost":                "http://HOST",
		"s3://bucket?endpoint=http://localhost/path":               "http://HOST",
		"s3://bucket?endpoint=http://localhost&path_style=yes":     "true or false",
		"s3://bucket?region=eu-west-1&path_style=true":             "not AWS",
		"s3://bucket?region=eu-west-1&sse=kms":                     "AES256, aws:kms or aws:kms:dsse",
		"s3://bucket?region=eu-west-1&kms_key=k":                   "aws:kms",
		"s3://bucket?region=eu-west-1&sse=AES256&kms_key=k":        "aws:kms",
		"s3://bucket?region=eu-west-1&expected_owner=me":           "12 digits",
		"s3://bucket?region=eu-west-1&access_key=id&secret_key=se": "unknown parameter",
	} {
		_, err := b.Blobs.Open(t.Context(), bad)
		if !errors.Is(err, psych.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%.80s: %v, want ErrInvalid that says %q", bad, err, says)
		}
		if err != nil && strings.Contains(err.Error(), "secret@") {
			t.Errorf("%.80s: %v shows the password", bad, err)
		}
	}
}

// What the SDK's own configuration says counts where the URL says nothing.
func TestRegisterEnvironment(t *testing.T) {
	cleanEnv(t)
	t.Setenv("AWS_REGION", "ap-south-1")
	if o := openURL(t, "s3://bucket").client.Options(); o.Region != "ap-south-1" {
		t.Errorf("region %q", o.Region)
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
	o := openURL(t, "s3://bucket").client.Options()
	if aws.ToString(o.BaseEndpoint) != "http://127.0.0.1:1" || !o.UsePathStyle || o.RequestChecksumCalculation != aws.RequestChecksumCalculationWhenRequired {
		t.Errorf("endpoint %q, path style %v, checksums %v", aws.ToString(o.BaseEndpoint), o.UsePathStyle, o.RequestChecksumCalculation)
	}
}

// With a certificate authority of one's own the SDK's configuration fails with
// any HTTP client but its own.
func TestRegisterCABundle(t *testing.T) {
	cleanEnv(t)
	f := newTLSFake(t)
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	writePEM(t, bundle, f.server.Certificate().Raw)
	t.Setenv("AWS_CA_BUNDLE", bundle)
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	s := openURL(t, "s3://bucket/pre?endpoint="+url.QueryEscape(f.url))
	put(t, s, testKey, "x")
	wantBlob(t, s, testKey, "x")
	put(t, s, testKey, strings.Repeat("x", 9<<20))
	if f.count("UploadPart") != 2 {
		t.Errorf("requests %q", f.ops())
	}
}
