package messages

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// Events as the documentation shows them.
const (
	start = `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":1}}}`
	ping  = `{"type":"ping"}`
	end   = `{"type":"message_stop"}`
)

func begin(i int, block string) string {
	return fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":%s}`, i, block)
}

func piece(i int, delta string) string {
	return fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":%s}`, i, delta)
}

func text(i int, s string) string { return piece(i, `{"type":"text_delta","text":"`+s+`"}`) }

func args(i int, s string) string {
	return piece(i, `{"type":"input_json_delta","partial_json":"`+s+`"}`)
}

func stopped(i int) string { return fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, i) }

func because(reason string) string {
	return `{"type":"message_delta","delta":{"stop_reason":"` + reason + `","stop_sequence":null},"usage":{"output_tokens":15}}`
}

func tool(i int, id, name string) string {
	return begin(i, `{"type":"tool_use","id":"`+id+`","name":"`+name+`","input":{},"caller":{"type":"direct"}}`)
}

// shown is the blocks of a response but for what else the answer holds.
func shown(r *psych.Response) string {
	var parts []string
	for _, x := range r.Blocks {
		switch {
		case x.Call != nil:
			parts = append(parts, fmt.Sprintf("call %s %s %s", x.Call.ProviderID, x.Call.Name, x.Call.Arguments))
		case x.Provider != nil && bytes.Contains(x.Provider, []byte(responseType)):
		case x.Provider != nil:
			parts = append(parts, fmt.Sprintf("kept %s", x.Provider))
		default:
			parts = append(parts, "text "+x.Text)
		}
	}
	return strings.Join(parts, "|")
}

func TestStreams(t *testing.T) {
	thousand := []string{start, tool(0, "a", "f")}
	for range 1000 {
		thousand = append(thousand, args(0, "1"))
	}
	for _, c := range []struct {
		name   string
		events []string
		want   string
		stop   psych.StopReason
	}{
		{"text", []string{start, begin(0, `{"type":"text","text":""}`), ping, text(0, "he"), text(0, `llo é\ud83c`), text(0, `\udca1`), stopped(0), because("end_turn"), end}, "text hello é🂡", psych.StopEnd},
		{"text at the start of its block", []string{start, begin(0, `{"type":"text","text":"a"}`), text(0, "b"), because("end_turn")}, "text ab", psych.StopEnd},
		{"nothing", []string{start, because("end_turn"), end}, "", psych.StopEnd},
		{"empty text", []string{start, begin(0, `{"type":"text","text":""}`), stopped(0), because("end_turn"), end}, "", psych.StopEnd},
		{"stop sequence", []string{start, begin(0, `{"type":"text","text":"x"}`), because("stop_sequence")}, "text x", psych.StopEnd},
		{"cut at the limit", []string{start, begin(0, `{"type":"text","text":"x"}`), because("max_tokens")}, "text x", psych.StopMaxTokens},
		{"context", []string{start, begin(0, `{"type":"text","text":"x"}`), because("model_context_window_exceeded")}, "text x", psych.StopContext},
		{"refusal after a call", []string{start, tool(0, "a", "f"), args(0, "{}"), because("refusal")}, "call a f {}", psych.StopRefusal},
		{"pause", []string{start, begin(0, `{"type":"text","text":"x"}`), because("pause_turn")}, "text x", "pause_turn"},
		{"pause with a call", []string{start, tool(0, "a", "f"), because("pause_turn")}, "call a f {}", psych.StopToolUse},
		{"unknown reason", []string{start, because("novel")}, "", "novel"},
		{"reasoning", []string{start, begin(0, `{"type":"thinking","thinking":"","signature":""}`), piece(0, `{"type":"thinking_delta","thinking":"I \u0061"}`), piece(0, `{"type":"thinking_delta","thinking":"m \ud83c"}`), piece(0, `{"type":"thinking_delta","thinking":"\udca1"}`), piece(0, `{"type":"signature_delta","signature":"Eq="}`), stopped(0), begin(1, `{"type":"redacted_thinking", "data":"x\/y"}`), stopped(1), begin(2, `{"type":"text","text":"hi"}`), because("end_turn")},
			`kept {"type":"thinking","thinking":"I \u0061m \ud83c\udca1","signature":"Eq="}|kept {"type":"redacted_thinking","data":"x\/y"}|text hi`, psych.StopEnd},
		{"reasoning that is omitted", []string{start, begin(0, `{"type":"thinking","thinking":""}`), piece(0, `{"type":"signature_delta","signature":"Eq="}`), because("end_turn")}, `kept {"type":"thinking","thinking":"","signature":"Eq="}`, psych.StopEnd},
		{"calls, interleaved", []string{start, tool(0, "a", "f"), tool(1, "b", "g"), args(1, `{\"y\"`), args(0, `{\"x\":`), args(1, `:2}`), args(0, "1}"), stopped(0), stopped(1), because("tool_use"), end}, `call a f {"x":1}|call b g {"y":2}`, psych.StopToolUse},
		{"a thousand pieces", append(thousand, because("tool_use")), "call a f " + strings.Repeat("1", 1000), psych.StopToolUse},
		{"end_turn for calls", []string{start, tool(0, "a", "f"), args(0, ""), because("end_turn")}, "call a f {}", psych.StopToolUse},
		{"input in one piece", []string{start, begin(0, `{"type":"tool_use","id":"a","name":"f","input":{"x": 1.0}}`), because("tool_use")}, `call a f {"x": 1.0}`, psych.StopToolUse},
		{"arguments that are not JSON", []string{start, tool(0, "a", "f"), args(0, `{\"x\":`), because("max_tokens")}, `call a f {"x":`, psych.StopMaxTokens},
		{"one id twice", []string{start, tool(0, "a", "f"), tool(1, "a", "f"), because("tool_use")}, `call a f {}|call a f {}`, psych.StopToolUse},
		{"one index twice", []string{start, tool(0, "a", "f"), args(0, "{}"), stopped(0), tool(0, "b", "g"), args(0, `{\"y\":1}`), because("tool_use")}, `call a f {}|call b g {"y":1}`, psych.StopToolUse},
		{"what else a call holds", []string{start, begin(0, `{"type":"tool_use","id":"a","name":"f","input":{},"caller":{"type":"code"},"x":null}`), because("tool_use")}, `kept {"type":"anthropic.call","fields":{"caller":{"type":"code"}}}|call a f {}`, psych.StopToolUse},
		{"unknown block", []string{start, begin(0, `{"type":"server_tool_use","id":"s","name":"web","input":{}}`), args(0, `{\"q\":1.0}`), stopped(0), begin(1, `{"type":"novel","x":[1.0]}`), begin(2, `{"type":"text","text":"x"}`), because("end_turn")}, `kept {"type":"anthropic.block","block":{"type":"server_tool_use","id":"s","name":"web","input":{"q":1.0}}}|kept {"type":"anthropic.block","block":{"type":"novel","x":[1.0]}}|text x`, psych.StopEnd},
		{"unknown deltas", []string{start, begin(0, `{"type":"novel"}`), piece(0, `{"type":"novel_delta","x":1.0}`), begin(1, `{"type":"text","text":"x"}`), piece(1, `{"type":"citations_delta","citation":{}}`), because("end_turn")}, `kept {"type":"anthropic.block","block":{"type":"novel"},"deltas":[{"type":"novel_delta","x":1.0}]}|text x`, psych.StopEnd},
		{"unknown events", []string{start, `{"type":"novel","x":1}`, `{"x":1}`, begin(0, `{"type":"text","text":"x"}`), because("end_turn")}, "text x", psych.StopEnd},
	} {
		t.Run(c.name, func(t *testing.T) {
			var told, reasoned, given strings.Builder
			names := map[int]string{}
			a := NewAssembler(func(d psych.Delta) {
				told.WriteString(d.Text)
				reasoned.WriteString(d.Reasoning)
				given.WriteString(d.Arguments)
				if d.Name != "" {
					names[d.Call] += d.Name
				}
			})
			for i, e := range c.events {
				if a.Whole() && i < len(c.events)-1 {
					t.Errorf("whole before event %d", i)
				}
				if sent, err := a.Add([]byte(e)); sent != nil || err != nil {
					t.Fatalf("%s: %s, %v", e, sent, err)
				}
			}
			if !a.Whole() || !a.Begun() {
				t.Fatal("it is not whole")
			}
			r := a.Response("req_1")
			if got := shown(r); got != c.want || r.Stop != c.stop {
				t.Errorf("got %q, %q\nwant %q, %q", got, r.Stop, c.want, c.stop)
			}
			var said, calls int
			for _, b := range r.Blocks {
				said += len(strings.Trim(b.Text, "🂡"))
				if b.Call != nil {
					if calls++; names[calls] != b.Call.Name {
						t.Errorf("the pieces of call %d name %q, the call %q", calls, names[calls], b.Call.Name)
					}
				}
			}
			if got := len(strings.Trim(told.String(), "🂡\uFFFD")); got != said {
				t.Errorf("pieces of %d bytes of text were told, want %d", got, said)
			}
			if c.name == "reasoning" && !strings.HasPrefix(reasoned.String(), "I am") {
				t.Errorf("the reasoning told is %q", reasoned.String())
			}
			if c.name == "a thousand pieces" && given.Len() != 1000 {
				t.Errorf("%d bytes of arguments were told", given.Len())
			}
			last := r.Blocks[len(r.Blocks)-1].Provider
			if want := `{"type":"anthropic.response","id":"msg_1"}`; string(last) != want || r.RequestID != "req_1" {
				t.Errorf("what else the answer of request %q holds is %s, want %s", r.RequestID, last, want)
			}
		})
	}
}

func TestWhyItRefused(t *testing.T) {
	a := NewAssembler(nil)
	for _, e := range []string{
		`{"type":"message_start","message":{"id":"msg_1","input_transformations":[{"type":"thinking_dropped"}]}}`,
		`{"type":"message_delta","delta":{"stop_reason":"refusal","stop_details":{"type":"refusal","category":"bio"},"container":null}}`,
	} {
		if sent, err := a.Add([]byte(e)); sent != nil || err != nil {
			t.Fatal(sent, err)
		}
	}
	const want = `{"type":"anthropic.response","id":"msg_1","input_transformations":[{"type":"thinking_dropped"}],"stop_details":{"type":"refusal","category":"bio"}}`
	if r := a.Response(""); string(r.Blocks[0].Provider) != want {
		t.Errorf("got %s, want %s", r.Blocks[0].Provider, want)
	}
}

func TestStreamsThatBreak(t *testing.T) {
	for name, events := range map[string][]string{
		"no JSON":                {start, "<html>"},
		"a piece of no block":    {start, text(0, "x")},
		"a block without a type": {start, begin(0, `{}`)},
		"a block that is none":   {start, begin(0, `"x"`)},
		"an index that is none":  {start, `{"type":"content_block_start","index":"x","content_block":{"type":"text"}}`},
		"a message that is none": {`{"type":"message_start","message":[]}`},
		"a piece that is none":   {start, begin(0, `{"type":"text","text":""}`), piece(0, `"x"`)},
	} {
		a := NewAssembler(nil)
		var err error
		for _, e := range events {
			if _, err = a.Add([]byte(e)); err != nil {
				break
			}
		}
		if err == nil || errors.Is(err, ErrTooMuch) || a.Whole() {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, events := range map[string][]string{"cut": {start, begin(0, `{"type":"text","text":"x"}`), stopped(0)}, "no reason": {start, `{"type":"message_delta","delta":{"stop_reason":null}}`, end}, "pings": {ping}} {
		a := NewAssembler(nil)
		for _, e := range events {
			if sent, err := a.Add([]byte(e)); sent != nil || err != nil {
				t.Fatal(sent, err)
			}
		}
		if a.Whole() || a.Begun() != (name != "pings") {
			t.Errorf("%s: whole %v, begun %v", name, a.Whole(), a.Begun())
		}
	}
}

// An answer without end is given up.
func TestAnswersAreBounded(t *testing.T) {
	a := NewAssembler(nil)
	a.bytes = maxAnswer - 10
	if _, err := a.Add([]byte(start)); !errors.Is(err, ErrTooMuch) {
		t.Errorf("over the limit: %v, want %v", err, ErrTooMuch)
	}
	a = NewAssembler(nil)
	var err error
	for i := 0; err == nil && i <= maxCalls; i++ {
		_, err = a.Add([]byte(tool(i, "a", "f")))
	}
	if !errors.Is(err, ErrTooMuch) {
		t.Errorf("too many calls: %v, want %v", err, ErrTooMuch)
	}
}

func TestUsage(t *testing.T) {
	n := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		first, last string
		want        psych.Usage
	}{
		{``, ``, psych.Usage{}},
		{`null`, `[]`, psych.Usage{}},
		{`{"input_tokens":10,"output_tokens":1}`, `{"output_tokens":5}`, psych.Usage{Input: n(10), Output: n(5)}},
		{`{"input_tokens":10,"cache_read_input_tokens":100,"cache_creation_input_tokens":7,"output_tokens":1}`, `{"output_tokens":5}`, psych.Usage{Input: n(117), CacheRead: n(100), CacheWrite: n(7), Output: n(5)}},
		{`{"input_tokens":10,"cache_read_input_tokens":100,"cache_creation_input_tokens":0}`, `{"input_tokens":0,"cache_read_input_tokens":null,"output_tokens":0}`, psych.Usage{Input: n(110), CacheRead: n(100), CacheWrite: n(0), Output: n(0)}},
		{`{"input_tokens":0,"output_tokens":0}`, `{"input_tokens":12,"output_tokens":3}`, psych.Usage{Input: n(12), Output: n(3)}},
		{`{"input_tokens":10,"output_tokens":9}`, `{"output_tokens":5}`, psych.Usage{Input: n(10), Output: n(9)}},
		{`{"input_tokens":-1,"output_tokens":"2","cache_read_input_tokens":1.5}`, `{"output_tokens":1e400}`, psych.Usage{}},
		{`{"cache_read_input_tokens":3}`, ``, psych.Usage{CacheRead: n(3)}},
		{`{"input_tokens":10,"cache_creation_input_tokens":9,"cache_creation":{"ephemeral_5m_input_tokens":2,"ephemeral_1h_input_tokens":7}}`, `{"output_tokens":5}`, psych.Usage{Input: n(19), CacheWrite: n(9), WriteHour: n(7), Output: n(5)}},
		{`{"cache_creation_input_tokens":9,"cache_creation":{"ephemeral_5m_input_tokens":9,"ephemeral_1h_input_tokens":0}}`, `{"cache_creation":null}`, psych.Usage{CacheWrite: n(9), WriteHour: n(0)}},
		{`{"cache_creation_input_tokens":9,"cache_creation":{"ephemeral_1h_input_tokens":12}}`, ``, psych.Usage{CacheWrite: n(9), WriteHour: n(9)}},
		{`{"cache_creation_input_tokens":9,"cache_creation":[7]}`, `{"cache_creation":{"ephemeral_1h_input_tokens":-1}}`, psych.Usage{CacheWrite: n(9)}},
		{`{"cache_creation":{"ephemeral_1h_input_tokens":3}}`, ``, psych.Usage{}},
	} {
		a := NewAssembler(nil)
		orNull := func(s string) string {
			if s == "" {
				return "null"
			}
			return s
		}
		for _, e := range []string{`{"type":"message_start","message":{"usage":` + orNull(c.first) + `}}`, `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":` + orNull(c.last) + `}`} {
			if sent, err := a.Add([]byte(e)); sent != nil || err != nil {
				t.Fatal(sent, err)
			}
		}
		got, _ := json.Marshal(a.Response("").Usage)
		if want, _ := json.Marshal(c.want); !bytes.Equal(got, want) {
			t.Errorf("%s and %s are %s, want %s", c.first, c.last, got, want)
		}
	}
}

// Provider blocks come back in their place, byte for byte.
func TestRoundTrip(t *testing.T) {
	a := NewAssembler(nil)
	for _, e := range []string{
		start,
		begin(0, `{"type":"thinking","thinking":"","signature":"","novel":{"x":1.0}}`), piece(0, `{"type":"thinking_delta","thinking":"I \u0061m <b> \/"}`), piece(0, `{"type":"signature_delta","signature":"a=="}`),
		begin(1, `{"type":"text","text":"so"}`),
		begin(2, `{"type":"redacted_thinking","data":"b=="}`),
		begin(3, `{"type":"tool_use","id":"toolu_1","name":"f","input":{},"caller":{"type":"code"}}`), args(3, `{\"x\": 1.0}`),
		because("tool_use"), end,
	} {
		if sent, err := a.Add([]byte(e)); sent != nil || err != nil {
			t.Fatal(sent, err)
		}
	}
	m := &psych.Message{Role: psych.RoleAssistant, Blocks: a.Response("req_1").Blocks}
	for i := range m.Blocks {
		if c := m.Blocks[i].Call; c != nil {
			c.ID = c.ProviderID
		}
	}
	got, marker, err := newBuilder(t, Options{}).f.Codec().EncodeMessage(m)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"role":"assistant","content":[{"type":"thinking","thinking":"I \u0061m <b> \/","signature":"a==","novel":{"x":1.0}},{"type":"text","text":"so"},` +
		`{"type":"redacted_thinking","data":"b=="},{"type":"tool_use","id":"toolu_1","name":"f","input":{"x": 1.0},"caller":{"type":"code"}}]}`
	if string(got) != want || marker != len(want)-3 {
		t.Errorf("sent back with a marker at %d\n%s\nwant\n%s", marker, got, want)
	}
}

func TestParseError(t *testing.T) {
	for _, c := range []struct {
		body, says, id string
		status         int
		overflow       bool
		found          bool
	}{
		{`{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"req_1"}`, "Overloaded (overloaded_error)", "req_1", 529, false, true},
		{`{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}`, "prompt is too long: 210000 tokens > 200000 maximum (invalid_request_error)", "", 400, true, true},
		{`{"type":"error","error":{"type":"invalid_request_error","message":"input length and ` + "`max_tokens`" + ` exceed context limit: 190000 + 20000 > 200000"}}`, "exceed context limit", "", 400, true, true},
		{`{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}`, "maximum size", "", 413, true, true},
		{`{"error":{"type":"invalid_request_error","message":"max_tokens: 64001 > 64000, which is the maximum allowed number of output tokens"}}`, "max_tokens: 64001", "", 400, false, true},
		{`{"error":"busy"}`, "busy", "", 0, false, true},
		{`{"Message":"Input is too long for requested model."}`, "Input is too long", "", 0, true, true},
		{`"down"`, "down", "", 0, false, true},
		{`<html><title>502 Bad
 Gateway &amp; more</title></html>`, "a web page: 502 Bad Gateway & more", "", 0, false, false},
		{"\x1b[31mbad \xff", "[31mbad \uFFFD", "", 0, false, false},
		{`null`, "", "", 0, false, false},
		{strings.Repeat("x", 1000), strings.Repeat("x", 500) + "…", "", 0, false, false},
	} {
		s := ParseError([]byte(c.body))
		if !strings.Contains(s.String(), c.says) || s.RequestID != c.id || s.Status() != c.status || s.Overflow(s.Status()) != c.overflow || s.Found != c.found {
			t.Errorf("%.80s: %+v, status %d, overflow %v", c.body, s, s.Status(), s.Overflow(s.Status()))
		}
	}
}

func TestRetryAfter(t *testing.T) {
	date := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		header map[string]string
		want   time.Duration
	}{
		{map[string]string{"Retry-After": "7"}, 7 * time.Second},
		{map[string]string{"Retry-After-Ms": "1500", "Retry-After": "9"}, 1500 * time.Millisecond},
		{map[string]string{"Date": date.Format(http.TimeFormat), "Retry-After": date.Add(90 * time.Second).Format(http.TimeFormat)}, 90 * time.Second},
		{map[string]string{"Retry-After": date.Add(-time.Hour).Format(http.TimeFormat)}, 0},
		{map[string]string{"Retry-After": "1e300"}, maxRetryAfter},
		{map[string]string{"Retry-After": "NaN"}, 0},
		{map[string]string{"Retry-After": "soon"}, 0},
		{nil, 0},
	} {
		h := http.Header{}
		for k, v := range c.header {
			h.Set(k, v)
		}
		if got := RetryAfter(h, date); got != c.want {
			t.Errorf("%v: %v, want %v", c.header, got, c.want)
		}
	}
}

// The assembler takes any bytes without a panic, tells what it returns, and
// what it keeps can be sent again.
func FuzzAssemble(f *testing.F) {
	f.Add([]byte(start + "\n" + begin(0, `{"type":"thinking","thinking":"a","signature":"b"}`) + "\n" + piece(0, `{"type":"thinking_delta","thinking":"\ud83c"}`) + "\n" + begin(1, `{"type":"text","text":"x"}`) + "\n" + because("end_turn")))
	f.Add([]byte(start + "\n" + tool(0, "a", "f") + "\n" + args(0, `{\"x\"`) + "\n" + begin(0, `{"type":"novel","input":{},"deltas":1}`) + "\n" + args(0, `1`) + "\n" + because("tool_use")))
	f.Add([]byte(begin(0, `{"type":"text","text":7,"text":"y"}`) + "\n" + text(0, "z") + "\n" + piece(0, `{"type":"novel"}`) + "\n" + `{"type":"message_delta","delta":{"stop_reason":"x","type":"y","request_id":[1]},"usage":{"input_tokens":1e15}}`))
	f.Add([]byte(`{"type":"error","error":[]}` + "\n" + `{"error":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var told, given int
		a := NewAssembler(func(d psych.Delta) { told += len(d.Text); given += len(d.Arguments) })
		for line := range bytes.SplitSeq(data, []byte("\n")) {
			if sent, err := a.Add(line); sent != nil || err != nil {
				return
			}
		}
		r := a.Response("req")
		said := 0
		for i, b := range r.Blocks {
			said += len(b.Text)
			if b.Provider != nil && !json.Valid(b.Provider) {
				t.Fatalf("what is kept is not JSON: %s", b.Provider)
			}
			if b.Call != nil {
				r.Blocks[i].Call.ID = "1"
			}
		}
		if (told == 0) != (said == 0) {
			t.Fatalf("%d bytes of text were told of %d", told, said)
		}
		raw, marker, err := newBuilder(t, Options{}).f.Codec().EncodeMessage(&psych.Message{Role: psych.RoleAssistant, Blocks: r.Blocks})
		if err != nil {
			t.Fatal(err)
		}
		if len(raw) > 0 && (!json.Valid(raw) || marker >= len(raw)) {
			t.Fatalf("sent back with a marker at %d it is not JSON: %s", marker, raw)
		}
	})
}
