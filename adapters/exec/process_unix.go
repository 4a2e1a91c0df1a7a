//go:build linux || darwin

package exec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	supported = true
	openFlags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY

	// stopTime is between SIGTERM and SIGKILL: with all that comes behind it,
	// less than a runtime waits for a tool whose context ended.
	stopTime = 2 * time.Second

	// settleTime is what a process that outlives the command has to end by
	// itself, as the last of a pipeline does.
	settleTime = time.Second

	// silence ends an output that something outside of the group holds open.
	silence = 200 * time.Millisecond

	// pipeBytes is more than a pipe holds when its writers are gone.
	pipeBytes = 2 << 20
)

// A command is what is run. args[0] is the name by which it was called.
type command struct {
	path    string
	args    []string
	env     []string
	stdin   string
	streams [2]*stream
}

// An end is how a command ended.
type end struct {
	exitCode   *int // nil where a signal ended it
	signal     string
	timedOut   bool
	background bool // something of its group outlived it
}

// run runs c and ends its process group. When it returns a command has ended,
// and no goroutine is left. An error is that of the start, or the context's.
func (t *tool) run(ctx context.Context, c *command) (*end, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	cmd := &osexec.Cmd{Path: c.path, Args: c.args, Env: c.env, Dir: t.dir, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	var files [3]*os.File // of the command
	defer func() {
		for _, f := range files {
			if f != nil {
				f.Close()
			}
		}
	}()
	var feed *os.File
	var err error
	if c.stdin != "" {
		if files[0], feed, err = os.Pipe(); err != nil {
			return nil, fmt.Errorf("exec: %s", why(err))
		}
		defer feed.Close()
		cmd.Stdin = files[0]
	}
	for i, s := range c.streams {
		if s.r, files[1+i], err = os.Pipe(); err != nil {
			return nil, fmt.Errorf("exec: %s", why(err))
		}
		defer s.r.Close()
	}
	cmd.Stdout, cmd.Stderr = files[1], files[2]
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("exec: the program %.80q can't be started: %s", c.args[0], why(err))
	}
	for i, f := range files {
		if f != nil {
			f.Close()
			files[i] = nil
		}
	}
	var fed, copying sync.WaitGroup
	if feed != nil {
		fed.Go(func() {
			_, _ = io.WriteString(feed, c.stdin) // a program need not read what it is given
			feed.Close()
		})
	}
	for _, s := range c.streams {
		copying.Go(s.copy)
	}
	copied := make(chan struct{})
	go func() { copying.Wait(); close(copied) }()
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }() // how it ended stands in cmd.ProcessState

	g := group(cmd.Process.Pid)
	e := &end{}
	timer := time.NewTimer(t.o.Timeout)
	defer timer.Stop()
	select {
	case <-exited:
		settled, cancel := context.WithTimeout(ctx, settleTime)
		select {
		case <-copied:
		case <-settled.Done():
		}
		e.background = !g.ended(settled)
		cancel()
	case <-timer.C:
		e.timedOut = true
	case <-ctx.Done():
	}
	g.stop(exited)
	for _, s := range c.streams {
		s.finish()
	}
	<-copied
	if feed != nil {
		_ = feed.SetWriteDeadline(time.Unix(1, 0)) // nobody reads it any more
		fed.Wait()
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("exec: the command was stopped: %w", err)
	}
	switch s := cmd.ProcessState.Sys().(syscall.WaitStatus); {
	case s.Signaled():
		e.signal = s.Signal().String()
	default:
		code := s.ExitStatus()
		e.exitCode = &code
	}
	return e, nil
}

// A group is a process group, by the id of its leader. That id is given to no
// other process while something of the group is there.
type group int

// ended waits until nothing of the group runs, as long as the context lasts.
func (g group) ended(ctx context.Context) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		// A group of processes that have ended is there until their parents have
		// asked for them, which the first process of a container may never do.
		if syscall.Kill(-int(g), 0) != nil || !g.runs() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// stop ends a group and its leader. That the group is gone already is no error.
func (g group) stop(exited <-chan struct{}) {
	_ = syscall.Kill(-int(g), syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	g.ended(ctx)
	_ = syscall.Kill(-int(g), syscall.SIGKILL) // also for what could not be seen
	<-exited
}

// A stream is an output of a command on its way into an attachment.
type stream struct {
	r      *os.File
	w      io.WriteCloser
	n      int64 // bytes that were written by the command
	err    error // of w: behind it bytes are counted alone
	ending atomic.Bool
}

// copy reads until nothing holds the other end, or, once the command's group
// is gone, until nothing more comes.
func (s *stream) copy() {
	buf := make([]byte, 32<<10)
	for left := pipeBytes; left > 0; {
		ending := s.ending.Load()
		if ending {
			_ = s.r.SetReadDeadline(time.Now().Add(silence))
		}
		n, err := s.r.Read(buf)
		s.n += int64(n)
		if n > 0 && s.err == nil {
			_, s.err = s.w.Write(buf[:n])
		}
		if ending {
			left -= n
		}
		// A deadline that finish set may have passed while bytes waited.
		if err != nil && (ending || !errors.Is(err, os.ErrDeadlineExceeded)) {
			return
		}
	}
}

func (s *stream) finish() {
	s.ending.Store(true)
	_ = s.r.SetReadDeadline(time.Now().Add(silence))
}
