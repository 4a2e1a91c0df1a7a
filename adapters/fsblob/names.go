package fsblob

import (
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/psych-go/psych-go/psych"
)

// A tenant's name is plainPrefix and its escape, or longPrefix and its base32
// where the escape would be too long for a name; a blob's is blobPrefix and its
// escape. The prefixes keep names apart from temporary files, from ".." and
// from the device names of Windows; a dot at the end, which Windows drops, is
// escaped.
const (
	plainPrefix     = "t-"
	longPrefix      = "x-"
	blobPrefix      = "b-"
	temporaryPrefix = ".tmp-"

	maxPlain = 200 // bytes; base32 of the longest tenant has 205, a name may have 255
)

var long = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

func tenantName(tenant string) string {
	if name := plainPrefix + escape(tenant); len(name) <= maxPlain {
		return name
	}
	return longPrefix + long.EncodeToString([]byte(tenant))
}

// parseTenant is the inverse of tenantName; ok is false for a name that
// tenantName never makes.
func parseTenant(name string) (tenant string, ok bool) {
	if s, found := strings.CutPrefix(name, plainPrefix); found {
		tenant, ok = unescape(s)
	} else if s, found := strings.CutPrefix(name, longPrefix); found {
		b, err := long.DecodeString(s)
		tenant, ok = string(b), err == nil
	}
	return tenant, ok && tenantName(tenant) == name
}

const hexDigits = "0123456789abcdef"

// escape writes each byte but a-z, 0-9, '-', '_' and a dot that is not the last
// as "=" and two hexadecimal digits.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' && i < len(s)-1 {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'=', hexDigits[c>>4], hexDigits[c&15]})
		}
	}
	return b.String()
}

func unescape(s string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '=' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", false
		}
		hi, lo := strings.IndexByte(hexDigits, s[i+1]), strings.IndexByte(hexDigits, s[i+2])
		if hi < 0 || lo < 0 {
			return "", false
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	return b.String(), true
}

func isTemporary(name string) bool { return strings.HasPrefix(name, temporaryPrefix) }

// A place is where a run's blobs lie, as paths below the root.
type place struct{ tenant, run string }

// placeOf expects a key that was checked: a run id is a legal name as it is.
func placeOf(run psych.RunKey) place {
	t := tenantName(run.Tenant)
	return place{tenant: t, run: filepath.Join(t, run.RunID)}
}

func (p place) blob(callID string) string {
	return filepath.Join(p.run, blobPrefix+escape(callID))
}

// check returns an error unless the directories of p are there.
func (p place) check(root *os.Root) error {
	if err := checkDir(root, p.tenant); err != nil {
		return err
	}
	return checkDir(root, p.run)
}

// prune removes the directories of p that are empty.
func (p place) prune(root *os.Root) {
	if root.Remove(p.run) == nil {
		root.Remove(p.tenant)
	}
}

// checkDir refuses a symbolic link too, which could lead to another tenant's.
func checkDir(root *os.Root, dir string) error {
	info, err := root.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return notDir(filepath.Join(root.Name(), dir), info)
	}
	return nil
}

func notDir(path string, info fs.FileInfo) error {
	return fmt.Errorf("%s (%s) is in a directory's place: move it away: %w", path, info.Mode(), syscall.ENOTDIR)
}

func checkRegular(root *os.Root, file string) error {
	info, err := root.Lstat(file)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s (%s) is in a blob's place: move it away: %w", filepath.Join(root.Name(), file), info.Mode(), ErrDamaged)
	}
	return nil
}

// readNames lists a directory; it is empty if there is none, or another thing.
func readNames(root *os.Root, dir string) ([]string, error) {
	info, err := root.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f, err := root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}
