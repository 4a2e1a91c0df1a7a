//go:build !unix

package filetools

import "os"

const openFlags = os.O_RDONLY
