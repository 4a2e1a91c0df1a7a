package psych

import (
	"context"
	"fmt"
	"io"
)

// A BlobKey addresses a payload. CallID is the call segment, made by psych
// alone and never from anything that a model or client sent: a call's own id
// with slot and attempt folded in ("c3_1.result.2"), so that an attempt that
// repeats a call never meets its predecessor's bytes.
type BlobKey struct{ Tenant, RunID, CallID string }

func (k BlobKey) String() string { return fmt.Sprintf("%q/%q/%q", k.Tenant, k.RunID, k.CallID) }

// Run is the Run that k belongs to.
func (k BlobKey) Run() RunKey { return RunKey{k.Tenant, k.RunID} }

// Check returns an error matching ErrInvalid unless k is a legal key: a legal
// RunKey and 1 to 100 of [a-z0-9._-] in CallID, without a leading dot.
// Adapters call it first.
func (k BlobKey) Check() error {
	if err := k.Run().Check(); err != nil {
		return err
	}
	ok := len(k.CallID) >= 1 && len(k.CallID) <= 100 && k.CallID[0] != '.'
	for i := 0; ok && i < len(k.CallID); i++ {
		c := k.CallID[i]
		ok = c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
	}
	if !ok {
		return fmt.Errorf("psych: call segment %.120q: want 1 to 100 of [a-z0-9._-] without a leading dot: %w", k.CallID, ErrInvalid)
	}
	return nil
}

// BlobInfo travels with the bytes.
type BlobInfo struct {
	Size        int64
	ContentType string
}

// A BlobStore keeps payloads. Its methods may be called concurrently, and look
// at ctx before they act. A content type is at most 255 bytes. An illegal key is ErrInvalid; a blob of another tenant or Run is ErrNotFound,
// like one that never was. contracttest.BlobStoreRules checks it.
type BlobStore interface {
	// Put stores r until EOF and replaces what was there, whole: a concurrent
	// reader sees the old bytes, the new bytes or ErrNotFound, never a mix or
	// a part. If r fails (the error is returned, wrapped) or ctx ends, nothing
	// of it is visible and what was there stays. Memory does not grow with r.
	// An empty blob is a blob. When Put returns, the bytes are durable.
	Put(ctx context.Context, key BlobKey, contentType string, r io.Reader) (BlobInfo, error)

	// Open reads length bytes from offset, clamped like a slice: past the end
	// is empty, not an error; length < 0 reads to the end; a negative offset is
	// ErrInvalid. BlobInfo is that of the whole blob. The caller closes it. A
	// reader that is open while the blob is replaced or deleted either goes on
	// with the bytes it began with or fails; it never mixes.
	Open(ctx context.Context, key BlobKey, offset, length int64) (io.ReadCloser, BlobInfo, error)

	// Stat returns the info alone.
	Stat(ctx context.Context, key BlobKey) (BlobInfo, error)

	// Delete removes a blob; one that is not there is no error.
	Delete(ctx context.Context, key BlobKey) error

	// DeleteRun removes all blobs of a Run and nothing of any other; none is
	// no error.
	DeleteRun(ctx context.Context, run RunKey) error
}
