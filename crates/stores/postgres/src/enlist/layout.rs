//! A batch as one statement: its text, and one array for each of its parameters.
//!
//! Every client library binds the same arrays in its own way. What differs between the tables that an outbox can write to
//! is a [`Layout`]: our own log, or the outbox table of somebody else's router.

use postrider_core::{Result, envelope::Envelope, time::Timestamp};
use uuid::Uuid;

/// A table that batches are written to.
pub(crate) trait Layout: Sync {
    /// The statement, with one array a parameter.
    fn insert(&self) -> &str;

    /// The same for a client that cannot bind a null inside of an array; see [`Kind::unmarked`].
    #[cfg_attr(not(feature = "sea-orm"), allow(dead_code, reason = "SeaORM alone binds no nulls"))]
    fn insert_marked(&self) -> &str;

    /// The arrays of the statement, in the order of its parameters. Envelopes that the table cannot hold are refused.
    fn arrays<'e>(&'e self, batch: &'e [Envelope]) -> Result<Vec<Array<'e>>>;
}

/// The values of one column.
pub(crate) enum Array<'e> {
    Ids(Vec<Uuid>),
    Texts(Vec<Option<&'e str>>),
    OwnedTexts(Vec<Option<String>>),
    Instants(Vec<Option<Timestamp>>),
    Numbers(Vec<Option<i64>>),
    Bytes(Vec<Option<&'e [u8]>>),
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Id,
    Text,
    Instant,
    Number,
    Bytes,
}

/// The mark for "no number" and "no instant". Neither a count of attempts nor an instant that PostgreSQL keeps.
#[cfg(feature = "sea-orm")]
pub(crate) const NO_NUMBER: i64 = i64::MIN;

impl Kind {
    fn array(self) -> &'static str {
        match self {
            Self::Id => "uuid[]",
            Self::Text => "text[]",
            Self::Instant => "timestamptz[]",
            Self::Number => "bigint[]",
            Self::Bytes => "bytea[]",
        }
    }

    fn marked_array(self) -> &'static str {
        if self == Self::Instant { "bigint[]" } else { self.array() }
    }

    /// Takes the marks off. A text or bytes that is there has one character in front, and is empty where there is none; a
    /// number that is not there is the least one; an instant is a number of microseconds since 2000, added in two parts
    /// because an interval is multiplied in floating point.
    fn unmarked(self, value: &str) -> String {
        match self {
            Self::Id => value.to_owned(),
            Self::Text => format!("substr(NULLIF({value}, ''), 2)"),
            Self::Bytes => format!("substr(NULLIF({value}, ''::bytea), 2)"),
            Self::Number => format!("NULLIF({value}, -9223372036854775808)"),
            Self::Instant => format!(
                "timestamptz '2000-01-01 00:00:00Z' \
                 + NULLIF({value}, -9223372036854775808) / 3600000000 * interval '1 hour' \
                 + NULLIF({value}, -9223372036854775808) % 3600000000 * interval '1 microsecond'"
            ),
        }
    }
}

/// A column of the table: its quoted name, what is bound for it, and what becomes of that (`$` stands for the value).
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) conversion: &'static str,
}

/// The statement that inserts a batch into `table`. The rows come in the order of the arrays.
pub(crate) fn insert(table: &str, columns: &[Column], marked: bool) -> String {
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    let numbered = || (1..).zip(columns);
    let value = |(number, column): (usize, &Column)| {
        let value = format!("v{number}");
        let value = if marked { column.kind.unmarked(&value) } else { value };
        column.conversion.replace('$', &value)
    };
    let parameter = |(number, column): (usize, &Column)| {
        let array = if marked { column.kind.marked_array() } else { column.kind.array() };
        format!("${number}::{array}")
    };
    let aliases: Vec<String> = numbered().map(|(number, _)| format!("v{number}")).collect();
    format!(
        "INSERT INTO {table} ({})\nSELECT {}\n  FROM unnest({}) AS batch ({})",
        names.join(", "),
        numbered().map(value).collect::<Vec<_>>().join(", "),
        numbered().map(parameter).collect::<Vec<_>>().join(", "),
        aliases.join(", "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_names_every_column_once() {
        let column = |name: &str, kind, conversion| Column { name: name.to_owned(), kind, conversion };
        let columns =
            [column("\"id\"", Kind::Id, "$"), column("\"body\"", Kind::Bytes, "convert_from($, 'UTF8')::json")];
        assert_eq!(
            insert("\"s\".\"t\"", &columns, false),
            "INSERT INTO \"s\".\"t\" (\"id\", \"body\")\nSELECT v1, convert_from(v2, 'UTF8')::json\n  \
             FROM unnest($1::uuid[], $2::bytea[]) AS batch (v1, v2)"
        );
        assert!(insert("t", &columns, true).contains("convert_from(substr(NULLIF(v2, ''::bytea), 2), 'UTF8')::json"));
    }
}
