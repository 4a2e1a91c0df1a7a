package psych

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// A prompt is the encoded form of a Run's history for one Model: four zones,
// from the most stable to the most volatile. It grows with the history; what
// was encoded once is kept and shared by all later Requests.
type prompt struct {
	codec    Codec
	id       string // codec.ID
	opening  *opening
	dynamic  Wire    // zone 2
	memory   *string // what zone 2 was made of; nil before the first model call
	history  []Wire
	chars    int   // of history
	bytes    int64 // of history
	previous int   // messages of history that the previous request sent
}

// An opening is the tools and zone 1 of a Version for one Codec. It is the
// same for all Runs of the Version and shared by them.
type opening struct {
	tools, static Wire
}

// zone0 stands before the first part: its Chain is the zero Digest.
var zone0 Wire

// chained makes the Wire of b behind prev.
func chained(prev *Wire, b []byte, marker int) Wire {
	h := sha256.New()
	h.Write(prev.Chain[:])
	h.Write(b)
	w := Wire{Bytes: b, Chars: utf8.RuneCount(b), Marker: marker}
	h.Sum(w.Chain[:0])
	return w
}

func newOpening(c Codec, v *Version) (*opening, error) {
	tools, err := c.EncodeTools(surface(v))
	if err != nil {
		return nil, fmt.Errorf("psych: encode the tools of version %s: %w", v.Hash, err)
	}
	static, _, err := c.EncodeSystem(staticBlocks(&v.Spec), "")
	if err != nil {
		return nil, fmt.Errorf("psych: encode the instructions of version %s: %w", v.Hash, err)
	}
	o := &opening{tools: chained(&zone0, tools, -1)}
	o.static = chained(&o.tools, static, -1)
	return o, nil
}

// surface is the tools that the model is shown, sorted by name. The reader is
// there from the first turn on: a tool that appeared with the first large
// result would break the prefix.
func surface(v *Version) []ToolDef {
	defs := make([]ToolDef, 0, len(v.CodeTools)+1)
	reader := readToolOutputDef
	for _, d := range v.CodeTools {
		if reader.Name != "" && d.Name > reader.Name {
			defs = append(defs, reader)
			reader.Name = ""
		}
		defs = append(defs, d)
	}
	if reader.Name != "" {
		defs = append(defs, reader)
	}
	return defs
}

// staticBlocks are the blocks of zone 1.
func staticBlocks(s *Spec) []string {
	if s.Instructions == "" {
		return nil
	}
	return []string{s.Instructions}
}

// setMemory makes zone 2 of text, and chains the history anew if it changed.
func (p *prompt) setMemory(spec *Spec, text string) error {
	if p.memory != nil && *p.memory == text {
		return nil
	}
	_, b, err := p.codec.EncodeSystem(staticBlocks(spec), text)
	if err != nil {
		return fmt.Errorf("psych: encode the memories: %w", err)
	}
	p.memory = &text
	p.dynamic = chained(&p.opening.static, b, -1)
	prev := &p.dynamic
	history := make([]Wire, len(p.history), len(p.history)+16)
	for i, w := range p.history {
		history[i] = chained(prev, w.Bytes, w.Marker)
		prev = &history[i]
	}
	p.history = history // the old one may be in use by an earlier Request
	return nil
}

// extend encodes what the history gained since the last call.
func (p *prompt) extend(ctx context.Context, s *state, blobs BlobStore) error {
	for i := len(p.history); i < len(s.history); i++ {
		m, err := s.message(ctx, i, blobs)
		if err != nil {
			return err
		}
		b, marker, err := p.codec.EncodeMessage(m)
		if err != nil {
			return fmt.Errorf("psych: encode message %d of run %s: %w", i, s.run, err)
		}
		prev := &p.dynamic
		if i > 0 {
			prev = &p.history[i-1]
		}
		p.history = append(p.history, chained(prev, b, marker))
		p.chars += p.history[i].Chars
		p.bytes += int64(len(b))
	}
	return nil
}

// chain is the Chain at the end of the first n messages.
func (p *prompt) chain(n int) Digest {
	if n == 0 {
		return p.dynamic.Chain
	}
	return p.history[n-1].Chain
}

// request makes the Request for what the prompt holds now.
func (p *prompt) request(v *Version, model string, tail Wire) *Request {
	n := len(p.history)
	r := &Request{
		Model: model, Options: v.Spec.ModelOptions,
		Tools: p.opening.tools, System: [2]Wire{p.opening.static, p.dynamic},
		History: p.history[:n:n], Tail: tail,
	}
	if p.previous > 0 && p.previous < n {
		r.Breaks = append(r.Breaks, p.previous-1)
	}
	if n > 0 {
		r.Breaks = append(r.Breaks, n-1)
	}
	return r
}

// message projects an entry of the history: a function of the records alone.
func (s *state) message(ctx context.Context, i int, blobs BlobStore) (*Message, error) {
	it := &s.history[i]
	switch {
	case it.user != nil:
		text, err := it.user.Text.load(ctx, blobs, s.run)
		if err != nil {
			return nil, err
		}
		return &Message{Role: RoleUser, Blocks: textBlocks(nil, text)}, nil
	case it.said != nil:
		m := &Message{Role: RoleAssistant, Blocks: make([]Block, 0, len(it.said.Blocks))}
		calls := it.results.calls
		for j := range it.said.Blocks {
			var err error
			if m.Blocks, calls, err = s.said(ctx, m.Blocks, &it.said.Blocks[j], calls, blobs); err != nil {
				return nil, err
			}
		}
		return m, nil
	default:
		m := &Message{Role: RoleTool, Blocks: make([]Block, len(it.results.calls))}
		for j, c := range it.results.calls {
			m.Blocks[j].Result = &ToolOutput{CallID: c.wireID, Text: s.view(c).text(), IsError: c.done.Outcome != Succeeded}
		}
		return m, nil
	}
}

func (s *state) said(ctx context.Context, to []Block, b *Said, calls []*call, blobs BlobStore) ([]Block, []*call, error) {
	switch {
	case b.Text != nil:
		text, err := b.Text.load(ctx, blobs, s.run)
		return textBlocks(to, text), calls, err
	case b.Call != nil:
		args, err := b.Call.Arguments.load(ctx, blobs, s.run)
		c := calls[0]
		return append(to, Block{Call: &ToolCall{ID: c.wireID, ProviderID: b.Call.ProviderID, Name: wireName(b.Call.Name), Arguments: wireArguments(args)}}), calls[1:], err
	default:
		raw, err := b.Provider.load(ctx, blobs, s.run)
		return append(to, Block{Provider: json.RawMessage(raw)}), calls, err
	}
}

// textBlocks appends a text, unless it is empty, which providers refuse.
func textBlocks(to []Block, text []byte) []Block {
	if len(text) == 0 {
		return to
	}
	return append(to, Block{Text: string(showNULs(text))})
}

// text is the trailing message: a function of what the record keeps of it.
func (t *Tail) text() string {
	return "[Context from the system, not from the user]\nNow: " + t.Now.UTC().Format("2006-01-02 15:04 UTC, Monday")
}

// start makes the record of a model call that sends what p holds now, against
// what the log says of the call before it.
func (p *prompt) start(s *state, model string, memory *Payload, tail *Tail, tailWire *Wire) *ModelCallStarted {
	e := &ModelCallStarted{
		Turn: s.nextTurn(), History: p.chain(len(p.history)), Messages: len(p.history), Memory: memory, Tail: tail,
		Chars: [4]int{p.opening.tools.Chars, p.opening.static.Chars + p.dynamic.Chars, p.chars, tailWire.Chars},
	}
	if s.untold {
		e.Try = s.tries
	}
	first := s.turn == 0
	if model != s.model {
		e.Model = model
	}
	recoded := p.id != s.wire.codec
	if recoded {
		e.Codec = p.id
	}
	cause, zone := BreakCause(""), -1
	changed := func(z int, d Digest, was Digest) *Digest {
		if !first && d == was {
			return nil
		}
		if zone < 0 {
			zone = z
		}
		return &d
	}
	e.Tools = changed(0, p.opening.tools.Chain, s.wire.zones[0])
	e.Static = changed(1, p.opening.static.Chain, s.wire.zones[1])
	e.Dynamic = changed(2, p.dynamic.Chain, s.wire.zones[2])
	if !first && s.wire.messages <= len(p.history) {
		e.Prefix = changed(3, p.chain(s.wire.messages), s.wire.history)
	}
	switch {
	case first || zone < 0:
	case recoded:
		cause = CodecChanged
	case zone == 2 && memory != nil:
		cause = MemoryChanged
	}
	if cause != "" {
		e.Breaks = []Break{{Zone: zone, Cause: cause}}
	}
	return e
}
