// Package sqs is a [psych.Waker] on a queue of SQS: each wake is a message whose
// body is the JSON of a [psych.RunKey], {"tenant": …, "run_id": …}.
//
// On a standard queue the tenant is the message group, so that one tenant's
// backlog does not hold up the others (fair queues). On a FIFO queue the Run is
// the group, and every wake a message of its own: a queue that took two wakes
// within five minutes for one would lose the second.
package sqs

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/psych-go/psych-go/psych"
)

var _ psych.Waker = (*Waker)(nil)

// Options of a [Waker]. The zero value works; there are none yet.
type Options struct{}

// A Waker is a [psych.Waker] on one queue. It keeps no state but its client.
type Waker struct {
	client *sqs.Client
	queue  string
	fifo   bool
}

// New returns a Waker on a queue, by its URL; one that ends in .fifo is a FIFO
// queue. It does no IO. o may be nil.
func New(client *sqs.Client, queueURL string, o *Options) *Waker {
	return &Waker{client, queueURL, strings.HasSuffix(queueURL, ".fifo")}
}

// Bounds of SQS.
const (
	maxBatch      = 10
	maxVisibility = 12 * time.Hour
)

// tries is how often messages are sent that the queue was briefly unable to
// take, out of a batch that it took; the SDK repeats whole requests itself.
const tries = 3

// Wake implements [psych.Waker]. A key that is given twice is sent once.
func (w *Waker) Wake(ctx context.Context, keys ...psych.RunKey) error {
	var errs []error
	var batch []types.SendMessageBatchRequestEntry
	sent := map[psych.RunKey]bool{}
	for i, key := range keys {
		if err := key.Check(); err != nil {
			errs = append(errs, fmt.Errorf("sqs: wake: %w", err))
			continue
		}
		if sent[key] {
			continue
		}
		sent[key] = true
		batch = append(batch, w.message(strconv.Itoa(i), key))
	}
	for len(batch) > 0 {
		n := min(len(batch), maxBatch)
		if err := w.send(ctx, keys, batch[:n]); err != nil {
			errs = append(errs, err)
		}
		batch = batch[n:]
	}
	return errors.Join(errs...)
}

func (w *Waker) message(id string, key psych.RunKey) types.SendMessageBatchRequestEntry {
	m := types.SendMessageBatchRequestEntry{Id: &id, MessageBody: aws.String(body(key))}
	if w.fifo {
		m.MessageGroupId, m.MessageDeduplicationId = aws.String(group(key.Tenant, key.RunID)), aws.String(rand.Text())
	} else {
		m.MessageGroupId = aws.String(group(key.Tenant))
	}
	return m
}

// group is an id of a message group: a digest, since a tenant may hold
// characters that a group may not.
func group(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// body is the JSON of a key in ASCII: a message may not hold every character
// that a tenant may.
func body(key psych.RunKey) string {
	plain, err := json.Marshal(key)
	if err != nil {
		panic(err) // of two strings
	}
	var b strings.Builder
	for _, r := range string(plain) {
		switch {
		case r < 0x7f:
			b.WriteRune(r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// send sends a batch, and again what of it the queue was briefly unable to take.
func (w *Waker) send(ctx context.Context, keys []psych.RunKey, batch []types.SendMessageBatchRequestEntry) error {
	var refused []error // for good
	for try := 1; ; try++ {
		out, err := w.client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &w.queue, Entries: batch})
		if err != nil {
			return errors.Join(append(refused, fmt.Errorf("sqs: wake %d Runs: %w", len(batch), w.classify(ctx, err)))...)
		}
		var again []types.SendMessageBatchRequestEntry
		var errs []error
		for _, f := range out.Failed {
			for _, m := range batch {
				if *m.Id != aws.ToString(f.Id) {
					continue
				}
				i, _ := strconv.Atoi(*m.Id)
				err := fmt.Errorf("sqs: wake %s: the queue refused it: %s: %s", keys[i], aws.ToString(f.Code), aws.ToString(f.Message))
				if f.SenderFault {
					refused = append(refused, err)
				} else {
					again = append(again, m)
					errs = append(errs, fmt.Errorf("%w: %w", err, psych.ErrUnavailable))
				}
			}
		}
		if len(again) == 0 || try == tries {
			return errors.Join(append(refused, errs...)...)
		}
		select {
		case <-ctx.Done():
			return errors.Join(append(append(refused, errs...), ctx.Err())...)
		case <-time.After(time.Duration(try) * 100 * time.Millisecond):
		}
		batch = again
	}
}

// Return makes a message that was received visible again after a time, in place
// of what is left of its visibility timeout. receipt is its receipt handle.
func (w *Waker) Return(ctx context.Context, receipt string, after time.Duration) error {
	after = min(max(after, 0), maxVisibility)
	_, err := w.client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: &w.queue, ReceiptHandle: &receipt, VisibilityTimeout: int32((after + time.Second - 1) / time.Second),
	})
	if err != nil {
		return fmt.Errorf("sqs: return a message: %w", w.classify(ctx, err))
	}
	return nil
}

var retryable = retry.IsErrorRetryables(retry.DefaultRetryables)

// classify makes an error of the SDK one of psych's where there is one for it,
// and says of others what to do.
func (w *Waker) classify(ctx context.Context, err error) error {
	var missing *types.QueueDoesNotExist
	var api smithy.APIError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w: %w", psych.ErrUnavailable, ctx.Err(), err)
	case errors.As(err, &missing):
		return fmt.Errorf("there is no queue %q in the region and account of the client: %w", w.queue, err)
	case retryable.IsErrorRetryable(err).Bool():
		return fmt.Errorf("%w: %w", psych.ErrUnavailable, err)
	case errors.As(err, &api):
		switch api.ErrorCode() {
		case "AccessDenied", "AccessDeniedException", "InvalidClientTokenId", "UnrecognizedClientException", "ExpiredToken", "ExpiredTokenException", "InvalidSignatureException", "SignatureDoesNotMatch":
			return fmt.Errorf("the credentials are refused: check that they are current, and permit sqs:SendMessage and sqs:ChangeMessageVisibility on the queue %q: %w", w.queue, err)
		}
	}
	return err
}
