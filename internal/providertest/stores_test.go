package providertest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/adapters/fsblob"
	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/s3blob"
	"github.com/psych-go/psych-go/adapters/sqlite"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

// An opener opens a Store and its BlobStore anew, as another process would.
type opener func(t tester) (psych.Store, psych.BlobStore)

func inMemory() opener {
	s, b := memory.New(nil), memory.NewBlobs(nil)
	return func(tester) (psych.Store, psych.BlobStore) { return s, b }
}

func onFiles(dir string) opener {
	return func(t tester) (psych.Store, psych.BlobStore) {
		s := sqlite.New(filepath.Join(dir, "psych.db"), nil)
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s, fsblob.New(filepath.Join(dir, "blobs"), nil)
	}
}

// onAWS is a table and a bucket of their own on endpoints, which end with the
// test.
func onAWS(t *testing.T, db, objects endpoint.Endpoint) opener {
	t.Helper()
	name := "psych-" + strings.ToLower(rand.Text())
	credential := credentials.NewStaticCredentialsProvider("test", "test", "")
	clients := func() (*dynamodb.Client, *s3.Client) {
		return dynamodb.New(dynamodb.Options{Region: "us-east-1", BaseEndpoint: &db.URL, Credentials: credential}),
			s3.New(s3.Options{Region: "us-east-1", BaseEndpoint: &objects.URL, Credentials: credential, UsePathStyle: true, RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired})
	}
	d, c := clients()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := d.DeleteTable(ctx, &dynamodb.DeleteTableInput{TableName: &name}); err != nil {
			t.Errorf("delete table %s: %v", name, err)
		}
		if _, err := c.DeleteBucket(ctx, &s3.DeleteBucketInput{Bucket: &name}); err != nil {
			t.Errorf("delete bucket %s: %v", name, err)
		}
	})
	for _, p := range []psych.Initer{dynamo.New(d, name, nil), s3blob.New(c, name, "", nil)} {
		if _, err := p.Init(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return func(tester) (psych.Store, psych.BlobStore) {
		d, c := clients()
		return dynamo.New(d, name, nil), s3blob.New(c, name, "", nil)
	}
}

// A play is a mission as it was played somewhere.
type play struct {
	*run
	open   opener
	models []psych.Model // of its providers, that answer nothing now
	bodies [][]byte      // of requests, as they were sent
	made   []string      // of requests made again: the digests of all their parts
}

// instructions are so long that each provider's cache takes them.
var instructions = strings.Repeat(" Say what you saw, in full sentences.", 400)

// pick is the provider of a mission with a strategy: over all strategies each
// mission meets each provider.
func pick(mission, strategy int) *provider { return &providers[(mission+strategy)%len(providers)] }

// playOn plays a mission with a Spec that is as it should be, or bad, and replays
// it. The tenant is its own.
func playOn(t beside, open opener, mission, strategy int, bad func(*psych.Spec)) *play {
	t.Helper()
	p := &play{open: open}
	m := &missions[mission]
	mind := m.mind(t)
	p.run = newRun(t, pick(mission, strategy), func(q *Request) *Answer {
		p.bodies = append(p.bodies, q.Body)
		return mind(q)
	})
	p.tenant = fmt.Sprintf("m%d-s%d", mission, strategy)
	p.store, p.blobs = open(t)
	p.use(p.o.Models)
	p.spec.Disclosure.Strategy = strategies[strategy]
	p.spec.Instructions += instructions
	if bad != nil {
		bad(&p.spec)
	}
	m.on(p.run)
	for _, s := range append([]*Stub{p.stub}, p.others...) {
		s.Close()
	}
	p.models = append(p.models, p.provider.model(p.stub.URL))
	if len(p.others) > 0 {
		p.models = append(p.models, p.next().model(p.others[0].URL))
	}
	s, b := open(t)
	calls, err := p.replay(s, b)
	if err != nil {
		t.Errorf("with strategy %s and %s: replay: %v", strategies[strategy], p.provider.name, err)
		return p
	}
	for _, c := range calls {
		p.made = append(p.made, digests(c))
	}
	return p
}

// replay makes each request again with what a Store holds, by a Runtime that
// knows nothing. The error is that of the first that is not what the log says.
func (p *play) replay(s psych.Store, b psych.BlobStore) (calls []*psych.ReplayedCall, err error) {
	ctx := context.Background()
	rt, err := psych.New(s, &psych.Options{Blobs: b})
	if err != nil {
		return nil, err
	}
	for c, failed := range rt.Replay(ctx, p.key, &psych.ReplayOptions{Models: p.models}) {
		if failed != nil {
			return nil, failed
		}
		calls = append(calls, c)
		switch {
		case c.Call != len(calls):
			return nil, fmt.Errorf("call %d is numbered %d", len(calls), c.Call)
		case c.Err != nil:
			return nil, fmt.Errorf("call %d: %w", c.Call, c.Err)
		case c.Difference != nil:
			return nil, fmt.Errorf("call %d: %v", c.Call, c.Difference)
		}
	}
	rep, err := rt.Report(ctx, p.key)
	if err != nil {
		return nil, err
	}
	sent := 0
	for _, c := range rep.ModelCalls {
		if c.Outcome != "interrupted" {
			sent++
		}
	}
	if len(calls) != len(rep.ModelCalls) || sent != len(p.bodies) {
		return nil, fmt.Errorf("%d requests are made again, of %d that the log has, %d of them sent: the provider took %d", len(calls), len(rep.ModelCalls), sent, len(p.bodies))
	}
	return calls, nil
}

// digests are those of all that a request is made of.
func digests(c *psych.ReplayedCall) string {
	q := c.Request
	h := sha256.New()
	for _, w := range slices.Concat([]psych.Wire{q.Tools, q.System[0], q.System[1]}, q.History, []psych.Wire{q.Tail}) {
		fmt.Fprintf(h, "%s %d %v %d\n%s\n", w.Chain, w.Chars, w.Marker, len(w.Bytes), w.Bytes)
	}
	return fmt.Sprintf("turn %d, try %d: tools %s, system %s %s, history of %d, cache key %s, breaks %v: %x", c.Turn, c.Try, q.Tools.Chain, q.System[0].Chain, q.System[1].Chain, len(q.History), q.CacheKey, c.Breaks, h.Sum(nil))
}

// differs says where a play parts from another.
func (p *play) differs(from *play) error {
	if len(p.bodies) != len(from.bodies) || len(p.made) != len(from.made) {
		return fmt.Errorf("%d requests, and %d made again: in memory %d and %d", len(p.bodies), len(p.made), len(from.bodies), len(from.made))
	}
	for i, b := range p.bodies {
		if was := from.bodies[i]; !bytes.Equal(b, was) {
			return fmt.Errorf("request %d: %s", i+1, parting(b, was))
		}
	}
	for i, d := range p.made {
		if d != from.made[i] {
			return fmt.Errorf("made again, request %d is\n%s\nand in memory\n%s", i+1, d, from.made[i])
		}
	}
	return nil
}

// parting shows where two texts part.
func parting(a, b []byte) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	from := max(0, i-60)
	return fmt.Sprintf("at byte %d: %q, and %q", i, a[from:min(len(a), i+60)], b[from:min(len(b), i+60)])
}

// inMemoryPlays are those of missions and strategies in memory, each played when
// it is first asked for.
var inMemoryPlays = func() (all [][]memoryPlay) {
	for range missions {
		all = append(all, make([]memoryPlay, len(strategies)))
	}
	return all
}()

type memoryPlay struct {
	once sync.Once
	play *play
}

// played is a mission in memory.
func played(t beside, mission, strategy int) *play {
	t.Helper()
	m := &inMemoryPlays[mission][strategy]
	m.once.Do(func() {
		if p := playOn(t, inMemory(), mission, strategy, nil); len(p.made) > 0 {
			m.play = p
		}
	})
	if m.play == nil {
		t.Fatalf("mission %s with strategy %s went wrong in memory", missions[mission].name, strategies[strategy])
	}
	return m.play
}

// some are the strategies that a mission is played with: all of them, or one
// that is another for each mission.
func some(mission int, all bool) (strategy []int) {
	for k := range strategies {
		if all || k == mission%len(strategies) {
			strategy = append(strategy, k)
		}
	}
	return strategy
}

// together runs f with strategies, all at once, since some missions wait for a
// while.
func together(t *testing.T, some []int, f func(t beside, strategy int)) {
	t.Helper()
	var wg sync.WaitGroup
	for _, k := range some {
		wg.Go(func() { f(beside{t}, k) })
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// everywhere plays missions at a place and compares them with what they are in
// memory, with all strategies or with some.
func everywhere(t *testing.T, open opener, first int, all bool) {
	var requests atomic.Int64
	for i := range missions {
		t.Run(missions[i].name, func(t *testing.T) {
			together(t, some(first+i, all), func(t beside, k int) {
				was, p := played(t, i, k), playOn(t, open, i, k, nil)
				if err := p.differs(was); err != nil {
					t.Errorf("with strategy %s: %v", strategies[k], err)
				}
				if err := p.blobs.DeleteRun(context.Background(), p.key); err != nil {
					t.Error(err)
				}
				requests.Add(int64(len(p.made)))
			})
		})
	}
	t.Logf("%d requests, equal", requests.Load())
}

func thorough() bool { return os.Getenv("PSYCH_TEST_ROUNDS") != "" }

// Replay of every mission, with every strategy and every provider, makes the
// requests that were sent, byte for byte, from what is stored alone.
func TestReplay(t *testing.T) {
	catch := &catcher{}
	server := httptest.NewServer(catch)
	defer server.Close()
	requests := 0
	for i := range missions {
		t.Run(missions[i].name, func(t *testing.T) {
			together(t, some(i, !slow), func(t beside, k int) { played(t, i, k) })
			for _, k := range some(i, !slow) {
				strategy, p := strategies[k], played(beside{t}, i, k)
				calls, err := p.replay(p.open(t))
				if err != nil {
					t.Fatalf("with strategy %s: %v", strategy, err)
				}
				models := []psych.Model{p.provider.model(server.URL)}
				if len(p.others) > 0 {
					models = append(models, p.next().model(server.URL))
				}
				sent := 0
				for _, c := range calls {
					requests++
					for _, m := range models {
						if _, err := m.Generate(t.Context(), c.Request, nil); !errors.As(err, new(*psych.ModelError)) {
							t.Fatal(err)
						}
						if sent < len(p.bodies) && bytes.Equal(catch.body, p.bodies[sent]) {
							sent++
							break
						}
					}
				}
				if sent != len(p.bodies) {
					t.Fatalf("with strategy %s: request %d is not made again: %s", strategy, sent+1, parting(catch.body, p.bodies[sent]))
				}
			}
		})
	}
	t.Logf("%d requests, equal", requests)
}

// A catcher is a server that notes the last body, and refuses it.
type catcher struct{ body []byte }

func (c *catcher) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.body, _ = io.ReadAll(r.Body) // what is cut is not what was sent
	http.Error(w, `{"error":{"message":"no"}}`, http.StatusBadRequest)
}

// The same on disk.
func TestReplayOnFiles(t *testing.T) {
	everywhere(t, onFiles(t.TempDir()), 0, !slow)
}

// The same on each emulator of DynamoDB, with S3 on the emulator that is both,
// or on the first: with one strategy for each mission, another on each, unless
// PSYCH_TEST_ROUNDS is set.
func TestReplayOnEmulators(t *testing.T) {
	databases, objects := endpoint.Dynamo(t), endpoint.S3(t)
	for i, db := range databases {
		o := objects[max(0, slices.IndexFunc(objects, func(e endpoint.Endpoint) bool { return e.Name == db.Name }))]
		t.Run(db.Name+" and "+o.Name, func(t *testing.T) {
			t.Parallel()
			everywhere(t, onAWS(t, db, o), 2*i, thorough())
		})
	}
}

// A damage is one byte of what a mission has stored, wherever it stands.
type damage struct {
	what     string
	mission  string
	in       string // the kind of a record; "doc", or "blob"
	old, new string // of one length
	says     string // what the error of the replay says
}

// do returns data as a damaged Store does.
func (d *damage) do(in string, data []byte) []byte {
	if in == d.in {
		data = bytes.ReplaceAll(data, []byte(d.old), []byte(d.new))
	}
	return data
}

type damagedStore struct {
	psych.Store
	*damage
}

func (s damagedStore) Unwrap() psych.Store { return s.Store }

func (s damagedStore) Read(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
	page, err := s.Store.Read(ctx, key, after, limit)
	page.Entries = slices.Clone(page.Entries)
	for i, e := range page.Entries {
		page.Entries[i].Data = s.do(string(e.Kind), e.Data)
	}
	return page, err
}

func (s damagedStore) GetDoc(ctx context.Context, tenant string, d psych.Digest) ([]byte, error) {
	doc, err := s.Store.GetDoc(ctx, tenant, d)
	return s.do("doc", doc), err
}

type damagedBlobs struct {
	psych.BlobStore
	*damage
}

func (s damagedBlobs) Unwrap() psych.BlobStore { return s.BlobStore }

func (s damagedBlobs) Open(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
	body, info, err := s.BlobStore.Open(ctx, key, offset, length)
	if err != nil {
		return nil, info, err
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	return io.NopCloser(bytes.NewReader(s.do("blob", data))), info, err
}

// A byte that is not as it was written is noticed, wherever a request has it
// from.
func TestReplayNotices(t *testing.T) {
	for _, d := range []damage{
		{"a message", "steps", "user_message", "go", "gu", `call 1: zone 3 (history), part 1: message "m1": its digest is not the recorded one`},
		{"an argument", "steps", "model_call_finished", `{"at":2}`, `{"at":3}`, "call 3: zone 3 (history)"},
		{"reasoning", "steps", "model_call_finished", "it", "is", "call 2: zone 3 (history)"},
		{"a result", "steps", "tool_call_finished", "item 3 is 9", "item 3 is 8", "call 4: zone 3 (history)"},
		{"a failure", "failing", "tool_call_finished", "error: it broke", "error; it broke", "call 2: zone 3 (history)"},
		{"an image", "attachments", "tool_call_finished", "pixelpixelpixel", "pixelpixelpixem", "call 2: zone 3 (history)"},
		{"memories", "memories", "model_call_started", "likes tea", "likes pea", "zone 2 (memories)"},
		{"a number of parts", "steps", "model_call_started", `"messages":4`, `"messages":5`, "call 2: zone 3 (history), part 4: the results of turn 1: 5 parts were sent, and 4 are made"},
		{"a number of characters", "steps", "model_call_started", `"chars":[`, `"chars":[1`, "zone 0 (tools)"},
		{"what is trimmed", "exchanges", "model_call_started", `"out_c1_1"`, `"out_c1_2"`, "was trimmed, which is no output of this Run"},
		{"a Version", "steps", "doc", "You look things up.", "You look things Up.", "call 1: zone 1 (static system blocks)"},
		{"an opening", "servers", "doc", "Finds a book by its title.", "Finds a book by its tible.", "call 1: zone 0 (tools)"},
		{"a blob", "letters", "blob", "letter, line 4321", "letter, line 4322", "blob differs from its record"},
	} {
		t.Run(d.what, func(t *testing.T) {
			i := slices.IndexFunc(missions, func(m mission) bool { return m.name == d.mission })
			p := played(beside{t}, i, 0)
			_, err := p.replay(damagedStore{p.store, &d}, damagedBlobs{p.blobs, &d})
			if err == nil || !strings.Contains(err.Error(), d.says) {
				t.Errorf("want %q, got %v", d.says, err)
			}
		})
	}
}
