package dynamo_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

// Init may be called again, and sets TTL where the endpoint has it.
func TestInit(t *testing.T) {
	each(t, func(t *testing.T, e endpoint.Endpoint) {
		s := newTable(t, client(e))
		notes, err := s.Init(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if e.Name == "dynalite" {
			if len(notes) != 2 || !strings.Contains(notes[0], "TTL on attribute e was refused") || !strings.Contains(notes[1], "point-in-time recovery was refused") {
				t.Errorf("notes are %q, want what was refused", notes)
			}
		}
		endpoint.Needs(t, e.Name, "ttl")
		if len(notes) != 0 {
			t.Errorf("notes are %q", notes)
		}
		out, err := client(e).DescribeTimeToLive(t.Context(), &dynamodb.DescribeTimeToLiveInput{TableName: aws.String(s.TableName())})
		if err != nil || aws.ToString(out.TimeToLiveDescription.AttributeName) != dynamo.TTLAttribute {
			t.Errorf("TTL is %v, %v", out, err)
		}
	})
}

// every calls each method that needs the table.
func every(s *dynamo.Store) map[string]func(ctx context.Context) error {
	info := psych.RunInfo{Key: key, CreatedAt: now, DueAt: now}
	return map[string]func(ctx context.Context) error{
		"CreateRun": func(ctx context.Context) error { _, _, err := s.CreateRun(ctx, info); return err },
		"Claim":     func(ctx context.Context) error { _, err := s.Claim(ctx, key, "o", "t", now, time.Minute); return err },
		"Append": func(ctx context.Context) error {
			_, err := s.Append(ctx, key, psych.Pos{}, psych.Batch{Token: "t", Entries: []psych.Entry{{Seq: 1}}})
			return err
		},
		"Read":      func(ctx context.Context) error { _, err := s.Read(ctx, key, psych.Pos{}, 1); return err },
		"Settle":    func(ctx context.Context) error { return s.Settle(ctx, key, []psych.Note{{ID: "n"}}) },
		"Due":       func(ctx context.Context) error { _, _, err := s.Due(ctx, now, "", 1); return err },
		"ListRuns":  func(ctx context.Context) error { _, _, err := s.ListRuns(ctx, "t", "", 1); return err },
		"GetRefs":   func(ctx context.Context) error { _, err := s.GetRefs(ctx, "t", []string{"a"}); return err },
		"DeleteRun": func(ctx context.Context) error { return s.DeleteRun(ctx, key, now) },
	}
}

// certain are the errors that say of a call that it had no effect, or what it
// is about is not there.
var certain = []error{psych.ErrNotFound, psych.ErrConflict, psych.ErrLeaseHeld, psych.ErrLeaseLost, psych.ErrTooLarge, psych.ErrInboxFull, psych.ErrInvalid}

// says ends the test unless err says what and matches no sentinel of psych's,
// ErrUnavailable aside where transient says so.
func says(t *testing.T, method string, err error, what string, transient bool) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), what) {
		t.Errorf("%s: got %v, want an error that says %q", method, err, what)
	}
	for _, c := range certain {
		if errors.Is(err, c) {
			t.Errorf("%s: %v matches %v", method, err, c)
		}
	}
	if errors.Is(err, psych.ErrUnavailable) != transient {
		t.Errorf("%s: %v is transient: %v, want %v", method, err, !transient, transient)
	}
}

func TestNoTable(t *testing.T) {
	each(t, func(t *testing.T, e endpoint.Endpoint) {
		s := dynamo.New(client(e), "no-such-table", nil)
		for method, call := range every(s) {
			says(t, method, call(t.Context()), `there is no table "no-such-table"`, false)
		}
	})
}

// A table in another region is none.
func TestWrongRegion(t *testing.T) {
	each(t, func(t *testing.T, e endpoint.Endpoint) {
		endpoint.Needs(t, e.Name, "regions")
		s := newTable(t, client(e))
		there := dynamo.New(client(e, func(o *dynamodb.Options) { o.Region = "eu-west-3" }), s.TableName(), nil)
		_, err := there.GetRun(t.Context(), key)
		says(t, "GetRun", err, "there is no table", false)
	})
}

func TestForeignTable(t *testing.T) {
	each(t, func(t *testing.T, e endpoint.Endpoint) {
		c := client(e)
		for what, test := range map[string]struct {
			change func(in *dynamodb.CreateTableInput)
			says   string
			method string
		}{
			"other keys": {func(in *dynamodb.CreateTableInput) {
				in.KeySchema = in.KeySchema[:1]
				in.KeySchema[0].AttributeName = aws.String("id")
				in.AttributeDefinitions = []types.AttributeDefinition{{AttributeName: aws.String("id"), AttributeType: types.ScalarAttributeTypeS}}
				in.GlobalSecondaryIndexes = nil
			}, "its keys are id S HASH, not p S HASH, s S RANGE; it has no index due; it has no index runs", "CreateRun"},
			"no index": {func(in *dynamodb.CreateTableInput) {
				in.GlobalSecondaryIndexes = in.GlobalSecondaryIndexes[1:]
				in.AttributeDefinitions = append(in.AttributeDefinitions[:2:2], in.AttributeDefinitions[4:]...)
			}, "it has no index due", "Due"},
		} {
			t.Run(what, func(t *testing.T) {
				in := dynamo.Table("psych-" + strings.ToLower(rand.Text()))
				test.change(in)
				if _, err := c.CreateTable(t.Context(), in); err != nil {
					t.Fatal(err)
				}
				defer func() {
					if _, err := c.DeleteTable(context.WithoutCancel(t.Context()), &dynamodb.DeleteTableInput{TableName: in.TableName}); err != nil {
						t.Error(err)
					}
				}()
				s := dynamo.New(c, *in.TableName, nil)
				if _, err := s.Init(t.Context()); err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), "name another table") {
					t.Errorf("Init: got %v, want %q", err, test.says)
				}
				if test.method == "Due" {
					endpoint.Needs(t, e.Name, "missing-index")
				}
				says(t, test.method, every(s)[test.method](t.Context()), "has other keys or indexes than Init makes", false)
			})
		}
	})
}

// answering returns a Store on a server that gives one answer.
func answering(t *testing.T, status int, contentType, body string) *dynamo.Store {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(server.Close)
	return dynamo.New(client(endpoint.Endpoint{URL: server.URL}, quick), "table", nil)
}

func TestAnswers(t *testing.T) {
	const ours = "application/x-amz-json-1.0"
	fault := func(code string) string {
		return `{"__type":"com.amazonaws.dynamodb.v20120810#` + code + `","message":"the message"}`
	}
	for _, c := range []struct {
		what      string
		status    int
		kind      string
		body      string
		says      string
		transient bool
	}{
		{"HTML", 200, "text/html", "<!DOCTYPE html><html><body>Log in</body></html>", "what answers is not DynamoDB", false},
		{"HTML, forbidden", 403, "text/html", "<html><body>403</body></html>", "what answers is not DynamoDB", false},
		{"HTML, bad gateway", 502, "text/html", "<html><body>502</body></html>", "502", true},
		{"half an answer", 200, ours, `{"Item":{"p":`, "what answers is not DynamoDB", false},
		{"throttled", 400, ours, fault("ThrottlingException"), "the message", true},
		{"no throughput", 400, ours, fault("ProvisionedThroughputExceededException"), "the message", true},
		{"too many requests", 400, ours, fault("RequestLimitExceeded"), "the message", true},
		{"server fault", 500, ours, fault("InternalServerError"), "the message", true},
		{"unavailable", 503, ours, "", "503", true},
		{"expired", 400, ours, fault("ExpiredTokenException"), "the credentials are refused", false},
		{"unknown key", 400, ours, fault("UnrecognizedClientException"), "the credentials are refused", false},
		{"denied", 400, ours, fault("AccessDeniedException"), "the credentials are refused", false},
	} {
		s := answering(t, c.status, c.kind, c.body)
		for _, method := range []string{"Append", "Read", "Claim", "Settle", "GetRefs", "Due"} {
			says(t, c.what+": "+method, every(s)[method](t.Context()), c.says, c.transient)
		}
		if _, err := s.Init(t.Context()); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: Init: got %v, want %q", c.what, err, c.says)
		}
		if _, err := s.GetRun(t.Context(), key); c.status == 400 {
			var api smithy.APIError
			if !errors.As(err, &api) {
				t.Errorf("%s: the SDK's error is not in %v", c.what, err)
			}
		}
	}
}

// Nothing listens.
func TestRefused(t *testing.T) {
	server := httptest.NewServer(nil)
	server.Close()
	s := dynamo.New(client(endpoint.Endpoint{URL: server.URL}, quick), "table", nil)
	_, err := s.GetRun(t.Context(), key)
	says(t, "GetRun", err, "refused", true)
}

// A call that hangs ends with its context, and is transient.
func TestHangs(t *testing.T) {
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(hang) })
	s := dynamo.New(client(endpoint.Endpoint{URL: server.URL}), "table", nil)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := s.Append(ctx, key, psych.Pos{}, psych.Batch{Token: "t", Entries: []psych.Entry{{Seq: 1}}})
	if !errors.Is(err, psych.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want ErrUnavailable and DeadlineExceeded", err)
	}
}

// What can't be the name of a table is refused before anything is sent.
func TestTableName(t *testing.T) {
	c := client(endpoint.Endpoint{URL: "http://127.0.0.1:1"}, quick)
	for _, name := range []string{"", strings.Repeat("t", 2048), "a/b", "ab"} {
		s := dynamo.New(c, name, nil)
		calls := every(s)
		calls["Init"] = func(ctx context.Context) error { _, err := s.Init(ctx); return err }
		calls["DueRefs"] = func(ctx context.Context) error { _, _, err := s.DueRefs(ctx, now, "", 1); return err }
		calls["SwapRef"] = func(ctx context.Context) error {
			return s.SwapRef(ctx, "t", "a", psych.Ref{}, psych.Ref{Seq: 1})
		}
		calls["Post"] = func(ctx context.Context) error {
			return s.Post(ctx, key, psych.Note{ID: "n", Kind: psych.KindUserMessage, Time: now}, now)
		}
		for method, call := range calls {
			if err := call(t.Context()); !errors.Is(err, psych.ErrInvalid) || !strings.Contains(err.Error(), "want 3 to 255") {
				t.Errorf("%.20q: %s: got %v, want ErrInvalid that says what a name is", name, method, err)
			}
		}
	}
	s := dynamo.New(c, "arn:aws:dynamodb:eu-central-1:123456789012:table/psych", nil)
	if _, err := s.GetRun(t.Context(), key); errors.Is(err, psych.ErrInvalid) {
		t.Error(err)
	}
}

// Without credentials the error says where they come from.
func TestAnswersWithoutCredentials(t *testing.T) {
	none := &smithy.OperationError{ServiceID: "ec2imds", OperationName: "GetMetadata", Err: errors.New("no role")}
	c := client(endpoint.Endpoint{URL: "http://127.0.0.1:1"}, quick, func(o *dynamodb.Options) {
		o.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return aws.Credentials{}, none })
	})
	_, err := dynamo.New(c, "table", nil).GetRun(t.Context(), key)
	says(t, "GetRun", err, "no AWS credentials: set AWS_PROFILE", false)
}

func TestURL(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", "/nonexistent")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
	var b psych.Backends
	dynamo.Register(&b)
	for _, u := range []string{"dynamo://my.table_1-x?region=eu-central-1", "dynamo://table?endpoint=http%3A%2F%2F127.0.0.1%3A1", "dynamo://table?endpoint=http://localhost:1", "dynamo://table?region=x&endpoint=https://db.example.com"} {
		if _, err := b.Stores.Open(t.Context(), u); err != nil {
			t.Errorf("%s: %v", u, err)
		}
	}
	for u, says := range map[string]string{
		"dynamo://":                                "want dynamo://TABLE",
		"dynamo:table":                             "want dynamo://TABLE",
		"dynamo://table/x?region=a":                "want dynamo://TABLE",
		"dynamo://user@table?region=a":             "want dynamo://TABLE",
		"dynamo://table:80?region=a":               "want dynamo://TABLE",
		"dynamo://table?region=a#f":                "want dynamo://TABLE",
		"dynamo://ab?region=a":                     "want dynamo://TABLE",
		"dynamo://a%23b%20c?region=a":              "invalid",
		"dynamo://" + strings.Repeat("t", 2048):    "want dynamo://TABLE",
		"dynamo://table":                           "set AWS_REGION or add region=",
		"dynamo://table?region=":                   "empty region",
		"dynamo://table?regoin=a":                  "want region, endpoint",
		"dynamo://table?region=a&region=b":         "twice",
		"dynamo://table?endpoint=localhost:8000":   "want an http or https URL",
		"dynamo://table?endpoint=":                 "want an http or https URL",
		"dynamo://table?endpoint=ftp://h":          "want an http or https URL",
		"dynamo://table?endpoint=http://u:p@h":     "want an http or https URL",
		"dynamo://table?region=a;endpoint=http://": "parameters of",
	} {
		if _, err := b.Stores.Open(t.Context(), u); !errors.Is(err, psych.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%.100s: got %v, want ErrInvalid that says %q", u, err, says)
		}
	}
}

// A Store that a URL opened works.
func TestURLWorks(t *testing.T) {
	each(t, func(t *testing.T, e endpoint.Endpoint) {
		s := newTable(t, client(e))
		var b psych.Backends
		dynamo.Register(&b)
		opened, err := b.Stores.Open(t.Context(), "dynamo://"+s.TableName()+"?region=us-east-1&endpoint="+e.URL)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := opened.GetRun(t.Context(), key); !errors.Is(err, psych.ErrNotFound) {
			t.Errorf("got %v, want ErrNotFound", err)
		}
	})
}
