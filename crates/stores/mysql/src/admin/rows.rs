//! Looking at parked rows, at causes, and at one message.

use std::{collections::BTreeMap, sync::Arc};

use mysql_async::{Row, Value};
use postrider_core::{
    admin::{CauseGroup, MessageTrace, ParkedFilter, ParkedRow},
    envelope::{Envelope, MessageId},
    key::OrderingKey,
    lease::LaneId,
    parked::{Ordinal, ParkedState},
    time::Timestamp,
};

use crate::{
    db::{Db, get, values},
    error::{Work, corrupt},
    lease, list,
    parked::{ordinal, signed},
    records::envelope,
    route::Route,
};

/// A head has nothing before it in the index of lines.
const PARKED: &str = "
SELECT route, ordinal, state,
       in_line = 1 AND NOT EXISTS (SELECT 1
                                     FROM {p}parked AS earlier
                                    WHERE earlier.route = parked.route AND earlier.in_line = 1
                                      AND earlier.key_hash = parked.key_hash AND earlier.ordinal < parked.ordinal),
       attempts, cause_code, cause_detail, due_at, parked_at,
       id, topic, name, `key`, enqueued_at, deliver_at, expires_at, attempts_max, headers, payload
  FROM {p}parked AS parked";

/// In the order of parking, so that the last of each group tells its detail.
const DEAD: &str = "
SELECT route, COALESCE(cause_code, ''), COALESCE(cause_detail, ''), parked_at
  FROM {p}parked
 WHERE state = 'dead'
 ORDER BY parked_at, ordinal";

/// Also those that have ended: they are known for as long as they have dead rows.
const REPLAYS: &str = "SELECT name, replay_of FROM {p}route WHERE replay_of IS NOT NULL";

/// A pass over the log. An index on the id would make this quick and every enqueue dear; somebody asks for one message now
/// and then.
const FIND: &str = "
SELECT seq, id, topic, name, `key`, enqueued_at, deliver_at, expires_at, attempts_max, headers, payload
  FROM {p}log
 WHERE id = ?
 ORDER BY seq
 LIMIT 1";

/// The conditions of a filter, and what they bind.
pub(super) struct Conditions {
    pub(super) sql: String,
    pub(super) values: Vec<Value>,
}

impl Conditions {
    pub(super) fn new(filter: &ParkedFilter) -> Self {
        let mut conditions = Self { sql: "1 = 1".to_owned(), values: Vec::new() };
        conditions.add("route = ?", filter.route.clone());
        conditions.add("state = ?", filter.state.map(ParkedState::name));
        conditions.add("cause_code = ?", filter.cause.clone());
        conditions.add("`key` = ?", filter.key.clone());
        conditions.add("id = ?", filter.id.map(|id| id.0.as_bytes().to_vec()));
        conditions.add("ordinal >= ?", filter.ordinals.as_ref().map(|range| signed(*range.start())));
        conditions.add("ordinal <= ?", filter.ordinals.as_ref().map(|range| signed(*range.end())));
        conditions.add("parked_at < ?", filter.parked_before.map(Timestamp::as_micros));
        conditions
    }

    fn add(&mut self, condition: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.sql.push_str(" AND ");
            self.sql.push_str(condition);
            self.values.push(value.into());
        }
    }
}

pub(super) async fn parked(
    db: &mut Db,
    filter: &ParkedFilter,
    after: Option<&(Arc<str>, Ordinal)>,
    limit: u32,
) -> Work<Vec<ParkedRow>> {
    let Conditions { mut sql, mut values } = Conditions::new(filter);
    if let Some((route, ordinal)) = after {
        sql.push_str(" AND (route > ? OR (route = ? AND ordinal > ?))");
        values.extend(values![&**route, &**route, signed(*ordinal)]);
    }
    values.push(limit.into());
    let now = db.now().await?;
    let rows = db.query(&format!("{PARKED} WHERE {sql} ORDER BY route, ordinal LIMIT ?"), values).await?;
    rows.iter().map(|row| shown(row, now)).collect()
}

pub(super) async fn parked_count(db: &mut Db, filter: &ParkedFilter) -> Work<u64> {
    let Conditions { sql, values } = Conditions::new(filter);
    get(&db.query_one(&format!("SELECT COUNT(*) FROM {{p}}parked WHERE {sql}"), values).await?, 0)
}

fn shown(row: &Row, now: Timestamp) -> Work<ParkedRow> {
    let state = ParkedState::parse(&get::<String>(row, 2)?).ok_or_else(|| corrupt("a parked row has no state"))?;
    let waits = matches!(state, ParkedState::Scheduled | ParkedState::Retrying);
    let due_at = get::<Option<i64>>(row, 7)?.map(Timestamp::from_micros);
    let code: Option<String> = get(row, 5)?;
    let detail: Option<String> = get(row, 6)?;
    let parked_at = Timestamp::from_micros(get(row, 8)?);
    Ok(ParkedRow {
        route: get::<String>(row, 0)?.into(),
        ordinal: ordinal(get(row, 1)?),
        state,
        head: get(row, 3)?,
        attempts: get(row, 4)?,
        cause: code.map(|code| (code, detail.unwrap_or_default())),
        due_in: due_at.filter(|_| waits).map(|at| at.since(now)),
        age: now.since(parked_at),
        parked_at,
        envelope: envelope(row, 9)?.0,
    })
}

pub(super) async fn dead_groups(db: &mut Db) -> Work<Vec<CauseGroup>> {
    let mut replays: BTreeMap<String, Arc<str>> = BTreeMap::new();
    for row in db.query(REPLAYS, Vec::new()).await? {
        replays.insert(get(&row, 0)?, get::<String>(&row, 1)?.into());
    }
    let mut groups: BTreeMap<(String, String), CauseGroup> = BTreeMap::new();
    for row in db.query(DEAD, Vec::new()).await? {
        let (route, code): (String, String) = (get(&row, 0)?, get(&row, 1)?);
        let at = Timestamp::from_micros(get(&row, 3)?);
        let detail: String = get(&row, 2)?;
        let group = groups.entry((route.clone(), code.clone())).or_insert_with(|| CauseGroup {
            replay_of: replays.get(&route).cloned(),
            route: route.into(),
            code,
            detail: String::new(),
            rows: 0,
            first_at: at,
            last_at: at,
        });
        group.rows += 1;
        group.last_at = at;
        group.detail = detail;
    }
    let mut groups: Vec<CauseGroup> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.rows));
    Ok(groups)
}

pub(super) async fn message(db: &mut Db, id: MessageId) -> Work<MessageTrace> {
    let of_message = ParkedFilter { id: Some(id), ..ParkedFilter::default() };
    let parked = parked(db, &of_message, None, i32::MAX as u32).await?;
    let mut trace = MessageTrace { record: None, passed: Vec::new(), parked };
    if let Some(row) = db.query_opt(FIND, values![id.0.as_bytes().to_vec()]).await? {
        let (envelope, enqueued_at) = envelope(&row, 1)?;
        // One without a place is the newest of all.
        let place = list::place_of(db, get(&row, 0)?).await?.unwrap_or(i64::MAX);
        trace.passed = passed(db, &envelope, enqueued_at, place).await?;
        trace.record = Some((envelope, enqueued_at));
    }
    Ok(trace)
}

/// Per reader that the record belongs to: whether its lane has passed it.
async fn passed(db: &mut Db, envelope: &Envelope, enqueued_at: Timestamp, place: i64) -> Work<Vec<(LaneId, bool)>> {
    let now = db.now().await?;
    let lanes = lease::lanes(db, now).await?;
    let key = envelope.key.as_ref().map(OrderingKey::as_str);
    let mut passed = Vec::new();
    for (name, route) in Route::all(db).await? {
        let in_time = route.replay_end.is_none_or(|end| place <= end);
        if !in_time || !route.reader.reads(&envelope.topic, &envelope.name, key, enqueued_at) {
            passed.extend(route.passed_once(place, &envelope.topic, key.map(str::as_bytes), &envelope.id.0));
            continue;
        }
        for lane in lanes.get(&name).into_iter().flatten() {
            if route.reader.place(key.map(str::as_bytes), &envelope.id.0, lane.number, route.lanes).1 {
                passed.push((LaneId { route: Arc::clone(&name), number: lane.number }, place <= lane.passed));
            }
        }
    }
    Ok(passed)
}
