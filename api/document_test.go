package api_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/api"
	"github.com/psych-go/psych-go/psych"
)

// The document has each field that a report can have, also those that no answer
// of these tests has: a new one of psych.Report is a new one of the document.
func TestDocumentOfReports(t *testing.T) {
	var doc struct {
		Components struct {
			Schemas map[string]map[string]any `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(api.Document(), &doc); err != nil {
		t.Fatal(err)
	}
	fields := 0
	var check func(path string, of reflect.Type, schema map[string]any)
	check = func(path string, of reflect.Type, schema map[string]any) {
		if ref, ok := schema["$ref"].(string); ok {
			schema = doc.Components.Schemas[strings.TrimPrefix(ref, "#/components/schemas/")]
		}
		if one, ok := schema["oneOf"].([]any); ok {
			check(path, of, one[0].(map[string]any))
			return
		}
		for of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		switch {
		case of.Kind() == reflect.Slice && of != reflect.TypeFor[json.RawMessage]():
			items, _ := schema["items"].(map[string]any)
			check(path+"[]", of.Elem(), items)
			return
		case of.Kind() != reflect.Struct:
			return
		}
		properties, _ := schema["properties"].(map[string]any)
		required, _ := schema["required"].([]any)
		var names []string
		for _, f := range reflect.VisibleFields(of) {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if !f.IsExported() || name == "" {
				continue
			}
			fields++
			names = append(names, name)
			of, ok := properties[name].(map[string]any)
			if !ok {
				t.Errorf("%s.%s is not in the document", path, name)
				continue
			}
			if always := options != "omitempty"; always != slices.Contains(required, any(name)) {
				t.Errorf("%s.%s is always there: %v, and the document says otherwise", path, name, always)
			}
			check(path+"."+name, f.Type, of)
		}
		for name := range properties {
			if !slices.Contains(names, name) {
				t.Errorf("%s has no field %s, which the document has", path, name)
			}
		}
	}
	check("report", reflect.TypeFor[psych.Report](), doc.Components.Schemas["Report"])
	if fields < 70 {
		t.Errorf("%d fields were compared", fields)
	}
}
