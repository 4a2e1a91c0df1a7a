package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// A run is a row of the table runs.
type run struct {
	info      psych.RunInfo
	token     string    // of the Claim of the current epoch; "" when it was given back
	deletedAt time.Time // of a tombstone; zero: the Run lives
}

// mutable returns the columns that change while a Run lives, in the order of
// the UPDATE in change.
func (r *run) mutable() [7]any {
	h := &r.info
	return [...]any{h.Status, h.Epoch, h.Owner, nullable(h.Until), nullable(h.DueAt), h.Posted, r.token}
}

const runColumns = "tenant, run_id, scope, version, incarnation, request, created_at, expires_at, status, epoch, owner, until_at, due_at, posted, token, deleted_at"

// scan reads runColumns.
func (r *run) scan(scan func(...any) error) error {
	h := &r.info
	var scope, version, request []byte
	var created int64
	var expires, until, due, deleted sql.NullInt64
	err := scan(&h.Key.Tenant, &h.Key.RunID, &scope, &version, &h.Incarnation, &request, &created, &expires, &h.Status, &h.Epoch, &h.Owner, &until, &due, &h.Posted, &r.token, &deleted)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(scope, &h.Scope); err != nil {
		return fmt.Errorf("the scope of run %s: %w: %w: %w", h.Key, ErrDamaged, psych.ErrInvalid, err)
	}
	copy(h.Version[:], version)
	copy(h.Request[:], request)
	h.CreatedAt = time.UnixMicro(created).UTC()
	h.ExpiresAt, h.Until, h.DueAt, r.deletedAt = fromNullable(expires), fromNullable(until), fromNullable(due), fromNullable(deleted)
	return nil
}

func fromNullable(n sql.NullInt64) time.Time {
	if !n.Valid {
		return time.Time{}
	}
	return time.UnixMicro(n.Int64).UTC()
}

// load returns the row of key, or nil.
func load(ctx context.Context, t *statements, key psych.RunKey) (*run, error) {
	var r *run
	err := t.query(ctx, func(rows *sql.Rows) error {
		r = new(run)
		return r.scan(rows.Scan)
	}, "SELECT "+runColumns+" FROM runs WHERE tenant = ? AND run_id = ?", key.Tenant, key.RunID)
	return r, err
}

// live is load for what a tombstone hides.
func live(ctx context.Context, t *statements, key psych.RunKey) (*run, error) {
	r, err := load(ctx, t, key)
	if err == nil && (r == nil || !r.deletedAt.IsZero()) {
		err = psych.ErrNotFound
	}
	return r, err
}

// change calls f with the header of key and keeps what f changes of it, unless f
// fails. f may write more in the same transaction.
func (s *Store) change(ctx context.Context, key psych.RunKey, f func(ctx context.Context, t *statements, r *run) error) error {
	return s.write(ctx, func(ctx context.Context, t *statements) error {
		r, err := live(ctx, t, key)
		if err != nil {
			return err
		}
		before := r.mutable()
		if err := f(ctx, t, r); err != nil {
			return err
		}
		after := r.mutable()
		if after == before {
			return nil
		}
		_, err = t.exec(ctx, "UPDATE runs SET status = ?, epoch = ?, owner = ?, until_at = ?, due_at = ?, posted = ?, token = ? WHERE tenant = ? AND run_id = ?",
			append(after[:], key.Tenant, key.RunID)...)
		return err
	})
}

// CreateRun implements [psych.Runs].
func (s *Store) CreateRun(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error) {
	key := info.Key
	err := check(ctx, key)
	var scope []byte
	if err == nil {
		scope, err = json.Marshal(info.Scope)
	}
	if err != nil {
		return psych.RunInfo{}, false, wrap("create", key, err)
	}
	if info.Owner == "" {
		info.Until = time.Time{}
	}
	var kept *run
	var created bool
	err = s.write(ctx, func(ctx context.Context, t *statements) (err error) {
		created = false
		if kept, err = load(ctx, t, key); err != nil {
			return err
		}
		switch {
		case kept == nil:
			created = true
			_, err = t.exec(ctx, "INSERT INTO runs ("+runColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', NULL)",
				key.Tenant, key.RunID, string(scope), info.Version[:], info.Incarnation, info.Request[:], info.CreatedAt.UnixMicro(), nullable(info.ExpiresAt),
				info.Status, info.Epoch, info.Owner, nullable(info.Until), nullable(info.DueAt), info.Posted)
			if err == nil {
				kept, err = load(ctx, t, key)
			}
			return err
		case !kept.deletedAt.IsZero():
			return psych.ErrNotFound
		case kept.info.Request != info.Request:
			return fmt.Errorf("it exists for another request: %w", psych.ErrConflict)
		}
		return nil
	})
	if err != nil {
		return psych.RunInfo{}, false, wrap("create", key, err)
	}
	return kept.info, created, nil
}

// GetRun implements [psych.Runs].
func (s *Store) GetRun(ctx context.Context, key psych.RunKey) (psych.RunInfo, error) {
	if err := check(ctx, key); err != nil {
		return psych.RunInfo{}, wrap("get", key, err)
	}
	var r *run
	err := s.read(ctx, func(t *statements) (err error) {
		r, err = live(ctx, t, key)
		return err
	})
	if err != nil {
		return psych.RunInfo{}, wrap("get", key, err)
	}
	return r.info, nil
}

// Post implements [psych.Runs]. It is one transaction; a note whose Kind and ID
// wait already is kept as it was first posted.
func (s *Store) Post(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
	err := check(ctx, key)
	if err == nil {
		err = n.Check()
	}
	if err == nil && due.IsZero() {
		err = fmt.Errorf("note %q: due is zero: want a time: %w", n.ID, psych.ErrInvalid)
	}
	if err != nil {
		return wrap("post", key, err)
	}
	due = micro(due)
	full := false
	err = s.change(ctx, key, func(ctx context.Context, t *statements, r *run) error {
		var waiting int
		var waits bool
		err := t.one(ctx, []any{&waiting, &waits}, "SELECT count(*), ifnull(max(id = ?3 AND kind = ?4), 0) FROM notes WHERE tenant = ?1 AND run_id = ?2", key.Tenant, key.RunID, n.ID, string(n.Kind))
		if err != nil {
			return err
		}
		if r.info.DueAt.IsZero() || due.Before(r.info.DueAt) {
			r.info.DueAt = due
		}
		if full = !waits && waiting >= psych.MaxPending; full {
			return nil // the Run is made due all the same
		}
		r.info.Posted++
		if waits {
			return nil
		}
		_, err = t.exec(ctx, "INSERT INTO notes (tenant, run_id, time, id, kind, data) VALUES (?, ?, ?, ?, ?, ?)",
			key.Tenant, key.RunID, n.Time.UnixMicro(), n.ID, string(n.Kind), n.Data)
		return err
	})
	if err == nil && full {
		err = fmt.Errorf("note %q: %d notes wait: %w", n.ID, psych.MaxPending, psych.ErrInboxFull)
	}
	return wrap("post", key, err)
}

// Pending implements [psych.Runs].
func (s *Store) Pending(ctx context.Context, key psych.RunKey) ([]psych.Note, error) {
	if err := check(ctx, key); err != nil {
		return nil, wrap("pending", key, err)
	}
	var notes []psych.Note
	err := s.read(ctx, func(t *statements) error {
		notes = nil
		found := false
		err := t.query(ctx, func(rows *sql.Rows) error {
			found = true
			var id, kind sql.NullString // NULL without a note
			var micros sql.NullInt64
			var data []byte
			if err := rows.Scan(&micros, &id, &kind, &data); err != nil || !id.Valid {
				return err
			}
			notes = append(notes, psych.Note{ID: id.String, Kind: psych.Kind(kind.String), Time: time.UnixMicro(micros.Int64).UTC(), Data: data})
			return nil
		}, `SELECT n.time, n.id, n.kind, n.data
			FROM runs r LEFT JOIN notes n ON n.tenant = r.tenant AND n.run_id = r.run_id
			WHERE r.tenant = ? AND r.run_id = ? AND r.deleted_at IS NULL
			ORDER BY n.time, n.id, n.kind`, key.Tenant, key.RunID)
		if err == nil && !found {
			err = psych.ErrNotFound
		}
		return err
	})
	if err != nil {
		return nil, wrap("pending", key, err)
	}
	return notes, nil
}

// Settle implements [psych.Runs]. It is one transaction.
func (s *Store) Settle(ctx context.Context, key psych.RunKey, notes []psych.Note) error {
	err := check(ctx, key)
	if err != nil || len(notes) == 0 {
		return wrap("settle", key, err)
	}
	err = s.write(ctx, func(ctx context.Context, t *statements) error {
		for _, n := range notes {
			_, err := t.exec(ctx, "DELETE FROM notes WHERE tenant = ? AND run_id = ? AND time = ? AND id = ? AND kind = ?", key.Tenant, key.RunID, n.Time.UnixMicro(), n.ID, string(n.Kind))
			if err != nil {
				return err
			}
		}
		return nil
	})
	return wrap("settle", key, err)
}

// Claim implements [psych.Runs].
func (s *Store) Claim(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
	err := check(ctx, key)
	if err == nil {
		err = psych.CheckClaim(owner, token, ttl)
	}
	if err != nil {
		return psych.Lease{}, wrap("claim", key, err)
	}
	var l psych.Lease
	err = s.change(ctx, key, func(_ context.Context, _ *statements, r *run) error {
		h := &r.info
		if r.token != token {
			if h.Owner != "" && h.Until.After(now) {
				return fmt.Errorf("%q holds it until %v: %w", h.Owner, h.Until, psych.ErrLeaseHeld)
			}
			r.token = token
			h.Owner, h.Until = owner, micro(now.Add(ttl))
			h.Epoch++
		}
		l = psych.Lease{Key: key, Epoch: h.Epoch, Until: h.Until, Posted: h.Posted, Info: *h}
		return nil
	})
	if err != nil {
		return psych.Lease{}, wrap("claim", key, err)
	}
	return l, nil
}

// free takes the lease from its owner, without a trace of its token.
func (r *run) free() {
	r.info.Owner, r.info.Until, r.token = "", time.Time{}, ""
}

// Renew implements [psych.Runs].
func (s *Store) Renew(ctx context.Context, l psych.Lease, now time.Time, ttl time.Duration) (psych.Lease, error) {
	err := check(ctx, l.Key)
	if err == nil {
		err = psych.CheckTTL(ttl)
	}
	if err != nil {
		return psych.Lease{}, wrap("renew", l.Key, err)
	}
	err = s.change(ctx, l.Key, func(_ context.Context, _ *statements, r *run) error {
		h := &r.info
		if h.Epoch != l.Epoch || h.Owner == "" {
			return fmt.Errorf("epoch %d: the current one is %d, held by %q: %w", l.Epoch, h.Epoch, h.Owner, psych.ErrLeaseLost)
		}
		if until := micro(now.Add(ttl)); until.After(h.Until) {
			h.Until = until
		}
		l.Until, l.Posted = h.Until, h.Posted
		return nil
	})
	if err != nil {
		return psych.Lease{}, wrap("renew", l.Key, err)
	}
	return l, nil
}

// Release implements [psych.Runs].
func (s *Store) Release(ctx context.Context, l psych.Lease, dueAt time.Time, status string) error {
	if err := check(ctx, l.Key); err != nil {
		return wrap("release", l.Key, err)
	}
	return wrap("release", l.Key, s.change(ctx, l.Key, func(_ context.Context, _ *statements, r *run) error {
		switch h := &r.info; {
		case h.Epoch != l.Epoch:
			return fmt.Errorf("epoch %d: the current one is %d: %w", l.Epoch, h.Epoch, psych.ErrLeaseLost)
		case h.Owner == "":
			return nil
		case h.Posted != l.Posted:
			return fmt.Errorf("%d posts since the last look: %w", h.Posted-l.Posted, psych.ErrConflict)
		}
		r.free()
		r.info.DueAt, r.info.Status = dueAt, status
		return nil
	}))
}

// Defer implements [psych.Runs].
func (s *Store) Defer(ctx context.Context, info psych.RunInfo, now, to time.Time) error {
	err := check(ctx, info.Key)
	if err == nil && !to.After(now) {
		err = fmt.Errorf("to %v: want a time after %v: %w", to, now, psych.ErrInvalid)
	}
	if err != nil {
		return wrap("defer", info.Key, err)
	}
	return wrap("defer", info.Key, s.change(ctx, info.Key, func(_ context.Context, _ *statements, r *run) error {
		h := &r.info
		if h.Epoch != info.Epoch || h.Owner != info.Owner || !h.Until.Equal(micro(info.Until)) || !h.DueAt.Equal(micro(info.DueAt)) || h.Posted != info.Posted {
			return fmt.Errorf("the header has changed: %w", psych.ErrConflict)
		}
		expired := h.Owner != "" && !h.Until.After(now)
		if !expired && (h.DueAt.IsZero() || h.DueAt.After(now)) {
			return fmt.Errorf("neither due nor with an expired lease at %v: %w", now, psych.ErrConflict)
		}
		if expired {
			r.free()
		}
		h.DueAt = to
		return nil
	}))
}

// DeleteRun implements [psych.Runs]. It is one transaction.
func (s *Store) DeleteRun(ctx context.Context, key psych.RunKey, now time.Time) error {
	if err := check(ctx, key); err != nil {
		return wrap("delete", key, err)
	}
	return wrap("delete", key, s.write(ctx, func(ctx context.Context, t *statements) error {
		r, err := load(ctx, t, key)
		if err == nil {
			err = empty(ctx, t, key)
		}
		if err != nil || r != nil && !r.deletedAt.IsZero() {
			return err
		}
		// Nothing of the header stays.
		_, err = t.exec(ctx, "REPLACE INTO runs (tenant, run_id, deleted_at, due_at) VALUES (?, ?, ?, ?)",
			key.Tenant, key.RunID, now.UnixMicro(), now.Add(psych.MaxLease).UnixMicro())
		return err
	}))
}

// empty removes log and inbox.
func empty(ctx context.Context, t *statements, key psych.RunKey) error {
	_, err := t.exec(ctx, "DELETE FROM appends WHERE tenant = ? AND run_id = ?", key.Tenant, key.RunID)
	if err == nil {
		_, err = t.exec(ctx, "DELETE FROM notes WHERE tenant = ? AND run_id = ?", key.Tenant, key.RunID)
	}
	return err
}

// PurgeRun implements [psych.Runs]. The last purge removes the tombstone.
func (s *Store) PurgeRun(ctx context.Context, key psych.RunKey, now time.Time) error {
	if err := check(ctx, key); err != nil {
		return wrap("purge", key, err)
	}
	return wrap("purge", key, s.write(ctx, func(ctx context.Context, t *statements) error {
		r, err := load(ctx, t, key)
		if err != nil || r == nil || r.deletedAt.IsZero() {
			return err
		}
		if err := empty(ctx, t, key); err != nil {
			return err
		}
		last := r.deletedAt.Add(psych.TombstoneLife)
		switch {
		case !now.Before(last):
			_, err = t.exec(ctx, "DELETE FROM runs WHERE tenant = ? AND run_id = ?", key.Tenant, key.RunID)
		case !now.Before(r.info.DueAt):
			_, err = t.exec(ctx, "UPDATE runs SET due_at = ? WHERE tenant = ? AND run_id = ?", last.UnixMicro(), key.Tenant, key.RunID)
		}
		return err
	}))
}
