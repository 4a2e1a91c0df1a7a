package script

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

const chatter = `
steps:
  - text: "hé"
    repeat: {until: never}
`

func TestSentCountsTheBody(t *testing.T) {
	m := play(t, chatter, &Options{Record: true})
	temperature := 0.5
	full := newTalk(t, m)
	empty := &talk{t: t, m: m}
	for _, tt := range []struct {
		name string
		make func() *talk
	}{
		{"nothing at all", func() *talk { return empty }},
		{"zones alone", func() *talk { return newTalk(t, m) }},
		{"one message", func() *talk { full.user("日本"); return full }},
		{"several", func() *talk { full.answer(); full.user("“more”"); return full }},
		{"tail", func() *talk {
			full.req.Tail = wire(psych.Digest{}, must(m.Codec().EncodeTail("Now: 2026 ☃")), -1)
			return full
		}},
		{"tail alone", func() *talk { empty.req.Tail = full.req.Tail; return empty }},
		{"options", func() *talk {
			full.req.Model = "script:ü"
			full.req.Options = psych.ModelOptions{MaxOutputTokens: 5, Temperature: &temperature, Effort: "hoch €"}
			return full
		}},
		{"one system block", func() *talk { full.req.System[0] = psych.Wire{}; return full }},
		{"no tools", func() *talk { full.req.Tools = psych.Wire{}; return full }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := tt.make().try()
			if err != nil {
				t.Fatal(err)
			}
			all := m.Requests()
			body := all[len(all)-1].Body()
			if got := utf8.RuneCount(body); r.Sent != got {
				t.Errorf("Sent is %d, the body has %d characters: %s", r.Sent, got, body)
			}
			if !json.Valid(body) {
				t.Errorf("not JSON: %s", body)
			}
		})
	}
}

// Each request's body begins with the one before it up to its history, and
// zones come back as they went in.
func TestRequests(t *testing.T) {
	m := play(t, chatter, &Options{Record: true})
	k := newTalk(t, m)
	var zones [][]byte
	for range 5 {
		k.user("hi")
		zones = append(zones, appendHistory(nil, k.req.History))
		k.answer()
	}
	other := newTalk(t, m)
	other.user("another run")
	other.answer()
	k.user("on")
	k.answer()

	all := m.Requests()
	if len(all) != 7 {
		t.Fatalf("%d requests", len(all))
	}
	for i := range zones {
		if !bytes.Equal(all[i].Zone(3), zones[i]) {
			t.Errorf("request %d: history was %s, now %s", i, zones[i], all[i].Zone(3))
		}
		if i > 0 && !bytes.HasPrefix(all[i].Prefix(), all[i-1].Prefix()) {
			t.Errorf("request %d does not begin with the one before it", i)
		}
	}
	if !bytes.Equal(all[6].Zone(3), appendHistory(nil, k.req.History[:len(k.req.History)-1])) {
		t.Error("a request after another run's lost its history")
	}
	if bytes.HasPrefix(all[5].Prefix(), all[4].Prefix()) {
		t.Error("another run's request begins like this one's")
	}
	for i, want := range []*psych.Wire{&k.req.Tools, &k.req.System[0], &k.req.System[1]} {
		if got := all[0].Zone(i); len(got) == 0 || !bytes.Equal(got, want.Bytes) {
			t.Errorf("zone %d: %s", i, got)
		}
	}
	// Neither does what a caller appends reach a record, nor a later request
	// what the caller has.
	k.user("and on")
	k.answer()
	all = m.Requests()
	mine := append(all[7].Request.History, psych.Wire{Bytes: []byte("x")})
	k.req.Breaks = []int{3}
	k.user("last")
	k.answer()
	k.req.Breaks[0] = 4
	if got := string(mine[len(mine)-1].Bytes); got != "x" {
		t.Errorf("a later request wrote %s into a caller's list", got)
	}
	all = m.Requests()
	if !bytes.Equal(all[8].Zone(3), appendHistory(nil, k.req.History[:len(k.req.History)-1])) {
		t.Error("a caller's append reached a record")
	}
	if got := all[8].Request.Breaks[0]; got != 3 {
		t.Errorf("a break moved to %d", got)
	}
	if got, err := all[0].Text(); err != nil || got != "Be brief.\nSkills: none\nThe user is Ada.\nlook\nLooks.\n{\"type\": \"object\"}\nhi" {
		t.Errorf("%q, %v", got, err)
	}

	quiet := play(t, chatter, nil)
	k = newTalk(t, quiet)
	k.user("hi")
	k.answer()
	if got := quiet.Requests(); len(got) != 0 {
		t.Errorf("%d requests kept without Record", len(got))
	}
}

func TestCachedTokens(t *testing.T) {
	m := play(t, chatter, nil)
	k := newTalk(t, m)
	prefix := func(k *talk, messages int) int64 {
		n := k.req.Tools.Chars + k.req.System[0].Chars + k.req.System[1].Chars
		for _, w := range k.req.History[:messages] {
			n += w.Chars
		}
		return tokens(n)
	}
	check := func(name string, k *talk, cached int64) {
		t.Helper()
		r, err := k.try()
		if err != nil {
			t.Fatal(err)
		}
		if *r.Usage.CacheRead != cached || *r.Usage.Input != tokens(r.Sent) || *r.Usage.Output != 1 {
			t.Errorf("%s: input %d (sent %d), cached %d, output %d; want %d cached",
				name, *r.Usage.Input, r.Sent, *r.Usage.CacheRead, *r.Usage.Output, cached)
		}
	}
	k.user("hi")
	check("first", k, 0)
	check("the same again", k, prefix(k, 1))
	k.answer()
	k.user("more")
	check("goes on", k, prefix(k, 1))

	other := newTalk(t, m)
	other.user("hello")
	check("another run with the same opening", other, prefix(other, 0))

	changed := k.on(m)
	changed.req.History = changed.req.History[:2]
	changed.user("more!")
	check("another last message", changed, prefix(k, 2)) // both were in the request that went on
}

// The head of the prompt is cached as far as it is equal.
func TestCachedHead(t *testing.T) {
	m := play(t, chatter, nil)
	k := newTalk(t, m)
	k.user("hi")
	k.answer()
	k = newTalk(t, m)
	k.req.System[1] = wire(k.req.System[0].Chain, []byte(`"The user is Bob."`), -1)
	k.user("hi")
	if got, want := *k.answer().Usage.CacheRead, tokens(k.req.Tools.Chars+k.req.System[0].Chars); got != want {
		t.Errorf("other memories: %d cached, want %d", got, want)
	}
	k = newTalk(t, m)
	k.req.Tools = wire(psych.Digest{}, []byte(`[]`), -1)
	k.req.System[0] = wire(k.req.Tools.Chain, k.req.System[0].Bytes, -1)
	k.req.System[1] = wire(k.req.System[0].Chain, k.req.System[1].Bytes, -1)
	k.user("hi")
	if got := *k.answer().Usage.CacheRead; got != 0 {
		t.Errorf("other tools: %d cached", got)
	}

	// Empty zones whose chain is that of the zone before are no cache of it.
	k = newTalk(t, play(t, chatter, nil))
	k.req.System[0] = psych.Wire{Chain: k.req.Tools.Chain}
	k.req.System[1] = psych.Wire{Chain: k.req.Tools.Chain}
	k.user("hi")
	if got := *k.answer().Usage.CacheRead; got != 0 {
		t.Errorf("a first request has %d cached", got)
	}
}

// A failed request fills no cache.
func TestFailureIsNotCached(t *testing.T) {
	k := newTalk(t, play(t, "steps: [{fail: 500}, {text: hi}]", nil))
	k.user("hi")
	if _, err := k.try(); !status(err, 500) {
		t.Fatal(err)
	}
	if got := *k.answer().Usage.CacheRead; got != 0 {
		t.Errorf("%d cached", got)
	}
}

func TestTotals(t *testing.T) {
	m := play(t, `
steps:
  - {fail: 500}
  - {text: a, calls: [{name: look}, {name: look}]}
  - {text: b, usage: {input: 100, cached: 50}}
`, nil)
	k := newTalk(t, m)
	k.user("hi")
	if _, err := k.try(); err == nil {
		t.Fatal("no failure")
	}
	a := k.answer()
	k.results("x", "y")
	b := k.answer()
	want := Totals{
		Requests: 3, Responses: 2, Calls: 2,
		Sent:   int64(a.Sent + b.Sent),
		Input:  *a.Usage.Input + 100,
		Cached: *a.Usage.CacheRead + 50,
		Output: *a.Usage.Output,
	}
	if got := m.Totals(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	*b.Usage.Input = 7
	again := k.on(m)
	again.req.History = slices.Clone(k.req.History[:len(k.req.History)-1])
	if r, err := again.try(); err != nil || *r.Usage.Input != 100 {
		t.Errorf("a caller changed the script's usage: %v, %v", r, err)
	}
}

func TestRequireForbid(t *testing.T) {
	ask := func(step string) (*talk, error) {
		k := newTalk(t, play(t, "steps:\n  - text: ok\n    "+step, nil))
		k.user("Find \"the\" <needle> & tell")
		k.add(&psych.Message{Role: psych.RoleAssistant, Blocks: []psych.Block{{Text: "Looking."}, {Call: &psych.ToolCall{ID: "c", Name: "look", Arguments: []byte(`{"q":"needle"}`)}}, {Provider: []byte("sig\nna\ture")}}})
		k.results("first", "nothing\nhere "+strings.Repeat("z", 1000))
		k.req.Tail = wire(psych.Digest{}, must(k.m.Codec().EncodeTail("Now: today")), -1)
		// The assistant has spoken once, so the step is the second.
		k.m.steps = append(k.m.steps, k.m.steps[0])
		_, err := k.try()
		return k, err
	}
	for _, re := range []string{
		`Be brief\.`, `Skills: none`, `user is Ada`, // system
		`look`, `Looks\.`, `\{"type": "object"\}`, // tools
		`Find "the" <needle> & tell`, `Looking`, `look \{"q":"needle"\}`, `sig\nna\ture`, `first\nnothing\nhere z`, // messages
		`Now: today$`, // tail
		`(?s)brief.*Ada.*Looks.*Find.*Looking.*first.*today`,
	} {
		if _, err := ask("require: ['" + re + "']"); err != nil {
			t.Errorf("require %s: %v", re, err)
		}
		_, err := ask("forbid: ['" + re + "']")
		if got := refused(t, err); !strings.Contains(got, "step 2 forbids /") {
			t.Errorf("forbid %s: %s", re, got)
		}
	}

	k, err := ask("require: [needle, haystack]\n    forbid: [tomorrow, 'here z+']")
	got := refused(t, err)
	for _, want := range []string{
		"step 2 requires /haystack/, which is nowhere in the ",
		`whose last part, the trailing message, says "Now: today"`,
		`; it forbids /here z+/, which is in message 3 (tool): …"`, `nothing\nhere zzz`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in: %s", want, got)
		}
	}
	if strings.Contains(got, "tomorrow") || strings.Contains(got, "/needle/") || len(got) > 1500 {
		t.Error(got)
	}
	if n := k.m.Totals().Responses; n != 0 {
		t.Errorf("%d responses", n)
	}

	// A step that fails is checked too.
	k = newTalk(t, play(t, "steps: [{fail: 429, require: [x-y]}]", nil))
	k.user("hi")
	_, err = k.try()
	if got := refused(t, err); !strings.Contains(got, "requires /x-y/") {
		t.Error(got)
	}
}
