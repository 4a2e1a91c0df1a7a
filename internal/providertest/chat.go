package providertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

type chatDialect struct{}

// chatBody is all that a request may have.
type chatBody struct {
	Model         string          `json:"model"`
	Messages      []chatMessage   `json:"messages"`
	Stream        bool            `json:"stream"`
	StreamOptions *map[string]any `json:"stream_options"`
	MaxTokens     *int            `json:"max_tokens"`
	MaxCompletion *int            `json:"max_completion_tokens"`
	Temperature   *float64        `json:"temperature"`
	Effort        *string         `json:"reasoning_effort"`
	CacheKey      *string         `json:"prompt_cache_key"`
	Retention     *string         `json:"prompt_cache_retention"`
	CacheOptions  *cacheOptions   `json:"prompt_cache_options"`
	Tools         *[]struct {
		Type     string   `json:"type"`
		Function function `json:"function"`
	} `json:"tools"`
}

type chatMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
	CallID  string          `json:"tool_call_id"`
	Calls   *[]struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function struct {
			Name      string  `json:"name"`
			Arguments *string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`

	raw map[string]json.RawMessage
}

// UnmarshalJSON takes any members: servers have their own, such as
// reasoning_content.
func (m *chatMessage) UnmarshalJSON(data []byte) error {
	type plain chatMessage
	if err := json.Unmarshal(data, (*plain)(m)); err != nil {
		return err
	}
	return json.Unmarshal(data, &m.raw)
}

func (chatDialect) check(s *Stub, r *http.Request, body []byte) (*Request, error) {
	if r.URL.Path != "/chat/completions" || r.Method != http.MethodPost {
		return nil, fmt.Errorf("%s %s is not known", r.Method, r.URL.Path)
	}
	var b chatBody
	if err := decodeStrictly(body, &b); err != nil {
		return nil, err
	}
	req := &Request{Model: b.Model}
	switch {
	case b.Model == "":
		return nil, fmt.Errorf("you must provide a model parameter")
	case !b.Stream:
		return nil, fmt.Errorf("no stream is asked for")
	case b.MaxTokens != nil && *b.MaxTokens < 1 || b.MaxCompletion != nil && *b.MaxCompletion < 1:
		return nil, fmt.Errorf("max_completion_tokens is below the minimum")
	case b.Temperature != nil && (*b.Temperature < 0 || *b.Temperature > 2):
		return nil, fmt.Errorf("temperature %v", *b.Temperature)
	case b.CacheKey != nil && len(*b.CacheKey) > maxCacheKey:
		return nil, fmt.Errorf("prompt_cache_key: string too long")
	case len(b.Messages) == 0:
		return nil, fmt.Errorf("[] is too short - 'messages'")
	}
	if err := checkEffort(b.Effort); err != nil {
		return nil, err
	}
	if err := b.CacheOptions.check(b.Retention); err != nil {
		return nil, err
	}
	if b.Tools != nil {
		var fs []function
		for _, t := range *b.Tools {
			if t.Type != "function" {
				return nil, fmt.Errorf("tools: type %q", t.Type)
			}
			fs = append(fs, t.Function)
		}
		if len(fs) == 0 {
			return nil, fmt.Errorf("[] is too short - 'tools'")
		}
		if err := checkFunctions(fs, req); err != nil {
			return nil, err
		}
	}
	x := show{r: req}
	var open []string // calls that wait for their answers, in order
	seen := map[string]bool{}
	for i := range b.Messages {
		m := &b.Messages[i]
		at := fmt.Sprintf("messages[%d]", i)
		if len(open) > 0 && (m.Role != "tool" || m.CallID != open[0]) {
			return nil, fmt.Errorf("%s: an assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id': %v wait, and %s %q came", at, open, m.Role, m.CallID)
		}
		if m.Role != "tool" { // a batch of results is one message here
			x.next()
		}
		switch m.Role {
		case "system", "developer":
			if i > 0 {
				return nil, fmt.Errorf("%s: the system message must be at the beginning", at)
			}
		case "user":
			if s.o.Alternate && i > 0 && b.Messages[i-1].Role == "user" {
				return nil, fmt.Errorf("%s: conversation roles must alternate user/assistant", at)
			}
		case "assistant":
			if err := s.checkAssistant(m, &open, seen); err != nil {
				return nil, fmt.Errorf("%s: %w", at, err)
			}
			continue
		case "tool":
			if len(open) == 0 {
				return nil, fmt.Errorf("%s: messages with role 'tool' must be a response to a preceding message with 'tool_calls'", at)
			}
			open = open[1:]
		default:
			return nil, fmt.Errorf("%s: role %q", at, m.Role)
		}
		if err := checkChatContent(m, &x, b.CacheOptions); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
	}
	if len(open) > 0 {
		return nil, fmt.Errorf("no answers to %v", open)
	}
	if last := b.Messages[len(b.Messages)-1].Role; last == "assistant" || last == "system" {
		return nil, fmt.Errorf("the last message is the %s's: nothing is asked", last)
	}
	x.done()
	return req, nil
}

func (s *Stub) checkAssistant(m *chatMessage, open *[]string, seen map[string]bool) error {
	var content *string
	if err := json.Unmarshal(m.Content, &content); m.Content != nil && err != nil {
		return err
	}
	if m.Calls == nil && (content == nil || *content == "") {
		return fmt.Errorf("content is empty, and there are no tool_calls")
	}
	if m.Calls != nil {
		if len(*m.Calls) == 0 {
			return fmt.Errorf("[] is too short - 'tool_calls'")
		}
		for _, c := range *m.Calls {
			switch {
			case c.ID == "" || seen[c.ID]:
				return fmt.Errorf("the id %q of a call is empty or there twice", c.ID)
			case len(c.ID) > maxCallID:
				return fmt.Errorf("'tool_calls[0].id': string too long. Expected a string with maximum length %d, but got a string with length %d", maxCallID, len(c.ID))
			case c.Type != "function" || !openAIName.MatchString(c.Function.Name):
				return fmt.Errorf("a call of type %q, name %q", c.Type, c.Function.Name)
			}
			var args map[string]any
			if c.Function.Arguments == nil || json.Unmarshal([]byte(*c.Function.Arguments), &args) != nil || args == nil {
				return fmt.Errorf("the arguments of call %q are no JSON object", c.ID)
			}
			seen[c.ID] = true
			*open = append(*open, c.ID)
		}
	}
	for key, raw := range m.raw {
		switch key {
		case "role", "content", "tool_calls":
		default:
			if !s.said.has(key + ":" + string(raw)) {
				return fmt.Errorf("%s was never said, or is changed: %.200s", key, raw)
			}
		}
	}
	return nil
}

func checkChatContent(m *chatMessage, x *show, options *cacheOptions) error {
	var text string
	if json.Unmarshal(m.Content, &text) == nil {
		if text == "" && m.Role != "tool" {
			return fmt.Errorf("content is empty")
		}
		x.text(text)
		return nil
	}
	var parts []struct {
		Type  string `json:"type"`
		Text  string `json:"text"`
		Image struct {
			URL string `json:"url"`
		} `json:"image_url"`
		Marker *marker `json:"prompt_cache_breakpoint"`
	}
	if err := json.Unmarshal(m.Content, &parts); err != nil || len(parts) == 0 {
		return fmt.Errorf("content %.40s: %v", m.Content, err)
	}
	for _, p := range parts {
		switch {
		case p.Type == "text" && p.Text != "":
			x.text(p.Text)
		case p.Type == "image_url" && m.Role == "user":
			if err := checkDataURL(p.Image.URL); err != nil {
				return err
			}
			x.r.Images++
		default:
			return fmt.Errorf("a part of type %q with the text %q in a message of role %s", p.Type, p.Text, m.Role)
		}
		if err := p.Marker.check(x.r, options, p.Text); err != nil {
			return err
		}
	}
	return nil
}

func (chatDialect) events(s *Stub, r *Request, a *Answer) (body, end []string) {
	chunk := func(delta, finish string) string {
		if finish != "null" {
			finish = quote(finish)
		}
		return fmt.Sprintf(`{"id":"chatcmpl-%d","object":"chat.completion.chunk","created":%d,"model":"m","choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}],"usage":null}`, s.n, created, delta, finish)
	}
	say := func(delta string) { body = append(body, chunk(delta, "null")) }
	say(`{"role":"assistant","content":""}`)
	if a.Reasoning != "" {
		s.said.add("reasoning_content:" + joined(a.cut(a.Reasoning)))
		for _, p := range a.cut(a.Reasoning) {
			say(`{"reasoning_content":` + quote(p) + `}`)
		}
	}
	for _, raw := range a.Raw {
		var members map[string]json.RawMessage
		if err := json.Unmarshal([]byte(raw), &members); err != nil {
			panic(fmt.Sprintf("providertest: members %q: %v", raw, err))
		}
		for key, value := range members {
			s.said.add(key + ":" + string(value))
		}
		say(raw)
	}
	if a.Shape == Strange {
		s.said.add(`novel:{"x":[1.0]}`)
		say(`{"novel":{"x":[1.0]}}`)
		body = append(body, `{"object":"novel"}`, `{"choices":[]}`)
	}
	if a.Text != "" {
		for _, p := range a.cut(a.Text) {
			say(`{"content":` + quote(p) + `}`)
		}
	}
	var starts, rest []string
	for i := range a.Calls {
		c := &a.Calls[i]
		index := i
		if a.Shape == SameIndex {
			index = 0
		}
		start := fmt.Sprintf(`{"tool_calls":[{"index":%d,"id":%s,"type":"function","function":{"name":%s,"arguments":""}}]}`, index, quote(s.id(c, "call_", i)), quote(c.Name))
		var pieces []string
		for _, p := range a.cut(c.Arguments) {
			pieces = append(pieces, fmt.Sprintf(`{"tool_calls":[{"index":%d,"function":{"arguments":%s}}]}`, index, quote(p)))
		}
		if a.Shape == Interleaved {
			starts = append(starts, start)
			for j, p := range pieces {
				rest = slices.Insert(rest, min(j*(i+1)+i, len(rest)), p)
			}
			continue
		}
		rest = append(append(rest, start), pieces...)
	}
	for _, d := range append(starts, rest...) {
		say(d)
	}
	finish := "stop"
	switch {
	case a.Stop == AtLimit:
		finish = "length"
	case a.Stop == Refused:
		finish = "content_filter"
	case a.Stop == ContextFull:
		finish = "model_context_window_exceeded"
	case len(a.Calls) > 0:
		finish = "tool_calls"
	}
	end = []string{chunk(`{}`, finish)}
	all, cached := s.tokens(r.Body)
	switch a.Shape {
	case NoUsage:
	case BadUsage:
		end = append(end, `{"choices":[],"usage":{"prompt_tokens":-5,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":"x"}}}`)
	default:
		end = append(end, fmt.Sprintf(`{"id":"chatcmpl-%d","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":15,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`, s.n, all, all+15, cached))
	}
	return body, append(end, "[DONE]")
}

// joined is a string that came in pieces, as the pieces were spelled.
func joined(pieces []string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, p := range pieces {
		q := quote(p)
		b.WriteString(q[1 : len(q)-1])
	}
	b.WriteByte('"')
	return b.String()
}

func (chatDialect) failure() string {
	return `{"error":{"message":"The server had an error while processing your request","type":"server_error","param":null,"code":null}}`
}

func (chatDialect) write(w http.ResponseWriter, data []string) error {
	return sse(w, data, func(string) string { return "" })
}

func (chatDialect) refuse(w http.ResponseWriter, status int, message string) {
	refuseOpenAI(w, status, message)
}
