package exec

// runs reports whether a process of the group has not ended yet. A signal to
// a group of ended processes is an error here, so that there is no more to see.
func (g group) runs() bool { return true }
