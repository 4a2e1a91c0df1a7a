package cachesim

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

type digest [sha256.Size]byte

// A request is a body as a cache sees it.
type request struct {
	blocks    []block
	explicit  bool   // prompt_cache_options.mode
	retention string // prompt_cache_retention
	ttl       string // prompt_cache_options.ttl
}

// A block is a tool, or a block of the system prompt or of a message.
type block struct {
	prefix     digest // of all blocks as far as this one
	chars      int    // of them
	text       []byte
	ttl        time.Duration // of its cache_control; 0: none
	breakpoint bool          // prompt_cache_breakpoint
	ends       bool          // a message that is not the model's
}

// estimate is the estimated tokens of so many characters.
func estimate(chars int) int { return (chars + 3) / 4 }

func (b *block) tokens() int { return estimate(b.chars) }

func (r *request) tokens() int {
	if len(r.blocks) == 0 {
		return 0
	}
	return r.blocks[len(r.blocks)-1].tokens()
}

// common is how many characters two texts begin with.
func common(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	for i < n && a[i] == b[i] {
		i++
	}
	return utf8.RuneCount(a[:i])
}

// A body is of either kind of API.
type body struct {
	Model    json.RawMessage   `json:"model"`
	Tools    []json.RawMessage `json:"tools"`
	System   json.RawMessage   `json:"system"`
	Messages []json.RawMessage `json:"messages"`
	Input    []json.RawMessage `json:"input"`

	// What says how messages are read, and so is a part of what is cached.
	Thinking json.RawMessage `json:"thinking"`
	Choice   json.RawMessage `json:"tool_choice"`
	Config   json.RawMessage `json:"output_config"`
	Effort   json.RawMessage `json:"reasoning"`

	Retention string `json:"prompt_cache_retention"`
	Options   struct {
		Mode string `json:"mode"`
		TTL  string `json:"ttl"`
	} `json:"prompt_cache_options"`
}

func parse(raw []byte) (*request, error) {
	var b body
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, fmt.Errorf("the body is no request: %w", err)
	}
	if len(b.Messages)+len(b.Input) == 0 {
		return nil, errors.New("the body has no messages")
	}
	p := &parser{r: &request{explicit: b.Options.Mode == "explicit", retention: b.Retention, ttl: b.Options.TTL}}
	p.setting(b.Model)
	for _, t := range b.Tools {
		if err := p.block("definition", t); err != nil {
			return nil, err
		}
	}
	if len(b.System) > 0 {
		if err := p.content("system", b.System); err != nil {
			return nil, err
		}
	}
	for _, s := range []json.RawMessage{b.Thinking, b.Choice, b.Config, b.Effort} {
		p.setting(s)
	}
	for _, m := range append(b.Messages, b.Input...) {
		if err := p.message(m); err != nil {
			return nil, err
		}
	}
	return p.r, nil
}

// A parser chains blocks.
type parser struct {
	r     *request
	chain digest
	chars int
}

func (p *parser) link(parts ...[]byte) {
	h := sha256.New()
	h.Write(p.chain[:])
	for _, part := range parts {
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	h.Sum(p.chain[:0])
}

func (p *parser) setting(raw json.RawMessage) { p.link([]byte("setting"), raw) }

// message takes a message apart, into the blocks that it contains.
func (p *parser) message(raw json.RawMessage) error {
	fields, err := members(raw)
	if err != nil {
		return err
	}
	role, theirs := "item", false // not the model's
	var rest []byte
	for _, f := range fields {
		switch f.key {
		case "role":
			if err := json.Unmarshal(f.value, &role); err != nil {
				return err
			}
			theirs = role != "assistant"
		case "output":
			theirs = true
		case "content":
		default:
			rest = append(append(append(rest, f.key...), ':'), f.value...)
		}
	}
	// All else stands before what it contains: the id that a result is of does
	// not depend on what is put behind the result.
	before := len(p.r.blocks)
	p.link([]byte(role), rest)
	p.chars += utf8.RuneCount(rest)
	for _, f := range fields {
		if f.key == "content" || f.key == "output" {
			if err := p.content(role, f.value); err != nil {
				return err
			}
		}
	}
	if len(p.r.blocks) == before { // calls alone
		p.add(role, nil, block{})
	}
	if n := len(p.r.blocks); n > before && theirs {
		p.r.blocks[n-1].ends = true
	}
	return nil
}

// content is a string, a list of blocks, or nothing.
func (p *parser) content(role string, raw json.RawMessage) error {
	switch {
	case string(raw) == "null":
		return nil
	case raw[0] != '[':
		p.add(role, raw, block{})
		return nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return err
	}
	for _, b := range list {
		if err := p.block(role, b); err != nil {
			return err
		}
	}
	return nil
}

// block adds a block without its marker.
func (p *parser) block(role string, raw json.RawMessage) error {
	var b block
	if !bytes.Contains(raw, []byte(`"cache_control"`)) && !bytes.Contains(raw, []byte(`"prompt_cache_breakpoint"`)) {
		p.add(role, raw, b)
		return nil
	}
	fields, err := members(raw)
	if err != nil {
		return err
	}
	bare := []byte{'{'}
	for _, f := range fields {
		switch f.key {
		case "cache_control":
			var c struct{ Type, TTL string }
			if err := json.Unmarshal(f.value, &c); err != nil {
				return err
			}
			switch {
			case c.Type != "ephemeral", c.TTL != "" && c.TTL != "5m" && c.TTL != "1h":
				return fmt.Errorf("cache_control %s is not known", f.value)
			case c.TTL == "1h":
				b.ttl = time.Hour
			default:
				b.ttl = 5 * time.Minute
			}
		case "prompt_cache_breakpoint":
			b.breakpoint = role != "assistant" // there it is not looked at
		default:
			if len(bare) > 1 {
				bare = append(bare, ',')
			}
			bare = append(append(append(append(bare, '"'), f.key...), `":`...), f.value...)
		}
	}
	p.add(role, append(bare, '}'), b)
	return nil
}

func (p *parser) add(role string, text []byte, b block) {
	p.link([]byte(role), text)
	p.chars += utf8.RuneCount(text)
	b.prefix, b.chars, b.text = p.chain, p.chars, text
	p.r.blocks = append(p.r.blocks, b)
}

// A member of a JSON object, its value byte for byte.
type member struct {
	key   string
	value json.RawMessage
}

func members(object json.RawMessage) (fields []member, err error) {
	dec := json.NewDecoder(bytes.NewReader(object))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("want a JSON object, got %.40q", object)
	}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, err
		}
		f := member{key: t.(string)}
		if err := dec.Decode(&f.value); err != nil {
			return nil, err
		}
		fields = append(fields, f)
	}
	return fields, nil
}
