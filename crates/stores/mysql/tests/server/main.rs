//! What depends on the server: plain SQL from another program, migrations that race or are cut off, settings and tables that
//! are refused, transactions that the server has ended, and the counter-examples that the order list was made for.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../support/mod.rs"]
mod support;

mod enqueueing;
mod migrating;
mod operating;
mod ordering;
mod reading;
mod retention;

use std::time::Duration;

use mysql_async::prelude::Queryable;
use postrider_core::{
    envelope::Envelope,
    lease::{LaneId, Lease},
    log::{Cursor, Log, PageLimit},
};
use postrider_store_mysql::MysqlStore;

use support::{connect, node, spec};

fn names(envelopes: &[Envelope]) -> Vec<&str> {
    envelopes.iter().map(|envelope| &*envelope.name).collect()
}

/// The only lane of a route of its own, and where it begins.
async fn take(store: &MysqlStore) -> (Lease, Cursor) {
    let (node, lane) = (node("r", Duration::from_secs(3600)), LaneId { route: "r".into(), number: 0 });
    store.register(&node, &[spec("r")]).await.unwrap();
    let lease = store.acquire(&lane, &node).await.unwrap().unwrap();
    let cursor = store.resume(&lease).await.unwrap().cursor;
    (lease, cursor)
}

const LIMIT: PageLimit = PageLimit { records: 10, bytes: 1 << 20 };

/// What gives the place `last` to the newest message that waits, as SQL.
fn ordering_by_hand(prefix: &str, last: i64) -> [String; 3] {
    [
        format!(
            "INSERT INTO {prefix}ordering (last, lo, hi, ordered_at, list)
             SELECT {last}, seq, seq, 0, CONCAT(UNHEX(LPAD(HEX(seq), 16, '0')), UNHEX(LPAD(HEX(bytes), 8, '0')))
               FROM {prefix}pending
              ORDER BY p DESC
              LIMIT 1"
        ),
        format!("DELETE FROM {prefix}pending ORDER BY p DESC LIMIT 1"),
        format!("UPDATE {prefix}counter SET value = {last} WHERE name = 'place'"),
    ]
}

/// The server looks at its transactions again only when nobody has asked for a tenth of a second: one test asks at a time.
static ASKING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Between two questions.
const SILENCE: Duration = Duration::from_millis(300);

/// Until a statement that names a table with this prefix waits for a lock.
async fn until_waiting(prefix: &str) {
    let _asking = ASKING.lock().await;
    let mut connection = connect().await;
    let sql = format!(
        "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%{prefix}%'"
    );
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    // MySQL cannot show the list while the text of a statement in it is no UTF-8.
    while connection.query_first(&sql).await.unwrap_or_default() != Some(1) {
        assert!(std::time::Instant::now() < deadline, "a statement waits for a lock");
        tokio::time::sleep(SILENCE).await;
    }
}
