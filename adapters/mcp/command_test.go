//go:build unix

package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/psych-go/psych-go/adapters/mcp"
	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/psych"
)

const secretValue = "s3cr3t-value-of-a-test"

// command opens a session with this binary as a server of that name.
func command(t *testing.T, server string, o psych.ConnectOptions) psych.Session {
	t.Helper()
	s, err := tryCommand(t, server, nil, o, nil)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func tryCommand(t *testing.T, server string, env map[string]string, o psych.ConnectOptions, mo *mcp.Options) (psych.Session, error) {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	all := map[string]string{"MCP_TEST_SERVER": server, "TOKEN": secretValue}
	for k, v := range env {
		all[k] = v
	}
	secret, err := json.Marshal(map[string]any{"env": all})
	must(t, err)
	o.Secret = string(secret)
	if mo == nil {
		mo = &mcp.Options{}
	}
	mo.AllowCommands = true
	return tryConnect(t, &psych.Connection{Command: []string{self, "-token=${TOKEN}", "${UNKNOWN}"}}, o, mo)
}

// serve is the server that this binary is when a test starts it.
func serve(name string) {
	if name == "sdk" {
		if err := testServer().Run(context.Background(), &sdk.StdioTransport{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	type message struct {
		ID     json.RawMessage
		Method string
		Params json.RawMessage
		Error  json.RawMessage
	}
	next := func() (m message) {
		if !in.Scan() {
			os.Exit(0)
		}
		if err := json.Unmarshal(in.Bytes(), &m); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return m
	}
	answer := func(m message, result string) {
		fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", m.ID, result)
	}
	say := func(m message, text string) {
		b, _ := json.Marshal(text)
		answer(m, `{"content":[{"type":"text","text":`+string(b)+`}]}`)
	}
	switch name {
	case "mute":
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	case "wedge":
		for {
			m := next()
			var p struct{ Name string }
			_ = json.Unmarshal(m.Params, &p)
			switch {
			case m.Method == "initialize":
				answer(m, `{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"0"}}`)
			case m.Method == "ping":
				answer(m, `{}`)
			case m.Method == "tools/list":
				answer(m, `{"tools":[{"name":"pid","inputSchema":{"type":"object"}},{"name":"slow","inputSchema":{"type":"object"}},{"name":"wedge","inputSchema":{"type":"object"}}]}`)
			case p.Name == "pid":
				say(m, fmt.Sprint(os.Getpid()))
			case p.Name == "wedge":
				select {}
			}
		}
	case "exits":
		fmt.Fprintln(os.Stderr, "no database at", os.Getenv("TOKEN"))
		os.Exit(3)
	case "newonly":
		for {
			switch m := next(); m.Method {
			case "initialize":
				fmt.Printf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"unsupported protocol version","data":{"supported":["2026-07-28"]}}}`+"\n", m.ID)
			case "server/discover":
				answer(m, `{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"instructions":"new"}`)
			case "tools/call":
				say(m, "from the new one")
			}
		}
	}
	fmt.Println("Welcome! This is no message.")
	fmt.Println("{neither is this}")
	m := next()
	if m.Method != "initialize" {
		os.Exit(9) // as some servers do
	}
	answer(m, `{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"0"}}`)
	var cancelled []string
	for {
		m := next()
		if m.Method == "notifications/cancelled" {
			cancelled = append(cancelled, string(m.Params))
			continue
		}
		if m.Method != "tools/call" {
			continue
		}
		var p struct {
			Name string
			Meta struct{ ProgressToken json.RawMessage } `json:"_meta"`
		}
		_ = json.Unmarshal(m.Params, &p)
		switch p.Name {
		case "args":
			say(m, strings.Join(os.Args[1:], " "))
		case "env":
			names := []string{}
			for _, v := range os.Environ() {
				name, _, _ := strings.Cut(v, "=")
				names = append(names, name)
			}
			slices.Sort(names)
			say(m, strings.Join(names, " "))
		case "dies":
			fmt.Fprintln(os.Stderr, "panic: out of", os.Getenv("TOKEN"))
			os.Exit(4)
		case "never":
		case "cancelled":
			say(m, strings.Join(cancelled, " "))
		case "large first":
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"%s"}]}}`+"\n", m.ID, strings.Repeat("x", 300_000))
		case "large last":
			fmt.Printf(`{"result":{"content":[{"type":"text","text":"%s"}]},"jsonrpc":"2.0","id":%s}`+"\n", strings.Repeat("x", 300_000), m.ID)
		case "large nameless":
			fmt.Printf(`{"result":{"content":[{"type":"text","text":"%s"}]},"id":%s,"jsonrpc":"2.0","x":"y"}`+"\n", strings.Repeat("x", 300_000), m.ID)
		case "broken":
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{]}}`+"\n", m.ID)
		case "deep":
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":{"structuredContent":%s%s}}`+"\n", m.ID, strings.Repeat("[", 5000), strings.Repeat("]", 5000))
		case "storm":
			out := bufio.NewWriter(os.Stdout)
			for i := range 5_000 {
				fmt.Fprintf(out, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":%d}}`+"\n", i)
				fmt.Fprint(out, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`+"\n")
				fmt.Fprintf(out, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`+"\n", p.Meta.ProgressToken, i)
				fmt.Fprintf(out, `{"jsonrpc":"2.0","id":"r%d","method":"roots/list"}`+"\n", i)
			}
			out.Flush()
			say(m, "over")
		case "insists":
			fmt.Println(`{"jsonrpc":"2.0","id":77,"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}`)
			r := next()
			answer(m, fmt.Sprintf(`{"isError":true,"content":[{"type":"text","text":%q}]}`, "got "+string(r.Error)))
		case "deaf": // reads nothing more
			say(m, "so long")
			select {}
		case "child": // has one that would outlive it, and ignores what is asked of it
			signal.Ignore(syscall.SIGTERM)
			child := exec.Command("sh", "-c", `trap "" TERM; exec 9>"$FIFO"; while :; do sleep 1; done`)
			if err := child.Start(); err != nil {
				os.Exit(5)
			}
			say(m, "started")
			select {}
		}
	}
}

func TestCommandRefused(t *testing.T) {
	_, err := tryConnect(t, &psych.Connection{Command: []string{"true"}}, psych.ConnectOptions{}, nil)
	if !errors.Is(err, psych.ErrAccessDenied) {
		t.Error(err)
	}
}

func TestCommandOldAndNew(t *testing.T) {
	t.Parallel()
	s := command(t, "raw", psych.ConnectOptions{})
	if got, _, err := call(t.Context(), s, "args", "{}"); got != "-token="+secretValue+" ${UNKNOWN}" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	s = command(t, "newonly", psych.ConnectOptions{})
	if got, _, err := call(t.Context(), s, "x", "{}"); got != "from the new one" || err != nil || s.Instructions() != "new" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestCommandEnvironment(t *testing.T) {
	t.Setenv("SOME_PASSWORD", "x")
	t.Setenv("TZ", "UTC")
	s := command(t, "raw", psych.ConnectOptions{})
	got, _, err := call(t.Context(), s, "env", "{}")
	must(t, err)
	for _, name := range strings.Fields(got) {
		if name != "TOKEN" && name != "MCP_TEST_SERVER" && !slices.Contains(mcp.CommandEnv, name) {
			t.Errorf("the command sees %s", name)
		}
	}
	for _, name := range []string{"PATH", "TZ", "TOKEN"} {
		if !slices.Contains(strings.Fields(got), name) {
			t.Errorf("the command lacks %s", name)
		}
	}
}

func TestCommandNotThere(t *testing.T) {
	for _, o := range []psych.ConnectOptions{{}, {Secret: `{"env":{"PATH":"/nowhere"}}`}} {
		_, err := tryConnect(t, &psych.Connection{Command: []string{"no-such-program"}}, o, &mcp.Options{AllowCommands: true})
		if !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), "no-such-program") {
			t.Error(err)
		}
	}
}

func TestCommandThatNeverIsAServer(t *testing.T) {
	_, err := tryCommand(t, "exits", nil, psych.ConnectOptions{}, nil)
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no database at [secret]") {
		t.Error(err)
	}
	_, err = tryCommand(t, "mute", nil, psych.ConnectOptions{}, &mcp.Options{ConnectTimeout: 100 * time.Millisecond})
	if !errors.Is(err, psych.ErrUnavailable) || !strings.Contains(err.Error(), "no session within 100ms") {
		t.Error(err)
	}
}

func TestCommandDies(t *testing.T) {
	s := command(t, "raw", psych.ConnectOptions{})
	_, _, err := call(t.Context(), s, "dies", "{}")
	switch {
	case err == nil, errors.Is(err, psych.ErrSessionLost): // it may have had an effect
		t.Error(err)
	case !strings.Contains(err.Error(), "exit status 4"), !strings.Contains(err.Error(), "panic: out of [secret]"), strings.Contains(err.Error(), secretValue):
		t.Error(err)
	}
	if _, _, err := call(t.Context(), s, "args", "{}"); !errors.Is(err, psych.ErrSessionLost) {
		t.Errorf("after that: %v", err)
	}
	if _, err := s.ListTools(t.Context(), nil); !errors.Is(err, psych.ErrSessionLost) {
		t.Errorf("after that: %v", err)
	}
}

// A message that can't be taken in fails its call and no other.
func TestCommandMessages(t *testing.T) {
	s, err := tryCommand(t, "raw", nil, psych.ConnectOptions{}, &mcp.Options{MaxMessageBytes: 100_000})
	must(t, err)
	defer s.Close()
	for _, name := range []string{"large first", "large last"} {
		got, failed, err := call(t.Context(), s, name, "{}")
		if !failed || err != nil || !strings.Contains(got, "more than 100000 bytes") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for _, name := range []string{"broken", "deep"} {
		if _, _, err := call(t.Context(), s, name, "{}"); err == nil || errors.Is(err, psych.ErrSessionLost) || !strings.Contains(err.Error(), "can't be decoded") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, _, err := call(t.Context(), s, "args", "{}"); got == "" || err != nil {
		t.Errorf("the session is over: %v", err)
	}
	// Of whose answer it is can't be told: the session ends.
	if _, _, err := call(t.Context(), s, "large nameless", "{}"); err == nil || !strings.Contains(err.Error(), "more than 100000 bytes") {
		t.Error(err)
	}
	if _, _, err := call(t.Context(), s, "args", "{}"); !errors.Is(err, psych.ErrSessionLost) {
		t.Error(err)
	}
}

func TestCommandCancelled(t *testing.T) {
	s := command(t, "raw", psych.ConnectOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, _, err := call(ctx, s, "never", "{}"); err != context.DeadlineExceeded {
		t.Errorf("%v", err)
	}
	// It was told before the call returned.
	got, _, err := call(t.Context(), s, "cancelled", "{}")
	if must(t, err); !strings.Contains(got, `"requestId":2`) {
		t.Errorf("the server was told %q", got)
	}
}

func TestCommandStorm(t *testing.T) {
	t.Parallel()
	var changed atomic.Int32
	done := make(chan bool, 1)
	s := command(t, "raw", psych.ConnectOptions{ListChanged: func() {
		changed.Add(1)
		select {
		case done <- true:
		default:
		}
	}})
	if got, _, err := call(t.Context(), s, "storm", "{}"); got != "over" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	<-done
	must(t, s.Close())
	if n := mcp.Heard(s); n != 5_000 {
		t.Errorf("%d notifications of progress", n)
	}
	if n := changed.Load(); n > 500 {
		t.Errorf("5,000 changes in a row were told %d times", n)
	}
}

func TestCommandInsists(t *testing.T) {
	s := command(t, "raw", psych.ConnectOptions{})
	got, failed, err := call(t.Context(), s, "insists", "{}")
	if must(t, err); !failed || !strings.HasPrefix(got, "The server asked for sampling/createMessage, which is not offered here. got ") || !strings.Contains(got, "-32601") {
		t.Errorf("%q", got)
	}
}

// A command that does not read is no reason to wait beyond a call's time.
func TestCommandDeaf(t *testing.T) {
	t.Parallel()
	s := command(t, "raw", psych.ConnectOptions{})
	_, _, err := call(t.Context(), s, "deaf", "{}")
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // long enough for the writing to have begun
	defer cancel()
	large := `{"x":"` + strings.Repeat("y", 1<<20) + `"}` // more than a pipe holds
	if _, _, err := call(ctx, s, "args", large); err != context.DeadlineExceeded {
		t.Error(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, _, err := call(ctx, s, "args", "{}"); !errors.Is(err, psych.ErrSessionLost) {
		t.Error(err)
	}
}

// Close ends a command and what it started, whatever they think of it.
func TestCommandGroupEnds(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "alive")
	must(t, syscall.Mkfifo(fifo, 0o600))
	s, err := tryCommand(t, "raw", map[string]string{"FIFO": fifo}, psych.ConnectOptions{}, nil)
	must(t, err)
	_, _, err = call(t.Context(), s, "child", "{}")
	must(t, err)
	f, err := os.Open(fifo) // waits until the child has it open
	must(t, err)
	defer f.Close()
	must(t, s.Close())
	if _, err := io.ReadAll(f); err != nil { // ends with the child
		t.Error(err)
	}
}

func TestCommandClosedInACall(t *testing.T) {
	s := command(t, "raw", psych.ConnectOptions{})
	done := make(chan error)
	go func() {
		_, _, err := call(context.Background(), s, "never", "{}")
		done <- err
	}()
	for {
		if got, _, err := call(t.Context(), s, "args", "{}"); err == nil && got != "" {
			break
		}
	}
	must(t, s.Close())
	if err := <-done; err == nil {
		t.Error("a call has a result after Close")
	}
}

func TestWrongCredential(t *testing.T) {
	for secret, c := range map[string]*psych.Connection{
		"token":                              {Command: []string{"true"}},
		`{"headers":{"X":"y"}}`:              {Command: []string{"true"}},
		`{"env":{"X":"hidden-value"}}`:       {URL: "http://127.0.0.1:1"},
		`{"env":{"X":["hidden-value"]}}`:     {URL: "http://127.0.0.1:1"},
		`{"headers":"hidden-value"}`:         {URL: "http://127.0.0.1:1"},
		`{"headers":{"X":"hidden-value\n"}}`: {URL: "http://127.0.0.1:1"},
		`{"headers":{"X y":"hidden-value"}}`: {URL: "http://127.0.0.1:1"},
		`{"env":{"X=Y":"hidden-value"}}`:     {Command: []string{"true"}},
		"hidden-value\nwith two lines":       {URL: "http://127.0.0.1:1"},
		`{"env":{"X":"hidden-value\u0000"}}`: {Command: []string{"true"}},
	} {
		_, err := tryConnect(t, c, psych.ConnectOptions{Secret: secret}, &mcp.Options{AllowCommands: true})
		if !errors.Is(err, psych.ErrInvalid) || strings.Contains(err.Error(), "hidden-value") {
			t.Errorf("%s: %v", secret, err)
		}
	}
}

// A command that lives and answers nothing is replaced at the next use, and its
// process is gone; one that left a call unanswered, and answers a ping, is kept.
func TestWedgedCommand(t *testing.T) {
	self, err := os.Executable()
	must(t, err)
	secret, err := json.Marshal(map[string]any{"env": map[string]string{"MCP_TEST_SERVER": "wedge"}})
	must(t, err)
	connector := mcp.New(&mcp.Options{AllowCommands: true})
	connector.SetWaits(0, 300*time.Millisecond)
	spec := &psych.Spec{Name: "a", Instructions: "b", Model: "m", Connections: []psych.Connection{{Name: "local", Command: []string{self}, Credential: "local"}}}
	spec.Limits.ToolTimeoutSeconds = 1
	rt, err := psych.New(memory.New(nil), &psych.Options{Connector: connector, AllowCommands: true, Secrets: secretFunc(func() psych.Secret { return psych.Secret{Value: string(secret), Identity: "one"} })})
	must(t, err)
	defer func() { must(t, rt.Close()) }()
	call := func(tool string) (string, error) {
		res, err := rt.CallTool(t.Context(), psych.Scope{Tenant: "t"}, spec, psych.ToolRef{Server: "local", Tool: tool}, nil)
		if err != nil {
			return "", err
		}
		defer res.Body.(io.Closer).Close()
		text, err := io.ReadAll(res.Body)
		return string(text), err
	}
	first, err := call("pid")
	must(t, err)
	for _, tool := range []string{"slow", "wedge"} {
		if text, err := call(tool); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%s: %q, %v; want a call that is never answered", tool, text, err)
		}
		pid, err := call("pid")
		must(t, err)
		if same := pid == first; same != (tool == "slow") {
			t.Errorf("after %s the server of pid %s is asked, where it was %s", tool, pid, first)
		}
	}
	var pid int
	fmt.Sscan(first, &pid)
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the process that was wedged is there: %v", err)
	}
}

type secretFunc func() psych.Secret

func (f secretFunc) Secret(context.Context, psych.SecretRequest) (psych.Secret, error) {
	return f(), nil
}
