package lambda_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/api"
	"github.com/psych-go/psych-go/lambda"
	"github.com/psych-go/psych-go/psych"
)

// golden reads an event from testdata.
func golden(t *testing.T, name string) map[string]any {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var e map[string]any
	if err := json.Unmarshal(data, &e); err != nil {
		t.Fatal(err)
	}
	return e
}

// request makes a golden event one of a request.
func request(t *testing.T, name, method, path, body string) map[string]any {
	t.Helper()
	e := golden(t, name)
	rawPath, query, _ := strings.Cut(path, "?")
	e["rawPath"], e["rawQueryString"] = rawPath, query
	if body != "" {
		e["body"] = body
	}
	http := e["requestContext"].(map[string]any)["http"].(map[string]any)
	http["method"], http["path"] = method, rawPath
	return e
}

func headers(e map[string]any) map[string]any { return e["headers"].(map[string]any) }

func claims(e map[string]any) map[string]any {
	return e["requestContext"].(map[string]any)["authorizer"].(map[string]any)["jwt"].(map[string]any)["claims"].(map[string]any)
}

// A gateway is the api function, called as a gateway does.
type gateway struct {
	t      *testing.T
	rt     *psych.Runtime
	handle func(context.Context, json.RawMessage) (events.APIGatewayV2HTTPResponse, error)
	log    *bytes.Buffer
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	play, err := script.Parse([]byte("steps: [{text: done}]"))
	if err != nil {
		t.Fatal(err)
	}
	store := memory.New(nil)
	rt, err := psych.New(store, &psych.Options{Models: psych.OneModel(script.New(play, nil)), Blobs: memory.NewBlobs(nil)})
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{t: t, rt: rt, log: &bytes.Buffer{}}
	log := slog.New(slog.NewJSONHandler(g.log, nil))
	h, err := api.New(rt, store, api.Claims{}, &api.Options{MaxAnswer: lambda.MaxAnswer, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	g.handle = lambda.API(h, &lambda.APIOptions{Logger: log})
	return g
}

// call invokes the function, and returns the answer with its body decoded.
func (g *gateway) call(e map[string]any) (events.APIGatewayV2HTTPResponse, map[string]any) {
	g.t.Helper()
	data, err := json.Marshal(e)
	if err != nil {
		g.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	resp, err := g.handle(ctx, data)
	if err != nil {
		g.t.Fatal(err)
	}
	body := []byte(resp.Body)
	if resp.IsBase64Encoded {
		if body, err = base64.StdEncoding.DecodeString(resp.Body); err != nil {
			g.t.Fatal(err)
		}
	}
	var fields map[string]any
	if len(body) > 0 {
		if err := json.Unmarshal(body, &fields); err != nil {
			g.t.Fatalf("%d %.200s: %v", resp.StatusCode, body, err)
		}
	}
	return resp, fields
}

func (g *gateway) want(status int, e map[string]any) (events.APIGatewayV2HTTPResponse, map[string]any) {
	g.t.Helper()
	resp, fields := g.call(e)
	if resp.StatusCode != status {
		g.t.Errorf("%v %v: %d %.300s, want %d", e["rawPath"], e["rawQueryString"], resp.StatusCode, resp.Body, status)
	}
	return resp, fields
}

// A conversation through the gateway: bodies as they are and in base64, headers
// in lower case.
func TestAPI(t *testing.T) {
	g := newGateway(t)
	_, v := g.want(201, request(t, "http-api.json", "POST", "/v1/versions", `{"name":"a"}`))
	create := request(t, "http-api.json", "POST", "/v1/runs", fmt.Sprintf(`{"version":%q,"message":{"text":"hi"}}`, v["version"]))
	headers(create)["idempotency-key"] = "k"
	resp, created := g.want(201, create)
	run := created["run_id"].(string)
	if resp.Headers["location"] != "/v1/runs/"+run || resp.Headers["content-type"] != "application/json" || resp.Headers["x-request-id"] != "LV7fzho-PHcEJPw=" {
		t.Errorf("%v", resp.Headers)
	}
	create["body"], create["isBase64Encoded"] = base64.StdEncoding.EncodeToString([]byte(create["body"].(string))), true
	delete(headers(create), "idempotency-key")
	headers(create)["Idempotency-Key"] = "k" // in another case
	if _, again := g.want(201, create); again["run_id"] != run {
		t.Errorf("%v", again)
	}
	key := psych.RunKey{Tenant: "t", RunID: run}
	if info, err := g.rt.Report(context.Background(), key); err != nil || info.Waiting != 1 {
		t.Fatalf("%+v, %v", info, err)
	}
	resp, page := g.want(200, request(t, "http-api.json", "GET", "/v1/runs/"+run+"/records?wait=3600&after=0", ""))
	if page["poll_after_seconds"] != 2.0 || resp.Headers["retry-after"] != "2" {
		t.Errorf("%v %v", resp.Headers, page)
	}
	if _, err := g.rt.Drive(context.Background(), key, nil); err != nil {
		t.Fatal(err)
	}
	_, rep := g.want(200, request(t, "http-api.json", "GET", "/v1/runs/"+run+"/report", ""))
	if rep["status"] != "completed" {
		t.Errorf("%v", rep)
	}
	stream := request(t, "http-api.json", "GET", "/v1/runs/"+run+"/records", "")
	headers(stream)["accept"] = "text/event-stream"
	data, err := json.Marshal(stream)
	if err != nil {
		t.Fatal(err)
	}
	sse, err := g.handle(context.Background(), data) // without a deadline, as some emulators have it
	if err != nil || sse.StatusCode != 200 || !strings.HasPrefix(sse.Body, "retry: 2000\n\nid: 1\nevent: record\n") || sse.IsBase64Encoded {
		t.Errorf("%d %.200s, %v", sse.StatusCode, sse.Body, err)
	}
	// A stage of another name stands before the path.
	staged := request(t, "http-api.json", "GET", "/prod/v1/runs/"+run, "")
	staged["requestContext"].(map[string]any)["stage"] = "prod"
	g.want(200, staged)
	resp, _ = g.want(204, request(t, "http-api.json", "DELETE", "/v1/runs/"+run, ""))
	if b, err := json.Marshal(resp); err != nil || strings.Contains(string(b), `"cookies":null`) {
		t.Errorf("%s, %v: null breaks a gateway", b, err)
	}
}

func TestAPIRefuses(t *testing.T) {
	g := newGateway(t)
	for name, change := range map[string]func(e map[string]any){
		"no claims":           func(e map[string]any) { e["requestContext"].(map[string]any)["authorizer"] = nil },
		"no tenant":           func(e map[string]any) { delete(claims(e), "tenant") },
		"an empty tenant":     func(e map[string]any) { claims(e)["tenant"] = "" },
		"an array":            func(e map[string]any) { claims(e)["tenant"] = []string{"t"} },
		"an array in a text":  func(e map[string]any) { claims(e)["tenant"] = "[t u]" },
		"a number":            func(e map[string]any) { claims(e)["tenant"] = 7 },
		"expired":             func(e map[string]any) { claims(e)["exp"] = "1600000000" },
		"no subject":          func(e map[string]any) { delete(claims(e), "sub") },
		"a token, no claims":  func(e map[string]any) { maps.DeleteFunc(claims(e), func(string, any) bool { return true }) },
		"the client's claims": func(e map[string]any) { delete(claims(e), "tenant"); headers(e)["tenant"] = "t" },
	} {
		e := request(t, "http-api.json", "GET", "/v1/runs", "")
		change(e)
		if resp, p := g.call(e); resp.StatusCode != 401 || p["code"] != "unauthenticated" {
			t.Errorf("%s: %d %v", name, resp.StatusCode, p)
		}
	}
	// A function URL has no JWT authorizer: its IAM caller is no tenant.
	g.want(401, request(t, "function-url.json", "GET", "/v1/runs", ""))

	e := request(t, "http-api.json", "POST", "/v1/versions", base64.StdEncoding.EncodeToString([]byte("\x1f\x8b\x08gzip")))
	e["isBase64Encoded"] = true
	headers(e)["content-encoding"] = "gzip"
	g.want(415, e)
	e = request(t, "http-api.json", "POST", "/v1/versions", strings.Repeat("x", 5<<20))
	g.want(413, e)
	e = request(t, "http-api.json", "POST", "/v1/versions", `{"name":"a"}`)
	headers(e)["idempotency-key"] = "a,b" // which the gateway made of two
	g.want(201, e)                        // where it is not read
	e = request(t, "http-api.json", "GET", "/v1/runs/..%2F..%2Fetc", "")
	if resp, _ := g.call(e); resp.StatusCode != 400 && resp.StatusCode != 404 {
		t.Errorf("%d %s", resp.StatusCode, resp.Body)
	}
	e = request(t, "http-api.json", "GET", "/v1/runs/a b\x00%zz", "") // as a gateway that decodes has it
	g.want(400, e)
	e = request(t, "http-api.json", "GET", "//evil.example/v1/runs", "")
	if resp, _ := g.call(e); resp.StatusCode < 300 || strings.Contains(resp.Headers["location"], "evil") && strings.HasPrefix(resp.Headers["location"], "//") {
		t.Errorf("%d %v", resp.StatusCode, resp.Headers)
	}

	// What is no request of an HTTP API is an error, and the log does not quote it.
	for _, name := range []string{"rest-api.json", "sqs.json", "schedule.json"} {
		data, err := json.Marshal(golden(t, name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.handle(context.Background(), data); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := request(t, "http-api.json", "GET", "/v1/runs", "")
	for _, version := range []any{"1.0", "2.1", "", nil} {
		other["version"] = version
		data, err := json.Marshal(other)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.handle(context.Background(), data); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("version %v: %v", version, err)
		}
	}
	bad := request(t, "http-api.json", "POST", "/v1/versions", "!secret!")
	bad["isBase64Encoded"] = true
	data, err := json.Marshal(bad)
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range []string{string(data), "", "null", "[]", `"secret"`, "{", strings.Repeat("[", 100_000)} {
		if _, err := g.handle(context.Background(), json.RawMessage(event)); !errors.Is(err, psych.ErrInvalid) {
			t.Errorf("%.60s: %v", event, err)
		}
	}
	if strings.Contains(g.log.String(), "secret") {
		t.Errorf("the log quotes events:\n%s", g.log)
	}
}

// A handler is out of time before the function is, so that there is an answer.
func TestAPIEndsInTime(t *testing.T) {
	var ends time.Time
	handle := lambda.API(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { ends, _ = r.Context().Deadline() }), nil)
	data, err := json.Marshal(request(t, "http-api.json", "GET", "/v1/runs", ""))
	if err != nil {
		t.Fatal(err)
	}
	killed := time.Now().Add(time.Minute)
	ctx, cancel := context.WithDeadline(context.Background(), killed)
	defer cancel()
	if _, err := handle(ctx, data); err != nil || !ends.Equal(killed.Add(-500*time.Millisecond)) {
		t.Errorf("the handler has until %v, the function until %v: %v", ends, killed, err)
	}
}

// An answer of any size is within what a function may give.
func TestAPIAnswersFit(t *testing.T) {
	g := newGateway(t)
	_, v := g.want(201, request(t, "http-api.json", "POST", "/v1/versions", `{"name":"a"}`))
	_, created := g.want(201, request(t, "http-api.json", "POST", "/v1/runs", fmt.Sprintf(`{"version":%q,"message":{"text":"hi"}}`, v["version"])))
	run := created["run_id"].(string)
	quotes := strings.Repeat(`"\\`, 16_000)
	for range 60 {
		body, err := json.Marshal(map[string]string{"text": quotes})
		if err != nil {
			t.Fatal(err)
		}
		g.want(202, request(t, "http-api.json", "POST", "/v1/runs/"+run+"/messages", string(body)))
	}
	if _, err := g.rt.Drive(context.Background(), psych.RunKey{Tenant: "t", RunID: run}, nil); err != nil {
		t.Fatal(err)
	}
	seen, largest := 0, 0
	for after := "0"; ; {
		resp, page := g.want(200, request(t, "http-api.json", "GET", "/v1/runs/"+run+"/records?limit=1000&after="+after, ""))
		b, err := json.Marshal(resp)
		if err != nil {
			t.Fatal(err)
		}
		largest = max(largest, len(b))
		if !resp.IsBase64Encoded && len(resp.Body) > 512<<10 {
			t.Errorf("an answer of %d bytes is text, which may take several times that as it is quoted", len(resp.Body))
		}
		seen += len(page["records"].([]any))
		if after = page["next"].(string); page["more"] == false {
			break
		}
	}
	if largest > 6_000_000 || largest < 1<<20 {
		t.Errorf("the largest response has %d bytes, want at most 6 MB, and more than 1 MiB to prove something", largest)
	}
	if seen < 61 {
		t.Errorf("%d records", seen)
	}
}

// Each function links what its configuration can name, and no more.
func TestLinks(t *testing.T) {
	const aws, own = "github.com/aws/aws-sdk-go-v2/service/", "github.com/psych-go/psych-go/adapters/"
	for main, want := range map[string][]string{
		"api":        {aws + "dynamodb", aws + "s3", aws + "sqs", own + "dynamo", own + "s3blob", own + "sqs"},
		"turn":       {aws + "bedrockruntime", aws + "dynamodb", aws + "s3", aws + "sqs", aws + "ssm", own + "anthropic", own + "bedrock", own + "dynamo", own + "mcp", own + "openai", own + "s3blob", own + "script", own + "sqs", own + "ssm"},
		"sweep":      {aws + "dynamodb", aws + "s3", aws + "sqs", aws + "ssm", own + "dynamo", own + "mcp", own + "s3blob", own + "sqs", own + "ssm"},
		"deadletter": {aws + "dynamodb", aws + "sqs", own + "dynamo", own + "sqs"},
	} {
		out, err := exec.Command("go", "list", "-deps", "./"+main).Output()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for dep := range strings.Lines(string(out)) {
			dep = strings.TrimSpace(dep)
			service, isAWS := strings.CutPrefix(dep, aws)
			credentials := slices.Contains([]string{"sso", "ssooidc", "sts", "signin"}, service) // of the SDK's chain
			if isAWS && !strings.Contains(service, "/") && !credentials || strings.HasPrefix(dep, own) && !strings.Contains(strings.TrimPrefix(dep, own), "/") {
				got = append(got, dep)
			}
			for _, never := range []string{"modernc.org/", "github.com/spf13/", "github.com/coreos/", "database/sql"} {
				if strings.HasPrefix(dep, never) {
					t.Errorf("%s links %s", main, dep)
				}
			}
			if main != "turn" && (strings.HasPrefix(dep, "github.com/openai/") || strings.HasPrefix(dep, "github.com/anthropics/")) {
				t.Errorf("%s links %s", main, dep)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s links %q, want %q", main, got, want)
		}
	}
}
