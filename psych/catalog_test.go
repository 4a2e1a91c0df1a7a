package psych

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/psych-go/psych-go/psych/internal/strictjson"
)

// A listSession is a server that only lists.
type listSession struct {
	Session
	says string
	page func(ctx context.Context, cursor *string) (ToolPage, error)
}

func (s *listSession) Instructions() string { return s.says }

func (s *listSession) ListTools(ctx context.Context, cursor *string) (ToolPage, error) {
	return s.page(ctx, cursor)
}

// paged gives tools in pages of n. The cursor behind the first is empty.
func paged(tools []RemoteTool, n int) func(context.Context, *string) (ToolPage, error) {
	return func(_ context.Context, cursor *string) (ToolPage, error) {
		at := 0
		if cursor != nil {
			at = n
			if *cursor != "" {
				at, _ = strconv.Atoi(*cursor)
			}
		}
		end := min(at+n, len(tools))
		p := ToolPage{Tools: tools[at:end]}
		if end < len(tools) {
			next := ""
			if at > 0 {
				next = strconv.Itoa(end)
			}
			p.Next = &next
		}
		return p, nil
	}
}

func listed(tools ...RemoteTool) *listSession { return &listSession{page: paged(tools, len(tools)+1)} }

func remoteTool(name, description string) RemoteTool {
	return RemoteTool{ToolDef: ToolDef{Name: name, Description: description,
		Schema: json.RawMessage(`{"type":"object","properties":{"b":{"const":1.0e2},"a":{"const":1234567890123456789}}}`)}}
}

// manyTools are of varied sizes, 1,000 bytes on average.
func manyTools(n int) []RemoteTool {
	r := rand.New(rand.NewPCG(1, 2))
	tools := make([]RemoteTool, n)
	for i := range tools {
		tools[i] = remoteTool(fmt.Sprintf("tool_%05d", i), strings.Repeat("Finds things. ", 1+r.IntN(120)))
	}
	return tools
}

var acme = Scope{Tenant: "acme", Principal: "ann"}

func mustCatalog(t testing.TB, s Scope, c *Connection, session Session) (*catalog, map[Digest][]byte) {
	t.Helper()
	l, err := readList(context.Background(), session)
	if err != nil {
		t.Fatal(err)
	}
	got, docs, err := newCatalog(s, c, l)
	if err != nil {
		t.Fatal(err)
	}
	read, err := decodeCatalog(got.digest, docs[got.digest])
	if err != nil {
		t.Fatal(err)
	}
	if !read.same(got) || read.instructions != got.instructions || !reflect.DeepEqual(read.Connection, got.Connection) {
		t.Fatal("the manifest does not decode to what was encoded")
	}
	return got, docs
}

func TestCatalogKey(t *testing.T) {
	base := Connection{Name: "a", URL: "https://x/mcp", Credential: "c"}
	with := func(f func(*Connection)) *Connection { c := base; f(&c); return &c }
	bob := Scope{Tenant: "acme", Principal: "bob"}
	key := newCatalogKey(acme, &base, "1")
	if err := (RefKey{key.tenant, key.ref}).Check(); err != nil {
		t.Fatal(err)
	}
	for what, k := range map[string]catalogKey{
		"another principal": newCatalogKey(bob, &base, "1"),
		"another name": newCatalogKey(acme, with(func(c *Connection) {
			c.Name, c.Description, c.Allow, c.Optional = "b", "d", []string{"x"}, true
		}), "1"),
		"labels": newCatalogKey(Scope{Tenant: "acme", Labels: map[string]string{"a": "b"}}, &base, "1"),
	} {
		if k != key {
			t.Errorf("%s makes another catalogue", what)
		}
	}
	seen := map[catalogKey]string{key: "the base"}
	for what, k := range map[string]catalogKey{
		"another tenant":     newCatalogKey(Scope{Tenant: "other", Principal: "ann"}, &base, "1"),
		"another URL":        newCatalogKey(acme, with(func(c *Connection) { c.URL = "https://x/mcp2" }), "1"),
		"another credential": newCatalogKey(acme, with(func(c *Connection) { c.Credential = "d" }), "1"),
		"another identity":   newCatalogKey(acme, &base, "2"),
		"a command":          newCatalogKey(acme, with(func(c *Connection) { c.URL, c.Command = "", []string{"https://x/mcp"} }), "1"),
		"a command of two":   newCatalogKey(acme, with(func(c *Connection) { c.URL, c.Command = "", []string{"https:", "/x/mcp"} }), "1"),
		"ann's own":          newCatalogKey(acme, with(func(c *Connection) { c.PerPrincipal = true }), "1"),
		"bob's own":          newCatalogKey(bob, with(func(c *Connection) { c.PerPrincipal = true }), "1"),
		"nobody's own":       newCatalogKey(Scope{Tenant: "acme"}, with(func(c *Connection) { c.PerPrincipal = true }), "1"),
	} {
		if o := seen[k]; o != "" {
			t.Errorf("%s and %s are one catalogue", what, o)
		}
		seen[k] = what
	}
}

func TestFirstLine(t *testing.T) {
	long := strings.Repeat("word ", 60)
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{" \n\t ", ""},
		{"Lists issues.", "Lists issues."},
		{"\n  Lists\n  the issues.\r\n  All.\n\nArgs:\n  a: b\n", "Lists the issues. All."},
		{"One.\r\n\r\nTwo.", "One."},
		{"One.\n \t \nTwo.", "One."},
		{"a\x00b\x1b[31m\u2028c\u200bd\u202ee\U000e0041f", "a b [31m c d e f"},
		{"bad \xff byte", "bad \ufffd byte"},
		{"First, here is a sentence that is long enough to be kept by itself, e.g. this one. " + long, "First, here is a sentence that is long enough to be kept by itself, e.g. this one."},
		{long, strings.TrimSpace(long)[:199] + "…"},
		{strings.Repeat("ä", 200), strings.Repeat("ä", 200)},
		{strings.Repeat("ä", 201), strings.Repeat("ä", 199) + "…"},
	} {
		if got := firstLine(c.in); got != c.want {
			t.Errorf("firstLine(%q)\n got %q\nwant %q", c.in, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.StringOfN(rapid.RuneFrom([]rune("ab .!?\n\r\tä…\u2028\x00")), 0, 600, -1).Draw(t, "description")
		got := firstLine(in)
		if !utf8.ValidString(got) || utf8.RuneCountInString(got) > catalogLine || strings.ContainsFunc(got, func(r rune) bool { return r != ' ' && breaksLine(r) }) || strings.Contains(got, "  ") {
			t.Fatalf("firstLine(%q) is %q", in, got)
		}
	})
}

// The bytes of a catalogue depend on what is listed, not on pages or order.
func TestCatalogDeterministic(t *testing.T) {
	tools := manyTools(200)
	conn := &Connection{Name: "a", URL: "https://x"}
	want, docs := mustCatalog(t, acme, conn, listed(tools...))
	for _, n := range []int{1, 3, 64, 199} {
		shuffled := slices.Clone(tools)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for i := range shuffled {
			var b bytes.Buffer
			if err := json.Indent(&b, shuffled[i].Schema, " ", "\t"); err != nil {
				t.Fatal(err)
			}
			shuffled[i].Schema = b.Bytes()
		}
		got, d := mustCatalog(t, acme, conn, &listSession{page: paged(shuffled, n)})
		if got.version() != want.version() || !reflect.DeepEqual(d, docs) {
			t.Errorf("in pages of %d it is another catalogue", n)
		}
	}
	if !slices.IsSortedFunc(want.entries(), func(a, b catalogEntry) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("the entries are not sorted")
	}
	if e := want.find("tool_00007"); e == nil || e.Name != "tool_00007" || want.find("tool_0000") != nil || want.find("") != nil {
		t.Error("find does not find by name")
	}
}

// Schemas come back byte for byte but for whitespace, and all else as it was.
func TestCatalogKeepsDefinitions(t *testing.T) {
	in := RemoteTool{
		ToolDef: ToolDef{Name: "weird/näme\u2028 <&>", Description: "Says \"<b>\" & \\ \u2029 \x00\x1f\u007f 😀.",
			Schema: json.RawMessage(` { "z" : 1.50E+2, "a": [ 1e400 , 12345678901234567890 ], "a": "\u00e9\ud83d\ude00 <&>   \u2028" } `)},
		Title: "T\u2028itle", Output: json.RawMessage("true\n"), ReadOnly: true, Idempotent: true,
	}
	c, docs := mustCatalog(t, acme, &Connection{Name: "a"}, listed(in))
	var doc struct{ Tools []RemoteTool }
	if err := json.Unmarshal(docs[c.Documents[0]], &doc); err != nil {
		t.Fatal(err)
	}
	want := in
	want.Schema = json.RawMessage(`{"z":1.50E+2,"a":[1e400,12345678901234567890],"a":"\u00e9\ud83d\ude00 <&>   \u2028"}`)
	want.Output = json.RawMessage("true")
	if len(doc.Tools) != 1 || !reflect.DeepEqual(doc.Tools[0], want) {
		t.Fatalf("got  %+v\nwant %+v", doc.Tools, want)
	}
	e := c.find(in.Name)
	if e.Title != "T itle" || !e.ReadOnly || !e.Idempotent || !strings.Contains(e.Withheld, "twice") || e.DescriptionChars != utf8.RuneCountInString(in.Description) || e.Def.IsZero() {
		t.Errorf("got %+v", e)
	}
	if want := len(in.Name) + e.DescriptionChars + utf8.RuneCount(want.Schema) + 40; e.Chars != want {
		t.Errorf("it has %d characters, want %d", e.Chars, want)
	}
	// What counts is the definition as it is shown.
	old := RemoteTool{ToolDef: ToolDef{Name: "old", Description: "Süß.", Schema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"number","minimum":0,"exclusiveMinimum":true}}}`)}}
	o, _ := mustCatalog(t, acme, &Connection{Name: "a"}, listed(old))
	shown, _, reason := gate(old.ToolDef, ModelLimits{})
	if e := o.find("old"); reason != "" || bytes.Equal(shown.Schema, old.Schema) || e.Withheld != "" || e.Chars != 3+4+utf8.RuneCount(shown.Schema)+40 {
		t.Errorf("it is shown as %s (%s), and the entry is %+v", shown.Schema, reason, e)
	}
	if err := strictjson.Check(docs[c.digest]); err != nil {
		t.Errorf("the manifest: %v", err)
	}
}

// One bad tool breaks no other, and what happened to it is told.
func TestCatalogBadTools(t *testing.T) {
	big := json.RawMessage(`{"description":"` + strings.Repeat("x", maxRemoteTool) + `"}`)
	deep := func(n int) json.RawMessage {
		return json.RawMessage(strings.Repeat(`{"not":`, n) + `{}` + strings.Repeat(`}`, n))
	}
	with := func(name string, f func(*RemoteTool)) RemoteTool {
		t := remoteTool(name, "Works.")
		f(&t)
		return t
	}
	long := strings.Repeat("n", maxRemoteName)
	tools := []RemoteTool{
		with("no_schema", func(t *RemoteTool) { t.Schema = nil }),
		with("syntax", func(t *RemoteTool) { t.Schema = json.RawMessage(`{"type":"object"`) }),
		with("two_values", func(t *RemoteTool) { t.Schema = json.RawMessage(`{} {}`) }),
		with("big", func(t *RemoteTool) { t.Schema = big }),
		with("deep", func(t *RemoteTool) { t.Schema = deep(100_000) }),
		with("less_deep", func(t *RemoteTool) { t.Schema = deep(5_000) }),
		with("big_output", func(t *RemoteTool) { t.Output = big }),
		with("bad_output", func(t *RemoteTool) { t.Output = json.RawMessage(`nope`) }),
		with("big_description", func(t *RemoteTool) { t.Description = strings.Repeat("x", maxRemoteTool) }),
		with("bad_utf8", func(t *RemoteTool) {
			t.Description, t.Title, t.Schema = "a\xffb", "\xfe", json.RawMessage("{\"title\":\"\xff\"}")
		}),
		remoteTool("", "has no name"), remoteTool("", "has no name either"),
		remoteTool("a\xffb", "has a bad name"),
		remoteTool(long+"n", "has a long name"), remoteTool(long, "has a name that is just right"),
		remoteTool("twice", "The first."), remoteTool("twice", "The second."), remoteTool("twice", "The third."),
		remoteTool("good", "Works."),
	}
	c, docs := mustCatalog(t, acme, &Connection{Name: "a"}, listed(tools...))
	got := map[string]RemoteTool{}
	for _, d := range c.Documents {
		var doc struct{ Tools []RemoteTool }
		if err := json.Unmarshal(docs[d], &doc); err != nil || !utf8.Valid(docs[d]) {
			t.Fatal(err)
		}
		for _, t := range doc.Tools {
			got[t.Name] = t
		}
	}
	var names []string
	for _, e := range c.entries() {
		names = append(names, e.Name)
		if _, ok := got[e.Name]; !ok {
			t.Errorf("there is no definition of %s", e.Name)
		}
		wanted := map[string]string{"syntax": "not JSON", "two_values": "not JSON", "big": "1048576", "deep": "10000 deep", "less_deep": "5001 deep"}[e.Name]
		if (e.Withheld != "") != (wanted != "") || !strings.Contains(e.Withheld, wanted) {
			t.Errorf("%s is withheld: %q, want %q in it", e.Name, e.Withheld, wanted)
		}
		if wanted != "" && string(got[e.Name].Schema) != `{"type":"object"}` {
			t.Errorf("%s has the schema %.80s", e.Name, got[e.Name].Schema)
		}
	}
	want := []string{"bad_output", "bad_utf8", "big", "big_output", "deep", "good", "less_deep", long, "no_schema", "syntax", "twice", "two_values"}
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("got %q\nwant %q", names, want)
	}
	if d := got["twice"].Description; d != "The first." {
		t.Errorf("of two tools of one name %q stays", d)
	}
	if g := got["bad_utf8"]; g.Description != "a\ufffdb" || g.Title != "\ufffd" || string(g.Schema) != "{\"title\":\"\ufffd\"}" {
		t.Errorf("got %+v", g)
	}
	var dropped []string
	for _, d := range c.Dropped {
		dropped = append(dropped, d.Name+": "+d.Reason)
	}
	for i, want := range []string{
		": its name is empty", "a\ufffdb: its name is not valid UTF-8", "bad_output: its output schema is left out: it is not JSON",
		"big_description: its name and description take 1048", "big_output: its output schema is left out: the definition takes 1048",
		strings.Repeat("n", maxRemoteName-1) + "…: its name has 129 bytes", "twice: it is listed again",
	} {
		if i >= len(dropped) || !strings.HasPrefix(dropped[i], want) {
			t.Errorf("dropped is %q, want %q as the %d.", dropped, want, i)
		}
	}
	if len(dropped) != 7 {
		t.Errorf("dropped is %q", dropped)
	}
}

// What a server does wrong many times does not fill the manifest.
func TestCatalogDroppedBounded(t *testing.T) {
	var tools []RemoteTool
	for i := range 5000 {
		tools = append(tools, remoteTool(fmt.Sprint(i, strings.Repeat("x", 200)), ""))
	}
	for i := range 50 {
		tools = append(tools, remoteTool(fmt.Sprint("t", i), ""), remoteTool(fmt.Sprint("t", i), ""))
	}
	c, docs := mustCatalog(t, acme, &Connection{Name: "a"}, listed(tools...))
	if n := len(c.Dropped); n != maxDropped+1 || !strings.Contains(c.Dropped[n-1].Reason, " more") || len(docs[c.digest]) > 64<<10 {
		t.Errorf("%d dropped in %d bytes", n, len(docs[c.digest]))
	}
}

func TestCatalogInstructions(t *testing.T) {
	for in, want := range map[string]string{
		"":                          "",
		"hello\nworld":              "hello\nworld",
		"a\xffb":                    "a\ufffdb",
		strings.Repeat("ä", 2000):   strings.Repeat("ä", 2000),
		strings.Repeat("ä", 3000):   strings.Repeat("ä", 1999) + "…",
		strings.Repeat("\xff", 2e6): "\ufffd",
	} {
		c, _ := mustCatalog(t, acme, &Connection{Name: "a"}, &listSession{says: in, page: paged(nil, 1)})
		if c.instructions != want {
			t.Errorf("%.20q is %.20q…, %d bytes", in, c.instructions, len(c.instructions))
		}
	}
}

// A tool that changes, comes or goes changes few documents of many.
func TestCatalogDocuments(t *testing.T) {
	tools := manyTools(1000)
	conn := &Connection{Name: "a"}
	c, docs := mustCatalog(t, acme, conn, listed(tools...))
	total := 0
	for _, d := range c.Documents {
		if n := len(docs[d]); n > documentBytes {
			t.Errorf("a document has %d bytes", n)
		} else {
			total += n
		}
	}
	if n := len(c.Documents); n > total/(24<<10) || len(docs) != n+1 {
		t.Errorf("%d documents for %d bytes", n, total)
	}
	most := 0
	for i := 0; i < len(tools); i += 333 {
		for what, change := range map[string]func([]RemoteTool) []RemoteTool{
			"grows": func(ts []RemoteTool) []RemoteTool {
				ts[i].Description += strings.Repeat("More. ", 500)
				return ts
			},
			"shrinks": func(ts []RemoteTool) []RemoteTool { ts[i].Description = ""; return ts },
			"goes":    func(ts []RemoteTool) []RemoteTool { return slices.Delete(ts, i, i+1) },
			"comes":   func(ts []RemoteTool) []RemoteTool { return append(ts, remoteTool(ts[i].Name+"b", "New.")) },
		} {
			_, now := mustCatalog(t, acme, conn, listed(change(slices.Clone(tools))...))
			n := 0
			for d := range now {
				if docs[d] == nil {
					n++
				}
			}
			if most = max(most, n); n > 8 {
				t.Errorf("tool %d %s: %d new documents of %d", i, what, n, len(now))
			}
		}
	}
	t.Logf("%d tools in %d documents of %d bytes, a manifest of %d; at most %d new documents for one change", len(tools), len(c.Documents), total, len(docs[c.digest]), most)

	huge := remoteTool("tool_00500", strings.Repeat("x", 900<<10))
	tools[500] = huge
	c, docs = mustCatalog(t, acme, conn, listed(tools...))
	if d := docs[c.Documents[c.find(huge.Name).Doc]]; len(d) < 900<<10 || bytes.Count(d, []byte(`"name"`)) != 1 {
		t.Errorf("a huge tool is in a document of %d bytes with %d tools", len(d), bytes.Count(d, []byte(`"name"`)))
	}
}

func TestDiffCatalogs(t *testing.T) {
	make := func(tools ...RemoteTool) *catalog {
		c, _ := mustCatalog(t, acme, &Connection{Name: "a"}, listed(tools...))
		return c
	}
	a, b, b2, c := remoteTool("a", ""), remoteTool("b", ""), remoteTool("b", "new"), remoteTool("c", "")
	safe := c
	safe.Idempotent = true
	for i, x := range []struct {
		old, new *catalog
		want     catalogDiff
	}{
		{nil, nil, catalogDiff{}},
		{nil, make(b, a), catalogDiff{Added: []string{"a", "b"}}},
		{make(b, a), nil, catalogDiff{Removed: []string{"a", "b"}}},
		{make(a, b), make(b, a), catalogDiff{}},
		{make(a, b), make(c, b2), catalogDiff{Added: []string{"c"}, Removed: []string{"a"}, Changed: []string{"b"}}},
		{make(c), make(safe), catalogDiff{Changed: []string{"c"}}},
		{make(b), make(a, b, c), catalogDiff{Added: []string{"a", "c"}}},
		{make(a, b, c), make(b), catalogDiff{Removed: []string{"a", "c"}}},
	} {
		if got := diffCatalogs(x.old, x.new); !reflect.DeepEqual(got, x.want) {
			t.Errorf("%d: got %+v, want %+v", i, got, x.want)
		}
	}
}

func TestReadList(t *testing.T) {
	ctx := context.Background()
	str := func(s string) *string { return &s }
	t.Run("EmptyCursorIsACursor", func(t *testing.T) {
		var asked []string
		inner := paged(manyTools(5), 2)
		l, err := readList(ctx, &listSession{page: func(ctx context.Context, c *string) (ToolPage, error) {
			if c == nil {
				asked = append(asked, "nil")
			} else {
				asked = append(asked, strconv.Quote(*c))
			}
			return inner(ctx, c)
		}})
		if err != nil || len(l.tools) != 5 || !slices.Equal(asked, []string{"nil", `""`, `"4"`}) {
			t.Errorf("%d tools by cursors %q: %v", len(l.tools), asked, err)
		}
	})
	for what, next := range map[string]func(page int) *string{
		"StandsStill":  func(int) *string { return str("x") },
		"StaysEmpty":   func(int) *string { return str("") },
		"GoesInCircle": func(page int) *string { return str(fmt.Sprint(page % 7)) },
		"NeverEnds":    func(page int) *string { return str(fmt.Sprint(page)) },
	} {
		t.Run(what, func(t *testing.T) {
			pages := 0
			_, err := readList(ctx, &listSession{page: func(context.Context, *string) (ToolPage, error) {
				pages++
				return ToolPage{Next: next(pages)}, nil
			}})
			most := map[string]int{"GoesInCircle": 8, "NeverEnds": maxListPages}[what]
			if !errors.Is(err, errBadList) || pages > max(most, 2) {
				t.Errorf("after %d pages: %v", pages, err)
			}
		})
	}
	t.Run("TooManyTools", func(t *testing.T) {
		exact := make([]RemoteTool, maxListTools)
		for i := range exact {
			exact[i].Name = strconv.Itoa(i)
		}
		if l, err := readList(ctx, &listSession{page: paged(exact, 1000)}); err != nil || len(l.tools) != maxListTools {
			t.Errorf("as many as there may be: %v", err)
		}
		if _, err := readList(ctx, &listSession{page: paged(append(exact, RemoteTool{}), 1000)}); !errors.Is(err, errBadList) || !strings.Contains(err.Error(), "65536 tools") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("TooManyBytes", func(t *testing.T) {
		page := ToolPage{Tools: []RemoteTool{{ToolDef: ToolDef{Name: "x", Description: strings.Repeat("x", 1<<20)}}}}
		pages := 0
		_, err := readList(ctx, &listSession{page: func(context.Context, *string) (ToolPage, error) {
			pages++
			page.Next = str(fmt.Sprint(pages))
			return page, nil
		}})
		if !errors.Is(err, errBadList) || pages != 64 {
			t.Errorf("after %d pages: %v", pages, err)
		}
	})
	t.Run("ContextEnds", func(t *testing.T) {
		ctx, cancel := context.WithCancel(ctx)
		pages := 0
		_, err := readList(ctx, &listSession{page: func(context.Context, *string) (ToolPage, error) {
			if pages++; pages == 3 {
				cancel()
			}
			return ToolPage{Next: str(fmt.Sprint(pages))}, nil
		}})
		if !errors.Is(err, context.Canceled) || pages != 3 {
			t.Errorf("after %d pages: %v", pages, err)
		}
	})
	t.Run("TTL", func(t *testing.T) {
		d := func(d time.Duration) *time.Duration { return &d }
		for _, c := range []struct {
			hints []*time.Duration
			want  time.Duration
		}{
			{[]*time.Duration{nil}, catalogTTL},
			{[]*time.Duration{d(0)}, time.Minute},
			{[]*time.Duration{d(-time.Hour)}, time.Minute},
			{[]*time.Duration{d(90*time.Second + 999*time.Millisecond)}, 90 * time.Second},
			{[]*time.Duration{d(1 << 62)}, 24 * time.Hour},
			{[]*time.Duration{nil, d(time.Hour), d(10 * time.Minute), nil}, 10 * time.Minute},
			{[]*time.Duration{d(10 * time.Minute), d(time.Hour)}, 10 * time.Minute},
		} {
			page := -1
			l, err := readList(ctx, &listSession{page: func(context.Context, *string) (p ToolPage, _ error) {
				page++
				p.TTL = c.hints[page]
				if page+1 < len(c.hints) {
					p.Next = str(fmt.Sprint(page))
				}
				return p, nil
			}})
			if err != nil || l.ttl != c.want {
				t.Errorf("hints %v: %v, %v, want %v", c.hints, l.ttl, err, c.want)
			}
		}
	})
}

// The jitter is the same for a catalogue always, differs among catalogues, and
// is at most a tenth.
func TestJitter(t *testing.T) {
	seen := map[time.Duration]bool{}
	most := time.Duration(0)
	for i := range 1000 {
		key := catalogKey{"t", fmt.Sprint(i)}
		for _, ttl := range []time.Duration{time.Minute, maxTTL, 1 << 25 * time.Second} {
			j := jitter(key, ttl)
			if j != jitter(key, ttl) || j < 0 || j > ttl/10 || j != j.Truncate(time.Microsecond) {
				t.Fatalf("jitter of %v is %v", ttl, j)
			}
		}
		j := jitter(key, catalogTTL)
		seen[j], most = true, max(most, j)
	}
	if len(seen) < 900 || most < catalogTTL/11 {
		t.Errorf("%d different ones, at most %v", len(seen), most)
	}
}

func TestLRU(t *testing.T) {
	l := lru[int, string]{limit: 10}
	l.put(1, "a", 4)
	l.put(2, "b", 4)
	if v, ok := l.get(1); !ok || v != "a" {
		t.Error("1 is lost")
	}
	l.put(3, "c", 4) // 2 was used longest ago
	if _, ok := l.get(2); ok || l.size != 8 {
		t.Error("2 is kept")
	}
	l.put(3, "d", 6)
	if v, _ := l.get(3); v != "d" || l.size != 10 || l.order.Len() != 2 {
		t.Error("3 is not replaced")
	}
	l.put(4, "e", 100)
	if v, ok := l.get(4); !ok || v != "e" || l.order.Len() != 1 || l.size != 100 {
		t.Error("what is larger than the limit is not kept alone")
	}
	l.put(5, "f", 1)
	if _, ok := l.get(4); ok || l.size != 1 || len(l.items) != 1 {
		t.Error("it is kept beside others")
	}
}

// A document is read once by all who ask, within the time of each.
func TestDocCache(t *testing.T) { synctest.Test(t, testDocCache) }

func testDocCache(t *testing.T) {
	var c docCache[int]
	c.kept.limit = 1
	key := docKey{"t", Digest{1}}
	ctx, cancel := context.WithCancel(context.Background())
	begun, reads := make(chan bool), atomic.Int32{}
	failed := make(chan error, 1)
	go func() {
		_, err := c.get(ctx, key, func() (int, int64, error) {
			reads.Add(1)
			close(begun)
			<-ctx.Done()
			return 0, 0, ctx.Err()
		})
		failed <- err
	}()
	<-begun
	impatient, stop := context.WithCancel(context.Background())
	stop()
	if _, err := c.get(impatient, key, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("who does not wait got %v", err)
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			v, err := c.get(context.Background(), key, func() (int, int64, error) { reads.Add(1); return 7, 1, nil })
			if v != 7 || err != nil {
				t.Errorf("who waits got %d, %v", v, err)
			}
		})
	}
	synctest.Wait()
	cancel()
	wg.Wait()
	if err := <-failed; !errors.Is(err, context.Canceled) || reads.Load() != 2 {
		t.Errorf("%d reads, %v", reads.Load(), err)
	}
	if _, err := c.get(context.Background(), docKey{"u", Digest{1}}, func() (int, int64, error) { return 0, 0, ErrNotFound }); !errors.Is(err, ErrNotFound) {
		t.Errorf("another tenant's is read: %v", err)
	}
	boom := errors.New("boom")
	for range 2 { // errors are not kept
		if _, err := c.get(context.Background(), docKey{"u", Digest{1}}, func() (int, int64, error) { return 0, 0, boom }); !errors.Is(err, boom) {
			t.Errorf("got %v", err)
		}
	}
}

func TestInParallel(t *testing.T) {
	var running, most, done atomic.Int32
	err := inParallel(context.Background(), 100, func(context.Context, int) error {
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		done.Add(1)
		return nil
	})
	if err != nil || done.Load() != 100 || most.Load() > catalogParallel {
		t.Errorf("%d done, %d at once: %v", done.Load(), most.Load(), err)
	}
	boom := errors.New("boom")
	done.Store(0)
	err = inParallel(context.Background(), 1000, func(ctx context.Context, i int) error {
		if i == 5 {
			return boom
		}
		if done.Add(1); i > 5 {
			<-ctx.Done()
		}
		return ctx.Err()
	})
	if err != boom || done.Load() > 2*catalogParallel {
		t.Errorf("%d done, %v", done.Load(), err)
	}
}

func TestDecodeCatalog(t *testing.T) {
	for doc, want := range map[string]error{
		``:                                errNoCatalog,
		`[]`:                              errNoCatalog,
		`{}`:                              errNoCatalog,
		`{"format":0,"ttl_seconds":60}`:   errNoCatalog,
		`{"format":1}`:                    errNoCatalog,
		`{"format":1,"ttl_seconds":1e12}`: errNoCatalog,
		`{"format":1,"ttl_seconds":60,"tools":[{"name":"a"}]}`:                                                        errNoCatalog,
		`{"format":1,"ttl_seconds":60,"documents":["` + Digest{}.String() + `"],"tools":[{"name":"b"},{"name":"a"}]}`: errNoCatalog,
		`{"format":1,"ttl_seconds":60,"documents":["` + Digest{}.String() + `"],"tools":[{"name":"a"},{"name":"a"}]}`: errNoCatalog,
		`{"format":1,"ttl_seconds":60,"documents":["ab"]}`:                                                            errNoCatalog,
		`{"format":2,"tools":7}`:                    errNewerFormat,
		`{"format":1,"ttl_seconds":60,"more":[{}]}`: nil,
	} {
		if _, err := decodeCatalog(sha256.Sum256([]byte(doc)), []byte(doc)); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: got %v, want %v", doc, err, want)
		}
	}
}
