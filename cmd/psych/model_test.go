package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A completion is a server that says it in server-sent events.
func completion(t *testing.T, events ...string) (url string, bodies *[]string) {
	t.Helper()
	bodies = new([]string)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		*bodies = append(*bodies, r.Header.Get("Authorization")+" "+string(b))
		if len(events) == 0 {
			http.Error(w, "<html>no such page</html>", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, e := range events {
			fmt.Fprintf(w, "data: %s\n\n", e)
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	t.Cleanup(s.Close)
	return s.URL + "/v1", bodies
}

const (
	saysSo    = `{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":"It is so."}}]}`
	callsTool = `{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"psych_check","arguments":"{\"word\":\"lighthouse\"}"}}]}}]}`
	stops     = `{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	stopsCall = `{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`
	usage     = `{"id":"x","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":3,"total_tokens":14}}`
)

func TestModelCheck(t *testing.T) {
	base, bodies := completion(t, saysSo, callsTool, stopsCall, usage)
	env := []string{"OPENAI_BASE_URL=" + base, "OPENAI_API_KEY=secret"}
	got := psychIn("", env, "model", "check", "openai:tiny")
	got.wantCompleted(t)
	if !strings.Contains(got.stdout, "tool call") || !strings.Contains(got.stdout, "11 tokens in, 3 out") || len(*bodies) != 1 || !strings.HasPrefix((*bodies)[0], "Bearer secret ") || !strings.Contains((*bodies)[0], `"tiny"`) {
		t.Errorf("psych model check printed\n%s\nsent %q", got.stdout, *bodies)
	}

	// A model that calls no tool will not do.
	env[0] = "OPENAI_BASE_URL="
	base, _ = completion(t, saysSo, stops, usage)
	env[0] += base
	psychIn("", env, "model", "check", "openai:tiny").wantError(t, exitFailed, "openai:tiny: problems: 1")

	base, _ = completion(t)
	env[0] = "OPENAI_BASE_URL=" + base
	got = psychIn("", env, "model", "check", "openai:tiny")
	got.wantError(t, exitFailed, "problems: 1")
	if !strings.Contains(got.stdout, "404") {
		t.Errorf("psych model check printed\n%s", got.stdout)
	}

	// A server that never answers.
	stuck := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer stuck.Close()
	env[0] = "OPENAI_BASE_URL=" + stuck.URL
	psychIn("", env, "model", "check", "--timeout", "50ms", "openai:tiny").wantError(t, exitFailed, "openai:tiny does not answer within 50ms")

	psychIn("", env, "model", "check", "--timeout", "0s", "openai:tiny").wantError(t, exitUse, "want a time over 0")

	workdir(t, "play.yaml", "steps: [{text: So.}]")
	psychIn("", nil, "model", "check", "script:play.yaml").wantError(t, exitUse, "can't be checked")
	psychIn("", nil, "model", "check", "gtp:x").wantError(t, exitUse, "unknown scheme")
}

// TestRunOpenAI guards that --model openai:NAME runs a Spec on a server.
func TestRunOpenAI(t *testing.T) {
	workdir(t, "spec.yaml", plainSpec)
	base, bodies := completion(t, saysSo, stops, usage)
	got := psychIn("", []string{"OPENAI_BASE_URL=" + base, "OPENAI_API_KEY=secret"}, "run", "--model", "openai:tiny", "spec.yaml", "hello")
	got.wantCompleted(t)
	if !strings.HasPrefix(got.stdout, "It is so.\n") || len(*bodies) != 1 || strings.Contains(got.stdout, "secret") {
		t.Errorf("psych run printed\n%s", got.stdout)
	}
}
