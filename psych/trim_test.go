package psych_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// send posts a message and drives the Run.
func (h *harness) send(key psych.RunKey, text string) {
	h.t.Helper()
	if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: text}); err != nil {
		h.t.Fatal(err)
	}
	h.drive(key)
}

// As an exchange opens, large results of the exchanges before it are trimmed
// once; nothing else of what was sent changes, then or later.
func TestHistoryIsTrimmed(t *testing.T) {
	h := newHarness(t, `
steps:
- calls: [{name: sized, arguments: {n: 20000}}, {name: sized, arguments: {n: 3000}}]
- calls: [{name: read_tool_output, arguments: {handle: out_c1_1, offset: 10, limit: 900}}]
- {text: one}
- calls: [{name: sized, arguments: {n: 6000}}]
- {text: two}
- {text: three}
- {text: four}
`, sized)
	key := h.start("go")
	h.drive(key)
	h.send(key, "more")
	h.restart() // a cold worker sends the same
	h.send(key, "still more")
	h.send(key, "and more")
	rep := h.report(key)
	if rep.Status != psych.StatusCompleted {
		t.Fatalf("%s %+v", rep.Status, rep.Exchanges)
	}
	sent := h.model.Requests()
	// Turn 4 opens the second exchange: 20,000 and the page are trimmed; 3,000
	// characters are under the threshold. The 6,000 of the second alone save too
	// little.
	for i, m := range rep.ModelCalls {
		want := "[]"
		if i == 3 {
			want = "[{3 history_trimmed}]"
		}
		if got := fmt.Sprint(m.Breaks); got != want {
			t.Errorf("call %d: breaks %s, want %s", i+1, got, want)
		}
		if i != 0 && i != 3 && !bytes.HasPrefix(sent[i].Prefix(), sent[i-1].Prefix()) {
			t.Errorf("request %d does not begin with the one before it", i+1)
		}
	}
	first, second := sent[2].Request.History, sent[3].Request.History
	for i := range first {
		same := bytes.Equal(first[i].Bytes, second[i].Bytes)
		if trimmed := i == 2 || i == 4; same == trimmed {
			t.Errorf("message %d: changed %v, want %v", i, !same, trimmed)
		}
	}
	text, err := sent[3].Text()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"… 18000 characters left out …", `handle "out_c1_1".]`, `[The answer of read_tool_output was here. Read it again with {"handle":"out_c1_1",`, `"offset":10`} {
		if !strings.Contains(text, s) {
			t.Errorf("the model was not shown %q", s)
		}
	}
	if w, err := h.rt.Output(context.Background(), key, "out_c1_1", psych.OutputQuery{}); err != nil || w.TotalChars != 20_000 {
		t.Errorf("a trimmed result is not readable: %+v, %v", w, err)
	}
}

// Below the threshold and the minimum trimming is a no-op.
func TestNothingToTrim(t *testing.T) {
	for name, c := range map[string]struct {
		sizes string
		trims bool
	}{
		"a result at the threshold":        {"4000, 4000, 4000, 4000, 4000", false},
		"saving as much as the minimum":    {"18089", false},
		"saving a token over the minimum":  {"18200", true},
		"attachments and failures as well": {"20000", true},
	} {
		t.Run(name, func(t *testing.T) {
			var calls []string
			for n := range strings.SplitSeq(c.sizes, ", ") {
				calls = append(calls, "{name: sized, arguments: {n: "+n+"}}")
			}
			h := newHarness(t, "steps: [{calls: ["+strings.Join(calls, ", ")+"]}, {text: a}, {text: b}]", sized)
			key := h.start("go")
			h.drive(key)
			h.send(key, "next")
			rep := h.report(key)
			if got := len(rep.ModelCalls[2].Breaks) > 0; got != c.trims {
				t.Errorf("trimmed %v, want %v", got, c.trims)
			}
		})
	}
}

// A message that is delivered in mid-exchange moves nothing.
func TestMessageInMidExchangeTrimsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nap := (&sleeper{}).tool("nap", nil)
		h := newHarness(t, "steps: [{calls: [{name: sized, arguments: {n: 20000}}, {name: nap, arguments: {ms: 30000}}]}, {calls: [{name: sized, arguments: {n: 10}}]}, {text: a}]", sized, nap)
		key := h.start("go")
		go func() {
			time.Sleep(5 * time.Second) // before the lease is renewed
			if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: "by the way"}); err != nil {
				t.Error(err)
			}
		}()
		h.drive(key)
		rep := h.report(key)
		if len(rep.Exchanges) != 1 || len(rep.ModelCalls) != 3 {
			t.Fatalf("%+v", rep.Exchanges)
		}
		for i, m := range rep.ModelCalls {
			if len(m.Breaks) > 0 {
				t.Errorf("call %d: %v", i+1, m.Breaks)
			}
		}
	})
}

// smallModel has a context of so many characters.
type smallModel struct {
	psych.Model
	chars int
}

func (m smallModel) Generate(ctx context.Context, req *psych.Request, on func(psych.Delta)) (*psych.Response, error) {
	n := req.Tools.Chars + req.System[0].Chars + req.System[1].Chars + req.Tail.Chars
	for _, w := range req.History {
		n += w.Chars
	}
	if n > m.chars {
		return nil, &psych.ModelError{Status: 400, Overflow: true, Message: "too long"}
	}
	return m.Model.Generate(ctx, req, on)
}

// A full context trims everything before the current turn, once; then the
// exchange is exhausted, and the next message works.
func TestContextIsTrimmed(t *testing.T) {
	script := `
steps:
- calls: [{name: sized, arguments: {n: 9000}}]
- calls: [{name: sized, arguments: {n: 9000}}]
- calls: [{name: sized, arguments: {n: 9000}}]
- {text: fine}
`
	for _, name := range []string{"said by the provider", "by the Spec's limit"} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, script, sized)
			h.spec.Limits.HistoryMinSavingTokens = 1
			if name == "by the Spec's limit" {
				h.spec.Limits.ContextTokens = 4200
			} else {
				h.o.Models = psych.OneModel(smallModel{h.model, 4 * 4200})
				rt, err := psych.New(h.tap, &h.o)
				if err != nil {
					t.Fatal(err)
				}
				h.rt = rt
			}
			key := h.start("go")
			h.drive(key)
			rep := h.report(key)
			if rep.Status != psych.StatusExhausted || rep.Exchanges[0].Code != "context" {
				t.Fatalf("%s %+v", rep.Status, rep.Exchanges)
			}
			trims := 0
			for _, m := range rep.ModelCalls {
				for _, b := range m.Breaks {
					if b.Cause != psych.ContextTrimmed {
						t.Errorf("break %v", b)
					}
					trims++
				}
			}
			if trims != 1 {
				t.Errorf("trimmed %d times: %+v", trims, rep.ModelCalls)
			}
			h.send(key, "next")
			if rep := h.report(key); rep.Status != psych.StatusCompleted || rep.Exchanges[1].Answer != "fine" {
				t.Errorf("the next message: %s %+v", rep.Status, rep.Exchanges)
			}
		})
	}
}
