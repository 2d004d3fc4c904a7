-- One number per record. Cache 1 and no cycle: the reader's bounds rest on numbers being drawn one after the other.
CREATE SEQUENCE {seq} AS bigint INCREMENT 1 CACHE 1 NO CYCLE;

-- The log: append-only. `tx` is the first column and `seq` the second, because defaults are evaluated in this order and a
-- transaction must have its id before it draws a number. Never written by hand, as little as `enqueued_at` and `leaf`.
--
-- It has no check constraints: they are read and compiled anew by every insert, which would make an enqueue dearer by
-- half. Libraries and the function `enqueue` check what they write; a reader copes with whatever it finds. For the same
-- reason `leaf`, the place of a number in the ring, is a column: as an expression it would be planned by every insert. It
-- stands behind `seq`, so that its default sees the number that this very row has drawn, and before all that is given by
-- hand: an expression there may enqueue something itself, and draw. (`enqueued_at` between them saves six bytes a row.)
CREATE TABLE {log} (
    tx           xid8        NOT NULL DEFAULT pg_current_xact_id(),
    seq          bigint      NOT NULL DEFAULT nextval('{seq}'),
    enqueued_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    leaf         smallint    NOT NULL DEFAULT ((currval('{seq}') >> BLOCK_BITS) & 7),
    id           uuid        NOT NULL,
    deliver_at   timestamptz,
    expires_at   timestamptz,
    attempts_max bigint,
    topic        text        NOT NULL,
    name         text        NOT NULL,
    key          text,
    headers      bytea,
    payload      bytea       NOT NULL
) PARTITION BY LIST (leaf);

-- A ring of leaves that always accepts inserts; a leaf is emptied whole. One index each: it serves the reader, and being
-- unique it makes a sequence that was set back fail loudly.
CREATE TABLE {log_0} PARTITION OF {log} FOR VALUES IN (0);
CREATE TABLE {log_1} PARTITION OF {log} FOR VALUES IN (1);
CREATE TABLE {log_2} PARTITION OF {log} FOR VALUES IN (2);
CREATE TABLE {log_3} PARTITION OF {log} FOR VALUES IN (3);
CREATE TABLE {log_4} PARTITION OF {log} FOR VALUES IN (4);
CREATE TABLE {log_5} PARTITION OF {log} FOR VALUES IN (5);
CREATE TABLE {log_6} PARTITION OF {log} FOR VALUES IN (6);
CREATE TABLE {log_7} PARTITION OF {log} FOR VALUES IN (7);
CREATE UNIQUE INDEX {=log_0_seq} ON {log_0} (seq);
CREATE UNIQUE INDEX {=log_1_seq} ON {log_1} (seq);
CREATE UNIQUE INDEX {=log_2_seq} ON {log_2} (seq);
CREATE UNIQUE INDEX {=log_3_seq} ON {log_3} (seq);
CREATE UNIQUE INDEX {=log_4_seq} ON {log_4} (seq);
CREATE UNIQUE INDEX {=log_5_seq} ON {log_5} (seq);
CREATE UNIQUE INDEX {=log_6_seq} ON {log_6} (seq);
CREATE UNIQUE INDEX {=log_7_seq} ON {log_7} (seq);

-- What was chosen when the tables were made and cannot change: numbers per block of the ring, as a power of two.
CREATE TABLE {setting} (
    name  text   NOT NULL PRIMARY KEY,
    value bigint NOT NULL
);
INSERT INTO {setting} (name, value) VALUES ('block_bits', BLOCK_BITS);

-- Where these tables were made. A dump carries it along, so that a restored log knows that it is one.
INSERT INTO {setting} (name, value)
SELECT 'origin_system', system_identifier FROM pg_control_system()
 UNION ALL
SELECT 'origin_table', '{log}'::regclass::oid::bigint;

-- Readers of the log: routes, and replays of routes.
CREATE TABLE {route} (
    name          text   COLLATE "C" NOT NULL PRIMARY KEY,
    topics        text   NOT NULL,
    ordering      text   NOT NULL,
    lanes         bigint NOT NULL,
    paused_by     text,
    paused_reason text,
    replay_of     text   COLLATE "C",
    replay_filter text,
    replay_rate   bigint
);

-- Who may act. Changes with owners and heartbeats only.
CREATE TABLE {lane} (
    route      text   COLLATE "C" NOT NULL,
    number     bigint NOT NULL,
    epoch      bigint NOT NULL,
    owner      uuid,
    expires_at timestamptz,
    PRIMARY KEY (route, number)
) WITH (fillfactor = 50);

-- Cursors. Insert-only: the newest row of a lane counts, and because every change of owner inserts one too, a stale owner
-- collides with it. A cursor that was updated in place would grow dearer with every snapshot that somebody holds open.
CREATE TABLE {checkpoint} (
    route   text   COLLATE "C" NOT NULL,
    number  bigint NOT NULL,
    n       bigint NOT NULL,
    epoch   bigint NOT NULL,
    settled bigint NOT NULL,
    lo      bigint NOT NULL,
    cursor  bytea  NOT NULL,
    PRIMARY KEY (route, number, n)
);

CREATE TABLE {node} (
    id         uuid        NOT NULL PRIMARY KEY,
    name       text        NOT NULL,
    routes     text        NOT NULL,
    lease_life bigint      NOT NULL,
    seen_at    timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Numbers that are never given twice.
CREATE SEQUENCE {ordinal} AS bigint;
CREATE SEQUENCE {replay} AS bigint;

-- Parked rows. `due_at` is a row's own time; `wake_at` is set on rows that nothing but time holds back: scheduled rows,
-- keyless retries, and heads of lines. Followers have none, so that however many there are, a due read never sees them.
CREATE TABLE {parked} (
    ordinal      bigint      NOT NULL PRIMARY KEY,
    route        text        COLLATE "C" NOT NULL,
    id           uuid        NOT NULL,
    state        text        NOT NULL,
    in_line      boolean     NOT NULL,
    key_hash     bigint,
    spread       bigint      NOT NULL,
    due_at       timestamptz,
    wake_at      timestamptz,
    attempts     bigint      NOT NULL,
    cause_code   text,
    cause_detail text,
    parked_at    timestamptz NOT NULL,
    topic        text        NOT NULL,
    name         text        NOT NULL,
    key          text,
    enqueued_at  timestamptz NOT NULL,
    deliver_at   timestamptz,
    expires_at   timestamptz,
    attempts_max bigint,
    headers      bytea,
    payload      bytea       NOT NULL
);
CREATE UNIQUE INDEX {=parked_id} ON {parked} (id, route);
CREATE INDEX {=parked_place} ON {parked} (route, ordinal, state);
CREATE INDEX {=parked_line} ON {parked} (route, key_hash, ordinal) WHERE in_line;
CREATE INDEX {=parked_wake} ON {parked} (route, in_line, wake_at, ordinal) WHERE wake_at IS NOT NULL;

CREATE TABLE {audit} (
    number  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL,
    actor   text        NOT NULL,
    reason  text,
    action  text        NOT NULL,
    subject text        NOT NULL
);

-- Enqueue from any language: one call inside the caller's transaction, after it has taken the lock that orders the key.
CREATE FUNCTION {enqueue} (
    topic        text,
    name         text,
    payload      bytea,
    key          text        DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    deliver_at   timestamptz DEFAULT NULL,
    expires_at   timestamptz DEFAULT NULL,
    attempts_max bigint      DEFAULT NULL,
    id           uuid        DEFAULT gen_random_uuid()
) RETURNS uuid LANGUAGE sql VOLATILE AS $function$
    INSERT INTO {log} (id, topic, name, key, deliver_at, expires_at, attempts_max, headers, payload)
    VALUES ($9, $1, $2, $4, $6, $7, $8, convert_to($5::text, 'UTF8'), $3);
    -- Not RETURNING, which needs the right to read.
    SELECT $9
$function$;
