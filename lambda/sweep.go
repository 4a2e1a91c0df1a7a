package lambda

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/psych-go/psych-go/psych"
)

// SweepOptions of [Sweep]. Nil and the zero value work.
type SweepOptions struct {
	Logger *slog.Logger // nil: silent. Ids and sizes, never payloads
}

// A SweepResult says what a sweep did, and where the next one goes on.
type SweepResult struct {
	Woken int    `json:"woken"`
	Next  string `json:"next"` // "": all was gone over
}

// Sweep handles a schedule: it goes over what is due, in batches, until that is
// done or the time of the invocation is nearly over. The next invocation of the
// same instance then goes on where it ended, and so does one whose event has
// that place as {"cursor": …}; any other begins anew, and finds what was dealt
// with due no more. What can't be dealt with makes an error, behind all the
// rest.
func Sweep(rt *psych.Runtime, o *SweepOptions) func(context.Context, json.RawMessage) (SweepResult, error) {
	var opts SweepOptions
	if o != nil {
		opts = *o
	}
	var mu sync.Mutex
	left := ""
	return func(ctx context.Context, event json.RawMessage) (SweepResult, error) {
		ctx, cancel := withDeadline(ctx, os.Getenv)
		defer cancel()
		log := logger(ctx, opts.Logger)
		mu.Lock()
		defer mu.Unlock()
		cursor := left
		var in struct {
			Cursor string `json:"cursor"`
		}
		if json.Unmarshal(event, &in) == nil && in.Cursor != "" { // a schedule's own event has none
			cursor = in.Cursor
		}
		var r SweepResult
		err := safely(func() (err error) {
			r.Woken, r.Next, err = rt.Sweep(ctx, cursor)
			return err
		})
		left = r.Next
		log.InfoContext(ctx, "swept", "woken", r.Woken, "more", r.Next != "")
		if err != nil {
			left = "" // what is wrong with the place must not stay
			return r, fmt.Errorf("lambda: %w", err)
		}
		return r, nil
	}
}
