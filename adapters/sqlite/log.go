package sqlite

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// pageBytes bounds what one Read returns: it stops at the first boundary at or
// past so many bytes.
const pageBytes = 1 << 20

// Append implements [psych.Log]. It is one statement, so a transaction of its
// own, that takes the write lock before it looks at the head.
func (s *Store) Append(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
	err := check(ctx, key)
	if err == nil {
		err = b.Check(after)
	}
	if err != nil {
		return psych.Pos{}, wrap("append", key, err)
	}
	last := b.Entries[len(b.Entries)-1].Seq
	packed := pack(b.Entries)
	err = s.locked(ctx, func(f *openFile) error {
		ctx, t := context.WithoutCancel(ctx), &f.writes
		n, err := t.exec(ctx, `INSERT INTO appends (tenant, run_id, last, first, token, entries)
			SELECT ?1, ?2, ?3, ?4, ?5, ?6
			WHERE ?4 - 1 = ifnull((SELECT max(last) FROM appends WHERE tenant = ?1 AND run_id = ?2), 0)`,
			// A seq past those of SQLite turns negative, as no head is.
			key.Tenant, key.RunID, int64(last), int64(after.Seq+1), b.Token, packed)
		if err != nil || n == 1 {
			return err
		}
		last, err = repeated(ctx, t, key, after.Seq, b.Token)
		return err
	})
	if err != nil {
		return psych.Pos{}, wrap("append", key, err)
	}
	return psych.Pos{Seq: last}, nil
}

// repeated returns the boundary of the append just behind seq if it has token.
func repeated(ctx context.Context, t *statements, key psych.RunKey, seq uint64, token string) (last uint64, err error) {
	var first, head uint64
	var is string
	err = t.one(ctx, []any{&first, &last, &is, &head}, `SELECT first, last, token, (SELECT max(last) FROM appends WHERE tenant = ?1 AND run_id = ?2)
		FROM appends WHERE tenant = ?1 AND run_id = ?2 AND last > ?3 ORDER BY last LIMIT 1`,
		key.Tenant, key.RunID, int64(seq))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, fmt.Errorf("behind seq %d: the head is before it: %w", seq, psych.ErrConflict)
	case err == nil && (first != seq+1 || is != token):
		return 0, fmt.Errorf("behind seq %d: the head is %d: %w", seq, head, psych.ErrConflict)
	}
	return last, err
}

// Read implements [psych.Log]. A log in which an append is missing, or one that
// can't be decoded, is a *psych.CorruptionError with the seq.
func (s *Store) Read(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
	err := check(ctx, key)
	if err == nil {
		err = psych.CheckLimit(limit)
	}
	if err != nil {
		return psych.Page{}, wrap("read", key, err)
	}
	var page psych.Page
	err = s.read(ctx, func(r *statements) error {
		page = psych.Page{Next: after}
		found, bytes := false, 0
		err := r.query(ctx, func(rows *sql.Rows) error {
			found = true
			var first, last, head sql.NullInt64 // NULL without an append
			var packed []byte
			if err := rows.Scan(&first, &last, &packed, &head); err != nil || !last.Valid {
				return err
			}
			if err := add(&page, key, uint64(first.Int64), uint64(last.Int64), packed); err != nil {
				return err
			}
			page.More = last.Int64 < head.Int64
			if bytes += len(packed); len(page.Entries) >= limit || bytes >= pageBytes {
				return errStop
			}
			return nil
		}, `SELECT a.first, a.last, a.entries, (SELECT max(last) FROM appends WHERE tenant = ?1 AND run_id = ?2)
			FROM runs r LEFT JOIN appends a ON a.tenant = r.tenant AND a.run_id = r.run_id AND a.last > ?3
			WHERE r.tenant = ?1 AND r.run_id = ?2 AND r.deleted_at IS NULL
			ORDER BY a.last`,
			key.Tenant, key.RunID, int64(min(after.Seq, math.MaxInt64)))
		if err == nil && !found {
			err = psych.ErrNotFound
		}
		return err
	})
	if err != nil {
		return psych.Page{}, wrap("read", key, err)
	}
	return page, nil
}

// add adds to page what an append has behind page.Next.
func add(page *psych.Page, key psych.RunKey, first, last uint64, packed []byte) error {
	next := page.Next.Seq + 1
	// Only the first append of a page may begin before it.
	if first > next || first < next && len(page.Entries) > 0 {
		return &psych.CorruptionError{Run: key, Reason: psych.NonConsecutiveSeq, Seq: next, Detail: fmt.Sprintf("the append with seqs %d to %d follows seq %d", first, last, next-1)}
	}
	entries, ok := unpack(packed, first, last)
	if !ok {
		return &psych.CorruptionError{Run: key, Reason: psych.UndecodableRecord, Seq: first, Detail: fmt.Sprintf("the append with seqs %d to %d can't be unpacked", first, last)}
	}
	page.Entries = append(page.Entries, entries[next-first:]...)
	page.Next = psych.Pos{Seq: last}
	return nil
}

// Head implements [psych.Log].
func (s *Store) Head(ctx context.Context, key psych.RunKey) (psych.Pos, error) {
	if err := check(ctx, key); err != nil {
		return psych.Pos{}, wrap("head", key, err)
	}
	var head uint64
	err := s.read(ctx, func(r *statements) error {
		return found(r.one(ctx, []any{&head}, `SELECT ifnull((SELECT max(last) FROM appends WHERE tenant = ?1 AND run_id = ?2), 0)
			FROM runs WHERE tenant = ?1 AND run_id = ?2 AND deleted_at IS NULL`, key.Tenant, key.RunID))
	})
	return psych.Pos{Seq: head}, wrap("head", key, err)
}

// found makes psych.ErrNotFound of the driver's word for it.
func found(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return psych.ErrNotFound
	}
	return err
}

// An append is packed as a byte for the format, then, for each entry, three
// varints (the length of its kind, its time in microseconds, the length of its
// data), the kind and the data. Its seqs are columns.
const packFormat = 1

func pack(entries []psych.Entry) []byte {
	size := 1
	for _, e := range entries {
		size += 3*binary.MaxVarintLen64 + len(e.Kind) + len(e.Data)
	}
	b := append(make([]byte, 0, size), packFormat)
	for _, e := range entries {
		b = binary.AppendUvarint(b, uint64(len(e.Kind)))
		b = binary.AppendVarint(b, e.Time.UnixMicro())
		b = binary.AppendUvarint(b, uint64(len(e.Data)))
		b = append(b, e.Kind...)
		b = append(b, e.Data...)
	}
	return b
}

// unpack returns entries whose data lies in b, or false if b is not what pack
// makes of entries with these seqs.
func unpack(b []byte, first, last uint64) ([]psych.Entry, bool) {
	if len(b) == 0 || b[0] != packFormat || first < 1 || last < first || last-first >= uint64(len(b)) {
		return nil, false
	}
	b = b[1:]
	entries := make([]psych.Entry, 0, last-first+1)
	for seq := first; seq <= last; seq++ {
		kind, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, false
		}
		b = b[n:]
		micros, n := binary.Varint(b)
		if n <= 0 {
			return nil, false
		}
		b = b[n:]
		data, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, false
		}
		b = b[n:]
		if kind > uint64(len(b)) || data > uint64(len(b))-kind {
			return nil, false
		}
		end := kind + data
		entries = append(entries, psych.Entry{Seq: seq, Kind: psych.Kind(b[:kind]), Time: time.UnixMicro(micros).UTC(), Data: b[kind:end:end]})
		b = b[end:]
	}
	return entries, len(b) == 0
}
