package contracttest

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// indexRules are the rules of [psych.Index]. What it lists may lag, so that
// they poll.
func indexRules() []Rule[psych.Store] {
	return []Rule[psych.Store]{
		storeRule("DueTime", "Due lists a Run whose DueAt is not after now, and does not list it before.", func(w *world) {
			info := w.header(w.key())
			info.DueAt = w.now
			w.create(info)
			w.dueFrom(info.Key, w.now, "created with a DueAt")

			key := w.run()
			w.check(!w.isDue(w.now.Add(1000*time.Hour), key), "a Run with nothing due is listed")
			w.post(key, w.note("m", w.now), w.now.Add(time.Minute))
			w.dueFrom(key, w.now.Add(time.Minute), "after a Post")
			l := w.claim(key, w.now, 30*time.Second)
			w.release(l, w.now.Add(time.Hour+time.Microsecond))
			w.dueFrom(key, w.now.Add(time.Hour+time.Microsecond), "after a Release")
			w.ok(w.Defer(w.ctx, w.get(key), w.now.Add(2*time.Hour), w.now.Add(3*time.Hour)), "Defer")
			w.dueFrom(key, w.now.Add(3*time.Hour), "after a Defer")
			w.release(w.claim(key, w.now, time.Minute), time.Time{})
			w.eventually("a Run released with nothing due is not listed", func() bool { return !w.isDue(w.now.Add(1000*time.Hour), key) })
		}),
		storeRule("DueLease", "Due lists a Run whose lease has expired, and does not list it before, unless something else is due.", func(w *world) {
			key := w.run()
			l := w.claim(key, w.now, time.Minute)
			w.dueFrom(key, l.Until, "after a Claim")
			r := w.renew(l, w.now.Add(30*time.Second), 10*time.Minute)
			w.dueFrom(key, r.Until, "after a Renew")
			w.post(key, w.note("m", w.now), w.now.Add(time.Second))
			w.dueFrom(key, w.now.Add(time.Second), "after a Post to a Run whose lease holds")
			w.release(w.renew(r, w.now, time.Minute), time.Time{})
			w.eventually("a Run that was released is not listed when its lease would have expired", func() bool { return !w.isDue(w.now.Add(time.Hour), key) })
		}),
		storeRule("DueRetention", "Due lists a Run whose retention has passed, and does not list it before.", func(w *world) {
			info := w.header(w.key())
			info.ExpiresAt = w.now.Add(24 * time.Hour)
			w.create(info)
			w.dueFrom(info.Key, info.ExpiresAt, "created with a retention")
			w.release(w.claim(info.Key, w.now, time.Minute), time.Time{})
			w.dueFrom(info.Key, info.ExpiresAt, "released with nothing due")
		}),
		storeRule("DuePaging", "Due lists at most limit a call, from 1, across tenants, and all of them by its cursor.", func(w *world) {
			var keys []psych.RunKey
			for range 3 {
				for _, tenant := range []string{w.tenant, w.f.Tenant(), w.f.Tenant() + "/\x00"} {
					info := w.header(w.keyIn(tenant))
					info.DueAt = w.now.Add(time.Duration(len(keys)%2) * time.Second)
					keys = append(keys, w.create(info).Key)
				}
			}
			for _, limit := range []int{1, 2, 4, 1000} {
				w.eventually(fmt.Sprintf("pages of %d list each Run once", limit), func() bool {
					return !slices.ContainsFunc(w.due(w.now.Add(time.Second), limit, keys...), func(n int) bool { return n != 1 })
				})
			}
		}),
		storeRule("DueInvalid", "A cursor that Due did not return and a limit below 1 are ErrInvalid.", func(w *world) {
			w.created(0, time.Second, time.Minute)
			for _, cursor := range []string{"nonsense", "\x00", "e30", "!!!"} {
				_, _, err := w.Due(w.ctx, w.now, cursor, 10)
				w.is(err, psych.ErrInvalid, "Due with the cursor %q", cursor)
			}
			listed := ""
			w.eventually("ListRuns returns a cursor", func() bool {
				_, next, err := w.ListRuns(w.ctx, w.tenant, "", 1)
				w.ok(err, "ListRuns")
				listed = next
				return next != ""
			})
			_, _, err := w.Due(w.ctx, w.now, listed, 10)
			w.is(err, psych.ErrInvalid, "Due with a cursor of ListRuns")
			for _, limit := range []int{0, -1} {
				_, _, err := w.Due(w.ctx, w.now, "", limit)
				w.is(err, psych.ErrInvalid, "Due with limit %d", limit)
			}
		}),
		storeRule("ListRunsOrder", "ListRuns lists a tenant's Runs by CreatedAt, newest first, with their headers.", func(w *world) {
			got, next, err := w.ListRuns(w.ctx, w.tenant, "", 10)
			w.ok(err, "ListRuns of a tenant without Runs")
			w.check(len(got) == 0 && next == "", "a tenant without Runs has %d, and the cursor %q", len(got), next)
			want := w.created(0, time.Microsecond, -time.Microsecond, time.Hour, -24*time.Hour, time.Second, 400*24*time.Hour, -time.Second)
			w.eventually("all Runs are listed in order, as their headers say", func() bool { return sameInfos(w.list(w.tenant, 100), want) })
		}),
		storeRule("ListRunsStatus", "ListRuns comes to show the status with which a Run was released.", func(w *world) {
			key := w.run()
			w.ok(w.Release(w.ctx, w.claim(key, w.now, time.Minute), time.Time{}, psych.StatusExhausted), "Release")
			w.eventually("the status is listed", func() bool {
				runs := w.list(w.tenant, 10)
				return len(runs) == 1 && runs[0].Status == psych.StatusExhausted
			})
		}),
		storeRule("ListRunsPaging", "ListRuns lists at most limit a call, and by its cursor each Run once, in order.", func(w *world) {
			want := w.created(0, 0, time.Microsecond, time.Microsecond, time.Microsecond, time.Hour, -time.Hour)
			for _, limit := range []int{1, 2, 3, 7, 8} {
				w.eventually(fmt.Sprintf("pages of %d", limit), func() bool {
					got := w.list(w.tenant, limit)
					// Equal times have no order among them.
					byAge := func(a, b psych.RunInfo) int { return b.CreatedAt.Compare(a.CreatedAt) }
					if !slices.IsSortedFunc(got, byAge) {
						return false
					}
					slices.SortFunc(got, func(a, b psych.RunInfo) int {
						if n := byAge(a, b); n != 0 {
							return n
						}
						return slices.IndexFunc(want, sameKey(a)) - slices.IndexFunc(want, sameKey(b))
					})
					return sameInfos(got, want)
				})
			}
		}),
		storeRule("ListRunsIsolation", "ListRuns lists nothing of another tenant, by another tenant's cursor neither.", func(w *world) {
			w.created(0, time.Second, time.Minute)
			others := []string{w.f.Tenant(), w.tenant + "x", w.tenant[:len(w.tenant)-1]}
			var want []psych.RunInfo
			for _, tenant := range others {
				want = append(want, w.create(w.header(w.keyIn(tenant))))
			}
			next := ""
			w.eventually("ListRuns returns a cursor", func() bool {
				var err error
				_, next, err = w.ListRuns(w.ctx, w.tenant, "", 1)
				w.ok(err, "ListRuns")
				return next != ""
			})
			for i, tenant := range others {
				w.eventually("another tenant's list holds its own Run alone", func() bool { return sameInfos(w.list(tenant, 10), want[i:i+1]) })
				runs, _, err := w.ListRuns(w.ctx, tenant, next, 10)
				if err != nil {
					w.is(err, psych.ErrInvalid, "ListRuns with the cursor of another tenant")
				}
				for _, r := range runs {
					w.check(r.Key.Tenant == tenant, "with the cursor of another tenant ListRuns of %q lists %s", tenant, r.Key)
				}
			}
		}),
		storeRule("ListRunsInvalid", "A cursor that ListRuns did not return is ErrInvalid.", func(w *world) {
			w.created(0, time.Second)
			for _, cursor := range []string{"nonsense", "\x00", "e30", "!!!"} {
				_, _, err := w.ListRuns(w.ctx, w.tenant, cursor, 10)
				w.is(err, psych.ErrInvalid, "ListRuns with the cursor %q", cursor)
			}
		}),
		needs(Reopening, storeRule("IndexReopened", "Due and ListRuns list what they listed when the backend is opened anew.", func(w *world) {
			info := w.header(w.key())
			info.DueAt = w.now
			w.create(info)
			w.reopen()
			w.dueFrom(info.Key, w.now, "after reopening")
			w.eventually("the Run is listed", func() bool { return sameInfos(w.list(w.tenant, 10), []psych.RunInfo{info}) })
		})),
	}
}

// dueFrom ends the rule unless key comes to be due at a time, and not before.
func (w *world) dueFrom(key psych.RunKey, at time.Time, what string) {
	w.eventually(what+", it is due at its time", func() bool { return w.isDue(at, key) })
	w.eventually(what+", it is not due before", func() bool { return !w.isDue(at.Add(-time.Microsecond), key) })
}

// created creates Runs of the given ages and returns their headers, newest first.
func (w *world) created(at ...time.Duration) []psych.RunInfo {
	var infos []psych.RunInfo
	for _, d := range at {
		info := w.header(w.key())
		info.CreatedAt = w.now.Add(d)
		infos = append(infos, w.create(info))
	}
	slices.SortStableFunc(infos, func(a, b psych.RunInfo) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return infos
}

func sameKey(a psych.RunInfo) func(psych.RunInfo) bool {
	return func(b psych.RunInfo) bool { return a.Key == b.Key }
}

func sameInfos(got, want []psych.RunInfo) bool {
	return slices.EqualFunc(got, want, func(a, b psych.RunInfo) bool { return infoDiff(a, b) == "" })
}

// docsRules are the rules of [psych.Docs].
func docsRules() []Rule[psych.Store] {
	return []Rule[psych.Store]{
		storeRule("PutDocReadBack", "GetDoc returns what PutDoc stored, byte for byte, at once and on any handle.", func(w *world) {
			for _, data := range [][]byte{[]byte(`{"name":"x"}`), {}, {0}, allBytes(), random(100_000)} {
				d := w.putDoc(w.tenant, data)
				w.hasDoc(w.tenant, d, data)
				got, err := w.second().GetDoc(w.ctx, w.tenant, d)
				w.ok(err, "GetDoc on another handle")
				w.check(string(got) == string(data), "GetDoc on another handle returned other bytes")
			}
		}),
		storeRule("PutDocTwice", "PutDoc is idempotent.", func(w *world) {
			data := random(1000)
			w.putDoc(w.tenant, data)
			w.hasDoc(w.tenant, w.putDoc(w.tenant, data), data)
		}),
		storeRule("PutDocWrongDigest", "PutDoc under a digest that is not that of the data is ErrInvalid and stores nothing.", func(w *world) {
			data := random(1000)
			wrong := psych.Digest(sha256.Sum256(data[1:]))
			w.is(w.PutDoc(w.ctx, w.tenant, wrong, data), psych.ErrInvalid, "PutDoc under another digest")
			_, err := w.GetDoc(w.ctx, w.tenant, wrong)
			w.is(err, psych.ErrNotFound, "GetDoc of the digest that was refused")
			w.is(w.PutDoc(w.ctx, w.tenant, psych.Digest{}, data), psych.ErrInvalid, "PutDoc under the zero digest")
		}),
		storeRule("PutDocLarge", "A document may be larger than any item of the backend.", func(w *world) {
			for _, n := range []int{psych.MaxAppendBytes, 1<<20 + 1, 5 << 20} {
				data := random(n)
				w.hasDoc(w.tenant, w.putDoc(w.tenant, data), data)
			}
		}),
		storeRule("PutDocOwnership", "PutDoc keeps nothing of the data's memory, and what GetDoc returns is the caller's.", func(w *world) {
			data := random(1000)
			want := slices.Clone(data)
			d := w.putDoc(w.tenant, data)
			clear(data)
			w.hasDoc(w.tenant, d, want)
			got, err := w.GetDoc(w.ctx, w.tenant, d)
			w.ok(err, "GetDoc")
			clear(got)
			w.hasDoc(w.tenant, d, want)
		}),
		storeRule("PutDocContended", "Concurrent PutDocs of one document all succeed.", func(w *world) {
			data := random(1 << 20)
			d := psych.Digest(sha256.Sum256(data))
			_, errs := contend(w, contenders, func(s psych.Store, i int) (struct{}, error) {
				return struct{}{}, s.PutDoc(w.ctx, w.tenant, d, data)
			})
			for _, err := range errs {
				w.ok(err, "PutDoc, concurrently")
			}
			w.hasDoc(w.tenant, d, data)
		}),
		storeRule("GetDocMissing", "GetDoc of a document that is not there is ErrNotFound, and so is another tenant's.", func(w *world) {
			_, err := w.GetDoc(w.ctx, w.tenant, psych.Digest(random(32)))
			w.is(err, psych.ErrNotFound, "GetDoc of a document that never was")
			d := w.putDoc(w.tenant, random(1000))
			_, err = w.GetDoc(w.ctx, w.f.Tenant(), d)
			w.is(err, psych.ErrNotFound, "GetDoc of another tenant's document")
		}),
		needs(Reopening, storeRule("DocReopened", "A document is there when the backend is opened anew.", func(w *world) {
			data := random(1 << 20)
			d := w.putDoc(w.tenant, data)
			w.reopen()
			w.hasDoc(w.tenant, d, data)
		})),
	}
}

func (w *world) putDoc(tenant string, data []byte) psych.Digest {
	d := psych.Digest(sha256.Sum256(data))
	w.ok(w.PutDoc(w.ctx, tenant, d, data), "PutDoc of %d bytes", len(data))
	return d
}

func (w *world) hasDoc(tenant string, d psych.Digest, want []byte) {
	got, err := w.GetDoc(w.ctx, tenant, d)
	w.ok(err, "GetDoc of %d bytes", len(want))
	w.check(string(got) == string(want), "GetDoc returned %d bytes that are not the %d that were put", len(got), len(want))
}
