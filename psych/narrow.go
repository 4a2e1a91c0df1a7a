package psych

import "context"

// A Policy narrows what a tenant may use of the servers that its Specs name.
// Its methods may be called concurrently.
type Policy interface {
	// Filter is asked as each turn begins, and again before each call. The
	// function that it returns is pure, and is used for that moment alone. An
	// error is not taken for a permission.
	Filter(ctx context.Context, s Scope) (Permit, error)
}

// A Permit reports whether a tool of a connection may be used. Names of
// connections are the Spec's own: a Permit that must know the server looks at
// the URL.
type Permit func(c *Connection, tool string) bool
