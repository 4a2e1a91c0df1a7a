package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"

	"github.com/psych-go/psych-go/psych"
)

// PutDoc implements [psych.Docs].
func (s *Store) PutDoc(ctx context.Context, tenant string, d psych.Digest, data []byte) error {
	err := checkTenant(ctx, tenant)
	if err == nil {
		if sum := psych.Digest(sha256.Sum256(data)); sum != d {
			err = fmt.Errorf("the data has digest %s: %w", sum, psych.ErrInvalid)
		}
	}
	if err == nil {
		err = s.locked(ctx, func(f *openFile) error {
			_, err := f.writes.exec(context.WithoutCancel(ctx), "INSERT INTO docs (tenant, digest, data) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", tenant, d[:], data)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("sqlite: put doc %q/%s: %w", tenant, d, err)
	}
	return nil
}

// GetDoc implements [psych.Docs].
func (s *Store) GetDoc(ctx context.Context, tenant string, d psych.Digest) ([]byte, error) {
	err := checkTenant(ctx, tenant)
	var data []byte
	if err == nil {
		err = s.read(ctx, func(r *statements) error {
			return found(r.one(ctx, []any{&data}, "SELECT data FROM docs WHERE tenant = ? AND digest = ?", tenant, d[:]))
		})
	}
	if err != nil {
		return nil, fmt.Errorf("sqlite: get doc %q/%s: %w", tenant, d, err)
	}
	return data, nil
}

// GetRefs implements [psych.Refs].
func (s *Store) GetRefs(ctx context.Context, tenant string, names []string) (map[string]psych.Ref, error) {
	err := checkTenant(ctx, tenant)
	for _, name := range names {
		if err == nil {
			err = (psych.RefKey{Tenant: tenant, Name: name}).Check()
		}
	}
	refs := make(map[string]psych.Ref, len(names))
	if err == nil {
		err = noneYet(s.read(ctx, func(r *statements) error {
			clear(refs)
			for _, name := range names {
				ref, err := getRef(ctx, r, tenant, name)
				if err != nil {
					return err
				}
				if ref.Seq > 0 {
					refs[name] = ref
				}
			}
			return nil
		}))
	}
	if err != nil {
		return nil, fmt.Errorf("sqlite: get refs %q: %w", tenant, err)
	}
	return refs, nil
}

// getRef returns the zero Ref if there is none.
func getRef(ctx context.Context, t *statements, tenant, name string) (psych.Ref, error) {
	var ref psych.Ref
	var doc []byte
	var after sql.NullInt64
	err := t.one(ctx, []any{&doc, &ref.Seq, &after}, "SELECT doc, seq, after_at FROM refs WHERE tenant = ? AND name = ?", tenant, name)
	if errors.Is(err, sql.ErrNoRows) {
		return psych.Ref{}, nil
	}
	copy(ref.Doc[:], doc)
	ref.After = fromNullable(after)
	return ref, err
}

// SwapRef implements [psych.Refs].
func (s *Store) SwapRef(ctx context.Context, tenant, name string, old, next psych.Ref) error {
	key := psych.RefKey{Tenant: tenant, Name: name}
	err := ctx.Err()
	if err == nil {
		err = key.Check()
	}
	if err == nil {
		err = next.CheckSwap(old)
	}
	if err != nil {
		return wrap("swap ref", key, err)
	}
	return wrap("swap ref", key, s.write(ctx, func(ctx context.Context, t *statements) error {
		is, err := getRef(ctx, t, tenant, name)
		if err != nil {
			return err
		}
		switch {
		case is.Equal(old):
			_, err = t.exec(ctx, "REPLACE INTO refs (tenant, name, doc, seq, after_at) VALUES (?, ?, ?, ?, ?)", tenant, name, next.Doc[:], next.Seq, nullable(next.After))
		case !is.Equal(next):
			err = fmt.Errorf("seq %d was named, the current one is %d: %w", old.Seq, is.Seq, psych.ErrConflict)
		}
		return err
	}))
}
