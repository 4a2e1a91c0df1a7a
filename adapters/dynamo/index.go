package dynamo

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/psych-go/psych-go/psych"
)

// Names of the indexes.
const (
	dueIndex  = "due"
	runsIndex = "runs"
)

// Cursors name the place of the last thing listed, behind a letter for the list,
// so that one list's cursor is not taken for the other's.
const (
	dueCursor  = "d"
	refCursor  = "r"
	listCursor = "l"
)

func badCursor(cursor string) error {
	return fmt.Errorf("cursor %.80q: want one that this list returned: %w", cursor, psych.ErrInvalid)
}

// A place is where the index "due" is gone on from: behind an item, or at the
// start of a shard if part is "".
type place struct {
	shard      int
	at         int64
	part, sort string
}

func (p place) format(letter string) string {
	s := letter + strconv.Itoa(p.shard)
	if p.part != "" {
		enc := base64.RawURLEncoding
		s += "." + strconv.FormatInt(p.at, 10) + "." + enc.EncodeToString([]byte(p.part)) + "." + enc.EncodeToString([]byte(p.sort))
	}
	return s
}

func parsePlace(letter, cursor string) (place, error) {
	var p place
	if cursor == "" {
		return p, nil
	}
	rest, ok := strings.CutPrefix(cursor, letter)
	parts := strings.Split(rest, ".")
	n, err := strconv.Atoi(parts[0])
	ok = ok && err == nil && n >= 0 && n < shards && (len(parts) == 1 || len(parts) == 4)
	p.shard = n
	if ok && len(parts) == 4 {
		enc := base64.RawURLEncoding.Strict()
		part, err1 := enc.DecodeString(parts[2])
		sort, err2 := enc.DecodeString(parts[3])
		at, err3 := strconv.ParseInt(parts[1], 10, 64)
		ok = err1 == nil && err2 == nil && err3 == nil && len(part) > 0 && len(sort) > 0
		p.at, p.part, p.sort = at, string(part), string(sort)
	}
	if !ok || p.format(letter) != cursor {
		return place{}, badCursor(cursor)
	}
	return p, nil
}

// due lists keys of items in the index "due" whose time is not after now, from
// a place, at most limit, shard by shard.
func (s *Store) due(ctx context.Context, letter string, now time.Time, cursor string, limit int) (keys []item, next string, err error) {
	at, err := parsePlace(letter, cursor)
	if err != nil {
		return nil, "", err
	}
	index, condition := dueIndex, "g = :g AND u <= :now"
	for {
		if err := ctx.Err(); err != nil {
			return nil, "", fmt.Errorf("%w: %w", psych.ErrUnavailable, err)
		}
		shard, left := letter+strconv.Itoa(at.shard), int32(limit-len(keys))
		in := &dynamodb.QueryInput{
			TableName:                 &s.table,
			IndexName:                 &index,
			KeyConditionExpression:    &condition,
			ExpressionAttributeValues: item{":g": str(shard), ":now": num(micros(now))},
			Limit:                     &left,
		}
		if at.part != "" {
			in.ExclusiveStartKey = keyOf(at.part, at.sort)
			in.ExclusiveStartKey["g"], in.ExclusiveStartKey["u"] = str(shard), num(at.at)
		}
		out, err := s.client.Query(ctx, in)
		if err != nil {
			return nil, "", s.classify(ctx, err)
		}
		for _, it := range out.Items {
			keys = append(keys, keyOf(getStr(it, pk), getStr(it, sk)))
		}
		if last := out.LastEvaluatedKey; len(last) > 0 {
			at.part, at.sort = getStr(last, pk), getStr(last, sk)
			at.at, _ = getNum(last, "u")
		} else if at = (place{shard: at.shard + 1}); at.shard == shards {
			return keys, "", nil
		}
		if len(keys) >= limit {
			return keys, at.format(letter), nil
		}
	}
}

// Due implements [psych.Index]. What the index lists is believed when header or
// tombstone, read consistently, says so too: an entry may lag, and that of a
// lease stands where the Claim put it.
func (s *Store) Due(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
	keys, next, err := s.dueRuns(ctx, now, cursor, limit)
	if err != nil {
		return nil, "", fmt.Errorf("dynamo: due: %w", err)
	}
	return keys, next, nil
}

func (s *Store) dueRuns(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
	if err := s.usable(ctx); err != nil {
		return nil, "", err
	}
	if err := psych.CheckLimit(limit); err != nil {
		return nil, "", err
	}
	listed, next, err := s.due(ctx, dueCursor, now, cursor, limit)
	if err != nil {
		return nil, "", err
	}
	var keys []psych.RunKey
	err = s.getAll(ctx, listed, func(it item) error {
		key, ok := parseRunPart(getStr(it, pk))
		if !ok {
			return nil // no item that this adapter made
		}
		isDue := false
		if it["tb"] != nil {
			u, ok := getNum(it, "u")
			isDue = ok && u <= micros(now)
		} else if h, err := decodeLive(key, it); err == nil {
			isDue = h.isDue(now)
		} else {
			isDue = true // whoever reads the header gets the error
		}
		if isDue {
			keys = append(keys, key)
		}
		return nil
	})
	return keys, next, err
}

// ListRuns implements [psych.Index].
func (s *Store) ListRuns(ctx context.Context, tenant, cursor string, limit int) ([]psych.RunInfo, string, error) {
	runs, next, err := s.listRuns(ctx, tenant, cursor, limit)
	if err != nil {
		return nil, "", fmt.Errorf("dynamo: list %q: %w", tenant, err)
	}
	return runs, next, nil
}

func (s *Store) listRuns(ctx context.Context, tenant, cursor string, limit int) ([]psych.RunInfo, string, error) {
	if err := s.checkTenant(ctx, tenant); err != nil {
		return nil, "", err
	}
	if err := psych.CheckLimit(limit); err != nil {
		return nil, "", err
	}
	from, err := parseListCursor(tenant, cursor)
	if err != nil {
		return nil, "", err
	}
	index, condition, forward, n := runsIndex, "o = :o", false, int32(min(limit, 1000))
	out, err := s.client.Query(ctx, &dynamodb.QueryInput{
		TableName:                 &s.table,
		IndexName:                 &index,
		KeyConditionExpression:    &condition,
		ExpressionAttributeValues: item{":o": str(tenant)},
		ScanIndexForward:          &forward,
		Limit:                     &n,
		ExclusiveStartKey:         from,
	})
	if err != nil {
		return nil, "", s.classify(ctx, err)
	}
	keys := make([]item, len(out.Items))
	for i, it := range out.Items {
		keys[i] = keyOf(getStr(it, pk), getStr(it, sk))
	}
	found := make(map[string]psych.RunInfo, len(keys))
	err = s.getAll(ctx, keys, func(it item) error {
		key, ok := parseRunPart(getStr(it, pk))
		if !ok || it["tb"] != nil {
			return nil
		}
		h, err := decodeLive(key, it)
		if err == nil {
			found[getStr(it, pk)] = h.RunInfo
		}
		return err
	})
	if err != nil {
		return nil, "", err
	}
	var runs []psych.RunInfo
	for _, key := range keys {
		if info, ok := found[getStr(key, pk)]; ok {
			runs = append(runs, info)
		}
	}
	next := ""
	if last := out.LastEvaluatedKey; len(last) > 0 {
		key, _ := parseRunPart(getStr(last, pk))
		created, _ := getNum(last, "c")
		next = listCursor + key.RunID + strconv.FormatInt(created, 10)
	}
	return runs, next, nil
}

// parseListCursor returns the start key that a cursor stands for, always one of
// the tenant's own.
func parseListCursor(tenant, cursor string) (item, error) {
	if cursor == "" {
		return nil, nil
	}
	if s, ok := strings.CutPrefix(cursor, listCursor); ok && len(s) > 32 {
		key := psych.RunKey{Tenant: tenant, RunID: s[:32]}
		if created, err := strconv.ParseInt(s[32:], 10, 64); err == nil && key.Check() == nil {
			from := keyOf(runPart(key), headerKey)
			from["o"], from["c"] = str(tenant), num(created)
			return from, nil
		}
	}
	return nil, badCursor(cursor)
}
