//! The commands that only look, on PostgreSQL; what each role may see; and how a mistake about the database ends.

use serde_json::Value;

use crate::{
    postgres::Database,
    support::{Finished, wait_until},
};

/// What a command answers in JSON, on the database.
#[track_caller]
fn json(database: &Database, url: &str, arguments: &[&str]) -> Value {
    let finished = database.workplace.run(&[arguments, &["--store", url, "--output", "json"]].concat());
    serde_json::from_str(&finished.stdout).unwrap_or_else(|_| panic!("{arguments:?}: {finished:?}"))
}

/// Messages that are delivered, and one that is dead.
fn delivered(database: &Database) -> (crate::support::Daemon, String) {
    let daemon = database.daemon();
    database
        .app("SELECT postrider.enqueue('orders', 'order.placed', '{}', key => 'k-' || n) FROM generate_series(1, 5) AS n")
        .done();
    database
        .app("SELECT postrider.enqueue('orders', 'order.placed', '{\"late\": true}', key => 'k-9', expires_at => '2000-01-01')")
        .done();
    let url = database.url();
    wait_until("all but one are delivered", || {
        let routes = json(database, &url, &["route", "list"]);
        routes[0]["pending"] == 0 && routes[0]["parked"]["dead"] == 1
    });
    let dead = json(database, &url, &["dead", "list"])[0]["id"].as_str().unwrap().to_owned();
    (daemon, dead)
}

#[test]
fn everything_that_looks_works_on_postgresql() {
    let database = Database::migrated();
    let (_daemon, dead) = delivered(&database);
    let url = database.url();
    let ask = |arguments: &[&str]| json(&database, &url, arguments);
    let first = ask(&["message", "list", "--limit", "4"]);
    assert_eq!(first["messages"].as_array().map(Vec::len), Some(4));
    let rest = ask(&["message", "list", "--after", first["next"].as_str().unwrap()]);
    assert_eq!((rest["messages"].as_array().map(Vec::len), &rest["next"]), (Some(2), &Value::Null));
    assert_eq!(ask(&["message", "list", "--key", "k-3", "--state", "passed"])["messages"].as_array().unwrap().len(), 1);
    assert_eq!(ask(&["message", "get", &dead, "--payload"])["payload"]["late"], true);
    assert_eq!(ask(&["message", "trace", &dead])["steps"][1]["what"], "dead");
    assert_eq!(ask(&["dead", "groups"])[0]["cause"], "expired");
    assert_eq!(ask(&["dead", "show", &dead])[0]["id"], dead);
    assert_eq!(ask(&["key", "parked"]), serde_json::json!([]), "one that has expired holds up nobody");
    assert_eq!(ask(&["node", "list"])[0]["state"], "alive");
    assert_eq!(ask(&["lease", "list"])[0]["route"], "all");
    assert_eq!(ask(&["audit", "list"])[0]["action"], "migrate");
    assert_eq!(ask(&["replay", "list"]), serde_json::json!([]));
    let dry = database.workplace.run(&["replay", "--route", "all", "--key", "k-1", "--dry-run", "--store", &url]);
    assert!(dry.stdout.starts_with("would deliver 1 message again through all"), "{dry:?}");
    let check = database.workplace.run(&["check", "--store", &url]);
    assert!(check.code == 1 && check.stdout.starts_with("POSTRIDER WARNING - 1 relay alive, 0 pending"), "{check:?}");
    assert_eq!(ask(&["route", "test", "all"])["delivered"], true);
}

#[test]
fn a_viewer_sees_how_things_stand_and_is_told_who_sees_more() {
    let database = Database::migrated();
    let (_daemon, dead) = delivered(&database);
    let viewer = format!("{}_viewer", database.role());
    let purposes: Vec<String> = ["app", "relay", "migrate"].map(|role| format!("{}_{role}", database.role())).into();
    let make: String =
        purposes.iter().chain([&viewer]).map(|name| format!("CREATE ROLE {name} LOGIN PASSWORD 'x';")).collect();
    database.admin(&make).done();
    let [app, relay, migrate] = [&purposes[0], &purposes[1], &purposes[2]];
    let url = database.url();
    let roles = |app: &str| -> Finished {
        let names = ["--app", app, "--relay", relay, "--viewer", &viewer, "--migrate", migrate];
        database.workplace.run(&[&["migrate", "roles", "--store", &url], &names[..]].concat())
    };
    let shared = roles(relay);
    assert!(shared.code == 2 && shared.stderr.contains("app and relay"), "{shared:?}");
    database.admin(&roles(app).stdout).done();

    let (_, host) = url.split_once('@').unwrap();
    let viewer_url = format!("postgres://{viewer}:x@{host}");
    let run = |url: &str, command: &[&str]| database.workplace.run(&[command, &["--store", url]].concat());
    for looks in [
        &["status"][..],
        &["top", "--output", "json"],
        &["doctor"],
        &["message", "list"],
        &["message", "list", "--state", "dead"],
        &["message", "get", &dead],
        &["message", "trace", &dead],
        &["dead", "groups"],
        &["dead", "list"],
        &["dead", "show", &dead],
        &["key", "parked"],
        &["route", "list"],
        &["replay", "list"],
        &["replay", "--route", "all", "--dry-run"],
        &["node", "list"],
        &["lease", "list"],
        &["audit", "list"],
        &["audit", "list", "--id", &dead],
        &["migrate", "status"],
    ] {
        let finished = run(&viewer_url, looks);
        assert_eq!(finished.code, 0, "{looks:?}: {finished:?}");
        assert!(!finished.stdout.contains("\"late\""), "{looks:?} shows a payload: {finished:?}");
    }
    let why = json(&database, &viewer_url, &["why", &dead]);
    assert_eq!(why[0]["code"], "dead", "{why}");
    let got = json(&database, &viewer_url, &["message", "get", &dead]);
    assert_eq!((&got["id"], &got["payload_bytes"]), (&dead.clone().into(), &Value::Null), "not empty, but unseen");
    for payloads in
        [&["message", "get", &*dead, "--payload"][..], &["dead", "show", &dead, "--payload"], &["dead", "export"]]
    {
        let finished = run(&viewer_url, payloads);
        assert_eq!((finished.code, &*finished.stdout), (4, ""), "{payloads:?}: {finished:?}");
        assert!(finished.stderr.contains("may not see headers and payloads"), "{payloads:?}: {finished:?}");
    }

    // Each does what the hint says of it, and nothing else.
    let app_url = format!("postgres://{app}:x@{host}");
    let relay_url = format!("postgres://{relay}:x@{host}");
    let enqueue = ["enqueue", "--topic", "orders", "--name", "order.placed", "--payload", "{}"];
    for (url, command) in [(&viewer_url, &["dead", "discard", "--id", &*dead][..]), (&app_url, &enqueue[..])] {
        let finished = run(url, command);
        assert_eq!(finished.code, 4, "{command:?}: {finished:?}");
        assert!(finished.stderr.contains("relays and operators do, `postrider enqueue` with it"), "{finished:?}");
    }
    assert_eq!(run(&relay_url, &enqueue).code, 0, "the relay's role is that of operators too");
    // Whoever owns something, or was given something, cannot be dropped.
    let owner = url.split("//").nth(1).and_then(|rest| rest.split(':').next()).unwrap();
    let drop: String = purposes
        .iter()
        .chain([&viewer])
        .map(|name| format!("REASSIGN OWNED BY {name} TO {owner}; DROP OWNED BY {name}; DROP ROLE {name};"))
        .collect();
    database.admin(&drop).done();
}

#[test]
fn a_mistake_about_the_database_ends_as_documented() {
    let database = Database::migrated();
    let url = database.url();
    let (server, _) = url.rsplit_once('/').unwrap();
    let gone = database.workplace.run(&["status", "--store", &format!("{server}/gone")]);
    assert!(gone.code == 3 && gone.stderr.contains("there is no such database on the server"), "{gone:?}");
    let gone = database.workplace.run(&["migrate", "status", "--store", &format!("{server}/gone")]);
    assert_eq!(gone.code, 3, "{gone:?}");
    let (_, host) = url.split_once('@').unwrap();
    let wrong = format!("postgres://{}:wrong@{host}", database.role());
    let refused = database.workplace.run(&["status", "--store", &wrong]);
    assert_eq!(refused.code, 4, "{refused:?}");
    assert!(!refused.stderr.contains("wrong@"), "no password is repeated: {refused:?}");
    let nobody = database.workplace.run(&["status", "--store", "postgres://localhost:1/x?sslmode=disable"]);
    assert_eq!(nobody.code, 3, "{nobody:?}");
}

#[test]
fn a_mistyped_prefix_does_not_become_a_second_store() {
    let database = Database::migrated();
    let url = database.url();
    let up = |more: &[&str]| database.workplace.run(&[&["migrate", "up", "--store", &url], more].concat());
    let second = up(&["--table-prefix", "x_"]);
    assert_eq!(second.code, 4, "{second:?}");
    assert!(second.stderr.contains("--new-store") && second.stderr.contains("there: none"), "{second:?}");
    let config = format!(
        "[store]\nurl = \"{url}\"\ntable_prefix = \"x_\"\n[[route]]\nname = \"all\"\ntransport = \"discard\"\n"
    );
    database.workplace.write("second.toml", config);
    let run = database.workplace.run(&["run", "--config", "second.toml"]);
    assert!(run.code == 4 && run.stderr.contains("--new-store"), "{run:?}");
    assert_eq!(database.admin("SELECT count(*) FROM pg_class WHERE relname LIKE 'x\\_%'").done().trim(), "0");
    assert_eq!(up(&["--table-prefix", "x_", "--new-store"]).code, 0);
    assert_eq!(up(&["--table-prefix", "x_"]).code, 0, "it is there now");
    assert_eq!(up(&[]).code, 0, "and so is the first");
}
