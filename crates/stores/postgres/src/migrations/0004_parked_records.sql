-- A parked row is known by its record: two messages that were enqueued separately may have one id.
ALTER TABLE {parked} ADD COLUMN seq bigint NOT NULL DEFAULT 0;
DROP INDEX {parked_id};
CREATE UNIQUE INDEX {=parked_id} ON {parked} (id, route, seq);
