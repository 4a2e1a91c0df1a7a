package providertest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"

	"github.com/psych-go/psych-go/internal/messages/messagestest"
)

// bindingBeta is the beta without which block_binding is an unknown field.
const bindingBeta = "thinking-binding-controls-2026-08-01"

type messagesDialect struct{}

func (s *Stub) checkMessages(body []byte) (*messagestest.Request, error) {
	if s.o.Unbound {
		return messagestest.CheckUnbound(body)
	}
	return messagestest.Check(body)
}

func (messagesDialect) check(s *Stub, r *http.Request, body []byte) (*Request, error) {
	m, err := s.checkMessages(body)
	switch {
	case err != nil:
		return nil, err
	case r.URL.Path != "/v1/messages" || r.Method != http.MethodPost:
		return nil, fmt.Errorf("%s %s is not known", r.Method, r.URL.Path)
	case r.Header.Get("Anthropic-Version") != "2023-06-01":
		return nil, fmt.Errorf("anthropic-version: %q", r.Header.Get("Anthropic-Version"))
	case m.Model == "" || !m.Stream || m.Version != "" || len(m.Betas) > 0:
		return nil, fmt.Errorf("model %q, stream %v, and fields of Bedrock's: %q, %q", m.Model, m.Stream, m.Version, m.Betas)
	}
	return s.readMessages(m, strings.Split(r.Header.Get("Anthropic-Beta"), ","))
}

// readMessages goes on with what both ways to the Messages API demand.
func (s *Stub) readMessages(m *messagestest.Request, betas []string) (*Request, error) {
	if m.Thinking["block_binding"] != nil && !slices.Contains(betas, bindingBeta) {
		return nil, fmt.Errorf("thinking.block_binding: Extra inputs are not permitted")
	}
	req := &Request{Model: m.Model, Markers: m.Markers, Dropped: m.Dropped}
	for _, t := range m.Tools {
		req.Tools = append(req.Tools, t["name"].(string))
	}
	x := show{r: req}
	for _, b := range m.System {
		x.text(b["text"].(string))
	}
	for i, msg := range m.Messages {
		x.next()
		for j, b := range msg.Content {
			if msg.Role == "assistant" {
				if err := s.checkSaid(b, fmt.Sprintf("messages.%d.content.%d", i, j)); err != nil {
					return nil, err
				}
				continue
			}
			if text, _ := b["text"].(string); b["cache_control"] != nil && strings.HasPrefix(text, TailText) {
				req.TailMarkers++
			}
			readBlock(&x, b)
		}
	}
	x.done()
	return req, nil
}

// checkSaid refuses a provider block that the model did not say so.
func (s *Stub) checkSaid(b map[string]any, at string) error {
	switch b["type"] {
	case "text", "tool_use":
		return nil
	}
	if !s.said.has(canonical(b)) {
		return fmt.Errorf("%s: `thinking` or `redacted_thinking` blocks cannot be modified", at)
	}
	return nil
}

// canonical is what a block says, whatever its spelling.
func canonical(v any) string {
	raw, _ := json.Marshal(v) // it came from JSON
	return string(raw)
}

// says notes a provider block that is sent.
func (s *Stub) says(raw string) {
	var v any
	dec := json.NewDecoder(strings.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		panic(fmt.Sprintf("providertest: the block %q is not JSON: %v", raw, err))
	}
	s.said.add(canonical(v))
}

func readBlock(x *show, b map[string]any) {
	switch b["type"] {
	case "text":
		x.text(b["text"].(string))
	case "image", "document":
		x.r.Images++
	case "tool_result":
		switch c := b["content"].(type) {
		case string:
			x.text(c)
		case []any:
			for _, inner := range c {
				readBlock(x, inner.(map[string]any))
			}
		}
	}
}

// quote is s as JSON.
func quote(s string) string {
	raw, _ := json.Marshal(s) // a string can't fail
	return string(raw)
}

func (messagesDialect) events(s *Stub, r *Request, a *Answer) (body, end []string) {
	all, cached := s.tokens(r.Body)
	usage := fmt.Sprintf(`{"input_tokens":%d,"cache_read_input_tokens":%d,"cache_creation_input_tokens":10,"cache_creation":{"ephemeral_5m_input_tokens":10,"ephemeral_1h_input_tokens":0},"output_tokens":1}`, all-cached, cached)
	last := `,"usage":{"output_tokens":15}`
	switch a.Shape {
	case NoUsage:
		usage, last = `null`, ``
	case BadUsage:
		usage, last = `{"input_tokens":-5,"output_tokens":20}`, `,"usage":{"output_tokens":15}`
	}
	body = append(body, fmt.Sprintf(`{"type":"message_start","message":{"id":"msg_%d","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":%s}}`, s.n, usage), `{"type":"ping"}`)
	index := 0
	block := func(start string, deltas ...string) {
		body = append(body, fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":%s}`, index, start))
		for _, d := range deltas {
			body = append(body, fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":%s}`, index, d))
		}
		body = append(body, fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, index))
		index++
	}
	if a.Reasoning != "" {
		signature, err := messagestest.Sign(r.Body)
		if err != nil {
			panic(err) // it was checked
		}
		s.says(fmt.Sprintf(`{"type":"thinking","thinking":%s,"signature":%s}`, quote(a.Reasoning), quote(signature)))
		var deltas []string
		for _, p := range a.cut(a.Reasoning) {
			deltas = append(deltas, `{"type":"thinking_delta","thinking":`+quote(p)+`}`)
		}
		block(`{"type":"thinking","thinking":"","signature":""}`, append(deltas, `{"type":"signature_delta","signature":`+quote(signature)+`}`)...)
	}
	for _, raw := range a.Raw {
		s.says(raw)
		block(raw)
	}
	if a.Shape == Strange {
		s.says(`{"type":"novel","x":[1.0]}`)
		block(`{"type":"novel","x":[1.0]}`)
		body = append(body, `{"type":"novel","index":7}`, `{"x":1}`)
	}
	if a.Text != "" {
		var deltas []string
		for _, p := range a.cut(a.Text) {
			deltas = append(deltas, `{"type":"text_delta","text":`+quote(p)+`}`)
		}
		block(`{"type":"text","text":""}`, deltas...)
	}
	var starts, rest []string
	for i := range a.Calls {
		c := &a.Calls[i]
		extra := ""
		if a.Shape == Strange {
			extra = `,"caller":{"type":"novel"}`
		}
		start := fmt.Sprintf(`{"type":"tool_use","id":%s,"name":%s,"input":{}%s}`, quote(s.id(c, "toolu_", i)), quote(c.Name), extra)
		var deltas []string
		for _, p := range a.cut(c.Arguments) {
			deltas = append(deltas, `{"type":"input_json_delta","partial_json":`+quote(p)+`}`)
		}
		switch a.Shape {
		case Interleaved:
			starts = append(starts, fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":%s}`, index, start))
			for j, d := range deltas {
				rest = slices.Insert(rest, min(j*(i+1)+i, len(rest)), fmt.Sprintf(`{"type":"content_block_delta","index":%d,"delta":%s}`, index, d))
			}
			index++
		case SameIndex:
			block(start, deltas...)
			index--
		default:
			block(start, deltas...)
		}
	}
	body = append(append(body, starts...), rest...)
	reason := "end_turn"
	switch {
	case a.Stop == AtLimit:
		reason = "max_tokens"
	case a.Stop == Refused:
		reason = "refusal"
	case a.Stop == ContextFull:
		reason = "model_context_window_exceeded"
	case len(a.Calls) > 0:
		reason = "tool_use"
	}
	return body, []string{`{"type":"message_delta","delta":{"stop_reason":"` + reason + `","stop_sequence":null}` + last + `}`, `{"type":"message_stop"}`}
}

func (messagesDialect) failure() string {
	return `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`
}

func (messagesDialect) write(w http.ResponseWriter, data []string) error {
	return sse(w, data, typeOf)
}

// typeOf is the type of an event, "" if it is none.
func typeOf(data string) string {
	var e struct{ Type string }
	_ = json.Unmarshal([]byte(data), &e)
	return e.Type
}

func (messagesDialect) refuse(w http.ResponseWriter, status int, message string) {
	kind := map[int]string{400: "invalid_request_error", 429: "rate_limit_error", 529: "overloaded_error"}[status]
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"type":"error","error":{"type":%q,"message":%s}}`, kind, quote(message))
}

type bedrockDialect struct{ messagesDialect }

func (bedrockDialect) check(s *Stub, r *http.Request, body []byte) (*Request, error) {
	m, err := s.checkMessages(body)
	path, escape := url.PathUnescape(strings.TrimSuffix(strings.TrimPrefix(r.URL.EscapedPath(), "/model/"), "/invoke-with-response-stream"))
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(body, &fields) // Check did so
	_, model := fields["model"]
	_, stream := fields["stream"]
	switch {
	case err != nil:
		return nil, err
	case escape != nil || !strings.HasSuffix(r.URL.EscapedPath(), "/invoke-with-response-stream"):
		return nil, fmt.Errorf("%s %s is not known", r.Method, r.URL.EscapedPath())
	case !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 "):
		return nil, fmt.Errorf("the request is not signed")
	case model || stream:
		return nil, fmt.Errorf("malformed input request: #: extraneous key [model] or [stream] is not permitted")
	case m.Version != "bedrock-2023-05-31":
		return nil, fmt.Errorf("anthropic_version: %q", m.Version)
	}
	m.Model = path
	return s.readMessages(m, m.Betas)
}

func (bedrockDialect) failure() string { return "!throttlingException" }

// write frames each event as Bedrock does; one that begins with ! is an
// exception.
func (bedrockDialect) write(w http.ResponseWriter, data []string) error {
	w.Header().Set("Content-Type", "application/vnd.amazon.eventstream")
	w.Header().Set("X-Amzn-Bedrock-Content-Type", "application/json")
	encoder := eventstream.NewEncoder()
	for _, d := range data {
		msg := eventstream.Message{Payload: []byte(`{"bytes":"` + base64.StdEncoding.EncodeToString([]byte(d)) + `","p":"abcdef"}`)}
		headers := []string{":message-type", "event", ":event-type", "chunk", ":content-type", "application/json"}
		if kind, ok := strings.CutPrefix(d, "!"); ok {
			headers = []string{":message-type", "exception", ":exception-type", kind, ":content-type", "application/json"}
			msg.Payload = []byte(`{"message":"Too many requests"}`)
		}
		for i := 0; i < len(headers); i += 2 {
			msg.Headers.Set(headers[i], eventstream.StringValue(headers[i+1]))
		}
		var frame bytes.Buffer
		if err := encoder.Encode(&frame, msg); err != nil {
			return err
		}
		if _, err := w.Write(frame.Bytes()); err != nil {
			return err
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return err
		}
	}
	return nil
}

func (bedrockDialect) refuse(w http.ResponseWriter, status int, message string) {
	kind := map[int]string{400: "ValidationException", 429: "ThrottlingException", 529: "ServiceUnavailableException"}[status]
	if status == 529 {
		status = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Amzn-ErrorType", kind)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, `{"message":`+quote(message)+`}`) // the client may be gone
}
