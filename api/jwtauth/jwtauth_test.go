package jwtauth_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/psych-go/psych-go/api"
	"github.com/psych-go/psych-go/api/jwtauth"
	"github.com/psych-go/psych-go/psych"
)

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// sign makes a JWT.
func sign(t *testing.T, k *ecdsa.PrivateKey, kid string, claims map[string]any) string {
	t.Helper()
	head, err := json.Marshal(map[string]any{"alg": "ES256", "kid": kid, "typ": "at+jwt"})
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed := b64(head) + "." + b64(body)
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, k, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return signed + "." + b64(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
}

func jwk(t *testing.T, k *ecdsa.PrivateKey, kid string) map[string]any {
	t.Helper()
	p, err := k.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return map[string]any{"kty": "EC", "crv": "P-256", "kid": kid, "use": "sig", "alg": "ES256", "x": b64(p[1:33]), "y": b64(p[33:])}
}

func claims(change map[string]any) map[string]any {
	c := map[string]any{"iss": "https://issuer", "aud": []string{"other", "psych"}, "sub": "p", "tenant": "t", "exp": time.Now().Add(time.Hour).Unix()}
	for k, v := range change {
		if c[k] = v; v == nil {
			delete(c, k)
		}
	}
	return c
}

func request(header ...string) *http.Request {
	r := httptest.NewRequest("GET", "/v1/runs", nil)
	r.Header["Authorization"] = header
	return r
}

func TestTokens(t *testing.T) {
	key, other := newKey(t), newKey(t)
	a, err := jwtauth.New("https://issuer", "psych", "", &jwtauth.Options{Keys: []crypto.PublicKey{&key.PublicKey}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := a.Authenticate(request("Bearer " + sign(t, key, "k", claims(nil))))
	if err != nil || s.Tenant != "t" || s.Principal != "p" {
		t.Fatalf("%+v, %v", s, err)
	}
	good := sign(t, key, "k", claims(nil))
	part := strings.Split(good, ".")
	none := b64([]byte(`{"alg":"none"}`)) + "." + part[1] + "."
	// The public key as a shared secret, which a verifier that trusts the
	// token's own algorithm would believe.
	public, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	confused := b64([]byte(`{"alg":"HS256"}`)) + "." + part[1]
	mac := hmac.New(sha256.New, public)
	mac.Write([]byte(confused))
	confused += "." + b64(mac.Sum(nil))
	for name, header := range map[string][]string{
		"none":             nil,
		"two":              {"Bearer " + good, "Bearer " + good},
		"another scheme":   {"Basic " + good},
		"no token":         {"Bearer "},
		"no JWT":           {"Bearer x.y.z"},
		"without a key":    {"Bearer " + none},
		"a shared secret":  {"Bearer " + confused},
		"another key":      {"Bearer " + sign(t, other, "k", claims(nil))},
		"another body":     {"Bearer " + part[0] + "." + b64([]byte(`{"iss":"https://issuer"}`)) + "." + part[2]},
		"expired":          {"Bearer " + sign(t, key, "k", claims(map[string]any{"exp": time.Now().Add(-time.Second).Unix()}))},
		"no expiry":        {"Bearer " + sign(t, key, "k", claims(map[string]any{"exp": nil}))},
		"not yet":          {"Bearer " + sign(t, key, "k", claims(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}))},
		"another issuer":   {"Bearer " + sign(t, key, "k", claims(map[string]any{"iss": "https://evil"}))},
		"another audience": {"Bearer " + sign(t, key, "k", claims(map[string]any{"aud": "other"}))},
		"no audience":      {"Bearer " + sign(t, key, "k", claims(map[string]any{"aud": nil}))},
		"no tenant":        {"Bearer " + sign(t, key, "k", claims(map[string]any{"tenant": nil}))},
		"an empty tenant":  {"Bearer " + sign(t, key, "k", claims(map[string]any{"tenant": ""}))},
		"many tenants":     {"Bearer " + sign(t, key, "k", claims(map[string]any{"tenant": []string{"t"}}))},
		"no subject":       {"Bearer " + sign(t, key, "k", claims(map[string]any{"sub": nil}))},
	} {
		if s, err := a.Authenticate(request(header...)); !errors.Is(err, api.ErrUnauthenticated) || s.Tenant != "" {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

// settled repeats what authenticates until it ends as is wanted: who comes just
// as a fetch ends shares what it ended with, or finds the keys of before.
func settled(want error, authenticate func() error) error {
	err := authenticate()
	for i := 0; i < 100_000 && !errors.Is(err, want); i++ {
		runtime.Gosched()
		err = authenticate()
	}
	return err
}

// Keys are fetched when they are needed, also those that replace others, and
// tokens that are made up don't become requests to the issuer.
func TestKeysOfAnIssuer(t *testing.T) {
	var fetched atomic.Int64
	var served atomic.Value
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fetched.Add(1)
		if served.Load() == nil {
			http.Error(w, "down", http.StatusInternalServerError)
			return
		}
		json.NewEncoder(w).Encode(map[string]any{"keys": []any{served.Load()}})
	}))
	defer issuer.Close()
	old, next := newKey(t), newKey(t)
	made := func(floor time.Duration) *jwtauth.Authenticator {
		a, err := jwtauth.New("https://issuer", "psych", issuer.URL, &jwtauth.Options{Floor: floor})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a := made(time.Nanosecond)
	if _, err := a.Authenticate(request("Bearer " + sign(t, old, "1", claims(nil)))); !errors.Is(err, psych.ErrUnavailable) || errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("an issuer that is down: %v", err)
	}
	served.Store(jwk(t, old, "1"))
	by := func(k *ecdsa.PrivateKey, kid string) func() error {
		token := sign(t, k, kid, claims(nil))
		return func() error {
			_, err := a.Authenticate(request("Bearer " + token))
			return err
		}
	}
	for range 3 {
		if err := settled(nil, by(old, "1")); err != nil {
			t.Fatal(err)
		}
	}
	if n := fetched.Load(); n != 2 {
		t.Errorf("%d fetches, want one more", n)
	}
	served.Store(jwk(t, next, "2"))
	if err := settled(nil, by(next, "2")); err != nil {
		t.Errorf("a new key: %v", err)
	}
	if err := settled(api.ErrUnauthenticated, by(old, "1")); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("a key that is gone: %v", err)
	}
	b := made(time.Hour)
	fetched.Store(0)
	for range 20 {
		if _, err := b.Authenticate(request("Bearer " + sign(t, newKey(t), "made up", claims(nil)))); !errors.Is(err, api.ErrUnauthenticated) {
			t.Fatal(err)
		}
	}
	if n := fetched.Load(); n != 1 {
		t.Errorf("20 made-up tokens are %d fetches", n)
	}
	if err := settled(nil, func() error {
		_, err := b.Authenticate(request("Bearer " + sign(t, next, "2", claims(nil))))
		return err
	}); err != nil {
		t.Errorf("known keys are believed meanwhile: %v", err)
	}
}

// A key that the issuer withdrew is believed for an hour at most, though no token
// comes that a new one signed; while it can't be reached, or answers with
// something else, those known are.
func TestKeysGrowOld(t *testing.T) {
	const down = "<html>We are back soon.</html>"
	old, next := newKey(t), newKey(t)
	body := func(keys ...map[string]any) string {
		b, err := json.Marshal(map[string]any{"keys": keys})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	var served atomic.Value
	var fetched atomic.Int64
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fetched.Add(1)
		io.WriteString(w, served.Load().(string))
	}))
	defer issuer.Close()
	now := time.Now()
	a, err := jwtauth.New("https://issuer", "psych", issuer.URL, &jwtauth.Options{Floor: time.Nanosecond, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	verify := func(k *ecdsa.PrivateKey, kid string) error {
		_, err := a.Authenticate(request("Bearer " + sign(t, k, kid, claims(map[string]any{"exp": now.Add(time.Hour).Unix()}))))
		return err
	}
	served.Store(down)
	if err := verify(old, "1"); !errors.Is(err, psych.ErrUnavailable) || errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("a page in place of keys: %v", err)
	}
	served.Store(body(jwk(t, old, "1"), jwk(t, next, "2")))
	if err := settled(nil, func() error { return verify(old, "1") }); err != nil {
		t.Fatal(err)
	}
	served.Store(down)
	now = now.Add(61 * time.Minute)
	if err := verify(old, "1"); err != nil {
		t.Errorf("an issuer that is down: %v", err)
	}
	served.Store(body(jwk(t, next, "2")))
	now = now.Add(61 * time.Minute)
	fetched.Store(0)
	if err := verify(old, "1"); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("a key that was withdrawn: %v", err)
	}
	for range 3 {
		if err := verify(next, "2"); err != nil {
			t.Error(err)
		}
	}
	if n := fetched.Load(); n != 1 {
		t.Errorf("%d fetches", n)
	}
}

func TestNew(t *testing.T) {
	key := newKey(t)
	keys := &jwtauth.Options{Keys: []crypto.PublicKey{&key.PublicKey}}
	for _, c := range []struct {
		issuer, audience, url string
		o                     *jwtauth.Options
	}{
		{"", "a", "https://i/keys", nil},
		{"i", "", "https://i/keys", nil},
		{"i", "a", "", nil},
		{"i", "a", "https://i/keys", keys},
		{"i", "a", "http://i/keys", nil},
		{"i", "a", "file:///keys", nil},
		{"i", "a", "https://", nil},
		{"i", "a", "https://user:password@i/keys", nil},
	} {
		if _, err := jwtauth.New(c.issuer, c.audience, c.url, c.o); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
