// Command sweep is the Lambda function that a schedule calls to find what is
// due: Runs whose wake was lost or whose worker died, Runs past their retention,
// leftovers of deleted ones, catalogues of servers of tools that are old.
// PSYCH_STORE_URL, PSYCH_BLOB_URL and PSYCH_WAKER_URL name what it works with,
// PSYCH_SECRETS_URL where the credentials of servers are (ssm:///PREFIX or
// env://), and PSYCH_POLICY_FILE what tenants may use of servers.
package main

import (
	"context"
	"log/slog"
	"os"

	awslambda "github.com/aws/aws-lambda-go/lambda"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/adapters/mcp"
	"github.com/psych-go/psych-go/adapters/s3blob"
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
	ssm.Register(&b)
	psych.RegisterEnv(&b, os.Getenv)
	p, err := lambda.Open(context.Background(), &b, os.Getenv, &psych.Options{Connector: mcp.New(nil), Logger: log})
	if err != nil {
		log.Error("init", "err", err)
		os.Exit(1)
	}
	awslambda.Start(lambda.Sweep(p.Runtime, &lambda.SweepOptions{Logger: log}))
}
