package psych

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// Bounds of what a Runtime keeps of servers.
const (
	maxSessions = 64
	idleSession = 5 * time.Minute // after which a session is closed as soon as another is asked for
	keepSecret  = time.Minute

	heedTime  = time.Second      // that a port has to return when its context has ended
	closeTime = 10 * time.Second // that a session has to be closed
)

// A sessionKey says who may share a session: one scope, one server, one
// credential, and one catalogue, which is what its notifications are of.
type sessionKey struct {
	scope, server Digest
	identity      string
	perPrincipal  bool
}

// key tells scopes apart.
func (s Scope) key() Digest {
	parts := []string{s.Tenant, s.Principal}
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		parts = append(parts, k, s.Labels[k])
	}
	return digest(parts...)
}

// address tells servers apart, whatever Specs call them.
func (c *Connection) address() Digest {
	return digest(append([]string{c.URL, c.Credential}, c.Command...)...)
}

// A pool keeps open sessions. The clock is that of the wall, so that a process
// which was frozen sees how long it was.
type pool struct {
	mu       sync.Mutex
	sessions map[sessionKey]*pooled
	closed   bool
}

// A pooled session. What follows opened is of the pool's mu.
type pooled struct {
	key     sessionKey
	opened  chan struct{} // closed when session or err is set
	session Session
	err     error

	uses   int
	last   time.Time
	broken bool // nobody takes it again
}

var errClosed = errors.New("psych: the runtime is closed")

// take returns the open session of key for its use, or opens one.
func (p *pool) take(ctx context.Context, key sessionKey, open func() (Session, error)) (*pooled, error) {
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil, errClosed
		}
		idle := p.idle(time.Now().Round(0))
		s := p.sessions[key]
		opens := s == nil
		if opens {
			s = &pooled{key: key, opened: make(chan struct{})}
			if p.sessions == nil {
				p.sessions = map[sessionKey]*pooled{}
			}
			p.sessions[key] = s
		}
		s.uses++
		p.mu.Unlock()
		closeAll(idle)
		if opens {
			s.session, s.err = open()
			close(s.opened)
		}
		select {
		case <-s.opened:
		case <-ctx.Done():
			p.give(s, false)
			return nil, ctx.Err()
		}
		if s.err == nil {
			return s, nil
		}
		p.give(s, true)
		if opens || ctx.Err() != nil || !errors.Is(s.err, context.Canceled) && !errors.Is(s.err, context.DeadlineExceeded) {
			return nil, s.err
		}
		// Whoever opened it ran out of time, which says nothing of the server.
	}
}

// give returns a session. A broken one is taken by nobody again, and closed
// when the last of its users has given it back.
func (p *pool) give(s *pooled, broken bool) {
	p.mu.Lock()
	s.uses--
	s.last = time.Now().Round(0)
	s.broken = s.broken || broken || p.closed
	var gone []*pooled
	if s.broken {
		if p.sessions[s.key] == s {
			delete(p.sessions, s.key)
		}
		if s.uses == 0 {
			gone = append(gone, s)
		}
	}
	for len(p.sessions) > maxSessions {
		var oldest *pooled
		for _, o := range p.sessions {
			if o.uses == 0 && (oldest == nil || o.last.Before(oldest.last)) {
				oldest = o
			}
		}
		if oldest == nil {
			break // all are in use: the next one given back leaves
		}
		delete(p.sessions, oldest.key)
		gone = append(gone, oldest)
	}
	p.mu.Unlock()
	closeAll(gone)
}

// idle removes the sessions that nobody used for long.
func (p *pool) idle(now time.Time) (gone []*pooled) {
	for key, s := range p.sessions {
		if s.uses == 0 && now.Sub(s.last) > idleSession {
			delete(p.sessions, key)
			gone = append(gone, s)
		}
	}
	return gone
}

// close closes the sessions that nobody uses, and lets the others be closed as
// they are given back.
func (p *pool) close() error {
	p.mu.Lock()
	p.closed = true
	var gone []*pooled
	for key, s := range p.sessions {
		delete(p.sessions, key)
		if s.broken = true; s.uses == 0 {
			gone = append(gone, s)
		}
	}
	p.mu.Unlock()
	return closeAll(gone)
}

// closeAll closes sessions side by side: of each a server is told, which may be
// gone, and whoever asks for one session waits for all that were idle.
func closeAll(sessions []*pooled) error {
	errs := make([]error, len(sessions))
	var wg sync.WaitGroup
	for i, s := range sessions {
		if s.session == nil {
			continue
		}
		wg.Go(func() {
			done := make(chan error, 1)
			go func() {
				defer func() {
					if v := recover(); v != nil {
						done <- fmt.Errorf("psych: Session panicked as it was closed: %v", v)
					}
				}()
				done <- s.session.Close()
			}()
			late := time.NewTimer(closeTime)
			defer late.Stop()
			select {
			case errs[i] = <-done:
			case <-late.C:
				errs[i] = fmt.Errorf("psych: Session was not closed within %v, and was left behind: %w", closeTime, ErrUnavailable)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// A secretCache keeps credentials for a short while.
type secretCache struct {
	mu   sync.Mutex
	kept map[secretKey]keptSecret
}

type secretKey struct {
	scope     Digest
	name, url string
}

type keptSecret struct {
	Secret
	until time.Time
}

// guarded calls f, which is the program's own, and makes an error of its panic:
// it would end a process that serves others, and before anything is in the log
// that says so.
func (r *Runtime) guarded(ctx context.Context, what string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			r.log.ErrorContext(ctx, "a panic", "of", what, "stack", string(debug.Stack()))
			err = fmt.Errorf("psych: %s panicked: %v", what, v)
		}
	}()
	return f()
}

// errLeftBehind is matched by the error of what did not return when its context
// had ended.
var errLeftBehind = errors.New("it does not heed its context, and was left behind")

// heeding calls f, which is a port's, as guarded does, and returns at the latest
// heedTime after ctx ended: what does not heed it is left behind. What f returns
// then goes to late, if that is not nil, and nowhere else.
func heeding[T any](ctx context.Context, r *Runtime, what string, f func() (T, error), late func(T)) (T, error) {
	type end struct {
		v   T
		err error
	}
	ends, left := make(chan end), make(chan struct{})
	go func() {
		var e end
		e.err = r.guarded(ctx, what, func() (err error) {
			e.v, err = f()
			return err
		})
		select {
		case ends <- e:
		case <-left:
			if e.err == nil && late != nil {
				late(e.v)
			}
		}
	}()
	select {
	case e := <-ends:
		return e.v, e.err
	case <-ctx.Done():
	}
	timer := time.NewTimer(heedTime)
	defer timer.Stop()
	select {
	case e := <-ends:
		return e.v, e.err
	case <-timer.C:
		close(left)
		r.log.ErrorContext(ctx, "left behind: it does not heed its context", "what", what)
		var none T
		return none, fmt.Errorf("psych: %s: %w: %w", what, errLeftBehind, ctx.Err())
	}
}

// A heededSession is a Session whose lists are read within their context.
type heededSession struct {
	Session
	rt *Runtime
}

func (s heededSession) ListTools(ctx context.Context, cursor *string) (ToolPage, error) {
	return heeding(ctx, s.rt, "Session", func() (ToolPage, error) { return s.Session.ListTools(ctx, cursor) }, nil)
}

// secret resolves a connection's credential; stale is the identity of one that
// the server refused.
func (r *Runtime) secret(ctx context.Context, s Scope, c *Connection, stale string) (Secret, error) {
	if c.Credential == "" {
		return Secret{}, nil
	}
	if r.o.Secrets == nil {
		return Secret{}, fmt.Errorf("psych: connection %q wants the credential %q, and Options.Secrets is not set: %w", c.Name, c.Credential, ErrNotFound)
	}
	key, now := secretKey{s.key(), c.Credential, c.URL}, time.Now().Round(0)
	r.secrets.mu.Lock()
	k, ok := r.secrets.kept[key]
	r.secrets.mu.Unlock()
	if ok && now.Before(k.until) && (stale == "" || k.Identity != stale) {
		return k.Secret, nil
	}
	got, err := heeding(ctx, r, "Secrets", func() (Secret, error) {
		return r.o.Secrets.Secret(ctx, SecretRequest{Scope: s, Name: c.Credential, URL: c.URL, Stale: stale})
	}, nil)
	if err != nil {
		return Secret{}, fmt.Errorf("psych: credential %q of connection %q: %w", c.Credential, c.Name, err)
	}
	r.secrets.mu.Lock()
	defer r.secrets.mu.Unlock()
	if len(r.secrets.kept) >= maxCachedKinds || r.secrets.kept == nil {
		r.secrets.kept = map[secretKey]keptSecret{}
	}
	r.secrets.kept[key] = keptSecret{got, now.Add(keepSecret)}
	return got, nil
}

// session calls f with a session of the connection, and the key of its
// catalogue. A session that the server
// forgot is opened again once, and a credential that it refused is asked for
// again once.
func (r *Runtime) session(ctx context.Context, s Scope, c *Connection, f func(Session, catalogKey) error) error {
	if r.o.Connector == nil {
		return fmt.Errorf("psych: connection %q: Options.Connector is not set: %w", c.Name, ErrNotFound)
	}
	if len(c.Command) > 0 && !r.o.AllowCommands {
		return fmt.Errorf("psych: connection %q: this program starts no commands for a Spec: %w", c.Name, ErrAccessDenied)
	}
	stale := ""
	for lost, refused := false, false; ; {
		secret, err := r.secret(ctx, s, c, stale)
		if err != nil {
			return err
		}
		p, err := r.pool.take(ctx, sessionKey{s.key(), c.address(), secret.Identity, c.PerPrincipal}, func() (Session, error) { return r.connect(ctx, s, c, secret) })
		if err == nil {
			err = r.guarded(ctx, "Session", func() error { return f(p.session, newCatalogKey(s, c, secret.Identity)) })
			r.pool.give(p, errors.Is(err, ErrSessionLost) || errors.Is(err, ErrUnauthorized) || errors.Is(err, errLeftBehind))
		}
		switch {
		case errors.Is(err, ErrSessionLost) && !lost:
			lost = true
		case errors.Is(err, ErrUnauthorized) && !refused && c.Credential != "":
			refused, stale = true, secret.Identity
		default:
			return err
		}
	}
}

// connect opens a session. Its catalogue is read at the next turn: the server
// may have changed while nobody heard.
func (r *Runtime) connect(ctx context.Context, s Scope, c *Connection, secret Secret) (Session, error) {
	key := newCatalogKey(s, c, secret.Identity)
	session, err := heeding(ctx, r, "Connector", func() (Session, error) {
		return r.o.Connector.Connect(ctx, c, ConnectOptions{
			Scope: s, Secret: secret.Value,
			ListChanged: func() { r.catalogs.changed(key) },
			Log:         r.log.With("tenant", s.Tenant, "server", c.Name),
		})
	}, func(late Session) { _ = closeAll([]*pooled{{session: late}}) })
	switch {
	case err != nil:
		return nil, err
	case session == nil:
		return nil, fmt.Errorf("psych: connection %q: the Connector gave neither a Session nor an error: %w", c.Name, ErrUnavailable)
	}
	r.catalogs.changed(key)
	return session, nil
}
