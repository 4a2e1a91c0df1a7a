package template

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
)

const root = "../.."

// given is a stack as somebody deploys it who gives no more than he must.
var given = map[string]string{"Issuer": "https://issuer.example", "Audience": "psych", "Model": "openai:some"}

// everything is one with each optional part.
var everything = map[string]string{
	"Issuer": "https://issuer.example", "Audience": "psych", "Model": "openai:some", "OpenAIKey": "psych/openai", "OpenAIServer": "https://models.example/v1",
	"AnthropicKey": "psych/anthropic", "BedrockModels": "arn:aws:bedrock:eu-central-1::foundation-model/some,arn:aws:bedrock:eu-central-1:123456789012:inference-profile/other", "SecretsPath": "psych/prod",
	"AlarmTopic": "arn:aws:sns:eu-central-1:123456789012:alarms", "Key": "arn:aws:kms:eu-central-1:123456789012:key/1", "CorsOrigins": "https://a.example,https://b.example",
	"Subnets": "subnet-1,subnet-2", "SecurityGroups": "sg-1",
}

// A deployment is what checks look at.
type deployment struct {
	t           *Template
	least, full *Stack
	makefile    string
}

func read(data, makefile []byte) (*deployment, error) {
	t, err := Parse(data)
	if err != nil {
		return nil, err
	}
	d := &deployment{t: t, makefile: string(makefile)}
	if d.least, err = t.Resolve(given); err != nil {
		return nil, err
	}
	d.full, err = t.Resolve(everything)
	return d, err
}

// files are the template and the Makefile.
func files(t *testing.T) (template, makefile []byte) {
	t.Helper()
	template, err := os.ReadFile(filepath.Join(root, "template.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	makefile, err = os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	return template, makefile
}

// A rule of the template is a check that returns what is wrong, and the edits
// that it must catch: of a text that stands in the template, or the Makefile,
// once or more.
type rule struct {
	name  string
	check func(*deployment) problems
	edits [][2]string
}

var rules = []rule{
	{"a queue hides a message for six times its function's time, and tries it five times or more", visibility, [][2]string{
		{"VisibilityTimeout: 5400", "VisibilityTimeout: 900"},
		{"VisibilityTimeout: 360", "VisibilityTimeout: 300"},
		{"maxReceiveCount: 5", "maxReceiveCount: 3"},
		{"Timeout: 900", "Timeout: 901"},
		{"MessageRetentionPeriod: 345600", "MessageRetentionPeriod: 20000"},
		{"MessageRetentionPeriod: 1209600", "MessageRetentionPeriod: 86400"},
		{"deadLetterTargetArn: !GetAtt DeadLetters.Arn", "deadLetterTargetArn: !GetAtt Wakes.Arn"},
	}},
	{"a function whose handler reports single failures is heard, and no other says so", partialBatches, [][2]string{
		{"            FunctionResponseTypes: [ReportBatchItemFailures]\n            ScalingConfig: {MaximumConcurrency: !Ref", "            ScalingConfig: {MaximumConcurrency: !Ref"},
		{"[ReportBatchItemFailures]", "[ReportBatchItemFailure]"},
	}},
	{"a queue's function has a bound of two or more, and no reserved concurrency", scaling, [][2]string{
		{"MaximumConcurrency: 2", "MaximumConcurrency: 1"},
		{"    MinValue: 2\n", "    MinValue: 1\n"},
		{"    MemorySize: 512", "    MemorySize: 512\n    ReservedConcurrentExecutions: 5"},
		{"            ScalingConfig: {MaximumConcurrency: !Ref Concurrency} # reserved concurrency would dead-letter good messages\n", ""},
		{"BatchSize: 1 # a Run", "BatchSize: 10 # a Run"},
	}},
	{"a function that may cause its own invocation says so", recursion, [][2]string{
		{"      RecursiveLoop: Allow # it hands", "      # it hands"},
		{"      RecursiveLoop: Allow # it may", "      # it may"},
		{"      Timeout: 60\n      LoggingConfig: {LogFormat: JSON, LogGroup: !Ref SweepLog}", "      Timeout: 60\n      RecursiveLoop: Allow\n      LoggingConfig: {LogFormat: JSON, LogGroup: !Ref SweepLog}"},
	}},
	{"every variable that a main reads is given, and every one that is given is read", environment, [][2]string{
		{"PSYCH_MODEL: !Ref Model", "PSYCH_MODELS: !Ref Model"},
		{"          PSYCH_DEADLETTER_URL: !Sub sqs:${DeadLetters}", "          PSYCH_BLOB_URL: s3://x"},
		{"        PSYCH_WAKER_URL: !Sub sqs:${Wakes}", "        PSYCH_WAKER_URL: \"\""},
		{"        PSYCH_STORE_URL: !Sub dynamo://${Table}\n", ""},
		{"OPENAI_API_KEY:", "OPENAI_KEY:"},
		{"PSYCH_STORE_URL: !Sub dynamo://${Table}", "PSYCH_STORE_URL: !Sub dynamo:${Table}"},
		{"PSYCH_DEADLETTER_URL: !Sub sqs:${DeadLetters}", "PSYCH_DEADLETTER_URL: !Sub sqs:${Wakes}"},
	}},
	{"each function is built, by a target of its own, from a main that is there", build, [][2]string{
		{"Handler: bootstrap", "Handler: main"},
		{"Runtime: provided.al2023", "Runtime: go1.x"},
		{"build-SweepFunction:", "build-SweeperFunction:"},
		{"./lambda/deadletter", "./lambda/deadletters"},
		{"/bootstrap\"", "/main\""},
		{"-tags lambda.norpc ", ""},
		{"CGO_ENABLED=0 ", ""},
		{"GOARCH ?= arm64", "GOARCH ?= amd64"},
		{"GOOS ?= linux", "GOOS ?= darwin"},
		{"SweepFunction:\n    Type: AWS::Serverless::Function\n    Metadata: {BuildMethod: makefile}", "SweepFunction:\n    Type: AWS::Serverless::Function"},
	}},
	{"the table is that of adapters/dynamo", table, [][2]string{
		{"- {AttributeName: p, KeyType: HASH}", "- {AttributeName: pk, KeyType: HASH}"},
		{"IndexName: due", "IndexName: dues"},
		{"- {AttributeName: u, KeyType: RANGE}", "- {AttributeName: c, KeyType: RANGE}"},
		{"- {AttributeName: c, AttributeType: N}", "- {AttributeName: c, AttributeType: S}"},
		{"{ProjectionType: KEYS_ONLY}", "{ProjectionType: ALL}"},
		{"BillingMode: PAY_PER_REQUEST", "BillingMode: PROVISIONED"},
		{"{AttributeName: e, Enabled: true}", "{AttributeName: u, Enabled: true}"},
		{"{AttributeName: e, Enabled: true}", "{AttributeName: e, Enabled: false}"},
		{"      PointInTimeRecoverySpecification: {PointInTimeRecoveryEnabled: true}\n", ""},
	}},
	{"what is kept stays, and nothing of it expires", kept, [][2]string{
		{"DeletionPolicy: RetainExceptOnCreate", "DeletionPolicy: Delete"},
		{"UpdateReplacePolicy: Retain\n    Properties: # as", "UpdateReplacePolicy: Delete\n    Properties: # as"},
		{"            AbortIncompleteMultipartUpload: {DaysAfterInitiation: 7}", "            ExpirationInDays: 90"},
		{"            AbortIncompleteMultipartUpload: {DaysAfterInitiation: 7}", "            AbortIncompleteMultipartUpload: {DaysAfterInitiation: 7}\n            ExpirationInDays: 90"},
		{"BlockPublicPolicy: true", "BlockPublicPolicy: false"},
		{"BucketOwnerEnforced", "ObjectWriter"},
		{"        - {SSEEnabled: true, SSEType: KMS, KMSMasterKeyId: !Ref Key}", "        - !Ref AWS::NoValue"},
		{"{\"aws:SecureTransport\": \"false\"}", "{\"aws:SecureTransport\": \"true\"}"},
	}},
	{"every path has a route, and none is open but those that the API says are public", routes, [][2]string{
		{"AuthorizationType: JWT", "AuthorizationType: NONE"},
		{"RouteKey: GET /{proxy+}", "RouteKey: $default"},
		{"RouteKey: GET /{proxy+}", "RouteKey: ANY /{proxy+}"},
		{"RouteKey: DELETE /{proxy+}", "RouteKey: PUT /{proxy+}"},
		{"RouteKey: GET /openapi.json", "RouteKey: GET /v1/runs"},
		{"      AuthorizerId: !Ref Tokens\n", ""},
		{"Issuer: !Ref Issuer", "Issuer: https://issuer.example/"},
		{"AllowMethods: [GET, POST, DELETE]", "AllowMethods: [GET, POST]"},
		{"PayloadFormatVersion: \"2.0\"", "PayloadFormatVersion: \"1.0\""},
		{"Timeout: 29 #", "Timeout: 30 #"},
		{"      SourceArn: !Sub", "      SourceAccount: !Sub"},
	}},
	{"the sweep is called each minute, and not twice for one", schedule, [][2]string{
		{"rate(1 minute)", "rate(1 minutes)"},
		{"rate(1 minute)", "rate(5 minutes)"},
		{"            OmitName: true # sam's would be the same in each stack of an account\n", ""},
		{"            RetryPolicy: {MaximumRetryAttempts: 2, MaximumEventAgeInSeconds: 60}\n", ""},
		{"EventInvokeConfig: {MaximumRetryAttempts: 0,", "EventInvokeConfig: {MaximumRetryAttempts: 2,"},
	}},
	{"each function has a log of its own, as JSON, that ends some day", logs, [][2]string{
		{"LogGroup: !Ref SweepLog", "LogGroup: !Ref TurnLog"},
		{"{LogFormat: JSON, LogGroup: !Ref ApiLog}", "{LogFormat: Text, LogGroup: !Ref ApiLog}"},
		{"Properties: {RetentionInDays: !Ref LogRetentionDays}", "Properties: {}"},
		{"    Tracing: Active\n", ""},
		{"DestinationArn: !GetAtt AccessLog.Arn", "DestinationArn: !GetAtt ApiLog.Arn"},
	}},
	{"errors, dead letters, waiting Runs and a silent sweep are alarms", alarms, [][2]string{
		{"Value: !Ref SweepFunction}]\n      Statistic: Sum\n      Period: 300\n      EvaluationPeriods: 1", "Value: !Ref TurnFunction}]\n      Statistic: Sum\n      Period: 300\n      EvaluationPeriods: 1"},
		{"Value: !GetAtt DeadLetters.QueueName", "Value: !GetAtt Wakes.QueueName"},
		{"TreatMissingData: breaching", "TreatMissingData: notBreaching"},
		{"MetricName: Errors", "MetricName: Error"},
		{"MetricName: ApproximateNumberOfMessagesNotVisible", "MetricName: ApproximateNumberOfMessagesDelayed"},
		{"      AlarmActions: !If [HasAlarmTopic, [!Ref AlarmTopic], !Ref AWS::NoValue]\n", ""},
	}},
	{"a role permits single actions on what the stack has", grants, [][2]string{
		{"dynamodb:UpdateItem]\n                Resource: !GetAtt Table.Arn", "dynamodb:*]\n                Resource: !GetAtt Table.Arn"},
		{"Resource: !Sub ${Table.Arn}/index/runs", "Resource: \"*\""},
		{"Resource: !Sub ${Table.Arn}/index/due", "Resource: !Sub ${Table.Arn}/index/dues"},
		{"Action: [sqs:DeleteMessage, sqs:GetQueueAttributes, sqs:ReceiveMessage]", "Action: [sqs:GetQueueAttributes, sqs:ReceiveMessage]"},
		{"      Role: !GetAtt SweepRole.Arn\n", ""},
		{"Role: !GetAtt SweepRole.Arn", "Role: !GetAtt TurnRole.Arn"},
		{"                Resource: !GetAtt SweepLog.Arn", "                Resource: !GetAtt TurnLog.Arn"},
		{"                  Resource: !Ref Key\n", "                  Resource: \"*\"\n"},
		{"parameter/${SecretsPath}/*", "parameter/*"},
		{"Resource: !Ref BedrockModels", "Resource: \"*\""},
		{"sts:AssumeRole", "sts:*"},
		{"Service: lambda.amazonaws.com", "AWS: \"*\""},
	}},
	{"optional parts are there when they are asked for, and only then", optional, [][2]string{
		{"      KmsMasterKeyId: !If [HasKey, !Ref Key, !Ref AWS::NoValue]\n", ""},
		{"{SSEAlgorithm: \"aws:kms\", KMSMasterKeyID: !Ref Key}", "{SSEAlgorithm: AES256}"},
		{"    VpcConfig: !If\n      - HasVpc", "    VpcConfig: !If\n      - HasKey"},
		{"      CorsConfiguration: !If\n        - HasCors", "      CorsConfiguration: !If\n        - HasVpc"},
		{"OPENAI_BASE_URL: !If [HasOpenAIServer, !Ref OpenAIServer, !Ref AWS::NoValue]", "OPENAI_BASE_URL: !Ref OpenAIServer"},
	}},
	{"parameters and conditions are used, and described; outputs name what a person needs", parameters, [][2]string{
		{"PSYCH_RETENTION_DAYS: !Ref RetentionDays", "PSYCH_RETENTION_DAYS: 90"},
		{"    Description: Audience that a token must be for.\n", ""},
		{"  Url:\n", "  Adress:\n"},
		{"  RetentionDays:\n    Type: Number\n    Default: 90\n", "  RetentionDays:\n    Type: Number\n"},
	}},
}

func TestTemplate(t *testing.T) {
	template, makefile := files(t)
	d, err := read(template, makefile)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, problem := range r.check(d) {
				t.Error(problem)
			}
		})
	}
}

// A rule that catches nothing is none.
func TestRulesCatch(t *testing.T) {
	template, makefile := files(t)
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, e := range r.edits {
				a, b := strings.Replace(string(template), e[0], e[1], 1), strings.Replace(string(makefile), e[0], e[1], 1)
				if a == string(template) && b == string(makefile) {
					t.Errorf("there is no %q to edit", e[0])
					continue
				}
				if d, err := read([]byte(a), []byte(b)); err == nil && len(r.check(d)) == 0 {
					t.Errorf("nothing is wrong with %q in place of %q", e[1], e[0])
				}
			}
		})
	}
}

// problems collects what is wrong.
type problems []string

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Sprintf(format, args...)) }

// want adds a problem where got is not want.
func want[T comparable](p *problems, what string, got, want T) {
	if got != want {
		p.add("%s is %v: want %v", what, got, want)
	}
}

// queues calls f for each function that a queue invokes.
func queues(s *Stack, f func(function *Resource, e Event, queue *Resource)) {
	for _, function := range s.Functions() {
		for _, e := range function.Events() {
			if e.Type == "SQS" {
				f(function, e, s.Named(e.Text("Queue")))
			}
		}
	}
}

func visibility(d *deployment) (p problems) {
	n := 0
	queues(d.least, func(function *Resource, e Event, queue *Resource) {
		n++
		if queue == nil || queue.Type != "AWS::SQS::Queue" {
			p.add("%s: its queue %q is none of the template", function.ID, e.Text("Queue"))
			return
		}
		timeout, hidden := function.Int("Timeout"), queue.Int("VisibilityTimeout")
		if timeout < 1 || timeout > 900 || hidden < 6*timeout {
			p.add("%s hides messages for %d s, and %s has %d s of at most 900: want six times as much", queue.ID, hidden, function.ID, timeout)
		}
		dead := d.least.Named(queue.Text("RedrivePolicy.deadLetterTargetArn"))
		if dead == nil {
			return // the end of the line
		}
		tries := queue.Int("RedrivePolicy.maxReceiveCount")
		if dead == queue || tries < 5 || tries*hidden > queue.Int("MessageRetentionPeriod") {
			p.add("%s gives a message to %s after %d tries of %d s each: want another queue, 5 or more, and all within its %d s", queue.ID, dead.ID, tries, hidden, queue.Int("MessageRetentionPeriod"))
		}
		// Its time in the dead-letter queue counts from when it was sent first.
		if dead.Int("MessageRetentionPeriod") < queue.Int("MessageRetentionPeriod")+86400 {
			p.add("%s keeps messages for %d s, and %s for %d: want a day more at the least", dead.ID, dead.Int("MessageRetentionPeriod"), queue.ID, queue.Int("MessageRetentionPeriod"))
		}
	})
	want(&p, "functions that a queue invokes", n, 2)
	return p
}

func partialBatches(d *deployment) (p problems) {
	for _, function := range d.least.Functions() {
		reports, err := reportsFailures(function.ID, d.makefile)
		if err != nil {
			p.add("%s: %v", function.ID, err)
		}
		hasQueue := false
		for _, e := range function.Events() {
			types := e.List("FunctionResponseTypes")
			hasQueue = hasQueue || e.Type == "SQS"
			if heard := slices.Equal(types, []string{"ReportBatchItemFailures"}); heard != reports || !heard && len(types) > 0 {
				p.add("%s: its handler reports failures of messages: %v; what its event %s is told to heed is %v", function.ID, reports, e.ID, types)
			}
		}
		want(&p, function.ID+" answers a queue", reports, hasQueue)
	}
	return p
}

// reportsFailures reports whether the handler that a function's main starts
// answers as partial batch responses do.
func reportsFailures(function, makefile string) (bool, error) {
	dir, err := mainOf(function, makefile)
	if err != nil {
		return false, err
	}
	main, err := os.ReadFile(filepath.Join(root, dir, "main.go"))
	if err != nil {
		return false, err
	}
	m := regexp.MustCompile(`awslambda\.Start\(lambda\.(\w+)\(`).FindSubmatch(main)
	if m == nil {
		return false, fmt.Errorf("%s starts no handler of package lambda", dir)
	}
	set := token.NewFileSet()
	names, err := filepath.Glob(filepath.Join(root, "lambda", "*.go"))
	if err != nil {
		return false, err
	}
	for _, name := range names {
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			return false, err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv != nil || f.Name.Name != string(m[1]) || f.Type.Results == nil {
				continue
			}
			handler, ok := f.Type.Results.List[0].Type.(*ast.FuncType)
			if !ok || handler.Results == nil || len(handler.Results.List) != 2 {
				return false, fmt.Errorf("lambda.%s returns no handler", m[1])
			}
			answer, ok := handler.Results.List[0].Type.(*ast.SelectorExpr)
			return ok && answer.Sel.Name == "SQSEventResponse", nil
		}
	}
	return false, fmt.Errorf("package lambda has no %s", m[1])
}

func scaling(d *deployment) (p problems) {
	queues(d.least, func(function *Resource, e Event, _ *Resource) {
		want(&p, function.ID+": its batch", e.Int("BatchSize"), 1)
		if n := e.Int("ScalingConfig.MaximumConcurrency"); n < 2 {
			p.add("%s: its concurrency is %d: want 2 or more", function.ID, n)
		}
	})
	for _, function := range d.least.Functions() {
		if function.Get("ReservedConcurrentExecutions") != nil {
			p.add("%s reserves concurrency: a queue would dead-letter good messages", function.ID)
		}
	}
	want(&p, "the least Concurrency", d.t.Parameters["Concurrency"].MinValue, "2")
	return p
}

// recursion finds who may, by sending messages, cause its own invocation.
func recursion(d *deployment) (p problems) {
	s := d.least
	next := map[string][]string{}
	for _, function := range s.Functions() {
		all, err := s.Grants(function)
		if err != nil {
			return append(p, err.Error())
		}
		for _, g := range all {
			if queue := s.Named(g.Resource); g.Action == "sqs:SendMessage" && queue != nil {
				next[function.ID] = append(next[function.ID], queue.ID)
			}
		}
	}
	queues(s, func(function *Resource, _ Event, queue *Resource) {
		if queue != nil {
			next[queue.ID] = append(next[queue.ID], function.ID)
			if dead := s.Named(queue.Text("RedrivePolicy.deadLetterTargetArn")); dead != nil {
				next[queue.ID] = append(next[queue.ID], dead.ID)
			}
		}
	})
	for _, function := range s.Functions() {
		seen, todo := map[string]bool{}, slices.Clone(next[function.ID])
		for len(todo) > 0 {
			at := todo[0]
			if todo = todo[1:]; !seen[at] {
				seen[at] = true
				todo = append(todo, next[at]...)
			}
		}
		if allowed := function.Text("RecursiveLoop") == "Allow"; allowed != seen[function.ID] {
			p.add("%s may cause its own invocation: %v; it is allowed to: %v", function.ID, seen[function.ID], allowed)
		}
	}
	return p
}

// unset are variables that code reads and the template leaves out, by function
// where it is not for all, with the reason. A function without a reason needs
// them.
var unset = map[string]map[string]string{
	"ANTHROPIC_BASE_URL":               {"": "anthropic: is Anthropic's own"},
	"AWS_ACCESS_KEY_ID":                {"": "Lambda sets it"},
	"AWS_ENDPOINT_URL":                 {"": "it is for emulators"},
	"AWS_ENDPOINT_URL_BEDROCK_RUNTIME": {"": "it is for emulators"},
	"AWS_LAMBDA_FUNCTION_TIMEOUT":      {"": "it is for emulators that send no deadline"},
	"LC_ALL":                           {"": "programs that are servers of tools inherit it, and functions start none"},
	"LC_CTYPE":                         {"": "as LC_ALL"},
	"OPENAI_ORG_ID":                    {"": "a key of one organisation needs none"},
	"OPENAI_PROJECT_ID":                {"": "a key of one project needs none"},
	"PSYCH_BLOB_URL":                   {"DeadLetterFunction": "it closes exchanges, and reads no blob"},
	"PSYCH_MODEL":                      {"ApiFunction": "it drives nothing", "SweepFunction": "it drives nothing", "DeadLetterFunction": "it drives nothing"},
	"PSYCH_POLICY_FILE":                {"": "a file stands in no artefact, unless a deployment of one's own puts it there"},
	"PSYCH_PRICES":                     {"": "as PSYCH_POLICY_FILE"},
	"PSYCH_PRINCIPAL_CLAIM":            {"": "sub, which every token has"},
	"PSYCH_RETENTION_DAYS":             {"TurnFunction": "it creates no Runs", "SweepFunction": "it creates no Runs", "DeadLetterFunction": "it creates no Runs"},
	"PSYCH_SECRETS_URL":                {"ApiFunction": "it calls no servers of tools", "DeadLetterFunction": "it calls no servers of tools"},
	"PSYCH_SECRET_":                    {"": "the beginning of what env:// as PSYCH_SECRETS_URL names"},
}

func environment(d *deployment) (p problems) {
	meant := map[string]bool{}
	for _, function := range d.full.Functions() {
		dir, err := mainOf(function.ID, d.makefile)
		if err != nil {
			p.add("%v", err)
			continue
		}
		reads, err := readsOf(dir)
		if err != nil {
			p.add("%v", err)
			continue
		}
		env := function.Env()
		for _, name := range reads {
			_, given := env[name]
			_, all := unset[name][""]
			_, own := unset[name][function.ID]
			switch {
			case given && (all || own):
				p.add("%s is given %s: the table says that it is left out", function.ID, name)
			case !given && !all && !own:
				p.add("%s reads %s and is not given it", function.ID, name)
			case all:
				meant[name] = true
			case own:
				meant[name+" "+function.ID] = true
			}
		}
		for name, v := range env {
			if !slices.Contains(reads, name) {
				p.add("%s is given %s and does not read it", function.ID, name)
			}
			if form := forms[name]; form != "" && !regexp.MustCompile("^"+form+"$").MatchString(v) {
				p.add("%s: %s is %q: want %s", function.ID, name, v, form)
			}
		}
	}
	for name, by := range unset {
		for function := range by {
			if !meant[strings.TrimSpace(name+" "+function)] {
				p.add("the table leaves out %s for %q, which does not read it", name, function)
			}
		}
	}
	return p
}

// forms are what variables look like.
var forms = map[string]string{
	"PSYCH_STORE_URL":      `dynamo://⟨Table⟩`,
	"PSYCH_BLOB_URL":       `s3://⟨Blobs⟩\?expected_owner=123456789012`,
	"PSYCH_WAKER_URL":      `sqs:⟨Wakes⟩`,
	"PSYCH_DEADLETTER_URL": `sqs:⟨DeadLetters⟩`,
	"PSYCH_SECRETS_URL":    `ssm:///psych/prod`,
}

var variableName = regexp.MustCompile(`^[A-Z][A-Z0-9]*_[A-Z0-9_]+$`)

var reads sync.Map // of mains, since go list takes its time

// readsOf lists the names of environment variables in the code of this module
// that a main links.
func readsOf(dir string) ([]string, error) {
	if names, ok := reads.Load(dir); ok {
		return names.([]string), nil
	}
	list := exec.Command("go", "list", "-deps", "-f", `{{if .Module}}{{if .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{end}}{{end}}`, dir)
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", dir, err)
	}
	seen := map[string]bool{}
	set := token.NewFileSet()
	for name := range strings.FieldsSeq(string(out)) {
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if s, err := strconv.Unquote(l.Value); err == nil && variableName.MatchString(s) {
					seen[s] = true
				}
			}
			return true
		})
	}
	names := slices.Sorted(maps.Keys(seen))
	reads.Store(dir, names)
	return names, nil
}

// target is a target of the Makefile, with the variable that names its main.
var target = regexp.MustCompile(`(?m)^build-(\w+):\n\t\$\(bootstrap\) \$\((\w+)\)$`)

// mainOf is the folder of a function's main.
func mainOf(function, makefile string) (string, error) {
	for _, m := range target.FindAllStringSubmatch(makefile, -1) {
		if m[1] == function {
			if dir := regexp.MustCompile(`(?m)^` + m[2] + ` \?= (\S+)$`).FindStringSubmatch(makefile); dir != nil {
				return dir[1], nil
			}
		}
	}
	return "", fmt.Errorf("the Makefile does not build %s", function)
}

func build(d *deployment) (p problems) {
	var functions, targets []string
	for _, f := range d.least.Functions() {
		functions = append(functions, f.ID)
		want(&p, f.ID+": BuildMethod", f.BuildMethod, "makefile")
		want(&p, f.ID+": CodeUri", f.Text("CodeUri"), ".")
		want(&p, f.ID+": Runtime", f.Text("Runtime"), "provided.al2023")
		want(&p, f.ID+": Handler", f.Text("Handler"), "bootstrap")
		arch := strings.Join(f.List("Architectures"), " ")
		if arch != "arm64" || !strings.Contains(d.makefile, "GOARCH ?= "+arch+"\n") {
			p.add("%s runs on %s: want arm64, and that the Makefile builds for it", f.ID, arch)
		}
		dir, err := mainOf(f.ID, d.makefile)
		if err != nil {
			p.add("%v", err)
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, dir, "main.go"), nil, parser.PackageClauseOnly)
		if err != nil || file.Name.Name != "main" {
			p.add("%s is built from %s, which is no main: %v", f.ID, dir, err)
		}
	}
	for _, m := range target.FindAllStringSubmatch(d.makefile, -1) {
		targets = append(targets, m[1])
	}
	slices.Sort(targets)
	if !slices.Equal(functions, targets) {
		p.add("the Makefile builds %v, the functions are %v", targets, functions)
	}
	for _, part := range []string{"GOOS ?= linux\n", "CGO_ENABLED=0 ", "GOOS=$(GOOS) ", "-tags lambda.norpc ", "-trimpath ", `-ldflags "-s -w" `, `-o "$(ARTIFACTS_DIR)/bootstrap"`} {
		if !strings.Contains(d.makefile, part) {
			p.add("the Makefile builds without %s", part)
		}
	}
	return p
}

func table(d *deployment) (p problems) {
	all := d.least.OfType("AWS::DynamoDB::Table")
	if len(all) != 1 {
		return append(p, fmt.Sprintf("%d tables", len(all)))
	}
	is, is2 := map[string]any{}, all[0].Properties
	for _, name := range []string{"BillingMode", "KeySchema", "AttributeDefinitions", "GlobalSecondaryIndexes"} {
		is[name] = is2[name]
	}
	definition := dynamo.Table("x")
	wanted := map[string]any{
		"BillingMode": definition.BillingMode, "KeySchema": definition.KeySchema,
		"AttributeDefinitions": definition.AttributeDefinitions, "GlobalSecondaryIndexes": definition.GlobalSecondaryIndexes,
	}
	if got, want := canonical(is), canonical(wanted); got != want {
		p.add("the table is\n%s\nand that of adapters/dynamo\n%s", got, want)
	}
	want(&p, "TTL is set", all[0].Text("TimeToLiveSpecification.Enabled"), "true")
	want(&p, "the attribute of TTL", all[0].Text("TimeToLiveSpecification.AttributeName"), dynamo.TTLAttribute)
	want(&p, "point-in-time recovery", all[0].Text("PointInTimeRecoverySpecification.PointInTimeRecoveryEnabled"), "true")
	return p
}

// canonical is the JSON of v, without what is absent.
func canonical(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // of maps and structs of texts
	}
	var plain any
	if err := json.Unmarshal(b, &plain); err != nil {
		panic(err)
	}
	b, _ = json.MarshalIndent(without(plain), "", " ")
	return string(b)
}

func without(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if v[k] = without(e); v[k] == nil {
				delete(v, k)
			}
		}
	case []any:
		for i, e := range v {
			v[i] = without(e)
		}
	}
	return v
}

func kept(d *deployment) (p problems) {
	for _, r := range slices.Concat(d.least.OfType("AWS::DynamoDB::Table"), d.least.OfType("AWS::S3::Bucket")) {
		want(&p, r.ID+": DeletionPolicy", r.DeletionPolicy, "RetainExceptOnCreate")
		want(&p, r.ID+": UpdateReplacePolicy", r.UpdateReplacePolicy, "Retain")
		if r.Get("TableName") != nil || r.Get("BucketName") != nil {
			p.add("%s has a name of its own: a second stack would meet it", r.ID)
		}
	}
	buckets := d.least.OfType("AWS::S3::Bucket")
	want(&p, "buckets", len(buckets), 1)
	for _, b := range buckets {
		for _, name := range []string{"BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"} {
			want(&p, b.ID+": "+name, b.Text("PublicAccessBlockConfiguration."+name), "true")
		}
		if got := fmt.Sprint(b.Get("OwnershipControls.Rules")); got != "[map[ObjectOwnership:BucketOwnerEnforced]]" {
			p.add("%s: its owner's rules are %s", b.ID, got)
		}
		rules, _ := b.Get("LifecycleConfiguration.Rules").([]any)
		ends := false
		for _, r := range rules {
			r, _ := r.(map[string]any)
			for name := range r {
				if !slices.Contains([]string{"Id", "Status", "Prefix", "AbortIncompleteMultipartUpload"}, name) {
					p.add("%s: a rule of its lifecycle has %s: blobs must not expire", b.ID, name)
				}
			}
			ends = ends || text(r["Status"]) == "Enabled" && text(section(r, "AbortIncompleteMultipartUpload")["DaysAfterInitiation"]) != ""
		}
		want(&p, b.ID+" ends incomplete uploads", ends, true)
	}
	for _, tbl := range d.full.OfType("AWS::DynamoDB::Table") {
		want(&p, tbl.ID+": its key", tbl.Text("SSESpecification.KMSMasterKeyId"), everything["Key"])
	}
	for _, b := range d.least.OfType("AWS::S3::BucketPolicy") {
		statements, _ := b.Get("PolicyDocument.Statement").([]any)
		deny := false
		for _, s := range statements {
			s, _ := s.(map[string]any)
			deny = deny || text(s["Effect"]) == "Deny" && text(s["Principal"]) == "*" && text(s["Action"]) == "s3:*" && len(texts(s["Resource"])) == 2 &&
				text(section(section(s, "Condition"), "Bool")["aws:SecureTransport"]) == "false"
		}
		want(&p, b.ID+" refuses plain connections", deny && d.least.Named(b.Text("Bucket")) != nil, true)
	}
	return p
}

// An operation of the OpenAPI document.
type operation struct {
	Security *[]any `json:"security"`
}

func routes(d *deployment) (p problems) {
	data, err := os.ReadFile(filepath.Join(root, "api", "openapi.json"))
	var doc struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err == nil {
		err = json.Unmarshal(data, &doc)
	}
	if err != nil || len(doc.Paths) == 0 {
		return append(p, fmt.Sprintf("api/openapi.json has %d paths: %v", len(doc.Paths), err))
	}
	var public, operations []string
	methods := map[string]bool{}
	for path, item := range doc.Paths {
		for method, raw := range item {
			if !slices.Contains([]string{"get", "post", "put", "patch", "delete"}, method) {
				continue
			}
			var o operation
			if err := json.Unmarshal(raw, &o); err != nil {
				p.add("api/openapi.json: %s %s: %v", method, path, err)
			}
			methods[strings.ToUpper(method)] = true
			operations = append(operations, strings.ToUpper(method)+" "+path)
			if o.Security != nil && len(*o.Security) == 0 {
				public = append(public, strings.ToUpper(method)+" "+path)
			}
		}
	}
	s := d.full
	var open []string
	keys := map[string]bool{}
	for _, r := range s.OfType("AWS::ApiGatewayV2::Route") {
		key := r.Text("RouteKey")
		keys[key] = true
		// The gateway answers a preflight itself where no route takes it; one that does
		// asks for a token, which a preflight has not.
		if method, _, _ := strings.Cut(key, " "); !methods[method] {
			p.add("the route %s takes %s: want routes of the API's methods alone, and none that takes OPTIONS", key, method)
		}
		switch authorizer := s.Named(r.Text("AuthorizerId")); r.Text("AuthorizationType") {
		case "NONE":
			open = append(open, key)
		case "JWT":
			if authorizer == nil || authorizer.Text("AuthorizerType") != "JWT" {
				p.add("the route %s has no authorizer", key)
			}
		default:
			p.add("the route %s has the authorization %q", key, r.Text("AuthorizationType"))
		}
		if !strings.HasPrefix(r.Text("Target"), "integrations/⟨") {
			p.add("the route %s leads to %q", key, r.Text("Target"))
		}
	}
	for _, o := range operations {
		if method, _, _ := strings.Cut(o, " "); !keys[o] && !keys[method+" /{proxy+}"] {
			p.add("no route takes %s", o)
		}
	}
	slices.Sort(open)
	slices.Sort(public)
	if !slices.Equal(open, public) {
		p.add("open are %q, public by the API %q", open, public)
	}
	for _, a := range s.OfType("AWS::ApiGatewayV2::Authorizer") {
		want(&p, "the issuer", a.Text("JwtConfiguration.Issuer"), everything["Issuer"])
		want(&p, "the audience", strings.Join(a.List("JwtConfiguration.Audience"), " "), everything["Audience"])
	}
	for _, a := range s.OfType("AWS::ApiGatewayV2::Api") {
		got := a.List("CorsConfiguration.AllowMethods")
		slices.Sort(got)
		if all := slices.Sorted(maps.Keys(methods)); !slices.Equal(got, all) {
			p.add("pages may use %v, the API has %v", got, all)
		}
	}
	for _, i := range s.OfType("AWS::ApiGatewayV2::Integration") {
		want(&p, "the format of the integration", i.Text("PayloadFormatVersion"), "2.0")
		uri := regexp.MustCompile(`/functions/(⟨\w+\.Arn⟩)/invocations$`).FindStringSubmatch(i.Text("IntegrationUri"))
		if uri == nil || s.Named(uri[1]) == nil {
			p.add("the integration leads to %q", i.Text("IntegrationUri"))
			continue
		}
		function := s.Named(uri[1])
		if t, gateway := function.Int("Timeout"), i.Int("TimeoutInMillis"); t < 1 || t*1000 >= gateway || gateway > 30000 {
			p.add("%s has %d s, and the gateway waits for %d ms of at most 30,000: want less", function.ID, t, gateway)
		}
		permitted := false
		for _, q := range s.OfType("AWS::Lambda::Permission") {
			permitted = permitted || s.Named(q.Text("FunctionName")) == function && strings.HasSuffix(q.Text("SourceArn"), ":⟨HttpApi⟩/*") && q.Text("Principal") == "apigateway.amazonaws.com"
		}
		want(&p, "the API may call "+function.ID+", and no other API", permitted, true)
	}
	return p
}

// rates are the schedule expressions of EventBridge that are a rate.
var rates = regexp.MustCompile(`^rate\((1 (minute|hour|day)|([2-9]|[1-9][0-9]+) (minutes|hours|days))\)$`)

func schedule(d *deployment) (p problems) {
	n := 0
	for _, f := range d.least.Functions() {
		for _, e := range f.Events() {
			if e.Type == "SQS" {
				continue
			}
			n++
			want(&p, f.ID+": its event", e.Type, "ScheduleV2")
			if e.Text("OmitName") != "true" || e.Get("Name") != nil {
				p.add("%s: its schedule has a name of its own: a second stack would meet it; want OmitName", f.ID)
			}
			expression := e.Text("ScheduleExpression")
			if !rates.MatchString(expression) || expression != "rate(1 minute)" {
				p.add("%s is called at %q: want rate(1 minute)", f.ID, expression)
			}
			if age := e.Int("RetryPolicy.MaximumEventAgeInSeconds"); age < 60 || age > 300 || e.Int("RetryPolicy.MaximumRetryAttempts") < 0 {
				p.add("%s: its schedule tries for %d s: want a policy of 60 to 300", f.ID, age)
			}
			want(&p, f.ID+": repetitions of what failed", f.Text("EventInvokeConfig.MaximumRetryAttempts"), "0")
			if t := f.Int("Timeout"); t > 60 {
				p.add("%s has %d s: two would run at once", f.ID, t)
			}
		}
	}
	want(&p, "schedules", n, 1)
	return p
}

func logs(d *deployment) (p problems) {
	owners := map[string]string{}
	own := func(id string, group *Resource) {
		if group == nil || group.Type != "AWS::Logs::LogGroup" || owners[group.ID] != "" {
			p.add("%s has no log of its own", id)
			return
		}
		owners[group.ID] = id
		if group.Int("RetentionInDays") < 1 {
			p.add("%s is kept for ever", group.ID)
		}
	}
	for _, f := range d.least.Functions() {
		want(&p, f.ID+": LogFormat", f.Text("LoggingConfig.LogFormat"), "JSON")
		want(&p, f.ID+": Tracing", f.Text("Tracing"), "Active")
		own(f.ID, d.least.Named(f.Text("LoggingConfig.LogGroup")))
	}
	for _, s := range d.least.OfType("AWS::ApiGatewayV2::Stage") {
		own(s.ID, d.least.Named(s.Text("AccessLogSettings.DestinationArn")))
	}
	want(&p, "log groups without an owner", len(d.least.OfType("AWS::Logs::LogGroup"))-len(owners), 0)
	return p
}

func alarms(d *deployment) (p problems) {
	watched := map[string]bool{}
	for _, a := range d.full.OfType("AWS::CloudWatch::Alarm") {
		dimensions, _ := a.Get("Dimensions").([]any)
		for _, dim := range dimensions {
			dim, _ := dim.(map[string]any)
			on := d.full.Named(text(dim["Value"]))
			if on == nil {
				p.add("%s watches %v, which is not there", a.ID, dim["Value"])
				continue
			}
			watched[a.Text("MetricName")+" "+on.ID+" "+a.Text("TreatMissingData")] = true
		}
		for _, name := range []string{"AlarmActions", "OKActions"} {
			if got := a.List(name); !slices.Equal(got, []string{everything["AlarmTopic"]}) {
				p.add("%s: %s are %v", a.ID, name, got)
			}
			if d.least.Resources[a.ID].Get(name) != nil {
				p.add("%s notifies %v, and no topic was given", a.ID, d.least.Resources[a.ID].Get(name))
			}
		}
	}
	wanted := []string{
		"ApproximateNumberOfMessagesVisible DeadLetters notBreaching", "ApproximateNumberOfMessagesNotVisible DeadLetters notBreaching", "ApproximateNumberOfMessagesVisible Wakes notBreaching",
		"5xx HttpApi notBreaching", "Invocations SweepFunction breaching", "Invocations DeadLetterFunction notBreaching",
	}
	for _, f := range d.full.Functions() {
		wanted = append(wanted, "Errors "+f.ID+" notBreaching")
	}
	for _, w := range wanted {
		if !watched[w] {
			p.add("nothing watches %s", w)
		}
	}
	return p
}

// Anywhere are the actions that have no resource to name.
var anywhere = []string{
	"xray:PutTelemetryRecords", "xray:PutTraceSegments",
	"ec2:AssignPrivateIpAddresses", "ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface", "ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets", "ec2:UnassignPrivateIpAddresses",
}

func grants(d *deployment) (p problems) {
	s := d.full
	indexes := map[string]bool{}
	for _, i := range dynamo.Table("x").GlobalSecondaryIndexes {
		indexes["⟨Table.Arn⟩/index/"+aws.ToString(i.IndexName)] = true
	}
	roles := map[string]bool{}
	for _, f := range s.Functions() {
		all, err := s.Grants(f)
		if err != nil {
			p.add("%v", err)
			continue
		}
		role := s.Named(f.Text("Role"))
		if roles[role.ID] {
			p.add("%s shares the role %s", f.ID, role.ID)
		}
		roles[role.ID] = true
		if got := canonical(role.Get("AssumeRolePolicyDocument.Statement")); got != canonical([]any{map[string]any{"Effect": "Allow", "Principal": map[string]any{"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}}) {
			p.add("%s may be assumed by %s", role.ID, got)
		}
		has := map[Grant]bool{}
		for _, g := range all {
			has[Grant{"", g.Action, g.Resource}] = true
			named := s.Named(g.Resource)
			switch {
			case strings.Contains(g.Action, "*"):
				p.add("%s: %s permits %s", role.ID, g.Sid, g.Action)
			case g.Resource == "*" && !slices.Contains(anywhere, g.Action):
				p.add("%s: %s permits %s on everything", role.ID, g.Sid, g.Action)
			case strings.HasPrefix(g.Action, "ssm:"):
				want(&p, role.ID+": its secrets", g.Resource, "arn:aws:ssm:eu-central-1:123456789012:parameter/psych/prod/*")
			case strings.HasPrefix(g.Action, "bedrock:"):
				if !strings.Contains(","+everything["BedrockModels"]+",", ","+g.Resource+",") {
					p.add("%s may ask the model %s", role.ID, g.Resource)
				}
			case g.Resource == "*", g.Resource == "⟨Blobs.Arn⟩/*", g.Resource == everything["Key"], indexes[g.Resource]:
			case named == nil:
				p.add("%s: %s permits %s on %s, which is none of the stack", role.ID, g.Sid, g.Action, g.Resource)
			case strings.HasPrefix(g.Action, "logs:") && named != s.Named(f.Text("LoggingConfig.LogGroup")):
				p.add("%s: %s permits %s on the log of another", role.ID, g.Sid, g.Action)
			}
		}
		needs := []Grant{{"", "logs:CreateLogStream", "⟨" + s.Named(f.Text("LoggingConfig.LogGroup")).ID + ".Arn⟩"}, {"", "logs:PutLogEvents", "⟨" + s.Named(f.Text("LoggingConfig.LogGroup")).ID + ".Arn⟩"},
			{"", "kms:Decrypt", everything["Key"]}, {"", "kms:GenerateDataKey", everything["Key"]}}
		for _, a := range anywhere {
			needs = append(needs, Grant{"", a, "*"})
		}
		for _, e := range f.Events() {
			if e.Type == "SQS" {
				for _, a := range []string{"sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"} {
					needs = append(needs, Grant{"", a, e.Text("Queue")})
				}
			}
		}
		for _, n := range needs {
			if !has[n] {
				p.add("%s does not permit %s on %s, which Lambda itself needs", role.ID, n.Action, n.Resource)
			}
		}
	}
	return p
}

// options are the optional parts, with what they set.
var options = []struct {
	parameters []string
	set        []setting
}{
	{[]string{"Key"}, []setting{
		{"Table", "SSESpecification.KMSMasterKeyId", everything["Key"]},
		{"Wakes", "KmsMasterKeyId", everything["Key"]},
		{"DeadLetters", "KmsMasterKeyId", everything["Key"]},
	}},
	{[]string{"CorsOrigins"}, []setting{{"HttpApi", "CorsConfiguration.AllowOrigins", "[https://a.example https://b.example]"}}},
	{[]string{"Subnets", "SecurityGroups"}, []setting{
		{"ApiFunction", "VpcConfig.SubnetIds", "[subnet-1 subnet-2]"},
		{"SweepFunction", "VpcConfig.SecurityGroupIds", "[sg-1]"},
	}},
	{[]string{"OpenAIKey"}, []setting{{"TurnFunction", "Environment.Variables.OPENAI_API_KEY", "{{resolve:secretsmanager:psych/openai}}"}}},
	{[]string{"OpenAIServer"}, []setting{{"TurnFunction", "Environment.Variables.OPENAI_BASE_URL", everything["OpenAIServer"]}}},
	{[]string{"AnthropicKey"}, []setting{{"TurnFunction", "Environment.Variables.ANTHROPIC_API_KEY", "{{resolve:secretsmanager:psych/anthropic}}"}}},
	{[]string{"SecretsPath"}, []setting{
		{"TurnFunction", "Environment.Variables.PSYCH_SECRETS_URL", "ssm:///psych/prod"},
		{"SweepFunction", "Environment.Variables.PSYCH_SECRETS_URL", "ssm:///psych/prod"},
	}},
	{[]string{"AlarmTopic"}, []setting{{"TurnErrors", "AlarmActions", "[" + everything["AlarmTopic"] + "]"}}},
}

type setting struct{ id, path, value string }

func optional(d *deployment) (p problems) {
	for _, o := range options {
		asked := maps.Clone(given)
		for _, name := range o.parameters {
			asked[name] = everything[name]
		}
		s, err := d.t.Resolve(asked)
		if err != nil {
			return append(p, err.Error())
		}
		for _, other := range options {
			for _, set := range other.set {
				want := "<nil>"
				if slices.Equal(other.parameters, o.parameters) {
					want = set.value
				}
				if got := fmt.Sprint(s.Resources[set.id].Get(set.path)); got != want {
					p.add("with %v, %s of %s is %s: want %s", o.parameters, set.path, set.id, got, want)
				}
			}
		}
	}
	for _, q := range []string{"Wakes", "DeadLetters"} {
		want(&p, q+" is encrypted by SQS", d.least.Resources[q].Text("SqsManagedSseEnabled"), "true")
		want(&p, q+" is encrypted twice", d.full.Resources[q].Text("SqsManagedSseEnabled"), "")
	}
	const sse = "BucketEncryption.ServerSideEncryptionConfiguration"
	want(&p, "the bucket's key", fmt.Sprint(d.least.Resources["Blobs"].Get(sse)), "[map[BucketKeyEnabled:true ServerSideEncryptionByDefault:map[SSEAlgorithm:AES256]]]")
	want(&p, "the bucket's key", fmt.Sprint(d.full.Resources["Blobs"].Get(sse)), "[map[BucketKeyEnabled:true ServerSideEncryptionByDefault:map[KMSMasterKeyID:"+everything["Key"]+" SSEAlgorithm:aws:kms]]]")
	for _, f := range d.least.Functions() {
		all, err := d.least.Grants(f)
		if err != nil {
			p.add("%v", err)
		}
		for _, g := range all {
			if service, _, _ := strings.Cut(g.Action, ":"); slices.Contains([]string{"bedrock", "ec2", "kms", "ssm"}, service) {
				p.add("%s may do %s, and nobody asked for it", f.ID, g.Action)
			}
		}
	}
	return p
}

func parameters(d *deployment) (p problems) {
	for _, name := range d.t.Unused() {
		p.add("the %s is not used", name)
	}
	var required []string
	for _, name := range slices.Sorted(maps.Keys(d.t.Parameters)) {
		if !d.t.Parameters[name].HasDefault {
			required = append(required, name)
		}
		if d.t.Parameters[name].Description == "" {
			p.add("the parameter %s has no description", name)
		}
	}
	if want := []string{"Audience", "Issuer", "Model"}; !slices.Equal(required, want) {
		p.add("a person must give %v: want %v", required, want)
	}
	for _, name := range []string{"Url", "TableName", "BucketName", "QueueUrl", "DeadLetterQueueUrl"} {
		if d.least.Outputs[name] == "" {
			p.add("there is no output %s", name)
		}
	}
	return p
}

// What sam and cfn-lint find: nothing, informational findings included.
func TestLint(t *testing.T) {
	sam := endpoint.SAM(t)
	for _, args := range [][]string{
		{sam, "validate", "--lint", "--template", "template.yaml"},
		{filepath.Join(filepath.Dir(sam), "cfn-lint"), "--include-checks", "I", "--template", "template.yaml", "--regions", "eu-central-1", "us-east-1"},
	} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "AWS_DEFAULT_REGION=eu-central-1", "SAM_CLI_TELEMETRY=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for name, src := range map[string]string{
		"no YAML":              "a: [",
		"nothing":              "",
		"no resources":         "Resources: {}",
		"an alias":             "Resources: {A: &a {Type: T}, B: *a}",
		"a name twice":         "Resources: {A: {Type: T}, A: {Type: T}}",
		"an unknown reference": "Resources: {A: {Type: T, Properties: {x: !Ref B}}}",
		"an unknown attribute": "Resources: {A: {Type: T, Properties: {x: !GetAtt B.Arn}}}",
		"an unknown condition": "Resources: {A: {Type: T, Properties: {x: !If [C, 1, 2]}}}",
		"an unknown function":  "Resources: {A: {Type: T, Properties: {x: !Select [0, [1]]}}}",
		"an unknown variable":  `Resources: {A: {Type: T, Properties: {x: !Sub "${B}"}}}`,
		"a missing value":      "Parameters: {P: {Type: String}}\nResources: {A: {Type: T, Properties: {x: !Ref P}}}",
	} {
		parsed, err := Parse([]byte(src))
		if err == nil {
			_, err = parsed.Resolve(nil)
		}
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	parsed, err := Parse([]byte("Resources: {A: {Type: T}}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parsed.Resolve(map[string]string{"P": "1"}); err == nil {
		t.Error("an unknown parameter: no error")
	}
	if _, err := Read("none.yaml"); !os.IsNotExist(err) {
		t.Errorf("a missing file: %v, want %v", err, fs.ErrNotExist)
	}
}
