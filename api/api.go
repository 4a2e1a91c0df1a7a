// Package api is Psych's HTTP API, as one [http.Handler] over a
// [psych.Runtime]: the same on a laptop and behind a gateway.
//
// A client publishes a Version, creates a Run with a first message, follows its
// records, reads its report and its stored outputs, sends more messages, and
// aborts or deletes it. openapi.json, which GET /openapi.json serves, describes
// every request and answer.
//
// # Whose request it is
//
// Tenant and principal come from an [Authenticator] and from nowhere else: a
// body that names a tenant is refused as any unknown field is, and the Run of
// another tenant is not found. Inside a tenant every principal reaches every
// Run.
//
// # Waiting
//
// Records come at once, as JSON or as server-sent events. Where [Options] allow
// waiting, a client may ask for a long poll (wait=SECONDS), and a stream stays
// open. Where they don't, as in a function that is billed while it waits, the
// same requests are answered at once, and say when to ask again. A client that
// goes on from the position of an answer, or from the id of the last event that
// it saw, misses nothing and sees nothing twice.
//
// # Errors
//
// Every error is an RFC 9457 problem. What stands in [psych]'s errors has one
// place in one table here, and what is wrong inside is logged and not told.
package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// Options of a [Handler]. The zero value works, and never waits.
type Options struct {
	// MaxWait bounds how long a client may have an answer wait for news. Zero:
	// answers come at once and say when to ask again, and a stream ends where
	// the log does.
	MaxWait time.Duration

	// MaxStream bounds a stream of server-sent events, whose client then
	// connects and is authenticated anew. Zero: 15 min.
	MaxStream time.Duration

	// Poll is how often somebody who waits looks into the log for what other
	// processes wrote. Of what [Handler.Observe] sees it hears at once. Zero:
	// 2 s.
	Poll time.Duration

	// MaxBody bounds the body of a request, in bytes. Zero: 4 MiB.
	MaxBody int64

	// MaxAnswer bounds the body of an answer, in bytes, where something in between
	// would cut it: what is larger is refused with a problem. A page of records
	// stays under 2 MiB. Zero: none.
	MaxAnswer int

	Logger *slog.Logger // nil: silent. Ids and sizes, never payloads
}

// A Handler is the HTTP API. Its methods may be called concurrently.
type Handler struct {
	rt    *psych.Runtime
	store psych.Store
	auth  Authenticator
	o     Options
	log   *slog.Logger
	mux   *http.ServeMux
	hub   hub

	drain   sync.Once
	drained chan struct{}
}

var _ http.Handler = (*Handler)(nil)

// New makes a Handler over a Runtime and the Store that it was made of. It does
// no IO. o may be nil.
func New(rt *psych.Runtime, store psych.Store, auth Authenticator, o *Options) (*Handler, error) {
	if rt == nil || store == nil || auth == nil {
		return nil, fmt.Errorf("api: New wants a Runtime, its Store and an Authenticator: %w", psych.ErrInvalid)
	}
	h := &Handler{rt: rt, store: store, auth: auth, mux: http.NewServeMux(), drained: make(chan struct{})}
	if o != nil {
		h.o = *o
	}
	if h.o.MaxWait < 0 || h.o.MaxStream < 0 || h.o.Poll < 0 || h.o.MaxBody < 0 || h.o.MaxAnswer < 0 {
		return nil, fmt.Errorf("api: MaxWait %v, MaxStream %v, Poll %v, MaxBody %d, MaxAnswer %d: want zero or more: %w", h.o.MaxWait, h.o.MaxStream, h.o.Poll, h.o.MaxBody, h.o.MaxAnswer, psych.ErrInvalid)
	}
	if h.o.MaxStream == 0 {
		h.o.MaxStream = 15 * time.Minute
	}
	if h.o.Poll == 0 {
		h.o.Poll = 2 * time.Second
	}
	if h.o.MaxBody == 0 {
		h.o.MaxBody = 4 << 20
	}
	if h.log = h.o.Logger; h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	for _, e := range routes {
		h.mux.HandleFunc(e.method+" "+e.path, func(w http.ResponseWriter, r *http.Request) { h.endpoint(w, r, &e) })
	}
	return h, nil
}

// Drain ends what waits: long polls are answered with what there is, streams
// end, and from then on no request waits. It is for http.Server's
// RegisterOnShutdown.
func (h *Handler) Drain() { h.drain.Do(func() { close(h.drained) }) }

// Observe tells clients that follow a Run in this process of what happens in
// it; it is for [psych.DriveOptions].Observe. It never blocks.
func (h *Handler) Observe(run psych.RunKey, o psych.Observation) { h.hub.observe(run, o) }

// An endpoint is a row of the table of routes. Paths have their names as the
// OpenAPI document does.
type endpoint struct {
	method, path string
	public       bool // for everyone
	serve        func(*Handler, http.ResponseWriter, *request) error
}

var routes = []endpoint{
	{"GET", "/openapi.json", true, (*Handler).openapi},
	{"POST", "/v1/versions", false, (*Handler).publish},
	{"GET", "/v1/versions/{version}", false, (*Handler).version},
	{"POST", "/v1/runs", false, (*Handler).createRun},
	{"GET", "/v1/runs", false, (*Handler).listRuns},
	{"GET", "/v1/runs/{run}", false, (*Handler).getRun},
	{"DELETE", "/v1/runs/{run}", false, (*Handler).deleteRun},
	{"POST", "/v1/runs/{run}/messages", false, (*Handler).send},
	{"POST", "/v1/runs/{run}/abort", false, (*Handler).abort},
	{"GET", "/v1/runs/{run}/report", false, (*Handler).report},
	{"GET", "/v1/runs/{run}/records", false, (*Handler).records},
	{"GET", "/v1/runs/{run}/outputs/{handle}", false, (*Handler).output},
}

// A request is one whose caller is known.
type request struct {
	*http.Request
	scope psych.Scope
}

// run is the key of the Run that the path names, of the caller's tenant.
func (r *request) run() (psych.RunKey, error) {
	key := psych.RunKey{Tenant: r.scope.Tenant, RunID: r.PathValue("run")}
	return key, key.Check()
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begun := &begun{ResponseWriter: w}
	id := requestID(r)
	w.Header().Set("X-Request-Id", id)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	r = r.WithContext(context.WithValue(r.Context(), idKey{}, id))
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if v == http.ErrAbortHandler {
			panic(v)
		}
		h.log.ErrorContext(r.Context(), "a request panicked", "request", id, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
		if begun.yet {
			panic(http.ErrAbortHandler) // half an answer must not look whole
		}
		h.fail(begun, r, errInternal)
	}()
	if _, pattern := h.mux.Handler(r); pattern == "" {
		h.unmatched(begun, r)
		return
	}
	h.mux.ServeHTTP(begun, r)
}

// unmatched answers what no route matches, with what the mux would say of it.
func (h *Handler) unmatched(w http.ResponseWriter, r *http.Request) {
	allowed := ""
	for _, e := range routes {
		probe := r.Clone(r.Context())
		probe.Method = e.method
		if _, pattern := h.mux.Handler(probe); pattern == e.method+" "+e.path {
			if allowed != "" {
				allowed += ", "
			}
			allowed += e.method
		}
	}
	if allowed == "" {
		h.fail(w, r, &problem{Status: http.StatusNotFound, Code: "no_such_path", Title: "There is no such path", Detail: "GET /openapi.json lists the paths."})
		return
	}
	w.Header().Set("Allow", allowed)
	h.fail(w, r, &problem{Status: http.StatusMethodNotAllowed, Code: "method_not_allowed", Title: "The path does not take this method", Detail: "It takes " + allowed + "."})
}

// endpoint authenticates a request and serves it.
func (h *Handler) endpoint(w http.ResponseWriter, r *http.Request, e *endpoint) {
	req := &request{Request: r}
	var err error
	if !e.public {
		w.Header().Set("Cache-Control", "no-store")
		req.scope, err = h.auth.Authenticate(r)
		if err == nil && psych.CheckTenant(req.scope.Tenant) != nil {
			err = fmt.Errorf("the authenticator named no legal tenant: %w", ErrUnauthenticated)
		}
	}
	if err == nil {
		err = e.serve(h, w, req)
	}
	if err != nil {
		h.fail(w, r, err)
	}
}

// fail answers a request with a problem, and logs what is wrong inside.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	ctx := r.Context()
	switch {
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		h.log.DebugContext(ctx, "the client left", "request", idOf(ctx), "method", r.Method, "path", r.Pattern)
	case p.Status >= 500:
		h.log.ErrorContext(ctx, "a request failed", "request", idOf(ctx), "method", r.Method, "route", r.Pattern, "run", r.PathValue("run"), "status", p.Status, "err", err)
	default:
		h.log.DebugContext(ctx, "a request was refused", "request", idOf(ctx), "method", r.Method, "route", r.Pattern, "status", p.Status, "problem", p.Code)
	}
	p.write(w, r)
}

// begun notes whether an answer has begun, and gives a client so long to take
// it.
type begun struct {
	http.ResponseWriter
	yet bool
}

// answerWithin is what a client has to take an answer that is no stream.
const answerWithin = 60 * time.Second

func (b *begun) Unwrap() http.ResponseWriter { return b.ResponseWriter }

func (b *begun) begin() {
	if !b.yet {
		b.yet = true
		http.NewResponseController(b.ResponseWriter).SetWriteDeadline(time.Now().Add(answerWithin)) // where there is a connection
	}
}

func (b *begun) WriteHeader(status int) {
	b.begin()
	b.ResponseWriter.WriteHeader(status)
}

func (b *begun) Write(p []byte) (int, error) {
	b.begin()
	return b.ResponseWriter.Write(p)
}

type idKey struct{}

func idOf(ctx context.Context) string {
	id, _ := ctx.Value(idKey{}).(string)
	return id
}

// requestID is what the client calls its request, if that is fit for a log, or
// a random one.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); id != "" && len(id) <= 128 {
		ok := true
		for _, c := range []byte(id) {
			ok = ok && c > ' ' && c < 0x7f
		}
		if ok {
			return id
		}
	}
	return randomID()
}

func randomID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
