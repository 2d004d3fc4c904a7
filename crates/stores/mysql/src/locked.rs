//! Locks that others have: how long an operator's change waits for one, and who is named then.
//!
//! A transaction that somebody has left open stops all who write to the same rows, and whoever changes a table it has read.
//! People act because something stands still, and must not stand still for long themselves. Whoever is in the way is asked
//! for while the wait lasts, on a connection of its own: once it was given up, nobody waits any more, and the server could
//! not tell for whom.

use std::{convert::Infallible, time::Duration};

use postrider_core::{Error, ErrorKind, doctor::Finding};

use crate::{admin::holder, db::Db, error::Work};

/// How often it is asked who is in the way: often enough to know before any patience ends.
const ASKED_EVERY: Duration = Duration::from_secs(3);

/// Does a piece of work, and names whoever had a lock that was not to be had in time. `operation` is what was being done;
/// `connect` gives a connection beside the one that waits.
pub(crate) async fn told<T, Connecting: Future<Output = Work<Db>>>(
    operation: &'static str,
    connect: impl Fn() -> Connecting,
    work: impl Future<Output = Work<T>>,
) -> Work<T> {
    let mut found = None;
    let outcome = tokio::select! {
        outcome = work => outcome,
        never = watch(connect, &mut found) => match never {},
    };
    match (outcome, found) {
        (Err(fault), Some(Finding { code, detail, fix, .. })) if fault.is_lock_timeout() => {
            let told = format!("{code}: {detail}; {fix}");
            Err(Error::new(ErrorKind::Unavailable, told).caused_by(fault.into_error(operation)).into())
        }
        (outcome, _) => outcome,
    }
}

/// Ends when it is dropped. Where it cannot be seen who waits for whom, nobody is found.
async fn watch<Connecting: Future<Output = Work<Db>>>(
    connect: impl Fn() -> Connecting,
    found: &mut Option<Finding>,
) -> Infallible {
    loop {
        tokio::time::sleep(ASKED_EVERY).await;
        let Ok(mut db) = connect().await else { continue };
        if let Ok(Some(holder)) = holder(&mut db).await {
            *found = Some(holder);
        }
    }
}
