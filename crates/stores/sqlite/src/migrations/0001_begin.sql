-- The log: append-only. AUTOINCREMENT, so that the number of a purged record never comes back behind a cursor.
-- The columns by which a reader chooses come first; a row that is passed over costs no look at its payload.
CREATE TABLE {p}log (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    id           BLOB    NOT NULL CHECK (length(id) = 16),
    topic        TEXT    NOT NULL CHECK (topic <> ''),
    name         TEXT    NOT NULL CHECK (name <> ''),
    key          TEXT             CHECK (key <> ''),
    enqueued_at  INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000),
    deliver_at   INTEGER,
    expires_at   INTEGER,
    attempts_max INTEGER          CHECK (attempts_max BETWEEN 1 AND 4294967295),
    headers      ANY              CHECK (typeof(headers) <> 'integer' AND typeof(headers) <> 'real'),
    payload      ANY     NOT NULL CHECK (typeof(payload) <> 'integer' AND typeof(payload) <> 'real')
) STRICT;

-- Readers of the log: routes, and replays of routes.
CREATE TABLE {p}route (
    name          TEXT    NOT NULL PRIMARY KEY,
    topics        TEXT    NOT NULL,
    ordering      TEXT    NOT NULL,
    lanes         INTEGER NOT NULL,
    paused_by     TEXT,
    paused_reason TEXT,
    replay_of     TEXT,
    replay_filter TEXT,
    replay_rate   INTEGER,
    replay_end    INTEGER
) STRICT, WITHOUT ROWID;

-- Lease and cursor in one row, so that a settle writes one small row.
CREATE TABLE {p}lane (
    route      TEXT    NOT NULL,
    number     INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    owner      BLOB,
    expires_at INTEGER,
    passed     INTEGER NOT NULL,
    settled    INTEGER,
    PRIMARY KEY (route, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE {p}node (
    id         BLOB    NOT NULL PRIMARY KEY,
    name       TEXT    NOT NULL,
    routes     TEXT    NOT NULL,
    lease_life INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Numbers that are never given twice: epochs, ordinals of parked rows, replays.
CREATE TABLE {p}counter (
    name  TEXT    NOT NULL PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO {p}counter (name, value) VALUES ('epoch', 0), ('ordinal', 0), ('replay', 0);

-- Parked rows. `due_at` is a row's own time; `wake_at` is set on rows that nothing but time holds back: scheduled rows,
-- keyless retries, and heads of lines. Followers have none, so that however many there are, a due read never sees them.
CREATE TABLE {p}parked (
    ordinal      INTEGER PRIMARY KEY,
    route        TEXT    NOT NULL,
    id           BLOB    NOT NULL,
    state        TEXT    NOT NULL,
    in_line      INTEGER NOT NULL,
    key_hash     INTEGER,
    spread       INTEGER NOT NULL,
    due_at       INTEGER,
    wake_at      INTEGER,
    attempts     INTEGER NOT NULL,
    cause_code   TEXT,
    cause_detail TEXT,
    parked_at    INTEGER NOT NULL,
    topic        TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    key          TEXT,
    enqueued_at  INTEGER NOT NULL,
    deliver_at   INTEGER,
    expires_at   INTEGER,
    attempts_max INTEGER,
    headers      ANY,
    payload      ANY     NOT NULL
) STRICT;

CREATE UNIQUE INDEX {p}parked_id ON {p}parked (id, route);
CREATE INDEX {p}parked_place ON {p}parked (route, ordinal, state);
CREATE INDEX {p}parked_line ON {p}parked (route, key_hash, ordinal) WHERE in_line = 1;
CREATE INDEX {p}parked_wake ON {p}parked (route, in_line, wake_at, ordinal, spread) WHERE wake_at IS NOT NULL;

CREATE TABLE {p}audit (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,
    at      INTEGER NOT NULL,
    actor   TEXT    NOT NULL,
    reason  TEXT,
    action  TEXT    NOT NULL,
    subject TEXT    NOT NULL
) STRICT;
