package contracttest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// logRules are the rules of [psych.Log].
func logRules() []Rule[psych.Store] {
	return []Rule[psych.Store]{
		storeRule("AppendReadBack", "Append writes all entries of a batch, every field as it came, and returns the boundary behind them.", func(w *world) {
			key := w.run()
			b := w.batch(0, []byte("one"), []byte(`{"two":2}`), []byte("three"))
			b.Entries[1].Kind = psych.KindToolCallFinished
			b.Entries[2].Kind = "a_kind_of_a_newer_writer"
			p := w.append(key, psych.Pos{}, b)
			w.holds(key, b.Entries, "after the first append")
			b2 := w.small(3, 1)
			w.append(key, p, b2)
			w.holds(key, slices.Concat(b.Entries, b2.Entries), "after the second append")
		}),
		storeRule("AppendStale", "If the head is not after, Append returns an error matching ErrConflict and writes nothing.", func(w *world) {
			key := w.run()
			want, bounds := w.log(key, 2, 1, 3)
			for _, after := range bounds[:3] {
				_, err := w.Append(w.ctx, key, after, w.small(after.Seq, 1))
				w.is(err, psych.ErrConflict, "Append behind seq %d of a log with head 6", after.Seq)
				// One that would reach past the head is stale all the same.
				_, err = w.Append(w.ctx, key, after, w.small(after.Seq, 9))
				w.is(err, psych.ErrConflict, "Append of 9 entries behind seq %d of a log with head 6", after.Seq)
			}
			w.holds(key, want, "after stale appends")
		}),
		storeRule("AppendAhead", "Append behind a seq that the log has not reached returns an error matching ErrConflict and writes nothing.", func(w *world) {
			key := w.run()
			_, err := w.Append(w.ctx, key, psych.Pos{Seq: 4}, w.small(4, 1))
			w.is(err, psych.ErrConflict, "Append behind seq 4 of an empty log")
			want, _ := w.log(key, 2)
			_, err = w.Append(w.ctx, key, psych.Pos{Seq: 3}, w.small(3, 1))
			w.is(err, psych.ErrConflict, "Append behind seq 3 of a log with head 2")
			w.holds(key, want, "after appends past the head")
		}),
		storeRule("AppendRepeatedToken", "An Append repeated with its token succeeds, returns the same boundary and writes nothing.", func(w *world) {
			key := w.run()
			_, bounds := w.log(key, 2)
			b := w.small(2, 3)
			first := w.append(key, bounds[1], b)
			again := w.append(key, bounds[1], b)
			w.check(again == first, "the repetition returned %v, the append %v", again, first)
			w.check(len(w.readAll(key, psych.Pos{}, 100)) == 5, "the log holds the append twice, or not at all")
			w.append(key, again, w.small(5, 1))
		}),
		storeRule("AppendRepeatedTokenLater", "An Append repeated with its token succeeds and returns its boundary, however much was appended since.", func(w *world) {
			key := w.run()
			b := w.small(0, 2)
			first := w.append(key, psych.Pos{}, b)
			want, pos := b.Entries, first
			for range 30 {
				next := w.small(pos.Seq, 2)
				pos = w.append(key, pos, next)
				want = append(want, next.Entries...)
			}
			again := w.append(key, psych.Pos{}, b)
			w.check(again == first, "the repetition returned %v, the append %v", again, first)
			w.holds(key, want, "after a late repetition")
			rest := w.readAll(key, again, 100)
			w.check(entriesDiff(rest, want[2:]) == "", "Read behind the repetition's boundary: %s", entriesDiff(rest, want[2:]))
		}),
		storeRule("AppendTokenElsewhere", "Append repeats only the append just behind after: the token of another one does not make a stale append succeed.", func(w *world) {
			key := w.run()
			a, b := w.small(0, 1), w.small(1, 1)
			p := w.append(key, psych.Pos{}, a)
			w.append(key, w.append(key, p, b), w.small(2, 1))
			stale := w.small(1, 1)
			stale.Token = a.Token
			_, err := w.Append(w.ctx, key, p, stale)
			w.is(err, psych.ErrConflict, "Append behind seq 1 with the token of the append behind seq 0")
			stale = w.small(0, 2)
			stale.Token = b.Token
			_, err = w.Append(w.ctx, key, psych.Pos{}, stale)
			w.is(err, psych.ErrConflict, "Append behind seq 0 with the token of the append behind seq 1")
		}),
		needs(Contention, storeRule("AppendContended", "Of N concurrent Appends with one after and different tokens one wins, and the others get an error matching ErrConflict.", func(w *world) {
			key := w.run()
			var want []psych.Entry
			var pos psych.Pos
			for round := range 4 {
				batches := make([]psych.Batch, contenders)
				for i := range batches {
					// Of different lengths, so that a store that compares only last seqs is found out.
					batches[i] = w.small(pos.Seq, 1+i%3)
					batches[i].Entries[0].Data = fmt.Appendf(nil, "round %d, contender %d", round, i)
				}
				ends, errs := contend(w, contenders, func(s psych.Store, i int) (psych.Pos, error) {
					return s.Append(w.ctx, key, pos, batches[i])
				})
				win := w.winner(errs, psych.ErrConflict, "Append")
				want = append(want, batches[win].Entries...)
				w.holds(key, want, "after a contended append")
				pos = ends[win]
			}
		})),
		needs(Contention, storeRule("AppendRepeatedTokenContended", "Concurrent repetitions of one Append all succeed, with one boundary, and it is written once.", func(w *world) {
			key := w.run()
			b := w.small(0, 2)
			ends, errs := contend(w, contenders, func(s psych.Store, i int) (psych.Pos, error) {
				return s.Append(w.ctx, key, psych.Pos{}, b)
			})
			for i := range ends {
				w.ok(errs[i], "Append, repeated concurrently")
				w.check(ends[i] == ends[0], "two repetitions returned %v and %v", ends[i], ends[0])
			}
			w.holds(key, b.Entries, "after concurrent repetitions")
		})),
		storeRule("AppendInsideAppend", "An after in the middle of an append is no boundary: Append returns an error matching ErrConflict and writes nothing.", func(w *world) {
			key := w.run()
			want, bounds := w.log(key, 2, 3)
			for _, seq := range []uint64{1, 3, 4} {
				_, err := w.Append(w.ctx, key, psych.Pos{Seq: seq}, w.small(seq, 1))
				w.is(err, psych.ErrConflict, "Append behind seq %d, inside an append", seq)
			}
			w.holds(key, want, "after appends inside of an append")
			w.append(key, bounds[2], w.small(5, 1))
		}),
		storeRule("AppendBareSeq", "An after without a Mark is legal: Append checks by a read that it is the head, or that the append just behind it has the token.", func(w *world) {
			key := w.run()
			want, _ := w.log(key, 2, 1)
			b := w.small(3, 2)
			first := w.append(key, psych.Pos{Seq: 3}, b)
			want = append(want, b.Entries...)
			last := w.small(5, 1)
			w.append(key, first, last)
			want = append(want, last.Entries...)
			again := w.append(key, psych.Pos{Seq: 3}, b)
			w.check(again == first, "repeated with a bare seq, it returned %v, the append %v", again, first)
			_, err := w.Append(w.ctx, key, psych.Pos{Seq: 3}, w.small(3, 1))
			w.is(err, psych.ErrConflict, "Append behind the bare seq 3 of a log with head 6")
			w.holds(key, want, "after appends behind a bare seq")
		}),
		storeRule("AppendLargest", "An append of MaxAppendBytes is legal, in few large entries and in many empty ones.", func(w *world) {
			key := w.run()
			large := w.largest(0)
			pos := w.append(key, psych.Pos{}, large)
			w.holds(key, large.Entries, "after an append of the largest size")
			many := w.batch(pos.Seq, make([][]byte, psych.MaxAppendBytes/entryOverhead)...)
			for i := range many.Entries {
				many.Entries[i].Kind = psych.KindModelCallFinished
			}
			w.append(key, pos, many)
			w.holds(key, slices.Concat(large.Entries, many.Entries), "after an append of as many entries as fit")
		}),
		storeRule("AppendTooLarge", "An append over MaxAppendBytes returns an error matching ErrTooLarge and writes nothing.", func(w *world) {
			key := w.run()
			b := w.largest(0)
			b.Entries[2].Data = append(b.Entries[2].Data, 0)
			_, err := w.Append(w.ctx, key, psych.Pos{}, b)
			w.is(err, psych.ErrTooLarge, "Append of one byte more than MaxAppendBytes")
			_, err = w.Append(w.ctx, key, psych.Pos{}, w.batch(0, make([][]byte, psych.MaxAppendBytes/entryOverhead+1)...))
			w.is(err, psych.ErrTooLarge, "Append of one empty entry more than MaxAppendBytes allows")
			w.holds(key, nil, "after appends that are too large")
		}),
		storeRule("AppendGap", "Entries that are not gapless from after.Seq+1, and an append without any, are ErrInvalid, and nothing is written.", func(w *world) {
			key := w.run()
			want, bounds := w.log(key, 2)
			bad := map[string]psych.Batch{"that begins too late": w.small(3, 1), "that begins too early": w.small(1, 2), "without entries": w.small(2, 0)}
			for what, change := range map[string]func(e []psych.Entry){
				"with a gap":          func(e []psych.Entry) { e[2].Seq++ },
				"with a seq twice":    func(e []psych.Entry) { e[2].Seq-- },
				"in the wrong order":  func(e []psych.Entry) { e[0].Seq, e[1].Seq = e[1].Seq, e[0].Seq },
				"that begins at zero": func(e []psych.Entry) { e[0].Seq = 0 },
			} {
				b := w.small(2, 3)
				change(b.Entries)
				bad[what] = b
			}
			for what, b := range bad {
				_, err := w.Append(w.ctx, key, bounds[1], b)
				w.is(err, psych.ErrInvalid, "Append %s", what)
			}
			w.holds(key, want, "after illegal appends")
		}),
		storeRule("AppendTokenLength", "A token has 1 to 64 bytes, any others are ErrInvalid.", func(w *world) {
			key := w.run()
			for _, n := range []int{0, 65, 1000} {
				b := w.small(0, 1)
				b.Token = string(bytes.Repeat([]byte("t"), n))
				_, err := w.Append(w.ctx, key, psych.Pos{}, b)
				w.is(err, psych.ErrInvalid, "Append with a token of %d bytes", n)
			}
			w.holds(key, nil, "after appends with illegal tokens")
			var pos psych.Pos
			for _, token := range []string{"t", string(random(64))} {
				b := w.small(pos.Seq, 1)
				b.Token = token
				end := w.append(key, pos, b)
				w.check(w.append(key, pos, b) == end, "Append repeated with the token %q returned another boundary", token)
				pos = end
			}
		}),
		storeRule("AppendOwnership", "Append keeps nothing of the batch's memory.", func(w *world) {
			key := w.run()
			b, want := w.small(0, 3), w.small(0, 3)
			w.append(key, psych.Pos{}, b)
			for i := range b.Entries {
				clear(b.Entries[i].Data)
				b.Entries[i] = psych.Entry{Seq: 99, Kind: "overwritten"}
			}
			w.holds(key, want.Entries, "after the caller has overwritten its batch")
		}),
		storeRule("ReadOwnership", "Data that Read returns is the caller's: what it does with it changes no log.", func(w *world) {
			key := w.run()
			want, _ := w.log(key, 3)
			page := w.read(key, psych.Pos{}, 10)
			for i := range page.Entries {
				clear(page.Entries[i].Data)
				page.Entries[i].Data = append(page.Entries[i].Data, "overwritten"...)
				page.Entries[i].Kind = "overwritten"
			}
			w.holds(key, want, "after the caller has overwritten a page")
		}),
		storeRule("AppendWithoutHeader", "Append does not look at the header, and without one nobody reads.", func(w *world) {
			key := w.key()
			_, bounds := w.log(key, 1, 2)
			_, err := w.Append(w.ctx, key, psych.Pos{}, w.small(0, 1))
			w.is(err, psych.ErrConflict, "Append behind the start of a log with head 3 and no header")
			_, err = w.Read(w.ctx, key, psych.Pos{}, 10)
			w.is(err, psych.ErrNotFound, "Read without a header")
			_, err = w.Head(w.ctx, key)
			w.is(err, psych.ErrNotFound, "Head without a header")
			w.append(key, bounds[2], w.small(3, 1))
		}),
		storeRule("AppendAnyBytes", "Data of an entry is any bytes at all, and none.", func(w *world) {
			key := w.run()
			b := w.batch(0, nil, allBytes(), []byte{}, []byte{0}, []byte("\xff\xfe invalid \xed\xa0\x80"), []byte("naïve ␀ \u2028 日本語 🙂"), []byte(`{"a":1e400,"a":"\ud800"}`))
			w.append(key, psych.Pos{}, b)
			w.holds(key, b.Entries, "after an append of strange bytes")
		}),
		storeRule("ReadTime", "Times of entries are kept to the microsecond, as instants.", func(w *world) {
			key := w.run()
			zone := time.FixedZone("", 5*60*60+1800)
			times := []time.Time{
				time.Unix(0, 0), time.Unix(0, 1000), time.Unix(1e9, 999_999_000),
				time.Date(1999, 12, 31, 23, 59, 59, 1000, time.UTC), time.Date(2400, 2, 29, 1, 2, 3, 123_456_000, zone),
				w.now.Add(time.Microsecond).In(zone), w.now.Add(-time.Microsecond),
			}
			b := w.small(0, len(times)+1)
			for i, t := range times {
				b.Entries[i].Time = t
			}
			fine := w.now.Add(123_456_789)
			b.Entries[len(times)].Time = fine
			w.append(key, psych.Pos{}, b)
			got := w.read(key, psych.Pos{}, 100).Entries
			w.check(len(got) == len(b.Entries), "got %d entries, want %d", len(got), len(b.Entries))
			for i, t := range times {
				w.check(got[i].Time.Equal(t), "got time %v, want %v", got[i].Time, t)
			}
			d := got[len(times)].Time.Sub(fine).Abs()
			w.check(d < time.Microsecond, "a time of nanoseconds moved by %v, a microsecond or more", d)
		}),
		storeRule("ReadFromMiddle", "Read goes on behind any seq; inside of an append it begins with its rest.", func(w *world) {
			key := w.run()
			want, _ := w.log(key, 5, 1, 4, 2)
			for seq := range uint64(len(want)) {
				got := w.readAll(key, psych.Pos{Seq: seq}, 100)
				w.check(entriesDiff(got, want[seq:]) == "", "Read behind the bare seq %d: %s", seq, entriesDiff(got, want[seq:]))
			}
		}),
		storeRule("ReadLimit", "Read stops at the first boundary at or past limit entries, or at one before it, but never before the first.", func(w *world) {
			key := w.run()
			want, bounds := w.log(key, 3, 1, 4, 1, 1, 2)
			head := uint64(len(want))
			for seq := range head {
				for limit := 1; limit <= int(head)+1; limit++ {
					page := w.read(key, psych.Pos{Seq: seq}, limit)
					furthest := head
					for _, b := range slices.Backward(bounds) {
						if b.Seq >= seq+uint64(limit) {
							furthest = b.Seq
						}
					}
					n := page.Next.Seq
					what := fmt.Sprintf("Read behind seq %d, limit %d", seq, limit)
					w.check(n > seq, "%s: it stops before the first boundary", what)
					w.check(slices.ContainsFunc(bounds, func(b psych.Pos) bool { return b.Seq == n }), "%s: it stops at seq %d, no boundary", what, n)
					w.check(n <= furthest, "%s: it goes on to seq %d, past the boundary at seq %d", what, n, furthest)
					w.check(entriesDiff(page.Entries, want[seq:n]) == "", "%s: %s", what, entriesDiff(page.Entries, want[seq:n]))
					w.check(page.More == (n != head), "%s: More is %v at seq %d of a log with head %d", what, page.More, n, head)
				}
			}
			for limit := 1; limit <= int(head)+1; limit++ {
				got := w.readAll(key, psych.Pos{}, limit)
				w.check(entriesDiff(got, want) == "", "all pages with limit %d: %s", limit, entriesDiff(got, want))
			}
		}),
		storeRule("ReadLimitInvalid", "A limit below 1 is ErrInvalid.", func(w *world) {
			key := w.run()
			w.log(key, 2)
			for _, limit := range []int{0, -1} {
				_, err := w.Read(w.ctx, key, psych.Pos{}, limit)
				w.is(err, psych.ErrInvalid, "Read with limit %d", limit)
			}
		}),
		storeRule("ReadNext", "Next of a page is a boundary: Append and Read go on there, also after the position was encoded.", func(w *world) {
			key := w.run()
			want, _ := w.log(key, 2, 3, 1)
			pos := psych.Pos{}
			for {
				page := w.read(key, pos, 1)
				parsed, err := psych.ParsePos(page.Next.String())
				w.ok(err, "ParsePos of %q", page.Next.String())
				w.check(parsed == page.Next, "the position %v came back from its encoding as %v", page.Next, parsed)
				pos = parsed
				if !page.More {
					break
				}
			}
			w.check(pos.Seq == 6, "the last page ends at seq %d, want 6", pos.Seq)
			b := w.small(6, 2)
			w.append(key, pos, b)
			page := w.read(key, pos, 10)
			w.check(entriesDiff(page.Entries, b.Entries) == "", "Read behind what was the head: %s", entriesDiff(page.Entries, b.Entries))
			w.holds(key, slices.Concat(want, b.Entries), "after an append behind Next")
		}),
		storeRule("ReadAcrossPages", "Read goes through a log of many megabytes in order, across the backend's pages.", func(w *world) {
			key := w.run()
			var want []psych.Entry
			var pos psych.Pos
			for range 12 {
				b := w.largest(pos.Seq)
				pos = w.append(key, pos, b)
				want = append(want, b.Entries...)
			}
			w.holds(key, want, "after 12 appends of the largest size")
			got := w.readAll(key, psych.Pos{Seq: 4}, 7)
			w.check(entriesDiff(got, want[4:]) == "", "behind seq 4, by pages of 7: %s", entriesDiff(got, want[4:]))
		}),
		storeRule("ReadLongLog", "Read keeps the order of seqs over hundreds of appends.", func(w *world) {
			key := w.run()
			sizes := make([]int, 130)
			for i := range sizes {
				sizes[i] = 1 + i%2
			}
			want, _ := w.log(key, sizes...)
			w.holds(key, want, "after 130 appends")
			got := w.readAll(key, psych.Pos{Seq: 99}, 11)
			w.check(entriesDiff(got, want[99:]) == "", "behind seq 99: %s", entriesDiff(got, want[99:]))
		}),
		storeRule("ReadBehindHead", "At the head and behind it Read returns an empty page with Next equal to after, never an error.", func(w *world) {
			key := w.run()
			empty := func(after psych.Pos) {
				page := w.read(key, after, 10)
				w.check(len(page.Entries) == 0 && page.Next == after && !page.More,
					"Read at %v: got %d entries, Next %v, More %v; want none, Next equal to after, no more", after, len(page.Entries), page.Next, page.More)
			}
			empty(psych.Pos{})
			empty(psych.Pos{Seq: 1})
			_, bounds := w.log(key, 2, 3)
			empty(bounds[2])
			empty(psych.Pos{Seq: 5})
			empty(psych.Pos{Seq: 6})
			empty(psych.Pos{Seq: 1 << 40})
		}),
		storeRule("ReadMissing", "Without a header Read is ErrNotFound.", func(w *world) {
			_, err := w.Read(w.ctx, w.key(), psych.Pos{}, 10)
			w.is(err, psych.ErrNotFound, "Read of a Run that never was")
		}),
		storeRule("ReadConsistent", "Read and Head see every acknowledged Append at once, on any handle.", func(w *world) {
			key, other := w.run(), w.second()
			var pos psych.Pos
			for range 25 {
				b := w.small(pos.Seq, 2)
				end := w.append(key, pos, b)
				page, err := other.Read(w.ctx, key, pos, 10)
				w.ok(err, "Read")
				w.check(entriesDiff(page.Entries, b.Entries) == "", "Read just after the Append behind seq %d: %s", pos.Seq, entriesDiff(page.Entries, b.Entries))
				head, err := other.Head(w.ctx, key)
				w.ok(err, "Head")
				w.check(head.Seq == end.Seq, "Head just after an Append is seq %d, want %d", head.Seq, end.Seq)
				pos = head
			}
		}),
		storeRule("HeadEmpty", "Head of an empty log is the zero Pos.", func(w *world) {
			pos, err := w.Head(w.ctx, w.run())
			w.ok(err, "Head")
			w.check(pos == psych.Pos{}, "Head is %v, want the zero Pos", pos)
		}),
		storeRule("HeadLast", "Head is the last boundary, and Append goes on there.", func(w *world) {
			key := w.run()
			_, bounds := w.log(key, 1, 4)
			pos, err := w.Head(w.ctx, key)
			w.ok(err, "Head")
			w.check(pos == bounds[2], "Head is %v, want %v, which the last Append returned", pos, bounds[2])
			w.append(key, pos, w.small(5, 2))
			pos, err = w.Head(w.ctx, key)
			w.ok(err, "Head")
			w.check(pos.Seq == 7, "Head is seq %d, want 7", pos.Seq)
		}),
		storeRule("HeadMissing", "Without a header Head is ErrNotFound.", func(w *world) {
			_, err := w.Head(w.ctx, w.key())
			w.is(err, psych.ErrNotFound, "Head of a Run that never was")
		}),
		storeRule("LogsApart", "A log is its Run's alone: one tenant's Runs, and one id under two tenants, have logs of their own.", func(w *world) {
			a := w.run()
			b := w.keep(psych.RunKey{Tenant: w.f.Tenant(), RunID: a.RunID})
			w.create(w.header(b))
			c := w.run()
			ea, _ := w.log(a, 2)
			eb, _ := w.log(b, 1, 1, 1)
			w.holds(a, ea, "of the first Run")
			w.holds(b, eb, "of the Run with the same id under another tenant")
			w.holds(c, nil, "of another Run of the first tenant")
		}),
		needs(Reopening, storeRule("LogReopened", "What Append acknowledged is there when the backend is opened anew, and positions hold.", func(w *world) {
			key := w.run()
			want, bounds := w.log(key, 2, 3, 1)
			w.reopen()
			w.holds(key, want, "after reopening")
			got := w.readAll(key, bounds[1], 10)
			w.check(entriesDiff(got, want[2:]) == "", "Read behind a boundary from before: %s", entriesDiff(got, want[2:]))
			w.append(key, bounds[3], w.small(6, 1))
			_, err := w.Append(w.ctx, key, bounds[2], w.small(5, 1))
			w.check(errors.Is(err, psych.ErrConflict), "a stale Append after reopening: got error %v, want ErrConflict", err)
		})),
	}
}

// entryOverhead is what each entry counts for besides its data (MaxAppendBytes).
const entryOverhead = 64

// largest makes a legal append of exactly MaxAppendBytes behind seq, in three
// entries, each of the size of a legal record.
func (w *world) largest(seq uint64) psych.Batch {
	const third = (psych.MaxAppendBytes - 3*entryOverhead) / 3
	rest := psych.MaxAppendBytes - 3*entryOverhead - 2*third
	return w.batch(seq, random(third), random(third), random(rest))
}
