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
