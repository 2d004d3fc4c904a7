//! The operator's side: each look on one consistent state, each change with a trace in the audit record.
//!
//! A look at the log gives places to what is committed first, so that it shows what a relay would find.

pub(crate) mod act;
mod browse;
mod doctor;
mod overview;
mod rows;

use std::{sync::Arc, time::Duration};

use postrider_core::{
    BoxFuture, Result,
    admin::{
        Actor, AuditEntry, CauseGroup, MessageTrace, Overview, PENDING_COUNT_MAX, ParkedFilter, ParkedRow, ReplaySpec,
        StoreAdmin, Vitals,
    },
    browse::{RecordFilter, RecordPage, TopicPage},
    doctor::{Finding, Thresholds},
    enlist::Batch,
    envelope::MessageId,
    lease::NodeId,
    parked::Ordinal,
};

pub(crate) use self::doctor::holder;
use crate::{MysqlStore, error::Fault, locked, log::transact, order};

/// Messages that a look gives places to at most.
const ORDERED_MAX: usize = PENDING_COUNT_MAX as usize;

/// One look on one consistent state.
macro_rules! look {
    ($self:ident, $operation:literal, |$db:ident| $work:expr) => {{
        let store = $self.clone();
        $self.run($operation, async move { transact!(store, look, |$db| $work) })
    }};
}

/// One look at the log.
macro_rules! look_at_log {
    ($self:ident, $operation:literal, |$db:ident| $work:expr) => {{
        let store = $self.clone();
        $self.run($operation, async move {
            order::order_all(&store, ORDERED_MAX).await?;
            transact!(store, look, |$db| $work)
        })
    }};
}

/// One change by an operator in one transaction, and a hint to the relays of this process. Who keeps a lock that it cannot
/// have is named.
macro_rules! act {
    ($self:ident, $operation:literal, |$db:ident| $work:expr) => {{
        let store = $self.clone();
        $self.run($operation, async move {
            let change = async { transact!(store, begin_impatiently, |$db| $work) };
            let changed = locked::told($operation, || store.alone(), change).await?;
            store.wake();
            Ok(changed)
        })
    }};
}

impl StoreAdmin for MysqlStore {
    fn overview(&self) -> BoxFuture<'_, Result<Overview>> {
        look_at_log!(self, "overview", |db| overview::overview(&mut db))
    }

    fn parked<'a>(
        &'a self,
        filter: &'a ParkedFilter,
        after: Option<(Arc<str>, Ordinal)>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<ParkedRow>>> {
        let filter = filter.clone();
        look!(self, "list parked rows", |db| rows::parked(&mut db, &filter, after.as_ref(), limit))
    }

    fn parked_count<'a>(&'a self, filter: &'a ParkedFilter) -> BoxFuture<'a, Result<u64>> {
        let filter = filter.clone();
        look!(self, "count parked rows", |db| rows::parked_count(&mut db, &filter))
    }

    fn dead_groups(&self) -> BoxFuture<'_, Result<Vec<CauseGroup>>> {
        look!(self, "group dead rows", |db| rows::dead_groups(&mut db))
    }

    fn message(&self, id: MessageId) -> BoxFuture<'_, Result<MessageTrace>> {
        look_at_log!(self, "look for a message", |db| rows::message(&mut db, id))
    }

    fn topics(&self, after: Option<u64>, limit: u32) -> BoxFuture<'_, Result<TopicPage>> {
        look!(self, "list topics", |db| browse::topics(&mut db, after, limit))
    }

    fn blockage(&self) -> BoxFuture<'_, Result<Option<Finding>>> {
        let store = self.clone();
        self.run("look for locks", async move { doctor::blockage(&mut store.alone().await?).await })
    }

    fn uncommitted(&self, age: Duration) -> BoxFuture<'_, Result<Vec<Finding>>> {
        let store = self.clone();
        self.run("look for open transactions", async move { doctor::uncommitted(&mut store.alone().await?, age).await })
    }

    fn vitals(&self) -> BoxFuture<'_, Result<Vitals>> {
        look!(self, "look at the log", |db| overview::vitals(&mut db))
    }

    fn records<'a>(
        &'a self,
        filter: &'a RecordFilter,
        after: Option<u64>,
        limit: u32,
    ) -> BoxFuture<'a, Result<RecordPage>> {
        let filter = filter.clone();
        look_at_log!(self, "list records", |db| browse::records(&mut db, &filter, after, limit))
    }

    fn redrive<'a>(&'a self, filter: &'a ParkedFilter, actor: &'a Actor) -> BoxFuture<'a, Result<u64>> {
        let (filter, actor) = (filter.clone(), actor.clone());
        act!(self, "redrive", |db| act::redrive(&mut db, &filter, &actor))
    }

    fn discard<'a>(&'a self, filter: &'a ParkedFilter, actor: &'a Actor) -> BoxFuture<'a, Result<u64>> {
        let (filter, actor) = (filter.clone(), actor.clone());
        act!(self, "discard", |db| act::discard(&mut db, &filter, &actor))
    }

    fn pause<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        let (route, actor) = (route.to_owned(), actor.clone());
        act!(self, "pause", |db| act::pause(&mut db, &route, &actor))
    }

    fn resume_route<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        let (route, actor) = (route.to_owned(), actor.clone());
        act!(self, "resume a route", |db| act::resume(&mut db, &route, &actor))
    }

    fn replay<'a>(&'a self, spec: &'a ReplaySpec, actor: &'a Actor) -> BoxFuture<'a, Result<Arc<str>>> {
        let (store, spec, actor) = (self.clone(), spec.clone(), actor.clone());
        self.run("replay", async move {
            // It ends with the last record that has a place.
            order::order_all(&store, usize::MAX).await?;
            let name = transact!(store, begin, |db| act::replay(&mut db, &spec, &actor))?;
            store.wake();
            Ok(name)
        })
    }

    fn cancel_replay<'a>(&'a self, name: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        let (name, actor) = (name.to_owned(), actor.clone());
        act!(self, "cancel a replay", |db| act::cancel_replay(&mut db, &name, &actor))
    }

    fn drop_route<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        let (route, actor) = (route.to_owned(), actor.clone());
        act!(self, "forget a route", |db| act::forget_route(&mut db, &route, &actor))
    }

    fn drain_node<'a>(&'a self, node: NodeId, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        let actor = actor.clone();
        act!(self, "drain a node", |db| act::drain_node(&mut db, node, &actor))
    }

    fn enqueue<'a>(&'a self, batch: Batch, actor: Option<&'a Actor>) -> BoxFuture<'a, Result<()>> {
        let actor = actor.cloned();
        act!(self, "enqueue", |db| act::enqueue(&mut db, &batch, actor.as_ref()))
    }

    fn audit(&self, limit: u32) -> BoxFuture<'_, Result<Vec<AuditEntry>>> {
        look!(self, "read the audit record", |db| act::audit(&mut db, limit))
    }

    fn audit_of(&self, id: MessageId, limit: u32) -> BoxFuture<'_, Result<Vec<AuditEntry>>> {
        look!(self, "read the audit record", |db| act::audit_of(&mut db, id, limit))
    }

    fn doctor(&self, thresholds: Thresholds) -> BoxFuture<'_, Result<Vec<Finding>>> {
        let store = self.clone();
        self.run("examine the store", async move { transact!(store, look, |db| doctor::examine(&mut db, thresholds)) })
    }
}
