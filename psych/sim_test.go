package psych_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
)

var (
	simN    = flag.Int("sim.n", simDefault, "how many interleavings TestSimulation plays")
	simFrom = flag.Uint64("sim.from", 1, "the seed of the first of them")
	simSeed = flag.Uint64("sim.seed", 0, "play the interleaving of this seed alone, and print what happens in it")
	simOff  = flag.String("sim.off", "", "faults to leave out, of "+strings.Join(simFaults, ","))
)

// simFaults are the kinds of faults that a simulation has. A failing seed is
// tried again without each of them, so that what is printed needs few.
var simFaults = []string{"errors", "lost", "late", "pauses", "deaths", "wakes", "clocks", "aborts", "deadlines", "failures", "lag", "split", "deletes"}

// TestSimulation plays clients, drivers with caches of their own, a sweep and
// their clocks against one store, in interleavings that a seed decides, over
// faults of every kind: a store that delays, that loses what it was asked or
// what it answers, and to which an append or any other write of unknown outcome
// may come at once, later, or behind its own repetition; workers and clients
// that die at any call, and pause for longer than a lease before and behind
// it, and in tools; clocks that are wrong, also by more than the margin; wakes
// that are lost, repeated and late; an index that lags. What must hold then is
// in the methods of sim that call violated.
//
//	go test ./psych -run TestSimulation -sim.n=10000     # the full size
//	go test ./psych -run TestSimulation -sim.seed=17     # a seed that failed
func TestSimulation(t *testing.T) {
	off := strings.FieldsFunc(*simOff, func(r rune) bool { return r == ',' })
	if *simSeed != 0 {
		s := simulate(t, *simSeed, off, true)
		t.Log(strings.Join(s.events, "\n"))
		for _, v := range s.violations {
			t.Error(v)
		}
		return
	}
	const batches = 8
	var mu sync.Mutex
	var sum simCounts
	t.Run("seeds", func(t *testing.T) {
		for b := range batches {
			t.Run(fmt.Sprint(b), func(t *testing.T) {
				t.Parallel()
				for n := b; n < *simN; n += batches {
					seed := *simFrom + uint64(n)
					s := simulate(t, seed, off, false)
					if len(s.violations) > 0 {
						without := shrink(t, seed, off)
						t.Errorf("seed %d: %s\nplay it again: go test ./psych -run TestSimulation -sim.seed=%d -sim.off=%s", seed, strings.Join(s.violations, "\n"), seed, strings.Join(without, ","))
						return
					}
					mu.Lock()
					sum.add(s.counts)
					mu.Unlock()
				}
			})
		}
	})
	t.Logf("%d interleavings: %+v", *simN, sum)
	// A simulation in which nothing goes wrong proves nothing.
	for what, n := range map[string]int{"acknowledged messages": sum.Acked, "effects": sum.Effects, "deaths": sum.Deaths, "long pauses": sum.Pauses, "late writes": sum.Late, "lost answers": sum.Lost, "lost wakes": sum.LostWakes, "calls of unknown outcome": sum.Unknown, "aborted exchanges": sum.Aborted, "deleted Runs": sum.Deleted, "repeated safe calls": sum.Again} {
		if *simN >= 100 && n < *simN/50 {
			t.Errorf("%d %s in %d interleavings: too few to prove anything", n, what, *simN)
		}
	}
}

// A seed that failed is of use only if it fails again.
func TestSimulationIsReplayable(t *testing.T) {
	for seed := uint64(1); seed <= 6; seed++ {
		a, b := simulate(t, seed, nil, true), simulate(t, seed, nil, true)
		for i := range max(len(a.events), len(b.events)) {
			if i >= len(a.events) || i >= len(b.events) || a.events[i] != b.events[i] {
				t.Fatalf("seed %d: event %d of %d and %d differs:\n%s\n%s", seed, i, len(a.events), len(b.events),
					strings.Join(a.events[max(0, i-3):min(i+1, len(a.events))], "\n"), strings.Join(b.events[max(0, i-3):min(i+1, len(b.events))], "\n"))
			}
		}
	}
}

// shrink leaves out what a failure does not need.
func shrink(t *testing.T, seed uint64, off []string) []string {
	for _, f := range simFaults {
		if less := append(slices.Clone(off), f); !slices.Contains(off, f) && len(simulate(t, seed, less, false).violations) > 0 {
			off = less
		}
	}
	return off
}

type simCounts struct {
	Acked, Effects, Again, Deaths, Pauses, Late, Lost, LostWakes, Unknown, Aborted, Deleted, Drives, Appends int
}

func (c *simCounts) add(o simCounts) {
	c.Acked += o.Acked
	c.Effects += o.Effects
	c.Again += o.Again
	c.Deaths += o.Deaths
	c.Pauses += o.Pauses
	c.Late += o.Late
	c.Lost += o.Lost
	c.LostWakes += o.LostWakes
	c.Unknown += o.Unknown
	c.Aborted += o.Aborted
	c.Deleted += o.Deleted
	c.Drives += o.Drives
	c.Appends += o.Appends
}

const (
	simLease  = 60 * time.Second
	simMargin = simLease / 6
	simSweep  = time.Minute
)

// A sim is one interleaving. Its time is that of a synctest bubble: each step
// waits for a time of its own, so that one goroutine at a time goes on, and
// the seed alone decides which.
type sim struct {
	seed    uint64
	off     []string
	tracing bool
	store   *memory.Store
	eye     *psych.Runtime // looks at the store itself, past every fault
	blobs   *memory.BlobStore
	version psych.Digest
	tools   []*psych.Tool
	model   psych.Model
	began   time.Time
	trouble float64 // scales how often something goes wrong
	strict  bool    // clocks differ by less than the margin
	lag     time.Duration
	workers []*simProcess
	flying  sync.WaitGroup

	mu         sync.Mutex
	calm       bool // nothing goes wrong any more
	events     []string
	violations []string
	counts     simCounts
	keys       []psych.RunKey
	ledgers    map[psych.RunKey]*ledger
	drives     int
	woken      map[psych.RunKey]int
}

// A ledger is what the simulation knows of one Run: what its clients were
// promised, what its tools did, and its log as far as it was looked at.
type ledger struct {
	pos       psych.Pos
	acked     []string // ids of acknowledged notes
	order     [][]string
	delivered map[string]int
	open      bool
	calling   bool
	attempt   int64
	started   map[string]int64 // by call: the attempt of its last start
	outcome   map[string]psych.ToolOutcome
	ran       map[string]int
	unsafe    map[string]bool
	idemKeys  map[string]string
	deleting  bool          // somebody asked for it
	deleted   time.Time     // when that was acknowledged
	early     []psych.Note  // notes of posts that did not come to the header yet
	headers   []simSnapshot // for the index, which lags
}

type simSnapshot struct {
	at   time.Time
	info psych.RunInfo
}

// A simProcess is a worker, a client or the sweep, from its start to its death.
type simProcess struct {
	s    *sim
	name string
	skew time.Duration
	rt   *psych.Runtime
	dead atomic.Bool
	ids  int
}

// A simActor is one call of a Runtime's method in a process. It has a source
// of chance of its own, and counts its lease as the protocol says.
type simActor struct {
	s      *sim
	p      *simProcess
	key    psych.RunKey
	rng    *rand.Rand
	epoch  int64
	end    time.Time
	first  map[string]time.Time // sending of claims, by token
	models int
}

type simActorKey struct{}

func simActorOf(ctx context.Context) *simActor {
	a, _ := ctx.Value(simActorKey{}).(*simActor)
	return a
}

// chance is a source of chance that is the same in each play of the seed.
func (s *sim) chance(of ...any) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, s.seed, of)
	return rand.New(rand.NewPCG(s.seed, h.Sum64()))
}

func (s *sim) has(fault string) bool { return !slices.Contains(s.off, fault) }

func (s *sim) event(who, format string, args ...any) {
	if !s.tracing {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, fmt.Sprintf("%12.6f %-10s ", time.Since(s.began).Seconds(), who)+fmt.Sprintf(format, args...))
}

func (s *sim) violated(format string, args ...any) {
	v := fmt.Sprintf("%.6f s: ", time.Since(s.began).Seconds()) + fmt.Sprintf(format, args...)
	s.event("", "VIOLATION: %s", v)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.violations) < 10 {
		s.violations = append(s.violations, v)
	}
}

func (s *sim) count(n *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*n++
}

func (s *sim) isCalm() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calm
}

// simulate plays one interleaving to its end.
func simulate(t *testing.T, seed uint64, off []string, tracing bool) *sim {
	s := &sim{seed: seed, off: off, tracing: tracing, ledgers: map[psych.RunKey]*ledger{}, woken: map[psych.RunKey]int{}}
	defer func() {
		if v := recover(); v != nil {
			fmt.Printf("TestSimulation: seed %d, without %q\n", seed, off)
			panic(v)
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		if err := s.play(); err != nil {
			t.Fatal(err)
		}
	})
	return s
}

func (s *sim) play() error {
	ctx := context.Background()
	rng := s.chance("world")
	s.began = time.Now()
	s.trouble = []float64{0.3, 1, 1, 2}[rng.IntN(4)]
	s.strict = !s.has("clocks") || rng.IntN(4) > 0
	if s.has("lag") {
		s.lag = time.Duration(rng.Int64N(int64(5 * time.Second)))
	}
	s.store, s.blobs = memory.New(nil), memory.NewBlobs(nil)
	plain, err := script.Parse([]byte("steps: [{text: never}]"))
	if err != nil {
		return err
	}
	s.model = simModel{script.New(plain, nil), s}
	s.tools = []*psych.Tool{
		s.tool("unsafe", psych.ToolOptions{}),
		s.tool("safe", psych.ToolOptions{Idempotent: true}),
		s.tool("alone", psych.ToolOptions{Sequential: true}),
	}
	if s.eye, err = psych.New(s.store, &psych.Options{Tools: s.tools, Blobs: s.blobs}); err != nil {
		return err
	}
	spec := &psych.Spec{Name: "agent", Tools: []string{"unsafe", "safe", "alone"}}
	spec.Limits.Turns = 5
	spec.Limits.Parallel = 2
	v, err := s.eye.Publish(ctx, "t", spec)
	if err != nil {
		return err
	}
	s.version = v.Hash
	for i := range 2 + rng.IntN(2) {
		s.workers = append(s.workers, s.process(fmt.Sprintf("worker%d", i), rng))
	}
	var clients sync.WaitGroup
	runs := 1 + rng.IntN(4)/3
	for i := range 2 + rng.IntN(2) {
		clients.Go(func() { s.client(i, runs) })
	}
	done := make(chan struct{})
	var sweeper sync.WaitGroup
	sweeper.Go(func() { s.sweeper(done) })

	clients.Wait()
	s.mu.Lock()
	s.calm = true
	s.mu.Unlock()
	s.event("", "from here on nothing goes wrong")
	// What was under way may still take its longest pause, its flight, its
	// lease, and what a sweep put off; then a sweep and a drive.
	limit := 16 * time.Minute
	if !s.strict {
		limit += 4 * simFarOff
	}
	rested := false
	for range limit / time.Minute {
		if rested = s.rests(); rested {
			break
		}
		time.Sleep(time.Minute)
	}
	if !rested {
		s.violated("not at rest %v after the last fault: %s", limit, s.describe())
	}
	time.Sleep(limit) // what is left of pauses and flights
	close(done)
	sweeper.Wait()
	s.flying.Wait()
	if rested && !s.rests() {
		s.violated("a late write woke what was at rest: %s", s.describe())
	}
	s.finish()
	return nil
}

// simFarOff is how wrong a clock is that is wrong by more than the margin.
const simFarOff = 5 * time.Minute

func (s *sim) process(name string, rng *rand.Rand) *simProcess {
	p := &simProcess{s: s, name: name}
	if s.has("clocks") {
		most := simMargin/2 - time.Millisecond
		if !s.strict {
			most = simFarOff
		}
		p.skew = time.Duration(rng.Int64N(int64(2*most))) - most
	}
	return s.reborn(p)
}

// reborn is a process anew, which remembers nothing but its clock.
func (s *sim) reborn(p *simProcess) *simProcess {
	s.mu.Lock()
	n := &simProcess{s: s, name: p.name, skew: p.skew, ids: p.ids + 1_000_000}
	s.mu.Unlock()
	o := &psych.Options{
		Blobs: s.blobs, Models: psych.OneModel(s.model), Tools: s.tools, Waker: s, LeaseTTL: simLease, Owner: p.name,
		Now: func() time.Time { return time.Now().Add(n.skew) },
		NewID: func() string {
			s.mu.Lock()
			defer s.mu.Unlock()
			n.ids++
			h := fnv.New128a()
			fmt.Fprint(h, n.name, n.ids)
			return fmt.Sprintf("%x", h.Sum(nil))
		},
	}
	rt, err := psych.New(&simStore{s.store, s}, o)
	if err != nil {
		panic(err)
	}
	n.rt = rt
	return n
}

func (s *sim) act(p *simProcess, of ...any) (*simActor, context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &simActor{s: s, p: p, rng: s.chance(append([]any{p.name, p.ids}, of...)...), first: map[string]time.Time{}}
	return a, context.WithValue(context.Background(), simActorKey{}, a)
}

// live runs f as a process does: it may die in it, and then f never returns.
func (s *sim) live(f func()) (died bool) {
	died = true
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
		died = false
	}()
	<-done
	return died
}

// client starts the Run, as every client does with the same message, and posts
// to it. Each write is repeated until it is acknowledged, or given up.
func (s *sim) client(i, runs int) {
	rng := s.chance("client", i)
	p := s.process(fmt.Sprintf("client%d", i), rng)
	n := i % runs
	first := psych.ClientMessage{ID: fmt.Sprintf("first%d", n), Text: "go"}
	var key psych.RunKey
	var mine []string
	do := func(what, id string, f func(ctx context.Context) error) bool {
		for try := 0; ; try++ {
			if p.dead.Load() {
				time.Sleep(simTime(rng, time.Minute))
				p = s.reborn(p)
			}
			a, ctx := s.act(p, what, id, try)
			var err error
			died := s.live(func() { err = f(ctx) })
			s.event(a.p.name, "%s %s: died %v, %v", what, id, died, err)
			if !died && err == nil {
				s.mu.Lock()
				if l := s.ledgers[key]; what == "Delete" {
					if l.deleted.IsZero() {
						l.deleted = time.Now()
						s.counts.Deleted++
					}
				} else if l != nil && !slices.Contains(l.acked, id) {
					l.acked = append(l.acked, id)
					s.counts.Acked++
				}
				s.mu.Unlock()
				if rng.IntN(6) > 0 {
					return true
				}
			} else if !died && errors.Is(err, psych.ErrNotFound) && s.isDeleting(key) {
				return false
			} else if !died && !errors.Is(err, psych.ErrUnavailable) {
				s.violated("client %d: %s %s: %v", i, what, id, err)
				return false
			} else if rng.IntN(5) == 0 {
				return false // it never learns
			}
			if try > 8 {
				return false
			}
			time.Sleep(simTime(rng, 20*time.Second))
		}
	}
	time.Sleep(simTime(rng, 10*time.Second))
	if !do("Start", first.ID, func(ctx context.Context) error {
		k, err := p.rt.Start(ctx, psych.Scope{Tenant: "t"}, s.version, first)
		if k != (psych.RunKey{}) {
			key = k
			s.know(k)
		}
		return err
	}) {
		return
	}
	for j := range 1 + rng.IntN(3) {
		time.Sleep(simTime(rng, 90*time.Second))
		id := fmt.Sprintf("c%d-%d", i, j)
		if s.has("deletes") && rng.IntN(16) == 0 {
			s.mu.Lock()
			s.ledgers[key].deleting = true
			s.mu.Unlock()
			do("Delete", id, func(ctx context.Context) error { return p.rt.Delete(ctx, key) })
		} else if s.has("aborts") && rng.IntN(4) == 0 {
			of := []string{"", first.ID, fmt.Sprintf("c%d-0", 1-i%2)}[rng.IntN(3)]
			do("Abort", id, func(ctx context.Context) error {
				return p.rt.Abort(ctx, key, psych.AbortRequest{ID: id, Message: of, Reason: "enough"})
			})
		} else if do("Send", id, func(ctx context.Context) error { return p.rt.Send(ctx, key, psych.ClientMessage{ID: id, Text: id}) }) {
			mine = append(mine, id)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledgers[key].order = append(s.ledgers[key].order, mine)
}

func (s *sim) isDeleting(key psych.RunKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for of, l := range s.ledgers { // a client that never learned the key asks for its own
		if l.deleting && (key == of || key == psych.RunKey{}) {
			return true
		}
	}
	return false
}

// know makes the ledger of a Run.
func (s *sim) know(key psych.RunKey) *ledger {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.ledgers[key]
	if l == nil {
		l = &ledger{delivered: map[string]int{}, started: map[string]int64{}, outcome: map[string]psych.ToolOutcome{}, ran: map[string]int{}, unsafe: map[string]bool{}, idemKeys: map[string]string{}}
		s.ledgers[key] = l
		s.keys = append(s.keys, key)
	}
	return l
}

// simTime is a time up to most, to the nanosecond, so that no two are one.
func simTime(rng *rand.Rand, most time.Duration) time.Duration {
	return 1 + time.Duration(rng.Int64N(int64(most)))
}

// sweeper sweeps once a period. When nothing goes wrong any more, a sweep
// passes over nothing that is due.
func (s *sim) sweeper(done chan struct{}) {
	rng := s.chance("sweeper")
	p := s.process("sweep", rng)
	for n := 0; ; n++ {
		select {
		case <-done:
			return
		case <-time.After(simSweep + simTime(rng, time.Second)):
		}
		if p.dead.Load() {
			p = s.reborn(p)
		}
		calm, headers, woken := s.isCalm(), map[psych.RunKey]psych.RunInfo{}, map[psych.RunKey]int{}
		now := time.Now().Add(p.skew)
		s.mu.Lock()
		for _, key := range s.keys {
			if h := s.ledgers[key].headers; len(h) > 0 && time.Since(h[len(h)-1].at) >= s.lag { // as the index has it
				headers[key] = h[len(h)-1].info
			}
			woken[key] = s.woken[key]
		}
		s.mu.Unlock()
		_, ctx := s.act(p, n)
		s.live(func() {
			if _, _, err := p.rt.Sweep(ctx, ""); err != nil && calm {
				s.violated("sweep: %v", err)
			}
		})
		s.mu.Lock()
		keys := slices.Clone(s.keys)
		s.mu.Unlock()
		for _, key := range keys {
			was, ok := headers[key]
			if !ok || !calm {
				continue
			}
			due := was.Owner == "" && !was.DueAt.IsZero() && !was.DueAt.After(now) || was.Owner != "" && !was.Until.After(now)
			is, err := s.store.GetRun(context.Background(), key)
			s.mu.Lock()
			passed := err == nil && due && woken[key] == s.woken[key] && is.Epoch == was.Epoch && is.Owner == was.Owner && is.DueAt.Equal(was.DueAt) && is.Posted == was.Posted && is.Until.Equal(was.Until)
			s.mu.Unlock()
			if passed {
				s.violated("a sweep passed over a Run that was due: %+v", was)
			}
		}
	}
}

// Wake implements psych.Waker: it loses, repeats and delays.
func (s *sim) Wake(ctx context.Context, keys ...psych.RunKey) error {
	a := simActorOf(ctx)
	for _, key := range keys {
		s.mu.Lock()
		s.woken[key]++
		s.mu.Unlock()
		times := 1
		if !s.isCalm() && s.has("wakes") {
			switch n := a.rng.IntN(10); {
			case n < 2:
				s.event(a.p.name, "wake of %.4s is lost", key.RunID)
				s.count(&s.counts.LostWakes)
				continue
			case n < 4:
				times = 2
			}
		}
		for range times {
			wait := simTime(a.rng, 3*time.Second)
			if a.rng.IntN(8) == 0 {
				wait = simTime(a.rng, 90*time.Second)
			}
			s.flying.Go(func() {
				time.Sleep(wait)
				s.drive(key)
			})
		}
	}
	return nil
}

// drive is what a worker does with a wake.
func (s *sim) drive(key psych.RunKey) {
	s.mu.Lock()
	s.drives++
	s.counts.Drives++
	n := s.drives
	rng := s.chance("drive", n)
	i := rng.IntN(len(s.workers))
	p := s.workers[i]
	if p.dead.Load() {
		p = nil
	}
	s.mu.Unlock()
	if p == nil {
		time.Sleep(simTime(rng, 5*time.Second)) // the process starts
		s.mu.Lock()
		if p = s.workers[i]; p.dead.Load() {
			s.mu.Unlock()
			p = s.reborn(p)
			s.mu.Lock()
			s.workers[i] = p
		}
		s.mu.Unlock()
	}
	a, ctx := s.act(p, n)
	a.key = key
	if !s.isCalm() && s.has("deadlines") && rng.IntN(3) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 5*time.Second+simTime(rng, 2*time.Minute))
		defer cancel()
	}
	s.live(func() {
		s.event(p.name, "drive %d of %.4s", n, key.RunID)
		out, err := p.rt.Drive(ctx, key, &psych.DriveOptions{Floor: time.Second})
		s.event(p.name, "drive %d: %v, %v", n, out, err)
		var corrupt *psych.CorruptionError
		if errors.As(err, &corrupt) || errors.Is(err, psych.ErrInvalid) || errors.Is(err, psych.ErrNotFound) && !s.isDeleting(key) {
			s.violated("drive %d: %v, %v", n, out, err)
		}
	})
}

// step waits for a moment, or for longer than a lease, and may end the process.
func (a *simActor) step(what string) {
	s := a.s
	wait := simTime(a.rng, 40*time.Millisecond)
	n := a.rng.Float64() / s.trouble
	if !s.isCalm() && !a.p.dead.Load() {
		switch {
		case n < 0.006 && s.has("deaths"):
			s.event(a.p.name, "DIES %s", what)
			s.count(&s.counts.Deaths)
			s.mu.Lock()
			a.p.dead.Store(true)
			s.mu.Unlock()
		case n < 0.012 && s.has("pauses"):
			wait = simLease + simTime(a.rng, 3*time.Minute)
			s.event(a.p.name, "pauses for %v %s", wait, what)
			s.count(&s.counts.Pauses)
		case n < 0.03 && s.has("pauses"):
			wait = simTime(a.rng, 20*time.Second)
		}
	}
	if !a.p.dead.Load() {
		time.Sleep(wait)
	}
	if a.p.dead.Load() { // this process, or another goroutine of it meanwhile
		runtime.Goexit()
	}
}

var errFlaky = fmt.Errorf("the store did not answer: %w", psych.ErrUnavailable)

// simCall makes a call of the store, with what may go wrong on the way.
func simCall[T any](ctx context.Context, s *sim, method string, key psych.RunKey, writes bool, f func(ctx context.Context) (T, error)) (T, error) {
	a := simActorOf(ctx)
	if a == nil {
		return f(ctx)
	}
	var zero T
	a.step("before " + method)
	if err := ctx.Err(); err != nil {
		return zero, err
	}
	if n := a.rng.Float64() / s.trouble; !s.isCalm() {
		switch {
		case n < 0.02 && s.has("errors"):
			s.event(a.p.name, "%s never arrives", method)
			return zero, errFlaky
		case n < 0.04 && s.has("late") && writes:
			wait := simTime(a.rng, 2*time.Second)
			if a.rng.IntN(2) == 0 {
				wait = simTime(a.rng, 2*time.Minute)
			}
			s.event(a.p.name, "%s will arrive in %v", method, wait)
			s.count(&s.counts.Late)
			s.flying.Go(func() {
				time.Sleep(wait)
				_, err := f(context.WithoutCancel(ctx))
				s.event(a.p.name, "%s arrives late: %v", method, err)
				s.committed(key, method)
			})
			a.step("before no answer to " + method)
			return zero, errFlaky
		case n < 0.07 && s.has("lost"):
			_, err := f(ctx)
			s.event(a.p.name, "%s: %v, but the answer is lost", method, err)
			s.count(&s.counts.Lost)
			s.committed(key, method)
			a.step("behind " + method)
			return zero, errFlaky
		}
	}
	v, err := f(ctx)
	s.event(a.p.name, "%s: %v", method, err)
	if writes {
		s.committed(key, method)
	}
	a.step("behind " + method)
	return v, err
}

// committed looks at a Run behind a write.
func (s *sim) committed(key psych.RunKey, method string) {
	ctx := context.Background()
	info, err := s.store.GetRun(ctx, key)
	if err != nil {
		return
	}
	l := s.know(key)
	s.mu.Lock()
	deleted := l.deleted
	s.mu.Unlock()
	if !deleted.IsZero() {
		s.violated("a Run that was deleted at %v is there behind %s", deleted.Sub(s.began), method)
	}
	s.mu.Lock()
	if n := len(l.headers); n == 0 || !sameHeader(l.headers[n-1].info, info) {
		l.headers = append(l.headers, simSnapshot{time.Now(), info})
	}
	s.mu.Unlock()
	if method == "Append" {
		s.count(&s.counts.Appends)
		s.catchUp(key, l)
	}
	if info.Owner == "" && info.DueAt.IsZero() {
		s.mu.Lock()
		waits := ""
		for _, id := range l.acked {
			if l.delivered[id] == 0 {
				waits = id
			}
		}
		open := l.open
		s.mu.Unlock()
		if waits != "" || open {
			s.violated("behind %s nobody drives the Run and nothing is due, but %q waits, exchange open: %v", method, waits, open)
		}
	}
}

func sameHeader(a, b psych.RunInfo) bool {
	return a.Epoch == b.Epoch && a.Owner == b.Owner && a.Posted == b.Posted && a.DueAt.Equal(b.DueAt) && a.Until.Equal(b.Until)
}

// catchUp reads what is new in a log, and holds it against what is promised.
// That it folds is checked at the end, when each of its prefixes is folded.
func (s *sim) catchUp(key psych.RunKey, l *ledger) {
	s.mu.Lock()
	pos := l.pos
	s.mu.Unlock()
	for r, err := range s.eye.Records(context.Background(), key, pos) {
		if errors.Is(err, psych.ErrNotFound) && s.isDeleting(key) {
			return
		}
		if err != nil {
			s.violated("the log can't be read: %v", err)
			return
		}
		s.mu.Lock()
		if r.Seq != l.pos.Seq+1 {
			s.mu.Unlock()
			s.violated("seq %d follows seq %d", r.Seq, l.pos.Seq)
			return
		}
		l.pos = psych.Pos{Seq: r.Seq}
		note := ""
		switch e := r.Event.(type) {
		case *psych.AttemptStarted:
			l.attempt = r.Attempt
		case *psych.UserMessage:
			note, l.open = e.ID, true
		case *psych.AbortRequested:
			note = e.ID
		case *psych.ExchangeClosed:
			l.open = false
			if e.Status == psych.StatusAborted {
				s.counts.Aborted++
			}
		case *psych.ModelCallStarted:
			l.calling = true
		case *psych.ModelCallFinished, *psych.ModelCallFailed:
			l.calling = false
		case *psych.ToolCallStarted:
			l.started[e.Call] = r.Attempt
		case *psych.ToolCallFinished:
			l.outcome[e.Call] = e.Outcome
			if e.Outcome == psych.UnknownEnd {
				s.counts.Unknown++
			}
		}
		if note != "" {
			l.delivered[note]++
		}
		twice := note != "" && l.delivered[note] > 1
		s.mu.Unlock()
		if s.tracing {
			s.event("", "%d is %s (%d) %s", r.Seq, r.Event.Kind(), r.Attempt, note)
		}
		if twice {
			s.violated("note %q was delivered twice", note)
		}
	}
}

// effect is the moment at which a model is called or a tool takes effect. It
// reports whether there is still somebody to do it.
func (s *sim) effect(a *simActor, what string, c *psych.Call, unsafe bool) bool {
	s.event(a.p.name, "EFFECT of %s, attempt %d", what, a.epoch)
	info, err := s.store.GetRun(context.Background(), a.key)
	l := s.know(a.key)
	s.mu.Lock()
	var wrong []string
	violated := func(format string, args ...any) {
		wrong = append(wrong, what+": "+fmt.Sprintf(format, args...))
	}
	if a.p.dead.Load() {
		s.mu.Unlock()
		return false
	}
	s.counts.Effects++
	if left := a.end.Sub(time.Now().Add(a.p.skew)); left <= simMargin-time.Millisecond {
		violated("an effect of attempt %d began with %v left of its lease", a.epoch, left)
	}
	// Nobody tells a driver that its Run is deleted: it learns when it asks.
	deleting := l.deleting
	if !l.deleted.IsZero() && time.Since(l.deleted) > simLease {
		violated("an effect began %v after the Run was deleted", time.Since(l.deleted))
	}
	if s.strict && !deleting && (err != nil || info.Epoch != a.epoch) {
		violated("an effect of attempt %d began in attempt %d (%v)", a.epoch, info.Epoch, err)
	}
	if c == nil {
		if s.strict && !deleting && (!l.calling || l.attempt != a.epoch) {
			violated("the model was called, and the log does not say so")
		}
	} else {
		if s.strict && l.outcome[c.ID] != "" {
			violated("%s ran when the log held its result already", c.ID)
		}
		if l.started[c.ID] < a.epoch && !deleting {
			violated("%s ran before the log said so", c.ID)
		}
		l.ran[c.ID]++
		l.unsafe[c.ID] = unsafe
		if l.ran[c.ID] > 1 {
			s.counts.Again++
			if unsafe {
				violated("%s ran %d times, and is not safe to retry", c.ID, l.ran[c.ID])
			}
		}
		if k := l.idemKeys[c.ID]; k != "" && k != c.IdempotencyKey {
			violated("%s ran with the keys %s and %s", c.ID, k, c.IdempotencyKey)
		}
		for id, k := range l.idemKeys {
			if id != c.ID && k == c.IdempotencyKey {
				violated("%s and %s share a key", id, c.ID)
			}
		}
		l.idemKeys[c.ID] = c.IdempotencyKey
	}
	s.mu.Unlock()
	for _, w := range wrong {
		s.violated("%s", w)
	}
	return true
}

func (s *sim) tool(name string, o psych.ToolOptions) *psych.Tool {
	return psych.NewTool(name, "", func(ctx context.Context, c *psych.Call, _ struct{}) (string, error) {
		a := simActorOf(ctx)
		rng := s.chance("tool", c.Run.RunID, c.ID, a.epoch)
		time.Sleep(simTime(rng, 100*time.Microsecond)) // siblings one behind the other
		if !s.effect(a, name+" "+c.ID, c, !o.Idempotent) {
			<-ctx.Done()
			return "", ctx.Err()
		}
		wait, heeds := simTime(rng, 2*time.Second), rng.IntN(4) > 0
		if !s.isCalm() && s.has("pauses") {
			switch n := rng.IntN(20); {
			case n == 0:
				wait = simLease + simTime(rng, 2*time.Minute)
			case n < 3:
				wait = simTime(rng, time.Minute)
			}
		}
		fails := s.has("failures") && rng.IntN(8) == 0
		var gone <-chan struct{}
		if heeds {
			gone = ctx.Done()
		}
		select {
		case <-time.After(wait):
		case <-gone:
			return "", ctx.Err()
		}
		if fails {
			return "", errors.New("it did not work")
		}
		return "ok", nil
	}, &o)
}

// A simModel answers by chance.
type simModel struct {
	psych.Model
	s *sim
}

func (m simModel) Generate(ctx context.Context, req *psych.Request, on func(psych.Delta)) (*psych.Response, error) {
	s, a := m.s, simActorOf(ctx)
	if !s.effect(a, "model", nil, false) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	s.mu.Lock()
	a.models++
	rng := s.chance("model", a.key.RunID, a.epoch, a.models)
	s.mu.Unlock()
	wait := simTime(rng, 4*time.Second)
	calm := s.isCalm()
	if !calm && s.has("pauses") && rng.IntN(20) == 0 {
		wait = simTime(rng, 100*time.Second)
	}
	fail := rng.IntN(16)
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !calm && s.has("failures") {
		switch fail {
		case 0:
			return nil, &psych.ModelError{Status: 503, Transient: true, Message: "busy"}
		case 1:
			return nil, &psych.ModelError{Status: 400, Message: "no"}
		}
	}
	r := &psych.Response{Stop: psych.StopEnd, Blocks: []psych.Block{{Text: "well"}}}
	if rng.IntN(2) == 0 {
		r.Stop = psych.StopToolUse
		for range 1 + rng.IntN(3) {
			name := []string{"unsafe", "safe", "unsafe", "safe", "alone"}[rng.IntN(5)]
			r.Blocks = append(r.Blocks, psych.Block{Call: &psych.ToolCall{Name: name, Arguments: []byte("{}")}})
		}
	}
	on(psych.Delta{Text: "well"})
	return r, nil
}

// rests reports whether nothing is left to do in any Run.
func (s *sim) rests() bool {
	s.mu.Lock()
	keys := slices.Clone(s.keys)
	s.mu.Unlock()
	for _, key := range keys {
		info, err := s.store.GetRun(context.Background(), key)
		l := s.know(key)
		s.mu.Lock()
		if errors.Is(err, psych.ErrNotFound) && l.deleting {
			s.mu.Unlock()
			continue
		}
		rests := err == nil && info.Owner == "" && info.DueAt.IsZero() && !l.open
		for _, id := range l.acked {
			rests = rests && l.delivered[id] == 1
		}
		s.mu.Unlock()
		if !rests {
			return false
		}
	}
	return true
}

func (s *sim) describe() string {
	var b strings.Builder
	for _, key := range s.keys {
		info, err := s.store.GetRun(context.Background(), key)
		l := s.know(key)
		fmt.Fprintf(&b, "%+v (%v), open %v, acknowledged %v, delivered %v; ", info, err, l.open, l.acked, l.delivered)
	}
	return b.String()
}

// finish holds each log as a whole against what is promised.
func (s *sim) finish() {
	ctx := context.Background()
	for _, key := range s.keys {
		l := s.know(key)
		if _, err := s.store.GetRun(ctx, key); errors.Is(err, psych.ErrNotFound) && l.deleting {
			continue
		}
		rep, err := s.eye.Report(ctx, key)
		if err != nil {
			s.violated("the log does not fold: %v", err)
			continue
		}
		for _, x := range rep.Exchanges {
			if x.Closed == "" {
				s.violated("the exchange of %s is open", x.Message)
			}
		}
		notes, err := s.store.Pending(ctx, key)
		if err != nil {
			s.violated("%v", err)
		}
		for _, n := range notes {
			if l.delivered[n.ID] == 0 {
				s.violated("%s waits in the inbox of a Run at rest", n.ID)
			}
		}
		var order []string
		for r, err := range s.eye.Records(ctx, key, psych.Pos{}) {
			if err != nil {
				s.violated("%v", err)
				break
			}
			if m, ok := r.Event.(*psych.UserMessage); ok {
				order = append(order, m.ID)
			}
		}
		for _, of := range l.order {
			at := -1
			for _, id := range of {
				if i := slices.Index(order, id); i < at {
					s.violated("of one client %v were acknowledged in that order, and delivered in the order %v", of, order)
				} else {
					at = i
				}
			}
		}
		for id, n := range l.ran {
			switch o := l.outcome[id]; {
			case o == psych.NotStarted:
				s.violated("%s ran %d times, and the log says that it did not start", id, n)
			case o == "":
				s.violated("%s has no result", id)
			}
		}
		for _, c := range rep.ToolCalls {
			if c.Outcome == string(psych.Succeeded) && l.ran[c.ID] == 0 {
				s.violated("%s succeeded without having run", c.ID)
			}
		}
	}
}
