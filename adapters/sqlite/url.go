package sqlite

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/psych-go/psych-go/psych"
)

// Register makes sqlite:///FILE a URL of Stores: an absolute path, without host
// and parameters.
func Register(b *psych.Backends) {
	b.Stores.Handle("sqlite", func(_ context.Context, u *url.URL) (psych.Store, error) {
		path, err := psych.FilePath(u)
		if err == nil && strings.HasSuffix(u.Path, "/") {
			err = fmt.Errorf("sqlite: %s names a directory: want an absolute path of a file: %w", u.Redacted(), psych.ErrInvalid)
		}
		if err != nil {
			return nil, err
		}
		return New(path, nil), nil
	})
}
