// Command turn is the function lambda/turn of a service with a code tool and an
// adapter of its own.
package main

import (
	"context"
	"log"
	"os"

	awslambda "github.com/aws/aws-lambda-go/lambda"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/adapters/mcp"
	"github.com/psych-go/psych-go/adapters/openai"
	"github.com/psych-go/psych-go/adapters/s3blob"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/adapters/sqlite"
	"github.com/psych-go/psych-go/adapters/sqs"
	"github.com/psych-go/psych-go/examples/service"
	"github.com/psych-go/psych-go/lambda"
	"github.com/psych-go/psych-go/psych"
)

func main() {
	var b psych.Backends
	for _, register := range []func(*psych.Backends){dynamo.Register, s3blob.Register, sqs.Register, sqlite.Register, script.Register, service.Register} {
		register(&b)
	}
	openai.Register(&b, os.Getenv)
	p, err := lambda.Open(context.Background(), &b, os.Getenv, &psych.Options{Tools: service.Tools(), Connector: mcp.New(nil)})
	if err != nil {
		log.Fatal(err)
	}
	awslambda.Start(lambda.Turn(p.Runtime, &lambda.QueueOptions{Returner: p.Returner}))
}
