package psych_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/psych-go/psych-go/psych"
)

type attachFunc func(ctx context.Context, c *psych.Call) (*psych.Result, error)

func attacher(f attachFunc) *psych.Tool {
	return psych.NewRawTool(psych.ToolDef{Name: "make"}, f, &psych.ToolOptions{Timeout: 10 * time.Second})
}

func write(t testing.TB, c *psych.Call, name, ct, text string, o *psych.AttachOptions) {
	t.Helper()
	w, err := c.Attach(name, ct, o)
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Error(err)
	}
}

const once = "steps: [{calls: [{name: make}]}, {text: done}]"

func TestAttachments(t *testing.T) {
	big := strings.Repeat("0123456789\n", 30_000)
	h := newHarness(t, once, attacher(func(_ context.Context, c *psych.Call) (*psych.Result, error) {
		write(t, c, "stdout", "text/plain", big, nil)
		write(t, c, "file:report.csv", "text/csv", "a,b\n1,2\n", nil)
		write(t, c, "stderr", "text/plain", "tiny", nil)
		write(t, c, "shot", "image/png", "\x89PNG\xff", nil)
		write(t, c, "cut", "text/plain", strings.Repeat("ä", 1000), &psych.AttachOptions{MaxBytes: 101})
		write(t, c, "empty", "text/plain", "", nil)
		return psych.Text("made"), nil
	}))
	key := h.start("go")
	h.drive(key)
	rep := h.report(key)
	if rep.Status != psych.StatusCompleted {
		t.Fatalf("%s: %+v", rep.Status, rep.Exchanges)
	}
	var got []string
	for _, a := range rep.ToolCalls[0].Attachments {
		got = append(got, fmt.Sprintf("%s %s %s %d %d %v %s %v %v", a.Name, a.Handle, a.ContentType, a.SizeBytes, a.ObservedBytes, a.Truncated, a.Stored, a.Readable, a.Preview != ""))
	}
	want := []string{
		"stdout out_c1_1_stdout text/plain 330000 330000 false blob true true",
		"file:report.csv out_c1_1_file-report-csv text/csv 8 8 false inline true false",
		"stderr out_c1_1_stderr text/plain 4 4 false inline true false",
		"shot out_c1_1_shot image/png 5 5 false inline false false",
		"cut out_c1_1_cut text/plain 100 2000 true inline true false",
		"empty out_c1_1_empty text/plain 0 0 false inline true false",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("attachments\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
	if a := rep.ToolCalls[0].Attachments[0]; a.SHA256 != sha256.Sum256([]byte(big)) {
		t.Error("the SHA-256 is another")
	}
	text, err := h.model.Requests()[1].Text()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{
		"made\n\n[attachment \"stdout\", text/plain, 330000 bytes, handle \"out_c1_1_stdout\"]\n0123456789\n",
		"… 328000 characters left out …", "handle \"out_c1_1_stdout\".]",
		"[attachment \"file:report.csv\", text/csv, 8 bytes, handle \"out_c1_1_file-report-csv\"]\na,b\n1,2\n",
		"[image/png, 5 bytes, binary.", "cut: 2000 bytes were written]\n" + strings.Repeat("ä", 50),
	} {
		if !strings.Contains(text, s) {
			t.Errorf("the model was not shown %q", s)
		}
	}
	h.restart()
	w, err := h.rt.Output(context.Background(), key, "out_c1_1_stdout", psych.OutputQuery{Offset: 29_999, Unit: psych.UnitLines})
	if err != nil || w.Text != "0123456789\n" || !w.AtEnd {
		t.Errorf("%+v, %v", w, err)
	}
	for _, handle := range []string{"out_c1_1_nothing", "out_c1_1_", "out_c1_1_stdout_", "out_c1_1_STDOUT", "out_c1__stdout"} {
		if _, err := h.rt.Output(context.Background(), key, handle, psych.OutputQuery{}); !errors.Is(err, psych.ErrNotFound) {
			t.Errorf("%s: %v", handle, err)
		}
	}
}

func TestAttachmentNames(t *testing.T) {
	var open *psych.Call
	h := newHarness(t, once, attacher(func(_ context.Context, c *psych.Call) (*psych.Result, error) {
		open = c
		for _, name := range []string{"a", "A", "a", "result", "args", "../../x", strings.Repeat("long", 75), "\x00", "日本"} {
			write(t, c, name, "text/plain", "x", nil)
		}
		for name, want := range map[string]error{"": psych.ErrInvalid, "\xff": psych.ErrInvalid} {
			if _, err := c.Attach(name, "text/plain", nil); !errors.Is(err, want) {
				t.Errorf("name %q: %v", name, err)
			}
		}
		return nil, nil
	}))
	var got []string
	for _, a := range h.run().ToolCalls[0].Attachments {
		got = append(got, strings.TrimPrefix(a.Handle, "out_c1_1_"))
		if len(a.Name) > 256 {
			t.Errorf("a name of %d bytes is recorded", len(a.Name))
		}
	}
	if open == nil {
		t.Fatal("the tool did not run")
	}
	if _, err := open.Attach("late", "text/plain", nil); !errors.Is(err, psych.ErrInvalid) {
		t.Errorf("an attachment of a call that is over: %v", err)
	}
	if want := "a a-2 a-3 result-2 args-2 -x " + strings.Repeat("long", 10) + " - --2"; strings.Join(got, " ") != want {
		t.Errorf("slots\n got %s\nwant %s", strings.Join(got, " "), want)
	}
}

// A hundred attachments share the record's room; the largest leave first. The
// hundred-and-first is refused, and the call goes on.
func TestManyAttachments(t *testing.T) {
	var refused error
	h := newHarness(t, once, attacher(func(_ context.Context, c *psych.Call) (*psych.Result, error) {
		for i := range psych.MaxAttachments {
			write(t, c, fmt.Sprint("n", i), "text/plain", strings.Repeat("x", 500+50*i), nil)
		}
		_, refused = c.Attach("one more", "text/plain", nil)
		return psych.Text("ok"), nil
	}))
	rep := h.run()
	if !errors.Is(refused, psych.ErrInvalid) || rep.Status != psych.StatusCompleted {
		t.Fatalf("%v, %s %+v", refused, rep.Status, rep.Exchanges)
	}
	inline, blobs := 0, 0
	for i, a := range rep.ToolCalls[0].Attachments {
		switch a.Stored {
		case psych.StoredInline:
			inline++
			if blobs > 0 {
				t.Errorf("attachment %d of %d bytes is inline, and a smaller one left", i, a.SizeBytes)
			}
		case psych.StoredBlob:
			blobs++
		}
	}
	t.Logf("%d inline, %d in the BlobStore", inline, blobs)
	if inline+blobs != 100 || blobs == 0 {
		t.Errorf("%d inline, %d in the BlobStore", inline, blobs)
	}
	text, err := h.model.Requests()[1].Text()
	if err != nil {
		t.Fatal(err)
	}
	// Those so short that a preview would show everything are there whole.
	for i, a := range rep.ToolCalls[0].Attachments {
		whole := strings.Contains(text, "handle \""+a.Handle+"\"]\n"+strings.Repeat("x", int(a.SizeBytes)))
		if a.SizeBytes <= 2000 && !whole {
			t.Errorf("attachment %d of %d bytes, %s, is not shown whole", i, a.SizeBytes, a.Stored)
		}
	}
}

func TestAttachmentsWithoutBlobStore(t *testing.T) {
	tool := func(required bool) *psych.Tool {
		return attacher(func(_ context.Context, c *psych.Call) (*psych.Result, error) {
			write(t, c, "log", "text/plain", "BEGIN"+strings.Repeat("x", 300_000)+"END", &psych.AttachOptions{Required: required})
			write(t, c, "small", "text/plain", "kept", nil)
			return psych.Text("ok"), nil
		})
	}
	h := newHarness(t, once, tool(false))
	h.o.Blobs = nil
	h.restart()
	rep := h.run()
	a := rep.ToolCalls[0].Attachments[0]
	if rep.ToolCalls[0].Outcome != "succeeded" || a.Stored != psych.StoredPreview || a.Readable || a.SizeBytes != 300_008 || !strings.HasPrefix(a.Preview, "BEGIN") || !strings.Contains(a.Preview, "END\n[") {
		t.Errorf("%+v", rep.ToolCalls[0])
	}
	if _, err := h.rt.Output(context.Background(), rep.Run, a.Handle, psych.OutputQuery{}); err == nil || !strings.Contains(err.Error(), "preview") {
		t.Errorf("reading what was let go: %v", err)
	}
	for name, spec := range map[string]bool{"by the tool": false, "by the Spec": true} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, once, tool(!spec))
			h.o.Blobs = nil
			h.spec.Limits.OutputsRequired = spec
			h.restart()
			rep := h.run()
			c := rep.ToolCalls[0]
			if c.Outcome != "failed" || c.Code != psych.CodeNoBlobStore || rep.Status != psych.StatusCompleted {
				t.Errorf("%s, %+v", rep.Status, c)
			}
			if w, err := h.rt.Output(context.Background(), rep.Run, "out_c1_1_small", psych.OutputQuery{}); err != nil || w.Text != "kept" {
				t.Errorf("what fitted: %+v, %v", w, err)
			}
		})
	}
}

type slowReader struct {
	ctx context.Context
	n   int
}

// Read gives a line a second, until its context ends.
func (r *slowReader) Read(p []byte) (int, error) {
	select {
	case <-time.After(time.Second):
		r.n++
		return copy(p, fmt.Sprintf("line %d\n", r.n)), nil
	case <-r.ctx.Done():
		return 0, r.ctx.Err()
	}
}

// A tool that fails or is stopped in the middle keeps what it produced.
func TestStreamsKeepWhatCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "steps: [{calls: [{name: stream}, {name: make}, {name: fails}]}, {text: done, require: ['handle .out_c1_1_partial-result.', 'stopped after 10s', 'gave up', 'handle .out_c1_2_progress.', 'broke in the middle']}]",
			psych.NewRawTool(psych.ToolDef{Name: "stream"}, func(ctx context.Context, c *psych.Call) (*psych.Result, error) {
				return &psych.Result{ContentType: "text/plain", Body: &slowReader{ctx: ctx}}, nil
			}, &psych.ToolOptions{Timeout: 10 * time.Second}),
			attacher(func(ctx context.Context, c *psych.Call) (*psych.Result, error) {
				w, err := c.Attach("progress", "text/plain", nil)
				if err != nil {
					return nil, err
				}
				io.WriteString(w, "half way") // and never closed
				return nil, errors.New("gave up")
			}),
			psych.NewRawTool(psych.ToolDef{Name: "fails"}, func(ctx context.Context, c *psych.Call) (*psych.Result, error) {
				body := io.MultiReader(strings.NewReader(strings.Repeat("y", 200_000)), badReader{})
				return &psych.Result{ContentType: "text/plain", Body: wrapErr{body}}, nil
			}, nil),
		)
		rep := h.run()
		if rep.Status != psych.StatusCompleted {
			t.Fatalf("%s: %+v", rep.Status, rep.Exchanges)
		}
		for i, want := range []struct{ outcome, handle, text string }{
			{"unknown", "out_c1_1_partial-result", "line 1\nline 2\n"},
			{"failed", "out_c1_2_progress", "half way"},
			{"failed", "out_c1_3_partial-result", strings.Repeat("y", 20_000)},
		} {
			c := rep.ToolCalls[i]
			w, err := h.rt.Output(context.Background(), rep.Run, want.handle, psych.OutputQuery{Unit: psych.UnitChars})
			if c.Outcome != want.outcome || err != nil || !strings.HasPrefix(w.Text, want.text) {
				t.Errorf("%s %s: %+v, %v", c.Name, c.Outcome, w, err)
			}
		}
		if a := rep.ToolCalls[2].Attachments[0]; a.SizeBytes != 200_000 || a.Stored != psych.StoredBlob || !a.Truncated {
			t.Errorf("%+v", a)
		}
	})
}

type wrapErr struct{ io.Reader }

func (r wrapErr) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && err != io.EOF {
		err = errors.New("broke in the middle")
	}
	return n, err
}

func TestMessageAttachments(t *testing.T) {
	h := newHarness(t, "steps: [{text: a, require: ['see this', 'attachment .notes.txt., text/plain, 11 bytes.\\s+hello notes', 'image/png, 3 bytes, binary']}, {text: b}]")
	ctx := context.Background()
	v, err := h.rt.Publish(ctx, "t", &h.spec)
	if err != nil {
		t.Fatal(err)
	}
	m := psych.ClientMessage{ID: "m", Text: "see this", Attachments: []psych.MessageAttachment{
		{Name: "notes.txt", ContentType: "text/plain", Data: []byte("hello notes")},
		{Name: "dot.png", ContentType: "image/png", Data: []byte{0x89, 0xff, 0}},
	}}
	key, err := h.rt.Start(ctx, psych.Scope{Tenant: "t"}, v.Hash, m)
	if err != nil {
		t.Fatal(err)
	}
	h.drive(key)
	if rep := h.report(key); rep.Status != psych.StatusCompleted {
		t.Fatalf("%s: %+v", rep.Status, rep.Exchanges)
	}
	m.Attachments[0].Data = []byte("other notes")
	if _, err := h.rt.Start(ctx, psych.Scope{Tenant: "t"}, v.Hash, m); !errors.Is(err, psych.ErrConflict) {
		t.Errorf("the same key with other attachments: %v", err)
	}
	big := bytes.Repeat([]byte("z"), 400_000)
	if err := h.rt.Send(ctx, key, psych.ClientMessage{ID: "big", Text: "more", Attachments: []psych.MessageAttachment{{Name: "a", ContentType: "text/plain", Data: big}, {Name: "b", ContentType: "text/plain", Data: []byte("tail")}}}); err != nil {
		t.Fatal(err)
	}
	h.restart()
	h.drive(key)
	sent := h.model.Requests()
	if z := sent[len(sent)-1].Zone(3); !bytes.Contains(z, big) || !bytes.Contains(z, []byte("tail")) {
		t.Error("a large attachment did not come whole")
	}
	for name, bad := range map[string]psych.ClientMessage{
		"too large together": {Text: "x", Attachments: []psych.MessageAttachment{{Name: "a", Data: make([]byte, 1<<20)}}},
		"no name":            {Text: "x", Attachments: []psych.MessageAttachment{{Data: big}}},
		"too many":           {Text: "x", Attachments: make([]psych.MessageAttachment, 101)},
	} {
		if err := h.rt.Send(ctx, key, bad); !errors.Is(err, psych.ErrInvalid) && !errors.Is(err, psych.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSkills(t *testing.T) {
	h := newHarness(t, `
steps:
- calls: [{name: load_skill, arguments: {name: tides}}, {name: load_skill, arguments: {name: tide}}]
  require: ['- tides: When to sail']
  forbid: ['at noon']
- text: done
  require: ['at noon', 'no skill .*There are: tides']
`)
	h.spec.Skills = []psych.Skill{{Name: "tides", Description: "When to sail.", Body: "High water is at noon. " + strings.Repeat("n", 19_000)}}
	h.spec.Limits.LargeResultTokens = 100
	rep := h.run()
	if rep.Status != psych.StatusCompleted || rep.ToolCalls[0].Preview != "" || rep.ToolCalls[1].Outcome != "failed" {
		t.Errorf("%s %+v %+v", rep.Status, rep.Exchanges, rep.ToolCalls)
	}
	bad := psych.Spec{Name: "x", Skills: []psych.Skill{{Name: "a b", Description: "two\nlines", Body: ""}, {Name: "ok", Description: "", Body: strings.Repeat("x", 20_001)}, {Name: "ok", Description: "d", Body: "b"}}}
	var spec *psych.SpecError
	if err := bad.Check(); !errors.As(err, &spec) || len(spec.Problems) != 6 {
		t.Errorf("%v", err)
	}
}

// Whatever a call leaves behind fits into its record, or is said not to: it is
// never run again for that, and never lost.
func TestOutputsThatFillARecord(t *testing.T) {
	cjk := func(n int) string { return strings.Repeat("語", n) }
	for _, c := range []struct {
		name  string
		blobs bool
		leave func(t *testing.T, c *psych.Call) string
	}{
		{"many that a preview is larger than", false, func(t *testing.T, c *psych.Call) string {
			for i := range 100 {
				write(t, c, fmt.Sprint("a", i), "text/plain", strings.Repeat("x", 1490), nil)
			}
			return "ok"
		}},
		{"a full record and a large one", false, func(t *testing.T, c *psych.Call) string {
			write(t, c, "emoji", "text/plain", strings.Repeat("👍", 100_000), nil)
			return strings.Repeat("r", 126_000)
		}},
		{"a hundred large ones", false, func(t *testing.T, c *psych.Call) string {
			for i := range 100 {
				write(t, c, fmt.Sprint("a", i), "text/plain", strings.Repeat("x", 200_000), nil)
			}
			return strings.Repeat("r", 60_000)
		}},
		{"long names", true, func(t *testing.T, c *psych.Call) string {
			for i := range 100 {
				write(t, c, fmt.Sprint(i, cjk(300)), "text/plain", strings.Repeat("x", 780), nil)
			}
			return "ok"
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			runs := 0
			tool := psych.NewRawTool(psych.ToolDef{Name: "make"}, func(_ context.Context, call *psych.Call) (*psych.Result, error) {
				runs++
				return psych.Text(c.leave(t, call)), nil
			}, &psych.ToolOptions{Idempotent: true})
			h := newHarness(t, once, tool)
			if !c.blobs {
				h.o.Blobs = nil
				h.restart()
			}
			rep := h.run()
			if call := rep.ToolCalls[0]; rep.Status != psych.StatusCompleted || runs != 1 || call.Outcome != "succeeded" || len(call.Attachments) == 0 {
				t.Errorf("%s, ran %d times, %s %s with %d attachments", rep.Status, runs, call.Outcome, call.Code, len(call.Attachments))
			}
		})
	}
}

// What of a call lies in the BlobStore for lack of room is shown whole or as a
// preview that says so, never cut in silence.
func TestNothingIsCutInSilence(t *testing.T) {
	shown := func(t *testing.T, h *harness) string {
		t.Helper()
		rep := h.run()
		if rep.Status != psych.StatusCompleted {
			t.Fatalf("%s %+v", rep.Status, rep.Exchanges)
		}
		text, err := h.model.Requests()[1].Text()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	t.Run("a short result beside many attachments", func(t *testing.T) {
		h := newHarness(t, once, attacher(func(_ context.Context, c *psych.Call) (*psych.Result, error) {
			for i := range 100 {
				write(t, c, fmt.Sprint("a", i), "text/plain", strings.Repeat("x", 1300), nil)
			}
			return psych.Text(strings.Repeat("語", 1900) + "ENDE"), nil
		}))
		if text := shown(t, h); !strings.Contains(text, "語ENDE") {
			t.Error("the end of the result is not shown")
		}
	})
	t.Run("a page that left its record", func(t *testing.T) {
		h := newHarness(t, once, psych.NewRawTool(psych.ToolDef{Name: "make"}, func(_ context.Context, c *psych.Call) (*psych.Result, error) {
			for i := range 2 {
				write(t, c, fmt.Sprint("a", i), "text/plain", strings.Repeat("x", 59_000), nil)
			}
			return psych.Text(strings.Repeat("語", 20_000)), nil
		}, &psych.ToolOptions{Pages: true}))
		if text := shown(t, h); !strings.Contains(text, "… 18000 characters left out …") {
			t.Error("the page is neither whole nor said to be cut")
		}
	})
	t.Run("short outputs that were let go", func(t *testing.T) {
		h := newHarness(t, once, attacher(func(_ context.Context, c *psych.Call) (*psych.Result, error) {
			for i := range 10 {
				write(t, c, fmt.Sprint("a", i), "text/plain", strings.Repeat("x", 1490)+fmt.Sprintf("END%03d", i), nil)
			}
			return psych.Text(strings.Repeat("r", 110_000)), nil
		}))
		h.o.Blobs = nil
		h.restart()
		text := shown(t, h)
		for i := range 10 {
			if end := fmt.Sprintf("xEND%03d", i); !strings.Contains(text, end) {
				t.Errorf("%s is not shown", end)
			}
		}
	})
}

// An attachment that can't be stored does not take the result with it.
func TestAttachmentThatCannotBeStored(t *testing.T) {
	for name, required := range map[string]bool{"wanted": false, "required": true} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, once, attacher(func(_ context.Context, c *psych.Call) (*psych.Result, error) {
				w, err := c.Attach("log", "text/plain", &psych.AttachOptions{Required: required})
				if err != nil {
					return nil, err
				}
				io.WriteString(w, strings.Repeat("x", 300_000))
				return psych.Text("the result"), nil
			}))
			h.o.Blobs = &flakyBlobs{BlobStore: h.blobs}
			h.restart()
			rep := h.run()
			c := rep.ToolCalls[0]
			if want := map[bool]string{false: "succeeded", true: "failed"}[required]; c.Outcome != want {
				t.Errorf("%+v, want %s", c, want)
			}
			if len(c.Attachments) != 1 || c.Attachments[0].Stored != psych.StoredPreview || !c.Attachments[0].Truncated || c.Attachments[0].Readable {
				t.Errorf("%+v", c.Attachments)
			}
		})
	}
}

// A message takes its whole megabyte, however it is cut into attachments.
func TestMessageOfAHundredAttachments(t *testing.T) {
	ctx := context.Background()
	h := newHarness(t, "steps: [{text: a}]")
	v, err := h.rt.Publish(ctx, "t", &h.spec)
	if err != nil {
		t.Fatal(err)
	}
	m := psych.ClientMessage{ID: "m", Text: "these"}
	for i := range 100 {
		m.Attachments = append(m.Attachments, psych.MessageAttachment{Name: fmt.Sprint("file", i), ContentType: "text/plain", Data: []byte(strings.Repeat("z", 10_000) + fmt.Sprintf("END%03d", i))})
	}
	key, err := h.rt.Start(ctx, psych.Scope{Tenant: "t"}, v.Hash, m)
	if err != nil {
		t.Fatal(err)
	}
	h.drive(key)
	sent := string(h.model.Requests()[0].Zone(3))
	for i := range 100 {
		if !strings.Contains(sent, fmt.Sprintf("zEND%03d", i)) {
			t.Errorf("attachment %d did not come whole", i)
		}
	}
	m = psych.ClientMessage{Text: "x"}
	for range 100 {
		m.Attachments = append(m.Attachments, psych.MessageAttachment{Name: strings.Repeat("名", 250), Data: []byte("x")})
	}
	if err := h.rt.Send(ctx, key, m); !errors.Is(err, psych.ErrTooLarge) {
		t.Errorf("names of 75 KB: %v", err)
	}
}
