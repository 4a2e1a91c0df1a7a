package psych_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/psych"
)

type connectorFunc func(ctx context.Context, c *psych.Connection, o psych.ConnectOptions) (psych.Session, error)

func (f connectorFunc) Connect(ctx context.Context, c *psych.Connection, o psych.ConnectOptions) (psych.Session, error) {
	return f(ctx, c, o)
}

type policyFunc func(ctx context.Context, s psych.Scope) (psych.Permit, error)

func (f policyFunc) Filter(ctx context.Context, s psych.Scope) (psych.Permit, error) {
	return f(ctx, s)
}

// A panic in what a program gave to a Runtime is an error, and ends no process.
func TestPolicyPanics(t *testing.T) {
	n := newNetwork()
	c := n.add("small", remoteTool("look", 40))
	h := newHarness(t, "steps: [{text: done}]")
	h.withServers(n, c)
	h.o.Policy = policyFunc(func(context.Context, psych.Scope) (psych.Permit, error) { panic("boom") })
	h.restart()
	_, err := h.rt.Drive(context.Background(), h.start("go"), nil)
	if err == nil || !strings.Contains(err.Error(), "boom") {
		t.Fatal(err)
	}
}

func TestConnectorPanics(t *testing.T) {
	n := newNetwork()
	c := n.add("small", remoteTool("look", 40))
	c.Optional = true
	h := newHarness(t, "steps: [{text: done}]")
	h.withServers(n, c)
	h.o.Connector = connectorFunc(func(context.Context, *psych.Connection, psych.ConnectOptions) (psych.Session, error) { panic("boom") })
	h.restart()
	if rep := h.run(); rep.Status != psych.StatusCompleted {
		t.Fatalf("%+v", rep.Exchanges)
	}
}

// A Connector that panicked once is asked again.
func TestConnectorPanicsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := n.add("small", remoteTool("look", 40))
		h := newHarness(t, "steps: [{text: done}]")
		h.withServers(n, c)
		h.run()
		panics := true
		h.o.Connector = connectorFunc(func(ctx context.Context, c *psych.Connection, o psych.ConnectOptions) (psych.Session, error) {
			if panics {
				panics = false
				panic("boom")
			}
			return n.Connect(ctx, c, o)
		})
		h.restart()
		for i := range 2 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			res, err := h.rt.CallTool(ctx, psych.Scope{Tenant: "t"}, &h.spec, psych.ToolRef{Server: "small", Tool: "look"}, json.RawMessage(`{"text":"a"}`))
			cancel()
			if (i == 0) != (err != nil) {
				t.Fatalf("call %d: %v, %v", i, res, err)
			}
		}
	})
}

type panickingStrategy struct{ open bool }

func (a panickingStrategy) Open(in *psych.DisclosureInput) (*psych.Surface, error) {
	if a.open {
		panic("boom")
	}
	d, _ := psych.BuiltinDisclosure("facade")
	return d.Open(in)
}
func (a panickingStrategy) Route(in *psych.DisclosureInput, tool string, args json.RawMessage) (psych.Route, error) {
	panic("boom")
}

func TestStrategyPanics(t *testing.T) {
	for _, open := range []bool{true, false} {
		n := newNetwork()
		c := n.add("small", remoteTool("look", 40))
		h := newHarness(t, "steps: [{calls: [{name: small__call, arguments: {tool: look, input: {text: a}}}]}, {text: done}]")
		h.withServers(n, c)
		h.o.Disclosures = map[string]psych.Disclosure{"mine": panickingStrategy{open: open}}
		h.spec.Disclosure.Strategy = "mine"
		h.restart()
		func() {
			defer func() {
				if v := recover(); v != nil {
					t.Errorf("open %v: Drive panicked: %v", open, v)
				}
			}()
			rep := h.run()
			want := psych.StatusCompleted
			if open {
				want = psych.StatusFailed
			}
			if rep.Status != want {
				t.Errorf("%+v", rep.Exchanges)
			}
			if !open && (rep.ToolCalls[0].Outcome != "failed") {
				t.Errorf("%+v", rep.ToolCalls[0])
			}
		}()
	}
}

// A connection that is withdrawn in the middle of a turn is neither connected to
// nor called.
func TestConnectionWithdrawn(t *testing.T) {
	n := newNetwork()
	c := n.add("small", remoteTool("first", 40), remoteTool("second", 40))
	revoked := false
	n.permit = func(_, _, tool string) bool { return tool != "" || !revoked }
	n.change("small", false, func(s *testServer) {
		s.call = func(_ context.Context, name string, _ *psych.Call) (*psych.Result, error) {
			n.mu.Lock()
			revoked = true
			n.mu.Unlock()
			return psych.Text("ran"), nil
		}
	})
	c.Optional = true
	h := newHarness(t, "steps: [{calls: [{name: small__first, arguments: {text: a}}, {name: small__second, arguments: {text: b}}]}, {text: done}]")
	h.spec.Limits.Parallel = 1
	h.withServers(n, c)
	rep := h.run()
	if got := n.server("small").calls; len(got) != 1 || rep.ToolCalls[1].Code != psych.CodeRefused {
		t.Errorf("called with %q after the connection was withdrawn; %+v", got, rep.ToolCalls[1])
	}
}

// A call whose session was lost, of a server that can't be reached again, never
// ran, and says so.
func TestLostAndGone(t *testing.T) {
	n := newNetwork()
	c := n.add("small", remoteTool("look", 40))
	forget := psych.NewTool("forget", "Ends sessions.", func(context.Context, *psych.Call, struct{}) (string, error) {
		n.change("small", false, func(s *testServer) {
			for _, x := range s.open {
				x.lost = true
			}
			s.down = errors.New("connection refused by 10.1.2.3")
		})
		return "", nil
	}, nil)
	h := newHarness(t, "steps: [{calls: [{name: small__look, arguments: {text: a}}, {name: forget, arguments: {}}, {name: small__look, arguments: {text: b}}]}, {text: done}]", forget)
	h.spec.Limits.Parallel = 1
	h.withServers(n, c)
	rep := h.run()
	if got := rep.ToolCalls[2]; got.Outcome != "failed" || got.Code != psych.CodeUnreachable {
		t.Errorf("the tool certainly was not called: %+v", got)
	}
}

// Of two tools whose names collide on the wire one is not shown, and both are
// reached.
func TestNamesCollide(t *testing.T) {
	seen := map[string]string{}
	alphabet := []byte(`!"#$%&'()*+,./:;<=>?@[\]^{|}~`)
	var a, b string
	for i := 0; a == ""; i++ {
		name := make([]byte, 6)
		for j, x := 0, i; j < 6; j, x = j+1, x/len(alphabet) {
			name[j] = alphabet[x%len(alphabet)]
		}
		wire := psych.ToolName("small", string(name))
		if was, ok := seen[wire]; ok {
			a, b = was, string(name)
		}
		seen[wire] = string(name)
	}
	t.Logf("%q and %q", a, b)
	n := newNetwork()
	small := n.add("small", remoteTool(a, 40), remoteTool(b, 40))
	small.Optional = true
	other := n.add("other", remoteTool("look", 40))
	h := newHarness(t, "steps: [{text: done}]")
	h.withServers(n, small, other)
	if rep := h.run(); rep.Status != psych.StatusCompleted {
		t.Errorf("one bad tool breaks all: %+v", rep.Exchanges)
	}
}

// An optional server that hangs holds up no exchange, though invocations are
// shorter than a refresh may take.
func TestOptionalHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := n.add("small", remoteTool("look", 40))
		c.Optional = true
		h := newHarness(t, "steps: [{text: done}]")
		h.withServers(n, c)
		h.o.Connector = connectorFunc(func(ctx context.Context, c *psych.Connection, o psych.ConnectOptions) (psych.Session, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		h.restart()
		key := h.start("go")
		for range 6 {
			ctx, cancel := context.WithTimeout(context.Background(), 29*time.Second)
			out, _ := h.rt.Drive(ctx, key, nil)
			cancel()
			if out == psych.Closed {
				break
			}
		}
		if rep := h.report(key); rep.Status != psych.StatusCompleted {
			t.Errorf("%s %+v", rep.Status, rep.Exchanges)
		}
	})
}

// Servers that hang do not starve those behind them of the sweep.
func TestSweepStarves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		h := newHarness(t, "steps: [{text: done}]")
		var cs []psych.Connection
		for i := range 40 {
			cs = append(cs, n.add(fmt.Sprintf("s%d", i), remoteTool("look", 40)))
		}
		h.withServers(n, cs...)
		h.run()
		var mu sync.Mutex
		asked := map[string]bool{}
		h.o.Connector = connectorFunc(func(ctx context.Context, c *psych.Connection, o psych.ConnectOptions) (psych.Session, error) {
			var i int
			fmt.Sscanf(c.Name, "s%d", &i)
			if i < 20 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			mu.Lock()
			defer mu.Unlock()
			asked[c.Name] = true
			return n.Connect(ctx, c, o)
		})
		h.o.Waker = wakerFunc(func(...psych.RunKey) error { return nil })
		h.restart()
		time.Sleep(20 * time.Minute)
		for range 30 {
			ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
			_, _, _ = h.rt.Sweep(ctx, "") // its errors are of those that hang
			cancel()
			time.Sleep(35 * time.Second)
		}
		if len(asked) != 20 {
			t.Errorf("of 20 servers that answer %d were asked in 30 sweeps", len(asked))
		}
	})
}

// What is unavailable is told in an exchange's first turn, also when another
// worker tries it again.
func TestUnavailableAgain(t *testing.T) {
	n := newNetwork()
	up := n.add("up", remoteTool("look", 40))
	gone := n.add("gone", remoteTool("see", 40))
	gone.Optional = true
	n.change("gone", false, func(s *testServer) { s.down = errors.New("connection refused") })
	h := newHarness(t, `
steps:
- text: one
- text: done
  require: ['Unavailable: gone']
`)
	h.withServers(n, up, gone)
	key := h.start("go")
	h.drive(key)
	if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: "again"}); err != nil {
		t.Fatal(err)
	}
	// the worker ends in the model call
	h.play("steps: [{text: one}, {stall: true}]")
	h.restart()
	ctx, cancel := context.WithTimeout(context.Background(), 21*time.Second)
	go func() {
		time.Sleep(300 * time.Millisecond)
		cancel()
	}()
	if out, err := h.rt.Drive(ctx, key, nil); out == psych.Closed {
		t.Fatalf("%v, %v", out, err)
	}
	h.play(`
steps:
- text: one
- text: done
  require: ['Unavailable: gone']
`)
	h.restart()
	h.drive(key)
	if rep := h.report(key); rep.Status != psych.StatusCompleted {
		t.Errorf("%s %+v", rep.Status, rep.Exchanges)
	}
}

// A change of what may not be used is not told.
func TestFalseNews(t *testing.T) {
	n, clock := newNetwork(), newClock()
	c := n.add("small", remoteTool("look", 40), remoteTool("hidden_one", 40))
	c.Deny = []string{"hidden*"}
	h := newHarness(t, "steps: [{text: one}, {text: two, forbid: ['Changed: small']}]")
	h.o.Now, h.o.LeaseTTL = clock.Now, psych.MaxLease
	h.withServers(n, c)
	key := h.start("go")
	h.drive(key)
	n.change("small", false, func(s *testServer) { s.tools = append(s.tools, remoteTool("hidden_two", 40)) })
	clock.add(30 * time.Minute)
	if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: "more"}); err != nil {
		t.Fatal(err)
	}
	h.drive(key)
	if rep := h.report(key); rep.Status != psych.StatusCompleted {
		t.Errorf("%+v", rep.Exchanges)
	}
}

func TestListChangedPerPrincipal(t *testing.T) {
	n, clock := newNetwork(), newClock()
	c := n.add("small", remoteTool("look", 40))
	h := newHarness(t, "steps: [{text: done}]")
	h.o.Now, h.o.LeaseTTL = clock.Now, psych.MaxLease
	h.withServers(n, c)
	h.run()
	h.spec.Connections[0].PerPrincipal = true
	h.play("steps: [{text: done}]")
	h.o.Models = psych.OneModel(h.model)
	h.drive(h.start2("m2"))
	lists := n.server("small").lists
	clock.add(2 * time.Minute)
	n.change("small", true, func(*testServer) {})
	h.drive(h.start2("m3"))
	if got := n.server("small").lists; got != lists+1 {
		t.Errorf("%d listings, then %d: list_changed was not heard", lists, got)
	}
}

// A newerCatalogs store has catalogues of a newer release: an older worker leaves
// their Runs to one of that.
type newerCatalogs struct{ psych.Store }

func (s newerCatalogs) GetDoc(ctx context.Context, tenant string, d psych.Digest) ([]byte, error) {
	b, err := s.Store.GetDoc(ctx, tenant, d)
	if strings.HasPrefix(string(b), `{"format":1,"connection"`) {
		b = []byte(strings.Replace(string(b), `"format":1`, `"format":2`, 1))
	}
	return b, err
}

func TestNewerCatalogue(t *testing.T) {
	n := newNetwork()
	c := n.add("small", remoteTool("look", 40))
	h := newHarness(t, "steps: [{text: done}]")
	h.withServers(n, c)
	h.run()
	rt, err := psych.New(newerCatalogs{h.tap}, &h.o)
	if err != nil {
		t.Fatal(err)
	}
	key := h.start2("m2")
	var newer *psych.UnsupportedError
	if out, err := rt.Drive(context.Background(), key, nil); !errors.As(err, &newer) {
		t.Errorf("%v, %v; want an *UnsupportedError", out, err)
	}
	if rep := h.report(key); rep.Status != psych.StatusOpen {
		t.Errorf("%s, %+v", rep.Status, rep.Exchanges)
	}
}

// A connection that the policy withdraws is told, and fails nothing.
func TestConnectionRevoked(t *testing.T) {
	n := newNetwork()
	a, b := n.add("a", remoteTool("look", 40)), n.add("b", remoteTool("look", 40))
	revoked := false
	n.permit = func(_, server, tool string) bool { return server != "a" || !revoked }
	h := newHarness(t, "steps: [{text: one}, {text: two, require: ['Unavailable: a']}]")
	h.withServers(n, a, b)
	key := h.start("go")
	h.drive(key)
	n.mu.Lock()
	revoked = true
	n.mu.Unlock()
	if err := h.rt.Send(context.Background(), key, psych.ClientMessage{Text: "more"}); err != nil {
		t.Fatal(err)
	}
	h.drive(key)
	if rep := h.report(key); rep.Status != psych.StatusCompleted {
		t.Errorf("%+v", rep.Exchanges)
	}
}

// A Policy, Secrets or Connector that does not heed its context holds up neither
// an abort nor the end of a Drive, and what it returns late is nobody's.
func TestPortsThatDoNotHeed(t *testing.T) {
	for _, port := range []string{"Policy", "Secrets", "Connector", "Session"} {
		for _, abort := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, aborted: %v", port, abort), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork()
					c := n.add("small", remoteTool("look", 40))
					c.Credential = "token"
					n.secrets["token"] = psych.Secret{Value: "right", Identity: "one"}
					n.change("small", false, func(s *testServer) { s.secret = "right" })
					h := newHarness(t, "steps: [{calls: [{name: small__look, arguments: {text: a}}]}, {text: done}]")
					h.withServers(n, c)
					p := &deafPorts{network: n, deaf: port, goOn: make(chan struct{})}
					h.o.Connector, h.o.Secrets, h.o.Policy = p, p, p
					h.restart()
					key := h.start("go")
					began := time.Now()
					ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
					defer cancel()
					if abort {
						go func() {
							time.Sleep(time.Second)
							if err := h.rt.Abort(context.Background(), key, psych.AbortRequest{Reason: "enough"}); err != nil {
								t.Error(err)
							}
						}()
					}
					out, err := h.rt.Drive(ctx, key, nil)
					// A model was called, where refreshTime ended what hung.
					if took := time.Since(began); abort && (out != psych.Closed || took > 5*time.Second) || took > 40*time.Second {
						t.Errorf("Drive returned %v, %v after %v", out, err, took)
					}
					if abort {
						if rep := h.report(key); rep.Exchanges[0].Closed != psych.StatusAborted {
							t.Errorf("%+v", rep.Exchanges)
						}
					}
					p.hear()
					synctest.Wait()
					if got := n.server("small"); port == "Connector" && (got.connects != 1 || got.closes != 1) {
						t.Errorf("of %d sessions that came late %d were closed", got.connects, got.closes)
					}
					time.Sleep(2 * time.Minute)
					if err := h.rt.Send(context.Background(), key, psych.ClientMessage{ID: "m2", Text: "again"}); err != nil {
						t.Fatal(err)
					}
					h.drive(key)
					if rep := h.report(key); rep.Status != psych.StatusCompleted || len(n.server("small").calls) == 0 {
						t.Errorf("the next exchange: %+v, %v", rep.Exchanges, n.server("small").calls)
					}
					if err := h.rt.Close(); err != nil {
						t.Error(err)
					}
					if got := n.server("small"); got.connects != got.closes {
						t.Errorf("of %d sessions %d were closed", got.connects, got.closes)
					}
				})
			})
		}
	}
}

// deafPorts are those of a network, of which one does not heed its context
// before it may go on, and then answers what holds no more.
type deafPorts struct {
	*network
	deaf string

	mu    sync.Mutex
	hears bool
	goOn  chan struct{}
}

func (p *deafPorts) hear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hears = true
	close(p.goOn)
}

// late waits, and reports whether the answer is a late one.
func (p *deafPorts) late(port string) bool {
	p.mu.Lock()
	hears := p.hears
	p.mu.Unlock()
	if hears || port != p.deaf {
		return false
	}
	<-p.goOn
	return true
}

func (p *deafPorts) Filter(ctx context.Context, s psych.Scope) (psych.Permit, error) {
	if p.late("Policy") {
		return func(*psych.Connection, string) bool { return false }, nil
	}
	return p.network.Filter(ctx, s)
}

func (p *deafPorts) Secret(ctx context.Context, r psych.SecretRequest) (psych.Secret, error) {
	if p.late("Secrets") {
		return psych.Secret{Value: "wrong", Identity: "two"}, nil
	}
	return p.network.Secret(ctx, r)
}

func (p *deafPorts) Connect(ctx context.Context, c *psych.Connection, o psych.ConnectOptions) (psych.Session, error) {
	p.late("Connector")
	s, err := p.network.Connect(ctx, c, o)
	if err != nil {
		return nil, err
	}
	return deafSession{s, p}, nil
}

type deafSession struct {
	psych.Session
	p *deafPorts
}

func (s deafSession) ListTools(ctx context.Context, cursor *string) (psych.ToolPage, error) {
	if s.p.late("Session") {
		return psych.ToolPage{}, nil
	}
	return s.Session.ListTools(ctx, cursor)
}

// The definitions of a Spec's tools are bounded as it is published.
func TestDefinitionsBytes(t *testing.T) {
	var tools []*psych.Tool
	var names []string
	for i := range 5 {
		name := fmt.Sprintf("tool%d", i)
		names = append(names, name)
		tools = append(tools, psych.NewRawTool(psych.ToolDef{Name: name, Schema: json.RawMessage(`{"type":"object","description":"` + strings.Repeat("d", 250<<10) + `"}`)}, func(context.Context, *psych.Call) (*psych.Result, error) { return psych.Text(""), nil }, nil))
	}
	rt, err := psych.New(memory.New(nil), &psych.Options{Tools: tools})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rt.Publish(context.Background(), "t", &psych.Spec{Name: "n", Tools: names[:4]}); err != nil {
		t.Error(err)
	}
	_, err = rt.Publish(context.Background(), "t", &psych.Spec{Name: "n", Tools: names})
	var bad *psych.SpecError
	if !errors.As(err, &bad) || len(bad.Problems) != 1 || bad.Problems[0].Path != "tools" || !strings.Contains(bad.Problems[0].Message, "its 5 tools have 128") {
		t.Errorf("%.300v, want what is too large of the tools", err)
	}
}
