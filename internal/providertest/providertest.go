// Package providertest holds servers that speak the APIs of providers of models
// on real sockets, for tests of whole Runs.
//
// A [Stub] refuses, with status 400 as the provider would, whatever the
// provider's documentation forbids in a request, and what it was seen to refuse
// beyond that. What it takes it has a [Mind] answer, and sends the answer in the
// shape of stream that the documentation describes, or in a broken one.
package providertest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

// An API is what a Stub speaks.
type API string

// APIs.
const (
	Messages  API = "messages"  // Anthropic's own
	Bedrock   API = "bedrock"   // the same by InvokeModelWithResponseStream
	Chat      API = "chat"      // OpenAI's Chat Completions
	Responses API = "responses" // OpenAI's
)

// TailText is how a trailing message begins.
const TailText = "[Context from the system, not from the user]"

// A Request is one that a Stub took, as far as all APIs have it.
type Request struct {
	API   API
	N     int // from 1; what is refused, or fails by an answer's Shape, counts too
	Body  []byte
	Model string
	Tools []string // names, as offered
	Shown string   // the texts of system, users and results, in order
	Last  string   // those of the last message alone

	Images      int
	Markers     int // of the cache, in all
	TailMarkers int // those of trailing messages
	Tails       int // trailing messages, past ones too
	Dropped     int // bound reasoning whose prefix changed, where that is to be dropped
}

// A Call is one of a tool.
type Call struct {
	ID        string // "": one that nothing else has
	Name      string
	Arguments string
}

// NoID is a Call.ID that is sent as an empty one.
const NoID = "\x00"

// An Answer is what a model says to a Request.
type Answer struct {
	Reasoning string // bound to the request, where the API binds it
	Raw       []string
	Text      string
	Calls     []Call
	Stop      Stop
	Shape     Shape

	// Raw are provider blocks, in the API's own form, that stand behind the
	// reasoning as they are: blocks of content (Messages, Bedrock), items of
	// output (Responses), or members of the message, as one object (Chat).
}

// A Stop is why a model ends.
type Stop int

// Stops. The zero value is the model's own will.
const (
	ByItself Stop = iota
	AtLimit       // of output tokens
	Refused
	ContextFull
)

// A Shape is the form of an answer's stream, or what comes in its place.
type Shape string

// Shapes. In the zero value each text comes in some pieces.
const (
	Whole       Shape = ""
	Crumbs      Shape = "crumbs"      // a character in each piece
	Interleaved Shape = "interleaved" // calls that come at the same time
	SameIndex   Shape = "same index"  // each call has the index of the first
	Strange     Shape = "strange"     // events, blocks and members that nobody knows
	NoUsage     Shape = "no usage"
	BadUsage    Shape = "bad usage" // negative, or less than was said before

	// The rest is broken, and worth another try.

	NoStop     Shape = "no stop" // it ends in order, without a reason
	Cut        Shape = "cut"     // the connection breaks
	Garbage    Shape = "garbage" // an event is not JSON
	Fails      Shape = "fails"   // an error, in a stream of status 200
	Overloaded Shape = "overloaded"
	Limited    Shape = "limited" // status 429
)

// Broken are the Shapes after which a Model's caller tries again.
var Broken = []Shape{NoStop, Cut, Garbage, Fails, Overloaded, Limited}

// A Mind decides what to answer. It is asked for one request at a time.
type Mind func(*Request) *Answer

// Options of a Stub. The zero value works.
type Options struct {
	// Unbound does not bind reasoning to what precedes it, as models to 5.0 don't.
	Unbound bool

	// Peer is a Stub whose provider blocks this one takes, as another server of
	// the same provider does.
	Peer *Stub

	// Refuses says why a request is not taken that nothing else is wrong with; "":
	// it is. Nil takes all.
	Refuses func(*Request) string

	// Alternate refuses two user's messages in a row, as the templates of many
	// models that speak Chat do.
	Alternate bool
}

// A Stub is a server of one API.
type Stub struct {
	URL string

	api    API
	o      Options
	mind   Mind
	server *httptest.Server

	mu      sync.Mutex
	n       int
	taken   []*Request
	refused []error
	said    *sayings
	before  []byte // the body before, of which a prefix is cached
}

// New starts a Stub; Close ends it.
func New(api API, mind Mind, o *Options) *Stub {
	s := &Stub{api: api, mind: mind, said: &sayings{all: map[string]bool{}}}
	if o != nil {
		s.o = *o
	}
	if s.o.Peer != nil {
		s.said = s.o.Peer.said
	}
	s.server = httptest.NewServer(http.HandlerFunc(s.serve))
	s.URL = s.server.URL
	return s
}

// sayings are the provider blocks that were sent, which come back as they are.
type sayings struct {
	mu  sync.Mutex
	all map[string]bool
}

func (x *sayings) add(block string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.all[block] = true
}

func (x *sayings) has(block string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.all[block]
}

// Close ends the server.
func (s *Stub) Close() { s.server.Close() }

// Requests are those that were taken, in order.
func (s *Stub) Requests() []*Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Request(nil), s.taken...)
}

// Refused says why requests were not taken.
func (s *Stub) Refused() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]error(nil), s.refused...)
}

// A dialect is how an API says things.
type dialect interface {
	// check reads a request, or says what is wrong with it.
	check(s *Stub, r *http.Request, body []byte) (*Request, error)

	// events are the data of an answer's stream: those before the reason to
	// stop, and the rest.
	events(s *Stub, r *Request, a *Answer) (body, end []string)

	// failure is an error in a stream.
	failure() string

	// write sends data, each by itself.
	write(w http.ResponseWriter, data []string) error

	// refuse answers with a status: 400, 429 or 529, which means overloaded.
	refuse(w http.ResponseWriter, status int, message string)
}

var dialects = map[API]dialect{Messages: messagesDialect{}, Bedrock: bedrockDialect{}, Chat: chatDialect{}, Responses: responsesDialect{}}

func (s *Stub) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	d := dialects[s.api]
	id := fmt.Sprintf("req_%d", s.n)
	for _, name := range []string{"Request-Id", "X-Request-Id", "X-Amzn-RequestId"} {
		w.Header().Set(name, id)
	}
	req, err := d.check(s, r, body)
	if err == nil && r.ContentLength != int64(len(body)) {
		err = fmt.Errorf("the length of the body is not stated")
	}
	if err == nil {
		req.API, req.N, req.Body = s.api, s.n, body
		if s.o.Refuses != nil {
			if why := s.o.Refuses(req); why != "" {
				err = errors.New(why)
			}
		}
	}
	if err != nil {
		s.refused = append(s.refused, fmt.Errorf("request %d: %w", s.n, err))
		d.refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	s.taken = append(s.taken, req)
	a := s.mind(req)
	switch a.Shape {
	case Overloaded:
		d.refuse(w, 529, "Overloaded")
		return
	case Limited:
		d.refuse(w, http.StatusTooManyRequests, "slow down")
		return
	}
	if a.Stop == ContextFull && s.api == Chat { // there it is no reason to stop
		d.refuse(w, http.StatusBadRequest, "This model's maximum context length is 9000 tokens.")
		return
	}
	begin, end := d.events(s, req, a)
	all := append(begin, end...)
	half := len(begin)/2 + 1
	switch a.Shape {
	case NoStop:
		all = begin
	case Garbage:
		all = append(all[:half:half], "<html>")
	case Fails:
		all = append(all[:half:half], d.failure())
	case Cut:
		_ = d.write(w, all[:half]) // the client may be gone
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			conn.Close()
		}
		return
	}
	s.before = body
	_ = d.write(w, all)
}

// id makes the id of a call.
func (s *Stub) id(c *Call, prefix string, i int) string {
	switch c.ID {
	case "":
		return fmt.Sprintf("%s%04d%02d", prefix, s.n, i)
	case NoID:
		return ""
	}
	return c.ID
}

// tokens estimates what a request takes, and how much of it a cache had.
func (s *Stub) tokens(body []byte) (all, cached int) {
	n := 0
	for n < len(body) && n < len(s.before) && body[n] == s.before[n] {
		n++
	}
	return len(body) / 4, n / 4
}

// cut divides a text into pieces, as a stream does.
func (a *Answer) cut(s string) []string {
	size := 12
	if a.Shape == Crumbs {
		size = 1
	}
	var pieces []string
	runes := []rune(s)
	for len(runes) > size {
		pieces = append(pieces, string(runes[:size]))
		runes = runes[size:]
	}
	return append(pieces, string(runes))
}

// sse sends data as server-sent events, each with its name where it has one.
func sse(w http.ResponseWriter, data []string, name func(string) string) error {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	var err error
	for _, d := range data {
		head := ""
		if n := name(d); n != "" {
			head = "event: " + n + "\n"
		}
		_, e := fmt.Fprintf(w, "%sdata: %s\n\n", head, d)
		err = errors.Join(err, e, http.NewResponseController(w).Flush())
	}
	return err
}

// show notes texts that the model is shown.
type show struct {
	r   *Request
	all strings.Builder
	end strings.Builder
}

func (x *show) text(s string) {
	x.all.WriteString(s + "\n")
	x.end.WriteString(s + "\n")
	if strings.HasPrefix(s, TailText) || strings.Contains(s, "\n\n"+TailText) {
		x.r.Tails++
	}
}

// next begins another message.
func (x *show) next() { x.end.Reset() }

func (x *show) done() { x.r.Shown, x.r.Last = x.all.String(), x.end.String() }

// created is the time of an answer, the same for all.
var created = time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC).Unix()
