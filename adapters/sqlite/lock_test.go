package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/psych-go/psych-go/psych"
)

func TestLockedByAnother(t *testing.T) {
	s := newRun(t)
	appendTo(t, s, 1)
	other := raw(t, s.path)
	rawExec(t, other, "BEGIN IMMEDIATE")

	impatient := newStore(t, s.path, &Options{LockWait: time.Millisecond})
	_, err := impatient.Append(t.Context(), testKey, psych.Pos{Seq: 1}, batch(1, "impatient", "x"))
	wantErr(t, "Append to a locked file", err, psych.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "locked by another process") || !strings.Contains(err.Error(), s.path) {
		t.Errorf("Append to a locked file: %v: want it to say so, with the file", err)
	}
	if _, err := impatient.Init(t.Context()); err != nil {
		t.Errorf("Init of a file that is up to date waits for a lock that it does not need: %v", err)
	}
	if got := log(t, impatient); len(got) != 1 {
		t.Errorf("beside a writer the log is %q", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	wantErr(t, "Post to a locked file with a deadline", s.Post(ctx, testKey, psych.Note{ID: "m", Kind: "k", Time: testNow}, testNow), context.DeadlineExceeded)

	// Who is patient gets it.
	done := make(chan error)
	go func() {
		_, err := s.Append(t.Context(), testKey, psych.Pos{Seq: 1}, batch(1, "patient", "y"))
		done <- err
	}()
	rawExec(t, other, "COMMIT")
	if err := <-done; err != nil {
		t.Errorf("Append once the lock is free: %v", err)
	}
	if got := log(t, s); !slices.Equal(got, []string{"1", "y"}) {
		t.Errorf("the log is %q", got)
	}
	if err := errors.Join(s.Close(), impatient.Close()); err != nil {
		t.Fatal(err)
	}

	rawExec(t, other, "PRAGMA locking_mode = EXCLUSIVE")
	rawExec(t, other, "BEGIN EXCLUSIVE")
	impatient = newStore(t, s.path, &Options{LockWait: time.Millisecond})
	_, err = impatient.GetRun(t.Context(), testKey)
	wantErr(t, "GetRun of a file that another has for itself", err, psych.ErrUnavailable)
	rawExec(t, other, "COMMIT")
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
}

// A transaction that writes has the lock before it reads, so that nobody makes
// stale what it has read.
func TestWriteBeginsAsSuch(t *testing.T) {
	s := newRun(t)
	other := raw(t, s.path)
	if err := s.write(t.Context(), func(context.Context, *statements) error {
		if _, err := other.ExecContext(t.Context(), "BEGIN IMMEDIATE"); !isLocked(err) {
			t.Errorf("another write beside one that has just begun: %v, want SQLITE_BUSY", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	rawExec(t, other, "BEGIN IMMEDIATE")
	rawExec(t, other, "COMMIT")
}

// Who waits within a process leaves when its own time is over.
func TestQueue(t *testing.T) {
	s := newRun(t)
	s.wait = time.Millisecond
	s.lock <- struct{}{}
	err := s.DeleteRun(t.Context(), testKey, testNow)
	wantErr(t, "DeleteRun behind a writer that does not end", err, psych.ErrUnavailable)
	s.wait = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, cancel)
	wantErr(t, "DeleteRun behind a writer that does not end", s.DeleteRun(ctx, testKey, testNow), context.Canceled)
	if _, err := s.GetRun(t.Context(), testKey); err != nil {
		t.Errorf("a reader waits for a writer: %v", err)
	}
	<-s.lock
	if err := s.DeleteRun(t.Context(), testKey, testNow); err != nil {
		t.Error(err)
	}
}

// Of a file that can't grow what was acknowledged stays whole, and it goes on
// once it can.
func TestFull(t *testing.T) {
	s := newRun(t)
	execSQL(t, s, "PRAGMA max_page_count = 60")
	var want []string
	var b psych.Batch
	var err error
	for err == nil {
		data := fmt.Sprint(len(want), strings.Repeat("x", 9000))
		b = batch(uint64(len(want)), fmt.Sprint("token ", len(want)), data)
		if _, err = s.Append(t.Context(), testKey, psych.Pos{Seq: uint64(len(want))}, b); err == nil {
			want = append(want, data)
		}
	}
	wantErr(t, "Append to a full file", err, psych.ErrUnavailable)
	if !strings.Contains(err.Error(), "no space left") || !strings.Contains(err.Error(), s.path) {
		t.Errorf("Append to a full file: %v: want it to say so, with the file", err)
	}
	if got := log(t, s); len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("the full file holds %d entries, want the %d that were acknowledged", len(got), len(want))
	}
	big := psych.Note{ID: "m", Kind: "k", Time: testNow, Data: make([]byte, psych.MaxNoteBytes)}
	wantErr(t, "Post to a full file", s.Post(t.Context(), testKey, big, testNow), psych.ErrUnavailable)
	if info, err := s.GetRun(t.Context(), testKey); err != nil || info.Posted != 0 || !info.DueAt.IsZero() {
		t.Errorf("a Post that failed half-way left a header with Posted %d, DueAt %v (%v)", info.Posted, info.DueAt, err)
	}
	execSQL(t, s, "PRAGMA max_page_count = 1000000")
	if _, err := s.Append(t.Context(), testKey, psych.Pos{Seq: uint64(len(want))}, b); err != nil {
		t.Errorf("the same Append once there is room: %v", err)
	}
}

// rounds is how often contenders meet: 200 times, or as many as the environment
// asks for.
func rounds(t *testing.T) int {
	t.Helper()
	text := os.Getenv("PSYCH_TEST_ROUNDS")
	if text == "" {
		return 200
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("PSYCH_TEST_ROUNDS is %q: want a number from 1", text)
	}
	return n
}

const contenders = 16

// race calls f at once for each contender, on four Stores, and returns the one
// that did not fail with loses.
func race(t *testing.T, stores []*Store, loses error, f func(s *Store, i int) error) int {
	t.Helper()
	errs := make([]error, contenders)
	start := make(chan struct{})
	var g sync.WaitGroup
	for i := range contenders {
		g.Go(func() {
			<-start
			errs[i] = f(stores[i%len(stores)], i)
		})
	}
	close(start)
	g.Wait()
	won := -1
	for i, err := range errs {
		switch {
		case err == nil && won >= 0:
			t.Fatalf("%d and %d won", won, i)
		case err == nil:
			won = i
		case !errors.Is(err, loses):
			t.Fatalf("contender %d: %v, want %q", i, err, loses)
		}
	}
	if won < 0 {
		t.Fatal("nobody won")
	}
	return won
}

func TestOneWinner(t *testing.T) {
	first := newRun(t)
	stores := []*Store{first}
	for range 3 {
		stores = append(stores, newStore(t, first.path, nil))
	}
	ctx := t.Context()
	n := rounds(t)
	for round := range n {
		seq := uint64(round)
		won := race(t, stores, psych.ErrConflict, func(s *Store, i int) error {
			_, err := s.Append(ctx, testKey, psych.Pos{Seq: seq}, batch(seq, fmt.Sprint(round, " ", i), fmt.Sprint(i)))
			return err
		})
		page, err := stores[round%4].Read(ctx, testKey, psych.Pos{Seq: seq}, 10)
		if err != nil || len(page.Entries) != 1 || string(page.Entries[0].Data) != fmt.Sprint(won) {
			t.Fatalf("round %d: %d won, and the log has %v, %v", round, won, page.Entries, err)
		}
	}
	now := testNow
	for round := range n {
		won := race(t, stores, psych.ErrLeaseHeld, func(s *Store, i int) error {
			_, err := s.Claim(ctx, testKey, fmt.Sprint("owner ", i), fmt.Sprint(round, " ", i), now, time.Minute)
			return err
		})
		info, err := stores[round%4].GetRun(ctx, testKey)
		if err != nil || info.Owner != fmt.Sprint("owner ", won) || info.Epoch != int64(round+1) {
			t.Fatalf("round %d: %d won, and the header has owner %q, epoch %d, %v", round, won, info.Owner, info.Epoch, err)
		}
		now = now.Add(time.Minute)
	}
}

// 50 clients post while a driver drives: everything is delivered once and in
// order for each client, and none of the driver's conditions ever fails.
func TestPostsWhileDriven(t *testing.T) {
	const clients, messages = 50, 12
	driver := newRun(t)
	ctx := t.Context()
	stores := make([]*Store, 5)
	for i := range stores {
		stores[i] = newStore(t, driver.path, nil)
	}
	errs := make([]error, clients)
	var g sync.WaitGroup
	for c := range clients {
		g.Go(func() {
			s := stores[c%len(stores)]
			for m := range messages {
				n := psych.Note{ID: fmt.Sprintf("%d.%d", c, m), Kind: psych.KindUserMessage, Time: testNow.Add(time.Duration(m) * time.Second), Data: fmt.Appendf(nil, "%d %d", c, m)}
				err := s.Post(ctx, testKey, n, testNow)
				for errors.Is(err, psych.ErrInboxFull) {
					time.Sleep(rand.N(10 * time.Millisecond))
					err = s.Post(ctx, testKey, n, testNow)
				}
				if err != nil {
					errs[c] = err
					return
				}
			}
		})
	}
	posted := make(chan struct{})
	go func() { g.Wait(); close(posted) }()

	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("the driver's %s: %v", what, err)
		}
	}
	l, err := driver.Claim(ctx, testKey, "driver", "token", testNow, time.Minute)
	must("Claim", err)
	var pos psych.Pos
	looks, all := 0, false
	for !all {
		select {
		case <-posted:
			all = true // and one last look
		default:
		}
		looks++
		l, err = driver.Renew(ctx, l, testNow.Add(time.Duration(looks)*time.Second), time.Minute)
		must("Renew", err)
		notes, err := driver.Pending(ctx, testKey)
		must("Pending", err)
		if len(notes) == 0 {
			continue
		}
		b := psych.Batch{Token: fmt.Sprint("append ", looks)}
		for i, n := range notes {
			b.Entries = append(b.Entries, psych.Entry{Seq: pos.Seq + 1 + uint64(i), Kind: n.Kind, Time: n.Time, Data: n.Data})
		}
		pos, err = driver.Append(ctx, testKey, pos, b)
		must("Append", err)
		must("Settle", driver.Settle(ctx, testKey, notes))
	}
	must("Release", driver.Release(ctx, l, time.Time{}, psych.StatusCompleted))

	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	next := make([]int, clients)
	for i, data := range log(t, driver) {
		var c, m int
		if _, err := fmt.Sscan(data, &c, &m); err != nil || c < 0 || c >= clients || m != next[c] {
			t.Fatalf("entry %d is %q, where message %d of that client follows (%v)", i+1, data, next[c], err)
		}
		next[c]++
	}
	for c, n := range next {
		if n != messages {
			t.Errorf("%d messages of client %d were delivered, want %d", n, c, messages)
		}
	}
	info, err := driver.GetRun(ctx, testKey)
	if err != nil || info.Posted != clients*messages || info.Epoch != 1 || info.Owner != "" {
		t.Errorf("the header has Posted %d, epoch %d, owner %q, %v; want %d, 1, none", info.Posted, info.Epoch, info.Owner, err, clients*messages)
	}
	t.Logf("%d messages, %d looks of the driver, %d entries", clients*messages, looks, pos.Seq)
}

// A Store that could not be opened can be once the reason is gone.
func TestOpenedAgain(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "state"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := newStore(t, filepath.Join(dir, "state", "psych.db"), nil)
	_, err := s.Init(t.Context())
	wantErr(t, "Init below a file", err, psych.ErrInvalid)
	if err := os.Remove(filepath.Join(dir, "state")); err != nil {
		t.Fatal(err)
	}
	createRun(t, s)
}
