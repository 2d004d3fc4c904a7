//! Looking at parked rows, at causes, and at one message.

use std::sync::Arc;

use postrider_core::{
    admin::{CauseGroup, MessageTrace, ParkedFilter, ParkedRow},
    envelope::MessageId,
    lease::LaneId,
    parked::{Ordinal, ParkedState},
    time::Timestamp,
};
use tokio_postgres::{Row, types::ToSql};

use crate::{
    db::{Db, unsigned},
    dialect::LEAVES,
    error::{Work, corrupt},
    lease,
    parked::{ordinal, signed},
    records::envelope,
    route::Route,
    values::{FullXid, Instant},
};

/// A head has nothing before it in the index of lines.
const PARKED: &str = "
SELECT route, ordinal, state,
       in_line AND NOT EXISTS (SELECT 1
                                 FROM {parked} AS before
                                WHERE before.route = row.route AND before.key_hash = row.key_hash
                                  AND before.in_line AND before.ordinal < row.ordinal),
       attempts, cause_code, cause_detail, due_at, parked_at,
       id, topic, name, key, enqueued_at, deliver_at, expires_at, attempts_max, CONTENTS
  FROM {parked} AS row";

/// A viewer is not given these columns, and sees everything else.
const SEES_CONTENTS: &str = "
SELECT bool_and(has_column_privilege(place, name, 'SELECT'))
  FROM unnest(ARRAY['{parked}', '{log_0}']) AS place CROSS JOIN unnest(ARRAY['headers', 'payload']) AS name";

/// The newest of each group tells its detail.
const DEAD: &str = "
SELECT route, coalesce(cause_code, ''), (array_agg(coalesce(cause_detail, '') ORDER BY parked_at DESC, ordinal DESC))[1],
       count(*), min(parked_at), max(parked_at),
       (SELECT replay_of FROM {route} WHERE name = parked.route)
  FROM {parked} AS parked
 WHERE state = 'dead'
 GROUP BY route, coalesce(cause_code, '')
 ORDER BY count(*) DESC, 1, 2";

/// The conditions of a filter, and what they bind.
pub(super) struct Conditions {
    pub(super) sql: String,
    values: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl Conditions {
    pub(super) fn new(filter: &ParkedFilter) -> Self {
        let mut conditions = Self { sql: "true".to_owned(), values: Vec::new() };
        conditions.add("route", filter.route.clone());
        conditions.add("state", filter.state.map(ParkedState::name));
        conditions.add("cause_code", filter.cause.clone());
        conditions.add("key", filter.key.clone());
        conditions.add("id", filter.id.map(|id| id.0));
        if let Some(range) = &filter.ordinals {
            let (first, last) = (conditions.bind(signed(*range.start())), conditions.bind(signed(*range.end())));
            conditions.sql.push_str(&format!(" AND ordinal BETWEEN {first} AND {last}"));
        }
        if let Some(instant) = filter.parked_before {
            let place = conditions.bind(Instant(instant));
            conditions.sql.push_str(&format!(" AND parked_at < {place}"));
        }
        conditions
    }

    fn add<T: ToSql + Sync + Send + 'static>(&mut self, column: &str, value: Option<T>) {
        if let Some(value) = value {
            let place = self.bind(value);
            self.sql.push_str(&format!(" AND {column} = {place}"));
        }
    }

    /// Binds one more value and returns its place.
    fn bind<T: ToSql + Sync + Send + 'static>(&mut self, value: T) -> String {
        self.values.push(Box::new(value));
        format!("${}", self.values.len())
    }

    pub(super) fn values(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.values.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect()
    }
}

pub(super) async fn sees_contents(db: &Db<'_>) -> Work<bool> {
    Ok(db.query_one(SEES_CONTENTS, &[]).await?.try_get(0)?)
}

/// Headers and payload as columns, or nothing in their places for those who may not see them.
async fn contents(db: &Db<'_>) -> Work<&'static str> {
    Ok(if sees_contents(db).await? { "headers, payload" } else { "NULL::bytea, ''::bytea" })
}

pub(super) async fn parked(
    db: &Db<'_>,
    filter: &ParkedFilter,
    after: Option<&(Arc<str>, Ordinal)>,
    limit: u32,
) -> Work<Vec<ParkedRow>> {
    let mut conditions = Conditions::new(filter);
    if let Some((route, ordinal)) = after {
        let (route, place) = (conditions.bind(route.to_string()), conditions.bind(signed(*ordinal)));
        conditions.sql.push_str(&format!(" AND (route, ordinal) > ({route}, {place})"));
    }
    let limit = conditions.bind(i64::from(limit));
    let parked = PARKED.replace("CONTENTS", contents(db).await?);
    let sql = format!("{parked} WHERE {} ORDER BY route, ordinal LIMIT {limit}", conditions.sql);
    let now = db.now().await?;
    let rows = db.query(&sql, &conditions.values()).await?;
    rows.iter().map(|row| shown(row, now)).collect()
}

pub(super) async fn parked_count(db: &Db<'_>, filter: &ParkedFilter) -> Work<u64> {
    let conditions = Conditions::new(filter);
    let sql = format!("SELECT count(*) FROM {{parked}} WHERE {}", conditions.sql);
    Ok(db.query_one(&sql, &conditions.values()).await?.try_get::<_, i64>(0)?.unsigned_abs())
}

fn shown(row: &Row, now: Timestamp) -> Work<ParkedRow> {
    let state = ParkedState::parse(row.try_get(2)?).ok_or_else(|| corrupt("a parked row has no state"))?;
    let waits = matches!(state, ParkedState::Scheduled | ParkedState::Retrying);
    let due_at: Option<Instant> = row.try_get(7)?;
    let code: Option<String> = row.try_get(5)?;
    let detail: Option<String> = row.try_get(6)?;
    let parked_at = row.try_get::<_, Instant>(8)?.0;
    Ok(ParkedRow {
        route: row.try_get::<_, &str>(0)?.into(),
        ordinal: ordinal(row.try_get(1)?),
        state,
        head: row.try_get(3)?,
        attempts: unsigned(row.try_get(4)?),
        cause: code.map(|code| (code, detail.unwrap_or_default())),
        due_in: due_at.filter(|_| waits).map(|at| at.0.since(now)),
        age: now.since(parked_at),
        parked_at,
        envelope: envelope(row, 9)?.0,
    })
}

pub(super) async fn dead_groups(db: &Db<'_>) -> Work<Vec<CauseGroup>> {
    let rows = db.query(DEAD, &[]).await?;
    let group = |row: &Row| {
        Ok(CauseGroup {
            route: row.try_get::<_, &str>(0)?.into(),
            replay_of: row.try_get::<_, Option<&str>>(6)?.map(Into::into),
            code: row.try_get(1)?,
            detail: row.try_get(2)?,
            rows: row.try_get::<_, i64>(3)?.unsigned_abs(),
            first_at: row.try_get::<_, Instant>(4)?.0,
            last_at: row.try_get::<_, Instant>(5)?.0,
        })
    };
    rows.iter().map(group).collect()
}

pub(super) async fn message(db: &Db<'_>, id: MessageId) -> Work<MessageTrace> {
    let of_message = ParkedFilter { id: Some(id), ..ParkedFilter::default() };
    let mut trace = MessageTrace {
        record: None,
        passed: Vec::new(),
        parked: parked(db, &of_message, None, i32::MAX as u32).await?,
    };
    if let Some(row) = find(db, id).await? {
        let (envelope, enqueued_at) = envelope(&row, 2)?;
        trace.passed = passed(db, &envelope, enqueued_at, row.try_get::<_, FullXid>(0)?.0, row.try_get(1)?).await?;
        trace.record = Some((envelope, enqueued_at));
    }
    Ok(trace)
}

/// A pass over the log, leaf by leaf so that none but the one at hand is locked. An index on the id would make this quick
/// and every enqueue dear; somebody asks for one message now and then.
async fn find(db: &Db<'_>, id: MessageId) -> Work<Option<Row>> {
    let contents = contents(db).await?;
    for leaf in 0..LEAVES {
        let sql = format!(
            "SELECT tx, seq, id, topic, name, key, enqueued_at, deliver_at, expires_at, attempts_max, {contents}
               FROM {{log_{leaf}}} WHERE id = $1 ORDER BY seq LIMIT 1"
        );
        if let Some(row) = db.query_opt(&sql, &[&id.0]).await? {
            return Ok(Some(row));
        }
    }
    Ok(None)
}

/// Per reader that the record belongs to: whether its lane has passed it.
async fn passed(
    db: &Db<'_>,
    envelope: &postrider_core::envelope::Envelope,
    enqueued_at: Timestamp,
    xid: u64,
    seq: i64,
) -> Work<Vec<(LaneId, bool)>> {
    let lanes = lease::lanes(db, db.now().await?).await?;
    let mut passed = Vec::new();
    for (name, route) in Route::all(db).await? {
        let key = envelope.key.as_ref().map(AsRef::as_ref);
        passed.extend(route.passed_once(lanes.get(&name), (xid, seq), &envelope.topic, key, &envelope.id.0));
        for lane in lanes.get(&name).into_iter().flatten() {
            let in_time = route.reader.replay.is_none() || lane.position.is_in_replay(xid, seq);
            if in_time && belongs(&route, envelope, enqueued_at, lane.number) {
                let lane_id = LaneId { route: Arc::clone(&name), number: lane.number };
                passed.push((lane_id, lane.position.has_settled(xid, seq)));
            }
        }
    }
    Ok(passed)
}

fn belongs(route: &Route, envelope: &postrider_core::envelope::Envelope, enqueued_at: Timestamp, lane: u32) -> bool {
    let key = envelope.key.as_ref().map(AsRef::as_ref);
    let filter = route.reader.replay.as_ref().map(|replay| &replay.filter);
    let also = filter.and_then(|filter| filter.topics.as_ref());
    route.reader.topics.matches(&envelope.topic)
        && also.is_none_or(|topics| topics.matches(&envelope.topic))
        && filter.is_none_or(|filter| crate::select::passes(filter, enqueued_at, key, envelope.name.as_bytes()))
        && route.reader.place(key, &envelope.id.0, lane, route.lanes).1
}
