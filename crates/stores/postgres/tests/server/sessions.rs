//! Sessions that are lost, fall silent, are hurried, or wake each other.

use std::time::Duration;

use postrider_core::{
    ErrorKind,
    admin::{Actor, StoreAdmin},
    envelope::Envelope,
    lease::LaneId,
    log::{Log, Retention, Settlement},
    parked::{Cause, Parked},
};
use postrider_store_postgres::PostgresStore;
use postrider_testkit::fault::{Proxy, Traffic};

use crate::{
    Post, WHOLE, node,
    support::{connect, url},
};

#[tokio::test(flavor = "multi_thread")]
async fn after_a_lost_session_only_what_was_persisted_counts() {
    let mut post = Post::new(20).await;
    let first = post.commit(3).await;
    assert_eq!(post.read_on().await, first);
    post.settle().await.unwrap();
    let second = post.commit(3).await;
    assert_eq!(post.read_on().await, second);
    post.end_session().await;

    let late = post.settle().await.unwrap_err();
    assert!(late.is_fenced(), "a cursor from before must not be persisted: {late:?}");
    // The first read may still meet the broken connection.
    let read = loop {
        match post.store.read(&post.lease, &post.cursor, WHOLE).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {}
            other => break other,
        }
    };
    assert!(read.unwrap_err().is_fenced(), "nor be read from");

    let again = post.store.acquire(&post.lease.lane, &node()).await.unwrap();
    assert!(again.is_none(), "the lease is still held; its node takes the lane anew");
    let resumed = post.store.resume(&post.lease).await.unwrap().cursor;
    post.cursor = resumed;
    assert_eq!(post.read_on().await, second, "what was not settled comes again");
    post.settle().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_persisted_cursor_can_be_written_again_by_another_session() {
    let mut post = Post::new(20).await;
    post.commit(2).await;
    post.read_on().await;
    post.settle().await.unwrap();
    post.end_session().await;
    post.settle().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_wakes_a_waiter() {
    let post = Post::new(20).await;
    let other = post.place.another().await;
    let notifier = other.notifier();
    let waiting = tokio::spawn(tokio::time::timeout(Duration::from_secs(20), {
        let store = post.store.clone();
        async move { store.hint().await }
    }));
    // The listener connects in the background; announcements are cheap and may be lost until it has.
    while !waiting.is_finished() {
        notifier.notify();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(waiting.await.unwrap().is_ok(), "an announcement wakes a relay of another process");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_falls_silent_is_given_up_and_found_again() {
    let post = Post::new(20).await;
    let config: tokio_postgres::Config = url().parse().unwrap();
    let port = config.get_ports()[0];
    let proxy = Proxy::to(&format!("127.0.0.1:{port}")).await;
    let through = url().replace(&format!(":{port}/"), &format!(":{}/", proxy.address().port()));
    let store = PostgresStore::builder(&through).schema(post.place.schema()).open().await.unwrap();
    let node = node();
    // Two connections of the pool are known to work, and that of the reader.
    let (one, other) = tokio::join!(store.heartbeat(&node), store.acquire(&post.lease.lane, &node));
    assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");
    store.read(&post.lease, &post.cursor, WHOLE).await.unwrap();
    let sent = post.commit(3).await;
    proxy.set(Traffic::Silent);
    let asked_at = std::time::Instant::now();
    let lane = LaneId { route: "r".into(), number: 0 };
    let settlement = Settlement { number: 1, ..Settlement::default() };
    let (beat, acquired, settled, read) = tokio::join!(
        store.heartbeat(&node),
        store.acquire(&lane, &node),
        store.settle(&post.lease, &settlement),
        store.read(&post.lease, &post.cursor, WHOLE)
    );
    for error in [beat.err(), acquired.err(), settled.err(), read.err()] {
        let error = error.expect("nobody answers");
        assert!(error.is_transient() && error.kind() == ErrorKind::Unavailable, "{error:?}");
    }
    assert!(asked_at.elapsed() < Duration::from_secs(40), "after {:?}", asked_at.elapsed());
    // What was silent is not used again: another connection is, and that one comes through.
    proxy.set(Traffic::Flowing);
    let before = proxy.connections();
    store.heartbeat(&node).await.unwrap();
    assert!(proxy.connections() > before, "by a new connection");
    let before = proxy.connections();
    let page = store.read(&post.lease, &post.cursor, WHOLE).await.unwrap();
    assert!(proxy.connections() > before, "and the log in a new session");
    assert_eq!(page.records.iter().map(|record| record.envelope.id).collect::<Vec<_>>(), sent);
}

/// Waits until a connection of this name has waited for a lock for so long.
async fn until_waiting_for(application: &str, waits: i64, time: Duration) {
    let sql = "SELECT count(*) FROM pg_stat_activity
                WHERE application_name = $1 AND wait_event_type = 'Lock'
                  AND clock_timestamp() - query_start > $2::bigint * interval '1 millisecond'";
    let client = connect().await;
    let millis = i64::try_from(time.as_millis()).unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while client.query_one(sql, &[&application, &millis]).await.unwrap().get::<_, i64>(0) < waits {
        assert!(std::time::Instant::now() < deadline, "{waits} of {application} wait for {time:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_cancels_long_statements_cancels_neither_reading_nor_retention() {
    let mut post = Post::new(4).await;
    post.commit(40).await;
    post.until_passed(31).await;
    let application = format!("hurried-{}", uuid::Uuid::now_v7().simple());
    let hurried = format!("{}?application_name={application}&options=-c%20statement_timeout%3D3s", url());
    let store = PostgresStore::builder(&hurried).schema(post.place.schema()).open().await.unwrap();
    store.read(&post.lease, &post.cursor, WHOLE).await.unwrap();
    let sent = post.commit(3).await;
    // Both take as long as somebody has the leaves: that of the records to read, and that of the ones to be removed.
    let mut client = connect().await;
    let holding = client.transaction().await.unwrap();
    for leaf in ["log_0", "log_2"] {
        let hold = format!("LOCK TABLE ONLY \"{}\".{leaf} IN ACCESS EXCLUSIVE MODE", post.place.schema());
        holding.batch_execute(&hold).await.unwrap();
    }
    let reading = tokio::spawn({
        let (store, lease, cursor) = (store.clone(), post.lease.clone(), post.cursor.clone());
        async move { store.read(&lease, &cursor, WHOLE).await }
    });
    let purging = tokio::spawn(async move { store.purge(Retention::by_age(Duration::ZERO)).await });
    until_waiting_for(&application, 2, Duration::from_secs(4)).await;
    holding.rollback().await.unwrap();
    let page = reading.await.unwrap().unwrap();
    assert_eq!(page.records.iter().map(|record| record.envelope.id).collect::<Vec<_>>(), sent);
    assert_eq!(purging.await.unwrap().unwrap(), 15, "the first block; there is no number 0");
}

/// A relay that is frozen, or whose machine is gone, has its locks for as long as the server waits for its next statement.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_begun_and_not_gone_on_with_is_rolled_back_by_the_server() {
    let mut post = Post::new(20).await;
    let (schema, client) = (post.place.schema().to_owned(), connect().await);
    let triggers = ["node", "lane", "route", "parked"].map(|table| {
        format!(
            "CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON \"{schema}\".{table}
                FOR EACH STATEMENT EXECUTE FUNCTION \"{schema}\".note ();"
        )
    });
    let sql = format!(
        "CREATE TABLE \"{schema}\".noted (place text, patience text);
         CREATE FUNCTION \"{schema}\".note () RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO \"{schema}\".noted
             VALUES (TG_TABLE_NAME, current_setting('idle_in_transaction_session_timeout'));
             RETURN NULL;
         END $$;
         {}",
        triggers.concat()
    );
    client.batch_execute(&sql).await.unwrap();
    let (lane, owner) = (LaneId { route: "other".into(), number: 0 }, node());
    let lease = crate::take(&post.store, "other").await;
    post.store.release(&lease).await.unwrap();
    post.store.acquire(&lane, &owner).await.unwrap().unwrap();
    let retrying = Parked::Retrying { after: Duration::ZERO, attempts: 1, cause: Cause::new("refused", "no") };
    post.park(vec![(Envelope::new("orders", "order.placed", "{}"), retrying)]).await;
    post.store.retire(owner.id).await.unwrap();
    post.store.pause("other", &Actor::new("anna")).await.unwrap();

    let noted = format!("SELECT DISTINCT place, patience FROM \"{schema}\".noted ORDER BY place");
    let rows = client.query(&noted, &[]).await.unwrap();
    let noted: Vec<(&str, &str)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(noted, [("lane", "10s"), ("node", "10s"), ("parked", "10s"), ("route", "10s")]);
}

/// So has one that only looks, and retention waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn what_looks_and_does_not_go_on_is_rolled_back_by_the_server_too() {
    let post = Post::new(20).await;
    let (schema, client) = (post.place.schema(), connect().await);
    let sql = format!(
        "CREATE FUNCTION \"{schema}\".hurried () RETURNS boolean LANGUAGE plpgsql STABLE AS $$ BEGIN
             IF current_setting('idle_in_transaction_session_timeout') = '10s' THEN RETURN true; END IF;
             RAISE EXCEPTION 'it may take its time';
         END $$;
         ALTER TABLE \"{schema}\".parked RENAME TO parked_rows;
         CREATE VIEW \"{schema}\".parked AS SELECT * FROM \"{schema}\".parked_rows WHERE \"{schema}\".hurried ()"
    );
    client.batch_execute(&sql).await.unwrap();
    let look = format!("SELECT count(*) FROM \"{schema}\".parked");
    assert!(client.query_one(&look, &[]).await.is_err(), "whoever has no limit is caught");
    let store = post.place.store();
    store.resume(&post.lease).await.unwrap();
    store.overview().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_given_up_behind_a_lock_leaves_nobody_waiting_on_the_server() {
    let post = Post::new(20).await;
    let schema = post.place.schema().to_owned();
    let mut client = connect().await;
    let holding = client.transaction().await.unwrap();
    holding.batch_execute(&format!("LOCK TABLE \"{schema}\".lane")).await.unwrap();
    let silent = post.store.heartbeat(&node()).await.unwrap_err();
    assert_eq!(silent.kind(), ErrorKind::Unavailable, "{silent:?}");
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1";
    let (watcher, pattern) = (connect().await, format!("%{schema}%"));
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while watcher.query_one(waits, &[&pattern]).await.unwrap().get::<_, i64>(0) > 0 {
        assert!(std::time::Instant::now() < deadline, "nobody wants its answer any more");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    holding.commit().await.unwrap();
}
