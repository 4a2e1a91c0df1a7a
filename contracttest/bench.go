package contracttest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
)

// A Usage is what a backend, or the client in front of it, has counted. The
// zero value is of one that counts nothing.
type Usage struct {
	Requests       map[string]int // by the backend's name of the operation
	Writes, Reads  float64        // units of capacity consumed (DynamoDB: WCU, RCU)
	Sent, Received int64          // bytes of the bodies of requests and responses
}

// Since is what was counted since before.
func (u Usage) Since(before Usage) Usage {
	d := Usage{
		Requests: make(map[string]int),
		Writes:   u.Writes - before.Writes,
		Reads:    u.Reads - before.Reads,
		Sent:     u.Sent - before.Sent,
		Received: u.Received - before.Received,
	}
	for op, n := range u.Requests {
		if n -= before.Requests[op]; n != 0 {
			d.Requests[op] = n
		}
	}
	return d
}

// Plus is what was counted in both.
func (u Usage) Plus(o Usage) Usage {
	d := Usage{Requests: maps.Clone(u.Requests), Writes: u.Writes + o.Writes, Reads: u.Reads + o.Reads, Sent: u.Sent + o.Sent, Received: u.Received + o.Received}
	if d.Requests == nil {
		d.Requests = make(map[string]int)
	}
	for op, n := range o.Requests {
		d.Requests[op] += n
	}
	return d
}

// Total is the number of requests of all operations.
func (u Usage) Total() int {
	n := 0
	for _, m := range u.Requests {
		n += m
	}
	return n
}

func (u Usage) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d requests, %g write units, %g read units, %d bytes sent, %d received", u.Total(), u.Writes, u.Reads, u.Sent, u.Received)
	for i, op := range slices.Sorted(maps.Keys(u.Requests)) {
		fmt.Fprintf(&b, "%s%s %d", map[bool]string{true: " (", false: ", "}[i == 0], op, u.Requests[op])
	}
	if len(u.Requests) > 0 {
		b.WriteString(")")
	}
	return b.String()
}

// A Workload is a Run of some turns with one tool call each, and the answer. The
// results are rows of JSON with random numbers in them, as tools return.
type Workload struct {
	Turns       int // with a tool
	ResultBytes int // of each result
}

// A Cost is what a Workload consumed.
type Cost struct {
	Publish Usage // of the Version, once for all its Runs
	Start   Usage // the creation of the Run and its message
	Drive   Usage // all turns, by one worker in one go
	Reopen  Usage // a report by another process, which reads the whole log
}

// Run is what one Run costs that is published already and not reopened.
func (c Cost) Run() Usage { return c.Start.Plus(c.Drive) }

// Measure runs w on s, with blobs for what is too large for it (nil: none), and
// returns what count counted meanwhile. Nobody else may use what count counts.
func (w Workload) Measure(ctx context.Context, s psych.Store, blobs psych.BlobStore, count func() Usage) (Cost, error) {
	var c Cost
	if err := w.measure(ctx, s, blobs, count, &c); err != nil {
		return Cost{}, fmt.Errorf("a Run of %d turns with results of %d bytes: %w", w.Turns, w.ResultBytes, err)
	}
	return c, nil
}

func (w Workload) measure(ctx context.Context, s psych.Store, blobs psych.BlobStore, count func() Usage, c *Cost) error {
	numbers := mathrand.New(mathrand.NewPCG(1, uint64(w.ResultBytes)))
	tool := psych.NewTool("look_up", "Looks up rows of a table.", func(_ context.Context, _ *psych.Call, in struct {
		Query string `json:"query"`
		Page  int    `json:"page"`
	}) (string, error) {
		return rows(numbers, w.ResultBytes), nil
	}, nil)
	play := &script.Script{}
	for i := range w.Turns {
		args, err := json.Marshal(map[string]any{"query": fmt.Sprintf("orders of customer %d", 1000+numbers.IntN(9000)), "page": i + 1})
		if err != nil {
			return err
		}
		play.Steps = append(play.Steps, script.Step{Calls: []script.Call{{Name: "look_up", Arguments: args}}})
	}
	answer := "I looked at all pages: the orders are complete, and none of them is late."
	play.Steps = append(play.Steps, script.Step{Text: &answer})
	model := psych.OneModel(script.New(play, nil))

	newRuntime := func() (*psych.Runtime, error) {
		return psych.New(s, &psych.Options{Blobs: blobs, Models: model, Tools: []*psych.Tool{tool}})
	}
	rt, err := newRuntime()
	if err != nil {
		return err
	}
	last := count()
	phase := func(u *Usage) {
		now := count()
		*u, last = now.Since(last), now
	}
	// A tenant of the length that names have.
	scope := psych.Scope{Tenant: "bench-" + rand.Text()[:10], Principal: "somebody"}
	spec := &psych.Spec{Name: "bench", Instructions: "Look up what you are asked for, page by page.", Tools: []string{"look_up"}, Limits: psych.Limits{Turns: w.Turns + 1}}
	v, err := rt.Publish(ctx, scope.Tenant, spec)
	if err != nil {
		return err
	}
	phase(&c.Publish)
	key, err := rt.Start(ctx, scope, v.Hash, psych.ClientMessage{ID: "first", Text: "Are the orders of this customer complete, and is any of them late?"})
	if err != nil {
		return err
	}
	phase(&c.Start)
	out, err := rt.Drive(ctx, key, nil)
	if err != nil {
		return err
	}
	if out != psych.Closed {
		return fmt.Errorf("the Run was driven until %s, want closed", out)
	}
	phase(&c.Drive)
	cold, err := newRuntime()
	if err != nil {
		return err
	}
	report, err := cold.Report(ctx, key)
	if err != nil {
		return err
	}
	phase(&c.Reopen)
	if report.Status != psych.StatusCompleted || report.Turns != w.Turns+1 {
		return fmt.Errorf("the report says %s after %d turns, want %s after %d", report.Status, report.Turns, psych.StatusCompleted, w.Turns+1)
	}
	return nil
}

// rows makes a result of n bytes.
func rows(r *mathrand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "{\"order\":%d,\"customer\":%d,\"total\":%d.%02d,\"state\":%q}\n",
			100_000+r.IntN(900_000), 1000+r.IntN(9000), r.IntN(500), r.IntN(100), []string{"paid", "shipped", "delivered"}[r.IntN(3)])
	}
	return b.String()[:n]
}

// Workloads are those that BenchmarkStore and docs/cost.md measure.
func Workloads() []Workload {
	var all []Workload
	for _, bytes := range []int{300, 30 << 10} {
		for _, turns := range []int{1, 5, 20, 100} {
			all = append(all, Workload{turns, bytes})
		}
	}
	return all
}

// BenchmarkStore measures the [Workloads] on the Store that open returns: what
// one Run costs in requests, of all operations and of each, units and bytes,
// beside the time. open is called once a workload, and count is as for
// [Workload.Measure]; nil counts nothing.
func BenchmarkStore(b *testing.B, open func(b *testing.B) (s psych.Store, blobs psych.BlobStore, count func() Usage)) {
	for _, w := range Workloads() {
		b.Run(fmt.Sprintf("turns=%d/result=%d", w.Turns, w.ResultBytes), func(b *testing.B) {
			s, blobs, count := open(b)
			if count == nil {
				count = func() Usage { return Usage{} }
			}
			var sum Usage
			for b.Loop() {
				c, err := w.Measure(b.Context(), s, blobs, count)
				if err != nil {
					b.Fatal(err)
				}
				sum = sum.Plus(c.Run())
			}
			n := float64(b.N)
			for unit, total := range map[string]float64{
				"requests/run": float64(sum.Total()), "writes/run": sum.Writes, "reads/run": sum.Reads, "sentB/run": float64(sum.Sent), "receivedB/run": float64(sum.Received),
			} {
				if total > 0 {
					b.ReportMetric(total/n, unit)
				}
			}
			for op, k := range sum.Requests {
				b.ReportMetric(float64(k)/n, op+"/run")
			}
		})
	}
}
