package memory_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/psych"
)

// Of 16 appenders at one boundary, and of 16 claimers, one wins, round after
// round; PSYCH_TEST_ROUNDS says how many.
func TestOneWinner(t *testing.T) {
	rounds := 500
	if s := os.Getenv("PSYCH_TEST_ROUNDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		rounds = n
	}
	ctx := context.Background()
	s := memory.New(nil)
	key := psych.RunKey{Tenant: "t", RunID: strings.Repeat("a", 32)}
	now := time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
	if _, _, err := s.CreateRun(ctx, psych.RunInfo{Key: key, Scope: psych.Scope{Tenant: "t"}, Incarnation: "i", CreatedAt: now}); err != nil {
		t.Fatal(err)
	}
	race := func(f func(i int) error, lost error) {
		t.Helper()
		var wg sync.WaitGroup
		var won atomic.Int64
		for i := range 16 {
			wg.Go(func() {
				switch err := f(i); {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, lost):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d of 16 won", won.Load())
		}
	}
	var pos psych.Pos
	for round := range rounds {
		race(func(i int) error {
			_, err := s.Append(ctx, key, pos, psych.Batch{Token: fmt.Sprint(round, "-", i), Entries: []psych.Entry{{Seq: pos.Seq + 1, Kind: "k", Time: now}}})
			return err
		}, psych.ErrConflict)
		var err error
		if pos, err = s.Head(ctx, key); err != nil || pos.Seq != uint64(round+1) {
			t.Fatalf("head %v, %v", pos, err)
		}
		now = now.Add(time.Minute)
		race(func(i int) error {
			_, err := s.Claim(ctx, key, "owner", fmt.Sprint(round, "-", i), now, 30*time.Second)
			return err
		}, psych.ErrLeaseHeld)
	}
}
