package memory

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// checkRef is check for the methods that take a ref.
func checkRef(ctx context.Context, key psych.RefKey) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return key.Check()
}

// GetRefs implements [psych.Refs].
func (s *Store) GetRefs(ctx context.Context, tenant string, names []string) (map[string]psych.Ref, error) {
	err := checkTenant(ctx, tenant)
	for _, name := range names {
		if err == nil {
			err = (psych.RefKey{Tenant: tenant, Name: name}).Check()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("memory: get refs %q: %w", tenant, err)
	}
	refs := make(map[string]psych.Ref, len(names))
	s.mu.RLock()
	defer s.mu.RUnlock()
	if t := s.tenants[tenant]; t != nil {
		for _, name := range names {
			if r, ok := t.refs[name]; ok {
				refs[name] = r
			}
		}
	}
	return refs, nil
}

// SwapRef implements [psych.Refs].
func (s *Store) SwapRef(ctx context.Context, tenant, name string, old, next psych.Ref) error {
	key := psych.RefKey{Tenant: tenant, Name: name}
	err := checkRef(ctx, key)
	if err == nil {
		err = next.CheckSwap(old)
	}
	if err != nil {
		return fmt.Errorf("memory: swap ref %s: %w", key, err)
	}
	next.After = micro(next.After)
	s.mu.Lock()
	defer s.mu.Unlock()
	refs := s.tenant(tenant).refs
	switch is := refs[name]; {
	case is.Equal(old):
		refs[name] = next
	case !is.Equal(next):
		return fmt.Errorf("memory: swap ref %s: seq %d was named, the current one is %d: %w", key, old.Seq, is.Seq, psych.ErrConflict)
	}
	return nil
}

// DueRefs implements [psych.Index].
func (s *Store) DueRefs(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RefKey, string, error) {
	from, err := parseRefCursor(cursor)
	if ctx.Err() != nil {
		err = ctx.Err()
	} else if err == nil {
		err = psych.CheckLimit(limit)
	}
	if err != nil {
		return nil, "", fmt.Errorf("memory: due refs: %w", err)
	}
	var keys []psych.RefKey
	s.mu.RLock()
	for tenant, t := range s.tenants {
		for name, r := range t.refs {
			if key := (psych.RefKey{Tenant: tenant, Name: name}); passed(r.After, now) && (cursor == "" || compareRefs(key, from) > 0) {
				keys = append(keys, key)
			}
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(keys, compareRefs)
	if len(keys) <= limit {
		return keys, "", nil
	}
	keys = slices.Clip(keys[:limit])
	return keys, formatRefCursor(keys[limit-1]), nil
}

func compareRefs(a, b psych.RefKey) int {
	return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Name, b.Name))
}

func formatRefCursor(key psych.RefKey) string {
	return refCursor + base64.RawURLEncoding.EncodeToString([]byte(key.Tenant)) + "." + base64.RawURLEncoding.EncodeToString([]byte(key.Name))
}

func parseRefCursor(cursor string) (psych.RefKey, error) {
	if cursor == "" {
		return psych.RefKey{}, nil
	}
	if s, ok := strings.CutPrefix(cursor, refCursor); ok {
		t, n, _ := strings.Cut(s, ".")
		tenant, err := base64.RawURLEncoding.Strict().DecodeString(t)
		if err == nil {
			name, err := base64.RawURLEncoding.Strict().DecodeString(n)
			if key := (psych.RefKey{Tenant: string(tenant), Name: string(name)}); err == nil && key.Check() == nil && formatRefCursor(key) == cursor {
				return key, nil
			}
		}
	}
	return psych.RefKey{}, badCursor(cursor)
}
