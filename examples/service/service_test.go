package service_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/psych-go/psych-go/adapters/sqlite"
	"github.com/psych-go/psych-go/examples/service"
	"github.com/psych-go/psych-go/psych"
)

// build makes a program of the example, in an environment that names a store, a
// script and credentials in a new directory.
func build(t *testing.T, ctx context.Context, name string) (program, storeURL string) {
	t.Helper()
	dir := t.TempDir()
	play := filepath.Join(dir, "play.yaml")
	script := "steps: [{calls: [{name: days_between, arguments: {from: 2026-11-30, to: 2026-12-24}}]}, {text: See., require: ['^(?s).*24 days']}]"
	if err := os.WriteFile(play, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	url := func(path string) string {
		if path = filepath.ToSlash(path); path[0] != '/' {
			path = "/" + path
		}
		return "://" + path
	}
	storeURL = "sqlite" + url(filepath.Join(dir, "runs.db"))
	t.Setenv("PSYCH_STORE_URL", storeURL)
	t.Setenv("PSYCH_BLOB_URL", "")
	t.Setenv("PSYCH_WAKER_URL", "")
	t.Setenv("PSYCH_MODEL", "script:"+play)
	t.Setenv("PSYCH_SECRETS_URL", "files"+url(dir))
	program = filepath.Join(dir, name)
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, "./"+name).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return program, storeURL
}

// begin starts a program that ends with the test.
func begin(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("the program:\n%s", log.String())
		}
	})
}

// On a laptop: a Run that calls the code tool, over HTTP.
func TestLocal(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	program, _ := build(t, ctx, "local")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	begin(t, exec.CommandContext(ctx, program, address))

	ask := func(method, path, body string) map[string]any {
		t.Helper()
		for {
			req, err := http.NewRequestWithContext(ctx, method, "http://"+address+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if body != "" {
				req.Header.Set("Content-Type", "application/json")
			}
			resp, err := http.DefaultClient.Do(req)
			if errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			if err != nil { // it does not listen yet
				time.Sleep(20 * time.Millisecond)
				continue
			}
			defer resp.Body.Close()
			data, err := io.ReadAll(resp.Body)
			var fields map[string]any
			if err == nil {
				err = json.Unmarshal(data, &fields)
			}
			if err != nil || resp.StatusCode >= 300 {
				t.Fatalf("%s %s: %s, %v: %s", method, path, resp.Status, err, data)
			}
			return fields
		}
	}
	version := ask("POST", "/v1/versions", `{"name":"calendar","tools":["days_between"]}`)["version"]
	run := ask("POST", "/v1/runs", fmt.Sprintf(`{"version":%q,"message":{"text":"How long until Christmas Eve?"}}`, version))["run_id"].(string)
	for {
		rep := ask("GET", "/v1/runs/"+run+"/report", "")
		switch rep["status"] {
		case "open":
			time.Sleep(20 * time.Millisecond)
			continue
		case "completed":
		default:
			t.Errorf("%v", rep)
		}
		return
	}
}

// On Lambda, whose runtime API hands over one event: the same Run, on a file.
func TestTurn(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	program, storeURL := build(t, ctx, "turn")
	var b psych.Backends
	sqlite.Register(&b)
	store, err := b.Stores.Open(ctx, storeURL)
	if err != nil {
		t.Fatal(err)
	}
	rt, err := psych.New(store, &psych.Options{Tools: service.Tools()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		rt.Close()
		store.(io.Closer).Close()
	})
	v, err := rt.Publish(ctx, "acme", &psych.Spec{Name: "calendar", Tools: []string{"days_between"}})
	if err != nil {
		t.Fatal(err)
	}
	key, err := rt.Start(ctx, psych.Scope{Tenant: "acme"}, v.Hash, psych.ClientMessage{Text: "How long until Christmas Eve?"})
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	event, err := json.Marshal(map[string]any{"Records": []any{map[string]any{"messageId": "m", "body": string(body), "eventSource": "aws:sqs"}}})
	if err != nil {
		t.Fatal(err)
	}
	events, answers := make(chan []byte, 1), make(chan string, 1)
	events <- event
	lambda := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			data, _ := io.ReadAll(r.Body)
			answers <- r.URL.Path + " " + string(data)
			w.WriteHeader(http.StatusAccepted)
			return
		}
		select {
		case e := <-events:
			w.Header().Set("Lambda-Runtime-Aws-Request-Id", "request")
			w.Header().Set("Lambda-Runtime-Deadline-Ms", fmt.Sprint(time.Now().Add(time.Minute).UnixMilli()))
			w.Write(e)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(lambda.Close)
	t.Setenv("AWS_LAMBDA_RUNTIME_API", lambda.Listener.Addr().String())
	begin(t, exec.CommandContext(ctx, program))
	select {
	case got := <-answers:
		if want := `/2018-06-01/runtime/invocation/request/response {"batchItemFailures":[]}`; got != want {
			t.Errorf("the function answers %s, want %s", got, want)
		}
	case <-ctx.Done():
		t.Fatal("the function does not answer")
	}
	if rep, err := rt.Report(ctx, key); err != nil || rep.Status != psych.StatusCompleted || rep.Turns != 2 {
		t.Errorf("%+v, %v", rep, err)
	}
}

func TestDaysBetween(t *testing.T) {
	tool := service.Tools()[0]
	for args, want := range map[string]string{
		`{"from": "2026-11-30", "to": "2026-12-24"}`: "24 days",
		`{"from": "2026-03-01", "to": "2026-02-28"}`: "-1 days",
	} {
		r, err := tool.Call(t.Context(), &psych.Call{ToolCall: psych.ToolCall{Arguments: json.RawMessage(args)}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r.Body)
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", args, got, err, want)
		}
	}
	if _, err := tool.Call(t.Context(), &psych.Call{ToolCall: psych.ToolCall{Arguments: json.RawMessage(`{"from": "tomorrow", "to": "2026-12-24"}`)}}); err == nil {
		t.Error("a date that is none is taken")
	}
}

// No tenant reaches a file of another's, nor one outside the directory.
func TestSecrets(t *testing.T) {
	dir := t.TempDir()
	for name, value := range map[string]string{"acme/github": "one\n", "a%2Fb/github": "two", "out": "three"} {
		path := filepath.Join(dir, "in", name)
		if name == "out" {
			path = filepath.Join(dir, name)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../../out", filepath.Join(dir, "in", "acme", "link")); err != nil {
		t.Skip(err)
	}
	var b psych.Backends
	service.Register(&b)
	s, err := b.Secrets.Open(t.Context(), "files://"+filepath.ToSlash(dir)+"/in")
	if err != nil {
		t.Fatal(err)
	}
	defer s.(io.Closer).Close()
	for _, c := range []struct {
		tenant, name, want string
		err                error
	}{
		{"acme", "github", "one", nil},
		{"a/b", "github", "two", nil},
		{"other", "github", "", psych.ErrNotFound},
		{"acme", "gitlab", "", psych.ErrNotFound},
		{"acme", "", "", psych.ErrNotFound},
		{"acme", "../a%2Fb/github", "", psych.ErrNotFound},
		{"..", "out", "", psych.ErrNotFound},
		{".", "acme", "", psych.ErrNotFound},
		{"", "acme", "", psych.ErrNotFound},
		{"acme", "link", "", psych.ErrUnavailable},
	} {
		got, err := s.Secret(t.Context(), psych.SecretRequest{Scope: psych.Scope{Tenant: c.tenant}, Name: c.name})
		if got.Value != c.want || !errors.Is(err, c.err) || (got.Identity == "") != (err != nil) {
			t.Errorf("%q of %q: %v, %v; want %v", c.name, c.tenant, got, err, c.err)
		}
	}
	if _, err := b.Secrets.Open(t.Context(), "files://host/in"); !errors.Is(err, psych.ErrInvalid) {
		t.Errorf("%v", err)
	}
}
