package psych

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// An encoded record is one line of JSON, the head, and behind a newline the
// bytes of its payloads, one after the other as the head names them. So bytes
// that a tool, a model or a provider sent are copied and never escaped,
// re-encoded or compacted, and a payload costs no more than its length.
//
// The head's "v" is the least version of a reader that may fold the record
// (absent: 1), "i" says of an unknown kind that it may be folded over, "a" is
// the attempt and "e" the event.
const codecVersion = 1

type rawJSON = json.RawMessage

type recordHead struct {
	Version   int   `json:"v,omitempty"`
	Ignorable bool  `json:"i,omitempty"`
	Attempt   int64 `json:"a"`
	Event     any   `json:"e"`
}

// encodeRecord returns the bytes of an Entry. A record that was read keeps its
// own, with what a newer writer put there.
func encodeRecord(r *Record) ([]byte, error) {
	if r.raw != nil {
		return r.raw, nil
	}
	return encodeFrame(recordHead{Attempt: r.Attempt, Event: r.Event}, r.Event.payloads())
}

func encodeFrame(head any, payloads []*Payload) ([]byte, error) {
	n := 256
	for _, p := range payloads {
		n += p.frameSize() + 64
	}
	buf := bytes.NewBuffer(make([]byte, 0, n))
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(head); err != nil { // ends with the newline
		return nil, fmt.Errorf("psych: encode record: %w", err)
	}
	for _, p := range payloads {
		if p.Ref == nil {
			buf.Write(p.Inline)
		} else {
			buf.Write(p.Ref.Head)
			buf.Write(p.Ref.Tail)
			buf.Write(p.Ref.Index)
		}
	}
	return buf.Bytes(), nil
}

// frameSize is what p adds behind the head.
func (p *Payload) frameSize() int {
	if p.Ref == nil {
		return len(p.Inline)
	}
	return len(p.Ref.Head) + len(p.Ref.Tail) + len(p.Ref.Index)
}

// decodeEntry reads a record. Its payloads share the memory of e.Data. A
// record that can't be folded safely is an *UnsupportedError, bytes that no
// release wrote are a *CorruptionError.
func decodeEntry(run RunKey, e Entry) (*Record, error) {
	corrupt := func(detail string) error {
		return &CorruptionError{Run: run, Reason: UndecodableRecord, Seq: e.Seq, Detail: fmt.Sprintf("%s: %s", e.Kind, detail)}
	}
	line, frame, ok := bytes.Cut(e.Data, []byte{'\n'})
	var head struct {
		Version   int     `json:"v"`
		Ignorable bool    `json:"i"`
		Attempt   int64   `json:"a"`
		Event     rawJSON `json:"e"`
	}
	if !ok {
		return nil, corrupt("its head does not end")
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return nil, corrupt(err.Error())
	}
	r := &Record{Seq: e.Seq, Time: e.Time.UTC(), Attempt: head.Attempt, raw: e.Data}
	if head.Version > codecVersion {
		return nil, &UnsupportedError{Run: run, Seq: e.Seq, What: fmt.Sprintf("record version %d", head.Version)}
	}
	r.Event = newEvent(e.Kind)
	if r.Event == nil {
		if !head.Ignorable {
			return nil, &UnsupportedError{Run: run, Seq: e.Seq, What: fmt.Sprintf("kind %.80q", string(e.Kind))}
		}
		r.Event = &Unknown{kind: e.Kind}
		return r, nil
	}
	if err := json.Unmarshal(head.Event, r.Event); err != nil {
		return nil, corrupt(err.Error())
	}
	for _, p := range r.Event.payloads() {
		for _, part := range p.frame() {
			if part.n < 0 || part.n > int64(len(frame)) {
				return nil, corrupt("its payloads are cut")
			}
			*part.b = frame[:part.n:part.n]
			frame = frame[part.n:]
		}
	}
	if len(frame) > 0 {
		return nil, corrupt("bytes follow its payloads")
	}
	return r, nil
}

func newEvent(k Kind) Event {
	switch k {
	case KindRunAdmitted:
		return new(RunAdmitted)
	case KindAttemptStarted:
		return new(AttemptStarted)
	case KindUserMessage:
		return new(UserMessage)
	case KindModelCallStarted:
		return new(ModelCallStarted)
	case KindModelCallFinished:
		return new(ModelCallFinished)
	case KindModelCallFailed:
		return new(ModelCallFailed)
	case KindToolCallStarted:
		return new(ToolCallStarted)
	case KindToolCallFinished:
		return new(ToolCallFinished)
	case KindAbortRequested:
		return new(AbortRequested)
	case KindExchangeClosed:
		return new(ExchangeClosed)
	}
	return nil
}

// encodeNote and decodeNote frame an event for the inbox like a record.
func encodeNote(e Event) ([]byte, error) {
	return encodeFrame(recordHead{Event: e}, e.payloads())
}

func decodeNote(run RunKey, n Note) (Event, error) {
	r, err := decodeEntry(run, Entry{Kind: n.Kind, Time: n.Time, Data: n.Data})
	if err != nil {
		return nil, fmt.Errorf("psych: note %q: %w", n.ID, err)
	}
	return r.Event, nil
}

// payloads lists what of an event can grow, in the order of the frame.

func (*Unknown) payloads() []*Payload            { return nil }
func (*RunAdmitted) payloads() []*Payload        { return nil }
func (*AttemptStarted) payloads() []*Payload     { return nil }
func (e *UserMessage) payloads() []*Payload      { return withAttachments(&e.Text, e.Attachments) }
func (*ModelCallFailed) payloads() []*Payload    { return nil }
func (*ToolCallStarted) payloads() []*Payload    { return nil }
func (e *ToolCallFinished) payloads() []*Payload { return withAttachments(&e.Result, e.Attachments) }
func (*AbortRequested) payloads() []*Payload     { return nil }
func (*ExchangeClosed) payloads() []*Payload     { return nil }

func withAttachments(p *Payload, at []Attachment) []*Payload {
	ps := make([]*Payload, 1, 1+len(at))
	ps[0] = p
	for i := range at {
		ps = append(ps, &at[i].Output)
	}
	return ps
}

func (e *ModelCallStarted) payloads() []*Payload {
	if e.Memory == nil {
		return nil
	}
	return []*Payload{e.Memory}
}

func (e *ModelCallFinished) payloads() []*Payload {
	ps := make([]*Payload, 0, len(e.Blocks))
	for i := range e.Blocks {
		switch b := &e.Blocks[i]; {
		case b.Text != nil:
			ps = append(ps, b.Text)
		case b.Call != nil:
			ps = append(ps, &b.Call.Arguments)
		case b.Provider != nil:
			ps = append(ps, b.Provider)
		}
	}
	return ps
}

// payloadHead is a Payload in the head of a record. The length of what is
// inline is its size.
type payloadHead struct {
	Type   string   `json:"t,omitempty"` // absent: text/plain
	Size   int64    `json:"n,omitempty"`
	Chars  int64    `json:"c,omitempty"` // absent: as many as bytes
	Lines  int64    `json:"l,omitempty"` // absent: 1
	Binary bool     `json:"b,omitempty"`
	Ref    *refHead `json:"ref,omitempty"`
}

type refHead struct {
	CallID string `json:"call"`
	SHA256 Digest `json:"sha256"`
	Head   int    `json:"head,omitempty"`
	Tail   int    `json:"tail,omitempty"`
	Index  int    `json:"index,omitempty"`
}

// MarshalJSON encodes p without its bytes, as the head of a record holds it,
// or, in a Record's own JSON, with them.
func (p *Payload) MarshalJSON() ([]byte, error) {
	if p.view {
		return p.marshalView()
	}
	h := payloadHead{Type: p.ContentType, Size: p.Size, Chars: p.Chars, Lines: p.Lines, Binary: p.Binary}
	if h.Type == "text/plain" {
		h.Type = ""
	} else if h.Type == "" {
		h.Type = "application/octet-stream"
	}
	if h.Chars == h.Size {
		h.Chars = 0
	}
	if h.Lines == 1 {
		h.Lines = 0
	}
	if r := p.Ref; r != nil {
		h.Ref = &refHead{r.CallID, r.SHA256, len(r.Head), len(r.Tail), len(r.Index)}
	}
	return json.Marshal(&h)
}

// UnmarshalJSON decodes the head's form; the bytes are framed behind it.
func (p *Payload) UnmarshalJSON(b []byte) error {
	var h payloadHead
	if err := json.Unmarshal(b, &h); err != nil {
		return err
	}
	*p = Payload{ContentType: h.Type, Size: h.Size, Chars: h.Chars, Lines: h.Lines, Binary: h.Binary}
	if p.ContentType == "" {
		p.ContentType = "text/plain"
	}
	if !p.Binary {
		if p.Chars == 0 {
			p.Chars = p.Size
		}
		if p.Lines == 0 && p.Size > 0 {
			p.Lines = 1
		}
	}
	if r := h.Ref; r != nil {
		p.Ref = &BlobRef{CallID: r.CallID, SHA256: r.SHA256}
		p.framed = [3]int{r.Head, r.Tail, r.Index}
	}
	return nil
}

type framePart struct {
	n int64
	b *[]byte
}

func (p *Payload) frame() []framePart {
	if p.Ref == nil {
		return []framePart{{p.Size, &p.Inline}}
	}
	return []framePart{{int64(p.framed[0]), &p.Ref.Head}, {int64(p.framed[1]), &p.Ref.Tail}, {int64(p.framed[2]), &p.Ref.Index}}
}

// marshalView is the form for people: sizes, and the text or base64 of what is
// inline.
func (p *Payload) marshalView() ([]byte, error) {
	v := struct {
		Type   string   `json:"content_type"`
		Size   int64    `json:"size_bytes"`
		Chars  int64    `json:"chars,omitempty"`
		Lines  int64    `json:"lines,omitempty"`
		Binary bool     `json:"binary,omitempty"`
		Text   *string  `json:"text,omitempty"`
		Base64 *string  `json:"base64,omitempty"`
		Ref    *refHead `json:"ref,omitempty"`
	}{Type: p.ContentType, Size: p.Size, Chars: p.Chars, Lines: p.Lines, Binary: p.Binary}
	switch {
	case p.Ref != nil:
		v.Ref = &refHead{CallID: p.Ref.CallID, SHA256: p.Ref.SHA256}
	case p.Binary:
		s := base64.StdEncoding.EncodeToString(p.Inline)
		v.Base64 = &s
	default:
		s := string(p.Inline)
		v.Text = &s
	}
	return json.Marshal(&v)
}

// recordTime is the form of times in JSON: UTC, to the microsecond.
const recordTime = "2006-01-02T15:04:05.000000Z"

// MarshalJSON encodes r for people and programs: seq, kind, time and attempt,
// then the fields of the event, then those that a newer writer added.
// Payloads that are inline are there as text, or as base64 if they are binary.
func (r *Record) MarshalJSON() ([]byte, error) {
	data, err := encodeRecord(r)
	if err != nil {
		return nil, err
	}
	own, err := decodeEntry(RunKey{}, Entry{Seq: r.Seq, Kind: r.Event.Kind(), Time: r.Time, Data: data})
	if err != nil {
		return nil, err
	}
	for _, p := range own.Event.payloads() {
		p.view = true
	}
	out := bytes.NewBuffer(nil)
	fmt.Fprintf(out, `{"seq":%d,"kind":%s,"time":%q,"attempt":%d`, r.Seq, strconv.Quote(string(r.Event.Kind())), r.Time.UTC().Format(recordTime), r.Attempt)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	start := out.Len()
	if _, unknown := own.Event.(*Unknown); !unknown {
		if err := enc.Encode(own.Event); err != nil {
			return nil, err
		}
	}
	// Splice the event's fields into the envelope.
	fields := bytes.TrimSpace(out.Bytes()[start:])
	known := map[string]rawJSON{}
	if len(fields) > 2 {
		if err := json.Unmarshal(fields, &known); err != nil {
			return nil, err
		}
		fields = append([]byte{','}, fields[1:len(fields)-1]...)
	} else {
		fields = nil
	}
	out.Truncate(start)
	out.Write(fields)
	if err := appendNewer(out, data, known); err != nil {
		return nil, err
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// appendNewer adds the fields of an event that this release does not know, in
// the order in which they stand.
func appendNewer(out *bytes.Buffer, data []byte, known map[string]rawJSON) error {
	line, _, _ := bytes.Cut(data, []byte{'\n'})
	var head struct {
		Event rawJSON `json:"e"`
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(head.Event))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return err
	}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return err
		}
		var v rawJSON
		if err := dec.Decode(&v); err != nil {
			return err
		}
		name, _ := t.(string)
		if _, ok := known[name]; ok || knownEmpty(name) {
			continue
		}
		k, _ := json.Marshal(name)
		out.WriteByte(',')
		out.Write(k)
		out.WriteByte(':')
		out.Write(v)
	}
	return nil
}

// knownEmpty names the envelope, which a newer event must not repeat.
func knownEmpty(name string) bool {
	return name == "seq" || name == "kind" || name == "time" || name == "attempt"
}

// microseconds is t as records keep it.
func microseconds(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
