package psych

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

func writePolicy(t *testing.T, path, text string) {
	t.Helper()
	tmp := path + ".new"
	if err := errors.Join(os.WriteFile(tmp, []byte(text), 0o600), os.Rename(tmp, path)); err != nil {
		t.Fatal(err)
	}
}

func TestFilePolicy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.json")
	writePolicy(t, path, `{
		"tenants": {
			"acme": {"allow": ["github/*", "files/read_?", "*/list*"], "deny": ["*/delete_*", "git*/admin/*", "shut/*"], "urls": ["https://mcp.example.com/acme", "http://127.0.0.1:8080"]},
			"local": {"allow": ["*"], "urls": [], "commands": true},
			"all": {"allow": ["*"], "commands": true},
			"web": {"allow": ["*"]},
			"none": {"allow": []}
		},
		"others": {"allow": ["public/*"]}
	}`)
	p := FilePolicy(path)
	const url = "https://mcp.example.com/acme/mcp"
	for _, c := range []struct {
		tenant, connection, url, command, tool string
		want                                   bool
	}{
		{"acme", "github", url, "", "search", true},
		{"acme", "github", url, "", "a/b", true}, // a tool's name may hold slashes
		{"acme", "github", url, "", "delete_repo", false},
		{"acme", "github", url, "", "Delete_repo", true}, // case counts
		{"acme", "github", url, "", "admin/x", false},
		{"acme", "github2", url, "", "search", false},
		{"acme", "files", url, "", "read_é", true},
		{"acme", "files", url, "", "read_", false},
		{"acme", "files", url, "", "read_ab", false},
		{"acme", "other", url, "", "list", true},
		{"acme", "other", url, "", "a/list", false}, // the first slash alone ends a connection's name
		{"acme", "github", "http://127.0.0.1:8080/any", "", "search", true},
		{"acme", "github", "https://mcp.example.com/acmes", "", "search", false},
		{"acme", "github", "https://evil.example/acme", "", "search", false},
		{"acme", "github", "", "mcp-github", "search", false},
		{"acme", "github", url, "mcp-github", "search", false}, // an illegal connection, both URL and command
		{"acme", "github", "", "", "search", false},
		{"acme", "github", url, "", "", true},
		{"acme", "files", url, "", "", true},
		{"acme", "shut", url, "", "", false},
		{"acme", "shut", url, "", "list", false},
		{"acme", "github", "https://evil.example/", "", "", false},
		{"local", "x", "", "prog", "y", true},
		{"local", "x", url, "", "y", false},
		{"all", "x", url, "", "y", true},
		{"all", "x", "", "prog", "y", true},
		{"web", "x", url, "", "y", true},
		{"web", "x", "", "prog", "y", false},
		{"none", "x", url, "", "y", false},
		{"none", "x", url, "", "", false},
		{"unnamed", "public", url, "", "y", true},
		{"unnamed", "github", url, "", "y", false},
		{"unnamed", "github", url, "", "", false},
	} {
		permit, err := p.Filter(t.Context(), Scope{Tenant: c.tenant})
		if err != nil {
			t.Fatal(err)
		}
		con := &Connection{Name: c.connection, URL: c.url}
		if c.command != "" {
			con.Command = []string{c.command}
		}
		if got := permit(con, c.tool); got != c.want {
			t.Errorf("%+v: permitted is %v", c, got)
		}
	}
}

// What the file withdraws is withdrawn at the next Filter, also by its
// becoming unreadable, and comes back with it.
func TestFilePolicyIsReadAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.json")
	p, c := FilePolicy(path), &Connection{Name: "a", URL: "https://a.example"}
	ask := func() (bool, error) {
		permit, err := p.Filter(t.Context(), Scope{Tenant: "t"})
		return err == nil && permit(c, "x"), err
	}
	if _, err := ask(); !errors.Is(err, ErrAccessDenied) || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("without a file: %v", err)
	}
	for _, step := range []struct {
		text string
		want bool
	}{
		{`{"others": {"allow": ["*"]}}`, true},
		{`{"others": {"allow": ["*"]}}`, true},
		{`{"tenants": {"t": {"allow": ["a/y"]}}, "others": {"allow": ["*"]}}`, false},
		{`{"others": {"allow": ["a/x"]}}`, true},
		{`{"others": null}`, false},
		{`{}`, false},
	} {
		writePolicy(t, path, step.text)
		if got, err := ask(); err != nil || got != step.want {
			t.Errorf("%s: %v, %v", step.text, got, err)
		}
	}
	writePolicy(t, path, `{"others": {"allow": ["*"]}}`)
	if got, err := ask(); !got {
		t.Error(err)
	}
	writePolicy(t, path, `{"others": {"allow": ["*"]}`)
	if got, err := ask(); got || !errors.Is(err, ErrAccessDenied) || !errors.Is(err, ErrInvalid) {
		t.Errorf("a broken file after a good one: %v, %v", got, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(); got || !errors.Is(err, ErrAccessDenied) {
		t.Errorf("no file after a good one: %v, %v", got, err)
	}
}

func TestFilePolicyBroken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.json")
	for text, want := range map[string]string{
		``:                         "JSON",
		`[]`:                       "want an object",
		`{"tenants": {"t": null}}`: "tenants.t",
		`{"tenant": {}}`:           "unknown field",
		`{"others": {"allow": [], "allows": []}}`:                                        "allows",
		`{"others": {"allow": [], "Deny": ["*"]}}`:                                       "Deny",
		`{"others": {"allow": ["*"], "allow": []}}`:                                      "allow",
		`{"others": {"allow": "*"}}`:                                                     "others.allow",
		`{"others": {}}`:                                                                 `others has no "allow"`,
		`{"tenants": {"t": {"deny": ["*"]}}}`:                                            `tenants.t has no "allow"`,
		`{"others": {"allow": null}}`:                                                    "others.allow is null",
		`{"others": {"allow": ["*"], "urls": null}}`:                                     "others.urls is null",
		`{"others": {"allow": ["*"], "deny": null}}`:                                     "others.deny is null",
		`{"others": {"allow": ["*"], "deny": [null]}}`:                                   "others.deny",
		`{"others": {"allow": ["*"], "commands": "yes"}}`:                                "commands",
		`{"others": {"allow": ["*"], "commands": null}}`:                                 "commands",
		`{"others": {"allow": ["*"], "deny": ["a/*", "delete_*"]}}`:                      `others.deny[1] is "delete_*": want CONNECTION/TOOL`,
		`{"others": {"allow": ["/x"]}}`:                                                  "others.allow[0]",
		`{"others": {"allow": ["x/"]}}`:                                                  "others.allow[0]",
		`{"others": {"allow": [""]}}`:                                                    "others.allow[0]",
		`{"others": {"allow": ["*"], "urls": ["mcp.example.com"]}}`:                      "others.urls[0] is no absolute URL",
		`{"others": {"allow": ["*"], "urls": ["ftp://mcp.example.com"]}}`:                "others.urls[0]",
		`{"others": {"allow": ["*"], "urls": ["https://*.example.com", ""]}}`:            "others.urls[1]",
		`{"others": {"allow": ["*"], "urls": ["https://mcp.example.com/a?key=s3cr3t"]}}`: "others.urls[0] has a user, a query",
		`{"others": {"allow": ["*"], "urls": ["https://u:s3cr3t@mcp.example.com/"]}}`:    "others.urls[0] has a user",
		`{"others": {"allow": ["*"], "urls": ["https://mcp.example.com/a/../b"]}}`:       "others.urls[0] has a host outside ASCII",
		`{"tenants": {"": {"allow": []}}}`:                                               "tenant",
		`{"others": {"allow": ["*"]}} {}`:                                                "JSON",
	} {
		writePolicy(t, path, text)
		permit, err := FilePolicy(path).Filter(t.Context(), Scope{Tenant: "t"})
		if !errors.Is(err, ErrAccessDenied) || !errors.Is(err, ErrInvalid) || permit != nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: %v, want an error that says %q", text, err, want)
		}
	}
}

func TestURLPrefix(t *testing.T) {
	for _, c := range []struct {
		prefix, url string
		want        bool
	}{
		{"https://h.example", "https://h.example", true},
		{"https://h.example", "https://h.example/", true},
		{"https://h.example/", "https://h.example", true},
		{"https://h.example/", "https://h.example/a/b?c=d#e", true},
		{"https://h.example/a", "https://h.example/a", true},
		{"https://h.example/a", "https://h.example/a/", true},
		{"https://h.example/a/", "https://h.example/a", true},
		{"https://h.example/a/", "https://h.example/a/b", true},
		{"https://h.example/a", "https://h.example/ab", false},
		{"https://h.example/a", "https://h.example/A", false},
		{"https://h.example/a", "https://h.example/", false},
		{"https://h.example/a", "https://h.example//a", false},
		{"https://h.example/a b", "https://h.example/a%20b/c", true},
		{"HTTPS://H.Example:443", "https://h.EXAMPLE/x", true},
		{"https://h.example", "https://h.example:443/x", true},
		{"http://h.example:80", "http://h.example/x", true},
		{"http://h.example", "https://h.example/", false},
		{"http://h.example:443", "https://h.example/", false},
		{"https://h.example", "https://h.example:8443/", false},
		{"https://h.example", "https://h.example.evil.example/", false},
		{"https://h.example", "https://h.example@evil.example/", false},
		{"https://h.example", "https://user@h.example/", false},
		{"https://h.example", "https://evil.example/h.example", false},
		{"https://h.example", "https://sub.h.example/", false},
		{"https://h.example", "https://h.example./", false},
		{"https://k.example", "https://\u212a.example/", false}, // folds to k
		{"https://h.example/a", "https://h.example/a/../b", false},
		{"https://h.example/a", "https://h.example/a/%2e%2E/b", false},
		{"https://h.example/a", "https://h.example/a/.%2e/b", false},
		{"https://h.example/a", "https://h.example/a/..;x=y/b", false},
		{"https://h.example/a", "https://h.example/a/./b", false},
		{"https://h.example/a", "https://h.example/a%2fb", false},
		{"https://h.example/a", "https://h.example/a/..%2Fb", false},
		{"https://h.example/a", "https://h.example/a/..%5cb", false},
		{"https://h.example/a", `https://h.example/a/..\b`, false},
		{"https://h.example/a", "https://h.example/a/%00", false},
		{"https://h.example/a", "https://h.example/a/...", true},
		{"https://h.example/a", "https://h.example/a/..b", true},
		{"http://[::1]:8080/", "http://[::1]:8080/mcp", true},
		{"https://h.example", "https:h.example/", false},
		{"https://h.example", "//h.example/", false},
		{"https://h.example", "h.example", false},
		{"https://h.example", "", false},
		{"https://h.example", "https://h.example/%zz", false},
	} {
		p, err := parseURLPrefix(c.prefix)
		if err != nil {
			t.Errorf("%s: %v", c.prefix, err)
		} else if got := p.holds(c.url); got != c.want {
			t.Errorf("%s holds %s: %v", c.prefix, c.url, got)
		}
	}
	for _, s := range []string{"", "/a", "h.example", "ftp://h.example", "https://", "https:///a", "https://:443", "https:h.example", "https://u@h.example", "https://h.example?x", "https://h.example?", "https://h.example#x", "https://h.example/..", "https://h.example/a%2fb", "https://bücher.example", "https://h.example/%zz"} {
		if p, err := parseURLPrefix(s); err == nil {
			t.Errorf("%q is taken for a prefix: %v", s, p)
		}
	}
}

// naiveMatch is matchPattern by the book: a table of which prefix of the
// pattern matches which prefix of the name.
func naiveMatch(pattern, name string) bool {
	n := strings.Split(name, "") // characters, and bytes that are none
	row := make([]bool, len(n)+1)
	row[0] = true
	for _, c := range pattern {
		next := make([]bool, len(n)+1)
		next[0] = c == '*' && row[0]
		for i, r := range n {
			switch c {
			case '*':
				next[i+1] = row[i+1] || next[i]
			case '?':
				next[i+1] = row[i]
			default:
				next[i+1] = row[i] && r == string(c)
			}
		}
		row = next
	}
	return row[len(n)]
}

func FuzzPattern(f *testing.F) {
	for _, s := range [][2]string{{"*", ""}, {"a*b?c", "axxbyc"}, {"*é?", "éé\xff"}, {"**a**", "bab"}, {"?", "\xc3\xa9"}, {"*ab*ab", "abab"}, {"", ""}, {"a/*", "a/b/c"}, {"*\xa9", "\xc3\xa9"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		got := matchPattern(pattern, name)
		if !utf8.ValidString(pattern) || len(pattern)*len(name) > 1<<20 {
			return // it must not panic
		}
		if want := naiveMatch(pattern, name); got != want {
			t.Fatalf("%q matches %q: %v", pattern, name, got)
		}
	})
}

// All short patterns against all short names: what fuzzing might not meet.
func TestPatternExhaustive(t *testing.T) {
	words := func(alphabet []string, length int) []string {
		all := []string{""}
		for from := 0; length > 0; length-- {
			end := len(all)
			for _, w := range all[from:end] {
				for _, a := range alphabet {
					all = append(all, w+a)
				}
			}
			from = end
		}
		return all
	}
	names, matched := words([]string{"a", "é", "/"}, 5), 0
	for _, p := range words([]string{"a", "é", "?", "*"}, 5) {
		for _, n := range names {
			got := matchPattern(p, n)
			if got != naiveMatch(p, n) {
				t.Fatalf("%q matches %q: %v", p, n, got)
			}
			if got {
				matched++
			}
		}
	}
	if matched == 0 {
		t.Error("nothing matched")
	}
	// One that tries every way to share the name among the stars never ends.
	if long := strings.Repeat("a", 20_000); matchPattern(strings.Repeat("a*", 500)+"b", long) || !matchPattern(strings.Repeat("*a", 500), long) {
		t.Error("many stars match wrongly")
	}
}
