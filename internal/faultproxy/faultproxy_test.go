package faultproxy_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/psych-go/psych-go/internal/faultproxy"
)

// proxied starts a proxy to a server.
func proxied(t testing.TB, target string, s faultproxy.Service, o *faultproxy.Options) (*faultproxy.Proxy, string) {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	p := faultproxy.New(u, s, o)
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	return p, server.URL
}

// Each fault does to the server, and shows the client, what it says.
func TestFaults(t *testing.T) {
	const answer = "the answer of the server, which is long enough to be cut"
	for _, c := range []struct {
		fault faultproxy.Fault
		acts  []int64 // how often the server may have acted
		check func(*http.Response, string, error) bool
	}{
		{faultproxy.Drop, []int64{1}, func(_ *http.Response, _ string, err error) bool { return errors.Is(err, io.EOF) }},
		{faultproxy.Cut, []int64{1}, func(_ *http.Response, body string, err error) bool { return err != nil && body != answer }},
		{faultproxy.Delay, []int64{1}, func(_ *http.Response, _ string, err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
		{faultproxy.Error500, []int64{0, 1}, func(r *http.Response, body string, err error) bool {
			return err == nil && r.StatusCode == 500 && strings.Contains(body, "Internal")
		}},
		{faultproxy.Error503, []int64{0, 1}, func(r *http.Response, body string, err error) bool {
			return err == nil && r.StatusCode == 503 && strings.Contains(body, "ServiceUnavailable")
		}},
		{faultproxy.Throttle, []int64{0}, func(r *http.Response, body string, err error) bool {
			return err == nil && (r.StatusCode == 400 && strings.Contains(body, "#ProvisionedThroughputExceeded") || r.StatusCode == 503 && strings.Contains(body, "<Code>SlowDown<"))
		}},
		{faultproxy.Reset, []int64{0}, func(_ *http.Response, _ string, err error) bool { return errors.Is(err, syscall.ECONNRESET) }},
		{faultproxy.Repeat, []int64{2}, func(r *http.Response, body string, err error) bool {
			return err == nil && r.StatusCode == 200 && body == answer
		}},
	} {
		for _, service := range []faultproxy.Service{faultproxy.DynamoDB, faultproxy.S3} {
			var acted atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if b, err := io.ReadAll(r.Body); err == nil && string(b) == "body" {
					acted.Add(1)
				}
				_, _ = io.WriteString(w, answer)
			}))
			t.Cleanup(server.Close)
			p, at := proxied(t, server.URL, service, &faultproxy.Options{Every: 1, Faults: []faultproxy.Fault{c.fault}})
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			patience := time.Minute
			if c.fault == faultproxy.Delay {
				patience = 100 * time.Millisecond
			}
			for range 8 {
				acted.Store(0)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				req, err := http.NewRequestWithContext(ctx, http.MethodPut, at, strings.NewReader("body"))
				if err != nil {
					t.Fatal(err)
				}
				resp, err := client.Do(req)
				var body []byte
				if err == nil {
					body, err = io.ReadAll(resp.Body)
					resp.Body.Close()
				}
				cancel()
				if !c.check(resp, string(body), err) {
					t.Errorf("%s: the client got %v, %q, %v", c.fault, resp, body, err)
				}
				// With a client that gave up, the server may not have been reached yet.
				if n := acted.Load(); !slices.Contains(c.acts, n) && c.fault != faultproxy.Delay {
					t.Errorf("%s: the server acted %d times, want one of %v", c.fault, n, c.acts)
				}
			}
			if got := p.Counts()[c.fault]; got != 8 || p.Requests() != 8 || p.Made() != 8 {
				t.Errorf("%s: %d faults counted of %d requests: want 8 of 8", c.fault, got, p.Requests())
			}
		}
	}
}

// The schedule is that of the seed, and a request that is spared moves no other.
func TestSchedule(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	play := func(seed uint64, spare bool) string {
		o := &faultproxy.Options{Seed: seed, Every: 3, Faults: []faultproxy.Fault{faultproxy.Error500, faultproxy.Throttle}}
		o.Spare = func(_ faultproxy.Fault, r *http.Request, _ []byte) bool { return spare && r.URL.Path == "/spare" }
		p, at := proxied(t, server.URL, faultproxy.S3, o)
		for i := range 60 {
			path := "/"
			if i%2 == 0 {
				path = "/spare"
			}
			resp, err := http.Get(at + path)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		if n := p.Made(); n < 5 || n > 40 {
			t.Errorf("%d faults in 60 requests, one in 3 of which was to meet one", n)
		}
		return p.Trace()
	}
	all := play(1, false)
	if again := play(1, false); again != all {
		t.Errorf("the same seed made other faults:\n%s\nand\n%s", all, again)
	}
	if other := play(2, false); other == all {
		t.Error("another seed made the same faults")
	}
	var rest []string
	for line := range strings.SplitSeq(all, "\n") {
		if !strings.HasSuffix(line, "/spare") {
			rest = append(rest, line)
		}
	}
	if got := play(1, true); got != strings.Join(rest, "\n") {
		t.Errorf("with requests spared: %s\nwant %s", got, strings.Join(rest, "\n"))
	}
}
