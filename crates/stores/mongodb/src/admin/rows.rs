//! Looking at parked rows, at causes, and at one message.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use mongodb::bson::{Document, doc};
use postrider_core::{
    admin::{CauseGroup, MessageTrace, ParkedFilter, ParkedRow},
    envelope::MessageId,
    key::OrderingKey,
    parked::{Ordinal, ParkedState},
    time::Timestamp,
};

use super::readers::{About, Readers};
use crate::{
    cursor::Tick,
    db::{Db, Find},
    error::{Work, corrupt},
    parked::{ordinal, signed},
    records::{at, enqueued_at, envelope},
    value::{int, is_true, long, long_opt, text, text_opt, uuid},
};

/// A filter as the database has it.
pub(super) fn conditions(filter: &ParkedFilter) -> Document {
    let mut conditions = Document::new();
    if let Some(route) = &filter.route {
        conditions.insert("route", route);
    }
    if let Some(state) = filter.state {
        conditions.insert("state", state.name());
    }
    if let Some(cause) = &filter.cause {
        conditions.insert("cause_code", cause);
    }
    if let Some(key) = &filter.key {
        conditions.insert("key", key);
    }
    if let Some(id) = filter.id {
        conditions.insert("id", uuid(id.0));
    }
    if let Some(range) = &filter.ordinals {
        conditions.insert("ordinal", doc! { "$gte": signed(*range.start()), "$lte": signed(*range.end()) });
    }
    if let Some(instant) = filter.parked_before {
        conditions.insert("parked_at", doc! { "$lt": instant.as_micros() });
    }
    conditions
}

pub(super) async fn parked(
    db: &mut Db,
    filter: &ParkedFilter,
    after: Option<&(Arc<str>, Ordinal)>,
    limit: u32,
) -> Work<Vec<ParkedRow>> {
    if limit == 0 {
        return Ok(Vec::new());
    }
    let mut both = vec![conditions(filter)];
    if let Some((route, ordinal)) = after {
        let same = doc! { "route": &**route, "ordinal": { "$gt": signed(*ordinal) } };
        both.push(doc! { "$or": [{ "route": { "$gt": &**route } }, same] });
    }
    let now = db.now().await?;
    let find = Find::new(doc! { "$and": both }).sort(doc! { "route": 1, "ordinal": 1 }).limit(i64::from(limit));
    let rows = db.find("parked", find).await?;
    let heads = heads(db, &rows).await?;
    rows.into_iter().map(|row| shown(row, &heads, now)).collect()
}

/// The heads of the lines in which these rows stand, by route and key.
async fn heads(db: &mut Db, rows: &[Document]) -> Work<HashMap<(String, i64), i64>> {
    let mut keys: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for row in rows.iter().filter(|row| is_true(row, "in_line")) {
        keys.entry(text(row, "route")?.to_owned()).or_default().extend(long_opt(row, "key_hash"));
    }
    let mut heads = HashMap::new();
    for (route, keys) in keys {
        let pipeline = vec![
            doc! { "$match": { "route": &route, "in_line": true, "key_hash": { "$in": keys } } },
            doc! { "$group": { "_id": "$key_hash", "head": { "$min": "$ordinal" } } },
        ];
        for line in db.aggregate("parked", pipeline).await? {
            heads.insert((route.clone(), long(&line, "_id")?), long(&line, "head")?);
        }
    }
    Ok(heads)
}

pub(super) async fn parked_count(db: &mut Db, filter: &ParkedFilter) -> Work<u64> {
    let pipeline = vec![doc! { "$match": conditions(filter) }, doc! { "$count": "rows" }];
    let counted = db.aggregate("parked", pipeline).await?;
    counted.first().map_or(Ok(0), |counted| Ok(long(counted, "rows")?.unsigned_abs()))
}

fn shown(row: Document, heads: &HashMap<(String, i64), i64>, now: Timestamp) -> Work<ParkedRow> {
    let state = ParkedState::parse(text(&row, "state")?).ok_or_else(|| corrupt("a parked row has no state"))?;
    let waits = matches!(state, ParkedState::Scheduled | ParkedState::Retrying);
    let due_at = long_opt(&row, "due_at").map(Timestamp::from_micros);
    let (route, place) = (text(&row, "route")?.to_owned(), long(&row, "ordinal")?);
    let line = long_opt(&row, "key_hash").filter(|_| is_true(&row, "in_line")).map(|key| (route.clone(), key));
    let detail = text_opt(&row, "cause_detail").unwrap_or_default().to_owned();
    let parked_at = Timestamp::from_micros(long(&row, "parked_at")?);
    Ok(ParkedRow {
        route: route.into(),
        ordinal: ordinal(place),
        state,
        head: line.is_some_and(|line| heads.get(&line) == Some(&place)),
        attempts: int(&row, "attempts")?,
        cause: text_opt(&row, "cause_code").map(|code| (code.to_owned(), detail)),
        due_in: due_at.filter(|_| waits).map(|at| at.since(now)),
        age: now.since(parked_at),
        parked_at,
        envelope: envelope(row),
    })
}

/// In the order of parking, so that the last of each group tells its detail.
pub(super) async fn dead_groups(db: &mut Db) -> Work<Vec<CauseGroup>> {
    let group = doc! {
        "_id": { "route": "$route", "code": { "$ifNull": ["$cause_code", ""] } },
        "detail": { "$last": { "$ifNull": ["$cause_detail", ""] } },
        "rows": { "$sum": 1_i64 },
        "first_at": { "$min": "$parked_at" },
        "last_at": { "$max": "$parked_at" },
    };
    let pipeline = vec![
        doc! { "$match": { "state": "dead" } },
        doc! { "$project": { "route": 1, "cause_code": 1, "cause_detail": 1, "parked_at": 1, "ordinal": 1 } },
        doc! { "$sort": { "parked_at": 1, "ordinal": 1 } },
        doc! { "$group": group },
    ];
    let mut replays: HashMap<String, Arc<str>> = HashMap::new();
    // Also those that have ended: they are known for as long as they have dead rows.
    let of = Find::new(doc! { "replay_of": { "$exists": true } }).fields(doc! { "replay_of": 1 });
    for replay in db.find("route", of).await? {
        replays.insert(text(&replay, "_id")?.to_owned(), text(&replay, "replay_of")?.into());
    }
    let mut groups = Vec::new();
    for found in db.aggregate("parked", pipeline).await? {
        let id = found.get_document("_id").map_err(|_| corrupt("a group of causes has no name"))?;
        groups.push(CauseGroup {
            route: text(id, "route")?.into(),
            replay_of: replays.get(text(id, "route")?).cloned(),
            code: text(id, "code")?.to_owned(),
            detail: text(&found, "detail")?.to_owned(),
            rows: long(&found, "rows")?.unsigned_abs(),
            first_at: Timestamp::from_micros(long(&found, "first_at")?),
            last_at: Timestamp::from_micros(long(&found, "last_at")?),
        });
    }
    groups.sort_by(|one, other| {
        other.rows.cmp(&one.rows).then_with(|| one.route.cmp(&other.route)).then_with(|| one.code.cmp(&other.code))
    });
    Ok(groups)
}

/// A pass over the log. An index on the id would make this quick and every enqueue dear; somebody asks for one message now
/// and then.
pub(super) async fn message(db: &mut Db, aside: &mut Db, overlap: Tick, id: MessageId) -> Work<MessageTrace> {
    let of_message = ParkedFilter { id: Some(id), ..ParkedFilter::default() };
    let parked = parked(db, &of_message, None, i32::MAX as u32).await?;
    let mut trace = MessageTrace { record: None, passed: Vec::new(), parked };
    let first = Find::new(doc! { "id": uuid(id.0) }).sort(doc! { "at": 1 }).limit(1);
    if let Some(document) = db.find("log", first).await?.into_iter().next() {
        let (number, enqueued_at) = (at(&document), enqueued_at(&document));
        let envelope = envelope(document);
        let now = db.now().await?;
        let readers = Readers::of(db, aside, now, overlap).await?;
        trace.passed = readers.passed(&About {
            number,
            id: &envelope.id.0,
            topic: &envelope.topic,
            name: &envelope.name,
            key: envelope.key.as_ref().map(OrderingKey::as_str),
            enqueued_at,
        });
        trace.record = Some((envelope, enqueued_at));
    }
    Ok(trace)
}
