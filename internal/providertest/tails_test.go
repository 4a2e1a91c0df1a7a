package providertest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/psych-go/psych-go/adapters/anthropic"
	"github.com/psych-go/psych-go/adapters/bedrock"
	"github.com/psych-go/psych-go/adapters/openai"
	"github.com/psych-go/psych-go/psych"
)

// A wire is a column of a table of docs/providers.md: an API as some options
// have it spoken.
type wire struct {
	section, column string
	api             API
	unbound         bool
	model           func(url string) psych.Model
}

func openAI(o openai.Options) func(string) psych.Model {
	return func(url string) psych.Model {
		o := o
		o.BaseURL = url
		return openai.New("gpt", &o)
	}
}

const (
	toClaude5  = "`anthropic:` to Claude 5.0"
	fromClaude = "`anthropic:` from Claude 5.1 on"
	bedrockTo5 = "`bedrock:` to Claude 5.0"
	bedrockOn  = "`bedrock:` from Claude 5.1 on"
)

var wires = []wire{
	{"Chat Completions", "`openai:`", Chat, false, openAI(openai.Options{})},
	{"Chat Completions", "with `images`", Chat, false, openAI(openai.Options{Images: true})},
	{"Chat Completions", "with `cache_breakpoints`", Chat, false, openAI(openai.Options{CacheBreakpoints: true})},
	{"Responses", "`openai:` with `api=responses`", Responses, false, openAI(openai.Options{Responses: true})},
	{"Responses", "with `images`", Responses, false, openAI(openai.Options{Responses: true, Images: true})},
	{"Responses", "with `cache_breakpoints`", Responses, false, openAI(openai.Options{Responses: true, CacheBreakpoints: true})},
	{"Messages", toClaude5, Messages, true, func(url string) psych.Model {
		return anthropic.New("claude-opus-5", &anthropic.Options{BaseURL: url})
	}},
	{"Messages", fromClaude, Messages, false, func(url string) psych.Model {
		return anthropic.New(boundModel, &anthropic.Options{BaseURL: url})
	}},
	{"Messages", bedrockTo5, Bedrock, true, func(url string) psych.Model {
		return bedrock.New(runtimeClient(url), "anthropic.claude-opus-5", nil)
	}},
	{"Messages", bedrockOn, Bedrock, false, func(url string) psych.Model {
		return bedrock.New(runtimeClient(url), boundBedrock, nil)
	}},
}

// Rows of the tables.
const (
	ofRun       = "first turn of a Run"
	quiet       = "a later turn, without news"
	oneResult   = "a later turn with news, behind one result"
	wideBatch   = "with news, behind a wide batch"
	imageBatch  = "with news, behind a batch whose last result has an image"
	closed      = "first turn behind an exchange that closed with an answer"
	unanswered  = "first turn behind an exchange that closed without a word of the model's"
	interrupted = "first turn behind an exchange that was aborted in a batch"
	pastTails   = "past tails"
)

var rows = []string{ofRun, quiet, oneResult, wideBatch, imageBatch, closed, unanswered, interrupted, pastTails}

// Cells: the tail goes on in a text, or is a part of its own behind something.
const (
	none          = "none"
	inMessage     = "in the user's text"
	behindMessage = "behind the user's text"
	inResult      = "in the last result"
	behindResult  = "behind the last result"
	behindImages  = "behind the images"
)

// A table is one of Markdown: its rows by their first cell, each by column.
type table map[string]map[string]string

// tableOf reads the table of a section of docs/providers.md.
func tableOf(t *testing.T, section string) table {
	t.Helper()
	doc, err := os.ReadFile("../../docs/providers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(doc), "\n### "+section+"\n")
	if !ok {
		t.Fatalf("docs/providers.md has no section %q", section)
	}
	text, _, _ = strings.Cut(text, "\n#")
	var head []string
	all := table{}
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) < 2 || strings.HasPrefix(strings.TrimSpace(cells[0]), "---") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if head == nil {
			head = cells
			continue
		}
		if len(cells) != len(head) || all[cells[0]] != nil {
			t.Fatalf("%s: the row %q is there twice, or has %d cells of %d", section, cells[0], len(cells), len(head))
		}
		all[cells[0]] = map[string]string{}
		for i, c := range cells[1:] {
			all[cells[0]][head[i+1]] = c
		}
	}
	return all
}

// tailOf says where the trailing message of a request stands, and fails where
// that is not behind all else.
func tailOf(t *testing.T, body []byte) string {
	t.Helper()
	var b struct{ Messages, Input []json.RawMessage }
	if err := json.Unmarshal(body, &b); err != nil {
		t.Fatal(err)
	}
	all := append(b.Messages, b.Input...)
	var last struct {
		Role, Type      string
		Content, Output json.RawMessage
	}
	if err := json.Unmarshal(all[len(all)-1], &last); err != nil {
		t.Fatal(err)
	}
	content, result := last.Content, last.Role == "tool"
	if last.Type == "function_call_output" {
		content, result = last.Output, true
	}
	var s string
	if json.Unmarshal(content, &s) == nil {
		switch {
		case !strings.Contains(s, TailText):
			return none
		case strings.Count(s, TailText) > 1 || !strings.Contains(s, "\n\n"+TailText):
			t.Errorf("the tail does not stand behind a blank line, once: %q", s)
		case result:
			return inResult
		}
		return inMessage
	}
	var parts []struct{ Type, Text string }
	if err := json.Unmarshal(content, &parts); err != nil {
		t.Fatal(err)
	}
	end := parts[len(parts)-1]
	switch {
	case !strings.HasPrefix(end.Text, TailText):
		if strings.Contains(end.Text, TailText) {
			t.Errorf("the tail is in a part with other text: %q", end.Text)
		}
		return none
	case result, parts[len(parts)-2].Type == "tool_result":
		return behindResult
	case strings.HasPrefix(parts[0].Text, "[Images that tools returned"):
		return behindImages
	}
	return behindMessage
}

// upToTail is a body without markers, as far as its last tail goes.
func upToTail(t *testing.T, body []byte) []byte {
	t.Helper()
	body = unmarked(body)
	at := bytes.LastIndex(body, []byte(TailText))
	end := regexp.MustCompile(`[^\\]"`).FindIndex(body[max(at, 0):])
	if at < 0 || end == nil {
		t.Fatal("there is no tail")
	}
	return body[:at+end[1]]
}

// beforeTail is a body without markers, as far as what stands before its last
// tail.
func beforeTail(t *testing.T, body []byte) []byte {
	t.Helper()
	body = upToTail(t, body)
	body = body[:bytes.LastIndex(body, []byte(TailText))]
	for _, opening := range []string{`,{"type":"text","text":"`, `,{"type":"input_text","text":"`, `\n\n`} {
		if b, ok := bytes.CutSuffix(body, []byte(opening)); ok {
			return b
		}
	}
	t.Fatalf("the tail begins behind %q", body[len(body)-40:])
	return nil
}

// Each entry of the tables of "Where the tail goes" is what the provider's stub
// got of a Run that went through all of these situations. A tail that stays is
// sent again where it stood; of one that is dropped, all before it is.
func TestTailsAsDocumented(t *testing.T) {
	columns := map[string]int{}
	for _, w := range wires {
		columns[w.section]++
		t.Run(w.section+", "+w.column, func(t *testing.T) {
			doc := tableOf(t, w.section)
			flaky := call("flaky", object{"how": "error"}) // the third turn in which it fails is told as news
			wide := []Call{flaky}
			for i := range 29 {
				wide = append(wide, call("lookup", object{"at": i}))
			}
			asked := []struct {
				row    string
				answer *Answer
			}{
				{ofRun, calls(flaky)}, {quiet, calls(flaky)}, {quiet, calls(flaky)}, {oneResult, says("it fails")},
				{closed, calls(flaky)}, {quiet, calls(flaky)}, {quiet, calls(wide...)}, {wideBatch, says("it fails again")},
				{closed, calls(flaky)}, {quiet, calls(flaky)}, {quiet, calls(flaky, call("draw", object{}))}, {imageBatch, says("drawn")},
				{closed, &Answer{Stop: Refused}},
				{unanswered, calls(call("lookup", object{"at": 1}), call("pause", object{"for": "abort"}))},
				{interrupted, says("well")},
			}
			p := &provider{name: w.column, api: w.api, o: Options{Unbound: w.unbound, Alternate: true}, bound: !w.unbound && (w.api == Messages || w.api == Bedrock), model: w.model}
			r := newRun(t, p, func(q *Request) *Answer {
				if q.N > len(asked) {
					t.Errorf("request %d is one too many", q.N)
					return says("enough")
				}
				return asked[q.N-1].answer
			})
			r.spec.Connections = nil
			r.spec.Limits = psych.Limits{} // nothing is trimmed
			r.during["abort"] = func() {
				if err := r.rt.Abort(t.Context(), r.key, psych.AbortRequest{ID: "a1"}); err != nil {
					t.Error(err)
				}
			}
			for _, s := range []string{"a?", "b?", "c?", "d?", "e?", "f?"} {
				r.say(psych.ClientMessage{Text: s})
			}
			r.check(p)
			requests := r.stub.Requests()
			if len(requests) != len(asked) {
				t.Fatalf("%d requests, want %d", len(requests), len(asked))
			}
			seen, tails := map[string]string{}, 0
			past := "dropped"
			if p.bound {
				past = "stay"
			}
			for i, q := range requests {
				got, row := tailOf(t, q.Body), asked[i].row
				if was, ok := seen[row]; ok && was != got {
					t.Errorf("request %d: the tail is %q, and was %q in the same situation", q.N, got, was)
				}
				seen[row] = got
				if got == none {
					continue
				}
				tails++
				if want := map[bool]int{true: tails, false: 1}[past == "stay"]; q.Tails != want {
					t.Errorf("request %d holds %d tails, want %d", q.N, q.Tails, want)
				}
				again := beforeTail(t, q.Body)
				if past == "stay" {
					again = upToTail(t, q.Body)
				}
				for _, later := range requests[i+1:] {
					if !bytes.HasPrefix(unmarked(later.Body), again) {
						t.Errorf("request %d does not begin as request %d did", later.N, q.N)
					}
				}
			}
			seen[pastTails] = past
			for _, row := range rows {
				if doc[row][w.column] != seen[row] {
					t.Errorf("docs/providers.md, %s, %q: %q says %q, sent was %q", w.section, row, w.column, doc[row][w.column], seen[row])
				}
			}
			if len(doc) != len(rows) {
				t.Errorf("docs/providers.md, %s, has %d rows, want %d", w.section, len(doc), len(rows))
			}
		})
	}
	for section, n := range columns {
		for row, cells := range tableOf(t, section) {
			if len(cells) != n {
				t.Errorf("docs/providers.md, %s, %q: %d columns, want %d", section, row, len(cells), n)
			}
		}
	}
}

// A broken is a Run whose second half has a named break before it.
type broken struct {
	cause psych.BreakCause
	setup func(*run)
	first func(q *Request) *Answer
	then  func(*run, *time.Time)
}

var breaksOfRuns = []broken{
	{cause: psych.MemoryChanged, then: func(r *run, _ *time.Time) { r.memories = "The user likes tea." }},
	{cause: psych.Reopened, then: func(r *run, now *time.Time) {
		r.change("books", func(s *server) { s.tools = append(s.tools[1:], remote("burn", "Burns books.", `{}`)) })
		*now = now.Add(2 * time.Hour)
	}, setup: func(r *run) { r.spec.Disclosure.Strategy = "eager" }},
	{cause: psych.HistoryTrimmed, then: func(_ *run, now *time.Time) { *now = now.Add(2 * time.Hour) }, setup: func(r *run) {
		r.spec.Limits = psych.Limits{HistoryResultTokens: 100, HistoryMinSavingTokens: 200}
	}, first: func(*Request) *Answer { return calls(call("page", object{"name": "a", "lines": 100})) }},
	{cause: psych.ContextTrimmed, setup: func(r *run) { r.spec.Limits = psych.Limits{ContextTokens: 8000} },
		first: func(*Request) *Answer { return calls(call("page", object{"name": "a", "lines": 400})) },
		then:  func(*run, *time.Time) {}},
	{cause: psych.CodecChanged, then: func(*run, *time.Time) {}},
}

// Each entry of the table of named breaks is what a Run with that break showed:
// reasoning that is bound and lost its prefix goes only where the request says
// that it may, in each of them, and the provider refuses a request that does
// not say so.
func TestBreaksAsDocumented(t *testing.T) {
	doc := tableOf(t, "Named breaks")
	if len(doc) != len(breaksOfRuns) {
		t.Errorf("docs/providers.md names %d breaks, want %d", len(doc), len(breaksOfRuns))
	}
	for _, w := range wires {
		bound := w.column == fromClaude || w.column == bedrockOn
		column := "elsewhere"
		if bound {
			column = "from Claude 5.1 on"
		}
		for _, b := range breaksOfRuns {
			t.Run(w.section+", "+w.column+"/"+string(b.cause), func(t *testing.T) {
				got, zone := breakOf(t, &w, &b, w.model)
				cells := doc[string("`"+b.cause+"`")]
				if !strings.HasPrefix(cells[column], got) {
					t.Errorf("docs/providers.md, %s: %q, want %q", b.cause, cells[column], got)
				}
				if !regexp.MustCompile(`\b` + fmt.Sprint(zone) + `\b`).MatchString(cells["zone"]) {
					t.Errorf("docs/providers.md, %s: zone %q, want %d in it", b.cause, cells["zone"], zone)
				}
				if got != "dropped" {
					return
				}
				p := &provider{api: w.api}
				if got, _ := breakOf(t, &w, &b, func(url string) psych.Model { return strict(p, url) }); got != "refused" {
					t.Errorf("a provider that is not told is %q", got)
				}
			})
		}
	}
}

// reasons finds reasoning in a body.
var reasons = regexp.MustCompile(`"reasoning_content":|"type":"reasoning"|"type":"thinking"`)

// breakOf plays a Run with a break, and says what became of the reasoning from
// before it, and at which zone the break is.
func breakOf(t *testing.T, w *wire, b *broken, model func(string) psych.Model) (what string, zone int) {
	t.Helper()
	p := &provider{name: w.column, api: w.api, o: Options{Unbound: w.unbound}, model: model}
	mind := func(q *Request) *Answer {
		switch q.N {
		case 1:
			if b.first != nil {
				return b.first(q)
			}
			return calls(call("lookup", object{"at": 1}))
		case 2:
			return calls(call("page", object{"name": "b", "lines": 200}))
		}
		return &Answer{Reasoning: "so", Text: "done"}
	}
	r := newRun(t, p, mind)
	r.spec.Limits = psych.Limits{}
	if b.setup != nil {
		b.setup(r)
	}
	now := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	use := func(m psych.Model) {
		t.Helper()
		r.o = r.options(psych.OneModel(m))
		r.o.Blobs, r.o.Now = r.blobs, func() time.Time { return now }
		var err error
		if r.rt, err = psych.New(r.store, r.o); err != nil {
			t.Fatal(err)
		}
	}
	use(model(r.stub.URL))
	stub := r.stub
	if b.cause == psych.CodecChanged { // another provider goes on
		api := Chat
		if w.api == Chat {
			api = Messages
		}
		other := New(api, mind, nil)
		t.Cleanup(other.Close)
		first := psych.Model(openai.New("gpt", &openai.Options{BaseURL: other.URL}))
		if api == Messages {
			first = anthropic.New(boundModel, &anthropic.Options{BaseURL: other.URL})
		}
		use(first)
		r.say(psych.ClientMessage{Text: "a?"})
		use(model(r.stub.URL))
		stub.n = len(other.Requests()) // it goes on with the same answers
	} else {
		r.say(psych.ClientMessage{Text: "a?"})
	}
	b.then(r, &now)
	r.post(psych.ClientMessage{Text: "b?"})
	if _, err := r.rt.Drive(t.Context(), r.key, nil); err != nil {
		t.Fatal(err)
	}
	refused := stub.Refused()
	for _, c := range r.report().ModelCalls {
		for _, x := range c.Breaks {
			if x.Cause == b.cause {
				zone = x.Zone
				what = "kept"
			}
		}
	}
	if what == "" {
		t.Fatalf("no break %s: %+v", b.cause, r.report().ModelCalls)
	}
	requests := stub.Requests()
	switch last := requests[len(requests)-1]; {
	case len(refused) > 0:
		if !strings.Contains(errors.Join(refused...).Error(), "bound to a different conversation") {
			t.Errorf("refused: %v", refused)
		}
		return "refused", zone
	case b.cause == psych.CodecChanged:
		if reasons.Match(last.Body) {
			t.Errorf("reasoning of another provider is sent: %s", last.Body)
		}
		return "not sent", zone
	case last.Dropped > 0:
		return "dropped", zone
	case !reasons.Match(last.Body):
		t.Errorf("the reasoning from before is not sent again: %s", last.Body)
	}
	return what, zone
}
