package providertest

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// A checked is a request that an API takes, and what it does not take in its
// place.
type checked struct {
	api  API
	path string
	fine string
	bad  []struct{ old, new, says string }
}

const (
	chatFine = `{"model":"m","stream":true,"stream_options":{"include_usage":true},"prompt_cache_options":{"mode":"explicit"},"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"xs":{"type":"array","items":{}}}}}}],"messages":[` +
		`{"role":"system","content":[{"type":"text","text":"Be brief.","prompt_cache_breakpoint":{"mode":"explicit"}}]},{"role":"user","content":"hi"},` +
		`{"role":"assistant","content":"I look","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"b","type":"function","function":{"name":"f","arguments":"{}"}}]},` +
		`{"role":"tool","tool_call_id":"a","content":""},{"role":"tool","tool_call_id":"b","content":[{"type":"text","text":"x"}]},` +
		`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0="}},{"type":"text","text":"so?"}]}]}`
	responsesFine = `{"model":"m","stream":true,"store":false,"include":["reasoning.encrypted_content"],"prompt_cache_options":{"mode":"explicit"},"tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object","properties":{}},"strict":false}],"input":[` +
		`{"role":"system","content":[{"type":"input_text","text":"Be brief.","prompt_cache_breakpoint":{"mode":"explicit"}}]},{"role":"user","content":"hi"},` +
		`{"id":"rs_1","type":"reasoning","summary":[],"encrypted_content":"g"},{"type":"message","role":"assistant","content":"I look"},` +
		`{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call","call_id":"b","name":"f","arguments":"{}"},` +
		`{"type":"function_call_output","call_id":"a","output":""},{"type":"function_call_output","call_id":"b","output":[{"type":"input_text","text":"x"}]},` +
		`{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,iVBORw0="},{"type":"input_text","text":"so?"}]}]}`
)

// Each rule catches a request that breaks it, and nothing else.
func TestChecks(t *testing.T) {
	many := `"tools":[` + strings.Repeat(`{"type":"function","function":{"name":"g","parameters":{"type":"object","properties":{}}}},`, 128)
	long := `"` + strings.Repeat("d", 1025) + `"`
	five := func(part string) string { return `"content":[` + strings.Repeat(part+",", 4) + part + `]` }
	for _, c := range []checked{
		{Chat, "/chat/completions", chatFine, []struct{ old, new, says string }{
			{`"model":"m"`, `"model":""`, "model parameter"},
			{`"model":"m"`, `"model":"m","novel":1`, "unknown field"},
			{`"stream":true`, `"stream":false`, "no stream"},
			{`"stream":true`, `"stream":true,"max_completion_tokens":0`, "below the minimum"},
			{`"stream":true`, `"stream":true,"temperature":3`, "temperature"},
			{`"stream":true`, `"stream":true,"reasoning_effort":"huge"`, "effort"},
			{`"stream":true`, `"stream":true,"prompt_cache_key":"` + strings.Repeat("k", 65) + `"`, "too long"},
			{`"prompt_cache_options":{"mode":"explicit"},`, "", "prompt_cache_options"},
			{`"prompt_cache_options":{"mode":"explicit"}`, `"prompt_cache_options":{"mode":"manual"}`, "prompt_cache_options.mode"},
			{`"prompt_cache_options":{"mode":"explicit"}`, `"prompt_cache_options":{"mode":"explicit","ttl":"24h"}`, "prompt_cache_options.ttl"},
			{`"prompt_cache_options":{"mode":"explicit"}`, `"prompt_cache_options":{"mode":"explicit"},"prompt_cache_retention":"24h"`, "beside"},
			{`"prompt_cache_options":{"mode":"explicit"}`, `"prompt_cache_retention":"12h"`, "prompt_cache_retention: invalid"},
			{`"tools":[`, many, "array too long"},
			{`{"type":"function",`, `{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}},{"type":"function",`, "illegal or there twice"},
			{`"description":"d"`, `"description":` + long, "description: string too long"},
			{`"name":"f","description"`, `"name":"f.g","description"`, "illegal"},
			{`"type":"object","properties"`, `"properties"`, "type: \"object\""},
			{`"type":"object","properties"`, `"type":"object","anyOf":[],"properties"`, "top level"},
			{`"properties":{"xs":{"type":"array","items":{}}}`, `"x":1`, "missing properties"},
			{`,"items":{}`, ``, "missing items"},
			{`{"role":"user","content":"hi"},`, `{"role":"user","content":"hi"},{"role":"system","content":"x"},`, "at the beginning"},
			{`"content":"hi"`, `"content":""`, "content is empty"},
			{`"content":"hi"`, `"content":[]`, "content"},
			{`{"role":"user","content":"hi"},`, `{"role":"user","content":"hi"},{"role":"user","content":"ho"},`, "alternate"},
			{`"content":"I look",`, `"content":"I look","novel":1,`, "never said"},
			{`{"id":"a",`, `{"id":"",`, "empty or there twice"},
			{`{"id":"b",`, `{"id":"a",`, "empty or there twice"},
			{`{"id":"a",`, `{"id":"` + strings.Repeat("i", 41) + `",`, "maximum length 40"},
			{`"arguments":"{}"`, `"arguments":"[]"`, "no JSON object"},
			{`{"role":"tool","tool_call_id":"a","content":""},`, ``, "must be followed"},
			{`{"role":"tool","tool_call_id":"a","content":""},`, `{"role":"user","content":"x"},`, "must be followed"},
			{`"tool_call_id":"a"`, `"tool_call_id":"b"`, "must be followed"},
			{`"text":"x"`, `"text":""`, "a part"},
			{`{"type":"text","text":"x"}`, `{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0="}}`, "role tool"},
			{`base64,iVBORw0=`, `base64,AAAA`, "invalid image"},
			{`"content":"hi"`, five(`{"type":"text","text":"x","prompt_cache_breakpoint":{"mode":"explicit"}}`), "more than 4"},
			{`,{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0="}},{"type":"text","text":"so?"}]}`, `,{"role":"assistant","content":"x"}`, "nothing is asked"},
			{`,"tool_calls":[`, `,"tool_calls":[],"x":[`, "too short"},
			{`{"role":"user","content":"hi"},`, `{"role":"user","content":"hi"},{"role":"assistant","content":null},`, "no tool_calls"},
			{`{"role":"user","content":"hi"},`, `{"role":"tool","tool_call_id":"z","content":"x"},`, "response to a preceding"},
		}},
		{Responses, "/responses", responsesFine, []struct{ old, new, says string }{
			{`"model":"m"`, `"model":"m","messages":[]`, "unknown field"},
			{`"store":false`, `"store":true`, "stored"},
			{`"store":false`, `"store":false,"max_output_tokens":15`, ">= 16"},
			{`"store":false`, `"store":false,"reasoning":{"effort":"huge"}`, "effort"},
			{`"store":false`, `"store":false,"prompt_cache_key":"` + strings.Repeat("k", 65) + `"`, "too long"},
			{`"prompt_cache_options":{"mode":"explicit"}`, `"prompt_cache_options":{"mode":"manual"}`, "prompt_cache_options.mode"},
			{`"prompt_cache_options":{"mode":"explicit"}`, `"prompt_cache_options":{"mode":"explicit","ttl":"24h"}`, "prompt_cache_options.ttl"},
			{`"prompt_cache_options":{"mode":"explicit"}`, `"prompt_cache_options":{"mode":"explicit"},"prompt_cache_retention":"24h"`, "beside"},
			{`"prompt_cache_options":{"mode":"explicit"}`, `"prompt_cache_retention":"12h"`, "prompt_cache_retention: invalid"},
			{`"strict":false`, `"strict":true`, "strict"},
			{`,"strict":false`, ``, "strict"},
			{`"description":"d"`, `"description":` + long, "description: string too long"},
			{`"properties":{}`, `"x":1`, "missing properties"},
			{`{"role":"user","content":"hi"},`, `{"role":"user","content":"hi"},{"role":"system","content":"x"},`, "mid-conversation"},
			{`"content":"hi"`, `"content":""`, "content is empty"},
			{`"type":"input_text","text":"x"`, `"type":"text","text":"x"`, "a part"},
			{`"encrypted_content":"g"`, `"encrypted_content":""`, "encrypted_content"},
			{`"encrypted_content":"g"`, `"encrypted_content":"h"`, "could not be verified"},
			{`{"type":"message","role":"assistant","content":"I look"},{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call","call_id":"b","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"a","output":""},{"type":"function_call_output","call_id":"b","output":[{"type":"input_text","text":"x"}]},`, ``, "required following item"},
			{`"type":"message","role":"assistant"`, `"id":"msg_1","type":"message","role":"assistant"`, "not persisted"},
			{`"content":"I look"`, `"content":""`, "content is empty"},
			{`"call_id":"b","name"`, `"call_id":"a","name"`, "there twice"},
			{`"call_id":"a","name"`, `"call_id":"` + strings.Repeat("i", 65) + `","name"`, "too long"},
			{`"arguments":"{}"`, `"arguments":"{"`, "no JSON object"},
			{`{"type":"function_call_output","call_id":"a","output":""},`, ``, "no tool call found"},
			{`{"type":"function_call_output","call_id":"a","output":""},{"type":"function_call_output","call_id":"b","output":[{"type":"input_text","text":"x"}]},`, ``, "no tool output found"},
			{`base64,iVBORw0=`, `base64,AAAA`, "invalid image"},
			{`"content":"hi"`, five(`{"type":"input_text","text":"x","prompt_cache_breakpoint":{"mode":"explicit"}}`), "more than 4"},
			{`,{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,iVBORw0="},{"type":"input_text","text":"so?"}]}`, `,{"role":"assistant","content":"x"}`, "nothing is asked"},
			{`"type":"function_call","call_id":"a"`, `"type":"novel","call_id":"a"`, "invalid value"},
		}},
	} {
		s := &Stub{api: c.api, o: Options{Alternate: true}, said: &sayings{all: map[string]bool{`{"id":"rs_1","type":"reasoning","summary":[],"encrypted_content":"g"}`: true}}}
		check := func(body string) (*Request, error) {
			return dialects[c.api].check(s, httptest.NewRequest("POST", c.path, nil), []byte(body))
		}
		r, err := check(c.fine)
		if err != nil || r.Markers != 1 || r.TailMarkers != 0 || r.Images != 1 || !strings.Contains(r.Shown, "Be brief.\nhi\n") || r.Last != "so?\n" {
			t.Fatalf("%s: %+v, %v", c.api, r, err)
		}
		for _, b := range c.bad {
			body := strings.Replace(c.fine, b.old, b.new, 1)
			if body == c.fine {
				t.Fatalf("%s: %s is not in the request", c.api, b.old)
			}
			if _, err := check(body); err == nil || !strings.Contains(err.Error(), b.says) {
				t.Errorf("%s: %.200s: %v, want %q", c.api, b.new, err, b.says)
			}
		}
		tail := strings.Replace(c.fine, `"text":"Be brief."`, `"text":"`+TailText+`"`, 1)
		if r, err := check(tail); err != nil || r.TailMarkers != 1 || r.Tails != 1 {
			t.Errorf("%s: a marked trailing message: %+v, %v", c.api, r, err)
		}
		if _, err := dialects[c.api].check(s, httptest.NewRequest("POST", "/x", nil), []byte(c.fine)); err == nil {
			t.Errorf("%s: another path is taken", c.api)
		}
	}
}
