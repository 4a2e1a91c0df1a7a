package openai

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

// IDs of the encodings of this package; one changes when a byte of it does.
const (
	chatID      = "openai-chat/1"
	responsesID = "openai-responses/1"
)

// How messages begin and end. Nothing else writes them, so that a look at a few
// bytes tells the role and where a text may be put in.
const (
	systemStart    = `{"role":"system","content":`
	userStart      = `{"role":"user","content":`
	assistantStart = `{"role":"assistant","content":`
	toolStart      = `{"role":"tool","tool_call_id":`
	outputStart    = `{"type":"function_call_output","call_id":`
	chatText       = `{"type":"text","text":"`
	responsesText  = `{"type":"input_text","text":"`
	textEnd        = `"}`
	stringEnd      = `"}`
	partsEnd       = `]}`
	emptyEnd       = `:""}` // an unescaped quote ends a string, so nothing else ends so
	chatImageEnd   = `"}}`  // no part of a tool message ends so
	blankLine      = `\n\n`
)

// codec writes JSON by appending, since an engine's turn is measured with it.
// The messages of users and of the system are the same in both APIs but for
// the names of their parts.
type codec struct {
	limits        psych.ModelLimits
	responses     bool   // items of the Responses API, not messages of Chat Completions
	text          string // how a part that is a text begins
	parts         bool   // contents are lists of parts, which markers need, not strings
	dropReasoning bool
}

var _ psych.Codec = (*codec)(nil)

func newCodec(o *Options) *codec {
	c := &codec{limits: openAILimits, responses: o.Responses, text: chatText, parts: o.CacheBreakpoints, dropReasoning: o.DropReasoning}
	if o.Responses {
		c.text = responsesText
	}
	if o.Limits != nil {
		c.limits = *o.Limits
	}
	if o.Images {
		if len(c.limits.Images) == 0 {
			c.limits.Images = imageTypes
		}
		if c.limits.ImageBytes == 0 {
			c.limits.ImageBytes = imageBytes
		}
	}
	return c
}

func (c *codec) Limits() psych.ModelLimits { return c.limits }

func (c *codec) ID() string {
	id := chatID
	if c.responses {
		id = responsesID
	}
	if c.parts {
		id += "+parts"
	}
	if c.images() {
		id += fmt.Sprintf("+%s:%d", strings.Join(c.limits.Images, ","), c.limits.ImageBytes)
	}
	if c.dropReasoning {
		id += "-reasoning"
	}
	return id
}

func (c *codec) images() bool { return len(c.limits.Images) > 0 }

// lists reports whether a user's content is a list of parts: of one codec all
// are, or none, so that two can be made one.
func (c *codec) lists() bool { return c.parts || c.images() }

// EncodeTools writes a JSON array in the order of names, schemas byte for byte
// but for a root without properties, which gets empty ones: OpenAI demands
// them, and they mean the same.
func (c *codec) EncodeTools(defs []psych.ToolDef) ([]byte, error) {
	if len(defs) == 0 {
		return nil, nil
	}
	byName := func(a, b psych.ToolDef) int { return strings.Compare(a.Name, b.Name) }
	if !slices.IsSortedFunc(defs, byName) {
		defs = slices.Clone(defs)
		slices.SortStableFunc(defs, byName)
	}
	size := 2
	for _, d := range defs {
		size += len(d.Name) + len(d.Description) + len(d.Schema) + 128
	}
	b := append(make([]byte, 0, size), '[')
	for i, d := range defs {
		if i > 0 {
			b = append(b, ',')
		}
		if c.responses {
			b = append(b, `{"type":"function","name":`...)
		} else {
			b = append(b, `{"type":"function","function":{"name":`...)
		}
		b = appendString(b, d.Name)
		if d.Description != "" {
			b = append(b, `,"description":`...)
			b = appendString(b, d.Description)
		}
		b = append(b, `,"parameters":`...)
		var err error
		if b, err = appendSchema(b, d.Schema); err != nil {
			return nil, fmt.Errorf("openai: encode tool %.80q: %w: %w", d.Name, psych.ErrInvalid, err)
		}
		if c.responses {
			b = append(b, `,"strict":false}`...) // absent it is true, and the schema one of few
		} else {
			b = append(b, "}}"...)
		}
	}
	return append(b, ']'), nil
}

func appendSchema(b []byte, schema json.RawMessage) ([]byte, error) {
	schema = bytes.TrimSpace(schema)
	if len(schema) == 0 {
		return append(b, `{"type":"object","properties":{}}`...), nil
	}
	var root map[string]json.RawMessage
	if err := json.Unmarshal(schema, &root); err != nil || root == nil {
		return nil, fmt.Errorf("its schema is not a JSON object")
	}
	if _, ok := root["properties"]; ok {
		return append(b, schema...), nil
	}
	b = append(b, `{"properties":{}`...)
	if len(root) > 0 {
		b = append(b, ',')
	}
	return append(b, schema[1:]...), nil
}

// EncodeSystem writes one system message without its end, so that zone 2 goes
// on where zone 1 stops.
func (c *codec) EncodeSystem(static []string, dynamic string) (zone1, zone2 []byte, err error) {
	for _, s := range static {
		zone1 = c.appendSystem(zone1, s, len(zone1) > 0)
	}
	return zone1, c.appendSystem(nil, dynamic, len(zone1) > 0), nil
}

func (c *codec) appendSystem(b []byte, text string, begun bool) []byte {
	switch {
	case text == "":
		return b
	case c.parts && begun:
		b = append(b, ',')
	case c.parts:
		b = append(b, systemStart+`[`...)
	case begun:
		b = append(b, blankLine...)
	default:
		b = append(b, systemStart+`"`...)
	}
	if c.parts {
		b = append(b, c.text...)
		return append(psych.AppendEscaped(b, text), textEnd...)
	}
	return psych.AppendEscaped(b, text)
}

// EncodeMessage writes a JSON object, or several with commas in between: for
// each result one, and a user's message for their images; in the Responses API
// for each reasoning, text and call. For an assistant's message without text
// and calls it writes nothing.
func (c *codec) EncodeMessage(m *psych.Message) (b []byte, marker int, err error) {
	switch m.Role {
	case psych.RoleUser:
		b, err = c.encodeUser(m.Blocks)
	case psych.RoleAssistant:
		if c.responses {
			b, err = c.encodeOutput(m.Blocks)
		} else {
			b, err = c.encodeAssistant(m.Blocks)
		}
	case psych.RoleTool:
		b, err = c.encodeResults(m.Blocks)
	default:
		err = fmt.Errorf("role %.80q is not known", string(m.Role))
	}
	if err != nil {
		return nil, -1, fmt.Errorf("openai: encode message: %w: %w", psych.ErrInvalid, err)
	}
	marker = -1
	if c.parts && joinable(b) && bytes.HasSuffix(b, []byte(`}`+partsEnd)) {
		marker = len(b) - len(`}`+partsEnd)
	}
	return b, marker, nil
}

// EncodeTail writes the text as it stands within a JSON string.
func (c *codec) EncodeTail(text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	return psych.AppendEscaped(make([]byte, 0, len(text)+16), text), nil
}

// joinable reports whether a text may be put into the end of a part of the
// history: it ends with a user's message or with a result.
func joinable(part []byte) bool {
	return (bytes.HasPrefix(part, []byte(userStart)) || bytes.HasPrefix(part, []byte(toolStart)) || bytes.HasPrefix(part, []byte(outputStart))) &&
		(bytes.HasSuffix(part, []byte(partsEnd)) || bytes.HasSuffix(part, []byte(stringEnd)))
}

// endsUser reports whether the last message of a part is a user's.
func endsUser(part []byte) bool {
	return bytes.HasPrefix(part, []byte(userStart)) ||
		bytes.HasPrefix(part, []byte(toolStart)) && bytes.HasSuffix(part, []byte(chatImageEnd+partsEnd))
}

// sizeOf guesses the encoded size, so that most messages are one allocation.
func sizeOf(blocks []psych.Block) int {
	n := 96
	for i := range blocks {
		b := &blocks[i]
		n += 32 + len(b.Text) + len(b.Text)/16 + len(b.Provider)
		if b.Image != nil {
			n += sizeOfImage(b.Image)
		}
		if c := b.Call; c != nil {
			n += 80 + len(c.ID) + len(c.Name) + len(c.Arguments) + len(c.Arguments)/4
		}
		if r := b.Result; r != nil {
			n += 80 + len(r.CallID) + len(r.Text) + len(r.Text)/16
			for i := range r.Images {
				n += 64 + len(r.CallID) + sizeOfImage(&r.Images[i])
			}
		}
	}
	return n
}

func sizeOfImage(img *psych.Image) int {
	return 96 + len(img.ContentType) + base64.StdEncoding.EncodedLen(len(img.Data))
}

func (c *codec) encodeUser(blocks []psych.Block) ([]byte, error) {
	w := contentWriter{c: c, b: append(make([]byte, 0, sizeOf(blocks)), userStart...), list: c.lists()}
	for i := range blocks {
		switch b := &blocks[i]; {
		case b.Call != nil || b.Result != nil || b.Provider != nil:
			return nil, fmt.Errorf("block %d of a user's message is neither a text nor an image", i)
		case b.Image == nil:
			w.text("", b.Text)
		case c.shows(b.Image):
			w.image(b.Image)
		default:
			w.text("", fmt.Sprintf("[%.80s, %d bytes, left out: it can't be shown]", b.Image.ContentType, len(b.Image.Data)))
		}
	}
	return append(w.end(), '}'), nil
}

// shows reports whether an image is one that the server was said to take, and
// is what it says it is: a server refuses all of a request for one that is not.
func (c *codec) shows(img *psych.Image) bool {
	return slices.Contains(c.limits.Images, img.ContentType) && (c.limits.ImageBytes == 0 || len(img.Data) <= c.limits.ImageBytes) &&
		http.DetectContentType(img.Data) == img.ContentType
}

// A contentWriter writes a content: a list of parts, or a string with blank
// lines between the texts. A part without text is refused by some servers:
// nothing at all is "".
type contentWriter struct {
	c    *codec
	b    []byte
	list bool
	n    int // parts
}

func (w *contentWriter) begin() {
	switch {
	case w.list && w.n == 0:
		w.b = append(w.b, '[')
	case w.list:
		w.b = append(w.b, ',')
	case w.n == 0:
		w.b = append(w.b, '"')
	default:
		w.b = append(w.b, blankLine...)
	}
	w.n++
}

func (w *contentWriter) text(prefix, s string) {
	if s == "" {
		return
	}
	w.begin()
	if w.list {
		w.b = append(w.b, w.c.text...)
	}
	w.b = append(w.b, prefix...)
	w.b = psych.AppendEscaped(w.b, s)
	if w.list {
		w.b = append(w.b, textEnd...)
	}
}

// image writes a part, for a list alone.
func (w *contentWriter) image(img *psych.Image) {
	w.begin()
	if w.c.responses {
		w.b = append(w.b, `{"type":"input_image","image_url":"data:`...)
	} else {
		w.b = append(w.b, `{"type":"image_url","image_url":{"url":"data:`...)
	}
	w.b = psych.AppendEscaped(w.b, img.ContentType)
	w.b = append(w.b, ";base64,"...)
	w.b = base64.StdEncoding.AppendEncode(w.b, img.Data)
	if w.c.responses {
		w.b = append(w.b, textEnd...)
	} else {
		w.b = append(w.b, chatImageEnd...)
	}
}

func (w *contentWriter) end() []byte {
	switch {
	case w.n == 0:
		return append(w.b, `""`...)
	case w.list:
		return append(w.b, ']')
	}
	return append(w.b, '"')
}

// What a user's message with the images of results says.
const (
	imagesHead = "[Images that tools returned, not from the user]"
	imagesOf   = "Of the result of call "
)

func (c *codec) encodeResults(blocks []psych.Block) ([]byte, error) {
	if len(blocks) == 0 {
		return nil, nil
	}
	b := make([]byte, 0, sizeOf(blocks))
	shown := false
	for i := range blocks {
		r := blocks[i].Result
		if r == nil {
			return nil, fmt.Errorf("block %d of a tool's message is not a result", i)
		}
		if i > 0 {
			b = append(b, ',')
		}
		images := slices.ContainsFunc(r.Images, func(img psych.Image) bool { return c.shows(&img) })
		shown = shown || images
		w := contentWriter{c: c, list: c.parts || c.responses && images}
		if c.responses {
			w.b = appendString(append(b, outputStart...), r.CallID)
			w.b = append(w.b, `,"output":`...)
		} else {
			w.b = appendString(append(b, toolStart...), r.CallID)
			w.b = append(w.b, `,"content":`...)
		}
		prefix := ""
		if r.IsError {
			prefix = "Error: " // there is no other way to say so
		}
		w.text(prefix, r.Text)
		if c.responses {
			c.appendImages(&w, r)
		}
		b = append(w.end(), '}')
	}
	if !shown || c.responses {
		return b, nil
	}
	w := contentWriter{c: c, b: append(append(b, ','), userStart...), list: true}
	w.text("", imagesHead)
	for i := range blocks {
		r := blocks[i].Result
		if slices.ContainsFunc(r.Images, func(img psych.Image) bool { return c.shows(&img) }) {
			w.text(imagesOf, r.CallID+":")
			c.appendImages(&w, r)
		}
	}
	return append(w.end(), '}'), nil
}

// appendImages writes the images of a result that can be shown; its text names
// them all.
func (c *codec) appendImages(w *contentWriter, r *psych.ToolOutput) {
	for i := range r.Images {
		if c.shows(&r.Images[i]) {
			w.image(&r.Images[i])
		}
	}
}

func (c *codec) encodeAssistant(blocks []psych.Block) ([]byte, error) {
	var ours kept
	calls, texts := 0, 0
	for i := range blocks {
		switch b := &blocks[i]; {
		case b.Result != nil:
			return nil, fmt.Errorf("block %d of the assistant's message is a result", i)
		case b.Call != nil:
			calls++
		case b.Provider != nil:
			ours.read(b.Provider)
		case b.Text != "":
			texts++
		}
	}
	if calls == 0 && texts == 0 {
		return nil, nil
	}
	b := append(make([]byte, 0, sizeOf(blocks)), assistantStart...)
	if texts == 0 {
		b = append(b, "null"...)
	} else {
		b = append(b, '"')
		n := 0
		for i := range blocks {
			if t := blocks[i].Text; t != "" && blocks[i].Call == nil && blocks[i].Provider == nil {
				if n++; n > 1 {
					b = append(b, blankLine...)
				}
				b = psych.AppendEscaped(b, t)
			}
		}
		b = append(b, '"')
	}
	if calls > 0 {
		b = append(b, `,"tool_calls":[`...)
		n := 0
		for i := range blocks {
			if blocks[i].Call == nil {
				continue
			}
			if n > 0 {
				b = append(b, ',')
			}
			b = appendCall(b, blocks[i].Call, ours.call(n))
			n++
		}
		b = append(b, ']')
	}
	for _, f := range ours.message {
		if f.key == "role" || f.key == "content" || f.key == "tool_calls" || c.dropReasoning && isReasoning(f.key) {
			continue
		}
		b = appendField(b, f)
	}
	return append(b, '}'), nil
}

func isReasoning(key string) bool {
	return key == "reasoning_content" || key == "reasoning" || key == "reasoning_details"
}

func appendCall(b []byte, c *psych.ToolCall, extra []field) []byte {
	b = append(b, `{"id":`...)
	b = appendString(b, c.ID)
	b = append(b, `,"type":"function","function":{"name":`...)
	b = appendString(b, c.Name)
	b = appendArguments(b, c.Arguments)
	for _, f := range extra {
		if f.key == "function" {
			inner, _ := fieldsOf(f.value) // of another kind: there is nothing to keep
			for _, f := range inner {
				if f.key != "name" && f.key != "arguments" {
					b = appendField(b, f)
				}
			}
		}
	}
	b = append(b, '}')
	for _, f := range extra {
		if f.key != "function" && f.key != "id" && f.key != "type" {
			b = appendField(b, f)
		}
	}
	return append(b, '}')
}

func appendArguments(b []byte, args json.RawMessage) []byte {
	b = append(b, `,"arguments":"`...)
	if json.Valid(args) {
		b = psych.AppendEscaped(b, string(args))
	} else {
		b = append(b, "{}"...)
	}
	return append(b, '"')
}

func appendField(b []byte, f field) []byte {
	value, ok := sendable(f.value)
	if !ok {
		return b
	}
	b = append(b, ',')
	b = appendString(b, f.key)
	b = append(b, ':')
	return append(b, value...)
}

// maxDepth is how deep a value may be nested: parsers of servers stop at 128 or
// so, of the whole body, and would refuse each later request of a Run.
const maxDepth = 100

// sendable returns JSON as any parser takes it: the same bytes, unless they
// hold what is no UTF-8 or half of a surrogate pair. What is nested too deep is
// not sent at all.
func sendable(raw json.RawMessage) (json.RawMessage, bool) {
	depth, deepest, half := 0, 0, false
	for i, in := 0, false; i < len(raw); i++ {
		switch c := raw[i]; {
		case in && c == '\\':
			half = half || raw[i+1] == 'u' && raw[i+2]|0x20 == 'd'
			i++
		case c == '"':
			in = !in
		case in:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	if deepest > maxDepth {
		return nil, false
	}
	if half {
		raw = repairSurrogates(raw)
	}
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	}
	return raw, true
}

// repairSurrogates replaces each half of a pair that stands alone by \ufffd.
func repairSurrogates(raw json.RawMessage) json.RawMessage {
	out := make([]byte, 0, len(raw))
	unit := func(i int) rune {
		if i+6 > len(raw) || raw[i] != '\\' || raw[i+1] != 'u' {
			return 0
		}
		n, err := strconv.ParseUint(string(raw[i+2:i+6]), 16, 16)
		if err != nil {
			return 0 // can't be: it is JSON
		}
		return rune(n)
	}
	for i := 0; i < len(raw); {
		switch u := unit(i); {
		case utf16.IsSurrogate(u) && utf16.DecodeRune(u, unit(i+6)) != utf8.RuneError:
			out = append(out, raw[i:i+12]...)
			i += 12
		case utf16.IsSurrogate(u):
			out = append(out, `\ufffd`...)
			i += 6
		case raw[i] == '\\':
			out = append(out, raw[i:i+2]...)
			i += 2
		default:
			out = append(out, raw[i])
			i++
		}
	}
	return out
}

// keptType marks the provider blocks of this package: those of another
// provider mean nothing to these servers and stay in the log alone.
const keptType = "openai.chat"

// kept is what a server sent beyond what a message of psych holds: a provider
// block {"type":"openai.chat","message":{…},"calls":[{…},null,…]}.
type kept struct {
	message []field
	calls   []json.RawMessage
}

func (k *kept) read(block json.RawMessage) {
	var raw struct {
		Type    string            `json:"type"`
		Message json.RawMessage   `json:"message"`
		Calls   []json.RawMessage `json:"calls"`
	}
	if json.Unmarshal(block, &raw) != nil || raw.Type != keptType {
		return
	}
	k.message, _ = fieldsOf(raw.Message) // absent when only calls have something
	k.calls = raw.Calls
}

func (k *kept) call(n int) []field {
	if n >= len(k.calls) {
		return nil
	}
	fields, _ := fieldsOf(k.calls[n]) // null for most
	return fields
}

// A field is a member of a JSON object, its value byte for byte.
type field struct {
	key   string
	value json.RawMessage
}

// fieldsOf returns the members of an object in their order, the first of those
// with one key; nothing for null and no bytes.
func fieldsOf(object []byte) ([]field, error) {
	object = bytes.TrimSpace(object)
	if len(object) == 0 || string(object) == "null" {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(object))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("want a JSON object, got %.40q", object)
	}
	var fields []field
	seen := map[string]struct{}{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, err
		}
		f := field{key: t.(string)}
		if err := dec.Decode(&f.value); err != nil {
			return nil, err
		}
		if _, ok := seen[f.key]; !ok {
			seen[f.key] = struct{}{}
			fields = append(fields, f)
		}
	}
	return fields, nil
}

func appendString(b []byte, s string) []byte {
	return append(psych.AppendEscaped(append(b, '"'), s), '"')
}
