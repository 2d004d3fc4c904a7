-- A parked row is known by its record: two messages that were enqueued separately may have one id.
ALTER TABLE {p}parked ADD COLUMN seq INTEGER NOT NULL DEFAULT 0;
DROP INDEX {p}parked_id;
CREATE UNIQUE INDEX {p}parked_id ON {p}parked (id, route, seq);
