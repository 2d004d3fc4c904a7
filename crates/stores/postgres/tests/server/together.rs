//! Lanes of one node that look at the same moment: one asks for all of them, and what it is told must not count for one that has
//! changed something since.

use std::time::Duration;

use futures_util::future::join;
use postrider_core::{
    admin::{Actor, ParkedFilter, StoreAdmin},
    envelope::MessageId,
    lease::Lease,
    log::{Log, RecordRef, Settlement},
    parked::{Cause, Parked},
};

use crate::{Post, floor::DUE, take};

/// How often. The moment in which an answer would count is short, and a busy machine may miss it.
const ROUNDS: usize = 20;

/// Reads what comes next, lets both lanes look for due rows before it is parked or after, and answers which message it is.
async fn park_next(post: &mut Post, other: &Lease, parked: Parked, looks_after: bool) -> MessageId {
    post.commit(1).await;
    let page = post.page().await;
    if !looks_after {
        look_for_both(post, other).await;
    }
    post.cursor = page.end.clone();
    let park = vec![(RecordRef::new(&page.records, 0), parked)];
    post.settle_with(Settlement { advance: Some(page.end), park, ..Settlement::default() }).await;
    if looks_after {
        look_for_both(post, other).await;
    }
    page.records[0].envelope.id
}

/// Two lanes, of which nothing is due, look at the same moment until one asks for both. Then the other one does.
async fn look_for_both(post: &Post, other: &Lease) {
    // A look from the bottom is nobody else's, and what it has learnt is for the next one.
    for _ in 0..3 {
        let (mine, theirs) = join(post.store.due(&post.lease, DUE), post.store.due(other, DUE)).await;
        assert!(mine.unwrap().lines.is_empty() && theirs.unwrap().lines.is_empty());
    }
    post.store.due(other, DUE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lane_has_parked_itself_is_due_for_it_at_once() {
    let mut post = Post::new(20).await;
    let other = take(&post.store, "other").await;
    for _ in 0..ROUNDS {
        let retrying = Parked::Retrying { after: Duration::ZERO, attempts: 1, cause: Cause::new("busy", "later") };
        let id = park_next(&mut post, &other, retrying, false).await;
        assert_eq!(post.take_due().await, [id]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_operator_of_this_process_has_redriven_is_due_at_once() {
    let mut post = Post::new(20).await;
    let other = take(&post.store, "other").await;
    for _ in 0..ROUNDS {
        let dead = Parked::Dead { attempts: 1, cause: Cause::new("refused", "no"), blocks: false };
        let id = park_next(&mut post, &other, dead, true).await;
        assert_eq!(post.store.redrive(&ParkedFilter::default(), &Actor::new("anna")).await.unwrap(), 1);
        assert_eq!(post.take_due().await, [id]);
    }
}
