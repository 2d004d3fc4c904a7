//! The relay: from the log to the publishers.
//!
//! A [`Relay`] serves routes. It says to the store that it is alive, takes its fair share of the lanes, and runs each of
//! them: read a page, dispatch its records in order per key, settle what became of them. One node and many are the same
//! code; nodes meet in the store only.
//!
//! | module | step |
//! |---|---|
//! | `supervisor` | heartbeat, taking and leaving lanes |
//! | `retention` | removing what is delivered and old, beside the heartbeats |
//! | `asking` | when a node asks for its routes again |
//! | `balance` | which node should own which lane |
//! | `driver` | one lane on a real store and publisher: read, publish, settle |
//! | `lane` | what the driver does next, as a pure state machine |
//! | [`events`] | everything that a relay tells |

mod asking;
mod balance;
mod driver;
pub mod events;
mod hooks;
mod lane;
pub mod options;
pub mod planted;
mod retention;
mod route;
mod routes;
mod standstills;
mod supervisor;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use postrider_core::{
    Error, Result,
    lease::{Node, NodeId},
    log::Log,
    standstill::{Reason, Standstill},
};
use tokio::sync::{mpsc, watch};

use self::{
    events::{Observer, Stats, TracingObserver},
    hooks::Hooks,
    options::Options,
    routes::Routes,
    standstills::Standstills,
    supervisor::Supervisor,
};
pub use self::{
    lane::OnDead,
    route::{DeadLetter, Route},
};
use crate::runtime::{Runtime, TokioRuntime};

/// A relay, ready to [run](Self::run).
pub struct Relay {
    supervisor: Supervisor,
    handle: RelayHandle,
}

impl Relay {
    /// A relay on this store.
    pub fn builder(log: Arc<dyn Log>) -> RelayBuilder {
        RelayBuilder {
            log,
            name: None,
            routes: Vec::new(),
            options: Options::default(),
            observer: None,
            runtime: None,
            #[cfg(feature = "planted")]
            plant: planted::Plant::None,
        }
    }

    /// For asking a running relay to stop, and for its counters.
    #[must_use]
    pub fn handle(&self) -> RelayHandle {
        self.handle.clone()
    }

    /// Runs until [`RelayHandle::drain`] is called: then it stops reading, lets what is in flight come back, settles,
    /// gives its lanes back and returns.
    ///
    /// Dropping this future is a crash, and nothing worse: the leases run out, and what was in flight is published again
    /// by the next owner.
    ///
    /// # Errors
    /// If the store refuses for good, for example because its schema is another one. An outage is waited out.
    pub async fn run(self) -> Result<()> {
        self.supervisor.run().await
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("node", &self.handle.node).finish_non_exhaustive()
    }
}

/// A hold on a running relay.
#[derive(Clone)]
pub struct RelayHandle {
    node: NodeId,
    stop: Arc<watch::Sender<bool>>,
    paused: mpsc::UnboundedSender<Arc<str>>,
    stats: Arc<Stats>,
    standstills: Arc<Standstills>,
    routes: Arc<Routes>,
    runtime: Arc<dyn Runtime>,
}

impl fmt::Debug for RelayHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayHandle").field("node", &self.node).field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl RelayHandle {
    /// Asks for a clean stop. Nothing is published twice after it, unless the drain deadline passes.
    pub fn drain(&self) {
        self.stop.send_replace(true);
    }

    /// Replaces a route by another one of the same name: its destination, rate and policies. Its lanes on this node drain
    /// and go on with the new one, so nothing is published twice, unless the drain deadline passes. The old destination is
    /// dropped, not closed, once no lane uses it any more.
    ///
    /// # Errors
    /// [`Invalid`](postrider_core::ErrorKind::Invalid) if the route has a problem, or if topics, order, lanes or start
    /// differ: those the store learns when a relay starts. [`NotFound`](postrider_core::ErrorKind::NotFound) if this relay
    /// has no route of that name. Nothing has changed then.
    pub fn replace_route(&self, route: Route) -> Result<()> {
        self.routes.replace(route)
    }

    /// Says that somebody has paused a route in the store just now. Its lanes on this node come to rest without waiting for a
    /// heartbeat, and go on when the next one finds the route resumed. Then the destination is
    /// [reopened](postrider_core::transport::Publisher::reopen), also if the pause was over before any heartbeat could see it.
    pub fn route_was_paused(&self, route: &str) {
        let _ = self.paused.send(route.into()); // a relay that has stopped has no lanes
    }

    /// Who this relay is in the store.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// How long ago the store last answered a heartbeat. `None`: never yet.
    #[must_use]
    pub fn heartbeat_age(&self) -> Option<Duration> {
        let at = self.stats.heartbeat_at.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.runtime.now().saturating_sub(Duration::from_micros(at)))
    }

    /// Lanes of this node that do not move although they should, and why.
    #[must_use]
    pub fn standstills(&self) -> Vec<Standstill> {
        let all = self.standstills.all(lane::ticks(self.runtime.now()));
        all.into_iter().filter(|standstill| standstill.reason != Reason::Rests).collect()
    }
}

/// Collects what a relay needs. Setters never fail; [`Self::build`] checks everything and reports every problem.
#[must_use]
pub struct RelayBuilder {
    log: Arc<dyn Log>,
    name: Option<String>,
    routes: Vec<Route>,
    options: Options,
    observer: Option<Arc<dyn Observer>>,
    runtime: Option<Arc<dyn Runtime>>,
    #[cfg(feature = "planted")]
    plant: planted::Plant,
}

impl RelayBuilder {
    /// Adds a route.
    pub fn route(mut self, route: Route) -> Self {
        self.routes.push(route);
        self
    }

    /// A name for people to recognise this node by. Default: the process id.
    pub fn node_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Other options than the defaults.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Who is told what happens. Default: [`TracingObserver`].
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Another source of time and tasks than tokio.
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Plants a mistake.
    #[cfg(feature = "planted")]
    pub fn plant(mut self, plant: planted::Plant) -> Self {
        self.plant = plant;
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// [`Invalid`](postrider_core::ErrorKind::Invalid), naming every problem.
    pub fn build(self) -> Result<Relay> {
        let mut problems: Vec<String> = Vec::new();
        if self.routes.is_empty() {
            problems.push("a relay needs at least one route".to_owned());
        }
        let mut names: Vec<&str> = self.routes.iter().map(|route| &*route.name).collect();
        names.sort_unstable();
        for pair in names.windows(2).filter(|pair| pair[0] == pair[1]) {
            problems.push(format!("two routes are named `{}`", pair[0]));
        }
        problems.extend(self.options.problems());
        problems.extend(self.routes.iter().flat_map(Route::problems));
        if !problems.is_empty() {
            return Err(Error::invalid(format!("the relay cannot be built: {}", problems.join("; "))));
        }
        let runtime = self.runtime.unwrap_or_else(|| Arc::new(TokioRuntime::new()));
        let node = Node {
            id: NodeId::from_random(runtime.random(), runtime.random()),
            name: self.name.unwrap_or_else(|| format!("process {}", std::process::id())),
            routes: self.routes.iter().map(|route| Arc::clone(&route.name)).collect(),
            lease_life: self.options.lease_life,
            standstills: Vec::new(),
        };
        let (stop, stopping) = watch::channel(false);
        let (paused, just_paused) = mpsc::unbounded_channel();
        let stats = Arc::new(Stats::default());
        let standstills = Arc::new(Standstills::default());
        let routes = Arc::new(Routes::new(self.routes));
        let handle = RelayHandle {
            node: node.id,
            stop: Arc::new(stop),
            paused,
            stats: Arc::clone(&stats),
            standstills: Arc::clone(&standstills),
            routes: Arc::clone(&routes),
            runtime: Arc::clone(&runtime),
        };
        let context = supervisor::Context {
            log: self.log,
            runtime,
            observer: self.observer.unwrap_or_else(|| Arc::new(TracingObserver)),
            stats,
            standstills,
            hooks: Hooks::default(),
            options: self.options,
            #[cfg(feature = "planted")]
            plant: self.plant,
            #[cfg(not(feature = "planted"))]
            plant: planted::Plant::None,
        };
        Ok(Relay { supervisor: Supervisor::new(context, node, routes, stopping, just_paused), handle })
    }
}

impl fmt::Debug for RelayBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}
