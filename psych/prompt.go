package psych

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// A prompt is the encoded form of a Run's history for one Model: four zones,
// from the most stable to the most volatile. It grows with the history; what
// was encoded once is kept and shared by all later Requests.
type prompt struct {
	codec    Codec
	id       string // of the encoding
	opening  *opening
	dynamic  Wire    // zone 2
	memory   *string // what zone 2 was made of; nil before the first model call
	history  []Wire  // zone 3: messages, and the past tails that a TailKeeper keeps behind them
	at       []int   // of each message of the Run, where it is in history
	chars    int     // of history
	bytes    int64   // of history
	previous int     // parts of history that the last answered request sent, and this one sends again
	fresh    bool    // made for this request: nothing was sent from it
	met      bool    // another worker sent the previous request
	reopened bool    // its opening is another than that of the previous request
}

// An opening is the tools and zone 1 of a Version, with what servers add to
// them, for one Codec. It is shared by all Runs that have it.
type opening struct {
	at            Digest // of the document of what servers add
	blocks        []string
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

// encodingID names what a Codec makes of a Run: its ID, and whether past tails
// are a part of the history, by which alone two histories would differ.
func encodingID(c Codec) string {
	if k, ok := c.(TailKeeper); ok && k.KeepsTails() {
		return c.ID() + "+tails"
	}
	return c.ID()
}

// on is p where it can go on with a Codec and an opening, for the next request
// of a state, else p reopened, or a new prompt.
func (p *prompt) on(s *state, c Codec, v *Version, at Digest, doc *openingDoc, open func(Codec, *Version, Digest, *openingDoc) (*opening, error)) (*prompt, error) {
	id := encodingID(c)
	same := p != nil && p.id == id && sameImages(p.codec.Limits(), c.Limits())
	if !same || p.opening.at != at {
		o, err := open(c, v, at, doc)
		if err != nil {
			return nil, err
		}
		if same {
			p.reopen(o)
		} else {
			p = &prompt{id: id, opening: o, fresh: true}
		}
	}
	p.codec, p.previous = c, s.heard
	return p, nil
}

// sameImages reports whether the same is shown as an image within both.
func sameImages(a, b ModelLimits) bool {
	return a.ImageBytes == b.ImageBytes && slices.Equal(a.Images, b.Images)
}

func newOpening(c Codec, v *Version, doc *openingDoc) (*opening, error) {
	tools, err := c.EncodeTools(surface(v, doc))
	if err != nil {
		return nil, fmt.Errorf("psych: encode the tools of version %s: %w", v.Hash, err)
	}
	blocks := staticBlocks(&v.Spec, doc)
	static, _, err := c.EncodeSystem(blocks, "")
	if err != nil {
		return nil, fmt.Errorf("psych: encode the instructions of version %s: %w", v.Hash, err)
	}
	o := &opening{blocks: blocks, tools: chained(&zone0, tools, -1)}
	o.static = chained(&o.tools, static, -1)
	return o, nil
}

// surface is the tools that the model is shown, sorted by name. The reader is
// there from the first turn on: a tool that appeared with the first large
// result would break the prefix; and so are the meta tools.
func surface(v *Version, doc *openingDoc) []ToolDef {
	defs := append(slices.Clone(v.CodeTools), readToolOutputDef)
	if len(v.Spec.Connections) > 0 {
		defs = append(defs, metaDefs...)
	}
	if doc != nil {
		defs = append(defs, doc.Tools...)
	}
	if len(v.Spec.Skills) > 0 {
		defs = append(defs, loadSkill().def)
	}
	slices.SortFunc(defs, func(a, b ToolDef) int { return strings.Compare(a.Name, b.Name) })
	return defs
}

// staticBlocks are the blocks of zone 1.
func staticBlocks(s *Spec, doc *openingDoc) []string {
	var blocks []string
	if s.Instructions != "" {
		blocks = append(blocks, s.Instructions)
	}
	if len(s.Skills) > 0 {
		blocks = append(blocks, skillIndex(s.Skills))
	}
	if len(doc.Lines) > 0 {
		blocks = append(blocks, serversBlock(doc.Lines))
	}
	return blocks
}

// setMemory makes zone 2 of text, and chains the history anew if it changed.
func (p *prompt) setMemory(text string) error {
	if p.memory != nil && *p.memory == text {
		return nil
	}
	_, b, err := p.codec.EncodeSystem(p.opening.blocks, text)
	if err != nil {
		return fmt.Errorf("psych: encode the memories: %w", err)
	}
	p.memory = &text
	p.dynamic = chained(&p.opening.static, b, -1)
	p.rechain(0, nil)
	return nil
}

// reopen puts another opening in the place of the one that was sent.
func (p *prompt) reopen(o *opening) {
	p.opening, p.reopened, p.memory = o, true, nil // zone 2 is chained to it
}

// rechain replaces parts of the history, and chains it anew from the first.
func (p *prompt) rechain(first int, parts map[int]Wire) {
	history := slices.Clone(p.history) // the old one may be in use by an earlier Request
	for i := first; i < len(history); i++ {
		prev := &p.dynamic
		if i > 0 {
			prev = &history[i-1]
		}
		w, ok := parts[i]
		if !ok {
			w = history[i]
		}
		p.chars -= history[i].Chars
		p.bytes -= int64(len(history[i].Bytes))
		history[i] = chained(prev, w.Bytes, w.Marker)
		p.chars += history[i].Chars
		p.bytes += int64(len(w.Bytes))
	}
	p.history = history
}

// revise encodes the messages anew whose parts are to be trimmed, and those
// that hold blocks of the kinds that are to be dropped, which are left out of
// so many messages before.
func (p *prompt) revise(ctx context.Context, s *state, blobs BlobStore, trims []*part, dropped []BlockKind, before map[BlockKind]int) error {
	set := map[*part]bool{}
	var items []int
	for _, x := range trims {
		set[x] = true
		items = append(items, s.batches[x.call.turn-1].item)
	}
	for _, kind := range dropped {
		for i := before[kind]; i < len(p.at); i++ {
			if s.history[i].holds(kind) {
				items = append(items, i)
			}
		}
	}
	if len(items) == 0 {
		return nil
	}
	slices.Sort(items)
	items = slices.Compact(items)
	parts := map[int]Wire{}
	for _, i := range items {
		w, err := p.encode(ctx, s, i, blobs, set, dropped)
		if err != nil {
			return err
		}
		parts[p.at[i]] = w
	}
	// What a provider has cached is of use as far as the last request goes that
	// held none of it.
	p.previous = min(p.previous, p.sentBefore(s, items[0]))
	p.rechain(p.at[items[0]], parts)
	return nil
}

// sentBefore is how many parts the last answered request had that sent nothing
// from a message on.
func (p *prompt) sentBefore(s *state, i int) int {
	for ; i > 0; i-- {
		if s.history[i].said != nil {
			return p.at[i-1] + 1
		}
	}
	return 0
}

// encode makes the bytes of a message, not chained yet.
func (p *prompt) encode(ctx context.Context, s *state, i int, blobs BlobStore, trims map[*part]bool, dropped []BlockKind) (Wire, error) {
	m, err := s.message(ctx, i, blobs, trims, dropped, p.codec.Limits())
	if err != nil {
		return Wire{}, err
	}
	b, marker, err := p.codec.EncodeMessage(m)
	if err != nil {
		return Wire{}, fmt.Errorf("psych: encode message %d of run %s: %w", i, s.run, err)
	}
	return Wire{Bytes: b, Marker: marker}, nil
}

// extend encodes what the history gained since the last call.
func (p *prompt) extend(ctx context.Context, s *state, blobs BlobStore) error {
	keeper, _ := p.codec.(TailKeeper)
	keeps := keeper != nil && keeper.KeepsTails()
	for i := len(p.at); i < len(s.history); i++ {
		if t := s.tails[i-1]; keeps && t != nil {
			b, err := p.codec.EncodeTail(t.text())
			if err != nil {
				return fmt.Errorf("psych: encode a past trailing message of run %s: %w", s.run, err)
			}
			p.push(Wire{Bytes: b, Marker: -1})
		}
		w, err := p.encode(ctx, s, i, blobs, nil, nil)
		if err != nil {
			return err
		}
		p.at = append(p.at, len(p.history))
		p.push(w)
	}
	return nil
}

// push adds a part to the history.
func (p *prompt) push(w Wire) {
	prev := &p.dynamic
	if n := len(p.history); n > 0 {
		prev = &p.history[n-1]
	}
	w = chained(prev, w.Bytes, w.Marker)
	p.history = append(p.history, w)
	p.chars += w.Chars
	p.bytes += int64(len(w.Bytes))
}

// chain is the Chain at the end of the first n messages.
func (p *prompt) chain(n int) Digest {
	if n == 0 {
		return p.dynamic.Chain
	}
	return p.history[n-1].Chain
}

// tail encodes a trailing message; nil is none.
func (p *prompt) tail(t *Tail) (Wire, error) {
	if t == nil {
		return Wire{}, nil
	}
	b, err := p.codec.EncodeTail(t.text())
	if err != nil {
		return Wire{}, fmt.Errorf("psych: encode the trailing message: %w", err)
	}
	return Wire{Bytes: b, Chars: utf8.RuneCount(b), Marker: -1}, nil
}

// request makes the Request for what the prompt holds now.
func (p *prompt) request(v *Version, model, incarnation string, tail Wire) *Request {
	n := len(p.history)
	r := &Request{
		Model: model, Options: v.Spec.ModelOptions, CacheKey: digest("cache", incarnation).String()[:32],
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
func (s *state) message(ctx context.Context, i int, blobs BlobStore, trims map[*part]bool, dropped []BlockKind, limits ModelLimits) (*Message, error) {
	it := &s.history[i]
	leaveOut := func(kind BlockKind) bool { return i < s.dropped[kind] || slices.Contains(dropped, kind) }
	if leaveOut(ImageBlocks) {
		limits.Images = nil
	}
	switch {
	case it.user != nil:
		return s.userBlocks(ctx, it.user, blobs, limits)
	case it.said != nil:
		m := &Message{Role: RoleAssistant, Blocks: make([]Block, 0, len(it.said.Blocks))}
		calls := it.results.calls
		bare := leaveOut(ProviderBlocks)
		for j := range it.said.Blocks {
			if bare && it.said.Blocks[j].Provider != nil {
				continue
			}
			var err error
			if m.Blocks, calls, err = s.said(ctx, m.Blocks, &it.said.Blocks[j], calls, blobs); err != nil {
				return nil, err
			}
		}
		return m, nil
	default:
		m := &Message{Role: RoleTool, Blocks: make([]Block, len(it.results.calls))}
		for j, c := range it.results.calls {
			if err := s.fetch(ctx, c, blobs); err != nil {
				return nil, err
			}
			out := &ToolOutput{CallID: c.wireID, Text: string(s.appendAnswer(nil, c, trims)), IsError: c.done.Outcome != Succeeded}
			for k := range c.parts {
				img, err := s.image(ctx, c.parts[k].p, blobs, limits)
				if err != nil {
					return nil, err
				}
				if img != nil && !out.IsError {
					out.Images = append(out.Images, *img)
				}
			}
			m.Blocks[j].Result = out
		}
		return m, nil
	}
}

// userBlocks is a message of the user's: its text, then a block an attachment.
func (s *state) userBlocks(ctx context.Context, e *UserMessage, blobs BlobStore, limits ModelLimits) (*Message, error) {
	text, err := e.Text.load(ctx, blobs, s.run)
	if err != nil {
		return nil, err
	}
	m := &Message{Role: RoleUser, Blocks: textBlocks(nil, text)}
	for i := range e.Attachments {
		a := &e.Attachments[i]
		head := fmt.Sprintf("[attachment %q, %s, %d bytes", a.Name, a.Output.ContentType, a.Output.Size)
		if a.Output.Binary {
			img, err := s.image(ctx, &a.Output, blobs, limits)
			if err != nil {
				return nil, err
			}
			if img != nil {
				m.Blocks = append(m.Blocks, Block{Text: head + "]"}, Block{Image: img})
				continue
			}
			m.Blocks = append(m.Blocks, Block{Text: head + ", binary: it can't be shown as text]"})
			continue
		}
		if text, err = a.Output.load(ctx, blobs, s.run); err != nil {
			return nil, err
		}
		m.Blocks = append(m.Blocks, Block{Text: head + "]\n" + string(showNULs(text))})
	}
	return m, nil
}

// image is a payload as an image, if the model takes it as one and it is what
// its type says: a provider refuses all of a request for one that is not.
func (s *state) image(ctx context.Context, p *Payload, blobs BlobStore, limits ModelLimits) (*Image, error) {
	if !p.Binary || p.letGo() || !slices.Contains(limits.Images, p.ContentType) || limits.ImageBytes > 0 && p.Size > int64(limits.ImageBytes) {
		return nil, nil
	}
	data, err := p.load(ctx, blobs, s.run)
	switch {
	case errors.Is(err, ErrNotFound): // its bytes were deleted behind the log
		return nil, nil
	case err != nil:
		return nil, err
	case imageType(data) != p.ContentType:
		return nil, nil
	}
	return &Image{p.ContentType, data}, nil
}

// imageType tells the type by how the bytes begin, "" for others.
func imageType(b []byte) string {
	is := func(prefix string) bool { return len(b) >= len(prefix) && string(b[:len(prefix)]) == prefix }
	switch {
	case is("\x89PNG\r\n\x1a\n"):
		return "image/png"
	case is("\xff\xd8\xff"):
		return "image/jpeg"
	case is("GIF87a"), is("GIF89a"):
		return "image/gif"
	case is("RIFF") && len(b) >= 12 && string(b[8:12]) == "WEBP":
		return "image/webp"
	case is("%PDF-"):
		return "application/pdf"
	}
	return ""
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
	lines := append([]string{
		"[Context from the system, not from the user]",
		"Now: " + t.Now.UTC().Format("2006-01-02 15:04 UTC, Monday"),
	}, t.News...)
	return strings.Join(lines, "\n")
}

// start makes the record of a model call that sends what p holds now, against
// what the log says of the call before it.
func (p *prompt) start(s *state, model string, memory *Payload, trimmed []*part, why BreakCause, dropped []BlockKind, tail *Tail, tailWire *Wire) *ModelCallStarted {
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
	zone := -1 // the first that changed
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
	switch {
	case first:
	case s.wire.messages <= len(p.history):
		e.Prefix = changed(3, p.chain(s.wire.messages), s.wire.history)
	case zone < 0 && (recoded || p.fresh): // in fewer parts than before
		zone = 3
	}
	if first {
		return e
	}
	switch {
	case zone < 0:
	case recoded:
		e.Breaks = append(e.Breaks, Break{zone, CodecChanged})
	case zone < 2 && p.opening.at != s.opening:
		e.Breaks = append(e.Breaks, Break{zone, Reopened})
	case zone == 2 && memory != nil:
		e.Breaks = append(e.Breaks, Break{zone, MemoryChanged})
	case zone == 3 && len(trimmed)+len(dropped) > 0: // as is said below
	case p.fresh || p.reopened || p.met: // what is encoded once in this process never changes
		e.Breaks = append(e.Breaks, Break{zone, ProjectionChanged})
	}
	if len(dropped) > 0 {
		e.Breaks = append(e.Breaks, Break{3, BlockRefused})
		e.Dropped = dropped
	}
	if len(trimmed) > 0 {
		e.Breaks = append(e.Breaks, Break{3, why})
		for _, x := range trimmed {
			e.Trimmed = append(e.Trimmed, x.handle())
		}
	}
	return e
}
