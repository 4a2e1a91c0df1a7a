package psych_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
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

// A log in testdata/logs is for ever: what a release wrote is folded by every
// later one, and shown to the model by the rules that it was admitted with. So
// -update writes goldens anew, and a log only where its file is missing.
var update = flag.Bool("update", false, "write goldens, and the logs that are missing, to testdata")

// A frozenRun is all that is kept of a Run.
type frozenRun struct {
	info    psych.RunInfo
	version []byte // the document
	blobs   []frozenBlob
	entries []psych.Entry
}

type frozenBlob struct {
	Segment     string `json:"segment"`
	ContentType string `json:"content_type"`
	Gzip        []byte `json:"gzip"`
}

// A frozenLine is a line of a log's file: first its run, then what is stored
// beside the log, then the log.
type frozenLine struct {
	Run   *frozenHead  `json:"run,omitempty"`
	Blob  *frozenBlob  `json:"blob,omitempty"`
	Entry *frozenEntry `json:"entry,omitempty"`
}

type frozenHead struct {
	Key         psych.RunKey `json:"key"`
	Scope       psych.Scope  `json:"scope"`
	Incarnation string       `json:"incarnation"`
	CreatedAt   time.Time    `json:"created_at"`
	Status      string       `json:"status"`
	Epoch       int64        `json:"epoch"`
	Version     []byte       `json:"version"`
}

// A frozenEntry has one of Data and Gzip.
type frozenEntry struct {
	Seq  uint64     `json:"seq"`
	Kind psych.Kind `json:"kind"`
	Time time.Time  `json:"time"`
	Data []byte     `json:"data,omitempty"`
	Gzip []byte     `json:"gzip,omitempty"`
}

// freeze takes a Run that nobody drives out of a Store. Blobs are those that
// were put.
func freeze(t *testing.T, s psych.Store, key psych.RunKey, blobs *putBlobs) *frozenRun {
	t.Helper()
	ctx := context.Background()
	r := &frozenRun{}
	var err error
	if r.info, err = s.GetRun(ctx, key); err == nil {
		r.version, err = s.GetDoc(ctx, key.Tenant, r.info.Version)
	}
	if err != nil {
		t.Fatal(err)
	}
	for pos, more := (psych.Pos{}), true; more; {
		page, err := s.Read(ctx, key, pos, 100)
		if err != nil {
			t.Fatal(err)
		}
		r.entries = append(r.entries, page.Entries...)
		pos, more = page.Next, page.More
	}
	if blobs == nil {
		return r
	}
	for _, k := range blobs.keys {
		body, info, err := blobs.Open(ctx, k, 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(body)
		body.Close()
		if err != nil {
			t.Fatal(err)
		}
		r.blobs = append(r.blobs, frozenBlob{k.CallID, info.ContentType, zipped(t, data)})
	}
	return r
}

func zipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(data)
	if err = errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func unzipped(t *testing.T, data []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err == nil {
		data, err = io.ReadAll(z)
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// thaw puts the first n entries of a Run into a new Store, and makes it due.
func (r *frozenRun) thaw(t *testing.T, n int, o *memory.Options) (*memory.Store, *memory.BlobStore) {
	t.Helper()
	ctx := context.Background()
	s, blobs := memory.New(o), memory.NewBlobs(nil)
	info := r.info
	info.Owner, info.Until, info.Posted = "", time.Time{}, 0
	info.DueAt = info.CreatedAt
	_, _, err := s.CreateRun(ctx, info)
	err = errors.Join(err, s.PutDoc(ctx, info.Key.Tenant, info.Version, r.version))
	var pos psych.Pos
	for i := 0; i < n && err == nil; i++ {
		pos, err = s.Append(ctx, info.Key, pos, psych.Batch{Token: fmt.Sprint("entry ", i), Entries: r.entries[i : i+1]})
	}
	for _, b := range r.blobs {
		_, perr := blobs.Put(ctx, psych.BlobKey{Tenant: info.Key.Tenant, RunID: info.Key.RunID, CallID: b.Segment}, b.ContentType, bytes.NewReader(unzipped(t, b.Gzip)))
		err = errors.Join(err, perr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s, blobs
}

func (r *frozenRun) write(t *testing.T, path string) {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	i := &r.info
	put := func(l frozenLine) {
		if err := enc.Encode(l); err != nil {
			t.Fatal(err)
		}
	}
	put(frozenLine{Run: &frozenHead{i.Key, i.Scope, i.Incarnation, i.CreatedAt, i.Status, i.Epoch, r.version}})
	for i := range r.blobs {
		put(frozenLine{Blob: &r.blobs[i]})
	}
	for _, e := range r.entries {
		l := &frozenEntry{Seq: e.Seq, Kind: e.Kind, Time: e.Time, Data: e.Data}
		if len(e.Data) > 4<<10 {
			l.Data, l.Gzip = nil, zipped(t, e.Data)
		}
		put(frozenLine{Entry: l})
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readFrozen(t *testing.T, path string) *frozenRun {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := &frozenRun{}
	dec := json.NewDecoder(bufio.NewReader(f))
	for {
		var l frozenLine
		if err := dec.Decode(&l); err == io.EOF {
			return r
		} else if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		switch {
		case l.Run != nil:
			h := l.Run
			r.version = h.Version
			r.info = psych.RunInfo{Key: h.Key, Scope: h.Scope, Version: sha256.Sum256(h.Version), Incarnation: h.Incarnation, CreatedAt: h.CreatedAt, Status: h.Status, Epoch: h.Epoch}
		case l.Blob != nil:
			r.blobs = append(r.blobs, *l.Blob)
		case l.Entry != nil:
			e := psych.Entry{Seq: l.Entry.Seq, Kind: l.Entry.Kind, Time: l.Entry.Time, Data: l.Entry.Data}
			if l.Entry.Gzip != nil {
				e.Data = unzipped(t, l.Entry.Gzip)
			}
			r.entries = append(r.entries, e)
		}
	}
}

// putBlobs notes what was put.
type putBlobs struct {
	*memory.BlobStore
	mu   sync.Mutex
	keys []psych.BlobKey
}

func (s *putBlobs) Put(ctx context.Context, key psych.BlobKey, ct string, r io.Reader) (psych.BlobInfo, error) {
	info, err := s.BlobStore.Put(ctx, key, ct, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.keys = append(s.keys, key)
	}
	return info, err
}

// A recording makes a log of the corpus, within a bubble whose clock it is.
type recording struct {
	name   string
	script string
	limits psych.Limits
	drive  func(r *recorder)
}

type recorder struct {
	*harness
	key    psych.RunKey
	memory string
}

// say returns what is hard to show.
var say = psych.NewTool("say", "Says something.", func(ctx context.Context, c *psych.Call, in struct {
	What string `json:"what"`
	N    int    `json:"n,omitempty"`
}) (*psych.Result, error) {
	text := func(s string) (*psych.Result, error) { return psych.Text(s), nil }
	switch in.What {
	case "lines":
		return text(lines(120, func(i int) string { return fmt.Sprintf("line %d of many", i) }))
	case "line":
		return text(strings.Repeat("日本👩‍👩‍👧e\u0301 ", 250))
	case "crlf":
		return text(strings.Repeat("one\r\ntwo\rthree\u2028four\n", 100))
	case "nul":
		return text(strings.Repeat("a\x00b\n", 500))
	case "latin":
		return text(strings.Repeat("caf\xe9 au lait\n", 100))
	case "json":
		return &psych.Result{ContentType: "application/json", Body: strings.NewReader(`{"z":1,"a":[12345678901234567890,1.50,"<&>"],"rows":"` + strings.Repeat(`\"x\" `, 400) + `"}`)}, nil
	case "binary":
		return &psych.Result{ContentType: "image/png", Body: strings.NewReader("\x89PNG\xff\x00")}, nil
	case "blob":
		return text(lines(2000, func(i int) string { return fmt.Sprintf("%-79s", fmt.Sprintf("line %d is long", i)) }))
	case "empty":
		return nil, nil
	case "n":
		return text(lines(in.N/20+1, func(i int) string { return fmt.Sprintf("%-19s", fmt.Sprint("line ", i)) })[:in.N])
	case "wait":
		<-ctx.Done()
		return nil, ctx.Err()
	case "error":
		return nil, errors.New("it broke: " + strings.Repeat("ä", 600))
	case "attachments":
		for _, a := range []struct {
			name, contentType, text string
			max                     int64
		}{
			{"stdout", "text/plain", lines(2000, func(i int) string { return fmt.Sprintf("%-79s", fmt.Sprintf("step %d is done", i)) }), 0},
			{"stderr", "text/plain", "a warning\n", 0},
			{"file:report.csv", "text/csv", lines(200, func(i int) string { return fmt.Sprint(i, ",", i*i) }), 0},
			{"chart", "image/png", "\x89PNG\xff", 0},
			{"cut", "text/plain", strings.Repeat("ö", 500), 99},
		} {
			w, err := c.Attach(a.name, a.contentType, &psych.AttachOptions{MaxBytes: a.max})
			if err == nil {
				_, err = io.WriteString(w, a.text)
			}
			if err == nil {
				err = w.Close()
			}
			if err != nil {
				return nil, err
			}
		}
		return &psych.Result{ContentType: "application/json", Body: strings.NewReader(`{"exit_code":0}`)}, nil
	}
	return text(in.What)
}, nil)

var recordings = []recording{
	{
		name:   "elision",
		limits: psych.Limits{LargeResultTokens: 200, BatchResultTokens: 500, PreviewChars: 100},
		script: `
steps:
- text: All of it.
  calls:
  - {name: say, arguments: {what: lines}}
  - {name: say, arguments: {what: line}}
  - {name: say, arguments: {what: crlf}}
  - {name: say, arguments: {what: nul}}
  - {name: say, arguments: {what: latin}}
  - {name: say, arguments: {what: json}}
  - {name: say, arguments: {what: binary}}
  - {name: say, arguments: {what: empty}}
  - {name: say, arguments: {what: error}}
  - {name: say, arguments: {what: short}}
- calls: [{name: say, arguments: {what: blob}}, {name: say, arguments: {what: attachments}}]
- calls:
  - {name: read_tool_output, arguments: {handle: out_c1_1, offset: 60, limit: 3}}
  - {name: read_tool_output, arguments: {handle: out_c1_2, offset: 100, limit: 20}}
  - {name: read_tool_output, arguments: {handle: out_c2_1, grep: 'line 77\d ', limit: 4}}
  - {name: read_tool_output, arguments: {handle: out_c2_2_stdout, offset: 1999}}
  - {name: read_tool_output, arguments: {handle: out_c1_7}}
  - {name: load_skill, arguments: {name: tides}}
- text: That was all.
`,
	},
	{
		name:   "history",
		limits: psych.Limits{HistoryResultTokens: 100, HistoryMinSavingTokens: 300, PreviewChars: 100},
		script: `
steps:
- calls: [{name: say, arguments: {what: lines}}]
- text: one
- calls: [{name: say, arguments: {what: json}}, {name: read_tool_output, arguments: {handle: out_c1_1, offset: 10, limit: 60}}]
- text: two
- calls: [{name: say, arguments: {what: attachments}}, {name: say, arguments: {what: error}}]
- text: three
- provider: '{"signature":"  kept as it is "}'
  text: four
`,
		drive: func(r *recorder) {
			r.memory = "The user is new."
			r.drive(r.key)
			r.post(psych.ClientMessage{ID: "m2", Text: "second"})
			r.drive(r.key)
			r.memory = "The user is known."
			r.restart()
			r.post(psych.ClientMessage{ID: "m3", Text: "third", Attachments: []psych.MessageAttachment{
				{Name: "notes.txt", ContentType: "text/plain", Data: []byte("noted\n")},
				{Name: "dot.png", ContentType: "image/png", Data: []byte("\x89\xff\x00")},
			}})
			r.drive(r.key)
			r.post(psych.ClientMessage{ID: "m4", Text: "fourth"})
			r.post(psych.ClientMessage{ID: "m5", Text: "and fifth"})
			r.drive(r.key)
		},
	},
	{
		name:   "faults",
		limits: psych.Limits{Parallel: 1, Turns: 3},
		script: `
steps:
- {fail: 429, times: 2}
- calls: [{name: say, arguments: {what: first}}, {name: say, arguments: {what: second}}]
- calls:
  - {name: nothing, arguments: {}}
  - {name: say, arguments: {what: 1}}
  - {name: say, raw_arguments: '[not json'}
  - {name: read_tool_output, arguments: {handle: 7}}
- calls: [{name: say, arguments: {what: cut}, id: '1/2'}]
  stop: max_tokens
- calls: [{name: say, arguments: {what: again}, id: abc}, {name: read_tool_output, arguments: {handle: out_c9_9}}]
- {stall: true, times: 1}
- calls: [{name: say, arguments: {what: wait}}, {name: say, arguments: {what: wait}}]
- text: I can't.
  stop: refusal
- {fail: 500, times: 1}
- text: done
  usage: {input: 10}
`,
		drive: func(r *recorder) {
			// The claim, the message, three tries, and the start of the first tool.
			killer(r.harness, 8, false)
			if _, err := r.rt.Drive(context.Background(), r.key, nil); err == nil {
				r.t.Fatal("it was not killed")
			}
			r.tap.hook(nil, nil)
			r.restart()
			time.Sleep(2 * time.Minute)
			r.drive(r.key) // to the limit of turns
			r.post(psych.ClientMessage{ID: "m2", Text: "second"})
			if _, err := r.rt.Drive(context.Background(), r.key, nil); !errors.Is(err, psych.ErrAccessDenied) {
				r.t.Fatalf("a foreign handle: %v", err)
			}
			r.post(psych.ClientMessage{ID: "m3", Text: "third"})
			r.abortBehind(1) // while the model is called
			r.post(psych.ClientMessage{ID: "m4", Text: "fourth"})
			r.abortBehind(4) // a model call that is idle, one more, the starts of the tools
			for _, id := range []string{"m5", "m6"} {
				r.post(psych.ClientMessage{ID: id, Text: "next"})
				r.drive(r.key)
			}
		},
	},
	{
		name:   "context",
		limits: psych.Limits{ContextTokens: 2400, PreviewChars: 100},
		script: `
steps:
- calls: [{name: say, arguments: {what: lines}}]
- calls: [{name: say, arguments: {what: crlf}}]
- calls: [{name: say, arguments: {what: lines}}]
- calls: [{name: say, arguments: {what: line}}]
- text: one
- calls: [{name: say, arguments: {what: short}}]
- {fail: 400, stop: context}
- text: two
`,
		drive: func(r *recorder) {
			r.drive(r.key)
			r.post(psych.ClientMessage{ID: "m2", Text: "second"})
			r.drive(r.key)
		},
	},
	{
		name: "defaults", // each at a threshold, and just under it
		script: `
steps:
- calls: [{name: say, arguments: {what: n, n: 18124}}]
- text: one
- calls: [{name: say, arguments: {what: n, n: 23996}}]
- calls: [{name: say, arguments: {what: n, n: 23997}}]
- calls: [{name: say, arguments: {what: n, n: 16000}}, {name: say, arguments: {what: n, n: 16000}}, {name: say, arguments: {what: n, n: 15996}}]
- calls: [{name: say, arguments: {what: n, n: 16000}}, {name: say, arguments: {what: n, n: 16000}}, {name: say, arguments: {what: n, n: 16000}}]
- calls: [{name: say, arguments: {what: n, n: 4000}}, {name: say, arguments: {what: n, n: 4004}}]
- text: two
- calls: [{name: say, arguments: {what: n, n: 18128}}]
- text: three
- text: four
`,
		drive: func(r *recorder) {
			r.drive(r.key)
			for i := range 3 {
				r.post(psych.ClientMessage{ID: fmt.Sprint("m", i+2), Text: "next"})
				r.drive(r.key)
			}
		},
	},
	{
		name:   "pays", // to trim: not as the second exchange opens, and then from the last large result on
		limits: psych.Limits{HistoryResultTokens: 100, HistoryMinSavingTokens: 300, PreviewChars: 100},
		script: `
steps:
- calls: [{name: say, arguments: {what: n, n: 3000}}]
` + strings.Repeat("- calls: [{name: say, arguments: {what: n, n: 390}}]\n", 8) + `
- text: one
- calls: [{name: say, arguments: {what: n, n: 3000}}]
- text: two
- text: three
`,
		drive: func(r *recorder) {
			r.drive(r.key)
			r.post(psych.ClientMessage{ID: "m2", Text: "second"})
			r.drive(r.key)
			r.post(psych.ClientMessage{ID: "m3", Text: "third"})
			r.drive(r.key)
		},
	},
	{
		name: "offload",
		script: `
steps:
- text: ` + strings.Repeat("t", 150_000) + `
  calls: [{name: say, arguments: {what: ` + strings.Repeat("a", 140_000) + `}}]
- text: done
- text: done again
`,
		drive: func(r *recorder) {
			r.drive(r.key)
			r.post(psych.ClientMessage{ID: "m2", Text: strings.Repeat("long ", 30_000)})
			r.drive(r.key)
		},
	},
}

func (r *recorder) post(m psych.ClientMessage) {
	r.t.Helper()
	if err := r.rt.Send(context.Background(), r.key, m); err != nil {
		r.t.Fatal(err)
	}
	time.Sleep(time.Second) // notes are taken in the order of their times
}

// abortBehind drives the Run and aborts the exchange behind the n-th append.
func (r *recorder) abortBehind(n int) {
	r.t.Helper()
	r.tap.reset()
	r.tap.hook(nil, func(method string) error {
		if method != "Append" || r.tap.count("Append") != n {
			return nil
		}
		return r.rt.Abort(context.Background(), r.key, psych.AbortRequest{ID: fmt.Sprint("abort ", n), Reason: "enough"})
	})
	r.drive(r.key)
	r.tap.hook(nil, nil)
}

func (c *recording) record(t *testing.T) (log *frozenRun) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		blobs := &putBlobs{BlobStore: memory.NewBlobs(nil)}
		var made atomic.Int64
		r := &recorder{harness: newHarness(t, c.script, say)}
		r.spec.Limits = c.limits
		r.spec.Skills = []psych.Skill{{Name: "tides", Description: "When to sail.", Body: "High water is at noon."}}
		r.o.Blobs = blobs
		r.o.NewID = func() string { return fmt.Sprintf("%032x", made.Add(1)) }
		r.o.Memories = func(context.Context, psych.Scope) (string, error) { return r.memory, nil }
		r.restart()
		r.key = r.start("go")
		if c.drive == nil {
			r.drive(r.key)
		} else {
			c.drive(r)
		}
		log = freeze(t, r.tap.Store, r.key, blobs)
	})
	return log
}

// corpus is every log in testdata/logs, by name.
func corpus(t *testing.T) map[string]*frozenRun {
	t.Helper()
	dir := filepath.Join("testdata", "logs")
	for i := range recordings {
		path := filepath.Join(dir, recordings[i].name+".jsonl")
		if _, err := os.Stat(path); err == nil || !*update {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		recordings[i].record(t).write(t, path)
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(paths) < len(recordings) {
		t.Fatalf("%d logs, %v: want at least the %d that are recorded here; go test -update writes those that are missing", len(paths), err, len(recordings))
	}
	logs := map[string]*frozenRun{}
	for _, path := range paths {
		logs[strings.TrimSuffix(filepath.Base(path), ".jsonl")] = readFrozen(t, path)
	}
	return logs
}

// golden compares with a file in testdata/logs.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "logs", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is another: %s", path, difference(got, want))
	}
}

// What a release wrote folds, and every prefix of it, to the same report.
func TestStoredLogsFold(t *testing.T) {
	for name, r := range corpus(t) {
		t.Run(name, func(t *testing.T) {
			store, blobs := r.thaw(t, len(r.entries), nil)
			if err := prefixesFold(store, blobs, r.info.Key); err != nil {
				t.Error(err)
			}
			rt, err := psych.New(store, &psych.Options{Blobs: blobs})
			if err != nil {
				t.Fatal(err)
			}
			rep, err := rt.Report(t.Context(), r.info.Key)
			if err != nil {
				t.Fatal(err)
			}
			b, err := json.MarshalIndent(rep, "", "\t")
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".report.json", append(b, '\n'))
		})
	}
}

// oneAnswer is a Model that notes what it is asked, and answers the same.
type oneAnswer struct {
	mu   sync.Mutex
	sent []script.Sent
}

var scriptCodec = script.New(&script.Script{}, nil).Codec()

func (m *oneAnswer) Codec() psych.Codec { return scriptCodec }

func (m *oneAnswer) Generate(_ context.Context, req *psych.Request, _ func(psych.Delta)) (*psych.Response, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent = append(m.sent, script.Sent{Request: *req})
	return &psych.Response{Blocks: []psych.Block{{Text: "answer"}}, Stop: psych.StopEnd}, nil
}

// records decodes a log.
func (r *frozenRun) records(t *testing.T) []*psych.Record {
	t.Helper()
	store, _ := r.thaw(t, len(r.entries), nil)
	rt, err := psych.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	var rs []*psych.Record
	for rec, err := range rt.Records(t.Context(), r.info.Key, psych.Pos{}) {
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, rec)
	}
	return rs
}

// What a stored Run sent is sent again by its rules: each of its requests is
// made anew from the log before it, and the digest of its history is that of
// the record. A change of previews, of trimming or of a default wants another
// version of the projection, beside the one that old Runs keep.
func TestStoredLogsKeepTheirProjection(t *testing.T) {
	for name, r := range corpus(t) {
		t.Run(name, func(t *testing.T) {
			var codec, memory string
			var dynamic psych.Digest
			var last script.Sent
			calls := 0
			for i, rec := range r.records(t) {
				e, ok := rec.Event.(*psych.ModelCallStarted)
				if !ok {
					continue
				}
				if calls++; e.Codec != "" {
					codec = e.Codec
				}
				if codec != scriptCodec.ID() {
					t.Fatalf("the log was written with the encoding %s, and the script model's is %s now: give this test a Codec of that encoding", codec, scriptCodec.ID())
				}
				if e.Dynamic != nil {
					dynamic = *e.Dynamic
				}
				if e.Memory != nil {
					memory = string(e.Memory.Inline)
				}
				last = r.again(t, i, memory)
				history := last.Request.History
				if len(history) != e.Messages {
					t.Errorf("turn %d: %d messages, and %d when it was recorded", e.Turn, len(history), e.Messages)
				}
				d := dynamic
				chars := 0
				for _, w := range history {
					d = sha256.Sum256(append(d[:], w.Bytes...))
					chars += w.Chars
				}
				if d != e.History || chars != e.Chars[2] {
					t.Errorf("turn %d: the history has other bytes, %d characters, and had %d", e.Turn, chars, e.Chars[2])
				}
			}
			if calls < 3 {
				t.Errorf("only %d model calls", calls)
			}
			body := append(last.Body(), '\n')
			if len(body) > 16<<10 {
				body = fmt.Appendf(nil, "%d bytes with the SHA-256 %x\n", len(body), sha256.Sum256(body))
			}
			golden(t, name+".wire", body)
		})
	}
}

// again makes the request anew that follows the first n records.
func (r *frozenRun) again(t *testing.T, n int, memories string) (sent script.Sent) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store, blobs := r.thaw(t, n, nil)
		model := &oneAnswer{}
		rt, err := psych.New(store, &psych.Options{Blobs: blobs, Models: psych.OneModel(model), Memories: func(context.Context, psych.Scope) (string, error) { return memories, nil }})
		if err != nil {
			t.Fatal(err)
		}
		if out, err := rt.Drive(t.Context(), r.info.Key, nil); err != nil || out != psych.Closed || len(model.sent) != 1 {
			t.Fatalf("behind %d records: %v, %v, %d requests", n, out, err, len(model.sent))
		}
		sent = model.sent[0]
	})
	return sent
}

// A stored Run goes on: its next message is answered.
func TestStoredLogsGoOn(t *testing.T) {
	for name, r := range corpus(t) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, blobs := r.thaw(t, len(r.entries), nil)
				model := &oneAnswer{}
				rt, err := psych.New(store, &psych.Options{Blobs: blobs, Models: psych.OneModel(model)})
				if err != nil {
					t.Fatal(err)
				}
				if err := rt.Send(t.Context(), r.info.Key, psych.ClientMessage{ID: "one more", Text: "one more"}); err != nil {
					t.Fatal(err)
				}
				if out, err := rt.Drive(t.Context(), r.info.Key, nil); err != nil || out != psych.Closed {
					t.Fatalf("%v, %v", out, err)
				}
				rep, err := rt.Report(t.Context(), r.info.Key)
				if err != nil {
					t.Fatal(err)
				}
				if x := rep.Exchanges[len(rep.Exchanges)-1]; x.Message != "one more" || x.Closed != psych.StatusCompleted || x.Answer != "answer" {
					t.Errorf("%+v", x)
				}
			})
		})
	}
}

// A Run that was admitted with a projection of a newer release is left to a
// worker of that release: released, delayed, and neither failed nor touched.
func TestUnknownProjection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := corpus(t)["context"]
		i := slices.IndexFunc(r.entries, func(e psych.Entry) bool { return e.Kind == psych.KindRunAdmitted })
		e := &r.entries[i]
		newer := bytes.Replace(e.Data, []byte(`"projection":1`), []byte(`"projection":1000`), 1)
		if bytes.Equal(newer, e.Data) {
			t.Fatalf("%s names no projection", e.Data)
		}
		e.Data = newer
		r.info.Status = psych.StatusOpen
		n := i + 1 // a message is delivered, and no more
		for r.entries[n-1].Kind != psych.KindUserMessage {
			n++
		}
		store, blobs := r.thaw(t, n, nil)
		model := &oneAnswer{}
		rt, err := psych.New(store, &psych.Options{Blobs: blobs, Models: psych.OneModel(model)})
		if err != nil {
			t.Fatal(err)
		}
		refused := func(what string, err error) {
			t.Helper()
			var u *psych.UnsupportedError
			if !errors.As(err, &u) || u.Run != r.info.Key || u.Seq != e.Seq || !strings.Contains(u.What, "projection version 1000") {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err = rt.Report(t.Context(), r.info.Key)
		refused("report", err)
		_, err = rt.Output(t.Context(), r.info.Key, "out_c1_1", psych.OutputQuery{})
		refused("output", err)
		began := time.Now()
		out, err := rt.Drive(t.Context(), r.info.Key, nil)
		refused("drive", err)
		if out == psych.Closed || len(model.sent) > 0 {
			t.Errorf("%v after %d model calls", out, len(model.sent))
		}
		info, err := store.GetRun(t.Context(), r.info.Key)
		if err != nil {
			t.Fatal(err)
		}
		if info.Owner != "" || !info.DueAt.Equal(began.Add(psych.MaxLease)) || info.Status != psych.StatusOpen {
			t.Errorf("held by %q, due in %v, %s: want it free, due in %v, open", info.Owner, info.DueAt.Sub(began), info.Status, psych.MaxLease)
		}
		if head, err := store.Head(t.Context(), r.info.Key); err != nil || head.Seq != uint64(n) {
			t.Errorf("%d records, %v: want the %d that were there", head.Seq, err, n)
		}
	})
}
