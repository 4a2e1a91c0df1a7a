package sqlite

import (
	"context"
	"fmt"

	"github.com/psych-go/psych-go/psych"
)

// applicationID marks the file as Psych's, where SQLite keeps a place for it:
// "Psyc" in ASCII. An empty database has 0, and so have most other programs'.
const applicationID = 0x50737963

// migrations lead from each version of the schema, PRAGMA user_version, to the
// next. A release never changes one that another has run. A process of an older
// release may have the file open meanwhile: where it must not write any more, a
// migration renames the table.
//
// Times are microseconds since 1970; NULL is the zero time where that means
// never. Of a tombstone, due_at is when it is to be purged.
var migrations = []string{`
CREATE TABLE runs (
	tenant TEXT NOT NULL,
	run_id TEXT NOT NULL,
	scope TEXT NOT NULL DEFAULT '{}',
	version BLOB NOT NULL DEFAULT x'',
	incarnation TEXT NOT NULL DEFAULT '',
	request BLOB NOT NULL DEFAULT x'',
	created_at INTEGER NOT NULL DEFAULT 0,
	expires_at INTEGER,
	status TEXT NOT NULL DEFAULT '',
	epoch INTEGER NOT NULL DEFAULT 0,
	owner TEXT NOT NULL DEFAULT '',
	until_at INTEGER,
	due_at INTEGER,
	posted INTEGER NOT NULL DEFAULT 0,
	token TEXT NOT NULL DEFAULT '',
	deleted_at INTEGER,
	wake_at INTEGER AS (nullif(min(ifnull(due_at, 0x7fffffffffffffff), ifnull(until_at, 0x7fffffffffffffff), ifnull(expires_at, 0x7fffffffffffffff)), 0x7fffffffffffffff)),
	PRIMARY KEY (tenant, run_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX runs_wake ON runs (wake_at, tenant, run_id) WHERE wake_at IS NOT NULL;
CREATE INDEX runs_age ON runs (tenant, created_at DESC, run_id) WHERE deleted_at IS NULL;

CREATE TABLE appends (
	tenant TEXT NOT NULL,
	run_id TEXT NOT NULL,
	last INTEGER NOT NULL,
	first INTEGER NOT NULL,
	token TEXT NOT NULL,
	entries BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX appends_key ON appends (tenant, run_id, last);

CREATE TABLE notes (
	tenant TEXT NOT NULL,
	run_id TEXT NOT NULL,
	time INTEGER NOT NULL,
	id TEXT NOT NULL,
	kind TEXT NOT NULL,
	data BLOB
) STRICT;
CREATE UNIQUE INDEX notes_key ON notes (tenant, run_id, time, id);

CREATE TABLE docs (
	tenant TEXT NOT NULL,
	digest BLOB NOT NULL,
	data BLOB
) STRICT;
CREATE UNIQUE INDEX docs_key ON docs (tenant, digest);

CREATE TABLE refs (
	tenant TEXT NOT NULL,
	name TEXT NOT NULL,
	doc BLOB NOT NULL,
	seq INTEGER NOT NULL,
	after_at INTEGER,
	PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX refs_after ON refs (after_at, tenant, name) WHERE after_at IS NOT NULL;
`, `
DROP INDEX notes_key;
CREATE UNIQUE INDEX notes_key ON notes (tenant, run_id, time, id, kind);
`}

// version returns the version of the schema in the file, 0 for an empty
// database, and an error if this release can't use it.
func (s *Store) version(ctx context.Context, t *statements) (version int, err error) {
	var id, tables int
	// One statement, so that it sees all three as of one moment.
	err = t.one(ctx, []any{&id, &version, &tables},
		"SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)")
	switch {
	case err != nil:
		return 0, err
	case id == 0 && version == 0 && tables == 0:
		return 0, nil
	case id != applicationID || version < 1:
		return 0, fmt.Errorf("%s is a database of another program: name another file: %w", s.path, psych.ErrInvalid)
	case version > len(s.schema):
		return 0, fmt.Errorf("%s has schema version %d, of a newer release, and this one knows versions up to %d: upgrade this program, or name another file: %w", s.path, version, len(s.schema), psych.ErrInvalid)
	}
	return version, nil
}

// migrate brings the schema up to date, all of it or nothing, and says from
// which version. If it fails the connection is to be closed.
func (s *Store) migrate(ctx context.Context, t *statements) (from int, err error) {
	if from, err = s.version(ctx, t); err != nil || from == len(s.schema) {
		return from, err
	}
	// An empty file turns into one with a log of writes outside of a transaction.
	if from == 0 {
		if err := useWAL(ctx, t); err != nil {
			return 0, err
		}
	}
	if _, err := t.exec(ctx, "BEGIN IMMEDIATE"); err != nil {
		return 0, err
	}
	// Another process may have been first.
	if from, err = s.version(ctx, t); err != nil {
		return 0, err
	}
	for version := from; version < len(s.schema); version++ {
		script := s.schema[version] + fmt.Sprintf("; PRAGMA application_id = %d; PRAGMA user_version = %d", applicationID, version+1)
		if _, err = t.exec(ctx, script); err != nil {
			return 0, err
		}
	}
	_, err = t.exec(ctx, "COMMIT")
	return from, err
}

// useWAL makes the file one with a write-ahead log, as which it stays.
func useWAL(ctx context.Context, t *statements) error {
	var mode string
	if err := t.one(ctx, []any{&mode}, "PRAGMA journal_mode = WAL"); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("the file has journal mode %s and can't have a write-ahead log, for which its filesystem lacks shared memory: put it on a local disk: %w", mode, psych.ErrInvalid)
	}
	return nil
}
