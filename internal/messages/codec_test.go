package messages

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/psych-go/psych-go/internal/messages/messagestest"
	"github.com/psych-go/psych-go/psych"
)

var update = flag.Bool("update", false, "rewrite testdata")

const odd = "quote \" back \\ slash / <b>&amp; nul \x00 esc \x1b[31m del \x7f tab\t nl\n cr\r ls\u2028 日本 ☃ 🂡 bad \xff\xc3( cut \xe2\x98"

var png = append([]byte("\x89PNG\r\n\x1a\n"), "not much of a picture"...)

func toolCall(id, name, args string) psych.Block {
	return psych.Block{Call: &psych.ToolCall{ID: id, Name: name, Arguments: json.RawMessage(args)}}
}

func toolResult(id, text string, failed bool, images ...psych.Image) psych.Block {
	return psych.Block{Result: &psych.ToolOutput{CallID: id, Text: text, IsError: failed, Images: images}}
}

func reasoning(raw string) psych.Block { return psych.Block{Provider: json.RawMessage(raw)} }

type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// builder encodes a request as psych does: each message once.
type builder struct {
	t   tester
	f   *Format
	req psych.Request
}

func newBuilder(t tester, o Options) *builder {
	t.Helper()
	if o.Model == "" {
		o.Model = "claude-opus-5"
	}
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return &builder{t: t, f: f}
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
	raw, err := b.f.Codec().EncodeTools(defs)
	b.must(err)
	b.req.Tools = wireOf(raw, -1)
}

func (b *builder) system(dynamic string, static ...string) {
	z1, z2, err := b.f.Codec().EncodeSystem(static, dynamic)
	b.must(err)
	b.req.System = [2]psych.Wire{wireOf(z1, -1), wireOf(z2, -1)}
}

func (b *builder) say(role psych.Role, blocks ...psych.Block) {
	raw, marker, err := b.f.Codec().EncodeMessage(&psych.Message{Role: role, Blocks: blocks})
	b.must(err)
	b.req.History = append(b.req.History, wireOf(raw, marker))
}

func (b *builder) tail(text string) {
	raw, err := b.f.Codec().EncodeTail(text)
	b.must(err)
	b.req.Tail = wireOf(raw, -1)
}

// keep leaves the trailing message in its place.
func (b *builder) keep() {
	b.req.History = append(b.req.History, b.req.Tail)
	b.req.Tail = psych.Wire{}
}

// body lays the request out and checks what holds of every body: it is JSON
// that holds nothing but text, and its size and characters are those stated.
func (b *builder) body() []byte {
	b.t.Helper()
	body, err := b.f.Body([]byte(`"model":"m","stream":true`), &b.req)
	b.must(err)
	out, err := io.ReadAll(body.Reader())
	b.must(err)
	switch {
	case !json.Valid(out):
		b.t.Fatalf("not JSON: %s", out)
	case int64(len(out)) != body.Size:
		b.t.Fatalf("%d bytes, stated %d", len(out), body.Size)
	case utf8.RuneCount(out) != body.Chars:
		b.t.Fatalf("%d characters, stated %d", utf8.RuneCount(out), body.Chars)
	}
	return out
}

// checked is the body as the provider reads it, which must find nothing wrong.
func (b *builder) checked() *messagestest.Request {
	b.t.Helper()
	body := b.body()
	r, err := messagestest.Check(body)
	if err != nil {
		b.t.Fatalf("%v\n%s", err, body)
	}
	return r
}

var goldenTools = []psych.ToolDef{
	{Name: "look", Description: odd, Schema: json.RawMessage(`{ "type":"object", "properties":{"x":{"const":1.0}}, "<":"\u003c" }`)},
	{Name: "any", Schema: json.RawMessage(`{"properties":{}}`)},
	{Name: "none"},
}

const tailText = "[Context from the system, not from the user]\nNow: 2026-11-29 22:23 UTC, Sunday"

// goldens are requests of every shape; the encoding is recorded in logs by its
// ID, so bytes that change need a new one.
func goldens(t *testing.T) map[string]*builder {
	half := 0.5
	all := map[string]*builder{}
	add := func(name string, o Options, build func(b *builder)) {
		b := newBuilder(t, o)
		build(b)
		if n := len(b.req.History); n > 2 {
			b.req.Breaks = []int{n - 3, n - 1}
		} else if n > 0 {
			b.req.Breaks = []int{n - 1}
		}
		all[name] = b
	}
	conversation := func(b *builder) {
		b.tools(goldenTools...)
		b.system("You like tea.", "Be brief.", odd)
		b.say(psych.RoleUser, psych.Block{Text: "hi"}, psych.Block{Image: &psych.Image{ContentType: "image/png", Data: png}})
		b.say(psych.RoleAssistant, reasoning(`{"type":"thinking","thinking":"I \u0061m \ud83c\udca1","signature":"a=="}`), reasoning(`{ "type":"redacted_thinking", "data":"b==" }`),
			psych.Block{Text: "I look."}, toolCall("c1_1", "look", `{"b": 1.0, "a": [1e400, 9007199254740993, "é\n"]}`), toolCall("c1_2", "look", `{}`),
			reasoning(`{"type":"anthropic.response","id":"msg_1"}`))
		b.say(psych.RoleTool, toolResult("c1_1", odd, false, psych.Image{ContentType: "application/pdf", Data: []byte("%PDF-1.7")}), toolResult("c1_2", "no such file", true))
		b.say(psych.RoleUser, psych.Block{Text: "quick!"})
	}
	add("conversation", Options{}, conversation)
	add("conversation-options", Options{CacheTTL: "5m", SystemCacheTTL: "1h"}, func(b *builder) {
		conversation(b)
		b.req.Options = psych.ModelOptions{MaxOutputTokens: 1000, Temperature: &half, Effort: "low"}
		b.tail(tailText)
	})
	add("conversation-bound", Options{Model: "claude-opus-5-5"}, func(b *builder) {
		conversation(b)
		b.tail(tailText)
		b.keep()
		b.say(psych.RoleAssistant, reasoning(`{"type":"thinking","thinking":"","signature":"c=="}`), psych.Block{Text: "done"})
		b.say(psych.RoleUser, psych.Block{Text: "thanks"})
		b.tail("later")
	})
	add("conversation-manual", Options{Model: "claude-haiku-4-5", CacheTTL: "none"}, func(b *builder) {
		conversation(b)
		b.req.Options.Effort = "high"
		b.tail(tailText)
	})
	add("first-turn", Options{}, func(b *builder) {
		b.system("", "Be brief.")
		b.say(psych.RoleUser, psych.Block{Text: odd})
		b.tail(tailText)
	})
	add("odd-messages", Options{}, func(b *builder) {
		b.tools(goldenTools[1])
		b.system("You like tea.", " \n", "")
		b.say(psych.RoleUser)
		b.say(psych.RoleAssistant)
		b.say(psych.RoleAssistant, reasoning(`{"type":"openai.chat","message":{"x":1}}`), reasoning(`{"type":"thinking","thinking":"alone","signature":"x"}`))
		b.say(psych.RoleTool)
		b.say(psych.RoleUser, psych.Block{Text: "one"}, psych.Block{}, psych.Block{Text: " "}, psych.Block{Text: "two"})
		b.say(psych.RoleAssistant, psych.Block{Text: "a"}, psych.Block{Text: "b"}, reasoning(`{"type":"thinking","thinking":"last","signature":"x"}`))
		b.say(psych.RoleAssistant, reasoning(`{"type":"anthropic.block","block":{"type":"novel","x":[1.0]}}`))
		b.tail(tailText)
	})
	add("odd-results", Options{}, func(b *builder) {
		b.say(psych.RoleUser, psych.Block{Text: "go"})
		b.say(psych.RoleAssistant, reasoning(`{"type":"anthropic.call","fields":{"caller":{"type":"code","id":"x"},"id":"no"}}`), toolCall("c1_1", "none", "not json"), toolCall("c1_2", "none", "[]"), toolCall("c1_3", "none", "{}"), toolCall("c1_4", "none", "{}"))
		b.say(psych.RoleTool, toolResult("c1_1", "", false), toolResult("c1_2", " ", true, psych.Image{ContentType: "image/png", Data: png}),
			toolResult("c1_3", "", false, psych.Image{ContentType: "image/png", Data: png}, psych.Image{ContentType: "image/jpeg", Data: []byte("no jpeg")}), toolResult("c1_4", "\n", false))
		b.tail(tailText)
	})
	add("tail-alone", Options{}, func(b *builder) { b.tail(tailText) })
	return all
}

func TestBodyGoldens(t *testing.T) {
	for name, b := range goldens(t) {
		t.Run(name, func(t *testing.T) {
			b.t = t
			b.checked()
			got := append(append([]byte(b.f.Codec().ID()+"\n"), b.body()...), '\n')
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

// Encodings whose bytes differ have different ids: a Run that changes its model
// between two exchanges is then encoded anew.
func TestCodecIDs(t *testing.T) {
	few := DefaultLimits()
	few.Images = few.Images[:1]
	small := DefaultLimits()
	small.ImageBytes = 1000
	context := DefaultLimits()
	context.ContextTokens = 9000
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Model: "claude-haiku-4-5"}, codecID},
		{Options{Model: "claude-opus-5", CacheTTL: TTL1h, Thinking: "2000", MaxTokens: 9, Limits: &context}, codecID},
		{Options{Model: "claude-opus-5-5"}, codecID},
		{Options{Model: "novel", FreeBlocks: true}, codecID},
		{Options{Model: "claude-opus-5", Limits: &psych.ModelLimits{}}, codecID + "+images=:0"},
		{Options{Model: "claude-opus-5", Limits: &few}, codecID + "+images=image/png:3932160"},
		{Options{Model: "claude-opus-5-5", Limits: &small}, codecID + "+images=image/png,image/jpeg,image/gif,image/webp,application/pdf:1000"},
	} {
		f, err := New(c.o)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Codec().ID(); got != c.want {
			t.Errorf("%+v: %s, want %s", c.o, got, c.want)
		}
	}
}

// The trailing message is the last block of the last user's message, behind
// results, and without it the body is the same but for that block.
func TestTailJoins(t *testing.T) {
	for _, last := range []psych.Role{"", psych.RoleUser, psych.RoleTool, psych.RoleAssistant} {
		b := newBuilder(t, Options{})
		if last != "" {
			b.say(psych.RoleUser, psych.Block{Text: "hi"})
		}
		switch last {
		case psych.RoleTool:
			b.say(psych.RoleAssistant, toolCall("1", "f", "{}"))
			b.say(psych.RoleTool, toolResult("1", "done", false))
		case psych.RoleAssistant:
			b.say(psych.RoleAssistant, psych.Block{Text: "hello"})
		}
		without := b.body()
		b.tail(tailText)
		r := b.checked()
		m := r.Messages[len(r.Messages)-1]
		if text, _ := m.Content[len(m.Content)-1]["text"].(string); m.Role != "user" || text != tailText {
			t.Errorf("after %q the last block is %q of role %s", last, text, m.Role)
		}
		want := len(b.req.History)
		if last == psych.RoleAssistant || last == "" {
			want++
		}
		if len(r.Messages) != want {
			t.Errorf("after %q there are %d messages, want %d", last, len(r.Messages), want)
		}
		if with := b.body(); !bytes.HasPrefix(with, without[:len(without)-len(`]}`)-len(`]}`)]) {
			t.Errorf("after %q the tail changes what is before it:\n%s\n%s", last, without, with)
		}
	}
}

func TestMarkers(t *testing.T) {
	build := func(o Options) *builder {
		b := newBuilder(t, o)
		b.tools(goldenTools...)
		b.system("memory", "instructions", "more")
		for range 5 {
			b.say(psych.RoleUser, psych.Block{Text: "hi"})
			b.say(psych.RoleAssistant, reasoning(`{"type":"thinking","thinking":"x","signature":"s"}`), psych.Block{Text: "hello"})
		}
		b.say(psych.RoleUser, psych.Block{Text: "bye"})
		b.tail(tailText)
		return b
	}
	b := build(Options{})
	b.req.Breaks = []int{8, 10}
	r := b.checked()
	if r.Markers != 4 {
		t.Fatalf("%d markers, want 4", r.Markers)
	}
	var at []int
	for i, m := range r.Messages {
		for j, c := range m.Content {
			if _, ok := c["cache_control"]; ok {
				at = append(at, i, j)
			}
		}
	}
	if !slices.Equal(at, []int{8, 0, 10, 0}) {
		t.Errorf("markers of messages and blocks %v, want the ends of messages 8 and 10", at)
	}
	if r.System[1]["cache_control"] == nil || r.System[2]["cache_control"] == nil || r.System[0]["cache_control"] != nil {
		t.Errorf("system is %v", r.System)
	}
	// One place is marked once; a kept tail has no place for one.
	b.req.Breaks = []int{1, 1, 1, 1}
	if r := b.checked(); r.Markers != 3 {
		t.Errorf("%d markers, want 3", r.Markers)
	}
	b.keep()
	b.req.Breaks = []int{len(b.req.History) - 1}
	if m := b.checked().Messages[10]; m.Content[0]["cache_control"] == nil || m.Content[1]["cache_control"] != nil {
		t.Errorf("with a kept tail the last message is %v", m)
	}
	// Without text the end of zone 1 is that of the tools.
	b.system("memory")
	if r := b.checked(); r.Markers != 3 || r.Tools[2]["cache_control"] == nil {
		t.Errorf("%d markers, the last tool is %v", r.Markers, r.Tools[2])
	}
	for _, c := range []struct {
		o               Options
		markers, anHour int
	}{
		{Options{CacheTTL: "1h"}, 4, 4},
		{Options{SystemCacheTTL: "1h"}, 4, 2},
		{Options{CacheTTL: "none"}, 0, 0},
		{Options{CacheTTL: "none", SystemCacheTTL: "1h"}, 2, 2},
	} {
		b := build(c.o)
		b.req.Breaks = []int{8, 10}
		if r := b.checked(); r.Markers != c.markers || bytes.Count(b.body(), []byte(`"ttl":"1h"`)) != c.anHour {
			t.Errorf("%+v: %d markers in %s", c.o, r.Markers, b.body())
		}
	}
}

// What takes no marker, a block of an unknown type or a result without content,
// leaves it to the block before, be it in an earlier message.
func TestMarkerFallsBack(t *testing.T) {
	at := func(r *messagestest.Request) string {
		var where []string
		for i, m := range r.Messages {
			for j, c := range m.Content {
				if _, ok := c["cache_control"]; ok {
					where = append(where, fmt.Sprintf("%d.%d", i, j))
				}
			}
		}
		return strings.Join(where, " ")
	}
	b := newBuilder(t, Options{})
	b.say(psych.RoleUser, psych.Block{Text: "hi"})
	b.say(psych.RoleAssistant, reasoning(`{"type":"anthropic.block","block":{"type":"novel"}}`))
	b.say(psych.RoleUser, psych.Block{Text: "hi"})
	b.say(psych.RoleAssistant, psych.Block{Text: "x"}, reasoning(`{"type":"anthropic.block","block":{"type":"novel"}}`))
	b.say(psych.RoleAssistant, reasoning(`{"type":"thinking","thinking":"x","signature":"s"}`))
	b.tail("t")
	b.req.Breaks = []int{1, 4}
	if got := at(b.checked()); got != "0.0 3.0" {
		t.Errorf("markers at %s, want 0.0 3.0", got)
	}
	b.say(psych.RoleAssistant, toolCall("1", "f", "{}"), toolCall("2", "f", "{}"))
	b.say(psych.RoleTool, toolResult("1", "x", false), toolResult("2", "", false))
	b.say(psych.RoleAssistant, toolCall("3", "f", "{}"))
	b.say(psych.RoleTool, toolResult("3", "", false))
	b.req.Breaks = []int{6, 8}
	if got := at(b.checked()); got != "4.0 5.0" {
		t.Errorf("markers at %s, want 4.0 5.0", got)
	}
}

func TestImages(t *testing.T) {
	for _, c := range []struct {
		kind string
		data string
		want string // type and media type, or a part of the text
	}{
		{"image/png", string(png), "image image/png"},
		{"image/png", "\xff\xd8\xff\xe0 a jpeg", "image image/jpeg"},
		{"image/gif", "GIF89a", "image image/gif"},
		{"image/webp", "RIFF\x00\x00\x00\x00WEBPVP8 ", "image image/webp"},
		{"application/pdf", "%PDF-1.4", "document application/pdf"},
		{"image/png", "<svg/>", "[image/png, 6 bytes, left out: it is not of a type that can be shown]"},
		{"image/png", "", "[image/png, 0 bytes, left out"},
		{"image/png", string(png) + strings.Repeat("x", MaxImageBytes), "left out: only 3932160 bytes"},
	} {
		b := newBuilder(t, Options{})
		b.say(psych.RoleUser, psych.Block{Image: &psych.Image{ContentType: c.kind, Data: []byte(c.data)}})
		block := b.checked().Messages[0].Content[0]
		got, _ := block["text"].(string)
		if s, ok := block["source"].(map[string]any); ok {
			got = block["type"].(string) + " " + s["media_type"].(string)
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s of %d bytes is %q, want %q", c.kind, len(c.data), got, c.want)
		}
	}
	limits := psych.ModelLimits{Images: []string{"image/png"}, ImageBytes: 10}
	b := newBuilder(t, Options{Limits: &limits})
	b.say(psych.RoleUser, psych.Block{Image: &psych.Image{ContentType: "image/png", Data: png}})
	if !bytes.Contains(b.body(), []byte("only 10 bytes")) {
		t.Errorf("a model's own limits don't hold: %s", b.body())
	}
}

// Reasoning is bound to what precedes it: with trailing messages left in their
// places it stays valid, without it is dropped where the request says so, and
// refused where not.
func TestBoundReasoning(t *testing.T) {
	for _, c := range []struct {
		keep, free bool
		dropped    int
	}{{true, false, 0}, {true, true, 0}, {false, false, 1}, {false, true, -1}} {
		b := newBuilder(t, Options{Model: "claude-sonnet-5-5", FreeBlocks: c.free})
		b.system("", "Be brief.")
		b.say(psych.RoleUser, psych.Block{Text: "hi"})
		b.tail(tailText)
		b.req.Breaks = []int{0}
		sign, err := messagestest.Sign(b.body())
		b.must(err)
		if c.keep {
			b.keep()
		}
		b.say(psych.RoleAssistant, reasoning(`{"type":"thinking","thinking":"","signature":"`+sign+`"}`), toolCall("1", "f", "{}"))
		b.say(psych.RoleTool, toolResult("1", "done", false))
		b.say(psych.RoleUser, psych.Block{Text: "and?"})
		b.tail("Later.")
		b.req.Breaks = []int{0, len(b.req.History) - 1}
		r, err := messagestest.Check(b.body())
		switch {
		case c.dropped < 0 && err == nil:
			t.Errorf("%+v: nothing is wrong", c)
		case c.dropped >= 0 && (err != nil || r.Dropped != c.dropped):
			t.Errorf("%+v: %+v, %v", c, r, err)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	c := newBuilder(t, Options{}).f.Codec()
	for name, m := range map[string]*psych.Message{
		"role":      {Role: "system"},
		"user":      {Role: psych.RoleUser, Blocks: []psych.Block{toolCall("1", "f", "{}")}},
		"assistant": {Role: psych.RoleAssistant, Blocks: []psych.Block{toolResult("1", "x", false)}},
		"tool":      {Role: psych.RoleTool, Blocks: []psych.Block{{Text: "x"}}},
	} {
		if _, _, err := c.EncodeMessage(m); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	for _, schema := range []string{"[]", "{", "null", "7"} {
		if _, err := c.EncodeTools([]psych.ToolDef{{Name: "x", Schema: json.RawMessage(schema)}}); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("schema %s: %v, want ErrInvalid", schema, err)
		}
	}
}

// What a strict parser refuses must not stand in each later request.
func TestProviderBlocksNeverPoison(t *testing.T) {
	deep := strings.Repeat("[", 101) + strings.Repeat("]", 101)
	for _, raw := range []string{
		`{"type":"thinking","thinking":"a\ud83c","signature":"s"}`,
		`{"type":"thinking","thinking":"a\udca1","signature":"s"}`,
		`{"type":"thinking","thinking":"a\uD83C\u0041","signature":"s"}`,
		"{\"type\":\"thinking\",\"thinking\":\"\xff\",\"signature\":\"s\"}",
		`{"type":"thinking","thinking":"unsigned","signature":""}`,
		`{"type":"thinking","thinking":"half"`,
		`{"type":"redacted_thinking"}`,
		`{"type":"anthropic.block","block":{"type":"novel","deep":` + deep + `}}`,
		`{"type":"anthropic.block","block":{"type":"novel"},"deltas":[{"type":"novel_delta"}]}`,
		`{"type":"anthropic.block","block":7}`,
		`{"type":"openai.chat","message":{"reasoning":"x"}}`,
		`[]`, ``, `null`,
	} {
		b := newBuilder(t, Options{})
		b.say(psych.RoleAssistant, reasoning(raw), psych.Block{Text: "hi"})
		if got, want := string(b.req.History[0].Bytes), assistantStart+`{"type":"text","text":"hi"}]}`; got != want {
			t.Errorf("%s is sent: %s", raw, got)
		}
	}
	const fit = `{"type":"thinking","thinking":"\\ud83c \ud83c\udca1 \uD7FF \u2028","signature":"s"}`
	b := newBuilder(t, Options{})
	b.say(psych.RoleAssistant, reasoning(fit), psych.Block{Text: "hi"})
	if !bytes.Contains(b.req.History[0].Bytes, []byte(fit)) {
		t.Errorf("%s is not sent: %s", fit, b.req.History[0].Bytes)
	}
}

func TestOptions(t *testing.T) {
	for name, want := range map[string]generation{
		"claude-3-5-sonnet-20241022": claude3, "claude-3-haiku-20240307": claude3, "anthropic.claude-v2:1": claude3, "claude-instant-1.2": claude3,
		"claude-sonnet-4-20250514": manual, "claude-opus-4-1": manual, "us.anthropic.claude-sonnet-4-5-20250929-v1:0": manual, "claude-haiku-4-5": manual, "claude-opus-4-5-20251101": manual, "claude-sonnet-4@20250514": manual,
		"claude-opus-4-6": adaptive, "anthropic.claude-opus-4-6-v1": adaptive, "claude-opus-5": adaptive, "global.anthropic.claude-sonnet-5": adaptive, "claude-mythos-preview": adaptive,
		"claude-opus-5-5": bound, "anthropic/claude-fable-5.1": bound, "claude-sonnet-6": bound, "claude-haiku-5-5-20261001": bound, "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-opus-5-5": bound,
		"kimi-k3": unknown, "arn:aws:bedrock:us-east-1:1:application-inference-profile/abc123": unknown, "": unknown,
	} {
		if got := generationOf(name); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
	for _, c := range []struct {
		o      Options
		effort string
		limit  int
		want   string // of the head behind max_tokens
		keeps  bool
	}{
		{Options{Model: "claude-opus-5"}, "", 0, `32000`, false},
		{Options{Model: "claude-opus-5"}, "max", 0, `32000,"thinking":{"type":"adaptive"},"output_config":{"effort":"max"}`, false},
		{Options{Model: "claude-opus-5-5"}, "", 0, `32000,"thinking":{"type":"adaptive","block_binding":{"prefix_mismatch_behavior":"drop_block"}}`, true},
		{Options{Model: "claude-opus-5-5", FreeBlocks: true}, "", 0, `32000`, true},
		{Options{Model: "claude-opus-5-5", Thinking: "between_tools"}, "low", 9, `9,"thinking":{"type":"between_tools"},"output_config":{"effort":"low"}`, true},
		{Options{Model: "x", Like: "claude-opus-5-5"}, "", 0, `32000,"thinking":{"type":"adaptive","block_binding":{"prefix_mismatch_behavior":"drop_block"}}`, true},
		{Options{Model: "x"}, "", 0, `32000`, true},
		{Options{Model: "x"}, "low", 0, `32000,"thinking":{"type":"adaptive"},"output_config":{"effort":"low"}`, true},
		{Options{Model: "claude-haiku-4-5"}, "", 0, `32000`, false},
		{Options{Model: "claude-haiku-4-5"}, "low", 0, `32000,"thinking":{"type":"enabled","budget_tokens":4096}`, false},
		{Options{Model: "claude-haiku-4-5"}, "max", 0, `32000,"thinking":{"type":"enabled","budget_tokens":16000}`, false},
		{Options{Model: "claude-haiku-4-5"}, "high", 2000, `2000`, false},
		{Options{Model: "claude-haiku-4-5", Thinking: "2000"}, "", 0, `32000,"thinking":{"type":"enabled","budget_tokens":2000}`, false},
		{Options{Model: "claude-3-haiku-20240307"}, "high", 0, `4096`, false},
		{Options{Model: "claude-opus-5", Thinking: "none", MaxTokens: 100}, "high", 0, `100,"output_config":{"effort":"high"}`, false},
	} {
		f, err := New(c.o)
		if err != nil {
			t.Fatal(err)
		}
		head, err := f.head([]byte(`"x":1`), &psych.ModelOptions{Effort: c.effort, MaxOutputTokens: c.limit})
		if want := `{"x":1,"max_tokens":` + c.want; err != nil || string(head) != want {
			t.Errorf("%+v: %s, %v; want %s", c.o, head, err, want)
		}
		if got := f.codec.KeepsTails(); got != c.keeps {
			t.Errorf("%+v keeps tails: %v", c.o, got)
		}
	}
	manualFormat, err := New(Options{Model: "claude-haiku-4-5"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := manualFormat.Body(nil, &psych.Request{Options: psych.ModelOptions{Effort: "huge"}}); !errors.Is(err, psych.ErrInvalid) {
		t.Errorf("an effort without a budget: %v, want ErrInvalid", err)
	}
	for _, o := range []Options{{CacheTTL: "2h"}, {SystemCacheTTL: "x"}, {CacheTTL: "1h", SystemCacheTTL: "5m"}, {Thinking: "hard"}, {Thinking: "1023"}, {MaxTokens: -1}, {Like: "gpt"}} {
		if _, err := New(o); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", o, err)
		}
	}
}

// A reader gives what was written, from any offset, and many read at once.
func TestReader(t *testing.T) {
	b := goldens(t)["conversation"]
	body, err := b.f.Body([]byte(`"model":"m","stream":true`), &b.req)
	if err != nil {
		t.Fatal(err)
	}
	want := b.body()
	if err := iotest.TestReader(body.Reader(), want); err != nil {
		t.Error(err)
	}
	for _, at := range []int64{-1, body.Size + 1} {
		if _, err := body.Reader().Seek(at, io.SeekStart); err == nil {
			t.Errorf("seek to %d works", at)
		}
	}
}

// drawText is any text, what JSON must escape and what is no UTF-8 too.
func drawText(t *rapid.T, label string) string {
	if rapid.IntRange(0, 3).Draw(t, label+" kind") == 0 {
		return rapid.SampledFrom([]string{"", " ", odd, `"}`, `]}`, `:"`, `\`, userStart, messageEnd}).Draw(t, label)
	}
	return rapid.String().Draw(t, label)
}

// drawTurn says one more message, or two of a turn with calls.
func drawTurn(t *rapid.T, b *builder, call *int) {
	switch rapid.IntRange(0, 2).Draw(t, "what") {
	case 0:
		b.say(psych.RoleUser, psych.Block{Text: drawText(t, "user")})
	case 1:
		b.say(psych.RoleAssistant, reasoning(`{"type":"thinking","thinking":"x","signature":"s"}`), psych.Block{Text: drawText(t, "answer")})
		b.say(psych.RoleUser, psych.Block{Text: drawText(t, "next")})
	default:
		said, results := []psych.Block{{Text: drawText(t, "said")}}, []psych.Block{}
		if rapid.Bool().Draw(t, "reasons") {
			raw, _ := json.Marshal(map[string]string{"type": "thinking", "thinking": strings.ToValidUTF8(drawText(t, "reasoning"), "?"), "signature": "s"})
			said = append(said, psych.Block{Provider: raw})
		}
		for range rapid.IntRange(1, 4).Draw(t, "calls") {
			*call++
			id := "c" + string(rune('a'+*call%26)) + strings.Repeat("x", *call/26)
			said = append(said, toolCall(id, "f", `{"x":`+string(appendString(nil, drawText(t, "argument")))+`}`))
			out := toolResult(id, drawText(t, "result"), rapid.Bool().Draw(t, "failed"))
			if rapid.Bool().Draw(t, "image") {
				out.Result.Images = []psych.Image{{ContentType: "image/png", Data: png}}
			}
			results = append(results, out)
		}
		b.say(psych.RoleAssistant, said...)
		b.say(psych.RoleTool, results...)
	}
}

var anyMarker = [][]byte{marker5m, marker1h}

func unmarked(body []byte) []byte {
	for _, m := range anyMarker {
		body = bytes.ReplaceAll(body, m, nil)
	}
	return body
}

// Each request's zones 1 to 3 are a prefix of the next request's body, markers
// and a tail that is dropped aside; a change of zone 2 leaves zone 1; and the
// provider refuses none.
func TestPrefixProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{Model: rapid.SampledFrom([]string{"claude-opus-5", "claude-opus-5-5"}).Draw(t, "model")}
		keep := rapid.Bool().Draw(t, "keep")
		b := newBuilder(t, o)
		if rapid.Bool().Draw(t, "tools") {
			b.tools(goldenTools...)
		}
		static := []string{drawText(t, "static"), drawText(t, "static 2")}
		b.system(drawText(t, "memory"), static...)
		b.say(psych.RoleUser, psych.Block{Text: drawText(t, "first")})
		var before []byte
		previous, call := 0, 0
		for range rapid.IntRange(1, 8).Draw(t, "turns") {
			drawTurn(t, b, &call)
			n := len(b.req.History)
			b.req.Breaks = []int{previous, n - 1}
			previous = n - 1
			b.req.Tail = psych.Wire{}
			b.checked()
			plain := unmarked(b.body())
			prefix := plain[:len(plain)-len(messageEnd)-len(`]}`)] // the end of the last message may be another
			if !bytes.HasPrefix(plain, before) {
				t.Fatalf("the body\n%s\nhas no prefix\n%s", plain, before)
			}
			before = prefix

			b.tail("news")
			r := b.checked()
			last := r.Messages[len(r.Messages)-1].Content
			if x := last[len(last)-1]; x["text"] != "news" || x["cache_control"] != nil {
				t.Fatalf("the last block is %v", x)
			}
			if r.Markers > 4 {
				t.Fatalf("%d markers", r.Markers)
			}
			if !bytes.HasPrefix(unmarked(b.body()), prefix) {
				t.Fatalf("with a tail\n%s\nthe prefix is not\n%s", unmarked(b.body()), prefix)
			}
			if keep {
				b.keep()
			}
		}
		if z1 := b.req.System[0].Bytes; len(z1) > 0 {
			b.system(drawText(t, "other memory"), static...)
			after := unmarked(b.body())
			if end := bytes.Index(before, z1) + len(z1); !bytes.HasPrefix(after, before[:end]) {
				t.Fatalf("another memory changes zone 1:\n%s\n%s", before, after)
			}
		}
	})
}

func FuzzEncode(f *testing.F) {
	f.Add(odd, `{"a":1}`, `{"type":"thinking","thinking":"x","signature":"y"}`, true)
	f.Add("", "", `{"type":"anthropic.block","block":{"type":"x"}}`, false)
	f.Add(`"}`, "[", `{"type":"anthropic.call","fields":{"input":1,"a":2,"a":3}}`, true)
	f.Add(`]}`, "\x00", "\xff", false)
	f.Fuzz(func(t *testing.T, text, args, provider string, failed bool) {
		build := func() *builder {
			b := newBuilder(t, Options{})
			b.tools(psych.ToolDef{Name: "x", Description: text})
			b.system(text, text, args)
			b.say(psych.RoleUser, psych.Block{Text: text}, psych.Block{Text: args}, psych.Block{Image: &psych.Image{ContentType: text, Data: []byte(args)}})
			b.say(psych.RoleAssistant, reasoning(provider), psych.Block{Text: text}, reasoning(provider), toolCall("1", "f", args), reasoning(provider))
			b.say(psych.RoleTool, toolResult("1", text, failed, psych.Image{ContentType: text, Data: []byte(args)}))
			b.say(psych.RoleUser, psych.Block{Text: args})
			b.tail(text)
			b.req.Options.Effort = args
			b.req.Breaks = []int{1, 3}
			return b
		}
		b := build()
		got := b.body()
		if !bytes.Equal(got, build().body()) {
			t.Fatal("encoded twice, it differs")
		}
		var x struct {
			Messages []struct{ Role string }
		}
		if err := json.Unmarshal(got, &x); err != nil || len(x.Messages) != 3 {
			t.Fatalf("%d messages, %v", len(x.Messages), err)
		}
		for i, m := range x.Messages {
			if want := []string{"user", "assistant", "user"}[i]; m.Role != want {
				t.Fatalf("message %d is of role %q", i, m.Role)
			}
		}
		if n := bytes.Count(got, marker5m); n > 4 && !strings.Contains(text+args+provider, "cache_control") {
			t.Fatalf("%d markers", n)
		}
	})
}

// BenchmarkEncode encodes a turn: an answer with calls, and their results.
func BenchmarkEncode(b *testing.B) {
	f, err := New(Options{Model: "claude-opus-5"})
	if err != nil {
		b.Fatal(err)
	}
	c := f.Codec()
	text := strings.Repeat("line of a result, 日本\n", 1000)
	said := &psych.Message{Role: psych.RoleAssistant, Blocks: []psych.Block{reasoning(`{"type":"thinking","thinking":"` + strings.Repeat("hm ", 500) + `","signature":"s"}`), {Text: "I look."}, toolCall("c1_1", "look", `{"path":"a"}`), toolCall("c1_2", "look", `{"path":"b"}`)}}
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
	b := newBuilder(t, Options{})
	c := b.f.Codec()
	results := &psych.Message{Role: psych.RoleTool, Blocks: []psych.Block{toolResult("1", strings.Repeat("line\n", 100_000), false)}}
	if n := testing.AllocsPerRun(10, func() { _, _, _ = c.EncodeMessage(results) }); n > 4 {
		t.Errorf("encoding a result allocates %v times", n)
	}
	for range 1000 {
		b.say(psych.RoleUser, psych.Block{Text: strings.Repeat("x", 1000)})
		b.say(psych.RoleAssistant, psych.Block{Text: strings.Repeat("x", 1000)})
	}
	if n := testing.AllocsPerRun(10, func() { _, _ = b.f.Body(nil, &b.req) }); n > 6 {
		t.Errorf("joining 2,000 messages allocates %v times", n)
	}
}
