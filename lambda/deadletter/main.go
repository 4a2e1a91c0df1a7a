// Command deadletter is the Lambda function that takes the wakes that could not
// be delivered from the dead-letter queue, and closes what they were for as
// failed. PSYCH_STORE_URL and PSYCH_WAKER_URL (the queue of wakes) name what it
// works with; with PSYCH_DEADLETTER_URL (the dead-letter queue) a message that
// fails comes again in seconds.
package main

import (
	"context"
	"log/slog"
	"os"

	awslambda "github.com/aws/aws-lambda-go/lambda"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/adapters/sqs"
	"github.com/psych-go/psych-go/lambda"
	"github.com/psych-go/psych-go/psych"
)

func main() {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	ctx := context.Background()
	var b psych.Backends
	dynamo.Register(&b)
	sqs.Register(&b)
	p, err := lambda.Open(ctx, &b, os.Getenv, &psych.Options{Logger: log})
	o := &lambda.QueueOptions{Logger: log}
	if queue := os.Getenv("PSYCH_DEADLETTER_URL"); err == nil && queue != "" {
		var dead psych.Waker
		if dead, err = b.Wakers.Open(ctx, queue); err == nil {
			o.Returner, _ = psych.As[lambda.Returner](dead)
		}
	}
	if err != nil {
		log.Error("init", "err", err)
		os.Exit(1)
	}
	awslambda.Start(lambda.DeadLetter(p.Runtime, o))
}
