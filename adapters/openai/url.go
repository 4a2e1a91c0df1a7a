package openai

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/psych-go/psych-go/psych"
)

// Register makes openai:NAME a URL of Models. NAME is what the server calls the
// model; a % in it introduces an escape. Its parameters:
//
//	api=chat|responses       Options.Responses; chat without it
//	base_url=URL             Options.BaseURL
//	context_tokens=N         ModelLimits.ContextTokens
//	images=BOOL              Options.Images
//	legacy_max_tokens=BOOL   Options.LegacyMaxTokens, of chat
//	drop_reasoning=BOOL      Options.DropReasoning
//	reasoning_summary=WORD   Options.ReasoningSummary, of responses
//	prompt_cache_key=KEY     Options.CacheKey
//	cache_breakpoints=BOOL   Options.CacheBreakpoints, or NoCacheBreakpoints
//	cache_ttl=TTL            Options.CacheTTL
//
// OPENAI_BASE_URL is the base URL without base_url; OPENAI_API_KEY is the key,
// and OPENAI_ORG_ID and OPENAI_PROJECT_ID go with it. The URL holds no key, and
// since a Spec may name any URL, the key goes to the server of OPENAI_BASE_URL
// (OpenAI when it is not set) alone: a base_url elsewhere is called without.
// Opening does no IO.
func Register(b *psych.Backends, getenv func(string) string) {
	b.Models.Handle("openai", func(_ context.Context, u *url.URL) (psych.Model, error) {
		return open(u, getenv)
	})
}

func open(u *url.URL, getenv func(string) string) (*Model, error) {
	if err := refuseKeys(u); err != nil {
		return nil, err
	}
	p, err := psych.Params(u, "api", "base_url", "cache_breakpoints", "cache_ttl", "context_tokens", "drop_reasoning", "images", "legacy_max_tokens", "prompt_cache_key", "reasoning_summary")
	if err != nil {
		return nil, err
	}
	const want = "want openai:NAME"
	if u.Opaque == "" || u.Fragment != "" {
		return nil, fmt.Errorf("openai: %s names no model: %s, with # as %%23: %w", u.Redacted(), want, psych.ErrInvalid)
	}
	name, err := url.PathUnescape(u.Opaque)
	if err != nil {
		return nil, fmt.Errorf("openai: %s: write %% as %%25: %w: %w", u.Redacted(), psych.ErrInvalid, err)
	}
	env := func(name string) string {
		if getenv == nil {
			return ""
		}
		return strings.TrimSpace(getenv(name))
	}

	trusted := env("OPENAI_BASE_URL")
	if trusted == "" {
		trusted = DefaultBaseURL
	}
	o := &Options{BaseURL: trusted, CacheKey: p["prompt_cache_key"], CacheTTL: p["cache_ttl"]}
	if base, ok := p["base_url"]; ok {
		o.BaseURL = base
	}
	if err := checkBaseURL(o.BaseURL); err != nil {
		return nil, err
	}
	if sameOrigin(o.BaseURL, trusted) {
		o.APIKey, o.Organization, o.Project = env("OPENAI_API_KEY"), env("OPENAI_ORG_ID"), env("OPENAI_PROJECT_ID")
	}
	if o.APIKey == "" && sameOrigin(o.BaseURL, DefaultBaseURL) {
		return nil, fmt.Errorf("openai: %s calls OpenAI and there is no key: set OPENAI_API_KEY, or OPENAI_BASE_URL for another server: %w", u.Redacted(), psych.ErrInvalid)
	}
	if v, ok := p["api"]; ok {
		if v != "chat" && v != "responses" {
			return nil, fmt.Errorf("openai: %s: api is %q: want chat or responses: %w", u.Redacted(), v, psych.ErrInvalid)
		}
		o.Responses = v == "responses"
	}
	for name, of := range map[string]string{"legacy_max_tokens": "chat", "reasoning_summary": "responses"} {
		if _, ok := p[name]; ok && o.Responses != (of == "responses") {
			return nil, fmt.Errorf("openai: %s: %s is a parameter of api=%s alone: %w", u.Redacted(), name, of, psych.ErrInvalid)
		}
	}
	o.ReasoningSummary = p["reasoning_summary"]
	for name, to := range map[string]*bool{
		"cache_breakpoints": &o.CacheBreakpoints, "drop_reasoning": &o.DropReasoning, "images": &o.Images, "legacy_max_tokens": &o.LegacyMaxTokens,
	} {
		v, ok := p[name]
		if !ok {
			continue
		}
		if *to, err = strconv.ParseBool(v); err != nil {
			return nil, fmt.Errorf("openai: %s: %s is %q: want true or false: %w", u.Redacted(), name, v, psych.ErrInvalid)
		}
	}
	_, told := p["cache_breakpoints"]
	o.NoCacheBreakpoints = told && !o.CacheBreakpoints
	if v, ok := p["context_tokens"]; ok {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("openai: %s: context_tokens is %q: want a number from 1: %w", u.Redacted(), v, psych.ErrInvalid)
		}
		limits := openAILimits
		limits.ContextTokens = n
		o.Limits = &limits
	}
	m := New(name, o)
	if m.err != nil { // an option
		return nil, fmt.Errorf("%s: %w", u.Redacted(), m.err.Err)
	}
	return m, nil
}

// refuseKeys comes before any error that shows the URL.
func refuseKeys(u *url.URL) error {
	q, _ := url.ParseQuery(u.RawQuery) // what is malformed, psych.Params refuses
	for name := range q {
		switch strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(name)) {
		case "apikey", "key", "token", "bearer", "authorization", "password", "secret":
			return fmt.Errorf("openai: the URL has the parameter %q: a key never stands in a URL: set OPENAI_API_KEY: %w", name, psych.ErrInvalid)
		}
	}
	return checkNoUser(q.Get("base_url"), u)
}

// checkNoUser refuses credentials in either URL.
func checkNoUser(base string, u *url.URL) error {
	inner, err := url.Parse(base)
	if u.User != nil || err == nil && inner.User != nil || err != nil && strings.Contains(base, "@") {
		return fmt.Errorf("openai: the URL holds a user: a key never stands in a URL: set OPENAI_API_KEY: %w", psych.ErrInvalid)
	}
	return nil
}
