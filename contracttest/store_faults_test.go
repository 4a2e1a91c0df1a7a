package contracttest_test

import (
	"context"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// A storeFaults is a sound Store whose methods a fake puts others before. The zero
// value of each forwards to the embedded Store.
type storeFaults struct {
	psych.Store

	// For every method, by its name: what it makes of its context, key or
	// tenant, and error.
	ctx    func(method string, ctx context.Context) context.Context
	key    func(method string, key psych.RunKey) psych.RunKey
	tenant func(method, tenant string) string
	err    func(method string, err error) error

	append  func(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error)
	read    func(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error)
	head    func(ctx context.Context, key psych.RunKey) (psych.Pos, error)
	create  func(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error)
	get     func(ctx context.Context, key psych.RunKey) (psych.RunInfo, error)
	post    func(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error
	pending func(ctx context.Context, key psych.RunKey) ([]psych.Note, error)
	settle  func(ctx context.Context, key psych.RunKey, notes []psych.Note) error
	claim   func(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error)
	renew   func(ctx context.Context, l psych.Lease, now time.Time, ttl time.Duration) (psych.Lease, error)
	release func(ctx context.Context, l psych.Lease, dueAt time.Time, status string) error
	deferTo func(ctx context.Context, info psych.RunInfo, now, to time.Time) error
	delete  func(ctx context.Context, key psych.RunKey, now time.Time) error
	purge   func(ctx context.Context, key psych.RunKey, now time.Time) error
	due     func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error)
	list    func(ctx context.Context, tenant, cursor string, limit int) ([]psych.RunInfo, string, error)
	putDoc  func(ctx context.Context, tenant string, d psych.Digest, data []byte) error
	getDoc  func(ctx context.Context, tenant string, d psych.Digest) ([]byte, error)
	dueRefs func(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RefKey, string, error)
	getRefs func(ctx context.Context, tenant string, names []string) (map[string]psych.Ref, error)
	swapRef func(ctx context.Context, tenant, name string, old, next psych.Ref) error
}

// storeMethods are the methods of a Store that take a context.
var storeMethods = []string{
	"Append", "Read", "Head", "CreateRun", "GetRun", "Post", "Pending", "Settle", "Claim", "Renew", "Release", "Defer",
	"DeleteRun", "PurgeRun", "Due", "ListRuns", "PutDoc", "GetDoc",
	"DueRefs", "GetRefs", "SwapRef",
}

// or returns the broken method if there is one, else the true one.
func or[F any](broken, truth F, isBroken bool) F {
	if isBroken {
		return broken
	}
	return truth
}

func (f *storeFaults) enter(method string, ctx context.Context, key psych.RunKey) (context.Context, psych.RunKey) {
	if f.ctx != nil {
		ctx = f.ctx(method, ctx)
	}
	if f.key != nil {
		key = f.key(method, key)
	}
	if f.tenant != nil {
		key.Tenant = f.tenant(method, key.Tenant)
	}
	return ctx, key
}

func (f *storeFaults) leave(method string, err error) error {
	if f.err != nil {
		return f.err(method, err)
	}
	return err
}

func (f *storeFaults) Append(ctx context.Context, key psych.RunKey, after psych.Pos, b psych.Batch) (psych.Pos, error) {
	ctx, key = f.enter("Append", ctx, key)
	pos, err := or(f.append, f.Store.Append, f.append != nil)(ctx, key, after, b)
	return pos, f.leave("Append", err)
}

func (f *storeFaults) Read(ctx context.Context, key psych.RunKey, after psych.Pos, limit int) (psych.Page, error) {
	ctx, key = f.enter("Read", ctx, key)
	page, err := or(f.read, f.Store.Read, f.read != nil)(ctx, key, after, limit)
	return page, f.leave("Read", err)
}

func (f *storeFaults) Head(ctx context.Context, key psych.RunKey) (psych.Pos, error) {
	ctx, key = f.enter("Head", ctx, key)
	pos, err := or(f.head, f.Store.Head, f.head != nil)(ctx, key)
	return pos, f.leave("Head", err)
}

func (f *storeFaults) CreateRun(ctx context.Context, info psych.RunInfo) (psych.RunInfo, bool, error) {
	ctx, info.Key = f.enter("CreateRun", ctx, info.Key)
	got, created, err := or(f.create, f.Store.CreateRun, f.create != nil)(ctx, info)
	return got, created, f.leave("CreateRun", err)
}

func (f *storeFaults) GetRun(ctx context.Context, key psych.RunKey) (psych.RunInfo, error) {
	ctx, key = f.enter("GetRun", ctx, key)
	info, err := or(f.get, f.Store.GetRun, f.get != nil)(ctx, key)
	return info, f.leave("GetRun", err)
}

func (f *storeFaults) Post(ctx context.Context, key psych.RunKey, n psych.Note, due time.Time) error {
	ctx, key = f.enter("Post", ctx, key)
	return f.leave("Post", or(f.post, f.Store.Post, f.post != nil)(ctx, key, n, due))
}

func (f *storeFaults) Pending(ctx context.Context, key psych.RunKey) ([]psych.Note, error) {
	ctx, key = f.enter("Pending", ctx, key)
	notes, err := or(f.pending, f.Store.Pending, f.pending != nil)(ctx, key)
	return notes, f.leave("Pending", err)
}

func (f *storeFaults) Settle(ctx context.Context, key psych.RunKey, notes []psych.Note) error {
	ctx, key = f.enter("Settle", ctx, key)
	return f.leave("Settle", or(f.settle, f.Store.Settle, f.settle != nil)(ctx, key, notes))
}

func (f *storeFaults) Claim(ctx context.Context, key psych.RunKey, owner, token string, now time.Time, ttl time.Duration) (psych.Lease, error) {
	ctx, key = f.enter("Claim", ctx, key)
	l, err := or(f.claim, f.Store.Claim, f.claim != nil)(ctx, key, owner, token, now, ttl)
	return l, f.leave("Claim", err)
}

func (f *storeFaults) Renew(ctx context.Context, l psych.Lease, now time.Time, ttl time.Duration) (psych.Lease, error) {
	ctx, l.Key = f.enter("Renew", ctx, l.Key)
	r, err := or(f.renew, f.Store.Renew, f.renew != nil)(ctx, l, now, ttl)
	return r, f.leave("Renew", err)
}

func (f *storeFaults) Release(ctx context.Context, l psych.Lease, dueAt time.Time, status string) error {
	ctx, l.Key = f.enter("Release", ctx, l.Key)
	return f.leave("Release", or(f.release, f.Store.Release, f.release != nil)(ctx, l, dueAt, status))
}

func (f *storeFaults) Defer(ctx context.Context, info psych.RunInfo, now, to time.Time) error {
	ctx, info.Key = f.enter("Defer", ctx, info.Key)
	return f.leave("Defer", or(f.deferTo, f.Store.Defer, f.deferTo != nil)(ctx, info, now, to))
}

func (f *storeFaults) DeleteRun(ctx context.Context, key psych.RunKey, now time.Time) error {
	ctx, key = f.enter("DeleteRun", ctx, key)
	return f.leave("DeleteRun", or(f.delete, f.Store.DeleteRun, f.delete != nil)(ctx, key, now))
}

func (f *storeFaults) PurgeRun(ctx context.Context, key psych.RunKey, now time.Time) error {
	ctx, key = f.enter("PurgeRun", ctx, key)
	return f.leave("PurgeRun", or(f.purge, f.Store.PurgeRun, f.purge != nil)(ctx, key, now))
}

func (f *storeFaults) Due(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RunKey, string, error) {
	if f.ctx != nil {
		ctx = f.ctx("Due", ctx)
	}
	keys, next, err := or(f.due, f.Store.Due, f.due != nil)(ctx, now, cursor, limit)
	return keys, next, f.leave("Due", err)
}

func (f *storeFaults) ListRuns(ctx context.Context, tenant, cursor string, limit int) ([]psych.RunInfo, string, error) {
	ctx, key := f.enter("ListRuns", ctx, psych.RunKey{Tenant: tenant, RunID: legalID})
	runs, next, err := or(f.list, f.Store.ListRuns, f.list != nil)(ctx, key.Tenant, cursor, limit)
	return runs, next, f.leave("ListRuns", err)
}

func (f *storeFaults) PutDoc(ctx context.Context, tenant string, d psych.Digest, data []byte) error {
	ctx, key := f.enter("PutDoc", ctx, psych.RunKey{Tenant: tenant, RunID: legalID})
	return f.leave("PutDoc", or(f.putDoc, f.Store.PutDoc, f.putDoc != nil)(ctx, key.Tenant, d, data))
}

func (f *storeFaults) GetDoc(ctx context.Context, tenant string, d psych.Digest) ([]byte, error) {
	ctx, key := f.enter("GetDoc", ctx, psych.RunKey{Tenant: tenant, RunID: legalID})
	data, err := or(f.getDoc, f.Store.GetDoc, f.getDoc != nil)(ctx, key.Tenant, d)
	return data, f.leave("GetDoc", err)
}

func (f *storeFaults) DueRefs(ctx context.Context, now time.Time, cursor string, limit int) ([]psych.RefKey, string, error) {
	if f.ctx != nil {
		ctx = f.ctx("DueRefs", ctx)
	}
	keys, next, err := or(f.dueRefs, f.Store.DueRefs, f.dueRefs != nil)(ctx, now, cursor, limit)
	return keys, next, f.leave("DueRefs", err)
}

func (f *storeFaults) GetRefs(ctx context.Context, tenant string, names []string) (map[string]psych.Ref, error) {
	ctx, key := f.enter("GetRefs", ctx, psych.RunKey{Tenant: tenant, RunID: legalID})
	refs, err := or(f.getRefs, f.Store.GetRefs, f.getRefs != nil)(ctx, key.Tenant, names)
	return refs, f.leave("GetRefs", err)
}

func (f *storeFaults) SwapRef(ctx context.Context, tenant, name string, old, next psych.Ref) error {
	ctx, key := f.enter("SwapRef", ctx, psych.RunKey{Tenant: tenant, RunID: legalID})
	return f.leave("SwapRef", or(f.swapRef, f.Store.SwapRef, f.swapRef != nil)(ctx, key.Tenant, name, old, next))
}

const legalID = "0123456789abcdef0123456789abcdef"
