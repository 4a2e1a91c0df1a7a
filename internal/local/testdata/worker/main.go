// Command worker is the functions api and turn of a deployment with code tools
// of its own, for tests: it drives where PSYCH_MODEL is set, and answers
// requests where it is not. It kills or stops itself, once, where a file in
// PSYCH_TEST_DIR says so.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	awslambda "github.com/aws/aws-lambda-go/lambda"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/adapters/mcp"
	"github.com/psych-go/psych-go/adapters/s3blob"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/adapters/sqs"
	"github.com/psych-go/psych-go/api"
	"github.com/psych-go/psych-go/lambda"
	"github.com/psych-go/psych-go/psych"
)

var dir = os.Getenv("PSYCH_TEST_DIR")

// pass kills the process if a file says so, or stops it, as Lambda freezes one,
// until somebody continues it, and removes the file. What was stopped says so in
// another file, with its id.
func pass(point string) {
	switch {
	case os.Remove(filepath.Join(dir, "die-"+point)) == nil:
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case os.Remove(filepath.Join(dir, "stop-"+point)) == nil:
		if err := write("stopped-"+point, strconv.Itoa(os.Getpid())); err != nil {
			panic(err)
		}
		syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		time.Sleep(100 * time.Millisecond) // in which the signal arrives
	}
}

// write adds a line to a file, which tells the test what was done.
func write(name, line string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

var tools = []*psych.Tool{
	psych.NewTool("rows", "Returns so many rows.", func(_ context.Context, _ *psych.Call, in struct {
		N int `json:"n"`
	}) (string, error) {
		var b strings.Builder
		for i := range in.N {
			fmt.Fprintf(&b, "row %d of %d: %s\n", i+1, in.N, strings.Repeat("x", 70))
		}
		return b.String(), nil
	}, nil),
	psych.NewTool("effect", "Does something that must not be done twice.", func(_ context.Context, c *psych.Call, in struct {
		Name string `json:"name"`
	}) (string, error) {
		if err := write("effects-"+in.Name, c.ID); err != nil {
			return "", err
		}
		pass("effect-" + in.Name)
		return "done", nil
	}, nil),
	psych.NewTool("wait", "Waits.", func(ctx context.Context, _ *psych.Call, in struct {
		Milliseconds int `json:"milliseconds"`
	}) (string, error) {
		select {
		case <-time.After(time.Duration(in.Milliseconds) * time.Millisecond):
			return "waited", nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}, &psych.ToolOptions{Idempotent: true}),
}

// secret reads a credential from a file, so that a test can rotate it.
func secret(name string) string {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return string(b)
}

// A store may be left behind an append.
type store struct {
	psych.Store
	mu      sync.Mutex
	appends map[psych.RunKey]int
}

func (s *store) Unwrap() psych.Store { return s.Store }

func (s *store) Append(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
	pos, err := s.Store.Append(ctx, key, after, b)
	if err == nil {
		s.mu.Lock()
		s.appends[key]++
		n := s.appends[key]
		s.mu.Unlock()
		pass(fmt.Sprintf("append-%s-%d", key.Tenant, n))
	}
	return pos, err
}

// A model may be left in a call.
type model struct {
	psych.Model
	name string
}

func (m model) Unwrap() psych.Model { return m.Model }

func (m model) Generate(ctx context.Context, r *psych.Request, on func(psych.Delta)) (*psych.Response, error) {
	pass("model-" + m.name)
	return m.Model.Generate(ctx, r, on)
}

func main() {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := serve(log); err != nil {
		log.Error("init", "err", err)
		os.Exit(1)
	}
}

func serve(log *slog.Logger) error {
	var real, b psych.Backends
	dynamo.Register(&real)
	script.Register(&real)
	s3blob.Register(&b)
	sqs.Register(&b)
	b.Stores.Handle("dynamo", func(ctx context.Context, u *url.URL) (psych.Store, error) {
		s, err := real.Stores.Open(ctx, u.String())
		return &store{Store: s, appends: map[psych.RunKey]int{}}, err
	})
	b.Models.Handle("script", func(ctx context.Context, u *url.URL) (psych.Model, error) {
		m, err := real.Models.Open(ctx, u.String())
		return model{m, strings.TrimSuffix(filepath.Base(u.Opaque+u.Path), ".yaml")}, err
	})
	o := psych.Options{Logger: log, Tools: tools, Connector: mcp.New(nil), Secrets: psych.EnvSecrets(secret, "")}
	var drive psych.DriveOptions
	for name, d := range map[string]*time.Duration{"LEASE": &o.LeaseTTL, "MARGIN": &drive.Margin, "FLOOR": &drive.Floor} {
		s := os.Getenv("PSYCH_TEST_" + name)
		if s == "" {
			continue
		}
		var err error
		if *d, err = time.ParseDuration(s); err != nil {
			return err
		}
	}
	p, err := lambda.Open(context.Background(), &b, os.Getenv, &o)
	if err != nil {
		return err
	}
	if os.Getenv("PSYCH_MODEL") != "" {
		awslambda.Start(lambda.Turn(p.Runtime, &lambda.QueueOptions{Returner: p.Returner, Drive: &drive, Logger: log}))
		return nil
	}
	h, err := api.New(p.Runtime, p.Store, api.Claims{Tenant: os.Getenv("PSYCH_TENANT_CLAIM")}, &api.Options{MaxAnswer: lambda.MaxAnswer, Logger: log})
	if err != nil {
		return err
	}
	awslambda.Start(lambda.API(h, &lambda.APIOptions{Logger: log}))
	return nil
}
