//! The change stream: what was committed, in the order of the commits.
//!
//! One stream of a process stays open while somebody waits ([`crate::wake`]); lanes that are at the end of the log read what it
//! had ([`crate::recent`]). Whoever is behind that opens the stream behind its own token, takes the first answer, and closes it:
//! the server waits for nothing when a stream is opened, so that answer ends where the log ends, or where it is full. A read asks
//! for more than its page holds; the rest is kept in memory for the lane's next read ([`crate::ahead`]).
//!
//! A stream that meets the end of the collection itself (dropped, renamed, or its database dropped) says so; whoever reads
//! stops there with the cause, and never goes on from now as if nothing had been.

use std::{
    cmp::Ordering,
    sync::Arc,
    time::{Duration, Instant},
};

use mongodb::bson::{Bson, Document, doc};
use postrider_core::{Error, ErrorKind};

use crate::{
    cursor::{Onward, Position, Tick, timestamp},
    db::{Db, batch},
    error::{Work, corrupt},
    value::{point, text_opt},
};

/// Bytes of an answer from which on it is asked whether there is more. The server cuts an answer before a message that does not
/// fit into its 16 MiB any more, and does not say so. A larger message than the rest of them behind a shorter answer is found by
/// the next read.
const ANSWER_BYTES: usize = 1 << 20;

/// Events of one answer of the stream that stays open.
const TAIL_MAX: i64 = 5_000;

/// One insert into the log.
#[derive(Clone)]
pub(crate) struct Event {
    pub(crate) document: Arc<Document>,
    pub(crate) token: String,
    /// When its transaction was committed. All events of a transaction have the same.
    pub(crate) committed: Tick,
}

/// What a stream had.
pub(crate) struct Events {
    pub(crate) events: Vec<Event>,
    /// Where the stream is now, whether or not it had an event there.
    pub(crate) token: Option<String>,
    /// Whether it may have more.
    pub(crate) more: bool,
}

/// The answer of a stream.
pub(crate) enum Answer {
    Events(Events),
    /// The server does not remember what was there.
    Lost,
    /// The collection itself ended: the error with which a route stops.
    Ended(Error),
}

/// What to ask of a stream.
pub(crate) struct Question {
    pub(crate) from: Onward,
    pub(crate) events_max: usize,
    /// Only messages whose `at` is not greater, and without headers and payload.
    pub(crate) late: Option<Tick>,
    /// Not before everything up to this point is committed by a majority.
    pub(crate) after: Option<Tick>,
    /// Until when the server may take. Behind that, what it has not told counts as forgotten.
    pub(crate) until: Option<Instant>,
}

impl Question {
    fn command(&self, collection: &str) -> Document {
        let begin = match &self.from {
            Onward::Token(token) => doc! { "resumeAfter": { "_data": token } },
            Onward::Time(time) => doc! { "startAtOperationTime": timestamp(*time) },
        };
        let (mut inserts, mut fields) = (inserts(), fields());
        if let Some(bound) = self.late {
            inserts.insert("fullDocument.at", doc! { "$lte": timestamp(bound) });
            fields = doc! { "fullDocument.payload": 0, "fullDocument.headers": 0 };
        }
        let concern = match self.after {
            Some(after) => doc! { "level": "majority", "afterClusterTime": timestamp(after) },
            None => doc! { "level": "majority" },
        };
        let mut command = doc! {
            "aggregate": collection,
            "pipeline": pipeline(begin, inserts, fields),
            "cursor": { "batchSize": i64::try_from(self.events_max).unwrap_or(i64::MAX) },
            "readConcern": concern,
        };
        if let Some(until) = self.until {
            let left = until.saturating_duration_since(Instant::now()).as_millis();
            // Zero would be for ever.
            command.insert("maxTimeMS", i64::try_from(left).unwrap_or(i64::MAX).max(1));
        }
        command
    }
}

fn inserts() -> Document {
    doc! { "operationType": "insert" }
}

fn fields() -> Document {
    doc! { "operationType": 1, "clusterTime": 1, "fullDocument": 1 }
}

fn pipeline(begin: Document, inserts: Document, fields: Document) -> Vec<Document> {
    // An end of the collection must not be filtered out: the stream would end without a word.
    let ends = doc! { "operationType": { "$in": ["drop", "rename", "dropDatabase", "invalidate"] } };
    vec![doc! { "$changeStream": begin }, doc! { "$match": { "$or": [inserts, ends] } }, doc! { "$project": fields }]
}

/// Asks the stream.
pub(crate) async fn ask(db: &mut Db, question: Question) -> Work<Answer> {
    if question.until.is_some_and(|until| until <= Instant::now()) {
        return Ok(Answer::Lost);
    }
    let collection = db.names.log().to_owned();
    let answer = match db.ask(question.command(&collection)).await {
        Ok(answer) => answer,
        Err(fault) if fault.is_lost_history() => return Ok(Answer::Lost),
        // Whoever looks for late ones does so while others wait; that they are not known is an answer too.
        Err(fault) if question.until.is_some() && fault.is_out_of_time() => return Ok(Answer::Lost),
        Err(fault) => return Err(fault),
    };
    let token = place(&answer);
    let (documents, id) = batch(answer, "firstBatch")?;
    if id != 0 {
        db.close(&collection, id);
    }
    let full = documents.len() >= question.events_max;
    let (events, ended) = match events(documents)? {
        (events, Some(end)) if events.is_empty() => return Ok(Answer::Ended(end)),
        // What came before the end of the collection is delivered; whoever asks behind that is told.
        (events, ended) => (events, ended.is_some()),
    };
    let bytes: usize = events.iter().map(|event| weight(&event.document)).sum();
    Ok(Answer::Events(Events { events, token, more: full || ended || bytes > ANSWER_BYTES }))
}

/// A stream that stays open, from the moment in which it is opened.
pub(crate) struct Tail {
    collection: String,
    cursor: i64,
}

/// What an open stream had since it was asked last.
pub(crate) struct Tailed {
    pub(crate) events: Vec<Event>,
    /// Where the stream is now.
    pub(crate) token: Option<String>,
    /// The end of the collection, which came behind the events.
    pub(crate) ended: Option<Error>,
}

impl Tail {
    /// Opens it, and tells where it begins if the server does.
    pub(crate) async fn open(db: &mut Db) -> Work<(Self, Option<String>)> {
        let collection = db.names.log().to_owned();
        // Without events in the first answer, so that its token is where the stream begins.
        let command = doc! {
            "aggregate": &collection,
            "pipeline": pipeline(Document::new(), inserts(), fields()),
            "cursor": { "batchSize": 0_i64 },
            "readConcern": { "level": "majority" },
        };
        let answer = db.ask(command).await?;
        let token = place(&answer);
        let (first, cursor) = batch(answer, "firstBatch")?;
        Ok((Self { collection, cursor }, token.filter(|_| first.is_empty())))
    }

    /// What came, as soon as something does, or nothing after a while.
    pub(crate) async fn next(&mut self, db: &mut Db, patience: Duration) -> Work<Tailed> {
        let answer = db.more(&self.collection, self.cursor, TAIL_MAX, patience).await?;
        let token = place(&answer);
        let (documents, cursor) = batch(answer, "nextBatch")?;
        self.cursor = cursor;
        let (events, mut end) = events(documents)?;
        if cursor == 0 && end.is_none() {
            end = Some(ended("closed"));
        }
        Ok(Tailed { events, token: token.filter(|_| end.is_none()), ended: end })
    }

    pub(crate) fn close(self, db: &Db) {
        if self.cursor != 0 {
            db.close(&self.collection, self.cursor);
        }
    }
}

/// Where the stream is behind an answer.
fn place(answer: &Document) -> Option<String> {
    let token = answer.get_document("cursor").ok()?.get_document("postBatchResumeToken").ok()?;
    text_opt(token, "_data").map(ToOwned::to_owned)
}

/// The inserts of an answer, up to the end of the collection if that is in it.
fn events(documents: Vec<Document>) -> Work<(Vec<Event>, Option<Error>)> {
    let mut events = Vec::with_capacity(documents.len());
    for document in documents {
        match event(document)? {
            Ok(event) => events.push(event),
            Err(end) => return Ok((events, Some(end))),
        }
    }
    Ok((events, None))
}

/// An insert, or the end of the collection.
fn event(mut event: Document) -> Work<Result<Event, Error>> {
    let token = event.get_document("_id").ok().and_then(|id| text_opt(id, "_data")).map(ToOwned::to_owned);
    let committed = point(&event, "clusterTime");
    match (text_opt(&event, "operationType").unwrap_or_default(), token, committed) {
        ("insert", Some(token), Some(committed)) => match event.remove("fullDocument") {
            Some(Bson::Document(document)) => Ok(Ok(Event { document: Arc::new(document), token, committed })),
            _ => Err(corrupt("an event of the change stream has no document").into()),
        },
        ("insert", ..) => Err(corrupt("an event of the change stream has no place in it").into()),
        (end, ..) => Ok(Err(ended(end))),
    }
}

/// Deliberately not transient: somebody has to look. Nothing of what is in the collection now is passed over.
pub(crate) fn ended(how: &str) -> Error {
    Error::new(
        ErrorKind::Schema,
        "the collection of the log was dropped or renamed, and what it held is not here any more; put it back, or accept \
         the loss with `postrider route rebase`",
    )
    .with("event", how)
}

/// About how many bytes a message takes.
pub(crate) fn weight(document: &Document) -> usize {
    let length = |name| match document.get(name) {
        Some(Bson::Binary(binary)) => binary.bytes.len(),
        Some(Bson::String(text)) => text.len(),
        _ => 0,
    };
    length("payload") + length("headers") + 200
}

/// The time of the cluster that a token begins with, if it is written as all servers so far do. Everything that was committed
/// before it has been seen.
pub(crate) fn time_of(token: &str) -> Option<Tick> {
    u64::from_str_radix(token.strip_prefix("82")?.get(..16)?, 16).ok()
}

/// The parts of a token that say in which way the rest of it is written: behind its time.
const WAY: std::ops::Range<usize> = 18..22;

/// What comes first in the stream. Tokens are text that sorts as the stream does, if they are written in the same way, or are
/// of different times. One that is of no event sorts before all events of its time. `None`: it cannot be told.
pub(crate) fn order(one: &str, other: &str) -> Option<Ordering> {
    let by_time = time_of(one)?.cmp(&time_of(other)?);
    if by_time.is_ne() {
        return Some(by_time);
    }
    let is_mark = |way: &str| way.starts_with("29");
    let (a, b) = (one.get(WAY)?, other.get(WAY)?);
    (a == b || is_mark(a) || is_mark(b)).then(|| one.cmp(other))
}

impl Events {
    /// The position behind each event. Behind the last event of a transaction all of it is passed.
    pub(crate) fn position(&self, index: usize) -> Position {
        let event = &self.events[index];
        let next = self.events.get(index + 1).map(|next| next.committed);
        let seen = next.or_else(|| if self.more { None } else { self.token.as_deref().and_then(time_of) });
        let whole = seen.is_some_and(|seen| seen > event.committed);
        let through = if whole { event.committed } else { event.committed - 1 };
        Position::Stream { through, token: Some(event.token.clone()) }
    }

    /// Where the stream is although it had nothing for us, if that can be told.
    pub(crate) fn idle(&self) -> Option<Position> {
        let token = self.token.clone()?;
        let through = time_of(&token)?.checked_sub(1)?;
        Some(Position::Stream { through, token: Some(token) })
    }
}

/// Messages that are below the bound of a position and that it has not passed: their transactions committed late. `None`: the
/// server does not remember, or has not told by `until`, so that none of those near the bound can be told from the others.
pub(crate) async fn late(
    db: &mut Db,
    position: &Position,
    after: Option<Tick>,
    until: Instant,
) -> Work<Option<Vec<Document>>> {
    let question = Question {
        from: position.onward(),
        events_max: LATE_MAX,
        late: Some(position.bound()),
        after,
        until: Some(until),
    };
    match follow(db, question).await? {
        Followed::ToItsEnd { found, .. } => Ok(Some(found)),
        // Behind the end of the collection nothing is known. Whose route it is stops there and says why; everybody else goes
        // on.
        Followed::Lost | Followed::Ended(_) => Ok(None),
    }
}

/// What is known of a stream that was read to its end.
pub(crate) enum Followed {
    ToItsEnd {
        found: Vec<Document>,
        /// Where what comes later begins.
        onward: Onward,
    },
    Lost,
    Ended(Error),
}

/// All that a stream has, answer by answer.
pub(crate) async fn follow(db: &mut Db, question: Question) -> Work<Followed> {
    let Question { mut from, events_max, late, after, until } = question;
    let mut found = Vec::new();
    // Ends with the stream.
    loop {
        let events = match ask(db, Question { from: from.clone(), events_max, late, after, until }).await? {
            Answer::Events(events) => events,
            Answer::Lost => return Ok(Followed::Lost),
            Answer::Ended(end) => return Ok(Followed::Ended(end)),
        };
        let last = events.events.last().map(|event| event.token.clone());
        found.extend(events.events.into_iter().map(|event| Arc::unwrap_or_clone(event.document)));
        // An answer may have been cut anywhere; only one without an event is the end.
        match last {
            Some(token) => from = Onward::Token(token),
            None => return Ok(Followed::ToItsEnd { found, onward: events.token.map_or(from, Onward::Token) }),
        }
    }
}

/// How long a look for late messages may take while others wait: a route that is far behind has much history behind it.
pub(crate) const LATE_PATIENCE: Duration = Duration::from_secs(2);

/// Late messages of one answer.
pub(crate) const LATE_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn events(commits: &[u64], token: &str, more: bool) -> Events {
        let event = |(index, committed): (usize, &u64)| Event {
            document: Arc::default(),
            token: format!("token-{index}"),
            committed: *committed,
        };
        Events { events: commits.iter().enumerate().map(event).collect(), token: Some(token.to_owned()), more }
    }

    #[test]
    fn a_token_tells_its_time() {
        assert_eq!(time_of("82000000010000000229296E04"), Some(1 << 32 | 2));
        assert_eq!(time_of("83000000010000000229296E04"), None, "an unknown way to write it");
        assert_eq!(time_of("82"), None);
    }

    #[test]
    fn tokens_are_in_the_order_of_the_stream() {
        let (time, later) = ("820000000100000002", "820000000100000003");
        let (mark, first, second) =
            (format!("{time}29296E04"), format!("{time}2B022C0100296E01"), format!("{time}2B022C0100296E02"));
        let newer = format!("{time}2B042C0100296E01");
        assert_eq!(order(&first, &second), Some(Ordering::Less));
        assert_eq!(order(&second, &second), Some(Ordering::Equal));
        assert_eq!(order(&mark, &first), Some(Ordering::Less), "before all events of its time");
        assert_eq!(order(&mark, &newer), Some(Ordering::Less));
        assert_eq!(order(&first, &newer), None, "written in another way");
        assert_eq!(order(&newer, &format!("{later}2B022C0100296E01")), Some(Ordering::Less), "another time");
        assert_eq!(order("83", &first), None);
    }

    #[test]
    fn only_a_whole_transaction_is_passed() {
        let through = |events: &Events| -> Vec<u64> { (0..3).map(|i| events.position(i).bound()).collect() };
        let later = "82000000000000006329296E04";
        assert_eq!(through(&events(&[10, 10, 20], later, false)), [9, 10, 20]);
        assert_eq!(through(&events(&[10, 10, 20], later, true)), [9, 10, 19], "more of the last one may come");
        assert_eq!(through(&events(&[10, 10, 20], "82000000000000001429296E04", false)), [9, 10, 19]);
    }
}
