package mcp

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// maxTTL is a bound of what a server's TTL can say.
const maxTTL = 10 * 365 * 24 * time.Hour

// toolPage reads the result of tools/list. A tool that is no object, or whose
// name is no string, has an empty name.
func toolPage(raw json.RawMessage) (psych.ToolPage, error) {
	var list struct {
		Tools, NextCursor, TTLMs json.RawMessage
	}
	if json.Unmarshal(raw, &list) != nil || list.Tools == nil {
		return psych.ToolPage{}, fmt.Errorf("the server's answer is no list of tools: %w", psych.ErrUnavailable)
	}
	tools, err := elements(list.Tools, maxPageTools)
	switch {
	case errors.Is(err, errElements):
		return psych.ToolPage{}, fmt.Errorf("a page of the server's list has more than %d tools: %w", maxPageTools, psych.ErrUnavailable)
	case err != nil:
		return psych.ToolPage{}, fmt.Errorf("the server's answer is no list of tools: %w", psych.ErrUnavailable)
	}
	page := psych.ToolPage{Tools: make([]psych.RemoteTool, 0, len(tools))}
	for _, raw := range tools {
		page.Tools = append(page.Tools, remoteTool(raw))
	}
	if !isNull(list.NextCursor) {
		next, ok := text(list.NextCursor)
		if !ok {
			return psych.ToolPage{}, fmt.Errorf("the server's nextCursor is no string: %w", psych.ErrUnavailable)
		}
		page.Next = &next
	}
	var ms float64
	if !isNull(list.TTLMs) && json.Unmarshal(list.TTLMs, &ms) == nil && ms >= 0 {
		ttl := time.Duration(min(ms, float64(maxTTL/time.Millisecond)) * float64(time.Millisecond))
		page.TTL = &ttl
	}
	return page, nil
}

// Bounds of elements, since each takes many times the bytes of the smallest.
const (
	maxPageTools = 100_000
	maxBlocks    = 100_000
	maxCompared  = 1 << 20 // bytes of structured content that is compared by value
)

var errElements = errors.New("the array has too many elements")

// elements takes an array apart, or null, of at most n elements.
func elements(raw json.RawMessage, n int) ([]json.RawMessage, error) {
	if isNull(raw) {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return nil, errors.New("it is no array")
	}
	var all []json.RawMessage
	for dec.More() {
		if len(all) == n {
			return nil, errElements
		}
		var e json.RawMessage
		if err := dec.Decode(&e); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

func remoteTool(raw json.RawMessage) (t psych.RemoteTool) {
	var tool struct {
		Name, Title, Description, InputSchema, OutputSchema, Annotations json.RawMessage
	}
	if json.Unmarshal(raw, &tool) != nil {
		return t
	}
	var hints struct {
		Title, ReadOnlyHint, IdempotentHint json.RawMessage
	}
	_ = json.Unmarshal(tool.Annotations, &hints) // hints that are none say nothing
	t.Name, _ = text(tool.Name)
	t.Description, _ = text(tool.Description)
	if t.Title, _ = text(tool.Title); t.Title == "" {
		t.Title, _ = text(hints.Title)
	}
	if !isNull(tool.InputSchema) {
		t.Schema = tool.InputSchema
	}
	if !isNull(tool.OutputSchema) {
		t.Output = tool.OutputSchema
	}
	t.ReadOnly, t.Idempotent = isTrue(hints.ReadOnlyHint), isTrue(hints.IdempotentHint)
	return t
}

func text(raw json.RawMessage) (s string, ok bool) {
	return s, !isNull(raw) && json.Unmarshal(raw, &s) == nil
}

func isTrue(raw json.RawMessage) bool { return string(bytes.TrimSpace(raw)) == "true" }

// failure is a tool's own failure. What the server asked for in vain comes
// first, since what the model is shown of a failure is short.
func failure(asked, why string) *psych.Result {
	if asked != "" {
		why = fmt.Sprintf("The server asked for %s, which is not offered here. %s", asked, why)
	}
	r := psych.Text(why)
	r.IsError = true
	return r
}

// A part is an attachment in the making.
type part struct {
	name, contentType string
	body              []byte
	raw               json.RawMessage // the block, where it is one
}

// maxParts leaves room for one that psych itself may add.
const maxParts = psych.MaxAttachments - 1

// toolResult makes a Result, and attachments of c, of the result of tools/call.
// asked is what the server asked for meanwhile, that is not offered.
func toolResult(c *psych.Call, raw json.RawMessage, asked string) (*psych.Result, error) {
	var res struct {
		Content, StructuredContent, IsError, ResultType, InputRequests json.RawMessage
	}
	if err := json.Unmarshal(raw, &res); err != nil {
		return failure(asked, "The server's answer is no result of a tool."), nil
	}
	if kind, _ := text(res.ResultType); kind == "input_required" || !isNull(res.InputRequests) {
		return failure(cmp.Or(inputsAsked(res.InputRequests), asked, "input of the user"), "The tool has no result without it."), nil
	}
	structured := res.StructuredContent
	if isNull(structured) {
		structured = nil
	}
	texts, parts := blocks(res.Content)
	said := strings.Join(texts, "\n")
	if structured != nil && wraps(structured, res.Content, texts) {
		structured = nil
	}
	same := structured != nil && sameContent(structured, texts)
	failed := isTrue(res.IsError)

	result := psych.Text(said)
	switch {
	case failed && len(texts) == 0 && structured == nil:
		result = failure(asked, "The tool failed and did not say why.")
	case failed && len(texts) == 0:
		result = failure(asked, compact(structured))
	case failed:
		result = failure(asked, said)
		if structured != nil && !same {
			parts = slices.Insert(parts, 0, part{name: "structured", contentType: "application/json", body: []byte(compact(structured))})
		}
	case structured != nil:
		result = &psych.Result{ContentType: "application/json", Body: strings.NewReader(compact(structured))}
		if len(texts) > 0 && !same {
			parts = slices.Insert(parts, 0, part{name: "text", contentType: "text/plain", body: []byte(said)})
		}
	}
	return result, attach(c, parts)
}

// inputsAsked names what a result asks for before it would be one.
func inputsAsked(raw json.RawMessage) string {
	var inputs map[string]struct{ Method json.RawMessage }
	_ = json.Unmarshal(raw, &inputs)
	var methods []string
	for _, in := range inputs {
		if m, _ := text(in.Method); m != "" {
			methods = append(methods, clip(m, 80))
		}
	}
	slices.Sort(methods)
	methods = slices.Compact(methods)
	return strings.Join(methods[:min(len(methods), 3)], " and ")
}

// blocks takes content apart into its texts and what becomes an attachment, in
// order; links come first, together.
func blocks(raw json.RawMessage) (texts []string, parts []part) {
	if isNull(raw) {
		return nil, nil
	}
	content, err := elements(raw, maxBlocks)
	if err != nil { // also where there are too many
		return nil, []part{unknown("content", raw)}
	}
	var links []json.RawMessage
	for _, raw := range content {
		var b struct {
			Type, Text, Data, MimeType, Resource json.RawMessage
		}
		if json.Unmarshal(raw, &b) != nil {
			parts = append(parts, unknown("block", raw))
			continue
		}
		switch kind, _ := text(b.Type); kind {
		case "text":
			if s, ok := text(b.Text); ok {
				texts = append(texts, s)
			} else {
				parts = append(parts, unknown(kind, raw))
			}
		case "image", "audio":
			if data, ok := decoded(b.Data); ok {
				parts = append(parts, part{kind, mediaType(b.MimeType, "application/octet-stream"), data, raw})
			} else {
				parts = append(parts, unknown(kind, raw))
			}
		case "resource":
			parts = append(parts, resource(b.Resource, raw))
		case "resource_link":
			links = append(links, raw)
		default:
			parts = append(parts, unknown(kind, raw))
		}
	}
	if len(links) > 0 {
		parts = slices.Insert(parts, 0, part{name: "resource-links", contentType: "application/json", body: array(links)})
	}
	return texts, parts
}

// resource is an embedded resource, named by its URI.
func resource(raw, block json.RawMessage) part {
	var r struct {
		URI, MimeType, Text, Blob json.RawMessage
	}
	if json.Unmarshal(raw, &r) != nil {
		return unknown("resource", block)
	}
	uri, _ := text(r.URI)
	name := cmp.Or(uri, "resource")
	if strings.HasPrefix(name, "data:") {
		name = "resource" // such a name is the content
	} else if len(name) > 200 { // the end says more than the beginning
		name = "…" + clip(path.Base(name), 200)
	}
	if s, ok := text(r.Text); ok {
		return part{name, mediaType(r.MimeType, "text/plain"), []byte(s), block}
	}
	if data, ok := decoded(r.Blob); ok {
		return part{name, mediaType(r.MimeType, "application/octet-stream"), data, block}
	}
	return unknown(name, block)
}

func unknown(name string, raw json.RawMessage) part {
	return part{cmp.Or(clip(name, 80), "block"), "application/json", []byte(compact(raw)), raw}
}

// decoded are the bytes of a base64 string, of either alphabet and with its
// padding or without.
func decoded(raw json.RawMessage) ([]byte, bool) {
	s, ok := text(raw)
	if !ok {
		return nil, false
	}
	s = strings.NewReplacer("-", "+", "_", "/").Replace(strings.Join(strings.Fields(s), ""))
	data, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(s, "="))
	return data, err == nil
}

func mediaType(raw json.RawMessage, otherwise string) string {
	s, _ := text(raw)
	if _, _, err := mime.ParseMediaType(s); err != nil || len(s) > 200 {
		return otherwise
	}
	return s
}

func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}

func array(list []json.RawMessage) []byte {
	b := []byte{'['}
	for i, raw := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, compact(raw)...)
	}
	return append(b, ']')
}

// attach writes the parts. Those past what a call may have are one.
func attach(c *psych.Call, parts []part) error {
	if len(parts) > maxParts {
		var rest []json.RawMessage
		for _, p := range parts[maxParts-1:] {
			rest = append(rest, p.raw) // texts and links come first: these are blocks
		}
		parts = append(parts[:maxParts-1:maxParts-1], part{name: "blocks", contentType: "application/json", body: array(rest)})
	}
	for _, p := range parts {
		w, err := c.Attach(strings.ToValidUTF8(p.name, "\ufffd"), p.contentType, nil)
		if err != nil {
			return err
		}
		_, err = w.Write(p.body)
		if err = errors.Join(err, w.Close()); err != nil {
			return err
		}
	}
	return nil
}

// wraps reports whether structured content is an object around the text or the
// blocks of content, as servers write that declare a schema for everything. The
// content is better then: a text has its lines, and an image is no base64.
func wraps(structured, content json.RawMessage, texts []string) bool {
	var fields map[string]json.RawMessage
	if json.Unmarshal(structured, &fields) != nil || len(fields) != 1 {
		return false
	}
	for _, inner := range fields {
		if s, ok := text(inner); ok {
			return len(texts) == 1 && s == texts[0]
		}
		a, okA := parse(inner)
		b, okB := parse(content)
		list, isList := a.([]any)
		return okA && okB && isList && len(list) > 0 && equal(a, b)
	}
	return false
}

// sameContent reports whether texts say what structured content says: as JSON
// of the same value; or, as FastMCP has it, as JSON of what it has under its
// only key, "result", or of each item of that.
func sameContent(structured json.RawMessage, texts []string) bool {
	value, ok := parse(structured)
	if !ok {
		return false
	}
	if len(texts) == 1 && sameText(value, texts[0]) {
		return true
	}
	fields, ok := value.(map[string]any)
	if !ok || len(fields) != 1 {
		return false
	}
	inner, ok := fields["result"]
	if !ok {
		return false
	}
	if len(texts) == 1 && sameText(inner, texts[0]) {
		return true
	}
	items, ok := inner.([]any)
	if !ok || len(items) != len(texts) {
		return false
	}
	for i, item := range items {
		if s, ok := item.(string); !(ok && s == texts[i]) && !sameText(item, texts[i]) {
			return false
		}
	}
	return true
}

func sameText(value any, text string) bool {
	said, ok := parse([]byte(text))
	return ok && equal(value, said)
}

func parse(data []byte) (v any, ok bool) {
	if len(data) > maxCompared {
		return nil, false // what is the same is then told twice
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if dec.Decode(&v) != nil {
		return nil, false
	}
	_, err := dec.Token()
	return v, errors.Is(err, io.EOF)
}

// equal compares values of JSON.
func equal(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k, v := range a {
			if w, ok := b[k]; !ok || !equal(v, w) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equal)
	case json.Number:
		b, ok := b.(json.Number)
		if !ok || a == b {
			return ok
		}
		// 1 and 1.0 are the same; of more digits a float64 could tell too few.
		const digits = 15
		if len(a) > digits || len(b) > digits {
			return false
		}
		x, errX := a.Float64()
		y, errY := b.Float64()
		return errX == nil && errY == nil && x == y && !math.IsInf(x, 0)
	}
	return a == b
}
