package ssm

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/smithy-go/logging"

	"github.com/psych-go/psych-go/psych"
)

// Register makes ssm:///PREFIX a URL of Secrets, with the parameters region and
// endpoint (an http or https URL). What they leave open is as the AWS SDK has
// it: environment, shared files, roles. An endpoint on the machine itself, an
// emulator, needs neither region nor credentials; to any other, values go by
// https alone. Opening does no IO beyond the SDK's configuration files.
func Register(b *psych.Backends) {
	b.Secrets.Handle("ssm", func(ctx context.Context, u *url.URL) (psych.Secrets, error) { return open(ctx, u) })
}

func open(ctx context.Context, u *url.URL) (*Secrets, error) {
	params, err := psych.Params(u, "region", "endpoint")
	if err != nil {
		return nil, err
	}
	if u.Opaque != "" || u.User != nil || u.Host != "" || u.Fragment != "" || checkPrefix(u.Path) != nil {
		return nil, fmt.Errorf("ssm: %.300s: want ssm:///PREFIX, where PREFIX is up to 8 segments of [A-Za-z0-9_.-] with slashes between them that don't begin with aws or ssm, as in ssm:///psych: %w", u.Redacted(), psych.ErrInvalid)
	}
	local := false
	endpoint, hasEndpoint := params["endpoint"]
	if hasEndpoint {
		e, err := url.Parse(endpoint)
		if err == nil {
			ip := net.ParseIP(e.Hostname())
			local = e.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
		}
		if err != nil || e.Scheme != "https" && !(e.Scheme == "http" && local) || e.Host == "" || e.User != nil || e.RawQuery != "" || e.Fragment != "" {
			return nil, fmt.Errorf("ssm: endpoint %.200q: want an https URL, or an http URL on this machine: %w", endpoint, psych.ErrInvalid)
		}
	}
	load := []func(*config.LoadOptions) error{
		// Connections that idled over the freeze of a Lambda function are dead.
		config.WithHTTPClient(awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
			t.IdleConnTimeout = 30 * time.Second
			t.ResponseHeaderTimeout = 10 * time.Second
		})),
		config.WithLogger(logging.Nop{}), // it writes to standard error what is in the errors too
	}
	region, hasRegion := params["region"]
	if hasRegion {
		if region == "" {
			return nil, fmt.Errorf("ssm: %.300s has an empty region: %w", u.Redacted(), psych.ErrInvalid)
		}
		load = append(load, config.WithRegion(region))
	}
	if local && os.Getenv("AWS_ACCESS_KEY_ID") == "" {
		load = append(load, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("local", "local", "")))
	}
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, fmt.Errorf("ssm: configuration of the AWS SDK: %w", err)
	}
	if local {
		cfg.Region = cmp.Or(cfg.Region, "us-east-1")
	}
	if cfg.Region == "" {
		return nil, fmt.Errorf("ssm: %.300s names no region and the environment none: set AWS_REGION or add region=: %w", u.Redacted(), psych.ErrInvalid)
	}
	return New(ssm.NewFromConfig(cfg, func(o *ssm.Options) {
		if hasEndpoint {
			o.BaseEndpoint = &endpoint
		}
	}), u.Path, nil), nil
}
