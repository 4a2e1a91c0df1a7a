// Package lambda holds the handlers of Psych's AWS Lambda functions, as
// functions that a main of one's own can call: thin mains stand in the folders
// below.
package lambda

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/psych-go/psych-go/psych"
)

// defaultTimeout is Lambda's own, where nothing says another.
const defaultTimeout = 3 * time.Second

// A Returner makes a message that was received visible again after a time, in
// place of what is left of its visibility timeout, which is many minutes where a
// function has many. adapters/sqs has one.
type Returner interface {
	Return(ctx context.Context, receipt string, after time.Duration) error
}

// QueueOptions of the handlers of a queue. Nil and the zero value work.
type QueueOptions struct {
	// Returner makes a message that failed visible again within seconds. Without
	// one the queue repeats it when its visibility timeout is over.
	Returner Returner

	// Drive bounds a turn: the function's timeout must leave room for its Margin
	// and its Floor. Nil: 5 s and 15 s. Only Turn makes use of it.
	Drive *psych.DriveOptions

	Logger *slog.Logger // nil: silent. Ids and sizes, never payloads
}

// Turn handles a queue of wakes: each message of an SQS event is the JSON of a
// psych.RunKey, {"tenant": …, "run_id": …}, and drives that Run until its
// exchange closes or the time that is left is too short for another turn. The
// messages of a batch are handled side by side. One that fails, and no other, is
// in the answer's batch item failures, so that the queue repeats it; one that
// can't be parsed fails alone too, and ends in the dead-letter queue. A
// duplicate or late message costs one read.
//
// It needs ReportBatchItemFailures on the event source. A Run that is handed
// over is woken by rt's Waker; without one the sweep finds it.
func Turn(rt *psych.Runtime, o *QueueOptions) func(context.Context, events.SQSEvent) (events.SQSEventResponse, error) {
	var drive *psych.DriveOptions
	if o != nil {
		drive = o.Drive
	}
	return queue(o, func(ctx context.Context, log *slog.Logger, m *events.SQSMessage) error {
		key, err := parseWake(m.Body)
		if err != nil {
			return err
		}
		outcome, err := rt.Drive(ctx, key, drive)
		log.DebugContext(ctx, "driven", "tenant", key.Tenant, "run", key.RunID, "outcome", outcome.String(), "err", err)
		switch {
		case outcome == psych.Closed, outcome == psych.Held, errors.Is(err, psych.ErrNotFound):
			return nil // the exchange is over, somebody else is at it, or the Run was deleted
		case err != nil:
			return fmt.Errorf("lambda: drive run %s: %w", key, err)
		}
		return nil
	})
}

// queue is the handler of a queue whose messages are handled by handle, each by
// itself: an error, or a panic, is one failed message.
func queue(o *QueueOptions, handle func(context.Context, *slog.Logger, *events.SQSMessage) error) func(context.Context, events.SQSEvent) (events.SQSEventResponse, error) {
	var opts QueueOptions
	if o != nil {
		opts = *o
	}
	return func(ctx context.Context, e events.SQSEvent) (events.SQSEventResponse, error) {
		ctx, cancel := withDeadline(ctx, os.Getenv)
		defer cancel()
		log := logger(ctx, opts.Logger)
		failed := make([]bool, len(e.Records))
		var all sync.WaitGroup
		for i := range e.Records {
			m := &e.Records[i]
			all.Go(func() {
				err := safely(func() error { return handle(ctx, log, m) })
				if err == nil {
					return
				}
				failed[i] = true
				log.ErrorContext(ctx, "a message failed", "message", m.MessageId, "received", received(m), "err", err)
				if opts.Returner != nil {
					after := min(time.Second<<min(received(m), 10), time.Minute)
					if err := safely(func() error { return opts.Returner.Return(ctx, m.ReceiptHandle, after) }); err != nil {
						log.WarnContext(ctx, "a message comes again late", "message", m.MessageId, "err", err)
					}
				}
			})
		}
		all.Wait()
		resp := events.SQSEventResponse{BatchItemFailures: []events.SQSBatchItemFailure{}} // never null
		for i := range e.Records {
			if failed[i] {
				resp.BatchItemFailures = append(resp.BatchItemFailures, events.SQSBatchItemFailure{ItemIdentifier: e.Records[i].MessageId})
			}
		}
		return resp, nil
	}
}

// safely makes a panic an error.
func safely(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("lambda: panic: %v\n%s", v, debug.Stack())
		}
	}()
	return f()
}

// received is how often a message was received.
func received(m *events.SQSMessage) int {
	n, _ := strconv.Atoi(m.Attributes["ApproximateReceiveCount"])
	return max(n, 1)
}

// logger is l, or a silent one, with the id of the invocation.
func logger(ctx context.Context, l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	if lc, ok := lambdacontext.FromContext(ctx); ok {
		return l.With("request", lc.AwsRequestID)
	}
	return l
}

// parseWake reads the body of a message strictly. What is wrong with it is said
// without it.
func parseWake(body string) (key psych.RunKey, err error) {
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&key); err != nil {
		return key, fmt.Errorf("lambda: a body of %d bytes is no JSON of a run key: %w", len(body), psych.ErrInvalid)
	}
	if _, err := d.Token(); err != io.EOF {
		return key, fmt.Errorf("lambda: something follows the run key in a body of %d bytes: %w", len(body), psych.ErrInvalid)
	}
	if key.Check() != nil {
		return key, fmt.Errorf("lambda: the run key in a body of %d bytes is illegal: %w", len(body), psych.ErrInvalid)
	}
	return key, nil
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
