package contracttest

import (
	"fmt"
	"strings"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// leaseRules are the rules of Claim, Renew, Release and Defer.
func leaseRules() []Rule[psych.Store] {
	return []Rule[psych.Store]{
		storeRule("ClaimFree", "Claim of a free lease takes it until now+ttl under the next epoch, and returns Posted and the header.", func(w *world) {
			key := w.run()
			w.post(key, w.note("m", w.now), w.now)
			before := w.get(key)
			now := w.now.Add(7 * time.Microsecond)
			l, err := w.Claim(w.ctx, key, "me", "token", now, time.Minute)
			w.ok(err, "Claim")
			want := before
			want.Epoch, want.Owner, want.Until = before.Epoch+1, "me", now.Add(time.Minute)
			w.check(l.Key == key && l.Epoch == want.Epoch && l.Until.Equal(want.Until) && l.Posted == 1,
				"the lease is of %s, epoch %d, until %v, posted %d; want %s, %d, %v, 1", l.Key, l.Epoch, l.Until, l.Posted, key, want.Epoch, want.Until)
			w.unchanged(want, "beside the lease")
			w.check(infoDiff(l.Info, want) == "", "the header in the lease: %s", infoDiff(l.Info, want))
			got, err := w.second().GetRun(w.ctx, key)
			w.ok(err, "GetRun on another handle")
			w.check(infoDiff(got, want) == "", "another handle sees another header: %s", infoDiff(got, want))
		}),
		storeRule("ClaimMissing", "Without a header Claim, Renew, Release and Defer are ErrNotFound.", func(w *world) {
			key := w.key()
			_, err := w.Claim(w.ctx, key, "me", "token", w.now, time.Minute)
			w.is(err, psych.ErrNotFound, "Claim of a Run that never was")
			l := psych.Lease{Key: key, Epoch: 1, Until: w.now.Add(time.Minute)}
			_, err = w.Renew(w.ctx, l, w.now, time.Minute)
			w.is(err, psych.ErrNotFound, "Renew of a Run that never was")
			w.is(w.Release(w.ctx, l, w.now, psych.StatusOpen), psych.ErrNotFound, "Release of a Run that never was")
			info := w.header(key)
			info.DueAt = w.now
			w.is(w.Defer(w.ctx, info, w.now, w.now.Add(time.Minute)), psych.ErrNotFound, "Defer of a Run that never was")
			_, err = w.GetRun(w.ctx, key)
			w.is(err, psych.ErrNotFound, "GetRun after all of them")
		}),
		storeRule("ClaimHeld", "Claim of a lease that another claim holds is ErrLeaseHeld, whoever the owner is, and changes nothing.", func(w *world) {
			key := w.run()
			l := w.claim(key, w.now, time.Minute)
			before := w.get(key)
			for _, owner := range []string{"another", "owner"} {
				_, err := w.Claim(w.ctx, key, owner, "another token", l.Until.Add(-time.Microsecond), time.Minute)
				w.is(err, psych.ErrLeaseHeld, "Claim by %q a microsecond before the lease of %q ends", owner, "owner")
			}
			w.unchanged(before, "after claims of a lease that is held")
		}),
		storeRule("ClaimExpired", "Claim takes a lease whose Until is not after now, under a new epoch.", func(w *world) {
			key := w.run()
			old := w.claim(key, w.now, time.Minute)
			l, err := w.Claim(w.ctx, key, "another", "another token", old.Until, time.Minute)
			w.ok(err, "Claim just as the lease ends")
			w.check(l.Epoch > old.Epoch, "the new epoch is %d, the old one %d", l.Epoch, old.Epoch)
			info := w.get(key)
			w.check(info.Owner == "another" && info.Epoch == l.Epoch && info.Until.Equal(old.Until.Add(time.Minute)), "the header has owner %q, epoch %d, until %v", info.Owner, info.Epoch, info.Until)
		}),
		needs(Contention, storeRule("ClaimContended", "Of N concurrent claimers one wins, the others get ErrLeaseHeld, and the epoch grows by that one.", func(w *world) {
			key := w.run()
			now := w.now
			for round := range 4 {
				leases, errs := contend(w, contenders, func(s psych.Store, i int) (psych.Lease, error) {
					return s.Claim(w.ctx, key, fmt.Sprint("owner ", i), fmt.Sprint("token ", round, " ", i), now, time.Minute)
				})
				win := w.winner(errs, psych.ErrLeaseHeld, "Claim")
				info := w.get(key)
				w.check(info.Owner == fmt.Sprint("owner ", win), "the header names %q, the winner is %d", info.Owner, win)
				w.check(info.Epoch == int64(round+1) && leases[win].Epoch == info.Epoch, "in round %d the epoch is %d, that of the winner %d", round+1, info.Epoch, leases[win].Epoch)
				now = now.Add(time.Minute)
			}
		})),
		storeRule("ClaimRepeatedToken", "A Claim repeated with the token of the current epoch is that claim, with the Until of its first sending.", func(w *world) {
			key := w.run()
			first, err := w.Claim(w.ctx, key, "me", "token", w.now, time.Minute)
			w.ok(err, "Claim")
			before := w.get(key)
			for _, later := range []time.Duration{0, time.Second, time.Minute, time.Hour} {
				again, err := w.Claim(w.ctx, key, "me", "token", w.now.Add(later), time.Minute)
				w.ok(err, "Claim repeated %v later", later)
				w.check(again.Epoch == first.Epoch && again.Until.Equal(first.Until), "repeated %v later it is epoch %d until %v, want %d until %v", later, again.Epoch, again.Until, first.Epoch, first.Until)
			}
			w.unchanged(before, "after repeated claims")
		}),
		storeRule("ClaimPastToken", "The token of a past epoch's Claim is no claim on the current one.", func(w *world) {
			key := w.run()
			_, err := w.Claim(w.ctx, key, "me", "token", w.now, time.Minute)
			w.ok(err, "Claim")
			w.claim(key, w.now.Add(time.Minute), time.Minute)
			before := w.get(key)
			_, err = w.Claim(w.ctx, key, "me", "token", w.now.Add(time.Minute), time.Minute)
			w.is(err, psych.ErrLeaseHeld, "Claim repeated after another took the lease")
			w.unchanged(before, "after a Claim of a past epoch")
		}),
		storeRule("ClaimLeavesDue", "Claim and Renew leave DueAt, Status and Posted alone.", func(w *world) {
			for _, due := range []time.Time{{}, w.now.Add(-time.Minute), w.now.Add(time.Hour)} {
				info := w.header(w.key())
				info.DueAt, info.Status = due, psych.StatusFailed
				w.create(info)
				l := w.claim(info.Key, w.now, time.Minute)
				w.renew(l, w.now.Add(time.Second), time.Minute)
				got := w.get(info.Key)
				w.check(got.DueAt.Equal(due), "DueAt is %v after a Claim, was %v", got.DueAt, due)
				w.check(got.Status == psych.StatusFailed && got.Posted == 0, "Status is %q and Posted %d after a Claim", got.Status, got.Posted)
			}
		}),
		storeRule("ClaimArguments", "Owner and token are 1 to 128 bytes and ttl is at most MaxLease; others are ErrInvalid and change nothing.", func(w *world) {
			info := w.create(w.header(w.key()))
			long := strings.Repeat("x", 128)
			for _, c := range []struct {
				owner, token string
				ttl          time.Duration
			}{{"", "t", time.Minute}, {"o", "", time.Minute}, {long + "x", "t", time.Minute}, {"o", long + "x", time.Minute}, {"o", "t", psych.MaxLease + 1}} {
				_, err := w.Claim(w.ctx, info.Key, c.owner, c.token, w.now, c.ttl)
				w.is(err, psych.ErrInvalid, "Claim with an owner of %d bytes, a token of %d bytes, a ttl of %v", len(c.owner), len(c.token), c.ttl)
			}
			w.unchanged(info, "after illegal claims")
			l, err := w.Claim(w.ctx, info.Key, long, long, w.now, psych.MaxLease)
			w.ok(err, "Claim with owner and token of 128 bytes and a ttl of MaxLease")
			before := w.get(info.Key)
			_, err = w.Renew(w.ctx, l, w.now, psych.MaxLease+1)
			w.is(err, psych.ErrInvalid, "Renew with a ttl over MaxLease")
			w.unchanged(before, "after an illegal Renew")
			w.renew(l, w.now, psych.MaxLease)
		}),
		storeRule("EpochGrows", "Epoch grows with each Claim, over releases, expiries and deferrals.", func(w *world) {
			key := w.run()
			now, epoch := w.now, int64(0)
			for i := range 6 {
				l := w.claim(key, now, time.Minute)
				w.check(l.Epoch > epoch, "Claim %d has epoch %d, the one before it %d", i+1, l.Epoch, epoch)
				epoch = l.Epoch
				switch i % 3 {
				case 0:
					w.release(l, time.Time{})
				case 1:
					now = now.Add(time.Minute)
				case 2:
					now = now.Add(time.Minute)
					w.ok(w.Defer(w.ctx, w.get(key), now, now.Add(time.Second)), "Defer")
				}
			}
		}),
		storeRule("RenewExtends", "Renew extends the lease to now+ttl and returns it with the current Posted.", func(w *world) {
			key := w.run()
			l := w.claim(key, w.now, time.Minute)
			w.post(key, w.note("m", w.now), w.now)
			w.post(key, w.note("n", w.now), w.now)
			now := w.now.Add(30*time.Second + 3*time.Microsecond)
			r := w.renew(l, now, time.Minute)
			w.check(r.Key == key && r.Epoch == l.Epoch && r.Until.Equal(now.Add(time.Minute)) && r.Posted == 2,
				"the lease is of %s, epoch %d, until %v, posted %d; want %s, %d, %v, 2", r.Key, r.Epoch, r.Until, r.Posted, key, l.Epoch, now.Add(time.Minute))
			info := w.get(key)
			w.check(info.Until.Equal(r.Until) && info.Epoch == l.Epoch && info.Owner == "owner", "the header has owner %q, epoch %d, until %v", info.Owner, info.Epoch, info.Until)
			_, err := w.Claim(w.ctx, key, "another", "token", r.Until.Add(-time.Microsecond), time.Minute)
			w.is(err, psych.ErrLeaseHeld, "Claim before the renewed lease ends")
		}),
		storeRule("RenewNeverEarlier", "Renew never moves the end of a lease to an earlier time, and returns the one that holds.", func(w *world) {
			key := w.run()
			l := w.claim(key, w.now, 10*time.Minute)
			r := w.renew(l, w.now.Add(time.Second), time.Minute)
			w.check(r.Until.Equal(l.Until), "Renew to an earlier time returned %v, want %v", r.Until, l.Until)
			w.check(w.get(key).Until.Equal(l.Until), "Renew to an earlier time left %v, want %v", w.get(key).Until, l.Until)
		}),
		storeRule("RenewReleased", "Renew of a lease that was released is ErrLeaseLost, and takes nothing.", func(w *world) {
			key := w.run()
			l := w.claim(key, w.now, time.Minute)
			w.release(l, time.Time{})
			before := w.get(key)
			_, err := w.Renew(w.ctx, l, w.now, time.Minute)
			w.is(err, psych.ErrLeaseLost, "Renew of a released lease")
			w.unchanged(before, "after a Renew of a released lease")
		}),
		storeRule("RenewPast", "Renew of a past epoch is ErrLeaseLost, and changes nothing for its successor.", func(w *world) {
			key := w.run()
			old := w.claim(key, w.now, time.Minute)
			l := w.claim(key, w.now.Add(time.Minute), time.Minute)
			before := w.get(key)
			_, err := w.Renew(w.ctx, old, w.now, 10*time.Minute)
			w.is(err, psych.ErrLeaseLost, "Renew of a past epoch")
			w.unchanged(before, "after a Renew of a past epoch")
			w.release(l, time.Time{})
			_, err = w.Renew(w.ctx, old, w.now, 10*time.Minute)
			w.is(err, psych.ErrLeaseLost, "Renew of a past epoch, the current one released")
		}),
		storeRule("RenewExpiredUntaken", "A lease that expired and that nobody took is renewed.", func(w *world) {
			key := w.run()
			l := w.claim(key, w.now, time.Minute)
			now := w.now.Add(time.Hour)
			r := w.renew(l, now, time.Minute)
			w.check(r.Epoch == l.Epoch && r.Until.Equal(now.Add(time.Minute)), "the lease has epoch %d until %v, want %d until %v", r.Epoch, r.Until, l.Epoch, now.Add(time.Minute))
			_, err := w.Claim(w.ctx, key, "another", "token", now, time.Minute)
			w.is(err, psych.ErrLeaseHeld, "Claim of the renewed lease")
		}),
		storeRule("ReleaseFrees", "Release gives the lease back and sets DueAt, zero included, and Status.", func(w *world) {
			for _, due := range []time.Time{{}, w.now.Add(time.Minute + time.Microsecond), w.now.Add(-time.Minute)} {
				info := w.header(w.key())
				info.DueAt = w.now
				w.create(info)
				l := w.claim(info.Key, w.now, time.Minute)
				w.ok(w.Release(w.ctx, l, due, psych.StatusAborted), "Release")
				want := info
				want.DueAt, want.Status, want.Epoch = due, psych.StatusAborted, l.Epoch
				w.unchanged(want, "after Release, but for DueAt, Status and Epoch")
				_, err := w.Claim(w.ctx, info.Key, "another", "token", w.now, time.Minute)
				w.ok(err, "Claim of a released lease")
			}
		}),
		storeRule("ReleaseConflict", "Release is ErrConflict with the lease kept if Posted is not that of the lease; Renew, then Release succeed.", func(w *world) {
			key := w.run()
			l := w.claim(key, w.now, time.Minute)
			w.post(key, w.note("m", w.now), w.now.Add(time.Second))
			before := w.get(key)
			w.is(w.Release(w.ctx, l, time.Time{}, psych.StatusCompleted), psych.ErrConflict, "Release after a Post")
			w.unchanged(before, "after a Release that conflicts")
			r := w.renew(l, w.now, time.Minute)
			w.post(key, w.note("n", w.now), w.now)
			w.is(w.Release(w.ctx, r, time.Time{}, psych.StatusCompleted), psych.ErrConflict, "Release after a Post since the Renew")
			w.release(w.renew(r, w.now, time.Minute), time.Time{})
			info := w.get(key)
			w.check(info.Owner == "" && info.DueAt.IsZero(), "after Renew and Release the owner is %q, DueAt %v", info.Owner, info.DueAt)
		}),
		needs(Contention, storeRule("ReleaseContended", "Of a Release and a Post at once, either the Release conflicts or the Run is due after it: no message is missed.", func(w *world) {
			for round := range 12 {
				key := w.run()
				l := w.claim(key, w.now, time.Minute)
				_, errs := contend(w, 2, func(s psych.Store, i int) (struct{}, error) {
					if (i+round)%2 == 0 {
						return struct{}{}, s.Release(w.ctx, l, time.Time{}, psych.StatusCompleted)
					}
					return struct{}{}, s.Post(w.ctx, key, w.note("m", w.now), w.now)
				})
				released, posted := errs[round%2], errs[1-round%2]
				w.ok(posted, "Post beside a Release")
				info := w.get(key)
				w.check(info.DueAt.Equal(w.now) && info.Posted == 1, "after a Post beside a Release DueAt is %v and Posted %d: the message is missed", info.DueAt, info.Posted)
				if released != nil {
					w.is(released, psych.ErrConflict, "Release beside a Post")
					w.check(info.Owner == "owner", "a Release that conflicts gave the lease back")
				} else {
					w.check(info.Owner == "", "a Release that succeeded kept the lease")
				}
			}
		})),
		storeRule("ReleaseTwice", "Releasing a released epoch again writes nothing and succeeds, even if Posted has grown.", func(w *world) {
			key := w.run()
			l := w.claim(key, w.now, time.Minute)
			w.release(l, w.now.Add(time.Hour))
			before := w.get(key)
			w.ok(w.Release(w.ctx, l, time.Time{}, psych.StatusFailed), "Release again")
			w.unchanged(before, "after the second Release")
			w.post(key, w.note("m", w.now), w.now)
			before = w.get(key)
			w.ok(w.Release(w.ctx, l, time.Time{}, psych.StatusFailed), "Release again after a Post")
			w.unchanged(before, "after the third Release")
		}),
		storeRule("ReleasePast", "Release of a past epoch is ErrLeaseLost, and changes nothing for its successor.", func(w *world) {
			key := w.run()
			old := w.claim(key, w.now, time.Minute)
			l := w.claim(key, w.now.Add(time.Minute), time.Minute)
			before := w.get(key)
			w.is(w.Release(w.ctx, old, time.Time{}, psych.StatusFailed), psych.ErrLeaseLost, "Release of a past epoch")
			w.unchanged(before, "after a Release of a past epoch")
			w.release(l, w.now)
			before = w.get(key)
			w.is(w.Release(w.ctx, old, time.Time{}, psych.StatusFailed), psych.ErrLeaseLost, "Release of a past epoch, the current one released")
			w.unchanged(before, "after a Release of a past epoch, the current one released")
		}),
		storeRule("DeferDue", "Defer sets the DueAt of a Run that is due to a later time, and leaves the rest, a lease that holds included.", func(w *world) {
			for _, held := range []bool{false, true} {
				info := w.header(w.key())
				info.DueAt = w.now
				w.create(info)
				if held {
					w.claim(info.Key, w.now, time.Minute)
				}
				want := w.get(info.Key)
				to := w.now.Add(time.Minute + time.Microsecond)
				w.ok(w.Defer(w.ctx, want, w.now, to), "Defer of a Run that is due just now (lease held: %v)", held)
				want.DueAt = to
				w.unchanged(want, "but for DueAt, by Defer")
			}
		}),
		storeRule("DeferExpiredLease", "Defer of a Run whose lease has expired sets DueAt and frees the lease, so that its owner has lost it.", func(w *world) {
			key := w.run()
			l := w.claim(key, w.now, time.Minute)
			to := l.Until.Add(time.Minute)
			w.ok(w.Defer(w.ctx, w.get(key), l.Until, to), "Defer just as the lease ends")
			info := w.get(key)
			w.check(info.DueAt.Equal(to) && info.Owner == "", "DueAt is %v, want %v; the owner is %q, want none", info.DueAt, to, info.Owner)
			_, err := w.Renew(w.ctx, l, l.Until, time.Minute)
			w.is(err, psych.ErrLeaseLost, "Renew of a lease that Defer freed")
			w.claim(key, w.now, time.Minute)
		}),
		storeRule("DeferChanged", "Defer is ErrConflict and changes nothing if Epoch, Owner, Until, DueAt or Posted is not as info says.", func(w *world) {
			info := w.header(w.key())
			info.DueAt = w.now
			w.create(info)
			w.post(info.Key, w.note("m", w.now), w.now.Add(time.Hour))
			w.claim(info.Key, w.now, time.Minute)
			before := w.get(info.Key)
			for field, change := range map[string]func(i *psych.RunInfo){
				"Epoch":        func(i *psych.RunInfo) { i.Epoch++ },
				"Owner":        func(i *psych.RunInfo) { i.Owner = "another" },
				"Owner (none)": func(i *psych.RunInfo) { i.Owner, i.Until = "", time.Time{} },
				"Until":        func(i *psych.RunInfo) { i.Until = i.Until.Add(-time.Microsecond) },
				"DueAt":        func(i *psych.RunInfo) { i.DueAt = i.DueAt.Add(-time.Microsecond) },
				"DueAt (zero)": func(i *psych.RunInfo) { i.DueAt = time.Time{} },
				"Posted":       func(i *psych.RunInfo) { i.Posted-- },
			} {
				i := before
				change(&i)
				w.is(w.Defer(w.ctx, i, w.now.Add(time.Hour), w.now.Add(2*time.Hour)), psych.ErrConflict, "Defer with another %s", field)
				w.unchanged(before, "after Defer with another "+field)
			}
		}),
		storeRule("DeferNotDue", "Defer of a Run that is not due and whose lease has not expired is ErrConflict, and changes nothing.", func(w *world) {
			for _, due := range []time.Time{{}, w.now.Add(time.Microsecond)} {
				info := w.header(w.key())
				info.DueAt = due
				w.create(info)
				w.is(w.Defer(w.ctx, info, w.now, w.now.Add(time.Hour)), psych.ErrConflict, "Defer at %v of a Run with DueAt %v", w.now, due)
				w.unchanged(info, "after Defer of a Run that is not due")
				l := w.claim(info.Key, w.now, time.Minute)
				held := w.get(info.Key)
				if due.IsZero() {
					w.is(w.Defer(w.ctx, held, l.Until.Add(-time.Microsecond), w.now.Add(time.Hour)), psych.ErrConflict, "Defer just before the lease ends")
				}
				w.unchanged(held, "after Defer of a Run whose lease holds")
			}
		}),
		needs(Contention, storeRule("DeferContended", "Of N concurrent Defers of one header one succeeds, the others get ErrConflict.", func(w *world) {
			info := w.header(w.key())
			info.DueAt = w.now
			w.create(info)
			_, errs := contend(w, contenders, func(s psych.Store, i int) (struct{}, error) {
				return struct{}{}, s.Defer(w.ctx, info, w.now, w.now.Add(time.Duration(i+1)*time.Minute))
			})
			win := w.winner(errs, psych.ErrConflict, "Defer")
			want := w.now.Add(time.Duration(win+1) * time.Minute)
			w.check(w.get(info.Key).DueAt.Equal(want), "DueAt is %v, want %v, that of the one that succeeded", w.get(info.Key).DueAt, want)
		})),
	}
}
