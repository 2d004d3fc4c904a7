//! What watches from outside: `check`, `top`, `tail` and `bench`.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::Stdio,
    sync::mpsc,
    time::Duration,
};

use rusqlite::Connection;
use rustix::{
    fs::{Mode, OFlags},
    process::Signal,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use serde_json::Value;

use crate::{
    admin::{free_port, get},
    support::{Daemon, Workplace, wait_until},
};

const CONFIG: &str = r#"
[store]
url = "sqlite:app.db"
[relay]
name = "here"
lease_life = "60s"
heartbeat_every = "50ms"
[[route]]
name = "orders"
topics = ["orders.*"]
transport = "file:arrivals.ndjson"
"#;

#[test]
fn a_check_says_one_line_and_ends_with_a_code_of_monitoring_plugins() {
    let workplace = Workplace::new();
    let unknown = workplace.run(&["check"]);
    assert!(unknown.code == 3 && unknown.stdout.starts_with("POSTRIDER UNKNOWN - which store?"), "{unknown:?}");
    let nothing = workplace.run(&["check", "--prometheus"]);
    assert_eq!((nothing.code, &*nothing.stdout), (3, ""), "a file of metrics has nothing else in it");
    assert!(nothing.stderr.contains("which store?"), "{nothing:?}");
    let misused = workplace.run(&["check", "--age-warn", "soon"]);
    assert!(misused.code == 3 && misused.stderr.contains("--age-warn"), "{misused:?}");
    let gone = workplace.run(&["check", "--store", "sqlite:app.db"]);
    assert!(gone.code == 2 && gone.stdout.starts_with("POSTRIDER CRITICAL - there is no such database"), "{gone:?}");
    let gone = workplace.run(&["check", "--store", "sqlite:app.db", "--prometheus"]);
    assert!(gone.code == 2 && gone.stdout.contains("postrider_store_up{store=\"default\"} 0"), "{gone:?}");

    let mut producer = workplace.migrated();
    let alone = workplace.run(&["check", "--store", "sqlite:app.db"]);
    assert!(alone.code == 2 && alone.stdout.starts_with("POSTRIDER CRITICAL - no relay is alive"), "{alone:?}");
    let _daemon = workplace.daemon("postrider", CONFIG);
    wait_until("it is well", || workplace.run(&["check"]).code == 0);
    let well = workplace.run(&["check", "--age-warn", "90s"]).stdout;
    let (line, performance) = well.trim_end().split_once(" | ").unwrap();
    assert_eq!(line, "POSTRIDER OK - 1 relay alive, 0 pending, oldest 0.0s, 0 dead");
    assert!(performance.starts_with("oldest_age=0.000s;90;300;0 pending=0;;;0 dead=0;1;;0"), "{performance}");

    let expired = "INSERT INTO postrider_log (id, topic, name, expires_at, payload) \
                   VALUES (randomblob(16), 'orders.placed', 'n', 1, '')";
    Connection::open(workplace.path("app.db")).unwrap().execute(expired, []).unwrap();
    wait_until("it is dead", || workplace.run(&["check"]).code == 1);
    let dead = workplace.run(&["check"]).stdout;
    assert!(dead.starts_with("POSTRIDER WARNING") && dead.contains("[dead]"), "{dead}");
    assert_eq!(workplace.run(&["check", "--dead-crit", "1"]).code, 2);
    assert_eq!(workplace.run(&["check", "--dead-warn", "2"]).code, 0);

    assert_eq!(workplace.run(&["route", "drain", "orders"]).code, 0);
    producer.enqueue(10, 2);
    wait_until("it is too old", || workplace.run(&["check", "--age-crit", "1ms", "--dead-warn", "9"]).code == 2);
    let metrics = workplace.run(&["check", "--prometheus"]).stdout;
    assert!(metrics.contains("postrider_outbox_pending{store=\"default\",route=\"orders\"} 10"), "{metrics}");
    let kinds: Vec<&str> = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').nth(1)).collect();
    assert!(
        !kinds.is_empty() && kinds.iter().all(|kind| ["counter", "gauge", "histogram"].contains(kind)),
        "{metrics}"
    );
    assert!(!metrics.contains("# EOF") && !metrics.contains("# UNIT"), "{metrics}");
}

/// Its records are old from its first second on, whatever the relay does.
#[test]
fn a_replay_of_old_records_alarms_nobody() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    let listen = free_port();
    let _daemon = workplace.daemon("postrider", &format!("{CONFIG}[admin]\nlisten = \"{listen}\"\n"));
    producer.enqueue(1000, 2);
    wait_until("all have arrived", || producer.all_arrived(&workplace.arrivals("arrivals.ndjson")));
    wait_until("it is well", || workplace.run(&["check"]).code == 0);
    let older = "UPDATE postrider_log SET enqueued_at = enqueued_at - 7200000000";
    Connection::open(workplace.path("app.db")).unwrap().execute(older, []).unwrap();
    let replay = workplace.run(&["replay", "--route", "orders", "--rate", "1"]);
    assert_eq!(replay.code, 0, "{replay:?}");
    let status = workplace.status();
    let replay = status["routes"].as_array().unwrap().iter().find(|route| route["route"] != "orders").unwrap();
    assert!(replay["oldest_pending_age_seconds"].as_f64().is_some_and(|age| age > 7000.0), "{status}");
    let judged = workplace.run(&["check"]);
    assert!(judged.code == 0 && judged.stdout.contains("0 pending, oldest 0.0s"), "{judged:?}");
    let ages = |text: &str| text.lines().filter(|line| line.contains("oldest_pending_age_seconds{")).count();
    let (_, told) = get(listen, "/metrics", None).unwrap();
    assert_eq!(ages(&told), 1, "of the route and not of the replay: {told}");
    assert_eq!(ages(&workplace.run(&["check", "--prometheus"]).stdout), 1);
}

#[test]
fn a_check_calls_its_store_as_the_relays_do() {
    let workplace = Workplace::new();
    let routes = "[[route]]\nname = \"a\"\nstore = \"shop\"\ntransport = \"discard\"\n\
                  [[route]]\nname = \"b\"\nstore = \"depot\"\ntransport = \"discard\"\n";
    let stores = "[[store]]\nname = \"shop\"\nurl = \"sqlite:app.db\"\n\
                  [[store]]\nname = \"depot\"\nurl = \"sqlite:none.db\"\n";
    workplace.write("postrider.toml", format!("{stores}{routes}"));
    drop(workplace.migrated());
    let metrics = |arguments: &[&str]| workplace.run(&[&["check", "--prometheus"], arguments].concat()).stdout;
    let up = |store: &str, up: u8| format!("postrider_store_up{{store=\"{store}\"}} {up}\n");
    for (arguments, sample) in [
        (&["--store-name", "shop"][..], up("shop", 1)),
        (&["--store-name", "depot"], up("depot", 0)),
        (&["--store", "sqlite:app.db"], up("default", 1)),
    ] {
        let told = metrics(arguments);
        assert!(told.contains(&sample), "{arguments:?}: {told}");
    }
}

#[test]
fn top_prints_once_where_there_is_no_terminal() {
    let workplace = Workplace::new();
    workplace.migrated();
    let printed = workplace.run(&["top", "--store", "sqlite:app.db"]);
    assert_eq!(printed.code, 0, "{printed:?}");
    assert!(printed.stdout.ends_with("0 records in the log, 0 relays alive\n"), "{printed:?}");
}

#[test]
fn top_looks_again_and_again_until_q() {
    let workplace = Workplace::new();
    workplace.migrated();
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap();
    let terminal = || rustix::fs::open(&path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).map(Stdio::from).unwrap();
    let mut command = workplace.command(&["top", "--store", "sqlite:app.db", "--every", "100ms"]);
    let mut daemon = Daemon::around(command.stdin(terminal()).stdout(terminal()).spawn().unwrap());
    drop(command);
    let (sender, seen) = mpsc::channel();
    let mut screen = std::fs::File::from(master.try_clone().unwrap());
    std::thread::spawn(move || {
        let mut some = [0; 4096];
        while let Ok(count) = screen.read(&mut some) {
            if count == 0 || sender.send(some[..count].to_vec()).is_err() {
                break;
            }
        }
    });
    let mut text = String::new();
    wait_until("it has looked three times", || {
        text.extend(seen.try_iter().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()));
        text.matches("0 relays alive").count() >= 3
    });
    std::fs::File::from(master).write_all(b"q").unwrap();
    assert!(daemon.wait().success(), "{text}");
}

#[test]
fn tail_tells_of_what_comes_and_of_what_dies() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    let _daemon = workplace.daemon("postrider", CONFIG);
    producer.enqueue(5, 1);
    wait_until("they have arrived", || producer.all_arrived(&workplace.arrivals("arrivals.ndjson")));
    let mut command = workplace.command(&["tail", "--output", "ndjson", "--every", "20ms", "--topic", "orders.*"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let (sender, lines) = mpsc::channel();
    let out = BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || out.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok()));
    // What is there when it begins is not news, and when that is cannot be seen: so there is more until something is told.
    let mut next = || -> Value {
        let mut found = None;
        wait_until("something is told", || {
            found = lines.try_recv().ok();
            if found.is_none() {
                producer.enqueue(1, 1);
                found = lines.recv_timeout(Duration::from_millis(100)).ok();
            }
            found.is_some()
        });
        serde_json::from_str(&found.unwrap()).unwrap()
    };
    let first = next();
    assert_eq!((&first["event"], &first["topic"]), (&"enqueued".into(), &"orders.placed".into()), "{first}");
    let expired = "INSERT INTO postrider_log (id, topic, name, key, expires_at, payload) \
                   VALUES (randomblob(16), 'orders.late', 'n', 'k', 1, '')";
    let connection = Connection::open(workplace.path("app.db")).unwrap();
    connection.busy_timeout(Duration::from_secs(60)).unwrap();
    connection.execute(expired, []).unwrap();
    let mut dead = None;
    wait_until("its death is told", || {
        let told = next();
        dead = (told["event"] == "dead").then_some(told);
        dead.is_some()
    });
    let dead = dead.unwrap();
    assert_eq!((&dead["route"], &dead["cause"], &dead["key"]), (&"orders".into(), &"expired".into(), &"k".into()));
    child.kill().unwrap();
    child.wait().unwrap();
    let bounded = workplace.run(&["tail", "--for", "50ms", "--key", "nobody"]);
    assert_eq!((bounded.code, bounded.stdout.as_str()), (0, ""));
}

#[test]
fn a_topic_that_no_route_reads_is_a_warning() {
    let workplace = Workplace::new();
    drop(workplace.migrated());
    let _daemon = workplace.daemon("postrider", &CONFIG.replace("[relay]\n", "[relay]\nunrouted = \"allow\"\n"));
    wait_until("all is well", || workplace.run(&["check"]).code == 0);
    let unread = "INSERT INTO postrider_log (id, topic, name, payload) VALUES (randomblob(16), 'nobody', 'n', '')";
    let connection = Connection::open(workplace.path("app.db")).unwrap();
    connection.busy_timeout(Duration::from_secs(60)).unwrap();
    connection.execute(unread, []).unwrap();
    let judged = workplace.run(&["check"]);
    assert!(judged.code == 1 && judged.stdout.contains("no route reads"), "{judged:?}");
}

#[test]
fn a_bench_measures_and_leaves_nothing_behind() {
    let workplace = Workplace::new();
    let own = workplace.run(&["bench", "--messages", "500", "--output", "json"]);
    assert_eq!(own.code, 0, "{own:?}");
    let figures: Value = serde_json::from_str(&own.stdout).unwrap();
    for figure in ["enqueue_per_second", "drain_per_second", "latency_p50_ms"] {
        // How fast this machine is must not matter: what is over too soon has no rate.
        let told = figures.get(figure).unwrap_or_else(|| panic!("{figure} in {figures}"));
        assert!(told.as_f64().is_some_and(|value| value > 0.0) || told.is_null(), "{figure} in {figures}");
    }
    assert!(std::fs::read_dir(workplace.path("")).unwrap().next().is_none(), "nothing is made here");
    let names = workplace.run(&["bench", "--schema", "shop"]);
    assert!(names.code == 2 && names.stderr.contains("which store?"), "{names:?}");

    workplace.migrated();
    let given = workplace.run(&["bench", "--messages", "200", "--store", "sqlite:app.db"]);
    assert!(given.code == 0 && given.stdout.contains("relayed to nowhere"), "{given:?}");
    assert_eq!(workplace.status()["routes"], serde_json::json!([]), "its route is forgotten");
    workplace.write("bench.toml", CONFIG);
    let arguments =
        ["bench", "--messages", "200", "--config", "bench.toml", "--actor", "anna", "--reason", "a new disk"];
    let given = workplace.run(&arguments);
    assert_eq!(given.code, 0, "{given:?}");
    let acts = workplace.json(&["audit", "list", "--store", "sqlite:app.db"]);
    let acts: Vec<_> = acts.as_array().unwrap().iter().take(4).map(|act| (&act["action"], &act["actor"])).collect();
    let anna = Value::from("anna");
    assert_eq!(acts.iter().map(|(_, actor)| *actor).collect::<Vec<_>>(), [&anna; 4], "{acts:?}");
    assert_eq!(
        acts.iter().map(|(action, _)| action.as_str().unwrap()).collect::<Vec<_>>(),
        ["forget-route", "resume", "enqueue", "pause"]
    );
    let enqueued = &workplace.json(&["audit", "list", "--store", "sqlite:app.db"])[2];
    assert_eq!(enqueued["reason"], "a benchmark: 300 messages in all: a new disk", "{enqueued}");
    let mut narrow = workplace.daemon("narrow", CONFIG);
    wait_until("its records keep no relay from starting", || workplace.status()["routes"][0]["state"] == "running");
    narrow.signal(Signal::TERM);
    assert!(narrow.wait().success());
    let everything = CONFIG.replace("topics = [\"orders.*\"]", "topics = [\"**\"]");
    let _daemon = workplace.daemon("postrider", &everything);
    wait_until("the route is known", || workplace.status()["routes"][0]["topics"] == "**");
    let refused = workplace.run(&["bench", "--store", "sqlite:app.db"]);
    assert!(refused.code == 4 && refused.stderr.contains("is read by orders"), "{refused:?}");
}
