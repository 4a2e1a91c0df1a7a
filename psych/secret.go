package psych

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"
	"sync"
)

const defaultSecretPrefix = "PSYCH_SECRET_"

// EnvSecrets takes credentials from environment variables, as getenv gives
// them: NAME is the value of PREFIX + NAME, where prefix is PSYCH_SECRET_ if it
// is "". Names are of [A-Za-z0-9_] and don't end in _URL, in any case. A
// variable that is not set or empty, and any other name, is ErrNotFound. Errors
// name variables and hold no values.
//
// The variable PREFIX + NAME + _URL, if set, says which servers NAME may be
// sent to: http or https URLs between spaces. A server must be at one of them,
// or below its path, behind a slash; any other, and a command, is
// ErrAccessDenied, and so is everything where the variable is malformed. Without
// it the credential goes wherever a Spec names it. Tenants are not told apart:
// where others write Specs, set it for each credential.
//
// Variables are read at every call. An Identity is made of name and value by
// PBKDF2 (4,096 rounds of SHA-256), and is the same in every process. Random
// tokens can't be found from it; a password that can be guessed can be, by
// whoever reads the store and tries long enough: use none.
func EnvSecrets(getenv func(string) string, prefix string) Secrets {
	if prefix == "" {
		prefix = defaultSecretPrefix
	}
	return &envSecrets{getenv: getenv, prefix: prefix, known: map[string]Secret{}}
}

// RegisterEnv makes env:// a URL of Secrets: [EnvSecrets] with the given getenv,
// whose prefix env://?prefix=X_ sets to X_.
func RegisterEnv(b *Backends, getenv func(string) string) {
	b.Secrets.Handle("env", func(_ context.Context, u *url.URL) (Secrets, error) {
		params, err := Params(u, "prefix")
		if err != nil {
			return nil, err
		}
		if u.Opaque != "" || u.User != nil || u.Host != "" || u.Path != "" || u.Fragment != "" {
			return nil, fmt.Errorf("psych: %s: want env:// or env://?prefix=PREFIX: %w", u.Redacted(), ErrInvalid)
		}
		prefix, given := params["prefix"]
		// An empty one would hand every variable of the process to Specs.
		if given && (!isEnvName(prefix) || prefix[0] >= '0' && prefix[0] <= '9') {
			return nil, fmt.Errorf("psych: %s: prefix is %.80q: want the beginning of a variable's name, of [A-Za-z0-9_], as in %s: %w", u.Redacted(), prefix, defaultSecretPrefix, ErrInvalid)
		}
		return EnvSecrets(getenv, prefix), nil
	})
}

type envSecrets struct {
	getenv func(string) string
	prefix string

	mu    sync.Mutex
	known map[string]Secret // by name, since an Identity is dear
}

var _ Secrets = (*envSecrets)(nil)

func (e *envSecrets) Secret(_ context.Context, r SecretRequest) (Secret, error) {
	if !isEnvName(r.Name) || strings.HasSuffix(strings.ToUpper(r.Name), "_URL") {
		return Secret{}, fmt.Errorf("psych: there is no credential %.80q: names are of [A-Za-z0-9_] and don't end in _URL: %w", r.Name, ErrNotFound)
	}
	variable := e.prefix + r.Name
	value := e.getenv(variable)
	if value == "" {
		return Secret{}, fmt.Errorf("psych: there is no credential %s: the environment variable %s is not set: %w", r.Name, variable, ErrNotFound)
	}
	if urls := e.getenv(variable + "_URL"); urls != "" {
		if err := r.CheckURLs(urls, "the environment variable "+variable+"_URL"); err != nil {
			return Secret{}, err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.known[r.Name]
	if s.Value != value {
		key, err := pbkdf2.Key(sha256.New, value, []byte("psych secret of the environment "+r.Name), 4096, 16)
		if err != nil {
			return Secret{}, fmt.Errorf("psych: identify the credential %s: %w", r.Name, err)
		}
		s = Secret{Value: value, Identity: hex.EncodeToString(key)}
		e.known[r.Name] = s
	}
	return s, nil
}

// CheckURLs returns nil if a credential for these servers may go where r says:
// urls are http or https URLs between spaces, and r.URL must be at one of them
// or below its path, behind a slash. Anything else, a command, and every URL
// where one of urls is malformed, is ErrAccessDenied. source says in the error
// what names the servers. Adapters of [Secrets] call it; the error holds no URL,
// since one may hold what is secret.
func (r SecretRequest) CheckURLs(urls, source string) error {
	allowed := false
	for i, s := range strings.Fields(urls) {
		p, err := parseURLPrefix(s)
		if err != nil {
			return fmt.Errorf("psych: the credential %s is sent nowhere: URL %d in %s %w: %w: %w", r.Name, i+1, source, err, ErrAccessDenied, ErrInvalid)
		}
		allowed = allowed || p.holds(r.URL)
	}
	switch {
	case allowed:
		return nil
	case r.URL == "":
		return fmt.Errorf("psych: the credential %s may not be given to a command: %s names the servers that it is for: %w", r.Name, source, ErrAccessDenied)
	}
	return fmt.Errorf("psych: the credential %s may not be sent to this server: %s names others: %w", r.Name, source, ErrAccessDenied)
}

func isEnvName(s string) bool {
	for _, c := range []byte(s) {
		if c != '_' && !('0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z') {
			return false
		}
	}
	return s != ""
}
