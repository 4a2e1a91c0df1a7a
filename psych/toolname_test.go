package psych

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestToolName(t *testing.T) {
	for _, c := range []struct{ server, tool, want string }{
		{"github", "create_issue", "github__create_issue"},
		{"GitHub", "create-issue", "GitHub__create-issue"},
		{"a", strings.Repeat("t", 61), "a__" + strings.Repeat("t", 61)}, // 64 characters
		{"a", "t_deadbee", "a__t_deadbee"},
		{"a", "tdeadbeef", "a__tdeadbeef"},

		{"a", strings.Repeat("t", 62), "a__" + strings.Repeat("t", 52) + "_"},
		{"a", "read file", "a__read_file_"},
		{"a", "lire.é", "a__lire___"},
		{"a", "", "a__"},
		{"a__b", "c", "a__b__c_"},
		{"a", "b__c", "a__b__c_"},
		{"a_", "b", "a___b_"},
		{"a", "_b", "a___b_"},
		{"a", "t_deadbeef", "a__t_deadbeef_"},
		{"a", "t_DEADBEEF", "a__t_DEADBEEF_"},
		{"a", "deadbeef", "a__deadbeef_"},
	} {
		// A want that ends in _ is that of a suffix too.
		got, want := ToolName(c.server, c.tool), c.want
		if strings.HasSuffix(want, "_") && c.tool != "" {
			if len(got) != len(want)+hashChars || !wireSuffix(got) || len(got) > 64 {
				t.Errorf("%q, %q: got %q, want %q and a suffix", c.server, c.tool, got, want)
			}
			got = strings.TrimSuffix(got, got[min(len(want), len(got)):])
		}
		if got != want {
			t.Errorf("%q, %q: got %q, want %q", c.server, c.tool, got, want)
		}
	}
	// The rule is a format: names are in logs and in what models were sent.
	for pair, want := range map[[2]string]string{
		{"a", "read file"}: "a__read_file_38870f2c",
		{"a__b", "c"}:      "a__b__c_a92700ce",
		{"a", "b__c"}:      "a__b__c_01b8a75b",
	} {
		if got := ToolName(pair[0], pair[1]); got != want {
			t.Errorf("%q: got %q, want %q", pair, got, want)
		}
	}
}

// pairsThatLookAlike are drawn from few characters, those that the rule turns
// on.
func pairsThatLookAlike() *rapid.Generator[[2]string] {
	part := rapid.OneOf(
		rapid.StringOfN(rapid.SampledFrom([]rune("aA_-. é")), 0, 5, -1),
		rapid.StringOfN(rapid.SampledFrom([]rune("a_")), 50, 70, -1),
		rapid.SampledFrom([]string{"a", "A", "a_", "_a", "a__a", "deadbeef", "a_deadbeef", "a_DEADBEEF", "_deadbeef"}),
	)
	return rapid.Custom(func(t *rapid.T) [2]string { return [2]string{part.Draw(t, "server"), part.Draw(t, "tool")} })
}

// A name is legal; without a suffix it gives both names back; it is no other
// pair's, and not that of a call of a name that a model made up.
func TestToolNamesAreLegalAndDiffer(t *testing.T) {
	of := map[string][2]string{}
	rapid.Check(t, func(t *rapid.T) {
		for range 20 {
			pair := pairsThatLookAlike().Draw(t, "pair")
			name := ToolName(pair[0], pair[1])
			if !legalName.MatchString(name) || wireName(name) != name {
				t.Fatalf("%q is %q on the wire", pair, name)
			}
			if again := ToolName(pair[0], pair[1]); again != name {
				t.Fatalf("%q is %q, then %q", pair, name, again)
			}
			if !wireSuffix(name) {
				if server, tool, _ := strings.Cut(name, "__"); server != pair[0] || tool != pair[1] {
					t.Fatalf("%q is %q, which is of %q and %q", pair, name, server, tool)
				}
			}
			if other, ok := of[name]; ok && other != pair {
				t.Fatalf("%q and %q are both %q", other, pair, name)
			}
			of[name] = pair
			if problem := toolNameProblem(name); problem == "" && !wireSuffix(name) {
				t.Fatalf("%q is %q, which a code tool may have", pair, name)
			}
		}
	})
	if len(of) < 300 {
		t.Errorf("%d different names: the test shows little", len(of))
	}
}

func FuzzToolName(f *testing.F) {
	f.Add("a__b", "c", "a", "b__c")
	f.Add("a_", "b", "a", "_b")
	f.Add("a", "b", "A", "b")
	f.Add("a", "b c", "a", "b.c")
	f.Add("a", "x_0123abcd", strings.Repeat("a", 60), "\xff")
	f.Fuzz(func(t *testing.T, s1, t1, s2, t2 string) {
		a, b := ToolName(s1, t1), ToolName(s2, t2)
		if !legalName.MatchString(a) || !legalName.MatchString(b) {
			t.Fatalf("%q, %q: %q; %q, %q: %q", s1, t1, a, s2, t2, b)
		}
		// With a NUL in a server's name, which none has, the hash may be one.
		if same := s1 == s2 && t1 == t2; same != (a == b) && !strings.Contains(s1+s2, "\x00") {
			t.Fatalf("%q, %q and %q, %q: %q and %q", s1, t1, s2, t2, a, b)
		}
	})
}
