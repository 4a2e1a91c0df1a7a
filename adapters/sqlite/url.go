package sqlite

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/psych-go/psych-go/psych"
)

// Register makes sqlite:///FILE a URL of Stores: an absolute path, without host
// and parameters. A % in it introduces an escape, as in every URL.
func Register(b *psych.Backends) {
	b.Stores.Handle("sqlite", func(_ context.Context, u *url.URL) (psych.Store, error) {
		path, err := pathOf(u)
		if err != nil {
			return nil, err
		}
		return New(path, nil), nil
	})
}

func pathOf(u *url.URL) (string, error) {
	if _, err := psych.Params(u); err != nil {
		return "", err
	}
	const want = "want an absolute path behind three slashes, as in sqlite:///var/lib/psych.db"
	switch {
	case u.Fragment != "":
		return "", fmt.Errorf("sqlite: %s has a fragment: write # as %%23: %w", u.Redacted(), psych.ErrInvalid)
	case u.User != nil || u.Host != "":
		// sqlite://data/psych.db is what people write for the relative data/psych.db.
		return "", fmt.Errorf("sqlite: %s has the host %q: %s: %w", u.Redacted(), u.Host, want, psych.ErrInvalid)
	case u.Opaque != "" || u.Path == "" || strings.HasSuffix(u.Path, "/"):
		return "", fmt.Errorf("sqlite: %s is no absolute path of a file: %s: %w", u.Redacted(), want, psych.ErrInvalid)
	case strings.ContainsRune(u.Path, 0):
		return "", fmt.Errorf("sqlite: %s holds a NUL: %s: %w", u.Redacted(), want, psych.ErrInvalid)
	}
	path := u.Path
	if len(path) > 2 && path[2] == ':' && filepath.VolumeName(path[1:]) != "" {
		path = path[1:] // sqlite:///C:/psych.db
	}
	return filepath.FromSlash(path), nil
}
