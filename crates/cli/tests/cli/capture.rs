//! `postrider capture generate`: from a mapping to messages that arrive, with the real binary, `psql` and a relay.

use serde_json::{Value, json};

use crate::{postgres::Database, support::Workplace};

const MAPPING: &str = r#"
[[capture]]
table = "public.orders"
topic = "orders"
key = "id"
headers = { tenant = "tenant" }
insert = { name = "order.placed" }
update = { name = "order.paid", changed = ["paid"], when = "NEW.paid" }
"#;

const ORDERS: &str = "CREATE TABLE public.orders (id int PRIMARY KEY, tenant text, paid boolean DEFAULT false)";

/// The role that writes the table has no right whatever on the log.
fn take_rights(database: &Database) {
    let role = database.role();
    let sql = format!(
        "REVOKE ALL ON ALL TABLES IN SCHEMA postrider FROM {role}; REVOKE ALL ON SEQUENCE postrider.seq FROM {role};
         REVOKE ALL ON SCHEMA postrider FROM {role};
         GRANT USAGE, CREATE ON SCHEMA public TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}"
    );
    database.admin(&sql).done();
}

#[test]
fn a_mapping_becomes_triggers_and_changes_become_messages() {
    let database = Database::migrated();
    let workplace = &database.workplace;
    database.admin(ORDERS).done();
    workplace.write("capture.toml", MAPPING);
    let arguments = ["capture", "generate", "--mapping", "capture.toml", "--check", &database.url()];
    let made = workplace.run(&[&arguments[..], &["--to", "capture.sql"]].concat());
    assert_eq!((made.code, made.stdout.as_str()), (0, ""), "{made:?}");
    let script = std::fs::read_to_string(workplace.path("capture.sql")).unwrap();
    assert_eq!(workplace.run(&arguments).stdout, script, "the same to standard output");
    database.admin(&script).done();
    database.admin(&script).done();
    take_rights(&database);

    let told = database.app("SELECT postrider.enqueue('orders', 'forged', '{}')").refused();
    assert!(told.contains("permission denied"), "{told}");
    let shadow =
        "CREATE FUNCTION public.to_jsonb(orders) RETURNS jsonb LANGUAGE sql AS $$ SELECT '\"forged\"'::jsonb $$;
                  SET search_path = public, pg_catalog;";
    database
        .app(&format!(
            "{shadow} BEGIN; INSERT INTO orders VALUES (1, 'acme'), (2, NULL); UPDATE orders SET paid = true; COMMIT;
             INSERT INTO orders VALUES (3, 'x') ON CONFLICT DO NOTHING;
             BEGIN; DELETE FROM orders; INSERT INTO orders VALUES (4, 'never'); ROLLBACK;"
        ))
        .done();
    let _daemon = database.daemon();
    let arrivals = database.arrivals(5);
    // Order is kept per key; keys do not wait for each other.
    let of_key = |key: &str| -> Vec<&Value> { arrivals.iter().filter(|arrival| arrival["key"] == key).collect() };
    let names = |key: &str| -> Vec<&Value> { of_key(key).into_iter().map(|arrival| &arrival["name"]).collect() };
    assert_eq!(names("1"), ["order.placed", "order.paid"]);
    assert_eq!(names("2"), ["order.placed", "order.paid"]);
    assert_eq!(names("3"), ["order.placed"]);
    assert_eq!(of_key("1")[0]["headers"], json!({"tenant": "acme"}));
    assert_eq!(of_key("1")[1]["payload"], json!({"id": 1, "tenant": "acme", "paid": true}));

    let stolen = "CREATE TABLE mine (id int, tenant text, paid boolean);
                  SELECT format('CREATE TRIGGER t AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION postrider.%I()', proname)
                    FROM pg_proc WHERE proname LIKE 'capture%' \\gexec";
    let refused = database.app(stolen).refused();
    assert!(refused.contains("permission denied"), "nobody else may use the function: {refused}");

    let removed = workplace.run(&["capture", "generate", "--mapping", "capture.toml", "--drop"]);
    database.admin(&removed.stdout).done();
    database.app("INSERT INTO orders VALUES (5, 'late')").done();
    assert_eq!(database.admin("SELECT count(*) FROM postrider.log").done().trim(), "5");
}

#[test]
fn a_debezium_outbox_is_relayed_with_what_it_has_already() {
    let database = Database::migrated();
    let outbox = "CREATE TABLE public.outbox (id uuid, aggregatetype text, aggregateid text, type text, payload jsonb,
                                       tracingspancontext text, tenant text, at int);
                  INSERT INTO public.outbox (id, aggregatetype, aggregateid, type, payload, at)
                  SELECT gen_random_uuid(), 'order', 'o-1', 'Old', to_jsonb(n), -n FROM generate_series(1, 3) AS n";
    database.admin(outbox).done();
    let arguments = ["capture", "generate", "--layout", "debezium", "--table", "public.outbox", "--with-existing"];
    let more = ["--order-by", "at", "--header", "tenant=tenant", "--header", "traceparent=tracingspancontext"];
    let made = database.workplace.run(&[&arguments[..], &more, &["--check", &database.url()]].concat());
    assert_eq!(made.code, 0, "{made:?}");
    database.admin(&made.stdout).done();
    database.admin(&made.stdout).done();
    take_rights(&database);
    database
        .app(
            "BEGIN;
             INSERT INTO outbox VALUES ('018f3c1e-0000-7000-8000-000000000004', 'order', 'o-1', 'New', '4',
                 'traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', 'acme');
             DELETE FROM outbox; COMMIT;",
        )
        .done();
    let _daemon = database.daemon();
    let arrivals = database.arrivals(4);
    let payloads: Vec<&Value> = arrivals.iter().map(|arrival| &arrival["payload"]).collect();
    assert_eq!(payloads, [3, 2, 1, 4], "{arrivals:?}");
    let last = &arrivals[3];
    assert_eq!(last["id"], "018f3c1e-0000-7000-8000-000000000004");
    assert_eq!((&last["topic"], &last["name"]), (&json!("outbox.event.order"), &json!("New")));
    assert_eq!(last["headers"]["tenant"], "acme");
    assert_eq!(last["headers"]["traceparent"], "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
}

#[test]
fn what_cannot_be_captured_is_told() {
    let database = Database::migrated();
    database.admin(ORDERS).done();
    let workplace = &database.workplace;
    workplace.write("capture.toml", MAPPING.replace("\"tenant\" }", "\"tenent\" }"));
    let url = database.url();
    let check = workplace.run(&["capture", "generate", "--mapping", "capture.toml", "--check", &url]);
    let told = "error: the database does not have it\n  \
                \"public\".\"orders\" has no column `tenent`; it has id, tenant, paid\n";
    assert_eq!((check.code, check.stderr.as_str(), check.stdout.as_str()), (2, told, ""));
    let unchecked = workplace.run(&["capture", "generate", "--mapping", "capture.toml"]);
    let refused = database.admin(&unchecked.stdout).refused();
    assert!(refused.contains("column new.tenent does not exist"), "{refused}");
    database.admin("INSERT INTO public.orders VALUES (1)").done();

    let nowhere = Workplace::new();
    nowhere.write("capture.toml", "[[capture]]\ntable = \"orders\"\n");
    let wrong = nowhere.run(&["capture", "generate", "--mapping", "capture.toml"]);
    let told = "error: the mapping is not usable\n  \
                capture.toml:1: `capture.topic` missing, and there is no default\n  \
                capture.toml:2: `capture.table` a table is written with its schema, such as `public.orders` (table: orders)\n";
    assert_eq!((wrong.code, wrong.stderr.as_str()), (2, told));
    assert_eq!(nowhere.run(&["capture", "generate"]).code, 2);
    assert_eq!(nowhere.run(&["capture", "generate", "--layout", "debezium"]).code, 2);
    let own = nowhere.run(&["capture", "generate", "--layout", "debezium", "--table", "postrider.log"]);
    assert!(own.code == 2 && own.stderr.contains("the store's own"), "{own:?}");
}
