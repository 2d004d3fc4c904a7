//! The supervisor: says that the node is alive, takes and leaves lanes, and lets retention run beside it.
//!
//! Each heartbeat is one write. It extends all leases of the node, and its answer, the roster, tells what to do: which
//! lanes are free and should be ours, which should be somebody else's, which are paused, which were taken from us. A
//! lane's driver may act until two thirds of the lease's life after the heartbeat was *sent*, on this node's monotonic
//! clock; no clock is ever compared with another.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use postrider_core::{
    Error, Result,
    lease::{LaneId, LaneStanding, Lease, Node, Roster},
    log::Log,
};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    asking::Asking,
    balance,
    driver::{Ended, LaneDriver, Orders},
    events::{Event, Observer, Stats},
    hooks::Hooks,
    lane::{Tick, ticks},
    options::Options,
    planted::Plant,
    retention,
    routes::Routes,
    standstills::Standstills,
};
use crate::runtime::Runtime;

/// What the parts of a relay share.
pub(super) struct Context {
    pub(super) log: Arc<dyn Log>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) stats: Arc<Stats>,
    pub(super) standstills: Arc<Standstills>,
    pub(super) hooks: Hooks,
    pub(super) options: Options,
    pub(super) plant: Plant,
}

impl Context {
    pub(super) fn now(&self) -> Tick {
        ticks(self.runtime.now())
    }

    pub(super) async fn sleep_until(&self, at: Tick) {
        self.runtime.sleep_until(Duration::from_micros(at)).await;
    }

    pub(super) fn failed(&self, operation: &'static str, error: &Error) {
        self.observer.observe(&Event::StoreFailed { operation, error });
    }
}

/// A lane that this node runs.
struct Running {
    lease: Arc<Lease>,
    /// The route whose publisher it uses: its own, or the one that a replay goes through.
    served_by: Arc<str>,
    orders: watch::Sender<Orders>,
    /// Until then nobody else can have taken it.
    valid_until: Tick,
}

pub(super) struct Supervisor {
    context: Arc<Context>,
    node: Node,
    routes: Arc<Routes>,
    stopping: watch::Receiver<bool>,
    /// Routes that were just paused in the store.
    paused: mpsc::UnboundedReceiver<Arc<str>>,
    /// Whether an operator has asked the node to leave, as the last heartbeat was told.
    asked_to_leave: bool,
    asking: Asking,
    running: BTreeMap<LaneId, Running>,
    /// Leases of lanes that ended without giving them back in the store yet.
    to_release: Vec<Arc<Lease>>,
    /// Lanes of replays that the store refuses us before anybody else can have taken them. The next roster tells whether they
    /// are no more.
    refused: Vec<LaneId>,
    ended: mpsc::UnboundedReceiver<(LaneId, Ended)>,
    ended_sender: mpsc::UnboundedSender<(LaneId, Ended)>,
}

impl Supervisor {
    pub(super) fn new(
        context: Context,
        node: Node,
        routes: Arc<Routes>,
        stopping: watch::Receiver<bool>,
        paused: mpsc::UnboundedReceiver<Arc<str>>,
    ) -> Self {
        let (ended_sender, ended) = mpsc::unbounded_channel();
        Self {
            context: Arc::new(context),
            node,
            routes,
            stopping,
            paused,
            asked_to_leave: false,
            asking: Asking::default(),
            running: BTreeMap::new(),
            to_release: Vec::new(),
            refused: Vec::new(),
            ended,
            ended_sender,
        }
    }

    pub(super) async fn run(mut self) -> Result<()> {
        self.register().await?;
        let every = ticks(self.context.options.heartbeat_every);
        let mut beat_at = self.context.now();
        let (runs, stopped) = oneshot::channel();
        self.context.runtime.spawn(Box::pin(retention::run(Arc::clone(&self.context), stopped)));
        while !*self.stopping.borrow_and_update() {
            if self.context.now() >= beat_at {
                beat_at = self.context.now() + every;
                self.beat(false).await;
                if self.asked_to_leave {
                    self.context.observer.observe(&Event::AskedToLeave);
                    break;
                }
            }
            let context = Arc::clone(&self.context);
            tokio::select! {
                biased;
                changed = self.stopping.changed() => {
                    if changed.is_err() {
                        break; // nobody can ask any more, so nobody wants it to run on
                    }
                }
                Some((lane, ended)) = self.ended.recv() => {
                    self.lane_ended(&lane, ended).await;
                }
                Some(route) = self.paused.recv() => self.rest(&route),
                () = context.sleep_until(beat_at) => {}
            }
        }
        drop(runs);
        self.stop().await
    }

    /// Waits out an unreachable store; refuses to start on one that will never do.
    async fn register(&self) -> Result<()> {
        let specs = self.routes.specs();
        loop {
            match self.context.log.register(&self.node, &specs).await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_transient() => self.context.failed("register", &error),
                Err(error) => return Err(error),
            }
            if *self.stopping.borrow() {
                return Ok(());
            }
            self.context.sleep_until(self.context.now() + ticks(Duration::from_millis(500))).await;
        }
    }

    async fn beat(&mut self, stopping: bool) {
        self.give_back().await;
        self.node.standstills = self.context.standstills.all(self.context.now());
        let sent_at = self.context.now();
        let roster = match self.context.log.heartbeat(&self.node).await {
            Ok(roster) => roster,
            Err(error) => return self.context.failed("heartbeat", &error),
        };
        let answered_at = self.context.now().saturating_add(1);
        self.context.stats.heartbeat_at.store(answered_at, std::sync::atomic::Ordering::Relaxed);
        self.asked_to_leave = roster.leave;
        let valid_until = self.valid_until(sent_at);
        let share = if stopping { Vec::new() } else { balance::share_of(self.node.id, &roster) };
        self.order(&roster, &share, valid_until);
        self.tell_refused(|lane| roster.lanes.iter().any(|standing| standing.lane == *lane));
        if stopping || self.asked_to_leave {
            return; // what we own without knowing it is given back by saying goodbye
        }
        self.ask_again(&roster).await;
        for standing in roster.lanes {
            // A lane can be ours without our knowing it: the answer to an earlier acquire was lost. If it is not to be
            // ours, it must be given back, because our heartbeats keep it from everybody else.
            let ours = standing.owner == Some(self.node.id);
            let wanted = share.contains(&standing.lane);
            if self.running.contains_key(&standing.lane) || !(ours || (wanted && standing.owner.is_none())) {
                continue;
            }
            let sent_at = self.context.now();
            match self.context.log.acquire(&standing.lane, &self.node).await {
                Ok(Some(lease)) if wanted => self.start(standing, Arc::new(lease), self.valid_until(sent_at)),
                Ok(Some(lease)) => self.to_release.push(Arc::new(lease)),
                Ok(None) => {}
                Err(error) => self.context.failed("acquire", &error),
            }
        }
        self.give_back().await;
    }

    /// The store reads what is asked for, and what others ask for besides (see [`super::asking`]). A route that it does not
    /// know was forgotten: by an operator who did not hear of this node for longer than a lease, or with the database, which was
    /// set back. Standing still in silence would be worse than beginning anew. The next heartbeat takes the lanes; what fails
    /// now is tried again with it.
    async fn ask_again(&mut self, roster: &Roster) {
        let specs = self.routes.specs();
        for spec in &specs {
            if let Some(topics) = self.asking.news(roster, spec) {
                self.context.observer.observe(&Event::ReadForOthers { route: &spec.name, topics: &topics });
            }
        }
        let now = self.context.now();
        let due = self.asking.due(now, roster, specs);
        if due.is_empty() {
            return;
        }
        match self.context.log.register(&self.node, &due).await {
            Ok(()) => {
                self.asking.asked(now);
                let known = |route: &str| roster.routes.iter().any(|standing| *standing.route == *route);
                for spec in due.iter().filter(|spec| !known(&spec.name)) {
                    self.context.observer.observe(&Event::RouteForgotten { route: &spec.name });
                }
            }
            Err(error) => self.context.failed("register", &error),
        }
    }

    fn valid_until(&self, sent_at: Tick) -> Tick {
        let from_answer = cfg!(feature = "planted") && self.context.plant == Plant::LeaseFromAnswer;
        let from = if from_answer { self.context.now() } else { sent_at };
        from + ticks(self.node.lease_life) / 3 * 2
    }

    /// Tells every running lane what the roster says of it.
    fn order(&mut self, roster: &Roster, share: &[LaneId], valid_until: Tick) {
        for (lane, running) in &mut self.running {
            let standing = roster.lanes.iter().find(|standing| standing.lane == *lane);
            let rests = running.orders.borrow().rests;
            let orders = match standing {
                Some(standing) if standing.epoch == running.lease.epoch => {
                    running.valid_until = valid_until;
                    Orders { valid_until, paused: standing.paused, rests, leave: !share.contains(lane), fenced: false }
                }
                _ => Orders { valid_until: 0, paused: false, rests, leave: false, fenced: true },
            };
            running.orders.send_replace(orders);
        }
    }

    /// A route was paused in the store just now. The next heartbeat, which begins later, tells whether it still is.
    fn rest(&self, route: &str) {
        for running in self.running.values().filter(|running| *running.served_by == *route) {
            running.orders.send_modify(|orders| {
                orders.paused = true;
                orders.rests = orders.rests.wrapping_add(1);
            });
        }
    }

    fn start(&mut self, standing: LaneStanding, lease: Arc<Lease>, valid_until: Tick) {
        let LaneStanding { lane, served_by, paused, .. } = standing;
        let Some(route) = self.routes.follow(&served_by) else { return };
        self.context.observer.observe(&Event::LaneAcquired { lane: &lane, epoch: lease.epoch });
        let (orders, receiver) = watch::channel(Orders { valid_until, paused, rests: 0, leave: false, fenced: false });
        let driver = LaneDriver {
            context: Arc::clone(&self.context),
            route,
            lease: Arc::clone(&lease),
            orders: receiver,
            settlements: 0,
        };
        let report = Report { lane: lane.clone(), ended: Ended::Crashed, sender: self.ended_sender.clone() };
        self.running.insert(lane, Running { lease, served_by, orders, valid_until });
        self.count_lanes();
        self.context.runtime.spawn(Box::pin(report.watch(driver)));
    }

    async fn lane_ended(&mut self, lane: &LaneId, ended: Ended) {
        let Some(running) = self.running.remove(lane) else { return };
        self.context.standstills.forget(lane); // a driver that panicked has not done it
        self.count_lanes();
        let is_replay = running.lease.reader.replay.is_some();
        if ended == Ended::Fenced && is_replay && self.context.now() < running.valid_until {
            return self.refused.push(lane.clone());
        }
        self.tell_ended(lane, ended);
        if matches!(ended, Ended::Drained | Ended::Deadline | Ended::Crashed) {
            self.to_release.push(running.lease);
            self.give_back().await;
        }
    }

    /// An operator who cancels a replay takes its lanes from whoever has them, which is no reason to worry.
    fn tell_refused(&mut self, exists: impl Fn(&LaneId) -> bool) {
        for lane in std::mem::take(&mut self.refused) {
            self.tell_ended(&lane, if exists(&lane) { Ended::Fenced } else { Ended::Gone });
        }
    }

    fn tell_ended(&self, lane: &LaneId, ended: Ended) {
        if ended == Ended::Fenced {
            self.context.stats.fenced.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        self.context.observer.observe(&Event::LaneEnded { lane, how: ended.name() });
    }

    /// Gives back the leases of lanes that ended. What cannot be given back now is tried again with the next heartbeat:
    /// otherwise heartbeats would keep a lane that nobody works on.
    async fn give_back(&mut self) {
        for lease in std::mem::take(&mut self.to_release) {
            match self.context.log.release(&lease).await {
                Err(error) if !error.is_fenced() => {
                    self.context.failed("release", &error);
                    self.to_release.push(lease);
                }
                _ => {}
            }
        }
    }

    /// Drains every lane, with heartbeats as long as that takes, and says goodbye.
    async fn stop(&mut self) -> Result<()> {
        let began = self.context.now();
        let every = ticks(self.context.options.heartbeat_every);
        for running in self.running.values() {
            running.orders.send_modify(|orders| orders.leave = true);
        }
        // From here on others share the lanes among themselves: otherwise those that are given back at once would wait, as
        // our share, until the slowest lane has drained.
        self.node.routes.clear();
        let (mut beat_at, mut undrained) = (began, 0);
        // Lanes have the deadline themselves; one more second for a driver that does not come back at all.
        let give_up_at = began + ticks(self.context.options.drain_deadline) + ticks(Duration::from_secs(1));
        while !self.running.is_empty() && self.context.now() < give_up_at {
            let context = Arc::clone(&self.context);
            tokio::select! {
                biased;
                Some((lane, ended)) = self.ended.recv() => {
                    undrained += u64::from(matches!(ended, Ended::Deadline));
                    self.lane_ended(&lane, ended).await;
                }
                () = context.sleep_until(beat_at.min(give_up_at)) => {
                    self.beat(true).await;
                    beat_at = self.context.now() + every;
                }
            }
        }
        if !self.refused.is_empty() {
            let context = Arc::clone(&self.context);
            tokio::select! {
                biased;
                () = self.beat(true) => {}
                () = context.sleep_until(give_up_at) => {}
            }
            self.tell_refused(|_| true);
        }
        undrained += self.running.len() as u64;
        self.context.stats.undrained.store(undrained, std::sync::atomic::Ordering::Relaxed);
        if let Err(error) = self.context.log.retire(self.node.id).await {
            self.context.failed("retire", &error); // its leases run out by themselves
        }
        // What stands still must not keep the relay: neither an application's function nor a destination that does not close.
        let close_by = give_up_at.max(self.context.now() + ticks(Duration::from_secs(1)));
        tokio::select! {
            biased;
            () = self.context.hooks.are_done() => {}
            () = self.context.sleep_until(close_by) => {}
        }
        for route in self.routes.all() {
            tokio::select! {
                biased;
                closed = route.publisher.close() => closed?,
                () = self.context.sleep_until(close_by) => {}
            }
        }
        let drained_in = Duration::from_micros(self.context.now() - began);
        self.context.observer.observe(&Event::Stopped { drained_in });
        Ok(())
    }

    fn count_lanes(&self) {
        self.context.stats.lanes.store(self.running.len() as u64, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Tells the supervisor how a lane's driver ended, also if it panicked.
struct Report {
    lane: LaneId,
    ended: Ended,
    sender: mpsc::UnboundedSender<(LaneId, Ended)>,
}

impl Report {
    async fn watch(mut self, driver: LaneDriver) {
        self.ended = driver.run().await;
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let _ = self.sender.send((self.lane.clone(), self.ended)); // the supervisor may be gone as well
    }
}
