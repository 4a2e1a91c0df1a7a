package providertest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// A scene is one request to the model of a mission.
type scene struct {
	t tester
	r *Request
}

// shown fails unless the model was shown all of these texts, and the last
// message is one of them.
func (x scene) shown(texts ...string) {
	x.t.Helper()
	for _, s := range texts {
		if !strings.Contains(x.r.Shown, s) {
			x.t.Errorf("request %d does not show %q; its last message is %.1500q", x.r.N, s, x.r.Last)
		}
	}
}

func (x scene) hidden(texts ...string) {
	x.t.Helper()
	for _, s := range texts {
		if strings.Contains(x.r.Shown, s) {
			x.t.Errorf("request %d shows %q", x.r.N, s)
		}
	}
}

// call is one of a tool.
func call(name string, args any) Call {
	raw, err := json.Marshal(args)
	if err != nil {
		panic(err)
	}
	return Call{Name: name, Arguments: string(raw)}
}

type object map[string]any

// through calls a server's tool as a model does that sees what is offered.
func (x scene) through(server, tool string, args object) Call {
	if own := psych.ToolName(server, tool); slices.Contains(x.r.Tools, own) {
		return call(own, args)
	}
	door := psych.ToolName(server, "call")
	if server == "odd-ones" { // which has a tool of that name
		door = psych.ToolName(server, "call_2")
	}
	if slices.Contains(x.r.Tools, door) {
		return call(door, object{"tool": tool, "input": args})
	}
	return call("call_tool", object{"server": server, "tool": tool, "arguments": args})
}

// look searches a server's tools.
func (x scene) look(server, query string) Call {
	if own := psych.ToolName(server, "search"); slices.Contains(x.r.Tools, own) {
		return call(own, object{"query": query})
	}
	return call("list_tools", object{"server": server, "query": query})
}

func says(text string) *Answer { return &Answer{Text: text} }

func calls(cs ...Call) *Answer { return &Answer{Reasoning: "I <think> of \"it\" é🂡", Calls: cs} }

// A mission is what a model does, request by request, and what happens around
// it.
type mission struct {
	name   string
	scenes []func(scene) *Answer
	play   func(*run) // nil: one message
	setup  func(*run) // before
	status []string   // of exchanges; nil: all completed

	servers bool // it is about what strategies show
}

var missions = []mission{
	{name: "steps", scenes: []func(scene) *Answer{
		func(x scene) *Answer { return calls(call("lookup", object{"at": 1})) },
		func(x scene) *Answer { x.shown("item 1 is 1"); return calls(call("lookup", object{"at": 2})) },
		func(x scene) *Answer { x.shown("item 2 is 4"); return calls(call("lookup", object{"at": 3})) },
		func(x scene) *Answer { x.shown("item 3 is 9"); return calls(call("lookup", object{"at": 4})) },
		func(x scene) *Answer { x.shown("item 4 is 10", "You look things up."); return says("done") },
	}},
	{name: "huge", scenes: []func(scene) *Answer{
		func(x scene) *Answer { return calls(call("page", object{"name": "report", "lines": 5000})) },
		func(x scene) *Answer {
			x.shown("report, line 0,", "report, line 4999,", `handle "out_c1_1"`)
			x.hidden("report, line 2500,")
			return calls(call("read_tool_output", object{"handle": "out_c1_1", "offset": 2500, "limit": 3}), call("read_tool_output", object{"handle": "out_c1_1", "grep": "line 4242,"}))
		},
		func(x scene) *Answer { x.shown("report, line 2500,", "report, line 4242,"); return says("found") },
	}},
	{name: "batch", scenes: []func(scene) *Answer{
		func(x scene) *Answer {
			var cs []Call
			for i := range 14 {
				cs = append(cs, call("page", object{"name": fmt.Sprint("p", i), "lines": 9}))
			}
			return &Answer{Reasoning: "all", Text: "I look into all of them.", Calls: cs, Shape: Interleaved}
		},
		func(x scene) *Answer { x.shown("p0, line 0", "p13, line 8"); return says("read") },
	}},
	{name: "wide", scenes: []func(scene) *Answer{
		func(x scene) *Answer {
			var cs []Call
			for i := range 30 {
				cs = append(cs, call("lookup", object{"at": i}))
			}
			return calls(cs...)
		},
		func(x scene) *Answer {
			x.shown("item 0 is 0", "item 29 is 349")
			return calls(call("lookup", object{"at": 30}))
		},
		func(x scene) *Answer { return says("wide") },
	}},
	{name: "exchanges", setup: func(r *run) {
		r.spec.Limits.LargeResultTokens, r.spec.Limits.BatchResultTokens = 6000, 12000 // so that trimming pays
	}, scenes: []func(scene) *Answer{
		func(x scene) *Answer { return calls(call("page", object{"name": "a", "lines": 400})) },
		func(x scene) *Answer { x.shown("a, line 20,"); return says("one") },
		func(x scene) *Answer { return calls(call("page", object{"name": "b", "lines": 400})) },
		func(x scene) *Answer { x.shown("b, line 20,"); x.hidden("a, line 20,"); return says("two") },
		func(x scene) *Answer { x.hidden("b, line 20,"); x.shown("out_c3_1"); return says("three") },
	}, play: func(r *run) {
		for _, s := range []string{"a?", "b?", "so?"} {
			r.say(psych.ClientMessage{Text: s})
		}
	}},
	{name: "attachments", scenes: []func(scene) *Answer{
		func(x scene) *Answer {
			x.shown("what is in these?", "wanted.txt", "the text of it", "broken.bin")
			return calls(call("draw", object{}), call("flaky", object{"how": "picture"}), call("flaky", object{"how": "binary"}))
		},
		func(x scene) *Answer {
			x.shown("drawn", "it broke, see the picture")
			want := map[API]int{Messages: 4, Bedrock: 4, Chat: 2, Responses: 2}[x.r.API] // pictures and papers: the user's, and the tool's
			if x.r.Images != want && x.r.Images != 0 {
				x.t.Errorf("there are %d images, want %d", x.r.Images, want)
			}
			return says("a picture")
		},
		func(x scene) *Answer { return says("yes") },
	}, play: func(r *run) {
		r.say(psych.ClientMessage{Text: "what is in these?", Attachments: []psych.MessageAttachment{
			{Name: "a.png", ContentType: "image/png", Data: png}, {Name: "b.pdf", ContentType: "application/pdf", Data: pdf},
			{Name: "wanted.txt", ContentType: "text/plain", Data: []byte("the text of it")}, {Name: "broken.bin", ContentType: "image/png", Data: []byte{0, 0xff}},
		}})
		r.say(psych.ClientMessage{Text: "sure?"})
	}},
	{name: "failing", scenes: []func(scene) *Answer{
		func(x scene) *Answer {
			return calls(call("flaky", object{"how": "error"}), call("flaky", object{"how": "panic"}), call("flaky", object{"how": "silent"}), call("empty", object{}), call("flaky", object{"how": "junk"}))
		},
		func(x scene) *Answer {
			x.shown("error: it broke", "it panicked")
			return calls(call("flaky", object{"how": 7}), call("flakey", object{}), call("flaky", "how"), call("bad name!", object{}), Call{Name: "", Arguments: ""}, Call{Name: strings.Repeat("n", 200), Arguments: "{"})
		},
		func(x scene) *Answer { x.shown("flakey"); return calls(call("empty", object{})) },
		func(x scene) *Answer { return says("it failed") },
	}},
	{name: "context", setup: func(r *run) { r.spec.Limits.ContextTokens = 9000 + len(r.spec.Instructions)/4 }, scenes: []func(scene) *Answer{
		func(x scene) *Answer {
			return calls(call("page", object{"name": "a", "lines": 45}), call("page", object{"name": "b", "lines": 45}))
		},
		func(x scene) *Answer {
			return calls(call("page", object{"name": "c", "lines": 45}), call("page", object{"name": "d", "lines": 45}))
		},
		func(x scene) *Answer { return says("full") },
	}},
	{name: "window", scenes: []func(scene) *Answer{
		func(x scene) *Answer { return calls(call("page", object{"name": "a", "lines": 45})) },
		func(x scene) *Answer { x.shown("a, line 20,"); return calls(call("lookup", object{"at": 2})) },
		func(x scene) *Answer { return &Answer{Text: "x", Stop: ContextFull} },
		func(x scene) *Answer { return says("it fits") },
	}, play: func(r *run) {
		r.say(psych.ClientMessage{Text: "go"})
		if n := len(r.stub.Requests()); n < 4 { // an API that tells of it as a stop has ended the exchange
			r.say(psych.ClientMessage{Text: "go on"})
		}
	}, status: []string{"completed|exhausted"}},
	{name: "memories", scenes: []func(scene) *Answer{
		func(x scene) *Answer {
			x.shown("likes short answers")
			return &Answer{Reasoning: "hm", Text: "one", Calls: []Call{call("lookup", object{"at": 1})}}
		},
		func(x scene) *Answer { return &Answer{Reasoning: "aha", Text: "one"} },
		func(x scene) *Answer { x.shown("likes tea"); return &Answer{Reasoning: "tea", Text: "two"} },
		func(x scene) *Answer { return &Answer{Reasoning: "none", Text: "three"} },
	}, play: func(r *run) {
		r.say(psych.ClientMessage{Text: "1?"})
		r.world.mu.Lock()
		r.memories = "The user likes tea."
		r.world.mu.Unlock()
		r.say(psych.ClientMessage{Text: "2?"})
		r.world.mu.Lock()
		r.memories = ""
		r.world.mu.Unlock()
		r.say(psych.ClientMessage{Text: "3?"})
	}},
	{name: "servers", servers: true, scenes: []func(scene) *Answer{
		func(x scene) *Answer {
			return calls(x.look("books", "find a book by title"), call("list_tools", object{}), call("read_tool", object{"server": "odd-ones", "tool": "spaced"}))
		},
		func(x scene) *Answer {
			x.shown("find_book", "spaces in its name")
			return calls(x.through("books", "find_book", object{"title": "Moby"}), x.through("odd-ones", "either", object{"a": "x"}), x.through("odd-ones", "spaced", object{"a b": "x"}),
				x.through("odd-ones", "long.name/"+strings.Repeat("very_", 20)+"long", object{}), x.through("odd-ones", "list", object{"xs": []int{1}}), x.through("odd-ones", "bare", object{}), x.through("odd-ones", "call", object{"x": nil}))
		},
		func(x scene) *Answer {
			x.shown(`books ran find_book with {"title":"Moby"}`, `ran either with {"a":"x"}`, `ran spaced with {"a b":"x"}`, `ran list with {"xs":[1]}`, "ran bare with {}", `ran call with {"x":null}`, "_long with {}")
			return calls(x.through("books", "lost_book", object{"title": "x"}), x.through("books", "find_book", object{"name": "x"}), x.through("cars", "drive", object{}))
		},
		func(x scene) *Answer { x.shown("find_book", `"cars"`); return says("read") },
	}},
	{name: "changes", servers: true, scenes: []func(scene) *Answer{
		func(x scene) *Answer { return calls(x.through("books", "find_book", object{"title": "a"})) },
		func(x scene) *Answer { x.shown("ran find_book"); return says("one") },
		func(x scene) *Answer {
			return calls(call("pause", object{"for": "loss"}), call("call_tool", object{"server": "books", "tool": "burn", "arguments": object{}}))
		},
		func(x scene) *Answer {
			return calls(x.through("odd-ones", "bare", object{}), x.through("books", "find_book", object{"title": "b"}))
		},
		func(x scene) *Answer { return says("two") },
		func(x scene) *Answer { return calls(x.through("odd-ones", "bare", object{})) },
		func(x scene) *Answer { return says("three") },
	}, play: func(r *run) {
		r.during["loss"] = func() {
			r.change("odd-ones", func(s *server) { s.down = fmt.Errorf("gone: %w", psych.ErrSessionLost) })
		}
		r.say(psych.ClientMessage{Text: "a?"})
		r.change("books", func(s *server) { s.tools = append(s.tools[1:], remote("burn", "Burns books.", `{}`)) })
		r.say(psych.ClientMessage{Text: "b?"})
		r.change("odd-ones", func(s *server) { s.down = nil })
		r.say(psych.ClientMessage{Text: "c?"})
	}},
	{name: "skills", scenes: []func(scene) *Answer{
		func(x scene) *Answer {
			x.shown("How to tie knots.")
			return calls(call("load_skill", object{"name": "knots"}))
		},
		func(x scene) *Answer { x.shown("Over, under, through."); return says("tied") },
	}},
	{name: "messages between", scenes: []func(scene) *Answer{
		func(x scene) *Answer {
			return calls(call("pause", object{"for": "news"}), call("lookup", object{"at": 1}))
		},
		func(x scene) *Answer { return calls(call("lookup", object{"at": 2})) },
		func(x scene) *Answer {
			x.shown("item 2 is 4", "one more thing", "\u2400")
			return says("that too")
		},
	}, play: func(r *run) {
		r.cold = true // the next worker looks into the inbox before it goes on
		r.during["news"] = func() {
			r.post(psych.ClientMessage{Text: "one more thing"})
			r.post(psych.ClientMessage{Text: "and\x00this <b> \u2028"})
		}
		r.say(psych.ClientMessage{Text: "go"})
	}},
	{name: "aborted", scenes: []func(scene) *Answer{
		func(x scene) *Answer {
			return calls(call("lookup", object{"at": 1}), call("pause", object{"for": "abort"}))
		},
		func(x scene) *Answer { x.shown("go", "better"); return calls(call("lookup", object{"at": 2})) },
		func(x scene) *Answer { x.shown("item 2 is 4"); return says("better") },
	}, play: func(r *run) {
		r.during["abort"] = func() {
			r.await(psych.KindToolCallFinished) // of the call beside it
			if err := r.rt.Abort(context.Background(), r.key, psych.AbortRequest{ID: "a1"}); err != nil {
				r.t.Error(err)
			}
		}
		r.say(psych.ClientMessage{Text: "go"})
		r.say(psych.ClientMessage{Text: "better"})
	}, status: []string{"aborted", "completed"}},
	{name: "refused", scenes: []func(scene) *Answer{
		func(x scene) *Answer {
			return &Answer{Reasoning: "no", Calls: []Call{call("lookup", object{"at": 1})}, Stop: Refused}
		},
		func(x scene) *Answer { return &Answer{Reasoning: "no", Stop: Refused} },
		func(x scene) *Answer { return &Answer{Text: "half a", Stop: AtLimit} },
		func(x scene) *Answer {
			return &Answer{Reasoning: "much", Calls: []Call{call("lookup", object{"at": 1}), {Name: "lookup", Arguments: `{"at":`}}, Stop: AtLimit}
		},
		func(x scene) *Answer { return says("sorry") },
		func(x scene) *Answer { return &Answer{Reasoning: "nothing to say"} },
		func(x scene) *Answer { return &Answer{} },
		func(x scene) *Answer { x.shown("do good"); return says("sure") },
	}, play: func(r *run) {
		for _, s := range []string{"do evil", "do half", "do much", "think", "do nothing", "do good"} {
			r.say(psych.ClientMessage{Text: s})
		}
	}, status: []string{"failed", "exhausted", "completed"}},
	{name: "workers", setup: func(r *run) { r.cold = true }, scenes: []func(scene) *Answer{
		func(x scene) *Answer {
			return calls(call("page", object{"name": "a", "lines": 40}), call("draw", object{}))
		},
		func(x scene) *Answer { return calls(x.through("books", "find_book", object{"title": "a"})) },
		func(x scene) *Answer { return says("one") },
		func(x scene) *Answer { return calls(call("lookup", object{"at": 1})) },
		func(x scene) *Answer { return says("two") },
	}, play: func(r *run) {
		r.say(psych.ClientMessage{Text: "a?"})
		r.say(psych.ClientMessage{Text: "b?"})
	}},
	// Messages that a BlobStore keeps.
	{name: "letters", scenes: []func(scene) *Answer{
		func(x scene) *Answer {
			x.shown("letter, line 0\n", "letter, line 8999\n")
			return calls(call("lookup", object{"at": 1}))
		},
		func(x scene) *Answer { x.shown("letter, line 4321\n", "item 1 is 1"); return says("so long") },
		func(x scene) *Answer { x.shown("letter, line 4321\n", "and?"); return says("bye") },
	}, play: func(r *run) {
		r.say(psych.ClientMessage{Text: lines("letter", 9000), Attachments: []psych.MessageAttachment{{Name: "a.png", ContentType: "image/png", Data: append(slices.Clone(png), make([]byte, 150_000)...)}}})
		r.say(psych.ClientMessage{Text: "and?"})
	}},
	{name: "streams", scenes: []func(scene) *Answer{
		func(x scene) *Answer {
			return &Answer{Reasoning: "bit by bit", Text: "é🂡", Calls: []Call{call("lookup", object{"at": 1})}, Shape: Crumbs}
		},
		func(x scene) *Answer {
			x.shown("item 1 is 1")
			return &Answer{Calls: []Call{call("lookup", object{"at": 2}), call("page", object{"name": "a", "lines": 40}), call("lookup", object{"at": 3})}, Shape: Interleaved}
		},
		func(x scene) *Answer {
			x.shown("item 2 is 4", "item 3 is 9")
			return &Answer{Reasoning: "strange", Text: "strange", Calls: []Call{call("lookup", object{"at": 4})}, Shape: Strange}
		},
		func(x scene) *Answer {
			return &Answer{Calls: []Call{call("lookup", object{"at": 5})}, Shape: NoUsage}
		},
		func(x scene) *Answer {
			return &Answer{Calls: []Call{call("lookup", object{"at": 6})}, Shape: BadUsage}
		},
		func(x scene) *Answer {
			return &Answer{Calls: []Call{call("lookup", object{"at": 7}), call("lookup", object{"at": 8})}, Shape: SameIndex}
		},
		func(x scene) *Answer { x.shown("item 7 is 31", "item 8 is 40"); return says("seen") },
	}},
	{name: "retried", scenes: []func(scene) *Answer{
		func(x scene) *Answer { return calls(call("lookup", object{"at": 1})) },
		func(x scene) *Answer { return &Answer{Reasoning: "half", Text: "half", Shape: Cut} },
		func(x scene) *Answer { x.shown("item 1 is 1"); x.hidden("half"); return says("whole") },
		func(x scene) *Answer { return says("again") },
	}, play: func(r *run) {
		r.say(psych.ClientMessage{Text: "go"})
		r.say(psych.ClientMessage{Text: "again?"})
	}},
	// An exchange has its turns, and a Run its tokens: 15 a call.
	{name: "budget", setup: func(r *run) { r.spec.Limits.Turns, r.spec.Limits.Run.OutputTokens = 2, 60 }, scenes: []func(scene) *Answer{
		func(x scene) *Answer { return calls(call("lookup", object{"at": 1})) },
		func(x scene) *Answer { return calls(call("lookup", object{"at": 2})) },
		func(x scene) *Answer {
			x.shown("item 2 is 4", "go on")
			return calls(call("lookup", object{"at": 3}))
		},
		func(x scene) *Answer { return says("that") },
	}, play: func(r *run) {
		for _, s := range []string{"go", "go on", "and on"} {
			r.say(psych.ClientMessage{Text: s})
		}
	}, status: []string{"exhausted", "completed", "exhausted"}},
	// The provider is another from one exchange to the next, and the first again.
	{name: "providers", scenes: []func(scene) *Answer{
		func(x scene) *Answer { return calls(call("lookup", object{"at": 1}), call("draw", object{})) },
		func(x scene) *Answer { return &Answer{Reasoning: "one", Text: "one"} },
		func(x scene) *Answer { x.shown("item 1 is 1", "drawn"); return calls(call("lookup", object{"at": 2})) },
		func(x scene) *Answer { return &Answer{Reasoning: "two", Text: "two"} },
		func(x scene) *Answer {
			x.shown("item 1 is 1", "drawn", "item 2 is 4")
			return calls(call("lookup", object{"at": 3}))
		},
		func(x scene) *Answer { x.shown("item 3 is 9"); return says("three") },
	}, play: func(r *run) {
		own := r.o.Models
		r.say(psych.ClientMessage{Text: "a?"})
		r.turnTo(r.next())
		r.say(psych.ClientMessage{Text: "b?"})
		r.use(own)
		r.say(psych.ClientMessage{Text: "c?"})
	}},
	// An exchange that opens when no cache holds anything shows what servers
	// offer now.
	{name: "late", servers: true, scenes: []func(scene) *Answer{
		func(x scene) *Answer { return calls(x.through("books", "find_book", object{"title": "a"})) },
		func(x scene) *Answer { x.shown("ran find_book"); return says("one") },
		func(x scene) *Answer { return calls(x.through("books", "burn", object{})) },
		func(x scene) *Answer { x.shown("ran burn"); return says("two") },
	}, play: func(r *run) {
		r.say(psych.ClientMessage{Text: "a?"})
		r.pass(3 * time.Hour)
		r.change("books", func(s *server) { s.tools = append(s.tools[1:], remote("burn", "Burns books.", `{}`)) })
		r.say(psych.ClientMessage{Text: "b?"})
	}},
}

// lines are many, and short.
func lines(of string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s, line %d\n", of, i)
	}
	return b.String()
}

// mind plays the scenes.
func (m *mission) mind(t tester) Mind {
	at := 0
	var mu sync.Mutex // for several stubs
	return func(q *Request) *Answer {
		mu.Lock()
		defer mu.Unlock()
		if at >= len(m.scenes) {
			t.Errorf("request %d is one too many: %.1000q", q.N, q.Last)
			return says("enough")
		}
		at++
		return m.scenes[at-1](scene{t, q})
	}
}

// run plays the mission with a provider and a strategy.
func (m *mission) run(t tester, p *provider, strategy string) *run {
	t.Helper()
	r := newRun(t, p, m.mind(t))
	r.spec.Disclosure.Strategy = strategy
	m.on(r)
	return r
}

// on plays the mission as a Run.
func (m *mission) on(r *run) {
	r.t.Helper()
	if m.setup != nil {
		m.setup(r)
	}
	if m.play != nil {
		m.play(r)
	} else {
		r.say(psych.ClientMessage{Text: "go"})
	}
	r.check(r.provider)
	rep := r.report()
	for i, e := range rep.Exchanges {
		want := "completed"
		if len(m.status) > 0 {
			want = m.status[min(i, len(m.status)-1)]
		}
		if want != "" && !slices.Contains(strings.Split(want, "|"), e.Closed) {
			r.t.Errorf("exchange %d is %s, want %s: %s", i+1, e.Closed, want, e.Reason)
		}
	}
}

// Every mission runs with every provider, and with every strategy: those of
// servers with both, the others with another strategy for each provider, unless
// PSYCH_TEST_ROUNDS is set. No request is refused.
func TestMissions(t *testing.T) {
	all := os.Getenv("PSYCH_TEST_ROUNDS") != ""
	for i := range providers {
		p := &providers[i]
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			requests, most := 0, 0
			for j := range missions {
				m := &missions[j]
				t.Run(m.name, func(t *testing.T) {
					for k, s := range strategies {
						if !all && !m.servers && k != (i+j)%len(strategies) {
							continue
						}
						r := m.run(t, p, s)
						for _, q := range r.stub.Requests() {
							requests++
							most = max(most, q.Markers)
						}
						if t.Failed() {
							t.Fatalf("with strategy %s", s)
						}
					}
				})
			}
			if most != p.marks {
				t.Errorf("a request has %d markers at most, want %d", most, p.marks)
			}
			t.Logf("%d requests, none refused; at most %d markers", requests, most)
		})
	}
}
