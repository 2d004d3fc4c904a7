//! A service in any language: it enqueues with plain SQL, as a role that may do nothing else.

use serde_json::{Value, json};

use crate::postgres::Database;

#[test]
fn what_psql_enqueues_arrives_in_order_with_all_that_was_said() {
    let database = Database::migrated();
    let id = database
        .app(
            "BEGIN;
             SELECT postrider.enqueue(topic => 'orders', name => 'order.placed', key => 'o-1', payload => '{\"n\": 1}',
                                      headers => jsonb_build_object('tenant', 'größe', 'priority', 7, 'express', true));
             SELECT postrider.enqueue('orders', 'order.placed', jsonb_build_object('n', 2), 'o-1');
             SELECT postrider.enqueue('orders', 'order.placed', json_build_object('n', 3), 'o-1');
             INSERT INTO postrider.log (id, topic, name, key, headers, payload)
             VALUES ('018f3c1e-0000-7000-8000-000000000004', 'orders', 'order.placed', 'o-1',
                     convert_to('{\"tenant\": \"acme\"}', 'UTF8'), convert_to('{\"n\": 4}', 'UTF8'));
             COMMIT;
             BEGIN;
             SELECT postrider.enqueue('orders', 'order.placed', 'never', 'o-1');
             ROLLBACK;
             BEGIN;
             SELECT postrider.enqueue('orders', 'order.placed', '{\"n\": 5}', 'o-1');
             SAVEPOINT here;
             SELECT postrider.enqueue('orders', 'order.placed', 'never', 'o-1');
             ROLLBACK TO SAVEPOINT here;
             SELECT postrider.enqueue('orders', 'order.placed', row_to_json(r)::text, 'o-1') FROM (SELECT 6 AS n) AS r;
             COMMIT;",
        )
        .done();
    let _daemon = database.daemon();
    let arrivals = database.arrivals(6);
    let numbers: Vec<&Value> = arrivals.iter().map(|arrival| &arrival["payload"]["n"]).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6], "{arrivals:?}");
    assert_eq!(arrivals[0]["id"], id.lines().next().unwrap());
    assert_eq!(arrivals[0]["headers"], json!({"tenant": "größe", "priority": "7", "express": "true"}));
    assert_eq!(arrivals[3]["id"], "018f3c1e-0000-7000-8000-000000000004");
    assert_eq!(arrivals[3]["headers"], json!({"tenant": "acme"}));
    assert!(arrivals.iter().all(|arrival| arrival["key"] == "o-1"), "{arrivals:?}");
}

#[test]
fn a_literal_is_text_and_bytes_are_bytes() {
    let database = Database::migrated();
    let sql = r#"
        SELECT postrider.enqueue('t', 'n', '{"path": "C:\\temp\nfile \"x\""}');
        SELECT postrider.enqueue('t', 'n', payload => '');
        SELECT postrider.enqueue('t', 'n', payload => '\xff00fe'::bytea);
        PREPARE by_driver (text, bytea, jsonb) AS
            SELECT postrider.enqueue('t', 'n', $1), postrider.enqueue('t', 'n', $2), postrider.enqueue('t', 'n', $3);
        EXECUTE by_driver ('"text"', '"bytes"', '"json"');
    "#;
    database.app(sql).done();
    let sent = database.admin("SELECT encode(payload, 'escape') FROM postrider.log ORDER BY seq").done();
    let expected =
        [r#"{"path": "C:\\\\temp\\nfile \\"x\\""}"#, "", r"\377\000\376", r#""text""#, r#""bytes""#, r#""json""#];
    assert_eq!(sent.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn it_is_not_delivered_before_its_time() {
    let database = Database::migrated();
    let sql = "SELECT postrider.enqueue('t', 'n', '\"later\"', deliver_at => clock_timestamp() + interval '3 s');
               SELECT postrider.enqueue('t', 'n', '\"now\"');
               SELECT extract(epoch FROM max(deliver_at)) * 1000 FROM postrider.log";
    let due: f64 = database.admin(sql).done().lines().last().unwrap().parse().unwrap();
    let _daemon = database.daemon();
    let arrivals = database.arrivals(2);
    let clock = "SELECT extract(epoch FROM clock_timestamp()) * 1000";
    let now: f64 = database.admin(clock).done().trim().parse().unwrap();
    // On a slow machine both may be due when they are first read; then they come as they were enqueued.
    let mut payloads = [arrivals[0]["payload"].as_str(), arrivals[1]["payload"].as_str()];
    payloads.sort_unstable();
    assert_eq!(payloads, [Some("later"), Some("now")]);
    assert!(now >= due, "it came {} ms early", due - now);
}

#[test]
fn bad_input_is_refused_in_words() {
    let database = Database::migrated();
    let expected = [
        ("'', 'n', '{}'", "the topic '' is not usable"),
        ("'a..b', 'n', '{}'", "the topic 'a..b' is not usable"),
        ("'a b', 'n', '{}'", "no empty segment"),
        ("NULL, 'n', '{}'", "the topic NULL is not usable"),
        ("'t', '', '{}'", "the name '' is not usable"),
        ("'t', 'n', NULL", "the payload is NULL"),
        ("'t', 'n', NULL::jsonb", "the payload is NULL"),
        ("'t', 'n', NULL::bytea", "the payload is NULL"),
        ("'t', 'n', '{}', key => ''", "the key is empty"),
        ("'t', 'n', '{}', attempts_max => 0", "attempts_max is less than 1"),
        ("'t', 'n', '{}', id => NULL", "the id is NULL"),
        ("'t', 'n', '{}', deliver_at => 'tomorrow', expires_at => 'today'", "can never arrive"),
        ("'t', 'n', '{}', deliver_at => 'infinity'", "deliver_at is infinite"),
        ("'t', 'n', '{}', expires_at => 'infinity'", "expires_at is infinite"),
        ("'t', 'n', '{}', headers => '[1]'", "headers are a JSON object, not a JSON array"),
        ("'t', 'n', '{}', headers => '{\"Tenant\": \"x\"}'", "the header name 'Tenant' is not usable"),
        ("'t', 'n', '{}', headers => '{\"postrider-replay\": \"x\"}'", "the header name 'postrider-replay'"),
        ("'t', 'n', '{}', headers => '{\"tenant\": \"a\\nb\"}'", "the value of the header 'tenant'"),
        ("'t', 'n', '{}', headers => '{\"tenant\": null}'", "the value of the header 'tenant'"),
        ("'t', 'n', '{}', headers => '{\"tenant\": {}}'", "the value of the header 'tenant'"),
        ("'t', 'n', 42", "does not exist"),
    ];
    for (arguments, message) in expected {
        let refused = database.app(&format!("SELECT postrider.enqueue({arguments})")).refused();
        assert!(refused.contains(message), "of ({arguments}): {refused}");
    }
    for (columns, values, message) in [
        ("topic, name", "'t', 'n'", "column \"payload\""),
        ("topic, name, payload, tx", "'t', 'n', '', '1'", "permission denied"),
        ("topic, name, payload, seq", "'t', 'n', '', 1", "permission denied"),
    ] {
        let sql = format!("INSERT INTO postrider.log (id, {columns}) VALUES (gen_random_uuid(), {values})");
        let refused = database.app(&sql).refused();
        assert!(refused.contains(message), "of {sql}: {refused}");
    }
    let kept = database.app("SELECT count(*) FROM postrider.log").refused();
    assert!(kept.contains("permission denied"), "a role that enqueues need not read: {kept}");
    assert_eq!(database.admin("SELECT count(*) FROM postrider.log").done().trim(), "0");
}
