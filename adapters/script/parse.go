package script

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"github.com/psych-go/psych-go/internal/yamljson"
	"github.com/psych-go/psych-go/psych"
)

// Load parses the script in the file at path.
func Load(path string) (*Script, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("script: load: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, yamljson.MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("script: load: %w", err)
	}
	s, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("script: load %s: %w", path, err)
	}
	return s, nil
}

// Parse reads a script in YAML or JSON. It is strict: unknown, repeated and
// misplaced fields, and patterns that don't compile, are reported all together
// in an [*Error] that says where each is. Every error matches
// [psych.ErrInvalid].
func Parse(data []byte) (*Script, error) {
	data, err := yamljson.Convert(data)
	if err != nil {
		return nil, fmt.Errorf("script: %w: %w", psych.ErrInvalid, err)
	}
	if err := wellFormed(data); err != nil {
		return nil, fmt.Errorf("script: %w: not JSON: %w", psych.ErrInvalid, err)
	}
	var (
		d problems
		s Script
	)
	d.object("", data, map[string]field{
		"steps": func(path string, raw json.RawMessage) {
			for i, raw := range d.list(path, raw) {
				s.Steps = append(s.Steps, d.step(index(path, i), raw))
			}
		},
	})
	if len(d.all) == 0 && len(s.Steps) == 0 {
		d.add("steps", "a script needs at least one step")
	}
	if len(d.all) > 0 {
		return nil, &Error{Problems: d.all}
	}
	return &s, nil
}

func wellFormed(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("something follows the script at byte %d", dec.InputOffset())
	}
	return nil
}

// problems collects what is wrong, so that a person sees all of it at once.
type problems struct{ all []psych.Problem }

func (d *problems) add(path, format string, args ...any) {
	d.all = append(d.all, psych.Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

type field func(path string, raw json.RawMessage)

// object hands each field of raw to its function. encoding/json would neither
// see a field that is there twice nor say where an unknown one is.
func (d *problems) object(path string, raw json.RawMessage, fields map[string]field) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		d.add(path, "must be an object, not %s", kindOf(raw))
		return
	}
	seen := make(map[string]bool)
	for dec.More() {
		t, _ := dec.Token() // raw is well-formed
		name, _ := t.(string)
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			d.add(path, "%v", err)
			return
		}
		at := name
		if path != "" {
			at = path + "." + name
		}
		switch f := fields[name]; {
		case seen[name]:
			d.add(at, "is there twice")
		case f == nil:
			d.add(at, "unknown field; known are %s", known(fields))
		default:
			f(at, v)
		}
		seen[name] = true
	}
}

func known(fields map[string]field) string {
	names := make([]string, 0, len(fields))
	for n := range fields {
		names = append(names, n)
	}
	slices.Sort(names)
	b := ""
	for i, n := range names {
		if i > 0 {
			b += ", "
		}
		b += n
	}
	return b
}

func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

func (d *problems) list(path string, raw json.RawMessage) []json.RawMessage {
	var l []json.RawMessage
	if kindOf(raw) != "a list" || json.Unmarshal(raw, &l) != nil {
		d.add(path, "must be a list, not %s", kindOf(raw))
	}
	return l
}

// into decodes raw into a T, saying what it must be otherwise.
func into[T any](d *problems, path string, raw json.RawMessage, must string) (v T, ok bool) {
	if kindOf(raw) == "null" || json.Unmarshal(raw, &v) != nil {
		d.add(path, "must be %s, not %s", must, kindOf(raw))
		return v, false
	}
	return v, true
}

func kindOf(raw json.RawMessage) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	default:
		return "the number " + clip(string(raw), 40)
	}
}

// value makes a field that decodes into p.
func value[T any](d *problems, p *T, must string) field {
	return func(path string, raw json.RawMessage) {
		if v, ok := into[T](d, path, raw, must); ok {
			*p = v
		}
	}
}

// optional is value for a field whose presence counts.
func optional[T any](d *problems, p **T, must string) field {
	return func(path string, raw json.RawMessage) {
		if v, ok := into[T](d, path, raw, must); ok {
			*p = &v
		}
	}
}

func (d *problems) step(path string, raw json.RawMessage) Step {
	var s Step
	before := len(d.all)
	d.object(path, raw, map[string]field{
		"provider":            optional(d, &s.Provider, "a string"),
		"text":                optional(d, &s.Text, "a string"),
		"fail":                optional(d, &s.Fail, "an HTTP status"),
		"stall":               value(d, &s.Stall, "true"),
		"times":               d.times(&s.Times),
		"retry_after_seconds": value(d, &s.RetryAfterSeconds, "a number"),
		"stop":                value(d, &s.Stop, "a string"),
		"require":             d.patterns(&s.Require),
		"forbid":              d.patterns(&s.Forbid),
		"calls": func(path string, raw json.RawMessage) {
			s.Calls = []Call{}
			for i, raw := range d.list(path, raw) {
				s.Calls = append(s.Calls, d.call(index(path, i), raw))
			}
		},
		"usage": func(path string, raw json.RawMessage) {
			s.Usage = new(Usage)
			d.object(path, raw, map[string]field{
				"input":  optional(d, &s.Usage.Input, "a whole number"),
				"cached": optional(d, &s.Usage.Cached, "a whole number"),
				"output": optional(d, &s.Usage.Output, "a whole number"),
			})
		},
		"repeat": func(path string, raw json.RawMessage) {
			s.Repeat = new(Repeat)
			d.object(path, raw, map[string]field{"until": value(d, &s.Repeat.Until, "a regular expression")})
		},
	})
	// Of a step whose fields are wrong already only what holds in any case is
	// said: a misspelt text would be reported as missing, too.
	d.compile(path, &s, len(d.all) == before)
	return s
}

// times tells 0, which is wrong, from absence.
func (d *problems) times(p *int) field {
	return func(path string, raw json.RawMessage) {
		if v, ok := into[int](d, path, raw, "a whole number"); ok {
			if v < 1 {
				d.add(path, "must be at least 1, not %d", v)
			}
			*p = max(v, 0)
		}
	}
}

func (d *problems) patterns(p *[]string) field {
	return func(path string, raw json.RawMessage) {
		for i, raw := range d.list(path, raw) {
			// One that is no string keeps its place, so that paths count right.
			re, _ := into[string](d, index(path, i), raw, "a regular expression")
			*p = append(*p, re)
		}
	}
}

func (d *problems) call(path string, raw json.RawMessage) Call {
	var c Call
	d.object(path, raw, map[string]field{
		"id":            optional(d, &c.ID, "a string"),
		"name":          value(d, &c.Name, "a string"),
		"arguments":     func(_ string, raw json.RawMessage) { c.Arguments = raw },
		"raw_arguments": optional(d, &c.RawArguments, "a string"),
	})
	return c
}
