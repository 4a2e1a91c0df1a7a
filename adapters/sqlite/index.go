package sqlite

import (
	"context"
	"database/sql"
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// maxPage bounds a page of a list, whatever the limit.
const maxPage = 1000

// A place is where a list goes on: behind the thing with this time and key. A
// cursor is a place behind a letter for its list, so that one list's cursor is
// not taken for another's.
type place struct {
	at   int64 // microseconds
	a, b string
}

const (
	dueCursor  = "d"
	refsCursor = "r"
	listCursor = "l"
)

func (p place) cursor(list string) string {
	enc := base64.RawURLEncoding.EncodeToString
	return list + strconv.FormatInt(p.at, 10) + "." + enc([]byte(p.a)) + "." + enc([]byte(p.b))
}

// parsePlace returns the place of cursor, or first for "".
func parsePlace(list, cursor string, first place) (place, error) {
	if cursor == "" {
		return first, nil
	}
	if parts := strings.Split(strings.TrimPrefix(cursor, list), "."); len(parts) == 3 {
		at, err1 := strconv.ParseInt(parts[0], 10, 64)
		a, err2 := base64.RawURLEncoding.DecodeString(parts[1])
		b, err3 := base64.RawURLEncoding.DecodeString(parts[2])
		p := place{at, string(a), string(b)}
		if err1 == nil && err2 == nil && err3 == nil && p.cursor(list) == cursor {
			return p, nil
		}
	}
	return place{}, fmt.Errorf("cursor %.80q: want one that this list returned: %w", cursor, psych.ErrInvalid)
}

// due lists what text selects: what is due at now, by time and key, behind the
// place of cursor.
func (s *Store) due(ctx context.Context, list, text string, now time.Time, cursor string, limit int) (places []place, next string, err error) {
	err = ctx.Err()
	if err == nil {
		err = psych.CheckLimit(limit)
	}
	from := place{at: math.MinInt64}
	if err == nil {
		from, err = parsePlace(list, cursor, from)
	}
	if err != nil {
		return nil, "", err
	}
	limit = min(limit, maxPage)
	err = s.read(ctx, func(r *statements) error {
		places = nil
		return r.query(ctx, func(rows *sql.Rows) error {
			var p place
			err := rows.Scan(&p.at, &p.a, &p.b)
			places = append(places, p)
			return err
		}, text, now.UnixMicro(), from.at, from.a, from.b, limit+1)
	})
	if err != nil {
		return nil, "", noneYet(err)
	}
	if len(places) > limit {
		places = places[:limit]
		next = places[limit-1].cursor(list)
	}
	return places, next, nil
}

// Due implements [psych.Index]. What is due longest comes first.
func (s *Store) Due(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
	places, next, err := s.due(ctx, dueCursor, `SELECT wake_at, tenant, run_id FROM runs
		WHERE wake_at <= ?1 AND (wake_at, tenant, run_id) > (?2, ?3, ?4)
		ORDER BY wake_at, tenant, run_id LIMIT ?5`, now, cursor, limit)
	if err != nil {
		return nil, "", fmt.Errorf("sqlite: due: %w", err)
	}
	keys := make([]psych.RunKey, len(places))
	for i, p := range places {
		keys[i] = psych.RunKey{Tenant: p.a, RunID: p.b}
	}
	return keys, next, nil
}

// DueRefs implements [psych.Index]. What is due longest comes first.
func (s *Store) DueRefs(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RefKey, string, error) {
	places, next, err := s.due(ctx, refsCursor, `SELECT after_at, tenant, name FROM refs
		WHERE after_at <= ?1 AND (after_at, tenant, name) > (?2, ?3, ?4)
		ORDER BY after_at, tenant, name LIMIT ?5`, now, cursor, limit)
	if err != nil {
		return nil, "", fmt.Errorf("sqlite: due refs: %w", err)
	}
	keys := make([]psych.RefKey, len(places))
	for i, p := range places {
		keys[i] = psych.RefKey{Tenant: p.a, Name: p.b}
	}
	return keys, next, nil
}

// ListRuns implements [psych.Index].
func (s *Store) ListRuns(ctx context.Context, tenant, cursor string, limit int) ([]psych.RunInfo, string, error) {
	err := checkTenant(ctx, tenant)
	if err == nil {
		err = psych.CheckLimit(limit)
	}
	from := place{at: math.MaxInt64}
	if err == nil {
		from, err = parsePlace(listCursor, cursor, from)
	}
	var runs []psych.RunInfo
	if err == nil {
		limit = min(limit, maxPage)
		err = noneYet(s.read(ctx, func(t *statements) error {
			runs = nil
			return t.query(ctx, func(rows *sql.Rows) error {
				var r run
				err := r.scan(rows.Scan)
				runs = append(runs, r.info)
				return err
			}, "SELECT "+runColumns+` FROM runs
				WHERE tenant = ?1 AND deleted_at IS NULL AND created_at <= ?2 AND (created_at < ?2 OR run_id > ?3)
				ORDER BY created_at DESC, run_id LIMIT ?4`, tenant, from.at, from.a, limit+1)
		}))
	}
	if err != nil {
		return nil, "", fmt.Errorf("sqlite: list %q: %w", tenant, err)
	}
	next := ""
	if len(runs) > limit {
		runs = runs[:limit]
		last := &runs[limit-1]
		next = place{at: last.CreatedAt.UnixMicro(), a: last.Key.RunID}.cursor(listCursor)
	}
	return runs, next, nil
}
