// Package service is what a deployment of one's own adds to Psych: a code tool,
// and an adapter. Its programs are short: turn is the Lambda function that drives
// Runs, local the same service in one process on a laptop. Both take what they
// work with from the environment, as Psych's own do.
package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// Tools are the code tools of this service.
func Tools() []*psych.Tool {
	return []*psych.Tool{
		psych.NewTool("days_between", "Counts the days from one date to another.", daysBetween, &psych.ToolOptions{Idempotent: true}),
	}
}

type dates struct {
	From string `json:"from" jsonschema:"a date, as in 2026-11-30"`
	To   string `json:"to" jsonschema:"a date, as in 2026-12-24"`
}

func daysBetween(_ context.Context, _ *psych.Call, in dates) (string, error) {
	from, err := time.Parse(time.DateOnly, in.From)
	if err != nil {
		return "", err // what the model is told
	}
	to, err := time.Parse(time.DateOnly, in.To)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%.0f days", to.Sub(from).Hours()/24), nil
}

// Register makes files:///DIR a URL of Secrets: the credential NAME of a tenant
// is what the file DIR/TENANT/NAME holds, as container platforms mount them. It
// goes wherever that tenant's Specs name it. The file system must tell A from a.
func Register(b *psych.Backends) {
	b.Secrets.Handle("files", func(_ context.Context, u *url.URL) (psych.Secrets, error) {
		dir, err := psych.FilePath(u)
		if err != nil {
			return nil, err
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil, err
		}
		return &secrets{root}, nil
	})
}

// secrets are below a directory that no name leads out of. They are read at every
// call, so that there is nothing to look past when a server refuses one.
type secrets struct{ root *os.Root }

var (
	_ psych.Secrets = (*secrets)(nil)
	_ io.Closer     = (*secrets)(nil)
)

func (s *secrets) Close() error { return s.root.Close() }

func (s *secrets) Secret(_ context.Context, r psych.SecretRequest) (psych.Secret, error) {
	tenant := url.PathEscape(r.Scope.Tenant) // one segment, whatever it holds
	if tenant == "" || tenant[0] == '.' || r.Name == "" || r.Name[0] == '.' || strings.ContainsAny(r.Name, `/\`) {
		return psych.Secret{}, fmt.Errorf("service: %.80q can't be the name of a file: %w", r.Name, psych.ErrNotFound)
	}
	value, err := s.root.ReadFile(tenant + "/" + r.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return psych.Secret{}, fmt.Errorf("service: there is no credential %.80q: %w: %w", r.Name, psych.ErrNotFound, err)
	case err != nil:
		return psych.Secret{}, fmt.Errorf("service: credential %.80q: %w: %w", r.Name, psych.ErrUnavailable, err)
	}
	id := sha256.Sum256([]byte(tenant + "/" + r.Name + "\x00" + string(value)))
	return psych.Secret{Value: strings.TrimSpace(string(value)), Identity: hex.EncodeToString(id[:16])}, nil
}
