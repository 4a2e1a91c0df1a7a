package sqs

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

func key(tenant string, n int) psych.RunKey {
	return psych.RunKey{Tenant: tenant, RunID: fmt.Sprintf("%032x", n)}
}

// queue makes a queue on an emulator, and a Waker of its URL.
func queue(t *testing.T, e endpoint.Endpoint, suffix string) *Waker {
	t.Helper()
	ctx := context.Background()
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	var b psych.Backends
	Register(&b)
	opened, err := b.Wakers.Open(ctx, "sqs:"+e.URL+"/000000000000/"+"wakes"+suffix+"?region=us-east-1")
	if err != nil {
		t.Fatal(err)
	}
	w := opened.(*Waker)
	in := &sqs.CreateQueueInput{QueueName: aws.String("wakes-" + strings.ToLower(rand.Text()) + suffix), Attributes: map[string]string{"VisibilityTimeout": "600"}}
	if suffix != "" {
		in.Attributes["FifoQueue"] = "true"
	}
	out, err := w.client.CreateQueue(ctx, in)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.client.DeleteQueue(context.Background(), &sqs.DeleteQueueInput{QueueUrl: out.QueueUrl}) })
	return New(w.client, *out.QueueUrl, nil)
}

// A received is a Waker with a consumer that deletes what it receives.
type received struct{ *Waker }

func (r received) Take(ctx context.Context) (all []psych.RunKey, err error) {
	out, err := r.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &r.queue, MaxNumberOfMessages: 10})
	if err != nil || len(out.Messages) == 0 {
		return nil, err
	}
	done := &sqs.DeleteMessageBatchInput{QueueUrl: &r.queue}
	for i, m := range out.Messages {
		var key psych.RunKey
		if err := json.Unmarshal([]byte(*m.Body), &key); err != nil {
			return nil, err
		}
		all = append(all, key)
		done.Entries = append(done.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(fmt.Sprint(i)), ReceiptHandle: m.ReceiptHandle})
	}
	_, err = r.client.DeleteMessageBatch(ctx, done)
	return all, err
}

func TestWakerContract(t *testing.T) {
	for _, e := range endpoint.SQS(t) {
		for _, suffix := range []string{"", ".fifo"} {
			t.Run(e.Name+suffix, func(t *testing.T) {
				w := queue(t, e, suffix)
				contracttest.TestWaker(t, func(*testing.T) *contracttest.Fixture[contracttest.Wakes] {
					open := func(context.Context) (contracttest.Wakes, error) { return received{New(w.client, w.queue, nil)}, nil }
					return &contracttest.Fixture[contracttest.Wakes]{Port: received{w}, Open: open}
				}, nil)
			})
		}
	}
}

// take receives what is in a queue, and deletes it.
func (w *Waker) take(t *testing.T) (all []types.Message) {
	t.Helper()
	for {
		out, err := w.client.ReceiveMessage(context.Background(), &sqs.ReceiveMessageInput{
			QueueUrl: &w.queue, MaxNumberOfMessages: 10, MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(out.Messages) == 0 {
			return all
		}
		for _, m := range out.Messages {
			if _, err := w.client.DeleteMessage(context.Background(), &sqs.DeleteMessageInput{QueueUrl: &w.queue, ReceiptHandle: m.ReceiptHandle}); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, out.Messages...)
	}
}

// keys are the keys of messages, in order.
func keys(t *testing.T, all []types.Message) (got []psych.RunKey) {
	t.Helper()
	for _, m := range all {
		var k psych.RunKey
		if err := json.Unmarshal([]byte(*m.Body), &k); err != nil {
			t.Errorf("body %q: %v", *m.Body, err)
		}
		got = append(got, k)
	}
	slices.SortFunc(got, func(a, b psych.RunKey) int { return strings.Compare(a.String(), b.String()) })
	return got
}

// tenants hold what a queue's message or group may not.
var tenants = []string{"t", "u", "a/b", "\x00", "\uFFFE\uFFFF", "été 🙂", strings.Repeat("x", 128), `"quoted"`, "a\nb"}

func TestWake(t *testing.T) {
	for _, e := range endpoint.SQS(t) {
		for _, suffix := range []string{"", ".fifo"} {
			t.Run(e.Name+suffix, func(t *testing.T) {
				w := queue(t, e, suffix)
				var want []psych.RunKey
				for i, tenant := range tenants {
					for n := range 3 {
						want = append(want, key(tenant, 10*i+n))
					}
				}
				ctx := context.Background()
				if err := w.Wake(ctx, append(slices.Clone(want), want[0], want[13])...); err != nil {
					t.Fatal(err)
				}
				slices.SortFunc(want, func(a, b psych.RunKey) int { return strings.Compare(a.String(), b.String()) })
				if got := keys(t, w.take(t)); !slices.Equal(got, want) {
					t.Errorf("woken %d:\n%v\nwant %d:\n%v", len(got), got, len(want), want)
				}
				// A second wake within five minutes is not taken for the first.
				for range 2 {
					if err := w.Wake(ctx, want[0]); err != nil {
						t.Fatal(err)
					}
				}
				if got := w.take(t); len(got) != 2 {
					t.Errorf("%d messages of two wakes", len(got))
				}
				bad := psych.RunKey{Tenant: "t", RunID: "../x"}
				if err := w.Wake(ctx, want[1], bad, want[2]); !errors.Is(err, psych.ErrInvalid) {
					t.Errorf("an illegal key: %v", err)
				}
				if got := keys(t, w.take(t)); !slices.Equal(got, want[1:3]) {
					t.Errorf("beside an illegal key: %v", got)
				}
				if err := w.Wake(ctx); err != nil || len(w.take(t)) != 0 {
					t.Errorf("no keys: %v", err)
				}
				ended, cancel := context.WithCancel(ctx)
				cancel()
				if err := w.Wake(ended, want[0]); !errors.Is(err, context.Canceled) {
					t.Errorf("a context that ended: %v", err)
				}
			})
		}
	}
}

// A message that is returned is there again at once, long before its queue's
// visibility timeout.
func TestReturn(t *testing.T) {
	for _, e := range endpoint.SQS(t) {
		t.Run(e.Name, func(t *testing.T) {
			w := queue(t, e, "")
			ctx := context.Background()
			if err := w.Wake(ctx, key("t", 1)); err != nil {
				t.Fatal(err)
			}
			receive := func() []types.Message {
				out, err := w.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &w.queue})
				if err != nil {
					t.Fatal(err)
				}
				return out.Messages
			}
			first := receive()
			if len(first) != 1 || len(receive()) != 0 {
				t.Fatalf("%d messages", len(first))
			}
			if err := w.Return(ctx, *first[0].ReceiptHandle, 0); err != nil {
				t.Fatal(err)
			}
			again := receive()
			if len(again) != 1 {
				t.Fatal("it is not there again")
			}
			if err := w.Return(ctx, *again[0].ReceiptHandle, 100*time.Hour); err != nil { // as long as a queue may
				t.Error(err)
			}
			if len(receive()) != 0 {
				t.Error("it is there")
			}
		})
	}
}

func TestNoQueue(t *testing.T) {
	for _, e := range endpoint.SQS(t) {
		w := queue(t, e, "")
		gone := New(w.client, e.URL+"/000000000000/absent", nil)
		var missing *types.QueueDoesNotExist
		if err := gone.Wake(context.Background(), key("t", 1)); !errors.As(err, &missing) || !strings.Contains(err.Error(), "there is no queue") {
			t.Errorf("%s: %v", e.Name, err)
		}
	}
}

// What of a batch the queue was briefly unable to take is sent again, and no
// more than that; what it refuses is said of that key.
func TestPartOfABatch(t *testing.T) {
	var requests [][]string
	fail := map[string]int{"1": 1, "2": 99}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var in struct {
			Entries []struct{ Id, MessageGroupId, MessageBody string }
		}
		data, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(data, &in); err != nil {
			t.Error(err)
		}
		var ids []string
		type failed struct {
			Id, Code, Message string
			SenderFault       bool
		}
		out := struct {
			Successful []map[string]string
			Failed     []failed
		}{}
		for _, m := range in.Entries {
			ids = append(ids, m.Id)
			switch {
			case m.Id == "3":
				out.Failed = append(out.Failed, failed{m.Id, "InvalidMessageContents", "no", true})
			case fail[m.Id] > 0:
				fail[m.Id]--
				out.Failed = append(out.Failed, failed{m.Id, "InternalError", "busy", false})
			}
		}
		requests = append(requests, ids)
		rw.Header().Set("Content-Type", "application/x-amz-json-1.0")
		json.NewEncoder(rw).Encode(out)
	}))
	defer server.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	u, err := url.Parse("sqs:" + server.URL + "/000000000000/wakes")
	if err != nil {
		t.Fatal(err)
	}
	w, err := open(context.Background(), u)
	if err != nil {
		t.Fatal(err)
	}
	all := []psych.RunKey{key("t", 0), key("t", 1), key("t", 2), key("t", 3)}
	err = w.Wake(context.Background(), all...)
	if !errors.Is(err, psych.ErrUnavailable) || !strings.Contains(err.Error(), all[2].RunID) || !strings.Contains(err.Error(), all[3].RunID) || strings.Contains(err.Error(), all[1].RunID) || strings.Contains(err.Error(), all[0].RunID) {
		t.Errorf("%v", err)
	}
	if want := "[[0 1 2 3] [1 2] [2]]"; fmt.Sprint(requests) != want {
		t.Errorf("requests %v, want %s", requests, want)
	}
}

func TestURL(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	var b psych.Backends
	Register(&b)
	for good, want := range map[string][3]string{
		"sqs:https://sqs.eu-central-1.amazonaws.com/123456789012/wakes":           {"https://sqs.eu-central-1.amazonaws.com/123456789012/wakes", "eu-central-1", ""},
		"sqs:https://sqs.cn-north-1.amazonaws.com.cn/123456789012/wakes.fifo":     {"https://sqs.cn-north-1.amazonaws.com.cn/123456789012/wakes.fifo", "cn-north-1", ""},
		"sqs:http://127.0.0.1:4566/000000000000/w":                                {"http://127.0.0.1:4566/000000000000/w", "us-east-1", "http://127.0.0.1:4566"},
		"sqs:https://sqs.example.com/123456789012/w?region=us-west-2":             {"https://sqs.example.com/123456789012/w", "us-west-2", "https://sqs.example.com"},
		"sqs:https://sqs.us-west-2.amazonaws.com/123456789012/w?region=us-west-2": {"https://sqs.us-west-2.amazonaws.com/123456789012/w", "us-west-2", ""},
	} {
		p, err := b.Wakers.Open(context.Background(), good)
		if err != nil {
			t.Errorf("%s: %v", good, err)
			continue
		}
		w := p.(*Waker)
		o := w.client.Options()
		if w.queue != want[0] || o.Region != want[1] || aws.ToString(o.BaseEndpoint) != want[2] || w.fifo != strings.HasSuffix(want[0], ".fifo") {
			t.Errorf("%s: %s, %s, %s, %v", good, w.queue, o.Region, aws.ToString(o.BaseEndpoint), w.fifo)
		}
	}
	for _, bad := range []string{
		"sqs:", "sqs://wakes", "sqs:wakes", "sqs:https://", "sqs:https://sqs.us-east-1.amazonaws.com/wakes", "sqs:https://sqs.us-east-1.amazonaws.com/12/wakes",
		"sqs:http://sqs.us-east-1.amazonaws.com/123456789012/wakes", "sqs:https://u:p@sqs.us-east-1.amazonaws.com/123456789012/wakes",
		"sqs:https://sqs.us-east-1.amazonaws.com/123456789012/wakes?x=y", "sqs:https://sqs.us-east-1.amazonaws.com/123456789012/wakes?region=",
		"sqs:https://sqs.us-east-1.amazonaws.com/123456789012/wakes?region=us-west-2", "sqs:https://sqs.us-east-1.amazonaws.com/123456789012/wakes#x",
		"sqs:https://sqs.us-east-1.amazonaws.com/123456789012/a/b", "sqs:https://sqs.example.com/123456789012/w",
	} {
		if _, err := b.Wakers.Open(context.Background(), bad); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// A body is ASCII, and the key that it was made of.
func FuzzBody(f *testing.F) {
	for _, tenant := range tenants {
		f.Add(tenant)
	}
	f.Fuzz(func(t *testing.T, tenant string) {
		k := key(tenant, 7)
		if k.Check() != nil {
			return
		}
		b := body(k)
		for _, c := range []byte(b) {
			if c < ' ' || c > '~' {
				t.Fatalf("%q holds %#x", b, c)
			}
		}
		var got psych.RunKey
		if err := json.Unmarshal([]byte(b), &got); err != nil || got != k {
			t.Errorf("%q is read as %v, %v", b, got, err)
		}
	})
}
