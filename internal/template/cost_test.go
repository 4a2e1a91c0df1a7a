package template

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/psych-go/psych-go/adapters/dynamo"
	"github.com/psych-go/psych-go/adapters/memory"
	"github.com/psych-go/psych-go/adapters/script"
	"github.com/psych-go/psych-go/api"
	"github.com/psych-go/psych-go/internal/emulators/endpoint"
	"github.com/psych-go/psych-go/psych"
)

// costs are the tables of the section of docs/cost.md on the deployment, by what
// stands at the head of their first column: rows of cells, by their first.
func costs(t *testing.T) (tables map[string]*costTable, section string) {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join(root, "docs", "cost.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ = strings.Cut(string(doc), "\n## Through API, queue and sweep\n")
	if section == "" {
		t.Fatal("docs/cost.md has no such section")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	tables = map[string]*costTable{}
	var at *costTable
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			at = nil
			continue
		}
		var cells []string
		for c := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.Trim(strings.TrimSpace(c), "*"))
		}
		switch {
		case at == nil:
			at = &costTable{head: cells, rows: map[string][]string{}}
			name := strings.Join(cells[:2], ", ")
			if tables[name] != nil {
				t.Errorf("docs/cost.md has two tables of %s", name)
			}
			tables[name] = at
		case strings.Trim(cells[0], "-") == "":
		case at.rows[cells[0]] != nil || len(cells) != len(at.head):
			t.Errorf("docs/cost.md: a row stands twice, or has another number of cells than its head: %s", line)
		default:
			at.names = append(at.names, cells[0])
			at.rows[cells[0]] = cells
		}
	}
	return tables, section
}

type costTable struct {
	head  []string
	names []string // of rows, in order
	rows  map[string][]string
}

// number is the one that stands in a row.
func (c *costTable) number(t *testing.T, row string, column int) float64 {
	t.Helper()
	cells := c.rows[row]
	if cells == nil {
		t.Fatalf("docs/cost.md: no row %q among %q", row, c.names)
	}
	return numberOf(t, cells[column])
}

func numberOf(t *testing.T, s string) float64 {
	t.Helper()
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, ",", ""), 64)
	if err != nil {
		t.Fatalf("docs/cost.md: %q is no number", s)
	}
	return f
}

// requests are how many of each operation stand in a row.
func (c *costTable) requests(t *testing.T, row string) map[string]int {
	t.Helper()
	n := map[string]int{}
	if c.rows[row] == nil {
		t.Fatalf("docs/cost.md: no row %q among %q", row, c.names)
	}
	for part := range strings.SplitSeq(c.rows[row][1], ", ") {
		count, op, _ := strings.Cut(part, " ")
		n[op] = int(numberOf(t, count))
	}
	return n
}

// Every dollar of the section follows from what was counted, what is assumed
// and the prices that stand there, and what the template has from the template.
func TestCostsAdd(t *testing.T) {
	tables, section := costs(t)
	table := func(name string) *costTable {
		if tables[name] == nil {
			t.Fatalf("docs/cost.md has no table %q among %q", name, slices.Sorted(maps.Keys(tables)))
		}
		return tables[name]
	}
	counted, units, assumed, prices := table("what, requests"), table("what, write units"), table("assumed, value"), table("price of, USD")
	ofARun, eachMonth, month := table("of a Run, how many"), table("each month, how many"), table("a month of, 1,000 Runs")

	template, makefile := files(t)
	d, err := read(template, makefile)
	if err != nil {
		t.Fatal(err)
	}
	memory := float64(d.least.Resources["TurnFunction"].Int("MemorySize")) / 1024
	for _, f := range d.least.Functions() {
		if got := float64(f.Int("MemorySize")) / 1024; got != memory {
			t.Errorf("%s has %g GB, and TurnFunction %g", f.ID, got, memory)
		}
	}
	days := numberOf(t, d.t.Parameters["RetentionDays"].Default)
	a := func(row string) float64 { return assumed.number(t, row, 1) }
	for row, want := range map[string]float64{"memory of a function, GB": memory, "days for which a Run is kept": days} {
		if got := a(row); got != want {
			t.Errorf("docs/cost.md assumes %s: %g, the template has %g", row, got, want)
		}
	}

	// How many of what, in the order of the tables.
	requests := func(row, op string) float64 { return float64(counted.requests(t, row)[op]) }
	write := func(row string) float64 { return units.number(t, row, 1) }
	readUnits := func(row string) float64 { return units.number(t, row, 2) }
	const (
		start, drive  = "a Run of 10 turns, api", "a Run of 10 turns, turn"
		brings, empty = "a request for records that brings a turn's", "one that brings nothing"
		report, end   = "its report, api", "its end, by the sweep"
		nothing       = "a sweep that finds nothing"
	)
	const minutes = 730 * 60                                                        // of a month, as AWS counts it
	if got, want := readUnits(nothing), requests(nothing, "Query")/2; got != want { // the least that a Query takes
		t.Errorf("docs/cost.md: %s takes %g read units, want %g", nothing, got, want)
	}
	turns := a("turns of a Run")
	polls := turns * (a("requests for records in a turn that bring some") + a("… that bring nothing"))
	calls := 1 + polls + 1 // and its report
	invocations := calls + 1
	pollers := a("pollers of a queue") * float64(len(queuesOf(d))) * 60 / a("seconds that a poller waits")
	type amount struct {
		row, price string
		n          float64
	}
	run := []amount{
		{"written as it is started and driven", "a write unit", write(start) + write(drive)},
		{"written as its lease is renewed", "a write unit", math.Floor(turns * a("seconds of a turn") / a("seconds between renewals of a lease"))},
		{"read meanwhile", "a read unit", readUnits(start) + readUnits(drive)},
		{"read for its client: records", "a read unit", turns * (a("requests for records in a turn that bring some")*readUnits(brings) + a("… that bring nothing")*readUnits(empty))},
		{"read for its client: the report", "a read unit", readUnits(report)},
		{"its end: written", "a write unit", write(end)},
		{"its end: read", "a read unit", readUnits(end)},
		{"its end: lists of blobs", "a PUT or LIST", requests(end, "ListObjectsV2")},
		{"its message: sent, received, deleted", "a request of SQS", requests(start, "SendMessageBatch") + 2},
		{"… in a group", "a request of SQS with a group", requests(start, "SendMessageBatch") + 2},
		{"its client's requests", "a request of an HTTP API", calls},
		{"invocations of api and turn", "an invocation", invocations},
		{"time of turn", "a GB-second", turns * a("seconds of a turn") * memory},
		{"time of api", "a GB-second", calls * a("seconds of a request") * memory},
		{"logs", "a GB of logs", invocations * a("KB of logs an invocation") / 1e6},
		{"sent to model and client", "a GB sent out", (turns*a("KB of a request to the model") + a("KB sent to the client")) / 1e6},
		{"kept in the table", "a GB-month of a table", a("KB of a Run in the table") / 1e6 * days / 30},
		{"kept for point-in-time recovery", "a GB-month of recovery", a("KB of a Run in the table") / 1e6 * days / 30},
	}
	fixed := []amount{
		{"the schedule", "an invocation by a schedule", minutes},
		{"invocations of sweep", "an invocation", minutes},
		{"time of sweep", "a GB-second", minutes * a("seconds of a sweep") * memory},
		{"the sweep's reads", "a read unit", minutes * readUnits(nothing)},
		{"logs of sweep", "a GB of logs", minutes * a("KB of logs an invocation") / 1e6},
		{"polls of two idle queues", "a request of SQS", minutes * pollers},
		{"alarms", "an alarm, a month", float64(len(d.least.OfType("AWS::CloudWatch::Alarm")))},
	}
	price := func(name string) float64 { return prices.number(t, name, 1) / prices.number(t, name, 2) }
	cents := func(where, got string, want float64) {
		t.Helper()
		if math.Abs(numberOf(t, got)-want) > 0.005+1e-9 {
			t.Errorf("docs/cost.md: %s is %s, want %.2f", where, got, want)
		}
	}
	services := map[string][2]float64{} // of a Run, and each month
	used := map[string]bool{}
	for i, list := range [][]amount{run, fixed} {
		shown, per := ofARun, 1e6
		if i == 1 {
			shown, per = eachMonth, 1
		}
		sum, rows := 0.0, []string{}
		for _, x := range list {
			rows = append(rows, x.row)
			if got := shown.number(t, x.row, 1); math.Abs(got-x.n) > x.n*1e-9 {
				t.Errorf("docs/cost.md: %s: %g, want %g", x.row, got, x.n)
			}
			if got := shown.rows[x.row][2]; got != x.price {
				t.Errorf("docs/cost.md: %s is priced as %q, want %q", x.row, got, x.price)
			}
			usd := x.n * price(x.price)
			cents(x.row, shown.rows[x.row][3], usd*per)
			sum += usd
			service := prices.rows[x.price][3]
			at := services[service]
			at[i] += usd
			services[service] = at
			used[x.price] = true
		}
		cents("the sum of "+shown.head[0], shown.rows["together"][3], sum*per)
		if !slices.Equal(shown.names, append(rows, "together")) {
			t.Errorf("docs/cost.md: rows %q, want %q", shown.names, rows)
		}
	}

	// Traces are of the first invocation of each second, and a part of the others.
	const trace = "a trace"
	used[trace] = true
	sampled := func(n float64) float64 {
		first := min(n, minutes*60)
		return first + (n-first)*a("part of further invocations that is traced")
	}
	for column, size := range month.head[1:] {
		n := numberOf(t, strings.TrimSuffix(size, " Runs"))
		sum := 0.0
		for service, x := range services {
			usd := x[0]*n + x[1]
			cents(service+" of "+size, month.rows[service][column+1], usd)
			sum += usd
		}
		traces := (sampled(n*calls) + sampled(n) + sampled(minutes)) * price(trace)
		cents("traces of "+size, month.rows[prices.rows[trace][3]][column+1], traces)
		cents("the sum of "+size, month.rows["together"][column+1], sum+traces)
		cents("Runs at once of "+size, month.rows["Runs that are driven at once, on average"][column+1], n*turns*a("seconds of a turn")/(minutes*60))
	}
	if got, want := len(month.names), len(services)+3; got != want { // traces, and two sums
		t.Errorf("docs/cost.md: %d rows of a month, want %d: %q", got, want, month.names)
	}
	most := math.Floor(numberOf(t, d.t.Parameters["Concurrency"].Default) * minutes * 60 / (turns * a("seconds of a turn")))
	if want := fmt.Sprintf("%d,%03d a month", int(most)/1000, int(most)%1000); !strings.Contains(section, want) {
		t.Errorf("docs/cost.md does not say that the template's Concurrency drives %s", want)
	}
	for _, name := range prices.names {
		if !used[name] {
			t.Errorf("docs/cost.md: the price of %s is not used", name)
		}
	}
}

func queuesOf(d *deployment) (all []string) {
	queues(d.least, func(_ *Resource, _ Event, queue *Resource) { all = append(all, queue.ID) })
	return all
}

// A meter counts what a client of DynamoDB asks for and consumes, and the Runs
// whose blobs are deleted, each of which is a list of S3.
type meter struct {
	mu            sync.Mutex
	requests      map[string]int
	writes, reads float64
}

func (m *meter) handle(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
	if f := reflect.ValueOf(in.Parameters).Elem().FieldByName("ReturnConsumedCapacity"); f.IsValid() {
		f.Set(reflect.ValueOf(types.ReturnConsumedCapacityTotal))
	}
	out, meta, err := next.HandleInitialize(ctx, in)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.requests == nil {
		m.requests = map[string]int{}
	}
	m.requests[strings.TrimSuffix(reflect.TypeOf(in.Parameters).Elem().Name(), "Input")]++
	if err != nil {
		return out, meta, err
	}
	all := func(list []types.ConsumedCapacity) (n float64) {
		for _, c := range list {
			n += aws.ToFloat64(c.CapacityUnits)
		}
		return n
	}
	switch o := out.Result.(type) {
	case *dynamodb.PutItemOutput:
		m.writes += aws.ToFloat64(o.ConsumedCapacity.CapacityUnits)
	case *dynamodb.UpdateItemOutput:
		m.writes += aws.ToFloat64(o.ConsumedCapacity.CapacityUnits)
	case *dynamodb.BatchWriteItemOutput:
		m.writes += all(o.ConsumedCapacity)
	case *dynamodb.GetItemOutput:
		m.reads += aws.ToFloat64(o.ConsumedCapacity.CapacityUnits)
	case *dynamodb.BatchGetItemOutput:
		m.reads += all(o.ConsumedCapacity)
	case *dynamodb.QueryOutput:
		n := aws.ToFloat64(o.ConsumedCapacity.CapacityUnits)
		if n == 0 { // dynalite's, of one that finds nothing; the service has its least
			n = 0.5
			if aws.ToBool(in.Parameters.(*dynamodb.QueryInput).ConsistentRead) {
				n = 1
			}
		}
		m.reads += n
	}
	return out, meta, err
}

// since empties m.
func (m *meter) since() (requests map[string]int, writes, reads float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	requests, writes, reads = m.requests, m.writes, m.reads
	m.requests, m.writes, m.reads = nil, 0, 0
	return requests, writes, reads
}

// Lists are blobs of which none is there.
type lists struct {
	psych.BlobStore
	m *meter
}

func (l *lists) DeleteRun(ctx context.Context, run psych.RunKey) error {
	l.m.mu.Lock()
	l.m.requests["ListObjectsV2"]++
	l.m.mu.Unlock()
	return l.BlobStore.DeleteRun(ctx, run)
}

// deaf is a Waker whose wakes are all lost.
type deaf struct{}

func (deaf) Wake(context.Context, ...psych.RunKey) error { return nil }

// The requests and units of docs/cost.md are those that are counted: requests
// on both emulators, write units on ministack, read units on dynalite.
func TestUnits(t *testing.T) {
	tables, _ := costs(t)
	counted, units := tables["what, requests"], tables["what, write units"]
	if counted == nil || units == nil {
		t.Fatalf("docs/cost.md has the tables %q", slices.Sorted(maps.Keys(tables)))
	}
	for _, name := range []string{"ministack", "dynalite"} {
		t.Run(name, func(t *testing.T) {
			check := func(row string, requests map[string]int, writes, reads float64) {
				t.Helper()
				t.Logf("%s: %v, %g write units, %g read units", row, requests, writes, reads)
				want := counted.requests(t, row)
				delete(want, "SendMessageBatch") // the Waker's here sends nothing
				if !maps.Equal(requests, want) {
					t.Errorf("docs/cost.md: %s: %v, counted are %v", row, want, requests)
				}
				got, column := writes, 1
				if name == "dynalite" {
					got, column = reads, 2
				}
				// Ids are random and compress by chance: of many items one at a boundary may be on either side.
				if want := units.number(t, row, column); math.Abs(got-want) > want/8 {
					t.Errorf("docs/cost.md: %s: %g %s, counted are %g", row, want, units.head[column], got)
				}
			}
			count(t, endpoint.One(t, endpoint.Dynamo, name), check, tables["assumed, value"].number(t, "KB of a Run in the table", 1))
		})
	}
}

func count(t *testing.T, e endpoint.Endpoint, check func(row string, requests map[string]int, writes, reads float64), kilobytes float64) {
	m := &meter{}
	client := dynamodb.New(dynamodb.Options{
		Region: "us-east-1", BaseEndpoint: &e.URL, Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
		APIOptions: []func(*middleware.Stack) error{func(s *middleware.Stack) error {
			return s.Initialize.Add(middleware.InitializeMiddlewareFunc("meter", m.handle), middleware.Before)
		}},
	})
	table := "cost-" + strings.ToLower(rand.Text())
	store := dynamo.New(client, table, nil)
	if _, err := store.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	play, err := script.Parse([]byte("steps:\n" + strings.Repeat("  - calls: [{name: rows, arguments: {n: 3}}]\n", 9) + "  - text: done\n  - text: again\n"))
	if err != nil {
		t.Fatal(err)
	}
	rows := psych.NewTool("rows", "Returns so many rows.", func(_ context.Context, _ *psych.Call, in struct {
		N int `json:"n"`
	}) (string, error) {
		var b strings.Builder
		for i := range in.N {
			fmt.Fprintf(&b, "row %d of %d: %s\n", i+1, in.N, strings.Repeat("x", 70))
		}
		return b.String(), nil
	}, nil)
	now := time.Now()
	o := psych.Options{
		Blobs: &lists{memory.NewBlobs(nil), m}, Models: psych.OneModel(script.New(play, nil)), Tools: []*psych.Tool{rows},
		Waker: deaf{}, Now: func() time.Time { return now },
	}
	forever, err := psych.New(store, &o)
	if err != nil {
		t.Fatal(err)
	}
	o.Retention = 90 * 24 * time.Hour
	rt, err := psych.New(store, &o)
	if err != nil {
		t.Fatal(err)
	}
	// call makes a request of the API, as a client of a tenant.
	call := func(rt *psych.Runtime, method, path, body string, answer any) {
		t.Helper()
		h, err := api.New(rt, store, api.Claims{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(api.WithClaims(t.Context(), map[string]any{"tenant": "cost", "sub": "somebody"}), method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code/100 != 2 {
			t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
		if err := json.Unmarshal(w.Body.Bytes(), answer); err != nil {
			t.Fatal(err)
		}
	}
	var version struct{ Version string }
	call(rt, "POST", "/v1/versions", `{"name":"cost","model":"script:cost","tools":["rows"]}`, &version)
	start := func(rt *psych.Runtime) psych.RunKey {
		t.Helper()
		var run struct {
			ID string `json:"run_id"`
		}
		call(rt, "POST", "/v1/runs", fmt.Sprintf(`{"version":%q,"message":{"text":"go"}}`, version.Version), &run)
		return psych.RunKey{Tenant: "cost", RunID: run.ID}
	}
	drive := func(rt *psych.Runtime, key psych.RunKey) {
		t.Helper()
		if out, err := rt.Drive(t.Context(), key, nil); err != nil || out != psych.Closed {
			t.Fatalf("driven: %v, %v", out, err)
		}
	}
	counted := func(row string) {
		t.Helper()
		requests, writes, reads := m.since()
		check(row, requests, writes, reads)
	}

	// Each Runtime knows the Version. The first Run has no end, and one more turn.
	kept := start(forever)
	drive(forever, kept)
	drive(rt, start(rt))
	var page struct {
		Records []any
		Next    string
	}
	records := func(after string, want int) {
		t.Helper()
		call(rt, "GET", "/v1/runs/"+kept.RunID+"/records?after="+after, "", &page)
		if len(page.Records) != want {
			t.Fatalf("%d records behind %q, want %d", len(page.Records), after, want)
		}
	}
	records("", 42)
	call(forever, "POST", "/v1/runs/"+kept.RunID+"/messages", `{"text":"more"}`, new(any))
	drive(forever, kept)
	m.since()
	records(page.Next, 5)
	counted("a request for records that brings a turn's")
	records(page.Next, 0)
	counted("one that brings nothing")

	run := start(rt)
	counted("a Run of 10 turns, api")
	drive(rt, run)
	counted("a Run of 10 turns, turn")
	call(rt, "GET", "/v1/runs/"+run.RunID+"/report", "", new(any))
	counted("its report, api")

	out, err := client.Scan(t.Context(), &dynamodb.ScanInput{TableName: &table})
	if err != nil {
		t.Fatal(err)
	}
	// 100 bytes an item, and of each index, are the service's own.
	bytes := 0
	for _, it := range out.Items {
		size := 100
		for name, a := range it {
			size += len(name) + sizeOf(a)
		}
		if strings.Contains(string(asBytes(it["p"])), run.RunID) {
			for _, index := range [][]string{{"p", "s", "g", "u"}, {"p", "s", "o", "c"}} {
				if it[index[2]] == nil {
					continue
				}
				size += 100
				for _, name := range index {
					size += len(name) + sizeOf(it[name])
				}
			}
			bytes += size
		}
	}
	t.Logf("%d bytes are kept", bytes)
	if got := float64(bytes) / 1000; math.Abs(got-kilobytes) > kilobytes/25 {
		t.Errorf("docs/cost.md: a Run takes %g KB, counted are %g", kilobytes, got)
	}
	m.since()

	// Both Runs with an end, at the three times when the sweep looks at them.
	sum, writes, reads := map[string]int{}, 0.0, 0.0
	sweep := func(sign int) {
		t.Helper()
		if _, next, err := rt.Sweep(t.Context(), ""); err != nil || next != "" {
			t.Fatalf("swept to %q, %v", next, err)
		}
		requests, w, r := m.since()
		for op, n := range requests {
			sum[op] += sign * n
		}
		writes, reads = writes+float64(sign)*w, reads+float64(sign)*r
	}
	for _, later := range []time.Duration{o.Retention + time.Minute, psych.MaxLease + time.Minute, psych.TombstoneLife} {
		now = now.Add(later)
		sweep(+1)
		sweep(-1) // what one asks for that finds nothing is not the Run's
	}
	for op, n := range sum {
		if op != "BatchGetItem" { // which reads a hundred headers at once
			n /= 2
		}
		if sum[op] = n; n == 0 {
			delete(sum, op)
		}
	}
	check("its end, by the sweep", sum, writes/2, reads/2)
}

func asBytes(a types.AttributeValue) []byte {
	switch a := a.(type) {
	case *types.AttributeValueMemberS:
		return []byte(a.Value)
	case *types.AttributeValueMemberB:
		return a.Value
	}
	return nil
}

// sizeOf is what DynamoDB counts of a value, a number as half its digits.
func sizeOf(a types.AttributeValue) int {
	if n, ok := a.(*types.AttributeValueMemberN); ok {
		return (len(n.Value)+1)/2 + 1
	}
	return len(asBytes(a))
}
