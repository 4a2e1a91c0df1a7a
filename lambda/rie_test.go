package lambda_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/adapters/s3blob"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

// The bootstrap of the turn function under the Runtime Interface Emulator, on
// DynamoDB and S3 of ministack: a queue's event drives a Run to its end, whose
// message lies in the BlobStore; the same event again does nothing; a message
// that can't be parsed fails alone.
func TestTurnUnderTheRuntimeInterfaceEmulator(t *testing.T) {
	rie := endpoint.Runtime(t)
	db := endpoint.One(t, endpoint.Dynamo, "ministack").URL
	s3 := endpoint.One(t, endpoint.S3, "ministack").URL
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	dir := t.TempDir()

	play := filepath.Join(dir, "play.yaml")
	if err := os.WriteFile(play, []byte("steps: [{text: done, require: [THE END]}, {text: never}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	name := "rie-" + strings.ToLower(rand.Text()[:12])
	env := map[string]string{
		"PSYCH_STORE_URL":       fmt.Sprintf("dynamo://%s?region=us-east-1&endpoint=%s", name, db),
		"PSYCH_BLOB_URL":        fmt.Sprintf("s3://%s/runs?region=us-east-1&endpoint=%s&path_style=true", name, s3),
		"PSYCH_MODEL":           "script:" + play,
		"AWS_ACCESS_KEY_ID":     "test",
		"AWS_SECRET_ACCESS_KEY": "test",
	}
	for k, v := range env {
		t.Setenv(k, v)
	}
	var b psych.Backends
	dynamo.Register(&b)
	s3blob.Register(&b)
	script.Register(&b)
	store, err := b.Stores.Open(ctx, env["PSYCH_STORE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := b.Blobs.Open(ctx, env["PSYCH_BLOB_URL"])
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []any{store, blobs} {
		i, ok := psych.As[psych.Initer](p)
		if !ok {
			t.Fatalf("%T can't be initialised", p)
		}
		if _, err := i.Init(ctx); err != nil {
			t.Fatal(err)
		}
	}
	rt, err := b.FromEnv(ctx, os.Getenv, store, &psych.Options{Blobs: blobs})
	if err != nil {
		t.Fatal(err)
	}
	v, err := rt.Publish(ctx, "t", &psych.Spec{Name: "n"})
	if err != nil {
		t.Fatal(err)
	}
	key, err := rt.Start(ctx, psych.Scope{Tenant: "t"}, v.Hash, psych.ClientMessage{Text: strings.Repeat("x", 200_000) + "THE END"})
	if err != nil {
		t.Fatal(err)
	}

	bootstrap := filepath.Join(dir, "bootstrap")
	build := exec.CommandContext(ctx, "go", "build", "-tags", "lambda.norpc", "-trimpath", "-o", bootstrap, "./turn")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	url := serve(t, ctx, rie, bootstrap)

	body, err := json.Marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	event, err := os.ReadFile(filepath.Join("testdata", "sqs.json"))
	if err != nil {
		t.Fatal(err)
	}
	quoted, err := json.Marshal(string(body))
	if err != nil {
		t.Fatal(err)
	}
	event = bytes.Replace(event, []byte(`"BODY"`), quoted, 1)
	for i := range 2 {
		if got, want := invoke(t, ctx, url, event), `{"batchItemFailures":[{"itemIdentifier":"2e1424d4-f796-459a-8184-9c92662be6da"}]}`; got != want {
			t.Errorf("invocation %d answered %s, want %s", i+1, got, want)
		}
		rep, err := rt.Report(ctx, key)
		if err != nil || rep.Status != psych.StatusCompleted || rep.Attempts != 1 || rep.Turns != 1 {
			t.Errorf("invocation %d: %+v, %v", i+1, rep, err)
		}
	}
}

// serve runs a bootstrap under the emulator, until the test ends, and returns
// where it is invoked.
func serve(t *testing.T, ctx context.Context, rie, bootstrap string) string {
	t.Helper()
	port := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}
	addr := port()
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, rie, "--runtime-interface-emulator-address", addr, "--runtime-api-address", port(), bootstrap)
	cmd.Env = append(os.Environ(), "AWS_LAMBDA_FUNCTION_TIMEOUT=60")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("the emulator and the function:\n%s", log.String())
		}
	})
	for range 200 {
		if c, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			c.Close()
			return "http://" + addr + "/2015-03-31/functions/function/invocations"
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("nothing listens at %s", addr)
	return ""
}

func invoke(t *testing.T, ctx context.Context, url string, event []byte) string {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(event))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v: %s", resp.Status, err, b)
	}
	return string(b)
}
