package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/psych-go/psych-go/psych"
)

// toolsOverview is what psych tools --json prints.
type toolsOverview struct {
	Limits     psych.ModelLimits        `json:"limits"`
	Strategy   string                   `json:"strategy"` // of the Spec
	Notes      []string                 `json:"notes,omitempty"`
	Tools      int                      `json:"tools"` // that may be used
	Chars      int                      `json:"chars"` // of their definitions
	Servers    []psych.ServerReport     `json:"servers"`
	Disclosure []psych.DisclosureReport `json:"disclosure"` // of every strategy
}

func (b *workbench) overview(ctx context.Context) error {
	if !b.f.refresh {
		b.refresh(ctx)
	}
	b.note()
	o := &toolsOverview{Limits: b.codec.Limits(), Strategy: cmp.Or(b.spec.Disclosure.Strategy, "auto"), Notes: b.notes}
	b.spec.Connections = slices.DeleteFunc(slices.Clone(b.spec.Connections), func(c psych.Connection) bool { return b.down[c.Name] != "" })
	var err error
	if o.Servers, err = b.s.rt.Servers(ctx, b.scope, b.spec, o.Limits); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(b.down)) {
		o.Servers = append(o.Servers, psych.ServerReport{Server: name, Down: b.down[name], Tools: []psych.ToolReport{}})
	}
	for _, s := range o.Servers {
		for _, t := range s.Tools {
			if t.Permitted {
				o.Tools++
				o.Chars += t.Chars
			}
		}
	}
	if o.Disclosure, err = b.disclosure(ctx); err != nil {
		return err
	}
	if b.f.json {
		err = b.p.printJSON(o)
	} else {
		err = b.print(o)
	}
	if err == nil && len(b.down) > 0 {
		err = fmt.Errorf("servers that can't be reached: %d", len(b.down))
	}
	return err
}

// disclosure measures every strategy.
func (b *workbench) disclosure(ctx context.Context) (all []psych.DisclosureReport, err error) {
	for _, name := range b.s.rt.Strategies() {
		spec := *b.spec
		spec.Disclosure.Strategy = name
		r, err := b.s.rt.Disclose(ctx, b.scope, &spec, b.codec)
		if err != nil {
			return nil, err
		}
		all = append(all, *r)
	}
	return all, nil
}

// shortList is how many lines of a list are printed without --all.
const shortList = 12

func (b *workbench) print(o *toolsOverview) error {
	w := b.p.stdout
	fmt.Fprintf(w, "%s, %s with %s characters of definitions\n\n", count(len(o.Servers), "server"), count(o.Tools, "tool"), thousands(o.Chars))
	var chosen *psych.DisclosureReport
	for i := range o.Disclosure {
		if o.Disclosure[i].Strategy == o.Strategy {
			chosen = &o.Disclosure[i]
		}
	}
	b.printServers(o, chosen)
	b.printGate(o)
	if len(b.spec.Connections) > 0 {
		b.printDisclosure(o, chosen)
	}
	return nil
}

func (b *workbench) printServers(o *toolsOverview, chosen *psych.DisclosureReport) {
	var shapes map[string]string
	if chosen != nil {
		shapes = shapesOf(chosen)
	}
	type line struct {
		*psych.ServerReport
		tools, chars, changed, withheld, unchecked int
	}
	var lines []line
	for i := range o.Servers {
		l := line{ServerReport: &o.Servers[i]}
		for _, t := range l.Tools {
			if !t.Permitted {
				continue
			}
			l.tools++
			l.chars += t.Chars
			l.changed += has(len(t.Changed) > 0)
			l.withheld += has(t.Withheld != "")
			l.unchecked += has(t.Unchecked != "")
		}
		lines = append(lines, l)
	}
	slices.SortStableFunc(lines, func(a, b line) int {
		if c := cmp.Compare(has(b.Down != ""), has(a.Down != "")); c != 0 {
			return c
		}
		return cmp.Compare(b.chars, a.chars)
	})
	t := newTable(b.p.stdout, "server", "tools", "chars", "shown as", "changed", "withheld", "unchecked", "version")
	for i, l := range lines {
		if i == shortList && !b.f.all && len(lines) > shortList+1 {
			var rest line
			for _, l := range lines[i:] {
				rest.tools, rest.chars, rest.changed, rest.withheld, rest.unchecked = rest.tools+l.tools, rest.chars+l.chars, rest.changed+l.changed, rest.withheld+l.withheld, rest.unchecked+l.unchecked
			}
			t.row(fmt.Sprintf("%d smaller (--all)", len(lines)-i), strconv.Itoa(rest.tools), thousands(rest.chars), "", strconv.Itoa(rest.changed), strconv.Itoa(rest.withheld), strconv.Itoa(rest.unchecked), "")
			break
		}
		if l.Down != "" {
			t.row(clip(l.Server, nameColumns), "-", "-", "-", "-", "-", "-", "unreachable")
			continue
		}
		tools := strconv.Itoa(l.tools)
		if n := len(l.Tools); n > l.tools {
			tools += " of " + strconv.Itoa(n)
		}
		t.row(clip(l.Server, nameColumns), tools, thousands(l.chars), clip(cmp.Or(shapes[l.Server], "?"), 10), strconv.Itoa(l.changed), strconv.Itoa(l.withheld), strconv.Itoa(l.unchecked), l.Catalog.String()[:8])
	}
	t.end()
}

// nameColumns are what a name may take in the table of servers.
const nameColumns = 26

// A remark is something that was done to a tool, or left undone.
type remark struct {
	psych.ToolRef
	text string
}

func (b *workbench) printGate(o *toolsOverview) {
	var changed, withheld, unchecked, dropped []remark
	for _, s := range o.Servers {
		for _, t := range s.Tools {
			if !t.Permitted {
				continue
			}
			ref := psych.ToolRef{Server: s.Server, Tool: t.Name}
			for _, c := range t.Changed {
				changed = append(changed, remark{ref, c})
			}
			if t.Withheld != "" {
				withheld = append(withheld, remark{ref, t.Withheld})
			}
			if t.Unchecked != "" {
				unchecked = append(unchecked, remark{ref, t.Unchecked})
			}
		}
		for _, d := range s.Dropped {
			dropped = append(dropped, remark{psych.ToolRef{Server: s.Server, Tool: d.Name}, d.Reason})
		}
	}
	b.remarks("Changed in definitions, with the same meaning, so that providers take them:", changed)
	b.remarks("Withheld definitions: these tools are found, read and called by the meta tools:", withheld)
	b.remarks("Unchecked arguments, left to the server:", unchecked)
	b.remarks("Listed by a server, and in no catalogue:", dropped)
}

var digits = regexp.MustCompile(`[0-9][0-9,]*|"[^"]*"`)

// remarks prints remarks of a kind once, with how many there are, or with --all
// each.
func (b *workbench) remarks(title string, all []remark) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(b.p.stdout, "\n%s\n", title)
	if b.f.all {
		for _, r := range all {
			fmt.Fprint(b.p.stdout, "  "+wrap(clip(fmt.Sprintf("%s / %s: %s", r.Server, r.Tool, r.text), 500), 2, 4))
		}
		return
	}
	kinds := map[string][]remark{}
	for _, r := range all {
		k := digits.ReplaceAllString(r.text, "#")
		kinds[k] = append(kinds[k], r)
	}
	order := slices.SortedFunc(maps.Keys(kinds), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(kinds[b]), len(kinds[a])), cmp.Compare(a, b))
	})
	for i, k := range order {
		if i == shortList/2 && len(order) > shortList/2+1 {
			n := 0
			for _, k := range order[i:] {
				n += len(kinds[k])
			}
			fmt.Fprintf(b.p.stdout, "%6d  for %d other reasons (--all)\n", n, len(order)-i)
			break
		}
		r := kinds[k][0]
		what, where := clip(r.text, 200), fmt.Sprintf("%s / %s", r.Server, r.Tool)
		if len(kinds[k]) > 1 {
			where = "such as " + where
		}
		where = clip(where, 90)
		if lead := fmt.Sprintf("%6d  ", len(kinds[k])); len(lead)+columns(what)+len(": ")+columns(where) <= 100 {
			fmt.Fprintf(b.p.stdout, "%s%s: %s\n", lead, what, where)
		} else {
			fmt.Fprintf(b.p.stdout, "%s%s        %s\n", lead, wrap(what, 8, 8), where)
		}
	}
}

func (b *workbench) printDisclosure(o *toolsOverview, chosen *psych.DisclosureReport) {
	what := "OpenAI"
	if b.f.model != "" {
		what = clip(b.f.model, 40)
	}
	limits := ""
	if o.Limits.Tools > 0 {
		limits = fmt.Sprintf(", which takes %d tools", o.Limits.Tools)
	}
	fmt.Fprintf(b.p.stdout, "\nWhat a strategy adds to every request, as encoded for %s%s:\n", what, limits)
	t := newTable(b.p.stdout, "strategy", "characters", "definitions shown", "servers listed", "")
	for _, d := range o.Disclosure {
		saves := ""
		if o.Chars > d.Chars && o.Chars > 0 {
			saves = fmt.Sprintf("%d %% less than all definitions", (o.Chars-d.Chars)*100/o.Chars)
		}
		name := d.Strategy
		if name == o.Strategy {
			name += " *"
		}
		t.row(name, thousands(d.Chars), fmt.Sprintf("%d of %d", len(d.Eager), o.Tools), fmt.Sprintf("%d of %d", d.Listed, len(b.spec.Connections)), saves)
	}
	t.end()
	if chosen == nil {
		return
	}
	shown := map[string]int{}
	for _, ref := range chosen.Eager {
		shown[ref.Server]++
	}
	switch {
	case len(chosen.Eager) == o.Tools && o.Tools > 0:
		fmt.Fprintf(b.p.stdout, "* %s shows every definition\n", o.Strategy)
	case len(shown) == 0:
		fmt.Fprintf(b.p.stdout, "* %s shows no definition: list_tools, read_tool and call_tool reach all\n", o.Strategy)
	default:
		var names []string
		for i, s := range slices.Sorted(maps.Keys(shown)) {
			if i == shortList && !b.f.all && len(shown) > shortList+1 {
				names = append(names, fmt.Sprintf("and %d more (--all)", len(shown)-i))
				break
			}
			names = append(names, fmt.Sprintf("%s (%d)", oneLine(s), shown[s]))
		}
		fmt.Fprint(b.p.stdout, wrap(fmt.Sprintf("* %s shows the definitions of %s; list_tools, read_tool and call_tool reach the others", o.Strategy, strings.Join(names, ", ")), 0, 2))
	}
}
