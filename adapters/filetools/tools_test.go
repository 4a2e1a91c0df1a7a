package filetools_test

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psych-go/psych-go/adapters/filetools"
	"github.com/psych-go/psych-go/psych"
)

func open(t *testing.T) (*filetools.Tools, map[string]*psych.Tool) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte("one\ntwo\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	files, err := filetools.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { files.Close() })
	tools := map[string]*psych.Tool{}
	for _, tool := range files.List() {
		if err := tool.Err(); err != nil {
			t.Fatal(err)
		}
		tools[tool.Def().Name] = tool
	}
	return files, tools
}

func TestTools(t *testing.T) {
	files, tools := open(t)
	bytes := 0
	for name, c := range map[string]struct{ args, want string }{
		"read_file":    {`{"path":"a.txt","offset":4}`, `{"total_chars":8,"total_lines":2,"offset":4,"truncated":false,"unit":"chars"}` + "\ntwo\n"},
		"list_files":   {`{}`, "a.txt\t8\tfile\n[1 listed, files of 8 bytes]\n"},
		"search_files": {`{"pattern":"^t"}`, "a.txt:2: two\n[1 matching lines in 1 files, 1 files searched]\n"},
	} {
		r, err := tools[name].Call(t.Context(), &psych.Call{ToolCall: psych.ToolCall{Arguments: json.RawMessage(c.args)}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := io.ReadAll(r.Body)
		if err != nil || string(got) != c.want || r.IsError || r.ContentType != "text/plain" {
			t.Errorf("%s: %q (%s, failure %t), %v; want %q", name, got, r.ContentType, r.IsError, err, c.want)
		}
		bytes += len(got)
	}
	if c := files.Counts().Total(); c.Calls != 3 || c.Failures != 0 || c.Bytes != int64(bytes) {
		t.Errorf("counts %+v, want 3 calls and %d bytes", c, bytes)
	}
}

func TestSchemas(t *testing.T) {
	_, tools := open(t)
	for name, want := range map[string]struct {
		required string
		optional []string
	}{
		"read_file":    {"path", []string{"offset", "limit"}},
		"list_files":   {"", []string{"path", "pattern"}},
		"search_files": {"pattern", []string{"path", "glob"}},
	} {
		def := tools[name].Def()
		var s struct {
			Properties map[string]struct{ Description string }
			Required   []string
		}
		if err := json.Unmarshal(def.Schema, &s); err != nil {
			t.Fatal(err)
		}
		names := want.optional
		if want.required != "" {
			names = append(names, want.required)
		}
		if def.Description == "" || len(s.Properties) != len(names) || strings.Join(s.Required, " ") != want.required {
			t.Errorf("%s: %s", name, def.Schema)
		}
		for _, n := range names {
			if s.Properties[n].Description == "" {
				t.Errorf("%s: %s isn't described: %s", name, n, def.Schema)
			}
		}
		for _, args := range []string{`{"path":1}`, `{"nonsense":true}`} {
			if _, err := tools[name].Call(t.Context(), &psych.Call{ToolCall: psych.ToolCall{Arguments: json.RawMessage(args)}}); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s takes %s: %v", name, args, err)
			}
		}
	}
}
