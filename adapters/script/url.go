package script

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/psych-go/psych-go/psych"
)

// Register makes script:FILE a URL of Models: the path of a script, relative to
// the working directory or absolute (script:///abs/FILE), without host and
// parameters. A % in it introduces an escape, as in every URL. Each Open is a
// Model of its own, with counts of its own.
func Register(b *psych.Backends) {
	b.Models.Handle("script", func(_ context.Context, u *url.URL) (psych.Model, error) {
		path, err := pathOf(u)
		if err != nil {
			return nil, err
		}
		s, err := Load(path)
		if err != nil {
			return nil, err
		}
		return New(s, nil), nil
	})
}

func pathOf(u *url.URL) (string, error) {
	if _, err := psych.Params(u); err != nil {
		return "", err
	}
	const want = "want script:FILE or script:///abs/FILE"
	if u.Fragment != "" {
		return "", fmt.Errorf("script: %s has a fragment: write # as %%23: %w", u.Redacted(), psych.ErrInvalid)
	}
	if u.User != nil || u.Host != "" {
		return "", fmt.Errorf("script: %s has the host %q: %s: %w", u.Redacted(), u.Host, want, psych.ErrInvalid)
	}
	path := u.Path
	if u.Opaque != "" {
		var err error
		if path, err = url.PathUnescape(u.Opaque); err != nil {
			return "", fmt.Errorf("script: %s: write %% as %%25: %w: %w", u.Redacted(), psych.ErrInvalid, err)
		}
	}
	if path == "" || strings.ContainsRune(path, 0) {
		return "", fmt.Errorf("script: %s names no file: %s: %w", u.Redacted(), want, psych.ErrInvalid)
	}
	return filepath.FromSlash(path), nil
}
