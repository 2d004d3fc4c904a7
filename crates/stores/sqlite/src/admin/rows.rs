//! Looking at parked rows, at causes, and at one message.

use std::{collections::BTreeMap, sync::Arc};

use postrider_core::{
    admin::{CauseGroup, MessageTrace, ParkedFilter, ParkedRow},
    envelope::{Envelope, MessageId},
    lease::LaneId,
    parked::{Ordinal, ParkedState},
    time::Timestamp,
};
use rusqlite::{Row, ToSql};

use crate::{
    error::{Work, corrupt},
    lease,
    parked::{ordinal, signed},
    read::{ENVELOPE, envelope},
    route::Route,
    select::{CHOSEN_BY, Selection},
    worker::Db,
};

/// A head has nothing before it in the index of lines.
const HEAD: &str = "
row.in_line AND NOT EXISTS (SELECT 1
                              FROM {p}parked AS before
                             WHERE before.route = row.route AND before.key_hash = row.key_hash
                               AND before.in_line = 1 AND before.ordinal < row.ordinal)";

/// A pass over the whole log, reading no payloads. An index on the id would make this quick and every enqueue dear: 28 bytes
/// a record and about a third more time with time-ordered ids, eight times the time with random ones. Somebody asks for one
/// message now and then, on a thread where nobody else waits.
const FIND_RECORD: &str = "SELECT seq FROM {p}log WHERE id = ?1 ORDER BY seq LIMIT 1";

const DEAD: &str = "
SELECT route, cause_code, cause_detail, parked_at
  FROM {p}parked
 WHERE state = 'dead'
 ORDER BY route, ordinal";

/// Also those that have ended: they are known for as long as they have dead rows.
const REPLAYS: &str = "SELECT name, replay_of FROM {p}route WHERE replay_of IS NOT NULL";

/// The conditions of a filter, and what they bind.
pub(super) fn condition(filter: &ParkedFilter) -> (String, Vec<Box<dyn ToSql>>) {
    let mut conditions = vec!["1"];
    let mut values: Vec<Box<dyn ToSql>> = Vec::new();
    let mut add = |condition, value: Option<Box<dyn ToSql>>| {
        if let Some(value) = value {
            conditions.push(condition);
            values.push(value);
        }
    };
    add("route = ?", filter.route.clone().map(|route| Box::new(route) as _));
    add("state = ?", filter.state.map(|state| Box::new(state.name()) as _));
    add("cause_code = ?", filter.cause.clone().map(|cause| Box::new(cause) as _));
    add("key = ?", filter.key.clone().map(|key| Box::new(key) as _));
    add("id = ?", filter.id.map(|id| Box::new(id.0.into_bytes()) as _));
    add("ordinal >= ?", filter.ordinals.as_ref().map(|range| Box::new(signed(*range.start())) as _));
    add("ordinal <= ?", filter.ordinals.as_ref().map(|range| Box::new(signed(*range.end())) as _));
    add("parked_at < ?", filter.parked_before.map(|instant| Box::new(instant.as_micros()) as _));
    (conditions.join(" AND "), values)
}

pub(super) fn parked(
    db: &Db,
    filter: &ParkedFilter,
    after: Option<&(Arc<str>, Ordinal)>,
    limit: u32,
    now: Timestamp,
) -> Work<Vec<ParkedRow>> {
    let (condition, mut values) = condition(filter);
    let (route, place) = after.map_or(("", 0), |(route, ordinal)| (&**route, signed(*ordinal)));
    values.extend([Box::new(route.to_owned()) as Box<dyn ToSql>, Box::new(place), Box::new(limit)]);
    let mut statement = db.statement(&format!(
        "SELECT route, ordinal, state, {HEAD}, attempts, cause_code, cause_detail, due_at, parked_at, {ENVELOPE}
           FROM {{p}}parked AS row
          WHERE {condition} AND (route, ordinal) > (?, ?)
          ORDER BY route, ordinal
          LIMIT ?"
    ))?;
    let mut rows = statement.query(rusqlite::params_from_iter(values))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(shown(row, now)?);
    }
    Ok(found)
}

pub(super) fn parked_count(db: &Db, filter: &ParkedFilter) -> Work<u64> {
    let (condition, values) = condition(filter);
    let mut statement = db.statement(&format!("SELECT count(*) FROM {{p}}parked WHERE {condition}"))?;
    let count: i64 = statement.query_row(rusqlite::params_from_iter(values), |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

fn shown(row: &Row<'_>, now: Timestamp) -> Work<ParkedRow> {
    let state = ParkedState::parse(&row.get::<_, String>(2)?).ok_or_else(|| corrupt("a parked row has no state"))?;
    let waits = matches!(state, ParkedState::Scheduled | ParkedState::Retrying);
    let due_at: Option<i64> = row.get(7)?;
    let code: Option<String> = row.get(5)?;
    let parked_at = Timestamp::from_micros(row.get(8)?);
    Ok(ParkedRow {
        route: row.get::<_, String>(0)?.into(),
        ordinal: ordinal(row.get(1)?),
        state,
        head: row.get(3)?,
        attempts: row.get(4)?,
        cause: code.map(|code| Ok::<_, rusqlite::Error>((code, row.get(6)?))).transpose()?,
        due_in: due_at.filter(|_| waits).map(|at| Timestamp::from_micros(at).since(now)),
        age: now.since(parked_at),
        parked_at,
        envelope: envelope(row, 9)?.0,
    })
}

pub(super) fn dead_groups(db: &Db) -> Work<Vec<CauseGroup>> {
    let mut statement = db.statement(REPLAYS)?;
    let named = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, Arc::from(row.get::<_, String>(1)?)));
    let replays: BTreeMap<String, Arc<str>> = statement.query_map([], named)?.collect::<rusqlite::Result<_>>()?;
    let mut statement = db.statement(DEAD)?;
    let mut rows = statement.query([])?;
    let mut groups: BTreeMap<(String, String), CauseGroup> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let (route, code): (String, Option<String>) = (row.get(0)?, row.get(1)?);
        let code = code.unwrap_or_default();
        let parked_at = Timestamp::from_micros(row.get(3)?);
        let group = groups.entry((route.clone(), code.clone())).or_insert_with(|| CauseGroup {
            replay_of: replays.get(&route).cloned(),
            route: route.into(),
            code,
            detail: String::new(),
            rows: 0,
            first_at: parked_at,
            last_at: parked_at,
        });
        group.rows += 1;
        group.first_at = group.first_at.min(parked_at);
        if parked_at >= group.last_at {
            group.last_at = parked_at;
            group.detail = row.get::<_, Option<String>>(2)?.unwrap_or_default();
        }
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.rows));
    Ok(groups)
}

pub(super) fn message(db: &Db, id: MessageId, now: Timestamp) -> Work<MessageTrace> {
    let of_message = ParkedFilter { id: Some(id), ..ParkedFilter::default() };
    let mut trace =
        MessageTrace { record: None, passed: Vec::new(), parked: parked(db, &of_message, None, u32::MAX, now)? };
    let mut statement = db.statement(FIND_RECORD)?;
    let mut rows = statement.query([id.0.as_bytes()])?;
    if let Some(row) = rows.next()? {
        let seq = row.get(0)?;
        let (envelope, enqueued_at) = record(db, seq)?;
        trace.passed = passed(db, seq, &envelope, now)?;
        trace.record = Some((envelope, enqueued_at));
    }
    Ok(trace)
}

fn record(db: &Db, seq: i64) -> Work<(Envelope, Timestamp)> {
    let mut statement = db.statement(&format!("SELECT {ENVELOPE} FROM {{p}}log WHERE seq = ?1"))?;
    let mut rows = statement.query([seq])?;
    let row = rows.next()?.ok_or_else(|| corrupt("a record that was just found is gone"))?;
    envelope(row, 0)
}

/// Per reader that the record belongs to: whether its lane has passed it.
fn passed(db: &Db, seq: i64, envelope: &Envelope, now: Timestamp) -> Work<Vec<(LaneId, bool)>> {
    let lanes = lease::lanes(db, now)?;
    let key = envelope.key.as_ref().map(|key| key.as_str().as_bytes());
    let mut passed = Vec::new();
    for (name, route) in lease::routes(db)? {
        passed.extend(route.passed_once(seq, &envelope.topic, key, &envelope.id.0));
        for lane in lanes.get(&name).into_iter().flatten() {
            if seq <= route.replay_end.unwrap_or(i64::MAX) && belongs(db, seq, &route, lane.number)? {
                let lane_id = LaneId { route: Arc::clone(&name), number: lane.number };
                passed.push((lane_id, seq <= lane.passed));
            }
        }
    }
    Ok(passed)
}

fn belongs(db: &Db, seq: i64, route: &Route, lane: u32) -> Work<bool> {
    let mut statement = db.statement(&format!("SELECT {CHOSEN_BY} FROM {{p}}log WHERE seq = ?1"))?;
    let mut rows = statement.query([seq])?;
    let Some(row) = rows.next()? else { return Ok(false) };
    let chosen = Selection::new(&route.reader, lane, route.lanes).choose(row)?;
    Ok(chosen.is_some())
}
