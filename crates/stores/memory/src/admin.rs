//! The operator's side: looking at the store, and changing it with a trace in the audit record.

use std::{collections::BTreeMap, sync::Arc};

use postrider_core::{
    BoxFuture, Error, Result,
    admin::{
        Actor, AuditEntry, CauseGroup, LaneStatus, MessageTrace, NodeStatus, Overview, ParkedCounts, ParkedFilter,
        ParkedRow, Pending, PendingLooks, ReplaySpec, RouteStatus, StoreAdmin, Vitals,
    },
    browse::{LogRecord, RecordFilter, RecordPage, TopicPage},
    doctor::{Finding, Severity, Thresholds},
    enlist::Batch,
    envelope::{Envelope, MessageId},
    key::OrderingKey,
    lease::{LaneId, NodeId, Reader, Replay},
    left::lane_that_passed,
    log::{Cursor, Record},
    parked::{Cause, Ordinal, ParkedState},
    time::Timestamp,
};

use crate::{
    MemoryStore,
    parked::Row,
    records::{Selection, position},
    state::{Lane, Route, State, unknown},
};

impl StoreAdmin for MemoryStore {
    fn overview(&self) -> BoxFuture<'_, Result<Overview>> {
        Box::pin(async move { Ok(self.transact(|state, now| state.overview(now))) })
    }

    fn parked<'a>(
        &'a self,
        filter: &'a ParkedFilter,
        after: Option<(Arc<str>, Ordinal)>,
        limit: u32,
    ) -> BoxFuture<'a, Result<Vec<ParkedRow>>> {
        Box::pin(async move {
            Ok(self.transact(|state, now| {
                let behind = state.matching(filter).filter(|(name, _, ordinal, _)| {
                    after.as_ref().is_none_or(|(route, last)| (&***name, *ordinal) > (&**route, *last))
                });
                behind.take(limit as usize).map(|found| shown(found, now)).collect()
            }))
        })
    }

    fn parked_count<'a>(&'a self, filter: &'a ParkedFilter) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async move { Ok(self.transact(|state, _| state.matching(filter).count() as u64)) })
    }

    fn dead_groups(&self) -> BoxFuture<'_, Result<Vec<CauseGroup>>> {
        Box::pin(async move { Ok(self.transact(|state, _| state.dead_groups())) })
    }

    fn message(&self, id: MessageId) -> BoxFuture<'_, Result<MessageTrace>> {
        Box::pin(async move { Ok(self.transact(|state, now| state.message(id, now))) })
    }

    fn vitals(&self) -> BoxFuture<'_, Result<Vitals>> {
        Box::pin(async move { Ok(self.transact(|state, now| state.vitals(now))) })
    }

    fn topics(&self, after: Option<u64>, limit: u32) -> BoxFuture<'_, Result<TopicPage>> {
        Box::pin(async move { Ok(self.transact(|state, _| state.topics(after, limit))) })
    }

    fn records<'a>(
        &'a self,
        filter: &'a RecordFilter,
        after: Option<u64>,
        limit: u32,
    ) -> BoxFuture<'a, Result<RecordPage>> {
        Box::pin(async move { Ok(self.transact(|state, _| state.browse(filter, after, limit))) })
    }

    fn redrive<'a>(&'a self, filter: &'a ParkedFilter, actor: &'a Actor) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async move {
            let rows = self.transact(|state, now| state.redrive(filter, actor, now));
            self.ring();
            Ok(rows)
        })
    }

    fn discard<'a>(&'a self, filter: &'a ParkedFilter, actor: &'a Actor) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async move {
            let rows = self.transact(|state, now| state.discard(filter, actor, now));
            self.ring();
            Ok(rows)
        })
    }

    fn pause<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        self.change(move |state, now| {
            state.route_mut(route)?.paused = Some(actor.clone());
            state.note(actor, "pause", route.to_owned(), now);
            Ok(())
        })
    }

    fn resume_route<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        self.change(move |state, now| {
            state.route_mut(route)?.paused = None;
            state.note(actor, "resume", route.to_owned(), now);
            Ok(())
        })
    }

    fn replay<'a>(&'a self, spec: &'a ReplaySpec, actor: &'a Actor) -> BoxFuture<'a, Result<Arc<str>>> {
        self.change(move |state, now| state.begin_replay(spec, actor, now))
    }

    fn cancel_replay<'a>(&'a self, name: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        self.change(move |state, now| {
            if state.routes.get(name).is_none_or(|route| route.end.is_none()) {
                return Err(unknown("replay", name));
            }
            state.routes.remove(name);
            state.note(actor, "cancel-replay", name.to_owned(), now);
            Ok(())
        })
    }

    fn drop_route<'a>(&'a self, route: &'a str, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        self.change(move |state, now| {
            if state.routes.get(route).is_none_or(|known| known.end.is_some()) {
                return Err(unknown("route", route));
            }
            state.routes.retain(|name, known| **name != *route && !known.is_replay_of(route));
            state.note(actor, "forget-route", route.to_owned(), now);
            Ok(())
        })
    }

    fn enqueue<'a>(&'a self, batch: Batch, actor: Option<&'a Actor>) -> BoxFuture<'a, Result<()>> {
        self.change(move |state, now| {
            state.records.append(batch.envelopes().iter().map(|envelope| (envelope.clone(), now)).collect());
            if let Some(actor) = actor {
                state.note(actor, "enqueue", batch.in_words(), now);
            }
            Ok(())
        })
    }

    fn drain_node<'a>(&'a self, node: NodeId, actor: &'a Actor) -> BoxFuture<'a, Result<()>> {
        self.change(move |state, now| {
            if !state.live(now).any(|(id, _)| *id == node) {
                return Err(unknown("node", &node.to_string()));
            }
            let known = state.nodes.get_mut(&node).expect("it is live");
            known.leaving = true;
            let subject = format!("{} ({node})", known.name);
            state.note(actor, "drain-node", subject, now);
            Ok(())
        })
    }

    fn audit(&self, limit: u32) -> BoxFuture<'_, Result<Vec<AuditEntry>>> {
        Box::pin(async move {
            Ok(self.transact(|state, _| state.audit.iter().rev().take(limit as usize).cloned().collect()))
        })
    }

    fn audit_of(&self, id: MessageId, limit: u32) -> BoxFuture<'_, Result<Vec<AuditEntry>>> {
        Box::pin(async move {
            Ok(self.transact(|state, _| {
                let about = state.audit.iter().rev().filter(|entry| entry.names(id));
                about.take(limit as usize).cloned().collect()
            }))
        })
    }

    fn doctor(&self, _thresholds: Thresholds) -> BoxFuture<'_, Result<Vec<Finding>>> {
        let forgets = Finding::new("not-durable", Severity::Note, "memory")
            .detail("everything in this store ends with the process")
            .fix("use a store on disk where messages must survive");
        Box::pin(std::future::ready(Ok(vec![forgets])))
    }
}

impl MemoryStore {
    /// One change by an operator, and the bell for those who wait for it.
    fn change<'a, T: Send + 'a>(
        &'a self,
        act: impl FnOnce(&mut State, Timestamp) -> Result<T> + Send + 'a,
    ) -> BoxFuture<'a, Result<T>> {
        Box::pin(async move {
            let changed = self.transact(act)?;
            self.ring();
            Ok(changed)
        })
    }
}

/// A parked row with the names by which an operator knows it.
type Found<'a> = (&'a Arc<str>, &'a Route, Ordinal, &'a Row);

impl State {
    /// Rows that match, by route and ordinal.
    fn matching<'a>(&'a self, filter: &'a ParkedFilter) -> impl Iterator<Item = Found<'a>> {
        let routes =
            self.routes.iter().filter(|(name, _)| filter.route.as_deref().is_none_or(|route| route == &***name));
        let rows = routes.flat_map(|(name, route)| route.parked.iter().map(move |(at, row)| (name, route, at, row)));
        rows.filter(|(_, _, ordinal, row)| matches(filter, *ordinal, row))
    }

    fn overview(&self, now: Timestamp) -> Overview {
        let shown = self.routes.iter().filter(|(_, route)| route.lanes.iter().any(|lane| !lane.over));
        let nodes = self.live(now).map(|(id, node)| NodeStatus {
            id: *id,
            name: node.name.clone(),
            routes: node.routes.clone(),
            seen: now.since(node.seen_at),
            lease_life: node.lease_life,
            leaving: node.leaving,
            standstills: node.standstills.clone(),
        });
        let mut looks = PendingLooks::among(self.routes.len());
        let mut status = |(name, route)| {
            let pending = self.pending(route, looks.begin(), now);
            looks.end(&pending);
            self.route_status(name, route, pending, now)
        };
        Overview {
            routes: shown.map(&mut status).collect(),
            nodes: nodes.collect(),
            records: self.records.count(),
            at: now,
        }
    }

    fn route_status(&self, name: &Arc<str>, route: &Route, pending: Pending, now: Timestamp) -> RouteStatus {
        let mut parked = ParkedCounts::default();
        let Pending { count: pending, oldest: mut oldest_pending_age, more: pending_more, .. } = pending;
        for (_, row) in route.parked.iter() {
            *parked.of_mut(row.state) += 1;
            parked.blocking += u64::from(row.state == ParkedState::Dead && row.blocks);
            if matches!(row.state, ParkedState::Retrying | ParkedState::Held) {
                oldest_pending_age = oldest_pending_age.max(Some(now.since(row.record.enqueued_at)));
            }
        }
        let lanes = route.lanes().filter(|(_, lane)| !lane.over).map(|(number, lane)| LaneStatus {
            number,
            owner: lane.owner(now),
            expires_in: lane.owner.filter(|(_, until)| now < *until).map(|(_, until)| until.since(now)),
            epoch: lane.epoch,
            cursor: format!("record {} of {}", lane.cursor, self.records.last()),
        });
        RouteStatus {
            route: Arc::clone(name),
            replay_of: route.reader.replay.as_ref().map(|replay| Arc::clone(&replay.of)),
            topics: route.reader.topics.to_string(),
            left: route.asked.left().to_vec(),
            order: route.reader.order,
            paused: route.paused.clone(),
            pending,
            pending_more,
            oldest_pending_age,
            parked,
            lanes: lanes.collect(),
        }
    }

    /// How many records no cursor has passed, and the age of the oldest of those that are not scheduled for later.
    fn pending(&self, route: &Route, mut pending: Pending, now: Timestamp) -> Pending {
        let least = route.lanes.iter().filter(|lane| !lane.over).map(|lane| lane.cursor).min().unwrap_or(u64::MAX);
        let selection = Selection { reader: &route.reader, lane: None, end: route.end };
        // Ends with the log, or when enough was looked at.
        for (position, record, chosen) in self.records.look(&selection, least) {
            let age = now.since(record.enqueued_at);
            if !pending.looks_on(age) {
                break;
            }
            let Some(facts) = chosen else { continue };
            let lane = &route.lanes[facts.lane(route.reader.order, route.lane_count()) as usize];
            if !lane.over && position > lane.cursor {
                let waits = record.envelope.deliver_at.is_none_or(|at| at <= now);
                pending.add(waits.then_some(age));
            }
        }
        pending
    }

    fn dead_groups(&self) -> Vec<CauseGroup> {
        let mut groups: BTreeMap<(&str, &str), CauseGroup> = BTreeMap::new();
        let dead = ParkedFilter { state: Some(ParkedState::Dead), ..ParkedFilter::default() };
        for (name, route, _, row) in self.matching(&dead) {
            let (code, detail) = row.cause.as_ref().map_or(("", ""), |cause| (cause.code(), cause.detail()));
            let group = groups.entry((&**name, code)).or_insert_with(|| CauseGroup {
                route: Arc::clone(name),
                replay_of: route.reader.replay.as_ref().map(|replay| Arc::clone(&replay.of)),
                code: code.to_owned(),
                detail: String::new(),
                rows: 0,
                first_at: row.parked_at,
                last_at: row.parked_at,
            });
            group.rows += 1;
            group.first_at = group.first_at.min(row.parked_at);
            if row.parked_at >= group.last_at {
                (group.last_at, group.detail) = (row.parked_at, detail.to_owned());
            }
        }
        let mut groups: Vec<_> = groups.into_values().collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.rows));
        groups
    }

    fn message(&self, id: MessageId, now: Timestamp) -> MessageTrace {
        let found = self.records.find(id);
        let mut passed = Vec::new();
        if let Some((at, record)) = found {
            for (name, route, number, lane) in self.lanes() {
                let of_lane = Some((number, route.lane_count()));
                let selection = Selection { reader: &route.reader, lane: of_lane, end: route.end };
                if self.records.iterate(&selection, at - 1).next().is_some_and(|(next, _, _)| next == at) {
                    let lane_id = LaneId { route: Arc::clone(name), number };
                    passed.push((lane_id, at <= lane.cursor));
                }
            }
            passed.extend(self.passed_once(at, &record.envelope));
        }
        let of_message = ParkedFilter { id: Some(id), ..ParkedFilter::default() };
        MessageTrace {
            record: found.map(|(_, record)| (record.envelope.clone(), record.enqueued_at)),
            passed,
            parked: self.matching(&of_message).map(|found| shown(found, now)).collect(),
        }
    }

    fn vitals(&self, now: Timestamp) -> Vitals {
        let oldest = self.records.in_order(None, false).next().map(|(_, record)| now.since(record.enqueued_at));
        Vitals { oldest_record_age: Some(oldest.unwrap_or_default()), ..Vitals::default() }
    }

    fn topics(&self, after: Option<u64>, limit: u32) -> TopicPage {
        let stretch = self.records.in_order(after, false).take(limit as usize);
        TopicPage::of_counts(stretch.map(|(number, record)| (record.envelope.topic.to_string(), 1, number)), limit)
    }

    fn browse(&self, filter: &RecordFilter, after: Option<u64>, limit: u32) -> RecordPage {
        let mut page = RecordPage::default();
        let mut looked_at = None;
        for (number, record) in self.records.in_order(after, filter.newest_first) {
            if page.records.len() >= limit as usize {
                page.next = looked_at;
                break;
            }
            looked_at = Some(number);
            let mut shown = self.log_record(number, record);
            if filter.takes(&mut shown) {
                page.records.push(shown);
            }
        }
        page
    }

    fn log_record(&self, number: u64, record: &Record) -> LogRecord {
        let Envelope { id, topic, name, key, deliver_at, expires_at, .. } = &record.envelope;
        let text = key.as_ref().map(OrderingKey::as_str);
        let readers = self.lanes().filter(|(_, route, lane_number, _)| {
            let in_time = route.end.is_none_or(|end| number <= end);
            let bytes = text.map(str::as_bytes);
            in_time
                && route.reader.reads(topic, name, text, record.enqueued_at)
                && route.reader.place(bytes, &id.0, *lane_number, route.lane_count()).1
        });
        let passed = readers.map(|(route, _, lane_number, lane)| {
            (LaneId { route: Arc::clone(route), number: lane_number }, number <= lane.cursor)
        });
        let passed = passed.chain(self.passed_once(number, &record.envelope));
        LogRecord {
            number,
            id: *id,
            topic: topic.to_string(),
            name: name.to_string(),
            key: text.map(ToOwned::to_owned),
            enqueued_at: record.enqueued_at,
            deliver_at: *deliver_at,
            expires_at: *expires_at,
            passed: passed.collect(),
        }
    }

    /// The lanes that have passed a record when their routes read its topic, which they do no longer.
    fn passed_once(&self, number: u64, envelope: &Envelope) -> impl Iterator<Item = (LaneId, bool)> {
        let Envelope { id, topic, key, .. } = envelope;
        let key = key.as_ref().map(|key| key.as_str().as_bytes());
        self.routes.iter().filter(move |(_, route)| !route.reader.topics.matches(topic)).filter_map(
            move |(name, route)| {
                let has_passed = |cursor: &Cursor| position(cursor).is_ok_and(|at| number <= at);
                let lane = lane_that_passed(route.asked.left(), topic, key, &id.0, has_passed)?;
                Some((LaneId { route: Arc::clone(name), number: lane }, true))
            },
        )
    }

    fn redrive(&mut self, filter: &ParkedFilter, actor: &Actor, now: Timestamp) -> u64 {
        let found = self.matching(filter).filter(|(_, _, _, row)| row.state == ParkedState::Dead);
        let dead: Vec<_> = found.map(named).collect();
        for (name, ordinal, _) in &dead {
            let route = self.routes.get_mut(name).expect("its row was just found");
            route.parked.redrive(*ordinal, now);
            // A replay that has ended goes on for the sake of this row.
            for lane in &mut route.lanes {
                lane.over = false;
            }
        }
        self.note_rows(actor, "redrive", filter, &dead, now)
    }

    fn discard(&mut self, filter: &ParkedFilter, actor: &Actor, now: Timestamp) -> u64 {
        let found: Vec<_> = self.matching(filter).map(named).collect();
        for (name, ordinal, _) in &found {
            if let Some(route) = self.routes.get_mut(name) {
                route.parked.remove(*ordinal);
            }
            self.drop_empty_replay(name);
        }
        self.note_rows(actor, "discard", filter, &found, now)
    }

    fn begin_replay(&mut self, spec: &ReplaySpec, actor: &Actor, now: Timestamp) -> Result<Arc<str>> {
        let to = spec.to.as_ref().unwrap_or(&spec.route);
        for name in [&spec.route, to] {
            if self.route_mut(name)?.end.is_some() {
                return Err(Error::invalid("a replay cannot be replayed; name its route").with("route", name));
            }
        }
        let of = self.route_mut(&spec.route)?;
        let replay = Replay { of: to.as_str().into(), filter: spec.filter.clone(), rate: spec.rate };
        let reader = Reader { topics: of.reader.topics.clone(), order: of.reader.order, replay: Some(replay) };
        let lanes = of.lane_count();
        self.replays_begun += 1;
        let name: Arc<str> = format!("{}#replay-{}", spec.route, self.replays_begun).into();
        let (begin, end, epoch) = (self.records.before_oldest(), self.records.last(), self.next_epoch());
        let mut route = Route::new(reader, Some(end));
        route.lanes = (0..lanes).map(|_| Lane::new(begin, epoch)).collect();
        self.routes.insert(Arc::clone(&name), route);
        self.note(actor, "replay", spec.in_words(&name), now);
        Ok(name)
    }

    /// Notes which rows were changed, and answers how many.
    fn note_rows(
        &mut self,
        actor: &Actor,
        action: &str,
        filter: &ParkedFilter,
        rows: &[(Arc<str>, Ordinal, MessageId)],
        now: Timestamp,
    ) -> u64 {
        let changed: Vec<_> = rows.iter().map(|(route, _, id)| (Arc::clone(route), *id)).collect();
        for subject in filter.subjects(&changed) {
            self.note(actor, action, subject, now);
        }
        rows.len() as u64
    }

    fn note(&mut self, actor: &Actor, action: &str, subject: String, now: Timestamp) {
        self.audit.push(AuditEntry { at: now, actor: actor.clone(), action: action.to_owned(), subject });
    }
}

/// What is kept of a row while it is changed: its route, its place and its message.
fn named((name, _, ordinal, row): Found<'_>) -> (Arc<str>, Ordinal, MessageId) {
    (Arc::clone(name), ordinal, row.record.envelope.id)
}

fn matches(filter: &ParkedFilter, ordinal: Ordinal, row: &Row) -> bool {
    let envelope = &row.record.envelope;
    let code = row.cause.as_ref().map(Cause::code);
    filter.state.is_none_or(|state| row.state == state)
        && filter.cause.as_deref().is_none_or(|wanted| code == Some(wanted))
        && filter.key.as_deref().is_none_or(|wanted| envelope.key.as_ref().map(OrderingKey::as_str) == Some(wanted))
        && filter.id.is_none_or(|id| envelope.id == id)
        && filter.ordinals.as_ref().is_none_or(|range| range.contains(&ordinal))
        && filter.parked_before.is_none_or(|instant| row.parked_at < instant)
}

fn shown((name, route, ordinal, row): Found<'_>, now: Timestamp) -> ParkedRow {
    let waits = matches!(row.state, ParkedState::Scheduled | ParkedState::Retrying);
    ParkedRow {
        route: Arc::clone(name),
        ordinal,
        state: row.state,
        head: route.parked.is_head(ordinal),
        attempts: row.attempts,
        cause: row.cause.as_ref().map(|cause| (cause.code().to_owned(), cause.detail().to_owned())),
        due_in: row.due_at.filter(|_| waits).map(|due_at| due_at.since(now)),
        age: now.since(row.parked_at),
        parked_at: row.parked_at,
        envelope: row.record.envelope.clone(),
    }
}
