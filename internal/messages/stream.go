package messages

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/psych-go/psych-go/psych"
)

// Bounds of an answer, far above what any model sends: a server gone mad must
// not take the worker with it.
const (
	maxAnswer = 64 << 20 // bytes of events
	maxCalls  = 4096
)

// ErrTooMuch is an answer beyond any measure: it is not asked for again.
var ErrTooMuch = fmt.Errorf("it has over %d MiB or %d tool calls", maxAnswer>>20, maxCalls)

// An Assembler makes a Response of the events of a stream.
type Assembler struct {
	on     func(psych.Delta)
	bytes  int
	begun  bool
	stop   string
	usage  usage
	rest   []field // of the answer beyond what a Response holds
	blocks []*block
	at     map[int64]*block // the last that began with an index
	calls  int
}

// NewAssembler tells on, when not nil, of each piece.
func NewAssembler(on func(psych.Delta)) *Assembler {
	if on == nil {
		on = func(psych.Delta) {}
	}
	return &Assembler{on: on, at: map[int64]*block{}}
}

// A block of content on its way.
type block struct {
	kind    string
	call    int // position from 1
	fields  []field
	strings map[string]*rawString // members that go on in deltas
	input   rawString             // JSON in pieces
	deltas  []json.RawMessage     // of unknown types
}

// Add takes the data of an event. sent is the error that the server sent in the
// stream; err says what can't be understood.
func (a *Assembler) Add(data []byte) (sent json.RawMessage, err error) {
	if a.bytes += len(data); a.bytes > maxAnswer {
		return nil, ErrTooMuch
	}
	var e struct {
		Type    string          `json:"type"`
		Index   int64           `json:"index"`
		Message json.RawMessage `json:"message"`
		Block   json.RawMessage `json:"content_block"`
		Delta   json.RawMessage `json:"delta"`
		Usage   json.RawMessage `json:"usage"`
		Error   json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, err
	}
	switch e.Type {
	case "message_start":
		return nil, a.start(e.Message)
	case "content_block_start":
		return nil, a.startBlock(e.Index, e.Block)
	case "content_block_delta":
		return nil, a.delta(e.Index, e.Delta)
	case "message_delta":
		a.usage.add(e.Usage)
		return nil, a.finish(e.Delta)
	case "ping":
		a.on(psych.Delta{}) // slow, not idle
	case "error":
		return bytes.Clone(data), nil
	case "":
		if !absent(e.Error) {
			return bytes.Clone(data), nil
		}
	}
	return nil, nil
}

func (a *Assembler) start(message json.RawMessage) error {
	a.begun = true
	fields, err := fieldsOf(message)
	for _, f := range fields {
		switch f.key {
		case "usage":
			a.usage.add(f.value)
		case "id", "input_transformations":
			a.keep(f)
		}
	}
	return err
}

// keep notes what else the answer holds, the last of each kind.
func (a *Assembler) keep(f field) {
	if absent(f.value) || string(f.value) == "[]" {
		return
	}
	for i := range a.rest {
		if a.rest[i].key == f.key {
			a.rest[i] = f
			return
		}
	}
	a.rest = append(a.rest, f)
}

func (a *Assembler) finish(delta json.RawMessage) error {
	fields, err := fieldsOf(delta)
	for _, f := range fields {
		switch f.key {
		case "stop_reason":
			var stop string
			_ = json.Unmarshal(f.value, &stop) // null, or of another kind, is none
			if stop != "" {
				a.stop = stop
			}
		default:
			a.keep(f)
		}
	}
	return err
}

func (a *Assembler) startBlock(index int64, raw json.RawMessage) error {
	a.begun = true
	fields, err := fieldsOf(raw)
	if err != nil {
		return err
	}
	b := &block{fields: fields, strings: map[string]*rawString{}}
	for _, f := range fields {
		if f.key == "type" {
			_ = json.Unmarshal(f.value, &b.kind)
		}
	}
	if b.kind == "" {
		return fmt.Errorf("a block without a type: %.80q", raw)
	}
	switch b.kind {
	case "tool_use":
		if a.calls++; a.calls > maxCalls {
			return ErrTooMuch
		}
		b.call = a.calls
		a.on(psych.Delta{Call: b.call, Name: b.text("name")})
	case "text":
		if s := b.text("text"); s != "" {
			a.on(psych.Delta{Text: s})
		}
	case "thinking":
		if s := b.text("thinking"); s != "" {
			a.on(psych.Delta{Reasoning: s})
		}
	}
	a.blocks = append(a.blocks, b)
	a.at[index] = b
	return nil
}

func (a *Assembler) delta(index int64, raw json.RawMessage) error {
	b := a.at[index]
	if b == nil {
		return fmt.Errorf("a piece of block %d, which never began", index)
	}
	var d struct {
		Type      string          `json:"type"`
		Text      json.RawMessage `json:"text"`
		Thinking  json.RawMessage `json:"thinking"`
		Signature json.RawMessage `json:"signature"`
		JSON      json.RawMessage `json:"partial_json"`
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		return err
	}
	switch {
	case d.Type == "text_delta":
		if s := b.add("text", d.Text); s != "" && b.kind == "text" {
			a.on(psych.Delta{Text: s})
		}
	case d.Type == "thinking_delta":
		if s := b.add("thinking", d.Thinking); s != "" && b.kind == "thinking" {
			a.on(psych.Delta{Reasoning: s})
		}
	case d.Type == "signature_delta":
		b.add("signature", d.Signature)
	case d.Type == "input_json_delta":
		if s := b.input.add(d.JSON); s != "" && b.call > 0 {
			a.on(psych.Delta{Call: b.call, Arguments: s})
		}
	case d.Type == "citations_delta" && b.kind == "text": // nobody asked for any
	default:
		b.deltas = append(b.deltas, raw)
	}
	return nil
}

// add goes on with a member that is a string, and returns the piece's text.
func (b *block) add(key string, raw json.RawMessage) string {
	s := b.strings[key]
	if s == nil {
		s = &rawString{}
		for _, f := range b.fields {
			if f.key == key {
				s.add(f.value)
			}
		}
		b.strings[key] = s
	}
	return s.add(raw)
}

// text returns a member that is a string.
func (b *block) text(key string) string {
	if s := b.strings[key]; s != nil {
		return s.text()
	}
	var text string
	for _, f := range b.fields {
		if f.key == key {
			_ = json.Unmarshal(f.value, &text) // of another kind it is no text
		}
	}
	return text
}

// raw is the block as it would be in one piece.
func (b *block) raw() json.RawMessage {
	out := []byte{'{'}
	member := func(key string, value []byte) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(appendString(out, key), ':')
		out = append(out, value...)
	}
	seen := map[string]bool{}
	for _, f := range b.fields {
		seen[f.key] = true
		s := b.strings[f.key]
		input := []byte(b.input.text())
		switch {
		case s != nil:
			member(f.key, s.append(nil))
		case f.key == "input" && len(b.input) > 0 && json.Valid(input):
			member(f.key, input)
		default:
			member(f.key, f.value)
		}
	}
	for _, key := range []string{"text", "thinking", "signature"} {
		if s := b.strings[key]; s != nil && !seen[key] {
			member(key, s.append(nil))
		}
	}
	return append(out, '}')
}

// arguments are what a call was given: what came in pieces, else what the start
// of the block holds.
func (b *block) arguments() json.RawMessage {
	if len(b.input) > 0 {
		return json.RawMessage(b.input.text())
	}
	for _, f := range b.fields {
		if f.key == "input" {
			return f.value
		}
	}
	return nil
}

// extra is what else a call holds, without what means nothing.
func (b *block) extra() json.RawMessage {
	var out []byte
	for _, f := range b.fields {
		switch f.key {
		case "type", "id", "name", "input":
			continue
		case "caller":
			var c struct {
				Type string `json:"type"`
			}
			if json.Unmarshal(f.value, &c) == nil && c.Type == "direct" {
				continue // the default
			}
		}
		if absent(f.value) {
			continue
		}
		out = appendMember(out, f)
	}
	if len(out) == 0 {
		return nil
	}
	return append(out, '}')
}

// appendMember begins an object, or goes on with it.
func appendMember(b []byte, f field) []byte {
	if len(b) == 0 {
		b = append(b, '{')
	} else {
		b = append(b, ',')
	}
	b = append(appendString(b, f.key), ':')
	return append(b, f.value...)
}

// Begun reports whether anything of an answer came.
func (a *Assembler) Begun() bool { return a.begun }

// Whole reports whether the answer is whole: the server said why it ended.
func (a *Assembler) Whole() bool { return a.stop != "" }

// ErrUnfinished is an event stream without a reason for its end.
var ErrUnfinished = errors.New("its stream ended before the answer was whole (no stop_reason)")

// Response is what came, once the answer is Whole.
func (a *Assembler) Response(requestID string) *psych.Response {
	r := &psych.Response{Usage: a.usage.total(), RequestID: requestID}
	for _, b := range a.blocks {
		switch b.kind {
		case "text":
			if s := b.text("text"); s != "" {
				r.Blocks = append(r.Blocks, psych.Block{Text: s})
			}
		case "tool_use":
			if x := b.extra(); x != nil {
				r.Blocks = append(r.Blocks, psych.Block{Provider: wrap(callType, field{"fields", x})})
			}
			r.Blocks = append(r.Blocks, psych.Block{Call: &psych.ToolCall{ProviderID: b.text("id"), Name: b.text("name"), Arguments: b.arguments()}})
		case "thinking", "redacted_thinking":
			r.Blocks = append(r.Blocks, psych.Block{Provider: b.raw()})
		default:
			fields := []field{{"block", b.raw()}}
			if len(b.deltas) > 0 {
				all, _ := json.Marshal(b.deltas) // they are JSON
				fields = append(fields, field{"deltas", all})
			}
			r.Blocks = append(r.Blocks, psych.Block{Provider: wrap(blockType, fields...)})
		}
	}
	if len(a.rest) > 0 {
		r.Blocks = append(r.Blocks, psych.Block{Provider: wrap(responseType, a.rest...)})
	}
	r.Stop = stopReason(a.stop, a.calls > 0)
	return r
}

func wrap(kind string, fields ...field) json.RawMessage {
	b := appendMember(nil, field{"type", appendString(nil, kind)})
	for _, f := range fields {
		if f.key != "type" {
			b = appendMember(b, f)
		}
	}
	return append(b, '}')
}

// stopReason maps a stop_reason; an unknown one stays as it is. pause_turn asks
// to go on with a tool of the server's, none of which is ever offered: with
// calls of ours it goes on by their results, without it is not understood.
func stopReason(stop string, calls bool) psych.StopReason {
	switch {
	case calls && (stop == "end_turn" || stop == "stop_sequence" || stop == "pause_turn"):
		return psych.StopToolUse
	case stop == "end_turn", stop == "stop_sequence":
		return psych.StopEnd
	case stop == "tool_use":
		return psych.StopToolUse
	case stop == "max_tokens":
		return psych.StopMaxTokens
	case stop == "refusal":
		return psych.StopRefusal
	case stop == "model_context_window_exceeded":
		return psych.StopContext
	}
	return psych.StopReason(stop)
}

// usage is what the server said of tokens, cumulative: what it said first it
// may say again, or leave at 0, so the most holds.
type usage struct{ input, read, written, hour, output *int64 }

func (u *usage) add(raw json.RawMessage) {
	var x struct {
		Input   json.RawMessage `json:"input_tokens"`
		Read    json.RawMessage `json:"cache_read_input_tokens"`
		Written json.RawMessage `json:"cache_creation_input_tokens"`
		Output  json.RawMessage `json:"output_tokens"`
		Created json.RawMessage `json:"cache_creation"`
	}
	if absent(raw) || json.Unmarshal(raw, &x) != nil {
		return
	}
	take := func(to **int64, raw json.RawMessage) {
		if n := tokens(raw); n != nil && (*to == nil || *n > **to) {
			*to = n
		}
	}
	take(&u.input, x.Input)
	take(&u.read, x.Read)
	take(&u.written, x.Written)
	take(&u.output, x.Output)
	var created struct {
		Hour json.RawMessage `json:"ephemeral_1h_input_tokens"`
	}
	if !absent(x.Created) && json.Unmarshal(x.Created, &created) == nil {
		take(&u.hour, created.Hour)
	}
}

// total counts the cached tokens in, which the provider counts apart.
func (u *usage) total() psych.Usage {
	t := psych.Usage{CacheRead: u.read, CacheWrite: u.written, Output: u.output}
	if u.hour != nil && u.written != nil {
		hour := min(*u.hour, *u.written)
		t.WriteHour = &hour
	}
	if u.input != nil {
		n := *u.input
		for _, x := range []*int64{u.read, u.written} {
			if x != nil {
				n += *x
			}
		}
		t.Input = &n
	}
	return t
}

// tokens reads a count, nil if it is none.
func tokens(raw json.RawMessage) *int64 {
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || f < 0 || f > 1<<53 {
		return nil
	}
	n := int64(f)
	return &n
}

// A rawString is the inside of a JSON string that came in pieces, in the
// server's own escapes: a surrogate pair may be cut between two.
type rawString []byte

// add appends a JSON string and returns its text; of another kind it is not
// added.
func (s *rawString) add(raw json.RawMessage) string {
	if len(raw) < 2 || raw[0] != '"' {
		return ""
	}
	*s = append(*s, raw[1:len(raw)-1]...)
	return rawString(raw[1 : len(raw)-1]).text()
}

func (s rawString) text() string {
	if bytes.IndexByte(s, '\\') < 0 {
		return string(bytes.ToValidUTF8(s, []byte("\uFFFD")))
	}
	var text string
	if err := json.Unmarshal(s.append(nil), &text); err != nil {
		return string(bytes.ToValidUTF8(s, []byte("\uFFFD"))) // can't be: each piece was JSON
	}
	return text
}

func (s rawString) append(b []byte) []byte {
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
