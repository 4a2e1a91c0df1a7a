package bedrock

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/bedrockruntime"
	"github.com/aws/smithy-go/logging"

	"github.com/psych-go/psych-go/internal/messages"
	"github.com/psych-go/psych-go/psych"
)

// Register makes bedrock:ID a URL of Models. ID is that of a model or of an
// inference profile, or its ARN; a % in it introduces an escape. Its parameters:
//
//	region=REGION           of the endpoint; else as the SDK has it
//	endpoint=URL            of Bedrock's runtime
//	max_tokens=N            Options.MaxTokens
//	context_tokens=N        ModelLimits.ContextTokens
//	cache_ttl=TTL           Options.CacheTTL: 5m, 1h, none
//	system_cache_ttl=TTL    Options.SystemCacheTTL
//	thinking=KIND           Options.Thinking
//	like=NAME               Options.Like
//	block_binding=BOOL      false is Options.FreeBlocks
//
// What they leave open is as the AWS SDK has it: environment, shared files,
// roles. Since a Spec may name any URL, an endpoint is AWS's, or one on the
// machine itself (which needs neither region nor credentials), or the one that
// AWS_ENDPOINT_URL_BEDROCK_RUNTIME or AWS_ENDPOINT_URL names; any other is
// refused. Opening does no IO beyond the SDK's configuration files.
func Register(b *psych.Backends) {
	b.Models.Handle("bedrock", func(ctx context.Context, u *url.URL) (psych.Model, error) {
		m, err := open(ctx, u)
		if err != nil {
			return nil, fmt.Errorf("bedrock: %w", err)
		}
		return m, nil
	})
}

func open(ctx context.Context, u *url.URL) (*Model, error) {
	if err := messages.RefuseKeys(u, "credentials are those of the AWS SDK"); err != nil {
		return nil, err
	}
	p, err := psych.Params(u, append(messages.Parameters(), "endpoint", "region")...)
	if err != nil {
		return nil, err
	}
	id, err := messages.ModelName(u)
	if err != nil {
		return nil, err
	}
	var o messages.Options
	if err := o.Set(p); err != nil {
		return nil, fmt.Errorf("%s: %w", u.Redacted(), err)
	}
	endpoint, hasEndpoint := p["endpoint"]
	local := false
	if hasEndpoint {
		if local, err = checkEndpoint(endpoint); err != nil {
			return nil, err
		}
	}
	load := []func(*config.LoadOptions) error{
		// Connections that idled over the freeze of a Lambda function are dead.
		config.WithHTTPClient(awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) { t.IdleConnTimeout = 30 * time.Second })),
		config.WithLogger(logging.Nop{}), // it writes to standard error what is in the errors too
	}
	region, hasRegion := p["region"]
	if hasRegion && region == "" {
		return nil, fmt.Errorf("%s has an empty region: %w", u.Redacted(), psych.ErrInvalid)
	}
	if hasRegion {
		load = append(load, config.WithRegion(region))
	}
	if local && os.Getenv("AWS_ACCESS_KEY_ID") == "" {
		load = append(load, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("local", "local", "")))
	}
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, fmt.Errorf("configuration of the AWS SDK: %w", err)
	}
	if local {
		cfg.Region = cmp.Or(cfg.Region, "us-east-1")
	}
	if cfg.Region == "" {
		return nil, fmt.Errorf("%s names no region and the environment none: set AWS_REGION or add region=: %w", u.Redacted(), psych.ErrInvalid)
	}
	client := bedrockruntime.NewFromConfig(cfg, func(c *bedrockruntime.Options) {
		if hasEndpoint {
			c.BaseEndpoint = &endpoint
		}
	})
	m, err := build(client, id, &Options{
		Limits: o.Limits, MaxTokens: o.MaxTokens, CacheTTL: o.CacheTTL, SystemCacheTTL: o.SystemCacheTTL,
		Thinking: o.Thinking, Like: o.Like, FreeBlocks: o.FreeBlocks,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u.Redacted(), err)
	}
	return m, nil
}

// checkEndpoint reports whether an endpoint is on the machine itself, and
// refuses those that nobody but a Spec vouches for.
func checkEndpoint(endpoint string) (local bool, err error) {
	e, err := url.Parse(endpoint)
	if err != nil || e.Scheme != "http" && e.Scheme != "https" || e.Host == "" || e.RawQuery != "" || e.Fragment != "" {
		return false, fmt.Errorf("endpoint %.200q: want an http or https URL: %w", endpoint, psych.ErrInvalid)
	}
	host := strings.ToLower(e.Hostname())
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return true, nil
	}
	if e.Scheme == "https" {
		for _, suffix := range []string{".amazonaws.com", ".amazonaws.com.cn", ".api.aws"} {
			if strings.HasSuffix(host, suffix) {
				return false, nil
			}
		}
	}
	for _, name := range []string{"AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "AWS_ENDPOINT_URL"} {
		known, err := url.Parse(os.Getenv(name))
		if err == nil && known.Host != "" && strings.EqualFold(known.Scheme, e.Scheme) && strings.EqualFold(known.Host, e.Host) {
			return false, nil
		}
	}
	return false, fmt.Errorf("endpoint %.200q is neither AWS's nor on this machine: set AWS_ENDPOINT_URL_BEDROCK_RUNTIME to it, since requests are signed: %w", endpoint, psych.ErrInvalid)
}
