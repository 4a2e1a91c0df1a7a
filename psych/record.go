package psych

import (
	"slices"
	"time"
)

// A Kind names what a record says. The constants are the wire names.
type Kind string

// Kinds of records.
const (
	KindRunAdmitted       Kind = "run_admitted"
	KindAttemptStarted    Kind = "attempt_started"
	KindUserMessage       Kind = "user_message"
	KindModelCallStarted  Kind = "model_call_started"
	KindModelCallFinished Kind = "model_call_finished"
	KindModelCallFailed   Kind = "model_call_failed"
	KindToolCallStarted   Kind = "tool_call_started"
	KindToolCallFinished  Kind = "tool_call_finished"
	KindAbortRequested    Kind = "abort_requested"
	KindExchangeClosed    Kind = "exchange_closed"
)

// A Record is one immutable entry of a Run's log.
type Record struct {
	Seq     uint64
	Time    time.Time // to the microsecond, UTC
	Attempt int64     // the lease epoch it was written under
	Event   Event

	raw []byte // as it was read, with what a newer writer put there; nil for a record made here
}

// An Event is the content of a Record: one of the structs of this file, or
// *Unknown. The set is closed to other packages.
type Event interface {
	Kind() Kind
	payloads() []*Payload
}

// Unknown is a record of a newer writer that says of it that it may be folded
// over. It keeps its bytes.
type Unknown struct{ kind Kind }

// RunAdmitted is the first record of a Run.
type RunAdmitted struct {
	Version    Digest `json:"version"`
	Projection int    `json:"projection"` // the rules of previews and defaults that hold for this Run
}

// AttemptStarted begins a pass of execution; its epoch is the record's
// Attempt. What the pass before it left open is settled behind it.
type AttemptStarted struct{}

// UserMessage is a message that a client posted, delivered. It opens an
// exchange unless one is open.
type UserMessage struct {
	ID          string       `json:"id"`
	Text        Payload      `json:"text"`
	Attachments []Attachment `json:"attachments,omitempty"`
}

// ModelCallStarted announces a model call and says what it sends. Digests that
// equal those of the model call before it are absent.
type ModelCallStarted struct {
	Turn     int      `json:"turn"`            // from 1, counted over the Run
	Try      int      `json:"try,omitempty"`   // 0 for the first
	Model    string   `json:"model,omitempty"` // as resolved, when it changed
	Codec    string   `json:"codec,omitempty"` // ID of the Codec, when it changed
	Tools    *Digest  `json:"tools,omitempty"`
	Static   *Digest  `json:"static,omitempty"`  // zone 1
	Dynamic  *Digest  `json:"dynamic,omitempty"` // zone 2
	Prefix   *Digest  `json:"prefix,omitempty"`  // history as far as the call before it went
	History  Digest   `json:"history"`
	Messages int      `json:"messages"` // number of parts of the history
	Chars    [4]int   `json:"chars"`    // tools, system, history, tail
	Breaks   []Break  `json:"breaks,omitempty"`
	Trimmed  []string `json:"trimmed,omitempty"` // handles of what is shown trimmed from now on

	// Dropped are kinds of blocks that are left out from now on, of all that the
	// history holds by now.
	Dropped []BlockKind `json:"dropped,omitempty"`

	Tail   *Tail    `json:"tail,omitempty"`   // what the trailing message was made of
	Memory *Payload `json:"memory,omitempty"` // the dynamic tail of the system prompt, when it changed

	// Opening is the document of what servers add to tools and zone 1, when it
	// changed; Servers are those that are not as the model was told last.
	Opening *Digest       `json:"opening,omitempty"`
	Servers []ServerState `json:"servers,omitempty"`
}

// rewrites reports whether e says that what was sent before is sent otherwise
// from now on, by more than its zones' digests.
func (e *ModelCallStarted) rewrites() bool {
	return len(e.Trimmed) > 0 || len(e.Dropped) > 0 ||
		slices.ContainsFunc(e.Breaks, func(b Break) bool { return b.Cause == ProjectionChanged })
}

// A ServerState is a connection as a turn found it.
type ServerState struct {
	Server    string `json:"server"`
	Catalog   Digest `json:"catalog,omitzero"`   // version of the catalogue; absent: there is none
	Tools     int    `json:"tools,omitempty"`    // that may be used
	Permitted Digest `json:"permitted,omitzero"` // of their names, where they are not all of the catalogue
	Down      string `json:"down,omitempty"`     // why there is no catalogue
}

// A Tail is what a trailing message is made of.
type Tail struct {
	Now  time.Time `json:"now"` // to the minute
	News []string  `json:"news,omitempty"`
}

// ModelCallFinished is what the model said.
type ModelCallFinished struct {
	Turn         int        `json:"turn"`
	Blocks       []Said     `json:"blocks,omitempty"`
	Stop         StopReason `json:"stop"`
	Usage        Usage      `json:"usage,omitzero"`
	Sent         int        `json:"sent,omitempty"`       // characters of the whole body
	RequestID    string     `json:"request_id,omitempty"` // the provider's own
	Milliseconds int64      `json:"milliseconds"`
}

// Said is a block of what the model said: one of text, call, provider block.
type Said struct {
	Text     *Payload `json:"text,omitempty"`
	Call     *Asked   `json:"call,omitempty"`
	Provider *Payload `json:"provider,omitempty"`
}

// Asked is a call that the model asked for, as it sent it. Its id is made of
// turn and position.
type Asked struct {
	ProviderID string  `json:"provider_id,omitempty"`
	Name       string  `json:"name"`
	Arguments  Payload `json:"arguments"`
}

// ModelCallFailed ends a model call without an answer.
type ModelCallFailed struct {
	Turn        int       `json:"turn"`
	Status      int       `json:"status,omitempty"`
	Transient   bool      `json:"transient,omitempty"`
	Overflow    bool      `json:"overflow,omitempty"`
	Refused     BlockKind `json:"refused,omitempty"`     // for blocks of this kind
	Interrupted bool      `json:"interrupted,omitempty"` // the attempt ended, not the call; no try is counted
	RetryMillis int64     `json:"retry_milliseconds,omitempty"`
	Message     string    `json:"message,omitempty"`
	RequestID   string    `json:"request_id,omitempty"` // the provider's own
}

// ToolCallStarted announces that a tool begins now.
type ToolCallStarted struct {
	Call string `json:"call"`
	Tool string `json:"tool,omitempty"` // on the wire, where it was asked for through another
	Safe bool   `json:"safe,omitempty"` // of a server's tool: its hints say that it may be run again, and are believed
}

// ToolCallFinished is the one result of a call.
type ToolCallFinished struct {
	Call         string       `json:"call"`
	Outcome      ToolOutcome  `json:"outcome"`
	Code         string       `json:"code,omitempty"` // of a failure that Psych names
	Tool         string       `json:"tool,omitempty"` // as in ToolCallStarted, where there is none; what was asked for itself, where it goes to others and this call to none
	Page         bool         `json:"page,omitempty"` // of a reader: its result is bounded already, and never elided
	Result       Payload      `json:"result"`
	Attachments  []Attachment `json:"attachments,omitempty"`
	Milliseconds int64        `json:"milliseconds,omitempty"`
}

// A ToolOutcome says how a call ended.
type ToolOutcome string

// Outcomes of a tool call.
const (
	Succeeded  ToolOutcome = "succeeded"
	Failed     ToolOutcome = "failed"
	UnknownEnd ToolOutcome = "unknown"     // it began, and nobody knows how it ended
	NotStarted ToolOutcome = "not_started" // it certainly never began
)

// Codes of failures that Psych names.
const (
	CodeNoBlobStore   = "blob_store_required"
	CodeInvalidHandle = "invalid_deferred_handle"
	CodeTimeout       = "timeout"
	CodePanic         = "panic"
	CodeArguments     = "invalid_arguments"
	CodeUnknownTool   = "unknown_tool"
	CodeCut           = "response_cut"
	CodeWithheld      = "withheld"    // it failed the same way too often
	CodeRefused       = "refused"     // it may not be used any more
	CodeUnreachable   = "unreachable" // its server can't be reached
)

// AbortRequested is a request to end an exchange, delivered.
type AbortRequested struct {
	ID      string `json:"id"`
	Message string `json:"message,omitempty"` // id of the message that opened the exchange; "": the open one
	Reason  string `json:"reason,omitempty"`
}

// ExchangeClosed ends the open exchange.
type ExchangeClosed struct {
	Status string `json:"status"` // completed, failed, aborted, exhausted
	Code   string `json:"code,omitempty"`
	Reason string `json:"reason,omitempty"` // for a person
}

// Statuses of a Run, in its header and in reports. The last four are those of
// a closed exchange too.
const (
	StatusOpen      = "open"
	StatusCompleted = "completed"
	StatusFailed    = "failed"
	StatusAborted   = "aborted"
	StatusExhausted = "exhausted"
)

// A Break says where the prefix of a request left the one before it, and why.
type Break struct {
	Zone  int        `json:"zone"` // 0: tools, 1 and 2: system, 3: history
	Cause BreakCause `json:"cause"`
}

// A BreakCause names why a prefix was left.
type BreakCause string

// Causes of a Break.
const (
	MemoryChanged     BreakCause = "memory_changed"
	CodecChanged      BreakCause = "codec_changed"
	Reopened          BreakCause = "reopened"           // anew from what servers offer now
	HistoryTrimmed    BreakCause = "history_trimmed"    // results of earlier exchanges, as one opened
	ContextTrimmed    BreakCause = "context_trimmed"    // of earlier turns, since the context was full
	BlockRefused      BreakCause = "block_refused"      // without blocks that the provider refused the request for
	ProjectionChanged BreakCause = "projection_changed" // the same is encoded otherwise under the same ID: by another release, or by an adapter with other options or limits
)

// A Payload is anything of a record that can grow: inline, or by reference.
// Its sizes are those of the whole, wherever it lies.
type Payload struct {
	ContentType string
	Size        int64 // bytes
	Chars       int64 // characters; 0 if Binary
	Lines       int64 // 0 if Binary
	Binary      bool  // not valid UTF-8
	Inline      []byte
	Ref         *BlobRef

	view   bool   // MarshalJSON shows the bytes
	framed [3]int // lengths of Ref's parts, between decoding and framing
}

// A BlobRef says where a payload lies and how to read windows of it. All of
// it is computed by psych while the bytes stream into the BlobStore.
type BlobRef struct {
	CallID     string // of its BlobKey
	SHA256     Digest
	Head, Tail []byte // what previews are made from, MaxPreviewChars each at most
	Index      []byte // sparse line index, under 8 KB
}

// MaxPreviewChars bounds Limits.PreviewChars.
const MaxPreviewChars = 4000

// Kind implements Event.
func (u *Unknown) Kind() Kind         { return u.kind }
func (*RunAdmitted) Kind() Kind       { return KindRunAdmitted }
func (*AttemptStarted) Kind() Kind    { return KindAttemptStarted }
func (*UserMessage) Kind() Kind       { return KindUserMessage }
func (*ModelCallStarted) Kind() Kind  { return KindModelCallStarted }
func (*ModelCallFinished) Kind() Kind { return KindModelCallFinished }
func (*ModelCallFailed) Kind() Kind   { return KindModelCallFailed }
func (*ToolCallStarted) Kind() Kind   { return KindToolCallStarted }
func (*ToolCallFinished) Kind() Kind  { return KindToolCallFinished }
func (*AbortRequested) Kind() Kind    { return KindAbortRequested }
func (*ExchangeClosed) Kind() Kind    { return KindExchangeClosed }
