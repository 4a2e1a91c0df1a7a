package dynamo_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

// measure runs a workload on a table of its own. An emulator may drop a
// connection after it has acted on a request, which the SDK then repeats: that
// shows as a condition that failed, makes the count worthless, and is measured
// again.
func measure(t *testing.T, e endpoint.Endpoint, turns, bytes int) (contracttest.Cost, *meter) {
	t.Helper()
	for tries := 1; ; tries++ {
		m := new(meter)
		s := newTable(t, client(e, m.options))
		c, err := contracttest.Workload{Turns: turns, ResultBytes: bytes}.Measure(t.Context(), s, memory.NewBlobs(nil), m.count)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d turns, results of %d bytes\npublish %v\nstart   %v\ndrive   %v\nreopen  %v", turns, bytes, c.Publish, c.Start, c.Drive, c.Reopen)
		if m.failures() == 0 || tries == 3 {
			return c, m
		}
	}
}

// A turn with a tool is two writes and no read; an answer is one write more.
func TestRequestsOfATurn(t *testing.T) {
	each(t, func(t *testing.T, e endpoint.Endpoint) {
		none, _ := measure(t, e, 0, 300)
		five, m := measure(t, e, 5, 300)
		if n := m.failures(); n != 0 {
			t.Errorf("%d conditions failed, want none", n)
		}
		turn := five.Run().Since(none.Run())
		if want := map[string]int{"PutItem": 10}; !maps.Equal(turn.Requests, want) {
			t.Errorf("5 turns with tools cost %v, want %v", turn.Requests, want)
		}
		// Puts are the header, the note, the append that begins the attempt and
		// the one with the answer; updates the post, the claim and the release.
		// The note is settled. Reads are the inbox that is posted to, the
		// header, the log, and the inbox that is looked into.
		want := map[string]int{"PutItem": 4, "UpdateItem": 3, "BatchWriteItem": 1, "GetItem": 1, "Query": 3}
		if got := none.Run().Requests; !maps.Equal(got, want) {
			t.Errorf("a Run without tools costs %v, want %v", got, want)
		}
	})
}

func TestWriteCapacity(t *testing.T) {
	each(t, func(t *testing.T, e endpoint.Endpoint) {
		endpoint.Needs(t, e.Name, "capacity")
		endpoint.Needs(t, e.Name, "write-capacity")
		c20, _ := measure(t, e, 20, 300)
		if got := c20.Run().Writes; got >= 56 {
			t.Errorf("20 turns consume %g write units, want under 56", got)
		}
		c100, _ := measure(t, e, 100, 300)
		if got, bound := c100.Run().Writes, 4.5*c20.Run().Writes; got >= bound {
			t.Errorf("100 turns consume %g write units, want under %g, 4.5 times what 20 do", got, bound)
		}
	})
}

func TestReadCapacity(t *testing.T) {
	each(t, func(t *testing.T, e endpoint.Endpoint) {
		endpoint.Needs(t, e.Name, "capacity")
		endpoint.Needs(t, e.Name, "read-capacity")
		c, _ := measure(t, e, 20, 300)
		if got := c.Run().Reads; got > 5 {
			t.Errorf("20 turns consume %g read units, want at most 5", got)
		}
		// The log, its 42 appends of at most 1 KB read once, and Version and header.
		if got := c.Reopen.Reads; got > 42*1024/4096+1+3 {
			t.Errorf("a report of 20 turns consumes %g read units, more than its log has", got)
		}
	})
}

// The table of docs/cost.md is what is measured: requests and write units on
// ministack, read units on dynalite.
func TestCostTable(t *testing.T) {
	writes, reads := endpoint.One(t, endpoint.Dynamo, "ministack"), endpoint.One(t, endpoint.Dynamo, "dynalite")
	doc, err := os.ReadFile("../../docs/cost.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[contracttest.Workload][]float64)
	for line := range strings.Lines(string(doc)) {
		var w contracttest.Workload
		var kb string
		n := make([]float64, 4)
		if _, err := fmt.Sscanf(strings.NewReplacer(" B ", "B ", " KB ", "KB ").Replace(line), "| %s | %d | %g | %g | %g | %g |", &kb, &w.Turns, &n[0], &n[1], &n[2], &n[3]); err == nil {
			w.ResultBytes = map[string]int{"300B": 300, "30KB": 30 << 10}[kb]
			rows[w] = n
		}
	}
	for _, w := range contracttest.Workloads() {
		c, _ := measure(t, writes, w.Turns, w.ResultBytes)
		r, _ := measure(t, reads, w.Turns, w.ResultBytes)
		got := []float64{float64(c.Run().Total()), c.Run().Writes, r.Run().Reads, r.Reopen.Reads}
		t.Logf("| %d | %d | %v |", w.ResultBytes, w.Turns, got)
		row := rows[w]
		if row == nil {
			t.Errorf("docs/cost.md has no row for %v: want %v", w, got)
			continue
		}
		for i, name := range []string{"requests", "write units", "read units", "read units of a report"} {
			// Random ids compress by chance: an item at a boundary may be on either side.
			// And under load an emulator was seen to answer twice without what it consumed.
			if tolerance := max(1, got[i]/10); i == 0 && got[i] != row[i] || math.Abs(got[i]-row[i]) > tolerance {
				t.Errorf("docs/cost.md says %g %s for %v, measured are %g", row[i], name, w, got[i])
			}
		}
	}
}

// A result over the bound of a record is one object in the BlobStore.
func TestLargeResultCost(t *testing.T) {
	e := endpoint.One(t, endpoint.Dynamo, "ministack")
	m, blobs := new(meter), &countingBlobs{BlobStore: memory.NewBlobs(nil)}
	c, err := contracttest.Workload{Turns: 5, ResultBytes: 400 << 10}.Measure(t.Context(), newTable(t, client(e, m.options)), blobs, m.count)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("drive %v, %d objects put, %d opened", c.Drive, blobs.puts, blobs.opens)
	if blobs.puts != 5 || blobs.opens != 0 {
		t.Errorf("5 large results put %d objects and opened %d, want 5 and 0", blobs.puts, blobs.opens)
	}
	if perTurn := (c.Run().Writes - 11) / 5; perTurn > 8 {
		t.Errorf("a turn with a large result consumes %g write units, want at most 8", perTurn)
	}
}

type countingBlobs struct {
	psych.BlobStore
	puts, opens int
}

func (b *countingBlobs) Put(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (psych.BlobInfo, error) {
	b.puts++
	return b.BlobStore.Put(ctx, key, contentType, r)
}

func (b *countingBlobs) Open(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
	b.opens++
	return b.BlobStore.Open(ctx, key, offset, length)
}

func BenchmarkStore(b *testing.B) {
	e := endpoint.One(b, endpoint.Dynamo, "ministack")
	contracttest.BenchmarkStore(b, func(b *testing.B) (psych.Store, psych.BlobStore, func() contracttest.Usage) {
		m := new(meter)
		return newTable(b, client(e, m.options)), memory.NewBlobs(nil), m.count
	})
}
