//! A heartbeat that has to wait for somebody who is just taking its lane.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::{Duration, Instant};

use postrider_core::{
    lease::{LaneId, Node, NodeId, Order, RouteSpec, Start},
    log::Log,
    topic::TopicFilter,
};
use support::{Place, connect};

fn node() -> Node {
    Node {
        id: NodeId::generate(),
        name: "test".to_owned(),
        routes: vec!["r".into()],
        lease_life: Duration::from_secs(3600),
        standstills: Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_is_taken_while_its_owners_heartbeat_waits_is_not_its_own_any_more() {
    let place = Place::new(20).await;
    let store = place.store();
    let (owner, lane) = (node(), LaneId { route: "r".into(), number: 0 });
    let spec =
        RouteSpec { name: "r".into(), topics: TopicFilter::all(), order: Order::Key, lanes: 2, start: Start::Now };
    store.register(&owner, &[spec]).await.unwrap();
    for number in 0..2 {
        store.acquire(&LaneId { number, ..lane.clone() }, &owner).await.unwrap().unwrap();
    }
    // Somebody takes the first lane, and has not committed yet.
    let mut client = connect().await;
    let other = node();
    let taking = client.transaction().await.unwrap();
    let take = format!("UPDATE \"{}\".lane SET owner = $1, epoch = epoch + 1 WHERE number = 0", place.schema());
    taking.execute(&take, &[&other.id.0]).await.unwrap();
    let beating = tokio::spawn({
        let (store, owner) = (store.clone(), owner.clone());
        async move { store.heartbeat(&owner).await }
    });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1";
    let watcher = connect().await;
    let pattern = format!("%{}%FOR UPDATE%", place.schema());
    let deadline = Instant::now() + Duration::from_secs(30);
    while watcher.query_one(waits, &[&pattern]).await.unwrap().get::<_, i64>(0) == 0 {
        assert!(Instant::now() < deadline, "the heartbeat waits for the lane");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    taking.commit().await.unwrap();

    let roster = beating.await.unwrap().unwrap();
    let ours: Vec<u32> = roster.lanes.iter().filter(|s| s.owner == Some(owner.id)).map(|s| s.lane.number).collect();
    assert_eq!(ours, [1], "of what it owned, only what it still owns");
    let roster = store.heartbeat(&owner).await.unwrap();
    assert_eq!(roster.lanes[0].owner, Some(other.id));
}
