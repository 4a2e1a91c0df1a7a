package lambda_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/events"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/lambda"
	"github.com/psych-go/psych-go/psych"
)

type panicking struct{ psych.Store }

func (p panicking) GetRun(ctx context.Context, key psych.RunKey) (psych.RunInfo, error) {
	if key.RunID == strings.Repeat("f", 32) {
		panic("a driver of a database")
	}
	return p.Store.GetRun(ctx, key)
}

func TestTurn(t *testing.T) {
	s, err := script.Parse([]byte("steps: [{text: done}]"))
	if err != nil {
		t.Fatal(err)
	}
	rt, err := psych.New(panicking{memory.New(nil)}, &psych.Options{Models: psych.OneModel(script.New(s, nil))})
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
		"panic":  fmt.Sprintf(`{"tenant":"t","run_id":%q}`, strings.Repeat("f", 32)),
	}
	var e events.SQSEvent
	for _, id := range []string{"good", "again", "gone", "empty", "text", "field", "twice", "tenant", "panic"} {
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
	if got, want := strings.Join(failed, " "), "empty text field twice tenant panic"; got != want {
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
