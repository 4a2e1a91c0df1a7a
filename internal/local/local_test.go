package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"debug/elf"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/adapters/s3blob"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/internal/template"
	"github.com/psych-go/psych-go/lambda"
	"github.com/psych-go/psych-go/psych"
)

// Scenarios wait, most of the time, and so all at once, however many cores
// there are.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "32"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// A service is the template, deployed, with what the test knows of it.
type service struct {
	*stack
	issuer   *issuer
	recorder *recorder
	dir      string       // of scripts, and of what tools leave
	client   *http.Client // of the API
	store    psych.Store  // the same table
	blobs    psych.BlobStore
	reader   *psych.Runtime // reads, and wakes nobody
}

var functions = []string{"ApiFunction", "TurnFunction", "SweepFunction", "DeadLetterFunction"}

// start deploys the template, with code tools in two of its functions, and puts
// the recorder between functions and services.
func start(t *testing.T) *service {
	t.Helper()
	sam, emulator := endpoint.SAM(t), endpoint.One(t, endpoint.SQS, "ministack").URL
	ctx := t.Context()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	i, err := newIssuer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.close)
	s := &service{issuer: i, dir: t.TempDir()}
	d := &deployment{
		sam: sam, endpoint: emulator, root: root, dir: t.TempDir(), name: "psych-" + strings.ToLower(rand.Text()[:10]), log: io.Discard,
		parameters: map[string]string{"Issuer": i.url, "Audience": audience, "Model": "script:" + filepath.Join(root, "internal", "local", "hello.yaml"), "Concurrency": "4", "RequestsPerSecond": "1000"},
		mains:      map[string]string{"API": "./internal/local/testdata/worker", "TURN": "./internal/local/testdata/worker"},
	}
	if s.stack, err = d.deploy(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		form := url.Values{"Action": {"DeleteStack"}, "StackName": {s.name}, "Version": {"2010-05-15"}}
		if _, err := s.call(context.Background(), "cloudformation", http.MethodPost, "/", "application/x-www-form-urlencoded", form.Encode()); err != nil {
			t.Error(err)
		}
	})
	for _, f := range functions {
		if entries, err := os.ReadDir(filepath.Join(d.dir, "build", f)); err != nil || len(entries) != 1 || entries[0].Name() != "bootstrap" {
			t.Errorf("the artefact of %s holds %v, %v: want the bootstrap and nothing else", f, entries, err)
		}
	}

	if s.recorder, err = newRecorder(emulator); err != nil {
		t.Fatal(err)
	}
	s.recorder.names[s.outputs["TableName"]] = "⟨Table.Arn⟩"
	s.recorder.names[s.outputs["BucketName"]] = "⟨Blobs.Arn⟩"
	for output, id := range map[string]string{"QueueUrl": "⟨Wakes.Arn⟩", "DeadLetterQueueUrl": "⟨DeadLetters.Arn⟩"} {
		u, err := url.Parse(s.outputs[output])
		if err != nil {
			t.Fatal(err)
		}
		s.recorder.names[u.Path] = id
	}
	for _, f := range functions {
		at := s.recorder.listen(t, f)
		s.configure(t, f, func(c *configuration) {
			env := c.Environment.Variables
			env["AWS_ENDPOINT_URL_DYNAMODB"], env["AWS_ENDPOINT_URL_S3"], env["PSYCH_TEST_DIR"] = at, at, s.dir
			for _, name := range []string{"PSYCH_WAKER_URL", "PSYCH_DEADLETTER_URL"} {
				if u, ok := strings.CutPrefix(env[name], "sqs:"); ok {
					q, err := url.Parse(u)
					if err != nil {
						t.Fatal(err)
					}
					env[name] = "sqs:" + at + q.Path
				}
			}
		})
	}
	s.attributes(t, s.outputs["QueueUrl"], map[string]string{"VisibilityTimeout": "20"}) // a message of a function that was killed comes back so soon

	u, err := url.Parse(emulator)
	if err != nil {
		t.Fatal(err)
	}
	// Names below localhost are this machine, whatever resolves them.
	s.client = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, u.Host)
		},
		MaxIdleConnsPerHost: 64,
	}}
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
	var b psych.Backends
	dynamo.Register(&b)
	s3blob.Register(&b)
	if s.store, err = b.Stores.Open(ctx, fmt.Sprintf("dynamo://%s?region=us-east-1&endpoint=%s", s.outputs["TableName"], emulator)); err != nil {
		t.Fatal(err)
	}
	if s.blobs, err = b.Blobs.Open(ctx, fmt.Sprintf("s3://%s?region=us-east-1&endpoint=%s", s.outputs["BucketName"], emulator)); err != nil {
		t.Fatal(err)
	}
	if s.reader, err = psych.New(s.store, &psych.Options{Blobs: s.blobs}); err != nil {
		t.Fatal(err)
	}
	return s
}

// A configuration is what of a function's is changed.
type configuration struct {
	Timeout     int
	Environment struct{ Variables map[string]string }
}

// configure changes a function's configuration.
func (s *service) configure(t *testing.T, function string, change func(*configuration)) {
	t.Helper()
	path := "/2015-03-31/functions/" + s.outputs[function+"Name"] + "/configuration"
	body, err := s.call(t.Context(), "lambda", http.MethodGet, path, "", "")
	if err != nil {
		t.Fatal(err)
	}
	var c configuration
	if err := json.Unmarshal(body, &c); err != nil {
		t.Fatal(err)
	}
	change(&c)
	if body, err = json.Marshal(c); err != nil {
		t.Fatal(err)
	}
	if _, err := s.call(t.Context(), "lambda", http.MethodPut, path, "application/json", string(body)); err != nil {
		t.Fatal(err)
	}
}

// sqs makes a request of SQS.
func (s *service) sqs(t *testing.T, operation string, in any) []byte {
	t.Helper()
	body, err := json.Marshal(in)
	if err == nil {
		body, err = s.call(t.Context(), "sqs", http.MethodPost, "/", "application/x-amz-json-1.0", string(body), "X-Amz-Target", "AmazonSQS."+operation)
	}
	if err != nil {
		t.Fatalf("%s: %v", operation, err)
	}
	return body
}

func (s *service) attributes(t *testing.T, queue string, a map[string]string) {
	s.sqs(t, "SetQueueAttributes", map[string]any{"QueueUrl": queue, "Attributes": a})
}

// wake sends n messages for a Run.
func (s *service) wake(t *testing.T, key psych.RunKey, n int) {
	t.Helper()
	body, err := json.Marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	for ; n > 0; n -= 10 {
		var entries []any
		for i := range min(n, 10) {
			entries = append(entries, map[string]string{"Id": fmt.Sprint(i), "MessageBody": string(body), "MessageGroupId": key.Tenant})
		}
		s.sqs(t, "SendMessageBatch", map[string]any{"QueueUrl": s.outputs["QueueUrl"], "Entries": entries})
	}
}

// invoke invokes a function and returns its answer.
func (s *service) invoke(t *testing.T, function, event string) string {
	t.Helper()
	body, err := s.call(t.Context(), "lambda", http.MethodPost, "/2015-03-31/functions/"+s.outputs[function+"Name"]+"/invocations", "application/json", event)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// A user is a client of the API.
type user struct {
	s             *service
	tenant, token string
}

func (s *service) user(t *testing.T, tenant string) *user {
	t.Helper()
	token, err := s.issuer.token(audience, map[string]any{"tenant": tenant, "sub": "somebody"})
	if err != nil {
		t.Fatal(err)
	}
	return &user{s, tenant, token}
}

// An answer is one of the API.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// into decodes the answer, which must be of 2xx.
func (a *answer) into(t *testing.T, v any) {
	t.Helper()
	if a.status/100 != 2 {
		t.Fatalf("answered %d: %.500s", a.status, a.body)
	}
	if err := json.Unmarshal(a.body, v); err != nil {
		t.Fatalf("answered %.500s: %v", a.body, err)
	}
}

func (u *user) call(t *testing.T, method, path string, body any) *answer {
	t.Helper()
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, u.s.outputs["Url"]+path, in)
	if err != nil {
		t.Fatal(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if u.token != "" {
		req.Header.Set("Authorization", "Bearer "+u.token)
	}
	resp, err := u.s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return &answer{resp.StatusCode, resp.Header, b}
}

// publish publishes a Spec whose model is a script.
func (u *user) publish(t *testing.T, script string, tools ...string) string {
	t.Helper()
	name := strings.ToLower(rand.Text()[:12])
	return u.publishAs(t, name, script, tools...)
}

func (u *user) publishAs(t *testing.T, name, script string, tools ...string) string {
	t.Helper()
	file := filepath.Join(u.s.dir, name+".yaml")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	var v struct{ Version string }
	u.call(t, "POST", "/v1/versions", map[string]any{"name": name, "model": "script:" + file, "tools": tools}).into(t, &v)
	return v.Version
}

// start starts a Run.
func (u *user) start(t *testing.T, version, text string) psych.RunKey {
	t.Helper()
	var run struct {
		ID string `json:"run_id"`
	}
	u.call(t, "POST", "/v1/runs", map[string]any{"version": version, "message": map[string]any{"text": text}}).into(t, &run)
	return psych.RunKey{Tenant: u.tenant, RunID: run.ID}
}

// A record is one of the API.
type record struct {
	Seq      uint64         `json:"seq"`
	Kind     string         `json:"kind"`
	Attempt  int            `json:"attempt"`
	rest     map[string]any // what else it has
	original json.RawMessage
}

// records reads the records behind a position, and where to go on.
func (u *user) records(t *testing.T, run psych.RunKey, after string) (all []record, next string) {
	t.Helper()
	for more := true; more; {
		var page struct {
			Records []json.RawMessage `json:"records"`
			Next    string            `json:"next"`
			More    bool              `json:"more"`
		}
		u.call(t, "GET", "/v1/runs/"+run.RunID+"/records?limit=20&after="+url.QueryEscape(after), nil).into(t, &page)
		for _, raw := range page.Records {
			r := record{original: raw}
			if err := json.Unmarshal(raw, &r); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(raw, &r.rest); err != nil {
				t.Fatal(err)
			}
			all = append(all, r)
		}
		after, more = page.Next, page.More
	}
	return all, after
}

// patience is how long something may take that has no reason to take long; that
// is no bound that a test is about.
const patience = 5 * time.Minute

// until waits until f is true.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// closed waits until so many exchanges of a Run are closed, and returns its
// report.
func (s *service) closed(t *testing.T, run psych.RunKey, n int) *psych.Report {
	t.Helper()
	var rep *psych.Report
	until(t, fmt.Sprintf("%d exchanges of %s close", n, run), func() bool {
		var err error
		if rep, err = s.reader.Report(t.Context(), run); err != nil {
			t.Fatal(err)
		}
		ended := 0
		for _, e := range rep.Exchanges {
			if e.Closed != "" {
				ended++
			}
		}
		return ended >= n && rep.Waiting == 0
	})
	return rep
}

// effects are the calls of the tool effect of a name, as it noted them.
func (s *service) effects(t *testing.T, name string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, "effects-"+name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Fields(string(b))
}

// sam build of a tree as it is cloned makes one bootstrap a function, for the
// architecture that the template names, and nothing beside it.
func TestBuild(t *testing.T) {
	sam := endpoint.SAM(t)
	root, dir := t.TempDir(), filepath.Join(t.TempDir(), "build")
	list := exec.CommandContext(t.Context(), "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	list.Dir = "../.."
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join("../..", name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(root, name), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), sam, "build", "--build-dir", dir)
	build.Dir = root
	build.Env = slices.DeleteFunc(append(os.Environ(), "AWS_DEFAULT_REGION=eu-central-1", "SAM_CLI_TELEMETRY=0"), func(v string) bool { return strings.HasPrefix(v, "GOARCH=") || strings.HasPrefix(v, "GOOS=") })
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("sam build: %v\n%s", err, out)
	}
	for _, f := range functions {
		entries, err := os.ReadDir(filepath.Join(dir, f))
		if err != nil || len(entries) != 1 || entries[0].Name() != "bootstrap" {
			t.Fatalf("the artefact of %s holds %v, %v: want the bootstrap and nothing else", f, entries, err)
		}
		info, err := entries[0].Info()
		if err != nil {
			t.Fatal(err)
		}
		b, err := elf.Open(filepath.Join(dir, f, "bootstrap"))
		if err != nil {
			t.Fatal(err)
		}
		if b.Machine != elf.EM_AARCH64 || info.Mode()&0o111 == 0 {
			t.Errorf("%s is for %v, mode %v", f, b.Machine, info.Mode())
		}
		if libs, err := b.ImportedLibraries(); err != nil || len(libs) > 0 {
			t.Errorf("%s wants the libraries %v, %v", f, libs, err)
		}
		b.Close()
		t.Logf("%s: %.1f MB", f, float64(info.Size())/1e6)
	}
}

// The template, deployed with sam to an emulator, with its API, its queue, its
// schedule and its dead-letter queue, all of it in processes of their own.
func TestDeployed(t *testing.T) {
	s := start(t)
	t.Run("API", s.testAPI)
	t.Run("Tutorial", s.testTutorial)
	t.Run("Cost", s.testCost)
	// Short, so that a Run of a process that was killed is not waited for long.
	s.configure(t, "TurnFunction", func(c *configuration) { c.Environment.Variables["PSYCH_TEST_LEASE"] = "15s" })
	t.Run("Faults", func(t *testing.T) {
		for name, f := range map[string]func(*testing.T){
			"LargeResults": s.testLargeResults, "KilledInAModelCall": s.testKilledInAModelCall, "KilledInATool": s.testKilledInATool,
			"KilledBetweenWrites": s.testKilledBetweenWrites, "LostWake": s.testLostWake, "Duplicates": s.testDuplicates, "OutOfOrder": s.testOutOfOrder,
			"NeverDriven": s.testNeverDriven, "Garbage": s.testGarbage, "FailingModel": s.testFailingModel, "Tenants": s.testTenants, "Deleted": s.testDeleted, "Retention": s.testRetention, "Servers": s.testServers,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f(t)
			})
		}
	})
	t.Run("TimeRunsShort", s.testTimeRunsShort)
	t.Run("ManyRuns", s.testManyRuns)
	t.Run("Storm", s.testStorm)
	t.Run("Flood", s.testFlood)
	if !t.Failed() { // else it is not known what functions would have done
		t.Run("Permissions", s.testPermissions)
	}
}

// The gateway takes no token that it can't verify, and asks for one everywhere.
func (s *service) testAPI(t *testing.T) {
	nobody := &user{s, "", ""}
	if a := nobody.call(t, "GET", "/openapi.json", nil); a.status != 200 || !bytes.Contains(a.body, []byte(`"openapi"`)) {
		t.Errorf("the description: %d", a.status)
	}
	tokens := map[string]map[string]any{
		"another audience": {"aud": "other", "tenant": "t", "sub": "s"},
		"another issuer":   {"iss": "https://other.example", "tenant": "t", "sub": "s"},
		"expired":          {"exp": time.Now().Add(-time.Hour).Unix(), "tenant": "t", "sub": "s"},
		"not yet valid":    {"nbf": time.Now().Add(time.Hour).Unix(), "tenant": "t", "sub": "s"},
	}
	for what, claims := range tokens {
		token, err := s.issuer.token(audience, claims)
		if err != nil {
			t.Fatal(err)
		}
		if a := (&user{s, "", token}).call(t, "GET", "/v1/runs", nil); a.status != 401 {
			t.Errorf("%s: %d, want 401", what, a.status)
		}
	}
	for _, path := range []string{"/v1/runs", "/v1/versions", "/nothing", "/openapi.json/x", "/v1/runs/" + strings.Repeat("0", 32) + "/report"} {
		if a := nobody.call(t, "GET", path, nil); a.status != 401 {
			t.Errorf("%s without a token: %d, want 401", path, a.status)
		}
	}
	// What the gateway lets pass and names no tenant.
	token, err := s.issuer.token(audience, map[string]any{"sub": "s"})
	if err != nil {
		t.Fatal(err)
	}
	if a := (&user{s, "", token}).call(t, "GET", "/v1/runs", nil); a.status != 401 {
		t.Errorf("a token without a tenant: %d, want 401", a.status)
	}
	u := s.user(t, "api")
	if a := u.call(t, "GET", "/v1/nothing", nil); a.status != 404 || a.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("an unknown path: %d %s", a.status, a.header.Get("Content-Type"))
	}
	run := u.start(t, u.publish(t, "steps: [{text: hello}, {text: again}]"), "hi")
	if rep := s.closed(t, run, 1); rep.Status != psych.StatusCompleted {
		t.Errorf("the Run is %s", rep.Status)
	}
	info, err := s.store.GetRun(t.Context(), run)
	if err != nil || info.ExpiresAt.Sub(info.CreatedAt).Round(time.Hour) != 90*24*time.Hour || info.Scope.Principal != "somebody" {
		t.Errorf("the Run is kept until %v and is %q's, %v: want 90 days", info.ExpiresAt, info.Scope.Principal, err)
	}
	if a := u.call(t, "POST", "/v1/runs/"+run.RunID+"/messages", map[string]any{"text": "more"}); a.status != 202 {
		t.Errorf("a message: %d %s", a.status, a.body)
	}
	s.closed(t, run, 2)
	var list struct{ Runs []any }
	if u.call(t, "GET", "/v1/runs", nil).into(t, &list); len(list.Runs) != 1 {
		t.Errorf("%d Runs are listed", len(list.Runs))
	}
}

// The commands of docs/aws.md do what it says, in the shell of whoever reads it.
func (s *service) testTutorial(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip(err)
	}
	doc, err := os.ReadFile("../../docs/aws.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "\n## The first answer\n")
	_, rest, _ = strings.Cut(rest, "\n```sh\n")
	commands, _, ok := strings.Cut(rest, "\n```\n")
	if !ok {
		t.Fatal("docs/aws.md has no commands under The first answer")
	}
	u := s.user(t, "tutorial")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", commands)
	cmd.Env = append(os.Environ(), "URL="+s.outputs["Url"], "TOKEN="+u.token)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Hello from a function.") || !strings.Contains(string(out), `"kind":"exchange_closed"`) || strings.Contains(string(out), "urn:psych:problem") {
		t.Errorf("%v\n%s", err, out)
	}
	var list struct{ Runs []any }
	if u.call(t, "GET", "/v1/runs", nil).into(t, &list); len(list.Runs) != 0 {
		t.Errorf("%d Runs are left", len(list.Runs))
	}
}

// Results that leave for S3, in one piece and in parts, read in windows, through
// the model and through the API; one whose upload fails; one that is gone.
func (s *service) testLargeResults(t *testing.T) {
	u := s.user(t, "large")
	version := u.publish(t, `steps:
  - calls: [{name: rows, arguments: {n: 5000}}]
  - calls: [{name: rows, arguments: {n: 110000}}]
  - calls: [{name: read_tool_output, arguments: {handle: out_c1_1, grep: "row 4321 of"}}]
  - calls: [{name: read_tool_output, arguments: {handle: out_c2_1, grep: "row 98765 of"}}]
  - text: found
    require: ["row 4321 of 5000", "row 98765 of 110000"]
  - calls: [{name: rows, arguments: {n: 120000}}]
  - calls: [{name: read_tool_output, arguments: {handle: out_c1_1, grep: "row 4322 of"}}]
  - text: gone
    forbid: ["row 4322 of 5000"]
`, "rows")
	run := u.start(t, version, strings.Repeat("a large message ", 20_000))
	rep := s.closed(t, run, 1)
	if rep.Status != psych.StatusCompleted || rep.Exchanges[0].Answer != "found" {
		t.Fatalf("%s, %+v", rep.Status, rep.Exchanges)
	}
	all, next := u.records(t, run, "")
	for i, r := range all {
		if r.Seq != uint64(i+1) {
			t.Fatalf("record %d has seq %d", i+1, r.Seq)
		}
	}
	rest, _ := u.records(t, run, "3")
	if len(rest) != len(all)-3 || rest[0].Seq != 4 {
		t.Errorf("behind 3 there are %d of %d records", len(rest), len(all))
	}
	if more, _ := u.records(t, run, next); len(more) > 0 {
		t.Errorf("behind the end there are %d records", len(more))
	}
	window := func(handle, grep string) (int, string) {
		a := u.call(t, "GET", "/v1/runs/"+run.RunID+"/outputs/"+handle+"?grep="+url.QueryEscape(grep), nil)
		return a.status, string(a.body)
	}
	if status, text := window("out_c2_1", "row 109999 of"); status != 200 || !strings.Contains(text, "row 109999 of 110000") {
		t.Errorf("a window: %d %.300s", status, text)
	}
	var report psych.Report
	if u.call(t, "GET", "/v1/runs/"+run.RunID+"/report", nil).into(t, &report); len(report.ToolCalls) != 4 || report.ToolCalls[1].ResultBytes < 9<<20 {
		t.Errorf("the report has %d calls", len(report.ToolCalls))
	}

	// The next upload fails in a part, and the first output is gone.
	s.recorder.mu.Lock()
	s.recorder.failPart = run.RunID
	s.recorder.mu.Unlock()
	if err := s.blobs.Delete(t.Context(), psych.BlobKey{Tenant: run.Tenant, RunID: run.RunID, CallID: blobOf(t, all, "c1_1")}); err != nil {
		t.Fatal(err)
	}
	if status, text := window("out_c1_1", "row 4321 of"); status == 200 {
		t.Errorf("a window of what is gone: %d %.300s", status, text)
	}
	if a := u.call(t, "POST", "/v1/runs/"+run.RunID+"/messages", map[string]any{"text": "more"}); a.status != 202 {
		t.Fatalf("a message: %d %s", a.status, a.body)
	}
	if rep = s.closed(t, run, 2); rep.Exchanges[1].Answer != "gone" {
		t.Errorf("the second exchange: %+v", rep.Exchanges[1])
	}
}

// blobOf is the segment of the blob that a call's result lies in.
func blobOf(t *testing.T, all []record, call string) string {
	t.Helper()
	for _, r := range all {
		if r.Kind != "tool_call_finished" || !strings.Contains(string(r.original), `"`+call+`"`) {
			continue
		}
		if i := strings.Index(string(r.original), `"`+call+`.result.`); i >= 0 {
			segment, _, _ := strings.Cut(string(r.original)[i+1:], `"`)
			return segment
		}
	}
	t.Fatalf("the result of %s lies in no blob", call)
	return ""
}

// dieAt has the next process that comes by a point kill itself.
func (s *service) dieAt(t *testing.T, point string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, "die-"+point), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// died checks that a process did.
func (s *service) died(t *testing.T, point string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(s.dir, "die-"+point)); !os.IsNotExist(err) {
		t.Errorf("nobody died at %s: %v", point, err)
	}
}

func (s *service) testKilledInAModelCall(t *testing.T) {
	u := s.user(t, "killed-model")
	version := u.publishAs(t, "killed", "steps: [{calls: [{name: effect, arguments: {name: model}}]}, {text: survived}]", "effect")
	s.dieAt(t, "model-killed")
	rep := s.closed(t, u.start(t, version, "go"), 1)
	s.died(t, "model-killed")
	if rep.Status != psych.StatusCompleted || rep.Attempts < 2 || rep.Exchanges[0].Answer != "survived" || len(s.effects(t, "model")) != 1 {
		t.Errorf("%s after %d attempts, %+v, effects %v", rep.Status, rep.Attempts, rep.Exchanges, s.effects(t, "model"))
	}
}

// A tool that is not safe to retry is not run again: its outcome is unknown.
func (s *service) testKilledInATool(t *testing.T) {
	u := s.user(t, "killed-tool")
	version := u.publish(t, "steps: [{calls: [{name: effect, arguments: {name: tool}}]}, {text: survived}]", "effect")
	s.dieAt(t, "effect-tool")
	rep := s.closed(t, u.start(t, version, "go"), 1)
	s.died(t, "effect-tool")
	if rep.Status != psych.StatusCompleted || rep.Attempts < 2 || len(s.effects(t, "tool")) != 1 || rep.ToolCalls[0].Outcome != string(psych.UnknownEnd) {
		t.Errorf("%s after %d attempts, %+v, effects %v", rep.Status, rep.Attempts, rep.ToolCalls, s.effects(t, "tool"))
	}
}

// Between each two writes of a Run its process dies, once.
func (s *service) testKilledBetweenWrites(t *testing.T) {
	const last = 4 // appends of this Run in one go
	var runs []psych.RunKey
	for n := 1; n <= last; n++ {
		u := s.user(t, fmt.Sprintf("killed-append-%d", n))
		version := u.publish(t, fmt.Sprintf("steps: [{calls: [{name: effect, arguments: {name: append-%d}}]}, {text: survived}]", n), "effect")
		s.dieAt(t, fmt.Sprintf("append-%s-%d", u.tenant, n))
		runs = append(runs, u.start(t, version, "go"))
	}
	for i, run := range runs {
		rep := s.closed(t, run, 1)
		s.died(t, fmt.Sprintf("append-%s-%d", run.Tenant, i+1))
		if n := len(s.effects(t, fmt.Sprintf("append-%d", i+1))); rep.Status != psych.StatusCompleted || n > 1 || rep.Exchanges[0].Answer != "survived" {
			t.Errorf("behind append %d: %s after %d attempts, %d effects", i+1, rep.Status, rep.Attempts, n)
		}
	}
}

// A Run that nobody was told of is found by the sweep.
func (s *service) testLostWake(t *testing.T) {
	u := s.user(t, "lost")
	version := u.publish(t, "steps: [{text: found}]")
	var hash psych.Digest
	if err := hash.UnmarshalText([]byte(version)); err != nil {
		t.Fatal(err)
	}
	run, err := s.reader.Start(t.Context(), psych.Scope{Tenant: "lost", Principal: "somebody"}, hash, psych.ClientMessage{ID: "m", Text: "go"})
	if err != nil {
		t.Fatal(err)
	}
	if rep := s.closed(t, run, 1); rep.Exchanges[0].Answer != "found" {
		t.Errorf("%+v", rep.Exchanges)
	}
}

// Messages that say the same, at once, drive a Run once.
func (s *service) testDuplicates(t *testing.T) {
	u := s.user(t, "twice")
	version := u.publish(t, "steps: [{calls: [{name: effect, arguments: {name: twice}}, {name: wait, arguments: {milliseconds: 1500}}]}, {text: once}]", "effect", "wait")
	run := u.start(t, version, "go")
	s.wake(t, run, 3)
	rep := s.closed(t, run, 1)
	s.wake(t, run, 3) // late ones
	if rep.Status != psych.StatusCompleted || len(s.effects(t, "twice")) != 1 || rep.Turns != 2 {
		t.Errorf("%s, %d turns, effects %v", rep.Status, rep.Turns, s.effects(t, "twice"))
	}
}

// Messages of one client, each sent once the one before was taken, are answered
// in that order, whatever order their wakes have.
func (s *service) testOutOfOrder(t *testing.T) {
	u := s.user(t, "order")
	version := u.publish(t, "steps: [{calls: [{name: wait, arguments: {milliseconds: 1000}}]}, {text: a}, {text: b}, {text: c}, {text: d}]", "wait")
	run := u.start(t, version, "message 0")
	for i := 1; i < 6; i++ {
		s.wake(t, run, 1) // of before
		if a := u.call(t, "POST", "/v1/runs/"+run.RunID+"/messages", map[string]any{"text": fmt.Sprintf("message %d", i), "id": fmt.Sprint(i)}); a.status != 202 {
			t.Fatalf("message %d: %d %s", i, a.status, a.body)
		}
	}
	var said []string
	until(t, "all messages are delivered", func() bool {
		said = nil
		for rec, err := range s.reader.Records(t.Context(), run, psych.Pos{}) {
			if err != nil {
				t.Fatal(err)
			}
			if m, ok := rec.Event.(*psych.UserMessage); ok {
				said = append(said, m.ID)
			}
		}
		return len(said) == 6
	})
	if !slices.IsSorted(said[1:]) {
		t.Errorf("delivered were %q", said)
	}
}

// A Run that no worker can drive ends in the dead-letter queue: its client is
// told, and it is usable again. What was posted meanwhile is not lost.
func (s *service) testNeverDriven(t *testing.T) {
	u := s.user(t, "never")
	version := u.publish(t, "steps: [{text: well}]")
	s.recorder.deny("TurnFunction", "r#never#", true)
	run := u.start(t, version, "hi")
	// So late that the first wake is dead long before the second: that one's letter
	// would be of both messages.
	until(t, "workers have tried", func() bool { return s.recorder.refused("TurnFunction", "r#never#") >= 5 })
	if a := u.call(t, "POST", "/v1/runs/"+run.RunID+"/messages", map[string]any{"text": "again"}); a.status != 202 {
		t.Fatalf("a message: %d %s", a.status, a.body)
	}
	var rep *psych.Report
	until(t, "the exchange is closed", func() bool {
		var err error
		if rep, err = s.reader.Report(t.Context(), run); err != nil {
			t.Fatal(err)
		}
		return len(rep.Exchanges) > 0
	})
	if e := rep.Exchanges[0]; e.Closed != psych.StatusFailed || e.Code != "not_driven" || e.Reason == "" || len(rep.ModelCalls) != 0 || rep.Waiting != 1 {
		t.Errorf("%+v, %d notes wait", e, rep.Waiting)
	}
	s.recorder.deny("TurnFunction", "r#never#", false)
	if rep = s.closed(t, run, 2); rep.Status != psych.StatusCompleted || rep.Exchanges[1].Answer != "well" {
		t.Errorf("%s, %+v", rep.Status, rep.Exchanges)
	}
}

// What is no wake at all is tried, and stays in the dead-letter queue, for a
// person to look at.
func (s *service) testGarbage(t *testing.T) {
	const garbage = "drive it"
	s.sqs(t, "SendMessage", map[string]any{"QueueUrl": s.outputs["QueueUrl"], "MessageBody": garbage, "MessageGroupId": "g"})
	// There it is received a sixth time, and fails, which nothing else does.
	until(t, "it was tried in the dead-letter queue", func() bool {
		return s.recorder.count("DeadLetterFunction")["ChangeMessageVisibility"] > 0
	})
	if n := s.waiting(t, "DeadLetterQueueUrl"); n < 1 {
		t.Errorf("%d messages are in the dead-letter queue", n)
	}
}

// A model that always fails closes the exchange, with what a person can read;
// the next message works, once the model does.
func (s *service) testFailingModel(t *testing.T) {
	u := s.user(t, "failing")
	run := u.start(t, u.publish(t, "steps: [{text: well, require: [once more]}]"), "go")
	down := u.start(t, u.publish(t, "steps: [{fail: 503, times: 100}]"), "go")
	rep := s.closed(t, run, 1)
	if rep.Status != psych.StatusFailed || rep.Exchanges[0].Code != "model" || rep.Exchanges[0].Reason == "" {
		t.Errorf("%s, %+v", rep.Status, rep.Exchanges[0])
	}
	if a := u.call(t, "POST", "/v1/runs/"+run.RunID+"/messages", map[string]any{"text": "once more"}); a.status != 202 {
		t.Fatalf("a message: %d %s", a.status, a.body)
	}
	if rep = s.closed(t, run, 2); rep.Status != psych.StatusCompleted || rep.Exchanges[1].Answer != "well" {
		t.Errorf("%s, %+v", rep.Status, rep.Exchanges[1])
	}
	if rep = s.closed(t, down, 1); rep.Status != psych.StatusFailed || rep.Exchanges[0].Code != "model" || len(rep.ModelCalls) != 5 {
		t.Errorf("%s after %d calls, %+v", rep.Status, len(rep.ModelCalls), rep.Exchanges[0])
	}
}

// instance is what a problem calls the request.
var instance = regexp.MustCompile(`"instance":"[^"]*",?`)

// Two tenants whose Runs and calls have the same ids see nothing of each other,
// and nothing where one has none.
func (s *service) testTenants(t *testing.T) {
	users := []*user{s.user(t, "one"), s.user(t, "two"), s.user(t, "three")}
	const id = "0123456789abcdef0123456789abcdef" // ids of Runs come of tenants otherwise
	// What one's tool says names him in one of many rows; the answer too.
	rows := map[string]int{"one": 4001, "two": 4002}
	secret := func(u *user) string { return fmt.Sprintf("of %d", rows[u.tenant]) }
	for _, u := range users[:2] {
		version := u.publish(t, fmt.Sprintf("steps: [{calls: [{name: rows, arguments: {n: %d}}]}, {text: secret %s}]", rows[u.tenant], secret(u)), "rows")
		var hash psych.Digest
		if err := hash.UnmarshalText([]byte(version)); err != nil {
			t.Fatal(err)
		}
		run := psych.RunKey{Tenant: u.tenant, RunID: id}
		info := psych.RunInfo{Key: run, Scope: psych.Scope{Tenant: u.tenant, Principal: "somebody"}, Version: hash, Incarnation: "same", CreatedAt: time.Now(), Status: psych.StatusOpen}
		if _, _, err := s.store.CreateRun(t.Context(), info); err != nil {
			t.Fatal(err)
		}
		if err := s.reader.Send(t.Context(), run, psych.ClientMessage{ID: "same", Text: "secret " + secret(u)}); err != nil {
			t.Fatal(err)
		}
		s.wake(t, run, 1)
		s.closed(t, run, 1)
		if a := users[2].call(t, "GET", "/v1/versions/"+version, nil); a.status != 404 {
			t.Errorf("another's Version: %d", a.status)
		}
		if a := users[2].call(t, "POST", "/v1/runs", map[string]any{"version": version, "message": map[string]any{"text": "x"}}); a.status != 404 {
			t.Errorf("a Run with another's Version: %d", a.status)
		}
	}
	reads := []string{"", "/report", "/records", "/outputs/out_c1_1?grep=row"}
	own := func(u, other *user) {
		t.Helper()
		for _, path := range reads {
			a := u.call(t, "GET", "/v1/runs/"+id+path, nil)
			if a.status != 200 || bytes.Contains(a.body, []byte(secret(other))) || path != "" && !bytes.Contains(a.body, []byte(secret(u))) {
				t.Errorf("%s of %s: %d %.300s", path, u.tenant, a.status, a.body)
			}
		}
		var list struct{ Runs []any }
		if u.call(t, "GET", "/v1/runs", nil).into(t, &list); len(list.Runs) != 1 {
			t.Errorf("%d Runs of %s are listed", len(list.Runs), u.tenant)
		}
	}
	own(users[0], users[1])
	own(users[1], users[0])

	other, none := users[2], strings.Repeat("0", 32)
	type request struct{ method, path string }
	all := []request{{"POST", "/messages"}, {"POST", "/abort"}, {"DELETE", ""}}
	for _, path := range reads {
		all = append(all, request{"GET", path})
	}
	for _, c := range all {
		var body any
		if c.path == "/messages" {
			body = map[string]any{"text": "x"}
		}
		got, want := other.call(t, c.method, "/v1/runs/"+id+c.path, body), other.call(t, c.method, "/v1/runs/"+none+c.path, body)
		if got.status != 404 || !bytes.Equal(instance.ReplaceAll(got.body, nil), instance.ReplaceAll(want.body, nil)) {
			t.Errorf("%s %s of another's Run: %d %.200s; of none: %.200s", c.method, c.path, got.status, got.body, want.body)
		}
	}
	var list struct{ Runs []any }
	if other.call(t, "GET", "/v1/runs", nil).into(t, &list); len(list.Runs) != 0 {
		t.Errorf("%d Runs are listed", len(list.Runs))
	}

	// One deletes his, and the other's stays.
	if a := users[0].call(t, "DELETE", "/v1/runs/"+id, nil); a.status != 204 {
		t.Errorf("deleting: %d %s", a.status, a.body)
	}
	own(users[1], users[0])
}

// A Run that was deleted is gone, with its blobs.
func (s *service) testDeleted(t *testing.T) {
	u := s.user(t, "deleted")
	version := u.publish(t, "steps: [{calls: [{name: rows, arguments: {n: 5000}}]}, {text: done}]", "rows")
	run := u.start(t, version, "go")
	s.closed(t, run, 1)
	all, _ := u.records(t, run, "")
	blob := psych.BlobKey{Tenant: run.Tenant, RunID: run.RunID, CallID: blobOf(t, all, "c1_1")}
	if _, err := s.blobs.Stat(t.Context(), blob); err != nil {
		t.Fatal(err)
	}
	if a := u.call(t, "DELETE", "/v1/runs/"+run.RunID, nil); a.status != 204 {
		t.Fatalf("deleting: %d %s", a.status, a.body)
	}
	if a := u.call(t, "GET", "/v1/runs/"+run.RunID+"/report", nil); a.status != 404 {
		t.Errorf("its report: %d", a.status)
	}
	if info, err := s.blobs.Stat(t.Context(), blob); err == nil {
		t.Errorf("its blob is there: %+v", info)
	}
}

// What is past its retention is deleted by the sweep, with its blobs, and so is
// what stands below a tombstone.
func (s *service) testRetention(t *testing.T) {
	u := s.user(t, "expired")
	version := u.publish(t, "steps: [{text: never}]")
	var hash psych.Digest
	if err := hash.UnmarshalText([]byte(version)); err != nil {
		t.Fatal(err)
	}
	brief, err := psych.New(s.store, &psych.Options{Blobs: s.blobs, Retention: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	// The message is a blob, and what its Run keeps beside the header a note.
	text := strings.Repeat("a large message ", 20_000)
	run, err := brief.Start(t.Context(), psych.Scope{Tenant: "expired"}, hash, psych.ClientMessage{ID: "m", Text: text})
	if err != nil {
		t.Fatal(err)
	}
	buried, err := s.reader.Start(t.Context(), psych.Scope{Tenant: "expired"}, hash, psych.ClientMessage{ID: "n", Text: text})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.store.DeleteRun(t.Context(), buried, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	for _, key := range []psych.RunKey{run, buried} {
		until(t, "the sweep deletes "+key.String(), func() bool {
			_, err := s.store.GetRun(t.Context(), key)
			return errors.Is(err, psych.ErrNotFound) && s.objects(t, key) == 0
		})
	}
}

// objects is how many blobs of a Run there are.
func (s *service) objects(t *testing.T, key psych.RunKey) int {
	t.Helper()
	body, err := s.call(t.Context(), "s3", http.MethodGet, "/"+s.outputs["BucketName"]+"?list-type=2&prefix="+url.QueryEscape(key.Tenant+"/"+key.RunID+"/"), "", "")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(body, []byte("<Key>"))
}

// A function of 10 seconds drives a Run of 40 turns over several invocations,
// and the log is what one would have written.
func (s *service) testTimeRunsShort(t *testing.T) {
	const turns = 40
	steps := fmt.Sprintf("steps:\n%s  - text: in time\n", strings.Repeat("  - calls: [{name: wait, arguments: {milliseconds: 400}}]\n", turns-1))
	u := s.user(t, "short")
	version := u.publish(t, steps, "wait")
	long := s.closed(t, u.start(t, version, "go"), 1)
	limit := func(seconds int, margin, floor string) {
		s.configure(t, "TurnFunction", func(c *configuration) {
			c.Timeout = seconds
			c.Environment.Variables["PSYCH_TEST_MARGIN"], c.Environment.Variables["PSYCH_TEST_FLOOR"] = margin, floor
		})
	}
	limit(10, "2s", "2s")
	defer limit(900, "", "")
	short := s.closed(t, u.start(t, version, "go"), 1)
	if short.Status != psych.StatusCompleted || short.Turns != turns || short.Attempts < 3 || long.Attempts != 1 {
		t.Errorf("%s after %d turns and %d attempts, and %d attempts where there is time", short.Status, short.Turns, short.Attempts, long.Attempts)
	}
	if a, b := s.essence(t, long.Run), s.essence(t, short.Run); !slices.Equal(a, b) {
		t.Errorf("the logs differ:\n%s\nand\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
	t.Logf("%d turns in %d invocations", short.Turns, short.Attempts)
}

// A server of tools forgot its session while the function was not at work, and
// later takes another credential alone.
func (s *service) testServers(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "hello"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "hello"}}}, nil, nil
	})
	var mu sync.Mutex
	var sessions http.Handler
	token, refused, unknown := "", 0, 0
	forget := func() {
		mu.Lock()
		defer mu.Unlock()
		sessions = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	}
	rotate := func() {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		token = rand.Text()
		if err := os.WriteFile(filepath.Join(s.dir, "PSYCH_SECRET_hello"), []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		h, ok := sessions, r.Header.Get("Authorization") == "Bearer "+token
		if !ok {
			refused++
		}
		mu.Unlock()
		if !ok {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		seen := statusWriter{ResponseWriter: w}
		h.ServeHTTP(&seen, r)
		if mu.Lock(); seen.status == http.StatusNotFound {
			unknown++
		}
		mu.Unlock()
	}))
	t.Cleanup(func() {
		web.CloseClientConnections() // functions hold streams open for as long as their sessions are idle
		web.Close()
	})
	forget()
	rotate()
	u := s.user(t, "servers")
	file := filepath.Join(s.dir, "servers.yaml")
	const most = 30
	script := "steps:\n" + strings.Repeat("  - calls: [{name: s__hello}]\n  - text: done\n", 2*most)
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	var v struct{ Version string }
	u.call(t, "POST", "/v1/versions", map[string]any{
		"name": "servers", "model": "script:" + file, "connections": []any{map[string]any{"name": "s", "url": web.URL, "credential": "hello", "preload": true}},
	}).into(t, &v)
	run := u.start(t, v.Version, "go")
	s.closed(t, run, 1)
	exchanges := 1
	again := func(what string, change func(), met *int) {
		t.Helper()
		// Which of the function's processes takes a message is not for the test to say:
		// it goes on until one did that had been there before.
		for n := 0; ; n++ {
			mu.Lock()
			done := *met > 0
			mu.Unlock()
			if done {
				return
			}
			if n == most {
				t.Fatalf("%s: no process met it in %d exchanges", what, n)
			}
			change()
			if a := u.call(t, "POST", "/v1/runs/"+run.RunID+"/messages", map[string]any{"text": "again"}); a.status != 202 {
				t.Fatalf("a message: %d %s", a.status, a.body)
			}
			exchanges++
			s.closed(t, run, exchanges)
		}
	}
	again("a session that was forgotten", forget, &unknown)
	again("a credential that was rotated", rotate, &refused)
	rep := s.closed(t, run, exchanges)
	for _, c := range rep.ToolCalls {
		if c.Outcome != string(psych.Succeeded) {
			t.Errorf("%+v", c)
		}
	}
	if rep.Status != psych.StatusCompleted || len(rep.ToolCalls) != exchanges {
		t.Errorf("%s, %d calls in %d exchanges, %+v", rep.Status, len(rep.ToolCalls), exchanges, rep.Exchanges)
	}
}

// A statusWriter remembers the status.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// essence is what a log says, times, attempts and what they cause aside.
func (s *service) essence(t *testing.T, run psych.RunKey) (all []string) {
	t.Helper()
	for rec, err := range s.reader.Records(t.Context(), run, psych.Pos{}) {
		if err != nil {
			t.Fatal(err)
		}
		switch e := rec.Event.(type) {
		case *psych.RunAdmitted, *psych.AttemptStarted:
		case *psych.UserMessage:
			all = append(all, "message")
		case *psych.ModelCallStarted:
			all = append(all, fmt.Sprintf("call %d of %d messages, %v", e.Turn, e.Messages, e.Breaks))
		case *psych.ModelCallFinished:
			b, err := json.Marshal(e.Blocks)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("said %d %s %s", e.Turn, e.Stop, b))
		case *psych.ToolCallStarted:
			all = append(all, "start "+e.Call)
		case *psych.ToolCallFinished:
			b, err := json.Marshal(e.Result)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("end %s %s %s", e.Call, e.Outcome, b))
		case *psych.ExchangeClosed:
			all = append(all, "close "+e.Status)
		default:
			all = append(all, fmt.Sprintf("%T", e))
		}
	}
	return all
}

// many starts a Run for each tenant, some at a time, and returns what was
// started in their order.
func (s *service) many(t *testing.T, tenants []string, script string, tools ...string) (runs []psych.RunKey, started []time.Time) {
	t.Helper()
	users, versions := map[string]*user{}, map[string]string{}
	for _, tenant := range tenants {
		if users[tenant] == nil {
			users[tenant] = s.user(t, tenant)
			versions[tenant] = users[tenant].publish(t, script, tools...)
		}
	}
	runs, started = make([]psych.RunKey, len(tenants)), make([]time.Time, len(tenants))
	var g sync.WaitGroup
	room := make(chan struct{}, 8)
	for i, tenant := range tenants {
		room <- struct{}{}
		g.Go(func() {
			defer func() { <-room }()
			started[i] = time.Now()
			runs[i] = users[tenant].start(t, versions[tenant], fmt.Sprintf("run %d", i))
		})
	}
	g.Wait()
	return runs, started
}

// 200 Runs of 3 turns through the queue and 4 processes that drive.
func (s *service) testManyRuns(t *testing.T) {
	tenants := make([]string, 200)
	for i := range tenants {
		tenants[i] = fmt.Sprintf("many-%d", i%10)
	}
	begun := time.Now()
	runs, _ := s.many(t, tenants, "steps: [{calls: [{name: effect, arguments: {name: many}}]}, {calls: [{name: rows, arguments: {n: 3}}]}, {text: done}]", "effect", "rows")
	for _, run := range runs {
		if rep := s.closed(t, run, 1); rep.Status != psych.StatusCompleted || rep.Turns != 3 || len(rep.Exchanges) != 1 {
			t.Errorf("%s: %s, %d turns, %d exchanges", run, rep.Status, rep.Turns, len(rep.Exchanges))
		}
	}
	if n := len(s.effects(t, "many")); n != len(runs) {
		t.Errorf("%d effects of %d Runs", n, len(runs))
	}
	t.Logf("%d Runs took %v", len(runs), time.Since(begun).Round(time.Second))
}

// 1,000 messages for one Run with nothing to do cost a read each.
func (s *service) testStorm(t *testing.T) {
	u := s.user(t, "storm")
	run := u.start(t, u.publish(t, "steps: [{text: done}]"), "go")
	s.closed(t, run, 1)
	s.drained(t)
	before := s.recorder.count("TurnFunction")
	s.wake(t, run, 1000)
	s.drained(t)
	got := s.recorder.since("TurnFunction", before)
	if got["GetItem"] < 1000 || got["GetItem"] > 1100 || len(got) != 1 {
		t.Errorf("1,000 messages made %v: want 1,000 reads, and some for messages that came twice", got)
	}
	if rep := s.closed(t, run, 1); rep.Attempts != 1 {
		t.Errorf("%d attempts", rep.Attempts)
	}
}

// drained waits until the queue of wakes holds nothing.
func (s *service) drained(t *testing.T) {
	t.Helper()
	until(t, "the queue is empty", func() bool { return s.waiting(t, "QueueUrl") == 0 })
}

// waiting is how many messages a queue holds, those that are being handled too.
func (s *service) waiting(t *testing.T, output string) int {
	t.Helper()
	var out struct{ Attributes map[string]string }
	if err := json.Unmarshal(s.sqs(t, "GetQueueAttributes", map[string]any{"QueueUrl": s.outputs[output], "AttributeNames": []string{"All"}}), &out); err != nil {
		t.Fatal(err)
	}
	visible, err1 := strconv.Atoi(out.Attributes["ApproximateNumberOfMessages"])
	hidden, err2 := strconv.Atoi(out.Attributes["ApproximateNumberOfMessagesNotVisible"])
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return visible + hidden
}

// 50 tenants, of whom one floods: all are served, each Run by one attempt, so that
// nobody's work is put before another's twice. How long the others wait is told,
// and not judged: the emulator has no fair queues, which go by the group of a
// message; that this is the tenant the recorder sees to.
func (s *service) testFlood(t *testing.T) {
	tenants := slices.Repeat([]string{"flood"}, 100)
	for i := range 49 {
		tenants = append(tenants, fmt.Sprintf("calm-%d", i))
	}
	runs, started := s.many(t, tenants, "steps: [{calls: [{name: wait, arguments: {milliseconds: 50}}]}, {text: done}]", "wait")
	var flood, calm []time.Duration
	for i, run := range runs {
		if rep := s.closed(t, run, 1); rep.Status != psych.StatusCompleted || rep.Attempts != 1 {
			t.Errorf("%s: %s after %d attempts", run, rep.Status, rep.Attempts)
		}
		for rec, err := range s.reader.Records(t.Context(), run, psych.Pos{}) {
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := rec.Event.(*psych.ExchangeClosed); ok && i < 100 {
				flood = append(flood, rec.Time.Sub(started[i]))
			} else if ok {
				calm = append(calm, rec.Time.Sub(started[i]))
			}
		}
	}
	slices.Sort(flood)
	slices.Sort(calm)
	if len(flood) != 100 || len(calm) != 49 {
		t.Fatalf("%d and %d Runs ended", len(flood), len(calm))
	}
	t.Logf("from the request to the answer: of who floods, median %v, at most %v; of the others %v and %v", flood[50], flood[99], calm[24], calm[48])
}

// What a Run of ten turns asks of services is what docs/cost.md says.
func (s *service) testCost(t *testing.T) {
	u := s.user(t, "cost")
	version := u.publish(t, "steps:\n"+strings.Repeat("  - calls: [{name: rows, arguments: {n: 3}}]\n", 9)+"  - text: done\n", "rows")
	s.closed(t, u.start(t, version, "warm"), 1)
	s.drained(t)
	var rows []string
	step := func(name string, f func()) {
		before, turn := s.recorder.count("ApiFunction"), s.recorder.count("TurnFunction")
		f()
		rows = append(rows, row(name+", api", s.recorder.since("ApiFunction", before)))
		if driven := s.recorder.since("TurnFunction", turn); len(driven) > 0 {
			rows = append(rows, row(name+", turn", driven))
		}
	}
	var run psych.RunKey
	step("a Run of 10 turns", func() {
		run = u.start(t, version, "go")
		s.closed(t, run, 1)
		s.drained(t)
	})
	step("its records", func() { u.records(t, run, "") })
	step("its report", func() { u.call(t, "GET", "/v1/runs/"+run.RunID+"/report", nil) })
	// The schedule's own sweep may fall into one of these, and not into all.
	var least map[string]int
	for range 3 {
		before := s.recorder.count("SweepFunction")
		var swept lambda.SweepResult
		if out := s.invoke(t, "SweepFunction", "{}"); json.Unmarshal([]byte(out), &swept) != nil || swept != (lambda.SweepResult{}) {
			t.Errorf("a sweep answered %s", out)
		}
		if n := s.recorder.since("SweepFunction", before); least == nil || n["Query"] < least["Query"] {
			least = n
		}
	}
	rows = append(rows, row("a sweep that finds nothing", least))
	doc, err := os.ReadFile("../../docs/cost.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		t.Log(r)
		if !bytes.Contains(doc, []byte(r+"\n")) {
			t.Errorf("docs/cost.md does not have the row\n%s", r)
		}
	}
}

func row(name string, requests map[string]int) string {
	var parts []string
	for _, op := range slices.Sorted(maps.Keys(requests)) {
		parts = append(parts, fmt.Sprintf("%d %s", requests[op], op))
	}
	return "| " + name + " | " + strings.Join(parts, ", ") + " |"
}

// What roles permit is what functions were seen to do, and what Lambda itself
// needs.
func (s *service) testPermissions(t *testing.T) {
	parsed, err := template.Read("../../template.yaml")
	if err != nil {
		t.Fatal(err)
	}
	resolved, err := parsed.Resolve(map[string]string{"Issuer": "https://issuer.example", "Audience": "a", "Model": "script:x"})
	if err != nil {
		t.Fatal(err)
	}
	s.recorder.mu.Lock()
	defer s.recorder.mu.Unlock()
	for _, f := range resolved.Functions() {
		grants, err := resolved.Grants(f)
		if err != nil {
			t.Fatal(err)
		}
		permitted := map[call]bool{}
		for _, g := range grants {
			// Of these Lambda itself makes use; internal/template checks them.
			if !strings.HasPrefix(g.Sid, "Log") && g.Sid != "Traces" && !strings.HasSuffix(g.Sid, "OfTheEventSource") {
				permitted[call{f.ID, g.Action, g.Resource}] = true
			}
		}
		for c := range permitted {
			if s.recorder.calls[c] == 0 {
				t.Errorf("%s may do %s on %s, and does not", c.function, c.action, c.resource)
			}
		}
		for c, n := range s.recorder.calls {
			if c.function == f.ID && !permitted[c] {
				t.Errorf("%s does %s on %s (%d times), and may not", c.function, c.action, c.resource, n)
			}
		}
	}
}
