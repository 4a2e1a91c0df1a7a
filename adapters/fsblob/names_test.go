package fsblob

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

var (
	safeName = regexp.MustCompile(`^[a-z0-9=._-]+$`)
	device   = regexp.MustCompile(`^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)`)
)

// checkName fails unless name is one on every filesystem: lower-case ASCII, so
// that case and Unicode forms can't fold two into one; no device of Windows; no
// dot at an end; at most 255 bytes; no temporary file.
func checkName(t interface{ Fatalf(string, ...any) }, of, name string) {
	if !safeName.MatchString(name) || device.MatchString(name) || name[0] == '.' || name[len(name)-1] == '.' || len(name) > 255 || isTemporary(name) {
		t.Fatalf("%q became %q, which is not a safe name", of, name)
	}
}

func TestTenantNames(t *testing.T) {
	for tenant, want := range map[string]string{
		"acme":                      "t-acme",
		"acme.com":                  "t-acme.com",
		"A":                         "t-=41",
		"a":                         "t-a",
		"..":                        "t-.=2e",
		"a/b":                       "t-a=2fb",
		"a%2Fb":                     "t-a=252=46b",
		"\x00":                      "t-=00",
		"con":                       "t-con",
		"é":                         "t-=c3=a9",
		"x=2f":                      "t-x=3d2f",
		"trailing.":                 "t-trailing=2e",
		strings.Repeat("a", 128):    "t-" + strings.Repeat("a", 128),
		strings.Repeat("A", 66):     "t-" + strings.Repeat("=41", 66),
		strings.Repeat("A", 67):     longPrefix + long.EncodeToString([]byte(strings.Repeat("A", 67))),
		strings.Repeat("\x00", 128): "x-" + strings.Repeat("0", 205),
		strings.Repeat("\xc3\xa9", 64)[:126] + "\xc3\xa9": longPrefix + long.EncodeToString([]byte(strings.Repeat("é", 64))),
	} {
		if got := tenantName(tenant); got != want {
			t.Errorf("tenantName(%q) = %q, want %q", tenant, got, want)
		}
	}
	for _, name := range []string{"", "t", "t-A", "t-=4", "t-=", "t-=4G", "t-=61", "t-a.", "t-=2E", "x-", "x-0", "x-00", "X-0", "acme", ".tmp-a", "t-" + strings.Repeat("=41", 67), "t-a/b"} {
		if tenant, ok := parseTenant(name); ok && name != "t-a/b" && tenantName(tenant) != name {
			t.Errorf("parseTenant(%q) = %q", name, tenant)
		} else if ok {
			t.Errorf("parseTenant(%q) accepts a name that tenantName never makes", name)
		}
	}
}

func TestTenantNamesReversible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tenant := rapid.OneOf(
			rapid.StringN(1, -1, 128),
			rapid.StringMatching(`[a-zA-Z0-9=.%/_-]{1,128}`),
			rapid.StringMatching(`[aA./=\x00]{60,128}`),
		).Draw(t, "tenant")
		checkTenantName(t, tenant)
	})
}

func FuzzTenantName(f *testing.F) {
	for _, s := range []string{"acme", "..", "a/b", "a%2Fb", "A", "\x00", strings.Repeat("é", 64), strings.Repeat("A", 66), strings.Repeat("A", 67), "x=2f", "."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) >= 1 && len(s) <= 128 && utf8.ValidString(s) {
			checkTenantName(t, s)
		}
		if tenant, ok := parseTenant(s); ok && tenantName(tenant) != s {
			t.Fatalf("parseTenant(%q) = %q, whose name is %q", s, tenant, tenantName(tenant))
		}
	})
}

func checkTenantName(t interface{ Fatalf(string, ...any) }, tenant string) {
	name := tenantName(tenant)
	checkName(t, tenant, name)
	if back, ok := parseTenant(name); !ok || back != tenant {
		t.Fatalf("%q became %q, and that %q, %v", tenant, name, back, ok)
	}
}

func TestCallNamesReversible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		call := rapid.StringMatching(`[a-z0-9_-][a-z0-9._-]{0,99}`).Draw(t, "call")
		name := blobPrefix + escape(call)
		checkName(t, call, name)
		if back, ok := unescape(strings.TrimPrefix(name, blobPrefix)); !ok || back != call {
			t.Fatalf("%q became %q, and that %q", call, name, back)
		}
	})
}
