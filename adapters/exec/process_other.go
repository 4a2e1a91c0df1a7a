//go:build !linux && !darwin

package exec

import (
	"context"
	"errors"
	"io"
	"os"
)

const (
	supported = false
	openFlags = os.O_RDONLY
)

type command struct {
	path    string
	args    []string
	env     []string
	stdin   string
	streams [2]*stream
}

type end struct {
	exitCode   *int
	signal     string
	timedOut   bool
	background bool
}

type stream struct {
	w   io.WriteCloser
	n   int64
	err error
}

// run is never reached: New refuses.
func (t *tool) run(context.Context, *command) (*end, error) { return nil, errors.ErrUnsupported }
