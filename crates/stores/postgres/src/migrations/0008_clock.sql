-- How far the parked rows of a route lie ahead, in microseconds, since the server's clock went back. They are moved some at a
-- time: those up to the ordinal `ahead_from` have been, those behind `ahead_to` were written by the new clock. NULL: none lies ahead.
ALTER TABLE {route}
    ADD COLUMN ahead_by   bigint,
    ADD COLUMN ahead_from bigint,
    ADD COLUMN ahead_to   bigint;
