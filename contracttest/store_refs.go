package contracttest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// refsRules are the rules of [psych.Refs] and of [psych.Index.DueRefs], which
// may lag.
func refsRules() []Rule[psych.Store] {
	return []Rule[psych.Store]{
		storeRule("SwapRefReadBack", "SwapRef of the zero Ref creates a ref, of the current one replaces it; GetRefs reads every field at once and on any handle.", func(w *world) {
			var old psych.Ref
			for _, after := range []time.Time{{}, w.now.Add(123_456_000), w.now.Add(time.Hour).In(time.FixedZone("", -3600)), {}} {
				next := w.next(old, after)
				w.swap("a", old, next)
				w.hasRef("a", next, "after SwapRef")
				got, err := w.second().GetRefs(w.ctx, w.tenant, []string{"a"})
				w.ok(err, "GetRefs on another handle")
				w.check(got["a"].Equal(next), "GetRefs on another handle returned %v, want %v", got["a"], next)
				old = next
			}
			zero := psych.Ref{Seq: 1}
			w.swap("zero digest", psych.Ref{}, zero)
			w.hasRef("zero digest", zero, "after SwapRef for the zero digest")
		}),
		storeRule("SwapRefStale", "If the ref is not old, in any field, SwapRef is ErrConflict and changes nothing.", func(w *world) {
			absent := w.next(w.next(psych.Ref{}, w.now), w.now)
			w.is(w.SwapRef(w.ctx, w.tenant, "absent", absent, w.next(absent, w.now)), psych.ErrConflict, "SwapRef of a ref that is not there")
			w.noRef("absent", "after a SwapRef of a ref that is not there")

			first := w.next(psych.Ref{}, w.now)
			w.swap("a", psych.Ref{}, first)
			second := w.next(first, time.Time{})
			w.swap("a", first, second)
			third := w.next(second, w.now)
			w.swap("a", second, third)
			for what, old := range map[string]psych.Ref{
				"none":           {},
				"that before it": second,
				"the first":      first,
				"a later seq":    {Doc: third.Doc, Seq: third.Seq + 1, After: third.After},
				"another doc":    {Doc: second.Doc, Seq: third.Seq, After: third.After},
				"another time":   {Doc: third.Doc, Seq: third.Seq, After: third.After.Add(time.Microsecond)},
				"no time":        {Doc: third.Doc, Seq: third.Seq},
			} {
				w.is(w.SwapRef(w.ctx, w.tenant, "a", old, w.next(old, w.now)), psych.ErrConflict, "SwapRef of %s", what)
				w.hasRef("a", third, "after a SwapRef of "+what)
			}
		}),
		storeRule("SwapRefSeq", "The next Seq is one more than the old one, from 1; any other is ErrInvalid and changes nothing.", func(w *world) {
			first := w.next(psych.Ref{}, w.now)
			for _, seq := range []int64{0, 2, -1} {
				bad := first
				bad.Seq = seq
				w.is(w.SwapRef(w.ctx, w.tenant, "a", psych.Ref{}, bad), psych.ErrInvalid, "SwapRef of none for one with seq %d", seq)
			}
			w.noRef("a", "after illegal swaps")
			w.swap("a", psych.Ref{}, first)
			for _, seq := range []int64{0, 1, 3, -2} {
				bad := w.next(first, w.now)
				bad.Seq = seq
				w.is(w.SwapRef(w.ctx, w.tenant, "a", first, bad), psych.ErrInvalid, "SwapRef of seq 1 for seq %d", seq)
			}
			noSeq := first
			noSeq.Seq = 0
			w.is(w.SwapRef(w.ctx, w.tenant, "a", noSeq, first), psych.ErrInvalid, "SwapRef of a ref without a seq")
			w.hasRef("a", first, "after illegal swaps")
		}),
		storeRule("SwapRefRepeated", "A SwapRef repeated while the ref is next succeeds and changes nothing; once it was swapped again it is ErrConflict.", func(w *world) {
			first := w.next(psych.Ref{}, w.now.Add(time.Nanosecond))
			w.swap("a", psych.Ref{}, first)
			w.swap("a", psych.Ref{}, first)
			w.hasRef("a", first, "after a repeated SwapRef")
			second := w.next(first, time.Time{})
			w.swap("a", first, second)
			w.swap("a", first, second)
			w.hasRef("a", second, "after a repeated SwapRef")
			w.is(w.SwapRef(w.ctx, w.tenant, "a", psych.Ref{}, first), psych.ErrConflict, "a SwapRef repeated after the next one")
			w.hasRef("a", second, "after a late repetition")
		}),
		needs(Contention, storeRule("SwapRefContended", "Of N concurrent swaps of one old for different refs one wins, and the others are ErrConflict.", func(w *world) {
			w.refKey("a")
			var old psych.Ref
			for range 4 {
				nexts := make([]psych.Ref, contenders)
				for i := range nexts {
					nexts[i] = w.next(old, w.now)
				}
				_, errs := contend(w, contenders, func(s psych.Store, i int) (struct{}, error) {
					return struct{}{}, s.SwapRef(w.ctx, w.tenant, "a", old, nexts[i])
				})
				old = nexts[w.winner(errs, psych.ErrConflict, "SwapRef")]
				w.hasRef("a", old, "after a contended SwapRef")
			}
		})),
		storeRule("GetRefsMany", "GetRefs returns all refs that exist of the names that it is asked for, and no others, however many.", func(w *world) {
			want := make(map[string]psych.Ref)
			var names []string
			for i := range 120 {
				name := fmt.Sprintf("%0300d", i) // many, and long: over one batch of a backend
				names = append(names, name, name+"x")
				want[name] = w.next(psych.Ref{}, time.Time{})
				w.swap(name, psych.Ref{}, want[name])
			}
			w.swap("not asked for", psych.Ref{}, w.next(psych.Ref{}, time.Time{}))
			got := w.refs(append(names, names[:3]...)...)
			w.check(maps.EqualFunc(got, want, psych.Ref.Equal), "GetRefs of %d names, of which %d have a ref, returned %d refs, or others", len(names), len(want), len(got))
			w.check(len(w.refs()) == 0, "GetRefs of no names returned refs")
			w.check(len(w.refs("x", "y")) == 0, "GetRefs of names without a ref returned refs")
		}),
		storeRule("RefsApart", "Any character is legal in a name, of 1 to MaxRefName bytes, and no two refs meet, nor those of two tenants.", func(w *world) {
			u := w.tenant
			other := w.f.Tenant()
			keys := []psych.RefKey{
				{Tenant: u, Name: "a"}, {Tenant: u, Name: "A"}, {Tenant: u, Name: "a "}, {Tenant: u, Name: " a"}, {Tenant: u, Name: "a\x00"}, {Tenant: u, Name: "a%00"},
				{Tenant: u, Name: "a/b"}, {Tenant: u + "/a", Name: "b"}, {Tenant: u, Name: "a#b"}, {Tenant: u + "#a", Name: "b"}, {Tenant: u, Name: "a\x00b"}, {Tenant: u + "\x00a", Name: "b"},
				{Tenant: u, Name: "."}, {Tenant: u, Name: ".."}, {Tenant: u, Name: "../a"}, {Tenant: u, Name: "é"}, {Tenant: u, Name: "e\u0301"}, {Tenant: u, Name: "日本🙂"},
				{Tenant: u, Name: strings.Repeat("x", psych.MaxRefName)}, {Tenant: u, Name: strings.Repeat("x", psych.MaxRefName-1)}, {Tenant: u, Name: strings.Repeat("x", psych.MaxRefName-1) + "y"},
				{Tenant: other, Name: "a"}, {Tenant: other, Name: "a/b"},
			}
			refs := make([]psych.Ref, len(keys))
			for i, key := range keys {
				refs[i] = w.next(psych.Ref{}, time.Time{})
				w.ok(w.SwapRef(w.ctx, key.Tenant, key.Name, psych.Ref{}, refs[i]), "SwapRef %s", key)
			}
			for i, key := range keys {
				got, err := w.GetRefs(w.ctx, key.Tenant, []string{key.Name})
				w.ok(err, "GetRefs %s", key)
				w.check(len(got) == 1 && got[key.Name].Equal(refs[i]), "GetRefs of %s returned %v, want %v", key, got, refs[i])
			}
			got, err := w.GetRefs(w.ctx, w.f.Tenant(), []string{"a", "a/b"})
			w.ok(err, "GetRefs")
			w.check(len(got) == 0, "GetRefs of a tenant without refs returned %v", got)
		}),
		storeRule("RefKeysInvalid", "A name that is not 1 to MaxRefName bytes of UTF-8 is ErrInvalid, as an illegal tenant is.", func(w *world) {
			for _, key := range []psych.RefKey{
				{Tenant: w.tenant}, {Tenant: w.tenant, Name: "\xff"}, {Tenant: w.tenant, Name: strings.Repeat("x", psych.MaxRefName+1)},
				{Name: "a"}, {Tenant: strings.Repeat("x", 129), Name: "a"}, {Tenant: w.tenant + "\xff", Name: "a"},
			} {
				w.is(w.SwapRef(w.ctx, key.Tenant, key.Name, psych.Ref{}, w.next(psych.Ref{}, time.Time{})), psych.ErrInvalid, "SwapRef of %.150q", key.String())
				_, err := w.GetRefs(w.ctx, key.Tenant, []string{"legal", key.Name})
				w.is(err, psych.ErrInvalid, "GetRefs of %.150q", key.String())
			}
		}),
		storeRule("DueRefsTime", "DueRefs lists a ref whose After is not after now, does not list it before, and never one without an After.", func(w *world) {
			first := w.next(psych.Ref{}, w.now.Add(time.Microsecond))
			w.swap("a", psych.Ref{}, first)
			w.swap("never", psych.Ref{}, w.next(psych.Ref{}, time.Time{}))
			w.refDueFrom("a", first.After, "as it was created")
			second := w.next(first, w.now.Add(time.Hour))
			w.swap("a", first, second)
			w.refDueFrom("a", second.After, "after a swap to a later time")
			third := w.next(second, w.now)
			w.swap("a", second, third)
			w.refDueFrom("a", third.After, "after a swap to an earlier time")
			w.swap("a", third, w.next(third, time.Time{}))
			w.eventually("a ref that lost its After is not listed, nor one that never had one", func() bool {
				counts := w.dueRefs(w.now.Add(1000*time.Hour), 500, w.refKey("a"), w.refKey("never"))
				return counts[0] == 0 && counts[1] == 0
			})
		}),
		storeRule("DueRefsPaging", "DueRefs lists at most limit a call, from 1, across tenants, and all of them by its cursor.", func(w *world) {
			var keys []psych.RefKey
			for i := range 3 {
				for _, tenant := range []string{w.tenant, w.f.Tenant(), w.f.Tenant() + "/\x00"} {
					key := psych.RefKey{Tenant: tenant, Name: fmt.Sprintf("ref %d/\x00", i)}
					keys = append(keys, key)
					w.refKeys[key] = true
					w.ok(w.SwapRef(w.ctx, tenant, key.Name, psych.Ref{}, w.next(psych.Ref{}, w.now.Add(time.Duration(i%2)*time.Second))), "SwapRef")
				}
			}
			for _, limit := range []int{1, 2, 4, 1000} {
				w.eventually(fmt.Sprintf("pages of %d list each ref once", limit), func() bool {
					return !slices.ContainsFunc(w.dueRefs(w.now.Add(time.Second), limit, keys...), func(n int) bool { return n != 1 })
				})
			}
		}),
		storeRule("DueRefsInvalid", "A cursor that DueRefs did not return and a limit below 1 are ErrInvalid.", func(w *world) {
			for i := range 3 {
				w.swap(fmt.Sprint(i), psych.Ref{}, w.next(psych.Ref{}, w.now))
				info := w.header(w.key())
				info.DueAt = w.now
				w.create(info)
			}
			for _, cursor := range []string{"nonsense", "\x00", "e30", "!!!"} {
				_, _, err := w.DueRefs(w.ctx, w.now, cursor, 10)
				w.is(err, psych.ErrInvalid, "DueRefs with the cursor %q", cursor)
			}
			runs, refs := "", ""
			w.eventually("Due and DueRefs return cursors", func() bool {
				var err error
				_, runs, err = w.Due(w.ctx, w.now, "", 1)
				w.ok(err, "Due")
				_, refs, err = w.DueRefs(w.ctx, w.now, "", 1)
				w.ok(err, "DueRefs")
				return runs != "" && refs != ""
			})
			_, _, err := w.DueRefs(w.ctx, w.now, runs, 10)
			w.is(err, psych.ErrInvalid, "DueRefs with a cursor of Due")
			_, _, err = w.Due(w.ctx, w.now, refs, 10)
			w.is(err, psych.ErrInvalid, "Due with a cursor of DueRefs")
			for _, limit := range []int{0, -1} {
				_, _, err := w.DueRefs(w.ctx, w.now, "", limit)
				w.is(err, psych.ErrInvalid, "DueRefs with limit %d", limit)
			}
		}),
		needs(Reopening, storeRule("RefReopened", "A ref is there and due when the backend is opened anew.", func(w *world) {
			ref := w.next(psych.Ref{}, w.now)
			w.swap("a", psych.Ref{}, ref)
			w.reopen()
			w.hasRef("a", ref, "after reopening")
			w.refDueFrom("a", w.now, "after reopening")
		})),
	}
}

// next makes a ref that may take the place of old.
func (w *world) next(old psych.Ref, after time.Time) psych.Ref {
	return psych.Ref{Doc: psych.Digest(random(32)), Seq: old.Seq + 1, After: after}
}

// refKey returns the key of a ref of the rule's tenant, which is retired at the end.
func (w *world) refKey(name string) psych.RefKey {
	key := psych.RefKey{Tenant: w.tenant, Name: name}
	w.refKeys[key] = true
	return key
}

func (w *world) swap(name string, old, next psych.Ref) {
	key := w.refKey(name)
	w.ok(w.SwapRef(w.ctx, key.Tenant, name, old, next), "SwapRef %.80q from seq %d", name, old.Seq)
}

func (w *world) refs(names ...string) map[string]psych.Ref {
	refs, err := w.GetRefs(w.ctx, w.tenant, names)
	w.ok(err, "GetRefs")
	return refs
}

func (w *world) hasRef(name string, want psych.Ref, what string) {
	got := w.refs(name)
	w.check(len(got) == 1 && got[name].Equal(want), "%s: the ref %q is %v, want %v", what, name, got, want)
}

func (w *world) noRef(name, what string) {
	got := w.refs(name)
	w.check(len(got) == 0, "%s: the ref %q is %v, want none", what, name, got)
}

// refDueFrom ends the rule unless a ref comes to be due at a time, and not before.
func (w *world) refDueFrom(name string, at time.Time, what string) {
	key := w.refKey(name)
	w.eventually(what+", the ref is due at its time", func() bool { return w.dueRefs(at, 500, key)[0] > 0 })
	w.eventually(what+", the ref is not due before", func() bool { return w.dueRefs(at.Add(-time.Microsecond), 500, key)[0] == 0 })
}

// dueRefs lists by pages what is due, and returns how often each of keys is there.
func (w *world) dueRefs(now time.Time, limit int, keys ...psych.RefKey) []int {
	counts := make([]int, len(keys))
	seen := make(map[string]bool)
	for cursor := ""; ; {
		page, next, err := w.DueRefs(w.ctx, now, cursor, limit)
		w.ok(err, "DueRefs")
		w.check(len(page) <= limit, "DueRefs: %d refs, more than the limit %d", len(page), limit)
		for i, key := range keys {
			for _, k := range page {
				if k == key {
					counts[i]++
				}
			}
		}
		if next == "" {
			return counts
		}
		w.check(!seen[next], "DueRefs: the cursor %.80q came twice: the list does not advance", next)
		seen[next] = true
		cursor = next
	}
}
