package main

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"time"
)

// An issuer is one of tokens, with OpenID Connect discovery, on the loopback
// address.
type issuer struct {
	url    string
	key    *rsa.PrivateKey
	server http.Server
}

func newIssuer() (*issuer, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	i := &issuer{url: "http://" + l.Addr().String(), key: key}
	mux := http.NewServeMux()
	answer := func(path string, v any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			json.NewEncoder(w).Encode(v)
		})
	}
	answer("/.well-known/openid-configuration", map[string]any{"issuer": i.url, "jwks_uri": i.url + "/keys"})
	answer("/keys", map[string]any{"keys": []any{map[string]string{
		"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "1",
		"n": encoded(key.N.Bytes()), "e": encoded(big.NewInt(int64(key.E)).Bytes()),
	}}})
	i.server = http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go i.server.Serve(l)
	return i, nil
}

func (i *issuer) close() { i.server.Close() }

func encoded(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// token is one for an audience and a day, with claims that replace and add.
func (i *issuer) token(audience string, claims map[string]any) (string, error) {
	now := time.Now()
	all := map[string]any{"iss": i.url, "aud": audience, "iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(24 * time.Hour).Unix()}
	for k, v := range claims {
		all[k] = v
	}
	payload, err := json.Marshal(all)
	if err != nil {
		return "", err
	}
	signed := encoded([]byte(`{"alg":"RS256","kid":"1","typ":"JWT"}`)) + "." + encoded(payload)
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, i.key, crypto.SHA256, sum[:])
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	return signed + "." + encoded(signature), nil
}
