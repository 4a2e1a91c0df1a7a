package dynamo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/psych-go/psych-go/psych"
)

const (
	batchWrites = 25  // items of a BatchWriteItem
	batchReads  = 100 // keys of a BatchGetItem
	idle        = 10  // batches in a row of which nothing was processed
)

// backoff waits before the nth repetition of what was left unprocessed, or until
// ctx ends.
func backoff(ctx context.Context, n int) error {
	d := min(50*time.Millisecond<<n, 5*time.Second)
	t := time.NewTimer(d/2 + rand.N(d/2))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", psych.ErrUnavailable, ctx.Err())
	}
}

// deleteAll deletes items by their keys, which are distinct, until none is left
// unprocessed.
func (s *Store) deleteAll(ctx context.Context, keys []item) error {
	for batch := range slices.Chunk(keys, batchWrites) {
		var todo []types.WriteRequest
		for _, key := range batch {
			todo = append(todo, types.WriteRequest{DeleteRequest: &types.DeleteRequest{Key: key}})
		}
		for n := 0; len(todo) > 0; {
			out, err := s.client.BatchWriteItem(ctx, &dynamodb.BatchWriteItemInput{RequestItems: map[string][]types.WriteRequest{s.table: todo}})
			if err != nil {
				return s.classify(ctx, err)
			}
			left := out.UnprocessedItems[s.table]
			if len(left) < len(todo) {
				n = 0
			}
			if todo = left; len(todo) == 0 {
				break
			}
			if n++; n > idle {
				return fmt.Errorf("%d deletions are left unprocessed: %w", len(todo), psych.ErrUnavailable)
			}
			if err := backoff(ctx, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// getAll reads items by their keys, consistently, until none is left
// unprocessed, and hands each that exists to f. Keys may repeat.
func (s *Store) getAll(ctx context.Context, keys []item, f func(it item) error) error {
	seen := make(map[[2]string]bool, len(keys))
	distinct := make([]item, 0, len(keys))
	for _, key := range keys {
		if k := [2]string{getStr(key, pk), getStr(key, sk)}; !seen[k] {
			seen[k] = true
			distinct = append(distinct, key)
		}
	}
	consistent := true
	for batch := range slices.Chunk(distinct, batchReads) {
		for n := 0; len(batch) > 0; {
			out, err := s.client.BatchGetItem(ctx, &dynamodb.BatchGetItemInput{
				RequestItems: map[string]types.KeysAndAttributes{s.table: {Keys: batch, ConsistentRead: &consistent}},
			})
			if err != nil {
				return s.classify(ctx, err)
			}
			for _, it := range out.Responses[s.table] {
				if err := f(it); err != nil {
					return err
				}
			}
			left := out.UnprocessedKeys[s.table].Keys
			if len(left) < len(batch) {
				n = 0
			}
			if batch = left; len(batch) == 0 {
				break
			}
			if n++; n > idle {
				return fmt.Errorf("%d reads are left unprocessed: %w", len(batch), psych.ErrUnavailable)
			}
			if err := backoff(ctx, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// query reads the items of a partition between two sort keys, both included,
// page by page, consistently, and hands each page to f, until f returns false or
// there are no more. limit bounds a page where it is not 0; projection, where it
// is not empty, what is returned of an item.
type query struct {
	part, from, to string
	backward       bool
	limit          int32
	projection     string
}

func (s *Store) query(ctx context.Context, q query, f func(page []item, more bool) (bool, error)) error {
	condition, consistent, forward := pk+" = :p AND "+sk+" BETWEEN :from AND :to", true, !q.backward
	in := &dynamodb.QueryInput{
		TableName:                 &s.table,
		KeyConditionExpression:    &condition,
		ExpressionAttributeValues: item{":p": str(q.part), ":from": str(q.from), ":to": str(q.to)},
		ConsistentRead:            &consistent,
		ScanIndexForward:          &forward,
	}
	if q.limit > 0 {
		in.Limit = &q.limit
	}
	if q.projection != "" {
		in.ProjectionExpression = &q.projection
	}
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%w: %w", psych.ErrUnavailable, err)
		}
		out, err := s.client.Query(ctx, in)
		if err != nil {
			return s.classify(ctx, err)
		}
		more := len(out.LastEvaluatedKey) > 0
		on, err := f(out.Items, more)
		if err != nil || !on || !more {
			return err
		}
		in.ExclusiveStartKey = out.LastEvaluatedKey
	}
}
