package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"sync"
)

// statements runs SQL on one connection or on a pool of them, and prepares each
// text once. Of a pool it may be used concurrently.
type statements struct {
	on interface {
		PrepareContext(context.Context, string) (*sql.Stmt, error)
	}
	prepared sync.Map // of texts to *sql.Stmt
}

// close is for before the connection closes, which SQLite leaves open for as
// long as it has statements.
func (s *statements) close() error {
	var errs []error
	s.prepared.Range(func(_, stmt any) bool {
		errs = append(errs, stmt.(*sql.Stmt).Close())
		return true
	})
	return errors.Join(errs...)
}

func (s *statements) prepare(ctx context.Context, text string) (*sql.Stmt, error) {
	if stmt, ok := s.prepared.Load(text); ok {
		return stmt.(*sql.Stmt), nil
	}
	stmt, err := s.on.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	if kept, loaded := s.prepared.LoadOrStore(text, stmt); loaded {
		stmt.Close()
		return kept.(*sql.Stmt), nil
	}
	return stmt, nil
}

// exec returns the number of rows that changed.
func (s *statements) exec(ctx context.Context, text string, args ...any) (int64, error) {
	stmt, err := s.prepare(ctx, text)
	if err != nil {
		return 0, err
	}
	res, err := stmt.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// errStop ends a query early, without an error.
var errStop = errors.New("enough rows")

// query calls f for each row, until there are no more or f fails.
func (s *statements) query(ctx context.Context, f func(rows *sql.Rows) error, text string, args ...any) error {
	stmt, err := s.prepare(ctx, text)
	if err != nil {
		return err
	}
	rows, err := stmt.QueryContext(ctx, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err == errStop {
			return nil
		} else if err != nil {
			return err
		}
	}
	return rows.Err()
}

// one scans the one row that there is into dest; without one it returns
// sql.ErrNoRows.
func (s *statements) one(ctx context.Context, dest []any, text string, args ...any) error {
	stmt, err := s.prepare(ctx, text)
	if err != nil {
		return err
	}
	return stmt.QueryRowContext(ctx, args...).Scan(dest...)
}
