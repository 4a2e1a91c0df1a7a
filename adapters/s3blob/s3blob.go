// Package s3blob keeps payloads in an S3 bucket: a psych.BlobStore for AWS, and
// for services that speak S3's protocol.
//
// A blob is one object, PREFIX/TENANT/RUN/CALL. The names are made by a
// reversible escape that yields letters, digits and -_.= alone, never a segment
// of dots, an empty one, or one that some gateway could read as another: no
// tenant meets or leaves another's prefix. S3 itself makes a PUT and the end of
// a multipart upload atomic, so a reader sees the old object or the new one.
//
// Up to 8 MiB a blob is one PUT; what is longer is a multipart upload, one part
// of which is sent while the next one is read. So a Put holds two parts of 8
// MiB, and the parts double after every 1,000, that is first at 8 GiB, so that
// S3's limit of 10,000 parts leaves room for its 5 TiB: a Put of more than 8 GiB
// holds less than a 200th of what it has read. Bodies are bytes in memory, which
// the SDK can send again and sign over plain http as over https.
//
// Bytes are verified both ways. Each request's body has its CRC-32, and over
// plain http its SHA-256 in the signature, and S3 refuses what arrives different.
// The end of a multipart upload carries the CRC-32 and the length of the whole
// object (checksum type FULL_OBJECT), which S3 holds against the parts as it
// joined them. It is not a SHA-256: S3 has that for a whole object in single PUTs
// alone, and it would have to be known before the first part. It is CRC-32
// rather than CRC-64/NVME, S3's other checksum of whole objects, because more of
// what speaks S3's protocol knows it; where that does not know checksums of
// whole objects, each part has its own all the same. Open of a whole blob holds
// the bytes against the checksum that S3 stored before it hands out the last of
// them. S3 has none for a range; psych holds what it reads whole against the
// SHA-256 in its own record.
//
// What a killed writer leaves, an upload that was begun and not ended, is
// visible to no method and is billed until it is aborted: [Store.Init] sets a
// lifecycle rule for it. In a bucket with versioning, what is replaced or
// deleted lives on as an old version until a lifecycle rule ends that.
//
// Permissions: s3:GetObject, s3:PutObject, s3:DeleteObject and
// s3:AbortMultipartUpload on the objects, s3:ListBucket on the bucket. Without
// the last S3 answers 403 for an object that isn't there, which is no
// psych.ErrNotFound.
package s3blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/psych-go/psych-go/psych"
)

// MaxBytes is S3's limit of one object, 5 TiB. A Put of more is psych.ErrTooLarge.
const MaxBytes = 5 << 40

// ErrDamaged is matched by the error of a reader of a whole blob whose bytes
// differ from the checksum that S3 stored with them.
var ErrDamaged = errors.New("s3blob: the bytes differ from their checksum")

// Options of a Store. The zero value works.
type Options struct {
	// Encryption is the server-side encryption that new objects ask for, in
	// S3's words: "AES256", "aws:kms" or "aws:kms:dsse". Empty: the bucket's
	// default.
	Encryption string

	// KMSKey is the id or ARN of the key for "aws:kms" and "aws:kms:dsse".
	// Empty: the account's key for S3.
	KMSKey string

	// ExpectedOwner is the id of the AWS account, 12 digits, that must own the
	// bucket: S3 refuses each request if another does. Empty: any.
	ExpectedOwner string
}

func (o Options) check() error {
	switch o.Encryption {
	case "", "AES256", "aws:kms", "aws:kms:dsse":
	default:
		return fmt.Errorf("encryption %.80q: want AES256, aws:kms or aws:kms:dsse: %w", o.Encryption, psych.ErrInvalid)
	}
	if o.KMSKey != "" && !strings.HasPrefix(o.Encryption, "aws:kms") {
		return fmt.Errorf("a KMS key with encryption %q: want aws:kms or aws:kms:dsse: %w", o.Encryption, psych.ErrInvalid)
	}
	if o.ExpectedOwner != "" && (len(o.ExpectedOwner) != 12 || strings.Trim(o.ExpectedOwner, "0123456789") != "") {
		return fmt.Errorf("expected owner %.80q: want the 12 digits of an AWS account: %w", o.ExpectedOwner, psych.ErrInvalid)
	}
	return nil
}

// A Store is a psych.BlobStore on a bucket. Any number of Stores, in any number
// of processes, may share a bucket and prefix.
//
// Errors match a sentinel of psych where one fits, and the SDK's error. What
// repeating helps with (throttling, 5xx, a connection, bytes damaged on the
// way) is psych.ErrUnavailable. A bucket that is missing, forbidden or in
// another region, credentials that are missing or expired, and an endpoint that
// does not speak S3 match none, say so, and need a person.
type Store struct {
	client *s3.Client
	bucket string
	prefix string // "", or with its slash
	o      Options
	bad    error       // what is wrong with New's arguments
	part   int64       // bytes of the first parts; a seam, for tests
	max    int64       // bytes of a blob; a seam, for tests
	seen   atomic.Bool // the bucket exists
}

var _ psych.BlobStore = (*Store)(nil)

// New returns a Store below prefix in bucket, which may be empty. New does no
// IO. Arguments that can't be right (no client or bucket, a prefix that is not
// segments of [A-Za-z0-9!_.*'()=-] with slashes between them or is over 512
// bytes, Options that S3 would refuse) make every method fail with
// psych.ErrInvalid.
func New(client *s3.Client, bucket, prefix string, o *Options) *Store {
	s := &Store{client: client, bucket: bucket, part: partBytes, max: MaxBytes}
	if o != nil {
		s.o = *o
	}
	if prefix != "" {
		s.prefix = strings.TrimSuffix(prefix, "/") + "/"
	}
	s.bad = errors.Join(checkPrefix(prefix), s.o.check())
	switch {
	case client == nil:
		s.bad = fmt.Errorf("no client: %w", psych.ErrInvalid)
	case bucket == "":
		s.bad = fmt.Errorf("no bucket: %w", psych.ErrInvalid)
	}
	return s
}

func (s *Store) String() string { return "s3://" + s.bucket + "/" + s.prefix }

// begin is what every method checks first.
func (s *Store) begin(ctx context.Context, invalid error) error {
	switch {
	case s.bad != nil:
		return s.bad
	case invalid != nil:
		return invalid
	}
	return ctx.Err()
}

// owner is what every request says of the bucket's owner.
func (s *Store) owner() *string { return optional(s.o.ExpectedOwner) }

func optional(v string) *string {
	if v == "" {
		return nil
	}
	return &v
}

// Open implements psych.BlobStore: one GET, or one HEAD where length is 0, and
// one HEAD more where the range begins past the end. The reader reads from the
// connection, so it must be closed, and needs ctx for as long. A connection
// that breaks is psych.ErrUnavailable, never a short read; a whole blob that
// differs from its checksum is [ErrDamaged].
func (s *Store) Open(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
	if err := s.begin(ctx, key.Check()); err != nil {
		return nil, psych.BlobInfo{}, fmt.Errorf("s3blob: open: %w", err)
	}
	if offset < 0 {
		return nil, psych.BlobInfo{}, fmt.Errorf("s3blob: open %s: offset %d is negative: %w", key, offset, psych.ErrInvalid)
	}
	if length == 0 {
		info, err := s.Stat(ctx, key)
		if err != nil {
			return nil, psych.BlobInfo{}, err
		}
		return http.NoBody, info, nil
	}
	for range 20 {
		r, info, err := s.get(ctx, key, offset, length)
		if !isStatus(err, http.StatusRequestedRangeNotSatisfiable) {
			if err != nil {
				return nil, psych.BlobInfo{}, s.fail(ctx, "open", key, err)
			}
			return r, info, nil
		}
		if info, err = s.Stat(ctx, key); err != nil {
			return nil, psych.BlobInfo{}, err
		}
		if offset >= info.Size {
			return http.NoBody, info, nil
		}
		// A longer blob has come between the two requests.
	}
	return nil, psych.BlobInfo{}, fmt.Errorf("s3blob: open %s: it is being replaced all the time: %w", key, psych.ErrUnavailable)
}

func (s *Store) get(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
	in := &s3.GetObjectInput{Bucket: &s.bucket, Key: aws.String(s.key(key)), ExpectedBucketOwner: s.owner()}
	whole := offset == 0 && length < 0
	if whole {
		in.ChecksumMode = types.ChecksumModeEnabled
	} else {
		in.Range = aws.String(rangeOf(offset, length))
	}
	out, err := s.client.GetObject(ctx, in, s.tune, func(o *s3.Options) {
		if !whole {
			// S3 has no checksum for a range; services that send the whole
			// object's all the same would make the SDK refuse the bytes.
			o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		}
	})
	if err != nil {
		return nil, psych.BlobInfo{}, err
	}
	s.seen.Store(true)
	size, left, err := extent(out, offset, length)
	if err != nil {
		out.Body.Close()
		return nil, psych.BlobInfo{}, err
	}
	info := psych.BlobInfo{Size: size, ContentType: contentTypeOf(out.ContentType, out.Metadata)}
	return &reader{ctx: ctx, s: s, key: key, body: out.Body, left: left, whole: out.ContentRange != nil || left == size}, info, nil
}

func rangeOf(offset, length int64) string {
	r := "bytes=" + strconv.FormatInt(offset, 10) + "-"
	if length < 0 || length-1 > math.MaxInt64-offset {
		return r
	}
	return r + strconv.FormatInt(offset+length-1, 10)
}

// extent returns the size of the blob and how many bytes of the answer to read.
func extent(out *s3.GetObjectOutput, offset, length int64) (size, left int64, err error) {
	if aws.ToString(out.ETag) == "" || out.ContentLength == nil {
		return 0, 0, &foreignError{"an object without ETag or length"}
	}
	if out.ContentRange == nil {
		// The whole object: what was asked for, or a server's right.
		if size = *out.ContentLength; offset > 0 {
			return 0, 0, &foreignError{"the whole object where a range of it was asked for"}
		}
		if left = size; length >= 0 {
			left = min(left, length)
		}
		return size, left, nil
	}
	var from, to int64
	if n, err := fmt.Sscanf(*out.ContentRange, "bytes %d-%d/%d", &from, &to, &size); err != nil || n != 3 ||
		from != offset || to < from || to >= size || *out.ContentLength != to-from+1 || length >= 0 && to-from >= length {
		return 0, 0, &foreignError{fmt.Sprintf("%d bytes with the Content-Range %q where %q was asked for", *out.ContentLength, *out.ContentRange, rangeOf(offset, length))}
	}
	return size, to - from + 1, nil
}

// Stat implements psych.BlobStore: one HEAD.
func (s *Store) Stat(ctx context.Context, key psych.BlobKey) (psych.BlobInfo, error) {
	if err := s.begin(ctx, key.Check()); err != nil {
		return psych.BlobInfo{}, fmt.Errorf("s3blob: stat: %w", err)
	}
	out, err := s.head(ctx, key)
	if err != nil {
		return psych.BlobInfo{}, s.fail(ctx, "stat", key, err)
	}
	return psych.BlobInfo{Size: *out.ContentLength, ContentType: contentTypeOf(out.ContentType, out.Metadata)}, nil
}

func (s *Store) head(ctx context.Context, key psych.BlobKey) (*s3.HeadObjectOutput, error) {
	out, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.bucket, Key: aws.String(s.key(key)), ExpectedBucketOwner: s.owner()}, s.tune)
	if isStatus(err, http.StatusNotFound) && !s.seen.Load() {
		// The answer to a HEAD has no body that could say what is missing.
		_, bucketErr := s.client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &s.bucket, ExpectedBucketOwner: s.owner()}, s.tune)
		switch {
		case bucketErr == nil:
			s.seen.Store(true)
		case isStatus(bucketErr, http.StatusNotFound):
			return nil, &smithy.GenericAPIError{Code: "NoSuchBucket", Message: "the bucket does not exist"}
		case !isStatus(bucketErr, http.StatusForbidden):
			return nil, bucketErr
		}
	}
	if isStatus(err, http.StatusNotFound) {
		return nil, fmt.Errorf("%w: %w", psych.ErrNotFound, err)
	}
	if err != nil {
		return nil, err
	}
	if aws.ToString(out.ETag) == "" || out.ContentLength == nil {
		return nil, &foreignError{"an object without ETag or length"}
	}
	s.seen.Store(true)
	return out, nil
}

// Delete implements psych.BlobStore: one DELETE.
func (s *Store) Delete(ctx context.Context, key psych.BlobKey) error {
	if err := s.begin(ctx, key.Check()); err != nil {
		return fmt.Errorf("s3blob: delete: %w", err)
	}
	_, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.bucket, Key: aws.String(s.key(key)), ExpectedBucketOwner: s.owner()}, s.tune)
	if err != nil && codeOf(err) != "NoSuchKey" {
		return s.fail(ctx, "delete", key, err)
	}
	s.seen.Store(true)
	return nil
}

// DeleteRun implements psych.BlobStore: a list and a batch delete for each
// 1,000 blobs. If it fails or ctx ends, a part may be gone. An upload that a
// killed writer left stays for the bucket's lifecycle rule.
func (s *Store) DeleteRun(ctx context.Context, run psych.RunKey) error {
	if err := s.begin(ctx, run.Check()); err != nil {
		return fmt.Errorf("s3blob: delete run: %w", err)
	}
	prefix := s.run(run)
	// By key rather than by token, so that deleting what was listed can't
	// shift the next page.
	for after := ""; ; {
		out, err := s.client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{
			Bucket: &s.bucket, Prefix: &prefix, StartAfter: optional(after), ExpectedBucketOwner: s.owner(),
		}, s.tune)
		if err == nil && out.Name == nil && out.KeyCount == nil {
			err = &foreignError{"a list without a bucket's name"}
		}
		if err == nil {
			after, err = s.deletePage(ctx, prefix, after, out.Contents)
		}
		if err != nil {
			return s.fail(ctx, "delete run", run, err)
		}
		s.seen.Store(true)
		if !aws.ToBool(out.IsTruncated) || len(out.Contents) == 0 {
			return nil
		}
	}
}

// deletePage deletes listed objects and returns the last key.
func (s *Store) deletePage(ctx context.Context, prefix, after string, page []types.Object) (string, error) {
	if len(page) == 0 {
		return after, nil
	}
	var ids []types.ObjectIdentifier
	for _, o := range page {
		// The list decides what is deleted: it is not trusted blindly.
		if k := aws.ToString(o.Key); !strings.HasPrefix(k, prefix) || k <= after {
			return "", &foreignError{fmt.Sprintf("a list of keys that begin with %q, behind %q, that holds %q", prefix, after, k)}
		}
		after = *o.Key
		ids = append(ids, types.ObjectIdentifier{Key: o.Key})
	}
	out, err := s.client.DeleteObjects(ctx, &s3.DeleteObjectsInput{
		Bucket: &s.bucket, Delete: &types.Delete{Objects: ids, Quiet: aws.Bool(true)}, ExpectedBucketOwner: s.owner(),
	}, s.tune)
	if err != nil {
		return "", err
	}
	var failed error
	n := 0
	for _, e := range out.Errors {
		if code := aws.ToString(e.Code); code != "NoSuchKey" {
			if n++; n == 1 {
				failed = fmt.Errorf("%q: %w", aws.ToString(e.Key), &smithy.GenericAPIError{Code: code, Message: aws.ToString(e.Message)})
			}
		}
	}
	if failed != nil {
		return "", fmt.Errorf("%d of %d objects were not deleted, the first being %w", n, len(ids), failed)
	}
	return after, nil
}
