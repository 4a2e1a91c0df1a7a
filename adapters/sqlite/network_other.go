//go:build !linux

package sqlite

import (
	"path/filepath"
	"strings"
)

// remoteFilesystem names the network filesystem that dir is on, or is "" where
// that is unknown.
func remoteFilesystem(dir string) string {
	if strings.HasPrefix(filepath.VolumeName(dir), `\\`) {
		return filepath.VolumeName(dir)
	}
	return ""
}
