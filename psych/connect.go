package psych

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"
)

// A Connection names an MCP server and what an agent may use of it.
type Connection struct {
	Name        string   `json:"name"`                  // 1 to 64 of [A-Za-z0-9_-], unique in the Spec
	URL         string   `json:"url,omitempty"`         // of a streamable HTTP server; or
	Command     []string `json:"command,omitempty"`     // a program that speaks MCP, and its arguments: where the program allows commands
	Credential  string   `json:"credential,omitempty"`  // a name for Secrets
	Description string   `json:"description,omitempty"` // what the model is told of the server; its first 200 characters stand in the prompt
	Allow       []string `json:"allow,omitempty"`       // patterns of tools, with * and ?; none is all
	Deny        []string `json:"deny,omitempty"`        // patterns of tools that are not allowed all the same
	Preload     *bool    `json:"preload,omitempty"`     // show the definitions of its tools: nil lets the strategy decide
	Inject      []string `json:"inject,omitempty"`      // tools, by name, that are shown by their definition all the same
	Optional    bool     `json:"optional,omitempty"`    // go on without it where it can't be reached

	// TrustAnnotations lets the server's hints decide which of its tools may
	// be run again after a crash.
	TrustAnnotations bool `json:"trust_annotations,omitempty"`

	// PerPrincipal says that the server offers different tools to different
	// principals, though its credential is the same for all of them.
	PerPrincipal bool `json:"per_principal,omitempty"`
}

// A Connector opens sessions with MCP servers. Its methods may be called
// concurrently.
type Connector interface {
	// Connect opens a session and initializes it, within ctx; the session
	// outlives ctx. A credential that the server refuses is
	// ErrUnauthorized, and a server that can't be reached or is no MCP server
	// any other error, whose text holds neither the secret nor a URL's query.
	// One that does not return within a second after ctx ended is left behind,
	// and the session that it returns then is closed.
	Connect(ctx context.Context, c *Connection, o ConnectOptions) (Session, error)
}

// ConnectOptions are what a Connection itself does not carry.
type ConnectOptions struct {
	Scope  Scope
	Secret string // see Secrets; "": none

	// ListChanged is called, from any goroutine and without blocking, when the
	// server says that its list of tools changed. Never nil.
	ListChanged func()

	Log *slog.Logger // never nil; gets no payloads and no secrets
}

// A Session is one open connection. All methods may be called concurrently.
//
// A method returns an error matching ErrSessionLost where the server forgot
// the session, or it broke, and the request certainly had no effect; and one
// matching ErrUnauthorized where the server refused the credential. Any other
// error of CallTool leaves open whether the tool ran.
type Session interface {
	// Instructions are what the server says of itself, "" if nothing.
	Instructions() string

	// ListTools reads one page of tools: nil begins, and a cursor that the
	// page before gave goes on, an empty one too. One that does not return
	// within a second after ctx ended is left behind, and nobody uses the
	// session again.
	ListTools(ctx context.Context, cursor *string) (ToolPage, error)

	// CallTool calls a tool as the catalogue knows it, with c.Arguments and,
	// in the request's _meta, c.IdempotencyKey. Progress that the server tells of is
	// handed to c.Progress. When ctx ends the server is told, and the error is
	// ctx's. A failure of the tool's own is a Result with IsError.
	CallTool(ctx context.Context, t *RemoteTool, c *Call) (*Result, error)

	io.Closer
}

// A ToolPage is one page of a server's tools. Next is nil at the end.
type ToolPage struct {
	Tools []RemoteTool
	Next  *string
	TTL   *time.Duration // for how long the server says that its list holds; nil: it does not say
}

// A RemoteTool is a tool as its server describes it. Schemas are the server's
// own bytes, whatever they are.
type RemoteTool struct {
	ToolDef                    // with the server's own name
	Title      string          `json:"title,omitempty"`
	Output     json.RawMessage `json:"output,omitempty"` // schema of structured results; nil if there is none
	ReadOnly   bool            `json:"read_only,omitempty"`
	Idempotent bool            `json:"idempotent,omitempty"` // of its hints: calling it again has no further effect
}

// A SecretRequest asks for a credential.
type SecretRequest struct {
	Scope Scope
	Name  string // Connection.Credential
	URL   string // of the server that it will be sent to; "" for a command
	Stale string // the Identity that the server refused; "" at first
}

// A Secret is a credential. A Value that is a JSON object with the fields
// "headers" (of HTTP requests) or "env" (of a command's environment), each an
// object of strings, is used so; any other is the bearer token of HTTP
// requests.
type Secret struct {
	Value string

	// Identity tells two credentials apart and reveals neither: sessions and
	// catalogues are shared by those who have the same one.
	Identity string
}

// String hides the value.
func (s Secret) String() string { return "secret " + s.Identity }

// GoString hides the value.
func (s Secret) GoString() string { return s.String() }

// LogValue hides the value.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Secrets resolves the names of credentials. Its methods may be called
// concurrently; what it answers is kept for a minute.
type Secrets interface {
	// Secret returns the credential of that name for the Scope. Where there is
	// none (yet), or it may not be sent to that URL, the error matches
	// ErrNotFound or ErrAccessDenied. With Stale set it looks past what it
	// keeps, and returns the one of that Identity only if there is no newer. One
	// that does not return within a second after ctx ended is left behind, and
	// what it returns is dropped.
	Secret(ctx context.Context, r SecretRequest) (Secret, error)
}

// Bounds of connections.
const (
	maxConnections     = 200
	maxPatterns        = 200 // of Allow, Deny and Inject each
	maxPatternBytes    = 256
	maxConnectionBytes = 4096 // of a URL, of an argument, of a description
)

func (ps *problems) connections(cs []Connection) {
	if len(cs) > maxConnections {
		ps.add("connections", "are %d: want at most %d", len(cs), maxConnections)
		return
	}
	first := map[string]int{}
	for i := range cs {
		ps.connection(fmt.Sprintf("connections[%d]", i), &cs[i])
		if at, ok := first[cs[i].Name]; ok {
			ps.add(fmt.Sprintf("connections[%d].name", i), "%.80q stands twice, in connections[%d] too", cs[i].Name, at)
		} else {
			first[cs[i].Name] = i
		}
	}
}

func (ps *problems) connection(path string, c *Connection) {
	if !legalToolName(c.Name) {
		ps.add(path+".name", "is %.80q: want 1 to 64 of [A-Za-z0-9_-]", c.Name)
	}
	switch {
	case c.URL == "" && len(c.Command) == 0:
		ps.add(path, "has neither url nor command: want one of them")
	case c.URL != "" && len(c.Command) > 0:
		ps.add(path, "has both url and command: want one of them")
	case c.URL != "":
		ps.serverURL(path+".url", c.URL)
	}
	for i, arg := range c.Command {
		switch at := fmt.Sprintf("%s.command[%d]", path, i); {
		case i == 0 && arg == "":
			ps.add(at, "is empty: want the program")
		case len(arg) > maxConnectionBytes || !utf8.ValidString(arg) || strings.ContainsRune(arg, 0):
			ps.add(at, "want at most %d bytes of UTF-8 without NUL", maxConnectionBytes)
		}
	}
	if len(c.Command) > maxPatterns {
		ps.add(path+".command", "has %d arguments: want at most %d", len(c.Command), maxPatterns)
	}
	ps.label(path+".credential", c.Credential, 128)
	if len(c.Description) > maxConnectionBytes || !utf8.ValidString(c.Description) {
		ps.add(path+".description", "want at most %d bytes of UTF-8", maxConnectionBytes)
	}
	for _, f := range []struct {
		name string
		list []string
	}{{"allow", c.Allow}, {"deny", c.Deny}, {"inject", c.Inject}} {
		field, list := f.name, f.list
		if len(list) > maxPatterns {
			ps.add(path+"."+field, "has %d entries: want at most %d", len(list), maxPatterns)
		}
		for i, p := range list {
			if p == "" || len(p) > maxPatternBytes || !utf8.ValidString(p) {
				ps.add(fmt.Sprintf("%s.%s[%d]", path, field, i), "%.80q: want 1 to %d bytes of UTF-8", p, maxPatternBytes)
			}
		}
	}
}

// serverURL checks the URL of a server: it holds no secret, so no user, and no
// parameter or fragment that could be one.
func (ps *problems) serverURL(path, raw string) {
	u, err := url.Parse(raw)
	switch {
	case err != nil || len(raw) > maxConnectionBytes:
		ps.add(path, "is no URL of at most %d bytes", maxConnectionBytes)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		ps.add(path, "is %.200q: want http:// or https:// and a host", u.Redacted())
	case u.User != nil:
		ps.add(path, "names a user: credentials are named by credential, and kept by Secrets")
	case u.Fragment != "":
		ps.add(path, "has a fragment")
	}
}
