package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/psych-go/psych-go/psych"
)

// A problem is an answer as RFC 9457 has it. As an error it is what an endpoint
// refuses in its own words.
type problem struct {
	Type     string        `json:"type"`
	Title    string        `json:"title"`
	Status   int           `json:"status"`
	Detail   string        `json:"detail,omitempty"`
	Instance string        `json:"instance,omitempty"` // the request's id
	Code     string        `json:"code"`
	Problems []specProblem `json:"problems,omitempty"` // of a Spec

	retry int // seconds; 0: none is said
}

// A specProblem is one violation of a Spec.
type specProblem struct {
	Path    string `json:"path"`
	Message string `json:"message"`
}

func (p *problem) Error() string { return fmt.Sprintf("api: %s: %s", p.Title, p.Detail) }

// typePrefix begins the type of every problem; its code stands behind it.
const typePrefix = "urn:psych:problem:"

// A class says how an error is answered.
type class struct {
	err         error // that is matched
	status      int
	code, title string
	tell        bool // its text is for the client
	retry       int  // seconds after which the request may be repeated
}

// classes has each error of psych once. An error that matches several is the
// first of them.
var classes = []class{
	{ErrUnauthenticated, http.StatusUnauthorized, "unauthenticated", "No valid credential", false, 0},
	{ErrForbidden, http.StatusForbidden, "forbidden", "This may not be done from there", true, 0},
	{psych.ErrInboxFull, http.StatusTooManyRequests, "inbox_full", "Too many messages wait in this Run", false, 5},
	{psych.ErrTooLarge, http.StatusRequestEntityTooLarge, "too_large", "The message is too large", true, 0},
	{psych.ErrNoBlobStore, http.StatusNotImplemented, "blob_store_required", "This deployment has no BlobStore, and this needs one", false, 0},
	{psych.ErrAccessDenied, http.StatusForbidden, "access_denied", "This is not the Run's own", false, 0},
	{psych.ErrNotFound, http.StatusNotFound, "not_found", "There is no such thing", false, 0},
	{psych.ErrConflict, http.StatusConflict, "conflict", "This conflicts with what was there before", false, 0},
	{psych.ErrLeaseHeld, http.StatusConflict, "lease_held", "A worker is at this Run", false, 5},
	{psych.ErrLeaseLost, http.StatusConflict, "lease_lost", "Another worker took this Run over", false, 5},
	{psych.ErrInvalid, http.StatusBadRequest, "invalid", "The request is not as it should be", true, 0},
	{psych.ErrUnauthorized, http.StatusBadGateway, "server_refused", "A server of tools refused the credential of this deployment", false, 0},
	{psych.ErrSessionLost, http.StatusBadGateway, "session_lost", "The session with a server of tools broke", false, 5},
	{psych.ErrUnavailable, http.StatusServiceUnavailable, "unavailable", "The storage is briefly unable", false, 2},
}

var errInternal = errors.New("api: internal error")

// problemOf makes an error a problem. What is not in the tables is the server's
// own, and the client is told no more than that.
func problemOf(err error) *problem {
	var own *problem
	var spec *psych.SpecError
	var corrupt *psych.CorruptionError
	var unsupported *psych.UnsupportedError
	switch {
	case errors.As(err, &own):
		p := *own
		return &p
	case errors.As(err, &spec):
		p := &problem{Status: http.StatusUnprocessableEntity, Code: "invalid_spec", Title: "The Spec breaks rules", Detail: fmt.Sprintf("Mend what is listed (%d).", len(spec.Problems))}
		for _, x := range spec.Problems {
			p.Problems = append(p.Problems, specProblem{x.Path, x.Message})
		}
		return p
	case errors.As(err, &corrupt):
		return &problem{Status: http.StatusInternalServerError, Code: "corrupt_log", Title: "The Run's log is damaged", Detail: fmt.Sprintf("%s at seq %d. It is never repaired: start another Run.", corrupt.Reason, corrupt.Seq)}
	case errors.As(err, &unsupported):
		return &problem{Status: http.StatusNotImplemented, Code: "newer_release", Title: "A newer release of Psych wrote this Run", Detail: "Upgrade this deployment."}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &problem{Status: http.StatusServiceUnavailable, Code: "timeout", Title: "The time of this request is over", Detail: "Repeat it.", retry: 2}
	}
	for _, c := range classes {
		if errors.Is(err, c.err) {
			p := &problem{Status: c.status, Code: c.code, Title: c.title, retry: c.retry}
			if c.tell {
				p.Detail = plain(err, c.err)
			}
			return p
		}
	}
	return &problem{Status: http.StatusInternalServerError, Code: "internal", Title: "Something is wrong inside", Detail: "The log of the server says what, by the id of this request."}
}

// plain is what a person is told of an error: without the sentinel, which the
// code says, and the names of packages.
func plain(err, sentinel error) string {
	s := strings.ReplaceAll(err.Error(), ": "+sentinel.Error(), "")
	for _, prefix := range []string{"psych: ", "api: "} {
		s = strings.TrimPrefix(strings.ReplaceAll(s, ": "+prefix, ": "), prefix)
	}
	return s
}

func (p *problem) write(w http.ResponseWriter, r *http.Request) {
	q := *p
	q.Type, q.Instance = typePrefix+p.Code, idOf(r.Context())
	body, err := marshal(&q)
	if err != nil {
		body = []byte(`{"type":"about:blank","status":500}`)
	}
	head := w.Header()
	head.Set("Content-Type", "application/problem+json")
	head.Set("Cache-Control", "no-store")
	head.Del("ETag")
	if p.Status == http.StatusUnauthorized {
		head.Set("WWW-Authenticate", "Bearer")
	}
	if p.retry > 0 {
		head.Set("Retry-After", strconv.Itoa(p.retry))
	}
	w.WriteHeader(p.Status)
	w.Write(body)
}

// invalid refuses a request, for a reason that its client is told.
func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, psych.ErrInvalid)...)
}

// marshal encodes without escaping what HTML minds.
func marshal(v any) ([]byte, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return []byte(b.String()), nil
}
