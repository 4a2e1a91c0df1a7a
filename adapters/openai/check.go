package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

// A Level says what a Finding means.
type Level string

// Levels.
const (
	OK      Level = "ok"
	Note    Level = "note"    // works, and costs or hides something
	Problem Level = "problem" // a Run will not work, or not well
)

// A Finding is one thing that [Model.Check] looked at.
type Finding struct {
	Level   Level
	Subject string // answer, stream, tool call, stop, usage, cache, reasoning
	Message string // for a person
}

func (f Finding) String() string { return fmt.Sprintf("%-8s%s: %s", f.Level, f.Subject, f.Message) }

// What Check asks for.
const (
	checkTool         = "psych_check"
	checkWord         = "lighthouse"
	checkInstructions = "You test a connection. First say one short sentence. Then call the tool " + checkTool + " exactly once, with the word that the user names."
	checkMessage      = "The word is " + checkWord + "."
	checkTail         = "[Context from the system, not from the user]\nThis is a test."
	checkTokens       = 2000 // room for the reasoning of models that can't do without
)

// Check makes one small request with a tool and says what came of it: whether
// the server answers, streams, calls the tool, says why it stopped and reports
// usage. A model call that fails is a Finding; the error is ctx's. A server
// that holds the connection without a word is waited for until ctx ends.
func (m *Model) Check(ctx context.Context) ([]Finding, error) {
	req, err := m.checkRequest()
	if err != nil {
		return nil, err
	}
	pieces := 0
	resp, err := m.Generate(ctx, req, func(d psych.Delta) {
		if d != (psych.Delta{}) {
			pieces++
		}
	})
	if err != nil {
		var failed *psych.ModelError
		if !errors.As(err, &failed) {
			return nil, err
		}
		message := failed.Error()
		if failed.Transient {
			message += " (this may pass: a Run would try again)"
		}
		return []Finding{{Problem, "answer", message}}, nil
	}
	fs := []Finding{{OK, "answer", m.String() + " answers"}}
	fs = append(fs, checkStream(pieces), checkCall(resp), checkStop(resp))
	return append(append(fs, checkUsage(resp.Usage)...), checkReasoning(resp, m.o.DropReasoning)...), nil
}

func (m *Model) checkRequest() (*psych.Request, error) {
	c := m.codec
	tools, err := c.EncodeTools([]psych.ToolDef{{
		Name: checkTool, Description: "Notes a word.",
		Schema: json.RawMessage(`{"type":"object","properties":{"word":{"type":"string"}},"required":["word"]}`),
	}})
	if err != nil {
		return nil, err
	}
	zone1, _, err := c.EncodeSystem([]string{checkInstructions}, "")
	if err != nil {
		return nil, err
	}
	user, marker, err := c.EncodeMessage(&psych.Message{Role: psych.RoleUser, Blocks: []psych.Block{{Text: checkMessage}}})
	if err != nil {
		return nil, err
	}
	tail, err := c.EncodeTail(checkTail)
	if err != nil {
		return nil, err
	}
	wire := func(b []byte, marker int) psych.Wire {
		return psych.Wire{Bytes: b, Chars: utf8.RuneCount(b), Marker: marker}
	}
	return &psych.Request{
		Model: m.name, Options: psych.ModelOptions{MaxOutputTokens: checkTokens},
		Tools: wire(tools, -1), System: [2]psych.Wire{wire(zone1, -1), wire(nil, -1)},
		History: []psych.Wire{wire(user, marker)}, Breaks: []int{0}, Tail: wire(tail, -1),
	}, nil
}

func checkStream(pieces int) Finding {
	if pieces < 2 {
		return Finding{Note, "stream", fmt.Sprintf("the answer came in %d piece: nothing shows until it is whole", pieces)}
	}
	return Finding{OK, "stream", fmt.Sprintf("the answer came in %d pieces", pieces)}
}

func checkCall(r *psych.Response) Finding {
	problem := func(format string, args ...any) Finding {
		return Finding{Problem, "tool call", fmt.Sprintf(format, args...)}
	}
	var calls []*psych.ToolCall
	for _, b := range r.Blocks {
		if b.Call != nil {
			calls = append(calls, b.Call)
		}
	}
	if len(calls) == 0 {
		return problem("the model did not call the tool that it was told to call: it, or the way it is served, may not know tools")
	}
	c := calls[0]
	var args struct {
		Word string `json:"word"`
	}
	switch err := json.Unmarshal(c.Arguments, &args); {
	case len(calls) > 1:
		return Finding{Note, "tool call", fmt.Sprintf("the model made %d calls and was told to make one", len(calls))}
	case c.Name != checkTool:
		return problem("the model called %.80q, which does not exist: the tool was %s", c.Name, checkTool)
	case err != nil:
		return problem("the arguments are not a JSON object that matches the schema: %.200q", c.Arguments)
	case args.Word != checkWord:
		return Finding{Note, "tool call", fmt.Sprintf("the model called the tool with the word %.80q, not %q", args.Word, checkWord)}
	case c.ProviderID == "":
		return Finding{Note, "tool call", "the call has no id: Psych's own is sent back"}
	}
	return Finding{OK, "tool call", "the model called the tool as told"}
}

func checkStop(r *psych.Response) Finding {
	switch r.Stop {
	case psych.StopToolUse, psych.StopEnd:
		return Finding{OK, "stop", "the model stopped by itself"}
	case psych.StopMaxTokens:
		return Finding{Problem, "stop", fmt.Sprintf("the answer was cut at the output limit of %d tokens", checkTokens)}
	case psych.StopRefusal:
		return Finding{Problem, "stop", "the model refused"}
	}
	return Finding{Problem, "stop", fmt.Sprintf("the reason %.80q is not known: such an answer ends an exchange as failed", r.Stop)}
}

func checkUsage(u psych.Usage) []Finding {
	if u.Input == nil || u.Output == nil {
		return []Finding{{Note, "usage", "the server does not report tokens: limits on them have no effect, and only turns bound an exchange"}}
	}
	fs := []Finding{{OK, "usage", fmt.Sprintf("%d tokens in, %d out", *u.Input, *u.Output)}}
	if u.CacheRead == nil {
		return append(fs, Finding{Note, "cache", "the server does not report cached tokens: the hit rate stays unknown"})
	}
	return append(fs, Finding{OK, "cache", fmt.Sprintf("cached tokens are reported (%d here)", *u.CacheRead)})
}

func checkReasoning(r *psych.Response, dropped bool) []Finding {
	for _, b := range r.Blocks {
		if b.Provider == nil {
			continue
		}
		if item, _ := readItem(b.Provider); item != nil && replayable(item) {
			if dropped {
				return []Finding{{OK, "reasoning", "the server sends reasoning items, which are kept in the log and not sent back"}}
			}
			return []Finding{{OK, "reasoning", "the server sends reasoning items, which are kept and sent back (drop_reasoning leaves them out)"}}
		}
		var k kept
		k.read(b.Provider)
		for _, f := range k.message {
			if isReasoning(f.key) && dropped {
				return []Finding{{OK, "reasoning", "the server sends " + f.key + ", which is kept in the log and not sent back"}}
			}
			if isReasoning(f.key) {
				return []Finding{{OK, "reasoning", "the server sends " + f.key + ", which is kept and sent back (drop_reasoning leaves it out)"}}
			}
		}
	}
	return nil
}
