-- What a node says of its lanes that do not move, with every heartbeat: a JSON array.
ALTER TABLE {p}node ADD COLUMN standstills TEXT NOT NULL DEFAULT '[]';
