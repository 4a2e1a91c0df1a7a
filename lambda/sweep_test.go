package lambda_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/lambda"
	"github.com/psych-go/psych-go/psych"
)

// wakes notes who was woken.
type wakes struct {
	mu   sync.Mutex
	keys []psych.RunKey
}

func (w *wakes) Wake(_ context.Context, keys ...psych.RunKey) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys = append(w.keys, keys...)
	return nil
}

func (w *wakes) take() []psych.RunKey {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys := w.keys
	w.keys = nil
	return keys
}

// A clock is set by a test.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// A schedule wakes what is due, once; an invocation whose time is short does
// some of it, and the next one goes on there.
func TestSweep(t *testing.T) {
	w, c := &wakes{}, &clock{now: time.Now()}
	rt, err := psych.New(memory.New(nil), &psych.Options{Waker: w, Now: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	const runs = 250 // over two pages
	v, err := rt.Publish(context.Background(), "t", &psych.Spec{Name: "n"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range runs {
		if _, err := rt.Start(context.Background(), psych.Scope{Tenant: "t"}, v.Hash, psych.ClientMessage{ID: fmt.Sprint(i), Text: "hi"}); err != nil {
			t.Fatal(err)
		}
	}
	w.take()
	c.pass(time.Hour)
	event, err := os.ReadFile(filepath.Join("testdata", "schedule.json"))
	if err != nil {
		t.Fatal(err)
	}
	sweep := lambda.Sweep(rt, nil)
	within := func(d time.Duration, event []byte) lambda.SweepResult {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		r, err := sweep(ctx, event)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	// Less than a sweep leaves of its time: one page an invocation.
	short := within(4*time.Second, event)
	if short.Woken == 0 || short.Woken >= runs || short.Next == "" {
		t.Fatalf("%+v", short)
	}
	second := within(4*time.Second, event)
	if second.Next == short.Next || second.Woken == 0 {
		t.Errorf("the next invocation does not go on: %+v, then %+v", short, second)
	}
	rest := within(time.Minute, event)
	if rest.Next != "" || short.Woken+second.Woken+rest.Woken != runs || len(w.take()) != runs {
		t.Errorf("%+v, %+v, %+v", short, second, rest)
	}
	if again := within(time.Minute, []byte("null")); again.Woken != 0 {
		t.Errorf("a backlog multiplies: %+v", again)
	}
	// Another instance, told where to go on.
	c.pass(time.Hour)
	part := within(4*time.Second, event)
	sweep = lambda.Sweep(rt, nil)
	if rest := within(time.Minute, fmt.Appendf(nil, `{"cursor":%q}`, part.Next)); part.Woken+rest.Woken != runs {
		t.Errorf("%+v, %+v", part, rest)
	}
	if _, err := sweep(context.Background(), []byte(`{"cursor":"nonsense"}`)); !errors.Is(err, psych.ErrInvalid) {
		t.Errorf("%v", err)
	}
	within(time.Minute, event) // and is not stuck there
}

// dead makes the golden event of a dead letter.
func dead(t *testing.T, body, sent string) events.SQSEvent {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "sqs-deadletter.json"))
	if err != nil {
		t.Fatal(err)
	}
	quoted, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	var e events.SQSEvent
	if err := json.Unmarshal([]byte(strings.NewReplacer(`"BODY"`, string(quoted), "SENT", sent).Replace(string(data))), &e); err != nil {
		t.Fatal(err)
	}
	return e
}

// The exchange of a wake that died is closed as failed, and who asks learns of
// it; what can't be handled fails alone, and comes again.
func TestDeadLetter(t *testing.T) {
	play, err := script.Parse([]byte("steps: [{text: done}]"))
	if err != nil {
		t.Fatal(err)
	}
	c := &clock{now: time.UnixMilli(1_700_000_000_000).Add(700 * time.Microsecond)} // within a millisecond
	rt, err := psych.New(memory.New(nil), &psych.Options{Models: psych.OneModel(script.New(play, nil)), Now: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	key := begin(t, rt)
	body, err := json.Marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	c.pass(time.Hour)
	r := &returns{}
	handle := lambda.DeadLetter(rt, &lambda.QueueOptions{Returner: r})
	for range 2 { // delivered at least once
		resp, err := handle(ctx, dead(t, string(body), "1700000000000")) // posted some microseconds later, as that is counted
		if err != nil || len(resp.BatchItemFailures) != 0 {
			t.Fatalf("%+v, %v", resp, err)
		}
		rep, err := rt.Report(ctx, key)
		if err != nil || rep.Status != psych.StatusFailed || rep.Exchanges[0].Code != "not_driven" || !strings.Contains(rep.Exchanges[0].Reason, "no worker could drive") || rep.Attempts != 1 {
			t.Errorf("%+v, %v", rep, err)
		}
	}
	// The Run stays usable, and a wake from before its progress changes nothing.
	if err := rt.Send(ctx, key, psych.ClientMessage{ID: "m2", Text: "again"}); err != nil {
		t.Fatal(err)
	}
	if out, err := rt.Drive(ctx, key, nil); err != nil || out != psych.Closed {
		t.Fatal(out, err)
	}
	if _, err := handle(ctx, dead(t, string(body), "1700000000000")); err != nil {
		t.Fatal(err)
	}
	if rep, err := rt.Report(ctx, key); err != nil || rep.Status != psych.StatusCompleted || len(rep.Exchanges) != 2 {
		t.Errorf("%+v, %v", rep, err)
	}
	gone := fmt.Sprintf(`{"tenant":"t","run_id":%q}`, strings.Repeat("0", 32))
	if resp, err := handle(ctx, dead(t, gone, "1700000000000")); err != nil || len(resp.BatchItemFailures) != 0 {
		t.Errorf("a deleted Run: %+v, %v", resp, err)
	}
	for name, e := range map[string]events.SQSEvent{"no wake": dead(t, "nonsense", "1700000000000"), "no time": dead(t, string(body), ""), "a bad time": dead(t, string(body), "-1")} {
		resp, err := handle(ctx, e)
		if err != nil || len(resp.BatchItemFailures) != 1 || resp.BatchItemFailures[0].ItemIdentifier != e.Records[0].MessageId {
			t.Errorf("%s: %+v, %v", name, resp, err)
		}
	}
	if got := r.after(dead(t, "", "").Records[0].ReceiptHandle); got != time.Minute { // after six tries
		t.Errorf("comes again after %v", got)
	}
}

// A Run that a worker holds is tried again.
func TestDeadLetterOfAHeldRun(t *testing.T) {
	store := memory.New(nil)
	rt, err := psych.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	key := begin(t, rt)
	if _, err := store.Claim(ctx, key, "a worker", "token", time.Now(), time.Minute); err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := lambda.DeadLetter(rt, nil)(ctx, dead(t, string(body), fmt.Sprint(time.Now().UnixMilli())))
	if err != nil || len(resp.BatchItemFailures) != 1 {
		t.Errorf("%+v, %v", resp, err)
	}
	if rep, err := rt.Report(ctx, key); err != nil || rep.Attempts != 0 || rep.Waiting != 1 {
		t.Errorf("%+v, %v", rep, err)
	}
}
