//! Metrics of a relay, in the text format of Prometheus.
//!
//! Two sources meet here. What *happens* (attempts, durations, verdicts) is counted as the relay tells it: [`Metrics`] is an
//! [`Observer`]. What *is* (how much waits, how old the oldest is, who owns what) is read from the store, by whoever
//! renders: [`Metrics::show`] takes an [`Overview`]. So an age is the store's clock against the store's clock, and stays
//! true while no relay runs.
//!
//! ```
//! use std::sync::Arc;
//! use postrider::{Relay, Route, memory::MemoryStore, metrics::Metrics, relay::events::TracingObserver};
//!
//! # fn main() -> postrider::Result<()> {
//! let metrics = Arc::new(Metrics::new());
//! let route = Route::handler("billing", |_| async { Ok::<_, String>(()) });
//! let relay = Relay::builder(Arc::new(MemoryStore::new()))
//!     .route(route)
//!     .observer(Arc::new(vec![Arc::new(TracingObserver) as _, Arc::clone(&metrics) as _]))
//!     .build()?;
//! // In the handler of `GET /metrics`:
//! let text = metrics.render();
//! # assert!(text.contains("postrider_build_info"));
//! # Ok(()) }
//! ```
//!
//! Labels are routes, outcomes and cause codes: few and known. Ids, keys and texts are never labels.

mod families;

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use postrider_core::{
    ErrorKind,
    admin::{CauseGroup, Overview, RouteStatus},
    lease::LaneId,
    parked::Cause,
    time::Timestamp,
    transport::Outcome,
};
use prometheus_client::{encoding::text, registry::Registry};

use self::families::{Attempt, Families, OfCause, OfOperation, OfRoute};
use crate::relay::events::{Event, Observer, Progress};

/// What the text is to be served as.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Everything that is counted and shown. One for a whole process; several relays may share it.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    families: Families,
    /// What this node's own lanes are doing.
    lanes: Mutex<BTreeMap<LaneId, OwnLane>>,
}

#[derive(Debug, Default)]
struct OwnLane {
    in_flight: i64,
    breaker_open: bool,
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
        let mut registry = Registry::with_prefix("postrider");
        let families = Families::register(&mut registry);
        Self { registry, families, lanes: Mutex::default() }
    }

    /// Shows what is in the store: replaces what was shown before.
    pub fn show(&self, overview: &Overview, dead: &[CauseGroup]) {
        let now = Timestamp::now();
        let families = &self.families;
        families.clear_shown();
        for route in &overview.routes {
            self.show_route(route);
        }
        for group in dead {
            let labels = OfCause { route: group.route.to_string(), cause: group.code.clone() };
            families.dead_letters.get_or_create(&labels).inc_by(signed(group.rows));
        }
        let offset = Duration::from_micros(now.as_micros().abs_diff(overview.at.as_micros())).as_secs_f64();
        families.clock_offset.set(if now < overview.at { -offset } else { offset });
        families.nodes.set(signed(overview.nodes.len() as u64));
        families.log_records.set(signed(overview.records));
    }

    fn show_route(&self, route: &RouteStatus) {
        let families = &self.families;
        let labels = OfRoute { route: route.route.to_string() };
        let age = route.oldest_pending_age.unwrap_or_default().as_secs_f64();
        families.oldest_pending_age.get_or_create(&labels).set(age);
        families.pending.get_or_create(&labels).set(signed(route.pending));
        families.scheduled.get_or_create(&labels).set(signed(route.parked.scheduled));
        families.retrying.get_or_create(&labels).set(signed(route.parked.retrying));
        families.held.get_or_create(&labels).set(signed(route.parked.held));
        families.parked_keys.get_or_create(&labels).set(signed(route.parked.blocking));
        families.route_paused.get_or_create(&labels).set(i64::from(route.paused.is_some()));
        let unowned = route.lanes.iter().filter(|lane| lane.owner.is_none()).count();
        families.lanes_unowned.get_or_create(&labels).set(signed(unowned as u64));
    }

    /// Everything as text, to be served as [`CONTENT_TYPE`].
    #[must_use]
    pub fn render(&self) -> String {
        self.show_own_lanes();
        let mut rendered = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut rendered, &self.registry);
        rendered
    }

    fn show_own_lanes(&self) {
        let mut routes: BTreeMap<String, OwnLane> = BTreeMap::new();
        for (lane, own) in &*self.lanes() {
            let route = routes.entry(lane.route.to_string()).or_default();
            route.in_flight += own.in_flight;
            route.breaker_open |= own.breaker_open;
        }
        self.families.clear_own();
        for (route, own) in routes {
            let labels = OfRoute { route };
            self.families.in_flight.get_or_create(&labels).set(own.in_flight);
            self.families.circuit_open.get_or_create(&labels).set(i64::from(own.breaker_open));
        }
    }

    fn lanes(&self) -> MutexGuard<'_, BTreeMap<LaneId, OwnLane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn own(&self, lane: &LaneId, change: impl FnOnce(&mut OwnLane)) {
        change(self.lanes().entry(lane.clone()).or_default());
    }

    fn published(&self, lane: &LaneId, outcomes: &[Outcome], enqueued_at: &[Timestamp], took: Duration) {
        let route = OfRoute { route: lane.route.to_string() };
        self.families.delivery_duration.get_or_create(&route).observe(took.as_secs_f64());
        let now = Timestamp::now();
        let latency = self.families.delivery_latency.get_or_create_owned(&route);
        let mut durable = 0;
        for (outcome, enqueued_at) in outcomes.iter().zip(enqueued_at) {
            let (Outcome::Rejected(cause) | Outcome::Unavailable(cause) | Outcome::Unknown(cause)) = outcome else {
                if *outcome == Outcome::Durable {
                    durable += 1;
                    latency.observe(now.since(*enqueued_at).as_secs_f64());
                } else {
                    self.attempts(lane, outcome.name(), "", 1);
                }
                continue;
            };
            self.attempts(lane, outcome.name(), cause.code(), 1);
        }
        if durable > 0 {
            self.attempts(lane, "durable", "", durable);
            self.families.delivered.get_or_create(&route).inc_by(durable);
        }
    }

    fn attempts(&self, lane: &LaneId, outcome: &'static str, cause: &str, count: u64) {
        let labels = Attempt { route: lane.route.to_string(), outcome, cause: cause.to_owned() };
        self.families.attempts.get_or_create(&labels).inc_by(count);
    }

    fn dead(&self, lane: &LaneId, cause: &Cause) {
        let labels = OfCause { route: lane.route.to_string(), cause: cause.code().to_owned() };
        self.families.dead_lettered.get_or_create(&labels).inc();
    }
}

impl Observer for Metrics {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::LaneAcquired { lane, .. } => {
                self.families.takeovers.get_or_create(&OfRoute { route: lane.route.to_string() }).inc();
                self.own(lane, |own| *own = OwnLane::default());
            }
            Event::LaneEnded { lane, how } => {
                if *how == "fenced" {
                    let labels = OfRoute { route: lane.route.to_string() };
                    self.families.stale_epoch_rejections.get_or_create(&labels).inc();
                }
                self.lanes().remove(lane);
            }
            Event::BreakerOpened { lane, .. } => self.own(lane, |own| own.breaker_open = true),
            Event::BreakerClosed { lane } => self.own(lane, |own| own.breaker_open = false),
            Event::Dead { lane, cause, .. } => self.dead(lane, cause),
            Event::StoreFailed { operation, error } if error.kind() != ErrorKind::Fenced => {
                self.families.store_failures.get_or_create(&OfOperation { operation }).inc();
            }
            Event::Purged { records } => drop(self.families.purged.inc_by(*records)),
            _ => {}
        }
    }

    fn progress(&self, lane: &LaneId, progress: &Progress<'_>) {
        let labels = || OfRoute { route: lane.route.to_string() };
        match progress {
            Progress::Read { records, took } => {
                self.families.claim_duration.get_or_create(&labels()).observe(took.as_secs_f64());
                self.families.enqueued.get_or_create(&labels()).inc_by(*records as u64);
            }
            Progress::Publishing { messages } => {
                self.own(lane, |own| own.in_flight += signed(*messages as u64));
            }
            Progress::Published { outcomes, enqueued_at, took } => {
                self.own(lane, |own| own.in_flight -= signed(enqueued_at.len() as u64));
                self.published(lane, outcomes, enqueued_at, *took);
            }
            Progress::Settled { took } => {
                self.families.settle_duration.get_or_create(&labels()).observe(took.as_secs_f64());
            }
        }
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
