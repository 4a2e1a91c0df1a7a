package psych

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"
)

// DriveOptions of one Drive. Nil and the zero value work.
type DriveOptions struct {
	// Observe sees deltas as they come and records once they are durable, in
	// order, from the goroutine that called Drive. It must not block for long.
	Observe func(Observation)

	// Margin is left of the context's deadline for the release: tools and
	// models are cancelled that long before it. Zero: 5 s. When the context is
	// cancelled, what is still unwritten is written within it.
	Margin time.Duration

	// Floor is the least time, beside Margin, that a turn is begun with; less
	// hands the Run over. Zero: 15 s.
	Floor time.Duration
}

// An Observation is a Delta or a Record.
type Observation struct {
	Delta  *Delta
	Record *Record
}

// An Outcome says why Drive returned.
type Outcome int

// Outcomes of Drive.
const (
	Closed  Outcome = iota + 1 // the exchange is closed and no message waits
	Yielded                    // more to do, and too little time: drive it again
	Idle                       // nothing to do
	Held                       // another worker drives it
)

func (o Outcome) String() string {
	return [...]string{"none", "closed", "yielded", "idle", "held"}[o]
}

// Engine constants.
const (
	flushWindow    = 500 * time.Millisecond
	renewAgain     = time.Second // after a renewal of unknown outcome
	idleStream     = 60 * time.Second
	modelRetries   = 4
	maxFruitless   = 3
	maxSameFailure = 3
	maxRetryAfter  = 5 * time.Minute // that a provider is granted
	stopGrace      = 5 * time.Second // that a cancelled tool or model has to return
)

// Drive claims the Run and runs turns until its exchange closes, the time that
// ctx leaves is too short for another turn, or ctx ends; then it releases the
// lease and says which. It does not claim a Run with nothing due that nobody
// holds. It may be killed at any instruction: another Drive goes on.
//
// An exchange that fails is Closed without an error: the log says why. Closed
// with a *CorruptionError is an exchange that ended since the model asked for
// another Run's output. A Run that is not there is [ErrNotFound]; nothing else
// is. Any other error leaves the Run to be driven again; if the lease could not
// be released, when it expires.
//
// Tools and models whose context ended get a few seconds to return, and are
// then left behind: Drive joins only what heeds its context.
func (r *Runtime) Drive(ctx context.Context, key RunKey, o *DriveOptions) (Outcome, error) {
	if err := errors.Join(ctx.Err(), key.Check()); err != nil {
		return 0, err
	}
	if r.o.Models == nil {
		return 0, fmt.Errorf("psych: drive run %s: Options.Models is not set: %w", key, ErrInvalid)
	}
	info, err := r.store.GetRun(ctx, key)
	if err != nil {
		return 0, fmt.Errorf("psych: drive run %s: %w", key, err)
	}
	now := r.now()
	switch {
	case info.Owner != "" && info.Until.After(now):
		return Held, nil
	case info.Owner == "" && info.DueAt.IsZero():
		return Idle, nil
	}
	d := &driver{rt: r, key: key, nudge: make(chan struct{}, 1)}
	if o != nil {
		d.o = *o
	}
	if d.o.Margin <= 0 {
		d.o.Margin = defaultMargin
	}
	if d.o.Floor <= 0 {
		d.o.Floor = defaultFloor
	}
	switch held, err := d.claim(ctx); {
	case err != nil:
		return 0, err
	case held:
		return Held, nil
	}
	d.log = r.log.With("run", key.RunID, "tenant", key.Tenant, "attempt", d.epoch)
	return d.drive(ctx)
}

// A driver is one attempt: one pass over a Run under one lease epoch.
type driver struct {
	rt    *Runtime
	key   RunKey
	o     DriveOptions
	log   *slog.Logger
	nudge chan struct{}

	// ctx is that of effects: it ends with the caller's, and a margin before
	// its deadline. store is that of the store's methods, which outlives it by
	// the margin.
	ctx, store context.Context
	deadline   time.Time // of ctx; zero: none
	longest    time.Duration
	turned     bool // a turn was tried in this attempt

	info  RunInfo // the header as of the claim
	epoch int64

	lease    Lease
	end      time.Time // of the lease, counted from the first sending
	sure     time.Time // the same by the real clock, which nobody sets: it is monotonic
	renewAt  time.Time // by the real clock
	looked   Lease     // as of before the last look into the inbox
	waiting  []Note    // seen there, and not in the log
	settling []Note    // in the log, and to be removed

	version  *Version
	model    Model
	state    *state
	prompt   *prompt
	set      *toolset // what may be used of servers, as of the turn setTurn
	setTurn  int
	opened   *openingDoc // what servers add to the prompt
	openedAt Digest
	costs    costs
	pos      Pos // the last boundary that is known to be in the log
	fenced   bool
	pending  []written
	tail     *Tail // of the open turn, the same for each try
	telling  []ServerState
	waited   *ModelCallFailed
	full     bool      // the context is full: the next model call trims it
	dropping BlockKind // was refused: the next model call leaves it out
	bad      error     // the exchange ended since the model asked for a foreign output
	timer    *time.Timer
	began    time.Time // of the last turn, by the real clock
}

type written struct {
	record *Record
	entry  Entry
}

// Ways in which a driver ends without a release.
var (
	errFence   = errors.New("psych: a predecessor wrote last") // read on, and settle anew
	errAborted = errors.New("psych: aborted")
)

func (d *driver) now() time.Time { return d.rt.now() }

// grace is what a cancelled tool or model has to return: within Margin, so that
// what is unwritten can be written behind it.
func (d *driver) grace() time.Duration { return min(stopGrace, d.o.Margin*3/5) }

func (d *driver) margin() time.Duration { return d.rt.o.LeaseTTL / 6 }

// claim takes the lease. A claim whose answer was lost is repeated with its
// token, and counted from its first sending.
func (d *driver) claim(ctx context.Context) (held bool, err error) {
	token, now, sent, ttl := d.rt.o.NewID(), d.now(), time.Now(), d.rt.o.LeaseTTL
	err = repeat(ctx, func() (err error) {
		d.lease, err = d.rt.store.Claim(ctx, d.key, d.rt.o.Owner, token, now, ttl)
		return err
	})
	if errors.Is(err, ErrLeaseHeld) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("psych: claim run %s: %w", d.key, err)
	}
	d.epoch, d.info = d.lease.Epoch, d.lease.Info
	d.held(now, sent)
	return false, nil
}

// held notes a lease that was sent for at a time, now by Options.Now and sent by
// the real clock. Where the store kept a later end than was asked for, the clock
// was set back, and what is left of the lease by it means nothing.
func (d *driver) held(now, sent time.Time) {
	end := now.Add(d.rt.o.LeaseTTL)
	if end.After(d.end) {
		d.end = end
	}
	if !d.lease.Until.After(end) {
		d.sure = sent.Add(d.rt.o.LeaseTTL)
	}
	d.renewAt = sent.Add(d.rt.o.LeaseTTL / 3)
}

// left is how long the lease lasts at the least.
func (d *driver) left() time.Duration { return min(d.end.Sub(d.now()), time.Until(d.sure)) }

// renew extends the lease. An outcome that is unknown is no error while the
// lease lasts: it is tried again a little later.
func (d *driver) renew() error {
	now, sent := d.now(), time.Now()
	l, err := d.rt.store.Renew(d.store, d.lease, now, d.rt.o.LeaseTTL)
	switch {
	case err == nil:
		d.lease = l
		if d.held(now, sent); d.left() > 0 {
			return nil
		}
		return fmt.Errorf("psych: renew run %s: its clock was set back, and the lease can't be extended: %w", d.key, ErrLeaseLost)
	case certain(err):
		return fmt.Errorf("psych: renew run %s: %w", d.key, err)
	case d.left() <= 0 || d.store.Err() != nil:
		return fmt.Errorf("psych: renew run %s: %w: %w", d.key, ErrLeaseLost, err)
	}
	d.renewAt = sent.Add(min(renewAgain, d.rt.o.LeaseTTL/30))
	return nil
}

// guard is the look at the lease before an effect: it must have more than a
// margin left, for the skew of clocks.
func (d *driver) guard() error {
	for d.left() <= d.margin() {
		before := d.sure
		if err := d.renew(); err != nil {
			return err
		}
		if d.sure.After(before) {
			continue
		}
		select { // its outcome is unknown: renew says when the lease is over
		case <-d.ctx.Done():
			return d.ctx.Err()
		case <-time.After(renewAgain):
		}
	}
	return d.ctx.Err()
}

// look reads the inbox. What the log holds already is dropped.
func (d *driver) look() error {
	d.looked = d.lease
	var notes []Note
	err := repeat(d.store, func() (err error) {
		notes, err = d.rt.store.Pending(d.store, d.key)
		return err
	})
	if err != nil {
		return fmt.Errorf("psych: look into the inbox of run %s: %w", d.key, err)
	}
	d.waiting = d.waiting[:0]
	seen := map[noteKey]bool{}
	for _, n := range notes {
		if _, delivered := d.state.notes[n.noteKey()]; delivered || seen[n.noteKey()] {
			d.settling = append(d.settling, n)
			continue
		}
		seen[n.noteKey()] = true
		d.waiting = append(d.waiting, n)
	}
	return nil
}

// drive runs the attempt to its end.
func (d *driver) drive(caller context.Context) (Outcome, error) {
	ctx, cancel := caller, context.CancelFunc(func() {})
	if deadline, ok := caller.Deadline(); ok {
		// The context's deadline is of the real clock, whatever Options.Now says.
		d.deadline = deadline.Add(-d.o.Margin)
		ctx, cancel = context.WithDeadline(caller, d.deadline)
	}
	defer cancel()
	store, done := context.WithCancel(context.WithoutCancel(caller))
	defer done()
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(d.o.Margin):
			done()
		case <-store.Done():
		}
	})
	defer stop()
	d.ctx, d.store = ctx, store
	d.timer = time.NewTimer(d.rt.o.LeaseTTL)
	defer d.timer.Stop()

	d.rt.mu.Lock()
	d.rt.driving[d.key] = d.nudge
	d.rt.mu.Unlock()
	defer func() {
		d.rt.mu.Lock()
		if d.rt.driving[d.key] == d.nudge {
			delete(d.rt.driving, d.key)
		}
		d.rt.mu.Unlock()
	}()

	out, err := d.run()
	d.log.DebugContext(ctx, "drive ended", "outcome", out.String(), "err", err)
	return out, err
}

func (d *driver) run() (Outcome, error) {
	for {
		err := d.begin()
		if err == nil {
			var out Outcome
			if out, err = d.turns(); err == nil || out != 0 {
				return out, err
			}
		}
		switch {
		case errors.Is(err, errFence):
			// What was settled and delivered was made from a log that had not
			// ended. Nothing of it was written: read it again and make it anew.
			d.set, d.tail, d.telling = nil, nil, nil
			d.state, d.prompt, d.pending, d.settling = nil, nil, nil, nil
			continue
		case errors.Is(err, ErrLeaseLost), errors.Is(err, ErrConflict) && d.fenced:
			if _, gone := d.rt.store.GetRun(d.store, d.key); errors.Is(gone, ErrNotFound) {
				return 0, fmt.Errorf("psych: run %s was deleted: %w", d.key, gone)
			}
			return Held, fmt.Errorf("psych: run %s: another worker took over: %w", d.key, err)
		}
		return d.giveUp(d.rt.lacks(d.store, d.key, err))
	}
}

// lacks makes an error that matches ErrNotFound, of a Run that is there, one that
// doesn't: a caller must not take a Run for deleted of which a Version or a blob
// is gone.
func (r *Runtime) lacks(ctx context.Context, key RunKey, err error) error {
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	if _, gone := r.store.GetRun(ctx, key); gone != nil {
		return err
	}
	return fmt.Errorf("psych: run %s is there, and something that it needs is not: %v", key, err)
}

// giveUp releases a Run that can't be driven further here.
func (d *driver) giveUp(err error) (Outcome, error) {
	due, status := d.now().Add(postGrace), d.info.Status
	var corrupt *CorruptionError
	var unsupported *UnsupportedError
	switch {
	case errors.As(err, &corrupt):
		due, status = time.Time{}, StatusFailed // it would be the same for ever
	case errors.As(err, &unsupported):
		due = d.now().Add(MaxLease) // a worker of the newer release may take it before
	case errors.Is(err, errUnsure):
		return 0, err // only the same write may follow: let the lease expire
	default:
		// What was done is kept, and an attempt that got nowhere is counted.
		if ferr := d.flush(); ferr != nil {
			return 0, errors.Join(err, ferr)
		}
	}
	if rerr := repeat(d.store, func() error { return d.rt.store.Release(d.store, d.lease, due, status) }); rerr != nil {
		d.log.WarnContext(d.ctx, "release failed; the lease expires", "err", rerr)
	}
	return 0, err
}

var errUnsure = errors.New("psych: the outcome of a write is unknown")

// begin brings state and inbox up to now, and makes the first records of the
// attempt: its start, and the settlement of what the attempt before it left.
func (d *driver) begin() error {
	if err := d.load(); err != nil {
		return err
	}
	if d.state.attempt >= d.epoch {
		return fmt.Errorf("psych: run %s: attempt %d is in the log: %w", d.key, d.state.attempt, ErrLeaseLost)
	}
	if err := d.look(); err != nil {
		return err
	}
	d.fenced = false
	if err := d.emit(&AttemptStarted{}); err != nil {
		return err
	}
	if d.state.admitted == nil {
		if err := d.emit(&RunAdmitted{Version: d.info.Version, Projection: projectionVersion}); err != nil {
			return err
		}
	}
	return d.settle()
}

// load folds the log, from what this process knows of it already if that holds.
func (d *driver) load() error {
	v, err := d.rt.version(d.store, d.key.Tenant, d.info.Version)
	if err != nil {
		return err
	}
	d.version = v
	pos := Pos{}
	if w := d.rt.warm.take(d.key, d.info.Incarnation); w != nil {
		d.state, d.prompt, d.pos = w.state, w.prompt, w.pos
		if w.epoch == d.epoch-1 {
			return nil
		}
		pos = w.pos
	} else {
		d.state, d.prompt = newState(d.key, v.Spec.Limits), nil
	}
	d.pos = pos
	for page, err := range pages(d.store, d.rt.store, d.key, pos) {
		if err != nil {
			return err
		}
		err := foldPage(d.store, d.state, d.rt.store, page, func(_ *state, r *Record) {
			if e, ok := r.Event.(*ModelCallStarted); ok && e.rewrites() {
				d.prompt = nil // what it holds another worker sent otherwise
			}
		})
		if err != nil {
			return err
		}
		d.pos = page.Next
	}
	if d.prompt != nil {
		d.prompt.met = true // another worker may have sent what it holds not yet
	}
	return nil
}

// settle ends what past attempts left open: a model call as interrupted, a
// tool call that may be run again not at all, any other as unknown or not
// started. Nothing is run again on its own.
func (d *driver) settle() error {
	s := d.state
	if s.calling {
		if err := d.emit(&ModelCallFailed{Turn: s.turn, Interrupted: true, Message: "the worker ended before the model answered"}); err != nil {
			return err
		}
	}
	if !s.batchOpen() {
		return nil
	}
	for _, c := range s.batch.calls {
		if c.done != nil {
			continue
		}
		if s.fruitless <= maxFruitless {
			switch again, err := d.again(c); {
			case err != nil:
				return err
			case again:
				continue
			}
		}
		if err := d.emit(settlement(c, "the worker ended")); err != nil {
			return err
		}
	}
	return nil
}

// settlement ends a call whose end nobody will see.
func settlement(c *call, why string) *ToolCallFinished {
	e := &ToolCallFinished{Call: c.id, Outcome: NotStarted}
	text := "This call was not started, since " + why + ". It is safe to ask for it again."
	if !c.started.IsZero() {
		e.Outcome = UnknownEnd
		text = "The outcome of this call is unknown, since " + why + " while it ran. It may have taken effect: verify before you ask for it again."
	}
	e.Result = newPayload("text/plain", []byte(text))
	return e
}

// again reports whether a call of a past attempt is simply (re)started: it is
// declared safe, or nothing runs for it. That of a server's tool must have been
// believed as it began, too.
func (d *driver) again(c *call) (bool, error) {
	if t := d.tool(c.asked.Name); t != nil || len(d.version.Spec.Connections) == 0 {
		return t == nil || t.idempotent(), nil
	}
	args, err := c.asked.Arguments.load(d.store, d.rt.o.Blobs, d.key)
	if err == nil {
		err = d.resolveTools()
	}
	if err != nil {
		return false, d.ctx.Err()
	}
	to, err := d.reach(c.asked.Name, args)
	if err != nil {
		return c.started.IsZero(), nil
	}
	return to.tool.idempotent() && (!to.remote || c.started.IsZero() || c.safe), nil
}

// emit makes a record, folds it and puts it behind those that wait to be
// written.
func (d *driver) emit(e Event) error {
	rec := &Record{Seq: d.state.seq + 1, Time: d.now(), Attempt: d.epoch, Event: e}
	data, err := d.fit(rec)
	if err != nil {
		return err
	}
	if err := d.state.apply(rec); err != nil {
		return err
	}
	d.pending = append(d.pending, written{rec, Entry{Seq: rec.Seq, Kind: e.Kind(), Time: rec.Time, Data: data}})
	return nil
}

// fit encodes a record, and moves its largest payloads to the BlobStore until
// it is within MaxRecordBytes. If references alone are too many, their previews
// and indexes go, largest first: they can be read again.
func (d *driver) fit(rec *Record) ([]byte, error) {
	payloads := rec.Event.payloads()
	for _, p := range payloads {
		d.cutEnds(p)
	}
	// largest finds the largest payload of a kind that is over a floor.
	largest := func(floor int, kind func(*Payload) bool) int {
		at := -1
		for i, p := range payloads {
			if kind(p) && p.frameSize() > floor && (at < 0 || p.frameSize() > payloads[at].frameSize()) {
				at = i
			}
		}
		return at
	}
	floor, ends := minOffload, minPreviewChars
	for {
		data, err := encodeRecord(rec)
		if err != nil || len(data) <= MaxRecordBytes {
			return data, err
		}
		at := -1
		if d.rt.o.Blobs == nil { // then a preview is what can shrink
			at = largest(floor, (*Payload).letGo)
		}
		if at < 0 {
			at = largest(floor, func(p *Payload) bool { return p.Ref == nil })
		}
		if at < 0 {
			at = largest(floor, func(p *Payload) bool { return p.Ref != nil })
		}
		switch {
		case at < 0 && floor == minOffload: // many small ones
			floor, ends = bareReference, minPreviewChars/5
		case at < 0:
			return nil, fmt.Errorf("psych: %s of run %s takes %d bytes without what a BlobStore could keep: want at most %d: %w", rec.Event.Kind(), d.key, len(data), MaxRecordBytes, ErrTooLarge)
		case payloads[at].letGo():
			ref := payloads[at].Ref
			ref.Head, ref.Tail = firstChars(ref.Head, ends), lastChars(ref.Tail, ends)
		case payloads[at].Ref != nil:
			ref := payloads[at].Ref
			ref.Head, ref.Tail, ref.Index = nil, nil, nil
		default:
			p := payloads[at]
			size := p.Size
			if err := d.offload(p, segment(rec, at)); err != nil {
				return nil, fmt.Errorf("psych: %s of run %s takes %d bytes: %w", rec.Event.Kind(), d.key, len(data), err)
			}
			d.cutEnds(p)
			if int64(p.frameSize()) >= size/2 {
				p.Ref.Head, p.Ref.Tail, p.Ref.Index = nil, nil, nil
			}
		}
	}
}

// cutEnds leaves of a reference's ends what this Version's previews show.
func (d *driver) cutEnds(p *Payload) {
	if p.Ref != nil {
		n := max(d.state.limits.PreviewChars, maxFailureChars)
		p.Ref.Head, p.Ref.Tail = firstChars(p.Ref.Head, n), lastChars(p.Ref.Tail, n)
	}
}

// minOffload is the least payload that a bare reference is clearly smaller
// than, and more than the least preview of what was let go; bareReference is
// what a reference itself takes, about, and more than a fifth of that preview.
const (
	minOffload    = 2*utf8.UTFMax*minPreviewChars + 1
	bareReference = 250
)

// segment names a payload of a record in the BlobStore, apart from any other
// write's.
func segment(rec *Record, payload int) string {
	switch e := rec.Event.(type) {
	case *ToolCallFinished:
		if payload > 0 {
			return fmt.Sprintf("%s.%s.%d", e.Call, e.Attachments[payload-1].Slot, rec.Attempt)
		}
		return resultSegment(e.Call, rec.Attempt)
	case *ModelCallFinished:
		calls := 0
		for i := range e.Blocks {
			switch b := &e.Blocks[i]; {
			case b.Call != nil:
				calls++
				if i == payload {
					return fmt.Sprintf("%s.args.%d", callID(e.Turn, calls), rec.Attempt)
				}
			case i != payload:
			case b.Text != nil:
				return fmt.Sprintf("t%d.text%s.%d", e.Turn, nth(payload), rec.Attempt)
			default:
				return fmt.Sprintf("t%d.block%s.%d", e.Turn, nth(payload), rec.Attempt)
			}
		}
	}
	return fmt.Sprintf("s%d.%d.%d", rec.Seq, payload, rec.Attempt)
}

func nth(i int) string {
	if i == 0 {
		return ""
	}
	return fmt.Sprintf("-%d", i+1)
}

func resultSegment(callID string, epoch int64) string {
	return fmt.Sprintf("%s.result.%d", callID, epoch)
}

func (d *driver) blobKey(segment string) BlobKey {
	return BlobKey{d.key.Tenant, d.key.RunID, segment}
}

// flush writes what is pending, in as few appends as fit.
func (d *driver) flush() error {
	for len(d.pending) > 0 {
		n, size := 0, 0
		for n < len(d.pending) {
			size += len(d.pending[n].entry.Data) + entryOverhead
			if size > MaxAppendBytes {
				break
			}
			n++
		}
		b := Batch{Token: d.rt.o.NewID(), Entries: make([]Entry, n)}
		for i := range b.Entries {
			b.Entries[i] = d.pending[i].entry
		}
		if err := d.append(b); err != nil {
			return err
		}
		if d.o.Observe != nil {
			for _, w := range d.pending[:n] {
				d.o.Observe(Observation{Record: w.record})
			}
		}
		clear(d.pending[:n])
		d.pending = d.pending[n:]
	}
	d.pending = nil
	d.clean()
	return nil
}

// append makes one append, and repeats it until its outcome is known: nothing
// else may follow.
func (d *driver) append(b Batch) error {
	wait := 50 * time.Millisecond
	for {
		pos, err := d.rt.store.Append(d.store, d.key, d.pos, b)
		switch {
		case err == nil:
			d.pos, d.fenced = pos, true
			return nil
		case errors.Is(err, ErrConflict) && !d.fenced:
			return errFence
		case certain(err):
			return fmt.Errorf("psych: append to run %s: %w", d.key, err)
		}
		d.log.WarnContext(d.ctx, "append has no known outcome; repeating it", "seq", b.Entries[0].Seq, "err", err)
		select {
		case <-d.store.Done():
			return fmt.Errorf("psych: append to run %s: %w: %w", d.key, errUnsure, err)
		case <-time.After(wait):
		}
		wait = min(2*wait, 2*time.Second)
		if !time.Now().Before(d.renewAt) {
			if err := d.renew(); err != nil {
				return fmt.Errorf("%w: %w", errUnsure, err)
			}
		}
	}
}

// clean removes notes from the inbox that the log holds. One that stays is
// dropped by its id later.
func (d *driver) clean() {
	if len(d.settling) == 0 {
		return
	}
	if err := d.rt.store.Settle(d.store, d.key, d.settling); err != nil {
		d.log.WarnContext(d.ctx, "settle failed; the notes are dropped later", "err", err)
	}
	d.settling = nil
}

// turns runs the Run from one boundary to the next. What it does follows from
// the state alone, so that it goes on wherever the log ends.
func (d *driver) turns() (Outcome, error) {
	for first := true; ; first = false {
		s := d.state
		var err error
		switch {
		case s.exchange == nil && len(d.waiting) > 0:
			err = d.deliver()
		case s.exchange == nil:
			var more bool
			if more, err = d.release(time.Time{}); err == nil && !more {
				return Closed, d.bad
			}
		case s.exchange.aborting: // the worker ended between the abort and the close
			err = d.close(StatusAborted, "", s.exchange.reason)
		case first && s.fruitless > maxFruitless:
			// Before what waits is delivered, so that no new message is lost
			// with the exchange.
			err = d.close(StatusFailed, "no_progress", fmt.Sprintf("%d attempts in a row got nowhere: something in this exchange keeps its worker from going on", maxFruitless))
		case s.batchOpen() && d.aborting():
			err = d.abortBatch(s.batch, nil)
		case s.batchOpen():
			err = d.runTools()
		case s.badHandle() != nil:
			d.bad = s.badHandle()
			err = d.close(StatusFailed, CodeInvalidHandle, "the model asked for an output that this Run never emitted")
		case s.answered != nil:
			end := endOf(s.answered.Stop)
			err = d.close(end.status, end.code, end.reason)
		case len(d.waiting) > 0:
			err = d.deliver()
		case s.failure != nil && s.failure != d.waited:
			var out Outcome
			if out, err = d.retry(s.failure); out != 0 {
				return out, err
			}
		case d.limit().status != "":
			end := d.limit()
			err = d.close(end.status, end.code, end.reason)
		case !d.timeForTurn():
			return d.yield(d.now())
		default:
			err = d.turn()
		}
		if err != nil && d.ctx.Err() != nil && d.store.Err() == nil && !errors.Is(err, errFence) && !certain(err) && !errors.Is(err, errUnsure) {
			out, yerr := d.yield(d.now())
			if yerr != nil {
				return out, yerr
			}
			if errors.Is(d.ctx.Err(), context.Canceled) {
				return out, context.Canceled
			}
			return out, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// badHandle finds the call of the last batch that asked for what is no output
// of this Run.
func (s *state) badHandle() error {
	if s.batch == nil || len(s.history) == 0 || s.history[len(s.history)-1].results != s.batch {
		return nil
	}
	for _, c := range s.batch.calls {
		if c.done != nil && c.done.Code == CodeInvalidHandle {
			return &CorruptionError{Run: s.run, Reason: InvalidDeferredHandle, Seq: s.seq, Detail: fmt.Sprintf("call %s asked for an output that this Run never emitted", c.id)}
		}
	}
	return nil
}

// An ending is what follows from a stop reason.
type ending struct {
	run          bool   // the calls of the answer are run
	status       string // of the exchange, if the answer asked for no tool
	code, reason string
}

// endings is the table of stop reasons. An answer that was cut has its calls
// failed with that reason, not run, and the model is told; so that of a
// refusal.
var endings = map[StopReason]ending{
	StopEnd:       {run: true, status: StatusCompleted},
	StopToolUse:   {run: true, status: StatusCompleted},
	StopMaxTokens: {status: StatusExhausted, code: "max_tokens", reason: "the answer was cut at the output limit: raise model_options.max_output_tokens"},
	StopRefusal:   {status: StatusFailed, code: "refusal", reason: "the model refused to answer"},
	StopContext:   {status: StatusExhausted, code: "context", reason: "the context window of the model is full"},
}

func endOf(stop StopReason) ending {
	e, ok := endings[stop]
	if !ok {
		e = ending{status: StatusFailed, code: "stop_reason", reason: fmt.Sprintf("the model stopped for a reason that this release does not know: %.80q", string(stop))}
	}
	return e
}

func (d *driver) close(status, code, reason string) error {
	d.full, d.dropping = false, "" // of this exchange alone
	return d.emit(&ExchangeClosed{Status: status, Code: code, Reason: reason})
}

// deliver writes what waits as records, in order of posting.
func (d *driver) deliver() error {
	for len(d.waiting) > 0 {
		n := d.waiting[0]
		e, err := decodeNote(d.key, n)
		if err != nil {
			return err
		}
		switch e := e.(type) {
		case *UserMessage:
			e.ID = n.ID
		case *AbortRequested:
			e.ID = n.ID
		default:
			return &UnsupportedError{Run: d.key, Seq: d.state.seq + 1, What: fmt.Sprintf("note of kind %.80q", string(n.Kind))}
		}
		ends := false
		if a, ok := e.(*AbortRequested); ok {
			ends = d.state.aborts(a)
		}
		if err := d.emit(e); err != nil {
			return err
		}
		d.waiting = d.waiting[1:]
		d.settling = append(d.settling, n)
		if ends {
			if err := d.close(StatusAborted, "", e.(*AbortRequested).Reason); err != nil {
				return err
			}
		}
	}
	return nil
}

// aborting reports whether an abort of the open exchange waits.
func (d *driver) aborting() bool {
	for _, n := range d.waiting {
		if n.Kind == KindAbortRequested {
			if e, err := decodeNote(d.key, n); err == nil && d.state.aborts(e.(*AbortRequested)) {
				return true
			}
		}
	}
	return false
}

// takeAborts delivers the aborts that wait, before the messages.
func (d *driver) takeAborts() error {
	aborts, others := []Note{}, []Note{}
	for _, n := range d.waiting {
		if n.Kind == KindAbortRequested {
			aborts = append(aborts, n)
		} else {
			others = append(others, n)
		}
	}
	d.waiting = aborts
	err := d.deliver()
	d.waiting = append(d.waiting, others...)
	return err
}

// timeForTurn reports whether the time that is left is enough for a turn: a
// floor for the first of the attempt, and then what the longest has taken.
func (d *driver) timeForTurn() bool {
	if d.deadline.IsZero() {
		return true
	}
	need := d.o.Floor
	if d.turned {
		need = max(need, d.longest)
	}
	return time.Until(d.deadline) >= need
}

// retry waits for another try of a failed model call, or closes the exchange.
func (d *driver) retry(f *ModelCallFailed) (Outcome, error) {
	s := d.state
	switch {
	case f.Overflow && !s.exchange.trimmed && len(s.trimContext()) > 0:
		d.full, d.waited = true, f
		return 0, nil
	case f.Overflow:
		return 0, d.close(StatusExhausted, "context", "the context window of the model is full: "+f.Message)
	case f.Refused != "" && (!f.Transient || s.tries > modelRetries) && s.holds(f.Refused): // each time there is less, and then nothing, to leave out
		d.dropping, d.waited = f.Refused, f
		return 0, nil
	case !f.Transient:
		return 0, d.close(StatusFailed, "model", f.Message)
	case s.tries > modelRetries:
		return 0, d.close(StatusFailed, "model", fmt.Sprintf("the model failed %d times in a row, at last with: %s. Send the message again later", s.tries, f.Message))
	}
	wait := max(time.Second<<(s.tries-1), min(time.Duration(f.RetryMillis)*time.Millisecond, maxRetryAfter))
	// It counts from the failure, in whatever attempt that was.
	if wait -= min(wait, max(0, d.now().Sub(s.failed))); wait == 0 {
		d.waited = f
		return 0, nil
	}
	if !d.deadline.IsZero() && time.Until(d.deadline) < wait+d.o.Floor {
		return d.yield(d.now().Add(wait))
	}
	if err := d.flush(); err != nil {
		return 0, err
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	if _, err := d.wait(nil, timer.C); err != nil && !errors.Is(err, errAborted) {
		return 0, err
	}
	d.waited = f
	return 0, nil
}

// yield hands the Run over: what is pending is written, the lease released
// with a due time, and then the Run woken.
func (d *driver) yield(due time.Time) (Outcome, error) {
	more, err := d.release(due)
	if err != nil {
		return 0, err
	}
	for more {
		// Messages came in between: they are delivered where the next attempt
		// would, and this one goes.
		if d.state.exchange == nil || !d.state.calling && !d.state.batchOpen() {
			if err := d.deliver(); err != nil {
				return 0, err
			}
		} else {
			d.waiting = nil
		}
		if more, err = d.release(due); err != nil {
			return 0, err
		}
	}
	if d.state.exchange == nil {
		return Closed, nil
	}
	if d.rt.o.Waker != nil && !due.After(d.now()) {
		if err := d.rt.o.Waker.Wake(d.store, d.key); err != nil {
			d.log.WarnContext(d.ctx, "wake failed; the sweep finds the run", "err", err)
		}
	}
	return Yielded, nil
}

// release writes what is pending and gives the lease back, unless somebody
// posted since the last look into the inbox: then more is true, and what was
// posted waits.
func (d *driver) release(due time.Time) (more bool, err error) {
	if err := d.flush(); err != nil {
		return false, err
	}
	if d.state.exchange == nil {
		due = time.Time{}
	}
	err = repeat(d.store, func() error { return d.rt.store.Release(d.store, d.looked, due, d.state.status) })
	if errors.Is(err, ErrConflict) {
		if err := d.renew(); err != nil {
			return false, err
		}
		if d.lease.Posted == d.looked.Posted {
			return false, fmt.Errorf("psych: release run %s: %w", d.key, ErrUnavailable) // the renewal failed
		}
		if err := d.look(); err != nil {
			return false, err
		}
		d.clean()
		return true, nil
	}
	if err != nil && !certain(err) {
		err = fmt.Errorf("%w: %w", errUnsure, err)
	}
	if err != nil {
		return false, fmt.Errorf("psych: release run %s: %w", d.key, err)
	}
	d.rt.warm.put(&warmRun{key: d.key, incarnation: d.info.Incarnation, epoch: d.epoch, pos: d.pos, state: d.state, prompt: d.prompt})
	return false, nil
}

// idempotencyKey of a call is the same whenever it is run again, and no other
// call's, also of a Run that had the same id before.
func (d *driver) idempotencyKey(callID string) string {
	sum := sha256.Sum256([]byte(d.info.Incarnation + "\x00" + callID))
	return hex.EncodeToString(sum[:16])
}

// An event is what a running model or tool sends to its driver.
type event struct {
	delta  *Delta
	answer *modelEnd
	tool   *toolEnd
	done   *besideEnd
}

// wait returns the next event, or the zero event when timer fires. Meanwhile
// it keeps the lease, and the inbox in sight: an abort is errAborted.
func (d *driver) wait(in <-chan event, timer <-chan time.Time) (event, error) {
	for {
		select {
		case e := <-in: // before anything else: what has ended is not lost
			return e, nil
		default:
		}
		d.timer.Reset(time.Until(d.renewAt))
		looks := false
		select {
		case e := <-in:
			return e, nil
		case <-timer:
			return event{}, nil
		case <-d.ctx.Done():
			return event{}, d.ctx.Err()
		case <-d.nudge:
			looks = true
		case <-d.timer.C:
		}
		if err := d.renew(); err != nil {
			return event{}, err
		}
		if looks || d.lease.Posted != d.looked.Posted {
			looked := d.looked
			if err := d.look(); err != nil {
				if certain(err) {
					return event{}, err
				}
				// Running calls are not worth less than a look: again a little later.
				d.looked = looked
				d.renewAt = time.Now().Add(min(renewAgain, d.rt.o.LeaseTTL/30))
				continue
			}
			if d.aborting() {
				return event{}, errAborted
			}
		}
	}
}
