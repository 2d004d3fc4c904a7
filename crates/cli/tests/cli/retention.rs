//! What goes by itself, if the file says so: delivered messages beyond a number, and the dead after a time.

use rusqlite::Connection;

use crate::support::{Workplace, wait_until};

const CONFIG: &str = r#"
[store]
url = "sqlite:app.db"
[relay]
lease_life = "60s"
heartbeat_every = "50ms"
purge_every = "50ms"
RETENTION
[[route]]
name = "orders"
topics = ["orders.*"]
transport = "file:arrivals.ndjson"
"#;

#[test]
fn delivered_messages_beyond_the_number_that_is_kept_go() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    let few = CONFIG.replace("RETENTION", "keep_delivered = \"forever\"\nkeep_delivered_max = 3");
    let _daemon = workplace.daemon("postrider", &few);
    producer.enqueue(20, 4);
    wait_until("all have arrived", || producer.all_arrived(&workplace.arrivals("arrivals.ndjson")));
    let records = || workplace.json(&["message", "list"])["messages"].as_array().unwrap().len();
    wait_until("three are left", || records() == 3);
}

#[test]
fn the_dead_go_by_themselves_only_if_the_file_says_so() {
    let workplace = Workplace::new();
    drop(workplace.migrated());
    let dead = |workplace: &Workplace| workplace.status()["routes"][0]["parked"]["dead"].as_u64();
    let mut daemon = workplace.daemon("postrider", &CONFIG.replace("RETENTION", ""));
    let expired = "INSERT INTO postrider_log (id, topic, name, key, expires_at, payload) \
                   VALUES (randomblob(16), 'orders.late', 'n', 'k', 1, '')";
    let connection = Connection::open(workplace.path("app.db")).unwrap();
    connection.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
    connection.execute(expired, []).unwrap();
    wait_until("it is dead", || dead(&workplace) == Some(1));
    let older = |age: &str| workplace.run(&["dead", "discard", "--older-than", age]);
    assert_eq!(older("1h").code, 1, "nothing is that old");
    let counted = older("0s");
    assert!(counted.code == 0 && counted.stdout.starts_with("would discard 1 message"), "{counted:?}");
    daemon.signal(rustix::process::Signal::TERM);
    assert!(daemon.wait().success());
    assert_eq!(dead(&workplace), Some(1), "it waits for an operator");

    let _daemon = workplace.daemon("expiring", &CONFIG.replace("RETENTION", "keep_dead = \"1ms\""));
    wait_until("it is gone", || dead(&workplace) == Some(0));
    let acts = workplace.json(&["audit", "list"]);
    assert_eq!((&acts[0]["action"], &acts[0]["actor"]), (&"discard".into(), &"postrider".into()), "{acts}");
}

/// Two hours ago, for an instant that is stored.
const TWO_HOURS_EARLIER: &str = "UPDATE postrider_parked SET parked_at = parked_at - 7200000000";

#[test]
fn what_has_just_died_is_kept_however_long_it_had_waited_before() {
    let workplace = Workplace::new();
    drop(workplace.migrated());
    let _daemon = workplace.daemon("postrider", &CONFIG.replace("RETENTION", "keep_dead = \"1h\""));
    let parked = |state: &str| workplace.status()["routes"][0]["parked"][state].as_u64();
    let connection = Connection::open(workplace.path("app.db")).unwrap();
    connection.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
    // The one is dead from the beginning, the other waits for a day that is far away.
    let insert = "INSERT INTO postrider_log (id, topic, name, expires_at, deliver_at, payload) \
                  VALUES (randomblob(16), 'orders.late', 'n', 1, NULL, ''), \
                         (randomblob(16), 'orders.planned', 'n', NULL, 4000000000000000, '')";
    connection.execute(insert, []).unwrap();
    wait_until("both are parked", || (parked("dead"), parked("scheduled")) == (Some(1), Some(1)));
    // It has waited for long when its day comes, and comes too late.
    let due = ", deliver_at = 1, expires_at = 1, due_at = 1, wake_at = 1 WHERE state = 'scheduled'";
    assert_eq!(connection.execute(&format!("{TWO_HOURS_EARLIER}{due}"), []).unwrap(), 1);
    wait_until("it is dead", || parked("dead") == Some(2));
    connection.execute(&format!("{TWO_HOURS_EARLIER} WHERE topic = 'orders.late'"), []).unwrap();
    wait_until("what has been dead for long is gone", || parked("dead") == Some(1));
    let left = workplace.json(&["dead", "list"]);
    assert_eq!(left[0]["topic"], "orders.planned", "{left}");
}
