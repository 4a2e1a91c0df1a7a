// Package messagestest holds what the documentation of the Messages API demands
// of a request, for servers of tests.
package messagestest

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A Request is what Check read.
type Request struct {
	Model     string         `json:"model"`
	Version   string         `json:"anthropic_version"` // Bedrock's
	Betas     []string       `json:"anthropic_beta"`    // Bedrock's
	MaxTokens int            `json:"max_tokens"`
	Stream    bool           `json:"stream"`
	Thinking  map[string]any `json:"thinking"`
	Tools     []map[string]any
	System    []map[string]any
	Messages  []Message

	Markers int // cache_control, in all
	Dropped int // reasoning whose prefix changed, where that is to be dropped

	short bool // a marker of five minutes was found
}

// A Message is one of a Request.
type Message struct {
	Role    string           `json:"role"`
	Content []map[string]any `json:"content"`
}

var (
	toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	property = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)
)

// Check returns what is wrong with the body of a request, as the provider would
// with status 400. Reasoning that [Sign] did not sign is not looked at.
func Check(body []byte) (*Request, error) {
	r, err := CheckUnbound(body)
	if err != nil {
		return nil, err
	}
	return r, r.checkBinding()
}

// CheckUnbound is Check as models do that bind no reasoning to what precedes
// it.
func CheckUnbound(body []byte) (*Request, error) {
	r := &Request{}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if err := dec.Decode(r); err != nil {
		return nil, err
	}
	if !slices.Equal(body, bytes.ToValidUTF8(body, []byte("?"))) {
		return nil, fmt.Errorf("the body is not UTF-8")
	}
	if r.MaxTokens < 1 {
		return nil, fmt.Errorf("max_tokens: %d", r.MaxTokens)
	}
	if budget, ok := r.Thinking["budget_tokens"].(json.Number); ok {
		if n, err := budget.Int64(); err != nil || n < 1024 || n >= int64(r.MaxTokens) {
			return nil, fmt.Errorf("thinking.budget_tokens: %s of max_tokens %d", budget, r.MaxTokens)
		}
	}
	names := map[string]bool{}
	for i, t := range r.Tools {
		if err := r.checkTool(t, names); err != nil {
			return nil, fmt.Errorf("tools.%d: %w", i, err)
		}
	}
	for i, b := range r.System {
		if b["type"] != "text" {
			return nil, fmt.Errorf("system.%d: type %v", i, b["type"])
		}
		if err := r.checkBlock(b, "system"); err != nil {
			return nil, fmt.Errorf("system.%d: %w", i, err)
		}
	}
	if len(r.Messages) == 0 || r.Messages[0].Role != "user" {
		return nil, fmt.Errorf("messages: the first message must use the user role")
	}
	var open []string // calls that the next message must answer
	for i, m := range r.Messages {
		var err error
		if open, err = r.checkMessage(i, m, open); err != nil {
			return nil, fmt.Errorf("messages.%d: %w", i, err)
		}
	}
	if last := r.Messages[len(r.Messages)-1]; last.Role != "user" {
		return nil, fmt.Errorf("this model does not support assistant message prefill: the conversation must end with a user message")
	}
	if r.Markers > 4 {
		return nil, fmt.Errorf("a maximum of 4 blocks with cache_control may be provided, found %d", r.Markers)
	}
	return r, nil
}

func (r *Request) checkTool(t map[string]any, names map[string]bool) error {
	name, _ := t["name"].(string)
	if !toolName.MatchString(name) || names[name] {
		return fmt.Errorf("name %q is illegal or there twice", name)
	}
	names[name] = true
	if d, ok := t["description"]; ok && d == "" {
		return fmt.Errorf("the description is empty")
	}
	schema, _ := t["input_schema"].(map[string]any)
	if schema["type"] != "object" {
		return fmt.Errorf("input_schema.type: %v", schema["type"])
	}
	for _, k := range []string{"oneOf", "anyOf", "allOf"} {
		if _, ok := schema[k]; ok {
			return fmt.Errorf("input_schema does not support %s at the top level", k)
		}
	}
	props, _ := schema["properties"].(map[string]any)
	for k := range props {
		if !property.MatchString(k) {
			return fmt.Errorf("input_schema.properties: the key %q", k)
		}
	}
	return r.checkMarker(t)
}

func (r *Request) checkMarker(b map[string]any) error {
	c, ok := b["cache_control"].(map[string]any)
	if !ok {
		return nil
	}
	r.Markers++
	if ttl, ok := c["ttl"]; c["type"] != "ephemeral" || ok && ttl != "5m" && ttl != "1h" {
		return fmt.Errorf("cache_control: %v", c)
	} else if ttl != "1h" {
		r.short = true
	} else if r.short {
		return fmt.Errorf("a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block")
	}
	return nil
}

func (r *Request) checkMessage(i int, m Message, open []string) ([]string, error) {
	if m.Role != "user" && m.Role != "assistant" {
		return nil, fmt.Errorf("role %q", m.Role)
	}
	if i > 0 && r.Messages[i-1].Role == m.Role {
		return nil, fmt.Errorf("roles must alternate, found %q twice", m.Role)
	}
	if len(m.Content) == 0 {
		return nil, fmt.Errorf("the content is empty")
	}
	var calls []string
	for j, b := range m.Content {
		if err := r.checkBlock(b, m.Role); err != nil {
			return nil, fmt.Errorf("content.%d: %w", j, err)
		}
		switch b["type"] {
		case "tool_use":
			calls = append(calls, b["id"].(string))
		case "tool_result":
			if j >= len(open) || b["tool_use_id"] != open[j] {
				return nil, fmt.Errorf("content.%d: tool_result %v is not the answer to call %d of the message before", j, b["tool_use_id"], j)
			}
		}
	}
	if m.Role == "assistant" {
		if t := m.Content[len(m.Content)-1]["type"]; t == "thinking" || t == "redacted_thinking" {
			return nil, fmt.Errorf("the final block in an assistant message cannot be `thinking`")
		}
		return calls, nil
	}
	if n := len(m.Content); n < len(open) || len(open) > 0 && m.Content[len(open)-1]["type"] != "tool_result" {
		return nil, fmt.Errorf("`tool_use` ids were found without `tool_result` blocks immediately after: %v", open)
	}
	return nil, nil
}

func (r *Request) checkBlock(b map[string]any, where string) error {
	kind, _ := b["type"].(string)
	if kind == "thinking" || kind == "redacted_thinking" {
		if _, ok := b["cache_control"]; ok {
			return fmt.Errorf("cache_control can't be set on %s", kind)
		}
	}
	if err := r.checkMarker(b); err != nil {
		return err
	}
	text := func(key string) string { s, _ := b[key].(string); return s }
	switch kind {
	case "text":
		if strings.TrimSpace(text("text")) == "" {
			return fmt.Errorf("text content blocks must contain non-whitespace text")
		}
		return nil
	case "thinking", "redacted_thinking":
		if where != "assistant" || kind == "thinking" && text("signature") == "" || kind != "thinking" && text("data") == "" {
			return fmt.Errorf("invalid %s block", kind)
		}
		return nil
	case "tool_use":
		if _, ok := b["input"].(map[string]any); where != "assistant" || !ok || text("id") == "" || text("name") == "" {
			return fmt.Errorf("invalid tool_use block")
		}
		return nil
	case "tool_result":
		if where != "user" {
			return fmt.Errorf("a result of role %s", where)
		}
		return r.checkResult(b)
	case "image", "document":
		if where != "user" {
			return fmt.Errorf("an image of role %s", where)
		}
		return checkSource(kind, b)
	}
	if where != "assistant" {
		return fmt.Errorf("unknown type %q", kind)
	}
	return nil
}

func (r *Request) checkResult(b map[string]any) error {
	failed, _ := b["is_error"].(bool)
	switch c := b["content"].(type) {
	case nil:
		if failed {
			return fmt.Errorf("content cannot be empty if `is_error` is true")
		}
	case string:
		if failed && strings.TrimSpace(c) == "" {
			return fmt.Errorf("content cannot be empty if `is_error` is true")
		}
	case []any:
		for _, x := range c {
			inner, _ := x.(map[string]any)
			if failed && inner["type"] != "text" {
				return fmt.Errorf("all content must be type `text` if `is_error` is true")
			}
			if err := r.checkBlock(inner, "user"); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("content of another kind: %v", c)
	}
	return nil
}

func checkSource(kind string, b map[string]any) error {
	s, _ := b["source"].(map[string]any)
	data, _ := s["data"].(string)
	raw, err := base64.StdEncoding.DecodeString(data)
	if err != nil || s["type"] != "base64" || len(raw) == 0 {
		return fmt.Errorf("source: %v of %d bytes: %v", s["type"], len(raw), err)
	}
	if len(data) > 5<<20 {
		return fmt.Errorf("image exceeds 5 MB maximum: %d bytes", len(data))
	}
	types := map[string]string{"image/png": "\x89PNG", "image/jpeg": "\xff\xd8\xff", "image/gif": "GIF8", "image/webp": "RIFF"}
	if kind == "document" {
		types = map[string]string{"application/pdf": "%PDF-"}
	}
	media, _ := s["media_type"].(string)
	if magic, ok := types[media]; !ok || !bytes.HasPrefix(raw, []byte(magic)) {
		return fmt.Errorf("the data is not of the provided media type %s", media)
	}
	return nil
}

// signature marks those of Sign.
const signature = "prefix:"

// Sign makes the signature of reasoning that answers the request: it is bound
// to everything in it but the markers.
func Sign(body []byte) (string, error) {
	r := &Request{}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	if err := dec.Decode(r); err != nil {
		return "", err
	}
	return r.sign(len(r.Messages)), nil
}

func (r *Request) sign(messages int) string {
	raw, _ := json.Marshal([]any{r.Tools, r.System, r.Messages[:messages]}) // it came from JSON
	var x any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	_ = dec.Decode(&x)
	unmark(x)
	raw, _ = json.Marshal(x)
	sum := sha256.Sum256(raw)
	return signature + hex.EncodeToString(sum[:8])
}

func unmark(x any) {
	switch x := x.(type) {
	case map[string]any:
		delete(x, "cache_control")
		for _, v := range x {
			unmark(v)
		}
	case []any:
		for _, v := range x {
			unmark(v)
		}
	}
}

// checkBinding checks reasoning against what precedes its message.
func (r *Request) checkBinding() error {
	binding, _ := r.Thinking["block_binding"].(map[string]any)
	for i, m := range r.Messages {
		for j, b := range m.Content {
			s, _ := b["signature"].(string)
			if !strings.HasPrefix(s, signature) || s == r.sign(i) {
				continue
			}
			if binding["prefix_mismatch_behavior"] != "drop_block" {
				return fmt.Errorf("messages.%d.content.%d: Invalid `signature` in `thinking` block. The block is bound to a different conversation", i, j)
			}
			r.Dropped++
		}
	}
	return nil
}
