package providertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/psych"
)

// breaksOf are the named breaks of a Run, each with the number of its model call.
func (r *run) breaksOf() []string {
	var all []string
	for i, c := range r.report().ModelCalls {
		for _, b := range c.Breaks {
			all = append(all, fmt.Sprint(i+1, " ", b.Zone, " ", b.Cause))
		}
	}
	return all
}

// replays fails unless each request of the Run is made again as it was sent, by
// one of the models.
func (r *run) replays(models ...psych.Model) {
	r.t.Helper()
	n := 0
	for c, err := range r.rt.Replay(context.Background(), r.key, &psych.ReplayOptions{Models: models}) {
		if err != nil || !c.Equal() {
			r.t.Fatalf("replay of call %d: %v, %v, %v", n+1, err, c.Err, c.Difference)
		}
		n++
	}
	if want := len(r.report().ModelCalls); n != want {
		r.t.Errorf("%d calls are made again of %d", n, want)
	}
}

// sealing are the providers that refuse reasoning which is not as they made it.
// Servers of Chat Completions read what they are sent.
func sealing() (ps []*provider) {
	for i := range providers {
		if p := &providers[i]; p.api != Chat {
			ps = append(ps, p)
		}
	}
	return ps
}

// A Run that comes to a server which did not make its reasoning, as that of
// another account, goes on without: each request but one is taken, also in the
// exchanges after, and reasoning that this server made is sent back to it.
func TestBlockRefused(t *testing.T) {
	for _, cold := range []bool{false, true} {
		for _, p := range sealing() {
			t.Run(fmt.Sprint(p.name, ", cold: ", cold), func(t *testing.T) {
				mind := func(q *Request) *Answer {
					if strings.Contains(q.Last, "?") {
						return &Answer{Reasoning: fmt.Sprint("thought ", q.N), Text: "I look.", Calls: []Call{call("lookup", object{"at": 3}), call("draw", object{})}}
					}
					scene{t, q}.shown("item 3 is 9", "drawn")
					return &Answer{Reasoning: fmt.Sprint("thought ", q.N), Text: "that"}
				}
				r := newRun(t, p, mind)
				r.cold = cold
				r.say(psych.ClientMessage{Text: "a?"})
				first := r.stub
				r.stub = New(p.api, mind, &p.o)
				t.Cleanup(r.stub.Close)
				model := p.model(r.stub.URL)
				r.use(psych.OneModel(model))
				r.say(psych.ClientMessage{Text: "b?"})
				r.say(psych.ClientMessage{Text: "c?"})
				if refused := r.stub.Refused(); len(refused) != 1 || len(first.Refused()) != 0 {
					t.Fatalf("refused: %v, %v; want one", first.Refused(), refused)
				}
				if got := r.breaksOf(); !slices.Equal(got, []string{"4 3 block_refused"}) {
					t.Errorf("breaks %v", got)
				}
				for i, e := range r.report().Exchanges {
					if e.Closed != psych.StatusCompleted || e.Answer != "that" {
						t.Errorf("exchange %d: %+v", i+1, e)
					}
				}
				requests := r.stub.Requests()
				if len(requests) != 4 {
					t.Fatalf("%d requests were taken, want 4", len(requests))
				}
				for i, thoughts := range []int{0, 1, 2, 3} { // of this server alone
					if got := strings.Count(string(requests[i].Body), "thought "); got != thoughts {
						t.Errorf("request %d holds reasoning %d times, want %d", i+1, got, thoughts)
					}
				}
				r.replays(model)
			})
		}
	}
}

// A Model that does not tell a provider what to do with reasoning whose prefix
// changed is refused then, and goes on without that reasoning.
func TestBoundBlockRefused(t *testing.T) {
	for _, p := range sealing() {
		if !p.bound {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			r := newRun(t, p, func(q *Request) *Answer { return &Answer{Reasoning: "hm", Text: "so"} })
			model := strict(p, r.stub.URL)
			r.use(psych.OneModel(model))
			r.say(psych.ClientMessage{Text: "a?"})
			r.world.mu.Lock()
			r.memories = "The user likes tea." // before all that was said
			r.world.mu.Unlock()
			r.say(psych.ClientMessage{Text: "b?"})
			r.say(psych.ClientMessage{Text: "c?"})
			if refused := r.stub.Refused(); len(refused) != 1 || !strings.Contains(refused[0].Error(), "bound to a different conversation") {
				t.Errorf("refused: %v", refused)
			}
			if got := r.breaksOf(); !slices.Equal(got, []string{"2 2 memory_changed", "3 3 block_refused"}) {
				t.Errorf("breaks %v", got)
			}
			if rep := r.report(); rep.Status != psych.StatusCompleted || len(rep.ModelCalls) != 4 {
				t.Errorf("%s after %d calls", rep.Status, len(rep.ModelCalls))
			}
			r.replays(model)
		})
	}
}

// A provider that refuses a Run without any reasoning, too, is asked no more:
// one refusal more, and the exchange fails.
func TestRefusedAllTheSame(t *testing.T) {
	for _, p := range sealing() {
		t.Run(p.name, func(t *testing.T) {
			says := map[API]string{Responses: "the encrypted content could not be verified"}[p.api]
			if says == "" {
				says = "messages.1.content.0: Invalid `signature` in `thinking` block"
			}
			own := *p
			own.o.Refuses = func(q *Request) string {
				if q.N > 1 {
					return says
				}
				return ""
			}
			r := newRun(t, &own, func(*Request) *Answer { return &Answer{Reasoning: "hm", Text: "so"} })
			r.say(psych.ClientMessage{Text: "a?"})
			r.say(psych.ClientMessage{Text: "b?"})
			rep := r.report()
			if e := rep.Exchanges[1]; e.Closed != psych.StatusFailed || !strings.Contains(e.Reason, says) || len(r.stub.Refused()) != 2 {
				t.Errorf("%+v after %d refusals, want 2", e, len(r.stub.Refused()))
			}
			r.replays(p.model(r.stub.URL))
		})
	}
}

// Images that a provider can't read poison no Run: it goes on with a word of
// them in their place, and shows those that come later.
func TestImageRefused(t *testing.T) {
	why := map[API]string{
		Messages: "Could not process image", Bedrock: "Could not process image",
		Chat:      "The image data you provided does not represent a valid image. Please check your input and try again.",
		Responses: "The image data you provided does not represent a valid image. Please check your input and try again.",
	}
	for i := range providers {
		p := &providers[i]
		t.Run(p.name, func(t *testing.T) {
			own := *p
			own.o.Refuses = func(q *Request) string {
				if q.Images > 1 { // the tool's
					return why[q.API]
				}
				return ""
			}
			r := newRun(t, &own, func(q *Request) *Answer {
				if strings.Contains(q.Last, "?") && q.N == 1 {
					return calls(call("draw", object{}))
				}
				return says("seen")
			})
			shows := len(p.model(r.stub.URL).Codec().Limits().Images) > 0
			picture := psych.MessageAttachment{Name: "mine.png", ContentType: "image/png", Data: png}
			r.say(psych.ClientMessage{Text: "like this?", Attachments: []psych.MessageAttachment{picture}})
			r.say(psych.ClientMessage{Text: "and this?", Attachments: []psych.MessageAttachment{picture}})
			var images []int
			for _, q := range r.stub.Requests() {
				images = append(images, q.Images)
			}
			want, breaks, refused := []int{0, 0, 0}, []string(nil), 0
			if shows {
				want, breaks, refused = []int{1, 0, 1}, []string{"3 3 block_refused"}, 1
			}
			if got := r.breaksOf(); !slices.Equal(images, want) || !slices.Equal(got, breaks) || len(r.stub.Refused()) != refused {
				t.Errorf("images %v, want %v; breaks %v; refused %v", images, want, got, r.stub.Refused())
			}
			scene{t, r.stub.Requests()[1]}.shown(`attachment "mine.png", image/png`, "drawn", "picture")
			if rep := r.report(); rep.Status != psych.StatusCompleted {
				t.Errorf("%+v", rep.Exchanges)
			}
			r.replays(p.model(r.stub.URL))
		})
	}
}
