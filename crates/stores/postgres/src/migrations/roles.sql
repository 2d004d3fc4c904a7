-- Four roles and no more than each of them needs. To be run by a superuser, or by the owner of the tables, after every
-- migration; running it again does no harm. The roles exist already.

-- migrate: owns everything, and is the only one that may change the schema.
GRANT USAGE, CREATE ON SCHEMA {schema} TO MIGRATE_ROLE;
OWNERS

-- Nobody keeps what was given before.
REVOKE ALL ON TABLE TABLES FROM PUBLIC, APP_ROLE, RELAY_ROLE, VIEWER_ROLE;
REVOKE ALL ON SEQUENCE {seq}, {ordinal}, {replay} FROM PUBLIC, APP_ROLE, RELAY_ROLE, VIEWER_ROLE;
GRANT USAGE ON SCHEMA {schema} TO APP_ROLE, RELAY_ROLE, VIEWER_ROLE;

-- app: enqueues, and reads nothing. Never the columns `tx`, `seq`, `leaf` and `enqueued_at`: the order of the log rests on them.
GRANT INSERT (id, topic, name, key, deliver_at, expires_at, attempts_max, headers, payload) ON TABLE {log} TO APP_ROLE;
GRANT USAGE ON SEQUENCE {seq} TO APP_ROLE;
FUNCTIONS

-- relay: reads the log, keeps its own state, empties leaves that are done with. Operators act as this role, and enqueue with an
-- audit entry; so does whatever carries messages here from elsewhere. Not the columns either on which the order rests.
GRANT SELECT, TRUNCATE ON TABLE LEAVES TO RELAY_ROLE;
GRANT INSERT (id, topic, name, key, deliver_at, expires_at, attempts_max, headers, payload) ON TABLE {log} TO RELAY_ROLE;
GRANT USAGE ON SEQUENCE {seq} TO RELAY_ROLE;
GRANT SELECT ON TABLE {migration}, {setting} TO RELAY_ROLE;
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE {route}, {lane}, {node}, {parked} TO RELAY_ROLE;
GRANT SELECT, INSERT, DELETE ON TABLE {checkpoint} TO RELAY_ROLE;
GRANT SELECT, INSERT ON TABLE {audit} TO RELAY_ROLE;
GRANT SELECT ON SEQUENCE {seq} TO RELAY_ROLE;
GRANT USAGE ON SEQUENCE {ordinal}, {replay} TO RELAY_ROLE;

-- viewer: sees how things stand, and neither payloads nor headers. What others are doing in the database is seen by
-- members of pg_read_all_stats only: `GRANT pg_read_all_stats TO VIEWER_ROLE` lets the doctor name their queries.
GRANT SELECT (tx, seq, id, enqueued_at, deliver_at, expires_at, attempts_max, topic, name, key)
   ON TABLE LEAVES TO VIEWER_ROLE;
GRANT SELECT (ordinal, route, id, state, in_line, key_hash, spread, due_at, wake_at, attempts, cause_code, cause_detail,
              parked_at, topic, name, key, enqueued_at, deliver_at, expires_at, attempts_max)
   ON TABLE {parked} TO VIEWER_ROLE;
GRANT SELECT ON TABLE {migration}, {setting}, {route}, {lane}, {node}, {checkpoint}, {audit} TO VIEWER_ROLE;
GRANT SELECT ON SEQUENCE {seq} TO VIEWER_ROLE;
