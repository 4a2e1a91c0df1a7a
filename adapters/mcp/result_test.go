package mcp

import (
	"bytes"
	"encoding/json"
	"io"
	"runtime"
	"testing"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych"
)

// Whatever a server answers, a call has a result, and a page is one or an error.
func FuzzAnswers(f *testing.F) {
	for _, seed := range []string{
		`{"content":[{"type":"text","text":"a"},{"type":"image","data":"YQ","mimeType":"image/png"},{"type":"resource","resource":{"uri":"x","blob":""}},{"type":"resource_link"},{"type":7},null],"structuredContent":{"result":["a"]},"isError":false}`,
		`{"resultType":"input_required","inputRequests":{"a":{"method":"x"},"b":5}}`,
		`{"tools":[{"name":"a","inputSchema":{},"annotations":{"readOnlyHint":true}},null],"nextCursor":"","ttlMs":1e9}`,
		`{"content":"\ud800","structuredContent":[1e999]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if !json.Valid(raw) {
			return // the wire takes no such message
		}
		r, err := toolResult(&psych.Call{}, raw, "")
		if err != nil || r == nil {
			t.Fatal(r, err)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil || r.ContentType == "text/plain" && !utf8.Valid(body) && utf8.Valid(raw) {
			t.Errorf("%q, %v", body, err)
		}
		if page, err := toolPage(raw); err == nil && page.TTL != nil && *page.TTL < 0 {
			t.Errorf("a TTL of %v", *page.TTL)
		}
	})
}

// Small elements take no more memory than large ones.
func TestManyElements(t *testing.T) {
	const n = 4 << 20
	list := append(append([]byte(`{"tools":[`), bytes.Repeat([]byte("{},"), n/3)...), []byte("{}]}")...)
	content := append(append([]byte(`{"content":[`), bytes.Repeat([]byte("{},"), n/3)...), []byte("{}]}")...)
	numbers := append(append([]byte(`{"content":[{"type":"text","text":"x"}],"structuredContent":{"a":0,"b":[`), bytes.Repeat([]byte("1,"), n/2)...), []byte("1]}}")...)
	for name, f := range map[string]func(){
		"tools":              func() { _, _ = toolPage(list) },
		"blocks":             func() { _, _ = toolResult(&psych.Call{}, content, "") },
		"structured content": func() { _, _ = toolResult(&psych.Call{}, numbers, "") },
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 20*n {
			t.Errorf("%s of %d bytes: %d allocated, want at most 20 times as much", name, n, got)
		}
	}
}
