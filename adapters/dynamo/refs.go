package dynamo

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/psych-go/psych-go/psych"
)

func refPart(tenant string) string { return "f#" + tenant }

// refShard is the partition of the index "due" that a ref is listed in.
func refShard(key psych.RefKey) string {
	h := fnv.New32a()
	h.Write([]byte(key.Tenant + "\x00" + key.Name))
	return refCursor + strconv.FormatUint(uint64(h.Sum32()%shards), 10)
}

func decodeRef(it item) (psych.Ref, error) {
	if what := newer(it); what != "" {
		return psych.Ref{}, fmt.Errorf("ref %.80q was written by a newer release (%s): upgrade this worker", getStr(it, sk), what)
	}
	var r psych.Ref
	copy(r.Doc[:], getBin(it, "d"))
	r.Seq, _ = getNum(it, "n")
	if u, ok := getNum(it, "u"); ok {
		r.After = fromMicros(u)
	}
	return r, nil
}

// GetRefs implements [psych.Refs].
func (s *Store) GetRefs(ctx context.Context, tenant string, names []string) (map[string]psych.Ref, error) {
	err := s.checkTenant(ctx, tenant)
	keys := make([]item, 0, len(names))
	for _, name := range names {
		err = errors.Join(err, psych.RefKey{Tenant: tenant, Name: name}.Check())
		keys = append(keys, keyOf(refPart(tenant), name))
	}
	refs := make(map[string]psych.Ref, len(names))
	if err == nil {
		err = s.getAll(ctx, keys, func(it item) (err error) {
			refs[getStr(it, sk)], err = decodeRef(it)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("dynamo: get refs %q: %w", tenant, err)
	}
	return refs, nil
}

// SwapRef implements [psych.Refs].
func (s *Store) SwapRef(ctx context.Context, tenant, name string, old, next psych.Ref) error {
	key := psych.RefKey{Tenant: tenant, Name: name}
	if err := s.swapRef(ctx, key, old, next); err != nil {
		return wrap("swap ref", key, err)
	}
	return nil
}

func (s *Store) swapRef(ctx context.Context, key psych.RefKey, old, next psych.Ref) error {
	if err := errors.Join(s.usable(ctx), key.Check(), next.CheckSwap(old)); err != nil {
		return err
	}
	it := keyOf(refPart(key.Tenant), key.Name)
	it["v"] = num(formatVersion)
	it["d"] = bin(next.Doc[:])
	it["n"] = num(next.Seq)
	if !next.After.IsZero() {
		it["g"], it["u"] = str(refShard(key)), num(micros(next.After))
	}
	condition, values := "attribute_not_exists("+pk+")", item(nil)
	if old.Seq > 0 {
		condition, values = "n = :n AND d = :d AND v = :v", item{":n": num(old.Seq), ":d": bin(old.Doc[:]), ":v": num(formatVersion)}
		if old.After.IsZero() {
			condition += " AND attribute_not_exists(u)"
		} else {
			condition += " AND u = :u"
			values[":u"] = num(micros(old.After))
		}
	}
	is, err := s.put(ctx, it, condition, values)
	if err != errCondition {
		return err
	}
	var current psych.Ref
	if is != nil {
		if current, err = decodeRef(is); err != nil {
			return err
		}
	}
	if current.Equal(next) {
		return nil // the answer was lost
	}
	return fmt.Errorf("seq %d was named, the current one is %d: %w", old.Seq, current.Seq, psych.ErrConflict)
}

// DueRefs implements [psych.Index].
func (s *Store) DueRefs(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RefKey, string, error) {
	keys, next, err := s.dueRefs(ctx, now, cursor, limit)
	if err != nil {
		return nil, "", fmt.Errorf("dynamo: due refs: %w", err)
	}
	return keys, next, nil
}

func (s *Store) dueRefs(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RefKey, string, error) {
	if err := s.usable(ctx); err != nil {
		return nil, "", err
	}
	if err := psych.CheckLimit(limit); err != nil {
		return nil, "", err
	}
	listed, next, err := s.due(ctx, refCursor, now, cursor, limit)
	if err != nil {
		return nil, "", err
	}
	var keys []psych.RefKey
	err = s.getAll(ctx, listed, func(it item) error {
		tenant, ok := strings.CutPrefix(getStr(it, pk), refPart(""))
		if u, due := getNum(it, "u"); ok && due && u <= micros(now) {
			keys = append(keys, psych.RefKey{Tenant: tenant, Name: getStr(it, sk)})
		}
		return nil
	})
	return keys, next, err
}
