package psych_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psych-go/psych-go/internal/cachesim"
	"github.com/psych-go/psych-go/psych"
)

// cacheProviders are those whose rules a mission is judged by, with every way
// of marking that their adapters have.
var cacheProviders = []string{
	"anthropic:claude-sonnet-5", "anthropic:claude-opus-4-6?cache_ttl=1h", "anthropic:claude-opus-5-5", "bedrock:anthropic.claude-haiku-4-5",
	"openai:gpt-4.1", "openai:gpt-5.5?api=responses", "openai:gpt-5.6?cache_breakpoints=true", "openai:gpt-5.6?api=responses&cache_breakpoints=true",
}

// A cacheMission is a conversation of three exchanges and 40 turns about two
// servers, one of which changes its tools, and one of which is lost. A turn
// takes 20 seconds, a user two minutes.
type cacheMission struct {
	wide int // calls of the batch of one turn
	size int // characters of a result
}

func (m cacheMission) play(t *testing.T) (*harness, psych.RunKey) {
	t.Helper()
	n, clock := newNetwork(), newClock()
	shop, mail := n.add("shop", remoteTools("tool", 30, 300)...), n.add("mail", remoteTools("box", 117, 300)...)
	mail.Preload = no()
	look := psych.NewTool("look", "Looks up an item.", func(_ context.Context, _ *psych.Call, in struct {
		At int `json:"at"`
	}) (string, error) {
		switch in.At {
		case 9:
			clock.add(time.Minute) // the floor between two listings
			n.change("shop", true, func(s *testServer) { s.tools = append(remoteTools("tool", 29, 300), remoteTool("new", 300)) })
		case 22:
			n.change("mail", false, func(s *testServer) { s.down = fmt.Errorf("gone: %w", psych.ErrSessionLost) })
		}
		if in.At < 1000 { // once a turn
			clock.add(20 * time.Second)
		}
		return strings.Repeat(fmt.Sprintf("item %d; ", in.At), m.size/8+1)[:m.size], nil
	}, nil)
	var steps strings.Builder
	for i := 1; i <= 40; i++ {
		calls := fmt.Sprintf("{name: look, arguments: {at: %d}}", i)
		switch {
		case i == 14 || i == 27 || i == 40:
			fmt.Fprintf(&steps, "- text: 'So much for %d.'\n", i)
			continue
		case i == 5:
			calls += ", {name: list_tools, arguments: {server: mail}}"
		case i%6 == 0:
			calls += ", {name: call_tool, arguments: {server: mail, tool: box_0007, arguments: {text: 'a letter'}}}"
		case i%7 == 0:
			calls += ", {name: shop__tool_0003, arguments: {text: 'an order'}}"
		case i == 20:
			for j := range m.wide - 1 {
				calls += fmt.Sprintf(", {name: look, arguments: {at: %d}}", 1000+j)
			}
		}
		fmt.Fprintf(&steps, "- {text: 'Let me look at %d.', calls: [%s]}\n", i, calls)
	}
	h := newHarness(t, "steps:\n"+steps.String(), look)
	h.spec.Instructions = strings.Repeat("Look before you answer, and say what you saw, in full sentences. ", 120) // 7,800 characters
	h.o.Now, h.o.LeaseTTL = clock.Now, psych.MaxLease
	h.o.Memories = func(context.Context, psych.Scope) (string, error) { return "The user likes short answers.", nil }
	h.withServers(n, shop, mail)
	key := h.start("What is there?")
	h.drive(key)
	for _, text := range []string{"And what else?", "And what is it worth?"} {
		clock.add(2 * time.Minute)
		h.send(key, text)
	}
	rep := h.report(key)
	if rep.Status != psych.StatusCompleted || rep.Turns != 40 || len(rep.Exchanges) != 3 {
		t.Fatalf("%s, %d turns: %+v", rep.Status, rep.Turns, rep.Exchanges)
	}
	return h, key
}

// By the rules that providers document nearly all of what a request has in
// common with the one before it is read from the cache.
func TestCacheHitRates(t *testing.T) {
	for _, c := range []struct {
		name string
		m    cacheMission
		rate float64
	}{
		{"40 turns", cacheMission{wide: 1, size: 400}, 0.97},
		{"30 calls in a batch", cacheMission{wide: 30, size: 400}, 0.95},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, key := c.m.play(t)
			news := 0
			for _, s := range h.model.Requests() {
				if tail := string(s.Zone(4)); strings.Contains(tail, "Changed: shop") {
					news++
				}
			}
			if news != 1 {
				t.Errorf("the model was told %d times that shop changed", news)
			}
			for _, name := range cacheProviders {
				rep := h.simulate(key, name)
				if strings.Contains(name, "5.6") || !strings.HasPrefix(name, "openai:") {
					wantRead(t, rep, nil)
				}
				if len(rep.Calls) != 40 || rep.HitRate == nil || *rep.HitRate <= c.rate {
					t.Errorf("%s: %d calls, %.2f %%: want over %.0f %%", name, len(rep.Calls), 100**rep.HitRate, 100*c.rate)
				}
				t.Logf("%-50s %.2f %%, read %d, written %d + %d, uncached %d, cost %.3f", name, 100**rep.HitRate, rep.Total.Read, rep.Total.Written, rep.Total.Hour, rep.Total.Uncached, rep.Relative)
			}
		})
	}
}

func (h *harness) simulate(key psych.RunKey, provider string) *cachesim.Report {
	h.t.Helper()
	p, err := cachesim.New(provider)
	if err != nil {
		h.t.Fatal(err)
	}
	rep, err := p.Run(context.Background(), h.rt, key)
	if err != nil {
		h.t.Fatal(err)
	}
	return rep
}

// wantRead checks that each request reads what the one before it read or wrote,
// or of those in except at least so many tokens.
func wantRead(t *testing.T, rep *cachesim.Report, except map[int]int) {
	t.Helper()
	for i := 1; i < len(rep.Calls); i++ {
		c, before := rep.Calls[i], rep.Calls[i-1]
		want, ok := except[c.Call]
		if !ok {
			want = before.Read + before.Written + before.Hour
		}
		if c.Read < want {
			t.Errorf("%s: call %d reads %d tokens, want at least %d: %+v behind %+v", rep.Provider, c.Call, c.Read, want, c.Use, before.Use)
		}
	}
}

// markedProviders are those that read what is marked alone.
var markedProviders = []string{"anthropic:claude-sonnet-5", "anthropic:claude-opus-5-5", "bedrock:anthropic.claude-opus-5", "openai:gpt-5.6?cache_breakpoints=true"}

// wideSteps are n calls of a batch.
func wideSteps(n, chars int) string {
	calls := make([]string, n)
	for i := range calls {
		calls[i] = fmt.Sprintf("{name: sized, arguments: {n: %d}}", chars)
	}
	return "{text: 'All of them.', calls: [" + strings.Join(calls, ", ") + "]}"
}

// A try that failed has cached nothing: behind a wide batch the next one is
// marked where the last answered request ended.
func TestCacheAfterAFailedTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: ["+wideSteps(1, 500)+", "+wideSteps(30, 400)+", {fail: 529, times: 2}, {text: done}, {text: and done}]", sized)
		h.spec.Instructions = strings.Repeat("Be brief, and say what you saw. ", 300)
		key := h.start("go")
		h.drive(key)
		h.send(key, "more")
		calls, err := replay(h.rt, key)
		sent := h.model.Requests()
		if err != nil || len(calls) != len(sent) {
			t.Fatalf("%d calls of %d: %v", len(calls), len(sent), err)
		}
		for i, c := range calls {
			if err := sameRequest(&sent[i].Request, c.Request); err != nil {
				t.Errorf("call %d: %v", i+1, err)
			}
		}
		for _, name := range markedProviders {
			rep := h.simulate(key, name)
			if len(rep.Calls) != 4 || rep.LeftOut != 2 {
				t.Errorf("%s: %d calls, %d left out", name, len(rep.Calls), rep.LeftOut)
			}
			wantRead(t, rep, nil)
		}
	})
}

// Where history is trimmed, all in front of what changed is still read: it is
// marked where the request ended whose answer asked for it.
func TestCacheBehindATrim(t *testing.T) {
	h := newHarness(t, "steps: ["+strings.Repeat(wideSteps(1, 1500)+", ", 8)+wideSteps(30, 400)+", "+wideSteps(25, 4500)+", {text: one}, {text: two}, {text: three}]", sized)
	h.spec.Instructions = strings.Repeat("Be brief, and say what you saw. ", 300)
	h.spec.Limits.LargeResultTokens, h.spec.Limits.BatchResultTokens = 100_000, 100_000
	h.spec.Limits.HistoryMarginPercent = 1
	key := h.start("go")
	h.drive(key)
	h.send(key, "more")
	h.restart()
	h.send(key, "and more")
	if got := fmt.Sprint(h.report(key).ModelCalls[11].Breaks); got != "[{3 history_trimmed}]" {
		t.Fatalf("breaks %s", got)
	}
	for _, name := range markedProviders {
		rep := h.simulate(key, name)
		tenth := rep.Calls[9] // its answer asked for what is trimmed
		wantRead(t, rep, map[int]int{12: tenth.Read + tenth.Written})
		if first := rep.Calls[0]; rep.Calls[11].Read < 3*first.Input()/2 {
			t.Errorf("%s: %+v, and at first %+v", name, rep.Calls[11].Use, first.Use)
		}
	}
}
