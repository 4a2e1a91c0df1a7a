package psych

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxToolName is what every provider takes, in bytes, which are characters.
const maxToolName = 64

// reservedTools are the names of psych's own tools.
var reservedTools = []string{"read_tool_output", "list_tools", "read_tool", "call_tool", "load_skill", "delegate"}

// toolNameProblem says what is wrong with the name of a code tool, or "".
func toolNameProblem(name string) string {
	switch {
	case name == "":
		return "the tool name is empty: want 1 to 64 of [A-Za-z0-9_-]"
	case !legalToolName(name):
		return fmt.Sprintf("tool name %.80q: want 1 to 64 of [A-Za-z0-9_-]", name)
	case strings.Contains(name, "__"):
		return fmt.Sprintf("tool name %q: __ is kept for the tools of servers", name)
	case slices.Contains(reservedTools, name):
		return fmt.Sprintf("tool name %q is reserved: %s are Psych's own", name, strings.Join(reservedTools, ", "))
	}
	return ""
}

// legalToolName reports whether a provider takes name.
func legalToolName(name string) bool {
	for i := 0; i < len(name); i++ {
		if !nameByte(rune(name[i])) {
			return false
		}
	}
	return name != "" && len(name) <= maxToolName
}

func nameByte(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// ToolName returns the name by which a provider knows a tool of a server: 1 to
// 64 of [A-Za-z0-9_-], whatever the two names are.
//
// It is server__tool where that is legal, holds __ in one place only (places
// overlap: a___b has two) and does not itself end in _ and 8 hexadecimal
// digits of either case; cut at its __ it gives both names back. Else it is
// server__tool with each illegal character made _, of that the first 55
// characters, then _ and the first 8 hexadecimal digits of SHA-256(server NUL
// tool). So it never depends on other tools.
func ToolName(server, tool string) string {
	name := server + "__" + tool
	if legalToolName(name) && strings.Index(name, "__") == len(server) && strings.LastIndex(name, "__") == len(server) && !wireSuffix(name) {
		return name
	}
	return hashedName(name, server+"\x00"+tool)
}

// wireName returns the name of a call as a provider takes it, whatever a model
// made up: as it is where that is legal, else each illegal character made _,
// the first 55 characters, _ and 8 hexadecimal digits of SHA-256(name).
func wireName(name string) string {
	if legalToolName(name) {
		return name
	}
	return hashedName(name, name)
}

// hashChars is how many hexadecimal digits of a hash stand in a name.
const hashChars = 8

// hashedName makes name legal, and tells it from others by a hash of id.
func hashedName(name, id string) string {
	const keep = maxToolName - 1 - hashChars
	out := make([]byte, 0, maxToolName)
	for _, c := range name {
		if len(out) == keep {
			break
		}
		if !nameByte(c) {
			c = '_'
		}
		out = append(out, byte(c))
	}
	sum := sha256.Sum256([]byte(id))
	return string(hex.AppendEncode(append(out, '_'), sum[:hashChars/2]))
}

// wireSuffix reports whether name ends as hashedName ends one, in either case of
// the digits.
func wireSuffix(name string) bool {
	at := len(name) - hashChars
	if at < 1 || name[at-1] != '_' {
		return false
	}
	_, err := hex.DecodeString(name[at:])
	return err == nil
}

// unknownToolMessage is what the model is told that called a tool which
// doesn't exist, in at most 4,000 characters.
func unknownToolMessage(name string, known []string) string {
	const most = 10
	shown := fmt.Sprintf("%q", clipChars(name, 100))
	if len(known) == 0 {
		return "There is no tool named " + shown + ": there are no tools at all. Answer without one."
	}
	near := strings.Join(nearest(name, known, most), ", ")
	if len(known) <= most {
		return clipChars("There is no tool named "+shown+". There are: "+near+".", maxModelMessage)
	}
	return clipChars(fmt.Sprintf("There is no tool named %s. The nearest of %d: %s.", shown, len(known), near), maxModelMessage)
}

// nearest returns the n of known that are most like name, best first: by edit
// distance and by the words that both hold. The order of known doesn't matter.
func nearest(name string, known []string, n int) []string {
	type scored struct {
		name  string
		score float64
	}
	name = clipChars(name, 2*maxToolName) // bounds the work; a longer one is like nothing anyway
	lower, words := []rune(strings.ToLower(name)), nameWords(name)
	all := make([]scored, 0, len(known))
	for _, k := range known {
		l := []rune(strings.ToLower(k))
		longest := max(len(lower), len(l), 1)
		s := 1 - float64(editDistance(lower, l))/float64(longest)
		if kw := nameWords(k); len(words) > 0 && len(kw) > 0 {
			shared := 0
			for _, w := range words {
				if slices.Contains(kw, w) {
					shared++
				}
			}
			s += float64(2*shared) / float64(len(words)+len(kw))
		}
		all = append(all, scored{k, s})
	}
	slices.SortFunc(all, func(a, b scored) int {
		switch {
		case a.score > b.score:
			return -1
		case a.score < b.score:
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
	out := make([]string, 0, min(n, len(all)))
	for _, s := range all[:min(n, len(all))] {
		out = append(out, s.name)
	}
	return out
}

// nameWords splits an identifier into its different words, in lower case:
// readFileV2 and read_file.v2 are read, file, v2.
func nameWords(name string) []string {
	var words []string
	var word strings.Builder
	end := func() {
		if w := strings.ToLower(word.String()); w != "" && !slices.Contains(words, w) {
			words = append(words, w)
		}
		word.Reset()
	}
	lower := false
	for _, c := range name {
		switch {
		case !unicode.IsLetter(c) && !unicode.IsDigit(c):
			end()
			lower = false
			continue
		case unicode.IsUpper(c) && lower:
			end()
		}
		lower = !unicode.IsUpper(c)
		word.WriteRune(c)
	}
	end()
	return words
}

// editDistance is Levenshtein's.
func editDistance(a, b []rune) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i, ca := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j, cb := range b {
			cost := diagonal
			if ca != cb {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// maxModelMessage bounds what psych itself writes for the model, in
// characters.
const maxModelMessage = 4000

// clipChars cuts s to n characters, the last of them … where it was longer.
func clipChars(s string, n int) string {
	if len(s) <= n || utf8.RuneCountInString(s) <= n {
		return s
	}
	for i := range s {
		if n--; n == 0 {
			return s[:i] + "…"
		}
	}
	return s
}
