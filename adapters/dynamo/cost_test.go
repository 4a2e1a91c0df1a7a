package dynamo_test

import (
	"maps"
	"testing"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

func measure(t *testing.T, e endpoint.Endpoint, turns, bytes int) (contracttest.Cost, *meter) {
	t.Helper()
	m := new(meter)
	s := newTable(t, client(e, m.options))
	c, err := contracttest.Workload{Turns: turns, ResultBytes: bytes}.Measure(t.Context(), s, memory.NewBlobs(nil), m.count)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d turns, results of %d bytes\npublish %v\nstart   %v\ndrive   %v\nreopen  %v", turns, bytes, c.Publish, c.Start, c.Drive, c.Reopen)
	return c, m
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

func BenchmarkStore(b *testing.B) {
	e := endpoint.One(b, endpoint.Dynamo, "ministack")
	contracttest.BenchmarkStore(b, func(b *testing.B) (psych.Store, psych.BlobStore, func() contracttest.Usage) {
		m := new(meter)
		return newTable(b, client(e, m.options)), memory.NewBlobs(nil), m.count
	})
}
