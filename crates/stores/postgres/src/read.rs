//! Reading a page of the log: the hot path.
//!
//! The reader works in rounds (see [`crate::rounds`]). A read finishes the round that is under way, if one is, and opens at
//! most one more, so a page may hold records of two. What is kept in memory between two reads of a lane is only a better
//! knowledge of what the cursor says; without it everything is rebuilt from the cursor.
//!
//! A cursor from another session than the current one is refused as fenced unless it is the persisted one: it may count
//! commits that do not exist any more.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use deadpool_postgres::Object;
use postrider_core::{
    Error,
    admin::Actor,
    lease::Lease,
    log::{Cursor, Page, PageLimit},
};

use crate::{
    PostgresStore, admin,
    ahead::Ahead,
    cursor::{Identity, Position},
    db::{ANSWER_PATIENCE, Db, PURGE_PATIENCE},
    dialect::LEAVES,
    error::Work,
    intern::Interner,
    observe,
    origin::Origin,
    planted::Plant,
    records::Gathered,
    rounds::{Rounds, Window},
    select::{Selection, plain_topics, takes_all},
    session::{Found, NextLook, Session, Size},
    set_back::{LOOK_MILLIS, PassedOver},
};

/// Statements that one read sends for pages. A lane that few records belong to returns after so many, with its cursor
/// moved.
const PAGES_MAX: u32 = 64;

/// Rows that one read looks at. As above.
const ROWS_MAX: usize = 50_000;

/// Rows of the first statement, while nothing is known of their size.
const FIRST_ROWS: usize = 256;

/// How often the bounds of stragglers are looked at.
const RAISE_EVERY: Duration = Duration::from_millis(500);

/// What is remembered of a lane between two reads.
pub(crate) struct Remembered {
    session: u64,
    end: Cursor,
    rounds: Rounds,
    /// It was rebased where it counts: its cursor is to be written, also if nothing was found for it.
    rebased: bool,
    raised_at: Option<Instant>,
    interner: Interner,
    /// What a record weighed on average in the last page that had one.
    average: Option<usize>,
    /// The next page, if it has been asked for.
    ahead: Option<Ahead>,
    /// If there was nothing to read: the look that comes next, for which nothing newer may be known than it was given for.
    next_look: Option<NextLook>,
}

/// Reads on behind `after`. If the future is dropped, what was remembered of the lane is forgotten, and nothing else.
pub(crate) async fn read(store: &PostgresStore, lease: &Lease, after: &Cursor, limit: PageLimit) -> Work<Page> {
    let session = store.session().await?;
    let position = Position::decode(after)?;
    let mut lane = match store.remembered(lease, &session, after) {
        Some(lane) => lane,
        None => load(store, &session, lease, after, &position).await?,
    };
    let replay = lease.reader.replay.is_some();
    if !replay {
        raise(store, &session, &mut lane).await?;
    }
    let mut gathered = Gathered::new(limit, replay.then(|| Arc::clone(&lease.lane.route)));
    let more = fill(store, &session, lease, &mut lane, &mut gathered).await?;
    lane.average = gathered.average().or(lane.average);
    let reached = lane.rounds.position();
    let keeps_base = store.0.plant.is(Plant::BaseKeptOverLostConnection);
    if has_moved(&position, &reached, store.block_bits()) || !gathered.is_empty() || lane.rebased || keeps_base {
        lane.end = reached.encode();
        lane.rebased = false;
    }
    let ended = replay && lane.rounds.is_between();
    let page = Page { ended, ..gathered.into_page(after.clone(), lane.end.clone(), more) };
    store.remember(lease, lane);
    Ok(page)
}

impl Remembered {
    /// Whether this is what was remembered for exactly this cursor.
    pub(crate) fn is_for(&self, session: &Session, after: &Cursor) -> bool {
        self.session == session.number && self.end == *after
    }
}

/// From the cursor alone.
async fn load(
    store: &PostgresStore,
    session: &Arc<Session>,
    lease: &Lease,
    after: &Cursor,
    position: &Position,
) -> Work<Remembered> {
    if position.session != session.number {
        let persisted = session.newest(&lease.lane.route, lease.lane.number).await?;
        // One that was made by a transaction was persisted by it, before this lease: a fact, though perhaps an old one.
        let is_persisted = persisted
            .is_some_and(|(epoch, cursor)| epoch == lease.epoch.0 && (position.session == 0 || *cursor == *after.0));
        if !is_persisted {
            return Err(Error::fenced().into());
        }
    }
    let mut rebased = false;
    let rounds = if store.0.plant != Plant::None {
        load_wrongly(store, session, position).await?
    } else if lease.reader.replay.is_some() {
        // It reads nothing but what its own target saw, and asks that target of old rows alone.
        Rounds::load(&Position { identity: session.identity, ..position.clone() }, session.number)
    } else if position.identity != session.identity {
        let reason = match position.identity {
            Identity::NOWHERE => "its cursor counts in no cluster",
            _ => "its cursor was made in another cluster or for another table, as before a restore",
        };
        rebase(store, session, lease, position, reason).await?
    } else if has_passed_over(store, session, lease, position).await? {
        rebased = true;
        // A round that was half done may have passed over some as well, so what it has delivered comes again.
        let position = Position { identity: Identity::NOWHERE, target: None, ..position.clone() };
        let reason = "messages lie below what it has read: the log's sequence was set back, and forward again";
        rebase(store, session, lease, &position, reason).await?
    } else {
        Rounds::load(position, session.number)
    };
    store.0.set_back.forget(&lease.lane);
    Ok(Remembered {
        session: session.number,
        end: after.clone(),
        rounds,
        rebased,
        raised_at: None,
        interner: Interner::default(),
        average: None,
        ahead: None,
        next_look: None,
    })
}

/// With a planted mistake.
async fn load_wrongly(store: &PostgresStore, session: &Arc<Session>, position: &Position) -> Work<Rounds> {
    let (mut position, mut number) = (position.clone(), session.number);
    if store.0.plant.is(Plant::PositionWithoutTarget)
        && let Some((target, pos)) = &mut position.target
        && let Some(observed) = session.observe(None, Instant::now(), |_, _| false).await?
    {
        (*target, *pos, position.hi) = (observed.target, observed.last.min(*pos), observed.last);
    }
    if store.0.plant.is(Plant::BaseKeptOverLostConnection) {
        // As if a transaction had made it, and persisted it.
        number = 0;
    }
    Ok(Rounds::load(&Position { identity: session.identity, ..position }, number))
}

/// Whether there are messages that the lane would pass over, because somebody has set the sequence back while nobody looked.
/// Bounded; see [`crate::set_back`]. Who has looked all the time, and has noticed nothing, need not ask.
async fn has_passed_over(store: &PostgresStore, session: &Session, lease: &Lease, position: &Position) -> Work<bool> {
    let Some(passed_over) = PassedOver::of(position, session.identity) else { return Ok(false) };
    let has_noticed = store.0.set_back.by(&lease.lane);
    if position.session == session.number && !has_noticed {
        return Ok(false);
    }
    let millis = if has_noticed { 0 } else { LOOK_MILLIS };
    let look = async |client: &mut Object| {
        let db = Db::begin(client, &store.0.dialect).await?;
        if observe::last(&db).await? < position.hi {
            // It stands back still, and whoever opens a round says so.
            return Ok(false);
        }
        if Origin::of(&db).await?.restored {
            return Ok(has_noticed);
        }
        db.batch(&format!("SET LOCAL statement_timeout = {millis}")).await?;
        match db.query_one(&PassedOver::sql(), &passed_over.parameters()).await {
            Err(fault) if fault.is_cancelled() => Ok(false),
            found => Ok(found?.try_get(0)?),
        }
    };
    store.in_time(PURGE_PATIENCE, look).await
}

/// The cursor counts in another cluster or table, as after a restore, or numbers were drawn below it: everything that was not
/// settled there is delivered, and from then on the cursor counts here. Some of it may have been delivered before; nothing is
/// lost. Told to operators by the audit record.
async fn rebase(
    store: &PostgresStore,
    session: &Session,
    lease: &Lease,
    position: &Position,
    reason: &'static str,
) -> Work<Rounds> {
    let found = session.observe_for_rebase().await?;
    if found.observed.last < found.highest(position) {
        return Err(went_back(store, session, lease, found.observed.last).await?.into());
    }
    let rounds = Rounds::rebase(position, session.identity, session.number, found)
        .map_err(|error| error.with("lane", &lease.lane))?;
    let actor = Actor { name: "postrider".to_owned(), reason: Some(reason.to_owned()) };
    let subject = format!("{} behind record {}", lease.lane, position.hi);
    let note = async |client: &mut Object| {
        let db = Db::begin(client, &store.0.dialect).await?;
        admin::note(&db, &actor, "rebase", &subject).await?;
        db.commit().await
    };
    store.in_time(ANSWER_PATIENCE, note).await?;
    Ok(rounds)
}

/// When the lane is begun anew, it looks thoroughly for what lies below it.
async fn went_back(store: &PostgresStore, session: &Session, lease: &Lease, last: i64) -> Work<Error> {
    store.0.set_back.note(&lease.lane);
    Ok(session.went_back(last).await?.with("lane", &lease.lane))
}

/// Looks, now and then, which of the transactions that have been open for long have drawn nothing so far. Without this
/// the reader is as right, but retention and the scan at the end of such a transaction suffer.
async fn raise(store: &PostgresStore, session: &Session, lane: &mut Remembered) -> Work<()> {
    let now = Instant::now();
    let due = lane.raised_at.is_none_or(|at| now.duration_since(at) >= RAISE_EVERY);
    if !store.raises() || !due || !lane.rounds.is_between() || !lane.rounds.has_stragglers(store.age()) {
        return Ok(());
    }
    lane.raised_at = Some(now);
    lane.next_look = None;
    lane.rounds.raise(&session.watch().await?);
    Ok(())
}

/// Fills the page. Returns whether another read would find more at once.
async fn fill(
    store: &PostgresStore,
    session: &Arc<Session>,
    lease: &Lease,
    lane: &mut Remembered,
    gathered: &mut Gathered,
) -> Work<bool> {
    let Remembered { rounds, interner, average, ahead, next_look, .. } = lane;
    interner.tidy();
    let mut selection = Selection::new(&lease.reader, lease.lane.number, lease.lanes);
    let topics = Arc::new(plain_topics(&lease.reader));
    let takes_all = lease.lanes == 1 && takes_all(&lease.reader);
    let mut budget = Budget { pages: PAGES_MAX, rows: ROWS_MAX };
    let mut opened = false;
    // Ends when a round that was opened here is done, when nothing has ended since, or when page or budget are full.
    loop {
        if rounds.is_between() {
            if opened || lease.reader.replay.is_some() {
                return Ok(false);
            }
            let nothing = |target: &_, last| rounds.has_nothing_for(target, last);
            let Some(observed) = session.observe(next_look.take(), store.0.waker.hinted_at(), nothing).await? else {
                *next_look = Some(session.next_look());
                return Ok(false);
            };
            if rounds.is_beyond(observed.last) {
                return Err(went_back(store, session, lease, observed.last).await?.into());
            }
            rounds.open(observed)?;
            if store.0.plant.is(Plant::IdCursor) {
                rounds.skip_known_numbers();
            }
            opened = true;
            continue;
        }
        gathered.enter(rounds.position());
        while let Some(window) = rounds.window(store.block_bits(), LEAVES) {
            if budget.is_spent() {
                return Ok(true);
            }
            // One more than fits, to know whether there is more.
            let rows = rows_to_ask_for(gathered, *average);
            let size = Size { rows, bytes: gathered.bytes_max() };
            let filter = rounds.filter().expect("in a round");
            let answer = match ahead.take() {
                Some(ahead) => ahead.answer(window, filter, size).await,
                None => None,
            };
            let Found { rows: found, cut, at: found_at } = match answer {
                Some(found) => found?,
                None => session.page(window, filter, &topics, size).await?,
            };
            // A page that is full by number ends before the last row; what is behind is the next one.
            if takes_all && gathered.is_empty() && found.len() == rows && rows == gathered.room() + 1 {
                let window = Window { after: found[rows - 2].try_get(0)?, ..window };
                *ahead = Ahead::ask(session, window, filter, &topics, size).await;
            }
            budget.spend(found.len());
            let is_whole = found.len() < rows && !cut;
            // What was read ahead may have waited for as long as an outage lasts.
            let age = found_at.elapsed();
            let mut at = window.after;
            for row in &found {
                let seq: i64 = row.try_get(0)?;
                assert!(seq > at && seq <= window.end, "a leaf is read in ascending order, inside of its window");
                if let Some(chosen) = selection.choose(row, interner)? {
                    let (topic, name) = (interner.text(chosen.topic).clone(), interner.text(chosen.name).clone());
                    if !gathered.take(row, &chosen, age, topic, name)? {
                        rounds.pass(at);
                        return Ok(true);
                    }
                }
                at = seq;
            }
            rounds.pass(if is_whole { window.end } else { at });
        }
    }
}

/// One more than fits into the page, as far as the sizes of its records are known: from those that it has, or else from the
/// page before, so that a page is usually one statement.
fn rows_to_ask_for(gathered: &Gathered, average: Option<usize>) -> usize {
    let by_weight = gathered.room_by_weight(average).map_or(FIRST_ROWS, |room| room.clamp(16, 4_096));
    gathered.room().min(by_weight) + 1
}

/// What one read may still cost.
struct Budget {
    pages: u32,
    rows: usize,
}

impl Budget {
    fn is_spent(&self) -> bool {
        self.pages == 0 || self.rows == 0
    }

    fn spend(&mut self, rows: usize) {
        self.pages -= 1;
        self.rows = self.rows.saturating_sub(rows);
    }
}

/// Whether a cursor is worth writing although no record was found: it was rebased, numbers were drawn (what took them was
/// passed over), a round was under way, or retention can go on. Never because the base alone has changed: a cursor that is
/// written makes a new transaction, and two idle readers would wake each other for ever.
fn has_moved(from: &Position, to: &Position, block_bits: u32) -> bool {
    from.identity != to.identity
        || to.hi > from.hi
        || from.target != to.target
        || (to.lo() >> block_bits) > (from.lo() >> block_bits)
}
