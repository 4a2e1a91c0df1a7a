package psych_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/psych-go/psych-go/adapters/filetools"
	"github.com/psych-go/psych-go/adapters/fsblob"
	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/psych"
)

// A mission is a script in testdata/missions with what its requests may cost.
// The bounds are in characters of serialized requests and loose, about a third
// over what is measured. They are not there to be tuned, but to fail when
// something is sent whole that was sent as a preview or not at all.
type mission struct {
	name     string
	messages []psych.ClientMessage
	tools    []string
	limits   psych.Limits
	memories string

	perTurn int    // of the largest request
	total   int    // of all requests
	breaks  string // which model calls may leave the prefix, and why
	tenth   bool   // under a tenth of what it takes with everything sent whole
}

var missions = []mission{
	{
		name: "steps", messages: messages("What is the last item?"), tools: []string{"lookup"},
		// A turn adds a call and a line: some 220 characters.
		perTurn: 15_000, total: 350_000,
	},
	{
		name: "huge", messages: messages("Find the needle."), tools: []string{"fetch"},
		// Three previews of 2,000 characters, a page of 500, two of one match.
		perTurn: 15_000, total: 64_000, tenth: true,
	},
	{
		name: "batch", messages: messages("Read all pages."), tools: []string{"fetch", "lookup"},
		// The batch: 12,000 estimated tokens at the most, then short turns.
		perTurn: 70_000, total: 420_000,
	},
	{
		name: "exchanges", tools: []string{"fetch"}, memories: "The user likes short answers.",
		messages: messages("Page 1?", "Page 2?", "Page 3?", "Page 4?", "Page 5?", "Page 6?", "Page 7?", "Page 8?", "Page 9?", "Page 10?", "Page 11?", "Page 12?"),
		// Eleven previews, and one page of 19,000 characters whole.
		perTurn: 64_000, total: 800_000,
		breaks: "3 history_trimmed, 5 history_trimmed, 7 history_trimmed, 9 history_trimmed, 11 history_trimmed, 13 history_trimmed, 15 history_trimmed, 17 history_trimmed, 19 history_trimmed, 21 history_trimmed, 23 history_trimmed",
	},
	{
		name: "file", messages: messages("Read notes.txt to its end. What is the last word?", "Sure?", "Really?", "Still?", "Now?"), tools: []string{"list_files", "read_file"},
		// Ten pages of 20,000 characters, whole, since they are pages; then
		// their previews.
		perTurn: 280_000, total: 1_700_000, breaks: "13 history_trimmed",
	},
	{
		name: "log", messages: messages("Build it. What fails?", "And as a whole?"), tools: []string{"build"},
		// A preview, five matches, twenty lines.
		perTurn: 11_000, total: 52_000, tenth: true,
	},
	{
		name: "attachments", tools: []string{"job"},
		messages: []psych.ClientMessage{
			{Text: "Run the nightly job."},
			{Text: "And the weekly one, for this.", Attachments: []psych.MessageAttachment{{Name: "wanted.txt", ContentType: "text/plain", Data: []byte("the checksum is wanted")}}},
		},
		// Two previews a job, and what is short whole.
		perTurn: 18_000, total: 68_000, tenth: true,
	},
	{
		name: "failing", messages: messages("Get it done."), tools: []string{"flaky", "lookup"},
		// The top 500 characters of a failure.
		perTurn: 8_000, total: 44_000, tenth: true,
	},
	{
		name: "context", messages: messages("Read six pages."), tools: []string{"fetch"},
		limits: psych.Limits{ContextTokens: 18_000},
		// Never more than the context of 18,000 estimated tokens, with the
		// envelope, which is not estimated.
		perTurn: 90_000, total: 360_000, breaks: "5 context_trimmed",
	},
}

func messages(texts ...string) []psych.ClientMessage {
	var ms []psych.ClientMessage
	for _, s := range texts {
		ms = append(ms, psych.ClientMessage{Text: s})
	}
	return ms
}

// A regression spoils what a mission is played with.
type regression struct {
	limits func(*psych.Limits)
	codec  func(psych.Codec, *player) psych.Codec
}

// A player plays a mission once.
type player struct {
	*mission
	blobs psych.BlobStore
	began time.Time // what the clock says at first
	ids   uint64    // what ids begin with
	cold  bool      // each turn is driven by a worker that knows nothing
	bad   regression

	ticks, made atomic.Int64
	mu          sync.Mutex
	whole       map[string]string // what tools returned, by handle, and failures by the call's id on the wire
}

// A play is how it went. err is what ended it early, if anything did.
type play struct {
	sent     []script.Sent
	replayed []*psych.ReplayedCall
	again    error // that of the replay
	report   *psych.Report
	err      error
}

// now goes on with each look.
func (p *player) now() time.Time {
	return p.began.Add(time.Duration(p.ticks.Add(1)) * time.Millisecond)
}

func (p *player) newID() string { return fmt.Sprintf("%016x%016x", p.ids, p.made.Add(1)) }

func (p *player) keep(name, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.whole[name] = text
}

// codecModel is a Model with another Codec.
type codecModel struct {
	psych.Model
	codec psych.Codec
}

func (m codecModel) Codec() psych.Codec { return m.codec }

func (p *player) play(t *testing.T) *play {
	t.Helper()
	s, err := script.Load(filepath.Join("testdata", "missions", p.name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	player := script.New(s, &script.Options{Record: true})
	model := psych.Model(player)
	if p.bad.codec != nil {
		model = codecModel{player, p.bad.codec(player.Codec(), p)}
	}
	p.whole = map[string]string{}
	spec := psych.Spec{Name: p.name, Instructions: "You look things up.", Tools: p.tools, Limits: p.limits}
	if p.bad.limits != nil {
		p.bad.limits(&spec.Limits)
	}
	o := psych.Options{
		Blobs: p.blobs, Models: psych.OneModel(model), Tools: p.missionTools(t), Now: p.now, NewID: p.newID,
		Memories: func(context.Context, psych.Scope) (string, error) { return p.memories, nil },
	}
	store := memory.New(nil)
	rt, err := psych.New(store, &o)
	if err != nil {
		t.Fatal(err)
	}
	v, err := rt.Publish(t.Context(), "t", &spec)
	if err != nil {
		t.Fatal(err)
	}
	done := &play{}
	var key psych.RunKey
	for i, m := range p.messages {
		m.ID = fmt.Sprint("m", i+1)
		if i == 0 {
			key, err = rt.Start(t.Context(), psych.Scope{Tenant: "t"}, v.Hash, m)
		} else {
			err = rt.Send(t.Context(), key, m)
		}
		if err != nil {
			t.Fatal(err)
		}
		if done.err = p.drive(t, store, &o, rt, key); done.err != nil {
			break
		}
	}
	done.sent = player.Requests()
	if done.report, err = rt.Report(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if rt, err = psych.New(store, &o); err != nil { // that knows nothing
		t.Fatal(err)
	}
	done.replayed, done.again = replay(rt, key)
	return done
}

// drive drives the Run until its exchange is closed.
func (p *player) drive(t *testing.T, store psych.Store, o *psych.Options, rt *psych.Runtime, key psych.RunKey) error {
	for range 1000 {
		ctx, cancel := context.WithCancel(t.Context())
		var do psych.DriveOptions
		if p.cold {
			var err error
			if rt, err = psych.New(store, o); err != nil {
				t.Fatal(err)
			}
			do.Observe = func(x psych.Observation) {
				if x.Record != nil && x.Record.Event.Kind() == psych.KindModelCallFinished {
					cancel()
				}
			}
		}
		out, err := rt.Drive(ctx, key, &do)
		cancel()
		switch {
		case err == nil && out == psych.Closed:
			return nil
		case p.cold && errors.Is(err, context.Canceled):
		default:
			return fmt.Errorf("drive: %v, %w", out, err)
		}
	}
	return errors.New("it never ends")
}

// plays are the same mission as it must always be the same: again at another
// time with other ids, by a new worker each turn, with blobs on disk.
type plays struct{ first, again, cold, disk *play }

func (m *mission) plays(t *testing.T, bad regression) *plays {
	t.Helper()
	begin := func(day int, ids uint64, blobs psych.BlobStore) *player {
		return &player{mission: m, blobs: blobs, began: time.Date(2026, 11, day, 22, 23, 24, 0, time.UTC), ids: ids, bad: bad}
	}
	cold := begin(2, 3, memory.NewBlobs(nil))
	cold.cold = true
	return &plays{
		first: begin(1, 1, memory.NewBlobs(nil)).play(t),
		again: begin(29, 2, memory.NewBlobs(nil)).play(t),
		cold:  cold.play(t),
		disk:  begin(1, 4, fsblob.New(t.TempDir(), nil)).play(t),
	}
}

// missionChecks are what must hold of each mission.
var missionChecks = []struct {
	name string
	f    func(*mission, *plays) error
}{
	// The script requires what the model must have been shown to get that far.
	{"it is answered", func(m *mission, p *plays) error {
		for i, x := range []*play{p.first, p.again, p.cold, p.disk} {
			if x.err != nil {
				return fmt.Errorf("play %d: %w", i+1, x.err)
			}
			if n := len(x.report.Exchanges); n != len(m.messages) || x.report.Status != psych.StatusCompleted {
				return fmt.Errorf("play %d: %d exchanges of %d, %s: %s", i+1, n, len(m.messages), x.report.Status, x.report.Exchanges[n-1].Reason)
			}
		}
		return nil
	}},
	{"a request is within its bound", func(m *mission, p *plays) error {
		for i := range p.first.sent {
			if n := utf8.RuneCount(p.first.sent[i].Body()); n > m.perTurn {
				return fmt.Errorf("request %d has %d characters: want at most %d", i+1, n, m.perTurn)
			}
		}
		return nil
	}},
	{"all requests are within their bound", func(m *mission, p *plays) error {
		if n := p.first.characters(); n > m.total {
			return fmt.Errorf("%d characters: want at most %d", n, m.total)
		}
		return nil
	}},
	{"the report says what was sent", func(m *mission, p *plays) error {
		if got, want := len(p.first.report.ModelCalls), len(p.first.sent); got != want {
			return fmt.Errorf("%d model calls, for %d requests", got, want)
		}
		for i, c := range p.first.report.ModelCalls {
			s := &p.first.sent[i]
			want := psych.WireSplit{Tools: utf8.RuneCount(s.Zone(0)), System: utf8.RuneCount(s.Zone(1)) + utf8.RuneCount(s.Zone(2)), Tail: utf8.RuneCount(s.Zone(4))}
			for _, w := range s.Request.History {
				want.History += utf8.RuneCount(w.Bytes)
			}
			want.Envelope = utf8.RuneCount(s.Body()) - want.Total()
			if c.Wire != want {
				return fmt.Errorf("call %d: %+v, of a request of %+v", i+1, c.Wire, want)
			}
		}
		return nil
	}},
	{"the prefix is left where it may be", func(m *mission, p *plays) error {
		var breaks []string
		for i, c := range p.first.report.ModelCalls {
			for _, b := range c.Breaks {
				breaks = append(breaks, fmt.Sprint(i+1, " ", b.Cause))
			}
		}
		if got := strings.Join(breaks, ", "); got != m.breaks {
			return fmt.Errorf("breaks %q: want %q", got, m.breaks)
		}
		return nil
	}},
	{"a request begins with the one before it", func(m *mission, p *plays) error {
		for i := 1; i < len(p.first.sent); i++ {
			if i < len(p.first.report.ModelCalls) && len(p.first.report.ModelCalls[i].Breaks) > 0 {
				continue
			}
			if before, now := p.first.sent[i-1].Prefix(), p.first.sent[i].Prefix(); !bytes.HasPrefix(now, before) {
				return fmt.Errorf("request %d leaves the one before it: %s", i+1, difference(now, before))
			}
		}
		return nil
	}},
	{"each request can be made again", func(_ *mission, p *plays) error {
		for i, x := range []*play{p.first, p.again, p.cold, p.disk} {
			if x.again != nil {
				return fmt.Errorf("play %d: %w", i+1, x.again)
			}
			j := 0 // a worker that ends may do so before the model sees its request
			for _, c := range x.replayed {
				if j < len(x.sent) && sameRequest(&x.sent[j].Request, c.Request) == nil {
					j++
				} else if x != p.cold {
					return fmt.Errorf("play %d, request %d: %w", i+1, j+1, sameRequest(&x.sent[min(j, len(x.sent)-1)].Request, c.Request))
				}
			}
			if j != len(x.sent) {
				return fmt.Errorf("play %d: of %d requests only %d are made again", i+1, len(x.sent), j)
			}
		}
		return nil
	}},
	{"another time and other ids change nothing", func(_ *mission, p *plays) error { return sameBytes(p.first, p.again) }},
	{"another worker changes nothing", func(_ *mission, p *plays) error { return sameBytes(p.first, p.cold) }},
	{"another BlobStore changes nothing", func(_ *mission, p *plays) error { return sameBytes(p.first, p.disk) }},
}

// check returns what does not hold, by the name of the check.
func (m *mission) check(p *plays) map[string]error {
	wrong := map[string]error{}
	for _, c := range missionChecks {
		if err := c.f(m, p); err != nil {
			wrong[c.name] = err
		}
	}
	return wrong
}

// characters are those of all requests.
func (p *play) characters() int {
	n := 0
	for i := range p.sent {
		n += utf8.RuneCount(p.sent[i].Body())
	}
	return n
}

// sameBytes compares tools and zones 1 to 3 of each request.
func sameBytes(a, b *play) error {
	if len(a.sent) != len(b.sent) {
		return fmt.Errorf("%d requests, and %d", len(a.sent), len(b.sent))
	}
	for i := range a.sent {
		for zone := range 4 {
			if x, y := a.sent[i].Zone(zone), b.sent[i].Zone(zone); !bytes.Equal(x, y) {
				return fmt.Errorf("request %d, zone %d: %s", i+1, zone, difference(x, y))
			}
		}
	}
	return nil
}

// difference shows where two texts part.
func difference(a, b []byte) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	from := max(0, i-40)
	return fmt.Sprintf("at byte %d: %q, and %q", i, a[from:min(len(a), i+40)], b[from:min(len(b), i+40)])
}

// What a mission costs, and that its bytes are stable.
func TestMissions(t *testing.T) {
	var table strings.Builder
	for i := range missions {
		m := &missions[i]
		t.Run(m.name, func(t *testing.T) {
			p := m.plays(t, regression{})
			wrong := m.check(p)
			for name, err := range wrong {
				t.Errorf("not true that %s: %v", name, err)
			}
			if len(wrong) > 0 {
				return
			}
			largest := 0
			for i := range p.first.sent {
				largest = max(largest, utf8.RuneCount(p.first.sent[i].Body()))
			}
			w := (&player{mission: m, blobs: memory.NewBlobs(nil), bad: everythingWhole}).play(t)
			if w.err != nil || w.report.Status != psych.StatusCompleted || len(w.sent) != len(p.first.sent) {
				t.Fatalf("with everything sent whole: %d requests, %s, %v: %+v", len(w.sent), w.report.Status, w.err, w.report.Exchanges)
			}
			n, whole := p.first.characters(), w.characters()
			fmt.Fprintf(&table, "\n%-12s %3d requests, largest %7d of %7d, total %8d of %8d, sent whole %9d, ratio %.3f",
				m.name, len(p.first.sent), largest, m.perTurn, n, m.total, whole, float64(n)/float64(whole))
			if m.tenth && n*10 >= whole {
				t.Errorf("%d characters, and %d with everything sent whole: want under a tenth", n, whole)
			}
		})
	}
	t.Log(table.String())
}

// everythingWhole has no preview, nothing trimmed and no failure cut.
var everythingWhole = regression{
	limits: func(l *psych.Limits) {
		noElision(l)
		noTrimming(l)
	},
	codec: func(c psych.Codec, p *player) psych.Codec { return wholeCodec{c, p} },
}

const noLimit = 1 << 40

func noElision(l *psych.Limits) { l.LargeResultTokens, l.BatchResultTokens = noLimit, noLimit }

func noTrimming(l *psych.Limits) { l.HistoryResultTokens, l.ContextTokens = noLimit, 0 }

// Each bound fails, and each promise of stable bytes, on what it is there to
// prevent.
func TestMissionsFailOnRegressions(t *testing.T) {
	for _, c := range []struct {
		name    string
		mission string
		bad     regression
		caught  []string
	}{
		{"elision off, of a batch", "batch", regression{limits: noElision},
			[]string{"a request is within its bound", "all requests are within their bound"}},
		{"trimming off, of history", "exchanges", regression{limits: noTrimming},
			[]string{"a request is within its bound", "all requests are within their bound", "the prefix is left where it may be"}},
		{"trimming off, of pages", "file", regression{limits: noTrimming},
			[]string{"all requests are within their bound", "the prefix is left where it may be"}},
		{"trimming off, of a full context", "context", regression{limits: noTrimming},
			[]string{"a request is within its bound", "the prefix is left where it may be"}},
		{"a clock in zone 1", "steps", regression{codec: func(c psych.Codec, p *player) psych.Codec { return clockCodec{c, p} }},
			[]string{"another time and other ids change nothing", "another worker changes nothing", "each request can be made again"}},
		{"results sent whole", "huge", regression{codec: func(c psych.Codec, p *player) psych.Codec { return wholeCodec{c, p} }},
			[]string{"a request is within its bound", "all requests are within their bound"}},
		{"matches sent with all lines", "log", regression{codec: func(c psych.Codec, p *player) psych.Codec { return wholeCodec{c, p} }},
			[]string{"a request is within its bound", "all requests are within their bound"}},
		{"attachments sent whole", "attachments", regression{codec: func(c psych.Codec, p *player) psych.Codec { return wholeCodec{c, p} }},
			[]string{"a request is within its bound", "all requests are within their bound"}},
		{"failures sent whole", "failing", regression{codec: func(c psych.Codec, p *player) psych.Codec { return wholeCodec{c, p} }},
			[]string{"a request is within its bound", "all requests are within their bound"}},
		{"keys in map order", "steps", regression{codec: func(c psych.Codec, _ *player) psych.Codec { return shuffledCodec{c} }},
			[]string{"another time and other ids change nothing", "another worker changes nothing", "another BlobStore changes nothing", "each request can be made again"}},
		{"a different view by BlobStore", "huge", regression{codec: func(c psych.Codec, p *player) psych.Codec { return blobCodec{c, p} }},
			[]string{"another BlobStore changes nothing"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := missionNamed(t, c.mission)
			wrong := m.check(m.plays(t, c.bad))
			for _, name := range c.caught {
				if wrong[name] == nil {
					t.Errorf("it is not noticed that it is no longer true that %s", name)
				}
			}
			if err := wrong["it is answered"]; err != nil && c.bad.codec == nil {
				t.Errorf("it is not what it should be a test of: %v", err)
			}
		})
	}
	// What no Codec and no limit can spoil is spoiled behind the engine's back.
	for _, c := range []struct {
		name   string
		spoil  func(*play)
		caught string
	}{
		{"a message that changes", func(p *play) {
			w := &p.sent[2].Request.History[0]
			w.Bytes = bytes.Replace(w.Bytes, []byte("last"), []byte("next"), 1)
		}, "a request begins with the one before it"},
		{"a message that is lost", func(p *play) {
			h := p.sent[5].Request.History
			p.sent[5].Request.History = slices.Delete(slices.Clone(h), 3, 4)
		}, "a request begins with the one before it"},
		{"a tail that was not counted", func(p *play) { p.report.ModelCalls[0].Wire.Tail-- }, "the report says what was sent"},
		{"an envelope that was not counted", func(p *play) { p.report.ModelCalls[7].Wire.Envelope = 0 }, "the report says what was sent"},
		{"a request that no model call tells of", func(p *play) { p.report.ModelCalls = p.report.ModelCalls[1:] }, "the report says what was sent"},
		{"an answer that is missing", func(p *play) { p.report.Status = psych.StatusOpen }, "it is answered"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := missionNamed(t, "steps")
			p := (&player{mission: m, blobs: memory.NewBlobs(nil)}).play(t)
			for i := range p.sent { // lists are shared between requests
				p.sent[i].Request.History = slices.Clone(p.sent[i].Request.History)
			}
			all := &plays{p, p, p, p}
			if wrong := m.check(all); len(wrong) > 0 {
				t.Fatalf("before: %v", wrong)
			}
			c.spoil(p)
			if wrong := m.check(all); wrong[c.caught] == nil {
				t.Errorf("it is not noticed that it is no longer true that %s: %v", c.caught, wrong)
			}
		})
	}
}

func missionNamed(t *testing.T, name string) *mission {
	t.Helper()
	i := slices.IndexFunc(missions, func(m mission) bool { return m.name == name })
	if i < 0 {
		t.Fatalf("there is no mission %s", name)
	}
	return &missions[i]
}

// clockCodec puts the time into zone 1.
type clockCodec struct {
	psych.Codec
	p *player
}

func (c clockCodec) EncodeSystem(static []string, dynamic string) (zone1, zone2 []byte, err error) {
	return c.Codec.EncodeSystem(append(slices.Clone(static), "Now: "+c.p.now().String()), dynamic)
}

// shuffledCodec writes the keys of schemas and arguments in no order.
type shuffledCodec struct{ psych.Codec }

func (c shuffledCodec) EncodeTools(defs []psych.ToolDef) ([]byte, error) {
	defs = slices.Clone(defs)
	for i := range defs {
		defs[i].Schema = shuffled(defs[i].Schema)
	}
	return c.Codec.EncodeTools(defs)
}

func (c shuffledCodec) EncodeMessage(m *psych.Message) ([]byte, int, error) {
	own := psych.Message{Role: m.Role, Blocks: slices.Clone(m.Blocks)}
	for i := range own.Blocks {
		if call := own.Blocks[i].Call; call != nil {
			own.Blocks[i].Call = &psych.ToolCall{ID: call.ID, Name: call.Name, Arguments: shuffled(call.Arguments)}
		}
	}
	return c.Codec.EncodeMessage(&own)
}

func shuffled(raw json.RawMessage) json.RawMessage {
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) != nil {
		return raw
	}
	var members []string
	for k, v := range object {
		members = append(members, fmt.Sprintf("%q:%s", k, shuffled(v)))
	}
	slices.Sort(members)
	rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	return json.RawMessage("{" + strings.Join(members, ",") + "}")
}

// blobCodec shows where bytes lie.
type blobCodec struct {
	psych.Codec
	p *player
}

func (c blobCodec) EncodeMessage(m *psych.Message) ([]byte, int, error) {
	own := psych.Message{Role: m.Role, Blocks: slices.Clone(m.Blocks)}
	for i := range own.Blocks {
		if r := own.Blocks[i].Result; r != nil {
			own.Blocks[i].Result = &psych.ToolOutput{CallID: r.CallID, Text: fmt.Sprintf("%s[in %T]", r.Text, c.p.blobs), IsError: r.IsError}
		}
	}
	return c.Codec.EncodeMessage(&own)
}

// wholeCodec sends in place of each preview what it is a preview of, and each
// failure whole.
type wholeCodec struct {
	psych.Codec
	p *player
}

var (
	guidance   = regexp.MustCompile(`\n\[[^\n]+, \d+ characters, \d+ lines\. Read it with read_tool_output, handle "([^"]+)"\.\]$`)
	attachment = regexp.MustCompile(`\n\n\[attachment "[^\n]+\]\n`)
)

func (c wholeCodec) EncodeMessage(m *psych.Message) ([]byte, int, error) {
	own := psych.Message{Role: m.Role, Blocks: slices.Clone(m.Blocks)}
	for i := range own.Blocks {
		r := own.Blocks[i].Result
		if r == nil {
			continue
		}
		out := &psych.ToolOutput{CallID: r.CallID, Text: c.text(r.Text), IsError: r.IsError}
		if s, ok := c.p.lookup(r.CallID); ok && r.IsError {
			out.Text = s
		}
		own.Blocks[i].Result = out
	}
	return c.Codec.EncodeMessage(&own)
}

func (p *player) lookup(name string) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.whole[name]
	return s, ok
}

// text is an answer with its parts whole.
func (c wholeCodec) text(s string) string {
	part := func(s string) string {
		if m := guidance.FindStringSubmatch(s); m != nil {
			if whole, ok := c.p.lookup(m[1]); ok {
				return whole
			}
		}
		return s
	}
	var b strings.Builder
	at := 0
	for _, head := range attachment.FindAllStringIndex(s, -1) {
		b.WriteString(part(s[at:head[0]]))
		b.WriteString(s[head[0]:head[1]])
		at = head[1]
	}
	b.WriteString(part(s[at:]))
	return b.String()
}

// missionTools are deterministic, and keep what they return for wholeCodec.
func (p *player) missionTools(t *testing.T) []*psych.Tool {
	o := &psych.ToolOptions{Idempotent: true} // so that a worker may end in the middle of a turn
	text := func(c *psych.Call, contentType, s string) *psych.Result {
		p.keep("out_"+c.ID, s)
		return &psych.Result{ContentType: contentType, Body: strings.NewReader(s)}
	}
	tools := []*psych.Tool{
		psych.NewTool("lookup", "Looks up an item.", func(_ context.Context, _ *psych.Call, in struct {
			At int `json:"at"`
		}) (string, error) {
			next := fmt.Sprint(in.At + 1)
			if in.At == 39 {
				next = "end"
			}
			return fmt.Sprintf("item %d: %x next=%s", in.At, sha256.Sum256([]byte{byte(in.At)}), next), nil
		}, o),
		psych.NewTool("fetch", "Fetches a text.", func(_ context.Context, c *psych.Call, in struct {
			What string `json:"what"`
		}) (*psych.Result, error) {
			switch in.What {
			case "report":
				return text(c, "text/plain", reportText()), nil
			case "records":
				return text(c, "application/json", recordsText()), nil
			case "line":
				return text(c, "text/plain", lineText()), nil
			}
			return text(c, "text/plain", lines(250, func(i int) string { return fmt.Sprintf("%-75s", fmt.Sprintf("%s, line %d", in.What, i)) })), nil
		}, o),
		psych.NewTool("build", "Builds a target.", func(_ context.Context, c *psych.Call, in struct {
			Target string `json:"target"`
		}) (*psych.Result, error) {
			return text(c, "text/plain", buildText()), nil
		}, o),
		psych.NewTool("job", "Runs a job.", func(_ context.Context, c *psych.Call, in struct {
			Name string `json:"name"`
		}) (*psych.Result, error) {
			for _, a := range []struct{ name, slot, contentType, text string }{
				{"stdout", "stdout", "text/plain", lines(4000, func(i int) string {
					if i == 2500 {
						return fmt.Sprintf("the checksum of %s is %x", in.Name, sha256.Sum256([]byte(in.Name)))
					}
					return fmt.Sprintf("step %d of job %s went well", i, in.Name)
				})},
				{"stderr", "stderr", "text/plain", "a warning\n"},
				{"file:report.csv", "file-report-csv", "text/csv", lines(2000, func(i int) string { return fmt.Sprintf("row %d,%d,%s", i, i*i, in.Name) })},
				{"chart", "chart", "image/png", "\x89PNG\xff"},
			} {
				write(t, c, a.name, a.contentType, a.text, nil)
				p.keep("out_"+c.ID+"_"+a.slot, a.text)
			}
			return text(c, "application/json", `{"exit_code":0}`), nil
		}, o),
		psych.NewTool("flaky", "Does it, or not.", func(_ context.Context, c *psych.Call, in struct {
			How string `json:"how"`
		}) (*psych.Result, error) {
			if in.How == "well" {
				return psych.Text("it went well"), nil
			}
			why := in.How + ": it broke " + strings.Repeat("again and ", 30_000) + "that was the end of the message"
			p.keep(c.ProviderID, why)
			switch in.How {
			case "panic":
				panic(why)
			case "result":
				return &psych.Result{ContentType: "text/plain", Body: strings.NewReader(why), IsError: true}, nil
			}
			return nil, errors.New(why)
		}, o),
	}
	if slices.Contains(p.tools, "read_file") {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "notes.txt"), []byte(notesText()), 0o600); err != nil {
			t.Fatal(err)
		}
		files, err := filetools.Open(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { files.Close() })
		tools = append(tools, files.List()...)
	}
	return tools
}

func lines(n int, line func(int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(line(i))
		b.WriteByte('\n')
	}
	return b.String()
}

var reportText = sync.OnceValue(func() string { // 1.2 MB
	return lines(20_000, func(i int) string {
		if i == 12_344 {
			return "and here is the needle"
		}
		return fmt.Sprintf("finding %d: nothing to be seen in section %x, go on", i, i*i)
	})
})

var recordsText = sync.OnceValue(func() string { // 0.9 MB
	var b strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&b, `,{"id":%d,"name":"record %d","size":%d,"tags":["a","b"],"ok":true}`, i, i, i*i)
	}
	return "[" + b.String()[1:] + "]"
})

var lineText = sync.OnceValue(func() string { // 0.4 MB
	var b strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&b, "word %d ", i)
	}
	return b.String()
})

var buildText = sync.OnceValue(func() string { // 2.3 MB
	return lines(30_000, func(i int) string {
		switch {
		case i == 29_999:
			return "exit status 1"
		case i%4000 == 2000 && i < 28_000:
			return fmt.Sprintf("--- FAIL: test_%d (0.00s)", i/4000)
		case i%4000 == 2001 && i < 28_000:
			return fmt.Sprintf("    want 42, got %d", i)
		}
		return fmt.Sprintf("ok  \tgithub.com/example/project/package%d\t0.%03ds, %d tests passed", i, i%1000, i%17)
	})
})

var notesText = sync.OnceValue(func() string { // 200,000 characters
	return lines(4000, func(i int) string {
		if i == 3999 {
			return "naïve note 3999 is the last: fin."
		}
		return fmt.Sprintf("%-49s", fmt.Sprintf("naïve note %d is not the last", i))
	})
})
