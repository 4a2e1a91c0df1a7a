package dynamo_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"reflect"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/psych-go/psych-go/contracttest"
)

// A meter counts what a client asks for and consumes.
type meter struct {
	mu     sync.Mutex
	usage  contracttest.Usage
	failed int // conditions that did not hold
}

func (m *meter) count() contracttest.Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.usage
	u.Requests = maps.Clone(u.Requests)
	return u
}

func (m *meter) failures() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failed
}

// options makes a client ask what each request consumes, and tell m.
func (m *meter) options(o *dynamodb.Options) {
	m.usage.Requests = make(map[string]int)
	o.HTTPClient = &countingTransport{m, awshttp.NewBuildableClient()}
	o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
		return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("meter", m.handle), middleware.Before)
	})
}

func (m *meter) handle(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
	input := reflect.ValueOf(in.Parameters).Elem()
	if f := input.FieldByName("ReturnConsumedCapacity"); f.IsValid() {
		f.Set(reflect.ValueOf(types.ReturnConsumedCapacityIndexes))
	}
	out, meta, err := next.HandleInitialize(ctx, in)
	m.mu.Lock()
	defer m.mu.Unlock()
	op := strings.TrimSuffix(input.Type().Name(), "Input")
	m.usage.Requests[op]++
	var failed *types.ConditionalCheckFailedException
	if errors.As(err, &failed) {
		m.failed++
		m.usage.Writes++ // at the least, and no answer says it
	}
	if err != nil {
		return out, meta, err
	}
	sum := &m.usage.Reads
	switch op {
	case "PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem":
		sum = &m.usage.Writes
	}
	if f := reflect.ValueOf(out.Result).Elem().FieldByName("ConsumedCapacity"); f.IsValid() {
		switch c := f.Interface().(type) {
		case *types.ConsumedCapacity:
			if c != nil {
				*sum += aws.ToFloat64(c.CapacityUnits)
			}
		case []types.ConsumedCapacity:
			for _, c := range c {
				*sum += aws.ToFloat64(c.CapacityUnits)
			}
		}
	}
	return out, meta, err
}

// A countingTransport counts bodies.
type countingTransport struct {
	m    *meter
	next aws.HTTPClient
}

func (c *countingTransport) Do(req *http.Request) (*http.Response, error) {
	c.m.mu.Lock()
	c.m.usage.Sent += req.ContentLength
	c.m.mu.Unlock()
	resp, err := c.next.Do(req)
	if err == nil {
		resp.Body = &countingBody{resp.Body, c.m}
	}
	return resp, err
}

type countingBody struct {
	io.ReadCloser
	m *meter
}

func (b *countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.m.mu.Lock()
	b.m.usage.Received += int64(n)
	b.m.mu.Unlock()
	return n, err
}
