// Package yamljson turns the YAML that a person writes into the JSON that
// psych decodes. It accepts no more of YAML than JSON can say: string keys,
// one document, and values that are null, booleans, numbers, strings, lists
// and maps.
package yamljson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxBytes bounds the input of [Convert].
const MaxBytes = 1 << 20

// What aliases may expand an input of MaxBytes to.
const (
	maxOutput = 4 * MaxBytes
	maxNodes  = 500_000
	maxDepth  = 500
)

// Errors of [Convert]. The message adds the line.
var (
	ErrEmpty        = errors.New("the input is empty")
	ErrTooLarge     = fmt.Errorf("the input is over %d bytes", MaxBytes)
	ErrSyntax       = errors.New("not YAML")
	ErrDocuments    = errors.New("the input holds several documents; one is wanted")
	ErrAliases      = errors.New("aliases refer to themselves or expand to too much")
	ErrDepth        = fmt.Errorf("nested deeper than %d", maxDepth)
	ErrKey          = errors.New("a key must be a string; put it in quotes")
	ErrDuplicateKey = errors.New("duplicate key")
	ErrValue        = errors.New("JSON has no such value")
)

var utf8BOM = []byte("\xef\xbb\xbf")

// Convert returns data as JSON. Data whose first byte that is not space is {
// or [ is JSON already and comes back unchanged and unchecked, but for a byte
// order mark. Anything else is read as YAML: keys stay in their order,
// integers keep all their digits, and a timestamp is the string that was
// written. Merge keys (<<) and tags of an application are refused.
func Convert(data []byte) ([]byte, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("yamljson: %d bytes: %w", len(data), ErrTooLarge)
	}
	data = bytes.TrimPrefix(data, utf8BOM)
	text := bytes.TrimLeft(data, " \t\r\n")
	if len(text) == 0 {
		return nil, fmt.Errorf("yamljson: %w", ErrEmpty)
	}
	if text[0] == '{' || text[0] == '[' {
		return data, nil
	}

	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("yamljson: %w", ErrEmpty)
	case err != nil:
		return nil, fmt.Errorf("yamljson: %w: %w", ErrSyntax, err)
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		return nil, fmt.Errorf("yamljson: line %d: %w", second.Line, ErrDocuments)
	case !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("yamljson: %w: %w", ErrSyntax, err)
	}
	if len(doc.Content) != 1 || doc.Content[0].ShortTag() == "!!null" {
		return nil, fmt.Errorf("yamljson: %w", ErrEmpty)
	}

	var w writer
	if err := w.node(doc.Content[0], 0); err != nil {
		return nil, err
	}
	return w.buf.Bytes(), nil
}

type writer struct {
	buf   bytes.Buffer
	nodes int
	open  map[*yaml.Node]bool // aliases that are being expanded
}

func fail(n *yaml.Node, err error, format string, args ...any) error {
	detail := fmt.Sprintf(format, args...)
	if detail != "" {
		detail += ": "
	}
	return fmt.Errorf("yamljson: line %d: %s%w", n.Line, detail, err)
}

func (w *writer) node(n *yaml.Node, depth int) error {
	w.nodes++
	if w.nodes > maxNodes || w.buf.Len() > maxOutput {
		return fail(n, ErrAliases, "")
	}
	if depth > maxDepth {
		return fail(n, ErrDepth, "")
	}
	switch n.Kind {
	case yaml.AliasNode:
		if w.open[n.Alias] {
			return fail(n, ErrAliases, "*%s", n.Value)
		}
		if w.open == nil {
			w.open = make(map[*yaml.Node]bool)
		}
		w.open[n.Alias] = true
		defer delete(w.open, n.Alias)
		return w.node(n.Alias, depth+1)
	case yaml.MappingNode:
		return w.mapping(n, depth)
	case yaml.SequenceNode:
		if tag := n.ShortTag(); tag != "!!seq" {
			return fail(n, ErrValue, "tag %.80s on a list", tag)
		}
		w.buf.WriteByte('[')
		for i, item := range n.Content {
			if i > 0 {
				w.buf.WriteByte(',')
			}
			if err := w.node(item, depth+1); err != nil {
				return err
			}
		}
		w.buf.WriteByte(']')
		return nil
	default:
		return w.scalar(n)
	}
}

func (w *writer) mapping(n *yaml.Node, depth int) error {
	if tag := n.ShortTag(); tag != "!!map" {
		return fail(n, ErrValue, "tag %.80s on a map", tag)
	}
	lines := make(map[string]int, len(n.Content)/2)
	w.buf.WriteByte('{')
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		switch {
		case key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge":
			return fail(key, ErrKey, "merge keys (<<) are not supported, write the fields out")
		case key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str":
			return fail(n.Content[i], ErrKey, "%.80q", key.Value)
		}
		if line, ok := lines[key.Value]; ok {
			return fail(n.Content[i], ErrDuplicateKey, "%.80q stands on line %d already", key.Value, line)
		}
		lines[key.Value] = n.Content[i].Line
		if i > 0 {
			w.buf.WriteByte(',')
		}
		if err := w.string(key); err != nil {
			return err
		}
		w.buf.WriteByte(':')
		if err := w.node(n.Content[i+1], depth+1); err != nil {
			return err
		}
	}
	w.buf.WriteByte('}')
	return nil
}

func (w *writer) scalar(n *yaml.Node) error {
	switch tag := n.ShortTag(); tag {
	case "!!str", "!!timestamp":
		return w.string(n)
	case "!!null":
		w.buf.WriteString("null")
		return nil
	case "!!bool":
		v := strings.ToLower(n.Value)
		if v != "true" && v != "false" {
			return fail(n, ErrValue, "%.80q is not a boolean", n.Value)
		}
		w.buf.WriteString(v)
		return nil
	case "!!int", "!!float":
		num, ok := number(n.Value)
		if !ok {
			return fail(n, ErrValue, "%.80q", n.Value)
		}
		w.buf.WriteString(num)
		return nil
	default:
		return fail(n, ErrValue, "tag %.80s", tag)
	}
}

var (
	jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)
	digits     = regexp.MustCompile(`^[-+]?[0-9]+$`)
)

// number writes a YAML number as a JSON one. Only what JSON can't spell
// (hexadecimal, +1, .5, 1_000) passes through a Go number.
func number(s string) (string, bool) {
	if jsonNumber.MatchString(s) {
		return s, true
	}
	s = strings.ReplaceAll(s, "_", "")
	if i, ok := new(big.Int).SetString(s, 0); ok {
		return i.String(), true
	}
	if digits.MatchString(s) { // 08, say: not octal
		i, ok := new(big.Int).SetString(s, 10)
		return i.String(), ok
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return "", false
	}
	b, err := json.Marshal(f)
	return string(b), err == nil
}

func (w *writer) string(n *yaml.Node) error {
	// The Encoder, since Marshal would write < as an escape and a person would
	// see it in what a script sends.
	enc := json.NewEncoder(&w.buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(n.Value); err != nil {
		return fail(n, ErrValue, "%v", err)
	}
	w.buf.Truncate(w.buf.Len() - 1) // the Encoder's newline
	return nil
}
