//! What stands still because of where it is kept: locks, open transactions, and databases that went back or away.

use std::{fs, process::Stdio};

use rusqlite::Connection;
use rustix::process::Signal;
use serde_json::Value;

use super::{Ground, NAMED_WITHIN, Promise, Scene, Told, endpoint::webhook, sample, text};
use crate::{
    admin::get,
    support::{Daemon, wait_until},
};

#[test]
fn a_database_that_somebody_keeps_locked() {
    let scene = Scene::new();
    scene.known_route();
    let id = scene.enqueue("orders.placed", &[]);
    let writer = Connection::open(scene.place().path("app.db")).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let _relay = scene.relay("transport = \"file:arrivals\"");
    scene.assert_told(
        &id,
        &Told {
            why: ("store-locked", "the only write lock"),
            standstill: "store-locked",
            samples: &[("postrider_store_failures_total", &[], 1.0), ("postrider_store_up", &[], 1.0)],
        },
    );
    writer.execute_batch("ROLLBACK").unwrap();
    wait_until("it has arrived", || scene.place().arrivals("arrivals").len() == 1);
    wait_until("nothing is wrong any more", || scene.why(&id)[0]["code"] == "passed");
}

/// The relay is taken for dead then, because it cannot say otherwise. Whoever asks is told of the lock, and not to start one.
#[test]
fn a_lock_that_outlives_the_lease() {
    let scene = Scene::new();
    let id = scene.enqueue("orders.placed", &[]);
    // Nobody listens on the first port.
    let _relay = scene.relay(&webhook("http://127.0.0.1:1/", 1, ""));
    wait_until("the relay is at work", || !scene.status()["nodes"].as_array().unwrap().is_empty());
    let writer = Connection::open(scene.place().path("app.db")).unwrap();
    writer.busy_timeout(NAMED_WITHIN).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    wait_until("it is taken for dead", || scene.status()["nodes"].as_array().unwrap().is_empty());
    let findings = |found: &[Value]| {
        assert_eq!(found[0]["code"], "store-locked", "{found:?}");
        assert!(text(&found[0]).contains("the last heartbeat of a relay was written "), "{found:?}");
        let silent = found.iter().find(|finding| finding["code"] == "no-relay").expect("what is known of it");
        let said = text(silent);
        assert!(said.contains("while the store is locked") && !said.contains("start one"), "{said}");
    };
    findings(&scene.why(&id));
    findings(scene.status()["findings"].as_array().unwrap());
    writer.execute_batch("ROLLBACK").unwrap();
    wait_until("the relay is heard again", || {
        let findings = scene.status()["findings"].clone();
        matches!(findings.as_array().unwrap().as_slice(), [only] if only["code"] == "unavailable")
    });
}

/// A message that is not there yet, and a lock: PostgreSQL knows whose they are.
#[test]
fn a_transaction_that_somebody_keeps_open_on_postgresql() {
    let scene = Scene::on_postgres();
    scene.known_route();
    let waiting = scene.enqueue("orders.placed", &[]);
    let Ground::Server(database) = &scene.ground else { unreachable!("it is on a server") };
    let missing = postrider::MessageId::generate().to_string();
    let mut open = database.session(&format!(
        "BEGIN; SELECT postrider.enqueue('orders.placed', 'n', '{{}}', id => '{missing}');
         SELECT count(*) FROM (SELECT 1 FROM postrider.lane FOR UPDATE) AS lanes;"
    ));
    let _relay = scene.relay("transport = \"file:arrivals\"");
    Promise::begin().kept("`why` names the transaction of what is not there", || {
        let found = scene.why(&missing);
        let named = found.iter().any(|f| f["code"] == "open-transaction" && text(f).contains("pg_terminate_backend"));
        (found[0]["code"] == "unknown" && named).then_some(()).ok_or(format!("{found:?}"))
    });
    let told = Told { why: ("store-locked", "pg_terminate_backend"), standstill: "store-locked", samples: &[] };
    scene.assert_told(&waiting, &told);
    open.end();
    wait_until("it has arrived", || scene.place().arrivals("arrivals").len() == 1);
    wait_until("nothing is wrong any more", || scene.why(&waiting)[0]["code"] == "passed");
}

/// As after a part of a database was restored. Nothing can be read then, and what was never sent must not look as if it were.
#[test]
fn numbers_of_the_log_that_went_back_on_postgresql() {
    let scene = Scene::on_postgres();
    let Ground::Server(database) = &scene.ground else { unreachable!("it is on a server") };
    let number = |last: u32| database.admin(&format!("SELECT setval('postrider.seq', {last})")).done();
    let _relay = scene.relay("transport = \"file:arrivals\"");
    number(1_000);
    scene.enqueue("orders.placed", &[]);
    wait_until("it has arrived", || scene.place().arrivals("arrivals").len() == 1);
    number(100);
    let id = scene.enqueue("orders.placed", &[]);
    let told = Told { why: ("store-fails", "setval"), standstill: "store-fails", samples: &[] };
    scene.assert_told(&id, &told);
    assert_eq!(scene.run(&["check"]).code, 2, "critical");
    number(1_001);
    assert_eq!(scene.run(&["route", "rebase", "orders"]).code, 0);
    wait_until("it has arrived", || scene.place().arrivals("arrivals").len() == 2);
    wait_until("nothing is wrong any more", || scene.why(&id)[0]["code"] == "passed");
}

/// What can be read there is well and stays so: that nobody hears of this relay any more, only it can tell.
#[test]
fn a_file_that_was_moved_away_under_a_relay() {
    let scene = Scene::new();
    let _relay = scene.relay("transport = \"file:arrivals\"");
    wait_until("the route is known", || !scene.status()["routes"][0].is_null());
    let place = |name: &str| scene.place().path(name);
    let move_all = |from: &str, to: &str| {
        for end in ["", "-wal", "-shm"] {
            fs::rename(place(&format!("{from}{end}")), place(&format!("{to}{end}"))).unwrap();
        }
    };
    move_all("app.db", "moved.db");
    let promise = Promise::begin();
    promise.kept("the health endpoint names it", || {
        let (code, health) = get(scene.listen, "/healthz", None).unwrap_or_default();
        let named = health.contains("\"code\":\"store-fails\"") && health.contains("was removed or replaced");
        (code == 503 && named).then_some(()).ok_or(health)
    });
    promise.kept("the metrics name it", || {
        let text = scene.metrics();
        let named = sample(&text, "postrider_standstill", &[("cause", "store-fails")]) == Some(1.0);
        named.then_some(()).ok_or(text)
    });
    move_all("moved.db", "app.db");
    wait_until("nothing is wrong any more", || {
        get(scene.listen, "/readyz", None).is_some_and(|(code, _)| code == 200)
            && sample(&scene.metrics(), "postrider_standstill", &[("cause", "store-fails")]).is_none()
    });
}

/// Behind such a lock nobody can even look: whoever asks is told so, and is not kept waiting.
#[test]
fn a_lock_on_a_whole_table_of_postgresql() {
    let scene = Scene::on_postgres();
    let _relay = scene.relay("transport = \"file:arrivals\"");
    wait_until("the route is known", || !scene.status()["routes"][0].is_null());
    assert_eq!(scene.run(&["route", "pause", "orders"]).code, 0);
    let id = scene.enqueue("orders.placed", &[]);
    let Ground::Server(database) = &scene.ground else { unreachable!("it is on a server") };
    let mut open = database.session("BEGIN; LOCK TABLE postrider.lane IN ACCESS EXCLUSIVE MODE; SELECT 'locked';");
    let promise = Promise::begin();
    promise.kept("`why` names it", || {
        let found = scene.why(&id);
        let named = found.iter().any(|f| f["code"] == "store-locked" && text(f).contains("pg_terminate_backend"));
        named.then_some(()).ok_or(format!("{found:?}"))
    });
    for (arguments, code) in [(&["status"][..], 3), (&["check"], 2), (&["doctor"], 1)] {
        promise.kept(arguments[0], || {
            let told = scene.run(arguments);
            let words = format!("{}{}", told.stdout, told.stderr);
            let named = words.contains("store-locked") && words.contains("pg_terminate_backend");
            (told.code == code && named).then_some(()).ok_or(format!("{told:?}"))
        });
    }
    for metrics in [|scene: &Scene| scene.metrics(), |scene: &Scene| scene.run(&["check", "--prometheus"]).stdout] {
        promise.kept("the metrics name it", || {
            let text = metrics(&scene);
            let locked = sample(&text, "postrider_standstill", &[("cause", "store-locked")]) == Some(1.0);
            let answers = sample(&text, "postrider_store_up", &[]) == Some(1.0);
            (locked && answers).then_some(()).ok_or(text)
        });
    }
    open.end();
    assert_eq!(scene.run(&["route", "resume", "orders"]).code, 0);
    wait_until("it has arrived", || scene.place().arrivals("arrivals").len() == 1);
    wait_until("nothing is wrong any more", || {
        sample(&scene.metrics(), "postrider_standstill", &[("cause", "store-locked")]).is_none()
    });
}

/// A look that waits for a lock is not what whoever has lost their patience waits for.
#[test]
fn whoever_watches_a_locked_store_can_leave_it() {
    let scene = Scene::on_postgres();
    let Ground::Server(database) = &scene.ground else { unreachable!("it is on a server") };
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    for arguments in [["top", "--output", "ndjson"], ["tail", "--every", "20ms"]] {
        // A look gives up after a while. If this machine was busy for so long, it is tried again.
        wait_until("it ends when it is told to", || {
            let mut open =
                database.session("BEGIN; LOCK TABLE postrider.lane IN ACCESS EXCLUSIVE MODE; SELECT 'locked';");
            let mut command = scene.place().command(&[&arguments[..], &["--store", &scene.url()]].concat());
            let mut watcher = Daemon::around(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
            wait_until("it waits", || database.admin(waits).done().trim() != "0" || watcher.has_ended());
            let told = !watcher.has_ended();
            if told {
                watcher.signal(Signal::INT);
            }
            let ended = watcher.wait();
            open.end();
            told && ended.code() == Some(0)
        });
    }
}
