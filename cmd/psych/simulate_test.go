package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// What a provider's cache would have made of a Run is printed beside its
// report, and said to be an estimate.
func TestReportSimulated(t *testing.T) {
	workdir(t, "spec.yaml", filesSpec+"instructions: '"+strings.Repeat("Read before you answer. ", 400)+"'\n", "data/big.txt", strings.Repeat("0123456789abcdef\n", 200), "play.yaml", `steps:
  - calls: [{name: read_file, arguments: {path: big.txt}}]
  - calls: [{name: list_files}]
  - text: So.
`)
	ran := psychIn("", nil, "run", "--files", "data", "spec.yaml", "hello")
	ran.wantCompleted(t)
	id := runID(t, ran.stdout)
	plain := psychIn("", nil, "report", id)

	got := psychIn("", nil, "report", "--simulate", "anthropic", "--simulate", "openai:gpt-4.1", id)
	got.wantCompleted(t)
	if !strings.HasPrefix(got.stdout, plain.stdout) {
		t.Errorf("psych report --simulate does not begin with the report:\n%s", got.stdout)
	}
	for _, want := range []string{"estimated by the documented cache rules of anthropic:claude-sonnet-5", "of openai:gpt-4.1", "no provider said so", "\nturn 3 ", "\ntotal ", "estimated hit rate from the second call on "} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("psych report --simulate does not print %q:\n%s", want, got.stdout)
		}
	}
	var rep struct {
		Turns     int
		Simulated []struct {
			Provider string
			Estimate bool
			Calls    []struct{ Read, Written, Uncached int }
			HitRate  *float64 `json:"hit_rate"`
			Relative float64
		}
	}
	got = psychIn("", nil, "report", "--json", "--simulate", "bedrock:anthropic.claude-opus-4-1", id)
	got.wantCompleted(t)
	if err := json.Unmarshal([]byte(got.stdout), &rep); err != nil || rep.Turns != 3 || len(rep.Simulated) != 1 {
		t.Fatalf("%v\n%s", err, got.stdout)
	}
	if s := rep.Simulated[0]; s.Provider != "bedrock:anthropic.claude-opus-4-1" || !s.Estimate || len(s.Calls) != 3 || s.Calls[0].Read != 0 || s.Calls[0].Written == 0 ||
		s.Calls[1].Read != s.Calls[0].Written || s.HitRate == nil || *s.HitRate < 0.5 || s.Relative <= 0.1 || s.Relative >= 1 {
		t.Errorf("%+v", s)
	}
	psychIn("", nil, "report", "--simulate", "gemini:x", id).wantError(t, exitUse, "--simulate", "anthropic:MODEL, bedrock:MODEL or openai:MODEL")
	psychIn("", nil, "report", "--simulate", "anthropic:claude-opus-5?cache_ttl=2h", id).wantError(t, exitUse, "5m, 1h or none")
}
