// Package openai is a [psych.Model] for Chat Completions, OpenAI's own and any
// compatible server's, and for the Responses API, on the official SDK.
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
// assistant's message with neither text nor calls is no message at all. Two
// messages of a user's in a row, as after an exchange that failed, are one,
// since the same templates refuse two.
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
// stands in the same message or call when that is sent again. Request ids are
// kept for the log alone.
//
// # Images
//
// With Options.Images a user's images are parts of the message, as data URLs.
// A tool message holds text alone, at OpenAI and most servers, so the images of
// a batch follow its results in one user message, which says that it is not the
// user's and which call each is of; what a user says next goes on in it, and so
// does the trailing message. Servers that refuse a user's message behind a
// tool's, as some chat templates do, refuse such a batch.
//
// # The Responses API
//
// Options.Responses asks for /responses instead. Nothing is stored there:
// each request carries the whole conversation, and reasoning comes encrypted
// (reasoning.encrypted_content), is kept byte for byte as a provider block, and
// is sent again in its place. Reasoning that is not encrypted is sent again if
// it can be read, as servers of open models send it; else it would be looked up
// by its id in vain. Reasoning that nothing follows is left out. So are items
// of any other type, which nobody asked for; they are in the log. Messages and
// calls are written anew, without the ids of items that are not stored; the
// phase of a message and what else they have is kept.
//
// Zones 1 and 2 are a system message, the first item. The trailing message
// joins a user's message or the last output, as above: a user's message behind
// outputs would end what these models take for one turn, and with it the use of
// the turn's reasoning. Images of results stand in their outputs.
//
// # Caching
//
// OpenAI caches prefixes by itself. prompt_cache_key steers requests with a
// common prefix to one cache: each Run has its own, or Options.CacheKey.
//
// OpenAI documents explicit breakpoints for gpt-5.6 and later models. Requests
// for these to OpenAI mark where prefixes end: after zone 1, zone 2, the history
// of the request before and that of this one, four at most, and turn the implicit
// breakpoint off, which would pay to keep the trailing message and never find it
// again. Options.CacheBreakpoints does so for any model and server,
// Options.NoCacheBreakpoints for none. Options.CacheTTL asks for a longer time.
//
// # Refused blocks
//
// A request that is refused for reasoning that the server can't decrypt or
// look up, as behind a gateway that changes accounts, or for images that it can't
// read, says so in its [psych.ModelError]: the Run goes on without them.
package openai
