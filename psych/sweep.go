package psych

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Sweep constants.
const (
	sweepPage  = 100
	sweepAgain = 2 * time.Minute // after which a Run whose wake was lost is woken again
	sweepLeft  = 5 * time.Second // of the context, for what is under way
)

// Sweep goes once over what is due, from cursor, until the deadline of ctx is
// near; it returns where to go on, "" at the end. It wakes Runs that want
// attention and those whose worker died, pushing their due time forward before
// it does, so that a backlog doesn't multiply; deletes Runs whose retention has
// passed; purges what late writers left of deleted ones; and, with a Connector,
// reads the catalogues of servers anew whose time is over. It believes headers
// and refs, not the index. What can't be dealt with is in err, and the others
// are dealt with all the same. A cursor that Sweep did not return is ErrInvalid.
//
// Call it on a schedule: it is what finds a Run whose wake was lost.
func (r *Runtime) Sweep(ctx context.Context, cursor string) (woken int, next string, err error) {
	if r.o.Waker == nil {
		return 0, cursor, fmt.Errorf("psych: Sweep wants Options.Waker: %w", ErrInvalid)
	}
	const runs, refs = "runs:", "refs:"
	if cursor == "" {
		cursor = runs
	}
	at, isRuns := strings.CutPrefix(cursor, runs)
	if !isRuns {
		var ok bool
		if at, ok = strings.CutPrefix(cursor, refs); !ok {
			return 0, cursor, fmt.Errorf("psych: sweep cursor %.80q: want one that Sweep returned: %w", cursor, ErrInvalid)
		}
	}
	deadline, limited := ctx.Deadline()
	var errs []error
	note := func(err error) {
		if len(errs) < 10 && err != nil {
			errs = append(errs, err)
		}
	}
	for {
		var n int
		var err error
		if isRuns {
			n, at, err = r.sweepRuns(ctx, at, note)
		} else {
			at, err = r.sweepCatalogs(ctx, at, note)
		}
		if err != nil {
			return woken, cursor, errors.Join(append(errs, fmt.Errorf("psych: sweep: %w", err))...)
		}
		woken += n
		switch {
		case at == "" && isRuns && r.o.Connector != nil:
			isRuns, cursor = false, refs
		case at == "":
			cursor = ""
		case isRuns:
			cursor = runs + at
		default:
			cursor = refs + at
		}
		if cursor == "" || ctx.Err() != nil || limited && time.Until(deadline) < sweepLeft {
			return woken, cursor, errors.Join(append(errs, ctx.Err())...)
		}
	}
}

// sweepRuns deals with a page of Runs.
func (r *Runtime) sweepRuns(ctx context.Context, cursor string, note func(error)) (woken int, next string, err error) {
	keys, next, err := r.store.Due(ctx, r.now(), cursor, sweepPage)
	if err != nil {
		return 0, "", err
	}
	var wake []RunKey
	for _, key := range keys {
		due, err := r.sweepRun(ctx, key)
		if err != nil {
			r.log.WarnContext(ctx, "sweep", "run", key.RunID, "tenant", key.Tenant, "err", err)
			note(err)
		}
		if due {
			wake = append(wake, key)
		}
	}
	if len(wake) == 0 {
		return 0, next, nil
	}
	if err := r.o.Waker.Wake(ctx, wake...); err != nil {
		note(fmt.Errorf("psych: sweep: %w", err))
		return 0, next, nil
	}
	return len(wake), next, nil
}

// sweepCatalogs reads a page of catalogues anew, a few at a time: one server
// that hangs holds up no other.
func (r *Runtime) sweepCatalogs(ctx context.Context, cursor string, note func(error)) (next string, err error) {
	keys, next, err := r.store.DueRefs(ctx, r.now(), cursor, sweepPage)
	if err != nil {
		return "", err
	}
	var mu sync.Mutex
	deadline, limited := ctx.Deadline()
	err = inParallel(ctx, len(keys), func(ctx context.Context, i int) error {
		if limited && time.Until(deadline) < sweepLeft {
			return nil // it stays due
		}
		if err := r.sweepCatalog(ctx, keys[i]); err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "sweep", "ref", keys[i].Name, "tenant", keys[i].Tenant, "err", err)
			mu.Lock()
			defer mu.Unlock()
			note(err)
		}
		return ctx.Err()
	})
	return next, err
}

// sweepCatalog reads a catalogue anew that the index says is due. One that
// can't be read is tried again later, and later each time, but not for ever; one
// of a credential that is another now never.
func (r *Runtime) sweepCatalog(ctx context.Context, ref RefKey) error {
	due, err := r.catalogs.due(ctx, ref)
	if err != nil || due == nil {
		return err
	}
	_, key, err := r.refresh(ctx, due.scope, &due.connection, false)
	switch {
	case err == nil && key != due.key:
		return r.catalogs.retire(ctx, due.key)
	case err != nil && ctx.Err() == nil:
		ends, perr := r.catalogs.postpone(ctx, due.key)
		if ends && perr == nil {
			err = fmt.Errorf("%w; the sweep asks it no more, until a run uses it", err)
		}
		return errors.Join(err, perr)
	}
	return err
}

// sweepRun deals with a Run that the index says is due, and reports whether it
// is to be woken.
func (r *Runtime) sweepRun(ctx context.Context, key RunKey) (wake bool, err error) {
	now := r.now()
	info, err := r.store.GetRun(ctx, key)
	switch {
	case errors.Is(err, ErrNotFound): // a tombstone: blobs first, as its end lets all be forgotten
		if err := r.deleteBlobs(ctx, key); err != nil {
			return false, err
		}
		if err := r.store.PurgeRun(ctx, key, now); err != nil && !errors.Is(err, ErrNotFound) {
			return false, fmt.Errorf("psych: purge run %s: %w", key, err)
		}
		return false, nil
	case err != nil:
		return false, fmt.Errorf("psych: sweep run %s: %w", key, err)
	case !info.ExpiresAt.IsZero() && !info.ExpiresAt.After(now):
		return false, r.Delete(ctx, key)
	case info.Owner != "" && info.Until.After(now):
		return false, nil // somebody drives it
	case info.Owner == "" && (info.DueAt.IsZero() || info.DueAt.After(now)):
		return false, nil // the index lags
	}
	err = r.store.Defer(ctx, info, now, now.Add(sweepAgain))
	if errors.Is(err, ErrConflict) || errors.Is(err, ErrNotFound) {
		return false, nil // it changed meanwhile: whoever changed it wakes it
	}
	if err != nil && certain(err) {
		return false, fmt.Errorf("psych: sweep run %s: %w", key, err)
	}
	return true, nil // also where the outcome is unknown: a wake too many costs a read
}

// Delete removes a Run: its log, inbox and header, of which a tombstone stays
// for at least TombstoneLife, then its blobs. A driver that is at work on it
// fails at its next write. Deleting a Run that is not there is no error. If
// Delete fails, call it again.
func (r *Runtime) Delete(ctx context.Context, key RunKey) error {
	if err := key.Check(); err != nil {
		return err
	}
	now := r.now()
	r.warm.take(key, "")
	if err := repeat(ctx, func() error { return r.store.DeleteRun(ctx, key, now) }); err != nil {
		return fmt.Errorf("psych: delete run %s: %w", key, err)
	}
	return r.deleteBlobs(ctx, key)
}

func (r *Runtime) deleteBlobs(ctx context.Context, key RunKey) error {
	if r.o.Blobs == nil {
		return nil
	}
	if err := repeat(ctx, func() error { return r.o.Blobs.DeleteRun(ctx, key) }); err != nil {
		return fmt.Errorf("psych: delete the blobs of run %s: %w", key, err)
	}
	return nil
}
