package providertest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"unicode/utf8"
)

// What OpenAI's two APIs have in common.

var openAIName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

const (
	maxTools       = 128
	maxDescription = 1024
	maxCallID      = 40 // of Chat Completions, in characters
	maxItemCallID  = 64 // of the Responses API
	maxCacheKey    = 64
	maxMarkers     = 4
)

// A function is a tool's definition.
type function struct {
	Name        string         `json:"name"`
	Description *string        `json:"description"`
	Parameters  map[string]any `json:"parameters"`
	Strict      *bool          `json:"strict"`
}

func checkFunctions(fs []function, r *Request) error {
	if len(fs) > maxTools {
		return fmt.Errorf("tools: array too long: %d, want at most %d", len(fs), maxTools)
	}
	seen := map[string]bool{}
	for i, f := range fs {
		at := fmt.Sprintf("tools[%d]", i)
		switch {
		case !openAIName.MatchString(f.Name) || seen[f.Name]:
			return fmt.Errorf("%s: the name %q is illegal or there twice", at, f.Name)
		case f.Description != nil && utf8.RuneCountInString(*f.Description) > maxDescription:
			return fmt.Errorf("%s: description: string too long: want at most %d", at, maxDescription)
		}
		seen[f.Name] = true
		if err := checkParameters(f.Parameters); err != nil {
			return fmt.Errorf("%s: invalid schema for function %q: %w", at, f.Name, err)
		}
		r.Tools = append(r.Tools, f.Name)
	}
	return nil
}

func checkParameters(schema map[string]any) error {
	if schema["type"] != "object" {
		return fmt.Errorf("schema must be a JSON Schema of 'type: \"object\"', got %v", schema["type"])
	}
	for _, k := range []string{"oneOf", "anyOf", "allOf", "enum", "not", "const"} {
		if _, ok := schema[k]; ok {
			return fmt.Errorf("schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level")
		}
	}
	if _, ok := schema["properties"].(map[string]any); !ok {
		return fmt.Errorf("object schema missing properties")
	}
	return checkArrays(schema)
}

// checkArrays refuses an array without items, at any depth.
func checkArrays(v any) error {
	switch v := v.(type) {
	case map[string]any:
		if _, ok := v["items"]; v["type"] == "array" && !ok {
			return fmt.Errorf("array schema missing items")
		}
		for _, x := range v {
			if err := checkArrays(x); err != nil {
				return err
			}
		}
	case []any:
		for _, x := range v {
			if err := checkArrays(x); err != nil {
				return err
			}
		}
	}
	return nil
}

// decodeStrictly refuses a body with a field that is not known.
func decodeStrictly(body []byte, to any) error {
	if !utf8.Valid(body) {
		return fmt.Errorf("the body is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	return dec.Decode(to)
}

// A marker is what stands where a prefix ends that is to be cached.
type marker struct {
	Mode string `json:"mode"`
}

// cacheOptions are those of a request.
type cacheOptions struct {
	Mode string `json:"mode"`
	TTL  string `json:"ttl"`
}

// check refuses what is not documented of them, and of the older option that
// they replace.
func (o *cacheOptions) check(retention *string) error {
	if retention != nil && *retention != "in_memory" && *retention != "24h" {
		return fmt.Errorf("prompt_cache_retention: invalid value %q", *retention)
	}
	switch {
	case o == nil:
		return nil
	case retention != nil:
		return fmt.Errorf("prompt_cache_retention can't stand beside prompt_cache_options")
	case o.Mode != "" && o.Mode != "implicit" && o.Mode != "explicit":
		return fmt.Errorf("prompt_cache_options.mode: invalid value %q", o.Mode)
	case o.TTL != "" && o.TTL != "30m" && o.TTL != "12h":
		return fmt.Errorf("prompt_cache_options.ttl: invalid value %q", o.TTL)
	}
	return nil
}

func (m *marker) check(r *Request, options *cacheOptions, text string) error {
	if m == nil {
		return nil
	}
	if m.Mode != "explicit" || options == nil || options.Mode != "explicit" {
		return fmt.Errorf("prompt_cache_breakpoint: mode %q, without prompt_cache_options of it", m.Mode)
	}
	if strings.HasPrefix(text, TailText) {
		r.TailMarkers++
	}
	if r.Markers++; r.Markers > maxMarkers {
		return fmt.Errorf("prompt_cache_breakpoint: more than %d", maxMarkers)
	}
	return nil
}

// checkDataURL refuses an image that is not what its URL says.
func checkDataURL(url string) error {
	head, data, ok := strings.Cut(url, ";base64,")
	raw, err := base64.StdEncoding.DecodeString(data)
	magic := map[string]string{"data:image/png": "\x89PNG", "data:image/jpeg": "\xff\xd8\xff", "data:image/gif": "GIF8", "data:image/webp": "RIFF"}[head]
	if !ok || err != nil || magic == "" || !bytes.HasPrefix(raw, []byte(magic)) {
		return fmt.Errorf("invalid image: %.40q", url)
	}
	return nil
}

func checkEffort(s *string) error {
	if s == nil {
		return nil
	}
	switch *s {
	case "none", "minimal", "low", "medium", "high", "xhigh":
		return nil
	}
	return fmt.Errorf("reasoning effort %q", *s)
}

func refuseOpenAI(w http.ResponseWriter, status int, message string) {
	kind := map[int]string{400: "invalid_request_error", 429: "rate_limit_exceeded", 529: "server_error"}[status]
	if status == 529 {
		status = http.StatusServiceUnavailable
	}
	code := "null"
	switch {
	case strings.Contains(message, "encrypted content"):
		code = `"invalid_encrypted_content"`
	case strings.Contains(message, "image data"):
		code = `"invalid_image"`
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":{"message":%s,"type":%q,"param":null,"code":%s}}`, quote(message), kind, code)
}
