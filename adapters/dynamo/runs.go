package dynamo

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// shards is how many partitions the index "due" is spread over, since all
// headers are written to it. It is part of the format: an item keeps its shard.
const shards = 8

// shard is the partition of the index "due" that a Run is listed in.
func shard(key psych.RunKey) string {
	n, err := strconv.ParseUint(key.RunID[:2], 16, 8) // an id is random, or a hash
	if err != nil {
		n = 0 // Check refuses such an id before
	}
	return "d" + strconv.FormatUint(n%shards, 10)
}

// A header is a Run's header and what only the adapter knows of it.
type header struct {
	psych.RunInfo
	token string // of the claim of the current epoch
	index int64  // the key in the index "due", never later than what is due first
	due   bool   // it is in that index
	nonce []byte // of the last Defer
}

// isDue is whether the sweep should look at the Run.
func (h *header) isDue(now time.Time) bool {
	return passed(h.DueAt, now) || h.Owner != "" && passed(h.Until, now) || passed(h.ExpiresAt, now)
}

// passed reports whether t is a time and not after now.
func passed(t, now time.Time) bool { return !t.IsZero() && !t.After(now) }

func encodeHeader(info psych.RunInfo) (item, error) {
	it := keyOf(runPart(info.Key), headerKey)
	it["v"] = num(formatVersion)
	it["g"] = str(shard(info.Key))
	it["o"] = str(info.Key.Tenant)
	it["c"] = num(micros(info.CreatedAt))
	it["ve"] = bin(info.Version[:])
	it["rq"] = bin(info.Request[:])
	if len(info.Scope.Labels) > 0 {
		labels, err := json.Marshal(info.Scope.Labels)
		if err != nil {
			return nil, err
		}
		it["lb"] = str(string(labels))
	}
	for name, s := range map[string]string{"pr": info.Scope.Principal, "ic": info.Incarnation, "st": info.Status, "ow": info.Owner} {
		if s != "" {
			it[name] = str(s)
		}
	}
	held := info.Until
	if info.Owner == "" {
		held = time.Time{}
	}
	for name, t := range map[string]time.Time{"ex": info.ExpiresAt, "un": held, "du": info.DueAt, "u": earliest(info.DueAt, info.ExpiresAt, held)} {
		if !t.IsZero() {
			it[name] = num(micros(t))
		}
	}
	for name, n := range map[string]int64{"ep": info.Epoch, "po": info.Posted} {
		if n != 0 {
			it[name] = num(n)
		}
	}
	if n := size(it); n > maxItem {
		return nil, fmt.Errorf("a header of %d bytes, the most is %d: its labels are too long: %w", n, maxItem, psych.ErrTooLarge)
	}
	return it, nil
}

// decodeLive reads a header. ErrNotFound for no item and for a tombstone.
func decodeLive(key psych.RunKey, it item) (*header, error) {
	if it == nil || it["tb"] != nil {
		return nil, psych.ErrNotFound
	}
	if what := newer(it); what != "" {
		return nil, &psych.UnsupportedError{Run: key, What: what}
	}
	h := &header{
		RunInfo: psych.RunInfo{
			Key:         key,
			Scope:       psych.Scope{Tenant: key.Tenant, Principal: getStr(it, "pr")},
			Incarnation: getStr(it, "ic"),
			Status:      getStr(it, "st"),
			Owner:       getStr(it, "ow"),
		},
		token: string(getBin(it, "ct")),
		nonce: getBin(it, "dn"),
	}
	if labels := getStr(it, "lb"); labels != "" {
		if err := json.Unmarshal([]byte(labels), &h.Scope.Labels); err != nil {
			return nil, fmt.Errorf("labels of the header: %w", err)
		}
	}
	if copy(h.Version[:], getBin(it, "ve")) != len(h.Version) || copy(h.Request[:], getBin(it, "rq")) != len(h.Request) {
		return nil, errors.New("the header has no Version or no Request")
	}
	for name, t := range map[string]*time.Time{"c": &h.CreatedAt, "ex": &h.ExpiresAt, "un": &h.Until, "du": &h.DueAt} {
		if n, ok := getNum(it, name); ok {
			*t = fromMicros(n)
		}
	}
	h.Epoch, _ = getNum(it, "ep")
	h.Posted, _ = getNum(it, "po")
	h.index, h.due = getNum(it, "u")
	return h, nil
}

// live is the condition for a header that this release can change.
const live = "attribute_exists(rq) AND v = :v"

// header reads a header, consistently.
func (s *Store) header(ctx context.Context, key psych.RunKey) (*header, error) {
	it, err := s.getItem(ctx, keyOf(runPart(key), headerKey))
	if err != nil {
		return nil, err
	}
	return decodeLive(key, it)
}

// change updates a live header if condition holds. If not, it returns the
// header that is there with errCondition.
func (s *Store) change(ctx context.Context, key psych.RunKey, expression, condition string, values item) (*header, error) {
	values[":v"] = num(formatVersion)
	it, err := s.update(ctx, keyOf(runPart(key), headerKey), expression, live+condition, values)
	if err != nil && err != errCondition {
		return nil, err
	}
	h, bad := decodeLive(key, it)
	if bad != nil {
		return nil, bad
	}
	return h, err
}

// CreateRun implements [psych.Runs].
func (s *Store) CreateRun(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error) {
	got, created, err := s.createRun(ctx, info)
	if err != nil {
		return psych.RunInfo{}, false, wrap("create", info.Key, err)
	}
	return got, created, nil
}

func (s *Store) createRun(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error) {
	if err := s.check(ctx, info.Key); err != nil {
		return psych.RunInfo{}, false, err
	}
	it, err := encodeHeader(info)
	if err != nil {
		return psych.RunInfo{}, false, err
	}
	// A tombstone that may expire is as good as none.
	old, err := s.put(ctx, it, "attribute_not_exists("+pk+") OR attribute_exists(e)", nil)
	if err == nil {
		old = it
	} else if err != errCondition {
		return psych.RunInfo{}, false, err
	}
	h, bad := decodeLive(info.Key, old)
	switch {
	case bad != nil:
		return psych.RunInfo{}, false, bad
	case err == nil:
		return h.RunInfo, true, nil
	case h.Request != info.Request:
		return psych.RunInfo{}, false, fmt.Errorf("it exists for another request: %w", psych.ErrConflict)
	}
	// The incarnation is random: if it is the same, the answer to this very
	// creation was lost, and the SDK repeated it.
	return h.RunInfo, info.Incarnation != "" && h.Incarnation == info.Incarnation, nil
}

// GetRun implements [psych.Runs].
func (s *Store) GetRun(ctx context.Context, key psych.RunKey) (psych.RunInfo, error) {
	err := s.check(ctx, key)
	var h *header
	if err == nil {
		h, err = s.header(ctx, key)
	}
	if err != nil {
		return psych.RunInfo{}, wrap("get", key, err)
	}
	return h.RunInfo, nil
}

// Claim implements [psych.Runs].
func (s *Store) Claim(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
	l, err := s.claim(ctx, key, owner, token, now, ttl)
	if err != nil {
		return psych.Lease{}, wrap("claim", key, err)
	}
	return l, nil
}

func (s *Store) claim(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
	if err := errors.Join(s.check(ctx, key), psych.CheckClaim(owner, token, ttl)); err != nil {
		return psych.Lease{}, err
	}
	until := micro(now.Add(ttl))
	values := func() item {
		return item{":ow": str(owner), ":ct": bin([]byte(token)), ":now": num(micros(now)), ":until": num(micros(until)), ":one": num(1)}
	}
	// With the token of the current epoch it is that claim, also if it expired.
	const free = " AND (attribute_not_exists(ow) OR un <= :now) AND (attribute_not_exists(ct) OR ct <> :ct)"
	// The key in the index is left where it is, if the lease does not expire
	// before it: mostly the Run is due, and moving the key costs as much again.
	index, guard := "if_not_exists(u, :until)", " AND (attribute_not_exists(u) OR u <= :until)"
	for range races {
		h, err := s.change(ctx, key, "SET ow = :ow, ct = :ct, un = :until, u = "+index+" ADD ep :one", free+guard, values())
		if err == nil || err == errCondition && h.token == token {
			return psych.Lease{Key: key, Epoch: h.Epoch, Until: h.Until, Posted: h.Posted, Info: h.RunInfo}, nil
		}
		if err != errCondition {
			return psych.Lease{}, err
		}
		if h.Owner != "" && h.Until.After(now) {
			return psych.Lease{}, fmt.Errorf("%q holds it until %v: %w", h.Owner, h.Until, psych.ErrLeaseHeld)
		}
		if h.due && h.index > micros(until) {
			index, guard = ":until", " AND u > :until"
		} else {
			index, guard = "if_not_exists(u, :until)", " AND (attribute_not_exists(u) OR u <= :until)"
		}
	}
	return psych.Lease{}, errRaces
}

// Renew implements [psych.Runs]. It leaves the key in the index "due" where it
// is: a sweep that comes by it reads that the lease holds.
func (s *Store) Renew(ctx context.Context, l psych.Lease, now time.Time, ttl time.Duration) (psych.Lease, error) {
	r, err := s.renew(ctx, l, now, ttl)
	if err != nil {
		return psych.Lease{}, wrap("renew", l.Key, err)
	}
	return r, nil
}

func (s *Store) renew(ctx context.Context, l psych.Lease, now time.Time, ttl time.Duration) (psych.Lease, error) {
	if err := errors.Join(s.check(ctx, l.Key), psych.CheckTTL(ttl)); err != nil {
		return psych.Lease{}, err
	}
	until := micro(now.Add(ttl))
	for range races {
		h, err := s.change(ctx, l.Key, "SET un = :until", " AND ep = :ep AND attribute_exists(ow) AND un < :until",
			item{":ep": num(l.Epoch), ":until": num(micros(until))})
		if err != nil && err != errCondition {
			return psych.Lease{}, err
		}
		if h.Epoch != l.Epoch || h.Owner == "" {
			return psych.Lease{}, fmt.Errorf("epoch %d: the current one is %d, held by %q: %w", l.Epoch, h.Epoch, h.Owner, psych.ErrLeaseLost)
		}
		if err == nil || !h.Until.Before(until) {
			l.Until, l.Posted = h.Until, h.Posted
			l.Info.Scope.Labels = maps.Clone(l.Info.Scope.Labels)
			return l, nil
		}
	}
	return psych.Lease{}, errRaces
}

// setTimes makes the part of an update that sets DueAt and the key in the index
// "due", which leaves it where there is nothing to be due.
func setTimes(due, index time.Time, values item) (set, remove string) {
	for name, t := range map[string]time.Time{"du": due, "u": index} {
		if t.IsZero() {
			remove += ", " + name
		} else {
			set += ", " + name + " = :" + name
			values[":"+name] = num(micros(t))
		}
	}
	return set, remove
}

// Release implements [psych.Runs].
func (s *Store) Release(ctx context.Context, l psych.Lease, dueAt time.Time, status string) error {
	if err := s.release(ctx, l, dueAt, status); err != nil {
		return wrap("release", l.Key, err)
	}
	return nil
}

func (s *Store) release(ctx context.Context, l psych.Lease, dueAt time.Time, status string) error {
	if err := s.check(ctx, l.Key); err != nil {
		return err
	}
	expires := l.Info.ExpiresAt
	if l.Info.Key != l.Key {
		h, err := s.header(ctx, l.Key) // a lease that is not as Claim returned it
		if err != nil {
			return err
		}
		expires = h.ExpiresAt
	}
	for range races {
		values := item{":ep": num(l.Epoch), ":po": num(l.Posted)}
		set, remove := setTimes(dueAt, earliest(dueAt, expires), values)
		remove = "ow, un, ct" + remove
		if status != "" {
			set += ", st = :st"
			values[":st"] = str(status)
		} else {
			remove += ", st"
		}
		expression := "REMOVE " + remove
		if set != "" {
			expression = "SET " + set[2:] + " " + expression
		}
		posted := " AND po = :po"
		if l.Posted == 0 {
			posted = " AND (attribute_not_exists(po) OR po = :po)"
		}
		h, err := s.change(ctx, l.Key, expression, " AND ep = :ep AND attribute_exists(ow)"+posted, values)
		switch {
		case err == nil:
			return nil
		case err != errCondition:
			return err
		case h.Epoch != l.Epoch:
			return fmt.Errorf("epoch %d: the current one is %d: %w", l.Epoch, h.Epoch, psych.ErrLeaseLost)
		case h.Owner == "":
			return nil
		case h.Posted != l.Posted:
			return fmt.Errorf("%d posts since the last look: %w", h.Posted-l.Posted, psych.ErrConflict)
		}
	}
	return errRaces
}

// Defer implements [psych.Runs].
func (s *Store) Defer(ctx context.Context, info psych.RunInfo, now, to time.Time) error {
	if err := s.deferTo(ctx, info, now, to); err != nil {
		return wrap("defer", info.Key, err)
	}
	return nil
}

func (s *Store) deferTo(ctx context.Context, info psych.RunInfo, now, to time.Time) error {
	if err := s.check(ctx, info.Key); err != nil {
		return err
	}
	if !to.After(now) {
		return fmt.Errorf("to %v: want a time after %v: %w", to, now, psych.ErrInvalid)
	}
	info.DueAt, info.Until, to = micro(info.DueAt), micro(info.Until), micro(to)
	expired := info.Owner != "" && !info.Until.After(now)
	if !expired && !passed(info.DueAt, now) {
		if _, err := s.header(ctx, info.Key); err != nil {
			return err
		}
		return fmt.Errorf("neither due nor with an expired lease at %v: %w", now, psych.ErrConflict)
	}
	// By the nonce a Defer whose answer was lost, and that the SDK repeated,
	// knows itself.
	nonce := make([]byte, 8)
	rand.Read(nonce) // never fails
	values := item{":to": num(micros(to)), ":dn": bin(nonce)}
	condition := ""
	same := func(name string, is bool, value func() item) {
		if is {
			condition += " AND " + name + " = :" + name
			values[":"+name] = value()["x"]
		} else {
			condition += " AND attribute_not_exists(" + name + ")"
		}
	}
	same("ep", info.Epoch != 0, func() item { return item{"x": num(info.Epoch)} })
	same("po", info.Posted != 0, func() item { return item{"x": num(info.Posted)} })
	same("ow", info.Owner != "", func() item { return item{"x": str(info.Owner)} })
	same("un", info.Owner != "", func() item { return item{"x": num(micros(info.Until))} })
	same("du", !info.DueAt.IsZero(), func() item { return item{"x": num(micros(info.DueAt))} })
	expression := "SET du = :to, u = :u, dn = :dn"
	if expired || info.Owner == "" {
		values[":u"] = num(micros(earliest(to, info.ExpiresAt)))
	} else {
		values[":u"] = num(micros(earliest(to, info.ExpiresAt, info.Until)))
	}
	if expired {
		expression += " REMOVE ow, un, ct"
	}
	h, err := s.change(ctx, info.Key, expression, condition, values)
	if err == errCondition && !bytes.Equal(h.nonce, nonce) {
		return fmt.Errorf("the header has changed: %w", psych.ErrConflict)
	}
	if err == errCondition {
		return nil
	}
	return err
}
