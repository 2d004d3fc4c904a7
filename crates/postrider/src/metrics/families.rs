//! Every metric that there is: name, meaning, labels. The reference page is generated from here.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use super::describe::{Adder, Description, LabelNames};

/// From half a millisecond to a minute.
const DURATIONS: [f64; 15] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfStore {
    pub(super) store: String,
}

impl LabelNames for OfStore {
    const NAMES: &[&str] = &["store"];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfRoute {
    pub(super) store: String,
    pub(super) route: String,
}

impl LabelNames for OfRoute {
    const NAMES: &[&str] = &["store", "route"];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfCause {
    pub(super) store: String,
    pub(super) route: String,
    pub(super) cause: String,
}

impl LabelNames for OfCause {
    const NAMES: &[&str] = &["store", "route", "cause"];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Attempt {
    pub(super) store: String,
    pub(super) route: String,
    pub(super) outcome: &'static str,
    pub(super) cause: String,
}

impl LabelNames for Attempt {
    const NAMES: &[&str] = &["store", "route", "outcome", "cause"];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfOperation {
    pub(super) store: String,
    pub(super) operation: &'static str,
}

impl LabelNames for OfOperation {
    const NAMES: &[&str] = &["store", "operation"];
}

type Seconds = Gauge<f64, AtomicU64>;
type Durations = Family<OfRoute, Histogram, fn() -> Histogram>;

/// One field a metric.
#[derive(Debug)]
pub(super) struct Families {
    // Shown: read from the store when somebody looks.
    pub(super) oldest_pending_age: Family<OfRoute, Seconds>,
    pub(super) pending: Family<OfRoute, Gauge>,
    pub(super) scheduled: Family<OfRoute, Gauge>,
    pub(super) retrying: Family<OfRoute, Gauge>,
    pub(super) held: Family<OfRoute, Gauge>,
    pub(super) dead_letters: Family<OfCause, Gauge>,
    pub(super) standstill: Family<OfCause, Gauge>,
    pub(super) parked_keys: Family<OfRoute, Gauge>,
    pub(super) route_paused: Family<OfRoute, Gauge>,
    pub(super) lanes_unowned: Family<OfRoute, Gauge>,
    pub(super) nodes: Family<OfStore, Gauge>,
    pub(super) log_records: Family<OfStore, Gauge>,
    pub(super) unrouted: Family<OfStore, Gauge>,
    pub(super) horizon_age: Family<OfStore, Seconds>,
    pub(super) log_bytes: Family<OfStore, Gauge>,
    pub(super) retention_lag: Family<OfStore, Seconds>,
    pub(super) clock_offset: Family<OfStore, Seconds>,
    pub(super) store_up: Family<OfStore, Gauge>,
    // This node's own lanes.
    pub(super) in_flight: Family<OfRoute, Gauge>,
    pub(super) circuit_open: Family<OfRoute, Gauge>,
    // Counted as it happens.
    pub(super) enqueued: Family<OfRoute, Counter>,
    pub(super) attempts: Family<Attempt, Counter>,
    pub(super) delivered: Family<OfRoute, Counter>,
    pub(super) dead_lettered: Family<OfCause, Counter>,
    pub(super) takeovers: Family<OfRoute, Counter>,
    pub(super) stale_epoch_rejections: Family<OfRoute, Counter>,
    pub(super) store_failures: Family<OfOperation, Counter>,
    pub(super) purged: Family<OfStore, Counter>,
    pub(super) collected: Family<OfStore, Counter>,
    pub(super) mail_refused: Family<OfStore, Counter>,
    pub(super) collector_up: Family<OfStore, Gauge>,
    pub(super) delivery_duration: Durations,
    pub(super) delivery_latency: Durations,
    pub(super) claim_duration: Durations,
    pub(super) settle_duration: Durations,
}

impl Families {
    /// All of them, and what each is.
    pub(super) fn register(registry: &mut Registry) -> (Self, Vec<Description>) {
        let durations = || Durations::new_with_constructor(|| Histogram::new(DURATIONS));
        let mut add = Adder::new(registry);
        add.info("build", "The version of this program", &[("version", env!("CARGO_PKG_VERSION"))]);
        let families = Self {
            oldest_pending_age: add.seconds(
                "outbox_oldest_pending_age",
                "Age of the oldest message that waits to be delivered, by the store's clock; 0 if none waits. Not of replays: what \
                 they deliver is old by nature",
            ),
            pending: add.plain("outbox_pending", "Messages that no cursor has passed; counted up to 100000"),
            scheduled: add.plain("outbox_scheduled", "Messages parked until their time"),
            retrying: add.plain("outbox_retrying", "Messages parked until their next attempt"),
            held: add.plain("outbox_held", "Messages parked behind a head of their key"),
            dead_letters: add.plain("dead_letters", "Messages given up that wait for an operator, by cause; without a cause 0, for every route"),
            standstill: add.plain(
                "standstill",
                "1 for everything that keeps a route from moving, by the code that `postrider why` and `status` print; \
                 without a route for what concerns the whole store",
            ),
            parked_keys: add.plain("parked_keys", "Keys that wait for an operator because their head is dead"),
            route_paused: add.plain("route_paused", "1 while an operator has paused the route"),
            lanes_unowned: add.plain(
                "partitions_unowned",
                "Lanes that no node owns although a live one has the route; 0 if none has it",
            ),
            nodes: add.plain("nodes", "Live nodes"),
            log_records: add.plain("log_records", "Records in the log, delivered ones included"),
            unrouted: add.plain(
                "outbox_unrouted",
                "Messages on topics that no route reads, seen since this process has started, also those that retention has \
                 removed since: nobody delivers them",
            ),
            horizon_age: add.seconds(
                "store_horizon_age",
                "Age of the oldest transaction that retention and the cleaning of the server wait for (PostgreSQL)",
            ),
            log_bytes: add.bytes(
                "store_retained_log",
                "What the log takes on the disk with its indexes, delivered records included (PostgreSQL)",
            ),
            retention_lag: add.seconds(
                "retention_lag",
                "How much longer than `keep_delivered` the oldest record is there; 0 if none is: a route that has not passed it, \
                 or an open transaction, keeps it",
            ),
            clock_offset: add.seconds("clock_offset", "This node's wall clock minus the store's"),
            store_up: add.plain("store_up", "1 if the store could be read when these metrics were asked for"),
            in_flight: add.plain("outbox_in_flight", "Messages of this node that a destination has not answered yet"),
            circuit_open: add.plain(
                "circuit_open",
                "1 while the destination takes nothing and this node waits for it; 0 for a route that is paused",
            ),
            enqueued: add.plain(
                "outbox_enqueued",
                "Records read from the log by this node; one that is read again, since its lane changed hands before it was settled, \
                 counts again",
            ),
            attempts: add.plain(
                "delivery_attempts",
                "Outcomes of publishes, by outcome and cause; not of what was kept back before anything was sent",
            ),
            delivered: add.plain("delivered", "Messages that a destination has for good"),
            dead_lettered: add.plain("dead_lettered", "Messages given up, by cause"),
            takeovers: add.plain("lease_takeovers", "Lanes that this node took"),
            stale_epoch_rejections: add.plain(
                "stale_epoch_rejections",
                "Lanes that this node lost to another owner, which the store refused it",
            ),
            store_failures: add.plain("store_failures", "Operations that the store could not do, by operation"),
            purged: add.plain("purged", "Delivered records removed by retention"),
            collected: add.plain("collected", "Messages that this node has carried from documents into the store"),
            mail_refused: add.plain("mail_refused", "Times that a document was met whose mail cannot be sent"),
            collector_up: add.plain("collector_up", "1 if the documents of the collector could be looked at last time"),
            delivery_duration: add.timed("delivery_duration", "From handing a batch over to its answer", durations()),
            delivery_latency: add.timed("delivery_latency", "From enqueueing a message to its answer", durations()),
            claim_duration: add.timed("store_claim_duration", "Reading a page of the log", durations()),
            settle_duration: add.timed("store_settle_duration", "Committing what became of messages", durations()),
        };
        (families, add.described)
    }

    /// A route that is no longer there must not stay.
    pub(super) fn forget_route(&self, route: &OfRoute) {
        self.oldest_pending_age.remove(route);
        for family in [
            &self.pending,
            &self.scheduled,
            &self.retrying,
            &self.held,
            &self.parked_keys,
            &self.route_paused,
            &self.lanes_unowned,
        ] {
            family.remove(route);
        }
    }
    /// What was counted of a route by this node, when nobody will count it any more.
    pub(super) fn forget_counted(&self, route: &OfRoute) {
        self.in_flight.remove(route);
        self.circuit_open.remove(route);
        for family in [&self.enqueued, &self.delivered, &self.takeovers, &self.stale_epoch_rejections] {
            family.remove(route);
        }
        for family in [&self.delivery_duration, &self.delivery_latency, &self.claim_duration, &self.settle_duration] {
            family.remove(route);
        }
    }
}
