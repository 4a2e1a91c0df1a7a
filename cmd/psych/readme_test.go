package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/psych"
)

func readme(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// fenced returns the contents of the fenced blocks of a language.
func fenced(text, language string) (blocks []string) {
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// quickStart returns the README's two commands.
func quickStart(t *testing.T) (tour, tests string) {
	t.Helper()
	_, section, _ := strings.Cut(readme(t), "\n## Quick start\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := fenced(section, "sh")
	if len(blocks) != 2 || strings.Count(section, "```") != 4 || strings.Count(blocks[0]+blocks[1], "\n") != 2 {
		t.Fatalf("Quick start has the blocks %q, want two commands", blocks)
	}
	return strings.TrimSpace(blocks[0]), strings.TrimSpace(blocks[1])
}

func TestReadmeExample(t *testing.T) {
	source, err := os.ReadFile("../../psych/example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := fenced(readme(t), "go")
	if len(blocks) != 1 || string(source) != "package psych_test\n\n"+blocks[0] {
		t.Errorf("the README's program is not that of psych/example_test.go, without its first line:\n%s", blocks)
	}
}

func TestLinks(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("docs: %v, %v", pages, err)
	}
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		links := regexp.MustCompile(`\]\(([^):]+)\)`).FindAllStringSubmatch(string(text), -1)
		if len(links) == 0 && strings.HasSuffix(page, "README.md") {
			t.Error("the README links to nothing")
		}
		for _, l := range links {
			file, heading, _ := strings.Cut(l[1], "#")
			target := filepath.Join(filepath.Dir(page), file)
			if file == "" {
				target = page
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if text, err := os.ReadFile(target); heading != "" && (err != nil || !slices.Contains(anchors(string(text)), heading)) {
				t.Errorf("%s: %s has no heading %s, %v", page, target, heading, err)
			}
		}
		if name := filepath.Base(page); name != "README.md" && !strings.Contains(readme(t), "(docs/"+name+")") {
			t.Errorf("the README does not link to docs/%s", name)
		}
	}
}

// anchors are the names of a page's headings in links.
func anchors(page string) (names []string) {
	for line := range strings.Lines(page) {
		if text, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			name := regexp.MustCompile(`[^\pL\pN _-]`).ReplaceAllString(strings.ToLower(strings.TrimSpace(text)), "")
			names = append(names, strings.ReplaceAll(name, " ", "-"))
		}
	}
	return names
}

func TestReadmeSchemes(t *testing.T) {
	p := newProgram(nil, nil, nil, getenv)
	text := readme(t)
	for _, schemes := range [][]string{p.backends.Stores.Schemes(), p.backends.Blobs.Schemes(), p.backends.Models.Schemes()} {
		for _, s := range schemes {
			if !strings.Contains(text, "| `"+s+":") {
				t.Errorf("the README's table lacks the scheme %s", s)
			}
		}
	}
}

// TestReadmeParameters holds the README's table against what the adapters say
// of an unknown parameter.
func TestReadmeParameters(t *testing.T) {
	p := newProgram(nil, nil, nil, getenv)
	ctx := t.Context()
	text := readme(t)
	open := map[string]func(string) error{}
	for _, s := range p.backends.Stores.Schemes() {
		open[s] = func(u string) error { _, err := p.backends.Stores.Open(ctx, u); return err }
	}
	for _, s := range p.backends.Blobs.Schemes() {
		open[s] = func(u string) error { _, err := p.backends.Blobs.Open(ctx, u); return err }
	}
	for _, s := range p.backends.Models.Schemes() {
		open[s] = func(u string) error { _, err := p.backends.Models.Open(ctx, u); return err }
	}
	for scheme, f := range open {
		u := scheme + "://name/x?nosuch=1"
		switch scheme {
		case "anthropic", "bedrock", "openai", "script":
			u = scheme + ":x?nosuch=1"
		}
		err := f(u)
		if err == nil || !errors.Is(err, psych.ErrInvalid) || !strings.Contains(err.Error(), `"nosuch"`) {
			t.Errorf("%s: %v, want that nosuch is refused", u, err)
			continue
		}
		row := regexp.MustCompile("(?m)^\\| `" + scheme + ":.*$").FindString(text)
		m := regexp.MustCompile(`: want ([a-z_, ]+): psych: `).FindStringSubmatch(err.Error())
		if m == nil {
			if !strings.Contains(err.Error(), "takes none") {
				t.Errorf("%s: %v", u, err)
			}
			continue
		}
		for name := range strings.SplitSeq(m[1], ", ") {
			if !strings.Contains(row, "`"+name+"`") {
				t.Errorf("the README's row of %s: lacks the parameter %s:\n%s", scheme, name, row)
			}
		}
	}
}

// TestReadmeCommands guards that the README lists every command.
func TestReadmeCommands(t *testing.T) {
	text := readme(t)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if walk(sub); !sub.HasSubCommands() && !strings.Contains(text, "\n    "+sub.CommandPath()) {
				t.Errorf("the README does not list %s", sub.CommandPath())
			}
		}
	}
	walk(newProgram(nil, nil, nil, getenv).command())
}
