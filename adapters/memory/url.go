package memory

import (
	"context"
	"fmt"
	"net/url"

	"github.com/psych-go/psych-go/psych"
)

// Register makes mem:// a URL of Stores and of BlobStores. It takes neither
// host, path nor parameters, and each Open of it is a new, empty one.
func Register(b *psych.Backends) {
	b.Stores.Handle("mem", func(_ context.Context, u *url.URL) (psych.Store, error) {
		if err := checkURL(u); err != nil {
			return nil, err
		}
		return New(nil), nil
	})
	b.Blobs.Handle("mem", func(_ context.Context, u *url.URL) (psych.BlobStore, error) {
		if err := checkURL(u); err != nil {
			return nil, err
		}
		return NewBlobs(nil), nil
	})
}

func checkURL(u *url.URL) error {
	if _, err := psych.Params(u); err != nil {
		return err
	}
	if u.Opaque != "" || u.User != nil || u.Host != "" || u.Path != "" || u.Fragment != "" {
		return fmt.Errorf("memory: %s names something in memory: want mem:// alone: %w", u.Redacted(), psych.ErrInvalid)
	}
	return nil
}
