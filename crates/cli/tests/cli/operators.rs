//! What operators do next to a relay that runs: no store is named, the relay's own file is there.

use postrider::MessageId;
use rusqlite::Connection;
use serde_json::Value;

use crate::support::{Daemon, Finished, Producer, Workplace, wait_until};

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
retry = { attempts_max = 1 }
[[route]]
name = "rebuild"
topics = ["rebuild"]
transport = "file:rebuilt.ndjson"
"#;

/// A place with a relay whose file is the one that is looked for.
struct Site {
    workplace: Workplace,
    daemon: Daemon,
    producer: Producer,
}

impl Site {
    fn new() -> Self {
        Self::with(CONFIG)
    }

    fn with(config: &str) -> Self {
        let workplace = Workplace::new();
        let producer = workplace.migrated();
        let daemon = workplace.daemon("postrider", config);
        wait_until("the routes are owned", || {
            let status = workplace.status();
            let routes = status["routes"].as_array().cloned().unwrap_or_default();
            routes.len() == 2 && routes.iter().all(|route| !route["lanes"][0]["owner"].is_null())
        });
        Self { workplace, daemon, producer }
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        self.workplace.run(arguments)
    }

    /// What a command answers in JSON.
    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        self.workplace.json(arguments)
    }

    fn delivered(&mut self, messages: u64, keys: u64) {
        self.producer.enqueue(messages, keys);
        wait_until("all have arrived", || self.producer.all_arrived(&self.workplace.arrivals("arrivals.ndjson")));
        wait_until("all are settled", || self.json(&["route", "list"])[0]["pending"] == 0);
    }

    /// Messages that have expired before they are read, which is dead at once. They hold nothing up.
    fn dead(&self, keys: &[&str]) -> Vec<String> {
        self.insert(keys, 1, "{\"tenant\":\"7\"}")
    }

    /// Messages whose headers no transport can read: refused, given up, and each holds up its key.
    fn blocking(&self, keys: &[&str]) -> Vec<String> {
        self.insert(keys, i64::MAX, "[1]")
    }

    fn insert(&self, keys: &[&str], expires_at: i64, headers: &str) -> Vec<String> {
        let connection = Connection::open(self.workplace.path("app.db")).unwrap();
        connection.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
        let before = self.dead_count();
        let mut ids = Vec::new();
        for key in keys {
            let id = MessageId::generate();
            let sql = "INSERT INTO postrider_log (id, topic, name, key, expires_at, payload, headers) \
                       VALUES (?1, 'orders.placed', 'order.placed', ?2, ?3, '{\"cents\":990}', ?4)";
            connection.execute(sql, (id.0.as_bytes(), key, expires_at, headers)).unwrap();
            ids.push(id.to_string());
        }
        wait_until("they are dead", || self.dead_count() == before + keys.len() as u64);
        ids
    }

    fn dead_count(&self) -> u64 {
        self.workplace.status()["routes"][0]["parked"]["dead"].as_u64().unwrap()
    }

    /// The newest entry of the audit record: action, subject, actor and reason.
    fn last_act(&self) -> [String; 4] {
        let entry = self.json(&["audit", "list", "--limit", "1"])[0].clone();
        ["action", "subject", "actor", "reason"].map(|field| entry[field].as_str().unwrap_or("-").to_owned())
    }
}

#[test]
fn messages_are_listed_shown_and_traced() {
    let mut site = Site::new();
    site.delivered(25, 5);
    let first = site.json(&["message", "list", "--limit", "10"]);
    assert_eq!(first["messages"].as_array().map(Vec::len), Some(10));
    let newest = &first["messages"][0];
    assert_eq!((&newest["state"], &newest["routes"][0]["route"]), (&"passed".into(), &"orders".into()));
    let next = first["next"].as_str().unwrap();
    let rest = site.json(&["message", "list", "--limit", "1000", "--after", next]);
    assert_eq!((rest["messages"].as_array().map(Vec::len), &rest["next"]), (Some(15), &Value::Null));
    let oldest = site.run(&["message", "list", "--oldest-first", "--limit", "1", "--output", "ndjson"]);
    let oldest: Value = serde_json::from_str(&oldest.stdout).unwrap();
    assert_eq!(oldest["id"], site.producer.enqueued[0].id.to_string());
    let count =
        |more: &[&str]| site.json(&[&["message", "list"], more].concat())["messages"].as_array().map(Vec::len).unwrap();
    assert_eq!(count(&["--key", "key-1"]), 5);
    assert_eq!(count(&["--topic", "orders.*", "--name", "order.placed", "--since", "1h", "--route", "orders"]), 25);
    assert_eq!(count(&["--until", "1h"]), 0);
    assert_eq!((count(&["--state", "waiting"]), count(&["--state", "unrouted"])), (0, 0));
    assert_eq!(site.run(&["message", "list", "--limit", "1001"]).code, 2, "a page has a limit");

    let id = site.producer.enqueued[0].id.to_string();
    let message = site.json(&["message", "get", &id]);
    assert_eq!((&message["key"], &message["in_log"]), (&"key-0".into(), &true.into()));
    assert_eq!(message["routes"][0], serde_json::json!({ "route": "orders", "state": "passed" }));
    assert!(message.get("payload").is_none(), "a payload is not shown unless it is asked for");
    assert_eq!(site.json(&["message", "get", &id, "--payload"])["payload"]["sequence"], 0);
    assert!(message.get("headers").is_none(), "nor are headers: {message}");
    let text = site.run(&["message", "get", &id]).stdout;
    assert!(text.starts_with(&format!("message          {id}\nenqueued at      ")), "{text}");
    assert!(text.contains("bytes (--payload shows them)") && text.ends_with("orders  passed\n"), "{text}");
    let unknown = site.run(&["message", "get", &MessageId::generate().to_string()]);
    assert!(unknown.code == 1 && unknown.stderr.contains("is not in the store"), "{unknown:?}");

    let dead = site.dead(&["late"]).remove(0);
    for command in [&["message", "get", &*dead][..], &["message", "trace", &dead], &["dead", "show", &dead]] {
        for (asked, shows) in [(None, false), (Some("--payload"), true)] {
            let command: Vec<&str> = command.iter().copied().chain(asked).collect();
            let (text, json) = (site.run(&command).stdout, site.json(&command).to_string());
            assert_eq!(text.contains("header tenant"), shows, "{command:?}: {text}");
            assert_eq!(json.contains(r#""headers":{"tenant":"7"}"#), shows, "{command:?}: {json}");
            assert_eq!(json.contains("tenant"), shows, "{command:?}: {json}");
        }
    }
    let steps = site.json(&["message", "trace", &dead])["steps"].clone();
    let told: Vec<_> = steps.as_array().unwrap().iter().map(|step| step["what"].as_str().unwrap()).collect();
    assert_eq!(told, ["enqueued", "dead"], "{steps}");
    assert!(steps[1]["detail"].as_str().unwrap().contains("expired"), "{steps}");
    assert_eq!(site.run(&["dead", "discard", "--route", "orders", "--id", &dead, "--reason", "too late"]).code, 0);
    let why = site.json(&["why", &dead]);
    assert_eq!(why[0]["code"], "discarded", "{why}");
    assert!(why[0]["what"].as_str().unwrap().contains("too late"), "{why}");
    assert_eq!(site.run(&["why", &dead]).code, 1, "that it waits no longer does not mean that it was delivered");
    assert_eq!((&site.json(&["why", &id])[0]["code"], site.run(&["why", &id]).code), (&"passed".into(), 0));
    let text = site.run(&["message", "trace", &dead]).stdout;
    assert!(text.contains("discarded") && text.contains("too late"), "{text}");
    let other = site.json(&["message", "trace", &id])["steps"].clone();
    assert!(!other.to_string().contains(&dead), "what was done to another message is not told of this one: {other}");
    let parked = site.dead(&["bulk", "held"]);
    assert_eq!(site.run(&["dead", "discard", "--id", &parked[0], "--yes"]).code, 0);
    assert_eq!(site.run(&["dead", "discard", "--route", "orders", "--key", "held", "--yes"]).code, 0);
    assert_eq!(site.run(&["why", &id]).code, 0, "nobody gave up its key");
    let parked = site.dead(&["all"]).remove(0);
    assert_eq!(site.run(&["dead", "discard", "--route", "orders", "--yes"]).code, 0);
    let why = site.json(&["why", &parked]);
    assert_eq!((&why[0]["code"], site.run(&["why", &parked]).code), (&"discarded".into(), 1), "{why}");
    assert_eq!(site.run(&["why", &id]).code, 0, "it was not among them");
    let acts = site.json(&["audit", "list", "--id", &parked]);
    assert_eq!((acts.as_array().map(Vec::len), &acts[0]["action"]), (Some(1), &"discard".into()), "{acts}");
    assert!(acts[0]["subject"].as_str().unwrap().contains(&parked), "each message is named: {acts}");
    assert_eq!(site.json(&["audit", "list", "--id", &id]), serde_json::json!([]), "nobody did anything to this one");
    let listed = site.run(&["audit", "list", "--id", &parked]).stdout;
    assert!(listed.contains("1 rows of state dead, route orders, places ") && !listed.contains(&parked), "{listed}");
    site.delivered(1, 1);
    let later = site.producer.enqueued.iter().rfind(|one| one.committed).unwrap().id.to_string();
    assert_eq!(site.run(&["why", &later]).code, 0, "what came later cannot have been among them");
    let what = |id: &str| {
        let steps = site.json(&["message", "trace", id])["steps"].clone();
        steps.as_array().unwrap().iter().map(|step| step["what"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(!what(&id).contains(&"discarded".to_owned()), "nobody discarded what was delivered: {:?}", what(&id));
    assert!(what(&parked).contains(&"discarded".to_owned()), "it was among them: {:?}", what(&parked));
    let parked = site.dead(&["held"]).remove(0);
    let listed = site.json(&["message", "list", "--state", "dead"]);
    assert_eq!(listed["messages"][0]["id"], parked, "{listed}");
}

#[test]
fn the_dead_are_counted_before_they_are_changed() {
    let site = Site::new();
    let ids = site.dead(&["a", "b", "c", "d", "e"]);
    let groups = site.json(&["dead", "groups"]);
    assert_eq!(
        (&groups[0]["count"], &groups[0]["cause"], &groups[0]["route"]),
        (&5.into(), &"expired".into(), &"orders".into())
    );
    assert!(site.run(&["dead", "groups"]).stdout.ends_with("5 dead\n"));

    let shown = site.json(&["dead", "show", &ids[0], "--payload"]);
    assert_eq!((&shown[0]["payload"]["cents"], &shown[0]["headers"]["tenant"]), (&990.into(), &"7".into()), "{shown}");
    assert_eq!((&shown[0]["head"], &shown[0]["cause"]), (&false.into(), &"expired".into()));
    let other = site.run(&["dead", "show", &MessageId::generate().to_string()]);
    assert!(other.code == 1 && other.stderr.contains("no route has given up"), "{other:?}");
    let parked_at = shown[0]["parked_at"].clone();
    assert!(parked_at.is_string(), "{shown}");
    let exported = site.run(&["dead", "export", "--route", "orders"]).stdout;
    let lines: Vec<Value> = exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().map(|line| line["id"].as_str().unwrap()).collect::<Vec<_>>(), ids);
    assert!(lines.iter().all(|line| line["payload"]["cents"] == 990));
    assert_eq!(lines[0]["parked_at"], parked_at, "whenever somebody looks");

    let dry = site.run(&["dead", "discard", "--route", "orders"]);
    assert_eq!(
        dry.stdout,
        "would discard 5 messages: state dead, route orders\nnothing was changed; do it with --yes\n"
    );
    assert_eq!((dry.code, site.dead_count()), (0, 5));
    assert_eq!(site.last_act()[0], "migrate", "a look leaves no trace");
    let one = site.run(&["dead", "discard", "--id", &ids[0], "--reason", "first"]);
    assert_eq!((one.code, one.stdout.as_str(), site.dead_count()), (0, "1 discarded\n", 4));
    let subject = format!("1 rows of state dead, route orders, message {}", ids[0]);
    assert_eq!(site.last_act()[..2], ["discard".to_owned(), subject]);
    assert_eq!(site.last_act()[3], "first");
    let slowly = site.run(&["dead", "redrive", "--all", "--yes", "--rate", "3", "--actor", "anna"]);
    assert_eq!((slowly.code, slowly.stdout.as_str()), (0, "4 redriven\n"), "{slowly:?}");
    let [action, subject, actor, _] = site.last_act();
    assert_eq!((action.as_str(), actor.as_str()), ("redrive", "anna"));
    assert!(subject.starts_with("1 rows of state dead, route orders, places "), "three, then one: {subject}");
    wait_until("they have expired again", || site.dead_count() == 4);
    let all = site.run(&["dead", "discard", "--cause", "expired", "--yes"]);
    assert_eq!((all.code, all.stdout.as_str(), site.dead_count()), (0, "4 discarded\n", 0));
    for id in &ids {
        let acts = site.json(&["audit", "list", "--id", id]);
        assert_eq!(acts[0]["action"], "discard", "what became of each is found later: {acts}");
    }
    assert_eq!(site.run(&["dead", "discard", "--cause", "expired", "--yes"]).code, 1, "nothing is left");
}

#[test]
fn what_changes_something_answers_in_json_too() {
    let site = Site::new();
    let message = ["enqueue", "--topic", "orders.placed", "--name", "order.paid", "--payload", "{}"];
    let enqueued = site.json(&[&message[..], &["--actor", "ada", "--reason", "a trial"]].concat());
    wait_until("it has arrived", || {
        site.workplace.arrivals("arrivals.ndjson").iter().any(|id| enqueued["id"] == id.to_string())
    });
    let subject = |id: &Value| format!("message {}, topic orders.placed", id.as_str().unwrap());
    assert_eq!(site.last_act(), ["enqueue", &subject(&enqueued["id"]), "ada", "a trial"]);
    let tried = site.json(&["route", "test", "orders", "--topic", "orders.placed", "--actor", "ada"]);
    assert_eq!(site.last_act(), ["enqueue", &subject(&tried["id"]), "ada", "-"]);
    let state = |state: &str| serde_json::json!({ "route": "orders", "state": state });
    assert_eq!(site.json(&["route", "drain", "orders"]), state("drained"));
    let expired = ["enqueue", "--topic", "orders.late", "--name", "n", "--payload", "", "--expires-in", "1ms"];
    let id = site.json(&[&expired[..], &["--attempts-max", "2"]].concat())["id"].as_str().unwrap().to_owned();
    assert_eq!(site.json(&["route", "resume", "orders"]), state("resumed"));
    wait_until("it came too late", || site.dead_count() == 1);
    assert_eq!(site.json(&["message", "get", &id])["attempts_max"], 2);

    let dry = serde_json::json!({ "dry_run": true, "would_change": 1 });
    assert_eq!(site.json(&["dead", "discard", "--route", "orders"]), dry);
    assert_eq!(site.json(&["dead", "redrive", "--id", &id]), serde_json::json!({ "redriven": 1 }));
    wait_until("it is too late again", || site.dead_count() == 1);
    assert_eq!(site.json(&["dead", "discard", "--all", "--yes"]), serde_json::json!({ "discarded": 1 }));
    let head = site.blocking(&["4711"]).remove(0);
    let skipped = serde_json::json!({ "route": "orders", "key": "4711", "discarded": head });
    assert_eq!(site.json(&["key", "skip", "4711"]), skipped);

    for (verb, told) in [("pause", "paused"), ("resume", "resumed")] {
        assert_eq!(site.json(&["route", verb, "orders"]), state(told));
    }
    let dry = site.json(&["replay", "--route", "orders", "--to", "rebuild", "--dry-run"]);
    assert_eq!((&dry["dry_run"], &dry["through"]), (&true.into(), &"rebuild".into()), "{dry}");
    let replay = site.json(&["replay", "--route", "orders", "--rate", "1"])["replay"].as_str().unwrap().to_owned();
    let cancelled = serde_json::json!({ "replay": replay, "state": "cancelled" });
    assert_eq!(site.json(&["replay", "cancel", &replay]), cancelled);

    assert_eq!(site.json(&["migrate", "up"]), serde_json::json!([]));
    let migrated = site.json(&["migrate", "status"]);
    assert!(migrated[0]["version"] == 1 && migrated[0]["applied_at"].is_string(), "{migrated}");
    assert_eq!(site.json(&["config", "check"])["routes"], serde_json::json!(["orders", "rebuild"]));
    let status = site.json(&["top"]);
    let lane = &status["routes"][0]["lanes"][0];
    assert_eq!((&lane["owner_name"], &status["nodes"][0]["name"]), (&"here".into(), &"here".into()), "{status}");
    assert!(lane["expires_in_seconds"].is_number() && status["nodes"][0]["heartbeat_age_seconds"].is_number());
    let checked = site.json(&["check"]);
    assert_eq!((&checked["level"], &checked["relays"]), (&"OK".into(), &1.into()), "{checked}");
    assert_eq!(site.json(&["node", "drain", "here"])["leaving"], true);
}

#[test]
fn a_key_that_stands_still_is_resumed_and_skipped() {
    let site = Site::new();
    let head = site.blocking(&["4711"]).remove(0);
    let held = ["enqueue", "--topic", "orders.placed", "--name", "order.paid", "--key", "4711", "--payload", "{}"];
    let held = site.run(&held).stdout.trim_end().to_owned();
    wait_until("it is held", || site.json(&["key", "parked"])[0]["waiting"] == 1);
    let keys = site.json(&["key", "parked", "--route", "orders"]);
    assert_eq!((&keys[0]["key"], &keys[0]["head"]), (&"4711".into(), &head.clone().into()), "{keys}");
    assert!(site.run(&["key", "parked"]).stdout.ends_with("1 key stands still\n"));
    assert_eq!(site.json(&["key", "parked", "--route", "rebuild"]), serde_json::json!([]));

    let resumed = site.run(&["key", "resume", "4711", "--reason", "again"]);
    assert_eq!((resumed.code, resumed.stdout), (0, format!("{head} is tried again on orders\n")));
    assert_eq!((&*site.last_act()[0], &*site.last_act()[3]), ("redrive", "again"));
    wait_until("it was refused again", || site.json(&["key", "parked"])[0]["head"] == head);
    let skipped = site.run(&["key", "skip", "4711", "--route", "orders", "--reason", "enough"]);
    assert_eq!((skipped.code, skipped.stdout), (0, format!("{head} is given up on orders; its key goes on\n")));
    assert_eq!((&*site.last_act()[0], &*site.last_act()[3]), ("discard", "enough"));
    wait_until("the key goes on", || {
        site.workplace.arrivals("arrivals.ndjson").iter().any(|id| id.to_string() == held)
    });
    let nothing = site.run(&["key", "skip", "4711"]);
    assert!(nothing.code == 1 && nothing.stderr.contains("does not stand still"), "{nothing:?}");
}

/// Such a route has one line, and one head stops every key.
#[test]
fn a_head_in_total_order_is_found_by_any_key_and_by_none() {
    let site = Site::with(&CONFIG.replace("topics = [\"orders.*\"]", "topics = [\"orders.*\"]\norder = \"total\""));
    let head = site.blocking(&["a"]).remove(0);
    assert!(site.run(&["key", "parked"]).stdout.contains("a (all: total order)"));
    let told =
        |verb: &str, end: &str| format!("{head} {verb} on orders, whose order is total (its own key is `a`){end}\n");
    for arguments in [&["key", "resume", "b"][..], &["key", "resume", "--route", "orders"]] {
        let resumed = site.run(arguments);
        assert_eq!((resumed.code, resumed.stdout), (0, told("is tried again", "")), "{arguments:?}");
        wait_until("it was refused again", || site.json(&["key", "parked"])[0]["head"] == head);
    }
    let keyed = site.run(&["key", "resume", "--route", "rebuild"]);
    assert!(keyed.code == 2 && keyed.stderr.contains("say which key"), "{keyed:?}");
    assert_eq!(site.run(&["key", "resume"]).code, 2);
    let skipped = site.run(&["key", "skip", "b", "--route", "orders"]);
    assert_eq!((skipped.code, skipped.stdout), (0, told("is given up", "; the route goes on")));
    let nothing = site.run(&["key", "skip", "--route", "orders"]);
    assert!(nothing.code == 1 && nothing.stderr.contains("the route does not stand still"), "{nothing:?}");
}

#[test]
fn a_head_that_somebody_else_decided_about_is_not_said_to_be_changed() {
    let site = Site::new();
    let head = site.blocking(&["4711"]).remove(0);
    // As if it had gone between the look and the change: the row is there for the one and not for the other.
    let connection = Connection::open(site.workplace.path("app.db")).unwrap();
    connection.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
    let stubborn = "CREATE TRIGGER faster BEFORE DELETE ON postrider_parked BEGIN SELECT RAISE(IGNORE); END";
    connection.execute(stubborn, []).unwrap();
    let late = site.run(&["key", "skip", "4711"]);
    let told = format!("error: nothing was changed: message {head} is no longer dead on orders");
    assert!(late.code == 1 && late.stdout.is_empty() && late.stderr.starts_with(&told), "{late:?}");
}

#[test]
fn a_replay_is_counted_sent_elsewhere_listed_and_cancelled() {
    let mut site = Site::new();
    site.delivered(20, 4);
    let dry = site.run(&["replay", "--route", "orders", "--key", "key-1", "--dry-run"]);
    assert_eq!(dry.stdout, "would deliver 5 messages again through orders: key key-1\nnothing was started\n");
    assert_eq!((dry.code, site.json(&["replay", "list"])), (0, serde_json::json!([])));
    let elsewhere = site.run(&["replay", "--route", "orders", "--to", "rebuild", "--name", "order.placed"]);
    assert_eq!(elsewhere.code, 0, "{elsewhere:?}");
    wait_until("they are on the other side", || site.workplace.arrivals("rebuilt.ndjson").len() == 20);
    assert_eq!(site.workplace.arrivals("arrivals.ndjson").len(), 20, "and not where they were");
    let [action, subject, ..] = site.last_act();
    assert_eq!(action, "replay");
    assert!(subject.ends_with(": name order.placed, to rebuild"), "{subject}");
    let nowhere = site.run(&["replay", "--route", "orders", "--to", "gone"]);
    assert!(nowhere.code == 1 && nowhere.stderr.contains("there is no route `gone`"), "{nowhere:?}");
    assert_eq!(site.run(&["replay", "--route", "gone", "--dry-run"]).code, 1);
    assert_eq!(site.run(&["replay"]).code, 2);

    let slow = site.run(&["replay", "--route", "orders", "--rate", "1"]).stdout;
    let name = slow.split(' ').next().unwrap();
    let listed = site.json(&["replay", "list"]);
    assert_eq!((&listed[0]["replay"], &listed[0]["through"]), (&name.into(), &"orders".into()), "{listed}");
    let cancelled = site.run(&["replay", "cancel", name, "--reason", "enough"]);
    assert_eq!((cancelled.code, cancelled.stdout), (0, format!("{name} is cancelled\n")));
    assert_eq!(site.last_act()[..2], ["cancel-replay".to_owned(), name.to_owned()]);
    assert_eq!(site.json(&["replay", "list"]), serde_json::json!([]));
}

#[test]
fn a_route_is_listed_tried_out_drained_and_forgotten() {
    let site = Site::new();
    let routes = site.json(&["route", "list"]);
    assert_eq!((&routes[0]["topics"], &routes[0]["state"]), (&"orders.*".into(), &"running".into()), "{routes}");
    let tried = site.json(&["route", "test", "orders"]);
    assert_eq!((&tried["delivered"], &tried["topic"]), (&true.into(), &"orders.probe".into()), "{tried}");
    let arrived = std::fs::read_to_string(site.workplace.path("arrivals.ndjson")).unwrap();
    let arrived: Value = serde_json::from_str(arrived.lines().next().unwrap()).unwrap();
    assert_eq!((&arrived["id"], &arrived["headers"]["postrider-probe"]), (&tried["id"], &"orders".into()));
    let text = site.run(&["route", "test", "orders", "--topic", "orders.placed"]);
    assert!(text.code == 0 && text.stdout.contains("delivered and settled by orders after "), "{text:?}");
    let other = site.run(&["route", "test", "orders", "--topic", "payments"]);
    assert!(other.code == 2 && other.stderr.contains("does not read the topic"), "{other:?}");

    let drained = site.run(&["route", "drain", "orders", "--reason", "broker upgrade"]);
    assert_eq!((drained.code, drained.stdout.as_str()), (0, "orders is paused and nothing of it is in flight\n"));
    assert_eq!((&*site.last_act()[0], &*site.last_act()[3]), ("pause", "broker upgrade"));
    let records = site.workplace.status()["records"].clone();
    let paused = site.run(&["route", "test", "orders"]);
    assert!(paused.code == 1 && paused.stderr.contains("nothing was enqueued") && paused.stderr.contains("paused"));
    assert_eq!(site.workplace.status()["records"], records, "and indeed nothing was");
    assert_eq!(site.run(&["route", "resume", "orders"]).code, 0);
    assert_eq!(&*site.last_act()[0], "resume");
    assert_eq!(site.json(&["route", "test", "orders"])["delivered"], true, "it goes on");
    drop(site.daemon);
    let waiting = ["enqueue", "--topic", "rebuild", "--name", "n", "--payload", "{}"];
    assert_eq!(site.workplace.run(&waiting).code, 0);
    let would = "would forget rebuild with 0 parked messages and a cursor that has at least 1 before it\n\
                 nothing was changed; do it with --yes\n";
    // As if its leases were over.
    let over = "UPDATE postrider_node SET seen_at = seen_at - 120000000;
                UPDATE postrider_lane SET expires_at = expires_at - 120000000";
    Connection::open(site.workplace.path("app.db")).unwrap().execute_batch(over).unwrap();
    assert_eq!(
        site.workplace.run(&["route", "forget", "rebuild"]).stdout,
        would,
        "a relay that was killed is not live"
    );
    let forgotten = site.workplace.run(&["route", "forget", "rebuild", "--yes", "--reason", "done"]);
    assert_eq!(forgotten.code, 0, "{forgotten:?}");
    let audit = site.workplace.run(&["audit", "list", "--limit", "1"]).stdout;
    assert!(audit.contains("forget-route") && audit.contains("done"), "{audit}");
}

/// Containers and cron have no `USER`.
#[test]
fn an_act_without_a_name_is_that_of_the_user_who_runs_the_command() {
    let site = Site::new();
    let mut pause = site.workplace.command(&["route", "pause", "orders"]);
    let paused = pause.env_remove("USER").env_remove("USERNAME").output().unwrap();
    assert!(paused.status.success(), "{paused:?}");
    let id = |flag: &str| {
        let told = std::process::Command::new("id").arg(flag).output().unwrap();
        String::from_utf8(told.stdout).unwrap().trim().to_owned()
    };
    let actor = site.json(&["route", "list"])[0]["paused"]["name"].clone();
    assert!(actor == id("-un") || actor == format!("uid {}", id("-u")), "{actor}");
}

#[test]
fn a_node_is_listed_asked_to_leave_and_drains() {
    let mut site = Site::new();
    let nodes = site.json(&["node", "list"]);
    assert_eq!(
        (&nodes[0]["name"], &nodes[0]["state"], &nodes[0]["lanes"]),
        (&"here".into(), &"alive".into(), &2.into()),
        "{nodes}"
    );
    let leases = site.json(&["lease", "list"]);
    assert_eq!((&leases[0]["route"], &leases[0]["owner_name"]), (&"orders".into(), &"here".into()), "{leases}");
    let left = leases[0]["expires_in_seconds"].as_f64().unwrap();
    assert!(left > 0.0 && left <= 60.0, "{left}");
    assert!(site.run(&["lease", "list"]).stdout.starts_with("ROUTE    LANE  OWNER  EPOCH  EXPIRES IN  CURSOR\n"));
    let nobody = site.run(&["node", "drain", "nobody"]);
    assert!(nobody.code == 1 && nobody.stderr.contains("alive: here"), "{nobody:?}");
    site.delivered(10, 2);

    let drained = site.run(&["node", "drain", "here", "--reason", "new machine"]);
    assert_eq!(drained.code, 0, "{drained:?}");
    let [action, subject, _, reason] = site.last_act();
    assert_eq!((action.as_str(), reason.as_str()), ("drain-node", "new machine"));
    assert!(subject.starts_with("here ("), "{subject}");
    assert!(site.daemon.wait().success(), "it drains and ends by itself");
    assert_eq!(site.run(&["node", "list"]).stdout, "no relay is alive\n");
}

#[test]
fn a_node_that_leaves_takes_all_of_its_process_along() {
    let workplace = Workplace::new();
    let config = r#"
[relay]
name = "here"
heartbeat_every = "50ms"
[[store]]
name = "shop"
url = "sqlite:shop.db"
[[store]]
name = "depot"
url = "sqlite:depot.db"
[[route]]
name = "orders"
store = "shop"
transport = "file:orders.ndjson"
[[route]]
name = "parcels"
store = "depot"
transport = "file:parcels.ndjson"
"#;
    let mut daemon = workplace.daemon("postrider", config);
    let nodes = |store: &str| workplace.run(&["node", "list", "--store-name", store]).stdout;
    wait_until("both are served", || nodes("shop").contains("alive ") && nodes("depot").contains("alive "));
    let unclear = workplace.run(&["node", "list"]);
    assert!(unclear.code == 2 && unclear.stderr.contains("say --store-name: shop, depot"), "{unclear:?}");
    assert_eq!(workplace.run(&["node", "drain", "here", "--store-name", "depot"]).code, 0);
    assert!(daemon.wait().success(), "both drain and the process ends");
    assert_eq!((nodes("shop").as_str(), nodes("depot").as_str()), ("no relay is alive\n", "no relay is alive\n"));
}

#[test]
fn a_mistyped_route_is_told_from_one_that_has_nothing() {
    let site = Site::new();
    let looks: [&[&str]; 15] = [
        &["dead", "list", "--route", "order"],
        &["dead", "export", "--route", "order"],
        &["key", "parked", "--route", "order"],
        &["key", "resume", "k", "--route", "order"],
        &["route", "pause", "order"],
        &["route", "resume", "order"],
        &["route", "drain", "order"],
        &["route", "forget", "order"],
        &["replay", "--route", "order"],
        &["replay", "--route", "orders", "--to", "order"],
        &["message", "list", "--route", "order"],
        &["tail", "--route", "order"],
        &["replay", "--route", "order", "--dry-run"],
        &["route", "test", "order"],
        &["dead", "redrive", "--route", "order"],
    ];
    for arguments in looks {
        let told = site.run(arguments);
        assert_eq!(told.stderr, "error: there is no route `order`; did you mean `orders`?\n", "{arguments:?}");
        assert_eq!((told.code, told.stdout.as_str()), (1, ""), "{arguments:?}");
    }
    for arguments in [&["dead", "list", "--route", "orders"], &["key", "parked", "--route", "orders"]] {
        assert_eq!(site.run(arguments).code, 0, "one that has nothing: {arguments:?}");
    }
    let replay = site.run(&["replay", "--route", "orders", "--key", "nobody"]);
    assert_eq!(replay.stderr, "error: nothing matches: key nobody; nothing was started\n");
    assert_eq!((replay.code, site.run(&["replay", "list"]).stdout.contains("0 replays")), (1, true));
    let nothing = site.run(&["dead", "redrive", "--route", "orders"]);
    assert_eq!((nothing.code, nothing.stdout.as_str()), (1, "0 redriven\n"));
}

#[test]
fn a_killed_relay_is_told_from_one_that_works() {
    let workplace = Workplace::new();
    workplace.migrated();
    let daemon = workplace.daemon("postrider", CONFIG);
    wait_until("it is known", || workplace.run(&["status"]).stdout.contains("1 relay alive"));
    daemon.kill();
    // As if its lease were an hour, and more than half of it over.
    let sql = "UPDATE postrider_node SET lease_life = 3600000000, seen_at = seen_at - 1900000000";
    Connection::open(workplace.path("app.db")).unwrap().execute(sql, []).unwrap();
    let text = workplace.run(&["status"]).stdout;
    assert!(text.contains("0 relays alive, here silent for 31m "), "{text}");
    let nodes = workplace.run(&["node", "list"]).stdout;
    assert!(nodes.contains("silent for 31m "), "{nodes}");
    let judged = workplace.run(&["check"]);
    assert!(judged.code == 2 && judged.stdout.contains("no relay is alive"), "{judged:?}");
}

#[test]
fn a_route_that_nobody_serves_is_told_of_for_the_sake_of_what_is_parked() {
    let site = Site::new();
    let dead = site.dead(&["a"]).remove(0);
    let codes = |workplace: &Workplace| -> Vec<String> {
        let findings = workplace.status()["findings"].clone();
        findings.as_array().unwrap().iter().map(|finding| finding["code"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(codes(&site.workplace), ["dead"], "it is dead, and that is all");
    let Site { workplace, mut daemon, .. } = site;
    daemon.signal(rustix::process::Signal::TERM);
    daemon.wait();
    let only_rebuild =
        CONFIG.replace("name = \"orders\"\ntopics = [\"orders.*\"]", "name = \"others\"\ntopics = [\"others\"]");
    let _other = workplace.daemon("postrider", &only_rebuild);
    wait_until("it is told", || codes(&workplace) == ["not-served", "dead"]);
    let discarded = workplace.run(&["dead", "discard", "--id", &dead]);
    assert_eq!(discarded.code, 0);
    assert!(!codes(&workplace).contains(&"not-served".to_owned()), "nobody waits for it any more");
}

#[test]
fn the_store_is_found_where_the_relay_finds_it() {
    let workplace = Workplace::new();
    workplace.migrated();
    let status = |arguments: &[&str], environment: &[(&str, &str)]| {
        let mut command = workplace.command(&[&["status"], arguments].concat());
        command.envs(environment.iter().copied());
        let output = command.output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, told) = status(&[], &[]);
    assert_eq!(code, 2);
    assert!(told.starts_with("error: which store? say --store URL"), "{told}");
    let url = "sqlite:app.db";
    assert_eq!(status(&[], &[("DATABASE_URL", url)]).0, 0);
    assert_eq!(status(&[], &[("POSTRIDER__STORE__URL", url), ("DATABASE_URL", "sqlite:gone.db")]).0, 0);
    assert_eq!(status(&["--store", url], &[("POSTRIDER__STORE__URL", "sqlite:gone.db")]).0, 0, "a flag comes first");
    workplace.write("url", url);
    std::fs::set_permissions(workplace.path("url"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(status(&[], &[("POSTRIDER__STORE__URL__FILE", "url"), ("DATABASE_URL", "sqlite:gone.db")]).0, 0);
    assert_eq!(status(&[], &[("POSTRIDER__STORE__URL__ENV", "SHOP"), ("SHOP", url)]).0, 0);
    let (code, told) = status(&[], &[("POSTRIDER__STORE__URL__FILE", "nothing")]);
    assert!(code == 2 && told.contains("POSTRIDER__STORE__URL__FILE: "), "{told}");
    let elsewhere = [("POSTRIDER__STORE__URL", url), ("POSTRIDER__STORE__TABLE_PREFIX", "mail_")];
    assert_eq!(status(&[], &elsewhere).0, 4, "the prefix of the environment counts without a file too");
    assert_eq!(status(&["--table-prefix", "postrider_"], &elsewhere).0, 0);
    let (code, told) = status(&[], &[("POSTRIDER__STORE__URL", url), ("POSTRIDER__STORE__SCHEM", "mail")]);
    assert!(code == 2 && told.contains("did you mean `schema`?"), "{told}");
    let (code, told) = status(&[], &[("POSTRIDER__STORE__SCHEMA", "mail")]);
    assert!(code == 2 && told.starts_with("error: which store?"), "{told}");
    workplace.write("postrider.toml", CONFIG);
    assert_eq!(status(&[], &[("DATABASE_URL", "sqlite:gone.db")]).0, 0, "the file comes before the general name");
    assert_eq!(status(&[], &[("POSTRIDER__STORE__URL", "sqlite:gone.db")]).0, 3, "our own name before the file");
    workplace.write("other.toml", CONFIG.replace("app.db", "gone.db"));
    assert_eq!(status(&["--config", "other.toml"], &[]).0, 3);
    assert_eq!(status(&["--config", "missing.toml"], &[]).0, 2);
    let (code, told) = status(&[], &[("POSTRIDER__STORE__URL", "")]);
    assert!(code == 2 && told.contains("POSTRIDER__STORE__URL") && told.contains("is empty"), "{told}");
    let (code, told) = status(&[], &[("POSTRIDER__STORE__URL", "oracle:x")]);
    assert!(code == 2 && told.contains("POSTRIDER__STORE__URL") && told.contains("`oracle:`"), "{told}");
}

#[test]
fn the_program_tells_what_it_is_and_completes_itself() {
    let workplace = Workplace::new();
    let version: Value = serde_json::from_str(&workplace.run(&["version", "--json"]).stdout).unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert!(version["schema"]["sqlite"].as_u64().is_some_and(|version| version >= 4), "{version}");
    for shell in ["bash", "zsh", "fish"] {
        let script = workplace.run(&["completions", shell]);
        assert!(script.code == 0 && script.stdout.contains("redrive"), "{shell}");
    }
}
