package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/psych-go/psych-go/internal/emulators/endpoint"
)

// A set is the emulators that run, and the environment that names them.
type set struct {
	env   []string
	procs []*process
}

// start installs and starts the emulators that are not set in the environment,
// all at once, and returns when all answer.
func start(ctx context.Context, root string, lookup func(string) (string, bool)) (*set, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	procs := make([]*process, len(specs))
	errs := make([]error, len(specs))
	var g sync.WaitGroup
	for i := range specs {
		s := &specs[i]
		if !slices.ContainsFunc(s.env, func(name string) bool { _, ok := lookup(name); return !ok }) {
			continue
		}
		g.Go(func() {
			var dir string
			if dir, errs[i] = s.install(ctx, root); errs[i] == nil {
				if s.command == nil {
					procs[i] = &process{url: filepath.Join(dir, s.file)}
				} else {
					procs[i], errs[i] = s.start(ctx, dir)
				}
			}
			if errs[i] != nil {
				cancel()
			}
		})
	}
	g.Wait()
	running := &set{env: []string{endpoint.Strict + "=1"}}
	for i, p := range procs {
		if p == nil {
			continue
		}
		if p.cmd != nil {
			running.procs = append(running.procs, p)
		}
		for _, name := range specs[i].env {
			if _, ok := lookup(name); !ok {
				running.env = append(running.env, name+"="+p.url)
			}
		}
	}
	// One that was canceled because another failed says nothing.
	errs = slices.DeleteFunc(errs, func(err error) bool { return ctx.Err() != nil && errors.Is(err, context.Canceled) })
	if err := errors.Join(errs...); err != nil || ctx.Err() != nil {
		running.stop()
		return nil, errors.Join(err, ctx.Err())
	}
	return running, nil
}

// stop ends all and waits until they have ended.
func (s *set) stop() {
	for _, p := range s.procs {
		p.stop()
	}
}

// died says which emulators ended by themselves, so that tests which failed for
// that are understood.
func (s *set) died() error {
	var errs []error
	for _, p := range s.procs {
		select {
		case <-p.done:
			errs = append(errs, fmt.Errorf("%s ended before the command: %v\n%s", p.name, p.err, p.output()))
		default:
		}
	}
	return errors.Join(errs...)
}

// A process is an emulator that was started.
type process struct {
	name, url string // of a program: its path
	cmd       *exec.Cmd
	stdin     io.Closer
	tmp       string // what it leaves there goes with it
	log       *os.File
	done      chan struct{}
	err       error // of Wait, when done is closed
}

// start starts an emulator and waits until it answers. A port that was free may
// be taken by another process before the emulator has it, so that one which
// ends at once is tried again.
func (s *spec) start(ctx context.Context, dir string) (*process, error) {
	var err error
	for range 3 {
		var p *process
		if p, err = s.startOnce(ctx, dir); err == nil {
			return p, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return nil, err
}

func (s *spec) startOnce(ctx context.Context, dir string) (*process, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	args, env := s.command(dir, port)
	p := &process{name: s.name, url: fmt.Sprintf("http://127.0.0.1:%d", port), cmd: exec.Command(args[0], args[1:]...), done: make(chan struct{})}
	if p.tmp, err = os.MkdirTemp("", "psych-"+s.name+"-"); err != nil {
		return nil, err
	}
	if p.log, err = os.Create(filepath.Join(p.tmp, "log")); err != nil {
		p.remove()
		return nil, err
	}
	p.cmd.Dir, p.cmd.Env = dir, append(append(os.Environ(), "TMPDIR="+p.tmp), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	ownGroup(p.cmd)
	if p.stdin, err = p.cmd.StdinPipe(); err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		p.remove()
		return nil, fmt.Errorf("start %s: %w", s.name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	if err := p.ready(ctx); err != nil {
		out := p.output()
		p.stop()
		return nil, fmt.Errorf("start %s: %w\n%s", s.name, err, out)
	}
	return p, nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// ready waits until the emulator answers anything over HTTP.
func (p *process) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
		if err != nil {
			return err
		}
		req.Close = true
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("it ended: %w", p.err)
		case <-ctx.Done():
			return fmt.Errorf("it does not answer at %s: %w", p.url, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (p *process) output() []byte {
	out, err := os.ReadFile(p.log.Name())
	if err != nil {
		return []byte(err.Error())
	}
	return tail(out)
}

// stop asks the emulator to end, by its standard input, and kills what is left.
func (p *process) stop() {
	p.stdin.Close()
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
	}
	kill(p.cmd)
	<-p.done
	p.remove()
}

// remove removes its log, and what else it left.
func (p *process) remove() {
	p.log.Close()
	_ = os.RemoveAll(p.tmp)
}
