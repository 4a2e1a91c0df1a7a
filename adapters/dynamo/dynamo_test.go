package dynamo_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

// client returns a client of an endpoint.
func client(e endpoint.Endpoint, options ...func(*dynamodb.Options)) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		Region:       "us-east-1",
		BaseEndpoint: aws.String(e.URL),
		Credentials:  credentials.NewStaticCredentialsProvider("test", "test", ""),
		Retryer:      retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts = 5 }),
	}, options...)
}

// newTable creates a table of its own for a test.
func newTable(t testing.TB, c *dynamodb.Client) *dynamo.Store {
	t.Helper()
	name := "psych-" + strings.ToLower(rand.Text())
	s := dynamo.New(c, name, nil)
	if _, err := s.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := c.DeleteTable(context.WithoutCancel(t.Context()), &dynamodb.DeleteTableInput{TableName: &name}); err != nil {
			t.Errorf("delete table %s: %v", name, err)
		}
	})
	return s
}

// each runs f on every endpoint, on all at once.
func each(t *testing.T, f func(t *testing.T, e endpoint.Endpoint)) {
	t.Helper()
	for _, e := range endpoint.Dynamo(t) {
		t.Run(e.Name, func(t *testing.T) {
			t.Parallel()
			f(t, e)
		})
	}
}

func TestStoreContract(t *testing.T) {
	each(t, func(t *testing.T, e endpoint.Endpoint) {
		c := client(e)
		s := newTable(t, c)
		contracttest.TestStore(t, func(t *testing.T) *contracttest.Fixture[psych.Store] {
			open := func(context.Context) (psych.Store, error) { return dynamo.New(client(e), s.TableName(), nil), nil }
			return &contracttest.Fixture[psych.Store]{Port: s, Open: open, Reopen: open}
		}, nil)
	})
}
