package killtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/psych-go/psych-go/adapters/mcp"
	"github.com/psych-go/psych-go/psych"
)

// A step of a mission is taken by one process after the other until it is done.
type step func(context.Context, *worker) error

// A beside is what a client does while a driver is at work: as soon as the
// driver has appended a record of a kind.
type beside struct {
	kind psych.Kind
	post step
}

// A mission is a Run and its clients.
type mission struct {
	name    string
	script  string
	tools   []string
	server  bool // a connection to the server "desk"
	limits  psych.Limits
	lease   time.Duration
	steps   []step
	beside  []beside
	status  string
	deleted bool // the Run is gone in the end
	loose   bool // a message comes when it comes: the model may be shown it earlier or later
}

func isAnswer(message []byte) bool { return bytes.HasPrefix(message, []byte(`{"role":"assistant",`)) }

func missionNamed(name string) *mission {
	for _, m := range missions {
		if m.name == name {
			return m
		}
	}
	panic("no mission " + name)
}

// classesScript has tools of every class in one batch, more than run at once.
const classesScript = `steps:
- text: I begin.
  calls: [{name: charge, arguments: {what: one}}, {name: look, arguments: {what: two}}, {name: alone, arguments: {what: three}}, {name: broken, arguments: {what: four}}, {name: page, arguments: {what: five}}, {name: charge, arguments: {what: six}}, {name: nothing, arguments: {}}]
- calls: [{name: look, arguments: {what: seven}}, {name: charge, arguments: {what: eight}}]
- text: It is done.
- text: So it is.
- text: As I said.
`

var missions = []*mission{
	{
		name: "classes", script: classesScript, tools: []string{"charge", "look", "alone", "broken", "page"}, limits: psych.Limits{Parallel: 2},
		steps: []step{start("m1"), drive}, status: psych.StatusCompleted,
	},
	{
		// Outputs and an answer in the BlobStore, a message that a client put
		// there, and what reads them.
		name: "payloads", tools: []string{"job", "report", "print"},
		script: `steps:
- calls: [{name: job, arguments: {what: nightly}}, {name: report, arguments: {what: all}}, {name: print, arguments: {what: it}}]
- calls: [{name: read_tool_output, arguments: {handle: out_c1_1_stdout, grep: "line 4000 "}}, {name: read_tool_output, arguments: {handle: out_c1_2, offset: 100, limit: 3}}]
- text: ` + strings.Repeat("The answer is long. ", 8000) + `
- calls: [{name: read_tool_output, arguments: {handle: out_c1_1_file-report-csv, offset: 5, limit: 2}}]
- text: Short.
`,
		steps: []step{start("large1"), drive, send("m2"), drive}, status: psych.StatusCompleted,
	},
	{
		name: "exchanges", tools: []string{"report", "charge"},
		script: `steps:
- calls: [{name: report, arguments: {what: a}}]
- text: First.
- calls: [{name: report, arguments: {what: b}}, {name: charge, arguments: {what: one}}]
- text: Second.
- text: Third.
`,
		limits: psych.Limits{LargeResultTokens: 60_000, BatchResultTokens: 60_000},
		steps:  []step{start("m1"), drive, send("m2"), drive, send("m3"), drive}, status: psych.StatusCompleted,
	},
	{
		name: "context", tools: []string{"look", "pages"},
		script: `steps:
- calls: [{name: pages, arguments: {what: a}}]
- calls: [{name: pages, arguments: {what: b}}]
- calls: [{name: pages, arguments: {what: c}}]
- calls: [{name: look, arguments: {what: d}}]
- text: Read.
`,
		limits: psych.Limits{ContextTokens: 9_000},
		steps:  []step{start("m1"), drive}, status: psych.StatusCompleted,
	},
	{
		// A tool that waits until it is cancelled, and a client that sees to that.
		name: "abort", tools: []string{"hang", "charge"}, lease: 1500 * time.Millisecond,
		script: `steps:
- calls: [{name: charge, arguments: {what: one}}, {name: hang, arguments: {what: two}}]
- text: After the abort.
`,
		beside: []beside{{psych.KindToolCallStarted, abort}},
		steps:  []step{start("m1"), drive, send("m2"), drive}, status: psych.StatusCompleted,
	},
	{
		name: "renewal", tools: []string{"patient"}, lease: 1500 * time.Millisecond,
		script: `steps:
- calls: [{name: patient, arguments: {what: one}}]
- text: At last.
`,
		steps: []step{start("m1"), drive}, status: psych.StatusCompleted,
	},
	{
		name: "deletion", tools: []string{"job"}, deleted: true,
		script: `steps:
- calls: [{name: job, arguments: {what: nightly}}]
- text: Done.
`,
		steps: []step{start("large1"), drive, remove, later},
	},
	{
		// The Run is deleted while a driver is at work on it.
		name: "deletion beside", tools: []string{"job"}, deleted: true,
		script: `steps:
- calls: [{name: job, arguments: {what: nightly}}]
- text: Done.
`,
		beside: []beside{{psych.KindToolCallStarted, remove}},
		steps:  []step{start("m1"), drive, remove, later},
	},
	{
		// Tools of a server, of every retry class, through every door.
		name: "server", server: true, tools: []string{"look"}, limits: psych.Limits{Parallel: 2},
		script: `steps:
- calls: [{name: desk__pay, arguments: {what: c1_1}}, {name: call_tool, arguments: {server: desk, tool: peek, arguments: {what: c1_2}}}, {name: look, arguments: {what: two}}, {name: desk__fails, arguments: {what: c1_4}}, {name: list_tools, arguments: {server: desk}}]
- calls: [{name: call_tool, arguments: {server: desk, tool: pay, arguments: {what: c2_1}}}, {name: desk__peek, arguments: {what: c2_2}}, {name: call_tool, arguments: {server: desk, tool: nothing}}]
- text: Done.
- calls: [{name: desk__pay, arguments: {what: c4_1}}]
- text: Done again.
`,
		steps: []step{start("m1"), drive, send("m2"), drive}, status: psych.StatusCompleted,
	},
	{
		// A message is posted behind write Post of the process, by a client in
		// it, or by a client of its own that is killed.
		name: "posted", script: classesScript, tools: []string{"charge", "look", "alone", "broken", "page"}, loose: true,
		steps: []step{start("m1"), drive, send("beside"), drive}, status: psych.StatusCompleted,
	},
}

// An effect is what a tool did: a line of effectsFile.
type effect struct{ Call, Tool, Key string }

// safe are the tools that may be run again.
var safe = map[string]bool{"desk__peek": true, "desk__fails": true, "list_tools": true, "look": true, "broken": true, "page": true, "report": true, "pages": true, "job": true}

type what struct {
	What string `json:"what"`
}

// tools are deterministic, but for what they do to the world.
func (w *worker) tools() []*psych.Tool {
	act := func(c *psych.Call) {
		_ = w.write(true, func() error {
			w.note(effectsFile, effect{c.ID, c.Name, c.IdempotencyKey})
			return nil
		})
	}
	tool := func(name string, o psych.ToolOptions, f func(context.Context, *psych.Call, what) (*psych.Result, error)) *psych.Tool {
		o.Idempotent = safe[name]
		return psych.NewTool(name, "Does "+name+".", func(ctx context.Context, c *psych.Call, in what) (*psych.Result, error) {
			act(c)
			return f(ctx, c, in)
		}, &o)
	}
	said := func(_ context.Context, c *psych.Call, in what) (*psych.Result, error) {
		return psych.Text(c.Name + " of " + in.What), nil
	}
	many := func(n int) func(context.Context, *psych.Call, what) (*psych.Result, error) {
		return func(_ context.Context, _ *psych.Call, in what) (*psych.Result, error) {
			return psych.Text(lines(n, in.What)), nil
		}
	}
	attaching := func(_ context.Context, c *psych.Call, in what) (*psych.Result, error) {
		for _, a := range []struct {
			name string
			n    int
		}{{"stdout", 8000}, {"stderr", 3}, {"file:report.csv", 9000}} {
			at, err := c.Attach(a.name, "text/plain", nil)
			if err != nil {
				return nil, err
			}
			if _, err := io.WriteString(at, lines(a.n, in.What)); err != nil {
				return nil, err
			}
			if err := at.Close(); err != nil {
				return nil, err
			}
		}
		return psych.Text("exit 0"), nil
	}
	return []*psych.Tool{
		tool("charge", psych.ToolOptions{}, said),
		tool("look", psych.ToolOptions{}, said),
		tool("alone", psych.ToolOptions{Sequential: true}, said),
		tool("broken", psych.ToolOptions{}, func(context.Context, *psych.Call, what) (*psych.Result, error) {
			return nil, errors.New("it is broken")
		}),
		tool("page", psych.ToolOptions{Pages: true}, said),
		tool("report", psych.ToolOptions{}, many(8000)),
		tool("pages", psych.ToolOptions{}, many(700)),
		tool("job", psych.ToolOptions{}, attaching),
		tool("print", psych.ToolOptions{}, attaching),
		tool("hang", psych.ToolOptions{}, func(ctx context.Context, _ *psych.Call, _ what) (*psych.Result, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}),
		tool("patient", psych.ToolOptions{}, func(ctx context.Context, _ *psych.Call, in what) (*psych.Result, error) {
			w.mu.Lock()
			renewed := w.renewed
			w.mu.Unlock()
			if renewed != nil {
				select {
				case <-renewed:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return psych.Text("patient with " + in.What), nil
		}),
	}
}

// serverArgument makes the test binary the server "desk", over its standard
// streams: behind it stands the directory of the trial.
const serverArgument = "-psych-killtest-server"

// serve is the server: what its tools did is noted under the call that their
// argument names, with the idempotency key of the request.
func serve(dir string) error {
	t := &tap{dir: dir}
	s := sdk.NewServer(&sdk.Implementation{Name: "desk", Version: "1"}, nil)
	for name, safe := range map[string]bool{"pay": false, "peek": true, "fails": true} {
		s.AddTool(&sdk.Tool{
			Name: name, Description: "Does " + name + ".", Annotations: &sdk.ToolAnnotations{IdempotentHint: safe},
			InputSchema: json.RawMessage(`{"type":"object","properties":{"what":{"type":"string"}},"required":["what"]}`),
		}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			var in what
			if err := json.Unmarshal(r.Params.Arguments, &in); err != nil {
				return nil, err
			}
			key, _ := r.Params.Meta[mcp.MetaIdempotencyKey].(string)
			t.note(effectsFile, effect{in.What, "desk__" + name, key})
			return &sdk.CallToolResult{IsError: name == "fails", Content: []sdk.Content{&sdk.TextContent{Text: name + " of " + in.What}}}, nil
		})
	}
	return s.Run(context.Background(), &sdk.StdioTransport{})
}

func lines(n int, of string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s, line %d of it\n", of, i)
	}
	return b.String()
}
