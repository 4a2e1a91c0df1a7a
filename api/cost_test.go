package api_test

import (
	"context"
	"crypto/rand"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

// A meter counts the requests of a client of DynamoDB.
type meter struct {
	mu            sync.Mutex
	reads, writes int
}

func (m *meter) Do(r *http.Request) (*http.Response, error) {
	_, op, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	m.mu.Lock()
	switch op {
	case "GetItem", "Query", "BatchGetItem":
		m.reads++
	default:
		m.writes++
	}
	m.mu.Unlock()
	return http.DefaultClient.Do(r)
}

// take returns what was counted since the last time.
func (m *meter) take() (reads, writes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	reads, writes = m.reads, m.writes
	m.reads, m.writes = 0, 0
	return reads, writes
}

// What requests of clients cost on DynamoDB, in requests.
func TestRequestsOfDynamoDB(t *testing.T) {
	for _, e := range endpoint.Dynamo(t) {
		t.Run(e.Name, func(t *testing.T) {
			m := &meter{}
			store := dynamo.New(dynamodb.New(dynamodb.Options{
				Region: "us-east-1", BaseEndpoint: &e.URL, HTTPClient: m, Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
			}), "api-"+strings.ToLower(rand.Text()), nil)
			if _, err := store.Init(context.Background()); err != nil {
				t.Fatal(err)
			}
			s := newServiceOn(t, store, talk, nil)
			version := s.publish()
			s.start(version, "warm")
			m.take()
			run := s.start(version, "go")
			if reads, writes := m.take(); writes != 3 || reads > 1 {
				t.Errorf("starting a Run takes %d reads and %d writes, want 3 writes", reads, writes)
			}
			at := "/v1/runs/" + run + "/records?after="
			next := s.want(200, "", "GET", at+"0", "").text("next")
			if _, err := s.rt.Drive(context.Background(), psych.RunKey{Tenant: "t", RunID: run}, nil); err != nil {
				t.Fatal(err)
			}
			next = s.want(200, "", "GET", at+next, "").text("next")
			m.take()
			got := s.want(200, "", "GET", at+next, "")
			if reads, writes := m.take(); reads > 2 || writes > 0 || got.text("next") != next || len(got.fields["records"].([]any)) > 0 {
				t.Errorf("a poll with nothing new takes %d reads and %d writes, want at most 2 reads: %s", reads, writes, got.body)
			}
			if next == strings.Split(next, ".")[0] {
				t.Errorf("the position %q does not say where the log's head is", next)
			}
			// Positions that are not of this log, or not of a boundary.
			for _, bad := range []string{"3." + strings.SplitN(next, ".", 2)[1], "1.AAAA", next + "A"} {
				if got := s.call("GET", at+bad, ""); got.status != 400 && (got.status != 200 || got.fields["records"].([]any)[0].(map[string]any)["seq"] != float64(bad[0]-'0')+1) {
					t.Errorf("%s: %d %.200s", bad, got.status, got.body)
				}
			}
			report := s.want(200, "", "GET", "/v1/runs/"+run+"/report", "")
			m.take()
			s.want(304, "", "GET", "/v1/runs/"+run+"/report", "", "If-None-Match: "+report.header.Get("ETag"))
			if reads, _ := m.take(); reads > 3 {
				t.Errorf("a report that did not change takes %d reads", reads)
			}
		})
	}
}
