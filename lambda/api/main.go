// Command api is the Lambda function behind an HTTP API with a JWT authorizer,
// whose verified claims say whom a request is for: the tenant stands in the
// claim that PSYCH_TENANT_CLAIM names ("tenant"), the principal in that of
// PSYCH_PRINCIPAL_CLAIM ("sub"). Runs are kept for PSYCH_RETENTION_DAYS from
// their creation (0 or unset: for ever). PSYCH_STORE_URL, PSYCH_BLOB_URL and
// PSYCH_WAKER_URL name what it works with. A program with code tools of its own
// is this main with Options.Tools.
package main

import (
	"context"
	"log/slog"
	"os"

	awslambda "github.com/aws/aws-lambda-go/lambda"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/adapters/s3blob"
	"github.com/psych-go/psych-go/adapters/sqs"
	"github.com/psych-go/psych-go/api"
	"github.com/psych-go/psych-go/lambda"
	"github.com/psych-go/psych-go/psych"
)

func main() {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	var b psych.Backends
	dynamo.Register(&b)
	s3blob.Register(&b)
	sqs.Register(&b)
	p, err := lambda.Open(context.Background(), &b, os.Getenv, &psych.Options{Logger: log})
	var h *api.Handler
	if err == nil {
		auth := api.Claims{Tenant: os.Getenv("PSYCH_TENANT_CLAIM"), Principal: os.Getenv("PSYCH_PRINCIPAL_CLAIM")}
		h, err = api.New(p.Runtime, p.Store, auth, &api.Options{MaxAnswer: lambda.MaxAnswer, Logger: log})
	}
	if err != nil {
		log.Error("init", "err", err)
		os.Exit(1)
	}
	awslambda.Start(lambda.API(h, &lambda.APIOptions{Logger: log}))
}
