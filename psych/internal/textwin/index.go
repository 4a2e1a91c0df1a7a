package textwin

import "encoding/binary"

const (
	indexVersion = 1
	maxMarks     = 512
	firstStride  = 4 << 10
)

// A mark says how many characters begin and how many lines end before a place,
// which may lie inside a character.
type mark struct{ at, chars, lines int64 }

// appendIndex encodes marks at each multiple of stride: a version, the stride,
// their number, and for each the bytes that continue a character and the line
// feeds since the one before it, all but the first as varints. At most 512
// marks of two varints stay under 6 KB for any size that can be stored.
func appendIndex(dst []byte, stride int64, marks []mark) []byte {
	dst = append(dst, indexVersion)
	dst = binary.AppendUvarint(dst, uint64(stride))
	dst = binary.AppendUvarint(dst, uint64(len(marks)))
	last := mark{}
	for _, m := range marks {
		dst = binary.AppendUvarint(dst, uint64(m.at-last.at-(m.chars-last.chars)))
		dst = binary.AppendUvarint(dst, uint64(m.lines-last.lines))
		last = m
	}
	return dst
}

// marks decodes the index, with the start as first mark. An index that this
// release doesn't understand is as good as none: windows are then found by
// counting from the start.
func (t *Text) marks() []mark {
	none := []mark{{}}
	if len(t.Index) == 0 || t.Index[0] != indexVersion {
		return none
	}
	b := t.Index[1:]
	ok := true
	next := func() int64 {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > 1<<62 {
			ok = false
			return 0
		}
		b = b[n:]
		return int64(v)
	}
	stride, count := next(), next()
	if !ok || count > maxMarks || stride < 1 || count > t.Size/stride {
		return none
	}
	marks := make([]mark, 1, count+1)
	for range count {
		continued, lines := next(), next()
		if !ok || continued > stride || lines > stride {
			return none
		}
		m := marks[len(marks)-1]
		marks = append(marks, mark{m.at + stride, m.chars + stride - continued, m.lines + lines})
	}
	if last := marks[len(marks)-1]; len(b) > 0 || last.chars > t.Chars || last.lines > t.Lines {
		return none
	}
	return marks
}
