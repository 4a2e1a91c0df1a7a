package mcp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/psych-go/psych-go/psych"
)

// CommandEnv are the variables of this process that a command sees, beside
// those of its Secret. What else the process has in its environment may be
// secret.
var CommandEnv = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ"}

const (
	writeWait   = 30 * time.Second // for a command to read a message of no call
	writeGrace  = time.Second      // behind the end of a call, for it to read what was begun
	quitWait    = time.Second      // for it to end by itself when its input has ended
	stopWait    = time.Second      // between SIGTERM and SIGKILL
	exitWait    = time.Second      // between the end of its output and its own
	stderrBytes = 8 << 10          // what is kept of what it says beside the protocol
	stderrShown = 1000             // what an error shows of it
	edgeBytes   = 512              // of a message that is too large, at each end, for its id
)

// A process is a command that speaks MCP on its standard streams, a message a
// line. It is the SDK's transport and connection.
type process struct {
	s       *session
	command string
	cmd     *exec.Cmd
	stdin   *os.File
	stdout  *os.File
	stderr  *os.File
	r       *bufio.Reader
	queue   []jsonrpc.Message
	noise   tail // of stderr, and of what is no message on stdout
	writing sync.Mutex
	closing sync.Once
	exited  chan struct{} // closed when the command has ended, and its group with it
	silent  chan struct{} // closed when nobody can say more on stderr
}

var (
	_ sdk.Transport  = (*process)(nil)
	_ sdk.Connection = (*process)(nil)
)

// startProcess starts a command in a process group of its own.
func startProcess(s *session, command []string, env map[string]string) (_ *process, err error) {
	if !supported {
		return nil, fmt.Errorf("commands can't be run on this system: %w", errors.ErrUnsupported)
	}
	var args []string
	for _, a := range command {
		args = append(args, fill(a, env))
	}
	path, err := lookPath(args[0], env)
	if err != nil {
		return nil, &fault{fmt.Sprintf("the program %.200q can't be started: %v", command[0], err), []error{psych.ErrNotFound, err}}
	}
	p := &process{s: s, command: command[0], exited: make(chan struct{}), silent: make(chan struct{})}
	p.cmd = &exec.Cmd{Path: path, Args: args, SysProcAttr: ownGroup()}
	for _, name := range CommandEnv {
		// Functions that a shell exports are not for others to run.
		if v, ok := os.LookupEnv(name); ok && !strings.HasPrefix(v, "()") {
			if _, set := env[name]; !set {
				p.cmd.Env = append(p.cmd.Env, name+"="+v)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		p.cmd.Env = append(p.cmd.Env, name+"="+env[name])
	}
	var theirs [3]*os.File
	defer func() {
		for _, f := range theirs {
			if f != nil {
				f.Close()
			}
		}
		if err != nil {
			p.closeFiles()
		}
	}()
	if theirs[0], p.stdin, err = os.Pipe(); err != nil {
		return nil, err
	}
	if p.stdout, theirs[1], err = os.Pipe(); err != nil {
		return nil, err
	}
	if p.stderr, theirs[2], err = os.Pipe(); err != nil {
		return nil, err
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = theirs[0], theirs[1], theirs[2]
	if err := p.cmd.Start(); err != nil {
		return nil, &fault{fmt.Sprintf("the program %.200q can't be started: %v", command[0], plainPath(err)), []error{psych.ErrNotFound, err}}
	}
	p.r = bufio.NewReaderSize(p.stdout, 32<<10)
	go func() {
		_, _ = io.Copy(&p.noise, p.stderr) // ends with the pipe
		close(p.silent)
	}()
	go func() {
		_ = p.cmd.Wait() // how it ended stands in cmd.ProcessState
		killGroup(p.cmd.Process.Pid)
		close(p.exited)
	}()
	return p, nil
}

// plainPath is an error of a start without the path, which may have been filled
// in.
func plainPath(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// lookPath finds a program in the PATH that it will see itself.
func lookPath(name string, env map[string]string) (string, error) {
	list, ok := env["PATH"]
	if !ok || strings.ContainsRune(name, filepath.Separator) {
		path, err := exec.LookPath(name)
		var e *exec.Error
		if errors.As(err, &e) {
			err = e.Err
		}
		return path, err
	}
	for _, dir := range filepath.SplitList(list) {
		if path := filepath.Join(dir, name); filepath.IsAbs(dir) {
			if found, err := exec.LookPath(path); err == nil {
				return found, nil
			}
		}
	}
	return "", exec.ErrNotFound
}

func (p *process) closeFiles() {
	for _, f := range []*os.File{p.stdin, p.stdout, p.stderr} {
		if f != nil {
			f.Close()
		}
	}
}

// Connect implements sdk.Transport.
func (p *process) Connect(context.Context) (sdk.Connection, error) { return p, nil }

// SessionID implements sdk.Connection.
func (p *process) SessionID() string { return "" }

// Read implements sdk.Connection. What is no message is kept with stderr: many
// programs greet whoever starts them.
func (p *process) Read(context.Context) (jsonrpc.Message, error) {
	for {
		for len(p.queue) > 0 {
			msg := p.queue[0]
			p.queue = p.queue[1:]
			if msg = p.s.inbound(msg); msg != nil {
				return msg, nil
			}
		}
		line, edges, err := p.line()
		switch {
		case edges != nil:
			id, ok := answerID(edges)
			if !ok {
				return nil, &fault{(&tooLarge{p.s.limit}).Error() + ", and of which request that is the answer can't be told: the session is over", []error{psych.ErrUnavailable}}
			}
			return p.s.refuse(id, &tooLarge{p.s.limit}), nil
		case len(bytes.TrimSpace(line)) > 0:
			if msgs, bad := decode(line); bad == nil {
				p.queue = msgs
			} else {
				_, _ = p.noise.Write(append(line[:min(len(line), stderrShown)], '\n'))
				if id, ok := answerID([][]byte{line[:min(len(line), edgeBytes)], line[max(0, len(line)-edgeBytes):]}); ok && err == nil {
					return p.s.refuse(id, undecodable()), nil
				}
			}
		}
		if err != nil && len(p.queue) == 0 {
			return nil, p.ended()
		}
	}
}

// line reads a line; of one over the limit only the edges.
func (p *process) line() (line []byte, edges [][]byte, err error) {
	for {
		part, err := p.r.ReadSlice('\n')
		switch {
		case edges != nil:
			last := append(edges[1], part...)
			edges[1] = append(edges[1][:0], last[max(0, len(last)-edgeBytes):]...)
		case int64(len(line)+len(part)) > p.s.limit:
			edges = [][]byte{bytes.Clone(line[:min(len(line), edgeBytes)]), bytes.Clone(part[max(0, len(part)-edgeBytes):])}
			line = nil
		default:
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, edges, err
		}
	}
}

// Where servers put the id of an answer: before its result, or behind it.
var (
	idFirst = lazily(`^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,`)
	idLast  = lazily(`[\]}]\s*,\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$`)
)

// answerID finds the id in the edges of a message that is not decoded.
func answerID(edges [][]byte) (id jsonrpc.ID, ok bool) {
	m := idFirst().FindSubmatch(edges[0])
	if m == nil {
		m = idLast().FindSubmatch(edges[1])
	}
	if m == nil {
		return id, false
	}
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		return id, false
	}
	id, err = jsonrpc.MakeID(float64(n))
	return id, err == nil
}

// Write implements sdk.Connection. A command that does not read holds up
// nobody beyond their context: it is stopped.
func (p *process) Write(ctx context.Context, msg jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return err
	}
	switch m := msg.(type) {
	case *jsonrpc.Response:
		defer p.s.answering.Add(-1)
	case *jsonrpc.Request:
		if m.IsCall() {
			data = exchangeOf(ctx).withCursor(data)
			p.s.register(ctx, m.ID)
		} else if m.Method == "notifications/cancelled" {
			defer p.s.cancelled(ctx)
		}
	}
	written := make(chan error, 1)
	go func() {
		p.writing.Lock()
		defer p.writing.Unlock()
		_, err := p.stdin.Write(append(data, '\n'))
		written <- err
	}()
	timer := time.NewTimer(writeWait)
	defer timer.Stop()
	done := ctx.Done()
	for err := error(nil); ; {
		select {
		case err = <-written:
		case <-done:
			done = nil
			timer.Reset(writeGrace)
			continue
		case <-timer.C:
			p.kill()
			if err = <-written; err == nil {
				return nil
			}
			return &fault{"its process did not read what it was sent, and was stopped", []error{psych.ErrUnavailable, err}}
		}
		if err == nil {
			return nil
		}
		p.settle()
		// A message that was not taken to its last byte has no effect.
		return &fault{"its process has ended" + p.epitaph(), []error{psych.ErrSessionLost, psych.ErrUnavailable, err}}
	}
}

// settle gives one whose output has ended a moment to end and say why.
func (p *process) settle() {
	late := time.After(exitWait)
	for _, done := range []chan struct{}{p.exited, p.silent} {
		select {
		case <-done:
		case <-late:
			return
		}
	}
}

// ended is the error of what waits for an answer when the output ends.
func (p *process) ended() error {
	p.settle()
	return &fault{"its process ended before the answer" + p.epitaph(), []error{psych.ErrUnavailable, io.ErrUnexpectedEOF}}
}

// epitaph is how it ended, if it has, and the last that it said, for the end of
// an error.
func (p *process) epitaph() string {
	text := ""
	select {
	case <-p.exited:
		text = " (" + p.cmd.ProcessState.String() + ")"
	default:
	}
	if said := strings.TrimSpace(p.s.hide(p.noise.String())); said != "" {
		if len(said) > stderrShown {
			said = "…" + strings.ToValidUTF8(said[len(said)-stderrShown:], "")
		}
		text += "; it said: " + said
	}
	return text
}

// Close implements sdk.Connection: the input ends, and what has not ended by
// itself a second later is stopped.
func (p *process) Close() error {
	p.stop(quitWait)
	return nil
}

// kill stops it at once.
func (p *process) kill() { p.stop(0) }

func (p *process) stop(wait time.Duration) {
	p.stdin.Close()
	if wait > 0 {
		select {
		case <-p.exited:
		case <-time.After(wait):
		}
	}
	p.closing.Do(func() {
		select {
		case <-p.exited:
		default:
			termGroup(p.cmd.Process.Pid)
			select {
			case <-p.exited:
			case <-time.After(stopWait):
				killGroup(p.cmd.Process.Pid)
				<-p.exited
			}
		}
		// Something that left the group may hold the other ends.
		p.stdout.Close()
		p.stderr.Close()
	})
}

// A tail keeps the last bytes that are written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.b = append(t.b, p...); len(t.b) > stderrBytes {
		t.b = append(t.b[:0], t.b[len(t.b)-stderrBytes:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
