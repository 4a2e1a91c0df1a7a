package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/psych"
)

func (p *program) toolsBenchCommand(f *toolsFlags) *cobra.Command {
	queries := ""
	c := &cobra.Command{
		Use:   "bench [flags] --queries FILE",
		Short: "Measures how well the search finds tools, and what finding them costs",
		Long: `Searches for the tasks in the file of --queries, a list of
{"question", "steps": ["…"], "gold": ["tool", …]}, and prints how many of the gold
tools are found. Each step is a search, or the question where there are no steps.
recall@k is the share of gold names, each counted once a task, that are among the
first k of any step's answer, whatever their server; MRR the mean of 1 / the best
place of each, 0 for one that is not found.

For each strategy it prints what the way to a gold tool costs: 1 turn where its
definition is shown, else one for each page of a search until it is found (none where
a facade lists its name), one for read_tool and one for the call. Facades and search
tools are taken to be those of the right server. Tools that none of the first 5 pages
has are missed, and not counted into turns.`,
		Args: arguments(0, "none"),
		RunE: func(c *cobra.Command, args []string) error {
			tasks, err := readTasks(queries)
			if err != nil {
				return err
			}
			return p.withTools(c.Context(), f, func(ctx context.Context, b *workbench) error { return b.bench(ctx, tasks) })
		},
	}
	c.Flags().StringVar(&queries, "queries", "", "`file` of tasks")
	return c
}

// A task is what a person wanted, in steps, and the names of the tools that it
// takes.
type task struct {
	Question string   `json:"question"`
	Steps    []string `json:"steps"`
	Gold     []string `json:"gold"`
}

// readTasks reads a file of tasks. Those without steps have one, the question.
func readTasks(path string) ([]task, error) {
	if path == "" {
		return nil, use("give --queries FILE")
	}
	data, err := readFile(path, maxCatalogFile)
	if err != nil {
		return nil, use("--queries: %w", err)
	}
	var tasks []task
	if err := json.Unmarshal(data, &tasks); err != nil {
		return nil, use(`--queries %s: %w: want a list of {"question", "steps", "gold"}`, path, err)
	}
	for i := range tasks {
		t := &tasks[i]
		t.Steps = slices.DeleteFunc(t.Steps, func(s string) bool { return strings.TrimSpace(s) == "" })
		if len(t.Steps) == 0 && strings.TrimSpace(t.Question) != "" {
			t.Steps = []string{t.Question}
		}
		slices.Sort(t.Gold)
		if t.Gold = slices.Compact(t.Gold); len(t.Gold) == 0 || len(t.Steps) == 0 {
			return nil, use("--queries %s: task %d has no gold tool, or neither steps nor a question", path, i+1)
		}
	}
	if len(tasks) == 0 {
		return nil, use("--queries %s has no tasks", path)
	}
	return tasks, nil
}

// recallAt are the numbers of first places that recall is counted for.
var recallAt = []int{1, 3, 5, 10}

// maxPages is how many pages of a search are looked at for the way to a tool.
const maxPages = 5

// A benchResult is what psych tools bench --json prints.
type benchResult struct {
	Servers int                `json:"servers"`
	Tools   int                `json:"tools"`
	Tasks   int                `json:"tasks"`
	Steps   int                `json:"steps"`
	Gold    int                `json:"gold"`             // names, each counted once a task
	Absent  []string           `json:"absent,omitempty"` // gold names that no server has
	Recall  map[string]float64 `json:"recall"`           // by k
	MRR     float64            `json:"mrr"`
	Ways    []wayResult        `json:"ways"`
	Missed  []missedTool       `json:"missed,omitempty"` // that exist, and are not among the first ten

	servers []psych.ServerReport
}

// A missedTool is a gold tool that recall@10 misses.
type missedTool struct {
	Task  int    `json:"task"` // from 1
	Tool  string `json:"tool"`
	Place int    `json:"place,omitempty"` // the best that it has; 0: none
}

// A wayResult is what a strategy's way to a gold tool costs. Means are over
// those that are found.
type wayResult struct {
	Strategy string  `json:"strategy"`
	Chars    int     `json:"chars"`   // that it adds to each request
	Shown    int     `json:"shown"`   // gold tools whose definition is shown
	Missed   int     `json:"missed"`  // that no page has
	Turns    float64 `json:"turns"`   // mean, until it is called
	Answers  float64 `json:"answers"` // mean characters of the answers of list_tools and read_tool
	Sent     float64 `json:"sent"`    // mean characters of all requests until it is called, of servers' making
}

// A place is where a search found a gold tool.
type place struct {
	name string
	psych.ToolRef
	at   int // from 1; 0: nowhere
	step string
}

func (b *workbench) bench(ctx context.Context, tasks []task) error {
	b.note()
	r := &benchResult{Tasks: len(tasks), Recall: map[string]float64{}, Servers: len(b.spec.Connections)}
	var err error
	if r.servers, err = b.s.rt.Servers(ctx, b.scope, b.spec, b.codec.Limits()); err != nil {
		return err
	}
	exists := map[string]psych.ToolRef{}
	for _, s := range r.servers {
		for _, t := range s.Tools {
			if t.Permitted {
				r.Tools++
				if _, ok := exists[t.Name]; !ok {
					exists[t.Name] = psych.ToolRef{Server: s.Server, Tool: t.Name}
				}
			}
		}
	}
	var places []place
	found := make([]int, len(recallAt))
	for i, t := range tasks {
		best, err := b.places(ctx, t, r.Tools)
		if err != nil {
			return err
		}
		r.Steps += len(t.Steps)
		r.Gold += len(t.Gold)
		for _, name := range t.Gold {
			p, ok := best[name]
			ref, there := exists[name]
			if !ok {
				p = place{name: name, ToolRef: ref}
			}
			if !there && !slices.Contains(r.Absent, name) {
				r.Absent = append(r.Absent, name)
			}
			if p.at > 0 {
				r.MRR += 1 / float64(p.at)
			}
			for j, k := range recallAt {
				found[j] += has(p.at > 0 && p.at <= k)
			}
			if there && (p.at == 0 || p.at > slices.Max(recallAt)) {
				r.Missed = append(r.Missed, missedTool{i + 1, name, p.at})
			}
			places = append(places, p)
		}
	}
	slices.Sort(r.Absent)
	for j, k := range recallAt {
		r.Recall[strconv.Itoa(k)] = float64(found[j]) / float64(r.Gold)
	}
	r.MRR /= float64(r.Gold)
	if r.Ways, err = b.ways(ctx, places); err != nil {
		return err
	}
	if b.f.json {
		return b.p.printJSON(r)
	}
	b.printBench(r)
	return nil
}

// places searches with each step of a task, and returns by name the best place
// of each tool.
func (b *workbench) places(ctx context.Context, t task, tools int) (map[string]place, error) {
	best := map[string]place{}
	for _, step := range t.Steps {
		found, err := b.s.rt.FindTools(ctx, b.scope, b.spec, psych.ListQuery{Query: step}, max(tools, 1))
		if err != nil {
			return nil, err
		}
		for i, f := range found.Tools {
			if p, ok := best[f.Tool]; !ok || i+1 < p.at {
				best[f.Tool] = place{f.Tool, f.ToolRef, i + 1, step}
			}
		}
	}
	return best, nil
}

// ways measures what the way to each place costs with each strategy.
func (b *workbench) ways(ctx context.Context, places []place) ([]wayResult, error) {
	reports, err := b.disclosure(ctx)
	if err != nil {
		return nil, err
	}
	m := &mapOfWays{b: b, answers: map[psych.ListQuery]int{}, reads: map[psych.ToolRef]int{}, within: map[place]int{}}
	var ways []wayResult
	for i := range reports {
		d := &reports[i]
		w := wayResult{Strategy: d.Strategy, Chars: d.Chars}
		shapes, eager := shapesOf(d), map[string]bool{}
		for _, ref := range d.Eager {
			eager[ref.Tool] = true
		}
		n := 0
		for _, p := range places {
			var answers []int
			found := eager[p.name]
			if w.Shown += has(found); !found {
				if answers, found, err = m.way(ctx, p, d, shapes[p.Server]); err != nil {
					return nil, err
				}
			}
			if !found {
				w.Missed++
				continue
			}
			n++
			history := 0
			w.Sent += float64(d.Chars)
			for _, chars := range answers {
				history += chars
				w.Sent += float64(d.Chars + history)
			}
			w.Turns += float64(1 + len(answers))
			w.Answers += float64(history)
		}
		if n > 0 {
			w.Turns, w.Answers, w.Sent = w.Turns/float64(n), w.Answers/float64(n), w.Sent/float64(n)
		}
		ways = append(ways, w)
	}
	return ways, nil
}

// shapesOf says how a strategy shows each server, if it tells.
func shapesOf(d *psych.DisclosureReport) map[string]string {
	var told struct {
		Servers map[string]string `json:"servers"`
	}
	_ = json.Unmarshal(d.Decisions, &told) // what another strategy says may be anything
	return told.Servers
}

// mapOfWays measures the answers on ways to tools, each once.
type mapOfWays struct {
	b       *workbench
	answers map[psych.ListQuery]int
	reads   map[psych.ToolRef]int
	within  map[place]int // places among the tools of their own server
}

// way is the characters of the answers on the way to a tool that is not shown,
// and false where no page has it.
func (m *mapOfWays) way(ctx context.Context, p place, d *psych.DisclosureReport, shape string) (answers []int, ok bool, err error) {
	if p.Server == "" {
		return nil, false, nil
	}
	q := psych.ListQuery{Query: p.step}
	at := p.at
	switch {
	case shape == "facade" && indexes(d.Own, p.ToolRef):
		at = 0 // its name is in the prompt
	case p.at == 0:
		return nil, false, nil
	case shape == "facade", shape == "search": // which search their own server
		q.Server = p.Server
		if at, err = m.place(ctx, p); err != nil {
			return nil, false, err
		}
	}
	if at > maxPages*psych.FoundPage {
		return nil, false, nil
	}
	for q.Offset = 0; q.Offset < at; q.Offset += psych.FoundPage {
		if _, ok := m.answers[q]; !ok {
			text, err := m.b.s.rt.ListTools(ctx, m.b.scope, m.b.spec, q)
			if err != nil {
				return nil, false, err
			}
			m.answers[q] = utf8.RuneCountInString(text)
		}
		answers = append(answers, m.answers[q])
	}
	if _, ok := m.reads[p.ToolRef]; !ok {
		shown, _, err := m.b.s.rt.ReadTool(ctx, m.b.scope, m.b.spec, p.ToolRef)
		if err != nil {
			return nil, false, err
		}
		m.reads[p.ToolRef] = utf8.RuneCountInString(shown)
	}
	return append(answers, m.reads[p.ToolRef]), true, nil
}

// place is the place of a tool in a search of its own server.
func (m *mapOfWays) place(ctx context.Context, p place) (int, error) {
	if at, ok := m.within[p]; ok {
		return at, nil
	}
	spec, err := m.b.only(p.Server)
	if err != nil {
		return 0, err
	}
	found, err := m.b.s.rt.FindTools(ctx, m.b.scope, spec, psych.ListQuery{Query: p.step, Server: p.Server}, maxPages*psych.FoundPage)
	if err != nil {
		return 0, err
	}
	at := slices.IndexFunc(found.Tools, func(f psych.FoundTool) bool { return f.ToolRef == p.ToolRef })
	if at < 0 {
		at = len(found.Tools) + maxPages*psych.FoundPage
	}
	m.within[p] = at + 1
	return at + 1, nil
}

// indexes reports whether the description of one of a strategy's own tools
// lists a tool, a line each.
func indexes(own []psych.ToolDef, ref psych.ToolRef) bool {
	return slices.ContainsFunc(own, func(def psych.ToolDef) bool {
		_, behind, ok := strings.Cut(def.Description+"\n", "\n- "+ref.Tool)
		return ok && strings.HasPrefix(def.Name, ref.Server+"__") && (behind[0] == ':' || behind[0] == '\n')
	})
}

func (b *workbench) printBench(r *benchResult) {
	w := b.p.stdout
	fmt.Fprintf(w, "%s, %s, %s; %s of %s\n\n", count(r.Tasks, "task"), count(r.Steps, "search", "searches"), count(r.Gold, "gold name"), count(r.Tools, "tool"), count(r.Servers, "server"))
	t := newTable(w, "", "recall@1", "@3", "@5", "@10", "MRR", "")
	row := []string{"search"}
	for _, k := range recallAt {
		row = append(row, fmt.Sprintf("%.3f", r.Recall[strconv.Itoa(k)]))
	}
	t.row(append(row, fmt.Sprintf("%.3f", r.MRR), "")...)
	t.end()
	if len(r.Absent) > 0 {
		fmt.Fprint(w, "\n"+wrap("Gold names that no server has: "+clip(strings.Join(r.Absent, ", "), 300), 0, 2))
	}
	if len(r.Missed) > 0 {
		fmt.Fprintf(w, "\nNot among the first %d:\n", slices.Max(recallAt))
		for i, m := range r.Missed {
			if i == shortList && !b.f.all && len(r.Missed) > shortList+1 {
				fmt.Fprintf(w, "  and %d more (--all)\n", len(r.Missed)-i)
				break
			}
			where := "nowhere"
			if m.Place > 0 {
				where = fmt.Sprintf("at place %d", m.Place)
			}
			fmt.Fprintln(w, clip(fmt.Sprintf("  task %d: %s, %s", m.Task, m.Tool, where), 100))
		}
	}
	fmt.Fprintf(w, "\nThe way to a gold tool (means; characters):\n")
	t = newTable(w, "strategy", "each request", "shown", "missed", "turns", "answers", "sent until called", "")
	for _, x := range r.Ways {
		t.row(x.Strategy, thousands(x.Chars), fmt.Sprintf("%d of %d", x.Shown, r.Gold), strconv.Itoa(x.Missed), fmt.Sprintf("%.2f", x.Turns), thousands(int(x.Answers+.5)), thousands(int(x.Sent+.5)), "")
	}
	t.end()
}
