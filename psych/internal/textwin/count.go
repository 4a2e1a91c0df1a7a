package textwin

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

var newline = []byte{'\n'}

// Measure returns the characters and lines of b, or false if it is not valid
// UTF-8.
func Measure(b []byte) (chars, lines int64, ok bool) {
	if !utf8.Valid(b) {
		return 0, 0, false
	}
	lines = int64(bytes.Count(b, newline))
	if len(b) > 0 && b[len(b)-1] != '\n' {
		lines++
	}
	return starts(b), lines, true
}

// starts counts the bytes that begin a character.
func starts(b []byte) int64 { return int64(len(b)) - continued(b) }

// continued counts the bytes 10xxxxxx, eight at a time.
func continued(b []byte) int64 {
	const low = 0x0101010101010101
	n := 0
	for len(b) >= 32 {
		x, y := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
		z, w := binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
		if (x|y|z|w)&(low<<7) != 0 {
			n += bits.OnesCount64(x>>7&^(x>>6)&low) + bits.OnesCount64(y>>7&^(y>>6)&low) +
				bits.OnesCount64(z>>7&^(z>>6)&low) + bits.OnesCount64(w>>7&^(w>>6)&low)
		}
		b = b[32:]
	}
	for _, c := range b {
		if c&0xC0 == 0x80 {
			n++
		}
	}
	return int64(n)
}

// nthStart returns where the n-th character of b begins, counted from 0, and
// the number of those before it; len(b) if there are fewer.
func nthStart(b []byte, n int64) (int, int64) {
	const block = 256
	i, seen := 0, int64(0)
	for len(b)-i >= block {
		k := starts(b[i : i+block])
		if seen+k > n {
			break
		}
		seen += k
		i += block
	}
	for ; i < len(b); i++ {
		if utf8.RuneStart(b[i]) {
			if seen == n {
				return i, seen
			}
			seen++
		}
	}
	return len(b), seen
}

// back returns where the n-th character before i begins, or 0.
func back(b []byte, i int, n int64) int {
	for ; i > 0 && n > 0; n-- {
		i--
		for i > 0 && !utf8.RuneStart(b[i]) {
			i--
		}
	}
	return i
}

// whole returns the length of b without a character that is cut at its end.
func whole(b []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if k := len(b) - i; utf8.RuneStart(b[k]) {
			if !utf8.FullRune(b[k:]) {
				return k
			}
			break
		}
	}
	return len(b)
}
