package providertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/bedrockruntime"

	"github.com/psych-go/psych-go/adapters/anthropic"
	"github.com/psych-go/psych-go/adapters/bedrock"
	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/openai"
	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/psych"
)

// A provider is an adapter with a Stub of what it speaks to.
type provider struct {
	name  string
	api   API
	o     Options
	bound bool // reasoning is bound to what precedes it
	marks int  // markers that a request of several turns has
	model func(url string) psych.Model
}

// Models that bind reasoning to what precedes it.
const (
	boundModel   = "claude-opus-5-5"
	boundBedrock = "eu.anthropic.claude-opus-5-5"
)

func runtimeClient(url string) *bedrockruntime.Client {
	return bedrockruntime.New(bedrockruntime.Options{
		Region: "eu-central-1", BaseEndpoint: &url, Credentials: credentials.NewStaticCredentialsProvider("AKIDEXAMPLE", "secret", ""),
	})
}

var providers = []provider{
	{"anthropic, bound", Messages, Options{}, true, 4, func(url string) psych.Model {
		return anthropic.New(boundModel, &anthropic.Options{BaseURL: url})
	}},
	{"anthropic", Messages, Options{Unbound: true}, false, 4, func(url string) psych.Model {
		return anthropic.New("claude-opus-5", &anthropic.Options{BaseURL: url, SystemCacheTTL: "1h"})
	}},
	{"bedrock", Bedrock, Options{}, true, 4, func(url string) psych.Model {
		return bedrock.New(runtimeClient(url), boundBedrock, nil)
	}},
	{"chat", Chat, Options{Alternate: true}, false, 0, func(url string) psych.Model {
		return openai.New("local", &openai.Options{BaseURL: url, Images: true})
	}},
	{"chat, with breakpoints", Chat, Options{}, false, 4, func(url string) psych.Model {
		return openai.New("gpt", &openai.Options{BaseURL: url, CacheBreakpoints: true})
	}},
	{"responses", Responses, Options{}, false, 4, func(url string) psych.Model {
		return openai.New("gpt", &openai.Options{BaseURL: url, Responses: true, Images: true, CacheBreakpoints: true})
	}},
}

// strict is the model of a provider that binds reasoning, told to refuse a
// request whose reasoning has lost its prefix.
func strict(p *provider, url string) psych.Model {
	if p.api == Bedrock {
		return bedrock.New(runtimeClient(url), boundBedrock, &bedrock.Options{FreeBlocks: true})
	}
	return anthropic.New(boundModel, &anthropic.Options{BaseURL: url, FreeBlocks: true})
}

// strategies are all that a Spec may name.
var strategies = []string{"eager", "deferred", "facade", "search", "tiered", "auto"}

// A world is what a Run has around it but for its model: tools, servers and
// memories.
type world struct {
	mu       sync.Mutex
	memories string
	servers  map[string]*server
	during   map[string]func() // what happens while the tool pause runs, by its argument
}

type server struct {
	tools        []psych.RemoteTool
	instructions string
	down         error
}

func newWorld() *world {
	w := &world{memories: "The user likes short answers.", servers: map[string]*server{}, during: map[string]func(){}}
	books := contracttest.GenerateServers(6)[0]
	w.servers["books"] = &server{tools: append(books.Tools, remote("find_book", "Finds a book by its title.", `{"type":"object","properties":{"title":{"type":"string"}},"required":["title"]}`)), instructions: "Ask before you\nborrow."}
	w.servers["odd-ones"] = &server{tools: []psych.RemoteTool{
		remote("either", "Takes one of two.", `{"anyOf":[{"type":"object","properties":{"a":{"type":"string"}}},{"type":"object","properties":{"b":{"type":"string"}}}]}`),
		remote("spaced", "Takes what has spaces in its name.", `{"type":"object","properties":{"a b":{"type":"string"},"ü":{"type":"integer"}}}`),
		remote("long.name/"+strings.Repeat("very_", 20)+"long", "Has a long name.", `{"type":"object"}`),
		remote("wordy", strings.Repeat("It says a lot. ", 400), `{"type":"object","properties":{"x":{"type":"string"}}}`),
		remote("list", "", `{"type":"object","properties":{"xs":{"type":"array"}}}`),
		remote("lost", "Refers to nothing.", `{"type":"object","properties":{"x":{"$ref":"#/$defs/gone"}}}`),
		remote("bare", "Takes nothing.", ``),
		remote("call", "Has a name that strategies use.", `{"type":"object","properties":{"x":{"type":["string","null"]}}}`),
	}}
	return w
}

func remote(name, description, schema string) psych.RemoteTool {
	return psych.RemoteTool{ToolDef: psych.ToolDef{Name: name, Description: description, Schema: json.RawMessage(schema)}}
}

// connections are those to all servers.
func (w *world) connections() []psych.Connection {
	var cs []psych.Connection
	for name := range w.servers {
		cs = append(cs, psych.Connection{Name: name, URL: "https://" + name + ".example/mcp", Description: "The server " + name + ".", Optional: true})
	}
	slices.SortFunc(cs, func(a, b psych.Connection) int { return strings.Compare(a.Name, b.Name) })
	return cs
}

// change changes a server.
func (w *world) change(name string, f func(*server)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := *w.servers[name]
	s.tools = slices.Clone(s.tools)
	f(&s)
	w.servers[name] = &s
}

func (w *world) Connect(_ context.Context, c *psych.Connection, _ psych.ConnectOptions) (psych.Session, error) {
	x := session{w, c.Name}
	s, err := x.now()
	if s == nil {
		return nil, err
	}
	return x, nil
}

// A session is with a server as it is at each call.
type session struct {
	w    *world
	name string
}

func (x session) now() (*server, error) {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	s := x.w.servers[x.name]
	if s == nil {
		return nil, errors.New("no such host")
	}
	if s.down != nil {
		return nil, s.down
	}
	return s, nil
}

func (x session) Instructions() string {
	s, err := x.now()
	if err != nil {
		return ""
	}
	return s.instructions
}

func (x session) ListTools(context.Context, *string) (psych.ToolPage, error) {
	s, err := x.now()
	if err != nil {
		return psych.ToolPage{}, err
	}
	zero := time.Duration(0)
	return psych.ToolPage{Tools: s.tools, TTL: &zero}, nil
}

func (x session) CallTool(_ context.Context, t *psych.RemoteTool, c *psych.Call) (*psych.Result, error) {
	if _, err := x.now(); err != nil {
		return nil, err
	}
	return psych.Text(fmt.Sprintf("%s ran %s with %s", x.name, t.Name, c.Arguments)), nil
}

func (session) Close() error { return nil }

var (
	png = append([]byte("\x89PNG\r\n\x1a\n"), bytes.Repeat([]byte("pixel"), 30)...)
	pdf = []byte("%PDF-1.7\n%\xe2\xe3\xcf\xd3\none page")
)

// toolNames are those of tools.
var toolNames = []string{"lookup", "page", "draw", "flaky", "pause", "empty"}

// tools are code tools, whose calls may be run again.
func (w *world) tools() []*psych.Tool {
	o := &psych.ToolOptions{Idempotent: true}
	return []*psych.Tool{
		psych.NewTool("lookup", "Looks up an item.", func(_ context.Context, _ *psych.Call, in struct {
			At int `json:"at"`
		}) (string, error) {
			return fmt.Sprintf("item %d is %x", in.At, in.At*in.At), nil
		}, o),
		psych.NewTool("page", "Reads lines of a page.", func(_ context.Context, _ *psych.Call, in struct {
			Name  string `json:"name"`
			Lines int    `json:"lines"`
		}) (string, error) {
			var b strings.Builder
			for i := range in.Lines {
				fmt.Fprintf(&b, "%s, line %d, with words that fill it up\n", in.Name, i)
			}
			return b.String(), nil
		}, o),
		psych.NewTool("draw", "Draws.", func(_ context.Context, c *psych.Call, _ struct{}) (*psych.Result, error) {
			for _, a := range []struct {
				name, contentType string
				data              []byte
			}{{"picture", "image/png", png}, {"paper", "application/pdf", pdf}, {"false", "image/png", []byte("no picture\xff")}, {"notes", "text/plain", bytes.Repeat([]byte("a note\n"), 2000)}, {"nothing", "text/plain", nil}} {
				out, err := c.Attach(a.name, a.contentType, nil)
				if err == nil {
					_, err = out.Write(a.data)
					err = errors.Join(err, out.Close())
				}
				if err != nil {
					return nil, err
				}
			}
			return psych.Text("drawn"), nil
		}, o),
		psych.NewTool("flaky", "Does it, or not.", func(_ context.Context, c *psych.Call, in struct {
			How string `json:"how"`
		}) (*psych.Result, error) {
			switch in.How {
			case "panic":
				panic("it panicked " + strings.Repeat("again and ", 1000))
			case "silent":
				return &psych.Result{ContentType: "text/plain", IsError: true}, nil
			case "picture":
				out, err := c.Attach("picture", "image/png", nil)
				if err == nil {
					_, err = out.Write(png)
					err = errors.Join(err, out.Close())
				}
				return &psych.Result{ContentType: "text/plain", Body: strings.NewReader("it broke, see the picture"), IsError: true}, err
			case "binary":
				return &psych.Result{ContentType: "application/octet-stream", Body: bytes.NewReader([]byte{0, 0xff, 0xfe, 7})}, nil
			case "junk":
				return psych.Text("nul \x00 esc \x1b half \xed\xa0\x80 quote \" <b> \u2028"), nil
			}
			return nil, errors.New(in.How + ": it broke")
		}, o),
		psych.NewTool("pause", "Waits for something.", func(ctx context.Context, _ *psych.Call, in struct {
			For string `json:"for"`
		}) (string, error) {
			w.mu.Lock()
			f := w.during[in.For]
			w.mu.Unlock()
			if f != nil {
				f()
			}
			if in.For == "abort" { // which comes when it comes
				<-ctx.Done()
				return "", ctx.Err()
			}
			return "it happened", nil
		}, o),
		psych.NewTool("empty", "Says nothing.", func(context.Context, *psych.Call, struct{}) (string, error) { return "", nil }, o),
	}
}

// options are those of a Runtime with this world around it.
func (w *world) options(m psych.ModelResolver) *psych.Options {
	return &psych.Options{
		Models: m, Tools: w.tools(), Connector: w,
		Memories: func(context.Context, psych.Scope) (string, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.memories, nil
		},
	}
}

// A tester is a *testing.T or a *rapid.T.
type tester interface {
	Helper()
	Error(...any)
	Errorf(string, ...any)
	Fatal(...any)
	Fatalf(string, ...any)
	Cleanup(func())
}

// A run is one Run, and the Stub that answers it.
type run struct {
	*world
	t     tester
	stub  *Stub
	store psych.Store
	blobs psych.BlobStore
	o     *psych.Options
	rt    *psych.Runtime
	spec  psych.Spec
	key   psych.RunKey
	begun bool
	sent  int
	cold  bool // each turn is driven by a worker that knows nothing

	provider *provider
	mind     Mind
	others   []*Stub // of the providers that it changes to
	tenant   string
	passed   time.Duration // as far as the mission says: the clock stands still beside
	ids      atomic.Int64
}

func newRun(t tester, p *provider, mind Mind) *run {
	t.Helper()
	r := &run{world: newWorld(), t: t, store: memory.New(nil), blobs: memory.NewBlobs(nil), stub: New(p.api, mind, &p.o), provider: p, mind: mind, tenant: "t"}
	t.Cleanup(r.stub.Close)
	r.use(psych.OneModel(p.model(r.stub.URL)))
	r.spec = psych.Spec{
		Name: "x", Instructions: "You look things up.", Tools: toolNames, Connections: r.connections(),
		Skills: []psych.Skill{{Name: "knots", Description: "How to tie knots.", Body: "Over, under, through."}},
		Limits: psych.Limits{LargeResultTokens: 600, BatchResultTokens: 1200, PreviewChars: 100, HistoryResultTokens: 100, HistoryMinSavingTokens: 200},
	}
	return r
}

// use makes another Runtime, with other models.
func (r *run) use(m psych.ModelResolver) {
	r.t.Helper()
	r.o = r.options(m)
	r.o.Blobs = r.blobs
	r.o.Now, r.o.NewID = r.now, r.newID
	rt, err := psych.New(r.store, r.o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.rt = rt
}

// turnTo makes another Runtime, with a model of another provider.
func (r *run) turnTo(p *provider) {
	r.t.Helper()
	o := p.o
	o.Peer = r.stub
	s := New(p.api, r.mind, &o)
	r.t.Cleanup(s.Close)
	r.others = append(r.others, s)
	r.use(psych.OneModel(p.model(s.URL)))
}

// next is the provider behind the Run's own.
func (r *run) next() *provider {
	i := slices.IndexFunc(providers, func(p provider) bool { return p.name == r.provider.name })
	return &providers[(i+1)%len(providers)]
}

// began is when every Run begins.
var began = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func (r *run) now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return began.Add(r.passed)
}

// pass lets time go by.
func (r *run) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passed += d
}

func (r *run) newID() string { return fmt.Sprintf("%032x", r.ids.Add(1)) }

// say sends a message and drives the Run until its exchange is closed.
func (r *run) say(m psych.ClientMessage) {
	r.t.Helper()
	r.post(m)
	r.drive()
}

// post sends a message; the first one starts the Run.
func (r *run) post(m psych.ClientMessage) {
	r.t.Helper()
	r.sent++
	r.pass(time.Minute)
	m.ID = fmt.Sprint("m", r.sent)
	ctx := context.Background()
	if r.begun {
		if err := r.rt.Send(ctx, r.key, m); err != nil {
			r.t.Fatal(err)
		}
		return
	}
	v, err := r.rt.Publish(ctx, r.tenant, &r.spec)
	if err != nil {
		r.t.Fatal(err)
	}
	if r.key, err = r.rt.Start(ctx, psych.Scope{Tenant: r.tenant, Principal: "p"}, v.Hash, m); err != nil {
		r.t.Fatal(err)
	}
	r.begun = true
}

func (r *run) drive() {
	r.t.Helper()
	for range 1000 {
		ctx, cancel := context.WithCancel(context.Background())
		var do psych.DriveOptions
		if r.cold {
			r.use(r.o.Models)
			do.Margin = time.Hour // to give the Run back in, however slow this machine is
			do.Observe = func(x psych.Observation) {
				if x.Record != nil && x.Record.Event.Kind() == psych.KindModelCallFinished {
					cancel()
				}
			}
		}
		out, err := r.rt.Drive(ctx, r.key, &do)
		cancel()
		switch {
		case err == nil && out == psych.Closed:
			return
		case out == psych.Closed && errors.Is(err, psych.ErrAccessDenied): // the model asked for an output that there is not
			return
		case r.cold && errors.Is(err, context.Canceled):
		default:
			r.t.Fatalf("drive: %v, %v; refused: %v", out, err, r.stub.Refused())
		}
	}
	r.t.Fatal("it never ends")
}

// await waits until the log holds a record of a kind.
func (r *run) await(kind psych.Kind) {
	for range 3000 {
		for rec, err := range r.rt.Records(context.Background(), r.key, psych.Pos{}) {
			if err != nil {
				r.t.Errorf("await %s: %v", kind, err)
				return
			}
			if rec.Event.Kind() == kind {
				return
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.t.Errorf("there is never a record %s", kind)
}

func (r *run) report() *psych.Report {
	r.t.Helper()
	rep, err := r.rt.Report(context.Background(), r.key)
	if err != nil {
		r.t.Fatal(err)
	}
	return rep
}

// check fails on a request that was refused, a marker too many or in a trailing
// message, and reasoning that was dropped without a break that says why.
func (r *run) check(p *provider) {
	r.t.Helper()
	for _, s := range append([]*Stub{r.stub}, r.others...) {
		for _, err := range s.Refused() {
			r.t.Errorf("%s: refused: %v", p.name, err)
		}
		for _, q := range s.Requests() {
			if q.Markers > 4 || q.TailMarkers > 0 {
				r.t.Errorf("%s: request %d has %d markers, and %d in trailing messages", p.name, q.N, q.Markers, q.TailMarkers)
			}
		}
	}
	if len(r.others) > 0 { // requests are not counted over providers
		return
	}
	rep := r.report()
	requests := r.stub.Requests()
	// A worker that ended before it sent anything has left a call all the same,
	// with the breaks that the next one makes.
	var sent []psych.ModelCallReport
	var breaks []psych.Break
	for _, c := range rep.ModelCalls {
		breaks = append(breaks, c.Breaks...)
		if c.Outcome != "interrupted" {
			c.Breaks, breaks = breaks, nil
			sent = append(sent, c)
		}
	}
	if len(requests)+len(r.stub.Refused()) != len(sent) {
		r.t.Errorf("%s: %d requests, of %d model calls", p.name, len(requests), len(sent))
		return
	}
	dropped := 0
	for _, q := range requests {
		if q.Dropped > dropped && len(sent[q.N-1].Breaks) == 0 {
			r.t.Errorf("%s: request %d loses %d blocks of bound reasoning, and no break says why", p.name, q.N, q.Dropped-dropped)
		}
		dropped = q.Dropped
		if !p.bound && q.Tails > 1 {
			r.t.Errorf("%s: request %d has %d trailing messages", p.name, q.N, q.Tails)
		}
	}
}
