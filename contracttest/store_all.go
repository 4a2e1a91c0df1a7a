package contracttest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// storeRules are the rules that hold for every method.
func storeRules() []Rule[psych.Store] {
	return []Rule[psych.Store]{
		storeRule("ContextEnded", "Every method looks at ctx before it acts: with one that has ended it returns its error and does nothing.", func(w *world) {
			canceled, cancel := context.WithCancel(w.ctx)
			cancel()
			expired, cancel := context.WithDeadline(w.ctx, time.Unix(0, 0))
			defer cancel()
			for _, c := range []struct {
				ctx  context.Context
				want error
			}{{canceled, context.Canceled}, {expired, context.DeadlineExceeded}} {
				info, l := w.full(w.header(w.key()))
				key := info.Key
				idle := w.header(w.key())
				idle.DueAt = w.now
				w.create(idle)
				gone := w.key()
				w.delete(gone, w.now)
				w.log(gone, 1)
				before, notes, entries := w.get(key), w.pending(key), w.readAll(key, psych.Pos{}, 10)
				head, err := w.Head(w.ctx, key)
				w.ok(err, "Head")
				absent := w.header(w.key())
				doc := random(100)
				ref := w.next(psych.Ref{}, time.Time{})

				ctx := c.ctx
				for method, call := range map[string]func() error{
					"Append":    func() error { _, err := w.Append(ctx, key, head, w.small(head.Seq, 1)); return err },
					"Read":      func() error { _, err := w.Read(ctx, key, psych.Pos{}, 1); return err },
					"Head":      func() error { _, err := w.Head(ctx, key); return err },
					"CreateRun": func() error { _, _, err := w.CreateRun(ctx, absent); return err },
					"GetRun":    func() error { _, err := w.GetRun(ctx, key); return err },
					"Post":      func() error { return w.Post(ctx, key, w.note("late", w.now), w.now.Add(-time.Hour)) },
					"Pending":   func() error { _, err := w.Pending(ctx, key); return err },
					"Settle":    func() error { return w.Settle(ctx, key, notes) },
					"Claim":     func() error { _, err := w.Claim(ctx, idle.Key, "me", "token", w.now, time.Minute); return err },
					"Renew":     func() error { _, err := w.Renew(ctx, l, w.now, 10*time.Minute); return err },
					"Release":   func() error { return w.Release(ctx, l, time.Time{}, psych.StatusFailed) },
					"Defer":     func() error { return w.Defer(ctx, before, w.now, w.now.Add(time.Hour)) },
					"DeleteRun": func() error { return w.DeleteRun(ctx, key, w.now) },
					"PurgeRun":  func() error { return w.PurgeRun(ctx, gone, w.now.Add(psych.TombstoneLife)) },
					"Due":       func() error { _, _, err := w.Due(ctx, w.now, "", 1); return err },
					"ListRuns":  func() error { _, _, err := w.ListRuns(ctx, w.tenant, "", 1); return err },
					"PutDoc":    func() error { return w.PutDoc(ctx, w.tenant, sha256.Sum256(doc), doc) },
					"GetDoc":    func() error { _, err := w.GetDoc(ctx, w.tenant, sha256.Sum256(doc)); return err },
					"DueRefs":   func() error { _, _, err := w.DueRefs(ctx, w.now, "", 1); return err },
					"GetRefs":   func() error { _, err := w.GetRefs(ctx, w.tenant, []string{"a"}); return err },
					"SwapRef":   func() error { return w.SwapRef(ctx, w.tenant, "a", psych.Ref{}, ref) },
				} {
					w.is(call(), c.want, "%s with a context that has ended", method)
				}

				w.unchanged(before, "after calls with a context that had ended")
				w.unchanged(idle, "after calls with a context that had ended")
				w.waits(key, "after calls with a context that had ended", notes...)
				w.holds(key, entries, "after calls with a context that had ended")
				_, err = w.GetRun(w.ctx, absent.Key)
				w.is(err, psych.ErrNotFound, "GetRun of a Run whose CreateRun had no context")
				_, err = w.Append(w.ctx, gone, psych.Pos{}, w.small(0, 1))
				w.is(err, psych.ErrConflict, "Append behind the start of a log whose PurgeRun had no context")
				_, err = w.GetDoc(w.ctx, w.tenant, sha256.Sum256(doc))
				w.is(err, psych.ErrNotFound, "GetDoc of a document whose PutDoc had no context")
				w.noRef("a", "after a SwapRef without a context")
			}
		}),
		storeRule("KeysInvalid", "A key that is not a tenant of 1 to 128 bytes of UTF-8 and 32 lower-case hexadecimal digits is ErrInvalid for every method.", func(w *world) {
			id := w.key().RunID
			for _, key := range []psych.RunKey{
				{}, {Tenant: w.tenant}, {RunID: id},
				{Tenant: strings.Repeat("x", 129), RunID: id},
				{Tenant: w.tenant + "\xff", RunID: id},
				{Tenant: w.tenant, RunID: id[1:]}, {Tenant: w.tenant, RunID: id + "0"},
				{Tenant: w.tenant, RunID: "A" + id[1:]}, {Tenant: w.tenant, RunID: "../" + id[3:]}, {Tenant: w.tenant, RunID: "g" + id[1:]},
			} {
				info := w.header(key)
				info.DueAt = w.now
				l := psych.Lease{Key: key, Epoch: 1, Until: w.now}
				d := psych.Digest(sha256.Sum256(nil))
				calls := map[string]func() error{
					"Append":    func() error { _, err := w.Append(w.ctx, key, psych.Pos{}, w.small(0, 1)); return err },
					"Read":      func() error { _, err := w.Read(w.ctx, key, psych.Pos{}, 1); return err },
					"Head":      func() error { _, err := w.Head(w.ctx, key); return err },
					"CreateRun": func() error { _, _, err := w.CreateRun(w.ctx, info); return err },
					"GetRun":    func() error { _, err := w.GetRun(w.ctx, key); return err },
					"Post":      func() error { return w.Post(w.ctx, key, w.note("m", w.now), w.now) },
					"Pending":   func() error { _, err := w.Pending(w.ctx, key); return err },
					"Settle":    func() error { return w.Settle(w.ctx, key, []psych.Note{w.note("m", w.now)}) },
					"Claim":     func() error { _, err := w.Claim(w.ctx, key, "me", "token", w.now, time.Minute); return err },
					"Renew":     func() error { _, err := w.Renew(w.ctx, l, w.now, time.Minute); return err },
					"Release":   func() error { return w.Release(w.ctx, l, w.now, psych.StatusOpen) },
					"Defer":     func() error { return w.Defer(w.ctx, info, w.now, w.now.Add(time.Minute)) },
					"DeleteRun": func() error { return w.DeleteRun(w.ctx, key, w.now) },
					"PurgeRun":  func() error { return w.PurgeRun(w.ctx, key, w.now) },
				}
				if psych.CheckTenant(key.Tenant) != nil {
					calls["ListRuns"] = func() error { _, _, err := w.ListRuns(w.ctx, key.Tenant, "", 1); return err }
					calls["PutDoc"] = func() error { return w.PutDoc(w.ctx, key.Tenant, d, nil) }
					calls["GetDoc"] = func() error { _, err := w.GetDoc(w.ctx, key.Tenant, d); return err }
					calls["GetRefs"] = func() error { _, err := w.GetRefs(w.ctx, key.Tenant, nil); return err }
					calls["SwapRef"] = func() error { return w.SwapRef(w.ctx, key.Tenant, "a", psych.Ref{}, psych.Ref{Seq: 1}) }
				}
				for method, call := range calls {
					w.is(call(), psych.ErrInvalid, "%s of %.150q", method, key.String())
				}
			}
		}),
		storeRule("TenantsApart", "Any character is legal in a tenant, and no two tenants meet, whatever their names look like.", func(w *world) {
			u := w.tenant
			tenants := []string{
				u, strings.ToLower(u), strings.ToUpper(u), u + "/b", u + "%2Fb", u + "%2fb", u + `\b`, u + "\x00", u + "\x00b", u + "%00",
				u + "#", u + "#b", u + ":b", u + " ", " " + u, u + ".", u + "..", "../" + u, "/" + u, u + "/", u + "/../" + u, u + "\n", u + "'--", u + "*", u + "_", u + "%",
				u + "é", u + "e\u0301", u + "日本", u + "🙂", u + "\u202e",
				u + strings.Repeat("x", 128-len(u)), u + strings.Repeat("x", 127-len(u)), u + strings.Repeat("x", 127-len(u)) + "y", strings.Repeat("é", (128-len(u))/2) + u,
				".", "..", "/", "\x00", "CON",
			}
			id := w.key().RunID
			var infos []psych.RunInfo
			for _, tenant := range tenants {
				info := w.header(w.keep(psych.RunKey{Tenant: tenant, RunID: id}))
				info.DueAt = w.now
				infos = append(infos, w.create(info))
				b := w.batch(0, []byte(tenant))
				w.append(info.Key, psych.Pos{}, b)
				w.post(info.Key, psych.Note{ID: "m", Kind: psych.KindUserMessage, Time: w.now, Data: []byte(tenant)}, w.now)
				infos[len(infos)-1].Posted++
				w.putDoc(tenant, []byte(u+"\n"+tenant))
			}
			// A document of one's neighbor is not one's own.
			for i, tenant := range tenants {
				d := psych.Digest(sha256.Sum256([]byte(u + "\n" + tenant)))
				w.hasDoc(tenant, d, []byte(u+"\n"+tenant))
				_, err := w.GetDoc(w.ctx, tenants[(i+1)%len(tenants)], d)
				w.is(err, psych.ErrNotFound, "GetDoc by tenant %q of a document of tenant %q", tenants[(i+1)%len(tenants)], tenant)
			}
			for i, info := range infos {
				tenant := info.Key.Tenant
				w.unchanged(info, fmt.Sprintf("for tenant %q", tenant))
				page := w.read(info.Key, psych.Pos{}, 10)
				w.check(len(page.Entries) == 1 && string(page.Entries[0].Data) == tenant, "the log of tenant %q holds %d entries, the last not its own", tenant, len(page.Entries))
				notes := w.pending(info.Key)
				w.check(len(notes) == 1 && string(notes[0].Data) == tenant, "the inbox of tenant %q holds %d notes, the last not its own", tenant, len(notes))
				w.eventually(fmt.Sprintf("the Run of tenant %q is listed, and none of another", tenant), func() bool {
					runs := w.list(tenant, 100)
					return slices.ContainsFunc(runs, sameKey(info)) && !slices.ContainsFunc(runs, func(r psych.RunInfo) bool { return r.Key.Tenant != tenant })
				})
				if i%2 == 0 {
					w.delete(info.Key, w.now)
				}
			}
			keys := make([]psych.RunKey, len(infos))
			for i, info := range infos {
				keys[i] = info.Key
				if i%2 == 1 {
					w.unchanged(info, fmt.Sprintf("for tenant %q, after its neighbors' Runs were deleted", info.Key.Tenant))
				}
			}
			w.eventually("Due lists the Runs that are left under their tenants", func() bool {
				counts := w.due(w.now, 500, keys...)
				for i, n := range counts {
					if (n == 1) != (i%2 == 1) {
						return false
					}
				}
				return true
			})
		}),
		storeRule("Concurrency", "All methods may be called concurrently, on one Run and on many.", func(w *world) {
			shared := w.run()
			keys := make([]psych.RunKey, 8)
			infos := make([]psych.RunInfo, len(keys))
			for i := range keys {
				keys[i] = w.key()
				infos[i] = w.header(keys[i])
			}
			const rounds = 8
			batches := make([][]psych.Batch, len(keys))
			for i := range batches {
				for r := range rounds {
					batches[i] = append(batches[i], w.small(uint64(2*r), 2))
				}
			}
			doc := random(1000)
			d := psych.Digest(sha256.Sum256(doc))
			handles := []psych.Store{w.Store, w.second()}
			errs := make([]error, len(keys))
			var g sync.WaitGroup
			for i, key := range keys {
				g.Go(func() { errs[i] = work(w, handles[i%2], key, infos[i], batches[i], shared, d, doc) })
			}
			g.Wait()
			for i, key := range keys {
				w.ok(errs[i], "concurrent worker %d", i)
				var want []psych.Entry
				for _, b := range batches[i] {
					want = append(want, b.Entries...)
				}
				w.holds(key, want, "after concurrent work")
				info := w.get(key)
				w.check(info.Epoch == rounds && info.Owner == "", "after %d claims and releases the epoch is %d and the owner %q", rounds, info.Epoch, info.Owner)
			}
			info := w.get(shared)
			w.check(info.Posted == int64(rounds*len(keys)), "Posted of the shared Run is %d after %d concurrent posts", info.Posted, rounds*len(keys))
			w.check(len(w.pending(shared)) == 0, "%d notes of the shared Run were not settled", len(w.pending(shared)))
		}),
	}
}

// work is what one of several workers does at once: all of a Run of its own,
// and posts to one that they share.
func work(w *world, s psych.Store, key psych.RunKey, info psych.RunInfo, batches []psych.Batch, shared psych.RunKey, d psych.Digest, doc []byte) error {
	ctx := w.ctx
	if _, _, err := s.CreateRun(ctx, info); err != nil {
		return err
	}
	var pos psych.Pos
	var last psych.Ref
	for i, b := range batches {
		now := w.now.Add(time.Duration(i) * time.Second)
		l, err := s.Claim(ctx, key, "worker", fmt.Sprint("token ", i), now, time.Minute)
		if err != nil {
			return err
		}
		end, err := s.Append(ctx, key, pos, b)
		if err != nil {
			return err
		}
		page, err := s.Read(ctx, key, pos, 10)
		if err != nil {
			return err
		}
		if diff := entriesDiff(page.Entries, b.Entries); diff != "" {
			return fmt.Errorf("in a Read of what was just appended: %s", diff)
		}
		pos = end

		n := psych.Note{ID: fmt.Sprintf("%s %d", key.RunID, i), Kind: psych.KindUserMessage, Time: now, Data: []byte(key.RunID)}
		if err := s.Post(ctx, shared, n, now); err != nil {
			return err
		}
		notes, err := s.Pending(ctx, shared)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(notes, func(o psych.Note) bool { return o.ID == n.ID && bytes.Equal(o.Data, n.Data) }) {
			return errors.New("a note that was just posted does not wait")
		}
		if err := s.Settle(ctx, shared, []psych.Note{n}); err != nil {
			return err
		}
		if err := s.PutDoc(ctx, key.Tenant, d, doc); err != nil {
			return err
		}
		got, err := s.GetDoc(ctx, key.Tenant, d)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, doc) {
			return errors.New("a document that was just put has other bytes")
		}
		ref := psych.Ref{Doc: d, Seq: int64(i + 1)}
		if err := s.SwapRef(ctx, key.Tenant, key.RunID, last, ref); err != nil {
			return err
		}
		last = ref
		refs, err := s.GetRefs(ctx, key.Tenant, []string{key.RunID})
		if err != nil {
			return err
		}
		if !refs[key.RunID].Equal(ref) {
			return errors.New("a ref that was just swapped is another")
		}
		if _, _, err := s.Due(ctx, now, "", 10); err != nil {
			return err
		}
		if _, _, err := s.DueRefs(ctx, now, "", 10); err != nil {
			return err
		}
		if _, _, err := s.ListRuns(ctx, key.Tenant, "", 10); err != nil {
			return err
		}
		if l, err = s.Renew(ctx, l, now, time.Minute); err != nil {
			return err
		}
		if err := s.Release(ctx, l, now.Add(time.Hour), psych.StatusOpen); err != nil {
			return err
		}
	}
	return nil
}
