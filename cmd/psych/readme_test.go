package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
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

func TestReadmeLinks(t *testing.T) {
	text := readme(t)
	links := regexp.MustCompile(`\]\(([^):]+)\)`).FindAllStringSubmatch(text, -1)
	if len(links) == 0 {
		t.Error("the README links to nothing")
	}
	for _, l := range links {
		if _, err := os.Stat("../../" + l[1]); err != nil {
			t.Error(err)
		}
	}
}

func TestReadmeSchemes(t *testing.T) {
	p := newProgram(nil, nil, nil, nil)
	text := readme(t)
	for _, schemes := range [][]string{p.backends.Stores.Schemes(), p.backends.Blobs.Schemes(), p.backends.Models.Schemes()} {
		for _, s := range schemes {
			if !strings.Contains(text, "| `"+s+":") {
				t.Errorf("the README's table lacks the scheme %s", s)
			}
		}
	}
}
