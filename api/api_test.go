package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/api"
	"github.com/psych-go/psych-go/psych"
)

// A service is the API over a real server, with drivers in this process.
type service struct {
	t     *testing.T
	rt    *psych.Runtime
	h     *api.Handler
	url   string
	doc   *contract
	wake  *memory.Waker
	store psych.Store
	blobs psych.BlobStore
}

// bearer believes "Bearer TENANT/PRINCIPAL".
type bearer struct{}

func (bearer) Authenticate(r *http.Request) (psych.Scope, error) {
	auth := r.Header.Values("Authorization")
	if len(auth) != 1 {
		return psych.Scope{}, fmt.Errorf("%d headers: %w", len(auth), api.ErrUnauthenticated)
	}
	who, ok := strings.CutPrefix(auth[0], "Bearer ")
	tenant, principal, named := strings.Cut(who, "/")
	if !ok || !named {
		return psych.Scope{}, fmt.Errorf("nobody: %w", api.ErrUnauthenticated)
	}
	return psych.Scope{Tenant: tenant, Principal: principal}, nil
}

const talk = `
steps:
- calls: [{name: big, arguments: {lines: 30000}}]
- text: There were many lines.
- text: Again.
- text: And again.
`

var big = psych.NewTool("big", "Says many lines.", func(_ context.Context, _ *psych.Call, in struct {
	Lines int `json:"lines"`
}) (string, error) {
	var b strings.Builder
	for i := range in.Lines {
		fmt.Fprintf(&b, "line %d of %d\n", i+1, in.Lines)
	}
	return b.String(), nil
}, nil)

func newService(t *testing.T, yaml string, o *api.Options, tools ...*psych.Tool) *service {
	t.Helper()
	return newServiceOn(t, memory.New(nil), yaml, o, tools...)
}

func newServiceOn(t *testing.T, store psych.Store, yaml string, o *api.Options, tools ...*psych.Tool) *service {
	t.Helper()
	play, err := script.Parse([]byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	s := &service{t: t, doc: document(t), wake: memory.NewWaker(nil), store: store, blobs: memory.NewBlobs(nil)}
	s.rt, err = psych.New(store, &psych.Options{
		Blobs: s.blobs, Models: psych.OneModel(script.New(play, nil)), Tools: append([]*psych.Tool{big}, tools...), Waker: s.wake,
	})
	if err != nil {
		t.Fatal(err)
	}
	if s.h, err = api.New(s.rt, store, bearer{}, o); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.h)
	t.Cleanup(server.Close)
	t.Cleanup(s.h.Drain)
	s.url = server.URL
	return s
}

// drive drives what is woken, until the test ends.
func (s *service) drive() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.wake.Serve(ctx, 2, func(ctx context.Context, key psych.RunKey) error {
			_, err := s.rt.Drive(ctx, key, &psych.DriveOptions{Observe: func(o psych.Observation) { s.h.Observe(key, o) }})
			return err
		})
	}()
	s.t.Cleanup(func() { cancel(); <-done })
}

// A reply is an answer, and its body decoded.
type reply struct {
	status int
	header http.Header
	body   []byte
	fields map[string]any
}

func (r reply) code() string { return fmt.Sprint(r.fields["code"]) }

func (r reply) text(name string) string {
	v, _ := r.fields[name].(string)
	return v
}

// call makes a request of tenant t, and holds its answer against the document.
// headers are "Name: value"; one without a value is removed.
func (s *service) call(method, path, body string, headers ...string) reply {
	s.t.Helper()
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer t/p")
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if r.Header.Del(name); value != "" {
			r.Header.Set(name, value)
		}
	}
	return s.do(r)
}

func (s *service) do(r *http.Request) reply {
	s.t.Helper()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	got := reply{status: resp.StatusCode, header: resp.Header}
	if got.body, err = io.ReadAll(resp.Body); err != nil {
		s.t.Fatal(err)
	}
	json.Unmarshal(got.body, &got.fields)
	if err := s.doc.check(r.Method, r.URL.EscapedPath(), got); err != nil {
		s.t.Errorf("%s %s: %d: %v\n%.600s", r.Method, r.URL.Path, got.status, err, got.body)
	}
	return got
}

// want is call for an answer of that status and, of a problem, code.
func (s *service) want(status int, code, method, path, body string, headers ...string) reply {
	s.t.Helper()
	got := s.call(method, path, body, headers...)
	if got.status != status || code != "" && got.code() != code {
		s.t.Errorf("%s %.100s with %.100q: %d %s, want %d %s\n%.400s", method, path, body, got.status, got.code(), status, code, got.body)
	}
	return got
}

// publish publishes a Spec with the tool big.
func (s *service) publish() string {
	s.t.Helper()
	return s.want(201, "", "POST", "/v1/versions", `{"name":"agent","tools":["big"]}`).text("version")
}

// start creates a Run of a Version.
func (s *service) start(version, text string, headers ...string) string {
	s.t.Helper()
	body, err := json.Marshal(map[string]any{"version": version, "message": map[string]any{"text": text}})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.want(201, "", "POST", "/v1/runs", string(body), headers...).text("run_id")
}

// finish follows a Run by long polls until an exchange is closed, and returns
// the records behind a position, and the position at their end.
func (s *service) finish(run, after string) (records []map[string]any, next string) {
	s.t.Helper()
	for next = after; ; {
		got := s.want(200, "", "GET", "/v1/runs/"+run+"/records?wait=30&after="+next, "")
		if got.status != 200 {
			s.t.FailNow()
		}
		for _, r := range got.fields["records"].([]any) {
			records = append(records, r.(map[string]any))
		}
		next = got.text("next")
		// A message that came twice may leave another attempt behind it.
		if slices.ContainsFunc(records, func(r map[string]any) bool { return r["kind"] == "exchange_closed" }) {
			return records, next
		}
	}
}

// A contract is the OpenAPI document, with its schemas compiled.
type contract struct {
	paths map[string]map[string]operation

	mu      sync.Mutex
	schemas *jsonschema.Compiler
	seen    map[string]bool // "METHOD /path status"
}

type operation struct {
	Parameters []map[string]any          `json:"parameters"`
	Responses  map[string]map[string]any `json:"responses"`
}

const documentURL = "https://psych.test/openapi.json"

var document = func() func(t *testing.T) *contract {
	once := sync.OnceValues(func() (*contract, error) {
		var d struct {
			OpenAPI string                          `json:"openapi"`
			Paths   map[string]map[string]operation `json:"paths"`
		}
		if err := json.Unmarshal(api.Document(), &d); err != nil {
			return nil, err
		}
		if d.OpenAPI != "3.1.0" {
			return nil, fmt.Errorf("openapi is %q", d.OpenAPI)
		}
		all, err := jsonschema.UnmarshalJSON(bytes.NewReader(api.Document()))
		if err != nil {
			return nil, err
		}
		c := jsonschema.NewCompiler()
		c.DefaultDraft(jsonschema.Draft2020)
		c.AssertFormat()
		if err := c.AddResource(documentURL, all); err != nil {
			return nil, err
		}
		return &contract{paths: d.Paths, schemas: c, seen: map[string]bool{}}, nil
	})
	return func(t *testing.T) *contract {
		t.Helper()
		c, err := once()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
}()

// schema compiles what a JSON pointer of the document names.
func (c *contract) schema(pointer string) (*jsonschema.Schema, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.schemas.Compile(documentURL + "#" + pointer)
}

// check holds an answer against what the document says of its path.
func (c *contract) check(method, path string, got reply) error {
	for template, methods := range c.paths {
		pattern := "^" + regexp.MustCompile(`\\\{[a-z]+\\\}`).ReplaceAllString(regexp.QuoteMeta(template), "[^/]+") + "$"
		if !regexp.MustCompile(pattern).MatchString(path) {
			continue
		}
		op, ok := methods[strings.ToLower(method)]
		if !ok {
			break
		}
		status := fmt.Sprint(got.status)
		where := "/paths/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(template) + "/" + strings.ToLower(method) + "/responses/" + status
		r, ok := op.Responses[status]
		if !ok {
			return fmt.Errorf("the document has no answer %s for %s", status, template)
		}
		if ref, ok := r["$ref"].(string); ok {
			where = strings.TrimPrefix(ref, "#")
			r = map[string]any{"content": map[string]any{"application/problem+json": nil}}
		}
		c.mu.Lock()
		c.seen[method+" "+template+" "+status] = true
		c.mu.Unlock()
		content, _ := r["content"].(map[string]any)
		kind := got.header.Get("Content-Type")
		if len(content) == 0 {
			if len(got.body) > 0 {
				return fmt.Errorf("there is a body of %s", kind)
			}
			return nil
		}
		if _, ok := content[kind]; !ok {
			return fmt.Errorf("the document has no answer of type %q", kind)
		}
		if !strings.HasSuffix(kind, "json") {
			return nil
		}
		s, err := c.schema(where + "/content/" + strings.ReplaceAll(kind, "/", "~1") + "/schema")
		if err != nil {
			return err
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(got.body))
		if err != nil {
			return fmt.Errorf("the body is no JSON: %w", err)
		}
		return s.Validate(v)
	}
	// A path that is none is a problem all the same.
	if got.fields["type"] == nil || got.header.Get("Content-Type") != "application/problem+json" {
		return fmt.Errorf("no problem, of type %s", got.header.Get("Content-Type"))
	}
	s, err := c.schema("/components/schemas/Problem")
	if err != nil {
		return err
	}
	return s.Validate(any(got.fields))
}

// The document has the routes and the parameters of the handler, and every
// schema in it is one.
func TestDocument(t *testing.T) {
	s := newService(t, talk, nil)
	var want []string
	for path, methods := range s.doc.paths {
		for method, op := range methods {
			want = append(want, strings.ToUpper(method)+" "+path)
			for status := range op.Responses {
				if status < "200" || status > "599" {
					t.Errorf("%s %s: status %s", method, path, status)
				}
			}
		}
	}
	got := api.Routes()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the routes are\n%s\nthe document has\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	var d struct {
		Components struct {
			Schemas    map[string]any `json:"schemas"`
			Parameters map[string]struct {
				Name, In string
			} `json:"parameters"`
		} `json:"components"`
	}
	if err := json.Unmarshal(api.Document(), &d); err != nil {
		t.Fatal(err)
	}
	for name := range d.Components.Schemas {
		if _, err := s.doc.schema("/components/schemas/" + name); err != nil {
			t.Errorf("schema %s: %v", name, err)
		}
	}
	version := s.publish()
	run := s.start(version, "hi")
	fill := strings.NewReplacer("{run}", run, "{version}", version, "{handle}", "out_c1_1")
	for path, methods := range s.doc.paths {
		for method, op := range methods {
			if method == "delete" || path == "/openapi.json" {
				continue
			}
			var documented []string
			for _, p := range op.Parameters {
				ref, _ := p["$ref"].(string)
				if c, ok := d.Components.Parameters[strings.TrimPrefix(ref, "#/components/parameters/")]; !ok {
					t.Errorf("%s %s: there is no parameter %q", method, path, ref)
				} else if c.In == "query" {
					documented = append(documented, c.Name)
				}
			}
			got := s.want(400, "invalid", strings.ToUpper(method), fill.Replace(path)+"?nope=1", "")
			_, list, _ := strings.Cut(got.text("detail"), ": want ")
			taken := strings.Split(list, ", ")
			if list == "none" {
				taken = nil
			}
			slices.Sort(documented)
			slices.Sort(taken)
			if !slices.Equal(documented, taken) {
				t.Errorf("%s %s takes the parameters %q, the document has %q", method, path, taken, documented)
			}
		}
	}
}

// What a client does with an agent, from its Spec to its end, on an answer of
// every kind that the document has for success.
func TestConversation(t *testing.T) {
	s := newService(t, talk, &api.Options{MaxWait: longest})
	s.drive()
	if got := s.want(200, "", "GET", "/openapi.json", "", "Authorization"); !bytes.Equal(got.body, api.Document()) {
		t.Error("the document served is another")
	}
	version := s.publish()
	if again := s.publish(); again != version {
		t.Errorf("published twice: %s, then %s", version, again)
	}
	if got := s.want(200, "", "GET", "/v1/versions/"+version, ""); got.text("version") != version {
		t.Errorf("%s", got.body)
	}
	created := s.want(201, "", "POST", "/v1/runs", `{"version":"`+version+`","message":{"text":"go","attachments":[{"name":"a.txt","text":"A"},{"name":"b.bin","content_type":"application/x","base64":"AAEC"}]}}`, "Idempotency-Key: key1")
	run := created.text("run_id")
	if created.text("message_id") != "key1" || created.header.Get("Location") != "/v1/runs/"+run {
		t.Errorf("%s, %s", created.body, created.header)
	}
	again := s.want(201, "", "POST", "/v1/runs", `{"version":"`+version+`","message":{"text":"go","attachments":[{"name":"a.txt","text":"A"},{"name":"b.bin","content_type":"application/x","base64":"AAEC"}]}}`, `Idempotency-Key: "key1"`)
	if again.text("run_id") != run {
		t.Errorf("the same creation made %s and %s", run, again.text("run_id"))
	}
	s.want(409, "conflict", "POST", "/v1/runs", `{"version":"`+version+`","message":{"text":"other"}}`, "Idempotency-Key: key1")

	records, next := s.finish(run, "0")
	for i, r := range records {
		if r["seq"] != float64(i+1) {
			t.Fatalf("record %d has seq %v", i+1, r["seq"])
		}
	}
	report := s.want(200, "", "GET", "/v1/runs/"+run+"/report", "")
	tag := report.header.Get("ETag")
	if report.text("status") != "completed" || tag == "" {
		t.Errorf("%s %.300s", tag, report.body)
	}
	if got := s.want(304, "", "GET", "/v1/runs/"+run+"/report", "", `If-None-Match: "x", `+tag); got.header.Get("ETag") != tag {
		t.Errorf("304 with ETag %q", got.header.Get("ETag"))
	}
	call := report.fields["tool_calls"].([]any)[0].(map[string]any)
	if call["offloaded"] != true {
		t.Errorf("the result is not large: %v", call)
	}
	at := "/v1/runs/" + run + "/outputs/" + call["result_handle"].(string)
	first := s.want(200, "", "GET", at+"?limit=2", "")
	if first.text("text") != "line 1 of 30000\nline 2 of 30000\n" || first.fields["next_offset"] != 2.0 {
		t.Errorf("%s", first.body)
	}
	if got := s.want(200, "", "GET", at+"?grep=LINE+299%5Cd%5Cd+&ignore_case=true&offset=3&limit=1&context=1", ""); !strings.Contains(got.text("text"), "line 29903 of") || got.fields["matches"] != 100.0 {
		t.Errorf("%s", got.body)
	}
	if got := s.want(200, "", "GET", at+"?offset=99999999", ""); got.text("text") != "" || got.fields["next_offset"] != nil {
		t.Errorf("past the end: %s", got.body)
	}
	if got := s.want(200, "", "GET", at+"?unit=chars&offset=5&limit=3", ""); got.text("text") != "1 o" {
		t.Errorf("%s", got.body)
	}
	s.want(400, "invalid", "GET", at+"?grep=(", "")
	s.want(404, "not_found", "GET", "/v1/runs/"+run+"/outputs/out_c9_9", "")

	// A second message, posted twice, is one.
	for range 2 {
		got := s.want(202, "", "POST", "/v1/runs/"+run+"/messages", `{"id":"m2","text":"more"}`)
		if got.text("message_id") != "m2" || got.text("run_id") != run {
			t.Errorf("%s", got.body)
		}
	}
	s.finish(run, next)
	report = s.want(200, "", "GET", "/v1/runs/"+run+"/report", "", "If-None-Match: "+tag)
	if n := len(report.fields["exchanges"].([]any)); n != 2 {
		t.Errorf("%d exchanges, want 2: %.400s", n, report.body)
	}
	s.want(202, "", "POST", "/v1/runs/"+run+"/abort", "")
	s.want(202, "", "POST", "/v1/runs/"+run+"/abort", `{"message":"m2","reason":"enough"}`, "Idempotency-Key: a1")
	if got := s.want(200, "", "GET", "/v1/runs/"+run, ""); got.text("run_id") != run || got.text("principal") != "p" {
		t.Errorf("%s", got.body)
	}
	second := s.start(version, "two")
	page := s.want(200, "", "GET", "/v1/runs?limit=1", "")
	if runs := page.fields["runs"].([]any); len(runs) != 1 || runs[0].(map[string]any)["run_id"] != second {
		t.Errorf("the newest first: %s", page.body)
	}
	page = s.want(200, "", "GET", "/v1/runs?cursor="+page.text("next"), "")
	if runs := page.fields["runs"].([]any); len(runs) != 1 || runs[0].(map[string]any)["run_id"] != run || page.text("next") != "" {
		t.Errorf("the next page: %s", page.body)
	}
	s.want(204, "", "DELETE", "/v1/runs/"+run, "")
	for _, path := range []string{"", "/report", "/records", "/outputs/out_c1_1"} {
		s.want(404, "not_found", "GET", "/v1/runs/"+run+path, "")
	}
	s.want(404, "not_found", "DELETE", "/v1/runs/"+run, "")
	s.want(404, "not_found", "POST", "/v1/runs", `{"version":"`+version+`","message":{"text":"go"}}`, "Idempotency-Key: key1")

	for path, methods := range s.doc.paths {
		for method, op := range methods {
			for status := range op.Responses {
				if what := strings.ToUpper(method) + " " + path + " " + status; status < "400" && !s.doc.seen[what] {
					t.Errorf("this test saw no %s", what)
				}
			}
		}
	}
}

// Nothing of one tenant can be told from what is not there by another.
func TestTenants(t *testing.T) {
	s := newService(t, talk, nil)
	version := s.publish()
	run := s.start(version, "hi", "Idempotency-Key: k")
	other := "Authorization: Bearer u/p"
	none := strings.Repeat("0", 32)
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/v1/runs/{run}", ""},
		{"GET", "/v1/runs/{run}/report", ""},
		{"GET", "/v1/runs/{run}/records", ""},
		{"GET", "/v1/runs/{run}/outputs/out_c1_1", ""},
		{"POST", "/v1/runs/{run}/messages", `{"text":"x"}`},
		{"POST", "/v1/runs/{run}/abort", `{}`},
		{"DELETE", "/v1/runs/{run}", ""},
	} {
		theirs := s.want(404, "not_found", c.method, strings.ReplaceAll(c.path, "{run}", run), c.body, other)
		absent := s.want(404, "not_found", c.method, strings.ReplaceAll(c.path, "{run}", none), c.body, other)
		for _, f := range []string{"type", "title", "detail"} {
			if theirs.text(f) != absent.text(f) {
				t.Errorf("%s %s: %s of another tenant's is %q, of none %q", c.method, c.path, f, theirs.text(f), absent.text(f))
			}
		}
	}
	s.want(404, "not_found", "GET", "/v1/versions/"+version, "", other)
	s.want(404, "not_found", "POST", "/v1/runs", `{"version":"`+version+`","message":{"text":"x"}}`, other)
	if got := s.want(200, "", "GET", "/v1/runs", "", other); len(got.fields["runs"].([]any)) != 0 {
		t.Errorf("%s", got.body)
	}
	// One key of two principals is two Runs.
	if also := s.start(version, "hi", "Idempotency-Key: k", "Authorization: Bearer t/q"); also == run {
		t.Error("two principals share a Run by their key")
	}
	if rep := s.want(200, "", "GET", "/v1/runs/"+run+"/report", ""); rep.fields["waiting"] != 1.0 {
		t.Errorf("another tenant changed the Run: %s", rep.body)
	}
}
