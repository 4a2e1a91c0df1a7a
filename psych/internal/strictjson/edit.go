package strictjson

import (
	"encoding/json"
	"unicode/utf8"
)

// Compact returns data without insignificant whitespace, and otherwise byte
// for byte the same. If there is none it returns data itself; it never
// changes data. The error is that of [Scan].
func Compact(data []byte) ([]byte, error) {
	if _, err := Scan(data); err != nil {
		return nil, err
	}
	return compact(data), nil
}

func compact(data []byte) []byte {
	for i := 0; i < len(data); {
		switch {
		case isSpace(data[i]):
			out := append(make([]byte, 0, len(data)-1), data[:i]...)
			return appendCompact(out, data[i:])
		case data[i] == '"':
			i += stringLen(data[i:])
		default:
			i++
		}
	}
	return data
}

func appendCompact(out, data []byte) []byte {
	for i := 0; i < len(data); {
		switch {
		case isSpace(data[i]):
			i++
		case data[i] == '"':
			n := stringLen(data[i:])
			out = append(out, data[i:i+n]...)
			i += n
		default:
			out = append(out, data[i])
			i++
		}
	}
	return out
}

// stringLen is the length of the string at the start of data, or of the rest
// if it has no end.
func stringLen(data []byte) int {
	for i := 1; i < len(data); i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(data)
}

// Repair replaces what no reader of JSON agrees on by something visible: in a
// string each half of a surrogate pair without the other becomes the escape
// \ufffd, and anywhere each byte that isn't UTF-8 becomes the character
// U+FFFD. All else stays byte for byte, also in data that isn't JSON. Where
// nothing needs it, it returns data itself and false; it never changes data.
func Repair(data []byte) (_ []byte, repaired bool) {
	var out []byte // nil until something is repaired
	done := 0      // up to where data is in out
	replace := func(from, to int, by string) {
		out = append(append(out, data[done:from]...), by...)
		done = to
	}
	quoted := false
	for i := 0; i < len(data); {
		switch c := data[i]; {
		case c == '"':
			quoted = !quoted
			i++
		case c == '\\' && quoted:
			n, lone := escape(data[i:])
			if lone {
				replace(i, i+n, `\ufffd`)
			}
			if n == 0 {
				n = 1
			}
			i += n
		case c < utf8.RuneSelf:
			i++
		default:
			r, n := utf8.DecodeRune(data[i:])
			if r == utf8.RuneError && n == 1 {
				replace(i, i+1, "\ufffd")
			}
			i += n
		}
	}
	if done == 0 {
		return data, false
	}
	return append(out, data[done:]...), true
}

// Canonical returns data compact and with each string in its one shortest
// spelling: escaped are ", \ and what is below U+0020, the latter as \b, \t,
// \n, \f, \r or \u00xx, and nothing else. The order of keys and the spelling
// of numbers stay. Unlike encoding/json's, the result is the same in each
// release of Go, so that it can be hashed. The error is that of [Check].
func Canonical(data []byte) ([]byte, error) {
	if err := Check(data); err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(data))
	for i := 0; i < len(data); {
		switch {
		case isSpace(data[i]):
			i++
		case data[i] == '"':
			n := stringLen(data[i:])
			var s string
			if err := json.Unmarshal(data[i:i+n], &s); err != nil {
				return nil, err
			}
			out = AppendString(out, s)
			i += n
		default:
			out = append(out, data[i])
			i++
		}
	}
	return out, nil
}

// AppendString appends s, which is valid UTF-8, as [Canonical] spells it.
func AppendString(out []byte, s string) []byte {
	const hex = "0123456789abcdef"
	out = append(out, '"')
	done := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		out = append(out, s[done:i]...)
		done = i + 1
		switch c {
		case '"', '\\':
			out = append(out, '\\', c)
		case '\b':
			out = append(out, '\\', 'b')
		case '\t':
			out = append(out, '\\', 't')
		case '\n':
			out = append(out, '\\', 'n')
		case '\f':
			out = append(out, '\\', 'f')
		case '\r':
			out = append(out, '\\', 'r')
		default:
			out = append(out, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(out, s[done:]...), '"')
}
