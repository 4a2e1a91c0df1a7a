//go:build !unix

package main

import (
	"context"
	"errors"
	"os/exec"
)

func lock(context.Context, string) (func(), error) {
	return nil, errors.New("emulators are installed on Unix alone: run them otherwise and set their endpoints (PSYCH_TEST_…)")
}

func ownGroup(*exec.Cmd) {}

func kill(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
