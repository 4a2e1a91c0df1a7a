package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/psych-go/psych-go/api"
	"github.com/psych-go/psych-go/psych"
)

// longest is a wait that no test sees the end of.
const longest = time.Hour

// An event is a server-sent event.
type event struct{ id, kind, data string }

// follow opens a stream of records, and returns its events as they come; they
// end with the stream.
func (s *service) follow(ctx context.Context, run, query, last string) <-chan event {
	s.t.Helper()
	r, err := http.NewRequestWithContext(ctx, "GET", s.url+"/v1/runs/"+run+"/records"+query, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer t/p")
	r.Header.Set("Accept", "text/event-stream")
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		s.t.Fatalf("%s, %s", resp.Status, resp.Header)
	}
	all := make(chan event, 1000)
	go func() {
		defer close(all)
		defer resp.Body.Close()
		var e event
		lines := bufio.NewReader(resp.Body)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			switch name {
			case "id":
				e.id = value
			case "event":
				e.kind = value
			case "data":
				e.data = value
			case "retry":
				e.kind, e.data = "retry", value
			case "":
				if e != (event{}) {
					all <- e
				}
				e = event{}
			}
		}
	}()
	return all
}

// A client whose stream breaks anywhere, and that comes back with the id of the
// last event, misses nothing and sees nothing twice.
func TestStreamGoesOn(t *testing.T) {
	s := newService(t, talk, &api.Options{MaxWait: longest})
	s.drive()
	run := s.start(s.publish(), "go")
	var seqs []float64
	last := ""
	for closed := false; !closed; {
		ctx, leave := context.WithCancel(context.Background())
		for e := range s.follow(ctx, run, "?limit=2", last) { // leaves behind each record
			if e.kind != "record" {
				continue
			}
			var r map[string]any
			if err := json.Unmarshal([]byte(e.data), &r); err != nil {
				t.Fatal(err)
			}
			seqs = append(seqs, r["seq"].(float64))
			last, closed = e.id, r["kind"] == "exchange_closed"
			break
		}
		leave()
	}
	for i, seq := range seqs {
		if seq != float64(i+1) {
			t.Fatalf("the client saw %v", seqs)
		}
	}
	rep, err := s.rt.Report(context.Background(), psych.RunKey{Tenant: "t", RunID: run})
	if err != nil || rep.Status != psych.StatusCompleted {
		t.Errorf("%+v, %v", rep, err)
	}
	if len(seqs) < 9 {
		t.Errorf("%d records", len(seqs))
	}
}

// Deltas come before the record that has them all, and only to who asks.
func TestStreamOfDeltas(t *testing.T) {
	s := newService(t, talk, &api.Options{MaxWait: longest})
	run := s.start(s.publish(), "go")
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	with, without := s.follow(ctx, run, "?deltas=true", ""), s.follow(ctx, run, "", "")
	until(t, func() bool { return s.h.Listeners() == 2 })
	s.drive()
	seen, text := map[string]int{}, ""
	for e := range with {
		seen[e.kind]++
		if e.kind == "delta" {
			var d struct{ Text string }
			if err := json.Unmarshal([]byte(e.data), &d); err != nil {
				t.Fatal(err)
			}
			text += d.Text
			if e.id != "" {
				t.Errorf("a delta has the id %q: a client would go on behind it", e.id)
			}
		}
		if strings.Contains(e.data, `"kind":"exchange_closed"`) {
			break
		}
	}
	if seen["delta"] == 0 || !strings.Contains(text, "There were many lines.") {
		t.Errorf("deltas %q, events %v", text, seen)
	}
	for e := range without {
		if e.kind == "delta" {
			t.Error("a delta came to who did not ask")
		}
		if strings.Contains(e.data, `"kind":"exchange_closed"`) {
			break
		}
	}
}

// Where waiting is not allowed every answer comes at once, with a hint.
func TestWithoutWaiting(t *testing.T) {
	s := newService(t, talk, nil)
	run := s.start(s.publish(), "go")
	got := s.want(200, "", "GET", "/v1/runs/"+run+"/records?wait=3600", "")
	if got.fields["poll_after_seconds"] != 2.0 || got.header.Get("Retry-After") != "2" || len(got.fields["records"].([]any)) != 0 {
		t.Errorf("%s %s", got.header, got.body)
	}
	var kinds []string
	for e := range s.follow(context.Background(), run, "", "") {
		kinds = append(kinds, e.kind+" "+e.data)
	}
	if fmt.Sprint(kinds) != "[retry 2000]" {
		t.Errorf("the stream had %q, want to be told when to come back", kinds)
	}
	s.drive()
	key := psych.RunKey{Tenant: "t", RunID: run}
	until(t, func() bool {
		rep, err := s.rt.Report(context.Background(), key)
		return err == nil && rep.Status == psych.StatusCompleted
	})
	got = s.want(200, "", "GET", "/v1/runs/"+run+"/records?limit=3", "")
	if got.fields["more"] != true || got.fields["poll_after_seconds"] != 0.0 || got.text("next") != "3" {
		t.Errorf("%.300s", got.body)
	}
	got = s.want(200, "", "GET", "/v1/runs/"+run+"/records?after="+got.text("next"), "")
	if got.fields["more"] != false || got.fields["poll_after_seconds"] != 5.0 {
		t.Errorf("%.300s", got.body)
	}
	n := 0
	for e := range s.follow(context.Background(), run, "?after="+got.text("next"), "4") { // the header stands before
		if e.kind == "record" {
			if n++; n == 1 && !strings.HasPrefix(e.data, `{"seq":5,`) {
				t.Errorf("goes on with %s", e.data)
			}
		}
	}
	if n == 0 {
		t.Error("no records behind the last event")
	}
}

// Where something in between would cut a large answer it is refused, and the
// records are still to be had.
func TestMaxAnswer(t *testing.T) {
	s := newService(t, talk, &api.Options{MaxAnswer: 2000})
	s.drive()
	run := s.start(s.publish(), "go")
	key := psych.RunKey{Tenant: "t", RunID: run}
	until(t, func() bool {
		rep, err := s.rt.Report(context.Background(), key)
		return err == nil && rep.Status == psych.StatusCompleted
	})
	if got := s.want(501, "answer_too_large", "GET", "/v1/runs/"+run+"/report", ""); got.header.Get("ETag") != "" {
		t.Errorf("%s", got.header)
	}
	s.want(200, "", "GET", "/v1/runs/"+run+"/records?limit=3", "")
}

// Positions that were tampered with, or lie beyond the head, do no harm.
func TestPositions(t *testing.T) {
	s := newService(t, talk, nil)
	s.drive()
	run := s.start(s.publish(), "go")
	key := psych.RunKey{Tenant: "t", RunID: run}
	until(t, func() bool {
		rep, err := s.rt.Report(context.Background(), key)
		return err == nil && rep.Status == psych.StatusCompleted
	})
	at := "/v1/runs/" + run + "/records?after="
	for _, bad := range []string{"-1", "1.", "x", "1e3", "01", "18446744073709551616", "1.!!", "3.%0A", "%00", strings.Repeat("9", 4096)} {
		s.want(400, "invalid", "GET", at+bad, "")
	}
	for _, header := range []string{"x", "1, 2", "-3"} {
		s.want(400, "invalid", "GET", at+"0", "", "Last-Event-ID: "+header)
	}
	if got := s.want(200, "", "GET", at+"999999", ""); got.text("next") != "999999" || len(got.fields["records"].([]any)) != 0 {
		t.Errorf("beyond the head: %s", got.body)
	}
	for _, mark := range []string{"AAAA", "MQ", "_w"} {
		if got := s.call("GET", at+"2."+mark, ""); got.status != 400 && (got.status != 200 || !strings.HasPrefix(string(got.body), `{"records":[{"seq":3,`)) {
			t.Errorf("mark %s: %d %.200s", mark, got.status, got.body)
		}
	}
}

// Many clients wait at once, and all hear of what happens; nothing of them is
// left behind. They take little memory, their own ends included.
func TestManyLongPolls(t *testing.T) {
	s := newService(t, talk, &api.Options{MaxWait: longest, Poll: longest})
	run := s.start(s.publish(), "go")
	const clients = 200
	var polls sync.WaitGroup
	for range clients {
		polls.Go(func() {
			if got := s.want(200, "", "GET", "/v1/runs/"+run+"/records?wait=3600", ""); len(got.fields["records"].([]any)) == 0 {
				t.Errorf("%s", got.body)
			}
		})
	}
	until(t, func() bool { return s.h.Listeners() == clients })
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Logf("%d long polls: %d KiB of heap, with their clients", clients, m.HeapAlloc>>10)
	if m.HeapAlloc > 64<<20 {
		t.Errorf("%d bytes of heap, want at most 64 MiB", m.HeapAlloc)
	}
	s.drive()
	polls.Wait()
	until(t, func() bool { return s.h.Listeners() == 0 })
}

// The time that a server gives a client to send its request does not end what
// waits for an answer.
func TestWaitsPastTheReadTimeout(t *testing.T) {
	s := newService(t, talk, &api.Options{MaxWait: longest, Poll: longest})
	const readTimeout = 100 * time.Millisecond
	server := httptest.NewUnstartedServer(s.h)
	server.Config.ReadTimeout = readTimeout
	server.Start()
	defer server.Close()
	s.url = server.URL
	run := s.start(s.publish(), "go")
	stream := s.follow(context.Background(), run, "", "")
	done := make(chan reply)
	go func() { done <- s.want(200, "", "GET", "/v1/runs/"+run+"/records?wait=3600", "") }()
	until(t, func() bool { return s.h.Listeners() == 2 })
	time.Sleep(3 * readTimeout)
	s.drive()
	if got := <-done; len(got.fields["records"].([]any)) == 0 {
		t.Errorf("%s", got.body)
	}
	for e := range stream {
		if e.kind == "record" {
			s.h.Drain()
			return
		}
	}
	t.Error("the stream ended without a record")
}

// What another process wrote is found by looking.
func TestLongPollLooks(t *testing.T) {
	s := newService(t, talk, &api.Options{MaxWait: longest, Poll: time.Millisecond})
	run := s.start(s.publish(), "go")
	go s.rt.Drive(context.Background(), psych.RunKey{Tenant: "t", RunID: run}, nil) // tells nobody
	if records, _ := s.finish(run, "0"); len(records) < 9 {
		t.Errorf("%d records", len(records))
	}
}

// Drain ends long polls with what there is, and streams; later ones don't wait.
func TestDrain(t *testing.T) {
	s := newService(t, talk, &api.Options{MaxWait: longest, Poll: longest})
	run := s.start(s.publish(), "go")
	stream := s.follow(context.Background(), run, "", "")
	done := make(chan reply)
	go func() { done <- s.want(200, "", "GET", "/v1/runs/"+run+"/records?wait=3600", "") }()
	until(t, func() bool { return s.h.Listeners() == 2 })
	s.h.Drain()
	s.h.Drain()
	if got := <-done; len(got.fields["records"].([]any)) != 0 {
		t.Errorf("%s", got.body)
	}
	for range stream {
	}
	s.want(200, "", "GET", "/v1/runs/"+run+"/records?wait=3600", "")
	until(t, func() bool { return s.h.Listeners() == 0 })
}

// A stream tells of the end of its Run.
func TestStreamOfADeletedRun(t *testing.T) {
	s := newService(t, talk, &api.Options{MaxWait: longest, Poll: time.Millisecond})
	run := s.start(s.publish(), "go")
	stream := s.follow(context.Background(), run, "", "")
	until(t, func() bool { return s.h.Listeners() == 1 })
	s.want(204, "", "DELETE", "/v1/runs/"+run, "")
	var last event
	for e := range stream {
		last = e
	}
	if last.kind != "problem" || !strings.Contains(last.data, `"code":"not_found"`) {
		t.Errorf("the stream ended with %+v", last)
	}
}

// until waits for what must come to hold.
func until(t *testing.T, holds func() bool) {
	t.Helper()
	for range 60_000 {
		if holds() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("it does not come to hold")
}
