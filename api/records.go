package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// A hub tells those who follow a Run what happens in it.
type hub struct {
	mu        sync.Mutex
	listeners map[psych.RunKey]map[*listener]struct{}
}

// A listener follows one Run. Its channels never block who tells it.
type listener struct {
	changed chan struct{}    // holds one token while there may be news
	deltas  chan psych.Delta // nil: not wanted
}

// maxDeltas is how many deltas wait for a client that is slow; then some are
// left out. The record that follows has them all.
const maxDeltas = 256

func (b *hub) listen(key psych.RunKey, deltas bool) (*listener, func()) {
	l := &listener{changed: make(chan struct{}, 1)}
	if deltas {
		l.deltas = make(chan psych.Delta, maxDeltas)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.listeners == nil {
		b.listeners = map[psych.RunKey]map[*listener]struct{}{}
	}
	if b.listeners[key] == nil {
		b.listeners[key] = map[*listener]struct{}{}
	}
	b.listeners[key][l] = struct{}{}
	return l, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.listeners[key], l)
		if len(b.listeners[key]) == 0 {
			delete(b.listeners, key)
		}
	}
}

func (b *hub) observe(key psych.RunKey, o psych.Observation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for l := range b.listeners[key] {
		if o.Delta != nil && l.deltas != nil {
			select {
			case l.deltas <- *o.Delta:
			default:
			}
		}
		if o.Record != nil {
			select {
			case l.changed <- struct{}{}:
			default:
			}
		}
	}
}

// maxRecords bounds the records of an answer.
const maxRecords = 1000

// hints, in seconds, of when to ask again.
const (
	askSoon  = 1 // something just happened
	askLater = 2 // nothing new
	askIdle  = 5 // the exchange is over
)

func (h *Handler) records(w http.ResponseWriter, r *request) error {
	q, err := r.query("after", "limit", "wait", "deltas")
	if err != nil {
		return err
	}
	key, err := r.run()
	if err != nil {
		return err
	}
	after, err := position(r.Header, q.Get("after"))
	if err != nil {
		return err
	}
	limit, err := number(q, "limit", 200, maxRecords)
	if err != nil {
		return err
	}
	if limit == 0 {
		return invalid("limit is 0: want 1 to %d", maxRecords)
	}
	wait, err := number(q, "wait", 0, 3600)
	if err != nil {
		return err
	}
	deltas, err := boolean(q, "deltas")
	if err != nil {
		return err
	}
	if wantsStream(r.Header) {
		return h.stream(w, r, key, after, int(limit), deltas)
	}
	l, leave := h.hub.listen(key, false)
	defer leave()
	p, err := h.page(r, key, after, int(limit))
	if err != nil {
		return err
	}
	if most := min(time.Duration(wait)*time.Second, h.o.MaxWait); most > 0 && len(p.records) == 0 {
		patient(w)
		ctx, cancel := context.WithTimeout(r.Context(), most)
		defer cancel()
		for len(p.records) == 0 && h.await(ctx, l) {
			if p, err = h.page(r, key, p.next, int(limit)); err != nil {
				return err
			}
		}
		if err := r.Context().Err(); err != nil {
			return err
		}
	}
	hint := 0
	switch {
	case p.more:
	case p.closed:
		hint = askIdle
	case len(p.records) > 0:
		hint = askSoon
	case h.o.MaxWait == 0:
		hint = askLater
	}
	if hint > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(hint))
	}
	return h.answer(w, http.StatusOK, struct {
		Records   []json.RawMessage `json:"records"`
		Next      string            `json:"next"`
		More      bool              `json:"more"`
		PollAfter int               `json:"poll_after_seconds"`
	}{append([]json.RawMessage{}, p.records...), p.next.String(), p.more, hint})
}

// patient lifts the time that a server gives a client to send its request: it is
// here, and the connection is read on to learn whether the client leaves.
func patient(w http.ResponseWriter) {
	http.NewResponseController(w).SetReadDeadline(time.Time{}) // where there is a connection
}

// await waits for news, or for the time to look for what other processes wrote.
// It is false when the wait is over.
func (h *Handler) await(ctx context.Context, l *listener) bool {
	timer := time.NewTimer(h.o.Poll)
	defer timer.Stop()
	select {
	case <-l.changed:
		return true
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-h.drained:
	}
	return false
}

// position is where a client goes on: behind the last event that it saw, or
// where it says.
func position(header http.Header, after string) (psych.Pos, error) {
	last, err := one(header, "Last-Event-ID")
	if err != nil {
		return psych.Pos{}, err
	}
	name := "after"
	if last != "" {
		name, after = "the header Last-Event-ID", last
	}
	if after == "" {
		return psych.Pos{}, nil
	}
	pos, err := psych.ParsePos(after)
	if err != nil {
		return psych.Pos{}, invalid("%s is %.80q: want a seq, or a position that Psych returned", name, after)
	}
	return pos, nil
}

func wantsStream(header http.Header) bool {
	for _, v := range strings.Split(strings.Join(header.Values("Accept"), ","), ",") {
		if t, _, err := mime.ParseMediaType(v); err == nil && t == "text/event-stream" {
			return true
		}
	}
	return false
}

const (
	keepAlive   = 15 * time.Second // between signs of life in a stream
	writeWithin = 10 * time.Second // that a client has to take a piece of a stream
)

// stream sends records as server-sent events: each with its position as id, so
// that a client that comes back goes on behind it. Where waiting isn't allowed
// it ends with the log, and says when to come back.
func (h *Handler) stream(w http.ResponseWriter, r *request, key psych.RunKey, after psych.Pos, limit int, deltas bool) error {
	l, leave := h.hub.listen(key, deltas)
	defer leave()
	p, err := h.page(r, key, after, limit)
	if err != nil {
		return err // while there can still be a problem
	}
	patient(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	s := &events{w: w, c: http.NewResponseController(w)}
	ctx, cancel := context.WithTimeout(r.Context(), h.o.MaxStream)
	defer cancel()
	if h.o.MaxWait == 0 {
		s.retry(askLater)
	} else {
		s.retry(askSoon)
	}
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	poll := time.NewTicker(h.o.Poll)
	defer poll.Stop()
	for {
		s.records(p)
		if s.flush() != nil {
			return nil
		}
		look := p.more
		if !look && h.o.MaxWait == 0 {
			return nil
		}
		for !look {
			select {
			case d := <-l.deltas:
				s.delta(d)
			case <-l.changed:
				look = true
			case <-poll.C:
				look = true
			case <-alive.C:
				s.comment()
			case <-ctx.Done():
				return nil
			case <-h.drained:
				return nil
			}
			if !look && s.flush() != nil {
				return nil
			}
		}
		if p, err = h.page(r, key, p.next, limit); err != nil {
			if ctx.Err() == nil {
				s.problem(r, err)
				s.flush()
			}
			return nil
		}
		// What was said before a record comes before it.
		for more := true; more; {
			select {
			case d := <-l.deltas:
				s.delta(d)
			default:
				more = false
			}
		}
	}
}

// events writes server-sent events.
type events struct {
	w   http.ResponseWriter
	c   *http.ResponseController
	b   bytes.Buffer
	err error
}

func (s *events) retry(after int) { fmt.Fprintf(&s.b, "retry: %d\n\n", after*1000) }

func (s *events) comment() { s.b.WriteString(":\n\n") }

func (s *events) records(p *page) {
	for i, line := range p.records {
		id := psych.Pos{Seq: p.seqs[i]}
		if i == len(p.records)-1 {
			id = p.next
		}
		fmt.Fprintf(&s.b, "id: %s\nevent: record\ndata: %s\n\n", id, line)
	}
}

// A deltaEvent is a piece of what a model says. It is no record: nothing keeps
// it, and some may be left out.
type deltaEvent struct {
	Text      string `json:"text,omitempty"`
	Reasoning string `json:"reasoning,omitempty"`
	Call      int    `json:"call,omitempty"`
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments,omitempty"`
}

func (s *events) delta(d psych.Delta) {
	line, err := marshal(deltaEvent(d))
	if err == nil {
		fmt.Fprintf(&s.b, "event: delta\ndata: %s\n\n", bytes.TrimSpace(line))
	}
}

func (s *events) problem(r *request, err error) {
	p := problemOf(err)
	p.Type, p.Instance = typePrefix+p.Code, idOf(r.Context())
	if line, err := marshal(p); err == nil {
		fmt.Fprintf(&s.b, "event: problem\ndata: %s\n\n", bytes.TrimSpace(line))
	}
}

// flush sends what was written. A client that does not take it in time is gone.
func (s *events) flush() error {
	if s.err != nil || s.b.Len() == 0 {
		return s.err
	}
	s.c.SetWriteDeadline(time.Now().Add(writeWithin)) // where there is a connection
	if _, s.err = s.w.Write(s.b.Bytes()); s.err == nil {
		s.c.Flush() // where there is something to flush
	}
	s.b.Reset()
	return s.err
}
