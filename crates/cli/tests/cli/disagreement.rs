//! Two daemons that serve one route and have different files, as in a roll-out, a roll-back, or with a replica that was
//! forgotten: what one of them reads is not passed over because the other does not know it.

use rustix::process::Signal;

use crate::support::{Daemon, Workplace, wait_until};

const CONFIG: &str = r#"
[store]
url = "sqlite:app.db"
[relay]
name = "NAME"
lease_life = "60s"
heartbeat_every = "50ms"
[[route]]
name = "billing"
topics = TOPICS
transport = "file:NAME.ndjson"
"#;

const OLD: (&str, &str) = ("old", r#"["orders.*"]"#);
const NEW: (&str, &str) = ("new", r#"["orders.*", "refunds.*"]"#);

fn start(workplace: &Workplace, (name, topics): (&str, &str)) -> Daemon {
    let daemon = workplace.daemon(name, &CONFIG.replace("NAME", name).replace("TOPICS", topics));
    let is_there = || {
        let status = workplace.status();
        status["nodes"].as_array().is_some_and(|nodes| nodes.iter().any(|node| node["name"] == name))
    };
    wait_until("the daemon is there", is_there);
    daemon
}

fn topics(workplace: &Workplace) -> String {
    workplace.status()["routes"][0]["topics"].as_str().unwrap().to_owned()
}

fn refund(workplace: &Workplace) {
    let said = ["--topic", "refunds.made", "--name", "refund.made", "--payload", "{}"];
    let enqueued = workplace.run(&[&["enqueue", "--store", "sqlite:app.db"], &said[..]].concat());
    assert_eq!(enqueued.code, 0, "{enqueued:?}");
}

fn arrived(workplace: &Workplace) -> usize {
    ["old.ndjson", "new.ndjson"].iter().map(|file| workplace.arrivals(file).len()).sum()
}

#[test]
fn a_daemon_with_an_older_file_makes_nobody_pass_over_a_topic() {
    let workplace = Workplace::new();
    drop(workplace.migrated());
    let mut new = start(&workplace, NEW);
    let mut old = start(&workplace, OLD);
    assert_eq!(topics(&workplace), "orders.*, refunds.*");
    refund(&workplace);
    wait_until("it has arrived, by whom ever", || arrived(&workplace) == 1);
    wait_until("the one with the older file says so", || {
        let told = std::fs::read_to_string(workplace.path("old.log")).unwrap();
        told.contains("another process serves this route") && told.contains("refunds.*")
    });

    old.signal(Signal::HUP);
    refund(&workplace);
    wait_until("a file that is read again changes nothing of it", || arrived(&workplace) == 2);
    old.signal(Signal::TERM);
    assert!(old.wait().success());
    refund(&workplace);
    wait_until("the one that is left has it", || arrived(&workplace) == 3);

    new.signal(Signal::TERM);
    assert!(new.wait().success());
    let narrow = CONFIG.replace("[relay]", "[relay]\nunrouted = \"allow\"");
    let _alone = workplace.daemon("alone", &narrow.replace("NAME", "alone").replace("TOPICS", OLD.1));
    wait_until("what nobody reads any more is taken out", || topics(&workplace) == "orders.*");
}
