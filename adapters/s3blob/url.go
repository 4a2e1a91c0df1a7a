package s3blob

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"

	"github.com/psych-go/psych-go/psych"
)

// Register makes s3://BUCKET/PREFIX a URL of BlobStores. Its parameters:
//
//	region          of the bucket; else the SDK's configuration decides
//	endpoint        http(s)://HOST[:PORT] of a service that speaks S3's protocol
//	path_style      true or false, for an endpoint: the bucket in the path (the
//	                default there) or in the host's name
//	sse             AES256, aws:kms or aws:kms:dsse
//	kms_key         id or ARN of the key for aws:kms and aws:kms:dsse
//	expected_owner  the account that must own the bucket
//
// Credentials come from the SDK's chain alone (environment, profile, role), and
// so does a configured endpoint (AWS_ENDPOINT_URL_S3). Opening does no IO beyond
// the SDK's configuration files.
func Register(b *psych.Backends) {
	b.Blobs.Handle("s3", func(ctx context.Context, u *url.URL) (psych.BlobStore, error) {
		return open(ctx, u)
	})
}

func open(ctx context.Context, u *url.URL) (*Store, error) {
	l, err := parse(u)
	if err != nil {
		return nil, fmt.Errorf("s3blob: %s: %w", u.Redacted(), err)
	}
	load := []func(*config.LoadOptions) error{
		config.WithHTTPClient(httpClient()),
		config.WithLogger(logging.Nop{}), // it writes to standard error what is in the errors too
	}
	if l.region != "" {
		load = append(load, config.WithRegion(l.region))
	}
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, fmt.Errorf("s3blob: %s: the AWS SDK's configuration: %w", u.Redacted(), err)
	}
	client := s3.NewFromConfig(cfg, l.configure)
	if client.Options().Region == "" {
		return nil, fmt.Errorf("s3blob: %s: no region: add region=, or set AWS_REGION: %w", u.Redacted(), psych.ErrInvalid)
	}
	return New(client, l.bucket, l.prefix, &l.o), nil
}

// httpClient is the SDK's own kind: where AWS_CA_BUNDLE is set, the
// configuration fails with any other.
func httpClient() *awshttp.BuildableClient {
	return awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) { d.Timeout = 10 * time.Second }).
		WithTransportOptions(func(t *http.Transport) {
			t.ResponseHeaderTimeout = time.Minute
			// A connection that a frozen process left idle is dead when it wakes.
			t.IdleConnTimeout = 15 * time.Second
		})
}

// A location is what a URL says.
type location struct {
	bucket, prefix, region, endpoint string
	pathStyle                        bool
	o                                Options
}

func (l location) configure(o *s3.Options) {
	if l.endpoint != "" {
		o.BaseEndpoint = &l.endpoint
	}
	// BaseEndpoint is also set where the SDK's configuration names an endpoint.
	if o.BaseEndpoint == nil || isAWS(*o.BaseEndpoint) {
		return
	}
	o.UsePathStyle = l.endpoint == "" || l.pathStyle
	// Not every look-alike takes the checksums that the SDK adds of itself.
	o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
	if o.Region == "" {
		o.Region = "us-east-1"
	}
}

// isAWS reports whether an endpoint is S3 itself, as an interface endpoint in a
// VPC is.
func isAWS(endpoint string) bool {
	u, err := url.Parse(endpoint)
	return err == nil && (strings.HasSuffix(u.Hostname(), ".amazonaws.com") || strings.HasSuffix(u.Hostname(), ".amazonaws.com.cn"))
}

func parse(u *url.URL) (location, error) {
	params, err := psych.Params(u, "region", "endpoint", "path_style", "sse", "kms_key", "expected_owner")
	if err != nil {
		return location{}, err
	}
	invalid := func(format string, args ...any) (location, error) {
		return location{}, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), psych.ErrInvalid)
	}
	for name, value := range params {
		if value == "" {
			return invalid("parameter %q is empty: leave it out, or give it a value", name)
		}
	}
	l := location{
		bucket: u.Host, prefix: strings.TrimPrefix(u.Path, "/"), region: params["region"], endpoint: params["endpoint"], pathStyle: true,
		o: Options{Encryption: params["sse"], KMSKey: params["kms_key"], ExpectedOwner: params["expected_owner"]},
	}
	switch {
	case u.User != nil:
		return invalid("it holds credentials: give them by the environment, a profile or a role, never in a URL")
	case u.Fragment != "" || u.Opaque != "":
		return invalid("want s3://BUCKET/PREFIX, with # and other special characters in no place")
	case !isBucket(l.bucket):
		return invalid("bucket %.80q: want 3 to 63 of [a-z0-9.-], with letters or digits at the ends and between dots", l.bucket)
	case strings.Trim(l.region, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || len(l.region) > 40:
		return invalid("region %.80q: want one like eu-west-1", l.region)
	}
	if l.endpoint != "" {
		e, err := url.Parse(l.endpoint)
		if err != nil || e.Scheme != "http" && e.Scheme != "https" || e.Hostname() == "" || e.User != nil ||
			e.Path != "" && e.Path != "/" || e.RawQuery != "" || e.Fragment != "" {
			return invalid("endpoint %.200q: want http://HOST[:PORT] or https://HOST[:PORT], and nothing behind it", l.endpoint)
		}
	}
	switch style, given := params["path_style"]; {
	case given && (l.endpoint == "" || isAWS(l.endpoint)):
		return invalid("path_style is for an endpoint that is not AWS: leave it out")
	case given && style != "true" && style != "false":
		return invalid("path_style %.80q: want true or false", style)
	case style == "false":
		l.pathStyle = false
	}
	return l, errors.Join(checkPrefix(l.prefix), l.o.check())
}

func isBucket(name string) bool {
	ok := len(name) >= 3 && len(name) <= 63
	for label := range strings.SplitSeq(name, ".") {
		ok = ok && label != "" && label[0] != '-' && label[len(label)-1] != '-' && strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
	}
	return ok
}
