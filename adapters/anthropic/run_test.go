package anthropic_test

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

	"github.com/psych-go/psych-go/adapters/anthropic"
	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/internal/messages/messagestest"
	"github.com/psych-go/psych-go/psych"
)

// provider makes a server that refuses what the documentation forbids, answers
// the n-th request with the n-th list of events, in which SIGNATURE is bound to
// the request, and keeps the bodies.
func provider(t *testing.T, streams ...[]string) (url string, bodies func() [][]byte) {
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
		w.Header().Set("Request-Id", fmt.Sprintf("req_%d", n+1))
		refuse := func(err error) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "error", "error": map[string]any{"type": "invalid_request_error", "message": err.Error()}})
		}
		if _, err := messagestest.Check(body); err != nil {
			t.Errorf("request %d: %v\n%s", n+1, err, body)
			refuse(err)
			return
		}
		if n >= len(streams) {
			refuse(errors.New("one request too many"))
			return
		}
		signature, err := messagestest.Sign(body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, data := range streams[n] {
			fmt.Fprintf(w, "data: %s\n\n", strings.ReplaceAll(data, "SIGNATURE", signature))
			w.(http.Flusher).Flush()
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, func() [][]byte {
		mu.Lock()
		defer mu.Unlock()
		return got
	}
}

func start(input, read, written int) string {
	return fmt.Sprintf(`{"type":"message_start","message":{"id":"msg","usage":{"input_tokens":%d,"cache_read_input_tokens":%d,"cache_creation_input_tokens":%d,"output_tokens":1}}}`, input, read, written)
}

func block(i int, b string) string {
	return fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":%s}`, i, b)
}

func delta(i int, d string) string {
	return fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":%s}`, i, d)
}

func end(reason string, output int) string {
	return fmt.Sprintf(`{"type":"message_delta","delta":{"stop_reason":"%s"},"usage":{"output_tokens":%d}}`, reason, output)
}

const stop = `{"type":"message_stop"}`

func text(i int, s string) []string {
	return []string{block(i, `{"type":"text","text":""}`), delta(i, `{"type":"text_delta","text":"`+s+`"}`)}
}

func adder(t *testing.T, model psych.Model) *psych.Runtime {
	t.Helper()
	type numbers struct {
		A int `json:"a"`
		B int `json:"b"`
	}
	add := psych.NewTool("add", "Adds two integers.",
		func(_ context.Context, _ *psych.Call, in numbers) (int, error) { return in.A + in.B, nil }, nil)
	rt, err := psych.New(memory.New(nil), &psych.Options{Blobs: memory.NewBlobs(nil), Models: psych.OneModel(model), Tools: []*psych.Tool{add}})
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

// A Run of two exchanges, with a tool, through store, log and socket: the
// provider refuses none of its requests, reasoning comes back byte for byte,
// and each body begins with the one before.
func TestRun(t *testing.T) {
	for _, name := range []string{"claude-opus-5", "claude-opus-5-5"} {
		t.Run(name, func(t *testing.T) {
			thought := `{"type":"thinking","thinking":"two num\u0062ers","signature":"SIGNATURE"}`
			if name == "claude-opus-5" {
				thought = strings.ReplaceAll(thought, "SIGNATURE", "unbound==")
			}
			url, bodies := provider(t,
				append([]string{start(100, 0, 1000), block(0, thought)}, append(text(1, "I add."),
					block(2, `{"type":"tool_use","id":"toolu_A","name":"add","input":{}}`), delta(2, `{"type":"input_json_delta","partial_json":"{\"a\":2,"}`),
					block(3, `{"type":"tool_use","id":"toolu_B","name":"add","input":{}}`), delta(3, `{"type":"input_json_delta","partial_json":"{\"a\":\"ten\"}"}`),
					delta(2, `{"type":"input_json_delta","partial_json":"\"b\":3}"}`),
					end("tool_use", 20), stop)...),
				append([]string{start(40, 1096, 4)}, append(text(0, "5, and I don't know."), end("end_turn", 4), stop)...),
				append([]string{start(9, 1140, 0)}, append(text(0, "You are welcome."), end("end_turn", 4), stop)...),
			)
			rt := adder(t, anthropic.New(name, &anthropic.Options{BaseURL: url}))
			spec := &psych.Spec{Name: "adder", Instructions: "You add numbers.", Tools: []string{"add"}, ModelOptions: psych.ModelOptions{MaxOutputTokens: 500}}
			var streamed strings.Builder
			watch := &psych.DriveOptions{Observe: func(o psych.Observation) {
				if o.Delta != nil {
					streamed.WriteString(o.Delta.Text)
				}
			}}
			a, err := rt.Ask(t.Context(), psych.Scope{Tenant: "acme"}, spec, "What is 2 and 3, and ten?", watch)
			if err != nil {
				t.Fatal(err)
			}
			if a.Text != "5, and I don't know." || streamed.String() != "I add."+a.Text {
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
			if c := report.ModelCalls[1]; c.PromptTokens == nil || *c.PromptTokens != 1140 || c.CachedTokens == nil || *c.CachedTokens != 1096 {
				t.Errorf("usage of the second call: %+v", c)
			}

			last, err := messagestest.Check(got[2])
			if err != nil {
				t.Fatal(err)
			}
			var shape []string
			for _, m := range last.Messages {
				kinds := m.Role
				for _, b := range m.Content {
					kinds += fmt.Sprintf(" %v", b["type"])
				}
				shape = append(shape, kinds)
			}
			wantShape := "user text,assistant thinking text tool_use tool_use,user tool_result tool_result,assistant text,user text text"
			if got := strings.Join(shape, ","); got != wantShape && got != strings.Replace(wantShape, "user text", "user text text", 1) { // with the first tail kept
				t.Errorf("the messages are %s", got)
			}
			if last.Markers != 3 || last.MaxTokens != 500 {
				t.Errorf("%d markers, %d tokens", last.Markers, last.MaxTokens)
			}
			raw := thought
			if name == "claude-opus-5-5" {
				sign, err := messagestest.Sign(got[0])
				if err != nil {
					t.Fatal(err)
				}
				raw = strings.ReplaceAll(thought, "SIGNATURE", sign)
			}
			if !bytes.Contains(got[1], []byte(raw)) || !bytes.Contains(got[2], []byte(raw)) {
				t.Errorf("the reasoning\n%s\ncame back in\n%s", raw, got[1])
			}
			// Markers move, and a tail may be dropped; everything before it stays.
			for i := 1; i < len(got); i++ {
				plain := func(b []byte) []byte {
					return bytes.ReplaceAll(b, []byte(`,"cache_control":{"type":"ephemeral"}`), nil)
				}
				prefix := plain(got[i-1])
				prefix = prefix[:len(prefix)-len(`]}]}`)]
				if at := bytes.Index(prefix, []byte(`,{"type":"text","text":"[Context`)); at >= 0 {
					prefix = prefix[:at]
				}
				if !bytes.HasPrefix(plain(got[i]), prefix) {
					t.Errorf("request %d does not begin as request %d:\n%s\n%s", i+1, i, got[i], got[i-1])
				}
			}
		})
	}
}

// A failure that passes is repeated by psych, one that does not closes the
// exchange with what the server said; what a broken answer held is nowhere.
func TestRunThatFails(t *testing.T) {
	url, bodies := provider(t, append([]string{start(1, 0, 0), block(0, `{"type":"thinking","thinking":"half","signature":""}`)}, text(1, "hal")...), append(append([]string{start(1, 0, 0)}, text(0, "whole")...), end("end_turn", 1), stop))
	rt := adder(t, anthropic.New("claude-opus-5", &anthropic.Options{BaseURL: url}))
	a, err := rt.Ask(t.Context(), psych.Scope{Tenant: "acme"}, &psych.Spec{Name: "x"}, "hi", nil)
	if err != nil || a.Text != "whole" {
		t.Fatalf("%+v, %v", a, err)
	}
	if got := bodies(); len(got) != 2 || !bytes.Equal(got[0], got[1]) {
		t.Errorf("%d requests, want the same one twice", len(got))
	}
	a, err = rt.Ask(t.Context(), psych.Scope{Tenant: "acme"}, &psych.Spec{Name: "x"}, "again", nil)
	var failed *psych.ExchangeError
	if !errors.As(err, &failed) || !strings.Contains(failed.Reason, "one request too many") || !strings.Contains(failed.Reason, "req_3") {
		t.Errorf("%+v, %v", a, err)
	}
}

// An exchange that fails leaves its message unanswered: the next one joins it,
// since roles must alternate, and the Run goes on.
func TestRunGoesOnAfterRefusal(t *testing.T) {
	url, bodies := provider(t,
		[]string{start(1, 0, 0), block(0, `{"type":"thinking","thinking":"no","signature":"s"}`), end("refusal", 1), stop},
		append(append([]string{start(1, 0, 0)}, text(0, "sure")...), end("end_turn", 1), stop))
	rt := adder(t, anthropic.New("claude-opus-5", &anthropic.Options{BaseURL: url}))
	_, err := rt.Ask(t.Context(), psych.Scope{Tenant: "acme"}, &psych.Spec{Name: "x"}, "do evil", nil)
	var failed *psych.ExchangeError
	if !errors.As(err, &failed) || failed.Code != "refusal" {
		t.Fatalf("%v", err)
	}
	if err := rt.Send(t.Context(), failed.Run, psych.ClientMessage{Text: "do good"}); err != nil {
		t.Fatal(err)
	}
	if out, err := rt.Drive(t.Context(), failed.Run, nil); err != nil || out != psych.Closed {
		t.Fatalf("drive: %v, %v", out, err)
	}
	r, err := messagestest.Check(bodies()[1])
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Messages) != 1 || r.Messages[0].Content[0]["text"] != "do evil" || len(r.Messages[0].Content) < 3 {
		t.Errorf("the messages are %v", r.Messages)
	}
}
