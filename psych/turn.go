package psych

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

// turn makes one model call. What waits to be written, the results of the turn
// before it above all, goes into the append that announces it.
func (d *driver) turn() error {
	if now := time.Now(); d.turned {
		d.longest = max(d.longest, now.Sub(d.began))
		d.began = now
	} else {
		d.turned, d.began = true, now
	}
	req, err := d.prepare()
	if errors.Is(err, errAborted) { // while servers were asked
		return d.takeAborts()
	}
	if err != nil {
		return err
	}
	if req == nil {
		return nil // the exchange is closed instead
	}
	if err := d.flush(); err != nil {
		return err
	}
	if err := d.guard(); err != nil {
		return err
	}
	began := d.now()
	resp, err := d.generate(req)
	took := d.now().Sub(began).Milliseconds()
	turn := d.state.turn
	var failed *ModelError
	switch {
	case err == nil:
		err := d.emit(answerOf(turn, resp, took))
		if errors.Is(err, ErrNoBlobStore) || errors.Is(err, ErrTooLarge) {
			code := "too_large"
			if errors.Is(err, ErrNoBlobStore) {
				code = CodeNoBlobStore
			}
			if err := d.emit(&ModelCallFailed{Turn: turn, Message: err.Error()}); err != nil {
				return err
			}
			return d.close(StatusFailed, code, err.Error())
		}
		return err
	case errors.Is(err, errAborted):
		if err := d.emit(&ModelCallFailed{Turn: turn, Interrupted: true, Message: "the exchange was aborted"}); err != nil {
			return err
		}
		return d.takeAborts()
	case d.ctx.Err() != nil:
		if err := d.emit(&ModelCallFailed{Turn: turn, Interrupted: true, Message: "the worker ended before the model answered"}); err != nil {
			return err
		}
		return d.ctx.Err()
	case errors.As(err, &failed):
	default: // the driver's own, such as a lost lease: nothing is known of the model
		return err
	}
	d.log.WarnContext(d.ctx, "model call failed", "turn", turn, "status", failed.Status, "transient", failed.Transient)
	return d.emit(&ModelCallFailed{
		Turn: turn, Status: failed.Status, Transient: failed.Transient, Overflow: failed.Overflow,
		Refused: failed.Refused, RetryMillis: failed.RetryAfter.Milliseconds(), RequestID: bounded(failed.RequestID), Message: string(firstChars([]byte(strings.ToValidUTF8(failed.Message, "\uFFFD")), 2000)),
	})
}

// prepare encodes the request of the next model call and makes its record. A
// Model that can't be had closes the exchange.
func (d *driver) prepare() (*Request, error) {
	s, spec := d.state, &d.version.Spec
	if d.model == nil {
		m, err := d.rt.o.Models(d.ctx, spec.Model)
		if d.ctx.Err() != nil {
			return nil, d.ctx.Err()
		}
		if err != nil {
			return nil, d.close(StatusFailed, "model", fmt.Sprintf("the model %q can't be opened: %v", spec.Model, err))
		}
		d.model = m
	}
	if closed, err := d.servers(); closed || err != nil {
		return nil, err
	}
	p, err := d.prompt.on(s, d.model.Codec(), d.version, d.openedAt, d.opened, d.rt.opening)
	if err != nil {
		return nil, err
	}
	d.prompt = p
	memory, err := d.memory()
	if err != nil {
		return nil, err
	}
	if err := p.extend(d.store, s, d.rt.o.Blobs); err != nil {
		return nil, err
	}
	trims, why := []*part(nil), BreakCause("")
	switch {
	case d.full: // trimmed once an exchange
		trims, why = s.trimContext(), ContextTrimmed
	case !s.exchange.begun:
		trims, why = d.trimHistory(), HistoryTrimmed
	}
	var dropped []BlockKind
	if d.dropping != "" {
		dropped = append(dropped, d.dropping)
	}
	if err := p.revise(d.store, s, d.rt.o.Blobs, trims, dropped, s.dropped); err != nil {
		return nil, err
	}
	if !s.untold || d.tail == nil { // another try sends the same
		d.tail = nil
		var news []string
		d.telling = nil
		if d.set != nil {
			d.telling, news = d.tellServers(d.set, s.exchange.turns == 0)
		}
		if news = append(news, s.news()...); s.exchange.turns == 0 || len(news) > 0 {
			d.tail = &Tail{Now: d.now().Truncate(time.Minute), News: news}
		}
	}
	tail, err := p.tail(d.tail)
	if err != nil {
		return nil, err
	}
	e := p.start(s, d.modelName(), memory, trims, why, dropped, d.tail, &tail)
	e.Servers = d.telling
	if at := d.openedAt; at != s.opening {
		e.Opening = &at
	}
	if limit := d.contextTokens(); limit > 0 && estimate(e.Chars[0]+e.Chars[1]+e.Chars[2]+e.Chars[3]) > limit {
		if !d.full && !s.exchange.trimmed && len(s.trimContext()) > 0 {
			d.full, d.prompt = true, nil // encoded anew with what is trimmed then
			return d.prepare()
		}
		d.full, d.prompt = false, nil // it may hold trims that the log does not
		return nil, d.close(StatusExhausted, "context", fmt.Sprintf("the conversation takes an estimated %d tokens, of a context of %d, with all that can be trimmed", estimate(e.Chars[0]+e.Chars[1]+e.Chars[2]+e.Chars[3]), limit))
	}
	d.full, d.dropping = false, ""
	if err := d.emit(e); err != nil {
		return nil, err
	}
	p.fresh, p.reopened, p.met = false, false, false
	return p.request(d.version, spec.Model, d.info.Incarnation, tail), nil
}

// contextTokens is what a request may take: the Spec's limit, or the
// provider's.
func (d *driver) contextTokens() int {
	if n := d.state.limits.ContextTokens; n > 0 {
		return n
	}
	return d.model.Codec().Limits().ContextTokens
}

// memory brings zone 2 up to date: as an exchange opens it asks, and returns
// what is to be recorded if that is new.
func (d *driver) memory() (*Payload, error) {
	s, p := d.state, d.prompt
	recorded := ""
	if s.memory != nil {
		recorded = string(s.memory.Inline)
	}
	if s.exchange.begun || d.rt.o.Memories == nil {
		return nil, p.setMemory(recorded)
	}
	text, err := d.rt.o.Memories(d.ctx, d.info.Scope)
	if err != nil {
		return nil, fmt.Errorf("psych: memories of run %s: %w", d.key, err)
	}
	if len(text) > MaxMemoryBytes {
		return nil, fmt.Errorf("psych: memories of run %s are %d bytes: want at most %d: %w", d.key, len(text), MaxMemoryBytes, ErrTooLarge)
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	if err := p.setMemory(text); err != nil || text == recorded {
		return nil, err
	}
	m := newPayload("text/plain", []byte(text))
	return &m, nil
}

// answerOf records what the model said: texts repaired visibly, provider
// blocks byte for byte.
func answerOf(turn int, r *Response, took int64) *ModelCallFinished {
	e := &ModelCallFinished{Turn: turn, Stop: r.Stop, Usage: r.Usage, Sent: r.Sent, RequestID: bounded(r.RequestID), Milliseconds: took}
	for _, b := range r.Blocks {
		switch {
		case b.Call != nil:
			args := newPayload("application/json", b.Call.Arguments)
			e.Blocks = append(e.Blocks, Said{Call: &Asked{ProviderID: bounded(b.Call.ProviderID), Name: bounded(b.Call.Name), Arguments: args}})
		case b.Provider != nil:
			p := newPayload("application/octet-stream", b.Provider)
			e.Blocks = append(e.Blocks, Said{Provider: &p})
		case b.Text != "":
			p := newPayload("text/plain", []byte(b.Text))
			e.Blocks = append(e.Blocks, Said{Text: &p})
		}
	}
	return e
}

// bounded is a name or id of a model, as it can stand in the head of a record.
func bounded(s string) string {
	return string(firstChars([]byte(strings.ToValidUTF8(s, "\uFFFD")), 256))
}

// A modelEnd is how a call of Generate ended.
type modelEnd struct {
	resp *Response
	err  error
}

var errIdle = errors.New("psych: the stream is idle")

// generate makes one attempt of a model call, and keeps the lease meanwhile.
func (d *driver) generate(req *Request) (*Response, error) {
	ctx, cancel := context.WithCancelCause(d.ctx)
	defer cancel(nil)
	in, gone := make(chan event), make(chan struct{})
	defer close(gone)
	go func() {
		end := &modelEnd{}
		end.resp, end.err = call1(ctx, d.model, req, func(x Delta) {
			select {
			case in <- event{delta: &x}:
			case <-ctx.Done():
			}
		})
		select {
		case in <- event{answer: end}:
		case <-gone:
		}
	}()
	idle := time.NewTimer(idleStream)
	defer idle.Stop()
	for {
		e, err := d.wait(in, idle.C)
		switch {
		case e.delta != nil:
			idle.Reset(idleStream)
			if d.o.Observe != nil {
				d.o.Observe(Observation{Delta: e.delta})
			}
			continue
		case e.answer != nil:
			return e.answer.resp, e.answer.err
		case err == nil:
			err = &ModelError{Transient: true, Message: fmt.Sprintf("no piece of an answer came for %v", idleStream), Err: errIdle}
		}
		cancel(err)
		grace := time.NewTimer(d.grace())
		defer grace.Stop()
		for {
			select {
			case e := <-in:
				if e.answer == nil {
					continue
				}
				if e.answer.err == nil && !errors.Is(err, errAborted) && !errors.Is(err, ErrLeaseLost) {
					return e.answer.resp, nil // it came all the same, and is paid for
				}
			case <-grace.C:
				d.log.WarnContext(d.ctx, "the model did not heed its context and is left behind")
			}
			return nil, err
		}
	}
}

// call1 calls Generate and turns a panic, or an answer of nothing, into a
// failure.
func call1(ctx context.Context, m Model, req *Request, on func(Delta)) (resp *Response, err error) {
	defer func() {
		if v := recover(); v != nil {
			resp, err = nil, &ModelError{Message: fmt.Sprintf("the model adapter panicked: %v", v), Err: fmt.Errorf("%s", debug.Stack())}
		}
	}()
	resp, err = m.Generate(ctx, req, on)
	var failed *ModelError
	switch {
	case err == nil && resp == nil:
		err = &ModelError{Message: "the model adapter returned neither an answer nor an error"}
	case err != nil && !errors.As(err, &failed): // so that what is not one is the driver's own
		err = &ModelError{Message: err.Error(), Err: err}
	}
	return resp, err
}
