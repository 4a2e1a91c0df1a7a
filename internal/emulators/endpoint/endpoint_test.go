package endpoint

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	got := parse([]string{"PATH=/bin", DynamoPrefix + "MOTO=http://a", DynamoPrefix + "=http://b", DynamoPrefix + "AWS=https://c?x=y", DynamoPrefix + "NONE=", S3Prefix + "MOTO=http://d"}, DynamoPrefix)
	want := []Endpoint{{"aws", "https://c?x=y"}, {"moto", "http://a"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A recorder is a test that ends with a skip or a failure.
type recorder struct {
	testing.TB
	skipped, failed string
}

func (r *recorder) Helper() {}
func (r *recorder) Skipf(format string, args ...any) {
	r.skipped = fmt.Sprintf(format, args...)
	panic(r)
}
func (r *recorder) Skip(args ...any) { r.skipped = fmt.Sprint(args...); panic(r) }
func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	panic(r)
}

func record(f func(testing.TB)) *recorder {
	r := new(recorder)
	func() {
		defer func() {
			if p := recover(); p != nil && p != any(r) {
				panic(p)
			}
		}()
		f(r)
	}()
	return r
}

func TestMissing(t *testing.T) {
	for _, name := range []string{"MOTO", "DYNALITE", "MINISTACK"} {
		t.Setenv(DynamoPrefix+name, "")
	}
	t.Setenv(Strict, "")
	dynamo := func(tb testing.TB) { Dynamo(tb) }
	if r := record(dynamo); !strings.Contains(r.skipped, "go run ./internal/emulators -- go test ./...") {
		t.Errorf("without endpoints: skipped for %q, failed for %q; want a skip that says how to run it", r.skipped, r.failed)
	}
	t.Setenv(Strict, "1")
	if r := record(dynamo); !strings.Contains(r.failed, DynamoPrefix+"DYNALITE is not set") {
		t.Errorf("without endpoints, strictly: skipped for %q, failed for %q; want a failure that names what is missing", r.skipped, r.failed)
	}
	for _, name := range []string{"MOTO", "DYNALITE", "MINISTACK"} {
		t.Setenv(DynamoPrefix+name, "http://"+name)
	}
	if got := One(t, Dynamo, "dynalite"); got.URL != "http://DYNALITE" {
		t.Errorf("One is %v", got)
	}
	if r := record(func(tb testing.TB) { One(tb, Dynamo, "other") }); r.skipped == "" {
		t.Error("One of an endpoint that is not there did not skip")
	}
}

func TestMissingProgram(t *testing.T) {
	for env, get := range map[string]func(testing.TB){
		RIE:                      func(tb testing.TB) { Runtime(tb) },
		SAMPath:                  func(tb testing.TB) { SAM(tb) },
		MCPPrefix + "EVERYTHING": func(tb testing.TB) { MCPServer(tb, "everything") },
	} {
		t.Setenv(env, "")
		t.Setenv(Strict, "")
		if r := record(get); !strings.Contains(r.skipped, env+" to its path") {
			t.Errorf("without %s: skipped for %q, failed for %q; want a skip that says what to set", env, r.skipped, r.failed)
		}
		t.Setenv(Strict, "1")
		if r := record(get); !strings.Contains(r.failed, env+" is not set") {
			t.Errorf("without %s, strictly: skipped for %q, failed for %q; want a failure that names what is missing", env, r.skipped, r.failed)
		}
		t.Setenv(env, "/some/where")
		if r := record(get); r.skipped != "" || r.failed != "" {
			t.Errorf("with %s: skipped for %q, failed for %q", env, r.skipped, r.failed)
		}
	}
	if got := MCPServer(t, "everything"); !slices.Equal(got, []string{"node", "/some/where"}) {
		t.Errorf("the command is %q", got)
	}
}

func TestExceptions(t *testing.T) {
	for i, e := range Exceptions {
		if e.Emulator == "" || e.Name == "" || e.Reason == "" || e.Count < 1 || slices.ContainsFunc(Exceptions[:i], func(o Exception) bool { return o.Emulator == e.Emulator && o.Name == e.Name }) {
			t.Errorf("exception %d is %v: want emulator, name, reason and count, once each", i, e)
		}
	}
	first := Exceptions[0]
	if r := record(func(tb testing.TB) { Needs(tb, first.Emulator, first.Name) }); r.skipped != first.String() {
		t.Errorf("Needs skipped for %q", r.skipped)
	}
	if r := record(func(tb testing.TB) { Needs(tb, "aws", first.Name) }); r.skipped != "" {
		t.Errorf("Needs skipped another endpoint for %q", r.skipped)
	}
	if got := Except(first.Emulator, "Other", first.Name); len(got) != 1 || got[first.Name] != first.String() {
		t.Errorf("Except is %v", got)
	}
}

func TestCheckSkips(t *testing.T) {
	// sound is what go test -v prints when the exceptions skip, no more and no less.
	var sound strings.Builder
	for _, e := range Exceptions {
		for i := range e.Count {
			fmt.Fprintf(&sound, "=== RUN   Test%s%d/x\n=== RUN   TestOther\n=== NAME  Test%s%d/x\n    a_test.go:1: %s\n--- PASS: TestOther (0.00s)\n    --- SKIP: Test%s%d/x (0.00s)\n", e.Name, i, e.Name, i, e, e.Name, i)
		}
	}
	first := Exceptions[0]
	one := fmt.Sprintf("=== RUN   TestMore\n    a_test.go:1: %s\n--- SKIP: TestMore (0.00s)\n", first)
	for _, c := range []struct{ what, log, want string }{
		{"sound", sound.String(), ""},
		{"nothing", "", "0 tests skipped for " + first.Emulator + "/" + first.Name + ", the table says"},
		{"one more", sound.String() + one, fmt.Sprintf("%d tests skipped for %s/%s, the table says %d", first.Count+1, first.Emulator, first.Name, first.Count)},
		{"another reason", sound.String() + "=== RUN   TestBare\n    a_test.go:1: no network\n--- SKIP: TestBare (0.00s)\n", "TestBare skipped for no exception"},
		{"another's reason", sound.String() + strings.Replace(one, "--- SKIP: TestMore", "--- SKIP: TestBare", 1), "TestBare skipped for no exception"},
		{"a name again", sound.String() + "=== RUN   Test" + first.Name + "0/x\n    --- SKIP: Test" + first.Name + "0/x (0.00s)\n", "skipped for no exception"},
		{"unknown", sound.String() + "=== RUN   TestA\n    a_test.go:1: exception of emulator moto/nothing: x\n--- SKIP: TestA (0.00s)\n", "1 tests skipped for moto/nothing, which is not in the table"},
	} {
		err := CheckSkips(strings.NewReader(c.log))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.what, err, c.want)
		}
	}
}
