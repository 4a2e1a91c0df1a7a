package script

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

// Bounds of what a message of this package quotes, in characters.
const (
	maxPattern = 200
	maxExcerpt = 300
)

// readable is the decoded text of a request, with what each line range is.
type readable struct {
	text  string
	parts []readablePart
}

type readablePart struct {
	name  string
	start int
}

// readRequest decodes req: system blocks, tools, messages, trailing message.
func readRequest(req *psych.Request) (*readable, error) {
	var (
		r readable
		b strings.Builder
	)
	add := func(name, text string) {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		r.parts = append(r.parts, readablePart{name, b.Len()})
		b.WriteString(text)
	}

	for i, w := range req.System {
		var blocks []string
		if err := json.Unmarshal(fmt.Appendf(nil, "[%s]", w.Bytes), &blocks); err != nil {
			return nil, fmt.Errorf("zone %d of the request is not in the encoding %s: %w", i+1, codecID, err)
		}
		for _, s := range blocks {
			add("the system prompt", s)
		}
	}
	if len(req.Tools.Bytes) > 0 {
		var defs []psych.ToolDef
		if err := json.Unmarshal(req.Tools.Bytes, &defs); err != nil {
			return nil, fmt.Errorf("the tools of the request are not in the encoding %s: %w", codecID, err)
		}
		for _, d := range defs {
			add("tool "+d.Name, d.Name+"\n"+d.Description+"\n"+string(d.Schema))
		}
	}
	for i, w := range req.History {
		m, err := decodeMessage(w.Bytes)
		if err != nil {
			return nil, fmt.Errorf("message %d of the request: %w", i+1, err)
		}
		text, err := m.text()
		if err != nil {
			return nil, fmt.Errorf("message %d of the request: %w", i+1, err)
		}
		add("message "+strconv.Itoa(i+1)+" ("+m.Role+")", text)
	}
	if len(req.Tail.Bytes) > 0 {
		m, err := decodeMessage(req.Tail.Bytes)
		if err != nil {
			return nil, fmt.Errorf("the trailing message of the request: %w", err)
		}
		text, err := m.text()
		if err != nil {
			return nil, fmt.Errorf("the trailing message of the request: %w", err)
		}
		add("the trailing message", text)
	}
	r.text = b.String()
	return &r, nil
}

// at names the part that offset i of the text is in.
func (r *readable) at(i int) string {
	name := "the request"
	for _, p := range r.parts {
		if p.start > i {
			break
		}
		name = p.name
	}
	return name
}

// check refuses a request that lacks what the step requires or holds what it
// forbids, naming all of it.
func (s *step) check(n int, req *psych.Request) error {
	if len(s.require)+len(s.forbid) == 0 {
		return nil
	}
	r, err := readRequest(req)
	if err != nil {
		return refusal("%v", err)
	}
	var wrong []string
	for _, re := range s.require {
		if !re.MatchString(r.text) {
			wrong = append(wrong, fmt.Sprintf("requires %s, which is nowhere in %s", quotePattern(re.String()), r.summary()))
		}
	}
	for _, re := range s.forbid {
		if m := re.FindStringIndex(r.text); m != nil {
			wrong = append(wrong, fmt.Sprintf("forbids %s, which is in %s: %s", quotePattern(re.String()), r.at(m[0]), r.around(m[0], m[1])))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return refusal("step %d %s", n+1, strings.Join(wrong, "; it "))
}

// summary says what the text is and how it ends.
func (r *readable) summary() string {
	if len(r.parts) == 0 {
		return "an empty request"
	}
	last := r.parts[len(r.parts)-1]
	return fmt.Sprintf("the %d characters of the request, whose last part, %s, says %s",
		utf8.RuneCountInString(r.text), last.name, quote(r.text[last.start:]))
}

// around quotes what is at [start, end) with a little of its surroundings.
func (r *readable) around(start, end int) string {
	const context = 60
	end = min(end, start+maxExcerpt)
	from, to := max(start-context, 0), min(end+context, len(r.text))
	for from > 0 && !utf8.RuneStart(r.text[from]) {
		from--
	}
	for to < len(r.text) && !utf8.RuneStart(r.text[to]) {
		to++
	}
	s := strconv.Quote(r.text[from:to])
	if from > 0 {
		s = "…" + s
	}
	if to < len(r.text) {
		s += "…"
	}
	return s
}

// quote quotes s, or its two ends when it is long.
func quote(s string) string {
	n := utf8.RuneCountInString(s)
	if n <= maxExcerpt {
		return strconv.Quote(s)
	}
	const end = maxExcerpt / 2
	head, rest := cut(s, end)
	_, tail := cut(rest, n-2*end)
	return fmt.Sprintf("%q … %d characters … %q", head, n-2*end, tail)
}

func quotePattern(p string) string { return "/" + clip(p, maxPattern) + "/" }

// clip shortens s to n characters.
func clip(s string, n int) string {
	head, rest := cut(s, n)
	if rest != "" {
		head += "…"
	}
	return head
}

// cut cuts s behind n characters.
func cut(s string, n int) (head, rest string) {
	for i := range s {
		if n == 0 {
			return s[:i], s[i:]
		}
		n--
	}
	return s, ""
}
