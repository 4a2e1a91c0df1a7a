package psych

import "encoding/json"

// A Disclosure is a strategy that decides which of the permitted tools of
// servers the model is shown, and how. Both methods are pure functions of their
// arguments, and deterministic. contracttest.DisclosureRules checks it.
//
// Whatever the strategy shows, the model has list_tools, read_tool and
// call_tool, which reach every permitted tool.
type Disclosure interface {
	// Open decides what a Run is opened with. It is asked once, before the
	// first turn, and again where the Run is opened anew; what it returned
	// stays as it is in between.
	Open(in *DisclosureInput) (*Surface, error)

	// Route says where a call of one of the Surface's own Tools goes, with
	// what is permitted now. An error is told to the model.
	Route(in *DisclosureInput, tool string, args json.RawMessage) (Route, error)
}

// DisclosureInput is all that a strategy may know.
type DisclosureInput struct {
	Servers []ServerTools // sorted by name
	Budget  int           // of characters, of all that servers add to the prompt
	Tools   int           // most definitions that are shown
	Limits  ModelLimits   // of the provider
}

// ServerTools is a connection as it is permitted now.
type ServerTools struct {
	Server, Description string
	Preload             *bool
	Inject              []string
	Tools               []ToolSummary // sorted by name; none where the server can't be reached yet
}

// A ToolSummary is what is known of a tool without reading its definition.
type ToolSummary struct {
	Name     string // the server's own
	Line     string // of its description, on one line of at most 200 characters; may be empty
	Chars    int    // of its definition, as it is shown
	Withheld string // why its definition can't be shown; "" if it can
}

// A Surface is what a Run is opened with.
type Surface struct {
	Eager []ToolRef // tools that are shown by their definitions, each at most once
	Tools []ToolDef // further tools, the strategy's own, with names that ToolName makes
	Lines []string  // of zone 1, one for each server whose tools aren't shown
}

// A ToolRef names a tool of a server.
type ToolRef struct {
	Server string `json:"server"`
	Tool   string `json:"tool"`
}

// A Route is where a call goes: to a tool of a server, or, with List, to a
// listing that psych makes.
type Route struct {
	ToolRef
	Arguments json.RawMessage
	List      *ListQuery
}

// A ListQuery asks for a listing of permitted tools: those of one server, or of
// all; in the order of their names, or, with a query, the best matches first.
type ListQuery struct {
	Server string `json:"server,omitempty"`
	Query  string `json:"query,omitempty"`
	Offset int    `json:"offset,omitempty"`
}

// DisclosureSpec picks a strategy by name. It is part of a Spec's hash, since
// it changes what the model is shown.
type DisclosureSpec struct {
	Strategy string `json:"strategy,omitempty"` // "" is auto
	Budget   int    `json:"budget,omitempty"`   // of characters that servers add to the prompt, all together; 16000
	Tools    int    `json:"tools,omitempty"`    // most definitions that are shown; 40
}
