package psych

import (
	"fmt"
	"math"
	"time"
)

// A spend is what model calls used, as far as their providers reported it.
type spend struct{ tokens, uncached, output int64 }

func (s *spend) add(u *Usage) {
	input, ok := counted(u.Input)
	s.tokens += input
	if read, split := counted(u.CacheRead); ok && split {
		s.uncached += max(0, input-read)
	}
	output, _ := counted(u.Output)
	s.tokens += output
	s.output += output
}

// costs are what the answered calls of a Run cost, as far as that is known:
// summed once, and then for what the history gained.
type costs struct {
	of            *state
	items         int // of the history that are in the sums
	run, exchange int64
	exchanges     int  // the one that the second sum is of
	told          bool // the log says that a limit can't bind
}

// cost brings the sums up to date.
func (d *driver) cost() *costs {
	c, s := &d.costs, d.state
	if c.of != s {
		*c = costs{of: s, told: c.told}
	}
	if c.exchanges != s.exchanges {
		c.exchanges, c.exchange = s.exchanges, 0
	}
	for ; c.items < len(s.history); c.items++ {
		it := &s.history[c.items]
		if it.said == nil {
			continue
		}
		n, known := d.rt.prices().cost(it.model, &it.said.Usage)
		if !known && !c.told {
			c.told = true
			d.log.WarnContext(d.ctx, "a model call's cost is not known: limits on cost count it as nothing", "turn", it.said.Turn, "model", it.model)
		}
		c.run = sumOf(c.run, n)
		if c.items >= s.exchange.first {
			c.exchange = sumOf(c.exchange, n)
		}
	}
	return c
}

func sumOf(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func picosOf(usd float64) int64 { return int64(math.Round(usd * picosPerDollar)) }

// limit is how the open exchange ends since a limit is reached, or the zero
// ending. It is decided here, not in the fold, and the close says it: prices
// are no part of the log.
func (d *driver) limit() ending {
	s := d.state
	if s.exchange.turns >= s.limits.Turns {
		return ending{status: StatusExhausted, code: "turns", reason: fmt.Sprintf("the limit of %d turns is reached", s.limits.Turns)}
	}
	var exchange, run int64
	if s.limits.CostUSD > 0 || s.limits.Run.CostUSD > 0 {
		c := d.cost()
		exchange, run = c.exchange, c.run
	}
	if end := reached(s.limits.exchange(), s.exchange.spent, exchange, "", "this exchange used"); end.status != "" {
		return end
	}
	return reached(s.limits.Run, s.spent, run, "run.", "this Run used")
}

// reached compares what was used with a Budget.
func reached(b Budget, s spend, picos int64, scope, who string) ending {
	for _, x := range []struct {
		name, unit  string
		used, limit int64
	}{
		{"tokens", "tokens", s.tokens, b.Tokens},
		{"uncached_tokens", "uncached prompt tokens", s.uncached, b.UncachedTokens},
		{"output_tokens", "completion tokens", s.output, b.OutputTokens},
	} {
		if x.limit > 0 && x.used >= x.limit {
			return ending{status: StatusExhausted, code: scope + x.name, reason: fmt.Sprintf("%s %d %s, of a limit of %d", who, x.used, x.unit, x.limit)}
		}
	}
	if b.CostUSD > 0 && picos >= picosOf(b.CostUSD) {
		return ending{status: StatusExhausted, code: scope + "cost_usd", reason: fmt.Sprintf("%s %s, of a limit of %s", who, showUSD(dollars(picos)), showUSD(b.CostUSD))}
	}
	return ending{}
}

// modelName is the model of this Version, as records, reports and prices know
// it.
func (d *driver) modelName() string {
	if name := d.version.Spec.Model; name != "" {
		return name
	}
	return d.rt.o.DefaultModel
}

// How long providers keep what was cached since it was last used. Where that
// is not known the longer time is assumed, which trims less.
const (
	keptBriefly = 5 * time.Minute
	keptLong    = time.Hour
)

// keepsCache is how long the model says that its provider does; 0: it does not.
func (d *driver) keepsCache() time.Duration {
	if k, ok := As[CacheKeeper](d.model); ok {
		return max(0, k.KeepsCache())
	}
	return 0
}

// A cacheState is what trimming costs and saves: prices in thousandths of that
// of input, and what the provider still has.
type cacheState struct {
	read, write int64
	cold        bool // nothing of the history
	turns       int64
}

// cacheState is as the log tells of the last model call.
func (d *driver) cacheState() cacheState {
	s, p := d.state, d.prompt
	kept, hour := keptLong, false
	if u := s.lastUsage(); u != nil {
		written, ok := counted(u.CacheWrite)
		long, _ := counted(u.WriteHour)
		hour = long > 0
		if ok && written > 0 && !hour {
			kept = keptBriefly
		}
	}
	if says := d.keepsCache(); says > 0 {
		kept = says
	}
	c := cacheState{turns: int64(s.turn)}
	c.read, c.write = d.rt.prices().ratios(d.modelName(), hour)
	sent := s.wire.messages
	c.cold = s.exchange.opened.Sub(s.called) > kept || sent > len(p.history) || p.id != s.wire.codec || p.chain(sent) != s.wire.history
	return c
}

// lastUsage is that of the last answered model call, or nil.
func (s *state) lastUsage() *Usage {
	for i := len(s.history) - 1; i >= 0; i-- {
		if said := s.history[i].said; said != nil {
			return &said.Usage
		}
	}
	return nil
}
