//! The binary on MariaDB or MySQL, end to end: migrated, enqueued into by itself and by plain SQL, relayed, looked at.

use std::{collections::BTreeSet, process::Command};

use postrider_testkit::service;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Workplace, wait_until};

const VARIABLE: &str = "POSTRIDER_TEST_MYSQL";

/// The server: the one that the environment names, or the one that the workshop has started.
fn server() -> String {
    service::url(VARIABLE)
}

/// A database that is dropped at the end.
pub(crate) struct Database {
    pub(crate) name: String,
    server: String,
}

impl Database {
    pub(crate) fn fresh(name: &str) -> Self {
        let database = Self { name: format!("test_cli_{name}_{}", std::process::id()), server: server() };
        database.client("", &format!("DROP DATABASE IF EXISTS {0}; CREATE DATABASE {0}", database.name));
        database
    }

    pub(crate) fn url(&self) -> String {
        let (server, _) = self.server.rsplit_once('/').expect("the URL names a database");
        format!("{server}/{}", self.name)
    }

    /// Runs SQL with the server's own client, as a service in any language would.
    #[track_caller]
    pub(crate) fn client(&self, database: &str, sql: &str) -> String {
        let (user, place) = self.server.strip_prefix("mysql://").and_then(|rest| rest.split_once('@')).expect("a URL");
        let (user, password) = user.split_once(':').expect("user and password");
        let (host, port) = place.split('/').next().and_then(|host| host.split_once(':')).expect("host and port");
        let output = Command::new("mariadb")
            .args(["--host", host, "--port", port, "--user", user, "--skip-column-names", "--execute", sql, database])
            .env("MYSQL_PWD", password)
            .output()
            .expect("the program `mariadb` runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// The transactions that are open in this database.
    pub(crate) fn open_transactions(&self) -> BTreeSet<String> {
        let open = "SELECT CONCAT_WS(' ', trx_id, trx_mysql_thread_id, trx_started) FROM information_schema.innodb_trx JOIN information_schema.processlist \
                    ON processlist.id = trx_mysql_thread_id WHERE db";
        self.client("", &format!("{open} = '{}'", self.name)).lines().map(str::to_owned).collect()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.client("", &format!("DROP DATABASE IF EXISTS {}", self.name));
    }
}

#[test]
fn the_binary_relays_from_mysql() {
    let (database, workplace) = (Database::fresh("relay"), Workplace::new());
    let url = database.url();
    let early = workplace.run(&["status", "--store", &url]);
    assert!(early.code != 0 && early.stderr.contains("the schema is missing"), "{early:?}");
    let up = workplace.run(&["migrate", "up", "--store", &url]);
    assert!(up.code == 0 && up.stdout.contains("0001 begin"), "{up:?}");
    database.client(
        &database.name,
        "INSERT INTO postrider_log (topic, name, `key`, payload) VALUES ('orders', 'order.placed', 'a', '{}')",
    );
    let config = format!(
        "[store]\nurl = \"{url}\"\nconnections = 4\n[[route]]\nname = \"all\"\ntransport = \"file:arrivals.ndjson\"\n"
    );
    let mut daemon = workplace.daemon("run", &config);
    wait_until("it has arrived", || workplace.arrivals("arrivals.ndjson").len() == 1);
    let enqueued = workplace.run_with_input(
        &["enqueue", "--store", &url, "--topic", "orders", "--name", "order.paid", "--key", "a", "--payload", "{}"],
        b"",
    );
    assert_eq!(enqueued.code, 0, "{enqueued:?}");
    wait_until("the other has arrived", || workplace.arrivals("arrivals.ndjson").len() == 2);
    wait_until("nothing is pending", || {
        let status: Value = workplace.status_of(&url);
        status["routes"][0]["pending"] == 0
    });
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
    let migrated = workplace.run(&["migrate", "status", "--store", &url]);
    assert!(migrated.code == 0 && migrated.stdout.contains("applied at"), "{migrated:?}");
}

#[test]
fn a_mistyped_prefix_makes_no_second_store() {
    let (database, workplace) = (Database::fresh("prefix"), Workplace::new());
    let url = database.url();
    assert_eq!(workplace.run(&["migrate", "up", "--store", &url]).code, 0);
    let other = workplace.run(&["migrate", "up", "--store", &url, "--table-prefix", "postrdier_"]);
    assert!(other.code != 0 && other.stderr.contains("`postrider_`"), "{other:?}");
    let wrong = workplace.run(&["status", "--store", "mysql://me:canary@127.0.0.1:1/d"]);
    assert!(wrong.code != 0 && !wrong.stderr.contains("canary"), "{wrong:?}");
}

#[test]
fn a_mapping_becomes_triggers_that_the_client_applies() {
    let (database, workplace) = (Database::fresh("capture"), Workplace::new());
    let url = database.url();
    assert_eq!(workplace.run(&["migrate", "up", "--store", &url]).code, 0);
    database.client(&database.name, "CREATE TABLE orders (id INT PRIMARY KEY, total DECIMAL(8, 2))");
    let mapping = format!(
        "[[capture]]\ntable = \"{}.orders\"\ntopic = \"orders\"\nkey = \"id\"\ninsert = {{ name = \"order.placed\" }}\n",
        database.name
    );
    workplace.write("capture.toml", mapping);
    let generate = ["capture", "generate", "--dialect", "mysql", "--mapping", "capture.toml"];
    let blind = workplace.run(&generate);
    assert!(blind.code == 2 && blind.stderr.contains("--check URL"), "{blind:?}");
    let made = workplace.run(&[&generate[..], &["--check", &url]].concat());
    assert_eq!(made.code, 0, "{made:?}");
    database.client(&database.name, &made.stdout);
    database.client(&database.name, "INSERT INTO orders VALUES (1, 9.5), (2, 3)");
    let listed = workplace.run(&["message", "list", "--store", &url, "--output", "json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    let names: Vec<_> = listed["messages"].as_array().unwrap().iter().map(|message| &message["name"]).collect();
    assert_eq!(names, ["order.placed", "order.placed"], "{listed}");
    let dropped = workplace.run(&[&generate[..], &["--check", &url, "--drop"]].concat());
    database.client(&database.name, &dropped.stdout);
    database.client(&database.name, "INSERT INTO orders VALUES (3, 1)");
    let count = workplace.run(&["message", "list", "--store", &url, "--output", "ndjson"]).stdout.lines().count();
    assert_eq!(count, 2);
}
