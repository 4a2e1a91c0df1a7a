package cachesim

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/psych-go/psych-go/psych"
)

var began = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func simulator(t *testing.T, name string) *Simulator {
	t.Helper()
	p, err := New(name)
	if err != nil {
		t.Fatal(err)
	}
	return p.Simulator()
}

// want sends a body so long behind the begin.
func (s *Simulator) want(t *testing.T, after time.Duration, body string, want Use) {
	t.Helper()
	got, err := s.SendBody(began.Add(after), []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("after %v: %+v, want %+v", after, got, want)
	}
}

const (
	short = `,"cache_control":{"type":"ephemeral"}`
	long  = `,"cache_control":{"type":"ephemeral","ttl":"1h"}`
)

// text is a block of 4n characters, with what else it holds.
func text(n int, fill, more string) string {
	const around = len(`{"type":"text","text":""}`)
	return `{"type":"text","text":"` + strings.Repeat(fill, 4*n-around) + `"` + more + `}`
}

// anthropic is a body with a system prompt and a user's message.
func anthropic(system string, blocks ...string) string {
	return `{"model":"m","max_tokens":1,"system":[` + system + `],"messages":[{"role":"user","content":[` + strings.Join(blocks, ",") + `]}]}`
}

func TestMarkedPrefixes(t *testing.T) {
	s := simulator(t, "anthropic:claude-opus-4-1") // 1,024 tokens
	a, b, c := text(1000, "a", short), text(24, "b", short), text(50, "c", "")
	s.want(t, 0, anthropic(a), Use{Uncached: 1000}) // too short to be kept
	s.want(t, time.Minute, anthropic(a, b, c), Use{Written: 1024, Uncached: 50})
	s.want(t, 2*time.Minute, anthropic(a, b, c), Use{Read: 1024, Uncached: 50})
	s.want(t, 3*time.Minute, anthropic(a, b, text(50, "c", short), text(7, "d", "")), Use{Read: 1024, Written: 50, Uncached: 7})
	s.want(t, 4*time.Minute, anthropic(text(1000, "A", short), b, c), Use{Written: 1024, Uncached: 50})
	// The first was read last after 3 minutes, and holds for 5 of them.
	s.want(t, 8*time.Minute, anthropic(a, b, c), Use{Read: 1024, Uncached: 50})
	s.want(t, 13*time.Minute+time.Second, anthropic(a, b, c), Use{Written: 1024, Uncached: 50})
}

func TestLookback(t *testing.T) {
	for _, c := range []struct {
		blocks int // behind the one that is cached
		hits   bool
	}{{19, true}, {20, false}} {
		s := simulator(t, "anthropic:claude-sonnet-5")
		first, more := text(2000, "a", ""), make([]string, c.blocks)
		for i := range more {
			more[i] = text(10, "b", "")
		}
		s.want(t, 0, anthropic(first, text(10, "x", short)), Use{Written: 2010})
		more[len(more)-1] = text(10, "b", short)
		want := Use{Written: 2010 + 10*c.blocks}
		if c.hits {
			want = Use{Read: 2010, Written: 10 * c.blocks}
		}
		s.want(t, 1, anthropic(first, append([]string{text(10, "x", "")}, more...)...), want)
	}
	// A second marker where the request before ended finds it however wide the
	// batch is.
	s := simulator(t, "anthropic:claude-sonnet-5")
	s.want(t, 0, anthropic(text(2000, "a", ""), text(10, "x", short)), Use{Written: 2010})
	many := make([]string, 40)
	for i := range many {
		many[i] = text(10, "b", "")
	}
	many[39] = text(10, "b", short)
	s.want(t, 1, anthropic(text(2000, "a", ""), append([]string{text(10, "x", short)}, many...)...), Use{Read: 2010, Written: 400})
}

func TestTimesToLive(t *testing.T) {
	s := simulator(t, "bedrock:anthropic.claude-sonnet-4-5")
	a, b := text(2000, "a", long), text(100, "b", short)
	s.want(t, 0, anthropic(a, b), Use{Hour: 2000, Written: 100})
	s.want(t, 50*time.Minute, anthropic(a, b), Use{Read: 2000, Written: 100})
	s.want(t, 105*time.Minute, anthropic(a, b), Use{Read: 2000, Written: 100})
	s.want(t, 166*time.Minute, anthropic(a, b), Use{Hour: 2000, Written: 100})
	if got, want := s.p.Prices.Cost(Use{Read: 1000, Written: 100, Hour: 10, Uncached: 1}), 100+125+20+1.0; got != want {
		t.Errorf("cost %v, want %v", got, want)
	}
}

func TestMarkersThatAreRefused(t *testing.T) {
	mark := text(10, "a", short)
	for name, body := range map[string]string{
		"a fifth":               anthropic(mark, mark, mark, mark, mark),
		"an hour behind less":   anthropic(mark, text(10, "b", long)),
		"an unknown time":       anthropic(text(10, "a", `,"cache_control":{"type":"ephemeral","ttl":"2h"}`)),
		"nothing":               `{"messages":[]}`,
		"what is no JSON":       `{`,
		"a message of no kind":  `{"messages":[7]}`,
		"a list that is broken": `{"messages":[{"role":"user","content":[7,}]}]}`,
	} {
		if u, err := simulator(t, "anthropic").SendBody(began, []byte(body)); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("%s: %+v, %v", name, u, err)
		}
	}
	s := simulator(t, "anthropic")
	s.want(t, time.Minute, anthropic(mark, mark, mark, mark), Use{Uncached: 40})
	if _, err := s.SendBody(began, []byte(anthropic(mark))); !errors.Is(err, psych.ErrInvalid) {
		t.Errorf("a request before the last: %v", err)
	}
}

// Tools stand first; how a model is to reason is a part of its messages alone.
func TestWhatAPrefixIsOf(t *testing.T) {
	body := func(model, tools, system, thinking string) string {
		return fmt.Sprintf(`{"model":%q,"thinking":%s,"tools":[%s],"system":[%s],"messages":[{"role":"user","content":[%s]}]}`, model, thinking, tools, system, text(10, "u", short))
	}
	const none, some = `{"type":"disabled"}`, `{"type":"adaptive"}`
	tool, system := text(1500, "t", ""), text(500, "s", short)
	for name, c := range map[string]struct {
		second string
		want   Use
	}{
		"the same":       {body("m", tool, system, none), Use{Read: 2010}},
		"other thinking": {body("m", tool, system, some), Use{Read: 2000, Written: 10}},
		"another model":  {body("n", tool, system, none), Use{Written: 2010}},
		"another tool":   {body("m", text(1500, "T", ""), system, none), Use{Written: 2010}},
		"a moved tool":   {body("m", text(1490, "t", "")+","+text(10, "n", ""), system, none), Use{Written: 2010}},
	} {
		t.Run(name, func(t *testing.T) {
			s := simulator(t, "anthropic")
			s.want(t, 0, body("m", tool, system, none), Use{Written: 2010})
			s.want(t, 1, c.second, c.want)
		})
	}
}

func TestLeastSizes(t *testing.T) {
	for model, want := range map[string]int{
		"claude-opus-5": 512, "anthropic.claude-opus-5-20260801-v1:0": 512, "claude-mythos-5": 512, "claude-sonnet-5": 1024, "claude-opus-4-8": 1024, "claude-opus-4-7": 4096,
		"claude-opus-4-5-20251101": 4096, "claude-opus-4-1": 1024, "us.anthropic.claude-haiku-4-5-20251001-v1:0": 4096, "claude-3-5-haiku-20241022": 2048, "claude-3-7-sonnet-20250219": 1024,
		"claude-opus-5-1": 4096, "my-own": 4096,
	} {
		if got := leastOf(model); got != want {
			t.Errorf("%s: %d, want %d", model, got, want)
		}
	}
}

// chat is a body of Chat Completions with one message a text.
func chat(more string, texts ...string) string {
	for i := range texts {
		texts[i] = `{"role":"user","content":[` + texts[i] + `]}`
	}
	return `{"model":"m"` + more + `,"messages":[` + strings.Join(texts, ",") + `]}`
}

func TestAutomaticPrefixes(t *testing.T) {
	s := simulator(t, "openai:gpt-4.1")
	s.want(t, 0, chat("", text(1000, "a", "")), Use{Uncached: 1000})
	s.want(t, 1, chat("", text(1000, "a", ""), text(100, "b", "")), Use{Uncached: 1100}) // 1,000 are too few
	s.want(t, 2, chat("", text(1000, "a", ""), text(100, "b", ""), text(100, "c", "")), Use{Read: 1024, Uncached: 176})
	s.want(t, 3, chat("", text(1000, "a", ""), text(100, "b", ""), text(300, "c", "")), Use{Read: 1152, Uncached: 248}) // also a part of a block
	s.want(t, 6*time.Minute, chat("", text(1000, "a", ""), text(300, "b", "")), Use{Uncached: 1300})
	const day = `,"prompt_cache_retention":"24h"`
	s.want(t, 7*time.Minute, chat(day, text(2000, "z", "")), Use{Uncached: 2000})
	s.want(t, 24*time.Hour, chat(day, text(2000, "z", "")), Use{Read: 1920, Uncached: 80})
	s.want(t, 49*time.Hour, chat(day, text(2000, "z", "")), Use{Uncached: 2000})
}

func TestBreakpoints(t *testing.T) {
	const mark, explicit = `,"prompt_cache_breakpoint":{"mode":"explicit"}`, `,"prompt_cache_options":{"mode":"explicit"}`
	s := simulator(t, "openai:gpt-5.6")
	a := text(2000, "a", mark)
	s.want(t, 0, chat(explicit, a, text(100, "b", "")), Use{Written: 2000, Uncached: 100})
	s.want(t, 1, chat(explicit, a, text(100, "c", "")), Use{Read: 2000, Uncached: 100})
	s.want(t, 2, chat(explicit, text(2000, "a", ""), text(100, "c", "")), Use{Uncached: 2100}) // only what is marked is looked at
	s.want(t, 30*time.Minute, chat(explicit, a, text(100, "c", "")), Use{Read: 2000, Uncached: 100})
	s.want(t, 61*time.Minute, chat(explicit, a, text(100, "c", "")), Use{Written: 2000, Uncached: 100})
	// For longer where it is asked for.
	const half = `,"prompt_cache_options":{"mode":"explicit","ttl":"12h"}`
	s = simulator(t, "openai:gpt-5.6")
	s.want(t, 0, chat(half, a, text(100, "b", "")), Use{Written: 2000, Uncached: 100})
	s.want(t, 12*time.Hour, chat(half, a, text(100, "c", "")), Use{Read: 2000, Uncached: 100})
	s.want(t, 25*time.Hour, chat(half, a, text(100, "c", "")), Use{Written: 2000, Uncached: 100})
	// Without explicit the newest message is a breakpoint too, and what it ends
	// with counts: a text that is not sent again there spoils it.
	s = simulator(t, "openai:gpt-5.6")
	s.want(t, 0, chat("", text(2000, "a", ""), text(10, "t", "")), Use{Written: 2010})
	s.want(t, 1, chat("", text(2000, "a", ""), text(20, "b", "")), Use{Written: 2020})
	s.want(t, 2, chat("", text(2000, "a", ""), text(20, "b", ""), text(30, "c", "")), Use{Read: 2020, Written: 30})
	// A request writes four at most, the last.
	s = simulator(t, "openai:gpt-5.6")
	five := []string{text(2000, "a", mark), text(10, "b", mark), text(10, "c", mark), text(10, "d", mark), text(10, "e", mark)}
	s.want(t, 0, chat(explicit, five...), Use{Written: 2040})
	s.want(t, 1, chat(explicit, text(2000, "a", mark)), Use{Written: 2000})
	// However many blocks lie between.
	wide := make([]string, 60)
	for i := range wide {
		wide[i] = text(10, "w", "")
	}
	wide[59] = text(10, "w", mark)
	s.want(t, 2, chat(explicit, append([]string{text(2000, "a", mark)}, wide...)...), Use{Read: 2000, Written: 600})
	// A model's own text bears none.
	if r, err := parse([]byte(`{"messages":[{"role":"assistant","content":[` + text(10, "a", mark) + `]}]}`)); err != nil || r.blocks[0].breakpoint {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"anthropic", "bedrock", "openai", "openai:gpt-5.6?api=responses&cache_breakpoints=true&cache_ttl=12h", "openai:gpt-4.1?cache_ttl=24h", "anthropic:claude-opus-5?cache_ttl=1h&system_cache_ttl=1h"} {
		if _, err := New(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", "gemini", "gemini:x", "anthropic:", "anthropic:m?ttl=1h", "anthropic:m?cache_ttl=1d", "openai:m?api=grpc", "openai:m?cache_breakpoints=perhaps", "openai:m?cache_ttl=1h", ":", "openai:m#x"} {
		if _, err := New(name); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
