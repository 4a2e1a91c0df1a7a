package contracttest_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/contracttest"
	"github.com/psych-go/psych-go/psych"
)

// The rules hold for a sound store, with two handles and with reopening.
func TestStoreRulesPass(t *testing.T) {
	contracttest.TestStore(t, func(t *testing.T) *contracttest.Fixture[psych.Store] {
		s := memory.New(nil)
		open := func(context.Context) (psych.Store, error) { return &storeFaults{Store: s}, nil }
		return &contracttest.Fixture[psych.Store]{Port: s, Open: open, Reopen: open}
	}, nil)
}

// An index may lag, as long as it catches up.
func TestStoreRulesPassLag(t *testing.T) {
	for _, r := range contracttest.StoreRules() {
		synctest.Test(t, func(t *testing.T) {
			f := &storeFaults{Store: memory.New(nil)}
			// Each answer is given three times, however old it is by then.
			type answer struct {
				list any
				next string
			}
			var mu sync.Mutex
			stale, asked := make(map[string]answer), make(map[string]int)
			lag := func(question string, list any, next string) (any, string) {
				mu.Lock()
				defer mu.Unlock()
				if asked[question]%3 == 0 {
					stale[question] = answer{list, next}
				}
				asked[question]++
				return stale[question].list, stale[question].next
			}
			f.due = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
				keys, next, err := f.Store.Due(ctx, now, cursor, limit)
				if err != nil {
					return nil, "", err
				}
				old, next := lag(fmt.Sprint("due", now, cursor, limit), keys, next)
				return old.([]psych.RunKey), next, nil
			}
			f.list = func(ctx context.Context, tenant, cursor string, limit int) ([]psych.RunInfo, string, error) {
				runs, next, err := f.Store.ListRuns(ctx, tenant, cursor, limit)
				if err != nil {
					return nil, "", err
				}
				old, next := lag(fmt.Sprint("list", tenant, cursor, limit), runs, next)
				return old.([]psych.RunInfo), next, nil
			}
			f.dueRefs = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RefKey, string, error) {
				keys, next, err := f.Store.DueRefs(ctx, now, cursor, limit)
				if err != nil {
					return nil, "", err
				}
				old, next := lag(fmt.Sprint("refs", now, cursor, limit), keys, next)
				return old.([]psych.RefKey), next, nil
			}
			err := r.Check(t.Context(), &contracttest.Fixture[psych.Store]{Port: f, Reopen: func(context.Context) (psych.Store, error) { return f, nil }})
			if err != nil {
				t.Errorf("%s fails on a store whose index lags: %v", r.Name, err)
			}
		})
	}
}

// Each rule must catch the stores that break it, for the right reason: a rule
// without one checks nothing that we know of.
func TestStoreRulesCatch(t *testing.T) {
	fakes := make(map[string][]storeFake)
	for _, f := range storeFakes() {
		fakes[f.rule] = append(fakes[f.rule], f)
	}
	for _, r := range contracttest.StoreRules() {
		if len(fakes[r.Name]) == 0 {
			t.Errorf("rule %s has no fake that it must catch", r.Name)
		}
		for _, f := range fakes[r.Name] {
			t.Run(r.Name+"/"+f.what, func(t *testing.T) {
				// In a bubble, where what polls or waits takes no time.
				synctest.Test(t, func(t *testing.T) {
					s := &storeFaults{Store: memory.New(nil)}
					f.breaks(s)
					err := r.Check(t.Context(), &contracttest.Fixture[psych.Store]{
						Port:   s,
						Reopen: func(context.Context) (psych.Store, error) { return memory.New(nil), nil },
					})
					if err == nil {
						t.Errorf("a store that %s was not caught: %s", f.what, r.Promise)
					} else if !strings.Contains(err.Error(), f.says) {
						t.Errorf("a store that %s was caught, but not for that:\n%v\nwant %q", f.what, err, f.says)
					}
				})
			})
		}
		delete(fakes, r.Name)
	}
	for name := range fakes {
		t.Errorf("there are fakes for %s, which is no rule", name)
	}
}

// A storeFake breaks a store so that rule must catch it, with an error that
// says what went wrong.
type storeFake struct {
	rule, what, says string
	breaks           func(f *storeFaults)
}

func storeFakes() []storeFake {
	return slices.Concat(everyMethodFakes(), logFakes(), headerFakes(), inboxFakes(), leaseFakes(), tombstoneFakes(), indexFakes(), docFakes(), refFakes(), reopenFakes())
}

// reopenFakes keep nothing: the fixture of the test opens an empty store.
func reopenFakes() []storeFake {
	forgets := func(*storeFaults) {}
	return []storeFake{
		{"LogReopened", "forgets", "not found", forgets},
		{"RunReopened", "forgets", "not found", forgets},
		{"DeleteRunReopened", "forgets", "CreateRun after reopening: got error <nil>", forgets},
		{"IndexReopened", "forgets", "after reopening, it is due", forgets},
		{"DocReopened", "forgets", "not found", forgets},
		{"RefReopened", "forgets", "after reopening: the ref", forgets},
	}
}

// everyMethodFakes break one method after the other in the same way.
func everyMethodFakes() []storeFake {
	var fakes []storeFake
	add := func(rule, what, says string, breaks func(f *storeFaults)) {
		fakes = append(fakes, storeFake{rule, what, says, breaks})
	}
	hidden := []string{"GetRun", "Read", "Head", "CreateRun", "Post", "Pending", "Claim", "Renew", "Release", "Defer"}
	for _, broken := range storeMethods {
		add("ContextEnded", "ignores the context in "+broken, broken+" with a context", func(f *storeFaults) {
			f.ctx = func(method string, ctx context.Context) context.Context {
				if method == broken {
					return context.WithoutCancel(ctx)
				}
				return ctx
			}
		})
		add("ContextEnded", "hides why "+broken+" failed", broken+" with a context", func(f *storeFaults) {
			f.err = func(method string, err error) error {
				if method == broken && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
					return psych.ErrUnavailable
				}
				return err
			}
		})
		if broken != "Due" && broken != "DueRefs" {
			add("KeysInvalid", "takes any key in "+broken, broken+" of ", func(f *storeFaults) {
				f.key = func(method string, key psych.RunKey) psych.RunKey {
					if method == broken && key.Check() != nil {
						return psych.RunKey{Tenant: "tenant", RunID: legalID}
					}
					return key
				}
			})
		}
		if slices.Contains(hidden, broken) {
			add("DeleteRunHides", "does not say not found in "+broken, broken, func(f *storeFaults) {
				f.err = func(method string, err error) error {
					if method == broken && errors.Is(err, psych.ErrNotFound) {
						return nil
					}
					return err
				}
			})
		}
	}
	for what, fold := range map[string]func(string) string{
		"folds case":              strings.ToLower,
		"folds to upper case":     strings.ToUpper,
		"cleans paths":            func(s string) string { return path.Clean("/" + s)[1:] + "." },
		"ends a tenant at a NUL":  func(s string) string { s, _, _ = strings.Cut(s+"x", "\x00"); return s },
		"trims space":             func(s string) string { return strings.TrimSpace(s) + "." },
		"cuts a long tenant":      func(s string) string { return s[:min(len(s), 100)] },
		"makes / and \\ the same": func(s string) string { return strings.ReplaceAll(s, `\`, "/") },
		"unescapes percent signs": func(s string) string {
			if u, err := url.PathUnescape(s); err == nil {
				return u
			}
			return s
		},
		"escapes only some": func(s string) string { return strings.NewReplacer("/", "%2F", "\x00", "%00").Replace(s) },
	} {
		add("TenantsApart", what, "it exists for another request", func(f *storeFaults) {
			f.tenant = func(_, tenant string) string { return fold(tenant) }
			f.tenantOut(map[string]string{})
		})
	}
	add("TenantsApart", "mixes documents of all tenants", "GetDoc by tenant", func(f *storeFaults) {
		f.tenant = func(method, tenant string) string {
			if strings.HasSuffix(method, "Doc") {
				return "all"
			}
			return tenant
		}
	})
	add("Concurrency", "is locked while another call is in it", "database is locked", func(f *storeFaults) {
		var mu sync.Mutex
		f.claim = func(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
			if !mu.TryLock() {
				return psych.Lease{}, errors.New("database is locked")
			}
			defer mu.Unlock()
			time.Sleep(time.Millisecond)
			return f.Store.Claim(ctx, key, owner, token, now, ttl)
		}
	})
	add("Concurrency", "loses the posts of others", "Posted of the shared Run", func(f *storeFaults) {
		f.get = func(ctx context.Context, key psych.RunKey) (psych.RunInfo, error) {
			info, err := f.Store.GetRun(ctx, key)
			info.Posted = min(info.Posted, 7)
			return info, err
		}
	})
	return fakes
}

// tenantOut gives a Run back under the tenant under which it was asked for, so
// that a fake whose tenants collide is not found out by its keys alone.
func (f *storeFaults) tenantOut(asked map[string]string) {
	fold := f.tenant
	f.tenant = func(method, tenant string) string {
		folded := fold(method, tenant)
		if folded == "" || len(folded) > 128 {
			folded = "short"
		}
		asked[folded] = tenant
		return folded
	}
	back := func(key psych.RunKey) psych.RunKey {
		if tenant, ok := asked[key.Tenant]; ok {
			key.Tenant = tenant
		}
		return key
	}
	f.create = func(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error) {
		got, created, err := f.Store.CreateRun(ctx, info)
		got.Key = back(got.Key)
		return got, created, err
	}
	f.get = func(ctx context.Context, key psych.RunKey) (psych.RunInfo, error) {
		info, err := f.Store.GetRun(ctx, key)
		info.Key = back(info.Key)
		return info, err
	}
}

func logFakes() []storeFake {
	// onConflict is what a store does instead of saying that an append conflicts.
	onConflict := func(f *storeFaults, do func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch, err error) (psych.Pos, error)) {
		f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
			pos, err := f.Store.Append(ctx, key, after, b)
			if errors.Is(err, psych.ErrConflict) {
				return do(ctx, key, after, b, err)
			}
			return pos, err
		}
	}
	// atHead appends b at the head, wherever it belongs.
	atHead := func(ctx context.Context, f *storeFaults, key psych.RunKey, b psych.Batch) (psych.Pos, error) {
		head, err := f.Store.Head(ctx, key)
		if err != nil {
			return head, err
		}
		b.Entries = slices.Clone(b.Entries)
		for i := range b.Entries {
			b.Entries[i].Seq = head.Seq + 1 + uint64(i)
		}
		return f.Store.Append(ctx, key, head, b)
	}
	swallows := func(f *storeFaults) {
		onConflict(f, func(_ context.Context, _ psych.RunKey, _ psych.Pos, b psych.Batch, _ error) (psych.Pos, error) {
			return psych.Pos{Seq: b.Entries[len(b.Entries)-1].Seq}, nil
		})
	}
	says := func(f *storeFaults, other error) {
		onConflict(f, func(context.Context, psych.RunKey, psych.Pos, psych.Batch, error) (psych.Pos, error) {
			return psych.Pos{}, other
		})
	}
	tokens := func(f *storeFaults, change func(string) string) {
		f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
			b.Token = change(b.Token)
			return f.Store.Append(ctx, key, after, b)
		}
	}
	n := 0
	unique := func(string) string { n++; return fmt.Sprint("token ", n) }
	return []storeFake{
		{"AppendReadBack", "loses the last entry", "entries, want 3", func(f *storeFaults) {
			f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
				last := b.Entries[len(b.Entries)-1].Seq
				b.Entries = b.Entries[:max(1, len(b.Entries)-1)]
				_, err := f.Store.Append(ctx, key, after, b)
				return psych.Pos{Seq: last}, err
			}
		}},
		{"AppendReadBack", "knows the kinds of today alone", `want "a_kind_of_a_newer_writer"`, func(f *storeFaults) {
			f.entries(func(e *psych.Entry) {
				if strings.HasPrefix(string(e.Kind), "a_") {
					e.Kind = "unknown"
				}
			})
		}},
		{"AppendReadBack", "returns the wrong boundary", "returned seq 1, want", func(f *storeFaults) {
			f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
				_, err := f.Store.Append(ctx, key, after, b)
				return psych.Pos{Seq: b.Entries[0].Seq}, err
			}
		}},
		{"AppendStale", "swallows conflicts", "Append behind seq 0 of a log with head 6: got error <nil>", swallows},
		{"AppendStale", "says something else", "want one that matches", func(f *storeFaults) { says(f, psych.ErrInvalid) }},
		{"AppendStale", "writes all the same", "after stale appends: the log is not", func(f *storeFaults) {
			onConflict(f, func(ctx context.Context, key psych.RunKey, _ psych.Pos, b psych.Batch, err error) (psych.Pos, error) {
				_, _ = atHead(ctx, f, key, b)
				return psych.Pos{}, err
			})
		}},
		{"AppendAhead", "leaves a gap", "Append behind seq 4 of an empty log: got error <nil>", func(f *storeFaults) {
			onConflict(f, func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch, err error) (psych.Pos, error) {
				if head, _ := f.Store.Head(ctx, key); head.Seq < after.Seq {
					return psych.Pos{Seq: b.Entries[len(b.Entries)-1].Seq}, nil
				}
				return psych.Pos{}, err
			})
		}},
		{"AppendRepeatedToken", "forgets tokens", "conflict", func(f *storeFaults) { tokens(f, unique) }},
		{"AppendRepeatedToken", "writes a repetition again", "the repetition returned", func(f *storeFaults) {
			f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
				b.Token = unique("")
				pos, err := f.Store.Append(ctx, key, after, b)
				if errors.Is(err, psych.ErrConflict) {
					_, err = atHead(ctx, f, key, b)
					return psych.Pos{Seq: after.Seq + uint64(len(b.Entries)), Mark: "again"}, err
				}
				return pos, err
			}
		}},
		{"AppendRepeatedTokenLater", "keeps the last token alone", "conflict", func(f *storeFaults) {
			f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
				head, _ := f.Store.Head(ctx, key)
				pos, err := f.Store.Append(ctx, key, after, b)
				if err == nil && pos.Seq < head.Seq {
					return psych.Pos{}, psych.ErrConflict
				}
				return pos, err
			}
		}},
		{"AppendTokenElsewhere", "looks for a token in the whole log", "with the token of the append behind seq 0: got error <nil>", func(f *storeFaults) {
			seen := make(map[string]psych.Pos)
			f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
				if pos, ok := seen[b.Token]; ok {
					return pos, nil
				}
				pos, err := f.Store.Append(ctx, key, after, b)
				if err == nil {
					seen[b.Token] = pos
				}
				return pos, err
			}
		}},
		{"AppendContended", "lets all win", "of 16 concurrent calls won", swallows},
		{"AppendContended", "gives losers the wrong error", "one that did not win", func(f *storeFaults) { says(f, psych.ErrUnavailable) }},
		{"AppendContended", "lets none win", "none of 16", func(f *storeFaults) {
			f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
				return psych.Pos{}, psych.ErrConflict
			}
		}},
		{"AppendContended", "answers the loser with the winner's boundary", "the log is not what was appended", func(f *storeFaults) {
			var mu sync.Mutex
			won := false
			f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
				mu.Lock()
				defer mu.Unlock()
				pos, err := f.Store.Append(ctx, key, after, b)
				switch {
				case err == nil:
					return psych.Pos{}, psych.ErrConflict
				case !won:
					won = true
					return pos, nil
				}
				return pos, err
			}
		}},
		{"AppendRepeatedTokenContended", "refuses a token in flight", "repeated concurrently", func(f *storeFaults) {
			var flying sync.Map
			f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
				if _, there := flying.LoadOrStore(b.Token, true); there {
					return psych.Pos{}, psych.ErrConflict
				}
				defer flying.Delete(b.Token)
				time.Sleep(time.Millisecond)
				return f.Store.Append(ctx, key, after, b)
			}
		}},
		{"AppendInsideAppend", "takes any seq for a boundary", "inside an append: got error <nil>", func(f *storeFaults) {
			bounds := f.boundaries()
			onConflict(f, func(_ context.Context, key psych.RunKey, after psych.Pos, b psych.Batch, err error) (psych.Pos, error) {
				if !slices.Contains(bounds[key], after.Seq) {
					return psych.Pos{Seq: b.Entries[len(b.Entries)-1].Seq}, nil
				}
				return psych.Pos{}, err
			})
			truth := f.append
			f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
				pos, err := truth(ctx, key, after, b)
				if err == nil {
					bounds[key] = append(bounds[key], pos.Seq)
				}
				return pos, err
			}
		}},
		{"AppendBareSeq", "wants a Mark", "Append behind seq 3: ", func(f *storeFaults) {
			f.marked(func(after psych.Pos, b psych.Batch) (psych.Batch, error) { return b, psych.ErrInvalid })
		}},
		{"AppendBareSeq", "does not compare tokens behind a bare seq", "Append behind seq 3: ", func(f *storeFaults) {
			f.marked(func(after psych.Pos, b psych.Batch) (psych.Batch, error) { b.Token = unique(""); return b, nil })
		}},
		{"AppendLargest", "takes less", "too large", func(f *storeFaults) { f.limited(psych.MaxAppendBytes-1, 64) }},
		{"AppendLargest", "needs more room an entry", "too large", func(f *storeFaults) { f.limited(psych.MaxAppendBytes+200, 128) }},
		{"AppendTooLarge", "splits what is too large", "one byte more than MaxAppendBytes: got error <nil>", func(f *storeFaults) {
			f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
				pos, err := f.Store.Append(ctx, key, after, b)
				if errors.Is(err, psych.ErrTooLarge) {
					half := len(b.Entries) / 2
					if pos, err = f.Store.Append(ctx, key, after, psych.Batch{Token: "1" + b.Token, Entries: b.Entries[:half]}); err == nil {
						pos, err = f.Store.Append(ctx, key, pos, psych.Batch{Token: "2" + b.Token, Entries: b.Entries[half:]})
					}
				}
				return pos, err
			}
		}},
		{"AppendTooLarge", "calls it illegal", "want one that matches", func(f *storeFaults) {
			f.err = func(_ string, err error) error {
				if errors.Is(err, psych.ErrTooLarge) {
					return psych.ErrInvalid
				}
				return err
			}
		}},
		{"AppendGap", "numbers entries itself", "got error <nil>", func(f *storeFaults) {
			f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
				b.Entries = slices.Clone(b.Entries)
				for i := range b.Entries {
					b.Entries[i].Seq = after.Seq + 1 + uint64(i)
				}
				return f.Store.Append(ctx, key, after, b)
			}
		}},
		{"AppendTokenLength", "makes tokens fit", "with a token of 0 bytes: got error <nil>", func(f *storeFaults) {
			tokens(f, func(s string) string { return ("x" + s)[:min(64, len(s)+1)] })
		}},
		{"AppendTokenLength", "refuses the longest", "Append behind seq 1", func(f *storeFaults) {
			tokens(f, func(s string) string { return s + strings.Repeat("x", len(s)/64) })
		}},
		{"AppendOwnership", "keeps the caller's data", "the log is not what was appended", func(f *storeFaults) {
			kept := make(map[psych.RunKey][]psych.Entry)
			f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
				kept[key] = append(kept[key], b.Entries...)
				return f.Store.Append(ctx, key, after, b)
			}
			f.pages(func(key psych.RunKey, after psych.Pos, page psych.Page) psych.Page {
				for i, e := range page.Entries {
					page.Entries[i].Data = kept[key][e.Seq-1].Data
				}
				return page
			})
		}},
		{"ReadOwnership", "returns its own data", "the log is not what was appended", func(f *storeFaults) {
			kept := make(map[string][]byte)
			f.pages(func(key psych.RunKey, after psych.Pos, page psych.Page) psych.Page {
				for i, e := range page.Entries {
					at := fmt.Sprint(key, e.Seq)
					if kept[at] == nil {
						kept[at] = e.Data
					}
					page.Entries[i].Data = kept[at]
				}
				return page
			})
		}},
		{"AppendWithoutHeader", "wants a header", "not found", func(f *storeFaults) {
			f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
				if _, err := f.Store.GetRun(ctx, key); err != nil {
					return psych.Pos{}, err
				}
				return f.Store.Append(ctx, key, after, b)
			}
		}},
		{"AppendWithoutHeader", "reads without a header", "Read without a header", func(f *storeFaults) { f.silent("Read", psych.ErrNotFound) }},
		{"AppendWithoutHeader", "has a head without a header", "Head without a header", func(f *storeFaults) { f.silent("Head", psych.ErrNotFound) }},
		{"AppendAnyBytes", "repairs text", "has data", func(f *storeFaults) { f.data(func(b []byte) []byte { return bytes.ToValidUTF8(b, []byte("?")) }) }},
		{"AppendAnyBytes", "ends at a NUL", "has data", func(f *storeFaults) {
			f.data(func(b []byte) []byte { b, _, _ = bytes.Cut(b, []byte{0}); return b })
		}},
		{"AppendAnyBytes", "makes no data null", "has data", func(f *storeFaults) {
			f.data(func(b []byte) []byte {
				if len(b) == 0 {
					return []byte("null")
				}
				return b
			})
		}},
		{"ReadTime", "keeps milliseconds", "got time", func(f *storeFaults) {
			f.entries(func(e *psych.Entry) { e.Time = e.Time.Truncate(time.Millisecond) })
		}},
		{"ReadTime", "loses zones", "got time", func(f *storeFaults) {
			f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
				b.Entries = slices.Clone(b.Entries)
				for i, e := range b.Entries {
					_, offset := e.Time.Zone()
					b.Entries[i].Time = e.Time.Add(time.Duration(offset) * time.Second)
				}
				return f.Store.Append(ctx, key, after, b)
			}
		}},
		{"ReadFromMiddle", "begins at the next append", "got seq 6 where 2 follows", func(f *storeFaults) {
			bounds := f.boundaries()
			f.read = func(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
				for _, b := range bounds[key] {
					if b >= after.Seq && after.Seq > 0 {
						after = psych.Pos{Seq: b}
						break
					}
				}
				return f.Store.Read(ctx, key, after, limit)
			}
		}},
		{"ReadFromMiddle", "begins with the whole append", "got seq 1 where 2 follows", func(f *storeFaults) {
			bounds := f.boundaries()
			f.read = func(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
				var start psych.Pos
				for _, b := range bounds[key] {
					if b <= after.Seq {
						start.Seq = b
					}
				}
				return f.Store.Read(ctx, key, start, limit)
			}
		}},
		{"ReadLimit", "ignores the limit", "it goes on to seq", func(f *storeFaults) {
			f.read = func(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
				return f.Store.Read(ctx, key, after, max(limit, 1000))
			}
		}},
		{"ReadLimit", "stops inside an append", "no boundary", func(f *storeFaults) {
			f.read = func(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
				page, err := f.Store.Read(ctx, key, after, limit)
				if len(page.Entries) > limit {
					page.Entries, page.More = page.Entries[:limit], true
					page.Next.Seq = page.Entries[limit-1].Seq
				}
				return page, err
			}
		}},
		{"ReadLimit", "says that there is always more", "More is true", func(f *storeFaults) {
			f.pages(func(_ psych.RunKey, _ psych.Pos, page psych.Page) psych.Page {
				page.More = len(page.Entries) > 0
				return page
			})
		}},
		{"ReadLimitInvalid", "takes any limit", "Read with limit 0: got error <nil>", func(f *storeFaults) {
			f.read = func(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
				return f.Store.Read(ctx, key, after, max(1, limit))
			}
		}},
		{"ReadNext", "returns positions that Append refuses", "Append behind seq 6", func(f *storeFaults) {
			f.pages(func(_ psych.RunKey, after psych.Pos, page psych.Page) psych.Page {
				if len(page.Entries) > 0 {
					page.Next.Mark = "not a boundary"
				}
				return page
			})
			f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
				if after.Mark != "" {
					return psych.Pos{}, psych.ErrConflict
				}
				return f.Store.Append(ctx, key, after, b)
			}
		}},
		{"ReadNext", "goes on past an entry", "entry 0 has seq 8, want 7", func(f *storeFaults) {
			f.read = func(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
				if after.Seq > 0 {
					after.Seq++
				}
				return f.Store.Read(ctx, key, after, limit)
			}
		}},
		{"ReadAcrossPages", "ends at the backend's page", "entries, want 36", func(f *storeFaults) {
			f.pages(func(_ psych.RunKey, _ psych.Pos, page psych.Page) psych.Page {
				size := 0
				for _, e := range page.Entries {
					size += len(e.Data)
				}
				page.More = page.More && size < 1<<20
				return page
			})
		}},
		{"ReadLongLog", "orders seqs as text", "where", func(f *storeFaults) {
			f.pages(func(_ psych.RunKey, _ psych.Pos, page psych.Page) psych.Page {
				slices.SortFunc(page.Entries, func(a, b psych.Entry) int { return strings.Compare(fmt.Sprint(a.Seq), fmt.Sprint(b.Seq)) })
				return page
			})
		}},
		{"ReadBehindHead", "has an error behind the head", "Read behind seq", func(f *storeFaults) {
			f.read = func(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
				page, err := f.Store.Read(ctx, key, after, limit)
				if err == nil && len(page.Entries) == 0 {
					err = psych.ErrNotFound
				}
				return page, err
			}
		}},
		{"ReadBehindHead", "goes back to the head", "want none, Next equal to after", func(f *storeFaults) {
			f.read = func(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
				page, err := f.Store.Read(ctx, key, after, limit)
				if err == nil && len(page.Entries) == 0 {
					page.Next, err = f.Store.Head(ctx, key)
				}
				return page, err
			}
		}},
		{"ReadMissing", "has an empty log without a header", "got error <nil>", func(f *storeFaults) { f.silent("Read", psych.ErrNotFound) }},
		{"ReadConsistent", "reads from a replica", "Read just after the Append", func(f *storeFaults) {
			f.afterAppend(func(fresh *bool) {
				f.read = func(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
					if *fresh {
						*fresh = false
						return psych.Page{Next: after}, nil
					}
					return f.Store.Read(ctx, key, after, limit)
				}
			})
		}},
		{"ReadConsistent", "has its head from a replica", "Head just after an Append", func(f *storeFaults) {
			f.afterAppend(func(fresh *bool) {
				f.head = func(ctx context.Context, key psych.RunKey) (psych.Pos, error) {
					if *fresh {
						*fresh = false
						return psych.Pos{}, nil
					}
					return f.Store.Head(ctx, key)
				}
			})
		}},
		{"HeadEmpty", "has no head of an empty log", "not found", func(f *storeFaults) {
			f.head = func(ctx context.Context, key psych.RunKey) (psych.Pos, error) {
				pos, err := f.Store.Head(ctx, key)
				if err == nil && pos.Seq == 0 {
					err = psych.ErrNotFound
				}
				return pos, err
			}
		}},
		{"HeadEmpty", "marks the start", "want the zero Pos", func(f *storeFaults) {
			f.head = func(ctx context.Context, key psych.RunKey) (psych.Pos, error) {
				pos, err := f.Store.Head(ctx, key)
				pos.Mark = "start"
				return pos, err
			}
		}},
		{"HeadLast", "returns the first boundary", "Head is", func(f *storeFaults) {
			f.head = func(ctx context.Context, key psych.RunKey) (psych.Pos, error) {
				page, err := f.Store.Read(ctx, key, psych.Pos{}, 1)
				return page.Next, err
			}
		}},
		{"HeadMissing", "has a head without a header", "got error <nil>", func(f *storeFaults) { f.silent("Head", psych.ErrNotFound) }},
		{"LogsApart", "has one log for all tenants", "conflict", func(f *storeFaults) {
			first := make(map[string]string)
			f.key = func(method string, key psych.RunKey) psych.RunKey {
				if method == "Append" || method == "Read" || method == "Head" {
					if first[key.RunID] == "" {
						first[key.RunID] = key.Tenant
					}
					key.Tenant = first[key.RunID]
				}
				return key
			}
		}},
	}
}

// entries changes entries that are read.
func (f *storeFaults) entries(change func(e *psych.Entry)) {
	f.pages(func(_ psych.RunKey, _ psych.Pos, page psych.Page) psych.Page {
		for i := range page.Entries {
			change(&page.Entries[i])
		}
		return page
	})
}

// data changes the data of entries that are read.
func (f *storeFaults) data(change func(b []byte) []byte) {
	f.entries(func(e *psych.Entry) { e.Data = change(e.Data) })
}

// pages changes pages that are read.
func (f *storeFaults) pages(change func(key psych.RunKey, after psych.Pos, page psych.Page) psych.Page) {
	f.read = func(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
		page, err := f.Store.Read(ctx, key, after, limit)
		if err != nil {
			return page, err
		}
		return change(key, after, page), nil
	}
}

// silent makes a method return no error where it should return target.
func (f *storeFaults) silent(broken string, target error) {
	f.err = func(method string, err error) error {
		if method == broken && errors.Is(err, target) {
			return nil
		}
		return err
	}
}

// boundaries records where appends end.
func (f *storeFaults) boundaries() map[psych.RunKey][]uint64 {
	bounds := make(map[psych.RunKey][]uint64)
	f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
		pos, err := f.Store.Append(ctx, key, after, b)
		if err == nil {
			bounds[key] = append(bounds[key], pos.Seq)
		}
		return pos, err
	}
	return bounds
}

// afterAppend tells whether nothing was read since the last append.
func (f *storeFaults) afterAppend(use func(fresh *bool)) {
	fresh := false
	f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
		fresh = true
		return f.Store.Append(ctx, key, after, b)
	}
	use(&fresh)
}

// marked gives positions Marks, and does something else where one is missing.
func (f *storeFaults) marked(bare func(after psych.Pos, b psych.Batch) (psych.Batch, error)) {
	f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
		if after.Seq > 0 && after.Mark == "" {
			var err error
			if b, err = bare(after, b); err != nil {
				return psych.Pos{}, err
			}
		}
		pos, err := f.Store.Append(ctx, key, after, b)
		pos.Mark = "mark"
		return pos, err
	}
}

// limited gives appends another limit.
func (f *storeFaults) limited(limit, overhead int) {
	f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
		size := 0
		for _, e := range b.Entries {
			size += len(e.Data) + overhead
		}
		if size > limit {
			return psych.Pos{}, psych.ErrTooLarge
		}
		return f.Store.Append(ctx, key, after, b)
	}
}

// headers changes headers that GetRun reads.
func (f *storeFaults) headers(change func(info *psych.RunInfo)) {
	f.get = func(ctx context.Context, key psych.RunKey) (psych.RunInfo, error) {
		info, err := f.Store.GetRun(ctx, key)
		if err == nil {
			change(&info)
		}
		return info, err
	}
}

func headerFakes() []storeFake {
	return []storeFake{
		{"CreateRunReadBack", "keeps no labels", "Scope is", func(f *storeFaults) {
			f.headers(func(i *psych.RunInfo) { i.Scope.Labels = nil })
		}},
		{"CreateRunReadBack", "keeps times to the second", "CreatedAt is", func(f *storeFaults) {
			f.headers(func(i *psych.RunInfo) { i.CreatedAt = i.CreatedAt.Truncate(time.Second) })
		}},
		{"CreateRunReadBack", "begins with nothing due", "DueAt is", func(f *storeFaults) {
			f.create = func(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error) {
				due := info.DueAt
				info.DueAt = time.Time{}
				got, created, err := f.Store.CreateRun(ctx, info)
				got.DueAt = due
				return got, created, err
			}
		}},
		{"CreateRunReadBack", "makes a zero time 1970", "ExpiresAt is 1970", func(f *storeFaults) {
			f.headers(func(i *psych.RunInfo) {
				if i.ExpiresAt.IsZero() {
					i.ExpiresAt = time.Unix(0, 0)
				}
			})
		}},
		{"CreateRunTwice", "returns what it was given", "returned another header", func(f *storeFaults) {
			f.create = func(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error) {
				_, created, err := f.Store.CreateRun(ctx, info)
				return info, created, err
			}
		}},
		{"CreateRunTwice", "says created", "created is true", func(f *storeFaults) {
			f.create = func(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error) {
				got, _, err := f.Store.CreateRun(ctx, info)
				return got, err == nil, err
			}
		}},
		{"CreateRunTwice", "calls it a conflict", "CreateRun, the second time", func(f *storeFaults) {
			f.create = func(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error) {
				got, created, err := f.Store.CreateRun(ctx, info)
				if err == nil && !created {
					err = psych.ErrConflict
				}
				return got, created, err
			}
		}},
		{"CreateRunConflict", "takes any request for the same", "got error <nil>", func(f *storeFaults) { f.silent("CreateRun", psych.ErrConflict) }},
		{"CreateRunContended", "lets all create", "created is true for 16", func(f *storeFaults) {
			f.create = func(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error) {
				got, _, err := f.Store.CreateRun(ctx, info)
				return got, true, err
			}
		}},
		{"CreateRunContended", "lets a loser create", "the caller that created", func(f *storeFaults) {
			var lost atomic.Bool
			f.create = func(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error) {
				got, created, err := f.Store.CreateRun(ctx, info)
				return got, !created && lost.CompareAndSwap(false, true), err
			}
		}},
		{"CreateRunContended", "returns each its own", "another header", func(f *storeFaults) {
			f.create = func(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error) {
				_, created, err := f.Store.CreateRun(ctx, info)
				return info, created, err
			}
		}},
		{"CreateRunOwnership", "keeps the caller's labels", "a label that the caller changed", func(f *storeFaults) {
			var labels map[string]string
			f.create = func(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error) {
				labels = info.Scope.Labels
				return f.Store.CreateRun(ctx, info)
			}
			f.headers(func(i *psych.RunInfo) { i.Scope.Labels = labels })
		}},
		{"GetRunMissing", "has a zero header", "GetRun of a Run that never was", func(f *storeFaults) { f.silent("GetRun", psych.ErrNotFound) }},
		{"GetRunMissing", "finds a Run by its id alone", "another tenant's Run", func(f *storeFaults) {
			tenant := make(map[string]string)
			f.key = func(method string, key psych.RunKey) psych.RunKey {
				if method == "CreateRun" {
					tenant[key.RunID] = key.Tenant
				}
				if method == "GetRun" && tenant[key.RunID] != "" {
					key.Tenant = tenant[key.RunID]
				}
				return key
			}
		}},
	}
}

// notes changes what waits.
func (f *storeFaults) notes(change func(notes []psych.Note) []psych.Note) {
	f.pending = func(ctx context.Context, key psych.RunKey) ([]psych.Note, error) {
		notes, err := f.Store.Pending(ctx, key)
		return change(notes), err
	}
}

func inboxFakes() []storeFake {
	return []storeFake{
		{"PostReadBack", "keeps one kind", "of kind", func(f *storeFaults) {
			f.notes(func(notes []psych.Note) []psych.Note {
				for i := range notes {
					notes[i].Kind = psych.KindUserMessage
				}
				return notes
			})
		}},
		{"PostReadBack", "does not count", "Posted is 0 after 1", func(f *storeFaults) { f.headers(func(i *psych.RunInfo) { i.Posted = 0 }) }},
		{"PostReadBack", "shows a note later", "0 notes wait, want 1", func(f *storeFaults) {
			asked := 0
			f.notes(func(notes []psych.Note) []psych.Note {
				if asked++; asked == 1 {
					return nil
				}
				return notes
			})
		}},
		{"PostReadBack", "makes nothing due", "DueAt is", func(f *storeFaults) { f.headers(func(i *psych.RunInfo) { i.DueAt = time.Time{} }) }},
		{"PostMissing", "takes posts to nobody", "got error <nil>", func(f *storeFaults) { f.silent("Post", psych.ErrNotFound) }},
		{"PostMissing", "puts first and looks then", "1 notes wait, want 0", func(f *storeFaults) {
			var early []psych.Note
			f.post = func(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
				err := f.Store.Post(ctx, key, n, due)
				if err != nil {
					early = append(early, n)
				}
				return err
			}
			f.notes(func(notes []psych.Note) []psych.Note { return append(notes, early...) })
		}},
		{"PostDue", "sets DueAt whatever it was", "DueAt is 20m0s, want 10m0s", func(f *storeFaults) {
			last := make(map[psych.RunKey]time.Time)
			f.post = func(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
				last[key] = due
				return f.Store.Post(ctx, key, n, due)
			}
			f.headers(func(i *psych.RunInfo) { i.DueAt = last[i.Key] })
		}},
		{"PostDue", "leaves a Run alone whose lease is held", "lease held: true", func(f *storeFaults) {
			f.headers(func(i *psych.RunInfo) {
				if i.Owner != "" {
					i.DueAt = time.Time{}
				}
			})
		}},
		{"PostKeepsLease", "takes the lease from its owner", "after a Post the lease is", func(f *storeFaults) {
			f.headers(func(i *psych.RunInfo) {
				if i.Posted > 0 {
					i.Owner, i.Until = "", time.Time{}
				}
			})
		}},
		{"PostRepeatedID", "refuses a repetition", "conflict", func(f *storeFaults) {
			f.post = func(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
				notes, _ := f.Store.Pending(ctx, key)
				if slices.ContainsFunc(notes, func(o psych.Note) bool { return o.ID == n.ID }) {
					return psych.ErrConflict
				}
				return f.Store.Post(ctx, key, n, due)
			}
		}},
		{"PostRepeatedID", "ignores a repetition", "did not make the Run due", func(f *storeFaults) {
			f.post = func(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
				notes, _ := f.Store.Pending(ctx, key)
				if slices.ContainsFunc(notes, func(o psych.Note) bool { return o.ID == n.ID }) {
					return nil
				}
				return f.Store.Post(ctx, key, n, due)
			}
		}},
		{"PostFull", "is never full", "Post to a full inbox: got error <nil>", func(f *storeFaults) { f.silent("Post", psych.ErrInboxFull) }},
		{"PostFull", "makes nothing due when it is full", "a refused Post did not make the Run due", func(f *storeFaults) {
			f.post = func(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
				notes, err := f.Store.Pending(ctx, key)
				if err == nil && len(notes) >= psych.MaxPending {
					return psych.ErrInboxFull
				}
				return f.Store.Post(ctx, key, n, due)
			}
		}},
		{"PostFull", "refuses a note that waits", `Post "m007"`, func(f *storeFaults) {
			f.post = func(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
				notes, _ := f.Store.Pending(ctx, key)
				err := f.Store.Post(ctx, key, n, due)
				if err == nil && len(notes) >= psych.MaxPending {
					return psych.ErrInboxFull
				}
				return err
			}
		}},
		{"PostFull", "loses a note before it is full", "Post to a full inbox: got error <nil>", func(f *storeFaults) {
			f.post = func(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
				notes, _ := f.Store.Pending(ctx, key)
				if len(notes) == psych.MaxPending-1 {
					return nil
				}
				return f.Store.Post(ctx, key, n, due)
			}
		}},
		{"PostLargest", "cuts a note", "one byte: got error <nil>", func(f *storeFaults) {
			f.post = func(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
				n.Data = n.Data[:min(len(n.Data), psych.MaxNoteBytes)]
				return f.Store.Post(ctx, key, n, due)
			}
		}},
		{"PostLargest", "takes less", `Post "m"`, func(f *storeFaults) {
			f.post = func(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
				if len(n.Data) >= psych.MaxNoteBytes {
					return psych.ErrTooLarge
				}
				return f.Store.Post(ctx, key, n, due)
			}
		}},
		{"PostInvalid", "makes up an id", `with id "": got error <nil>`, func(f *storeFaults) {
			f.post = func(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
				n.ID = cmp.Or(n.ID, "none")
				return f.Store.Post(ctx, key, n, due)
			}
		}},
		{"PostKinds", "goes by the id alone", "3 notes wait, want 4", func(f *storeFaults) {
			f.notes(func(notes []psych.Note) []psych.Note {
				return slices.CompactFunc(notes, func(a, b psych.Note) bool { return a.ID == b.ID && a.Time.Equal(b.Time) })
			})
		}},
		{"PostKinds", "settles both", "after one of two kinds was settled", func(f *storeFaults) {
			f.settle = func(ctx context.Context, key psych.RunKey, notes []psych.Note) error {
				waiting, _ := f.Store.Pending(ctx, key)
				return f.Store.Settle(ctx, key, slices.DeleteFunc(waiting, func(n psych.Note) bool {
					return !slices.ContainsFunc(notes, func(o psych.Note) bool { return o.ID == n.ID && o.Time.Equal(n.Time) })
				}))
			}
		}},
		{"PostFull", "lets an id of another kind in", "of another kind than one that waits: got error <nil>", func(f *storeFaults) {
			f.post = func(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
				notes, _ := f.Store.Pending(ctx, key)
				if slices.ContainsFunc(notes, func(o psych.Note) bool { return o.ID == n.ID }) {
					n.Kind = psych.KindUserMessage
				}
				return f.Store.Post(ctx, key, n, due)
			}
		}},
		{"PendingOrder", "leaves kinds as they come", "note ", func(f *storeFaults) {
			f.notes(func(notes []psych.Note) []psych.Note {
				slices.SortStableFunc(notes, func(a, b psych.Note) int {
					return cmp.Or(a.Time.Compare(b.Time), strings.Compare(a.ID, b.ID), strings.Compare(string(b.Kind), string(a.Kind)))
				})
				return notes
			})
		}},
		{"PostInvalid", "makes up a kind", `of kind "": got error <nil>`, func(f *storeFaults) {
			f.post = func(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
				n.Kind = cmp.Or(n.Kind, psych.KindUserMessage)
				return f.Store.Post(ctx, key, n, due)
			}
		}},
		{"PostOwnership", "keeps the caller's data", "overwritten its note", func(f *storeFaults) {
			var kept []byte
			f.post = func(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
				kept = n.Data
				return f.Store.Post(ctx, key, n, due)
			}
			f.notes(func(notes []psych.Note) []psych.Note { notes[0].Data = kept; return notes })
		}},
		{"PostOwnership", "returns its own data", "overwritten what Pending returned", func(f *storeFaults) {
			var kept []byte
			f.notes(func(notes []psych.Note) []psych.Note {
				if kept == nil {
					kept = notes[0].Data
				}
				notes[0].Data = kept
				return notes
			})
		}},
		{"PostContended", "loses one of two posts", "notes wait, want 16", func(f *storeFaults) {
			var mu sync.Mutex
			f.post = func(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
				if !mu.TryLock() {
					return nil
				}
				defer mu.Unlock()
				time.Sleep(time.Millisecond)
				return f.Store.Post(ctx, key, n, due)
			}
		}},
		{"PostContended", "reads the count, then writes it", "Posted is 1 after 16", func(f *storeFaults) {
			f.headers(func(i *psych.RunInfo) { i.Posted = min(i.Posted, 1) })
		}},
		{"PendingOrder", "orders by id", "note 1 is", func(f *storeFaults) {
			f.notes(func(notes []psych.Note) []psych.Note {
				slices.SortFunc(notes, func(a, b psych.Note) int { return strings.Compare(a.ID, b.ID) })
				return notes
			})
		}},
		{"PendingOrder", "orders by time alone", "note ", func(f *storeFaults) {
			f.notes(func(notes []psych.Note) []psych.Note {
				slices.Reverse(notes)
				slices.SortStableFunc(notes, func(a, b psych.Note) int { return a.Time.Compare(b.Time) })
				return notes
			})
		}},
		{"PendingOrder", "orders times as text", "note ", func(f *storeFaults) {
			f.notes(func(notes []psych.Note) []psych.Note {
				slices.SortStableFunc(notes, func(a, b psych.Note) int {
					return strings.Compare(fmt.Sprint(a.Time.UnixMicro()), fmt.Sprint(b.Time.UnixMicro()))
				})
				return notes
			})
		}},
		{"PendingAcrossPages", "ends at the backend's page", "notes wait, want 20", func(f *storeFaults) {
			f.notes(func(notes []psych.Note) []psych.Note { return notes[:min(len(notes), 1<<20/psych.MaxNoteBytes)] })
		}},
		{"PendingMissing", "has an empty inbox without a header", "got error <nil>", func(f *storeFaults) { f.silent("Pending", psych.ErrNotFound) }},
		{"SettleNamed", "goes by the id alone", "other times", func(f *storeFaults) {
			f.settle = func(ctx context.Context, key psych.RunKey, notes []psych.Note) error {
				waiting, _ := f.Store.Pending(ctx, key)
				return f.Store.Settle(ctx, key, slices.DeleteFunc(waiting, func(n psych.Note) bool {
					return !slices.ContainsFunc(notes, func(o psych.Note) bool { return o.ID == n.ID })
				}))
			}
		}},
		{"SettleNamed", "settles all", "after b was settled", func(f *storeFaults) {
			f.settle = func(ctx context.Context, key psych.RunKey, notes []psych.Note) error {
				waiting, _ := f.Store.Pending(ctx, key)
				return f.Store.Settle(ctx, key, waiting)
			}
		}},
		{"SettleAbsent", "wants each note to be there", "Settle of three notes", func(f *storeFaults) {
			f.settle = func(ctx context.Context, key psych.RunKey, notes []psych.Note) error {
				waiting, _ := f.Store.Pending(ctx, key)
				for _, n := range notes {
					if !slices.ContainsFunc(waiting, func(o psych.Note) bool { return o.ID == n.ID }) {
						return psych.ErrNotFound
					}
				}
				return f.Store.Settle(ctx, key, notes)
			}
		}},
		{"SettleAbsent", "wants something to settle", "Settle of nothing", func(f *storeFaults) {
			f.settle = func(ctx context.Context, key psych.RunKey, notes []psych.Note) error {
				if len(notes) == 0 {
					return psych.ErrInvalid
				}
				return f.Store.Settle(ctx, key, notes)
			}
		}},
		{"SettleMany", "settles one batch", "75 notes wait", func(f *storeFaults) {
			f.settle = func(ctx context.Context, key psych.RunKey, notes []psych.Note) error {
				return f.Store.Settle(ctx, key, notes[:min(25, len(notes))])
			}
		}},
	}
}

func leaseFakes() []storeFake {
	// claims puts change behind Claim.
	claims := func(f *storeFaults, change func(l psych.Lease, owner, token string, now time.Time, ttl time.Duration, err error) (psych.Lease, error)) {
		f.claim = func(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
			l, err := f.Store.Claim(ctx, key, owner, token, now, ttl)
			return change(l, owner, token, now, ttl, err)
		}
	}
	renews := func(f *storeFaults, change func(l, r psych.Lease, now time.Time, ttl time.Duration, err error) (psych.Lease, error)) {
		f.renew = func(ctx context.Context, l psych.Lease, now time.Time, ttl time.Duration) (psych.Lease, error) {
			r, err := f.Store.Renew(ctx, l, now, ttl)
			return change(l, r, now, ttl, err)
		}
	}
	// whatever releases whatever was posted.
	whatever := func(ctx context.Context, f *storeFaults, l psych.Lease, dueAt time.Time, status string) error {
		r, err := f.Store.Renew(ctx, l, time.Time{}, 0)
		if err != nil {
			return err
		}
		return f.Store.Release(ctx, r, dueAt, status)
	}
	lost := func(f *storeFaults) {
		renews(f, func(l, r psych.Lease, _ time.Time, _ time.Duration, err error) (psych.Lease, error) {
			if errors.Is(err, psych.ErrLeaseLost) {
				return l, nil
			}
			return r, err
		})
	}
	fakes := []storeFake{
		{"ClaimFree", "returns the header from before", "the header in the lease", func(f *storeFaults) {
			claims(f, func(l psych.Lease, _, _ string, _ time.Time, _ time.Duration, err error) (psych.Lease, error) {
				l.Info.Epoch--
				return l, err
			})
		}},
		{"ClaimFree", "returns no Posted", "posted 0; want", func(f *storeFaults) {
			claims(f, func(l psych.Lease, _, _ string, _ time.Time, _ time.Duration, err error) (psych.Lease, error) {
				l.Posted = 0
				return l, err
			})
		}},
		{"ClaimFree", "names no owner", "Owner is", func(f *storeFaults) { f.headers(func(i *psych.RunInfo) { i.Owner = "someone" }) }},
		{"ClaimMissing", "makes a header", "Claim of a Run that never was", func(f *storeFaults) {
			f.claim = func(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
				_, _, _ = f.Store.CreateRun(ctx, psych.RunInfo{Key: key})
				return f.Store.Claim(ctx, key, owner, token, now, ttl)
			}
		}},
		{"ClaimMissing", "calls a lease of no Run lost", "Renew of a Run that never was", func(f *storeFaults) {
			renews(f, func(_, r psych.Lease, _ time.Time, _ time.Duration, err error) (psych.Lease, error) {
				if errors.Is(err, psych.ErrNotFound) {
					err = psych.ErrLeaseLost
				}
				return r, err
			})
		}},
		{"ClaimMissing", "releases no Run", "Release of a Run that never was", func(f *storeFaults) { f.silent("Release", psych.ErrNotFound) }},
		{"ClaimMissing", "defers no Run", "Defer of a Run that never was", func(f *storeFaults) { f.silent("Defer", psych.ErrNotFound) }},
		{"ClaimHeld", "lets an owner claim again", `Claim by "owner"`, func(f *storeFaults) {
			f.claim = func(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
				l, err := f.Store.Claim(ctx, key, owner, token, now, ttl)
				if info, _ := f.Store.GetRun(ctx, key); errors.Is(err, psych.ErrLeaseHeld) && info.Owner == owner {
					return psych.Lease{Key: key, Epoch: info.Epoch, Until: info.Until}, nil
				}
				return l, err
			}
		}},
		{"ClaimHeld", "says lost", "want one that matches", func(f *storeFaults) {
			claims(f, func(l psych.Lease, _, _ string, _ time.Time, _ time.Duration, err error) (psych.Lease, error) {
				if errors.Is(err, psych.ErrLeaseHeld) {
					err = psych.ErrLeaseLost
				}
				return l, err
			})
		}},
		{"ClaimExpired", "wants the end to be past", "Claim just as the lease ends", func(f *storeFaults) {
			f.claim = func(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
				if info, _ := f.Store.GetRun(ctx, key); info.Owner != "" && info.Until.Equal(now) {
					return psych.Lease{}, psych.ErrLeaseHeld
				}
				return f.Store.Claim(ctx, key, owner, token, now, ttl)
			}
		}},
		{"ClaimExpired", "keeps the epoch", "the new epoch is 1, the old one 1", func(f *storeFaults) {
			claims(f, func(l psych.Lease, _, _ string, _ time.Time, _ time.Duration, err error) (psych.Lease, error) {
				l.Epoch = 1
				return l, err
			})
		}},
		{"ClaimContended", "lets all win", "of 16 concurrent calls won", func(f *storeFaults) { f.silent("Claim", psych.ErrLeaseHeld) }},
		{"ClaimContended", "gives losers the wrong error", "one that did not win", func(f *storeFaults) {
			claims(f, func(l psych.Lease, _, _ string, _ time.Time, _ time.Duration, err error) (psych.Lease, error) {
				if err != nil {
					err = psych.ErrConflict
				}
				return l, err
			})
		}},
		{"ClaimContended", "names the last claimer", "the header names", func(f *storeFaults) {
			f.headers(func(i *psych.RunInfo) { i.Owner = "last" })
		}},
		{"ClaimRepeatedToken", "begins the lease anew", "repeated 1s later it is", func(f *storeFaults) {
			claims(f, func(l psych.Lease, _, _ string, now time.Time, ttl time.Duration, err error) (psych.Lease, error) {
				l.Until = now.Add(ttl)
				return l, err
			})
		}},
		{"ClaimRepeatedToken", "forgets tokens", "Claim repeated 0s later", func(f *storeFaults) {
			n := 0
			f.claim = func(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
				n++
				return f.Store.Claim(ctx, key, owner, fmt.Sprint(n), now, ttl)
			}
		}},
		{"ClaimRepeatedToken", "forgets the token as the lease expires", "repeated 1m0s later it is epoch 2", func(f *storeFaults) {
			f.claim = func(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
				if info, _ := f.Store.GetRun(ctx, key); info.Owner != "" && !info.Until.After(now) {
					token = fmt.Sprint(token, info.Epoch)
				}
				return f.Store.Claim(ctx, key, owner, token, now, ttl)
			}
		}},
		{"ClaimPastToken", "remembers tokens for ever", "after another took the lease: got error <nil>", func(f *storeFaults) {
			seen := make(map[string]psych.Lease)
			claims(f, func(l psych.Lease, _, token string, _ time.Time, _ time.Duration, err error) (psych.Lease, error) {
				if old, ok := seen[token]; ok {
					return old, nil
				}
				if err == nil {
					seen[token] = l
				}
				return l, err
			})
		}},
		{"ClaimLeavesDue", "takes the due time", "DueAt is", func(f *storeFaults) {
			f.headers(func(i *psych.RunInfo) {
				if i.Owner != "" {
					i.DueAt = time.Time{}
				}
			})
		}},
		{"ClaimLeavesDue", "makes the end of the lease due", "DueAt is", func(f *storeFaults) {
			f.headers(func(i *psych.RunInfo) {
				if i.Owner != "" {
					i.DueAt = i.Until
				}
			})
		}},
		{"ClaimLeavesDue", "opens the Run", "Status is", func(f *storeFaults) {
			f.headers(func(i *psych.RunInfo) { i.Status = psych.StatusOpen })
		}},
		{"ClaimArguments", "makes up an owner", "an owner of 0 bytes", func(f *storeFaults) {
			f.claim = func(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
				return f.Store.Claim(ctx, key, cmp.Or(owner, "nobody"), token, now, ttl)
			}
		}},
		{"ClaimArguments", "makes up a token", "a token of 0 bytes", func(f *storeFaults) {
			f.claim = func(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
				return f.Store.Claim(ctx, key, owner, cmp.Or(token, "none"), now, ttl)
			}
		}},
		{"ClaimArguments", "cuts owners", "an owner of 129 bytes", func(f *storeFaults) {
			f.claim = func(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
				return f.Store.Claim(ctx, key, owner[:min(len(owner), 128)], token, now, ttl)
			}
		}},
		{"ClaimArguments", "cuts long leases", "a ttl of 15m0.000000001s", func(f *storeFaults) {
			f.claim = func(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
				return f.Store.Claim(ctx, key, owner, token, now, min(ttl, psych.MaxLease))
			}
		}},
		{"ClaimArguments", "renews for any time", "Renew with a ttl over MaxLease", func(f *storeFaults) {
			f.renew = func(ctx context.Context, l psych.Lease, now time.Time, ttl time.Duration) (psych.Lease, error) {
				return f.Store.Renew(ctx, l, now, min(ttl, psych.MaxLease))
			}
		}},
		{"EpochGrows", "begins at 1 after a release", "Claim 2 has epoch 1", func(f *storeFaults) {
			claims(f, func(l psych.Lease, _, _ string, _ time.Time, _ time.Duration, err error) (psych.Lease, error) {
				l.Epoch = 1
				return l, err
			})
		}},
		{"RenewExtends", "returns the Posted of the claim", "posted 0; want", func(f *storeFaults) {
			renews(f, func(l, r psych.Lease, _ time.Time, _ time.Duration, err error) (psych.Lease, error) {
				r.Posted = l.Posted
				return r, err
			})
		}},
		{"RenewExtends", "does not write", "the header has owner", func(f *storeFaults) {
			f.renew = func(ctx context.Context, l psych.Lease, now time.Time, ttl time.Duration) (psych.Lease, error) {
				r, err := f.Store.Renew(ctx, l, time.Time{}, ttl)
				r.Until = now.Add(ttl)
				return r, err
			}
		}},
		{"RenewNeverEarlier", "returns a time that it did not set", "Renew to an earlier time returned", func(f *storeFaults) {
			renews(f, func(_, r psych.Lease, now time.Time, ttl time.Duration, err error) (psych.Lease, error) {
				r.Until = now.Add(ttl)
				return r, err
			})
		}},
		{"RenewNeverEarlier", "moves the end", "Renew to an earlier time left", func(f *storeFaults) {
			f.headers(func(i *psych.RunInfo) { i.Until = i.Until.Add(-time.Minute) })
		}},
		{"RenewReleased", "renews what was released", "Renew of a released lease: got error <nil>", lost},
		{"RenewPast", "renews a past epoch", "Renew of a past epoch: got error <nil>", lost},
		{"RenewPast", "says held", "want one that matches", func(f *storeFaults) {
			renews(f, func(_, r psych.Lease, _ time.Time, _ time.Duration, err error) (psych.Lease, error) {
				if err != nil {
					err = psych.ErrLeaseHeld
				}
				return r, err
			})
		}},
		{"RenewExpiredUntaken", "ends with the lease", "Renew: ", func(f *storeFaults) {
			f.renew = func(ctx context.Context, l psych.Lease, now time.Time, ttl time.Duration) (psych.Lease, error) {
				if !l.Until.After(now) {
					return psych.Lease{}, psych.ErrLeaseLost
				}
				return f.Store.Renew(ctx, l, now, ttl)
			}
		}},
		{"ReleaseFrees", "sets no status", "Status is", func(f *storeFaults) {
			f.release = func(ctx context.Context, l psych.Lease, dueAt time.Time, status string) error {
				return f.Store.Release(ctx, l, dueAt, l.Info.Status)
			}
		}},
		{"ReleaseFrees", "takes zero for no change", "DueAt is", func(f *storeFaults) {
			f.release = func(ctx context.Context, l psych.Lease, dueAt time.Time, status string) error {
				if dueAt.IsZero() {
					dueAt = l.Info.DueAt
				}
				return f.Store.Release(ctx, l, dueAt, status)
			}
		}},
		{"ReleaseFrees", "keeps the owner", "Owner is", func(f *storeFaults) {
			f.headers(func(i *psych.RunInfo) {
				if i.Epoch > 0 {
					i.Owner = "owner"
				}
			})
		}},
		{"ReleaseConflict", "releases whatever was posted", "Release after a Post: got error <nil>", func(f *storeFaults) {
			f.release = func(ctx context.Context, l psych.Lease, dueAt time.Time, status string) error {
				return whatever(ctx, f, l, dueAt, status)
			}
		}},
		{"ReleaseConflict", "conflicts and gives the lease back", "after a Release that conflicts", func(f *storeFaults) {
			f.release = func(ctx context.Context, l psych.Lease, dueAt time.Time, status string) error {
				err := f.Store.Release(ctx, l, dueAt, status)
				if errors.Is(err, psych.ErrConflict) {
					_ = whatever(ctx, f, l, dueAt, status)
				}
				return err
			}
		}},
		{"ReleaseContended", "reads Posted, then writes", "the message is missed", func(f *storeFaults) {
			f.release = func(ctx context.Context, l psych.Lease, dueAt time.Time, status string) error {
				info, err := f.Store.GetRun(ctx, l.Key)
				if err != nil || info.Posted != l.Posted {
					return cmp.Or(err, psych.ErrConflict)
				}
				time.Sleep(time.Millisecond)
				return whatever(ctx, f, l, dueAt, status)
			}
		}},
		{"ReleaseTwice", "says lost", "Release again", func(f *storeFaults) {
			f.release = func(ctx context.Context, l psych.Lease, dueAt time.Time, status string) error {
				if info, _ := f.Store.GetRun(ctx, l.Key); info.Owner == "" && info.Epoch == l.Epoch {
					return psych.ErrLeaseLost
				}
				return f.Store.Release(ctx, l, dueAt, status)
			}
		}},
		{"ReleaseTwice", "conflicts after a Post", "Release again after a Post", func(f *storeFaults) {
			f.release = func(ctx context.Context, l psych.Lease, dueAt time.Time, status string) error {
				if info, _ := f.Store.GetRun(ctx, l.Key); info.Posted != l.Posted {
					return psych.ErrConflict
				}
				return f.Store.Release(ctx, l, dueAt, status)
			}
		}},
		{"ReleaseTwice", "writes again", "after the second Release", func(f *storeFaults) {
			status, due := "", time.Time{}
			f.release = func(ctx context.Context, l psych.Lease, dueAt time.Time, s string) error {
				status, due = s, dueAt
				return f.Store.Release(ctx, l, dueAt, s)
			}
			f.headers(func(i *psych.RunInfo) { i.Status, i.DueAt = status, due })
		}},
		{"ReleasePast", "lets a past owner believe", "Release of a past epoch: got error <nil>", func(f *storeFaults) { f.silent("Release", psych.ErrLeaseLost) }},
		{"ReleasePast", "releases a successor's lease", "after a Release of a past epoch: the header changed", func(f *storeFaults) {
			f.release = func(ctx context.Context, l psych.Lease, dueAt time.Time, status string) error {
				err := f.Store.Release(ctx, l, dueAt, status)
				if errors.Is(err, psych.ErrLeaseLost) {
					l.Epoch++
					_ = f.Store.Release(ctx, l, dueAt, status)
				}
				return err
			}
		}},
		{"DeferDue", "frees a lease that holds", "Owner is", func(f *storeFaults) {
			f.deferTo = func(ctx context.Context, info psych.RunInfo, now, to time.Time) error {
				err := f.Store.Defer(ctx, info, now, to)
				if err == nil && info.Owner != "" {
					err = whatever(ctx, f, psych.Lease{Key: info.Key, Epoch: info.Epoch}, to, info.Status)
				}
				return err
			}
		}},
		{"DeferDue", "does not move", "DueAt is", func(f *storeFaults) {
			f.deferTo = func(ctx context.Context, info psych.RunInfo, now, to time.Time) error { return nil }
		}},
		{"DeferDue", "wants due to be past", "due just now", func(f *storeFaults) {
			f.deferTo = func(ctx context.Context, info psych.RunInfo, now, to time.Time) error {
				return f.Store.Defer(ctx, info, now.Add(-time.Microsecond), to)
			}
		}},
		{"DeferExpiredLease", "keeps the lease", "Renew of a lease that Defer freed: got error <nil>", lost},
		{"DeferExpiredLease", "keeps the owner", "want none", func(f *storeFaults) {
			f.headers(func(i *psych.RunInfo) { i.Owner = "owner" })
		}},
		{"DeferNotDue", "defers what is not due", "got error <nil>", func(f *storeFaults) { f.silent("Defer", psych.ErrConflict) }},
		{"DeferNotDue", "moves what is not due", "after Defer of a Run that is not due: the header changed", func(f *storeFaults) {
			f.deferTo = func(ctx context.Context, info psych.RunInfo, now, to time.Time) error {
				err := f.Store.Defer(ctx, info, now, to)
				if errors.Is(err, psych.ErrConflict) && !info.DueAt.IsZero() {
					_ = f.Store.Defer(ctx, info, info.DueAt, to)
				}
				return err
			}
		}},
		{"DeferContended", "lets all win", "of 16 concurrent calls won", func(f *storeFaults) { f.silent("Defer", psych.ErrConflict) }},
		{"DeferContended", "lets the last win", "two of 16 concurrent calls won", func(f *storeFaults) {
			f.deferTo = func(ctx context.Context, info psych.RunInfo, now, to time.Time) error {
				info, err := f.Store.GetRun(ctx, info.Key)
				if err != nil {
					return err
				}
				return f.Store.Defer(ctx, info, max2(now, info.DueAt), max2(to, info.DueAt.Add(time.Microsecond)))
			}
		}},
	}
	for field, refresh := range map[string]func(i *psych.RunInfo, now psych.RunInfo){
		"Epoch":  func(i *psych.RunInfo, now psych.RunInfo) { i.Epoch = now.Epoch },
		"Owner":  func(i *psych.RunInfo, now psych.RunInfo) { i.Owner = now.Owner },
		"Until":  func(i *psych.RunInfo, now psych.RunInfo) { i.Until = now.Until },
		"DueAt":  func(i *psych.RunInfo, now psych.RunInfo) { i.DueAt = now.DueAt },
		"Posted": func(i *psych.RunInfo, now psych.RunInfo) { i.Posted = now.Posted },
	} {
		fakes = append(fakes, storeFake{"DeferChanged", "does not compare " + field, "Defer with another " + field, func(f *storeFaults) {
			f.deferTo = func(ctx context.Context, info psych.RunInfo, now, to time.Time) error {
				if current, err := f.Store.GetRun(ctx, info.Key); err == nil {
					refresh(&info, current)
				}
				return f.Store.Defer(ctx, info, now, to)
			}
		}})
	}
	return fakes
}

func max2(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// dead records tombstones and hides them from Due until a time.
func (f *storeFaults) dead(until func(deletedAt time.Time) time.Time) map[psych.RunKey]time.Time {
	at := make(map[psych.RunKey]time.Time)
	f.delete = func(ctx context.Context, key psych.RunKey, now time.Time) error {
		at[key] = now
		return f.Store.DeleteRun(ctx, key, now)
	}
	f.due = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
		keys, next, err := f.Store.Due(ctx, now, cursor, limit)
		return slices.DeleteFunc(keys, func(key psych.RunKey) bool {
			deletedAt, gone := at[key]
			return gone && now.Before(until(deletedAt))
		}), next, err
	}
	return at
}

func tombstoneFakes() []storeFake {
	never := func(time.Time) time.Time { return time.Unix(1<<40, 0) }
	created := func(f *storeFaults) *[]psych.RunKey {
		keys := new([]psych.RunKey)
		f.create = func(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error) {
			*keys = append(*keys, info.Key)
			return f.Store.CreateRun(ctx, info)
		}
		return keys
	}
	return []storeFake{
		{"DeleteRunHides", "settles nothing there", "Settle under a tombstone", func(f *storeFaults) {
			f.settle = func(ctx context.Context, key psych.RunKey, notes []psych.Note) error {
				if _, err := f.Store.GetRun(ctx, key); err != nil {
					return err
				}
				return f.Store.Settle(ctx, key, notes)
			}
		}},
		{"DeleteRunAbsent", "leaves no tombstone of nothing", "CreateRun after DeleteRun", func(f *storeFaults) {
			f.delete = func(ctx context.Context, key psych.RunKey, now time.Time) error {
				if _, err := f.Store.GetRun(ctx, key); errors.Is(err, psych.ErrNotFound) {
					return nil
				}
				return f.Store.DeleteRun(ctx, key, now)
			}
		}},
		{"DeleteRunAbsent", "leaves a tombstone that nobody finds", "the tombstone is in Due", func(f *storeFaults) { f.dead(never) }},
		{"DeleteRunAppend", "appends nothing", "Append behind seq 0: ", func(f *storeFaults) {
			gone := f.dead(func(at time.Time) time.Time { return at })
			f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
				if _, ok := gone[key]; ok {
					return psych.Pos{}, psych.ErrNotFound
				}
				return f.Store.Append(ctx, key, after, b)
			}
		}},
		{"DeleteRunAppend", "reads under a tombstone", "Read after appends", func(f *storeFaults) {
			wrote := false
			f.append = func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
				_, err := f.Store.GetRun(ctx, key)
				wrote = err != nil
				return f.Store.Append(ctx, key, after, b)
			}
			f.err = func(method string, err error) error {
				if method == "Read" && wrote {
					return nil
				}
				return err
			}
		}},
		{"DeleteRunRemovesLog", "leaves what one call can't remove", "conflict", func(f *storeFaults) {
			f.delete = func(ctx context.Context, key psych.RunKey, now time.Time) error {
				page, _ := f.Store.Read(ctx, key, psych.Pos{}, 1)
				err := f.Store.DeleteRun(ctx, key, now)
				if err == nil && len(page.Entries) > 0 {
					_, err = f.Store.Append(ctx, key, psych.Pos{}, psych.Batch{Token: "left", Entries: page.Entries})
				}
				return err
			}
		}},
		{"DeleteRunUnlisted", "lists what is gone", "the other Run alone is listed", func(f *storeFaults) {
			keys := created(f)
			f.list = func(ctx context.Context, tenant, cursor string, limit int) ([]psych.RunInfo, string, error) {
				_, _, err := f.Store.ListRuns(ctx, tenant, cursor, limit)
				var runs []psych.RunInfo
				for _, key := range *keys {
					runs = append(runs, psych.RunInfo{Key: key})
				}
				return runs, "", err
			}
		}},
		{"DeleteRunDue", "makes a tombstone due at once", "the tombstone is not due before", func(f *storeFaults) {
			f.delete = func(ctx context.Context, key psych.RunKey, now time.Time) error {
				return f.Store.DeleteRun(ctx, key, now.Add(-psych.MaxLease))
			}
		}},
		{"DeleteRunDue", "makes no tombstone due", "the tombstone is due", func(f *storeFaults) { f.dead(never) }},
		{"DeleteRunAgain", "begins the time anew", "MaxLease after the first deletion", func(f *storeFaults) {
			f.dead(func(at time.Time) time.Time { return at.Add(psych.MaxLease) })
		}},
		{"DeleteRunForever", "ends the tombstone with the first purge", "after PurgeRun", func(f *storeFaults) {
			f.purge = func(ctx context.Context, key psych.RunKey, now time.Time) error {
				return f.Store.PurgeRun(ctx, key, now.Add(psych.TombstoneLife))
			}
		}},
		{"DeleteRunForever", "ends the tombstone too early", "after PurgeRun 719h59m59.999999s after DeleteRun", func(f *storeFaults) {
			f.purge = func(ctx context.Context, key psych.RunKey, now time.Time) error {
				return f.Store.PurgeRun(ctx, key, now.Add(time.Microsecond))
			}
		}},
		{"DeleteRunAlone", "deletes the id in all tenants", "not found", func(f *storeFaults) {
			keys := created(f)
			f.delete = func(ctx context.Context, key psych.RunKey, now time.Time) error {
				for _, k := range *keys {
					if k.RunID == key.RunID {
						_ = f.Store.DeleteRun(ctx, k, now)
					}
				}
				return f.Store.DeleteRun(ctx, key, now)
			}
		}},
		{"DeleteRunAlone", "deletes by the tenant's prefix", "not found", func(f *storeFaults) {
			keys := created(f)
			f.delete = func(ctx context.Context, key psych.RunKey, now time.Time) error {
				for _, k := range *keys {
					if k.RunID == key.RunID && strings.HasPrefix(k.Tenant, key.Tenant) {
						_ = f.Store.DeleteRun(ctx, k, now)
					}
				}
				return f.Store.DeleteRun(ctx, key, now)
			}
		}},
		{"PurgeRunLive", "purges what lives", "not found", func(f *storeFaults) {
			f.purge = func(ctx context.Context, key psych.RunKey, now time.Time) error {
				_ = f.Store.DeleteRun(ctx, key, now)
				return f.Store.PurgeRun(ctx, key, now)
			}
		}},
		{"PurgeRunLive", "settles what waits", "took log or inbox", func(f *storeFaults) {
			f.purge = func(ctx context.Context, key psych.RunKey, now time.Time) error {
				notes, _ := f.Store.Pending(ctx, key)
				_ = f.Store.Settle(ctx, key, notes)
				return f.Store.PurgeRun(ctx, key, now)
			}
		}},
		{"PurgeRunLive", "makes a tombstone of nothing", "CreateRun", func(f *storeFaults) {
			f.purge = func(ctx context.Context, key psych.RunKey, now time.Time) error {
				if _, err := f.Store.GetRun(ctx, key); err != nil {
					return f.Store.DeleteRun(ctx, key, now)
				}
				return nil
			}
		}},
		{"PurgeRunLeftovers", "removes nothing", "conflict", func(f *storeFaults) {
			f.purge = func(ctx context.Context, key psych.RunKey, now time.Time) error { return nil }
		}},
		{"PurgeRunLeftovers", "purges once", "conflict", func(f *storeFaults) {
			purged := false
			f.purge = func(ctx context.Context, key psych.RunKey, now time.Time) error {
				if purged {
					return nil
				}
				purged = true
				return f.Store.PurgeRun(ctx, key, now)
			}
		}},
		{"PurgeRunDue", "leaves the tombstone due", "is due no more", func(f *storeFaults) {
			f.purge = func(ctx context.Context, key psych.RunKey, now time.Time) error { return nil }
		}},
		{"PurgeRunDue", "counts from the purge", "is due for the last purge", func(f *storeFaults) {
			at := f.dead(func(at time.Time) time.Time { return at })
			f.purge = func(ctx context.Context, key psych.RunKey, now time.Time) error {
				at[key] = now.Add(psych.TombstoneLife)
				return f.Store.PurgeRun(ctx, key, now)
			}
		}},
		{"PurgeRunLast", "leaves the tombstone due", "is due no more", func(f *storeFaults) {
			purged := false
			f.purge = func(ctx context.Context, key psych.RunKey, now time.Time) error {
				if purged {
					return nil
				}
				purged = true
				return f.Store.PurgeRun(ctx, key, now)
			}
		}},
		{"PurgeRunLast", "gives a new Run an old log", "in the new Run: the log is not", func(f *storeFaults) {
			f.purge = func(ctx context.Context, key psych.RunKey, now time.Time) error {
				err := f.Store.PurgeRun(ctx, key, now)
				e := psych.Entry{Seq: 1, Kind: psych.KindUserMessage, Time: now}
				_, _ = f.Store.Append(ctx, key, psych.Pos{}, psych.Batch{Token: "old", Entries: []psych.Entry{e}})
				return err
			}
		}},
	}
}

func indexFakes() []storeFake {
	// without leaves out of Due what is due by only.
	without := func(f *storeFaults, only func(i psych.RunInfo, now time.Time) bool) {
		f.due = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
			keys, next, err := f.Store.Due(ctx, now, cursor, limit)
			return slices.DeleteFunc(keys, func(key psych.RunKey) bool {
				info, err := f.Store.GetRun(ctx, key)
				return err == nil && only(info, now)
			}), next, err
		}
	}
	due := func(i psych.RunInfo, now time.Time) bool { return !i.DueAt.IsZero() && !i.DueAt.After(now) }
	lists := func(f *storeFaults, change func(runs []psych.RunInfo)) {
		f.list = func(ctx context.Context, tenant, cursor string, limit int) ([]psych.RunInfo, string, error) {
			runs, next, err := f.Store.ListRuns(ctx, tenant, cursor, limit)
			change(runs)
			return runs, next, err
		}
	}
	return []storeFake{
		{"DueTime", "lists what was due before now", "it is due at its time", func(f *storeFaults) {
			f.due = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
				return f.Store.Due(ctx, now.Add(-time.Microsecond), cursor, limit)
			}
		}},
		{"DueTime", "lists by the second", "it is not due before", func(f *storeFaults) {
			f.due = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
				return f.Store.Due(ctx, now.Add(time.Second-1).Truncate(time.Second), cursor, limit)
			}
		}},
		{"DueTime", "lists what it once listed", "after a Post, it is not due before", func(f *storeFaults) {
			seen := make(map[psych.RunKey]bool)
			f.due = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
				keys, next, err := f.Store.Due(ctx, now, cursor, limit)
				for _, key := range keys {
					seen[key] = true
				}
				for key := range seen {
					if info, _ := f.Store.GetRun(ctx, key); info.Posted > 0 && !slices.Contains(keys, key) {
						keys = append(keys, key)
					}
				}
				return keys, next, err
			}
		}},
		{"DueLease", "does not list expired leases", "after a Claim, it is due", func(f *storeFaults) {
			without(f, func(i psych.RunInfo, now time.Time) bool { return !due(i, now) })
		}},
		{"DueLease", "hides a Run whose lease is held", "whose lease holds", func(f *storeFaults) {
			without(f, func(i psych.RunInfo, now time.Time) bool { return i.Owner != "" && i.Until.After(now) })
		}},
		{"DueRetention", "does not list what has expired", "created with a retention", func(f *storeFaults) {
			without(f, func(i psych.RunInfo, now time.Time) bool { return !due(i, now) })
		}},
		{"DueRetention", "forgets retention with a release", "released with nothing due", func(f *storeFaults) {
			without(f, func(i psych.RunInfo, now time.Time) bool { return i.Epoch > 0 && !due(i, now) })
		}},
		{"DuePaging", "ignores the limit", "more than the limit 1", func(f *storeFaults) {
			f.due = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
				return f.Store.Due(ctx, now, cursor, 1000)
			}
		}},
		{"DuePaging", "has one page", "pages of 1 list each Run once", func(f *storeFaults) {
			f.due = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
				keys, _, err := f.Store.Due(ctx, now, cursor, limit)
				return keys, "", err
			}
		}},
		{"DuePaging", "begins again", "does not advance", func(f *storeFaults) {
			f.due = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
				return f.Store.Due(ctx, now, "", limit)
			}
		}},
		{"DuePaging", "lists one tenant", "pages of 1 list each Run once", func(f *storeFaults) {
			var tenant string
			f.due = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
				keys, next, err := f.Store.Due(ctx, now, cursor, limit)
				return slices.DeleteFunc(keys, func(key psych.RunKey) bool {
					tenant = cmp.Or(tenant, key.Tenant)
					return key.Tenant != tenant
				}), next, err
			}
		}},
		{"DueInvalid", "begins anew with a strange cursor", `the cursor "nonsense": got error <nil>`, func(f *storeFaults) {
			f.due = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
				keys, next, err := f.Store.Due(ctx, now, cursor, limit)
				if errors.Is(err, psych.ErrInvalid) {
					return f.Store.Due(ctx, now, "", limit)
				}
				return keys, next, err
			}
		}},
		{"DueInvalid", "takes another list's cursor", "a cursor of ListRuns: got error <nil>", func(f *storeFaults) {
			f.due = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
				if strings.HasPrefix(cursor, "l") {
					cursor = ""
				}
				return f.Store.Due(ctx, now, cursor, limit)
			}
		}},
		{"DueInvalid", "takes any limit", "Due with limit 0: got error <nil>", func(f *storeFaults) {
			f.due = func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
				return f.Store.Due(ctx, now, cursor, max(1, limit))
			}
		}},
		{"ListRunsOrder", "lists the oldest first", "listed in order", func(f *storeFaults) { lists(f, slices.Reverse) }},
		{"ListRunsOrder", "orders by the second", "listed in order", func(f *storeFaults) {
			lists(f, func(runs []psych.RunInfo) {
				slices.Reverse(runs)
				slices.SortStableFunc(runs, func(a, b psych.RunInfo) int { return cmp.Compare(b.CreatedAt.Unix(), a.CreatedAt.Unix()) })
			})
		}},
		{"ListRunsOrder", "lists parts of headers", "as their headers say", func(f *storeFaults) {
			lists(f, func(runs []psych.RunInfo) {
				for i := range runs {
					runs[i].Version = psych.Digest{}
				}
			})
		}},
		{"ListRunsStatus", "lists the first status", "the status is listed", func(f *storeFaults) {
			lists(f, func(runs []psych.RunInfo) {
				for i := range runs {
					runs[i].Status = psych.StatusOpen
				}
			})
		}},
		{"ListRunsPaging", "ignores the limit", "more than the limit 1", func(f *storeFaults) {
			f.list = func(ctx context.Context, tenant, cursor string, limit int) ([]psych.RunInfo, string, error) {
				return f.Store.ListRuns(ctx, tenant, cursor, 1000)
			}
		}},
		{"ListRunsPaging", "goes on by the time alone", "pages of", func(f *storeFaults) {
			last := make(map[string]time.Time)
			f.list = func(ctx context.Context, tenant, cursor string, limit int) ([]psych.RunInfo, string, error) {
				runs, next, err := f.Store.ListRuns(ctx, tenant, cursor, limit)
				if len(runs) > 0 {
					last[next] = runs[len(runs)-1].CreatedAt
				}
				if cursor != "" {
					runs = slices.DeleteFunc(runs, func(r psych.RunInfo) bool { return r.CreatedAt.Equal(last[cursor]) })
				}
				return runs, next, err
			}
		}},
		{"ListRunsPaging", "begins again", "does not advance", func(f *storeFaults) {
			f.list = func(ctx context.Context, tenant, cursor string, limit int) ([]psych.RunInfo, string, error) {
				return f.Store.ListRuns(ctx, tenant, "", limit)
			}
		}},
		{"ListRunsIsolation", "lists tenants by their prefix", "another tenant's list holds its own Run alone", func(f *storeFaults) {
			var tenants []string
			f.tenant = func(method, tenant string) string {
				tenants = append(tenants, tenant)
				return tenant
			}
			f.list = func(ctx context.Context, tenant, cursor string, limit int) ([]psych.RunInfo, string, error) {
				all, next, err := f.Store.ListRuns(ctx, tenant, cursor, limit)
				slices.Sort(tenants)
				for _, other := range slices.Compact(tenants) {
					if other != tenant && strings.HasPrefix(other, tenant) {
						runs, _, _ := f.Store.ListRuns(ctx, other, "", limit)
						all = append(all, runs...)
					}
				}
				return all, next, err
			}
		}},
		{"ListRunsIsolation", "lists the tenant of the cursor", "with the cursor of another tenant", func(f *storeFaults) {
			owner := make(map[string]string)
			f.list = func(ctx context.Context, tenant, cursor string, limit int) ([]psych.RunInfo, string, error) {
				if cursor != "" {
					tenant = owner[cursor]
				}
				runs, next, err := f.Store.ListRuns(ctx, tenant, cursor, limit)
				owner[next] = tenant
				return runs, next, err
			}
		}},
		{"ListRunsInvalid", "begins anew with a strange cursor", `the cursor "nonsense": got error <nil>`, func(f *storeFaults) {
			f.list = func(ctx context.Context, tenant, cursor string, limit int) ([]psych.RunInfo, string, error) {
				runs, next, err := f.Store.ListRuns(ctx, tenant, cursor, limit)
				if errors.Is(err, psych.ErrInvalid) {
					return f.Store.ListRuns(ctx, tenant, "", limit)
				}
				return runs, next, err
			}
		}},
	}
}

func docFakes() []storeFake {
	return []storeFake{
		{"PutDocReadBack", "repairs text", "that are not the", func(f *storeFaults) {
			f.getDoc = func(ctx context.Context, tenant string, d psych.Digest) ([]byte, error) {
				data, err := f.Store.GetDoc(ctx, tenant, d)
				return bytes.ToValidUTF8(data, []byte("?")), err
			}
		}},
		{"PutDocReadBack", "has no empty documents", "GetDoc of 0 bytes", func(f *storeFaults) {
			f.getDoc = func(ctx context.Context, tenant string, d psych.Digest) ([]byte, error) {
				data, err := f.Store.GetDoc(ctx, tenant, d)
				if err == nil && len(data) == 0 {
					err = psych.ErrNotFound
				}
				return data, err
			}
		}},
		{"PutDocTwice", "refuses what is there", "conflict", func(f *storeFaults) {
			f.putDoc = func(ctx context.Context, tenant string, d psych.Digest, data []byte) error {
				if _, err := f.Store.GetDoc(ctx, tenant, d); err == nil {
					return psych.ErrConflict
				}
				return f.Store.PutDoc(ctx, tenant, d, data)
			}
		}},
		{"PutDocWrongDigest", "trusts the caller", "PutDoc under another digest: got error <nil>", func(f *storeFaults) {
			f.putDoc = func(ctx context.Context, tenant string, d psych.Digest, data []byte) error {
				return f.Store.PutDoc(ctx, tenant, sha256.Sum256(data), data)
			}
		}},
		{"PutDocWrongDigest", "stores before it checks", "the digest that was refused", func(f *storeFaults) {
			kept := make(map[psych.Digest][]byte)
			f.putDoc = func(ctx context.Context, tenant string, d psych.Digest, data []byte) error {
				kept[d] = data
				return f.Store.PutDoc(ctx, tenant, d, data)
			}
			f.getDoc = func(ctx context.Context, tenant string, d psych.Digest) ([]byte, error) { return kept[d], nil }
		}},
		{"PutDocLarge", "has the bound of an item", "too large", func(f *storeFaults) {
			f.putDoc = func(ctx context.Context, tenant string, d psych.Digest, data []byte) error {
				if len(data) > 400<<10 {
					return psych.ErrTooLarge
				}
				return f.Store.PutDoc(ctx, tenant, d, data)
			}
		}},
		{"PutDocLarge", "returns the first page", "that are not the", func(f *storeFaults) {
			f.getDoc = func(ctx context.Context, tenant string, d psych.Digest) ([]byte, error) {
				data, err := f.Store.GetDoc(ctx, tenant, d)
				return data[:min(len(data), 1<<20)], err
			}
		}},
		{"PutDocOwnership", "keeps the caller's data", "that are not the", func(f *storeFaults) {
			var kept []byte
			f.putDoc = func(ctx context.Context, tenant string, d psych.Digest, data []byte) error {
				kept = data
				return f.Store.PutDoc(ctx, tenant, d, data)
			}
			f.getDoc = func(ctx context.Context, tenant string, d psych.Digest) ([]byte, error) {
				return slices.Clone(kept), nil
			}
		}},
		{"PutDocOwnership", "returns its own data", "that are not the", func(f *storeFaults) {
			var kept []byte
			f.getDoc = func(ctx context.Context, tenant string, d psych.Digest) ([]byte, error) {
				if kept == nil {
					kept, _ = f.Store.GetDoc(ctx, tenant, d)
				}
				return kept, nil
			}
		}},
		{"PutDocContended", "refuses one in flight", "PutDoc, concurrently", func(f *storeFaults) {
			var mu sync.Mutex
			f.putDoc = func(ctx context.Context, tenant string, d psych.Digest, data []byte) error {
				if !mu.TryLock() {
					return psych.ErrConflict
				}
				defer mu.Unlock()
				time.Sleep(time.Millisecond)
				return f.Store.PutDoc(ctx, tenant, d, data)
			}
		}},
		{"GetDocMissing", "has nothing without an error", "a document that never was", func(f *storeFaults) { f.silent("GetDoc", psych.ErrNotFound) }},
		{"GetDocMissing", "finds documents by digest alone", "another tenant's document", func(f *storeFaults) {
			f.tenant = func(method, tenant string) string {
				if strings.HasSuffix(method, "Doc") {
					return "all"
				}
				return tenant
			}
		}},
	}
}
