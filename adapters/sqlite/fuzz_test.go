package sqlite

import (
	"errors"
	"testing"

	"github.com/psych-go/psych-go/psych"
)

// A cursor that is taken is one that its list returns, and no other list's.
func FuzzCursor(f *testing.F) {
	for _, p := range []place{{}, {1, "tenant", "0123456789abcdef0123456789abcdef"}, {-1, "\x00.", "é"}} {
		for _, list := range []string{dueCursor, refsCursor, listCursor} {
			f.Add(p.cursor(list))
		}
	}
	for _, s := range []string{"d", "d1", "d+1..", "d01..", "d1.YQ==.", "d1.YR.", "d1.Y\nQ.", "x1.."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if s == "" {
			return // the begin of each
		}
		taken := 0
		for _, list := range []string{dueCursor, refsCursor, listCursor} {
			p, err := parsePlace(list, s, place{})
			if err == nil {
				taken++
				if p.cursor(list) != s {
					t.Fatalf("list %q takes %q for %+v, which it writes as %q", list, s, p, p.cursor(list))
				}
			} else if !errors.Is(err, psych.ErrInvalid) {
				t.Fatalf("%q: %v", s, err)
			}
		}
		if taken > 1 {
			t.Fatalf("%d lists take %q", taken, s)
		}
	})
}
