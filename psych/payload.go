package psych

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych/internal/textwin"
)

// errDamaged says that a blob is not what the log says of it.
var errDamaged = errors.New("psych: blob differs from its record")

// A bodyError is a failure of the reader that a tool returned, not of Psych's
// storage. It unwraps to the reader's error.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return "psych: reading the tool's output: " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// newPayload keeps b inline, and b itself unless it is repaired: in what is
// declared as text, each invalid sequence of bytes becomes U+FFFD, unless b is
// not text at all, when it stays as it is and is Binary.
func newPayload(contentType string, b []byte) Payload {
	p := Payload{ContentType: cleanType(contentType)}
	if isText(p.ContentType) && !utf8.Valid(b) && looksLikeText(b[:min(len(b), judged)], len(b) < judged) {
		b = repair(b)
	}
	p.Inline, p.Size = b, int64(len(b))
	chars, lines, ok := textwin.Measure(b)
	p.Chars, p.Lines, p.Binary = chars, lines, !ok
	return p
}

// capture reads r to its end. Up to room bytes stay inline; more streams into
// blobs under key, written once and never held here as a whole. Bytes are
// repaired as by newPayload, while they pass.
//
// It returns an error matching ErrNoBlobStore, without reading on, when a
// BlobStore is needed and there is none; a *bodyError when r failed; the
// context's error when that ended, which is looked at between two reads; else
// the BlobStore's. After an error nothing refers to what was written.
func capture(ctx context.Context, r io.Reader, contentType string, room int, blobs BlobStore, key BlobKey) (Payload, error) {
	contentType = cleanType(contentType)
	src := &source{ctx: ctx, r: r}
	begin, err := io.ReadAll(io.LimitReader(src, int64(room)+1))
	if err != nil {
		return Payload{}, fmt.Errorf("psych: capture %s: %w", key, err)
	}
	var body io.Reader
	if len(begin) <= room {
		p := newPayload(contentType, begin)
		if p.Size <= int64(room) {
			return p, nil
		}
		body = bytes.NewReader(p.Inline)
	}
	if blobs == nil {
		return Payload{}, fmt.Errorf("psych: capture %s: over %d bytes, and the deployment has no BlobStore: %w", key, room, ErrNoBlobStore)
	}
	if body == nil {
		body = io.MultiReader(bytes.NewReader(begin), src)
		if isText(contentType) {
			body = &repairer{r: body}
		}
	}
	m := textwin.NewMeter(MaxPreviewChars)
	through := &metered{r: body, m: m}
	info, err := blobs.Put(ctx, key, contentType, through)
	f := m.Facts()
	switch {
	case src.err != nil && src.err != io.EOF:
		err = src.err // also where Put hid it
	case err != nil:
	case !through.ended:
		err = fmt.Errorf("%w: Put returned without reading to the end", errDamaged)
	case info.Size != f.Size:
		err = fmt.Errorf("%w: Put stored %d bytes of %d", errDamaged, info.Size, f.Size)
	}
	if err != nil {
		return Payload{}, fmt.Errorf("psych: capture %s: %w", key, err)
	}
	return Payload{
		ContentType: contentType,
		Size:        f.Size,
		Chars:       f.Chars,
		Lines:       f.Lines,
		Binary:      f.Binary,
		Ref:         &BlobRef{CallID: key.CallID, SHA256: f.SHA256, Head: f.Head, Tail: f.Tail, Index: f.Index},
	}, nil
}

// A source reads from a tool's own reader, and answers for what that does: it
// may be stuck, return nonsense, or panic in a goroutine of the BlobStore's.
type source struct {
	ctx context.Context
	r   io.Reader
	err error // that ended it
}

func (s *source) Read(p []byte) (n int, err error) {
	if s.err != nil || len(p) == 0 {
		return 0, s.err
	}
	defer func() {
		if v := recover(); v != nil {
			n, err = 0, &bodyError{fmt.Errorf("panic: %v", v)}
		}
		s.err = err
	}()
	for range 100 {
		if err := s.ctx.Err(); err != nil {
			return 0, err
		}
		n, err := s.r.Read(p)
		switch {
		case n < 0 || n > len(p):
			return 0, &bodyError{fmt.Errorf("Read of %d bytes returned %d", len(p), n)}
		case err == nil || err == io.EOF:
		case s.ctx.Err() != nil:
			return n, fmt.Errorf("%w: %w", s.ctx.Err(), err)
		default:
			err = &bodyError{err}
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
	return 0, &bodyError{io.ErrNoProgress}
}

// A metered reader measures what passes.
type metered struct {
	r     io.Reader
	m     *textwin.Meter
	ended bool
}

func (r *metered) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.m.Write(p[:n])
	r.ended = r.ended || err == io.EOF
	return n, err
}

// cleanType gives bytes without a usable type the most general one. A type
// comes from tools and servers, and goes into headers and records.
func cleanType(s string) string {
	s = strings.TrimSpace(s)
	ok := s != "" && len(s) <= 200
	for i := 0; ok && i < len(s); i++ {
		ok = s[i] >= ' ' && s[i] <= '~'
	}
	if !ok {
		return "application/octet-stream"
	}
	return s
}

// isText reports whether a content type declares text.
func isText(contentType string) bool {
	t, _, _ := strings.Cut(contentType, ";")
	t = strings.ToLower(strings.TrimSpace(t))
	if strings.HasPrefix(t, "text/") || strings.HasSuffix(t, "+json") || strings.HasSuffix(t, "+xml") || strings.HasSuffix(t, "+yaml") {
		return true
	}
	switch strings.TrimPrefix(strings.TrimPrefix(t, "application/"), "x-") {
	case "json", "ndjson", "jsonl", "json-lines", "json-seq", "xml", "yaml", "toml", "javascript", "ecmascript", "typescript", "sh", "sql", "graphql", "www-form-urlencoded":
		return strings.HasPrefix(t, "application/")
	}
	return false
}

// judged is how many bytes decide whether what is declared as text is text.
const judged = 64 << 10

// looksLikeText reports whether b, the begin of what is declared as text, is
// worth repairing. What is valid is text. Otherwise invalid sequences and NULs
// are damage: it is not text if they are over half of its characters, or at
// least 8 and over one in ten. An encoded surrogate is no damage here: it shows
// that the bytes come from text that was cut in UTF-16. all says that there is
// nothing behind b.
func looksLikeText(b []byte, all bool) bool {
	if !all {
		b = b[:len(b)-pending(b)]
	}
	chars, bad, nuls := 0, 0, 0
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			n = invalid(b)
			if !isSurrogate(b) {
				bad++
			}
		} else if r == 0 {
			nuls++
		}
		chars++
		b = b[n:]
	}
	if bad == 0 {
		return true
	}
	bad += nuls
	return bad*2 <= chars && (bad < 8 || bad*10 <= chars)
}

// repair returns b with each invalid sequence replaced by U+FFFD: the longest
// begin of a character that stands there, an encoded surrogate, or one byte.
// It returns b itself if there is none.
func repair(b []byte) []byte {
	if utf8.Valid(b) {
		return b
	}
	out := make([]byte, 0, len(b)+len(b)/8)
	for len(b) > 0 {
		i := 0
		for i < len(b) {
			r, n := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			i += n
		}
		out = append(out, b[:i]...)
		if b = b[i:]; len(b) > 0 {
			out = append(out, "\uFFFD"...)
			b = b[invalid(b):]
		}
	}
	return out
}

// invalid returns the length of the invalid sequence that b begins with.
func invalid(b []byte) int {
	if isSurrogate(b) {
		return 3
	}
	n := 1
	for n < len(b) && !utf8.FullRune(b[:n+1]) {
		n++
	}
	return n
}

// isSurrogate reports whether b begins with a surrogate in three bytes, as
// WTF-8 has it.
func isSurrogate(b []byte) bool {
	return len(b) >= 3 && b[0] == 0xED && b[1] >= 0xA0 && b[1] <= 0xBF && b[2] >= 0x80 && b[2] <= 0xBF
}

// pending returns how many bytes at the end of b depend on what follows.
func pending(b []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i:]; utf8.RuneStart(c[0]) {
			if !utf8.FullRune(c) || i == 2 && c[0] == 0xED && c[1] >= 0xA0 && c[1] <= 0xBF {
				return i
			}
			break
		}
	}
	return 0
}

// A repairer repairs declared text while it passes, or lets it through where
// it begins with what is not text at all.
type repairer struct {
	r     io.Reader
	buf   []byte
	n     int    // bytes of buf that were read
	used  int    // of them dealt with
	out   []byte // to be returned
	err   error  // of r
	begun bool
	bytes bool // not text at all
}

func (r *repairer) Read(p []byte) (int, error) {
	for len(r.out) == 0 {
		if r.err != nil && r.used == r.n {
			return 0, r.err
		}
		r.next()
	}
	n := copy(p, r.out)
	r.out = r.out[n:]
	return n, nil
}

// next makes out of what is read next.
func (r *repairer) next() {
	if !r.begun {
		r.begun = true
		r.buf = make([]byte, judged)
		for r.n < len(r.buf) && r.err == nil {
			var n int
			n, r.err = r.r.Read(r.buf[r.n:])
			r.n += n
		}
		r.bytes = !looksLikeText(r.buf[:r.n], r.n < len(r.buf))
	} else if r.err == nil {
		r.n = copy(r.buf, r.buf[r.used:r.n])
		r.used = 0
		var n int
		n, r.err = r.r.Read(r.buf[r.n:])
		r.n += n
	}
	b := r.buf[r.used:r.n]
	if r.bytes {
		r.used, r.out = r.n, b
		return
	}
	if r.err == nil {
		b = b[:len(b)-pending(b)]
	}
	r.used += len(b)
	r.out = repair(b)
}

// showNULs returns b with each NUL made visible, as one character still. It
// returns b itself if there is none.
func showNULs(b []byte) []byte {
	if bytes.IndexByte(b, 0) < 0 {
		return b
	}
	return bytes.ReplaceAll(b, []byte{0}, []byte("␀"))
}

// open reads length bytes from offset, clamped as by BlobStore.Open, wherever
// p lies. A blob that is gone is ErrNotFound, one that nothing can read
// ErrNoBlobStore.
func (p *Payload) open(ctx context.Context, blobs BlobStore, run RunKey, offset, length int64) (io.ReadCloser, error) {
	if p.Ref == nil {
		if offset < 0 {
			return nil, fmt.Errorf("psych: read a payload from %d: want an offset from 0: %w", offset, ErrInvalid)
		}
		b := p.Inline[min(offset, int64(len(p.Inline))):]
		if length >= 0 {
			b = b[:min(length, int64(len(b)))]
		}
		return io.NopCloser(bytes.NewReader(b)), nil
	}
	if p.letGo() {
		return nil, fmt.Errorf("psych: read an output of run %s: only a preview of its %d bytes was kept, since there was no BlobStore: %w", run, p.Size, ErrNoBlobStore)
	}
	if blobs == nil {
		return nil, fmt.Errorf("psych: read payload %q of run %s: it lies in a BlobStore, and the deployment has none: %w", p.Ref.CallID, run, ErrNoBlobStore)
	}
	r, _, err := blobs.Open(ctx, BlobKey{run.Tenant, run.RunID, p.Ref.CallID}, offset, length)
	if err != nil {
		return nil, fmt.Errorf("psych: read payload %q of run %s: %w", p.Ref.CallID, run, err)
	}
	return r, nil
}

// read returns a range of p's bytes.
func (p *Payload) read(ctx context.Context, blobs BlobStore, run RunKey, offset, length int64) ([]byte, error) {
	r, err := p.open(ctx, blobs, run, offset, length)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("psych: read a payload of run %s: %w", run, err)
	}
	return b, nil
}

// load returns all of p. Bytes in a BlobStore are held against the record's
// SHA-256; those inline are p's own, and not to be changed.
func (p *Payload) load(ctx context.Context, blobs BlobStore, run RunKey) ([]byte, error) {
	if p.Ref == nil {
		return p.Inline, nil
	}
	r, err := p.open(ctx, blobs, run, 0, p.Size)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b := make([]byte, p.Size)
	n, err := io.ReadFull(r, b)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, fmt.Errorf("psych: read payload %q of run %s: %w", p.Ref.CallID, run, err)
	}
	if sum := Digest(sha256.Sum256(b[:n])); sum != p.Ref.SHA256 {
		return nil, fmt.Errorf("psych: read payload %q of run %s: %d bytes with SHA-256 %s, want %d with %s: %w",
			p.Ref.CallID, run, n, sum, p.Size, p.Ref.SHA256, errDamaged)
	}
	return b, nil
}
