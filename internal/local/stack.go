package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// A stack is the template as it was deployed to an emulator.
type stack struct {
	name, endpoint string
	outputs        map[string]string
}

// A deployment says what to deploy.
type deployment struct {
	sam        string // path of the SAM CLI
	endpoint   string // of the emulator
	root       string // of the repository
	dir        string // of what is built
	name       string
	parameters map[string]string
	mains      map[string]string // variables of the Makefile
	log        io.Writer
}

// region is the emulator's, whatever sam deploy --guided put into samconfig.toml.
const region = "us-east-1"

// credentials are what the emulator takes.
var credentials = []string{"AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test", "AWS_REGION=" + region, "AWS_DEFAULT_REGION=" + region}

// deploy runs sam build and sam deploy, and then does what the emulator leaves
// out.
func (d *deployment) deploy(ctx context.Context) (*stack, error) {
	build := []string{"build", "--template", "template.yaml", "--build-dir", filepath.Join(d.dir, "build")}
	env := []string{"GOOS=" + runtime.GOOS, "GOARCH=" + runtime.GOARCH} // the emulator runs functions on this machine
	for _, name := range slices.Sorted(maps.Keys(d.mains)) {
		env = append(env, name+"="+d.mains[name])
	}
	if err := d.run(ctx, env, build...); err != nil {
		return nil, err
	}
	args := []string{
		"deploy", "--template-file", filepath.Join(d.dir, "build", "template.yaml"), "--stack-name", d.name,
		"--config-file", filepath.Join(d.root, "samconfig.toml"), "--region", region, "--no-confirm-changeset", "--no-progressbar", "--parameter-overrides",
	}
	for _, name := range slices.Sorted(maps.Keys(d.parameters)) {
		args = append(args, name+"="+d.parameters[name])
	}
	if err := d.run(ctx, nil, args...); err != nil {
		return nil, err
	}
	s := &stack{name: d.name, endpoint: d.endpoint}
	if err := s.read(ctx); err != nil {
		return nil, err
	}
	return s, s.complete(ctx, d.parameters["Concurrency"])
}

func (d *deployment) run(ctx context.Context, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, d.sam, args...)
	cmd.Dir = d.root
	cmd.Env = slices.Concat(os.Environ(), credentials, []string{"AWS_ENDPOINT_URL=" + d.endpoint, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=false", "SAM_CLI_TELEMETRY=0"}, env)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(d.log, &out), io.MultiWriter(d.log, &out)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("sam %s: %w\n%s", args[0], err, out.Bytes()[max(0, out.Len()-4000):])
	}
	return nil
}

// read reads the outputs.
func (s *stack) read(ctx context.Context) error {
	form := url.Values{"Action": {"DescribeStacks"}, "StackName": {s.name}, "Version": {"2010-05-15"}}
	body, err := s.call(ctx, "cloudformation", http.MethodPost, "/", "application/x-www-form-urlencoded", form.Encode())
	if err != nil {
		return err
	}
	var answer struct {
		Outputs []struct {
			Key   string `xml:"OutputKey"`
			Value string `xml:"OutputValue"`
		} `xml:"DescribeStacksResult>Stacks>member>Outputs>member"`
	}
	if err := xml.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("describe stack %s: %w", s.name, err)
	}
	s.outputs = map[string]string{}
	for _, o := range answer.Outputs {
		s.outputs[o.Key] = o.Value
	}
	if s.outputs["Url"] == "" {
		return fmt.Errorf("stack %s has no output Url: %s", s.name, body)
	}
	return nil
}

// complete sets the concurrency of what a queue invokes once more: the emulator
// keeps that of a parameter as a text, and then does not poll at all.
func (s *stack) complete(ctx context.Context, concurrency string) error {
	body, err := s.call(ctx, "lambda", http.MethodGet, "/2015-03-31/event-source-mappings?FunctionName="+url.QueryEscape(s.outputs["TurnFunctionName"]), "", "")
	if err != nil {
		return err
	}
	var answer struct {
		EventSourceMappings []struct{ UUID string }
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("the event sources of %s are %s: %w", s.outputs["TurnFunctionName"], body, err)
	}
	if len(answer.EventSourceMappings) != 1 {
		return fmt.Errorf("the event sources of %s are %s: want one", s.outputs["TurnFunctionName"], body)
	}
	_, err = s.call(ctx, "lambda", http.MethodPut, "/2015-03-31/event-source-mappings/"+answer.EventSourceMappings[0].UUID, "application/json",
		fmt.Sprintf(`{"ScalingConfig":{"MaximumConcurrency":%s}}`, concurrency))
	return err
}

// call makes a request of an AWS service, as far as an emulator looks at it.
func (s *stack) call(ctx context.Context, service, method, path, contentType, body string, header ...string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.endpoint+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/"+region+"/"+service+"/aws4_request, SignedHeaders=host, Signature=none")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s of %s: %s: %.500s", method, path, service, resp.Status, b)
	}
	return b, err
}
