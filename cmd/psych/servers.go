package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/psych-go/psych-go/adapters/mcp"
	"github.com/psych-go/psych-go/psych"
)

// serverFlags say which servers of tools a command may reach, and what of them
// may be used.
type serverFlags struct {
	mcp, policy   string
	allowCommands bool

	publishesNone bool            // what may run is the connector's to say alone
	connector     psych.Connector // in place of that of MCP
}

func (f *serverFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.mcp, "mcp", "", "`file` of MCP servers, as other clients have it (mcpServers): with what it holds of secrets, and the commands that it names may run")
	flags.StringVar(&f.policy, "policy", "", "`file` of JSON that says what tenants may use of servers: docs/connections.md")
	flags.BoolVar(&f.allowCommands, "allow-commands", false, "let Specs start any program as a server. No sandbox: it may do what you may")
}

// servers are what a command has of servers.
type servers struct {
	connections []psych.Connection // of the file of --mcp
	secrets     eitherSecrets
	anyCommand  bool // --allow-commands
}

// maxServersFile bounds the file of --mcp, in bytes.
const maxServersFile = 1 << 20

// servers reads what the flags name, and says on stderr what of it is not used.
func (p *program) servers(ctx context.Context, f *serverFlags, o *psych.Options) (*servers, error) {
	s := &servers{anyCommand: f.allowCommands}
	if f.mcp != "" {
		data, err := readFile(f.mcp, maxServersFile)
		if err != nil {
			return nil, use("--mcp: %w", err)
		}
		connections, secrets, notes, err := mcp.ParseServers(data, func(name string) (string, bool) {
			value := p.getenv(name)
			return value, value != ""
		})
		for _, n := range notes {
			fmt.Fprintln(p.stderr, oneLine(fmt.Sprintf("psych: %s: %s", f.mcp, n)))
		}
		if err != nil {
			return nil, use("%s: %w", f.mcp, err)
		}
		s.connections, s.secrets = connections, append(s.secrets, secrets)
	}
	if u := p.getenv("PSYCH_SECRETS_URL"); u != "" {
		secrets, err := p.backends.Secrets.Open(ctx, u)
		if err != nil {
			return nil, use("PSYCH_SECRETS_URL: %w", err)
		}
		p.closeLater(secrets)
		s.secrets = append(s.secrets, secrets)
	}
	if f.policy != "" {
		o.Policy = psych.FilePolicy(f.policy)
		if _, err := o.Policy.Filter(ctx, psych.Scope{Tenant: "check"}); err != nil { // before anything is begun
			return nil, use("--policy: %w", err)
		}
	}
	o.Secrets = s.secrets
	o.AllowCommands = f.allowCommands || f.publishesNone || slices.ContainsFunc(s.connections, func(c psych.Connection) bool { return len(c.Command) > 0 })
	o.Connector = &connector{f.connector, s}
	if f.connector == nil {
		o.Connector = &connector{mcp.New(&mcp.Options{AllowCommands: o.AllowCommands}), s}
	}
	o.Logger = slog.New(&serverLog{w: p.stderr})
	return s, nil
}

// readFile reads a file of at most so many bytes.
func readFile(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s is over %d bytes", path, limit)
	}
	return data, nil
}

// join adds the connections of the file to a Spec.
func (s *servers) join(spec *psych.Spec) error {
	for _, c := range s.connections {
		if slices.ContainsFunc(spec.Connections, func(o psych.Connection) bool { return o.Name == c.Name }) {
			return use("the spec and the file of --mcp both have a connection %s: rename one of them", c.Name)
		}
	}
	spec.Connections = append(slices.Clone(spec.Connections), s.connections...)
	return nil
}

// mayRun reports whether a connection's command may be started: what Specs name
// is not trusted because a file has servers of its own.
func (s *servers) mayRun(c *psych.Connection) bool {
	return len(c.Command) == 0 || s.anyCommand || slices.ContainsFunc(s.connections, func(o psych.Connection) bool { return slices.Equal(o.Command, c.Command) })
}

// lacks says what of the connections of a Spec can't be reached for want of a
// flag; "" if nothing.
func (s *servers) lacks(ctx context.Context, tenant string, spec *psych.Spec) string {
	var lacks []string
	for i := range spec.Connections {
		c := &spec.Connections[i]
		if !s.mayRun(c) {
			lacks = append(lacks, fmt.Sprintf("the connection %s runs the command %q (give --mcp with the file that has it, or --allow-commands)", c.Name, c.Command))
		} else if c.Credential != "" && !c.Optional {
			_, err := s.secrets.Secret(ctx, psych.SecretRequest{Scope: psych.Scope{Tenant: tenant}, Name: c.Credential, URL: c.URL})
			if errors.Is(err, psych.ErrNotFound) {
				why := strings.ReplaceAll(err.Error(), ": "+psych.ErrNotFound.Error(), "")
				lacks = append(lacks, fmt.Sprintf("the connection %s needs the credential %s: %s", c.Name, c.Credential, why))
			}
		}
	}
	return strings.Join(lacks, "; ")
}

// eitherSecrets are sources of credentials, of which the first that has one
// gives it.
type eitherSecrets []psych.Secrets

var _ psych.Secrets = eitherSecrets(nil)

func (e eitherSecrets) Secret(ctx context.Context, r psych.SecretRequest) (psych.Secret, error) {
	var errs []error
	for _, s := range e {
		secret, err := s.Secret(ctx, r)
		if err == nil {
			return secret, nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return psych.Secret{}, &needsFlag{fmt.Errorf("give --mcp with the file that has it, or set PSYCH_SECRETS_URL (env:// takes it from the environment): %w", psych.ErrNotFound)}
	}
	err := errors.Join(errs...)
	if errors.Is(err, psych.ErrNotFound) {
		err = &needsFlag{err}
	}
	return psych.Secret{}, err
}

// A needsFlag says that a server is not for this process, as its flags are.
type needsFlag struct{ error }

func (e *needsFlag) Unwrap() error { return e.error }

// A connector starts no command that it may not.
type connector struct {
	psych.Connector
	s *servers
}

var _ psych.Connector = (*connector)(nil)

func (c *connector) Connect(ctx context.Context, conn *psych.Connection, o psych.ConnectOptions) (psych.Session, error) {
	if !c.s.mayRun(conn) {
		return nil, &needsFlag{fmt.Errorf("its command is none of the file of --mcp, and --allow-commands is not given: %w", psych.ErrAccessDenied)}
	}
	return c.Connector.Connect(ctx, conn, o)
}

// A serverLog is a log that shows a person what is wrong with servers. What
// else goes wrong, commands say themselves.
type serverLog struct {
	w      io.Writer
	server string
}

var _ slog.Handler = (*serverLog)(nil)

func (l *serverLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (l *serverLog) WithGroup(string) slog.Handler { return l }

func (l *serverLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	own := *l
	for _, a := range attrs {
		if a.Key == "server" {
			own.server = a.Value.String()
		}
	}
	return &own
}

func (l *serverLog) Handle(_ context.Context, r slog.Record) error {
	server, what := l.server, r.Message
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "server":
			server = a.Value.String()
		case "err":
			what = a.Value.String()
		}
		return true
	})
	if server == "" {
		return nil
	}
	_, err := fmt.Fprintln(l.w, oneLine(message(fmt.Errorf("server %s: %s", server, what))))
	return err
}
