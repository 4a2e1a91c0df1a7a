package messages

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

// codecID names the encoding of this file; it changes when a byte does.
const codecID = "anthropic-messages/1"

// idOf is codecID with which images are shown, unless these are the default
// ones.
func idOf(limits psych.ModelLimits) string {
	id := codecID
	if def := DefaultLimits(); !slices.Equal(limits.Images, def.Images) || limits.ImageBytes != def.ImageBytes {
		id += fmt.Sprintf("+images=%s:%d", strings.Join(limits.Images, ","), limits.ImageBytes)
	}
	return id
}

// How messages and blocks begin and end. A look at the first bytes of a part
// tells what it is: blocks alone begin with their type.
const (
	userStart      = `{"role":"user","content":[`
	assistantStart = `{"role":"assistant","content":[`
	messageEnd     = `]}`
	blockStart     = `{"type":`
	textStart      = `{"type":"text","text":"`
	textEnd        = `"}`
)

// codec writes JSON by appending, since an engine's turn is measured with it.
type codec struct {
	id     string
	limits psych.ModelLimits
	keeps  bool
}

var (
	_ psych.Codec      = (*codec)(nil)
	_ psych.TailKeeper = (*codec)(nil)
)

func (c *codec) Limits() psych.ModelLimits { return c.limits }

func (c *codec) ID() string { return c.id }

// KeepsTails says that a trailing message stays in its place in later requests:
// models bind their reasoning to everything that precedes it.
func (c *codec) KeepsTails() bool { return c.keeps }

// EncodeTools writes a JSON array in the order of names, schemas byte for byte
// but for a root without a type, which gets the one that the provider demands.
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
		size += len(d.Name) + len(d.Description) + len(d.Schema) + 96
	}
	b := append(make([]byte, 0, size), '[')
	for i, d := range defs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"name":`...)
		b = appendString(b, d.Name)
		if d.Description != "" {
			b = append(b, `,"description":`...)
			b = appendString(b, d.Description)
		}
		b = append(b, `,"input_schema":`...)
		var err error
		if b, err = appendSchema(b, d.Schema); err != nil {
			return nil, fmt.Errorf("messages: encode tool %.80q: %w: %w", d.Name, psych.ErrInvalid, err)
		}
		b = append(b, '}')
	}
	return append(b, ']'), nil
}

func appendSchema(b []byte, schema json.RawMessage) ([]byte, error) {
	schema = bytes.TrimSpace(schema)
	if len(schema) == 0 {
		return append(b, `{"type":"object"}`...), nil
	}
	var root map[string]json.RawMessage
	if err := json.Unmarshal(schema, &root); err != nil || root == nil {
		return nil, fmt.Errorf("its schema is not a JSON object")
	}
	if _, ok := root["type"]; ok {
		return append(b, schema...), nil
	}
	b = append(b, `{"type":"object"`...)
	if len(root) > 0 {
		b = append(b, ',')
	}
	return append(b, schema[1:]...), nil
}

// EncodeSystem writes text blocks with commas in between and before zone 2.
func (c *codec) EncodeSystem(static []string, dynamic string) (zone1, zone2 []byte, err error) {
	for _, s := range static {
		zone1 = appendText(zone1, s, len(zone1) > 0)
	}
	return zone1, appendText(nil, dynamic, len(zone1) > 0), nil
}

// EncodeTail writes one text block.
func (c *codec) EncodeTail(text string) ([]byte, error) { return appendText(nil, text, false), nil }

// appendText writes a text block, unless the provider would refuse it.
func appendText(b []byte, text string, comma bool) []byte {
	if blank(text) {
		return b
	}
	if comma {
		b = append(b, ',')
	}
	b = append(slices.Grow(b, len(text)+len(text)/16+32), textStart...)
	b = psych.AppendEscaped(b, text)
	return append(b, textEnd...)
}

// blank reports whether a text has nothing but white space, as the provider
// sees it: the separators of ASCII count too.
func blank(s string) bool {
	for _, r := range s {
		if !unicode.IsSpace(r) && (r < 0x1c || r > 0x1f) {
			return false
		}
	}
	return true
}

// EncodeMessage writes a message, for results a user's; for one that nothing is
// left of, nothing. The marker's place is in the last block that takes one.
func (c *codec) EncodeMessage(m *psych.Message) (b []byte, marker int, err error) {
	end := 0 // of that block
	switch m.Role {
	case psych.RoleUser:
		b, err = c.encodeUser(m.Blocks)
		end = len(b) - len(messageEnd)
	case psych.RoleAssistant:
		b, end, err = c.encodeAssistant(m.Blocks)
	case psych.RoleTool:
		b, end, err = c.encodeResults(m.Blocks)
	default:
		err = fmt.Errorf("role %.80q is not known", string(m.Role))
	}
	if err != nil {
		return nil, -1, fmt.Errorf("messages: encode message: %w: %w", psych.ErrInvalid, err)
	}
	return b, max(end, 0) - 1, nil
}

// sizeOf guesses the encoded size, so that most messages are one allocation.
func sizeOf(blocks []psych.Block) int {
	n := 96
	for i := range blocks {
		b := &blocks[i]
		n += 32 + len(b.Text) + len(b.Text)/16 + len(b.Provider)
		if b.Image != nil {
			n += 96 + base64.StdEncoding.EncodedLen(len(b.Image.Data))
		}
		if c := b.Call; c != nil {
			n += 64 + len(c.ID) + len(c.Name) + len(c.Arguments)
		}
		if r := b.Result; r != nil {
			n += 96 + len(r.CallID) + len(r.Text) + len(r.Text)/16
			for i := range r.Images {
				n += 96 + base64.StdEncoding.EncodedLen(len(r.Images[i].Data))
			}
		}
	}
	return n
}

func (c *codec) encodeUser(blocks []psych.Block) ([]byte, error) {
	b := append(make([]byte, 0, sizeOf(blocks)), userStart...)
	for i := range blocks {
		switch x := &blocks[i]; {
		case x.Call != nil || x.Result != nil || x.Provider != nil:
			return nil, fmt.Errorf("block %d of a user's message is neither text nor image", i)
		case x.Image != nil:
			b = c.appendImage(b, x.Image, len(b) > len(userStart))
		default:
			b = appendText(b, x.Text, len(b) > len(userStart))
		}
	}
	if len(b) == len(userStart) {
		b = appendText(b, "(empty message)", false)
	}
	return append(b, messageEnd...), nil
}

// appendImage writes a block of an image or document, or says in a text why
// there is none.
func (c *codec) appendImage(b []byte, img *psych.Image, comma bool) []byte {
	kind := typeOf(img.Data)
	why := ""
	switch {
	case kind == "" || !slices.Contains(c.limits.Images, kind):
		why = "it is not of a type that can be shown"
	case c.limits.ImageBytes > 0 && len(img.Data) > c.limits.ImageBytes:
		why = fmt.Sprintf("only %d bytes can be shown", c.limits.ImageBytes)
	}
	if why != "" {
		return appendText(b, fmt.Sprintf("[%.80s, %d bytes, left out: %s]", img.ContentType, len(img.Data), why), comma)
	}
	if comma {
		b = append(b, ',')
	}
	block := `{"type":"image"`
	if kind == "application/pdf" {
		block = `{"type":"document"`
	}
	b = append(b, block...)
	b = append(b, `,"source":{"type":"base64","media_type":"`...)
	b = append(b, kind...)
	b = append(b, `","data":"`...)
	b = base64.StdEncoding.AppendEncode(b, img.Data)
	return append(b, `"}}`...)
}

// typeOf tells what data is: the provider refuses what is declared to be
// something else.
func typeOf(data []byte) string {
	switch {
	case bytes.HasPrefix(data, []byte("\x89PNG\r\n\x1a\n")):
		return "image/png"
	case bytes.HasPrefix(data, []byte("\xff\xd8\xff")):
		return "image/jpeg"
	case bytes.HasPrefix(data, []byte("GIF87a")), bytes.HasPrefix(data, []byte("GIF89a")):
		return "image/gif"
	case len(data) >= 12 && string(data[:4]) == "RIFF" && string(data[8:12]) == "WEBP":
		return "image/webp"
	case bytes.HasPrefix(data, []byte("%PDF-")):
		return "application/pdf"
	}
	return ""
}

func (c *codec) encodeResults(blocks []psych.Block) (b []byte, markable int, err error) {
	if len(blocks) == 0 {
		return nil, 0, nil
	}
	b = append(make([]byte, 0, sizeOf(blocks)), userStart...)
	for i := range blocks {
		r := blocks[i].Result
		if r == nil {
			return nil, 0, fmt.Errorf("block %d of a tool's message is not a result", i)
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"type":"tool_result","tool_use_id":`...)
		b = appendString(b, r.CallID)
		if r.IsError {
			b = append(b, `,"is_error":true`...)
		}
		bare := len(b)
		b = c.appendContent(b, r)
		empty := len(b) == bare
		b = append(b, '}')
		if !empty {
			markable = len(b)
		}
	}
	return append(b, messageEnd...), markable, nil
}

// appendContent writes what a result says. An empty one has no content; a
// failure must have some, and may have nothing but text.
func (c *codec) appendContent(b []byte, r *psych.ToolOutput) []byte {
	text := r.Text
	if r.IsError && blank(text) {
		text = "(it failed without a word)"
	}
	if r.IsError && len(r.Images) > 0 {
		text += fmt.Sprintf("\n[images left out, since a failure can't show any: %d]", len(r.Images))
	}
	switch {
	case len(r.Images) > 0 && !r.IsError:
		b = append(b, `,"content":[`...)
		start := len(b)
		b = appendText(b, text, false)
		for i := range r.Images {
			b = c.appendImage(b, &r.Images[i], len(b) > start)
		}
		return append(b, ']')
	case blank(text):
		return b
	}
	b = append(b, `,"content":`...)
	return appendString(b, text)
}

func (c *codec) encodeAssistant(blocks []psych.Block) (b []byte, markable int, err error) {
	b = append(make([]byte, 0, sizeOf(blocks)), assistantStart...)
	end := len(b) // behind the last block that may end a message
	var fields json.RawMessage
	for i := range blocks {
		x := &blocks[i]
		begun := len(b) > len(assistantStart)
		switch {
		case x.Result != nil || x.Image != nil:
			return nil, 0, fmt.Errorf("block %d of the assistant's message is a result or an image", i)
		case x.Call != nil:
			if begun {
				b = append(b, ',')
			}
			b = appendCall(b, x.Call, fields)
			fields = nil
			end, markable = len(b), len(b)
		case x.Provider != nil:
			kind, raw := readProvider(x.Provider)
			switch kind {
			case ofCall:
				fields = raw
			case ofReasoning, ofBlock:
				if begun {
					b = append(b, ',')
				}
				b = append(b, raw...)
				if kind == ofBlock {
					end = len(b)
				}
			}
		case !blank(x.Text):
			b = appendText(b, x.Text, begun)
			end, markable = len(b), len(b)
		}
	}
	if end == len(assistantStart) {
		return nil, 0, nil
	}
	return append(b[:end], messageEnd...), markable, nil
}

func appendCall(b []byte, c *psych.ToolCall, fields json.RawMessage) []byte {
	b = append(b, `{"type":"tool_use","id":`...)
	b = appendString(b, c.ID)
	b = append(b, `,"name":`...)
	b = appendString(b, c.Name)
	b = append(b, `,"input":`...)
	if args := bytes.TrimSpace(c.Arguments); len(args) > 0 && args[0] == '{' && json.Valid(args) {
		b = append(b, args...)
	} else {
		b = append(b, "{}"...)
	}
	members, _ := fieldsOf(fields) // it is an object, or nothing
	for _, f := range members {
		switch f.key {
		case "type", "id", "name", "input", "cache_control":
			continue
		}
		b = append(b, ',')
		b = appendString(b, f.key)
		b = append(b, ':')
		b = append(b, f.value...)
	}
	return append(b, '}')
}

// Types of provider blocks that this package makes.
const (
	blockType    = "anthropic.block"
	callType     = "anthropic.call"
	responseType = "anthropic.response"
)

// What a provider block is for.
type provider int

const (
	ofNothing   provider = iota // another provider's, for the log, or not fit to be sent
	ofReasoning                 // a block that may not end a message
	ofBlock
	ofCall
)

// readProvider says what to send of a provider block.
func readProvider(block json.RawMessage) (provider, json.RawMessage) {
	if !sendable(block) {
		return ofNothing, nil
	}
	block = bytes.TrimSpace(block)
	var x struct {
		Type      string          `json:"type"`
		Signature string          `json:"signature"`
		Data      string          `json:"data"`
		Block     json.RawMessage `json:"block"`
		Deltas    json.RawMessage `json:"deltas"`
		Fields    json.RawMessage `json:"fields"`
	}
	if json.Unmarshal(block, &x) != nil {
		return ofNothing, nil
	}
	switch {
	case x.Type == "thinking" && x.Signature != "", x.Type == "redacted_thinking" && x.Data != "":
		return ofReasoning, block
	case x.Type == blockType && len(x.Block) > 0 && x.Block[0] == '{' && absent(x.Deltas):
		return ofBlock, x.Block
	case x.Type == callType && len(x.Fields) > 0 && x.Fields[0] == '{':
		return ofCall, x.Fields
	}
	return ofNothing, nil
}

// maxDepth is how deep a value may be nested: parsers of servers stop at 128 or
// so, of the whole body, and would refuse each later request of a Run.
const maxDepth = 100

// sendable reports whether any parser takes raw: it is JSON in UTF-8, not
// nested too deep, without half of a surrogate pair. Reasoning is signed, so
// what is not fit can't be mended.
func sendable(raw json.RawMessage) bool {
	if !json.Valid(raw) || !utf8.Valid(raw) {
		return false
	}
	depth := 0
	for i, in := 0, false; i < len(raw); i++ {
		switch c := raw[i]; {
		case in && c == '\\':
			if raw[i+1] != 'u' || raw[i+2]|0x20 != 'd' || raw[i+3] < '8' {
				i++
				continue
			}
			high := raw[i+3] == '8' || raw[i+3] == '9' || raw[i+3]|0x20 == 'a' || raw[i+3]|0x20 == 'b'
			if !high || !lowSurrogate(raw[i+6:]) {
				return false
			}
			i += 11
		case c == '"':
			in = !in
		case in:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return false
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return true
}

func lowSurrogate(s []byte) bool {
	return len(s) >= 6 && s[0] == '\\' && s[1] == 'u' && s[2]|0x20 == 'd' && s[3]|0x20 >= 'c' && s[3]|0x20 <= 'f'
}

func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// A field is a member of a JSON object, its value byte for byte.
type field struct {
	key   string
	value json.RawMessage
}

// fieldsOf returns the members of an object in their order, the first of those
// with one key; nothing for null and no bytes.
func fieldsOf(object []byte) ([]field, error) {
	if absent(object) {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(object))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("want a JSON object, got %.40q", object)
	}
	var fields []field
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, err
		}
		f := field{key: t.(string)}
		if err := dec.Decode(&f.value); err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(fields, func(g field) bool { return g.key == f.key }) {
			fields = append(fields, f)
		}
	}
	return fields, nil
}

func appendString(b []byte, s string) []byte {
	return append(psych.AppendEscaped(append(b, '"'), s), '"')
}
