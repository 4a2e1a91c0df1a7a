package anthropic

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/psych-go/psych-go/internal/messages"
	"github.com/psych-go/psych-go/psych"
)

// requestID is the provider's id of a request.
func (m *Model) requestID(h http.Header) string {
	return messages.Redact(messages.Readable(h.Get("Request-Id")), m.key)
}

// failure makes a ModelError that says of which model and server, and of which
// request.
func (m *Model) failure(message, id string, err error) *psych.ModelError {
	if id != "" {
		message += " [request " + id + "]"
	}
	return &psych.ModelError{Message: fmt.Sprintf("anthropic: %s: %s", m, messages.Redact(message, m.key)), RequestID: id, Err: err}
}

// unreachable is a request that got no answer. A certificate that does not
// hold will not hold in a second either.
func (m *Model) unreachable(err error) *psych.ModelError {
	e := m.failure("the server can't be reached: "+messages.Readable(err.Error()), "", err)
	var certificate *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	e.Transient = !errors.As(err, &certificate) && !errors.As(err, &authority) && !errors.As(err, &host)
	return e
}

// cut is a stream that broke.
func (m *Model) cut(id string, err error) *psych.ModelError {
	e := m.failure("its stream was cut: "+messages.Readable(err.Error()), id, err)
	e.Transient = true
	return e
}

// unfinished is a stream that ended in order, and too early.
func (m *Model) unfinished(id string, begun bool) *psych.ModelError {
	what := messages.ErrUnfinished.Error()
	if !begun {
		what = "its stream held no answer at all: is it a server of the Messages API?"
	}
	e := m.failure(what, id, fmt.Errorf("%w: %w", messages.ErrUnfinished, io.ErrUnexpectedEOF))
	e.Transient = true
	return e
}

// garbled is an event that can't be understood, or one too many.
func (m *Model) garbled(id string, err error) *psych.ModelError {
	if errors.Is(err, messages.ErrTooMuch) {
		return m.failure("its answer is no answer: "+err.Error(), id, err)
	}
	e := m.failure("its stream holds what is no piece of an answer: "+messages.Readable(err.Error()), id, err)
	e.Transient = true
	return e
}

// noStream is an answer of status 200 that is no event stream.
func (m *Model) noStream(id, media string, body []byte) *psych.ModelError {
	said := messages.ParseError(body)
	if said.Found {
		return m.refusedInStream(id, body)
	}
	if media == "text/html" {
		return m.failure("it answered with a web page, not with a stream: is the base URL right? "+said.Message, id, nil)
	}
	return m.failure("it answered with one JSON document, not with a stream: it does not support streaming", id, nil)
}

// refused classifies an answer by status, header and body.
func (m *Model) refused(status int, h http.Header, body []byte, err error) *psych.ModelError {
	said := messages.ParseError(body)
	text := said.String()
	if text == "" {
		text = http.StatusText(status)
	}
	if status == 529 && text == "" {
		text = "overloaded"
	}
	switch {
	case status == http.StatusUnauthorized && m.key == "":
		text += ": it wants a key and none was sent: set ANTHROPIC_API_KEY, and ANTHROPIC_BASE_URL to this server, which alone is sent it"
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		text += ": check the key (ANTHROPIC_API_KEY) and what it may use"
	case status == http.StatusNotFound:
		text += ": check the name of the model and the base URL"
	case status >= 300 && status < 400:
		text += ": it is elsewhere: set the base URL to where it is"
	}
	id := m.requestID(h)
	if id == "" {
		id = messages.Redact(messages.Readable(said.RequestID), m.key)
	}
	e := m.failure(text, id, err)
	e.Status = status
	e.Overflow = said.Overflow(status)
	e.Refused = said.Refused(status)
	e.Transient = messages.TransientStatus(status) && !e.Overflow
	switch {
	case e.Overflow:
	case h.Get("X-Should-Retry") == "true":
		e.Transient = true
	case h.Get("X-Should-Retry") == "false":
		e.Transient = false
	}
	e.RetryAfter = messages.RetryAfter(h, time.Now())
	return e
}

// refusedInStream classifies an error that came with status 200, by its type.
// One of an unknown type is worth repeating.
func (m *Model) refusedInStream(id string, sent json.RawMessage) *psych.ModelError {
	said := messages.ParseError(sent)
	text := said.String()
	if text == "" {
		text = "no reason was given"
	}
	if id == "" {
		id = messages.Redact(messages.Readable(said.RequestID), m.key)
	}
	e := m.failure("it sent an error instead of an answer: "+text, id, nil)
	e.Status = said.Status()
	e.Overflow = said.Overflow(e.Status)
	e.Refused = said.Refused(e.Status)
	e.Transient = !e.Overflow && (e.Status == 0 || messages.TransientStatus(e.Status))
	return e
}
