package psych_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/psych"
)

// A simStore is the store of a simulation as a process sees it.
type simStore struct {
	*memory.Store
	s *sim
}

var _ psych.Store = (*simStore)(nil)

func (p *simStore) Append(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
	return simCall(ctx, p.s, "Append", key, true, func(ctx context.Context) (psych.Pos, error) {
		return p.Store.Append(ctx, key, after, b)
	})
}

func (p *simStore) Read(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
	return simCall(ctx, p.s, "Read", key, false, func(ctx context.Context) (psych.Page, error) {
		return p.Store.Read(ctx, key, after, limit)
	})
}

func (p *simStore) CreateRun(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error) {
	type answer struct {
		info    psych.RunInfo
		created bool
	}
	v, err := simCall(ctx, p.s, "CreateRun", info.Key, true, func(ctx context.Context) (answer, error) {
		i, created, err := p.Store.CreateRun(ctx, info)
		return answer{i, created}, err
	})
	return v.info, v.created, err
}

func (p *simStore) GetRun(ctx context.Context, key psych.RunKey) (psych.RunInfo, error) {
	return simCall(ctx, p.s, "GetRun", key, false, func(ctx context.Context) (psych.RunInfo, error) {
		return p.Store.GetRun(ctx, key)
	})
}

// Post puts the note, and only later comes to the header: in between the note
// is seen by those who look, and nobody is told of it.
func (p *simStore) Post(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
	a := simActorOf(ctx)
	if p.s.has("split") && a.rng.IntN(2) == 0 {
		_, err := simCall(ctx, p.s, "Post: note", key, false, func(ctx context.Context) (struct{}, error) {
			if _, err := p.Store.GetRun(ctx, key); err != nil {
				return struct{}{}, err
			}
			l := p.s.know(key)
			p.s.mu.Lock()
			defer p.s.mu.Unlock()
			n.Time = n.Time.Truncate(time.Microsecond)
			if !slices.ContainsFunc(l.early, func(o psych.Note) bool { return o.ID == n.ID }) {
				l.early = append(l.early, n)
			}
			return struct{}{}, nil
		})
		if err != nil {
			return err
		}
	}
	_, err := simCall(ctx, p.s, "Post "+n.ID, key, true, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, p.Store.Post(ctx, key, n, due)
	})
	return err
}

func (p *simStore) Pending(ctx context.Context, key psych.RunKey) ([]psych.Note, error) {
	return simCall(ctx, p.s, "Pending", key, false, func(ctx context.Context) ([]psych.Note, error) {
		notes, err := p.Store.Pending(ctx, key)
		if err != nil {
			return nil, err
		}
		l := p.s.know(key)
		p.s.mu.Lock()
		defer p.s.mu.Unlock()
		for _, n := range l.early {
			if !slices.ContainsFunc(notes, func(o psych.Note) bool { return o.ID == n.ID }) {
				notes = append(notes, n)
			}
		}
		slices.SortFunc(notes, func(a, b psych.Note) int {
			if c := a.Time.Compare(b.Time); c != 0 {
				return c
			}
			return slices.Compare([]byte(a.ID), []byte(b.ID))
		})
		return notes, nil
	})
}

func (p *simStore) Settle(ctx context.Context, key psych.RunKey, notes []psych.Note) error {
	_, err := simCall(ctx, p.s, fmt.Sprintf("Settle %d", len(notes)), key, true, func(ctx context.Context) (struct{}, error) {
		l := p.s.know(key)
		p.s.mu.Lock()
		l.early = slices.DeleteFunc(l.early, func(o psych.Note) bool {
			return slices.ContainsFunc(notes, func(n psych.Note) bool { return n.ID == o.ID && n.Time.Equal(o.Time) })
		})
		p.s.mu.Unlock()
		return struct{}{}, p.Store.Settle(ctx, key, notes)
	})
	return err
}

func (p *simStore) Claim(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
	l, err := simCall(ctx, p.s, "Claim", key, true, func(ctx context.Context) (psych.Lease, error) {
		return p.Store.Claim(ctx, key, owner, token, now, ttl)
	})
	if a := simActorOf(ctx); a != nil {
		if _, ok := a.first[token]; !ok {
			a.first[token] = now
		}
		if err == nil {
			a.counted(l.Epoch, a.first[token].Add(ttl))
		}
	}
	return l, err
}

func (p *simStore) Renew(ctx context.Context, l psych.Lease, now time.Time, ttl time.Duration) (psych.Lease, error) {
	n, err := simCall(ctx, p.s, "Renew", l.Key, true, func(ctx context.Context) (psych.Lease, error) {
		return p.Store.Renew(ctx, l, now, ttl)
	})
	if a := simActorOf(ctx); a != nil && err == nil {
		a.counted(n.Epoch, now.Add(ttl))
	}
	return n, err
}

// counted notes until when an actor may believe in its lease.
func (a *simActor) counted(epoch int64, end time.Time) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	if a.epoch != epoch { // tools read it: it is written once
		a.epoch = epoch
	}
	if end.After(a.end) {
		a.end = end
	}
}

func (p *simStore) Release(ctx context.Context, l psych.Lease, dueAt time.Time, status string) error {
	_, err := simCall(ctx, p.s, "Release", l.Key, true, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, p.Store.Release(ctx, l, dueAt, status)
	})
	return err
}

func (p *simStore) Defer(ctx context.Context, info psych.RunInfo, now, to time.Time) error {
	_, err := simCall(ctx, p.s, "Defer", info.Key, true, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, p.Store.Defer(ctx, info, now, to)
	})
	return err
}

func (p *simStore) DeleteRun(ctx context.Context, key psych.RunKey, now time.Time) error {
	_, err := simCall(ctx, p.s, "DeleteRun", key, true, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, p.Store.DeleteRun(ctx, key, now)
	})
	return err
}

func (p *simStore) PurgeRun(ctx context.Context, key psych.RunKey, now time.Time) error {
	_, err := simCall(ctx, p.s, "PurgeRun", key, true, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, p.Store.PurgeRun(ctx, key, now)
	})
	return err
}

// Due is an index that lags: it says what was.
func (p *simStore) Due(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
	keys, err := simCall(ctx, p.s, "Due", psych.RunKey{}, false, func(context.Context) ([]psych.RunKey, error) {
		p.s.mu.Lock()
		defer p.s.mu.Unlock()
		var keys []psych.RunKey
		for _, key := range p.s.keys {
			var was psych.RunInfo
			for _, h := range p.s.ledgers[key].headers {
				if !h.at.After(time.Now().Add(-p.s.lag)) {
					was = h.info
				}
			}
			if !was.DueAt.IsZero() && !was.DueAt.After(now) || was.Owner != "" && !was.Until.After(now) {
				keys = append(keys, key)
			}
		}
		return keys, nil
	})
	return keys, "", err
}
