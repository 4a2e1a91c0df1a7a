package endpoint

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// An Exception is what an emulator can't show, at the version that is
// installed.
type Exception struct {
	Emulator string
	Name     string // of a rule of a contract suite, or of what a test wants
	Reason   string
	Count    int // of tests that skip for it
}

// Exceptions are all. A skip that is none of them fails in CI, and so does an
// exception that is used another number of times.
var Exceptions = []Exception{
	{"moto", "capacity", "it says 1 for every write and .5 for every read, whatever their size", 2},
	{"moto", "missing-index", "of an index that is missing it says that the table is", 1},
	{"moto", "OpenWhileReplaced", "it serves one request at a time, so an open reader blocks the write", 1},
	{"moto", "OpenWhileDeleted", "it serves one request at a time, so an open reader blocks the deletion", 1},
	{"dynalite", "regions", "it has one for all", 1},
	{"dynalite", "ttl", "it knows neither UpdateTimeToLive nor UpdateContinuousBackups", 1},
	{"dynalite", "write-capacity", "it leaves out what writes to indexes consume", 1},
	{"ministack", "read-capacity", "it says too little for larger reads", 1},
}

func find(emulator, name string) (Exception, bool) {
	i := slices.IndexFunc(Exceptions, func(e Exception) bool { return e.Emulator == emulator && e.Name == name })
	if i < 0 {
		return Exception{}, false
	}
	return Exceptions[i], true
}

// Needs skips the test if the table says that the emulator can't show name.
func Needs(t testing.TB, emulator, name string) {
	t.Helper()
	if e, ok := find(emulator, name); ok {
		t.Skip(e.String())
	}
}

// Except returns the exceptions of an emulator by name, for the Options of a
// contract suite that has rules of the given names.
func Except(emulator string, rules ...string) map[string]string {
	except := make(map[string]string)
	for _, name := range rules {
		if e, ok := find(emulator, name); ok {
			except[name] = e.String()
		}
	}
	return except
}

// String is what a skip says, and what CheckSkips reads.
func (e Exception) String() string {
	return fmt.Sprintf("exception of emulator %s/%s: %s", e.Emulator, e.Name, e.Reason)
}

var (
	skipLine   = regexp.MustCompile(`^\s*--- SKIP: (\S+)`)
	reasonLine = regexp.MustCompile(`exception of emulator (\S+?)/(\S+?): `)
)

// CheckSkips reads what go test -v printed, and returns an error that lists
// each test that skipped for no exception, and each exception for which another
// number of tests skipped than it says.
func CheckSkips(log io.Reader) error {
	counts := make(map[[2]string]int)
	var problems []string
	// With -v, output is a test's whose name the last line === RUN, CONT or NAME
	// has, and it stands before the line that says how the test ended.
	reasons := make(map[string][]string)
	current := ""
	s := bufio.NewScanner(log)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		line := s.Text()
		if rest, ok := strings.CutPrefix(line, "=== "); ok {
			_, name, _ := strings.Cut(rest, " ")
			current = strings.TrimSpace(name)
		} else if m := skipLine.FindStringSubmatch(line); m != nil {
			if r := reasons[m[1]]; r != nil {
				counts[[2]string{r[1], r[2]}]++
			} else {
				problems = append(problems, fmt.Sprintf("%s skipped for no exception in the table", m[1]))
			}
			delete(reasons, m[1]) // other packages have tests of this name
		} else if m := reasonLine.FindStringSubmatch(line); m != nil {
			reasons[current] = m
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("read the output of go test: %w", err)
	}
	for _, e := range Exceptions {
		key := [2]string{e.Emulator, e.Name}
		if counts[key] != e.Count {
			problems = append(problems, fmt.Sprintf("%d tests skipped for %s/%s, the table says %d", counts[key], e.Emulator, e.Name, e.Count))
		}
		delete(counts, key)
	}
	for _, key := range slices.SortedFunc(maps.Keys(counts), func(a, b [2]string) int { return strings.Compare(a[0]+"/"+a[1], b[0]+"/"+b[1]) }) {
		problems = append(problems, fmt.Sprintf("%d tests skipped for %s/%s, which is not in the table", counts[key], key[0], key[1]))
	}
	if problems != nil {
		return fmt.Errorf("skips are not those of the table:\n%s", strings.Join(problems, "\n"))
	}
	return nil
}
