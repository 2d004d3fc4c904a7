//! [`Postgres`]: the names of the tables. The small thing that an outbox needs to know of a store.
//!
//! It holds no connection, so an application can enqueue without opening the store. Statements are written with a table's
//! name in braces, `{log}`; this is where it becomes `"schema"."prefix_log"`. Names are checked to be identifiers *and*
//! quoted, so nothing that a setting says can become SQL.

use std::{fmt, sync::Arc};

use postrider_core::{Error, Result};

use crate::enlist::{self, Shape};

/// The schema unless another one is chosen.
pub const SCHEMA: &str = "postrider";

/// PostgreSQL cuts longer identifiers.
pub const SCHEMA_BYTES_MAX: usize = 63;

/// The longest prefix: every name of ours still fits behind it.
pub const PREFIX_BYTES_MAX: usize = 40;

/// How many leaves the ring has. Part of the storage format.
pub(crate) const LEAVES: usize = 8;

/// The `S` of [`Enlist<S>`](postrider_core::enlist::Enlist) for PostgreSQL. Cheap to clone.
///
/// ```
/// use postrider_store_postgres::Postgres;
/// assert_eq!(Postgres::default().schema(), "postrider");
/// assert!(Postgres::new("shop; drop table", "").is_err());
/// ```
#[derive(Clone)]
pub struct Postgres(Arc<Inner>);

struct Inner {
    schema: String,
    prefix: String,
    insert: String,
    #[cfg_attr(not(feature = "sea-orm"), allow(dead_code, reason = "SeaORM alone binds no nulls"))]
    insert_marked: String,
    insert_one: String,
    insert_plain: String,
}

impl Postgres {
    /// Tables in a schema, with a prefix that may be empty.
    ///
    /// # Errors
    /// If one of them is not an identifier: a letter or `_`, then letters, digits, `_` and `-`, at most [`SCHEMA_BYTES_MAX`] and
    /// [`PREFIX_BYTES_MAX`] bytes; or if the schema begins with `pg_`, which PostgreSQL keeps for itself.
    pub fn new(schema: &str, prefix: &str) -> Result<Self> {
        if schema.is_empty() || schema.starts_with("pg_") || !is_identifier(schema, SCHEMA_BYTES_MAX) {
            return Err(refused("a schema", "schema", schema, SCHEMA_BYTES_MAX));
        }
        if !is_identifier(prefix, PREFIX_BYTES_MAX) {
            return Err(refused("a table prefix", "prefix", prefix, PREFIX_BYTES_MAX));
        }
        let insert = render(enlist::INSERT, schema, prefix);
        let insert_marked = enlist::insert_marked(&render("{log}", schema, prefix));
        let insert_one = render(enlist::INSERT_ONE, schema, prefix);
        let insert_plain = render(enlist::INSERT_PLAIN, schema, prefix);
        let (schema, prefix) = (schema.to_owned(), prefix.to_owned());
        Ok(Self(Arc::new(Inner { schema, prefix, insert, insert_marked, insert_one, insert_plain })))
    }

    /// The schema of all tables.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.0.schema
    }

    /// What the names of all tables begin with.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// The statement of an enqueue.
    pub(crate) fn insert(&self) -> &str {
        &self.0.insert
    }

    /// The same for a client that cannot bind a null inside of an array.
    #[cfg_attr(not(feature = "sea-orm"), allow(dead_code, reason = "SeaORM alone binds no nulls"))]
    pub(crate) fn insert_marked(&self) -> &str {
        &self.0.insert_marked
    }

    /// The statement for a batch of this shape.
    pub(crate) fn insert_of(&self, shape: Shape) -> &str {
        match shape {
            Shape::Plain => &self.0.insert_plain,
            Shape::One => &self.0.insert_one,
            Shape::Many => &self.0.insert,
        }
    }

    /// Puts the tables' names into a statement: `{log}` with its schema, `{=log}` without, `{schema}` the schema itself.
    pub(crate) fn render(&self, sql: &str) -> String {
        render(sql, &self.0.schema, &self.0.prefix)
    }

    /// The channel on which commits are announced.
    pub(crate) fn channel(&self) -> String {
        format!("{}.{}log", self.0.schema, self.0.prefix)
    }

    /// A number for an advisory lock on something of this store. Two stores in one database have different ones.
    pub(crate) fn lock(&self, what: &str, name: &str) -> i64 {
        let text = format!("postrider\0{}\0{}\0{what}\0{name}", self.0.schema, self.0.prefix);
        xxhash_rust::xxh3::xxh3_64(text.as_bytes()).cast_signed()
    }
}

fn is_identifier(name: &str, bytes_max: usize) -> bool {
    let letters = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    let first = name.bytes().next();
    name.len() <= bytes_max && name.bytes().all(letters) && !first.is_some_and(|b| b.is_ascii_digit() || b == b'-')
}

fn refused(what: &str, fact: &'static str, name: &str, bytes_max: usize) -> Error {
    Error::invalid(format!("{what} is a letter or `_`, then letters, digits, `_` and `-`"))
        .with(fact, name.escape_debug().to_string().chars().take(80).collect::<String>())
        .with("bytes_max", bytes_max)
}

fn render(sql: &str, schema: &str, prefix: &str) -> String {
    let mut out = String::with_capacity(sql.len() + 64);
    let mut rest = sql;
    while let Some((before, behind)) = rest.split_once('{') {
        let (name, behind) = behind.split_once('}').expect("a brace in a statement is closed");
        out.push_str(before);
        match name.strip_prefix('=') {
            _ if name == "schema" => out.push_str(&format!("\"{schema}\"")),
            Some(name) => out.push_str(&format!("\"{prefix}{name}\"")),
            None => out.push_str(&format!("\"{schema}\".\"{prefix}{name}\"")),
        }
        rest = behind;
    }
    out.push_str(rest);
    out
}

impl Default for Postgres {
    fn default() -> Self {
        Self::new(SCHEMA, "").expect("the default names are identifiers")
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("schema", &self.0.schema).field("prefix", &self.0.prefix).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_identifiers_are_names() {
        for (schema, prefix) in [("postrider", ""), ("_", "_"), ("Shop1", "x_"), ("Order-Box", "a-")] {
            assert!(Postgres::new(schema, prefix).is_ok(), "{schema} {prefix}");
        }
        let long = "a".repeat(64);
        for schema in ["", "1a", "-a", "a b", "größe", "x\"", "pg_temp", &long] {
            assert!(Postgres::new(schema, "").is_err(), "{schema:?}");
        }
        for prefix in ["1", "a.b", "a\"", &long[..41]] {
            assert!(Postgres::new("s", prefix).is_err(), "{prefix:?}");
        }
    }

    #[test]
    fn names_are_quoted() {
        let dialect = Postgres::new("Shop", "x_").unwrap();
        assert_eq!(
            dialect.render("SELECT 1 FROM {log}; CREATE INDEX {=a} ON {schema}.b"),
            "SELECT 1 FROM \"Shop\".\"x_log\"; CREATE INDEX \"x_a\" ON \"Shop\".b"
        );
    }
}
