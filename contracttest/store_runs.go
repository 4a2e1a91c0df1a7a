package contracttest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// runsRules are the rules of headers.
func runsRules() []Rule[psych.Store] {
	return []Rule[psych.Store]{
		storeRule("CreateRunReadBack", "CreateRun writes the header as it is given and returns it; GetRun reads it, consistently.", func(w *world) {
			info := w.header(w.key())
			info.Scope.Principal = "pr/in\x00cip%2Fal ü"
			info.Scope.Labels = map[string]string{"": "empty", "a b": "", "\x00": "日本", "A": "1", "a": "2"}
			info.CreatedAt = w.now.Add(123_456_000)
			info.ExpiresAt = w.now.Add(48*time.Hour + time.Microsecond).In(time.FixedZone("", -3600))
			info.DueAt = w.now.Add(30*time.Second + 999_999_000)
			info.Status = "a status of a newer release"
			got := w.create(info)
			w.check(infoDiff(got, info) == "", "CreateRun returned another header: %s", infoDiff(got, info))
			w.unchanged(info, "after CreateRun")
			got, err := w.second().GetRun(w.ctx, info.Key)
			w.ok(err, "GetRun on another handle")
			w.check(infoDiff(got, info) == "", "GetRun on another handle: %s", infoDiff(got, info))

			plain := psych.RunInfo{Key: w.key(), Scope: psych.Scope{Tenant: w.tenant}, CreatedAt: w.now}
			w.create(plain)
			w.unchanged(plain, "after CreateRun with zero fields")
			got = w.get(plain.Key)
			w.check(got.DueAt.IsZero() && got.ExpiresAt.IsZero(), "zero times came back as %v and %v", got.DueAt, got.ExpiresAt)
		}),
		storeRule("CreateRunTwice", "CreateRun of a Run that exists for the same Request returns its header unchanged, with created false.", func(w *world) {
			info := w.create(w.header(w.key()))
			w.post(info.Key, w.note("m", w.now), w.now)
			w.claim(info.Key, w.now, time.Minute)
			before := w.get(info.Key)
			again := w.header(info.Key)
			again.Request = info.Request
			again.DueAt, again.CreatedAt = w.now.Add(time.Minute), w.now.Add(time.Minute)
			got, created, err := w.CreateRun(w.ctx, again)
			w.ok(err, "CreateRun, the second time")
			w.check(!created, "created is true the second time")
			w.check(infoDiff(got, before) == "", "the second CreateRun returned another header: %s", infoDiff(got, before))
			w.unchanged(before, "after the second CreateRun")
		}),
		storeRule("CreateRunConflict", "CreateRun of a Run that exists for another Request is ErrConflict, and changes nothing.", func(w *world) {
			info := w.create(w.header(w.key()))
			_, created, err := w.CreateRun(w.ctx, w.header(info.Key))
			w.is(err, psych.ErrConflict, "CreateRun for another Request")
			w.check(!created, "created is true beside an error")
			w.unchanged(info, "after a CreateRun for another Request")
		}),
		needs(Contention, storeRule("CreateRunContended", "Of N concurrent CreateRuns for one Request one creates, and all return the header that it wrote.", func(w *world) {
			first := w.header(w.key())
			type result struct {
				info    psych.RunInfo
				created bool
			}
			results, errs := contend(w, contenders, func(s psych.Store, i int) (result, error) {
				info := first
				info.Incarnation = fmt.Sprint("incarnation ", i)
				got, created, err := s.CreateRun(w.ctx, info)
				return result{got, created}, err
			})
			n, kept := 0, w.get(first.Key)
			for i, r := range results {
				w.ok(errs[i], "CreateRun, concurrently")
				w.check(infoDiff(r.info, kept) == "", "one of the callers got another header: %s", infoDiff(r.info, kept))
				if r.created {
					n++
				}
			}
			w.check(n == 1, "created is true for %d of %d callers, want 1", n, contenders)
			for i, r := range results {
				w.check(!r.created || r.info.Incarnation == fmt.Sprint("incarnation ", i), "the caller that created got the header of another")
			}
		})),
		storeRule("CreateRunOwnership", "A header shares no memory with what the caller gave or got.", func(w *world) {
			info := w.header(w.key())
			want := w.header(info.Key).Scope
			got := w.create(info)
			info.Scope.Labels["team"] = "overwritten"
			got.Scope.Labels["team"] = "overwritten"
			w.get(info.Key).Scope.Labels["team"] = "overwritten"
			l := w.claim(info.Key, w.now, time.Minute)
			l.Info.Scope.Labels["team"] = "overwritten"
			w.check(w.get(info.Key).Scope.Labels["team"] == want.Labels["team"], "a label that the caller changed in its own map has changed in the store")
		}),
		storeRule("GetRunMissing", "GetRun of a Run that is not there is ErrNotFound, and so is another tenant's.", func(w *world) {
			_, err := w.GetRun(w.ctx, w.key())
			w.is(err, psych.ErrNotFound, "GetRun of a Run that never was")
			key := w.run()
			_, err = w.GetRun(w.ctx, psych.RunKey{Tenant: w.f.Tenant(), RunID: key.RunID})
			w.is(err, psych.ErrNotFound, "GetRun of another tenant's Run")
		}),
		needs(Reopening, storeRule("RunReopened", "Header, lease and inbox are there when the backend is opened anew.", func(w *world) {
			key := w.run()
			n := w.note("m", w.now)
			w.post(key, n, w.now.Add(time.Minute))
			l := w.claim(key, w.now, time.Minute)
			before := w.get(key)
			w.reopen()
			w.unchanged(before, "after reopening")
			w.waits(key, "after reopening", n)
			_, err := w.Claim(w.ctx, key, "another", "token", w.now, time.Minute)
			w.is(err, psych.ErrLeaseHeld, "Claim of a lease from before")
			w.release(l, time.Time{})
		})),
	}
}

// inboxRules are the rules of notes.
func inboxRules() []Rule[psych.Store] {
	return []Rule[psych.Store]{
		storeRule("PostReadBack", "When Post returns the note waits, every field as it came, Posted has grown by one and the Run is due.", func(w *world) {
			key, other := w.run(), w.second()
			var want []psych.Note
			for i, id := range []string{"m", "é/\x00#..%2F", strings.Repeat("x", 128)} {
				n := psych.Note{ID: id, Kind: psych.KindAbortRequested, Time: w.now.Add(time.Duration(i+1) * time.Microsecond), Data: allBytes()}
				w.post(key, n, w.now.Add(time.Minute))
				want = append(want, n)
				w.waits(key, "just after Post", want...)
				got, err := other.Pending(w.ctx, key)
				w.ok(err, "Pending on another handle")
				w.check(len(got) == len(want), "another handle sees %d notes just after Post, want %d", len(got), len(want))
				info := w.get(key)
				w.check(info.Posted == int64(i+1), "Posted is %d after %d posts", info.Posted, i+1)
				w.check(info.DueAt.Equal(w.now.Add(time.Minute)), "DueAt is %v after a Post, want %v", info.DueAt, w.now.Add(time.Minute))
			}
			w.post(key, psych.Note{ID: "no data", Kind: psych.KindUserMessage, Time: w.now}, w.now)
			w.check(len(w.pending(key)[0].Data) == 0, "a note without data came back with some")
		}),
		storeRule("PostMissing", "Without a header Post is ErrNotFound, and nothing is put.", func(w *world) {
			key := w.key()
			err := w.Post(w.ctx, key, w.note("m", w.now), w.now)
			w.is(err, psych.ErrNotFound, "Post to a Run that never was")
			w.create(w.header(key))
			w.waits(key, "after a Post from before the Run was created")
			w.check(w.get(key).Posted == 0, "Posted is not 0")
		}),
		storeRule("PostDue", "Post moves DueAt to due if it is later or zero, to no later time, whoever holds the lease.", func(w *world) {
			for _, held := range []bool{false, true} {
				key := w.run()
				if held {
					w.claim(key, w.now, time.Minute)
				}
				for i, step := range []struct{ post, want time.Duration }{
					{10 * time.Minute, 10 * time.Minute},
					{20 * time.Minute, 10 * time.Minute},
					{10*time.Minute - time.Microsecond, 10*time.Minute - time.Microsecond},
					{-time.Minute, -time.Minute},
					{0, -time.Minute},
				} {
					w.post(key, w.note(fmt.Sprint(i), w.now), w.now.Add(step.post))
					got := w.get(key).DueAt.Sub(w.now)
					w.check(got == step.want, "Post %d with due at %v (lease held: %v): DueAt is %v, want %v", i, step.post, held, got, step.want)
				}
			}
		}),
		storeRule("PostKeepsLease", "Post leaves the lease as it is.", func(w *world) {
			key := w.run()
			l := w.claim(key, w.now, time.Minute)
			w.post(key, w.note("m", w.now), w.now)
			info := w.get(key)
			w.check(info.Epoch == l.Epoch && info.Owner == "owner" && info.Until.Equal(l.Until), "after a Post the lease is %d of %q until %v, want %d of %q until %v", info.Epoch, info.Owner, info.Until, l.Epoch, "owner", l.Until)
		}),
		storeRule("PostRepeatedID", "A note posted again succeeds, may wait twice, and is gone once what waits is settled.", func(w *world) {
			key := w.run()
			n := w.note("m", w.now)
			w.post(key, n, w.now.Add(time.Minute))
			w.post(key, n, w.now.Add(time.Minute))
			later := n
			later.Time = n.Time.Add(time.Second)
			w.post(key, later, w.now)
			w.check(w.get(key).DueAt.Equal(w.now), "the repetition did not make the Run due")
			notes := w.pending(key)
			w.check(len(notes) >= 1 && len(notes) <= 3, "%d notes wait after one was posted three times", len(notes))
			for _, got := range notes {
				w.check(got.ID == "m" && bytes.Equal(got.Data, n.Data), "%q waits, which nobody posted", got.ID)
			}
			w.ok(w.Settle(w.ctx, key, notes), "Settle")
			w.waits(key, "after the notes were settled")
		}),
		storeRule("PostKinds", "Notes of two kinds that share an ID, and a Time, are two notes: both wait, and are settled each.", func(w *world) {
			key := w.run()
			a := psych.Note{ID: "m", Kind: psych.KindAbortRequested, Time: w.now, Data: []byte("abort")}
			m := w.note("m", w.now)
			later := a
			later.ID, later.Time = "n", w.now.Add(time.Microsecond)
			before := w.note("n", w.now.Add(-time.Microsecond))
			for _, n := range []psych.Note{m, a, before, later} {
				w.post(key, n, w.now)
			}
			w.check(w.get(key).Posted == 4, "Posted is %d after four posts", w.get(key).Posted)
			w.waits(key, "after notes of two kinds with one id", before, a, m, later)
			w.ok(w.Settle(w.ctx, key, []psych.Note{{ID: "m", Kind: m.Kind, Time: m.Time}}), "Settle")
			w.waits(key, "after one of two kinds was settled", before, a, later)
		}),
		storeRule("PostFull", "When MaxPending notes wait Post is ErrInboxFull, but for a Kind and ID that wait already, and makes the Run due all the same.", func(w *world) {
			key := w.run()
			for i := range psych.MaxPending {
				w.post(key, w.note(fmt.Sprintf("m%03d", i), w.now.Add(time.Duration(i)*time.Microsecond)), w.now.Add(time.Hour))
			}
			err := w.Post(w.ctx, key, w.note("one too many", w.now), w.now.Add(time.Minute))
			w.is(err, psych.ErrInboxFull, "Post to a full inbox")
			notes := w.pending(key)
			w.check(len(notes) == psych.MaxPending, "%d notes wait, want %d", len(notes), psych.MaxPending)
			w.check(!slices.ContainsFunc(notes, func(n psych.Note) bool { return n.ID == "one too many" }), "the note that was refused waits")
			other := notes[0]
			other.Kind = psych.KindAbortRequested
			w.is(w.Post(w.ctx, key, other, w.now.Add(time.Minute)), psych.ErrInboxFull, "Post to a full inbox of a note of another kind than one that waits")
			w.check(w.get(key).DueAt.Equal(w.now.Add(time.Minute)), "a refused Post did not make the Run due: DueAt is %v, want %v", w.get(key).DueAt, w.now.Add(time.Minute))

			w.post(key, w.note("m007", w.now.Add(7*time.Microsecond)), w.now.Add(time.Second))
			w.check(w.get(key).DueAt.Equal(w.now.Add(time.Second)), "a Post of a note that waits did not make the Run due")

			w.ok(w.Settle(w.ctx, key, notes[:1]), "Settle")
			w.ok(w.Settle(w.ctx, key, w.pending(key)[:1]), "Settle")
			w.post(key, w.note("one too many", w.now), w.now)
		}),
		storeRule("PostLargest", "A note of MaxNoteBytes is legal, one over it is ErrTooLarge and is not put.", func(w *world) {
			key := w.run()
			n := w.note("m", w.now)
			n.Data = random(psych.MaxNoteBytes + 1)
			w.is(w.Post(w.ctx, key, n, w.now), psych.ErrTooLarge, "Post of a note of MaxNoteBytes and one byte")
			w.waits(key, "after a note that is too large")
			n.Data = n.Data[1:]
			w.post(key, n, w.now)
			w.waits(key, "after a note of the largest size", n)
		}),
		storeRule("PostInvalid", "A note whose id is not 1 to 128 bytes of UTF-8, or whose kind is not 1 to 64 bytes of a to z and _, is ErrInvalid and is not put.", func(w *world) {
			key := w.run()
			for _, id := range []string{"", strings.Repeat("x", 129), "\xff"} {
				w.is(w.Post(w.ctx, key, w.note(id, w.now), w.now), psych.ErrInvalid, "Post of a note with id %.20q", id)
			}
			for _, kind := range []psych.Kind{"", "a\x00b", "User", psych.Kind(strings.Repeat("x", 65))} {
				n := w.note("m", w.now)
				n.Kind = kind
				w.is(w.Post(w.ctx, key, n, w.now), psych.ErrInvalid, "Post of a note of kind %.20q", string(kind))
			}
			w.waits(key, "after illegal notes")
			w.check(w.get(key).Posted == 0, "Posted is not 0 after illegal notes")
		}),
		storeRule("PostOwnership", "Post keeps nothing of the note's memory, and what Pending returns is the caller's.", func(w *world) {
			key := w.run()
			n, want := w.note("m", w.now), w.note("m", w.now)
			w.post(key, n, w.now)
			clear(n.Data)
			w.waits(key, "after the caller has overwritten its note", want)
			clear(w.pending(key)[0].Data)
			w.waits(key, "after the caller has overwritten what Pending returned", want)
		}),
		needs(Contention, storeRule("PostContended", "Concurrent Posts are all kept and all counted.", func(w *world) {
			key := w.run()
			_, errs := contend(w, contenders, func(s psych.Store, i int) (struct{}, error) {
				return struct{}{}, s.Post(w.ctx, key, w.note(fmt.Sprintf("m%02d", i), w.now.Add(time.Duration(i)*time.Microsecond)), w.now.Add(time.Duration(i)*time.Second))
			})
			var want []psych.Note
			for i, err := range errs {
				w.ok(err, "Post, concurrently")
				want = append(want, w.note(fmt.Sprintf("m%02d", i), w.now.Add(time.Duration(i)*time.Microsecond)))
			}
			w.waits(key, "after concurrent posts", want...)
			info := w.get(key)
			w.check(info.Posted == contenders, "Posted is %d after %d concurrent posts", info.Posted, contenders)
			w.check(info.DueAt.Equal(w.now), "DueAt is %v, want %v, the earliest of concurrent posts", info.DueAt, w.now)
		})),
		storeRule("PendingOrder", "Pending returns notes in order of Time, then ID, then Kind, whatever the order in which they were posted.", func(w *world) {
			key := w.run()
			var want []psych.Note
			for i, t := range []time.Time{time.Unix(999, 999_999_000), time.Unix(1000, 0), time.Unix(1e8-1, 0), time.Unix(1e8, 1000), w.now, w.now.Add(time.Microsecond), w.now.Add(time.Second)} {
				for _, id := range []string{"\x00", "#", "10", "2", "B", "a", "aa", "ab", "b", "é", "日"} {
					n := w.note(fmt.Sprint(id, " ", i), t)
					if id == "a" {
						abort := n
						abort.Kind = psych.KindAbortRequested
						want = append(want, abort)
					}
					want = append(want, n)
				}
				for _, id := range []string{"", "\x00y"} { // what separates in one store's keys may be in an id
					want = append(want, w.note(fmt.Sprint("鿿", i, id), t))
				}
			}
			for _, i := range rand.Perm(len(want)) {
				w.post(key, want[i], w.now)
			}
			w.waits(key, "after posts in random order", want...)
		}),
		storeRule("PendingAcrossPages", "Pending returns megabytes of notes, across the backend's pages.", func(w *world) {
			key := w.run()
			var want []psych.Note
			for i := range 20 {
				n := w.note(fmt.Sprintf("m%02d", i), w.now)
				n.Data = random(psych.MaxNoteBytes)
				w.post(key, n, w.now)
				want = append(want, n)
			}
			w.waits(key, "after 20 notes of the largest size", want...)
		}),
		storeRule("PendingMissing", "Without a header Pending is ErrNotFound; with one and no notes it is empty.", func(w *world) {
			_, err := w.Pending(w.ctx, w.key())
			w.is(err, psych.ErrNotFound, "Pending of a Run that never was")
			w.waits(w.run(), "in a new Run")
		}),
		storeRule("SettleNamed", "Settle removes the notes that Time, ID and Kind name, and no others.", func(w *world) {
			key, other := w.run(), w.run()
			a, b, c := w.note("a", w.now), w.note("b", w.now), w.note("c", w.now.Add(time.Microsecond))
			for _, n := range []psych.Note{a, b, c} {
				w.post(key, n, w.now)
			}
			w.post(other, b, w.now)
			w.ok(w.Settle(w.ctx, key, []psych.Note{{ID: "b", Kind: b.Kind, Time: b.Time}}), "Settle")
			w.waits(key, "after b was settled", a, c)
			w.ok(w.Settle(w.ctx, key, []psych.Note{{ID: "c", Kind: c.Kind, Time: c.Time.Add(time.Microsecond)}, {ID: "a", Kind: a.Kind, Time: c.Time}}), "Settle")
			w.waits(key, "after notes of other times were settled", a, c)
			w.waits(other, "in another Run", b)
		}),
		storeRule("SettleAbsent", "Notes that are not there, none at all and a Run that never was are no error of Settle.", func(w *world) {
			key := w.run()
			n := w.note("m", w.now)
			w.post(key, n, w.now)
			w.ok(w.Settle(w.ctx, key, nil), "Settle of nothing")
			w.ok(w.Settle(w.ctx, key, []psych.Note{w.note("x", w.now), n, w.note("y", w.now)}), "Settle of three notes of which one waits")
			w.waits(key, "after Settle")
			w.ok(w.Settle(w.ctx, key, []psych.Note{n}), "Settle of a settled note")
			w.ok(w.Settle(w.ctx, w.key(), []psych.Note{n}), "Settle in a Run that never was")
		}),
		storeRule("SettleMany", "Settle removes as many notes as may wait in one call.", func(w *world) {
			key := w.run()
			for i := range psych.MaxPending {
				w.post(key, w.note(fmt.Sprint(i), w.now), w.now)
			}
			w.ok(w.Settle(w.ctx, key, w.pending(key)), "Settle")
			w.waits(key, "after all were settled")
		}),
	}
}
