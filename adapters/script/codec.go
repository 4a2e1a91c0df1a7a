package script

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

// codecID names the encoding of this file; it changes when a byte does.
const codecID = "script/1"

// How messages begin. Nothing but EncodeMessage writes them, so that a look at
// the first bytes tells the role without decoding.
const (
	userStart      = `{"role":"user","content":`
	assistantStart = `{"role":"assistant","blocks":[`
	toolStart      = `{"role":"tool","results":[`
	tailStart      = `{"role":"tail","content":`
)

// codec writes JSON by appending, since an engine's turn is measured with it.
type codec struct{ limits psych.ModelLimits }

var _ psych.Codec = (*codec)(nil)

func (c *codec) Limits() psych.ModelLimits { return c.limits }

func (c *codec) ID() string { return codecID }

// EncodeTools writes a JSON array in the order of names, schemas byte for byte.
func (c *codec) EncodeTools(defs []psych.ToolDef) ([]byte, error) {
	if len(defs) == 0 {
		return nil, nil
	}
	byName := func(a, b psych.ToolDef) int { return strings.Compare(a.Name, b.Name) }
	if !slices.IsSortedFunc(defs, byName) {
		defs = slices.Clone(defs)
		slices.SortStableFunc(defs, byName)
	}
	b := []byte{'['}
	for i, d := range defs {
		if i > 0 {
			b = append(b, ',')
		}
		schema := d.Schema
		if len(schema) == 0 {
			schema = json.RawMessage("{}")
		}
		if !json.Valid(schema) {
			return nil, fmt.Errorf("script: encode tool %s: its schema is not JSON: %w", quote(d.Name), psych.ErrInvalid)
		}
		b = append(b, `{"name":`...)
		b = appendString(b, d.Name)
		b = append(b, `,"description":`...)
		b = appendString(b, d.Description)
		b = append(b, `,"schema":`...)
		b = append(b, schema...)
		b = append(b, '}')
	}
	return append(b, ']'), nil
}

// EncodeSystem writes each block as a JSON string, those of zone 1 with a
// comma in between.
func (c *codec) EncodeSystem(static []string, dynamic string) (zone1, zone2 []byte, err error) {
	for i, s := range static {
		if i > 0 {
			zone1 = append(zone1, ',')
		}
		zone1 = appendString(zone1, s)
	}
	if dynamic != "" {
		zone2 = appendString(nil, dynamic)
	}
	return zone1, zone2, nil
}

// EncodeMessage writes one JSON object. A provider block is a JSON string of
// its bytes, which raw JSON would not keep: a decoder may compact it.
func (c *codec) EncodeMessage(m *psych.Message) (b []byte, marker int, err error) {
	b = make([]byte, 0, sizeOf(m))
	switch m.Role {
	case psych.RoleUser:
		b, err = appendUser(b, m.Blocks)
	case psych.RoleAssistant:
		b, err = appendAssistant(b, m.Blocks)
	case psych.RoleTool:
		b, err = appendResults(b, m.Blocks)
	default:
		err = fmt.Errorf("role %s is not known", quote(string(m.Role)))
	}
	if err != nil {
		return nil, -1, fmt.Errorf("script: encode message: %w: %w", psych.ErrInvalid, err)
	}
	return b, len(b) - 1, nil
}

func (c *codec) EncodeTail(text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	b := append(make([]byte, 0, len(tailStart)+len(text)+16), tailStart...)
	return append(appendString(b, text), '}'), nil
}

// sizeOf guesses the encoded size, so that most messages are one allocation.
func sizeOf(m *psych.Message) int {
	n := 48
	for i := range m.Blocks {
		b := &m.Blocks[i]
		n += 32 + len(b.Text) + len(b.Text)/16 + len(b.Provider) + len(b.Provider)/4
		if b.Call != nil {
			n += 48 + len(b.Call.ID) + len(b.Call.Name) + len(b.Call.Arguments)
		}
		if b.Result != nil {
			n += 32 + len(b.Result.CallID) + len(b.Result.Text) + len(b.Result.Text)/16
		}
	}
	return n
}

func appendUser(b []byte, blocks []psych.Block) ([]byte, error) {
	b = append(b, userStart...)
	if len(blocks) == 1 && isText(&blocks[0]) && blocks[0].Image == nil {
		b = appendString(b, blocks[0].Text)
		return append(b, '}'), nil
	}
	b = append(b, '[')
	for i := range blocks {
		if !isText(&blocks[i]) {
			return nil, fmt.Errorf("block %d of a user's message is not a text", i)
		}
		if i > 0 {
			b = append(b, ',')
		}
		if img := blocks[i].Image; img != nil {
			b = appendString(b, imageText(img))
		} else {
			b = appendString(b, blocks[i].Text)
		}
	}
	return append(b, "]}"...), nil
}

// imageText stands for an image, which a script can't look at.
func imageText(img *psych.Image) string {
	return fmt.Sprintf("[image, %s, %d bytes]", img.ContentType, len(img.Data))
}

func isText(b *psych.Block) bool { return b.Call == nil && b.Result == nil && b.Provider == nil }

func appendAssistant(b []byte, blocks []psych.Block) ([]byte, error) {
	b = append(b, assistantStart...)
	for i := range blocks {
		if i > 0 {
			b = append(b, ',')
		}
		switch block := &blocks[i]; {
		case block.Result != nil:
			return nil, fmt.Errorf("block %d of the assistant's message is a result", i)
		case block.Call != nil:
			args := block.Call.Arguments
			if !json.Valid(args) {
				return nil, fmt.Errorf("arguments of call %s are not JSON", quote(block.Call.ID))
			}
			b = append(b, `{"call":{"id":`...)
			b = appendString(b, block.Call.ID)
			b = append(b, `,"name":`...)
			b = appendString(b, block.Call.Name)
			b = append(b, `,"arguments":`...)
			b = append(b, args...)
			b = append(b, "}}"...)
		case block.Provider != nil && utf8.Valid(block.Provider):
			b = append(b, `{"provider":`...)
			b = appendString(b, string(block.Provider))
			b = append(b, '}')
		case block.Provider != nil:
			b = append(b, `{"provider_base64":"`...)
			b = base64.StdEncoding.AppendEncode(b, block.Provider)
			b = append(b, `"}`...)
		default:
			b = append(b, `{"text":`...)
			b = appendString(b, block.Text)
			b = append(b, '}')
		}
	}
	return append(b, "]}"...), nil
}

func appendResults(b []byte, blocks []psych.Block) ([]byte, error) {
	b = append(b, toolStart...)
	for i := range blocks {
		r := blocks[i].Result
		if r == nil {
			return nil, fmt.Errorf("block %d of a tool's message is not a result", i)
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"id":`...)
		b = appendString(b, r.CallID)
		b = append(b, `,"text":`...)
		b = appendString(b, r.Text)
		for j := range r.Images {
			b = append(b, []string{`,"images":[`, ","}[min(j, 1)]...)
			if b = appendString(b, imageText(&r.Images[j])); j == len(r.Images)-1 {
				b = append(b, ']')
			}
		}
		if r.IsError {
			b = append(b, `,"error":true`...)
		}
		b = append(b, '}')
	}
	return append(b, "]}"...), nil
}

// appendString appends s as a JSON string.
func appendString(b []byte, s string) []byte {
	return append(psych.AppendEscaped(append(b, '"'), s), '"')
}

// Roles as a look at an encoded message tells them.
func roleOf(b []byte) (psych.Role, bool) {
	switch {
	case bytes.HasPrefix(b, []byte(assistantStart)):
		return psych.RoleAssistant, true
	case bytes.HasPrefix(b, []byte(toolStart)):
		return psych.RoleTool, true
	case bytes.HasPrefix(b, []byte(userStart)), bytes.HasPrefix(b, []byte(tailStart)): // a tail that is kept is history
		return psych.RoleUser, true
	}
	return "", false
}

// A message is what EncodeMessage or EncodeTail wrote, decoded.
type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
	Blocks  []struct {
		Text *string `json:"text"`
		Call *struct {
			ID        string          `json:"id"`
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"call"`
		Provider       *string `json:"provider"`
		ProviderBase64 []byte  `json:"provider_base64"`
	} `json:"blocks"`
	Results []result `json:"results"`
}

type result struct {
	ID    string `json:"id"`
	Text  string `json:"text"`
	Error bool   `json:"error"`
}

func decodeMessage(b []byte) (*message, error) {
	m := new(message)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("decode a message of %s: %w", codecID, err)
	}
	return m, nil
}

// text is what a person would read of the message, and what patterns match.
func (m *message) text() (string, error) {
	var lines []string
	switch {
	case len(m.Content) > 0 && m.Content[0] == '[':
		if err := json.Unmarshal(m.Content, &lines); err != nil {
			return "", err
		}
	case len(m.Content) > 0:
		lines = make([]string, 1)
		if err := json.Unmarshal(m.Content, &lines[0]); err != nil {
			return "", err
		}
	}
	for _, b := range m.Blocks {
		switch {
		case b.Text != nil:
			lines = append(lines, *b.Text)
		case b.Call != nil:
			lines = append(lines, b.Call.Name+" "+string(b.Call.Arguments))
		case b.Provider != nil:
			lines = append(lines, *b.Provider)
		default:
			lines = append(lines, string(b.ProviderBase64))
		}
	}
	for _, r := range m.Results {
		lines = append(lines, r.Text)
	}
	return strings.Join(lines, "\n"), nil
}
