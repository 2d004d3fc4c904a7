//! What a doctor finds: facts about a store that an operator should know, each with a cause and a fix.
//!
//! A store looks at itself and at the server or file below it, through
//! [`StoreAdmin::doctor`](crate::admin::StoreAdmin::doctor). It changes nothing, and nobody acts on what it finds but a
//! person: a finding is a sentence about what is, and a sentence about what to do.

use std::{fmt, time::Duration};

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    Note,
    /// It works, but a promise is weaker than it should be, or something is on its way to trouble.
    Warning,
    /// It does not work, or not for long.
    Error,
}

impl Severity {
    /// The lower-case name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One thing that an operator should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A stable name in lower case with hyphens, for alerts and for searching: `fsync-off`.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What it is about: a setting, a process, a table.
    pub subject: String,
    /// What is, and what follows from it. Never payloads or secrets.
    pub detail: String,
    /// What to do about it.
    pub fix: String,
}

impl Finding {
    /// A finding of any severity.
    pub fn new(code: &'static str, severity: Severity, subject: impl Into<String>) -> Self {
        Self { code, severity, subject: subject.into(), detail: String::new(), fix: String::new() }
    }

    /// What is, and what follows from it.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    /// What to do about it.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = fix.into();
        self
    }
}

/// What the stores of this project and the command line find, and what it means. A store of somebody else has codes of
/// its own.
pub const CODES: [(&str, &str); 33] = [
    ("activity-hidden", "the role may not see what others do, so that open transactions stay unseen"),
    ("corrupt", "the file is damaged"),
    ("disk-nearly-full", "the disk has little room left; when it is full, nothing can be enqueued"),
    ("file-nearly-full", "the file nears the size that it may have"),
    ("fsync-off", "a crash of the machine can lose or damage what was committed"),
    ("full-page-writes-off", "a crash of the machine can damage the database"),
    ("history-lost", "the server had forgotten where a lane was, so it was read anew: nothing lost, some came twice"),
    ("history-short", "the server remembers too little for a route that stands still for a day"),
    (
        "idle-replication-slot",
        "a replication slot that nobody reads keeps log files and old rows until the disk is full",
    ),
    ("listen-broken", "hints do not arrive; messages are found by looking, a little later"),
    ("missing-privileges", "the role lacks something that it needs"),
    (
        "no-route",
        "messages are on topics that no route reads: nobody delivers them, and retention removes them when they are old",
    ),
    ("not-durable", "everything in this store ends with the process"),
    ("open-transaction", "a transaction has been open for long"),
    ("pooler", "a pooler gives one session of the server to several connections; the reader needs one of its own"),
    ("prepared-transaction", "a transaction was prepared and neither committed nor rolled back"),
    ("read-only", "transactions of this role or database may write nothing, so a relay cannot run"),
    ("ring-filling", "the slowest route is nearly a whole round of the log's ring behind"),
    ("ring-wrapped", "the log has gone round its ring before the leaves could be emptied; nothing is lost, they grow"),
    (
        "sequence-altered",
        "the numbers of the log are not drawn one by one any more, or went back: no relay reads, or something was left unread",
    ),
    ("standby", "the server is a standby, which takes no writes"),
    ("store-corrupt", "what is there is no database, or a broken one"),
    ("store-failed", "the store could be reached and failed"),
    ("store-locked", "another connection keeps a lock that others wait for; on SQLite the only write lock"),
    ("store-missing", "there is no such database yet, or its path is mistyped"),
    ("store-refused", "the store refuses us, or its schema is of another version"),
    ("store-unreachable", "the store cannot be reached"),
    ("synchronous-commit-off", "a crash of the server can take back what was committed"),
    ("tls-off", "what is said to the server can be read on the way"),
    (
        "transactions-long",
        "the server lets transactions be open for longer than a scan of the collection reaches back, should it have to",
    ),
    ("trigger-missing", "the trigger that notes new messages is gone: what is enqueued without it is never read"),
    ("unnoted-messages", "the trigger has missed messages, so nobody reads them"),
    ("viewer", "the role may look and change nothing, so a relay cannot run with it"),
];

/// From where on something is worth telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Transactions that have been open for longer hold something back. Default one minute.
    pub transaction_age: Duration,
    /// Less free disk space than this is too little, where the store can see the disk. Default 256 MiB.
    pub disk_free_bytes: u64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { transaction_age: Duration::from_secs(60), disk_free_bytes: 256 << 20 }
    }
}

/// Characters of a statement that are shown at most.
const STATEMENT_CHARS_MAX: usize = 160;

/// Somebody else's statement, for people: on one line, no longer than is needed to know it again, and only as far as its first
/// literal, which stands in one of these quotes: it may be a payload or a secret. Who writes parameters is shown whole.
#[must_use]
pub fn shown_statement(text: &str, quotes: &[char]) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // Text between dollar signs is a literal of PostgreSQL; `$1` is a parameter.
    let dollar =
        line.match_indices('$').map(|(at, _)| at).find(|at| !line[at + 1..].starts_with(|c: char| c.is_ascii_digit()));
    let quote = line.find(quotes);
    let literal = [dollar, quote].into_iter().flatten().min();
    let long = line.char_indices().nth(STATEMENT_CHARS_MAX).map(|(end, _)| end);
    match [literal, long].into_iter().flatten().min() {
        Some(end) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_is_the_greatest() {
        assert_eq!([Severity::Warning, Severity::Error, Severity::Note].into_iter().max(), Some(Severity::Error));
    }

    #[test]
    fn a_statement_is_shown_as_far_as_its_first_literal() {
        for (statement, shown) in [
            ("INSERT INTO orders\n  VALUES ($1, $2)", "INSERT INTO orders VALUES ($1, $2)"),
            ("SELECT enqueue(topic => 'orders', payload => 'secret')", "SELECT enqueue(topic => …"),
            ("SELECT enqueue($tag$secret$tag$)", "SELECT enqueue(…"),
            ("INSERT INTO log VALUES (\"secret\")", "INSERT INTO log VALUES (…"),
            ("", ""),
        ] {
            assert_eq!(shown_statement(statement, &['\'', '"']), shown);
        }
        let long = shown_statement(&"x".repeat(1000), &[]);
        assert_eq!(long.chars().count(), STATEMENT_CHARS_MAX + 1);
    }
}
