package script

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// A step is a Step whose patterns are compiled.
type step struct {
	Step
	speaks          bool
	require, forbid []*regexp.Regexp
	until           *regexp.Regexp // nil: no loop
	arguments       []template     // of each call; nil for raw ones
}

// compile checks s and compiles it; whole says that s is all that was
// written, so that what it lacks is lacking.
func (d *problems) compile(path string, s *Step, whole bool) step {
	c := step{Step: *s, speaks: s.Text != nil || s.Provider != nil || s.Calls != nil}

	kinds := 0
	for _, is := range []bool{c.speaks, s.Fail != nil, s.Stall} {
		if is {
			kinds++
		}
	}
	switch {
	case kinds == 0 && whole:
		d.add(path, "a step needs text, calls, provider, fail or stall")
	case kinds > 1:
		d.add(path, "a step speaks (text, calls, provider), fails or stalls, and not two of these")
	}
	if s.Fail != nil && *s.Fail != 0 && (*s.Fail < 400 || *s.Fail > 599) {
		d.add(path+".fail", "must be a status from 400 to 599, or 0 for a broken connection, not %d", *s.Fail)
	}
	if s.Times < 0 {
		d.add(path+".times", "must be at least 1, not %d", s.Times)
	}
	if s.RetryAfterSeconds < 0 || s.RetryAfterSeconds > 86400 {
		d.add(path+".retry_after_seconds", "must be from 0 to 86400, not %v", s.RetryAfterSeconds)
	}
	if kinds == 1 {
		d.misplaced(path, &c)
	}
	d.stop(path, s)
	d.usage(path, s.Usage)

	c.require = d.regexps(path+".require", s.Require)
	c.forbid = d.regexps(path+".forbid", s.Forbid)
	if s.Repeat != nil {
		c.until = d.until(path, s.Repeat.Until, whole)
	}
	for i := range s.Calls {
		c.arguments = append(c.arguments, d.arguments(path+"."+index("calls", i), &s.Calls[i], whole))
	}
	return c
}

// misplaced reports fields that have no meaning on a step of this kind.
func (d *problems) misplaced(path string, c *step) {
	if c.speaks {
		if c.Times != 0 {
			d.add(path+".times", "belongs to fail or stall")
		}
	} else {
		if c.Usage != nil {
			d.add(path+".usage", "belongs to a step that speaks")
		}
		if c.Repeat != nil {
			d.add(path+".repeat", "belongs to a step that speaks")
		}
		if c.Stop != "" && !(c.Fail != nil && c.Stop == psych.StopContext) {
			d.add(path+".stop", "belongs to a step that speaks; a failing one may have context")
		}
	}
	if c.Fail == nil && c.RetryAfterSeconds != 0 {
		d.add(path+".retry_after_seconds", "belongs to fail")
	}
}

func (d *problems) stop(path string, s *Step) {
	switch s.Stop {
	case "", psych.StopEnd, psych.StopToolUse, psych.StopMaxTokens, psych.StopRefusal, psych.StopContext:
	default:
		d.add(path+".stop", "must be end, tool_use, max_tokens, refusal or context, not %s", quote(string(s.Stop)))
	}
}

func (d *problems) usage(path string, u *Usage) {
	if u == nil {
		return
	}
	for _, f := range []struct {
		name string
		n    *int64
	}{{"input", u.Input}, {"cached", u.Cached}, {"output", u.Output}} {
		if f.n != nil && *f.n < 0 {
			d.add(path+".usage."+f.name, "must not be negative, but is %d", *f.n)
		}
	}
}

func (d *problems) regexps(path string, patterns []string) []*regexp.Regexp {
	var l []*regexp.Regexp
	for i, p := range patterns {
		if re, err := regexp.Compile(p); err != nil {
			d.add(index(path, i), "%v", err)
		} else {
			l = append(l, re)
		}
	}
	return l
}

func (d *problems) until(path, pattern string, whole bool) *regexp.Regexp {
	path += ".repeat.until"
	if pattern == "" {
		// It would match anything, so the loop would be none.
		if whole {
			d.add(path, "must be a regular expression over the last result")
		}
		return nil
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		d.add(path, "%v", err)
	}
	return re
}

func (d *problems) arguments(path string, c *Call, whole bool) template {
	if c.Name == "" && whole {
		d.add(path+".name", "is missing")
	}
	if c.RawArguments != nil {
		if c.Arguments != nil {
			d.add(path, "has arguments and raw_arguments; one of them is wanted")
		}
		return nil
	}
	raw := c.Arguments
	if len(bytes.TrimSpace(raw)) == 0 {
		raw = json.RawMessage("{}")
	}
	t, err := newTemplate(raw)
	if err != nil {
		d.add(path+".arguments", "%v", err)
	}
	return t
}

func (s *step) failure(n, of int) *psych.ModelError {
	status := *s.Fail
	e := &psych.ModelError{
		Status:     status,
		Transient:  status == 0 || status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status >= 500,
		Overflow:   s.Stop == psych.StopContext,
		RetryAfter: time.Duration(s.RetryAfterSeconds * float64(time.Second)),
	}
	what := "the connection broke"
	if e.Overflow {
		what = "the context window is exceeded"
	} else if status != 0 {
		what = http.StatusText(status)
		if what == "" {
			what = "status " + strconv.Itoa(status)
		}
	}
	e.Message = what + ", as the script has it (failure " + strconv.Itoa(n) + " of " + strconv.Itoa(of) + ")"
	return e
}
