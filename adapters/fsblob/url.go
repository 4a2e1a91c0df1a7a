package fsblob

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/psych-go/psych-go/psych"
)

// Register makes file:///DIR a URL of BlobStores: an absolute path, without
// host and parameters. A % in it introduces an escape, as in every URL.
func Register(b *psych.Backends) {
	b.Blobs.Handle("file", func(_ context.Context, u *url.URL) (psych.BlobStore, error) {
		dir, err := dirOf(u)
		if err != nil {
			return nil, err
		}
		return New(dir, nil), nil
	})
}

func dirOf(u *url.URL) (string, error) {
	if _, err := psych.Params(u); err != nil {
		return "", err
	}
	const want = "want an absolute path behind three slashes, as in file:///var/lib/psych"
	switch {
	case u.Fragment != "":
		return "", fmt.Errorf("fsblob: %s has a fragment: write # as %%23: %w", u.Redacted(), psych.ErrInvalid)
	case u.User != nil || u.Host != "":
		// file://data/blobs is what people write for the relative data/blobs.
		return "", fmt.Errorf("fsblob: %s has the host %q: %s: %w", u.Redacted(), u.Host, want, psych.ErrInvalid)
	case u.Opaque != "" || u.Path == "":
		return "", fmt.Errorf("fsblob: %s is no absolute path: %s: %w", u.Redacted(), want, psych.ErrInvalid)
	case strings.ContainsRune(u.Path, 0):
		return "", fmt.Errorf("fsblob: %s holds a NUL: %s: %w", u.Redacted(), want, psych.ErrInvalid)
	}
	path := u.Path
	if len(path) > 2 && path[2] == ':' && filepath.VolumeName(path[1:]) != "" {
		path = path[1:] // file:///C:/blobs
	}
	return filepath.FromSlash(path), nil
}
