package providertest

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/psych-go/psych-go/psych"
)

// Streams of odd shapes are understood, and poison no later request.
func TestShapes(t *testing.T) {
	for i := range providers {
		p := &providers[i]
		for _, shape := range []Shape{Whole, Crumbs, Interleaved, SameIndex, Strange, NoUsage, BadUsage} {
			t.Run(p.name+"/"+string(shape), func(t *testing.T) {
				long := strings.Repeat("x", 1000)
				r := newRun(t, p, func(q *Request) *Answer {
					a := &Answer{Shape: shape}
					switch {
					case q.N == 1:
						if shape != SameIndex {
							a.Reasoning, a.Text = "hm", "I look."
						}
						a.Calls = []Call{call("lookup", object{"at": 3}), call("pause", object{"for": long}), call("lookup", object{"at": 4})}
					case q.N == 2:
						scene{t, q}.shown("item 3 is 9\nit happened\nitem 4 is 10\n")
						a.Text = "one"
					default:
						a.Text = "two"
					}
					return a
				})
				happened := false
				r.during[long] = func() { happened = true } // the arguments came whole
				r.say(psych.ClientMessage{Text: "go"})
				r.say(psych.ClientMessage{Text: "go on"})
				r.check(p)
				rep := r.report()
				if len(rep.Exchanges) != 2 || rep.Exchanges[0].Answer != "one" || rep.Exchanges[1].Answer != "two" || !happened {
					t.Errorf("%+v, and the tool saw its arguments: %v", rep.Exchanges, happened)
				}
				unknown := shape == NoUsage || shape == BadUsage
				for _, c := range rep.ModelCalls {
					if (c.PromptTokens == nil) != unknown {
						t.Errorf("usage of call %d: %v, want it unknown: %v", c.Turn, c.PromptTokens, unknown)
					}
				}
			})
		}
	}
}

// A stream that breaks, and a provider that is too busy, are tried again, with
// the same history, and of what came nothing stays. All at the same time, since
// each waits for a while.
func TestBroken(t *testing.T) {
	var wg sync.WaitGroup
	for i := range providers {
		for _, shape := range Broken {
			wg.Go(func() { breaks(beside{t}, &providers[i], shape) })
		}
	}
	wg.Wait()
}

// beside is a *testing.T for goroutines of a test.
type beside struct{ *testing.T }

func (t beside) Fatal(args ...any) {
	t.Helper()
	t.Error(args...)
	runtime.Goexit()
}

func (t beside) Fatalf(format string, args ...any) {
	t.Helper()
	t.Errorf(format, args...)
	runtime.Goexit()
}

// unmarked is a body without markers, which may move from one try to the next.
func unmarked(body []byte) []byte {
	for _, marker := range []string{`,"cache_control":{"type":"ephemeral"}`, `,"prompt_cache_breakpoint":{"mode":"explicit"}`} {
		body = bytes.ReplaceAll(body, []byte(marker), nil)
	}
	return body
}

func breaks(t tester, p *provider, shape Shape) {
	r := newRun(t, p, func(q *Request) *Answer {
		switch q.N {
		case 1:
			return calls(call("lookup", object{"at": 3}))
		case 2:
			return &Answer{Reasoning: "half a thought", Text: "half an answer, which never ends", Calls: []Call{call("pause", object{"for": "ever"})}, Shape: shape}
		case 3:
			scene{t, q}.shown("item 3 is 9")
			return calls(call("lookup", object{"at": 4}))
		}
		scene{t, q}.shown("item 3 is 9", "item 4 is 10")
		return says("whole")
	})
	r.during["ever"] = func() { t.Errorf("%s, %s: a call of a broken answer ran", p.name, shape) }
	r.say(psych.ClientMessage{Text: "go"})
	r.check(p)
	rep := r.report()
	if e := rep.Exchanges[0]; e.Closed != psych.StatusCompleted || e.Answer != "whole" || len(rep.ModelCalls) != 4 || rep.ModelCalls[1].Outcome != "failed" {
		t.Fatalf("%s, %s: %+v, %+v", p.name, shape, e, rep.ModelCalls)
	}
	var ids []string
	for rec, err := range r.rt.Records(context.Background(), r.key, psych.Pos{}) {
		if err != nil {
			t.Fatal(err)
		}
		switch e := rec.Event.(type) {
		case *psych.ModelCallFinished:
			ids = append(ids, e.RequestID)
		case *psych.ModelCallFailed:
			ids = append(ids, e.RequestID)
		}
	}
	if got := fmt.Sprint(ids); got != "[req_1 req_2 req_3 req_4]" {
		t.Errorf("%s, %s: the log has the requests %s", p.name, shape, got)
	}
	requests := r.stub.Requests()
	if !bytes.Equal(unmarked(requests[1].Body), unmarked(requests[2].Body)) || bytes.Contains(requests[3].Body, []byte("half a")) {
		t.Errorf("%s, %s: request 2 is\n%s\nagain\n%s\nand the next\n%s", p.name, shape, requests[1].Body, requests[2].Body, requests[3].Body)
	}
}

// Ids, names and arguments of calls that no provider takes are not sent back,
// nor the same id twice, in one answer or across turns.
func TestOddCalls(t *testing.T) {
	ids := []string{"same", "same", NoID, NoID, "with space", "ü", "c1_1", strings.Repeat("i", 70), "a/../b", "\"quoted\"", strings.Repeat("k", 40), strings.Repeat("l", 64)}
	for i := range providers {
		p := &providers[i]
		t.Run(p.name, func(t *testing.T) {
			r := newRun(t, p, func(q *Request) *Answer {
				a := &Answer{Reasoning: "odd"}
				switch q.N {
				case 1, 2, 3:
					for j, id := range ids {
						c := call("lookup", object{"at": j})
						c.ID = id
						a.Calls = append(a.Calls, c)
					}
					for _, args := range []string{"", "null", "[]", `"{\"at\":5}"`, "{", "7", "{\"at\":\x001}", `{"at":5}{}`, `{"at":9007199254740993,"at":2}`} {
						a.Calls = append(a.Calls, Call{ID: "same", Name: "lookup", Arguments: args})
					}
					for _, name := range []string{"", " ", "a.b", "日本", "read tool", strings.Repeat("n", 65), "lookup\x00"} {
						a.Calls = append(a.Calls, Call{Name: name, Arguments: "{}"})
					}
				default:
					a.Text = "done"
				}
				return a
			})
			r.say(psych.ClientMessage{Text: "go"})
			r.say(psych.ClientMessage{Text: "again"})
			r.check(p)
			rep := r.report()
			if n := len(rep.ToolCalls); n != 3*(len(ids)+9+7) || rep.Status != psych.StatusCompleted {
				t.Errorf("%d tool calls, %s: %+v", n, rep.Status, rep.Exchanges)
			}
			for j, c := range rep.ToolCalls {
				if at := j % (len(ids) + 9 + 7); at < len(ids) && c.Outcome != string(psych.Succeeded) {
					t.Errorf("the call of id %q: %+v", ids[at], c)
				}
			}
		})
	}
}

// Where reasoning is bound to what precedes it, past trailing messages stay in
// their place: the provider refuses the requests of an engine that drops them.
func TestTailsAreKept(t *testing.T) {
	mind := func(q *Request) *Answer {
		switch q.N {
		case 1, 3:
			return &Answer{Reasoning: "I look", Calls: []Call{call("lookup", object{"at": q.N})}}
		}
		return &Answer{Reasoning: "I know", Text: "it is " + fmt.Sprint(q.N)}
	}
	for _, p := range []*provider{&providers[0], &providers[2]} {
		for _, drops := range []bool{false, true} {
			t.Run(fmt.Sprint(p.name, ", dropped: ", drops), func(t *testing.T) {
				r := newRun(t, p, mind)
				model := strict(p, r.stub.URL)
				if drops {
					model = tailless{model}
				}
				r.use(psych.OneModel(model))
				for _, s := range []string{"a?", "b?", "c?"} {
					r.say(psych.ClientMessage{Text: s})
				}
				refused := r.stub.Refused()
				if !drops {
					r.check(p)
					last := r.stub.Requests()[4]
					if last.Tails != 3 || last.Dropped != 0 {
						t.Errorf("the last request has %d trailing messages, and loses %d blocks", last.Tails, last.Dropped)
					}
					return
				}
				if len(refused) == 0 || !strings.Contains(refused[0].Error(), "bound to a different conversation") {
					t.Errorf("it is not noticed that trailing messages are dropped: %v", refused)
				}
			})
		}
	}
}

// tailless is a Model whose Codec does not say that it keeps tails.
type tailless struct{ psych.Model }

func (m tailless) Codec() psych.Codec { return struct{ psych.Codec }{m.Model.Codec()} }

// A Run whose model is another from one exchange to the next, of another
// provider or with other rules, whether the worker knows the Run or not: what
// one said means nothing to the other and is not sent to it.
func TestProviderChanges(t *testing.T) {
	for _, cold := range []bool{false, true} {
		for i := range providers {
			for j := range providers {
				a, b := &providers[i], &providers[j]
				t.Run(fmt.Sprintf("%s, then %s, cold: %v", a.name, b.name, cold), func(t *testing.T) {
					mind := func(q *Request) *Answer {
						if strings.Contains(q.Last, "more?") {
							return &Answer{Reasoning: "more", Text: "no", Calls: []Call{call("lookup", object{"at": 3}), call("draw", object{})}}
						}
						scene{t, q}.shown("item 3 is 9", "drawn")
						return &Answer{Reasoning: "drawn, it is", Text: "that"}
					}
					r := newRun(t, a, mind)
					r.cold = cold
					o := b.o
					o.Peer = r.stub
					other := New(b.api, mind, &o)
					t.Cleanup(other.Close)
					models := []psych.Model{a.model(r.stub.URL), b.model(other.URL)}
					now := models[0]
					r.use(func(context.Context, string) (psych.Model, error) { return now, nil }) // one worker, unless it is cold
					for n := range 3 {
						now = models[n%2]
						r.say(psych.ClientMessage{Text: fmt.Sprint(n, " more?")})
					}
					r.replays(models...)
					rep := r.report()
					for k, e := range rep.Exchanges {
						if e.Closed != psych.StatusCompleted || e.Answer != "that" {
							t.Errorf("exchange %d: %+v", k+1, e)
						}
					}
					for _, s := range []*Stub{r.stub, other} {
						if err := s.Refused(); len(err) > 0 {
							t.Errorf("refused: %v", err)
						}
						for _, q := range s.Requests() {
							if q.Markers > 4 || q.TailMarkers > 0 {
								t.Errorf("request %d has %d markers, and %d in trailing messages", q.N, q.Markers, q.TailMarkers)
							}
						}
					}
					if len(r.stub.Requests()) != 4 || len(other.Requests()) != 2 {
						t.Errorf("%d and %d requests, want 4 and 2: %+v", len(r.stub.Requests()), len(other.Requests()), rep.ModelCalls)
					}
				})
			}
		}
	}
}
