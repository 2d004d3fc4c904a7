//! What stands still because of its route, or of what stands before it: pauses, relays that are gone, lines that are blocked.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use rusqlite::Connection;
use serde_json::Value;

use super::{
    NAMED_WITHIN, Promise, Scene, Told,
    endpoint::{answering, answering_once, endpoint},
    sample, text,
};
use crate::{admin::get, support::wait_until};

#[test]
fn a_paused_route() {
    Scene::everywhere().iter().for_each(told_of_a_paused_route);
}

fn told_of_a_paused_route(scene: &Scene) {
    scene.known_route();
    let paused = ["route", "pause", "orders", "--actor", "anna", "--reason", "maintenance"];
    assert_eq!(scene.run(&paused).code, 0);
    let id = scene.enqueue("orders.placed", &[]);
    let _relay = scene.relay("transport = \"file:arrivals\"");
    scene.assert_told(
        &id,
        &Told {
            why: ("paused", "anna: maintenance"),
            standstill: "paused",
            samples: &[("postrider_route_paused", &[("route", "orders")], 1.0)],
        },
    );
    assert_eq!(scene.run(&["route", "resume", "orders"]).code, 0, "as the fix says");
    wait_until("it has arrived", || scene.place().arrivals("arrivals").len() == 1);
    wait_until("nothing is wrong any more", || {
        scene.why(&id)[0]["code"] == "passed"
            && scene.status()["findings"] == Value::Array(Vec::new())
            && !scene.metrics().contains("cause=\"paused\"")
    });
}

#[test]
fn no_relay() {
    Scene::everywhere().iter().for_each(told_of_no_relay);
}

fn told_of_no_relay(scene: &Scene) {
    scene.known_route();
    let id = scene.enqueue("orders.placed", &[]);
    Promise::begin().kept("`why` names it", || {
        let found = scene.why(&id);
        (found[0]["code"] == "no-relay").then_some(()).ok_or(format!("{found:?}"))
    });
    Promise::begin().kept("`status` names it", || {
        let status = scene.status();
        (status["findings"][0]["code"] == "no-relay").then_some(()).ok_or(status.to_string())
    });
    // Nobody is there to be scraped, which Prometheus shows by `up`; the metrics of the store can be had all the same.
    assert_eq!(get(scene.listen, "/metrics", None), None);
    let metrics = scene.run(&["check", "--prometheus"]).stdout;
    assert_eq!(sample(&metrics, "postrider_standstill", &[("cause", "no-relay")]), Some(1.0), "{metrics}");
    assert_eq!(sample(&metrics, "postrider_nodes", &[]), Some(0.0), "{metrics}");
}

#[test]
fn a_lane_whose_relay_was_killed() {
    let scene = Scene::new();
    let config = |name: &str| {
        let config = scene.config("orders", "transport = \"file:arrivals\"").replace("\"2s\"", "\"90s\"");
        config.replace("[relay]\n", &format!("[relay]\nname = \"{name}\"\n"))
    };
    let killed = scene.place().daemon("killed", &config("killed"));
    wait_until("it owns the lane", || !scene.status()["routes"][0]["lanes"][0]["owner"].is_null());
    killed.kill();
    // As if that had happened most of a minute ago.
    let sql = "UPDATE postrider_node SET seen_at = seen_at - 50000000 WHERE name = 'killed'";
    Connection::open(scene.place().path("app.db")).unwrap().execute(sql, []).unwrap();
    let id = scene.enqueue("orders.placed", &[]);
    let _other = scene.place().daemon("other", &config("other"));
    scene.assert_told(
        &id,
        &Told { why: ("silent", "killed owns lane 0 and is silent for "), standstill: "silent", samples: &[] },
    );
}

#[test]
fn a_lane_that_nobody_owns() {
    let scene = Scene::new();
    let config = scene.config("orders", "transport = \"file:arrivals\"").replace("\"2s\"", "\"90s\"");
    let relay = scene.place().daemon("relay", &config);
    wait_until("it owns the lane", || !scene.status()["routes"][0]["lanes"][0]["owner"].is_null());
    // It is taken for alive for as long as its lease, and cannot take the lane again.
    relay.stop();
    let connection = Connection::open(scene.place().path("app.db")).unwrap();
    connection.busy_timeout(NAMED_WITHIN).unwrap();
    connection.execute("UPDATE postrider_lane SET owner = NULL, expires_at = NULL", []).unwrap();
    let id = scene.enqueue("orders.placed", &[]);
    let unowned =
        |found: &[Value]| found.iter().any(|f| f["code"] == "unowned" && text(f).contains("lane 0 has no owner"));
    let found = scene.why(&id);
    assert!(unowned(&found), "{found:?}");
    let findings = scene.status()["findings"].clone();
    assert!(unowned(findings.as_array().unwrap()), "{findings}");
    let metrics = scene.run(&["check", "--prometheus"]).stdout;
    assert_eq!(sample(&metrics, "postrider_standstill", &[("cause", "unowned")]), Some(1.0), "{metrics}");
    assert_eq!(sample(&metrics, "postrider_partitions_unowned", &[]), Some(1.0), "{metrics}");
}

#[test]
fn a_route_that_no_relay_has() {
    Scene::everywhere().iter().for_each(told_of_a_route_that_no_relay_has);
}

fn told_of_a_route_that_no_relay_has(scene: &Scene) {
    scene.known_route();
    let id = scene.enqueue("orders.placed", &[]);
    let _other = scene.place().daemon("other", &scene.config("invoices", "transport = \"discard\""));
    let orders = [("route", "orders")];
    let told = Told {
        why: ("not-served", "`orders`"),
        standstill: "not-served",
        samples: &[("postrider_outbox_pending", &orders, 1.0)],
    };
    scene.assert_told(&id, &told);
    assert_eq!(sample(&scene.metrics(), "postrider_partitions_unowned", &orders), Some(0.0), "nobody could own it");
}

#[test]
fn a_topic_that_no_route_reads() {
    Scene::everywhere().iter().for_each(told_of_a_topic_that_no_route_reads);
}

fn told_of_a_topic_that_no_route_reads(scene: &Scene) {
    let _relay = scene.relay("transport = \"file:arrivals\"");
    wait_until("the route is known", || !scene.status()["routes"][0].is_null());
    let id = scene.enqueue("payments", &[]);
    scene.assert_told(&id, &Told { why: ("no-route", "`payments`"), standstill: "no-route", samples: &[] });
}

/// Nothing is wrong, so it is no standstill; but whoever asks is told.
#[test]
fn a_message_that_is_not_due_yet() {
    Scene::everywhere().iter().for_each(told_of_a_message_that_is_not_due_yet);
}

fn told_of_a_message_that_is_not_due_yet(scene: &Scene) {
    let id = scene.enqueue("orders.placed", &["--deliver-in", "1h"]);
    let _relay = scene.relay("transport = \"file:arrivals\"");
    Promise::begin().kept("`why` names it", || {
        let found = scene.why(&id);
        (found[0]["code"] == "scheduled" && text(&found[0]).contains("in 59m"))
            .then_some(())
            .ok_or(format!("{found:?}"))
    });
    Promise::begin().kept("`status` counts it", || {
        let status = scene.status();
        (status["routes"][0]["parked"]["scheduled"] == 1).then_some(()).ok_or(status.to_string())
    });
    Promise::begin().kept("the metrics count it", || {
        let text = scene.metrics();
        let scheduled = sample(&text, "postrider_outbox_scheduled", &[("route", "orders")]);
        (scheduled == Some(1.0)).then_some(()).ok_or(text)
    });
    // A relay that was slow for a moment may be called silent.
    wait_until("nothing is wrong", || {
        let text = scene.metrics();
        text.contains("postrider_store_up") && !text.contains("postrider_standstill{")
    });
}

#[test]
fn a_message_behind_a_dead_one_of_its_key() {
    Scene::everywhere().iter().for_each(told_of_a_message_behind_a_dead_one_of_its_key);
}

fn told_of_a_message_behind_a_dead_one_of_its_key(scene: &Scene) {
    let head = scene.enqueue("orders.placed", &["--key", "4711"]);
    let id = scene.enqueue("orders.placed", &["--key", "4711"]);
    let once = "[route.retry]\nattempts_max = 1\n";
    let _relay = scene.relay(&format!("{}{once}", endpoint("http", "", answering("422 Unprocessable Content"))));
    let orders = [("route", "orders")];
    let dead = [("route", "orders"), ("cause", "http-422")];
    scene.assert_told(
        &id,
        &Told {
            why: ("held", &format!("behind message {head} (key `4711`), which is dead, http-422")),
            standstill: "dead",
            samples: &[
                ("postrider_outbox_held", &orders, 1.0),
                ("postrider_parked_keys", &orders, 1.0),
                ("postrider_dead_letters", &dead, 1.0),
            ],
        },
    );
}

/// The replay is over and in no overview any more; what it has given up waits for an operator all the same.
#[test]
fn a_message_that_a_replay_has_given_up() {
    let scene = Scene::new();
    let id = scene.enqueue("orders.placed", &[]);
    let refuses = Arc::new(AtomicBool::new(false));
    let told_to = Arc::clone(&refuses);
    let endpoint = endpoint("http", "", move |stream| {
        let head = if told_to.load(Ordering::SeqCst) { "422 Unprocessable Content" } else { "204 No Content" };
        answering_once(head, stream);
    });
    let _relay = scene.relay(&format!("{endpoint}[route.retry]\nattempts_max = 1\n"));
    wait_until("it is delivered", || scene.why(&id)[0]["code"] == "passed");
    refuses.store(true, Ordering::SeqCst);
    assert_eq!(scene.run(&["replay", "--route", "orders"]).code, 0);
    wait_until("the replay has ended", || {
        let routes = scene.status()["routes"].as_array().unwrap().len();
        routes == 1 && scene.run(&["dead", "list"]).stdout.ends_with("1 dead\n")
    });
    let replay = [("route", "orders#replay-1")];
    scene.assert_told(
        &id,
        &Told {
            why: ("dead", "it was given up after 1 attempt"),
            standstill: "dead",
            samples: &[("postrider_dead_letters", &replay, 1.0), ("postrider_standstill", &replay, 1.0)],
        },
    );
    let checked = scene.run(&["check"]);
    assert!(checked.code == 1 && checked.stdout.contains(", 1 dead |"), "{checked:?}");
    assert!(checked.stdout.contains("orders#replay-1: 1 message was given up"), "{checked:?}");
    let (_, health) = get(scene.listen, "/healthz", None).unwrap();
    assert!(health.contains("\"code\":\"dead\""), "{health}");
}
