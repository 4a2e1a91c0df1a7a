package faultproxy_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/adapters/s3blob"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/internal/faultproxy"
	"github.com/psych-go/psych-go/psych"
)

// The SDK does not repeat a request whose answer breaks in the middle. An
// adapter says of it what it is: the outcome is unknown, and repeating helps.
// No error says that the call certainly had no effect.
func TestCutAnswers(t *testing.T) {
	db, blobs := endpoint.One(t, endpoint.Dynamo, "dynalite"), endpoint.One(t, endpoint.S3, "ministack")
	direct, table := newTable(t, db)
	directBlobs, bucket := newBucket(t, blobs)
	ctx := t.Context()
	once := aws.NopRetryer{}
	cut := &faultproxy.Options{Seed: 4, Every: 1, Faults: []faultproxy.Fault{faultproxy.Cut}}
	_, at := proxied(t, db.URL, faultproxy.DynamoDB, cut)
	s := dynamo.New(dynamodb.New(dynamodb.Options{Region: "us-east-1", BaseEndpoint: &at, Credentials: keys, Retryer: once, HTTPClient: &http.Client{}}), table, nil)
	_, atS3 := proxied(t, blobs.URL, faultproxy.S3, cut)
	b := s3blob.New(s3.New(s3.Options{Region: "us-east-1", BaseEndpoint: &atS3, Credentials: keys, Retryer: once, HTTPClient: &http.Client{}, UsePathStyle: true, RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired}), bucket, "", nil)

	key := psych.RunKey{Tenant: "cut", RunID: strings.Repeat("0", 32)}
	blob := psych.BlobKey{Tenant: key.Tenant, RunID: key.RunID, CallID: "c1_1.result.1"}
	now := time.Unix(1e9, 0)
	info := psych.RunInfo{Key: key, Request: psych.Digest{1}, Incarnation: "i", CreatedAt: now}
	if _, _, err := direct.CreateRun(ctx, info); err != nil {
		t.Fatal(err)
	}
	if _, err := directBlobs.Put(ctx, blob, "text/plain", strings.NewReader("bytes")); err != nil {
		t.Fatal(err)
	}
	for range 12 { // at other places each time
		for method, call := range map[string]func() error{
			"GetRun":    func() error { _, err := s.GetRun(ctx, key); return err },
			"Head":      func() error { _, err := s.Head(ctx, key); return err },
			"Read":      func() error { _, err := s.Read(ctx, key, psych.Pos{}, 1); return err },
			"Pending":   func() error { _, err := s.Pending(ctx, key); return err },
			"CreateRun": func() error { _, _, err := s.CreateRun(ctx, info); return err },
			"Post": func() error {
				return s.Post(ctx, key, psych.Note{ID: "n", Kind: psych.KindUserMessage, Time: now}, now)
			},
			"Append": func() error {
				_, err := s.Append(ctx, key, psych.Pos{}, psych.Batch{Token: "t", Entries: []psych.Entry{{Seq: 1, Kind: "k", Time: now}}})
				return err
			},
			"ListRuns":  func() error { _, _, err := s.ListRuns(ctx, key.Tenant, "", 1); return err },
			"Put":       func() error { _, err := b.Put(ctx, blob, "text/plain", strings.NewReader("bytes")); return err },
			"Stat":      func() error { _, err := b.Stat(ctx, blob); return err },
			"DeleteRun": func() error { return b.DeleteRun(ctx, psych.RunKey{Tenant: "other", RunID: key.RunID}) },
		} {
			if err := call(); !errors.Is(err, psych.ErrUnavailable) {
				t.Errorf("%s: %v: want ErrUnavailable", method, err)
			}
		}
	}
}
