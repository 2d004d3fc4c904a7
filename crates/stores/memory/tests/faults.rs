//! A faulty log fails as told, and what it wraps stays whole: a caller that repeats itself gets through.

use std::sync::Arc;

use postrider_core::{
    ErrorKind,
    lease::{LaneId, Lease, Node, NodeId, Order, RouteSpec, Start},
    log::{Log, Settlement},
    topic::TopicFilter,
};
use postrider_store_memory::MemoryStore;
use postrider_testkit::fault::{FaultyLog, LogFaults, Moment, Operation};

fn faulty() -> (MemoryStore, FaultyLog, LogFaults) {
    let store = MemoryStore::new();
    let (log, faults) = FaultyLog::new(Arc::new(store.clone()));
    (store, log, faults)
}

async fn owned(log: &dyn Log) -> (Node, Lease) {
    let lease_life = std::time::Duration::from_hours(1);
    let node = Node {
        id: NodeId::generate(),
        name: "n".into(),
        routes: vec!["r".into()],
        lease_life,
        standstills: Vec::new(),
    };
    let topics = TopicFilter::all();
    let route = RouteSpec { name: "r".into(), topics, order: Order::Key, lanes: 1, start: Start::Oldest };
    log.register(&node, &[route]).await.expect("register");
    let lease = log.acquire(&lane(), &node).await.expect("acquire").expect("the lane is free");
    (node, lease)
}

fn lane() -> LaneId {
    LaneId { route: "r".into(), number: 0 }
}

#[tokio::test]
async fn an_error_strikes_before_or_after_the_operation_is_applied() {
    let (store, log, faults) = faulty();
    let (node, lease) = owned(&log).await;
    for (moment, released) in [(Moment::Before, false), (Moment::After, true)] {
        faults.fail_next(Operation::Release, moment);
        let error = log.release(&lease).await.unwrap_err();
        assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Unavailable, true));
        let free = store.heartbeat(&node).await.unwrap().lanes[0].owner.is_none();
        assert_eq!(free, released, "{moment:?}");
    }
    log.release(&lease).await.expect("a fault strikes once, and a release can be repeated");
}

#[tokio::test]
async fn a_fence_holds_until_it_is_lifted() {
    let (_, log, faults) = faulty();
    let (_, lease) = owned(&log).await;
    faults.fence(true);
    assert!(log.settle(&lease, &Settlement { number: 1, ..Settlement::default() }).await.unwrap_err().is_fenced());
    faults.fence(false);
    log.settle(&lease, &Settlement { number: 1, ..Settlement::default() }).await.unwrap();
}

#[tokio::test]
async fn a_mix_of_faults_is_survived_by_repeating() {
    let (store, log, faults) = faulty();
    let (node, lease) = owned(&log).await;
    faults.mix(300, 300, 42);
    let mut failures = 0;
    for number in 1..=50 {
        // Ends because less than two thirds of the calls fail.
        while log.settle(&lease, &Settlement { number, ..Settlement::default() }).await.is_err() {
            failures += 1;
        }
    }
    assert!(failures > 20, "the mix must have struck: {failures}");
    assert_eq!(store.heartbeat(&node).await.unwrap().lanes[0].epoch, lease.epoch);
}

/// Its heartbeats extend the lease, so nobody else could ever take the lane from a node that does not know it has it.
#[tokio::test]
async fn a_node_whose_acquire_went_unanswered_can_repeat_it() {
    let (_, log, faults) = faulty();
    let (node, lease) = owned(&log).await;
    log.release(&lease).await.unwrap();
    faults.fail_next(Operation::Acquire, Moment::After);
    log.acquire(&lane(), &node).await.unwrap_err();
    log.heartbeat(&node).await.unwrap();
    let again = log.acquire(&lane(), &node).await.unwrap().expect("its own lane is given to it again");
    assert!(again.epoch > lease.epoch);
}
