package fsblob

import (
	"context"
	"net/url"

	"github.com/psych-go/psych-go/psych"
)

// Register makes file:///DIR a URL of BlobStores: an absolute path, without
// host and parameters.
func Register(b *psych.Backends) {
	b.Blobs.Handle("file", func(_ context.Context, u *url.URL) (psych.BlobStore, error) {
		dir, err := psych.FilePath(u)
		if err != nil {
			return nil, err
		}
		return New(dir, nil), nil
	})
}
