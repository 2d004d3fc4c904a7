//! [`Sqlite`]: the names of the tables and the clock. The small thing that an outbox needs to know of a store.
//!
//! It holds no connection, so an application can enqueue without opening the store. Statements are written with `{p}` in
//! place of the tables' prefix; this is where they get their names.

use std::{fmt, path::Path, sync::Arc};

use postrider_core::{Error, Result, time::Timestamp};

use crate::enlist::Inserts;

/// Where the store's time comes from. See [`Builder::clock`](crate::Builder::clock).
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The prefix of all tables unless another one is chosen.
pub const PREFIX: &str = "postrider_";

/// The longest prefix.
pub const PREFIX_BYTES_MAX: usize = 48;

/// The `S` of [`Enlist<S>`](postrider_core::enlist::Enlist) for SQLite. Cheap to clone.
///
/// ```
/// use postrider_store_sqlite::Sqlite;
/// let sqlite = Sqlite::default();
/// assert_eq!(sqlite.prefix(), "postrider_");
/// assert!(Sqlite::with_prefix("shop; drop table").is_err());
/// ```
#[derive(Clone)]
pub struct Sqlite {
    shared: Arc<Inner>,
    file: Option<Arc<str>>,
}

struct Inner {
    prefix: String,
    clock: Clock,
    inserts: Inserts,
}

impl Sqlite {
    /// Tables with another prefix.
    ///
    /// # Errors
    /// If it is not an identifier: a letter or `_`, then letters, digits and `_`, at most [`PREFIX_BYTES_MAX`] bytes, and
    /// not `sqlite_`, which SQLite keeps for itself.
    pub fn with_prefix(prefix: &str) -> Result<Self> {
        Self::new(prefix, Arc::new(Timestamp::now))
    }

    pub(crate) fn new(prefix: &str, clock: Clock) -> Result<Self> {
        let letters = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let identifier = prefix.len() <= PREFIX_BYTES_MAX
            && prefix.bytes().all(letters)
            && prefix.bytes().next().is_some_and(|first| !first.is_ascii_digit());
        if !identifier || prefix.to_ascii_lowercase().starts_with("sqlite_") {
            return Err(Error::invalid("a table prefix is a letter or `_`, then letters, digits and `_`")
                .with("prefix", prefix.escape_debug().to_string().chars().take(80).collect::<String>())
                .with("bytes_max", PREFIX_BYTES_MAX));
        }
        let shared = Inner { prefix: prefix.to_owned(), clock, inserts: Inserts::new(prefix) };
        Ok(Self { shared: Arc::new(shared), file: None })
    }

    /// The file to name in errors, as its user wrote it. The one that [`SqliteStore::dialect`](crate::SqliteStore::dialect)
    /// returns has it already; without it, an error of an enqueue names the file as SQLite knows it, by its full path.
    #[must_use]
    pub fn in_file(mut self, path: impl AsRef<Path>) -> Self {
        self.file = Some(path.as_ref().display().to_string().into());
        self
    }

    /// The file, if it was named.
    pub(crate) fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// The prefix of all tables.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.shared.prefix
    }

    /// The instant by the store's clock. The one door through which time enters this crate.
    pub(crate) fn now(&self) -> Timestamp {
        (self.shared.clock)()
    }

    /// The rendered statements of an enqueue.
    pub(crate) fn inserts(&self) -> &Inserts {
        &self.shared.inserts
    }

    /// Puts the tables' prefix into a statement.
    pub(crate) fn render(&self, sql: &str) -> String {
        sql.replace("{p}", &self.shared.prefix)
    }
}

impl Default for Sqlite {
    fn default() -> Self {
        Self::with_prefix(PREFIX).expect("the default prefix is an identifier")
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("prefix", &self.shared.prefix).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_identifiers_are_prefixes() {
        for good in ["postrider_", "_", "Shop1_"] {
            assert!(Sqlite::with_prefix(good).is_ok(), "{good}");
        }
        for bad in ["", "1a", "a-b", "a b", "größe_", "x\"", "sqlite_", "SQLITE_x", &"a".repeat(49)] {
            assert!(Sqlite::with_prefix(bad).is_err(), "{bad:?}");
        }
    }
}
