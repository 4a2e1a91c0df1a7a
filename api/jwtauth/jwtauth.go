// Package jwtauth is an Authenticator of the HTTP API for deployments without a
// gateway that verifies tokens: it verifies the JWT of each request itself, with
// the keys of an issuer or with keys that are given.
package jwtauth

import (
	"bytes"
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/psych-go/psych-go/api"
	"github.com/psych-go/psych-go/psych"
)

// algorithms are those of public keys; a shared secret is no identity.
var algorithms = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA}

// Options of an [Authenticator]. The zero value takes the tenant from the claim
// "tenant" and the principal from "sub".
type Options struct {
	Tenant    string // the claim that names the tenant
	Principal string // the claim that names the principal

	// Keys verify signatures in place of those at the JWKS URL: *rsa.PublicKey,
	// *ecdsa.PublicKey, ed25519.PublicKey.
	Keys []crypto.PublicKey

	// Client fetches keys. Nil: one that gives up after 10 s.
	Client *http.Client

	// Floor is the least time between two fetches, however many tokens come that
	// no known key signed. Zero: 30 s.
	Floor time.Duration

	Now func() time.Time // nil: time.Now
}

// An Authenticator is an [api.Authenticator] that verifies a bearer token: its
// signature by a public key, issuer, audience, expiry and not-before (with 5
// minutes for clocks that differ). Keys are fetched when a token comes that
// none of those known signed, and at the latest after an hour, so that a key that
// the issuer withdrew is believed no longer than that; where it can't be reached
// then, those known are believed on.
type Authenticator struct {
	verifier *oidc.IDTokenVerifier
	claims   api.Claims
}

var _ api.Authenticator = (*Authenticator)(nil)

// New makes an Authenticator for the tokens of one issuer that are for one
// audience. jwksURL, an https URL (http on the loopback address), is where the
// issuer publishes its keys; empty, Options.Keys must be there. It does no IO.
func New(issuer, audience, jwksURL string, o *Options) (*Authenticator, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	if issuer == "" || audience == "" {
		return nil, fmt.Errorf("jwtauth: New wants an issuer and an audience: %w", psych.ErrInvalid)
	}
	if (jwksURL == "") == (len(opts.Keys) == 0) {
		return nil, fmt.Errorf("jwtauth: want either a JWKS URL or Options.Keys: %w", psych.ErrInvalid)
	}
	var keys oidc.KeySet = &oidc.StaticKeySet{PublicKeys: opts.Keys}
	if jwksURL != "" {
		u, err := url.Parse(jwksURL)
		if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && !(u.Scheme == "http" && (u.Hostname() == "localhost" || u.Hostname() == "127.0.0.1" || u.Hostname() == "::1")) {
			return nil, fmt.Errorf("jwtauth: JWKS URL %.200q: want an https URL: %w", jwksURL, psych.ErrInvalid)
		}
		client := opts.Client
		if client == nil {
			client = &http.Client{Timeout: 10 * time.Second}
		}
		f := &fetcher{client: client, floor: opts.Floor}
		if f.floor <= 0 {
			f.floor = 30 * time.Second
		}
		now := opts.Now
		if now == nil {
			now = time.Now
		}
		keys = &remote{open: func() *oidc.RemoteKeySet {
			return oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), &http.Client{Transport: f}), jwksURL)
		}, now: now, floor: f.floor}
	}
	return &Authenticator{
		verifier: oidc.NewVerifier(issuer, keys, &oidc.Config{ClientID: audience, SupportedSigningAlgs: algorithms, Now: opts.Now}),
		claims:   api.Claims{Tenant: opts.Tenant, Principal: opts.Principal, Issuer: issuer, Audience: audience, Now: opts.Now},
	}, nil
}

// Authenticate implements api.Authenticator. Keys that can't be fetched are
// [psych.ErrUnavailable].
func (a *Authenticator) Authenticate(r *http.Request) (psych.Scope, error) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return psych.Scope{}, fmt.Errorf("jwtauth: %d credentials: %w", len(values), api.ErrUnauthenticated)
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return psych.Scope{}, fmt.Errorf("jwtauth: no bearer token: %w", api.ErrUnauthenticated)
	}
	var fetch error
	verified, err := a.verifier.Verify(context.WithValue(r.Context(), fetchKey{}, &fetch), token)
	switch {
	case fetch != nil:
		return psych.Scope{}, fmt.Errorf("jwtauth: fetch keys: %w: %w", psych.ErrUnavailable, fetch)
	case err != nil:
		return psych.Scope{}, fmt.Errorf("jwtauth: %w: %w", api.ErrUnauthenticated, err)
	}
	var claims map[string]any
	if err := verified.Claims(&claims); err != nil {
		return psych.Scope{}, fmt.Errorf("jwtauth: %w: %w", api.ErrUnauthenticated, err)
	}
	return a.claims.Scope(claims)
}

type fetchKey struct{}

// maxAge is how long keys are believed before they are fetched again.
const maxAge = time.Hour

// remote tells a failure to fetch keys from a signature that is wrong, and
// begins anew with keys that are old: an oidc.RemoteKeySet keeps those that it
// has until a token comes that none of them signed.
type remote struct {
	open  func() *oidc.RemoteKeySet
	now   func() time.Time
	floor time.Duration

	mu    sync.Mutex
	known *oidc.RemoteKeySet
	until time.Time // that known is believed
}

func (k *remote) VerifySignature(ctx context.Context, jwt string) ([]byte, error) {
	k.mu.Lock()
	keys, fresh := k.known, (*oidc.RemoteKeySet)(nil)
	now := k.now()
	switch {
	case keys == nil:
		keys = k.open()
		k.known, k.until = keys, now.Add(maxAge)
	case !now.Before(k.until):
		fresh = k.open()
		k.until = now.Add(k.floor) // others go on with those known meanwhile
	}
	k.mu.Unlock()
	if fresh != nil {
		payload, err := fresh.VerifySignature(ctx, jwt)
		if failed := (*fetchError)(nil); !errors.As(err, &failed) && ctx.Err() == nil {
			k.mu.Lock()
			k.known, k.until = fresh, now.Add(maxAge)
			k.mu.Unlock()
			return payload, err
		}
	}
	payload, err := keys.VerifySignature(ctx, jwt)
	var failed *fetchError
	if to, ok := ctx.Value(fetchKey{}).(*error); ok && errors.As(err, &failed) {
		*to = err
	}
	return payload, err
}

type fetchError struct{ err error }

func (e *fetchError) Error() string { return e.err.Error() }
func (e *fetchError) Unwrap() error { return e.err }

// A fetcher answers from what it fetched last, or with what failed then, until
// the floor is over: tokens that anybody makes up must not become requests to
// the issuer.
type fetcher struct {
	client *http.Client
	floor  time.Duration

	mu   sync.Mutex
	last time.Time
	body []byte
	err  error
}

// maxKeys bounds a document of keys, in bytes.
const maxKeys = 1 << 20

func (f *fetcher) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last.IsZero() || time.Since(f.last) >= f.floor {
		f.body, f.err = f.fetch(r)
		f.last = time.Now()
	}
	if f.err != nil {
		return nil, &fetchError{f.err}
	}
	return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(f.body)), Request: r}, nil
}

func (f *fetcher) fetch(r *http.Request) ([]byte, error) {
	resp, err := f.client.Do(r.Clone(r.Context()))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the issuer answered %s", resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxKeys+1))
	if err == nil && len(body) > maxKeys {
		err = fmt.Errorf("over %d bytes of keys", maxKeys)
	}
	if err != nil {
		return nil, err
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if json.Unmarshal(body, &set) != nil || len(set.Keys) == 0 { // a page of a proxy, for one
		return nil, fmt.Errorf("the issuer answered with %d bytes that are no keys", len(body))
	}
	return body, nil
}
