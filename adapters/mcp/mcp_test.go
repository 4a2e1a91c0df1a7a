//go:build unix

package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/psych-go/psych-go/adapters/mcp"
	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
)

func TestMain(m *testing.M) {
	if name := os.Getenv("MCP_TEST_SERVER"); name != "" {
		serve(name) // this binary is what a test runs as a command
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connect opens a session that is closed with the test.
func connect(t *testing.T, c *psych.Connection, o psych.ConnectOptions, mo *mcp.Options) psych.Session {
	t.Helper()
	s, err := tryConnect(t, c, o, mo)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func tryConnect(t *testing.T, c *psych.Connection, o psych.ConnectOptions, mo *mcp.Options) (psych.Session, error) {
	t.Helper()
	if c.Name == "" {
		c.Name = "srv"
	}
	o.Scope = psych.Scope{Tenant: "t"}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.ListChanged == nil {
		o.ListChanged = func() {}
	}
	return mcp.New(mo).Connect(t.Context(), c, o)
}

func call(ctx context.Context, s psych.Session, name, args string) (string, bool, error) {
	c := &psych.Call{ToolCall: psych.ToolCall{Arguments: json.RawMessage(args)}, IdempotencyKey: "key-1"}
	r, err := s.CallTool(ctx, &psych.RemoteTool{ToolDef: psych.ToolDef{Name: name}}, c)
	if err != nil {
		return "", false, err
	}
	b, err := io.ReadAll(r.Body)
	return string(b), r.IsError, err
}

// An output is what a Run has of a result, or of an attachment.
type output struct{ name, contentType, text string }

// inRun calls a tool from within a Run, where attachments are kept.
func inRun(t *testing.T, s psych.Session, remote *psych.RemoteTool, args string) (outputs []output, failed bool) {
	t.Helper()
	tool := psych.NewRawTool(psych.ToolDef{Name: "via"}, func(ctx context.Context, c *psych.Call) (*psych.Result, error) {
		return s.CallTool(ctx, remote, c)
	}, nil)
	steps, err := json.Marshal(map[string]any{"steps": []any{
		map[string]any{"calls": []any{map[string]any{"name": "via", "arguments": json.RawMessage(args)}}}, map[string]any{"text": "done"},
	}})
	must(t, err)
	sc, err := script.Parse(steps)
	must(t, err)
	ctx := t.Context()
	rt, err := psych.New(memory.New(nil), &psych.Options{Models: psych.OneModel(script.New(sc, nil)), Blobs: memory.NewBlobs(nil), Tools: []*psych.Tool{tool}})
	must(t, err)
	v, err := rt.Publish(ctx, "t", &psych.Spec{Name: "a", Tools: []string{"via"}})
	must(t, err)
	key, err := rt.Start(ctx, psych.Scope{Tenant: "t"}, v.Hash, psych.ClientMessage{ID: "m", Text: "go"})
	must(t, err)
	if out, err := rt.Drive(ctx, key, nil); out != psych.Closed || err != nil {
		t.Fatal(out, err)
	}
	for r, err := range rt.Records(ctx, key, psych.Pos{}) {
		must(t, err)
		f, ok := r.Event.(*psych.ToolCallFinished)
		if !ok {
			continue
		}
		read := func(p psych.Payload) string {
			if p.Ref == nil {
				return string(p.Inline)
			}
			return "(in the BlobStore)"
		}
		outputs = append(outputs, output{"", f.Result.ContentType, read(f.Result)})
		for _, a := range f.Attachments {
			outputs = append(outputs, output{a.Name, a.Output.ContentType, read(a.Output)})
		}
		failed = f.Outcome != psych.Succeeded
	}
	return outputs, failed
}

// testServer is a server of the SDK.
func testServer() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ServerOptions{Instructions: "Be kind."})
	raw := func(name string, schema string, f func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error)) {
		s.AddTool(&sdk.Tool{Name: name, Description: "Does " + name + ".", InputSchema: json.RawMessage(schema), Annotations: &sdk.ToolAnnotations{ReadOnlyHint: name == "echo", IdempotentHint: name == "meta", Title: "T"}}, f)
	}
	const any = `{"type":"object","zebra":1234567890123456789,"additionalProperties":true}`
	raw("echo", any, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{StructuredContent: r.Params.Arguments, Content: []sdk.Content{&sdk.TextContent{Text: string(r.Params.Arguments)}}}, nil
	})
	raw("meta", any, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprint(r.Params.Meta[mcp.MetaIdempotencyKey])}}}, nil
	})
	raw("fail", any, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: "no such file"}}}, nil
	})
	raw("progress", any, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		for i := range 3 {
			if err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i)}); err != nil {
				return nil, err
			}
		}
		return &sdk.CallToolResult{}, nil
	})
	raw("more", any, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		s.AddTool(&sdk.Tool{Name: "newcomer", InputSchema: json.RawMessage(any)}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{}, nil
		})
		return &sdk.CallToolResult{}, nil
	})
	raw("elicit", any, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		_, err := r.Session.Elicit(ctx, &sdk.ElicitParams{Message: "who?", RequestedSchema: json.RawMessage(`{"type":"object"}`)})
		if err == nil {
			return &sdk.CallToolResult{}, nil
		}
		return nil, err
	})
	raw("header", `{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}`, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "header " + r.Extra.Header.Get("Mcp-Param-Region")}}}, nil
	})
	return s
}

// httpVariants are servers of the SDK over HTTP.
var httpVariants = map[string]*sdk.StreamableHTTPOptions{
	"sessions":       {EventStore: sdk.NewMemoryEventStore(nil)},
	"sessions json":  {JSONResponse: true},
	"stateless":      {Stateless: true},
	"stateless json": {Stateless: true, JSONResponse: true},
}

// forAll runs a test with all kinds of servers.
func forAll(t *testing.T, f func(t *testing.T, open func(o psych.ConnectOptions) psych.Session)) {
	for name, o := range httpVariants {
		t.Run(name, func(t *testing.T) {
			server := testServer()
			hs := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, o))
			t.Cleanup(func() { hs.CloseClientConnections(); hs.Close() })
			f(t, func(o psych.ConnectOptions) psych.Session { return connect(t, &psych.Connection{URL: hs.URL}, o, nil) })
		})
	}
	t.Run("command", func(t *testing.T) {
		f(t, func(o psych.ConnectOptions) psych.Session { return command(t, "sdk", o) })
	})
}

func TestSession(t *testing.T) {
	forAll(t, func(t *testing.T, open func(psych.ConnectOptions) psych.Session) {
		ctx := t.Context()
		s := open(psych.ConnectOptions{})
		if got := s.Instructions(); got != "Be kind." {
			t.Errorf("instructions %q", got)
		}
		page, err := s.ListTools(ctx, nil)
		must(t, err)
		i := slices.IndexFunc(page.Tools, func(t psych.RemoteTool) bool { return t.Name == "echo" })
		if i < 0 || page.Next != nil {
			t.Fatalf("%+v", page)
		}
		e := page.Tools[i]
		if e.Description != "Does echo." || e.Title != "T" || !e.ReadOnly || e.Idempotent || e.Output != nil {
			t.Errorf("%+v", e)
		}
		if got := string(e.Schema); got != `{"type":"object","zebra":1234567890123456789,"additionalProperties":true}` {
			t.Errorf("schema %s", got)
		}
		const args = `{"n":1234567890123456789,"z":1.50,"a":"b"}`
		if got, failed, err := call(ctx, s, "echo", args); got != args || failed || err != nil {
			t.Errorf("%q, %v, %v", got, failed, err)
		}
		if got, failed, err := call(ctx, s, "meta", ""); got != "key-1" || failed || err != nil {
			t.Errorf("idempotency key: %q, %v, %v", got, failed, err)
		}
		if got, failed, err := call(ctx, s, "fail", "{}"); got != "no such file" || !failed || err != nil {
			t.Errorf("%q, %v, %v", got, failed, err)
		}
		if got, failed, err := call(ctx, s, "nothing", "{}"); !strings.Contains(got, "nothing") || !failed || err != nil {
			t.Errorf("unknown tool: %q, %v, %v", got, failed, err)
		}
		if got, failed, err := call(ctx, s, "elicit", "{}"); !strings.Contains(got, "elicit") || !failed || err != nil {
			t.Errorf("elicitation: %q, %v, %v", got, failed, err)
		}
		if _, _, err := call(ctx, s, "echo", `{"a":`); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("broken arguments: %v", err)
		}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				args := fmt.Sprintf(`{"i":%d}`, i)
				if got, _, err := call(ctx, s, "echo", args); got != args || err != nil {
					t.Errorf("%q, %v", got, err)
				}
			})
		}
		wg.Wait()
		must(t, s.Close())
		if _, err := s.ListTools(ctx, nil); !errors.Is(err, psych.ErrSessionLost) {
			t.Errorf("after Close: %v", err)
		}
		if _, _, err := call(ctx, s, "echo", "{}"); !errors.Is(err, psych.ErrSessionLost) {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestListChanged(t *testing.T) {
	forAll(t, func(t *testing.T, open func(psych.ConnectOptions) psych.Session) {
		changed := make(chan bool, 100)
		s := open(psych.ConnectOptions{ListChanged: func() { changed <- true }})
		// A change before the stream that tells of changes is open is told to nobody.
		for told, n := false, 0; !told; n++ {
			if n == 60 {
				t.Fatal("no change is told")
			}
			if _, _, err := call(t.Context(), s, "more", "{}"); err != nil {
				t.Fatal(err)
			}
			select {
			case <-changed:
				told = true
			case <-time.After(time.Second):
			}
		}
		page, err := s.ListTools(t.Context(), nil) // past every cache
		must(t, err)
		if !slices.ContainsFunc(page.Tools, func(t psych.RemoteTool) bool { return t.Name == "newcomer" }) {
			t.Error("the new tool is not listed")
		}
	})
}

func TestParameterHeaders(t *testing.T) {
	server := testServer()
	hs := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, httpVariants["stateless"]))
	t.Cleanup(func() { hs.CloseClientConnections(); hs.Close() })
	s := connect(t, &psych.Connection{URL: hs.URL}, psych.ConnectOptions{}, nil)
	page, err := s.ListTools(t.Context(), nil)
	must(t, err)
	var tool psych.RemoteTool
	for _, tool = range page.Tools {
		if tool.Name == "header" {
			break
		}
	}
	fresh := connect(t, &psych.Connection{URL: hs.URL}, psych.ConnectOptions{}, nil) // has listed nothing
	for _, region := range []string{"eu", "us"} {
		r, err := fresh.CallTool(t.Context(), &tool, &psych.Call{ToolCall: psych.ToolCall{Arguments: json.RawMessage(`{"region":"` + region + `"}`)}})
		must(t, err)
		if b, _ := io.ReadAll(r.Body); string(b) != "header "+region {
			t.Errorf("%s: %s", region, b)
		}
	}
}

// Progress is told for the call that it is of.
func TestProgress(t *testing.T) {
	forAll(t, func(t *testing.T, open func(psych.ConnectOptions) psych.Session) {
		if strings.HasSuffix(t.Name(), "json") {
			return // an answer of one JSON document has no place for it
		}
		s := open(psych.ConnectOptions{})
		if _, failed, err := call(t.Context(), s, "progress", "{}"); failed || err != nil {
			t.Fatal(failed, err)
		}
		if n := mcp.Heard(s); n != 3 {
			t.Errorf("%d times", n)
		}
	})
}
