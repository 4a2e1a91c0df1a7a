package faultproxy_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/adapters/s3blob"
	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/internal/faultproxy"
	"github.com/psych-go/psych-go/psych"
)

// patience is what the SDK's clients wait for the head of an answer.
const patience = 2 * time.Second

// retryer repeats often and at once: with a fault on one request in five, ten
// attempts fail once in ten million requests. It repeats what the SDK does not,
// a request whose answer breaks in the middle: that is psych.ErrUnavailable,
// which psych repeats and a rule of a suite does not.
func retryer() *retry.Standard {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts, o.MaxBackoff, o.RateLimiter = 10, 5*time.Millisecond, ratelimit.None
		o.Retryables = append(o.Retryables, retry.IsErrorRetryableFunc(func(err error) aws.Ternary {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				return aws.TrueTernary
			}
			return aws.UnknownTernary
		}))
	})
}

func httpClient() *awshttp.BuildableClient {
	return awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.ResponseHeaderTimeout = patience
		t.MaxIdleConnsPerHost = 100
	})
}

var keys = credentials.NewStaticCredentialsProvider("test", "test", "")

func dynamoClient(at string) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{Region: "us-east-1", BaseEndpoint: &at, Credentials: keys, HTTPClient: httpClient(), Retryer: retryer()})
}

func s3Client(at string) *s3.Client {
	return s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: &at, Credentials: keys, HTTPClient: httpClient(), Retryer: retryer(), UsePathStyle: true,
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
	})
}

// newTable creates a table without faults.
func newTable(t testing.TB, e endpoint.Endpoint) (direct *dynamo.Store, name string) {
	t.Helper()
	name = "psych-" + strings.ToLower(rand.Text())
	c := dynamoClient(e.URL)
	s := dynamo.New(c, name, nil)
	if _, err := s.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := c.DeleteTable(context.WithoutCancel(t.Context()), &dynamodb.DeleteTableInput{TableName: &name}); err != nil {
			t.Errorf("delete table %s: %v", name, err)
		}
	})
	return s, name
}

// newBucket creates a bucket without faults.
func newBucket(t testing.TB, e endpoint.Endpoint) (direct *s3blob.Store, name string) {
	t.Helper()
	name = "psych-" + strings.ToLower(rand.Text())
	s := s3blob.New(s3Client(e.URL), name, "", nil)
	if _, err := s.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, name
}

// onceAlone leaves two requests of DynamoDB alone that a client which repeats
// them can't make once, where the server may have acted already: the count of a
// Post, which may be one too many (that costs a driver a look into an empty
// inbox), and the creation of a header without an incarnation to know itself
// by, which psych never makes. Rules look at both.
func onceAlone(f faultproxy.Fault, r *http.Request, body []byte) bool {
	switch f {
	case faultproxy.Reset, faultproxy.Throttle:
		return false
	}
	return bytes.Contains(body, []byte("ADD po :one")) ||
		faultproxy.Operation(r) == "PutItem" && bytes.Contains(body, []byte(`"s":{"S":"h"}`)) &&
			!bytes.Contains(body, []byte(`"ic":{`)) && !bytes.Contains(body, []byte(`"tb":{`))
}

// Every rule of the Store holds with a fault on one request in five.
func TestStoreThroughFaults(t *testing.T) {
	for _, name := range []string{"dynalite", "ministack"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := endpoint.One(t, endpoint.Dynamo, name)
			_, table := newTable(t, e)
			p, at := proxied(t, e.URL, faultproxy.DynamoDB, &faultproxy.Options{Seed: 1, Spare: onceAlone})
			open := func(context.Context) (psych.Store, error) { return dynamo.New(dynamoClient(at), table, nil), nil }
			contracttest.TestStore(t, func(t *testing.T) *contracttest.Fixture[psych.Store] {
				port, _ := open(t.Context())
				return &contracttest.Fixture[psych.Store]{Port: port, Open: open, Reopen: open}
			}, nil)
			met(t, p, 100)
		})
	}
}

// met fails the test unless every kind of fault was made, and so many in all.
func met(t *testing.T, p *faultproxy.Proxy, least int) {
	t.Helper()
	counts := p.Counts()
	t.Logf("%d requests, faults %v", p.Requests(), counts)
	if p.Made() < least {
		t.Errorf("%d faults were made, want %d at least: the test shows nothing", p.Made(), least)
	}
	for _, f := range faultproxy.Faults {
		if counts[f] == 0 && f != faultproxy.Delay {
			t.Errorf("no fault %s was made", f)
		}
	}
}

// bodiesWhole leaves alone the answers whose body is handed to a reader: what
// breaks there is the reader's error, and nobody repeats it.
func bodiesWhole(f faultproxy.Fault, r *http.Request, _ []byte) bool {
	return f == faultproxy.Cut && r.Method == http.MethodGet && r.URL.Query().Get("list-type") == ""
}

// Every rule of the BlobStore holds with a fault on one request in five.
func TestBlobStoreThroughFaults(t *testing.T) {
	e := endpoint.One(t, endpoint.S3, "ministack")
	_, bucket := newBucket(t, e)
	p, at := proxied(t, e.URL, faultproxy.S3, &faultproxy.Options{Seed: 1, Spare: bodiesWhole})
	open := func(context.Context) (psych.BlobStore, error) { return s3blob.New(s3Client(at), bucket, "", nil), nil }
	contracttest.TestBlobStore(t, func(t *testing.T) *contracttest.Fixture[psych.BlobStore] {
		port, _ := open(t.Context())
		return &contracttest.Fixture[psych.BlobStore]{Port: port, Open: open, Reopen: open}
	}, &contracttest.Options{Lacks: []contracttest.Need{contracttest.Streaming}}) // the proxy holds what passes, in this process
	met(t, p, 100)
}
