package memory

import (
	"errors"
	"testing"
	"time"

	"github.com/psych-go/psych-go/psych"
)

// A cursor that is taken is one that its list returns, and no other list's.
func FuzzCursor(f *testing.F) {
	key := psych.RunKey{Tenant: "a\x00é", RunID: "0123456789abcdef0123456789abcdef"}
	for _, s := range []string{
		formatDueCursor(key), formatListCursor(&psych.RunInfo{Key: key, CreatedAt: time.Unix(1, 0)}), formatListCursor(&psych.RunInfo{Key: key, CreatedAt: time.UnixMicro(-1)}),
		"l" + key.RunID + "+1", "l" + key.RunID + "01", "d" + key.RunID, "d" + key.RunID + "YR", "d" + key.RunID + "YQ\n", formatRefCursor(psych.RefKey{Tenant: "t", Name: "n"}), "rYQ.Y\rQ",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if s == "" {
			return // the begin of each
		}
		due, dueErr := parseDueCursor(s)
		list, listErr := parseListCursor(s)
		ref, refErr := parseRefCursor(s)
		switch {
		case dueErr == nil && listErr == nil || dueErr == nil && refErr == nil || listErr == nil && refErr == nil:
			t.Fatalf("two lists take %q", s)
		case refErr == nil && formatRefCursor(ref) != s:
			t.Fatalf("DueRefs takes %q for %+v, which it writes as %q", s, ref, formatRefCursor(ref))
		case refErr != nil && !errors.Is(refErr, psych.ErrInvalid):
			t.Fatalf("%q: %v", s, refErr)
		case dueErr == nil && formatDueCursor(due) != s:
			t.Fatalf("Due takes %q for %+v, which it writes as %q", s, due, formatDueCursor(due))
		case listErr == nil && formatListCursor(&list) != s:
			t.Fatalf("ListRuns takes %q for %+v, which it writes as %q", s, list, formatListCursor(&list))
		case dueErr != nil && !errors.Is(dueErr, psych.ErrInvalid) || listErr != nil && !errors.Is(listErr, psych.ErrInvalid):
			t.Fatalf("%q: %v, %v", s, dueErr, listErr)
		}
	})
}
