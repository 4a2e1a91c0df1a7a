package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/psych-go/psych-go/adapters/openai"
	"github.com/psych-go/psych-go/psych"
)

// What a model is asked for that has no check of its own.
const (
	checkTool         = "psych_check"
	checkWord         = "lighthouse"
	checkInstructions = "You test a connection. First say one short sentence. Then call the tool " + checkTool + " exactly once, with the word that the user names."
	checkTokens       = 2000 // room for the reasoning of models that can't do without
)

// askModel makes one small request with a tool, and says what came of it. A
// model call that fails is a finding; the error is ctx's.
func askModel(ctx context.Context, m psych.Model) ([]openai.Finding, error) {
	req, err := checkRequest(m.Codec())
	if err != nil {
		return nil, err
	}
	pieces := 0
	resp, err := m.Generate(ctx, req, func(d psych.Delta) {
		if d != (psych.Delta{}) {
			pieces++
		}
	})
	var failed *psych.ModelError
	switch {
	case errors.As(err, &failed):
		message := failed.Error()
		if failed.Transient {
			message += " (this may pass: a Run would try again)"
		}
		return []openai.Finding{{Level: openai.Problem, Subject: "answer", Message: message}}, nil
	case err != nil:
		return nil, err
	}
	fs := []openai.Finding{{Level: openai.OK, Subject: "answer", Message: fmt.Sprintf("%v answers", m)}}
	if pieces < 2 {
		fs = append(fs, openai.Finding{Level: openai.Note, Subject: "stream", Message: "the answer came in one piece: nothing shows until it is whole"})
	} else {
		fs = append(fs, openai.Finding{Level: openai.OK, Subject: "stream", Message: fmt.Sprintf("the answer came in %d pieces", pieces)})
	}
	return append(fs, judgeCall(resp), judgeUsage(resp.Usage)), nil
}

func checkRequest(c psych.Codec) (*psych.Request, error) {
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
	user, marker, err := c.EncodeMessage(&psych.Message{Role: psych.RoleUser, Blocks: []psych.Block{{Text: "The word is " + checkWord + "."}}})
	if err != nil {
		return nil, err
	}
	wire := func(b []byte, marker int) psych.Wire {
		return psych.Wire{Bytes: b, Chars: utf8.RuneCount(b), Marker: marker}
	}
	return &psych.Request{
		Options: psych.ModelOptions{MaxOutputTokens: checkTokens},
		Tools:   wire(tools, -1), System: [2]psych.Wire{wire(zone1, -1), wire(nil, -1)},
		History: []psych.Wire{wire(user, marker)}, Breaks: []int{0},
	}, nil
}

func judgeCall(r *psych.Response) openai.Finding {
	say := func(level openai.Level, format string, args ...any) openai.Finding {
		return openai.Finding{Level: level, Subject: "tool call", Message: fmt.Sprintf(format, args...)}
	}
	var calls []*psych.ToolCall
	for i := range r.Blocks {
		if c := r.Blocks[i].Call; c != nil {
			calls = append(calls, c)
		}
	}
	switch r.Stop {
	case psych.StopEnd, psych.StopToolUse:
	default:
		return say(openai.Problem, "the answer ended with %q, before the model was done", string(r.Stop))
	}
	if len(calls) == 0 {
		return say(openai.Problem, "the model did not call the tool that it was told to call: it, or the way it is served, may not know tools")
	}
	var args struct {
		Word string `json:"word"`
	}
	switch err := json.Unmarshal(calls[0].Arguments, &args); {
	case calls[0].Name != checkTool:
		return say(openai.Problem, "the model called %.80q, which does not exist: the tool was %s", calls[0].Name, checkTool)
	case err != nil:
		return say(openai.Problem, "the arguments are not a JSON object that matches the schema: %.200q", calls[0].Arguments)
	case len(calls) > 1 || args.Word != checkWord:
		return say(openai.Note, "the model made %d calls, with the word %.80q, and was told to make one with %q", len(calls), args.Word, checkWord)
	}
	return say(openai.OK, "the model called the tool as told")
}

func judgeUsage(u psych.Usage) openai.Finding {
	if u.Input == nil || u.Output == nil {
		return openai.Finding{Level: openai.Note, Subject: "usage", Message: "the server does not report tokens: limits on them have no effect, and only turns bound an exchange"}
	}
	return openai.Finding{Level: openai.OK, Subject: "usage", Message: fmt.Sprintf("%d tokens in, %d out", *u.Input, *u.Output)}
}
