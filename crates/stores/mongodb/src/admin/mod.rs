//! The operator's side: each look on one consistent state, each change with a trace in the audit record.

pub(crate) mod act;
mod browse;
mod doctor;
mod overview;
mod readers;
mod rows;

use std::{sync::Arc, time::Duration};

use postrider_core::{
    BoxFuture, Result,
    admin::{
        Actor, AuditEntry, CauseGroup, MessageTrace, Overview, ParkedFilter, ParkedRow, ReplaySpec, StoreAdmin,
        UNCOMMITTED_SHOWN_MAX, Vitals,
    },
    browse::{RecordFilter, RecordPage, TopicPage},
    doctor::{Finding, Thresholds},
    enlist::Batch,
    envelope::MessageId,
    lease::NodeId,
    parked::Ordinal,
};

use crate::{MongoStore, error::Fault, lease::Beginning, log::transact, migrations};

/// One look on one consistent state.
macro_rules! look {
    ($self:ident, $operation:literal, |$db:ident| $work:expr) => {{
        let store = $self.clone();
        $self.run($operation, async move {
            let mut $db = store.look().await?;
            $work.await
        })
    }};
}

/// One look at the log: the readers' change stream is asked beside it.
macro_rules! look_at_log {
    ($self:ident, $operation:literal, |$db:ident, $aside:ident, $overlap:ident| $work:expr) => {{
        let store = $self.clone();
        $self.run($operation, async move {
            let (mut $db, mut $aside, $overlap) = (store.look().await?, store.alone().await?, store.overlap_ticks());
            $work.await
        })
    }};
}

/// One change by an operator in one transaction, and a hint to the relays of this process.
macro_rules! act {
    ($self:ident, $operation:literal, |$db:ident| $work:expr) => {{
        let store = $self.clone();
        $self.run($operation, async move {
            let changed = transact!(store, |$db| $work)?;
            store.wake();
            Ok(changed)
        })
    }};
}

impl StoreAdmin for MongoStore {
    fn overview(&self) -> BoxFuture<'_, Result<Overview>> {
        look_at_log!(self, "overview", |db, aside, overlap| overview::overview(&mut db, &mut aside, overlap))
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
        look_at_log!(self, "look for a message", |db, aside, overlap| rows::message(&mut db, &mut aside, overlap, id))
    }

    fn topics(&self, after: Option<u64>, limit: u32) -> BoxFuture<'_, Result<TopicPage>> {
        look!(self, "list topics", |db| browse::topics(&mut db, after, limit))
    }

    fn uncommitted(&self, age: Duration) -> BoxFuture<'_, Result<Vec<Finding>>> {
        let store = self.clone();
        self.run("look for open transactions", async move {
            let mut found = doctor::open_transactions(&store, age).await;
            found.truncate(UNCOMMITTED_SHOWN_MAX as usize);
            Ok(found)
        })
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
        look_at_log!(self, "list records", |db, aside, overlap| {
            browse::records(&mut db, &mut aside, overlap, &filter, after, limit)
        })
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
        let (spec, actor) = (spec.clone(), actor.clone());
        let store = self.clone();
        self.run("replay", async move {
            let beginning = Beginning::of(&mut store.alone().await?, store.overlap_ticks()).await?;
            let name = transact!(store, |db| act::replay(&mut db, &spec, &actor, &beginning))?;
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

    fn rebase_route<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        let (route, actor) = (route.to_owned(), actor.clone());
        let store = self.clone();
        self.run("rebase a route", async move {
            let mut alone = store.alone().await?;
            // One that was dropped, and made anew by the next insert, is scanned by its index.
            migrations::mend(&mut alone).await?;
            let beginning = Beginning::of(&mut alone, store.overlap_ticks()).await?;
            transact!(store, |db| act::rebase_route(&mut db, &route, &actor, &beginning))?;
            store.wake();
            Ok(())
        })
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
        self.run("examine the store", async move { doctor::examine(&store, thresholds).await })
    }
}
