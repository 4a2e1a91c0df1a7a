//go:build unix

package filetools

import (
	"os"
	"syscall"
)

const openFlags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_NOCTTY
