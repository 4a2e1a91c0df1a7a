package psych_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
)

// A harness is a Runtime on a memory store behind a tap, with a script model.
type harness struct {
	t     *testing.T
	tap   *tap
	blobs psych.BlobStore
	model *script.Model
	o     psych.Options
	rt    *psych.Runtime
	spec  psych.Spec

	unreplayable bool // it spoils what its Runs are made again from
}

func newHarness(t *testing.T, yaml string, tools ...*psych.Tool) *harness {
	t.Helper()
	h := &harness{t: t, tap: &tap{Store: memory.New(nil)}, blobs: memory.NewBlobs(nil)}
	h.play(yaml)
	h.spec = psych.Spec{Name: "agent", Instructions: "Be brief."}
	for _, tool := range tools {
		h.spec.Tools = append(h.spec.Tools, tool.Def().Name)
	}
	h.o = psych.Options{Blobs: h.blobs, Tools: tools}
	h.restart()
	t.Cleanup(h.replays)
	return h
}

// play gives the harness a model of its own that plays a script.
func (h *harness) play(yaml string) {
	h.t.Helper()
	s, err := script.Parse([]byte(yaml))
	if err != nil {
		h.t.Fatal(err)
	}
	h.model = script.New(s, &script.Options{Record: true})
	h.o.Models = psych.OneModel(h.model)
}

// restart makes a Runtime that knows nothing, as after a crash.
func (h *harness) restart() {
	h.t.Helper()
	h.o.Models = psych.OneModel(h.model)
	rt, err := psych.New(h.tap, &h.o)
	if err != nil {
		h.t.Fatal(err)
	}
	h.rt = rt
}

// start publishes the Spec and starts a Run of tenant t.
func (h *harness) start(text string) psych.RunKey {
	h.t.Helper()
	ctx := context.Background()
	v, err := h.rt.Publish(ctx, "t", &h.spec)
	if err != nil {
		h.t.Fatal(err)
	}
	key, err := h.rt.Start(ctx, psych.Scope{Tenant: "t"}, v.Hash, psych.ClientMessage{ID: "m1", Text: text})
	if err != nil {
		h.t.Fatal(err)
	}
	return key
}

// drive drives the Run until its exchange is closed.
func (h *harness) drive(key psych.RunKey) {
	h.t.Helper()
	out, err := h.rt.Drive(context.Background(), key, nil)
	if err != nil || out != psych.Closed {
		h.t.Fatalf("drive: %v, %v; want closed", out, err)
	}
}

func (h *harness) report(key psych.RunKey) *psych.Report {
	h.t.Helper()
	rep, err := h.rt.Report(context.Background(), key)
	if err != nil {
		h.t.Fatal(err)
	}
	return rep
}

// run starts a Run, drives it and returns its report.
func (h *harness) run() *psych.Report {
	h.t.Helper()
	key := h.start("go")
	h.drive(key)
	return h.report(key)
}

// kinds are the kinds of a Run's records, and checks that they fold.
func (h *harness) kinds(key psych.RunKey) []string {
	h.t.Helper()
	var ks []string
	for r, err := range h.rt.Records(context.Background(), key, psych.Pos{}) {
		if err != nil {
			h.t.Fatal(err)
		}
		ks = append(ks, string(r.Event.Kind()))
	}
	h.report(key)
	return ks
}

// A tap counts the calls of a Store, and lets a test stand before and behind
// each of them. before returns an error instead of the call; after returns one
// in place of the answer of a call that did take effect.
type tap struct {
	psych.Store

	mu     sync.Mutex
	counts map[string]int
	before func(method string) error
	after  func(method string) error
}

func (p *tap) Unwrap() psych.Store { return p.Store }

func (p *tap) count(method string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[method]
}

func (p *tap) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts = nil
}

func (p *tap) hook(before, after func(string) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before, p.after = before, after
}

func tapped[T any](p *tap, method string, f func() (T, error)) (T, error) {
	p.mu.Lock()
	if p.counts == nil {
		p.counts = map[string]int{}
	}
	p.counts[method]++
	before, after := p.before, p.after
	p.mu.Unlock()
	var zero T
	if before != nil {
		if err := before(method); err != nil {
			return zero, err
		}
	}
	v, err := f()
	if after != nil && err == nil {
		if err := after(method); err != nil {
			return zero, err
		}
	}
	return v, err
}

func none(err error) (struct{}, error) { return struct{}{}, err }

func (p *tap) Append(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
	return tapped(p, "Append", func() (psych.Pos, error) { return p.Store.Append(ctx, key, after, b) })
}

func (p *tap) Read(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
	return tapped(p, "Read", func() (psych.Page, error) { return p.Store.Read(ctx, key, after, limit) })
}

func (p *tap) Head(ctx context.Context, key psych.RunKey) (psych.Pos, error) {
	return tapped(p, "Head", func() (psych.Pos, error) { return p.Store.Head(ctx, key) })
}

func (p *tap) CreateRun(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error) {
	created := false
	info, err := tapped(p, "CreateRun", func() (i psych.RunInfo, err error) { i, created, err = p.Store.CreateRun(ctx, info); return })
	return info, created, err
}

func (p *tap) GetRun(ctx context.Context, key psych.RunKey) (psych.RunInfo, error) {
	return tapped(p, "GetRun", func() (psych.RunInfo, error) { return p.Store.GetRun(ctx, key) })
}

func (p *tap) Post(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
	_, err := tapped(p, "Post", func() (struct{}, error) { return none(p.Store.Post(ctx, key, n, due)) })
	return err
}

func (p *tap) Pending(ctx context.Context, key psych.RunKey) ([]psych.Note, error) {
	return tapped(p, "Pending", func() ([]psych.Note, error) { return p.Store.Pending(ctx, key) })
}

func (p *tap) Settle(ctx context.Context, key psych.RunKey, notes []psych.Note) error {
	_, err := tapped(p, "Settle", func() (struct{}, error) { return none(p.Store.Settle(ctx, key, notes)) })
	return err
}

func (p *tap) Claim(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
	return tapped(p, "Claim", func() (psych.Lease, error) { return p.Store.Claim(ctx, key, owner, token, now, ttl) })
}

func (p *tap) Renew(ctx context.Context, l psych.Lease, now time.Time, ttl time.Duration) (psych.Lease, error) {
	return tapped(p, "Renew", func() (psych.Lease, error) { return p.Store.Renew(ctx, l, now, ttl) })
}

func (p *tap) Release(ctx context.Context, l psych.Lease, dueAt time.Time, status string) error {
	_, err := tapped(p, "Release", func() (struct{}, error) { return none(p.Store.Release(ctx, l, dueAt, status)) })
	return err
}

func (p *tap) GetDoc(ctx context.Context, tenant string, d psych.Digest) ([]byte, error) {
	return tapped(p, "GetDoc", func() ([]byte, error) { return p.Store.GetDoc(ctx, tenant, d) })
}

func (p *tap) PutDoc(ctx context.Context, tenant string, d psych.Digest, data []byte) error {
	_, err := tapped(p, "PutDoc", func() (struct{}, error) { return none(p.Store.PutDoc(ctx, tenant, d, data)) })
	return err
}

func (p *tap) GetRefs(ctx context.Context, tenant string, names []string) (map[string]psych.Ref, error) {
	return tapped(p, "GetRefs", func() (map[string]psych.Ref, error) { return p.Store.GetRefs(ctx, tenant, names) })
}

// echo returns its text, times over.
var echo = psych.NewTool("echo", "Repeats a text.", func(_ context.Context, _ *psych.Call, in struct {
	Text  string `json:"text"`
	Times int    `json:"times,omitempty"`
}) (string, error) {
	return strings.Repeat(in.Text, max(in.Times, 1)), nil
}, nil)

func TestRunWithATool(t *testing.T) {
	h := newHarness(t, `
steps:
- text: Let me see.
  require: ['Now: ']
  calls: [{name: echo, arguments: {text: hello}}]
- text: It said hello.
  require: ['hello', 'Be brief']
  forbid: ['Now: ']
`, echo)
	key := h.start("Say hello.")
	h.drive(key)
	rep := h.report(key)
	if rep.Status != psych.StatusCompleted || rep.Turns != 2 || rep.Exchanges[0].Answer != "It said hello." {
		t.Errorf("report %+v", rep)
	}
	want := "[attempt_started run_admitted user_message model_call_started model_call_finished tool_call_started tool_call_finished model_call_started model_call_finished exchange_closed]"
	if got := fmt.Sprint(h.kinds(key)); got != want {
		t.Errorf("log\n got %s\nwant %s", got, want)
	}
	if out, err := h.rt.Drive(context.Background(), key, nil); out != psych.Idle || err != nil {
		t.Errorf("driving a finished Run: %v, %v; want idle", out, err)
	}
}
