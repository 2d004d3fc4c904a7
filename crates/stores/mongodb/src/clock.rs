//! The server's clock, where it leaps ahead and where it goes back.
//!
//! All instants are the primary's. The next primary may be ahead of it, and then leases are over whose owners live. So a process
//! remembers how far the clock has gone since it was last told ([`Pace`]), by its own, which counts from nowhere: if it has leapt,
//! no lease is taken from its owner for as long as that lease lasts. Whoever lives sends a heartbeat within that time, and whoever
//! cannot has stopped by itself.
//!
//! Or the next primary is behind, and then what was written lies ahead: a dead owner's lease would not run out for as long as
//! the clocks are apart, and a retry would not come. So whoever meets an instant that is not yet, with its heartbeat, takes it
//! for now: leases then last as long as they were given for, and rows wait as long as they were to wait. A node asks that of its
//! own last heartbeat too, before it writes the next one, and of the rows when it starts, for it may be the only one that is
//! left to tell. Nobody loses a lease by it whose heartbeats arrive, and nothing becomes due before its own time: what an
//! application has scheduled for an instant stays at that instant.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use mongodb::bson::{Document, doc};
use postrider_core::time::Timestamp;

use crate::{
    db::{Db, Find, Update, server_now},
    error::Work,
    route::Route,
};

/// Instants of one look are not all asked at the same moment; what is ahead by less is not ahead.
const MICROS_MIN: i64 = 1_000_000;

/// What the server's clock may gain on ours, besides a thousandth of the time that has passed. An owner stops a third of its lease
/// early, so less than that does no harm.
const LEAP_MIN: Duration = Duration::from_millis(250);

/// How the server's clock goes, as this process is told.
#[derive(Default)]
pub(crate) struct Pace(Mutex<Told>);

#[derive(Default)]
struct Told {
    /// What it said last, and when it was asked.
    last: Option<(Timestamp, Instant)>,
    leapt_at: Option<Instant>,
}

impl Pace {
    /// Notes an answer that has just come.
    pub(crate) fn note(&self, asked_at: Instant, said: Timestamp) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).hear(asked_at, Instant::now(), said);
    }

    /// Whether it has leapt ahead in the last so long.
    pub(crate) fn has_leapt_within(&self, span: Duration) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).has_leapt_within(span, Instant::now())
    }
}

impl Told {
    /// From the question before to this answer, so that an answer which took its time is no leap.
    fn hear(&mut self, asked_at: Instant, answered_at: Instant, said: Timestamp) {
        if let Some((before, since)) = self.last.replace((said, asked_at)) {
            let passed = answered_at.saturating_duration_since(since);
            if said > before.saturating_add(passed + passed / 1_000 + LEAP_MIN) {
                self.leapt_at = Some(answered_at);
            }
        }
    }

    fn has_leapt_within(&self, span: Duration, now: Instant) -> bool {
        self.leapt_at.is_some_and(|leapt_at| now.saturating_duration_since(leapt_at) < span)
    }
}

/// Whether an instant that was written is not yet.
pub(crate) fn is_ahead(written: Timestamp, now: Timestamp) -> bool {
    written.as_micros() > now.as_micros().saturating_add(MICROS_MIN)
}

/// The same as an expression, of a field that may be missing.
pub(crate) fn was_ahead(field: &str) -> Document {
    doc! { "$gt": [{ "$ifNull": [field, 0_i64] }, { "$add": [server_now(), MICROS_MIN] }] }
}

/// Whether a row that waits for time was set to wait ahead of its time. One short range of an index for each route.
pub(crate) async fn rows_are_ahead(db: &mut Db) -> Work<bool> {
    let now = db.now().await?.as_micros();
    let routes: Vec<String> = Route::all(db).await?.into_keys().map(|name| name.to_string()).collect();
    let waiting = doc! {
        "route": { "$in": routes },
        "in_line": { "$in": [true, false] },
        "wake_at": { "$gt": now },
        "set_at": { "$gt": now.saturating_add(MICROS_MIN) },
    };
    Ok(!db.find("parked", Find::new(waiting).limit(1).fields(doc! { "_id": 1 })).await?.is_empty())
}

/// Takes everything that was written ahead of its time for written now. Each is one command, and safe to repeat; what tells that
/// it is needed goes last.
pub(crate) async fn catch_up(db: &mut Db) -> Work<()> {
    // What waits for an instant of the application's goes on waiting for it.
    let mut waiting = later("$set_at", server_now().into());
    let for_a_while = vec![doc! { "state": { "$ne": "scheduled" } }, doc! { "deliver_at": null }];
    waiting.insert("$or", for_a_while);
    let earlier = |field: &str| doc! { "$subtract": [field, { "$subtract": ["$set_at", server_now()] }] };
    let moved = doc! { "due_at": earlier("$due_at"), "wake_at": earlier("$wake_at"), "set_at": server_now() };
    db.update("parked", Update::many(waiting, vec![doc! { "$set": moved }])).await?;

    let ends = doc! { "$add": [server_now(), "$lease_life"] };
    let mut given = later("$expires_at", ends.clone().into());
    given.insert("lease_life", doc! { "$exists": true });
    db.update("lane", Update::many(given, vec![doc! { "$set": { "expires_at": ends } }])).await?;

    let seen = doc! { "seen_at": server_now() };
    db.update("node", Update::many(later("$seen_at", server_now().into()), vec![doc! { "$set": seen }])).await?;
    db.update("node", Update::many(doc! { "ahead": true }, doc! { "$unset": { "ahead": "" } })).await?;
    Ok(())
}

/// Where a field is later than something.
fn later(field: &str, than: mongodb::bson::Bson) -> Document {
    doc! { "$expr": { "$gt": [field, than] } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_leaps_is_noticed_and_one_that_goes_is_not() {
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let at = |seconds: u64| Timestamp::from_micros(0).saturating_add(second * u32::try_from(seconds).unwrap());
        let mut told = Told::default();
        let mut hear = |asked: u32, answered: u32, said: u64| {
            told.hear(begin + second * asked, begin + second * answered, at(said));
            told.has_leapt_within(second * 15, begin + second * answered)
        };
        assert!(!hear(0, 0, 1_000), "nothing is known of it");
        assert!(!hear(5, 5, 1_005));
        assert!(!hear(6, 20, 1_019), "an answer that took its time");
        assert!(!hear(25, 25, 990), "it has gone back");
        assert!(hear(30, 30, 4_595));
        assert!(hear(40, 40, 4_605), "it goes on from there");
        assert!(!hear(46, 46, 4_611), "everybody has had the time to say that it lives");
    }

    #[test]
    fn a_moment_is_not_ahead() {
        let at = Timestamp::from_micros;
        assert!(!is_ahead(at(5), at(7)) && !is_ahead(at(1_000_000), at(1)), "others ask at other moments");
        assert!(is_ahead(at(1_000_002), at(1)));
    }
}
