package psych

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
)

// A Report is a fold of a log: what happened in a Run and what it cost. What
// no provider reported is null, never zero.
type Report struct {
	Run        RunKey            `json:"run"`
	Version    Digest            `json:"version"`
	Status     string            `json:"status"`
	Exchanges  []ExchangeReport  `json:"exchanges"`
	ModelCalls []ModelCallReport `json:"model_calls"`
	ToolCalls  []ToolCallReport  `json:"tool_calls"`
	Turns      int               `json:"turns"`
	Attempts   int               `json:"attempts"`
	Totals     Totals            `json:"totals"`
	FirstWire  *WireSplit        `json:"first_wire"`
	LastWire   *WireSplit        `json:"last_wire"`
	Waiting    int               `json:"waiting"` // notes in the inbox

	// UnboundLimits are the limits of the Spec that can't hold what they are
	// meant to, since what some answered model call used or cost is unknown.
	UnboundLimits []string `json:"unbound_limits,omitempty"`
}

// An ExchangeReport says how an exchange went.
type ExchangeReport struct {
	FirstSeq uint64 `json:"first_seq"`
	Message  string `json:"message"` // id of the message that opened it
	Turns    int    `json:"turns"`
	Closed   string `json:"closed"` // "" while it is open
	Code     string `json:"code,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Answer   string `json:"answer,omitempty"` // text of its last answer, at most 100,000 characters
	Spend    Spend  `json:"spend"`
}

// A Spend sums what providers reported of answered model calls, and what they
// cost by the Runtime's Prices. Of a failed call nothing is known, though a
// provider may bill it.
type Spend struct {
	PromptTokens     int64  `json:"prompt_tokens"`
	CompletionTokens int64  `json:"completion_tokens"`
	CachedTokens     *int64 `json:"cached_tokens"`   // of the calls that reported them; nil if none did
	UncachedTokens   *int64 `json:"uncached_tokens"` // of the same calls: the rest of the prompt
	UnknownCalls     int    `json:"unknown_calls"`   // answered model calls without usage

	CostUSD       *float64 `json:"cost_usd"`                 // nil if that of any call is unknown
	UnpricedCalls int      `json:"unpriced_calls"`           // answered model calls whose cost is unknown
	KnownCostUSD  *float64 `json:"known_cost_usd,omitempty"` // of the other calls, if there are both

	picos         int64
	priced        int
	unsplit       int // answered calls of which cached or prompt tokens are unknown
	noPrompt      int // of which prompt tokens are
	noCompletion  int // of which completion tokens are
	cachedPrompts int64
}

// noSpend is that of no call, which costs nothing.
func noSpend() Spend { return Spend{CostUSD: new(float64)} }

// add counts an answered model call.
func (s *Spend) add(u *Usage, picos int64, priced bool) {
	input, hasInput := counted(u.Input)
	output, hasOutput := counted(u.Output)
	read, hasRead := counted(u.CacheRead)
	s.PromptTokens += input
	s.CompletionTokens += output
	if hasInput && hasRead {
		cached, uncached := read, max(0, input-read)
		if s.CachedTokens != nil {
			cached, uncached = cached+*s.CachedTokens, uncached+*s.UncachedTokens
		}
		s.CachedTokens, s.UncachedTokens = &cached, &uncached
		s.cachedPrompts += input
	} else {
		s.unsplit++
	}
	if !hasInput {
		s.noPrompt++
	}
	if !hasOutput {
		s.noCompletion++
	}
	if !hasInput && !hasOutput {
		s.UnknownCalls++
	}
	if priced {
		s.priced++
		s.picos = sumOf(s.picos, picos)
	} else {
		s.UnpricedCalls++
	}
	usd := dollars(s.picos)
	switch {
	case s.UnpricedCalls == 0:
		s.CostUSD = &usd
	case s.priced > 0:
		s.CostUSD, s.KnownCostUSD = nil, &usd
	default:
		s.CostUSD = nil
	}
}

// cost is for a person.
func (s *Spend) cost() string {
	switch {
	case s.CostUSD != nil:
		return "cost " + showUSD(*s.CostUSD)
	case s.KnownCostUSD != nil:
		return fmt.Sprintf("cost unknown (%s and that of %s)", showUSD(*s.KnownCostUSD), count(s.UnpricedCalls, "call"))
	}
	return "cost unknown"
}

// showUSD is an amount for a person, to a tenth of a cent, or to four digits
// where it is less than a dollar.
func showUSD(usd float64) string {
	if usd <= 0 || usd >= 1 {
		return fmt.Sprintf("$%.3f", usd)
	}
	digits := fmt.Sprintf("%.*f", 3-int(math.Floor(math.Log10(usd))), usd)
	return "$" + strings.TrimSuffix(strings.TrimRight(digits, "0"), ".")
}

// Totals sums a Run. CacheHitRate is cached over prompt tokens of the calls
// that reported cached tokens, nil if none did.
type Totals struct {
	Spend
	CacheHitRate *float64 `json:"cache_hit_rate"`
}

// A ModelCallReport is one try of a turn.
type ModelCallReport struct {
	Turn             int       `json:"turn"`
	Try              int       `json:"try,omitempty"`
	Model            string    `json:"model"`
	Outcome          string    `json:"outcome"` // a stop reason, "failed", "interrupted", or "" while it is open
	Error            string    `json:"error,omitempty"`
	PromptTokens     *int64    `json:"prompt_tokens"`
	CompletionTokens *int64    `json:"completion_tokens"`
	CachedTokens     *int64    `json:"cached_tokens"`
	WrittenTokens    *int64    `json:"written_tokens"`      // to the provider's cache
	WrittenHour      *int64    `json:"written_hour_tokens"` // of them: for an hour
	CostUSD          *float64  `json:"cost_usd"`
	Wire             WireSplit `json:"wire"`
	Breaks           []Break   `json:"breaks,omitempty"`
	Milliseconds     int64     `json:"milliseconds"`
}

// A WireSplit is the size of a request in characters, as sent. Envelope is
// what is in no zone; it is known of answered calls alone.
type WireSplit struct {
	System   int `json:"system"`
	Tools    int `json:"tools"`
	History  int `json:"history"`
	Tail     int `json:"tail"`
	Envelope int `json:"envelope"`
}

// Total is all of a request.
func (w WireSplit) Total() int { return w.System + w.Tools + w.History + w.Tail + w.Envelope }

// A ToolCallReport is one call. Outcome is "" while it has no result.
type ToolCallReport struct {
	ID           string          `json:"id"`
	Turn         int             `json:"turn"`
	Name         string          `json:"name"`
	Tool         string          `json:"tool,omitempty"` // that was reached, where it was asked for through another
	Arguments    json.RawMessage `json:"arguments"`      // a JSON string where they are no JSON; null where they lie in the BlobStore
	Outcome      string          `json:"outcome"`        // succeeded, failed, unknown, not_started
	Code         string          `json:"code,omitempty"`
	ResultBytes  int64           `json:"result_bytes"`
	ResultHandle string          `json:"result_handle,omitempty"` // set when elided or offloaded
	Offloaded    bool            `json:"offloaded"`
	Preview      string          `json:"preview,omitempty"` // what the model saw when elided
	Milliseconds int64           `json:"milliseconds"`

	Attachments []AttachmentReport `json:"attachments,omitempty"`
}

// An AttachmentReport is a further output of a call.
type AttachmentReport struct {
	Name          string `json:"name"`
	Handle        string `json:"handle"`
	ContentType   string `json:"content_type"`
	SizeBytes     int64  `json:"size_bytes"`     // kept, or, of a preview_only one, measured
	ObservedBytes int64  `json:"observed_bytes"` // written by the tool
	Truncated     bool   `json:"truncated"`
	SHA256        Digest `json:"sha256"`
	Stored        string `json:"stored"`   // inline, blob, preview_only
	Readable      bool   `json:"readable"` // by read_tool_output
	Preview       string `json:"preview,omitempty"`
}

func attachmentReport(x *part) AttachmentReport {
	r := AttachmentReport{
		Name: x.at.Name, Handle: x.handle(), ContentType: x.p.ContentType, SizeBytes: x.p.Size, ObservedBytes: max(x.at.Observed, x.p.Size),
		Truncated: x.at.Truncated, Stored: x.p.Stored(), Readable: !x.p.letGo() && !x.p.Binary,
	}
	if x.p.Ref != nil {
		r.SHA256 = x.p.Ref.SHA256
	} else {
		r.SHA256 = sha256.Sum256(x.p.Inline)
	}
	return r
}

// Report folds the log of a Run. It needs no lease, and no Model.
func (r *Runtime) Report(ctx context.Context, key RunKey) (*Report, error) {
	if err := key.Check(); err != nil {
		return nil, err
	}
	rep := reporter{Report: Report{Run: key, Totals: Totals{Spend: noSpend()}, Exchanges: []ExchangeReport{}, ModelCalls: []ModelCallReport{}, ToolCalls: []ToolCallReport{}}, rows: map[string]int{}, ctx: ctx, blobs: r.o.Blobs, prices: r.prices()}
	s, _, err := foldLog(ctx, r.store, r.store, key, rep.add)
	if err != nil {
		return nil, err
	}
	rep.Status = s.status
	notes, err := r.store.Pending(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("psych: report of run %s: %w", key, err)
	}
	for _, n := range notes {
		if _, delivered := s.notes[n.noteKey()]; !delivered {
			rep.Waiting++
		}
	}
	if err := errors.Join(rep.err, rep.answers(ctx, s, r.o.Blobs)); err != nil {
		return nil, err
	}
	rep.totals(&s.limits)
	return &rep.Report, nil
}

// A reporter makes a Report of records as they are folded.
type reporter struct {
	Report
	rows   map[string]int // of ToolCalls, by call id
	answer []*ModelCallFinished

	ctx    context.Context // of this one report
	blobs  BlobStore
	prices *Prices
	err    error
}

func (rep *reporter) add(s *state, rec *Record) {
	switch e := rec.Event.(type) {
	case *RunAdmitted:
		rep.Version = e.Version
	case *AttemptStarted:
		rep.Attempts++
	case *UserMessage:
		if s.exchanges > len(rep.Exchanges) {
			rep.Exchanges = append(rep.Exchanges, ExchangeReport{FirstSeq: rec.Seq, Message: e.ID, Spend: noSpend()})
			rep.answer = append(rep.answer, nil)
		}
	case *ModelCallStarted:
		w := WireSplit{Tools: e.Chars[0], System: e.Chars[1], History: e.Chars[2], Tail: e.Chars[3]}
		rep.ModelCalls = append(rep.ModelCalls, ModelCallReport{Turn: e.Turn, Try: e.Try, Model: s.model, Wire: w, Breaks: e.Breaks})
	case *ModelCallFinished:
		m := &rep.ModelCalls[len(rep.ModelCalls)-1]
		m.Outcome, m.Milliseconds = string(e.Stop), e.Milliseconds
		m.PromptTokens, m.CompletionTokens, m.CachedTokens = e.Usage.Input, e.Usage.Output, e.Usage.CacheRead
		m.WrittenTokens, m.WrittenHour = e.Usage.CacheWrite, e.Usage.WriteHour
		picos, priced := rep.prices.cost(m.Model, &e.Usage)
		if priced {
			usd := dollars(picos)
			m.CostUSD = &usd
		}
		rep.Totals.add(&e.Usage, picos, priced)
		rep.Exchanges[len(rep.Exchanges)-1].Spend.add(&e.Usage, picos, priced)
		if e.Sent > 0 {
			m.Wire.Envelope = e.Sent - m.Wire.Total()
		}
		rep.Turns++
		rep.Exchanges[len(rep.Exchanges)-1].Turns++
		rep.answer[len(rep.answer)-1] = e
		for _, c := range s.history[len(s.history)-1].results.calls {
			rep.rows[c.id] = len(rep.ToolCalls)
			rep.ToolCalls = append(rep.ToolCalls, ToolCallReport{ID: c.id, Turn: c.turn, Name: c.asked.Name, Arguments: shownArguments(&c.asked.Arguments)})
		}
	case *ModelCallFailed:
		m := &rep.ModelCalls[len(rep.ModelCalls)-1]
		if m.Outcome, m.Error = "failed", e.Message; e.Interrupted {
			m.Outcome = "interrupted"
		}
	case *ToolCallFinished:
		row := &rep.ToolCalls[rep.rows[e.Call]]
		if c := s.call(e.Call); !c.wentNowhere() {
			row.Tool = c.tool
		}
		row.Outcome, row.Code, row.Milliseconds = string(e.Outcome), e.Code, e.Milliseconds
		row.ResultBytes, row.Offloaded = e.Result.Size, e.Result.Ref != nil
		if row.Offloaded {
			row.ResultHandle = outputPrefix + e.Call
		}
		if s.batch != nil && s.batch.open == 0 {
			rep.views(s)
		}
	case *ExchangeClosed:
		x := &rep.Exchanges[len(rep.Exchanges)-1]
		x.Closed, x.Code, x.Reason = e.Status, e.Code, e.Reason
	}
}

// views notes what the model is shown of a whole batch.
func (rep *reporter) views(s *state) {
	for _, c := range s.batch.calls {
		row := &rep.ToolCalls[rep.rows[c.id]]
		for i := range c.parts {
			x := &c.parts[i]
			if x.at != nil {
				row.Attachments = append(row.Attachments, attachmentReport(x))
			}
			if !x.elided {
				continue
			}
			if err := s.fetch(rep.ctx, c, rep.blobs); err != nil { // the bytes are gone: all else is known
				rep.err = errors.Join(rep.err, rep.ctx.Err())
				continue
			}
			preview := string(s.appendPreview(nil, x))
			if x.at == nil {
				row.ResultHandle, row.Preview = x.handle(), preview
			} else {
				row.Attachments[i-1].Preview = preview
			}
		}
	}
}

// shownArguments are the arguments of a call as JSON.
func shownArguments(p *Payload) json.RawMessage {
	switch {
	case p.Ref != nil:
		return json.RawMessage("null")
	case len(p.Inline) == 0:
		return json.RawMessage(`""`)
	case json.Valid(p.Inline):
		return p.Inline
	}
	b, _ := json.Marshal(string(p.Inline))
	return b
}

// maxAnswerChars bounds an ExchangeReport's Answer.
const maxAnswerChars = 100_000

func (rep *reporter) answers(ctx context.Context, s *state, blobs BlobStore) error {
	for i, a := range rep.answer {
		if a == nil {
			continue
		}
		var b strings.Builder
		for j := range a.Blocks {
			if t := a.Blocks[j].Text; t != nil {
				text, err := t.load(ctx, blobs, s.run)
				switch {
				case ctx.Err() != nil:
					return err
				case err != nil: // the bytes are gone: all else is known
					fmt.Fprintf(&b, "%s\n[the rest of %d bytes can't be read from the BlobStore]", t.begin(), t.Size)
				}
				b.Write(text)
			}
		}
		rep.Exchanges[i].Answer = string(firstChars([]byte(b.String()), maxAnswerChars))
	}
	return nil
}

func (rep *reporter) totals(l *Limits) {
	if n := len(rep.ModelCalls); n > 0 {
		rep.FirstWire, rep.LastWire = &rep.ModelCalls[0].Wire, &rep.ModelCalls[n-1].Wire
	}
	t := &rep.Totals
	if t.cachedPrompts > 0 {
		rate := float64(*t.CachedTokens) / float64(t.cachedPrompts)
		t.CacheHitRate = &rate
	}
	for _, x := range []struct {
		scope string
		b     Budget
	}{{"", l.exchange()}, {"run.", l.Run}} {
		for _, y := range []struct {
			name    string
			set     bool
			unknown int
		}{
			{"tokens", x.b.Tokens > 0, t.noPrompt + t.noCompletion},
			{"uncached_tokens", x.b.UncachedTokens > 0, t.unsplit},
			{"output_tokens", x.b.OutputTokens > 0, t.noCompletion},
			{"cost_usd", x.b.CostUSD > 0, t.UnpricedCalls},
		} {
			if y.set && y.unknown > 0 {
				rep.UnboundLimits = append(rep.UnboundLimits, x.scope+y.name)
			}
		}
	}
}

// WriteText prints a report for a person. Control characters of what models
// and tools sent are shown, not sent to the terminal.
func (rep *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "run %s of tenant %s: %s, %s, %s", rep.Run.RunID, oneLine(rep.Run.Tenant), rep.Status, count(rep.Turns, "turn"), count(rep.Attempts, "attempt"))
	if rep.Waiting > 0 {
		fmt.Fprintf(&b, ", %s waiting", count(rep.Waiting, "note"))
	}
	b.WriteString("\n")
	for i, x := range rep.Exchanges {
		fmt.Fprintf(&b, "exchange %d: %s, %s, %d prompt tokens, %d completion tokens, %s", i+1, count(x.Turns, "turn"), orOpen(x.Closed), x.Spend.PromptTokens, x.Spend.CompletionTokens, x.Spend.cost())
		if x.Reason != "" {
			fmt.Fprintf(&b, " (%s)", oneLine(x.Reason))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "model call\tprompt\tcached\tcompletion\tsystem\ttools\thistory\ttail\tenvelope\tms\toutcome\t")
	for _, m := range rep.ModelCalls {
		name := fmt.Sprint("turn ", m.Turn)
		if m.Try > 0 {
			name += fmt.Sprint(" try ", m.Try+1)
		}
		out := orOpen(m.Outcome)
		for _, k := range m.Breaks {
			out += fmt.Sprintf(", zone %d: %s", k.Zone, k.Cause)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t\n", name, known(m.PromptTokens), known(m.CachedTokens), known(m.CompletionTokens),
			m.Wire.System, m.Wire.Tools, m.Wire.History, m.Wire.Tail, m.Wire.Envelope, m.Milliseconds, out)
	}
	t.Flush()
	if len(rep.ToolCalls) > 0 {
		b.WriteString("\n")
		t = tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "tool call\tname\toutcome\tresult_bytes\tstored\tresult_handle")
		for _, c := range rep.ToolCalls {
			stored, handle := "inline", c.ResultHandle
			if c.Offloaded {
				stored = "blob"
			}
			if c.Preview != "" {
				handle += fmt.Sprintf(" (elided to a preview of %d characters)", len([]rune(c.Preview)))
			}
			name := oneLine(c.Name)
			if c.Tool != "" {
				name += " → " + c.Tool
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\n", c.ID, name, orOpen(c.Outcome), c.ResultBytes, stored, handle)
			for _, a := range c.Attachments {
				state := a.ContentType
				if a.Truncated {
					state = fmt.Sprintf("cut of %d", a.ObservedBytes)
				}
				handle := a.Handle
				if a.Preview != "" {
					handle += fmt.Sprintf(" (elided to a preview of %d characters)", len([]rune(a.Preview)))
				}
				fmt.Fprintf(t, "\t+ %s\t%s\t%d\t%s\t%s\n", oneLine(a.Name), oneLine(state), a.SizeBytes, a.Stored, handle)
			}
		}
		t.Flush()
		for _, c := range rep.ToolCalls {
			if c.Preview != "" {
				fmt.Fprintf(&b, "\npreview of %s:\n%s\n", c.ResultHandle, indent(shorten(c.Preview, 600)))
			}
			for _, a := range c.Attachments {
				if a.Preview != "" {
					fmt.Fprintf(&b, "\npreview of %s:\n%s\n", a.Handle, indent(shorten(a.Preview, 600)))
				}
			}
		}
	}
	fmt.Fprintf(&b, "\ntotals: %d prompt tokens, %d completion tokens, cached %s", rep.Totals.PromptTokens, rep.Totals.CompletionTokens, known(rep.Totals.CachedTokens))
	if r := rep.Totals.CacheHitRate; r != nil {
		fmt.Fprintf(&b, ", cache_hit_rate %.1f %%", *r*100)
	} else {
		b.WriteString(", cache_hit_rate unknown")
	}
	if rep.Totals.UnknownCalls > 0 {
		fmt.Fprintf(&b, ", usage of %d calls unknown", rep.Totals.UnknownCalls)
	}
	fmt.Fprintf(&b, ", %s\n", rep.Totals.cost())
	if len(rep.UnboundLimits) > 0 {
		fmt.Fprintf(&b, "limits that can't hold, since usage or price is unknown: %s\n", strings.Join(rep.UnboundLimits, ", "))
	}
	if rep.FirstWire != nil {
		fmt.Fprintf(&b, "characters of the first request %d, of the last %d\n", rep.FirstWire.Total(), rep.LastWire.Total())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// oneLine is Printable for a cell of a table.
func oneLine(s string) string {
	return strings.NewReplacer("\n", "\\n", "\t", "\\t").Replace(Printable(s))
}

func orOpen(s string) string {
	if s == "" {
		return StatusOpen
	}
	return s
}

func known(n *int64) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}

func indent(s string) string {
	return "  | " + strings.ReplaceAll(strings.TrimRight(Printable(s), "\n"), "\n", "\n  | ")
}

// shorten keeps the beginning and the end of a text for the terminal.
func shorten(s string, n int) string {
	b := []byte(s)
	if len([]rune(s)) <= n {
		return s
	}
	return string(firstChars(b, n/2)) + "\n⋮\n" + string(lastChars(b, n/2))
}

// Printable is s with control characters but tab and newline shown as \x1b and
// the like, and with those that reorder a line or begin one as \u202e, so that
// what a tool or model sent can't drive a terminal, nor look like other text.
func Printable(s string) string {
	clean := func(r rune) bool {
		switch {
		case r == '\n' || r == '\t':
			return true
		case r < ' ', r >= 0x7f && r < 0xa0, r >= 0x2028 && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
			return false
		}
		return true
	}
	s = strings.ToValidUTF8(s, "\ufffd") // a byte by itself is a control to some terminals
	if strings.IndexFunc(s, func(r rune) bool { return !clean(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case clean(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, "\\x%02x", r)
		default:
			fmt.Fprintf(&b, "\\u%04x", r)
		}
	}
	return b.String()
}
