//! [`Mysql`]: the names of the tables. The small thing that an outbox needs to know of a store.
//!
//! It holds no connection, so an application can enqueue without opening the store. Statements are written with `{p}` in
//! place of the tables' prefix; this is where they get their names. The database is that of the connection.

use std::{fmt, sync::Arc};

use postrider_core::{Error, Result};

use crate::enlist::Inserts;

/// The prefix of all tables unless another one is chosen.
pub const PREFIX: &str = "postrider_";

/// The longest prefix: every name of ours still fits behind it.
pub const PREFIX_BYTES_MAX: usize = 48;

/// The `S` of [`Enlist<S>`](postrider_core::enlist::Enlist) for MariaDB and MySQL. Cheap to clone.
///
/// ```
/// use postrider_store_mysql::Mysql;
/// assert_eq!(Mysql::default().prefix(), "postrider_");
/// assert!(Mysql::with_prefix("shop; drop table").is_err());
/// ```
#[derive(Clone)]
pub struct Mysql(Arc<Inner>);

struct Inner {
    prefix: String,
    inserts: Inserts,
}

impl Mysql {
    /// Tables with another prefix.
    ///
    /// # Errors
    /// If it is not an identifier: a letter or `_`, then letters, digits and `_`, at most [`PREFIX_BYTES_MAX`] bytes.
    pub fn with_prefix(prefix: &str) -> Result<Self> {
        let letters = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let identifier = prefix.len() <= PREFIX_BYTES_MAX
            && prefix.bytes().all(letters)
            && prefix.bytes().next().is_some_and(|first| !first.is_ascii_digit());
        if !identifier {
            return Err(Error::invalid("a table prefix is a letter or `_`, then letters, digits and `_`")
                .with("prefix", prefix.escape_debug().to_string().chars().take(80).collect::<String>())
                .with("bytes_max", PREFIX_BYTES_MAX));
        }
        Ok(Self(Arc::new(Inner { prefix: prefix.to_owned(), inserts: Inserts::new(prefix) })))
    }

    /// The prefix of all tables.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// The rendered statements of an enqueue.
    pub(crate) fn inserts(&self) -> &Inserts {
        &self.0.inserts
    }

    /// Puts the tables' prefix into a statement.
    pub(crate) fn render(&self, sql: &str) -> String {
        sql.replace("{p}", &self.0.prefix)
    }
}

impl Default for Mysql {
    fn default() -> Self {
        Self::with_prefix(PREFIX).expect("the default prefix is an identifier")
    }
}

impl fmt::Debug for Mysql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mysql").field("prefix", &self.0.prefix).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_identifiers_are_prefixes() {
        for good in ["postrider_", "_", "Shop1_"] {
            assert!(Mysql::with_prefix(good).is_ok(), "{good}");
        }
        for bad in ["", "1a", "a-b", "a b", "größe_", "x`", &"a".repeat(49)] {
            assert!(Mysql::with_prefix(bad).is_err(), "{bad:?}");
        }
    }
}
