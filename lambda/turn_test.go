package lambda_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"

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

func TestTurn(t *testing.T) {
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
	var e events.SQSEvent
	for _, id := range []string{"good", "again", "gone", "empty", "text", "field", "twice", "tenant", "denied", "panic"} {
		e.Records = append(e.Records, events.SQSMessage{MessageId: id, Body: bodies[id]})
	}
	resp, err := lambda.Turn(rt, nil)(ctx, e)
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
