package psych

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych/internal/strictjson"
)

// FilePolicy is a Policy that a file states, in JSON:
//
//	{
//	  "tenants": {
//	    "acme": {
//	      "allow": ["github/*", "files/read_*"],
//	      "deny": ["*/delete_*"],
//	      "urls": ["https://mcp.example.com/", "https://tools.example.com/acme"],
//	      "commands": true
//	    }
//	  },
//	  "others": {"allow": ["*"], "urls": ["https://mcp.example.com/public"]}
//	}
//
// A tenant has the rule of its name, and that alone; one that is not named has
// that of "others", and without such a rule nothing is permitted to it.
//
// A pattern is CONNECTION/TOOL, or * for all tools of all connections. What
// stands before the first slash is matched against the connection's name, the
// rest against the name that the server itself gives its tool. In both, *
// stands for any run of characters, also none and also of slashes, and ? for
// one character; all else, case too, for itself. What no pattern of "allow"
// matches is not permitted, and what one of "deny" matches isn't either.
// "allow" must be there; an empty one permits nothing.
//
// Whoever writes a Spec chooses the names of its connections, so names alone
// say nothing of what is behind them. "urls" limits a rule to servers at these
// http or https URLs: of the same scheme, host and port, with the same path or
// one that goes on behind a slash. Without "urls" it is any server, with an
// empty list none. Connections that run a command are permitted by
// "commands": true alone.
//
// Asked for the tool "", the Permit reports whether there may be tools of that
// connection that it permits: whether to connect at all.
//
// The file is read at every Filter, so that what it withdraws is withdrawn
// from the next call on; replace it by renaming another to its name, so that
// no reader sees half of it. One that can't be read, or holds anything but the
// above, permits nothing: Filter's error then matches ErrAccessDenied and, for
// what the file holds, ErrInvalid.
func FilePolicy(path string) Policy { return &filePolicy{path: path} }

type filePolicy struct {
	path string
	last atomic.Pointer[policyFile]
}

var _ Policy = (*filePolicy)(nil)

// A policyFile is what a file of these bytes says.
type policyFile struct {
	data    []byte
	tenants map[string]*policyRule
	others  *policyRule // nil: nothing is permitted
}

type policyRule struct {
	allow, deny []policyPattern
	urls        []urlPrefix
	anyURL      bool
	commands    bool
}

type policyPattern struct{ connection, tool string }

func (p *filePolicy) Filter(_ context.Context, s Scope) (Permit, error) {
	data, err := os.ReadFile(p.path)
	if err != nil {
		return nil, fmt.Errorf("psych: the policy can't be read, so nothing is permitted: %w: %w", ErrAccessDenied, err)
	}
	f := p.last.Load()
	if f == nil || !bytes.Equal(f.data, data) {
		if f, err = parsePolicy(data); err != nil {
			return nil, fmt.Errorf("psych: the policy in %s is broken, so nothing is permitted: %w: %w: %w", p.path, ErrAccessDenied, ErrInvalid, err)
		}
		p.last.Store(f)
	}
	rule := f.tenants[s.Tenant]
	if rule == nil {
		rule = f.others
	}
	return rule.permit, nil
}

// permit is a Permit; that of nil permits nothing.
func (r *policyRule) permit(c *Connection, tool string) bool {
	if r == nil || c.URL == "" && len(c.Command) == 0 || len(c.Command) > 0 && !r.commands {
		return false
	}
	if c.URL != "" && !r.anyURL && !slices.ContainsFunc(r.urls, func(u urlPrefix) bool { return u.holds(c.URL) }) {
		return false
	}
	if tool == "" {
		return slices.ContainsFunc(r.allow, func(p policyPattern) bool { return matchPattern(p.connection, c.Name) }) &&
			!slices.ContainsFunc(r.deny, func(p policyPattern) bool {
				return strings.Trim(p.tool, "*") == "" && p.tool != "" && matchPattern(p.connection, c.Name)
			})
	}
	matches := func(p policyPattern) bool { return matchPattern(p.connection, c.Name) && matchPattern(p.tool, tool) }
	return slices.ContainsFunc(r.allow, matches) && !slices.ContainsFunc(r.deny, matches)
}

func parsePolicy(data []byte) (*policyFile, error) {
	// Lists are read apart, since null and an absent one are not the same here:
	// what a template left empty must not permit every URL.
	type rule struct {
		Allow    json.RawMessage `json:"allow"`
		Deny     json.RawMessage `json:"deny"`
		URLs     json.RawMessage `json:"urls"`
		Commands bool            `json:"commands"`
	}
	var in struct {
		Tenants map[string]rule `json:"tenants"`
		Others  *rule           `json:"others"`
	}
	if err := strictjson.Decode(data, &in); err != nil {
		return nil, err
	}
	var errs []error
	list := func(path string, raw json.RawMessage) []string {
		var l *[]string
		if raw == nil {
			return nil
		}
		if err := strictjson.Decode(raw, &l); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		} else if l == nil {
			errs = append(errs, fmt.Errorf("%s is null: want a list, or leave it out", path))
		} else {
			return *l
		}
		return nil
	}
	patterns := func(path string, raw json.RawMessage) []policyPattern {
		var ps []policyPattern
		for i, s := range list(path, raw) {
			connection, tool, ok := strings.Cut(s, "/")
			switch {
			case s == "*":
				connection, tool = "*", "*"
			case !ok || connection == "" || tool == "":
				errs = append(errs, fmt.Errorf(`%s is %.200q: want CONNECTION/TOOL, as in "*/delete_*"`, strictjson.Index(path, i), s))
			}
			ps = append(ps, policyPattern{connection, tool})
		}
		return ps
	}
	parse := func(path string, r rule) *policyRule {
		if r.Allow == nil {
			errs = append(errs, fmt.Errorf(`%s has no "allow": want ["*"] where all is permitted`, path))
		}
		p := &policyRule{
			allow: patterns(strictjson.Key(path, "allow"), r.Allow),
			deny:  patterns(strictjson.Key(path, "deny"), r.Deny), anyURL: r.URLs == nil, commands: r.Commands,
		}
		path = strictjson.Key(path, "urls")
		for i, s := range list(path, r.URLs) {
			u, err := parseURLPrefix(s)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s %w", strictjson.Index(path, i), err))
			}
			p.urls = append(p.urls, u)
		}
		return p
	}
	f := &policyFile{data: data, tenants: make(map[string]*policyRule, len(in.Tenants))}
	for _, tenant := range slices.Sorted(maps.Keys(in.Tenants)) {
		if err := CheckTenant(tenant); err != nil {
			errs = append(errs, err)
		}
		f.tenants[tenant] = parse(strictjson.Key("tenants", tenant), in.Tenants[tenant])
	}
	if in.Others != nil {
		f.others = parse("others", *in.Others)
	}
	return f, errors.Join(errs...)
}

// matchPattern reports whether all of name is of the pattern, in which * is any
// run of characters and ? any one. It goes back to the last * alone, so that
// its time is bounded by the product of the lengths.
func matchPattern(pattern, name string) bool {
	p, n := 0, 0
	star, from := -1, 0 // the last *, and where in name what stands behind it is tried
	for n < len(name) {
		if p < len(pattern) {
			switch c := pattern[p]; {
			case c == '*':
				star, from = p, n
				p++
				continue
			case c == '?':
				_, size := utf8.DecodeRuneInString(name[n:])
				p, n = p+1, n+size
				continue
			case c == name[n]:
				p, n = p+1, n+1
				continue
			}
		}
		if star < 0 {
			return false
		}
		_, size := utf8.DecodeRuneInString(name[from:])
		from += size
		p, n = star+1, from
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// A urlPrefix is an origin and a path, of which a URL may be.
type urlPrefix struct{ scheme, host, port, path string }

// parseURLPrefix reads a prefix. Its error begins with a verb, and does not
// repeat the URL.
func parseURLPrefix(s string) (urlPrefix, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return urlPrefix{}, errors.New("is no absolute URL of http or https")
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return urlPrefix{}, errors.New("has a user, a query or a fragment: want scheme, host and path alone")
	}
	p, ok := locate(u)
	if !ok {
		return urlPrefix{}, errors.New("has a host outside ASCII (write it as xn--…), or a path with . or .. or an escaped slash")
	}
	p.path = strings.TrimRight(p.path, "/")
	return p, nil
}

// holds reports whether rawURL is p, or lies below it.
func (p urlPrefix) holds(rawURL string) bool {
	u, err := url.Parse(rawURL)
	if err != nil || u.User != nil {
		return false
	}
	l, ok := locate(u)
	if !ok || l.scheme != p.scheme || l.host != p.host || l.port != p.port {
		return false
	}
	rest, ok := strings.CutPrefix(l.path, p.path)
	return ok && (rest == "" || rest[0] == '/')
}

// locate tells where u is, and false where servers might not agree on it:
// whether a path lies below another must not depend on who reads it.
func locate(u *url.URL) (urlPrefix, bool) {
	l := urlPrefix{u.Scheme, strings.ToLower(u.Hostname()), u.Port(), u.Path}
	if l.port == "" {
		l.port = map[string]string{"http": "80", "https": "443"}[l.scheme]
	}
	if l.port == "" || strings.ContainsAny(l.path, "\\\x00") || strings.Contains(strings.ToLower(u.EscapedPath()), "%2f") {
		return l, false
	}
	for _, r := range u.Hostname() {
		if r >= utf8.RuneSelf {
			return l, false
		}
	}
	for segment := range strings.SplitSeq(l.path, "/") {
		segment, _, _ = strings.Cut(segment, ";") // some servers drop a segment's parameters first
		if segment == "." || segment == ".." {
			return l, false
		}
	}
	return l, true
}
