package psych

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// A toolEnd is how a running call ended.
type toolEnd struct {
	call      *call
	result    *ToolCallFinished
	cancelled bool // since the driver stops: nothing is known of it but what it attached
}

// A job is a call that may begin.
type job struct {
	call *call
	tool *Tool
	name string // of a server's tool, on the wire, where it was asked for through another
	safe bool   // of a server's tool: its hints say that it may be run again
	args json.RawMessage
	read *Payload // of read_tool_output: the output that is asked for
	from string   // its handle
	q    OutputQuery

	progress func() // the call is alive, and its time is counted anew
}

// runTools brings the open batch to its end: calls begin as slots come free,
// results are written when a flush window is over, the last ones with the next
// model call.
func (d *driver) runTools() error {
	b := d.state.batch
	if err := d.resolveTools(); errors.Is(err, errAborted) {
		return d.abortBatch(b, nil)
	} else if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(d.ctx)
	defer cancel(nil)
	in := make(chan event, len(b.calls)) // nobody is blocked who is left behind
	running := map[*call]bool{}
	jobs := map[*call]*job{}
	for b.open > 0 {
		if err := d.ctx.Err(); err != nil && len(running) == 0 {
			return err // nothing begins that would be cancelled at once
		}
		begun, err := d.begins(b, running, jobs)
		if err != nil {
			return err
		}
		if len(begun) > 0 || len(running) > 0 && len(d.pending) > 0 {
			err := d.flush()
			if err == nil && len(begun) > 0 {
				err = d.guard()
			}
			if err != nil {
				cancel(err)
				d.join(in, running)
				return err
			}
		}
		for _, j := range begun {
			running[j.call] = true
			go func() { in <- event{tool: d.work(ctx, j)} }()
		}
		var window <-chan time.Time
		for over := false; len(running) > 0 && !over; {
			e, err := d.wait(in, window)
			switch {
			case err != nil:
				cancel(err)
				return d.stopTools(b, in, running, err)
			case e.tool == nil:
				over = true
			default:
				delete(running, e.tool.call)
				if e.tool.cancelled { // only d.ctx cancels a call here
					cancel(d.ctx.Err())
					return d.stopTools(b, in, running, d.ctx.Err())
				}
				if err := d.emitResult(e.tool.result); err != nil {
					cancel(err)
					d.join(in, running)
					return err
				}
				if window == nil {
					timer := time.NewTimer(flushWindow)
					defer timer.Stop()
					window = timer.C
				}
			}
		}
	}
	return nil
}

// begins makes the starts of the calls that may begin now, and the failures of
// those that never can.
func (d *driver) begins(b *batch, running map[*call]bool, jobs map[*call]*job) ([]*job, error) {
	var begun []*job
	for _, c := range b.calls {
		if c.done != nil || running[c] {
			if j := jobs[c]; running[c] && j.tool.opts.Sequential {
				return nil, nil
			}
			continue
		}
		j := jobs[c]
		if j == nil {
			var failure *ToolCallFinished
			if j, failure = d.job(b, c); failure != nil {
				if err := d.emit(failure); err != nil {
					return nil, err
				}
				continue
			}
			jobs[c] = j
		}
		busy := len(running) + len(begun)
		if busy >= d.state.limits.Parallel || busy > 0 && j.tool.opts.Sequential {
			break
		}
		if err := d.emit(&ToolCallStarted{Call: c.id, Tool: j.name, Safe: j.safe}); err != nil {
			return nil, err
		}
		begun = append(begun, j)
		if j.tool.opts.Sequential {
			break
		}
	}
	return begun, nil
}

// readTool is how the driver knows the built-in reader. It is run by read.
var readTool = &Tool{def: readToolOutputDef, opts: ToolOptions{Idempotent: true, Pages: true}}

// tool finds what a name means: a built-in, or a code tool that the Version
// grants and this worker has.
func (d *driver) tool(name string) *Tool {
	switch {
	case name == readTool.def.Name:
		return readTool
	case name == loadSkillName && len(d.version.Spec.Skills) > 0:
		return skillTool(d.version.Spec.Skills)
	}
	for i := range d.version.CodeTools {
		if d.version.CodeTools[i].Name == name {
			return d.rt.tools[name]
		}
	}
	return nil
}

// isBuiltIn reports whether name is one of psych's own tools.
func isBuiltIn(name string) bool { return slices.Contains(reservedTools, name) }

func (t *Tool) idempotent() bool { return t.opts.Idempotent }

// job checks a call before it begins. A failure is its result, and nothing
// runs.
func (d *driver) job(b *batch, c *call) (*job, *ToolCallFinished) {
	fail := func(code, text string) (*job, *ToolCallFinished) { return nil, failure(c.id, code, errors.New(text)) }
	if !endOf(b.stop).run {
		return fail(CodeCut, fmt.Sprintf("This call was not run, since the answer that asked for it did not end as it should (%s). Ask for it again, with shorter arguments if they were cut.", b.stop))
	}
	args, err := c.asked.Arguments.load(d.store, d.rt.o.Blobs, d.key)
	if err != nil {
		return nil, failure(c.id, "", fmt.Errorf("the arguments of this call can't be read: %w", err))
	}
	to, err := d.reach(c.asked.Name, args)
	if err != nil {
		e := failure(c.id, codeOf(err), err)
		if d.owns(c.asked.Name) {
			e.Tool = c.asked.Name
		}
		return nil, e
	}
	j := &job{call: c, tool: to.tool, safe: to.remote && to.tool.idempotent()}
	name := c.asked.Name
	if to.name != "" && to.name != name {
		j.name, name = to.name, to.name
	}
	refuse := func(code, text string) (*job, *ToolCallFinished) {
		_, e := fail(code, text)
		e.Tool = j.name
		return nil, e
	}
	if slices.Contains(d.state.exchange.withheld, name) {
		return refuse(CodeWithheld, fmt.Sprintf("%s failed the same way %d times in a row, and is withheld until the user's next message. Go on without it.", name, maxSameFailure))
	}
	if j.tool != readTool {
		if j.args, err = j.tool.prepare(to.args); err != nil {
			return refuse(CodeArguments, err.Error())
		}
		return j, nil
	}
	handle, q, err := parseReadArgs(args)
	if err != nil {
		return fail(CodeArguments, err.Error())
	}
	of, read := d.state.output(handle)
	if of == nil {
		return fail(CodeInvalidHandle, fmt.Sprintf("%s: %.80q is no output of this conversation.", CodeInvalidHandle, handle))
	}
	j.read, j.from, j.q = read, handle, q
	return j, nil
}

// codeOf is the code of a failure that Psych wrote for the model.
func codeOf(err error) string {
	var arguments *argumentsError
	var reach *reachError
	switch {
	case errors.As(err, &arguments):
		return CodeArguments
	case errors.As(err, &reach):
		return reach.code
	}
	return ""
}

// resolveTools makes the toolset of a batch whose turn another attempt began.
func (d *driver) resolveTools() (err error) {
	if len(d.version.Spec.Connections) == 0 || d.set != nil {
		return nil
	}
	if d.opened, err = d.rt.openingAt(d.store, d.key.Tenant, d.state.opening); err != nil {
		return err
	}
	return d.resolve(false)
}

var errToolTimeout = errors.New("psych: the tool exceeded its time")

// work runs a job within its time. A tool that does not heed its context is
// left behind a little later.
func (d *driver) work(ctx context.Context, j *job) *toolEnd {
	timeout := j.tool.opts.Timeout
	if timeout <= 0 {
		timeout = time.Duration(d.state.limits.ToolTimeoutSeconds) * time.Second
	}
	ctx, alive := newAlive(ctx, timeout)
	defer alive.end()
	j.progress = alive.progress
	began := time.Now()
	done := make(chan *ToolCallFinished, 1)
	outs := &callOutputs{ctx: d.store, d: d, call: j.call.id}
	go func() {
		e := failure(j.call.id, CodePanic, errors.New("the tool ended its goroutine"))
		defer func() { // also where a tool calls runtime.Goexit
			if v := recover(); v != nil {
				e = failure(j.call.id, CodePanic, fmt.Errorf("the tool panicked while its result was read: %v", v))
			}
			done <- e
		}()
		e = d.invoke(ctx, j, outs)
	}()
	var e *ToolCallFinished
	select {
	case e = <-done:
	case <-ctx.Done():
		grace := time.NewTimer(d.grace())
		defer grace.Stop()
		select {
		case e = <-done:
		case <-grace.C:
			d.log.WarnContext(ctx, "a tool did not heed its context and is left behind", "tool", j.call.asked.Name, "call", j.call.id)
		}
	}
	end := &toolEnd{call: j.call, result: e}
	if e == nil || e.Outcome == Failed && ctx.Err() != nil {
		if context.Cause(ctx) != errToolTimeout {
			end.cancelled = true
			end.result = &ToolCallFinished{}
			d.attach(ctx, end, outs)
			return end
		}
		end.result = &ToolCallFinished{Call: j.call.id, Outcome: UnknownEnd, Code: CodeTimeout}
		text := fmt.Sprintf("The tool was stopped after %v, its time. Its outcome is unknown: it may have taken effect. Verify before you ask for it again.", timeout)
		if j.tool.idempotent() {
			end.result.Outcome = Failed
			text = fmt.Sprintf("The tool was stopped after %v, its time. It is safe to ask for it again.", timeout)
		}
		end.result.Result = newPayload("text/plain", []byte(text))
	}
	d.attach(ctx, end, outs)
	end.result.Milliseconds = time.Since(began).Milliseconds()
	return end
}

// An alive context ends when its time is over, which progress extends: each
// counts it anew, up to maxProgress times in all.
type alive struct {
	context.Context
	cancel context.CancelCauseFunc
	time   time.Duration
	last   time.Time // when it ends at the latest

	mu    sync.Mutex
	at    time.Time // when it ends
	timer *time.Timer
}

const maxProgress = 10

func newAlive(parent context.Context, d time.Duration) (context.Context, *alive) {
	a := &alive{time: d}
	a.Context, a.cancel = context.WithCancelCause(parent)
	now := time.Now()
	a.at, a.last = now.Add(d), now.Add(maxProgress*d)
	a.timer = time.AfterFunc(d, func() { a.cancel(errToolTimeout) })
	return a, a
}

func (a *alive) progress() {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := time.Now().Add(a.time)
	if at.After(a.last) {
		at = a.last
	}
	if at.After(a.at) && a.timer.Stop() {
		a.at = at
		a.timer.Reset(time.Until(at))
	}
}

func (a *alive) end() {
	a.timer.Stop()
	a.cancel(nil)
}

// Deadline implements context.Context.
func (a *alive) Deadline() (time.Time, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if outer, ok := a.Context.Deadline(); ok && outer.Before(a.at) {
		return outer, true
	}
	return a.at, true
}

// Err implements context.Context.
func (a *alive) Err() error {
	err := a.Context.Err()
	if err != nil && context.Cause(a.Context) == errToolTimeout {
		return context.DeadlineExceeded
	}
	return err
}

// attach adds what a call attached to its result, however it ended. What was
// to be kept and could not be makes it a failure.
func (d *driver) attach(ctx context.Context, end *toolEnd, outs *callOutputs) {
	at, lost, err := outs.finish(ctx, d.state.limits.OutputsRequired, int(end.result.Result.Size))
	if err != nil {
		d.log.ErrorContext(d.ctx, "an attachment can't be stored", "call", end.call.id, "err", err)
	}
	if len(lost) > 0 && end.result.Outcome == Succeeded { // else the failure says more
		text := "that could not be stored"
		code := ""
		if d.rt.o.Blobs == nil {
			code = CodeNoBlobStore
			text = fmt.Sprintf("that are larger than the %d bytes that a record holds, and this deployment has no BlobStore", resultRoom)
		}
		end.result = failure(end.call.id, code, fmt.Errorf("%s: the tool ran, but has outputs %s: %.1000q", cmp.Or(code, "outputs_required"), text, lost))
	}
	end.result.Attachments = append(end.result.Attachments, at...)
}

// resultRoom is what of a result stays in its record.
const resultRoom = MaxRecordBytes - 4096

// invoke runs the tool and takes in what it returned.
func (d *driver) invoke(ctx context.Context, j *job, outs *callOutputs) *ToolCallFinished {
	id := j.call.id
	res, err := d.result(ctx, j, outs)
	var panicked *panicError
	var broken *brokenCall
	switch {
	case errors.As(err, &panicked):
		d.log.ErrorContext(ctx, "a tool panicked", "tool", j.call.asked.Name, "call", id, "stack", string(panicked.stack))
		return failure(id, CodePanic, err)
	case j.read != nil && errors.Is(err, ErrInvalid):
		return failure(id, CodeArguments, err)
	case errors.As(err, &broken) && !j.tool.idempotent():
		e := failure(id, "", fmt.Errorf("%w. The outcome of this call is unknown: it may have taken effect. Verify before you ask for it again", broken))
		e.Outcome = UnknownEnd
		return e
	case err != nil:
		return failure(id, codeOf(err), err)
	case res == nil:
		res = &Result{ContentType: "text/plain"}
	}
	if res.Body == nil {
		res.Body = strings.NewReader("")
	}
	if c, ok := res.Body.(io.Closer); ok {
		defer c.Close()
	}
	e := &ToolCallFinished{Call: id, Outcome: Succeeded}
	if res.IsError {
		e.Outcome = Failed
	}
	e.Result, err = d.capture(ctx, res, id, outs)
	var body *bodyError
	switch {
	case errors.Is(err, ErrNoBlobStore):
		return failure(id, CodeNoBlobStore, fmt.Errorf("%s: the tool ran, but its result is larger than the %d bytes that a record holds, and this deployment has no BlobStore. Ask for less", CodeNoBlobStore, resultRoom))
	case errors.As(err, &body):
		return failure(id, "", fmt.Errorf("the tool ran, but its result could not be read to its end: %w", body.err))
	case err != nil: // whose text is of addresses, which are not the model's business
		d.log.ErrorContext(ctx, "a result can't be stored", "call", id, "err", err)
		return failure(id, "", errors.New("the tool ran, but its result could not be stored"))
	}
	// The head of a page stands before its text.
	e.Page = j.tool.opts.Pages && e.Result.Ref == nil && e.Result.Chars <= PageChars+1000
	return e
}

// failure is the result of a call that failed.
func failure(id, code string, err error) *ToolCallFinished {
	text := firstChars([]byte(err.Error()), 16<<10)
	return &ToolCallFinished{Call: id, Outcome: Failed, Code: code, Result: newPayload("text/plain", text)}
}

// capture takes in a result, and tries again what failed for a moment where
// the result can be read again. Of a body that fails, or whose time is over, in
// the middle, what came before is kept as an attachment.
func (d *driver) capture(ctx context.Context, res *Result, id string, outs *callOutputs) (p Payload, err error) {
	seeker, again := res.Body.(io.Seeker)
	segment := resultSegment(id, d.epoch)
	body := &partial{ctx: ctx, r: res.Body}
	err = repeat(ctx, func() error {
		p, err = capture(d.store, body, res.ContentType, resultRoom, d.rt.o.Blobs, d.blobKey(segment))
		var broken *bodyError
		switch {
		case err == nil || certain(err):
			return err
		case !again || errors.As(err, &broken):
			return errors.Join(err, errOnce)
		}
		if _, serr := seeker.Seek(0, io.SeekStart); serr != nil {
			return errors.Join(err, errOnce)
		}
		body.err = nil
		return err
	})
	if err == nil && body.err != nil {
		if p.Size > 0 {
			outs.add("partial result", p)
		}
		return Payload{}, &bodyError{body.err}
	}
	return p, err
}

// A partial body ends where its reader fails, and says why.
type partial struct {
	ctx context.Context
	r   io.Reader
	err error
}

func (b *partial) Read(p []byte) (int, error) {
	if b.err == nil {
		b.err = b.ctx.Err()
	}
	if b.err != nil {
		return 0, io.EOF
	}
	n, err := b.r.Read(p)
	if err != nil && err != io.EOF {
		b.err, err = err, io.EOF
	}
	return n, err
}

// errOnce makes repeat try once: it counts as certain.
var errOnce = fmt.Errorf("psych: the result can be read once: %w", ErrInvalid)

// result calls the tool, or reads an output.
func (d *driver) result(ctx context.Context, j *job, outs *callOutputs) (*Result, error) {
	if j.read != nil {
		w, err := readOutput(ctx, j.read, d.rt.o.Blobs, d.key, j.q)
		switch {
		case err == nil:
		case errors.Is(err, ErrInvalid), ctx.Err() != nil:
			return nil, err
		default: // whose text is of addresses, which are not the model's business
			d.log.ErrorContext(ctx, "an output can't be read", "handle", j.from, "err", err)
			if j.read.letGo() {
				return nil, fmt.Errorf("of %s only a preview was kept: there is no more to read", j.from)
			}
			if errors.Is(err, ErrNotFound) {
				return nil, fmt.Errorf("the bytes of %s are gone: they were deleted behind the log", j.from)
			}
			return nil, fmt.Errorf("the bytes of %s can't be read now; try again later", j.from)
		}
		return Text(w.answer()), nil
	}
	c := &Call{
		ToolCall: ToolCall{ID: j.call.id, ProviderID: j.call.asked.ProviderID, Name: j.call.asked.Name, Arguments: j.args},
		Run:      d.key, Scope: d.info.Scope,
		IdempotencyKey: d.idempotencyKey(j.call.id),
		Log:            d.log.With("call", j.call.id, "tool", j.call.asked.Name),
		outputs:        outs,
		progress:       j.progress,
	}
	return j.tool.invoke(ctx, c)
}

// emitResult is emit of a result that may be too large for a record, with all
// that was attached to it: then the call has failed, and keeps what can be kept.
func (d *driver) emitResult(e *ToolCallFinished) error {
	err := d.emit(e)
	code := ""
	switch {
	case errors.Is(err, ErrNoBlobStore):
		code = CodeNoBlobStore
		err = fmt.Errorf("%s: the tool ran, but its result and its outputs are larger together than a record holds, and this deployment has no BlobStore", code)
	case errors.Is(err, ErrTooLarge):
		err = errors.New("the tool ran, but its result and its outputs are larger together than a record holds")
	default:
		return err
	}
	f := failure(e.Call, code, err)
	f.Attachments, f.Milliseconds = e.Attachments, e.Milliseconds
	return d.emit(f)
}

// join waits for cancelled calls, and returns how they ended.
func (d *driver) join(in <-chan event, running map[*call]bool) (ends []*toolEnd) {
	grace := time.NewTimer(d.grace() + d.o.Margin/10) // work leaves a tool behind a little earlier
	defer grace.Stop()
	for len(running) > 0 {
		select {
		case e := <-in:
			delete(running, e.tool.call)
			ends = append(ends, e.tool)
		case <-grace.C:
			return ends
		}
	}
	return ends
}

// stopTools ends a batch whose contexts were cancelled for why. Results in hand
// are kept. For an abort every other call is settled here, in one append with
// the abort and the close; else they are left to the next attempt.
func (d *driver) stopTools(b *batch, in <-chan event, running map[*call]bool, why error) error {
	kept := map[*call][]Attachment{} // of calls that were stopped
	for _, end := range d.join(in, running) {
		switch {
		case errors.Is(why, ErrLeaseLost):
		case end.cancelled:
			kept[end.call] = end.result.Attachments
		default:
			if err := d.emitResult(end.result); err != nil {
				return err
			}
		}
	}
	if !errors.Is(why, errAborted) {
		return why
	}
	return d.abortBatch(b, kept)
}

// abortBatch settles what is open of a batch, with what was attached, and
// delivers the abort.
func (d *driver) abortBatch(b *batch, kept map[*call][]Attachment) error {
	for _, c := range b.calls {
		if c.done == nil {
			e := settlement(c, "the exchange was aborted")
			e.Attachments = kept[c]
			if err := d.emit(e); err != nil {
				return err
			}
		}
	}
	return d.takeAborts()
}

// offload moves an inline payload to the BlobStore.
func (d *driver) offload(p *Payload, segment string) error {
	return repeat(d.store, func() error {
		moved, err := capture(d.store, bytes.NewReader(p.Inline), p.ContentType, 0, d.rt.o.Blobs, d.blobKey(segment))
		if err == nil {
			*p = moved
		}
		return err
	})
}
