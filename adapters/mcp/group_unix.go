//go:build unix

package mcp

import "syscall"

const supported = true

// ownGroup has a command begin a session, so that its group is its own, and no
// key pressed in a terminal reaches it.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// That a group is gone already is no error.
func termGroup(leader int) { _ = syscall.Kill(-leader, syscall.SIGTERM) }
func killGroup(leader int) { _ = syscall.Kill(-leader, syscall.SIGKILL) }
