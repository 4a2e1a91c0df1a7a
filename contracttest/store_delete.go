package contracttest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// tombstoneRules are the rules of DeleteRun and PurgeRun.
func tombstoneRules() []Rule[psych.Store] {
	return []Rule[psych.Store]{
		storeRule("DeleteRunHides", "Under a tombstone every method but Append, Settle, DeleteRun and PurgeRun answers ErrNotFound.", func(w *world) {
			info, l := w.full(w.header(w.key()))
			w.delete(info.Key, w.now)
			w.hidden(info, l, "after DeleteRun")
			w.ok(w.Settle(w.ctx, info.Key, []psych.Note{w.note("m0", w.now)}), "Settle under a tombstone")
			w.purge(info.Key, w.now)
			w.delete(info.Key, w.now)
		}),
		storeRule("DeleteRunAbsent", "DeleteRun leaves a tombstone also of a Run that was never there.", func(w *world) {
			info := w.header(w.key())
			info.DueAt = w.now
			w.delete(info.Key, w.now)
			w.hidden(info, psych.Lease{Key: info.Key, Epoch: 1}, "after DeleteRun of a Run that never was")
			w.eventually("the tombstone is in Due", func() bool { return w.isDue(w.now.Add(psych.MaxLease), info.Key) })
		}),
		storeRule("DeleteRunAppend", "Append writes under a tombstone too, where nobody reads.", func(w *world) {
			info, l := w.full(w.header(w.key()))
			w.delete(info.Key, w.now)
			_, bounds := w.log(info.Key, 2, 1)
			_, err := w.Append(w.ctx, info.Key, bounds[1], w.small(2, 1))
			w.is(err, psych.ErrConflict, "a stale Append under a tombstone")
			w.hidden(info, l, "after appends under the tombstone")
		}),
		storeRule("DeleteRunRemovesLog", "DeleteRun removes the log, however long: an append at the start finds it empty.", func(w *world) {
			key := w.run()
			w.log(key, ones(60)...)
			w.delete(key, w.now)
			w.append(key, psych.Pos{}, w.small(0, 2))
		}),
		storeRule("DeleteRunUnlisted", "A Run that was deleted leaves ListRuns.", func(w *world) {
			kept, gone := w.run(), w.run()
			w.eventually("both Runs are listed", func() bool { return len(w.list(w.tenant, 10)) == 2 })
			w.delete(gone, w.now)
			w.eventually("the other Run alone is listed", func() bool {
				runs := w.list(w.tenant, 10)
				return len(runs) == 1 && runs[0].Key == kept
			})
		}),
		storeRule("DeleteRunDue", "A tombstone is due MaxLease after the deletion, and not before, whatever was due in the Run.", func(w *world) {
			info := w.header(w.key())
			info.DueAt, info.ExpiresAt = w.now.Add(-time.Minute), w.now
			w.create(info)
			w.delete(info.Key, w.now)
			purge := w.now.Add(psych.MaxLease)
			w.eventually("the tombstone is not due before", func() bool { return !w.isDue(purge.Add(-time.Microsecond), info.Key) })
			w.eventually("the tombstone is due", func() bool { return w.isDue(purge, info.Key) })
		}),
		storeRule("DeleteRunAgain", "Deleting again keeps the tombstone's time.", func(w *world) {
			key := w.run()
			w.delete(key, w.now)
			w.delete(key, w.now.Add(10*time.Minute))
			purge := w.now.Add(psych.MaxLease)
			w.eventually("the tombstone is due MaxLease after the first deletion", func() bool { return w.isDue(purge, key) })
			w.purge(key, purge)
			w.delete(key, w.now.Add(24*time.Hour))
			w.eventually("the tombstone is due TombstoneLife after the first deletion", func() bool {
				return w.isDue(w.now.Add(psych.TombstoneLife), key)
			})
		}),
		storeRule("DeleteRunForever", "Nothing brings a Run back to life while its tombstone stands.", func(w *world) {
			info, l := w.full(w.header(w.key()))
			w.delete(info.Key, w.now)
			for _, now := range []time.Time{w.now, w.now.Add(time.Second), w.now.Add(psych.MaxLease), w.now.Add(psych.TombstoneLife - time.Microsecond)} {
				w.hidden(info, l, fmt.Sprintf("%v after DeleteRun", now.Sub(w.now)))
				_, err := w.Append(w.ctx, info.Key, psych.Pos{}, w.small(0, 1))
				w.check(err == nil || errors.Is(err, psych.ErrConflict), "Append under a tombstone: %v", err)
				w.ok(w.Settle(w.ctx, info.Key, []psych.Note{w.note("m0", w.now)}), "Settle under a tombstone")
				w.hidden(info, l, fmt.Sprintf("after Append and Settle, %v after DeleteRun", now.Sub(w.now)))
				w.purge(info.Key, now)
				w.hidden(info, l, fmt.Sprintf("after PurgeRun %v after DeleteRun", now.Sub(w.now)))
			}
		}),
		storeRule("DeleteRunAlone", "DeleteRun and PurgeRun touch no other Run, neither of the tenant nor of the same id.", func(w *world) {
			gone := w.run()
			others := []psych.RunKey{w.key(), w.keep(psych.RunKey{Tenant: w.f.Tenant(), RunID: gone.RunID}), w.keep(psych.RunKey{Tenant: gone.Tenant + "x", RunID: gone.RunID})}
			var infos []psych.RunInfo
			for _, key := range others {
				_, l := w.full(w.header(key))
				infos = append(infos, w.get(l.Key))
			}
			w.delete(gone, w.now)
			w.purge(gone, w.now.Add(psych.MaxLease))
			for _, info := range infos {
				w.unchanged(info, "after another Run was deleted")
				w.check(len(w.readAll(info.Key, psych.Pos{}, 10)) == 5 && len(w.pending(info.Key)) == 2, "log or inbox of another Run went with the one that was deleted")
			}
		}),
		storeRule("PurgeRunLive", "PurgeRun does nothing to a Run that lives, nor to one that never was.", func(w *world) {
			info, _ := w.full(w.header(w.key()))
			before := w.get(info.Key)
			absent := w.header(w.key())
			for _, now := range []time.Time{w.now, w.now.Add(psych.MaxLease), w.now.Add(psych.TombstoneLife)} {
				w.purge(info.Key, now)
				w.purge(absent.Key, now)
			}
			w.unchanged(before, "after PurgeRun of a Run that lives")
			w.check(len(w.readAll(info.Key, psych.Pos{}, 10)) == 5 && len(w.pending(info.Key)) == 2, "PurgeRun took log or inbox of a Run that lives")
			w.create(absent)
		}),
		storeRule("PurgeRunLeftovers", "PurgeRun removes what late writers left of a log, however much.", func(w *world) {
			key := w.run()
			w.log(key, 2)
			w.delete(key, w.now)
			w.log(key, ones(60)...)
			w.purge(key, w.now.Add(psych.MaxLease))
			w.log(key, 2)
			w.purge(key, w.now.Add(psych.MaxLease))
			w.append(key, psych.Pos{}, w.small(0, 3))
		}),
		storeRule("PurgeRunDue", "PurgeRun at MaxLease after the deletion moves the tombstone's due time to TombstoneLife after it.", func(w *world) {
			for _, late := range []time.Duration{0, 20 * 24 * time.Hour} {
				key := w.run()
				w.delete(key, w.now)
				purged, last := w.now.Add(psych.MaxLease+late), w.now.Add(psych.TombstoneLife)
				w.purge(key, purged)
				w.eventually("the tombstone that was purged is due no more", func() bool { return !w.isDue(last.Add(-time.Microsecond), key) })
				w.eventually("the tombstone is due for the last purge", func() bool { return w.isDue(last, key) })
				w.purge(key, purged.Add(time.Hour))
				w.eventually("a second purge leaves that time", func() bool { return w.isDue(last, key) })
				_, _, err := w.CreateRun(w.ctx, w.header(key))
				w.is(err, psych.ErrNotFound, "CreateRun after the first purge")
			}
		}),
		storeRule("PurgeRunLast", "After the last purge the tombstone is not due again; once it has expired, a new Run begins empty.", func(w *world) {
			info, _ := w.full(w.header(w.key()))
			w.delete(info.Key, w.now)
			w.log(info.Key, 2)
			last := w.now.Add(psych.TombstoneLife)
			w.purge(info.Key, w.now.Add(psych.MaxLease))
			w.purge(info.Key, last)
			w.eventually("the tombstone is due no more", func() bool { return !w.isDue(last.Add(psych.TombstoneLife), info.Key) })
			_, created, err := w.CreateRun(w.ctx, info)
			if errors.Is(err, psych.ErrNotFound) {
				return // it has not expired yet
			}
			w.ok(err, "CreateRun after the last purge")
			w.check(created, "CreateRun after the last purge found a Run")
			w.holds(info.Key, nil, "in the new Run")
			w.waits(info.Key, "in the new Run")
			w.unchanged(info, "in the new Run")
		}),
		needs(Reopening, storeRule("DeleteRunReopened", "A tombstone stands when the backend is opened anew.", func(w *world) {
			info, l := w.full(w.header(w.key()))
			w.delete(info.Key, w.now)
			w.reopen()
			w.hidden(info, l, "after reopening")
		})),
	}
}

// full creates a Run with a log of 5 entries, 2 notes and a lease, due at now.
func (w *world) full(info psych.RunInfo) (psych.RunInfo, psych.Lease) {
	w.create(info)
	w.log(info.Key, 2, 3)
	w.post(info.Key, w.note("m0", w.now), w.now)
	w.post(info.Key, w.note("m1", w.now), w.now)
	return info, w.claim(info.Key, w.now, time.Minute)
}

// hidden ends the rule unless every method that a tombstone hides the Run from
// answers ErrNotFound.
func (w *world) hidden(info psych.RunInfo, l psych.Lease, when string) {
	key := info.Key
	due := info
	due.DueAt, due.Epoch, due.Owner, due.Until, due.Posted = w.now, l.Epoch, l.Info.Owner, l.Until, l.Posted
	for _, c := range []struct {
		method string
		call   func(ctx context.Context) error
	}{
		{"GetRun", func(ctx context.Context) error { _, err := w.GetRun(ctx, key); return err }},
		{"Read", func(ctx context.Context) error { _, err := w.Read(ctx, key, psych.Pos{}, 10); return err }},
		{"Read behind the head", func(ctx context.Context) error { _, err := w.Read(ctx, key, psych.Pos{Seq: 50}, 10); return err }},
		{"Head", func(ctx context.Context) error { _, err := w.Head(ctx, key); return err }},
		{"CreateRun", func(ctx context.Context) error { _, _, err := w.CreateRun(ctx, info); return err }},
		{"CreateRun for another Request", func(ctx context.Context) error { _, _, err := w.CreateRun(ctx, w.header(key)); return err }},
		{"Post", func(ctx context.Context) error { return w.Post(ctx, key, w.note("late", w.now), w.now) }},
		{"Pending", func(ctx context.Context) error { _, err := w.Pending(ctx, key); return err }},
		{"Claim", func(ctx context.Context) error {
			_, err := w.Claim(ctx, key, "another", "token", w.now.Add(time.Hour), time.Minute)
			return err
		}},
		{"Renew", func(ctx context.Context) error { _, err := w.Renew(ctx, l, w.now, time.Minute); return err }},
		{"Release", func(ctx context.Context) error { return w.Release(ctx, l, w.now, psych.StatusOpen) }},
		{"Defer", func(ctx context.Context) error { return w.Defer(ctx, due, w.now, w.now.Add(time.Minute)) }},
	} {
		w.is(c.call(w.ctx), psych.ErrNotFound, "%s %s", c.method, when)
	}
}

// ones returns the sizes of n appends of one entry. Backends remove some 25 or
// 100 items a call.
func ones(n int) []int {
	sizes := make([]int, n)
	for i := range sizes {
		sizes[i] = 1
	}
	return sizes
}
