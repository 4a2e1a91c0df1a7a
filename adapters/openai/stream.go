package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/psych-go/psych-go/psych"
)

// Bounds of an answer, far above what any model sends: a server gone mad must
// not take the worker with it.
const (
	maxAnswer = 64 << 20 // bytes of chunks
	maxCalls  = 4096
)

var errTooMuch = fmt.Errorf("it has over %d MiB or %d tool calls", maxAnswer>>20, maxCalls)

// assembling is what makes a Response of the events of a stream.
type assembling interface {
	// add takes the data of an event. sent is the error that a server sent in
	// the stream; err says what can't be understood.
	add(data []byte) (sent json.RawMessage, err error)

	ended() bool     // nothing more is waited for
	missing() string // what a stream lacks that ends here; "": nothing
	response() *psych.Response
}

var _ assembling = (*assembler)(nil)

// An assembler makes a Response of the chunks of a stream of Chat Completions.
type assembler struct {
	on     func(psych.Delta)
	chunks int // that held a choice
	bytes  int
	finish string
	usage  psych.Usage

	text, refusal rawString
	extra         object // of the message
	calls         []*call
	byIndex       map[string]*call
}

// A call is a tool call on its way.
type call struct {
	pos        int // from 1
	id         string
	name, args rawString
	object     json.RawMessage // arguments that came as an object
	extra      object
}

// newAssembler tells on, when not nil, of each piece.
func newAssembler(on func(psych.Delta)) *assembler {
	if on == nil {
		on = func(psych.Delta) {}
	}
	return &assembler{on: on, byIndex: map[string]*call{}}
}

// A chunk is an event of a stream. Only what decides is decoded by type, so
// that a server may put anything elsewhere.
type chunk struct {
	Error   json.RawMessage `json:"error"`
	Usage   json.RawMessage `json:"usage"`
	Choices []struct {
		Index  json.RawMessage `json:"index"`
		Delta  json.RawMessage `json:"delta"`
		Finish *string         `json:"finish_reason"`
		Error  json.RawMessage `json:"error"`
	} `json:"choices"`
}

func (a *assembler) add(data []byte) (sent json.RawMessage, err error) {
	if a.bytes += len(data); a.bytes > maxAnswer {
		return nil, errTooMuch
	}
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, err
	}
	if !absent(c.Error) {
		return c.Error, nil
	}
	a.account(c.Usage)
	for i := range c.Choices {
		ch := &c.Choices[i]
		if !absent(ch.Error) {
			return ch.Error, nil
		}
		if !absent(ch.Index) && string(ch.Index) != "0" {
			continue // nobody asked for a second one
		}
		a.chunks++
		if err := a.delta(ch.Delta); err != nil {
			return nil, err
		}
		if ch.Finish != nil && *ch.Finish != "" {
			a.finish = *ch.Finish
		}
	}
	if a.finish == "error" { // OpenRouter's, where it could not tell the error
		return json.RawMessage(`"the model ended with an error"`), nil
	}
	return nil, nil
}

func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

func (a *assembler) delta(raw json.RawMessage) error {
	fields, err := fieldsOf(raw)
	if err != nil {
		return err
	}
	reasoned := false
	for _, f := range fields {
		if absent(f.value) {
			continue
		}
		switch f.key {
		case "role":
		case "content":
			a.content(f.value)
		case "refusal":
			if s := a.refusal.add(f.value); s != "" {
				a.on(psych.Delta{Text: s})
			}
		case "tool_calls":
			var pieces []json.RawMessage
			if err := json.Unmarshal(f.value, &pieces); err != nil {
				return err
			}
			for _, p := range pieces {
				if err := a.callPiece(p); err != nil {
					return err
				}
			}
		case "reasoning_content", "reasoning":
			var s string
			// Some servers send the same piece under both names.
			if !reasoned && json.Unmarshal(f.value, &s) == nil && s != "" {
				a.on(psych.Delta{Reasoning: s})
				reasoned = true
			}
			a.extra.add(f.key, f.value, 0)
		default:
			a.extra.add(f.key, f.value, 0)
		}
	}
	return nil
}

// content takes a string, or a list of parts, of which texts count.
func (a *assembler) content(raw json.RawMessage) {
	if raw[0] == '[' {
		var parts []struct {
			Text json.RawMessage `json:"text"`
		}
		_ = json.Unmarshal(raw, &parts) // a list of other things holds no text
		for _, p := range parts {
			a.say(p.Text)
		}
		return
	}
	a.say(raw)
}

func (a *assembler) say(raw json.RawMessage) {
	if s := a.text.add(raw); s != "" {
		a.on(psych.Delta{Text: s})
	}
}

// callPiece adds a piece to its call. A piece belongs to the call of its index;
// where servers leave the index out or give each call the same one, a name with
// a new id begins another.
func (a *assembler) callPiece(raw json.RawMessage) error {
	fields, err := fieldsOf(raw)
	if err != nil {
		return err
	}
	var (
		index, id, typ  string
		function, extra []field
	)
	for _, f := range fields {
		switch f.key {
		case "index":
			if !absent(f.value) {
				index = string(f.value)
			}
		case "id":
			_ = json.Unmarshal(f.value, &id) // an id of another kind is none
		case "type":
			_ = json.Unmarshal(f.value, &typ) // nothing but functions was offered
		case "function":
			if function, err = fieldsOf(f.value); err != nil {
				return err
			}
		default:
			extra = append(extra, f)
		}
	}
	var name string
	for _, f := range function {
		if f.key == "name" {
			_ = json.Unmarshal(f.value, &name)
		}
	}
	c := a.byIndex[index]
	if c == nil && index == "" && id == "" && name == "" && len(a.calls) > 0 {
		c = a.calls[len(a.calls)-1]
	}
	switch {
	case c == nil,
		id != "" && c.id != "" && id != c.id && name != "",
		index == "" && id == "" && name != "" && len(c.args) > 0:
		if len(a.calls) == maxCalls {
			return errTooMuch
		}
		c = &call{pos: len(a.calls) + 1}
		a.calls = append(a.calls, c)
		a.byIndex[index] = c
	}
	if id != "" {
		c.id = id
	}
	d := psych.Delta{Call: c.pos}
	for _, f := range function {
		switch {
		case absent(f.value):
		case f.key == "name":
			if len(c.name) == 0 || c.name.text() != name { // some repeat it with each piece
				d.Name = c.name.add(f.value)
			}
		case f.key == "arguments" && f.value[0] == '"':
			d.Arguments = c.args.add(f.value)
		case f.key == "arguments":
			c.object = f.value
			d.Arguments = string(f.value)
		default:
			c.extra.inner("function").add(f.key, f.value, 0)
		}
	}
	for _, f := range extra {
		if !absent(f.value) {
			c.extra.add(f.key, f.value, 0)
		}
	}
	if d.Name != "" || d.Arguments != "" {
		a.on(d)
	}
	return nil
}

// account takes what a chunk says of usage; what it leaves out, or says in a
// way that can't be, stays unknown.
func (a *assembler) account(raw json.RawMessage) {
	var u struct {
		Input   json.RawMessage `json:"prompt_tokens"`
		Output  json.RawMessage `json:"completion_tokens"`
		Hit     json.RawMessage `json:"prompt_cache_hit_tokens"` // DeepSeek's
		Details json.RawMessage `json:"prompt_tokens_details"`
	}
	if absent(raw) || json.Unmarshal(raw, &u) != nil {
		return
	}
	var d struct {
		Cached  json.RawMessage `json:"cached_tokens"`
		Written json.RawMessage `json:"cache_write_tokens"`
	}
	if !absent(u.Details) {
		_ = json.Unmarshal(u.Details, &d) // of another kind: unknown
	}
	take := func(to **int64, raw json.RawMessage) {
		if n := tokens(raw); n != nil {
			*to = n
		}
	}
	take(&a.usage.Input, u.Input)
	take(&a.usage.Output, u.Output)
	take(&a.usage.CacheRead, u.Hit)
	take(&a.usage.CacheRead, d.Cached)
	take(&a.usage.CacheWrite, d.Written)
}

// tokens reads a count, nil if it is none.
func tokens(raw json.RawMessage) *int64 {
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		f, err := strconv.ParseFloat(string(raw), 64)
		if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			return nil
		}
		n = int64(f)
	}
	if n < 0 {
		return nil
	}
	return &n
}

// ended is false even behind finish_reason: usage comes last.
func (a *assembler) ended() bool { return false }

func (a *assembler) missing() string {
	switch {
	case a.finish != "":
		return ""
	case a.chunks == 0:
		return "its stream held no answer at all: is it a Chat Completions server?"
	}
	return "its stream ended before the answer was whole (no finish_reason)"
}

// response is what came, once finish_reason has.
func (a *assembler) response() *psych.Response {
	r := &psych.Response{Stop: stopReason(a.finish), Usage: possible(a.usage)}
	if p := a.kept(); p != nil {
		r.Blocks = append(r.Blocks, psych.Block{Provider: p})
	}
	if s := a.text.text(); s != "" {
		r.Blocks = append(r.Blocks, psych.Block{Text: s})
	}
	if s := a.refusal.text(); s != "" {
		r.Blocks = append(r.Blocks, psych.Block{Text: s})
		r.Stop = psych.StopRefusal
	}
	for _, c := range a.calls {
		args := c.object
		if len(c.args) > 0 || args == nil {
			args = json.RawMessage(c.args.text())
		}
		r.Blocks = append(r.Blocks, psych.Block{Call: &psych.ToolCall{ProviderID: c.id, Name: c.name.text(), Arguments: args}})
	}
	if len(a.calls) > 0 && r.Stop == psych.StopEnd {
		r.Stop = psych.StopToolUse // what some servers call stop
	}
	return r
}

// stopReason maps a finish_reason; an unknown one stays as it is.
func stopReason(finish string) psych.StopReason {
	switch finish {
	case "stop":
		return psych.StopEnd
	case "tool_calls":
		return psych.StopToolUse
	case "length":
		return psych.StopMaxTokens
	case "content_filter":
		return psych.StopRefusal
	}
	return psych.StopReason(finish)
}

// kept is the provider block of the answer, nil if there is nothing to keep.
func (a *assembler) kept() json.RawMessage {
	calls := 0
	for i, c := range a.calls {
		if len(c.extra.keys) > 0 {
			calls = i + 1
		}
	}
	if len(a.extra.keys) == 0 && calls == 0 {
		return nil
	}
	b := []byte(`{"type":"` + keptType + `"`)
	if len(a.extra.keys) > 0 {
		b = append(b, `,"message":`...)
		b = a.extra.append(b)
	}
	if calls > 0 {
		b = append(b, `,"calls":[`...)
		for i, c := range a.calls[:calls] {
			if i > 0 {
				b = append(b, ',')
			}
			if len(c.extra.keys) == 0 {
				b = append(b, "null"...)
			} else {
				b = c.extra.append(b)
			}
		}
		b = append(b, ']')
	}
	return append(b, '}')
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

// An object gathers what unknown members of deltas hold. Strings go on where
// they stopped, lists too, objects member by member; of anything else the last
// one holds.
type object struct {
	keys   []string
	values map[string]*value
}

// A value has one of text, list, members or other.
type value struct {
	kind    byte // " [ { or 0
	text    rawString
	list    []*value
	at      map[string]*value // elements of list by index, and by index and type
	members object
	other   json.RawMessage
}

// maxMerge is how deep objects are merged; what is deeper is replaced.
const maxMerge = 16

func (o *object) add(key string, raw json.RawMessage, depth int) {
	if absent(raw) {
		return
	}
	v := o.values[key]
	if v == nil {
		v = &value{}
		o.set(key, v)
	}
	v.add(raw, whole(key), depth)
}

func (o *object) set(key string, v *value) {
	if o.values == nil {
		o.values = map[string]*value{}
	}
	o.keys = append(o.keys, key)
	o.values[key] = v
}

// inner returns the object under key.
func (o *object) inner(key string) *object {
	v := o.values[key]
	if v == nil {
		v = &value{kind: '{'}
		o.set(key, v)
	}
	return &v.members
}

// whole reports whether a string comes whole with each piece, as names of
// things do, rather than in pieces.
func whole(key string) bool {
	switch key {
	case "id", "type", "format", "name", "model", "status":
		return true
	}
	return false
}

func (v *value) add(raw json.RawMessage, whole bool, depth int) {
	kind := raw[0]
	if kind != '"' && kind != '[' && kind != '{' || depth > maxMerge {
		kind = 0
	}
	if v.kind != kind {
		*v = value{kind: kind}
	}
	switch kind {
	case '"':
		if whole {
			v.text = v.text[:0]
		}
		v.text.add(raw)
	case '[':
		var list []json.RawMessage
		if json.Unmarshal(raw, &list) != nil {
			return
		}
		for _, e := range list {
			to := v.element(e)
			to.add(e, false, depth+1)
		}
	case '{':
		fields, _ := fieldsOf(raw) // it was JSON already
		for _, f := range fields {
			v.members.add(f.key, f.value, depth+1)
		}
	default:
		v.other = raw
	}
}

// element returns where an element of a list goes: into the one with the same
// index and type, as pieces of one thing are sent, else behind the last.
func (v *value) element(raw json.RawMessage) *value {
	var e struct {
		Index *int64  `json:"index"`
		Type  *string `json:"type"`
	}
	n := &value{}
	if raw[0] == '{' && json.Unmarshal(raw, &e) == nil && e.Index != nil {
		index := strconv.FormatInt(*e.Index, 10)
		typed := index
		if e.Type != nil {
			typed += " " + *e.Type
		}
		if at := v.at[typed]; at != nil {
			return at
		}
		if v.at == nil {
			v.at = map[string]*value{}
		}
		v.at[index], v.at[typed] = n, n
	}
	v.list = append(v.list, n)
	return n
}

func (o *object) append(b []byte) []byte {
	b = append(b, '{')
	for i, k := range o.keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, k)
		b = append(b, ':')
		b = o.values[k].append(b)
	}
	return append(b, '}')
}

func (v *value) append(b []byte) []byte {
	switch v.kind {
	case '"':
		return v.text.append(b)
	case '[':
		b = append(b, '[')
		for i, e := range v.list {
			if i > 0 {
				b = append(b, ',')
			}
			b = e.append(b)
		}
		return append(b, ']')
	case '{':
		return v.members.append(b)
	}
	if len(v.other) == 0 {
		return append(b, "null"...)
	}
	return append(b, v.other...)
}
