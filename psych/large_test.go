package psych_test

import (
	"context"
	"io"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/psych-go/psych-go/adapters/fsblob"
	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
)

// countedBlobs counts what is read of a store.
type countedBlobs struct {
	*fsblob.Store
	opens, read atomic.Int64
}

func (s *countedBlobs) Open(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
	s.opens.Add(1)
	r, info, err := s.Store.Open(ctx, key, offset, length)
	if err != nil {
		return nil, info, err
	}
	return struct {
		io.Reader
		io.Closer
	}{readerFunc(func(p []byte) (int, error) {
		n, err := r.Read(p)
		s.read.Add(int64(n))
		return n, err
	}), r}, info, nil
}

func (s *countedBlobs) reset() {
	s.opens.Store(0)
	s.read.Store(0)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// repeated is n bytes of unit, over and over.
func repeated(unit string, n int64) io.Reader {
	block := []byte(strings.Repeat(unit, 32<<10/len(unit)+1))
	at := 0
	return io.LimitReader(readerFunc(func(p []byte) (int, error) {
		n := copy(p, block[at:])
		at = (at + n) % len(block)
		return n, nil
	}), n)
}

// A large is a Run with one large tool result, in a directory.
type large struct {
	tb    testing.TB
	rt    *psych.Runtime
	key   psych.RunKey
	blobs *countedBlobs
	o     psych.Options
	store psych.Store
}

// largeHandle is that of the result.
const largeHandle = "out_c1_1"

// newLarge starts the Run; driving it makes the result.
func newLarge(tb testing.TB, contentType string, body func() io.Reader) *large {
	tb.Helper()
	l := &large{tb: tb, blobs: &countedBlobs{Store: fsblob.New(tb.TempDir(), nil)}, store: memory.New(nil)}
	s, err := script.Parse([]byte("steps: [{calls: [{name: get}]}, {text: done}]"))
	if err != nil {
		tb.Fatal(err)
	}
	tool := psych.NewTool("get", "", func(context.Context, *psych.Call, struct{}) (*psych.Result, error) {
		return &psych.Result{ContentType: contentType, Body: body()}, nil
	}, &psych.ToolOptions{Timeout: time.Hour})
	l.o = psych.Options{Models: psych.OneModel(script.New(s, nil)), Tools: []*psych.Tool{tool}, Blobs: l.blobs, CacheBytes: -1}
	l.restart()
	ctx := context.Background()
	v, err := l.rt.Publish(ctx, "t", &psych.Spec{Name: "large", Tools: []string{"get"}})
	if err != nil {
		tb.Fatal(err)
	}
	if l.key, err = l.rt.Start(ctx, psych.Scope{Tenant: "t"}, v.Hash, psych.ClientMessage{ID: "1", Text: "go"}); err != nil {
		tb.Fatal(err)
	}
	return l
}

func (l *large) restart() {
	l.tb.Helper()
	var err error
	if l.rt, err = psych.New(l.store, &l.o); err != nil {
		l.tb.Fatal(err)
	}
}

func (l *large) drive() {
	l.tb.Helper()
	if out, err := l.rt.Drive(context.Background(), l.key, nil); out != psych.Closed || err != nil {
		l.tb.Fatal(out, err)
	}
}

func (l *large) read(q psych.OutputQuery) *psych.OutputWindow {
	l.tb.Helper()
	w, err := l.rt.Output(context.Background(), l.key, largeHandle, q)
	if err != nil {
		l.tb.Fatal(err)
	}
	return w
}

// search goes through all of the output, and returns the calls that it took.
func (l *large) search(q psych.OutputQuery) (calls int, found string) {
	l.tb.Helper()
	for {
		w := l.read(q)
		calls++
		found += w.Text
		if w.AtEnd {
			return calls, found
		}
		q.Offset, q.From = w.NextOffset, w.NextFrom
	}
}

// allocated are the bytes that f allocates in all: a bound of the heap that it
// needs.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A window anywhere in 64 MiB costs a read or two and little memory, whatever
// the bytes are like; previews and elision read nothing that was stored.
func TestLargeWindows(t *testing.T) {
	const size = 64 << 20
	row := `{"id":1234567,"name":"some name","tags":["a","b"],"value":1.50},`
	for name, c := range map[string]struct {
		contentType string
		body        func() io.Reader
	}{
		"text":     {"text/plain", func() io.Reader { return repeated("2026-11-29T22:23:00Z INFO a line of a log\n", size) }},
		"one line": {"text/plain", func() io.Reader { return repeated("all in one line, ", size) }},
		"JSON": {"application/json", func() io.Reader {
			n := int64(size / len(row) * len(row))
			return io.MultiReader(strings.NewReader("["), repeated(row, n), strings.NewReader("null]"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLarge(t, c.contentType, c.body)
			l.drive()
			if l.blobs.opens.Load() != 0 || l.blobs.read.Load() != 0 {
				t.Errorf("the turn that shows the preview read %d bytes in %d reads, of what was stored", l.blobs.read.Load(), l.blobs.opens.Load())
			}
			l.restart()
			rep, err := l.rt.Report(context.Background(), l.key)
			if err != nil {
				t.Fatal(err)
			}
			if p := rep.ToolCalls[0].Preview; !strings.Contains(p, largeHandle) || l.blobs.read.Load() >= 64<<10 {
				t.Errorf("preview %.80q, with %d bytes read", p, l.blobs.read.Load())
			}
			for r, err := range l.rt.Records(context.Background(), l.key, psych.Pos{}) {
				if err != nil {
					t.Fatal(err)
				}
				if e, ok := r.Event.(*psych.ToolCallFinished); ok && (e.Result.Ref == nil || len(e.Result.Ref.Index) >= 8<<10) {
					t.Errorf("the result is kept as %+v", e.Result)
				}
			}
			first := l.read(psych.OutputQuery{})
			for _, q := range []psych.OutputQuery{
				{Unit: psych.UnitChars, Offset: first.TotalChars / 2}, {Unit: psych.UnitLines, Offset: first.TotalLines / 2}, {Offset: 1000},
				{Unit: psych.UnitChars, Offset: first.TotalChars - 10}, {Unit: psych.UnitLines, Offset: first.TotalLines - 1},
			} {
				l.blobs.reset()
				var w *psych.OutputWindow
				heap := allocated(func() { w = l.read(q) })
				opens, read := l.blobs.opens.Load(), l.blobs.read.Load()
				if w.Text == "" || opens > 2 || read >= 1<<20 || heap >= 4<<20 {
					t.Errorf("%+v: %d characters, %d ranged reads, %d bytes read, %d bytes of heap", q, len(w.Text), opens, read, heap)
				}
			}
		})
	}
}

// largeBytes is 128 MiB, or 1 GiB where PSYCH_TEST_LARGE is 1.
func largeBytes() int64 {
	if os.Getenv("PSYCH_TEST_LARGE") == "1" {
		return 1 << 30
	}
	return 128 << 20
}

func logOf(size int64) func() io.Reader {
	return func() io.Reader {
		return io.MultiReader(repeated("2026-11-29T22:23:00Z INFO a line of a log, as they are\n", size), strings.NewReader("\nthe needle\n"))
	}
}

// Storing a stream and searching it take little memory, however long it is.
func TestLargeStream(t *testing.T) {
	size := largeBytes()
	l := newLarge(t, "text/plain", logOf(size))
	if heap := allocated(l.drive); heap >= 16<<20 {
		t.Errorf("storing %d bytes took %d bytes of heap", size, heap)
	}
	var calls int
	var found string
	heap := allocated(func() { calls, found = l.search(psych.OutputQuery{Grep: "needle", Context: 1}) })
	if !strings.HasSuffix(found, ": the needle\n") || strings.Count(found, "\n") != 2 || !strings.Contains(found, "- 2026") {
		t.Errorf("found %q", found)
	}
	if want := int((size + 256<<20) / (256 << 20)); calls > want+1 || heap >= 16<<20 {
		t.Errorf("searching %d bytes took %d calls and %d bytes of heap", size, calls, heap)
	}
}

// BenchmarkSearch reports the throughput of a search for a literal, and that
// of reading the same bytes through the same BlobStore.
func BenchmarkSearch(b *testing.B) {
	size := largeBytes()
	l := newLarge(b, "text/plain", logOf(size))
	l.drive()
	key := psych.BlobKey{Tenant: l.key.Tenant, RunID: l.key.RunID}
	for r, err := range l.rt.Records(context.Background(), l.key, psych.Pos{}) {
		if err != nil {
			b.Fatal(err)
		}
		if e, ok := r.Event.(*psych.ToolCallFinished); ok {
			key.CallID = e.Result.Ref.CallID
		}
	}
	buf := make([]byte, 256<<10)
	var searching, reading time.Duration
	n := 0
	for b.Loop() {
		began := time.Now()
		r, _, err := l.blobs.Store.Open(context.Background(), key, 0, -1)
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, err = r.Read(buf)
		}
		r.Close()
		reading += time.Since(began)
		began = time.Now()
		if _, found := l.search(psych.OutputQuery{Grep: "needle"}); !strings.Contains(found, "needle") {
			b.Fatal(found)
		}
		searching += time.Since(began)
		n++
	}
	mb := float64(size) * float64(n) / 1e6
	b.ReportMetric(mb/searching.Seconds(), "search-MB/s")
	b.ReportMetric(mb/reading.Seconds(), "read-MB/s")
	b.ReportMetric(reading.Seconds()/searching.Seconds(), "search/read")
	b.ReportMetric(0, "ns/op")
}
