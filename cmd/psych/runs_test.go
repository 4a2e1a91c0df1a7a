package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
)

// A Run with blobs is not deleted by a command that can't delete them.
func TestDeleteWithoutBlobStore(t *testing.T) {
	play, err := script.Parse([]byte("steps: [{text: So.}, {text: So.}]"))
	if err != nil {
		t.Fatal(err)
	}
	store, blobs := memory.New(nil), memory.NewBlobs(nil)
	open := func(b psych.BlobStore) *session {
		rt, err := psych.New(store, &psych.Options{Blobs: b, Models: psych.OneModel(script.New(play, nil))})
		if err != nil {
			t.Fatal(err)
		}
		return &session{store: store, blobs: b, rt: rt, tenant: "t"}
	}
	with, without := open(blobs), open(nil)
	v, err := with.rt.Publish(t.Context(), "t", &psych.Spec{Name: "n"})
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{10, 100_000} {
		key, err := with.rt.Start(t.Context(), psych.Scope{Tenant: "t"}, v.Hash, psych.ClientMessage{Text: strings.Repeat("a", size)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := with.rt.Drive(t.Context(), key, nil); err != nil {
			t.Fatal(err)
		}
		var wrong *useError
		err = without.reachesBlobs(t.Context(), key)
		if large := size > 1000; errors.As(err, &wrong) != large || large && !strings.Contains(err.Error(), "give --blob URL") {
			t.Errorf("a message of %d bytes: %v", size, err)
		}
		if err := with.reachesBlobs(t.Context(), key); err != nil {
			t.Error(err)
		}
		if err := with.rt.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		if err := without.reachesBlobs(t.Context(), key); err != nil {
			t.Errorf("deleted before: %v", err)
		}
	}
}
