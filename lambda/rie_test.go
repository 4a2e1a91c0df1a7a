package lambda_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	ssmtypes "github.com/aws/aws-sdk-go-v2/service/ssm/types"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/adapters/s3blob"
	"github.com/psych-go/psych-go/adapters/script"
	psqs "github.com/psych-go/psych-go/adapters/sqs"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/lambda"
	"github.com/psych-go/psych-go/psych"
)

// A deployment is the ports of one, on ministack, as the environment of its
// functions names them, and a Runtime on the same.
type deployment struct {
	t     *testing.T
	ctx   context.Context
	rie   string
	dir   string
	rt    *psych.Runtime
	store psych.Store
	o     psych.Options
	sqs   *sqs.Client
	queue string
}

func deploy(t *testing.T) *deployment {
	t.Helper()
	d := &deployment{t: t, rie: endpoint.Runtime(t), dir: t.TempDir()}
	db := endpoint.One(t, endpoint.Dynamo, "ministack").URL
	blobs := endpoint.One(t, endpoint.S3, "ministack").URL
	queues := endpoint.One(t, endpoint.SQS, "ministack").URL
	parameters := endpoint.One(t, endpoint.SSM, "ministack").URL
	var cancel context.CancelFunc
	d.ctx, cancel = context.WithTimeout(context.Background(), 8*time.Minute)
	t.Cleanup(cancel)
	play := filepath.Join(d.dir, "play.yaml")
	if err := os.WriteFile(play, []byte("steps: [{text: done, require: [THE END]}, {text: never}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	name := "rie-" + strings.ToLower(rand.Text()[:12])
	d.sqs = sqs.New(sqs.Options{Region: "us-east-1", BaseEndpoint: &queues, Credentials: credentials.NewStaticCredentialsProvider("test", "test", "")})
	out, err := d.sqs.CreateQueue(d.ctx, &sqs.CreateQueueInput{QueueName: &name, Attributes: map[string]string{"VisibilityTimeout": "600"}})
	if err != nil {
		t.Fatal(err)
	}
	d.queue = *out.QueueUrl
	store := ssm.New(ssm.Options{Region: "us-east-1", BaseEndpoint: &parameters, Credentials: credentials.NewStaticCredentialsProvider("test", "test", "")})
	if _, err := store.PutParameter(d.ctx, &ssm.PutParameterInput{Name: aws.String("/" + name + "/tenant/t/greeter"), Value: aws.String("s3cr3t"), Type: ssmtypes.ParameterTypeSecureString}); err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"PSYCH_STORE_URL":       fmt.Sprintf("dynamo://%s?region=us-east-1&endpoint=%s", name, db),
		"PSYCH_BLOB_URL":        fmt.Sprintf("s3://%s/runs?region=us-east-1&endpoint=%s&path_style=true", name, blobs),
		"PSYCH_WAKER_URL":       "sqs:" + d.queue + "?region=us-east-1",
		"PSYCH_MODEL":           "script:" + play,
		"PSYCH_SECRETS_URL":     fmt.Sprintf("ssm:///%s?region=us-east-1&endpoint=%s", name, parameters),
		"AWS_ACCESS_KEY_ID":     "test",
		"AWS_SECRET_ACCESS_KEY": "test",
	} {
		t.Setenv(k, v)
	}
	var b psych.Backends
	dynamo.Register(&b)
	s3blob.Register(&b)
	psqs.Register(&b)
	script.Register(&b)
	p, err := lambda.Open(d.ctx, &b, os.Getenv, nil)
	if err != nil {
		t.Fatal(err)
	}
	d.rt, d.store = p.Runtime, p.Store
	bs, err := b.Blobs.Open(d.ctx, os.Getenv("PSYCH_BLOB_URL"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []any{d.store, bs} {
		i, ok := psych.As[psych.Initer](p)
		if !ok {
			t.Fatalf("%T can't be initialised", p)
		}
		if _, err := i.Init(d.ctx); err != nil {
			t.Fatal(err)
		}
	}
	d.o.Blobs = bs
	return d
}

// function builds the bootstrap of a function and starts it under the emulator;
// it returns where it is invoked.
func (d *deployment) function(name string) string {
	d.t.Helper()
	bootstrap := filepath.Join(d.dir, name, "bootstrap")
	build := exec.CommandContext(d.ctx, "go", "build", "-tags", "lambda.norpc", "-trimpath", "-o", bootstrap, "./"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		d.t.Fatalf("build: %v\n%s", err, out)
	}
	return serve(d.t, d.ctx, d.rie, bootstrap, 60)
}

// wakes receives what waits in the queue.
func (d *deployment) wakes() []types.Message {
	d.t.Helper()
	out, err := d.sqs.ReceiveMessage(d.ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &d.queue, MaxNumberOfMessages: 10, MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return out.Messages
}

// invoke invokes a function with an event, and decodes what it answers.
func (d *deployment) invoke(url string, event any, answer any) {
	d.t.Helper()
	data, err := json.Marshal(event)
	if err != nil {
		d.t.Fatal(err)
	}
	got := invoke(d.t, d.ctx, url, data)
	if err := json.Unmarshal([]byte(got), answer); err != nil {
		d.t.Fatalf("%v: %s", err, got)
	}
}

// The bootstraps of all four functions under the Runtime Interface Emulator, on
// DynamoDB, S3 and SQS of ministack, one process each: a client creates a Run by
// the api, its wake goes through the queue to turn, and the client reads what
// came of it. The same event again does nothing; a message that can't be parsed
// fails alone. The sweep wakes what nobody woke, and a dead letter is told to the
// client.
func TestFunctionsUnderTheRuntimeInterfaceEmulator(t *testing.T) {
	d := deploy(t)
	api, turn := d.function("api"), d.function("turn")
	ask := func(status int, method, path, body string) map[string]any {
		t.Helper()
		var resp events.APIGatewayV2HTTPResponse
		d.invoke(api, request(t, "http-api.json", method, path, body), &resp)
		if resp.StatusCode != status {
			t.Fatalf("%s %s: %d %.300s", method, path, resp.StatusCode, resp.Body)
		}
		var fields map[string]any
		if err := json.Unmarshal([]byte(resp.Body), &fields); err != nil {
			t.Fatal(err)
		}
		return fields
	}
	version := ask(201, "POST", "/v1/versions", `{"name":"n"}`)["version"].(string)
	run := ask(201, "POST", "/v1/runs", fmt.Sprintf(`{"version":%q,"message":{"text":"%sTHE END"}}`, version, strings.Repeat("x", 200_000)))["run_id"].(string)
	woken := d.wakes()
	if len(woken) != 1 {
		t.Fatalf("%d wakes are in the queue", len(woken))
	}
	event := golden(t, "sqs.json")
	first := event["Records"].([]any)[0].(map[string]any)
	first["body"], first["receiptHandle"], first["attributes"] = *woken[0].Body, *woken[0].ReceiptHandle, woken[0].Attributes
	for i := range 2 {
		var resp json.RawMessage
		d.invoke(turn, event, &resp)
		if want := `{"batchItemFailures":[{"itemIdentifier":"2e1424d4-f796-459a-8184-9c92662be6da"}]}`; string(resp) != want {
			t.Errorf("invocation %d answered %s, want %s", i+1, resp, want)
		}
		rep := ask(200, "GET", "/v1/runs/"+run+"/report", "")
		if rep["status"] != "completed" || rep["attempts"] != 1.0 || rep["turns"] != 1.0 {
			t.Errorf("invocation %d: %v", i+1, rep)
		}
	}

	// A tool of a server that wants the tenant's credential, out of the parameter store.
	server := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "greet"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "greetings"}}}, nil, nil
	})
	sessions := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer s3cr3t" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		sessions.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		web.CloseClientConnections() // turn listens for notifications, until it ends
		web.Close()
	})
	greet := filepath.Join(d.dir, "greet.yaml")
	if err := os.WriteFile(greet, []byte("steps: [{calls: [{name: greeter__greet}]}, {text: done, require: [greetings]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	greeter := ask(201, "POST", "/v1/versions", fmt.Sprintf(`{"name":"g","model":%q,"connections":[{"name":"greeter","url":%q,"credential":"greeter","preload":true}]}`, "script:"+greet, web.URL))["version"]
	called := ask(201, "POST", "/v1/runs", fmt.Sprintf(`{"version":%q,"message":{"text":"hello"}}`, greeter))["run_id"].(string)
	if woken = d.wakes(); len(woken) != 1 {
		t.Fatalf("%d wakes are in the queue", len(woken))
	}
	first["body"], first["receiptHandle"], first["attributes"] = *woken[0].Body, *woken[0].ReceiptHandle, woken[0].Attributes
	d.invoke(turn, event, new(json.RawMessage))
	if rep := ask(200, "GET", "/v1/runs/"+called+"/report", ""); rep["status"] != "completed" || rep["turns"] != 2.0 {
		t.Errorf("%v", rep)
	}

	// A message that fails is in the queue again within seconds, of its 600.
	absent := fmt.Sprintf(`{"tenant":"t","run_id":"%032d","more":1}`, 0)
	if _, err := d.sqs.SendMessage(d.ctx, &sqs.SendMessageInput{QueueUrl: &d.queue, MessageBody: &absent}); err != nil {
		t.Fatal(err)
	}
	bad := d.wakes()
	if len(bad) != 1 {
		t.Fatalf("%d messages", len(bad))
	}
	first["body"], first["receiptHandle"], first["attributes"] = absent, *bad[0].ReceiptHandle, bad[0].Attributes
	var resp events.SQSEventResponse
	if d.invoke(turn, event, &resp); len(resp.BatchItemFailures) != 2 {
		t.Errorf("%+v", resp)
	}
	for n := 0; ; n++ {
		if again := d.wakes(); len(again) == 1 && *again[0].Body == absent {
			d.sqs.DeleteMessage(d.ctx, &sqs.DeleteMessageInput{QueueUrl: &d.queue, ReceiptHandle: again[0].ReceiptHandle})
			break
		}
		if n == 600 {
			t.Fatal("it does not come again")
		}
		time.Sleep(50 * time.Millisecond)
	}

	// A Run of an hour ago whose wake was lost.
	d.o.Now = func() time.Time { return time.Now().Add(-time.Hour) }
	past, err := psych.New(d.store, &d.o)
	if err != nil {
		t.Fatal(err)
	}
	var hash psych.Digest
	if err := hash.UnmarshalText([]byte(version)); err != nil {
		t.Fatal(err)
	}
	lost, err := past.Start(d.ctx, psych.Scope{Tenant: "t"}, hash, psych.ClientMessage{Text: "THE END"})
	if err != nil {
		t.Fatal(err)
	}
	var swept lambda.SweepResult
	d.invoke(d.function("sweep"), golden(t, "schedule.json"), &swept)
	if woken := d.wakes(); swept.Woken != 1 || swept.Next != "" || len(woken) != 1 || !strings.Contains(*woken[0].Body, lost.RunID) {
		t.Errorf("swept %+v, woken %v", swept, woken)
	}

	// Its wake dies.
	deadletter := dead(t, fmt.Sprintf(`{"tenant":"t","run_id":%q}`, lost.RunID), fmt.Sprint(time.Now().UnixMilli()))
	if d.invoke(d.function("deadletter"), deadletter, &resp); len(resp.BatchItemFailures) != 0 {
		t.Errorf("%+v", resp)
	}
	rep := ask(200, "GET", "/v1/runs/"+lost.RunID+"/report", "")
	if x := rep["exchanges"].([]any)[0].(map[string]any); rep["status"] != "failed" || x["code"] != "not_driven" {
		t.Errorf("%v", rep)
	}
}

// What an emulator of Lambda can't play: a function that is frozen in the middle
// of its work, while another takes its Run over, and goes on afterwards; and one
// whose time is over. Nothing that must not be done twice is, and who comes back
// late writes nothing.
func TestFrozenAndTimedOut(t *testing.T) {
	d := deploy(t)
	bootstrap := filepath.Join(d.dir, "worker")
	build := exec.CommandContext(d.ctx, "go", "build", "-tags", "lambda.norpc", "-trimpath", "-o", bootstrap, "../internal/local/testdata/worker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for k, v := range map[string]string{"PSYCH_TEST_DIR": d.dir, "PSYCH_TEST_LEASE": "3s", "PSYCH_TEST_MARGIN": "500ms", "PSYCH_TEST_FLOOR": "500ms"} {
		t.Setenv(k, v)
	}
	model := os.Getenv("PSYCH_MODEL")
	os.Unsetenv("PSYCH_MODEL") // what makes the worker one that answers requests
	api := serve(t, d.ctx, d.rie, bootstrap, 60)
	os.Setenv("PSYCH_MODEL", model)
	// start starts a Run whose worker stops at a point, once.
	start := func(t *testing.T, name, point string) (psych.RunKey, events.SQSEvent) {
		t.Helper()
		file := filepath.Join(d.dir, name+".yaml")
		if err := os.WriteFile(file, []byte(fmt.Sprintf("steps: [{calls: [{name: effect, arguments: {name: %s}}]}, {text: survived}]", name)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d.dir, "stop-"+point), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		var resp events.APIGatewayV2HTTPResponse
		d.invoke(api, request(t, "http-api.json", "POST", "/v1/versions", fmt.Sprintf(`{"name":%q,"model":%q,"tools":["effect"]}`, name, "script:"+file)), &resp)
		var v struct{ Version psych.Digest }
		if err := json.Unmarshal([]byte(resp.Body), &v); err != nil || resp.StatusCode != 201 {
			t.Fatalf("%d %s, %v", resp.StatusCode, resp.Body, err)
		}
		key, err := d.rt.Start(d.ctx, psych.Scope{Tenant: "t"}, v.Version, psych.ClientMessage{Text: "go"})
		if err != nil {
			t.Fatal(err)
		}
		body, err := json.Marshal(key)
		if err != nil {
			t.Fatal(err)
		}
		return key, events.SQSEvent{Records: []events.SQSMessage{{MessageId: name, Body: string(body), EventSource: "aws:sqs"}}}
	}
	// drive invokes until the exchange is closed, which is once its lease is over.
	drive := func(t *testing.T, url string, key psych.RunKey, event events.SQSEvent) *psych.Report {
		t.Helper()
		for range 300 {
			d.invoke(url, event, new(json.RawMessage))
			rep, err := d.rt.Report(d.ctx, key)
			if err != nil {
				t.Fatal(err)
			}
			if len(rep.Exchanges) == 1 && rep.Exchanges[0].Closed != "" {
				return rep
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Fatalf("%s is not driven", key)
		return nil
	}
	check := func(t *testing.T, rep *psych.Report, name, outcome string, effects int) {
		t.Helper()
		done, err := os.ReadFile(filepath.Join(d.dir, "effects-"+name))
		if n := strings.Count(string(done), "\n"); n != effects || err != nil && !os.IsNotExist(err) {
			t.Errorf("effects %q, %v: want %d", done, err, effects)
		}
		if rep.Status != psych.StatusCompleted || rep.Attempts != 2 || rep.Exchanges[0].Answer != "survived" || len(rep.ToolCalls) != 1 || rep.ToolCalls[0].Outcome != outcome {
			t.Errorf("%s after %d attempts, %+v, %+v", rep.Status, rep.Attempts, rep.Exchanges, rep.ToolCalls)
		}
	}
	records := func(t *testing.T, key psych.RunKey) (n int) {
		t.Helper()
		for _, err := range d.rt.Records(d.ctx, key, psych.Pos{}) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	for _, c := range []struct {
		name, point, outcome string
		effects              int
	}{
		{"tool", "effect-tool", string(psych.UnknownEnd), 1},
		{"model", "model-model", string(psych.Succeeded), 1},
		// Behind what the model said and the start of the tool, which then is not run: the lease is over.
		{"write", "append-t-2", string(psych.UnknownEnd), 0},
	} {
		t.Run("frozen in a "+c.name, func(t *testing.T) {
			frozen, other := serve(t, d.ctx, d.rie, bootstrap, 60), serve(t, d.ctx, d.rie, bootstrap, 60)
			key, event := start(t, c.name, c.point)
			returned := make(chan struct{})
			go func() {
				defer close(returned)
				d.invoke(frozen, event, new(json.RawMessage))
			}()
			pid := stopped(t, d.dir, c.point)
			drive(t, other, key, event)
			before := records(t, key)
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			<-returned
			late, err := d.rt.Report(d.ctx, key)
			if err != nil {
				t.Fatal(err)
			}
			if n := records(t, key); n != before {
				t.Errorf("who came back late wrote: %d records, and before %d", n, before)
			}
			check(t, late, c.name, c.outcome, c.effects)
			d.invoke(frozen, event, new(json.RawMessage)) // it is as good as before
		})
	}
	t.Run("timed out", func(t *testing.T) {
		url := serve(t, d.ctx, d.rie, bootstrap, 3)
		key, event := start(t, "time", "effect-time")
		data, err := json.Marshal(event)
		if err != nil {
			t.Fatal(err)
		}
		if got := invoke(t, d.ctx, url, data); !strings.Contains(got, "Task timed out") {
			t.Errorf("the emulator answered %s", got)
		}
		check(t, drive(t, url, key, event), "time", string(psych.UnknownEnd), 1)
	})
}

// stopped waits until a process stopped at a point, and returns its id.
func stopped(t *testing.T, dir, point string) int {
	t.Helper()
	for range 600 {
		b, err := os.ReadFile(filepath.Join(dir, "stopped-"+point))
		if pid, bad := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && bad == nil {
			return pid
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("nobody stops at %s", point)
	return 0
}

// serve runs a bootstrap under the emulator, until the test ends, and returns
// where it is invoked.
func serve(t *testing.T, ctx context.Context, rie, bootstrap string, timeout int) string {
	t.Helper()
	addr := address(t)
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, rie, "--runtime-interface-emulator-address", addr, "--runtime-api-address", address(t), bootstrap)
	cmd.Env = append(os.Environ(), fmt.Sprintf("AWS_LAMBDA_FUNCTION_TIMEOUT=%d", timeout))
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("the emulator and the function:\n%s", log.String())
		}
	})
	return await(t, addr)
}

// address is one that nothing listens at.
func address(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// await waits for an emulator at addr, and returns where it is invoked.
func await(t *testing.T, addr string) string {
	t.Helper()
	for range 1000 {
		if c, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			c.Close()
			return "http://" + addr + "/2015-03-31/functions/function/invocations"
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("nothing listens at %s", addr)
	return ""
}

func invoke(t *testing.T, ctx context.Context, url string, event []byte) string {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(event))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v: %s", resp.Status, err, b)
	}
	return string(b)
}
