package killtest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// A kill says at which write a process dies, counted from 1 over writes to the
// Store, to the BlobStore, and those of tools to the world outside.
type kill struct {
	N    int
	When string
}

// When a process dies.
const (
	before = "before" // the write
	lost   = "lost"   // the write has taken effect, and its answer never came
	after  = "after"  // the answer came: at the next thing that the process does
)

// A tap stands between a Runtime and what it writes to. It counts writes, notes
// in files of the trial what was acknowledged, and kills its process.
type tap struct {
	dir      string
	kill     kill
	requests bool // writes are counted on the wire

	mu       sync.Mutex
	n        int
	armed    bool
	behind   func(n int)              // runs when write n has taken effect
	appended func(kinds []psych.Kind) // runs when an append has taken effect
	renewed  chan struct{}            // closed at the first renewal
}

// Files of a trial. A line is JSON.
const (
	acksFile     = "acks"     // what the process was told that it is durable
	effectsFile  = "effects"  // what tools did
	requestsFile = "requests" // what the model was shown
	progressFile = "progress" // what steps and posts of the mission are done
)

// note adds a line to a file of the trial, in one write, so that no kill cuts
// it.
func (t *tap) note(file string, v any) {
	line, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	f, err := os.OpenFile(filepath.Join(t.dir, file), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	if _, err := f.Write(append(line, '\n')); err != nil {
		panic(err)
	}
}

// An ack is a line of acksFile or progressFile.
type ack struct {
	Seq    uint64        `json:",omitempty"` // of a record that is durable
	Sum    *psych.Digest `json:",omitempty"` // of its bytes
	Note   string        `json:",omitempty"` // id of a note that was posted
	Blob   string        `json:",omitempty"` // call segment of a blob that was put
	Run    string        `json:",omitempty"` // its id
	Killed bool          `json:",omitempty"`
	Step   int           `json:",omitempty"` // of the mission, from 1, that is done
	Fired  string        `json:",omitempty"` // a post beside the driver that is due
	Posted string        `json:",omitempty"` // and was made
	Writes int           `json:",omitempty"` // of a process that ended by itself
}

func (t *tap) die() {
	t.note(progressFile, ack{Killed: true})
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {}
}

// look is what a process does first, whatever it does.
func (t *tap) look() {
	t.mu.Lock()
	armed := t.armed
	t.mu.Unlock()
	if armed {
		t.die()
	}
}

// done makes a write to a port, and notes what its answer says.
func (t *tap) done(f func() error, acks ...ack) error {
	return t.write(!t.requests, f, acks...)
}

// write makes a write, notes what its answer says, and dies where that is the
// plan, if it counts.
func (t *tap) write(counts bool, f func() error, acks ...ack) error {
	t.look()
	n, here := 0, false
	if counts {
		t.mu.Lock()
		t.n++
		n, here = t.n, t.kill.N == t.n
		t.mu.Unlock()
	}
	if here && t.kill.When == before {
		t.die()
	}
	err := f()
	if err == nil && counts && t.behind != nil {
		t.behind(n)
	}
	if here && t.kill.When == lost {
		t.die()
	}
	if err == nil {
		for _, a := range acks {
			t.note(acksFile, a)
		}
	}
	if here && t.kill.When == after {
		t.mu.Lock()
		t.armed = true
		t.mu.Unlock()
	}
	return err
}

func (t *tap) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// A wire is an HTTP client whose requests that write are the writes of its tap:
// a method of an adapter may make several.
type wire struct {
	*tap
	client *http.Client
}

func (w *wire) Do(req *http.Request) (resp *http.Response, err error) {
	_, op, dynamo := strings.Cut(req.Header.Get("X-Amz-Target"), ".")
	writes := slices.Contains([]string{"PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem"}, op)
	if !dynamo {
		writes = req.Method != http.MethodGet && req.Method != http.MethodHead
	}
	if !writes {
		w.look()
		return w.client.Do(req)
	}
	err = w.write(true, func() error {
		resp, err = w.client.Do(req)
		return err
	})
	return resp, err
}

// A store is a Store behind a tap.
type store struct {
	psych.Store
	*tap
}

func (s *store) Unwrap() psych.Store { return s.Store }

func (s *store) Append(ctx context.Context, key psych.RunKey, at psych.Pos, b psych.Batch) (pos psych.Pos, err error) {
	var acks []ack
	var kinds []psych.Kind
	for _, e := range b.Entries {
		sum := psych.Digest(sha256.Sum256(e.Data))
		acks = append(acks, ack{Seq: e.Seq, Sum: &sum})
		kinds = append(kinds, e.Kind)
	}
	err = s.done(func() error {
		pos, err = s.Store.Append(ctx, key, at, b)
		if err == nil && s.appended != nil {
			s.appended(kinds)
		}
		return err
	}, acks...)
	return pos, err
}

func (s *store) Read(ctx context.Context, key psych.RunKey, at psych.Pos, limit int) (psych.Page, error) {
	s.look()
	return s.Store.Read(ctx, key, at, limit)
}

func (s *store) Pending(ctx context.Context, key psych.RunKey) ([]psych.Note, error) {
	s.look()
	return s.Store.Pending(ctx, key)
}

func (s *store) GetRun(ctx context.Context, key psych.RunKey) (psych.RunInfo, error) {
	s.look()
	return s.Store.GetRun(ctx, key)
}

func (s *store) CreateRun(ctx context.Context, info psych.RunInfo) (got psych.RunInfo, created bool, err error) {
	err = s.done(func() error { got, created, err = s.Store.CreateRun(ctx, info); return err })
	return got, created, err
}

func (s *store) Post(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
	return s.done(func() error { return s.Store.Post(ctx, key, n, due) }, ack{Note: n.ID})
}

func (s *store) Settle(ctx context.Context, key psych.RunKey, notes []psych.Note) error {
	return s.done(func() error { return s.Store.Settle(ctx, key, notes) })
}

func (s *store) Claim(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (l psych.Lease, err error) {
	err = s.done(func() error { l, err = s.Store.Claim(ctx, key, owner, token, now, ttl); return err })
	return l, err
}

func (s *store) Renew(ctx context.Context, l psych.Lease, now time.Time, ttl time.Duration) (got psych.Lease, err error) {
	err = s.done(func() error { got, err = s.Store.Renew(ctx, l, now, ttl); return err })
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.renewed != nil {
		close(s.renewed)
		s.renewed = nil
	}
	return got, err
}

func (s *store) Release(ctx context.Context, l psych.Lease, due time.Time, status string) error {
	return s.done(func() error { return s.Store.Release(ctx, l, due, status) })
}

func (s *store) Defer(ctx context.Context, info psych.RunInfo, now, to time.Time) error {
	return s.done(func() error { return s.Store.Defer(ctx, info, now, to) })
}

func (s *store) DeleteRun(ctx context.Context, key psych.RunKey, now time.Time) error {
	return s.done(func() error { return s.Store.DeleteRun(ctx, key, now) })
}

func (s *store) PurgeRun(ctx context.Context, key psych.RunKey, now time.Time) error {
	return s.done(func() error { return s.Store.PurgeRun(ctx, key, now) })
}

func (s *store) PutDoc(ctx context.Context, tenant string, d psych.Digest, data []byte) error {
	return s.done(func() error { return s.Store.PutDoc(ctx, tenant, d, data) })
}

func (s *store) SwapRef(ctx context.Context, tenant, name string, old, next psych.Ref) error {
	return s.done(func() error { return s.Store.SwapRef(ctx, tenant, name, old, next) })
}

// A blobs is a BlobStore behind a tap.
type blobs struct {
	psych.BlobStore
	*tap
}

func (b *blobs) Unwrap() psych.BlobStore { return b.BlobStore }

func (b *blobs) Put(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader) (info psych.BlobInfo, err error) {
	err = b.done(func() error { info, err = b.BlobStore.Put(ctx, key, contentType, r); return err }, ack{Blob: key.CallID})
	return info, err
}

func (b *blobs) Open(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
	b.look()
	return b.BlobStore.Open(ctx, key, offset, length)
}

func (b *blobs) Delete(ctx context.Context, key psych.BlobKey) error {
	return b.done(func() error { return b.BlobStore.Delete(ctx, key) })
}

func (b *blobs) DeleteRun(ctx context.Context, run psych.RunKey) error {
	return b.done(func() error { return b.BlobStore.DeleteRun(ctx, run) })
}

// A model is a Model that notes what it is shown.
type model struct {
	psych.Model
	*tap
}

// A shown is a line of requestsFile.
type shown struct {
	Turn    int // answers in the history
	Tools   string
	System  string
	History []string
	Tail    string
}

func (m *model) Unwrap() psych.Model { return m.Model }

func (m *model) Generate(ctx context.Context, req *psych.Request, on func(psych.Delta)) (*psych.Response, error) {
	m.look()
	m.note(requestsFile, showing(req))
	return m.Model.Generate(ctx, req, on)
}

// showing is what a model is shown with a request.
func showing(req *psych.Request) shown {
	s := shown{Tools: string(req.Tools.Bytes), System: string(req.System[0].Bytes) + "\n" + string(req.System[1].Bytes), Tail: string(req.Tail.Bytes)}
	for _, w := range req.History {
		s.History = append(s.History, string(w.Bytes))
		if isAnswer(w.Bytes) {
			s.Turn++
		}
	}
	return s
}
