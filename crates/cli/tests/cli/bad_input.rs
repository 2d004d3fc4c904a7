//! What is wrong is told: what, where, and with the documented exit code. Nothing is made or changed on the way.

use postrider::sqlite::{Sqlite, migrations};
use rusqlite::Connection;

use crate::support::Workplace;

/// Asserts exit code and message, to the letter.
#[track_caller]
fn refused(workplace: &Workplace, arguments: &[&str], code: i32, message: &str) {
    let finished = workplace.run(arguments);
    assert_eq!(finished.stderr.trim_end(), message, "of {arguments:?}");
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
    wrong_config("[store\nurl = 1\n", "  p.toml:1: not TOML: SNAPSHOT");
    wrong_config("", "SNAPSHOT");
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
        "  p.toml:2: `store.url` `oracle:` is not a store that is known here; known are sqlite",
    );
    wrong_config(
        &format!("{STORE}[[route]]\nname = \"a\"\ntransport = \"kafka:localhost\"\n"),
        "  p.toml:5: `route.transport` `kafka:` is not part of this build; it comes with the feature `kafka`",
    );
    refused(
        &Workplace::new(),
        &["status", "--store", "sqllite:app.db"],
        2,
        "error: --store: `sqllite:` is not a store that is known here; did you mean `sqlite:`?",
    );
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
    assert!(!workplace.path("gone.db").exists(), "asking makes no file");
}

#[test]
fn a_file_that_is_no_database() {
    let workplace = Workplace::new();
    workplace
        .write("app.db", "This is a shopping list, and a rather long one, so that it has more than a header's size.");
    refused(&workplace, &["status", "--store", "sqlite:app.db"], 3, "SNAPSHOT1");
    refused(&workplace, &enqueue("sqlite:app.db", "{}"), 3, "SNAPSHOT2");
    refused(&workplace, &["migrate", "up", "--store", "sqlite:app.db"], 3, "SNAPSHOT3");
}

#[test]
fn a_directory_instead_of_a_file() {
    let workplace = Workplace::new();
    refused(&workplace, &["status", "--store", "sqlite:."], 3, "SNAPSHOT1");
    workplace.write("p.toml", format!("[store]\nurl = \"sqlite:.\"\n{ROUTE}"));
    refused(&workplace, &["run", "--config", "p.toml"], 3, "SNAPSHOT2");
}

#[test]
fn a_destination_that_cannot_be_opened() {
    let workplace = Workplace::new();
    workplace.write("p.toml", format!("{STORE}[[route]]\nname = \"a\"\ntransport = \"file:gone/a.ndjson\"\n"));
    refused(&workplace, &["run", "--config", "p.toml"], 1, "SNAPSHOT");
}

#[test]
fn a_schema_that_is_missing_newer_or_altered() {
    let workplace = Workplace::new();
    let path = workplace.path("app.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE orders (id)").unwrap();
    refused(&workplace, &["status", "--store", "sqlite:app.db"], 4, "SNAPSHOT1");
    refused(&workplace, &enqueue("sqlite:app.db", "{}"), 4, "SNAPSHOT2");
    migrations::up(&path, &Sqlite::default()).unwrap();
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("UPDATE postrider_migration SET checksum = 'x'").unwrap();
    refused(&workplace, &["migrate", "status", "--store", "sqlite:app.db"], 4, "SNAPSHOT3");
    connection
        .execute_batch("INSERT INTO postrider_migration (version, name, checksum) VALUES (999, 'x', 'y')")
        .unwrap();
    refused(&workplace, &["status", "--store", "sqlite:app.db"], 4, "SNAPSHOT4");
    workplace.write("p.toml", format!("{STORE}{ROUTE}"));
    refused(&workplace, &["run", "--config", "p.toml"], 4, "SNAPSHOT5");
}

#[test]
fn a_read_only_database() {
    let workplace = Workplace::new();
    workplace.migrated();
    let store = "sqlite:file:app.db?mode=ro";
    refused(&workplace, &["status", "--store", store], 4, "SNAPSHOT1");
    refused(&workplace, &enqueue(store, "{}"), 4, "SNAPSHOT2");
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
    refused(&workplace, &["route", "pause", "gone", "--store", "sqlite:app.db"], 1, "SNAPSHOT");
}

fn enqueue<'a>(store: &'a str, payload: &'a str) -> [&'a str; 9] {
    ["enqueue", "--store", store, "--topic", "orders", "--name", "order.placed", "--payload", payload]
}
