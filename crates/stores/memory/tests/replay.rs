//! What the contracts leave open about the dead rows of a replay that has ended.

use std::{sync::Arc, time::Duration};

use postrider_core::{
    admin::{Actor, ParkedFilter, ReplaySpec, StoreAdmin},
    enlist::Enlist,
    envelope::Envelope,
    lease::{LaneId, Node, NodeId, Order, ReplayFilter, RouteSpec, Start},
    limits::Limits,
    log::{Log, PageLimit, RecordRef, Settlement},
    parked::{Cause, DueLimit, Parked},
    topic::TopicFilter,
};
use postrider_store_memory::{Memory, MemoryStore};

/// Otherwise the row would be due in a lane that nobody can own.
#[tokio::test]
async fn redriving_a_dead_row_of_a_finished_replay_brings_its_lane_back() {
    let store = MemoryStore::new();
    let node = Node {
        id: NodeId::generate(),
        name: "n".into(),
        routes: Vec::new(),
        lease_life: Duration::from_hours(1),
        standstills: Vec::new(),
    };
    let topics = TopicFilter::all();
    let route = RouteSpec { name: "r".into(), topics, order: Order::Key, lanes: 1, start: Start::Oldest };
    store.register(&node, &[route]).await.unwrap();
    let mut transaction = store.begin();
    let batch = Limits::default().check(vec![Envelope::new("t", "n", "").with_key("a")]);
    transaction.append(&Memory, batch).unwrap();
    transaction.commit();
    let actor = Actor::new("operator");
    let spec = ReplaySpec { route: "r".into(), to: None, filter: ReplayFilter::default(), rate: None };
    let lane = LaneId { route: store.replay(&spec, &actor).await.unwrap(), number: 0 };
    let lease = store.acquire(&lane, &node).await.unwrap().unwrap();
    let cursor = store.resume(&lease).await.unwrap().cursor;
    let page = store.read(&lease, &cursor, PageLimit { records: 10, bytes: 1000 }).await.unwrap();
    let dead = Parked::Dead { attempts: 3, cause: Cause::new("c", "d"), blocks: true };
    let park = vec![(RecordRef::new(&page.records, 0), dead)];
    let settlement = Settlement { number: 1, advance: Some(page.end.clone()), park, ..Settlement::default() };
    store.settle(&lease, &settlement).await.unwrap();
    assert!(store.finish(&lease).await.unwrap());
    assert!(store.acquire(&lane, &node).await.unwrap().is_none());

    assert_eq!(store.redrive(&ParkedFilter::default(), &actor).await.unwrap(), 1);
    let lease = store.acquire(&lane, &node).await.unwrap().expect("the replay goes on for the sake of the row");
    let limit = DueLimit { lines: 10, per_line: 10, bytes: 1000 };
    let due = store.due(&lease, limit).await.unwrap();
    let ordinal = due.lines[0].rows[0].ordinal;
    store.settle(&lease, &Settlement { number: 1, remove: vec![ordinal], ..Settlement::default() }).await.unwrap();
    assert!(store.finish(&lease).await.unwrap());
    let overview = store.overview().await.unwrap();
    assert_eq!(overview.routes.iter().map(|r| Arc::clone(&r.route)).collect::<Vec<_>>(), [Arc::from("r")]);
}
