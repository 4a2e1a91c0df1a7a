package memory_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"testing"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/psych"
)

func TestRegister(t *testing.T) {
	ctx := context.Background()
	var b psych.Backends
	memory.Register(&b)

	one, err := b.Stores.Open(ctx, "mem://")
	if err != nil {
		t.Fatal(err)
	}
	two, err := b.Stores.Open(ctx, "mem://")
	if err != nil {
		t.Fatal(err)
	}
	data := []byte("{}")
	hash := psych.Digest(sha256.Sum256(data))
	if err := one.PutDoc(ctx, "t", hash, data); err != nil {
		t.Fatal(err)
	}
	if _, err := two.GetDoc(ctx, "t", hash); !errors.Is(err, psych.ErrNotFound) {
		t.Errorf("a second mem:// shows a document of the first: %v", err)
	}
	if _, err := b.Blobs.Open(ctx, "mem://"); err != nil {
		t.Error(err)
	}

	for _, bad := range []string{"mem://host", "mem:///path", "mem:name", "mem://user@", "mem://#part", "mem://?size=1", "mem://?a=1;b=2"} {
		if _, err := b.Stores.Open(ctx, bad); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("Store %s: %v, want ErrInvalid", bad, err)
		}
		if _, err := b.Blobs.Open(ctx, bad); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("BlobStore %s: %v, want ErrInvalid", bad, err)
		}
	}
}
