package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/psych-go/psych-go/psych"
)

var update = flag.Bool("update", false, "rewrite testdata")

const odd = "quote \" back \\ slash / <b>&amp; nul \x00 esc \x1b[31m del \x7f tab\t nl\n cr\r ls\u2028 日本 ☃ 🂡 bad \xff\xc3( cut \xe2\x98"

func toolCall(id, name, args string) psych.Block {
	return psych.Block{Call: &psych.ToolCall{ID: id, Name: name, Arguments: json.RawMessage(args)}}
}

func toolResult(id, text string, failed bool, images ...*psych.Image) psych.Block {
	out := &psych.ToolOutput{CallID: id, Text: text, IsError: failed}
	for _, img := range images {
		out.Images = append(out.Images, *img)
	}
	return psych.Block{Result: out}
}

// picture is the start of an image of a type.
func picture(contentType string) *psych.Image {
	return &psych.Image{ContentType: contentType, Data: []byte(map[string]string{
		"image/png": "\x89PNG\r\n\x1a\n\x00\x00", "image/jpeg": "\xff\xd8\xff\xe0?>", "image/gif": "GIF89a<", "image/webp": "RIFF\x10\x00\x00\x00WEBPVP8 ",
	}[contentType])}
}

// builder encodes a request as psych does: each message once, chained.
type builder struct {
	t interface {
		Helper()
		Fatal(...any)
	}
	c   psych.Codec
	req psych.Request
}

func wireOf(b []byte, marker int) psych.Wire {
	return psych.Wire{Bytes: b, Chars: utf8.RuneCount(b), Marker: marker}
}

func (b *builder) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *builder) tools(defs ...psych.ToolDef) {
	raw, err := b.c.EncodeTools(defs)
	b.must(err)
	b.req.Tools = wireOf(raw, -1)
}

func (b *builder) system(dynamic string, static ...string) {
	z1, z2, err := b.c.EncodeSystem(static, dynamic)
	b.must(err)
	b.req.System = [2]psych.Wire{wireOf(z1, -1), wireOf(z2, -1)}
}

func (b *builder) say(role psych.Role, blocks ...psych.Block) {
	raw, marker, err := b.c.EncodeMessage(&psych.Message{Role: role, Blocks: blocks})
	b.must(err)
	b.req.History = append(b.req.History, wireOf(raw, marker))
}

func (b *builder) tail(text string) {
	raw, err := b.c.EncodeTail(text)
	b.must(err)
	b.req.Tail = wireOf(raw, -1)
}

// bodyOf joins the request and checks what holds of every body: it is JSON
// that holds nothing but text, and its size and characters are those stated.
func bodyOf(t interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}, m *Model, req *psych.Request) []byte {
	t.Helper()
	b := m.join(req)
	var out bytes.Buffer
	if _, err := out.ReadFrom(b.open()); err != nil {
		t.Fatal(err)
	}
	switch {
	case !json.Valid(out.Bytes()):
		t.Fatalf("not JSON: %s", out.Bytes())
	case int64(out.Len()) != b.size:
		t.Fatalf("%d bytes, stated %d", out.Len(), b.size)
	case utf8.RuneCount(out.Bytes()) != b.chars:
		t.Fatalf("%d characters, stated %d", utf8.RuneCount(out.Bytes()), b.chars)
	}
	return out.Bytes()
}

var goldenTools = []psych.ToolDef{
	{Name: "look", Description: odd, Schema: json.RawMessage(`{ "type":"object", "properties":{"x":{"const":1.0}}, "<":"\u003c" }`)},
	{Name: "any", Schema: json.RawMessage(`{"type":"object"}`)},
	{Name: "none"},
}

const tailText = "[Context from the system, not from the user]\nNow: 2026-11-29 22:23 UTC, Sunday"

// goldens are requests of every shape; the encoding is recorded in logs by its
// ID, so bytes that change need a new one.
func goldens(t *testing.T) map[string]struct {
	m   *Model
	req *psych.Request
} {
	half := 0.5
	all := map[string]struct {
		m   *Model
		req *psych.Request
	}{}
	add := func(name string, o *Options, build func(b *builder)) {
		m := New("gpt-5", o)
		b := &builder{t: t, c: m.Codec()}
		build(b)
		n := len(b.req.History)
		if n > 0 {
			b.req.Breaks = []int{n - 1}
		}
		if n > 2 {
			b.req.Breaks = []int{n - 3, n - 1}
		}
		all[name] = struct {
			m   *Model
			req *psych.Request
		}{m, &b.req}
	}
	conversation := func(b *builder) {
		b.tools(goldenTools...)
		b.system("You like tea.", "Be brief.", odd)
		b.say(psych.RoleUser, psych.Block{Text: "hi"})
		b.say(psych.RoleAssistant, psych.Block{Provider: json.RawMessage(`{"type":"openai.chat","message":{"reasoning_content":"I \u0061m","x":{ "y": [1.0] }},"calls":[null,{"extra_content":{"sig":"a=="},"function":{"strict":null}}]}`)},
			psych.Block{Text: "I look."}, toolCall("c1_1", "look", `{"b": 1.0, "a": [1e400, 9007199254740993, "é\n"]}`), toolCall("c1_2", "look", `{}`))
		b.say(psych.RoleTool, toolResult("c1_1", odd, false), toolResult("c1_2", "no such file", true))
	}
	add("conversation", nil, conversation)
	add("conversation-options", &Options{DropReasoning: true, CacheKey: "team \"a\"", LegacyMaxTokens: true}, func(b *builder) {
		conversation(b)
		b.req.Options = psych.ModelOptions{MaxOutputTokens: 1000, Temperature: &half, Effort: "low"}
		b.tail(tailText)
	})
	add("conversation-breakpoints", &Options{CacheBreakpoints: true}, func(b *builder) {
		conversation(b)
		b.req.Options = psych.ModelOptions{MaxOutputTokens: 1000}
		b.tail(tailText)
	})
	first := func(b *builder) {
		b.system("", "Be brief.")
		b.say(psych.RoleUser, psych.Block{Text: odd})
		b.tail(tailText)
	}
	add("first-turn", nil, first)
	add("first-turn-breakpoints", &Options{CacheBreakpoints: true}, first)
	bare := func(b *builder) {
		b.system("You like tea.")
		b.say(psych.RoleUser)
		b.say(psych.RoleAssistant)
		b.say(psych.RoleAssistant, psych.Block{Provider: json.RawMessage(`{"type":"thinking","signature":"x"}`)})
		b.say(psych.RoleTool)
		b.say(psych.RoleUser, psych.Block{Text: "one"}, psych.Block{}, psych.Block{Text: "two"})
		b.say(psych.RoleAssistant, psych.Block{Text: "a"}, psych.Block{Text: "b"})
		b.tail(tailText)
	}
	add("odd-messages", nil, bare)
	add("odd-messages-breakpoints", &Options{CacheBreakpoints: true}, bare)
	add("empty-result", &Options{CacheBreakpoints: true}, func(b *builder) {
		b.say(psych.RoleUser, psych.Block{Text: "go"})
		b.say(psych.RoleAssistant, toolCall("c1_1", "none", "not json"))
		b.say(psych.RoleTool, toolResult("c1_1", "", false))
		b.tail(tailText)
	})
	add("tail-alone", nil, func(b *builder) { b.tail(tailText) })

	pictures := func(b *builder) {
		b.say(psych.RoleUser, psych.Block{Text: "what is it?"}, psych.Block{Text: "[attachment \"a.png\", image/png, 70 bytes]"}, psych.Block{Image: picture("image/png")},
			psych.Block{Image: picture("image/tiff")})
		b.say(psych.RoleAssistant, toolCall("c1_1", "look", `{"x":1}`), toolCall("c1_2", "none", `{}`), toolCall("c1_3", "look", `{"x":3}`))
		b.say(psych.RoleTool, toolResult("c1_1", "two pictures", false, picture("image/png"), picture("image/gif")), toolResult("c1_2", "", true), toolResult("c1_3", "", false, picture("image/jpeg")))
	}
	add("images", &Options{Images: true}, func(b *builder) { pictures(b); b.tail(tailText) })
	add("images-then-user", &Options{Images: true}, func(b *builder) {
		pictures(b)
		b.say(psych.RoleUser, psych.Block{Text: "stop"})
		b.say(psych.RoleUser)
		b.say(psych.RoleUser, psych.Block{Text: "go on"}, psych.Block{Image: picture("image/webp")})
		b.tail(tailText)
	})
	add("images-breakpoints", &Options{Images: true, CacheBreakpoints: true}, func(b *builder) { pictures(b); b.tail(tailText) })
	add("images-not-taken", nil, pictures)

	items := func(b *builder) {
		b.tools(goldenTools...)
		b.system("You like tea.", "Be brief.", odd)
		b.say(psych.RoleUser, psych.Block{Text: "hi"})
		b.say(psych.RoleAssistant,
			psych.Block{Provider: json.RawMessage(`{"type":"openai.item","item":{"id":"rs_1", "type":"reasoning","summary":[],"encrypted_content":"gA\u0041=="}}`)},
			psych.Block{Provider: json.RawMessage(`{"type":"openai.with","with":{"phase":"commentary","id":"msg_1","content":[]}}`)}, psych.Block{Text: "I look."},
			psych.Block{Provider: json.RawMessage(`{"type":"openai.item","item":{"type":"web_search_call","id":"ws_1"}}`)},
			psych.Block{Provider: json.RawMessage(`{"type":"openai.with","with":{"namespace":"a","call_id":"x"}}`)},
			toolCall("c1_1", "look", `{"b": 1.0, "a": [1e400, 9007199254740993, "é\n"]}`), toolCall("c1_2", "look", "not json"),
			psych.Block{Provider: json.RawMessage(`{"type":"openai.item","item":{"type":"reasoning","id":"rs_2","summary":[],"encrypted_content":"cut"}}`)},
			psych.Block{Provider: json.RawMessage(`{"type":"openai.response","id":"resp_1"}`)})
		b.say(psych.RoleTool, toolResult("c1_1", odd, false), toolResult("c1_2", "no such file", true))
	}
	add("responses", &Options{Responses: true}, items)
	add("responses-options", &Options{Responses: true, DropReasoning: true, ReasoningSummary: "auto", CacheKey: "team \"a\"", LegacyMaxTokens: true}, func(b *builder) {
		items(b)
		b.req.Options = psych.ModelOptions{MaxOutputTokens: 1000, Temperature: &half, Effort: "low"}
		b.tail(tailText)
	})
	add("responses-breakpoints", &Options{Responses: true, CacheBreakpoints: true}, func(b *builder) { items(b); b.tail(tailText) })
	add("responses-images", &Options{Responses: true, Images: true}, func(b *builder) { pictures(b); b.tail(tailText) })
	add("responses-images-breakpoints", &Options{Responses: true, Images: true, CacheBreakpoints: true}, func(b *builder) {
		pictures(b)
		b.req.Options.Effort = "high"
	})
	add("responses-first-turn", &Options{Responses: true, ReasoningSummary: "detailed"}, first)
	add("responses-odd-messages", &Options{Responses: true}, bare)
	add("responses-tail-alone", &Options{Responses: true}, func(b *builder) { b.tail(tailText) })
	return all
}

func TestBodyGoldens(t *testing.T) {
	for name, g := range goldens(t) {
		t.Run(name, func(t *testing.T) {
			got := append(append([]byte(g.m.Codec().ID()+"\n"), bodyOf(t, g.m, g.req)...), '\n')
			path := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("the body is\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// messagesOf decodes the messages of a body.
func messagesOf(t interface {
	Helper()
	Fatal(...any)
}, body []byte) []map[string]any {
	t.Helper()
	var b struct {
		Messages []map[string]any `json:"messages"`
		Input    []map[string]any `json:"input"`
	}
	if err := json.Unmarshal(body, &b); err != nil {
		t.Fatal(err)
	}
	return append(b.Messages, b.Input...)
}

// The trailing message is never a message of its own behind a user's, a
// tool's or an output, and without it the body is the same but for its text.
func TestTailJoins(t *testing.T) {
	for _, o := range []Options{{}, {CacheBreakpoints: true}, {Images: true}, {Responses: true}, {Responses: true, CacheBreakpoints: true}, {Responses: true, Images: true}} {
		for _, last := range []string{"user", "tool", "images", "assistant"} {
			m := New("m", &o)
			b := &builder{t: t, c: m.Codec()}
			b.say(psych.RoleUser, psych.Block{Text: "hi"})
			switch last {
			case "tool", "images":
				b.say(psych.RoleAssistant, toolCall("1", "f", "{}"))
				r := toolResult("1", "done", false)
				if last == "images" {
					r = toolResult("1", "done", false, picture("image/png"))
				}
				b.say(psych.RoleTool, r)
			case "assistant":
				b.say(psych.RoleAssistant, psych.Block{Text: "hello"})
			}
			without := bodyOf(t, m, &b.req)
			b.tail(tailText)
			with := bodyOf(t, m, &b.req)

			want := len(messagesOf(t, without))
			if last == "assistant" {
				want++
			}
			msgs := messagesOf(t, with)
			if len(msgs) != want {
				t.Errorf("%+v, after %s: %d messages, want %d", o, last, len(msgs), want)
			}
			end := msgs[len(msgs)-1]
			if text, _ := json.Marshal([]any{end["content"], end["output"]}); !bytes.Contains(text, []byte("Now: 2026")) {
				t.Errorf("%+v, after %s: the last message is %s", o, last, text)
			}
			if last == "assistant" && end["role"] != "user" {
				t.Errorf("after the assistant the tail is of role %v", end["role"])
			}
			if !bytes.HasPrefix(with, without[:len(without)-len(`"}]}`)]) {
				t.Errorf("%+v, after %s: the tail changes what is before it:\n%s\n%s", o, last, without, with)
			}
		}
	}
}

// Images of results are shown once, by call, behind all results of the batch,
// and the tool messages of Chat Completions hold text alone.
func TestImagesOfResults(t *testing.T) {
	for _, api := range []bool{false, true} {
		m := New("m", &Options{Images: true, Responses: api})
		b := &builder{t: t, c: m.Codec()}
		b.say(psych.RoleUser, psych.Block{Text: "hi"})
		b.say(psych.RoleAssistant, toolCall("a", "f", "{}"), toolCall("b", "f", "{}"))
		big := picture("image/png")
		big.Data = append(big.Data, make([]byte, imageBytes)...)
		lying := picture("image/png")
		lying.ContentType = "image/gif"
		b.say(psych.RoleTool, toolResult("a", "1", false, picture("image/gif"), big), toolResult("b", "2", false, lying, picture("image/webp")))
		got := bodyOf(t, m, &b.req)
		for _, kind := range []string{"image/gif", "image/webp"} {
			if n := bytes.Count(got, []byte("data:"+kind+";base64,")); n != 1 {
				t.Errorf("responses %v: %d images of type %s, want 1", api, n, kind)
			}
		}
		if bytes.Contains(got, []byte("image/png")) {
			t.Errorf("responses %v: an image that is too large is sent", api)
		}
		msgs := messagesOf(t, got)
		if api {
			if len(msgs) != 5 {
				t.Errorf("%d items, want 5", len(msgs))
			}
			continue
		}
		var roles []string
		for _, msg := range msgs {
			roles = append(roles, msg["role"].(string))
			if msg["role"] == "tool" {
				if _, ok := msg["content"].(string); !ok {
					t.Errorf("a tool message holds %v", msg["content"])
				}
			}
		}
		if got := strings.Join(roles, " "); got != "user assistant tool tool user" {
			t.Errorf("the roles are %s", got)
		}
	}
	c := New("m", nil).Codec()
	if l := c.Limits(); len(l.Images) > 0 || l.ImageBytes > 0 {
		t.Errorf("without Images the limits are %+v", l)
	}
	own := &psych.ModelLimits{Images: []string{"image/png"}}
	if l := New("m", &Options{Images: true, Limits: own}).Codec().Limits(); len(l.Images) != 1 || l.ImageBytes != imageBytes || own.ImageBytes != 0 {
		t.Errorf("with limits of its own they are %+v", l)
	}
}

func TestBreakpoints(t *testing.T) {
	m := New("m", &Options{CacheBreakpoints: true})
	b := &builder{t: t, c: m.Codec()}
	b.system("memory", "instructions")
	for range 5 {
		b.say(psych.RoleUser, psych.Block{Text: "hi"})
		b.say(psych.RoleAssistant, psych.Block{Text: "hello"})
	}
	b.tail(tailText)
	// The second break is at an answer, which has nowhere to put a marker.
	b.req.Breaks = []int{2, 9}
	got := bodyOf(t, m, &b.req)
	if n := bytes.Count(got, breakpoint); n != 4 {
		t.Fatalf("%d breakpoints, want 4: %s", n, got)
	}
	for i, msg := range messagesOf(t, got) {
		content, _ := json.Marshal(msg["content"])
		marked := bytes.Contains(content, []byte("prompt_cache_breakpoint"))
		if want := i == 0 || i == 3 || i == 9; marked != want { // the system message is the first
			t.Errorf("message %d is marked: %v, want %v", i, marked, want)
		}
		if bytes.Contains(content, []byte("Now: 2026")) && marked {
			t.Error("the trailing message is marked")
		}
	}
	b.req.Breaks = []int{1, 1, 1, 1}
	if n := bytes.Count(bodyOf(t, m, &b.req), breakpoint); n != 3 {
		t.Errorf("one place is marked %d times, want 1", n-2)
	}
}

func TestUnknownFieldsRoundTrip(t *testing.T) {
	a := newAssembler(nil)
	for _, c := range []string{
		`{"choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"I \u0061","annotations":[{"u":1.50}]}}]}`,
		`{"choices":[{"index":0,"delta":{"reasoning_content":"m \ud83c","flag":true}}]}`,
		`{"choices":[{"index":0,"delta":{"reasoning_content":"\udca1","annotations":[{"u":2}],"meta":{"a":{"b":"x"}}}}]}`,
		`{"choices":[{"index":0,"delta":{"meta":{"a":{"b":"y","id":"1"}},"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]}}]}`,
		`{"choices":[{"index":0,"delta":{"meta":{"a":{"id":"1"}},"tool_calls":[{"index":1,"id":"b","extra_content":{"google":{"thought_signature":"Cg=="}},"function":{"name":"g","arguments":"{\"x\":1}","strict":false}}]}}]}`,
		`{"choices":[{"index":0,"delta":{"reasoning_details":[{"type":"reasoning.text","index":0,"text":"ab"}]}}]}`,
		`{"choices":[{"index":0,"delta":{"reasoning_details":[{"type":"reasoning.text","index":0,"text":"cd"},{"type":"reasoning.encrypted","index":0,"data":"Z"}]}}]}`,
		`{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`,
	} {
		if sent, err := a.add([]byte(c)); sent != nil || err != nil {
			t.Fatalf("%s: %s, %v", c, sent, err)
		}
	}
	r := a.response()
	const wantKept = `{"type":"openai.chat","message":{"reasoning_content":"I \u0061m \ud83c\udca1","annotations":[{"u":1.50},{"u":2}],"flag":true,"meta":{"a":{"b":"xy","id":"1"}},` +
		`"reasoning_details":[{"type":"reasoning.text","index":0,"text":"abcd"},{"type":"reasoning.encrypted","index":0,"data":"Z"}]},` +
		`"calls":[null,{"function":{"strict":false},"extra_content":{"google":{"thought_signature":"Cg=="}}}]}`
	if got := string(r.Blocks[0].Provider); got != wantKept {
		t.Fatalf("kept\n%s\nwant\n%s", got, wantKept)
	}
	for i := range r.Blocks {
		if c := r.Blocks[i].Call; c != nil {
			c.ID = c.ProviderID
			if len(c.Arguments) == 0 {
				c.Arguments = json.RawMessage("{}")
			}
		}
	}
	got, _, err := New("m", nil).Codec().EncodeMessage(&psych.Message{Role: psych.RoleAssistant, Blocks: r.Blocks})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},` +
		`{"id":"b","type":"function","function":{"name":"g","arguments":"{\"x\":1}","strict":false},"extra_content":{"google":{"thought_signature":"Cg=="}}}],` +
		`"reasoning_content":"I \u0061m \ud83c\udca1","annotations":[{"u":1.50},{"u":2}],"flag":true,"meta":{"a":{"b":"xy","id":"1"}},` +
		`"reasoning_details":[{"type":"reasoning.text","index":0,"text":"abcd"},{"type":"reasoning.encrypted","index":0,"data":"Z"}]}`
	if string(got) != want {
		t.Errorf("sent back\n%s\nwant\n%s", got, want)
	}
	got, _, err = New("m", &Options{DropReasoning: true}).Codec().EncodeMessage(&psych.Message{Role: psych.RoleAssistant, Blocks: r.Blocks})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(got, []byte("reasoning")) || !bytes.Contains(got, []byte("annotations")) {
		t.Errorf("without reasoning: %s", got)
	}
}

// What a strict parser refuses must not stand in each later request.
func TestKeptFieldsNeverPoison(t *testing.T) {
	deep := strings.Repeat("[", 101) + strings.Repeat("]", 101)
	block := `{"type":"openai.chat","message":{"pair":"\ud83c\udca1","half":"a\ud83c \\ud83c\udca1","bytes":"x` + "\xff" + `","deep":` + deep + `,"end":[1]}}`
	got, _, err := New("m", nil).Codec().EncodeMessage(&psych.Message{Role: psych.RoleAssistant, Blocks: []psych.Block{{Text: "hi"}, {Provider: json.RawMessage(block)}}})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"role":"assistant","content":"hi","pair":"\ud83c\udca1","half":"a\ufffd \\ud83c\ufffd","bytes":"x` + "\uFFFD" + `","end":[1]}`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestEncodeRefuses(t *testing.T) {
	c := New("m", nil).Codec()
	both := func(m *psych.Message) (err error) {
		for _, c := range []psych.Codec{c, New("m", &Options{Responses: true}).Codec()} {
			if _, _, err = c.EncodeMessage(m); err == nil {
				return nil
			}
		}
		return err
	}
	for name, m := range map[string]*psych.Message{
		"role":      {Role: "system"},
		"user":      {Role: psych.RoleUser, Blocks: []psych.Block{toolCall("1", "f", "{}")}},
		"assistant": {Role: psych.RoleAssistant, Blocks: []psych.Block{toolResult("1", "x", false)}},
		"tool":      {Role: psych.RoleTool, Blocks: []psych.Block{{Text: "x"}}},
	} {
		if err := both(m); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	for _, schema := range []string{"[]", "{", "null", "7"} {
		if _, err := c.EncodeTools([]psych.ToolDef{{Name: "x", Schema: json.RawMessage(schema)}}); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("schema %s: %v, want ErrInvalid", schema, err)
		}
	}
}

// OpenAI is sent breakpoints for the models that its documentation names, and a
// key for each Run; other servers and models only what they are said to take.
func TestWhoIsSentBreakpoints(t *testing.T) {
	const own = "https://api.openai.com/v1"
	for _, c := range []struct {
		name, base string
		o          Options
		marked     bool
		keyed      bool // in Chat Completions, too
	}{
		{"gpt-5.6", "", Options{}, true, true},
		{"gpt-5.6-sol", own, Options{}, true, true},
		{"gpt-5.6-terra-2026-07-01", "https://eu.API.openai.com/v1", Options{}, true, true},
		{"gpt-5.10", own, Options{}, true, true},
		{"gpt-6-astra", own, Options{}, true, true},
		{"gpt-6.1-sol", own, Options{}, true, true},
		{"gpt-5.5", own, Options{}, false, true},
		{"gpt-5", own, Options{}, false, true},
		{"gpt-4.1", own, Options{}, false, true},
		{"gpt-4o", own, Options{}, false, true},
		{"gpt-56x", own, Options{}, false, true},
		{"gpt-oss-120b", own, Options{}, false, true},
		{"ft:gpt-5.6:org::id", own, Options{}, false, true},
		{"my-gpt-5.6", own, Options{}, false, true},
		{"gpt-5.6", own, Options{NoCacheBreakpoints: true}, false, true},
		{"gpt-5.6", own, Options{CacheBreakpoints: true, NoCacheBreakpoints: true}, false, true},
		{"gpt-4.1", own, Options{CacheBreakpoints: true}, true, true},
		{"gpt-5.6", "http://api.openai.com/v1", Options{}, false, false},
		{"gpt-5.6", "https://api.openai.com.example/v1", Options{}, false, false},
		{"gpt-5.6", "https://gateway.example/v1", Options{}, false, false},
		{"gpt-5.6", "https://gateway.example/v1", Options{CacheBreakpoints: true}, true, false},
	} {
		for _, api := range []bool{false, true} {
			o := c.o
			o.BaseURL, o.Responses = c.base, api
			m := New(c.name, &o)
			b := &builder{t: t, c: m.Codec()}
			b.system("memory", "instructions")
			b.say(psych.RoleUser, psych.Block{Text: "hi"})
			b.tail(tailText)
			b.req.Breaks, b.req.CacheKey = []int{0}, "0123"
			got := bodyOf(t, m, &b.req)
			markers := map[bool]int{true: 3, false: 0}[c.marked]
			if n := bytes.Count(got, breakpoint); n != markers || bytes.Contains(got, []byte(`"prompt_cache_options":{"mode":"explicit"}`)) != c.marked {
				t.Errorf("%s at %s: %d breakpoints, want %d: %s", c.name, c.base, n, markers, got)
			}
			if keyed := bytes.Contains(got, []byte(`"prompt_cache_key":"0123"`)); keyed != (c.keyed || api) {
				t.Errorf("%s at %s: a key is sent: %v", c.name, c.base, keyed)
			}
			if plain := New(c.name, &Options{BaseURL: "http://x", Responses: api, CacheBreakpoints: c.marked}); plain.Codec().ID() != m.Codec().ID() {
				t.Errorf("%s at %s: the encoding is %s, want %s", c.name, c.base, m.Codec().ID(), plain.Codec().ID())
			}
		}
	}
}

// How long a cache is kept is said by the option that has the value.
func TestCacheTTL(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{CacheTTL: "30m"}, `,"prompt_cache_options":{"ttl":"30m"}`},
		{Options{CacheTTL: "12h", CacheBreakpoints: true}, `,"prompt_cache_options":{"mode":"explicit","ttl":"12h"}`},
		{Options{CacheTTL: "24h"}, `,"prompt_cache_retention":"24h"`},
		{Options{CacheTTL: "in_memory", Responses: true}, `,"prompt_cache_retention":"in_memory"`},
	} {
		m := New("m", &c.o)
		got := string(bodyOf(t, m, aRequest(t, m)))
		if !strings.Contains(got, c.want) || strings.Count(got, "prompt_cache_options")+strings.Count(got, "prompt_cache_retention") != 1 {
			t.Errorf("%+v: %s", c.o, got)
		}
		kept := map[string]time.Duration{"30m": 30 * time.Minute, "12h": 12 * time.Hour, "24h": 24 * time.Hour}[c.o.CacheTTL]
		if got, plain := m.KeepsCache(), New("gpt-5.6", nil).KeepsCache(); got != kept || plain != 30*time.Minute {
			t.Errorf("%+v: kept for %v, want %v; %v by itself, want 30m", c.o, got, kept, plain)
		}
		if a, b := m.Codec().ID(), New("m", &Options{Responses: c.o.Responses, CacheBreakpoints: c.o.CacheBreakpoints}).Codec().ID(); a != b {
			t.Errorf("%+v: the encoding is %s, want %s", c.o, a, b)
		}
	}
	_, err := generate(t, New("m", &Options{CacheTTL: "1h"}), nil)
	if e := modelError(t, err, false); !errors.Is(e, psych.ErrInvalid) || !strings.Contains(e.Message, "12h") {
		t.Errorf("%v", e)
	}
}

// The encodings of the options are different ones, so that a history is never
// reused under another.
func TestCodecIDs(t *testing.T) {
	seen := map[string]bool{}
	png := &psych.ModelLimits{Images: []string{"image/png"}}
	for _, o := range []*Options{nil, {CacheBreakpoints: true}, {DropReasoning: true}, {CacheBreakpoints: true, DropReasoning: true}, {Responses: true},
		{Responses: true, DropReasoning: true}, {Images: true}, {Images: true, Responses: true}, {Images: true, Limits: png}, {Limits: png}} {
		id := New("m", o).Codec().ID()
		if seen[id] {
			t.Errorf("%s stands for two encodings", id)
		}
		seen[id] = true
	}
	if a, b := New("m", nil).Codec().ID(), New("n", &Options{CacheKey: "k", LegacyMaxTokens: true, ReasoningSummary: "auto"}).Codec().ID(); a != b {
		t.Errorf("%s and %s encode alike", a, b)
	}
}

// drawText is any text, what JSON must escape and what is no UTF-8 too.
func drawText(t *rapid.T, label string) string {
	if rapid.IntRange(0, 3).Draw(t, label+" kind") == 0 {
		return rapid.SampledFrom([]string{"", odd, `"}`, `]}`, `:"`, `\`, `,"role":"user"`}).Draw(t, label)
	}
	return rapid.String().Draw(t, label)
}

func drawImage(t *rapid.T) *psych.Image {
	return picture(rapid.SampledFrom([]string{"image/png", "image/gif", "image/tiff"}).Draw(t, "image"))
}

// drawTurn says one more message, or two of a turn with calls.
func drawTurn(t *rapid.T, b *builder) {
	switch rapid.IntRange(0, 2).Draw(t, "what") {
	case 0:
		said := []psych.Block{{Text: drawText(t, "user")}}
		if rapid.Bool().Draw(t, "attaches") {
			said = append(said, psych.Block{Image: drawImage(t)})
		}
		b.say(psych.RoleUser, said...)
	case 1:
		b.say(psych.RoleAssistant, psych.Block{Text: drawText(t, "answer")})
	default:
		n := rapid.IntRange(1, 4).Draw(t, "calls")
		said, results := []psych.Block{{Text: drawText(t, "said")}}, []psych.Block{}
		if rapid.Bool().Draw(t, "reasons") {
			thought := string(appendString(nil, drawText(t, "reasoning")))
			said = append(said, psych.Block{Provider: json.RawMessage(`{"type":"openai.chat","message":{"reasoning":` + thought + `}}`)},
				psych.Block{Provider: json.RawMessage(`{"type":"openai.item","item":{"type":"reasoning","encrypted_content":` + thought + `}}`)})
		}
		for range n {
			id := drawText(t, "id")
			said = append(said, toolCall(id, "f", `{"x":`+string(appendString(nil, drawText(t, "argument")))+`}`))
			result := toolResult(id, drawText(t, "result"), rapid.Bool().Draw(t, "failed"))
			if rapid.Bool().Draw(t, "shows") {
				result.Result.Images = []psych.Image{*drawImage(t)}
			}
			results = append(results, result)
		}
		b.say(psych.RoleAssistant, said...)
		b.say(psych.RoleTool, results...)
	}
}

// Each request's zones 1 to 3 are a prefix of the next request's body,
// breakpoints, a tail and the end of a user's message aside, and a change of
// zone 2 leaves zone 1. No two messages of users stand in a row.
func TestPrefixProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := &Options{CacheBreakpoints: rapid.Bool().Draw(t, "parts"), DropReasoning: rapid.Bool().Draw(t, "drop"), Responses: rapid.Bool().Draw(t, "responses"), Images: rapid.Bool().Draw(t, "images")}
		m := New("m", o)
		b := &builder{t: t, c: m.Codec()}
		b.tools(goldenTools...)
		static := []string{drawText(t, "static"), drawText(t, "static 2")}
		b.system(drawText(t, "memory"), static...)
		var before []byte
		for range rapid.IntRange(1, 8).Draw(t, "turns") {
			drawTurn(t, b)
			b.req.Breaks = []int{len(b.req.History) - 1}
			b.req.Tail = psych.Wire{}
			plain := bytes.ReplaceAll(bodyOf(t, m, &b.req), breakpoint, nil)
			prefix := plain[:len(plain)-len(endOfBody)]
			user := false
			for _, msg := range messagesOf(t, plain) {
				now := msg["role"] == "user"
				if now && user {
					t.Fatalf("two messages of users in a row: %s", plain)
				}
				user = now
			}
			if user {
				prefix = prefix[:len(prefix)-len(`""}`)] // it may go on there
			}
			if !bytes.HasPrefix(plain, before) {
				t.Fatalf("the body\n%s\nhas no prefix\n%s", plain, before)
			}
			before = prefix

			b.tail("news")
			tailed := bytes.ReplaceAll(bodyOf(t, m, &b.req), breakpoint, nil)
			if !bytes.HasPrefix(tailed, prefix[:len(prefix)-min(len(prefix), len(`"}]}`))]) {
				t.Fatalf("with a tail\n%s\nthe prefix is not\n%s", tailed, prefix)
			}
		}
		if z1 := b.req.System[0].Bytes; len(z1) > 0 {
			b.system(drawText(t, "other memory"), static...)
			after := bytes.ReplaceAll(bodyOf(t, m, &b.req), breakpoint, nil)
			if end := bytes.Index(before, z1) + len(z1); !bytes.HasPrefix(after, before[:end]) {
				t.Fatalf("another memory changes zone 1:\n%s\n%s", before, after)
			}
		}
	})
}

func FuzzEncode(f *testing.F) {
	f.Add(odd, `{"a":1}`, `{"type":"openai.chat","message":{"reasoning":"x"},"calls":[{"y":1}]}`, true)
	f.Add("a", `{"a":1}`, `{"type":"openai.item","item":{"type":"reasoning","encrypted_content":"\ud83c"}}`, true)
	f.Add("a", `{}`, `{"type":"openai.item","item":{"role":"user","content":[],"type":"reasoning","encrypted_content":"x"}}`, false)
	f.Add("a", `{}`, `{"type":"openai.with","with":{"role":"user","name":"x","type":"x","phase":null,"é":1}}`, false)
	f.Add("", "", `{"type":"openai.chat","message":{"role":"user","content":1,"tool_calls":[],"a":1,"a":2},"calls":[{"id":1,"type":2,"function":{"name":3}}]}`, false)
	f.Add(`"}`, "[", `{"type":"openai.chat","message":[],"calls":{}}`, true)
	f.Add(`]}`, "\x00", "\xff", false)
	f.Fuzz(func(t *testing.T, text, args, provider string, parts bool) {
		for _, api := range []bool{false, true} {
			m := New(text+"m", &Options{CacheBreakpoints: parts, CacheKey: text, Responses: api, Images: len(text)%2 == 0})
			img := &psych.Image{ContentType: text, Data: []byte(args)}
			build := func() []byte {
				b := &builder{t: t, c: m.Codec()}
				b.tools(psych.ToolDef{Name: text, Description: text})
				b.system(text, text, args)
				b.say(psych.RoleUser, psych.Block{Text: text}, psych.Block{Text: args}, psych.Block{Image: img})
				b.say(psych.RoleAssistant, psych.Block{Provider: json.RawMessage(provider)}, psych.Block{Text: text}, toolCall(text, args, args))
				b.say(psych.RoleTool, toolResult(text, args, parts, img))
				b.tail(text)
				b.req.Options.Effort = args
				b.req.Breaks = []int{0, 2}
				return bodyOf(t, m, &b.req)
			}
			got := build()
			if !bytes.Equal(got, build()) {
				t.Fatal("encoded twice, it differs")
			}
			msgs := messagesOf(t, got)
			answer := msgs[len(msgs)-2]
			if !api && answer["role"] != "assistant" || api && answer["type"] != "function_call" {
				t.Fatalf("a provider block changed the answer to %v", answer)
			}
			if api && msgs[len(msgs)-1]["type"] != "function_call_output" {
				t.Fatalf("the last item is %v", msgs[len(msgs)-1])
			}
			if strings.Count(string(got), string(breakpoint)) > 4 {
				t.Fatal("over 4 breakpoints")
			}
		}
	})
}

// BenchmarkEncode encodes a turn: an answer with calls, and their results.
func BenchmarkEncode(b *testing.B) {
	c := New("m", nil).Codec()
	text := strings.Repeat("line of a result, 日本\n", 1000)
	said := &psych.Message{Role: psych.RoleAssistant, Blocks: []psych.Block{{Text: "I look."}, toolCall("c1_1", "look", `{"path":"a"}`), toolCall("c1_2", "look", `{"path":"b"}`)}}
	results := &psych.Message{Role: psych.RoleTool, Blocks: []psych.Block{toolResult("c1_1", text, false), toolResult("c1_2", text, false)}}
	b.SetBytes(int64(2 * len(text)))
	b.ReportAllocs()
	for b.Loop() {
		for _, m := range []*psych.Message{said, results} {
			if _, _, err := c.EncodeMessage(m); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// Encoding a message costs an allocation or two, however long it is; joining a
// body copies none of it.
func TestAllocations(t *testing.T) {
	c := New("m", nil).Codec()
	results := &psych.Message{Role: psych.RoleTool, Blocks: []psych.Block{toolResult("1", strings.Repeat("line\n", 100_000), false)}}
	if n := testing.AllocsPerRun(10, func() { _, _, _ = c.EncodeMessage(results) }); n > 4 {
		t.Errorf("encoding a result allocates %v times", n)
	}
	m := New("m", nil)
	b := &builder{t: t, c: m.Codec()}
	for range 2000 {
		b.say(psych.RoleUser, psych.Block{Text: strings.Repeat("x", 1000)})
	}
	if n := testing.AllocsPerRun(10, func() { m.join(&b.req) }); n > 4 {
		t.Errorf("joining 2,000 messages allocates %v times", n)
	}
}
