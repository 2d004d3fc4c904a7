-- What a node says of its lanes that do not move, with every heartbeat: a JSON array.
ALTER TABLE {node} ADD COLUMN standstills text NOT NULL DEFAULT '[]';
