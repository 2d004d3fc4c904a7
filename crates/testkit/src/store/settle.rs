//! Cases: what one settlement does, rule by rule.

use std::{sync::Arc, time::Duration};

use postrider_core::{
    admin::{Actor, ParkedFilter, ParkedRow},
    log::Settlement,
    parked::{Ordinal, Parked, ParkedState},
};

use super::{
    Fixture,
    owner::{HOUR, Owner, WHOLE, dead, ids_of, keyed, keyless, node, retrying, route, several},
};

/// The cursor is kept, and the next owner reads on behind it.
pub async fn the_cursor_is_kept(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let sent = several(6);
    store.commit(sent.clone()).await;
    let page = owner.page(WHOLE).await;
    let mark = (page.marks)(4);
    owner.settle(Settlement { advance: Some(mark.clone()), ..Settlement::default() }).await.expect("settle");
    assert_eq!(store.log().resume(&owner.lease).await.expect("resume").cursor, mark);
    store.log().retire(owner.node.id).await.expect("retire");
    let mut next = Owner::take(&*store, &node(&["r"], HOUR), "r", 0).await;
    assert_eq!(next.ids().await, ids_of(&sent[4..]), "the next owner reads on exactly behind the settled cursor");
}

/// Without a cursor in the settlement the stored one stays.
pub async fn without_an_advance_the_cursor_stays(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    store.commit(several(2)).await;
    owner.ids().await;
    owner.advance().await;
    owner.settle(Settlement::default()).await.expect("settle");
    let resumed = store.log().resume(&owner.lease).await.expect("resume");
    assert_eq!(resumed.cursor, owner.cursor, "a settlement without `advance` leaves the cursor where it is");
}

/// A fenced settlement writes nothing at all.
pub async fn a_fenced_settlement_writes_nothing(store: Arc<dyn Fixture>) {
    let mut former = Owner::of(&*store, &route("r")).await;
    let (gone, changed, new) = (keyed("gone"), keyed("changed"), keyed("new"));
    let rows = vec![(gone.clone(), retrying(HOUR)), (changed.clone(), retrying(HOUR))];
    former.park(&*store, rows).await;
    let before = rows_of(&*store).await;
    store.commit(vec![new]).await;
    let records = former.read(WHOLE).await;
    store.log().release(&former.lease).await.expect("release");
    let next = Owner::take(&*store, &node(&["r"], HOUR), "r", 0).await;
    let settlement = Settlement {
        advance: Some(former.cursor.clone()),
        remove: vec![before[0].ordinal],
        park: records.into_iter().map(|record| (record, Parked::Held)).collect(),
        change: vec![(before[1].ordinal, dead(true))],
        ..Settlement::default()
    };
    let error = former.settle(settlement).await.expect_err("a stale owner is fenced");
    assert!(error.is_fenced(), "a stale epoch is answered with Fenced, not with {error:?}");
    let after = rows_of(&*store).await;
    assert_eq!(summary(&after), summary(&before), "a fenced settlement must not touch any row");
    let resumed = store.log().resume(&next.lease).await.expect("resume");
    assert_eq!(resumed.cursor, next.cursor, "a fenced settlement must not move the cursor");
}

/// A settlement that is repeated under its number is recognised, and does not bring back what an operator discarded.
pub async fn a_repeated_settlement_is_recognised_by_its_number(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    store.commit(vec![keyed("a")]).await;
    let park = owner.read(WHOLE).await.into_iter().map(|record| (record, dead(true))).collect();
    let settlement = Settlement { number: 1, advance: Some(owner.cursor.clone()), park, ..Settlement::default() };
    let log = store.log();
    log.settle(&owner.lease, &settlement).await.expect("settle");
    let discarded = store.admin().discard(&ParkedFilter::default(), &Actor::new("operator")).await.expect("discard");
    assert_eq!(discarded, 1);
    log.settle(&owner.lease, &settlement).await.expect("a repeated settlement is answered with Ok");
    assert!(
        rows_of(&*store).await.is_empty(),
        "a repeated settlement must be recognised by its number, not applied again: it brought back a discarded row"
    );
}

/// A settlement that was given up for lost and arrives late, behind its successors, changes nothing.
pub async fn a_settlement_that_arrives_late_changes_nothing(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    store.commit(vec![keyed("a")]).await;
    let before = owner.cursor.clone();
    let park = owner.read(WHOLE).await.into_iter().map(|record| (record, dead(true))).collect();
    let log = store.log();
    let late = Settlement { number: 1, advance: Some(before), park, ..Settlement::default() };
    for number in [1, 2] {
        let advance = Some(owner.cursor.clone());
        let settlement = Settlement { number, advance, ..Settlement::default() };
        log.settle(&owner.lease, &settlement).await.expect("settle");
    }
    log.settle(&owner.lease, &late).await.expect("a settlement with a number that is over is answered with Ok");
    assert!(rows_of(&*store).await.is_empty(), "a number that is not greater than the last one applied writes nothing");
    let resumed = log.resume(&owner.lease).await.expect("resume");
    assert_eq!(resumed.cursor, owner.cursor, "a settlement that arrives late must not set the cursor back");
}

/// Numbers begin again with every epoch.
pub async fn numbers_count_within_an_epoch(store: Arc<dyn Fixture>) {
    let mut first = Owner::of(&*store, &route("r")).await;
    first.settle(Settlement::default()).await.expect("settle");
    store.log().release(&first.lease).await.expect("release");
    let mut second = Owner::take(&*store, &node(&["r"], HOUR), "r", 0).await;
    second.park(&*store, vec![(keyed("a"), retrying(HOUR))]).await;
    assert_eq!(second.number, 1);
    assert_eq!(rows_of(&*store).await.len(), 1, "settlement 1 of a new epoch is no repetition of the old epoch's 1");
}

/// Parking gives ascending ordinals in the order given, and later parkings stand behind earlier ones.
pub async fn parking_gives_ascending_ordinals(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let sent = several(6);
    let parked = |envelopes: &[postrider_core::envelope::Envelope]| {
        envelopes.iter().map(|envelope| (envelope.clone(), retrying(HOUR))).collect::<Vec<_>>()
    };
    owner.park(&*store, parked(&sent[..4])).await;
    owner.park(&*store, parked(&sent[4..])).await;
    let rows = rows_of(&*store).await;
    assert_eq!(ids_of_rows(&rows), ids_of(&sent), "rows stand in the order of parking");
    assert!(rows.windows(2).all(|pair| pair[0].ordinal < pair[1].ordinal), "ordinals ascend");
}

/// A parked row is a whole copy.
pub async fn a_parked_row_is_a_copy(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let sent = crate::envelopes::specimens();
    owner.park(&*store, sent.iter().map(|envelope| (envelope.clone(), dead(false))).collect()).await;
    let rows = rows_of(&*store).await;
    assert_eq!(rows.len(), sent.len());
    for (row, envelope) in rows.iter().zip(&sent) {
        assert_eq!(&row.envelope, envelope, "a parked row holds every field of its envelope");
    }
}

/// Every state keeps its details.
pub async fn every_state_keeps_its_details(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let states = [Parked::Scheduled { after: HOUR }, retrying(HOUR), Parked::Held, dead(true), dead(false)];
    owner.park(&*store, states.into_iter().enumerate().map(|(i, s)| (keyed(&format!("k{i}")), s)).collect()).await;
    let rows = rows_of(&*store).await;
    let shown: Vec<_> = rows.iter().map(|row| (row.state, row.attempts, row.due_in.is_some(), row.head)).collect();
    assert_eq!(
        shown,
        [
            (ParkedState::Scheduled, 0, true, false),
            (ParkedState::Retrying, 1, true, true),
            (ParkedState::Held, 0, false, true),
            (ParkedState::Dead, 10, false, true),
            (ParkedState::Dead, 10, false, false),
        ],
        "state, attempts, whether it waits for time, whether it is the head of a line"
    );
    let cause = Some(("test-cause".to_owned(), "the test says so".to_owned()));
    let causes: Vec<_> = rows.iter().map(|row| row.cause.clone()).collect();
    assert_eq!(causes, [None, cause.clone(), None, cause.clone(), cause], "cause code and detail are kept");
}

/// A message that has a row already keeps it as it is.
pub async fn an_existing_row_is_kept(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let (known, new) = (keyed("a"), keyed("b"));
    let before = owner.cursor.clone();
    owner.park(&*store, vec![(known.clone(), retrying(HOUR))]).await;
    let kept = rows_of(&*store).await;
    store.commit(vec![new.clone()]).await;
    // As after a lost history: the same record is read and parked once more.
    owner.cursor = before;
    let records = owner.read(WHOLE).await;
    let park = records.into_iter().map(|record| (record, dead(true))).collect();
    owner.settle(Settlement { park, ..Settlement::default() }).await.expect("settle");
    let rows = rows_of(&*store).await;
    assert_eq!(ids_of_rows(&rows), [known.id, new.id], "a message has one row per route");
    assert_eq!(summary(&rows[..1]), summary(&kept), "the row that is there already stays as it is");
}

/// Two messages that were enqueued separately under one id are two messages: each has a row.
pub async fn two_messages_of_one_id_have_two_rows(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let first = keyed("a");
    let second = postrider_core::envelope::Envelope { payload: "another".into(), ..first.clone() };
    let before = owner.cursor.clone();
    owner.park(&*store, vec![(first.clone(), retrying(HOUR))]).await;
    owner.park(&*store, vec![(second.clone(), retrying(HOUR))]).await;
    let payloads = |rows: &[ParkedRow]| rows.iter().map(|row| row.envelope.payload.clone()).collect::<Vec<_>>();
    let rows = rows_of(&*store).await;
    assert_eq!(payloads(&rows), [first.payload, second.payload], "the second is not taken for the first");
    // Read and parked once more, each is known.
    owner.cursor = before;
    let records = owner.read(WHOLE).await;
    assert_eq!(records.len(), 2);
    let park = records.into_iter().map(|record| (record, dead(true))).collect();
    owner.settle(Settlement { park, ..Settlement::default() }).await.expect("settle");
    assert_eq!(summary(&rows_of(&*store).await), summary(&rows), "the rows that are there already stay as they are");
}

/// Two routes park the same message without disturbing each other.
pub async fn routes_park_for_themselves(store: Arc<dyn Fixture>) {
    let (mut one, mut two) = (Owner::of(&*store, &route("one")).await, Owner::of(&*store, &route("two")).await);
    let envelope = keyed("a");
    one.park(&*store, vec![(envelope.clone(), dead(true))]).await;
    let park = two.read(WHOLE).await.into_iter().map(|record| (record, retrying(Duration::ZERO))).collect();
    two.settle(Settlement { park, ..Settlement::default() }).await.expect("settle");
    assert_eq!(rows_of(&*store).await.len(), 2, "each route has its own row of a message");
    assert!(one.due().await.lines.is_empty(), "the rows of one route are not due in another");
    assert_eq!(two.due().await.lines.len(), 1);
}

/// Rows that an operator has removed meanwhile are skipped, and the rest of the settlement is applied.
pub async fn rows_that_are_gone_are_skipped(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    owner.park(&*store, vec![(keyed("a"), retrying(HOUR)), (keyed("b"), retrying(HOUR))]).await;
    let rows = rows_of(&*store).await;
    let (a, b) = (rows[0].ordinal, rows[1].ordinal);
    let id = Some(rows[0].envelope.id);
    let filter = ParkedFilter { id, ..ParkedFilter::default() };
    store.admin().discard(&filter, &Actor::new("operator")).await.expect("discard");
    let unknown = Ordinal(1 << 40);
    let settlement = Settlement {
        remove: vec![a, unknown],
        change: vec![(a, dead(true)), (b, dead(true))],
        ..Settlement::default()
    };
    owner.settle(settlement).await.expect("rows that are gone are skipped, not an error");
    let rows = rows_of(&*store).await;
    assert_eq!(rows.iter().map(|row| (row.ordinal, row.state)).collect::<Vec<_>>(), [(b, ParkedState::Dead)]);
}

/// Removing comes before parking: a row that is removed and parked in one settlement is there afterwards.
pub async fn removing_comes_before_parking(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let before = owner.cursor.clone();
    owner.park(&*store, vec![(keyed("a"), retrying(HOUR))]).await;
    let old = rows_of(&*store).await[0].ordinal;
    owner.cursor = before;
    let park = owner.read(WHOLE).await.into_iter().map(|record| (record, dead(true))).collect();
    owner.settle(Settlement { remove: vec![old], park, ..Settlement::default() }).await.expect("settle");
    let rows = rows_of(&*store).await;
    assert_eq!(rows.len(), 1, "`remove` comes before `park`");
    assert!(rows[0].ordinal > old && rows[0].state == ParkedState::Dead);
}

/// Parking comes before changing: a row that is held again stands behind what the same settlement parks.
pub async fn parking_comes_before_changing(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let (timed, new) = (keyed("a"), keyed("a"));
    owner.park(&*store, vec![(timed.clone(), Parked::Scheduled { after: Duration::ZERO })]).await;
    let ordinal = rows_of(&*store).await[0].ordinal;
    store.commit(vec![new.clone()]).await;
    let park = owner.read(WHOLE).await.into_iter().map(|record| (record, retrying(HOUR))).collect();
    let settlement = Settlement { park, change: vec![(ordinal, Parked::Held)], ..Settlement::default() };
    owner.settle(settlement).await.expect("settle");
    let rows = rows_of(&*store).await;
    assert_eq!(ids_of_rows(&rows), [new.id, timed.id], "`park` comes before `change`: the held row goes to the tail");
    assert!(rows[0].head && !rows[1].head, "the row with the least ordinal is the head");
}

/// `Held` moves a row to the tail of its line; every other state keeps its place.
pub async fn only_held_moves_a_row_to_the_tail(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let line: Vec<_> = (0..3).map(|_| keyed("a")).collect();
    owner.park(&*store, line.iter().map(|envelope| (envelope.clone(), Parked::Held)).collect()).await;
    let first = rows_of(&*store).await[0].ordinal;
    for state in [retrying(HOUR), dead(true), dead(false), Parked::Scheduled { after: HOUR }] {
        owner.change(vec![(first, state.clone())]).await;
        let rows = rows_of(&*store).await;
        assert_eq!((rows[0].ordinal, rows[0].state), (first, state.state()), "{state:?} keeps the ordinal");
    }
    owner.change(vec![(first, Parked::Held)]).await;
    let rows = rows_of(&*store).await;
    assert_eq!(
        ids_of_rows(&rows),
        [line[1].id, line[2].id, line[0].id],
        "a row that becomes `Held` goes to the tail of its line"
    );
    assert!(rows[2].ordinal > rows[1].ordinal && rows[0].head);
}

/// A message whose row was removed can be parked again.
pub async fn a_removed_row_can_come_back(store: Arc<dyn Fixture>) {
    let mut owner = Owner::of(&*store, &route("r")).await;
    let before = owner.cursor.clone();
    owner.park(&*store, vec![(keyless(), retrying(HOUR))]).await;
    let old = rows_of(&*store).await[0].ordinal;
    owner.remove(vec![old]).await;
    assert!(rows_of(&*store).await.is_empty(), "`remove` removes");
    owner.cursor = before;
    let park = owner.read(WHOLE).await.into_iter().map(|record| (record, dead(false))).collect();
    owner.settle(Settlement { park, ..Settlement::default() }).await.expect("settle");
    let rows = rows_of(&*store).await;
    assert_eq!(rows.len(), 1);
    assert!(rows[0].ordinal > old, "an ordinal is not used twice");
}

async fn rows_of(store: &dyn Fixture) -> Vec<ParkedRow> {
    store.admin().parked(&ParkedFilter::default(), None, 1_000).await.expect("list parked rows")
}

fn ids_of_rows(rows: &[ParkedRow]) -> Vec<postrider_core::envelope::MessageId> {
    rows.iter().map(|row| row.envelope.id).collect()
}

/// What must be the same for two listings of rows to be the same rows.
fn summary(rows: &[ParkedRow]) -> Vec<impl PartialEq + std::fmt::Debug> {
    rows.iter().map(|row| (row.ordinal, row.state, row.attempts, row.cause.clone(), row.head)).collect()
}
