package lambda

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/psych-go/psych-go/psych"
)

// notDriven is what a client is told of an exchange whose wake died.
const notDriven = "no worker could drive this Run, and the queue gave up; the log of the workers says why. Send a message to try again"

// DeadLetter handles the dead-letter queue of wakes: the exchange that a wake was
// for is closed as failed, if there was no progress since it was sent, so that
// who waits learns of it. The Run stays usable. A message that fails is in the
// answer's batch item failures; one that can't be parsed stays in the queue,
// for a person to look at, until its retention ends.
func DeadLetter(rt *psych.Runtime, o *QueueOptions) func(context.Context, events.SQSEvent) (events.SQSEventResponse, error) {
	return queue(o, func(ctx context.Context, log *slog.Logger, m *events.SQSMessage) error {
		key, err := parseWake(m.Body)
		if err != nil {
			return err
		}
		sent, err := sentAt(m)
		if err != nil {
			return err
		}
		err = rt.Fail(ctx, key, sent, notDriven)
		var corrupt *psych.CorruptionError
		switch {
		case errors.Is(err, psych.ErrNotFound):
			return nil // the Run was deleted
		case errors.As(err, &corrupt): // nothing can be written to it, now or later
			log.ErrorContext(ctx, "a log is damaged", "tenant", key.Tenant, "run", key.RunID, "err", err)
			return nil
		case err != nil:
			return fmt.Errorf("lambda: fail run %s: %w", key, err)
		}
		log.WarnContext(ctx, "a wake died", "tenant", key.Tenant, "run", key.RunID, "message", m.MessageId, "sent", sent)
		return nil
	})
}

// sentAt is when a message was sent at the latest: its time is in whole
// milliseconds, and what was posted just before it must not count as later.
func sentAt(m *events.SQSMessage) (time.Time, error) {
	ms, err := strconv.ParseInt(m.Attributes["SentTimestamp"], 10, 64)
	if err != nil || ms <= 0 {
		return time.Time{}, fmt.Errorf("lambda: message %s has no SentTimestamp: %w", m.MessageId, psych.ErrInvalid)
	}
	return time.UnixMilli(ms).Add(time.Millisecond - time.Microsecond), nil
}
