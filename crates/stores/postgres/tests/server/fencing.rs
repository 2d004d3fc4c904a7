//! Lanes that are asked where they are, by whoever changes their route, while their owner settles as fast as it can: what was
//! settled by then counts. A settlement that moves the cursor alone takes no lock, so the owner is fenced first. And a lane that
//! ends while somebody takes it.

use postrider_core::{
    admin::{Actor, ReplaySpec, StoreAdmin},
    browse::{RecordFilter, Standing},
    lease::{LaneId, Lease, Node, Order, ReplayFilter, RouteSpec, Start},
    log::{Log, Page, Settlement},
    topic::TopicFilter,
};
use postrider_store_postgres::PostgresStore;
use tokio::sync::oneshot;

use crate::{
    Post, WHOLE, commit, node,
    support::{Place, connect, until_waiting_for_a_lock},
};

/// More than are settled before somebody is fenced.
const RECORDS: u32 = 2_000;

/// Often enough that a settlement comes in between, wherever that may be.
const ROUNDS: usize = 20;

/// A lane with records to settle.
async fn begin(place: &Place) -> (PostgresStore, Node, Lease, Page) {
    let (store, node) = (place.store(), node());
    store.register(&node, &[route(&["orders", "refunds"])]).await.unwrap();
    commit(&store.dialect(), RECORDS as usize).await;
    let (lease, page) = take(&store, &node).await;
    (store, node, lease, page)
}

fn route(topics: &[&str]) -> RouteSpec {
    let topics = TopicFilter::new(topics).unwrap();
    RouteSpec { name: "r".into(), topics, order: Order::Key, lanes: 1, start: Start::Oldest }
}

async fn take(store: &PostgresStore, node: &Node) -> (Lease, Page) {
    let lease = store.acquire(&LaneId { route: "r".into(), number: 0 }, node).await.unwrap().unwrap();
    let cursor = store.resume(&lease).await.unwrap().cursor;
    let page = store.read(&lease, &cursor, WHOLE).await.unwrap();
    (lease, page)
}

/// Settles one record after the other until it is fenced, and answers how many it has settled. Says when it has begun.
async fn settle_until_fenced(store: PostgresStore, lease: Lease, page: Page, begun: oneshot::Sender<()>) -> u32 {
    let mut begun = Some(begun);
    for settled in 1..=RECORDS {
        let advance = Some((page.marks)(settled));
        let settlement = Settlement { number: u64::from(settled), advance, ..Settlement::default() };
        match store.settle(&lease, &settlement).await {
            Ok(()) => {}
            Err(error) if error.is_fenced() => return settled - 1,
            Err(error) => panic!("{error:?}"),
        }
        if let Some(begun) = begun.take() {
            begun.send(()).unwrap();
        }
    }
    panic!("nobody has fenced it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebase_undoes_no_settlement() {
    for round in 0..ROUNDS {
        let place = Place::new(20).await;
        let (store, node, lease, page) = begin(&place).await;
        let ids: Vec<_> = page.records.iter().map(|record| record.envelope.id).collect();
        let (begun, has_begun) = oneshot::channel();
        let settling = tokio::spawn(settle_until_fenced(store.clone(), lease, page, begun));
        has_begun.await.unwrap();
        store.rebase_route("r", &Actor::new("anna")).await.unwrap();
        let settled = settling.await.unwrap() as usize;
        let (_, page) = take(&store, &node).await;
        let again: Vec<_> = page.records.iter().map(|record| record.envelope.id).collect();
        assert_eq!(again.len(), ids.len() - settled, "round {round}: {settled} were settled");
        assert_eq!(again, ids[settled..], "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_settled_when_a_topic_is_let_go_stays_delivered() {
    for round in 0..ROUNDS {
        let place = Place::new(20).await;
        let (store, node, lease, page) = begin(&place).await;
        let (begun, has_begun) = oneshot::channel();
        let settling = tokio::spawn(settle_until_fenced(store.clone(), lease, page, begun));
        has_begun.await.unwrap();
        store.register(&node, &[route(&["refunds"])]).await.unwrap();
        let settled = settling.await.unwrap() as usize;
        let passed = RecordFilter { standing: Some(Standing::Passed), ..RecordFilter::default() };
        let passed = store.records(&passed, None, RECORDS).await.unwrap().records.len();
        assert_eq!(passed, settled, "round {round}");
    }
}

/// Whoever takes a lane locks it, and then writes its checkpoint. One who ended it the other way round would wait for him, and he
/// for the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_ends_while_its_lane_is_taken_waits_and_is_fenced() {
    let mut post = Post::new(20).await;
    post.commit(3).await;
    post.read_on().await;
    post.settle().await.unwrap();
    let spec = ReplaySpec { route: "r".into(), to: None, filter: ReplayFilter::default(), rate: None };
    let lane = LaneId { route: post.store.replay(&spec, &Actor::new("anna")).await.unwrap(), number: 0 };
    let lease = post.store.acquire(&lane, &node()).await.unwrap().unwrap();

    let schema = post.place.schema();
    let mut client = connect().await;
    let taking = client.transaction().await.unwrap();
    let lock = format!("SELECT 1 FROM \"{schema}\".lane WHERE route = $1 FOR UPDATE");
    taking.query_one(&lock, &[&&*lane.route]).await.unwrap();
    let ending = tokio::spawn({
        let (store, lease) = (post.store.clone(), lease.clone());
        async move { store.finish(&lease).await }
    });
    until_waiting_for_a_lock(schema).await;
    let begin = format!(
        "INSERT INTO \"{schema}\".checkpoint (route, number, n, epoch, settled, lo, cursor)
         SELECT route, number, n + 1, epoch + 1, 0, lo, cursor FROM \"{schema}\".checkpoint
          WHERE route = $1 ORDER BY n DESC LIMIT 1"
    );
    assert_eq!(taking.execute(&begin, &[&&*lane.route]).await.unwrap(), 1, "nobody waits in a circle");
    taking.commit().await.unwrap();
    assert!(ending.await.unwrap().unwrap_err().is_fenced());
}
