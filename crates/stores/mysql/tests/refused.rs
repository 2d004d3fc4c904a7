//! A server that is set so that a crash takes back commits is refused. A test program of its own: the setting is the whole
//! server's, and no other test may open a store meanwhile.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use mysql_async::prelude::Queryable;
use postrider_core::ErrorKind;
use support::{Tables, builder, clean_up, connect};

/// Puts the setting back, also when the test fails.
struct Before(u32);

impl Drop for Before {
    fn drop(&mut self) {
        clean_up(vec![format!("SET GLOBAL innodb_flush_log_at_trx_commit = {}", self.0)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_write_through_is_refused() {
    let mut connection = connect().await;
    let before: Option<u32> = connection.query_first("SELECT @@innodb_flush_log_at_trx_commit").await.unwrap();
    let _before = Before(before.unwrap());
    connection.query_drop("SET GLOBAL innodb_flush_log_at_trx_commit = 0").await.unwrap();
    let refused = builder(Tables::fresh().prefix()).open().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("innodb_flush_log_at_trx_commit"), "{refused}");
}
