package psych

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var testRun = RunKey{"t", strings.Repeat("0", 32)}

var testTime = time.Date(2026, 11, 29, 22, 23, 24, 123456000, time.UTC)

func roundTrip(t testing.TB, r *Record) *Record {
	t.Helper()
	data, err := encodeRecord(r)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeEntry(testRun, Entry{Seq: r.Seq, Kind: r.Event.Kind(), Time: r.Time, Data: data})
	if err != nil {
		t.Fatalf("decode %q: %v", data, err)
	}
	return got
}

func ptr[T any](v T) *T { return &v }

// testEvents has one of each kind, with every field set.
func testEvents() []Event {
	text := func(s string) Payload { return newPayload("text/plain", []byte(s)) }
	d := Digest{1, 2, 3}
	ref := Payload{ContentType: "image/png", Size: 1 << 30, Binary: true, Ref: &BlobRef{CallID: "c1_1.result.2", SHA256: d, Head: []byte("he\xffad"), Tail: []byte("tail"), Index: []byte{0, 1, 2}}}
	return []Event{
		&RunAdmitted{Version: d, Projection: 1},
		&AttemptStarted{},
		&UserMessage{ID: "m-1", Text: text("line\nof <text> & \x00 \"quotes\"")},
		&ModelCallStarted{Turn: 3, Try: 1, Model: "m", Codec: "c/1", Tools: &d, Static: &d, Dynamic: &d, Prefix: &d, History: d, Messages: 4,
			Chars: [4]int{1, 2, 3, 4}, Breaks: []Break{{2, MemoryChanged}}, Tail: &Tail{Now: testTime.Truncate(time.Minute), News: []string{"n"}}, Memory: ptr(text("likes tea"))},
		&ModelCallFinished{Turn: 3, Stop: StopToolUse, Sent: 99, Milliseconds: 5,
			Usage: Usage{Input: ptr(int64(1)), CacheRead: ptr(int64(0)), Output: ptr(int64(3))},
			Blocks: []Said{
				{Provider: ptr(newPayload("application/octet-stream", []byte(`{ "signature" : "a<b" , "n":1.0e0 }`)))},
				{Text: ptr(text("hm"))},
				{Call: &Asked{ProviderID: "x", Name: "add", Arguments: newPayload("application/json", []byte(`{"b":1234567890123456789, "a":1.0}`))}},
			}},
		&ModelCallFailed{Turn: 3, Status: 429, Transient: true, Overflow: true, Interrupted: true, RetryMillis: 1500, Message: "slow <down>"},
		&ToolCallStarted{Call: "c3_1"},
		&ToolCallFinished{Call: "c3_1", Outcome: Failed, Code: "x", Page: true, Result: ref, Milliseconds: 7},
		&AbortRequested{ID: "a", Message: "m-1", Reason: "no"},
		&ExchangeClosed{Status: StatusFailed, Code: "c", Reason: "r"},
	}
}

func TestCodecRoundTrip(t *testing.T) {
	seen := map[Kind]bool{}
	for i, e := range testEvents() {
		r := &Record{Seq: uint64(i + 1), Time: testTime, Attempt: 7, Event: e}
		got := roundTrip(t, r)
		if got.Attempt != 7 || got.Seq != r.Seq || !got.Time.Equal(r.Time) {
			t.Errorf("%s: envelope %+v", e.Kind(), got)
		}
		for _, p := range got.Event.payloads() {
			p.framed = [3]int{}
		}
		if !reflect.DeepEqual(got.Event, e) {
			t.Errorf("%s:\n got %+v\nwant %+v", e.Kind(), got.Event, e)
		}
		seen[e.Kind()] = true
	}
	for _, k := range []Kind{KindRunAdmitted, KindAttemptStarted, KindUserMessage, KindModelCallStarted, KindModelCallFinished, KindModelCallFailed, KindToolCallStarted, KindToolCallFinished, KindAbortRequested, KindExchangeClosed} {
		if !seen[k] {
			t.Errorf("no event of kind %s is tested", k)
		}
	}
}

// Provider blocks and arguments come back byte for byte, whatever they hold.
func TestCodecBytesProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.SliceOf(rapid.Byte()).Draw(t, "raw")
		args := rapid.SliceOf(rapid.Byte()).Draw(t, "args")
		e := &ModelCallFinished{Turn: 1, Blocks: []Said{
			{Provider: &Payload{ContentType: "application/octet-stream", Size: int64(len(raw)), Binary: true, Inline: raw}},
			{Call: &Asked{Name: "n", Arguments: Payload{ContentType: "application/json", Size: int64(len(args)), Binary: true, Inline: args}}},
		}}
		data, err := encodeRecord(&Record{Seq: 1, Attempt: 1, Event: e})
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeEntry(testRun, Entry{Seq: 1, Kind: e.Kind(), Data: data})
		if err != nil {
			t.Fatal(err)
		}
		g := got.Event.(*ModelCallFinished)
		if !bytes.Equal(g.Blocks[0].Provider.Inline, raw) || !bytes.Equal(g.Blocks[1].Call.Arguments.Inline, args) {
			t.Fatalf("got %q and %q, want %q and %q", g.Blocks[0].Provider.Inline, g.Blocks[1].Call.Arguments.Inline, raw, args)
		}
	})
}

func TestCodecNewerWriter(t *testing.T) {
	entry := func(kind Kind, data string) Entry {
		return Entry{Seq: 4, Kind: kind, Time: testTime, Data: []byte(data)}
	}
	var unsupported *UnsupportedError
	if _, err := decodeEntry(testRun, entry("frobnicated", `{"a":1,"e":{}}`+"\n")); !errors.As(err, &unsupported) || !strings.Contains(err.Error(), "frobnicated") {
		t.Errorf("an unknown kind: got %v, want an UnsupportedError that names it", err)
	}
	if _, err := decodeEntry(testRun, entry(KindAttemptStarted, `{"v":2,"a":1,"e":{}}`+"\n")); !errors.As(err, &unsupported) {
		t.Errorf("a newer version: got %v, want an UnsupportedError", err)
	}
	r, err := decodeEntry(testRun, entry("measured", `{"i":true,"a":1,"e":{"ms":12}}`+"\n"))
	if err != nil || r.Event.Kind() != "measured" {
		t.Fatalf("an ignorable kind: %v, %v", r, err)
	}
	s := newState(testRun, Limits{})
	s.seq, s.attempt = 3, 1
	if err := s.apply(r); err != nil || s.seq != 4 {
		t.Errorf("folding an ignorable kind: %v, seq %d", err, s.seq)
	}
	want := `{"seq":4,"kind":"measured","time":"2026-11-29T22:23:24.123456Z","attempt":1,"ms":12}`
	if b, err := json.Marshal(r); err != nil || string(b) != want {
		t.Errorf("JSON of an unknown kind:\n got %s, %v\nwant %s", b, err, want)
	}
	// A field of a newer writer is kept, in bytes and in JSON.
	data := `{"a":1,"e":{"call":"c1_1","zeal":1.50}}` + "\n"
	r, err = decodeEntry(testRun, entry(KindToolCallStarted, data))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := encodeRecord(r); err != nil || string(b) != data {
		t.Errorf("encoded again: %q, %v", b, err)
	}
	if b, err := json.Marshal(r); err != nil || !strings.HasSuffix(string(b), `"call":"c1_1","zeal":1.50}`) {
		t.Errorf("JSON: %s, %v", b, err)
	}
}

func TestCodecCorrupt(t *testing.T) {
	full, err := encodeRecord(&Record{Seq: 1, Attempt: 1, Event: &UserMessage{ID: "m", Text: newPayload("text/plain", []byte("hello"))}})
	if err != nil {
		t.Fatal(err)
	}
	for n := range full {
		_, err := decodeEntry(testRun, Entry{Seq: 1, Kind: KindUserMessage, Data: full[:n]})
		var c *CorruptionError
		if !errors.As(err, &c) || c.Reason != UndecodableRecord || c.Seq != 1 {
			t.Errorf("%d of %d bytes: got %v, want undecodable_record", n, len(full), err)
		}
	}
	if _, err := decodeEntry(testRun, Entry{Seq: 1, Kind: KindUserMessage, Data: append(full, 'x')}); err == nil {
		t.Error("a byte more than the payloads was accepted")
	}
}

func TestRecordJSON(t *testing.T) {
	r := &Record{Seq: 2, Time: testTime, Attempt: 1, Event: &ToolCallFinished{Call: "c1_1", Outcome: Succeeded, Result: newPayload("application/octet-stream", []byte{0xff, 0})}}
	b, err := json.Marshal(r)
	want := `{"seq":2,"kind":"tool_call_finished","time":"2026-11-29T22:23:24.123456Z","attempt":1,"call":"c1_1","outcome":"succeeded","result":{"content_type":"application/octet-stream","size_bytes":2,"binary":true,"base64":"/wA="}}`
	if err != nil || string(b) != want {
		t.Errorf("\n got %s, %v\nwant %s", b, err, want)
	}
	r.Event = &UserMessage{ID: "m", Text: newPayload("text/plain", []byte("a<b"))}
	if b, err := json.Marshal(r); err != nil || !json.Valid(b) {
		t.Errorf("%s: %v", b, err)
	}
	var back struct{ Text struct{ Text string } }
	b, _ = json.Marshal(r)
	if err := json.Unmarshal(b, &back); err != nil || back.Text.Text != "a<b" {
		t.Errorf("%s: %+v, %v", b, back, err)
	}
}

func FuzzDecodeEntry(f *testing.F) {
	for i, e := range testEvents() {
		data, err := encodeRecord(&Record{Seq: uint64(i + 1), Attempt: 1, Event: e})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(e.Kind()), data)
	}
	f.Fuzz(func(t *testing.T, kind string, data []byte) {
		r, err := decodeEntry(testRun, Entry{Seq: 1, Kind: Kind(kind), Data: data})
		if err != nil {
			return
		}
		if b, err := encodeRecord(r); err != nil || !bytes.Equal(b, data) {
			t.Fatalf("encoded again: %q, %v; want %q", b, err, data)
		}
		if b, err := json.Marshal(r); err == nil && !json.Valid(b) {
			t.Fatalf("JSON: %s", b)
		}
	})
}
