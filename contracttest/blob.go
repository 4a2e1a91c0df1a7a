package contracttest

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/psych-go/psych-go/psych"
)

// Streaming is the [Need] that payloads leave this process, so that a Put holds
// a bounded part of its reader.
const Streaming Need = "streaming"

// TestBlobStore runs [BlobStoreRules] as subtests. open is called once a rule
// and cleans up with t.Cleanup. o may be nil.
func TestBlobStore(t *testing.T, open func(t *testing.T) *Fixture[psych.BlobStore], o *Options) {
	t.Helper()
	test(t, BlobStoreRules(), open, o)
}

// BlobStoreRules returns the rules of [psych.BlobStore]. They remove what they
// stored.
func BlobStoreRules() []Rule[psych.BlobStore] {
	return []Rule[psych.BlobStore]{
		blobRule("PutStores", "Put stores r until EOF; Open and Stat find the bytes, their number and their content type.", putStores),
		blobRule("PutInfo", "Put returns the size and content type of what it stored.", putInfo),
		blobRule("PutSmallReads", "Put reads until EOF, however few bytes a Read hands out, none included.", putSmallReads),
		blobRule("PutEOFWithData", "Put keeps the bytes that a Read hands out together with io.EOF.", putEOFWithData),
		blobRule("PutLarge", "Put stores several megabytes whole.", putLarge),
		blobNeeds(Streaming, blobRule("PutStreams", "Memory does not grow with r.", putStreams)),
		blobRule("PutEmpty", "An empty blob is a blob.", putEmpty),
		blobRule("PutContentType", "The content type travels with the bytes, whatever it holds.", putContentType),
		blobRule("PutReplaces", "Put replaces what was there, whole: bytes, size and content type.", putReplaces),
		blobRule("PutUnfinished", "While r is read, a reader sees the old bytes or ErrNotFound, never a part.", putUnfinished),
		blobRule("PutConcurrentReaders", "A concurrent reader sees the old bytes, the new bytes or ErrNotFound, never a mix or a part.", putConcurrentReaders),
		blobRule("PutReaderFails", "If r fails, its error is returned, wrapped, and nothing of it is visible.", putReaderFails),
		blobRule("PutReaderFailsKeepsOld", "If r fails, what was there stays.", putReaderFailsKeepsOld),
		blobRule("PutCancelled", "If ctx ends before r does, or with it, Put fails with its error and nothing is visible.", putCancelled),
		blobRule("PutCancelledKeepsOld", "If ctx ends, what was there stays.", putCancelledKeepsOld),
		blobNeeds(Reopening, blobRule("PutReopen", "When Put returns, the bytes are durable.", putReopen)),
		blobRule("OpenRange", "Open reads length bytes from offset, fewer where the blob ends.", openRange),
		blobRule("OpenToEnd", "A length below 0 reads to the end.", openToEnd),
		blobRule("OpenPastEnd", "A range past the end is empty, not an error.", openPastEnd),
		blobRule("OpenHuge", "A range is clamped like a slice's, however large offset and length are.", openHuge),
		blobRule("OpenNegativeOffset", "A negative offset is ErrInvalid.", openNegativeOffset),
		blobRule("OpenInfoWhole", "Open returns the info of the whole blob, whatever the range.", openInfoWhole),
		blobRule("OpenMissing", "Open of a blob that never was, or was deleted, is ErrNotFound, for every range.", openMissing),
		blobRule("OpenTwice", "Readers of one blob do not disturb one another.", openTwice),
		blobRule("OpenWhileReplaced", "A reader that is open while the blob is replaced goes on with the bytes it began with, or fails; it never mixes.", openWhileReplaced),
		blobRule("OpenWhileDeleted", "A reader that is open while the blob is deleted goes on with the bytes it began with, or fails; it never ends early.", openWhileDeleted),
		blobRule("StatMissing", "Stat of a blob that never was, or was deleted, is ErrNotFound.", statMissing),
		blobRule("DeleteRemoves", "Delete removes a blob, and no other.", deleteRemoves),
		blobRule("DeleteAbsent", "Deleting a blob that is not there is no error.", deleteAbsent),
		blobRule("DeleteRunRemoves", "DeleteRun removes all blobs of a Run, which may get new ones.", deleteRunRemoves),
		blobRule("DeleteRunMany", "DeleteRun removes all blobs of a Run, however many.", deleteRunMany),
		blobRule("DeleteRunIsolated", "DeleteRun removes nothing of another Run or tenant.", deleteRunIsolated),
		blobRule("DeleteRunAbsent", "DeleteRun of a Run without blobs is no error.", deleteRunAbsent),
		blobRule("ForeignTenant", "A blob of another tenant is ErrNotFound, like one that never was, and can't be deleted.", foreignTenant),
		blobRule("ForeignRun", "A blob of another Run is ErrNotFound, like one that never was, and can't be deleted.", foreignRun),
		blobRule("TenantsApart", "No two tenants meet, whatever their ids hold.", tenantsApart),
		blobRule("CallsApart", "No two call segments meet, and every legal one serves.", callsApart),
		blobRule("PutIllegalKey", "Put with an illegal key is ErrInvalid.", putIllegalKey),
		blobRule("OpenIllegalKey", "Open with an illegal key is ErrInvalid.", openIllegalKey),
		blobRule("StatIllegalKey", "Stat with an illegal key is ErrInvalid.", statIllegalKey),
		blobRule("DeleteIllegalKey", "Delete with an illegal key is ErrInvalid.", deleteIllegalKey),
		blobRule("DeleteRunIllegalKey", "DeleteRun with an illegal key is ErrInvalid.", deleteRunIllegalKey),
		blobRule("PutContextEnded", "Put with a context that has ended fails with its error and stores nothing.", putContextEnded),
		blobRule("OpenContextEnded", "Open with a context that has ended fails with its error.", openContextEnded),
		blobRule("StatContextEnded", "Stat with a context that has ended fails with its error.", statContextEnded),
		blobRule("DeleteContextEnded", "Delete with a context that has ended fails with its error and removes nothing.", deleteContextEnded),
		blobRule("DeleteRunContextEnded", "DeleteRun with a context that has ended fails with its error and removes nothing.", deleteRunContextEnded),
		blobRule("ConcurrentPuts", "Puts of many blobs may run concurrently.", concurrentPuts),
		blobRule("ConcurrentMixed", "All methods may be called concurrently on one Run: only a read of what is deleted fails, with ErrNotFound.", concurrentMixed),
	}
}

// A blobCheck is what a rule works with: the port, and the runs it stored into.
type blobCheck struct {
	psych.BlobStore
	f *Fixture[psych.BlobStore]

	mu   sync.Mutex
	used []psych.RunKey
}

func blobRule(name, promise string, check func(ctx context.Context, b *blobCheck) error) Rule[psych.BlobStore] {
	return Rule[psych.BlobStore]{Name: name, Promise: promise, Check: func(ctx context.Context, f *Fixture[psych.BlobStore]) error {
		b := &blobCheck{BlobStore: f.Port, f: f}
		defer func() {
			for _, run := range b.used {
				// What is left disturbs no other rule: its keys are used once.
				_ = f.Port.DeleteRun(context.WithoutCancel(ctx), run)
			}
		}()
		return check(ctx, b)
	}}
}

func blobNeeds(n Need, r Rule[psych.BlobStore]) Rule[psych.BlobStore] {
	r.Needs = n
	return r
}

// run returns a new run of a new tenant.
func (b *blobCheck) run() psych.RunKey { return b.runOf(b.f.Tenant()) }

// runOf returns a new run of tenant, which need not be new: the run is.
func (b *blobCheck) runOf(tenant string) psych.RunKey {
	return b.use(psych.RunKey{Tenant: tenant, RunID: newRunID()})
}

func (b *blobCheck) use(run psych.RunKey) psych.RunKey {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = append(b.used, run)
	return run
}

func (b *blobCheck) key() psych.BlobKey { return callOf(b.run(), "c1_1.result.1") }

func callOf(run psych.RunKey, call string) psych.BlobKey {
	return psych.BlobKey{Tenant: run.Tenant, RunID: run.RunID, CallID: call}
}

func newRunID() string {
	var id [16]byte
	crand.Read(id[:])
	return hex.EncodeToString(id[:])
}

// randomBytes returns n bytes that differ at every place from those of another
// seed, as good as surely.
func randomBytes(n int, seed byte) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// put stores data and checks what Put returns.
func (b *blobCheck) put(ctx context.Context, key psych.BlobKey, contentType string, data []byte) error {
	return b.putFrom(ctx, key, contentType, bytes.NewReader(data), int64(len(data)))
}

func (b *blobCheck) putFrom(ctx context.Context, key psych.BlobKey, contentType string, r io.Reader, size int64) error {
	info, err := b.Put(ctx, key, contentType, onlyReader{r})
	if err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	if want := (psych.BlobInfo{Size: size, ContentType: contentType}); info != want {
		return fmt.Errorf("put %s returned %+v, want %+v", key, info, want)
	}
	return nil
}

// An onlyReader hides the other methods of a reader: Put is promised no more.
type onlyReader struct{ io.Reader }

// read opens a range and reads and closes it.
func read(ctx context.Context, s psych.BlobStore, key psych.BlobKey, offset, length int64) ([]byte, psych.BlobInfo, error) {
	r, info, err := s.Open(ctx, key, offset, length)
	if err != nil {
		return nil, info, fmt.Errorf("open %s from %d, %d bytes: %w", key, offset, length, err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		r.Close()
		return data, info, fmt.Errorf("read %s from %d, %d bytes: %w", key, offset, length, err)
	}
	if err := r.Close(); err != nil {
		return data, info, fmt.Errorf("close the reader of %s: %w", key, err)
	}
	return data, info, nil
}

// holds checks that Open and Stat agree on a blob.
func holds(ctx context.Context, s psych.BlobStore, key psych.BlobKey, contentType string, want []byte) error {
	wantInfo := psych.BlobInfo{Size: int64(len(want)), ContentType: contentType}
	got, info, err := read(ctx, s, key, 0, -1)
	if err != nil {
		return err
	}
	if err := sameBytes(got, want); err != nil {
		return fmt.Errorf("open %s: %w", key, err)
	}
	if info != wantInfo {
		return fmt.Errorf("open %s returned %+v, want %+v", key, info, wantInfo)
	}
	info, err = s.Stat(ctx, key)
	if err != nil {
		return fmt.Errorf("stat %s: %w", key, err)
	}
	if info != wantInfo {
		return fmt.Errorf("stat %s returned %+v, want %+v", key, info, wantInfo)
	}
	return nil
}

// missing checks that Open and Stat find nothing.
func missing(ctx context.Context, s psych.BlobStore, key psych.BlobKey) error {
	_, _, err := read(ctx, s, key, 0, -1)
	if err := fails("Open "+key.String(), err, psych.ErrNotFound); err != nil {
		return err
	}
	_, err = s.Stat(ctx, key)
	return fails("Stat "+key.String(), err, psych.ErrNotFound)
}

func sameBytes(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	at := 0
	for at < len(got) && at < len(want) && got[at] == want[at] {
		at++
	}
	return fmt.Errorf("got %d bytes, want %d, and they differ from byte %d on", len(got), len(want), at)
}

func fails(what string, err, want error) error {
	if errors.Is(err, want) {
		return nil
	}
	if err == nil {
		return fmt.Errorf("%s succeeded, want an error matching %q", what, want)
	}
	return fmt.Errorf("%s failed with %q, want an error matching %q", what, err, want)
}

func putStores(ctx context.Context, b *blobCheck) error {
	key, data := b.key(), randomBytes(5000, 1)
	if err := missing(ctx, b, key); err != nil {
		return fmt.Errorf("before Put: %w", err)
	}
	if err := b.put(ctx, key, "text/plain", data); err != nil {
		return err
	}
	other, err := b.f.second(ctx)
	if err != nil {
		return err
	}
	if err := holds(ctx, other, key, "text/plain", data); err != nil {
		return err
	}
	return holds(ctx, b, key, "text/plain", data)
}

func putInfo(ctx context.Context, b *blobCheck) error {
	key := b.key()
	for _, n := range []int{0, 1, 70_000} {
		if err := b.put(ctx, key, fmt.Sprintf("x/%d", n), randomBytes(n, 2)); err != nil {
			return err
		}
	}
	return nil
}

// A slowReader hands out one byte at a time, and at times none.
type slowReader struct {
	data []byte
	at   int
	odd  bool
}

func (r *slowReader) Read(p []byte) (int, error) {
	if r.at == len(r.data) {
		return 0, io.EOF
	}
	if r.odd = !r.odd; len(p) == 0 || r.odd && r.at%7 == 0 {
		return 0, nil
	}
	p[0] = r.data[r.at]
	r.at++
	return 1, nil
}

func putSmallReads(ctx context.Context, b *blobCheck) error {
	key, data := b.key(), randomBytes(200_001, 3)
	if err := b.putFrom(ctx, key, "x/y", &slowReader{data: data}, int64(len(data))); err != nil {
		return err
	}
	return holds(ctx, b, key, "x/y", data)
}

// An eofReader hands out its last bytes together with io.EOF.
type eofReader struct{ data []byte }

func (r *eofReader) Read(p []byte) (int, error) {
	n := copy(p, r.data)
	r.data = r.data[n:]
	if len(r.data) == 0 {
		return n, io.EOF
	}
	return n, nil
}

func putEOFWithData(ctx context.Context, b *blobCheck) error {
	key := b.key()
	for _, n := range []int{1, 100, 64 << 10, 1<<20 + 1} {
		data := randomBytes(n, 4)
		if err := b.putFrom(ctx, key, "x/y", &eofReader{data}, int64(n)); err != nil {
			return err
		}
		if err := holds(ctx, b, key, "x/y", data); err != nil {
			return err
		}
	}
	return nil
}

func putLarge(ctx context.Context, b *blobCheck) error {
	key, data := b.key(), randomBytes(12<<20+1, 5)
	if err := b.put(ctx, key, "x/y", data); err != nil {
		return err
	}
	return holds(ctx, b, key, "x/y", data)
}

// A watchedReader measures the live heap at two places of what it hands out.
type watchedReader struct {
	io.Reader
	read, first, last int64
	heap              []uint64
}

func (r *watchedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	before := r.read
	r.read += int64(n)
	for _, at := range []int64{r.first, r.last} {
		if before < at && r.read >= at {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			r.heap = append(r.heap, m.HeapAlloc)
		}
	}
	return n, err
}

func putStreams(ctx context.Context, b *blobCheck) error {
	const (
		size    = 48 << 20
		first   = 8 << 20
		last    = 40 << 20
		allowed = 16 << 20 // half of what is read in between, and more than an uploader's parts
	)
	key := b.key()
	source := &watchedReader{Reader: io.LimitReader(rand.NewChaCha8([32]byte{6}), size), first: first, last: last}
	if err := b.putFrom(ctx, key, "x/y", source, size); err != nil {
		return err
	}
	if grown := int64(source.heap[1]) - int64(source.heap[0]); grown > allowed {
		return fmt.Errorf("the heap grew by %d bytes while Put read %d, want at most %d", grown, last-first, allowed)
	}
	got, _, err := read(ctx, b, key, size-1000, 2000)
	if err != nil {
		return err
	}
	if len(got) != 1000 {
		return fmt.Errorf("a window of the last 1000 bytes has %d", len(got))
	}
	return nil
}

func putEmpty(ctx context.Context, b *blobCheck) error {
	key := b.key()
	if err := b.put(ctx, key, "text/plain", nil); err != nil {
		return err
	}
	return holds(ctx, b, key, "text/plain", nil)
}

func putContentType(ctx context.Context, b *blobCheck) error {
	run := b.run()
	types := []string{
		"", "text/plain", "TEXT/Plain; Charset=UTF-8", `multipart/mixed; boundary="a b;c=\"d\""`,
		`text/csv; name="résumé — 報告.csv"`, " spaces around ", "=?utf-8?q?x?=", "a%2Fb+c",
		"line\r\nfeed: x", "nul\x00nul", strings.Repeat("x", 200) + "/y",
	}
	for i, contentType := range types {
		if err := b.put(ctx, callOf(run, fmt.Sprintf("c%d", i)), contentType, randomBytes(10, 7)); err != nil {
			return err
		}
	}
	for i, contentType := range types {
		if err := holds(ctx, b, callOf(run, fmt.Sprintf("c%d", i)), contentType, randomBytes(10, 7)); err != nil {
			return err
		}
	}
	return nil
}

func putReplaces(ctx context.Context, b *blobCheck) error {
	key := b.key()
	for i, n := range []int{1000, 300_000, 10, 0, 10, 10} {
		data, contentType := randomBytes(n, byte(10+i)), fmt.Sprintf("x/%d", i)
		if err := b.put(ctx, key, contentType, data); err != nil {
			return err
		}
		if err := holds(ctx, b, key, contentType, data); err != nil {
			return fmt.Errorf("after replacement %d: %w", i, err)
		}
	}
	return nil
}

// A hookedReader calls hook once, when it has handed out after bytes or EOF.
type hookedReader struct {
	data  []byte
	after int
	hook  func()
	at    int
	done  bool
}

func (r *hookedReader) Read(p []byte) (int, error) {
	if !r.done && r.at >= r.after {
		r.done = true
		r.hook()
	}
	if r.at == len(r.data) {
		return 0, io.EOF
	}
	n := copy(p, r.data[r.at:min(len(r.data), r.at+32<<10)])
	r.at += n
	return n, nil
}

func putUnfinished(ctx context.Context, b *blobCheck) error {
	other, err := b.f.second(ctx)
	if err != nil {
		return err
	}
	key, old, data := b.key(), randomBytes(3000, 20), randomBytes(6<<20, 21)
	for _, after := range []int{0, 3 << 20, len(data)} {
		if err := b.Delete(ctx, key); err != nil {
			return fmt.Errorf("delete %s: %w", key, err)
		}
		var seen error
		r := &hookedReader{data: data, after: after, hook: func() { seen = missing(ctx, other, key) }}
		if err := b.putFrom(ctx, key, "x/new", r, int64(len(data))); err != nil {
			return err
		}
		if seen != nil {
			return fmt.Errorf("when %d of %d bytes were read: %w", after, len(data), seen)
		}
		if err := b.put(ctx, key, "x/old", old); err != nil {
			return err
		}
		r = &hookedReader{data: data, after: after, hook: func() {
			if seen = holds(ctx, other, key, "x/old", old); errors.Is(seen, psych.ErrNotFound) {
				seen = nil
			}
		}}
		if err := b.putFrom(ctx, key, "x/new", r, int64(len(data))); err != nil {
			return err
		}
		if seen != nil {
			return fmt.Errorf("when %d of %d bytes of a replacement were read: %w", after, len(data), seen)
		}
	}
	return nil
}

func putConcurrentReaders(ctx context.Context, b *blobCheck) error {
	other, err := b.f.second(ctx)
	if err != nil {
		return err
	}
	const versions, rounds = 4, 8
	key := b.key()
	byType := make(map[string][]byte)
	for v := range versions {
		byType[fmt.Sprintf("x/%d", v)] = randomBytes(1+v*150_000, byte(30+v))
	}
	errs := make(chan error, versions)
	writing := make(chan struct{})
	go func() {
		defer close(writing)
		var wg sync.WaitGroup
		for contentType, data := range byType {
			wg.Go(func() {
				for range rounds {
					if err := b.put(ctx, key, contentType, data); err != nil {
						errs <- err
						return
					}
				}
			})
		}
		wg.Wait()
	}()
	whole := func(s psych.BlobStore, offset int64) (found bool, err error) {
		r, info, err := s.Open(ctx, key, offset, -1)
		if errors.Is(err, psych.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("open %s: %w", key, err)
		}
		defer r.Close()
		want, ok := byType[info.ContentType]
		if !ok || info.Size != int64(len(want)) {
			return false, fmt.Errorf("open %s returned %+v, which nobody wrote", key, info)
		}
		got, err := io.ReadAll(r)
		want = want[min(offset, info.Size):]
		if err != nil { // a reader may fail when its blob is replaced
			got, want = got[:min(len(got), len(want))], want[:min(len(got), len(want))]
		}
		if err := sameBytes(got, want); err != nil {
			return false, fmt.Errorf("open %s, content type %s: %w", key, info.ContentType, err)
		}
		return err == nil, nil
	}
	readers := make(chan error, 2)
	for i, s := range []psych.BlobStore{b, other} {
		go func() {
			var err error
			for open := true; open && err == nil; {
				select {
				case <-writing:
					open = false
				default:
					_, err = whole(s, int64(i)*1000)
				}
			}
			readers <- err
		}()
	}
	<-writing
	close(errs)
	err = errors.Join(<-readers, <-readers)
	for e := range errs {
		err = errors.Join(err, e)
	}
	if err != nil {
		return err
	}
	found, err := whole(b, 0)
	if err == nil && !found {
		err = fmt.Errorf("when all Puts had returned, %s was not readable", key)
	}
	return err
}

// A failure is a reader that ends with an error after some bytes.
type failure struct {
	what     string
	data     []byte
	err      error
	together bool // the error comes with the last bytes
}

func (r *failure) Read(p []byte) (int, error) {
	n := copy(p, r.data)
	r.data = r.data[n:]
	if len(r.data) == 0 && (n == 0 || r.together) {
		return n, r.err
	}
	return n, nil
}

func failures() []*failure {
	broken := errors.New("the source broke")
	return []*failure{
		{"at once", nil, broken, false},
		{"after 100 bytes", randomBytes(100, 40), broken, false},
		{"together with 100 bytes", randomBytes(100, 40), broken, true},
		{"after 6 MiB", randomBytes(6<<20, 41), broken, false},
		{"with io.ErrUnexpectedEOF", randomBytes(100, 40), io.ErrUnexpectedEOF, false},
		{"with an error that wraps io.EOF", randomBytes(100, 40), fmt.Errorf("connection: %w", io.EOF), false},
		{"with context.Canceled of its own", randomBytes(100, 40), context.Canceled, false},
	}
}

func putReaderFails(ctx context.Context, b *blobCheck) error {
	for _, r := range failures() {
		key := b.key()
		_, err := b.Put(ctx, key, "x/new", r)
		if err := fails("Put from a reader that failed "+r.what, err, r.err); err != nil {
			return err
		}
		if err := missing(ctx, b, key); err != nil {
			return fmt.Errorf("after a reader that failed %s: %w", r.what, err)
		}
	}
	return nil
}

func putReaderFailsKeepsOld(ctx context.Context, b *blobCheck) error {
	key, old := b.key(), randomBytes(1000, 42)
	if err := b.put(ctx, key, "x/old", old); err != nil {
		return err
	}
	for _, r := range failures() {
		_, err := b.Put(ctx, key, "x/new", r)
		if err := fails("Put from a reader that failed "+r.what, err, r.err); err != nil {
			return err
		}
		if err := holds(ctx, b, key, "x/old", old); err != nil {
			return fmt.Errorf("after a reader that failed %s: %w", r.what, err)
		}
	}
	return nil
}

// cancelPut calls Put with a context that ends when after bytes were read.
func (b *blobCheck) cancelPut(ctx context.Context, key psych.BlobKey, size, after int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, err := b.Put(ctx, key, "x/new", &hookedReader{data: randomBytes(size, 43), after: after, hook: cancel})
	return fails(fmt.Sprintf("Put cancelled after %d of %d bytes", after, size), err, context.Canceled)
}

// cancellations are the sizes, and after how many bytes the context ends; at
// the size, it ends as the reader returns io.EOF.
var cancellations = [][2]int{{0, 0}, {1000, 1000}, {6 << 20, 0}, {6 << 20, 1 << 20}, {6 << 20, 6 << 20}}

func putCancelled(ctx context.Context, b *blobCheck) error {
	for _, c := range cancellations {
		key := b.key()
		if err := b.cancelPut(ctx, key, c[0], c[1]); err != nil {
			return err
		}
		if err := missing(ctx, b, key); err != nil {
			return fmt.Errorf("after a Put cancelled after %d of %d bytes: %w", c[1], c[0], err)
		}
	}
	return nil
}

func putCancelledKeepsOld(ctx context.Context, b *blobCheck) error {
	key, old := b.key(), randomBytes(1000, 44)
	if err := b.put(ctx, key, "x/old", old); err != nil {
		return err
	}
	for _, c := range cancellations {
		if err := b.cancelPut(ctx, key, c[0], c[1]); err != nil {
			return err
		}
		if err := holds(ctx, b, key, "x/old", old); err != nil {
			return fmt.Errorf("after a Put cancelled after %d of %d bytes: %w", c[1], c[0], err)
		}
	}
	return nil
}

func putReopen(ctx context.Context, b *blobCheck) error {
	run := b.run()
	kept, empty, gone := callOf(run, "kept"), callOf(run, "empty"), callOf(run, "gone")
	data := randomBytes(100_000, 45)
	for _, err := range []error{
		b.put(ctx, kept, "x/old", randomBytes(10, 46)),
		b.put(ctx, kept, "x/new", data),
		b.put(ctx, empty, "x/empty", nil),
		b.put(ctx, gone, "x/gone", data),
		b.Delete(ctx, gone),
		b.f.reopen(ctx),
	} {
		if err != nil {
			return err
		}
	}
	for _, err := range []error{
		holds(ctx, b.f.Port, kept, "x/new", data),
		holds(ctx, b.f.Port, empty, "x/empty", nil),
		missing(ctx, b.f.Port, gone),
	} {
		if err != nil {
			return fmt.Errorf("after reopening: %w", err)
		}
	}
	return nil
}

// A span is a range and what of the blob it reads.
type span struct{ offset, length, from, to int64 }

func (b *blobCheck) ranges(ctx context.Context, size int, spans []span) error {
	key, data := b.key(), randomBytes(size, 50)
	if err := b.put(ctx, key, "x/y", data); err != nil {
		return err
	}
	for _, s := range spans {
		got, _, err := read(ctx, b, key, s.offset, s.length)
		if err != nil {
			return err
		}
		if err := sameBytes(got, data[s.from:s.to]); err != nil {
			return fmt.Errorf("open from %d, %d bytes, of %d: %w", s.offset, s.length, size, err)
		}
	}
	return nil
}

func openRange(ctx context.Context, b *blobCheck) error {
	if err := b.ranges(ctx, 1000, []span{
		{0, 1000, 0, 1000}, {0, 1, 0, 1}, {0, 0, 0, 0}, {999, 1, 999, 1000}, {500, 100, 500, 600}, {500, 0, 500, 500},
		{500, 500, 500, 1000}, {500, 501, 500, 1000}, {0, 1001, 0, 1000}, {999, 2, 999, 1000},
	}); err != nil {
		return err
	}
	const large = 7<<20 + 3
	return b.ranges(ctx, large, []span{
		{0, 10, 0, 10}, {5<<20 - 5, 10, 5<<20 - 5, 5<<20 + 5}, {3 << 20, 2 << 20, 3 << 20, 5 << 20}, {large - 3, 100, large - 3, large},
	})
}

func openToEnd(ctx context.Context, b *blobCheck) error {
	if err := b.ranges(ctx, 1000, []span{
		{0, -1, 0, 1000}, {1, -1, 1, 1000}, {999, -1, 999, 1000}, {400, -7, 400, 1000}, {400, math.MinInt64, 400, 1000},
	}); err != nil {
		return err
	}
	return b.ranges(ctx, 0, []span{{0, -1, 0, 0}})
}

func openPastEnd(ctx context.Context, b *blobCheck) error {
	if err := b.ranges(ctx, 1000, []span{
		{1000, 1, 1000, 1000}, {1000, 0, 1000, 1000}, {1000, -1, 1000, 1000}, {1001, 10, 1000, 1000}, {1 << 40, 1, 1000, 1000}, {1 << 40, -1, 1000, 1000},
	}); err != nil {
		return err
	}
	return b.ranges(ctx, 0, []span{{0, 1, 0, 0}, {0, 0, 0, 0}, {1, 1, 0, 0}, {1, -1, 0, 0}})
}

func openHuge(ctx context.Context, b *blobCheck) error {
	const huge = math.MaxInt64
	return b.ranges(ctx, 1000, []span{
		{0, huge, 0, 1000}, {1, huge, 1, 1000}, {999, huge, 999, 1000}, {1000, huge, 1000, 1000}, {huge, huge, 1000, 1000}, {huge, 1, 1000, 1000}, {huge, 0, 1000, 1000}, {huge, -1, 1000, 1000},
	})
}

func openNegativeOffset(ctx context.Context, b *blobCheck) error {
	key := b.key()
	if err := b.put(ctx, key, "x/y", randomBytes(100, 51)); err != nil {
		return err
	}
	for _, offset := range []int64{-1, -100, math.MinInt64} {
		for _, length := range []int64{-1, 0, 10} {
			_, _, err := read(ctx, b, key, offset, length)
			if err := fails(fmt.Sprintf("Open from %d, %d bytes", offset, length), err, psych.ErrInvalid); err != nil {
				return err
			}
		}
	}
	return nil
}

func openInfoWhole(ctx context.Context, b *blobCheck) error {
	key := b.key()
	if err := b.put(ctx, key, "x/y", randomBytes(1000, 52)); err != nil {
		return err
	}
	want := psych.BlobInfo{Size: 1000, ContentType: "x/y"}
	for _, s := range []span{{offset: 0, length: -1}, {offset: 0, length: 10}, {offset: 500, length: 10}, {offset: 500, length: 0}, {offset: 1000, length: 1}, {offset: 5000, length: -1}} {
		_, info, err := read(ctx, b, key, s.offset, s.length)
		if err != nil {
			return err
		}
		if info != want {
			return fmt.Errorf("open from %d, %d bytes, returned %+v, want %+v", s.offset, s.length, info, want)
		}
	}
	return nil
}

// absentKeys returns keys of blobs that are not there: of no Run, beside a
// blob, and deleted.
func (b *blobCheck) absentKeys(ctx context.Context) ([]psych.BlobKey, error) {
	run := b.run()
	gone, cleared := callOf(run, "gone"), b.key()
	for _, err := range []error{
		b.put(ctx, callOf(run, "there"), "x/y", randomBytes(10, 53)),
		b.put(ctx, gone, "x/y", randomBytes(10, 53)),
		b.put(ctx, cleared, "x/y", randomBytes(10, 53)),
		b.Delete(ctx, gone),
		b.DeleteRun(ctx, cleared.Run()),
	} {
		if err != nil {
			return nil, err
		}
	}
	return []psych.BlobKey{b.key(), callOf(run, "never"), callOf(run, "ther"), callOf(run, "there.1"), gone, cleared}, nil
}

func openMissing(ctx context.Context, b *blobCheck) error {
	keys, err := b.absentKeys(ctx)
	if err != nil {
		return err
	}
	for _, key := range keys {
		for _, s := range []span{{offset: 0, length: -1}, {offset: 0, length: 0}, {offset: 10, length: 10}, {offset: math.MaxInt64, length: 1}} {
			_, _, err := read(ctx, b, key, s.offset, s.length)
			if err := fails(fmt.Sprintf("Open %s from %d, %d bytes", key, s.offset, s.length), err, psych.ErrNotFound); err != nil {
				return err
			}
		}
	}
	return nil
}

func statMissing(ctx context.Context, b *blobCheck) error {
	keys, err := b.absentKeys(ctx)
	if err != nil {
		return err
	}
	for _, key := range keys {
		_, err := b.Stat(ctx, key)
		if err := fails("Stat "+key.String(), err, psych.ErrNotFound); err != nil {
			return err
		}
	}
	return nil
}

func openTwice(ctx context.Context, b *blobCheck) error {
	key, data := b.key(), randomBytes(300_000, 54)
	if err := b.put(ctx, key, "x/y", data); err != nil {
		return err
	}
	one, _, err := b.Open(ctx, key, 0, -1)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer one.Close()
	two, _, err := b.Open(ctx, key, 1000, 100_000)
	if err != nil {
		return fmt.Errorf("open again: %w", err)
	}
	head := make([]byte, 1000)
	if _, err := io.ReadFull(one, head); err != nil {
		return fmt.Errorf("read the first reader: %w", err)
	}
	second, err := io.ReadAll(two)
	if err != nil {
		return fmt.Errorf("read the second reader: %w", err)
	}
	if err := two.Close(); err != nil {
		return fmt.Errorf("close the second reader: %w", err)
	}
	rest, err := io.ReadAll(one)
	if err != nil {
		return fmt.Errorf("read the first reader when the second was closed: %w", err)
	}
	if err := sameBytes(append(head, rest...), data); err != nil {
		return fmt.Errorf("the first reader: %w", err)
	}
	if err := sameBytes(second, data[1000:101_000]); err != nil {
		return fmt.Errorf("the second reader: %w", err)
	}
	return nil
}

// readAcross opens a blob, reads its begin, calls change and reads on.
func (b *blobCheck) readAcross(ctx context.Context, what string, change func(key psych.BlobKey) error) error {
	key, old := b.key(), randomBytes(4<<20, 55)
	if err := b.put(ctx, key, "x/old", old); err != nil {
		return err
	}
	r, _, err := b.Open(ctx, key, 0, -1)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer r.Close()
	got := make([]byte, 1000)
	if _, err := io.ReadFull(r, got); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if err := change(key); err != nil {
		return err
	}
	rest, err := io.ReadAll(r)
	got = append(got, rest...)
	if err != nil { // it failed, which it may
		old = old[:min(len(got), len(old))]
	}
	if err := sameBytes(got, old); err != nil {
		return fmt.Errorf("a reader that was open at %s, then read to its end without an error: %w", what, err)
	}
	return nil
}

func openWhileReplaced(ctx context.Context, b *blobCheck) error {
	for _, size := range []int{4 << 20, 500_000, 0, 5 << 20} {
		err := b.readAcross(ctx, fmt.Sprintf("a replacement by %d bytes", size), func(key psych.BlobKey) error {
			return b.put(ctx, key, "x/new", randomBytes(size, 56))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func openWhileDeleted(ctx context.Context, b *blobCheck) error {
	if err := b.readAcross(ctx, "Delete", func(key psych.BlobKey) error { return b.Delete(ctx, key) }); err != nil {
		return err
	}
	return b.readAcross(ctx, "DeleteRun", func(key psych.BlobKey) error { return b.DeleteRun(ctx, key.Run()) })
}

func deleteRemoves(ctx context.Context, b *blobCheck) error {
	run := b.run()
	calls := []string{"c1_1.result.1", "c1_1.result.10", "c1_1.result", "c1_1", "c2_1.result.1"}
	data := randomBytes(100, 60)
	for _, call := range calls {
		if err := b.put(ctx, callOf(run, call), "x/y", data); err != nil {
			return err
		}
	}
	for i, call := range calls {
		if err := b.Delete(ctx, callOf(run, call)); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		if err := missing(ctx, b, callOf(run, call)); err != nil {
			return fmt.Errorf("after Delete: %w", err)
		}
		for _, other := range calls[i+1:] {
			if err := holds(ctx, b, callOf(run, other), "x/y", data); err != nil {
				return fmt.Errorf("after Delete of %q: %w", call, err)
			}
		}
	}
	if err := b.put(ctx, callOf(run, calls[0]), "x/again", data); err != nil {
		return err
	}
	return holds(ctx, b, callOf(run, calls[0]), "x/again", data)
}

func deleteAbsent(ctx context.Context, b *blobCheck) error {
	keys, err := b.absentKeys(ctx)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := b.Delete(ctx, key); err != nil {
			return fmt.Errorf("delete %s, which is not there: %w", key, err)
		}
	}
	return nil
}

func deleteRunRemoves(ctx context.Context, b *blobCheck) error {
	run := b.run()
	calls := []string{"c1_1.result.1", "c1_1.stdout.1", "m.0123", "-", "_._"}
	for range 2 {
		for _, call := range calls {
			if err := b.put(ctx, callOf(run, call), "x/y", randomBytes(100, 61)); err != nil {
				return err
			}
		}
		if err := b.DeleteRun(ctx, run); err != nil {
			return fmt.Errorf("delete run: %w", err)
		}
		for _, call := range calls {
			if err := missing(ctx, b, callOf(run, call)); err != nil {
				return fmt.Errorf("after DeleteRun: %w", err)
			}
		}
	}
	return nil
}

// deleteRunMany is over what one page of a listing, and one request to delete,
// hold on the backends that are common: 1000.
func deleteRunMany(ctx context.Context, b *blobCheck) error {
	const n = 1030
	run := b.run()
	if err := concurrently(n, func(i int) error {
		return b.put(ctx, callOf(run, fmt.Sprintf("c%d", i)), "x/y", []byte{byte(i)})
	}); err != nil {
		return err
	}
	if err := b.DeleteRun(ctx, run); err != nil {
		return fmt.Errorf("delete run: %w", err)
	}
	return concurrently(n, func(i int) error {
		key := callOf(run, fmt.Sprintf("c%d", i))
		_, err := b.Stat(ctx, key)
		return fails(fmt.Sprintf("after DeleteRun of %d blobs, Stat %s", n, key), err, psych.ErrNotFound)
	})
}

// concurrently calls f with 0 to n-1, 16 at a time, and returns the first error.
func concurrently(n int, f func(i int) error) error {
	next := make(chan int)
	errs := make(chan error, 16)
	for range cap(errs) {
		go func() {
			var failed error
			for i := range next {
				if failed == nil {
					failed = f(i)
				}
			}
			errs <- failed
		}()
	}
	for i := range n {
		next <- i
	}
	close(next)
	var first error
	for range cap(errs) {
		if err := <-errs; first == nil {
			first = err
		}
	}
	return first
}

func deleteRunIsolated(ctx context.Context, b *blobCheck) error {
	run := b.run()
	last := byte('0')
	if run.RunID[31] == '0' {
		last = '1'
	}
	others := []psych.RunKey{
		b.runOf(run.Tenant),
		{Tenant: run.Tenant, RunID: run.RunID[:31] + string(last)},
		{Tenant: b.f.Tenant(), RunID: run.RunID},
		{Tenant: run.Tenant + "x", RunID: run.RunID},
		{Tenant: run.Tenant + "/", RunID: run.RunID},
		{Tenant: run.Tenant + "\x00", RunID: run.RunID},
		{Tenant: run.Tenant + "/" + run.RunID, RunID: run.RunID},
		{Tenant: run.Tenant[:len(run.Tenant)-1], RunID: run.RunID},
		{Tenant: strings.ToLower(run.Tenant), RunID: run.RunID},
		{Tenant: strings.ToUpper(run.Tenant), RunID: run.RunID},
	}
	data := func(i int) []byte { return []byte(fmt.Sprintf("blob of neighbor %d", i)) }
	if err := b.put(ctx, callOf(run, "c1"), "x/y", data(-1)); err != nil {
		return err
	}
	for i, other := range others {
		if err := b.put(ctx, callOf(b.use(other), "c1"), "x/y", data(i)); err != nil {
			return err
		}
	}
	if err := b.DeleteRun(ctx, run); err != nil {
		return fmt.Errorf("delete run: %w", err)
	}
	if err := missing(ctx, b, callOf(run, "c1")); err != nil {
		return fmt.Errorf("after DeleteRun: %w", err)
	}
	for i, other := range others {
		if err := holds(ctx, b, callOf(other, "c1"), "x/y", data(i)); err != nil {
			return fmt.Errorf("after DeleteRun of %s: %w", run, err)
		}
	}
	return nil
}

func deleteRunAbsent(ctx context.Context, b *blobCheck) error {
	run := b.run()
	for range 2 {
		if err := b.DeleteRun(ctx, run); err != nil {
			return fmt.Errorf("delete run of a Run without blobs: %w", err)
		}
	}
	if err := b.put(ctx, callOf(run, "c1"), "x/y", []byte("x")); err != nil {
		return err
	}
	for range 2 {
		if err := b.DeleteRun(ctx, run); err != nil {
			return fmt.Errorf("delete run: %w", err)
		}
	}
	return b.DeleteRun(ctx, b.runOf(run.Tenant))
}

// foreign checks that nobody reaches key by others.
func (b *blobCheck) foreign(ctx context.Context, key psych.BlobKey, others []psych.BlobKey) error {
	data := randomBytes(100, 62)
	if err := b.put(ctx, key, "x/y", data); err != nil {
		return err
	}
	for _, other := range others {
		if err := missing(ctx, b, other); err != nil {
			return fmt.Errorf("with a blob at %s: %w", key, err)
		}
		if err := b.Delete(ctx, other); err != nil {
			return fmt.Errorf("delete %s, which is not there: %w", other, err)
		}
		if err := holds(ctx, b, key, "x/y", data); err != nil {
			return fmt.Errorf("after Delete of %s: %w", other, err)
		}
	}
	return nil
}

func foreignTenant(ctx context.Context, b *blobCheck) error {
	key := b.key()
	var others []psych.BlobKey
	for _, tenant := range []string{b.f.Tenant(), key.Tenant + "x", key.Tenant[1:], "*", "..", "/", key.Tenant + "/../" + key.Tenant, "./" + key.Tenant} {
		others = append(others, psych.BlobKey{Tenant: tenant, RunID: key.RunID, CallID: key.CallID})
	}
	return b.foreign(ctx, key, others)
}

func foreignRun(ctx context.Context, b *blobCheck) error {
	key := b.key()
	return b.foreign(ctx, key, []psych.BlobKey{callOf(b.runOf(key.Tenant), key.CallID), callOf(b.run(), key.CallID)})
}

// strangeTenants are ids that meet, or leave their place, where an adapter
// folds, escapes, cuts, joins or normalizes carelessly. t is a new tenant.
func strangeTenants(t string) []string {
	const run = "0123456789abcdef0123456789abcdef"
	return []string{
		// alone, where a file name or a key would be special
		".", "..", "...", "/", "//", "\\", "\x00", " ", "*", "%", "=", "~", "-", "_", "+", "con", "CON", "nul", "nul.txt", "com1", "aux.", ".tmp-x", "C:", "é", "\n",
		// escapes, and what they stand for
		t + "a/b", t + "a%2Fb", t + "a%2fb", t + "a%252Fb", t + "a=2fb", t + "a=2Fb", t + "a_2fb", t + "a~2fb", t + "a\\b", t + "a\x00b", t + "a+b", t + "a b", t + "a%20b", t + "a:b", t + "a#b", t + "a?b", t + "a-b", t + "a_b", t + "a__b", t + "a.b",
		// parts of paths
		t, t + "/", "/" + t, t + "//", t + "/.", t + "/..", "../" + t, "./" + t, t + "/x", t + "/" + run, t + "/../" + t, t + "\x00" + run, t + "\x00",
		// at the end, where some filesystems drop it
		t + ".", t + "..", t + " ", t + ". ", t + "\t", t + "\n",
		// case and Unicode forms
		t + "k", t + "K", t + "\u212a", t + "ss", t + "ß", t + "ẞ", t + "\u00e9", t + "e\u0301", t + "\u00c9", t + "i", t + "I", t + "ı", t + "İ", t + "ﬁ", t + "fi",
		// at the limit
		strings.Repeat("é", 64), strings.Repeat("É", 64), strings.Repeat("A", 128), strings.Repeat("a", 128), strings.Repeat("\x00", 128), strings.Repeat("/", 128), strings.Repeat(".", 128), strings.Repeat(" ", 128),
		strings.Repeat("a", 127), strings.Repeat("a", 127) + "b", strings.Repeat("/", 127), strings.Repeat("/", 127) + "a", strings.Repeat("😀", 32), "x" + strings.Repeat("é", 63) + "y",
	}
}

func tenantsApart(ctx context.Context, b *blobCheck) error {
	tenants := strangeTenants(b.f.Tenant())
	id := newRunID() // one for all, so that nothing else keeps them apart
	key := func(i int) psych.BlobKey { return psych.BlobKey{Tenant: tenants[i], RunID: id, CallID: "c1"} }
	data := func(i int) []byte { return []byte(fmt.Sprintf("blob of %q", tenants[i])) }
	for i := range tenants {
		b.use(key(i).Run())
	}
	if err := concurrently(len(tenants), func(i int) error { return b.put(ctx, key(i), "x/y", data(i)) }); err != nil {
		return err
	}
	if err := concurrently(len(tenants), func(i int) error { return holds(ctx, b, key(i), "x/y", data(i)) }); err != nil {
		return err
	}
	// Every other one goes, by one way and the other.
	for i := 0; i < len(tenants); i += 2 {
		var err error
		if i%4 == 0 {
			err = b.Delete(ctx, key(i))
		} else {
			err = b.DeleteRun(ctx, key(i).Run())
		}
		if err != nil {
			return fmt.Errorf("delete %s: %w", key(i), err)
		}
	}
	return concurrently(len(tenants), func(i int) error {
		if i%2 == 0 {
			return missing(ctx, b, key(i))
		}
		return holds(ctx, b, key(i), "x/y", data(i))
	})
}

func callsApart(ctx context.Context, b *blobCheck) error {
	run := b.run()
	calls := []string{
		"c1_1.result.1", "c1_1.result.10", "c1_1.result.1.", "c1_1.result.1..", "c1_1.result", "c1_1.result.1-2", "c1_1_result_1", "c1-1.result.1", "c11.result.1",
		"m.0123456789abcdef0123456789abcdef", "-", "_", "a", "a.", "a..", "a..b", "a.b", "a_b", "a-b", "--", "-.", "_.", "=2e"[1:], "a2e", "tmp-x", "b-a",
		"con", "nul", "nul.txt", "com1", "aux.", "prn.x",
		strings.Repeat("x", 100), strings.Repeat("x", 99), strings.Repeat("x", 99) + ".", strings.Repeat("x", 99) + "y", "x" + strings.Repeat(".", 99), strings.Repeat("-", 100), strings.Repeat("_", 100),
	}
	data := func(i int) []byte { return []byte(fmt.Sprintf("blob of %q", calls[i])) }
	if err := concurrently(len(calls), func(i int) error { return b.put(ctx, callOf(run, calls[i]), "x/y", data(i)) }); err != nil {
		return err
	}
	if err := concurrently(len(calls), func(i int) error { return holds(ctx, b, callOf(run, calls[i]), "x/y", data(i)) }); err != nil {
		return err
	}
	for i := 0; i < len(calls); i += 2 {
		if err := b.Delete(ctx, callOf(run, calls[i])); err != nil {
			return fmt.Errorf("delete %q: %w", calls[i], err)
		}
	}
	return concurrently(len(calls), func(i int) error {
		if i%2 == 0 {
			return missing(ctx, b, callOf(run, calls[i]))
		}
		return holds(ctx, b, callOf(run, calls[i]), "x/y", data(i))
	})
}

// illegalRuns and illegalCalls are what Check of a key refuses.
func illegalRuns(legal psych.RunKey) []psych.RunKey {
	runs := []psych.RunKey{{}}
	for _, tenant := range []string{"", "\xff", "a\x80b", strings.Repeat("x", 129), strings.Repeat("é", 64) + "x"} {
		runs = append(runs, psych.RunKey{Tenant: tenant, RunID: legal.RunID})
	}
	for _, id := range []string{"", "x", "..", strings.Repeat("0", 31), strings.Repeat("0", 33), strings.Repeat("g", 32), strings.Repeat("A", 32), "../" + strings.Repeat("0", 29), strings.Repeat("0", 31) + "/", strings.Repeat("0", 31) + "\x00"} {
		runs = append(runs, psych.RunKey{Tenant: legal.Tenant, RunID: id})
	}
	return runs
}

func illegalKeys(legal psych.RunKey) []psych.BlobKey {
	var keys []psych.BlobKey
	for _, run := range illegalRuns(legal) {
		keys = append(keys, callOf(run, "c1"))
	}
	for _, call := range []string{"", ".", "..", ".a", "A", "a/b", "../c1", "c1/", "a b", "é", "a\x00", "%2e", "a=b", "a:b", strings.Repeat("x", 101)} {
		keys = append(keys, callOf(legal, call))
	}
	return keys
}

func (b *blobCheck) refuses(method string, f func(psych.BlobKey) error) error {
	for _, key := range illegalKeys(b.run()) {
		if err := fails(method+" "+key.String(), f(key), psych.ErrInvalid); err != nil {
			return err
		}
	}
	return nil
}

func putIllegalKey(ctx context.Context, b *blobCheck) error {
	return b.refuses("Put", func(key psych.BlobKey) error {
		_, err := b.Put(ctx, key, "x/y", strings.NewReader("x"))
		return err
	})
}

func openIllegalKey(ctx context.Context, b *blobCheck) error {
	return b.refuses("Open", func(key psych.BlobKey) error {
		_, _, err := read(ctx, b, key, 0, -1)
		return err
	})
}

func statIllegalKey(ctx context.Context, b *blobCheck) error {
	return b.refuses("Stat", func(key psych.BlobKey) error {
		_, err := b.Stat(ctx, key)
		return err
	})
}

func deleteIllegalKey(ctx context.Context, b *blobCheck) error {
	return b.refuses("Delete", func(key psych.BlobKey) error { return b.Delete(ctx, key) })
}

func deleteRunIllegalKey(ctx context.Context, b *blobCheck) error {
	for _, run := range illegalRuns(b.run()) {
		if err := fails("DeleteRun "+run.String(), b.DeleteRun(ctx, run), psych.ErrInvalid); err != nil {
			return err
		}
	}
	return nil
}

// ended calls f with a context that has ended and checks that it fails so and
// that the blob at key is untouched.
func (b *blobCheck) ended(ctx context.Context, method string, f func(ctx context.Context, key psych.BlobKey) error) error {
	key, data := b.key(), randomBytes(100, 63)
	if err := b.put(ctx, key, "x/y", data); err != nil {
		return err
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := fails(method+" with a context that has ended", f(ended, key), context.Canceled); err != nil {
		return err
	}
	if err := holds(ctx, b, key, "x/y", data); err != nil {
		return fmt.Errorf("after %s with a context that has ended: %w", method, err)
	}
	return nil
}

func putContextEnded(ctx context.Context, b *blobCheck) error {
	return b.ended(ctx, "Put", func(ctx context.Context, key psych.BlobKey) error {
		_, err := b.Put(ctx, key, "x/new", strings.NewReader("new"))
		return err
	})
}

func openContextEnded(ctx context.Context, b *blobCheck) error {
	return b.ended(ctx, "Open", func(ctx context.Context, key psych.BlobKey) error {
		_, _, err := read(ctx, b, key, 0, -1)
		return err
	})
}

func statContextEnded(ctx context.Context, b *blobCheck) error {
	return b.ended(ctx, "Stat", func(ctx context.Context, key psych.BlobKey) error {
		_, err := b.Stat(ctx, key)
		return err
	})
}

func deleteContextEnded(ctx context.Context, b *blobCheck) error {
	return b.ended(ctx, "Delete", func(ctx context.Context, key psych.BlobKey) error { return b.Delete(ctx, key) })
}

func deleteRunContextEnded(ctx context.Context, b *blobCheck) error {
	return b.ended(ctx, "DeleteRun", func(ctx context.Context, key psych.BlobKey) error { return b.DeleteRun(ctx, key.Run()) })
}

func concurrentPuts(ctx context.Context, b *blobCheck) error {
	runs := []psych.RunKey{b.run(), b.run(), b.run()}
	key := func(i int) psych.BlobKey { return callOf(runs[i%len(runs)], fmt.Sprintf("c%d", i)) }
	data := func(i int) []byte { return randomBytes(i*1000, byte(i)) }
	const n = 48
	if err := concurrently(n, func(i int) error { return b.put(ctx, key(i), "x/y", data(i)) }); err != nil {
		return err
	}
	return concurrently(n, func(i int) error { return holds(ctx, b, key(i), "x/y", data(i)) })
}

func concurrentMixed(ctx context.Context, b *blobCheck) error {
	other, err := b.f.second(ctx)
	if err != nil {
		return err
	}
	run, data := b.run(), randomBytes(1000, 64)
	// Rounds of six calls at a time, on three blobs and on two handles.
	err = concurrently(16*12, func(i int) error {
		var s psych.BlobStore = b
		if i/6%2 == 1 {
			s = other
		}
		key := callOf(run, fmt.Sprintf("c%d", i%3))
		var err error
		switch i % 6 {
		case 0, 1, 2:
			_, err = s.Put(ctx, key, "x/y", bytes.NewReader(data))
		case 3:
			if err = holds(ctx, s, key, "x/y", data); errors.Is(err, psych.ErrNotFound) {
				err = nil
			}
		case 4:
			err = s.Delete(ctx, key)
		case 5:
			err = s.DeleteRun(ctx, run)
		}
		if err != nil {
			return fmt.Errorf("beside other calls on its Run: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := b.put(ctx, callOf(run, "c0"), "x/y", data); err != nil {
		return err
	}
	return holds(ctx, other, callOf(run, "c0"), "x/y", data)
}
