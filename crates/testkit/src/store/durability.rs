//! Cases: what survives a crash. Only stores that are `durable` are asked.

use std::sync::Arc;

use postrider_core::{
    admin::{Actor, ParkedFilter, ReplaySpec},
    lease::{ReplayFilter, RouteSpec},
    log::Settlement,
    parked::Parked,
};

use super::{
    Fixture,
    owner::{HOUR, Owner, WHOLE, dead, ids_of, keyed, lane, node, retrying, route, several},
};

/// What was committed is there, what was not is not.
pub async fn committed_records_survive(store: Arc<dyn Fixture>) {
    if !store.log().capabilities().durable {
        return;
    }
    let sent = several(20);
    store.commit(sent.clone()).await;
    let mut open = store.begin().await;
    open.append(several(3)).await;
    // The process dies with an open transaction.
    drop(open);
    store.reopen().await;
    let mut owner = Owner::of(&*store, &route("r")).await;
    assert_eq!(owner.ids().await, ids_of(&sent), "a commit survives a crash, an open transaction does not");
}

/// Cursor, epoch and lease survive: the lane goes on where it was, under a higher epoch.
pub async fn cursor_and_epoch_survive(store: Arc<dyn Fixture>) {
    if !store.log().capabilities().durable {
        return;
    }
    let mut owner = Owner::of(&*store, &route("r")).await;
    let sent = several(6);
    store.commit(sent.clone()).await;
    let advance = Some((owner.page(WHOLE).await.marks)(2));
    owner.settle(Settlement { advance, ..Settlement::default() }).await.expect("settle");
    store.reopen().await;
    let taken = store.log().acquire(&lane("r", 0), &node(&["r"], HOUR)).await.expect("acquire");
    assert!(taken.is_none(), "a lease survives a crash of the store");
    let lease = owner.lease.clone();
    let again = Settlement { number: owner.number, advance: Some(owner.cursor.clone()), ..Settlement::default() };
    store.log().settle(&lease, &again).await.expect("a repeated settlement is answered with Ok after a crash too");
    store.log().retire(owner.node.id).await.expect("retire");
    store.log().register(&owner.node, &[route("r")]).await.expect("register");
    let mut next = Owner::take(&*store, &node(&["r"], HOUR), "r", 0).await;
    assert!(next.lease.epoch > lease.epoch, "epochs rise over a crash");
    assert_eq!(next.ids().await, ids_of(&sent[2..]), "the cursor, and the number of the last settlement, survive");
}

/// Parked rows survive with their lines.
pub async fn parked_rows_survive(store: Arc<dyn Fixture>) {
    if !store.log().capabilities().durable {
        return;
    }
    let mut owner = Owner::of(&*store, &route("r")).await;
    let rows = vec![
        (keyed("a"), retrying(std::time::Duration::ZERO)),
        (keyed("a"), Parked::Held),
        (keyed("b"), dead(true)),
        (keyed("c"), Parked::Scheduled { after: HOUR }),
    ];
    owner.park(&*store, rows).await;
    let before = listing(&*store).await;
    let blocked = store.log().resume(&owner.lease).await.expect("resume").blocked.len();
    store.reopen().await;
    assert_eq!(listing(&*store).await, before, "parked rows survive a crash as they were");
    let resumed = store.log().resume(&owner.lease).await.expect("resume");
    assert_eq!((resumed.blocked.len(), blocked), (2, 2), "blocked keys survive a crash");
    let later = keyed("z");
    store.commit(vec![later.clone()]).await;
    let mut next = reopened(&*store, &owner).await;
    let records = next.read(WHOLE).await;
    let park = records.into_iter().map(|record| (record, Parked::Held)).collect();
    next.settle(Settlement { park, ..Settlement::default() }).await.expect("settle");
    let after = listing(&*store).await;
    assert_eq!(after.len(), before.len() + 1);
    assert_eq!(after.last().expect("not empty").0, later.id, "ordinals ascend over a crash");
}

/// Pauses, replays and the audit record survive.
pub async fn what_operators_did_survives(store: Arc<dyn Fixture>) {
    if !store.log().capabilities().durable {
        return;
    }
    Owner::of(&*store, &RouteSpec { lanes: 2, ..route("r") }).await;
    let actor = Actor { name: "anna".into(), reason: Some("ticket 7".into()) };
    store.admin().pause("r", &actor).await.expect("pause");
    let filter = ReplayFilter { key: Some("a".into()), ..ReplayFilter::default() };
    let spec = ReplaySpec { route: "r".into(), to: None, filter: filter.clone(), rate: Some(7) };
    let name = store.admin().replay(&spec, &actor).await.expect("replay");
    let audit = store.admin().audit(10).await.expect("audit");
    store.reopen().await;
    assert_eq!(store.admin().audit(10).await.expect("audit"), audit, "the audit record survives a crash");
    let overview = store.admin().overview().await.expect("overview");
    let route = overview.routes.iter().find(|status| &*status.route == "r").expect("the route survives");
    assert_eq!((route.paused.as_ref(), route.lanes.len()), (Some(&actor), 2), "a pause survives a crash");
    let replay = Owner::take(&*store, &node(&["r"], HOUR), &name, 0).await;
    let about = replay.lease.reader.replay.as_ref().expect("a replay");
    assert_eq!((&about.filter, about.rate), (&filter, Some(7)), "a replay survives a crash with its filter and rate");
}

/// The same lease in the hands of the same owner, on the reopened store.
async fn reopened(store: &dyn Fixture, owner: &Owner) -> Owner {
    store.log().retire(owner.node.id).await.expect("retire");
    Owner::take(store, &node(&["r"], HOUR), "r", 0).await
}

async fn listing(store: &dyn Fixture) -> Vec<(postrider_core::envelope::MessageId, String)> {
    let rows = store.admin().parked(&ParkedFilter::default(), None, 100).await.expect("list parked rows");
    let shown = |row: &postrider_core::admin::ParkedRow| {
        (row.envelope.id, format!("{:?} {} {} {} {:?}", row.ordinal, row.state, row.head, row.attempts, row.cause))
    };
    rows.iter().map(shown).collect()
}
