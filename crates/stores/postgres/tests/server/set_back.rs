//! The log's sequence is set back, and forward again: nothing that was written meanwhile is lost.

use std::time::Duration;

use postrider_core::{
    ErrorKind,
    admin::{Actor, StoreAdmin},
    envelope::MessageId,
    log::{Log, Retention},
};

use crate::{Post, WHOLE, support::connect, take};

const AT_ONCE: Retention = Retention::by_age(Duration::ZERO);

/// Blocks of 16: five messages that are read in the first, five in the fourth, which ends with 53, and everything before that
/// is passed.
async fn far_ahead() -> Post {
    let mut post = Post::new(4).await;
    let mut sent = post.commit(5).await;
    let mut read = post.read_on().await;
    post.settle().await.unwrap();
    set(&post, 48).await;
    sent.extend(post.commit(5).await);
    read.extend(post.until_passed(48).await);
    assert_eq!(read, sent);
    post
}

async fn set(post: &Post, number: i64) {
    let sql = format!("SELECT setval('\"{}\".seq', {number})", post.place.schema());
    connect().await.batch_execute(&sql).await.unwrap();
}

/// Writes five below what is read. The reader refuses, and the sequence is put right with the very words of its refusal.
async fn set_back_and_mended(post: &Post) -> Vec<MessageId> {
    set(post, 8).await;
    let below = post.commit(5).await;
    let refused = post.store.read(&post.lease, &post.cursor, WHOLE).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    assert_eq!(post.store.purge(AT_ONCE).await.unwrap(), 0);
    let text = refused.to_string();
    let fix = text.split('`').nth(1).unwrap();
    assert_eq!(fix, format!("SELECT setval('\"{}\".\"seq\"', 53)", post.place.schema()));
    connect().await.batch_execute(fix).await.unwrap();
    assert_eq!(post.purge_all(AT_ONCE).await, 0, "five have been read by nobody");
    below
}

/// Settles until something may go. Nothing new is read meanwhile.
async fn until_emptied(post: &mut Post) -> u64 {
    let (client, deadline) = (connect().await, std::time::Instant::now() + Duration::from_secs(120));
    loop {
        post.settle().await.unwrap();
        let purged = post.purge_all(AT_ONCE).await;
        if purged > 0 {
            return purged;
        }
        assert!(std::time::Instant::now() < deadline, "what is read and settled is emptied");
        client.execute("SELECT pg_current_xact_id()", &[]).await.unwrap();
        assert_eq!(post.read_on().await, []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_meanwhile_is_kept_for_the_rebase() {
    let mut post = far_ahead().await;
    let below = set_back_and_mended(&post).await;
    post.store.rebase_route("r", &Actor::new("tests")).await.unwrap();
    assert_eq!(post.purge_all(AT_ONCE).await, 0);
    post.lease = take(&post.store, "r").await;
    post.cursor = post.store.resume(&post.lease).await.unwrap().cursor;
    post.number = 0;
    assert_eq!(post.read_on().await, below);
    assert_eq!(until_emptied(&mut post).await, 10, "and then it goes as everything else does");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_has_refused_reads_what_was_written_meanwhile_by_itself() {
    let mut post = far_ahead().await;
    let mut below = set_back_and_mended(&post).await;
    below.extend(post.commit(2).await);
    assert_eq!(post.read_on().await, below, "without a rebase by anybody, and nothing twice");
    assert_eq!(until_emptied(&mut post).await, 10);
    let audit = post.store.audit(10).await.unwrap();
    let reason = audit.iter().find(|entry| entry.action == "rebase").and_then(|entry| entry.actor.reason.as_deref());
    assert!(reason.is_some_and(|reason| reason.contains("set back")), "{audit:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_was_stopped_meanwhile_finds_what_was_written_below_it() {
    let mut post = far_ahead().await;
    set(&post, 8).await;
    let mut written = post.commit(5).await;
    set(&post, 53).await;
    assert_eq!(post.purge_all(AT_ONCE).await, 0);
    written.extend(post.commit(5).await);
    // Another process, which knows nothing but the cursor.
    post.store = post.place.another().await;
    assert_eq!(post.read_on().await, written);
    post.settle().await.unwrap();
    post.store = post.place.another().await;
    assert_eq!(post.read_on().await, [], "nothing comes twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_has_read_yet_counts_for_the_right_number() {
    let post = far_ahead().await;
    // Up to 60 is stored, and up to 53 was read.
    post.commit(7).await;
    set(&post, 30).await;
    let refused = post.store.read(&post.lease, &post.cursor, WHOLE).await.unwrap_err();
    let fix = format!("`SELECT setval('\"{}\".\"seq\"', 60)`", post.place.schema());
    assert!(refused.to_string().contains(&fix), "{refused}");
}
