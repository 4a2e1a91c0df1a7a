package main

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/internal/providertest"
)

// TestProviders guards that a model of each provider is checked, and runs a
// Spec, by its URL and a key of the environment alone.
func TestProviders(t *testing.T) {
	workdir(t, "spec.yaml", plainSpec)
	for name, c := range map[string]struct {
		api   providertest.API
		model string
		env   []string
	}{
		"anthropic": {providertest.Messages, "anthropic:claude-opus-5-5", []string{"ANTHROPIC_API_KEY=secret", "ANTHROPIC_BASE_URL=URL"}},
		"bedrock":   {providertest.Bedrock, "bedrock:eu.anthropic.claude-opus-5-5?endpoint=URL&region=eu-central-1", nil},
		"chat":      {providertest.Chat, "openai:gpt-5?cache_breakpoints=true", []string{"OPENAI_API_KEY=secret", "OPENAI_BASE_URL=URL"}},
		"responses": {providertest.Responses, "openai:gpt-5?api=responses", []string{"OPENAI_API_KEY=secret", "OPENAI_BASE_URL=URL"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
			t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
			answer := &providertest.Answer{}
			stub := providertest.New(c.api, func(*providertest.Request) *providertest.Answer { return answer }, nil)
			t.Cleanup(stub.Close)
			model := strings.Replace(c.model, "URL", url.QueryEscape(stub.URL), 1)
			env := slices.Clone(c.env)
			for i := range env {
				if name, ok := strings.CutSuffix(env[i], "=URL"); ok {
					env[i] = name + "=" + stub.URL
				}
			}
			*answer = providertest.Answer{Reasoning: "hm", Text: "I note it.", Calls: []providertest.Call{{Name: "psych_check", Arguments: `{"word":"lighthouse"}`}}}
			got := psychIn("", env, "model", "check", model)
			got.wantCompleted(t)
			if strings.Count(got.stdout, "ok ") < 4 || strings.Contains(got.stdout, "secret") {
				t.Errorf("psych model check printed\n%s", got.stdout)
			}
			*answer = providertest.Answer{Text: "It is so."}
			psychIn("", env, "model", "check", model).wantError(t, exitFailed, "problems: 1")
			got = psychIn("", env, "run", "--model", model, "spec.yaml", "hello")
			got.wantCompleted(t)
			if !strings.HasPrefix(got.stdout, "It is so.\n") || len(stub.Refused()) > 0 || len(stub.Requests()) != 3 {
				t.Errorf("psych run printed\n%s\nafter %d requests; refused: %v", got.stdout, len(stub.Requests()), stub.Refused())
			}
		})
	}
}
