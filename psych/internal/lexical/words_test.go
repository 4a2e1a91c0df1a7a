package lexical

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSplit(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"read_file", "read file"},
		{"read-file.now", "read file now"},
		{"readFile", "readfile= read+ file+"},
		{"HTMLParser", "htmlparser= html+ parser+"},
		{"getURLs", "geturls= get+ urls+"},
		{"listIDsOf", "listidsof= list+ ids+ of+"},
		{"URLset", "urlset= ur+ lset+"}, // nothing tells where the acronym ends
		{"base64", "base64= base+ 64+"},
		{"v2Api", "v2api= v+ 2+ api+"},
		{"JSON", "json"},
		{"Aa", "aa"},
		{"isn't", "isn t"},
		{"Ｇｅｔ ﬁle №5", "get file no5= no+ 5+"},
		{"Café CAFE\u0301 cafe", "cafe cafe cafe"},
		{"Straße ΣΊΣΥΦΟΣ İstanbul ёлка", "strasse σισυφοσ istanbul елка"},
		{"X\u0303YZ x\u0303yz", "xyz xyz"},
		{"हिन्दी", "हिन्दी"},
		{"天气预报", "天' 天气 气' 气预 预' 预报 报'"},
		{"查 MCP工具", "查 mcp 工' 工具 具'"},
		{"ｶﾞｷﾞ", "ガ' ガギ ギ'"},
		{"한국어", "한' 한국 국' 국어 어'"},
		{"", ""}, {" _-. 🙂 ", ""}, {"\xff\xfe", ""},
	} {
		var got []string
		split(c.text, nil, func(w []byte, k kind) {
			got = append(got, string(w)+map[kind]string{whole: "", joined: "=", part: "+", single: "'"}[k])
		})
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%q: %s, want %s", c.text, s, c.want)
		}
	}
}

func TestKey(t *testing.T) {
	for _, name := range []string{"getUserID2", "get_user_id_2", "GET USER ID 2", "get-user.ID2", "ｇｅｔＵｓｅｒＩＤ２", "gét user_id/2"} {
		if got := key(name); got != "getuserid2" {
			t.Errorf("%q: %q", name, got)
		}
	}
	if got := key("天气 预报"); got != "天气预报" {
		t.Errorf("%q", got)
	}
}

func TestStem(t *testing.T) {
	for _, same := range []string{
		"file files filing", "query queries querying queried", "save saves saved saving", "run runs running", "use uses used using", "size sizes", "time timed timing", "add adds added adding", "log logs logged logging", "id ids", "cache caches cached caching", "database databases", "fix fixed fixes fixing", "analyze analyzes",
		"match matches matched matching", "process processes processing processed", "box boxes", "delete deleting deleted",
		"stop stopped stopping", "reply replies replied", "sell selling", "merge merging merged", "status", "analysis", "news",
	} {
		words := strings.Fields(same)
		for _, w := range words {
			if stem(w) != stem(words[0]) {
				t.Errorf("%s is %s, %s is %s", w, stem(w), words[0], stem(words[0]))
			}
		}
	}
	for _, different := range []string{"string strung", "ring r", "feed fe", "need ne", "speed speeding x", "as a", "bus bu", "class clas", "bring br", "thing th", "status statu", "news new", "note not"} {
		w := strings.Fields(different)
		if stem(w[0]) == w[1] {
			t.Errorf("%s becomes %s", w[0], w[1])
		}
	}
	rapid.Check(t, func(r *rapid.T) {
		w := rapid.StringMatching(`[a-z]{0,6}(s|es|ies|ing|ed|ied|y|e|ss|sses)?(s|ing|ed)?`).Draw(r, "word")
		if s := stem(w); stem(s) != s {
			r.Fatalf("%s has the stem %s, and that %s", w, s, stem(s))
		}
	})
}

func TestObject(t *testing.T) {
	for _, c := range []struct{ field, want string }{
		{"https://example.com/a/b.pdf?x=1", "url"},
		{"(www.example.com)", "url"},
		{"/home/ann/notes.md,", "file path md"},
		{"'/etc/hosts'", "file path"},
		{"~/letters", "file path"},
		{"../a.csv", "file path csv"},
		{`C:\letters\may.docx`, "file path docx"},
		{"and/or", "and/or"},
		{"/deploy", "/deploy"},
		{"a:b", "a:b"},
		{"/", "/"},
		{"...", "..."},
	} {
		if got := object(c.field); got != c.want {
			t.Errorf("%q: %q, want %q", c.field, got, c.want)
		}
	}
}

// Each line of the table joins different words, and is needed.
func TestSynonyms(t *testing.T) {
	pairs := map[[2]string]bool{}
	for line := range strings.Lines(synonymsFile) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		words := strings.Fields(line)
		if len(words) < 2 || strings.ToLower(line) != line {
			t.Errorf("%q", line)
		}
		fresh := false
		for i, a := range words {
			if idle()[a] {
				t.Errorf("%q: %s is never searched", line, a)
			}
			for _, b := range words[:i] {
				p := [2]string{min(stem(a), stem(b)), max(stem(a), stem(b))}
				if p[0] == p[1] {
					t.Errorf("%q: %s and %s have one stem", line, b, a)
				}
				fresh = fresh || !pairs[p]
				pairs[p] = true
			}
		}
		if !fresh {
			t.Errorf("%q says what others say", line)
		}
	}
	for a, others := range synonyms() {
		for _, b := range others {
			if !slices.Contains(synonyms()[b], a) {
				t.Errorf("%s finds %s, and not the reverse", a, b)
			}
		}
	}
}

func TestDistance(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		a, b := rapid.StringMatching(`[abcé]{0,9}`).Draw(r, "a"), rapid.StringMatching(`[abcé]{0,9}`).Draw(r, "b")
		want := naiveDistance([]rune(a), []rune(b))
		for most := range 4 {
			got := distance([]rune(a), []rune(b), most)
			if want <= most && got != want || want > most && got <= most {
				r.Fatalf("%s to %s: %d, want %d, if at most %d", a, b, got, want, most)
			}
		}
	})
}

// naiveDistance is the definition.
func naiveDistance(a, b []rune) int {
	if len(a) == 0 || len(b) == 0 {
		return len(a) + len(b)
	}
	x, y := a[1:], b[1:]
	if a[0] == b[0] {
		return naiveDistance(x, y)
	}
	d := 1 + min(naiveDistance(x, b), naiveDistance(a, y), naiveDistance(x, y))
	if len(x) > 0 && len(y) > 0 && a[0] == b[1] && a[1] == b[0] {
		d = min(d, 1+naiveDistance(x[1:], y[1:]))
	}
	return d
}
