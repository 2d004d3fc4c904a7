//! Metrics of a relay, in the text format of Prometheus.
//!
//! Two sources meet here. What *happens* (attempts, durations, verdicts) is counted as the relay tells it: [`StoreMetrics`]
//! is an [`Observer`]. What *is* (how much waits, how old the oldest is, who owns what) is read from the store, by whoever
//! renders: [`StoreMetrics::show`] takes an [`Overview`]. So an age is the store's clock against the store's clock, and
//! stays true while no relay runs.
//!
//! ```
//! use std::sync::Arc;
//! use postrider::{Relay, Route, memory::MemoryStore, metrics::Metrics, relay::events::TracingObserver};
//!
//! # fn main() -> postrider::Result<()> {
//! let metrics = Metrics::new();
//! let route = Route::handler("billing", |_| async { Ok::<_, String>(()) });
//! let relay = Relay::builder(Arc::new(MemoryStore::new()))
//!     .route(route)
//!     .observer(Arc::new(vec![Arc::new(TracingObserver) as _, Arc::new(metrics.of_store("shop")) as _]))
//!     .build()?;
//! // In the handler of `GET /metrics`:
//! let text = metrics.render();
//! # assert!(text.contains("postrider_build_info"));
//! # Ok(()) }
//! ```
//!
//! Labels are stores, routes, outcomes and cause codes: few and known. Ids, keys and texts are never labels.

mod describe;
mod families;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use postrider_core::{
    admin::{CauseGroup, Overview, RouteStatus, Vitals},
    lease::LaneId,
    time::Timestamp,
    transport::{ASKED_PAUSE_MIN, Outcome},
};
use prometheus_client::{encoding::text, registry::Registry};

pub use self::describe::Description;
use self::families::{Attempt, Families, OfCause, OfOperation, OfRoute, OfStore};
use crate::{
    diagnosis::Finding,
    relay::events::{Event, Observer, Progress},
};

/// What the text is to be served as.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the name of every metric begins with.
const PREFIX: &str = "postrider";

/// Everything that is counted and shown, of one process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    registry: Registry,
    families: Families,
    described: Vec<Description>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Nothing counted yet.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let (families, described) = Families::register(&mut registry);
        Self(Arc::new(Shared { registry, families, described }))
    }

    /// Every metric that there is, also those that have no value yet and are not rendered for that reason.
    #[must_use]
    pub fn describe(&self) -> &[Description] {
        &self.0.described
    }

    /// Those of one store and its relay. The name becomes the label `store`.
    #[must_use]
    pub fn of_store(&self, name: &str) -> StoreMetrics {
        StoreMetrics {
            shared: Arc::clone(&self.0),
            store: name.to_owned(),
            lanes: Mutex::default(),
            shown: Mutex::default(),
            counted: Mutex::default(),
        }
    }

    /// Everything as text, to be served as [`CONTENT_TYPE`].
    #[must_use]
    pub fn render(&self) -> String {
        let mut rendered = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut rendered, &self.0.registry);
        rendered
    }

    /// The same in the older text format (`text/plain; version=0.0.4`), for programs that know no other, such as the
    /// collector of text files of Prometheus' node exporter.
    #[must_use]
    pub fn render_plain(&self) -> String {
        plain(&self.render())
    }
}

/// There a counter is called like its samples, a fact is a gauge that is one, and neither unit nor end is written.
fn plain(rendered: &str) -> String {
    let mut text = String::with_capacity(rendered.len());
    let mut help = None;
    for line in rendered.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), _, told) => help = told,
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let (name, kind) = match kind {
                    "counter" => (format!("{name}_total"), kind),
                    "info" => (format!("{name}_info"), "gauge"),
                    _ => (name.to_owned(), kind),
                };
                if let Some(help) = help.take() {
                    text.push_str(&format!("# HELP {name} {help}\n"));
                }
                text.push_str(&format!("# TYPE {name} {kind}\n"));
            }
            (Some("#"), ..) => {}
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

/// The metrics of one store and of the relay that works on it: an [`Observer`] of that relay.
#[derive(Debug)]
pub struct StoreMetrics {
    shared: Arc<Shared>,
    store: String,
    /// What this node's own lanes are doing.
    lanes: Mutex<BTreeMap<LaneId, OwnLane>>,
    /// What was last shown of the store.
    shown: Mutex<Shown>,
    /// The series that were counted of each route.
    counted: Mutex<BTreeMap<String, Counted>>,
}

/// The series of one route whose labels are not known beforehand.
#[derive(Debug, Default)]
struct Counted {
    attempts: BTreeSet<(&'static str, String)>,
    dead: BTreeSet<String>,
    /// The route was not in the store when it was last looked at.
    gone: bool,
}

#[derive(Debug, Default)]
struct OwnLane {
    in_flight: i64,
    breaker_open: bool,
}

#[derive(Debug, Default)]
struct Shown {
    routes: BTreeSet<String>,
    dead: BTreeSet<(String, String)>,
    findings: BTreeSet<(String, String)>,
}

impl StoreMetrics {
    /// Shows what is in the store: replaces what was shown before.
    pub fn show(&self, overview: &Overview, dead: &[CauseGroup]) {
        let now = Timestamp::now();
        let families = &self.shared.families;
        let mut shown = lock(&self.shown);
        let routes: BTreeSet<String> = overview.routes.iter().map(|route| route.route.to_string()).collect();
        for gone in shown.routes.difference(&routes) {
            families.forget_route(&self.of_route(gone));
        }
        self.forget_counted(&routes);
        shown.routes = routes;
        for (route, cause) in std::mem::take(&mut shown.dead) {
            families.dead_letters.remove(&self.of_cause(&route, &cause));
        }
        for route in &overview.routes {
            self.show_route(route);
            self.show_unowned(overview, route);
            // One that has none has a series too, so that the first one is a rise and not a beginning.
            shown.dead.insert((route.route.to_string(), String::new()));
            families.dead_letters.get_or_create(&self.of_cause(&route.route, "")).set(0);
        }
        for group in dead {
            shown.dead.insert((group.route.to_string(), group.code.clone()));
            families.dead_letters.get_or_create(&self.of_cause(&group.route, &group.code)).set(signed(group.rows));
        }
        let offset = Duration::from_micros(now.as_micros().abs_diff(overview.at.as_micros())).as_secs_f64();
        let of_store = self.of_store();
        families.clock_offset.get_or_create(&of_store).set(if now < overview.at { -offset } else { offset });
        families.nodes.get_or_create(&of_store).set(signed(overview.nodes.len() as u64));
        families.log_records.get_or_create(&of_store).set(signed(overview.records));
        families.store_up.get_or_create(&of_store).set(1);
    }

    /// Shows what a [`survey`](crate::diagnosis::survey) has found: replaces what was shown before. The codes are those
    /// that the command line prints.
    pub fn show_findings(&self, findings: &[Finding]) {
        let standstill = &self.shared.families.standstill;
        let mut shown = lock(&self.shown);
        for (route, code) in std::mem::take(&mut shown.findings) {
            standstill.remove(&self.of_cause(&route, &code));
        }
        for finding in findings {
            let route = finding.route.clone().unwrap_or_default();
            standstill.get_or_create(&self.of_cause(&route, finding.code)).set(1);
            shown.findings.insert((route, finding.code.to_owned()));
        }
    }

    /// What was counted of a replay that has ended, or of a route that was forgotten, is rendered once more and then goes:
    /// every replay has a name of its own, so that they would pile up.
    fn forget_counted(&self, routes: &BTreeSet<String>) {
        lock(&self.counted).retain(|route, counted| {
            let was_gone = std::mem::replace(&mut counted.gone, !routes.contains(route));
            if !(was_gone && counted.gone) {
                return true;
            }
            let families = &self.shared.families;
            families.forget_counted(&self.of_route(route));
            for (outcome, cause) in &counted.attempts {
                families.attempts.remove(&self.attempt(route, outcome, cause));
            }
            for cause in &counted.dead {
                families.dead_lettered.remove(&self.of_cause(route, cause));
            }
            false
        });
    }

    /// Shows how much longer than it is to be kept the oldest record is there. `None`: records are kept forever.
    pub fn show_retention(&self, vitals: &Vitals, keep: Option<Duration>) {
        if let (Some(age), Some(keep)) = (vitals.oldest_record_age, keep) {
            let lag = age.saturating_sub(keep).as_secs_f64();
            self.shared.families.retention_lag.get_or_create(&self.of_store()).set(lag);
        }
    }

    /// Shows how many messages are on topics that no route reads.
    pub fn show_unrouted(&self, unread: &[(String, u64)]) {
        let messages = unread.iter().map(|(_, messages)| messages).sum();
        self.shared.families.unrouted.get_or_create(&self.of_store()).set(signed(messages));
    }

    /// Shows how the database is doing; what a store does not tell is not shown.
    pub fn show_vitals(&self, vitals: &Vitals) {
        let (families, of_store) = (&self.shared.families, self.of_store());
        if let Some(age) = vitals.horizon_age {
            families.horizon_age.get_or_create(&of_store).set(age.as_secs_f64());
        }
        if let Some(bytes) = vitals.log_bytes {
            families.log_bytes.get_or_create(&of_store).set(signed(bytes));
        }
    }

    /// Counts what a round of a collector has carried into the store, and met and could not.
    pub fn collected(&self, messages: u64, refused: u64) {
        let (families, of_store) = (&self.shared.families, self.of_store());
        families.collected.get_or_create(&of_store).inc_by(messages);
        families.mail_refused.get_or_create(&of_store).inc_by(refused);
    }

    /// Shows whether a collector can do its work.
    pub fn collector_up(&self, up: bool) {
        self.shared.families.collector_up.get_or_create(&self.of_store()).set(i64::from(up));
    }

    /// The store could not be read. What was shown before stays, and grows stale in the open.
    pub fn show_unreachable(&self) {
        self.shared.families.store_up.get_or_create(&self.of_store()).set(0);
    }

    /// The store answers, but a lock keeps everybody from looking at it. What else was shown before stays.
    pub fn show_locked(&self, lock: Finding) {
        self.shared.families.store_up.get_or_create(&self.of_store()).set(1);
        self.show_findings(&[lock]);
    }

    fn show_route(&self, route: &RouteStatus) {
        let families = &self.shared.families;
        let labels = self.of_route(&route.route);
        // What a replay delivers again is old from its first second on, and nobody waits for it: as an age of its own it would
        // wake people up. How much of it is left is shown all the same, and so is what keeps it from moving.
        if route.replay_of.is_none() {
            let age = route.oldest_pending_age.unwrap_or_default().as_secs_f64();
            families.oldest_pending_age.get_or_create(&labels).set(age);
        }
        families.pending.get_or_create(&labels).set(signed(route.pending));
        families.scheduled.get_or_create(&labels).set(signed(route.parked.scheduled));
        families.retrying.get_or_create(&labels).set(signed(route.parked.retrying));
        families.held.get_or_create(&labels).set(signed(route.parked.held));
        families.parked_keys.get_or_create(&labels).set(signed(route.parked.blocking));
        families.route_paused.get_or_create(&labels).set(i64::from(route.paused.is_some()));
    }

    /// A route that no live node has is owned by nobody, and need not be: what waits for it is a finding of its own.
    fn show_unowned(&self, overview: &Overview, route: &RouteStatus) {
        let served_by = route.replay_of.as_ref().unwrap_or(&route.route);
        let served = overview.nodes.iter().any(|node| node.routes.contains(served_by));
        let unowned = route.lanes.iter().filter(|lane| served && lane.owner.is_none()).count();
        self.shared.families.lanes_unowned.get_or_create(&self.of_route(&route.route)).set(signed(unowned as u64));
    }

    /// Changes what is known of an own lane, and shows its route.
    fn own(&self, lane: &LaneId, change: impl FnOnce(&mut BTreeMap<LaneId, OwnLane>)) {
        self.note_route(lane);
        let mut lanes = lock(&self.lanes);
        change(&mut lanes);
        let of_route = || lanes.iter().filter(|(other, _)| other.route == lane.route).map(|(_, own)| own);
        let (in_flight, open) = (of_route().map(|own| own.in_flight).sum(), of_route().any(|own| own.breaker_open));
        let labels = self.of_route(&lane.route);
        self.shared.families.in_flight.get_or_create(&labels).set(in_flight);
        self.shared.families.circuit_open.get_or_create(&labels).set(i64::from(open));
    }

    /// Remembers that something is counted of the route. Mostly it is known already.
    fn note_route(&self, lane: &LaneId) {
        let mut counted = lock(&self.counted);
        if !counted.contains_key(&*lane.route) {
            counted.insert(lane.route.to_string(), Counted::default());
        }
    }

    fn published(&self, lane: &LaneId, outcomes: &[Outcome], enqueued_at: &[Timestamp], took: Duration) {
        let families = &self.shared.families;
        let labels = self.of_route(&lane.route);
        if outcomes.iter().any(|outcome| !is_unsent(outcome)) {
            families.delivery_duration.get_or_create(&labels).observe(took.as_secs_f64());
        }
        let now = Timestamp::now();
        let latency = families.delivery_latency.get_or_create_owned(&labels);
        let mut durable = 0;
        for (outcome, enqueued_at) in outcomes.iter().zip(enqueued_at) {
            match outcome {
                Outcome::Durable => {
                    durable += 1;
                    latency.observe(now.since(*enqueued_at).as_secs_f64());
                }
                _ if is_unsent(outcome) => {}
                Outcome::Throttled(_) => self.attempts(lane, outcome, "", 1),
                Outcome::Rejected(cause) | Outcome::Unavailable(cause) | Outcome::Unknown(cause) => {
                    self.attempts(lane, outcome, cause.code(), 1);
                }
            }
        }
        if durable > 0 {
            self.attempts(lane, &Outcome::Durable, "", durable);
            families.delivered.get_or_create(&labels).inc_by(durable);
        }
    }

    fn attempts(&self, lane: &LaneId, outcome: &Outcome, cause: &str, count: u64) {
        let mut counted = lock(&self.counted);
        let series = &mut counted.entry(lane.route.to_string()).or_default().attempts;
        series.insert((outcome.name(), cause.to_owned()));
        self.shared.families.attempts.get_or_create(&self.attempt(&lane.route, outcome.name(), cause)).inc_by(count);
    }

    fn attempt(&self, route: &str, outcome: &'static str, cause: &str) -> Attempt {
        Attempt { store: self.store.clone(), route: route.to_owned(), outcome, cause: cause.to_owned() }
    }

    fn of_store(&self) -> OfStore {
        OfStore { store: self.store.clone() }
    }

    fn of_route(&self, route: &str) -> OfRoute {
        OfRoute { store: self.store.clone(), route: route.to_owned() }
    }

    fn of_cause(&self, route: &str, cause: &str) -> OfCause {
        OfCause { store: self.store.clone(), route: route.to_owned(), cause: cause.to_owned() }
    }
}

impl Observer for StoreMetrics {
    fn observe(&self, event: &Event<'_>) {
        let families = &self.shared.families;
        match event {
            Event::LaneAcquired { lane, .. } => {
                let labels = self.of_route(&lane.route);
                families.takeovers.get_or_create(&labels).inc();
                // From nothing: a counter that begins with 1 has never increased.
                drop(families.stale_epoch_rejections.get_or_create(&labels));
                self.own(lane, |lanes| {
                    lanes.insert((*lane).clone(), OwnLane::default());
                });
            }
            Event::LaneEnded { lane, how } => {
                if *how == "fenced" {
                    families.stale_epoch_rejections.get_or_create(&self.of_route(&lane.route)).inc();
                }
                self.own(lane, |lanes| {
                    lanes.remove(*lane);
                });
            }
            Event::BreakerOpened { lane, .. } => {
                self.own(lane, |lanes| lanes.entry((*lane).clone()).or_default().breaker_open = true);
            }
            Event::BreakerClosed { lane } | Event::BreakerForgotten { lane } => {
                self.own(lane, |lanes| lanes.entry((*lane).clone()).or_default().breaker_open = false);
            }
            Event::Dead { lane, cause, .. } => {
                let mut counted = lock(&self.counted);
                counted.entry(lane.route.to_string()).or_default().dead.insert(cause.code().to_owned());
                families.dead_lettered.get_or_create(&self.of_cause(&lane.route, cause.code())).inc();
            }
            Event::StoreFailed { operation, .. } => {
                let labels = OfOperation { store: self.store.clone(), operation };
                families.store_failures.get_or_create(&labels).inc();
            }
            Event::Purged { records } => {
                families.purged.get_or_create(&self.of_store()).inc_by(*records);
            }
            _ => {}
        }
    }

    fn progress(&self, lane: &LaneId, progress: &Progress<'_>) {
        let families = &self.shared.families;
        let in_flight = |change: i64| {
            self.own(lane, |lanes| lanes.entry(lane.clone()).or_default().in_flight += change);
        };
        match progress {
            Progress::Read { records, took } => {
                let labels = self.of_route(&lane.route);
                families.claim_duration.get_or_create(&labels).observe(took.as_secs_f64());
                families.enqueued.get_or_create(&labels).inc_by(*records as u64);
            }
            Progress::Publishing { messages } => in_flight(signed(*messages as u64)),
            Progress::Published { outcomes, enqueued_at, took } => {
                in_flight(-signed(enqueued_at.len() as u64));
                self.published(lane, outcomes, enqueued_at, *took);
            }
            Progress::Settled { took } => {
                let labels = self.of_route(&lane.route);
                families.settle_duration.get_or_create(&labels).observe(took.as_secs_f64());
            }
        }
    }
}

/// Whether the publisher kept the message to itself, which is no attempt.
fn is_unsent(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Rejected(cause) | Outcome::Unavailable(cause) | Outcome::Unknown(cause) => cause.is_unsent(),
        Outcome::Throttled(pause) => *pause < ASKED_PAUSE_MIN,
        Outcome::Durable => false,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
