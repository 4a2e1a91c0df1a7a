// Command hello is a function that does nothing: what others need to start is
// measured beside it.
package main

import awslambda "github.com/aws/aws-lambda-go/lambda"

func main() { awslambda.Start(func() (string, error) { return "hello", nil }) }
