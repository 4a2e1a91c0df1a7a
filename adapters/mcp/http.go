package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/psych-go/psych-go/psych"
)

const (
	discoverWait  = 10 * time.Second // for an answer in the new protocol, before the old one is tried
	noticeWait    = 2 * time.Second  // for a notification, and the end of a session, to be taken
	lingerWait    = time.Second      // for a stream to end behind its answer, so that its connection is used again
	refusalBytes  = 64 << 10         // of what comes with an HTTP error
	maxRedirects  = 5
	maxResumes    = 2 // in a row of a call's stream, without an event; the SDK ends the session after three
	maxReconnects = 8 // in a row of a stream of notifications that brings nothing
	headSize      = 4096
	sessionHeader = "Mcp-Session-Id"
)

// wire carries the HTTP of one session. It adds the credential, bounds and
// decodes what comes back before the SDK sees it, and keeps what goes wrong with
// one request from breaking the session: the SDK gives a session up for most
// statuses, and for a body that it can't read.
type wire struct {
	s        *session
	base     http.RoundTripper
	endpoint *url.URL
	cred     *credential
}

func sameOrigin(a, b *url.URL) bool {
	return strings.EqualFold(a.Scheme, b.Scheme) && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	switch p := u.Port(); {
	case p != "":
		return p
	case strings.EqualFold(u.Scheme, "https"):
		return "443"
	}
	return "80"
}

// redirect decides on a redirect. Not even the arguments of a call go to
// another origin.
func (w *wire) redirect(req *http.Request, via []*http.Request) error {
	switch {
	case !sameOrigin(req.URL, w.endpoint):
		return &fault{fmt.Sprintf("the server redirects to another origin, %s://%s: if that is right, put it into the connection's URL", req.URL.Scheme, req.URL.Host), []error{psych.ErrAccessDenied}}
	case req.Method != via[0].Method:
		return &fault{fmt.Sprintf("the server redirects a %s so that it becomes a %s: its URL is another", via[0].Method, req.Method), nil}
	case len(via) > maxRedirects:
		return &fault{fmt.Sprintf("the server redirects more than %d times", maxRedirects), nil}
	}
	return nil
}

// A head is what a message says of itself before its params.
type head struct {
	id     jsonrpc.ID
	method string // "" of a response
}

// headOf reads the head of a message that the SDK encoded: version, id, method.
func headOf(body []byte) (h head) {
	dec := json.NewDecoder(bytes.NewReader(body[:min(len(body), headSize)]))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return h
	}
	for {
		key, err := dec.Token()
		if err != nil || key != "jsonrpc" && key != "id" && key != "method" {
			return h
		}
		value, err := dec.Token()
		if err != nil {
			return h
		}
		switch key {
		case "id":
			h.id, _ = jsonrpc.MakeID(value)
		case "method":
			h.method, _ = value.(string)
			return h
		}
	}
}

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		body, err = io.ReadAll(req.Body)
		req.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	if !sameOrigin(req.URL, w.endpoint) {
		return nil, w.redirect(req, []*http.Request{req})
	}
	ex := exchangeOf(req.Context())
	body = ex.withCursor(body)
	req = req.Clone(req.Context())
	for name, value := range w.cred.headers {
		if !own(name) {
			req.Header.Set(name, value)
		}
	}
	setBody(req, body)
	h := headOf(body)
	switch {
	case req.Method == http.MethodGet && req.Header.Get("Last-Event-Id") != "":
		return w.resume(req, ex)
	case req.Method == http.MethodGet, h.method == "subscriptions/listen":
		return w.listen(req, h), nil
	case req.Method != http.MethodPost, !h.id.IsValid(): // the end of a session, or a notification
		if h.method == "notifications/cancelled" {
			defer w.s.cancelled(req.Context())
		}
		return w.notify(req, h)
	case h.method == "":
		defer w.s.answering.Add(-1)
		return w.notify(req, h)
	case ex != nil && ex.local != nil:
		return w.encoded(req, &jsonrpc.Response{ID: h.id, Result: ex.local})
	}
	w.s.register(req.Context(), h.id)
	return w.call(req, h)
}

func setBody(req *http.Request, body []byte) {
	if len(body) == 0 {
		req.Body, req.GetBody, req.ContentLength = http.NoBody, nil, 0
		return
	}
	req.ContentLength = int64(len(body))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	req.Body, _ = req.GetBody()
}

// encoded is a response with one message.
func (w *wire) encoded(req *http.Request, msg jsonrpc.Message) (*http.Response, error) {
	data, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return nil, err
	}
	return w.response(req, "application/json", io.NopCloser(bytes.NewReader(data))), nil
}

func (w *wire) response(req *http.Request, contentType string, body io.ReadCloser) *http.Response {
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {contentType}}, ContentLength: -1, Body: body, Request: req,
	}
}

// A sent request is given up apart from its context, which ends as soon as the
// answer is there.
type sent struct {
	stop func() bool // it no longer ends with the context
	end  context.CancelFunc
}

func (x *sent) close() {
	x.stop()
	x.end()
}

// send sends a request. It reports in the error whether the request can have
// reached the server.
func (w *wire) send(req *http.Request) (*http.Response, *sent, error) {
	ctx := req.Context()
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	x := &sent{stop: context.AfterFunc(ctx, cancel), end: cancel}
	var asked, wrote atomic.Bool
	own = httptrace.WithClientTrace(own, &httptrace.ClientTrace{
		GetConn:      func(string) { asked.Store(true) },
		WroteHeaders: func() { wrote.Store(true) },
	})
	resp, err := w.base.RoundTrip(req.WithContext(own))
	if err == nil {
		if id := resp.Header.Get(sessionHeader); id != "" {
			w.s.id.CompareAndSwap(nil, &id)
			if req.Header.Get(sessionHeader) != "" {
				resp.Header.Del(sessionHeader) // another one would break the session
			}
		}
		return resp, x, nil
	}
	x.close()
	switch {
	case ctx.Err() != nil:
		return nil, nil, ctx.Err()
	case asked.Load() && !wrote.Load():
		return nil, nil, &fault{"it can't be reached: " + plain(err), []error{psych.ErrSessionLost, psych.ErrUnavailable, bare(err)}}
	}
	return nil, nil, &fault{"the connection broke: " + plain(err), []error{psych.ErrUnavailable, bare(err)}}
}

// bare is an error without a URL.
func bare(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// notify sends what has no answer but a status.
func (w *wire) notify(req *http.Request, h head) (*http.Response, error) {
	if h.method != "notifications/initialized" {
		ctx, cancel := context.WithTimeout(req.Context(), noticeWait)
		defer cancel()
		req = req.WithContext(ctx)
	}
	resp, x, err := w.send(req)
	if err != nil {
		return nil, err
	}
	defer x.close()
	defer resp.Body.Close()
	switch {
	case redirects(resp):
		resp.Body = http.NoBody
		return resp, nil
	case resp.StatusCode/100 != 2 && req.Method == http.MethodPost:
		_, err := w.refusal(req, resp, head{})
		return nil, err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, refusalBytes)) // so that the connection is used again
	resp.Body = http.NoBody
	return resp, nil
}

// redirects reports whether the client goes elsewhere, or refuses to.
func redirects(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return resp.Header.Get("Location") != ""
	}
	return false
}

// call sends a request and has its answer.
func (w *wire) call(req *http.Request, h head) (*http.Response, error) {
	patience := func() bool { return false }
	if h.method == "server/discover" {
		wait := discoverWait
		if end, ok := req.Context().Deadline(); ok {
			wait = min(wait, time.Until(end)/2)
		}
		ctx, cancel := context.WithCancel(req.Context())
		patience = time.AfterFunc(wait, cancel).Stop
		req = req.WithContext(ctx)
	}
	resp, x, err := w.send(req)
	if err != nil {
		patience()
		return nil, err
	}
	contentType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case redirects(resp):
		resp.Body = &ending{resp.Body, x}
		return resp, nil
	case resp.StatusCode/100 != 2:
		defer x.close()
		defer resp.Body.Close()
		answer, err := w.refusal(req, resp, h)
		if err != nil {
			return nil, err
		}
		return w.encoded(req, answer)
	case contentType == "application/json":
		resp.Body = &jsonBody{w: w, id: h.id, body: &ending{resp.Body, x}}
	case contentType == "text/event-stream":
		resp.Body = w.events(resp.Body, h.id, x)
		resp.Body.(*events).final = h.method == "server/discover"
	default:
		x.close()
		resp.Body.Close()
		return nil, &fault{fmt.Sprintf("it answered with status %d and the content type %.80q, which is none of MCP: is that the URL of an MCP server?", resp.StatusCode, resp.Header.Get("Content-Type")), []error{psych.ErrUnavailable}}
	}
	resp.ContentLength = -1
	resp.Header.Del("Content-Length")
	return resp, nil
}

// ending ends a request with its body.
type ending struct {
	io.ReadCloser
	x *sent
}

func (e *ending) Close() error {
	defer e.x.close()
	return e.ReadCloser.Close()
}

var forgotten = lazily(`(?i)session|not initialized`)

// refusal is what a status that is no success means: an answer to the request
// of h, or an error.
func (w *wire) refusal(req *http.Request, resp *http.Response, h head) (*jsonrpc.Response, error) {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, refusalBytes))
	var said struct {
		Error struct {
			Code    int64  `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	why := ""
	if json.Unmarshal(body, &said) == nil {
		why = said.Error.Message
	} else if t, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); t == "text/plain" {
		why = strings.TrimSpace(string(body))
	}
	text := "it answered with status " + strconv.Itoa(resp.StatusCode)
	if name := http.StatusText(resp.StatusCode); name != "" {
		text += " " + name
	}
	if why != "" {
		text += ": " + w.s.hide(why)
		text = clip(text, 400)
	}
	fail := func(is ...error) (*jsonrpc.Response, error) { return nil, &fault{text, is} }
	hadSession := req.Header.Get(sessionHeader) != ""
	switch code := resp.StatusCode; {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return fail(psych.ErrUnauthorized)
	case hadSession && code == http.StatusNotFound && said.Error.Code != jsonrpc.CodeMethodNotFound,
		hadSession && code == http.StatusBadRequest && forgotten().MatchString(why): // as many servers have it that don't keep to the 404
		return fail(psych.ErrSessionLost)
	}
	if msg, err := jsonrpc.DecodeMessage(body); err == nil && h.id.IsValid() {
		if answer, ok := msg.(*jsonrpc.Response); ok && answer.ID == h.id && answer.Error != nil {
			w.s.inbound(answer)
			return answer, nil
		}
	}
	switch code := resp.StatusCode; {
	case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code >= 500:
		return fail(psych.ErrUnavailable)
	case code == http.StatusNotFound, code == http.StatusMethodNotAllowed:
		text += " (is that the URL of an MCP server that speaks streamable HTTP?)"
	}
	return fail()
}

// resume goes on with the stream of a call that broke. That it can't be had
// ends the call alone.
func (w *wire) resume(req *http.Request, ex *exchange) (*http.Response, error) {
	if ex == nil {
		return nil, &fault{"a stream that belongs to no request can't be resumed", nil}
	}
	w.s.mu.Lock()
	ex.resumes++
	tries, id := ex.resumes, ex.id
	w.s.mu.Unlock()
	gone := func(err error) (*http.Response, error) {
		return w.encodedEvent(req, w.s.refuse(id, err))
	}
	if tries > maxResumes {
		return gone(&fault{"the stream broke before the answer, and brings nothing when it is resumed", []error{psych.ErrUnavailable}})
	}
	resp, x, err := w.send(req)
	switch {
	case err != nil && req.Context().Err() == nil && tries == maxResumes:
		return gone(&fault{"the stream broke before the answer, and can't be resumed: " + err.Error(), []error{psych.ErrUnavailable}})
	case err != nil:
		return nil, err
	}
	contentType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode != http.StatusOK || contentType != "text/event-stream" {
		x.close()
		resp.Body.Close()
		return gone(&fault{fmt.Sprintf("the stream broke before the answer, and can't be resumed (status %d)", resp.StatusCode), []error{psych.ErrUnavailable}})
	}
	resp.Body = w.events(resp.Body, id, x)
	return resp, nil
}

func (w *wire) encodedEvent(req *http.Request, msg jsonrpc.Message) (*http.Response, error) {
	data, err := encodeEvent(msg, "", "")
	if err != nil {
		return nil, err
	}
	return w.response(req, "text/event-stream", io.NopCloser(bytes.NewReader(data))), nil
}

// listen is a stream of notifications, which is opened and kept open apart from
// the SDK: servers may not answer before they have something to say, which would
// hold up Connect, and one that breaks must not break the session.
func (w *wire) listen(req *http.Request, h head) *http.Response {
	r, p := io.Pipe()
	go func() {
		w.follow(req, h, p)
		// An end would have the SDK open it anew, and fail the session.
		<-req.Context().Done()
		p.CloseWithError(req.Context().Err())
	}()
	return w.response(req, "text/event-stream", r)
}

func (w *wire) follow(req *http.Request, h head, to *io.PipeWriter) {
	ctx := req.Context()
	last := ""
	for failed := 0; failed <= maxReconnects; failed++ {
		if failed > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second << min(failed-1, 6)):
			}
		}
		again := req.Clone(ctx)
		if req.GetBody != nil {
			again.Body, _ = req.GetBody()
		}
		if last != "" {
			again.Header.Set("Last-Event-Id", last)
		}
		resp, x, err := w.send(again)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			continue
		}
		contentType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
		if resp.StatusCode != http.StatusOK || contentType != "text/event-stream" {
			x.close()
			resp.Body.Close()
			if resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests {
				return // there is none: a list that changed is seen when it is read again
			}
			continue
		}
		began := time.Now()
		e := w.events(resp.Body, h.id, x)
		_, err = io.Copy(to, e)
		e.Close()
		if errors.Is(err, io.ErrClosedPipe) {
			return
		}
		if last = e.lastID; e.messages > 0 || time.Since(began) > 30*time.Second {
			failed = 0
		}
	}
	w.s.log.WarnContext(ctx, "mcp: the server's notifications can't be followed any more")
}

// decode takes messages from JSON: one, or as servers of 2025-03-26 may send
// them, several in an array.
func decode(data []byte) ([]jsonrpc.Message, error) {
	if data = bytes.TrimSpace(data); len(data) == 0 || data[0] != '[' {
		msg, err := jsonrpc.DecodeMessage(data)
		return []jsonrpc.Message{msg}, err
	}
	var batch []json.RawMessage
	if err := json.Unmarshal(data, &batch); err != nil {
		return nil, err
	}
	var msgs []jsonrpc.Message
	for _, raw := range batch {
		msg, err := jsonrpc.DecodeMessage(raw)
		if err != nil {
			return nil, err
		}
		msgs = append(msgs, msg)
	}
	return msgs, nil
}

// A jsonBody is an answer as one JSON document. It is read at the first Read:
// the SDK does that outside of the call.
type jsonBody struct {
	w    *wire
	id   jsonrpc.ID
	body io.ReadCloser
	r    *bytes.Reader
}

func (b *jsonBody) Read(p []byte) (int, error) {
	if b.r == nil {
		data, err := jsonrpc.EncodeMessage(b.answer())
		if err != nil {
			return 0, err
		}
		b.r = bytes.NewReader(data)
	}
	return b.r.Read(p)
}

func (b *jsonBody) Close() error { return b.body.Close() }

func (b *jsonBody) answer() *jsonrpc.Response {
	s := b.w.s
	data, err := io.ReadAll(io.LimitReader(b.body, s.limit+1))
	switch {
	case err != nil:
		return s.refuse(b.id, &fault{"the connection broke before the answer was whole: " + plain(err), []error{psych.ErrUnavailable, bare(err)}})
	case int64(len(data)) > s.limit:
		return s.refuse(b.id, &tooLarge{s.limit})
	}
	msgs, err := decode(data)
	if err != nil {
		return s.refuse(b.id, undecodable())
	}
	var answer *jsonrpc.Response
	for _, msg := range msgs {
		// Requests of the server have no place here; the SDK takes one message.
		if r, ok := msg.(*jsonrpc.Request); ok && r.IsCall() {
			continue
		}
		if r, ok := s.inbound(msg).(*jsonrpc.Response); ok && r.ID == b.id {
			answer = r
		}
	}
	if answer == nil {
		return s.refuse(b.id, &fault{"its answer is not one to the request", []error{psych.ErrUnavailable}})
	}
	return answer
}

// undecodable is the error of an answer that can't be decoded. What the decoder
// says would show some of it.
func undecodable() error {
	return &fault{"its answer can't be decoded: it is no message of JSON-RPC, or nested too deeply", []error{psych.ErrUnavailable}}
}

// events passes a stream of server-sent events on, message by message, as
// session.inbound leaves them.
type events struct {
	w    *wire
	body io.ReadCloser
	r    *bufio.Reader
	id   jsonrpc.ID // of the request that it answers; none of notifications
	x    *sent

	final    bool // there is no resuming it
	messages int
	lastID   string
	ended    bool // the answer is through
	timer    *time.Timer
	out      []byte
	err      error
}

func (w *wire) events(body io.ReadCloser, id jsonrpc.ID, x *sent) *events {
	return &events{w: w, body: body, r: bufio.NewReaderSize(body, 32<<10), id: id, x: x}
}

func (e *events) Close() error {
	if e.timer != nil {
		e.timer.Stop()
	}
	defer e.x.close()
	return e.body.Close()
}

func (e *events) Read(p []byte) (int, error) {
	for len(e.out) == 0 {
		if e.err != nil {
			return 0, e.err
		}
		if e.ended {
			_, e.err = io.Copy(io.Discard, e.r)
			if e.err == nil {
				e.err = io.EOF
			}
			continue
		}
		e.next()
	}
	n := copy(p, e.out)
	e.out = e.out[n:]
	return n, nil
}

// line reads to the end of a line, and keeps at most room bytes of it.
func (e *events) line(room int64) (line []byte, over bool, err error) {
	for {
		part, err := e.r.ReadSlice('\n')
		if over = over || int64(len(line)+len(part)) > room; over {
			line = nil
		} else {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimRight(line, "\r\n"), over, err
		}
	}
}

// next reads an event and makes of it what the SDK is to read.
func (e *events) next() {
	var data []byte
	var id, retry, name string
	room := e.w.s.limit + headSize
	over, begun := false, false
	for {
		line, cut, err := e.line(room)
		over = over || cut
		if room -= int64(len(line)); !cut && (len(line) > 0 || err == nil) {
			field, value, _ := bytes.Cut(line, []byte(":"))
			value = bytes.TrimPrefix(value, []byte(" "))
			switch string(field) {
			case "data":
				if data != nil {
					data = append(data, '\n')
				} else {
					data = []byte{}
				}
				data = append(data, value...)
			case "id":
				id = string(value)
			case "retry":
				retry = string(value)
			case "event":
				name = string(value)
			}
		}
		begun = begun || len(line) > 0 || cut
		if err == nil && (len(line) > 0 || cut || !begun) {
			continue
		}
		if id != "" {
			e.lastID = id
			e.w.s.advanced(e.id)
		}
		switch {
		case err != nil && (over || !json.Valid(data)): // cut off: perhaps it can be resumed
		case over:
			e.fail(&tooLarge{e.w.s.limit})
		case name != "" && name != "message", len(data) == 0:
			if id != "" || retry != "" {
				e.out, _ = encodeEvent(nil, id, retry)
			}
		default:
			e.take(data, id, retry)
		}
		if err != nil && !e.ended {
			if e.final {
				e.fail(&fault{"the stream ended before the answer", []error{psych.ErrUnavailable}})
			}
			e.err = err
		}
		return
	}
}

// fail ends the request that the stream answers.
func (e *events) fail(err error) {
	if !e.id.IsValid() {
		e.w.s.log.Warn("mcp: a notification is left out", "err", err)
		return
	}
	e.emit(e.w.s.refuse(e.id, err), "", "")
}

func (e *events) take(data []byte, id, retry string) {
	msgs, err := decode(data)
	if err != nil {
		e.fail(undecodable())
		return
	}
	for _, msg := range msgs {
		e.messages++
		if msg = e.w.s.inbound(msg); msg != nil {
			e.emit(msg, id, retry)
			id, retry = "", ""
		}
	}
	if id != "" || retry != "" {
		more, _ := encodeEvent(nil, id, retry)
		e.out = append(e.out, more...)
	}
}

func (e *events) emit(msg jsonrpc.Message, id, retry string) {
	data, err := encodeEvent(msg, id, retry)
	if err != nil {
		e.err = err
		return
	}
	e.out = append(e.out, data...)
	if r, ok := msg.(*jsonrpc.Response); ok && e.id.IsValid() && r.ID == e.id {
		// The call's context ends now; the stream gets a moment to.
		e.ended = true
		e.x.stop()
		e.timer = time.AfterFunc(lingerWait, e.x.end)
	}
}

// encodeEvent writes an event, of no message its id and retry alone.
func encodeEvent(msg jsonrpc.Message, id, retry string) ([]byte, error) {
	var b bytes.Buffer
	if id != "" {
		b.WriteString("id: " + id + "\n")
	}
	if retry != "" {
		b.WriteString("retry: " + retry + "\n")
	}
	if msg != nil {
		data, err := jsonrpc.EncodeMessage(msg)
		if err != nil {
			return nil, err
		}
		b.WriteString("data: ")
		b.Write(data)
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}
