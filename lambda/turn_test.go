package lambda_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/lambda"
	"github.com/psych-go/psych-go/psych"
)

type panicking struct {
	psych.Store
	denied *string // the Run whose Claim is denied
}

func (p panicking) GetRun(ctx context.Context, key psych.RunKey) (psych.RunInfo, error) {
	if key.RunID == strings.Repeat("f", 32) {
		panic("a driver of a database")
	}
	return p.Store.GetRun(ctx, key)
}

func (p panicking) Claim(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
	if key.RunID == *p.denied {
		return psych.Lease{}, fmt.Errorf("denied")
	}
	return p.Store.Claim(ctx, key, owner, token, now, ttl)
}

// returns notes what is returned to the queue.
type returns struct {
	mu  sync.Mutex
	all map[string]time.Duration
}

func (r *returns) Return(_ context.Context, receipt string, after time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[string]time.Duration{}
	}
	r.all[receipt] = after
	return nil
}

func (r *returns) after(receipt string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[receipt]
}

func TestTurn(t *testing.T) {
	var logged bytes.Buffer
	s, err := script.Parse([]byte("steps: [{text: done}]"))
	if err != nil {
		t.Fatal(err)
	}
	denied := ""
	rt, err := psych.New(panicking{memory.New(nil), &denied}, &psych.Options{Models: psych.OneModel(script.New(s, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	v, err := rt.Publish(ctx, "t", &psych.Spec{Name: "n"})
	if err != nil {
		t.Fatal(err)
	}
	key, err := rt.Start(ctx, psych.Scope{Tenant: "t"}, v.Hash, psych.ClientMessage{Text: "hi"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := rt.Start(ctx, psych.Scope{Tenant: "t"}, v.Hash, psych.ClientMessage{Text: "hi"})
	if err != nil {
		t.Fatal(err)
	}
	denied = other.RunID
	t.Setenv("AWS_LAMBDA_FUNCTION_TIMEOUT", "60") // as an emulator without deadlines has it
	good, err := json.Marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	bodies := map[string]string{
		"good": string(good), "again": string(good),
		"gone":   fmt.Sprintf(`{"tenant":"t","run_id":%q}`, strings.Repeat("0", 32)),
		"empty":  "",
		"text":   "run it",
		"field":  fmt.Sprintf(`{"tenant":"t","run_id":%q,"x":1}`, key.RunID),
		"twice":  string(good) + string(good),
		"tenant": fmt.Sprintf(`{"run_id":%q}`, key.RunID),
		"denied": fmt.Sprintf(`{"tenant":"t","run_id":%q}`, denied),
		"panic":  fmt.Sprintf(`{"tenant":"t","run_id":%q}`, strings.Repeat("f", 32)),
	}
	logged.Reset()
	returned := &returns{}
	o := &lambda.QueueOptions{Returner: returned, Logger: slog.New(slog.NewJSONHandler(&logged, nil))}
	var e events.SQSEvent
	for _, id := range []string{"good", "again", "gone", "empty", "text", "field", "twice", "tenant", "denied", "panic"} {
		e.Records = append(e.Records, events.SQSMessage{MessageId: id, Body: bodies[id], ReceiptHandle: "receipt of " + id, Attributes: map[string]string{"ApproximateReceiveCount": "3"}})
	}
	ctx = lambdacontext.NewContext(ctx, &lambdacontext.LambdaContext{AwsRequestID: "request1"})
	resp, err := lambda.Turn(rt, o)(ctx, e)
	if err != nil {
		t.Fatal(err)
	}
	var failed []string
	for _, f := range resp.BatchItemFailures {
		failed = append(failed, f.ItemIdentifier)
	}
	if got, want := strings.Join(failed, " "), "empty text field twice tenant denied panic"; got != want {
		t.Errorf("failed %q, want %q", got, want)
	}
	// Each comes again in seconds, not when the queue's time is over.
	for _, id := range strings.Fields("empty text field twice tenant denied panic") {
		if got := returned.after("receipt of " + id); got != 8*time.Second {
			t.Errorf("%s comes again after %v, want 8s", id, got)
		}
	}
	if n := len(returned.all); n != 7 {
		t.Errorf("%d messages were returned: %v", n, returned.all)
	}
	// The log is JSON, says which request, and never what a body holds.
	lines := 0
	for line := range strings.Lines(logged.String()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry["request"] != "request1" || entry["message"] == "" {
			t.Errorf("%q: %v", line, err)
		}
		lines++
	}
	if lines != 7 || strings.Contains(logged.String(), "run it") {
		t.Errorf("the log:\n%s", logged.String())
	}
	if rep, err := rt.Report(ctx, key); err != nil || rep.Status != psych.StatusCompleted || rep.Attempts != 1 {
		t.Errorf("%+v, %v", rep, err)
	}
	if resp, err = lambda.Turn(rt, nil)(ctx, events.SQSEvent{}); err != nil {
		t.Fatal(err)
	}
	if b, err := json.Marshal(resp); err != nil || string(b) != `{"batchItemFailures":[]}` {
		t.Errorf("an empty batch answers %s, %v: null breaks a poller", b, err)
	}
}

// A batch with one Run twice drives it once; a late message costs one read of
// the header.
func TestDuplicates(t *testing.T) {
	s, err := script.Parse([]byte("steps: [{text: done}]"))
	if err != nil {
		t.Fatal(err)
	}
	c := &counting{Store: memory.New(nil)}
	rt, err := psych.New(c, &psych.Options{Models: psych.OneModel(script.New(s, nil))})
	if err != nil {
		t.Fatal(err)
	}
	key := begin(t, rt)
	body, err := json.Marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	batch := events.SQSEvent{Records: []events.SQSMessage{{MessageId: "a", Body: string(body)}, {MessageId: "b", Body: string(body)}}}
	turn := lambda.Turn(rt, nil)
	if resp, err := turn(ctx, batch); err != nil || len(resp.BatchItemFailures) != 0 {
		t.Errorf("%+v, %v", resp, err)
	}
	if rep, err := rt.Report(ctx, key); err != nil || rep.Turns != 1 || rep.Attempts != 1 {
		t.Errorf("%+v, %v", rep, err)
	}
	c.take()
	if _, err := turn(ctx, events.SQSEvent{Records: batch.Records[:1]}); err != nil {
		t.Fatal(err)
	}
	if got := c.take(); got != "GetRun" {
		t.Errorf("a late message makes the calls %q, want one read of the header", got)
	}
}

// begin publishes a Spec and starts a Run of tenant t.
func begin(t *testing.T, rt *psych.Runtime) psych.RunKey {
	t.Helper()
	v, err := rt.Publish(context.Background(), "t", &psych.Spec{Name: "n"})
	if err != nil {
		t.Fatal(err)
	}
	key, err := rt.Start(context.Background(), psych.Scope{Tenant: "t"}, v.Hash, psych.ClientMessage{ID: "m1", Text: "hi"})
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// counting notes the calls of a store that a turn makes.
type counting struct {
	psych.Store
	mu    sync.Mutex
	calls []string
}

func (c *counting) note(call string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, call)
}

func (c *counting) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := strings.Join(c.calls, " ")
	c.calls = nil
	return all
}

func (c *counting) GetRun(ctx context.Context, key psych.RunKey) (psych.RunInfo, error) {
	c.note("GetRun")
	return c.Store.GetRun(ctx, key)
}

func (c *counting) Claim(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
	c.note("Claim")
	return c.Store.Claim(ctx, key, owner, token, now, ttl)
}

func (c *counting) Pending(ctx context.Context, key psych.RunKey) ([]psych.Note, error) {
	c.note("Pending")
	return c.Store.Pending(ctx, key)
}

func (c *counting) Read(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
	c.note("Read")
	return c.Store.Read(ctx, key, after, limit)
}

func (c *counting) Head(ctx context.Context, key psych.RunKey) (psych.Pos, error) {
	c.note("Head")
	return c.Store.Head(ctx, key)
}

func (c *counting) Append(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
	c.note("Append")
	return c.Store.Append(ctx, key, after, b)
}

func (c *counting) GetDoc(ctx context.Context, tenant string, d psych.Digest) ([]byte, error) {
	c.note("GetDoc")
	return c.Store.GetDoc(ctx, tenant, d)
}

// A warm instance stays as it is, whatever it did: neither its heap nor its
// goroutines grow with invocations.
func TestWarmTurn(t *testing.T) {
	s, err := script.Parse([]byte("steps: [{text: done, repeat: {until: never}}]"))
	if err != nil {
		t.Fatal(err)
	}
	rt, err := psych.New(memory.New(nil), &psych.Options{Models: psych.OneModel(script.New(s, nil)), CacheBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	turn := lambda.Turn(rt, nil)
	invoke := func(n int) {
		for range n {
			v, err := rt.Publish(context.Background(), "t", &psych.Spec{Name: "n"})
			if err != nil {
				t.Fatal(err)
			}
			key, err := rt.Start(context.Background(), psych.Scope{Tenant: "t"}, v.Hash, psych.ClientMessage{Text: "hi"})
			if err != nil {
				t.Fatal(err)
			}
			body, err := json.Marshal(key)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			resp, err := turn(ctx, events.SQSEvent{Records: []events.SQSMessage{{MessageId: "m", Body: string(body)}}})
			cancel()
			if err != nil || len(resp.BatchItemFailures) > 0 {
				t.Fatal(resp, err)
			}
			if err := rt.Delete(context.Background(), key); err != nil {
				t.Fatal(err)
			}
		}
	}
	measure := func() (goroutines int, heap uint64) {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return runtime.NumGoroutine(), m.HeapAlloc
	}
	invoke(50)
	goroutines, heap := measure()
	invoke(500)
	after, now := measure()
	t.Logf("heap %d KiB, then %d KiB; %d goroutines, then %d", heap>>10, now>>10, goroutines, after)
	if after != goroutines {
		t.Errorf("%d goroutines, then %d", goroutines, after)
	}
	// The store keeps a tombstone of each Run, of some hundred bytes.
	if now > heap+1<<20 {
		t.Errorf("heap %d, then %d", heap, now)
	}
}

// lost is a store whose documents are gone.
type lost struct{ psych.Store }

func (l lost) GetDoc(_ context.Context, tenant string, d psych.Digest) ([]byte, error) {
	return nil, fmt.Errorf("lost: document %s of %s: %w", d, tenant, psych.ErrNotFound)
}

// A Run that is there, and whose Version is not, is not taken for a deleted one:
// its messages fail, until a person sees them in the dead-letter queue.
func TestLostVersion(t *testing.T) {
	s, err := script.Parse([]byte("steps: [{text: done}]"))
	if err != nil {
		t.Fatal(err)
	}
	store := memory.New(nil)
	o := &psych.Options{Models: psych.OneModel(script.New(s, nil))}
	rt, err := psych.New(store, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	key := begin(t, rt)
	if _, err := rt.Drive(ctx, key, nil); err != nil {
		t.Fatal(err)
	}
	if err := rt.Send(ctx, key, psych.ClientMessage{Text: "more"}); err != nil {
		t.Fatal(err)
	}
	if rt, err = psych.New(lost{store}, o); err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	e := events.SQSEvent{Records: []events.SQSMessage{{MessageId: "m", Body: string(body), Attributes: map[string]string{"SentTimestamp": fmt.Sprint(time.Now().UnixMilli())}}}}
	for name, handle := range map[string]func(context.Context, events.SQSEvent) (events.SQSEventResponse, error){
		"turn": lambda.Turn(rt, nil), "dead letter": lambda.DeadLetter(rt, nil),
	} {
		if resp, err := handle(ctx, e); err != nil || len(resp.BatchItemFailures) != 1 {
			t.Errorf("%s: %+v, %v", name, resp, err)
		}
	}
}
