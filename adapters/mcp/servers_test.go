//go:build unix

package mcp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/adapters/mcp"
	"github.com/psych-go/psych-go/psych"
)

func env(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

func ExampleParseServers() {
	connections, _, notes, err := mcp.ParseServers([]byte(`{
		// as it stands in other clients' files
		"mcpServers": {
			"files": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "${HOME}"]},
			"Web search": {"url": "https://mcp.example.com/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}, "timeout": 60,},
		},
	}`), env(map[string]string{"HOME": "/home/me", "TOKEN": "tell-nobody"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range connections {
		b, _ := json.Marshal(c)
		fmt.Println(string(b))
	}
	for _, n := range notes {
		fmt.Println(n)
	}
	// Output:
	// {"name":"files","command":["npx","-y","@modelcontextprotocol/server-filesystem","${HOME}"],"credential":"files"}
	// {"name":"Web_search_7711faa7","url":"https://mcp.example.com/mcp","credential":"Web_search_7711faa7"}
	// server "files" has variables in its command: they are set for it, too
	// server "Web search" is called Web_search_7711faa7 here
	// server "Web search" has "timeout", which is not used
}

func TestParseServers(t *testing.T) {
	vars := env(map[string]string{"KEY": "k3y-value", "EMPTY": "", "HOST": "mcp.test", "OTHER": "other-value"})
	type want struct {
		conn   psych.Connection
		secret string
		notes  []string
	}
	for name, c := range map[string]struct {
		in   string
		want want
	}{
		"command": {`{"mcpServers":{"a":{"command":"x","args":["1","//no comment","/* nor this */",",]"]}}}`,
			want{conn: psych.Connection{Command: []string{"x", "1", "//no comment", "/* nor this */", ",]"}}}},
		"comments and commas": {"\ufeff// one\n{ /* two\n */ \"mcpServers\" : { \"a\": {\"command\": \"x\", \"args\": [\"y\" /* z */ , ], /**/ }, // three\n}, }",
			want{conn: psych.Connection{Command: []string{"x", "y"}}}},
		"VS Code": {`{"servers":{"a":{"type":"stdio","command":"x"}},"inputs":[]}`,
			want{conn: psych.Connection{Command: []string{"x"}}, notes: []string{`the field "inputs" is not used`}}},
		"settings": {`{"mcp":{"servers":{"a":{"command":"x"}},"inputs":[]},"editor.tabSize":4}`,
			want{conn: psych.Connection{Command: []string{"x"}}, notes: []string{`the field "mcp.inputs" is not used`, `the field "editor.tabSize" is not used`}}},
		"command as a list": {`{"mcpServers":{"a":{"type":"local","command":["x","y"]}}}`, want{conn: psych.Connection{Command: []string{"x", "y"}}}},
		"env": {`{"mcpServers":{"a":{"command":"x","env":{"A":"${KEY}","B":"${env:KEY}!","C":"${NONE:-d}","D":"${EMPTY:-e}","E":5,"F":true,"G":null,"H":"${EMPTY}","I":"$KEY ${no.name} ${","J":"${KEY:-d}"}}}}`,
			want{conn: psych.Connection{Command: []string{"x"}}, secret: `{"env":{"A":"k3y-value","B":"k3y-value!","C":"d","D":"e","E":"5","F":"true","H":"","I":"$KEY ${no.name} ${","J":"k3y-value"}}`}},
		"variables in a command": {`{"mcpServers":{"a":{"command":"${KEY}/x","args":["--k=${env:KEY}","${NONE:-d}","${OTHER}"],"env":{"OTHER":"mine"}}}}`,
			want{conn: psych.Connection{Command: []string{"${KEY}/x", "--k=${KEY}", "d", "${OTHER_}"}}, secret: `{"env":{"KEY":"k3y-value","OTHER":"mine","OTHER_":"other-value"}}`,
				notes: []string{`server "a" has variables in its command: they are set for it, too`}}},
		"url": {`{"mcpServers":{"a":{"serverUrl":"https://${HOST}/mcp?a=b","headers":{"X-Key":"${KEY}","accept":"text/html"},"description":"d","cwd":"/"}}}`,
			want{conn: psych.Connection{URL: "https://mcp.test/mcp?a=b", Description: "d"}, secret: `{"headers":{"X-Key":"k3y-value"}}`,
				notes: []string{`server "a" has cwd, which is not used: the command runs in the folder of this program`, `server "a" has a variable in its url: the value is stored with the Spec`, `server "a" has the header Accept, which is set by the protocol: it is not used`}}},
		"http": {`{"mcpServers":{"a":{"type":"streamable-http","url":"https://a.test","httpUrl":"https://b.test"}}}`, want{conn: psych.Connection{URL: "https://b.test"}}},
		"sse": {`{"mcpServers":{"a":{"type":"sse","url":"https://a.test"}}}`,
			want{conn: psych.Connection{URL: "https://a.test"}, notes: []string{`server "a" has the type sse, an old transport that is not spoken: its url is tried by streamable HTTP`}}},
		"both": {`{"mcpServers":{"a":{"type":"http","url":"https://a.test","command":"x","env":{"A":"${KEY}"}}}}`,
			want{conn: psych.Connection{URL: "https://a.test"}, notes: []string{`server "a" has a url: its command and env are not used`}}},
	} {
		t.Run(name, func(t *testing.T) {
			conns, secrets, notes, err := mcp.ParseServers([]byte(c.in), vars)
			must(t, err)
			c.want.conn.Name = "a"
			if c.want.secret != "" {
				c.want.conn.Credential = "a"
				s, err := secrets.Secret(t.Context(), psych.SecretRequest{Name: "a", URL: c.want.conn.URL})
				if must(t, err); s.Value != c.want.secret {
					t.Errorf("secret %s\nwant   %s", s.Value, c.want.secret)
				}
			} else if _, err := secrets.Secret(t.Context(), psych.SecretRequest{Name: "a"}); !errors.Is(err, psych.ErrNotFound) {
				t.Error(err)
			}
			if len(conns) != 1 || !reflect.DeepEqual(conns[0], c.want.conn) {
				t.Errorf("%+v\nwant %+v", conns, c.want.conn)
			}
			if !reflect.DeepEqual(notes, c.want.notes) {
				t.Errorf("notes %q\nwant  %q", notes, c.want.notes)
			}
			b, err := json.Marshal(conns)
			if must(t, err); strings.Contains(string(b), "k3y-value") {
				t.Errorf("a secret in %s", b)
			}
			if err := (&psych.Spec{Name: "s", Connections: conns}).Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestParseServersOrderAndNames(t *testing.T) {
	long := strings.Repeat("n", 70)
	conns, _, notes, err := mcp.ParseServers([]byte(`{"mcpServers":{"z":{"command":"x"},"off":{"command":"x","disabled":true},"off2":{"command":"x","enabled":false},"on":{"command":"x","disabled":false},"a b":{"command":"x"},"a/b":{"command":"x"},"":{"command":"x"},"é":{"command":"x"},"`+long+`":{"command":"x"}}}`), env(nil))
	must(t, err)
	var names []string
	for _, c := range conns {
		names = append(names, c.Name)
	}
	if got := strings.Join(names[:4], " "); len(names) != 7 || !strings.HasPrefix(got, "z on a_b_") || names[2] == names[3] {
		t.Errorf("%q", names)
	}
	if err := (&psych.Spec{Name: "s", Connections: conns}).Check(); err != nil {
		t.Error(err)
	}
	if len(notes) != 7 {
		t.Errorf("%q", notes)
	}
}

func TestParseServersRefuses(t *testing.T) {
	vars := env(map[string]string{"KEY": "k3y-value"})
	one := func(server string) string { return `{"mcpServers":{"a":` + server + `}}` }
	for in, want := range map[string]string{
		"":                                "ends too early",
		"[]":                              "want a JSON object",
		"{}":                              `no object "mcpServers"`,
		`{"mcpServers":[]}`:               `"mcpServers": want a JSON object`,
		"{\n\n\"mcpServers\": k3y-value":  "line 3",
		`{"mcpServers":{}} k3y-value`:     "behind the object",
		`{"mcpServers":{}, /* k3y-value`:  "invalid character '/'",
		`{"mcpServers":{"a":{},"a":{}}}`:  `"a" stands there twice`,
		`{"mcpServers":{},"servers":{}}`:  "want one list",
		one(`{}`):                         "neither a command nor a url",
		one(`{"command":""}`):             "no command",
		one(`{"type":"stdio"}`):           "no command",
		one(`{"command":5}`):              `"command", which is no string`,
		one(`{"command":"x","args":[5]}`): "args that are no list of strings",
		one(`{"command":"x","env":["k3y-value"]}`):                              "want a JSON object",
		one(`{"command":"x","env":{"A":["k3y-value"]}}`):                        "no string",
		one(`{"command":"x","env":{"A":"${MISSING}","B":"${env:ALSO}"}}`):       "MISSING, which is not set\nserver \"a\" refers to the environment variable ALSO",
		one(`{"command":"x","args":["${MISSING}"]}`):                            "MISSING",
		one(`{"command":"x","env":{"A":"${input:token}"}}`):                     "${input:token}",
		one(`{"url":"ftp://x"}`):                                                "want http:// or https://",
		one(`{"url":"https://u:k3y-value@x"}`):                                  "with a user",
		one(`{"url":"https://x/?key=${KEY}"}`):                                  "variable in its url's query",
		one(`{"url":"https://x","headers":{"A b":"k3y-value"}}`):                "can't be sent",
		one(`{"url":"https://x","headers":{"A":"k3y-value\n"}}`):                "can't be sent",
		one(`{"command":"x","disabled":"k3y-value"}`):                           "neither true nor false",
		`{"mcpServers":{"a b":{"command":"x"},"a_b_c8687a08":{"command":"x"}}}`: "has the name a_b_c8687a08, as \"a b\" has",
		`{"mcpServers":{"a":"k3y-value"}}`:                                      "want a JSON object",
		"{\"mcpServers\":{\"a\":{\"command\":\"\xff\"}}}":                       "no UTF-8",
	} {
		_, _, notes, err := mcp.ParseServers([]byte(in), vars)
		if !errors.Is(err, psych.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(fmt.Sprint(err, notes), "k3y-value") {
			t.Errorf("%s: %v %q\nwant %q", in, err, notes, want)
		}
	}
}

func TestFileSecrets(t *testing.T) {
	const file = `{"mcpServers":{"a":{"url":"https://a.test/mcp","headers":{"A":"1"}},"b":{"command":"x","env":{"A":"${KEY}"}}}}`
	_, secrets, _, err := mcp.ParseServers([]byte(file), env(map[string]string{"KEY": "k3y-value"}))
	must(t, err)
	for url, want := range map[string]error{"https://a.test/mcp": nil, "https://b.test/mcp": psych.ErrAccessDenied, "": psych.ErrAccessDenied} {
		s, err := secrets.Secret(t.Context(), psych.SecretRequest{Name: "a", URL: url})
		if !errors.Is(err, want) || (err == nil) != (s.Value != "") {
			t.Errorf("%s: %v, %v", url, s, err)
		}
	}
	if _, err := secrets.Secret(t.Context(), psych.SecretRequest{Name: "b", URL: "https://a.test/mcp"}); !errors.Is(err, psych.ErrAccessDenied) {
		t.Errorf("what is a command's goes to a URL: %v", err)
	}
	b, err := secrets.Secret(t.Context(), psych.SecretRequest{Name: "b"})
	must(t, err)
	again, err := secrets.Secret(t.Context(), psych.SecretRequest{Name: "b", Stale: b.Identity})
	must(t, err)
	_, other, _, err := mcp.ParseServers([]byte(file), env(map[string]string{"KEY": "another"}))
	must(t, err)
	o, err := other.Secret(t.Context(), psych.SecretRequest{Name: "b"})
	must(t, err)
	if b.Identity == "" || b.Identity != again.Identity || b.Identity == o.Identity || strings.Contains(b.Identity, "k3y") {
		t.Errorf("%q, %q, %q", b.Identity, again.Identity, o.Identity)
	}
}

func FuzzParseServers(f *testing.F) {
	f.Add(`{"mcpServers":{"a":{"command":"x","args":["${KEY}",],},/* */}}`)
	f.Add(`{"servers":{"a b":{"url":"https://${KEY}/?x","headers":{"A":"${env:KEY:-d}"}}}}`)
	f.Add(`{"mcp":{"servers":{"":{"command":["\"//"],"env":{"A":1}}}}} // end`)
	f.Fuzz(func(t *testing.T, in string) {
		conns, secrets, notes, err := mcp.ParseServers([]byte(in), env(map[string]string{"KEY": "k3y-value"}))
		if err != nil {
			if !errors.Is(err, psych.ErrInvalid) {
				t.Error(err)
			}
			return
		}
		seen := map[string]bool{}
		for _, c := range conns {
			if seen[c.Name] {
				t.Errorf("two are called %q", c.Name)
			}
			seen[c.Name] = true
			if b, _ := json.Marshal(c.Command); strings.Contains(string(b), "k3y-value") && !strings.Contains(in, "k3y-value") {
				t.Errorf("a secret in %s", b)
			}
			if _, err := secrets.Secret(t.Context(), psych.SecretRequest{Name: c.Credential, URL: c.URL}); (err == nil) != (c.Credential != "") {
				t.Errorf("%+v: %v", c, err)
			}
		}
		if strings.Contains(strings.Join(notes, ""), "k3y-value") && !strings.Contains(in, "k3y-value") {
			t.Errorf("a secret in %q", notes)
		}
	})
}
