// Package faultproxy stands between an SDK and a server that speaks DynamoDB's
// or S3's protocol, and makes faults that networks and services make: on a
// schedule that its seed alone decides, so that a run of one client is the same
// each time.
package faultproxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Fault is what becomes of a request.
type Fault string

// Faults.
const (
	Drop     Fault = "drop"     // the server acts, and the connection ends without an answer
	Cut      Fault = "cut"      // the server acts, and the connection ends in the middle of the answer
	Delay    Fault = "delay"    // the server acts, and the answer comes when nobody waits for it any more
	Error500 Fault = "500"      // the service's own error, before the server acted or after
	Error503 Fault = "503"      // so
	Throttle Fault = "throttle" // the service's error for too many requests; the server does not act
	Reset    Fault = "reset"    // the connection is reset before the server acts
	Repeat   Fault = "repeat"   // the server acts twice, and the second answer is given
)

// Faults are all.
var Faults = []Fault{Drop, Cut, Delay, Error500, Error503, Throttle, Reset, Repeat}

// rare is how many times rarer a Delay is than others: each costs a client its
// whole patience.
const rare = 24

// A Service is a protocol.
type Service int

// Services.
const (
	DynamoDB Service = iota + 1
	S3
)

// Options of a Proxy. The zero value works.
type Options struct {
	Seed   uint64
	Every  int     // of so many requests one meets a fault, on average; zero: 5
	Faults []Fault // the kinds; none: all

	// Spare reports whether a request is to be left alone by a kind of fault.
	// body is that of the request.
	Spare func(f Fault, r *http.Request, body []byte) bool

	// Patience bounds a Delay, for a client that never gives up. Zero: a
	// minute.
	Patience time.Duration
}

// A Proxy is an http.Handler that passes requests on to a server.
type Proxy struct {
	target  *url.URL
	service Service
	o       Options
	kinds   []Fault
	next    http.Transport

	mu     sync.Mutex
	rand   *rand.Rand
	n      int
	counts map[Fault]int
	trace  []string
}

var _ http.Handler = (*Proxy)(nil)

// New returns a Proxy to a server. It does no IO. o may be nil.
func New(target *url.URL, service Service, o *Options) *Proxy {
	p := &Proxy{target: target, service: service, counts: map[Fault]int{}}
	if o != nil {
		p.o = *o
	}
	if p.o.Every <= 0 {
		p.o.Every = 5
	}
	if p.o.Patience <= 0 {
		p.o.Patience = time.Minute
	}
	kinds := p.o.Faults
	if len(kinds) == 0 {
		kinds = Faults
	}
	for _, f := range kinds {
		n := rare
		if f == Delay && len(kinds) > 1 {
			n = 1
		}
		p.kinds = append(p.kinds, slices.Repeat([]Fault{f}, n)...)
	}
	p.rand = rand.New(rand.NewPCG(p.o.Seed, 0x5ca1ab1e))
	p.next.MaxIdleConnsPerHost = 100
	p.next.DisableCompression = true
	return p
}

// Requests returns how many requests came.
func (p *Proxy) Requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n
}

// Counts returns how many faults of each kind were made.
func (p *Proxy) Counts() map[Fault]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	counts := make(map[Fault]int, len(p.counts))
	for f, n := range p.counts {
		counts[f] = n
	}
	return counts
}

// Made returns how many faults were made.
func (p *Proxy) Made() (n int) {
	for _, c := range p.Counts() {
		n += c
	}
	return n
}

// Trace returns the last faults, one a line: the number of the request, the
// fault, the request.
func (p *Proxy) Trace() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.trace, "\n")
}

const traced = 50

// plan decides what becomes of the next request: a fault or "", whether an
// error comes behind what it hides, and where an answer is cut.
func (p *Proxy) plan(r *http.Request, body []byte) (f Fault, acts bool, at float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
	// Always as many numbers, so that a request that is spared moves no other's.
	hit, kind := p.rand.IntN(p.o.Every) == 0, p.kinds[p.rand.IntN(len(p.kinds))]
	acts, at = p.rand.IntN(2) == 0, p.rand.Float64()
	if !hit || p.o.Spare != nil && p.o.Spare(kind, r, body) {
		return "", false, 0
	}
	p.counts[kind]++
	if len(p.trace) == traced {
		p.trace = slices.Delete(p.trace, 0, 1)
	}
	p.trace = append(p.trace, fmt.Sprintf("%d %s %s", p.n, kind, Operation(r)))
	return kind, acts, at
}

// Operation names what a request asks for.
func Operation(r *http.Request) string {
	if _, op, ok := strings.Cut(r.Header.Get("X-Amz-Target"), "."); ok {
		return op
	}
	return r.Method + " " + r.URL.Path
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		p.end(w, nil, false)
		return
	}
	f, acts, at := p.plan(r, body)
	switch f {
	case Reset:
		p.end(w, nil, true)
		return
	case Throttle:
		p.fail(w, r, f)
		return
	case Error500, Error503:
		if acts {
			if _, _, err := p.forward(r, body); err != nil {
				p.end(w, nil, false)
				return
			}
		}
		p.fail(w, r, f)
		return
	}
	head, answer, err := p.forward(r, body)
	if err == nil && f == Repeat {
		head, answer, err = p.forward(r, body)
	}
	if err != nil {
		p.end(w, nil, false) // the server's own end is no answer either
		return
	}
	switch f {
	case Drop:
		p.end(w, nil, false)
	case Cut:
		whole := dump(head, answer)
		p.end(w, whole[:1+int(at*float64(len(whole)-1))], false)
	case Delay:
		late := time.NewTimer(p.o.Patience)
		defer late.Stop()
		select {
		case <-r.Context().Done(): // the client has gone
		case <-late.C:
		}
		p.end(w, nil, false)
	default:
		for k, v := range head.Header {
			w.Header()[k] = v
		}
		if r.Method != http.MethodHead {
			w.Header().Set("Content-Length", fmt.Sprint(len(answer)))
		}
		w.WriteHeader(head.StatusCode)
		_, _ = w.Write(answer) // a client that has gone misses nothing
	}
}

// forward makes the server act and takes its whole answer.
func (p *Proxy) forward(r *http.Request, body []byte) (*http.Response, []byte, error) {
	// A client that gives up does not undo what it asked for.
	out := r.Clone(context.WithoutCancel(r.Context()))
	out.URL.Scheme, out.URL.Host = p.target.Scheme, p.target.Host
	out.RequestURI = ""
	out.Header.Del("Expect") // it was answered when the body was read
	out.Header.Del("Connection")
	out.Body, out.ContentLength, out.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	if len(body) == 0 {
		out.Body, out.GetBody = http.NoBody, nil
	}
	resp, err := p.next.RoundTrip(out)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, err
	}
	resp.Header.Del("Connection")
	resp.Header.Del("Transfer-Encoding")
	resp.Request = r
	return resp, answer, nil
}

// dump is an answer as it goes over the connection.
func dump(head *http.Response, body []byte) []byte {
	own := *head
	own.Body, own.TransferEncoding = io.NopCloser(bytes.NewReader(body)), nil
	if head.Request.Method != http.MethodHead {
		own.ContentLength = int64(len(body))
	}
	b, err := httputil.DumpResponse(&own, true)
	if err != nil {
		return []byte("HTTP/1.1")
	}
	return b
}

// end writes the begin of an answer and ends the connection, by a reset if it
// is to be one.
func (p *Proxy) end(w http.ResponseWriter, begin []byte, reset bool) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // which ends it, too
	}
	defer conn.Close()
	_, _ = conn.Write(begin)
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
}

// fail answers as the service does.
func (p *Proxy) fail(w http.ResponseWriter, r *http.Request, f Fault) {
	status, code := http.StatusInternalServerError, "InternalServerError"
	if p.service == S3 {
		code = "InternalError"
	}
	switch {
	case f == Error503:
		status, code = http.StatusServiceUnavailable, "ServiceUnavailable"
	case f == Throttle && p.service == DynamoDB:
		status, code = http.StatusBadRequest, "ProvisionedThroughputExceededException"
	case f == Throttle:
		status, code = http.StatusServiceUnavailable, "SlowDown"
	}
	var body string
	if p.service == DynamoDB {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.Header().Set("X-Amzn-Requestid", "FAULT")
		body = fmt.Sprintf(`{"__type":"com.amazonaws.dynamodb.v20120810#%s","message":"made by faultproxy"}`, code)
	} else {
		w.Header().Set("Content-Type", "application/xml")
		w.Header().Set("X-Amz-Request-Id", "FAULT")
		body = fmt.Sprintf("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>%s</Code><Message>made by faultproxy</Message><RequestId>FAULT</RequestId></Error>", code)
	}
	if r.Method == http.MethodHead {
		body = ""
	} else {
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}
