package lexical

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"
)

type testServer struct {
	name, text string
	tools      []Tool
}

// A small office, a workshop and a library, in several hands and languages.
var catalogue = []testServer{
	{"ledger", "Bookkeeping of a small business: invoices, payments and balances.", []Tool{
		{"create_invoice", "Draws up a new invoice for a customer.", []string{"customer_id", "lines", "due_date"}},
		{"send_invoice", "Mails an invoice to the customer as a PDF attachment.", []string{"invoice_id", "recipient"}},
		{"list_payments", "Payments received within a period, newest first.", []string{"from", "to"}},
		{"void_invoice", "Cancels an invoice that has not been paid yet.", []string{"invoice_id", "reason"}},
		{"accountBalance", "How much money an account holds at the end of a day.", []string{"accountId", "day"}},
	}},
	{"drawer", "Files in the shared cabinet.", []Tool{
		{"read_file", "Returns the contents of a file as text.", []string{"path"}},
		{"write_file", "Writes text to a file, which is made if it does not exist.", []string{"path", "content"}},
		{"delete_file", "Removes a file for good.", []string{"path"}},
		{"moveFile", "Gives a file another name or folder.", []string{"source", "destination"}},
		{"getURLsFromPDF2", "Collects the addresses that a PDF links to.", []string{"path"}},
	}},
	{"attic", "Old files, kept on tape.", []Tool{
		{"read_file", "Returns the contents of a file as text.", []string{"path"}},
		{"restore_file", "Brings a file back from tape; takes hours.", []string{"path", "as_of"}},
	}},
	{"greenhouse", "Sensors and valves of the greenhouse.", []Tool{
		{"temperature_history", "Temperatures measured by a sensor, one an hour.", []string{"sensor", "hours"}},
		{"set_valve", "Opens or shuts a water valve.", []string{"valve", "open"}},
		{"frost_forecast", "The nights of the coming week in which frost is likely.", nil},
	}},
	{"bibliothèque", "Catalogue de la médiathèque municipale.", []Tool{
		{"chercher_livre", "Cherche un livre par titre, auteur ou éditeur.", []string{"requête"}},
		{"réserver", "Réserve un exemplaire pour un lecteur inscrit.", []string{"cote", "lecteur"}},
	}},
	{"書庫", "図書館の蔵書を検索します。", []Tool{
		{"search_books", "図書館の蔵書を書名や著者名で検索する。", []string{"query"}},
		{"book_status", "貸出状況と返却予定日を確認する。", []string{"id"}},
		{"天气预报", "查询城市未来七天的天气预报。", []string{"城市"}},
	}},
}

func build(servers []testServer) []*Segment {
	var all []*Segment
	for _, s := range servers {
		all = append(all, NewSegment(s.name, s.text, s.tools))
	}
	return all
}

// found names the hits as server/tool.
func found(segments []*Segment, r Result) []string {
	var names []string
	for _, h := range r.Hits {
		names = append(names, segments[h.Segment].Group()+"/"+segments[h.Segment].Name(h.Tool))
	}
	return names
}

func TestSearch(t *testing.T) {
	segments := build(catalogue)
	for _, c := range []struct{ query, first string }{
		{"bill a customer for work done", "ledger/create_invoice"},
		{"email the invoice to somebody", "ledger/send_invoice"},
		{"how much money is left", "ledger/accountBalance"},
		{"account balance", "ledger/accountBalance"},
		{"removing a file", "drawer/delete_file"},
		{"erase files", "drawer/delete_file"},
		{"save the summary to /home/ann/notes.md", "drawer/write_file"},
		{"get the text of C:\\letters\\may.txt", "attic/read_file"},
		{"collect all url links of a pdf", "drawer/getURLsFromPDF2"},
		{"https://frost.example/forecast", "drawer/getURLsFromPDF2"}, // a URL, whatever is there
		{"will there be frost", "greenhouse/frost_forecast"},
		{"temp of the sensor", "greenhouse/temperature_history"}, // begins a word
		{"temprature of the sensr", "greenhouse/temperature_history"},
		{"TEMPERATURES", "greenhouse/temperature_history"},
		{"chercher par editeur", "bibliothèque/chercher_livre"},
		{"RESERVER un livre", "bibliothèque/réserver"},
		{"ｆｒｏｓｔ", "greenhouse/frost_forecast"},
		{"蔵書検索", "書庫/search_books"},
		{"返却はいつ", "書庫/book_status"},
		{"明天天气", "書庫/天气预报"},
		{"城", "書庫/天气预报"},
		{"open a valve in the greenhouse", "greenhouse/set_valve"},
	} {
		r := Search(segments, c.query, Options{Limit: 3})
		if got := found(segments, r); len(got) == 0 || got[0] != c.first {
			t.Errorf("%q: got %v, want %s first", c.query, got, c.first)
		}
	}
}

func TestUnmatched(t *testing.T) {
	segments := build(catalogue)
	for _, c := range []struct {
		query     string
		unmatched []string
	}{
		{"read a file", nil},
		{"Zymurgy of FILES and Qwertyuiop", []string{"zymurgy", "qwertyuiop"}},
		{"zq", []string{"zq"}},
		{"invioce", nil},                 // a typo
		{"tmperatre", nil},               // two, in a long word
		{"nivoiec", []string{"nivoiec"}}, // two, in a short one
		{"exactly", []string{"exactly"}},
		{"xqzReadVw9k", []string{"xqz", "vw", "9", "k"}},
		{"the", nil}, // idle words are searched where there are no others
		{"we you", []string{"we", "you"}},
	} {
		if r := Search(segments, c.query, Options{}); !slices.Equal(r.Unmatched, c.unmatched) {
			t.Errorf("%q: unmatched %q, want %q", c.query, r.Unmatched, c.unmatched)
		}
	}
	for _, q := range []string{"", "   ", "?!", "🙂", "\xff\xfe"} {
		if r := Search(segments, q, Options{}); !reflect.DeepEqual(r, Result{}) {
			t.Errorf("%q: %+v, want nothing", q, r)
		}
	}
	if r := Search(nil, "read", Options{}); len(r.Hits) != 0 || !slices.Equal(r.Unmatched, []string{"read"}) {
		t.Errorf("of no segments: %+v", r)
	}
}

func TestPages(t *testing.T) {
	segments := build(catalogue)
	all := Search(segments, "file", Options{})
	if all.Total != len(all.Hits) || all.Total < 6 {
		t.Fatalf("total %d of %d hits", all.Total, len(all.Hits))
	}
	var pages []Hit
	for offset := 0; offset < all.Total; offset += 2 {
		r := Search(segments, "file", Options{Offset: offset, Limit: 2})
		if r.Total != all.Total {
			t.Fatalf("at %d: total %d, want %d", offset, r.Total, all.Total)
		}
		pages = append(pages, r.Hits...)
	}
	if !slices.Equal(pages, all.Hits) {
		t.Errorf("pages\n%v\nare not\n%v", pages, all.Hits)
	}
	for _, offset := range []int{all.Total, all.Total + 1, 1 << 40} {
		if r := Search(segments, "file", Options{Offset: offset, Limit: 2}); len(r.Hits) != 0 || r.Total != all.Total {
			t.Errorf("past the end: %+v", r)
		}
	}
	if r := Search(segments, "file", Options{Offset: -3, Limit: 2}); !slices.Equal(r.Hits, all.Hits[:2]) {
		t.Errorf("before the start: %v", r.Hits)
	}
}

// However a name is written, its tool stands first, and alone where it is the
// only one of the name.
func TestNames(t *testing.T) {
	servers := append(slices.Clone(catalogue), generated(40, 12)...)
	// What an exact name must stand before.
	servers = append(servers, testServer{"decoy", "read file read file write file write_file", []Tool{
		{"read_file_read_file", "read_file, write_file: read file, write file", []string{"read_file", "write_file"}},
		{"re_ad", "read_file", nil},
		{"___", "read_file", nil},
		{"-", "", nil},
	}})
	segments := build(servers)
	for i, s := range servers {
		for j, tool := range s.tools {
			split := strings.Join(nameParts(tool.Name), " ")
			for _, q := range []string{
				tool.Name, " " + tool.Name + "\n", strings.ToUpper(tool.Name), strings.ToLower(tool.Name),
				split, strings.ToUpper(split), strings.Join(nameParts(tool.Name), "-"),
			} {
				if key(q) == "" && strings.TrimSpace(q) != tool.Name {
					continue // nothing is left of it
				}
				h := Search(segments, q, Options{Limit: 1}).Hits
				if len(h) != 1 || !h[0].Named || key(segments[h[0].Segment].Name(h[0].Tool)) != key(tool.Name) {
					t.Errorf("%q: %v, want %s/%s first", q, h, s.name, tool.Name)
				}
			}
			for _, q := range []string{
				s.name + "__" + tool.Name, s.name + " " + tool.Name, s.name + " " + split,
				strings.ToUpper(s.name + "__" + tool.Name), s.name + "." + tool.Name,
			} {
				if key(tool.Name) == "" && q != s.name+"__"+tool.Name {
					continue
				}
				h := Search(segments, q, Options{Limit: 1}).Hits
				if len(h) != 1 || !h[0].Named || h[0].Segment != i || h[0].Tool != j {
					t.Errorf("%q: %v, want %s/%s first", q, h, s.name, tool.Name)
				}
			}
		}
	}
}

// nameParts splits a name as a person would, by what the test itself knows.
func nameParts(name string) []string {
	var b strings.Builder
	rs := []rune(name)
	for i, c := range rs {
		if i > 0 && unicode.IsUpper(c) && unicode.IsLower(rs[i-1]) {
			b.WriteByte(' ')
		}
		b.WriteRune(c)
	}
	return strings.FieldsFunc(b.String(), func(c rune) bool { return c == ' ' || c == '_' || c == '-' })
}

func TestSameNames(t *testing.T) {
	segments := build(catalogue)
	r := Search(segments, "read_file", Options{Limit: 3})
	if got := found(segments, r)[:2]; !slices.Equal(got, []string{"attic/read_file", "drawer/read_file"}) || !r.Hits[1].Named || r.Hits[2].Named {
		t.Errorf("read_file: %v %+v", got, r.Hits)
	}
	r = Search(segments, "drawer__read_file", Options{Limit: 2})
	if got := found(segments, r); got[0] != "drawer/read_file" || r.Hits[1].Named {
		t.Errorf("drawer__read_file: %v %+v", got, r.Hits)
	}

	// To the byte before the same words.
	segments = build([]testServer{{"a", "", []Tool{{Name: "getItem"}, {Name: "get_item"}, {Name: "GetItem"}}}})
	for j, name := range []string{"getItem", "get_item", "GetItem"} {
		if h := Search(segments, name, Options{}).Hits; len(h) != 3 || h[0].Tool != j {
			t.Errorf("%s: %v", name, h)
		}
	}
}

func TestMentions(t *testing.T) {
	segments := build(catalogue)
	for _, c := range []struct {
		query string
		named []string
	}{
		{"use moveFile to put the invoice that customers paid away", []string{"drawer/moveFile"}},
		{"(set_valve), temperature_history: both", []string{"greenhouse/set_valve", "greenhouse/temperature_history"}},
		{"call drawer__delete_file for it", []string{"drawer/delete_file"}},
		{"a book to reserver", nil}, // a word is a word
	} {
		r := Search(segments, c.query, Options{})
		var got []string
		for i, name := range found(segments, r) {
			if r.Hits[i].Named {
				got = append(got, name)
			} else if len(got) < len(c.named) {
				t.Errorf("%q: %s before the named ones", c.query, name)
				break
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, c.named) {
			t.Errorf("%q: named %v, want %v", c.query, got, c.named)
		}
	}
}

// Of tools that match the same, each server shows one before one shows two.
func TestDiversity(t *testing.T) {
	same := func(names ...string) (tools []Tool) {
		for _, n := range names {
			tools = append(tools, Tool{Name: n, Text: "Paints a fence."})
		}
		return tools
	}
	segments := build([]testServer{
		{"a", "", same("p1", "p2", "p3")},
		{"b", "", same("q1", "q2")},
		{"c", "", same("r1")},
	})
	want := []string{"a/p1", "b/q1", "c/r1", "a/p2", "b/q2", "a/p3"}
	if got := found(segments, Search(segments, "paint", Options{})); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}

	// A second tool of a name comes behind others, though it matches better.
	segments = build([]testServer{
		{"a", "", []Tool{{Name: "paint_fence", Text: "Paints a fence."}}},
		{"b", "", []Tool{{Name: "paint_fence", Text: "Paints a fence."}}},
		{"c", "", []Tool{{Name: "fence_brush", Text: "Paints, or cleans."}}},
	})
	want = []string{"a/paint_fence", "c/fence_brush", "b/paint_fence"}
	if got := found(segments, Search(segments, "paint a fence", Options{})); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The order of servers and of their tools changes nothing.
func TestOrder(t *testing.T) {
	servers := append(slices.Clone(catalogue), generated(12, 9)...)
	segments := build(servers)
	rapid.Check(t, func(r *rapid.T) {
		query := rapid.SampledFrom(queries).Draw(r, "query")
		want := Search(segments, query, Options{})
		shuffled := slices.Clone(servers)
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 0))
		rnd.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for i := range shuffled {
			tools := slices.Clone(shuffled[i].tools)
			rnd.Shuffle(len(tools), func(i, j int) { tools[i], tools[j] = tools[j], tools[i] })
			shuffled[i].tools = tools
		}
		other := build(shuffled)
		got := Search(other, query, Options{})
		if a, b := found(other, got), found(segments, want); !slices.Equal(a, b) {
			r.Fatalf("%q: got %v, want %v", query, a, b)
		}
		for i := range got.Hits {
			if got.Hits[i].Score != want.Hits[i].Score {
				r.Fatalf("%q: hit %d scores %d, want %d", query, i, got.Hits[i].Score, want.Hits[i].Score)
			}
		}
		if got.Total != want.Total || !slices.Equal(got.Unmatched, want.Unmatched) {
			r.Fatalf("%q: %d %q, want %d %q", query, got.Total, got.Unmatched, want.Total, want.Unmatched)
		}
	})
}

// What isn't permitted is as if it weren't there.
func TestPermit(t *testing.T) {
	servers := append(slices.Clone(catalogue), generated(12, 9)...)
	segments := build(servers)
	rapid.Check(t, func(r *rapid.T) {
		query := rapid.SampledFrom(queries).Draw(r, "query")
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 0))
		share := rapid.SampledFrom([]float64{0, 0.1, 0.5, 0.95, 1}).Draw(r, "share")
		allowed := map[[2]int]bool{}
		var rest []testServer
		for i, s := range servers {
			var kept []Tool
			for j, tool := range s.tools {
				if rnd.Float64() < share {
					allowed[[2]int{i, j}] = true
					kept = append(kept, tool)
				}
			}
			if kept != nil {
				rest = append(rest, testServer{s.name, s.text, kept})
			}
		}
		got := Search(segments, query, Options{Permit: func(i, j int) bool { return allowed[[2]int{i, j}] }})
		other := build(rest)
		want := Search(other, query, Options{})
		if a, b := found(segments, got), found(other, want); !slices.Equal(a, b) {
			r.Fatalf("%q: got %v, want %v", query, a, b)
		}
		for i := range got.Hits {
			if got.Hits[i].Score != want.Hits[i].Score {
				r.Fatalf("%q: hit %d scores %d, want %d", query, i, got.Hits[i].Score, want.Hits[i].Score)
			}
		}
		if got.Total != want.Total || !slices.Equal(got.Unmatched, want.Unmatched) {
			r.Fatalf("%q: %d %q, want %d %q", query, got.Total, got.Unmatched, want.Total, want.Unmatched)
		}
	})
}

var queries = []string{
	"read a file", "file", "delete the invoice of a customer", "temprature", "clint inv", "the", "天气", "search 図書館 for valves",
	"read_file", "archive every shipment by date", "upload report as csv", "send message to user", "qqqqqq", "https://example.com/a?b=c",
	"merge two customer records", "list", "rename_ticket", "s3", "inv",
}

// With a typo in each word of more than five letters, nearly all tools are found
// as well as without.
func TestTypos(t *testing.T) {
	servers := append(slices.Clone(catalogue), generated(30, 10)...)
	segments := build(servers)
	clean := []string{
		"customer invoice payment", "temperature sensor", "restore something from tape", "forecast of frosty nights",
		"account balance", "archive a shipment", "approve the reservation", "duplicate a template", "assign the incident",
		"translate the transcript", "export the timesheet", "cancel a subscription", "validate the certificate",
	}
	rnd := rand.New(rand.NewPCG(7, 11))
	tried, same := 0, 0
	for range 20 {
		for _, q := range clean {
			want := found(segments, Search(segments, q, Options{Limit: 1}))
			if len(want) == 0 {
				t.Fatalf("%q finds nothing", q)
			}
			tried++
			if slices.Contains(found(segments, Search(segments, misspell(q, rnd), Options{Limit: 5})), want[0]) {
				same++
			}
		}
	}
	if share := float64(same) / float64(tried); share < 0.9 {
		t.Errorf("only %.2f of %d are found", share, tried)
	}
}

func misspell(query string, rnd *rand.Rand) string {
	words := strings.Fields(query)
	for i, w := range words {
		b := []byte(w)
		if len(b) <= 5 {
			continue
		}
		at := rnd.IntN(len(b) - 1)
		switch c := byte('a' + rnd.IntN(26)); rnd.IntN(4) {
		case 0:
			b[at] = c
		case 1:
			b = slices.Delete(b, at, at+1)
		case 2:
			b = slices.Insert(b, at, c)
		default:
			b[at], b[at+1] = b[at+1], b[at]
		}
		words[i] = string(b)
	}
	return strings.Join(words, " ")
}

// A word that some tool has is no typo of another.
func TestKnownWordsAreNoTypos(t *testing.T) {
	segments := build([]testServer{{"a", "", []Tool{{Name: "plants"}, {Name: "planes"}, {Name: "planets"}}}})
	for _, w := range []string{"plants", "planes", "planets"} {
		if h := Search(segments, w, Options{}).Hits; len(h) != 1 || segments[0].Name(h[0].Tool) != w {
			t.Errorf("%s: %v", w, h)
		}
	}
	if r := Search(segments, "planetts", Options{}); len(r.Hits) != 1 || segments[0].Name(r.Hits[0].Tool) != "planets" {
		t.Errorf("planetts: %+v", r)
	}
}

// Huge names, descriptions and queries are bounded.
func TestBounds(t *testing.T) {
	long := strings.Repeat("alpha beta Gamma7 ", 40000)
	segments := build([]testServer{{long, long, []Tool{{Name: long, Text: long + " hidden", Args: []string{long}}, {Name: "beta"}}}})
	if r := Search(segments, long, Options{}); r.Total != 2 {
		t.Errorf("found %d, want 2", r.Total)
	}
	if r := Search(segments, "hidden", Options{}); r.Total != 0 {
		t.Errorf("what follows the bound is indexed: %+v", r)
	}
	var many strings.Builder
	for i := range 300 {
		fmt.Fprintf(&many, "%c%czq ", 'a'+i%26, 'a'+i/26)
	}
	if r := Search(segments, many.String()+"beta", Options{}); r.Total != 0 || len(r.Unmatched) != maxWords {
		t.Errorf("%d hits, %d words of a query; want none of %d", r.Total, len(r.Unmatched), maxWords)
	}
}

func TestConcurrent(t *testing.T) {
	segments := build(catalogue)
	want := Search(segments, "read the file", Options{})
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for i := range 50 {
				Search(segments, queries[i%len(queries)], Options{Limit: 2})
				if got := Search(segments, "read the file", Options{}); !reflect.DeepEqual(got, want) {
					t.Fatalf("got %+v, want %+v", got, want)
				}
			}
		})
	}
}

// A search that isn't the first allocates next to nothing, however many tools
// there are.
func TestAllocations(t *testing.T) {
	segments := build(generated(400, 25))
	for _, q := range []string{
		"get the weather forecast of a city and write it to a file",
		"aprove the shipmnt reservaton of evry custmer adn archve subscriptons", // guesses
		"validate_certificate",
	} {
		o := Options{Limit: 20}
		if len(Search(segments, q, o).Hits) == 0 {
			t.Fatalf("%q finds nothing", q)
		}
		if n := testing.AllocsPerRun(5, func() { Search(segments, q, o) }); n >= 200 {
			t.Errorf("%q: %v allocations", q, n)
		}
	}
}

func FuzzSearch(f *testing.F) {
	for _, q := range queries {
		f.Add(q, "drawer", "read_file", "Returns the contents of a file.", uint8(3))
	}
	f.Add("aa", "aa", "a", "__", uint8(0))
	f.Add("a\u0301\u0327 \ufdfa ΣΊΣΥΦΟΣ ß", "ÅÉ", "ｶﾞｷﾞ", "กำ เก้า हिन्दी", uint8(1))
	f.Add("\xff\xfea", "\xff", "\xc3\x28", "日\xe6本", uint8(9))
	f.Fuzz(func(t *testing.T, query, group, name, text string, n uint8) {
		segments := append(build(catalogue), NewSegment(group, text, []Tool{{Name: name, Text: text, Args: []string{query, text}}, {Name: text}}))
		r := Search(segments, query, Options{Offset: int(n % 3), Limit: int(n)})
		if again := Search(segments, query, Options{Offset: int(n % 3), Limit: int(n)}); !reflect.DeepEqual(r, again) {
			t.Fatalf("%+v, then %+v", r, again)
		}
		if n > 0 && len(r.Hits) > int(n) || len(r.Hits) > r.Total {
			t.Fatalf("%d hits of %d, limit %d", len(r.Hits), r.Total, n)
		}
		if len(name) > maxQuery || strings.TrimSpace(name) != name || name == "" {
			return
		}
		r = Search(segments, name, Options{Limit: 1})
		if len(r.Hits) != 1 || !r.Hits[0].Named {
			t.Fatalf("%q does not find its tool: %+v", name, r)
		}
	})
}

var (
	verbs = strings.Fields("get list create update delete archive export import approve cancel assign duplicate validate translate publish rename merge restore search schedule")
	nouns = strings.Fields("invoice shipment reservation template incident transcript timesheet subscription certificate ticket contract warehouse vehicle campaign survey recipe dataset pipeline notebook password holiday meeting product coupon playlist")
	adds  = []string{"", "_by_date", "_batch", "_status", "V2", "_details", "_as_csv"}
	areas = strings.Fields("sales fleet clinic school hotel garden studio harbor farm museum")
)

// generated returns servers with so many tools each, of different names within
// a server.
func generated(servers, tools int) []testServer {
	rnd := rand.New(rand.NewPCG(1, 2))
	pick := func(of []string) string { return of[rnd.IntN(len(of))] }
	all := make([]testServer, servers)
	for i := range all {
		area := areas[i%len(areas)]
		s := testServer{name: fmt.Sprintf("%s_%d", area, i), text: fmt.Sprintf("The %s's %s and %s records.", area, pick(nouns), pick(nouns))}
		used := map[string]bool{}
		for len(s.tools) < tools {
			verb, noun := pick(verbs), pick(nouns)
			name := verb + "_" + noun + pick(adds)
			if rnd.IntN(3) == 0 {
				name = verb + strings.ToUpper(noun[:1]) + noun[1:]
			}
			if used[key(name)] {
				continue
			}
			used[key(name)] = true
			s.tools = append(s.tools, Tool{
				Name: name,
				Text: fmt.Sprintf("Lets you %s one %s of the %s. Returns its %s, or an error where the %s is unknown; see also %s_%s.", verb, noun, area, pick(nouns), pick(nouns), pick(verbs), pick(nouns)),
				Args: []string{noun + "_id", pick(nouns) + "Name", "limit", "format"},
			})
		}
		all[i] = s
	}
	return all
}

// However many tools match the same, and have one name but for its signs: what
// listing all of them takes grows with how many they are, and not with the
// square.
func TestListingAll(t *testing.T) {
	for what, name := range map[string]func(i int) string{
		"names of their own": func(i int) string { return fmt.Sprintf("paint_%05d", i) },
		"one name but for its signs": func(i int) string {
			return strings.NewReplacer("0", "-", "1", "_").Replace(fmt.Sprintf("p%014ba", i))
		},
	} {
		const n = 10_000
		tools := make([]Tool, n)
		for i := range tools {
			tools[i] = Tool{Name: name(i), Text: "Paints a fence."}
		}
		s := &search{repeats: map[string]int{}}
		r := s.search(build([]testServer{{"a", "", tools}, {"b", "", tools[:n/2]}}), "fence", Options{})
		if len(r.Hits) != n+n/2 {
			t.Fatalf("%s: %d hits", what, len(r.Hits))
		}
		if s.compared > 500*n {
			t.Errorf("%s: %d comparisons for %d hits", what, s.compared, len(r.Hits))
		}
		t.Logf("%s: %d comparisons", what, s.compared)
	}
}
