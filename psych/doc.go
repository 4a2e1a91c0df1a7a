// Package psych runs LLM agents durably on serverless storage.
//
// An agent is a [Spec]: data that names instructions, a model, tools and
// limits. [Runtime.Publish] turns it into an immutable [Version]. A Run is one
// durable conversation with a Version: a header that says who drives it, an
// inbox that clients post to, and an append-only log that one driver at a time
// writes. Its state is a fold of the log and stored nowhere else, so a worker
// may be frozen or killed at any instruction and another goes on.
//
// Three guarantees, in this order:
//
//  1. Nothing that a tool returned is ever lost. The log holds everything;
//     above a size the bytes lie in a [BlobStore] and the record keeps a
//     reference. Only the model's view is shortened: it sees a preview, and
//     reads the rest with the tool read_tool_output.
//  2. Nothing is reached past a grant. A tenant is part of every address, and a
//     handle that a model sends is looked up among the Run's own outputs and
//     never turned into an address.
//  3. The prefix is byte-stable. What was sent to the model once is sent again,
//     byte for byte, until a break that the log names. Each model call records
//     what it sent, so that [Runtime.Report] can measure it.
//
// Tools are Go functions that a Spec names, and those of MCP servers, which it
// names as connections: a [Disclosure] decides how much of their definitions is
// in the prompt, and three meta tools reach the rest, never past what the
// server offers, the [Policy] permits and the Spec grants.
//
// Storage, models and servers are ports: [Store], [BlobStore], [Model],
// [Waker], [Connector], [Secrets], [Policy]. Adapters are packages of their
// own, and the suites of package contracttest prove that they behave alike.
package psych
