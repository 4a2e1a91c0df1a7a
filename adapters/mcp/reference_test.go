//go:build unix

package mcp_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/psych-go/psych-go/adapters/mcp"
	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

// A reference is a session with one of the reference servers.
type reference struct {
	psych.Session
	tools   []psych.RemoteTool
	changed atomic.Int32
}

func openReference(t *testing.T, c *psych.Connection, secret string) *reference {
	t.Helper()
	r := &reference{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var err error
	r.Session, err = mcp.New(&mcp.Options{AllowCommands: true}).Connect(ctx, c, psych.ConnectOptions{
		Scope: psych.Scope{Tenant: "t"}, Secret: secret, ListChanged: func() { r.changed.Add(1) }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	for cursor := (*string)(nil); ; {
		page, err := r.ListTools(ctx, cursor)
		if err != nil {
			t.Fatal(err)
		}
		r.tools = append(r.tools, page.Tools...)
		if cursor = page.Next; cursor == nil {
			return r
		}
	}
}

func (r *reference) tool(name string) *psych.RemoteTool {
	if i := slices.IndexFunc(r.tools, func(t psych.RemoteTool) bool { return t.Name == name }); i >= 0 {
		return &r.tools[i]
	}
	return &psych.RemoteTool{ToolDef: psych.ToolDef{Name: name}}
}

// A remoteCall is one call and what it left.
type remoteCall struct {
	tool, args  string
	timeout     time.Duration
	failed      bool
	contentType string
	result      string
	attachments []psych.Attachment
}

// run calls tools one after the other, each as the call of a Run, where
// attachments are kept and progress counts.
func (r *reference) run(t *testing.T, calls ...*remoteCall) {
	t.Helper()
	var tools []*psych.Tool
	var names []string
	var steps strings.Builder
	for i, c := range calls {
		name := fmt.Sprintf("call%d", i+1)
		names = append(names, name)
		fmt.Fprintf(&steps, "- calls: [{name: %s, arguments: {}}]\n", name)
		tools = append(tools, psych.NewRawTool(psych.ToolDef{Name: name}, func(ctx context.Context, call *psych.Call) (*psych.Result, error) {
			remote := *call
			remote.Arguments = json.RawMessage(c.args)
			return r.CallTool(ctx, r.tool(c.tool), &remote)
		}, &psych.ToolOptions{Timeout: c.timeout}))
	}
	s, err := script.Parse([]byte("steps:\n" + steps.String() + "- text: done\n"))
	if err != nil {
		t.Fatal(err)
	}
	rt, err := psych.New(memory.New(nil), &psych.Options{
		Blobs: memory.NewBlobs(nil), Tools: tools,
		Models: func(context.Context, string) (psych.Model, error) { return script.New(s, nil), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := rt.Ask(t.Context(), psych.Scope{Tenant: "t"}, &psych.Spec{Name: "n", Tools: names}, "go", nil)
	if err != nil {
		t.Fatal(err)
	}
	next := 0
	for record, err := range rt.Records(t.Context(), answer.Run, psych.Pos{}) {
		if err != nil {
			t.Fatal(err)
		}
		if done, ok := record.Event.(*psych.ToolCallFinished); ok {
			c := calls[next]
			next++
			c.failed, c.contentType, c.result, c.attachments = done.Outcome != psych.Succeeded, done.Result.ContentType, string(done.Result.Inline), done.Attachments
			for _, a := range c.attachments {
				if a.Output.Ref != nil {
					t.Errorf("%s %s: the attachment %s is not inline", c.tool, c.args, a.Name)
				}
			}
		}
	}
	if next != len(calls) {
		t.Fatalf("%d of %d calls ended", next, len(calls))
	}
}

func (c *remoteCall) String() string {
	s := fmt.Sprintf("%s %s: failed %v, %s %.300q", c.tool, c.args, c.failed, c.contentType, c.result)
	for _, a := range c.attachments {
		s += fmt.Sprintf("\n\t%q, %s, %d bytes: %.100q", a.Name, a.Output.ContentType, a.Output.Size, a.Output.Inline)
	}
	return s
}

// referenceCommand is server-everything as a command. sh stays, so that the
// node below it is not what was started, and neither is what else it leaves:
// their ids are in the file of processes.
func referenceCommand(t *testing.T) (c *psych.Connection, processes string) {
	t.Helper()
	processes = filepath.Join(t.TempDir(), "processes")
	return &psych.Connection{Name: "everything", Command: append([]string{"sh", "-c", `
		sleep 600 & echo $! >>"$0"
		sh -c 'echo $$ >>"$0"; exec "$@"' "$0" "$@"
		echo ended >&2
	`, processes}, endpoint.MCPServer(t, "everything")...)}, processes
}

// listReference asks a server for its tools without any library of MCP.
func listReference(t *testing.T, command []string) (instructions string, tools []map[string]json.RawMessage) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	if _, err := io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/list"}
`); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		var m struct {
			ID     int
			Result struct {
				Instructions string
				Tools        []map[string]json.RawMessage
				NextCursor   *string
			}
		}
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatal(err)
		}
		if m.ID == 1 {
			instructions = m.Result.Instructions
		}
		if m.ID == 2 {
			if m.Result.NextCursor != nil {
				t.Fatal("the server has several pages")
			}
			return instructions, m.Result.Tools
		}
	}
}

// What a session says of a server is what the server said, schemas byte for
// byte.
func TestReferenceTools(t *testing.T) {
	for name, args := range map[string][]string{"everything": nil, "filesystem": {t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command := append(endpoint.MCPServer(t, name), args...)
			r := openReference(t, &psych.Connection{Name: name, Command: command}, "")
			instructions, want := listReference(t, command)
			if got := r.Instructions(); got != instructions || name == "everything" && !strings.Contains(got, "Server Instructions") {
				t.Errorf("instructions are %.100q, want %.100q", got, instructions)
			}
			if len(want) < 10 {
				t.Errorf("the server has %d tools", len(want))
			}
			if len(r.tools) != len(want) {
				t.Fatalf("%d tools, want %d", len(r.tools), len(want))
			}
			structured := 0
			for i, w := range want {
				text := func(field string) (s string) {
					if w[field] != nil {
						if err := json.Unmarshal(w[field], &s); err != nil {
							t.Fatal(err)
						}
					}
					return s
				}
				var hints struct{ ReadOnlyHint, IdempotentHint bool }
				if err := json.Unmarshal(w["annotations"], &hints); err != nil {
					t.Fatal(err)
				}
				if w["outputSchema"] != nil {
					structured++
				}
				if got := r.tools[i]; !reflect.DeepEqual(got, psych.RemoteTool{
					ToolDef: psych.ToolDef{Name: text("name"), Description: text("description"), Schema: w["inputSchema"]},
					Title:   text("title"), Output: w["outputSchema"], ReadOnly: hints.ReadOnlyHint, Idempotent: hints.IdempotentHint,
				}) {
					t.Errorf("tool %d is\n%+v\nand was sent as\n%s", i, got, w)
				}
			}
			if structured == 0 {
				t.Error("no tool has an output schema")
			}
		})
	}
}

const (
	beginPNG  = "\x89PNG\r\n\x1a\n"
	base64PNG = "iVBORw0KGg" // of that
)

func TestReferenceResults(t *testing.T) {
	t.Parallel()
	c, _ := referenceCommand(t)
	r := openReference(t, c, "")
	referenceResults(t, r)
	// It adds tools once it knows its client, and says so; over HTTP nobody may
	// listen yet at that moment.
	comesTrue(t, "the server's notification is heard", func() bool { return r.changed.Load() > 0 })
}

// referenceResults calls server-everything for each kind of result that it has.
func referenceResults(t *testing.T, r *reference) {
	t.Helper()
	text := func(c *remoteCall) string {
		all := c.result
		for _, a := range c.attachments {
			all += "\n" + string(a.Output.Inline)
		}
		return all
	}
	holds := func(parts ...string) func(*remoteCall) bool {
		return func(c *remoteCall) bool {
			all := text(c)
			return !c.failed && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(all, p) })
		}
	}
	fails := func(parts ...string) func(*remoteCall) bool {
		return func(c *remoteCall) bool {
			return c.failed && len(c.attachments) == 0 && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(c.result, p) })
		}
	}
	attached := func(contentType, prefix string) func(*remoteCall) bool {
		return func(c *remoteCall) bool {
			return slices.ContainsFunc(c.attachments, func(a psych.Attachment) bool {
				return a.Output.ContentType == contentType && bytes.HasPrefix(a.Output.Inline, []byte(prefix))
			})
		}
	}
	both := func(a, b func(*remoteCall) bool) func(*remoteCall) bool {
		return func(c *remoteCall) bool { return a(c) && b(c) }
	}
	plain := func(want string) func(*remoteCall) bool {
		return func(c *remoteCall) bool {
			return !c.failed && c.contentType == "text/plain" && c.result == want && len(c.attachments) == 0
		}
	}
	cases := []struct {
		tool, args string
		want       func(*remoteCall) bool
	}{
		{"echo", `{"message":"hé\n\u0000<&>😀"}`, plain("Echo: hé\n\x00<&>😀")},
		{"get-sum", `{"a":2,"b":3.5}`, plain("The sum of 2 and 3.5 is 5.5.")},
		{"get-structured-content", `{"location":"Chicago"}`, func(c *remoteCall) bool {
			return !c.failed && c.contentType == "application/json" && c.result == `{"temperature":36,"conditions":"Light rain / drizzle","humidity":82}` && len(c.attachments) == 0
		}},
		{"get-tiny-image", `{}`, both(holds("Here's the image you requested:", "The image above is the MCP logo."), attached("image/png", beginPNG))},
		{"get-annotated-message", `{"messageType":"error","includeImage":false}`, plain("Error: Operation failed")},
		{"get-annotated-message", `{"messageType":"success","includeImage":true}`, both(holds("Operation completed successfully"), attached("image/png", beginPNG))},
		{"get-resource-links", `{"count":2}`, holds("Here are 2 resource links", "demo://resource/dynamic/blob/1", "demo://resource/dynamic/text/2", "Blob Resource 1")},
		{"get-resource-reference", `{"resourceType":"Text","resourceId":2}`, both(holds("Returning resource reference for Resource 2:"), attached("text/plain", "Resource 2: This is a plaintext resource created at "))},
		{"get-resource-reference", `{"resourceType":"Blob","resourceId":1}`, both(holds("demo://resource/dynamic/blob/1"), attached("text/plain", "Resource 1: This is a base64 blob created at "))},
		{"gzip-file-as-resource", `{"name":"a.gz","data":"data:text/plain,hello","outputType":"resource"}`, both(attached("application/gzip", "\x1f\x8b"), func(c *remoteCall) bool {
			z, err := gzip.NewReader(bytes.NewReader(c.attachments[0].Output.Inline))
			if err != nil {
				return false
			}
			got, err := io.ReadAll(z)
			return err == nil && string(got) == "hello" && len(c.attachments) == 1
		})},
		{"gzip-file-as-resource", `{"name":"a.gz","data":"data:text/plain,hello","outputType":"resourceLink"}`, holds("demo://resource/session/a.gz", "application/gzip")},
		{"toggle-simulated-logging", `{}`, holds("Started simulated")}, // and notifications that nobody asked for
		{"trigger-long-running-operation", `{"duration":0.1,"steps":100}`, plain("Long running operation completed. Duration: 0.1 seconds, Steps: 100.")},
		{"echo", `{"message":3}`, fails("expected string, received number")},
		{"get-resource-reference", `{"resourceType":"Text","resourceId":-1}`, fails("Must be a finite positive integer")},
		{"no-such-tool", `{}`, fails("no-such-tool not found")},
		{"simulate-research-query", `{"topic":"x"}`, fails("task")}, // can be called as a task alone
		{"echo", `{"message":"after all that"}`, plain("Echo: after all that")},
	}
	calls := make([]*remoteCall, len(cases))
	for i, c := range cases {
		calls[i] = &remoteCall{tool: c.tool, args: c.args}
	}
	r.run(t, calls...)
	for i, c := range calls {
		if !cases[i].want(c) {
			t.Errorf("unexpected: %v", c)
		}
		if strings.Contains(text(c), base64PNG) {
			t.Errorf("an image is base64: %v", c)
		}
	}
}

// Progress that the server tells of extends a call's time: this one takes three
// seconds of the two that it has.
func TestReferenceProgress(t *testing.T) {
	t.Parallel()
	c, _ := referenceCommand(t)
	call := &remoteCall{tool: "trigger-long-running-operation", args: `{"duration":3,"steps":30}`, timeout: 2 * time.Second}
	openReference(t, c, "").run(t, call)
	if call.failed || !strings.Contains(call.result, "completed") {
		t.Error(call)
	}
}

// A call whose context ends leaves a session that works.
func TestReferenceCancel(t *testing.T) {
	t.Parallel()
	c, _ := referenceCommand(t)
	r := openReference(t, c, "")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	call := &psych.Call{ToolCall: psych.ToolCall{Arguments: json.RawMessage(`{"duration":600,"steps":600}`)}}
	if res, err := r.CallTool(ctx, r.tool("trigger-long-running-operation"), call); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, %v; want the context's error", res, err)
	}
	after := &remoteCall{tool: "echo", args: `{"message":"still here"}`}
	if r.run(t, after); after.result != "Echo: still here" {
		t.Error(after)
	}
}

// A command gets its credential, and of this process's environment no secrets.
func TestReferenceEnvironment(t *testing.T) {
	t.Setenv("PSYCH_TEST_OF_MCP", "s3cr3t-of-the-process")
	c, _ := referenceCommand(t)
	call := &remoteCall{tool: "get-env", args: "{}"}
	openReference(t, c, `{"env": {"SERVER_TOKEN": "s3cr3t-of-the-server"}}`).run(t, call)
	var env map[string]string
	if err := json.Unmarshal([]byte(call.result), &env); err != nil {
		t.Fatalf("%v: %v", err, call)
	}
	if env["SERVER_TOKEN"] != "s3cr3t-of-the-server" || env["PATH"] == "" || strings.Contains(call.result, "s3cr3t-of-the-process") {
		t.Errorf("the server's environment is %v", env)
	}
}

// Close ends all that a command has started.
func TestReferenceClose(t *testing.T) {
	t.Parallel()
	c, processes := referenceCommand(t)
	r := openReference(t, c, "")
	pids := processIDs(t, processes)
	if len(pids) != 2 || !runs(pids[0]) || !runs(pids[1]) {
		t.Fatalf("the processes %v don't run", pids)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	for _, pid := range pids {
		comesTrue(t, fmt.Sprintf("process %d has ended", pid), func() bool { return !runs(pid) })
	}
	if _, err := r.ListTools(t.Context(), nil); !errors.Is(err, psych.ErrSessionLost) {
		t.Errorf("a closed session: %v", err)
	}
}

// A server that died is a lost session, from the next request on.
func TestReferenceDies(t *testing.T) {
	t.Parallel()
	c, processes := referenceCommand(t)
	r := openReference(t, c, "")
	pids := processIDs(t, processes)
	if err := syscall.Kill(pids[len(pids)-1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	comesTrue(t, "the session is lost", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.ListTools(ctx, nil)
		return errors.Is(err, psych.ErrSessionLost)
	})
	if _, err := r.CallTool(t.Context(), r.tool("echo"), &psych.Call{ToolCall: psych.ToolCall{Arguments: json.RawMessage(`{"message":"x"}`)}}); !errors.Is(err, psych.ErrSessionLost) {
		t.Errorf("a call to a server that died: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	for _, pid := range pids {
		comesTrue(t, fmt.Sprintf("process %d has ended", pid), func() bool { return !runs(pid) })
	}
}

func TestReferenceFilesystem(t *testing.T) {
	t.Parallel()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	outside, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(outside, "secret.txt")
	png := beginPNG + "not much of an image"
	if err := errors.Join(os.WriteFile(secret, []byte("s3cr3t"), 0o600), os.Symlink(secret, filepath.Join(root, "link")), os.WriteFile(filepath.Join(root, "i.png"), []byte(png), 0o600)); err != nil {
		t.Fatal(err)
	}
	r := openReference(t, &psych.Connection{Name: "files", Command: append(endpoint.MCPServer(t, "filesystem"), root)}, "")
	call := func(tool string, args map[string]any) *remoteCall {
		t.Helper()
		b, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		c := &remoteCall{tool: tool, args: string(b)}
		r.run(t, c)
		return c
	}
	file := filepath.Join(root, "a.txt")
	const content = "one\n\"two\" é\n\tthree"
	if c := call("write_file", map[string]any{"path": file, "content": content}); c.failed || !strings.Contains(c.result, "Successfully wrote") {
		t.Error(c)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != content {
		t.Errorf("the file holds %q, %v", got, err)
	}
	// Its structured content is an object around what the content says: a text
	// that isn't there twice, and an image that isn't base64.
	if c := call("read_text_file", map[string]any{"path": file}); c.failed || c.contentType != "text/plain" || c.result != content || len(c.attachments) != 0 {
		t.Error(c)
	}
	if c := call("edit_file", map[string]any{"path": file, "edits": []any{map[string]any{"oldText": "one", "newText": "eins"}}}); c.failed || !strings.Contains(c.result, "+eins") {
		t.Error(c)
	}
	if c := call("list_directory", map[string]any{"path": root}); c.failed || !strings.Contains(c.result, "[FILE] a.txt") {
		t.Error(c)
	}
	if c := call("read_media_file", map[string]any{"path": filepath.Join(root, "i.png")}); c.failed ||
		len(c.attachments) != 1 || c.attachments[0].Output.ContentType != "image/png" || string(c.attachments[0].Output.Inline) != png || strings.Contains(c.result, base64PNG) {
		t.Error(c)
	}
	for _, path := range []string{secret, filepath.Join(root, "link"), root + "/../" + filepath.Base(outside) + "/secret.txt", "/etc/hosts", filepath.Join(outside, "new")} {
		for _, tool := range []string{"read_text_file", "write_file"} {
			c := call(tool, map[string]any{"path": path, "content": "overwritten"})
			if !c.failed || !strings.Contains(c.result, "Access denied") || strings.Contains(c.result, "s3cr3t") {
				t.Error(c)
			}
		}
	}
	if got, err := os.ReadFile(secret); err != nil || string(got) != "s3cr3t" {
		t.Errorf("the file outside holds %q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file outside was made: %v", err)
	}
}

// listenLocally makes a server of node that listens on all addresses listen on
// 127.0.0.1, says where, and ends it with its standard input.
const listenLocally = `
import net from 'node:net'
const listen = net.Server.prototype.listen
net.Server.prototype.listen = function (port, ...rest) {
	this.once('listening', () => console.log('port ' + this.address().port))
	return listen.call(this, Number(port), '127.0.0.1', ...rest)
}
process.stdin.on('end', () => process.exit(0)).resume()
`

// serveReference runs server-everything over HTTP until stop is called, or the
// test ends. lines are what it has printed.
func serveReference(t *testing.T, port int) (address string, stop func(), lines func() string) {
	t.Helper()
	command := endpoint.MCPServer(t, "everything")
	cmd := exec.Command(command[0], "--import", "data:text/javascript,"+url.PathEscape(listenLocally), command[1], "streamableHttp")
	cmd.Env = append(os.Environ(), fmt.Sprintf("PORT=%d", port))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var printed strings.Builder
	ports, read := make(chan int, 1), make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(out); s.Scan(); {
			mu.Lock()
			fmt.Fprintln(&printed, s.Text())
			mu.Unlock()
			if p, ok := strings.CutPrefix(s.Text(), "port "); ok {
				n, _ := strconv.Atoi(p)
				ports <- n
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		in.Close()
		<-read
		_ = cmd.Wait()
	})
	t.Cleanup(stop)
	lines = func() string {
		mu.Lock()
		defer mu.Unlock()
		return printed.String()
	}
	select {
	case port := <-ports:
		return fmt.Sprintf("http://127.0.0.1:%d/mcp", port), stop, lines
	case <-read:
	case <-time.After(time.Minute):
	}
	t.Fatalf("server-everything does not listen:\n%s", lines())
	return "", nil, nil
}

func TestReferenceHTTP(t *testing.T) {
	t.Parallel()
	address, _, lines := serveReference(t, 0)
	r := openReference(t, &psych.Connection{Name: "everything", URL: address}, "")
	if !strings.Contains(r.Instructions(), "Server Instructions") {
		t.Errorf("instructions are %.100q", r.Instructions())
	}
	referenceResults(t, r)
	call := &remoteCall{tool: "trigger-long-running-operation", args: `{"duration":3,"steps":30}`, timeout: 2 * time.Second}
	if r.run(t, call); call.failed {
		t.Errorf("progress was not heard: %v", call)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	comesTrue(t, "the server was told of the end", func() bool { return strings.Contains(lines(), "Received session termination request") })
}

// A server that was started again knows no session. This one says so with the
// status 400, where the protocol wants 404.
func TestReferenceHTTPRestart(t *testing.T) {
	t.Parallel()
	address, stop, _ := serveReference(t, 0)
	c := &psych.Connection{Name: "everything", URL: address}
	r, other := openReference(t, c, ""), openReference(t, c, "")
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	stop()
	serveReference(t, port)
	if _, err := r.ListTools(t.Context(), nil); !errors.Is(err, psych.ErrSessionLost) {
		t.Errorf("a listing in a session that the server forgot: %v", err)
	}
	echo := &psych.Call{ToolCall: psych.ToolCall{Arguments: json.RawMessage(`{"message":"x"}`)}}
	if _, err := other.CallTool(t.Context(), other.tool("echo"), echo); !errors.Is(err, psych.ErrSessionLost) {
		t.Errorf("a call in a session that the server forgot: %v", err)
	}
	after := &remoteCall{tool: "echo", args: `{"message":"again"}`}
	if openReference(t, c, "").run(t, after); after.result != "Echo: again" {
		t.Error(after)
	}
}

// comesTrue waits until ok, which other processes bring about.
func comesTrue(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func processIDs(t *testing.T, file string) (pids []int) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// runs reports whether a process runs. One that has ended may wait for long
// until somebody asks for its status, where the first process of a container
// doesn't.
func runs(pid int) bool {
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		_, state, _ := strings.Cut(string(stat), ") ")
		return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
	}
	return syscall.Kill(pid, 0) == nil
}
