//go:build linux || darwin

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A server is psych serve as a process of its own.
type server struct {
	t      *testing.T
	cmd    *exec.Cmd
	url    string
	stderr *bytes.Buffer
	lines  *bufio.Scanner
}

func serve(t *testing.T, env []string, args ...string) *server {
	t.Helper()
	s := &server{t: t, stderr: &bytes.Buffer{}}
	s.cmd = process(t, env, append([]string{"serve", "--listen", "127.0.0.1:0", "--sweep", "100ms"}, args...)...)
	s.cmd.Stderr = s.stderr
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.lines = bufio.NewScanner(stdout)
	s.lines.Scan()
	m := regexp.MustCompile(`^psych: serving (http://127\.0\.0\.1:\d+) for tenant local$`).FindStringSubmatch(s.lines.Text())
	if m == nil {
		s.cmd.Wait()
		t.Fatalf("psych serve printed %q\n%s", s.lines.Text(), s.stderr)
	}
	s.url = m[1]
	return s
}

// stop sends SIGTERM, and wants a clean end.
func (s *server) stop() {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	for s.lines.Scan() {
	}
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("psych serve: %v\n%s", err, s.stderr)
	}
	if !strings.Contains(s.stderr.String(), "psych: interrupted: stopping cleanly") {
		s.t.Errorf("psych serve did not say that it stops:\n%s", s.stderr)
	}
}

// call makes a request, and returns the JSON that it is answered with.
func (s *server) call(method, path, body string) map[string]any {
	s.t.Helper()
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.stderr)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	var fields map[string]any
	if err == nil {
		err = json.Unmarshal(data, &fields)
	}
	if err != nil || resp.StatusCode >= 300 {
		s.t.Fatalf("%s %s: %s, %v: %s\n%s", method, path, resp.Status, err, data, s.stderr)
	}
	return fields
}

// start publishes a Spec and creates a Run.
func (s *server) start(spec, text string) string {
	s.t.Helper()
	v := s.call("POST", "/v1/versions", spec)
	return s.call("POST", "/v1/runs", fmt.Sprintf(`{"version":%q,"message":{"text":%q}}`, v["version"], text))["run_id"].(string)
}

// follow reads records behind a seq until one is of a kind.
func (s *server) follow(run, kind string, count int) {
	s.t.Helper()
	for after := "0"; ; {
		page := s.call("GET", "/v1/runs/"+run+"/records?wait=30&after="+after, "")
		for _, r := range page["records"].([]any) {
			if r.(map[string]any)["kind"] == kind {
				if count--; count == 0 {
					return
				}
			}
		}
		after = page["next"].(string)
	}
}

// A Run is begun, followed and read over HTTP; SIGTERM in the middle of a tool
// gives it back, and the next process goes on with it at once. A Run that was
// only posted is driven then too.
func TestServe(t *testing.T) {
	workdir(t, "data/x.txt", strings.Repeat("0123456789abcdef\n", 20_000), "play.yaml", `steps:
  - calls: [{name: search_files, arguments: {pattern: '.'}}]
  - calls: [{name: run_command, arguments: {command: [sleep, "600"]}}]
  - text: It was cut.
    require: ['(?i)unknown']
`)
	env := []string{"PSYCH_MODEL=script:play.yaml"}
	grants := []string{"--files", "data", "--allow-exec", "sleep"}
	s := serve(t, env, grants...)
	run := s.start(`{"name":"a","tools":["search_files","run_command"]}`, "hello")
	s.follow(run, "tool_call_started", 2)
	window := s.call("GET", "/v1/runs/"+run+"/outputs/out_c1_1?grep=x.txt:1999%5Cd:&limit=1", "")
	if text, _ := window["text"].(string); !strings.Contains(text, "x.txt:1999") {
		t.Errorf("%v", window)
	}
	if held := s.call("GET", "/v1/runs/"+run, ""); held["active"] != true {
		t.Errorf("%v", held)
	}
	waits := make(chan error)
	go func() {
		resp, err := http.Get(s.url + "/v1/runs/" + run + "/records?wait=30&after=999")
		if err != nil { // it came too late
			err = nil
		} else {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		waits <- err
	}()
	s.stop()
	if err := <-waits; err != nil {
		t.Errorf("a client that waited was cut off: %v", err)
	}

	list := psychIn("", nil, "runs")
	list.wantCompleted(t)
	if !regexp.MustCompile(`(?m)^` + run + `  a     open .*due: psych resume goes on`).MatchString(list.stdout) {
		t.Errorf("the Run was not given back:\n%s", list.stdout)
	}
	records := psychIn("", nil, "records", run)
	records.wantCompleted(t)
	if strings.Contains(records.stdout, `"outcome":"unknown"`) {
		t.Errorf("a call was settled by the worker that ended:\n%s", records.stdout)
	}

	s = serve(t, env, grants...)
	s.follow(run, "exchange_closed", 1)
	rep := s.call("GET", "/v1/runs/"+run+"/report", "")
	if calls := rep["tool_calls"].([]any); rep["status"] != "completed" || rep["attempts"] != 2.0 || calls[1].(map[string]any)["outcome"] != "unknown" {
		t.Errorf("%v", rep)
	}
	s.stop()
}

// A Run that this process has not the means for is left alone, and named.
func TestServeLeavesAlone(t *testing.T) {
	workdir(t, "spec.yaml", plainSpec+"tools: [run_command]\n", "play.yaml", "steps: [{text: So.}]")
	env := []string{"PSYCH_MODEL=script:play.yaml"}
	s := serve(t, env, "--allow-exec", "sleep")
	run := s.start(`{"name":"a","tools":["run_command"]}`, "hello")
	s.follow(run, "exchange_closed", 1)
	s.stop()
	psychIn("", env, "send", "--no-drive", run, "more").wantCompleted(t)
	s = serve(t, env)
	s.call("POST", "/v1/runs/"+run+"/messages", `{"text":"and more"}`)
	other := s.start(`{"name":"b"}`, "hello") // the wake behind it
	s.follow(other, "exchange_closed", 1)
	rep := s.call("GET", "/v1/runs/"+run+"/report", "")
	if n := len(rep["exchanges"].([]any)); n != 1 || rep["waiting"] != 2.0 {
		t.Errorf("%v", rep)
	}
	s.stop()
	if !strings.Contains(s.stderr.String(), "uses the tools run_command: give --files and --allow-exec") {
		t.Errorf("the log:\n%s", s.stderr)
	}
}

// A Spec in a file is published as the server begins.
func TestServePublishes(t *testing.T) {
	workdir(t, "spec.yaml", "name: a", "bad.yaml", "name: a\ntools: [rm]", "play.yaml", "steps: [{text: So.}]")
	psychIn("", nil, "serve", "--listen", "127.0.0.1:0", "bad.yaml").wantError(t, exitUse, "spec bad.yaml", "tools[0]")
	cmd := process(t, []string{"PSYCH_MODEL=script:play.yaml"}, "serve", "--listen", "127.0.0.1:0", "spec.yaml")
	s := &server{t: t, cmd: cmd, stderr: &bytes.Buffer{}}
	cmd.Stderr = s.stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.lines = bufio.NewScanner(stdout)
	s.lines.Scan()
	version := strings.TrimPrefix(s.lines.Text(), "psych: published spec.yaml as version ")
	s.lines.Scan()
	s.url, _, _ = strings.Cut(strings.TrimPrefix(s.lines.Text(), "psych: serving "), " ")
	if v := s.call("GET", "/v1/versions/"+version, ""); v["version"] != version {
		t.Errorf("%v", v)
	}
	s.stop()
}

// A Spec that would start a program is refused over HTTP.
func TestServeStartsNoPrograms(t *testing.T) {
	workdir(t)
	s := serve(t, nil)
	resp, err := http.Post(s.url+"/v1/versions", "application/json", strings.NewReader(`{"name":"a","connections":[{"name":"c","command":["touch","x"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if resp.Body.Close(); err != nil || resp.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(string(body), `"path":"connections[0].command"`) {
		t.Errorf("%s %s, %v", resp.Status, body, err)
	}
	s.stop()
}

func TestServeWrongUse(t *testing.T) {
	workdir(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for args, says := range map[string]string{
		"--listen 0.0.0.0:8080":             "an address of the loopback interface",
		"--listen :8080":                    "an address of the loopback interface",
		"--listen example.com:80":           "an address of the loopback interface",
		"--listen 127.0.0.1":                "an address of the loopback interface",
		"--listen " + l.Addr().String():     "address already in use",
		"--parallel 0":                      "at least 1",
		"--tenant=":                         "tenant",
		"--store dynmo://t":                 "unknown scheme",
		"absent.yaml":                       "no such file",
		"--allow-commands":                  "starts no programs",
		"--mcp servers.json":                "starts no programs",
		"--listen 127.0.0.1:0 --files none": "--files none",
	} {
		psychIn("", nil, append([]string{"serve"}, strings.Fields(args)...)...).wantError(t, exitUse, says)
	}
}

// A client that sends its request a byte at a time, or never to its end, is let
// go.
func TestServeSlowClient(t *testing.T) {
	h := newHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err == nil {
			t.Error("a body that never ended was read to its end")
		}
	}), slog.New(slog.DiscardHandler))
	if h.ReadHeaderTimeout <= 0 || h.ReadTimeout <= 0 || h.IdleTimeout <= 0 || h.MaxHeaderBytes <= 0 {
		t.Errorf("%+v", h)
	}
	h.ReadHeaderTimeout, h.ReadTimeout = 50*time.Millisecond, 100*time.Millisecond
	s := httptest.NewUnstartedServer(h.Handler)
	s.Config = h
	s.Start()
	defer s.Close()
	for _, begins := range []string{"GET / HT", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"} {
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, begins)
		if _, err := io.ReadAll(c); err != nil { // it ends when the server lets go
			t.Error(err)
		}
		c.Close()
	}
	large, err := http.NewRequest("GET", s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	large.Header.Set("X-Large", strings.Repeat("x", 1<<20))
	if resp, err := http.DefaultClient.Do(large); err == nil {
		if resp.Body.Close(); resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("headers of 1 MiB: %s", resp.Status)
		}
	}
}

// Clients that said nothing yet, or not all, don't make an end unclean; a
// handler that does not end does.
func TestServeEndsWithSlowClients(t *testing.T) {
	hang, hangs := make(chan struct{}), make(chan struct{})
	defer close(hang)
	for _, c := range []struct {
		name, begins string
		clean        bool
	}{
		{"nothing", "", true},
		{"half a request", "GET / HT", true},
		{"half a body", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc", true},
		{"a handler that hangs", "GET /hang HTTP/1.1\r\nHost: x\r\n\r\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var handled requests
			s := httptest.NewUnstartedServer(nil)
			s.Config = newHTTPServer(handled.count(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/hang" {
					close(hangs)
					<-hang
				}
				io.ReadAll(r.Body)
			})), slog.New(slog.DiscardHandler))
			s.Start()
			conn, err := net.Dial("tcp", s.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprint(conn, c.begins)
			// One that was answered says that the server has taken the other, too.
			resp, err := http.Get(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if !c.clean {
				<-hangs
			}
			if err := handled.end(s.Config, 50*time.Millisecond); (err == nil) != c.clean {
				t.Errorf("%v", err)
			}
		})
	}
}
