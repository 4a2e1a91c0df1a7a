package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/api"
	"github.com/psych-go/psych-go/psych"
)

type serveFlags struct {
	storeFlags
	workerFlags
	listen   string
	parallel int
	sweep    time.Duration
	verbose  bool
}

func (p *program) serveCommand() *cobra.Command {
	var f serveFlags
	c := &cobra.Command{
		Use:   "serve [flags] [SPEC…]",
		Short: "Serves the HTTP API, and drives Runs",
		Long: `Publishes the Specs in the files SPEC (YAML or JSON) and prints their Versions;
serves the HTTP API on the loopback address, and drives Runs in the same process,
until it is interrupted: then it takes no more requests, ends what waits, stops
what runs, writes what is unwritten and gives the Runs back, so that the next
psych serve goes on with them. Every request is for the tenant --tenant, and is
taken from this machine alone. GET /openapi.json describes the API.

It drives what is posted through it, and what it finds due in the store: Runs of
other processes that died, messages that nobody took. A Run whose model or tools
it does not have is left alone, and named in the log.

Exit codes: 0 interrupted and ended cleanly, 1 it could not, 2 wrong use.`,
		RunE: func(c *cobra.Command, args []string) error {
			return p.serve(c.Context(), &f, args)
		},
	}
	f.storeFlags.add(c)
	f.workerFlags.add(c)
	flags := c.Flags()
	for _, name := range []string{"mcp", "allow-commands"} { // of Specs that are the user's own
		flags.Lookup(name).Hidden = true
	}
	flags.StringVar(&f.listen, "listen", "127.0.0.1:8080", "loopback `ADDRESS` and port to listen on (port 0: a free one)")
	flags.IntVar(&f.parallel, "parallel", 8, "`number` of Runs to drive at once")
	flags.DurationVar(&f.sweep, "sweep", 10*time.Second, "how often to look for Runs that are due")
	flags.Lookup("sweep").Hidden = true // for tests
	flags.BoolVar(&f.verbose, "verbose", false, "log every request that is refused, too")
	return c
}

// Bounds of a connection. A stream and a long poll outlive writeTime by
// renewing it.
const (
	maxWait     = 60 * time.Second
	headerTime  = 10 * time.Second
	readTime    = 60 * time.Second
	idleTime    = 2 * time.Minute
	maxHeader   = 32 << 10
	stopRequest = 5 * time.Second // that requests have to end, once nothing waits
)

// newHTTPServer is a server of h that no slow client can hold on to.
func newHTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTime, ReadTimeout: readTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

func (p *program) serve(ctx context.Context, f *serveFlags, paths []string) error {
	host, _, err := net.SplitHostPort(f.listen)
	if ip := net.ParseIP(host); err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return use("--listen %.80q: want an address of the loopback interface with a port, like 127.0.0.1:8080: requests carry no credential", f.listen)
	}
	if f.mcp != "" || f.allowCommands {
		return use("--mcp and --allow-commands are for commands that run a Spec of your own: what is published over HTTP starts no programs")
	}
	if f.parallel < 1 || f.sweep <= 0 {
		return use("--parallel is %d: want at least 1", f.parallel)
	}
	if err := psych.CheckTenant(f.tenant); err != nil {
		return refused(err)
	}
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: level}))
	defer p.close()
	waker := memory.NewWaker(&memory.WakerOptions{Logger: log})
	s, err := p.open(ctx, &f.storeFlags, &f.workerFlags, waker)
	if err != nil {
		return err
	}
	for _, path := range paths {
		spec, err := readSpec(path)
		if err != nil {
			return err
		}
		v, err := s.publish(ctx, spec)
		if err != nil {
			return refused(fmt.Errorf("spec %s: %w", path, err))
		}
		fmt.Fprintf(p.stdout, "psych: published %s as version %s\n", oneLine(path), v.Hash)
	}
	h, err := api.New(s.rt, s.store, api.Loopback(psych.Scope{Tenant: f.tenant}), &api.Options{MaxWait: maxWait, Logger: log})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return use("--listen %s: %w", f.listen, err)
	}
	var handled requests
	server := newHTTPServer(handled.count(h), log)
	server.RegisterOnShutdown(h.Drain)
	fmt.Fprintf(p.stdout, "psych: serving http://%s for tenant %s\n", l.Addr(), oneLine(f.tenant))

	working, stop := context.WithCancel(ctx)
	defer stop()
	var workers sync.WaitGroup
	workers.Go(func() {
		waker.Serve(working, f.parallel, func(ctx context.Context, key psych.RunKey) error { return p.serveRun(ctx, s, h, key) })
	})
	workers.Go(func() { sweepEvery(working, s.rt, f.sweep, log) })
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err = <-failed:
		err = fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
		// Requests first: what they post is durable, whoever drives it.
		fmt.Fprintln(p.stderr, "psych: interrupted: stopping cleanly; interrupt again to end at once")
		err = handled.end(server, stopRequest)
	}
	stop()
	workers.Wait()
	return err
}

// requests are those that a handler is at.
type requests struct{ handling sync.RWMutex }

func (q *requests) count(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q.handling.RLock()
		defer q.handling.RUnlock()
		h.ServeHTTP(w, r)
	})
}

// end ends a server: requests have so long to end. Clients that by then have not
// sent theirs to its end, or sent none, are let go, and are no error: what is
// begun of them is nothing. A handler that goes on even then is one.
func (q *requests) end(server *http.Server, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if server.Shutdown(ctx) == nil {
		return nil
	}
	server.Close() // which ends the contexts of what is left
	ended := make(chan struct{})
	go func() {
		q.handling.Lock()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(within):
		return fmt.Errorf("requests did not end within %v", 2*within)
	}
}

// serveRun drives a Run that was woken.
func (p *program) serveRun(ctx context.Context, s *session, h *api.Handler, key psych.RunKey) error {
	info, err := s.store.GetRun(ctx, key)
	if errors.Is(err, psych.ErrNotFound) {
		return nil // it was deleted
	}
	if err == nil {
		err = p.ready(ctx, s, info)
	}
	if err != nil {
		return err
	}
	_, err = s.rt.Drive(ctx, key, &psych.DriveOptions{Observe: func(o psych.Observation) { h.Observe(key, o) }})
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil // it was released, and is due
	}
	return err
}

// sweepEvery wakes what is due, at once and then again and again.
func sweepEvery(ctx context.Context, rt *psych.Runtime, every time.Duration, log *slog.Logger) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for cursor := ""; ; {
		var err error
		_, cursor, err = rt.Sweep(ctx, cursor)
		if _, err = needFlags(err); err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "sweep", "err", err)
			cursor = ""
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
