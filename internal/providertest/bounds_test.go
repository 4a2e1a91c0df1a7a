package providertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/internal/cachesim"
	"github.com/psych-go/psych-go/psych"
)

// A bound is what a mission may cost, whatever the strategy and the provider: a
// little over what is measured. Bounds are not there to be tuned, but to fail
// when something is sent whole that was sent as a preview or not at all, or
// sent otherwise than before.
type bound struct {
	largest, total int   // characters of a request, and of all, beside tools and system
	rates          rates // read from the cache, by the input of all requests but the first
}

// rates are what a mission must have at least by the rules of each provider, as
// internal/cachesim knows them. They have the instructions of a play, so that
// its least size keeps none from being cached.
type rates [3]float64

// caches are the rules, in the order of rates: Anthropic's and Bedrock's,
// OpenAI's before gpt-5.6 and from there on, each with models and ways of
// marking that it holds for.
var caches = [len(rates{})]struct {
	marked bool // nothing but what is marked is read
	models []string
}{
	{true, []string{"anthropic:claude-sonnet-5", "anthropic:claude-opus-4-6?cache_ttl=1h", "bedrock:anthropic.claude-haiku-4-5"}},
	{false, []string{"openai:gpt-4.1", "openai:gpt-5.5?api=responses"}},
	{true, []string{"openai:gpt-5.6?cache_breakpoints=true", "openai:gpt-5.6?api=responses&cache_breakpoints=true"}},
}

var bounds = map[string]bound{
	"steps":            {2100, 6450, rates{0.980, 0.970, 0.980}},
	"huge":             {2400, 4200, rates{0.955, 0.945, 0.960}},
	"batch":            {8900, 9450, rates{0.720, 0.725, 0.715}}, // of its two requests the second has 14 results
	"wide":             {7500, 15_100, rates{0.895, 0.895, 0.885}},
	"exchanges":        {19_000, 41_500, rates{0.680, 0.680, 0.685}}, // pages of 17,000 characters, each trimmed an exchange later
	"attachments":      {4050, 9150, rates{0.940, 0.935, 0.950}},
	"failing":          {5550, 13_500, rates{0.935, 0.925, 0.940}},
	"context":          {9250, 14_700, rates{0.830, 0.830, 0.835}},
	"window":           {3400, 9850, rates{0.925, 0.920, 0.920}},
	"memories":         {1550, 4300, rates{0.965, 0.955, 0.965}},
	"servers":          {6450, 14_300, rates{0.925, 0.920, 0.920}},
	"changes":          {3350, 13_600, rates{0.970, 0.965, 0.975}},
	"skills":           {940, 1500, rates{0.975, 0.960, 0.980}},
	"messages between": {1650, 3250, rates{0.975, 0.955, 0.975}},
	"aborted":          {1750, 3700, rates{0.970, 0.960, 0.965}},
	"refused":          {2800, 14_300, rates{0.980, 0.965, 0.980}},
	"workers":          {5350, 19_900, rates{0.945, 0.945, 0.950}},
	"letters":          {390_000, 1_169_000, rates{0.995, 0.990, 0.995}}, // an image of 150,000 bytes, and as much text
	"streams":          {4500, 20_800, rates{0.970, 0.960, 0.970}},
	"retried":          {1150, 3100, rates{0.980, 0.970, 0.985}},
	"budget":           {1750, 4650, rates{0.980, 0.970, 0.975}},
	"providers":        {3800, 15_800, rates{0.805, 0.805, 0.800}}, // tools are others where the next provider takes less
	"late":             {1600, 4400, rates{0.645, 0.640, 0.645}},   // the second of two exchanges begins with nothing
}

// forgotten are the model calls before which every cache forgets all.
var forgotten = map[string]int{"late": 3}

// openings are the characters of tools and system, beside the instructions of a
// play, that a strategy may show of the two servers.
var openings = map[string]int{"eager": 16_000, "deferred": 4600, "facade": 6500, "search": 5700, "tiered": 16_000, "auto": 16_000}

// check returns what of a play is out of bounds.
func (b *bound) check(t beside, p *play, forgotten int) (wrong []string) {
	t.Helper()
	s, blobs := p.open(t)
	rt, err := psych.New(s, &psych.Options{Blobs: blobs})
	if err != nil {
		t.Fatal(err)
	}
	rep, err := rt.Report(t.Context(), p.key)
	if err != nil {
		t.Fatal(err)
	}
	total, broken := 0, map[int]bool{}
	for i, c := range rep.ModelCalls {
		broken[i+1] = len(c.Breaks) > 0
		n := c.Wire.History + c.Wire.Tail + c.Wire.Envelope
		if total += n; n > b.largest {
			wrong = append(wrong, fmt.Sprintf("call %d sends %d characters: want at most %d", i+1, n, b.largest))
		}
		if n, most := c.Wire.Tools+c.Wire.System-len(instructions), openings[p.spec.Disclosure.Strategy]; n > most {
			wrong = append(wrong, fmt.Sprintf("call %d sends %d characters of tools and system: want at most %d", i+1, n, most))
		}
	}
	if total > b.total {
		wrong = append(wrong, fmt.Sprintf("all calls send %d characters: want at most %d", total, b.total))
	}
	for i, cache := range caches {
		for _, name := range cache.models {
			provider, err := cachesim.New(name)
			if err != nil {
				t.Fatal(err)
			}
			sim, err := provider.Run(t.Context(), rt, p.key)
			if err != nil {
				t.Fatal(err)
			}
			if sim.HitRate == nil || sim.Unmade > 0 {
				wrong = append(wrong, fmt.Sprintf("%s: %d requests, and %d that can't be made", name, len(sim.Calls), sim.Unmade))
			} else if *sim.HitRate < b.rates[i] {
				wrong = append(wrong, fmt.Sprintf("%s reads %.4f of the input: want at least %.3f", name, *sim.HitRate, b.rates[i]))
			}
			for j, c := range sim.Calls {
				if !cache.marked || j == 0 || broken[c.Call] || c.Call == forgotten {
					continue
				}
				if before := sim.Calls[j-1]; c.Read < before.Read+before.Written+before.Hour {
					wrong = append(wrong, fmt.Sprintf("%s: call %d reads %d tokens, without a break, of %+v", name, c.Call, c.Read, before.Use))
				}
			}
		}
	}
	return wrong
}

// Every mission is within its bounds, with every strategy, and by the rules of
// every provider's cache. But for named breaks
// each request reads all that the one before it left in a cache.
func TestBounds(t *testing.T) {
	if len(bounds) != len(missions) {
		t.Errorf("%d missions have bounds, and there are %d", len(bounds), len(missions))
	}
	for i := range missions {
		t.Run(missions[i].name, func(t *testing.T) {
			b, ok := bounds[missions[i].name]
			if !ok {
				t.Fatal("the mission has no bounds")
			}
			together(t, some(i, !slow), func(t beside, k int) {
				for _, w := range b.check(t, played(t, i, k), forgotten[missions[i].name]) {
					t.Errorf("with strategy %s: %s", strategies[k], w)
				}
			})
		})
	}
}

// What is out of bounds is noticed.
func TestBoundsNotice(t *testing.T) {
	for _, c := range []struct {
		mission, strategy, says string
		bad                     func(*psych.Spec)
	}{
		{"attachments", "deferred", "characters: want at most 4050", func(s *psych.Spec) { s.Limits.LargeResultTokens, s.Limits.BatchResultTokens = 1<<40, 1<<40 }},
		{"steps", "deferred", "characters of tools and system: want at most 4600", func(s *psych.Spec) {
			for i := range s.Connections {
				s.Connections[i].Preload = new(true)
			}
		}},
		{"late", "search", "call 3 reads 0 tokens, without a break", nil},
	} {
		t.Run(c.mission, func(t *testing.T) {
			b := bounds[c.mission]
			i := slices.IndexFunc(missions, func(m mission) bool { return m.name == c.mission })
			p := playOn(beside{t}, inMemory(), i, slices.Index(strategies, c.strategy), c.bad)
			if wrong := strings.Join(b.check(beside{t}, p, 0), "\n"); !strings.Contains(wrong, c.says) {
				t.Errorf("want %q, got\n%s", c.says, wrong)
			}
		})
	}
}
