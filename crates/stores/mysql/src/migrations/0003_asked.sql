-- What the nodes that serve the route have asked for, as JSON. NULL: nobody has said so yet. MySQL knows no ADD COLUMN IF NOT
-- EXISTS, and every statement must be safe to repeat.
SET @postrider_statement = IF(
    EXISTS (SELECT 1
              FROM information_schema.columns
             WHERE table_schema = DATABASE() AND table_name = '{p}route' AND column_name = 'asked'),
    'DO 0',
    'ALTER TABLE {p}route ADD COLUMN asked LONGBLOB');
PREPARE postrider_statement FROM @postrider_statement;
EXECUTE postrider_statement;
DEALLOCATE PREPARE postrider_statement;
