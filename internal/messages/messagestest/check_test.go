package messagestest

import (
	"strings"
	"testing"
)

const (
	head = `{"max_tokens":2000,"tools":[{"name":"f","input_schema":{"type":"object"}}],"messages":[`
	user = `{"role":"user","content":[{"type":"text","text":"hi"}]}`
	call = `{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"s"},{"type":"tool_use","id":"a","name":"f","input":{}},{"type":"tool_use","id":"b","name":"f","input":{}}]}`
	done = `{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"},{"type":"tool_result","tool_use_id":"b","content":"x"},{"type":"text","text":"so"}]}`
)

// Each rule catches a request that breaks it, and nothing else.
func TestCheck(t *testing.T) {
	fine := head + user + "," + call + "," + done + "]}"
	if r, err := Check([]byte(fine)); err != nil || r.Markers != 0 || r.Dropped != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	marker := `"cache_control":{"type":"ephemeral"},`
	for _, c := range []struct{ old, new, says string }{
		{`"max_tokens":2000`, `"max_tokens":0`, "max_tokens"},
		{`"max_tokens":2000`, `"max_tokens":2000,"thinking":{"type":"enabled","budget_tokens":2000}`, "budget_tokens"},
		{`"name":"f","input_schema"`, `"name":"f.g","input_schema"`, "illegal"},
		{`{"name":"f","input_schema":{"type":"object"}}`, `{"name":"f","input_schema":{"type":"object"}},{"name":"f","input_schema":{"type":"object"}}`, "twice"},
		{`"name":"f","input_schema"`, `"name":"f","description":"","input_schema"`, "description is empty"},
		{`{"type":"object"}`, `{}`, "input_schema.type"},
		{`{"type":"object"}`, `{"type":"object","anyOf":[]}`, "top level"},
		{`{"type":"object"}`, `{"type":"object","properties":{"a b":{}}}`, "key"},
		{head + user + ",", head, "user role"},
		{user, user + "," + user, "alternate"},
		{user, `{"role":"user","content":[]}`, "content is empty"},
		{user, `{"role":"tool","content":[{"type":"text","text":"x"}]}`, "user role"},
		{`"text":"hi"`, `"text":" \n"`, "non-whitespace"},
		{`"text":"hi"`, `"text":"` + "\xff" + `"`, "UTF-8"},
		{"," + done, "", "end with a user message"},
		{`{"type":"tool_result","tool_use_id":"a"},`, "", "answer to call 0"},
		{`{"type":"tool_result","tool_use_id":"a"},`, `{"type":"text","text":"x"},{"type":"tool_result","tool_use_id":"a"},`, "answer to call 1"},
		{`,{"type":"tool_result","tool_use_id":"b","content":"x"}`, "", "immediately after"},
		{`"tool_use_id":"a"`, `"tool_use_id":"a","is_error":true`, "cannot be empty"},
		{`"content":"x"`, `"content":[{"type":"image","source":{}}],"is_error":true`, "type `text`"},
		{`"content":"x"`, `"content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]`, "media type"},
		{`"content":"x"`, `"content":7`, "another kind"},
		{`"signature":"s"`, `"signature":""`, "invalid thinking"},
		{`"thinking":"",`, `"thinking":"",` + marker, "can't be set"},
		{call, strings.Replace(call, `{"role":"assistant","content":[`, `{"role":"assistant","content":[{"type":"tool_result"},`, 1), "of role assistant"},
		{call + "," + done, `{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"s"}]},` + user, "final block"},
		{`"input":{}`, `"input":"{}"`, "invalid tool_use"},
		{`"text":"hi"`, `"text":"hi","cache_control":{"type":"x"}`, "cache_control"},
		{`"type":"text","text":"hi"`, `"type":"novel"`, "unknown type"},
		{user, `{"role":"user","content":[{"type":"text","text":"a",` + marker[:len(marker)-1] + `},{"type":"text","text":"b","cache_control":{"type":"ephemeral","ttl":"1h"}}]}`, "must not come after"},
		{user, `{"role":"user","content":[` + strings.Repeat(`{"type":"text",`+marker+`"text":"x"},`, 5) + `{"type":"text","text":"x"}]}`, "maximum of 4"},
	} {
		body := strings.Replace(fine, c.old, c.new, 1)
		if body == fine {
			t.Fatalf("%s is not in the request", c.old)
		}
		if _, err := Check([]byte(body)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.new, err, c.says)
		}
	}
}

// Reasoning is bound to all that precedes its message but the markers.
func TestSign(t *testing.T) {
	first := strings.Replace(head, `"type":"object"`, `"type":"object","const":1.0`, 1) + user + "]}"
	signature, err := Sign([]byte(first))
	if err != nil {
		t.Fatal(err)
	}
	next := strings.TrimSuffix(first, "]}") + "," + strings.Replace(call, `"signature":"s"`, `"signature":"`+signature+`"`, 1) + "," + done + "]}"
	if r, err := Check([]byte(next)); err != nil || r.Dropped != 0 {
		t.Errorf("unchanged: %+v, %v", r, err)
	}
	if _, err := Check([]byte(strings.Replace(next, `"text":"hi"`, `"text":"hi","cache_control":{"type":"ephemeral"}`, 1))); err != nil {
		t.Errorf("with a marker: %v", err)
	}
	changed := strings.Replace(next, `"text":"hi"`, `"text":"ho"`, 1)
	if _, err := Check([]byte(changed)); err == nil || !strings.Contains(err.Error(), "different conversation") {
		t.Errorf("changed: %v", err)
	}
	if r, err := CheckUnbound([]byte(changed)); err != nil || r.Dropped != 0 {
		t.Errorf("changed, for a model that binds none: %+v, %v", r, err)
	}
	drops := strings.Replace(changed, `"max_tokens":2000`, `"max_tokens":2000,"thinking":{"type":"adaptive","block_binding":{"prefix_mismatch_behavior":"drop_block"}}`, 1)
	if r, err := Check([]byte(drops)); err != nil || r.Dropped != 1 {
		t.Errorf("changed, to be dropped: %+v, %v", r, err)
	}
}
