//! Reading a page of the log: the hot path.
//!
//! **Why it is commit-safe.** The stream tells what was committed in the order of the commits, and its token moves with it: a
//! transaction that commits late comes late, and is not passed over. Where there is no token (a first start) or the server
//! has forgotten it (its history is a ring of bounded size), the collection is the truth: it is scanned in the order of `at`,
//! which the server gives to each message as it is inserted, up to a point in time up to which everything is committed; then
//! the stream goes on behind that point.
//!
//! - *Nothing is lost*: what was committed up to the cursor is passed; what was committed from there to the point is visible
//!   to every page of the scan, and is in it if it was inserted less than the overlap before it was committed; what was
//!   committed behind the point is in the stream.
//! - *Order*: if A was committed before B was enqueued, A's `at` is less. If both are in the scan, it sorts them. If B is in
//!   it, it was committed up to the point, so A was too and is visible during the *whole* scan. If B is in the stream, A is in
//!   the scan or earlier in the stream.
//! - *Messages that share one `at`*, because a client has filled it in, are passed one by one ([`crate::cursor`]). Their order
//!   among each other and others is nobody's.
//! - *Messages of one transaction* are all in the scan or all in the stream: what commits behind the point while the scan is
//!   under way is left out of its pages ([`crate::late`]), and the stream has it whole.
//!
//! Without the upper bound of the scan the second half is wrong: a scan in pages would pass the place of A before A commits,
//! and then meet B. Without the third, A and B may be of one transaction. See [`Plant`].

use std::sync::{Arc, atomic::Ordering};

use mongodb::bson::{Document, doc};
use postrider_core::{
    Error,
    lease::Lease,
    log::{Page, PageLimit},
};

use crate::{
    MongoStore,
    ahead::Rest,
    cursor::{Among, Onward, Position, Tick, seconds, timestamp},
    db::{Db, Described, Update, server_now},
    error::{Work, corrupt},
    late::{Left, Numbers, number},
    lease::named,
    planted::Plant,
    records::{Gathered, at},
    route::{self, Route},
    select::Selection,
    stream::{self, Answer, Followed, Question},
    value::point,
};

/// Records that one read looks at. A lane that few records belong to returns after so many, with its cursor moved.
const SCAN_MAX: usize = 20_000;

/// Records of one answer at most.
const BATCH_MAX: usize = 5_000;

/// Records of one answer at least, if there are so many.
const BATCH_MIN: usize = 100;

/// Events that a stream is asked for, whatever the page's size; see [`crate::ahead`].
const AHEAD_MAX: usize = 5_000;

/// How often one read finds its history lost before it returns what it has.
const LOSSES_MAX: u32 = 2;

/// Reads on behind `after`.
pub(crate) async fn read(store: &MongoStore, lease: &Lease, after: Position, limit: PageLimit) -> Work<Page> {
    let mut db = store.alone().await?;
    let replay = lease.reader.replay.as_ref().map(|_| Arc::clone(&lease.lane.route));
    if replay.is_some() {
        fence(&mut db, lease).await?;
    }
    let mut reading = Reading {
        store,
        lease,
        selection: Selection::new(&lease.reader, lease.lane.number, lease.lanes),
        gathered: Gathered::new(limit, replay.clone()),
        at: after.clone(),
        scanned: 0,
        losses: 0,
        streams: replay.is_none(),
    };
    if matches!(after, Position::Stream { .. }) && store.forgets() {
        reading.lose(&mut db).await?;
    }
    let more = reading.fill(&mut db).await?;
    let Reading { gathered, at, .. } = reading;
    Ok(gathered.into_page(after, &at, more))
}

/// A stale owner must not take the end of a replay for its own.
async fn fence(db: &mut Db, lease: &Lease) -> Work<()> {
    match db.find_one("lane", named(lease)).await? {
        Some(_) => Route::get(db, &lease.lane.route).await.map(drop),
        None => Err(Error::fenced().into()),
    }
}

/// A scan under way: up to which point, whether because history was lost, and where it is.
struct Scan {
    until: Tick,
    lost: bool,
    from: Tick,
    among: Option<Among>,
}

/// A read under way.
struct Reading<'a> {
    store: &'a MongoStore,
    lease: &'a Lease,
    selection: Selection<'a>,
    gathered: Gathered,
    at: Position,
    scanned: usize,
    losses: u32,
    /// Whether the stream follows the scan. A replay ends with it.
    streams: bool,
}

/// What a step of a read comes to.
enum Step {
    /// The page is full, or enough was looked at.
    Full,
    /// There is more, or something else to do.
    On,
    /// There is nothing more.
    End,
}

impl Reading<'_> {
    /// Whether there is more. Ends with the log, with a full page, or with the scan's limit.
    async fn fill(&mut self, db: &mut Db) -> Work<bool> {
        loop {
            let step = match self.at.clone() {
                Position::Scan { until, at, lost, among } => self.scan(db, Scan { until, lost, from: at, among }).await,
                Position::Stream { .. } => self.stream(db, self.at.clone()).await,
            };
            match step {
                Ok(Step::Full) => return Ok(true),
                Ok(Step::End) => return Ok(false),
                Ok(Step::On) if self.scanned >= SCAN_MAX => return Ok(true),
                Ok(Step::On) => {}
                // What is not what was written must not be passed over with the next page.
                Err(fault) if self.scanned == 0 || fault.is_corrupt() => return Err(fault),
                // What is read already is good; the next read begins with what went wrong.
                Err(_) => return Ok(true),
            }
        }
    }

    /// As many as could fit, and one more that tells whether there is more; a few in any case, for they may be others'.
    fn batch(&self) -> usize {
        (self.gathered.room() + 1).clamp(BATCH_MIN, BATCH_MAX)
    }

    async fn scan(&mut self, db: &mut Db, scan: Scan) -> Work<Step> {
        let Scan { until, from, among, .. } = &scan;
        if let Some(among) = among {
            return self.scan_among(db, &scan, among.at).await;
        }
        let upper = if self.is_unbounded() { u64::MAX } else { *until };
        let filter = doc! { "at": { "$gt": timestamp(*from), "$lte": timestamp(upper) } };
        let (mut documents, seen) = self.look(db, &scan, filter, doc! { "at": 1 }).await?;
        let Some(first) = documents.first().map(at) else { return self.scanned(db, *until).await };
        // The server may cut an answer where it likes, for it has a limit of its own, and does not say so. So only where there
        // is nothing does the scan end, and behind the last message of an answer there may be others of the same `at`.
        let shares = |pair: &[Document]| at(&pair[0]) == at(&pair[1]);
        let alone = documents.windows(2).position(shares).unwrap_or(documents.len() - 1);
        if alone > 0 {
            documents.truncate(alone);
        } else if documents.len() > 1 || !self.is_alone(db, &scan, first).await? {
            return self.scan_among(db, &scan, first).await;
        }
        self.take_scanned(db, &scan, documents, seen, None).await
    }

    /// Messages that share one `at`, which no server has given them, in the order of their `_id`.
    async fn scan_among(&mut self, db: &mut Db, scan: &Scan, shared: Tick) -> Work<Step> {
        let mut filter = doc! { "at": timestamp(shared) };
        if let Some(among) = &scan.among {
            // As it is sorted: `$gt` alone would only find ids of the same type.
            filter.insert("$expr", doc! { "$gt": ["$_id", { "$literal": among.last()? }] });
        }
        let (documents, seen) = self.look(db, scan, filter, doc! { "_id": 1 }).await?;
        if documents.is_empty() {
            self.at = Position::Scan { until: scan.until, at: shared, lost: scan.lost, among: None };
            return Ok(Step::On);
        }
        self.take_scanned(db, scan, documents, seen, Some(shared)).await
    }

    /// Whether no other message has this `at`.
    async fn is_alone(&self, db: &mut Db, scan: &Scan, at: Tick) -> Work<bool> {
        let command = doc! {
            "find": db.names.log(),
            "filter": { "at": timestamp(at) },
            "projection": { "at": 1 },
            "limit": 2_i64,
            "singleBatch": true,
            "readConcern": { "level": "majority", "afterClusterTime": timestamp(scan.until) },
        };
        Ok(crate::db::batch(db.ask(command).await?, "firstBatch")?.0.len() < 2)
    }

    /// An answer of the collection, and the moment that it shows.
    async fn look(
        &self,
        db: &mut Db,
        scan: &Scan,
        filter: Document,
        sort: Document,
    ) -> Work<(Vec<Document>, Option<Tick>)> {
        let batch = self.batch();
        let command = doc! {
            "find": db.names.log(),
            "filter": filter,
            "sort": sort,
            "limit": i64::try_from(batch).unwrap_or(i64::MAX),
            "batchSize": i64::try_from(batch).unwrap_or(i64::MAX),
            "singleBatch": true,
            "readConcern": { "level": "majority", "afterClusterTime": timestamp(scan.until) },
        };
        let answer = db.ask(command).await?;
        let seen = point(&answer, "operationTime");
        Ok((crate::db::batch(answer, "firstBatch")?.0, seen))
    }

    /// Passes over messages of the collection; `shared` is the `at` of all of them, if there may be more that have it.
    async fn take_scanned(
        &mut self,
        db: &mut Db,
        scan: &Scan,
        documents: Vec<Document>,
        seen: Option<Tick>,
        shared: Option<Tick>,
    ) -> Work<Step> {
        let Scan { until, lost, from, .. } = *scan;
        let left_out = match self.left_out(db, until, seen, documents.last().map(at)).await? {
            Left::Out(numbers) => numbers,
            Left::Unknown(Followed::Ended(end)) => return Err(end.into()),
            // The scan begins again, with a point that the stream knows.
            Left::Unknown(_) => return self.lose_again(db).await,
        };
        if self.gathered.needs_clock(documents.iter()) {
            self.gathered.set_clock(db.now().await?);
        }
        for document in documents {
            let at = at(&document);
            if at <= self.at.bound() {
                return Err(corrupt("the log is read in ascending order").into());
            }
            let here = match shared {
                None => Position::Scan { until, at, lost, among: None },
                Some(shared) => {
                    let last = document.get("_id").ok_or_else(|| corrupt("a message has no `_id`"))?;
                    Position::Scan { until, at: from, lost, among: Some(Among::new(shared, last)?) }
                }
            };
            if !left_out.is_empty() && left_out.contains(&number(&document)) {
                self.at = here;
                self.scanned += 1;
            } else if self.take(Arc::new(document), here).is_err() {
                return Ok(Step::Full);
            }
        }
        Ok(Step::On)
    }

    /// What follows where the scan has come to its end.
    async fn scanned(&mut self, db: &mut Db, until: Tick) -> Work<Step> {
        if !self.streams || self.store.0.plant == Plant::AtCursor {
            return Ok(Step::End);
        }
        self.store.0.late.forget(&self.lease.lane);
        self.stream(db, Position::behind(until)).await
    }

    fn is_unbounded(&self) -> bool {
        matches!(self.store.0.plant, Plant::UnboundedScan | Plant::AtCursor)
    }

    /// What a page that was read by `seen` and ends with `last` leaves to the stream. Where no stream follows, nothing; nor if
    /// all of it was inserted so long before the point that no transaction of it can have been open there.
    async fn left_out(&self, db: &mut Db, until: Tick, seen: Option<Tick>, last: Option<Tick>) -> Work<Left> {
        let (plant, overlap) = (self.store.0.plant, self.store.overlap_ticks());
        let is_over = last.is_none_or(|last| last.saturating_add(overlap) < until);
        if is_over || !self.streams || matches!(plant, Plant::AtCursor | Plant::TornTransaction) {
            return Ok(Left::Out(Numbers::default()));
        }
        let seen = seen.ok_or_else(|| corrupt("the server tells no time of the cluster"))?;
        self.store.0.late.of(db, &self.lease.lane, until, seen, until.saturating_add(overlap)).await
    }

    /// Goes on with a scan, unless that was in vain too often.
    async fn lose_again(&mut self, db: &mut Db) -> Work<Step> {
        self.losses += 1;
        self.lose(db).await?;
        Ok(if self.losses > LOSSES_MAX { Step::Full } else { Step::On })
    }

    async fn stream(&mut self, db: &mut Db, from: Position) -> Work<Step> {
        if let Some(rest) = self.store.0.ahead.take(&self.lease.lane, &from) {
            // What is newer than the rest is asked for behind it.
            return Ok(if self.take_all(db, rest).await? { Step::On } else { Step::Full });
        }
        let onward = self.store.0.quiet.onward(&self.lease.lane, &from);
        let mut events = match self.ask(db, onward).await? {
            Answer::Events(events) => events,
            Answer::Ended(end) => return Err(end.into()),
            Answer::Lost => {
                self.at = from;
                return self.lose_again(db).await;
            }
        };
        let positions: Vec<Position> = (0..events.events.len()).map(|index| events.position(index)).collect();
        let mut rest = Rest::default();
        for (event, here) in std::mem::take(&mut events.events).into_iter().zip(positions) {
            rest.push_back(event.document, here);
        }
        let is_idle = rest.is_empty();
        if !self.take_all(db, rest).await? {
            return Ok(Step::Full);
        }
        if events.more {
            return Ok(Step::On);
        }
        if is_idle {
            let idle = events.idle();
            if let Some(token) = events.token {
                self.store.0.quiet.note(&self.lease.lane, from, token);
            }
            let far = self.at.horizon().saturating_add(seconds(self.store.0.idle_seconds));
            if let Some(idle) = idle.filter(|idle| idle.horizon() > far) {
                self.at = idle;
            }
        }
        Ok(Step::End)
    }

    /// What comes behind a place in the stream: what the open stream of the process has had, if the place lies inside of that,
    /// and otherwise what a stream of the lane's own has.
    async fn ask(&self, db: &mut Db, from: Onward) -> Work<Answer> {
        let recent = &self.store.0.shared.recent;
        match recent.behind(&from, self.batch()) {
            Some(events) if !events.events.is_empty() => return Ok(Answer::Events(events)),
            Some(_) => recent.catch_up(db).await?,
            None => {}
        }
        if let Some(events) = recent.behind(&from, self.batch()) {
            return Ok(Answer::Events(events));
        }
        let events_max = self.batch().max(AHEAD_MAX);
        stream::ask(db, Question { from, events_max, late: None, after: None, until: None }).await
    }

    /// Passes over messages of the stream. `false`: not all of them; the others wait for the next read.
    async fn take_all(&mut self, db: &mut Db, mut rest: Rest) -> Work<bool> {
        if self.gathered.needs_clock(rest.documents()) {
            self.gathered.set_clock(db.now().await?);
        }
        while let Some((document, here)) = rest.pop_front() {
            if let Err(left) = self.take(document, here) {
                rest.push_front(left.0, left.1);
                self.store.0.ahead.keep(&self.lease.lane, self.at.clone(), rest);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Passes over a message, and takes it if it belongs to the lane. If it does not fit, it is given back and not passed.
    fn take(&mut self, document: Arc<Document>, here: Position) -> Result<(), Box<(Arc<Document>, Position)>> {
        if self.scanned >= SCAN_MAX {
            return Err(Box::new((document, here)));
        }
        if let Some(chosen) = self.selection.choose(&document) {
            if !self.gathered.fits(&document) {
                return Err(Box::new((document, here)));
            }
            self.gathered.take(Arc::unwrap_or_clone(document), &chosen, &self.selection, here.clone());
        }
        self.at = here;
        self.scanned += 1;
        Ok(())
    }

    /// Goes on with a scan of the collection. That it had to is noted at the lane, here and not when somebody settles: by
    /// then the scan may be over, and nothing of it left in the cursor.
    ///
    /// A server that has forgotten where the lane was may have forgotten the end of the collection as well, so it is looked
    /// whether the one that is there is still the one that the route reads.
    async fn lose(&mut self, db: &mut Db) -> Work<()> {
        if let Some(reads) = route::reads(db, &self.lease.lane.route).await? {
            match db.described_log().await? {
                Described::There { id, .. } if id != reads => return Err(stream::ended("replaced").into()),
                Described::Absent => return Err(stream::ended("missing").into()),
                Described::There { .. } | Described::Unknown => {}
            }
        }
        // A stale owner notes nothing.
        let note = vec![doc! { "$set": { "recovered_at": server_now() } }];
        db.update("lane", Update::one(named(self.lease), note)).await?;
        self.at = self.at.rescan(db.committed().await?, self.store.overlap_ticks());
        self.store.0.recoveries.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
