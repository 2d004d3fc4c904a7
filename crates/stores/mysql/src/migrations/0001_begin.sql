-- Every statement is safe to repeat: DDL commits by itself here, so a migration that was cut off begins again.
-- Instants are microseconds since 1970 by the server's clock in UTC, so that no time zone has a say.

-- Messages that have no place in the log yet, in the order in which they were really inserted. Small, and mostly empty.
CREATE TABLE IF NOT EXISTS {p}pending (
    p     BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    seq   BIGINT       NOT NULL,
    bytes INT UNSIGNED NOT NULL
) ENGINE = InnoDB;

-- The messages: written once, never updated. Only the order list says where a message stands.
CREATE TABLE IF NOT EXISTS {p}log (
    seq          BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id           BINARY(16)   NOT NULL DEFAULT (UNHEX(REPLACE(UUID(), '-', ''))),
    topic        VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    name         VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    `key`        MEDIUMTEXT   CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    enqueued_at  BIGINT       NOT NULL DEFAULT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
    deliver_at   BIGINT,
    expires_at   BIGINT,
    attempts_max INT UNSIGNED,
    headers      LONGBLOB,
    payload      LONGBLOB     NOT NULL
) ENGINE = InnoDB;

-- Notes each new message, whoever inserts it, in the same transaction.
CREATE TRIGGER {p}log_pending AFTER INSERT ON {p}log FOR EACH ROW
INSERT INTO {p}pending (seq, bytes)
VALUES (NEW.seq, LEAST(4294967295, LENGTH(NEW.payload) + COALESCE(LENGTH(NEW.headers), 0) + COALESCE(LENGTH(NEW.`key`), 0)));

-- What was inserted between the table and its trigger, if a migration was cut off there.
INSERT INTO {p}pending (seq, bytes)
SELECT seq, LEAST(4294967295, LENGTH(payload) + COALESCE(LENGTH(headers), 0) + COALESCE(LENGTH(`key`), 0))
  FROM {p}log
 WHERE NOT EXISTS (SELECT 1 FROM {p}pending AS noted WHERE noted.seq = {p}log.seq)
 ORDER BY seq;

-- The order list: one row a batch. `last` is the place of its last message in the log; the list has of each message its
-- number (8 bytes) and its size (4 bytes), in order.
CREATE TABLE IF NOT EXISTS {p}ordering (
    last       BIGINT     NOT NULL PRIMARY KEY,
    lo         BIGINT     NOT NULL,
    hi         BIGINT     NOT NULL,
    ordered_at BIGINT     NOT NULL,
    list       MEDIUMBLOB NOT NULL
) ENGINE = InnoDB;

-- Numbers that are never given twice, and rows to lock: the place of the last message, epochs, ordinals, replays.
CREATE TABLE IF NOT EXISTS {p}counter (
    name  VARBINARY(32) NOT NULL PRIMARY KEY,
    value BIGINT        NOT NULL
) ENGINE = InnoDB;

INSERT INTO {p}counter (name, value)
VALUES ('place', 0), ('epoch', 0), ('ordinal', 0), ('replay', 0), ('readers', 0), ('planted', 0)
    ON DUPLICATE KEY UPDATE value = value;

-- Readers of the log: routes, and replays of routes.
CREATE TABLE IF NOT EXISTS {p}route (
    name          VARBINARY(300) NOT NULL PRIMARY KEY,
    topics        LONGBLOB       NOT NULL,
    ordering      VARBINARY(16)  NOT NULL,
    lanes         INT UNSIGNED   NOT NULL,
    paused_by     LONGBLOB,
    paused_reason LONGBLOB,
    replay_of     VARBINARY(300),
    replay_filter LONGBLOB,
    replay_rate   INT UNSIGNED,
    replay_end    BIGINT
) ENGINE = InnoDB;

-- Lease and cursor in one row, so that a settle writes one small row.
CREATE TABLE IF NOT EXISTS {p}lane (
    route      VARBINARY(300) NOT NULL,
    number     INT UNSIGNED   NOT NULL,
    epoch      BIGINT         NOT NULL,
    owner      BINARY(16),
    expires_at BIGINT,
    passed     BIGINT         NOT NULL,
    settled    BIGINT,
    PRIMARY KEY (route, number)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS {p}node (
    id          BINARY(16) NOT NULL PRIMARY KEY,
    name        LONGBLOB   NOT NULL,
    routes      LONGBLOB   NOT NULL,
    lease_life  BIGINT     NOT NULL,
    standstills LONGBLOB   NOT NULL,
    seen_at     BIGINT     NOT NULL,
    leaving     TINYINT    NOT NULL DEFAULT 0
) ENGINE = InnoDB;

-- Parked rows. `due_at` is a row's own time; `wake_at` is set on rows that nothing but time holds back: scheduled rows,
-- keyless retries, and heads of lines. Followers have none, so that however many there are, a due read never sees them.
CREATE TABLE IF NOT EXISTS {p}parked (
    ordinal      BIGINT         NOT NULL PRIMARY KEY,
    route        VARBINARY(300) NOT NULL,
    id           BINARY(16)     NOT NULL,
    place        BIGINT         NOT NULL,
    state        VARBINARY(16)  NOT NULL,
    in_line      TINYINT        NOT NULL,
    key_hash     BIGINT,
    spread       BIGINT         NOT NULL,
    due_at       BIGINT,
    wake_at      BIGINT,
    attempts     INT UNSIGNED   NOT NULL,
    cause_code   VARBINARY(1024),
    cause_detail LONGBLOB,
    parked_at    BIGINT         NOT NULL,
    topic        VARBINARY(1020) NOT NULL,
    name         VARBINARY(1020) NOT NULL,
    `key`        LONGBLOB,
    enqueued_at  BIGINT         NOT NULL,
    deliver_at   BIGINT,
    expires_at   BIGINT,
    attempts_max INT UNSIGNED,
    headers      LONGBLOB,
    payload      LONGBLOB       NOT NULL,
    UNIQUE KEY record (id, route, place),
    KEY place (route, ordinal, state),
    KEY line (route, in_line, key_hash, ordinal),
    KEY wake (route, in_line, wake_at, ordinal, spread)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS {p}audit (
    number  BIGINT    NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at      BIGINT    NOT NULL,
    actor   LONGBLOB  NOT NULL,
    reason  LONGBLOB,
    action  VARBINARY(64) NOT NULL,
    subject LONGBLOB  NOT NULL
) ENGINE = InnoDB;
