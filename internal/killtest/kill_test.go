package killtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

// A lane is where trials are played, one after the other.
type lane struct {
	ports func(dir string) (store, blobs string) // their URLs
}

// A played mission.
type played struct {
	job      job
	m        *mission
	deaths   int
	appends  int
	log      []psych.Entry
	records  []*psych.Record
	report   *psych.Report
	info     psych.RunInfo
	notes    []psych.Note
	effects  []effect
	shown    []shown
	again    []*psych.ReplayedCall // the requests of the log, made again
	acks     []ack
	progress []ack
	gone     bool
	blobs    psych.BlobStore
}

// restart is how much later the next process is: a lease, a grace, and what a
// sweep defers a Run by.
const restart = 3 * time.Minute

// play plays a mission in processes that die, and one that ends it.
func (l *lane) play(dir string, j job, deaths ...kill) (*played, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	j.Dir = dir
	j.Store, j.Blobs = l.ports(dir)
	j.Tenant = strings.ToLower(rand.Text())
	p := &played{job: j, m: missionNamed(j.Mission)}
	for i := 0; ; i++ {
		j.Kill, j.Shift = kill{}, time.Duration(i)*restart
		if i < len(deaths) {
			j.Kill = deaths[i]
		}
		killed, err := j.run()
		if err != nil {
			return p, err
		}
		if !killed {
			break
		}
		p.deaths++
	}
	return p, p.read()
}

// read takes in what there is in the end, by handles of its own.
func (p *played) read() error {
	ctx := context.Background()
	s, bs, err := openPorts(ctx, p.job.Store, p.job.Blobs, nil)
	if err != nil {
		return err
	}
	if c, ok := s.(io.Closer); ok {
		defer c.Close()
	}
	p.blobs = bs
	p.effects, p.shown = read[effect](p.job.Dir, effectsFile), read[shown](p.job.Dir, requestsFile)
	p.acks, p.progress = read[ack](p.job.Dir, acksFile), read[ack](p.job.Dir, progressFile)
	key := runKey(p.job.Dir, p.job.Tenant)
	if p.info, err = s.GetRun(ctx, key); errors.Is(err, psych.ErrNotFound) {
		p.gone = true
		return nil
	}
	if err != nil {
		return err
	}
	rt, err := psych.New(s, &psych.Options{Blobs: bs})
	if err != nil {
		return err
	}
	for pos := (psych.Pos{}); ; p.appends++ {
		page, err := s.Read(ctx, key, pos, 1)
		if err != nil {
			return err
		}
		p.log = append(p.log, page.Entries...)
		if pos = page.Next; !page.More {
			p.appends++
			break
		}
	}
	for r, err := range rt.Records(ctx, key, psych.Pos{}) {
		if err != nil {
			return err
		}
		p.records = append(p.records, r)
	}
	if p.notes, err = s.Pending(ctx, key); err != nil {
		return err
	}
	if p.report, err = rt.Report(ctx, key); err != nil { // it folds the log, so that is legal
		return err
	}
	parsed, err := script.Parse([]byte(p.m.script))
	if err != nil {
		return err
	}
	for c, err := range rt.Replay(ctx, key, &psych.ReplayOptions{Models: []psych.Model{script.New(parsed, nil)}}) {
		if err != nil {
			return err
		}
		p.again = append(p.again, c)
	}
	return nil
}

// writes is how many there were in the process that ended the mission.
func (p *played) writes() int {
	n := 0
	for _, a := range p.progress {
		n = max(n, a.Writes)
	}
	return n
}

// check returns what is wrong with p, given how the mission went undisturbed.
func (p *played) check(base *played) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	// Tools.
	ran, keys := map[string]int{}, map[string]string{}
	for _, e := range p.effects {
		ran[e.Call]++
		if k := keys[e.Call]; k != "" && k != e.Key {
			wrong("call %s of %s ran with the keys %s and %s", e.Call, e.Tool, k, e.Key)
		}
		keys[e.Call] = e.Key
		if !safe[e.Tool] && ran[e.Call] > 1 {
			wrong("call %s of %s, which is not safe to retry, ran %d times", e.Call, e.Tool, ran[e.Call])
		}
	}
	if distinct := slices.Compact(slices.Sorted(values(keys))); len(distinct) != len(keys) {
		wrong("%d calls share %d keys", len(keys), len(distinct))
	}
	if p.m.deleted {
		errs = append(errs, p.checkGone())
		return errors.Join(errs...)
	}
	if p.gone {
		return errors.New("the Run is lost")
	}

	// The Run.
	if p.report.Status != p.m.status || p.info.Status != p.m.status || p.info.Owner != "" || !p.info.DueAt.IsZero() || len(p.notes) > 0 || p.report.Waiting > 0 {
		wrong("the Run is %s, its header %+v, and %d notes wait: want it %s, with nothing due", p.report.Status, p.info, len(p.notes), p.m.status)
	}
	for i, e := range p.log {
		if e.Seq != uint64(i+1) {
			wrong("entry %d has seq %d", i+1, e.Seq)
		}
	}
	delivered := map[string]int{}
	for _, r := range p.records {
		switch e := r.Event.(type) {
		case *psych.UserMessage:
			delivered[e.ID]++
		case *psych.AbortRequested:
			delivered[e.ID]++
		}
	}
	for id, n := range delivered {
		if n != 1 {
			wrong("note %s is in the log %d times", id, n)
		}
	}
	for _, a := range p.acks {
		switch {
		case a.Sum != nil && (a.Seq > uint64(len(p.log)) || *a.Sum != sha256.Sum256(p.log[a.Seq-1].Data)):
			wrong("record %d was acknowledged, and the log holds %d records, or another", a.Seq, len(p.log))
		case a.Note != "" && delivered[a.Note] != 1:
			wrong("note %s was acknowledged, and is in the log %d times", a.Note, delivered[a.Note])
		}
	}
	errs = append(errs, p.checkPayloads(), p.checkReplay())

	// Outcomes.
	settled := map[string]bool{}
	should := map[string]psych.ToolCallReport{}
	for _, c := range base.report.ToolCalls {
		should[c.ID] = c
	}
	for _, c := range p.report.ToolCalls {
		w := should[c.ID]
		if c.Tool != "" {
			c.Name = c.Tool
		}
		switch n := ran[c.ID]; {
		case c.Outcome == string(psych.NotStarted) && n > 0:
			wrong("call %s of %s ran, and its outcome is %s", c.ID, c.Name, c.Outcome)
		case c.Outcome == string(psych.Succeeded) && n == 0 && isTool(c.Name):
			wrong("call %s of %s never ran, and its outcome is %s", c.ID, c.Name, c.Outcome)
		case c.Outcome == w.Outcome:
		case c.Outcome != string(psych.NotStarted) && c.Outcome != string(psych.UnknownEnd) || safe[c.Name]:
			wrong("the outcome of call %s of %s is %s, and undisturbed %s", c.ID, c.Name, c.Outcome, w.Outcome)
		}
		if c.Outcome == string(psych.NotStarted) || c.Outcome == string(psych.UnknownEnd) {
			settled[c.ID] = true
		}
	}
	if p.deaths == 0 && len(settled) > 0 && p.m.name != "abort" {
		wrong("calls were settled, and nobody died: %v", settled)
	}
	if p.m.loose {
		return errors.Join(errs...)
	}
	errs = append(errs, sameShown(base.shown, p.shown, settled), sameReport(base.report, p.report, settled))
	return errors.Join(errs...)
}

func isTool(name string) bool {
	return name != "read_tool_output" && name != "load_skill" && name != "list_tools"
}

func values(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, v := range m {
			if !yield(v) {
				return
			}
		}
	}
}

// checkGone looks for what is left of a deleted Run.
func (p *played) checkGone() error {
	if !p.gone {
		return fmt.Errorf("the Run is there: %+v", p.info)
	}
	key := runKey(p.job.Dir, p.job.Tenant)
	for _, a := range p.acks {
		if a.Blob == "" {
			continue
		}
		if _, err := p.blobs.Stat(context.Background(), psych.BlobKey{Tenant: key.Tenant, RunID: key.RunID, CallID: a.Blob}); !errors.Is(err, psych.ErrNotFound) {
			return fmt.Errorf("blob %s outlives its Run: %v", a.Blob, err)
		}
	}
	return nil
}

// checkPayloads reads every payload that the log refers to.
func (p *played) checkPayloads() error {
	for _, r := range p.records {
		var ps []psych.Payload
		switch e := r.Event.(type) {
		case *psych.UserMessage:
			ps = append(ps, e.Text)
			for _, a := range e.Attachments {
				ps = append(ps, a.Output)
			}
		case *psych.ToolCallFinished:
			ps = append(ps, e.Result)
			for _, a := range e.Attachments {
				ps = append(ps, a.Output)
			}
		case *psych.ModelCallFinished:
			for _, b := range e.Blocks {
				if b.Text != nil {
					ps = append(ps, *b.Text)
				}
			}
		}
		for _, x := range ps {
			if x.Ref == nil {
				continue
			}
			key := runKey(p.job.Dir, p.job.Tenant)
			body, _, err := p.blobs.Open(context.Background(), psych.BlobKey{Tenant: key.Tenant, RunID: key.RunID, CallID: x.Ref.CallID}, 0, -1)
			if err != nil {
				return fmt.Errorf("record %d refers to a blob: %w", r.Seq, err)
			}
			h := sha256.New()
			n, err := io.Copy(h, body)
			body.Close()
			if err != nil || n != x.Size || psych.Digest(h.Sum(nil)) != x.Ref.SHA256 {
				return fmt.Errorf("record %d refers to a blob of %d bytes that has %d, or others: %v", r.Seq, x.Size, n, err)
			}
		}
	}
	return nil
}

// checkReplay looks for what the model was shown among the requests that are
// made again, in order: a process that died may have announced more than it
// sent.
func (p *played) checkReplay() error {
	if len(p.again) != len(p.report.ModelCalls) {
		return fmt.Errorf("%d requests are made again, of %d model calls", len(p.again), len(p.report.ModelCalls))
	}
	left := p.shown
	for i, c := range p.again {
		switch {
		case c.Call != i+1:
			return fmt.Errorf("model call %d is made again as %d", i+1, c.Call)
		case c.Err != nil:
			return fmt.Errorf("model call %d is not made again: %w", c.Call, c.Err)
		case c.Difference != nil:
			return fmt.Errorf("model call %d is made again otherwise: %v", c.Call, c.Difference)
		case len(left) > 0 && reflect.DeepEqual(showing(c.Request), left[0]):
			left = left[1:]
		case p.deaths == 0:
			return fmt.Errorf("model call %d is not what the model was shown", c.Call)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("the model was shown %d requests, and the last %d are not made again", len(p.shown), len(left))
	}
	return nil
}

// A result is one of a message of results.
type result struct {
	ID    string `json:"id"`
	Text  string `json:"text"`
	Error bool   `json:"error,omitempty"`
}

var clock = regexp.MustCompile(`Now: [^\\"]*`)

// masked is a request without what a death may change: the results of settled
// calls, and the time.
func masked(s shown, settled map[string]bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "tools %s\nsystem %s\n", s.Tools, s.System)
	for _, m := range s.History {
		var results struct {
			Role    string   `json:"role"`
			Results []result `json:"results"`
		}
		if json.Unmarshal([]byte(m), &results) != nil || results.Role != "tool" {
			b.WriteString(m + "\n")
			continue
		}
		for _, r := range results.Results {
			if settled["c"+strings.TrimPrefix(r.ID, "call_")] {
				r.Text, r.Error = "settled", false
			}
			fmt.Fprintf(&b, "result %+v\n", r)
		}
	}
	return b.String() + clock.ReplaceAllString(s.Tail, "Now")
}

// sameShown compares what the model was shown, each time that it was asked.
func sameShown(base, got []shown, settled map[string]bool) error {
	want, seen := map[int]string{}, map[int]bool{}
	for _, s := range base {
		want[s.Turn] = masked(s, settled)
	}
	for _, s := range got {
		seen[s.Turn] = true
		if x := masked(s, settled); x != want[s.Turn] {
			return fmt.Errorf("in turn %d the model was shown something else: %s", s.Turn+1, difference(x, want[s.Turn]))
		}
	}
	if len(seen) != len(want) {
		return fmt.Errorf("the model was asked for %d answers, and undisturbed for %d", len(seen), len(want))
	}
	return nil
}

func difference(a, b string) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	from := max(0, i-80)
	return fmt.Sprintf("at byte %d: %q, and undisturbed %q", i, a[from:min(len(a), i+120)], b[from:min(len(b), i+120)])
}

// sameReport compares reports apart from what a death may change.
func sameReport(base, got *psych.Report, settled map[string]bool) error {
	a, b := comparable(got, settled), comparable(base, settled)
	if a != b {
		return fmt.Errorf("the report is another: %s", difference(a, b))
	}
	return nil
}

// comparable is a report without attempts, times, cached tokens and the settled
// calls, and what follows from these in sizes.
func comparable(r *psych.Report, settled map[string]bool) string {
	c := *r
	c.Run, c.Attempts, c.Totals.CacheHitRate = psych.RunKey{}, 0, nil
	spend := func(s *psych.Spend) {
		if s.CachedTokens, s.UncachedTokens = nil, nil; len(settled) > 0 {
			s.PromptTokens = 0
		}
	}
	spend(&c.Totals.Spend)
	c.Exchanges, c.ModelCalls, c.ToolCalls = slices.Clone(r.Exchanges), nil, slices.Clone(r.ToolCalls)
	for i := range c.Exchanges {
		c.Exchanges[i].FirstSeq = 0
		spend(&c.Exchanges[i].Spend)
	}
	wire := func(w *psych.WireSplit) {
		if w != nil && len(settled) > 0 {
			w.History, w.Envelope = 0, 0
		}
	}
	var breaks []psych.Break
	for _, m := range r.ModelCalls {
		breaks = append(breaks, m.Breaks...)
		if m.Outcome == "interrupted" {
			continue
		}
		m.Try, m.CachedTokens, m.Milliseconds, m.Breaks, breaks = 0, nil, 0, breaks, nil
		wire(&m.Wire)
		if len(settled) > 0 {
			m.PromptTokens = nil
		}
		c.ModelCalls = append(c.ModelCalls, m)
	}
	c.FirstWire, c.LastWire = nil, nil // of the calls above
	for i := range c.ToolCalls {
		t := &c.ToolCalls[i]
		t.Milliseconds = 0
		if settled[t.ID] {
			*t = psych.ToolCallReport{ID: t.ID, Turn: t.Turn, Name: t.Name, Arguments: t.Arguments}
		}
	}
	out, err := json.MarshalIndent(c, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(out)
}

func large() bool { return os.Getenv("PSYCH_TEST_LARGE") == "1" }

// A trial is a mission with its deaths.
type trial struct {
	job    job
	deaths []kill
}

func (x trial) String() string {
	return fmt.Sprintf("mission %q, deaths %v, post at %d, client at %d dies %v", x.job.Mission, x.deaths, x.job.Post, x.job.Client, x.job.Died)
}

// trials are all kill points, given how many writes each mission has.
func trials(base map[string]*played) (all []trial) {
	whens := []string{before, lost, after}
	for _, m := range missions {
		j := job{Mission: m.name}
		writes := base[m.name].writes()
		if m.loose {
			for at := 1; at <= writes; at++ {
				for _, when := range whens {
					for _, n := range []int{at, at + 1, at + 2, at + 4} {
						all = append(all, trial{job{Mission: m.name, Post: at}, []kill{{n, when}}})
					}
					all = append(all, trial{job{Mission: m.name, Client: at, Died: kill{1, when}}, nil})
				}
			}
			continue
		}
		for n := 1; n <= writes; n++ {
			for _, when := range whens {
				all = append(all, trial{j, []kill{{n, when}}})
			}
			// Who goes on dies, too: at its claim, at its first append, behind it.
			all = append(all, trial{j, []kill{{n, lost}, {2 + n%4, whens[n%3]}}})
		}
	}
	return all
}

// killAll plays the trials in two lanes.
func killAll(t *testing.T, lanes []*lane, share int) {
	base := map[string]*played{}
	for _, m := range missions {
		p, err := lanes[0].play(filepath.Join(t.TempDir(), "base"), job{Mission: m.name})
		if err == nil {
			err = p.check(p)
		}
		if err != nil {
			t.Fatalf("mission %q, undisturbed: %v", m.name, err)
		}
		base[m.name] = p
	}
	all := trials(base)
	chosen := all
	if !large() {
		chosen = nil
		random := mrand.New(mrand.NewPCG(6, uint64(len(all))))
		for _, x := range all {
			if random.IntN(share) == 0 {
				chosen = append(chosen, x)
			}
		}
	}
	if s := os.Getenv("PSYCH_TEST_KILL"); s != "" { // the one that a failure printed
		chosen = slices.DeleteFunc(all, func(x trial) bool { return x.String() != s })
	}
	var mu sync.Mutex
	killed, processes, extra, failed, settled, twice := 0, 0, map[int]int{}, 0, 0, 0
	next := make(chan trial)
	var g sync.WaitGroup
	dir := t.TempDir()
	for i, l := range lanes {
		g.Go(func() {
			for x := range next {
				own := filepath.Join(dir, fmt.Sprint(i))
				p, err := l.play(own, x.job, x.deaths...)
				if err == nil {
					err = p.check(base[x.job.Mission])
				}
				mu.Lock()
				if x.job.Client > 0 {
					p.deaths++
				}
				if p.deaths > 0 {
					killed++
				}
				processes += p.deaths + 1
				if p.report != nil {
					for _, c := range p.report.ToolCalls {
						if c.Outcome == string(psych.UnknownEnd) || c.Outcome == string(psych.NotStarted) {
							settled++
						}
					}
					if !p.m.loose && p.deaths == 1 {
						extra[p.appends-base[x.job.Mission].appends]++
					}
				}
				seen := map[string]bool{}
				for _, e := range p.effects {
					if seen[e.Call] {
						twice++
					}
					seen[e.Call] = true
				}
				if err != nil {
					failed++
					t.Errorf("%s:\n%v\nplay it again with PSYCH_TEST_KILL=%q", x, err, x.String())
				}
				mu.Unlock()
				_ = os.RemoveAll(own)
			}
		})
	}
	for _, x := range chosen {
		next <- x
	}
	close(next)
	g.Wait()
	t.Logf("%d kill points of %d tried, %d of them reached, in %d processes; %d failed; %d calls settled, %d safe ones run again; further appends after one death: %v", len(chosen), len(all), killed, processes, failed, settled, twice, extra)
	for n, times := range extra {
		if n > 2 {
			t.Errorf("recovery took %d further appends, in %d trials: want 2 at most", n, times)
		}
	}
	if killed == 0 {
		t.Error("nothing was killed: the test shows nothing")
	}
}

// Whatever write a process dies at, another one ends the mission as if nothing
// had been.
func TestKillAtEveryWrite(t *testing.T) {
	files := func(dir string) (string, string) {
		return "sqlite://" + filepath.Join(dir, "psych.db"), "file://" + filepath.Join(dir, "blobs")
	}
	killAll(t, []*lane{{files}, {files}}, 30)
}

// On DynamoDB and S3 each request that writes is a write: what a method of an
// adapter makes of several is cut there, too.
func TestKillAtEveryRequest(t *testing.T) {
	db, blobs := endpoint.One(t, endpoint.Dynamo, "dynalite"), endpoint.One(t, endpoint.S3, "ministack")
	on := func() *lane {
		name := "psych-" + strings.ToLower(rand.Text())
		url := fmt.Sprintf("aws:%s %s %s", db.URL, blobs.URL, name)
		s, b, err := openPorts(t.Context(), url, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []any{s, b} {
			if _, err := p.(psych.Initer).Init(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() {
			c := dynamodb.New(dynamodb.Options{Region: "us-east-1", BaseEndpoint: &db.URL, Credentials: credential})
			if _, err := c.DeleteTable(context.WithoutCancel(t.Context()), &dynamodb.DeleteTableInput{TableName: &name}); err != nil {
				t.Errorf("delete table %s: %v", name, err)
			}
		})
		return &lane{func(string) (string, string) { return url, "" }}
	}
	killAll(t, []*lane{on(), on()}, 80)
}
