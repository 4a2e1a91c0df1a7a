package s3blob

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/psych-go/psych-go/psych"
)

const (
	maxPrefix  = 512 // leaves room below S3's 1,024 bytes: 256 of tenant, 33 of run, 104 of call
	maxSegment = 255 // a name on the filesystems that some gateways keep objects in

	longPrefix = "==" // never at the beginning of an escaped name
	hexDigits  = "0123456789abcdef"
)

func checkPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	if len(prefix) > maxPrefix {
		return fmt.Errorf("prefix %.40q… has %d bytes: want at most %d: %w", prefix, len(prefix), maxPrefix, psych.ErrInvalid)
	}
	for segment := range strings.SplitSeq(strings.TrimSuffix(prefix, "/"), "/") {
		legal := segment != "" && segment != "." && segment != ".."
		for i := 0; legal && i < len(segment); i++ {
			legal = isSafe(segment[i]) || strings.IndexByte("!*'()=", segment[i]) >= 0
		}
		if !legal {
			return fmt.Errorf("prefix %q: want segments of [A-Za-z0-9!_.*'()=-] with one slash between them: %w", prefix, psych.ErrInvalid)
		}
	}
	return nil
}

// run is what the keys of a Run's blobs begin with, and those of no other. It
// expects a key that was checked: a run id is a legal name as it is.
func (s *Store) run(k psych.RunKey) string {
	return s.prefix + tenantName(k.Tenant) + "/" + k.RunID + "/"
}

func (s *Store) key(k psych.BlobKey) string { return s.run(k.Run()) + escape(k.CallID) }

// tenantName is the escaped tenant, or where that is too long, base64.
func tenantName(tenant string) string {
	if name := escape(tenant); len(name) <= maxSegment {
		return name
	}
	return longPrefix + base64.RawURLEncoding.EncodeToString([]byte(tenant))
}

func isSafe(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
}

// escape keeps [A-Za-z0-9_.-], and makes every other byte, and a dot at either
// end, = and two hexadecimal digits.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if isSafe(c) && (c != '.' || i > 0 && i < len(s)-1) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'=', hexDigits[c>>4], hexDigits[c&15]})
		}
	}
	return b.String()
}

const (
	maxContentType = 255
	metaType       = "psych-content-type" // of 765 bytes at the most; S3 allows 2 KB of metadata
	metaUpload     = "psych-upload"
	otherType      = "application/octet-stream"
)

// headersOf returns the Content-Type header and the metadata that keep a
// content type, whatever it holds. What is no plain header goes escaped into
// the metadata, quoted, because services drop an empty value.
func headersOf(contentType string) (header string, meta map[string]string) {
	if isPlain(contentType) {
		return contentType, map[string]string{}
	}
	return otherType, map[string]string{metaType: `"` + url.PathEscape(contentType) + `"`}
}

// isPlain reports whether a content type comes back as it went: visible ASCII
// with single spaces inside, and nothing that a service could take for an
// encoded word of RFC 2047.
func isPlain(contentType string) bool {
	if contentType == "" || strings.Contains(contentType, "=?") || strings.Contains(contentType, "  ") ||
		contentType[0] == ' ' || contentType[len(contentType)-1] == ' ' {
		return false
	}
	for i := range len(contentType) {
		if contentType[i] < ' ' || contentType[i] > '~' {
			return false
		}
	}
	return true
}

func contentTypeOf(header *string, meta map[string]string) string {
	if v := meta[metaType]; len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"' {
		if contentType, err := url.PathUnescape(v[1 : len(v)-1]); err == nil {
			return contentType
		}
	}
	return aws.ToString(header)
}
