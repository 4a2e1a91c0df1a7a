package psych

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// A script of a log: each event is applied in the attempt that was begun last.
type foldLogger struct {
	s       *state
	attempt int64
	records []*Record
}

func (l *foldLogger) record(e Event) *Record {
	if _, ok := e.(*AttemptStarted); ok {
		l.attempt++
	}
	return &Record{Seq: l.s.seq + 1, Time: testTime, Attempt: l.attempt, Event: e}
}

func (l *foldLogger) add(t testing.TB, events ...Event) {
	t.Helper()
	for _, e := range events {
		r := l.record(e)
		if err := l.s.apply(r); err != nil {
			t.Fatalf("seq %d: %v", r.Seq, err)
		}
		l.records = append(l.records, r)
	}
}

func newFold() *foldLogger { return &foldLogger{s: newState(testRun, Limits{})} }

func said(turn int, calls ...string) *ModelCallFinished {
	e := &ModelCallFinished{Turn: turn, Stop: StopEnd}
	for _, name := range calls {
		e.Blocks = append(e.Blocks, Said{Call: &Asked{Name: name, Arguments: newPayload("application/json", []byte("{}"))}})
	}
	return e
}

func start(turn int) *ModelCallStarted {
	zero := Digest{}
	e := &ModelCallStarted{Turn: turn}
	if turn == 1 {
		e.Tools, e.Static, e.Dynamic = &zero, &zero, &zero
	}
	return e
}

func finish(call string, o ToolOutcome) *ToolCallFinished {
	return &ToolCallFinished{Call: call, Outcome: o, Result: newPayload("text/plain", []byte("ok"))}
}

func message(id string) *UserMessage {
	return &UserMessage{ID: id, Text: newPayload("text/plain", []byte("hi"))}
}

// opened is a log up to an open batch of two calls, the first of which began.
func opened(t testing.TB) *foldLogger {
	l := newFold()
	l.add(t, &AttemptStarted{}, &RunAdmitted{Projection: 1}, message("m1"), start(1), said(1, "a", "b"), &ToolCallStarted{Call: "c1_1"})
	return l
}

func TestFoldRefuses(t *testing.T) {
	other := Digest{9}
	done := func(t testing.TB) *foldLogger {
		l := opened(t)
		l.add(t, &ToolCallStarted{Call: "c1_2"}, finish("c1_1", Succeeded), finish("c1_2", Failed))
		return l
	}
	answered := func(t testing.TB) *foldLogger {
		l := done(t)
		l.add(t, start(2), said(2))
		return l
	}
	closed := func(t testing.TB) *foldLogger {
		l := answered(t)
		l.add(t, &ExchangeClosed{Status: StatusCompleted})
		return l
	}
	aborted := func(t testing.TB) *foldLogger {
		l := done(t)
		l.add(t, &AbortRequested{ID: "x"})
		return l
	}
	read := func(handle string) func(testing.TB) *foldLogger {
		return func(t testing.TB) *foldLogger {
			l := done(t)
			a := said(2, readToolOutputDef.Name)
			a.Blocks[0].Call.Arguments = newPayload("application/json", []byte(`{"handle":"`+handle+`"}`))
			l.add(t, start(2), a, &ToolCallStarted{Call: "c2_1"})
			return l
		}
	}
	for _, c := range []struct {
		name   string
		log    func(testing.TB) *foldLogger
		event  Event
		change func(*Record)
		reason Reason
	}{
		{"a gap", opened, finish("c1_1", Succeeded), func(r *Record) { r.Seq++ }, NonConsecutiveSeq},
		{"a repeated seq", opened, finish("c1_1", Succeeded), func(r *Record) { r.Seq-- }, NonConsecutiveSeq},
		{"a turn left out", done, start(3), nil, NonConsecutiveSeq},
		{"a turn again after its answer", done, start(1), nil, NonConsecutiveSeq},
		{"a result after the close", closed, finish("c1_1", Succeeded), nil, RecordAfterClose},
		{"a start after the close", closed, &ToolCallStarted{Call: "c1_1"}, nil, RecordAfterClose},
		{"a model call after the close", closed, start(3), nil, RecordAfterClose},
		{"an answer after the close", closed, said(2), nil, RecordAfterClose},
		{"a second close", closed, &ExchangeClosed{Status: StatusFailed}, nil, RecordAfterClose},
		{"a model call after an abort", aborted, start(2), nil, RecordAfterClose},
		{"a model call while calls are open", opened, start(2), nil, MultipleOpenCalls},
		{"two model calls", func(t testing.TB) *foldLogger { l := done(t); l.add(t, start(2)); return l }, start(2), nil, MultipleOpenCalls},
		{"a message while calls are open", opened, message("m2"), nil, MultipleOpenCalls},
		{"a close while calls are open", opened, &ExchangeClosed{Status: StatusFailed}, nil, MultipleOpenCalls},
		{"an answer to no call", done, said(1), nil, UnknownCall},
		{"a failure of no call", done, &ModelCallFailed{Turn: 1}, nil, UnknownCall},
		{"a result of a call that nobody asked for", opened, finish("c1_3", Failed), nil, UnknownCall},
		{"a start of a past batch", read("out_c1_1"), &ToolCallStarted{Call: "c1_1"}, nil, UnknownCall},
		{"a call that begins twice", opened, &ToolCallStarted{Call: "c1_1"}, nil, DuplicateToolInvocation},
		{"a second result", func(t testing.TB) *foldLogger { l := opened(t); l.add(t, finish("c1_1", Succeeded)); return l }, finish("c1_1", Failed), nil, ToolCallMismatch},
		{"a start after the result", func(t testing.TB) *foldLogger { l := opened(t); l.add(t, finish("c1_1", Succeeded)); return l }, &ToolCallStarted{Call: "c1_1"}, nil, ToolCallMismatch},
		{"a success without a start", opened, finish("c1_2", Succeeded), nil, ToolCallMismatch},
		{"a success of a past attempt's start", func(t testing.TB) *foldLogger { l := opened(t); l.add(t, &AttemptStarted{}); return l }, finish("c1_1", Succeeded), nil, ToolCallMismatch},
		{"an unknown end without a start", opened, finish("c1_2", UnknownEnd), nil, ToolCallMismatch},
		{"not started, but begun", opened, finish("c1_1", NotStarted), nil, ToolCallMismatch},
		{"a message into the aborted exchange", aborted, message("m2"), nil, MessageAfterAbort},
		{"a success on a handle of another Run", read("out_c9_9"), finish("c2_1", Succeeded), nil, InvalidDeferredHandle},
		{"tools that changed", done, &ModelCallStarted{Turn: 2, Tools: &other}, nil, InconsistentWire},
		{"zone 1 that changed", done, &ModelCallStarted{Turn: 2, Static: &other}, nil, InconsistentWire},
		{"zone 2 that changed", done, &ModelCallStarted{Turn: 2, Dynamic: &other}, nil, InconsistentWire},
		{"zone 1 behind a break of zone 2", done, &ModelCallStarted{Turn: 2, Static: &other, Breaks: []Break{{2, MemoryChanged}}}, nil, InconsistentWire},
		{"history that changed", done, &ModelCallStarted{Turn: 2, Prefix: &other}, nil, InconsistentWire},
		{"an older attempt", func(t testing.TB) *foldLogger { l := opened(t); l.add(t, &AttemptStarted{}); return l }, finish("c1_1", UnknownEnd), func(r *Record) { r.Attempt-- }, StaleAttempt},
		{"an attempt that began nowhere", opened, finish("c1_1", Succeeded), func(r *Record) { r.Attempt++ }, StaleAttempt},
		{"an attempt that begins again", opened, &AttemptStarted{}, func(r *Record) { r.Attempt-- }, StaleAttempt},
		{"a message before the admission", func(t testing.TB) *foldLogger { l := newFold(); l.add(t, &AttemptStarted{}); return l }, message("m1"), nil, NotAdmitted},
		{"a second admission", opened, &RunAdmitted{}, nil, NotAdmitted},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			l := c.log(t)
			r := l.record(c.event)
			if c.change != nil {
				c.change(r)
			}
			before := fmt.Sprintf("%+v %+v %+v", *l.s, l.s.batch, l.s.exchange)
			err := l.s.apply(r)
			var corrupt *CorruptionError
			if !errors.As(err, &corrupt) || corrupt.Reason != c.reason || corrupt.Seq != r.Seq || corrupt.Run != testRun {
				t.Fatalf("got %v, want %s at seq %d", err, c.reason, r.Seq)
			}
			if (c.reason == InvalidDeferredHandle) != errors.Is(err, ErrAccessDenied) {
				t.Errorf("errors.Is(%v, ErrAccessDenied) is wrong", err)
			}
			if after := fmt.Sprintf("%+v %+v %+v", *l.s, l.s.batch, l.s.exchange); after != before {
				t.Errorf("the refused record changed the state:\nbefore %s\n after %s", before, after)
			}
		})
	}
}

func TestFoldAllows(t *testing.T) {
	other := Digest{9}
	l := opened(t)
	// A later attempt runs a call again; what is not safe is settled.
	l.add(t, &AttemptStarted{}, finish("c1_2", NotStarted), &ToolCallStarted{Call: "c1_1"}, finish("c1_1", Succeeded))
	if len(l.s.history) != 3 {
		t.Fatalf("history has %d messages, want 3", len(l.s.history))
	}
	// A break explains what follows it.
	l.add(t, &ModelCallStarted{Turn: 2, Dynamic: &other, Prefix: &other, Breaks: []Break{{2, MemoryChanged}}},
		&ModelCallFailed{Turn: 2, Transient: true}, start(2), &ModelCallFailed{Turn: 2, Transient: true})
	if l.s.tries != 2 {
		t.Errorf("tries %d, want 2", l.s.tries)
	}
	l.add(t, message("m2"), start(2), said(2), &ExchangeClosed{Status: StatusCompleted}, &AbortRequested{ID: "late", Message: "m1"})
	if l.s.exchange != nil || l.s.status != StatusCompleted {
		t.Errorf("status %s", l.s.status)
	}
	l.add(t, message("m3"), &AbortRequested{ID: "later", Message: "m1"}, start(3))
	if l.s.exchange.aborting {
		t.Error("an abort of an exchange that has ended ends the next")
	}
}

// Every prefix of a legal log folds, and folding in pieces is folding in one go.
func TestFoldPrefixes(t *testing.T) {
	l := opened(t)
	l.add(t, &AttemptStarted{}, finish("c1_1", UnknownEnd), &ToolCallStarted{Call: "c1_2"}, finish("c1_2", Succeeded), start(2), said(2), &ExchangeClosed{Status: StatusCompleted}, message("m2"))
	for n := range l.records {
		s := newState(testRun, Limits{})
		for _, r := range l.records[:n+1] {
			if err := s.apply(roundTrip(t, r)); err != nil {
				t.Fatalf("prefix of %d: %v", n+1, err)
			}
		}
		if s.seq != uint64(n+1) {
			t.Fatalf("prefix of %d ends at seq %d", n+1, s.seq)
		}
	}
}

func TestFruitlessAttempts(t *testing.T) {
	l := opened(t)
	l.add(t, finish("c1_2", Failed), &AttemptStarted{}, &AttemptStarted{}, finish("c1_1", UnknownEnd), &AttemptStarted{})
	if l.s.fruitless != 3 {
		t.Errorf("a settlement counts as progress: %d, want 3", l.s.fruitless)
	}
	l.add(t, start(2))
	if l.s.fruitless != 3 {
		t.Errorf("a model start counts as progress: %d, want 3", l.s.fruitless)
	}
	l.add(t, said(2))
	if l.s.fruitless != 0 {
		t.Errorf("an answer is no progress: %d", l.s.fruitless)
	}
}

func TestWireID(t *testing.T) {
	l := newFold()
	ids := []string{"", "call_1", "call_1", "a.b", "c1_2", strings.Repeat("x", 65), "sp ace", "ok-2", "\xff"}
	want := []string{"c1_1", "call_1", "c1_3", "c1_4", "c1_5", "c1_6", "c1_7", "ok-2", "c1_9"}
	a := said(1)
	for _, id := range ids {
		a.Blocks = append(a.Blocks, Said{Call: &Asked{ProviderID: id, Name: "n", Arguments: newPayload("application/json", []byte("{}"))}})
	}
	l.add(t, &AttemptStarted{}, &RunAdmitted{}, message("m"), start(1), a)
	for i, c := range l.s.batch.calls {
		if c.wireID != want[i] {
			t.Errorf("provider id %q: on the wire %q, want %q", ids[i], c.wireID, want[i])
		}
	}
}

// turnsTo folds tool turns until the log has at least n records.
func turnsTo(t testing.TB, n uint64) *foldLogger {
	l := newFold()
	l.add(t, &AttemptStarted{}, &RunAdmitted{}, message("m"))
	for turn := 1; l.s.seq < n; turn++ {
		id := callID(turn, 1)
		l.add(t, start(turn), said(turn, "a"), &ToolCallStarted{Call: id}, finish(id, Succeeded))
	}
	return l
}

// Folding one more record costs the same wherever in the log it is.
func TestFoldAllocations(t *testing.T) {
	measure := func(l *foldLogger) float64 {
		turn := l.s.turn
		// Many turns: growth of slices and maps is spread over them.
		events := make([]*Record, 0, 4*2000)
		seq := l.s.seq
		for i := range 2000 {
			id := callID(turn+1+i, 1)
			for _, e := range []Event{start(turn + 1 + i), said(turn+1+i, "a"), &ToolCallStarted{Call: id}, finish(id, Succeeded)} {
				seq++
				events = append(events, &Record{Seq: seq, Time: testTime, Attempt: l.attempt, Event: e})
			}
		}
		i := 0
		return testing.AllocsPerRun(len(events)/4-1, func() {
			for range 4 {
				if err := l.s.apply(events[i]); err != nil {
					t.Fatal(err)
				}
				i++
			}
		})
	}
	early, late := measure(turnsTo(t, 10)), measure(turnsTo(t, 10_000))
	if early != late {
		t.Errorf("allocations a turn of 4 records: %v at seq 10, %v at seq 10,000; want them equal", early, late)
	}
	t.Logf("allocations a turn of 4 records: %v at seq 10 and at seq 10,000", early)
}
