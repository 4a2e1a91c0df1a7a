package psych

import (
	"context"
	"encoding/json"
	"time"
	"unicode/utf8"
)

// A Wire is a part of a request body in the encoding of one Model, encoded
// once and then shared: nobody changes it.
type Wire struct {
	Bytes  []byte
	Chars  int    // characters of Bytes, counted once
	Chain  Digest // of the previous Wire's Chain and these Bytes: equal Chain, equal prefix
	Marker int    // where in Bytes a cache marker may be spliced in; -1: nowhere
}

// ModelLimits are what a provider refuses; zero is no limit.
type ModelLimits struct {
	Tools           int    `json:"tools,omitempty"`            // number of tools
	ToolName        int    `json:"tool_name,omitempty"`        // characters of a tool's name
	ToolDescription int    `json:"tool_description,omitempty"` // characters of a tool's description
	PropertyName    string `json:"property_name,omitempty"`    // a regular expression that the names of a tool's own arguments match; "" is any
	ContextTokens   int    `json:"context_tokens,omitempty"`

	Images     []string `json:"images,omitempty"`      // content types of images that a message may hold; none: the model is told of them in text
	ImageBytes int      `json:"image_bytes,omitempty"` // of one image, before any encoding
}

// A Codec encodes the parts of a request for one provider. Each method is a
// pure function of its arguments: no map order, clock or state reaches the
// bytes.
type Codec interface {
	Limits() ModelLimits

	// ID names the encoding and changes when it does, and when Images or
	// ImageBytes of Limits do. It is recorded with each model call, and encoded
	// messages are reused under an equal ID only. Where another worker's bytes are
	// others under an equal ID, a Run goes on with the break [ProjectionChanged],
	// and what was sent before it can't be made again.
	ID() string

	// EncodeTools encodes the definitions, sorted by name; none is no bytes.
	EncodeTools(defs []ToolDef) ([]byte, error)

	// EncodeSystem encodes the static blocks (zone 1) and the dynamic one
	// (zone 2, "" when there is none).
	EncodeSystem(static []string, dynamic string) (zone1, zone2 []byte, err error)

	// EncodeMessage encodes one message, with the offset in b where a cache
	// marker may be put (-1: nowhere). Call ids, tool names and arguments are
	// legal on the wire already.
	EncodeMessage(m *Message) (b []byte, marker int, err error)

	// EncodeTail encodes the trailing message.
	EncodeTail(text string) ([]byte, error)
}

// A TailKeeper is a Codec of a provider that binds what the model said to
// everything before it, reasoning above all: there a trailing message is sent
// again, in its place, by all later requests, as a part of the History that
// EncodeTail made; its Marker is -1. Elsewhere it is dropped.
type TailKeeper interface {
	KeepsTails() bool
}

// A CacheKeeper is a Model that knows for how long after its last use its provider
// keeps what it cached, found with [As]: before that a Run is not trimmed as if
// nothing were cached, nor, as without for an hour, opened anew.
type CacheKeeper interface {
	KeepsCache() time.Duration // 0: not known
}

const hexDigits = "0123456789abcdef"

// AppendEscaped appends s as it stands within a JSON string, for a Codec: it
// escapes only what JSON demands, the same on every release of Go. A byte that
// is not UTF-8 becomes \ufffd.
func AppendEscaped(b []byte, s string) []byte {
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= 0x20 && c != '"' && c != '\\' {
				i++
				continue
			}
			b = append(b, s[start:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\n':
				b = append(b, `\n`...)
			case '\t':
				b = append(b, `\t`...)
			case '\r':
				b = append(b, `\r`...)
			default:
				b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
			}
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			b = append(b, s[start:i]...)
			b = append(b, `\ufffd`...)
			start = i + 1
		}
		i += size
	}
	return append(b, s[start:]...)
}

// A Request is one model call, as encoded parts. The parts are shared with
// later Requests: a Model neither changes nor keeps them. The body is never
// joined by psych; a Model sends it part by part.
//
// The Chain of each part covers every part before it, in the order Tools,
// System[0], System[1], History.
type Request struct {
	Model   string
	Options ModelOptions
	Tools   Wire
	System  [2]Wire // zones 1 and 2
	History []Wire  // zone 3, a message each
	Breaks  []int   // indexes of History, ascending: where what was answered before ends, as far as it is sent again, and where this one ends
	Tail    Wire    // zone 4, placed as the provider demands; no bytes: none

	// CacheKey is the same for all requests of a Run, and another's for no
	// other: 32 hexadecimal digits that tell nothing.
	CacheKey string
}

// A Model calls one provider.
type Model interface {
	Codec() Codec

	// Generate makes one attempt; psych repeats. It calls on, when not nil,
	// from the calling goroutine, for each piece as it comes. A failure is a
	// *ModelError or ctx's error; a stream that ends early is a failure, never
	// a short Response.
	Generate(ctx context.Context, req *Request, on func(Delta)) (*Response, error)
}

// A Delta is a piece of a Response on its way.
type Delta struct {
	Text      string
	Reasoning string
	Call      int    // position of the call from 1, when a piece of one came
	Name      string // of that call, with its first piece
	Arguments string
}

// A Response is what the model said.
type Response struct {
	Blocks []Block // in the provider's order, provider blocks byte for byte
	Stop   StopReason
	Usage  Usage
	Sent   int // characters of the whole body; what is in no zone is the envelope

	RequestID string // the provider's own, for the log; at most 256 characters are kept
}

// A StopReason says why the model stopped.
type StopReason string

// Stop reasons. What follows from each is one table in drive.go.
const (
	StopEnd       StopReason = "end"
	StopToolUse   StopReason = "tool_use"
	StopMaxTokens StopReason = "max_tokens" // cut at the output limit
	StopRefusal   StopReason = "refusal"
	StopContext   StopReason = "context" // the context window is full
)

// Usage is what the provider reported; nil is unknown, never zero. Input
// counts cached tokens too, whatever the provider's own field does.
type Usage struct {
	Input      *int64 `json:"input,omitempty"`
	CacheRead  *int64 `json:"cache_read,omitempty"`
	CacheWrite *int64 `json:"cache_write,omitempty"`
	WriteHour  *int64 `json:"write_hour,omitempty"` // of CacheWrite: what is kept for an hour
	Output     *int64 `json:"output,omitempty"`
}

// A Message is one entry of the conversation as projected from the log. A
// message of role tool holds the results of a whole batch, in the order in
// which the model asked.
type Message struct {
	Role   Role
	Blocks []Block
}

// A Role is whose message it is.
type Role string

// Roles.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool"
)

// A Block is one of: a text, an image, a call, a result, a provider's own block.
type Block struct {
	Text     string
	Image    *Image // of a user's message, of a type that ModelLimits.Images names
	Call     *ToolCall
	Result   *ToolOutput
	Provider json.RawMessage // kept byte for byte
}

// A BlockKind is a kind of blocks that a request was refused for.
type BlockKind string

// Kinds of blocks that are left out of a history that is refused for them, once
// and for good. Of an image there is a description in its place.
const (
	ProviderBlocks BlockKind = "provider" // a provider's own, which it says are not as it made them, or not for this request
	ImageBlocks    BlockKind = "image"    // which it can't read, or takes none of that kind
)

// A ModelResolver finds the Model that a Spec names ("" when it names none).
type ModelResolver func(ctx context.Context, name string) (Model, error)

// OneModel resolves every name to m.
func OneModel(m Model) ModelResolver {
	return func(context.Context, string) (Model, error) { return m, nil }
}
