package strictjson

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Decode decodes data into v, a non-nil pointer, and rejects what
// encoding/json lets pass: all that [Check] finds, a field that the struct
// doesn't have (names are compared exactly, case included), and null where
// the Go type has no such value. The error is an *[Error] that lists every
// problem, not the first alone, up to 100; v is then unchanged.
//
// A type with its own UnmarshalJSON or UnmarshalText is left to that method.
func Decode(data []byte, v any) error {
	scanned, err := Scan(data)
	if err != nil {
		return err
	}
	w := walker{problems: scanned.Problems}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		return &Error{[]Problem{{Syntax, "", 0, err.Error()}}}
	}
	w.value("", doc, reflect.TypeOf(v).Elem())
	if len(w.problems) > 0 {
		return &Error{w.problems}
	}
	fresh := reflect.New(reflect.TypeOf(v).Elem())
	fresh.Elem().Set(reflect.ValueOf(v).Elem())
	if err := json.Unmarshal(data, fresh.Interface()); err != nil {
		return &Error{[]Problem{{Type, "", 0, err.Error()}}}
	}
	reflect.ValueOf(v).Elem().Set(fresh.Elem())
	return nil
}

type walker struct{ problems []Problem }

func (w *walker) report(c Class, path, format string, args ...any) {
	if len(w.problems) < maxProblems {
		w.problems = append(w.problems, Problem{c, cut(path), 0, fmt.Sprintf(format, args...)})
	}
}

func (w *walker) value(path string, v any, t reflect.Type) {
	if v == nil {
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface:
		default:
			w.report(Type, path, "got null, want %s", wanted(t))
		}
		return
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	p := reflect.PointerTo(t)
	switch {
	case p.Implements(reflect.TypeFor[json.Unmarshaler]()):
		return
	case p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		s, ok := v.(string)
		if !ok {
			w.report(Type, path, "got %s, want a string", got(v))
		} else if err := reflect.New(t).Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s)); err != nil {
			w.report(Type, path, "%v", err)
		}
		return
	case t.Kind() == reflect.Interface:
		return
	}
	ok := true
	switch v := v.(type) {
	case map[string]any:
		switch t.Kind() {
		case reflect.Struct:
			w.fields(path, v, t)
		case reflect.Map:
			for _, k := range slices.Sorted(maps.Keys(v)) {
				w.value(Key(path, k), v[k], t.Elem())
			}
		default:
			ok = false
		}
	case []any:
		if ok = t.Kind() == reflect.Slice || t.Kind() == reflect.Array; ok {
			for i, e := range v {
				w.value(Index(path, i), e, t.Elem())
			}
		}
	case json.Number:
		if !fits(v.String(), t) {
			w.report(Type, path, "got %.40s, want %s", v, wanted(t))
		}
	case string:
		ok = t.Kind() == reflect.String || t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8
	case bool:
		ok = t.Kind() == reflect.Bool
	}
	if !ok {
		w.report(Type, path, "got %s, want %s", got(v), wanted(t))
	}
}

func (w *walker) fields(path string, v map[string]any, t reflect.Type) {
	known := make(map[string]reflect.Type)
	addFields(known, t)
	for _, k := range slices.Sorted(maps.Keys(v)) {
		if ft, ok := known[k]; ok {
			w.value(Key(path, k), v[k], ft)
			continue
		}
		w.report(Unknown, Key(path, k), "unknown field: want one of %s", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	}
}

// addFields adds the fields of t by their JSON names, with those of embedded
// structs, which outer ones hide.
func addFields(known map[string]reflect.Type, t reflect.Type) {
	var embedded []reflect.Type
	for i := range t.NumField() {
		f := t.Field(i)
		tag, tagged := f.Tag.Lookup("json")
		name, _, _ := strings.Cut(tag, ",")
		if f.Anonymous && name == "" {
			ft := f.Type
			if ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			if ft.Kind() == reflect.Struct {
				embedded = append(embedded, ft)
				continue
			}
		}
		if !f.IsExported() || tagged && tag == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		if _, ok := known[name]; !ok {
			known[name] = f.Type
		}
	}
	for _, e := range embedded {
		addFields(known, e)
	}
}

func fits(n string, t reflect.Type) bool {
	var err error
	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		_, err = strconv.ParseInt(n, 10, t.Bits())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		_, err = strconv.ParseUint(n, 10, t.Bits())
	case reflect.Float32, reflect.Float64:
		_, err = strconv.ParseFloat(n, t.Bits())
	default:
		return t == reflect.TypeFor[json.Number]()
	}
	return err == nil
}

func got(v any) string {
	switch v.(type) {
	case map[string]any:
		return "an object"
	case []any:
		return "an array"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	}
	return "null"
}

func wanted(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch k := t.Kind(); {
	case t == reflect.TypeFor[json.Number](), k == reflect.Float32, k == reflect.Float64:
		return "a number"
	case k >= reflect.Int && k <= reflect.Int64:
		return fmt.Sprintf("an integer of at most %d bits", t.Bits())
	case k >= reflect.Uint && k <= reflect.Uintptr:
		return fmt.Sprintf("an integer of at most %d bits, not negative", t.Bits())
	case k == reflect.String:
		return "a string"
	case k == reflect.Bool:
		return "a boolean"
	case k == reflect.Struct, k == reflect.Map:
		return "an object"
	case k == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return "a string in base64"
	case k == reflect.Slice, k == reflect.Array:
		return "an array"
	}
	return "another type"
}
