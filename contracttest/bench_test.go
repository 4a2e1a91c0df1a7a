package contracttest_test

import (
	"context"
	"maps"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/psych"
)

func BenchmarkStore(b *testing.B) {
	contracttest.BenchmarkStore(b, func(*testing.B) (psych.Store, psych.BlobStore, func() contracttest.Usage) {
		return memory.New(nil), memory.NewBlobs(nil), nil
	})
}

// What a Run asks a Store for is counted here, since every adapter pays for it.
func TestMeasureCalls(t *testing.T) {
	s := &storeFaults{Store: memory.New(nil)}
	calls := make(map[string]int)
	s.ctx = func(method string, ctx context.Context) context.Context { calls[method]++; return ctx }
	count := func() contracttest.Usage { return contracttest.Usage{Requests: maps.Clone(calls)} }
	var costs []contracttest.Cost
	for _, turns := range []int{20, 40} {
		c, err := contracttest.Workload{Turns: turns, ResultBytes: 300}.Measure(t.Context(), s, memory.NewBlobs(nil), count)
		if err != nil {
			t.Fatal(err)
		}
		costs = append(costs, c)
	}
	more := costs[1].Run().Since(costs[0].Run())
	if want := map[string]int{"Append": 2 * 20}; !maps.Equal(more.Requests, want) {
		t.Errorf("20 more turns with tools cost %v, want %v: two appends a turn and nothing else", more.Requests, want)
	}
	start := map[string]int{"CreateRun": 1, "Post": 1}
	if !maps.Equal(costs[0].Start.Requests, start) {
		t.Errorf("to start a Run costs %v, want %v", costs[0].Start.Requests, start)
	}
}

func TestMeasureFails(t *testing.T) {
	s := &storeFaults{Store: memory.New(nil)}
	s.claim = nil
	s.err = func(method string, err error) error {
		if method == "Read" {
			return psych.ErrInvalid
		}
		return err
	}
	_, err := contracttest.Workload{Turns: 1, ResultBytes: 10}.Measure(t.Context(), s, nil, func() contracttest.Usage { return contracttest.Usage{} })
	if err == nil || !strings.Contains(err.Error(), "a Run of 1 turns") {
		t.Errorf("got %v, want the error of the Run that failed", err)
	}
}

func TestUsage(t *testing.T) {
	a := contracttest.Usage{Requests: map[string]int{"Get": 1, "Put": 2}, Writes: 2.5, Reads: 1, Sent: 10, Received: 20}
	b := a.Plus(contracttest.Usage{Requests: map[string]int{"Put": 1}, Writes: 1, Sent: 5})
	if got, want := b.String(), "4 requests, 3.5 write units, 1 read units, 15 bytes sent, 20 received (Get 1, Put 3)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := b.Since(a).String(), "1 requests, 1 write units, 0 read units, 5 bytes sent, 0 received (Put 1)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
