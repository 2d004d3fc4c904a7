//! Up to which place a crash of the server takes nothing back.
//!
//! InnoDB shows a commit to others before it is on the disk; only whoever committed waits for that. So a reader may see a place
//! that somebody else has given, and the message behind it, a moment before both are safe. Were it published then and the
//! server killed, there would be a message of a transaction that never was. (Commits that go to a binary log which is written
//! through are on the disk before anybody sees them; [`crate::db::Standing`] tells.)
//!
//! What is written is written in the order of commits. So once a commit of our own is answered, everything that was seen
//! before it is safe. Whoever orders commits anyway, and notes how far that was. Whoever reads what others have ordered writes
//! a row that nobody reads, once for all that it has seen, and for whoever waits for the same beside it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{
    db::Db,
    error::{Work, corrupt},
    identity::Identity,
};

/// It must be written in earnest: a commit that changes nothing waits for nothing.
const BARRIER: &str = "UPDATE {p}counter SET value = value + 1 WHERE name = 'barrier'";

/// What this process knows of the server that it has talked to last.
#[derive(Debug, Default)]
pub(crate) struct Durable {
    marks: Mutex<Marks>,
    /// One at a time commits to learn more; the others wait, and mostly need not any more.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Marks {
    server: Option<Identity>,
    /// Up to this place everything is safe.
    durable: i64,
    /// Up to this place somebody has seen it.
    seen: i64,
}

impl Durable {
    /// Commits the transaction that has given places up to this one.
    pub(crate) async fn commit(&self, db: Db, last: i64) -> Work<()> {
        // Whoever reads them meanwhile waits for this commit, and makes none.
        let _turn = self.turn.lock().await;
        let server = db.server().clone();
        db.commit().await?;
        let mut marks = self.of(&server);
        marks.durable = marks.durable.max(last);
        Ok(())
    }

    /// Returns when everything up to this place is safe. `seen` is the last place that was seen, which is not less. If the future
    /// is dropped, others do not know of it, and do it again.
    pub(crate) async fn wait(&self, db: &mut Db, place: i64, seen: i64) -> Work<()> {
        let server = db.server().clone();
        if !self.misses(&server, place, seen) {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        if !self.misses(&server, place, seen) {
            return Ok(());
        }
        let seen = self.of(&server).seen;
        if db.execute(BARRIER, Vec::new()).await? == 0 {
            return Err(corrupt("the row that is written to wait for the disk is not there").into());
        }
        let mut marks = self.of(&server);
        marks.durable = marks.durable.max(seen);
        Ok(())
    }

    /// Whether the place is not known to be safe.
    fn misses(&self, server: &Identity, place: i64, seen: i64) -> bool {
        let mut marks = self.of(server);
        marks.seen = marks.seen.max(seen).max(place);
        marks.durable < place
    }

    /// Another server, or the same one after a start, may have lost what was known to be safe on the one before.
    fn of(&self, server: &Identity) -> MutexGuard<'_, Marks> {
        // Nothing that is done under the lock leaves it half done.
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        if marks.server.as_ref() != Some(server) {
            *marks = Marks { server: Some(server.clone()), ..Marks::default() };
        }
        marks
    }
}
