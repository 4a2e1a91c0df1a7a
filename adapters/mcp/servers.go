package mcp

import (
	"bytes"
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

// ParseServers reads the JSON by which other clients are told of MCP servers:
// an object "mcpServers", or "servers", also within "mcp". Comments and commas
// at the end of a list are let pass. Connections are in the file's order.
//
// A server has command, args and env, or url (serverUrl, httpUrl) and headers.
// type tells which where it has both; one that is disabled is left out. What
// else stands there is not used, and named in notes.
//
// ${NAME}, ${env:NAME} and ${NAME:-default} are variables of the environment, as
// getenv gives them; without a default one that is not set is an error that
// names it. What env and headers hold is secret: it is in secrets alone, as is
// what a variable puts into a command, where ${NAME} is left for the Connector
// to fill in. A variable in a URL's query is an error, since URLs are stored.
//
// A server's name that a Connection can't have gets an underscore for each
// character that is not of [A-Za-z0-9_-], and eight digits of its hash.
//
// The Secrets know the connections' credentials, for every Scope, and give each
// to its own server alone. An Identity is made of name and value by PBKDF2 (4,096
// rounds of SHA-256), and is the same in every process, so that catalogues are
// found again.
//
// Errors match psych.ErrInvalid, and list all that is wrong. Neither they nor
// the notes hold values.
func ParseServers(data []byte, getenv func(string) (string, bool)) (connections []psych.Connection, secrets psych.Secrets, notes []string, err error) {
	if !utf8.Valid(data) {
		return nil, nil, nil, fmt.Errorf("mcp: the servers are no UTF-8: %w", psych.ErrInvalid)
	}
	r := &reader{getenv: getenv}
	kept := &fileSecrets{of: map[string]fileSecret{}}
	list, err := r.list(plainJSON(bytes.TrimPrefix(data, []byte("\ufeff"))))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("mcp: the servers can't be read: %w: %w", err, psych.ErrInvalid)
	}
	first := map[string]string{}
	for _, f := range list {
		r.server = f.key
		conn, secret := r.connection(f)
		if conn == nil {
			continue
		}
		if other, ok := first[conn.Name]; ok {
			r.bad("has the name %s, as %q has", conn.Name, other)
		}
		first[conn.Name] = f.key
		if len(secret) > 0 {
			value, err := json.Marshal(secret)
			if err != nil {
				r.bad("has what can't be kept: %v", err)
			}
			conn.Credential = conn.Name
			kept.of[conn.Credential] = fileSecret{value: string(value), url: conn.URL}
		}
		connections = append(connections, *conn)
	}
	if err := errors.Join(r.errs...); err != nil {
		return nil, nil, r.notes, fmt.Errorf("mcp: the servers can't be used: %w: %w", err, psych.ErrInvalid)
	}
	return connections, kept, r.notes, nil
}

// A reader reads one file of servers.
type reader struct {
	getenv func(string) (string, bool)
	server string
	notes  []string
	errs   []error
}

func (r *reader) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf("server %q %s", r.server, fmt.Sprintf(format, args...)))
}

func (r *reader) bad(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("server %q %s", r.server, fmt.Sprintf(format, args...)))
}

// list finds the servers in a document.
func (r *reader) list(data []byte) ([]field, error) {
	top, err := object(data)
	if err != nil {
		return nil, err
	}
	var found []field
	for _, f := range top {
		inner, isObject := []field(nil), false
		switch f.key {
		case "mcpServers", "servers":
			if inner, err = object(f.raw); err != nil {
				return nil, fmt.Errorf("%q: %w", f.key, err)
			}
			isObject = true
		case "mcp":
			if fields, err := object(f.raw); err == nil {
				for _, g := range fields {
					if g.key == "servers" || g.key == "mcpServers" {
						if inner, err = object(g.raw); err != nil {
							return nil, fmt.Errorf("%q: %w", "mcp."+g.key, err)
						}
						isObject = true
					} else {
						r.notes = append(r.notes, fmt.Sprintf("the field %q is not used", "mcp."+g.key))
					}
				}
			}
		}
		switch {
		case !isObject:
			r.notes = append(r.notes, fmt.Sprintf("the field %q is not used", f.key))
		case found != nil:
			return nil, fmt.Errorf("it has servers in %q, and before that elsewhere: want one list", f.key)
		default:
			found = append([]field{}, inner...)
		}
	}
	if found == nil {
		return nil, errors.New(`it has no object "mcpServers" or "servers"`)
	}
	return found, nil
}

// connection reads one server; nil is none.
func (r *reader) connection(f field) (*psych.Connection, map[string]map[string]string) {
	fields, err := object(f.raw)
	if err != nil {
		r.bad("can't be read: %v", err)
		return nil, nil
	}
	conn := &psych.Connection{Name: legalName(f.key)}
	if conn.Name != f.key {
		r.note("is called %s here", conn.Name)
	}
	var command, args []string
	var kind, link string
	var env, headers []field
	var disabled bool
	for _, f := range fields {
		switch f.key {
		case "command":
			// Some write the arguments into it.
			if json.Unmarshal(f.raw, &command) != nil {
				command = []string{r.str(f)}
			}
		case "args":
			if json.Unmarshal(f.raw, &args) != nil {
				r.bad(`has args that are no list of strings`)
			}
		case "env":
			env = r.fields(f)
		case "headers":
			headers = r.fields(f)
		case "url", "serverUrl", "httpUrl":
			if s := r.str(f); link == "" || f.key == "httpUrl" {
				link = s
			}
		case "type", "transport":
			kind = strings.ToLower(r.str(f))
		case "description":
			conn.Description = r.str(f)
		case "disabled", "enabled":
			var on bool
			if json.Unmarshal(f.raw, &on) != nil {
				r.bad("has %q, which is neither true nor false", f.key)
			}
			disabled = disabled || on == (f.key == "disabled")
		case "cwd":
			r.note("has cwd, which is not used: the command runs in the folder of this program")
		default:
			r.note("has %q, which is not used", f.key)
		}
	}
	if disabled {
		r.note("is disabled, and left out")
		return nil, nil
	}
	command = append(command, args...)
	local := kind == "stdio" || kind == "local" || kind == "" && len(command) > 0
	switch {
	case local && (len(command) == 0 || command[0] == ""):
		r.bad("has no command")
		return nil, nil
	case !local && link == "":
		r.bad("has neither a command nor a url")
		return nil, nil
	case local:
		if link != "" || headers != nil {
			r.note("is a command: its url and headers are not used")
		}
		return r.local(conn, command, env)
	}
	switch kind {
	case "sse":
		r.note("has the type sse, an old transport that is not spoken: its url is tried by streamable HTTP")
	case "", "http", "streamable-http", "streamablehttp", "streamable_http", "remote":
	default:
		r.note("has the type %q, which is not known: its url is tried by streamable HTTP", kind)
	}
	if len(command) > 0 || env != nil {
		r.note("has a url: its command and env are not used")
	}
	return r.remote(conn, link, headers)
}

// local makes a connection of a command.
func (r *reader) local(conn *psych.Connection, command []string, fields []field) (*psych.Connection, map[string]map[string]string) {
	env := map[string]string{}
	for _, f := range fields {
		if s, ok := r.value(f); ok {
			env[f.key] = s
		}
	}
	given := len(env)
	for _, arg := range command {
		conn.Command = append(conn.Command, r.expand(arg, func(name, value string) string {
			// Another value of that name may be the command's own.
			for {
				if v, taken := env[name]; !taken || v == value {
					env[name] = value
					return "${" + name + "}"
				}
				name += "_"
			}
		}))
	}
	if len(env) > given {
		r.note("has variables in its command: they are set for it, too")
	}
	if len(env) == 0 {
		return conn, nil
	}
	return conn, map[string]map[string]string{"env": env}
}

// remote makes a connection of a URL.
func (r *reader) remote(conn *psych.Connection, link string, fields []field) (*psych.Connection, map[string]map[string]string) {
	if _, query, _ := strings.Cut(link, "?"); anyReference().MatchString(query) {
		r.bad("has a variable in its url's query, which would be stored with the Spec: send it in headers")
	}
	if conn.URL = r.expand(link, func(_, value string) string { return value }); conn.URL != link {
		r.note("has a variable in its url: the value is stored with the Spec")
	}
	if u, err := url.Parse(conn.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		r.bad("has a url that can't be used: want http:// or https:// and a host")
	} else if u.User != nil {
		r.bad("has a url with a user: send that in headers")
	}
	headers := map[string]string{}
	for _, f := range fields {
		value, ok := r.value(f)
		switch {
		case !ok:
		case !isToken(f.key) || !isHeaderValue(value):
			r.bad("has the header %.80q, which can't be sent", f.key)
		case own(f.key):
			r.note("has the header %s, which is set by the protocol: it is not used", http.CanonicalHeaderKey(f.key))
		default:
			headers[f.key] = value
		}
	}
	if len(headers) == 0 {
		return conn, nil
	}
	return conn, map[string]map[string]string{"headers": headers}
}

func (r *reader) str(f field) string {
	s, ok := text(f.raw)
	if !ok {
		r.bad("has %q, which is no string", f.key)
	}
	return s
}

func (r *reader) fields(f field) []field {
	if isNull(f.raw) {
		return nil
	}
	list, err := object(f.raw)
	if err != nil {
		r.bad("has %q, which can't be read: %v", f.key, err)
	}
	return append([]field{}, list...)
}

// value is a value of env or headers. Many write numbers and true as they are.
func (r *reader) value(f field) (string, bool) {
	if isNull(f.raw) {
		return "", false
	}
	s, ok := text(f.raw)
	if !ok {
		if f.raw[0] == '{' || f.raw[0] == '[' {
			r.bad("has a value of %q that is no string", f.key)
			return "", false
		}
		s = string(f.raw)
	}
	return r.expand(s, func(_, value string) string { return value }), true
}

// anyReference are references to variables, and to what editors ask their users
// for. Anything else between ${ and } is left as it is.
var anyReference = lazily(`\$\{(?:([a-z]+):)?([A-Za-z_][A-Za-z0-9_.-]*?)(?::-([^}]*))?\}`)

var variableName = lazily(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expand puts in the values of variables, as put writes them.
func (r *reader) expand(s string, put func(name, value string) string) string {
	return anyReference().ReplaceAllStringFunc(s, func(ref string) string {
		m := anyReference().FindStringSubmatchIndex(ref)
		space, name := "", ref[m[4]:m[5]]
		if m[2] >= 0 {
			space = ref[m[2]:m[3]]
		}
		switch {
		case space != "" && space != "env":
			r.bad("refers to %s, which can't be asked for here: put ${env:NAME}, and set that variable", ref)
			return ""
		case !variableName().MatchString(name):
			return ref
		}
		value, ok := r.getenv(name)
		switch {
		case m[6] >= 0 && value == "": // as shells have it: also one that is set to nothing
			return ref[m[6]:m[7]]
		case !ok:
			r.bad("refers to the environment variable %s, which is not set", name)
			return ""
		}
		return put(name, value)
	})
}

// legalName is a name that a Connection may have.
func legalName(name string) string {
	legal := strings.Map(func(c rune) rune {
		if c == '_' || c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' {
			return c
		}
		return '_'
	}, name)
	if legal == name && name != "" && len(name) <= 64 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return legal[:min(len(legal), 55)] + "_" + hex.EncodeToString(sum[:4])
}

// A field is one of a JSON object, in its order.
type field struct {
	key string
	raw json.RawMessage
}

// object reads an object whose fields have different names. Its errors hold
// nothing of it but names.
func object(data []byte) (fields []field, err error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, notAn(err, data)
	}
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, notAn(err, data)
		}
		key, _ := t.(string)
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, notAn(err, data)
		}
		if seen[key] {
			return nil, fmt.Errorf("%q stands there twice", key)
		}
		seen[key] = true
		fields = append(fields, field{key, raw})
	}
	if _, err := dec.Token(); err != nil {
		return nil, notAn(err, data)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something stands behind the object")
	}
	return fields, nil
}

// notAn says where a document is no JSON object. Syntax errors of encoding/json
// show one character at most.
func notAn(err error, data []byte) error {
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		line := 1 + bytes.Count(data[:min(int(syntax.Offset), len(data))], []byte("\n"))
		return fmt.Errorf("line %d: %w", line, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the JSON ends too early")
	case err != nil:
		return err
	}
	return errors.New("want a JSON object")
}

// plainJSON is JSON without the comments, and the commas at the end of lists,
// that editors let pass. Lines stay where they are.
func plainJSON(data []byte) []byte {
	out := make([]byte, 0, len(data))
	comma := -1 // of out, behind which there was nothing but space
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			end := i + 1
			for end < len(data) && data[end] != '"' {
				if data[end] == '\\' {
					end++
				}
				end++
			}
			end = min(end+1, len(data))
			out = append(out, data[i:end]...)
			i, comma = end-1, -1
		case c == '/' && i+1 < len(data) && data[i+1] == '/':
			for i+1 < len(data) && data[i+1] != '\n' {
				i++
			}
		case c == '/' && i+1 < len(data) && data[i+1] == '*':
			end := bytes.Index(data[i+2:], []byte("*/"))
			if end < 0 {
				return append(out, c) // which no parser takes
			}
			out = append(out, bytes.Repeat([]byte("\n"), bytes.Count(data[i:i+2+end], []byte("\n")))...)
			out = append(out, ' ')
			i += 2 + end + 1
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			out = append(out, c)
		default:
			if (c == '}' || c == ']') && comma >= 0 {
				out[comma] = ' '
			}
			comma = -1
			if c == ',' {
				comma = len(out)
			}
			out = append(out, c)
		}
	}
	return out
}

// fileSecrets are the credentials of a file of servers.
type fileSecrets struct {
	of map[string]fileSecret

	mu    sync.Mutex
	known map[string]string // identities, since one is dear
}

type fileSecret struct{ value, url string }

var _ psych.Secrets = (*fileSecrets)(nil)

// Secret implements psych.Secrets.
func (f *fileSecrets) Secret(_ context.Context, r psych.SecretRequest) (psych.Secret, error) {
	s, ok := f.of[r.Name]
	switch {
	case !ok:
		return psych.Secret{}, fmt.Errorf("mcp: no server of the file has the credential %.80q: %w", r.Name, psych.ErrNotFound)
	case s.url != r.URL:
		return psych.Secret{}, fmt.Errorf("mcp: the credential %s is for another server: %w", r.Name, psych.ErrAccessDenied)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known[r.Name] == "" {
		key, err := pbkdf2.Key(sha256.New, s.value, []byte("psych secret of a file of servers "+r.Name), 4096, 16)
		if err != nil {
			return psych.Secret{}, fmt.Errorf("mcp: identify the credential %s: %w", r.Name, err)
		}
		if f.known == nil {
			f.known = map[string]string{}
		}
		f.known[r.Name] = hex.EncodeToString(key)
	}
	return psych.Secret{Value: s.value, Identity: f.known[r.Name]}, nil
}
