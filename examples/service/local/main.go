// Command local is the service on a laptop: it serves the HTTP API and drives
// Runs, in one process, for one tenant.
//
//	PSYCH_STORE_URL=sqlite:///tmp/service.db go run ./examples/service/local 127.0.0.1:8080
package main

import (
	"context"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/psych-go/psych-go/adapters/fsblob"
	"github.com/psych-go/psych-go/adapters/mcp"
	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/openai"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/adapters/sqlite"
	"github.com/psych-go/psych-go/api"
	"github.com/psych-go/psych-go/examples/service"
	"github.com/psych-go/psych-go/psych"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: local ADDRESS, of the loopback interface with a port")
	}
	log.Fatal(serve(context.Background(), os.Args[1]))
}

func serve(ctx context.Context, address string) error {
	var b psych.Backends
	for _, register := range []func(*psych.Backends){memory.Register, sqlite.Register, fsblob.Register, script.Register, service.Register} {
		register(&b)
	}
	openai.Register(&b, os.Getenv)
	store, err := b.Stores.Open(ctx, os.Getenv("PSYCH_STORE_URL"))
	if err != nil {
		return err
	}
	waker := memory.NewWaker(nil)
	rt, err := b.FromEnv(ctx, os.Getenv, store, &psych.Options{Tools: service.Tools(), Connector: mcp.New(nil), Waker: waker})
	if err != nil {
		return err
	}
	h, err := api.New(rt, store, api.Loopback(psych.Scope{Tenant: "local"}), &api.Options{MaxWait: time.Minute})
	if err != nil {
		return err
	}
	go waker.Serve(ctx, 8, func(ctx context.Context, key psych.RunKey) error {
		_, err := rt.Drive(ctx, key, nil)
		return err
	})
	go func() { // what another process left, and what is due
		for range time.Tick(10 * time.Second) {
			if _, _, err := rt.Sweep(ctx, ""); err != nil {
				log.Print(err)
			}
		}
	}()
	server := &http.Server{Addr: address, Handler: h, ReadHeaderTimeout: 10 * time.Second}
	return server.ListenAndServe()
}
