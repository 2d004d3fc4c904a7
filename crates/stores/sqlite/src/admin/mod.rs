//! The operator's side: looking on a thread of its own, changing on the writer's, with a trace in the audit record.

mod act;
mod browse;
mod doctor;
mod overview;
mod rows;

use std::sync::Arc;

use postrider_core::{
    BoxFuture, Result,
    admin::{
        Actor, AuditEntry, CauseGroup, MessageTrace, Overview, ParkedFilter, ParkedRow, ReplaySpec, StoreAdmin, Vitals,
    },
    browse::{RecordFilter, RecordPage, TopicPage},
    doctor::{Finding, Thresholds},
    enlist::Batch,
    envelope::MessageId,
    lease::NodeId,
    parked::Ordinal,
    time::Timestamp,
};

use crate::{SqliteStore, error::Work, worker::Db};

impl StoreAdmin for SqliteStore {
    fn overview(&self) -> BoxFuture<'_, Result<Overview>> {
        Box::pin(self.inspector.look("overview", |db| db.look(overview::overview)))
    }

    fn parked<'a>(
        &'a self,
        filter: &'a ParkedFilter,
        after: Option<(Arc<str>, Ordinal)>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<ParkedRow>>> {
        let filter = filter.clone();
        Box::pin(self.inspector.look("list parked rows", move |db| {
            db.look(|db, now| rows::parked(db, &filter, after.as_ref(), limit, now))
        }))
    }

    fn parked_count<'a>(&'a self, filter: &'a ParkedFilter) -> BoxFuture<'a, Result<u64>> {
        let filter = filter.clone();
        Box::pin(self.inspector.look("count parked rows", move |db| db.look(|db, _| rows::parked_count(db, &filter))))
    }

    fn dead_groups(&self) -> BoxFuture<'_, Result<Vec<CauseGroup>>> {
        Box::pin(self.inspector.look("group dead rows", |db| db.look(|db, _| rows::dead_groups(db))))
    }

    fn message(&self, id: MessageId) -> BoxFuture<'_, Result<MessageTrace>> {
        Box::pin(self.inspector.look("look for a message", move |db| db.look(|db, now| rows::message(db, id, now))))
    }

    fn topics(&self, after: Option<u64>, limit: u32) -> BoxFuture<'_, Result<TopicPage>> {
        Box::pin(self.inspector.look("list topics", move |db| browse::topics(db, after, limit)))
    }

    fn blockage(&self) -> BoxFuture<'_, Result<Option<Finding>>> {
        Box::pin(self.inspector.look("look at the write lock", doctor::blockage))
    }

    fn vitals(&self) -> BoxFuture<'_, Result<Vitals>> {
        Box::pin(self.inspector.look("look at the log", |db| db.look(overview::vitals)))
    }

    fn records<'a>(
        &'a self,
        filter: &'a RecordFilter,
        after: Option<u64>,
        limit: u32,
    ) -> BoxFuture<'a, Result<RecordPage>> {
        let filter = filter.clone();
        Box::pin(
            self.inspector
                .look("list records", move |db| db.look(|db, now| browse::records(db, &filter, after, limit, now))),
        )
    }

    fn redrive<'a>(&'a self, filter: &'a ParkedFilter, actor: &'a Actor) -> BoxFuture<'a, Result<u64>> {
        let filter = filter.clone();
        self.act("redrive", actor, move |db, actor, now| act::redrive(db, &filter, actor, now))
    }

    fn discard<'a>(&'a self, filter: &'a ParkedFilter, actor: &'a Actor) -> BoxFuture<'a, Result<u64>> {
        let filter = filter.clone();
        self.act("discard", actor, move |db, actor, now| act::discard(db, &filter, actor, now))
    }

    fn pause<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        let route = route.to_owned();
        self.act("pause", actor, move |db, actor, now| act::pause(db, &route, actor, now))
    }

    fn resume_route<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        let route = route.to_owned();
        self.act("resume a route", actor, move |db, actor, now| act::resume(db, &route, actor, now))
    }

    fn replay<'a>(&'a self, spec: &'a ReplaySpec, actor: &'a Actor) -> BoxFuture<'a, Result<Arc<str>>> {
        let spec = spec.clone();
        self.act("replay", actor, move |db, actor, now| act::replay(db, &spec, actor, now))
    }

    fn cancel_replay<'a>(&'a self, name: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        let name = name.to_owned();
        self.act("cancel a replay", actor, move |db, actor, now| act::cancel_replay(db, &name, actor, now))
    }

    fn drop_route<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        let route = route.to_owned();
        self.act("forget a route", actor, move |db, actor, now| act::forget_route(db, &route, actor, now))
    }

    fn drain_node<'a>(&'a self, node: NodeId, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        self.act("drain a node", actor, move |db, actor, now| act::drain_node(db, node, actor, now))
    }

    fn enqueue<'a>(&'a self, batch: Batch, actor: Option<&'a Actor>) -> BoxFuture<'a, Result<()>> {
        let (actor, waker) = (actor.cloned(), self.waker());
        Box::pin(async move {
            let work = move |db: &Db, now| act::enqueue(db, batch, actor.as_ref(), now);
            self.writer.run("enqueue", move |db| db.write(work)).await?;
            waker.wake();
            Ok(())
        })
    }

    fn audit(&self, limit: u32) -> BoxFuture<'_, Result<Vec<AuditEntry>>> {
        Box::pin(self.inspector.look("read the audit record", move |db| act::audit(db, limit)))
    }

    fn audit_of(&self, id: MessageId, limit: u32) -> BoxFuture<'_, Result<Vec<AuditEntry>>> {
        Box::pin(self.inspector.look("read the audit record", move |db| act::audit_of(db, id, limit)))
    }

    fn doctor(&self, thresholds: Thresholds) -> BoxFuture<'_, Result<Vec<Finding>>> {
        Box::pin(async move {
            let mut findings =
                self.inspector.look("examine the store", move |db| doctor::examine(db, thresholds)).await?;
            findings.extend(self.writer.run("examine the store", doctor::limit).await?);
            findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
            Ok(findings)
        })
    }
}

impl SqliteStore {
    /// One change by an operator in one transaction, and a hint to the relays of this process: the file's version does
    /// not change by our own writes.
    fn act<'a, T: Send + 'static>(
        &'a self,
        operation: &'static str,
        actor: &Actor,
        change: impl FnOnce(&Db, &Actor, Timestamp) -> Work<T> + Send + 'static,
    ) -> BoxFuture<'a, Result<T>> {
        let actor = actor.clone();
        let waker = self.waker.clone();
        Box::pin(self.writer.run(operation, move |db| {
            let changed = db.write(|db, now| change(db, &actor, now))?;
            waker.wake();
            Ok(changed)
        }))
    }
}
