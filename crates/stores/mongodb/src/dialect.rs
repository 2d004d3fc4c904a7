//! [`Mongo`]: where the collections are and what they are called. The small thing that an outbox needs to know of a store.
//!
//! It holds no connection: an application enqueues with the session of its own client.

use std::{fmt, sync::Arc};

use postrider_core::{Error, Result};

/// The prefix of all collections unless another one is chosen.
pub const PREFIX: &str = "postrider_";

/// The longest prefix.
pub const PREFIX_BYTES_MAX: usize = 48;

/// The longest name of a database, as the server has it.
const DATABASE_BYTES_MAX: usize = 63;

/// The `S` of [`Enlist<S>`](postrider_core::enlist::Enlist) for MongoDB. Cheap to clone.
///
/// ```
/// use postrider_store_mongodb::Mongo;
/// assert_eq!(Mongo::new("shop")?.prefix(), "postrider_");
/// assert!(Mongo::with_prefix("shop", "$where").is_err());
/// # Ok::<(), postrider_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Mongo(Arc<Inner>);

struct Inner {
    database: String,
    prefix: String,
    log: String,
}

impl Mongo {
    /// Collections with the default prefix in a database.
    ///
    /// # Errors
    /// As [`Self::with_prefix`].
    pub fn new(database: &str) -> Result<Self> {
        Self::with_prefix(database, PREFIX)
    }

    /// Collections with another prefix.
    ///
    /// # Errors
    /// If the prefix is not a letter or `_` and then letters, digits, `_` and `-`, at most [`PREFIX_BYTES_MAX`] bytes; or
    /// if the server would not take the database's name.
    pub fn with_prefix(database: &str, prefix: &str) -> Result<Self> {
        let shown = |text: &str| text.escape_debug().to_string().chars().take(80).collect::<String>();
        let letters = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        let good = prefix.len() <= PREFIX_BYTES_MAX
            && prefix.bytes().all(letters)
            && prefix.bytes().next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_');
        if !good {
            return Err(Error::invalid("a collection prefix is a letter or `_`, then letters, digits, `_` and `-`")
                .with("prefix", shown(prefix))
                .with("bytes_max", PREFIX_BYTES_MAX));
        }
        let forbidden = |c: char| "/\\. \"$*<>:|?\0".contains(c);
        if database.is_empty() || database.len() > DATABASE_BYTES_MAX || database.contains(forbidden) {
            return Err(Error::invalid("a database has a name without spaces, dots, slashes, quotes and `$*<>:|?`")
                .with("database", shown(database))
                .with("bytes_max", DATABASE_BYTES_MAX));
        }
        let log = format!("{prefix}log");
        Ok(Self(Arc::new(Inner { database: database.to_owned(), prefix: prefix.to_owned(), log })))
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.0.database
    }

    /// The prefix of all collections.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// The collection of the messages.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.0.log
    }

    /// The name of one of our collections.
    pub(crate) fn name(&self, collection: &str) -> String {
        format!("{}{collection}", self.0.prefix)
    }
}

impl fmt::Debug for Mongo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mongo").field("database", &self.0.database).field("prefix", &self.0.prefix).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_the_server_takes_are_taken() {
        for good in ["postrider_", "_", "Shop-1_"] {
            assert!(Mongo::with_prefix("shop", good).is_ok(), "{good}");
        }
        for bad in ["", "1a", "a.b", "a b", "größe_", "$x", &"a".repeat(49)] {
            assert!(Mongo::with_prefix("shop", bad).is_err(), "{bad:?}");
        }
        for bad in ["", "a.b", "a/b", "a b", "$a", &"a".repeat(64)] {
            assert!(Mongo::new(bad).is_err(), "{bad:?}");
        }
    }
}
