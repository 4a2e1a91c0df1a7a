package memory_test

import (
	"errors"
	"testing"
	"time"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/psych"
)

func TestStoreContract(t *testing.T) {
	contracttest.TestStore(t, func(t *testing.T) *contracttest.Fixture[psych.Store] {
		return &contracttest.Fixture[psych.Store]{Port: memory.New(nil)}
	}, &contracttest.Options{Lacks: []contracttest.Need{contracttest.Reopening}})
}

// A Run of a thousand turns must not pay for its length.
func TestAppendAllocations(t *testing.T) {
	ctx := t.Context()
	allocs := func(length int) float64 {
		s := memory.New(nil)
		key := psych.RunKey{Tenant: "t", RunID: "0123456789abcdef0123456789abcdef"}
		b := psych.Batch{Token: "token", Entries: make([]psych.Entry, 3)}
		var pos psych.Pos
		next := func() {
			for i := range b.Entries {
				b.Entries[i] = psych.Entry{Seq: pos.Seq + 1 + uint64(i), Kind: psych.KindUserMessage, Data: make([]byte, 0, 300)[:300]}
			}
			var err error
			if pos, err = s.Append(ctx, key, pos, b); err != nil {
				t.Fatal(err)
			}
		}
		for range length {
			next()
		}
		return testing.AllocsPerRun(100, next)
	}
	short, long := allocs(10), allocs(10_000)
	if short != long || long > 6 {
		t.Errorf("an append allocates %v times in a short log and %v times in a long one: want equally few", short, long)
	}
}

// Read copies what it returns, not what lies before or behind it.
func TestReadAllocations(t *testing.T) {
	ctx := t.Context()
	s := memory.New(nil)
	key := psych.RunKey{Tenant: "t", RunID: "0123456789abcdef0123456789abcdef"}
	if _, _, err := s.CreateRun(ctx, psych.RunInfo{Key: key}); err != nil {
		t.Fatal(err)
	}
	var pos psych.Pos
	for seq := range uint64(5000) {
		var err error
		pos, err = s.Append(ctx, key, pos, psych.Batch{Token: "token", Entries: []psych.Entry{{Seq: seq + 1, Kind: "k", Data: []byte("data")}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, after := range []uint64{0, 2500, 4990} {
		n := testing.AllocsPerRun(100, func() {
			page, err := s.Read(ctx, key, psych.Pos{Seq: after}, 10)
			if err != nil || len(page.Entries) != 10 {
				t.Fatalf("Read behind %d: %d entries, %v", after, len(page.Entries), err)
			}
		})
		if n > 11 { // the page, and the data of each entry
			t.Errorf("Read of 10 entries behind seq %d of 5000 allocates %v times", after, n)
		}
	}
}

func TestReadPageBytes(t *testing.T) {
	ctx := t.Context()
	s := memory.New(&memory.Options{PageBytes: 100})
	key := psych.RunKey{Tenant: "t", RunID: "0123456789abcdef0123456789abcdef"}
	if _, _, err := s.CreateRun(ctx, psych.RunInfo{Key: key}); err != nil {
		t.Fatal(err)
	}
	var pos psych.Pos
	for range 5 {
		b := psych.Batch{Token: "token"}
		for i := range uint64(3) {
			b.Entries = append(b.Entries, psych.Entry{Seq: pos.Seq + 1 + i, Kind: "k", Data: make([]byte, 20)})
		}
		var err error
		if pos, err = s.Append(ctx, key, pos, b); err != nil {
			t.Fatal(err)
		}
	}
	page, err := s.Read(ctx, key, psych.Pos{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	// The first boundary at or past 100 bytes is that of the second append.
	if page.Next.Seq != 6 || len(page.Entries) != 6 || !page.More {
		t.Errorf("a page of 100 bytes ends at seq %d with %d entries, more %v; want 6, 6, true", page.Next.Seq, len(page.Entries), page.More)
	}
}

func TestPostWithoutDue(t *testing.T) {
	s := memory.New(nil)
	key := psych.RunKey{Tenant: "t", RunID: "0123456789abcdef0123456789abcdef"}
	if _, _, err := s.CreateRun(t.Context(), psych.RunInfo{Key: key}); err != nil {
		t.Fatal(err)
	}
	n := psych.Note{ID: "m", Kind: psych.KindUserMessage, Time: time.Unix(1, 0)}
	if err := s.Post(t.Context(), key, n, time.Time{}); !errors.Is(err, psych.ErrInvalid) {
		t.Errorf("Post with nothing due: got error %v, want ErrInvalid", err)
	}
	if notes, err := s.Pending(t.Context(), key); err != nil || len(notes) != 0 {
		t.Errorf("after it %d notes wait (%v), want none", len(notes), err)
	}
}
