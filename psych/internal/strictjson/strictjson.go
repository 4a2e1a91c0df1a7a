// Package strictjson reads JSON more strictly than encoding/json does: a key
// that an object holds twice, a second value behind the first, a lone
// surrogate and invalid UTF-8 are found and named by their path instead of
// being dropped or replaced silently, and nothing is recursive, so that no
// input overflows the stack.
//
// It works on bytes and changes none that it need not: [Compact] and [Repair]
// keep the spelling of numbers, the order of keys and the escapes of strings.
package strictjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxDepth is how deep arrays and objects may be nested. It is that of
// encoding/json, so that what passes here can be decoded there.
const MaxDepth = 10_000

// Bounds of a number. Within them its exact value costs little to compute;
// outside of them no float64 holds it anyway.
const (
	maxNumberBytes = 1000
	maxExponent    = 400
)

// maxProblems bounds what one pass reports, and maxPath each path of it, so
// that a hostile input doesn't make a report larger than itself.
const (
	maxProblems = 100
	maxPath     = 200
)

// A Class is a kind of problem.
type Class int

// Classes of problems. After the first two nothing more is known of the input.
const (
	Syntax    Class = iota // not one JSON value
	Depth                  // nested deeper than MaxDepth
	Duplicate              // a key that its object holds already
	Surrogate              // an escape of half a surrogate pair
	Encoding               // bytes that aren't UTF-8
	Range                  // a number with over 1,000 bytes or an exponent beyond 400
	Unknown                // a field that the Go type lacks
	Type                   // a value that the Go type can't hold
)

// A Problem is one thing that is wrong. Path is "" for the whole value,
// otherwise like "limits.turns" or "tools[2]".
type Problem struct {
	Class   Class
	Path    string
	Offset  int // in bytes; 0 where it isn't known
	Message string
}

func (p Problem) String() string {
	if p.Path == "" {
		return p.Message
	}
	return p.Path + ": " + p.Message
}

// An Error is at least one Problem.
type Error struct{ Problems []Problem }

func (e *Error) Error() string {
	var b strings.Builder
	for i, p := range e.Problems {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(p.String())
	}
	return b.String()
}

// A Value is what [Scan] learned of a JSON value.
type Value struct {
	Kind     byte // the first byte: one of { [ " t f n - 0..9
	Depth    int  // how deep arrays and objects are nested; 0 for a scalar
	Problems []Problem
}

// Has reports whether the value has a problem of one of the classes.
func (v Value) Has(classes ...Class) bool {
	for _, p := range v.Problems {
		for _, c := range classes {
			if p.Class == c {
				return true
			}
		}
	}
	return false
}

// Scan passes over data once. The error is an *[Error] of class Syntax or
// Depth if data is not exactly one JSON value; what else is wrong, of classes
// Duplicate to Range, stands in the Value, in order, the first 100.
func Scan(data []byte) (Value, error) {
	s := scanner{data: data}
	if err := s.scan(); err != nil {
		return Value{}, err
	}
	return s.value, nil
}

// Check returns an *[Error] with all that [Scan] finds.
func Check(data []byte) error {
	v, err := Scan(data)
	if err == nil && len(v.Problems) > 0 {
		err = &Error{v.Problems}
	}
	return err
}

// Key is the path of a member of what lies at path.
func Key(path, key string) string {
	if !plainKey(key) {
		return path + "[" + strconv.Quote(key) + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// Index is the path of an element of what lies at path.
func Index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

func plainKey(key string) bool {
	for i := 0; i < len(key); i++ {
		c := key[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '-' || c == '$' || c >= '0' && c <= '9' && i > 0) {
			return false
		}
	}
	return key != ""
}

// A frame is an array or object that is open.
type frame struct {
	object bool
	index  int                 // of the element, in an array
	base   int                 // of its keys in scanner.keys
	many   map[string]struct{} // its keys, once they are more than few
}

// few is up to how many keys a search among them is quicker than a map.
const few = 16

type scanner struct {
	data   []byte
	pos    int
	frames []frame
	keys   [][]byte // of all open objects
	value  Value

	firstFrames [8]frame // of a small value, so that it costs no allocation
	firstKeys   [16][]byte
}

func (s *scanner) scan() error {
	s.frames, s.keys = s.firstFrames[:0], s.firstKeys[:0]
	s.space()
	if s.pos == len(s.data) {
		return s.fatal(Syntax, "no JSON: the input is empty")
	}
	s.value.Kind = s.data[s.pos]
	for {
		opened, err := s.one()
		if err != nil {
			return err
		}
		if opened {
			continue
		}
		more, err := s.next()
		if err != nil || !more {
			return err
		}
	}
}

// one reads a scalar, an empty array or object, or what stands before the
// first value of one that is not empty; then opened is true.
func (s *scanner) one() (opened bool, err error) {
	s.space()
	if s.pos == len(s.data) {
		return false, s.ended()
	}
	switch c := s.data[s.pos]; {
	case c == '{' || c == '[':
		if len(s.frames) == MaxDepth {
			return false, s.fatal(Depth, fmt.Sprintf("nested more than %d deep", MaxDepth))
		}
		s.pos++
		s.frames = append(s.frames, frame{object: c == '{', base: len(s.keys)})
		s.value.Depth = max(s.value.Depth, len(s.frames))
		s.space()
		if s.pos < len(s.data) && s.data[s.pos] == c+2 { // '}' and ']' stand two behind '{' and '['
			s.pos++
			s.pop()
			return false, nil
		}
		if c == '{' {
			return true, s.key()
		}
		return true, nil
	case c == '"':
		raw, odd, err := s.str()
		if err == nil && odd != 0 {
			s.odd(odd, raw)
		}
		return false, err
	case c == '-' || c >= '0' && c <= '9':
		return false, s.number()
	case c == 't':
		return false, s.literal("true")
	case c == 'f':
		return false, s.literal("false")
	case c == 'n':
		return false, s.literal("null")
	}
	return false, s.unexpected("a value")
}

// next reads what stands behind a value, and reports whether another follows.
func (s *scanner) next() (more bool, err error) {
	for {
		s.space()
		if len(s.frames) == 0 {
			if s.pos < len(s.data) {
				return false, s.fatal(Syntax, fmt.Sprintf("more behind the end of the value, at byte %d: want one JSON value", s.pos))
			}
			return false, nil
		}
		if s.pos == len(s.data) {
			return false, s.ended()
		}
		f := &s.frames[len(s.frames)-1]
		switch c := s.data[s.pos]; {
		case c == ',' && f.object:
			s.pos++
			return true, s.key()
		case c == ',':
			s.pos++
			f.index++
			return true, nil
		case c == '}' && f.object, c == ']' && !f.object:
			s.pos++
			s.pop()
		case f.object:
			return false, s.unexpected("a comma or }")
		default:
			return false, s.unexpected("a comma or ]")
		}
	}
}

func (s *scanner) pop() {
	f := s.frames[len(s.frames)-1]
	s.frames = s.frames[:len(s.frames)-1]
	s.keys = s.keys[:f.base]
}

// key reads a key and its colon.
func (s *scanner) key() error {
	s.space()
	if s.pos == len(s.data) {
		return s.ended()
	}
	if s.data[s.pos] != '"' {
		return s.unexpected("a key in double quotes")
	}
	at := s.pos
	raw, odd, err := s.str()
	if err != nil {
		return err
	}
	key := raw[1 : len(raw)-1]
	if odd != 0 || bytes.IndexByte(key, '\\') >= 0 {
		// As encoding/json reads it: two keys that it takes for one are one.
		var k string
		if err := json.Unmarshal(raw, &k); err != nil {
			return s.fatal(Syntax, err.Error())
		}
		key = []byte(k)
	}
	f := &s.frames[len(s.frames)-1]
	twice := f.holds(s.keys[f.base:], key)
	s.keys = append(s.keys, key)
	if f.many != nil {
		f.many[string(key)] = struct{}{}
	}
	if twice {
		s.report(Duplicate, at, "the key stands twice in its object")
	}
	if odd != 0 {
		s.odd(odd, raw)
	}
	s.space()
	if s.pos == len(s.data) {
		return s.ended()
	}
	if s.data[s.pos] != ':' {
		return s.unexpected("a colon")
	}
	s.pos++
	return nil
}

func (f *frame) holds(keys [][]byte, key []byte) bool {
	if len(keys) < few {
		for _, k := range keys {
			if bytes.Equal(k, key) {
				return true
			}
		}
		return false
	}
	if f.many == nil {
		f.many = make(map[string]struct{}, 2*few)
		for _, k := range keys {
			f.many[string(k)] = struct{}{}
		}
	}
	_, ok := f.many[string(key)]
	return ok
}

// Bits of what is odd about a string.
const (
	oddSurrogate = 1 << iota
	oddEncoding
)

func (s *scanner) odd(odd int, raw []byte) {
	at := s.pos - len(raw)
	if odd&oddSurrogate != 0 {
		s.report(Surrogate, at, "the string holds half of a surrogate pair (\\ud800 to \\udfff without its other half)")
	}
	if odd&oddEncoding != 0 {
		s.report(Encoding, at, "the string is not valid UTF-8")
	}
}

// str reads a string, from quote to quote.
func (s *scanner) str() (raw []byte, odd int, err error) {
	start, d := s.pos, s.data
	for i := start + 1; i < len(d); {
		switch c := d[i]; {
		case c == '"':
			s.pos = i + 1
			return d[start:s.pos], odd, nil
		case c == '\\':
			n, lone := escape(d[i:])
			if n == 0 {
				s.pos = i
				if len(d)-i < 2 || d[i+1] == 'u' && len(d)-i < 6 {
					return nil, 0, s.ended()
				}
				return nil, 0, s.fatal(Syntax, fmt.Sprintf("illegal escape in a string, at byte %d", i))
			}
			if lone {
				odd |= oddSurrogate
			}
			i += n
		case c < ' ':
			s.pos = i
			return nil, 0, s.fatal(Syntax, fmt.Sprintf("control character %#02x in a string, at byte %d: want it escaped", c, i))
		case c < utf8.RuneSelf:
			i++
		default:
			r, n := utf8.DecodeRune(d[i:])
			if r == utf8.RuneError && n == 1 {
				odd |= oddEncoding
			}
			i += n
		}
	}
	s.pos = len(d)
	return nil, 0, s.ended()
}

// escape returns the length of the escape at the start of d, both halves of a
// surrogate pair together, 0 for none that is legal, and whether it is one
// half alone.
func escape(d []byte) (n int, lone bool) {
	if len(d) < 2 {
		return 0, false
	}
	switch d[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2, false
	case 'u':
		r, ok := hex4(d)
		switch {
		case !ok:
			return 0, false
		case r < 0xd800 || r > 0xdfff:
			return 6, false
		case r < 0xdc00:
			if low, ok := hex4(d[6:]); ok && low >= 0xdc00 && low <= 0xdfff {
				return 12, false
			}
		}
		return 6, true
	}
	return 0, false
}

// hex4 reads \uXXXX.
func hex4(d []byte) (r rune, ok bool) {
	if len(d) < 6 || d[0] != '\\' || d[1] != 'u' {
		return 0, false
	}
	for _, c := range d[2:6] {
		r <<= 4
		switch {
		case c >= '0' && c <= '9':
			r |= rune(c - '0')
		case c >= 'a' && c <= 'f':
			r |= rune(c - 'a' + 10)
		case c >= 'A' && c <= 'F':
			r |= rune(c - 'A' + 10)
		default:
			return 0, false
		}
	}
	return r, true
}

func (s *scanner) number() error {
	start := s.pos
	if s.data[s.pos] == '-' {
		s.pos++
	}
	switch {
	case s.pos < len(s.data) && s.data[s.pos] == '0':
		s.pos++
	case s.digits() == 0:
		return s.unexpected("a digit")
	}
	if s.pos < len(s.data) && s.data[s.pos] == '.' {
		s.pos++
		if s.digits() == 0 {
			return s.unexpected("a digit")
		}
	}
	exp := 0
	if s.pos < len(s.data) && s.data[s.pos]|0x20 == 'e' {
		s.pos++
		if s.pos < len(s.data) && (s.data[s.pos] == '+' || s.data[s.pos] == '-') {
			s.pos++
		}
		at := s.pos
		if s.digits() == 0 {
			return s.unexpected("a digit")
		}
		for _, c := range s.data[at:s.pos] {
			exp = min(exp*10+int(c-'0'), maxExponent+1)
		}
	}
	if s.pos-start > maxNumberBytes || exp > maxExponent {
		s.report(Range, start, fmt.Sprintf("the number is out of range: want at most %d characters and an exponent from -%d to %[2]d", maxNumberBytes, maxExponent))
	}
	return nil
}

func (s *scanner) digits() int {
	start := s.pos
	for s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
		s.pos++
	}
	return s.pos - start
}

func (s *scanner) literal(want string) error {
	for i := range len(want) {
		if s.pos == len(s.data) {
			return s.ended()
		}
		if s.data[s.pos] != want[i] {
			return s.unexpected(want)
		}
		s.pos++
	}
	return nil
}

func (s *scanner) space() {
	for s.pos < len(s.data) && isSpace(s.data[s.pos]) {
		s.pos++
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

func (s *scanner) report(c Class, at int, message string) {
	if len(s.value.Problems) < maxProblems {
		s.value.Problems = append(s.value.Problems, Problem{c, s.path(), at, message})
	}
}

// path is that of the value which is being read.
func (s *scanner) path() string {
	p := ""
	for i, f := range s.frames {
		switch {
		case len(p) > maxPath:
			return cut(p)
		case !f.object:
			p = Index(p, f.index)
		default:
			end := len(s.keys)
			if i+1 < len(s.frames) {
				end = s.frames[i+1].base
			}
			if end > f.base {
				p = Key(p, string(s.keys[end-1]))
			}
		}
	}
	return cut(p)
}

func cut(path string) string {
	if len(path) <= maxPath {
		return path
	}
	return strings.ToValidUTF8(path[:maxPath], "") + "…"
}

func (s *scanner) fatal(c Class, message string) error {
	return &Error{[]Problem{{c, "", s.pos, message}}}
}

func (s *scanner) ended() error {
	return s.fatal(Syntax, fmt.Sprintf("not JSON: it ends too early, at byte %d", s.pos))
}

func (s *scanner) unexpected(want string) error {
	if s.pos == len(s.data) {
		return s.ended()
	}
	r, _ := utf8.DecodeRune(s.data[s.pos:])
	return s.fatal(Syntax, fmt.Sprintf("not JSON: %q at byte %d: want %s", r, s.pos, want))
}
