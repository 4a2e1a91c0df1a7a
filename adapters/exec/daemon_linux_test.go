package exec_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// What leaves the group is not followed, and holds up nobody, though it keeps
// the outputs open.
func TestDaemon(t *testing.T) {
	b := newBench(t)
	f := newFifo(t, b.dir)
	b.start(sh(`setsid sh -c 'exec 9>alive; echo daemon; echo up >&9; while ! [ -e over ]; do sleep 0.05; done' & while ! [ -e seen ]; do sleep 0.01; done; echo parent`))
	done := b.drive(context.Background())
	f.up()
	must(t, os.WriteFile(filepath.Join(b.dir, "seen"), nil, 0o600))
	must(t, <-done)
	e := b.ends()[0]
	e.exit(t, 0)
	if got := b.output("out_c1_1_stdout"); got != "daemon\nparent\n" || e.Stopped {
		t.Errorf("%q, %s", got, e.Text)
	}
	must(t, os.WriteFile(filepath.Join(b.dir, "over"), nil, 0o600))
	if !f.gone() {
		t.Error("the daemon did not end by itself")
	}
}
