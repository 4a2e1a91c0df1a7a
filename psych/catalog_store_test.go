package psych_test

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/sqlite"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

// catalogRounds is PSYCH_TEST_ROUNDS, or n.
func catalogRounds(t *testing.T, n int) int {
	if s := os.Getenv("PSYCH_TEST_ROUNDS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatalf("PSYCH_TEST_ROUNDS: %v", err)
		}
	}
	return n
}

func TestCatalogsOnMemory(t *testing.T) {
	psych.CatalogSuite(t, func(*testing.T) psych.Store { return memory.New(nil) }, catalogRounds(t, 100))
}

func TestCatalogsOnSQLite(t *testing.T) {
	psych.CatalogSuite(t, func(t *testing.T) psych.Store {
		s := sqlite.New(filepath.Join(t.TempDir(), "psych.db"), nil)
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}, catalogRounds(t, 5))
}

func TestCatalogsOnDynamo(t *testing.T) {
	for _, e := range endpoint.Dynamo(t) {
		t.Run(e.Name, func(t *testing.T) {
			t.Parallel()
			client := dynamodb.New(dynamodb.Options{
				Region: "us-east-1", BaseEndpoint: aws.String(e.URL), Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
			})
			psych.CatalogSuite(t, func(t *testing.T) psych.Store {
				name := "psych-" + strings.ToLower(rand.Text())
				s := dynamo.New(client, name, nil)
				if _, err := s.Init(t.Context()); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if _, err := client.DeleteTable(context.WithoutCancel(t.Context()), &dynamodb.DeleteTableInput{TableName: &name}); err != nil {
						t.Errorf("delete table %s: %v", name, err)
					}
				})
				return s
			}, catalogRounds(t, 2))
		})
	}
}
