package memory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/psych-go/psych-go/psych"
)

// BlobOptions of a BlobStore. The zero value works.
type BlobOptions struct {
	// MaxBytes bounds what all blobs hold together, with what Puts under way
	// have read. A Put that would pass it fails with psych.ErrUnavailable and
	// stores nothing. Zero: unbounded.
	MaxBytes int64
}

// A BlobStore is a psych.BlobStore in process. Its blobs end with it, and take
// the memory that they need; of psych.BlobStore's promises it does not keep
// that bytes are durable and that memory does not grow with a Put.
type BlobStore struct {
	maxBytes int64

	mu   sync.RWMutex
	runs map[psych.RunKey]map[string]blob
	used int64 // bytes that are stored, and that Puts under way hold
}

var _ psych.BlobStore = (*BlobStore)(nil)

// A blob never changes: a Put replaces it, so that readers share it.
type blob struct {
	data        []byte
	contentType string
}

func (b blob) info() psych.BlobInfo {
	return psych.BlobInfo{Size: int64(len(b.data)), ContentType: b.contentType}
}

// NewBlobs returns an empty BlobStore.
func NewBlobs(o *BlobOptions) *BlobStore {
	s := &BlobStore{runs: make(map[psych.RunKey]map[string]blob)}
	if o != nil {
		s.maxBytes = o.MaxBytes
	}
	return s
}

// Put implements psych.BlobStore.
func (s *BlobStore) Put(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
	if err := beginBlob(ctx, key.Check()); err != nil {
		return psych.BlobInfo{}, fmt.Errorf("memory: put: %w", err)
	}
	var held int // of what used counts, until it is stored
	defer func() { s.release(held) }()
	data, err := s.readAll(ctx, r, &held)
	if err != nil {
		return psych.BlobInfo{}, fmt.Errorf("memory: put %s: %w", key, err)
	}
	b := blob{data: data, contentType: contentType}

	s.mu.Lock()
	defer s.mu.Unlock()
	run := s.runs[key.Run()]
	if run == nil {
		run = make(map[string]blob)
		s.runs[key.Run()] = run
	}
	s.used -= int64(len(run[key.CallID].data))
	run[key.CallID] = b
	held = 0
	return b.info(), nil
}

// readAll reads r until EOF, and adds to held what it has reserved.
func (s *BlobStore) readAll(ctx context.Context, r io.Reader, held *int) ([]byte, error) {
	var data []byte
	for empty := 0; ; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		data = slices.Grow(data, 512)
		n, err := r.Read(data[len(data):cap(data)])
		if n > 0 {
			empty = 0
			if !s.reserve(n) {
				return nil, fmt.Errorf("blobs would hold over MaxBytes, %d: delete Runs or raise it: %w", s.maxBytes, psych.ErrUnavailable)
			}
			*held += n
			data = data[:len(data)+n]
		} else if empty++; empty == 100 && err == nil {
			err = io.ErrNoProgress
		}
		switch {
		case err == io.EOF:
			return data, ctx.Err()
		case err != nil:
			return nil, fmt.Errorf("read the payload: %w", err)
		}
	}
}

func (s *BlobStore) reserve(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.maxBytes > 0 && s.used+int64(n) > s.maxBytes {
		return false
	}
	s.used += int64(n)
	return true
}

func (s *BlobStore) release(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= int64(n)
}

// Open implements psych.BlobStore. A reader goes on with the bytes that it
// began with.
func (s *BlobStore) Open(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
	if offset < 0 {
		return nil, psych.BlobInfo{}, fmt.Errorf("memory: open %s: offset %d is negative: %w", key, offset, psych.ErrInvalid)
	}
	b, err := s.find(ctx, "open", key)
	if err != nil {
		return nil, psych.BlobInfo{}, err
	}
	data := b.data[min(offset, int64(len(b.data))):]
	if length >= 0 {
		data = data[:min(length, int64(len(data)))]
	}
	return &blobReader{data: data}, b.info(), nil
}

// Stat implements psych.BlobStore.
func (s *BlobStore) Stat(ctx context.Context, key psych.BlobKey) (psych.BlobInfo, error) {
	b, err := s.find(ctx, "stat", key)
	if err != nil {
		return psych.BlobInfo{}, err
	}
	return b.info(), nil
}

func (s *BlobStore) find(ctx context.Context, op string, key psych.BlobKey) (blob, error) {
	if err := beginBlob(ctx, key.Check()); err != nil {
		return blob{}, fmt.Errorf("memory: %s: %w", op, err)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	b, ok := s.runs[key.Run()][key.CallID]
	if !ok {
		return blob{}, fmt.Errorf("memory: %s %s: %w", op, key, psych.ErrNotFound)
	}
	return b, nil
}

// Delete implements psych.BlobStore.
func (s *BlobStore) Delete(ctx context.Context, key psych.BlobKey) error {
	if err := beginBlob(ctx, key.Check()); err != nil {
		return fmt.Errorf("memory: delete: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	run := s.runs[key.Run()]
	s.used -= int64(len(run[key.CallID].data))
	delete(run, key.CallID)
	if len(run) == 0 {
		delete(s.runs, key.Run())
	}
	return nil
}

// DeleteRun implements psych.BlobStore.
func (s *BlobStore) DeleteRun(ctx context.Context, run psych.RunKey) error {
	if err := beginBlob(ctx, run.Check()); err != nil {
		return fmt.Errorf("memory: delete run: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.runs[run] {
		s.used -= int64(len(b.data))
	}
	delete(s.runs, run)
	return nil
}

// beginBlob returns invalid or, if that is nil, why ctx has ended.
func beginBlob(ctx context.Context, invalid error) error {
	if invalid != nil {
		return invalid
	}
	return ctx.Err()
}

// A blobReader reads shared bytes, and hands them to nobody who could change
// them.
type blobReader struct {
	data   []byte
	closed bool
}

func (r *blobReader) Read(p []byte) (int, error) {
	switch {
	case r.closed:
		return 0, errClosed
	case len(r.data) == 0:
		return 0, io.EOF
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	return n, nil
}

func (r *blobReader) Close() error {
	r.closed = true
	return nil
}

var errClosed = errors.New("memory: read of a closed blob")
