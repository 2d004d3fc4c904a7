-- Whether an operator has asked the node to leave. It learns of it with its next heartbeat.
ALTER TABLE {p}node ADD COLUMN leaving INTEGER NOT NULL DEFAULT 0;
