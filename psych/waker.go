package psych

import "context"

// A Waker asks that Runs be driven soon. It may repeat wakes, hand them over late
// and in any order, and lose them: what was posted is due in the Run's header all
// the same, and the sweep finds it. Its methods may be called concurrently.
// contracttest.TestWaker checks implementations.
type Waker interface {
	// Wake asks that the Runs of keys be driven, however many they are; none is
	// no error. A key that stands twice in keys may be taken for one; a Run that
	// is woken again after a driver took it is driven again. An illegal key makes
	// an error that matches ErrInvalid, and one that can't be woken now one that
	// matches ErrUnavailable; the others are woken all the same. With a context
	// that has ended Wake fails with its error. It keeps nothing of keys.
	Wake(ctx context.Context, keys ...RunKey) error
}
