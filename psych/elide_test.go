package psych_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/psych"
)

// sized returns texts of given lengths, different at each place.
var sized = psych.NewTool("sized", "Returns n characters.", func(_ context.Context, _ *psych.Call, in struct {
	N int `json:"n"`
}) (string, error) {
	var b strings.Builder
	for i := 0; b.Len() < in.N; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()[:in.N], nil
}, nil)

func sizedCalls(sizes ...int) string {
	parts := make([]string, len(sizes))
	for i, n := range sizes {
		parts[i] = fmt.Sprintf("{name: sized, arguments: {n: %d}}", n)
	}
	return "steps: [{calls: [" + strings.Join(parts, ", ") + "]}, {text: done}]"
}

// elided reports which of the calls the model saw as previews.
func elided(rep *psych.Report) string {
	var s string
	for _, c := range rep.ToolCalls {
		switch {
		case c.Offloaded:
			s += "B"
		case c.Preview != "":
			s += "E"
		default:
			s += "-"
		}
	}
	return s
}

// Thresholds are 6,000 estimated tokens a result, four characters each rounded
// up, and 12,000 a batch.
func TestElision(t *testing.T) {
	for _, c := range []struct {
		name  string
		sizes []int
		want  string
	}{
		{"a character under", []int{23_996}, "-"},
		{"at the threshold", []int{23_997}, "E"},
		{"over", []int{24_001}, "E"},
		{"many small ones, under a result's threshold together", []int{5000, 5000, 5000, 5000}, "----"},
		{"middling ones under a batch's", []int{20_000, 20_000}, "--"},
		{"a batch over its threshold, largest first", []int{15_000, 20_000, 16_000}, "-E-"},
		{"ties in the order of the calls", []int{20_000, 20_000, 20_000}, "E--"},
		{"as many as it takes", []int{20_000, 20_000, 20_000, 20_000}, "EE--"},
		{"each that is large", []int{30_000, 100, 30_000}, "E-E"},
		{"twenty of 100 KB", []int{100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000, 100_000}, strings.Repeat("E", 20)},
		{"previews that would show everything", []int{2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000}, strings.Repeat("-", 26)},
		{"offloaded ones", []int{130_000, 100}, "B-"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHarness(t, sizedCalls(c.sizes...), sized)
			rep := h.run()
			if rep.Status != psych.StatusCompleted {
				t.Fatalf("%s: %+v", rep.Status, rep.Exchanges)
			}
			if got := elided(rep); got != c.want {
				t.Errorf("elided %s, want %s", got, c.want)
			}
			for i, call := range rep.ToolCalls {
				if call.ResultBytes != int64(c.sizes[i]) || (call.Preview != "") != (call.ResultHandle != "") {
					t.Errorf("%+v", call)
				}
			}
			// What the model saw is what the report says.
			sent := h.model.Requests()[1]
			text, err := sent.Text()
			if err != nil {
				t.Fatal(err)
			}
			for _, call := range rep.ToolCalls {
				if call.Preview != "" && !strings.Contains(text, call.Preview) {
					t.Errorf("the model was not shown the preview of %s", call.ID)
				}
			}
			// The log holds everything, also for a process that did not see it.
			h.restart()
			key := rep.Run
			for i, call := range rep.ToolCalls {
				var got strings.Builder
				for off := int64(0); ; {
					w, err := h.rt.Output(context.Background(), key, "out_"+call.ID, psych.OutputQuery{Offset: off, Unit: psych.UnitChars})
					if err != nil {
						t.Fatal(err)
					}
					got.WriteString(w.Text)
					if w.AtEnd {
						break
					}
					off = w.NextOffset
				}
				if got.Len() != c.sizes[i] {
					t.Errorf("%s: %d characters were read back, of %d", call.ID, got.Len(), c.sizes[i])
				}
			}
		})
	}
}

func TestPreview(t *testing.T) {
	long := psych.NewTool("get", "", func(context.Context, *psych.Call, struct{}) (string, error) {
		return strings.Repeat("ä", 1500) + strings.Repeat("x", 88_000) + strings.Repeat("👍", 500), nil
	}, nil)
	h := newHarness(t, "steps: [{calls: [{name: get}]}, {text: done}]", long)
	rep := h.run()
	want := strings.Repeat("ä", 1000) + "\n… 88000 characters left out …\n" + strings.Repeat("x", 500) + strings.Repeat("👍", 500) +
		"\n[text/plain, 90000 characters, 1 lines. Read it with read_tool_output, handle \"out_c1_1\".]"
	if got := rep.ToolCalls[0].Preview; got != want {
		t.Errorf("preview of one line of 90,000 characters:\n got %.300q…\nwant %.300q…", got, want)
	}
}

// A page of a reader is never elided, though it counts.
func TestPagesAreShownWhole(t *testing.T) {
	page := psych.NewTool("page", "", func(context.Context, *psych.Call, struct{}) (string, error) {
		return "{}\n" + strings.Repeat("p", psych.PageChars), nil
	}, &psych.ToolOptions{Pages: true})
	h := newHarness(t, "steps: [{calls: [{name: page}, {name: page}, {name: page}, {name: sized, arguments: {n: 3000}}]}, {text: done}]", page, sized)
	h.spec.Limits.LargeResultTokens = 1000
	if got := elided(h.run()); got != "---E" {
		t.Errorf("elided %s, want ---E", got)
	}
}

func TestNoBlobStore(t *testing.T) {
	h := newHarness(t, sizedCalls(130_000, 100), sized)
	h.o.Blobs = nil
	h.restart()
	rep := h.run()
	if c := rep.ToolCalls[0]; c.Outcome != "failed" || c.Code != psych.CodeNoBlobStore {
		t.Errorf("%+v", c)
	}
	if rep.Status != psych.StatusCompleted || rep.ToolCalls[1].Outcome != "succeeded" {
		t.Errorf("%s, %+v", rep.Status, rep.ToolCalls)
	}
	// What the model itself said too large for a record ends the exchange.
	h = newHarness(t, "steps: [{text: "+strings.Repeat("x", 200_000)+"}, {text: short}]")
	h.o.Blobs = nil
	h.restart()
	key := h.start("go")
	h.drive(key)
	if rep := h.report(key); rep.Status != psych.StatusFailed || rep.Exchanges[0].Code != psych.CodeNoBlobStore {
		t.Errorf("%s, %+v", rep.Status, rep.Exchanges)
	}
	_, err := h.rt.Ask(context.Background(), psych.Scope{Tenant: "t"}, &h.spec, "go", nil)
	var failed *psych.ExchangeError
	if !errors.As(err, &failed) || !errors.Is(err, psych.ErrNoBlobStore) {
		t.Errorf("Ask: %v", err)
	}
}

// What the model says, and its arguments, leave for the BlobStore when they are
// too large, and come back whole.
func TestOffloadOfAnswers(t *testing.T) {
	text, args := strings.Repeat("t", 150_000), strings.Repeat("a", 140_000)
	h := newHarness(t, "steps: [{text: "+text+", calls: [{name: echo, arguments: {text: "+args+"}}]}, {text: done}]", echo)
	key := h.start("go")
	h.drive(key)
	if rep := h.report(key); rep.Status != psych.StatusCompleted || rep.ToolCalls[0].ResultBytes != 140_000 {
		t.Fatalf("%s: %+v", rep.Status, rep.Exchanges)
	}
	for r, err := range h.rt.Records(context.Background(), key, psych.Pos{}) {
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := json.Marshal(r); len(b) > psych.MaxRecordBytes {
			t.Errorf("%s takes %d bytes", r.Event.Kind(), len(b))
		}
	}
	for _, cold := range []bool{false, true} {
		if cold {
			h.restart()
		}
		if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: "next"}); err != nil {
			t.Fatal(err)
		}
		h.rt.Drive(context.Background(), key, nil)
		sent := h.model.Requests()
		if z := sent[len(sent)-1].Zone(3); !bytes.Contains(z, []byte(text)) || !bytes.Contains(z, []byte(args)) {
			t.Errorf("cold %v: the answer did not come back whole", cold)
		}
	}
}

func TestHandles(t *testing.T) {
	read := func(handle string) string {
		return "steps: [{calls: [{name: sized, arguments: {n: 30000}}]}, {calls: [{name: read_tool_output, arguments: " + handle + "}, {name: sized, arguments: {n: 5}}]}, {text: done}, {text: later}]"
	}
	t.Run("its own", func(t *testing.T) {
		h := newHarness(t, read(`{handle: out_c1_1, offset: 3700, limit: 2}`), sized)
		rep := h.run()
		if rep.Status != psych.StatusCompleted || rep.ToolCalls[1].Outcome != "succeeded" {
			t.Fatalf("%s %+v", rep.Status, rep.ToolCalls)
		}
	})
	for name, handle := range map[string]string{
		"none": `{}`, "a number": `{handle: 7}`, "no handle at all": `{handle: c1_1}`, "negative": `{handle: out_c1_1, offset: -1}`,
		"an illegal pattern": `{handle: out_c1_1, grep: "("}`, "a fraction": `{handle: out_c1_1, limit: 1.5}`,
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, read(handle), sized)
			rep := h.run()
			if c := rep.ToolCalls[1]; rep.Status != psych.StatusCompleted || c.Outcome != "failed" || c.Code != psych.CodeArguments {
				t.Errorf("%s, %+v; want a validation error, and the Run to go on", rep.Status, c)
			}
		})
	}
	for name, handle := range map[string]string{
		"never emitted": "out_c9_9", "of a call without result": "out_c2_2", "misspelt": "out_c1_01", "with a slash": "out_../c1_1", "bare prefix": "out_",
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, read("{handle: "+handle+"}"), sized)
			key := h.start("go")
			out, err := h.rt.Drive(context.Background(), key, nil)
			var corrupt *psych.CorruptionError
			if out != psych.Closed || !errors.As(err, &corrupt) || corrupt.Reason != psych.InvalidDeferredHandle || !errors.Is(err, psych.ErrAccessDenied) {
				t.Errorf("drive: %v, %v", out, err)
			}
			rep := h.report(key)
			if c := rep.ToolCalls[1]; c.Outcome != "failed" || c.Code != psych.CodeInvalidHandle || rep.ToolCalls[2].Outcome != "succeeded" {
				t.Errorf("%+v", rep.ToolCalls)
			}
			if rep.Status != psych.StatusFailed || rep.Exchanges[0].Code != psych.CodeInvalidHandle {
				t.Errorf("%s, %+v", rep.Status, rep.Exchanges)
			}
			if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: "go on"}); err != nil {
				t.Fatal(err)
			}
			h.drive(key)
			if rep := h.report(key); rep.Status != psych.StatusCompleted {
				t.Errorf("the next exchange: %s, %+v", rep.Status, rep.Exchanges)
			}
		})
	}
	t.Run("of another Run and another tenant", func(t *testing.T) {
		h := newHarness(t, "steps: [{calls: [{name: sized, arguments: {n: 30000}}], repeat: {until: line}}, {calls: [{name: read_tool_output, arguments: {handle: out_c1_2}}]}, {text: done}]", sized)
		ctx := context.Background()
		// Another Run of the tenant, and one of another with the same call ids.
		for _, tenant := range []string{"t", "u"} {
			v, err := h.rt.Publish(ctx, tenant, &h.spec)
			if err != nil {
				t.Fatal(err)
			}
			key, err := h.rt.Start(ctx, psych.Scope{Tenant: tenant}, v.Hash, psych.ClientMessage{ID: "other", Text: "go"})
			if err != nil {
				t.Fatal(err)
			}
			h.rt.Drive(ctx, key, nil)
		}
		key := h.start("go")
		if _, err := h.rt.Drive(ctx, key, nil); !errors.Is(err, psych.ErrAccessDenied) {
			t.Errorf("%v", err)
		}
		if _, err := h.rt.Output(ctx, psych.RunKey{Tenant: "u", RunID: key.RunID}, "out_c1_1", psych.OutputQuery{}); !errors.Is(err, psych.ErrNotFound) {
			t.Errorf("the Run of tenant t as tenant u: %v", err)
		}
		if _, err := h.rt.Output(ctx, key, "out_c1_2", psych.OutputQuery{}); !errors.Is(err, psych.ErrNotFound) {
			t.Errorf("a handle that was never emitted: %v", err)
		}
	})
	t.Run("of a blob that was deleted", func(t *testing.T) {
		h := newHarness(t, strings.Replace(read("{handle: out_c1_1}"), "30000", "300000", 1), sized)
		h.o.Blobs = forgetful{memory.NewBlobs(nil)}
		h.restart()
		rep := h.run()
		if c := rep.ToolCalls[1]; rep.Status != psych.StatusCompleted || c.Outcome != "failed" {
			t.Errorf("%s, %+v", rep.Status, c)
		}
	})
}

// forgetful loses what it was given.
type forgetful struct{ *memory.BlobStore }

func (f forgetful) Put(ctx context.Context, key psych.BlobKey, ct string, r io.Reader) (psych.BlobInfo, error) {
	info, err := f.BlobStore.Put(ctx, key, ct, r)
	return info, errors.Join(err, f.BlobStore.Delete(ctx, key))
}
