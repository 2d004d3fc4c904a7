-- An instant that never comes is refused: such a message would wait for ever, and nobody would be told.
CREATE OR REPLACE FUNCTION {enqueue} (
    topic        text,
    name         text,
    payload      bytea,
    key          text        DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    deliver_at   timestamptz DEFAULT NULL,
    expires_at   timestamptz DEFAULT NULL,
    attempts_max bigint      DEFAULT NULL,
    id           uuid        DEFAULT gen_random_uuid()
) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $function$
DECLARE
    wrong text;
BEGIN
    PERFORM {check_name}('topic', topic), {check_name}('name', name);
    wrong := CASE
        WHEN payload IS NULL THEN 'the payload is NULL; an empty one is '''''
        WHEN id IS NULL THEN 'the id is NULL; leave it out, and a fresh one is made'
        WHEN key = '' THEN 'the key is empty; leave it out if order does not matter'
        WHEN attempts_max NOT BETWEEN 1 AND 4294967295 THEN 'attempts_max is less than 1 or more than 4294967295'
        WHEN NOT isfinite(deliver_at) THEN 'deliver_at is infinite; leave it out to deliver at once'
        WHEN NOT isfinite(expires_at) THEN 'expires_at is infinite; leave it out if the message never expires'
        WHEN expires_at <= deliver_at THEN 'a message that expires before it may be delivered can never arrive'
    END;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'enqueue: ' || wrong;
    END IF;
    INSERT INTO {log} (id, topic, name, key, deliver_at, expires_at, attempts_max, headers, payload)
    VALUES ($9, $1, $2, $4, $6, $7, $8, {encode_headers}($5), $3);
    RETURN $9;
END
$function$;
