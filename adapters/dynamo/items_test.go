package dynamo_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

var (
	key = psych.RunKey{Tenant: "tenant", RunID: runID}
	now = time.Date(2026, 11, 29, 22, 23, 0, 123_000, time.UTC)
)

// A bench is a table, its client and a Run in it.
type bench struct {
	*dynamo.Store
	t *testing.T
	c *dynamodb.Client
}

func newBench(t *testing.T, e endpoint.Endpoint, change func(*psych.RunInfo)) *bench {
	t.Helper()
	c := client(e)
	b := &bench{newTable(t, c), t, c}
	info := psych.RunInfo{Key: key, Scope: psych.Scope{Tenant: key.Tenant}, Version: psych.Digest{1}, Request: psych.Digest{2}, Incarnation: "i", CreatedAt: now, Status: psych.StatusOpen}
	if change != nil {
		change(&info)
	}
	if _, _, err := b.CreateRun(t.Context(), info); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) append(after psych.Pos, data ...string) psych.Pos {
	b.t.Helper()
	batch := psych.Batch{Token: fmt.Sprint("token ", after.Seq)}
	for i, d := range data {
		batch.Entries = append(batch.Entries, psych.Entry{Seq: after.Seq + 1 + uint64(i), Kind: psych.KindUserMessage, Time: now.Add(time.Duration(i) * time.Second), Data: []byte(d)})
	}
	pos, err := b.Append(b.t.Context(), key, after, batch)
	if err != nil {
		b.t.Fatal(err)
	}
	return pos
}

func itemKey(sort string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{
		"p": &types.AttributeValueMemberS{Value: "r#" + key.Tenant + "#" + key.RunID},
		"s": &types.AttributeValueMemberS{Value: sort},
	}
}

// item reads an item of the Run as it is.
func (b *bench) item(sort string) map[string]types.AttributeValue {
	b.t.Helper()
	out, err := b.c.GetItem(b.t.Context(), &dynamodb.GetItemInput{TableName: aws.String(b.TableName()), Key: itemKey(sort), ConsistentRead: aws.Bool(true)})
	if err != nil {
		b.t.Fatal(err)
	}
	return out.Item
}

// set changes an item of the Run behind the store's back.
func (b *bench) set(sort, name string, value types.AttributeValue) {
	b.t.Helper()
	it := b.item(sort)
	it[name] = value
	if _, err := b.c.PutItem(b.t.Context(), &dynamodb.PutItemInput{TableName: aws.String(b.TableName()), Item: it}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) remove(sort string) {
	b.t.Helper()
	if _, err := b.c.DeleteItem(b.t.Context(), &dynamodb.DeleteItemInput{TableName: aws.String(b.TableName()), Key: itemKey(sort)}); err != nil {
		b.t.Fatal(err)
	}
}

// text is an attribute that a person can read.
func text(it map[string]types.AttributeValue, name string) string {
	switch a := it[name].(type) {
	case *types.AttributeValueMemberS:
		return a.Value
	case *types.AttributeValueMemberN:
		return a.Value
	}
	return ""
}

// A hole is corruption with the seq that is missing, from wherever it is read,
// and nothing behind it is returned.
func TestHole(t *testing.T) {
	each(t, func(t *testing.T, e endpoint.Endpoint) {
		b := newBench(t, e, nil)
		one := b.append(psych.Pos{}, "1", "2")
		two := b.append(one, "3", "4", "5")
		b.append(b.append(two, "6"), "7")
		b.remove("la3")
		check := func(what string, after psych.Pos, limit int, wantSeq uint64) {
			t.Helper()
			page, err := b.Read(t.Context(), key, after, limit)
			var corrupt *psych.CorruptionError
			if !errors.As(err, &corrupt) || corrupt.Reason != psych.NonConsecutiveSeq || corrupt.Seq != wantSeq || corrupt.Run != key || len(page.Entries) != 0 {
				t.Errorf("%s: got %v, %v; want non_consecutive_seq at seq %d", what, page, err, wantSeq)
			}
		}
		page, err := b.Read(t.Context(), key, psych.Pos{}, 100)
		if err != nil || len(page.Entries) != 2 || page.Next != one || !page.More {
			t.Fatalf("before the hole: %v, %v; want two entries and more", page, err)
		}
		check("from the boundary before it", page.Next, 100, 3)
		check("from the bare seq before it", psych.Pos{Seq: 2}, 1, 3)
		check("from inside of it", psych.Pos{Seq: 4}, 1, 3)
		check("from the bare seq of its end", psych.Pos{Seq: 5}, 1, 3)
		b.remove("la1")
		check("from the start", psych.Pos{}, 1, 1)
		check("from inside", psych.Pos{Seq: 1}, 1, 1)
		// What is appended behind it is there, and begins at its boundary.
		if page, err := b.Read(t.Context(), key, psych.Pos{Seq: 6}, 1); err != nil || len(page.Entries) != 1 || string(page.Entries[0].Data) != "7" {
			t.Errorf("behind the hole: %v, %v", page, err)
		}
	})
}

// An item of a newer release is said to be one, by every method that reads it,
// and is not changed.
func TestNewerItems(t *testing.T) {
	each(t, func(t *testing.T, e endpoint.Endpoint) {
		ctx := t.Context()
		b := newBench(t, e, func(i *psych.RunInfo) { i.DueAt = now })
		one := b.append(psych.Pos{}, "1")
		b.append(one, "2", "3")
		note := psych.Note{ID: "n", Kind: psych.KindUserMessage, Time: now}
		if err := b.Post(ctx, key, note, now); err != nil {
			t.Fatal(err)
		}
		lease, err := b.Claim(ctx, key, "me", "token", now, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		unsupported := func(what string, err error, seq uint64) {
			t.Helper()
			var u *psych.UnsupportedError
			if !errors.As(err, &u) || u.Run != key || u.Seq != seq || !strings.Contains(u.What, "item format 2") {
				t.Errorf("%s: got %v, want an UnsupportedError at seq %d", what, err, seq)
			}
		}
		two := &types.AttributeValueMemberN{Value: "2"}
		b.set("la2", "v", two)
		page, err := b.Read(ctx, key, psych.Pos{}, 10)
		if err != nil || len(page.Entries) != 1 || !page.More {
			t.Fatalf("before it: %v, %v", page, err)
		}
		_, err = b.Read(ctx, key, page.Next, 10)
		unsupported("Read", err, 2)
		_, err = b.Head(ctx, key)
		unsupported("Head", err, 2)

		noteKey := fmt.Sprintf("g%016xn\x00%s", uint64(now.UnixMicro())^1<<63, note.Kind)
		b.set(noteKey, "v", two)
		_, err = b.Pending(ctx, key)
		unsupported("Pending", err, 0)

		b.set("h", "v", two)
		before := fmt.Sprint(text(b.item("h"), "ep"), text(b.item("h"), "un"), text(b.item("h"), "po"))
		for what, call := range map[string]func() error{
			"GetRun":    func() error { _, err := b.GetRun(ctx, key); return err },
			"CreateRun": func() error { _, _, err := b.CreateRun(ctx, psych.RunInfo{Key: key}); return err },
			"Head":      func() error { _, err := b.Head(ctx, key); return err },
			"Read":      func() error { _, err := b.Read(ctx, key, psych.Pos{}, 1); return err },
			"Post":      func() error { return b.Post(ctx, key, note, now) },
			"Claim":     func() error { _, err := b.Claim(ctx, key, "me", "other", now.Add(time.Hour), time.Minute); return err },
			"Renew":     func() error { _, err := b.Renew(ctx, lease, now.Add(time.Hour), time.Minute); return err },
			"Release":   func() error { return b.Release(ctx, lease, now, psych.StatusOpen) },
			"Defer":     func() error { return b.Defer(ctx, lease.Info, now, now.Add(time.Hour)) },
			"ListRuns":  func() error { _, _, err := b.ListRuns(ctx, key.Tenant, "", 10); return err },
		} {
			unsupported(what, call(), 0)
		}
		if after := fmt.Sprint(text(b.item("h"), "ep"), text(b.item("h"), "un"), text(b.item("h"), "po")); after != before {
			t.Errorf("the header was changed: %s, was %s", after, before)
		}
		// A sweep lists it all the same, so that a worker of the newer release gets it.
		if keys, _, err := b.Due(ctx, now, "", 10); err != nil || len(keys) != 1 {
			t.Errorf("Due is %v, %v", keys, err)
		}
	})
}

// What nobody wrote is corruption at its seq.
func TestCorruptItem(t *testing.T) {
	e := endpoint.One(t, endpoint.Dynamo, "dynalite")
	bin := func(s string) types.AttributeValue { return &types.AttributeValueMemberB{Value: []byte(s)} }
	str := func(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }
	b := newBench(t, e, nil)
	b.append(psych.Pos{}, "one", "two")
	sound := b.item("la1")
	for _, c := range []struct {
		name  string
		value types.AttributeValue
	}{
		{"d", bin("\x03\x04onetwo")}, {"d", bin("\x03")}, {"d", bin("")}, {"z", bin("no zstd")}, {"t", str("2026-11-29T22:23:00Z")}, {"t", str("x,+1")}, {"k", str("a,b,c")}, {"k", str("a,%zz")},
	} {
		b.set("la1", c.name, c.value)
		var corrupt *psych.CorruptionError
		if _, err := b.Read(t.Context(), key, psych.Pos{}, 1); !errors.As(err, &corrupt) || corrupt.Reason != psych.UndecodableRecord || corrupt.Seq != 1 {
			t.Errorf("with %s %v: got %v, want undecodable_record at seq 1", c.name, c.value, err)
		}
		if _, err := b.c.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: aws.String(b.TableName()), Item: sound}); err != nil {
			t.Fatal(err)
		}
	}
	if page, err := b.Read(t.Context(), key, psych.Pos{}, 1); err != nil || len(page.Entries) != 2 {
		t.Errorf("the sound item: %v, %v", page, err)
	}
}

// Positions that this store did not return are refused.
func TestForeignMarks(t *testing.T) {
	b := newBench(t, endpoint.One(t, endpoint.Dynamo, "dynalite"), nil)
	b.append(psych.Pos{}, "1", "2")
	for _, p := range []psych.Pos{{Seq: 2, Mark: "x"}, {Seq: 2, Mark: "0"}, {Seq: 2, Mark: "3"}, {Seq: 2, Mark: "01"}, {Seq: 2, Mark: "-1"}} {
		if _, err := b.Read(t.Context(), key, p, 1); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("Read at %v: got %v, want ErrInvalid", p, err)
		}
		batch := psych.Batch{Token: "t", Entries: []psych.Entry{{Seq: 3}}}
		if _, err := b.Append(t.Context(), key, p, batch); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("Append at %v: got %v, want ErrInvalid", p, err)
		}
	}
}

// A person reads kinds, seqs and times of the log in the console.
func TestReadableItems(t *testing.T) {
	b := newBench(t, endpoint.One(t, endpoint.Dynamo, "dynalite"), nil)
	b.append(b.append(psych.Pos{}, "1"), "2", "3")
	it := b.item("la2")
	if k, want := text(it, "k"), "user_message,user_message"; k != want {
		t.Errorf("kinds are %q, want %q", k, want)
	}
	if at, want := text(it, "t"), "2026-11-29T22:23:00.000123Z,+1000000"; at != want {
		t.Errorf("times are %q, want %q", at, want)
	}
	if size := len(it); size != 7 { // p, s, v, w, k, t, d
		t.Errorf("the item has %d attributes: %v", size, it)
	}
}

// Compression happens where it saves a write unit, and nowhere else.
func TestCompression(t *testing.T) {
	b := newBench(t, endpoint.One(t, endpoint.Dynamo, "dynalite"), nil)
	pos := b.append(psych.Pos{}, strings.Repeat("small ", 130))
	pos = b.append(pos, strings.Repeat("large ", 200))
	random := make([]byte, 1500)
	for i, x := range strings.Repeat("0123456789abcdef", 94)[:1500] {
		random[i] = byte(x) ^ byte(i*i*7919>>3) ^ byte(i*104729>>7)
	}
	b.append(pos, string(random))
	for sort, want := range map[string]bool{"la1": false, "la2": true, "la3": false} {
		it := b.item(sort)
		if got := it["z"] != nil; got != want || (it["d"] != nil) == want {
			t.Errorf("%s is compressed: %v, want %v", sort, got, want)
		}
	}
	page, err := b.Read(t.Context(), key, psych.Pos{}, 10)
	if err != nil || len(page.Entries) != 3 || string(page.Entries[1].Data) != strings.Repeat("large ", 200) || string(page.Entries[2].Data) != string(random) {
		t.Errorf("read %d entries, %v", len(page.Entries), err)
	}
}

// A renewal leaves the key of the index where it is; a claim moves it only if
// the lease ends before it, and retention is not forgotten.
func TestDueKey(t *testing.T) {
	ctx := t.Context()
	b := newBench(t, endpoint.One(t, endpoint.Dynamo, "dynalite"), func(i *psych.RunInfo) { i.ExpiresAt = now.Add(24 * time.Hour) })
	is := func(what string, want time.Time) {
		t.Helper()
		if got := text(b.item("h"), "u"); got != fmt.Sprint(want.UnixMicro()) {
			t.Errorf("%s: the key is %s, want %d", what, got, want.UnixMicro())
		}
	}
	is("created", now.Add(24*time.Hour))
	if err := b.Post(ctx, key, psych.Note{ID: "n", Kind: "k", Time: now}, now.Add(30*time.Second)); err != nil {
		t.Fatal(err)
	}
	is("posted", now.Add(30*time.Second))
	l, err := b.Claim(ctx, key, "me", "a", now, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	is("claimed", now.Add(30*time.Second))
	if l, err = b.Renew(ctx, l, now.Add(time.Hour), time.Minute); err != nil {
		t.Fatal(err)
	}
	is("renewed", now.Add(30*time.Second))
	if keys, _, err := b.Due(ctx, now.Add(20*time.Second), "", 10); err != nil || len(keys) != 0 {
		t.Errorf("before it is due, Due is %v, %v", keys, err)
	}
	if err := b.Release(ctx, l, time.Time{}, psych.StatusCompleted); err != nil {
		t.Fatal(err)
	}
	is("released", now.Add(24*time.Hour))
	if l, err = b.Claim(ctx, key, "me", "b", now.Add(2*time.Hour), time.Minute); err != nil {
		t.Fatal(err)
	}
	is("claimed with nothing else due", now.Add(2*time.Hour+time.Minute))
	if _, err = b.Renew(ctx, l, now.Add(3*time.Hour), time.Minute); err != nil {
		t.Fatal(err)
	}
	is("renewed again", now.Add(2*time.Hour+time.Minute))
	// The entry is of the first end of the lease: the header says that it holds.
	if keys, _, err := b.Due(ctx, now.Add(3*time.Hour), "", 10); err != nil || len(keys) != 0 {
		t.Errorf("while the lease holds, Due is %v, %v", keys, err)
	}
	if keys, _, err := b.Due(ctx, now.Add(3*time.Hour+time.Minute), "", 10); err != nil || len(keys) != 1 {
		t.Errorf("when the lease has ended, Due is %v, %v", keys, err)
	}
}

// Tombstones alone have the attribute of the TTL, and they only after the last
// purge. Where the table has none, a Run can be created all the same.
func TestTTLAttribute(t *testing.T) {
	each(t, func(t *testing.T, e endpoint.Endpoint) {
		ctx := t.Context()
		b := newBench(t, e, func(i *psych.RunInfo) { i.ExpiresAt = now.Add(time.Hour) })
		b.append(psych.Pos{}, "1")
		if err := b.Post(ctx, key, psych.Note{ID: "n", Kind: "k", Time: now}, now); err != nil {
			t.Fatal(err)
		}
		none := func(when string) {
			t.Helper()
			out, err := b.c.Scan(ctx, &dynamodb.ScanInput{TableName: aws.String(b.TableName())})
			if err != nil {
				t.Fatal(err)
			}
			for _, it := range out.Items {
				if it[dynamo.TTLAttribute] != nil {
					t.Errorf("%s, the item %s has the attribute of the TTL", when, text(it, "s"))
				}
			}
		}
		none("alive")
		if err := b.DeleteRun(ctx, key, now); err != nil {
			t.Fatal(err)
		}
		none("deleted")
		if err := b.PurgeRun(ctx, key, now.Add(psych.MaxLease)); err != nil {
			t.Fatal(err)
		}
		none("purged")
		last := now.Add(psych.TombstoneLife)
		if err := b.PurgeRun(ctx, key, last); err != nil {
			t.Fatal(err)
		}
		if got := text(b.item("h"), dynamo.TTLAttribute); got != fmt.Sprint(last.Unix()) {
			t.Errorf("after the last purge the TTL is %q, want %d", got, last.Unix())
		}
		if _, created, err := b.CreateRun(ctx, psych.RunInfo{Key: key, Request: psych.Digest{3}, CreatedAt: last}); err != nil || !created {
			t.Errorf("CreateRun over a tombstone that may expire: %v, %v", created, err)
		}
		none("created again")
	})
}

// Answers of indexes that are late are harmless: Due and ListRuns say what the
// table says.
func TestIndexDelay(t *testing.T) {
	each(t, func(t *testing.T, e endpoint.Endpoint) {
		ctx := t.Context()
		b := newBench(t, e, func(i *psych.RunInfo) { i.DueAt = now })
		gone := psych.RunKey{Tenant: key.Tenant, RunID: strings.Repeat("0", 32)}
		if _, _, err := b.CreateRun(ctx, psych.RunInfo{Key: gone, CreatedAt: now, DueAt: now}); err != nil {
			t.Fatal(err)
		}
		if err := b.SwapRef(ctx, "tenant", "ref", psych.Ref{}, psych.Ref{Seq: 1, After: now}); err != nil {
			t.Fatal(err)
		}
		// The late store's indexes answer for ever what they answered first.
		answers := make(map[string]any)
		late := dynamo.New(client(e, initialize(func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
			p, ok := in.Parameters.(*dynamodb.QueryInput)
			if !ok || p.IndexName == nil {
				return next.HandleInitialize(ctx, in)
			}
			question := fmt.Sprint(*p.IndexName, text(p.ExpressionAttributeValues, ":g"), text(p.ExpressionAttributeValues, ":o"))
			if answers[question] == nil {
				out, meta, err := next.HandleInitialize(ctx, in)
				answers[question] = out.Result
				return out, meta, err
			}
			return middleware.InitializeOutput{Result: answers[question]}, middleware.Metadata{}, nil
		})), b.TableName(), nil)
		look := func(what string, due, runs, refs int) {
			t.Helper()
			keys, _, err := late.Due(ctx, now, "", 10)
			if err != nil || len(keys) != due {
				t.Errorf("%s: Due is %v, %v; want %d", what, keys, err, due)
			}
			infos, _, err := late.ListRuns(ctx, key.Tenant, "", 10)
			if err != nil || len(infos) != runs {
				t.Errorf("%s: ListRuns is %v, %v; want %d", what, infos, err, runs)
			}
			for _, i := range infos {
				if is, err := b.GetRun(ctx, i.Key); err != nil || is.Status != i.Status || is.Epoch != i.Epoch {
					t.Errorf("%s: ListRuns says %v, the header %v, %v", what, i, is, err)
				}
			}
			dueRefs, _, err := late.DueRefs(ctx, now, "", 10)
			if err != nil || len(dueRefs) != refs {
				t.Errorf("%s: DueRefs is %v, %v; want %d", what, dueRefs, err, refs)
			}
		}
		look("at first", 2, 2, 1)
		l, err := b.Claim(ctx, key, "me", "token", now, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		look("claimed", 2, 2, 1)
		if err := b.Release(ctx, l, now.Add(time.Hour), psych.StatusCompleted); err != nil {
			t.Fatal(err)
		}
		look("released", 1, 2, 1)
		if err := b.DeleteRun(ctx, gone, now); err != nil {
			t.Fatal(err)
		}
		look("deleted", 0, 1, 1)
		if err := b.SwapRef(ctx, "tenant", "ref", psych.Ref{Seq: 1, After: now}, psych.Ref{Seq: 2}); err != nil {
			t.Fatal(err)
		}
		look("swapped", 0, 1, 0)
	})
}
