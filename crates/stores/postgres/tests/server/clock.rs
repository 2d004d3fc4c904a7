//! A server whose clock goes back, as that of a standby that is promoted may. Instants are moved ahead instead.

use std::time::{Duration, Instant};

use postrider_core::{
    envelope::Envelope,
    lease::{LaneId, Node, NodeId, Order, RouteSpec, Start},
    log::Log,
    parked::{Cause, Parked},
    time::Timestamp,
    topic::TopicFilter,
};
use postrider_store_postgres::PostgresStore;

use crate::{
    Post, node,
    support::{Place, connect},
};

const HOUR: Duration = Duration::from_secs(3600);

impl Place {
    /// As if everything had been written by a clock that is an hour ahead.
    async fn clock_goes_back(&self) {
        let (client, schema) = (connect().await, self.schema());
        let hour = "interval '1 hour'";
        let sql = format!(
            "UPDATE \"{schema}\".node SET seen_at = seen_at + {hour};
             UPDATE \"{schema}\".lane SET expires_at = expires_at + {hour} WHERE owner IS NOT NULL;
             UPDATE \"{schema}\".parked SET wake_at = wake_at + {hour},
                    due_at = CASE WHEN deliver_at IS NULL THEN due_at + {hour} ELSE due_at END"
        );
        client.batch_execute(&sql).await.unwrap();
    }
}

/// With a lease of a second.
fn brief() -> Node {
    Node { lease_life: Duration::from_secs(1), ..node() }
}

fn route() -> RouteSpec {
    RouteSpec { name: "r".into(), topics: TopicFilter::all(), order: Order::Key, lanes: 1, start: Start::Oldest }
}

fn lane() -> LaneId {
    LaneId { route: "r".into(), number: 0 }
}

async fn until_taken(store: &PostgresStore, node: &Node, mut beat: impl AsyncFnMut()) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while store.acquire(&lane(), node).await.unwrap().is_none() {
        assert!(Instant::now() < deadline, "the lease of the dead runs out");
        beat().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_a_dead_owner_runs_out_though_it_lies_ahead() {
    let place = Place::new(20).await;
    let (store, dead, heir) = (place.store(), brief(), brief());
    store.register(&dead, &[route()]).await.unwrap();
    store.acquire(&lane(), &dead).await.unwrap().expect("a free lane");
    place.clock_goes_back().await;
    store.register(&heir, &[route()]).await.unwrap();
    until_taken(&store, &heir, async || ()).await;

    // One that runs already learns of it by its heartbeat.
    place.clock_goes_back().await;
    let next = Node { id: NodeId::generate(), ..brief() };
    until_taken(&store, &next, async || drop(store.heartbeat(&next).await.unwrap())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_wait_as_long_as_they_were_to_wait() {
    let mut post = Post::new(20).await;
    let cause = || Cause::new("refused", "no");
    let at = Timestamp::from_micros(i64::MAX / 4);
    let [soon, late, timed] = [(); 3].map(|()| Envelope::new("orders", "order.placed", "{}"));
    let timed = Envelope { deliver_at: Some(at), ..timed };
    post.park(vec![
        (soon.clone(), Parked::Retrying { after: Duration::from_millis(1), attempts: 1, cause: cause() }),
        (late, Parked::Retrying { after: 2 * HOUR, attempts: 1, cause: cause() }),
        (timed, Parked::Scheduled { after: 2 * HOUR }),
    ])
    .await;
    post.place.clock_goes_back().await;
    assert_eq!(post.take_due().await, [], "an hour ahead");
    post.store.heartbeat(&brief()).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let due = post.take_due().await;
        if due == [soon.id] {
            break;
        }
        assert!(due.is_empty() && Instant::now() < deadline, "{due:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let client = connect().await;
    let left = format!(
        "SELECT count(*) FILTER (WHERE state = 'retrying' AND due_at < clock_timestamp() + interval '2 hours'),
                count(*) FILTER (WHERE state = 'scheduled' AND due_at > clock_timestamp() + interval '1 hour')
           FROM \"{}\".parked",
        post.place.schema()
    );
    let row = client.query_one(&left, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (1, 1), "once, and not what an application has scheduled");
}
