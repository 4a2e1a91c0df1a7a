// Package anthropic is a [psych.Model] for Anthropic's Messages API, and
// servers that speak it, on the official SDK.
//
// The body of a request is Psych's: each message is encoded once, and a request
// joins the same bytes with an envelope. The SDK sends them as they are and
// keeps what it is good at: headers, transport and the parsing of the event
// stream. It never repeats a request; Psych does. It reads no environment and
// no profile.
//
// # On the wire
//
// Zones 1 and 2 are the blocks of system. Results are blocks of a user's
// message, and what a user says next stands behind them in the same one, since
// roles must alternate. The trailing message is the last text block of the last
// message, a user's.
//
// Reasoning comes back as it came, with its signature, in its place. Models
// from Claude 5.1 on bind it to everything that precedes it: for these the
// codec says that trailing messages stay in their places, and each request says
// that reasoning whose prefix changed (a trimmed history, a new memory) is
// dropped rather than the request refused, which is a beta of the API's.
//
// Images (PNG, JPEG, GIF, WebP) and PDFs are sent as such, from users and in
// results, up to 5 MiB as base64.
//
// # Model options
//
// max_tokens must be sent: it is the Spec's max_output_tokens, else
// Options.MaxTokens, else 32,000, and reasoning counts in it.
//
// A temperature is sent as it is; from Claude 4.7 on the provider refuses any
// but its own.
//
// An effort (low, medium, high, xhigh, max) is output_config.effort, together
// with adaptive thinking. Models up to 4.5 know neither: for these it is a
// budget of reasoning of 4,096, 8,192, 16,384 or 32,768 tokens, at most half of
// max_tokens. Without an effort the provider's own default holds. What the
// model's name does not tell (a gateway's alias), Options.Like does;
// Options.Thinking overrules it.
//
// # Caching
//
// A request marks where prefixes end, at most four times: after zone 1, zone 2,
// the history of the request before and that of this one; never the trailing
// message. Prefixes below the provider's minimum (512 to 4,096 tokens, by
// model) are not cached, which costs nothing.
//
// # Stop reasons
//
//	end_turn, stop_sequence         end; with calls tool_use
//	tool_use                        tool_use
//	max_tokens                      max_tokens
//	refusal                         refusal; why is in the log, as a provider block
//	model_context_window_exceeded   context
//	pause_turn                      with calls tool_use; else not known, since no
//	                                tool of the server's is ever offered
package anthropic
