package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/psych-go/psych-go/psych"
)

// maxCatalogFile bounds a file of catalogues, in bytes.
const maxCatalogFile = 256 << 20

// A catalogFile is what servers offer, as a file has it. It is a Connector
// whose servers are in the file: nothing is reached, and no tool can be called.
type catalogFile struct {
	connections []psych.Connection
	tools       map[string][]psych.RemoteTool // by URL
	names       map[string]bool
	notes       []string
}

var _ psych.Connector = (*catalogFile)(nil)

// add takes in the servers of a file: a list of server, description and tools,
// each tool as tools/list of MCP gives it.
//
// A name that a Connection can't have gets an underscore for each run of
// characters that are not of [A-Za-z0-9-]; of those with one name the second has
// _2 behind it, and so on.
func (f *catalogFile) add(path string) error {
	data, err := readFile(path, maxCatalogFile)
	if err != nil {
		return use("--catalogue: %w", err)
	}
	var servers []struct {
		Server      string            `json:"server"`
		Description string            `json:"description"`
		Tools       []json.RawMessage `json:"tools"`
	}
	if err := json.Unmarshal(data, &servers); err != nil {
		return use(`--catalogue %s: %w: want a list of {"server", "description", "tools"}`, path, err)
	}
	for i := range servers {
		s := &servers[i]
		c := psych.Connection{Name: f.name(s.Server), Description: strings.ToValidUTF8(s.Description, "\ufffd")}
		if len(c.Description) > 4000 {
			c.Description = strings.ToValidUTF8(c.Description[:4000], "")
		}
		if c.Name != s.Server {
			f.notes = append(f.notes, fmt.Sprintf("%s: server %q is called %s here", path, s.Server, c.Name))
		}
		c.URL = "https://catalogue.invalid/" + url.PathEscape(c.Name)
		for j, raw := range s.Tools {
			t, err := remoteTool(raw)
			if err != nil {
				f.notes = append(f.notes, fmt.Sprintf("%s: tool %d of server %q is left out: %v", path, j+1, s.Server, err))
				continue
			}
			f.tools[c.URL] = append(f.tools[c.URL], t)
		}
		f.connections = append(f.connections, c)
	}
	return nil
}

var (
	legalName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	illegal   = regexp.MustCompile(`[^A-Za-z0-9-]+`)
)

// name makes a name that a Connection can have, and that no other server has.
func (f *catalogFile) name(server string) string {
	legal := server
	if !legalName.MatchString(server) {
		legal = cmp.Or(strings.Trim(illegal.ReplaceAllString(server, "_"), "_"), "server")
	}
	name := legal[:min(len(legal), 64)]
	for n := 2; f.names[name]; n++ {
		behind := "_" + strconv.Itoa(n)
		name = legal[:min(len(legal), 64-len(behind))] + behind
	}
	f.names[name] = true
	return name
}

// remoteTool reads a tool of tools/list. Schemas stay as they are.
func remoteTool(raw json.RawMessage) (psych.RemoteTool, error) {
	var in struct {
		Name        string          `json:"name"`
		Title       string          `json:"title"`
		Description string          `json:"description"`
		Schema      json.RawMessage `json:"inputSchema"`
		Output      json.RawMessage `json:"outputSchema"`
		Annotations json.RawMessage `json:"annotations"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
			err = fmt.Errorf("it is a %s: want an object", wrong.Value)
			if wrong.Field != "" {
				err = fmt.Errorf("its %s is a %s: want a string", wrong.Field, wrong.Value)
			}
		}
		return psych.RemoteTool{}, err
	}
	var hints struct {
		Title      string `json:"title"`
		ReadOnly   bool   `json:"readOnlyHint"`
		Idempotent bool   `json:"idempotentHint"`
	}
	_ = json.Unmarshal(in.Annotations, &hints) // hints that are none say nothing
	given := func(schema json.RawMessage) json.RawMessage {
		if string(schema) == "null" {
			return nil
		}
		return schema
	}
	return psych.RemoteTool{
		ToolDef: psych.ToolDef{Name: in.Name, Description: in.Description, Schema: given(in.Schema)},
		Title:   cmp.Or(in.Title, hints.Title), Output: given(in.Output), ReadOnly: hints.ReadOnly, Idempotent: hints.Idempotent,
	}, nil
}

func (f *catalogFile) Connect(_ context.Context, c *psych.Connection, _ psych.ConnectOptions) (psych.Session, error) {
	tools, ok := f.tools[c.URL]
	if !ok && !f.names[c.Name] {
		return nil, fmt.Errorf("the file of catalogues has no server %s: %w", c.Name, psych.ErrNotFound)
	}
	return catalogSession(tools), nil
}

// A catalogSession is a session with a server of a file.
type catalogSession []psych.RemoteTool

func (catalogSession) Instructions() string { return "" }

func (s catalogSession) ListTools(context.Context, *string) (psych.ToolPage, error) {
	return psych.ToolPage{Tools: s}, nil
}

// errNoServer is what a call gets.
var errNoServer = errors.New("a file of catalogues has no server that could be called: give --mcp or --spec")

func (catalogSession) CallTool(context.Context, *psych.RemoteTool, *psych.Call) (*psych.Result, error) {
	return nil, errNoServer
}

func (catalogSession) Close() error { return nil }
