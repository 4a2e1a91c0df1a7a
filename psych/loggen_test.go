package psych

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
)

var logsN = flag.Int("logs.n", 10_000, "how many logs TestGeneratedLogs makes")

// A logWriter writes legal logs by a small model of its own of what may follow
// what, apart from the fold that it tries.
type logWriter struct {
	r        *rand.Rand
	attempt  int64
	turn     int
	messages int
	aborts   int
	open     bool // an exchange
	calling  bool
	untold   bool
	aborting bool
	calls    []genCall // of the open batch
}

type genCall struct {
	id             string
	started, again bool // began in this attempt, or in any
	done           bool
}

func (w *logWriter) batchOpen() bool {
	for _, c := range w.calls {
		if !c.done {
			return true
		}
	}
	return false
}

// next is a random legal event.
func (w *logWriter) next() Event {
	for {
		switch k := w.r.IntN(10); {
		case k == 0 && w.r.IntN(4) == 0:
			w.attempt++
			for i := range w.calls {
				w.calls[i].started = false
			}
			return &AttemptStarted{}
		case k == 1 && !w.calling && !w.batchOpen() && !w.aborting:
			w.messages++
			w.open = true
			return message(fmt.Sprint("m", w.messages))
		case k <= 3 && w.open && !w.calling && !w.batchOpen() && !w.aborting:
			if !w.untold {
				w.turn++
			}
			w.calling, w.untold = true, true
			return start(w.turn)
		case k == 4 && w.calling:
			w.calling, w.untold, w.calls = false, false, nil
			var names []string
			for i := range w.r.IntN(4) {
				names = append(names, "a")
				w.calls = append(w.calls, genCall{id: callID(w.turn, i+1)})
			}
			return said(w.turn, names...)
		case k == 5 && w.calling:
			w.calling = false
			return &ModelCallFailed{Turn: w.turn, Transient: w.r.IntN(2) == 0, Interrupted: w.r.IntN(2) == 0, Message: "m"}
		case (k == 6 || k == 7) && w.batchOpen():
			c := &w.calls[w.r.IntN(len(w.calls))]
			if c.done {
				continue
			}
			if !c.started && w.r.IntN(2) == 0 {
				c.started, c.again = true, true
				return &ToolCallStarted{Call: c.id}
			}
			c.done = true
			outcome := Failed
			switch w.r.IntN(3) {
			case 0:
				if c.started {
					outcome = Succeeded
				}
			case 1:
				outcome = NotStarted
				if c.again {
					outcome = UnknownEnd
				}
			}
			e := finish(c.id, outcome)
			e.Result = newPayload("text/plain", make([]byte, w.r.IntN(3000)))
			return e
		case k == 8 && w.r.IntN(4) == 0:
			w.aborts++
			e := &AbortRequested{ID: fmt.Sprint("a", w.aborts)}
			if w.open {
				w.aborting = true
			}
			return e
		case k == 9 && w.open && !w.calling && !w.batchOpen():
			w.open, w.aborting, w.untold = false, false, false
			return &ExchangeClosed{Status: StatusCompleted}
		}
	}
}

// Logs of every legal shape fold, encode and decode to the same, in one go and
// in pieces, and make messages that answer each call once and in order; a record
// out of its place is refused for the right reason, and changes nothing.
func TestGeneratedLogs(t *testing.T) {
	records := 0
	for seed := range *logsN {
		w := &logWriter{r: rand.New(rand.NewPCG(uint64(seed), 1))}
		l := newFold()
		l.add(t, &AttemptStarted{}, &RunAdmitted{Projection: 1})
		w.attempt = 1
		pieces := newState(testRun, Limits{})
		var entries []*Record
		entries = append(entries, l.records...)
		for range 5 + w.r.IntN(40) {
			e := w.next()
			r := l.record(e)
			if err := l.s.apply(r); err != nil {
				t.Fatalf("seed %d: a legal log is refused: %v", seed, err)
			}
			entries = append(entries, r)
		}
		records += len(entries)
		for i, r := range entries {
			got := roundTrip(t, r)
			if again, err := encodeRecord(&Record{Seq: got.Seq, Time: got.Time, Attempt: got.Attempt, Event: got.Event}); err != nil || string(again) != string(got.raw) {
				t.Fatalf("seed %d: record %d encodes to %q and then to %q, %v", seed, i+1, got.raw, again, err)
			}
			if err := pieces.apply(got); err != nil {
				t.Fatalf("seed %d: record %d: %v", seed, i+1, err)
			}
		}
		if a, b := fold(l.s), fold(pieces); a != b {
			t.Fatalf("seed %d: folded as it was written\n%s\nand as it was read\n%s", seed, a, b)
		}
		answersAll(t, seed, pieces)

		// Out of their places.
		at := w.r.IntN(len(entries))
		wrong := *entries[at]
		for _, c := range []struct {
			change func(r *Record)
			reason Reason
		}{
			{func(r *Record) { r.Seq = pieces.seq + 2 }, NonConsecutiveSeq},
			{func(r *Record) { r.Seq = pieces.seq }, NonConsecutiveSeq},
			{func(r *Record) { r.Seq, r.Attempt = pieces.seq+1, pieces.attempt-1 }, StaleAttempt},
		} {
			r := wrong
			c.change(&r)
			before := fold(pieces)
			var corrupt *CorruptionError
			if err := pieces.apply(&r); !errors.As(err, &corrupt) || corrupt.Reason != c.reason || fold(pieces) != before {
				t.Fatalf("seed %d: %s as seq %d of attempt %d: %v, want %s", seed, r.Event.Kind(), r.Seq, r.Attempt, err, c.reason)
			}
		}
	}
	t.Logf("%d logs of %d records", *logsN, records)
}

// fold is what a state says, for comparing.
func fold(s *state) string {
	c := *s
	c.history, c.batches, c.large, c.batch, c.answered, c.failure, c.admitted, c.memory = nil, nil, nil, nil, nil, nil, nil, nil
	x := ""
	if s.exchange != nil {
		x = fmt.Sprintf("%+v", *s.exchange)
	}
	c.exchange = nil
	return fmt.Sprintf("%+v %s %d %v", c, x, len(s.history), s.batchOpen())
}

// answersAll checks the conversation as it is projected.
func answersAll(t *testing.T, seed int, s *state) {
	t.Helper()
	var asked []string
	for i := range s.history {
		m, err := s.message(context.Background(), i, nil, nil, nil, ModelLimits{})
		if err != nil {
			t.Fatalf("seed %d: message %d: %v", seed, i, err)
		}
		var ids []string
		for _, b := range m.Blocks {
			switch {
			case b.Call != nil:
				ids = append(ids, b.Call.ID)
			case b.Result != nil:
				ids = append(ids, b.Result.CallID)
			}
		}
		switch m.Role {
		case RoleTool:
			if !reflect.DeepEqual(ids, asked) {
				t.Fatalf("seed %d: the calls %v are answered as %v", seed, asked, ids)
			}
			asked = nil
		default:
			if len(asked) > 0 {
				t.Fatalf("seed %d: message %d stands before the answers to %v", seed, i, asked)
			}
			asked = ids
		}
	}
}
