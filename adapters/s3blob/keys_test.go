package s3blob

import (
	"encoding/base64"
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/psych-go/psych-go/psych"
)

// parseTenant reverses tenantName; ok is false for what that never returns.
func parseTenant(name string) (tenant string, ok bool) {
	if long, found := strings.CutPrefix(name, longPrefix); found {
		b, err := base64.RawURLEncoding.DecodeString(long)
		if err != nil {
			return "", false
		}
		tenant = string(b)
	} else if tenant, ok = unescape(name); !ok {
		return "", false
	}
	return tenant, tenantName(tenant) == name
}

func unescape(name string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if name[i] != '=' {
			b.WriteByte(name[i])
			continue
		}
		if i+2 >= len(name) {
			return "", false
		}
		hi, lo := strings.IndexByte(hexDigits, name[i+1]), strings.IndexByte(hexDigits, name[i+2])
		if hi < 0 || lo < 0 {
			return "", false
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	return b.String(), true
}

func TestTenantNames(t *testing.T) {
	for tenant, want := range map[string]string{
		"acme":                      "acme",
		"Acme_1.com":                "Acme_1.com",
		".":                         "=2e",
		"..":                        "=2e=2e",
		"...":                       "=2e.=2e",
		"a/b":                       "a=2fb",
		"a//b":                      "a=2f=2fb",
		"a%2Fb":                     "a=252Fb",
		"a=2fb":                     "a=3d2fb",
		"\x00":                      "=00",
		"a b+c":                     "a=20b=2bc",
		"é":                         "=c3=a9",
		"trailing.":                 "trailing=2e",
		"==YQ":                      "=3d=3dYQ",
		strings.Repeat("a", 128):    strings.Repeat("a", 128),
		strings.Repeat("/", 85):     strings.Repeat("=2f", 85),
		strings.Repeat("/", 86):     "==" + base64.RawURLEncoding.EncodeToString([]byte(strings.Repeat("/", 86))),
		strings.Repeat("\x00", 128): "==" + strings.Repeat("A", 171),
	} {
		if got := tenantName(tenant); got != want {
			t.Errorf("tenantName(%q) = %q, want %q", tenant, got, want)
		}
		checkTenantName(t, tenant)
	}
	for _, name := range []string{"=", "=4", "=4G", "=41", "=2E", "a.", ".a", "==", "==YQ", "==Y", "===", "a/b", "é"} {
		if tenant, ok := parseTenant(name); ok {
			t.Errorf("parseTenant(%q) = %q: tenantName never makes that name", name, tenant)
		}
	}
}

var safeSegment = regexp.MustCompile(`^[A-Za-z0-9=_-]([A-Za-z0-9=_.-]*[A-Za-z0-9=_-])?$`)

func checkTenantName(t interface{ Fatalf(string, ...any) }, tenant string) {
	name := tenantName(tenant)
	if !safeSegment.MatchString(name) || len(name) > 255 {
		t.Fatalf("%q became %q, which is no safe segment", tenant, name)
	}
	if back, ok := parseTenant(name); !ok || back != tenant {
		t.Fatalf("%q became %q, and that %q, %v", tenant, name, back, ok)
	}
}

func TestTenantNamesReversible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		checkTenantName(t, rapid.OneOf(
			rapid.StringN(1, -1, 128),
			rapid.StringMatching(`[a-zA-Z0-9=.%/_-]{1,128}`),
			rapid.StringMatching(`[aA./=\x00]{60,128}`),
		).Draw(t, "tenant"))
	})
}

func FuzzTenantName(f *testing.F) {
	for _, s := range []string{"acme", "..", "a/b", "a%2Fb", "A", "\x00", strings.Repeat("é", 64), strings.Repeat("/", 85), strings.Repeat("/", 86), "a=2f", ".", "=="} {
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

func TestKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := New(nil, "bucket", strings.Repeat("p", rapid.SampledFrom([]int{0, 1, maxPrefix}).Draw(t, "prefix")), nil)
		k := psych.BlobKey{
			Tenant: rapid.StringN(1, -1, 128).Draw(t, "tenant"),
			RunID:  rapid.StringMatching(`[0-9a-f]{32}`).Draw(t, "run"),
			CallID: rapid.StringMatching(`[a-z0-9_-][a-z0-9._-]{0,98}[a-z0-9._-]`).Draw(t, "call"),
		}
		if err := k.Check(); err != nil {
			t.Skip(err)
		}
		key := s.key(k)
		if len(key) > 1024 || path.Clean("/"+key) != "/"+key || !strings.HasPrefix(key, s.run(k.Run())) {
			t.Fatalf("%s became %q", k, key)
		}
		parts := strings.Split(strings.TrimPrefix(key, s.prefix), "/")
		call, ok := unescape(parts[len(parts)-1])
		if tenant, tok := parseTenant(parts[0]); len(parts) != 3 || !ok || !tok || tenant != k.Tenant || parts[1] != k.RunID || call != k.CallID {
			t.Fatalf("%s became %q, which reads as %q", k, key, parts)
		}
	})
}

// The type comes back from what a service may do to headers: fold white space,
// drop empty values.
func TestContentTypes(t *testing.T) {
	check := func(t interface{ Fatalf(string, ...any) }, contentType string) {
		header, meta := headersOf(contentType)
		size := 0
		for k, v := range meta {
			size += len(k) + len(v)
			if v == "" || strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r > '~' }) {
				t.Fatalf("%q became metadata %q: want visible ASCII", contentType, v)
			}
		}
		if size > 1024 {
			t.Fatalf("%q became %d bytes of metadata", contentType, size)
		}
		if header == "" || strings.Join(strings.Fields(header), " ") != header {
			t.Fatalf("%q became the header %q", contentType, header)
		}
		if got := contentTypeOf(&header, meta); got != contentType {
			t.Fatalf("%q came back as %q", contentType, got)
		}
	}
	for _, c := range []string{"", " ", "text/plain", `"`, `""`, "%", "=?utf-8?q?x?=", "a  b", "\xff\x00\r\n", strings.Repeat("\xff", 255), strings.Repeat("x", 255), "résumé"} {
		check(t, c)
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, string(rapid.SliceOfN(rapid.Byte(), 0, 255).Draw(t, "type")))
	})
	header := "text/plain"
	for _, v := range []string{"", `"`, "x", `"%"`, `"%zz"`} { // not what Put writes
		if got := contentTypeOf(&header, map[string]string{metaType: v}); got != header {
			t.Errorf("metadata %q gave the type %q", v, got)
		}
	}
}
