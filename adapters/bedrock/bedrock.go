package bedrock

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/bedrockruntime"
	"github.com/aws/aws-sdk-go-v2/service/bedrockruntime/types"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/psych-go/psych-go/internal/messages"
	"github.com/psych-go/psych-go/psych"
)

// Options of a [Model]. The zero value works.
type Options struct {
	// Limits are what the Model declares; nil is those of Anthropic: names of 64
	// characters, property names of 64 of A-Z, a-z, 0-9, _, . and -, images and
	// PDFs of 5 MiB as base64.
	Limits *psych.ModelLimits

	// MaxTokens is max_tokens where a Spec has no max_output_tokens; 0 is 32,000
	// (4,096 for Claude 3).
	MaxTokens int

	// CacheTTL is how long the provider keeps what the markers of a request end:
	// "5m" (or ""), "1h", which only some models take, or "none" for no markers.
	// SystemCacheTTL is that of zones 1 and 2; "" is CacheTTL. A longer one can't
	// stand behind a shorter.
	CacheTTL       string
	SystemCacheTTL string

	// Thinking, when not "", is what thinking is: "adaptive", "between_tools",
	// "disabled", "none" for not sending it, or a budget in tokens, such as
	// "8000".
	Thinking string

	// Like is the model whose rules for reasoning hold, where the id does not
	// tell, as that of an application inference profile: "claude-opus-5-5".
	Like string

	// FreeBlocks leaves out what is to happen to reasoning whose prefix changed.
	FreeBlocks bool
}

// A Model calls one model. It is safe for concurrent use.
type Model struct {
	id     string
	client *bedrockruntime.Client
	format *messages.Format
	start  []byte            // of each body
	err    *psych.ModelError // why it can't be called
}

var _ psych.Model = (*Model)(nil)

// New returns a Model that asks for id: that of a model or of an inference
// profile, or its ARN. It does no IO. What of id and options can't be used is
// reported by each Generate, in an error matching psych.ErrInvalid.
func New(client *bedrockruntime.Client, id string, o *Options) *Model {
	if o == nil {
		o = &Options{}
	}
	m, err := build(client, id, o)
	if err != nil {
		err = fmt.Errorf("bedrock: %w", err)
		m.err = &psych.ModelError{Message: err.Error(), Err: err}
	}
	return m
}

// build makes a Model that has a Codec even where it can't be called.
func build(client *bedrockruntime.Client, id string, o *Options) (*Model, error) {
	m := &Model{id: id, client: client}
	var err error
	m.format, err = messages.New(messages.Options{
		Model: id, Like: o.Like, CacheTTL: o.CacheTTL, SystemCacheTTL: o.SystemCacheTTL, Thinking: o.Thinking,
		MaxTokens: o.MaxTokens, FreeBlocks: o.FreeBlocks, Limits: o.Limits,
	})
	if err != nil {
		m.format, _ = messages.New(messages.Options{Model: id})
		return m, err
	}
	if id == "" {
		return m, fmt.Errorf("the model has no id: %w", psych.ErrInvalid)
	}
	m.start = []byte(`"anthropic_version":"bedrock-2023-05-31"`)
	if m.format.Binds() {
		m.start = append(m.start, `,"anthropic_beta":["`+messages.BindingBeta+`"]`...)
	}
	return m, nil
}

// String names the model and its region.
func (m *Model) String() string { return m.id + " in " + m.client.Options().Region }

// Codec returns the encoding of the Messages API.
func (m *Model) Codec() psych.Codec { return m.format.Codec() }

// Generate makes one request and reads its stream. Request.Model is not looked
// at: a Model has an id of its own.
//
// An empty Delta says that the stream is open and holds no piece yet.
//
// A *psych.ModelError is transient for a connection that fails, a stream that
// is cut, throttling, a model that is not ready, takes too long or fails, and
// Bedrock's own failures; not for what is refused: permissions, a model that is
// not there, what does not validate, a quota that waiting does not raise. An
// answer whose stop_reason came is whole. Answers and errors have the id
// of the request. CacheKey is not sent: the provider's cache goes by the prefix
// alone.
func (m *Model) Generate(ctx context.Context, req *psych.Request, on func(psych.Delta)) (*psych.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if m.err != nil {
		return nil, m.err
	}
	body, err := m.format.Body(m.start, req)
	if err != nil {
		return nil, m.failure(err.Error(), "", err)
	}
	out, err := m.client.InvokeModelWithResponseStream(ctx, &bedrockruntime.InvokeModelWithResponseStreamInput{
		ModelId:     &m.id,
		ContentType: aws.String("application/json"),
		Accept:      aws.String("application/json"),
		Body:        []byte{}, // see sendBody
	}, sendBody(body))
	if ctx.Err() != nil {
		if err == nil {
			out.GetStream().Close()
		}
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, m.refused(err)
	}
	stream := out.GetStream()
	defer stream.Close()
	resp, err := m.read(ctx, out, stream, on)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	resp.Sent = body.Chars
	return resp, nil
}

// sendBody has the SDK read the parts of a body where it would read bytes of an
// input, and try once.
func sendBody(b *messages.Body) func(*bedrockruntime.Options) {
	return func(o *bedrockruntime.Options) {
		o.Retryer = aws.NopRetryer{}
		o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
			return stack.Serialize.Add(middleware.SerializeMiddlewareFunc("psych.Body", func(ctx context.Context, in middleware.SerializeInput, next middleware.SerializeHandler) (middleware.SerializeOutput, middleware.Metadata, error) {
				req, ok := in.Request.(*smithyhttp.Request)
				if !ok {
					return middleware.SerializeOutput{}, middleware.Metadata{}, fmt.Errorf("unknown transport type %T", in.Request)
				}
				req, err := req.SetStream(b.Reader())
				if err != nil {
					return middleware.SerializeOutput{}, middleware.Metadata{}, err
				}
				in.Request = req
				return next.HandleSerialize(ctx, in)
			}), middleware.After)
		})
	}
}

// read assembles the stream of an answer.
func (m *Model) read(ctx context.Context, out *bedrockruntime.InvokeModelWithResponseStreamOutput, stream *bedrockruntime.InvokeModelWithResponseStreamEventStream, on func(psych.Delta)) (*psych.Response, error) {
	id, _ := awsmiddleware.GetRequestIDMetadata(out.ResultMetadata)
	told := false
	tell := on
	if on != nil {
		tell = func(d psych.Delta) { told = true; on(d) }
	}
	a := messages.NewAssembler(tell)
	for {
		var event types.ResponseStream
		var ok bool
		select {
		case event, ok = <-stream.Events():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if !ok {
			break
		}
		told = false
		if chunk, is := event.(*types.ResponseStreamMemberChunk); is {
			sent, err := a.Add(chunk.Value.Bytes)
			if sent != nil {
				return nil, m.refusedInStream(id, sent)
			}
			if err != nil {
				return nil, m.garbled(id, err)
			}
		}
		if on != nil && !told {
			on(psych.Delta{}) // slow, not idle
		}
	}
	if err := stream.Err(); err != nil && !a.Whole() {
		return nil, m.broken(id, err)
	}
	if !a.Whole() {
		return nil, m.unfinished(id, a.Begun())
	}
	return a.Response(messages.Readable(id)), nil
}

// unfinished is a stream that ended in order, and too early.
func (m *Model) unfinished(id string, begun bool) *psych.ModelError {
	what := messages.ErrUnfinished.Error()
	if !begun {
		what = "its stream held no answer at all: is it a model of Anthropic's?"
	}
	e := m.failure(what, id, errors.Join(messages.ErrUnfinished, io.ErrUnexpectedEOF))
	e.Transient = true
	return e
}
