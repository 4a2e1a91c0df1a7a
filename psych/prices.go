package psych

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/psych-go/psych-go/psych/internal/strictjson"
)

// A Price is what a model costs, in US dollars per million tokens. Nil is
// unknown, never zero.
type Price struct {
	Input          *float64 // neither read from the provider's cache nor written to it
	CacheRead      *float64
	CacheWrite     *float64 // for as long as the provider keeps it by default
	CacheWriteHour *float64 // for an hour
	Output         *float64
	AsOf           string // the day on which it was published so, like 2026-11-05; may be empty
	Source         string // where; may be empty
}

// Prices are what models cost, by name. They are immutable.
type Prices struct{ entries []priceEntry }

type priceEntry struct {
	models []string // patterns
	upTo   int64    // of prompt tokens; 0: any number
	rates
	asOf, source string
}

// rates are in millionths of a dollar per million tokens, which is as many
// billionths of a thousandth of a dollar a token: sums are exact.
type rates struct{ input, read, write, writeHour, output rate }

// A rate is a price; nil is unknown.
type rate *int64

// picos are billionths of a thousandth of a US dollar.
const (
	picosPerDollar     = 1_000_000_000_000
	picosPerTokenPrice = 1_000_000 // of a dollar per million tokens
)

// Bounds of a price list, within which no sum of one call overflows.
const (
	maxPricesBytes = 1 << 20
	maxPrice       = 1000    // dollars per million tokens
	maxCallTokens  = 1 << 30 // more in one call is no count
	maxPattern     = 256     // bytes
)

//go:embed prices.json
var shippedPrices []byte

var parseShipped = sync.OnceValue(func() *Prices {
	p, err := ParsePrices(shippedPrices)
	if err != nil {
		panic(err) // a test parses them
	}
	return p
})

// DefaultPrices are those that this release ships with: the providers' public
// standard ones, each with its day and source, in the file psych/prices.json,
// which is a template for a list of one's own.
func DefaultPrices() *Prices { return parseShipped() }

// prices are those of the Runtime. The shipped ones are parsed when they are
// first asked for, which not every process does.
func (r *Runtime) prices() *Prices {
	if r.o.Prices != nil {
		return r.o.Prices
	}
	return DefaultPrices()
}

// ParsePrices decodes a list of prices from JSON of at most 1 MiB, strictly:
//
//	{
//	  "about": "what a person should know",
//	  "models": [
//	    {"models": ["openai:x", "openai:x-20??-??-??"], "up_to_input": 272000,
//	     "input": 2, "cache_read": 0.2, "cache_write": 2.5, "cache_write_hour": null, "output": 10,
//	     "as_of": "2026-11-05", "source": "https://…"}
//	  ]
//	}
//
// Prices are in US dollars per million tokens, from 0 to 1000 with at most 6
// decimals. Each of the five must be there: null says that it is not known. A
// provider that takes no more for writing than for input has the two equal.
// An entry holds for models whose name a pattern of it matches as a whole (* is
// any characters, ? is one), and for calls of at most up_to_input prompt
// tokens; the first that does is taken. about, as_of and source are for
// people, and may be absent.
//
// The error matches [ErrInvalid] and names every problem by its path.
func ParsePrices(data []byte) (*Prices, error) {
	var ps problems
	fail := func() (*Prices, error) {
		parts := make([]string, len(ps))
		for i, p := range ps {
			parts[i] = p.Message
			if p.Path != "" {
				parts[i] = p.Path + ": " + p.Message
			}
		}
		return nil, fmt.Errorf("psych: prices: %s: %w", strings.Join(parts, "; "), ErrInvalid)
	}
	if len(data) > maxPricesBytes {
		ps.add("", "they have %d bytes: want at most %d", len(data), maxPricesBytes)
		return fail()
	}
	var doc struct {
		About  string `json:"about"`
		Models []struct {
			Models         []string        `json:"models"`
			UpToInput      int64           `json:"up_to_input"`
			Input          json.RawMessage `json:"input"`
			CacheRead      json.RawMessage `json:"cache_read"`
			CacheWrite     json.RawMessage `json:"cache_write"`
			CacheWriteHour json.RawMessage `json:"cache_write_hour"`
			Output         json.RawMessage `json:"output"`
			AsOf           string          `json:"as_of"`
			Source         string          `json:"source"`
		} `json:"models"`
	}
	if err := strictjson.Decode(data, &doc); err != nil {
		var strict *strictjson.Error
		if !errors.As(err, &strict) {
			ps.add("", "%v", err)
		} else {
			for _, p := range strict.Problems {
				ps.add(p.Path, "%s", p.Message)
			}
		}
		return fail()
	}
	if len(doc.Models) == 0 {
		ps.add("models", "is empty: want an entry a model")
	}
	type place struct {
		entry int
		upTo  int64
	}
	last := map[string]place{}
	out := &Prices{entries: make([]priceEntry, len(doc.Models))}
	for i := range doc.Models {
		d, at := &doc.Models[i], strictjson.Index("models", i)
		e := &out.entries[i]
		*e = priceEntry{models: d.Models, upTo: d.UpToInput, asOf: d.AsOf, source: d.Source}
		e.input = ps.rate(at+".input", d.Input)
		e.read = ps.rate(at+".cache_read", d.CacheRead)
		e.write = ps.rate(at+".cache_write", d.CacheWrite)
		e.writeHour = ps.rate(at+".cache_write_hour", d.CacheWriteHour)
		e.output = ps.rate(at+".output", d.Output)
		if d.UpToInput < 0 {
			ps.add(at+".up_to_input", "is %d: want a number of tokens, or none", d.UpToInput)
		}
		if _, err := time.Parse(time.DateOnly, d.AsOf); err != nil && d.AsOf != "" {
			ps.add(at+".as_of", "is %.40q: want a day like 2026-11-05", d.AsOf)
		}
		if len(d.Models) == 0 {
			ps.add(at+".models", "is empty: want the name of a model, or a pattern")
		}
		for j, m := range d.Models {
			path := strictjson.Index(at+".models", j)
			if m == "" {
				ps.add(path, "is empty: want the name of a model, or a pattern")
				continue
			}
			ps.label(path, m, maxPattern)
			if l, ok := last[m]; ok && (l.upTo == 0 || d.UpToInput != 0 && d.UpToInput <= l.upTo) {
				ps.add(path, "%q is never reached: models[%d] holds for it", m, l.entry)
			}
			last[m] = place{i, d.UpToInput}
		}
	}
	if len(ps) > 0 {
		return fail()
	}
	return out, nil
}

// rate reads one price of a list.
func (ps *problems) rate(path string, raw json.RawMessage) rate {
	var usd *float64
	switch err := json.Unmarshal(raw, &usd); {
	case raw == nil:
		ps.add(path, "is missing: want US dollars per million tokens, or null if it is not known")
		return nil
	case err != nil:
		ps.add(path, "got %.40s, want US dollars per million tokens, or null if it is not known", raw)
		return nil
	case usd == nil:
		return nil
	}
	n := math.Round(*usd * picosPerTokenPrice)
	switch {
	case !(*usd >= 0 && *usd <= maxPrice):
		ps.add(path, "is %v: want 0 to %d US dollars per million tokens", *usd, maxPrice)
		return nil
	case math.Abs(*usd*picosPerTokenPrice-n) > 1e-3:
		ps.add(path, "is %v: want at most 6 decimals", *usd)
		return nil
	}
	r := int64(n)
	return &r
}

// Find returns what a call of a model costs that has so many prompt tokens; ok
// is false if no entry is for it. The name is that of a Spec, a URL as a rule:
// its parameters are left aside, but for one that names another server.
func (p *Prices) Find(model string, input int64) (_ Price, ok bool) {
	e := p.find(model, input)
	if e == nil {
		return Price{}, false
	}
	usd := func(r rate) *float64 {
		if r == nil {
			return nil
		}
		x := float64(*r) / picosPerTokenPrice
		return &x
	}
	return Price{usd(e.input), usd(e.read), usd(e.write), usd(e.writeHour), usd(e.output), e.asOf, e.source}, true
}

func (p *Prices) find(model string, input int64) *priceEntry {
	if name, query, ok := strings.Cut(model, "?"); ok && !strings.Contains(query, "base_url=") && !strings.Contains(query, "endpoint=") {
		model = name
	}
	for i := range p.entries {
		e := &p.entries[i]
		if (e.upTo == 0 || input <= e.upTo) && slices.ContainsFunc(e.models, func(pattern string) bool { return matches(pattern, model) }) {
			return e
		}
	}
	return nil
}

// matches reports whether a pattern matches all of a name.
func matches(pattern, name string) bool {
	p, n := 0, 0
	star, from := -1, 0 // the last *, and where in name what follows it was tried
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, n
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == name[n]):
			p++
			n++
		case star >= 0:
			from++
			p, n = star+1, from
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// Cost is what a call of a model costs by its usage, in US dollars. known is
// false where a price is not known, or a part of the usage that matters: how
// much was read from the cache does not where that costs the same.
func (p *Prices) Cost(model string, u Usage) (usd float64, known bool) {
	n, known := p.cost(model, &u)
	return dollars(n), known
}

func dollars(picos int64) float64 { return float64(picos) / picosPerDollar }

// cost is Cost in picos.
func (p *Prices) cost(model string, u *Usage) (picos int64, known bool) {
	input, ok1 := counted(u.Input)
	output, ok2 := counted(u.Output)
	if !ok1 || !ok2 {
		return 0, false
	}
	e := p.find(model, input)
	if e == nil {
		return 0, false
	}
	known = true
	add := func(tokens int64, r rate) {
		switch {
		case tokens == 0:
		case r == nil || tokens < 0: // parts that are more than the whole
			known = false
		default:
			picos += tokens * *r
		}
	}
	// share is a part of the whole; one that is not known makes no difference
	// where its price is that of the rest.
	share := func(n *int64, r, rest rate) int64 {
		tokens, ok := counted(n)
		if !ok && (r == nil || rest == nil || *r != *rest) {
			known = false
		}
		return tokens
	}
	read := share(u.CacheRead, e.read, e.input)
	written := share(u.CacheWrite, e.write, e.input)
	hour := int64(0)
	if written > 0 {
		hour = share(u.WriteHour, e.writeHour, e.write)
	}
	add(input-read-written, e.input)
	add(read, e.read)
	add(written-hour, e.write)
	add(hour, e.writeHour)
	add(output, e.output)
	if !known {
		return 0, false
	}
	return picos, true
}

// counted is a number of tokens that a provider reported, if it can be one.
func counted(n *int64) (int64, bool) {
	if n == nil || *n < 0 || *n > maxCallTokens {
		return 0, false
	}
	return *n, true
}

// Ratios of prices where a list does not know better: those of most models of
// the larger providers.
const (
	usualRead  = 100 // thousandths of the price of input
	usualWrite = 1250
)

// ratios are what a model takes for reading from its cache, and for writing to
// it, in thousandths of what it takes for input.
func (p *Prices) ratios(model string, hour bool) (read, write int64) {
	read, write = usualRead, usualWrite
	e := p.find(model, 0)
	if e == nil || e.input == nil || *e.input == 0 {
		return read, write
	}
	if e.read != nil {
		read = *e.read * 1000 / *e.input
	}
	if w := e.write; hour && e.writeHour != nil {
		write = *e.writeHour * 1000 / *e.input
	} else if w != nil {
		write = *w * 1000 / *e.input
	}
	return read, write
}
