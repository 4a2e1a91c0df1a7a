package dynamo_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

// A losingTransport loses every nth response of those that lose says, after the
// service has acted on the request.
type losingTransport struct {
	next aws.HTTPClient
	lose func(op, body string) bool
	n    int64
	seen atomic.Int64
	lost atomic.Int64
}

func (l *losingTransport) Do(req *http.Request) (*http.Response, error) {
	_, op, _ := strings.Cut(req.Header.Get("X-Amz-Target"), ".")
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
	}
	resp, err := l.next.Do(req)
	if err == nil && l.lose(op, string(body)) && l.seen.Add(1)%l.n == 0 {
		l.lost.Add(1)
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return nil, &connectionReset{}
	}
	return resp, err
}

// A connectionReset is what the SDK repeats a request for.
type connectionReset struct{}

func (*connectionReset) Error() string         { return "read: connection reset by peer" }
func (*connectionReset) ConnectionError() bool { return true }

func quick(o *dynamodb.Options) {
	o.Retryer = retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts, o.MaxBackoff, o.RateLimiter = 40, time.Millisecond, ratelimit.None
	})
}

// Every rule holds though every second answer to a write is lost, and the SDK
// repeats it: an append, a creation, a claim knows itself. A post may count
// twice, so that its own answers are left alone. Of the two endpoints, one
// brings the old item when a condition fails, the other does not.
func TestLostAnswers(t *testing.T) {
	for _, name := range []string{"dynalite", "ministack"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := endpoint.One(t, endpoint.Dynamo, name)
			s := newTable(t, client(e))
			l := &losingTransport{next: awshttp.NewBuildableClient(), n: 2, lose: func(op, body string) bool {
				return op == "PutItem" || op == "BatchWriteItem" || op == "UpdateItem" && !strings.Contains(body, "ADD po :one")
			}}
			open := func(context.Context) (psych.Store, error) {
				return dynamo.New(client(e, quick, func(o *dynamodb.Options) { o.HTTPClient = l }), s.TableName(), nil), nil
			}
			contracttest.TestStore(t, func(t *testing.T) *contracttest.Fixture[psych.Store] {
				port, _ := open(t.Context())
				return &contracttest.Fixture[psych.Store]{Port: port, Open: open, Reopen: open}
			}, &contracttest.Options{Only: ruleNames(func(r contracttest.Rule[psych.Store]) bool {
				if name == "ministack" && r.Name == "Concurrency" {
					return false // it resets connections of its own under that load
				}
				return r.Name != "CreateRunReadBack" // one of its headers has no incarnation to know itself by
			})})
			if l.lost.Load() < 100 {
				t.Errorf("%d answers were lost, want hundreds: the test shows nothing", l.lost.Load())
			}
		})
	}
}

func ruleNames(want func(contracttest.Rule[psych.Store]) bool) []string {
	var names []string
	for _, r := range contracttest.StoreRules() {
		if want(r) {
			names = append(names, r.Name)
		}
	}
	return names
}

// halve makes batches leave all but their first half unprocessed.
func halve(n *atomic.Int64) func(*dynamodb.Options) {
	handle := func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
		switch p := in.Parameters.(type) {
		case *dynamodb.BatchWriteItemInput:
			for table, todo := range p.RequestItems {
				keep := (len(todo) + 1) / 2
				if keep == len(todo) {
					break
				}
				half := *p
				half.RequestItems = map[string][]types.WriteRequest{table: todo[:keep]}
				in.Parameters = &half
				out, meta, err := next.HandleInitialize(ctx, in)
				if err == nil {
					n.Add(1)
					out.Result.(*dynamodb.BatchWriteItemOutput).UnprocessedItems = map[string][]types.WriteRequest{table: todo[keep:]}
				}
				return out, meta, err
			}
		case *dynamodb.BatchGetItemInput:
			for table, todo := range p.RequestItems {
				keep := (len(todo.Keys) + 1) / 2
				if keep == len(todo.Keys) {
					break
				}
				half, left := todo, todo
				half.Keys, left.Keys = todo.Keys[:keep], todo.Keys[keep:]
				q := *p
				q.RequestItems = map[string]types.KeysAndAttributes{table: half}
				in.Parameters = &q
				out, meta, err := next.HandleInitialize(ctx, in)
				if err == nil {
					n.Add(1)
					out.Result.(*dynamodb.BatchGetItemOutput).UnprocessedKeys = map[string]types.KeysAndAttributes{table: left}
				}
				return out, meta, err
			}
		}
		return next.HandleInitialize(ctx, in)
	}
	return initialize(handle)
}

// initialize puts a function before every request.
func initialize(f func(context.Context, middleware.InitializeInput, middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error)) func(*dynamodb.Options) {
	return func(o *dynamodb.Options) {
		o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
			return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("fault", f), middleware.Before)
		})
	}
}

// What a batch leaves unprocessed is asked for again.
func TestUnprocessed(t *testing.T) {
	each(t, func(t *testing.T, e endpoint.Endpoint) {
		var n atomic.Int64
		s := newTable(t, client(e, halve(&n)))
		contracttest.TestStore(t, func(t *testing.T) *contracttest.Fixture[psych.Store] {
			return &contracttest.Fixture[psych.Store]{Port: s}
		}, &contracttest.Options{Only: []string{"DeleteRunRemovesLog", "PurgeRunLeftovers", "GetRefsMany", "ListRunsOrder", "DuePaging", "DueRefsPaging"}})
		if n.Load() == 0 {
			t.Error("no batch was left unprocessed: the test shows nothing")
		}
	})
}

// Nothing is waited for longer than the context lasts.
func TestUnprocessedDeadline(t *testing.T) {
	e := endpoint.One(t, endpoint.Dynamo, "dynalite")
	var calls atomic.Int64
	never := func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
		if p, ok := in.Parameters.(*dynamodb.BatchGetItemInput); ok {
			calls.Add(1)
			return middleware.InitializeOutput{Result: &dynamodb.BatchGetItemOutput{UnprocessedKeys: p.RequestItems}}, middleware.Metadata{}, nil
		}
		return next.HandleInitialize(ctx, in)
	}
	s := newTable(t, client(e, initialize(never)))
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	_, err := s.GetRefs(ctx, "t", []string{"a"})
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, psych.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable and the context's error", err)
	}
	if calls.Load() < 2 {
		t.Errorf("%d requests, want repetitions before the deadline", calls.Load())
	}
}

// A Query that has more pages looks at the context between them.
func TestPagesDeadline(t *testing.T) {
	e := endpoint.One(t, endpoint.Dynamo, "dynalite")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pages := 0
	endless := func(_ context.Context, in middleware.InitializeInput, _ middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
		if pages++; pages == 3 {
			cancel()
		}
		if pages > 3 {
			t.Fatal("a page was asked for after the context had ended")
		}
		key := map[string]types.AttributeValue{"p": &types.AttributeValueMemberS{Value: "p"}, "s": &types.AttributeValueMemberS{Value: "s"}, "u": &types.AttributeValueMemberN{Value: "1"}}
		return middleware.InitializeOutput{Result: &dynamodb.QueryOutput{LastEvaluatedKey: key}}, middleware.Metadata{}, nil
	}
	s := dynamo.New(client(e, initialize(endless)), "table", nil)
	for what, call := range map[string]func() error{
		"Pending": func() error {
			_, err := s.Pending(ctx, psych.RunKey{Tenant: "t", RunID: runID})
			return err
		},
		"Due": func() error { _, _, err := s.Due(ctx, time.Now(), "", 10); return err },
	} {
		ctx, cancel = context.WithCancel(t.Context())
		defer cancel()
		pages = 0
		if err := call(); !errors.Is(err, context.Canceled) || !errors.Is(err, psych.ErrUnavailable) {
			t.Errorf("%s: got %v, want ErrUnavailable and the context's error", what, err)
		}
	}
}

const runID = "0123456789abcdef0123456789abcdef"

// rounds is how many rounds of contention are played; PSYCH_TEST_ROUNDS sets it.
func rounds(t *testing.T) int {
	s := os.Getenv("PSYCH_TEST_ROUNDS")
	if s == "" {
		return 50
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("PSYCH_TEST_ROUNDS is %q, want a number from 1", s)
	}
	return n
}

// Of 16 claimers one wins, and of 16 appenders at one boundary one wins, in
// every round.
func TestContention(t *testing.T) {
	each(t, func(t *testing.T, e endpoint.Endpoint) {
		handles := []*dynamo.Store{newTable(t, client(e)), nil}
		handles[1] = dynamo.New(client(e), handles[0].TableName(), nil)
		ctx, key, now := t.Context(), psych.RunKey{Tenant: "t", RunID: runID}, time.Unix(1e9, 0)
		if _, _, err := handles[0].CreateRun(ctx, psych.RunInfo{Key: key, Request: psych.Digest{1}, CreatedAt: now}); err != nil {
			t.Fatal(err)
		}
		const n = 16
		race := func(call func(s *dynamo.Store, i int) error, lost error) int {
			errs := make([]error, n)
			var g sync.WaitGroup
			for i := range n {
				g.Go(func() { errs[i] = call(handles[i%2], i) })
			}
			g.Wait()
			win := -1
			for i, err := range errs {
				switch {
				case err == nil && win >= 0:
					t.Fatalf("contenders %d and %d won", win, i)
				case err == nil:
					win = i
				case !errors.Is(err, lost):
					t.Fatalf("contender %d: got %v, want %v", i, err, lost)
				}
			}
			if win < 0 {
				t.Fatal("none won")
			}
			return win
		}
		var pos psych.Pos
		for round := range rounds(t) {
			leases := make([]psych.Lease, n)
			win := race(func(s *dynamo.Store, i int) (err error) {
				leases[i], err = s.Claim(ctx, key, fmt.Sprint("owner ", i), fmt.Sprintf("token %d %d", round, i), now, time.Minute)
				return err
			}, psych.ErrLeaseHeld)
			if leases[win].Epoch != int64(round+1) {
				t.Fatalf("round %d: epoch %d", round, leases[win].Epoch)
			}
			ends := make([]psych.Pos, n)
			win = race(func(s *dynamo.Store, i int) (err error) {
				b := psych.Batch{Token: fmt.Sprintf("append %d %d", round, i)}
				for j := range 1 + i%3 {
					b.Entries = append(b.Entries, psych.Entry{Seq: pos.Seq + 1 + uint64(j), Kind: "k", Time: now, Data: []byte(b.Token)})
				}
				ends[i], err = s.Append(ctx, key, pos, b)
				return err
			}, psych.ErrConflict)
			page, err := handles[0].Read(ctx, key, pos, 1)
			if want := fmt.Sprintf("append %d %d", round, win); err != nil || len(page.Entries) == 0 || string(page.Entries[0].Data) != want || page.Next != ends[win] || page.More {
				t.Fatalf("round %d: read %v, %v; want %q", round, page, err, want)
			}
			pos = ends[win]
			now = now.Add(time.Minute)
		}
	})
}

// Posts of 50 clients at once to a Run that is being driven all arrive, and no
// condition of the driver's fails.
func TestPostsBesideDriver(t *testing.T) {
	each(t, func(t *testing.T, e endpoint.Endpoint) {
		clients := newTable(t, client(e))
		m := new(meter)
		driver := dynamo.New(client(e, m.options), clients.TableName(), nil)
		ctx, key, now := t.Context(), psych.RunKey{Tenant: "t", RunID: runID}, time.Unix(1e9, 0)
		if _, _, err := clients.CreateRun(ctx, psych.RunInfo{Key: key, Request: psych.Digest{1}, CreatedAt: now, DueAt: now}); err != nil {
			t.Fatal(err)
		}
		lease, err := driver.Claim(ctx, key, "driver", "token", now, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		const n, each = 50, 2
		errs := make([]error, n)
		var g sync.WaitGroup
		for i := range n {
			g.Go(func() {
				for j := range each {
					// Clocks differ: a later post may be due earlier.
					due := now.Add(time.Duration((i*37+j*11)%100-50) * time.Second)
					note := psych.Note{ID: fmt.Sprintf("%d %d", i, j), Kind: psych.KindUserMessage, Time: now.Add(time.Duration(j) * time.Second), Data: []byte("x")}
					if err := clients.Post(ctx, key, note, due); err != nil {
						errs[i] = err
						return
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { g.Wait(); close(done) }()
		got := make(map[string]bool)
		take := func() {
			notes, err := driver.Pending(ctx, key)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range notes {
				if got[n.ID] {
					t.Fatalf("note %q waits after it was settled", n.ID)
				}
				var client, index int
				if _, err := fmt.Sscanf(n.ID, "%d %d", &client, &index); err != nil {
					t.Fatal(err)
				}
				if index > 0 && !got[fmt.Sprintf("%d %d", client, index-1)] {
					t.Fatalf("note %q is there before the one that was posted before it", n.ID)
				}
				got[n.ID] = true
			}
			if err := driver.Settle(ctx, key, notes); err != nil {
				t.Fatal(err)
			}
		}
		var pos psych.Pos
		for i, more := 1, true; more; i++ {
			select {
			case <-done:
				more = false
			default:
			}
			if lease, err = driver.Renew(ctx, lease, now.Add(time.Duration(i)*time.Second), time.Minute); err != nil {
				t.Fatal(err)
			}
			take()
			b := psych.Batch{Token: fmt.Sprint(i), Entries: []psych.Entry{{Seq: pos.Seq + 1, Kind: "k", Time: now}}}
			if pos, err = driver.Append(ctx, key, pos, b); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if lease, err = driver.Renew(ctx, lease, now.Add(time.Hour), time.Minute); err != nil {
			t.Fatal(err)
		}
		take()
		if err := driver.Release(ctx, lease, time.Time{}, psych.StatusOpen); err != nil {
			t.Fatal(err)
		}
		if failed := m.failures(); failed != 0 || len(got) != n*each || lease.Posted != n*each {
			t.Errorf("%d conditions of the driver failed, want none; %d notes were delivered and %d counted, want %d", failed, len(got), lease.Posted, n*each)
		}
	})
}
