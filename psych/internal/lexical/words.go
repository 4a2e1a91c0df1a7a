package lexical

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// kind says what a word is to the text that it was split from.
type kind uint8

const (
	whole  kind = iota
	joined      // an identifier as a whole; its parts follow
	part        // of an identifier
	single      // a character of a pair that is a word itself
)

// class is what a character is to the words around it.
type class uint8

const (
	outside class = iota
	lower
	upper
	digit
	unspaced // of a script that puts no spaces between words
)

var ascii = func() (t [utf8.RuneSelf]class) {
	for c := range t {
		switch {
		case 'a' <= c && c <= 'z':
			t[c] = lower
		case 'A' <= c && c <= 'Z':
			t[c] = upper
		case '0' <= c && c <= '9':
			t[c] = digit
		}
	}
	return
}()

// Korean has spaces, but joins particles to its words.
var spaceless = []*unicode.RangeTable{
	unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul,
	unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar,
}

func classOf(c rune) class {
	switch {
	case c < utf8.RuneSelf:
		return ascii[c]
	case 0x4e00 <= c && c <= 0x9fff, c == 'ー', c >= 0xe00 && unicode.In(c, spaceless...):
		return unspaced
	case unicode.IsUpper(c):
		return upper
	case unicode.IsLetter(c), unicode.IsMark(c):
		return lower
	case unicode.IsDigit(c):
		return digit
	}
	return outside
}

// split calls emit for each word of text, folded. The word is valid until emit
// returns. buf is memory to use, and is returned for the next call.
//
// Words are letters and digits in a row. Where case or digits divide one
// (readURLs2), it is emitted as a whole and then in parts (read, urls, 2). Of
// an unspaced script each two neighbors are a word, and each single character.
func split(text string, buf []byte, emit func(w []byte, k kind)) []byte {
	if !isASCII(text) {
		text = norm.NFKC.String(text)
	}
	plain := func(s string, k kind) { // neither case nor diacritics
		buf = append(buf[:0], s...)
		emit(buf, k)
	}
	fold := func(s string, k kind) {
		buf = appendFold(buf[:0], s)
		if len(buf) > 0 {
			emit(buf, k)
		}
	}
	for i := 0; i < len(text); {
		c, n := utf8.DecodeRuneInString(text[i:])
		switch classOf(c) {
		case outside:
			i += n
			continue
		case unspaced:
			start, before := i, ""
			for i < len(text) {
				c, n := utf8.DecodeRuneInString(text[i:])
				if classOf(c) != unspaced {
					break
				}
				if before != "" {
					plain(text[i-len(before):i+n], whole)
				}
				before = text[i : i+n]
				i += n
				if i-n == start && !startsWith(text[i:], unspaced) {
					plain(before, whole)
				} else {
					plain(before, single)
				}
			}
			continue
		}

		var borders [16]int
		cuts := borders[:0]
		start, at, last, run := i, i, outside, 0
		for i < len(text) {
			c, n := utf8.DecodeRuneInString(text[i:])
			k := classOf(c)
			if k == outside || k == unspaced {
				break
			}
			if c >= utf8.RuneSelf && unicode.IsMark(c) && last != outside {
				k = last
			}
			cut := start
			switch {
			case last == outside || k == last:
			case k == digit || last == digit, last == lower:
				cut = i
			case run > 1 && c == 's' && !startsWith(text[i+n:], lower): // the plural of an acronym
				k = upper
			default: // the last upper case letter begins the word
				cut = at
			}
			if cut > start && len(cuts) < cap(cuts) {
				cuts = append(cuts, cut)
			}
			if k == last {
				run++
			} else {
				run = 1
			}
			at, last = i, k
			i += n
		}
		if len(cuts) == 0 {
			fold(text[start:i], whole)
			continue
		}
		fold(text[start:i], joined)
		for _, c := range cuts {
			fold(text[start:c], part)
			start = c
		}
		fold(text[start:i], part)
	}
	return buf
}

func startsWith(s string, k class) bool {
	c, _ := utf8.DecodeRuneInString(s)
	return classOf(c) == k // of nothing: outside
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// appendFold appends s without case, compatibility forms and diacritics.
func appendFold(buf []byte, s string) []byte {
	if isASCII(s) {
		for i := range len(s) {
			c := s[i]
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			buf = append(buf, c)
		}
		return buf
	}
	var b strings.Builder
	for _, c := range norm.NFKD.String(s) {
		switch {
		case diacritic(c):
		case c == 'ß', c == 'ẞ':
			b.WriteString("ss")
		default: // by way of upper case, which is the same for ς and σ
			b.WriteRune(unicode.ToLower(unicode.ToUpper(c)))
		}
	}
	return norm.NFC.AppendString(buf, b.String())
}

// diacritic reports whether c is a mark that words are also written without.
// The vowels of Indic scripts and the voicing of kana are marks as well, but
// make another word.
func diacritic(c rune) bool {
	switch {
	case c < 0x300:
		return false
	case c <= 0x36f, 0x591 <= c && c <= 0x5c7, 0x64b <= c && c <= 0x65f,
		0x1ab0 <= c && c <= 0x1aff, 0x1dc0 <= c && c <= 0x1dff,
		0x20d0 <= c && c <= 0x20ff, 0xfe00 <= c && c <= 0xfe0f, 0xfe20 <= c && c <= 0xfe2f:
		return unicode.IsMark(c)
	}
	return false
}

// key returns what is left of a name where it doesn't matter how its words are
// put together: readFile, read_file and "Read file" have the same.
func key(name string) string {
	if !isASCII(name) {
		name = string(appendFold(nil, norm.NFKC.String(name)))
	}
	out := make([]byte, 0, len(name))
	for i, c := range name {
		switch k := classOf(c); {
		case k == outside:
		case k == upper && c < utf8.RuneSelf:
			out = append(out, byte(c)+'a'-'A')
		default:
			out = append(out, name[i:i+utf8.RuneLen(c)]...)
		}
	}
	return string(out)
}

// stem returns an English word without its endings of number and time. Those
// that make another word of it stay. The stem of a stem is the stem itself.
func stem(w string) string {
	for i := range len(w) {
		if w[i] < 'a' || w[i] > 'z' {
			return w
		}
	}
	for {
		root := shorten(w)
		if root == w {
			return w
		}
		w = root
	}
}

func shorten(w string) string {
	switch w {
	case "news":
		return w
	case "ids":
		return "id"
	}
	w = singular(w)
	switch n := len(w); {
	case n > 4 && strings.HasSuffix(w, "ing") && hasVowel(w[:n-3]):
		w = infinitive(w[:n-3])
	case n > 4 && strings.HasSuffix(w, "ied"):
		w = w[:n-3] + "y"
	case n > 3 && strings.HasSuffix(w, "ed") && w[n-3] != 'e' && hasVowel(w[:n-2]):
		w = infinitive(w[:n-2])
	}
	switch n := len(w); {
	case n > 4 && w[n-1] == 'e': // lost before an ending: delete, deleting
		w = w[:n-1]
	case n > 3 && w[n-1] == 'y': // changed before one: query, queries
		w = w[:n-1] + "i"
	}
	return w
}

func singular(w string) string {
	n := len(w)
	switch {
	case n < 4 || w[n-1] != 's', w[n-2] == 's', w[n-2] == 'u', w[n-2] == 'i':
		return w
	case n > 4 && strings.HasSuffix(w, "ies"):
		return w[:n-3] + "y"
	}
	for _, es := range [...]string{"sses", "shes", "ches", "xes"} {
		if strings.HasSuffix(w, es) {
			return w[:n-2]
		}
	}
	return w[:n-1]
}

// infinitive returns a verb that lost ing or ed: stopp is stop, sav is save.
func infinitive(w string) string {
	n := len(w)
	if n < 2 || isVowel(w[n-1]) {
		return w
	}
	switch {
	case n > 3 && w[n-2] == w[n-1] && !strings.ContainsRune("lsz", rune(w[n-1])):
		return w[:n-1]
	case n <= 3 && isVowel(w[n-2]) && (n == 2 || !isVowel(w[0])) && !strings.ContainsRune("wxy", rune(w[n-1])):
		return w + "e"
	}
	return w
}

func isVowel(c byte) bool { return strings.IndexByte("aeiouy", c) >= 0 }

func hasVowel(w string) bool { return strings.ContainsAny(w, "aeiouy") }

// letters is a set of which letters and digits are in w. Two words that one
// typo sets apart differ in at most two of its bits.
func letters(w string) uint32 {
	var set uint32
	for i := range len(w) {
		switch c := w[i]; {
		case 'a' <= c && c <= 'z':
			set |= 1 << (c - 'a')
		case '0' <= c && c <= '9':
			set |= 1 << (26 + (c-'0')/2)
		default:
			set |= 1 << 31
		}
	}
	return set
}

// distance returns how many typos make b of a, or more than most if it is more
// than most: a character that is missing, added, or another, or two that are
// swapped. a and b are at most maxTypoWord characters.
func distance(a, b []rune, most int) int {
	var rows [3][maxTypoWord + 1]int
	twoAbove, above, row := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		above[j] = j
	}
	for i := range a {
		row[0] = i + 1
		least := row[0]
		for j := range b {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			d := min(above[j]+cost, above[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, twoAbove[j-1]+1)
			}
			row[j+1] = d
			least = min(least, d)
		}
		if least > most {
			return least
		}
		twoAbove, above, row = above, row, twoAbove
	}
	return above[len(b)]
}
