package psych

import (
	"context"
	"strings"
	"testing"
)

// A Run keeps the rules of views and the defaults that it was admitted with:
// its bytes are the same under a release that has others.
func TestRunsKeepTheirProjection(t *testing.T) {
	text := newPayload("text/plain", []byte(strings.Repeat("0123456789", 2500)))
	shown := func(version int) string {
		t.Helper()
		spec := &Spec{Name: "n"}
		doc, hash, err := encodeVersion(spec, nil)
		if err != nil {
			t.Fatal(err)
		}
		l := newFold()
		docs := oneDoc{hash: hash, doc: doc}
		var page Page
		for _, e := range []Event{&AttemptStarted{}, &RunAdmitted{Version: hash, Projection: version}, message("m"), start(1), said(1, "a"), &ToolCallStarted{Call: "c1_1"}, &ToolCallFinished{Call: "c1_1", Outcome: Succeeded, Result: text}} {
			r := l.record(e)
			r.Seq = uint64(len(page.Entries) + 1)
			data, err := encodeRecord(r)
			if err != nil {
				t.Fatal(err)
			}
			page.Entries = append(page.Entries, Entry{Seq: r.Seq, Kind: e.Kind(), Time: r.Time, Data: data})
		}
		s := newState(testRun, Limits{})
		if err := foldPage(context.Background(), s, docs, page); err != nil {
			t.Fatal(err)
		}
		return string(s.appendAnswer(nil, s.batch.calls[0], nil))
	}
	before := shown(1)
	if !strings.Contains(before, "… 23000 characters left out …") {
		t.Fatalf("shown: %.1100q", before)
	}
	newer := projections[1]
	newer.defaults.PreviewChars, newer.leftOut = 200, "\n[%d characters are not shown]\n"
	current := projectionVersion
	projections[1000], projectionVersion = newer, 1000
	defer func() {
		delete(projections, 1000)
		projectionVersion = current
	}()
	if after := shown(1); after != before {
		t.Errorf("under a newer release it is shown as %.300q", after)
	}
	if after := shown(1000); !strings.Contains(after, "[24600 characters are not shown]") {
		t.Errorf("a new Run is shown %.500q", after)
	}
}

type oneDoc struct {
	hash Digest
	doc  []byte
}

func (d oneDoc) PutDoc(context.Context, string, Digest, []byte) error { return nil }

func (d oneDoc) GetDoc(_ context.Context, _ string, hash Digest) ([]byte, error) {
	if hash != d.hash {
		return nil, ErrNotFound
	}
	return d.doc, nil
}
