//! The relay's side: each call is one transaction, except reading, which needs none. What is called all the time (heartbeat,
//! due, settle, purge) is one statement in the usual case, when there is nothing to do but the one thing.

use std::time::Instant;

use deadpool_postgres::Object;
use postrider_core::{
    BoxFuture, Result,
    capability::StoreCapabilities,
    lease::{LaneId, Lease, Node, NodeId, Roster, RouteSpec, Start},
    log::{Cursor, Log, Page, PageLimit, Resumed, Retention, Settlement},
    parked::{DueLimit, DuePage},
    time::Timestamp,
};

use crate::{
    PostgresStore, clock,
    db::{ANSWER_PATIENCE, Alone, Db, PURGE_PATIENCE},
    due::{self, Looked},
    error::{Fault, Work},
    floor::Floor,
    heartbeat, lease, observe, purge, read, settle,
};

/// How often a transaction is repeated when somebody else wrote the same checkpoint first.
pub(crate) const REPEATS_MAX: u32 = 32;

/// Runs a piece of work in a transaction and commits it; or rolls back if it fails, also when the future is dropped. Two
/// that write the same checkpoint are told apart by trying again: the second then sees what the first has done.
///
/// `in_time`: no longer than the relay waits for an answer.
macro_rules! transact {
    ($store:expr, in_time $begin:ident, $operation:literal, |$db:ident| $work:expr) => {
        Box::pin(async move {
            let mut repeats = 0;
            loop {
                let mut client = match $store.client().await {
                    Ok(client) => client,
                    Err(fault) => break Err(fault.into_error($operation)),
                };
                let attempt = async {
                    let $db = Db::$begin(&mut client, &$store.0.dialect).await?;
                    let outcome = $work.await?;
                    $db.commit().await?;
                    Ok::<_, Fault>(outcome)
                };
                let outcome = $crate::db::in_time(Some(ANSWER_PATIENCE), attempt).await;
                match $store.give_back(client, outcome) {
                    Err(fault) if fault.is_unique_violation() && repeats < REPEATS_MAX => repeats += 1,
                    outcome => break outcome.map_err(|fault| fault.into_error($operation)),
                }
            }
        })
    };
}

impl Log for PostgresStore {
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities { name: "postgres", durable: true, shared: true, concurrent_writers: true, savepoints: true }
    }

    fn register<'a>(&'a self, node: &'a Node, routes: &'a [RouteSpec]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let begin_now = if routes.iter().any(|spec| spec.start == Start::Now) {
                let now = async |client: &mut Object| observe::begin_now(client, &self.0.dialect).await;
                Some(self.in_time(ANSWER_PATIENCE, now).await.map_err(|fault| fault.into_error("register"))?)
            } else {
                None
            };
            let begin_now = begin_now.as_ref();
            self.catch_up().await;
            let registered: BoxFuture<'_, Result<()>> =
                transact!(self, in_time begin, "register", |db| lease::register(&db, node, routes, begin_now));
            registered.await
        })
    }

    fn heartbeat<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Result<Roster>> {
        Box::pin(async move {
            let beat =
                async |client: &mut Object| heartbeat::heartbeat(&Alone::new(client, &self.0.dialect), node).await;
            let (roster, is_ahead) =
                self.in_time(ANSWER_PATIENCE, beat).await.map_err(|fault| fault.into_error("heartbeat"))?;
            if is_ahead {
                // Beside the heartbeat: its leases are extended, and nothing is to hold up the next one.
                let store = self.clone();
                tokio::spawn(async move { store.catch_up().await });
            }
            self.0.lanes.keep_those_of(&roster);
            self.0.floors.keep_those_of(&roster);
            self.0.next_due_looks.keep_those_of(&roster);
            Ok(roster)
        })
    }

    fn retire(&self, node: NodeId) -> BoxFuture<'_, Result<()>> {
        transact!(self, in_time begin, "retire", |db| lease::retire(&db, node))
    }

    fn acquire<'a>(&'a self, lane: &'a LaneId, node: &'a Node) -> BoxFuture<'a, Result<Option<Lease>>> {
        transact!(self, in_time begin, "acquire", |db| lease::acquire(&db, lane, node))
    }

    fn resume<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Resumed>> {
        // Operators may have done something since it found nothing.
        drop(self.0.next_due_looks.take(lease));
        transact!(self, in_time look, "resume", |db| settle::resume(&db, lease))
    }

    fn read<'a>(&'a self, lease: &'a Lease, after: &'a Cursor, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        Box::pin(async move { read::read(self, lease, after, limit).await.map_err(|fault| fault.into_error("read")) })
    }

    fn due<'a>(&'a self, lease: &'a Lease, limit: DueLimit) -> BoxFuture<'a, Result<DuePage>> {
        Box::pin(async move {
            let (is_nothing, floor) = self.look_for_due(lease).await.map_err(|fault| fault.into_error("due"))?;
            if is_nothing {
                return Ok(DuePage::default());
            }
            let due: BoxFuture<'_, Result<DuePage>> =
                transact!(self, in_time look, "due", |db| due::due(&db, lease, limit, floor));
            due.await
        })
    }

    fn settle<'a>(&'a self, lease: &'a Lease, settlement: &'a Settlement) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let alone = async |client: &mut Object| {
                settle::settle_alone(&Alone::new(client, &self.0.dialect), lease, settlement).await
            };
            if self.in_time(ANSWER_PATIENCE, alone).await.map_err(|fault| fault.into_error("settle"))? {
                return Ok(());
            }
            let settled: BoxFuture<'_, Result<()>> =
                transact!(self, in_time begin, "settle", |db| settle::settle(&db, lease, settlement));
            let settled = settled.await;
            // What was asked for until now does not know what this has parked.
            drop(self.0.next_due_looks.take(lease));
            settled
        })
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<()>> {
        transact!(self, in_time begin, "release", |db| lease::release(&db, lease))
    }

    fn finish<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<bool>> {
        transact!(self, in_time begin, "finish", |db| settle::finish(&db, lease))
    }

    fn purge(&self, retention: Retention) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            let purge = async |client: &mut Object| purge::purge(self, client, retention).await;
            match self.in_time(PURGE_PATIENCE, purge).await {
                // Somebody reads the leaf just now; there will be another time.
                Err(fault) if fault.is_lock_timeout() => Ok(0),
                outcome => outcome.map_err(|fault| fault.into_error("purge")),
            }
        })
    }

    /// A commit that happens after this call, though before the future is first polled, wakes it too.
    fn hint(&self) -> BoxFuture<'_, ()> {
        let mut changes = self.0.waker.subscribe();
        Box::pin(async move {
            self.0.waker.listen(&self.0.access, &self.0.dialect);
            // The sender lives as long as the store; if it went, waiting on would be as right as returning.
            let _ = changes.changed().await;
        })
    }
}

impl PostgresStore {
    /// Takes what was written by a clock that was ahead for written now, see [`clock`], piece by piece. Ends when nothing is left,
    /// or with the first failure: what is left then is for the next heartbeat. One at a time.
    async fn catch_up(&self) {
        let Ok(_alone) = self.0.catching_up.try_lock() else { return };
        loop {
            let piece = async |client: &mut Object| {
                let db = Db::begin(client, &self.0.dialect).await?;
                let was_some = clock::catch_up(&db).await?;
                db.commit().await?;
                Ok(was_some)
            };
            if !matches!(self.in_time(ANSWER_PATIENCE, piece).await, Ok(true)) {
                return;
            }
        }
    }

    /// Whether no row of the lease's route waits for time, and otherwise how low a read of such rows has to begin.
    async fn look_for_due(&self, lease: &Lease) -> Work<(bool, Timestamp)> {
        let look = |lanes: Vec<due::Question>| -> BoxFuture<'static, Work<_>> {
            let store = self.clone();
            Box::pin(async move {
                let look = async |client: &mut Object| due::look(&Alone::new(client, &store.0.dialect), &lanes).await;
                store.in_time(ANSWER_PATIENCE, look).await
            })
        };
        let session = self.live_session().map(|session| session.number);
        let mut known = self.0.floors.get(lease).filter(|floor| floor.is_of(session, Instant::now()));
        let mut next_look = self.0.next_due_looks.take(lease);
        // Ends with the second turn at the latest, which begins at the bottom.
        loop {
            let question = (lease.lane.clone(), Floor::start(known.as_ref()));
            let found = match next_look.take().filter(|seat| seat.question == question) {
                // No commit makes a row due, and an operator has the seats given up.
                Some(seat) => seat.ask(None, look).await?,
                None => look(vec![question]).await?.pop().expect("one answer to one question"),
            };
            let found = Looked::of(found, lease)?;
            if known.as_ref().is_some_and(|floor| !floor.holds(&found.look)) {
                known = None;
                continue;
            }
            let floor = Floor::after(known.as_ref(), session, &found.look);
            if let Some(floor) = floor {
                self.0.floors.remember(lease, floor);
            }
            // A look from the bottom may cost much, and is left to the lane itself.
            if let Some(floor) = floor.filter(|floor| found.is_nothing() && !floor.is_at_bottom()) {
                let question = (lease.lane.clone(), Floor::start(Some(&floor)));
                self.0.next_due_looks.remember(lease, self.0.due_looks.seat(question));
            }
            return Ok((found.is_nothing(), Floor::start(known.as_ref())));
        }
    }
}
