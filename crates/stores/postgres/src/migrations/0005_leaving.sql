-- Whether an operator has asked the node to leave. It learns of it with its next heartbeat.
ALTER TABLE {node} ADD COLUMN leaving boolean NOT NULL DEFAULT false;
