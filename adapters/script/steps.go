package script

import (
	"encoding/json"
	"strings"

	"github.com/psych-go/psych-go/psych"
)

// A Script is what a [Model] plays. It is made by [Parse] or [Load], or
// written in Go.
type Script struct {
	Steps []Step
}

// A Step is one answer of the model. It speaks (any of Provider, Text and
// Calls, in that order), or it fails, or it stalls.
type Step struct {
	// Provider is a provider's own block, any bytes.
	Provider *string

	// Text is a text block; an empty one is sent as it is.
	Text *string

	// Calls are tool calls. A list that is there but empty makes a step that
	// speaks and says nothing.
	Calls []Call

	// Fail is an HTTP status from 400 to 599, or 0 for a connection that broke.
	// 0, 408, 429 and 5xx are transient.
	Fail *int

	// Stall makes the step wait, silently, until its context ends.
	Stall bool

	// Times is how often a failing step fails (0 is once), or a stalling one
	// stalls (0 is always), before it is passed over. It is counted in the
	// Model, for each history: Runs whose histories are equal share the count.
	Times int

	// RetryAfterSeconds is what a failing step tells the caller.
	RetryAfterSeconds float64

	// Stop is why the model stopped; "" is tool_use with calls and end without.
	// On a failing step it may be context: the context window was exceeded.
	Stop psych.StopReason

	// Usage is what the step reports, an absent field being unknown. Without
	// it, tokens are estimated.
	Usage *Usage

	// Require and Forbid are regular expressions that the decoded text of the
	// whole request must and must not match: system blocks, tools, messages
	// and trailing message, joined by newlines.
	Require, Forbid []string

	// Repeat plays the step again and again.
	Repeat *Repeat
}

// A Call is a tool call that the model asks for.
type Call struct {
	// ID is the provider's id of the call, and may be empty, repeated or
	// strange. Without it the id is call_N_P: the number of the answer and the
	// position in it, from 1.
	ID *string

	Name string

	// Arguments is JSON; none is {}. In a string of it, but not in a key,
	// ${REGEXP} stands for the first group of REGEXP in the last result. A
	// string that is one ${REGEXP} alone becomes a number, true, false or null
	// where the group is one. $${ stands for ${. A brace in REGEXP that has no
	// partner is written \{ or \}.
	Arguments json.RawMessage

	// RawArguments is sent as it is, in place of Arguments: it need not be JSON.
	RawArguments *string
}

// Usage is what a step reports as tokens.
type Usage struct {
	Input, Cached, Output *int64
}

// Repeat makes a loop of one step: it is played at least once, and again until
// Until matches the last result.
type Repeat struct {
	Until string
}

// An Error lists every problem of a script, not the first alone. It matches
// [psych.ErrInvalid].
type Error struct{ Problems []psych.Problem }

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("script: invalid script: ")
	for i, p := range e.Problems {
		if i > 0 {
			b.WriteString("; ")
		}
		if p.Path != "" {
			b.WriteString(p.Path + ": ")
		}
		b.WriteString(p.Message)
	}
	return b.String()
}

// Unwrap returns [psych.ErrInvalid].
func (e *Error) Unwrap() error { return psych.ErrInvalid }
