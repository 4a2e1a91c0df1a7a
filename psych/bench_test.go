package psych_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
)

// turner drives Runs of n tool turns, each with a result of 300 bytes.
type turner struct {
	tb   testing.TB
	rt   *psych.Runtime
	hash psych.Digest
	ids  int
	key  psych.RunKey // of the last Run
}

func newTurner(tb testing.TB, turns int) *turner {
	result := strings.Repeat("0123456789", 30)
	tool := psych.NewTool("look", "Looks.", func(context.Context, *psych.Call, struct {
		At int `json:"at"`
	}) (string, error) {
		return result, nil
	}, nil)
	s, err := script.Parse([]byte("steps: [{calls: [{name: look, arguments: {at: 1}}], repeat: {until: never}}]"))
	if err != nil {
		tb.Fatal(err)
	}
	rt, err := psych.New(memory.New(nil), &psych.Options{Models: psych.OneModel(script.New(s, nil)), Tools: []*psych.Tool{tool}, CacheBytes: -1})
	if err != nil {
		tb.Fatal(err)
	}
	v, err := rt.Publish(context.Background(), "t", &psych.Spec{Name: "bench", Tools: []string{"look"}, Limits: psych.Limits{Turns: turns}})
	if err != nil {
		tb.Fatal(err)
	}
	return &turner{tb: tb, rt: rt, hash: v.Hash}
}

func (u *turner) run() {
	ctx := context.Background()
	u.ids++
	key, err := u.rt.Start(ctx, psych.Scope{Tenant: "t"}, u.hash, psych.ClientMessage{ID: fmt.Sprint(u.ids), Text: fmt.Sprint("go ", u.ids)})
	if err != nil {
		u.tb.Fatal(err)
	}
	if out, err := u.rt.Drive(ctx, key, nil); out != psych.Closed || err != nil {
		u.tb.Fatal(out, err)
	}
	u.key = key
}

func cpu() int64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return r.Utime.Nano() + r.Stime.Nano()
}

func BenchmarkTurns(b *testing.B) {
	for _, turns := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("T=%d", turns), func(b *testing.B) {
			u := newTurner(b, turns)
			u.run()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			began := cpu()
			for b.Loop() {
				u.run()
			}
			took := cpu() - began
			runtime.ReadMemStats(&after)
			n := float64(b.N * turns)
			b.ReportMetric(float64(took)/n/1e6, "cpu-ms/turn")
			b.ReportMetric(float64(after.Mallocs-before.Mallocs)/n, "allocs/turn")
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/n, "B/turn")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// A turn costs what it adds: allocations and bytes a turn do not grow with the
// Run.
func TestTurnCostIsFlat(t *testing.T) {
	measure := func(turns, runs int) (allocs, bytes float64) {
		u := newTurner(t, turns)
		u.run()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			u.run()
		}
		runtime.ReadMemStats(&after)
		n := float64(turns * runs)
		return float64(after.Mallocs-before.Mallocs) / n, float64(after.TotalAlloc-before.TotalAlloc) / n
	}
	a10, b10 := measure(10, 100)
	a1000, b1000 := measure(1000, 3)
	t.Logf("a turn at T = 10: %.0f allocations, %.0f bytes; at T = 1,000: %.0f, %.0f; ratios %.2f, %.2f", a10, b10, a1000, b1000, a1000/a10, b1000/b10)
	if a1000 > 1.2*a10 || b1000 > 1.2*b10 {
		t.Errorf("a turn at T = 1,000 costs over 1.2 times one at T = 10: %.0f and %.0f allocations, %.0f and %.0f bytes", a1000, a10, b1000, b10)
	}
}
