package psych_test

import (
	"context"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var runMutants = flag.Bool("mutants", false, "put each fault of the list of mutants into a copy of the module, and see its tests fail (minutes)")

// A mutant is a fault that a hand could make: in a file of the module one text,
// which occurs in it once, in place of another. Each of its tests catches it
// alone.
type mutant struct {
	name     string
	file     string // from the root of the module
	old, new string
	pkg      string // of the tests
	caught   string // names of tests, apart by blanks
}

// mutants are those faults of engine and adapters that the promises of
// docs/durability.md stand or fall with, and that of a stable prefix.
var mutants = []mutant{
	// The adapter's part.
	{"an append's condition is left out", "adapters/memory/memory.go",
		"	if after.Seq == head {\n		r.log = append(r.log, n)",
		"	if after.Seq <= head {\n		r.log = append(r.log, n)",
		"./adapters/memory", "TestStoreContract"},
	{"an append's token is ignored", "adapters/memory/memory.go",
		"r.log[i].first == after.Seq+1 && r.log[i].token == b.Token {",
		"r.log[i].first == after.Seq+1 && r.log[i].token == \"\" {",
		"./psych", "TestTraces/mut/append-no-token TestLostAnswers"},
	{"a release does not look at what was posted", "adapters/memory/memory.go",
		"	case h.Posted != l.Posted:\n",
		"	case h.Posted < l.Posted:\n",
		"./psych", "TestTraces/mut/release-no-condition TestPostedAtEveryPoint TestSimulation"},
	{"a past owner releases the lease of the new one", "adapters/memory/memory.go",
		"	switch h := &r.info; {\n	case h.Epoch != l.Epoch:\n",
		"	switch h := &r.info; {\n	case h.Epoch < l.Epoch:\n",
		"./psych", "TestTraces/mut2/handover/late-release-of-old-epoch"},
	{"a release that is repeated writes again", "adapters/memory/memory.go",
		"	case h.Owner == \"\":\n		return nil\n	case h.Posted != l.Posted:\n		return wrap(\"release\"",
		"	case h.Owner == \"\":\n		r.info.DueAt = micro(dueAt)\n		return nil\n	case h.Posted != l.Posted:\n		return wrap(\"release\"",
		"./psych", "TestTraces/read/release-again-writes TestSimulation"},
	{"a late renewal takes the lease back", "adapters/memory/memory.go",
		"until.After(h.Until) {\n		h.Until = until",
		"!until.IsZero() {\n		h.Until = until",
		"./psych", "TestTraces/read/renew-shortens"},
	{"a claim makes the Run not due", "adapters/memory/memory.go",
		"		h.Owner, h.Until = owner, micro(now.Add(ttl))\n",
		"		h.Owner, h.Until, h.DueAt = owner, micro(now.Add(ttl)), time.Time{}\n",
		"./adapters/memory", "TestStoreContract"},
	{"a tombstone is ignored", "adapters/memory/memory.go",
		"	case r.tombstone:\n		return psych.RunInfo{}, false,",
		"	case r.tombstone && r.live:\n		return psych.RunInfo{}, false,",
		"./psych", "TestTraces/mut2/del/create-over-tombstone TestRetentionAndDelete"},
	{"a full inbox is not due", "adapters/memory/memory.go",
		"	if r.info.DueAt.IsZero() || due.Before(r.info.DueAt) {\n",
		"	if !full && (r.info.DueAt.IsZero() || due.Before(r.info.DueAt)) {\n",
		"./psych", "TestTraces/read/inbox-full-no-due"},
	{"a deletion that is repeated begins the time anew", "adapters/memory/memory.go",
		"	if r.tombstone {\n		r.log, r.notes = nil, nil\n		return nil\n	}\n	*r =",
		"	*r =",
		"./psych", "TestTraces/read2/del-repetition-restarts-the-time"},

	// The engine's part.
	{"the intent is written behind the effect", "psych/batch.go",
		"		if len(begun) > 0 || len(running) > 0 && len(d.pending) > 0 {\n",
		"		if len(running) > 0 && len(d.pending) > 0 {\n",
		"./psych", "TestTraces/mut/effect-before-append-known TestKilledAtEveryWrite TestSimulation"},
	{"the margin of the lease is not looked at", "psych/drive.go",
		"	for d.left() <= d.margin() {\n",
		"	for d.end.IsZero() {\n",
		"./psych", "TestTraces/mut/no-lease-check TestPausedPastItsLease TestLeaseCountsFromTheFirstSending TestSimulation"},
	{"the lease is not looked at before a tool", "psych/batch.go",
		"			if err == nil && len(begun) > 0 {\n",
		"			if err == nil && len(begun) > 100 {\n",
		"./psych", "TestTraces/mut/no-lease-check TestPausedPastItsLease TestSimulation"},
	{"a lease counts from the last sending of its claim", "psych/drive.go",
		"	d.epoch, d.info = d.lease.Epoch, d.lease.Info\n	d.held(now, sent)\n",
		"	d.epoch, d.info = d.lease.Epoch, d.lease.Info\n	d.held(d.now(), time.Now())\n",
		"./psych", "TestTraces/read/claim-counts-repetition TestLeaseCountsFromTheFirstSending"},
	{"a release knows of posts that the driver has not looked at", "psych/drive.go",
		"d.rt.store.Release(d.store, d.looked, due, d.state.status)",
		"d.rt.store.Release(d.store, d.lease, due, d.state.status)",
		"./psych", "TestPostedDuringASlowAppend"},
	{"the inbox is looked into before the renewal", "psych/drive.go",
		"	d.looked = d.lease\n	var notes []Note\n	err := repeat(d.store, func() (err error) {\n		notes, err = d.rt.store.Pending(d.store, d.key)\n		return err\n	})\n",
		"	var notes []Note\n	err := repeat(d.store, func() (err error) {\n		notes, err = d.rt.store.Pending(d.store, d.key)\n		return err\n	})\n	if err == nil && d.fenced {\n		err = d.renew()\n	}\n	d.looked = d.lease\n",
		"./psych", "TestTraces/read/inbox-then-renew"},
	{"a claimer that finds nothing to do appends nothing", "psych/drive.go",
		"func (d *driver) release(due time.Time) (more bool, err error) {\n",
		"func (d *driver) release(due time.Time) (more bool, err error) {\n	if !d.fenced && d.state.exchange == nil && len(d.pending) == 1 {\n		d.pending = nil\n	}\n",
		"./psych", "TestTraces/idle TestSimulation"},
	{"a claimer goes on behind a newer attempt", "psych/drive.go",
		"	if d.state.attempt >= d.epoch {\n",
		"	if d.state.attempt >= d.epoch && d.state.seq == 0 {\n",
		"./psych", "TestTraces/read/first-conflict-retries-always TestPausedPastItsLease TestSimulation"},
	{"settlements are not made anew behind a conflict", "psych/drive.go",
		"			d.state, d.prompt, d.pending, d.settling = nil, nil, nil, nil\n			continue\n",
		"			return d.giveUp(err)\n",
		"./psych", "TestTraces/idle TestTraces/mut2/par/old-settlements-after-conflict"},
	{"a conflict of a fenced driver counts as success", "psych/drive.go",
		"		case errors.Is(err, ErrConflict) && !d.fenced:\n			return errFence\n",
		"		case errors.Is(err, ErrConflict) && !d.fenced:\n			return errFence\n		case errors.Is(err, ErrConflict):\n			d.pos.Seq = b.Entries[len(b.Entries)-1].Seq\n			return nil\n",
		"./psych", "TestTraces/mut/conflict-is-success TestSimulation"},
	{"an append of unknown outcome is repeated with a new token", "psych/drive.go",
		"		pos, err := d.rt.store.Append(d.store, d.key, d.pos, b)\n",
		"		b.Token = d.rt.o.NewID()\n		pos, err := d.rt.store.Append(d.store, d.key, d.pos, b)\n",
		"./psych", "TestTraces/mut/new-token-after-unknown TestLostAnswers"},
	{"what is not safe to retry is run again", "psych/drive.go",
		"return t == nil || t.idempotent(), nil\n",
		"return true, nil\n",
		"./psych", "TestTraces/mut/rerun-unsafe TestKilledAtEveryWrite TestSimulation"},
	{"the idempotency key is of the attempt", "psych/drive.go",
		"[]byte(d.info.Incarnation + \"\\x00\" + callID)",
		"fmt.Appendf(nil, \"%s\\x00%s\\x00%d\", d.info.Incarnation, callID, d.epoch)",
		"./psych", "TestTraces/mut2/par/key-of-epoch TestKilledAtEveryWrite TestSimulation"},
	{"a note that was delivered is delivered again", "psych/drive.go",
		"		if _, delivered := d.state.notes[n.noteKey()]; delivered || seen[n.noteKey()] {\n",
		"		if _, delivered := d.state.notes[n.noteKey()]; delivered && seen[n.noteKey()] {\n",
		"./psych", "TestTraces/mut/no-dedupe TestSimulation"},
	{"a note leaves the inbox before the log has it", "psych/drive.go",
		"func (d *driver) flush() error {\n",
		"func (d *driver) flush() error {\n	d.clean()\n",
		"./psych", "TestTraces/mut/settle-before-append TestKilledAtEveryWrite TestSimulation"},
	{"a Run that is handed over is not due", "psych/drive.go",
		"	more, err := d.release(due)\n	if err != nil {\n",
		"	more, err := d.release(time.Time{})\n	if err != nil {\n",
		"./psych", "TestTraces/mut2/handover/release-with-nothing-due TestSimulation"},
	{"attempts that get nowhere are not counted", "psych/fold.go",
		"			s.fruitless++\n",
		"			s.fruitless += 0\n",
		"./psych", "TestCrashLoop TestDeadlines"},
	{"the blob's key is the same for each attempt", "psych/drive.go",
		"	return fmt.Sprintf(\"%s.result.%d\", callID, epoch)\n",
		"	return fmt.Sprintf(\"%s.result.%d\", callID, min(epoch, 1))\n",
		"./psych", "TestTraces/mut/blob-key-of-call"},
	{"the blob is written behind its record", "psych/payload.go",
		"	info, err := blobs.Put(ctx, key, contentType, through)\n",
		"	data, err := io.ReadAll(through)\n	info := BlobInfo{Size: int64(len(data))}\n	context.AfterFunc(ctx, func() { blobs.Put(context.WithoutCancel(ctx), key, contentType, bytes.NewReader(data)) })\n",
		"./psych", "TestCaptureRoom TestCaptureFails TestRetentionAndDelete"},
	{"the sweep believes the index", "psych/sweep.go",
		"		return false, nil // somebody drives it\n",
		"		return true, nil // somebody drives it\n",
		"./psych", "TestTraces/mut/index-believed"},
	{"the sweep passes over expired leases", "psych/sweep.go",
		"	case info.Owner == \"\" && (info.DueAt.IsZero() || info.DueAt.After(now)):\n",
		"	case info.DueAt.IsZero() || info.DueAt.After(now):\n",
		"./psych", "TestTraces/read/defer-strict"},
	{"blobs are purged last", "psych/sweep.go",
		"		if err := r.deleteBlobs(ctx, key); err != nil {\n			return false, err\n		}\n		if err := r.store.PurgeRun(ctx, key, now); err != nil && !errors.Is(err, ErrNotFound) {\n			return false, fmt.Errorf(\"psych: purge run %s: %w\", key, err)\n		}\n		return false, nil\n",
		"		if err := r.store.PurgeRun(ctx, key, now); err != nil && !errors.Is(err, ErrNotFound) {\n			return false, fmt.Errorf(\"psych: purge run %s: %w\", key, err)\n		}\n		return false, r.deleteBlobs(ctx, key)\n",
		"./psych", "TestTraces/read2/del-sweep-blobs-last"},
	{"the principal is not in the Run's id", "psych/runtime.go",
		"digest(\"run\", s.Tenant, s.Principal, m.ID)",
		"digest(\"run\", s.Tenant, m.ID)",
		"./psych", "TestIsolationOfRunIDs TestStartAndSend"},
	{"a Version is kept without its tenant", "psych/runtime.go",
		"	key := versionKey{tenant, hash}\n",
		"	key := versionKey{\"\", hash}\n",
		"./psych", "TestIsolationOfVersionsAndRefs TestStartAndSend"},

	// What was sent once is sent again, and is read from the provider's cache.
	{"zone 1 is another in each process", "psych/prompt.go",
		"		blocks = append(blocks, s.Instructions)\n",
		"		blocks = append(blocks, fmt.Sprintf(\"%s %p\", s.Instructions, s))\n",
		"./psych", "TestMissions TestCacheHitRates"},
	{"a trim comes a turn later", "psych/turn.go",
		"	case !s.exchange.begun:\n		trims, why",
		"	case s.exchange.turns == 1:\n		trims, why",
		"./psych", "TestMissions TestHistoryIsTrimmed"},
	{"tools move as a server's catalogue does", "psych/opening.go",
		"!s.called.IsZero() && d.now().Sub(s.called) > max(keptLong, d.keepsCache())\n",
		"!s.called.IsZero()\n",
		"./psych", "TestReopened TestCacheHitRates"},
	{"a fifth marker", "internal/messages/body.go",
		"		if len(r.System[0].Bytes) == 0 {\n",
		"		if len(w.Bytes) > 0 {\n",
		"./psych", "TestCacheHitRates"},
	{"a past tail is dropped where reasoning is bound to it", "psych/prompt.go",
		"keeps && t != nil {\n",
		"keeps && t != nil && len(t.News) > 0 {\n",
		"./psych", "TestKeptTails"},
	{"a Codec that keeps tails is taken for one that does not", "psych/prompt.go",
		"		return c.ID() + \"+tails\"\n",
		"		return c.ID()\n",
		"./psych", "TestReplayAcrossModels"},
	{"the last message alone is marked", "psych/prompt.go",
		"	if p.previous > 0 && p.previous < n {\n",
		"	if p.previous > n {\n",
		"./psych", "TestCacheHitRates TestCacheAfterAFailedTry TestCacheBehindATrim"},
	{"what a failed try sent is taken for cached", "psych/prompt.go",
		"	p.codec, p.previous = c, s.heard\n",
		"	p.codec, p.previous = c, s.wire.messages\n",
		"./psych", "TestCacheAfterAFailedTry"},
	{"what a trim changed is taken for cached", "psych/prompt.go",
		"	p.previous = min(p.previous, p.sentBefore(s, items[0]))\n",
		"",
		"./psych", "TestCacheBehindATrim"},
	{"what a provider refused is sent again by another worker", "psych/fold.go",
		"		s.dropped[kind] = len(s.history)\n",
		"		s.dropped[kind] = 0\n",
		"./psych", "TestBlockRefused TestImageRefused"},
	{"what is dropped changes what is taken for cached", "psych/prompt.go",
		"		for i := before[kind]; i < len(p.at); i++ {\n",
		"		for i := 0; i < len(p.at); i++ {\n",
		"./psych", "TestBlockRefused"},
	{"a retry waits all its time in each attempt", "psych/drive.go",
		"max(0, d.now().Sub(s.failed))",
		"max(0, 0*d.now().Sub(s.failed))",
		"./psych", "TestRetryCountsFromTheFailure"},
	{"an end that is not in its record is taken for empty", "psych/elide.go",
		"len(x.p.Ref.Head) > 0 ||",
		"x.p.Ref.Head != nil ||",
		"./psych", "TestManyAttachments"},
}

// A list of mutants that no longer fits the code proves nothing.
func TestMutants(t *testing.T) {
	root := ".."
	names := map[string]bool{}
	for _, m := range mutants {
		src, err := os.ReadFile(filepath.Join(root, m.file))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(src), m.old); n != 1 {
			t.Errorf("%s: its text occurs %d times in %s, want once: bring the list up to date", m.name, n, m.file)
		}
		if names[m.name] || m.old == m.new || m.caught == "" {
			t.Errorf("%s: not a mutant of its own, or caught by nothing", m.name)
		}
		names[m.name] = true
	}
	if len(mutants) < 10 {
		t.Errorf("%d mutants, want ten at the least", len(mutants))
	}
	if !*runMutants {
		return
	}
	dir := t.TempDir()
	copyModule(t, root, dir)
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) {
			file := filepath.Join(dir, m.file)
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(strings.Replace(string(src), m.old, m.new, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := os.WriteFile(file, src, 0o644); err != nil {
					t.Fatal(err)
				}
			}()
			for _, test := range strings.Fields(m.caught) {
				out, err := goTest(t, dir, m.pkg, test)
				switch {
				case err == nil:
					t.Errorf("%s does not catch it", test)
				case !strings.Contains(out, "--- FAIL") && !strings.Contains(out, "panic:"):
					t.Errorf("%s does not run:\n%s", test, out)
				}
			}
		})
	}
}

// goTest runs one test of the copy, from its root.
func goTest(t *testing.T, dir, pkg, test string) (string, error) {
	parts := strings.Split(test, "/")
	pattern := "^" + parts[0] + "$"
	if len(parts) > 1 { // the rest is one name with slashes, which -run takes apart
		pattern += "/" + strings.Join(parts[1:], "/")
	}
	args := []string{"test", "-count=1", "-timeout=2m", "-run", pattern, pkg}
	if test == "TestSimulation" {
		args = append(args, "-sim.n=1000")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// copyModule copies the packages that the tests of mutants need.
func copyModule(t *testing.T, root, dir string) {
	t.Helper()
	for _, part := range []string{"go.mod", "go.sum", "psych", "contracttest", "internal", "adapters"} {
		err := filepath.WalkDir(filepath.Join(root, part), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, path)
			if err != nil || d.IsDir() {
				return err
			}
			src, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			to := filepath.Join(dir, rel)
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				return err
			}
			return os.WriteFile(to, src, 0o644)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
