package providertest

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

type responsesDialect struct{}

// responsesBody is all that a request may have.
type responsesBody struct {
	Model        string            `json:"model"`
	Input        []json.RawMessage `json:"input"`
	Instructions *string           `json:"instructions"`
	Stream       bool              `json:"stream"`
	Store        *bool             `json:"store"`
	Include      []string          `json:"include"`
	MaxOutput    *int              `json:"max_output_tokens"`
	Temperature  *float64          `json:"temperature"`
	CacheKey     *string           `json:"prompt_cache_key"`
	Retention    *string           `json:"prompt_cache_retention"`
	CacheOptions *cacheOptions     `json:"prompt_cache_options"`
	Reasoning    *struct {
		Effort  *string `json:"effort"`
		Summary *string `json:"summary"`
	} `json:"reasoning"`
	Tools *[]struct {
		Type string `json:"type"`
		function
	} `json:"tools"`
}

// An inputItem is one of any type.
type inputItem struct {
	Type      string          `json:"type"`
	ID        *string         `json:"id"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments *string         `json:"arguments"`
	Output    json.RawMessage `json:"output"`
	Summary   *[]any          `json:"summary"`
	Encrypted *string         `json:"encrypted_content"`
}

func (responsesDialect) check(s *Stub, r *http.Request, body []byte) (*Request, error) {
	if r.URL.Path != "/responses" || r.Method != http.MethodPost {
		return nil, fmt.Errorf("%s %s is not known", r.Method, r.URL.Path)
	}
	var b responsesBody
	if err := decodeStrictly(body, &b); err != nil {
		return nil, err
	}
	req := &Request{Model: b.Model}
	switch {
	case b.Model == "" || !b.Stream:
		return nil, fmt.Errorf("model %q, stream %v", b.Model, b.Stream)
	case b.Store == nil || *b.Store:
		return nil, fmt.Errorf("the response would be stored")
	case b.MaxOutput != nil && *b.MaxOutput < 16:
		return nil, fmt.Errorf("max_output_tokens: integer below minimum value. Expected a value >= 16, but got %d", *b.MaxOutput)
	case b.Temperature != nil && (*b.Temperature < 0 || *b.Temperature > 2):
		return nil, fmt.Errorf("temperature %v", *b.Temperature)
	case b.CacheKey != nil && len(*b.CacheKey) > maxCacheKey:
		return nil, fmt.Errorf("prompt_cache_key: string too long")
	case len(b.Input) == 0:
		return nil, fmt.Errorf("input is empty")
	}
	if err := b.CacheOptions.check(b.Retention); err != nil {
		return nil, err
	}
	if b.Reasoning != nil {
		if err := checkEffort(b.Reasoning.Effort); err != nil {
			return nil, err
		}
	}
	if b.Tools != nil {
		var fs []function
		for _, t := range *b.Tools {
			if t.Type != "function" {
				return nil, fmt.Errorf("tools: type %q", t.Type)
			}
			// Without strict a function is strict here, which few schemas are.
			if t.Strict == nil || *t.Strict {
				return nil, fmt.Errorf("invalid schema for function %q: strict, and not all of its properties are required", t.Name)
			}
			fs = append(fs, t.function)
		}
		if err := checkFunctions(fs, req); err != nil {
			return nil, err
		}
	}
	if err := s.checkInput(&b, req); err != nil {
		return nil, err
	}
	return req, nil
}

func (s *Stub) checkInput(b *responsesBody, req *Request) error {
	x := show{r: req}
	var open []string
	seen := map[string]bool{}
	reasoning := "" // that nothing follows yet
	before := ""
	for i, raw := range b.Input {
		at := fmt.Sprintf("input[%d]", i)
		var it inputItem
		if err := json.Unmarshal(raw, &it); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		kind := it.Type
		if kind == "" {
			kind = "message"
		}
		if kind == "message" {
			kind = it.Role
		}
		if it.ID != nil && kind != "reasoning" {
			return fmt.Errorf("%s: item with id %q not found: items are not persisted when `store` is set to false", at, *it.ID)
		}
		if reasoning != "" && kind != "assistant" && kind != "function_call" && kind != "reasoning" {
			return fmt.Errorf("%s: item %q of type 'reasoning' was provided without its required following item", at, reasoning)
		}
		if len(open) > 0 && kind != "function_call_output" && kind != "function_call" && before == "function_call_output" {
			return fmt.Errorf("%s: no tool output found for function calls %v", at, open)
		}
		if kind != "function_call_output" {
			x.next()
		}
		switch kind {
		case "system", "developer":
			if i > 0 {
				return fmt.Errorf("%s: a system message in mid-conversation", at)
			}
			if err := checkItemContent(it.Content, "input_text", &x, b.CacheOptions); err != nil {
				return fmt.Errorf("%s: %w", at, err)
			}
		case "user":
			if len(open) > 0 {
				return fmt.Errorf("%s: no tool output found for function calls %v", at, open)
			}
			if err := checkItemContent(it.Content, "input_text", &x, b.CacheOptions); err != nil {
				return fmt.Errorf("%s: %w", at, err)
			}
		case "assistant":
			reasoning = ""
			var text string
			if json.Unmarshal(it.Content, &text) == nil && text == "" {
				return fmt.Errorf("%s: content is empty", at)
			}
		case "function_call":
			reasoning = ""
			switch {
			case it.CallID == "" || seen[it.CallID] || len(it.CallID) > maxItemCallID:
				return fmt.Errorf("%s: the call_id %q is empty, too long or there twice", at, it.CallID)
			case !openAIName.MatchString(it.Name):
				return fmt.Errorf("%s: name %q", at, it.Name)
			}
			var args map[string]any
			if it.Arguments == nil || json.Unmarshal([]byte(*it.Arguments), &args) != nil || args == nil {
				return fmt.Errorf("%s: the arguments are no JSON object", at)
			}
			seen[it.CallID] = true
			open = append(open, it.CallID)
		case "function_call_output":
			if len(open) == 0 || it.CallID != open[0] {
				return fmt.Errorf("%s: no tool call found for function call output with call_id %q: %v wait", at, it.CallID, open)
			}
			open = open[1:]
			var text string
			if json.Unmarshal(it.Output, &text) == nil {
				x.text(text)
			} else if err := checkItemContent(it.Output, "input_text", &x, b.CacheOptions); err != nil {
				return fmt.Errorf("%s: %w", at, err)
			}
		case "reasoning":
			if it.Summary == nil || it.Encrypted == nil || *it.Encrypted == "" {
				return fmt.Errorf("%s: reasoning without summary or encrypted_content, and it is not persisted", at)
			}
			if !s.said.has(string(raw)) {
				return fmt.Errorf("%s: the encrypted content could not be verified: %.200s", at, raw)
			}
			reasoning = "rs"
			if it.ID != nil {
				reasoning = *it.ID
			}
		default:
			return fmt.Errorf("%s: invalid value %q", at, kind)
		}
		before = kind
	}
	switch {
	case len(open) > 0:
		return fmt.Errorf("no tool output found for function calls %v", open)
	case reasoning != "":
		return fmt.Errorf("item %q of type 'reasoning' was provided without its required following item", reasoning)
	case before == "assistant" || before == "system":
		return fmt.Errorf("the last item is the %s's: nothing is asked", before)
	}
	x.done()
	return nil
}

func checkItemContent(content json.RawMessage, kind string, x *show, options *cacheOptions) error {
	var text string
	if json.Unmarshal(content, &text) == nil {
		if text == "" {
			return fmt.Errorf("content is empty")
		}
		x.text(text)
		return nil
	}
	var parts []struct {
		Type   string  `json:"type"`
		Text   string  `json:"text"`
		Image  string  `json:"image_url"`
		Marker *marker `json:"prompt_cache_breakpoint"`
	}
	if err := json.Unmarshal(content, &parts); err != nil || len(parts) == 0 {
		return fmt.Errorf("content %.40s: %v", content, err)
	}
	for _, p := range parts {
		switch {
		case p.Type == kind && p.Text != "":
			x.text(p.Text)
		case p.Type == "input_image":
			if err := checkDataURL(p.Image); err != nil {
				return err
			}
			x.r.Images++
		default:
			return fmt.Errorf("a part of type %q with the text %q", p.Type, p.Text)
		}
		if err := p.Marker.check(x.r, options, p.Text); err != nil {
			return err
		}
	}
	return nil
}

func (responsesDialect) events(s *Stub, r *Request, a *Answer) (body, end []string) {
	sequence := 0
	event := func(kind, rest string) string {
		sequence++
		return fmt.Sprintf(`{"type":%q,"sequence_number":%d%s}`, kind, sequence-1, rest)
	}
	emit := func(kind, rest string) { body = append(body, event(kind, rest)) }
	response := func(status, output, rest string) string {
		return fmt.Sprintf(`,"response":{"id":"resp_%d","object":"response","created_at":%d,"status":%q,"error":null,"model":"m","output":%s,"parallel_tool_calls":true,"store":false%s}`, s.n, created, status, output, rest)
	}
	emit("response.created", response("in_progress", "[]", `,"usage":null`))
	emit("response.in_progress", response("in_progress", "[]", `,"usage":null`))
	var items []string
	index := func() int { return len(items) }
	whole := func(item string) {
		emit("response.output_item.added", fmt.Sprintf(`,"output_index":%d,"item":%s`, index(), item))
		emit("response.output_item.done", fmt.Sprintf(`,"output_index":%d,"item":%s`, index(), item))
		items = append(items, item)
	}
	if a.Reasoning != "" {
		id := fmt.Sprintf("rs_%d", s.n)
		emit("response.output_item.added", fmt.Sprintf(`,"output_index":%d,"item":{"id":%q,"type":"reasoning","summary":[],"encrypted_content":""}`, index(), id))
		emit("response.reasoning_summary_part.added", fmt.Sprintf(`,"item_id":%q,"output_index":%d,"summary_index":0,"part":{"type":"summary_text","text":""}`, id, index()))
		for _, p := range a.cut(a.Reasoning) {
			emit("response.reasoning_summary_text.delta", fmt.Sprintf(`,"item_id":%q,"output_index":%d,"summary_index":0,"delta":%s`, id, index(), quote(p)))
		}
		sum := sha256.Sum256(r.Body)
		item := fmt.Sprintf(`{"id":%q,"type":"reasoning","summary":[{"type":"summary_text","text":%s}],"encrypted_content":%q}`, id, quote(a.Reasoning), "gAAA"+base64.StdEncoding.EncodeToString(sum[:]))
		s.said.add(item)
		emit("response.output_item.done", fmt.Sprintf(`,"output_index":%d,"item":%s`, index(), item))
		items = append(items, item)
	}
	for _, raw := range a.Raw {
		s.said.add(raw)
		whole(raw)
	}
	if a.Shape == Strange {
		whole(`{"id":"nv_1","type":"novel","x":[1.0]}`)
		emit("response.novel.delta", `,"output_index":7,"delta":{"x":1}`)
		body = append(body, `{"x":1}`)
	}
	if a.Text != "" {
		id := fmt.Sprintf("msg_%d", s.n)
		emit("response.output_item.added", fmt.Sprintf(`,"output_index":%d,"item":{"id":%q,"type":"message","status":"in_progress","role":"assistant","content":[]}`, index(), id))
		emit("response.content_part.added", fmt.Sprintf(`,"item_id":%q,"output_index":%d,"content_index":0,"part":{"type":"output_text","text":"","annotations":[]}`, id, index()))
		for _, p := range a.cut(a.Text) {
			emit("response.output_text.delta", fmt.Sprintf(`,"item_id":%q,"output_index":%d,"content_index":0,"delta":%s`, id, index(), quote(p)))
		}
		emit("response.output_text.done", fmt.Sprintf(`,"item_id":%q,"output_index":%d,"content_index":0,"text":%s`, id, index(), quote(a.Text)))
		item := fmt.Sprintf(`{"id":%q,"type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":%s,"annotations":[]}]}`, id, quote(a.Text))
		emit("response.output_item.done", fmt.Sprintf(`,"output_index":%d,"item":%s`, index(), item))
		items = append(items, item)
	}
	var starts, rest, ends []string
	for i := range a.Calls {
		c := &a.Calls[i]
		id, at := fmt.Sprintf("fc_%d_%d", s.n, i), index()
		if a.Shape == SameIndex {
			at = 0
		}
		item := func(status, args string) string {
			return fmt.Sprintf(`{"id":%q,"type":"function_call","status":%q,"arguments":%s,"call_id":%s,"name":%s}`, id, status, quote(args), quote(s.id(c, "call_", i)), quote(c.Name))
		}
		start := event("response.output_item.added", fmt.Sprintf(`,"output_index":%d,"item":%s`, at, item("in_progress", "")))
		var pieces []string
		for _, p := range a.cut(c.Arguments) {
			pieces = append(pieces, event("response.function_call_arguments.delta", fmt.Sprintf(`,"item_id":%q,"output_index":%d,"delta":%s`, id, at, quote(p))))
		}
		done := []string{
			event("response.function_call_arguments.done", fmt.Sprintf(`,"item_id":%q,"output_index":%d,"arguments":%s`, id, at, quote(c.Arguments))),
			event("response.output_item.done", fmt.Sprintf(`,"output_index":%d,"item":%s`, at, item("completed", c.Arguments))),
		}
		items = append(items, item("completed", c.Arguments))
		if a.Shape == Interleaved {
			starts = append(starts, start)
			for j, p := range pieces {
				rest = slices.Insert(rest, min(j*(i+1)+i, len(rest)), p)
			}
			ends = append(ends, done...)
			continue
		}
		rest = append(append(append(rest, start), pieces...), done...)
	}
	body = append(append(append(body, starts...), rest...), ends...)
	all, cached := s.tokens(r.Body)
	usage := fmt.Sprintf(`,"usage":{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d},"output_tokens":15,"output_tokens_details":{"reasoning_tokens":5},"total_tokens":%d}`, all, cached, all+15)
	switch a.Shape {
	case NoUsage:
		usage = `,"usage":null`
	case BadUsage:
		usage = `,"usage":{"input_tokens":-5,"output_tokens":3,"input_tokens_details":{"cached_tokens":"x"}}`
	}
	output := "[" + strings.Join(items, ",") + "]"
	switch a.Stop {
	case AtLimit:
		return body, []string{event("response.incomplete", response("incomplete", output, `,"incomplete_details":{"reason":"max_output_tokens"}`+usage))}
	case Refused:
		return body, []string{event("response.incomplete", response("incomplete", output, `,"incomplete_details":{"reason":"content_filter"}`+usage))}
	case ContextFull: // here it is an error
		return body, []string{event("response.failed", `,"response":{"id":"resp","status":"failed","error":{"code":"context_length_exceeded","message":"Your input exceeds the context window of this model."}}`)}
	}
	return body, []string{event("response.completed", response("completed", output, `,"incomplete_details":null`+usage))}
}

func (responsesDialect) failure() string {
	return `{"type":"response.failed","sequence_number":9,"response":{"id":"resp","status":"failed","error":{"code":"server_error","message":"The server had an error while processing your request."}}}`
}

func (responsesDialect) write(w http.ResponseWriter, data []string) error {
	return sse(w, data, typeOf)
}

func (responsesDialect) refuse(w http.ResponseWriter, status int, message string) {
	refuseOpenAI(w, status, message)
}
