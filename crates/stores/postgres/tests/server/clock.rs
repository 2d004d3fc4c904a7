//! A server whose clock goes back, as that of a standby that is promoted may. Instants are moved ahead instead.

use std::time::{Duration, Instant};

use postrider_core::{
    admin::{ParkedFilter, StoreAdmin},
    envelope::Envelope,
    lease::{LaneId, Node, NodeId, Order, RouteSpec, Start},
    log::{Log, Settlement},
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

/// A heartbeat that has the lane's lock, and extends the lease when whoever shortens leases waits for it already.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_extended_while_leases_are_shortened_is_as_long_as_it_was_extended() {
    let post = Post::new(20).await;
    post.place.clock_goes_back().await;
    let (mut client, watcher) = (connect().await, connect().await);
    let (holding, schema) = (client.transaction().await.unwrap(), post.place.schema());
    holding.execute(&format!("SELECT 1 FROM \"{schema}\".lane FOR UPDATE"), &[]).await.unwrap();
    let beating = tokio::spawn({
        let store = post.store.clone();
        async move { store.heartbeat(&brief()).await }
    });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1";
    let pattern = format!("%UPDATE \"{schema}\".\"lane\"%FROM ahead%");
    let deadline = Instant::now() + Duration::from_secs(60);
    // It waits a second at a time, and the next heartbeat tries again.
    while watcher.query_one(waits, &[&pattern]).await.unwrap().get::<_, i64>(0) == 0 {
        assert!(Instant::now() < deadline, "leases are shortened behind the lane's lock");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let extend =
        format!("UPDATE \"{schema}\".lane SET expires_at = clock_timestamp() + interval '1 hour' RETURNING expires_at");
    let extended: std::time::SystemTime = holding.query_one(&extend, &[]).await.unwrap().get(0);
    holding.commit().await.unwrap();
    beating.await.unwrap().unwrap();
    while !is_caught_up(&post).await {
        assert!(Instant::now() < deadline, "what lies ahead is taken for now");
        post.store.heartbeat(&brief()).await.unwrap();
    }
    let expires = format!("SELECT expires_at FROM \"{schema}\".lane");
    let expires: std::time::SystemTime = watcher.query_one(&expires, &[]).await.unwrap().get(0);
    assert!(expires >= extended, "{expires:?}, and it was extended to {extended:?}");
}

/// Whether nothing lies ahead any more, as far as anybody knows.
async fn is_caught_up(post: &Post) -> bool {
    let sql = format!(
        "SELECT NOT EXISTS (SELECT 1 FROM \"{0}\".node WHERE seen_at > clock_timestamp() + interval '1 second')
            AND NOT EXISTS (SELECT 1 FROM \"{0}\".route WHERE ahead_by IS NOT NULL)",
        post.place.schema()
    );
    connect().await.query_one(&sql, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn many_rows_are_moved_some_at_a_time_and_each_of_them_once() {
    const ROWS: usize = 2_500;
    let mut post = Post::new(20).await;
    let retrying = || Parked::Retrying { after: 2 * HOUR, attempts: 1, cause: Cause::new("refused", "no") };
    post.park((0..ROWS).map(|_| (Envelope::new("orders", "order.placed", "{}"), retrying())).collect()).await;
    let other = post.place.another().await;
    for round in 0..2 {
        post.place.clock_goes_back().await;
        // Whoever is first; some of it each.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_caught_up(&post).await {
            assert!(Instant::now() < deadline, "round {round}: all rows are moved");
            let (one, another) = (brief(), brief());
            let (one, another) = tokio::join!(post.store.heartbeat(&one), other.heartbeat(&another));
            assert!(one.is_ok() && another.is_ok(), "{one:?} {another:?}");
        }
        // For as long as nobody was seen before the clock went back they may wait longer.
        let waiting = format!(
            "SELECT count(*) FROM \"{}\".parked
              WHERE due_at BETWEEN clock_timestamp() + interval '110 minutes' AND clock_timestamp() + interval '121 minutes'
                AND wake_at = due_at",
            post.place.schema()
        );
        let waiting: i64 = connect().await.query_one(&waiting, &[]).await.unwrap().get(0);
        assert_eq!(waiting, ROWS as i64, "round {round}: as long as they were to wait");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_somebody_has_the_route_heartbeats_arrive_and_no_row_wakes_before_that_is_over() {
    let mut post = Post::new(20).await;
    let retrying = |after| Parked::Retrying { after, attempts: 1, cause: Cause::new("refused", "no") };
    let [soon, held] = [(); 2].map(|()| Envelope::new("orders", "order.placed", "{}"));
    post.park(vec![(soon.clone(), retrying(Duration::from_millis(1))), (held.clone(), retrying(2 * HOUR))]).await;
    post.place.clock_goes_back().await;

    // A settlement has the route's lock, and waits for a row that somebody else has.
    let schema = post.place.schema().to_owned();
    let rows = post.store.parked(&ParkedFilter::default(), None, 10).await.unwrap();
    let remove = rows.iter().filter(|row| row.envelope.id == held.id).map(|row| row.ordinal).collect();
    let (mut client, watcher) = (connect().await, connect().await);
    let holding = client.transaction().await.unwrap();
    let hold = format!("SELECT 1 FROM \"{schema}\".parked WHERE id = $1 FOR UPDATE");
    holding.execute(&hold, &[&held.id.0]).await.unwrap();
    let settling = tokio::spawn({
        let (store, lease, number) = (post.store.clone(), post.lease.clone(), post.number + 1);
        async move { store.settle(&lease, &Settlement { number, remove, ..Settlement::default() }).await }
    });
    post.number += 1;
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1";
    let pattern = format!("%DELETE FROM \"{schema}\".\"parked\"%");
    let deadline = Instant::now() + Duration::from_secs(30);
    while watcher.query_one(waits, &[&pattern]).await.unwrap().get::<_, i64>(0) == 0 {
        assert!(Instant::now() < deadline, "the settlement waits for the row");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for _ in 0..3 {
        let beat = tokio::time::timeout(Duration::from_secs(10), post.store.heartbeat(&brief())).await;
        assert!(beat.expect("a heartbeat waits for nobody who has the route").is_ok());
    }
    // By then whoever moves the rows has looked at the clock, if it did so before it had the lock.
    let noticed = format!("SELECT ahead_by IS NOT NULL FROM \"{schema}\".route");
    while !watcher.query_one(&noticed, &[]).await.unwrap().get::<_, bool>(0) {
        assert!(Instant::now() < deadline, "that the clock went back is noticed");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let now = "SELECT clock_timestamp()";
    let released_at: std::time::SystemTime = watcher.query_one(now, &[]).await.unwrap().get(0);
    holding.rollback().await.unwrap();
    settling.await.unwrap().unwrap();
    while !is_caught_up(&post).await {
        assert!(Instant::now() < deadline, "the row is moved");
        post.store.heartbeat(&brief()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let woken = format!("SELECT wake_at FROM \"{schema}\".parked WHERE id = $1");
    let woken: std::time::SystemTime = watcher.query_one(&woken, &[&soon.id.0]).await.unwrap().get(0);
    assert!(woken >= released_at, "a look may have begun at {released_at:?}, and the row wakes at {woken:?}");
    while post.take_due().await != [soon.id] {
        assert!(Instant::now() < deadline, "it comes as soon as it was to");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
