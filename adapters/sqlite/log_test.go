package sqlite

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// A log that lost an append is reported with the seq, and nothing behind the
// hole is returned.
func TestHole(t *testing.T) {
	for _, c := range []struct {
		lost  string // appends, by their first seq
		after uint64
		hole  uint64
	}{
		{"1", 0, 1}, {"3", 0, 3}, {"3", 1, 3}, {"3", 2, 3}, {"3, 4", 2, 3}, {"1", 1, 2},
	} {
		s := newRun(t)
		appendTo(t, s, 2, 1, 3, 1) // 1-2, 3, 4-6, 7
		execSQL(t, s, "DELETE FROM appends WHERE first IN ("+c.lost+")")
		what := fmt.Sprintf("Read behind seq %d of a log without the appends at %s", c.after, c.lost)
		page, err := s.Read(t.Context(), testKey, psych.Pos{Seq: c.after}, 100)
		var corrupt *psych.CorruptionError
		if !errors.As(err, &corrupt) || corrupt.Reason != psych.NonConsecutiveSeq || corrupt.Seq != c.hole || corrupt.Run != testKey {
			t.Errorf("%s: %v, want a hole at seq %d", what, err, c.hole)
		}
		if len(page.Entries) != 0 {
			t.Errorf("%s returned %d entries beside its error", what, len(page.Entries))
		}
	}
	s := newRun(t)
	appendTo(t, s, 2, 1, 3)
	execSQL(t, s, "DELETE FROM appends WHERE first = 1")
	if page, err := s.Read(t.Context(), testKey, psych.Pos{Seq: 2}, 100); err != nil || len(page.Entries) != 4 {
		t.Errorf("behind the hole there are %d entries, %v; want 4", len(page.Entries), err)
	}
	// One append inside another.
	execSQL(t, s, "UPDATE appends SET first = 2 WHERE first = 4")
	_, err := s.Read(t.Context(), testKey, psych.Pos{Seq: 2}, 100)
	var corrupt *psych.CorruptionError
	if !errors.As(err, &corrupt) || corrupt.Reason != psych.NonConsecutiveSeq || corrupt.Seq != 4 {
		t.Errorf("of overlapping appends: %v, want seq 4", err)
	}
}

func TestUndecodable(t *testing.T) {
	for _, packed := range []string{"''", "x''", "x'01'", "x'02' || substr(entries, 2)", "entries || x'00'", "substr(entries, 1, length(entries) - 1)", "zeroblob(1000)"} {
		s := newRun(t)
		appendTo(t, s, 1, 2)
		execSQL(t, s, "UPDATE appends SET entries = cast("+packed+" AS BLOB) WHERE first = 2")
		_, err := s.Read(t.Context(), testKey, psych.Pos{}, 100)
		var corrupt *psych.CorruptionError
		if !errors.As(err, &corrupt) || corrupt.Reason != psych.UndecodableRecord || corrupt.Seq != 2 {
			t.Errorf("an append that holds %s: %v, want an undecodable record at seq 2", packed, err)
		}
	}
}

// A page ends at the first boundary at or past pageBytes.
func TestReadPageBytes(t *testing.T) {
	s := newRun(t)
	var pos psych.Pos
	for i := range 5 {
		b := batch(pos.Seq, fmt.Sprint(i), string(make([]byte, 100_000)), string(make([]byte, 100_000)), string(make([]byte, 100_000)))
		var err error
		if pos, err = s.Append(t.Context(), testKey, pos, b); err != nil {
			t.Fatal(err)
		}
	}
	page, err := s.Read(t.Context(), testKey, psych.Pos{}, 1000)
	if err != nil || page.Next.Seq != 12 || len(page.Entries) != 12 || !page.More {
		t.Errorf("a page of appends of 300,000 bytes ends at seq %d with %d entries, more %v, %v; want 12, 12, true", page.Next.Seq, len(page.Entries), page.More, err)
	}
}

// Seqs that SQLite has no integers for are behind every head.
func TestSeqsPastInt64(t *testing.T) {
	s := newRun(t)
	appendTo(t, s, 1)
	for _, seq := range []uint64{math.MaxInt64 - 1, math.MaxInt64, math.MaxInt64 + 1, math.MaxUint64 - 1} {
		_, err := s.Append(t.Context(), testKey, psych.Pos{Seq: seq}, batch(seq, "token", "x"))
		wantErr(t, fmt.Sprintf("Append behind seq %d", seq), err, psych.ErrConflict)
		page, err := s.Read(t.Context(), testKey, psych.Pos{Seq: seq}, 1)
		if err != nil || len(page.Entries) != 0 || page.Next.Seq != seq || page.More {
			t.Errorf("Read behind seq %d: %+v, %v", seq, page, err)
		}
	}
	if got := log(t, s); len(got) != 1 {
		t.Errorf("the log is %q", got)
	}
}

func FuzzUnpack(f *testing.F) {
	times := []time.Time{{}, testNow, time.Date(1601, 1, 1, 0, 0, 0, 1000, time.UTC)}
	f.Add(pack([]psych.Entry{{Kind: "a", Time: times[0]}, {Kind: "", Time: times[1], Data: []byte("data")}, {Kind: "b\x00\xff", Time: times[2], Data: []byte{}}}), uint64(1), uint64(3))
	f.Add([]byte{packFormat, 0, 0, 0}, uint64(7), uint64(7))
	f.Add([]byte{packFormat, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, uint64(1), uint64(1))
	f.Add([]byte{packFormat}, uint64(0), uint64(math.MaxUint64))
	f.Fuzz(func(t *testing.T, b []byte, first, last uint64) {
		entries, ok := unpack(b, first, last)
		if !ok {
			return
		}
		if uint64(len(entries)) != last-first+1 {
			t.Fatalf("%d entries for seqs %d to %d", len(entries), first, last)
		}
		for i, e := range entries {
			if e.Seq != first+uint64(i) {
				t.Fatalf("entry %d has seq %d", i, e.Seq)
			}
		}
		again, ok := unpack(pack(entries), first, last)
		if !ok || !slices.EqualFunc(entries, again, func(a, b psych.Entry) bool {
			return a.Seq == b.Seq && a.Kind == b.Kind && a.Time.Equal(b.Time) && bytes.Equal(a.Data, b.Data)
		}) {
			t.Fatalf("%v came back as %v, %v", entries, again, ok)
		}
		// What one does with an entry's data reaches no other's.
		for i := range entries {
			entries[i].Data = append(entries[i].Data, "overwritten"...)
		}
		for i := range again {
			if !bytes.HasPrefix(entries[i].Data, again[i].Data) {
				t.Fatal("appending to one entry's data changed another's")
			}
		}
	})
}

// A Run of a thousand turns must not pay for its length.
func TestAllocations(t *testing.T) {
	measure := func(length int) (appends, reads, heads float64) {
		s := newRun(t)
		sizes := make([]int, length)
		for i := range sizes {
			sizes[i] = 2
		}
		appendTo(t, s, sizes...)
		pos := psych.Pos{Seq: uint64(2 * length)}
		appends = testing.AllocsPerRun(50, func() {
			b := psych.Batch{Token: "token", Entries: []psych.Entry{{Seq: pos.Seq + 1, Kind: psych.KindUserMessage, Time: testNow, Data: make([]byte, 300)}}}
			var err error
			if pos, err = s.Append(t.Context(), testKey, pos, b); err != nil {
				t.Fatal(err)
			}
		})
		reads = testing.AllocsPerRun(50, func() {
			page, err := s.Read(t.Context(), testKey, psych.Pos{Seq: 6}, 8)
			if err != nil || len(page.Entries) != 8 {
				t.Fatal(len(page.Entries), err)
			}
		})
		heads = testing.AllocsPerRun(50, func() {
			if _, err := s.Head(t.Context(), testKey); err != nil {
				t.Fatal(err)
			}
		})
		return appends, reads, heads
	}
	sa, sr, sh := measure(10)
	la, lr, lh := measure(500)
	t.Logf("allocations of an append %v, a page of 4 appends %v, a head %v", la, lr, lh)
	// Numbers over 255 cost one each on their way through database/sql.
	if la > sa+4 || lr > sr+6 || lh > sh+4 || la > 32 || lr > 95 || lh > 42 {
		t.Errorf("append, read and head allocate %v, %v, %v times in a short log, %v, %v, %v times in a long one: want equally few, and at most 32, 95 and 42", sa, sr, sh, la, lr, lh)
	}
}
