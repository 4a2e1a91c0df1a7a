//go:build !unix

package mcp

import "syscall"

const supported = false // there is no group to stop

func ownGroup() *syscall.SysProcAttr { return nil }
func termGroup(int)                  {}
func killGroup(int)                  {}
