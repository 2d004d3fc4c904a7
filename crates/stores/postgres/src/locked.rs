//! Locks that others have: how long an operator's change, or opening the store, waits for one, and who is named then.
//!
//! A `LOCK TABLE` or a change of a table's definition that somebody has left open stops all who write, and some of them who
//! only look. People act because something stands still, and must not stand still themselves. Whoever is in the way is
//! asked for while the wait lasts, on a connection of its own: once it was given up, nobody waits any more, and
//! the server could not tell for whom.

use std::{
    convert::Infallible,
    sync::atomic::{AtomicI32, Ordering},
    time::Duration,
};

use postrider_core::{Error, ErrorKind, doctor::Finding};

use crate::{access::Access, admin::blocker_of, db::Db, error::Work};

/// How long a change, or whoever opens the store, waits for one lock.
pub(crate) const LOCK_PATIENCE: &str = "10s";

/// The same for a script that people run, in its transaction: while it waits for a table, all others wait behind it.
pub(crate) const BOUNDED: &str = "SET LOCAL lock_timeout = '10s';\n";

/// The same for whoever finds that somebody else is migrating: that may take long by itself.
pub(crate) const MIGRATION_PATIENCE: &str = "10min";

/// How often it is asked who is in the way: often enough to know before the patience ends.
const ASKED_EVERY: Duration = Duration::from_secs(3);

/// Whoever may have to wait: its session on the server, once it is known.
#[derive(Default)]
pub(crate) struct Waiter(AtomicI32);

impl Waiter {
    /// To the end of this transaction, no lock is waited for for longer than this.
    pub(crate) async fn bound(&self, db: &Db<'_>, patience: &str) -> Work<()> {
        let row = db.query_one("SELECT pg_backend_pid(), set_config('lock_timeout', $1, true)", &[&patience]).await?;
        self.0.store(row.try_get(0)?, Ordering::Relaxed);
        Ok(())
    }

    /// Does a piece of work, and names whoever had a lock that was not to be had in time. `operation` is what was being done.
    pub(crate) async fn tells<T>(
        &self,
        access: &Access,
        operation: &'static str,
        work: impl Future<Output = Work<T>>,
    ) -> Work<T> {
        let mut holder = None;
        let outcome = tokio::select! {
            outcome = work => outcome,
            never = self.watch(access, &mut holder) => match never {},
        };
        match outcome {
            Err(fault) if fault.is_lock_timeout() => Err(error(holder, fault.into_error(operation)).into()),
            outcome => outcome,
        }
    }

    /// Ends when it is dropped.
    async fn watch(&self, access: &Access, holder: &mut Option<Finding>) -> Infallible {
        let mut client = None;
        loop {
            tokio::time::sleep(ASKED_EVERY).await;
            if client.is_none() {
                client = access.client().await.ok();
            }
            let Some(asked) = &client else { continue };
            match blocker_of(asked, self.0.load(Ordering::Relaxed)).await {
                Ok(found) => *holder = found.or(holder.take()),
                Err(_) => client = None,
            }
        }
    }
}

/// That a lock was waited for in vain, with the name of whoever has it, if that is known.
pub(crate) fn error(holder: Option<Finding>, error: Error) -> Error {
    let told = match holder {
        Some(found) => format!("{}: {}; {}", found.code, found.detail, found.fix),
        None => "the store is locked".to_owned(),
    };
    Error::new(ErrorKind::Unavailable, told).caused_by(error)
}
