package psych_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// A judge is a Model with an encoding of its own, which may refuse a request
// for what is in it.
type judge struct {
	id     string // of the encoding
	images []string
	says   string // of each part, by its kind, for encodings that differ under one id

	mu     sync.Mutex
	sent   []*psych.Request
	answer func(n int, body string) (*psych.Response, error) // the n-th request
}

func (j *judge) Codec() psych.Codec { return judgeCodec{j} }

func (j *judge) Generate(_ context.Context, r *psych.Request, _ func(psych.Delta)) (*psych.Response, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	own := *r
	own.History = slices.Clone(r.History)
	j.sent = append(j.sent, &own)
	return j.answer(len(j.sent), bodyOf(&own))
}

func (j *judge) requests() []*psych.Request {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.sent)
}

// bodyOf is all of a request.
func bodyOf(r *psych.Request) string {
	b := string(r.Tools.Bytes) + "\n" + string(r.System[0].Bytes) + "\n" + string(r.System[1].Bytes) + "\n"
	for _, w := range r.History {
		b += string(w.Bytes) + "\n"
	}
	return b + string(r.Tail.Bytes)
}

type judgeCodec struct{ j *judge }

func (c judgeCodec) Limits() psych.ModelLimits { return psych.ModelLimits{Images: c.j.images} }

func (c judgeCodec) ID() string { return c.j.id }

func (c judgeCodec) encode(kind string, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if strings.Contains(c.j.says, kind) {
		b = append(b, " of "+c.j.says...)
	}
	return b, err
}

func (c judgeCodec) EncodeTools(defs []psych.ToolDef) ([]byte, error) { return c.encode("tools", defs) }

func (c judgeCodec) EncodeSystem(static []string, dynamic string) (zone1, zone2 []byte, err error) {
	if zone1, err = c.encode("static", static); err == nil && dynamic != "" {
		zone2, err = c.encode("dynamic", dynamic)
	}
	return zone1, zone2, err
}

func (c judgeCodec) EncodeMessage(m *psych.Message) ([]byte, int, error) {
	b, err := c.encode("message", m)
	return b, 1, err
}

func (c judgeCodec) EncodeTail(text string) ([]byte, error) { return c.encode("tail", text) }

// use lets the harness go on with a model, in a process that knows nothing or in
// the same one.
func (h *harness) use(m psych.Model, cold bool) {
	h.t.Helper()
	h.unreplayable = true // by the script model; tests replay by themselves
	if h.o.Models == nil || cold {
		h.o.Models = psych.OneModel(m)
		rt, err := psych.New(h.tap, &h.o)
		if err != nil {
			h.t.Fatal(err)
		}
		h.rt = rt
	}
}

// equalReplay makes each request of a Run again, and compares all of it with
// what was sent.
func (h *harness) equalReplay(key psych.RunKey, m psych.Model, sent []*psych.Request) {
	h.t.Helper()
	calls, err := replay(h.replayer(h.tap.Store, h.blobs, m), key)
	if err != nil || len(calls) != len(sent) {
		h.t.Fatalf("replay makes %d calls of %d: %v", len(calls), len(sent), err)
	}
	for i, c := range calls {
		if err := sameRequest(sent[i], c.Request); err != nil {
			h.t.Errorf("request %d: %v", i+1, err)
		}
	}
}

// breaksOf are the breaks of a Run's model calls, each with its number.
func breaksOf(rep *psych.Report) string {
	var all []string
	for i, c := range rep.ModelCalls {
		for _, b := range c.Breaks {
			all = append(all, fmt.Sprintf("%d: zone %d %s", i+1, b.Zone, b.Cause))
		}
	}
	return strings.Join(all, ", ")
}

// thought is an answer with a block of the provider's own, and a call or a text.
func thought(n int, text string) *psych.Response {
	r := &psych.Response{Stop: psych.StopEnd, Blocks: []psych.Block{{Provider: json.RawMessage(fmt.Sprintf(`{"sealed":%d}`, n))}}}
	if text != "" {
		r.Blocks = append(r.Blocks, psych.Block{Text: text})
		return r
	}
	r.Stop = psych.StopToolUse
	r.Blocks = append(r.Blocks, psych.Block{Call: &psych.ToolCall{ProviderID: fmt.Sprint("call", n), Name: "echo", Arguments: json.RawMessage(`{"text":"one"}`)}})
	return r
}

func sealed(n int) string { return fmt.Sprintf(`{"sealed":%d}`, n) }

var errSeal = &psych.ModelError{Status: 400, Refused: psych.ProviderBlocks, Message: "the seal is not ours"}

// A request that is refused for the provider's own blocks is made again
// without them, once; later ones of the Run don't hold them either, and hold
// those that came since. Whoever goes on with the Run, and when: also where a
// worker hands it over between the refusal and the next try.
func TestBlockRefused(t *testing.T) {
	for _, how := range []string{"warm", "cold", "handed over"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { blockRefused(t, how) })
		})
	}
}

func blockRefused(t *testing.T, how string) {
	h := newHarness(t, "steps: [{text: x}]", echo)
	m := &judge{id: "judge/1", answer: func(n int, body string) (*psych.Response, error) {
		switch n {
		case 1, 2:
			return thought(n, ""), nil
		case 4, 6:
			if !strings.Contains(body, sealed(n-1)) {
				t.Errorf("request %d does not hold %s", n, sealed(n-1))
			}
			time.Sleep(11 * time.Second) // it leaves too little time for another
			return nil, errSeal
		}
		return thought(n, "so"), nil
	}}
	h.o.Models = nil
	h.use(m, false)
	key := h.start("go")
	h.drive(key)
	drives := 0
	for _, text := range []string{"more", "once more", "at last"} {
		if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: text}); err != nil {
			t.Fatal(err)
		}
		for out := psych.Yielded; out == psych.Yielded; drives++ {
			if how != "warm" {
				h.use(m, true)
			}
			ctx, cancel := context.Background(), context.CancelFunc(func() {})
			if how == "handed over" {
				ctx, cancel = context.WithTimeout(ctx, 30*time.Second)
			}
			var err error
			out, err = h.rt.Drive(ctx, key, nil)
			cancel()
			if err != nil || out != psych.Yielded && out != psych.Closed {
				t.Fatalf("%v, %v", out, err)
			}
		}
	}
	if want := map[bool]int{true: 5, false: 3}[how == "handed over"]; drives != want {
		t.Errorf("%d drives, want %d", drives, want)
	}
	rep := h.report(key)
	if rep.Status != psych.StatusCompleted || len(rep.ModelCalls) != 8 || rep.ModelCalls[3].Outcome != "failed" {
		t.Fatalf("%s, %d calls: %+v", rep.Status, len(rep.ModelCalls), rep.Exchanges)
	}
	if got := breaksOf(rep); got != "5: zone 3 block_refused, 7: zone 3 block_refused" {
		t.Errorf("breaks: %s", got)
	}
	sent := m.requests()
	for n, want := range map[int][]int{4: {1, 2, 3}, 5: nil, 6: {5}, 7: nil, 8: {7}} {
		for seal := range 8 {
			if got := strings.Contains(bodyOf(sent[n-1]), sealed(seal)); got != slices.Contains(want, seal) {
				t.Errorf("request %d holds %s: %v", n, sealed(seal), got)
			}
		}
	}
	// The cache has what no block was left out of: of the requests before call 5
	// the first message, of call 5 all but its answer.
	for n, want := range map[int][]int{5: {0, 6}, 7: {6, 8}} {
		if got := sent[n-1].Breaks; !slices.Equal(got, want) {
			t.Errorf("request %d is marked at %v, want %v", n, got, want)
		}
	}
	h.equalReplay(key, m, sent)
}

// A provider that refuses a request for blocks that are left out already, or
// that there never were, is not asked again.
func TestBlockRefusedForNothing(t *testing.T) {
	for _, kind := range []psych.BlockKind{psych.ProviderBlocks, psych.ImageBlocks, "novel"} {
		h := newHarness(t, "steps: [{text: x}]", echo)
		m := &judge{id: "judge/1", answer: func(n int, body string) (*psych.Response, error) {
			if n == 1 {
				return thought(n, ""), nil
			}
			return nil, &psych.ModelError{Status: 400, Refused: kind, Message: "it is refused"}
		}}
		h.o.Models = nil
		h.use(m, false)
		key := h.start("go")
		h.drive(key)
		want := 2
		if kind == psych.ProviderBlocks {
			want = 3 // of which one is without
		}
		rep := h.report(key)
		if e := rep.Exchanges[0]; e.Closed != psych.StatusFailed || !strings.Contains(e.Reason, "it is refused") || len(m.requests()) != want {
			t.Errorf("%s: %+v after %d requests, want %d", kind, e, len(m.requests()), want)
		}
		h.equalReplay(key, m, m.requests())
	}
}

// A failure that may pass by itself is tried again as it was, whatever blocks it
// names; they are left out where it does not pass.
func TestBlockRefusedForAWhile(t *testing.T) {
	for _, passes := range []bool{true, false} {
		t.Run(fmt.Sprint("passes ", passes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, "steps: [{text: x}]", echo)
				m := &judge{id: "judge/1", answer: func(n int, body string) (*psych.Response, error) {
					switch {
					case n == 1:
						return thought(n, ""), nil
					case n == 2 || !passes && strings.Contains(body, sealed(1)):
						return nil, &psych.ModelError{Status: 500, Transient: true, Refused: psych.ProviderBlocks, Message: "no seal could be read"}
					}
					return thought(n, "so"), nil
				}}
				h.o.Models = nil
				h.use(m, false)
				key := h.start("go")
				h.drive(key)
				breaks, calls := "", 3
				if !passes {
					breaks, calls = "7: zone 3 block_refused", 7 // of which five are as they were
				}
				if rep := h.report(key); rep.Status != psych.StatusCompleted || breaksOf(rep) != breaks || len(rep.ModelCalls) != calls {
					t.Errorf("%s, breaks %q after %d calls; want %q after %d", rep.Status, breaksOf(rep), len(rep.ModelCalls), breaks, calls)
				}
				h.equalReplay(key, m, m.requests())
			})
		})
	}
}

// An image that a provider can't read is told of in text from then on, a user's
// and a tool's; a later one is shown.
func TestImageRefused(t *testing.T) {
	png := func(s string) []byte { return []byte("\x89PNG\r\n\x1a\n" + s + "\xff") }
	for _, cold := range []bool{false, true} {
		t.Run(fmt.Sprint("cold ", cold), func(t *testing.T) {
			h := newHarness(t, "steps: [{text: x}]", attacher(func(_ context.Context, c *psych.Call) (*psych.Result, error) {
				write(t, c, "shot", "image/png", string(png("tool")), nil)
				return psych.Text("made"), nil
			}))
			shown := func(body string) (all []string) {
				for _, s := range []string{"user", "tool", "late"} {
					data, _ := json.Marshal(png(s))
					if strings.Contains(body, string(data)) {
						all = append(all, s)
					}
				}
				return all
			}
			m := &judge{id: "judge/1", images: []string{"image/png"}, answer: func(n int, body string) (*psych.Response, error) {
				switch {
				case n == 1:
					return &psych.Response{Stop: psych.StopToolUse, Blocks: []psych.Block{{Call: &psych.ToolCall{Name: "make", Arguments: json.RawMessage(`{}`)}}}}, nil
				case slices.Contains(shown(body), "tool"):
					return nil, &psych.ModelError{Status: 400, Refused: psych.ImageBlocks, Message: "an image can't be read"}
				}
				return thought(n, "seen"), nil
			}}
			h.o.Models = nil
			h.use(m, false)
			key := h.start("go")
			say := func(name string) {
				t.Helper()
				h.use(m, cold)
				if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: "look", Attachments: []psych.MessageAttachment{{Name: name, ContentType: "image/png", Data: png(name)}}}); err != nil {
					t.Fatal(err)
				}
				h.drive(key)
			}
			say("user")
			say("late")
			rep := h.report(key)
			if got := breaksOf(rep); rep.Status != psych.StatusCompleted || got != "3: zone 3 block_refused" {
				t.Errorf("%s, breaks: %s", rep.Status, got)
			}
			var got []string
			for _, r := range m.requests() {
				got = append(got, fmt.Sprint(shown(bodyOf(r))))
			}
			if s := strings.Join(got, " "); s != "[user] [user tool] [] [late]" {
				t.Errorf("images shown: %s", s)
			}
			if body := bodyOf(m.requests()[2]); !strings.Contains(body, `attachment \"user\", image/png`) || !strings.Contains(body, "shot") {
				t.Errorf("without the images there is no word of them: %s", body)
			}
			h.equalReplay(key, m, m.requests())
		})
	}
}

// A worker whose bytes are others under the ID that a Run's encoding has, since
// a release, an adapter or its options changed, goes on with the Run, says so,
// and is followed by whoever comes next.
func TestEncodingChangesUnderOneID(t *testing.T) {
	png := []byte("\x89PNG\r\n\x1a\n\xff")
	for _, c := range []struct {
		name   string
		change func(*judge)
		zone   int
	}{
		{"tools", func(j *judge) { j.says = "tools" }, 0},
		{"instructions", func(j *judge) { j.says = "static" }, 1},
		{"memories", func(j *judge) { j.says = "dynamic" }, 2},
		{"messages", func(j *judge) { j.says = "message" }, 3},
		{"images", func(j *judge) { j.images = []string{"image/png"} }, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t, "steps: [{text: x}]", echo)
			h.o.Memories = func(context.Context, psych.Scope) (string, error) { return "They like tea.", nil }
			answer := func(int, string) (*psych.Response, error) { return thought(1, "so"), nil }
			was, is := &judge{id: "judge/1", answer: answer}, &judge{id: "judge/1", answer: answer}
			c.change(is)
			h.o.Models = nil
			h.use(was, true)
			first := h.rt
			v, err := h.rt.Publish(context.Background(), "t", &h.spec)
			if err != nil {
				t.Fatal(err)
			}
			key, err := h.rt.Start(context.Background(), psych.Scope{Tenant: "t"}, v.Hash, psych.ClientMessage{Text: "look", Attachments: []psych.MessageAttachment{{Name: "a", ContentType: "image/png", Data: png}}})
			if err != nil {
				t.Fatal(err)
			}
			h.drive(key)
			h.use(is, true)
			h.send(key, "more")
			h.send(key, "once more") // it stays with what it began
			h.use(is, true)
			h.send(key, "at last")
			rep := h.report(key)
			if got, want := breaksOf(rep), fmt.Sprintf("2: zone %d projection_changed", c.zone); rep.Status != psych.StatusCompleted || got != want {
				t.Fatalf("%s, breaks %s; want %s", rep.Status, got, want)
			}
			// What is sent since is made again; what was sent before can't be.
			for call, err := range h.replayer(h.tap.Store, h.blobs, is).Replay(context.Background(), key, nil) {
				if err != nil || call.Err != nil || call.Equal() != (call.Call > 1) {
					t.Errorf("call %d: %v, %v, %v", call.Call, err, call.Err, call.Difference)
				}
			}
			h.rt = first // the worker from before still runs, and knows the Run as it was
			h.send(key, "and back")
			if got := breaksOf(h.report(key)); !strings.HasSuffix(got, fmt.Sprintf(", 5: zone %d projection_changed", c.zone)) {
				t.Errorf("breaks %s", got)
			}
			if a, b := was.requests()[0], was.requests()[1]; !bytes.HasPrefix([]byte(bodyOf(b)), []byte(strings.TrimSuffix(bodyOf(a), string(a.Tail.Bytes)))) {
				t.Errorf("the first worker left its own prefix: %s", difference([]byte(bodyOf(b)), []byte(bodyOf(a))))
			}
		})
	}
}

// A worker that stays warm goes on with a Run of which another sent parts that
// it would encode otherwise, and behind what both encode alike.
func TestEncodingChangedMeanwhile(t *testing.T) {
	png := []byte("\x89PNG\r\n\x1a\n\xff")
	for _, c := range []struct {
		name   string
		change func(*judge)
		want   string
	}{
		{"history", func(j *judge) { j.images = []string{"image/png"} }, "3: zone 3 projection_changed"},
		{"memories", func(j *judge) { j.says = "dynamic" }, "2: zone 2 memory_changed, 3: zone 2 projection_changed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t, "steps: [{text: x}]", echo)
			memory := ""
			h.o.Memories = func(context.Context, psych.Scope) (string, error) { return memory, nil }
			answer := func(int, string) (*psych.Response, error) { return thought(1, "so"), nil }
			was, is := &judge{id: "judge/1", answer: answer}, &judge{id: "judge/1", answer: answer}
			c.change(is)
			h.o.Models = nil
			h.use(was, true)
			first := h.rt
			key := h.start("go")
			h.drive(key)
			h.use(is, true)
			if c.name == "memories" {
				memory = "They like tea."
			}
			if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: "look", Attachments: []psych.MessageAttachment{{Name: "a", ContentType: "image/png", Data: png}}}); err != nil {
				t.Fatal(err)
			}
			h.drive(key)
			h.rt = first
			h.send(key, "and back")
			h.send(key, "and on")
			if rep := h.report(key); rep.Status != psych.StatusCompleted || breaksOf(rep) != c.want || len(rep.ModelCalls) != 4 {
				t.Errorf("%s, breaks %q after %d calls, want %q", rep.Status, breaksOf(rep), len(rep.ModelCalls), c.want)
			}
		})
	}
}

// One process whose Model changes what it shows as an image, under one ID, goes
// on as another would.
func TestImagesChangeUnderOneID(t *testing.T) {
	h := newHarness(t, "steps: [{text: x}]", echo)
	m := &judge{id: "judge/1", answer: func(int, string) (*psych.Response, error) { return thought(1, "so"), nil }}
	h.o.Models = nil
	h.use(m, true)
	key := h.start("go")
	if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: "look", Attachments: []psych.MessageAttachment{{Name: "a", ContentType: "image/png", Data: []byte("\x89PNG\r\n\x1a\n\xff")}}}); err != nil {
		t.Fatal(err)
	}
	h.drive(key)
	other := &judge{id: "judge/1", images: []string{"image/png"}, answer: m.answer}
	now := psych.Model(m)
	h.o.Models = func(context.Context, string) (psych.Model, error) { return now, nil }
	rt, err := psych.New(h.tap, &h.o)
	if err != nil {
		t.Fatal(err)
	}
	h.rt = rt
	h.send(key, "more")
	now = other
	h.send(key, "once more")
	if rep := h.report(key); rep.Status != psych.StatusCompleted || breaksOf(rep) != "3: zone 3 projection_changed" {
		t.Errorf("%s, breaks %s", rep.Status, breaksOf(rep))
	}
}

// The wait for another try counts from the failure: an attempt that is handed
// over, and one that dies, don't make it longer.
func TestRetryCountsFromTheFailure(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprint("killed ", killed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { retryCounts(t, killed) })
		})
	}
}

func retryCounts(t *testing.T, killed bool) {
	ctx, begun := context.Background(), time.Now()
	h := newHarness(t, "steps: [{fail: 429, times: 2, retry_after_seconds: 200}, {text: done}]")
	key := h.start("go")
	at := func(d time.Duration) { time.Sleep(time.Until(begun.Add(d))) }
	drive := func(d time.Duration) (psych.Outcome, error) {
		own, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		return h.rt.Drive(own, key, nil)
	}
	// yields drives at a time, and wants the Run handed over until another.
	yields := func(now, due time.Duration) {
		t.Helper()
		at(now)
		out, err := drive(25 * time.Second)
		if err != nil || out != psych.Yielded {
			t.Fatalf("at %v: %v, %v", now, out, err)
		}
		info, err := h.tap.GetRun(ctx, key)
		if got := info.DueAt.Sub(begun); err != nil || got != due {
			t.Fatalf("at %v: due at %v, want %v; %v", now, got, due, err)
		}
		h.restart()
	}
	yields(0, 200*time.Second)
	if killed {
		at(70 * time.Second)
		h.tap.hook(func(method string) error { // it dies while it waits, and keeps its lease
			if method == "Renew" || method == "Release" {
				return errKilled
			}
			return nil
		}, nil)
		if out, err := drive(10 * time.Minute); err == nil || len(h.model.Requests()) != 1 {
			t.Fatalf("%v after %d requests, and it was killed", out, len(h.model.Requests()))
		}
		h.tap.hook(nil, nil)
		h.restart()
		yields(150*time.Second, 200*time.Second)
	} else {
		yields(40*time.Second, 200*time.Second)
	}
	yields(200*time.Second, 400*time.Second) // the second try fails, too
	if killed {
		return
	}
	at(500 * time.Second)
	asked := time.Now()
	h.drive(key)
	if took := time.Since(asked); took != 0 || len(h.model.Requests()) != 3 {
		t.Errorf("%d requests, the last after %v", len(h.model.Requests()), took)
	}
}
