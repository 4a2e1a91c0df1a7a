package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/psych"
)

// typed answers with a stream as the Responses API sends it, each event with
// its name.
func typed(data ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, d := range data {
			var e struct {
				Type string `json:"type"`
			}
			_ = json.Unmarshal([]byte(d), &e) // what is no event has no name
			if e.Type != "" {
				fmt.Fprintf(w, "event: %s\n", e.Type)
			}
			fmt.Fprintf(w, "data: %s\n\n", d)
			w.(http.Flusher).Flush()
		}
	}
}

const created = `{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress","output":[],"usage":null,"error":null}}`

func added(index int, item string) string {
	return fmt.Sprintf(`{"type":"response.output_item.added","sequence_number":1,"output_index":%d,"item":%s}`, index, item)
}

func itemDone(index int, item string) string {
	return fmt.Sprintf(`{"type":"response.output_item.done","sequence_number":9,"output_index":%d,"item":%s}`, index, item)
}

// piece is a delta of a type, of the item at an index.
func piece(kind string, index int, id, delta string) string {
	return fmt.Sprintf(`{"type":"response.%s.delta","sequence_number":2,"output_index":%d,"item_id":%q,"content_index":0,"delta":%s}`, kind, index, id, delta)
}

func completed(usage string, output ...string) string {
	return `{"type":"response.completed","sequence_number":99,"response":{"status":"completed","error":null,"incomplete_details":null,"output":[` + strings.Join(output, ",") + `],"usage":` + usage + `}}`
}

func incompleteFor(reason string, output ...string) string {
	return `{"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"` + reason + `"},"output":[` + strings.Join(output, ",") + `]}}`
}

func aMessage(id, text string) string {
	return `{"id":"` + id + `","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"` + text + `"}]}`
}

func aCall(id, callID, name, args string) string {
	return `{"id":"` + id + `","type":"function_call","status":"completed","call_id":"` + callID + `","name":"` + name + `","arguments":` + string(appendString(nil, args)) + `}`
}

func aThought(id, encrypted string) string {
	return `{"id":"` + id + `","type":"reasoning","summary":[],"encrypted_content":"` + encrypted + `"}`
}

func (s *stub) responses(o *Options) *Model {
	own := Options{}
	if o != nil {
		own = *o
	}
	own.Responses = true
	return s.model(&own)
}

func TestResponsesRequestAsSent(t *testing.T) {
	s := newStub(t, typed(created, itemDone(0, aMessage("msg_1", "hi")), completed("null")))
	m := s.responses(&Options{APIKey: testKey, ReasoningSummary: "auto"})
	req := aRequest(t, m)
	r, err := m.Generate(t.Context(), req, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := s.got()
	if len(got) != 1 {
		t.Fatalf("%d requests, want 1", len(got))
	}
	want := bodyOf(t, m, req)
	switch g := got[0]; {
	case g.path != "POST /v1/responses":
		t.Errorf("asked for %s", g.path)
	case g.auth != "Bearer "+testKey:
		t.Errorf("authorization %q", g.auth)
	case !bytes.Equal(g.body, want):
		t.Errorf("the body is\n%s\nwant\n%s", g.body, want)
	case g.length != int64(len(want)) || len(g.chunked) > 0:
		t.Errorf("length %d and encoding %v, want %d stated", g.length, g.chunked, len(want))
	}
	if n := len([]rune(string(want))); r.Sent != n {
		t.Errorf("Sent is %d, want %d characters", r.Sent, n)
	}
	if p := checkInput(got[0].body); p != "" {
		t.Error(p)
	}
}

// checkInput says what of a body the documentation of the Responses API
// forbids, as far as this package could do it; "" is nothing.
func checkInput(body []byte) string {
	var b struct {
		Store   *bool    `json:"store"`
		Stream  bool     `json:"stream"`
		Include []string `json:"include"`
		Tools   []struct {
			Type, Name string
			Strict     *bool
			Parameters map[string]any
		} `json:"tools"`
		Input []json.RawMessage `json:"input"`
	}
	if err := json.Unmarshal(body, &b); err != nil {
		return err.Error()
	}
	if b.Store == nil || *b.Store || !b.Stream {
		return "it is stored, or no stream"
	}
	for _, tool := range b.Tools {
		if tool.Type != "function" || tool.Name == "" || tool.Strict == nil || *tool.Strict || tool.Parameters["properties"] == nil {
			return fmt.Sprintf("tool %+v", tool)
		}
	}
	var open []string // calls without an output
	seen := map[string]bool{}
	before := ""
	for i, raw := range b.Input {
		var x struct {
			Type, Role, Name, Arguments string
			ID                          *string `json:"id"`
			CallID                      string  `json:"call_id"`
			Encrypted                   string  `json:"encrypted_content"`
			Content                     json.RawMessage
			Output                      json.RawMessage
		}
		if err := json.Unmarshal(raw, &x); err != nil {
			return err.Error()
		}
		if before == "reasoning" && x.Type != "reasoning" && x.Type != "function_call" && (x.Type != "message" || x.Role != "assistant") {
			return fmt.Sprintf("item %d does not follow its reasoning: %s", i, raw)
		}
		if x.Type != "reasoning" && x.ID != nil {
			return fmt.Sprintf("item %d has an id that is not stored: %s", i, raw)
		}
		if len(open) > 0 && x.Type != "function_call" && x.Type != "function_call_output" {
			return fmt.Sprintf("item %d stands before the output of %s: %s", i, open[0], raw)
		}
		switch x.Type {
		case "reasoning":
			if x.Encrypted == "" {
				return fmt.Sprintf("item %d would be looked up: %s", i, raw)
			}
		case "function_call":
			if seen[x.CallID] || !json.Valid([]byte(x.Arguments)) || x.Name == "" {
				return fmt.Sprintf("call %s", raw)
			}
			seen[x.CallID] = true
			open = append(open, x.CallID)
		case "function_call_output":
			if len(open) == 0 || open[0] != x.CallID || len(x.Output) == 0 {
				return fmt.Sprintf("output %s, open are %v", raw, open)
			}
			open = open[1:]
		case "", "message":
			if x.Role == "user" && before == "user" {
				return fmt.Sprintf("item %d is the second of the user's in a row", i)
			}
			if len(x.Content) == 0 || bytes.Contains(x.Content, []byte(`"text":""`)) {
				return fmt.Sprintf("item %d has an empty text: %s", i, raw)
			}
		default:
			return fmt.Sprintf("item %d is of type %s", i, x.Type)
		}
		before = x.Type
		if x.Role == "user" {
			before = "user"
		}
	}
	if len(open) > 0 || before == "reasoning" {
		return fmt.Sprintf("calls without output: %v, the last item is %s", open, before)
	}
	return ""
}

func TestResponsesStreams(t *testing.T) {
	call := func(pieces ...string) []string {
		out := []string{created, added(0, aCall("fc_1", "call_A", "f", ""))}
		var whole strings.Builder
		for _, p := range pieces {
			out = append(out, piece("function_call_arguments", 0, "fc_1", string(appendString(nil, p))))
			whole.WriteString(p)
		}
		return append(out, `{"type":"response.function_call_arguments.done","output_index":0,"item_id":"fc_1","arguments":"ignored"}`, itemDone(0, aCall("fc_1", "call_A", "f", whole.String())), completed("null"))
	}
	ones := strings.Split(strings.Repeat("1", 1000), "")
	for _, c := range []struct {
		name   string
		events []string
		want   string
		stop   psych.StopReason
	}{
		{"text", []string{
			created, `{"type":"response.in_progress","response":{}}`, added(0, `{"id":"msg_1","type":"message","status":"in_progress","content":[],"role":"assistant"}`),
			`{"type":"response.content_part.added","item_id":"msg_1","output_index":0,"content_index":0,"part":{"type":"output_text","text":""}}`,
			piece("output_text", 0, "msg_1", `"he"`), piece("output_text", 0, "msg_1", `"llo \ud83c"`), piece("output_text", 0, "msg_1", `"\udca1"`),
			`{"type":"response.output_text.done","item_id":"msg_1","output_index":0,"content_index":0,"text":"hello \ud83c\udca1"}`,
			itemDone(0, aMessage("msg_1", `hello \ud83c\udca1`)), completed("null", aMessage("msg_1", `hello \ud83c\udca1`)),
		}, "text hello 🂡", psych.StopEnd},
		{"nothing", []string{created, completed("null")}, "", psych.StopEnd},
		{"only reasoning", []string{created, added(0, aThought("rs_1", "")), itemDone(0, aThought("rs_1", "hm")), completed("null")}, `kept {"type":"openai.item","item":` + aThought("rs_1", "hm") + `}`, psych.StopEnd},
		{"all in the last event", []string{created, completed("null", aThought("rs_1", "x"), aMessage("msg_1", "a"), aCall("fc_1", "call_A", "f", "{}"))},
			`kept {"type":"openai.item","item":` + aThought("rs_1", "x") + `}|text a|call call_A f {}`, psych.StopToolUse},
		{"no items that are done", []string{created, piece("output_text", 0, "msg_1", `"a"`), piece("function_call_arguments", 1, "fc_1", `"{}"`), completed("null")}, "text a|call   {}", psych.StopToolUse},
		{"neither index nor ids", []string{
			`{"type":"response.output_item.added","item":{"type":"message"}}`, `{"type":"response.output_text.delta","delta":"a"}`, `{"type":"response.output_item.done","item":` + strings.Replace(aMessage("", "a"), `"id":"",`, "", 1) + `}`,
			`{"type":"response.output_item.added","item":{"type":"message"}}`, `{"type":"response.output_text.delta","delta":"b"}`, completed("null", aMessage("m1", "a"), aMessage("m2", "b")),
		}, "text a|text b", psych.StopEnd},
		{"an id of its own in each event", []string{
			added(0, aThought("rs_a", "part")), itemDone(0, aThought("rs_b", "whole")), added(1, aMessage("msg_a", "")), piece("output_text", 1, "msg_b", `"x"`), itemDone(1, aMessage("msg_c", "x")),
			completed("null", aThought("rs_d", "other"), aMessage("msg_d", "x")),
		}, `kept {"type":"openai.item","item":` + aThought("rs_b", "whole") + `}|text x`, psych.StopEnd},
		{"one index for all", []string{
			added(0, aCall("fc_1", "a", "f", "")), piece("function_call_arguments", 0, "fc_1", `"{}"`), itemDone(0, aCall("fc_1", "a", "f", "{}")),
			added(0, aCall("fc_2", "b", "f", "")), piece("function_call_arguments", 0, "fc_2", `"[]"`), itemDone(0, aCall("fc_2", "b", "f", "[]")), completed("null"),
		}, "call a f {}|call b f []", psych.StopToolUse},
		{"one index for all that are done", []string{itemDone(0, aMessage("m1", "a")), itemDone(0, aMessage("m2", "b")), completed("null")}, "text a|text b", psych.StopEnd},
		{"done twice", []string{itemDone(0, aMessage("msg_1", "x")), itemDone(0, aMessage("msg_1", "x")), completed("null")}, "text x", psych.StopEnd},
		{"calls interleaved", []string{
			added(0, aCall("fc_1", "a", "f", "")), added(1, aCall("fc_2", "b", "g", "")),
			piece("function_call_arguments", 1, "fc_2", `"{\"y\""`), piece("function_call_arguments", 0, "fc_1", `"{\"x\":1}"`), piece("function_call_arguments", 1, "fc_2", `":2}"`),
			itemDone(1, aCall("fc_2", "b", "g", `{"y":2}`)), itemDone(0, aCall("fc_1", "a", "f", `{"x":1}`)), completed("null"),
		}, `call a f {"x":1}|call b g {"y":2}`, psych.StopToolUse},
		{"a thousand pieces", call(ones...), "call call_A f " + strings.Repeat("1", 1000), psych.StopToolUse},
		{"arguments as an object", []string{itemDone(0, `{"type":"function_call","call_id":"a","name":"f","arguments":{"x": 1.0}}`), completed("null")}, `call a f {"x": 1.0}`, psych.StopToolUse},
		{"arguments that are not JSON", call(`{"x":`), `call call_A f {"x":`, psych.StopToolUse},
		{"no arguments", []string{itemDone(0, `{"type":"function_call","call_id":"a","name":"f"}`), completed("null")}, "call a f ", psych.StopToolUse},
		{"arguments done alone", []string{
			added(0, aCall("fc_1", "a", "f", "")), `{"type":"response.function_call_arguments.done","output_index":0,"item_id":"fc_1","arguments":"{}"}`, completed("null"),
		}, "call a f {}", psych.StopToolUse},
		{"refusal", []string{
			piece("refusal", 0, "msg_1", `"I can"`), piece("refusal", 0, "msg_1", `"not."`),
			itemDone(0, `{"id":"msg_1","type":"message","content":[{"type":"refusal","refusal":"I cannot."}]}`), completed("null"),
		}, "text I cannot.", psych.StopRefusal},
		{"refusal after a call", []string{itemDone(0, aCall("fc_1", "a", "f", "{}")), itemDone(1, `{"type":"message","content":[{"type":"refusal","refusal":"No."}]}`), completed("null")}, "call a f {}|text No.", psych.StopRefusal},
		{"content filter", []string{piece("output_text", 0, "m", `"x"`), incompleteFor("content_filter")}, "text x", psych.StopRefusal},
		{"cut at the limit", []string{piece("output_text", 0, "m", `"x"`), incompleteFor("max_output_tokens", aMessage("m", "x"))}, "text x", psych.StopMaxTokens},
		{"a call that is cut", []string{added(0, aCall("fc_1", "a", "f", "")), piece("function_call_arguments", 0, "fc_1", `"{\"x"`), incompleteFor("max_output_tokens")}, `call a f {"x`, psych.StopMaxTokens},
		{"cut in reasoning", []string{added(0, aThought("rs_1", "half")), incompleteFor("max_output_tokens")}, "", psych.StopMaxTokens},
		{"incomplete by status", []string{piece("output_text", 0, "m", `"x"`), `{"type":"response.completed","response":{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}}`}, "text x", psych.StopMaxTokens},
		{"unknown reason", []string{piece("output_text", 0, "m", `"x"`), incompleteFor("steered")}, "text x", "steered"},
		{"no reason", []string{piece("output_text", 0, "m", `"x"`), `{"type":"response.incomplete","response":{"incomplete_details":[]}}`}, "text x", "incomplete"},
		{"no response", []string{piece("output_text", 0, "m", `"x"`), `{"type":"response.completed"}`}, "text x", psych.StopEnd},
		{"only reasoning", []string{itemDone(0, aThought("rs_1", "x")), completed("null")}, `kept {"type":"openai.item","item":` + aThought("rs_1", "x") + `}`, psych.StopEnd},
		{"phases", []string{
			itemDone(0, strings.Replace(aMessage("m1", "a"), `"role"`, `"phase":"commentary","novel":null,"role"`, 1)), itemDone(1, strings.Replace(aCall("f", "a", "f", "{}"), `"name"`, `"namespace":"n","name"`, 1)), completed("null"),
		}, `kept {"type":"openai.with","with":{"phase":"commentary"}}|text a|kept {"type":"openai.with","with":{"namespace":"n"}}|call a f {}`, psych.StopToolUse},
		{"unknown items and events", []string{
			`{"type":"response.novel","a":1}`, `{"novel":1}` + "\n\n: ping", added(0, `{"type":"novel_call","id":"n_1"}`), itemDone(0, `{"type":"novel_call","id":"n_1","x":[1.0]}`), itemDone(1, aMessage("m", "x")), completed("null"),
		}, `kept {"type":"openai.item","item":{"type":"novel_call","id":"n_1","x":[1.0]}}|text x`, psych.StopEnd},
		{"id of the response", []string{itemDone(0, aMessage("m", "x")), `{"type":"response.completed","response":{"id":"resp_1","status":"completed"}}`}, `text x|kept {"type":"openai.response","id":"resp_1"}`, psych.StopEnd},
		{"nothing is read behind the end", []string{itemDone(0, aMessage("m", "x")), completed("null"), `{"type":"error","message":"late"}`}, "text x", psych.StopEnd},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStub(t, typed(c.events...))
			var text, args strings.Builder
			names := map[int]string{}
			r, err := generate(t, s.responses(nil), func(d psych.Delta) {
				text.WriteString(d.Text)
				args.WriteString(d.Arguments)
				if d.Name != "" {
					names[d.Call] += d.Name
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := blocks(t, r); got != c.want || r.Stop != c.stop {
				t.Errorf("got %q, %q; want %q, %q", got, r.Stop, c.want, c.stop)
			}
			said, called, argued := 0, 0, 0
			for _, b := range r.Blocks {
				said += len(strings.Trim(b.Text, "🂡"))
				if b.Call != nil {
					called++
					argued += len(b.Call.Arguments)
					if names[called] != b.Call.Name {
						t.Errorf("the pieces of call %d name %q, the call %q", called, names[called], b.Call.Name)
					}
				}
			}
			if got := len(strings.Trim(text.String(), "🂡\uFFFD")); got != said {
				t.Errorf("pieces of %d bytes of text were told, want %d", got, said)
			}
			if args.Len() != argued {
				t.Errorf("pieces of %d bytes of arguments were told, want %d", args.Len(), argued)
			}
		})
	}
}

func TestResponsesReasoningDeltas(t *testing.T) {
	summary := func(i int, s string) string {
		return fmt.Sprintf(`{"type":"response.reasoning_summary_text.delta","item_id":"rs_1","output_index":0,"summary_index":%d,"delta":%q}`, i, s)
	}
	part := func(i int) string {
		return fmt.Sprintf(`{"type":"response.reasoning_summary_part.added","item_id":"rs_1","output_index":0,"summary_index":%d,"part":{"type":"summary_text","text":""}}`, i)
	}
	s := newStub(t, typed(added(0, aThought("rs_1", "")), part(0), summary(0, "a"), summary(0, "b"), part(1), summary(1, "c"), piece("reasoning_text", 0, "rs_1", `"d"`), itemDone(0, aThought("rs_1", "x")), completed("null")))
	var told strings.Builder
	if _, err := generate(t, s.responses(nil), func(d psych.Delta) { told.WriteString(d.Reasoning) }); err != nil {
		t.Fatal(err)
	}
	if told.String() != "ab\n\ncd" {
		t.Errorf("told %q", told.String())
	}
}

func TestResponsesUsage(t *testing.T) {
	n := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		usage string
		want  psych.Usage
	}{
		{`null`, psych.Usage{}},
		{`[]`, psych.Usage{}},
		{`{"input_tokens":10,"output_tokens":2}`, psych.Usage{Input: n(10), Output: n(2)}},
		{`{"input_tokens":10,"input_tokens_details":{"cached_tokens":0},"output_tokens":0,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":10}`, psych.Usage{Input: n(10), Output: n(0), CacheRead: n(0)}},
		{`{"input_tokens":10,"input_tokens_details":{"cached_tokens":8,"cache_write_tokens":2},"output_tokens":2}`, psych.Usage{Input: n(10), Output: n(2), CacheRead: n(8), CacheWrite: n(2)}},
		{`{"input_tokens":10,"input_tokens_details":null,"output_tokens":2.5}`, psych.Usage{Input: n(10)}},
		{`{"input_tokens":-1,"input_tokens_details":[],"output_tokens":"2"}`, psych.Usage{}},
		{`{"input_tokens":10,"input_tokens_details":{"cached_tokens":11}}`, psych.Usage{Input: n(10)}},
	} {
		s := newStub(t, typed(created, itemDone(0, aMessage("m", "x")), completed(c.usage)))
		r, err := generate(t, s.responses(nil), nil)
		if err != nil {
			t.Fatalf("%s: %v", c.usage, err)
		}
		got, _ := json.Marshal(r.Usage)
		if want, _ := json.Marshal(c.want); !bytes.Equal(got, want) {
			t.Errorf("%s is %s, want %s", c.usage, got, want)
		}
	}
}

func TestResponsesStreamsThatBreak(t *testing.T) {
	text := piece("output_text", 0, "m", `"x"`)
	for name, answer := range map[string]http.HandlerFunc{
		"cut":               drop("data: " + text + "\n\n"),
		"cut in an event":   drop("data: " + text + "\n\ndata: {\"type\":\"resp"),
		"cut at the start":  drop(": hello\n\n"),
		"no end":            typed(created, text, itemDone(0, aMessage("m", "x"))),
		"DONE too early":    events(text, "[DONE]", completed("null")),
		"nothing":           typed(),
		"no JSON":           typed(text, "<html>"),
		"of another API":    events(delta(`{"content":"x"}`), finish("stop"), "[DONE]"),
		"of another shape":  typed(`{"type":7}`),
		"an item is a list": typed(itemDone(0, `[]`), completed("null")),
		"an end is a list":  typed(`{"type":"response.completed","response":[]}`),
	} {
		t.Run(name, func(t *testing.T) {
			r, err := generate(t, newStub(t, answer).responses(nil), nil)
			if r != nil {
				t.Errorf("there is a response: %s", blocks(t, r))
			}
			e := modelError(t, err, true)
			if strings.HasPrefix(name, "cut") && !errors.Is(e, io.ErrUnexpectedEOF) {
				t.Errorf("%v is no io.ErrUnexpectedEOF", e)
			}
			if name == "of another API" && !strings.Contains(e.Message, "api=responses") {
				t.Errorf("%v does not say which API was asked", e)
			}
		})
	}
}

func TestResponsesErrorsInStreams(t *testing.T) {
	for _, c := range []struct {
		error               string
		transient, overflow bool
		status              int
		says                string
	}{
		{`{"code":"server_error","message":"The server had an error"}`, true, false, 0, "had an error"},
		{`{"code":"rate_limit_exceeded","message":"Rate limit reached"}`, true, false, 0, "Rate limit"},
		{`{"code":"context_length_exceeded","message":"Your input exceeds the context window of this model."}`, false, true, 0, "context window"},
		{`{"code":"invalid_prompt","message":"flagged"}`, false, false, 0, "flagged"},
		{`{"code":"image_too_large","message":"an image"}`, false, false, 0, "an image"},
		{`{"code":"bio_policy","message":"no"}`, false, false, 0, "no"},
		{`{"code":"insufficient_quota","message":"pay"}`, false, false, 0, "pay"},
		{`{"type":"invalid_request_error","code":null,"message":"bad"}`, false, false, 0, "bad"},
		{`{"code":502,"message":"Overloaded"}`, true, false, 502, "Overloaded"},
	} {
		for _, at := range []string{
			`{"type":"response.failed","response":{"status":"failed","error":` + c.error + `}}`,
			`{"type":"response.completed","response":{"status":"failed","error":` + c.error + `}}`,
			`{"type":"error","sequence_number":3,"error":` + c.error + `}`,
			`{"error":` + c.error + `}`,
		} {
			s := newStub(t, typed(created, piece("output_text", 0, "m", `"x"`), at))
			_, err := generate(t, s.responses(nil), nil)
			e := modelError(t, err, c.transient)
			if e.Overflow != c.overflow || e.Status != c.status || !strings.Contains(e.Message, c.says) {
				t.Errorf("%s: overflow %v, status %d, %q", at, e.Overflow, e.Status, e.Message)
			}
		}
	}
	for _, flat := range []struct {
		event     string
		transient bool
	}{
		{`{"type":"error","code":"server_error","message":"it fell over","param":null,"sequence_number":3}`, true},
		{`{"type":"error","code":"invalid_prompt","message":"it fell over","param":null}`, false},
		{`{"type":"response.failed","response":{"status":"failed","error":null}}`, true},
		{`{"type":"response.failed"}`, true},
	} {
		_, err := generate(t, newStub(t, typed(created, flat.event)).responses(nil), nil)
		modelError(t, err, flat.transient)
	}
}

func TestResponsesStatuses(t *testing.T) {
	for _, c := range []struct {
		name                string
		code                int
		body                string
		transient, overflow bool
		says                string
	}{
		{"rate limit", 429, `{"error":{"message":"Rate limit reached","type":"tokens","code":"rate_limit_exceeded"}}`, true, false, "Rate limit"},
		{"no quota", 429, `{"error":{"message":"You exceeded your quota","type":"insufficient_quota","code":"insufficient_quota"}}`, false, false, "quota"},
		{"server", 503, `{"error":{"message":"overloaded"}}`, true, false, "overloaded"},
		{"context", 400, `{"error":{"message":"Your input exceeds the context window of this model.","type":"invalid_request_error","code":"context_length_exceeded"}}`, false, true, "context window"},
		{"key", 401, `{"error":{"message":"Incorrect API key provided: ` + testKey + `."}}`, false, false, "OPENAI_API_KEY"},
		{"no such path", 404, `404 page not found`, false, false, "api=responses"},
		{"a model that does not reason", 400, `{"error":{"message":"Encrypted content is not supported with this model.","type":"invalid_request_error","param":"include"}}`, false, false, "drop_reasoning=true"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStub(t, status(c.code, map[string]string{"Content-Type": "application/json", "X-Request-Id": "req_1", "Retry-After": "7"}, c.body))
			_, err := generate(t, s.responses(&Options{APIKey: testKey}), nil)
			e := modelError(t, err, c.transient)
			if e.Status != c.code || e.Overflow != c.overflow || !strings.Contains(e.Message, c.says) || !strings.Contains(e.Message, "req_1") {
				t.Errorf("status %d, overflow %v, %q; want %q in it", e.Status, e.Overflow, e.Message, c.says)
			}
			if e.RetryAfter.Seconds() != 7 {
				t.Errorf("to be tried after %v, want 7s", e.RetryAfter)
			}
			if strings.Contains(e.Message, testKey) {
				t.Errorf("the key shows: %s", e.Message)
			}
			if n := len(s.got()); n != 1 {
				t.Errorf("%d requests, want 1", n)
			}
		})
	}
}

// The request id is in the log with the answer.
func TestRequestID(t *testing.T) {
	for want, answer := range map[string]http.HandlerFunc{
		`text x`: events(delta(`{"content":"x"}`), finish("stop")),
		`text x|kept {"type":"openai.response","id":"resp_1"}`: typed(itemDone(0, aMessage("m", "x")), `{"type":"response.completed","response":{"id":"resp_1"}}`),
	} {
		s := newStub(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Request-Id", "req_1")
			answer(w, r)
		})
		m := s.model(&Options{Responses: strings.Contains(want, "resp_1")})
		r, err := generate(t, m, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := blocks(t, r); got != want || r.RequestID != "req_1" {
			t.Errorf("got %s of request %q, want %s", got, r.RequestID, want)
		}
		if sent, _, err := m.Codec().EncodeMessage(&psych.Message{Role: psych.RoleAssistant, Blocks: r.Blocks}); err != nil || bytes.Contains(sent, []byte("resp_1")) {
			t.Errorf("sent back as %s, %v", sent, err)
		}
	}
}

// Reasoning is sent again where it stood, byte for byte, unless it can't be
// looked up, nothing follows it, or a strict parser would refuse it.
func TestReasoningReplay(t *testing.T) {
	odd := `{ "type":"reasoning","summary":[{"type":"summary_text","text":"\u0061 <b>"}],"id":"rs_2","encrypted_content":"gAAA==","novel":1.50 }`
	open := `{"type":"reasoning","id":"rs_3","summary":[],"encrypted_content":"","content":[{"type":"reasoning_text","text":"hm"}]}`
	items := []string{aThought("rs_1", "one"), aMessage("m", "a"), odd, `{"type":"reasoning","id":"rs_4","summary":[],"encrypted_content":null}`, open, aCall("f", "call_A", "f", "{}"), `{"type":"web_search_call","id":"ws"}`, aThought("rs_5", "last")}
	a := newResponsesAssembler(nil)
	for i, it := range items {
		if sent, err := a.add([]byte(itemDone(i, it))); sent != nil || err != nil {
			t.Fatalf("%s: %s, %v", it, sent, err)
		}
	}
	if sent, err := a.add([]byte(completed("null"))); sent != nil || err != nil || !a.ended() {
		t.Fatalf("%s, %v", sent, err)
	}
	m := &psych.Message{Role: psych.RoleAssistant, Blocks: a.response().Blocks}
	for i := range m.Blocks {
		if c := m.Blocks[i].Call; c != nil {
			c.ID = c.ProviderID
		}
	}
	encode := func(o *Options) string {
		got, _, err := New("m", o).Codec().EncodeMessage(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(got)
	}
	const said, called = `{"type":"message","role":"assistant","content":"a"}`, `{"type":"function_call","call_id":"call_A","name":"f","arguments":"{}"}`
	if got, want := encode(&Options{Responses: true}), strings.Join([]string{aThought("rs_1", "one"), said, odd, open, called}, ","); got != want {
		t.Errorf("sent back\n%s\nwant\n%s", got, want)
	}
	if got, want := encode(&Options{Responses: true, DropReasoning: true}), said+","+called; got != want {
		t.Errorf("without reasoning\n%s\nwant\n%s", got, want)
	}
	// A Run that changes its API takes nothing of the other one along.
	if got := encode(nil); strings.Contains(got, "reasoning") || strings.Contains(got, "gAAA") {
		t.Errorf("in Chat Completions it is %s", got)
	}
	half := &psych.Message{Role: psych.RoleAssistant, Blocks: []psych.Block{
		{Provider: json.RawMessage(`{"type":"openai.item","item":{"type":"reasoning","encrypted_content":"x","half":"\ud83c","bytes":"` + "\xff" + `"}}`)},
		{Provider: json.RawMessage(`{"type":"openai.item","item":{"type":"reasoning","encrypted_content":"x","deep":` + strings.Repeat("[", 101) + strings.Repeat("]", 101) + `}}`)},
		{Text: "a"},
	}}
	got, _, err := New("m", &Options{Responses: true}).Codec().EncodeMessage(half)
	if want := `{"type":"reasoning","encrypted_content":"x","half":"\ufffd","bytes":"` + "\uFFFD" + `"},` + said; err != nil || string(got) != want {
		t.Errorf("sent back\n%s, %v\nwant\n%s", got, err, want)
	}
}

// picturesAndNumbers are tools of a Run: one shows a picture, one does not.
func picturesAndNumbers() []*psych.Tool {
	type in struct {
		N int `json:"n"`
	}
	return []*psych.Tool{
		psych.NewTool("count", "Counts on.", func(_ context.Context, _ *psych.Call, in in) (int, error) { return in.N + 1, nil }, nil),
		psych.NewTool("show", "Shows a picture.", func(context.Context, *psych.Call, struct{}) (*psych.Result, error) {
			img := picture("image/png")
			return &psych.Result{ContentType: img.ContentType, Body: bytes.NewReader(img.Data)}, nil
		}, nil),
	}
}

func runtimeOn(t *testing.T, m *Model) *psych.Runtime {
	t.Helper()
	rt, err := psych.New(memory.New(nil), &psych.Options{Blobs: memory.NewBlobs(nil), Models: psych.OneModel(m), Tools: picturesAndNumbers()})
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

// A Run of two exchanges through store, log and socket: every request is one
// that the API takes, begins with the one before, and holds each reasoning item
// of the answers before, 10,000 in all, byte for byte where it stood.
func TestResponsesRun(t *testing.T) {
	const turns, each = 20, 500
	var thoughts [][]string
	var answers []http.HandlerFunc
	for turn := range turns {
		var sent, own []string
		for i := range each {
			own = append(own, fmt.Sprintf(`{"id":"rs_%d_%d","type":"reasoning",%s"summary":[{"type":"summary_text","text":"\u00e9 \ud83c\udca1 %d"}],"encrypted_content":"gAA%dA\/=="}`, turn, i, strings.Repeat(" ", i%3), i, turn*each+i))
			sent = append(sent, itemDone(i, own[i]))
		}
		thoughts = append(thoughts, own)
		if turn < turns-2 {
			sent = append(sent, itemDone(each, aMessage("msg", "I go on.")), itemDone(each+1, aCall("fc_1", fmt.Sprintf("call_%d_a", turn), "count", fmt.Sprintf(`{"n": %d}`, turn))),
				itemDone(each+2, aCall("fc_2", fmt.Sprintf("call_%d_b", turn), "show", `{}`)))
		} else {
			sent = append(sent, itemDone(each, aMessage("msg", "Done.")))
		}
		answers = append(answers, typed(append(sent, completed(fmt.Sprintf(`{"input_tokens":%d,"input_tokens_details":{"cached_tokens":90},"output_tokens":5}`, 100+turn)))...))
	}
	s := newStub(t, answers...)
	rt := runtimeOn(t, s.responses(&Options{Images: true}))
	spec := &psych.Spec{Name: "counter", Instructions: "You count.", Tools: []string{"count", "show"}}
	a, err := rt.Ask(t.Context(), psych.Scope{Tenant: "acme"}, spec, "Count.", nil)
	if err != nil || a.Text != "Done." {
		t.Fatalf("%+v, %v", a, err)
	}
	if err := rt.Send(t.Context(), a.Run, psych.ClientMessage{Text: "Thanks."}); err != nil {
		t.Fatal(err)
	}
	if out, err := rt.Drive(t.Context(), a.Run, nil); err != nil || out != psych.Closed {
		t.Fatalf("drive: %v, %v", out, err)
	}
	got := s.got()
	if len(got) != turns {
		t.Fatalf("%d requests, want %d", len(got), turns)
	}
	for i, g := range got {
		if p := checkInput(g.body); p != "" {
			t.Fatalf("request %d: %s", i+1, p)
		}
		from := g.body
		for turn := range i {
			want := []byte(strings.Join(thoughts[turn], ",") + `,{"type":"message","role":"assistant","content":`)
			at := bytes.Index(from, want)
			if at < 0 {
				t.Fatalf("request %d does not hold the reasoning of turn %d as it was", i+1, turn+1)
			}
			from = from[at+len(want):]
		}
		if n := bytes.Count(g.body, []byte(`"type":"input_image","image_url":"data:image/png;base64,`)); n != min(i, turns-2) {
			t.Errorf("request %d holds %d images", i+1, n)
		}
		if i == 0 {
			continue
		}
		prefix := got[i-1].body
		prefix = prefix[:len(prefix)-len(endOfBody)]
		if at := bytes.LastIndex(prefix, []byte(`,{"type":"input_text","text":"[Context`)); at >= 0 {
			prefix = prefix[:at]
		}
		if user := []byte(partsEnd); bytes.HasSuffix(prefix, user) {
			prefix = prefix[:len(prefix)-len(user)]
		}
		if !bytes.HasPrefix(g.body, prefix) {
			t.Errorf("request %d does not begin as request %d", i+1, i)
		}
	}
	report, err := rt.Report(t.Context(), a.Run)
	if err != nil {
		t.Fatal(err)
	}
	for i, call := range report.ModelCalls {
		if want := len([]rune(string(got[i].body))); call.Wire.Total() != want {
			t.Errorf("call %d: the report says %+v, %d characters were sent", i+1, call.Wire, want)
		}
		if call.PromptTokens == nil || *call.PromptTokens != int64(100+i) || call.CachedTokens == nil || *call.CachedTokens != 90 {
			t.Errorf("call %d: usage %+v", i+1, call)
		}
	}
}

// A picture that a tool of a Run returns is shown in Chat Completions behind
// the batch, and the next request begins as the one before.
func TestRunWithImages(t *testing.T) {
	s := newStub(t,
		events(delta(`{"tool_calls":[{"index":0,"id":"call_A","function":{"name":"show","arguments":"{}"}},{"index":1,"id":"call_B","function":{"name":"count","arguments":"{\"n\":1}"}}]}`), finish("tool_calls")),
		events(delta(`{"tool_calls":[{"index":0,"id":"call_C","function":{"name":"show","arguments":"{}"}}]}`), finish("tool_calls")),
		events(delta(`{"content":"A picture."}`), finish("stop")),
	)
	rt := runtimeOn(t, s.model(&Options{Images: true}))
	a, err := rt.Ask(t.Context(), psych.Scope{Tenant: "acme"}, &psych.Spec{Name: "x", Tools: []string{"count", "show"}}, "Show it.", nil)
	if err != nil || a.Text != "A picture." {
		t.Fatalf("%+v, %v", a, err)
	}
	got := s.got()
	var roles []string
	for _, m := range messagesOf(t, got[2].body) {
		roles = append(roles, m["role"].(string))
	}
	if want := "user assistant tool tool user assistant tool user"; strings.Join(roles, " ") != want {
		t.Errorf("the roles are %v, want %s", roles, want)
	}
	want := `{"role":"user","content":[{"type":"text","text":"` + imagesHead + `"},{"type":"text","text":"` + imagesOf + `call_A:"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgoAAA=="}}]}`
	if !bytes.Contains(got[1].body, []byte(want)) || !bytes.HasPrefix(got[2].body, got[1].body[:len(got[1].body)-len(endOfBody)]) {
		t.Errorf("the bodies are\n%s\n%s", got[1].body, got[2].body)
	}
}

func TestCheckResponses(t *testing.T) {
	s := newStub(t, typed(created, itemDone(0, aThought("rs_1", "x")), piece("output_text", 1, "m", `"I call."`), itemDone(1, aMessage("m", "I call.")),
		itemDone(2, aCall("fc", "a", checkTool, `{"word":"`+checkWord+`"}`)), completed(`{"input_tokens":50,"input_tokens_details":{"cached_tokens":0},"output_tokens":9}`)))
	fs, err := s.responses(nil).Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range fs {
		fmt.Fprintln(&all, f)
		if f.Level != OK {
			t.Errorf("%s", f)
		}
	}
	if !strings.Contains(all.String(), "reasoning items, which are kept and sent back") {
		t.Errorf("nothing of reasoning in\n%s", all.String())
	}
	if p := checkInput(s.got()[0].body); p != "" {
		t.Error(p)
	}
}

func TestResponsesAnswersAreBounded(t *testing.T) {
	a := newResponsesAssembler(nil)
	a.bytes = maxAnswer - 100
	if _, err := a.add([]byte(piece("output_text", 0, "m", `"`+strings.Repeat("x", 100)+`"`))); !errors.Is(err, errTooMuch) {
		t.Errorf("over the limit: %v, want %v", err, errTooMuch)
	}
	a = newResponsesAssembler(nil)
	var err error
	for i := 0; i <= maxCalls && err == nil; i++ {
		_, err = a.add([]byte(added(i, aCall(fmt.Sprint(i), "a", "f", ""))))
	}
	if !errors.Is(err, errTooMuch) {
		t.Errorf("%d items: %v, want %v", maxCalls+1, err, errTooMuch)
	}
}

// The assembler takes any bytes without a panic, tells what it returns, and
// what it keeps can be sent again.
func FuzzAssembleResponses(f *testing.F) {
	f.Add([]byte(added(0, aThought("r", "")) + "\n" + itemDone(0, aThought("r", `\ud83c`)) + "\n" + piece("output_text", 1, "m", `"\ud83c"`) + "\n" + itemDone(1, aMessage("m", "x")) + "\n" + completed("null")))
	f.Add([]byte(added(0, aCall("a", "a", "f", "")) + "\n" + piece("function_call_arguments", 0, "a", `"{"`) + "\n" + piece("output_text", 0, "a", `"x"`) + "\n" + incompleteFor("x", aMessage("m", "y"), aCall("b", "b", "g", "{}"))))
	f.Add([]byte(`{"type":"response.output_item.done","item":{"type":"message","content":[{"text":1,"refusal":"a"},{"text":"b"}],"x":{"a":[]},"é":0}}` + "\n" + completed(`{"input_tokens":1e400}`)))
	f.Add([]byte(itemDone(0, `{"type":"function_call","arguments":{},"name":{"a":1},"call_id":7}`) + "\n" + `{"type":"response.completed","response":{"output":[{"type":"reasoning","encrypted_content":"x"},null]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var text, args int
		a := newResponsesAssembler(func(d psych.Delta) { text += len(d.Text); args += len(d.Arguments) })
		for line := range bytes.SplitSeq(data, []byte("\n")) {
			if sent, err := a.add(line); sent != nil || err != nil {
				return
			}
		}
		r := a.response()
		m := &psych.Message{Role: psych.RoleAssistant}
		said := 0
		for _, b := range r.Blocks {
			if b.Provider != nil && !json.Valid(b.Provider) {
				t.Fatalf("what is kept is not JSON: %s", b.Provider)
			}
			said += len(b.Text)
			if b.Call != nil {
				b.Call.ID = "1"
				if len(b.Call.Arguments) > 0 && args == 0 {
					t.Fatalf("nothing was told of the arguments %q", b.Call.Arguments)
				}
			}
			m.Blocks = append(m.Blocks, b)
		}
		if said > 0 && text == 0 {
			t.Fatalf("nothing was told of %d bytes of text", said)
		}
		raw, _, err := New("m", &Options{Responses: true}).Codec().EncodeMessage(m)
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid([]byte("[" + string(raw) + "]")) {
			t.Fatalf("sent back it is not JSON: %s", raw)
		}
	})
}
