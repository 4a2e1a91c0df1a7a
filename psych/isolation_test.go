package psych_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psych-go/psych-go/adapters/fsblob"
	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/psych"
)

// A tenancy is a store in which a victim has everything that a Run can have: a
// log, results and attachments in the BlobStore, a note that waits, a Version
// and a ref. Somebody else has a Run of his own.
type tenancy struct {
	*harness
	victim, other, own psych.RunKey // another Run of the victim's tenant; one of tenant bystander
	version            psych.Digest
	blob               psych.BlobKey
	ref                psych.Ref
	lease              psych.Lease
	cursor             string
	head               psych.Pos
}

const isolationScript = `
steps:
- calls: [{name: report, arguments: {}}, {name: sized, arguments: {n: 200000}}]
- text: secret answer
- text: more
- text: and more
`

// report attaches, so that its outputs have handles of several kinds.
var report = psych.NewTool("report", "", func(_ context.Context, c *psych.Call, _ struct{}) (string, error) {
	w, err := c.Attach("table.csv", "text/csv", nil)
	if err != nil {
		return "", err
	}
	if _, err := io.WriteString(w, strings.Repeat(c.Scope.Tenant+",1\n", 40_000)); err != nil {
		return "", err
	}
	return "made for " + c.Scope.Tenant, w.Close()
}, nil)

func newTenancy(t *testing.T, blobs psych.BlobStore) *tenancy {
	t.Helper()
	ctx := context.Background()
	h := newHarness(t, isolationScript, report, sized)
	h.blobs = blobs
	h.o.Blobs = blobs
	h.spec.Instructions = "The victim's own instructions."
	h.restart()
	w := &tenancy{harness: h}
	begin := func(tenant, id string) psych.RunKey {
		spec := h.spec
		spec.Instructions += tenant[:1]
		v, err := h.rt.Publish(ctx, tenant, &spec)
		if err != nil {
			t.Fatal(err)
		}
		key, err := h.rt.Start(ctx, psych.Scope{Tenant: tenant, Principal: "p"}, v.Hash, psych.ClientMessage{ID: id, Text: "go " + tenant})
		if err != nil {
			t.Fatal(err)
		}
		if tenant == "victim" {
			w.version = v.Hash
		}
		h.drive(key)
		return key
	}
	w.victim, w.other, w.own = begin("victim", "m1"), begin("victim", "m2"), begin("bystander", "m1")
	w.blob = psych.BlobKey{Tenant: "victim", RunID: w.victim.RunID, CallID: "c1_2.result.1"}
	if _, err := blobs.Stat(ctx, w.blob); err != nil {
		t.Fatal(err)
	}
	w.ref = psych.Ref{Doc: w.version, Seq: 1}
	if err := h.tap.SwapRef(ctx, "victim", "pointer", psych.Ref{}, w.ref); err != nil {
		t.Fatal(err)
	}
	if err := h.rt.Send(ctx, w.victim, psych.ClientMessage{ID: "waits", Text: "waiting"}); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.lease, err = h.tap.Claim(ctx, w.victim, "owner", "token", time.Now(), time.Minute); err != nil {
		t.Fatal(err)
	}
	if w.head, err = h.tap.Head(ctx, w.victim); err != nil {
		t.Fatal(err)
	}
	if _, w.cursor, err = h.tap.ListRuns(ctx, "victim", "", 1); err != nil || w.cursor == "" {
		t.Fatal("no cursor", err)
	}
	return w
}

// everything is all that the victim's tenant has, read past the tap.
func (w *tenancy) everything() string {
	w.t.Helper()
	ctx := context.Background()
	s := w.tap.Store
	var b strings.Builder
	for _, key := range []psych.RunKey{w.victim, w.other} {
		info, err := s.GetRun(ctx, key)
		page, err2 := s.Read(ctx, key, psych.Pos{}, 1000)
		notes, err3 := s.Pending(ctx, key)
		if err := errors.Join(err, err2, err3); err != nil {
			w.t.Fatal(err)
		}
		fmt.Fprintln(&b, info, page, notes)
		for _, segment := range []string{"c1_1.result.1", "c1_1.table-csv.1", "c1_2.result.1"} {
			r, info, err := w.blobs.Open(ctx, psych.BlobKey{Tenant: key.Tenant, RunID: key.RunID, CallID: segment}, 0, -1)
			if errors.Is(err, psych.ErrNotFound) {
				continue
			}
			if err != nil {
				w.t.Fatal(err)
			}
			data, err := io.ReadAll(r)
			if err := errors.Join(err, r.Close()); err != nil {
				w.t.Fatal(err)
			}
			fmt.Fprintln(&b, segment, info, sha256.Sum256(data))
		}
	}
	runs, _, err := s.ListRuns(ctx, "victim", "", 100)
	doc, err2 := s.GetDoc(ctx, "victim", w.version)
	refs, err3 := s.GetRefs(ctx, "victim", []string{"pointer"})
	if err := errors.Join(err, err2, err3); err != nil {
		w.t.Fatal(err)
	}
	fmt.Fprintln(&b, runs, string(doc), refs)
	return b.String()
}

// An attempt on an address is made with somebody else's key, and with one
// where nothing ever was.
type attempt struct {
	name string
	do   func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error)
	want error // nil: it has no effect, and no error
}

func said(v any, err error) (string, error) { return fmt.Sprintf("%+v", v), err }

func failed(err error) (string, error) { return "", err }

var someEntry = psych.Entry{Seq: 1, Kind: psych.KindAttemptStarted, Data: []byte("{}")}

var attempts = []attempt{
	// The ports.
	{"Store.Append", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		e := someEntry
		e.Seq = w.head.Seq + 1
		return said(w.tap.Append(ctx, key, w.head, psych.Batch{Token: "x", Entries: []psych.Entry{e}}))
	}, psych.ErrConflict},
	{"Store.Append at the start", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return said(w.tap.Append(ctx, key, psych.Pos{}, psych.Batch{Token: "x", Entries: []psych.Entry{someEntry}}))
	}, nil}, // it makes a log that nobody can read
	{"Store.Read", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return said(w.tap.Read(ctx, key, psych.Pos{}, 10))
	}, psych.ErrNotFound},
	{"Store.Read behind a position", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return said(w.tap.Read(ctx, key, psych.Pos{Seq: w.head.Seq - 1, Mark: w.head.Mark}, 10))
	}, psych.ErrNotFound},
	{"Store.Head", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return said(w.tap.Head(ctx, key))
	}, psych.ErrNotFound},
	{"Store.GetRun", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return said(w.tap.GetRun(ctx, key))
	}, psych.ErrNotFound},
	{"Store.Post", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return failed(w.tap.Post(ctx, key, psych.Note{ID: "waits", Kind: psych.KindUserMessage, Time: time.Now(), Data: []byte("x")}, time.Now()))
	}, psych.ErrNotFound},
	{"Store.Pending", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return said(w.tap.Pending(ctx, key))
	}, psych.ErrNotFound},
	{"Store.Settle", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		notes, err := w.tap.Store.Pending(ctx, w.victim)
		if err != nil || len(notes) == 0 {
			return "", errors.Join(err, io.ErrUnexpectedEOF)
		}
		return failed(w.tap.Settle(ctx, key, notes))
	}, nil},
	{"Store.Claim", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return said(w.tap.Claim(ctx, key, "owner", "token", time.Now().Add(time.Hour), time.Minute))
	}, psych.ErrNotFound},
	{"Store.Renew", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		l := w.lease
		l.Key = key
		return said(w.tap.Renew(ctx, l, time.Now(), time.Minute))
	}, psych.ErrNotFound},
	{"Store.Release", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		l := w.lease
		l.Key = key
		return failed(w.tap.Release(ctx, l, time.Time{}, psych.StatusFailed))
	}, psych.ErrNotFound},
	{"Store.Defer", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		info, err := w.tap.Store.GetRun(ctx, w.victim)
		if err != nil {
			return "", err
		}
		info.Key = key
		return failed(w.tap.Defer(ctx, info, time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)))
	}, psych.ErrNotFound},
	{"Store.DeleteRun", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return failed(w.tap.DeleteRun(ctx, key, time.Now()))
	}, nil},
	{"Store.PurgeRun", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return failed(w.tap.PurgeRun(ctx, key, time.Now().Add(2*psych.TombstoneLife)))
	}, nil},
	{"Store.CreateRun", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		info, created, err := w.tap.CreateRun(ctx, psych.RunInfo{Key: key, CreatedAt: time.Unix(1, 0)})
		return fmt.Sprint(info, created), err
	}, nil}, // a Run of its own
	{"BlobStore.Open", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		r, info, err := w.blobs.Open(ctx, psych.BlobKey{Tenant: key.Tenant, RunID: key.RunID, CallID: w.blob.CallID}, 0, -1)
		if err == nil {
			r.Close()
		}
		return said(info, err)
	}, psych.ErrNotFound},
	{"BlobStore.Stat", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return said(w.blobs.Stat(ctx, psych.BlobKey{Tenant: key.Tenant, RunID: key.RunID, CallID: w.blob.CallID}))
	}, psych.ErrNotFound},
	{"BlobStore.Put", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return said(w.blobs.Put(ctx, psych.BlobKey{Tenant: key.Tenant, RunID: key.RunID, CallID: w.blob.CallID}, "text/plain", strings.NewReader("overwritten")))
	}, nil}, // an address of its own
	{"BlobStore.Delete", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return failed(w.blobs.Delete(ctx, psych.BlobKey{Tenant: key.Tenant, RunID: key.RunID, CallID: w.blob.CallID}))
	}, nil},
	{"BlobStore.DeleteRun", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return failed(w.blobs.DeleteRun(ctx, key))
	}, nil},

	// The Runtime.
	{"Send", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return failed(w.rt.Send(ctx, key, psych.ClientMessage{ID: "x", Text: "x"}))
	}, psych.ErrNotFound},
	{"Send, large", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return failed(w.rt.Send(ctx, key, psych.ClientMessage{ID: "x", Text: strings.Repeat("x", 1<<20)}))
	}, psych.ErrNotFound},
	{"Abort", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return failed(w.rt.Abort(ctx, key, psych.AbortRequest{ID: "x", Message: "m1"}))
	}, psych.ErrNotFound},
	{"Drive", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return said(w.rt.Drive(ctx, key, nil))
	}, psych.ErrNotFound},
	{"Report", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return said(w.rt.Report(ctx, key))
	}, psych.ErrNotFound},
	{"Records", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		for r, err := range w.rt.Records(ctx, key, psych.Pos{}) {
			return said(r, err)
		}
		return "nothing", nil
	}, psych.ErrNotFound},
	{"Records behind a position", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		pos, err := psych.ParsePos(psych.Pos{Seq: w.head.Seq - 1, Mark: w.head.Mark}.String())
		if err != nil {
			return "", err
		}
		for r, err := range w.rt.Records(ctx, key, pos) {
			return said(r, err)
		}
		return "nothing", nil
	}, psych.ErrNotFound},
	{"Output", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return said(w.rt.Output(ctx, key, "out_c1_2", psych.OutputQuery{}))
	}, psych.ErrNotFound},
	{"Delete", func(ctx context.Context, w *tenancy, key psych.RunKey) (string, error) {
		return failed(w.rt.Delete(ctx, key))
	}, nil},
}

// bare is an answer without the address that it names.
func bare(key psych.RunKey, answer string, err error) string {
	return strings.NewReplacer(fmt.Sprintf("%q", key.Tenant), "TENANT", key.RunID, "RUN", key.Tenant, "TENANT").Replace(fmt.Sprintf("%s, %v", answer, err))
}

// Every method with another tenant's key, and with ids of the same tenant at
// which nothing is: nothing is read, nothing is changed, and the answer is the
// same for what is not yours and for what is not there.
func TestIsolation(t *testing.T) {
	ctx := context.Background()
	for blobs, open := range map[string]func() psych.BlobStore{
		"memory": func() psych.BlobStore { return memory.NewBlobs(nil) },
		"fsblob": func() psych.BlobStore { return fsblob.New(t.TempDir(), nil) },
	} {
		w := newTenancy(t, open())
		for _, a := range attempts {
			t.Run(blobs+"/"+a.name, func(t *testing.T) {
				if strings.Contains(a.name, "Delete") || strings.Contains(a.name, "Create") || strings.Contains(a.name, "Append") || strings.Contains(a.name, "Purge") || strings.Contains(a.name, "Put") {
					w = newTenancy(t, open()) // they leave something of their own
				}
				w.t = t
				was := w.everything()
				for i, tenant := range []string{"bystander", "victim2", "victi", "VICTIM", "victim/", "victim\x00", "bystander/../victim", "victim"} {
					key, missing := psych.RunKey{Tenant: tenant, RunID: w.victim.RunID}, psych.RunKey{Tenant: tenant, RunID: fmt.Sprintf("0123456789abcdef%016x", i)}
					if tenant == "victim" {
						if a.name == "Store.CreateRun" {
							continue // is a Run of that tenant
						}
						key.RunID = strings.Repeat("f", 32)
					}
					there, err := a.do(ctx, w, missing)
					if !errors.Is(err, a.want) {
						t.Errorf("%s, where nothing is: %s, %v; want %v", missing, there, err, a.want)
					}
					want := bare(missing, there, err)
					yours, err := a.do(ctx, w, key)
					if got := bare(key, yours, err); got != want {
						t.Errorf("%s tells what is not yours from what is not there:\n%s\n%s", key, got, want)
					}
				}
				if is := w.everything(); is != was {
					t.Errorf("the victim's Runs are not what they were:\n%.2000s\nwere\n%.2000s", is, was)
				}
			})
		}
	}
}

// What is addressed by a tenant and a name or content.
func TestIsolationOfVersionsAndRefs(t *testing.T) {
	ctx := context.Background()
	w := newTenancy(t, memory.NewBlobs(nil))
	was := w.everything()
	none := psych.Digest(sha256.Sum256([]byte("nothing")))
	names := strings.NewReplacer(w.version.String(), "VERSION", none.String(), "VERSION")
	for name, do := range map[string]func(d psych.Digest) error{
		"GetDoc": func(d psych.Digest) error { return second(w.tap.GetDoc(ctx, "bystander", d)) },
		"Start": func(d psych.Digest) error {
			return second(w.rt.Start(ctx, psych.Scope{Tenant: "bystander"}, d, psych.ClientMessage{ID: "x", Text: "x"}))
		},
	} {
		foreign, missing := do(w.version), do(none)
		if !errors.Is(foreign, psych.ErrNotFound) || names.Replace(foreign.Error()) != names.Replace(missing.Error()) {
			t.Errorf("%s: not yours: %v; not there: %v", name, foreign, missing)
		}
	}
	if refs, err := w.tap.GetRefs(ctx, "bystander", []string{"pointer", "nothing"}); err != nil || len(refs) != 0 {
		t.Errorf("refs: %v, %v", refs, err)
	}
	next := psych.Ref{Doc: none, Seq: 2}
	foreign, missing := w.tap.SwapRef(ctx, "bystander", "pointer", w.ref, next), w.tap.SwapRef(ctx, "bystander", "nothing", w.ref, next)
	if !errors.Is(foreign, psych.ErrConflict) || strings.ReplaceAll(foreign.Error(), "pointer", "nothing") != missing.Error() {
		t.Errorf("swap: not yours: %v; not there: %v", foreign, missing)
	}
	if err := w.tap.SwapRef(ctx, "bystander", "pointer", psych.Ref{}, psych.Ref{Doc: none, Seq: 1}); err != nil {
		t.Errorf("a ref of one's own with another's name: %v", err)
	}
	// A cursor of another tenant's list lists nothing of that tenant.
	runs, _, err := w.tap.ListRuns(ctx, "bystander", w.cursor, 100)
	if err != nil && !errors.Is(err, psych.ErrInvalid) {
		t.Error(err)
	}
	for _, r := range runs {
		if r.Key.Tenant != "bystander" {
			t.Errorf("listed with another's cursor: %v", r.Key)
		}
	}
	if runs, _, err := w.tap.ListRuns(ctx, "bystander", "", 100); err != nil || len(runs) != 1 || runs[0].Key != w.own {
		t.Errorf("listed: %v, %v", runs, err)
	}
	if is := w.everything(); is != was {
		t.Error("the victim's tenant is not what it was")
	}
}

// The same principal and message of two tenants, and two principals of one,
// are Runs of their own.
func TestIsolationOfRunIDs(t *testing.T) {
	ctx := context.Background()
	h := newHarness(t, "steps: [{text: a}]")
	seen := map[string]string{}
	for _, tenant := range []string{"a", "b", "ab"} {
		v, err := h.rt.Publish(ctx, tenant, &h.spec)
		if err != nil {
			t.Fatal(err)
		}
		for _, principal := range []string{"", "p", "b", "bp", "p\x00"} {
			for _, id := range []string{"m", "bm", "pm", "p"} {
				key, err := h.rt.Start(ctx, psych.Scope{Tenant: tenant, Principal: principal}, v.Hash, psych.ClientMessage{ID: id, Text: "x"})
				if err != nil {
					t.Fatal(err)
				}
				who := fmt.Sprintf("%q %q %q", tenant, principal, id)
				if seen[key.RunID] != "" {
					t.Errorf("%s and %s share a Run id", who, seen[key.RunID])
				}
				seen[key.RunID] = who
			}
		}
	}
}

// Two tenants whose Runs have the same id, driven in turn by one process with
// its caches: nothing of the one reaches the other's model, tools or outputs.
func TestIsolationInOneProcess(t *testing.T) {
	ctx := context.Background()
	h := newHarness(t, "steps: [{calls: [{name: report}, {name: who}]}, {text: done}, {calls: [{name: read_tool_output, arguments: {handle: out_c1_1_table-csv}}]}, {text: done}, {text: done}]", report,
		psych.NewTool("who", "", func(_ context.Context, c *psych.Call, _ struct{}) (string, error) {
			if c.Run.Tenant != c.Scope.Tenant || c.Scope.Labels["of"] != c.Scope.Tenant {
				t.Errorf("a call of %v has the Scope %+v", c.Run, c.Scope)
			}
			return "I am " + c.Scope.Tenant, nil
		}, nil))
	id := strings.Repeat("a", 32)
	tenants := []string{"tenant-one", "tenant-two"}
	for _, tenant := range tenants {
		v, err := h.rt.Publish(ctx, tenant, &h.spec)
		if err != nil {
			t.Fatal(err)
		}
		info := psych.RunInfo{Key: psych.RunKey{Tenant: tenant, RunID: id}, Scope: psych.Scope{Tenant: tenant, Labels: map[string]string{"of": tenant}}, Version: v.Hash, Incarnation: "i", CreatedAt: time.Now(), Status: psych.StatusOpen}
		if _, _, err := h.tap.CreateRun(ctx, info); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 3 {
		for i, tenant := range tenants {
			key := psych.RunKey{Tenant: tenant, RunID: id}
			if err := h.rt.Send(ctx, key, psych.ClientMessage{ID: fmt.Sprint("m", n), Text: "said by " + tenant}); err != nil {
				t.Fatal(err)
			}
			before := len(h.model.Requests())
			h.drive(key)
			for _, r := range h.model.Requests()[before:] {
				if body := r.Body(); bytes.Contains(body, []byte(tenants[1-i])) || !bytes.Contains(body, []byte("said by "+tenant)) {
					t.Errorf("the model of %s was sent %.300s", tenant, body)
				}
			}
		}
	}
	for i, tenant := range tenants {
		w, err := h.rt.Output(ctx, psych.RunKey{Tenant: tenant, RunID: id}, "out_c1_1", psych.OutputQuery{})
		if err != nil || strings.Contains(w.Text, tenants[1-i]) || !strings.Contains(w.Text, tenant) {
			t.Errorf("output of %s: %+v, %v", tenant, w, err)
		}
	}
}

// openedBlobs counts what is opened.
type openedBlobs struct {
	psych.BlobStore
	opened []psych.BlobKey
}

func (b *openedBlobs) Open(ctx context.Context, key psych.BlobKey, offset, length int64) (io.ReadCloser, psych.BlobInfo, error) {
	b.opened = append(b.opened, key)
	return b.BlobStore.Open(ctx, key, offset, length)
}

func (b *openedBlobs) Stat(ctx context.Context, key psych.BlobKey) (psych.BlobInfo, error) {
	b.opened = append(b.opened, key)
	return b.BlobStore.Stat(ctx, key)
}

// A handle of another Run, of another tenant's Run, of nobody, and what looks
// like an address: the model is told the same, nothing is read, the exchange
// ends, and the next one works.
func TestIsolationOfHandles(t *testing.T) {
	ctx := context.Background()
	handles := regexp.MustCompile(`out_[^\s".]*`)
	var want string
	for _, handle := range []string{"out_c7_7", "out_c1_2", "out_c1_1_table-csv", "out_../../victim", "out_c1_2.result.1", "out_"} {
		blobs := &openedBlobs{BlobStore: memory.NewBlobs(nil)}
		w := newTenancy(t, blobs) // whose Runs have out_c1_2 and out_c1_1_…
		was := w.everything()
		w.play(fmt.Sprintf("steps: [{calls: [{name: read_tool_output, arguments: {handle: %q}}]}, {text: fine}]", handle))
		w.restart()
		spec := w.spec
		v, err := w.rt.Publish(ctx, "bystander", &spec)
		if err != nil {
			t.Fatal(err)
		}
		key, err := w.rt.Start(ctx, psych.Scope{Tenant: "bystander"}, v.Hash, psych.ClientMessage{ID: "asks", Text: "read it"})
		if err != nil {
			t.Fatal(err)
		}
		blobs.opened = nil
		out, err := w.rt.Drive(ctx, key, nil)
		var corrupt *psych.CorruptionError
		if out != psych.Closed || !errors.As(err, &corrupt) || corrupt.Reason != psych.InvalidDeferredHandle || !errors.Is(err, psych.ErrAccessDenied) {
			t.Errorf("%s: %v, %v", handle, out, err)
		}
		rep := w.report(key)
		if rep.Status != psych.StatusFailed || len(rep.ToolCalls) != 1 || rep.ToolCalls[0].Code != psych.CodeInvalidHandle {
			t.Errorf("%s: %s, %+v", handle, rep.Status, rep.ToolCalls)
		}
		told, err := w.rt.Output(ctx, key, "out_c1_1", psych.OutputQuery{})
		if err != nil {
			t.Fatal(err)
		}
		got := handles.ReplaceAllString(told.Text, "HANDLE")
		if handle == "out_c7_7" {
			want = got
		}
		if handles.MatchString(handle) && !strings.ContainsAny(handle, "./") && got != want {
			t.Errorf("%s: the model is told\n%s\nand of one that never was\n%s", handle, got, want)
		}
		// So is the caller.
		none := second(w.rt.Output(ctx, key, "out_c9_9", psych.OutputQuery{}))
		if err := second(w.rt.Output(ctx, key, handle, psych.OutputQuery{})); !errors.Is(err, psych.ErrNotFound) || strings.ReplaceAll(err.Error(), fmt.Sprintf("%q", handle), `"out_c9_9"`) != none.Error() {
			t.Errorf("Output of %s: %v; of nothing: %v", handle, err, none)
		}
		if len(blobs.opened) != 0 {
			t.Errorf("%s: opened %v", handle, blobs.opened)
		}
		if err := w.rt.Send(ctx, key, psych.ClientMessage{Text: "go on"}); err != nil {
			t.Fatal(err)
		}
		w.drive(key)
		if rep := w.report(key); rep.Status != psych.StatusCompleted {
			t.Errorf("%s: the next message: %s", handle, rep.Status)
		}
		if w.everything() != was {
			t.Errorf("%s: the victim's Runs are not what they were", handle)
		}
	}
}

// A spill is what was written somewhere while a test ran.
type spill struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *spill) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

// finds reports in which form a secret stands in data.
func finds(data []byte, secret string) string {
	for form, s := range map[string]string{
		"plain": secret, "hex": hex.EncodeToString([]byte(secret)), "base64": base64.RawStdEncoding.EncodeToString([]byte(secret))[:len(secret)], "quoted": strings.Trim(fmt.Sprintf("%q", secret), `"`),
	} {
		if bytes.Contains(data, []byte(s)) {
			return form
		}
	}
	return ""
}

// A secret in the environment, in the labels of a Scope and in what a tool
// closes over is in no record, note, blob, log line, error or report, and in
// no request to the model, whatever goes wrong. What was said in a Run is in
// no log line and no error either.
func TestCanary(t *testing.T) {
	const secret, said = "canary-7f3e9b41-secret", "payload-c0ffee-of-the-conversation"
	t.Setenv("PSYCH_TEST_CANARY", secret)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	for _, goes := range []string{"well", "tool fails", "tool panics", "tool is late", "model fails", "foreign handle", "killed", "blobs fail", "aborted", "withheld", "unreadable"} {
		t.Run(goes, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := context.Background()
				logs := &spill{}
				tool := psych.NewTool("tool", "", func(ctx context.Context, c *psych.Call, in struct {
					Text string `json:"text"`
				}) (*psych.Result, error) {
					if os.Getenv("PSYCH_TEST_CANARY") != secret || c.Scope.Labels["token"] != secret {
						t.Error("the tool can't have what it needs")
					}
					c.Log.InfoContext(ctx, "tool runs")
					switch goes {
					case "tool fails", "withheld":
						return nil, errors.New("it failed with " + in.Text)
					case "tool panics":
						panic(in.Text)
					case "tool is late":
						<-ctx.Done()
						time.Sleep(time.Minute)
					}
					w, err := c.Attach("more", "text/plain", nil)
					if err != nil {
						return nil, err
					}
					if _, err := io.WriteString(w, strings.Repeat(in.Text, 10_000)); err != nil {
						return nil, err
					}
					return psych.Text(in.Text), w.Close()
				}, nil)
				call := fmt.Sprintf("{calls: [{name: tool, arguments: {text: %q}}]}", said)
				script := "steps: [" + call + ", {text: done}, {text: again}]"
				switch goes {
				case "model fails":
					script = "steps: [{fail: 500, times: 9}, {text: again}]"
				case "foreign handle":
					script = "steps: [{calls: [{name: read_tool_output, arguments: {handle: out_c4_4}}]}, {text: again}]"
				case "withheld":
					script = "steps: [" + strings.Repeat(call+", ", 4) + "{text: done}, {text: again}]"
				}
				h := newHarness(t, script, tool)
				h.o.Logger = slog.New(slog.NewJSONHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true}))
				if goes == "blobs fail" {
					h.o.Blobs = brokenBlobs{h.blobs}
				}
				h.restart()
				v, err := h.rt.Publish(ctx, "t", &h.spec)
				if err != nil {
					t.Fatal(err)
				}
				scope := psych.Scope{Tenant: "t", Principal: "p", Labels: map[string]string{"token": secret}}
				key, err := h.rt.Start(ctx, scope, v.Hash, psych.ClientMessage{ID: "m1", Text: said})
				if err != nil {
					t.Fatal(err)
				}
				var errs []error
				switch goes {
				case "killed":
					killer(h, 3, true)
				case "aborted":
					errs = append(errs, h.rt.Abort(ctx, key, psych.AbortRequest{Reason: said}))
				case "unreadable":
					h.unreplayable = true
					errs = append(errs, second(h.tap.Append(ctx, key, psych.Pos{}, psych.Batch{Token: "x", Entries: []psych.Entry{{Seq: 1, Kind: psych.KindUserMessage, Data: []byte(said)}}})))
				}
				dctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
				defer cancel()
				_, err = h.rt.Drive(dctx, key, nil)
				errs = append(errs, err)
				h.tap.hook(nil, nil)
				time.Sleep(5 * time.Minute)
				errs = append(errs, h.rt.Send(ctx, key, psych.ClientMessage{ID: "m2", Text: "and then"}), second(h.rt.Drive(ctx, key, nil)),
					second(h.rt.Output(ctx, key, "out_c8_8", psych.OutputQuery{})),
					second(h.rt.Start(ctx, scope, v.Hash, psych.ClientMessage{ID: "m1", Text: "another text"})),
					h.rt.Send(ctx, key, psych.ClientMessage{ID: strings.Repeat("x", 200), Text: said}))
				rep, err := h.rt.Report(ctx, key)
				errs = append(errs, err)
				o := h.o
				o.Waker = wakerFunc(func(...psych.RunKey) error { return psych.ErrUnavailable })
				sweeper, err := psych.New(h.tap, &o)
				if err != nil {
					t.Fatal(err)
				}
				_, _, err = sweeper.Sweep(ctx, "")
				errs = append(errs, err)

				written := map[string][]byte{"the log lines": logs.b.Bytes()}
				page, err := h.tap.Store.Read(ctx, key, psych.Pos{}, 1000)
				if err != nil || len(page.Entries) == 0 {
					t.Fatal(err)
				}
				for _, e := range page.Entries {
					written["records"] = append(written["records"], e.Data...)
				}
				notes, err := h.tap.Store.Pending(ctx, key)
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range notes {
					written["notes"] = append(written["notes"], n.Data...)
				}
				if written["the report"], err = json.Marshal(rep); err != nil {
					t.Fatal(err)
				}
				if rep != nil {
					var text bytes.Buffer
					if err := rep.WriteText(&text); err != nil {
						t.Fatal(err)
					}
					written["the printed report"] = text.Bytes()
				}
				for _, err := range errs {
					if err != nil {
						written["errors"] = append(written["errors"], err.Error()...)
					}
				}
				for _, segment := range []string{"c1_1.result.1", "c1_1.more.1"} {
					if r, _, err := h.blobs.Open(ctx, psych.BlobKey{Tenant: "t", RunID: key.RunID, CallID: segment}, 0, -1); err == nil {
						data, _ := io.ReadAll(r)
						r.Close()
						written["blobs"] = append(written["blobs"], data...)
					}
				}
				for _, r := range h.model.Requests() {
					written["requests"] = append(written["requests"], r.Body()...)
				}
				for what, data := range written {
					if form := finds(data, secret); form != "" {
						t.Errorf("the secret stands (%s) in %s", form, what)
					}
				}
				for _, what := range []string{"the log lines", "errors"} {
					if finds(written[what], said) != "" {
						t.Errorf("what was said stands in %s: %s", what, written[what])
					}
				}
				if goes != "unreadable" && finds(written["records"], said) == "" {
					t.Error("nothing was looked for: what was said is in no record")
				}
				if len(written["log lines"])+len(written["errors"]) == 0 {
					t.Error("nothing was looked for: there are no errors")
				}
			})
		})
	}
}

// brokenBlobs keeps nothing.
type brokenBlobs struct{ psych.BlobStore }

func (brokenBlobs) Put(context.Context, psych.BlobKey, string, io.Reader) (psych.BlobInfo, error) {
	return psych.BlobInfo{}, fmt.Errorf("put: %w", psych.ErrUnavailable)
}
