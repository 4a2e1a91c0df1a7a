// Command local runs the whole service on this machine, without an account: it
// deploys template.yaml to ministack with sam, and issues tokens for it. make
// local runs it:
//
//	go run ./internal/emulators -only ministack,sam -- go run ./internal/local
//
// PSYCH_MODEL, if set, is the model; its key is that of the environment. Else a
// script answers.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/psych-go/psych-go/internal/emulators/endpoint"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := local(ctx, os.Getenv, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "local: %v\n", err)
		os.Exit(1)
	}
}

const audience = "psych"

// local deploys, says how to go on, and waits for the end of ctx.
func local(ctx context.Context, getenv func(string) string, stdout, stderr io.Writer) error {
	sam, emulator := getenv(endpoint.SAMPath), getenv(endpoint.SQSPrefix+"MINISTACK")
	if sam == "" || emulator == "" {
		return fmt.Errorf("there is no emulator: run make local")
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(root, "template.yaml")); err != nil {
		return fmt.Errorf("run it where template.yaml is: %w", err)
	}
	dir, err := os.MkdirTemp("", "psych-local-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	i, err := newIssuer()
	if err != nil {
		return err
	}
	defer i.close()
	model := getenv("PSYCH_MODEL")
	if model == "" {
		model = "script:" + filepath.Join(root, "internal", "local", "hello.yaml")
	}
	fmt.Fprintln(stderr, "local: building and deploying; this takes a minute")
	d := &deployment{
		sam: sam, endpoint: emulator, root: root, dir: dir, name: "psych-local", log: io.Discard,
		parameters: map[string]string{"Issuer": i.url, "Audience": audience, "Model": model, "Concurrency": "4"},
	}
	s, err := d.deploy(ctx)
	if err != nil {
		return err
	}
	token, err := i.token(audience, map[string]any{"tenant": "acme", "sub": "you"})
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, `The service runs until you interrupt it. In another terminal:

export URL=%s
export TOKEN=%s

and then go on as docs/aws.md says under "The first answer".
`, s.outputs["Url"], token)
	<-ctx.Done()
	return nil
}
