package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/psych-go/psych-go/internal/cachesim"
	"github.com/psych-go/psych-go/psych"
)

// simulatedReport is a report with what providers' caches would have made of
// the Run's requests. Programs read its names.
type simulatedReport struct {
	*psych.Report
	Simulated []*cachesim.Report `json:"simulated"`
}

// reportSimulated prints a report, and estimates by the rules of providers.
func (p *program) reportSimulated(ctx context.Context, f *storeFlags, id string, providers []string, asJSON bool) error {
	var rules []*cachesim.Provider
	for _, name := range providers {
		r, err := cachesim.New(name)
		if err != nil {
			return use("--simulate: %w", err)
		}
		rules = append(rules, r)
	}
	defer p.close()
	s, err := p.open(ctx, f, nil, nil)
	if err != nil {
		return err
	}
	info, err := s.resolve(ctx, id)
	if err != nil {
		return err
	}
	rep := simulatedReport{}
	if rep.Report, err = s.rt.Report(ctx, info.Key); err != nil {
		return err
	}
	for _, r := range rules {
		sim, err := r.Run(ctx, s.rt, info.Key)
		if errors.Is(err, psych.ErrInvalid) {
			return fmt.Errorf("simulate: %w", err)
		}
		if err != nil {
			return err
		}
		rep.Simulated = append(rep.Simulated, sim)
	}
	if asJSON {
		return p.printJSON(&rep)
	}
	if err := p.print(rep.Report, false); err != nil {
		return err
	}
	for _, sim := range rep.Simulated {
		p.printSimulated(sim)
	}
	return nil
}

func (p *program) printSimulated(sim *cachesim.Report) {
	fmt.Fprintf(p.stdout, "\nestimated by the documented cache rules of %s, in tokens of 4 characters: no provider said so\n", oneLine(sim.Provider))
	t := newTable(p.stdout, "model call", "read", "written", "for an hour", "uncached", "")
	for _, c := range sim.Calls {
		name := fmt.Sprint("turn ", c.Turn)
		if c.Try > 0 {
			name += fmt.Sprint(" try ", c.Try+1)
		}
		t.row(name, thousands(c.Read), thousands(c.Written), thousands(c.Hour), thousands(c.Uncached), "")
	}
	t.row("total", thousands(sim.Total.Read), thousands(sim.Total.Written), thousands(sim.Total.Hour), thousands(sim.Total.Uncached), "")
	t.end()
	rate := "unknown"
	if sim.HitRate != nil {
		rate = fmt.Sprintf("%.1f %%", 100**sim.HitRate)
	}
	fmt.Fprintf(p.stdout, "estimated hit rate from the second call on %s; input costs an estimated %.1f %% of what it would without a cache\n", rate, 100*sim.Relative)
	if sim.LeftOut > 0 {
		fmt.Fprintf(p.stdout, "calls that failed, and are left out: %d\n", sim.LeftOut)
	}
	if sim.Unmade > 0 {
		fmt.Fprintf(p.stdout, "calls whose requests can't be made again, and are left out: %d (psych replay says why)\n", sim.Unmade)
	}
}
