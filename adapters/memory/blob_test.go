package memory_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/psych"
)

func TestBlobStoreContract(t *testing.T) {
	contracttest.TestBlobStore(t, func(*testing.T) *contracttest.Fixture[psych.BlobStore] {
		return &contracttest.Fixture[psych.BlobStore]{Port: memory.NewBlobs(nil)}
	}, &contracttest.Options{Lacks: []contracttest.Need{contracttest.Reopening, contracttest.Streaming}})
}

// What is stored, replaced, deleted, refused and given up must count exactly,
// or a store in long use refuses for no reason, or grows past its bound.
func TestBlobsMaxBytes(t *testing.T) {
	ctx := t.Context()
	s := memory.NewBlobs(&memory.BlobOptions{MaxBytes: 1000})
	run := psych.RunKey{Tenant: "t", RunID: strings.Repeat("0", 32)}
	key := func(call string) psych.BlobKey {
		return psych.BlobKey{Tenant: run.Tenant, RunID: run.RunID, CallID: call}
	}
	put := func(call string, n int) error {
		_, err := s.Put(ctx, key(call), "x/y", strings.NewReader(strings.Repeat("x", n)))
		return err
	}
	full := func() {
		t.Helper()
		if err := put("probe", 1); !errors.Is(err, psych.ErrUnavailable) {
			t.Fatalf("Put of a byte too many: %v, want ErrUnavailable", err)
		}
		if _, err := s.Stat(ctx, key("probe")); !errors.Is(err, psych.ErrNotFound) {
			t.Fatalf("Stat of what was refused: %v, want ErrNotFound", err)
		}
	}
	for range 3 {
		if err := put("a", 600); err != nil {
			t.Fatal(err)
		}
		if err := put("b", 401); !errors.Is(err, psych.ErrUnavailable) {
			t.Fatalf("Put over MaxBytes: %v, want ErrUnavailable", err)
		}
		broken := errors.New("broken")
		if _, err := s.Put(ctx, key("b"), "", io.MultiReader(strings.NewReader("xyz"), iotest.ErrReader(broken))); !errors.Is(err, broken) {
			t.Fatalf("Put from a broken reader: %v", err)
		}
		ended, cancel := context.WithCancel(ctx)
		if _, err := s.Put(ended, key("b"), "", io.MultiReader(strings.NewReader("xyz"), cancelReader(cancel))); !errors.Is(err, context.Canceled) {
			t.Fatalf("Put whose context ended: %v", err)
		}
		if err := put("a", 300); err != nil {
			t.Fatalf("replace: %v", err)
		}
		if err := put("b", 700); err != nil {
			t.Fatalf("fill up to MaxBytes: %v", err)
		}
		full()
		if err := s.Delete(ctx, key("b")); err != nil {
			t.Fatal(err)
		}
		if err := put("b", 700); err != nil {
			t.Fatalf("fill up again: %v", err)
		}
		full()
		if err := s.DeleteRun(ctx, run); err != nil {
			t.Fatal(err)
		}
	}
}

type cancelReader context.CancelFunc

func (c cancelReader) Read([]byte) (int, error) {
	c()
	return 0, io.EOF
}
