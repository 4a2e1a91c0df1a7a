package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/psych-go/psych-go/adapters/anthropic"
	"github.com/psych-go/psych-go/adapters/bedrock"
	"github.com/psych-go/psych-go/adapters/exec"
	"github.com/psych-go/psych-go/adapters/filetools"
	"github.com/psych-go/psych-go/adapters/openai"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
)

// storeFlags say where Runs are, and whose.
type storeFlags struct{ store, blob, tenant string }

func (f *storeFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.store, "store", "", "`URL` of the store (default $PSYCH_STORE_URL, else a file in your state directory)")
	flags.StringVar(&f.blob, "blob", "", "`URL` of the blob store (default $PSYCH_BLOB_URL, else beside the store's file)")
	flags.StringVar(&f.tenant, "tenant", "local", "the tenant that the Run belongs to")
}

// workerFlags say what a command that drives Runs lets them use.
type workerFlags struct {
	serverFlags
	files    string
	commands []string
	lease    time.Duration
}

func (f *workerFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.files, "files", "", "`directory` whose files the tools list_files, read_file and search_files may read")
	flags.StringArrayVar(&f.commands, "allow-exec", nil, "`program` that the tool run_command may run, in --files or the working directory; repeatable. No sandbox: it may do what you may")
	flags.DurationVar(&f.lease, "lease", 0, "how long a Run stays claimed when this process dies")
	flags.Lookup("lease").Hidden = true // for tests
	f.serverFlags.add(flags)
}

// A session is what a command opened.
type session struct {
	store   psych.Store
	blobs   psych.BlobStore // nil: none
	rt      *psych.Runtime
	tenant  string
	tools   []string // that this worker has
	servers *servers // nil: none is reached
}

// opened is what is closed when a command ends, and what tests look into.
type opened struct {
	closers []io.Closer
	files   *filetools.Tools
	models  psych.ModelResolver
}

func (o *opened) close() {
	for _, c := range slices.Backward(o.closers) {
		c.Close()
	}
	o.closers = nil
}

// open makes a Runtime as the flags and the environment have it. w is nil for a
// command that drives nothing.
func (p *program) open(ctx context.Context, f *storeFlags, w *workerFlags, waker psych.Waker) (*session, error) {
	s := &session{tenant: f.tenant}
	storeURL, blobURL, err := p.urls(f)
	if err != nil {
		return nil, err
	}
	if s.store, err = p.backends.Stores.Open(ctx, storeURL); err != nil {
		return nil, use("open the store: %w", err)
	}
	p.closeLater(s.store)
	if blobURL != "" {
		if s.blobs, err = p.backends.Blobs.Open(ctx, blobURL); err != nil {
			return nil, use("open the blob store: %w", err)
		}
		p.closeLater(s.blobs)
	}
	o := &psych.Options{Blobs: s.blobs, Models: p.models, Waker: waker}
	if w != nil {
		o.LeaseTTL = w.lease
		if o.Tools, err = p.tools(w); err != nil {
			return nil, err
		}
		for _, t := range o.Tools {
			s.tools = append(s.tools, t.Def().Name)
		}
		if s.servers, err = p.servers(ctx, &w.serverFlags, o); err != nil {
			return nil, err
		}
	}
	if s.rt, err = psych.New(s.store, o); err != nil {
		return nil, refused(err)
	}
	p.closers = append(p.closers, s.rt)
	return s, nil
}

func (p *program) closeLater(port any) {
	if c, ok := port.(io.Closer); ok {
		p.closers = append(p.closers, c)
	}
}

func (p *program) tools(w *workerFlags) (tools []*psych.Tool, err error) {
	if w.files != "" {
		if p.files, err = filetools.Open(w.files, nil); err != nil {
			return nil, use("--files %s: %w", w.files, err)
		}
		p.closers = append(p.closers, p.files)
		tools = p.files.List()
	}
	if len(w.commands) > 0 {
		t, err := exec.New(cmp.Or(w.files, "."), &exec.Options{Allow: w.commands})
		if err != nil {
			return nil, use("--allow-exec %s: %w", strings.Join(w.commands, " --allow-exec "), err)
		}
		tools = append(tools, t)
	}
	return tools, nil
}

// callNoModel lets models be opened without the key that calling them takes: a
// command wants their limits and encodings alone.
func (p *program) callNoModel() {
	var b psych.Backends
	getenv := func(name string) string {
		v := p.getenv(name)
		if v == "" && (name == "OPENAI_API_KEY" || name == "ANTHROPIC_API_KEY") {
			return "none"
		}
		return v
	}
	script.Register(&b)
	openai.Register(&b, getenv)
	anthropic.Register(&b, getenv)
	bedrock.Register(&b)
	p.backends.Models = b.Models
	p.models = p.backends.Resolver(p.getenv("PSYCH_MODEL"))
}

// model opens a model by URL, each once. An empty one is that of the
// environment.
func (p *program) model(ctx context.Context, url string) (psych.Model, error) {
	if cmp.Or(url, p.getenv("PSYCH_MODEL")) == "" {
		return nil, use("the spec names no model: give --model URL, set PSYCH_MODEL, or name one in the spec")
	}
	m, err := p.models(ctx, url)
	if err != nil {
		return nil, use("open the model: %w", err)
	}
	return m, nil
}

// urls are the URLs of store and blob store. What neither flags nor environment
// name is a file in the user's state directory, and for blobs a directory beside
// the file of a SQLite store. A store elsewhere has no blob store of itself: one
// that this machine alone can read would lose what others write.
func (p *program) urls(f *storeFlags) (store, blob string, err error) {
	store = cmp.Or(f.store, p.getenv("PSYCH_STORE_URL"))
	if store == "" {
		dir, err := stateDir(runtime.GOOS, p.getenv)
		if err != nil {
			return "", "", err
		}
		store = fileURL("sqlite", filepath.Join(dir, "psych.db"))
	}
	blob = cmp.Or(f.blob, p.getenv("PSYCH_BLOB_URL"))
	if blob != "" {
		return store, blob, nil
	}
	switch scheme, _, _ := strings.Cut(store, ":"); scheme {
	case "mem":
		blob = "mem://"
	case "sqlite":
		if u, err := url.Parse(store); err == nil && u.Path != "" {
			u.Scheme, u.Path, u.RawPath = "file", u.Path+"-blobs", ""
			blob = u.String()
		}
	}
	return store, blob, nil
}

// stateDir is where a user's programs keep what outlives them.
func stateDir(goos string, getenv func(string) string) (string, error) {
	var dir string
	switch state, home := getenv("XDG_STATE_HOME"), getenv("HOME"); {
	case filepath.IsAbs(state): // a relative one is to be ignored, says the XDG specification
		dir = state
	case goos == "windows":
		dir = getenv("LocalAppData")
	case home == "":
	case goos == "darwin":
		dir = filepath.Join(home, "Library", "Application Support")
	default:
		dir = filepath.Join(home, ".local", "state")
	}
	if !filepath.IsAbs(dir) {
		return "", use("where to keep Runs is not known: set XDG_STATE_HOME or HOME to an absolute path, or give --store URL (mem:// keeps nothing)")
	}
	return filepath.Join(dir, "psych"), nil
}

func fileURL(scheme, path string) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // C:/…
	}
	return (&url.URL{Scheme: scheme, Path: path}).String()
}

// publish publishes a Spec. Where a flag that was not given would register a
// tool that it names, the error says so.
func (s *session) publish(ctx context.Context, spec *psych.Spec) (*psych.Version, error) {
	v, err := s.rt.Publish(ctx, s.tenant, spec)
	var invalid *psych.SpecError
	if !errors.As(err, &invalid) {
		return v, refused(err)
	}
	for _, of := range []struct {
		flag  string
		tools []string
	}{{"--files DIR", []string{"list_files", "search_files", "read_file"}}, {"--allow-exec PROGRAM", []string{"run_command"}}} {
		if slices.ContainsFunc(of.tools, func(name string) bool { return slices.Contains(spec.Tools, name) && !slices.Contains(s.tools, name) }) {
			err = fmt.Errorf("%w; %s registers %s", err, of.flag, strings.Join(of.tools, ", "))
		}
	}
	return v, refused(err)
}

// refused makes an error wrong use if it says that what was given is refused.
func refused(err error) error {
	var spec *psych.SpecError
	if errors.As(err, &spec) || errors.Is(err, psych.ErrInvalid) || errors.Is(err, psych.ErrTooLarge) || errors.Is(err, psych.ErrNoBlobStore) {
		return &useError{err}
	}
	return err
}

// resolve finds a Run of the tenant by its id, or the beginning of one that no
// other has.
func (s *session) resolve(ctx context.Context, id string) (psych.RunInfo, error) {
	key := psych.RunKey{Tenant: s.tenant, RunID: id}
	if key.Check() != nil {
		if err := psych.CheckTenant(s.tenant); err != nil {
			return psych.RunInfo{}, refused(err)
		}
		var err error
		if key.RunID, err = s.complete(ctx, id); err != nil {
			return psych.RunInfo{}, err
		}
	}
	info, err := s.store.GetRun(ctx, key)
	if errors.Is(err, psych.ErrNotFound) {
		return psych.RunInfo{}, s.noRun(id)
	}
	if err != nil {
		return psych.RunInfo{}, fmt.Errorf("read run %s: %w", key.RunID, err)
	}
	return info, nil
}

func (s *session) noRun(id string) error {
	return use("tenant %s has no run %.80q: psych runs lists them", s.tenant, id)
}

// complete finds the one id that begins with prefix.
func (s *session) complete(ctx context.Context, prefix string) (string, error) {
	if prefix == "" || len(prefix) > 32 || strings.Trim(prefix, "0123456789abcdef") != "" {
		return "", use("run %.80q: want the id of a run, 32 hexadecimal digits, or its beginning: psych runs lists them", prefix)
	}
	found := ""
	for info, err := range s.runs(ctx) {
		switch id := info.Key.RunID; {
		case err != nil:
			return "", err
		case !strings.HasPrefix(id, prefix) || id == found: // a list may repeat what changes under it
		case found != "":
			return "", use("more than one run begins with %s, such as %s and %s: give more of it", prefix, found, id)
		default:
			found = id
		}
	}
	if found == "" {
		return "", s.noRun(prefix)
	}
	return found, nil
}

// runs iterates over the tenant's Runs, newest first.
func (s *session) runs(ctx context.Context) func(yield func(psych.RunInfo, error) bool) {
	return func(yield func(psych.RunInfo, error) bool) {
		for cursor := ""; ; {
			page, next, err := s.store.ListRuns(ctx, s.tenant, cursor, 100)
			if err != nil {
				yield(psych.RunInfo{}, refused(fmt.Errorf("list runs: %w", err)))
				return
			}
			for _, info := range page {
				if !yield(info, nil) {
					return
				}
			}
			if cursor = next; cursor == "" {
				return
			}
		}
	}
}
