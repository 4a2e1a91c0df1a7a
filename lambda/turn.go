// Package lambda holds the handlers of Psych's AWS Lambda functions, as
// functions that a main of one's own can call: thin mains stand in the folders
// below.
package lambda

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/psych-go/psych-go/psych"
)

// defaultTimeout is Lambda's own, where nothing says another.
const defaultTimeout = 3 * time.Second

// Turn handles a queue of wakes: each message of an SQS event is the JSON of a
// psych.RunKey, {"tenant": …, "run_id": …}, and drives that Run until its
// exchange closes or the time that is left is too short for another turn. A
// message that fails, and no other, is in the answer's batch item failures, so
// that the queue repeats it; one that can't be parsed fails alone too, and ends
// in the dead-letter queue. A duplicate or late message costs one read.
//
// It needs ReportBatchItemFailures on the event source. A Run that is handed
// over is woken by rt's Waker; without one the sweep finds it. log is for ids
// and sizes; nil is silent.
func Turn(rt *psych.Runtime, log *slog.Logger) func(context.Context, events.SQSEvent) (events.SQSEventResponse, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return func(ctx context.Context, e events.SQSEvent) (events.SQSEventResponse, error) {
		ctx, cancel := withDeadline(ctx, os.Getenv)
		defer cancel()
		resp := events.SQSEventResponse{BatchItemFailures: []events.SQSBatchItemFailure{}} // never null
		for _, m := range e.Records {
			if err := turn(ctx, rt, m.Body); err != nil {
				log.ErrorContext(ctx, "a wake failed", "message", m.MessageId, "err", err)
				resp.BatchItemFailures = append(resp.BatchItemFailures, events.SQSBatchItemFailure{ItemIdentifier: m.MessageId})
			}
		}
		return resp, nil
	}
}

func turn(ctx context.Context, rt *psych.Runtime, body string) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("lambda: panic: %v\n%s", v, debug.Stack())
		}
	}()
	key, err := parseWake(body)
	if err != nil {
		return err
	}
	outcome, err := rt.Drive(ctx, key, nil)
	switch {
	case outcome == psych.Closed, outcome == psych.Held, errors.Is(err, psych.ErrNotFound):
		return nil // the exchange is over, somebody else is at it, or the Run was deleted
	case err != nil:
		return fmt.Errorf("lambda: drive run %s: %w", key, err)
	}
	return nil
}

// parseWake reads the body of a message strictly.
func parseWake(body string) (key psych.RunKey, err error) {
	d := json.NewDecoder(bytes.NewReader([]byte(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(&key); err != nil {
		return key, fmt.Errorf("lambda: message body %.200q: want the JSON of a run key: %w: %w", body, psych.ErrInvalid, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return key, fmt.Errorf("lambda: message body %.200q: something follows the run key: %w", body, psych.ErrInvalid)
	}
	return key, key.Check()
}

// withDeadline gives ctx the function's timeout where the platform did not, as
// some emulators do not.
func withDeadline(ctx context.Context, getenv func(string) string) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	timeout := defaultTimeout
	if s, err := strconv.Atoi(getenv("AWS_LAMBDA_FUNCTION_TIMEOUT")); err == nil && s > 0 {
		timeout = time.Duration(s) * time.Second
	}
	return context.WithTimeout(ctx, timeout)
}
