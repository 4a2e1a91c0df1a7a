package psych

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// codeNotDriven is that of an exchange which Fail closed.
const codeNotDriven = "not_driven"

// failTime is what Fail has to give the Run back when its time is over: within
// its context's deadline, or once its context was cancelled.
const failTime = defaultMargin

// Fail closes as failed the exchange that a wake was for, which was sent at a
// time and could not be delivered, however often it was tried: it is for the
// consumer of a dead-letter queue. So a client that waits learns of it, and the
// next message works. reason is for a person; the log keeps it.
//
// Fail claims the Run. It delivers what was posted at or before sent, and
// nothing later, settles what was left open, and closes the exchange, unless
// there was progress since sent (a message delivered, an answer of the model, a
// result): then the wake has done no harm, and Fail changes nothing. It gives
// the Run back with nothing due, or due at once where something is left to do,
// and wakes it then. Failing again with the same wake changes nothing.
//
// A Run that another worker holds is [ErrLeaseHeld]: try again later. One that
// is not there is [ErrNotFound]. Any other error leaves the Run to be driven, or
// failed, again.
//
// Fail returns within the deadline of ctx: five seconds before it, or halfway
// where less than ten are left, it stops, and gives the Run back in what is left.
// Where ctx is cancelled, it does so within five seconds, and within the deadline.
//
// sent and the times of notes and records come from the clocks of several
// machines. As far as these differ, Fail may take progress for what was before,
// or a note for what was posted later; that one is then driven as any other.
func (r *Runtime) Fail(ctx context.Context, key RunKey, sent time.Time, reason string) error {
	if err := errors.Join(ctx.Err(), key.Check()); err != nil {
		return err
	}
	whole, late := ctx, failTime
	end, limited := ctx.Deadline()
	if limited {
		late = min(late, time.Until(end)/2)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end.Add(-late))
		defer cancel()
	}
	info, err := r.store.GetRun(ctx, key)
	if err != nil {
		return fmt.Errorf("psych: fail run %s: %w", key, err)
	}
	switch {
	case info.Owner != "" && info.Until.After(r.now()):
		return fmt.Errorf("psych: fail run %s: %w", key, ErrLeaseHeld)
	case info.Owner == "" && info.DueAt.IsZero():
		return nil
	}
	f := &failing{sent: sent, reason: string(firstChars([]byte(strings.ToValidUTF8(reason, "\uFFFD")), 1000))}
	f.driver = driver{rt: r, key: key, nudge: make(chan struct{}, 1), o: DriveOptions{Margin: failTime}, log: r.log.With("run", key.RunID, "tenant", key.Tenant)}
	f.ctx, f.store = ctx, ctx
	// A claim would count as an attempt that got nowhere.
	if err := f.read(); err != nil {
		return r.lacks(ctx, key, err)
	}
	notes, err := r.store.Pending(ctx, key)
	if err != nil {
		return fmt.Errorf("psych: fail run %s: look into its inbox: %w", key, err)
	}
	if f.progress && f.left(notes) {
		return nil
	}
	switch held, err := f.claim(ctx); {
	case err != nil:
		return err
	case held:
		return fmt.Errorf("psych: fail run %s: %w", key, ErrLeaseHeld)
	}
	f.log = f.log.With("attempt", f.epoch)
	err = f.run()
	for errors.Is(err, errFence) { // a predecessor wrote last: read on, and make it anew
		f.pending, f.settling = nil, nil
		err = f.run()
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrConflict) && f.fenced {
		return fmt.Errorf("psych: fail run %s: another worker took over: %w", key, err)
	}
	if ctx.Err() != nil {
		// What is unwritten is written, and the lease given back, all the same.
		if limited {
			late = min(failTime, time.Until(end))
		}
		store, cancel := context.WithTimeout(context.WithoutCancel(whole), late)
		defer cancel()
		f.store = store
	}
	_, err = f.giveUp(r.lacks(f.store, key, err))
	return fmt.Errorf("psych: fail run %s: %w", key, err)
}

// A failing driver is an attempt that closes an exchange, and does nothing else.
type failing struct {
	driver
	sent     time.Time
	reason   string
	progress bool // since sent
}

// read folds the log, and sees whether there was progress.
func (f *failing) read() (err error) {
	f.rt.warm.take(f.key, "") // what is cached goes no further
	f.progress = false
	f.state, f.pos, err = foldLog(f.store, f.rt.store, f.rt.store, f.key, func(_ *state, rec *Record) {
		if rec.Time.After(f.sent) && isProgress(rec.Event) {
			f.progress = true
		}
	})
	return err
}

// isProgress reports whether an attempt that wrote e got somewhere: what the
// fold takes fruitless back to zero for, but for the end of an exchange.
func isProgress(e Event) bool {
	switch e := e.(type) {
	case *UserMessage, *ModelCallFinished:
		return true
	case *ToolCallFinished:
		return e.Outcome == Succeeded || e.Outcome == Failed
	}
	return false
}

// left reports whether there is something to drive: an open exchange, or a note
// that is not in the log.
func (f *failing) left(notes []Note) bool {
	if f.state.exchange != nil {
		return true
	}
	for _, n := range notes {
		if _, delivered := f.state.notes[n.noteKey()]; !delivered {
			return true
		}
	}
	return false
}

// run makes the attempt's records, writes them in one append where they fit,
// and releases the Run.
func (f *failing) run() error {
	if err := f.read(); err != nil {
		return err
	}
	if f.state.attempt >= f.epoch {
		return fmt.Errorf("psych: run %s: attempt %d is in the log: %w", f.key, f.state.attempt, ErrLeaseLost)
	}
	if err := f.look(); err != nil {
		return err
	}
	f.fenced = false
	if err := f.emit(&AttemptStarted{}); err != nil {
		return err
	}
	if f.state.admitted == nil {
		if err := f.emit(&RunAdmitted{Version: f.info.Version, Projection: projectionVersion}); err != nil {
			return err
		}
	}
	if f.state.calling {
		if err := f.emit(&ModelCallFailed{Turn: f.state.turn, Interrupted: true, Message: "the worker ended before the model answered"}); err != nil {
			return err
		}
	}
	if !f.progress {
		if err := f.fail(); err != nil {
			return err
		}
	}
	return f.release()
}

// fail settles, delivers and closes.
func (f *failing) fail() error {
	s := f.state
	if s.batchOpen() {
		for _, c := range s.batch.calls {
			if c.done == nil {
				if err := f.emit(settlement(c, "the worker ended")); err != nil {
					return err
				}
			}
		}
	}
	if s.exchange != nil && s.exchange.aborting { // its worker ended between the abort and the close
		if err := f.close(StatusAborted, "", s.exchange.reason); err != nil {
			return err
		}
	}
	var then, later []Note
	for _, n := range f.waiting {
		if n.Time.After(f.sent) {
			later = append(later, n)
		} else {
			then = append(then, n)
		}
	}
	f.waiting = then
	err := f.deliver()
	f.waiting = append(f.waiting, later...)
	if err != nil || s.exchange == nil {
		return err
	}
	return f.close(StatusFailed, codeNotDriven, f.reason)
}

// release gives the Run back: due at once while something is left.
func (f *failing) release() error {
	if err := f.flush(); err != nil {
		return err
	}
	for {
		due, now := time.Time{}, f.now()
		if f.left(f.waiting) {
			due = now
		}
		err := repeat(f.store, func() error { return f.rt.store.Release(f.store, f.looked, due, f.state.status) })
		switch {
		case err == nil:
			if f.rt.o.Waker != nil && !due.IsZero() {
				if err := f.rt.o.Waker.Wake(f.store, f.key); err != nil {
					f.log.WarnContext(f.ctx, "wake failed; the sweep finds the run", "err", err)
				}
			}
			return nil
		case !errors.Is(err, ErrConflict):
			if !certain(err) {
				err = fmt.Errorf("%w: %w", errUnsure, err)
			}
			return fmt.Errorf("psych: release run %s: %w", f.key, err)
		}
		// Somebody posted meanwhile.
		if err := f.renew(); err != nil {
			return err
		}
		if f.lease.Posted == f.looked.Posted {
			return fmt.Errorf("psych: release run %s: %w", f.key, ErrUnavailable) // the renewal failed
		}
		if err := f.look(); err != nil {
			return err
		}
		f.clean()
	}
}
