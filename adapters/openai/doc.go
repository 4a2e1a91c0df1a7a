// Package openai is a [psych.Model] for Chat Completions: OpenAI's own and any
// compatible server's, on the official SDK.
//
// The body of a request is Psych's: each message is encoded once, and a request
// joins the same bytes with an envelope. The SDK sends them as they are and
// keeps what it is good at: authorization, origin checks, transport and the
// parsing of the event stream. It never repeats a request; Psych does.
//
// # On the wire
//
// Zones 1 and 2 are one system message, zone 1 first, so that it stays a
// prefix of the body when zone 2 changes. They are not two messages, since the
// chat templates of many models refuse a second one and any that is not first.
//
// A batch of results is one part of the history and several tool messages. An
// assistant's message with neither text nor calls is no message at all.
//
// The trailing message joins the last message, a user's or a tool's, as the
// last text of it: a separate message would be a second user message in a row,
// or a system message in mid-conversation, and some servers refuse each. After
// an assistant's message, or alone, it is a user message. It is put in as the
// body is joined, so that the stored messages stay as they are: without it the
// body is the same but for that text.
//
// What a server sends in a message or a call beyond what this package knows
// (reasoning_content, reasoning, reasoning_details, extra_content with a
// signature, …) is kept as a provider block, strings in their own escapes, and
// stands in the same message or call when that is sent again.
//
// # Caching
//
// OpenAI caches prefixes by itself. Options.CacheKey steers requests with a
// common prefix to one cache. Options.CacheBreakpoints marks where prefixes
// end, for models that take prompt_cache_options: after zone 1, zone 2, the
// history of the request before and that of this one, four at most, and turns
// the implicit breakpoint off, which would pay to keep the trailing message.
package openai
