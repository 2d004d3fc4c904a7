//! The server's clock, where it goes back.
//!
//! All instants are the primary's. The next primary may be behind it, and then what was written lies ahead: a dead owner's lease
//! would not run out for as long as the clocks are apart, and a retry would not come. So whoever meets an instant that is not
//! yet, with its heartbeat, takes it for now: leases then last as long as they were given for, and rows wait as long as they
//! were to wait. Nobody loses a lease by it whose heartbeats arrive, and nothing becomes due before its own time: what an
//! application has scheduled for an instant stays at that instant.

use mongodb::bson::{Document, doc};
use postrider_core::time::Timestamp;

use crate::{
    db::{Db, Update, server_now},
    error::Work,
};

/// Instants of one look are not all asked at the same moment; what is ahead by less is not ahead.
const MICROS_MIN: i64 = 1_000_000;

/// Whether an instant that was written is not yet.
pub(crate) fn is_ahead(written: Timestamp, now: Timestamp) -> bool {
    written.as_micros() > now.as_micros().saturating_add(MICROS_MIN)
}

/// Takes everything that was written ahead of its time for written now. Each is one command, and safe to repeat.
pub(crate) async fn catch_up(db: &mut Db) -> Work<()> {
    let seen = doc! { "seen_at": server_now() };
    db.update("node", Update::many(later("$seen_at", server_now().into()), vec![doc! { "$set": seen }])).await?;

    let ends = doc! { "$add": [server_now(), "$lease_life"] };
    let mut given = later("$expires_at", ends.clone().into());
    given.insert("lease_life", doc! { "$exists": true });
    db.update("lane", Update::many(given, vec![doc! { "$set": { "expires_at": ends } }])).await?;

    // What waits for an instant of the application's goes on waiting for it.
    let mut waiting = later("$set_at", server_now().into());
    let for_a_while = vec![doc! { "state": { "$ne": "scheduled" } }, doc! { "deliver_at": null }];
    waiting.insert("$or", for_a_while);
    let earlier = |field: &str| doc! { "$subtract": [field, { "$subtract": ["$set_at", server_now()] }] };
    let moved = doc! { "due_at": earlier("$due_at"), "wake_at": earlier("$wake_at"), "set_at": server_now() };
    db.update("parked", Update::many(waiting, vec![doc! { "$set": moved }])).await?;
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
    fn a_moment_is_not_ahead() {
        let at = Timestamp::from_micros;
        assert!(!is_ahead(at(5), at(7)) && !is_ahead(at(1_000_000), at(1)), "others ask at other moments");
        assert!(is_ahead(at(1_000_002), at(1)));
    }
}
