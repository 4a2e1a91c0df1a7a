package psych

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/psych-go/psych-go/psych/internal/strictjson"
	"github.com/psych-go/psych-go/psych/internal/textwin"
)

// A ToolDef is what a provider is told of a tool. Schema is JSON and never
// passes through a Go struct.
type ToolDef struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"`
}

// A ToolCall is one call that the model asked for. In a [Message] the ID is
// the one of the wire; elsewhere it is psych's own.
type ToolCall struct {
	ID         string
	ProviderID string
	Name       string
	Arguments  json.RawMessage
}

// A ToolOutput is what the model is shown of a result.
type ToolOutput struct {
	CallID  string
	Text    string
	Images  []Image // of types that ModelLimits.Images names
	IsError bool
}

// An Image is shown to a model that takes its type.
type Image struct {
	ContentType string // image/png
	Data        []byte
}

// A Call is what a running tool knows of its call.
type Call struct {
	ToolCall
	Run            RunKey
	Scope          Scope
	IdempotencyKey string       // the same when a call is run again
	Log            *slog.Logger // never nil in a tool

	outputs interface { // nil: attachments are let go
		open(name, contentType string, o AttachOptions) (io.WriteCloser, error)
	}
	progress func()
}

// Progress says that the call is alive and goes on: its time is counted anew
// from now, up to ten times that time in all. It may be called concurrently,
// and outside of a Run, where it does nothing.
func (c *Call) Progress() {
	if c.progress != nil {
		c.progress()
	}
}

// A Result is what a tool returns when a string or a JSON value will not do.
// Body is read to its end, and closed if it is an io.Closer, after the
// function returned and before its context ends; nil is empty.
type Result struct {
	ContentType string // "" is application/octet-stream
	Body        io.Reader
	IsError     bool // the tool's own failure: Body is its message
}

// Text is a Result of plain text.
func Text(s string) *Result {
	return &Result{ContentType: "text/plain", Body: strings.NewReader(s)}
}

// PageChars bounds a page of a reader: read_tool_output, and tools declared so.
const PageChars = textwin.PageChars

// ToolOptions are declared properties of a tool.
type ToolOptions struct {
	Sequential bool          // never beside its siblings of one batch
	Idempotent bool          // may be run again after a crash, with the same key
	Pages      bool          // a reader: its answers are pages of at most PageChars, shown to the model whole
	Timeout    time.Duration // of a call; zero: the Spec's limit
}

// A Tool is a Go function that a Spec may name. Made by [NewTool] or
// [NewRawTool]; its methods may be called concurrently.
type Tool struct {
	def  ToolDef
	opts ToolOptions
	run  func(context.Context, *Call) (*Result, error)
	err  error // why it can't be used; reported by New
	args *schema
}

// NewTool makes a Tool of f, which may be called concurrently.
//
// In is a struct or a map with string keys; the schema of the arguments is
// derived from it: fields by their JSON names, all required that are neither
// omitempty nor omitzero, described by their tag jsonschema:"…". Arguments
// that don't match never reach f. A number in a field of type any arrives as a
// json.Number.
//
// Out is a string (text), []byte (application/octet-stream), *[Result] (as it
// is; nil is an empty text) or anything else that encodes as JSON
// (application/json, compact; a json.RawMessage keeps its numbers and the
// order of its keys). An error is the tool's own failure, whose message the
// model is shown. So is a panic.
//
// The name is 1 to 64 of [A-Za-z0-9_-], without "__", and not one of Psych's
// own. NewTool always returns a Tool; what is wrong with it says [Tool.Err],
// and New of the runtime reports it. A nil o is the zero value.
func NewTool[In, Out any](name, description string, f func(context.Context, *Call, In) (Out, error), o *ToolOptions) *Tool {
	t := newTool(ToolDef{Name: name, Description: description}, f == nil, o)
	t.derive(reflect.TypeFor[In]())
	if out := reflect.TypeFor[Out](); !encodable(out) {
		t.fail("its result %v can't be encoded: return a string, []byte, *psych.Result or a value for JSON", out)
	}
	t.run = func(ctx context.Context, c *Call) (*Result, error) {
		var in In
		if err := t.args.decode(name, c.Arguments, &in); err != nil {
			return nil, err
		}
		out, err := f(ctx, c, in)
		if err != nil {
			if r, ok := any(out).(*Result); ok {
				r.close()
			}
			return nil, err
		}
		return resultOf(out)
	}
	return t
}

// NewRawTool makes a Tool of f with a schema of its own, a JSON object of type
// "object" (none at all stands for any arguments). f gets the arguments
// validated and otherwise as the model sent them. All else is as for
// [NewTool].
func NewRawTool(def ToolDef, f func(context.Context, *Call) (*Result, error), o *ToolOptions) *Tool {
	t := newTool(def, f == nil, o)
	t.run = f
	t.setSchema(def.Schema)
	return t
}

func newTool(def ToolDef, noFunc bool, o *ToolOptions) *Tool {
	t := &Tool{def: ToolDef{Name: def.Name, Description: def.Description}}
	if o != nil {
		t.opts = *o
	}
	if p := toolNameProblem(def.Name); p != "" {
		t.fail("%s", p)
	}
	if !utf8.ValidString(def.Description) {
		t.fail("its description is not valid UTF-8")
	}
	if noFunc {
		t.fail("its function is nil")
	}
	if t.opts.Timeout < 0 {
		t.fail("its timeout is %v: want a positive one, or 0 for the Spec's", t.opts.Timeout)
	}
	return t
}

// fail records why t can't be used, all reasons in one error.
func (t *Tool) fail(format string, args ...any) {
	if t.err == nil {
		t.err = fmt.Errorf("psych: tool %.80q: "+format+": %w", append(append([]any{t.def.Name}, args...), ErrInvalid)...)
		return
	}
	t.err = fmt.Errorf("%w; "+format, append([]any{t.err}, args...)...)
}

// setSchema keeps raw, canonical and compiled.
func (t *Tool) setSchema(raw json.RawMessage) {
	if len(raw) == 0 {
		raw = json.RawMessage(`{"type":"object"}`)
	}
	s, err := compileSchema(raw)
	if err == nil {
		err = s.checkRoot()
	}
	if err != nil {
		t.fail("its schema can't be used: %v", err)
	}
	t.args, t.def.Schema = s, s.raw
}

// Def returns the definition that providers are told, with a Schema of its own.
func (t *Tool) Def() ToolDef {
	d := t.def
	d.Schema = bytes.Clone(d.Schema)
	return d
}

// Err says why the tool can't be used, in an error matching ErrInvalid, or
// returns nil.
func (t *Tool) Err() error { return t.err }

// Call validates c.Arguments, as NewTool and NewRawTool promise, and calls the
// function, as the runtime does: a tool can be tested with it. Arguments that
// don't match give an error that says how, in at most 4,000 characters; a
// panic gives an error with its message. A nil c is a call without arguments.
// The Result is never nil without an error; the caller reads and closes its
// Body.
func (t *Tool) Call(ctx context.Context, c *Call) (*Result, error) {
	if t.err != nil {
		return nil, t.err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var own Call
	if c != nil {
		own = *c
	}
	var err error
	if own.Arguments, err = t.prepare(own.Arguments); err != nil {
		return nil, err
	}
	return t.invoke(ctx, &own)
}

// invoke calls the function with arguments that prepare returned. The error
// is a *panicError for a panic, an *argumentsError for arguments that the Go
// type refuses, or the function's own.
func (t *Tool) invoke(ctx context.Context, c *Call) (_ *Result, err error) {
	own := *c // what is filled in must not show in the caller's
	if own.Name == "" {
		own.Name = t.def.Name
	}
	if own.Log == nil {
		own.Log = slog.New(slog.DiscardHandler)
	}
	own.Arguments = bytes.Clone(own.Arguments) // the caller's may be those of a record
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{value: v, stack: debug.Stack()}
		}
	}()
	r, err := t.run(ctx, &own)
	if err != nil {
		r.close()
		return nil, err
	}
	if r == nil {
		r = Text("")
	}
	return r, nil
}

// prepare returns the arguments as the function gets them, or an
// *argumentsError: see [schema.prepare].
func (t *Tool) prepare(args json.RawMessage) (json.RawMessage, error) {
	return t.args.prepare(t.def.Name, args)
}

// A panicError is a panic in a tool. The model is shown its message; the stack
// is for the log.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("the tool panicked: %v", e.value) }

func (r *Result) close() {
	if r == nil {
		return
	}
	if c, ok := r.Body.(io.Closer); ok {
		_ = c.Close() // the tool failed already: that error is the one to tell
	}
}

// encodable reports whether a value of type t is text, bytes, a Result or, as
// far as the type alone tells, JSON.
func encodable(t reflect.Type) bool {
	if t == reflect.TypeFor[*Result]() || t.Implements(reflect.TypeFor[json.Marshaler]()) {
		return true
	}
	switch t.Kind() {
	case reflect.Func, reflect.Chan, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
		return false
	}
	return !t.Implements(reflect.TypeFor[io.Reader]())
}

// resultOf makes a Result of what a function of NewTool returned.
func resultOf(out any) (*Result, error) {
	switch out := out.(type) {
	case string:
		return Text(out), nil
	case *Result:
		return out, nil
	case Result:
		return &out, nil
	case json.RawMessage: // before []byte: it says of itself that it is JSON
		if len(out) == 0 {
			return Text(""), nil
		}
		b, err := strictjson.Compact(out)
		if err != nil {
			if !json.Valid(out) && len(out) > 0 {
				return nil, fmt.Errorf("the tool's result is not JSON: %w", err)
			}
			b = out // nested too deeply to be walked: nothing a tool returned is lost
		}
		return &Result{ContentType: "application/json", Body: bytes.NewReader(b)}, nil
	case []byte:
		return &Result{ContentType: "application/octet-stream", Body: bytes.NewReader(out)}, nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return nil, fmt.Errorf("the tool's result can't be encoded as JSON: %w", err)
	}
	return &Result{ContentType: "application/json", Body: bytes.NewReader(bytes.TrimSuffix(b.Bytes(), []byte("\n")))}, nil
}
