package filetools

import (
	"io"
	"sync/atomic"
)

// Counts say what the tools did since Open.
type Counts struct{ ReadFile, ListFiles, SearchFiles ToolCounts }

// ToolCounts say what one tool did. Bytes and Chars are those of its answers,
// as far as they were read, the messages of failures included.
type ToolCounts struct{ Calls, Failures, Bytes, Chars int64 }

// Total is the sum over the three tools.
func (c Counts) Total() ToolCounts {
	var sum ToolCounts
	for _, t := range []ToolCounts{c.ReadFile, c.ListFiles, c.SearchFiles} {
		sum.Calls += t.Calls
		sum.Failures += t.Failures
		sum.Bytes += t.Bytes
		sum.Chars += t.Chars
	}
	return sum
}

// Counts returns the counts so far, so that what a Run reports can be compared
// with what was done.
func (t *Tools) Counts() Counts {
	return Counts{t.read.counts(), t.list.counts(), t.search.counts()}
}

type counter struct{ calls, failures, bytes, chars atomic.Int64 }

func (c *counter) counts() ToolCounts {
	return ToolCounts{c.calls.Load(), c.failures.Load(), c.bytes.Load(), c.chars.Load()}
}

type countedReader struct {
	r io.Reader
	c *counter
}

func (r *countedReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.c.bytes.Add(int64(n))
	r.c.chars.Add(int64(runeStarts(p[:n])))
	return n, err
}

// Close lets go of what the answer holds open.
func (r *countedReader) Close() error {
	if c, ok := r.r.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
