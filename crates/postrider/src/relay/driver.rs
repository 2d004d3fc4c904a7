//! The driver: runs one lane's effects on a real store and publisher. All that it knows is how to wait.
//!
//! It owns every future that it starts in one unordered set and drops none on purpose. Dropping the driver is a crash:
//! publishes in flight are abandoned, and the next owner publishes them again under the same ids.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use postrider_core::{
    BoxFuture, Error, Result,
    lease::Lease,
    log::{Cursor, Marks, Page, Resumed, Settlement},
    parked::{Cause, DuePage},
    standstill::Reason,
    time::Timestamp,
    transport::Outcome,
};
use tokio::sync::watch;

use super::{
    events::{Event, Progress},
    lane::{Commit, Effect, Lane, Mark, Note, Settled, Tick, since, ticks},
    planted::Plant,
    route::{DeadLetter, Route},
    standstills::is_same,
    supervisor::Context,
};

/// What the supervisor wants of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Orders {
    /// Act no later than this.
    pub(super) valid_until: Tick,
    /// Drain, and keep the lane idle.
    pub(super) paused: bool,
    /// How often the lane was told to rest, beside what heartbeats say: a pause that was over before a heartbeat could see it
    /// is one all the same.
    pub(super) rests: u32,
    /// Drain, and give the lane back.
    pub(super) leave: bool,
    /// Somebody else owns it.
    pub(super) fenced: bool,
}

/// How a lane's driver ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Drained,
    Deadline,
    Fenced,
    Finished,
    /// That of a replay which is no more. To a driver it looks like [`Self::Fenced`]; the supervisor finds out.
    Gone,
    Crashed,
}

impl Ended {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Drained => "drained",
            Self::Deadline => "deadline",
            Self::Fenced => "fenced",
            Self::Finished => "finished",
            Self::Gone => "gone",
            Self::Crashed => "crashed",
        }
    }
}

/// One operation has finished.
enum Done {
    Read(Result<Page>, Tick),
    Due(Result<DuePage>),
    Recounted(Result<Resumed>),
    Settled(Result<()>, Tick),
    Published(u32, Vec<Outcome>, Sent),
    Finished(Result<bool>),
    Hint,
}

/// What is remembered of a batch until its outcomes come.
struct Sent {
    at: Tick,
    enqueued_at: Vec<Timestamp>,
}

pub(super) struct LaneDriver {
    pub(super) context: Arc<Context>,
    /// The route, and the news of its replacements.
    pub(super) route: watch::Receiver<Arc<Route>>,
    pub(super) lease: Arc<Lease>,
    pub(super) orders: watch::Receiver<Orders>,
    /// Settlements are numbered through the whole epoch, also over a pause.
    pub(super) settlements: u64,
}

impl LaneDriver {
    /// Until the lane is given back, lost, or over.
    pub(super) async fn run(mut self) -> Ended {
        let (mut was_paused, mut rests) = (false, 0);
        let mut failing_since = None;
        loop {
            let orders = *self.orders.borrow_and_update();
            if orders.fenced {
                return Ended::Fenced;
            }
            if orders.leave {
                return Ended::Drained;
            }
            let told_to_rest = std::mem::replace(&mut rests, orders.rests) != orders.rests;
            was_paused |= orders.paused || told_to_rest;
            if orders.paused {
                // Whoever waits for the route to come to rest learns of it with the next heartbeat.
                let now = self.context.now();
                self.context.standstills.set(&self.lease.lane, now, Duration::ZERO, Some(Reason::Rests));
                if self.orders.changed().await.is_err() {
                    return Ended::Crashed;
                }
                continue;
            }
            let resumed = match self.context.log.resume(&self.lease).await {
                Ok(resumed) => resumed,
                Err(error) if error.is_fenced() => return Ended::Fenced,
                Err(error) => {
                    self.store_failed("resume", &error);
                    let now = self.now();
                    let still = since(now, *failing_since.get_or_insert(now));
                    let reason = (still >= STILL_AFTER).then(|| by_store("resume", &error));
                    self.context.standstills.set(&self.lease.lane, now, still, reason);
                    self.sleep_until(now + ticks(Duration::from_millis(200))).await;
                    continue;
                }
            };
            failing_since = None;
            self.context.standstills.forget(&self.lease.lane);
            let route = Arc::clone(&self.route.borrow_and_update());
            if std::mem::take(&mut was_paused) {
                route.publisher.reopen();
            }
            let mut work = Work::new(&self, route, resumed, rests);
            let ended = work.run(&mut self.orders, &mut self.route).await;
            self.context.standstills.forget(&self.lease.lane);
            self.settlements = work.lane.counts().commits;
            // The pause may be over by the time the lane has come to rest.
            was_paused = work.paused;
            match ended {
                Ended::Drained => {} // paused or leaving: the orders say which; or the route was replaced
                ended => return ended,
            }
            // The next life of the machine knows nothing of the outage, so it would never tell that it is over.
            if work.lane.breaker_is_open() && !self.orders.borrow().leave {
                self.context.observer.observe(&Event::BreakerForgotten { lane: &self.lease.lane });
            }
        }
    }

    fn now(&self) -> Tick {
        ticks(self.context.runtime.now())
    }

    fn sleep_until(&self, at: Tick) -> BoxFuture<'static, ()> {
        if at >= Tick::MAX / 4 {
            return Box::pin(std::future::pending());
        }
        self.context.runtime.sleep_until(Duration::from_micros(at))
    }

    fn store_failed(&self, operation: &'static str, error: &Error) {
        self.context.observer.observe(&Event::StoreFailed { operation, error });
    }
}

/// In place of a time to ask whether a replay is over: it was asked, and the answer is under way.
const FINISHING: Tick = Tick::MAX;

/// A cursor that has waited so long for a message, or for its store, is worth a word.
const STILL_AFTER: Duration = Duration::from_secs(5);

/// Between two reads of a log that the store says cannot be read: a person has to do something first.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);

fn by_store(operation: &str, error: &Error) -> Reason {
    Reason::Store { operation: operation.to_owned(), error: error.chain() }
}

/// A page whose records are not all passed yet.
struct KeptPage {
    number: u64,
    length: u32,
    marks: Marks,
    end: Cursor,
}

/// From `resume` to a drain: one life of the state machine.
struct Work {
    context: Arc<Context>,
    route: Arc<Route>,
    lease: Arc<Lease>,
    lane: Lane,
    cursor: Cursor,
    pages: VecDeque<KeptPage>,
    pages_read: u64,
    under_way: FuturesUnordered<BoxFuture<'static, Done>>,
    durable_reported: u64,
    /// The route was replaced: drain, and begin again with the new one.
    replaced: bool,
    /// What the orders said of it when this life began.
    rests: u32,
    /// It was told to rest.
    paused: bool,
    drain_by: Option<Tick>,
    /// When the cursor last moved, or had nothing to pass.
    moved_at: Tick,
    /// What it was last seen to wait for, and since when: one cause does not answer for the time of another.
    waiting: Option<(Reason, Tick)>,
    /// What the store failed to do when it was last asked for it.
    failing: BTreeMap<&'static str, Reason>,
    /// For a replay that has read its last record: when to ask the store whether it is over.
    finish_at: Option<Tick>,
}

impl Work {
    fn new(driver: &LaneDriver, route: Arc<Route>, resumed: Resumed, rests: u32) -> Self {
        let (context, lease) = (Arc::clone(&driver.context), Arc::clone(&driver.lease));
        let rate = lease.reader.replay.as_ref().and_then(|replay| replay.rate);
        let options = route.lane_options(rate, context.runtime.random(), context.plant);
        let lane = Lane::new(options, &resumed.blocked, driver.orders.borrow().valid_until, driver.settlements);
        let mut work = Self {
            context,
            route,
            lease,
            lane,
            cursor: resumed.cursor,
            pages: VecDeque::new(),
            pages_read: 0,
            under_way: FuturesUnordered::new(),
            durable_reported: 0,
            replaced: false,
            rests,
            paused: false,
            drain_by: None,
            moved_at: driver.now(),
            waiting: None,
            failing: BTreeMap::new(),
            finish_at: None,
        };
        work.wait_for_hint();
        work
    }

    async fn run(&mut self, orders: &mut watch::Receiver<Orders>, route: &mut watch::Receiver<Arc<Route>>) -> Ended {
        let mut effects = Vec::new();
        let mut renewed = true;
        loop {
            let now = ticks(self.context.runtime.now());
            renewed |= orders.has_changed().unwrap_or(false);
            let wanted = *orders.borrow_and_update();
            // The store forgets a replay's lane when it is over, and a heartbeat may miss it before that answer is here.
            if wanted.fenced && !self.finishing() {
                return Ended::Fenced;
            }
            self.replaced |= route.has_changed().unwrap_or(false);
            self.obey(now, wanted);
            self.lane.poll(now, &mut effects);
            for effect in effects.drain(..) {
                if matches!(effect, Effect::Drained) {
                    return Ended::Drained;
                }
                self.start(now, effect);
            }
            self.count();
            if std::mem::take(&mut renewed) {
                self.say_what_it_waits_for(now);
            }
            if self.drain_by.is_some_and(|by| now >= by) {
                return Ended::Deadline;
            }
            self.ask_whether_finished(now);

            let mut done = self.under_way.next().now_or_never().flatten();
            if done.is_some() {
                // A store and a publisher that are always ready must not keep the heartbeat, or a request to stop, from
                // being heard. A round is up to a window of messages, so this costs nothing.
                give_way().await;
            } else {
                let wake = self.lane.wake_at(now).min(self.drain_by.unwrap_or(Tick::MAX));
                let wake = wake.min(self.next_finish().unwrap_or(Tick::MAX));
                tokio::select! {
                    biased;
                    next = self.under_way.next() => done = next,
                    changed = orders.changed() => {
                        if changed.is_err() {
                            return Ended::Crashed; // the relay itself was dropped
                        }
                        renewed = true;
                    }
                    changed = route.changed(), if !self.replaced => self.replaced = changed.is_ok(),
                    () = sleep(&self.context, wake) => {}
                }
            }
            // Everything that has finished, before the machine is polled once.
            while let Some(next) = done {
                if let Some(ended) = self.take(next) {
                    return ended;
                }
                done = self.under_way.next().now_or_never().flatten();
            }
        }
    }

    fn obey(&mut self, now: Tick, orders: Orders) {
        let ignore = cfg!(feature = "planted") && self.context.plant == Plant::IgnoreLease;
        self.lane.renewed(if ignore { Tick::MAX } else { orders.valid_until });
        self.paused |= orders.paused || orders.rests != self.rests;
        if (orders.leave || self.paused || self.replaced) && self.drain_by.is_none() {
            self.lane.drain(now);
            self.drain_by = Some(now + ticks(self.context.options.drain_deadline));
        }
    }

    fn start(&mut self, now: Tick, effect: Effect) {
        let (log, lease) = (Arc::clone(&self.context.log), Arc::clone(&self.lease));
        match effect {
            Effect::Read { limit } => {
                let after = self.cursor.clone();
                self.begin(async move { Done::Read(log.read(&lease, &after, limit).await, now) });
            }
            Effect::ReadDue { limit } => self.begin(async move { Done::Due(log.due(&lease, limit).await) }),
            Effect::Recount => self.begin(async move { Done::Recounted(log.resume(&lease).await) }),
            Effect::Settle(commit) => {
                let settlement = self.settlement(&commit);
                self.context.stats.settles.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                self.begin(async move { Done::Settled(log.settle(&lease, &settlement).await, now) });
            }
            Effect::Publish { batch, records } => {
                self.context.stats.publishes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let publisher = Arc::clone(&self.route.publisher);
                let count = records.len();
                self.progress(&Progress::Publishing { messages: count });
                let sent = Sent { at: now, enqueued_at: records.iter().map(|record| record.enqueued_at).collect() };
                let too_late = sleep(&self.context, now + ticks(self.route.publish_timeout));
                self.begin(async move {
                    let outcomes = tokio::select! {
                        biased;
                        outcomes = publisher.publish(records) => outcomes,
                        () = too_late => vec![Outcome::Unknown(Cause::new("timeout", "no answer in time")); count],
                    };
                    Done::Published(batch, outcomes, sent)
                });
            }
            Effect::Note(note) => self.tell(note),
            Effect::Drained => unreachable!("handled by the caller"),
        }
    }

    fn begin(&mut self, operation: impl Future<Output = Done> + Send + 'static) {
        self.under_way.push(Box::pin(operation));
    }

    fn wait_for_hint(&mut self) {
        let log = Arc::clone(&self.context.log);
        self.begin(async move {
            log.hint().await;
            Done::Hint
        });
    }

    fn take(&mut self, done: Done) -> Option<Ended> {
        let now = ticks(self.context.runtime.now());
        match done {
            Done::Published(batch, outcomes, sent) => {
                let (enqueued_at, took) = (&sent.enqueued_at[..], since(now, sent.at));
                self.progress(&Progress::Published { outcomes: &outcomes, enqueued_at, took });
                self.lane.published(now, batch, outcomes);
            }
            Done::Read(Ok(page), asked_at) => {
                self.failing.remove("read");
                self.progress(&Progress::Read { records: page.records.len(), took: since(now, asked_at) });
                self.page_read(now, &page);
            }
            Done::Due(Ok(page)) => {
                self.failing.remove("due");
                self.lane.due_read(now, page);
            }
            Done::Recounted(Ok(resumed)) => {
                self.failing.remove("resume");
                self.lane.recounted(now, &resumed.blocked);
            }
            Done::Settled(Ok(()), asked_at) => {
                self.failing.remove("settle");
                self.progress(&Progress::Settled { took: since(now, asked_at) });
                self.moved_at = now;
                self.lane.settled(now, Settled::Done);
            }
            Done::Finished(Ok(true)) => return Some(Ended::Finished),
            Done::Finished(Ok(false)) => {
                self.failing.remove("finish");
                self.finish_at = Some(now + ticks(Duration::from_millis(500)));
            }
            Done::Hint => {
                self.lane.hint(now);
                self.wait_for_hint();
            }
            // Perhaps because the replay is over: `finish` will say.
            Done::Read(Err(error), _) if error.is_fenced() && self.finishing() => {
                self.lane.read_failed(now, Duration::ZERO);
            }
            Done::Due(Err(error)) if error.is_fenced() && self.finishing() => self.lane.due_failed(now),
            Done::Read(Err(error), _)
            | Done::Due(Err(error))
            | Done::Recounted(Err(error))
            | Done::Settled(Err(error), _)
            | Done::Finished(Err(error))
                if error.is_fenced() =>
            {
                return Some(Ended::Fenced);
            }
            Done::Read(Err(error), _) => {
                self.store_failed("read", &error);
                let pause = if error.is_transient() { Duration::ZERO } else { REFUSED_PAUSE };
                self.lane.read_failed(now, pause);
            }
            Done::Due(Err(error)) => {
                self.store_failed("due", &error);
                self.lane.due_failed(now);
            }
            Done::Recounted(Err(error)) => {
                self.store_failed("resume", &error);
                self.lane.recount_failed();
            }
            Done::Settled(Err(error), _) => {
                self.store_failed("settle", &error);
                self.lane.settled(now, Settled::Perhaps);
            }
            Done::Finished(Err(error)) => {
                self.store_failed("finish", &error);
                self.finish_at = Some(now + ticks(Duration::from_secs(1)));
            }
        }
        None
    }

    fn page_read(&mut self, now: Tick, page: &Page) {
        let moved = page.end != self.cursor;
        if !page.records.is_empty() || moved {
            let length = u32::try_from(page.records.len()).expect("no more than was asked for");
            let (marks, end) = (Arc::clone(&page.marks), page.end.clone());
            self.pages.push_back(KeptPage { number: self.pages_read, length, marks, end });
            self.pages_read += 1;
            self.cursor = page.end.clone();
        }
        if page.ended && self.finish_at.is_none() {
            self.finish_at = Some(now);
        }
        self.lane.page_read(now, &page.records, moved, page.more);
    }

    fn settlement(&mut self, commit: &Commit) -> Settlement {
        let advance = commit.advance.map(|mark| self.cursor_at(mark));
        Settlement { advance, ..commit.settlement.clone() }
    }

    fn cursor_at(&mut self, mark: Mark) -> Cursor {
        while self.pages.front().is_some_and(|page| page.number < mark.page) {
            self.pages.pop_front();
        }
        let page = self.pages.front().expect("kept until it is passed");
        if mark.passed == page.length { page.end.clone() } else { (page.marks)(mark.passed) }
    }

    fn next_finish(&self) -> Option<Tick> {
        self.finish_at.filter(|_| self.drain_by.is_none() && self.lane.idle())
    }

    /// The store has been asked whether the replay is over, and has not answered.
    fn finishing(&self) -> bool {
        self.finish_at == Some(FINISHING)
    }

    fn ask_whether_finished(&mut self, now: Tick) {
        if self.next_finish().is_some_and(|at| now >= at) {
            self.finish_at = Some(FINISHING);
            let (log, lease) = (Arc::clone(&self.context.log), Arc::clone(&self.lease));
            self.begin(async move { Done::Finished(log.finish(&lease).await) });
        }
    }

    fn count(&mut self) {
        let durable = self.lane.counts().durable;
        let new = durable - self.durable_reported;
        if new > 0 {
            self.context.stats.durable.fetch_add(new, std::sync::atomic::Ordering::Relaxed);
            self.durable_reported = durable;
        }
    }

    /// With every heartbeat: the next one tells the store.
    fn say_what_it_waits_for(&mut self, now: Tick) {
        let by_itself = if self.lane.idle() { None } else { self.lane.waits_for(now) };
        // What the store fails to do keeps the lane also where nothing is known to wait.
        let reason = self.failing.values().next().cloned().or(by_itself);
        if reason.is_none() {
            self.moved_at = now;
        }
        let began = match (&self.waiting, &reason) {
            (_, None) => now,
            (Some((before, began)), Some(reason)) if is_same(before, reason) => (*began).max(self.moved_at),
            (Some(_), Some(_)) => now,
            (None, Some(_)) => self.moved_at,
        };
        self.waiting = reason.clone().map(|reason| (reason, began));
        let still = since(now, began);
        // A message that is simply on its way is no standstill, nor is a connection that is lost and made again.
        let may_pass = |reason: &Reason| matches!(reason, Reason::Message { .. } | Reason::Store { .. });
        let worth_it = |reason: &Reason| !may_pass(reason) || still >= STILL_AFTER;
        self.context.standstills.set(&self.lease.lane, now, still, reason.filter(worth_it));
    }

    fn progress(&self, progress: &Progress<'_>) {
        self.context.observer.progress(&self.lease.lane, progress);
    }

    fn tell(&self, note: Note) {
        let lane = &self.lease.lane;
        let observer = &self.context.observer;
        match note {
            Note::Rejected { record, attempts, cause } => {
                observer.observe(&Event::Rejected { lane, id: record.envelope.id, attempts, cause: &cause });
            }
            Note::Dead { record, attempts, cause, blocks } => {
                self.context.stats.dead.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                observer.observe(&Event::Dead { lane, id: record.envelope.id, attempts, cause: &cause, blocks });
                if let Some(hook) = &self.route.on_dead_letter {
                    let route = Arc::clone(&lane.route);
                    let call = hook(DeadLetter { route, record, attempts, cause, blocks });
                    self.context.hooks.spawn(&*self.context.runtime, call);
                }
            }
            Note::BreakerOpened { cause } => observer.observe(&Event::BreakerOpened { lane, cause: &cause }),
            Note::OutageChanged { cause } => observer.observe(&Event::OutageChanged { lane, cause: &cause }),
            Note::SetAside { record, cause } => {
                observer.observe(&Event::SetAside { lane, id: record.envelope.id, cause: &cause });
            }
            Note::BreakerClosed => observer.observe(&Event::BreakerClosed { lane }),
            Note::Throttled { pause } => observer.observe(&Event::Throttled { lane, pause }),
            Note::Stalled { record, limit } => {
                observer.observe(&Event::Stalled { lane, id: record.envelope.id, limit });
            }
        }
    }

    fn store_failed(&mut self, operation: &'static str, error: &Error) {
        self.failing.insert(operation, by_store(operation, error));
        self.context.observer.observe(&Event::StoreFailed { operation, error });
    }
}

fn sleep(context: &Context, at: Tick) -> BoxFuture<'static, ()> {
    if at >= Tick::MAX / 4 {
        return Box::pin(std::future::pending());
    }
    context.runtime.sleep_until(Duration::from_micros(at))
}

/// Lets other tasks of the runtime go first, once.
async fn give_way() {
    let mut given = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut given, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
