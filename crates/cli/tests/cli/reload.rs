//! SIGHUP, logs, several stores and what a start refuses: the daemon as its operator meets it.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering},
    },
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    admin::{free_port, get},
    support::{Workplace, wait_until},
};

fn config(more_relay: &str, more_route: &str, more: &str) -> String {
    format!(
        "[store]\nurl = \"sqlite:app.db\"\n[relay]\nheartbeat_every = \"200ms\"\n{more_relay}\n{more}\n\
         [[route]]\nname = \"orders\"\ntransport = \"file:arrivals.ndjson\"\n{more_route}\n"
    )
}

fn log(workplace: &Workplace, name: &str) -> String {
    fs::read_to_string(workplace.path(&format!("{name}.log"))).unwrap()
}

#[test]
fn a_reload_takes_what_it_can_and_names_what_needs_a_restart() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    producer.enqueue(400, 20);
    // At this rate all of them would take far longer than anybody waits for.
    let mut daemon = workplace.daemon("relay", &config("", "rate = 1", "[log]\nlevel = \"error\""));
    wait_until("some have arrived", || workplace.arrivals("arrivals.ndjson").len() >= 2);
    workplace.write("relay.toml", config("lease_life = \"30s\"", "topics = [\"orders.*\"]", "[log]\nlevel = \"info\""));
    daemon.signal(Signal::HUP);
    wait_until("all have arrived", || producer.all_arrived(&workplace.arrivals("arrivals.ndjson")));
    // Said when the routes are replaced, which may go on delivering before that.
    wait_until("it is said", || log(&workplace, "relay").contains("restart needed"));
    let told = log(&workplace, "relay");
    for word in
        ["changed=\"log.level, route.orders.rate\"", "restart needed", "keys=\"relay.lease_life, route.orders.topics\""]
    {
        assert!(told.contains(word), "{word}\n--- in ---\n{told}");
    }
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    let verdict = producer.verdict(&workplace.arrivals("arrivals.ndjson"));
    assert!(verdict.is_good() && verdict.duplicates == 0, "{verdict:?}");
}

#[test]
fn a_reload_of_a_wrong_file_changes_nothing_and_says_why() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    let daemon = workplace.daemon("relay", &config("", "", ""));
    producer.enqueue(10, 5);
    wait_until("all have arrived", || producer.all_arrived(&workplace.arrivals("arrivals.ndjson")));
    workplace.write("relay.toml", config("", "rates = 1", ""));
    daemon.signal(Signal::HUP);
    wait_until("it says so", || log(&workplace, "relay").contains("everything stays as it was"));
    let told = log(&workplace, "relay");
    assert!(told.contains("`route.rates` unknown key; did you mean `rate`?"), "{told}");
    producer.enqueue(10, 5);
    wait_until("all have arrived", || producer.all_arrived(&workplace.arrivals("arrivals.ndjson")));
}

#[test]
fn a_reload_opens_a_file_that_was_moved_away() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    let daemon = workplace.daemon("relay", &config("", "", ""));
    producer.enqueue(10, 5);
    wait_until("all have arrived", || producer.all_arrived(&workplace.arrivals("arrivals.ndjson")));
    fs::rename(workplace.path("arrivals.ndjson"), workplace.path("yesterday.ndjson")).unwrap();
    daemon.signal(Signal::HUP);
    wait_until("it is open again", || workplace.path("arrivals.ndjson").exists());
    wait_until("it says so", || log(&workplace, "relay").contains("read again"));
    producer.enqueue(10, 5);
    let all = || [workplace.arrivals("yesterday.ndjson"), workplace.arrivals("arrivals.ndjson")].concat();
    wait_until("all have arrived", || producer.all_arrived(&all()));
    assert!(!workplace.arrivals("arrivals.ndjson").is_empty());
    let verdict = producer.verdict(&all());
    assert!(verdict.is_good() && verdict.duplicates == 0, "{verdict:?}");
}

/// Answers every request with the status that is set, and counts those that were taken.
fn receiver(status: u16) -> (u16, Arc<AtomicU16>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (status, taken) = (Arc::new(AtomicU16::new(status)), Arc::new(AtomicUsize::new(0)));
    let (answer, count) = (Arc::clone(&status), Arc::clone(&taken));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream);
            let mut length = 0;
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = bytes.trim().parse().unwrap();
                }
                line.clear();
            }
            let _ = reader.read_exact(&mut vec![0; length]);
            let status = answer.load(Ordering::SeqCst);
            count.fetch_add(usize::from(status == 204), Ordering::SeqCst);
            let _ = write!(reader.get_mut(), "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        }
    });
    (port, status, taken)
}

/// A relay with the route `hook` to a receiver on this port, and where its metrics are.
fn hook(port: u16, listen: SocketAddr, breaker_max: &str) -> String {
    let http = format!("allow_http = true\nallow = [\"127.0.0.1/32\"]\nports = [{port}]\nunsigned = true");
    format!(
        "[store]\nurl = \"sqlite:app.db\"\n[relay]\nheartbeat_every = \"200ms\"\n[admin]\nlisten = \"{listen}\"\n\
         [[route]]\nname = \"hook\"\nbreaker_max = \"{breaker_max}\"\n\
         transport = \"http://127.0.0.1:{port}/\"\n[route.http]\n{http}\n"
    )
}

/// Whether the metrics say that the endpoint takes nothing.
fn wait_until_circuit_is(listen: SocketAddr, open: bool) {
    let sample = format!("postrider_circuit_open{{store=\"default\",route=\"hook\"}} {}\n", u8::from(open));
    wait_until(&sample, || get(listen, "/metrics", None).is_some_and(|(_, text)| text.contains(&sample)));
}

/// A restart alone must not deliver to it again: that it is gone is kept in the store.
#[test]
fn an_endpoint_that_is_gone_stays_disabled_until_somebody_resumes_its_route() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    let (port, status, taken) = receiver(410);
    let config = hook(port, free_port(), "200ms");
    let run = |arguments: &[&str]| {
        let done = workplace.run(&[arguments, &["--store", "sqlite:app.db"]].concat());
        assert_eq!(done.code, 0, "{done:?}");
        done.stdout
    };
    let mut daemon = workplace.daemon("relay", &config);
    producer.enqueue(3, 3);
    wait_until("it is said", || {
        let told = run(&["status"]);
        told.contains("paused by postrider: its endpoint has answered 410")
            && told.contains("postrider route resume hook")
    });
    assert!(run(&["audit", "list"]).contains("answered 410"), "and who has paused it is kept");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));

    status.store(204, Ordering::SeqCst);
    let _again = workplace.daemon("again", &config);
    wait_until("a lane is owned", || log(&workplace, "again").contains("lane acquired"));
    run(&["route", "drain", "hook"]);
    assert_eq!(taken.load(Ordering::SeqCst), 0, "nothing goes to it");
    run(&["route", "resume", "hook"]);
    wait_until("all have arrived", || taken.load(Ordering::SeqCst) == 3);
}

/// Also one that was down before, so that nothing was sent to it when its owner took it away.
#[test]
fn an_endpoint_that_was_gone_is_tried_again_by_the_same_relay() {
    for first in [410, 502] {
        let workplace = Workplace::new();
        let mut producer = workplace.migrated();
        let (port, status, taken) = receiver(first);
        let listen = free_port();
        let _daemon = workplace.daemon("relay", &hook(port, listen, "200ms"));
        producer.enqueue(3, 3);
        if first != 410 {
            wait_until_circuit_is(listen, true);
            status.store(410, Ordering::SeqCst);
        }
        wait_until("it is paused", || workplace.status()["routes"][0]["paused"]["name"] == "postrider");
        wait_until_circuit_is(listen, false);
        status.store(204, Ordering::SeqCst);
        for verb in ["drain", "resume"] {
            let done = workplace.run(&["route", verb, "hook", "--store", "sqlite:app.db"]);
            assert_eq!(done.code, 0, "{done:?}");
        }
        wait_until("all have arrived", || taken.load(Ordering::SeqCst) == 3);
        wait_until_circuit_is(listen, false);
    }
}

/// Whoever mends an endpoint at once need not wait for the relay to hear of the pause first.
#[test]
fn an_endpoint_that_was_gone_is_tried_again_also_if_nobody_has_seen_the_pause() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    let (port, status, taken) = receiver(410);
    let rarely = hook(port, free_port(), "200ms").replace("heartbeat_every = \"200ms\"", "heartbeat_every = \"5s\"");
    producer.enqueue(3, 3);
    let _daemon = workplace.daemon("relay", &rarely);
    wait_until("it is paused", || workplace.status()["routes"][0]["paused"]["name"] == "postrider");
    status.store(204, Ordering::SeqCst);
    let done = workplace.run(&["route", "resume", "hook", "--store", "sqlite:app.db"]);
    assert_eq!(done.code, 0, "{done:?}");
    wait_until("all have arrived", || taken.load(Ordering::SeqCst) == 3);
}

/// As somebody does it who has corrected a secret.
#[test]
fn an_outage_that_a_reload_ends_does_not_stay_in_the_metrics() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    let (port, status, taken) = receiver(401);
    let listen = free_port();
    // The next probe is far away: only the reload can end it.
    let daemon = workplace
        .daemon("relay", &hook(port, listen, "1h").replace("breaker_max", "breaker_first = \"1h\"\nbreaker_max"));
    producer.enqueue(3, 3);
    wait_until_circuit_is(listen, true);
    status.store(204, Ordering::SeqCst);
    workplace.write("relay.toml", hook(port, listen, "200ms"));
    daemon.signal(Signal::HUP);
    wait_until("all have arrived", || taken.load(Ordering::SeqCst) == 3);
    wait_until_circuit_is(listen, false);
}

#[test]
fn logs_can_be_objects() {
    let workplace = Workplace::new();
    drop(workplace.migrated());
    let mut daemon = workplace.daemon("relay", &config("", "", "[log]\nformat = \"json\""));
    wait_until("a lane is owned", || log(&workplace, "relay").contains("lane acquired"));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    let told = log(&workplace, "relay");
    let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let acquired = lines.iter().find(|line| line["message"] == "lane acquired").unwrap();
    assert_eq!((acquired["level"].as_str(), acquired["target"].as_str()), (Some("INFO"), Some("postrider::relay")));
    assert!(acquired["lane"].as_str().is_some_and(|lane| lane.starts_with("orders")), "{acquired}");
    assert!(lines.iter().any(|line| line["message"] == "relay has stopped"), "{told}");
}

#[test]
fn several_stores_are_served_by_one_process_and_drained_together() {
    let workplace = Workplace::new();
    let listen = free_port();
    let text = format!(
        "[[store]]\nname = \"shop\"\nurl = \"sqlite:app.db\"\n[[store]]\nname = \"stock\"\nurl = \"sqlite:stock.db\"\n\
         [relay]\nlease_life = \"2s\"\n[admin]\nlisten = \"{listen}\"\n\
         [[route]]\nname = \"billing\"\nstore = \"shop\"\ntransport = \"file:billing.ndjson\"\n\
         [[route]]\nname = \"warehouse\"\nstore = \"stock\"\ntransport = \"file:warehouse.ndjson\"\n"
    );
    let mut producer = workplace.migrated();
    let mut daemon = workplace.daemon("relay", &text);
    wait_until("the daemon is ready", || get(listen, "/readyz", None).is_some_and(|(status, _)| status == 200));
    producer.enqueue(20, 5);
    let message = ["enqueue", "--store", "sqlite:stock.db", "--topic", "stock", "--name", "moved", "--payload", "{}"];
    assert_eq!(workplace.run(&message).code, 0);
    wait_until("all have arrived", || producer.all_arrived(&workplace.arrivals("billing.ndjson")));
    wait_until("the other has arrived", || workplace.arrivals("warehouse.ndjson").len() == 1);
    let counted = |text: &str, store: &str, route: &str, count: u32| {
        text.contains(&format!("postrider_delivered_total{{store=\"{store}\",route=\"{route}\"}} {count}\n"))
    };
    wait_until("both are counted", || {
        let text = get(listen, "/metrics", None).unwrap().1;
        counted(&text, "shop", "billing", 20) && counted(&text, "stock", "warehouse", 1)
    });
    let health: Value = serde_json::from_str(&get(listen, "/healthz", None).unwrap().1).unwrap();
    assert_eq!(
        (health["stores"][0]["store"].as_str(), health["stores"][1]["store"].as_str()),
        (Some("shop"), Some("stock"))
    );
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    let told = log(&workplace, "relay");
    assert_eq!(told.matches("relay stopped").count(), 2, "{told}");
}

#[cfg(unix)]
fn write_secret(workplace: &Workplace, name: &str, secret: &str) {
    use std::os::unix::fs::PermissionsExt;
    workplace.write(name, secret);
    fs::set_permissions(workplace.path(name), fs::Permissions::from_mode(0o600)).unwrap();
}

/// As a volume with secrets does it: the configuration stays as it is, and what it names has changed.
#[test]
fn a_token_that_was_rotated_in_its_file_is_asked_for_and_a_store_that_was_is_named() {
    let workplace = Workplace::new();
    drop(workplace.migrated());
    let listen = free_port();
    let (old, new) = ("0123456789abcdef", "fedcba9876543210");
    write_secret(&workplace, "token", old);
    write_secret(&workplace, "url", "sqlite:app.db");
    let admin = format!("[admin]\nlisten = \"{listen}\"\ntoken = {{ file = \"token\" }}");
    let text = config("", "", &admin).replace("\"sqlite:app.db\"", "{ file = \"url\" }");
    let daemon = workplace.daemon("relay", &text);
    let answer = |token: &str| get(listen, "/metrics", Some(token)).map(|(status, _)| status);
    wait_until("the daemon is ready", || get(listen, "/readyz", None).is_some_and(|(status, _)| status == 200));
    assert_eq!((answer(old), answer(new)), (Some(200), Some(401)));
    write_secret(&workplace, "token", new);
    write_secret(&workplace, "url", "sqlite:./app.db");
    daemon.signal(Signal::HUP);
    wait_until("the new one is asked for", || answer(new) == Some(200));
    assert_eq!(answer(old), Some(401));
    wait_until("it is said", || log(&workplace, "relay").contains("restart needed"));
    let told = log(&workplace, "relay");
    assert!(told.contains("changed=\"admin.token\"") && told.contains("keys=\"store.url\""), "{told}");
    assert!(!told.contains(old) && !told.contains(new), "{told}");
    daemon.signal(Signal::HUP);
    wait_until("it is read once more", || log(&workplace, "relay").matches("was read again").count() == 2);
    assert!(log(&workplace, "relay").contains("changed=\"nothing\""), "what was taken is not told twice");
}

#[test]
fn a_section_of_a_route_that_is_taken_out_is_taken_at_once() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    let hook = "[route.http]\nunsigned = true\nallow_http = true";
    let text = config("", hook, "").replace("file:arrivals.ndjson", "http://hooks.example.com/");
    let daemon = workplace.daemon("relay", &text);
    wait_until("a lane is owned", || log(&workplace, "relay").contains("lane acquired"));
    workplace.write("relay.toml", config("", "", ""));
    daemon.signal(Signal::HUP);
    wait_until("it is read again", || log(&workplace, "relay").contains("was read again"));
    producer.enqueue(3, 1);
    wait_until("all have arrived", || producer.all_arrived(&workplace.arrivals("arrivals.ndjson")));
    let told = log(&workplace, "relay");
    for key in ["route.orders.transport", "route.orders.http.unsigned", "route.orders.http.timeout"] {
        assert!(told.contains(key), "{key} in {told}");
    }
    assert!(!told.contains("restart needed"), "{told}");
}

/// So many more records on a topic that every configuration here reads, in one statement.
fn fill(workplace: &Workplace, records: u32) {
    let connection = rusqlite::Connection::open(workplace.path("app.db")).unwrap();
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
               INSERT INTO postrider_log (id, topic, name, payload)
               SELECT randomblob(16), 'orders.placed', 'order.placed', '{}' FROM n";
    assert_eq!(connection.execute(sql, [records]).unwrap(), records as usize);
}

#[test]
fn a_topic_that_comes_up_later_is_told_by_the_log_the_doctor_and_the_metrics() {
    let workplace = Workplace::new();
    drop(workplace.migrated());
    let listen = free_port();
    let admin = format!("[admin]\nlisten = \"{listen}\"");
    let _daemon = workplace.daemon("relay", &config("", "topics = [\"orders.*\"]", &admin));
    wait_until("a lane is owned", || log(&workplace, "relay").contains("lane acquired"));
    let store = ["--store", "sqlite:app.db"];
    let healthy = workplace.run(&[&["doctor"], &store[..]].concat());
    assert!(!healthy.stdout.contains("no-route"), "{healthy:?}");
    let message = ["enqueue", "--topic", "refunds.made", "--name", "n", "--payload", "{}"];
    assert_eq!(workplace.run(&[&message[..], &store[..]].concat()).code, 0);
    fill(&workplace, 41_000);
    wait_until("the log says so", || {
        let told = log(&workplace, "relay");
        told.contains("no route reads this topic") && told.contains("refunds.made")
    });
    let sick = workplace.run(&[&["doctor"], &store[..]].concat());
    assert!(sick.stdout.contains("no-route: 1 topic") && sick.stdout.contains("`refunds.made` (1)"), "{sick:?}");
    assert!(workplace.run(&[&["status"], &store[..]].concat()).stdout.contains("`refunds.made` (1)"));
    wait_until("the metric says so", || {
        let text = get(listen, "/metrics", None).unwrap().1;
        text.contains("postrider_outbox_unrouted{store=\"default\"} 1\n")
    });
}

#[test]
fn a_topic_that_no_route_reads_is_refused_at_the_start() {
    let workplace = Workplace::new();
    drop(workplace.migrated());
    let enqueue = |topic: &str| {
        let message = ["enqueue", "--store", "sqlite:app.db", "--topic", topic, "--name", "n", "--payload", "{}"];
        assert_eq!(workplace.run(&message).code, 0);
    };
    enqueue("refunds.made");
    // However many came after it.
    workplace.producer().enqueue(20, 5);
    fill(&workplace, 41_000);
    let narrow = config("", "topics = [\"orders.*\"]", "");
    workplace.write("relay.toml", &narrow);
    let refused = workplace.run(&["run", "--config", "relay.toml"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    for word in ["`refunds.made`", "transport = \"discard\"", "unrouted = \"allow\""] {
        assert!(refused.stderr.contains(word), "{word} in {refused:?}");
    }
    assert!(!refused.stderr.contains("`orders.placed`"), "{refused:?}");
    let sink = "[[route]]\nname = \"rest\"\ntopics = [\"refunds.**\"]\ntransport = \"discard\"\n";
    // The last one: a route of another daemon reads it, and the store knows.
    for (name, text) in [
        ("allow", config("unrouted = \"allow\"", "topics = [\"orders.*\"]", "")),
        ("sink", format!("{narrow}{sink}")),
        ("other", narrow),
    ] {
        let mut daemon = workplace.daemon(name, &text);
        wait_until("a lane is owned", || log(&workplace, name).contains("lane acquired"));
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.wait().code(), Some(0));
    }
}

/// Where nothing is new the relay works beside the look at its log; what the look finds is an error all the same.
#[test]
fn a_topic_that_no_route_reads_is_refused_also_where_the_store_knows_every_route() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    let text = config("", "topics = [\"orders.*\"]", "");
    let mut first = workplace.daemon("first", &text);
    wait_until("a lane is owned", || log(&workplace, "first").contains("lane acquired"));
    first.signal(Signal::TERM);
    assert_eq!(first.wait().code(), Some(0));
    fill(&workplace, 41_000);
    let message = ["enqueue", "--store", "sqlite:app.db", "--topic", "refunds.made", "--name", "n", "--payload", "{}"];
    assert_eq!(workplace.run(&message).code, 0);
    let mut second = workplace.daemon("second", &text);
    assert_eq!(second.wait().code(), Some(2));
    let told = log(&workplace, "second");
    assert!(told.contains("`refunds.made`") && told.contains("unrouted = \"allow\""), "{told}");
    // Whatever it has published until then, the next one goes on there.
    let mut third = workplace.daemon("third", &config("unrouted = \"allow\"", "topics = [\"orders.*\"]", ""));
    producer.enqueue(10, 2);
    let arrived = || workplace.arrivals("arrivals.ndjson").into_iter().collect::<std::collections::BTreeSet<_>>().len();
    wait_until("all have arrived", || arrived() == 41_010);
    third.signal(Signal::TERM);
    assert_eq!(third.wait().code(), Some(0));
}
