package s3blob

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/psych-go/psych-go/psych"
)

const (
	partBytes    = 8 << 20 // of the first parts; S3 wants at least 5 MiB
	partsPerSize = 1000    // after which they double: ten sizes make 10,000 parts of 8 TiB
	firstBuffer  = 64 << 10
	abortTimeout = 10 * time.Second
)

// Put implements psych.BlobStore. It looks at ctx before each read and before
// the bytes become visible. If ctx ends or the connection breaks while S3 is
// about to make them so, the outcome is unknown, and the error matches
// psych.ErrUnavailable. A content type of more than 255 bytes is
// psych.ErrInvalid, more than [MaxBytes] psych.ErrTooLarge.
func (s *Store) Put(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
	if err := s.begin(ctx, key.Check()); err != nil {
		return psych.BlobInfo{}, fmt.Errorf("s3blob: put: %w", err)
	}
	if len(contentType) > maxContentType {
		return psych.BlobInfo{}, fmt.Errorf("s3blob: put %s: content type %.40q… has %d bytes: want at most %d: %w", key, contentType, len(contentType), maxContentType, psych.ErrInvalid)
	}
	u := &upload{s: s, key: s.key(key), r: r}
	u.header, u.meta = headersOf(contentType)
	size, err := u.put(ctx)
	if err != nil {
		return psych.BlobInfo{}, s.fail(ctx, "put", key, err)
	}
	s.seen.Store(true)
	return psych.BlobInfo{Size: size, ContentType: contentType}, nil
}

// An upload is one Put.
type upload struct {
	s      *Store
	key    string
	header string // content type
	meta   map[string]string
	r      io.Reader
	eof    bool
}

func (u *upload) put(ctx context.Context) (int64, error) {
	first, err := u.fill(ctx, nil, u.s.partSize(1))
	if err != nil {
		return 0, err
	}
	next, err := u.fill(ctx, nil, 1) // is there more?
	if err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if len(next) == 0 {
		return int64(len(first)), u.single(ctx, first)
	}
	return u.parts(ctx, first, next)
}

// partSize returns the bytes of part n, counted from 1.
func (s *Store) partSize(n int32) int64 { return s.part << ((n - 1) / partsPerSize) }

// fill reads on until buf has size bytes, fewer where r ends. Its memory grows
// as needed: most blobs are far smaller than a part.
func (u *upload) fill(ctx context.Context, buf []byte, size int64) ([]byte, error) {
	for empty := 0; !u.eof && int64(len(buf)) < size; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if len(buf) == cap(buf) {
			grown := make([]byte, len(buf), min(max(16*int64(cap(buf)), firstBuffer), size))
			copy(grown, buf)
			buf = grown
		}
		room := buf[len(buf):min(int64(cap(buf)), size)]
		n, err := u.r.Read(room)
		if n < 0 || n > len(room) {
			return nil, &readerError{fmt.Errorf("it returned %d bytes for %d: want at most as many", n, len(room))}
		}
		buf = buf[:len(buf)+n]
		switch {
		case err == io.EOF: // not one that wraps it, which is a failure
			u.eof = true
		case err != nil:
			return nil, &readerError{err}
		case n > 0:
			empty = 0
		default:
			if empty++; empty == 100 {
				return nil, &readerError{io.ErrNoProgress}
			}
		}
	}
	return buf, nil
}

// A readerError is the failure of Put's reader, which says nothing about S3.
type readerError struct{ err error }

func (e *readerError) Error() string { return "the reader failed: " + e.err.Error() }
func (e *readerError) Unwrap() error { return e.err }

func (u *upload) single(ctx context.Context, b []byte) error {
	o := u.s.o
	sum := crc(crc32.ChecksumIEEE(b))
	out, err := u.s.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &u.s.bucket, Key: &u.key, Body: bytes.NewReader(b), ContentLength: aws.Int64(int64(len(b))),
		ContentType: &u.header, Metadata: u.meta,
		ChecksumAlgorithm: types.ChecksumAlgorithmCrc32, ChecksumCRC32: sum,
		ServerSideEncryption: types.ServerSideEncryption(o.Encryption), SSEKMSKeyId: optional(o.KMSKey),
		ExpectedBucketOwner: u.s.owner(),
	}, u.s.tune)
	if err != nil {
		return err
	}
	return stored(out.ETag, out.ChecksumCRC32, sum)
}

// stored checks that an answer is that of an S3 which has the bytes.
func stored(etag, got, want *string) error {
	if aws.ToString(etag) == "" {
		return &foreignError{"success without an ETag"}
	}
	if got != nil && *got != *want {
		return &foreignError{fmt.Sprintf("the checksum %q where %q was sent", *got, *want)}
	}
	return nil
}

func crc(sum uint32) *string {
	return aws.String(base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum)))
}

// parts sends one part while the next one is read into the memory of the one
// before. It begins with a whole part and the first byte of the next.
func (u *upload) parts(ctx context.Context, current, next []byte) (size int64, err error) {
	o := u.s.o
	token := rand.Text()
	meta := maps.Clone(u.meta)
	meta[metaUpload] = token
	created, err := u.s.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{
		Bucket: &u.s.bucket, Key: &u.key, ContentType: &u.header, Metadata: meta,
		ChecksumAlgorithm: types.ChecksumAlgorithmCrc32, ChecksumType: types.ChecksumTypeFullObject,
		ServerSideEncryption: types.ServerSideEncryption(o.Encryption), SSEKMSKeyId: optional(o.KMSKey),
		ExpectedBucketOwner: u.s.owner(),
	}, u.s.tune)
	if err != nil {
		return 0, err
	}
	if aws.ToString(created.UploadId) == "" {
		return 0, &foreignError{"an upload without an id"}
	}
	m := &multipart{upload: u, id: *created.UploadId, token: token, full: created.ChecksumType == types.ChecksumTypeFullObject}
	partCtx, cancel := context.WithCancel(ctx)
	var sending chan error // nil while no part is on its way
	defer func() {         // also when r panics
		cancel()
		if sending != nil {
			<-sending // a part that arrives behind the abort would stay
		}
		if !m.completed {
			err = m.abort(ctx, err)
		}
	}()
	for len(current) > 0 {
		if m.size+int64(len(current)) > m.s.max {
			return 0, fmt.Errorf("it is longer than the %d bytes that S3 allows: %w", m.s.max, psych.ErrTooLarge)
		}
		nextSize := u.s.partSize(int32(len(m.parts) + 2))
		sent := make(chan error, 1)
		sending = sent
		go func() { sent <- m.send(partCtx, current) }()
		if next, err = u.fill(ctx, next, nextSize); err != nil {
			return 0, err
		}
		err = <-sending
		if sending = nil; err != nil {
			return 0, err
		}
		current, next = next, current[:0]
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return m.size, m.complete(ctx)
}

// A multipart is an upload in parts. Its sends come one after the other.
type multipart struct {
	*upload
	id        string
	token     string // in the object's metadata, to recognize it
	full      bool   // the endpoint knows checksums of whole objects
	parts     []types.CompletedPart
	size      int64
	sum       uint32 // CRC-32 of all parts
	completed bool
}

func (m *multipart) send(ctx context.Context, b []byte) error {
	number, sum := aws.Int32(int32(len(m.parts)+1)), crc(crc32.ChecksumIEEE(b))
	out, err := m.s.client.UploadPart(ctx, &s3.UploadPartInput{
		Bucket: &m.s.bucket, Key: &m.key, UploadId: &m.id, PartNumber: number,
		Body: bytes.NewReader(b), ContentLength: aws.Int64(int64(len(b))),
		ChecksumAlgorithm: types.ChecksumAlgorithmCrc32, ChecksumCRC32: sum,
		ExpectedBucketOwner: m.s.owner(),
	}, m.s.tune)
	if err == nil {
		err = stored(out.ETag, out.ChecksumCRC32, sum)
	}
	if err != nil {
		return fmt.Errorf("part %d: %w", *number, err)
	}
	m.parts = append(m.parts, types.CompletedPart{PartNumber: number, ETag: out.ETag, ChecksumCRC32: sum})
	m.size += int64(len(b))
	m.sum = crc32.Update(m.sum, crc32.IEEETable, b)
	return nil
}

func (m *multipart) complete(ctx context.Context) error {
	in := &s3.CompleteMultipartUploadInput{
		Bucket: &m.s.bucket, Key: &m.key, UploadId: &m.id,
		MultipartUpload:     &types.CompletedMultipartUpload{Parts: m.parts},
		MpuObjectSize:       &m.size,
		ExpectedBucketOwner: m.s.owner(),
	}
	sum := crc(m.sum)
	if m.full {
		in.ChecksumCRC32, in.ChecksumType = sum, types.ChecksumTypeFullObject
	}
	out, err := m.s.client.CompleteMultipartUpload(ctx, in, m.s.tune)
	switch {
	case err == nil:
		m.completed = true
		if !m.full {
			out.ChecksumCRC32 = nil
		}
		return stored(out.ETag, out.ChecksumCRC32, sum)
	case codeOf(err) != "NoSuchUpload":
		return err
	}
	// The SDK repeated a request whose answer was lost, or somebody else ended
	// the upload. The object says which, unless it was replaced meanwhile.
	head, headErr := m.s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &m.s.bucket, Key: &m.key, ExpectedBucketOwner: m.s.owner()}, m.s.tune)
	if headErr == nil && head.Metadata[metaUpload] == m.token {
		m.completed = true
		return nil
	}
	return err
}

// abort frees the parts, also when ctx has ended, and returns err with what
// came of that.
func (m *multipart) abort(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	_, abortErr := m.s.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{
		Bucket: &m.s.bucket, Key: &m.key, UploadId: &m.id, ExpectedBucketOwner: m.s.owner(),
	}, m.s.tune)
	if abortErr != nil && codeOf(abortErr) != "NoSuchUpload" && err != nil {
		return fmt.Errorf("%w (and its parts stay until upload %s is aborted, which failed: %v)", err, m.id, abortErr)
	}
	return err
}
