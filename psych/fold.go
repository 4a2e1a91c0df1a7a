package psych

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A state is a Run as its log says it is: a pure fold of the records. It reads
// no clock and does no IO, and the work for one record does not grow with the
// log. Its apply is the one place that knows what may follow what; each rule
// stands there once, with its Reason.
type state struct {
	run      RunKey
	limits   Limits // of the Version, with defaults; only views depend on it
	rules    projection
	seq      uint64
	attempt  int64
	admitted *RunAdmitted
	status   string

	exchange  *exchange // the open one
	exchanges int
	fruitless int // attempts in a row that began in an open exchange and got nowhere

	turn     int                // the last that began
	untold   bool               // it has no answer yet, so that the next call is another try of it
	calling  bool               // a model call is open
	tries    int                // failed tries of this turn
	failure  *ModelCallFailed   // of the last try, until the next begins
	failed   time.Time          // when it was recorded
	answered *ModelCallFinished // asked for no tool, and the exchange is not closed yet
	batch    *batch             // of the last answer that asked for tools
	model    string             // of the last model call
	wire     wireMark
	heard    int // parts of the history that the last answered model call sent
	memory   *Payload
	opening  Digest                 // the document that tools and zone 1 were last opened with
	servers  map[string]ServerState // as the model was told, in a turn that was answered
	telling  []ServerState          // what the open turn tells
	tail     *Tail                  // of the open turn
	called   time.Time              // of the last model call
	spent    spend

	history []item
	dropped map[BlockKind]int    // of so many items of the history blocks of a kind are left out
	tails   map[int]*Tail        // trailing messages of answered model calls, by the item of history that they stood behind
	large   []*part              // over the threshold of history, and not trimmed
	batches []*batch             // by turn, from 1 at index 0; nil without calls
	wireIDs map[string]struct{}  // provider ids that are on the wire
	notes   map[noteKey]struct{} // delivered
	bytes   int64                // what the payloads take, about
}

// An exchange is what lies between a user message and the answer that closes it.
type exchange struct {
	message  string // id of the message that opened it
	seq      uint64
	opened   time.Time
	first    int // of its items in the history
	turns    int
	spent    spend
	begun    bool // a model was called
	trimmed  bool // since the context was full
	aborting bool
	reason   string            // of the abort
	streaks  map[string]streak // by tool
	withheld []string          // tools that failed the same way too often, in that order
	told     int               // of withheld: as many as the model was told of
	telling  int               // of withheld: as many as the open turn tells of
}

// A streak is a tool that fails the same way, turn after turn.
type streak struct {
	how   Digest
	turns int
}

// A batch is the calls of one answer.
type batch struct {
	turn  int
	stop  StopReason
	calls []*call
	open  int // without a result
	item  int // index of the results in the history
}

// A call is one tool call of the Run.
type call struct {
	id       string // psych's
	wireID   string // what the provider is sent
	turn     int
	exchange int // counted from 1
	asked    *Asked
	tool     string    // that was reached, on the wire; "": the one that was asked for
	safe     bool      // as its last start says
	started  time.Time // of the last start; zero: none
	attempt  int64     // of the last start
	done     *ToolCallFinished
	parts    []part // once the batch is whole
}

// An item is a message of the history: a user's, an answer, or the results of
// a batch.
type item struct {
	user    *UserMessage
	said    *ModelCallFinished
	results *batch // of said: its calls; without said: their results
	model   string // of said
}

// A wireMark is what the last model call said of its wire.
type wireMark struct {
	codec    string
	zones    [3]Digest // tools, zone 1, zone 2
	history  Digest
	messages int
}

// A noteKey tells notes apart: a client may give an abort the id of a message.
type noteKey struct {
	kind Kind
	id   string
}

func (n *Note) noteKey() noteKey { return noteKey{n.Kind, n.ID} }

func newState(run RunKey, limits Limits) *state {
	return &state{run: run, rules: projections[projectionVersion], limits: limits.withDefaults(), status: StatusOpen,
		wireIDs: map[string]struct{}{}, notes: map[noteKey]struct{}{}, tails: map[int]*Tail{}, dropped: map[BlockKind]int{}}
}

func (s *state) corrupt(r *Record, reason Reason, format string, args ...any) error {
	return &CorruptionError{Run: s.run, Reason: reason, Seq: r.Seq,
		Detail: string(r.Event.Kind()) + ": " + fmt.Sprintf(format, args...)}
}

// apply folds one record. If it is illegal, s is unchanged and the error is a
// *CorruptionError.
func (s *state) apply(r *Record) error {
	if r.Seq != s.seq+1 {
		return s.corrupt(r, NonConsecutiveSeq, "want seq %d", s.seq+1)
	}
	if _, begins := r.Event.(*AttemptStarted); begins != (r.Attempt > s.attempt) || r.Attempt < s.attempt {
		return s.corrupt(r, StaleAttempt, "of attempt %d in attempt %d", r.Attempt, s.attempt)
	}
	var err error
	switch e := r.Event.(type) {
	case *Unknown:
	case *RunAdmitted:
		err = s.runAdmitted(r, e)
	case *AttemptStarted:
		s.attempt = r.Attempt
		if s.exchange != nil {
			s.fruitless++
		}
	case *UserMessage:
		err = s.userMessage(r, e)
	case *ModelCallStarted:
		err = s.modelCallStarted(r, e)
	case *ModelCallFinished:
		err = s.modelCallFinished(r, e)
	case *ModelCallFailed:
		if err = s.ofOpenModelCall(r, e.Turn); err == nil {
			s.calling, s.failure, s.failed = false, e, r.Time
			if e.Interrupted {
				s.failure = nil
			} else {
				s.tries++
			}
		}
	case *ToolCallStarted:
		err = s.toolCallStarted(r, e)
	case *ToolCallFinished:
		err = s.toolCallFinished(r, e)
	case *AbortRequested:
		s.notes[noteKey{e.Kind(), e.ID}] = struct{}{}
		if s.aborts(e) {
			s.exchange.aborting, s.exchange.reason = true, e.Reason
		}
	case *ExchangeClosed:
		err = s.exchangeClosed(r, e)
	}
	if err != nil {
		return err
	}
	s.seq = r.Seq
	for _, p := range r.Event.payloads() {
		s.bytes += int64(p.frameSize())
	}
	s.bytes += 256
	return nil
}

// aborts reports whether e ends the exchange that is open.
func (s *state) aborts(e *AbortRequested) bool {
	return s.exchange != nil && (e.Message == "" || e.Message == s.exchange.message)
}

func (s *state) runAdmitted(r *Record, e *RunAdmitted) error {
	if s.admitted != nil {
		return s.corrupt(r, NotAdmitted, "the Run is admitted already")
	}
	s.admitted = e
	return nil
}

func (s *state) userMessage(r *Record, e *UserMessage) error {
	switch {
	case s.admitted == nil:
		return s.corrupt(r, NotAdmitted, "before run_admitted")
	case s.exchange != nil && s.exchange.aborting:
		return s.corrupt(r, MessageAfterAbort, "message %q delivered into the aborted exchange", e.ID)
	case s.calling || s.batchOpen():
		return s.corrupt(r, MultipleOpenCalls, "message %q delivered while calls are open", e.ID)
	}
	if s.exchange == nil {
		s.exchange = &exchange{message: e.ID, seq: r.Seq, opened: r.Time, first: len(s.history)}
		s.exchanges++
		s.status = StatusOpen
	}
	s.notes[noteKey{e.Kind(), e.ID}] = struct{}{}
	s.history = append(s.history, item{user: e})
	s.fruitless = 0
	s.failure, s.answered = nil, nil
	return nil
}

func (s *state) batchOpen() bool { return s.batch != nil && s.batch.open > 0 }

// inExchange refuses what belongs to an exchange when none is open.
func (s *state) inExchange(r *Record) error {
	if s.exchange == nil {
		return s.corrupt(r, RecordAfterClose, "no exchange is open")
	}
	return nil
}

func (s *state) modelCallStarted(r *Record, e *ModelCallStarted) error {
	if err := s.inExchange(r); err != nil {
		return err
	}
	switch {
	case s.exchange.aborting:
		return s.corrupt(r, RecordAfterClose, "the exchange is aborted")
	case s.calling:
		return s.corrupt(r, MultipleOpenCalls, "turn %d has no answer yet", s.turn)
	case s.batchOpen():
		return s.corrupt(r, MultipleOpenCalls, "%d tool calls of turn %d have no result yet", s.batch.open, s.batch.turn)
	}
	if want := s.nextTurn(); e.Turn != want {
		return s.corrupt(r, NonConsecutiveSeq, "turn %d where turn %d follows", e.Turn, want)
	}
	mark, err := s.checkWire(r, e)
	if err != nil {
		return err
	}
	trims := make([]*part, len(e.Trimmed))
	for i, handle := range e.Trimmed {
		if trims[i] = s.part(handle); trims[i] == nil {
			return s.corrupt(r, UnknownCall, "%.80q was trimmed, which is no output of this Run", handle)
		}
	}
	for _, x := range trims {
		x.trimmed = true
	}
	if len(trims) > 0 {
		s.large = slices.DeleteFunc(s.large, func(x *part) bool { return x.trimmed })
	}
	for _, b := range e.Breaks {
		if b.Cause == ContextTrimmed {
			s.exchange.trimmed = true
		}
	}
	for _, kind := range e.Dropped {
		s.dropped[kind] = len(s.history)
	}
	s.wire = mark
	if e.Turn != s.turn {
		s.turn, s.tries = e.Turn, 0
	}
	if e.Model != "" {
		s.model = e.Model
	}
	if e.Memory != nil {
		s.memory = e.Memory
	}
	s.exchange.begun = true
	if e.Opening != nil {
		s.opening = *e.Opening
	}
	s.called = r.Time
	s.telling, s.tail = e.Servers, e.Tail
	s.exchange.telling = 0 // another try tells the same, and once
	if e.Tail != nil {
		for _, line := range e.Tail.News {
			if strings.HasPrefix(line, withheldNews) {
				s.exchange.telling++
			}
		}
	}
	s.calling, s.untold, s.failure, s.answered = true, true, nil, nil
	return nil
}

// holds reports whether the history has blocks of a kind that are not left out.
func (s *state) holds(kind BlockKind) bool {
	for i := s.dropped[kind]; i < len(s.history); i++ {
		if s.history[i].holds(kind) {
			return true
		}
	}
	return false
}

func (it *item) holds(kind BlockKind) bool {
	picture := func(p *Payload) bool {
		return kind == ImageBlocks && p.Binary && !p.letGo() && (len(p.begin()) == 0 || imageType(p.begin()) != "")
	}
	switch {
	case it.user != nil:
		return slices.ContainsFunc(it.user.Attachments, func(a Attachment) bool { return picture(&a.Output) })
	case it.said != nil:
		return kind == ProviderBlocks && slices.ContainsFunc(it.said.Blocks, func(b Said) bool { return b.Provider != nil })
	}
	return slices.ContainsFunc(it.results.calls, func(c *call) bool {
		return slices.ContainsFunc(c.parts, func(x part) bool { return picture(x.p) })
	})
}

// nextTurn is the turn of the next model call: another try of the last one
// while that has no answer.
func (s *state) nextTurn() int {
	if s.untold {
		return s.turn
	}
	return s.turn + 1
}

// checkWire holds the promise of the prefix: what was sent is sent again, but
// behind a break that the record names.
func (s *state) checkWire(r *Record, e *ModelCallStarted) (wireMark, error) {
	first := s.turn == 0
	m := s.wire
	if e.Codec != "" {
		m.codec = e.Codec
	}
	broken := len(m.zones) + 1 // from this zone on a break allows anything
	for _, b := range e.Breaks {
		broken = min(broken, b.Zone)
	}
	for zone, d := range []*Digest{e.Tools, e.Static, e.Dynamic} {
		if d == nil {
			continue
		}
		if !first && *d != m.zones[zone] && zone < broken {
			return m, s.corrupt(r, InconsistentWire, "zone %d changed without a break", zone)
		}
		m.zones[zone] = *d
	}
	kept := e.Prefix == nil || *e.Prefix == m.history
	if !first && broken > 3 && (!kept || e.Messages < m.messages) {
		return m, s.corrupt(r, InconsistentWire, "the history changed without a break")
	}
	m.history, m.messages = e.History, e.Messages
	return m, nil
}

func (s *state) ofOpenModelCall(r *Record, turn int) error {
	if err := s.inExchange(r); err != nil {
		return err
	}
	if !s.calling || turn != s.turn {
		return s.corrupt(r, UnknownCall, "no model call of turn %d is open", turn)
	}
	return nil
}

func (s *state) modelCallFinished(r *Record, e *ModelCallFinished) error {
	if err := s.ofOpenModelCall(r, e.Turn); err != nil {
		return err
	}
	s.calling, s.untold, s.fruitless = false, false, 0
	s.heard = s.wire.messages
	s.exchange.turns++
	s.exchange.told += s.exchange.telling
	s.exchange.telling = 0
	for _, x := range s.telling {
		if s.servers == nil {
			s.servers = map[string]ServerState{}
		}
		s.servers[x.Server] = x
	}
	s.telling = nil
	if s.tail != nil {
		s.tails[len(s.history)-1] = s.tail
	}
	s.spent.add(&e.Usage)
	s.exchange.spent.add(&e.Usage)
	b := &batch{turn: e.Turn, stop: e.Stop}
	for i := range e.Blocks {
		if a := e.Blocks[i].Call; a != nil {
			c := &call{id: callID(e.Turn, len(b.calls)+1), turn: e.Turn, exchange: s.exchanges, asked: a}
			c.wireID = s.wireID(c)
			b.calls = append(b.calls, c)
		}
	}
	b.open = len(b.calls)
	for len(s.batches) < e.Turn {
		s.batches = append(s.batches, nil)
	}
	if b.open > 0 {
		s.batches[e.Turn-1] = b
		s.batch, s.answered = b, nil
	} else {
		s.batch, s.answered = nil, e
	}
	s.history = append(s.history, item{said: e, results: b, model: s.model})
	return nil
}

// callID is psych's own id of a call: unique in its Run, and safe in a key.
func callID(turn, position int) string {
	var buf [44]byte
	b := strconv.AppendInt(append(buf[:0], 'c'), int64(turn), 10)
	return string(strconv.AppendInt(append(b, '_'), int64(position), 10))
}

// outputPrefix begins every handle: the handle of a call's result is "out_"
// and the call's id, that of an attachment has "_" and its slot behind it.
const outputPrefix = "out_"

// output finds the output that a handle names, among this Run's alone, with
// the call that it is of.
func (s *state) output(handle string) (*call, *Payload) {
	id, ok := strings.CutPrefix(handle, outputPrefix)
	if !ok {
		return nil, nil
	}
	slot, attached := "", false
	if i := strings.IndexByte(id, '_'); i >= 0 {
		var position string
		position, slot, attached = strings.Cut(id[i+1:], "_")
		id = id[:i+1] + position
	}
	c := s.call(id)
	if c == nil || c.done == nil {
		return nil, nil
	}
	if !attached {
		return c, &c.done.Result
	}
	for i := range c.done.Attachments {
		if a := &c.done.Attachments[i]; a.Slot == slot {
			return c, &a.Output
		}
	}
	return nil, nil
}

// part finds the part that a handle names.
func (s *state) part(handle string) *part {
	c, p := s.output(handle)
	if c != nil {
		for i := range c.parts {
			if c.parts[i].p == p {
				return &c.parts[i]
			}
		}
	}
	return nil
}

// call finds a call by psych's id.
func (s *state) call(id string) *call {
	turn, position, ok := parseCallID(id)
	if !ok || turn > len(s.batches) || s.batches[turn-1] == nil || position > len(s.batches[turn-1].calls) {
		return nil
	}
	return s.batches[turn-1].calls[position-1]
}

// wireID is the provider's own id of a call where that is fit to be sent
// again: not empty, not in use, made of letters, digits, _ and -, at most 40
// of them (OpenAI's bound), and not of the shape of psych's own; else psych's.
func (s *state) wireID(c *call) string {
	id := c.asked.ProviderID
	_, used := s.wireIDs[id]
	_, _, ours := parseCallID(id)
	if id == "" || used || ours || len(id) > 40 || strings.IndexFunc(id, illegalInID) >= 0 {
		return c.id
	}
	s.wireIDs[id] = struct{}{}
	return id
}

func illegalInID(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-')
}

// parseCallID reads an id that callID made, and nothing else.
func parseCallID(id string) (turn, position int, ok bool) {
	rest, c := strings.CutPrefix(id, "c")
	t, p, sep := strings.Cut(rest, "_")
	if !c || !sep || !isCount(t) || !isCount(p) {
		return 0, 0, false
	}
	turn, err1 := strconv.Atoi(t)
	position, err2 := strconv.Atoi(p)
	return turn, position, err1 == nil && err2 == nil
}

// isCount reports whether s is a positive number as AppendInt writes it.
func isCount(s string) bool {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return s != "" && s[0] != '0'
}

// inBatch finds a call of the open batch.
func (s *state) inBatch(r *Record, id string) (*call, error) {
	if err := s.inExchange(r); err != nil {
		return nil, err
	}
	c := s.call(id)
	if c == nil || s.batch == nil || c.turn != s.batch.turn {
		return nil, s.corrupt(r, UnknownCall, "%.80q is no call of the open batch", id)
	}
	if c.done != nil {
		return nil, s.corrupt(r, ToolCallMismatch, "%s has its result already", id)
	}
	return c, nil
}

func (s *state) toolCallStarted(r *Record, e *ToolCallStarted) error {
	c, err := s.inBatch(r, e.Call)
	if err != nil {
		return err
	}
	if !c.started.IsZero() && c.attempt == r.Attempt {
		return s.corrupt(r, DuplicateToolInvocation, "%s began in attempt %d already", c.id, r.Attempt)
	}
	c.started, c.attempt, c.safe = r.Time, r.Attempt, e.Safe
	c.tool = e.Tool
	return nil
}

func (s *state) toolCallFinished(r *Record, e *ToolCallFinished) error {
	c, err := s.inBatch(r, e.Call)
	if err != nil {
		return err
	}
	began := !c.started.IsZero()
	switch {
	case e.Outcome == Succeeded && (!began || c.attempt != r.Attempt):
		return s.corrupt(r, ToolCallMismatch, "%s succeeded without a start in attempt %d", c.id, r.Attempt)
	case e.Outcome == UnknownEnd && !began:
		return s.corrupt(r, ToolCallMismatch, "the outcome of %s is unknown, but it never began", c.id)
	case e.Outcome == NotStarted && began:
		return s.corrupt(r, ToolCallMismatch, "%s did not start, but the log says that it began", c.id)
	case e.Outcome == Succeeded && c.asked.Name == readToolOutputDef.Name:
		handle, _, err := parseReadArgs(c.asked.Arguments.Inline)
		if c.asked.Arguments.Ref == nil && err == nil {
			if of, _ := s.output(handle); of == nil {
				return s.corrupt(r, InvalidDeferredHandle, "%s read %.80q, which is no output of this Run", c.id, handle)
			}
		}
	}
	c.done = e
	if e.Tool != "" {
		c.tool = e.Tool
	}
	if e.Outcome == Succeeded || e.Outcome == Failed {
		s.fruitless = 0
	}
	if s.batch.open--; s.batch.open == 0 {
		s.elide(s.batch)
		s.countStreaks(s.batch)
		s.batch.item = len(s.history)
		s.history = append(s.history, item{results: s.batch})
	}
	return nil
}

// countStreaks withholds a tool of the Spec's that failed the same way several
// turns in a row. Calls of one turn count once, since the model could not have
// learned in between.
func (s *state) countStreaks(b *batch) {
	x := s.exchange
	failed := map[string]*ToolCallFinished{}
	for _, c := range b.calls {
		name := c.name()
		switch {
		case isBuiltIn(name) || c.wentNowhere() || c.done.Code == CodeCut || c.done.Code == CodeWithheld:
		case c.done.Outcome == Succeeded:
			delete(x.streaks, name)
			failed[name] = nil
		case c.done.Outcome == Failed:
			if last, seen := failed[name]; !seen || last != nil {
				failed[name] = c.done
			}
		}
	}
	for _, c := range b.calls { // in order, so that one log has one state
		name := c.name()
		e := failed[name]
		if e == nil {
			continue
		}
		failed[name] = nil
		how := digest(e.Code, string(firstChars(e.Result.begin(), maxFailureChars)))
		k := x.streaks[name]
		if k.how != how {
			k = streak{how: how}
		}
		k.turns++
		if x.streaks == nil {
			x.streaks = map[string]streak{}
		}
		x.streaks[name] = k
		if k.turns == maxSameFailure {
			x.withheld = append(x.withheld, name)
		}
	}
}

// name is the tool that a call reached, or asked for.
func (c *call) name() string {
	if c.tool != "" {
		return c.tool
	}
	return c.asked.Name
}

// wentNowhere reports whether it asked for a tool that goes to others, and
// reached none: none has failed.
func (c *call) wentNowhere() bool { return c.tool != "" && c.tool == c.asked.Name }

// withheldNews begins the line that tells of a withheld tool.
const withheldNews = "Withheld: "

// news is what the model has not been told yet of withheld tools.
func (s *state) news() []string {
	var lines []string
	for _, name := range s.exchange.withheld[s.exchange.told:] {
		lines = append(lines, fmt.Sprintf(withheldNews+"%s (it failed the same way %d times in a row)", wireName(name), maxSameFailure))
	}
	return lines
}

func (s *state) exchangeClosed(r *Record, e *ExchangeClosed) error {
	if err := s.inExchange(r); err != nil {
		return err
	}
	if s.calling || s.batchOpen() {
		return s.corrupt(r, MultipleOpenCalls, "calls of turn %d are open", s.turn)
	}
	s.exchange = nil
	s.status = e.Status
	s.fruitless = 0
	s.untold, s.failure, s.answered = false, nil, nil
	return nil
}
