package psych

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// A Mux maps the schemes of URLs to openers of one port. The zero value is
// ready; a program's main fills it, so that a program links no SDK that it
// does not name. It is filled before it is used.
type Mux[P any] struct {
	openers map[string]func(context.Context, *url.URL) (P, error)
}

// Handle registers a scheme, in lower case. It panics on a second registration
// and on an illegal scheme.
func (m *Mux[P]) Handle(scheme string, open func(context.Context, *url.URL) (P, error)) {
	if scheme == "" || strings.ToLower(scheme) != scheme || strings.ContainsAny(scheme, ":/") {
		panic(fmt.Sprintf("psych: %q is no scheme", scheme))
	}
	if m.openers[scheme] != nil {
		panic(fmt.Sprintf("psych: scheme %q is registered already", scheme))
	}
	if m.openers == nil {
		m.openers = map[string]func(context.Context, *url.URL) (P, error){}
	}
	m.openers[scheme] = open
}

// Schemes lists the registered schemes, sorted.
func (m *Mux[P]) Schemes() []string { return slices.Sorted(maps.Keys(m.openers)) }

// Open opens a URL. A URL that can't be parsed and an unknown scheme, whose
// error lists the known ones, are ErrInvalid. What is wrong with the rest of
// it, its opener says.
func (m *Mux[P]) Open(ctx context.Context, rawURL string) (P, error) {
	var zero P
	scheme, _, ok := strings.Cut(rawURL, ":")
	if !ok || scheme == "" {
		return zero, fmt.Errorf("psych: %.200q is no URL: want one that begins with %s: %w", rawURL, m.known(), ErrInvalid)
	}
	open := m.openers[strings.ToLower(scheme)]
	if open == nil {
		return zero, fmt.Errorf("psych: unknown scheme %.80q: want %s: %w", scheme, m.known(), ErrInvalid)
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return zero, fmt.Errorf("psych: %w: %w", ErrInvalid, err)
	}
	return open(ctx, u)
}

func (m *Mux[P]) known() string {
	if len(m.openers) == 0 {
		return "none, since none is registered"
	}
	return `"` + strings.Join(m.Schemes(), `:", "`) + `:"`
}

// Params reads the parameters of u strictly: a malformed query, a parameter
// that is none of known, and one that is given twice are ErrInvalid. Openers
// call it, with no known ones if they take none.
func Params(u *url.URL, known ...string) (map[string]string, error) {
	q, err := url.ParseQuery(u.RawQuery) // u.Query() drops what is malformed
	if err != nil {
		return nil, fmt.Errorf("psych: the parameters of %s: %w: %w", u.Redacted(), ErrInvalid, err)
	}
	params := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		switch {
		case !slices.Contains(known, name) && len(known) == 0:
			return nil, fmt.Errorf("psych: %s has the parameter %q: %s: takes none: %w", u.Redacted(), name, u.Scheme, ErrInvalid)
		case !slices.Contains(known, name):
			return nil, fmt.Errorf("psych: %s has the unknown parameter %q: want %s: %w", u.Redacted(), name, strings.Join(known, ", "), ErrInvalid)
		case len(q[name]) > 1:
			return nil, fmt.Errorf("psych: %s has the parameter %q twice: %w", u.Redacted(), name, ErrInvalid)
		}
		params[name] = q[name][0]
	}
	return params, nil
}

// FilePath is the absolute path that a URL like file:///var/lib/x names. A
// host, a relative path, a fragment, a parameter and a NUL are ErrInvalid. A %
// in it introduces an escape, as in every URL.
func FilePath(u *url.URL) (string, error) {
	if _, err := Params(u); err != nil {
		return "", err
	}
	bad := func(what string) (string, error) {
		return "", fmt.Errorf("psych: %s %s: want an absolute path behind three slashes, as in %s:///var/lib/psych: %w", u.Redacted(), what, u.Scheme, ErrInvalid)
	}
	switch {
	case u.Fragment != "":
		return bad("has a fragment (write # as %23)")
	case u.User != nil || u.Host != "":
		return bad(fmt.Sprintf("has the host %q", u.Host)) // file://data/x is what people write for the relative data/x
	case u.Opaque != "" || u.Path == "":
		return bad("is no absolute path")
	case strings.ContainsRune(u.Path, 0):
		return bad("holds a NUL")
	}
	path := u.Path
	if len(path) > 2 && path[2] == ':' && filepath.VolumeName(path[1:]) != "" {
		path = path[1:] // file:///C:/blobs
	}
	return filepath.FromSlash(path), nil
}

// Backends maps URL schemes to openers, per port. The zero value is ready; it
// is filled in main (script.Register(&b)) and has no global.
type Backends struct {
	Stores  Mux[Store]
	Blobs   Mux[BlobStore]
	Models  Mux[Model]
	Wakers  Mux[Waker]
	Secrets Mux[Secrets]
}

// Resolver is a ModelResolver that opens the models of Specs as URLs, each
// once. fallback serves Specs that name none; with "" they are refused.
func (b *Backends) Resolver(fallback string) ModelResolver {
	var mu sync.Mutex
	models := map[string]Model{}
	return func(ctx context.Context, name string) (Model, error) {
		if name == "" {
			name = fallback
		}
		if name == "" {
			return nil, fmt.Errorf("psych: the Spec names no model, and PSYCH_MODEL is not set: %w", ErrInvalid)
		}
		mu.Lock()
		defer mu.Unlock()
		if m := models[name]; m != nil {
			return m, nil
		}
		m, err := b.Models.Open(ctx, name)
		if err != nil {
			return nil, err
		}
		if len(models) >= maxCachedKinds {
			clear(models)
		}
		models[name] = m
		return m, nil
	}
}

// FromEnv makes a Runtime of what the environment names, as getenv gives it:
// PSYCH_STORE_URL for the Store, where s is nil, and for what is unset in o
// PSYCH_BLOB_URL, PSYCH_WAKER_URL, PSYCH_SECRETS_URL, PSYCH_MODEL for Specs
// without a model, and PSYCH_PRICES, the file of a list for [ParsePrices].
// Only the store must be named. [Runtime.Close] closes what FromEnv opened.
func (b *Backends) FromEnv(ctx context.Context, getenv func(string) string, s Store, o *Options) (_ *Runtime, err error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	var closers []io.Closer
	defer func() {
		for i := len(closers) - 1; err != nil && i >= 0; i-- {
			closers[i].Close()
		}
	}()
	if s == nil {
		if getenv("PSYCH_STORE_URL") == "" {
			return nil, fmt.Errorf("psych: PSYCH_STORE_URL is not set: want a URL that begins with %s: %w", b.Stores.known(), ErrInvalid)
		}
		if s, err = fromEnv(ctx, getenv, "PSYCH_STORE_URL", &b.Stores, &closers); err != nil {
			return nil, err
		}
	}
	if opts.Blobs == nil && getenv("PSYCH_BLOB_URL") != "" {
		if opts.Blobs, err = fromEnv(ctx, getenv, "PSYCH_BLOB_URL", &b.Blobs, &closers); err != nil {
			return nil, err
		}
	}
	if opts.Waker == nil && getenv("PSYCH_WAKER_URL") != "" {
		if opts.Waker, err = fromEnv(ctx, getenv, "PSYCH_WAKER_URL", &b.Wakers, &closers); err != nil {
			return nil, err
		}
	}
	if opts.Secrets == nil && getenv("PSYCH_SECRETS_URL") != "" {
		if opts.Secrets, err = fromEnv(ctx, getenv, "PSYCH_SECRETS_URL", &b.Secrets, &closers); err != nil {
			return nil, err
		}
	}
	if opts.Models == nil {
		opts.Models = b.Resolver(getenv("PSYCH_MODEL"))
		if opts.DefaultModel == "" {
			opts.DefaultModel = getenv("PSYCH_MODEL")
		}
	}
	if name := getenv("PSYCH_PRICES"); opts.Prices == nil && name != "" {
		data, err := os.ReadFile(name)
		if err == nil {
			opts.Prices, err = ParsePrices(data)
		}
		if err != nil {
			return nil, fmt.Errorf("psych: PSYCH_PRICES: %w", err)
		}
	}
	r, err := New(s, &opts)
	if err != nil {
		return nil, err
	}
	r.closers = closers
	return r, nil
}

func fromEnv[P any](ctx context.Context, getenv func(string) string, name string, m *Mux[P], closers *[]io.Closer) (P, error) {
	p, err := m.Open(ctx, getenv(name))
	if err != nil {
		return p, fmt.Errorf("psych: %s: %w", name, err)
	}
	if c, ok := any(p).(io.Closer); ok {
		*closers = append(*closers, c)
	}
	return p, nil
}
