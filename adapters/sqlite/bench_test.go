package sqlite

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"modernc.org/sqlite"

	"github.com/psych-go/psych-go/psych"
)

// BenchmarkAppend compares Append, of a turn's three records with 300 bytes
// each, to a bare INSERT of as many bytes: the same durability, the same kind of
// file, by turns in one run. ratio is appends a second over inserts a second.
func BenchmarkAppend(b *testing.B) {
	ctx := b.Context()
	s := newRun(b)
	path := filepath.Join(b.TempDir(), "bare.db")
	if _, err := createFile(path); err != nil {
		b.Fatal(err)
	}
	connector, err := sqlite.NewConnector(dsn(path))
	if err != nil {
		b.Fatal(err)
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	db.SetMaxOpenConns(1)
	for _, text := range []string{"PRAGMA journal_mode = WAL", "CREATE TABLE t (id INTEGER PRIMARY KEY, data BLOB)"} {
		if _, err := db.Exec(text); err != nil {
			b.Fatal(err)
		}
	}
	insert, err := db.Prepare("INSERT INTO t (data) VALUES (?)")
	if err != nil {
		b.Fatal(err)
	}

	record := make([]byte, 300)
	bare := pack([]psych.Entry{{Kind: psych.KindUserMessage, Data: record}, {Kind: psych.KindUserMessage, Data: record}, {Kind: psych.KindUserMessage, Data: record}})
	var pos psych.Pos
	var appends, inserts time.Duration
	n := 0
	for b.Loop() {
		start := time.Now()
		batch := psych.Batch{Token: fmt.Sprint("token ", n), Entries: make([]psych.Entry, 3)}
		for i := range batch.Entries {
			batch.Entries[i] = psych.Entry{Seq: pos.Seq + 1 + uint64(i), Kind: psych.KindUserMessage, Time: testNow, Data: record}
		}
		if pos, err = s.Append(ctx, testKey, pos, batch); err != nil {
			b.Fatal(err)
		}
		between := time.Now()
		if _, err := insert.Exec(bare); err != nil {
			b.Fatal(err)
		}
		appends += between.Sub(start)
		inserts += time.Since(between)
		n++
	}
	b.ReportMetric(float64(n)/appends.Seconds(), "appends/s")
	b.ReportMetric(float64(n)/inserts.Seconds(), "inserts/s")
	b.ReportMetric(inserts.Seconds()/appends.Seconds(), "ratio")
}

// BenchmarkRead reads pages of 100 appends of three records.
func BenchmarkRead(b *testing.B) {
	s := newRun(b)
	sizes := make([]int, 500)
	for i := range sizes {
		sizes[i] = 3
	}
	appendTo(b, s, sizes...)
	b.ReportAllocs()
	for b.Loop() {
		page, err := s.Read(b.Context(), testKey, psych.Pos{Seq: 600}, 300)
		if err != nil || len(page.Entries) != 300 {
			b.Fatal(len(page.Entries), err)
		}
	}
}
