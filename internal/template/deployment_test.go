package template

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func deploymentPage(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "docs", "deployment.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The page names each alarm, and nothing that neither template nor AWS has.
func TestDeploymentNames(t *testing.T) {
	page := deploymentPage(t)
	template, makefile := files(t)
	d, err := read(template, makefile)
	if err != nil {
		t.Fatal(err)
	}
	var alarms, listed []string
	for _, a := range d.least.OfType("AWS::CloudWatch::Alarm") {
		alarms = append(alarms, a.ID)
	}
	_, section, _ := strings.Cut(page, "\n## Alarms\n")
	section, logs, _ := strings.Cut(section, "\n| `msg` |")
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(section, -1) {
		listed = append(listed, m[1])
	}
	slices.Sort(listed)
	if !slices.Equal(alarms, listed) {
		t.Errorf("docs/deployment.md has the alarms %v, the template %v", listed, alarms)
	}

	known := map[string]bool{"ThrottledRequests": true, "MemorySize": true, "RetainExceptOnCreate": true} // of AWS
	for name := range d.t.Parameters {
		known[name] = true
	}
	for name := range d.t.Resources {
		known[name] = true
	}
	used := map[string]bool{}
	for _, m := range regexp.MustCompile("`([A-Z][a-z]+[A-Za-z]*)`").FindAllStringSubmatch(page, -1) {
		if used[m[1]] = true; !known[m[1]] {
			t.Errorf("docs/deployment.md names %s, which the template does not have", m[1])
		}
	}
	for _, name := range []string{"Key", "Subnets", "SecurityGroups", "SecretsPath", "OpenAIKey", "AnthropicKey", "RetentionDays", "Concurrency", "AlarmTopic"} {
		if !used[name] {
			t.Errorf("docs/deployment.md does not tell of the parameter %s", name)
		}
	}
	for _, m := range regexp.MustCompile(`\$\(out (\w+)\)`).FindAllStringSubmatch(page, -1) {
		if d.t.Outputs[m[1]] == nil {
			t.Errorf("docs/deployment.md asks for the output %s, which the template does not have", m[1])
		}
	}
	for _, m := range regexp.MustCompile(`\$\(log (\w+)\)`).FindAllStringSubmatch(page, -1) {
		if r := d.t.Resources[m[1]]; r == nil || r.Type != "AWS::Logs::LogGroup" {
			t.Errorf("docs/deployment.md reads the log %s, which the template does not have", m[1])
		}
	}

	// What logs say stands in the code.
	var code strings.Builder
	for _, dir := range []string{"psych", "api", "lambda", "lambda/turn"} {
		names, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(b)
		}
	}
	lines := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(logs, -1)
	if len(lines) < 5 {
		t.Errorf("docs/deployment.md has %d lines of logs", len(lines))
	}
	for _, m := range lines {
		if !regexp.MustCompile(`\.(Info|Warn|Error)(Context)?\((ctx, |d\.ctx, |r\.Context\(\), )?"` + m[1]).MatchString(code.String()) {
			t.Errorf("docs/deployment.md: nothing logs %q", m[1])
		}
	}
}

// The edit of the template that the page gives makes all functions work on the
// table and the bucket that it is told, and permits them the same there.
func TestOtherTable(t *testing.T) {
	var recipe string
	for _, m := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(deploymentPage(t), -1) {
		if strings.HasPrefix(m[1], "sed ") {
			recipe = m[1]
		}
	}
	template, makefile := files(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "template.yaml"), template, 0o600); err != nil {
		t.Fatal(err)
	}
	sh := exec.Command("sh", "-e", "-c", recipe)
	sh.Dir, sh.Env = dir, append(os.Environ(), "TABLE=there", "BUCKET=blobs-of-there")
	if out, err := sh.CombinedOutput(); err != nil || recipe == "" {
		t.Fatalf("%s: %v\n%s", recipe, err, out)
	}
	other, err := os.ReadFile(filepath.Join(dir, "other.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	was, err := read(template, makefile)
	if err != nil {
		t.Fatal(err)
	}
	is, err := read(other, makefile)
	if err != nil {
		t.Fatal(err)
	}
	moved := strings.NewReplacer(
		"⟨Table⟩", "there", "⟨Table.Arn⟩", "arn:aws:dynamodb:eu-central-1:123456789012:table/there",
		"⟨Blobs⟩", "blobs-of-there", "⟨Blobs.Arn⟩", "arn:aws:s3:::blobs-of-there",
	)
	n := 0
	for _, f := range was.full.Functions() {
		env := is.full.Resources[f.ID].Env()
		for name, v := range f.Env() {
			if env[name] != moved.Replace(v) {
				t.Errorf("%s: %s is %q, want %q", f.ID, name, env[name], moved.Replace(v))
			}
		}
		before, err := was.full.Grants(f)
		if err != nil {
			t.Fatal(err)
		}
		after, err := is.full.Grants(is.full.Resources[f.ID])
		if err != nil {
			t.Fatal(err)
		}
		for i := range before {
			if before[i].Resource != moved.Replace(before[i].Resource) {
				n++
			}
			before[i].Resource = moved.Replace(before[i].Resource)
		}
		if !slices.Equal(before, after) {
			t.Errorf("%s is permitted %v, want %v", f.ID, after, before)
		}
	}
	if n == 0 {
		t.Error("no permission is on another table")
	}
	for name, v := range was.full.Outputs {
		if is.full.Outputs[name] != moved.Replace(v) {
			t.Errorf("the output %s is %q, want %q", name, is.full.Outputs[name], moved.Replace(v))
		}
	}
	// What the stack has of its own, the bucket's policy above all, is as it was.
	for id, r := range was.full.Resources {
		if r.Type != "AWS::Serverless::Function" && r.Type != "AWS::IAM::Role" && canonical(maps.Clone(r.Properties)) != canonical(maps.Clone(is.full.Resources[id].Properties)) {
			t.Errorf("%s is changed", id)
		}
	}
}
