package textwin

import (
	"bytes"
	"crypto/sha256"
	"hash"
	"unicode/utf8"
)

// Facts are what a [Meter] knows of the bytes that it has seen. Those of no
// bytes are zero, but for the digest.
type Facts struct {
	Size   int64
	SHA256 [sha256.Size]byte
	Binary bool // not valid UTF-8; what follows is then zero

	Chars, Lines int64
	Head, Tail   []byte // the first and last characters, at most as many as NewMeter was told
	Index        []byte // for [Text], under 6 KB; nil for a short text
}

// A Meter measures what is written to it, in a few kilobytes of memory however
// much that is, and doesn't depend on how it is cut into writes. A Write never
// fails and allocates nothing.
type Meter struct {
	sum       hash.Hash
	size      int64
	continued int64 // bytes that continue a character
	lines     int64 // line feeds
	last      byte
	binary    bool
	part      [utf8.UTFMax]byte // a character that the last write cut
	parts     int

	keep   int
	head   []byte
	ring   []byte // the last bytes, up to and from ringAt
	ringAt int
	full   bool

	stride int64
	marks  []mark
}

// NewMeter makes a Meter that keeps the first and the last keep characters.
func NewMeter(keep int) *Meter {
	return &Meter{
		sum:    sha256.New(),
		keep:   keep,
		head:   make([]byte, 0, keep*utf8.UTFMax),
		ring:   make([]byte, keep*utf8.UTFMax),
		stride: firstStride,
		marks:  make([]mark, 0, maxMarks),
	}
}

// Write implements io.Writer.
func (m *Meter) Write(p []byte) (int, error) {
	n := len(p)
	if n == 0 {
		return 0, nil
	}
	m.sum.Write(p)
	if !m.binary && !m.valid(p) {
		m.binary = true
	}
	if m.binary {
		m.size += int64(n)
		return n, nil
	}
	m.last = p[n-1]
	m.head = append(m.head, p[:min(n, cap(m.head)-len(m.head))]...)
	m.tail(p)
	for len(p) > 0 {
		k := min(int64(len(p)), m.stride*int64(len(m.marks)+1)-m.size)
		m.continued += continued(p[:k])
		m.lines += int64(bytes.Count(p[:k], newline))
		m.size += k
		p = p[k:]
		if m.size == m.stride*int64(len(m.marks)+1) {
			m.mark()
		}
	}
	return n, nil
}

// valid checks the characters that end in p.
func (m *Meter) valid(p []byte) bool {
	if m.parts > 0 {
		for len(p) > 0 && !utf8.FullRune(m.part[:m.parts]) {
			m.part[m.parts] = p[0]
			m.parts++
			p = p[1:]
		}
		if !utf8.FullRune(m.part[:m.parts]) {
			return true
		}
		if _, n := utf8.DecodeRune(m.part[:m.parts]); n != m.parts {
			return false
		}
		m.parts = 0
	}
	n := whole(p)
	m.parts = copy(m.part[:], p[n:])
	return utf8.Valid(p[:n])
}

func (m *Meter) tail(p []byte) {
	if len(p) >= len(m.ring) {
		copy(m.ring, p[len(p)-len(m.ring):])
		m.ringAt, m.full = 0, true
		return
	}
	k := copy(m.ring[m.ringAt:], p)
	m.ringAt += k
	if m.ringAt == len(m.ring) {
		m.ringAt, m.full = copy(m.ring, p[k:]), true
	}
}

// mark notes the place, and thins the marks when there are too many.
func (m *Meter) mark() {
	if len(m.marks) == maxMarks {
		for i := range maxMarks / 2 {
			m.marks[i] = m.marks[2*i+1]
		}
		m.marks = m.marks[:maxMarks/2]
		m.stride *= 2
		// This place is an odd multiple of the old stride.
		return
	}
	m.marks = append(m.marks, mark{m.size, m.size - m.continued, m.lines})
}

// Facts returns what is known. The slices are the caller's; more may be
// written afterwards.
func (m *Meter) Facts() Facts {
	f := Facts{Size: m.size, Binary: m.binary || m.parts > 0}
	m.sum.Sum(f.SHA256[:0])
	if f.Binary || m.size == 0 {
		return f
	}
	f.Chars, f.Lines = m.size-m.continued, m.lines
	if m.last != '\n' {
		f.Lines++
	}
	n, _ := nthStart(m.head, int64(m.keep))
	f.Head = bytes.Clone(m.head[:n])
	tail := m.ring[:m.ringAt]
	if m.full {
		tail = append(bytes.Clone(m.ring[m.ringAt:]), tail...)
	}
	f.Tail = bytes.Clone(tail[back(tail, len(tail), int64(m.keep)):])
	if len(m.marks) > 0 {
		f.Index = appendIndex(nil, m.stride, m.marks)
	}
	return f
}
