package providertest

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/psych-go/psych-go/psych"
)

// rounds sets how often a property is checked: PSYCH_TEST_ROUNDS, or 200 times.
func rounds(t *testing.T) {
	t.Helper()
	n := os.Getenv("PSYCH_TEST_ROUNDS")
	if n == "" {
		n = "200"
	}
	was := flag.Lookup("rapid.checks").Value.String()
	if err := flag.Set("rapid.checks", n); err != nil {
		t.Fatalf("PSYCH_TEST_ROUNDS: %v", err)
	}
	t.Cleanup(func() {
		if err := flag.Set("rapid.checks", was); err != nil {
			t.Error(err)
		}
	})
}

// odd are texts that encodings trip over.
var odd = []string{"", " ", "\n\t", "x", "é🂡", "nul \x00", "\u2028\u2029", `quote " back \ slash </script>`, "\ufffd", "\x1c\x1f", "[Context from nobody]", strings.Repeat("long ", 300), "{\"type\":\"text\"}", "half \xed\xa0\x80", "\xff"}

func text(t *rapid.T, label string) string {
	if rapid.IntRange(0, 2).Draw(t, label+" is odd") > 0 {
		return rapid.SampledFrom(odd).Draw(t, label)
	}
	return rapid.String().Draw(t, label)
}

// utf8Text is a text as a model says it, which is JSON.
func utf8Text(t *rapid.T, label string) string {
	return strings.ToValidUTF8(text(t, label), "\ufffd")
}

// drawCall draws a call, of what there is or of what there is not.
func drawCall(t *rapid.T) Call {
	at := func() int { return rapid.IntRange(-1, 40).Draw(t, "at") }
	var c Call
	switch rapid.IntRange(0, 12).Draw(t, "call") {
	case 0, 1:
		c = call("lookup", object{"at": at()})
	case 2:
		c = call("page", object{"name": "p", "lines": at()})
	case 3:
		c = call("draw", object{})
	case 4, 5:
		c = call("flaky", object{"how": rapid.SampledFrom([]string{"error", "panic", "silent", "picture", "binary", "junk", ""}).Draw(t, "how")})
	case 6:
		c = call("empty", object{})
	case 7:
		c = call("read_tool_output", object{"handle": rapid.SampledFrom([]string{"out_c1_1", "out_c1_2_notes", "x", ""}).Draw(t, "handle"), "grep": "line"})
	case 8:
		c = call("call_tool", object{"server": "odd-ones", "tool": rapid.SampledFrom([]string{"bare", "list", "gone"}).Draw(t, "tool"), "arguments": object{}})
	case 9:
		c = call("books__find_book", object{"title": utf8Text(t, "title")})
	case 10:
		c = call("list_tools", object{"query": utf8Text(t, "query")})
	case 11:
		c = Call{Name: rapid.SampledFrom([]string{"lookup", "load_skill", "page"}).Draw(t, "name"), Arguments: utf8Text(t, "arguments")}
	default:
		c = Call{Name: utf8Text(t, "name"), Arguments: "{}"}
	}
	switch rapid.IntRange(0, 5).Draw(t, "id") {
	case 0:
		c.ID = NoID
	case 1:
		c.ID = utf8Text(t, "own id")
	case 2:
		c.ID = rapid.SampledFrom([]string{"same", "c1_1", "c2_1", strings.Repeat("i", 41), strings.Repeat("i", 65)}).Draw(t, "odd id")
	}
	return c
}

func drawAnswer(t *rapid.T, turn int) *Answer {
	a := &Answer{Text: utf8Text(t, "text"), Shape: rapid.SampledFrom([]Shape{Whole, Whole, Whole, Crumbs, Interleaved, Strange, NoUsage, BadUsage}).Draw(t, "shape")}
	if rapid.Bool().Draw(t, "reasons") {
		a.Reasoning = utf8Text(t, "reasoning")
	}
	if turn < 3 {
		for range rapid.IntRange(0, 4).Draw(t, "calls") {
			a.Calls = append(a.Calls, drawCall(t))
		}
	}
	if rapid.IntRange(0, 9).Draw(t, "stops") == 0 {
		a.Stop = rapid.SampledFrom([]Stop{AtLimit, Refused, ContextFull}).Draw(t, "stop")
	}
	return a
}

// Whatever a model says and tools return, however results are cut and trimmed,
// memories and servers change: no provider refuses a request, no marker is one
// too many or stands in a trailing message, no reasoning is lost without a break
// that says so.
func TestGeneratedRuns(t *testing.T) {
	rounds(t)
	requests, tried := 0, map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		p := &providers[rapid.IntRange(0, len(providers)-1).Draw(t, "provider")]
		answers, turn := make([][]*Answer, rapid.IntRange(1, 4).Draw(t, "exchanges")), 0
		for i := range answers {
			for j := range 4 {
				answers[i] = append(answers[i], drawAnswer(t, j))
				if len(answers[i][j].Calls) == 0 {
					break
				}
			}
		}
		exchange := 0
		r := newRun(t, p, func(*Request) *Answer {
			if turn >= len(answers[exchange]) {
				return says("enough")
			}
			turn++
			return answers[exchange][turn-1]
		})
		r.spec.Disclosure.Strategy = rapid.SampledFrom(strategies).Draw(t, "strategy")
		r.spec.Limits.PreviewChars = 100
		if rapid.Bool().Draw(t, "has a small context") {
			r.spec.Limits.ContextTokens = 8000
		}
		if rapid.Bool().Draw(t, "is alone") {
			r.spec.Connections, r.spec.Skills, r.spec.Instructions = nil, nil, ""
		}
		r.cold = rapid.IntRange(0, 3).Draw(t, "cold") == 0
		for i := range answers {
			switch rapid.IntRange(0, 5).Draw(t, "before") {
			case 0:
				r.world.mu.Lock()
				r.memories = utf8Text(t, "memories")
				r.world.mu.Unlock()
			case 1:
				r.change("books", func(s *server) { s.tools = s.tools[1:] })
			case 2:
				r.change("odd-ones", func(s *server) { s.down = psych.ErrSessionLost })
			case 3:
				r.post(psych.ClientMessage{Text: "and " + text(t, "another message")})
			}
			m := psych.ClientMessage{Text: text(t, "message")}
			if m.Text == "" || rapid.IntRange(0, 3).Draw(t, "attaches") == 0 {
				m.Attachments = []psych.MessageAttachment{
					{Name: "a.png", ContentType: "image/png", Data: rapid.SampledFrom([][]byte{png, pdf, {0xff}, nil}).Draw(t, "image")},
					{Name: "b", ContentType: "text/plain", Data: []byte(text(t, "attachment"))},
				}
			}
			exchange, turn = i, 0 // nobody asks now
			r.say(m)
		}
		r.check(p)
		requests += len(r.stub.Requests())
		tried[p.name]++
	})
	t.Logf("%d requests, none refused; Runs: %v", requests, tried)
}

// drawJSON draws a value as a provider may spell it.
func drawJSON(t *rapid.T, depth int) string {
	kinds := 5
	if depth > 3 {
		kinds = 3
	}
	switch rapid.IntRange(0, kinds).Draw(t, "kind") {
	case 0:
		return rapid.SampledFrom([]string{"1.0", "-0", "1E400", "9007199254740993", "true", "null"}).Draw(t, "scalar")
	case 1, 2:
		return drawString(t)
	case 3:
		return rapid.SampledFrom([]string{"1e-7", "false", `""`, "[]", "{}", "[ ]", "{ }"}).Draw(t, "small")
	case 4:
		var list []string
		for range rapid.IntRange(0, 3).Draw(t, "elements") {
			list = append(list, drawJSON(t, depth+1))
		}
		return "[" + strings.Join(list, ", ") + "]"
	}
	var members []string
	for i := range rapid.IntRange(0, 3).Draw(t, "members") {
		members = append(members, fmt.Sprintf(`"k%d" :%s`, i, drawJSON(t, depth+1)))
	}
	return "{" + strings.Join(members, ",") + "}"
}

// drawString draws a string in any escapes that JSON has.
func drawString(t *rapid.T) string {
	var b strings.Builder
	b.WriteByte('"')
	for range rapid.IntRange(1, 8).Draw(t, "pieces") {
		b.WriteString(rapid.SampledFrom([]string{`a`, `\u0061`, `\/`, `/`, `\"`, `\\`, `\n`, `\u000a`, `\u0000`, `<`, `\u003c`, `é`, `\u00e9`, `🂡`, `\ud83c\udca1`, `\uD83C\uDCA1`, ` `, `\u2028`, "\u2028", `\ufffd`, strings.Repeat("z", 5000)}).Draw(t, "piece"))
	}
	b.WriteByte('"')
	return b.String()
}

// drawBlock draws a provider block of an API, and what of it the log keeps and
// the next request holds.
func drawBlock(t *rapid.T, api API, n int) (raw string, kept func(block []byte) bool) {
	exact := func(raw string) func([]byte) bool {
		return func(block []byte) bool { return bytes.Contains(block, []byte(raw)) }
	}
	extra := func() string {
		return fmt.Sprintf(`"x%d": %s`, n, drawJSON(t, 0))
	}
	switch api {
	case Messages, Bedrock:
		switch rapid.IntRange(0, 2).Draw(t, "block") {
		case 0:
			raw = fmt.Sprintf(`{"type":"thinking","thinking":%s,"signature":%s,%s}`, drawString(t), drawString(t), extra())
		case 1:
			raw = fmt.Sprintf(`{"type":"redacted_thinking","data":%s}`, drawString(t))
		default:
			raw = fmt.Sprintf(`{"type":"novel_%d",%s}`, n, extra())
		}
		var compact string // members one by one, as a block is put together
		raw, compact = respell(raw)
		return raw, exact(compact)
	case Responses:
		raw = fmt.Sprintf(`{"id":"rs_%d", "type":"reasoning","summary":[],"encrypted_content":%s,%s}`, n, drawString(t), extra())
		return raw, exact(raw)
	}
	value := drawJSON(t, 1)
	value = strings.ReplaceAll(value, "null", "true") // in pieces of a message it is nothing
	var compact bytes.Buffer                          // pieces are joined there, and white space between them is nobody's
	if err := json.Compact(&compact, []byte(value)); err != nil {
		t.Fatal(err)
	}
	raw = fmt.Sprintf(`{"field_%d": %s}`, n, compact.String())
	return raw, exact(compact.String())
}

// respell gives a block, and the same with nothing between its members.
func respell(raw string) (spelled, compact string) {
	dec := json.NewDecoder(strings.NewReader(raw))
	if _, err := dec.Token(); err != nil {
		panic(err)
	}
	var members []string
	for dec.More() {
		key, err := dec.Token()
		var value json.RawMessage
		if err == nil {
			err = dec.Decode(&value)
		}
		if err != nil {
			panic(fmt.Sprintf("%s: %v", raw, err))
		}
		members = append(members, quote(key.(string))+":"+string(value))
	}
	return raw, "{" + strings.Join(members, ",") + "}"
}

// Provider blocks come back byte for byte through log, store and wire, however
// their JSON is spelled, and so large too that a BlobStore keeps them.
func TestProviderBlocks(t *testing.T) {
	rounds(t)
	rapid.Check(t, func(t *rapid.T) {
		p := &providers[rapid.IntRange(0, len(providers)-1).Draw(t, "provider")]
		var raws []string
		var kept []func([]byte) bool
		for i := range rapid.IntRange(1, 4).Draw(t, "blocks") {
			raw, k := drawBlock(t, p.api, i)
			if rapid.IntRange(0, 19).Draw(t, "is large") == 0 && p.api != Chat {
				big := strings.Replace(raw, `"x`, `"big":"`+strings.Repeat("b", 150_000)+`","x`, 1)
				if big != raw {
					_, compact := respell(big)
					if p.api == Responses {
						compact = big
					}
					raw, k = big, func(block []byte) bool { return bytes.Contains(block, []byte(compact)) }
				}
			}
			raws, kept = append(raws, raw), append(kept, k)
		}
		r := newRun(t, p, func(q *Request) *Answer {
			if q.N == 1 {
				return &Answer{Raw: raws, Text: "I look", Calls: []Call{call("lookup", object{"at": 3})}}
			}
			return says("done")
		})
		r.spec.Connections = nil
		r.say(psych.ClientMessage{Text: "go"})
		r.check(p)
		var log [][]byte
		for rec, err := range r.rt.Records(context.Background(), r.key, psych.Pos{}) {
			if err != nil {
				t.Fatal(err)
			}
			if e, ok := rec.Event.(*psych.ModelCallFinished); ok && e.Turn == 1 {
				for _, b := range e.Blocks {
					if b.Provider != nil {
						log = append(log, r.load(b.Provider))
					}
				}
			}
		}
		requests := r.stub.Requests()
		if len(requests) < 2 {
			return // it was refused
		}
		body := requests[1].Body
		for i, k := range kept {
			found := false
			for _, block := range log {
				found = found || k(block)
			}
			if !found {
				t.Errorf("%s: the log does not hold block %d:\n%s\nbut\n%s", p.name, i+1, raws[i], bytes.Join(log, []byte("\n")))
			}
			if !k(body) {
				t.Errorf("%s: block %d does not come back:\n%s\nin\n%s", p.name, i+1, raws[i], body)
			}
		}
	})
}

// load is a payload's bytes, wherever they are.
func (r *run) load(p *psych.Payload) []byte {
	r.t.Helper()
	if p.Ref == nil {
		return p.Inline
	}
	body, _, err := r.blobs.Open(context.Background(), psych.BlobKey{Tenant: r.key.Tenant, RunID: r.key.RunID, CallID: p.Ref.CallID}, 0, p.Size)
	if err != nil {
		r.t.Fatal(err)
	}
	defer body.Close()
	raw, err := io.ReadAll(body)
	if err != nil {
		r.t.Fatal(err)
	}
	return raw
}
