package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/psych-go/psych-go/adapters/sqlite"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

// asServer names the variable that makes the test program an MCP server on its
// standard streams. Its value is what the tool whoami says.
const asServer = "PSYCH_TEST_AS_SERVER"

// testServer is a server with a few tools.
func testServer(whoami string) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	tool := func(name, description, schema string, do func(args map[string]any) (string, error)) {
		s.AddTool(&sdk.Tool{Name: name, Description: description, InputSchema: json.RawMessage(schema)}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			var args map[string]any
			if err := json.Unmarshal(r.Params.Arguments, &args); err != nil {
				return nil, err
			}
			text, err := do(args)
			res := &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}
			if err != nil {
				res.Content, res.IsError = []sdk.Content{&sdk.TextContent{Text: err.Error()}}, true
			}
			return res, nil
		})
	}
	tool("add", "Adds two numbers.", `{"type":"object","properties":{"a":{"type":"number"},"b":{"type":"number"}},"required":["a","b"]}`,
		func(args map[string]any) (string, error) {
			return fmt.Sprintf("%v\x1b[31m", args["a"].(float64)+args["b"].(float64)), nil
		})
	tool("whoami", "Says who calls.", `{"type":"object"}`, func(map[string]any) (string, error) { return whoami, nil })
	tool("fail", "Fails.", `{"type":"object"}`, func(map[string]any) (string, error) { return "", errors.New("it is broken") })
	return s
}

func serveTools(whoami string) {
	if err := testServer(whoami).Run(context.Background(), &sdk.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// mcpFile is an mcpServers file whose server "calc" is this test program, with
// the value of the variable WHO of psych's environment.
func mcpFile(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{
  // as other clients have it
  "mcpServers": {
    "calc": {"command": %q, "env": {%q: "${WHO}"}, "disabledTools": ["x"]},
  }
}`, self, asServer)
}

const callsAll = `steps:
  - calls: [{name: calc__add, arguments: {a: 19, b: 23}}, {name: calc__whoami, arguments: {}}]
  - text: So.
    require: ['42', 'it is me']
  - calls: [{name: call_tool, arguments: {server: calc, tool: add, arguments: {a: 1, b: 2}}}]
  - text: And so.
`

// A file of servers, with no Spec and with one; and what another command needs
// to go on with such a Run.
func TestRunMCP(t *testing.T) {
	workdir(t, "mcp.json", mcpFile(t), "play.yaml", callsAll, "data/x.txt", "x",
		"spec.yaml", "name: a\nmodel: script:play.yaml\n", "same.yaml", "name: a\nconnections: [{name: calc, url: 'https://mcp.invalid/'}]\n")
	env := []string{"WHO=it is me", "PSYCH_MODEL=script:play.yaml"}
	note := `psych: mcp.json: server "calc" has "disabledTools", which is not used` + "\n"
	var ids []string
	for _, args := range [][]string{{"hello"}, {"spec.yaml", "hello"}} {
		got := psychIn("", env, append([]string{"run", "--mcp", "mcp.json"}, args...)...)
		if got.code != exitCompleted || got.stderr != note || !strings.Contains(got.stdout, "← c1_1 succeeded, ") || !strings.Contains(got.stdout, "So.\n") {
			t.Fatalf("exit code %d\n%s%s", got.code, got.stdout, got.stderr)
		}
		ids = append(ids, runID(t, got.stdout))
	}
	// Without a Spec the flags' tools are granted too.
	got := psychIn("", append(env, "PSYCH_MODEL=script:play.yaml"), "run", "--json", "--mcp", "mcp.json", "--files", "data", "hello")
	var rep psych.Report
	if err := json.Unmarshal([]byte(got.stdout), &rep); err != nil || rep.FirstWire.Tools < 3000 {
		t.Errorf("with --files: %v, %+v\n%s", err, rep.FirstWire, got.stderr)
	}

	got = psychIn("", env, "run", "--mcp", "mcp.json", "same.yaml", "hello")
	if got.code != exitUse || !strings.Contains(got.stderr, "both have a connection calc") {
		t.Errorf("a name that both have: exit code %d\n%s", got.code, got.stderr)
	}
	got = psychIn("", nil, "run", "--mcp", "mcp.json", "hello")
	if got.code != exitUse || !strings.Contains(got.stderr, "WHO, which is not set") {
		t.Errorf("a variable that is not set: exit code %d\n%s", got.code, got.stderr)
	}
	psychIn("", env, "run", "hello").wantError(t, exitUse, "want SPEC and MESSAGE")

	// To go on with the Run takes the same file.
	for _, args := range [][]string{{"resume", ids[0]}, {"send", ids[0], "more"}} {
		psychIn("", env, args...).wantError(t, exitUse, "the connection calc runs the command", "--mcp", "--allow-commands")
	}
	psychIn("", env, "send", "--allow-commands", ids[0], "more").wantError(t, exitUse, "needs the credential calc", "--mcp")
	got = psychIn("", env, "send", "--mcp", "mcp.json", ids[0], "more")
	if got.code != exitCompleted || got.stderr != note || !strings.Contains(got.stdout, "And so.\n") || !strings.Contains(got.stdout, "→ c3_1 call_tool ") {
		t.Errorf("psych send --mcp: exit code %d\n%s%s", got.code, got.stdout, got.stderr)
	}
}

// A Spec's commands start only with leave, also where a file names others.
func TestCommandsNeedLeave(t *testing.T) {
	workdir(t, "mcp.json", mcpFile(t), "play.yaml", "steps: [{text: So.}]",
		"spec.yaml", "name: a\nmodel: script:play.yaml\nconnections: [{name: own, optional: true, command: [sh, -c, 'touch began']}]\n")
	for _, args := range [][]string{{}, {"--mcp", "mcp.json"}} {
		got := psychIn("", []string{"WHO=x"}, append(append([]string{"run"}, args...), "spec.yaml", "hello")...)
		if got.code != exitUse || !strings.Contains(got.stderr, "the connection own runs the command") {
			t.Errorf("%q: exit code %d\n%s", args, got.code, got.stderr)
		}
	}
	psychIn("", nil, "tools", "--spec", "spec.yaml").wantError(t, exitUse, "the connection own runs the command")
	psychIn("", nil, "spec", "check", "--files", ".", "spec.yaml").wantCompleted(t)
	if exists(t, "began") {
		t.Fatal("the command ran")
	}
	got := psychIn("", nil, "run", "--allow-commands", "spec.yaml", "hello")
	if got.code != exitCompleted || !exists(t, "began") || !strings.Contains(got.stderr, "psych: server own: ") {
		t.Errorf("--allow-commands: exit code %d\n%s", got.code, got.stderr)
	}
}

// A file's server that is dead is named with the reason, and fails the Run.
func TestServerDown(t *testing.T) {
	workdir(t, "mcp.json", `{"mcpServers": {"sick": {"command": "sh", "args": ["-c", "echo no such database >&2; exit 3"]}, "up": {"command": "sh", "disabled": true}}}`,
		"play.yaml", "steps: [{text: So.}]")
	got := psychIn("", nil, "run", "--mcp", "mcp.json", "--model", "script:play.yaml", "hello")
	if got.code != exitFailed || !strings.Contains(got.stderr, "psych: server sick: ") || !strings.Contains(got.stderr, "no such database") || !strings.Contains(got.stdout, `the server "sick" is not optional`) {
		t.Errorf("exit code %d\n%s%s", got.code, got.stdout, got.stderr)
	}
	got = psychIn("", nil, "tools", "--mcp", "mcp.json", "--json")
	var o toolsOverview
	if err := json.Unmarshal([]byte(got.stdout), &o); err != nil || got.code != exitFailed || len(o.Servers) != 1 || !strings.Contains(o.Servers[0].Down, "connect sick: its process ") {
		t.Errorf("psych tools: exit code %d, %v\n%s%s", got.code, err, got.stdout, got.stderr)
	}
	got = psychIn("", nil, "tools", "--mcp", "mcp.json")
	if got.code != exitFailed || !regexp.MustCompile(`(?m)^sick .* unreachable$`).MatchString(got.stdout) || !strings.Contains(got.stderr, "psych: servers that can't be reached: 1\n") {
		t.Errorf("psych tools: exit code %d\n%s%s", got.code, got.stdout, got.stderr)
	}
	got = psychIn("", nil, "tools", "--mcp", "mcp.json", "call", "sick", "x")
	if got.code != exitFailed || !strings.Contains(got.stderr, "sick is unavailable now") {
		t.Errorf("psych tools call: exit code %d\n%s", got.code, got.stderr)
	}
}

// httpServer is a server behind a token, with its file.
func httpServer(t *testing.T, s *sdk.Server, token string) (url string) {
	t.Helper()
	handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// Credentials come from the environment by name, and from the file; a policy
// says what may be used.
func TestCredentialsAndPolicy(t *testing.T) {
	url := httpServer(t, testServer("it is me"), "s3cret")
	workdir(t, "spec.yaml", fmt.Sprintf("name: a\nmodel: script:play.yaml\nconnections: [{name: calc, url: %q, credential: calc_token}]\n", url),
		"mcp.json", fmt.Sprintf(`{"mcpServers": {"calc": {"url": %q, "headers": {"Authorization": "Bearer ${TOKEN}"}}}}`, url),
		"play.yaml", callsAll, "denied.yaml", `steps:
  - calls: [{name: calc__whoami, arguments: {}}]
  - text: It may not.
    require: ['calc__whoami']
    forbid: ['it is me']
`, "policy.json", `{"others": {"allow": ["calc/add"]}}`)
	psychIn("", nil, "run", "spec.yaml", "hello").wantError(t, exitUse, "needs the credential calc_token", "PSYCH_SECRETS_URL")
	psychIn("", []string{"PSYCH_SECRETS_URL=nosuch://"}, "run", "spec.yaml", "hello").wantError(t, exitUse, "PSYCH_SECRETS_URL", `want "env:"`)
	psychIn("", []string{"PSYCH_SECRETS_URL=env://"}, "run", "spec.yaml", "hello").wantError(t, exitUse, "PSYCH_SECRET_calc_token is not set")
	secrets := []string{"PSYCH_SECRETS_URL=env://", "PSYCH_SECRET_calc_token=s3cret"}
	psychIn("", secrets, "run", "spec.yaml", "hello").wantCompleted(t)
	got := psychIn("", []string{"TOKEN=s3cret"}, "run", "--model", "script:play.yaml", "--mcp", "mcp.json", "hello")
	got.wantCompleted(t)
	for _, out := range []string{got.stdout, psychIn("", nil, "records", runID(t, got.stdout)).stdout} {
		if out == "" || strings.Contains(out, "s3cret") {
			t.Errorf("the credential is shown, or nothing:\n%s", out)
		}
	}
	got = psychIn("", []string{"TOKEN=wr0ng"}, "run", "--model", "script:play.yaml", "--mcp", "mcp.json", "hello")
	if got.code != exitFailed || !strings.Contains(got.stdout, "it refused the credential") || strings.Contains(got.stdout+got.stderr, "wr0ng") {
		t.Errorf("a wrong credential: exit code %d\n%s%s", got.code, got.stdout, got.stderr)
	}
	got = psychIn("", secrets, "run", "--policy", "policy.json", "--model", "script:denied.yaml", "spec.yaml", "hello")
	got.wantCompleted(t)
	if !regexp.MustCompile(`(?m)^c1_1 .* failed`).MatchString(got.stdout) {
		t.Errorf("the policy: \n%s", got.stdout)
	}
	psychIn("", secrets, "run", "--policy", "absent.json", "spec.yaml", "hello").wantError(t, exitUse, "--policy", "no such file")
}

// The workbench over real servers: find, read, call; and two versions of a
// catalogue that the store has.
func TestToolsOfServers(t *testing.T) {
	s := testServer("it is me")
	url := httpServer(t, s, "s3cret")
	workdir(t, "mcp.json", fmt.Sprintf(`{"mcpServers": {"web": {"url": %q, "headers": {"Authorization": "Bearer ${WHO}"}}, %s`, url, strings.SplitN(mcpFile(t), "{\n", 3)[2]))
	env := []string{"WHO=s3cret"}
	tools := func(code int, args ...string) invocation {
		t.Helper()
		got := psychIn("", env, append([]string{"tools", "--mcp", "mcp.json"}, args...)...)
		if got.code != code {
			t.Fatalf("%q: exit code %d, want %d\n%s%s", args, got.code, code, got.stdout, got.stderr)
		}
		return got
	}
	version := func() string {
		t.Helper()
		var o toolsOverview
		if err := json.Unmarshal([]byte(tools(exitCompleted, "--json").stdout), &o); err != nil || len(o.Servers) != 2 || o.Servers[1].Server != "web" {
			t.Fatalf("%v: %+v", err, o)
		}
		return o.Servers[1].Catalog.String()
	}
	old := version()
	var multiplied atomic.Int32
	s.RemoveTools("fail")
	s.AddTool(&sdk.Tool{Name: "multiply", Description: "Multiplies.", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		multiplied.Add(1)
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "6"}}}, nil
	})
	if got := tools(exitCompleted, "search", "--server", "web", "multiply"); !strings.Contains(got.stderr, "0 tools match") {
		t.Errorf("what is stored is not believed: %q", got.stdout)
	}
	if got := tools(exitCompleted, "search", "--refresh", "--server", "web", "multiply"); !strings.Contains(got.stdout, "  1  web / multiply  Multiplies.\n") {
		t.Errorf("--refresh: %q", got.stdout)
	}
	now := version()
	diff := psychIn("", nil, "tools", "diff", old, now)
	diff.wantCompleted(t)
	if diff.stdout != "new      multiply\ngone     fail\n" {
		t.Errorf("psych tools diff printed %q", diff.stdout)
	}

	if got := tools(exitCompleted, "search", "add numbers"); !strings.HasPrefix(got.stdout, "  1  calc / add  Adds two numbers.\n  2  web / add  ") {
		t.Errorf("search: %q", got.stdout)
	}
	if got := tools(exitCompleted, "read", "calc", "add"); !strings.Contains(got.stdout, `"required":["a","b"]`) {
		t.Errorf("read: %q", got.stdout)
	}
	// What a tool returns can't drive the terminal, and -o has it as it is.
	if got := tools(exitCompleted, "call", "calc", "add", `{"a": 19, "b": 23}`); got.stdout != `42\x1b[31m`+"\n" {
		t.Errorf("call: %q", got.stdout)
	}
	if got := tools(exitCompleted, "call", "-o", "-", "calc", "add", `{"a": 19, "b": 23}`); got.stdout != "42\x1b[31m" {
		t.Errorf("call -o: %q", got.stdout)
	}
	// Where the result can't go no tool is called; what it says of a failure can.
	if got := tools(exitUse, "call", "-o", "absent/x", "web", "multiply"); multiplied.Load() != 0 || !strings.Contains(got.stderr, "no such file") {
		t.Errorf("call -o into no directory: %d calls, %q", multiplied.Load(), got.stderr)
	}
	if tools(exitUse, "call", "--json", "-o", "x", "web", "multiply"); multiplied.Load() != 0 || exists(t, "x") {
		t.Errorf("call -o --json: %d calls", multiplied.Load())
	}
	if tools(exitCompleted, "call", "-o", "x", "web", "multiply"); multiplied.Load() != 1 {
		t.Errorf("call -o: %d calls", multiplied.Load())
	}
	if got := tools(exitUse, "call", "-o", "x", "calc", "addd"); !strings.Contains(got.stderr, "no tool named") {
		t.Errorf("an unknown tool: %q", got.stderr)
	} else if b, err := os.ReadFile("x"); err != nil || string(b) != "6" {
		t.Errorf("it took the file's content away: %q, %v", b, err)
	}
	tools(exitFailed, "call", "-o", "x", "calc", "fail")
	if b, err := os.ReadFile("x"); err != nil || string(b) != "it is broken" {
		t.Errorf("-o of a failure: %q, %v", b, err)
	}
	var res callResult
	if got := tools(exitCompleted, "call", "--json", "calc", "whoami"); json.Unmarshal([]byte(got.stdout), &res) != nil || res.Text != "s3cret" || res.Server != "calc" || res.IsError {
		t.Errorf("call --json: %q", got.stdout)
	}
	if got := tools(exitFailed, "call", "calc", "fail"); got.stdout != "it is broken\n" || !strings.HasSuffix(got.stderr, "psych: calc / fail says that it failed\n") {
		t.Errorf("a failing call: %q %q", got.stdout, got.stderr)
	}
	if got := tools(exitUse, "call", "calc", "add", `{"a": 1}`); !strings.Contains(got.stderr, "missing property") || got.stdout != "" {
		t.Errorf("arguments that don't match: %q", got.stderr)
	}
	if got := tools(exitUse, "call", "calc", "addd"); !strings.Contains(got.stderr, `no tool named "addd" that may be used. The nearest of 3: add`) {
		t.Errorf("an unknown tool: %q", got.stderr)
	}
	if got := psychIn(`{"a": 1, "b": 2}`, env, "tools", "--mcp", "mcp.json", "call", "web", "add", "-"); got.code != exitCompleted || !strings.HasPrefix(got.stdout, "3") {
		t.Errorf("arguments from standard input: %q %q", got.stdout, got.stderr)
	}
}

// A sweep leaves catalogues alone whose servers are not for this process, and
// reads others anew.
func TestSweepCatalogues(t *testing.T) {
	s := testServer("x")
	url := httpServer(t, s, "s3cret")
	workdir(t, "mcp.json", mcpFile(t))
	dir := filepath.Join(os.Getenv("XDG_STATE_HOME"), "psych")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	store := sqlite.New(filepath.Join(dir, "psych.db"), nil)
	defer store.Close()
	// Listed yesterday: a program and a server behind a token.
	files := &catalogFile{names: map[string]bool{"program": true, "web": true}}
	rt, err := psych.New(store, &psych.Options{
		Connector: files, AllowCommands: true, Now: func() time.Time { return time.Now().Add(-24 * time.Hour) },
		Secrets: psych.EnvSecrets(func(name string) string { return map[string]string{"PSYCH_SECRET_web": "s3cret"}[name] }, ""),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []psych.Connection{{Name: "program", Command: []string{"sh", "-c", "touch began"}}, {Name: "web", URL: url, Credential: "web"}} {
		if err := rt.Refresh(t.Context(), psych.Scope{Tenant: "local"}, &c); err != nil {
			t.Fatal(err)
		}
	}
	got := psychIn("", nil, "sweep")
	got.wantCompleted(t)
	if got.stdout != "swept: 0 due, 0 driven; 2 catalogues of servers were left as they are: give --mcp, or --allow-commands and PSYCH_SECRETS_URL\n" {
		t.Errorf("psych sweep printed %q", got.stdout)
	}
	if exists(t, "began") {
		t.Error("the sweep ran a command")
	}
}

// referenceFile is examples/mcp/mcp.json with the installed servers in place of
// npx: of the same versions, or the example is out of date.
func referenceFile(t *testing.T) string {
	t.Helper()
	files, everything := endpoint.MCPServer(t, "filesystem"), endpoint.MCPServer(t, "everything")
	data, err := os.ReadFile("../../examples/mcp/mcp.json")
	if err != nil {
		t.Fatal(err)
	}
	pins, err := os.ReadFile("../../internal/emulators/spec.go")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Servers map[string]map[string]any `json:"mcpServers"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	for name, command := range map[string][]string{"files": files, "everything": everything} {
		s := file.Servers[name]
		args, _ := s["args"].([]any)
		if s["command"] != "npx" || len(args) < 2 || args[0] != "-y" || !strings.Contains(string(pins), `"`+fmt.Sprint(args[1])+`"`) {
			t.Fatalf("the example's server %s is %v: want npx -y and what internal/emulators installs", name, s)
		}
		s["command"] = command[0]
		s["args"] = append([]any{command[1]}, args[2:]...)
	}
	data, err = json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "mcp.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestExampleMCP runs the example as a new user would, with the servers of npm.
func TestExampleMCP(t *testing.T) {
	path := referenceFile(t)
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	t.Chdir("../..")
	rep, p := runJSON(t, "--mcp", path, "examples/mcp/spec.yaml", "What does this project's license ask of me, and what is 19 and 23?")
	p.close()
	var names []string
	for _, c := range rep.ToolCalls {
		if c.Outcome != string(psych.Succeeded) {
			t.Errorf("%s %s: %s", c.ID, c.Name, c.Outcome)
		}
		names = append(names, c.Name)
	}
	if got := strings.Join(names, " "); got != "list_tools list_tools read_tool read_tool call_tool call_tool" {
		t.Errorf("calls: %s", got)
	}
	if rep.FirstWire.Tools+rep.FirstWire.System > 3500 {
		t.Errorf("the first request has %+v of two deferred servers", rep.FirstWire)
	}

	// And what they offer.
	got := psychIn("", nil, "tools", "--mcp", path)
	got.wantCompleted(t)
	if !strings.Contains(got.stdout, "2 servers, 27 tools with ") || !strings.Contains(got.stdout, "$schema dropped") || !regexp.MustCompile(`(?m)^deferred .* 0 of 27 +2 of 2 `).MatchString(got.stdout) {
		t.Errorf("psych tools printed\n%s", got.stdout)
	}
	got = psychIn("", nil, "tools", "--mcp", path, "call", "everything", "get-sum", `{"a": 19, "b": 23}`)
	got.wantCompleted(t)
	if got.stdout != "The sum of 19 and 23 is 42.\n" {
		t.Errorf("psych tools call printed %q", got.stdout)
	}
	got = psychIn("", nil, "tools", "--mcp", path, "call", "everything", "get-tiny-image", `{}`, "--json")
	got.wantCompleted(t)
	var called callResult
	if err := json.Unmarshal([]byte(got.stdout), &called); err != nil || len(called.Attachments) != 1 || called.Attachments[0].ContentType != "image/png" || !bytes.HasPrefix(called.Attachments[0].Base64, []byte("\x89PNG")) {
		t.Errorf("psych tools call --json: %v\n%.500s", err, got.stdout)
	}
	got = psychIn("", nil, "tools", "--mcp", path, "call", "everything", "get-tiny-image", `{}`)
	if got.code != exitCompleted || !strings.Contains(got.stderr, "psych: attachment ") || !strings.Contains(got.stderr, "image/png") {
		t.Errorf("psych tools call says %q", got.stderr)
	}
}

// TestSSMSecrets guards that PSYCH_SECRETS_URL may be on the parameter store: a
// worker on a laptop reaches what is deployed.
func TestSSMSecrets(t *testing.T) {
	workdir(t, "mcp.json", `{"mcpServers": {}}`)
	for url, want := range map[string]string{"ssm:///team/prod?region=us-east-1": "", "ssm:///team/prod?region=": "has an empty region", "ssm:///team/prod?x=1": `unknown parameter "x"`} {
		got := psychIn("", []string{"PSYCH_SECRETS_URL=" + url}, "tools", "--mcp", "mcp.json")
		if named := strings.Contains(got.stderr, "PSYCH_SECRETS_URL: "); named != (want != "") || !strings.Contains(got.stderr, want) {
			t.Errorf("with %s: exit code %d\n%s", url, got.code, got.stderr)
		}
	}
}
