package faultproxy_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/adapters/s3blob"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/internal/faultproxy"
	"github.com/psych-go/psych-go/psych"
)

// size is n, or a tenth of it unless PSYCH_TEST_LARGE is 1.
func size(n int) int {
	if os.Getenv("PSYCH_TEST_LARGE") == "1" {
		return n
	}
	return n / 10
}

// Eight writers race for the logs of 50 Runs with a fault on one request in
// five. In the end every log is gapless, every append that was acknowledged is
// there once, whole and where it was said to be, and every other not at all.
func TestAppendSoak(t *testing.T) {
	for _, name := range []string{"dynalite", "ministack"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := endpoint.One(t, endpoint.Dynamo, name)
			direct, table := newTable(t, e)
			p, at := proxied(t, e.URL, faultproxy.DynamoDB, &faultproxy.Options{Seed: 2})
			const runs, writers = 50, 8
			ctx := t.Context()
			keys := make([]psych.RunKey, runs)
			for i := range keys {
				keys[i] = psych.RunKey{Tenant: "soak", RunID: fmt.Sprintf("%032x", i)}
				if _, _, err := direct.CreateRun(ctx, psych.RunInfo{Key: keys[i], Request: psych.Digest{1}, Incarnation: "i", CreatedAt: time.Unix(1e9, 0)}); err != nil {
					t.Fatal(err)
				}
			}
			type done struct {
				run     int
				from    uint64
				end     psych.Pos
				entries int
				won     bool
			}
			want := int64(size(2000))
			var acknowledged, conflicts, unknown atomic.Int64
			appends := make([]map[string]done, writers)
			errs := make([]error, writers)
			var g sync.WaitGroup
			for w := range writers {
				appends[w] = map[string]done{}
				g.Go(func() {
					// Each is a process of its own.
					s := dynamo.New(dynamoClient(at), table, nil)
					random := mrand.New(mrand.NewPCG(2, uint64(w)))
					for acknowledged.Load() < want {
						i := int(random.Float64() * random.Float64() * random.Float64() * runs) // some are in demand
						head, err := s.Head(ctx, keys[i])
						if err != nil {
							unknown.Add(1)
							continue // nothing was written
						}
						b := psych.Batch{Token: rand.Text()}
						for j := range 1 + random.IntN(4) {
							b.Entries = append(b.Entries, psych.Entry{Seq: head.Seq + 1 + uint64(j), Kind: "k", Time: time.Unix(1e9, 0), Data: []byte(b.Token)})
						}
						var end psych.Pos
						for try := 0; ; try++ {
							if end, err = s.Append(ctx, keys[i], head, b); err == nil || errors.Is(err, psych.ErrConflict) {
								break
							}
							if unknown.Add(1); try == 20 {
								errs[w] = fmt.Errorf("append to run %d: %w", i, err)
								return
							}
						}
						if err == nil {
							acknowledged.Add(1)
						} else {
							conflicts.Add(1)
						}
						appends[w][b.Token] = done{i, head.Seq, end, len(b.Entries), err == nil}
					}
				})
			}
			g.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}

			found := map[string]int{}
			for i, key := range keys {
				var pos psych.Pos
				for more := true; more; {
					page, err := direct.Read(ctx, key, pos, 1) // one append
					if err != nil {
						t.Fatal(err)
					}
					if len(page.Entries) == 0 {
						break
					}
					token := string(page.Entries[0].Data)
					for j, entry := range page.Entries {
						if entry.Seq != pos.Seq+1+uint64(j) || string(entry.Data) != token {
							t.Errorf("run %d: behind seq %d, entry %d has seq %d and is of append %s: want it of %s", i, pos.Seq, j, entry.Seq, entry.Data, token)
						}
					}
					found[token]++
					for w := range appends {
						if d, ok := appends[w][token]; ok && (d.run != i || d.from != pos.Seq || d.end != page.Next || d.entries != len(page.Entries) || !d.won) {
							t.Errorf("run %d: append %s stands behind seq %d with %d entries to %v: it was %+v", i, token, pos.Seq, len(page.Entries), page.Next, d)
						}
					}
					pos, more = page.Next, page.More
				}
			}
			for _, mine := range appends {
				for token, d := range mine {
					if d.won != (found[token] == 1) {
						t.Errorf("append %s, acknowledged %v, is in the logs %d times", token, d.won, found[token])
					}
				}
			}
			if int64(len(found)) != acknowledged.Load() {
				t.Errorf("%d appends are in the logs, and %d were acknowledged", len(found), acknowledged.Load())
			}
			t.Logf("%d appends acknowledged, %d lost the race, %d calls repeated by their caller", acknowledged.Load(), conflicts.Load(), unknown.Load())
			met(t, p, size(500))
		})
	}
}

// Runs of ten turns, with a fault on one request in ten to the Store and to the
// BlobStore: all complete, nothing is lost, no tool runs twice.
func TestRunsThroughFaults(t *testing.T) {
	db, blobs := endpoint.One(t, endpoint.Dynamo, "dynalite"), endpoint.One(t, endpoint.S3, "ministack")
	direct, table := newTable(t, db)
	directBlobs, bucket := newBucket(t, blobs)
	pd, atDynamo := proxied(t, db.URL, faultproxy.DynamoDB, &faultproxy.Options{Seed: 3, Every: 10})
	ps, atS3 := proxied(t, blobs.URL, faultproxy.S3, &faultproxy.Options{Seed: 3, Every: 10})

	var yaml strings.Builder
	yaml.WriteString("steps:\n")
	for i := range 9 {
		name := "charge"
		if i%3 == 2 {
			name = "report"
		}
		fmt.Fprintf(&yaml, "- calls: [{name: %s, arguments: {what: n%d}}, {name: charge, arguments: {what: m%d}}]\n", name, i, i)
	}
	yaml.WriteString("- text: done\n")
	s, err := script.Parse([]byte(yaml.String()))
	if err != nil {
		t.Fatal(err)
	}
	type what struct {
		What string `json:"what"`
	}
	var mu sync.Mutex
	ran := map[string]int{}
	act := func(c *psych.Call) {
		mu.Lock()
		defer mu.Unlock()
		ran[c.Run.RunID+" "+c.ID]++
	}
	tools := []*psych.Tool{
		psych.NewTool("charge", "Charges.", func(_ context.Context, c *psych.Call, in what) (string, error) {
			act(c)
			return "charged " + in.What, nil
		}, nil),
		psych.NewTool("report", "Reports.", func(_ context.Context, c *psych.Call, in what) (string, error) {
			act(c)
			return strings.Repeat("a line of "+in.What+"\n", 20_000), nil
		}, nil),
	}
	ctx := t.Context()
	next := make(chan int)
	var g sync.WaitGroup
	for range 4 {
		rt, err := psych.New(dynamo.New(dynamoClient(atDynamo), table, nil), &psych.Options{
			Blobs: s3blob.New(s3Client(atS3), bucket, "", nil), Models: psych.OneModel(script.New(s, nil)), Tools: tools,
		})
		if err != nil {
			t.Fatal(err)
		}
		reader, err := psych.New(direct, &psych.Options{Blobs: directBlobs})
		if err != nil {
			t.Fatal(err)
		}
		g.Go(func() {
			for i := range next {
				if err := oneRun(ctx, rt, reader, i); err != nil {
					t.Errorf("run %d: %v", i, err)
				}
			}
		})
	}
	n := size(100)
	for i := range n {
		next <- i
	}
	close(next)
	g.Wait()
	if len(ran) != n*18 {
		t.Errorf("%d calls ran, want %d", len(ran), n*18)
	}
	for call, times := range ran {
		if times != 1 {
			t.Errorf("call %s ran %d times", call, times)
		}
	}
	t.Logf("%d Runs; DynamoDB: %d requests, faults %v; S3: %d requests, faults %v", n, pd.Requests(), pd.Counts(), ps.Requests(), ps.Counts())
	if pd.Made() < n || ps.Made() == 0 {
		t.Error("too few faults were made: the test shows nothing")
	}
}

// oneRun starts a Run and drives it, as a client and a worker that repeat what
// failed for the moment.
func oneRun(ctx context.Context, rt, reader *psych.Runtime, i int) error {
	again := func(f func() error) (err error) {
		for range 20 {
			if err = f(); err == nil || !errors.Is(err, psych.ErrUnavailable) {
				return err
			}
		}
		return err
	}
	tools := []string{"charge", "report"}
	var v *psych.Version
	err := again(func() (err error) {
		v, err = rt.Publish(ctx, "runs", &psych.Spec{Name: "soak", Tools: tools})
		return err
	})
	if err != nil {
		return err
	}
	var key psych.RunKey
	err = again(func() (err error) {
		key, err = rt.Start(ctx, psych.Scope{Tenant: "runs"}, v.Hash, psych.ClientMessage{ID: fmt.Sprint("m", i), Text: "go"})
		return err
	})
	if err != nil {
		return err
	}
	err = again(func() error {
		out, err := rt.Drive(ctx, key, nil)
		if err == nil && out != psych.Closed && out != psych.Idle {
			err = fmt.Errorf("drive: %v", out)
		}
		return err
	})
	if err != nil {
		return err
	}
	rep, err := reader.Report(ctx, key)
	if err != nil {
		return err
	}
	if rep.Status != psych.StatusCompleted || rep.Turns != 10 || len(rep.ToolCalls) != 18 || rep.Waiting != 0 || len(rep.Exchanges) != 1 || rep.Exchanges[0].Answer != "done" {
		return fmt.Errorf("%s after %d turns with %d calls, %d notes wait: want it completed after 10 with 18", rep.Status, rep.Turns, len(rep.ToolCalls), rep.Waiting)
	}
	for _, c := range rep.ToolCalls {
		if c.Outcome != string(psych.Succeeded) {
			return fmt.Errorf("call %s of %s: %s, %s", c.ID, c.Name, c.Outcome, c.Preview)
		}
	}
	return nil
}
