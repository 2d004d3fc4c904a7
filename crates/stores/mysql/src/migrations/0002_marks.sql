-- Up to which place the log is purged. In a store that is older than this mark, everything before the oldest batch is.
INSERT INTO {p}counter (name, value)
SELECT 'purged', COALESCE((SELECT last - LENGTH(list) DIV 12 FROM {p}ordering ORDER BY last LIMIT 1), place.value)
  FROM {p}counter AS place
 WHERE place.name = 'place' AND NOT EXISTS (SELECT 1 FROM {p}counter AS known WHERE known.name = 'purged');

-- A row that is written where nothing but a commit is wanted.
INSERT INTO {p}counter (name, value)
VALUES ('barrier', 0)
    ON DUPLICATE KEY UPDATE value = value;
