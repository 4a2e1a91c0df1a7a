package dynamo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// noteKey is the sort key of a note: 16 digits that sort as its time does, its
// id, and behind a NUL, which no kind holds, its kind.
func noteKey(n psych.Note) string {
	return fmt.Sprintf("%s%016x%s\x00%s", notePrefix, uint64(micros(n.Time))^1<<63, n.ID, n.Kind)
}

// parseNoteKey returns the note of a sort key, without its data.
func parseNoteKey(s string) (n psych.Note, ok bool) {
	end := strings.LastIndexByte(s, 0)
	if end <= 17 {
		return n, false
	}
	at, err := strconv.ParseUint(s[1:17], 16, 64)
	return psych.Note{ID: s[17:end], Kind: psych.Kind(s[end+1:]), Time: fromMicros(int64(at ^ 1<<63))}, err == nil
}

// compareNotes orders as Pending does. Sort keys don't quite, where ids hold a
// NUL.
func compareNotes(a, b psych.Note) int {
	return cmp.Or(a.Time.Compare(b.Time), strings.Compare(a.ID, b.ID), strings.Compare(string(a.Kind), string(b.Kind)))
}

// inbox reads the header and the notes that wait, the newest first and of most
// their keys alone; at most limit of them, if it is not 0.
func (s *Store) inbox(ctx context.Context, key psych.RunKey, limit int, projection string) (*header, []item, error) {
	var h *header
	var notes []item
	q := query{part: runPart(key), from: notePrefix, to: headerKey, backward: true, projection: projection}
	if limit > 0 {
		q.limit = int32(limit + 1)
	}
	err := s.query(ctx, q, func(page []item, _ bool) (bool, error) {
		if h == nil && len(page) > 0 {
			// It sorts behind all notes, so that it comes first.
			if getStr(page[0], sk) != headerKey {
				return false, psych.ErrNotFound
			}
			var err error
			if h, err = decodeLive(key, page[0]); err != nil {
				return false, err
			}
			page = page[1:]
		}
		notes = append(notes, page...)
		return limit == 0 || len(notes) < limit, nil
	})
	if err == nil && h == nil {
		err = psych.ErrNotFound
	}
	return h, notes, err
}

// Post implements [psych.Runs]. A note whose Kind and ID wait already is kept as
// it was first posted.
func (s *Store) Post(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
	if err := s.post(ctx, key, n, due); err != nil {
		return wrap("post", key, err)
	}
	return nil
}

func (s *Store) post(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
	err := errors.Join(s.check(ctx, key), n.Check())
	if due.IsZero() {
		err = errors.Join(err, fmt.Errorf("note %q: due is zero: want a time: %w", n.ID, psych.ErrInvalid))
	}
	if err != nil {
		return err
	}
	// Data is neither needed nor transferred: of a note its key is enough.
	h, waiting, err := s.inbox(ctx, key, psych.MaxPending+1, "p, s, v, tb, ve, rq, du, u")
	if err != nil {
		return err
	}
	waits := slices.ContainsFunc(waiting, func(it item) bool {
		o, ok := parseNoteKey(getStr(it, sk))
		return ok && o.ID == n.ID && o.Kind == n.Kind
	})
	full := !waits && len(waiting) >= psych.MaxPending
	if !waits && !full {
		it := keyOf(runPart(key), noteKey(n))
		it["v"] = num(formatVersion)
		it["t"] = str(micro(n.Time).Format(timeLayout))
		setData(it, n.Data)
		if _, err := s.put(ctx, it, "", nil); err != nil {
			return err
		}
	}
	if err := s.makeDue(ctx, key, h, due, !full); err != nil {
		return err
	}
	if full {
		return fmt.Errorf("note %q: %d notes wait: %w", n.ID, len(waiting), psych.ErrInboxFull)
	}
	return nil
}

// makeDue moves DueAt to due if it is later or zero, and increments Posted. Its
// condition is on what it moves alone, so that it is the driver whose writes
// never make it fail, and never makes a write of the driver's fail.
func (s *Store) makeDue(ctx context.Context, key psych.RunKey, h *header, due time.Time, posted bool) error {
	due = micro(due)
	at := micros(due)
	for range races {
		values := item{":due": num(at)}
		set, condition := "", " AND du <= :due"
		if h.DueAt.IsZero() || due.Before(h.DueAt) {
			if set, condition = "SET du = :due", " AND (attribute_not_exists(du) OR du > :due)"; h.due && h.index <= at {
				condition += " AND u <= :due"
			} else {
				set += ", u = :due"
				condition += " AND (attribute_not_exists(u) OR u > :due)"
			}
		}
		if posted {
			set += " ADD po :one"
			values[":one"] = num(1)
		}
		if set == "" {
			return nil // it is due already
		}
		var err error
		if h, err = s.change(ctx, key, strings.TrimSpace(set), condition, values); err != errCondition {
			return err
		}
	}
	return errRaces
}

// Pending implements [psych.Runs].
func (s *Store) Pending(ctx context.Context, key psych.RunKey) ([]psych.Note, error) {
	notes, err := s.pending(ctx, key)
	if err != nil {
		return nil, wrap("pending", key, err)
	}
	return notes, nil
}

func (s *Store) pending(ctx context.Context, key psych.RunKey) ([]psych.Note, error) {
	if err := s.check(ctx, key); err != nil {
		return nil, err
	}
	_, items, err := s.inbox(ctx, key, 0, "")
	if err != nil {
		return nil, err
	}
	notes := make([]psych.Note, len(items))
	for i, it := range items {
		if what := newer(it); what != "" {
			return nil, &psych.UnsupportedError{Run: key, What: "a note in " + what}
		}
		n, ok := parseNoteKey(getStr(it, sk))
		if !ok {
			return nil, fmt.Errorf("a note has the sort key %.80q", getStr(it, sk))
		}
		if n.Data, err = getData(it); err != nil {
			return nil, fmt.Errorf("note %q can't be decompressed: %w", n.ID, err)
		}
		notes[i] = n
	}
	slices.SortFunc(notes, compareNotes)
	return notes, nil
}

// Settle implements [psych.Runs].
func (s *Store) Settle(ctx context.Context, key psych.RunKey, notes []psych.Note) error {
	err := s.check(ctx, key)
	if err == nil {
		seen := make(map[string]bool, len(notes))
		var keys []item
		for _, n := range notes {
			if k := noteKey(n); !seen[k] {
				seen[k] = true
				keys = append(keys, keyOf(runPart(key), k))
			}
		}
		err = s.deleteAll(ctx, keys)
	}
	if err != nil {
		return wrap("settle", key, err)
	}
	return nil
}
