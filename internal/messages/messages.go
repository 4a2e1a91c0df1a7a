// Package messages is Anthropic's Messages API as bytes: the encoding of
// requests, the assembly of streams, and what errors mean. The adapters that
// reach it, over Anthropic's API and over Bedrock, add transport and
// credentials.
//
// # On the wire
//
// A part of the history is a whole message, {"role":…,"content":[…]}. Roles
// must alternate, so parts of one role in a row are one message of the body:
// their blocks are joined as the body is laid out, without copying or encoding
// any again. A batch of results is a user's message, and what a user says next
// stands behind the results in it: no text precedes a result.
//
// The trailing message is one text block. It is the last block of the last
// message, a user's; behind an assistant's message, or alone, it is a user's
// message. A part of the history that is such a block, as [Format.Codec] makes
// it, is a trailing message of an earlier request that stays in its place.
//
// What the provider refuses is not sent: empty texts (a user's message without
// any block says so), an empty failure, images of a false type, too large or in
// a failed result, reasoning without its signature, and reasoning that ends a
// message.
//
// # Provider blocks
//
// Blocks of reasoning are kept as they came and sent again byte for byte:
//
//	{"type":"thinking",…}, {"type":"redacted_thinking",…}
//
// Others are Psych's own, so that no other provider's can be taken for them:
//
//	{"type":"anthropic.block","block":{…}}       a block of an unknown type, sent again
//	{"type":"anthropic.call","fields":{…}}       what else the next call holds, sent again with it
//	{"type":"anthropic.response","id":…,…}       what else the answer holds; for the log alone
//
// An error says whether a request was refused for a signature that does not
// hold, or for an image or a document that can't be read ([Said.Refused]): the
// Run goes on without them.
package messages

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/psych-go/psych-go/psych"
)

// DefaultMaxTokens is max_tokens where neither Spec nor options say it: what
// every model since Claude 4 takes. Reasoning counts in it.
const DefaultMaxTokens = 32000

// Values of Options.CacheTTL and SystemCacheTTL.
const (
	TTL5m = "5m"
	TTL1h = "1h"
	TTLNo = "none" // no markers
)

// Options are what the adapters' own options have in common. The zero value
// works.
type Options struct {
	Model          string             // the name, whose rules hold
	Like           string             // a model whose rules hold instead
	CacheTTL       string             // of all markers: TTL5m (""), TTL1h or TTLNo
	SystemCacheTTL string             // of those of zones 1 and 2; "" is CacheTTL
	Thinking       string             // see Format.thinking
	MaxTokens      int                // 0 is DefaultMaxTokens
	FreeBlocks     bool               // block_binding is not sent
	Limits         *psych.ModelLimits // nil is DefaultLimits
}

// MaxImageBytes is the largest image: 5 MiB as base64, which is what Bedrock
// takes, and the API at least.
const MaxImageBytes = 5 << 20 / 4 * 3

// DefaultLimits are the provider's. It takes PDF where it takes images.
func DefaultLimits() psych.ModelLimits {
	return psych.ModelLimits{
		ToolName:     64,
		PropertyName: `^[a-zA-Z0-9_.-]{1,64}$`,
		Images:       []string{"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"},
		ImageBytes:   MaxImageBytes,
	}
}

// A Format is the encoding for one model. It is safe for concurrent use.
type Format struct {
	o       Options
	rules   generation
	codec   *codec
	markers [2][]byte // of zones 1 and 2, and of zone 3; nil: none
}

// New checks the options; what is wrong matches psych.ErrInvalid.
func New(o Options) (*Format, error) {
	f := &Format{o: o, rules: generationOf(o.Model)}
	if o.Like != "" {
		f.rules = generationOf(o.Like)
	}
	if o.Like != "" && f.rules == unknown {
		return nil, fmt.Errorf("like %.80q: want the name of a Claude model, such as claude-opus-5-5: %w", o.Like, psych.ErrInvalid)
	}
	if o.SystemCacheTTL == "" {
		o.SystemCacheTTL = o.CacheTTL
	}
	for i, ttl := range []string{o.SystemCacheTTL, o.CacheTTL} {
		switch ttl {
		case "", TTL5m:
			f.markers[i] = marker5m
		case TTL1h:
			f.markers[i] = marker1h
		case TTLNo:
		default:
			return nil, fmt.Errorf("cache TTL %.80q: want 5m, 1h or none: %w", ttl, psych.ErrInvalid)
		}
	}
	if o.CacheTTL == TTL1h && o.SystemCacheTTL != TTL1h && o.SystemCacheTTL != TTLNo {
		return nil, fmt.Errorf("the cache TTL 1h stands behind 5m of the system prompt: the provider wants the longer one first: %w", psych.ErrInvalid)
	}
	switch n, err := strconv.Atoi(o.Thinking); {
	case err == nil && n >= minBudget:
	case o.Thinking == "" || o.Thinking == thinkingNone || o.Thinking == "adaptive" || o.Thinking == "disabled" || o.Thinking == "between_tools":
	default:
		return nil, fmt.Errorf("thinking %.80q: want adaptive, between_tools, disabled, none, or a budget of at least %d tokens: %w", o.Thinking, minBudget, psych.ErrInvalid)
	}
	if o.MaxTokens < 0 {
		return nil, fmt.Errorf("max tokens %d: want a positive number: %w", o.MaxTokens, psych.ErrInvalid)
	}
	f.codec = &codec{limits: DefaultLimits(), keeps: f.rules == bound || f.rules == unknown}
	if o.Limits != nil {
		f.codec.limits = *o.Limits
	}
	f.codec.id = idOf(f.codec.limits)
	return f, nil
}

// Codec returns the encoding of the parts.
func (f *Format) Codec() psych.Codec { return f.codec }

// Parameters are those of a URL that [Options.Set] knows.
func Parameters() []string {
	return []string{"block_binding", "cache_ttl", "context_tokens", "like", "max_tokens", "system_cache_ttl", "thinking"}
}

// Set takes the parameters of a URL, as psych.Params gives them.
func (o *Options) Set(p map[string]string) error {
	o.Like, o.CacheTTL, o.SystemCacheTTL, o.Thinking = p["like"], p["cache_ttl"], p["system_cache_ttl"], p["thinking"]
	number := func(name string) (int, error) {
		v, ok := p[name]
		if !ok {
			return 0, nil
		}
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return 0, fmt.Errorf("%s is %.80q: want a number from 1: %w", name, v, psych.ErrInvalid)
		}
		return n, nil
	}
	var err error
	if o.MaxTokens, err = number("max_tokens"); err != nil {
		return err
	}
	n, err := number("context_tokens")
	if err != nil {
		return err
	}
	if n > 0 {
		limits := DefaultLimits()
		limits.ContextTokens = n
		o.Limits = &limits
	}
	if v, ok := p["block_binding"]; ok {
		binds, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("block_binding is %.80q: want true or false: %w", v, psych.ErrInvalid)
		}
		o.FreeBlocks = !binds
	}
	return nil
}

// ModelName is the opaque part of SCHEME:NAME.
func ModelName(u *url.URL) (string, error) {
	if u.Opaque == "" || u.Fragment != "" {
		return "", fmt.Errorf("%s names no model: want %s:NAME, with # as %%23: %w", u.Redacted(), u.Scheme, psych.ErrInvalid)
	}
	name, err := url.PathUnescape(u.Opaque)
	if err != nil {
		return "", fmt.Errorf("%s: write %% as %%25: %w: %w", u.Redacted(), psych.ErrInvalid, err)
	}
	return name, nil
}

// RefuseKeys finds a credential in a URL; it comes before any error that shows
// the URL. where says where a key is kept instead.
func RefuseKeys(u *url.URL, where string) error {
	q, _ := url.ParseQuery(u.RawQuery) // what is malformed, psych.Params refuses
	for name := range q {
		switch strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(name)) {
		case "apikey", "key", "token", "bearer", "authorization", "password", "secret", "xapikey", "accesskey", "accesskeyid", "secretaccesskey", "sessiontoken":
			return fmt.Errorf("the URL has the parameter %q: a key never stands in a URL: %s: %w", name, where, psych.ErrInvalid)
		}
	}
	for _, name := range []string{"base_url", "endpoint"} {
		raw := q.Get(name)
		inner, err := url.Parse(raw)
		if u.User != nil || err == nil && inner.User != nil || err != nil && strings.Contains(raw, "@") {
			return fmt.Errorf("the URL holds a user: a key never stands in a URL: %s: %w", where, psych.ErrInvalid)
		}
	}
	return nil
}

// A generation is a set of models with the same rules for reasoning. What is
// old does not change; a model that is not known here is a new one.
type generation int

const (
	unknown  generation = iota // no Claude model by its name
	claude3                    // takes 4,096 output tokens
	manual                     // to 4.5: reasons within a budget, when told to
	adaptive                   // 4.6 to 5: decides by itself how much to reason
	bound                      // from 5.1 on: its reasoning is bound to all that precedes it
)

var versions = lazily(`claude-(?:[a-z]+-)??v?(\d+)(?:[-.](\d{1,2}))?(?:[^0-9].*)?$`)

func generationOf(name string) generation {
	name = strings.ToLower(name)
	v := versions().FindStringSubmatch(name)
	if v == nil {
		switch {
		case strings.Contains(name, "claude-instant"):
			return claude3
		case strings.Contains(name, "claude-mythos-preview"):
			return adaptive
		}
		return unknown
	}
	major, _ := strconv.Atoi(v[1]) // digits; too many are 0
	minor, _ := strconv.Atoi(v[2])
	switch {
	case major <= 3:
		return claude3
	case major == 4 && minor <= 5:
		return manual
	case major == 4 || major == 5 && minor == 0:
		return adaptive
	}
	return bound
}
