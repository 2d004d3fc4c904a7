//! A topic that is taken out of a route: what the route had delivered of it stays delivered, and only what is left is told as
//! nobody's.

use std::fs;

use rustix::process::Signal;

use crate::support::{Workplace, wait_until};

const STORE: [&str; 2] = ["--store", "sqlite:app.db"];

fn config(topics: &str, relay: &str) -> String {
    format!(
        "[store]\nurl = \"sqlite:app.db\"\n[relay]\nheartbeat_every = \"200ms\"\n{relay}\n\
         [[route]]\nname = \"orders\"\ntransport = \"file:arrivals.ndjson\"\ntopics = [{topics}]\n"
    )
}

fn enqueue(workplace: &Workplace, topic: &str) -> String {
    let message = ["enqueue", "--topic", topic, "--name", "n", "--payload", "{}"];
    let done = workplace.run(&[&message[..], &STORE].concat());
    assert_eq!(done.code, 0, "{done:?}");
    done.stdout.trim().to_owned()
}

/// Runs a daemon until so many messages have arrived in all.
fn deliver(workplace: &Workplace, name: &str, config: &str, arrivals: usize) {
    let mut daemon = workplace.daemon(name, config);
    let log = || fs::read_to_string(workplace.path(&format!("{name}.log"))).unwrap();
    wait_until("a lane is owned", || log().contains("lane acquired"));
    wait_until("all have arrived", || workplace.arrivals("arrivals.ndjson").len() == arrivals);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", log());
}

#[test]
fn what_was_delivered_stays_delivered_when_its_topic_is_taken_out() {
    let workplace = Workplace::new();
    drop(workplace.migrated());
    let refund = enqueue(&workplace, "refunds.made");
    enqueue(&workplace, "orders.placed");
    deliver(&workplace, "wide", &config("\"orders.*\", \"refunds.*\"", ""), 2);

    // Nothing is undelivered, so there is nothing to refuse: neither when the topic goes nor later.
    enqueue(&workplace, "orders.placed");
    deliver(&workplace, "narrow", &config("\"orders.*\"", ""), 3);
    enqueue(&workplace, "orders.placed");
    deliver(&workplace, "again", &config("\"orders.*\"", ""), 4);
    let why = workplace.run(&[&["why", refund.as_str()][..], &STORE].concat());
    assert!(why.code == 0 && why.stdout.contains("orders: the route has passed it: delivered"), "{why:?}");
    for command in ["status", "doctor", "check"] {
        let told = workplace.run(&[&[command][..], &STORE].concat());
        assert!(!told.stdout.contains("refunds.made") && !told.stdout.contains("no-route"), "{told:?}");
    }

    // One more is nobody's, and the first is not.
    let late = enqueue(&workplace, "refunds.made");
    let why = workplace.run(&[&["why", late.as_str()][..], &STORE].concat());
    assert!(why.code == 1 && why.stdout.contains("no route reads its topic `refunds.made`"), "{why:?}");
    assert!(why.stdout.contains("`orders` read it until 20") && why.stdout.contains("had not come to this"), "{why:?}");
    assert_eq!(workplace.run(&[&["why", refund.as_str()][..], &STORE].concat()).code, 0);
    let told = workplace.run(&[&["status"][..], &STORE].concat());
    assert!(told.stdout.contains("`refunds.made` (1)"), "one of two: {told:?}");
    workplace.write("refused.toml", config("\"orders.*\"", ""));
    let refused = workplace.run(&["run", "--config", "refused.toml"]);
    assert!(refused.code == 2 && refused.stderr.contains("`refunds.made`"), "{refused:?}");
}

/// Nobody knows any more, and nobody pretends to.
#[test]
fn what_a_forgotten_route_had_delivered_is_said_to_be_unknown() {
    let workplace = Workplace::new();
    drop(workplace.migrated());
    let order = enqueue(&workplace, "orders.placed");
    deliver(&workplace, "relay", &config("\"orders.*\"", ""), 1);
    let forgot = workplace.run(&[&["route", "forget", "orders"][..], &STORE].concat());
    assert_eq!(forgot.code, 0, "{forgot:?}");
    let why = workplace.run(&[&["why", order.as_str()][..], &STORE].concat());
    assert!(why.code == 1 && why.stdout.contains("whether `orders` had delivered it was forgotten"), "{why:?}");
}

/// The cursor stays where it is, so nobody delivers it, and a script that waits for it must not be told otherwise.
#[test]
fn what_was_there_before_its_topic_was_added_is_not_delivered() {
    let workplace = Workplace::new();
    drop(workplace.migrated());
    let early = enqueue(&workplace, "refunds.made");
    enqueue(&workplace, "orders.placed");
    deliver(&workplace, "narrow", &config("\"orders.*\"", "unrouted = \"allow\""), 1);
    let late = enqueue(&workplace, "orders.placed");
    deliver(&workplace, "wide", &config("\"orders.*\", \"refunds.*\"", ""), 2);
    let why = workplace.run(&[&["why", early.as_str()][..], &STORE].concat());
    assert!(why.code == 1 && why.stdout.contains("[perhaps-passed-over]"), "{why:?}");
    assert!(why.stdout.contains("postrider replay --route orders --topic refunds.made"), "{why:?}");
    assert_eq!(workplace.run(&[&["why", late.as_str()][..], &STORE].concat()).code, 0);
}

#[test]
fn what_waited_when_its_topic_was_taken_out_is_nobodys() {
    let workplace = Workplace::new();
    drop(workplace.migrated());
    enqueue(&workplace, "refunds.made");
    deliver(&workplace, "wide", &config("\"orders.*\", \"refunds.*\"", ""), 1);
    let waited = enqueue(&workplace, "refunds.made");
    workplace.write("narrow.toml", config("\"orders.*\"", ""));
    let refused = workplace.run(&["run", "--config", "narrow.toml"]);
    assert!(refused.code == 2 && refused.stderr.contains("`refunds.made`"), "{refused:?}");
    deliver(&workplace, "allowed", &config("\"orders.*\"", "unrouted = \"allow\""), 1);
    let why = workplace.run(&[&["why", waited.as_str()][..], &STORE].concat());
    assert!(why.code == 1 && why.stdout.contains("[no-route]"), "{why:?}");
    let told = workplace.run(&[&["status"][..], &STORE].concat());
    assert!(told.stdout.contains("`refunds.made` (1)"), "{told:?}");
}
