package anthropic

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/psych-go/psych-go/internal/messages"
	"github.com/psych-go/psych-go/psych"
)

// Register makes anthropic:NAME a URL of Models. NAME is what the server calls
// the model; a % in it introduces an escape. Its parameters:
//
//	base_url=URL            Options.BaseURL
//	max_tokens=N            Options.MaxTokens
//	context_tokens=N        ModelLimits.ContextTokens
//	cache_ttl=TTL           Options.CacheTTL: 5m, 1h, none
//	system_cache_ttl=TTL    Options.SystemCacheTTL
//	thinking=KIND           Options.Thinking
//	like=NAME               Options.Like
//	block_binding=BOOL      false is Options.FreeBlocks
//
// ANTHROPIC_BASE_URL is the base URL without base_url; ANTHROPIC_API_KEY is the
// key. The URL holds no key, and since a Spec may name any URL, the key goes to
// the server of ANTHROPIC_BASE_URL (Anthropic when it is not set) alone: a
// base_url elsewhere is called without. Opening does no IO.
func Register(b *psych.Backends, getenv func(string) string) {
	b.Models.Handle("anthropic", func(_ context.Context, u *url.URL) (psych.Model, error) {
		m, err := open(u, getenv)
		if err != nil {
			return nil, fmt.Errorf("anthropic: %w", err)
		}
		return m, nil
	})
}

func open(u *url.URL, getenv func(string) string) (*Model, error) {
	if err := messages.RefuseKeys(u, "set ANTHROPIC_API_KEY"); err != nil {
		return nil, err
	}
	p, err := psych.Params(u, append(messages.Parameters(), "base_url")...)
	if err != nil {
		return nil, err
	}
	name, err := messages.ModelName(u)
	if err != nil {
		return nil, err
	}
	env := func(name string) string {
		if getenv == nil {
			return ""
		}
		return strings.TrimSpace(getenv(name))
	}
	trusted := env("ANTHROPIC_BASE_URL")
	if trusted == "" {
		trusted = DefaultBaseURL
	}
	o := &Options{BaseURL: trusted}
	if base, ok := p["base_url"]; ok {
		o.BaseURL = base
	}
	if err := checkBaseURL(o.BaseURL); err != nil {
		return nil, err
	}
	if sameOrigin(o.BaseURL, trusted) {
		o.APIKey = env("ANTHROPIC_API_KEY")
	}
	if o.APIKey == "" && sameOrigin(o.BaseURL, DefaultBaseURL) {
		return nil, fmt.Errorf("%s calls Anthropic and there is no key: set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL for another server: %w", u.Redacted(), psych.ErrInvalid)
	}
	var common messages.Options
	if err := common.Set(p); err != nil {
		return nil, fmt.Errorf("%s: %w", u.Redacted(), err)
	}
	o.Like, o.CacheTTL, o.SystemCacheTTL, o.Thinking = common.Like, common.CacheTTL, common.SystemCacheTTL, common.Thinking
	o.MaxTokens, o.FreeBlocks, o.Limits = common.MaxTokens, common.FreeBlocks, common.Limits
	m, err := build(name, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u.Redacted(), err)
	}
	return m, nil
}
