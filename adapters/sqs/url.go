package sqs

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/psych-go/psych-go/psych"
)

// Register makes sqs:QUEUE_URL a URL of Wakers, with the URL of a queue as AWS
// gives it behind the scheme: sqs:https://sqs.eu-central-1.amazonaws.com/123456789012/wakes.
// A host that is not that of SQS is the endpoint, an emulator's for one, and
// takes the parameter region. Credentials are as the AWS SDK has them; an
// emulator on the machine itself needs none.
func Register(b *psych.Backends) {
	b.Wakers.Handle("sqs", func(ctx context.Context, u *url.URL) (psych.Waker, error) { return open(ctx, u) })
}

func open(ctx context.Context, u *url.URL) (*Waker, error) {
	params, err := psych.Params(u, "region")
	if err != nil {
		return nil, err
	}
	q, err := url.Parse(u.Opaque)
	local := false
	if err == nil {
		ip := net.ParseIP(q.Hostname())
		local = q.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	}
	if err != nil || u.Opaque == "" || u.Fragment != "" || q.User != nil || q.RawQuery != "" || q.Host == "" || q.Scheme != "https" && !(q.Scheme == "http" && local) ||
		!isQueuePath(q.Path) {
		return nil, fmt.Errorf("sqs: %.300s: want sqs: and behind it the URL of a queue, as in sqs:https://sqs.eu-central-1.amazonaws.com/123456789012/wakes: %w", u.Redacted(), psych.ErrInvalid)
	}
	region, hasRegion := params["region"]
	if hasRegion && region == "" {
		return nil, fmt.Errorf("sqs: %.300s has an empty region: %w", u.Redacted(), psych.ErrInvalid)
	}
	own, isAWS := regionOf(q.Hostname())
	if isAWS {
		if hasRegion && region != own {
			return nil, fmt.Errorf("sqs: %.300s names two regions: %w", u.Redacted(), psych.ErrInvalid)
		}
		region = own
	}
	// Connections that idled over the freeze of a Lambda function are dead.
	client := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.IdleConnTimeout = 30 * time.Second
		t.ResponseHeaderTimeout = 10 * time.Second
	})
	options := []func(*config.LoadOptions) error{config.WithHTTPClient(client)}
	if region != "" {
		options = append(options, config.WithRegion(region))
	}
	if local && os.Getenv("AWS_ACCESS_KEY_ID") == "" {
		options = append(options, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("local", "local", "")))
	}
	cfg, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("sqs: configuration of the AWS SDK: %w", err)
	}
	if local {
		cfg.Region = cmp.Or(cfg.Region, "us-east-1")
	}
	if cfg.Region == "" {
		return nil, fmt.Errorf("sqs: %.300s names no region and the environment none: set AWS_REGION or add region=: %w", u.Redacted(), psych.ErrInvalid)
	}
	return New(sqs.NewFromConfig(cfg, func(o *sqs.Options) {
		if !isAWS {
			endpoint := q.Scheme + "://" + q.Host
			o.BaseEndpoint = &endpoint
		}
	}), q.String(), nil), nil
}

const (
	digits  = "0123456789"
	lower   = "abcdefghijklmnopqrstuvwxyz"
	letters = lower + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// isQueuePath reports whether path is an account and the name of a queue.
func isQueuePath(path string) bool {
	parts := strings.Split(path, "/")
	if len(parts) != 3 || parts[0] != "" {
		return false
	}
	account, name := parts[1], strings.TrimSuffix(parts[2], ".fifo")
	return len(account) == 12 && strings.Trim(account, digits) == "" &&
		name != "" && len(name) <= 80 && strings.Trim(name, letters+digits+"_-") == ""
}

// regionOf is the region that a host of SQS itself serves.
func regionOf(host string) (region string, ok bool) {
	service, rest, _ := strings.Cut(host, ".")
	region, domain, _ := strings.Cut(rest, ".")
	ok = (service == "sqs" || service == "sqs-fips") && region != "" && strings.Trim(region, lower+digits+"-") == "" &&
		slices.Contains([]string{"amazonaws.com", "amazonaws.com.cn", "api.aws"}, domain)
	return region, ok
}
