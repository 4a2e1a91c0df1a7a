package openai

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/psych-go/psych-go/psych"
)

// Types of the provider blocks of the Responses API: those of another provider
// or API mean nothing to these servers and stay in the log alone.
const (
	itemType = "openai.item"     // {"type":…,"item":{…}}: an item of the output, byte for byte
	withType = "openai.with"     // {"type":…,"with":{…}}: what the text or call behind it has beside what psych holds
	metaType = "openai.response" // {"type":…,"id":…}: for the log alone
)

// encodeOutput writes an item for each reasoning, text and call. Reasoning that
// nothing follows is refused by OpenAI, and is not written.
func (c *codec) encodeOutput(blocks []psych.Block) ([]byte, error) {
	last := -1
	for i := range blocks {
		b := &blocks[i]
		if b.Result != nil || b.Image != nil {
			return nil, fmt.Errorf("block %d of the assistant's message is neither a text, a call nor a provider's", i)
		}
		if b.Call != nil || b.Provider == nil && b.Text != "" {
			last = i
		}
	}
	if last < 0 {
		return nil, nil
	}
	b := make([]byte, 0, sizeOf(blocks))
	var with []field
	for i := range blocks[:last+1] {
		x := &blocks[i]
		if x.Call == nil && x.Provider == nil && x.Text == "" {
			continue
		}
		item, extra := readItem(x.Provider)
		if x.Provider != nil && (item == nil || c.dropReasoning || !replayable(item)) {
			with = extra
			continue
		}
		if item != nil {
			var ok bool
			if item, ok = sendable(item); !ok {
				continue
			}
		}
		if len(b) > 0 {
			b = append(b, ',')
		}
		switch {
		case x.Provider != nil:
			b = append(b, item...)
		case x.Call != nil:
			b = append(b, `{"type":"function_call","call_id":`...)
			b = appendString(b, x.Call.ID)
			b = append(b, `,"name":`...)
			b = appendString(b, x.Call.Name)
			b = appendArguments(b, x.Call.Arguments)
			b = append(appendFields(b, with, callFields), '}')
		default:
			b = append(b, `{"type":"message","role":"assistant","content":`...)
			b = appendString(b, x.Text)
			b = append(appendFields(b, with, messageFields), '}')
		}
		with = nil
	}
	return b, nil
}

// What an item of the output has by itself as it is sent again. Ids are left
// out: a server that stores nothing can't look them up.
var (
	messageFields = []string{"type", "id", "status", "role", "content"}
	callFields    = []string{"type", "id", "status", "call_id", "name", "arguments"}
)

func appendFields(b []byte, with []field, but []string) []byte {
	for _, f := range with {
		if !slices.Contains(but, f.key) {
			b = appendField(b, f)
		}
	}
	return b
}

// readItem reads a provider block of this API.
func readItem(block json.RawMessage) (item json.RawMessage, with []field) {
	var raw struct {
		Type string          `json:"type"`
		Item json.RawMessage `json:"item"`
		With json.RawMessage `json:"with"`
	}
	if len(block) == 0 || json.Unmarshal(block, &raw) != nil {
		return nil, nil
	}
	switch raw.Type {
	case itemType:
		return raw.Item, nil
	case withType:
		with, _ = fieldsOf(raw.With) // of another kind: there is nothing in it
	}
	return nil, with
}

// replayable reports whether an item may be sent again: reasoning that holds
// what it says, encrypted or open. Without, a server would look its id up, and
// nothing is stored. Items of other types nobody asked for; they stay in the
// log.
func replayable(item json.RawMessage) bool {
	var r struct {
		Type      string            `json:"type"`
		Encrypted string            `json:"encrypted_content"`
		Content   []json.RawMessage `json:"content"`
	}
	return json.Unmarshal(item, &r) == nil && r.Type == "reasoning" && (r.Encrypted != "" || len(r.Content) > 0) && !joinable(item)
}

// A responsesAssembler makes a Response of the events of a stream of the
// Responses API.
type responsesAssembler struct {
	on      func(psych.Delta)
	bytes   int
	events  int // of a type that the API has
	items   []*outputItem
	calls   int
	byIndex map[string]*outputItem
	byID    map[string]*outputItem
	end     json.RawMessage // the response of the event that ended the stream
	cut     bool            // it ended as incomplete
}

var _ assembling = (*responsesAssembler)(nil)

// An outputItem is an item on its way. What is done is whole, and holds.
type outputItem struct {
	kind    string
	id      string
	pos     int // of a call, from 1
	callID  string
	name    string // as told
	text    rawString
	args    rawString
	refused bool
	done    json.RawMessage
}

func newResponsesAssembler(on func(psych.Delta)) *responsesAssembler {
	if on == nil {
		on = func(psych.Delta) {}
	}
	return &responsesAssembler{on: on, byIndex: map[string]*outputItem{}, byID: map[string]*outputItem{}}
}

// An event is one of a stream. Only what decides is decoded by type, so that a
// server may put anything elsewhere.
type event struct {
	Type      string          `json:"type"`
	Index     json.RawMessage `json:"output_index"`
	ItemID    json.RawMessage `json:"item_id"`
	Item      json.RawMessage `json:"item"`
	Delta     json.RawMessage `json:"delta"`
	Arguments json.RawMessage `json:"arguments"`
	Summary   json.RawMessage `json:"summary_index"`
	Response  json.RawMessage `json:"response"`
	Error     json.RawMessage `json:"error"`
}

func (a *responsesAssembler) add(data []byte) (sent json.RawMessage, err error) {
	if a.bytes += len(data); a.bytes > maxAnswer {
		return nil, errTooMuch
	}
	var e event
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, err
	}
	if e.Type == "error" || e.Type == "" {
		switch {
		case !absent(e.Error):
			return e.Error, nil
		case e.Type == "error":
			return data, nil
		}
		return nil, nil
	}
	kind := ""
	switch e.Type {
	case "response.created", "response.in_progress", "response.queued":
		a.events++
		return nil, nil
	case "response.failed":
		return failure(e.Response), nil
	case "response.completed", "response.incomplete":
		a.events++
		return a.finish(&e)
	case "response.output_item.added", "response.output_item.done":
		a.events++
		if absent(e.Item) {
			return nil, nil
		}
		return nil, a.item(&e)
	case "response.output_text.delta", "response.refusal.delta":
		kind = "message"
	case "response.function_call_arguments.delta", "response.function_call_arguments.done":
		kind = "function_call"
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta", "response.reasoning_summary_part.added":
		kind = "reasoning"
	default:
		return nil, nil
	}
	a.events++
	it, err := a.at(e.Index, scalar(e.ItemID), kind)
	if err != nil || it.done != nil {
		return nil, err
	}
	switch e.Type {
	case "response.output_text.delta":
		a.say(it, e.Delta)
	case "response.refusal.delta":
		it.refused = true
		a.say(it, e.Delta)
	case "response.function_call_arguments.delta":
		a.argue(it, e.Delta)
	case "response.function_call_arguments.done":
		if len(it.args) == 0 {
			a.argue(it, e.Arguments)
		}
	case "response.reasoning_summary_part.added":
		if !absent(e.Summary) && string(e.Summary) != "0" {
			a.on(psych.Delta{Reasoning: "\n\n"})
		}
	default:
		var s rawString
		if text := s.add(e.Delta); text != "" {
			a.on(psych.Delta{Reasoning: text})
		}
	}
	return nil, nil
}

// failure is the error of a response that failed.
func failure(response json.RawMessage) json.RawMessage {
	var r struct {
		Error json.RawMessage `json:"error"`
	}
	if !absent(response) && json.Unmarshal(response, &r) == nil && !absent(r.Error) {
		return r.Error
	}
	return json.RawMessage(`"the response failed"`)
}

func (a *responsesAssembler) say(it *outputItem, piece json.RawMessage) {
	if s := it.text.add(piece); s != "" {
		a.on(psych.Delta{Text: s})
	}
}

func (a *responsesAssembler) argue(it *outputItem, piece json.RawMessage) {
	if s := it.args.add(piece); s != "" {
		a.on(psych.Delta{Call: it.pos, Arguments: s})
	}
}

// at finds the item of an event by id, or by index where servers give an item
// another id in each event; a piece of an unknown one begins it.
func (a *responsesAssembler) at(index json.RawMessage, id, kind string) (*outputItem, error) {
	it := a.byID[id]
	if it == nil || id == "" {
		it = a.byIndex[string(index)]
	}
	if it != nil && (it.kind == kind || kind == "") {
		return it, nil
	}
	return a.begin(index, id, kind)
}

func (a *responsesAssembler) begin(index json.RawMessage, id, kind string) (*outputItem, error) {
	if len(a.items) == maxCalls {
		return nil, errTooMuch
	}
	it := &outputItem{kind: kind, id: id}
	if kind == "function_call" {
		a.calls++
		it.pos = a.calls
	}
	a.items = append(a.items, it)
	a.byIndex[string(index)] = it
	if id != "" {
		a.byID[id] = it
	}
	return it, nil
}

// An item is one of the output.
type item struct {
	Type      string          `json:"type"`
	ID        json.RawMessage `json:"id"`
	CallID    json.RawMessage `json:"call_id"`
	Name      json.RawMessage `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
	Content   []struct {
		Text    json.RawMessage `json:"text"`
		Refusal json.RawMessage `json:"refusal"`
	} `json:"content"`
}

// item takes an event that an item begins or is done. One that begins where
// another stands is another one.
func (a *responsesAssembler) item(e *event) error {
	var x item
	if err := json.Unmarshal(e.Item, &x); err != nil {
		return err
	}
	id := scalar(x.ID)
	done := e.Type == "response.output_item.done"
	it := a.byID[id]
	if it == nil || id == "" {
		it = a.byIndex[string(e.Index)]
	}
	// An index that is repeated, or absent, does not make one item of two.
	if it != nil && (it.kind != x.Type || it.done != nil && it.id != id || !done && it.id != id || !done && absent(e.Index)) {
		it = nil
	}
	if it == nil {
		var err error
		if it, err = a.begin(e.Index, id, x.Type); err != nil {
			return err
		}
	}
	if done {
		a.done(it, e.Item, &x)
		return nil
	}
	a.named(it, &x)
	return nil
}

func (a *responsesAssembler) named(it *outputItem, x *item) {
	if it.kind != "function_call" {
		return
	}
	if id := scalar(x.CallID); id != "" {
		it.callID = id
	}
	if name := scalar(x.Name); name != "" && it.name == "" {
		it.name = name
		a.on(psych.Delta{Call: it.pos, Name: name})
	}
}

// done takes an item that is whole, and tells what was not told in pieces.
func (a *responsesAssembler) done(it *outputItem, raw json.RawMessage, x *item) {
	a.named(it, x)
	told := len(it.text) > 0
	for _, part := range x.Content {
		if it.kind != "message" {
			break
		}
		if !absent(part.Refusal) {
			it.refused = true
		}
		if !told {
			a.say(it, part.Text)
			a.say(it, part.Refusal)
		}
	}
	if it.kind == "function_call" && len(it.args) == 0 {
		if !absent(x.Arguments) && x.Arguments[0] != '"' {
			a.on(psych.Delta{Call: it.pos, Arguments: string(x.Arguments)})
		} else {
			a.argue(it, x.Arguments)
		}
	}
	it.done = raw
}

// finish takes the event that ends a stream. Items that it holds and that came
// in no event of their own are taken from it.
func (a *responsesAssembler) finish(e *event) (sent json.RawMessage, err error) {
	var r struct {
		Status string            `json:"status"`
		Output []json.RawMessage `json:"output"`
	}
	if !absent(e.Response) {
		if err := json.Unmarshal(e.Response, &r); err != nil {
			return nil, err
		}
	}
	if r.Status == "failed" {
		return failure(e.Response), nil
	}
	streamed := len(a.items)
	for i, raw := range r.Output {
		var x item
		if err := json.Unmarshal(raw, &x); err != nil {
			return nil, err
		}
		it := a.byIndex[strconv.Itoa(i)]
		if it == nil || it.kind != x.Type {
			it = a.byID[scalar(x.ID)]
		}
		if it == nil && i < streamed && a.items[i].kind == x.Type {
			it = a.items[i] // of a server that gives neither index nor id
		}
		if it == nil {
			if it, err = a.begin(strconv.AppendInt(nil, int64(i), 10), scalar(x.ID), x.Type); err != nil {
				return nil, err
			}
		}
		if it.done == nil && it.kind == x.Type {
			a.done(it, raw, &x)
		}
	}
	a.cut = e.Type == "response.incomplete" || r.Status == "incomplete"
	a.end = e.Response
	if a.end == nil {
		a.end = json.RawMessage("{}")
	}
	return nil, nil
}

func (a *responsesAssembler) ended() bool { return a.end != nil }

func (a *responsesAssembler) missing() string {
	switch {
	case a.end != nil:
		return ""
	case a.events == 0:
		return "its stream held no answer at all: is it a server of the Responses API? (Without api=responses it is asked for Chat Completions.)"
	}
	return "its stream ended before the answer was whole (no response.completed)"
}

// response is what came, once the stream has ended.
func (a *responsesAssembler) response() *psych.Response {
	var end struct {
		ID      json.RawMessage `json:"id"`
		Usage   json.RawMessage `json:"usage"`
		Details json.RawMessage `json:"incomplete_details"`
	}
	_ = json.Unmarshal(a.end, &end) // finish has looked at it
	r := &psych.Response{Stop: psych.StopEnd, Usage: responsesUsage(end.Usage)}
	refused := false
	for _, it := range a.items {
		r.Blocks = it.blocks(r.Blocks)
		refused = refused || it.refused
	}
	switch {
	case refused:
		r.Stop = psych.StopRefusal
	case a.cut:
		r.Stop = incomplete(end.Details)
	case a.calls > 0:
		r.Stop = psych.StopToolUse
	}
	if meta := metaBlock(scalar(end.ID)); meta != nil {
		r.Blocks = append(r.Blocks, psych.Block{Provider: meta})
	}
	return r
}

// incomplete maps the reason of an answer that was cut; an unknown one stays as
// it is.
func incomplete(details json.RawMessage) psych.StopReason {
	var d struct {
		Reason json.RawMessage `json:"reason"`
	}
	if !absent(details) {
		_ = json.Unmarshal(details, &d) // of another kind: no reason
	}
	switch reason := scalar(d.Reason); reason {
	case "max_output_tokens":
		return psych.StopMaxTokens
	case "content_filter":
		return psych.StopRefusal
	case "":
		return "incomplete"
	default:
		return psych.StopReason(reason)
	}
}

// metaBlock is what a person needs to ask a provider about an answer, nil if
// there is nothing.
func metaBlock(id string) json.RawMessage {
	if id == "" {
		return nil
	}
	b := appendString([]byte(`{"type":"`+metaType+`","id":`), id)
	return append(b, '}')
}

// blocks appends an item. Of one that is not done, text and call are what came;
// reasoning without its end is worth nothing.
func (it *outputItem) blocks(to []psych.Block) []psych.Block {
	var x item
	if it.done != nil {
		_ = json.Unmarshal(it.done, &x) // done has looked at it
	}
	switch it.kind {
	case "message":
		var whole rawString
		for _, p := range x.Content {
			whole.add(p.Text)
			whole.add(p.Refusal)
		}
		text := whole.text()
		if text == "" {
			text = it.text.text()
		}
		if text == "" {
			return to
		}
		return append(it.with(to, messageFields), psych.Block{Text: text})
	case "function_call":
		c := &psych.ToolCall{ProviderID: it.callID, Name: it.name}
		switch {
		case !absent(x.Arguments) && x.Arguments[0] != '"':
			c.Arguments = x.Arguments
		default:
			var whole rawString
			if whole.add(x.Arguments) == "" {
				whole = it.args
			}
			c.Arguments = json.RawMessage(whole.text())
		}
		return append(it.with(to, callFields), psych.Block{Call: c})
	}
	if it.done == nil {
		return to
	}
	b := append(make([]byte, 0, len(it.done)+40), `{"type":"`+itemType+`","item":`...)
	b = append(b, it.done...)
	return append(to, psych.Block{Provider: append(b, '}')})
}

// with appends a block of what an item has beside what psych holds, such as
// its phase, which OpenAI wants to see again.
func (it *outputItem) with(to []psych.Block, but []string) []psych.Block {
	fields, _ := fieldsOf(it.done) // an object already
	var b []byte
	for _, f := range fields {
		if absent(f.value) || slices.Contains(but, f.key) {
			continue
		}
		if b == nil {
			b = append(b, `{"type":"`+withType+`","with":{`...)
		} else {
			b = append(b, ',')
		}
		b = appendString(b, f.key)
		b = append(append(b, ':'), f.value...)
	}
	if b == nil {
		return to
	}
	return append(to, psych.Block{Provider: append(b, "}}"...)})
}

func responsesUsage(raw json.RawMessage) (usage psych.Usage) {
	var u struct {
		Input   json.RawMessage `json:"input_tokens"`
		Output  json.RawMessage `json:"output_tokens"`
		Details json.RawMessage `json:"input_tokens_details"`
	}
	if absent(raw) || json.Unmarshal(raw, &u) != nil {
		return usage
	}
	var d struct {
		Cached  json.RawMessage `json:"cached_tokens"`
		Written json.RawMessage `json:"cache_write_tokens"`
	}
	if !absent(u.Details) {
		_ = json.Unmarshal(u.Details, &d) // of another kind: unknown
	}
	usage = psych.Usage{Input: tokens(u.Input), Output: tokens(u.Output), CacheRead: tokens(d.Cached), CacheWrite: tokens(d.Written)}
	return possible(usage)
}

// possible leaves out what can't be a part of the input.
func possible(u psych.Usage) psych.Usage {
	if u.Input != nil && u.CacheRead != nil && *u.CacheRead > *u.Input {
		u.CacheRead = nil
	}
	return u
}
