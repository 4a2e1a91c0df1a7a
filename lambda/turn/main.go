// Command turn is the Lambda function that drives Runs: it takes wakes from an
// SQS queue. PSYCH_STORE_URL, PSYCH_BLOB_URL, PSYCH_WAKER_URL and PSYCH_MODEL
// name what it works with, PSYCH_SECRETS_URL where the credentials of servers of
// tools are (ssm:///PREFIX or env://), and PSYCH_POLICY_FILE what tenants may
// use of servers. It starts no commands. A program with code tools of its own is
// this main with Options.Tools.
package main

import (
	"context"
	"log/slog"
	"os"

	awslambda "github.com/aws/aws-lambda-go/lambda"

	"github.com/psych-go/psych-go/adapters/anthropic"
	"github.com/psych-go/psych-go/adapters/bedrock"
	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/adapters/mcp"
	"github.com/psych-go/psych-go/adapters/openai"
	"github.com/psych-go/psych-go/adapters/s3blob"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/adapters/sqs"
	"github.com/psych-go/psych-go/adapters/ssm"
	"github.com/psych-go/psych-go/lambda"
	"github.com/psych-go/psych-go/psych"
)

func main() {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	var b psych.Backends
	dynamo.Register(&b)
	s3blob.Register(&b)
	sqs.Register(&b)
	openai.Register(&b, os.Getenv)
	anthropic.Register(&b, os.Getenv)
	bedrock.Register(&b)
	script.Register(&b)
	ssm.Register(&b)
	psych.RegisterEnv(&b, os.Getenv)
	p, err := lambda.Open(context.Background(), &b, os.Getenv, &psych.Options{Connector: mcp.New(nil), Logger: log})
	if err != nil {
		log.Error("init", "err", err)
		os.Exit(1)
	}
	awslambda.Start(lambda.Turn(p.Runtime, &lambda.QueueOptions{Returner: p.Returner, Logger: log}))
}
