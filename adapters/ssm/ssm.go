// Package ssm is a [psych.Secrets] on the Parameter Store of AWS Systems
// Manager.
//
// # Where a credential is
//
// The credential NAME of a tenant is the first of these parameters that there
// is, below the prefix that [New] is given:
//
//	PREFIX/tenant/TENANT/NAME   of that tenant alone
//	PREFIX/shared/NAME          of all tenants
//
// It must be a SecureString. A tenant is part of every name, so that no Spec
// reaches what is another tenant's: in TENANT each byte that is none of
// [A-Za-z0-9.-] is _ and two hexadecimal digits, as in a_2Fb for a/b ([Escape]).
// NAME is 1 to 128 of [A-Za-z0-9_.-]; any other is [psych.ErrNotFound].
//
// Beside it, the parameter .../NAME/url says which servers the credential may be
// sent to, as [psych.SecretRequest.CheckURLs] has it: http or https URLs between
// spaces. A tenant's own goes, without one, wherever its Specs name it; a shared
// one goes nowhere, since whoever publishes a Spec chooses the URL.
//
// # What is asked for, and when
//
// One credential is one GetParameters request: the role needs
// ssm:GetParameters on the parameters below the prefix, and kms:Decrypt on the
// key that encrypts them if that is one of your own. What it answers is kept for
// [Options].TTL; a credential that a server refused is looked up anew, so that
// one that was rotated is found at once. That there is none is not kept.
//
// The Identity of a credential is made of the parameter's ARN, version and time
// of change: not of the value, and the same in every process.
package ssm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/ssm/types"
	"github.com/aws/smithy-go"

	"github.com/psych-go/psych-go/psych"
)

var _ psych.Secrets = (*Secrets)(nil)

const (
	defaultTTL = time.Minute
	maxKept    = 1000 // credentials
)

// Options of [Secrets]. The zero value works.
type Options struct {
	// TTL is how long what the store answered is kept. 0 is a minute; below 0
	// nothing is kept.
	TTL time.Duration
}

// Secrets are credentials in a Parameter Store.
type Secrets struct {
	client *ssm.Client
	prefix string // "/psych"
	ttl    time.Duration
	now    func() time.Time

	bad error // what is wrong with the prefix

	mu   sync.Mutex
	kept map[address]kept
}

// An address is of a credential.
type address struct{ tenant, name string }

type kept struct {
	credential
	until time.Time
}

// New returns Secrets below a prefix: up to 8 segments of [A-Za-z0-9_.-], each
// behind a slash, up to 300 bytes in all, that don't begin with aws or ssm, as
// in /psych. It does no IO. With any other prefix every call fails with
// [psych.ErrInvalid]. o may be nil.
func New(client *ssm.Client, prefix string, o *Options) *Secrets {
	s := &Secrets{client: client, prefix: prefix, ttl: defaultTTL, now: time.Now, bad: checkPrefix(prefix), kept: map[address]kept{}}
	if o != nil && o.TTL != 0 {
		s.ttl = o.TTL
	}
	return s
}

func checkPrefix(prefix string) error {
	segments := strings.Split(prefix, "/")
	legal := len(prefix) <= 300 && segments[0] == "" && len(segments) >= 2 && len(segments) <= 9
	for i, segment := range segments[1:] {
		lower := strings.ToLower(segment)
		legal = legal && isName(segment) && !(i == 0 && (strings.HasPrefix(lower, "aws") || strings.HasPrefix(lower, "ssm")))
	}
	if !legal {
		return fmt.Errorf("ssm: prefix %.80q: want up to 8 segments of [A-Za-z0-9_.-], each behind a slash, up to 300 bytes in all, that don't begin with aws or ssm, as in /psych: %w", prefix, psych.ErrInvalid)
	}
	return nil
}

const (
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

	maxName = 128
)

func isName(s string) bool { return s != "" && strings.Trim(s, letters+"_.-") == "" }

// Escape is a tenant as it stands in the name of a parameter. No two tenants
// have the same one.
func Escape(tenant string) string {
	var b strings.Builder
	for _, c := range []byte(tenant) {
		if strings.IndexByte(letters+".-", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02X", c)
		}
	}
	return b.String()
}

// A credential is one as the store has it.
type credential struct {
	psych.Secret
	parameter string
	urls      string // "": none are named
	shared    bool
}

// Secret implements [psych.Secrets]. Errors name parameters and hold no values.
func (s *Secrets) Secret(ctx context.Context, r psych.SecretRequest) (psych.Secret, error) {
	if s.bad != nil {
		return psych.Secret{}, s.bad
	}
	if err := psych.CheckTenant(r.Scope.Tenant); err != nil {
		return psych.Secret{}, fmt.Errorf("ssm: %w", err)
	}
	if !isName(r.Name) || len(r.Name) > maxName {
		return psych.Secret{}, fmt.Errorf("ssm: there is no credential %.80q: names are of [A-Za-z0-9_.-]: %w", r.Name, psych.ErrNotFound)
	}
	c, err := s.find(ctx, address{r.Scope.Tenant, r.Name}, r.Stale != "")
	if err != nil {
		return psych.Secret{}, err
	}
	if c.urls == "" && c.shared {
		return psych.Secret{}, fmt.Errorf("ssm: the credential %s is sent nowhere: it is of all tenants, and there is no parameter %s/url that names the servers it is for: %w", r.Name, c.parameter, psych.ErrAccessDenied)
	}
	if c.urls != "" {
		if err := r.CheckURLs(c.urls, "the parameter "+c.parameter+"/url"); err != nil {
			return psych.Secret{}, fmt.Errorf("ssm: %w", err)
		}
	}
	return c.Secret, nil
}

// find returns a credential that is kept, or, past what is kept, that the store
// has.
func (s *Secrets) find(ctx context.Context, a address, anew bool) (credential, error) {
	now := s.now().Round(0) // of the wall clock, which a frozen process does not stop
	s.mu.Lock()
	k, ok := s.kept[a]
	s.mu.Unlock()
	if ok && !anew && now.Before(k.until) {
		return k.credential, nil
	}
	c, err := s.read(ctx, a)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if errors.Is(err, psych.ErrNotFound) {
			delete(s.kept, a)
		}
		return credential{}, err
	}
	if s.ttl > 0 {
		if len(s.kept) >= maxKept {
			clear(s.kept)
		}
		s.kept[a] = kept{c, now.Add(s.ttl)}
	}
	return c, nil
}

func (s *Secrets) read(ctx context.Context, a address) (credential, error) {
	own, shared := s.prefix+"/tenant/"+Escape(a.tenant)+"/"+a.name, s.prefix+"/shared/"+a.name
	out, err := s.client.GetParameters(ctx, &ssm.GetParametersInput{
		Names: []string{own, own + "/url", shared, shared + "/url"}, WithDecryption: aws.Bool(true),
	})
	if err != nil {
		return credential{}, fmt.Errorf("ssm: look up the credential %s: %w", a.name, s.classify(ctx, err))
	}
	found := map[string]types.Parameter{}
	for _, p := range out.Parameters {
		found[aws.ToString(p.Name)] = p
	}
	for _, name := range []string{own, shared} {
		p, ok := found[name]
		if !ok {
			continue
		}
		if p.Type != types.ParameterTypeSecureString {
			return credential{}, fmt.Errorf("ssm: the parameter %s is a %s: store a credential as a SecureString: %w", name, p.Type, psych.ErrInvalid)
		}
		c := credential{Secret: psych.Secret{Value: aws.ToString(p.Value), Identity: identity(p)}, parameter: name, shared: name == shared}
		if u, ok := found[name+"/url"]; ok {
			// One of no URL at all lets it go nowhere.
			c.urls = " " + aws.ToString(u.Value)
		}
		return c, nil
	}
	return credential{}, fmt.Errorf("ssm: there is no credential %s: the region has neither the parameter %s nor %s: %w", a.name, own, shared, psych.ErrNotFound)
}

func identity(p types.Parameter) string {
	changed := int64(0)
	if p.LastModifiedDate != nil { // a parameter that was deleted and made anew begins at version 1 again
		changed = p.LastModifiedDate.UnixMicro()
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "psych secret of the parameter store\x00%s\x00%d\x00%d", aws.ToString(p.ARN), p.Version, changed))
	return hex.EncodeToString(sum[:16])
}

var retryable = retry.IsErrorRetryables(retry.DefaultRetryables)

// classify makes an error of the SDK one of psych's where there is one for it,
// and says of others what to do.
func (s *Secrets) classify(ctx context.Context, err error) error {
	var api smithy.APIError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w: %w", psych.ErrUnavailable, ctx.Err(), err)
	case retryable.IsErrorRetryable(err).Bool():
		return fmt.Errorf("%w: %w", psych.ErrUnavailable, err)
	case errors.As(err, &api):
		switch api.ErrorCode() {
		case "AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException", "InvalidSignatureException", "InvalidKeyId", "KMSInvalidStateException":
			return fmt.Errorf("the credentials of AWS are refused: check that they are current, and permit ssm:GetParameters on the parameters below %s and kms:Decrypt on their key: %w", s.prefix, err)
		}
	}
	return err
}
