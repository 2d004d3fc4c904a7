//! Why a message waits, or a route stands still: the cause by name, and what to do about it.
//!
//! Everything is read from the store, so that it can be asked from anywhere and also when no relay runs. What only a
//! relay's memory knows (a destination that refuses, a message without an answer) its node has said with its last
//! heartbeat. The same words are used by the command line and by whoever shows an
//! [`Overview`](postrider_core::admin::Overview).

mod left;
mod message;
mod obstacle;
mod survey;
mod topics;
mod walk;

use std::{fmt, time::Duration};

use postrider_core::{Result, admin::StoreAdmin, envelope::MessageId, parked::DESTINATION_UNAVAILABLE};
use serde::Serialize;

pub use self::{
    left::undelivered,
    obstacle::{Obstacle, obstacles},
    survey::{survey, unrouted},
    topics::Topics,
};

/// One reason, for one route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The route that it is about; `None`: about the message as such.
    pub route: Option<String>,
    /// A short stable name: `paused`, `no-relay`, `held`, …
    pub code: &'static str,
    /// What is the case, as a sentence.
    pub what: String,
    /// What to do about it, if anything.
    pub fix: Option<String>,
}

/// The code of a finding that the store itself fails a lane: whatever else is told of that route may not be so.
pub const STORE_FAILS: &str = "store-fails";

/// Every code that a [`Finding`] can have, and what it means.
pub const CODES: [(&str, &str); 29] = [
    ("passed", "the route has passed it: delivered, unless the route did not read its topic then"),
    ("discarded", "an operator gave it up for good; by whom and why"),
    (
        "perhaps-discarded",
        "the route has passed it, and messages were given up since then by an older program, which did not note which, or on \
         which route: it was delivered, or was one of them",
    ),
    (
        "perhaps-passed-over",
        "the route has passed it, and did not read its topic yet when it was enqueued: nobody delivered it, unless the route was \
         that far behind",
    ),
    ("under-way", "nothing is wrong; it has not been its turn yet"),
    ("unknown", "it is not in the store: not committed, rolled back, or delivered and removed by retention"),
    ("open-transaction", "a transaction is open that has written something: what it enqueued is seen by nobody yet"),
    ("activity-hidden", "open transactions may be missed: the store hides from this role what others do"),
    ("no-route", "no route reads its topic"),
    (
        "topics-in-part",
        "only the oldest records were looked at for topics that no route reads: the log is larger than this look could see",
    ),
    ("no-relay", "no relay is alive on this store"),
    ("not-served", "relays are alive, but none has this route in its configuration"),
    ("store-locked", "another connection keeps a lock that the relays wait for; on SQLite the only write lock"),
    ("unowned", "a lane has no owner at the moment"),
    (
        "silent",
        "the relay that owns a lane has not been heard of for a while; another may take the lane when its lease ends",
    ),
    ("paused", "an operator has paused the route; by whom and why"),
    ("unavailable", "the destination takes nothing; no attempts are counted"),
    ("throttled", "the destination asked for a pause"),
    ("limit", "a named limit keeps the cursor where it is"),
    (STORE_FAILS, "the store fails the relay: the log cannot be read, or not be settled"),
    ("waits-for", "the lane waits for another message, which is named"),
    ("standstill", "the relay says something that this program does not know: it is newer"),
    ("attempted", "a relay has it: it waits for an answer, or for its next attempt"),
    ("scheduled", "it waits for its time"),
    ("redriven", "an operator has put it back; by whom, and what it was given up for"),
    ("retrying", "it was refused; how often, why, and when it goes again"),
    (
        DESTINATION_UNAVAILABLE,
        "the topic, queue or stream that it goes to takes nothing, others of the route do; no attempts are counted",
    ),
    ("held", "it is held behind another message of its key, which is named"),
    ("dead", "it was given up and waits for an operator"),
];

impl Finding {
    fn of(route: &str, code: &'static str, what: impl Into<String>) -> Self {
        debug_assert!(CODES.iter().any(|(known, _)| *known == code), "{code} is not in the table");
        Self { route: Some(route.to_owned()), code, what: what.into(), fix: None }
    }

    /// While nobody can write to the store, no relay can say that it is alive: what follows from its silence is not sure.
    fn while_locked(self) -> Self {
        if !["no-relay", "not-served", "unowned", "silent"].contains(&self.code) {
            return self;
        }
        let what =
            format!("{}, as far as can be told: no relay can renew its lease while the store is locked", self.what);
        Self { what, ..self }.fix("free the lock first; a relay that runs goes on by itself then")
    }

    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(route) = &self.route {
            write!(f, "{route}: ")?;
        }
        write!(f, "{}", self.what)
    }
}

const PASSED: &str = "passed";
const DISCARDED: &str = "discarded";
const PERHAPS_DISCARDED: &str = "perhaps-discarded";
const PERHAPS_PASSED_OVER: &str = "perhaps-passed-over";

/// Codes of findings about a route that has nothing more to do with the message.
const OVER: [&str; 4] = [PASSED, DISCARDED, PERHAPS_DISCARDED, PERHAPS_PASSED_OVER];

/// Codes of findings that mean: nothing waits here, and nobody gave it up.
pub const DONE: [&str; 1] = [PASSED];

/// Why this message waits, route by route; the most pressing reason of each first. A route that has passed it says so.
///
/// # Errors
/// If the store cannot be read.
pub async fn why(admin: &dyn StoreAdmin, id: MessageId) -> Result<Vec<Finding>> {
    let mut findings = match look(admin, id).await {
        Ok(findings) => findings,
        Err(error) => return locked(admin).await.map(|finding| vec![finding]).ok_or(error),
    };
    if findings.iter().any(|finding| finding.route.is_some() && !OVER.contains(&finding.code))
        && let Some(blockage) = admin.blockage().await?
    {
        findings = findings.into_iter().map(Finding::while_locked).collect();
        findings.insert(0, survey::blocked(blockage));
    }
    Ok(findings)
}

async fn look(admin: &dyn StoreAdmin, id: MessageId) -> Result<Vec<Finding>> {
    let trace = admin.message(id).await?;
    let overview = admin.overview().await?;
    message::explain(admin, id, &trace, &overview).await
}

/// The lock that keeps everybody from looking at a store, if there is one: for whoever could not look, and would call the
/// store unreachable.
pub async fn locked(admin: &dyn StoreAdmin) -> Option<Finding> {
    admin.blockage().await.ok().flatten().map(survey::blocked)
}

/// `400ms`, `12s`, `5m 3s`, `2h 10m`, `3d 4h`.
#[must_use]
pub fn in_words(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{}ms", span.as_millis()),
        1..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h {}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}
