package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

// maxDepth bounds how deeply a body nests.
const maxDepth = 100

// body reads the body of a request, which must be JSON.
func (h *Handler) body(w http.ResponseWriter, r *request) ([]byte, error) {
	if enc := r.Header.Values("Content-Encoding"); len(enc) > 0 && !(len(enc) == 1 && strings.EqualFold(enc[0], "identity")) {
		w.Header().Set("Accept-Encoding", "identity")
		return nil, &problem{Status: http.StatusUnsupportedMediaType, Code: "unsupported_encoding", Title: "The body is encoded", Detail: "Send it as it is, without a Content-Encoding."}
	}
	types := r.Header.Values("Content-Type")
	var kind string
	var params map[string]string
	var err error
	if len(types) == 1 {
		kind, params, err = mime.ParseMediaType(types[0])
	}
	if charset := params["charset"]; err != nil || kind != "application/json" || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return nil, &problem{Status: http.StatusUnsupportedMediaType, Code: "unsupported_media_type", Title: "The body is not declared as JSON", Detail: "Send it with Content-Type: application/json."}
	}
	return h.bytes(w, r)
}

// bytes reads a body within its bound.
func (h *Handler) bytes(w http.ResponseWriter, r *request) ([]byte, error) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.o.MaxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, &problem{Status: http.StatusRequestEntityTooLarge, Code: "body_too_large", Title: "The body is too large", Detail: fmt.Sprintf("Want at most %d bytes.", large.Limit)}
	case err != nil:
		return nil, invalid("the body could not be read to its end")
	}
	return data, nil
}

// decode reads a JSON object strictly: a field that is unknown, stands twice or
// is spelt in another case, and anything behind it, is refused.
func decode(data []byte, v any) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return invalid("the body is empty: want a JSON object")
	}
	if !utf8.Valid(data) {
		return invalid("the body is not valid UTF-8")
	}
	if err := checkNames(data); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return invalid("the body: %s is a JSON %s, and something else is wanted", or(wrong.Field, "it"), wrong.Value)
		}
		return invalid("the body: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// checkNames walks over one JSON value, in which every name stands once and is
// spelt as all names of this API are: encoding/json takes the last of several,
// any case, and letters beyond ASCII that fold to those of a name.
func checkNames(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	type level struct {
		names map[string]bool // nil: an array
		value bool            // a name was read, and its value comes next
	}
	var open []level
	for first := true; first || len(open) > 0; first = false {
		t, err := d.Token()
		if err != nil {
			return invalid("the body is no JSON: %s", strings.TrimPrefix(err.Error(), "json: "))
		}
		if first && t != json.Delim('{') {
			return invalid("the body is no JSON object")
		}
		var top *level
		if len(open) > 0 {
			top = &open[len(open)-1]
		}
		name, isName := t.(string)
		switch {
		case t == json.Delim('}'), t == json.Delim(']'):
			open = open[:len(open)-1]
			continue
		case top != nil && top.names != nil && !top.value && isName:
			switch {
			case top.names[name]:
				return invalid("the body has the field %.80q twice", name)
			case strings.ContainsFunc(name, func(r rune) bool { return r >= utf8.RuneSelf || 'A' <= r && r <= 'Z' }):
				return invalid("the body has the unknown field %.80q", name)
			case len(open) == 1 && name == "tenant", len(open) == 1 && name == "principal":
				return invalid("the body names a %s: that is said by the credential alone", name)
			}
			top.names[name], top.value = true, true
			continue
		}
		if top != nil {
			top.value = false
		}
		switch t {
		case json.Delim('{'):
			open = append(open, level{names: map[string]bool{}})
		case json.Delim('['):
			open = append(open, level{})
		}
		if len(open) > maxDepth {
			return invalid("the body nests over %d deep", maxDepth)
		}
	}
	if _, err := d.Token(); err != io.EOF {
		return invalid("something follows the JSON object in the body")
	}
	return nil
}

// query reads the parameters of a request strictly.
func (r *request) query(known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery) // URL.Query drops what is malformed
	if err != nil {
		return nil, invalid("the parameters of the path can't be read: %v", err)
	}
	for name, values := range q {
		switch {
		case !slices.Contains(known, name) && len(known) == 0:
			return nil, invalid("there is no parameter %.80q: want none", name)
		case !slices.Contains(known, name):
			return nil, invalid("there is no parameter %.80q: want %s", name, strings.Join(known, ", "))
		case len(values) > 1:
			return nil, invalid("the parameter %s stands twice", name)
		}
	}
	return q, nil
}

// number reads a parameter from 0 to most; absent, it is def.
func number(q url.Values, name string, def, most int64) (int64, error) {
	if !q.Has(name) {
		return def, nil
	}
	n, err := strconv.ParseInt(q.Get(name), 10, 64)
	if err != nil || n < 0 || n > most {
		if most == math.MaxInt64 {
			return 0, invalid("%s is %.40q: want a whole number from 0", name, q.Get(name))
		}
		return 0, invalid("%s is %.40q: want a whole number from 0 to %d", name, q.Get(name), most)
	}
	return n, nil
}

func boolean(q url.Values, name string) (bool, error) {
	switch v := q.Get(name); {
	case !q.Has(name), v == "false":
		return false, nil
	case v == "true":
		return true, nil
	default:
		return false, invalid("%s is %.40q: want true or false", name, v)
	}
}

// one is the value of a header that may stand once.
func one(h http.Header, name string) (string, error) {
	switch v := h.Values(name); len(v) {
	case 0:
		return "", nil
	case 1:
		return v[0], nil
	default:
		return "", invalid("the header %s stands %d times", name, len(v))
	}
}

// idempotencyKey reads the key of a request: a string in quotes, as the draft
// of the header has it, or the bare key, as most clients send it. A comma in a
// bare one would be how a gateway joins two headers.
func idempotencyKey(h http.Header) (string, error) {
	v, err := one(h, "Idempotency-Key")
	if v == "" || err != nil {
		return "", err
	}
	bad := func() (string, error) {
		return "", invalid("the header Idempotency-Key is %.80q: want a key of 1 to 128 visible ASCII characters, in double quotes or without quotes and commas", v)
	}
	key := v
	if in, quoted := strings.CutPrefix(v, `"`); quoted {
		var b strings.Builder
		closed := false
		for i := 0; i < len(in); i++ {
			c := in[i]
			switch {
			case closed:
				return bad()
			case c == '"':
				closed = true
				continue
			case c == '\\':
				if i++; i == len(in) || in[i] != '"' && in[i] != '\\' {
					return bad()
				}
				c = in[i]
			}
			b.WriteByte(c)
		}
		if key = b.String(); !closed {
			return bad()
		}
	} else if strings.ContainsAny(v, `", `) {
		return bad()
	}
	for _, c := range []byte(key) {
		if c < ' ' || c > '~' {
			return bad()
		}
	}
	if key == "" || psych.CheckTenant(key) != nil { // the bounds of an id are those of a tenant
		return bad()
	}
	return key, nil
}
