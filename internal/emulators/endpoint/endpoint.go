// Package endpoint gives tests the endpoints of emulators that
// internal/emulators, or a person, has set in the environment.
package endpoint

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Names of environment variables. Behind a prefix stands the name of the
// endpoint in upper case: PSYCH_TEST_DYNAMO_MOTO. A person may add others.
const (
	DynamoPrefix = "PSYCH_TEST_DYNAMO_"
	S3Prefix     = "PSYCH_TEST_S3_"
	SQSPrefix    = "PSYCH_TEST_SQS_"
	SSMPrefix    = "PSYCH_TEST_SSM_"

	RIE = "PSYCH_TEST_RIE" // path of the Lambda Runtime Interface Emulator

	SAMPath = "PSYCH_TEST_SAM" // path of the AWS SAM CLI; cfn-lint is beside it

	// Behind it stands the name of a server of MCP in upper case; the value is
	// the path of its script, for node.
	MCPPrefix = "PSYCH_TEST_MCP_"

	Strict = "PSYCH_TEST_EMULATORS" // "1": an endpoint that is missing fails the test
)

// An Endpoint is where a service is reached.
type Endpoint struct {
	Name string // in lower case: "moto"
	URL  string
}

// Dynamo returns the endpoints of DynamoDB, sorted by name. Without any it
// skips the test; where emulators were started, one that is missing fails it.
func Dynamo(t testing.TB) []Endpoint {
	t.Helper()
	return endpoints(t, DynamoPrefix, "dynalite", "ministack", "moto")
}

// S3 returns those of S3.
func S3(t testing.TB) []Endpoint {
	t.Helper()
	return endpoints(t, S3Prefix, "ministack", "moto")
}

// SQS returns those of SQS.
func SQS(t testing.TB) []Endpoint {
	t.Helper()
	return endpoints(t, SQSPrefix, "ministack")
}

// SSM returns those of the Parameter Store of Systems Manager.
func SSM(t testing.TB) []Endpoint {
	t.Helper()
	return endpoints(t, SSMPrefix, "ministack", "moto")
}

// Runtime returns the path of the Lambda Runtime Interface Emulator, and skips
// or fails without it as the others do.
func Runtime(t testing.TB) string {
	t.Helper()
	return path(t, RIE, "the Runtime Interface Emulator")
}

// SAM returns the path of the AWS SAM CLI, which has cfn-lint beside it, and
// skips or fails without it as the others do.
func SAM(t testing.TB) string {
	t.Helper()
	return path(t, SAMPath, "the AWS SAM CLI")
}

// MCPServer returns the command, without arguments of its own, that runs the
// reference server of MCP of that name ("everything", "filesystem"), and skips
// or fails without it as the others do.
func MCPServer(t testing.TB, name string) []string {
	t.Helper()
	return []string{"node", path(t, MCPPrefix+strings.ToUpper(name), "the reference server "+name+" of MCP")}
}

// path returns that of a program, which is in the variable env.
func path(t testing.TB, env, what string) string {
	t.Helper()
	path := os.Getenv(env)
	switch {
	case path != "":
	case os.Getenv(Strict) == "1":
		t.Fatalf("%s is 1, but %s is not set", Strict, env)
	default:
		t.Skipf("needs %s: run `go run ./internal/emulators -- go test ./...`, or set %s to its path", what, env)
	}
	return path
}

// One returns the endpoint of a name among those that get returns. Where there
// are others and not that one, it skips, or fails, as get does without any.
func One(t testing.TB, get func(testing.TB) []Endpoint, name string) Endpoint {
	t.Helper()
	all := get(t)
	i := slices.IndexFunc(all, func(e Endpoint) bool { return e.Name == name })
	if i < 0 {
		t.Skipf("no endpoint of %s among %v: run `go run ./internal/emulators -- go test ./...`", name, all)
	}
	return all[i]
}

func endpoints(t testing.TB, prefix string, want ...string) []Endpoint {
	t.Helper()
	// The test cache knows of Getenv and not of Environ: without these it
	// repeats a result of other endpoints. They are the names in use.
	for _, name := range append(slices.Clone(want), "aws", "local", "dynoxide", "versitygw") {
		os.Getenv(prefix + strings.ToUpper(name))
	}
	all := parse(os.Environ(), prefix)
	for _, name := range want {
		missing := !slices.ContainsFunc(all, func(e Endpoint) bool { return e.Name == name })
		if missing && os.Getenv(Strict) == "1" {
			t.Fatalf("%s is 1, but %s%s is not set", Strict, prefix, strings.ToUpper(name))
		}
	}
	if len(all) == 0 {
		t.Skipf("needs an emulator: run `go run ./internal/emulators -- go test ./...`, or set %s%s to an endpoint", prefix, strings.ToUpper(want[0]))
	}
	return all
}

func parse(environ []string, prefix string) []Endpoint {
	var all []Endpoint
	for _, kv := range environ {
		name, url, _ := strings.Cut(kv, "=")
		if rest, ok := strings.CutPrefix(name, prefix); ok && rest != "" && url != "" {
			all = append(all, Endpoint{strings.ToLower(rest), url})
		}
	}
	slices.SortFunc(all, func(a, b Endpoint) int { return strings.Compare(a.Name, b.Name) })
	return all
}
