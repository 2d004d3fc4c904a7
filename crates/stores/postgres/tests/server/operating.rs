//! What operators ask and do: parked rows, what is pending, and the audit.

use std::time::Duration;

use postrider_core::{
    admin::{ParkedFilter, StoreAdmin},
    enlist::Enlist,
    envelope::Envelope,
    log::{Log, PageLimit, RecordRef, Settlement},
    parked::{Cause, Parked},
};

use crate::{
    Post,
    support::{Place, batch, connect},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_audited_does_not_happen() {
    let place = std::sync::Arc::new(Place::new(12).await);
    let schema = place.schema().to_owned();
    let broken = async move || {
        let sql = format!("ALTER TABLE {schema}.audit ADD CONSTRAINT broken CHECK (false) NOT VALID");
        connect().await.batch_execute(&sql).await.unwrap();
    };
    postrider_testkit::store::unaudited::nothing_changes_unaudited(place, broken).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_rows_are_found_by_when_they_were_parked() {
    let mut post = Post::new(20).await;
    post.commit(2).await;
    let page = post.page().await;
    let dead = || Parked::Dead { cause: Cause::new("refused", "no"), attempts: 1, blocks: false };
    for n in 1..=2 {
        let park = vec![(RecordRef::new(&page.records, n - 1), dead())];
        let advance = Some((page.marks)(n));
        post.number += 1;
        let settlement = Settlement { number: post.number, advance, park, ..Settlement::default() };
        post.store.settle(&post.lease, &settlement).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let rows = post.store.parked(&ParkedFilter::default(), None, 10).await.unwrap();
    let sql = format!("SELECT max(parked_at) FROM \"{}\".parked", post.place.schema());
    let newest: std::time::SystemTime = connect().await.query_one(&sql, &[]).await.unwrap().get(0);
    let before = ParkedFilter { parked_before: Some(newest.into()), ..ParkedFilter::default() };
    let found = post.store.parked(&before, None, 10).await.unwrap();
    assert_eq!((rows.len(), found.len()), (2, 1), "the instant itself is not before it");
    assert_eq!(found[0].ordinal, rows[0].ordinal);
    assert_eq!(post.store.parked_count(&before).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_pending_is_counted_beside_what_an_open_transaction_keeps_from_being_forgotten() {
    let mut post = Post::new(6).await;
    let mut client = connect().await;
    let mut early = client.transaction().await.unwrap();
    let late = Envelope::new("orders", "order.placed", "late");
    early.append(&post.store.dialect(), batch(vec![late])).await.unwrap();
    post.commit(500).await;
    post.read_on().await;
    post.settle().await.unwrap();
    let pending = async |post: &Post| post.store.overview().await.unwrap().routes[0].pending;
    assert_eq!(pending(&post).await, 0, "an open transaction's message is not there yet");
    early.commit().await.unwrap();
    post.commit(7).await;
    assert_eq!(pending(&post).await, 8, "what came late, and what is new");
    let page = post.store.read(&post.lease, &post.cursor, PageLimit { records: 3, bytes: 1 << 20 }).await.unwrap();
    post.cursor = page.end;
    post.settle().await.unwrap();
    assert_eq!(pending(&post).await, 5, "half-way through a round");
}
