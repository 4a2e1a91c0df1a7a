package psych

import (
	"container/list"
	"sync"
)

// A warmRun is what a driver knows of a Run when it lets go of it. It holds for
// one incarnation and up to one boundary; the first append of the next attempt
// proves that nothing was written since.
type warmRun struct {
	key         RunKey
	incarnation string
	epoch       int64
	pos         Pos
	state       *state
	prompt      *prompt
	bytes       int64
}

// A warmCache keeps the Runs driven last, within a number of bytes.
type warmCache struct {
	mu    sync.Mutex
	limit int64
	bytes int64
	order list.List // of *warmRun, the latest first
	runs  map[RunKey]*list.Element
}

// take removes and returns what is known of a Run: it has one user at a time.
func (c *warmCache) take(key RunKey, incarnation string) *warmRun {
	c.mu.Lock()
	defer c.mu.Unlock()
	el := c.runs[key]
	if el == nil {
		return nil
	}
	w := c.remove(el)
	if w.incarnation != incarnation {
		return nil
	}
	return w
}

func (c *warmCache) remove(el *list.Element) *warmRun {
	w := c.order.Remove(el).(*warmRun)
	delete(c.runs, w.key)
	c.bytes -= w.bytes
	return w
}

func (c *warmCache) put(w *warmRun) {
	w.bytes = w.state.bytes
	if w.prompt != nil {
		w.bytes += w.prompt.bytes
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if el := c.runs[w.key]; el != nil {
		c.remove(el)
	}
	if c.runs == nil {
		c.runs = map[RunKey]*list.Element{}
	}
	c.runs[w.key] = c.order.PushFront(w)
	c.bytes += w.bytes
	for c.bytes > c.limit && c.order.Len() > 0 {
		c.remove(c.order.Back())
	}
}
