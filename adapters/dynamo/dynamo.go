// Package dynamo is a [psych.Store] on one table of DynamoDB.
//
// # Items
//
// Names of attributes are short, since each item pays for them: p and s are the
// table's keys, v is the format of an item, 1.
//
//	a Run, p = r#TENANT#RUNID
//	  s = h           its header: o tenant, c created, pr principal, lb labels, ve Version, ic incarnation, rq request,
//	                  ex expires, st status, ep epoch, ow owner, un until, ct token of the claim, du due, dn nonce of a Defer, po posted
//	  s = h           or its tombstone: tb deleted, e expires (the table's TTL)
//	  s = gTIMEID     a note: k kind, t time, d data (z: compressed)
//	  s = lNSEQ       an append that begins at SEQ, N counts its digits (a: 1): k kinds, t times, w token, d data
//	a document, p = d#TENANT#SHA256
//	  s = 0, 1, …     its parts: d data, or z; n in the first says how many
//	refs, p = f#TENANT
//	  s = NAME        a ref: d document, n seq, u after
//
// Numbers that are times are microseconds since 1970. The index "due" lists by
// shard (g) and time (u) what a sweep should look at, the index "runs" a
// tenant's Runs (o, c). Both hold keys alone, and are believed in nothing: what
// they list is read from the table, consistently.
//
// # What it costs
//
// An append is one conditional PutItem and reads nothing. What an item holds is
// compressed (zstd, attribute z) where that saves a write unit. See
// docs/cost.md.
package dynamo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/psych-go/psych-go/psych"
)

var _ psych.Store = (*Store)(nil)

// Options of a [Store]. The zero value works; there are none yet.
type Options struct{}

// A Store is a [psych.Store] on one table. It keeps no state but its client.
type Store struct {
	client *dynamodb.Client
	table  string

	invalid error // what is wrong with the name of the table
}

// New returns a Store on a table, by its name or ARN, which [Store.Init]
// creates. It does no IO. With what can't be a name every method fails with
// [psych.ErrInvalid]. o may be nil.
func New(client *dynamodb.Client, table string, o *Options) *Store {
	s := &Store{client: client, table: table}
	if !isTable(table) && !(strings.HasPrefix(table, "arn:") && len(table) <= 1024) {
		s.invalid = fmt.Errorf("table %.200q: want 3 to 255 of a-z, A-Z, 0-9, _, . and -, or an ARN: %w", table, psych.ErrInvalid)
	}
	return s
}

// Attributes of keys and the sort keys that are not built of parts. Sort keys
// are chosen so that one Query reads the inbox with the header, and another the
// header with the log.
const (
	pk = "p"
	sk = "s"

	notePrefix = "g"
	headerKey  = "h"
	logPrefix  = "l"
	logEnd     = "m" // behind every append
)

// runPart is the partition of a Run. The id has one length, so that no two
// tenants meet, whatever characters theirs have.
func runPart(key psych.RunKey) string { return "r#" + key.Tenant + "#" + key.RunID }

// parseRunPart is the inverse of runPart.
func parseRunPart(p string) (psych.RunKey, bool) {
	rest, ok := strings.CutPrefix(p, "r#")
	i := len(rest) - 33
	if !ok || i < 0 || rest[i] != '#' {
		return psych.RunKey{}, false
	}
	key := psych.RunKey{Tenant: rest[:i], RunID: rest[i+1:]}
	return key, key.Check() == nil
}

// usable is what the methods without a key or tenant do first.
func (s *Store) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.invalid
}

// check is what every method that takes a key does first.
func (s *Store) check(ctx context.Context, key psych.RunKey) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return key.Check()
}

// checkTenant is check for the methods that take a tenant.
func (s *Store) checkTenant(ctx context.Context, tenant string) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return psych.CheckTenant(tenant)
}

func wrap(op string, key fmt.Stringer, err error) error {
	return fmt.Errorf("dynamo: %s %s: %w", op, key, err)
}

// micros is t as it is kept. Microseconds are cut off, so that comparing them
// with a time that is cut alike says the same as comparing the times.
func micros(t time.Time) int64 { return t.UnixMicro() }

func fromMicros(n int64) time.Time { return time.UnixMicro(n).UTC() }

// micro is t to the microsecond.
func micro(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// earliest is the earliest of times that are not zero; zero if all are.
func earliest(times ...time.Time) time.Time {
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
