package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// Errors of an [Authenticator].
var (
	ErrUnauthenticated = errors.New("api: unauthenticated") // no credential, or one that proves nothing
	ErrForbidden       = errors.New("api: forbidden")       // whoever it is, not from there
)

// An Authenticator says whom a request is for, by a credential that it has
// verified. It is called once a request, concurrently, before the body is read,
// and does not read it.
//
// A request without a valid credential must be an error matching
// [ErrUnauthenticated], which the client is told without its reason; one that
// may not be made at all, an error matching [ErrForbidden], whose text the
// client is told. Any other error is the server's own.
type Authenticator interface {
	Authenticate(r *http.Request) (psych.Scope, error)
}

// Loopback is an Authenticator for one person's own machine: every request is
// for one Scope, if it comes from the machine itself, to a name of its loopback
// address, and not from a page of another site in a browser.
func Loopback(s psych.Scope) Authenticator {
	return &loopback{s, http.NewCrossOriginProtection()}
}

type loopback struct {
	scope  psych.Scope
	origin *http.CrossOriginProtection
}

func (l *loopback) Authenticate(r *http.Request) (psych.Scope, error) {
	if !isLoopback(r.RemoteAddr) {
		return psych.Scope{}, fmt.Errorf("requests are taken from this machine alone: %w", ErrForbidden)
	}
	// A page of another site reaches this server by a name of its own that
	// resolves to the loopback address.
	if !isLoopback(r.Host) {
		return psych.Scope{}, fmt.Errorf("the host %.80q is no name of this machine's loopback address: %w", r.Host, ErrForbidden)
	}
	if err := l.origin.Check(r); err != nil {
		return psych.Scope{}, fmt.Errorf("a page of another site may not do this: %w", ErrForbidden)
	}
	return l.scope, nil
}

// isLoopback reports whether addr, with a port or without, is of the loopback
// interface.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(addr, "["), "]")
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Claims says which claims of a verified token name a Scope. The zero value
// takes the tenant from "tenant" and the principal from "sub".
type Claims struct {
	Tenant    string // the claim that names the tenant
	Principal string // the claim that names the principal; it must be there

	// Issuer and Audience, where they are not empty, must be those of the token.
	Issuer, Audience string

	Now func() time.Time // nil: time.Now
}

type claimsKey struct{}

// WithClaims gives a request the claims of a token that a gateway has verified.
// [Claims] is the Authenticator that reads them.
func WithClaims(ctx context.Context, claims map[string]any) context.Context {
	return context.WithValue(ctx, claimsKey{}, claims)
}

// Authenticate implements Authenticator on the claims of [WithClaims]; what a
// client sends is not looked at.
func (c Claims) Authenticate(r *http.Request) (psych.Scope, error) {
	claims, _ := r.Context().Value(claimsKey{}).(map[string]any)
	if claims == nil {
		return psych.Scope{}, fmt.Errorf("the gateway verified no token: %w", ErrUnauthenticated)
	}
	return c.Scope(claims)
}

// Scope reads the Scope from verified claims. Claims that name no legal tenant
// and principal, that have expired, or are another issuer's or for another
// audience, are an error matching [ErrUnauthenticated]. Numbers may be strings,
// as gateways write them.
func (c Claims) Scope(claims map[string]any) (psych.Scope, error) {
	bad := func(format string, args ...any) (psych.Scope, error) {
		return psych.Scope{}, fmt.Errorf(format+": %w", append(args, ErrUnauthenticated)...)
	}
	now := time.Now
	if c.Now != nil {
		now = c.Now
	}
	if v, ok := claims["exp"]; ok {
		exp, err := seconds(v)
		if err != nil || !now().Before(exp) {
			return bad("the token has expired, or says nothing legible of when")
		}
	}
	if c.Issuer != "" && claims["iss"] != c.Issuer {
		return bad("the token is of another issuer")
	}
	if c.Audience != "" && !slices.Contains(audiences(claims["aud"]), c.Audience) {
		return bad("the token is for another audience")
	}
	var s psych.Scope
	for _, part := range []struct {
		claim, fallback string
		to              *string
	}{{c.Tenant, "tenant", &s.Tenant}, {c.Principal, "sub", &s.Principal}} {
		name := part.claim
		if name == "" {
			name = part.fallback
		}
		v, ok := claims[name].(string)
		// A gateway that passes claims on as strings writes an array so.
		if !ok || strings.HasPrefix(v, "[") && strings.HasSuffix(v, "]") || psych.CheckTenant(v) != nil {
			return bad("the claim %q is no text of 1 to 128 bytes", name)
		}
		*part.to = v
	}
	return s, nil
}

// seconds reads a time of a token.
func seconds(v any) (time.Time, error) {
	var n float64
	var err error
	switch v := v.(type) {
	case float64:
		n = v
	case json.Number:
		n, err = v.Float64()
	case string:
		n, err = strconv.ParseFloat(v, 64)
	default:
		err = errors.New("no number")
	}
	if err != nil || !(n >= 0 && n < 1<<40) {
		return time.Time{}, fmt.Errorf("api: time %.40q of a token: %w", fmt.Sprint(v), psych.ErrInvalid)
	}
	return time.Unix(int64(n), 0), nil
}

// audiences are those of a claim: a text, an array, or an array as a gateway
// writes it.
func audiences(v any) []string {
	switch v := v.(type) {
	case string:
		if in, ok := strings.CutPrefix(v, "["); ok && strings.HasSuffix(in, "]") {
			return strings.FieldsFunc(strings.TrimSuffix(in, "]"), func(r rune) bool { return r == ' ' || r == ',' })
		}
		return []string{v}
	case []any:
		var all []string
		for _, x := range v {
			if s, ok := x.(string); ok {
				all = append(all, s)
			}
		}
		return all
	}
	return nil
}
