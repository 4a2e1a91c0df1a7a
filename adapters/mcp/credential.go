package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

// A credential is a psych.Secret taken apart.
type credential struct {
	headers map[string]string
	env     map[string]string
	values  []string // that no error may hold, the longest first
}

// parseCredential takes a Secret's value apart. Its errors hold nothing of it.
func parseCredential(secret string) (*credential, error) {
	c := &credential{}
	if secret == "" {
		return c, nil
	}
	var fields map[string]json.RawMessage
	isObject := json.Unmarshal([]byte(secret), &fields) == nil
	if isObject && (fields["headers"] != nil || fields["env"] != nil) {
		for name, to := range map[string]*map[string]string{"headers": &c.headers, "env": &c.env} {
			if fields[name] != nil && json.Unmarshal(fields[name], to) != nil {
				return nil, fmt.Errorf("the credential's %q is no JSON object of strings: %w", name, psych.ErrInvalid)
			}
		}
	} else {
		c.headers = map[string]string{"Authorization": "Bearer " + secret}
	}
	for name, value := range c.headers {
		if !isToken(name) || !isHeaderValue(value) {
			return nil, fmt.Errorf("the credential's header %.80q can't be sent: want a header's name, and a value without line breaks and control characters: %w", name, psych.ErrInvalid)
		}
	}
	for name, value := range c.env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return nil, fmt.Errorf("the credential's variable %.80q can't be set: want a name without =, and no NUL: %w", name, psych.ErrInvalid)
		}
	}
	values := slices.Collect(maps.Values(c.headers))
	for name, value := range c.env {
		// A folder that everybody knows is no secret, though a file may name it.
		if !slices.Contains(CommandEnv, name) || value != os.Getenv(name) {
			values = append(values, value)
		}
	}
	c.values = hidden(secret, values)
	return c, nil
}

// hidden are the strings by which a secret could be told: values, what follows
// a scheme ("Bearer …"), lines of those that have several, and how JSON and URLs
// write them.
func hidden(secret string, of []string) []string {
	values := []string{secret}
	for _, v := range of {
		values = append(values, v)
		if _, rest, ok := strings.Cut(v, " "); ok {
			values = append(values, strings.TrimSpace(rest))
		}
		values = append(values, strings.Split(v, "\n")...)
	}
	for _, v := range slices.Clone(values) {
		if quoted, err := json.Marshal(v); err == nil {
			values = append(values, strings.Trim(string(quoted), `"`))
		}
		values = append(values, url.QueryEscape(v))
	}
	// Shorter ones stand in everything, and tell nobody anything.
	values = slices.DeleteFunc(values, func(v string) bool { return len(v) < 4 })
	slices.SortFunc(values, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	return slices.Compact(values)
}

// hide takes the secret, and the session's id, out of a text.
func (s *session) hide(text string) string {
	for _, v := range s.hidden {
		text = strings.ReplaceAll(text, v, "[secret]")
	}
	if id := s.id.Load(); id != nil && len(*id) >= 4 {
		text = strings.ReplaceAll(text, *id, "[session]")
	}
	return strings.ToValidUTF8(text, "\ufffd")
}

// own reports whether a header is the protocol's or the transport's, and never
// a credential's.
func own(name string) bool {
	switch name = http.CanonicalHeaderKey(name); name {
	case "Accept", "Accept-Encoding", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Host", "Keep-Alive",
		"Last-Event-Id", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return strings.HasPrefix(name, "Mcp-")
}

func isToken(s string) bool {
	for _, c := range []byte(s) {
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return s != ""
}

func isHeaderValue(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

var reference = lazily(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// fill puts the values of env into the references of an argument.
func fill(arg string, env map[string]string) string {
	return reference().ReplaceAllStringFunc(arg, func(ref string) string {
		if v, ok := env[ref[2:len(ref)-1]]; ok {
			return v
		}
		return ref
	})
}

// clip is at most n bytes of s, of whole characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// isNull reports whether a value is absent or null.
func isNull(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) == 0 || string(raw) == "null"
}

// lazily compiles an expression when it is first asked for: what few processes
// need costs the start of none.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
