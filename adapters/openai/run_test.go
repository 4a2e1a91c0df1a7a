package openai_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/openai"
	"github.com/psych-go/psych-go/psych"
)

// answer makes a server that answers the n-th request with the n-th list of
// chunks, and keeps the bodies.
func answer(t *testing.T, streams ...[]string) (url string, bodies func() [][]byte) {
	t.Helper()
	var mu sync.Mutex
	var got [][]byte
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read the body: %v", err)
		}
		mu.Lock()
		got = append(got, body)
		n := len(got) - 1
		mu.Unlock()
		if n >= len(streams) {
			http.Error(w, `{"error":"one request too many"}`, http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, data := range streams[n] {
			fmt.Fprintf(w, "data: %s\n\n", data)
			w.(http.Flusher).Flush()
		}
	}))
	t.Cleanup(s.Close)
	return s.URL + "/v1", func() [][]byte {
		mu.Lock()
		defer mu.Unlock()
		return got
	}
}

func choice(delta, finish string) string {
	f := "null"
	if finish != "" {
		f = `"` + finish + `"`
	}
	return `{"choices":[{"index":0,"delta":` + delta + `,"finish_reason":` + f + `}]}`
}

func usage(in, cached, out int) string {
	return fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`, in, out, cached)
}

// A Run of two exchanges, with a tool, through store, log and socket: every
// call is answered, what the server sent beside the protocol comes back, and
// each body begins with the one before.
func TestRun(t *testing.T) {
	url, bodies := answer(t,
		[]string{
			choice(`{"role":"assistant","reasoning_content":"two num\u0062ers"}`, ""),
			choice(`{"tool_calls":[{"index":0,"id":"call_A","type":"function","function":{"name":"add","arguments":"{\"a\":2,"}}]}`, ""),
			choice(`{"tool_calls":[{"index":1,"id":"call_B","type":"function","extra_content":{"sig":"x=="},"function":{"name":"add","arguments":"{\"a\":"}},{"index":0,"function":{"arguments":"\"b\":3}"}}]}`, ""),
			choice(`{"tool_calls":[{"index":1,"function":{"arguments":"10,\"b\":20}"}}]}`, ""),
			choice(`{}`, "tool_calls"), usage(100, 0, 20), "[DONE]",
		},
		[]string{choice(`{"content":"5 and "}`, ""), choice(`{"content":"30."}`, "stop"), usage(140, 96, 4), "[DONE]"},
		[]string{choice(`{"content":"You are welcome."}`, "stop"), "[DONE]"},
	)
	type numbers struct {
		A int `json:"a"`
		B int `json:"b"`
	}
	add := psych.NewTool("add", "Adds two integers.",
		func(_ context.Context, _ *psych.Call, in numbers) (int, error) { return in.A + in.B, nil }, nil)
	rt, err := psych.New(memory.New(nil), &psych.Options{
		Blobs:  memory.NewBlobs(nil),
		Models: psych.OneModel(openai.New("local", &openai.Options{BaseURL: url})),
		Tools:  []*psych.Tool{add},
	})
	if err != nil {
		t.Fatal(err)
	}
	spec := &psych.Spec{Name: "adder", Instructions: "You add numbers.", Tools: []string{"add"}, ModelOptions: psych.ModelOptions{MaxOutputTokens: 500}}
	var streamed strings.Builder
	watch := &psych.DriveOptions{Observe: func(o psych.Observation) {
		if o.Delta != nil {
			streamed.WriteString(o.Delta.Text)
		}
	}}
	a, err := rt.Ask(t.Context(), psych.Scope{Tenant: "acme"}, spec, "What is 2 and 3, and 10 and 20?", watch)
	if err != nil {
		t.Fatal(err)
	}
	if a.Text != "5 and 30." || streamed.String() != a.Text {
		t.Errorf("the answer is %q, streamed as %q", a.Text, streamed.String())
	}
	if err := rt.Send(t.Context(), a.Run, psych.ClientMessage{Text: "Thanks."}); err != nil {
		t.Fatal(err)
	}
	if out, err := rt.Drive(t.Context(), a.Run, nil); err != nil || out != psych.Closed {
		t.Fatalf("drive: %v, %v", out, err)
	}
	report, err := rt.Report(t.Context(), a.Run)
	if err != nil {
		t.Fatal(err)
	}
	got := bodies()
	if len(got) != 3 || len(report.ModelCalls) != 3 {
		t.Fatalf("%d requests and %d model calls, want 3", len(got), len(report.ModelCalls))
	}
	for i, call := range report.ModelCalls {
		if want := len([]rune(string(got[i]))); call.Wire.Total() != want || call.Wire.Envelope <= 0 {
			t.Errorf("call %d: the report says %+v, %d characters were sent", i+1, call.Wire, want)
		}
	}
	if c := report.ModelCalls[1]; c.PromptTokens == nil || *c.PromptTokens != 140 || c.CachedTokens == nil || *c.CachedTokens != 96 {
		t.Errorf("usage of the second call: %+v", c)
	}
	if c := report.ModelCalls[2]; c.PromptTokens != nil || c.CachedTokens != nil {
		t.Errorf("usage that was not reported: %+v", c)
	}

	type message struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
		ID      string          `json:"tool_call_id"`
		Calls   json.RawMessage `json:"tool_calls"`
		Reason  json.RawMessage `json:"reasoning_content"`
	}
	var last struct {
		Messages []message `json:"messages"`
		Max      int       `json:"max_completion_tokens"`
	}
	if err := json.Unmarshal(got[2], &last); err != nil {
		t.Fatal(err)
	}
	var shape []string
	for _, m := range last.Messages {
		shape = append(shape, m.Role+" "+m.ID)
	}
	if want := "system ,user ,assistant ,tool call_A,tool call_B,assistant ,user "; strings.Join(shape, ",") != want || last.Max != 500 {
		t.Errorf("messages %q, %d tokens", shape, last.Max)
	}
	said := last.Messages[2]
	if string(said.Reason) != `"two num\u0062ers"` || !bytes.Contains(said.Calls, []byte(`"extra_content":{"sig":"x=="}`)) {
		t.Errorf("what the server sent came back as %s, %s", said.Reason, said.Calls)
	}
	if string(last.Messages[4].Content) != `"30"` || !bytes.Contains(last.Messages[6].Content, []byte(`Thanks.\n\n[Context from the system`)) {
		t.Errorf("result %s, last message %s", last.Messages[4].Content, last.Messages[6].Content)
	}
	// The first turn's tail is dropped; everything before it stays.
	for i := 1; i < len(got); i++ {
		prefix := got[i-1][:len(got[i-1])-len(`"}]}`)]
		if at := bytes.Index(prefix, []byte(`\n\n[Context`)); at >= 0 {
			prefix = prefix[:at]
		}
		if !bytes.HasPrefix(got[i], prefix) {
			t.Errorf("request %d does not begin as request %d:\n%s\n%s", i+1, i, got[i], got[i-1])
		}
	}
}

// A failure that passes is repeated by psych, one that does not closes the
// exchange with what the server said.
func TestRunThatFails(t *testing.T) {
	url, bodies := answer(t, []string{choice(`{"content":"hal"}`, "")}, []string{choice(`{"content":"whole"}`, "stop")})
	rt, err := psych.New(memory.New(nil), &psych.Options{Models: psych.OneModel(openai.New("local", &openai.Options{BaseURL: url}))})
	if err != nil {
		t.Fatal(err)
	}
	a, err := rt.Ask(t.Context(), psych.Scope{Tenant: "acme"}, &psych.Spec{Name: "x"}, "hi", nil)
	if err != nil || a.Text != "whole" {
		t.Fatalf("%+v, %v", a, err)
	}
	if got := bodies(); len(got) != 2 || !bytes.Equal(got[0], got[1]) {
		t.Errorf("%d requests, want the same one twice", len(got))
	}
	a, err = rt.Ask(t.Context(), psych.Scope{Tenant: "acme"}, &psych.Spec{Name: "x"}, "again", nil)
	var failed *psych.ExchangeError
	if !errors.As(err, &failed) || !strings.Contains(failed.Reason, "one request too many") {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestCheck(t *testing.T) {
	call := choice(`{"tool_calls":[{"index":0,"id":"a","function":{"name":"psych_check","arguments":"{\"word\":\"lighthouse\"}"}}]}`, "")
	for _, c := range []struct {
		name   string
		stream []string
		want   string // level and subject of what is not ok
		says   string
	}{
		{"all is well", []string{choice(`{"content":"I call."}`, ""), call, choice(`{}`, "tool_calls"), usage(50, 0, 9)}, "", "50 tokens in, 9 out"},
		{"reasoning", []string{choice(`{"reasoning":"hm"}`, ""), call, choice(`{}`, "tool_calls"), usage(50, 0, 9)}, "", "sends reasoning"},
		{"no usage", []string{choice(`{"content":"I call."}`, ""), call, choice(`{}`, "stop")}, "note usage", "does not report tokens"},
		{"no cached tokens", []string{choice(`{"content":"I call."}`, ""), call, choice(`{}`, "stop"), `{"usage":{"prompt_tokens":1,"completion_tokens":2}}`}, "note cache", "hit rate"},
		{"one piece", []string{call, choice(`{}`, "stop"), usage(1, 0, 1)}, "note stream", "in 1 piece"},
		{"no call", []string{choice(`{"content":"I "}`, ""), choice(`{"content":"won't."}`, "stop"), usage(1, 0, 1)}, "problem tool call", "did not call"},
		{"another tool", []string{choice(`{"content":"I"}`, ""), strings.ReplaceAll(call, "psych_check", "made_up"), choice(`{}`, "stop"), usage(1, 0, 1)}, "problem tool call", "made_up"},
		{"bad arguments", []string{choice(`{"content":"I"}`, ""), strings.ReplaceAll(call, `}"}}]`, `"}}]`), choice(`{}`, "stop"), usage(1, 0, 1)}, "problem tool call", "not a JSON object"},
		{"no id", []string{choice(`{"content":"I"}`, ""), strings.ReplaceAll(call, `"id":"a",`, ""), choice(`{}`, "stop"), usage(1, 0, 1)}, "note tool call", "no id"},
		{"novel reason", []string{choice(`{"content":"I"}`, ""), call, choice(`{}`, "novel"), usage(1, 0, 1)}, "problem stop", "novel"},
		{"cut", []string{choice(`{"content":"I"}`, "")}, "problem answer", "this may pass"},
	} {
		t.Run(c.name, func(t *testing.T) {
			url, bodies := answer(t, append(c.stream, "[DONE]"))
			fs, err := openai.New("local", &openai.Options{BaseURL: url}).Check(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var not []string
			var all strings.Builder
			for _, f := range fs {
				fmt.Fprintln(&all, f)
				if f.Level != openai.OK {
					not = append(not, string(f.Level)+" "+f.Subject)
				}
			}
			if got := strings.Join(not, ", "); got != c.want || !strings.Contains(all.String(), c.says) {
				t.Errorf("not ok: %q, want %q; %q in\n%s", got, c.want, c.says, all.String())
			}
			if n := len(bodies()); n != 1 || !json.Valid(bodies()[0]) || len(bodies()[0]) > 1500 {
				t.Errorf("%d requests, the first %s", n, bodies()[0])
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if fs, err := openai.New("m", nil).Check(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v, %v", fs, err)
	}
}
