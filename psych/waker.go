package psych

import "context"

// A Waker asks that Runs be driven soon. It may lose or repeat a wake: what
// was posted is due in the Run's header all the same, and the sweep finds it.
// Keys that can't be woken make an error; the others are woken.
type Waker interface {
	Wake(ctx context.Context, keys ...RunKey) error
}
