package dynamo

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// logKey is the sort key of an append that begins at seq. The letter before the
// digits counts them, so that keys sort as seqs do.
func logKey(seq uint64) string {
	digits := strconv.FormatUint(seq, 10)
	return logPrefix + string(rune('a'+len(digits)-1)) + digits
}

func parseLogKey(s string) (uint64, bool) {
	if len(s) < 3 {
		return 0, false
	}
	seq, err := strconv.ParseUint(s[2:], 10, 64)
	return seq, err == nil && seq > 0 && logKey(seq) == s
}

// mark is the proof that a position is a boundary: the first seq of the append
// that ends there.
func mark(first uint64) string { return strconv.FormatUint(first, 10) }

func checkPos(p psych.Pos) error {
	if p.Mark == "" {
		return nil
	}
	first, err := strconv.ParseUint(p.Mark, 10, 64)
	if err != nil || first == 0 || first > p.Seq || mark(first) != p.Mark {
		return fmt.Errorf("position %s: want one that this store returned: %w", p, psych.ErrInvalid)
	}
	return nil
}

// An appended is an item of the log.
type appended struct {
	first, last uint64
	token       string
	entries     []psych.Entry // nil if they were not decoded
	bytes       int
}

func (a *appended) end() psych.Pos { return psych.Pos{Seq: a.last, Mark: mark(a.first)} }

// kinds and times of an append are kept as text, joined by commas, so that a
// person can read them: 2026-11-29T22:23:00Z,+12,+503 are microseconds since
// the one before.

func joinKinds(entries []psych.Entry) string {
	kinds := make([]string, len(entries))
	for i, e := range entries {
		kinds[i] = url.QueryEscape(string(e.Kind)) // what Psych itself writes needs no escape
	}
	return strings.Join(kinds, ",")
}

const timeLayout = "2006-01-02T15:04:05.999999Z"

func joinTimes(entries []psych.Entry) string {
	var b strings.Builder
	var last int64
	for i, e := range entries {
		at := micros(e.Time)
		switch y := e.Time.UTC().Year(); {
		case i > 0:
			fmt.Fprintf(&b, ",%+d", at-last)
		case y >= 0 && y <= 9999:
			b.WriteString(micro(e.Time).Format(timeLayout))
		default:
			b.WriteString(strconv.FormatInt(at, 10))
		}
		last = at
	}
	return b.String()
}

func splitTimes(s string) ([]time.Time, error) {
	parts := strings.Split(s, ",")
	times := make([]time.Time, len(parts))
	var last int64
	for i, part := range parts {
		if i == 0 {
			if t, err := time.Parse(timeLayout, part); err == nil {
				last, times[0] = micros(t), t
				continue
			}
		}
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			return nil, err
		}
		last += n
		times[i] = fromMicros(last)
	}
	return times, nil
}

func encodeAppend(key psych.RunKey, b psych.Batch) item {
	n := 0
	for _, e := range b.Entries {
		n += binary.MaxVarintLen32 + len(e.Data)
	}
	// The lengths of all entries, then their data.
	data := make([]byte, 0, n)
	for _, e := range b.Entries {
		data = binary.AppendUvarint(data, uint64(len(e.Data)))
	}
	for _, e := range b.Entries {
		data = append(data, e.Data...)
	}
	it := keyOf(runPart(key), logKey(b.Entries[0].Seq))
	it["v"] = num(formatVersion)
	it["w"] = bin([]byte(b.Token))
	it["k"] = str(joinKinds(b.Entries))
	it["t"] = str(joinTimes(b.Entries))
	setData(it, data)
	return it
}

// decodeBounds reads what an item says without its data.
func decodeBounds(key psych.RunKey, it item) (*appended, error) {
	first, ok := parseLogKey(getStr(it, sk))
	if !ok {
		return nil, &psych.CorruptionError{Run: key, Reason: psych.UndecodableRecord, Detail: fmt.Sprintf("an item has the sort key %.80q", getStr(it, sk))}
	}
	if what := newer(it); what != "" {
		return nil, &psych.UnsupportedError{Run: key, Seq: first, What: what}
	}
	n := uint64(strings.Count(getStr(it, "k"), ",") + 1)
	return &appended{first: first, last: first + n - 1, token: string(getBin(it, "w"))}, nil
}

func decodeAppend(key psych.RunKey, it item) (*appended, error) {
	a, err := decodeBounds(key, it)
	if err != nil {
		return nil, err
	}
	corrupt := func(detail string) error {
		return &psych.CorruptionError{Run: key, Reason: psych.UndecodableRecord, Seq: a.first, Detail: detail}
	}
	data, err := getData(it)
	if err != nil {
		return nil, corrupt("the data of an item can't be decompressed: " + err.Error())
	}
	kinds := strings.Split(getStr(it, "k"), ",")
	times, err := splitTimes(getStr(it, "t"))
	if err != nil || len(times) != len(kinds) {
		return nil, corrupt(fmt.Sprintf("an item has %d kinds and the times %.80q", len(kinds), getStr(it, "t")))
	}
	lengths := make([]int, len(kinds))
	for i := range lengths {
		n, width := binary.Uvarint(data)
		if width <= 0 || n > maxDecoded {
			return nil, corrupt("the data of an item does not begin with its lengths")
		}
		lengths[i], data = int(n), data[width:]
		a.bytes += int(n)
	}
	if a.bytes != len(data) {
		return nil, corrupt(fmt.Sprintf("an item has %d bytes of data, its lengths say %d", len(data), a.bytes))
	}
	a.entries = make([]psych.Entry, len(kinds))
	for i, n := range lengths {
		kind, err := url.QueryUnescape(kinds[i])
		if err != nil {
			return nil, corrupt("an item has an undecodable kind")
		}
		a.entries[i] = psych.Entry{Seq: a.first + uint64(i), Kind: psych.Kind(kind), Time: times[i], Data: data[:n:n]}
		data = data[n:]
	}
	return a, nil
}

// maxDecoded is more than any entry has (MaxAppendBytes).
const maxDecoded = 1 << 30

// Append implements [psych.Log].
func (s *Store) Append(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
	pos, err := s.append(ctx, key, after, b)
	if err != nil {
		return psych.Pos{}, wrap("append", key, err)
	}
	return pos, nil
}

func (s *Store) append(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
	if err := errors.Join(s.check(ctx, key), b.Check(after), checkPos(after)); err != nil {
		return psych.Pos{}, err
	}
	if after.Seq > 0 && after.Mark == "" {
		// Nothing says that it is a boundary.
		if last, err := s.lastBefore(ctx, key, after.Seq, true); err != nil {
			return psych.Pos{}, err
		} else if last == nil || last.last != after.Seq {
			return psych.Pos{}, fmt.Errorf("behind seq %d, which no append ends with: %w", after.Seq, psych.ErrConflict)
		}
	}
	it := encodeAppend(key, b)
	if n := size(it); n > maxItem {
		return psych.Pos{}, fmt.Errorf("an item of %d bytes, the most is %d: its kinds are too long: %w", n, maxItem, psych.ErrTooLarge)
	}
	// Whatever was appended behind a boundary begins at exactly this key.
	old, err := s.put(ctx, it, "attribute_not_exists("+pk+")", nil)
	if err == nil {
		last := b.Entries[len(b.Entries)-1].Seq
		return psych.Pos{Seq: last, Mark: mark(b.Entries[0].Seq)}, nil
	}
	if err != errCondition {
		return psych.Pos{}, err
	}
	if old != nil {
		is, err := decodeBounds(key, old)
		if err != nil {
			return psych.Pos{}, err
		}
		if is.token == b.Token {
			return is.end(), nil
		}
	}
	return psych.Pos{}, fmt.Errorf("behind seq %d: another append is there: %w", after.Seq, psych.ErrConflict)
}

// lastBefore reads the last append that begins at seq or before; nil if there
// is none. Where bounds are enough, its data is not transferred.
func (s *Store) lastBefore(ctx context.Context, key psych.RunKey, seq uint64, bounds bool) (a *appended, err error) {
	q := query{part: runPart(key), from: logPrefix, to: logKey(seq), backward: true, limit: 1}
	decode := decodeAppend
	if bounds {
		q.projection, decode = sk+", v, k", decodeBounds
	}
	err = s.query(ctx, q, func(page []item, _ bool) (bool, error) {
		if len(page) == 0 {
			return true, nil
		}
		a, err = decode(key, page[0])
		return false, err
	})
	return a, err
}

// pageBytes is how many bytes of data a page has at the most, one append more. A
// Query reads at most 1 MiB, as it is stored: what does not fit into a page is
// read again, so that this is what that mostly unpacks to.
const pageBytes = 16 << 20

// Read implements [psych.Log]. A hole in the log is a [psych.CorruptionError],
// behind what is before it.
func (s *Store) Read(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
	page, err := s.read(ctx, key, after, limit)
	if err != nil {
		return psych.Page{}, wrap("read", key, err)
	}
	return page, nil
}

func (s *Store) read(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
	if err := errors.Join(s.check(ctx, key), checkPos(after)); err != nil {
		return psych.Page{}, err
	}
	if limit < 1 {
		return psych.Page{}, fmt.Errorf("limit %d: want at least 1: %w", limit, psych.ErrInvalid)
	}
	r := &reader{key: key, limit: limit, page: psych.Page{Next: after}, skip: after.Seq, next: after.Seq + 1}
	from := headerKey // with the log, when all of it is read
	if after.Seq > 0 {
		if _, err := s.header(ctx, key); err != nil {
			return psych.Page{}, err
		}
		r.header = true
		if after.Mark == "" {
			a, err := s.lastBefore(ctx, key, after.Seq, false)
			if err != nil {
				return psych.Page{}, err
			}
			if r.next = 1; a != nil {
				r.next = a.first
				if more, err := r.take(a); err != nil || !more {
					return r.page, err
				}
			}
		}
		from = logKey(r.next)
	}
	// An append has two entries mostly, and one at least: then it takes another
	// Query. One more item tells whether there is more.
	items := int32(min((limit-len(r.page.Entries))/2, 1000) + 2)
	r.cutBelow = int(items)
	err := s.query(ctx, query{part: runPart(key), from: from, to: logEnd, limit: items}, r.items)
	return r.page, err
}

// A reader makes a page of the items of a log.
type reader struct {
	key    psych.RunKey
	limit  int
	header bool // was seen
	skip   uint64
	next   uint64 // where the next append begins
	bytes  int
	page   psych.Page

	cutBelow int // a Query's page of fewer items was cut for its size
}

// items takes a page of a Query.
func (r *reader) items(page []item, more bool) (bool, error) {
	cut := more && len(page) < r.cutBelow
	if !r.header {
		if len(page) == 0 && more {
			return true, nil
		}
		if len(page) == 0 || getStr(page[0], sk) != headerKey {
			return false, psych.ErrNotFound
		}
		if _, err := decodeLive(r.key, page[0]); err != nil {
			return false, err
		}
		r.header, page = true, page[1:]
	}
	for i, it := range page {
		// Whether there is another item behind the last of a page that was cut
		// costs a request to find out. That one is left for the next Read.
		if i == len(page)-1 && cut && len(r.page.Entries) > 0 {
			r.page.More = true
			return false, nil
		}
		a, err := decodeAppend(r.key, it)
		if err != nil {
			return r.stop(err)
		}
		if on, err := r.take(a); err != nil || !on {
			return false, err
		}
	}
	return true, nil
}

// take adds an append to the page, and reports whether there may be more in it.
func (r *reader) take(a *appended) (bool, error) {
	if a.first != r.next {
		return r.stop(&psych.CorruptionError{Run: r.key, Reason: psych.NonConsecutiveSeq, Seq: r.next,
			Detail: fmt.Sprintf("an append that begins at seq %d follows", a.first)})
	}
	if len(r.page.Entries) >= r.limit || r.bytes >= pageBytes {
		r.page.More = true
		return false, nil
	}
	r.next = a.last + 1
	entries := a.entries
	if a.first <= r.skip {
		entries = entries[min(r.skip-a.first+1, uint64(len(entries))):]
	}
	if len(entries) > 0 {
		r.page.Entries = append(r.page.Entries, entries...)
		r.page.Next = a.end()
		r.bytes += a.bytes
	}
	return true, nil
}

// stop ends a page before what is wrong, which the next Read then begins with.
func (r *reader) stop(err error) (bool, error) {
	if len(r.page.Entries) == 0 {
		return false, err
	}
	r.page.More = true
	return false, nil
}

// Head implements [psych.Log].
func (s *Store) Head(ctx context.Context, key psych.RunKey) (psych.Pos, error) {
	err := s.check(ctx, key)
	if err == nil {
		_, err = s.header(ctx, key)
	}
	var last *appended
	if err == nil {
		last, err = s.lastBefore(ctx, key, 1<<64-1, true)
	}
	if err != nil {
		return psych.Pos{}, wrap("head", key, err)
	}
	if last == nil {
		return psych.Pos{}, nil
	}
	return last.end(), nil
}
