package dynamo

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
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/psych-go/psych-go/psych"
)

// Register makes dynamo://TABLE a URL of Stores, with the parameters region and
// endpoint (an http or https URL). What they leave open is as the AWS SDK has
// it: environment, shared files, roles. An endpoint on the machine itself, an
// emulator, needs neither region nor credentials.
func Register(b *psych.Backends) {
	b.Stores.Handle("dynamo", func(ctx context.Context, u *url.URL) (psych.Store, error) { return open(ctx, u) })
}

func open(ctx context.Context, u *url.URL) (*Store, error) {
	params, err := psych.Params(u, "region", "endpoint")
	if err != nil {
		return nil, err
	}
	if u.Opaque != "" || u.User != nil || u.Path != "" || u.Fragment != "" || !isTable(u.Host) {
		return nil, fmt.Errorf("dynamo: %.200s: want dynamo://TABLE, where TABLE is 3 to 255 of a-z, A-Z, 0-9, _, . and -: %w", u.Redacted(), psych.ErrInvalid)
	}
	local := false
	endpoint, hasEndpoint := params["endpoint"]
	if hasEndpoint {
		e, err := url.Parse(endpoint)
		if err != nil || e.Scheme != "http" && e.Scheme != "https" || e.Host == "" || e.User != nil || e.RawQuery != "" || e.Fragment != "" {
			return nil, fmt.Errorf("dynamo: endpoint %.200q: want an http or https URL: %w", endpoint, psych.ErrInvalid)
		}
		ip := net.ParseIP(e.Hostname())
		local = e.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	}
	// Connections that idled over the freeze of a Lambda function are dead.
	client := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.IdleConnTimeout = 30 * time.Second
		t.MaxIdleConnsPerHost = 100
		t.ResponseHeaderTimeout = 10 * time.Second // an endpoint that is silent is tried again
	})
	options := []func(*config.LoadOptions) error{config.WithHTTPClient(client)}
	region, hasRegion := params["region"]
	if hasRegion {
		if region == "" {
			return nil, fmt.Errorf("dynamo: %.200s has an empty region: %w", u.Redacted(), psych.ErrInvalid)
		}
		options = append(options, config.WithRegion(region))
	}
	if local && os.Getenv("AWS_ACCESS_KEY_ID") == "" {
		options = append(options, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("local", "local", "")))
	}
	cfg, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("dynamo: configuration of the AWS SDK: %w", err)
	}
	if local {
		cfg.Region = cmp.Or(cfg.Region, "us-east-1")
	}
	if cfg.Region == "" {
		return nil, fmt.Errorf("dynamo: %.200s names no region and the environment none: set AWS_REGION or add region=: %w", u.Redacted(), psych.ErrInvalid)
	}
	return New(dynamodb.NewFromConfig(cfg, func(o *dynamodb.Options) {
		if hasEndpoint {
			o.BaseEndpoint = &endpoint
		}
	}), u.Host, nil), nil
}

// isTable reports whether DynamoDB permits a table of that name.
func isTable(name string) bool {
	const legal = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
	return len(name) >= 3 && len(name) <= 255 && strings.Trim(name, legal) == ""
}
