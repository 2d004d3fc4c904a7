//! Cases: a route that is split into lanes.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use postrider_core::{
    envelope::MessageId,
    key::KeyHash,
    lease::{Order, RouteSpec, Start},
    log::Settlement,
};

use super::{
    Fixture,
    owner::{HOUR, Owner, WHOLE, ids_of, keyed, keyless, node, retrying, route, several},
};

/// Every record is in exactly one lane, in the one that its key's hash says, and each lane keeps log order.
pub async fn every_record_is_in_exactly_one_lane(store: Arc<dyn Fixture>) {
    let spec = RouteSpec { lanes: 4, ..route("r") };
    let mut owners = owners(&*store, &spec).await;
    let sent: Vec<_> = (0..200).map(|i| if i % 2 == 0 { keyed(&format!("k{}", i % 31)) } else { keyless() }).collect();
    store.commit(sent.clone()).await;
    let places: HashMap<MessageId, usize> = sent.iter().enumerate().map(|(i, e)| (e.id, i)).collect();
    let mut seen = HashSet::new();
    for (number, owner) in (0..).zip(&mut owners) {
        let mut last = None;
        for record in owner.read(WHOLE).await {
            let envelope = &record.envelope;
            assert!(seen.insert(envelope.id), "a record must not be in two lanes");
            let key = envelope.key.as_ref().map(AsRef::as_ref);
            let (_, here) = owner.lease.reader.place(key, &envelope.id.0, number, 4);
            assert!(here, "lane {number} of 4 has a record that `Reader::place` puts elsewhere");
            assert!(last < Some(places[&envelope.id]), "a lane keeps log order");
            last = Some(places[&envelope.id]);
        }
    }
    assert_eq!(seen.len(), sent.len(), "every record must be in some lane");
}

/// Records without a key are spread over the lanes.
pub async fn keyless_records_are_spread(store: Arc<dyn Fixture>) {
    let mut owners = owners(&*store, &RouteSpec { lanes: 4, ..route("r") }).await;
    store.commit((0..200).map(|_| keyless()).collect()).await;
    for owner in &mut owners {
        let count = owner.read(WHOLE).await.len();
        assert!((20..=90).contains(&count), "200 records without a key over 4 lanes: one lane got {count}");
    }
}

/// In a route with total order every record has the same key.
pub async fn total_order_is_one_key(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &RouteSpec { order: Order::Total, ..route("r") }).await;
    store.commit(vec![keyed("a"), keyless(), keyed("b")]).await;
    for record in owner.read(WHOLE).await {
        assert_eq!(record.key, Some(KeyHash::TOTAL), "under total order every record has the key KeyHash::TOTAL");
    }
}

/// A new number of lanes fences every owner, and all new lanes begin at the least cursor.
pub async fn a_new_number_of_lanes_begins_at_the_least_cursor(store: Arc<dyn Fixture>) {
    let spec = RouteSpec { lanes: 2, ..route("r") };
    let mut owners = owners(&*store, &spec).await;
    let sent = several(40);
    store.commit(sent.clone()).await;
    // One lane goes to the end, the other settles its first three records.
    owners[0].ids().await;
    owners[0].advance().await;
    let page = owners[1].page(WHOLE).await;
    let advance = Some((page.marks)(3));
    owners[1].settle(Settlement { advance, ..Settlement::default() }).await.expect("settle");
    let settled: HashSet<_> = page.records[..3].iter().map(|record| record.envelope.id).collect();

    for lanes in [3, 1] {
        // Where a route begins is asked once, when it is new.
        let spec = RouteSpec { lanes, start: Start::Now, ..route("r") };
        store.log().register(&owners[0].node, &[spec]).await.expect("register");
        for owner in &mut owners {
            let late = owner.settle(Settlement::default()).await.expect_err("all lanes are fenced");
            assert!(late.is_fenced(), "a change of the number of lanes fences every owner, got {late:?}");
        }
        let mut read = HashSet::new();
        for number in 0..lanes {
            let mut next = Owner::take(&*store, &node(&["r"], HOUR), "r", number).await;
            read.extend(next.ids().await);
        }
        for envelope in &sent {
            let (_, in_lane_1) =
                owners[1].lease.reader.place(envelope.key.as_ref().map(AsRef::as_ref), &envelope.id.0, 1, 2);
            if in_lane_1 && !settled.contains(&envelope.id) {
                assert!(
                    read.contains(&envelope.id),
                    "with {lanes} lanes a record that no lane had settled was skipped"
                );
            }
        }
        let again = settled.intersection(&read).count();
        assert_eq!(again, 0, "with {lanes} lanes the new ones begin before the least cursor of the old ones");
    }
}

/// After a change of number no lane accepts an owner from before, also when the number is as it was again.
pub async fn owners_from_before_a_change_stay_fenced(store: Arc<dyn Fixture>) {
    let spec = |lanes| RouteSpec { lanes, ..route("r") };
    let mut former = owners(&*store, &spec(3)).await;
    for lanes in [1, 3] {
        store.log().register(&former[0].node, &[spec(lanes)]).await.expect("register");
    }
    let current = owners(&*store, &spec(3)).await;
    for (former, current) in former.iter_mut().zip(&current) {
        let late = former.settle(Settlement::default()).await.expect_err("an owner from before");
        assert!(late.is_fenced(), "an epoch of {} must not be given out twice, got {late:?}", former.lease.lane);
        assert!(current.lease.epoch > former.lease.epoch);
    }
}

/// Parked rows follow their keys into the new lanes.
pub async fn parked_rows_follow_their_keys(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let sent: Vec<_> = (0..12).map(|i| keyed(&format!("key-{i}"))).collect();
    let rows = sent.iter().map(|envelope| (envelope.clone(), retrying(std::time::Duration::ZERO)));
    owner.park(&*store, rows.collect()).await;
    store.log().register(&owner.node, &[RouteSpec { lanes: 3, ..route("r") }]).await.expect("register");
    let mut found = Vec::new();
    for number in 0..3 {
        let owner = Owner::take(&*store, &node(&["r"], HOUR), "r", number).await;
        let blocked = store.log().resume(&owner.lease).await.expect("resume").blocked;
        let lines = owner.due().await.lines;
        assert_eq!(blocked.len(), lines.len(), "resume and due agree on the keys of lane {number}");
        for line in &lines {
            assert_eq!(line.key.lane(3), number, "a due row of another lane");
            assert!(blocked.iter().any(|b| b.key == line.key && b.rows == 1), "resume lists every key that has a line");
            found.push(line.rows[0].record.envelope.id);
        }
    }
    found.sort();
    let mut expected = ids_of(&sent);
    expected.sort();
    assert_eq!(found, expected, "every parked row is in exactly one of the new lanes");
}

async fn owners(store: &dyn Fixture, spec: &RouteSpec) -> Vec<Owner> {
    let node = node(&[&spec.name], HOUR);
    store.log().register(&node, std::slice::from_ref(spec)).await.expect("register");
    let mut owners = Vec::new();
    for number in 0..spec.lanes {
        owners.push(Owner::take(store, &node, &spec.name, number).await);
    }
    owners
}
