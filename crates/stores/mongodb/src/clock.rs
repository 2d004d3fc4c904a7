//! The server's clock, where it goes back.
//!
//! All instants are the primary's. The next primary may be behind it, and then what was written lies ahead: a dead owner's lease
//! would not run out for as long as the clocks are apart, and a retry would not come. So whoever meets an instant that is not
//! yet, with its heartbeat, takes it for now: leases then last as long as they were given for, and rows wait as long as they
//! were to wait. A node asks that of its own last heartbeat too, before it writes the next one, and of the rows when it
//! starts, for it may be the only one that is left to tell. Nobody loses a lease by it whose heartbeats arrive, and nothing
//! becomes due before its own time: what an application has scheduled for an instant stays at that instant.

use mongodb::bson::{Document, doc};
use postrider_core::time::Timestamp;

use crate::{
    db::{Db, Find, Update, server_now},
    error::Work,
    route::Route,
};

/// Instants of one look are not all asked at the same moment; what is ahead by less is not ahead.
const MICROS_MIN: i64 = 1_000_000;

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
    fn a_moment_is_not_ahead() {
        let at = Timestamp::from_micros;
        assert!(!is_ahead(at(5), at(7)) && !is_ahead(at(1_000_000), at(1)), "others ask at other moments");
        assert!(is_ahead(at(1_000_002), at(1)));
    }
}
