//! Who owns a lane: stale owners, dead ones, and clocks that go back.

use std::time::Duration;

use mongodb::bson::doc;
use postrider_core::{
    ErrorKind,
    envelope::Envelope,
    lease::LaneId,
    log::{Log, PageLimit, RecordRef, Settlement},
    parked::{Cause, DueLimit, Parked},
};
use postrider_store_mongodb::{MongoStore, planted::Plant};

use postrider_testkit::store::Fixture;

use crate::{
    HOUR, Reader, named,
    support::{Place, node, spec, url},
};

/// An owner parks while another takes its lane. If its settlement is answered with Ok, the other must have seen the row.
async fn hidden_rows(plant: Plant, rounds: u32) -> u32 {
    let place = Place::with(&url(), |builder| builder.plant(plant)).await;
    let store = place.store();
    let mut owner = Reader::of(&store, "r").await;
    let mut hidden = 0;
    for round in 0..rounds {
        place.commit(vec![Envelope::new("t", "n", "{}").with_key(format!("key-{round}"))]).await;
        let page = store.read(&owner.lease, &owner.cursor, PageLimit { records: 10, bytes: 1 << 20 }).await.unwrap();
        let parked = Parked::Retrying { after: HOUR, attempts: 1, cause: Cause::new("test", "planted") };
        let park = vec![(RecordRef::new(&page.records, 0), parked)];
        let settlement = Settlement { number: 1, park, ..Settlement::default() };
        let taking = async {
            let next = node("r", HOUR);
            // Each round meets the settlement at another moment.
            tokio::time::sleep(Duration::from_millis(u64::from(round % 12))).await;
            // Whoever has it is dead, so to speak.
            let expired = doc! { "$set": { "expires_at": 0_i64 } };
            place.collection("lane").update_many(doc! {}, expired).await.unwrap();
            let lane = LaneId { route: "r".into(), number: 0 };
            let lease = store.acquire(&lane, &next).await.unwrap().expect("the lane is free");
            let blocked = store.resume(&lease).await.unwrap().blocked.len();
            (lease, blocked)
        };
        let before = store.resume(&owner.lease).await.unwrap().blocked.len();
        let (settled, (lease, blocked)) = tokio::join!(store.settle(&owner.lease, &settlement), taking);
        match settled {
            Ok(()) if blocked == before => hidden += 1,
            Ok(()) => {}
            Err(error) => assert!(error.is_fenced(), "{error:?}"),
        }
        let cursor = store.resume(&lease).await.unwrap().cursor;
        owner = Reader { store: store.clone(), lease, cursor, number: 0 };
        owner.rest(10).await;
        owner.settle().await;
        let lane = LaneId { route: "r".into(), number: 0 };
        let lease = store.acquire(&lane, &node("r", HOUR)).await.unwrap();
        assert!(lease.is_none(), "somebody has it");
        owner = again(&store, owner).await;
        if hidden > 0 && plant != Plant::None {
            println!("{plant:?}: round {round}");
            break;
        }
    }
    hidden
}

/// The same lane under the next epoch, in which settlements count from one.
async fn again(store: &MongoStore, owner: Reader) -> Reader {
    store.release(&owner.lease).await.unwrap();
    let lease = store.acquire(&owner.lease.lane, &node("r", HOUR)).await.unwrap().expect("the lane is free");
    let cursor = store.resume(&lease).await.unwrap().cursor;
    Reader { lease, cursor, ..owner }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stale_owner_parks_nothing_that_the_next_one_does_not_see() {
    assert_eq!(hidden_rows(Plant::None, 25).await, 0);
    assert!(hidden_rows(Plant::FenceWithoutWrite, 4_000).await > 0, "a look at the epoch is no fence");
}

/// A relay that is killed in the middle of a settlement leaves its transaction open, and the lane written in it. Others must not
/// wait for the server to end that, for they have heartbeats to send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_the_dead_hold_keeps_nobody_waiting() {
    let place = Place::new().await;
    let store = place.store();
    let (killed, next) = (Reader::of(&store, "r").await, node("r", Duration::from_secs(3)));
    store.register(&next, &[spec("r"), spec("s")]).await.unwrap();
    let lanes = place.collection("lane");
    lanes.update_many(doc! {}, doc! { "$set": { "expires_at": 0_i64 } }).await.unwrap();
    let mut forgotten = place.client.start_session().await.unwrap();
    forgotten.start_transaction().await.unwrap();
    let written = doc! { "$inc": { "beat": 1_i64 } };
    lanes.update_one(doc! { "route": "r" }, written.clone()).session(&mut forgotten).await.unwrap();

    let refused = store.acquire(&killed.lease.lane, &next).await.unwrap_err();
    assert_eq!((refused.kind(), refused.is_transient()), (ErrorKind::Conflict, true), "{refused:?}");
    assert!(refused.to_string().contains("still open"), "{refused}");
    let other = LaneId { route: "s".into(), number: 0 };
    store.acquire(&other, &next).await.unwrap().expect("another lane is to be had");
    store.heartbeat(&next).await.expect("whoever has other lanes keeps them");
    forgotten.abort_transaction().await.unwrap();
    store.acquire(&killed.lease.lane, &next).await.unwrap().expect("the server has ended it");

    // Nor for ever where it is a lane of its own.
    forgotten.start_transaction().await.unwrap();
    lanes.update_one(doc! { "route": "r" }, written).session(&mut forgotten).await.unwrap();
    let refused = store.heartbeat(&next).await.unwrap_err();
    assert_eq!((refused.kind(), refused.is_transient()), (ErrorKind::Unavailable, true), "{refused:?}");
    let retired = store.retire(next.id).await.unwrap_err();
    assert_eq!((retired.kind(), retired.is_transient()), (ErrorKind::Conflict, true), "{retired:?}");
    forgotten.abort_transaction().await.unwrap();
    store.heartbeat(&next).await.unwrap();
    store.retire(next.id).await.unwrap();
}

/// The clock of the last primary was an hour ahead, and nobody but one node was there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_has_gone_back_holds_up_no_row_of_the_only_node() {
    let place = Place::new().await;
    let store = place.store();
    let parked = Parked::Retrying { after: Duration::ZERO, attempts: 1, cause: Cause::new("refused", "at first") };
    let only = node("r", HOUR);
    store.register(&only, &[spec("r")]).await.unwrap();
    let lane = LaneId { route: "r".into(), number: 0 };
    let lease = store.acquire(&lane, &only).await.unwrap().expect("the lane is free");
    let cursor = store.resume(&lease).await.unwrap().cursor;
    place.commit(vec![named("head"), named("held")]).await;
    let page = store.read(&lease, &cursor, PageLimit { records: 10, bytes: 1 << 20 }).await.unwrap();
    let park = vec![(RecordRef::new(&page.records, 0), parked), (RecordRef::new(&page.records, 1), Parked::Held)];
    let settlement = Settlement { number: 1, advance: Some(page.end.clone()), park, ..Settlement::default() };
    store.settle(&lease, &settlement).await.unwrap();
    let due = async || {
        let due = store.due(&lease, DueLimit { lines: 9, per_line: 9, bytes: 1 << 20 }).await.unwrap();
        due.lines.iter().map(|line| line.rows.len()).sum::<usize>()
    };
    assert_eq!(due().await, 2);
    let hour = 3_600_000_000_i64;
    let ahead = async |with_node: bool| {
        let rows = doc! { "due_at": { "$ne": null } };
        let (row, head) = (doc! { "$inc": { "due_at": hour, "set_at": hour } }, doc! { "$inc": { "wake_at": hour } });
        place.collection("parked").update_many(rows, row).await.unwrap();
        place.collection("parked").update_many(doc! { "wake_at": { "$ne": null } }, head).await.unwrap();
        if with_node {
            place.collection("node").update_many(doc! {}, doc! { "$inc": { "seen_at": hour } }).await.unwrap();
            place.collection("lane").update_many(doc! {}, doc! { "$inc": { "expires_at": hour } }).await.unwrap();
        }
        assert_eq!(due().await, 0);
    };
    ahead(true).await;
    store.heartbeat(&only).await.unwrap();
    assert_eq!(due().await, 2, "its own last heartbeat tells");
    // One that has said goodbye leaves nothing behind that tells.
    ahead(false).await;
    store.register(&node("r", HOUR), &[spec("r")]).await.unwrap();
    assert_eq!(due().await, 2, "the rows themselves tell whoever starts");
}
