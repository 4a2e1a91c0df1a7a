package fsblob

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/psych-go/psych-go/psych"
)

// A file is the bytes of the blob, its content type, and a fixed end: the
// number of bytes (8, big-endian like all of it), the length of the content
// type (8), a CRC-32C of the content type and those two (4), and magic.
const (
	magic    = "psychb1\n"
	fixedEnd = 8 + 8 + 4 + len(magic)
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func trailer(info psych.BlobInfo) []byte {
	b := []byte(info.ContentType)
	b = binary.BigEndian.AppendUint64(b, uint64(info.Size))
	b = binary.BigEndian.AppendUint64(b, uint64(len(info.ContentType)))
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return append(b, magic...)
}

// readTrailer returns an error matching ErrDamaged unless f is a whole blob.
func readTrailer(f *os.File) (psych.BlobInfo, error) {
	stat, err := f.Stat()
	if err != nil {
		return psych.BlobInfo{}, err
	}
	damaged := func(what string) (psych.BlobInfo, error) {
		return psych.BlobInfo{}, fmt.Errorf("%s has %d bytes and %s: %w", f.Name(), stat.Size(), what, ErrDamaged)
	}
	room := stat.Size() - int64(fixedEnd)
	if room < 0 {
		return damaged("no room for a trailer")
	}
	end := make([]byte, fixedEnd)
	if _, err := f.ReadAt(end, room); err != nil {
		return psych.BlobInfo{}, err
	}
	if string(end[20:]) != magic {
		return damaged("no trailer at its end")
	}
	size, typeLen := binary.BigEndian.Uint64(end), binary.BigEndian.Uint64(end[8:])
	if typeLen > uint64(room) || size != uint64(room)-typeLen {
		return damaged(fmt.Sprintf("a trailer for %d bytes", size))
	}
	b := make([]byte, typeLen, typeLen+16)
	if _, err := f.ReadAt(b, int64(size)); err != nil && !(errors.Is(err, io.EOF) && typeLen == 0) {
		return psych.BlobInfo{}, err
	}
	contentType := string(b)
	if crc32.Checksum(append(b, end[:16]...), castagnoli) != binary.BigEndian.Uint32(end[16:]) {
		return damaged("a trailer with a wrong checksum")
	}
	return psych.BlobInfo{Size: int64(size), ContentType: contentType}, nil
}

// A section reads a range of an open file.
type section struct {
	f        *os.File
	key      psych.BlobKey
	at, rest int64
}

func (s *section) Read(b []byte) (int, error) {
	if s.rest == 0 {
		return 0, io.EOF
	}
	if int64(len(b)) > s.rest {
		b = b[:s.rest]
	}
	n, err := s.f.ReadAt(b, s.at)
	s.at += int64(n)
	s.rest -= int64(n)
	switch {
	case err == nil || n == len(b):
		return n, nil
	case errors.Is(err, io.EOF):
		return n, fmt.Errorf("fsblob: read %s: the file ends %d bytes early: %w", s.key, s.rest, ErrDamaged)
	case transient(err):
		return n, fmt.Errorf("fsblob: read %s: %w: %w", s.key, psych.ErrUnavailable, err)
	}
	return n, fmt.Errorf("fsblob: read %s: %w", s.key, err)
}

func (s *section) Close() error { return s.f.Close() }
