//! The operator's commands, on a store that a daemon serves or served.

use rusqlite::Connection;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Workplace, wait_until};

const STORE: [&str; 2] = ["--store", "sqlite:app.db"];

const CONFIG: &str = r#"
[store]
url = "sqlite:app.db"
[relay]
lease_life = "1s"
heartbeat_every = "100ms"
[[route]]
name = "orders"
transport = "file:arrivals.ndjson"
"#;

#[test]
fn a_message_goes_from_the_command_line_to_the_destination() {
    let workplace = Workplace::new();
    let up = workplace.run(&["migrate", "up", STORE[0], STORE[1]]);
    assert_eq!(
        (up.code, up.stdout.as_str()),
        (
            0,
            "applied 0001 begin\napplied 0002 standstills\napplied 0003 parked_records\napplied 0004 leaving\napplied 0005 asked\n"
        ),
        "{up:?}"
    );
    let again = workplace.run(&["migrate", "up", STORE[0], STORE[1]]);
    assert_eq!(again.stdout, "nothing to do: the schema is up to date\n");

    let message = ["--topic", "orders", "--name", "order.placed", "--key", "4711", "--header", "tenant=acme"];
    let enqueued =
        workplace.run_with_input(&[&["enqueue"], &STORE[..], &message[..], &["--payload", "-"]].concat(), b"{}");
    assert_eq!(enqueued.code, 0, "{enqueued:?}");
    assert_eq!(workplace.status()["records"], 1);

    let _daemon = workplace.daemon("run", CONFIG);
    wait_until("it has arrived", || workplace.arrivals("arrivals.ndjson").len() == 1);
    let line: Value =
        serde_json::from_str(&std::fs::read_to_string(workplace.path("arrivals.ndjson")).unwrap()).unwrap();
    assert_eq!(line["id"], enqueued.stdout.trim_end());
    assert_eq!(
        (&line["key"], &line["headers"]["tenant"], &line["name"]),
        (&"4711".into(), &"acme".into(), &"order.placed".into())
    );
}

#[test]
fn migrations_are_shown_planned_and_printed() {
    let workplace = Workplace::new();
    let status = workplace.run(&["migrate", "status", STORE[0], STORE[1]]);
    assert_eq!(
        (status.code, status.stdout.as_str()),
        (
            1,
            "0001 begin: pending\n0002 standstills: pending\n0003 parked_records: pending\n0004 leaving: pending\n0005 asked: pending\n"
        ),
        "{status:?}"
    );
    let plan = workplace.run(&["migrate", "plan", STORE[0], STORE[1]]);
    assert_eq!(
        (plan.code, plan.stdout.as_str()),
        (
            0,
            "0001 begin: pending\n0002 standstills: pending\n0003 parked_records: pending\n0004 leaving: pending\n0005 asked: pending\n"
        )
    );
    assert!(!workplace.path("app.db").exists(), "looking makes no file");

    let script = workplace.run(&["migrate", "sql", STORE[0], STORE[1]]);
    Connection::open(workplace.path("app.db")).unwrap().execute_batch(&script.stdout).unwrap();
    let status = workplace.run(&["migrate", "status", STORE[0], STORE[1]]);
    assert_eq!(status.code, 0, "{status:?}");
    assert!(status.stdout.starts_with("0001 begin: applied at "), "{status:?}");
}

#[test]
fn a_paused_route_waits_until_it_is_resumed_and_a_replay_delivers_again() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    let _daemon = workplace.daemon("run", CONFIG);
    producer.enqueue(10, 2);
    wait_until("all have arrived", || producer.all_arrived(&workplace.arrivals("arrivals.ndjson")));

    let paused = workplace.run(&["route", "pause", "orders", STORE[0], STORE[1], "--reason", "maintenance"]);
    assert_eq!((paused.code, paused.stdout.as_str()), (0, "orders is paused\n"), "{paused:?}");
    assert_eq!(workplace.status()["routes"][0]["paused"]["reason"], "maintenance");
    // A relay learns of the pause with its next heartbeat; what it takes until then still arrives.
    wait_until("something waits for longer than that", || {
        let route = workplace.status()["routes"][0].clone();
        if route["pending"] == 0 {
            producer.enqueue(10, 2);
        }
        route["oldest_pending_age_seconds"].as_f64().is_some_and(|age| age > 1.0)
    });
    // A busy machine may keep a heartbeat waiting.
    let mut text = workplace.run(&["status", STORE[0], STORE[1]]);
    wait_until("its relay is alive", || {
        text = workplace.run(&["status", STORE[0], STORE[1]]);
        text.stdout.contains(" records in the log, 1 relay alive\n")
    });
    assert!(text.stdout.lines().nth(1).unwrap_or_default().starts_with("orders  paused  "), "{text:?}");
    let finding = ": maintenance [paused]\n  -> postrider route resume orders\n";
    assert!(text.stdout.ends_with(finding), "{text:?}");

    let resumed = workplace.run(&["route", "resume", "orders", STORE[0], STORE[1]]);
    assert_eq!((resumed.code, resumed.stdout.as_str()), (0, "orders goes on\n"));
    wait_until("all have arrived", || producer.all_arrived(&workplace.arrivals("arrivals.ndjson")));

    let before = workplace.arrivals("arrivals.ndjson").len();
    let replay = workplace.run(&["replay", STORE[0], STORE[1], "--route", "orders", "--key", "key-1", "--since", "1h"]);
    assert_eq!(replay.code, 0, "{replay:?}");
    let of_key = producer.enqueued.iter().filter(|m| m.committed && m.key.as_deref() == Some("key-1")).count();
    wait_until("they have arrived again", || workplace.arrivals("arrivals.ndjson").len() == before + of_key);
}

#[test]
fn a_route_that_is_no_longer_configured_can_be_forgotten() {
    let workplace = Workplace::new();
    workplace.migrated();
    let daemon = workplace.daemon("run", CONFIG);
    wait_until("the route is known", || !workplace.status()["routes"].as_array().is_none_or(Vec::is_empty));
    let forget = || workplace.run(&["route", "forget", "orders", STORE[0], STORE[1], "--reason", "replaced"]);
    let served = forget();
    assert!(served.code == 4 && served.stderr.contains("`orders` is served by"), "{served:?}");
    drop(daemon);
    wait_until("a relay that was killed is no longer live", || forget().code == 0);
    assert_eq!(workplace.status()["routes"].as_array().map(Vec::len), Some(0));
    let again = workplace.run(&["route", "forget", "orders", STORE[0], STORE[1]]);
    assert_eq!(again.code, 1, "there is none any more: {again:?}");
}

/// The relay sleeps for longer than its lease lives, so that nothing speaks for it when the route is forgotten.
#[test]
fn a_route_that_is_forgotten_under_a_relay_is_made_known_again() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    let daemon = workplace.daemon("run", CONFIG);
    producer.enqueue(10, 2);
    let settled = || workplace.status()["routes"][0]["pending"] == 0;
    wait_until("all are settled", || producer.all_arrived(&workplace.arrivals("arrivals.ndjson")) && settled());
    wait_until("it is stopped without the write lock in its hands", || {
        daemon.stop();
        let connection = Connection::open(workplace.path("app.db")).unwrap();
        let free = connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok();
        if !free {
            daemon.signal(Signal::CONT);
        }
        free
    });
    let forget = || workplace.run(&["route", "forget", "orders", STORE[0], STORE[1]]);
    wait_until("a relay that sleeps is no longer live", || forget().code == 0);
    assert_eq!(workplace.status()["routes"].as_array().map(Vec::len), Some(0));
    daemon.signal(Signal::CONT);
    wait_until("the route is known again", || !workplace.status()["routes"][0].is_null());
    producer.enqueue(10, 2);
    wait_until("all have arrived", || producer.all_arrived(&workplace.arrivals("arrivals.ndjson")));
    let log = std::fs::read_to_string(workplace.path("run.log")).unwrap();
    assert!(log.contains("the route was forgotten in the store"), "{log}");
}

#[test]
fn the_dead_are_listed_redriven_and_discarded() {
    let workplace = Workplace::new();
    workplace.migrated();
    // A message that has expired before it is read is dead at once.
    let _daemon = workplace.daemon("run", CONFIG);
    let expired = Connection::open(workplace.path("app.db")).unwrap();
    expired
        .execute(
            "INSERT INTO postrider_log (id, topic, name, key, expires_at, payload) VALUES (randomblob(16), 'orders', \
             'order.placed', '4711', 1, '{}')",
            [],
        )
        .unwrap();
    let dead = || workplace.status()["routes"][0]["parked"]["dead"].clone();
    wait_until("it is dead", || dead() == 1);

    let list = workplace.run(&["dead", "list", STORE[0], STORE[1], "--json"]);
    let row: Value = serde_json::from_str(&list.stdout).unwrap();
    assert_eq!(
        (&row["key"], &row["cause"], &row["route"]),
        (&"4711".into(), &"expired".into(), &"orders".into()),
        "{row}"
    );
    let text = workplace.run(&["dead", "list", STORE[0], STORE[1], "--route", "orders"]);
    assert!(text.stdout.ends_with("1 dead\n"), "{text:?}");

    let unclear = workplace.run(&["dead", "redrive", STORE[0], STORE[1]]);
    assert_eq!(unclear.code, 2);
    assert_eq!(
        unclear.stderr,
        "error: say which messages (--route, --cause, --key, --id or --older-than), or --all of them\n"
    );
    let nobody = workplace.run(&["dead", "redrive", STORE[0], STORE[1], "--key", "other"]);
    assert_eq!((nobody.code, nobody.stdout.as_str()), (1, "0 redriven\n"));
    let redriven = workplace.run(&["dead", "redrive", STORE[0], STORE[1], "--cause", "expired", "--yes"]);
    assert_eq!((redriven.code, redriven.stdout.as_str()), (0, "1 redriven\n"), "{redriven:?}");
    wait_until("it has expired again", || dead() == 1);
    let discarded = workplace.run(&["dead", "discard", STORE[0], STORE[1], "--all", "--yes"]);
    assert_eq!((discarded.code, discarded.stdout.as_str()), (0, "1 discarded\n"));
    assert_eq!(dead(), 0);
}

#[test]
fn the_help_tells_the_exit_codes() {
    let help = Workplace::new().run(&["--help"]);
    assert_eq!(help.code, 0);
    for line in ["  0  done", "  1  a problem was found", "  2  usage", "  3  the store cannot", "  4  refused"] {
        assert!(help.stdout.contains(line), "{line} in {}", help.stdout);
    }
}

#[test]
fn a_doctor_tells_what_is_wrong_and_exits_accordingly() {
    let workplace = Workplace::new();
    let doctor = |more: &[&str]| workplace.run(&[&["doctor"], &STORE[..], more].concat());
    let gone = doctor(&["--json"]);
    assert_eq!(gone.code, 3, "{gone:?}");
    let told: Value = serde_json::from_str(&gone.stdout).unwrap();
    assert_eq!((&told["healthy"], &told["findings"][0]["code"]), (&false.into(), &"store-missing".into()));

    assert_eq!(workplace.run(&["migrate", "up", STORE[0], STORE[1]]).code, 0);
    let well = doctor(&["--disk-free", "0B"]);
    assert_eq!((well.code, well.stdout.as_str()), (0, "nothing to complain about\n"), "{well:?}");
    let warned = doctor(&["--disk-free", "1000000GiB"]);
    assert_eq!(warned.code, 0, "a warning is not an error: {warned:?}");
    assert!(warned.stdout.contains("warning  disk-nearly-full") && warned.stdout.contains("fix: "), "{warned:?}");
}

#[test]
fn roles_are_printed_for_postgresql_and_refused_for_sqlite() {
    let workplace = Workplace::new();
    let place = ["--store", "postgres://nobody@localhost:1/none", "--schema", "Order-Box", "--table-prefix", "x_"];
    let script = workplace.run(&[&["migrate", "roles"], &place[..], &["--app", "My \"shop\""]].concat());
    assert_eq!(script.code, 0, "it connects to nothing: {script:?}");
    assert!(script.stdout.contains("ON TABLE \"Order-Box\".\"x_log\" TO \"My \"\"shop\"\"\""), "{}", script.stdout);
    assert_eq!(workplace.run(&["migrate", "roles", STORE[0], STORE[1]]).code, 4);
    let hostile = workplace.run(&["migrate", "sql", "--store", "postgres://localhost/x", "--schema", "x\"; DROP"]);
    assert!(hostile.code == 2 && hostile.stderr.contains("schema"), "{hostile:?}");
    let misplaced = workplace.run(&["status", STORE[0], STORE[1], "--schema", "x"]);
    assert!(misplaced.code == 2 && misplaced.stderr.contains("schema"), "{misplaced:?}");
}
