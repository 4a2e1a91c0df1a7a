package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A Run is made again, by the model that its spec names or by one that is
// given, and two of its requests are compared.
func TestReplayAndDiff(t *testing.T) {
	workdir(t, "spec.yaml", filesSpec, "data/big.txt", strings.Repeat("0123456789abcdef\n", 200), "play.yaml", `steps:
  - calls: [{name: read_file, arguments: {path: big.txt}}]
  - text: So.
  - text: And so.
`, "spec2.yaml", "name: b")
	ran := psychIn("", nil, "run", "--files", "data", "spec.yaml", "hello")
	ran.wantCompleted(t)
	id := runID(t, ran.stdout)
	psychIn("", nil, "send", "--files", "data", id, "and then?").wantCompleted(t)

	got := psychIn("", nil, "replay", id[:8])
	got.wantCompleted(t)
	if got.stdout != "run "+id+" of tenant local: model calls 3, equal 3\n" {
		t.Errorf("psych replay printed\n%s", got.stdout)
	}
	var result replayResult
	got = psychIn("", nil, "replay", "--json", id)
	got.wantCompleted(t)
	if err := json.Unmarshal([]byte(got.stdout), &result); err != nil || result.Equal != 3 || len(result.Calls) != 3 || !result.Calls[2].Equal || result.Calls[2].Turn != 3 || result.Calls[0].Codec != "script/1" {
		t.Errorf("psych replay --json: %v\n%s", err, got.stdout)
	}

	got = psychIn("", nil, "diff", id, "1", "2")
	got.wantCompleted(t)
	for _, want := range []string{"from call 1 (turn 1) to call 2 (turn 2): changes 2\n", "zone 3: added: parts 2 to 3 (", "zone 4: removed: the trailing message\n  - [Context from the system"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("psych diff does not print %q:\n%s", want, got.stdout)
		}
	}
	if got = psychIn("", nil, "diff", "--json", id, "2", "3"); got.code != exitCompleted || !strings.Contains(got.stdout, `"what": "the trailing message"`) {
		t.Errorf("psych diff --json:\n%s%s", got.stdout, got.stderr)
	}
	psychIn("", nil, "diff", id, "2", "9").wantError(t, exitFailed, "has no model call 9", "has 3")
	psychIn("", nil, "diff", id, "2", "1").wantError(t, exitUse, "the earlier first")
	psychIn("", nil, "diff", id, "2", "x").wantError(t, exitUse, `"x" is no model call`)
	psychIn("", nil, "diff", id, "2").wantError(t, exitUse, "RUN, A and B")
	psychIn("", nil, "replay", "ffff").wantError(t, exitUse, "no run")

	// A model of another encoding says which one is wanted; beside the Run's own
	// it harms nothing.
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	env := []string{"PSYCH_MODEL=openai:any", "OPENAI_BASE_URL=" + server.URL}
	psychIn("", env, "replay", "--model", "openai:any", id).wantCompleted(t)
	psychIn("", nil, "replay", "--model", "nothing:x", id).wantError(t, exitUse, "unknown scheme")
	psychIn("", env, "run", "spec2.yaml", "hello")
	list := psychIn("", nil, "runs", "--json", "--limit", "1")
	var runs []runLine
	if err := json.Unmarshal([]byte(list.stdout), &runs); err != nil || len(runs) != 1 {
		t.Fatalf("%v\n%s", err, list.stdout)
	}
	got = psychIn("", []string{"PSYCH_MODEL=script:play.yaml"}, "replay", runs[0].RunID)
	if got.code != exitFailed || !strings.Contains(got.stdout, "call 1 (turn 1) can't be made again: ") || !strings.Contains(got.stdout, "openai-") {
		t.Errorf("psych replay by another model: %d\n%s%s", got.code, got.stdout, got.stderr)
	}
	if got = psychIn("", env, "replay", runs[0].RunID); got.code != exitCompleted {
		t.Errorf("psych replay by the environment's model: %d\n%s%s", got.code, got.stdout, got.stderr)
	}

	// Nothing is called, so that no key is wanted.
	for _, url := range []string{"openai:any", "anthropic:claude-opus-5-5"} {
		psychIn("", nil, "replay", "--model", url, id).wantCompleted(t)
	}
	if got = psychIn("", []string{"PSYCH_MODEL=openai:any"}, "replay", runs[0].RunID); got.code != exitCompleted {
		t.Errorf("psych replay without a key: %d\n%s%s", got.code, got.stdout, got.stderr)
	}
}
