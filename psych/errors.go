package psych

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Errors of the ports. An adapter wraps one of these and, where there is one,
// the error of its SDK, so that both can be found:
//
//	fmt.Errorf("dynamo: append %s: %w: %w", key, psych.ErrConflict, err)
//
// An error of a writing method that matches none of the first group leaves the
// outcome unknown: the caller repeats the call with the same arguments (for
// Append, the same [Batch].Token), which is then safe.
var (
	// The call certainly had no effect.

	ErrNotFound     = errors.New("psych: not found")           // no such Run, document or blob; also another tenant's
	ErrConflict     = errors.New("psych: conflict")            // the head, ref, request or inbox is not what the caller named
	ErrLeaseHeld    = errors.New("psych: lease held")          // another owner's lease has not expired
	ErrLeaseLost    = errors.New("psych: lease lost")          // the epoch is no longer the current one
	ErrTooLarge     = errors.New("psych: too large")           // over MaxAppendBytes, MaxNoteBytes or MaxMessageBytes
	ErrInboxFull    = errors.New("psych: inbox full")          // MaxPending notes wait already
	ErrInvalid      = errors.New("psych: invalid argument")    // malformed key, cursor, gap in a batch
	ErrAccessDenied = errors.New("psych: access denied")       // what a foreign handle matches
	ErrNoBlobStore  = errors.New("psych: blob_store_required") // a payload needs a BlobStore and there is none
	ErrUnauthorized = errors.New("psych: unauthorized")        // a server refused the credential
	ErrSessionLost  = errors.New("psych: session lost")        // a server forgot the session, or it broke before the request was sent

	// The outcome is unknown or the backend is briefly unable: repeat later.

	ErrUnavailable = errors.New("psych: temporarily unavailable") // throttled, 5xx, connection, deadline
)

// A Reason names a rule of the log's protocol.
type Reason string

// Reasons of a [CorruptionError].
const (
	NonConsecutiveSeq       Reason = "non_consecutive_seq"
	RecordAfterClose        Reason = "record_after_close"
	MultipleOpenCalls       Reason = "multiple_open_calls"
	UnknownCall             Reason = "unknown_call"
	DuplicateToolInvocation Reason = "duplicate_tool_invocation"
	ToolCallMismatch        Reason = "tool_call_mismatch"
	MessageAfterAbort       Reason = "message_after_abort"
	InvalidDeferredHandle   Reason = "invalid_deferred_handle"
	InconsistentWire        Reason = "inconsistent_wire"
	StaleAttempt            Reason = "stale_attempt"
	NotAdmitted             Reason = "not_admitted"       // a message before run_admitted, or a second one of these
	UndecodableRecord       Reason = "undecodable_record" // bytes that no release of Psych wrote
)

// A CorruptionError says that a log holds, or that a caller asked for, a write
// which the protocol never makes. It is never repaired.
type CorruptionError struct {
	Run    RunKey
	Reason Reason
	Seq    uint64 // of the record, or that it would have had
	Detail string
}

func (e *CorruptionError) Error() string {
	return fmt.Sprintf("psych: run %s: %s at seq %d: %s", e.Run, e.Reason, e.Seq, e.Detail)
}

// Is reports [ErrAccessDenied] for reason invalid_deferred_handle.
func (e *CorruptionError) Is(target error) bool {
	return target == ErrAccessDenied && e.Reason == InvalidDeferredHandle
}

// An UnsupportedError says that a log holds something that a newer release
// wrote and that this one can't fold safely. The Run is intact: a worker of
// that release can go on with it.
type UnsupportedError struct {
	Run  RunKey
	Seq  uint64
	What string // the kind or version that is unknown
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("psych: run %s: seq %d was written by a newer release (%s): upgrade this worker", e.Run, e.Seq, e.What)
}

// A SpecError lists every violation of a Spec, not the first alone.
type SpecError struct{ Problems []Problem }

// A Problem is one violation, with the JSON path of what is wrong
// ("limits.large_result_tokens", "tools[2]").
type Problem struct{ Path, Message string }

func (e *SpecError) Error() string {
	var b strings.Builder
	b.WriteString("psych: invalid spec: ")
	for i, p := range e.Problems {
		if i > 0 {
			b.WriteString("; ")
		}
		if p.Path != "" {
			b.WriteString(p.Path + ": ")
		}
		b.WriteString(p.Message)
	}
	return b.String()
}

// A ModelError is a failed model call, classified once by the adapter.
type ModelError struct {
	Status     int           // HTTP status, 0 when there was none
	Transient  bool          // worth repeating with the same Request
	Overflow   bool          // the context window is exceeded
	Refused    BlockKind     // the request was refused for blocks of this kind, and may be taken without them, which is tried last if Transient; "": for none
	RetryAfter time.Duration // 0 when the provider gave none
	Message    string        // for a person; never a credential
	RequestID  string        // the provider's own
	Err        error
}

func (e *ModelError) Error() string {
	if e.Status != 0 {
		return fmt.Sprintf("psych: model call failed with status %d: %s", e.Status, e.Message)
	}
	return "psych: model call failed: " + e.Message
}

func (e *ModelError) Unwrap() error { return e.Err }

// An ExchangeError says that an exchange closed without an answer.
type ExchangeError struct {
	Run    RunKey
	Status string // failed
	Code   string // of a failure that Psych names; may be empty
	Reason string // for a person
}

func (e *ExchangeError) Error() string {
	return fmt.Sprintf("psych: run %s %s: %s", e.Run, e.Status, e.Reason)
}

// Is reports [ErrNoBlobStore] and [ErrAccessDenied] for the codes that say so.
func (e *ExchangeError) Is(target error) bool {
	return target == ErrNoBlobStore && e.Code == CodeNoBlobStore || target == ErrAccessDenied && e.Code == CodeInvalidHandle
}
