//! The operator's side: each look on one consistent state, each change with a trace in the audit record.
//!
//! A look needs no lock but the one that a change of a table's definition conflicts with. Behind that it waits for a moment
//! ([`LOCK_TIMEOUT`]) and then names whoever has it: people look because something stands still, and must not stand still
//! themselves. A change waits for somewhat longer; see [`crate::locked`].

pub(crate) mod act;
mod browse;
mod doctor;
mod overview;
mod rows;
mod topics;
mod vitals;

use std::{sync::Arc, time::Duration};

use postrider_core::{
    BoxFuture, Error, Result,
    admin::{
        Actor, AuditEntry, CauseGroup, MessageTrace, Overview, ParkedFilter, ParkedRow, ReplaySpec, StoreAdmin, Vitals,
    },
    browse::{RecordFilter, RecordPage, TopicPage},
    doctor::{Finding, Thresholds},
    enlist::Batch,
    envelope::MessageId,
    lease::NodeId,
    parked::Ordinal,
};

pub(crate) use self::{act::note, doctor::blockers::blocker_of, topics::Answers};
use crate::{
    PostgresStore,
    db::Db,
    error::Fault,
    locked::{self, LOCK_PATIENCE, Waiter},
    log::REPEATS_MAX,
};

/// How long a look waits for a lock. Shorter than the patience of whoever asks for metrics, and longer than
/// a lock has to be kept until its holder is named.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '3s'";

/// One look by an operator, in one transaction that changes nothing.
macro_rules! look {
    ($store:expr, $operation:literal, |$db:ident| $work:expr) => {
        Box::pin(async move {
            let look = async {
                let mut client = $store.client().await?;
                let $db = Db::look(&mut client, &$store.0.dialect).await?;
                $db.batch(LOCK_TIMEOUT).await?;
                let seen = $work.await?;
                $db.commit().await?;
                Ok::<_, Fault>(seen)
            };
            match look.await {
                Err(fault) if fault.is_lock_timeout() => Err(locked($store, fault.into_error($operation)).await),
                seen => seen.map_err(|fault| fault.into_error($operation)),
            }
        })
    };
}

/// One change by an operator in one transaction, and a hint to all relays; for those of this process no answer from before
/// counts. As everywhere, one that wrote the same checkpoint as somebody else is tried again; a lock that somebody keeps is not
/// waited for without end.
macro_rules! act {
    ($store:expr, $operation:literal, |$db:ident| $work:expr) => {
        Box::pin(async move {
            let waiter = Waiter::default();
            let change = async {
                let mut repeats = 0;
                loop {
                    let mut client = $store.client().await?;
                    let attempt = async {
                        let $db = Db::begin(&mut client, &$store.0.dialect).await?;
                        waiter.bound(&$db, LOCK_PATIENCE).await?;
                        let outcome = $work.await?;
                        act::announce(&$db).await?;
                        $db.commit().await?;
                        Ok::<_, Fault>(outcome)
                    };
                    match attempt.await {
                        Err(fault) if fault.is_unique_violation() && repeats < REPEATS_MAX => repeats += 1,
                        outcome => break outcome,
                    }
                }
            };
            let changed = waiter.tells(&$store.0.access, $operation, change).await;
            let changed = changed.map_err(|fault| fault.into_error($operation))?;
            $store.0.next_due_looks.forget_all();
            $store.wake();
            Ok(changed)
        })
    };
}

impl StoreAdmin for PostgresStore {
    fn overview(&self) -> BoxFuture<'_, Result<Overview>> {
        look!(self, "overview", |db| overview::overview(&db, self.block_bits()))
    }

    fn sees_contents(&self) -> BoxFuture<'_, Result<bool>> {
        look!(self, "look at privileges", |db| rows::sees_contents(&db))
    }

    fn parked<'a>(
        &'a self,
        filter: &'a ParkedFilter,
        after: Option<(Arc<str>, Ordinal)>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<ParkedRow>>> {
        look!(self, "list parked rows", |db| rows::parked(&db, filter, after.as_ref(), limit))
    }

    fn parked_count<'a>(&'a self, filter: &'a ParkedFilter) -> BoxFuture<'a, Result<u64>> {
        look!(self, "count parked rows", |db| rows::parked_count(&db, filter))
    }

    fn dead_groups(&self) -> BoxFuture<'_, Result<Vec<CauseGroup>>> {
        look!(self, "group dead rows", |db| rows::dead_groups(&db))
    }

    fn message(&self, id: MessageId) -> BoxFuture<'_, Result<MessageTrace>> {
        look!(self, "look for a message", |db| rows::message(&db, id))
    }

    fn topics(&self, after: Option<u64>, limit: u32) -> BoxFuture<'_, Result<TopicPage>> {
        Box::pin(async move {
            match topics::topics(self, after, limit).await {
                Err(fault) if fault.is_lock_timeout() => Err(locked(self, fault.into_error("list topics")).await),
                seen => seen.map_err(|fault| fault.into_error("list topics")),
            }
        })
    }

    fn blockage(&self) -> BoxFuture<'_, Result<Option<Finding>>> {
        Box::pin(async move { doctor::blockage(self).await.map_err(|fault| fault.into_error("look for locks")) })
    }

    fn uncommitted(&self, age: Duration) -> BoxFuture<'_, Result<Vec<Finding>>> {
        Box::pin(async move {
            doctor::uncommitted(self, age).await.map_err(|fault| fault.into_error("look for open transactions"))
        })
    }

    fn vitals(&self) -> BoxFuture<'_, Result<Vitals>> {
        look!(self, "look at the server", |db| vitals::vitals(&db))
    }

    fn records<'a>(
        &'a self,
        filter: &'a RecordFilter,
        after: Option<u64>,
        limit: u32,
    ) -> BoxFuture<'a, Result<RecordPage>> {
        look!(self, "list records", |db| browse::records(&db, filter, after, limit, self.block_bits()))
    }

    fn redrive<'a>(&'a self, filter: &'a ParkedFilter, actor: &'a Actor) -> BoxFuture<'a, Result<u64>> {
        act!(self, "redrive", |db| act::redrive(&db, filter, actor))
    }

    fn discard<'a>(&'a self, filter: &'a ParkedFilter, actor: &'a Actor) -> BoxFuture<'a, Result<u64>> {
        act!(self, "discard", |db| act::discard(&db, filter, actor))
    }

    fn pause<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        act!(self, "pause", |db| act::pause(&db, route, actor))
    }

    fn resume_route<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        act!(self, "resume a route", |db| act::resume(&db, route, actor))
    }

    fn replay<'a>(&'a self, spec: &'a ReplaySpec, actor: &'a Actor) -> BoxFuture<'a, Result<Arc<str>>> {
        act!(self, "replay", |db| act::replay(&db, spec, actor))
    }

    fn cancel_replay<'a>(&'a self, name: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        act!(self, "cancel a replay", |db| act::cancel_replay(&db, name, actor))
    }

    fn drop_route<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        act!(self, "forget a route", |db| act::forget_route(&db, route, actor))
    }

    fn rebase_route<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        act!(self, "rebase a route", |db| act::rebase_route(&db, route, actor))
    }

    fn drain_node<'a>(&'a self, node: NodeId, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        act!(self, "drain a node", |db| act::drain_node(&db, node, actor))
    }

    fn enqueue<'a>(&'a self, batch: Batch, actor: Option<&'a Actor>) -> BoxFuture<'a, Result<()>> {
        act!(self, "enqueue", |db| act::enqueue(&db, &batch, actor))
    }

    fn audit(&self, limit: u32) -> BoxFuture<'_, Result<Vec<AuditEntry>>> {
        look!(self, "read the audit record", |db| act::audit(&db, limit))
    }

    fn audit_of(&self, id: MessageId, limit: u32) -> BoxFuture<'_, Result<Vec<AuditEntry>>> {
        look!(self, "read the audit record", |db| act::audit_of(&db, id, limit))
    }

    fn doctor(&self, thresholds: Thresholds) -> BoxFuture<'_, Result<Vec<Finding>>> {
        Box::pin(async move {
            doctor::examine(self, thresholds).await.map_err(|fault| fault.into_error("examine the store"))
        })
    }
}

/// That a look has waited for a lock in vain, with the name of whoever has it.
async fn locked(store: &PostgresStore, error: Error) -> Error {
    locked::error(store.blockage().await.ok().flatten(), error)
}
