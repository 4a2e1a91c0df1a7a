package psych

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"

	"github.com/psych-go/psych-go/psych/internal/strictjson"
	"github.com/psych-go/psych-go/psych/internal/textwin"
)

// Units of an [OutputQuery] and an [OutputWindow].
const (
	UnitLines   = "lines"
	UnitChars   = "chars"
	UnitMatches = "matches" // of a window alone, whose query has Grep
)

// An OutputQuery selects a window of a stored output. The zero value is the
// first page.
type OutputQuery struct {
	// Offset and Limit are in Unit, or in matches with Grep, from 0. A page of
	// 20,000 characters bounds any Limit; zero is a page. Past the end is an
	// empty window. Negative is ErrInvalid.
	Offset, Limit int64

	// Grep is an RE2 pattern, matched within lines. An illegal one is
	// ErrInvalid, with a message that can be shown to whom it came from.
	Grep string

	// Unit is UnitLines or UnitChars; "" is UnitChars for one line of over
	// 2,000 characters, else UnitLines. With Grep it has no effect.
	Unit string

	// IgnoreCase and Context are of Grep, without which they have no effect:
	// whether case counts, and how many lines are shown before and behind each
	// line with a match, 0 to 10.
	IgnoreCase bool
	Context    int64

	// From is the character at which Grep begins, from 0: that of a window whose
	// search goes on. Matches are then counted from there. Without Grep it is
	// ErrInvalid unless 0.
	From int64
}

// An OutputWindow is what was selected.
//
// By characters, Text is as it was stored, byte for byte. By lines, so it is
// too, but for lines over 2,000 characters: they are cut, and in place of the
// rest stands the offset in characters where it goes on. With Grep it is each
// line with a match in the window, behind its number (from 1) and ": "; of a
// longer line, what is around its matches, behind the offset in characters
// where that begins; lines of context behind their number and "- ", cut at 400
// characters. A NUL is shown as ␀, one character too.
//
// A search reads at most about 256 MiB, or 64 MiB of a pattern that holds no
// literal, as where case is ignored. Where the output goes on behind that,
// the window says so by NextFrom, Matches is nil, and context does not reach
// over that place. Going on with the NextOffset and NextFrom of each window
// until one is AtEnd shows everything, with a search and without one.
type OutputWindow struct {
	Text       string
	Unit       string // of Offset and NextOffset; "" if Binary
	Offset     int64
	NextOffset int64 // where to go on; 0 if AtEnd
	NextFrom   int64 // the From to go on with; 0 if AtEnd
	AtEnd      bool  // nothing is behind the window
	Truncated  bool  // something is, or a line or a match is not shown to its end

	TotalChars, TotalLines int64
	Matches                *int64 // in all; nil: not searched, or not all of it

	// Binary content is neither decoded nor searched: there is no Text.
	Binary      bool
	ContentType string
	Size        int64 // bytes
}

// searchBytes is behind how many bytes a search stops. It varies in tests.
var searchBytes int64 = textwin.ScanBytes

// readOutput reads a window of p. A range of a blob is read once a window, of
// a size that depends on neither where it lies nor how long its lines are; a
// search reads through a buffer. What was let go for lack of a BlobStore is
// ErrNoBlobStore.
func readOutput(ctx context.Context, p *Payload, blobs BlobStore, run RunKey, q OutputQuery) (*OutputWindow, error) {
	if q.Offset < 0 || q.Limit < 0 {
		return nil, fmt.Errorf("psych: offset %d and limit %d: want numbers from 0: %w", q.Offset, q.Limit, ErrInvalid)
	}
	switch q.Unit {
	case "", UnitLines, UnitChars:
	default:
		return nil, fmt.Errorf("psych: unit %.40q: want %q or %q: %w", q.Unit, UnitLines, UnitChars, ErrInvalid)
	}
	switch {
	case q.Context < 0 || q.Context > textwin.MaxContext:
		return nil, fmt.Errorf("psych: %d lines of context: want 0 to %d: %w", q.Context, textwin.MaxContext, ErrInvalid)
	case q.From < 0 || q.From > 0 && q.Grep == "":
		return nil, fmt.Errorf("psych: from %d: want the NextFrom of a search, with its pattern: %w", q.From, ErrInvalid)
	}
	w := &OutputWindow{Offset: q.Offset, ContentType: p.ContentType, Size: p.Size, TotalChars: p.Chars, TotalLines: p.Lines}
	if p.Binary {
		w.Binary, w.AtEnd, w.TotalChars, w.TotalLines = true, true, 0, 0
		return w, nil
	}
	text := textwin.Text{Size: p.Size, Chars: p.Chars, Lines: p.Lines, Scan: searchBytes}
	if p.Ref != nil {
		text.Index = p.Ref.Index
	}
	text.Open = func(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
		return p.open(ctx, blobs, run, offset, length)
	}
	w.Unit = q.Unit
	if w.Unit == "" {
		w.Unit = UnitLines
		if p.Lines == 1 && p.Chars > textwin.LineChars {
			w.Unit = UnitChars
		}
	}
	var got *textwin.Window
	var err error
	switch {
	case q.Grep != "":
		w.Unit = UnitMatches
		compile := textwin.Compile
		if q.IgnoreCase {
			compile = textwin.CompileFold
		}
		var pattern *textwin.Pattern
		if pattern, err = compile(q.Grep); err != nil {
			return nil, fmt.Errorf("psych: grep: %w: %w", err, ErrInvalid)
		}
		got, err = text.Grep(ctx, pattern, textwin.Search{Offset: q.Offset, Limit: q.Limit, From: q.From, Context: q.Context})
		if err == nil && got.Counted {
			w.Matches = &got.Matches
		}
	case w.Unit == UnitChars:
		got, err = text.ByChars(ctx, q.Offset, q.Limit)
	default:
		got, err = text.ByLines(ctx, q.Offset, q.Limit)
	}
	if errors.Is(err, textwin.ErrChanged) {
		err = fmt.Errorf("%w: %w", errDamaged, err)
	}
	if err != nil {
		return nil, fmt.Errorf("psych: read an output: %w", err)
	}
	w.Text = string(showNULs(got.Text))
	w.AtEnd, w.Truncated = !got.More, got.More || got.Cut
	if got.More {
		w.NextOffset, w.NextFrom = got.Next, got.From
	}
	return w, nil
}

// answer is what the model is told of w: a line of JSON, and the text.
func (w *OutputWindow) answer() string {
	type binaryHead struct {
		Offset      int64  `json:"offset"`
		Truncated   bool   `json:"truncated"`
		ContentType string `json:"content_type"`
		Size        int64  `json:"size_bytes"`
		Binary      bool   `json:"binary"`
	}
	type textHead struct {
		TotalChars int64  `json:"total_chars"`
		TotalLines int64  `json:"total_lines"`
		Matches    *int64 `json:"matches,omitempty"`
		Offset     int64  `json:"offset"`
		NextOffset *int64 `json:"next_offset,omitempty"`
		NextFrom   int64  `json:"next_from,omitempty"`
		Truncated  bool   `json:"truncated"`
		Unit       string `json:"unit"`
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if w.Binary {
		enc.Encode(binaryHead{w.Offset, w.Truncated, w.ContentType, w.Size, true})
		fmt.Fprintf(&b, "[This output is binary (%s, %d bytes). It is neither decoded nor searched.]", w.ContentType, w.Size)
		return b.String()
	}
	h := textHead{w.TotalChars, w.TotalLines, w.Matches, w.Offset, nil, w.NextFrom, w.Truncated, w.Unit}
	if !w.AtEnd {
		h.NextOffset = &w.NextOffset
	}
	enc.Encode(h)
	b.WriteString(w.Text)
	return b.String()
}

// readToolOutputDef is on the surface of every Run from its first turn on: its
// bytes are part of every prefix.
var readToolOutputDef = ToolDef{
	Name: "read_tool_output",
	Description: `Reads a tool output that was too large to be shown whole, by its handle ("out_…"). ` +
		`Answers with a line of JSON (totals, offset, next_offset, truncated), then the text, at most 20,000 characters. ` +
		`Go on with offset = next_offset, and with from = next_from where there is one; without a next_offset there is no more. ` +
		`Use grep to search; over tens of megabytes it may take several calls, and then gives no total. A long line is cut, and says at which character it goes on: read on there with unit "chars".`,
	Schema: json.RawMessage(`{"type":"object","properties":{` +
		`"handle":{"type":"string","description":"As the output's preview gives it."},` +
		`"offset":{"type":"integer","minimum":0,"description":"Where to begin, from 0: in the unit, or in matches with grep."},` +
		`"limit":{"type":"integer","minimum":0,"description":"How many at the most. 0 or absent: a page."},` +
		`"grep":{"type":"string","description":"An RE2 regular expression, matched within lines."},` +
		`"ignore_case":{"type":"boolean","description":"For grep. Default: false."},` +
		`"context":{"type":"integer","minimum":0,"maximum":10,"description":"For grep: lines to show before and behind each match."},` +
		`"from":{"type":"integer","minimum":0,"description":"For grep: the next_from of a search that goes on."},` +
		`"unit":{"type":"string","enum":["lines","chars"],"description":"Default: lines, or chars if the output is one long line."}},` +
		`"required":["handle"],"additionalProperties":false}`),
}

// parseReadArgs reads the arguments of read_tool_output. What is wrong with
// them is an error matching ErrInvalid that can be shown to the model; whether
// the handle is one of the Run's is for the caller to find out.
func parseReadArgs(args json.RawMessage) (handle string, q OutputQuery, err error) {
	bad := func(format string, a ...any) (string, OutputQuery, error) {
		return "", OutputQuery{}, fmt.Errorf("%s: %s: %w", readToolOutputDef.Name, fmt.Sprintf(format, a...), ErrInvalid)
	}
	if err := strictjson.Check(args); err != nil {
		return bad("%.400s", err)
	}
	if args = bytes.TrimSpace(args); args[0] == '"' {
		// Some models send the object in a string.
		var s string
		if json.Unmarshal(args, &s) == nil && strings.HasPrefix(strings.TrimSpace(s), "{") {
			args = json.RawMessage(s)
			if err := strictjson.Check(args); err != nil {
				return bad("%.400s", err)
			}
		}
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(args, &fields); err != nil || fields == nil {
		return bad("the arguments are %.40s: want an object with a handle", args)
	}
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	sort.Strings(names) // so that one input has one message
	for _, name := range names {
		v := fields[name]
		isNull := string(v) == "null"
		switch name {
		case "handle":
			if json.Unmarshal(v, &handle) != nil || isNull {
				return bad("the handle is %.40s: want a string that begins with %q", v, outputPrefix)
			}
		case "offset", "limit", "context", "from":
			to := map[string]*int64{"offset": &q.Offset, "limit": &q.Limit, "context": &q.Context, "from": &q.From}[name]
			if isNull {
				continue
			}
			n, ok := wholeNumber(string(v))
			if !ok {
				return bad("%s is %.40s: want a whole number from 0", name, v)
			}
			*to = n
		case "ignore_case":
			if json.Unmarshal(v, &q.IgnoreCase) != nil {
				return bad("ignore_case is %.40s: want true or false", v)
			}
		case "grep", "unit":
			to := &q.Grep
			if name == "unit" {
				to = &q.Unit
			}
			if json.Unmarshal(v, to) != nil {
				return bad("%s is %.40s: want a string", name, v)
			}
		default:
			return bad("there is no argument %.40q: want handle, offset, limit, grep, ignore_case, context, from, unit", name)
		}
	}
	if _, ok := fields["handle"]; !ok {
		return bad("the handle is missing: want a string that begins with %q, as the output's preview gives it", outputPrefix)
	}
	if !strings.HasPrefix(handle, outputPrefix) {
		return bad("%.80q is not a handle: want a string that begins with %q, as the output's preview gives it", handle, outputPrefix)
	}
	if q.Unit != "" && q.Unit != UnitLines && q.Unit != UnitChars {
		return bad("unit is %.40q: want %q or %q", q.Unit, UnitLines, UnitChars)
	}
	if q.Context > textwin.MaxContext {
		return bad("context is %d: want 0 to %d lines", q.Context, textwin.MaxContext)
	}
	if q.From > 0 && q.Grep == "" {
		return bad("from goes on with a search: give its grep too, or an offset instead")
	}
	return handle, q, nil
}

// wholeNumber reads a JSON number from 0, in whatever way it is written.
func wholeNumber(s string) (int64, bool) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, n >= 0
	}
	if !strings.ContainsAny(s, ".eE") {
		return 0, false
	}
	// An exact float64: 20.0, 1e4.
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f < 0 || f > 1<<53 || f != float64(int64(f)) {
		return 0, false
	}
	return int64(f), true
}
