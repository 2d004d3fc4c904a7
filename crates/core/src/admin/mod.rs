//! What an operator may look at and do, in the store itself: no running relay is needed.
//!
//! Every change leaves an [`AuditEntry`] in the same transaction.

mod audit;
mod pending;

use std::{fmt, ops::RangeInclusive, sync::Arc, time::Duration};

use serde::Serialize;

use crate::{
    BoxFuture,
    browse::{RecordFilter, RecordPage, TopicPage},
    doctor::{Finding, Thresholds},
    enlist::Batch,
    envelope::{Envelope, MessageId},
    error::{Error, ErrorKind, Result},
    lease::{Epoch, LaneId, NodeId, Order, ReplayFilter},
    left::Left,
    parked::{DESTINATION_UNAVAILABLE, Ordinal, ParkedState},
    standstill::Standstill,
    time::Timestamp,
};

pub use self::{
    audit::{Actor, AuditEntry, MESSAGES_PER_ENTRY},
    pending::{PENDING_COUNT_MAX, PENDING_LOOK_MAX, PENDING_LOOKS_MAX, Pending, PendingLooks},
};

/// Everything on one screen.
#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    /// One entry per route and unfinished replay, by name.
    pub routes: Vec<RouteStatus>,
    /// The live nodes.
    pub nodes: Vec<NodeStatus>,
    /// Records in the log, delivered ones included.
    pub records: u64,
    /// When this was looked at, by the store's clock.
    pub at: Timestamp,
}

/// How the database under a store is doing, as far as it can be told at little cost. `None`: this store does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Vitals {
    /// Age of the oldest transaction, open or prepared, that retention and the cleaning of the server wait for; zero if
    /// there is none. What this role may not see does not count.
    pub horizon_age: Option<Duration>,
    /// What the log takes on the disk with its indexes, delivered records included.
    pub log_bytes: Option<u64>,
    /// Age of the oldest record that the log keeps, delivered or not; zero if it has none.
    pub oldest_record_age: Option<Duration>,
}

/// How one route is doing.
#[derive(Clone, Debug, Serialize)]
pub struct RouteStatus {
    /// The route, or the replay.
    pub route: Arc<str>,
    /// For a replay: the route whose publisher it uses.
    pub replay_of: Option<Arc<str>>,
    /// Its topics, as text.
    pub topics: String,
    /// What it read each time before its topics were changed, in the order in which that was.
    pub left: Vec<Left>,
    /// How it keeps order.
    pub order: Order,
    /// Paused by whom, if it is.
    pub paused: Option<Actor>,
    /// Records that match and that no cursor has passed: at least so many. They are counted up to [`PENDING_COUNT_MAX`], among
    /// the first [`PENDING_LOOK_MAX`] records behind the cursor, or fewer where many routes [share a look](PendingLooks).
    pub pending: u64,
    /// Whether there may be more of them than were counted.
    pub pending_more: bool,
    /// Age of the oldest message that waits to be delivered, by the store's clock, read from the store itself: of those
    /// records, and of the rows that are `retrying` or `held`. What is scheduled for later does not count, nor what is
    /// dead: that has a count of its own. `None`: nothing waits. Where none of those records that are looked at waits, and the
    /// log has more, it is the age of the first that is not looked at: something may wait there, and nothing that is older.
    pub oldest_pending_age: Option<Duration>,
    /// Rows `scheduled`, `retrying`, `held`, `dead`.
    pub parked: ParkedCounts,
    /// Its lanes.
    pub lanes: Vec<LaneStatus>,
}

impl Overview {
    /// A live node that can serve this route, if there is one.
    #[must_use]
    pub fn server_of(&self, route: &str) -> Option<&NodeStatus> {
        self.nodes.iter().find(|node| node.seen < node.lease_life && node.routes.iter().any(|name| **name == *route))
    }

    /// What speaks against forgetting a route, the gravest first. `None`: nothing does, or the store does not know it. With
    /// it go its replays; what those that have ended have given up is in no overview, so `dead` tells of it: the
    /// [groups](StoreAdmin::dead_groups) of the store.
    #[must_use]
    pub fn hindrance(&self, route: &str, dead: &[CauseGroup]) -> Option<Hindrance> {
        if let Some(node) = self.server_of(route) {
            return Some(Hindrance::Served { node: node.name.clone() });
        }
        let status = self.routes.iter().find(|status| *status.route == *route)?;
        let of_it = |replay_of: &Option<Arc<str>>| replay_of.as_deref() == Some(route);
        let under_way = self.routes.iter().filter(|replay| of_it(&replay.replay_of)).map(|replay| replay.parked.all());
        let is_over = |group: &&CauseGroup| !self.routes.iter().any(|replay| replay.route == group.route);
        let ended = dead.iter().filter(|group| of_it(&group.replay_of)).filter(is_over).map(|group| group.rows);
        let (pending, parked) = (status.pending, status.parked.all() + under_way.chain(ended).sum::<u64>());
        // An age without a count: not everything was looked at, and what is not known to be delivered is not.
        (pending + parked > 0 || status.oldest_pending_age.is_some())
            .then_some(Hindrance::Undelivered { pending, parked })
    }
}

/// Why a route is better not forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// A live node has it, and would make it known again as a new route.
    Served {
        /// The node's name.
        node: String,
    },
    /// Messages would never be delivered.
    Undelivered {
        /// Records that no cursor has passed: at least so many, as in [`RouteStatus::pending`].
        pending: u64,
        /// Rows parked in any state, by the route and by its replays.
        parked: u64,
    },
}

impl Hindrance {
    /// As the answer to whoever wants to forget `route` all the same.
    fn into_error(self, route: &str) -> Error {
        let refused = |message: &'static str| Error::new(ErrorKind::Denied, message).with("route", route);
        match self {
            Self::Served { node } => refused(
                "a route that a live relay serves is not forgotten: take it out of the relay's configuration and restart \
                 that, or stop it",
            )
            .with("node", node),
            Self::Undelivered { pending, parked } => {
                refused("a route that has not delivered everything is not forgotten unless its messages are given up")
                    .with("pending", pending)
                    .with("parked", parked)
            }
        }
    }
}

/// What becomes of messages that a route has not delivered when it is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered {
    /// They keep the route from being forgotten.
    Keep,
    /// This route never delivers them. Other routes are not touched by it.
    GiveUp,
}

/// Open transactions are named no further than this.
pub const UNCOMMITTED_SHOWN_MAX: u32 = 5;

/// Parked rows by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ParkedCounts {
    /// Waiting for their time.
    pub scheduled: u64,
    /// Waiting for their next attempt.
    pub retrying: u64,
    /// Waiting behind a head.
    pub held: u64,
    /// Waiting for an operator.
    pub dead: u64,
    /// Those of the dead that block their key: as many keys wait for an operator.
    pub blocking: u64,
}

impl ParkedCounts {
    /// Rows in any state.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.scheduled + self.retrying + self.held + self.dead
    }

    /// The count of one state.
    pub fn of_mut(&mut self, state: ParkedState) -> &mut u64 {
        match state {
            ParkedState::Scheduled => &mut self.scheduled,
            ParkedState::Retrying => &mut self.retrying,
            ParkedState::Held => &mut self.held,
            ParkedState::Dead => &mut self.dead,
        }
    }
}

/// One lane.
#[derive(Clone, Debug, Serialize)]
pub struct LaneStatus {
    /// From 0.
    pub number: u32,
    /// Who owns it, if the lease has not expired.
    pub owner: Option<NodeId>,
    /// How long that lease still lives unless it is extended.
    pub expires_in: Option<Duration>,
    /// Its epoch.
    pub epoch: Epoch,
    /// What the store can say about the cursor, for people.
    pub cursor: String,
}

/// One live node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeStatus {
    /// Identity.
    pub id: NodeId,
    /// Host and process.
    pub name: String,
    /// Routes that it can serve.
    pub routes: Vec<Arc<str>>,
    /// Time since its last heartbeat, by the store's clock.
    pub seen: Duration,
    /// How long its leases live without a heartbeat. It sends at least three in that time: one that is silent for half of
    /// it is late, and one that is silent for all of it is no longer live.
    pub lease_life: Duration,
    /// Whether an operator has asked it to leave.
    pub leaving: bool,
    /// Its lanes that do not move, as it said with that heartbeat.
    pub standstills: Vec<Standstill>,
}

impl NodeStatus {
    /// Whether it should have been heard of by now: it may be dead, and its lanes stand still until its leases end.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.seen > self.lease_life / 2
    }
}

/// Which parked rows. Empty fields choose everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParkedFilter {
    /// Of this route.
    pub route: Option<String>,
    /// In this state.
    pub state: Option<ParkedState>,
    /// With this cause code.
    pub cause: Option<String>,
    /// With this ordering key.
    pub key: Option<String>,
    /// Of this message.
    pub id: Option<MessageId>,
    /// With these ordinals, both included: a slice of a longer piece of work.
    pub ordinals: Option<RangeInclusive<Ordinal>>,
    /// Parked before this instant of the store's clock, or given up before it: see [`ParkedRow::parked_at`].
    pub parked_before: Option<Timestamp>,
}

impl ParkedFilter {
    /// Narrowed to these rows of one route, by their ordinals: a slice of a longer piece of work. There is at least one.
    #[must_use]
    pub fn only(&self, rows: &[ParkedRow]) -> Self {
        let (first, last) = (&rows[0], &rows[rows.len() - 1]);
        Self { route: Some(first.route.to_string()), ordinals: Some(first.ordinal..=last.ordinal), ..self.clone() }
    }
}

/// As an operator would say it: `state dead, route billing`, or `all`.
impl fmt::Display for ParkedFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.state.map(|state| format!("state {state}")),
            self.route.as_ref().map(|route| format!("route {route}")),
            self.cause.as_ref().map(|cause| format!("cause {cause}")),
            self.key.as_ref().map(|key| format!("key {key}")),
            self.id.map(|id| format!("message {id}")),
            self.ordinals.as_ref().map(|range| format!("places {} to {}", range.start().0, range.end().0)),
            self.parked_before.map(|instant| format!("parked before {instant}")),
        ];
        f.write_str(&in_words(parts))
    }
}

/// The conditions of a filter in one line; no condition is `all`.
pub(crate) fn in_words(parts: impl IntoIterator<Item = Option<String>>) -> String {
    let said: Vec<String> = parts.into_iter().flatten().collect();
    if said.is_empty() { "all".to_owned() } else { said.join(", ") }
}

/// One parked row.
#[derive(Clone, Debug)]
pub struct ParkedRow {
    /// Its route.
    pub route: Arc<str>,
    /// Its place.
    pub ordinal: Ordinal,
    /// Its state.
    pub state: ParkedState,
    /// Whether it is the head of its key's line.
    pub head: bool,
    /// Attempts made.
    pub attempts: u32,
    /// Cause code and detail, if it has failed.
    pub cause: Option<(String, String)>,
    /// How long until it is due, for `scheduled` and `retrying`.
    pub due_in: Option<Duration>,
    /// How long it has been parked: the time since [`parked_at`](Self::parked_at).
    pub age: Duration,
    /// When it was parked, by the store's clock: the same whenever somebody looks. A row that is given up only later, after
    /// it was scheduled, held or retrying, has the moment at which it became dead: from then on it waits for an operator, and
    /// whatever discards the dead after a time counts from there.
    pub parked_at: Timestamp,
    /// A copy of what travels.
    pub envelope: Envelope,
}

impl ParkedRow {
    /// Whether an operator has put it back, and it was not tried since: its attempts count from nothing again, and its cause
    /// is the one that it was given up for.
    #[must_use]
    pub fn is_redriven(&self) -> bool {
        matches!(self.state, ParkedState::Retrying | ParkedState::Scheduled)
            && self.attempts == 0
            && self.cause.is_some()
            && !self.is_set_aside()
    }

    /// Whether it waits for its own destination only: no attempt was made of that.
    #[must_use]
    pub fn is_set_aside(&self) -> bool {
        self.state == ParkedState::Retrying
            && self.cause.as_ref().is_some_and(|(code, _)| code == DESTINATION_UNAVAILABLE)
    }
}

/// Dead rows of one route with one cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CauseGroup {
    /// The route, or the replay.
    pub route: Arc<str>,
    /// For a replay, also one that has ended: the route whose publisher it uses.
    pub replay_of: Option<Arc<str>>,
    /// The cause code.
    pub code: String,
    /// The detail of the newest.
    pub detail: String,
    /// How many.
    pub rows: u64,
    /// When the first of them was given up.
    pub first_at: Timestamp,
    /// When the newest of them was given up.
    pub last_at: Timestamp,
}

/// All that the store knows of one message.
#[derive(Clone, Debug)]
pub struct MessageTrace {
    /// From the log, if it is still kept there.
    pub record: Option<(Envelope, Timestamp)>,
    /// The lanes that it belongs to, of routes that read its topic: whether the cursor has passed it. Of a route that reads
    /// its topic no longer, the lane that had [passed it](crate::left) by then, if one had.
    pub passed: Vec<(LaneId, bool)>,
    /// Its parked rows.
    pub parked: Vec<ParkedRow>,
}

/// What to deliver again.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplaySpec {
    /// Which route's records: those on its topics, in its order.
    pub route: String,
    /// Through which other route's publisher, if not through its own.
    pub to: Option<String>,
    /// Which records.
    pub filter: ReplayFilter,
    /// Messages per second at most.
    pub rate: Option<u32>,
}

impl ReplaySpec {
    /// For the audit record: the replay's name, what it delivers, and where to if that is another route.
    #[must_use]
    pub fn in_words(&self, name: &str) -> String {
        let to = self.to.as_ref().map_or_else(String::new, |to| format!(", to {to}"));
        format!("{name}: {}{to}", self.filter)
    }
}

/// The operator's side of a store.
///
/// A change that names a route or replay which the store does not know is answered with
/// [`NotFound`](crate::ErrorKind::NotFound), changes nothing and leaves no audit entry.
pub trait StoreAdmin: Send + Sync {
    /// Everything on one screen.
    fn overview(&self) -> BoxFuture<'_, Result<Overview>>;

    /// Whether whoever looks may see headers and payloads. Where not, the envelopes that are shown have neither, and everything
    /// else is shown all the same.
    fn sees_contents(&self) -> BoxFuture<'_, Result<bool>> {
        Box::pin(std::future::ready(Ok(true)))
    }

    /// Parked rows that match, by route and ordinal, behind `after`, at most `limit`.
    fn parked<'a>(
        &'a self,
        filter: &'a ParkedFilter,
        after: Option<(Arc<str>, Ordinal)>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<ParkedRow>>>;

    /// How many parked rows match.
    fn parked_count<'a>(&'a self, filter: &'a ParkedFilter) -> BoxFuture<'a, Result<u64>>;

    /// Dead rows by route and cause, largest group first.
    fn dead_groups(&self) -> BoxFuture<'_, Result<Vec<CauseGroup>>>;

    /// What is known of one message. Unknown ids have neither record nor rows.
    fn message(&self, id: MessageId) -> BoxFuture<'_, Result<MessageTrace>>;

    /// The topics of the oldest `limit` records behind the one that the page before has named, or of the whole log's: for
    /// whoever looks for topics that no route reads. The log has no index by which topics could be told, since every enqueue
    /// would pay for it; so it is walked once, a stretch at a time, and then only what is new. A transaction that commits
    /// late may put records where a walk has been already. `limit` is greater than zero.
    fn topics(&self, after: Option<u64>, limit: u32) -> BoxFuture<'_, Result<TopicPage>>;

    /// Who keeps the relays from writing to the store, if somebody does: the holder of a lock that one of them has been
    /// waiting for. Unlike [`doctor`](Self::doctor) it takes no more than a few seconds, however large the store is; it
    /// changes nothing. A store whose writers do not shut each other out, or that does not tell, has nothing to say.
    fn blockage(&self) -> BoxFuture<'_, Result<Option<Finding>>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Transactions that have been open for longer than `age` and may have enqueued something, the oldest first, at most
    /// [`UNCOMMITTED_SHOWN_MAX`]: what they have enqueued is seen by nobody until they commit. Of those that this role may not
    /// see there is a finding too, which says so. A store that has no others, or does not know them, has nothing to say.
    fn uncommitted(&self, age: Duration) -> BoxFuture<'_, Result<Vec<Finding>>> {
        let _ = age;
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// How the database is doing. Asked with every scrape of metrics, so it takes a few milliseconds, however large the
    /// store is.
    fn vitals(&self) -> BoxFuture<'_, Result<Vitals>> {
        Box::pin(std::future::ready(Ok(Vitals::default())))
    }

    /// Records of the log that match, behind the record with the number `after` in the direction that the filter asks for,
    /// at most `limit`. Looks at a bounded number of records; [`RecordPage::next`] is where to go on. A transaction that
    /// commits late may put records where a look has been already.
    fn records<'a>(
        &'a self,
        filter: &'a RecordFilter,
        after: Option<u64>,
        limit: u32,
    ) -> BoxFuture<'a, Result<RecordPage>>;

    /// Tries matching *dead* rows again, with a fresh count of attempts: one that blocks its key becomes `retrying`, due
    /// now, and stays the head; any other becomes `scheduled` for now and goes behind what its key has. The cause that it was
    /// given up for stays with it. An audit entry is about rows of one route and names it, as it names their messages
    /// ([`ParkedFilter::subjects`]). Returns how many.
    fn redrive<'a>(&'a self, filter: &'a ParkedFilter, actor: &'a Actor) -> BoxFuture<'a, Result<u64>>;

    /// Gives up on matching rows for good, in any state. The next of their line is then its head. Audit entries are as those of
    /// a redrive. Returns how many.
    fn discard<'a>(&'a self, filter: &'a ParkedFilter, actor: &'a Actor) -> BoxFuture<'a, Result<u64>>;

    /// Stops a route until it is resumed: its lanes drain, and their owners keep them idle. Its replays stop with it, since
    /// they publish to the same destination: the roster shows their lanes as paused as well. A replay can also be paused
    /// alone, by its own name.
    fn pause<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>>;

    /// Lets a paused route go on.
    fn resume_route<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>>;

    /// Starts a replay: a reader of its own over the records that the log has now. The live cursors do not move. Returns
    /// its name. A replay of a replay, or to one, is refused as invalid.
    fn replay<'a>(&'a self, spec: &'a ReplaySpec, actor: &'a Actor) -> BoxFuture<'a, Result<Arc<str>>>;

    /// Ends a replay before its end, with its parked rows.
    fn cancel_replay<'a>(&'a self, name: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>>;

    /// Forgets a route for good, if nothing [speaks against it](Overview::hindrance): cursor, lanes, replays and parked rows.
    /// Retention no longer waits for it. [`Denied`](ErrorKind::Denied) while a live node serves it and, unless those are
    /// given up, while it has messages that are not delivered.
    ///
    /// It looks first and forgets then. A relay that is started with the route in between, or one that was not heard of
    /// for longer than its lease, makes it known again as a new route and says so in its log.
    fn forget_route<'a>(
        &'a self,
        route: &'a str,
        undelivered: Undelivered,
        actor: &'a Actor,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let dead = self.dead_groups().await?;
            match self.overview().await?.hindrance(route, &dead) {
                Some(Hindrance::Undelivered { .. }) if undelivered == Undelivered::GiveUp => {}
                Some(hindrance) => return Err(hindrance.into_error(route)),
                None => {}
            }
            self.drop_route(route, actor).await
        })
    }

    /// The part of [`forget_route`](Self::forget_route) that each store does in its own way: forgets the route whatever
    /// speaks against it.
    fn drop_route<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>>;

    /// Lets every lane of a route deliver all that it has not settled, by its own account, and count anew from there. For
    /// a store whose cursors mean nothing once the database under them was set back or moved; nothing is lost by it, and
    /// some may come twice. A store whose cursors cannot get into that state refuses it as invalid.
    fn rebase_route<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        let (_, _) = (route, actor);
        Box::pin(async { Err(Error::invalid("the cursors of this store count records and are never rebased")) })
    }

    /// Asks a live node to leave: it learns of it with its next heartbeat, drains as it does when its process is told to
    /// stop, and its lanes go to the others. `NotFound` if there is no such live node.
    fn drain_node<'a>(&'a self, node: NodeId, actor: &'a Actor) -> BoxFuture<'a, Result<()>>;

    /// Enqueues in a transaction of the store's own, all of it or nothing, in the order given: for whoever has no transaction
    /// to join. What an operator enqueues leaves an audit entry; a program that carries messages from elsewhere is no operator
    /// and leaves none. An error other than a refusal means "perhaps": repeated, the messages may be in the log twice.
    fn enqueue<'a>(&'a self, batch: Batch, actor: Option<&'a Actor>) -> BoxFuture<'a, Result<()>>;

    /// What was done, newest first.
    fn audit(&self, limit: u32) -> BoxFuture<'_, Result<Vec<AuditEntry>>>;

    /// What was done to one message, by name or together with others, newest first: the entries that
    /// [name](AuditEntry::names) it, at most `limit`. A look through the whole record, for people.
    fn audit_of(&self, id: MessageId, limit: u32) -> BoxFuture<'_, Result<Vec<AuditEntry>>>;

    /// What an operator should know of the store and of what is below it, worst first. A store in good health has no
    /// finding with [`Severity::Error`](crate::doctor::Severity::Error). Changes nothing.
    fn doctor(&self, thresholds: Thresholds) -> BoxFuture<'_, Result<Vec<Finding>>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_read_as_an_operator_would_say_them() {
        assert_eq!(ParkedFilter::default().to_string(), "all");
        let dead = ParkedFilter { state: Some(ParkedState::Dead), route: Some("billing".into()), ..Default::default() };
        assert_eq!(dead.to_string(), "state dead, route billing");
    }
}
