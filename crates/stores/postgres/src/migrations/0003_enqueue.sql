-- What SQL enqueues is checked like what a library enqueues: a message that no transport could carry never commits.
CREATE FUNCTION {check_name} (what text, name text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $function$
BEGIN
    IF name IS NULL OR octet_length(name) > 255 OR name !~ '^[A-Za-z0-9_/:-]+(\.[A-Za-z0-9_/:-]+)*$' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('enqueue: the %s %s is not usable', what, coalesce(quote_literal(left(name, 80)), 'NULL')),
            HINT = 'It has 1 to 255 letters, digits, ".", "-", "_", "/" or ":" and no empty segment.';
    END IF;
END
$function$;

-- Headers as they are kept: the bytes of a JSON object of texts. Numbers and booleans become text.
CREATE FUNCTION {encode_headers} (headers jsonb) RETURNS bytea LANGUAGE plpgsql IMMUTABLE STRICT AS $function$
DECLARE
    pair record;
BEGIN
    IF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('enqueue: headers are a JSON object, not a JSON %s', jsonb_typeof(headers)),
            HINT = 'Write jsonb_build_object(''tenant'', ''acme'').';
    END IF;
    FOR pair IN SELECT h.key AS name, h.value AS value, jsonb_typeof(headers -> h.key) AS kind
                  FROM jsonb_each_text(headers) AS h LOOP
        IF pair.name !~ '^[a-z0-9_.-]+$' OR starts_with(pair.name, 'postrider-') THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = format('enqueue: the header name %L is not usable', left(pair.name, 80)),
                HINT = 'It has lower-case letters, digits, "-", "_" or ".", and does not begin with "postrider-".';
        END IF;
        IF pair.kind IN ('object', 'array', 'null') OR pair.value ~ '[\x01-\x1f\x7f-\x9f]' THEN
            RAISE EXCEPTION USING
                ERRCODE = 'invalid_parameter_value',
                MESSAGE = format('enqueue: the value of the header %L is not usable', pair.name),
                HINT = 'It is text without control characters, a number or a boolean; leave out a header that has none.';
        END IF;
    END LOOP;
    RETURN CASE WHEN headers = jsonb_build_object() THEN NULL ELSE
        convert_to((SELECT jsonb_object_agg(h.key, h.value) FROM jsonb_each_text(headers) AS h)::text, 'UTF8') END;
END
$function$;

-- Enqueue from any language: one call inside the caller's transaction, after it has taken the lock that orders the key.
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

-- The same for a payload of text or JSON. A literal is taken as text, so that the backslashes in a JSON string stay what
-- they are; bytes are written as '\x00ff'::bytea.
CREATE FUNCTION {enqueue} (
    topic        text,
    name         text,
    payload      text,
    key          text        DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    deliver_at   timestamptz DEFAULT NULL,
    expires_at   timestamptz DEFAULT NULL,
    attempts_max bigint      DEFAULT NULL,
    id           uuid        DEFAULT gen_random_uuid()
) RETURNS uuid LANGUAGE sql VOLATILE AS $function$
    SELECT {enqueue}($1, $2, convert_to($3, 'UTF8'), $4, $5, $6, $7, $8, $9)
$function$;

CREATE FUNCTION {enqueue} (
    topic        text,
    name         text,
    payload      jsonb,
    key          text        DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    deliver_at   timestamptz DEFAULT NULL,
    expires_at   timestamptz DEFAULT NULL,
    attempts_max bigint      DEFAULT NULL,
    id           uuid        DEFAULT gen_random_uuid()
) RETURNS uuid LANGUAGE sql VOLATILE AS $function$
    SELECT {enqueue}($1, $2, convert_to($3::text, 'UTF8'), $4, $5, $6, $7, $8, $9)
$function$;

CREATE FUNCTION {enqueue} (
    topic        text,
    name         text,
    payload      json,
    key          text        DEFAULT NULL,
    headers      jsonb       DEFAULT NULL,
    deliver_at   timestamptz DEFAULT NULL,
    expires_at   timestamptz DEFAULT NULL,
    attempts_max bigint      DEFAULT NULL,
    id           uuid        DEFAULT gen_random_uuid()
) RETURNS uuid LANGUAGE sql VOLATILE AS $function$
    SELECT {enqueue}($1, $2, convert_to($3::text, 'UTF8'), $4, $5, $6, $7, $8, $9)
$function$;
