//! The relay's side of a store: the outbox as an append-only log with one cursor per lane.
//!
//! On the hot path nothing is updated per message: the relay reads pages and moves cursors. The contract is object-safe
//! and every call is a batch.
//!
//! **Commit-safe order** is the heart of it: a record that commits late must not be skipped because its number was drawn
//! early, and if transaction A committed before transaction B enqueued, A's records come first. Each store has its own way
//! to keep this; the cursor is opaque so that it can.

use std::{fmt, ops::Deref, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    BoxFuture,
    capability::StoreCapabilities,
    envelope::Envelope,
    error::Result,
    headers::REPLAY,
    key::KeyHash,
    lease::{LaneId, Lease, Node, NodeId, Roster, RouteSpec},
    parked::{BlockedKey, DueLimit, DuePage, Ordinal, Parked},
    time::Timestamp,
};

/// One envelope at rest, as one lane sees it.
#[derive(Clone, Debug)]
pub struct Record {
    /// What travels.
    pub envelope: Envelope,
    /// What it is kept in order by.
    pub key: Option<KeyHash>,
    /// When it was enqueued, by the store's clock. For people and for headers; nothing is decided by it.
    pub enqueued_at: Timestamp,
    /// Time left until `deliver_at`, by the store's clock when it was read. Zero: now.
    pub wait: Duration,
    /// Time left until `expires_at`, by the store's clock when it was read. `Some(ZERO)`: expired.
    pub expires_in: Option<Duration>,
    /// The replay that delivers it again, if one does.
    pub replay: Option<Arc<str>>,
    /// Its number in the log, which no other record of the log has: what tells two records apart that carry the same message
    /// id, as separate enqueues may. 0 for one that was read from no log.
    pub number: u64,
}

impl Record {
    /// The headers as they travel: the application's, sorted by name, and [`REPLAY`] with the replay's name if one delivers
    /// this record again. For transports, so that none forgets to mark a replay.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) if the stored bytes are not a JSON object.
    pub fn headers(&self) -> Result<Vec<(String, String)>> {
        let mut pairs = self.envelope.headers.decode()?;
        if let Some(replay) = &self.replay {
            // SQL may have written the reserved name; then ours is the one that counts.
            pairs.retain(|(name, _)| name != REPLAY);
            let place = pairs.partition_point(|(name, _)| name.as_str() < REPLAY);
            pairs.insert(place, (REPLAY.to_owned(), replay.as_ref().to_owned()));
        }
        Ok(pairs)
    }
}

/// A cheap handle on a record that keeps its whole page alive: nothing is copied or allocated per message.
#[derive(Clone)]
pub struct RecordRef {
    page: Arc<Vec<Record>>,
    index: u32,
}

impl RecordRef {
    /// The record at `index` of a page.
    ///
    /// # Panics
    /// If the page is shorter.
    #[must_use]
    pub fn new(page: &Arc<Vec<Record>>, index: u32) -> Self {
        assert!((index as usize) < page.len(), "a record of its own page");
        Self { page: Arc::clone(page), index }
    }

    /// A page of its own for a single record.
    #[must_use]
    pub fn single(record: Record) -> Self {
        Self { page: Arc::new(vec![record]), index: 0 }
    }
}

impl Deref for RecordRef {
    type Target = Record;
    fn deref(&self) -> &Record {
        &self.page[self.index as usize]
    }
}

impl fmt::Debug for RecordRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// How far a lane is. Opaque to the engine; only the store that made it can read it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cursor(pub Bytes);

/// Makes the cursor behind the first `n` records of a page, on demand: `n` is less than the page's length.
pub type Marks = Arc<dyn Fn(u32) -> Cursor + Send + Sync>;

/// What one read returns.
#[derive(Clone)]
pub struct Page {
    /// Records in commit-safe order.
    pub records: Arc<Vec<Record>>,
    /// Cursors inside the page.
    pub marks: Marks,
    /// The cursor behind the whole page: perhaps further than its last record, if others were filtered out. Equal to the
    /// cursor that was read from if nothing new was seen.
    pub end: Cursor,
    /// Whether another read would find more at once. If not, the reader has caught up.
    pub more: bool,
    /// Whether a replay has reached its end: there will never be more.
    pub ended: bool,
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { records, end, more, ended, marks: _ } = self;
        write!(f, "Page {{ records: {}, end: {end:?}, more: {more}, ended: {ended} }}", records.len())
    }
}

/// How much one read returns.
#[derive(Clone, Copy, Debug)]
pub struct PageLimit {
    /// Records at most; at least 1.
    pub records: u32,
    /// Bytes ([`Envelope::weight`]) at most. A page holds at least one record even if that one is larger.
    pub bytes: usize,
}

/// What a new owner must know before it reads the first record.
#[derive(Clone, Debug)]
pub struct Resumed {
    /// Where to read on.
    pub cursor: Cursor,
    /// **Every** key of this lane that has a line in the store.
    pub blocked: Vec<BlockedKey>,
}

/// Everything that one settle does.
#[derive(Clone, Debug, Default)]
pub struct Settlement {
    /// 1, 2, 3, … within an epoch.
    pub number: u64,
    /// Where the cursor moves to.
    pub advance: Option<Cursor>,
    /// Rows that are done with.
    pub remove: Vec<Ordinal>,
    /// Records that the cursor passes by parking them, in log order.
    pub park: Vec<(RecordRef, Parked)>,
    /// Rows that become something else.
    pub change: Vec<(Ordinal, Parked)>,
}

/// What retention removes: records that every reader has passed, and that are older, or more, than is to be kept. The default
/// removes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// How long delivered records are kept, for replay and for people. `None`: for ever.
    pub keep: Option<Duration>,
    /// How many of the newest records are kept at most, however young the others are. `None`: any number. A store counts by
    /// its own numbers, in which a transaction that was rolled back may leave gaps, and may keep more where it removes whole
    /// segments.
    pub records_max: Option<u64>,
}

impl Retention {
    /// By age alone.
    #[must_use]
    pub const fn by_age(keep: Duration) -> Self {
        Self { keep: Some(keep), records_max: None }
    }

    /// By number alone.
    #[must_use]
    pub const fn by_count(records_max: u64) -> Self {
        Self { keep: None, records_max: Some(records_max) }
    }
}

/// The relay's side of a store.
///
/// Errors of kind [`Fenced`](crate::ErrorKind::Fenced) mean that another owner has taken over and nothing was written. Any
/// other error of a write means "perhaps": the operation is repeated as it was, and all of them are safe to repeat.
/// Dropping a returned future leaves the operation done or not done, never half done.
pub trait Log: Send + Sync {
    /// What this store can do.
    fn capabilities(&self) -> StoreCapabilities;

    /// Makes the node and its routes known. A route that is new begins where its spec says; one whose topics, order or
    /// number of lanes has changed takes the new ones, and one that has not changed stays as it is.
    ///
    /// A route reads what this node asks for and what every other node asks for that is live by the store's clock, worked out
    /// by [`Asked`](crate::asked::Asked) in the same transaction, one caller after the other: nodes that start in the same
    /// instant with different topics know of each other, and none of them may pass over what another wants. The lease says what
    /// is read, whoever takes it. Asking for the same again is how a node learns, and lets go, of what others wanted that are
    /// gone by now; order and number of lanes are then left as the last to ask for something new wanted them.
    ///
    /// Whenever one of the three changes, the epochs of all lanes of the route are raised in the same transaction, so that
    /// every owner is fenced: one that went on with the old filter would pass over what the new one asks for. The lanes are
    /// free afterwards, and whoever takes one gets the new reader with the lease. Cursors stay, also that of a lane whose
    /// new filter would have chosen more of what it has passed. When the number of lanes changes, every new lane begins at
    /// the least cursor of the old ones: nothing is lost and first deliveries stay in order, at the price of duplicates up
    /// to the distance between the lanes. Parked rows stay in the lines in which they stand.
    fn register<'a>(&'a self, node: &'a Node, routes: &'a [RouteSpec]) -> BoxFuture<'a, Result<()>>;

    /// Says that the node is alive, extends all leases that it owns by its lease life, and returns the roster: one
    /// transaction. A lease that expired meanwhile but that nobody took is extended as well.
    fn heartbeat<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Result<Roster>>;

    /// Says goodbye: the node is no longer live, and whatever leases it still has are free.
    fn retire(&self, node: NodeId) -> BoxFuture<'_, Result<()>>;

    /// Takes a lane that is free, whose lease has expired, or that this node owns already (the answer to an earlier call
    /// was lost), and raises its epoch. `None`: somebody else owns it, or it does not exist.
    ///
    /// The epoch must be greater than any that the lane ever had. A store that can lose its last commits in a fail-over
    /// therefore draws it from its clock as well (the greater of the old one + 1 and the microseconds since 1970), and
    /// treats every lease from before the fail-over as fenced: what such an owner has read may not exist any more.
    fn acquire<'a>(&'a self, lane: &'a LaneId, node: &'a Node) -> BoxFuture<'a, Result<Option<Lease>>>;

    /// What the new owner must know first. A stale owner is answered `Fenced`.
    fn resume<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Resumed>>;

    /// Reads on behind `after`: only records that match the lease's reader and lane, in commit-safe order. A store need
    /// not check the epoch here (what a stale owner reads it may not settle), except that a lease from before a fail-over
    /// is always `Fenced`: its cursor may count commits that do not exist any more.
    fn read<'a>(&'a self, lease: &'a Lease, after: &'a Cursor, limit: PageLimit) -> BoxFuture<'a, Result<Page>>;

    /// Parked rows of this lane that may run now, by the store's clock. A stale owner is answered `Fenced`: the rows that
    /// another has parked meanwhile are none of its business.
    fn due<'a>(&'a self, lease: &'a Lease, limit: DueLimit) -> BoxFuture<'a, Result<DuePage>>;

    /// Applies a settlement in **one** transaction:
    ///
    /// 1. If the lease's epoch is not the current one, write nothing and answer `Fenced`.
    /// 2. If `number` is not greater than the last one applied in this epoch, write nothing and answer `Ok`: the first
    ///    answer was lost, or a request that was given up for lost arrives late. (Repeating by content instead would bring
    ///    back a row that an operator discarded in between.)
    /// 3. `remove`; rows that are gone are skipped.
    /// 4. `park`, in the given order, with ascending ordinals. If the route has a row of that record already (message id and
    ///    [`Record::number`] are the same), that row stays as it is and nothing is added. Another record with the same
    ///    message id is another message, and has a row of its own.
    /// 5. `change`; rows that are gone are skipped. `Held` moves a row to the tail of its line with a new ordinal; every
    ///    other state keeps the ordinal.
    /// 6. Write the cursor and the number.
    ///
    /// A scheduled row comes due at its envelope's `deliver_at` where it has one.
    fn settle<'a>(&'a self, lease: &'a Lease, settlement: &'a Settlement) -> BoxFuture<'a, Result<()>>;

    /// Gives the lane back. Fenced: it is somebody else's already, and that is as good.
    fn release<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<()>>;

    /// Called when a replay's lane has reached its end and has nothing more in memory. If none of its rows waits for
    /// anything but an operator, the lane is over and is removed: `true`. Rows that are held behind a dead head count as
    /// waiting: they go on in this lane once an operator has decided about their head.
    fn finish<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<bool>>;

    /// Removes a bounded number of records that *every* route and unfinished replay has passed and that are older than the
    /// retention. Returns how many; zero means that nothing is left to remove. While no route is known nothing is removed:
    /// nothing undelivered is ever deleted by a timer.
    fn purge(&self, retention: Retention) -> BoxFuture<'_, Result<u64>>;

    /// Resolves when something *may* have been appended or changed. It may come early, late or never: it is a hint, and
    /// the relay polls besides.
    fn hint(&self) -> BoxFuture<'_, ()>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::Headers;

    #[test]
    fn a_replayed_record_travels_with_the_name_of_its_replay() {
        let headers =
            Headers::from_encoded(Bytes::from_static(br#"{"tenant":"7","a":"b","postrider-replay":"forged"}"#));
        let envelope = Envelope { headers, ..Envelope::new("orders", "order.placed", "{}") };
        let (enqueued_at, wait) = (Timestamp::from_micros(0), Duration::ZERO);
        let mut record = Record { envelope, key: None, enqueued_at, wait, expires_in: None, replay: None, number: 0 };
        let pairs = |record: &Record| record.headers().unwrap().into_iter().map(|(n, v)| format!("{n}={v}")).collect();
        record.replay = Some("orders#replay-1".into());
        let replayed: Vec<String> = pairs(&record);
        assert_eq!(replayed, ["a=b", "postrider-replay=orders#replay-1", "tenant=7"]);
        record.envelope.headers = Headers::default();
        let bare: Vec<String> = pairs(&record);
        assert_eq!(bare, ["postrider-replay=orders#replay-1"]);
        record.replay = None;
        let live: Vec<String> = pairs(&record);
        assert!(live.is_empty());
    }
}
