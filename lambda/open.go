package lambda

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// Ports are what a function works with, opened once as it begins.
type Ports struct {
	Runtime  *psych.Runtime
	Store    psych.Store
	Returner Returner // of the queue of wakes; nil if it has none
}

const maxRetentionDays = 36500

// Open opens what the environment names, as psych.Backends.FromEnv does, and
// gives the ports that handlers need beside the Runtime. It is for a main. A
// variable is not looked at where b has no scheme for its port at all, so that
// functions of one deployment share an environment and link what they need.
// PSYCH_RETENTION_DAYS is Options.Retention where that is zero: Runs are kept so
// many days from their creation; 0 or unset, for ever. PSYCH_POLICY_FILE is the
// file of a psych.FilePolicy where Options.Policy is nil; one that is broken is
// an error here already, rather than at every call of a tool.
func Open(ctx context.Context, b *psych.Backends, getenv func(string) string, o *psych.Options) (*Ports, error) {
	var opts psych.Options
	if o != nil {
		opts = *o
	}
	env := getenv
	getenv = func(name string) string {
		for port, schemes := range map[string][]string{"PSYCH_BLOB_URL": b.Blobs.Schemes(), "PSYCH_WAKER_URL": b.Wakers.Schemes(), "PSYCH_SECRETS_URL": b.Secrets.Schemes()} {
			if name == port && len(schemes) == 0 {
				return ""
			}
		}
		return env(name)
	}
	if days := getenv("PSYCH_RETENTION_DAYS"); opts.Retention == 0 && days != "" {
		n, err := strconv.ParseUint(days, 10, 64)
		if err != nil || n > maxRetentionDays {
			return nil, fmt.Errorf("lambda: PSYCH_RETENTION_DAYS is %.40q: want a whole number from 0 to %d: %w", days, maxRetentionDays, psych.ErrInvalid)
		}
		opts.Retention = time.Duration(n) * 24 * time.Hour
	}
	if file := getenv("PSYCH_POLICY_FILE"); opts.Policy == nil && file != "" {
		opts.Policy = psych.FilePolicy(file)
		if _, err := opts.Policy.Filter(ctx, psych.Scope{Tenant: "check"}); err != nil {
			return nil, fmt.Errorf("lambda: PSYCH_POLICY_FILE: %w", err)
		}
	}
	u := getenv("PSYCH_STORE_URL")
	if u == "" {
		return nil, fmt.Errorf("lambda: PSYCH_STORE_URL is not set: %w", psych.ErrInvalid)
	}
	store, err := b.Stores.Open(ctx, u)
	if err != nil {
		return nil, fmt.Errorf("lambda: PSYCH_STORE_URL: %w", err)
	}
	p := &Ports{Store: store}
	if u := getenv("PSYCH_WAKER_URL"); opts.Waker == nil && u != "" {
		if opts.Waker, err = b.Wakers.Open(ctx, u); err != nil {
			return nil, fmt.Errorf("lambda: PSYCH_WAKER_URL: %w", err)
		}
	}
	if opts.Waker != nil {
		p.Returner, _ = psych.As[Returner](opts.Waker)
	}
	if p.Runtime, err = b.FromEnv(ctx, getenv, store, &opts); err != nil {
		return nil, err
	}
	return p, nil
}
