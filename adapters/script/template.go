package script

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// A template is JSON in which some strings depend on the last result. The
// rest is kept as it was written, but for whitespace: numbers, key order and
// escapes are the script's.
type template []segment

// A segment is JSON as it is, or one string made of parts.
type segment struct {
	json  []byte
	parts []part
}

// A part is text as it is, or the first group of a pattern.
type part struct {
	text string
	re   *regexp.Regexp
}

func newTemplate(raw json.RawMessage) (template, error) {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, fmt.Errorf("not JSON (raw_arguments may be anything): %w", err)
	}
	src := b.Bytes()
	if at, err := repeatedKey(src); err != nil {
		return nil, err
	} else if at != "" {
		return nil, fmt.Errorf("key %s is there twice (raw_arguments may repeat keys)", quote(at))
	}
	var t template
	done := 0
	for i := 0; i < len(src); {
		if src[i] != '"' {
			i++
			continue
		}
		end := endOfString(src, i)
		if key := end < len(src) && src[end] == ':'; !key && bytes.Contains(src[i:end], []byte("${")) {
			var s string
			if err := json.Unmarshal(src[i:end], &s); err != nil {
				return nil, err
			}
			parts, err := parseParts(s)
			if err != nil {
				return nil, err
			}
			t = append(t, segment{json: src[done:i]}, segment{parts: parts})
			done = end
		}
		i = end
	}
	return append(t, segment{json: src[done:]}), nil
}

// endOfString returns the offset behind the JSON string that begins at i.
func endOfString(src []byte, i int) int {
	for i++; i < len(src) && src[i] != '"'; i++ {
		if src[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// repeatedKey returns a key that an object of src holds twice.
func repeatedKey(src []byte) (string, error) {
	dec := json.NewDecoder(bytes.NewReader(src))
	dec.UseNumber()
	type level struct {
		keys map[string]bool // nil in a list
		key  bool            // a key is next
	}
	var stack []level
	for {
		t, err := dec.Token()
		if err != nil { // the end, since src is JSON
			return "", nil
		}
		top := len(stack) - 1
		if s, ok := t.(string); ok && top >= 0 && stack[top].key {
			if stack[top].keys[s] {
				return s, nil
			}
			stack[top].keys[s] = true
			stack[top].key = false
			continue
		}
		switch t {
		case json.Delim('{'):
			stack = append(stack, level{keys: make(map[string]bool), key: true})
			continue
		case json.Delim('['):
			stack = append(stack, level{})
			continue
		case json.Delim('}'), json.Delim(']'):
			stack = stack[:top]
			top--
		}
		if top >= 0 && stack[top].keys != nil {
			stack[top].key = true
		}
	}
}

func parseParts(s string) ([]part, error) {
	var (
		parts []part
		text  strings.Builder
	)
	flush := func() {
		if text.Len() > 0 {
			parts = append(parts, part{text: text.String()})
			text.Reset()
		}
	}
	for s != "" {
		switch {
		case strings.HasPrefix(s, "$${"):
			text.WriteString("${")
			s = s[3:]
		case strings.HasPrefix(s, "${"):
			end := endOfPattern(s)
			if end < 0 {
				return nil, fmt.Errorf("%s has no end; write \\{ or \\} for a brace without a partner", quote(s))
			}
			pattern := s[2:end]
			re, err := regexp.Compile(pattern)
			if err != nil {
				return nil, err
			}
			if re.NumSubexp() == 0 {
				return nil, fmt.Errorf("%s has no group, and its first group is what it stands for", quote(s[:end+1]))
			}
			flush()
			parts = append(parts, part{re: re})
			s = s[end+1:]
		default:
			text.WriteByte(s[0])
			s = s[1:]
		}
	}
	flush()
	return parts, nil
}

// endOfPattern returns the offset of the brace that closes s, which begins
// with "${", or -1.
func endOfPattern(s string) int {
	depth := 0
	for i := 2; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '{':
			depth++
		case '}':
			if depth == 0 {
				return i
			}
			depth--
		}
	}
	return -1
}

// asks reports whether the template depends on the last result.
func (t template) asks() bool { return len(t) > 1 }

var errNoResult = errors.New("there is no result yet")

// fill writes the template with what its patterns find in last.
func (t template) fill(last string, have bool) ([]byte, error) {
	n := 0
	for _, s := range t {
		n += len(s.json) + 16*len(s.parts)
	}
	out := make([]byte, 0, n)
	for _, s := range t {
		out = append(out, s.json...)
		if s.parts == nil {
			continue
		}
		var text string
		for _, p := range s.parts {
			if p.re == nil {
				text += p.text
				continue
			}
			if !have {
				return nil, fmt.Errorf("${%s}: %w", clip(p.re.String(), maxPattern), errNoResult)
			}
			m := p.re.FindStringSubmatchIndex(last)
			if m == nil || m[2] < 0 {
				return nil, fmt.Errorf("${%s} finds nothing in the last result: %s", clip(p.re.String(), maxPattern), quote(last))
			}
			text += last[m[2]:m[3]]
		}
		if alone := len(s.parts) == 1 && s.parts[0].re != nil; alone && isScalar(text) {
			out = append(out, text...)
		} else {
			out = appendString(out, text)
		}
	}
	return out, nil
}

// isScalar reports whether s is, as it is, a JSON number, true, false or null.
func isScalar(s string) bool {
	switch s {
	case "":
		return false
	case "true", "false", "null":
		return true
	}
	first, last := s[0], s[len(s)-1]
	return (first == '-' || '0' <= first && first <= '9') && '0' <= last && last <= '9' && json.Valid([]byte(s))
}
