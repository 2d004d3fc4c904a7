//! What is wrong is told: what, where, and with the documented exit code. Nothing is made or changed on the way.

use postrider::sqlite::{
    Sqlite,
    migrations::{self, LATEST},
};
use rusqlite::Connection;

use crate::support::Workplace;

/// Asserts exit code and message, to the letter.
#[track_caller]
fn refused(workplace: &Workplace, arguments: &[&str], code: i32, message: &str) {
    let finished = workplace.run(arguments);
    let told = finished.stderr.replace(&workplace.path("").display().to_string(), "DIR/");
    assert_eq!(told.trim_end(), message, "of {arguments:?}");
    assert_eq!(finished.code, code, "of {arguments:?}");
    assert_eq!(finished.stdout, "", "of {arguments:?}");
}

/// A configuration that is wrong, checked and run.
#[track_caller]
fn wrong_config(text: &str, problems: &str) {
    let workplace = Workplace::new();
    workplace.write("p.toml", text);
    let message = format!("error: the configuration is not usable\n{problems}");
    for command in [&["config", "check"][..], &["run"]] {
        refused(&workplace, &[command, &["--config", "p.toml"]].concat(), 2, &message);
    }
    assert!(!workplace.path("app.db").exists(), "nothing is opened before the file is right");
}

const ROUTE: &str = "[[route]]\nname = \"all\"\ntransport = \"stdout\"\n";
const STORE: &str = "[store]\nurl = \"sqlite:app.db\"\n";

#[test]
fn malformed_toml() {
    wrong_config("[store\nurl = 1\n", "  p.toml:1: not TOML: unclosed table, expected `]`");
    wrong_config(
        "",
        "  p.toml:1: `route` missing: a relay needs at least one `[[route]]`\n  \
         p.toml:1: `store` missing: say where the messages are, such as `[store]` with `url = \"sqlite:app.db\"`, or set DATABASE_URL",
    );
}

#[test]
fn an_unknown_key_with_its_nearest_name() {
    wrong_config(
        &format!("{STORE}[relay]\nlease_live = \"3s\"\n{ROUTE}"),
        "  p.toml:4: `relay.lease_live` unknown key; did you mean `lease_life`?",
    );
    wrong_config(&format!("{STORE}{ROUTE}[[rout]]\n"), "  p.toml:6: `rout` unknown key; did you mean `route`?");
}

#[test]
fn a_bare_number_as_duration_or_size() {
    wrong_config(
        &format!("{STORE}[relay]\nlease_life = 30\n{ROUTE}window_bytes = 16\n"),
        "  p.toml:4: `relay.lease_life` `30` is not a duration; write a number with a unit (us, ms, s, m, h or d), such as \"30s\"\n  \
         p.toml:8: `route.window_bytes` `16` is not a size; write a number with a unit (B, KiB, MiB or GiB), such as \"16MiB\"",
    );
}

#[test]
fn an_unknown_scheme() {
    wrong_config(
        &format!("[store]\nurl = \"oracle:x\"\n{ROUTE}"),
        "  p.toml:2: `store.url` `oracle:` is not a store that is known here; known are sqlite, postgres, mysql, mongodb, mongodb+srv",
    );
    wrong_config(
        &format!("{STORE}[[route]]\nname = \"a\"\ntransport = \"pigeon:localhost\"\n"),
        "  p.toml:5: `route.transport` `pigeon:` is not a transport that is known here; known are stdout, file, https, http, nats, amqp, amqps, redis, rediss, kafka, discard",
    );
    refused(
        &Workplace::new(),
        &["status", "--store", "sqllite:app.db"],
        2,
        "error: --store: `sqllite:` is not a store that is known here; did you mean `sqlite:`?",
    );
}

/// A path that is mistyped must not take the machine's memory.
#[cfg(unix)]
#[test]
fn a_configuration_without_an_end() {
    for command in [&["config", "check"][..], &["run"], &["status"]] {
        let message = "error: the configuration /dev/zero cannot be read\n  because: it is larger than 1 MiB";
        refused(&Workplace::new(), &[command, &["--config", "/dev/zero"]].concat(), 2, message);
    }
}

/// Neither must a payload.
#[cfg(unix)]
#[test]
fn a_payload_without_an_end() {
    let workplace = Workplace::new();
    let message = ["enqueue", "--store", "sqlite:outbox.db", "--topic", "t", "--name", "n", "--payload", "@/dev/zero"];
    let cause = "error: the payload @/dev/zero cannot be read\n  because: it is larger than 64 MiB";
    refused(&workplace, &message, 2, cause);
}

#[test]
fn a_missing_file() {
    let workplace = Workplace::new();
    refused(
        &workplace,
        &["run", "--config", "gone.toml"],
        2,
        "error: the configuration gone.toml cannot be read\n  because: No such file or directory (os error 2)",
    );
    let message = "error: there is no such database; `postrider migrate up` makes one (file: gone.db)";
    refused(&workplace, &["status", "--store", "sqlite:gone.db"], 3, message);
    refused(&workplace, &enqueue("sqlite:gone.db", "{}"), 3, message);
    let pending = workplace.run(&["migrate", "status", "--store", "sqlite:gone.db"]);
    assert!(pending.code == 1 && pending.stdout.contains("pending"), "{pending:?}");
    assert_eq!(pending.stderr, "there is no such database yet: gone.db; `postrider migrate up` makes it\n");
    let doctor = workplace.run(&["doctor", "--store", "sqlite:gone.db"]);
    assert!(
        doctor.code == 3 && doctor.stdout.contains("store-missing") && doctor.stdout.contains("migrate up"),
        "{doctor:?}"
    );
    assert!(!workplace.path("gone.db").exists(), "asking makes no file");
    let message = "error: there is no such folder to make the database in; make it, or correct the path (folder: no/folder, file: no/folder/app.db)";
    refused(&workplace, &["migrate", "up", "--store", "sqlite:no/folder/app.db"], 3, message);
    for store in ["postgres://me:canary@127.0.0.1:1/shop?sslmode=disable", "mysql://me:canary@127.0.0.1:1/shop"] {
        for command in [&["status", "--store", store][..], &["migrate", "status", "--store", store]] {
            let told = workplace.run(command);
            assert!(told.code == 3 && told.stderr.contains("server: 127.0.0.1:1/shop"), "{told:?}");
            assert!(!told.stderr.contains("canary"), "{told:?}");
        }
    }
}

#[test]
fn a_file_that_is_no_database() {
    let workplace = Workplace::new();
    workplace
        .write("app.db", "This is a shopping list, and a rather long one, so that it has more than a header's size.");
    refused(
        &workplace,
        &["status", "--store", "sqlite:app.db"],
        3,
        "error: the file is not a SQLite database (code: 26, file: app.db)\n  because: file is not a database\n  because: Error code 26: file is not a database",
    );
    refused(
        &workplace,
        &enqueue("sqlite:app.db", "{}"),
        3,
        "error: the file is not a SQLite database (code: 26, file: app.db)\n  because: file is not a database\n  because: Error code 26: file is not a database",
    );
    refused(
        &workplace,
        &["migrate", "up", "--store", "sqlite:app.db"],
        3,
        "error: the file is not a SQLite database (code: 26, file: app.db)\n  because: file is not a database\n  because: Error code 26: file is not a database",
    );
    let examined = workplace.run(&["doctor", "--store", "sqlite:app.db"]);
    assert!(examined.code == 3 && examined.stdout.contains("store-corrupt"), "{examined:?}");
    assert!(examined.stdout.contains("the file is not a SQLite database"), "{examined:?}");
    assert!(examined.stdout.contains("correct the path") && !examined.stdout.contains("start it"), "{examined:?}");
}

#[test]
fn a_directory_instead_of_a_file() {
    let workplace = Workplace::new();
    refused(
        &workplace,
        &["status", "--store", "sqlite:."],
        3,
        "error: open the database (code: 14, file: .)\n  because: unable to open database file: .\n  because: Error code 14: unable to open database file",
    );
    workplace.write("p.toml", format!("[store]\nurl = \"sqlite:.\"\n{ROUTE}"));
    refused(
        &workplace,
        &["run", "--config", "p.toml"],
        3,
        "error: open the database (code: 14, file: .)\n  because: unable to open database file: .\n  because: Error code 14: unable to open database file",
    );
    let examined = workplace.run(&["doctor", "--store", "sqlite:."]);
    assert!(examined.code == 3 && examined.stdout.contains("store-unreachable"), "{examined:?}");
    assert!(examined.stdout.contains("correct the path") && !examined.stdout.contains("start it"), "{examined:?}");
}

#[test]
fn a_destination_that_cannot_be_opened() {
    let workplace = Workplace::new();
    workplace.write("p.toml", format!("{STORE}[[route]]\nname = \"a\"\ntransport = \"file:gone/a.ndjson\"\n"));
    refused(
        &workplace,
        &["run", "--config", "p.toml"],
        2,
        "error: the destination of the route `a` cannot be opened\n  because: open the file to write messages to (path: gone/a.ndjson)\n  because: No such file or directory (os error 2)",
    );
    assert!(!workplace.path("app.db").exists(), "the database is made last");
}

#[test]
fn a_schema_that_is_missing() {
    let workplace = Workplace::new();
    Connection::open(workplace.path("app.db")).unwrap().execute_batch("CREATE TABLE orders (id)").unwrap();
    refused(
        &workplace,
        &["status", "--store", "sqlite:app.db"],
        4,
        &format!(
            "error: the schema is missing; run the migrations, or let the store do it (prefix: postrider_, version: 0, \
             needed: {LATEST}, file: app.db)"
        ),
    );
    refused(
        &workplace,
        &enqueue("sqlite:app.db", "{}"),
        4,
        &format!(
            "error: the schema is missing; run the migrations, or let the store do it (prefix: postrider_, version: 0, \
             needed: {LATEST}, file: app.db)"
        ),
    );
}

#[test]
fn a_schema_that_was_altered() {
    let workplace = Workplace::new();
    workplace.migrated();
    let path = workplace.path("app.db");
    let expected = migrations::status(&path, &Sqlite::default()).unwrap()[0].checksum.clone();
    Connection::open(&path).unwrap().execute_batch("UPDATE postrider_migration SET checksum = 'x'").unwrap();
    let message = format!(
        "error: a migration was applied with another text; restore the database or the program that made it \
         (version: 1, checksum: x, expected: {expected}, file: app.db)"
    );
    refused(&workplace, &["migrate", "status", "--store", "sqlite:app.db"], 4, &message);
}

#[test]
fn a_schema_that_is_newer() {
    let workplace = Workplace::new();
    workplace.migrated();
    let newer = "INSERT INTO postrider_migration (version, name, checksum) VALUES (999, 'x', 'y')";
    Connection::open(workplace.path("app.db")).unwrap().execute_batch(newer).unwrap();
    workplace.write("p.toml", format!("{STORE}{ROUTE}"));
    let message = format!(
        "error: the schema is newer than this program; use a newer Postrider (version: 999, supported: {LATEST}, file: \
         app.db)"
    );
    let message = message.as_str();
    for arguments in [["status", "--store", "sqlite:app.db"], ["run", "--config", "p.toml"]] {
        refused(&workplace, &arguments, 4, message);
    }
}

#[test]
fn a_read_only_database() {
    let workplace = Workplace::new();
    workplace.migrated();
    let store = "sqlite:file:app.db?mode=ro";
    refused(
        &workplace,
        &["status", "--store", store],
        4,
        "error: the database is read-only: check the permissions of the file and its folder (file: file:app.db?mode=ro)",
    );
    refused(
        &workplace,
        &enqueue(store, "{}"),
        4,
        "error: the database is read-only: check the permissions of the file and its folder (file: file:app.db?mode=ro)",
    );
}

#[test]
fn an_oversized_or_invalid_message() {
    let workplace = Workplace::new();
    workplace.migrated();
    workplace.write("large", vec![b'x'; (1 << 20) + 1]);
    let finished = workplace.run(&enqueue("sqlite:app.db", "@large"));
    assert_eq!(finished.code, 4, "{finished:?}");
    let told = "error: payload too large (size: 1048577, payload_bytes_max: 1048576, message_id: ";
    assert!(finished.stderr.starts_with(told), "{finished:?}");
    let bad = ["enqueue", "--store", "sqlite:app.db", "--name", "order.placed", "--payload", "{}", "--topic", "a b"];
    let finished = workplace.run(&bad);
    assert_eq!(finished.code, 2, "{finished:?}");
    assert!(finished.stderr.contains("no empty segment (topic: a b, message_id: "), "{finished:?}");
    refused(
        &workplace,
        &enqueue("sqlite:app.db", "@gone"),
        2,
        "error: the payload @gone cannot be read\n  because: No such file or directory (os error 2)",
    );
    assert_eq!(workplace.status()["records"], 0, "nothing was written");
}

#[test]
fn a_route_that_is_not_there() {
    let workplace = Workplace::new();
    workplace.migrated();
    refused(
        &workplace,
        &["route", "pause", "gone", "--store", "sqlite:app.db"],
        1,
        "error: there is no route `gone`; there are no routes yet: a relay makes them known when it starts",
    );
}

fn enqueue<'a>(store: &'a str, payload: &'a str) -> [&'a str; 9] {
    ["enqueue", "--store", store, "--topic", "orders", "--name", "order.placed", "--payload", payload]
}
