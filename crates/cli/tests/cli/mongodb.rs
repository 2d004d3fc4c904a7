//! The binary on MongoDB, end to end: migrated, enqueued into, relayed, looked at.

use std::collections::BTreeSet;

use futures_util::TryStreamExt as _;
use mongodb::bson::{Bson, doc};
use postrider::{core::envelope::MessageId, mongodb::connect};
use postrider_testkit::{fault::Server, service};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Workplace, wait_until};

/// A database that is dropped at the end.
pub(crate) struct Database {
    name: String,
    server: String,
}

impl Database {
    pub(crate) fn fresh(name: &str) -> Self {
        let name = format!("test_cli_{name}_{}", std::process::id());
        let database = Self { name, server: service::url("POSTRIDER_TEST_MONGODB") };
        database.remove();
        database
    }

    /// The same server, another database.
    pub(crate) fn url(&self) -> String {
        let (place, options) = self.server.split_once('?').unwrap_or((&self.server, ""));
        let (server, _) = place.rsplit_once('/').expect("the URL names a database");
        format!("{server}/{}?{options}", self.name)
    }

    /// The transactions that are open on the whole server, also between two commands of theirs.
    pub(crate) fn open_transactions(&self) -> BTreeSet<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let client = connect(&self.server).await.expect("connect to the test server");
            let every = doc! { "$currentOp": { "allUsers": true, "idleSessions": true } };
            let open = doc! { "$match": { "transaction": { "$exists": true } } };
            let found = client.database("admin").aggregate([every, open]).await.expect("ask for transactions");
            let found: Vec<_> = found.try_collect().await.expect("read the answer");
            found
                .iter()
                .map(|open| format!("{:?} {:?}", open.get("lsid"), open.get("transaction").and_then(number)))
                .collect()
        })
    }

    fn remove(&self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let client = connect(&self.server).await.expect("connect to the test server");
            client.database(&self.name).drop().await.expect("drop the database of the test");
        });
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Of a transaction of a session.
fn number(transaction: &Bson) -> Option<i64> {
    transaction.as_document()?.get_document("parameters").ok()?.get_i64("txnNumber").ok()
}

#[test]
fn the_binary_relays_from_mongodb() {
    let (database, workplace) = (Database::fresh("relay"), Workplace::new());
    let url = database.url();
    let early = workplace.run(&["status", "--store", &url]);
    assert!(early.code != 0 && early.stderr.contains("the collections are missing"), "{early:?}");
    let up = workplace.run(&["migrate", "up", "--store", &url]);
    assert!(up.code == 0 && up.stdout.contains("0001 begin"), "{up:?}");
    let enqueue = |name: &str| {
        let enqueued = workplace.run_with_input(
            &["enqueue", "--store", &url, "--topic", "orders", "--name", name, "--key", "a", "--payload", "{}"],
            b"",
        );
        assert_eq!(enqueued.code, 0, "{enqueued:?}");
    };
    enqueue("order.placed");
    let config = format!("[store]\nurl = \"{url}\"\n[[route]]\nname = \"all\"\ntransport = \"file:arrivals.ndjson\"\n");
    let mut daemon = workplace.daemon("run", &config);
    wait_until("it has arrived", || workplace.arrivals("arrivals.ndjson").len() == 1);
    enqueue("order.paid");
    wait_until("the other has arrived", || workplace.arrivals("arrivals.ndjson").len() == 2);
    wait_until("nothing is pending", || {
        let status: Value = workplace.status_of(&url);
        status["routes"][0]["pending"] == 0
    });
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
    let migrated = workplace.run(&["migrate", "status", "--store", &url]);
    assert!(migrated.code == 0 && migrated.stdout.contains("applied at"), "{migrated:?}");
    let script = workplace.run(&["migrate", "sql", "--store", &url]);
    assert!(script.code == 0 && script.stdout.contains("postrider_log"), "{script:?}");
}

#[test]
fn what_is_mistyped_makes_no_second_store_of_mongodb() {
    let (database, workplace) = (Database::fresh("prefix"), Workplace::new());
    let url = database.url();
    assert_eq!(workplace.run(&["migrate", "up", "--store", &url]).code, 0);
    let other = workplace.run(&["migrate", "up", "--store", &url, "--table-prefix", "postrdier_"]);
    assert!(other.code != 0 && other.stderr.contains("`postrider_`"), "{other:?}");
    let nowhere = workplace.run(&["status", "--store", "mongodb://me:canary@127.0.0.1:1"]);
    assert!(nowhere.code != 0 && nowhere.stderr.contains("which database"), "{nowhere:?}");
    assert!(!nowhere.stderr.contains("canary"), "{nowhere:?}");
}

/// A standalone server, its documents with mail as any language writes it, and a SQLite file for the relay.
#[test]
fn the_binary_collects_the_mail_of_documents_on_a_standalone_server() {
    let (workplace, data) = (Workplace::new(), tempfile::tempdir().expect("a directory"));
    let directory = data.path().display().to_string();
    let mut server = Server::start(&service::program("POSTRIDER_TEST_MONGODB", "mongod"), |port| {
        let port = port.to_string();
        ["--dbpath", &directory, "--bind_ip", "127.0.0.1", "--nounixsocket", "--port", &port].map(str::to_owned).into()
    });
    let url = format!("mongodb://{}/shop", server.address());
    let refused = workplace.run(&["migrate", "up", "--store", &url]);
    assert!(refused.code != 0 && refused.stderr.contains("embedded outbox"), "{refused:?}");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let client = runtime.block_on(connect(&url)).expect("connect to the server");
    let send = |number: u32, name: &str| {
        let id = MessageId::generate();
        let mail = json!([{ "id": id.to_string(), "topic": "orders", "name": name, "payload": "{}" }]);
        let orders = client.database("shop").collection::<Value>("orders");
        let document = json!({ "_id": number, "_outbox": mail });
        runtime.block_on(async { orders.insert_one(document).await }).expect("insert a document");
        id
    };
    let mut sent = vec![send(1, "order.placed")];
    let config = format!(
        "[store]\nurl = \"sqlite:relay.db\"\n[store.collect]\nurl = \"{url}\"\ncollections = [\"orders\"]\n\
         [[route]]\nname = \"all\"\ntransport = \"file:arrivals.ndjson\"\n"
    );
    let mut daemon = workplace.daemon("run", &config);
    wait_until("it has arrived", || workplace.arrivals("arrivals.ndjson").len() == 1);
    server.kill();
    let said = || std::fs::read_to_string(workplace.path("run.log")).unwrap_or_default();
    wait_until("it is told", || said().contains("mail cannot be collected; trying again"));
    server.restart();
    sent.push(send(2, "order.paid"));
    wait_until("the other has arrived", || workplace.arrivals("arrivals.ndjson").len() == 2);
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
    assert_eq!(workplace.arrivals("arrivals.ndjson"), sent, "{}", said());

    // The same file on another host, where the same path is another store.
    send(3, "order.sent");
    let elsewhere = Workplace::new();
    assert!(!elsewhere.daemon("run", &config).wait().success(), "the mail goes into the store of the first");
    let told = std::fs::read_to_string(elsewhere.path("run.log")).unwrap_or_default();
    assert!(told.contains("goes into another store") && told.contains("$unset"), "{told}");
    let mut daemon = workplace.daemon("run", &config);
    wait_until("the first has taken it up", || workplace.arrivals("arrivals.ndjson").len() == 3);
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());

    // And one that starts while the server is away.
    server.kill();
    let late = Workplace::new();
    let mut daemon = late.daemon("run", &config);
    let said = || std::fs::read_to_string(late.path("run.log")).unwrap_or_default();
    wait_until("it waits for the server", || said().contains("mail cannot be collected yet"));
    server.restart();
    wait_until("it is told what stands against it", || said().contains("goes into another store"));
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
}
