package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/psych-go/psych-go/psych"
)

// A watcher prints what a Run does while it does it. All that it prints of
// models and tools passes psych.Printable.
type watcher struct {
	w      io.Writer
	inLine bool
}

func (w *watcher) observe(o psych.Observation) {
	if o.Delta != nil && o.Delta.Text != "" {
		text := psych.Printable(o.Delta.Text)
		io.WriteString(w.w, text)
		w.inLine = !strings.HasSuffix(text, "\n")
	}
	if o.Record == nil {
		return
	}
	switch e := o.Record.Event.(type) {
	case *psych.ModelCallFinished:
		n := 0
		for _, b := range e.Blocks {
			if b.Call != nil {
				n++
				w.printf("→ c%d_%d %s %s", e.Turn, n, b.Call.Name, short(&b.Call.Arguments))
			}
		}
		w.line()
	case *psych.ModelCallFailed:
		w.printf("! model call of turn %d failed: %s", e.Turn, e.Message)
	case *psych.ToolCallFinished:
		what := string(e.Outcome)
		if e.Code != "" {
			what += " (" + e.Code + ")"
		}
		what += fmt.Sprintf(", %d bytes", e.Result.Size)
		switch {
		case e.Result.Ref != nil:
			what += ", kept in the blob store"
		case e.Outcome != psych.Succeeded:
			what += ": " + short(&e.Result)
		}
		w.printf("← %s %s", e.Call, what)
		for i := range e.Attachments {
			w.attachment(&e.Attachments[i])
		}
	}
}

func (w *watcher) attachment(a *psych.Attachment) {
	what := fmt.Sprintf("%d bytes", a.Output.Size)
	if a.Truncated && a.Observed > a.Output.Size {
		what += fmt.Sprintf(" of %d", a.Observed)
	}
	switch a.Output.Stored() {
	case psych.StoredBlob:
		what += ", kept in the blob store"
	case psych.StoredPreview:
		what += ", of which a preview alone was kept"
	}
	w.printf("  + %s, %s", a.Name, what)
}

// shortChars is how much of arguments and failures is printed.
const shortChars = 200

func short(p *psych.Payload) string {
	r := []rune(string(p.Inline[:min(len(p.Inline), 4*shortChars)]))
	if p.Ref == nil && len(r) <= shortChars && len(p.Inline) <= 4*shortChars {
		return string(r)
	}
	return fmt.Sprintf("%s… (%d bytes)", string(r[:min(len(r), shortChars)]), p.Size)
}

// printf prints a line of its own.
func (w *watcher) printf(format string, args ...any) {
	w.line()
	fmt.Fprintln(w.w, oneLine(fmt.Sprintf(format, args...)))
}

// line ends the line that a text began.
func (w *watcher) line() {
	if w.inLine {
		fmt.Fprintln(w.w)
		w.inLine = false
	}
}
