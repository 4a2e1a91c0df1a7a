package dynamo

import (
	"context"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// DeleteRun implements [psych.Runs].
func (s *Store) DeleteRun(ctx context.Context, key psych.RunKey, now time.Time) error {
	err := s.check(ctx, key)
	if err == nil {
		it := keyOf(runPart(key), headerKey)
		it["v"] = num(formatVersion)
		it["tb"] = num(micros(now))
		it["g"] = str(shard(key))
		it["u"] = num(micros(now.Add(psych.MaxLease)))
		// One that stands keeps its time; one that may expire is as good as none.
		_, err = s.put(ctx, it, "attribute_not_exists(tb) OR attribute_exists(e)", nil)
		if err == nil || err == errCondition {
			err = s.deleteLog(ctx, key)
		}
	}
	if err != nil {
		return wrap("delete", key, err)
	}
	return nil
}

// deleteLog removes log and inbox. The tombstone stands, so that a call that
// fails is repeated, or the sweep's PurgeRun goes on with it.
func (s *Store) deleteLog(ctx context.Context, key psych.RunKey) error {
	return s.query(ctx, query{part: runPart(key), from: notePrefix, to: logEnd, projection: pk + ", " + sk}, func(page []item, _ bool) (bool, error) {
		var keys []item
		for _, it := range page {
			if sort := getStr(it, sk); sort != headerKey {
				keys = append(keys, keyOf(runPart(key), sort))
			}
		}
		return true, s.deleteAll(ctx, keys)
	})
}

// PurgeRun implements [psych.Runs]. The last purge gives the tombstone the time
// by which the table's TTL removes it. Where the table has none it stays, and is
// as good as none for CreateRun.
func (s *Store) PurgeRun(ctx context.Context, key psych.RunKey, now time.Time) error {
	err := s.check(ctx, key)
	if err == nil {
		err = s.purge(ctx, key, now)
	}
	if err != nil {
		return wrap("purge", key, err)
	}
	return nil
}

func (s *Store) purge(ctx context.Context, key psych.RunKey, now time.Time) error {
	header := keyOf(runPart(key), headerKey)
	it, err := s.getItem(ctx, header)
	if err != nil {
		return err
	}
	deleted, ok := getNum(it, "tb")
	if !ok || it["e"] != nil {
		return nil
	}
	if err := s.deleteLog(ctx, key); err != nil {
		return err
	}
	last := fromMicros(deleted).Add(psych.TombstoneLife)
	due, _ := getNum(it, "u")
	values := item{":tb": num(deleted)}
	expression := ""
	switch {
	case !now.Before(last):
		expression = "SET e = :e REMOVE u, g"
		values[":e"] = num(now.Unix())
	case !now.Before(fromMicros(due)):
		expression = "SET u = :u"
		values[":u"] = num(micros(last))
	default:
		return nil
	}
	_, err = s.update(ctx, header, expression, "tb = :tb AND attribute_not_exists(e)", values)
	if err == errCondition {
		return nil // another purge was quicker
	}
	return err
}
