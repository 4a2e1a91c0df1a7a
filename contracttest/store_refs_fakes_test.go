package contracttest_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/psych-go/psych-go/psych"
)

func refFakes() []storeFake {
	// reads changes what GetRefs returns.
	reads := func(f *storeFaults, change func(r psych.Ref) psych.Ref) {
		f.getRefs = func(ctx context.Context, tenant string, names []string) (map[string]psych.Ref, error) {
			refs, err := f.Store.GetRefs(ctx, tenant, names)
			for name, r := range refs {
				refs[name] = change(r)
			}
			return refs, err
		}
	}
	// current is the ref as it is.
	current := func(ctx context.Context, f *storeFaults, tenant, name string) psych.Ref {
		refs, _ := f.Store.GetRefs(ctx, tenant, []string{name})
		return refs[name]
	}
	// compares swaps whenever same says that the ref is old.
	compares := func(f *storeFaults, same func(is, old psych.Ref) bool) {
		f.swapRef = func(ctx context.Context, tenant, name string, old, next psych.Ref) error {
			err := f.Store.SwapRef(ctx, tenant, name, old, next)
			if is := current(ctx, f, tenant, name); errors.Is(err, psych.ErrConflict) && same(is, old) {
				next.Seq = is.Seq + 1
				return f.Store.SwapRef(ctx, tenant, name, is, next)
			}
			return err
		}
	}
	names := func(f *storeFaults, fold func(string) string) {
		f.swapRef = func(ctx context.Context, tenant, name string, old, next psych.Ref) error {
			return f.Store.SwapRef(ctx, tenant, fold(name), old, next)
		}
		f.getRefs = func(ctx context.Context, tenant string, names []string) (map[string]psych.Ref, error) {
			out := make(map[string]psych.Ref)
			for _, name := range names {
				refs, err := f.Store.GetRefs(ctx, tenant, []string{fold(name)})
				if err != nil {
					return nil, err
				}
				if r, ok := refs[fold(name)]; ok {
					out[name] = r
				}
			}
			return out, nil
		}
	}
	lists := func(f *storeFaults, change func(ctx context.Context, keys []psych.RefKey, now time.Time) []psych.RefKey) {
		f.dueRefs = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RefKey, string, error) {
			keys, next, err := f.Store.DueRefs(ctx, now, cursor, limit)
			return change(ctx, keys, now), next, err
		}
	}
	return []storeFake{
		{"SwapRefReadBack", "loses the document", "after SwapRef: the ref", func(f *storeFaults) {
			reads(f, func(r psych.Ref) psych.Ref { r.Doc = psych.Digest{}; return r })
		}},
		{"SwapRefReadBack", "keeps seconds", "after SwapRef: the ref", func(f *storeFaults) {
			reads(f, func(r psych.Ref) psych.Ref { r.After = r.After.Truncate(time.Second); return r })
		}},
		{"SwapRefReadBack", "takes a zero digest for none", "zero digest", func(f *storeFaults) {
			f.getRefs = func(ctx context.Context, tenant string, names []string) (map[string]psych.Ref, error) {
				refs, err := f.Store.GetRefs(ctx, tenant, names)
				for name, r := range refs {
					if r.Doc == (psych.Digest{}) {
						delete(refs, name)
					}
				}
				return refs, err
			}
		}},
		{"SwapRefReadBack", "reads what was", "after SwapRef: the ref", func(f *storeFaults) {
			var last map[string]psych.Ref
			f.getRefs = func(ctx context.Context, tenant string, names []string) (map[string]psych.Ref, error) {
				old := last
				refs, err := f.Store.GetRefs(ctx, tenant, names)
				last = refs
				return old, err
			}
		}},
		{"SwapRefStale", "swallows conflicts", "SwapRef of a ref that is not there: got error <nil>", func(f *storeFaults) { f.silent("SwapRef", psych.ErrConflict) }},
		{"SwapRefStale", "says something else", "want one that matches", func(f *storeFaults) {
			f.err = func(method string, err error) error {
				if method == "SwapRef" && errors.Is(err, psych.ErrConflict) {
					return psych.ErrNotFound
				}
				return err
			}
		}},
		{"SwapRefStale", "compares the document alone", "got error <nil>", func(f *storeFaults) {
			compares(f, func(is, old psych.Ref) bool { return is.Doc == old.Doc && is.Seq > 0 })
		}},
		{"SwapRefStale", "compares the seq alone", "got error <nil>", func(f *storeFaults) {
			compares(f, func(is, old psych.Ref) bool { return is.Seq == old.Seq })
		}},
		{"SwapRefStale", "creates over what is there", "SwapRef of none: got error <nil>", func(f *storeFaults) {
			compares(f, func(is, old psych.Ref) bool { return old.Seq == 0 })
		}},
		{"SwapRefSeq", "counts by itself", "for one with seq 0: got error <nil>", func(f *storeFaults) {
			f.swapRef = func(ctx context.Context, tenant, name string, old, next psych.Ref) error {
				next.Seq = old.Seq + 1
				return f.Store.SwapRef(ctx, tenant, name, old, next)
			}
		}},
		{"SwapRefSeq", "takes a ref without a seq for none", "without a seq: got error <nil>", func(f *storeFaults) {
			f.swapRef = func(ctx context.Context, tenant, name string, old, next psych.Ref) error {
				if old.Seq == 0 {
					old = psych.Ref{}
				}
				return f.Store.SwapRef(ctx, tenant, name, old, next)
			}
		}},
		{"SwapRefRepeated", "does not know its own", "conflict", func(f *storeFaults) {
			f.swapRef = func(ctx context.Context, tenant, name string, old, next psych.Ref) error {
				if !current(ctx, f, tenant, name).Equal(old) {
					return psych.ErrConflict
				}
				return f.Store.SwapRef(ctx, tenant, name, old, next)
			}
		}},
		{"SwapRefRepeated", "remembers what it did", "repeated after the next one: got error <nil>", func(f *storeFaults) {
			done := make(map[[2]psych.Ref]bool)
			f.swapRef = func(ctx context.Context, tenant, name string, old, next psych.Ref) error {
				if done[[2]psych.Ref{old, next}] {
					return nil
				}
				done[[2]psych.Ref{old, next}] = true
				return f.Store.SwapRef(ctx, tenant, name, old, next)
			}
		}},
		{"SwapRefContended", "lets all win", "of 16 concurrent calls won", func(f *storeFaults) { f.silent("SwapRef", psych.ErrConflict) }},
		{"SwapRefContended", "reads, then writes", "of 16 concurrent calls won", func(f *storeFaults) {
			f.swapRef = func(ctx context.Context, tenant, name string, old, next psych.Ref) error {
				if !current(ctx, f, tenant, name).Equal(old) {
					return psych.ErrConflict
				}
				time.Sleep(time.Millisecond)
				_ = f.Store.SwapRef(ctx, tenant, name, old, next)
				return nil
			}
		}},
		{"SwapRefContended", "is locked while another call is in it", "one that did not win", func(f *storeFaults) {
			var mu sync.Mutex
			f.swapRef = func(ctx context.Context, tenant, name string, old, next psych.Ref) error {
				if !mu.TryLock() {
					return psych.ErrUnavailable
				}
				defer mu.Unlock()
				time.Sleep(time.Millisecond)
				return f.Store.SwapRef(ctx, tenant, name, old, next)
			}
		}},
		{"GetRefsMany", "reads one batch", "GetRefs of 240 names", func(f *storeFaults) {
			f.getRefs = func(ctx context.Context, tenant string, names []string) (map[string]psych.Ref, error) {
				return f.Store.GetRefs(ctx, tenant, names[:min(len(names), 100)])
			}
		}},
		{"GetRefsMany", "has refs that are not there", "or others", func(f *storeFaults) {
			f.getRefs = func(ctx context.Context, tenant string, names []string) (map[string]psych.Ref, error) {
				refs, err := f.Store.GetRefs(ctx, tenant, names)
				for _, name := range names {
					ref := refs[name]
					refs[name] = ref
				}
				return refs, err
			}
		}},
		{"GetRefsMany", "refuses a name that is asked for twice", "duplicates", func(f *storeFaults) {
			f.getRefs = func(ctx context.Context, tenant string, names []string) (map[string]psych.Ref, error) {
				if sorted := slices.Sorted(slices.Values(names)); len(slices.Compact(sorted)) != len(names) {
					return nil, errors.New("duplicates")
				}
				return f.Store.GetRefs(ctx, tenant, names)
			}
		}},
		{"RefsApart", "folds case", "conflict", func(f *storeFaults) { names(f, strings.ToLower) }},
		{"RefsApart", "trims space", "conflict", func(f *storeFaults) { names(f, strings.TrimSpace) }},
		{"RefsApart", "ends a name at a NUL", "conflict", func(f *storeFaults) {
			names(f, func(s string) string { s, _, _ = strings.Cut(s, "\x00"); return s })
		}},
		{"RefsApart", "cuts long names", "conflict", func(f *storeFaults) {
			names(f, func(s string) string { return s[:min(len(s), 500)] })
		}},
		{"RefsApart", "has one tenant", "conflict", func(f *storeFaults) { f.tenant = func(method, tenant string) string { return "all" } }},
		{"RefKeysInvalid", "takes any name", "SwapRef of ", func(f *storeFaults) {
			names(f, func(s string) string {
				if (psych.RefKey{Tenant: "t", Name: s}).Check() != nil {
					return "legal"
				}
				return s
			})
		}},
		{"RefKeysInvalid", "looks for any name", "GetRefs of ", func(f *storeFaults) {
			f.getRefs = func(ctx context.Context, tenant string, names []string) (map[string]psych.Ref, error) {
				return f.Store.GetRefs(ctx, tenant, names[:min(len(names), 1)])
			}
		}},
		{"DueRefsTime", "lists what was due before now", "the ref is due at its time", func(f *storeFaults) {
			f.dueRefs = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RefKey, string, error) {
				return f.Store.DueRefs(ctx, now.Add(-time.Microsecond), cursor, limit)
			}
		}},
		{"DueRefsTime", "lists by the second", "the ref is not due before", func(f *storeFaults) {
			f.dueRefs = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RefKey, string, error) {
				return f.Store.DueRefs(ctx, now.Add(time.Second-1).Truncate(time.Second), cursor, limit)
			}
		}},
		{"DueRefsTime", "lists what it once listed", "after a swap to a later time, the ref is not due before", func(f *storeFaults) {
			seen := make(map[psych.RefKey]bool)
			lists(f, func(ctx context.Context, keys []psych.RefKey, _ time.Time) []psych.RefKey {
				for _, key := range keys {
					seen[key] = true
				}
				for key := range seen {
					if current(ctx, f, key.Tenant, key.Name).Seq > 1 && !slices.Contains(keys, key) {
						keys = append(keys, key)
					}
				}
				return keys
			})
		}},
		{"DueRefsTime", "takes no time for the first", "nor one that never had one", func(f *storeFaults) {
			seen := make(map[psych.RefKey]bool)
			f.swapRef = func(ctx context.Context, tenant, name string, old, next psych.Ref) error {
				seen[psych.RefKey{Tenant: tenant, Name: name}] = next.After.IsZero()
				return f.Store.SwapRef(ctx, tenant, name, old, next)
			}
			lists(f, func(_ context.Context, keys []psych.RefKey, _ time.Time) []psych.RefKey {
				for key, never := range seen {
					if never {
						keys = append(keys, key)
					}
				}
				return keys
			})
		}},
		{"DueRefsPaging", "ignores the limit", "more than the limit 1", func(f *storeFaults) {
			f.dueRefs = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RefKey, string, error) {
				return f.Store.DueRefs(ctx, now, cursor, 1000)
			}
		}},
		{"DueRefsPaging", "has one page", "pages of 1 list each ref once", func(f *storeFaults) {
			f.dueRefs = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RefKey, string, error) {
				keys, _, err := f.Store.DueRefs(ctx, now, cursor, limit)
				return keys, "", err
			}
		}},
		{"DueRefsPaging", "begins again", "does not advance", func(f *storeFaults) {
			f.dueRefs = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RefKey, string, error) {
				return f.Store.DueRefs(ctx, now, "", limit)
			}
		}},
		{"DueRefsPaging", "lists one tenant", "pages of 1 list each ref once", func(f *storeFaults) {
			var tenant string
			lists(f, func(_ context.Context, keys []psych.RefKey, _ time.Time) []psych.RefKey {
				return slices.DeleteFunc(keys, func(key psych.RefKey) bool {
					tenant = cmp.Or(tenant, key.Tenant)
					return key.Tenant != tenant
				})
			})
		}},
		{"DueRefsInvalid", "begins anew with a strange cursor", `the cursor "nonsense": got error <nil>`, func(f *storeFaults) {
			f.dueRefs = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RefKey, string, error) {
				keys, next, err := f.Store.DueRefs(ctx, now, cursor, limit)
				if errors.Is(err, psych.ErrInvalid) {
					return f.Store.DueRefs(ctx, now, "", limit)
				}
				return keys, next, err
			}
		}},
		{"DueRefsInvalid", "takes another list's cursor", "DueRefs with a cursor of Due: got error <nil>", func(f *storeFaults) {
			f.dueRefs = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RefKey, string, error) {
				if strings.HasPrefix(cursor, "d") {
					cursor = ""
				}
				return f.Store.DueRefs(ctx, now, cursor, limit)
			}
		}},
		{"DueRefsInvalid", "gives its cursor to Due", "Due with a cursor of DueRefs: got error <nil>", func(f *storeFaults) {
			f.due = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
				if strings.HasPrefix(cursor, "r") {
					cursor = ""
				}
				return f.Store.Due(ctx, now, cursor, limit)
			}
		}},
		{"DueRefsInvalid", "takes any limit", "DueRefs with limit 0: got error <nil>", func(f *storeFaults) {
			f.dueRefs = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RefKey, string, error) {
				return f.Store.DueRefs(ctx, now, cursor, max(1, limit))
			}
		}},
	}
}
