package killtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/adapters/fsblob"
	"github.com/psych-go/psych-go/adapters/mcp"
	"github.com/psych-go/psych-go/adapters/s3blob"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/adapters/sqlite"
	"github.com/psych-go/psych-go/psych"
)

// workerVariable makes the test binary a worker: it holds a job as JSON.
const workerVariable = "PSYCH_KILLTEST_JOB"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == serverArgument {
		if err := serve(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if j := os.Getenv(workerVariable); j != "" {
		if err := work(j); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A job is what a worker is to do: a mission, from the step that is not done.
type job struct {
	Dir, Store, Blobs string
	Tenant, Mission   string
	Kill              kill
	Shift             time.Duration // of the clock: the leases of those before are over
	Post              int           // behind this write a client posts, in this process
	Client            int           // behind this write a client posts, in a process that dies as Died says
	Died              kill
	Only              string // to post this message and nothing else
}

// run runs a worker and reports whether it was killed. Any other end than
// a good one is an error.
func (j job) run() (killed bool, err error) {
	data, err := json.Marshal(j)
	if err != nil {
		return false, err
	}
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), workerVariable+"="+string(data))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	before := len(read[ack](j.Dir, progressFile))
	if err = cmd.Run(); err == nil {
		return false, nil
	}
	for _, a := range read[ack](j.Dir, progressFile)[before:] {
		if a.Killed {
			return true, nil
		}
	}
	return false, fmt.Errorf("worker: %w\n%s", err, out.Bytes())
}

// read reads a file of a trial; there is none yet where nothing was noted.
func read[T any](dir, file string) (all []T) {
	data, err := os.ReadFile(dir + "/" + file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		panic(err)
	}
	for line := range bytes.Lines(data) {
		var v T
		if err := json.Unmarshal(line, &v); err != nil {
			panic(fmt.Errorf("%s/%s: %w: %q", dir, file, err, line))
		}
		all = append(all, v)
	}
	return all
}

var credential = credentials.NewStaticCredentialsProvider("test", "test", "")

// openPorts opens a Store and a BlobStore; on AWS with a wire of a tap, if there
// is one.
func openPorts(ctx context.Context, storeURL, blobURL string, t *tap) (psych.Store, psych.BlobStore, error) {
	if endpoints, ok := strings.CutPrefix(storeURL, "aws:"); ok {
		part := strings.Fields(endpoints) // of DynamoDB, of S3, and the name of table and bucket
		var client dynamodb.HTTPClient = &http.Client{}
		if t != nil {
			t.requests = true
			client = &wire{t, &http.Client{}}
		}
		d := dynamodb.New(dynamodb.Options{Region: "us-east-1", BaseEndpoint: &part[0], Credentials: credential, HTTPClient: client})
		c := s3.New(s3.Options{
			Region: "us-east-1", BaseEndpoint: &part[1], Credentials: credential, HTTPClient: client, UsePathStyle: true,
			RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		})
		return dynamo.New(d, part[2], nil), s3blob.New(c, part[2], "", nil), nil
	}
	var b psych.Backends
	sqlite.Register(&b)
	fsblob.Register(&b)
	s, err := b.Stores.Open(ctx, storeURL)
	if err != nil {
		return nil, nil, err
	}
	bs, err := b.Blobs.Open(ctx, blobURL)
	return s, bs, err
}

// trialSecrets give the server its directory, which no Version may depend on.
type trialSecrets string

func (t trialSecrets) Secret(context.Context, psych.SecretRequest) (psych.Secret, error) {
	value, err := json.Marshal(map[string]any{"env": map[string]string{"TRIAL": string(t)}})
	return psych.Secret{Value: string(value), Identity: "trial"}, err
}

// A worker plays a mission.
type worker struct {
	job
	*tap
	m     *mission
	rt    *psych.Runtime
	begun bool // there is a Run that can be posted to
	keys  wakes
	first sync.Mutex
}

// wakes are the Runs that were woken.
type wakes struct {
	mu   sync.Mutex
	keys []psych.RunKey
}

func (w *wakes) Wake(_ context.Context, keys ...psych.RunKey) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys = append(w.keys, keys...)
	return nil
}

func (w *wakes) take() []psych.RunKey {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys := w.keys
	w.keys = nil
	return keys
}

func work(data string) error {
	ctx := context.Background()
	w := &worker{}
	if err := json.Unmarshal([]byte(data), &w.job); err != nil {
		return err
	}
	w.m = missionNamed(w.Mission)
	w.tap = &tap{dir: w.Dir, kill: w.Kill, renewed: make(chan struct{})}
	s, bs, err := openPorts(ctx, w.Store, w.Blobs, w.tap)
	if err != nil {
		return err
	}
	parsed, err := script.Parse([]byte(w.m.script))
	if err != nil {
		return err
	}
	o := psych.Options{
		Blobs: &blobs{bs, w.tap}, Tools: w.tools(), Waker: &w.keys, LeaseTTL: w.m.lease,
		Models: psych.OneModel(&model{script.New(parsed, nil), w.tap}),
		Now:    func() time.Time { return time.Now().Add(w.Shift) },
	}
	if w.m.server {
		o.Connector, o.Secrets, o.AllowCommands = mcp.New(&mcp.Options{AllowCommands: true}), trialSecrets(w.Dir), true
	}
	if w.rt, err = psych.New(&store{s, w.tap}, &o); err != nil {
		return err
	}
	defer w.rt.Close()
	if w.Only != "" {
		if err := w.send(ctx, w.Only); err != nil {
			return err
		}
		w.note(progressFile, ack{Writes: w.count()})
		return nil
	}

	finished, fired, posted := 0, map[string]bool{}, map[string]bool{}
	for _, a := range read[ack](w.Dir, progressFile) {
		finished = max(finished, a.Step)
		fired[a.Fired] = true
		posted[a.Posted] = true
	}
	w.begun = finished > 0
	// What posts beside a driver is another process in truth: what has begun is
	// ended, whatever became of the driver.
	fire := func(name string, post func() error) {
		w.first.Lock()
		if fired[name] {
			w.first.Unlock()
			return
		}
		fired[name] = true
		w.note(progressFile, ack{Fired: name})
		w.first.Unlock()
		if err := post(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		w.note(progressFile, ack{Posted: name})
	}
	posts := map[string]func() error{}
	for i, h := range w.m.beside {
		posts[fmt.Sprint("beside ", i)] = func() error { return h.post(ctx, w) }
	}
	posts["behind"] = func() error { return w.send(ctx, "beside") }
	posts["client"] = func() error {
		c := w.job
		c.Only, c.Kill, c.Client = "beside", w.Died, 0
		_, err := c.run()
		return err
	}
	for name := range fired {
		if p := posts[name]; p != nil && !posted[name] {
			if err := p(); err != nil {
				return err
			}
			w.note(progressFile, ack{Posted: name})
		}
	}
	w.appended = func(kinds []psych.Kind) {
		for i, h := range w.m.beside {
			if slices.Contains(kinds, h.kind) {
				fire(fmt.Sprint("beside ", i), posts[fmt.Sprint("beside ", i)])
			}
		}
	}
	w.behind = func(n int) {
		switch {
		case !w.begun:
		case w.Post > 0 && n >= w.Post:
			fire("behind", posts["behind"])
		case w.Client > 0 && n >= w.Client:
			fire("client", posts["client"])
		}
	}
	if w.Shift > 0 && finished > 0 {
		if page, err := s.Read(ctx, w.key(), psych.Pos{}, 1000); err == nil {
			// The append was seen by a client, whatever the driver saw of it.
			var kinds []psych.Kind
			for _, e := range page.Entries {
				kinds = append(kinds, e.Kind)
			}
			w.appended(kinds)
		}
		// One lease and one sweep later, whoever died left nothing to do.
		if err := swept(ctx, w); err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
		info, err := s.GetRun(ctx, w.key())
		if err != nil && !(w.m.deleted && errors.Is(err, psych.ErrNotFound)) || info.Owner != "" || !info.DueAt.IsZero() {
			return fmt.Errorf("after one sweep the header is %+v, %v: want nothing due", info, err)
		}
	}
	for i := finished; i < len(w.m.steps); i++ {
		if err := w.m.steps[i](ctx, w); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		w.note(progressFile, ack{Step: i + 1})
	}
	if w.Client > 0 { // who was told nothing says it again
		if err := w.send(ctx, "beside"); err != nil {
			return err
		}
	}
	if len(w.keys.take()) > 0 { // somebody posted behind the last look
		if err := drive(ctx, w); err != nil {
			return err
		}
	}
	w.note(progressFile, ack{Writes: w.count()})
	return nil
}

// key is that of the Run, which the first step noted.
func (w *worker) key() psych.RunKey { return runKey(w.Dir, w.Tenant) }

func runKey(dir, tenant string) psych.RunKey {
	for _, a := range read[ack](dir, progressFile) {
		if a.Run != "" {
			return psych.RunKey{Tenant: tenant, RunID: a.Run}
		}
	}
	panic("no Run was started")
}

func text(id string) psych.ClientMessage {
	m := psych.ClientMessage{ID: id, Text: "message " + id}
	if strings.HasPrefix(id, "large") {
		m.Text += strings.Repeat(" and more of it", 10_000)
		m.Attachments = []psych.MessageAttachment{{Name: "table.csv", ContentType: "text/csv", Data: []byte(strings.Repeat("1,2,3\n", 20_000))}}
	}
	return m
}

func (w *worker) send(ctx context.Context, id string) error {
	return w.rt.Send(ctx, w.key(), text(id))
}

// Steps of missions.

func start(id string) step {
	return func(ctx context.Context, w *worker) error {
		spec := psych.Spec{Name: w.m.name, Instructions: "You do as the script says.", Tools: w.m.tools, Limits: w.m.limits}
		if w.m.server {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			spec.Connections = []psych.Connection{{Name: "desk", Command: []string{self, serverArgument, "${TRIAL}"}, Credential: "trial", TrustAnnotations: true}}
		}
		v, err := w.rt.Publish(ctx, w.Tenant, &spec)
		if err != nil {
			return err
		}
		key, err := w.rt.Start(ctx, psych.Scope{Tenant: w.Tenant}, v.Hash, text(id))
		if err == nil {
			w.note(progressFile, ack{Run: key.RunID})
			w.begun = true
		}
		return err
	}
}

func send(id string) step {
	return func(ctx context.Context, w *worker) error { return w.send(ctx, id) }
}

// drive drives the Run until nothing is left to do.
func drive(ctx context.Context, w *worker) error {
	key := w.key()
	for round := 0; ; round++ {
		out, err := w.rt.Drive(ctx, key, &psych.DriveOptions{Observe: func(psych.Observation) { w.look() }})
		switch {
		case w.m.deleted && errors.Is(err, psych.ErrNotFound):
			return nil
		case err != nil && round == 50:
			return err
		case w.m.deleted && errors.Is(err, psych.ErrConflict): // its log is gone
		case err != nil && !errors.Is(err, psych.ErrLeaseLost) && !errors.Is(err, psych.ErrUnavailable):
			return err
		case err == nil && (out == psych.Closed || out == psych.Idle):
			return nil
		case err == nil && out == psych.Held:
			return fmt.Errorf("the Run is held, though every lease is over: %w", psych.ErrLeaseHeld)
		}
	}
}

// sweepOnce finds what the dead left, by the index and a clock that is a lease
// further.
func sweepOnce(ctx context.Context, w *worker) error {
	for cursor := ""; ; {
		var err error
		if _, cursor, err = w.rt.Sweep(ctx, cursor); err != nil || cursor == "" {
			return err
		}
	}
}

// swept drives what a sweep wakes, and a client meanwhile.
func swept(ctx context.Context, w *worker) error {
	if err := sweepOnce(ctx, w); err != nil {
		return err
	}
	for keys := w.keys.take(); len(keys) > 0; keys = w.keys.take() {
		if slices.Contains(keys, w.key()) {
			if err := drive(ctx, w); err != nil {
				return err
			}
		}
	}
	return nil
}

// later is a sweep when the longest lease is over since the deletion.
func later(ctx context.Context, w *worker) error {
	w.Shift += psych.MaxLease + time.Minute
	err := sweepOnce(ctx, w)
	w.Shift -= psych.MaxLease + time.Minute
	return err
}

func remove(ctx context.Context, w *worker) error { return w.rt.Delete(ctx, w.key()) }

func abort(ctx context.Context, w *worker) error {
	// So that the quick call beside the hanging one has ended, if it is to.
	ran := func(e effect) bool { return e.Tool == "charge" }
	for range 100 {
		if slices.ContainsFunc(read[effect](w.Dir, effectsFile), ran) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(500 * time.Millisecond)
	return w.rt.Abort(ctx, w.key(), psych.AbortRequest{ID: "abort", Reason: "enough"})
}
