package psych

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// ReplayOptions of Replay and Diff. Nil and the zero value work.
type ReplayOptions struct {
	// Models are asked before Options.Models: the first whose Codec makes what a
	// call recorded makes its request again. A Run whose model changed needs
	// them all.
	Models []Model

	// As, when set, encodes each request for this Model, as if it had been the
	// Run's from the start. Nothing is compared then: the log knows of other
	// bytes.
	As Model
}

// A ReplayedCall is a model call of a log, with its request made again.
type ReplayedCall struct {
	Call   int       `json:"call"` // from 1, counted over the log: each try is one, as in a Report
	Seq    uint64    `json:"seq"`  // of the record that announced it
	Time   time.Time `json:"time"` // of that record
	Turn   int       `json:"turn"`
	Try    int       `json:"try,omitempty"`
	Model  string    `json:"model"` // as the log names it
	Codec  string    `json:"codec"` // that the log names
	Breaks []Break   `json:"breaks,omitempty"`

	// Request is what is sent for the call, nil where Err says why it can't be
	// made: a *CodecError; an error matching ErrNotFound, for a document or blob
	// that is gone; ErrNoBlobStore. Nobody changes its parts.
	Request *Request `json:"-"`
	Err     error    `json:"-"`

	// Difference is where Request leaves what the log says of it; nil: nowhere,
	// or there is nothing to compare.
	Difference *Difference `json:"difference,omitempty"`

	encoding string // of Request
	version  *Version
	doc      *openingDoc
	memory   string
	tail     *Tail
	at       []int // of each message of the state, where it is in Request.History
	state    *state
}

// Equal reports whether the request was made again, and is what the log says.
func (c *ReplayedCall) Equal() bool { return c.Err == nil && c.Difference == nil }

// A Difference is the first place where a request that was made again leaves
// what the log says of it. The log keeps digests: what was sent is known where
// an earlier request had it too.
type Difference struct {
	Zone   int    `json:"zone"`            // 0: tools, 1 and 2: system, 3: history, 4: trailing message
	First  int    `json:"first,omitempty"` // in zone 3: the parts of the history, from 1, among which it is
	Last   int    `json:"last,omitempty"`
	Reason string `json:"reason"`        // for a person
	Sent   string `json:"sent"`          // text around it, as it was sent; "": not known
	Made   string `json:"made"`          // as it is made now
	Parts  string `json:"parts"`         // what First to Last are
	Byte   int    `json:"byte,omitzero"` // of the part, where Sent is known
}

// String says it in one line, without the texts.
func (d *Difference) String() string {
	s := zoneName(d.Zone)
	if d.Parts != "" {
		s += ", " + d.Parts
	}
	return s + ": " + d.Reason
}

func zoneName(zone int) string {
	return [...]string{"zone 0 (tools)", "zone 1 (static system blocks)", "zone 2 (memories)", "zone 3 (history)", "zone 4 (trailing message)"}[zone]
}

// A CodecError says that no Model at hand encodes as a model call's did.
type CodecError struct {
	Run   RunKey
	Call  int
	Codec string   // that the log names
	Have  []string // of the models at hand
	Err   error    // why the Run's own model can't be opened
}

func (e *CodecError) Error() string {
	have := "there is none"
	if len(e.Have) > 0 {
		have = "those at hand are encoded as " + strings.Join(e.Have, ", ")
	}
	s := fmt.Sprintf("psych: run %s: model call %d was encoded as %q, and no model at hand is: %s: give the model that the Run had then, or a release with that encoding", e.Run, e.Call, e.Codec, have)
	if e.Err != nil {
		s += fmt.Sprintf("; the Run's own can't be opened: %v", e.Err)
	}
	return s
}

func (e *CodecError) Unwrap() error { return e.Err }

// Replay makes each request of a Run again, in order, from its log, its Version
// and stored documents alone, and compares it with what the log says of it:
// the chained digest of each zone, the prefix, the number of parts, the
// characters. No model is called, no server asked, and nothing written. The
// work for a call does not grow with the Run, but for digests behind a break.
//
// A call whose request can't be made says why, and the next ones go on. The
// error of the iteration is the last: a Run that is not there, a Version that
// is gone (ErrNotFound), a *CorruptionError, an *UnsupportedError for a Run of a
// newer release, a store that fails.
func (r *Runtime) Replay(ctx context.Context, key RunKey, o *ReplayOptions) iter.Seq2[*ReplayedCall, error] {
	return func(yield func(*ReplayedCall, error) bool) {
		rp, err := r.newReplay(ctx, key, o)
		if err != nil {
			yield(nil, err)
			return
		}
		for page, err := range pages(ctx, r.store, key, Pos{}) {
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range page.Entries {
				call, err := rp.next(page.Entries[i : i+1])
				if err != nil {
					yield(nil, err)
					return
				}
				if call != nil && !yield(call, nil) {
					return
				}
			}
		}
	}
}

// A replay makes the requests of a Run again, as its log is folded.
type replay struct {
	ctx   context.Context // of this one replay
	rt    *Runtime
	o     ReplayOptions
	info  RunInfo
	state *state
	add   func(*state, *Record) // rp.folded

	opened  map[string]openedModel // by name
	prompt  *prompt
	calls   int
	was     wireMark          // of the call before
	sent    *Request          // of the call before, if it is what was sent
	made    int               // parts of the history of the last request that was made
	heard   int               // of the last of them that was answered
	dropped map[BlockKind]int // as of the call before
	stuck   error             // why requests can't be made, until something changes

	call *ReplayedCall // of the record that was folded last
	err  error
}

type openedModel struct {
	Model
	err error
}

func (r *Runtime) newReplay(ctx context.Context, key RunKey, o *ReplayOptions) (*replay, error) {
	if err := key.Check(); err != nil {
		return nil, err
	}
	rp := &replay{ctx: ctx, rt: r, state: newState(key, Limits{}), opened: map[string]openedModel{}, dropped: map[BlockKind]int{}}
	if o != nil {
		rp.o = *o
	}
	if r.o.Models == nil && len(rp.o.Models) == 0 && rp.o.As == nil {
		return nil, fmt.Errorf("psych: replay run %s: no model encodes its requests: set Options.Models or ReplayOptions.Models: %w", key, ErrInvalid)
	}
	rp.add = rp.folded
	var err error
	if rp.info, err = r.store.GetRun(ctx, key); err != nil {
		return nil, fmt.Errorf("psych: replay run %s: %w", key, err)
	}
	return rp, nil
}

// next folds one entry, and returns the call that it announces, if it does.
func (rp *replay) next(entry []Entry) (*ReplayedCall, error) {
	rp.call = nil
	if err := foldPage(rp.ctx, rp.state, rp.rt.store, Page{Entries: entry}, rp.add); err != nil {
		return nil, err
	}
	return rp.call, rp.err
}

func (rp *replay) folded(s *state, rec *Record) {
	e, ok := rec.Event.(*ModelCallStarted)
	if !ok {
		if _, answered := rec.Event.(*ModelCallFinished); answered {
			rp.heard = rp.made
		}
		return
	}
	rp.calls++
	c := &ReplayedCall{
		Call: rp.calls, Seq: rec.Seq, Time: rec.Time, Turn: e.Turn, Try: e.Try, Model: s.model, Codec: s.wire.codec, Breaks: e.Breaks,
		tail: e.Tail, state: s,
	}
	rp.call = c
	if rp.stuck != nil && e.Codec == "" && e.Opening == nil && !e.rewrites() {
		c.Err = rp.stuck
	} else if err := rp.make(c, e); err != nil {
		if rp.prompt = nil; !lacks(err) { // it may hold a part of what this call sends
			rp.err = err
			return
		}
		c.Err = err
		if rp.stuck = err; errors.As(err, new(*CodecError)) {
			rp.stuck = nil // it names its call, and costs nothing
		}
	} else {
		rp.stuck = nil
	}
	if c.Err == nil && rp.o.As == nil {
		c.Difference = rp.compare(c, e)
	}
	for _, kind := range e.Dropped {
		rp.dropped[kind] = s.dropped[kind]
	}
	if rp.was, rp.sent = s.wire, nil; c.Equal() {
		rp.sent = c.Request
	}
}

// lacks reports whether err says that something is gone, or not at hand, for
// good: other calls may do without.
func lacks(err error) bool {
	var codec *CodecError
	var newer *UnsupportedError
	return errors.As(err, &codec) || errors.As(err, &newer) ||
		errors.Is(err, ErrNotFound) || errors.Is(err, ErrNoBlobStore) || errors.Is(err, errDamaged) || errors.Is(err, ErrInvalid)
}

// make makes the request of a call as the driver does, by the same code, from
// what the record says in place of what the driver decided.
func (rp *replay) make(c *ReplayedCall, e *ModelCallStarted) error {
	s := rp.state
	codec, err := rp.codec(c)
	if err != nil {
		return err
	}
	if c.version, err = rp.rt.version(rp.ctx, s.run.Tenant, s.admitted.Version); err != nil {
		return err
	}
	if c.doc, err = rp.rt.openingAt(rp.ctx, s.run.Tenant, s.opening); err != nil {
		return err
	}
	p, err := rp.prompt.on(s, codec, c.version, s.opening, c.doc, openAnew)
	if err != nil {
		return err
	}
	rp.prompt = p
	if rp.o.As != nil {
		p.previous = rp.heard
	}
	if s.memory != nil {
		c.memory = string(s.memory.Inline)
	}
	if err := p.setMemory(c.memory); err != nil {
		return err
	}
	if err := p.extend(rp.ctx, s, rp.rt.o.Blobs); err != nil {
		return err
	}
	trims := make([]*part, len(e.Trimmed))
	for i, handle := range e.Trimmed {
		trims[i] = s.part(handle) // the fold has found it
	}
	if err := p.revise(rp.ctx, s, rp.rt.o.Blobs, trims, e.Dropped, rp.dropped); err != nil {
		return err
	}
	tail, err := p.tail(e.Tail)
	if err != nil {
		return err
	}
	c.Request = p.request(c.version, c.version.Spec.Model, rp.info.Incarnation, tail)
	c.encoding = p.id
	c.at = p.at[:len(p.at):len(p.at)]
	rp.made = len(p.history)
	return nil
}

// openAnew encodes an opening. What a driver of this process keeps of it would
// prove nothing.
func openAnew(c Codec, v *Version, at Digest, doc *openingDoc) (*opening, error) {
	o, err := newOpening(c, v, doc)
	if err == nil {
		o.at = at
	}
	return o, err
}

// codec finds the Codec that a call was encoded with.
func (rp *replay) codec(call *ReplayedCall) (Codec, error) {
	if rp.o.As != nil {
		return rp.o.As.Codec(), nil
	}
	e := &CodecError{Run: rp.state.run, Call: call.Call, Codec: call.Codec}
	for _, m := range rp.o.Models {
		c := m.Codec()
		id := encodingID(c)
		if id == call.Codec {
			return c, nil
		}
		e.Have = append(e.Have, id)
	}
	if rp.rt.o.Models == nil {
		return nil, e
	}
	m, known := rp.opened[call.Model]
	if !known {
		m.Model, m.err = rp.rt.o.Models(rp.ctx, call.Model)
		if err := rp.ctx.Err(); err != nil {
			return nil, err
		}
		rp.opened[call.Model] = m
	}
	if m.err != nil {
		e.Err = m.err
		return nil, e
	}
	c := m.Codec()
	id := encodingID(c)
	if id == call.Codec {
		return c, nil
	}
	e.Have = append(e.Have, id)
	return nil, e
}

// compare finds the first place where a request leaves what its record says.
func (rp *replay) compare(c *ReplayedCall, e *ModelCallStarted) *Difference {
	req, wire := c.Request, &rp.state.wire
	for zone := range wire.zones {
		w := req.zone(zone)
		if w.Chain == wire.zones[zone] {
			continue
		}
		d := &Difference{Zone: zone, Reason: "its digest is not the recorded one", Made: begin(w.Bytes)}
		if rp.sent != nil && rp.sent.zone(zone).Chain == wire.zones[zone] {
			d.between(rp.sent.zone(zone).Bytes, w.Bytes)
		}
		return d
	}
	n, same := len(req.History), 0
	if rp.calls > 1 && rp.was.messages <= min(n, e.Messages) {
		prefix := rp.was.history
		if e.Prefix != nil {
			prefix = *e.Prefix
		}
		if same = rp.was.messages; rp.prompt.chain(same) != prefix {
			return rp.inHistory(c, 0, same, prefix, "what the call before sent is not as it was sent by this one")
		}
	}
	switch {
	case n != e.Messages:
		at := min(n, e.Messages)
		d := &Difference{Zone: 3, First: min(at+1, n), Last: n, Parts: c.parts(min(at+1, n), n), Reason: fmt.Sprintf("%d parts were sent, and %d are made", e.Messages, n)}
		d.Made = begin(req.History[d.First-1].Bytes)
		return d
	case rp.prompt.chain(n) != e.History:
		return rp.inHistory(c, same, n, e.History, "its digest is not the recorded one")
	}
	made := [4]int{req.Tools.Chars, req.System[0].Chars + req.System[1].Chars, rp.prompt.chars, req.Tail.Chars}
	for i, zone := range [4]int{0, 1, 3, 4} {
		if made[i] != e.Chars[i] {
			d := &Difference{Zone: zone, Reason: fmt.Sprintf("%d characters were sent, and %d are made", e.Chars[i], made[i])}
			if zone == 4 {
				d.Made = begin(req.Tail.Bytes)
			}
			return d
		}
	}
	return nil
}

// inHistory is a difference behind the first same parts of the history, whose
// digest as far as to should be want.
func (rp *replay) inHistory(c *ReplayedCall, same, to int, want Digest, reason string) *Difference {
	h := c.Request.History
	d := &Difference{Zone: 3, First: same + 1, Last: to, Reason: reason, Made: begin(h[same].Bytes)}
	if rp.sent != nil && to <= len(rp.sent.History) && rp.sent.History[to-1].Chain == want {
		for i := range to {
			if was := rp.sent.History[i].Bytes; !bytes.Equal(was, h[i].Bytes) {
				d.First, d.Last = i+1, i+1
				d.between(was, h[i].Bytes)
				break
			}
		}
	}
	d.Parts = c.parts(d.First, d.Last)
	return d
}

// between fills in the texts, of which both are known.
func (d *Difference) between(sent, made []byte) {
	d.Byte = divergence(sent, made)
	d.Sent, d.Made = around(sent, d.Byte), around(made, d.Byte)
}

// zone is one of the first three zones.
func (r *Request) zone(n int) *Wire {
	if n == 0 {
		return &r.Tools
	}
	return &r.System[n-1]
}

// divergence is the first byte that differs.
func divergence(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// shownAround is how many bytes of a text are shown before and behind a place.
const shownAround = 60

// around is the text around a byte.
func around(b []byte, at int) string {
	from, to := max(0, at-shownAround), min(len(b), at+shownAround)
	for from > 0 && !utf8.RuneStart(b[from]) {
		from--
	}
	for to < len(b) && !utf8.RuneStart(b[to]) {
		to++
	}
	return strings.ToValidUTF8(string(b[from:to]), "\uFFFD")
}

func begin(b []byte) string { return around(b[:min(len(b), 2*shownAround)], shownAround) }

// part says what a part of the history is, counted from 1.
func (c *ReplayedCall) part(n int) string {
	i, ok := slices.BinarySearch(c.at, n-1)
	if !ok {
		return fmt.Sprintf("part %d: a past trailing message", n)
	}
	switch it := &c.state.history[i]; {
	case it.user != nil:
		return fmt.Sprintf("part %d: message %q", n, it.user.ID)
	case it.said != nil:
		return fmt.Sprintf("part %d: the answer of turn %d", n, it.said.Turn)
	default:
		return fmt.Sprintf("part %d: the results of turn %d", n, it.results.turn)
	}
}

// parts says what some parts of the history are.
func (c *ReplayedCall) parts(first, last int) string {
	if first >= last {
		return c.part(last)
	}
	return fmt.Sprintf("parts %d to %d (%s … %s)", first, last, c.part(first), c.part(last))
}

// A RequestDiff is what changed from one request of a Run to a later one, as
// both are made again.
type RequestDiff struct {
	A       *ReplayedCall `json:"a"`
	B       *ReplayedCall `json:"b"`
	Changes []Change      `json:"changes"` // from the outermost zone on
}

// A Change is one part of a request that another has not, or has otherwise.
type Change struct {
	Zone int    `json:"zone"`
	What string `json:"what"` // which part, for a person
	How  string `json:"how"`  // added, removed, changed

	// A and B are texts of both: around the first byte that differs, or the
	// begin of what the other has not.
	A string `json:"a,omitempty"`
	B string `json:"b,omitempty"`

	// Cause is the recorded break that it stands behind, of the model call
	// numbered Call; "" for what needs none: a history that grew, another
	// trailing message.
	Cause BreakCause `json:"cause,omitempty"`
	Call  int        `json:"call,omitempty"`
}

// Diff makes two requests of a Run again, by their numbers as Replay and a
// Report count them, and says what changed from a to b and which recorded break
// made it so. It fails as Replay does, with ErrNotFound for a number that the
// log does not reach, and where one of the two can't be made.
func (r *Runtime) Diff(ctx context.Context, key RunKey, a, b int, o *ReplayOptions) (*RequestDiff, error) {
	if a < 1 || b <= a {
		return nil, fmt.Errorf("psych: diff of run %s: model calls %d and %d: want two numbers from 1, the earlier first: %w", key, a, b, ErrInvalid)
	}
	d := differ{RequestDiff: RequestDiff{Changes: []Change{}}}
	calls := 0
	for c, err := range r.Replay(ctx, key, o) {
		if err != nil {
			return nil, err
		}
		if calls = c.Call; c.Call == a || c.Call == b {
			if c.Err != nil {
				return nil, fmt.Errorf("psych: model call %d of run %s can't be made again: %w", c.Call, key, c.Err)
			}
		}
		if c.Call == a {
			d.A = c
		} else if c.Call > a {
			for _, k := range c.Breaks {
				d.breaks = append(d.breaks, callBreak{k, c.Call})
			}
		}
		if c.Call == b {
			d.B = c
			break
		}
	}
	if d.B == nil {
		return nil, fmt.Errorf("psych: run %s has no model call %d: its log has %d: %w", key, b, calls, ErrNotFound)
	}
	return &d.RequestDiff, d.compare()
}

type callBreak struct {
	Break
	call int
}

// A differ fills in a RequestDiff.
type differ struct {
	RequestDiff
	breaks []callBreak
}

// add notes a change, with the break that allows it: one of its zone, else of
// the outermost before.
func (d *differ) add(c Change, caused bool) {
	if caused {
		best := -1
		for i, k := range d.breaks {
			if k.Zone <= c.Zone && (best < 0 || d.breaks[best].Zone != c.Zone && (k.Zone == c.Zone || k.Zone < d.breaks[best].Zone)) {
				best = i
			}
		}
		if best >= 0 {
			c.Cause, c.Call = d.breaks[best].Cause, d.breaks[best].call
		}
	}
	d.Changes = append(d.Changes, c)
}

// texts notes what became of a part, "" where it is not.
func (d *differ) texts(zone int, what string, a, b []byte, caused bool) {
	c := Change{Zone: zone, What: what, How: "changed"}
	switch {
	case bytes.Equal(a, b):
		return
	case len(a) == 0:
		c.How, c.B = "added", begin(b)
	case len(b) == 0:
		c.How, c.A = "removed", begin(a)
	default:
		at := divergence(a, b)
		c.A, c.B = around(a, at), around(b, at)
	}
	d.add(c, caused)
}

func (d *differ) compare() error {
	a, b := d.A, d.B
	if a.encoding != b.encoding {
		c := Change{Zone: 0, What: "the encoding", How: "changed", A: a.encoding, B: b.encoding}
		for _, k := range d.breaks {
			if k.Cause == CodecChanged {
				c.Cause, c.Call = k.Cause, k.call
			}
		}
		d.Changes = append(d.Changes, c)
	}
	if err := d.tools(); err != nil {
		return err
	}
	d.blocks(staticBlocks(&a.version.Spec, a.doc), staticBlocks(&b.version.Spec, b.doc))
	d.texts(2, "the memories", []byte(a.memory), []byte(b.memory), true)
	if a.encoding == b.encoding {
		d.history()
	}
	var was, is string
	if a.tail != nil {
		was = a.tail.text()
	}
	if b.tail != nil {
		is = b.tail.text()
	}
	d.texts(4, "the trailing message", []byte(was), []byte(is), false)
	return nil
}

// tools compares definitions by name.
func (d *differ) tools() error {
	was, is := surface(d.A.version, d.A.doc), surface(d.B.version, d.B.doc)
	for len(was) > 0 || len(is) > 0 {
		order := 0
		switch {
		case len(was) == 0:
			order = 1
		case len(is) == 0:
			order = -1
		default:
			order = cmp.Compare(was[0].Name, is[0].Name)
		}
		var texts [2][]byte
		var name string
		for i, defs := range [2]*[]ToolDef{&was, &is} {
			if order != 0 && order != 2*i-1 {
				continue
			}
			def := (*defs)[0]
			*defs = (*defs)[1:]
			name = def.Name
			var err error
			if texts[i], err = json.Marshal(def); err != nil {
				return fmt.Errorf("psych: compare the tool %.80q: %w", name, err)
			}
		}
		d.texts(0, "the tool "+name, texts[0], texts[1], true)
	}
	return nil
}

// blocks compares the blocks of zone 1, from both ends.
func (d *differ) blocks(was, is []string) {
	first := 0
	for first < min(len(was), len(is)) && was[first] == is[first] {
		first++
	}
	was, is = was[first:], is[first:]
	for len(was) > 0 && len(is) > 0 && was[len(was)-1] == is[len(is)-1] {
		was, is = was[:len(was)-1], is[:len(is)-1]
	}
	for i := range max(len(was), len(is)) {
		var a, b string
		if i < len(was) {
			a = was[i]
		}
		if i < len(is) {
			b = is[i]
		}
		d.texts(1, fmt.Sprintf("block %d", first+i+1), []byte(a), []byte(b), true)
	}
}

// history compares parts one by one.
func (d *differ) history() {
	was, is := d.A.Request.History, d.B.Request.History
	for i := range min(len(was), len(is)) {
		d.texts(3, d.B.part(i+1), was[i].Bytes, is[i].Bytes, true)
	}
	if len(was) < len(is) {
		d.add(Change{Zone: 3, What: d.B.parts(len(was)+1, len(is)), How: "added", B: begin(is[len(was)].Bytes)}, false)
	}
	if len(was) > len(is) {
		d.add(Change{Zone: 3, What: d.A.parts(len(is)+1, len(was)), How: "removed", A: begin(was[len(is)].Bytes)}, true)
	}
}
