//! A store whose relay side fails.
//!
//! A transient error comes *before* the operation (it was not applied) or *after* it (it was, and only the answer is
//! lost): the caller cannot tell the two apart, and must survive both. Fenced is answered without applying anything.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use postrider_core::{
    BoxFuture, Error, ErrorKind, Result,
    capability::StoreCapabilities,
    lease::{LaneId, Lease, Node, NodeId, Roster, RouteSpec},
    log::{Cursor, Log, Page, PageLimit, Resumed, Retention, Settlement},
    parked::{DueLimit, DuePage},
};

use crate::random::Random;

/// The calls of a [`Log`] that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `register`.
    Register,
    /// `heartbeat`.
    Heartbeat,
    /// `retire`.
    Retire,
    /// `acquire`.
    Acquire,
    /// `resume`.
    Resume,
    /// `read`.
    Read,
    /// `due`.
    Due,
    /// `settle`.
    Settle,
    /// `release`.
    Release,
    /// `finish`.
    Finish,
    /// `purge`.
    Purge,
}

/// When an error strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before the operation: it is not applied.
    Before,
    /// After the operation: it is applied, and its answer is lost.
    After,
}

/// A log that fails as its handle says.
pub struct FaultyLog {
    inner: Arc<dyn Log>,
    faults: LogFaults,
}

impl FaultyLog {
    /// Wraps a log. No fault is switched on.
    #[must_use]
    pub fn new(inner: Arc<dyn Log>) -> (Self, LogFaults) {
        let faults = LogFaults::default();
        (Self { inner, faults: faults.clone() }, faults)
    }

    fn through<'a, T: Send + 'a>(
        &'a self,
        operation: Operation,
        call: BoxFuture<'a, Result<T>>,
    ) -> BoxFuture<'a, Result<T>> {
        Box::pin(async move {
            let delay = self.faults.delay();
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            if self.faults.fences(operation) {
                return Err(Error::fenced());
            }
            if self.faults.refuses(operation) {
                return Err(Error::new(ErrorKind::Schema, "the log is gone on purpose"));
            }
            match self.faults.next(operation) {
                None => call.await,
                Some(Moment::Before) => Err(lost(operation, Moment::Before)),
                Some(Moment::After) => {
                    // The operation's own error is lost with the answer.
                    drop(call.await);
                    Err(lost(operation, Moment::After))
                }
            }
        })
    }
}

impl Log for FaultyLog {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn register<'a>(&'a self, node: &'a Node, routes: &'a [RouteSpec]) -> BoxFuture<'a, Result<()>> {
        self.through(Operation::Register, self.inner.register(node, routes))
    }

    fn heartbeat<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Result<Roster>> {
        self.through(Operation::Heartbeat, self.inner.heartbeat(node))
    }

    fn retire(&self, node: NodeId) -> BoxFuture<'_, Result<()>> {
        self.through(Operation::Retire, self.inner.retire(node))
    }

    fn acquire<'a>(&'a self, lane: &'a LaneId, node: &'a Node) -> BoxFuture<'a, Result<Option<Lease>>> {
        self.through(Operation::Acquire, self.inner.acquire(lane, node))
    }

    fn resume<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Resumed>> {
        self.through(Operation::Resume, self.inner.resume(lease))
    }

    fn read<'a>(&'a self, lease: &'a Lease, after: &'a Cursor, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        self.through(Operation::Read, self.inner.read(lease, after, limit))
    }

    fn due<'a>(&'a self, lease: &'a Lease, limit: DueLimit) -> BoxFuture<'a, Result<DuePage>> {
        self.through(Operation::Due, self.inner.due(lease, limit))
    }

    fn settle<'a>(&'a self, lease: &'a Lease, settlement: &'a Settlement) -> BoxFuture<'a, Result<()>> {
        self.through(Operation::Settle, self.inner.settle(lease, settlement))
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<()>> {
        self.through(Operation::Release, self.inner.release(lease))
    }

    fn finish<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<bool>> {
        self.through(Operation::Finish, self.inner.finish(lease))
    }

    fn purge(&self, retention: Retention) -> BoxFuture<'_, Result<u64>> {
        self.through(Operation::Purge, self.inner.purge(retention))
    }

    fn hint(&self) -> BoxFuture<'_, ()> {
        self.inner.hint()
    }
}

/// Switches the faults of a [`FaultyLog`]. Clones switch the same ones.
#[derive(Clone, Default)]
pub struct LogFaults(Arc<Mutex<Plan>>);

#[derive(Default)]
struct Plan {
    script: VecDeque<(Operation, Moment)>,
    mix: Option<(u64, u64, Random)>,
    fenced: bool,
    refused: Option<Operation>,
    delay_max: Duration,
    delays: Option<Random>,
}

impl LogFaults {
    /// The next call of this operation fails, once. Faults of one operation strike in the order given.
    pub fn fail_next(&self, operation: Operation, moment: Moment) {
        self.plan().script.push_back((operation, moment));
    }

    /// Of a thousand calls so many fail before, and so many after they were applied, drawn from a seed.
    pub fn mix(&self, before: u64, after: u64, seed: u64) {
        self.plan().mix = Some((before, after, Random::new(seed)));
    }

    /// While on, `settle`, `release` and `finish` are answered with `Fenced` and not applied.
    pub fn fence(&self, on: bool) {
        self.plan().fenced = on;
    }

    /// From now on this operation is refused for good, as where somebody has dropped the log.
    pub fn refuse(&self, operation: Operation) {
        self.plan().refused = Some(operation);
    }

    /// Delays every call by up to this long, drawn from a seed.
    pub fn delay_up_to(&self, delay_max: Duration, seed: u64) {
        let mut plan = self.plan();
        (plan.delay_max, plan.delays) = (delay_max, Some(Random::new(seed)));
    }

    /// Switches everything off.
    pub fn clear(&self) {
        *self.plan() = Plan::default();
    }

    fn fences(&self, operation: Operation) -> bool {
        self.plan().fenced && matches!(operation, Operation::Settle | Operation::Release | Operation::Finish)
    }

    fn refuses(&self, operation: Operation) -> bool {
        self.plan().refused == Some(operation)
    }

    fn next(&self, operation: Operation) -> Option<Moment> {
        let mut plan = self.plan();
        if let Some(place) = plan.script.iter().position(|(planned, _)| *planned == operation) {
            return plan.script.remove(place).map(|(_, moment)| moment);
        }
        let (before, after, random) = plan.mix.as_mut()?;
        match random.below(1000) {
            drawn if drawn < *before => Some(Moment::Before),
            drawn if drawn < *before + *after => Some(Moment::After),
            _ => None,
        }
    }

    fn delay(&self) -> Duration {
        let mut plan = self.plan();
        let micros = u64::try_from(plan.delay_max.as_micros()).unwrap_or(u64::MAX);
        let drawn = plan.delays.as_mut().map_or(0, |random| random.below(micros.saturating_add(1)));
        Duration::from_micros(drawn)
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().expect("nobody panicked while planning faults")
    }
}

fn lost(operation: Operation, moment: Moment) -> Error {
    Error::new(ErrorKind::Unavailable, "the connection was lost on purpose")
        .with("operation", format!("{operation:?}"))
        .with("moment", format!("{moment:?}"))
}
