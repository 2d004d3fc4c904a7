//! Reading beside open transactions, ahead of time, and in pages of every weight.

use std::time::Duration;

use postrider_core::{
    enlist::Enlist,
    envelope::Envelope,
    log::{Log, PageLimit},
};

use crate::{
    Post,
    support::{batch, connect},
};

#[tokio::test(flavor = "multi_thread")]
async fn open_transactions_hold_up_nobody() {
    let mut post = Post::new(20).await;
    let dialect = post.store.dialect();
    let (mut writer, mut reader, prepared) = (connect().await, connect().await, connect().await);
    let mut writing = writer.transaction().await.unwrap();
    let held = Envelope::new("orders", "order.placed", "held");
    let held_id = held.id;
    writing.append(&dialect, batch(vec![held])).await.unwrap();
    let reading = reader.build_transaction().isolation_level(tokio_postgres::IsolationLevel::RepeatableRead);
    let reading = reading.start().await.unwrap();
    reading.query("SELECT count(*) FROM pg_class", &[]).await.unwrap();
    let gid = uuid::Uuid::now_v7();
    let schema = post.place.schema().to_owned();
    let orphan = format!(
        "BEGIN; SELECT \"{schema}\".enqueue('orders', 'order.placed', 'prepared'); PREPARE TRANSACTION '{gid}'"
    );
    prepared.batch_execute(&orphan).await.unwrap();
    for _ in 0..3 {
        let sent = post.commit(5).await;
        assert_eq!(post.read_on().await, sent, "what is committed is read at once");
        post.settle().await.unwrap();
    }
    writing.commit().await.unwrap();
    assert_eq!(post.read_on().await, [held_id]);
    prepared.batch_execute(&format!("COMMIT PREPARED '{gid}'")).await.unwrap();
    assert_eq!(post.read_on().await.len(), 1, "an orphan that is committed after all is not lost");
    reading.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_expires_while_a_page_that_was_read_ahead_waits_has_expired() {
    const LIMIT: PageLimit = PageLimit { records: 20, bytes: 1 << 20 };
    let mut post = Post::new(20).await;
    let mut client = connect().await;
    let expires_at: std::time::SystemTime =
        client.query_one("SELECT clock_timestamp() + interval '2 seconds'", &[]).await.unwrap().get(0);
    let envelopes: Vec<Envelope> = (0..60)
        .map(|_| Envelope { expires_at: Some(expires_at.into()), ..Envelope::new("orders", "order.placed", "{}") })
        .collect();
    let mut transaction = client.transaction().await.unwrap();
    transaction.append(&post.store.dialect(), batch(envelopes)).await.unwrap();
    transaction.commit().await.unwrap();
    // A full page: the next one is on its way.
    let page = post.store.read(&post.lease, &post.cursor, LIMIT).await.unwrap();
    assert_eq!((page.records.len(), page.more), (20, true));
    post.cursor = page.end;
    let is_over = "SELECT clock_timestamp() > $1";
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !client.query_one(is_over, &[&expires_at]).await.unwrap().get::<_, bool>(0) {
        assert!(std::time::Instant::now() < deadline, "time passes");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let page = post.store.read(&post.lease, &post.cursor, LIMIT).await.unwrap();
    let left: Vec<_> = page.records.iter().map(|record| record.expires_in).collect();
    assert_eq!(left, [Some(Duration::ZERO); 20]);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_messages_behind_small_ones_come_in_pages_of_their_own_size() {
    const LIMIT: PageLimit = PageLimit { records: 1_000, bytes: 1 << 20 };
    let mut post = Post::new(20).await;
    let mut sent = post.commit(600).await;
    let mut client = connect().await;
    let mut transaction = client.transaction().await.unwrap();
    // Each but the last is a fifth of a page; that one nearly fills a page by itself.
    for size in [vec![200 << 10; 40], vec![1_000 << 10]].concat() {
        let envelope = Envelope::new("orders", "order.placed", vec![b'x'; size]);
        sent.push(envelope.id);
        transaction.append(&post.store.dialect(), batch(vec![envelope])).await.unwrap();
    }
    transaction.commit().await.unwrap();
    sent.extend(post.commit(300).await);
    let (mut read, mut pages) = (Vec::new(), 0);
    loop {
        let page = post.store.read(&post.lease, &post.cursor, LIMIT).await.unwrap();
        let weight: usize = page.records.iter().map(|record| record.envelope.weight()).sum();
        assert!(weight <= LIMIT.bytes || page.records.len() == 1, "{} records weigh {weight}", page.records.len());
        read.extend(page.records.iter().map(|record| record.envelope.id));
        post.cursor = page.end;
        post.settle().await.unwrap();
        pages += 1;
        if !page.more {
            break;
        }
    }
    assert_eq!(read, sent, "each once, and in order");
    assert!(pages < 20, "in {pages} pages");
}
