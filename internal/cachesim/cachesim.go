// Package cachesim says what a provider's prompt cache would make of the
// requests of a Run, by the rules that the provider documents. What it says is
// an estimate: tokens are characters by four, no request waits for another, all
// reach one machine, and nothing is evicted early. It stands in for no number
// of a provider; it is there to compare one way of making requests with another.
//
// It reads the bodies that the adapters send, and nothing else: markers count
// where they stand in the JSON.
//
//   - anthropic, bedrock: an entry is written at each cache_control, if the
//     prefix to there has the least size of the model, for 5 minutes or an hour.
//     From each cache_control 20 blocks are looked at, itself the first, for an
//     entry; the longest is read, and its time begins anew. Blocks are tools,
//     blocks of the system prompt and of messages. Writing costs 1.25 or 2 times
//     the price of input, reading a tenth.
//   - openai before gpt-5.6: the longest prefix that a request had in the last 5
//     minutes (24 hours with prompt_cache_retention "24h"), from 1,024 tokens on,
//     in steps of 128. Writing is free.
//   - openai from gpt-5.6 on: an entry is written at each of the last four
//     prompt_cache_breakpoint, or the last three and the end of the newest
//     message unless prompt_cache_options.mode is explicit, from 1,024 tokens on,
//     for 30 minutes, or 12 hours with prompt_cache_options.ttl "12h". Such ends, the latest 80, are looked at for entries, and
//     nothing shorter is read. Writing costs 1.25 times, reading a tenth.
package cachesim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/psych-go/psych-go/adapters/openai"
	"github.com/psych-go/psych-go/internal/messages"
	"github.com/psych-go/psych-go/psych"
)

// Use is what a request would take, in estimated tokens.
type Use struct {
	Read     int `json:"read"`
	Written  int `json:"written"` // for the shorter time, or at no other price
	Hour     int `json:"written_hour,omitempty"`
	Uncached int `json:"uncached"`
}

// Input is all of a request.
func (u Use) Input() int { return u.Read + u.Written + u.Hour + u.Uncached }

func (u Use) plus(v Use) Use {
	return Use{u.Read + v.Read, u.Written + v.Written, u.Hour + v.Hour, u.Uncached + v.Uncached}
}

// Prices are relative to a token of input that is not cached.
type Prices struct {
	Read    float64 `json:"read"`
	Written float64 `json:"written"`
	Hour    float64 `json:"written_hour,omitempty"`
}

// Cost is that of a use, in tokens of input that are not cached.
func (p Prices) Cost(u Use) float64 {
	return float64(u.Uncached) + p.Read*float64(u.Read) + p.Written*float64(u.Written) + p.Hour*float64(u.Hour)
}

// A rule says what a cache makes of a request, and remembers it.
type rule interface {
	send(at time.Time, r *request) (Use, error)
}

// A Provider is an encoding, with the rules of the cache behind it.
type Provider struct {
	Name   string
	Prices Prices
	model  psych.Model
	body   func(*psych.Request) ([]byte, error)
	rule   func() rule
}

// Names are what New takes.
func Names() string { return "anthropic:MODEL, bedrock:MODEL or openai:MODEL" }

// defaults are the models of names without one.
var defaults = map[string]string{"anthropic": "claude-sonnet-5", "bedrock": "claude-sonnet-5", "openai": "gpt-5.5"}

// New finds a provider by a URL, as it names a model, with the parameters of
// its adapter that change a body: anthropic:claude-opus-5?cache_ttl=1h. Without
// a model it takes one. What is wrong matches psych.ErrInvalid.
func New(name string) (*Provider, error) {
	if model, ok := defaults[name]; ok {
		name += ":" + model
	}
	u, err := url.Parse(name)
	if err != nil {
		return nil, fmt.Errorf("cachesim: %.80q: want %s: %w: %w", name, Names(), psych.ErrInvalid, err)
	}
	if _, ok := defaults[u.Scheme]; !ok {
		return nil, fmt.Errorf("cachesim: no rules are known of %.80q: want %s: %w", name, Names(), psych.ErrInvalid)
	}
	model, err := messages.ModelName(u)
	if err != nil {
		return nil, fmt.Errorf("cachesim: %w", err)
	}
	p := &Provider{Name: name}
	if u.Scheme == "openai" {
		err = p.openAI(model, u)
	} else {
		err = p.messages(model, u)
	}
	if err != nil {
		return nil, fmt.Errorf("cachesim: %s: %w", name, err)
	}
	return p, nil
}

// codecModel is a Model that can't be called.
type codecModel struct{ codec psych.Codec }

func (m codecModel) Codec() psych.Codec { return m.codec }

func (m codecModel) Generate(context.Context, *psych.Request, func(psych.Delta)) (*psych.Response, error) {
	return nil, &psych.ModelError{Message: "a simulated model answers nothing", Err: errors.ErrUnsupported}
}

func (p *Provider) messages(model string, u *url.URL) error {
	params, err := psych.Params(u, messages.Parameters()...)
	if err != nil {
		return err
	}
	o := messages.Options{Model: model}
	if err := o.Set(params); err != nil {
		return err
	}
	f, err := messages.New(o)
	if err != nil {
		return err
	}
	start := append(psych.AppendEscaped([]byte(`"model":"`), model), `","stream":true`...)
	if u.Scheme == "bedrock" {
		start = []byte(`"anthropic_version":"bedrock-2023-05-31"`)
	}
	p.model = codecModel{f.Codec()}
	p.body = func(r *psych.Request) ([]byte, error) {
		b, err := f.Body(start, r)
		if err != nil {
			return nil, err
		}
		return io.ReadAll(b.Reader())
	}
	p.Prices = Prices{Read: 0.1, Written: 1.25, Hour: 2}
	least := leastOf(model)
	p.rule = func() rule { return &marked{least: least, lookback: 20, entries: map[digest]*entry{}} }
	return nil
}

func (p *Provider) openAI(model string, u *url.URL) error {
	params, err := psych.Params(u, "api", "cache_breakpoints", "cache_ttl", "prompt_cache_key")
	if err != nil {
		return err
	}
	catch := &catcher{}
	o := &openai.Options{BaseURL: "http://localhost/v1", HTTPClient: &http.Client{Transport: catch}, CacheKey: params["prompt_cache_key"], CacheTTL: params["cache_ttl"]}
	switch params["api"] {
	case "", "chat":
	case "responses":
		o.Responses = true
	default:
		return fmt.Errorf("api is %.80q: want chat or responses: %w", params["api"], psych.ErrInvalid)
	}
	switch o.CacheTTL {
	case "", "30m", "12h", "in_memory", "24h":
	default:
		return fmt.Errorf("cache_ttl is %.80q: want 30m or 12h, or in_memory or 24h for models before gpt-5.6: %w", o.CacheTTL, psych.ErrInvalid)
	}
	major, minor := versionOf(model)
	marks := major > 5 || major == 5 && minor >= 6
	o.CacheBreakpoints = marks // as the adapter does for OpenAI's own servers
	if v, ok := params["cache_breakpoints"]; ok {
		if o.CacheBreakpoints, err = strconv.ParseBool(v); err != nil {
			return fmt.Errorf("cache_breakpoints is %.80q: want true or false: %w", v, psych.ErrInvalid)
		}
	}
	m := openai.New(model, o)
	p.model = m
	p.body = func(r *psych.Request) ([]byte, error) {
		catch.body = nil
		_, err := m.Generate(context.Background(), r, nil)
		if catch.body == nil {
			return nil, err
		}
		return catch.body, nil
	}
	if marks {
		p.Prices = Prices{Read: 0.1, Written: 1.25}
		p.rule = func() rule { return &breakpoints{entries: map[digest]*entry{}} }
		return nil
	}
	p.Prices = Prices{Read: 0.5, Written: 1}
	for prefix, price := range map[string]float64{"gpt-5": 0.1, "gpt-4.1": 0.25, "o3": 0.25, "o4": 0.25} {
		if strings.HasPrefix(model, prefix) {
			p.Prices.Read = price
		}
	}
	p.rule = func() rule { return &automatic{seen: map[digest]time.Time{}} }
	return nil
}

// A catcher takes the body of a request in place of a server.
type catcher struct{ body []byte }

func (c *catcher) RoundTrip(req *http.Request) (*http.Response, error) {
	defer req.Body.Close()
	var err error
	if c.body, err = io.ReadAll(req.Body); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusBadRequest, Status: "400 Bad Request", Header: http.Header{}, Body: http.NoBody, Request: req}, nil
}

var gptVersion = regexp.MustCompile(`^gpt-(\d+)(?:\.(\d+))?`)

func versionOf(model string) (major, minor int) {
	if v := gptVersion.FindStringSubmatch(model); v != nil {
		major, _ = strconv.Atoi(v[1])
		minor, _ = strconv.Atoi(v[2]) // none is 0
	}
	return major, minor
}

// leasts are the least sizes of a cached prefix, in tokens, the first that
// matches. What is documented of a later model is not known here: the largest
// is taken.
var leasts = []struct {
	model *regexp.Regexp
	least int
}{
	{regexp.MustCompile(`(opus|fable|mythos)-5(\D|$)`), 512},
	{regexp.MustCompile(`opus-4-[567](\D|$)|haiku-4-5|mythos-preview`), 4096},
	{regexp.MustCompile(`haiku-3|3-5-haiku|3-haiku`), 2048},
	{regexp.MustCompile(`sonnet-5(\D|$)|sonnet-4|opus-4|claude-3`), 1024},
}

func leastOf(model string) int {
	for _, l := range leasts {
		if l.model.MatchString(model) && !later.MatchString(model) {
			return l.least
		}
	}
	return 4096
}

// later is a version behind those of leasts.
var later = regexp.MustCompile(`-5-\d(\D|$)`)

// Model encodes as the provider wants it; it can't be called.
func (p *Provider) Model() psych.Model { return p.model }

// A Simulator is the cache of one provider as one Run would have it.
type Simulator struct {
	p    *Provider
	rule rule
	last time.Time
}

// Simulator returns an empty cache.
func (p *Provider) Simulator() *Simulator { return &Simulator{p: p, rule: p.rule()} }

// Send sends a request, at a time not before that of the last. A request that
// the provider would refuse for its markers is an error matching
// psych.ErrInvalid.
func (s *Simulator) Send(at time.Time, r *psych.Request) (Use, error) {
	body, err := s.p.body(r)
	if err != nil {
		return Use{}, fmt.Errorf("cachesim: %s: %w", s.p.Name, err)
	}
	return s.SendBody(at, body)
}

// SendBody is Send of a body.
func (s *Simulator) SendBody(at time.Time, body []byte) (Use, error) {
	if at.Before(s.last) {
		return Use{}, fmt.Errorf("cachesim: a request at %s, and one at %s before it: %w", at, s.last, psych.ErrInvalid)
	}
	s.last = at
	req, err := parse(body)
	if err == nil {
		var u Use
		if u, err = s.rule.send(at, req); err == nil {
			return u, nil
		}
	}
	return Use{}, fmt.Errorf("cachesim: %s: %w: %w", s.p.Name, psych.ErrInvalid, err)
}

// A Report is what the requests of a Run would take.
type Report struct {
	Provider string       `json:"provider"`
	Estimate bool         `json:"estimate"` // true: no provider said so
	Calls    []CallReport `json:"calls"`
	Total    Use          `json:"total"`
	HitRate  *float64     `json:"hit_rate"` // read by input tokens, over the calls from the second on; nil without any
	Cost     float64      `json:"cost"`     // of the input, in uncached tokens
	Relative float64      `json:"relative"` // Cost by that of the same without a cache
	LeftOut  int          `json:"left_out"` // calls that failed, and so took nothing
	Unmade   int          `json:"not_made"` // requests that can't be made again
}

// A CallReport is one model call.
type CallReport struct {
	Call int `json:"call"`
	Turn int `json:"turn"`
	Try  int `json:"try,omitempty"`
	Use
}

// Run simulates the requests of a Run as they would have been made for the
// provider, at the times of its log. Calls that failed are left out.
func (p *Provider) Run(ctx context.Context, rt *psych.Runtime, key psych.RunKey) (*Report, error) {
	told, err := rt.Report(ctx, key)
	if err != nil {
		return nil, err
	}
	s := p.Simulator()
	rep := &Report{Provider: p.Name, Estimate: true, Calls: []CallReport{}}
	var later Use
	for c, err := range rt.Replay(ctx, key, &psych.ReplayOptions{As: p.model}) {
		switch {
		case err != nil:
			return nil, err
		case c.Call <= len(told.ModelCalls) && told.ModelCalls[c.Call-1].Outcome == "failed":
			rep.LeftOut++
			continue
		case c.Err != nil:
			rep.Unmade++
			continue
		}
		at := c.Time
		if at.Before(s.last) { // the clocks of two workers
			at = s.last
		}
		u, err := s.Send(at, c.Request)
		if err != nil {
			return nil, fmt.Errorf("cachesim: model call %d: %w", c.Call, err)
		}
		if rep.Total = rep.Total.plus(u); len(rep.Calls) > 0 {
			later = later.plus(u)
		}
		rep.Calls = append(rep.Calls, CallReport{c.Call, c.Turn, c.Try, u})
	}
	rep.Cost = p.Prices.Cost(rep.Total)
	if n := rep.Total.Input(); n > 0 {
		rep.Relative = rep.Cost / float64(n)
	}
	if n := later.Input(); n > 0 {
		rate := float64(later.Read) / float64(n)
		rep.HitRate = &rate
	}
	return rep, nil
}

// An entry is a prefix in a cache.
type entry struct {
	ttl  time.Duration
	ends time.Time
}

func (e *entry) holds(at time.Time) bool { return e != nil && !e.ends.Before(at) }

// marked is a cache that is written where cache_control stands.
type marked struct {
	least, lookback int
	entries         map[digest]*entry
}

func (m *marked) send(at time.Time, r *request) (Use, error) {
	var marks []int
	for i := range r.blocks {
		if r.blocks[i].ttl > 0 {
			if n := len(marks); n > 0 && r.blocks[marks[n-1]].ttl < r.blocks[i].ttl {
				return Use{}, errors.New("a marker of an hour stands behind one of 5 minutes")
			}
			marks = append(marks, i)
		}
	}
	if len(marks) > 4 {
		return Use{}, fmt.Errorf("%d markers: the provider takes 4 at most", len(marks))
	}
	read, hit := 0, -1
	for _, i := range marks {
		for j := i; j > max(-1, i-m.lookback); j-- {
			if j > hit && m.entries[r.blocks[j].prefix].holds(at) {
				hit, read = j, r.blocks[j].tokens()
			}
		}
	}
	u := Use{Read: read, Uncached: r.tokens() - read}
	from := read
	for _, i := range marks {
		b := &r.blocks[i]
		if b.tokens() < m.least {
			continue
		}
		e := m.entries[b.prefix]
		if i > hit {
			if b.ttl > 5*time.Minute {
				u.Hour += b.tokens() - from
			} else {
				u.Written += b.tokens() - from
			}
			u.Uncached -= b.tokens() - from
			from = b.tokens()
			e = nil
		}
		if !e.holds(at) {
			if i <= hit {
				continue // it is read as a part of a longer one, and not written
			}
			e = &entry{ttl: b.ttl}
			m.entries[b.prefix] = e
		}
		e.ends = at.Add(e.ttl)
	}
	if hit >= 0 {
		e := m.entries[r.blocks[hit].prefix]
		e.ends = at.Add(e.ttl)
	}
	return u, nil
}

// breakpoints is a cache that is written where prompt_cache_breakpoint stands,
// and at the newest message.
type breakpoints struct{ entries map[digest]*entry }

const (
	leastOpenAI = 1024
	keptOpenAI  = 30 * time.Minute
)

func (m *breakpoints) send(at time.Time, r *request) (Use, error) {
	var explicit, ends []int
	for i := range r.blocks {
		if r.blocks[i].breakpoint {
			explicit = append(explicit, i)
		}
		if r.blocks[i].ends {
			ends = append(ends, i)
		}
	}
	looked, write := slices.Clone(explicit), explicit
	if !r.explicit && len(ends) > 0 {
		looked = append(looked, ends...)
		slices.Sort(looked)
		write = append(slices.Clone(explicit[max(0, len(explicit)-3):]), ends[len(ends)-1])
	}
	kept := keptOpenAI
	if r.ttl == "12h" {
		kept = 12 * time.Hour
	}
	u := Use{}
	hit := -1
	for _, i := range looked[max(0, len(looked)-80):] {
		if m.entries[r.blocks[i].prefix].holds(at) {
			hit = max(hit, i)
		}
	}
	if hit >= 0 {
		m.entries[r.blocks[hit].prefix].ends = at.Add(kept)
		u.Read = r.blocks[hit].tokens()
	}
	from := u.Read
	for _, i := range write[max(0, len(write)-4):] {
		if n := r.blocks[i].tokens(); n >= leastOpenAI && i > hit {
			u.Written += max(0, n-from)
			from = max(from, n)
			m.entries[r.blocks[i].prefix] = &entry{ends: at.Add(kept)}
		}
	}
	u.Uncached = r.tokens() - from
	return u, nil
}

// automatic is a cache of every prefix.
type automatic struct {
	seen  map[digest]time.Time // until when, by the prefix to the end of a block
	last  *request
	until time.Time // of last
}

func (m *automatic) send(at time.Time, r *request) (Use, error) {
	hit := 0 // characters
	i := len(r.blocks) - 1
	for ; i >= 0; i-- {
		if until, ok := m.seen[r.blocks[i].prefix]; ok && !until.Before(at) {
			hit = r.blocks[i].chars
			break
		}
	}
	// A part of the next block, as the request before had it.
	if next := i + 1; m.last != nil && !m.until.Before(at) && next < len(r.blocks) && next < len(m.last.blocks) && (next == 0 || m.last.blocks[i].prefix == r.blocks[i].prefix) {
		hit += common(m.last.blocks[next].text, r.blocks[next].text)
	}
	kept := 5 * time.Minute
	if r.retention == "24h" {
		kept = 24 * time.Hour
	}
	for i := range r.blocks {
		m.seen[r.blocks[i].prefix] = at.Add(kept)
	}
	m.last, m.until = r, at.Add(kept)
	read := min(estimate(hit), r.tokens())
	if read -= read % 128; read < leastOpenAI {
		read = 0
	}
	return Use{Read: read, Uncached: r.tokens() - read}, nil
}
