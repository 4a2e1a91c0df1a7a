package psych

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// UseProjection admits new Runs with a version of the projection, until the
// test ends.
func UseProjection(t testing.TB, version int) {
	before := projectionVersion
	projectionVersion = version
	t.Cleanup(func() { projectionVersion = before })
}

// entry is a price list of one entry, with each of the five prices as it is
// written.
func entry(input, read, write, hour, output string) string {
	return fmt.Sprintf(`{"models": [{"models": ["m"], "input": %s, "cache_read": %s, "cache_write": %s, "cache_write_hour": %s, "output": %s}]}`, input, read, write, hour, output)
}

func TestShippedPrices(t *testing.T) {
	p := DefaultPrices()
	for i, e := range p.entries {
		for _, r := range []rate{e.input, e.read, e.write, e.writeHour, e.output} {
			if r == nil || *r <= 0 {
				t.Errorf("models[%d] %s: a price is unknown or zero", i, e.models[0])
			}
		}
		if !(*e.read < *e.input && *e.input <= *e.write && *e.write <= *e.writeHour && *e.input < *e.output) {
			t.Errorf("models[%d] %s: the prices are not in the order read < input <= write <= hour, input < output", i, e.models[0])
		}
		if e.asOf == "" || e.source == "" {
			t.Errorf("models[%d] %s: no day or no source", i, e.models[0])
		}
	}
	for _, c := range []struct {
		model              string
		input              int64
		price, read, write float64
	}{
		{"anthropic:claude-opus-5-5", 10, 4, 0.2, 5},
		{"anthropic:claude-opus-5", 10, 5, 0.5, 6.25},
		{"anthropic:claude-opus-5-20260724", 10, 5, 0.5, 6.25},
		{"anthropic:claude-sonnet-5-5?cache_ttl=1h&max_tokens=9", 10, 2, 0.1, 2.5},
		{"anthropic:claude-haiku-5-5", 100_000, 0.1, 0.01, 0.125},
		{"anthropic:claude-haiku-5-5", 100_001, 0.5, 0.05, 0.625},
		{"bedrock:global.anthropic.claude-sonnet-4-5-20250929-v1:0", 10, 3, 0.3, 3.75},
		{"bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0?region=us-west-2", 10, 3.3, 0.33, 4.125},
		{"bedrock:arn:aws:bedrock:eu-west-1:1:inference-profile/eu.anthropic.claude-haiku-4-5-20251001-v1:0", 10, 1.1, 0.11, 1.375},
		{"bedrock:arn:aws:bedrock:eu-west-1:1:inference-profile/global.anthropic.claude-haiku-4-5-20251001-v1:0", 10, 1, 0.1, 1.25},
		{"openai:gpt-5", 10, 1.25, 0.125, 1.25},
		{"openai:gpt-5-mini-2025-08-07", 10, 0.25, 0.025, 0.25},
		{"openai:gpt-6.1-terra", 272_000, 1, 0.05, 1.25},
		{"openai:gpt-6.1-terra", 272_001, 2, 0.1, 2.5},
	} {
		got, ok := p.Find(c.model, c.input)
		if !ok || *got.Input != c.price || *got.CacheRead != c.read || *got.CacheWrite != c.write || got.AsOf == "" || got.Source == "" {
			t.Errorf("%s with %d tokens: %+v, %v", c.model, c.input, got, ok)
		}
	}
	// What is not known must not be taken for its neighbor.
	for _, model := range []string{
		"", "x", "script:play.yaml", "anthropic:claude-opus-5-7", "anthropic:claude-opus-5-50", "openai:gpt-5-pro", "openai:gpt-5.6-sol", "gpt-5", "openai:GPT-5",
		"openai:gpt-5?base_url=http://127.0.0.1:1/v1", "anthropic:claude-opus-5?max_tokens=1&base_url=https://example.com", "bedrock:anthropic.claude-opus-5?endpoint=http://127.0.0.1",
		"bedrock:arn:aws:bedrock:us-east-1:1:application-inference-profile/abc", "anthropic:claude-sonnet-4-5:200001",
	} {
		if got, ok := p.Find(model, 10); ok {
			t.Errorf("%s: %+v", model, got)
		}
	}
	if got, ok := p.Find("anthropic:claude-sonnet-4-5", 200_001); ok {
		t.Errorf("a long prompt of a model whose price for it is not known: %+v", got)
	}
}

func TestCost(t *testing.T) {
	n := func(n int64) *int64 { return &n }
	parse := func(s string) *Prices {
		p, err := ParsePrices([]byte(s))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	all := parse(entry("2", "0.2", "2.5", "4", "10"))
	for name, c := range map[string]struct {
		p    *Prices
		u    Usage
		want float64 // -1: unknown
	}{
		"each part at its price":            {all, Usage{Input: n(1000), CacheRead: n(500), CacheWrite: n(300), WriteHour: n(100), Output: n(10)}, 0.0004 + 0.0001 + 0.0005 + 0.0004 + 0.0001},
		"nothing":                           {all, Usage{Input: n(0), CacheRead: n(0), CacheWrite: n(0), Output: n(0)}, 0},
		"no usage":                          {all, Usage{}, -1},
		"no prompt":                         {all, Usage{CacheRead: n(1), CacheWrite: n(0), Output: n(1)}, -1},
		"no completion":                     {all, Usage{Input: n(1), CacheRead: n(0), CacheWrite: n(0)}, -1},
		"what was read is unknown":          {all, Usage{Input: n(1), CacheWrite: n(0), Output: n(1)}, -1},
		"what was written is unknown":       {all, Usage{Input: n(1), CacheRead: n(0), Output: n(1)}, -1},
		"for how long is unknown":           {all, Usage{Input: n(1), CacheRead: n(0), CacheWrite: n(1), Output: n(1)}, -1},
		"for how long nothing was written":  {all, Usage{Input: n(1), CacheRead: n(0), CacheWrite: n(0), Output: n(0)}, 0.000002},
		"parts that are more than a whole":  {all, Usage{Input: n(1), CacheRead: n(1), CacheWrite: n(1), WriteHour: n(0), Output: n(0)}, -1},
		"an hour that is more than written": {all, Usage{Input: n(9), CacheRead: n(1), CacheWrite: n(1), WriteHour: n(2), Output: n(0)}, -1},
		"negative":                          {all, Usage{Input: n(-1), CacheRead: n(0), CacheWrite: n(0), Output: n(0)}, -1},
		"no number of tokens":               {all, Usage{Input: n(math.MaxInt64), CacheRead: n(0), CacheWrite: n(0), Output: n(0)}, -1},
		"writing costs the same":            {parse(entry("2", "0.2", "2", "2", "10")), Usage{Input: n(1000), CacheRead: n(500), Output: n(0)}, 0.0011},
		"written, and it costs the same":    {parse(entry("2", "0.2", "2.5", "2.5", "10")), Usage{Input: n(1000), CacheRead: n(500), CacheWrite: n(500), Output: n(0)}, 0.00135},
		"everything costs the same":         {parse(entry("2", "2", "2", "2", "10")), Usage{Input: n(1000), Output: n(0)}, 0.002},
		"an unknown price that is asked":    {parse(entry("2", "null", "2", "2", "10")), Usage{Input: n(1000), CacheRead: n(500), Output: n(0)}, -1},
		"an unknown price that is not":      {parse(entry("2", "null", "null", "null", "10")), Usage{Input: n(1000), CacheRead: n(0), CacheWrite: n(0), Output: n(0)}, 0.002},
		"free":                              {parse(entry("0", "0", "0", "0", "0")), Usage{Input: n(1000), Output: n(1000)}, 0},
		"the most that there is":            {parse(entry("1000", "1000", "1000", "1000", "1000")), Usage{Input: n(1 << 30), CacheRead: n(0), CacheWrite: n(1 << 30), WriteHour: n(0), Output: n(1 << 30)}, 1000 * (1 << 31) / 1e6},
	} {
		got, known := c.p.Cost("m", c.u)
		if known != (c.want >= 0) || known && math.Abs(got-c.want) > 1e-15*max(1, c.want) || !known && got != 0 {
			t.Errorf("%s: %v, %v; want %v", name, got, known, c.want)
		}
		if got, known := c.p.Cost("other", c.u); known || got != 0 {
			t.Errorf("%s, of an unknown model: %v", name, got)
		}
	}
}

func TestParsePricesRefuses(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string // parts of the message
	}{
		{"", []string{"psych: prices: "}},
		{"[]", []string{"got an array, want an object"}},
		{`{"models": []}`, []string{"models: is empty"}},
		{`{"model": []}`, []string{"model: unknown field: want one of about, models"}},
		// A hole is named; what is not known is said to be so.
		{`{"models": [{"models": ["m"], "input": 1, "cache_read": 1, "cache_write": 1, "output": 1}]}`, []string{"models[0].cache_write_hour: is missing: want US dollars per million tokens, or null"}},
		{`{"models": [{"models": ["m"]}, {}]}`, []string{"models[0].input: is missing", "models[0].cache_read: is missing", "models[0].cache_write: is missing", "models[0].output: is missing", "models[1].output: is missing", "models[1].models: is empty"}},
		{entry("-1", "1", "1", "1", "1"), []string{"models[0].input: is -1: want 0 to 1000"}},
		{entry("1", "1001", "1", "1", "1"), []string{"models[0].cache_read: is 1001: want 0 to 1000"}},
		{entry("1", "1", "0.0000001", "1", "1"), []string{"models[0].cache_write: is 1e-07: want at most 6 decimals"}},
		{entry("1", "1", "1", `"1"`, "1"), []string{`models[0].cache_write_hour: got "1", want US dollars`}},
		{entry("1", "1", "1", "1", "1e300"), []string{"models[0].output: is 1e+300: want 0 to 1000"}},
		{strings.Replace(entry("1", "1", "1", "1", "1"), `"input"`, `"up_to_input": -1, "as_of": "May", "prize": 1, "input"`, 1), []string{"models[0].prize: unknown field"}},
		{strings.Replace(entry("1", "1", "1", "1", "1"), `"input"`, `"up_to_input": -1, "as_of": "May", "input"`, 1), []string{"models[0].up_to_input: is -1", `models[0].as_of: is "May": want a day like`}},
		{strings.Replace(entry("1", "1", "1", "1", "1"), `"m"`, `"m", "", "a\nb", "m"`, 1), []string{"models[0].models[1]: is empty", `models[0].models[2]: "a\nb" holds a control character`, `models[0].models[3]: "m" is never reached: models[0] holds for it`}},
		{`{"about": "` + strings.Repeat("x", 1<<20) + `"}`, []string{"bytes: want at most 1048576"}},
	} {
		p, err := ParsePrices([]byte(c.in))
		if p != nil || !errors.Is(err, ErrInvalid) {
			t.Errorf("%.80s: %v, %v; want ErrInvalid", c.in, p, err)
			continue
		}
		for _, s := range c.want {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%.80s: %v; want %q", c.in, err, s)
			}
		}
	}
	// Of one name the first entry that holds is taken, so that none behind it
	// may be for fewer tokens.
	one := func(upTo int) string {
		e := strings.TrimSuffix(strings.TrimPrefix(entry("1", "1", "1", "1", "1"), `{"models": [`), `]}`)
		return strings.Replace(e, `"input"`, fmt.Sprintf(`"up_to_input": %d, "input"`, upTo), 1)
	}
	for _, c := range []struct {
		first, second int
		ok            bool
	}{{10, 20, true}, {10, 0, true}, {10, 10, false}, {20, 10, false}, {0, 10, false}, {0, 0, false}} {
		_, err := ParsePrices([]byte(`{"models": [` + one(c.first) + `, ` + one(c.second) + `]}`))
		if c.ok != (err == nil) || err != nil && !strings.Contains(err.Error(), "models[1].models[0]: \"m\" is never reached: models[0] holds for it") {
			t.Errorf("up to %d, then up to %d: %v", c.first, c.second, err)
		}
	}
}

// A pattern matches what the regular expression does that says the same.
func TestMatches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*?]{0,8}`).Draw(t, "pattern")
		name := rapid.StringMatching(`[abc]{0,12}`).Draw(t, "name")
		same := regexp.MustCompile("^" + strings.NewReplacer("*", ".*", "?", ".").Replace(pattern) + "$")
		if got, want := matches(pattern, name), same.MatchString(name); got != want {
			t.Errorf("%q on %q: %v, want %v", pattern, name, got, want)
		}
	})
	if long := strings.Repeat("a", 10_000); matches(strings.Repeat("a*", 128)+"b", long) {
		t.Error("it matches")
	}
}

func TestShowUSD(t *testing.T) {
	for usd, want := range map[float64]string{0: "$0.000", 0.0000012345: "$0.000001234", 0.012: "$0.012", 0.5: "$0.5", 0.99999: "$1", 1: "$1.000", 12.3456: "$12.346"} {
		if got := showUSD(usd); got != want {
			t.Errorf("%v: %s, want %s", usd, got, want)
		}
	}
}
