package psych

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// MaxAttachments bounds the attachments of one call, and of one message.
const MaxAttachments = 100

// AttachOptions are the limits of an attachment. Nil and the zero value mean
// none.
type AttachOptions struct {
	// MaxBytes is what is kept; what is written past it is counted and let go,
	// and the attachment says so. A text is cut between two characters.
	MaxBytes int64
	// Required fails the call with blob_store_required where the bytes would
	// be let go for lack of a BlobStore; so does limits.outputs_required.
	Required bool
}

// An Attachment is a further output of a call, or of a message, as recorded.
type Attachment struct {
	Name      string  `json:"name"`
	Slot      string  `json:"slot"` // of the name; in the handle
	Output    Payload `json:"output"`
	Observed  int64   `json:"observed,omitempty"` // bytes written, where more than were kept
	Truncated bool    `json:"truncated,omitempty"`
}

// Attach opens a further output of the call, with a name that need not be
// unique: it is readable under the handle out_CALL_SLOT. What is written goes
// on to the BlobStore, and is never held in memory beyond what fits into a
// record; without a BlobStore a preview of the rest is kept. Close it when it
// is whole; what is open when the tool returns, fails or runs out of time is
// kept as far as it got. Different attachments may be written concurrently.
//
// An empty name, one that is not valid UTF-8, and a 101st attachment are
// ErrInvalid. Of a Call that no Runtime made, as in a test of a tool, writes are
// let go.
func (c *Call) Attach(name, contentType string, o *AttachOptions) (io.WriteCloser, error) {
	if name == "" || !utf8.ValidString(name) {
		return nil, fmt.Errorf("psych: attachment name %q: want a name in UTF-8: %w", name, ErrInvalid)
	}
	if o == nil {
		o = &AttachOptions{}
	}
	if c.outputs == nil {
		return nopCloser{io.Discard}, nil
	}
	return c.outputs.open(name, contentType, *o)
}

func tooManyAttachments(name string) error {
	return fmt.Errorf("psych: attachment %.80q: a call has at most %d: %w", name, MaxAttachments, ErrInvalid)
}

// shortName is the name of an attachment as recorded: its first 256 bytes.
func shortName(name string) string {
	return string(wholeChars([]byte(name[:min(len(name), 256)])))
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// callOutputs are the attachments of a call that runs.
type callOutputs struct {
	ctx   context.Context // of the store: an attachment outlives its tool's
	d     *driver
	call  string
	mu    sync.Mutex
	list  []*output
	slots slots
	over  bool
}

// An output is an attachment that is written.
type output struct {
	at   Attachment
	o    AttachOptions
	done chan struct{} // closed when the payload is taken in
	err  error

	mu     sync.Mutex
	pipe   *io.PipeWriter
	buf    []byte
	kept   int64
	closed bool
}

// outputBuffer is what an output gathers before it hands it on.
const outputBuffer = 32 << 10

func (s *callOutputs) open(name, contentType string, o AttachOptions) (io.WriteCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
		return nil, fmt.Errorf("psych: attachment %.80q: the call is over: %w", name, ErrInvalid)
	case len(s.list) == MaxAttachments:
		return nil, tooManyAttachments(name)
	}
	r, w := io.Pipe()
	out := &output{o: o, pipe: w, done: make(chan struct{})}
	out.at = Attachment{Name: shortName(name), Slot: s.slots.of(name)}
	key := s.d.blobKey(fmt.Sprintf("%s.%s.%d", s.call, out.at.Slot, s.d.epoch))
	go func() {
		defer close(out.done)
		out.at.Output, out.err = keep(s.ctx, r, contentType, s.d.rt.o.Blobs, key)
		r.CloseWithError(io.ErrClosedPipe) // a writer that is still there must not hang
	}()
	s.list = append(s.list, out)
	return out, nil
}

// add keeps the begin of a result that could not be read to its end.
func (s *callOutputs) add(name string, p Payload) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &output{closed: true, done: make(chan struct{}), at: Attachment{Name: name, Slot: s.slots.of(name), Output: p, Truncated: true}}
	close(out.done)
	s.list = append(s.list, out)
}

// finish closes what is open and returns all attachments, in the order in
// which they were opened, and the names of those that had to be kept and
// could not be. Without a BlobStore they share the record's room with a result
// of so many bytes; the largest are let go first. A BlobStore that does not come
// to an end is not waited for much longer than the call's ctx.
func (s *callOutputs) finish(ctx context.Context, required bool, taken int) (at []Attachment, lost []string, err error) {
	s.mu.Lock()
	s.over = true
	list := s.list
	s.mu.Unlock()
	at = make([]Attachment, 0, len(list))
	kept := list[:0:0]
	late := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(s.d.grace(), func() { close(late) })
	})()
	for _, out := range list {
		closed := make(chan struct{})
		go func() { // it hands on what it gathered
			out.Close()
			close(closed)
		}()
		select {
		case <-out.done:
		case <-late:
			out.pipe.CloseWithError(io.ErrClosedPipe)
			err = errors.Join(err, fmt.Errorf("the attachment %q could not be stored in time", out.at.Name))
			at, kept = append(at, gone(out.at.Name, out.at.Slot)), append(kept, out)
			continue
		}
		<-closed
		if out.err != nil {
			err = errors.Join(err, fmt.Errorf("the attachment %q could not be stored: %w", out.at.Name, out.err))
			at, kept = append(at, gone(out.at.Name, out.at.Slot)), append(kept, out)
			continue
		}
		at, kept = append(at, out.at), append(kept, out)
		taken += len(out.at.Output.Inline) + attachmentHead
	}
	for s.d.rt.o.Blobs == nil && taken > resultRoom {
		largest := slices.MaxFunc(at, func(a, b Attachment) int { return len(a.Output.Inline) - len(b.Output.Inline) })
		p := &at[slices.IndexFunc(at, func(a Attachment) bool { return a.Slot == largest.Slot })].Output
		if len(p.Inline) == 0 {
			break
		}
		taken -= len(p.Inline)
		p.Ref = &BlobRef{SHA256: sha256.Sum256(p.Inline), Head: firstChars(p.Inline, MaxPreviewChars), Tail: lastChars(p.Inline, MaxPreviewChars)}
		p.Inline = nil
	}
	for i := range at {
		if at[i].Output.letGo() && (required || kept[i].o.Required) {
			lost = append(lost, at[i].Name)
		}
	}
	return at, lost, err
}

// gone is an attachment of which nothing could be kept.
func gone(name, slot string) Attachment {
	return Attachment{Name: name, Slot: slot, Truncated: true, Output: Payload{ContentType: "application/octet-stream", Ref: &BlobRef{}}}
}

// attachmentHead is about what an attachment takes in its record, beside its
// bytes.
const attachmentHead = 400

// Write takes in p whole, whatever is kept of it.
func (out *output) Write(p []byte) (int, error) {
	out.mu.Lock()
	defer out.mu.Unlock()
	if out.closed {
		return 0, fmt.Errorf("psych: attachment %q is closed: %w", out.at.Name, io.ErrClosedPipe)
	}
	out.at.Observed += int64(len(p))
	n := len(p)
	if out.at.Truncated {
		return n, nil
	}
	if left := out.o.MaxBytes - out.kept; out.o.MaxBytes > 0 && int64(len(p)) > left {
		p = p[:left]
		out.at.Truncated = true
	}
	out.kept += int64(len(p))
	out.buf = append(out.buf, p...)
	if out.at.Truncated {
		if b := wholeChars(out.buf); utf8.Valid(b) { // else it is no text
			out.buf = b
		}
		return n, out.pass(0)
	}
	if len(out.buf) < outputBuffer {
		return n, nil
	}
	return n, out.pass(utf8.UTFMax) // so much may be a character that is cut
}

// pass hands on what is gathered, but for the last bytes.
func (out *output) pass(hold int) error {
	at := max(len(out.buf)-hold, 0)
	if _, err := out.pipe.Write(out.buf[:at]); err != nil {
		return fmt.Errorf("psych: attachment %q: %w", out.at.Name, err)
	}
	out.buf = append(out.buf[:0], out.buf[at:]...)
	return nil
}

// wholeChars is b without a character that is cut at its end.
func wholeChars(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

// Close ends the output. Closing again does nothing.
func (out *output) Close() error {
	out.mu.Lock()
	defer out.mu.Unlock()
	if out.closed {
		return nil
	}
	out.closed = true
	err := out.pass(0)
	out.pipe.Close()
	if !out.at.Truncated {
		out.at.Observed = 0
	}
	return err
}

// slots makes the slots of one call's attachments. "result" and "args" are the
// call's own.
type slots map[string]bool

func (s *slots) of(name string) string {
	var b strings.Builder
	hyphen := false
	for _, r := range strings.ToLower(name) {
		if b.Len() == 40 {
			break
		}
		if ok := r >= 'a' && r <= 'z' || r >= '0' && r <= '9'; ok {
			b.WriteRune(r)
			hyphen = false
		} else if !hyphen {
			b.WriteByte('-')
			hyphen = true
		}
	}
	if *s == nil {
		*s = slots{"result": true, "args": true}
	}
	slot := b.String()
	for n := 2; (*s)[slot]; n++ {
		slot = b.String() + "-" + strconv.Itoa(n)
	}
	(*s)[slot] = true
	return slot
}

// keep is capture of what may be let go: where a BlobStore is needed and there
// is none, only its measure, head and tail are kept.
func keep(ctx context.Context, r io.Reader, contentType string, blobs BlobStore, key BlobKey) (Payload, error) {
	if blobs == nil {
		blobs = measuring{}
	}
	p, err := capture(ctx, r, contentType, resultRoom, blobs, key)
	if _, gone := blobs.(measuring); gone && p.Ref != nil {
		p.Ref.CallID, p.Ref.Index = "", nil
	}
	return p, err
}

// measuring is a BlobStore to write to alone: it lets everything go.
type measuring struct{ BlobStore }

func (measuring) Put(_ context.Context, _ BlobKey, contentType string, r io.Reader) (BlobInfo, error) {
	n, err := io.Copy(io.Discard, r)
	return BlobInfo{Size: n, ContentType: contentType}, err
}

// letGo reports whether only a preview of p was kept.
func (p *Payload) letGo() bool { return p.Ref != nil && p.Ref.CallID == "" }

// Where a payload is stored.
const (
	StoredInline  = "inline"
	StoredBlob    = "blob"
	StoredPreview = "preview_only" // its bytes were let go
)

// Stored says where the bytes of p are.
func (p *Payload) Stored() string {
	switch {
	case p.Ref == nil:
		return StoredInline
	case p.letGo():
		return StoredPreview
	}
	return StoredBlob
}
