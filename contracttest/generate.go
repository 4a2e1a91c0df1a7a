package contracttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/psych-go/psych-go/psych"
)

// A GeneratedServer is an MCP server as a catalogue describes it. There is none
// like it.
type GeneratedServer struct {
	Name, Description string
	Tools             []psych.RemoteTool // sorted by name
}

// ManyServers are the sizes of 70 servers with 527 tools together: as people
// connect them, most have a few tools and some have dozens.
func ManyServers() []int {
	var sizes []int
	for _, of := range [][2]int{{12, 1}, {7, 2}, {8, 3}, {9, 4}, {6, 5}, {5, 7}, {4, 8}, {4, 9}, {3, 11}, {3, 15}, {2, 17}, {2, 21}, {1, 24}, {1, 28}, {1, 31}, {1, 33}, {1, 38}} {
		sizes = append(sizes, slices.Repeat([]int{of[1]}, of[0])...)
	}
	return sizes
}

// GenerateServers returns a server for each of some numbers of tools, the same
// for the same numbers. Lengths of names, descriptions and schemas are spread
// as those of servers in use: half of the descriptions are one short line, one
// in ten is an essay, one in twenty is empty.
func GenerateServers(tools ...int) []GeneratedServer {
	servers := make([]GeneratedServer, len(tools))
	for i, n := range tools {
		g := &generator{rand.New(rand.NewPCG(uint64(i), uint64(n)))}
		s := &servers[i]
		s.Name = strings.ToLower(generatedNouns[i%len(generatedNouns)])
		if k := i / len(generatedNouns); k > 0 {
			s.Name += fmt.Sprintf("-%d", k+1)
		}
		s.Description = g.prose(60 + g.IntN(180))
		spell := []func([]string) string{snake, snake, camel, kebab}[g.IntN(4)]
		for j := range n {
			s.Tools = append(s.Tools, g.tool(spell, j))
		}
		slices.SortFunc(s.Tools, func(a, b psych.RemoteTool) int { return strings.Compare(a.Name, b.Name) })
	}
	slices.SortFunc(servers, func(a, b GeneratedServer) int { return strings.Compare(a.Name, b.Name) })
	return servers
}

type generator struct{ *rand.Rand }

func pick[T any](g *generator, of []T) T { return of[g.IntN(len(of))] }

// spread picks a number as a sample of quantiles spreads them.
func (g *generator) spread(quantiles ...int) int {
	i := g.IntN(len(quantiles) - 1)
	from, to := quantiles[i], quantiles[i+1]
	return from + g.IntN(to-from+1)
}

// tool makes the nth tool of a server; its name is no other's.
func (g *generator) tool(spell func([]string) string, n int) psych.RemoteTool {
	verb, noun := generatedVerbs[n%len(generatedVerbs)], generatedNouns[n/len(generatedVerbs)%len(generatedNouns)]
	words := []string{verb, noun}
	if k := n / len(generatedVerbs) / len(generatedNouns); k > 0 {
		words = append(words, fmt.Sprintf("v%d", k+1))
	}
	if g.IntN(3) == 0 {
		words = slices.Insert(words, 1, pick(g, generatedKinds))
	}
	t := psych.RemoteTool{ToolDef: psych.ToolDef{Name: spell(words)}}
	if g.IntN(20) > 0 {
		t.Description = strings.ToUpper(verb[:1]) + verb[1:] + "s a " + noun + " " + g.prose(g.spread(5, 15, 25, 35, 45, 60, 100, 160, 350, 700, 1700))
	}
	t.Schema = g.schema(g.spread(0, 1, 1, 2, 2, 3, 4, 5, 6, 12))
	t.ReadOnly = verb == "read" || verb == "list"
	return t
}

// prose is n characters of sentences, and no blank line.
func (g *generator) prose(n int) string {
	var b strings.Builder
	for b.Len() < n {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(pick(g, generatedProse))
	}
	return strings.TrimSpace(b.String()[:n])
}

func (g *generator) schema(properties int) json.RawMessage {
	var b bytes.Buffer
	b.WriteString(`{"type":"object","properties":{`)
	var required []string
	for i := range properties {
		name := pick(g, generatedKinds) + strings.ToUpper(generatedNouns[i%len(generatedNouns)][:1]) + generatedNouns[i%len(generatedNouns)][1:]
		if i > 0 {
			b.WriteByte(',')
		} else if g.IntN(4) > 0 {
			required = append(required, name)
		}
		fmt.Fprintf(&b, "%q:{%s", name, pick(g, []string{`"type":"string"`, `"type":"string"`, `"type":"integer"`, `"type":"boolean","default":false`, `"type":"array","items":{"type":"string"}`, `"type":"string","enum":["first","second","last"]`}))
		if g.IntN(3) > 0 {
			fmt.Fprintf(&b, `,"description":%q`, g.prose(g.spread(15, 25, 40, 70, 150)))
		}
		b.WriteByte('}')
	}
	b.WriteByte('}')
	if len(required) > 0 {
		fmt.Fprintf(&b, `,"required":[%q]`, required[0])
	}
	b.WriteByte('}')
	return b.Bytes()
}

func snake(words []string) string { return strings.Join(words, "_") }
func kebab(words []string) string { return strings.Join(words, "-") }

func camel(words []string) string {
	out := words[0]
	for _, w := range words[1:] {
		out += strings.ToUpper(w[:1]) + w[1:]
	}
	return out
}

var (
	generatedVerbs = []string{"read", "list", "create", "update", "remove", "find", "send", "rename", "count", "export", "check", "merge", "watch", "share", "archive"}
	generatedKinds = []string{"daily", "shared", "recent", "nested", "public", "blank", "older", "local", "linked", "open"}
	generatedNouns = []string{
		"harbor", "orchard", "lantern", "ledger", "meadow", "timber", "pebble", "canyon", "saddle", "basket", "compass", "kettle",
		"anchor", "barrel", "candle", "quarry", "ribbon", "shutter", "thistle", "village", "walnut", "bridge", "copper", "drawer",
		"engine", "feather", "garden", "hammer", "island", "jacket", "kernel", "ladder", "mirror", "needle", "oyster", "parcel",
	}
	generatedProse = []string{
		"that somebody left at the counter.", "with all that belongs to it, unless it is sealed.", "Takes the number that stands on its back.",
		"Nothing is changed where there is none.", "The answer comes in pages, the newest first.", "Ask for few of them, since each takes its time.",
		"Dates are those of the place where it is kept.", "Returns what was found, or says that there was nothing.", "Those of others are left out.",
		"Use it only if you know which one is meant.", "A name may stand for several; the first counts.", "What is older than a year is kept elsewhere.",
	}
)
