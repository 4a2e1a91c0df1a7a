package mcp

import (
	"encoding/json"
	"io"
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
