package filetools

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
	"unicode/utf8"
)

const highBits = 0x8080808080808080

// runeStarts counts the bytes of b that don't continue a rune: of valid UTF-8
// its characters, and of a part of it those that begin there.
func runeStarts(b []byte) int {
	n := len(b)
	for len(b) >= 8 {
		w := binary.LittleEndian.Uint64(b)
		if w&highBits != 0 {
			n -= bits.OnesCount64(w & ^(w << 1) & highBits)
		}
		b = b[8:]
	}
	for _, c := range b {
		if !utf8.RuneStart(c) {
			n--
		}
	}
	return n
}

// runeIndex is where the character n (from 0) of valid UTF-8 begins, its
// length if there are just n.
func runeIndex(b []byte, n int) int {
	i := 0
	for i+8 <= len(b) {
		w := binary.LittleEndian.Uint64(b[i:])
		k := 8 - bits.OnesCount64(w&^(w<<1)&highBits)
		if k > n {
			break
		}
		n -= k
		i += 8
	}
	for ; i < len(b); i++ {
		if utf8.RuneStart(b[i]) {
			if n == 0 {
				break
			}
			n--
		}
	}
	return i
}

// alignDown is the last rune boundary of s at or before i.
func alignDown[T []byte | string](s T, i int) int {
	for i > 0 && i < len(s) && !utf8.RuneStart(s[i]) {
		i--
	}
	return i
}

// wholeRunes is the length of b without the beginning of a rune at its end.
func wholeRunes(b []byte) int {
	for i := 1; i <= min(utf8.UTFMax-1, len(b)); i++ {
		if tail := b[len(b)-i:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return len(b) - i
			}
			break
		}
	}
	return len(b)
}

var errBinary = errors.New("it is binary: not valid UTF-8")

// A textReader cuts a stream of UTF-8 into chunks of whole runes.
type textReader struct {
	r    io.Reader
	buf  []byte
	rest []byte // the rune that the last chunk ended in, still in buf
}

// next returns the next chunk, never empty and valid until the following call,
// or io.EOF, errBinary, or the reader's or ctx's error.
func (t *textReader) next(ctx context.Context) ([]byte, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		kept := copy(t.buf, t.rest)
		n, err := t.r.Read(t.buf[kept:])
		b := t.buf[:kept+n]
		if err != nil && err != io.EOF {
			return nil, err
		}
		if err == io.EOF && n == 0 {
			if kept > 0 {
				return nil, errBinary
			}
			return nil, io.EOF
		}
		end := wholeRunes(b)
		t.rest = b[end:]
		if !utf8.Valid(b[:end]) {
			return nil, errBinary
		}
		if end > 0 {
			return b[:end], nil
		}
	}
}
