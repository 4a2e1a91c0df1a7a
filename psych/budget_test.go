package psych_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
)

// priced is a list for model "priced": a prompt token takes a thousandth of a
// dollar, one that was read from the cache a tenth of that, a completion token
// a hundredth of a dollar.
func priced(t *testing.T) *psych.Prices {
	t.Helper()
	p, err := psych.ParsePrices([]byte(`{"models": [{"models": ["priced"], "input": 1000, "cache_read": 100, "cache_write": 1000, "cache_write_hour": 1000, "output": 1000}]}`))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// spender is a harness whose model asks for a tool again and again, and says
// each time that it used so much.
func spender(t *testing.T, usage string) *harness {
	h := newHarness(t, "steps: [{calls: [{name: echo, arguments: {text: x}}], usage: "+usage+", repeat: {until: never}}]", echo)
	h.spec.Model = "priced"
	h.o.Prices = priced(t)
	h.restart()
	return h
}

// Which limit ended an exchange is in the log, and before which call.
func TestBudgets(t *testing.T) {
	for _, c := range []struct {
		limits psych.Limits
		code   string
		turns  int
		reason string
	}{
		{psych.Limits{Turns: 6}, "turns", 6, "the limit of 6 turns is reached"},
		{psych.Limits{Tokens: 300}, "tokens", 3, "this exchange used 300 tokens, of a limit of 300"},
		{psych.Limits{Tokens: 301}, "tokens", 4, "this exchange used 400 tokens, of a limit of 301"},
		{psych.Limits{UncachedTokens: 100}, "uncached_tokens", 3, "this exchange used 120 uncached prompt tokens, of a limit of 100"},
		{psych.Limits{OutputTokens: 50}, "output_tokens", 5, "this exchange used 50 completion tokens, of a limit of 50"},
		// 40 at a thousandth, 50 at a tenth of it, 10 at a thousandth: $0.055 a call.
		{psych.Limits{CostUSD: 0.11}, "cost_usd", 2, "this exchange used $0.11, of a limit of $0.11"},
		{psych.Limits{CostUSD: 0.12}, "cost_usd", 3, "this exchange used $0.165, of a limit of $0.12"},
		{psych.Limits{Run: psych.Budget{Tokens: 300}}, "run.tokens", 3, "this Run used 300 tokens, of a limit of 300"},
		{psych.Limits{Run: psych.Budget{UncachedTokens: 41}}, "run.uncached_tokens", 2, "this Run used 80 uncached prompt tokens, of a limit of 41"},
		{psych.Limits{Run: psych.Budget{OutputTokens: 1}}, "run.output_tokens", 1, "this Run used 10 completion tokens, of a limit of 1"},
		{psych.Limits{Run: psych.Budget{CostUSD: 0.000001}}, "run.cost_usd", 1, "this Run used $0.055, of a limit of $0.000001"},
		{psych.Limits{Tokens: 300, CostUSD: 0.11, Run: psych.Budget{CostUSD: 0.055}}, "run.cost_usd", 1, "this Run used $0.055, of a limit of $0.055"},
		{psych.Limits{Turns: 2, Tokens: 200, CostUSD: 0.11}, "turns", 2, "the limit of 2 turns is reached"},
	} {
		h := spender(t, "{input: 90, cached: 50, output: 10}")
		h.spec.Limits = c.limits
		rep := h.run()
		x := rep.Exchanges[0]
		if rep.Status != psych.StatusExhausted || x.Closed != psych.StatusExhausted || x.Code != c.code || rep.Turns != c.turns || x.Reason != c.reason {
			t.Errorf("%+v: %s after %d turns, %+v", c.limits, rep.Status, rep.Turns, x)
		}
		if len(rep.UnboundLimits) > 0 {
			t.Errorf("%+v: %v can't hold", c.limits, rep.UnboundLimits)
		}
	}
}

// A Run that has spent its budget makes no call any more, however often it is
// asked and whoever drives it; an exchange's budget begins anew with the next.
func TestBudgetOfARun(t *testing.T) {
	h := spender(t, "{input: 90, cached: 50, output: 10}")
	h.spec.Limits = psych.Limits{CostUSD: 0.11, Run: psych.Budget{CostUSD: 0.2}}
	key := h.start("go")
	h.drive(key)
	h.send(key, "more")
	h.restart()
	h.send(key, "and more")
	h.send(key, "still more")
	rep := h.report(key)
	var how []string
	for _, x := range rep.Exchanges {
		how = append(how, fmt.Sprintf("%s after %d turns for %v", x.Code, x.Turns, *x.Spend.CostUSD))
	}
	want := "[cost_usd after 2 turns for 0.11 cost_usd after 2 turns for 0.11 run.cost_usd after 0 turns for 0 run.cost_usd after 0 turns for 0]"
	if fmt.Sprint(how) != want || len(h.model.Requests()) != 4 {
		t.Errorf("%d requests: %v, want %s", len(h.model.Requests()), how, want)
	}
}

// The same where one worker drives two exchanges in one go.
func TestBudgetsInOneGo(t *testing.T) {
	h := spender(t, "{input: 90, cached: 50, output: 10}")
	h.spec.Limits = psych.Limits{CostUSD: 0.11, Run: psych.Budget{CostUSD: 0.6}}
	key := h.start("go")
	sent := false
	out, err := h.rt.Drive(context.Background(), key, &psych.DriveOptions{Observe: func(o psych.Observation) {
		if o.Record == nil || o.Record.Event.Kind() != psych.KindExchangeClosed || sent {
			return
		}
		sent = true
		if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: "more"}); err != nil {
			t.Error(err)
		}
	}})
	rep := h.report(key)
	if err != nil || out != psych.Closed || rep.Attempts != 1 || len(rep.Exchanges) != 2 {
		t.Fatalf("%v, %v, %d attempts: %+v", out, err, rep.Attempts, rep.Exchanges)
	}
	for _, x := range rep.Exchanges {
		if x.Code != "cost_usd" || x.Turns != 2 {
			t.Errorf("%+v", x)
		}
	}
}

// What is not known is counted as nothing, said to be so, and bounded by turns.
func TestUnknownCost(t *testing.T) {
	all := psych.Limits{Turns: 4, Tokens: 1000, UncachedTokens: 1000, OutputTokens: 1000, CostUSD: 1, Run: psych.Budget{Tokens: 1000, UncachedTokens: 1000, OutputTokens: 1000, CostUSD: 1}}
	for _, c := range []struct {
		name, usage, model, unbound, text string
	}{
		{"no usage", "{}", "priced", "tokens uncached_tokens output_tokens cost_usd run.tokens run.uncached_tokens run.output_tokens run.cost_usd", "cost unknown\nlimits that can't hold, since usage or price is unknown: tokens, "},
		{"no price", "{input: 90, cached: 50, output: 10}", "other", "cost_usd run.cost_usd", "cost unknown\n"},
		{"no model", "{input: 90, cached: 50, output: 10}", "", "cost_usd run.cost_usd", "cost unknown\n"},
		{"no cached tokens", "{input: 90, output: 10}", "priced", "uncached_tokens cost_usd run.uncached_tokens run.cost_usd", "cost unknown\n"},
		{"no completion tokens", "{input: 90, cached: 50}", "priced", "tokens output_tokens cost_usd run.tokens run.output_tokens run.cost_usd", "cost unknown\n"},
	} {
		h := spender(t, c.usage)
		h.spec.Model = c.model
		h.spec.Limits = all
		rep := h.run()
		if rep.Exchanges[0].Code != "turns" || rep.Turns != 4 {
			t.Errorf("%s: %+v", c.name, rep.Exchanges)
		}
		if s := rep.Totals.Spend; s.CostUSD != nil || s.KnownCostUSD != nil || s.UnpricedCalls != 4 || rep.Exchanges[0].Spend.CostUSD != nil || rep.ModelCalls[0].CostUSD != nil {
			t.Errorf("%s: %+v", c.name, s)
		}
		if got := strings.Join(rep.UnboundLimits, " "); got != c.unbound {
			t.Errorf("%s: %s can't hold, want %s", c.name, got, c.unbound)
		}
		var text bytes.Buffer
		if err := rep.WriteText(&text); err != nil || !strings.Contains(text.String(), c.text) {
			t.Errorf("%s: %v, %s", c.name, err, text.String())
		}
		b, err := json.Marshal(rep)
		if err != nil || !bytes.Contains(b, []byte(`"cost_usd":null`)) {
			t.Errorf("%s: %v, no cost_usd that is null in %s", c.name, err, b)
		}
	}
	// With no limits nothing is said of them.
	h := spender(t, "{}")
	h.spec.Limits = psych.Limits{Turns: 2}
	if rep := h.run(); len(rep.UnboundLimits) > 0 {
		t.Errorf("%v", rep.UnboundLimits)
	}
}

// What is known of a cost that is not known as a whole still binds.
func TestPartlyKnownCost(t *testing.T) {
	step := "{calls: [{name: echo, arguments: {text: x}}], usage: %s}"
	var steps []string
	for _, usage := range []string{"{input: 90, cached: 50, output: 10}", "{}", "{input: 90, cached: 50, output: 10}", "{}", "{}"} {
		steps = append(steps, fmt.Sprintf(step, usage))
	}
	h := newHarness(t, "steps: ["+strings.Join(steps, ", ")+"]", echo)
	h.spec.Model, h.o.Prices = "priced", priced(t)
	h.spec.Limits.CostUSD = 0.1
	h.restart()
	rep := h.run()
	s := rep.Totals.Spend
	if rep.Exchanges[0].Code != "cost_usd" || rep.Turns != 3 || s.CostUSD != nil || s.KnownCostUSD == nil || *s.KnownCostUSD != 0.11 || s.UnpricedCalls != 1 || s.UnknownCalls != 1 {
		t.Errorf("%+v, %+v", rep.Exchanges, s)
	}
	if *s.CachedTokens != 100 || *s.UncachedTokens != 80 || s.PromptTokens != 180 || s.CompletionTokens != 20 {
		t.Errorf("%+v", s)
	}
	var text bytes.Buffer
	if err := rep.WriteText(&text); err != nil || !strings.Contains(text.String(), "cost unknown ($0.11 and that of 1 call)\nlimits that can't hold, since usage or price is unknown: cost_usd\n") {
		t.Errorf("%v, %s", err, text.String())
	}
}

// Prices are no part of a log: with others it folds to the same Run, whose
// report shows what it costs by them.
func TestPricesAreNotInTheLog(t *testing.T) {
	h := spender(t, "{input: 90, cached: 50, output: 10}")
	h.spec.Limits.CostUSD = 0.11
	key := h.start("go")
	h.drive(key)
	before := h.report(key)
	other, err := psych.ParsePrices([]byte(`{"models": [{"models": ["*"], "input": 1, "cache_read": 1, "cache_write": 1, "cache_write_hour": 1, "output": 1}]}`))
	if err != nil {
		t.Fatal(err)
	}
	h.o.Prices = other
	h.restart()
	after := h.report(key)
	if a, b := before.Exchanges[0], after.Exchanges[0]; a.Code != "cost_usd" || a.Code != b.Code || a.Reason != b.Reason || *before.Totals.CostUSD != 0.11 || *after.Totals.CostUSD != 0.0002 {
		t.Errorf("before %+v, after %+v", a, b)
	}
	h.send(key, "more") // two turns' worth is far below the limit now
	if rep := h.report(key); rep.Exchanges[1].Code != "turns" || rep.Exchanges[1].Turns != 100 {
		t.Errorf("%+v", rep.Exchanges[1])
	}
}

// A deployment's own model has a name in the log, and so a price.
func TestDefaultModel(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "prices.json")
	play := filepath.Join(dir, "play.yaml")
	for name, text := range map[string]string{
		file: `{"models": [{"models": ["script:*"], "input": 1, "cache_read": 1, "cache_write": 1, "cache_write_hour": 1, "output": 1}]}`,
		play: "steps: [{text: done, usage: {input: 900000, output: 100000}}]",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"PSYCH_MODEL": "script:" + play, "PSYCH_PRICES": file}
	var b psych.Backends
	script.Register(&b)
	rt, err := b.FromEnv(t.Context(), func(name string) string { return env[name] }, memory.New(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := rt.Ask(t.Context(), psych.Scope{Tenant: "t"}, &psych.Spec{Name: "n"}, "go", nil)
	if err != nil {
		t.Fatal(err)
	}
	rep, err := rt.Report(t.Context(), res.Run)
	if err != nil {
		t.Fatal(err)
	}
	if m := rep.ModelCalls[0]; m.Model != env["PSYCH_MODEL"] || m.CostUSD == nil || *m.CostUSD != 1 || *rep.Totals.CostUSD != 1 {
		t.Errorf("%+v, %+v", m, rep.Totals)
	}
	for name, text := range map[string]string{"a file with a hole": `{"models": [{"models": ["x"]}]}`, "no file": ""} {
		bad := filepath.Join(dir, "bad.json")
		want := psych.ErrInvalid
		if text == "" {
			bad, want = filepath.Join(dir, "none.json"), os.ErrNotExist
		} else if err := os.WriteFile(bad, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		env["PSYCH_PRICES"] = bad
		if _, err := b.FromEnv(t.Context(), func(name string) string { return env[name] }, memory.New(nil), nil); !errors.Is(err, want) || !strings.Contains(err.Error(), "PSYCH_PRICES") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Budgets of a Spec are checked as its other limits are.
func TestBudgetChecks(t *testing.T) {
	spec, err := psych.ParseSpec([]byte(`{"name": "n", "limits": {"cost_usd": 0.25, "uncached_tokens": 7, "history_margin_percent": 10, "run": {"tokens": 5, "cost_usd": 2}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if l := spec.Limits; l.CostUSD != 0.25 || l.UncachedTokens != 7 || l.HistoryMarginPercent != 10 || l.Run != (psych.Budget{Tokens: 5, CostUSD: 2}) {
		t.Errorf("%+v", l)
	}
	_, err = psych.ParseSpec([]byte(`{"name": "n", "limits": {"cost_usd": -0.5, "uncached_tokens": -1, "output_tokens": -2, "history_margin_percent": 10001, "run": {"tokens": -3, "uncached_tokens": -4, "output_tokens": -5, "cost_usd": 1e7, "turns": 3}}}`))
	for _, want := range []string{
		"limits.cost_usd: is -0.5: want US dollars up to 1000000, or 0 for no limit", "limits.uncached_tokens: is -1", "limits.output_tokens: is -2",
		"limits.history_margin_percent: is 10001: want 1 to 10000, or 0 for the default", "limits.run.tokens: is -3", "limits.run.uncached_tokens: is -4", "limits.run.output_tokens: is -5",
		"limits.run.cost_usd: is 1e+07: want US dollars", "limits.run.turns: unknown field: want one of cost_usd, output_tokens, tokens, uncached_tokens",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// relativeCost is what a Run's prompts cost, in thousandths of a character of
// input that is not cached: reading a tenth of what stands in the request
// before it, writing a quarter more than that for the rest.
func relativeCost(sent []script.Sent) (cost, chars int) {
	before := map[psych.Digest]bool{}
	for _, r := range sent {
		now := map[psych.Digest]bool{}
		for _, w := range append([]psych.Wire{r.Request.Tools, r.Request.System[0], r.Request.System[1]}, r.Request.History...) {
			price := 1250
			if now[w.Chain] = true; before[w.Chain] { // a chain that is equal is an equal prefix
				price = 100
			}
			cost += price * w.Chars
			chars += w.Chars
		}
		cost += 1000 * r.Request.Tail.Chars
		chars += r.Request.Tail.Chars
		before = now
	}
	return cost, chars
}

// a conversation is what a model asks for: sizes of results a turn, and between
// exchanges a wait.
type conversation struct {
	exchanges [][]int
	wait      time.Duration
	limits    psych.Limits
	keeps     bool // the provider keeps its cache for a day
}

// talk plays a conversation, and returns the handles that each exchange
// trimmed as it opened.
func (c *conversation) talk(t *testing.T) (h *harness, trimmed []string) {
	t.Helper()
	var steps []string
	for _, turns := range c.exchanges {
		for _, n := range turns {
			steps = append(steps, fmt.Sprintf("{calls: [{name: sized, arguments: {n: %d}}]}", n))
		}
		steps = append(steps, "{text: done}")
	}
	h = newHarness(t, "steps: ["+strings.Join(steps, ", ")+"]", sized)
	h.spec.Limits = c.limits
	if c.keeps {
		h.o.Models = psych.OneModel(keepingModel{h.model})
		rt, err := psych.New(h.tap, &h.o)
		if err != nil {
			t.Fatal(err)
		}
		h.rt = rt
	}
	key := h.start("go")
	h.drive(key)
	for range c.exchanges[1:] {
		time.Sleep(c.wait)
		h.send(key, "next")
	}
	last := "no message"
	for r, err := range h.rt.Records(context.Background(), key, psych.Pos{}) {
		if err != nil {
			t.Fatal(err)
		}
		switch e := r.Event.(type) {
		case *psych.UserMessage:
			last = e.ID
		case *psych.ModelCallStarted:
			if last != "" {
				trimmed = append(trimmed, strings.Join(e.Trimmed, " "))
			} else if len(e.Trimmed) > 0 {
				t.Errorf("turn %d, which opens no exchange, trims %v", e.Turn, e.Trimmed)
			}
			last = ""
		}
	}
	return h, trimmed
}

// Trimming is done where it pays, from where it pays. Reported are characters
// sent and relative cost without trimming, with trimming whenever it saves the
// minimum, and with trimming that pays.
func TestTrimmingPays(t *testing.T) {
	small := func(n int, sizes ...int) []int { // then n results that are too small to be trimmed
		for range n {
			sizes = append(sizes, 3900)
		}
		return sizes
	}
	var long [][]int
	for range 12 {
		long = append(long, []int{20_000, 3000})
	}
	var growing [][]int
	for range 25 {
		growing = append(growing, small(1, 8000))
	}
	for _, c := range []struct {
		name string
		conversation
		want string // what is trimmed, an exchange
		pays int    // percent that it saves of the cost without trimming, at the least
		over int    // percent that it saves of the cost of trimming whenever that saves the minimum, at the least
	}{
		{"a large result before many small ones, and one more exchange", conversation{exchanges: [][]int{small(12, 20_000), {}}}, "[ ]", 0, 15},
		{"the same an hour and a half later", conversation{exchanges: [][]int{small(12, 20_000), {}}, wait: 90 * time.Minute}, "[ out_c1_1]", 0, 0},
		{"the same where the cache is kept for a day", conversation{exchanges: [][]int{small(12, 20_000), {}}, wait: 90 * time.Minute, keeps: true}, "[ ]", 0, 0},
		{"a large result at the end", conversation{exchanges: [][]int{append(small(12), 20_000), small(2)}}, "[ out_c13_1]", 1, 0},
		{"large results at both ends", conversation{exchanges: [][]int{append(small(12, 20_000), 20_000), small(2)}}, "[ out_c14_1]", 1, 8},
		{"both would pay, and the last alone pays more", conversation{exchanges: [][]int{append(small(4, 20_000), 20_000), small(2)}, limits: psych.Limits{HistoryMarginPercent: 1}}, "[ out_c6_1]", 2, 0},
		{"twelve exchanges with a large result each", conversation{exchanges: long}, "[  out_c1_1 out_c4_1 out_c7_1 out_c10_1 out_c13_1 out_c16_1 out_c19_1 out_c22_1 out_c25_1 out_c28_1 out_c31_1]", 30, -2},
		{"no margin is enough", conversation{exchanges: [][]int{{18_200}, {}}, limits: psych.Limits{HistoryMarginPercent: 10_000}}, "[ ]", 0, 0},
		{"the least margin", conversation{exchanges: [][]int{{18_200}, {}}, limits: psych.Limits{HistoryMarginPercent: 1}}, "[ out_c1_1]", -50, 0},
		{"twenty-five exchanges of middling results", conversation{exchanges: growing}, "", 15, -2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, trimmed := c.talk(t)
				if got := "[" + strings.Join(trimmed, " ") + "]"; c.want != "" && got != c.want {
					t.Errorf("trimmed %s, want %s", got, c.want)
				}
				never := c.conversation
				never.limits.HistoryMinSavingTokens = 1 << 30
				n, nothing := never.talk(t)
				if strings.TrimSpace(strings.Join(nothing, "")) != "" {
					t.Fatalf("trimmed %q", nothing)
				}
				psych.UseProjection(t, 1)
				always := c.conversation
				always.limits.HistoryMarginPercent = 0
				a, _ := always.talk(t)
				cost, chars := relativeCost(h.model.Requests())
				neverCost, neverChars := relativeCost(n.model.Requests())
				alwaysCost, alwaysChars := relativeCost(a.model.Requests())
				t.Logf("characters, relative cost: never %d, %d; whenever it saves %d, %d; where it pays %d, %d", neverChars, neverCost/1000, alwaysChars, alwaysCost/1000, chars, cost/1000)
				if c.wait > 0 {
					return // the formula knows no time
				}
				if cost*100 > neverCost*(100-c.pays) {
					t.Errorf("it costs %d, and without trimming %d: want %d %% less", cost/1000, neverCost/1000, c.pays)
				}
				if cost*100 > alwaysCost*(100-c.over) {
					t.Errorf("it costs %d, and trimming whenever it saves %d: want %d %% less", cost/1000, alwaysCost/1000, c.over)
				}
			})
		})
	}
}
